/* SPDX-License-Identifier: Apache-2.0 */
/* What a timeline holds, and how the replay of a trace fills it. */
#ifndef NT_TIMELINE_REPLAY_H
#define NT_TIMELINE_REPLAY_H

#include "base/nt_sort.h"
#include "trace/nt_timeline.h"

/* What happens to a row with an event that is not its own, because its own was lost or
 * came after the trace's end. */
enum nt_lost_change {
    NT_LOST_ALLOCATION = 1,
    NT_LOST_FREE = 2,
    NT_LOST_COMPLETION = 4,
};

typedef struct nt_lost_event {
    int32_t event;
    uint32_t row;
    uint8_t changes; /* bits of nt_lost_change */
} nt_lost_event;

struct nt_timeline {
    nt_alloc alloc;
    const nt_snapshot *snapshot; /* the caller's, outlives this */
    int32_t device;
    const nt_progress *progress; /* only while it is being made */
    uint32_t *others; /* only while it is being made: the events that neither allocate
                       * nor free, in order */
    size_t other_count, other_capacity;
    size_t alloc_count; /* alloc events */
    size_t first;       /* row of event 0 in the snapshot's events */
    size_t count;       /* events of this device */
    nt_allocation_columns allocations;
    size_t allocation_capacity;
    nt_segment_life_columns segments;
    size_t segment_capacity;
    uint32_t *event_allocations; /* `count` of them */
    nt_sort_item *reserved;      /* event -> segment row that begins or ends with it */
    size_t reserved_count, reserved_capacity;
    nt_lost_event *lost; /* by event */
    size_t lost_count, lost_capacity;
    nt_trace_facts facts;
    nt_moment peaks[NT_METRIC_COUNT];
    bool peaks_stand; /* the replay has found them, but that of the reserved bytes */
};

/* Fills t->segments, and t->facts.start_bytes[NT_METRIC_RESERVED]. */
nt_status
nt_timeline_replay_segments(nt_timeline *t, nt_error *err);

/* Fills t->allocations, t->event_allocations and what the facts tell of them, and
 * t->peaks if t->peaks_stand; the segments must stand. */
nt_status
nt_timeline_replay_blocks(nt_timeline *t, nt_error *err);

/* Frees the columns of allocations and segments. */
void
nt_timeline_clear_rows(nt_timeline *t);

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

#endif
