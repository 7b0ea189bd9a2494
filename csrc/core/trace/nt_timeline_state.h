/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a timeline holds, shared by its files and by nobody else: nt_timeline.c
 * (the public calls), nt_timeline_segments.c (when which range was reserved),
 * nt_timeline_start.c (what was there before the trace), nt_timeline_large.c (how
 * large a large block is), nt_timeline_live.c (which block lies where while it is
 * replayed), nt_timeline_replay.c (when which block lived),
 * nt_timeline_retries.c, nt_timeline_layout.c and nt_timeline_holders.c (answers).
 */
#ifndef NT_TIMELINE_STATE_H
#define NT_TIMELINE_STATE_H

#include "base/nt_sort.h"
#include "trace/nt_timeline.h"

/* What happens to a row with an event that is not its own, because its own was lost
 * or came after the trace's end. */
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

/*
 * Adds a row for every block that was there before the trace, by address. Their sizes
 * are exact where the end layout or the trace fixes them; facts.slack_bound says by how
 * much the others may be too small. The segments must stand, and no allocations.
 */
nt_status
nt_timeline_find_start(nt_timeline *t, nt_error *err);

/* Fills t->allocations, t->event_allocations and what the facts tell of them, and
 * t->peaks if t->peaks_stand; the segments must stand. */
nt_status
nt_timeline_replay_blocks(nt_timeline *t, nt_error *err);

/* Frees the segment columns. */
void
nt_timeline_clear_segments(nt_timeline *t);

/* A row to be added; its number is t->allocations.count - 1 then. */
typedef struct nt_allocation {
    uint64_t address, size, requested_size, stream;
    int32_t alloc_event, free_event, completed_event;
    uint32_t stack;
} nt_allocation;

/* Room for `rows` allocations in all. */
nt_status
nt_timeline_reserve_allocations(nt_timeline *t, size_t rows, nt_error *err);

static inline nt_status
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

/* An active block of one of the snapshot's layouts as a row that was there before the
 * trace. */
nt_allocation
nt_timeline_layout_allocation(const nt_timeline *t, const nt_layout *layout,
                              size_t block);

/* The sizes of an active block, as the end layout has them; requested sizes are left
 * as the events tell them where the file has none. */
void
nt_timeline_correct_sizes(const nt_timeline *t, size_t block, uint64_t *size,
                          uint64_t *requested_size);

/* Fills what the facts tell of OOMs and of memory given back. */
nt_status
nt_timeline_count_retries(nt_timeline *t, nt_error *err);

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
