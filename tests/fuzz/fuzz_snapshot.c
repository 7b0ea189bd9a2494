/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: whatever the reader accepts, the snapshot's columns keep the promises of
 * nt_snapshot.h (ids in range, counts that agree), and every question can be asked
 * of it: checks, figures, timeline, layouts, holders, fragmentation.
 */
#include <stdlib.h>
#include <string.h>

#include "base/nt_utf8.h"
#include "fragmentation/nt_fragment.h"
#include "nt_fuzz.h"
#include "trace/nt_timeline.h"

static void
check_string(const nt_snapshot *s, uint32_t id)
{
    NT_FUZZ_CHECK(id == NT_NONE || id < nt_strings_count(nt_snapshot_strings(s)));
}

static void
check_strings(const nt_snapshot *s)
{
    const nt_strings *strings = nt_snapshot_strings(s);
    for (uint32_t id = 0; id < nt_strings_count(strings); id++) {
        size_t length;
        const char *text = nt_strings_get(strings, id, &length);
        NT_FUZZ_CHECK(nt_utf8_check((const uint8_t *)text, length));
        NT_FUZZ_CHECK(nt_strings_find(strings, text, length) == id);
    }
}

static void
check_stacks(const nt_snapshot *s)
{
    const nt_stacks *stacks = nt_snapshot_stacks(s);
    NT_FUZZ_CHECK(nt_stacks_count(stacks) >= 1);
    NT_FUZZ_CHECK(nt_stacks_innermost(stacks)[NT_EMPTY_STACK] == NT_NONE);
    for (uint32_t id = 1; id < nt_stacks_count(stacks); id++) {
        NT_FUZZ_CHECK(nt_stacks_innermost(stacks)[id] < nt_stacks_frame_count(stacks));
        NT_FUZZ_CHECK(nt_stacks_parent(stacks)[id] < id);
    }
    for (uint32_t id = 0; id < nt_stacks_frame_count(stacks); id++) {
        const nt_frame *frame = &nt_stacks_frames(stacks)[id];
        NT_FUZZ_CHECK(frame->name < nt_strings_count(nt_snapshot_strings(s)));
        NT_FUZZ_CHECK(frame->filename < nt_strings_count(nt_snapshot_strings(s)));
    }
}

static void
check_stack(const nt_snapshot *s, uint32_t stack)
{
    NT_FUZZ_CHECK(stack == NT_NO_STACK ||
                  stack < nt_stacks_count(nt_snapshot_stacks(s)));
}

/* Optional columns are there exactly where the file had their key. */
static void
check_event_columns(const nt_snapshot *s, const nt_event_columns *e)
{
    const uint32_t keys = nt_snapshot_keys(s);
    const struct {
        const void *column;
        uint32_t key;
    } optional[] = {
        {e->time_us, NT_HAS_EVENT_TIME},
        {e->device_free, NT_HAS_EVENT_DEVICE_FREE},
        {e->pool_first, NT_HAS_EVENT_POOL},
        {e->pool_second, NT_HAS_EVENT_POOL},
        {e->compile_context, NT_HAS_EVENT_COMPILE_CONTEXT},
        {e->user_metadata, NT_HAS_EVENT_USER_METADATA},
    };
    for (size_t i = 0; i < sizeof optional / sizeof *optional && e->count != 0; i++) {
        NT_FUZZ_CHECK((optional[i].column != NULL) == ((keys & optional[i].key) != 0));
    }
}

static void
check_events(const nt_snapshot *s)
{
    const nt_event_columns *e = nt_snapshot_events(s);
    check_event_columns(s, e);
    for (size_t row = 0; row < e->count; row++) {
        size_t length;
        NT_FUZZ_CHECK(e->action[row] < nt_snapshot_action_count(s));
        NT_FUZZ_CHECK(nt_snapshot_action_name(s, e->action[row], &length) != NULL);
        check_stack(s, e->stack[row]);
        check_string(s, e->compile_context == NULL ? NT_NONE : e->compile_context[row]);
        check_string(s, e->user_metadata == NULL ? NT_NONE : e->user_metadata[row]);
    }
    size_t next = 0;
    for (size_t device = 0; device < nt_snapshot_trace_count(s); device++) {
        size_t first, events;
        nt_snapshot_trace(s, device, &first, &events);
        NT_FUZZ_CHECK(first == next);
        next += events;
    }
    NT_FUZZ_CHECK(next == e->count);
}

static void
check_layout(const nt_snapshot *s, const nt_layout *layout)
{
    const nt_segment_columns *g = &layout->segments;
    const nt_block_columns *b = &layout->blocks;
    size_t next = 0;
    for (size_t row = 0; row < g->count; row++) {
        NT_FUZZ_CHECK(g->block_first[row] == next);
        next += g->block_count[row];
        NT_FUZZ_CHECK(next <= b->count);
        for (size_t block = g->block_first[row]; block < next; block++) {
            NT_FUZZ_CHECK(b->segment[block] == row);
        }
        NT_FUZZ_CHECK(g->kind[row] < NT_POOL_KIND_COUNT);
        NT_FUZZ_CHECK(g->is_expandable[row] <= 1);
        NT_FUZZ_CHECK(g->device[row] >= 0);
        check_stack(s, g->stack[row]);
    }
    NT_FUZZ_CHECK(next == b->count);
    for (size_t row = 0; row < b->count; row++) {
        NT_FUZZ_CHECK(b->state[row] < NT_BLOCK_STATE_COUNT);
        check_stack(s, b->stack[row]);
    }
    const uint32_t broken = nt_layout_check(layout);
    NT_FUZZ_CHECK(broken == NT_NONE || broken < g->count);
}

static void
check_rest(const nt_snapshot *s)
{
    const nt_annotation_columns *a = nt_snapshot_annotations(s);
    for (size_t row = 0; row < a->count; row++) {
        NT_FUZZ_CHECK(a->stage[row] < NT_STAGE_COUNT);
        NT_FUZZ_CHECK(a->device[row] >= 0);
        check_string(s, a->name[row]);
    }
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(s, &count);
    for (size_t row = 0; row < count; row++) {
        const uint32_t parent = rows[row].parent;
        NT_FUZZ_CHECK(parent == NT_NONE || parent < row);
        const nt_setting_kind kind =
            parent == NT_NONE ? NT_SETTING_DICT : rows[parent].kind;
        NT_FUZZ_CHECK(kind == NT_SETTING_DICT || kind == NT_SETTING_LIST);
        NT_FUZZ_CHECK((rows[row].key == NT_NONE) == (kind == NT_SETTING_LIST));
        check_string(s, rows[row].key);
        if (rows[row].kind == NT_SETTING_STRING) {
            check_string(s, rows[row].string);
        }
    }
    const uint32_t *ignored = nt_snapshot_ignored(s, &count);
    for (size_t i = 0; i < count; i++) {
        NT_FUZZ_CHECK(ignored[i] < nt_strings_count(nt_snapshot_strings(s)));
    }
}

/* Of one device as PyTorch counts them, or of all for a negative one. */
static uint64_t
reserved_bytes(const nt_layout *layout, int32_t device)
{
    uint64_t sum = 0;
    if (device >= 0) {
        nt_pool_stats stats[NT_POOL_KIND_COUNT];
        nt_layout_stats(layout, device, stats);
        return stats[NT_POOL_SMALL].reserved_bytes +
               stats[NT_POOL_LARGE].reserved_bytes;
    }
    for (size_t row = 0; row < layout->segments.count; row++) {
        sum += layout->segments.total_size[row];
    }
    return sum;
}

/* The reserved bytes of a device are the same by pool, by group and by segment. */
static void
check_fragment(const nt_snapshot *s, const nt_layout *layout, int32_t device)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_fragment *fragment = NULL;
    const nt_status status = nt_fragment_new(&alloc, layout, nt_snapshot_settings(s),
                                             device, &fragment, NULL);
    NT_FUZZ_CHECK(status == NT_OK);
    size_t groups, holes, segments;
    const nt_fragment_group *group = nt_fragment_groups(fragment, &groups);
    const nt_hole *hole = nt_fragment_holes(fragment, &holes);
    const nt_fragment_segment *segment = nt_fragment_segments(fragment, &segments);
    uint64_t reserved = 0, free_bytes = 0, hole_bytes = 0;
    size_t rows = 0;
    for (size_t i = 0; i < groups; i++) {
        reserved += group[i].reserved;
        rows += group[i].segments;
        (void)nt_fragment_fits(fragment, device, group[i].pool, group[i].stream,
                               group[i].largest_request);
    }
    NT_FUZZ_CHECK(reserved == reserved_bytes(layout, device));
    NT_FUZZ_CHECK(rows == segments);
    for (size_t i = 0; i < segments; i++) {
        NT_FUZZ_CHECK(segment[i].segment < layout->segments.count);
        free_bytes += segment[i].free_bytes;
    }
    for (size_t i = 0; i < holes; i++) {
        NT_FUZZ_CHECK(hole[i].block < layout->blocks.count);
        NT_FUZZ_CHECK(hole[i].before == NT_NONE ||
                      hole[i].before < layout->blocks.count);
        NT_FUZZ_CHECK(hole[i].after == NT_NONE || hole[i].after < layout->blocks.count);
        hole_bytes += hole[i].size;
    }
    NT_FUZZ_CHECK(free_bytes == hole_bytes);
    nt_fragment_free(fragment);
}

/* After `event`: the layout is sound whatever the file says, it is all that is
 * reserved, and holders add up to the allocated bytes. */
static void
check_moment(const nt_timeline *timeline, int32_t device, int32_t event,
             const uint64_t bytes[NT_METRIC_COUNT])
{
    nt_layout *layout = NULL;
    NT_FUZZ_CHECK(nt_timeline_layout(timeline, event, &layout, NULL) == NT_OK);
    check_layout(nt_timeline_snapshot(timeline), layout);
    NT_FUZZ_CHECK(nt_layout_check(layout) == NT_NONE);
    NT_FUZZ_CHECK(reserved_bytes(layout, -1) == bytes[NT_METRIC_RESERVED]);
    check_fragment(nt_timeline_snapshot(timeline), layout, device);
    nt_timeline_layout_free(timeline, layout);
    for (int by = NT_BY_STACK; by <= NT_BY_FUNCTION; by++) {
        nt_holder *holders = NULL;
        size_t count;
        uint64_t held = 0;
        NT_FUZZ_CHECK(nt_timeline_holders(timeline, event, (nt_holder_key)by, &holders,
                                          &count, NULL) == NT_OK);
        for (size_t i = 0; i < count; i++) {
            NT_FUZZ_CHECK(i == 0 || holders[i].bytes <= holders[i - 1].bytes);
            held += holders[i].bytes;
        }
        NT_FUZZ_CHECK(held == bytes[NT_METRIC_ALLOCATED]);
        nt_timeline_holders_free(timeline, holders, count);
    }
}

static void
check_churn(const nt_timeline *timeline)
{
    nt_churn *churn = NULL;
    size_t count;
    NT_FUZZ_CHECK(nt_timeline_churn(timeline, &churn, &count, NULL) == NT_OK);
    for (size_t i = 0; i < count; i++) {
        check_stack(nt_timeline_snapshot(timeline), churn[i].stack);
    }
    nt_timeline_churn_free(timeline, churn, count);
}

/* The peak is the largest value of its series, at the first event that has it. */
static void
check_peak(const nt_timeline *timeline, nt_metric metric, const uint64_t *series)
{
    const size_t count = nt_timeline_event_count(timeline);
    nt_moment peak = {
        .event = -1,
        .bytes = nt_timeline_facts(timeline)->start_bytes[metric],
    };
    for (size_t event = 0; event < count; event++) {
        if (series[event] > peak.bytes) {
            peak = (nt_moment){.event = (int32_t)event, .bytes = series[event]};
        }
    }
    const nt_moment told = nt_timeline_peak(timeline, metric);
    NT_FUZZ_CHECK(told.bytes == peak.bytes);
    NT_FUZZ_CHECK(told.event == peak.event);
}

/* Moments of one trace that are looked at, spread over it. */
#define MOST_MOMENTS 8

static void
check_moments(const nt_timeline *timeline, int32_t device,
              uint64_t *const series[NT_METRIC_COUNT])
{
    const int32_t count = (int32_t)nt_timeline_event_count(timeline);
    check_moment(timeline, device, -1, nt_timeline_facts(timeline)->start_bytes);
    for (int32_t i = 0; i < count; i += count / MOST_MOMENTS + 1) {
        /* From the last event on backwards, so that the end is always among them. */
        const int32_t event = count - 1 - i;
        uint64_t bytes[NT_METRIC_COUNT];
        for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
            bytes[metric] = series[metric][event];
        }
        check_moment(timeline, device, event, bytes);
    }
}

static void
check_timeline(const nt_snapshot *s, int32_t device)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_timeline *timeline = NULL;
    const nt_status status = nt_timeline_new(&alloc, s, device, NULL, &timeline, NULL);
    NT_FUZZ_CHECK(status == NT_OK);
    const size_t count = nt_timeline_event_count(timeline);
    uint64_t *series[NT_METRIC_COUNT];
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        series[metric] = malloc((count + 1) * sizeof *series[metric]);
        NT_FUZZ_CHECK(series[metric] != NULL);
        nt_timeline_series(timeline, (nt_metric)metric, series[metric]);
        check_peak(timeline, (nt_metric)metric, series[metric]);
    }
    const size_t rows = nt_timeline_allocations(timeline)->count;
    const uint32_t *allocation = nt_timeline_event_allocations(timeline);
    for (size_t event = 0; event < count; event++) {
        NT_FUZZ_CHECK(allocation[event] == NT_NONE || allocation[event] < rows);
    }
    check_moments(timeline, device, series);
    check_churn(timeline);
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        free(series[metric]);
    }
    nt_timeline_free(timeline);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nt_snapshot *s = nt_fuzz_load(data, size);
    if (s != NULL && nt_fuzz_rows(s) <= NT_FUZZ_MOST_ROWS) {
        check_strings(s);
        check_stacks(s);
        check_events(s);
        check_layout(s, nt_snapshot_layout(s));
        check_rest(s);
        check_fragment(s, nt_snapshot_layout(s), -1);
        for (int32_t device = 0; device < 3; device++) {
            check_fragment(s, nt_snapshot_layout(s), device);
            if (device == 0 || (size_t)device < nt_snapshot_trace_count(s)) {
                check_timeline(s, device);
            }
        }
    }
    nt_snapshot_free(s);
    nt_fuzz_finish();
    return 0;
}
