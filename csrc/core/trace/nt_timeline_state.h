/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a timeline holds, shared by its files and by nobody else: nt_timeline.c
 * (the public calls), nt_timeline_segments.c (when which range was reserved),
 * nt_timeline_start.c (what was there before the trace), nt_timeline_replay.c (when
 * which block lived, and how large it was), nt_timeline_layout.c and
 * nt_timeline_holders.c (answers).
 */
#ifndef NT_TIMELINE_STATE_H
#define NT_TIMELINE_STATE_H

#include "base/nt_sort.h"
#include "trace/nt_timeline.h"

/* A row that ends with an event which is not its own: one was lost. */
typedef struct nt_lost_end {
    int32_t event;
    uint32_t row;
} nt_lost_end;

struct nt_timeline {
    nt_alloc alloc;
    const nt_snapshot *snapshot; /* the caller's, outlives this */
    int32_t device;
    const nt_progress *progress; /* only while it is being made */
    size_t first;                /* row of event 0 in the snapshot's events */
    size_t count;                /* events of this device */
    nt_allocation_columns allocations;
    size_t allocation_capacity;
    nt_segment_life_columns segments;
    size_t segment_capacity;
    uint32_t *event_allocations; /* `count` of them */
    nt_sort_item *reserved; /* event -> segment row that begins or ends with it */
    size_t reserved_count, reserved_capacity;
    nt_lost_end *lost; /* by event */
    size_t lost_count, lost_capacity;
    nt_sort_item *start_segments; /* rows from before the trace, by address */
    size_t start_segment_count, start_segment_capacity;
    nt_trace_facts facts;
    nt_moment peaks[NT_METRIC_COUNT];
};

/* Fills t->segments, and t->facts.start_bytes[NT_METRIC_RESERVED]. */
nt_status
nt_timeline_replay_segments(nt_timeline *t, nt_error *err);

/* Fills t->allocations, t->event_allocations and what the facts tell of them;
 * the segments must stand. */
nt_status
nt_timeline_replay_blocks(nt_timeline *t, nt_error *err);

/* Frees the segment columns. */
void
nt_timeline_clear_segments(nt_timeline *t);

/* Adds a row; its number is t->allocations.count - 1 then. */
typedef struct nt_allocation {
    uint64_t address, size, requested_size, stream;
    int32_t alloc_event, free_event, completed_event;
    uint32_t stack;
} nt_allocation;

nt_status
nt_timeline_add_allocation(nt_timeline *t, const nt_allocation *row, nt_error *err);

/* Whether a row of the allocations is allocated (or only active) after `event`. */
static inline bool
nt_timeline_is_allocated(const nt_timeline *t, size_t row, int32_t event)
{
    const int32_t freed = t->allocations.free_event[row];
    return t->allocations.alloc_event[row] <= event &&
           (freed == NT_EVENT_NEVER || freed > event);
}

static inline bool
nt_timeline_is_active(const nt_timeline *t, size_t row, int32_t event)
{
    const int32_t completed = t->allocations.completed_event[row];
    return t->allocations.alloc_event[row] <= event &&
           (completed == NT_EVENT_NEVER || completed > event);
}

/* Whether a row of the segments is reserved after `event`. */
static inline bool
nt_timeline_is_reserved(const nt_timeline *t, size_t row, int32_t event)
{
    const int32_t freed = t->segments.free_event[row];
    return t->segments.alloc_event[row] <= event &&
           (freed == NT_EVENT_NEVER || freed > event);
}

/* Tells the progress function; NT_CANCELLED when it wants to stop. Called with
 * the number of events done, every NT_TIMELINE_TICK of them. */
#define NT_TIMELINE_TICK ((size_t)1 << 18)

nt_status
nt_timeline_tick(const nt_timeline *t, size_t done, nt_error *err);

#endif
