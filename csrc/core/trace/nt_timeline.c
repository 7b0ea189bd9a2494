/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline.h"

#include <string.h>

#include "base/nt_columns.h"
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

void
nt_timeline_correct_sizes(const nt_timeline *t, size_t block, uint64_t *size,
                          uint64_t *requested_size)
{
    const nt_block_columns *b = &nt_snapshot_layout(t->snapshot)->blocks;
    *size = b->size[block];
    if (nt_snapshot_keys(t->snapshot) & NT_HAS_BLOCK_REQUESTED) {
        *requested_size = b->requested_size[block];
    }
}

nt_allocation
nt_timeline_layout_allocation(const nt_timeline *t, const nt_layout *layout,
                              size_t block)
{
    const nt_block_columns *b = &layout->blocks;
    const bool pending = b->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const bool says = (nt_snapshot_keys(t->snapshot) & NT_HAS_BLOCK_REQUESTED) != 0;
    return (nt_allocation){
        .address = b->address[block],
        .size = b->size[block],
        .requested_size = says ? b->requested_size[block] : b->size[block],
        .stream = layout->segments.stream[b->segment[block]],
        .alloc_event = NT_EVENT_BEFORE,
        .free_event = pending ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = b->stack[block],
    };
}

nt_status
nt_timeline_tick(const nt_timeline *t, size_t done, nt_error *err)
{
    if (t->progress != NULL && t->progress->report(t->progress->ctx, done) != 0) {
        return nt_fail(err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
    }
    return NT_OK;
}

/* The bytes after an event, and how many rows of t->lost are behind. */
typedef struct timeline_sums {
    uint64_t bytes[NT_METRIC_COUNT];
    size_t lost;
} timeline_sums;

static inline void
timeline_begin_row(const nt_timeline *t, timeline_sums *sums, uint32_t row)
{
    const nt_allocation_columns *a = &t->allocations;
    sums->bytes[NT_METRIC_ALLOCATED] += a->size[row];
    sums->bytes[NT_METRIC_ACTIVE] += a->size[row];
    sums->bytes[NT_METRIC_REQUESTED] += a->requested_size[row];
}

static inline void
timeline_complete_row(const nt_timeline *t, timeline_sums *sums, uint32_t row)
{
    sums->bytes[NT_METRIC_ACTIVE] -= t->allocations.size[row];
    sums->bytes[NT_METRIC_REQUESTED] -= t->allocations.requested_size[row];
}

/* What happens to rows with event `i` that is not theirs. */
static void
timeline_step_lost(const nt_timeline *t, timeline_sums *sums, size_t i)
{
    for (; sums->lost < t->lost_count && t->lost[sums->lost].event == (int32_t)i;
         sums->lost++) {
        const nt_lost_event *lost = &t->lost[sums->lost];
        if (lost->changes & NT_LOST_ALLOCATION) {
            timeline_begin_row(t, sums, lost->row);
        }
        if (lost->changes & NT_LOST_FREE) {
            sums->bytes[NT_METRIC_ALLOCATED] -= t->allocations.size[lost->row];
        }
        if (lost->changes & NT_LOST_COMPLETION) {
            timeline_complete_row(t, sums, lost->row);
        }
    }
}

/*
 * Moves the sums of the blocks on by event `i`. Whether it allocates or frees is a
 * factor and no branch, which would be guessed wrongly every other time.
 */
static inline void
timeline_step(const nt_timeline *t, const uint8_t *actions, timeline_sums *sums,
              size_t i)
{
    const uint32_t row = t->event_allocations[i];
    if (row != NT_NONE) {
        const nt_allocation_columns *a = &t->allocations;
        const uint64_t begins = actions[i] == NT_ACTION_ALLOC;
        /* A free_completed without a free_requested is both. */
        const uint64_t is_freed = a->free_event[row] == (int32_t)i && begins == 0;
        const uint64_t completes = actions[i] == NT_ACTION_FREE_COMPLETED;
        sums->bytes[NT_METRIC_ALLOCATED] += (begins - is_freed) * a->size[row];
        sums->bytes[NT_METRIC_ACTIVE] += (begins - completes) * a->size[row];
        sums->bytes[NT_METRIC_REQUESTED] +=
            (begins - completes) * a->requested_size[row];
    }
    timeline_step_lost(t, sums, i);
}

/* What each event does; NULL where there is none. */
static const uint8_t *
timeline_actions(const nt_timeline *t)
{
    return t->count == 0 ? NULL : nt_snapshot_events(t->snapshot)->action + t->first;
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
timeline_step_reserved(const nt_timeline *t, uint64_t bytes, size_t *next,
                       int32_t event)
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
    static const nt_metric of_blocks[] = {NT_METRIC_ALLOCATED, NT_METRIC_ACTIVE,
                                          NT_METRIC_REQUESTED};
    const uint8_t *actions = timeline_actions(t);
    timeline_sums sums = timeline_start(t);
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        t->peaks[metric] = (nt_moment){.event = -1, .bytes = sums.bytes[metric]};
    }
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, actions, &sums, i);
        for (size_t k = 0; k < NT_LENGTH(of_blocks); k++) {
            timeline_raise_peak(&t->peaks[of_blocks[k]], sums.bytes[of_blocks[k]],
                                (int32_t)i);
        }
    }
}

static void
timeline_find_reserved_peak(nt_timeline *t)
{
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    for (size_t next = 0; next < t->reserved_count;) {
        const int32_t event = (int32_t)t->reserved[next].key;
        reserved = timeline_step_reserved(t, reserved, &next, event);
        timeline_raise_peak(&t->peaks[NT_METRIC_RESERVED], reserved, event);
    }
}

static void
timeline_fill_reserved(const nt_timeline *t, uint64_t *out)
{
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    size_t i = 0;
    for (size_t next = 0; next < t->reserved_count;) {
        const size_t event = (size_t)t->reserved[next].key;
        for (; i < event; i++) {
            out[i] = reserved;
        }
        reserved = timeline_step_reserved(t, reserved, &next, (int32_t)event);
    }
    for (; i < t->count; i++) {
        out[i] = reserved;
    }
}

void
nt_timeline_series(const nt_timeline *t, nt_metric metric, uint64_t *out)
{
    if (metric == NT_METRIC_RESERVED) {
        timeline_fill_reserved(t, out);
        return;
    }
    const uint8_t *actions = timeline_actions(t);
    timeline_sums sums = timeline_start(t);
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, actions, &sums, i);
        out[i] = sums.bytes[metric];
    }
}

/* Counts the alloc events and notes those of other kinds. */
static nt_status
timeline_sort_events(nt_timeline *t, nt_error *err)
{
    if (t->count == 0) {
        return NT_OK;
    }
    const uint8_t *action = timeline_actions(t);
    size_t allocs = 0;
    for (size_t i = 0; i < t->count; i++) {
        allocs += action[i] == NT_ACTION_ALLOC;
        if (NT_UNLIKELY(action[i] > NT_ACTION_FREE_COMPLETED)) {
            NT_TRY(nt_grow(&t->alloc, (void **)&t->others, &t->other_capacity,
                           t->other_count + 1, sizeof(uint32_t), err));
            t->others[t->other_count++] = (uint32_t)i;
        }
    }
    t->alloc_count = allocs;
    return NT_OK;
}

static void
timeline_drop_others(nt_timeline *t)
{
    nt_release(&t->alloc, t->others, t->other_capacity * sizeof(uint32_t));
    t->others = NULL;
    t->other_count = 0;
    t->other_capacity = 0;
}

static nt_status
timeline_replay(nt_timeline *t, nt_error *err)
{
    NT_TRY(timeline_sort_events(t, err));
    NT_TRY(nt_timeline_replay_segments(t, err));
    t->facts.complete = t->facts.start_bytes[NT_METRIC_RESERVED] == 0;
    NT_TRY(nt_timeline_replay_blocks(t, err));
    NT_TRY(timeline_collect_reserved(t, err));
    if (!t->peaks_stand) {
        timeline_find_peaks(t);
    }
    timeline_find_reserved_peak(t);
    return nt_timeline_count_retries(t, err);
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
    timeline_drop_others(t);
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
    nt_release(&alloc, t->reserved, t->reserved_capacity * sizeof(nt_sort_item));
    nt_release(&alloc, t->lost, t->lost_capacity * sizeof(nt_lost_event));
    timeline_drop_others(t);
    nt_release(&alloc, t, sizeof *t);
}

const nt_snapshot *
nt_timeline_snapshot(const nt_timeline *t)
{
    return t->snapshot;
}

int32_t
nt_timeline_device(const nt_timeline *t)
{
    return t->device;
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
