/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When which block lived, and how large it was. The trace gives what was asked for;
 * the block is that, rounded, and in the large pool of ordinary segments possibly more
 * (nt_timeline_large).
 *
 * A trace that does not go back to the start is looked through first for blocks that
 * were there before it (nt_timeline_start).
 */
#include <string.h>

#include "trace/nt_rounding.h"
#include "trace/nt_timeline_large.h"
#include "trace/nt_timeline_live.h"

typedef struct replay {
    nt_timeline *t;
    const nt_settings *settings;
    const nt_event_columns *events;
    nt_timeline_live live;           /* the rows of active allocations */
    nt_timeline_large large;         /* which of them may be larger than asked for */
    uint64_t bytes[NT_METRIC_COUNT]; /* after the event before; reserved is not kept */
    nt_error *err;
} replay;

static const nt_block_columns *
replay_final_blocks(const replay *r)
{
    return &nt_snapshot_layout(r->t->snapshot)->blocks;
}

/* Notes a change of `row` (bits of nt_lost_change) with an event not its own. */
static nt_status
replay_note_lost(replay *r, uint32_t row, int32_t event, uint8_t changes)
{
    nt_timeline *t = r->t;
    NT_TRY(nt_grow(&t->alloc, (void **)&t->lost, &t->lost_capacity, t->lost_count + 1,
                   sizeof(nt_lost_event), r->err));
    t->lost[t->lost_count++] = (nt_lost_event){event, row, changes};
    t->facts.unmatched++;
    return NT_OK;
}

/* The row ends at `event` without having been seen to: an event was lost. */
static nt_status
replay_end_lost(replay *r, uint32_t row, int32_t event)
{
    nt_allocation_columns *a = &r->t->allocations;
    uint8_t changes = NT_LOST_COMPLETION;
    if (a->free_event[row] == NT_EVENT_NEVER) {
        changes |= NT_LOST_FREE;
        a->free_event[row] = event;
    }
    a->completed_event[row] = event;
    return replay_note_lost(r, row, event, changes);
}

/* Peaks are looked for where sums rise. A sum that has wrapped, which only sizes that
 * no device has can do, may also rise where it falls. */
static inline void
replay_raise_peak(replay *r, nt_metric metric, uint64_t more, int32_t event)
{
    nt_moment *peak = &r->t->peaks[metric];
    r->bytes[metric] += more;
    if (r->bytes[metric] > peak->bytes) {
        *peak = (nt_moment){.event = event, .bytes = r->bytes[metric]};
    } else if (r->bytes[metric] < more) {
        r->t->peaks_stand = false;
    }
}

static nt_status
replay_alloc(replay *r, size_t i)
{
    nt_timeline *t = r->t;
    const size_t at = t->first + i;
    const uint32_t row = (uint32_t)t->allocations.count;
    nt_allocation allocation = {
        .address = r->events->addr[at],
        .size = nt_round_size(r->settings, r->events->size[at]),
        .requested_size = r->events->size[at],
        .stream = r->events->stream[at],
        .alloc_event = (int32_t)i,
        .free_event = NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = r->events->stack[at],
    };
    uint32_t old;
    NT_TRY(nt_timeline_live_set(&r->live, allocation.address, row, &old, r->err));
    if (NT_UNLIKELY(old != NT_NONE)) {
        NT_TRY(replay_end_lost(r, old, (int32_t)i));
    }
    NT_TRY(nt_timeline_add_allocation(t, &allocation, r->err));
    uint64_t size = allocation.size;
    if (!nt_is_small(size)) {
        NT_TRY(
            nt_timeline_large_place(&r->large, allocation.address, row, &size, r->err));
        t->allocations.size[row] = size;
    }
    t->event_allocations[i] = row;
    replay_raise_peak(r, NT_METRIC_ALLOCATED, size, (int32_t)i);
    replay_raise_peak(r, NT_METRIC_ACTIVE, size, (int32_t)i);
    replay_raise_peak(r, NT_METRIC_REQUESTED, allocation.requested_size, (int32_t)i);
    return NT_OK;
}

/* The row is freed, by request or without one, with event `i`. */
static inline void
replay_free(replay *r, uint32_t row, size_t i)
{
    nt_allocation_columns *a = &r->t->allocations;
    a->free_event[row] = (int32_t)i;
    r->bytes[NT_METRIC_ALLOCATED] -= a->size[row];
}

static inline void
replay_complete(replay *r, uint32_t row, size_t i)
{
    nt_allocation_columns *a = &r->t->allocations;
    a->completed_event[row] = (int32_t)i;
    r->bytes[NT_METRIC_ACTIVE] -= a->size[row];
    r->bytes[NT_METRIC_REQUESTED] -= a->requested_size[row];
}

static void
replay_free_requested(replay *r, size_t i)
{
    const uint32_t row =
        nt_timeline_live_find(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE || r->t->allocations.free_event[row] != NT_EVENT_NEVER) {
        r->t->facts.unmatched++;
        return;
    }
    replay_free(r, row, i);
}

static void
replay_free_completed(replay *r, size_t i)
{
    const uint32_t row =
        nt_timeline_live_remove(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE) {
        r->t->facts.unmatched++;
        return;
    }
    if (r->t->allocations.free_event[row] == NT_EVENT_NEVER) {
        replay_free(r, row, i);
    }
    replay_complete(r, row, i);
}

/*
 * Nearly every free is requested and completed by two events in a row: both are
 * replayed at once, with one look at the map. False where it is not so.
 */
static inline bool
replay_free_pair(replay *r, size_t i)
{
    nt_timeline *t = r->t;
    const size_t at = t->first + i;
    if (i + 1 >= t->count || r->events->action[at] != NT_ACTION_FREE_REQUESTED ||
        r->events->action[at + 1] != NT_ACTION_FREE_COMPLETED ||
        r->events->addr[at] != r->events->addr[at + 1]) {
        return false;
    }
    const uint32_t row = nt_timeline_live_remove(&r->live, r->events->addr[at]);
    t->event_allocations[i] = row;
    t->event_allocations[i + 1] = row;
    if (row == NT_NONE) {
        t->facts.unmatched += 2;
        return true;
    }
    if (t->allocations.free_event[row] == NT_EVENT_NEVER) {
        replay_free(r, row, i);
    } else {
        t->facts.unmatched++;
    }
    replay_complete(r, row, i + 1);
    return true;
}

static nt_status
replay_event(replay *r, size_t i)
{
    const size_t at = r->t->first + i;
    switch (r->events->action[at]) {
    case NT_ACTION_ALLOC: return replay_alloc(r, i);
    case NT_ACTION_FREE_REQUESTED: replay_free_requested(r, i); return NT_OK;
    case NT_ACTION_FREE_COMPLETED: replay_free_completed(r, i); return NT_OK;
    default: break;
    }
    r->t->event_allocations[i] = NT_NONE;
    if (r->events->action[at] == NT_ACTION_SEGMENT_ALLOC) {
        return nt_timeline_large_add_segment(&r->large, r->events->addr[at],
                                             r->events->size[at], r->err);
    }
    if (r->events->action[at] == NT_ACTION_SEGMENT_FREE) {
        nt_timeline_large_remove_segment(&r->large, r->events->addr[at],
                                         r->events->size[at]);
    }
    return NT_OK;
}

/* The rows so far are the blocks from before the trace. */
static nt_status
replay_set_start(replay *r)
{
    nt_timeline *t = r->t;
    const nt_allocation_columns *a = &t->allocations;
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        r->bytes[metric] = t->facts.start_bytes[metric];
        t->peaks[metric] = (nt_moment){.event = -1, .bytes = r->bytes[metric]};
    }
    for (uint32_t row = 0; row < a->count; row++) {
        uint32_t old;
        NT_TRY(nt_timeline_live_set(&r->live, a->address[row], row, &old, r->err));
        if (!nt_is_small(a->size[row])) {
            NT_TRY(nt_timeline_large_add(&r->large, a->address[row], row, r->err));
        }
        replay_raise_peak(r, NT_METRIC_ACTIVE, a->size[row], -1);
        replay_raise_peak(r, NT_METRIC_REQUESTED, a->requested_size[row], -1);
        if (a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            replay_raise_peak(r, NT_METRIC_ALLOCATED, a->size[row], -1);
        }
    }
    memcpy(t->facts.start_bytes, r->bytes, sizeof r->bytes);
    return NT_OK;
}

/* A block of the end layout that the trace left free was allocated behind the trace's
 * end, before the snapshot took down the blocks; here, by the trace's last event. */
static nt_status
replay_add_late(replay *r, size_t block)
{
    nt_timeline *t = r->t;
    nt_allocation row =
        nt_timeline_layout_allocation(t, nt_snapshot_layout(t->snapshot), block);
    const int32_t last = (int32_t)t->count - 1;
    uint8_t changes = NT_LOST_ALLOCATION;
    row.alloc_event = last;
    if (row.free_event != NT_EVENT_NEVER) {
        row.free_event = last;
        changes |= NT_LOST_FREE;
    }
    NT_TRY(replay_note_lost(r, (uint32_t)t->allocations.count, last, changes));
    return nt_timeline_add_allocation(t, &row, r->err);
}

/* A block from before the trace is larger by so much, modulo 2^64, than it was taken to
 * be: an end layout that has two blocks at one address says so. */
static void
replay_correct_start(replay *r, uint32_t row, uint64_t size, uint64_t requested)
{
    const nt_allocation_columns *a = &r->t->allocations;
    uint64_t *start = r->t->facts.start_bytes;
    if (a->alloc_event[row] == NT_EVENT_BEFORE) {
        start[NT_METRIC_ACTIVE] += size;
        start[NT_METRIC_REQUESTED] += requested;
        if (a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            start[NT_METRIC_ALLOCATED] += size;
        }
    }
}

/* The row takes over what the end layout says of its block. */
static void
replay_correct(replay *r, uint32_t row, size_t block)
{
    nt_allocation_columns *a = &r->t->allocations;
    const uint64_t size = a->size[row], requested = a->requested_size[row];
    nt_timeline_correct_sizes(r->t, block, &a->size[row], &a->requested_size[row]);
    if (a->size[row] != size || a->requested_size[row] != requested) {
        r->t->peaks_stand = false;
        replay_correct_start(r, row, a->size[row] - size,
                             a->requested_size[row] - requested);
    }
    if (a->stack[row] == NT_NO_STACK) {
        a->stack[row] = replay_final_blocks(r)->stack[block];
    }
}

/* One active block of the end layout against what the trace left alive. */
static nt_status
replay_match_final(replay *r, size_t block)
{
    nt_allocation_columns *a = &r->t->allocations;
    const nt_block_columns *b = replay_final_blocks(r);
    const bool pending = b->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const int32_t last = (int32_t)r->t->count - 1;
    const uint32_t row = nt_timeline_live_find(&r->live, b->address[block]);
    /* What the trace saw being freed can only live as another allocation. */
    if (row == NT_NONE || (!pending && a->free_event[row] != NT_EVENT_NEVER)) {
        return r->t->count == 0 ? NT_OK : replay_add_late(r, block);
    }
    (void)nt_timeline_live_remove(&r->live, b->address[block]);
    replay_correct(r, row, block);
    if (pending && a->free_event[row] == NT_EVENT_NEVER) {
        a->free_event[row] = last;
        return replay_note_lost(r, row, last, NT_LOST_FREE);
    }
    return NT_OK;
}

/* What lives at the end is what the end layout says. */
static nt_status
replay_match_end(replay *r)
{
    const nt_layout *final = nt_snapshot_layout(r->t->snapshot);
    for (size_t block = 0; block < final->blocks.count; block++) {
        const uint32_t segment = final->blocks.segment[block];
        if (final->segments.device[segment] == r->t->device &&
            final->blocks.state[block] != NT_BLOCK_INACTIVE) {
            NT_TRY(replay_match_final(r, block));
        }
    }
    for (size_t at = 0; at < r->live.bucket_count * NT_LIVE_PLACES; at++) {
        const nt_live_bucket *bucket = &r->live.buckets[at / NT_LIVE_PLACES];
        const uint32_t row = bucket->row[at % NT_LIVE_PLACES];
        if (row != NT_NONE && r->t->count != 0) {
            NT_TRY(replay_end_lost(r, row, (int32_t)r->t->count - 1));
        }
    }
    return NT_OK;
}

static nt_status
replay_allocate(replay *r)
{
    nt_timeline *t = r->t;
    NT_TRY(nt_timeline_reserve_allocations(t, t->allocations.count + t->alloc_count,
                                           r->err));
    t->event_allocations = nt_allocate(&t->alloc, t->count * sizeof(uint32_t));
    return t->event_allocations == NULL && t->count != 0 ? nt_fail_nomem(r->err)
                                                         : NT_OK;
}

/* How many events ahead the rows are fetched that frees will be about. */
#define REPLAY_AHEAD 8

/* The columns of the row that event `i` most likely ends are wanted soon. There is an
 * active row at least. */
static inline void
replay_fetch_row(const replay *r, size_t i)
{
    const nt_allocation_columns *a = &r->t->allocations;
    const uint64_t address = r->events->addr[r->t->first + i];
    const nt_live_bucket *bucket =
        &r->live.buckets[nt_timeline_live_home(&r->live, address)];
    const uint32_t row =
        bucket->row[nt_timeline_live_match(bucket, address) % NT_LIVE_PLACES];
    const size_t at = row == NT_NONE ? 0 : row;
    NT_PREFETCH(&a->size[at]);
    NT_PREFETCH(&a->requested_size[at]);
    NT_PREFETCH(&a->free_event[at]);
    NT_PREFETCH(&a->completed_event[at]);
}

static nt_status
replay_run(replay *r)
{
    nt_timeline *t = r->t;
    if (!t->facts.complete || t->count == 0) {
        NT_TRY(nt_timeline_find_start(t, r->err));
    }
    NT_TRY(nt_timeline_large_init(&r->large, t, r->err));
    NT_TRY(replay_allocate(r));
    t->peaks_stand = true;
    NT_TRY(replay_set_start(r));
    size_t tick = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (i >= tick) {
            NT_TRY(nt_timeline_tick(t, i, r->err));
            tick = i + NT_TIMELINE_TICK;
        }
        if (NT_LIKELY(i + REPLAY_AHEAD < t->count && r->live.count != 0)) {
            replay_fetch_row(r, i + REPLAY_AHEAD);
        }
        if (replay_free_pair(r, i)) {
            i++;
        } else {
            NT_TRY(replay_event(r, i));
        }
    }
    NT_TRY(replay_match_end(r));
    t->peaks_stand = t->peaks_stand && t->lost_count == 0;
    return NT_OK;
}

nt_status
nt_timeline_replay_blocks(nt_timeline *t, nt_error *err)
{
    replay r = {
        .t = t,
        .settings = nt_snapshot_settings(t->snapshot),
        .events = nt_snapshot_events(t->snapshot),
        .err = err,
    };
    r.live.alloc = t->alloc;
    r.large.alloc = t->alloc;
    const nt_status status = replay_run(&r);
    nt_timeline_live_clear(&r.live);
    nt_timeline_large_clear(&r.large);
    return status;
}
