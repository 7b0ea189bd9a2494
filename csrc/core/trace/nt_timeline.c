/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline.h"

#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_timeline_start.h"
#include "trace/nt_timeline_state.h"

static const nt_column_spec allocation_specs[] = {
    NT_COLUMN(nt_allocation_columns, address),
    NT_COLUMN(nt_allocation_columns, size),
    NT_COLUMN(nt_allocation_columns, requested_size),
    NT_COLUMN(nt_allocation_columns, stream),
    NT_COLUMN(nt_allocation_columns, alloc_event),
    NT_COLUMN(nt_allocation_columns, free_event),
    NT_COLUMN(nt_allocation_columns, completed_event),
    NT_COLUMN(nt_allocation_columns, stack),
};

nt_status
nt_timeline_reserve_allocations(nt_timeline *t, size_t rows, nt_error *err)
{
    if (rows >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 allocations");
    }
    return nt_columns_reserve(&t->alloc, &t->allocations, allocation_specs,
                              NT_LENGTH(allocation_specs), t->allocations.count,
                              &t->allocation_capacity, rows, err);
}

nt_status
nt_timeline_add_allocation(nt_timeline *t, const nt_allocation *row, nt_error *err)
{
    nt_allocation_columns *a = &t->allocations;
    const size_t at = a->count;
    if (NT_UNLIKELY(at >= t->allocation_capacity)) {
        NT_TRY(nt_timeline_reserve_allocations(t, at + 1, err));
    }
    a->address[at] = row->address;
    a->size[at] = row->size;
    a->requested_size[at] = row->requested_size;
    a->stream[at] = row->stream;
    a->alloc_event[at] = row->alloc_event;
    a->free_event[at] = row->free_event;
    a->completed_event[at] = row->completed_event;
    a->stack[at] = row->stack;
    a->count = at + 1;
    return NT_OK;
}

nt_status
nt_timeline_tick(const nt_timeline *t, size_t done, nt_error *err)
{
    if (t->progress != NULL && t->progress->report(t->progress->ctx, done) != 0) {
        return nt_fail(err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
    }
    return NT_OK;
}

/* Whether a frame called `name` (a string id) is in the stack. */
static bool
timeline_has_frame(const nt_stacks *stacks, uint32_t stack, uint32_t name)
{
    const nt_frame *frames = nt_stacks_frames(stacks);
    while (stack != NT_EMPTY_STACK) {
        if (frames[nt_stacks_innermost(stacks)[stack]].name == name) {
            return true;
        }
        stack = nt_stacks_parent(stacks)[stack];
    }
    return false;
}

/*
 * One run of segment_free and segment_unmap events, first .. end - 1: whether it
 * was the allocator's own, before another attempt. Its user's empty_cache() has
 * that frame in the stack.
 */
static bool
timeline_is_retry(const nt_timeline *t, size_t first, size_t end)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    const uint32_t stack = e->stack[t->first + first];
    const uint32_t name =
        nt_strings_find(nt_snapshot_strings(t->snapshot), "empty_cache", 11);
    if (stack != NT_NO_STACK && name != NT_NONE &&
        timeline_has_frame(nt_snapshot_stacks(t->snapshot), stack, name)) {
        return false;
    }
    const uint8_t next = end < t->count ? e->action[t->first + end] : NT_ACTION_COUNT;
    return next == NT_ACTION_SEGMENT_ALLOC || next == NT_ACTION_SEGMENT_MAP ||
           next == NT_ACTION_OOM;
}

static bool
timeline_is_release(uint8_t action)
{
    return action == NT_ACTION_SEGMENT_FREE || action == NT_ACTION_SEGMENT_UNMAP;
}

/* Runs of releases, and how often the allocator gave its cache back to try again.
 * An OOM that had nothing to give back had tried all the same. */
static void
timeline_count_retries(nt_timeline *t)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    const uint8_t *action = e->action + t->first;
    /* Collecting garbage and making room for oversize requests release segments
     * too, without being a retry, and the trace does not tell them apart. */
    const nt_settings *settings = nt_snapshot_settings(t->snapshot);
    t->facts.retries_known = settings->garbage_collection_threshold <= 0 &&
                             settings->max_split_size == NT_UNLIMITED;
    bool after_retry = false;
    for (size_t i = 0; i < t->count; i++) {
        if (action[i] == NT_ACTION_OOM) {
            t->facts.oom_count++;
            t->facts.retries += !after_retry;
        }
        after_retry = false;
        if (!timeline_is_release(action[i])) {
            continue;
        }
        const size_t first = i;
        while (i + 1 < t->count && timeline_is_release(action[i + 1])) {
            i++;
        }
        after_retry = timeline_is_retry(t, first, i + 1);
        t->facts.release_runs++;
        t->facts.retries += after_retry;
        if (e->stack[t->first + first] == NT_NO_STACK) {
            t->facts.retries_known = false;
        }
    }
}

static void
timeline_sum_start(nt_timeline *t)
{
    const nt_allocation_columns *a = &t->allocations;
    uint64_t *bytes = t->facts.start_bytes;
    for (size_t row = 0; row < a->count; row++) {
        if (a->alloc_event[row] != NT_EVENT_BEFORE) {
            continue;
        }
        bytes[NT_METRIC_ACTIVE] += a->size[row];
        bytes[NT_METRIC_REQUESTED] += a->requested_size[row];
        if (a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            bytes[NT_METRIC_ALLOCATED] += a->size[row];
        }
    }
}

/* The bytes after an event, and how many rows of t->lost are behind. */
typedef struct timeline_sums {
    uint64_t bytes[NT_METRIC_COUNT];
    size_t lost;
} timeline_sums;

static void
timeline_end_row(const nt_timeline *t, timeline_sums *sums, uint32_t row, int32_t event)
{
    const nt_allocation_columns *a = &t->allocations;
    if (a->free_event[row] == event) {
        sums->bytes[NT_METRIC_ALLOCATED] -= a->size[row];
    }
    if (a->completed_event[row] == event) {
        sums->bytes[NT_METRIC_ACTIVE] -= a->size[row];
        sums->bytes[NT_METRIC_REQUESTED] -= a->requested_size[row];
    }
}

/* Moves the sums of the blocks on by event `i`. */
static inline void
timeline_step(const nt_timeline *t, timeline_sums *sums, size_t i)
{
    const uint32_t row = t->event_allocations[i];
    if (row != NT_NONE) {
        const nt_allocation_columns *a = &t->allocations;
        if (a->alloc_event[row] == (int32_t)i) {
            sums->bytes[NT_METRIC_ALLOCATED] += a->size[row];
            sums->bytes[NT_METRIC_ACTIVE] += a->size[row];
            sums->bytes[NT_METRIC_REQUESTED] += a->requested_size[row];
        } else {
            timeline_end_row(t, sums, row, (int32_t)i);
        }
    }
    while (NT_UNLIKELY(sums->lost < t->lost_count &&
                       t->lost[sums->lost].event == (int32_t)i)) {
        timeline_end_row(t, sums, t->lost[sums->lost++].row, (int32_t)i);
    }
}

static timeline_sums
timeline_start(const nt_timeline *t)
{
    timeline_sums sums = {.lost = 0};
    memcpy(sums.bytes, t->facts.start_bytes, sizeof sums.bytes);
    return sums;
}

static void
timeline_raise_peak(nt_moment *peak, uint64_t bytes, int32_t event)
{
    if (bytes > peak->bytes) {
        *peak = (nt_moment){.event = event, .bytes = bytes};
    }
}

/* When the reserved bytes change, and by how much modulo 2^64, in order. */
static nt_status
timeline_collect_reserved(nt_timeline *t, nt_error *err)
{
    const nt_segment_life_columns *s = &t->segments;
    size_t bytes;
    if (s->count == 0) {
        return NT_OK;
    }
    t->reserved = nt_size_mul(s->count, 2 * sizeof(nt_sort_item), &bytes)
                      ? nt_allocate(&t->alloc, bytes)
                      : NULL;
    if (t->reserved == NULL) {
        return nt_fail_nomem(err);
    }
    t->reserved_capacity = 2 * s->count;
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->alloc_event[row] >= 0) {
            t->reserved[t->reserved_count++] =
                (nt_sort_item){(uint64_t)s->alloc_event[row], row};
        }
        if (s->free_event[row] >= 0) {
            t->reserved[t->reserved_count++] =
                (nt_sort_item){(uint64_t)s->free_event[row], row};
        }
    }
    nt_sort(t->reserved, t->reserved_count);
    return NT_OK;
}

/* The reserved bytes after the events of t->reserved up to `event`. */
static uint64_t
timeline_step_reserved(const nt_timeline *t, uint64_t bytes, size_t *next, int32_t event)
{
    const nt_segment_life_columns *s = &t->segments;
    while (*next < t->reserved_count && t->reserved[*next].key == (uint64_t)event) {
        const uint32_t row = t->reserved[(*next)++].value;
        /* A row that begins and ends with one event stands in the list twice. */
        const bool begins = s->alloc_event[row] == event;
        const bool ends = s->free_event[row] == event;
        if (begins != ends) {
            bytes += begins ? s->size[row] : 0 - s->size[row];
        }
    }
    return bytes;
}

static void
timeline_find_peaks(nt_timeline *t)
{
    timeline_sums sums = timeline_start(t);
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        t->peaks[metric] = (nt_moment){.event = -1, .bytes = sums.bytes[metric]};
    }
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, &sums, i);
        timeline_raise_peak(&t->peaks[NT_METRIC_ALLOCATED],
                            sums.bytes[NT_METRIC_ALLOCATED], (int32_t)i);
        timeline_raise_peak(&t->peaks[NT_METRIC_ACTIVE], sums.bytes[NT_METRIC_ACTIVE],
                            (int32_t)i);
        timeline_raise_peak(&t->peaks[NT_METRIC_REQUESTED],
                            sums.bytes[NT_METRIC_REQUESTED], (int32_t)i);
    }
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    for (size_t next = 0; next < t->reserved_count;) {
        const int32_t event = (int32_t)t->reserved[next].key;
        reserved = timeline_step_reserved(t, reserved, &next, event);
        timeline_raise_peak(&t->peaks[NT_METRIC_RESERVED], reserved, event);
    }
}

void
nt_timeline_series(const nt_timeline *t, nt_metric metric, uint64_t *out)
{
    timeline_sums sums = timeline_start(t);
    size_t next = 0;
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    for (size_t i = 0; i < t->count; i++) {
        if (metric == NT_METRIC_RESERVED) {
            reserved = timeline_step_reserved(t, reserved, &next, (int32_t)i);
            out[i] = reserved;
        } else {
            timeline_step(t, &sums, i);
            out[i] = sums.bytes[metric];
        }
    }
}

static nt_status
timeline_replay(nt_timeline *t, nt_error *err)
{
    NT_TRY(nt_timeline_replay_segments(t, err));
    t->facts.complete = t->facts.start_bytes[NT_METRIC_RESERVED] == 0;
    NT_TRY(nt_timeline_replay_blocks(t, err));
    NT_TRY(timeline_collect_reserved(t, err));
    timeline_sum_start(t);
    timeline_find_peaks(t);
    if (t->count != 0) {
        timeline_count_retries(t);
    }
    return NT_OK;
}

nt_status
nt_timeline_new(const nt_alloc *alloc, const nt_snapshot *snapshot, int32_t device,
                const nt_progress *progress, nt_timeline **out, nt_error *err)
{
    nt_timeline *t = nt_allocate(alloc, sizeof *t);
    if (t == NULL) {
        return nt_fail_nomem(err);
    }
    *t = (nt_timeline){.alloc = *alloc, .snapshot = snapshot, .device = device};
    t->progress = progress;
    if (device >= 0) {
        nt_snapshot_trace(snapshot, (size_t)device, &t->first, &t->count);
    }
    const nt_status status = timeline_replay(t, err);
    if (status != NT_OK) {
        nt_timeline_free(t);
        return status;
    }
    t->progress = NULL;
    *out = t;
    return NT_OK;
}

void
nt_timeline_free(nt_timeline *t)
{
    if (t == NULL) {
        return;
    }
    const nt_alloc alloc = t->alloc;
    nt_columns_release(&alloc, &t->allocations, allocation_specs,
                       NT_LENGTH(allocation_specs), t->allocation_capacity);
    nt_timeline_clear_segments(t);
    nt_release(&alloc, t->event_allocations, t->count * sizeof(uint32_t));
    nt_release(&alloc, t->start_segments,
               t->start_segment_capacity * sizeof(nt_sort_item));
    nt_release(&alloc, t->reserved, t->reserved_capacity * sizeof(nt_sort_item));
    nt_release(&alloc, t->lost, t->lost_capacity * sizeof(nt_lost_end));
    nt_release(&alloc, t, sizeof *t);
}

const nt_snapshot *
nt_timeline_snapshot(const nt_timeline *t)
{
    return t->snapshot;
}

size_t
nt_timeline_event_count(const nt_timeline *t)
{
    return t->count;
}

const nt_allocation_columns *
nt_timeline_allocations(const nt_timeline *t)
{
    return &t->allocations;
}

const nt_segment_life_columns *
nt_timeline_segments(const nt_timeline *t)
{
    return &t->segments;
}

const nt_trace_facts *
nt_timeline_facts(const nt_timeline *t)
{
    return &t->facts;
}

nt_moment
nt_timeline_peak(const nt_timeline *t, nt_metric metric)
{
    return t->peaks[metric];
}

const uint32_t *
nt_timeline_event_allocations(const nt_timeline *t)
{
    return t->event_allocations;
}
