/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When which block lived, and how large it was. The trace gives what was asked
 * for; the block is that, rounded, and in the large pool of ordinary segments
 * whatever is left of the free block where too little would be left to keep. So
 * for those the blocks of each segment are chained by address: the free block at
 * an address reaches to the next one in the chain, or to the segment's end.
 *
 * A trace that does not go back to the start is looked through first for blocks
 * that were there before it (nt_timeline_start.c), which then begin the chains.
 */
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_start.h"
#include "trace/nt_timeline_state.h"

/* The neighbours of a large block in its segment, as rows, or NT_NONE. */
typedef struct chain_link {
    uint32_t before, after;
    uint32_t segment; /* row of its segment; NT_NONE: not in a chain */
} chain_link;

typedef struct replay {
    nt_timeline *t;
    const nt_settings *settings;
    const nt_event_columns *events;
    nt_map live;       /* address -> row of an active allocation */
    nt_map chain_ends; /* where a chained block ends -> its row */
    nt_map heads;      /* where an ordinary segment begins -> its row */
    chain_link *links; /* by allocation row */
    size_t link_count;
    uint32_t *first; /* by segment row: the first block of its chain, or NT_NONE */
    size_t segment_count;
    size_t next_segment; /* row from which the next segment event's row is sought */
    nt_error *err;
} replay;

static const nt_block_columns *
replay_final_blocks(const replay *r)
{
    return &nt_snapshot_layout(r->t->snapshot)->blocks;
}

/* Links `row`, which has its address, behind `before` in the chain of `segment`. */
static nt_status
chain_insert(replay *r, uint32_t row, uint32_t before, uint32_t segment)
{
    const nt_allocation_columns *a = &r->t->allocations;
    const uint32_t after =
        before == NT_NONE ? r->first[segment] : r->links[before].after;
    NT_TRY(nt_map_set(&r->chain_ends, a->address[row] + a->size[row], row, r->err));
    r->links[row] = (chain_link){before, after, segment};
    if (before == NT_NONE) {
        r->first[segment] = row;
    } else {
        r->links[before].after = row;
    }
    if (after != NT_NONE) {
        r->links[after].before = row;
    }
    return NT_OK;
}

static void
chain_remove(replay *r, uint32_t row)
{
    const chain_link link = r->links[row];
    if (link.segment == NT_NONE) {
        return;
    }
    const nt_allocation_columns *a = &r->t->allocations;
    const uint64_t end = a->address[row] + a->size[row];
    if (nt_map_find(&r->chain_ends, end) == row) {
        (void)nt_map_remove(&r->chain_ends, end);
    }
    if (link.before == NT_NONE) {
        r->first[link.segment] = link.after;
    } else {
        r->links[link.before].after = link.after;
    }
    if (link.after != NT_NONE) {
        r->links[link.after].before = link.before;
    }
    r->links[row].segment = NT_NONE;
}

/*
 * The block behind which, and the segment in which, a free block begins at
 * `address`; false where no chain has one there (an expandable segment, or a
 * trace with gaps).
 */
static bool
chain_find(const replay *r, uint64_t address, uint32_t *before, uint32_t *segment)
{
    /* Segments may touch: where one begins, the block that ends is another's. */
    *before = NT_NONE;
    *segment = nt_map_find(&r->heads, address);
    if (*segment != NT_NONE) {
        return true;
    }
    *before = nt_map_find(&r->chain_ends, address);
    if (*before == NT_NONE || r->links[*before].segment == NT_NONE) {
        return false;
    }
    *segment = r->links[*before].segment;
    return true;
}

/* The size of the block that a large request gets at `address`; chains it. */
static nt_status
replay_large(replay *r, uint32_t row, uint64_t address, uint64_t rounded)
{
    nt_timeline *t = r->t;
    uint32_t before, segment;
    if (!chain_find(r, address, &before, &segment)) {
        return NT_OK;
    }
    const uint32_t after =
        before == NT_NONE ? r->first[segment] : r->links[before].after;
    const uint64_t end = after == NT_NONE
                             ? t->segments.address[segment] + t->segments.size[segment]
                             : t->allocations.address[after];
    if (end < address || end - address < rounded) {
        return NT_OK;
    }
    if (!nt_should_split(r->settings, end - address, rounded, false, false)) {
        t->allocations.size[row] = end - address;
    }
    return chain_insert(r, row, before, segment);
}

/* Notes that `row` ends, or is freed, with an event that is not its own. */
static nt_status
replay_note_lost(replay *r, uint32_t row, int32_t event)
{
    nt_timeline *t = r->t;
    NT_TRY(nt_grow(&t->alloc, (void **)&t->lost, &t->lost_capacity, t->lost_count + 1,
                   sizeof(nt_lost_end), r->err));
    t->lost[t->lost_count++] = (nt_lost_end){event, row};
    return NT_OK;
}

/* The row ends at `event` without having been seen to: an event was lost. */
static nt_status
replay_end_lost(replay *r, uint32_t row, int32_t event)
{
    nt_timeline *t = r->t;
    NT_TRY(replay_note_lost(r, row, event));
    if (t->allocations.free_event[row] == NT_EVENT_NEVER) {
        t->allocations.free_event[row] = event;
    }
    if (t->allocations.completed_event[row] == NT_EVENT_NEVER) {
        t->allocations.completed_event[row] = event;
    }
    chain_remove(r, row);
    t->facts.unmatched++;
    return NT_OK;
}

static nt_status
replay_alloc(replay *r, size_t i)
{
    nt_timeline *t = r->t;
    const size_t at = t->first + i;
    const uint64_t size = r->events->size[at];
    const uint64_t rounded = nt_round_size(r->settings, size);
    const uint32_t row = (uint32_t)t->allocations.count;
    const nt_allocation allocation = {
        .address = r->events->addr[at],
        .size = rounded,
        .requested_size = size,
        .stream = r->events->stream[at],
        .alloc_event = (int32_t)i,
        .free_event = NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = r->events->stack[at],
    };
    NT_TRY(nt_timeline_add_allocation(t, &allocation, r->err));
    uint32_t old;
    NT_TRY(nt_map_swap(&r->live, allocation.address, row, &old, r->err));
    if (NT_UNLIKELY(old != NT_NONE)) {
        NT_TRY(replay_end_lost(r, old, (int32_t)i));
    }
    t->event_allocations[i] = row;
    r->links[row].segment = NT_NONE;
    return nt_is_small(rounded) ? NT_OK
                                : replay_large(r, row, allocation.address, rounded);
}

static void
replay_free_requested(replay *r, size_t i)
{
    const uint32_t row = nt_map_find(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE || r->t->allocations.free_event[row] != NT_EVENT_NEVER) {
        r->t->facts.unmatched++;
        return;
    }
    r->t->allocations.free_event[row] = (int32_t)i;
}

static void
replay_free_completed(replay *r, size_t i)
{
    nt_allocation_columns *a = &r->t->allocations;
    const uint32_t row = nt_map_remove(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE) {
        r->t->facts.unmatched++;
        return;
    }
    if (a->free_event[row] == NT_EVENT_NEVER) {
        a->free_event[row] = (int32_t)i;
    }
    a->completed_event[row] = (int32_t)i;
    chain_remove(r, row);
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
    const uint32_t row = nt_map_remove(&r->live, r->events->addr[at]);
    t->event_allocations[i] = row;
    t->event_allocations[i + 1] = row;
    if (row == NT_NONE) {
        t->facts.unmatched += 2;
        return true;
    }
    nt_allocation_columns *a = &t->allocations;
    if (a->free_event[row] == NT_EVENT_NEVER) {
        a->free_event[row] = (int32_t)i;
    } else {
        t->facts.unmatched++;
    }
    a->completed_event[row] = (int32_t)i + 1;
    chain_remove(r, row);
    return true;
}

/* An ordinary segment that event `i` allocates can be the head of a chain. */
static nt_status
replay_segment_alloc(replay *r, size_t i)
{
    const nt_segment_life_columns *s = &r->t->segments;
    while (r->next_segment < s->count && s->alloc_event[r->next_segment] < (int32_t)i) {
        r->next_segment++;
    }
    if (r->next_segment >= s->count ||
        s->alloc_event[r->next_segment] != (int32_t)i) {
        return NT_OK;
    }
    const uint32_t row = (uint32_t)r->next_segment;
    r->first[row] = NT_NONE;
    return nt_map_set(&r->heads, s->address[row], row, r->err);
}

static nt_status
replay_event(replay *r, size_t i)
{
    r->t->event_allocations[i] = NT_NONE;
    switch (r->events->action[r->t->first + i]) {
    case NT_ACTION_ALLOC: return replay_alloc(r, i);
    case NT_ACTION_FREE_REQUESTED: replay_free_requested(r, i); return NT_OK;
    case NT_ACTION_FREE_COMPLETED: replay_free_completed(r, i); return NT_OK;
    case NT_ACTION_SEGMENT_ALLOC: return replay_segment_alloc(r, i);
    case NT_ACTION_SEGMENT_FREE:
        (void)nt_map_remove(&r->heads, r->events->addr[r->t->first + i]);
        return NT_OK;
    default: return NT_OK;
    }
}

/* Segments from before the trace are heads; blocks from before begin the chains.
 * The rows of the allocations so far are those blocks, by address. */
static nt_status
replay_set_start(replay *r)
{
    nt_timeline *t = r->t;
    for (uint32_t row = 0; row < t->segments.count; row++) {
        r->first[row] = NT_NONE;
        if (t->segments.alloc_event[row] == NT_EVENT_BEFORE &&
            !t->segments.is_expandable[row]) {
            NT_TRY(nt_map_set(&r->heads, t->segments.address[row], row, r->err));
        }
    }
    for (uint32_t row = 0; row < t->allocations.count; row++) {
        NT_TRY(nt_map_set(&r->live, t->allocations.address[row], row, r->err));
        r->links[row].segment = NT_NONE;
        const uint32_t segment = nt_timeline_start_segment(t, row);
        if (segment == NT_NONE || t->segments.kind[segment] != NT_POOL_LARGE ||
            t->segments.is_expandable[segment]) {
            continue;
        }
        /* By address, so the last one linked is the row before this one (but not
         * in a damaged file, where segments may overlap). */
        const uint32_t before = r->first[segment] == NT_NONE ? NT_NONE : row - 1;
        if (before == NT_NONE || r->links[before].segment == segment) {
            NT_TRY(chain_insert(r, row, before, segment));
        }
    }
    return NT_OK;
}

/* One active block of the end layout against what the trace left alive. */
static nt_status
replay_match_final(replay *r, size_t block)
{
    nt_timeline *t = r->t;
    const nt_block_columns *b = replay_final_blocks(r);
    const bool pending = b->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const uint32_t row = nt_map_remove(&r->live, b->address[block]);
    if (row == NT_NONE) {
        t->facts.unmatched++;
        return nt_timeline_add_survivor(t, block, r->err);
    }
    t->allocations.size[row] = b->size[block];
    t->allocations.requested_size[row] = b->requested_size[block];
    if (t->allocations.stack[row] == NT_NO_STACK) {
        t->allocations.stack[row] = b->stack[block];
    }
    /* A free that the snapshot's trace and layout disagree about: the layout was
     * taken a moment later, and stands. */
    int32_t *freed = &t->allocations.free_event[row];
    if (pending && *freed == NT_EVENT_NEVER) {
        *freed = NT_EVENT_FREED_BEFORE;
        if (t->count != 0) {
            *freed = (int32_t)t->count - 1;
            NT_TRY(replay_note_lost(r, row, *freed));
        }
        t->facts.unmatched++;
    } else if (!pending && *freed != NT_EVENT_NEVER) {
        *freed = NT_EVENT_NEVER;
        t->facts.unmatched++;
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
    for (size_t slot = 0; slot < r->live.slots; slot++) {
        const uint32_t row = r->live.entries[slot].value;
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
    size_t rows = t->allocations.count, bytes;
    for (size_t i = 0; i < t->count; i++) {
        rows += r->events->action[t->first + i] == NT_ACTION_ALLOC;
    }
    NT_TRY(nt_timeline_reserve_allocations(t, rows, r->err));
    r->link_count = rows;
    r->segment_count = t->segments.count;
    r->links = nt_size_mul(rows, sizeof(chain_link), &bytes)
                   ? nt_allocate(&t->alloc, bytes)
                   : NULL;
    r->first = nt_allocate(&t->alloc, r->segment_count * sizeof(uint32_t));
    t->event_allocations = nt_allocate(&t->alloc, t->count * sizeof(uint32_t));
    if ((r->links == NULL && rows != 0) || (r->first == NULL && r->segment_count != 0) ||
        (t->event_allocations == NULL && t->count != 0)) {
        return nt_fail_nomem(r->err);
    }
    return NT_OK;
}

static nt_status
replay_run(replay *r)
{
    nt_timeline *t = r->t;
    if (!t->facts.complete) {
        NT_TRY(nt_timeline_find_start(t, r->err));
    }
    NT_TRY(replay_allocate(r));
    NT_TRY(replay_set_start(r));
    size_t tick = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (i >= tick) {
            NT_TRY(nt_timeline_tick(t, i, r->err));
            tick = i + NT_TIMELINE_TICK;
        }
        if (replay_free_pair(r, i)) {
            i++;
        } else {
            NT_TRY(replay_event(r, i));
        }
    }
    return replay_match_end(r);
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
    nt_map_init(&r.live, t->alloc);
    nt_map_init(&r.chain_ends, t->alloc);
    nt_map_init(&r.heads, t->alloc);
    const nt_status status = replay_run(&r);
    nt_map_clear(&r.live);
    nt_map_clear(&r.chain_ends);
    nt_map_clear(&r.heads);
    nt_release(&t->alloc, r.links, r.link_count * sizeof(chain_link));
    nt_release(&t->alloc, r.first, r.segment_count * sizeof(uint32_t));
    return status;
}
