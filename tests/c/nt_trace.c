/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_trace.h"

#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                      \
    do {                                                                               \
        if (trace->status == NT_OK) {                                                  \
            trace->status = (call);                                                    \
        }                                                                              \
    } while (0)

void
nt_trace_open(nt_trace *trace, nt_test *t, const nt_alloc *alloc)
{
    *trace = (nt_trace){
        .test = t,
        .keys = NT_HAS_BLOCK_REQUESTED | NT_HAS_TRACES,
        .stack = NT_NO_STACK,
    };
    nt_hostile_init(&trace->hostile, t);
    trace->alloc = alloc != NULL ? *alloc : trace->hostile.alloc;
    TRY(nt_snapshot_new(&trace->alloc, &trace->snapshot, &trace->err));
    TRY(nt_snapshot_begin_trace(trace->snapshot, &trace->err));
}

void
nt_trace_close(nt_trace *trace)
{
    nt_test *t = trace->test;
    nt_timeline_free(trace->timeline);
    nt_snapshot_free(trace->snapshot);
    NT_CHECK_NO_LEAK(&trace->hostile);
}

static uint32_t
trace_string(nt_trace *trace, const char *text)
{
    uint32_t id = NT_NONE;
    TRY(nt_strings_intern(nt_snapshot_strings(trace->snapshot), text, strlen(text), &id,
                          &trace->err));
    return id;
}

uint32_t
nt_trace_stack(nt_trace *trace, const char *function, int64_t line, const char *outer)
{
    uint32_t frames[2] = {0}, stack = NT_NO_STACK;
    const char *names[2] = {function, outer};
    const size_t count = outer != NULL ? 2 : 1;
    for (size_t i = 0; i < count && trace->status == NT_OK; i++) {
        const nt_frame frame = {
            .name = trace_string(trace, names[i]),
            .filename = trace_string(trace, "model.py"),
            .line = line + (int64_t)i,
        };
        TRY(nt_stacks_intern_frame(nt_snapshot_stacks(trace->snapshot), frame,
                                   &frames[i], &trace->err));
    }
    TRY(nt_stacks_intern(nt_snapshot_stacks(trace->snapshot), frames, count, &stack,
                         &trace->err));
    return stack;
}

void
nt_trace_settings(nt_trace *trace, const char *text)
{
    const nt_setting row = {
        .parent = NT_NONE,
        .key = trace_string(trace, "PYTORCH_CUDA_ALLOC_CONF"),
        .kind = NT_SETTING_STRING,
        .string = trace_string(trace, text),
    };
    TRY(nt_snapshot_add_setting(trace->snapshot, &row, &trace->err));
}

void
nt_trace_event_at(nt_trace *trace, nt_action action, uint64_t addr, uint64_t size,
                  uint32_t stack)
{
    const nt_event event = {
        .action = (uint8_t)action,
        .addr = addr,
        .size = size,
        .stream = trace->stream,
        .time_us = trace->time_us,
        .stack = stack,
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    trace->keys |= event.time_us != 0 ? NT_HAS_EVENT_TIME : 0;
    TRY(nt_snapshot_add_event(trace->snapshot, &event, &trace->err));
}

void
nt_trace_event(nt_trace *trace, nt_action action, uint64_t addr, uint64_t size)
{
    nt_trace_event_at(trace, action, addr, size, trace->stack);
}

void
nt_trace_free(nt_trace *trace, uint64_t addr, uint64_t size)
{
    nt_trace_event(trace, NT_ACTION_FREE_REQUESTED, addr, size);
    nt_trace_event(trace, NT_ACTION_FREE_COMPLETED, addr, size);
}

void
nt_trace_segment(nt_trace *trace, uint64_t addr, uint64_t size, nt_pool_kind kind,
                 bool expandable)
{
    const nt_segment segment = {
        .address = addr,
        .total_size = size,
        .stream = trace->stream,
        .kind = (uint8_t)kind,
        .is_expandable = expandable,
        .stack = trace->stack,
    };
    TRY(nt_snapshot_add_segment(trace->snapshot, &segment, &trace->err));
}

void
nt_trace_block(nt_trace *trace, uint64_t addr, uint64_t size, uint64_t requested,
               nt_block_state state)
{
    const nt_block block = {
        .address = addr,
        .size = size,
        .requested_size = requested,
        .state = (uint8_t)state,
        .stack = trace->stack,
    };
    TRY(nt_snapshot_add_block(trace->snapshot, &block, &trace->err));
}

void
nt_trace_add_layout(nt_trace *trace, const nt_layout *end)
{
    const nt_segment_columns *s = &end->segments;
    const nt_block_columns *b = &end->blocks;
    for (size_t i = 0; i < s->count; i++) {
        trace->stream = s->stream[i];
        nt_trace_segment(trace, s->address[i], s->total_size[i],
                         (nt_pool_kind)s->kind[i], s->is_expandable[i] != 0);
        for (size_t k = s->block_first[i]; k < s->block_first[i] + s->block_count[i];
             k++) {
            nt_trace_block(trace, b->address[k], b->size[k], b->requested_size[k],
                           (nt_block_state)b->state[k]);
        }
    }
}

bool
nt_trace_replay(nt_trace *trace)
{
    if (trace->status == NT_OK) {
        nt_snapshot_set_keys(trace->snapshot, trace->keys);
    }
    TRY(nt_snapshot_seal(trace->snapshot, &trace->err));
    TRY(nt_timeline_new(&trace->alloc, trace->snapshot, 0, NULL, &trace->timeline,
                        &trace->err));
    nt_test *t = trace->test;
    return NT_CHECK_OK(trace->status, &trace->err);
}

uint64_t
nt_trace_bytes(nt_trace *trace, nt_metric metric, int32_t event)
{
    if (event < 0) {
        return nt_timeline_facts(trace->timeline)->start_bytes[metric];
    }
    const size_t count = nt_timeline_event_count(trace->timeline);
    uint64_t *series = malloc(count * sizeof *series);
    if (series == NULL) {
        return UINT64_MAX;
    }
    nt_timeline_series(trace->timeline, metric, series);
    const uint64_t bytes = series[event];
    free(series);
    return bytes;
}

uint64_t
nt_trace_block_size(nt_trace *trace, int32_t event)
{
    const uint32_t row = nt_timeline_event_allocations(trace->timeline)[event];
    return row == NT_NONE ? 0 : nt_timeline_allocations(trace->timeline)->size[row];
}

/* Sums that the layout makes from its blocks, against the series. */
static void
trace_check_sums(nt_trace *trace, const nt_layout *layout, int32_t event)
{
    nt_test *t = trace->test;
    nt_pool_stats pools[NT_POOL_KIND_COUNT];
    nt_layout_stats(layout, 0, pools);
    NT_CHECK_UINT(pools[0].allocated_bytes + pools[1].allocated_bytes,
                  nt_trace_bytes(trace, NT_METRIC_ALLOCATED, event));
    NT_CHECK_UINT(pools[0].active_bytes + pools[1].active_bytes,
                  nt_trace_bytes(trace, NT_METRIC_ACTIVE, event));
    NT_CHECK_UINT(pools[0].reserved_bytes + pools[1].reserved_bytes,
                  nt_trace_bytes(trace, NT_METRIC_RESERVED, event));
    NT_CHECK_UINT(pools[0].requested_bytes + pools[1].requested_bytes,
                  nt_trace_bytes(trace, NT_METRIC_REQUESTED, event));
}

void
nt_trace_check(nt_trace *trace, int32_t event)
{
    nt_test *t = trace->test;
    nt_layout *layout;
    NT_REQUIRE(NT_CHECK_OK(
        nt_timeline_layout(trace->timeline, event, &layout, &trace->err), &trace->err));
    if (!NT_CHECK_UINT(nt_layout_check(layout), NT_NONE)) {
        NT_FAIL("the layout after event %d is unsound", (int)event);
    }
    trace_check_sums(trace, layout, event);
    nt_timeline_layout_free(trace->timeline, layout);
}

void
nt_trace_check_facts(nt_trace *trace, uint32_t preexisting, uint32_t unmatched,
                     uint64_t slack)
{
    nt_test *t = trace->test;
    const nt_trace_facts *facts = nt_timeline_facts(trace->timeline);
    NT_CHECK_UINT(facts->preexisting, preexisting);
    NT_CHECK_UINT(facts->unmatched, unmatched);
    NT_CHECK_UINT(facts->slack_bound, slack);
}

static void
trace_compare(nt_test *t, const nt_layout *a, const nt_layout *b)
{
    NT_REQUIRE(NT_CHECK_UINT(a->segments.count, b->segments.count));
    NT_REQUIRE(NT_CHECK_UINT(a->blocks.count, b->blocks.count));
    for (size_t i = 0; i < a->segments.count; i++) {
        NT_CHECK_UINT(a->segments.address[i], b->segments.address[i]);
        NT_CHECK_UINT(a->segments.total_size[i], b->segments.total_size[i]);
        NT_CHECK_UINT(a->segments.kind[i], b->segments.kind[i]);
        NT_CHECK_UINT(a->segments.is_expandable[i], b->segments.is_expandable[i]);
        NT_CHECK_UINT(a->segments.stream[i], b->segments.stream[i]);
        NT_CHECK_UINT(a->segments.pool_first[i], b->segments.pool_first[i]);
    }
    for (size_t i = 0; i < a->blocks.count; i++) {
        NT_CHECK_UINT(a->blocks.address[i], b->blocks.address[i]);
        NT_CHECK_UINT(a->blocks.size[i], b->blocks.size[i]);
        NT_CHECK_UINT(a->blocks.state[i], b->blocks.state[i]);
        if (b->blocks.state[i] != NT_BLOCK_INACTIVE) {
            NT_CHECK_UINT(a->blocks.requested_size[i], b->blocks.requested_size[i]);
        }
    }
}

void
nt_trace_check_layout(nt_trace *trace, int32_t event, const nt_layout *expected)
{
    nt_test *t = trace->test;
    nt_layout *layout;
    NT_REQUIRE(NT_CHECK_OK(
        nt_timeline_layout(trace->timeline, event, &layout, &trace->err), &trace->err));
    trace_compare(t, layout, expected);
    nt_timeline_layout_free(trace->timeline, layout);
}

void
nt_trace_check_end(nt_trace *trace)
{
    const int32_t last = (int32_t)nt_timeline_event_count(trace->timeline) - 1;
    nt_trace_check_layout(trace, last, nt_snapshot_layout(trace->snapshot));
}
