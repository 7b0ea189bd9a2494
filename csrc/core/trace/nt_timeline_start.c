/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_start.h"

#include "base/nt_sort.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_state.h"

/* A block that was there before the trace. */
typedef struct start_block {
    nt_allocation row;
    int32_t gone; /* event of its free_completed; INT32_MAX when it stays */
    bool is_exact; /* its size is known */
} start_block;

typedef struct start {
    nt_timeline *t;
    const nt_event_columns *events;
    start_block *blocks;
    size_t count, capacity;
    nt_map known; /* address -> number in `blocks`, or START_IN_TRACE */
    nt_sort_item *order; /* numbers by address, then by where they end */
    size_t order_count;
    nt_error *err;
} start;

/* The block now at an address was allocated within the trace. */
#define START_IN_TRACE (NT_NONE - 1)

nt_status
nt_timeline_add_survivor(nt_timeline *t, size_t block, nt_error *err)
{
    const nt_layout *final = nt_snapshot_layout(t->snapshot);
    const bool pending = final->blocks.state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const nt_allocation row = {
        .address = final->blocks.address[block],
        .size = final->blocks.size[block],
        .requested_size = final->blocks.requested_size[block],
        .stream = final->segments.stream[final->blocks.segment[block]],
        .alloc_event = NT_EVENT_BEFORE,
        .free_event = pending ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = final->blocks.stack[block],
    };
    return nt_timeline_add_allocation(t, &row, err);
}

static nt_status
start_add(start *s, const start_block *block, uint32_t *number)
{
    NT_TRY(nt_grow(&s->t->alloc, (void **)&s->blocks, &s->capacity, s->count + 1,
                   sizeof(start_block), s->err));
    s->blocks[s->count] = *block;
    *number = (uint32_t)s->count++;
    return nt_map_set(&s->known, block->row.address, *number, s->err);
}

/* A free of what the trace did not allocate: it was there before. */
static nt_status
start_add_freed(start *s, size_t i, bool was_requested)
{
    const size_t at = s->t->first + i;
    const start_block block = {
        .row =
            {
                .address = s->events->addr[at],
                .size = nt_round_size(nt_snapshot_settings(s->t->snapshot),
                                      s->events->size[at]),
                .requested_size = s->events->size[at],
                .stream = s->events->stream[at],
                .alloc_event = NT_EVENT_BEFORE,
                .free_event = was_requested ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
                .completed_event = NT_EVENT_NEVER,
                .stack = NT_NO_STACK,
            },
        .gone = INT32_MAX,
    };
    uint32_t number;
    return start_add(s, &block, &number);
}

static nt_status
start_look_at(start *s, size_t i)
{
    const size_t at = s->t->first + i;
    const uint64_t address = s->events->addr[at];
    switch (s->events->action[at]) {
    case NT_ACTION_ALLOC: return nt_map_set(&s->known, address, START_IN_TRACE, s->err);
    case NT_ACTION_FREE_REQUESTED:
        return nt_map_find(&s->known, address) == NT_NONE ? start_add_freed(s, i, false)
                                                          : NT_OK;
    case NT_ACTION_FREE_COMPLETED: {
        if (nt_map_find(&s->known, address) == NT_NONE) {
            NT_TRY(start_add_freed(s, i, true));
        }
        const uint32_t number = nt_map_find(&s->known, address);
        if (number != START_IN_TRACE) {
            s->blocks[number].gone = (int32_t)i;
        }
        /* From now on the address is free: a second free would be a lost alloc,
         * which the replay tells. */
        return nt_map_set(&s->known, address, START_IN_TRACE, s->err);
    }
    default: return NT_OK;
    }
}

/* Whether the end layout's block stands at an address that the trace left alone. */
static nt_status
start_look_at_final(start *s, size_t block)
{
    const nt_layout *final = nt_snapshot_layout(s->t->snapshot);
    const uint64_t address = final->blocks.address[block];
    const uint32_t number = nt_map_find(&s->known, address);
    if (number == START_IN_TRACE) {
        return NT_OK;
    }
    if (number != NT_NONE) {
        /* Freed by request in the trace, and still waiting for its stream. */
        s->blocks[number].row.size = final->blocks.size[block];
        s->blocks[number].is_exact = true;
        return NT_OK;
    }
    const bool pending = final->blocks.state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const start_block survivor = {
        .row =
            {
                .address = address,
                .size = final->blocks.size[block],
                .requested_size = final->blocks.requested_size[block],
                .stream = final->segments.stream[final->blocks.segment[block]],
                .alloc_event = NT_EVENT_BEFORE,
                .free_event = pending ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
                .completed_event = NT_EVENT_NEVER,
                .stack = final->blocks.stack[block],
            },
        .gone = INT32_MAX,
        .is_exact = true,
    };
    uint32_t added;
    return start_add(s, &survivor, &added);
}

static nt_status
start_collect(start *s)
{
    for (size_t i = 0; i < s->t->count; i++) {
        NT_TRY(start_look_at(s, i));
    }
    const nt_layout *final = nt_snapshot_layout(s->t->snapshot);
    for (size_t block = 0; block < final->blocks.count; block++) {
        if (final->segments.device[final->blocks.segment[block]] == s->t->device &&
            final->blocks.state[block] != NT_BLOCK_INACTIVE) {
            NT_TRY(start_look_at_final(s, block));
        }
    }
    return NT_OK;
}

/* Blocks by address, and the segments from before the trace likewise. */
static nt_status
start_sort(start *s)
{
    s->order = nt_allocate(&s->t->alloc, s->count * sizeof(nt_sort_item));
    if (s->order == NULL && s->count != 0) {
        return nt_fail_nomem(s->err);
    }
    s->order_count = s->count;
    for (size_t i = 0; i < s->count; i++) {
        s->order[i] = (nt_sort_item){s->blocks[i].row.address, (uint32_t)i};
    }
    nt_sort(s->order, s->count);
    return NT_OK;
}

/* The segments from before the trace, by address. */
static nt_status
start_sort_segments(nt_timeline *t, nt_error *err)
{
    const nt_segment_life_columns *s = &t->segments;
    size_t bytes;
    t->start_segments = nt_size_mul(s->count, sizeof(nt_sort_item), &bytes)
                            ? nt_allocate(&t->alloc, bytes)
                            : NULL;
    if (t->start_segments == NULL && s->count != 0) {
        return nt_fail_nomem(err);
    }
    t->start_segment_capacity = s->count;
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->alloc_event[row] == NT_EVENT_BEFORE) {
            t->start_segments[t->start_segment_count++] =
                (nt_sort_item){s->address[row], row};
        }
    }
    nt_sort(t->start_segments, t->start_segment_count);
    return NT_OK;
}

/* How many of the `count` sorted items have a key of at most `key`. */
static size_t
start_rank(const nt_sort_item *items, size_t count, uint64_t key)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (items[middle].key <= key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The row of the segment from before the trace that holds `address`. */
static uint32_t
start_find_segment(const nt_timeline *t, uint64_t address)
{
    const size_t rank = start_rank(t->start_segments, t->start_segment_count, address);
    if (rank == 0) {
        return NT_NONE;
    }
    const uint32_t row = t->start_segments[rank - 1].value;
    const bool holds = address - t->segments.address[row] < t->segments.size[row];
    return holds ? row : NT_NONE;
}

uint32_t
nt_timeline_start_segment(const nt_timeline *t, size_t row)
{
    return start_find_segment(t, t->allocations.address[row]);
}

/*
 * Fixes the size of the block at `position` by what lies behind it at the start:
 * no free block of an ordinary large segment is as small as 1 MiB, so a gap up to
 * that belongs to the block. A larger gap leaves it open.
 */
static void
start_fix_by_gap(start *s, size_t position)
{
    start_block *block = &s->blocks[s->order[position].value];
    const uint32_t segment = start_find_segment(s->t, block->row.address);
    if (block->is_exact || segment == NT_NONE || nt_is_small(block->row.size) ||
        s->t->segments.is_expandable[segment]) {
        block->is_exact = true;
        return;
    }
    const nt_segment_life_columns *lives = &s->t->segments;
    uint64_t limit = lives->address[segment] + lives->size[segment];
    if (position + 1 < s->count && s->order[position + 1].key < limit) {
        limit = s->order[position + 1].key;
    }
    const uint64_t end = block->row.address + block->row.size;
    if (limit >= end && limit - end <= NT_SMALL_SIZE) {
        block->row.size = limit - block->row.address;
        block->is_exact = true;
    }
}

/* A block allocated at `address` by event `i` begins where an open block that
 * lives before it ends, if that is at most 1 MiB behind its rounded end. */
static void
start_fix_by_landing(start *s, size_t i)
{
    const uint64_t address = s->events->addr[s->t->first + i];
    const size_t rank = start_rank(s->order, s->count, address);
    if (rank == 0) {
        return;
    }
    start_block *block = &s->blocks[s->order[rank - 1].value];
    const uint64_t end = block->row.address + block->row.size;
    if (!block->is_exact && (int32_t)i < block->gone && address >= end &&
        block->row.address != address && address - end <= NT_SMALL_SIZE) {
        block->row.size = address - block->row.address;
        block->is_exact = true;
    }
}

static nt_status
start_fix_sizes(start *s)
{
    NT_TRY(start_sort(s));
    for (size_t position = 0; position < s->count; position++) {
        start_fix_by_gap(s, position);
    }
    for (size_t i = 0; i < s->t->count; i++) {
        if (s->events->action[s->t->first + i] == NT_ACTION_ALLOC) {
            start_fix_by_landing(s, i);
        }
    }
    for (size_t position = 0; position < s->count; position++) {
        const start_block *block = &s->blocks[s->order[position].value];
        s->t->facts.slack_bound += block->is_exact ? 0 : NT_SMALL_SIZE;
        NT_TRY(nt_timeline_add_allocation(s->t, &block->row, s->err));
    }
    s->t->facts.preexisting = (uint32_t)s->count;
    return NT_OK;
}

nt_status
nt_timeline_find_start(nt_timeline *t, nt_error *err)
{
    start s = {.t = t, .events = nt_snapshot_events(t->snapshot), .err = err};
    nt_map_init(&s.known, t->alloc);
    nt_status status = start_sort_segments(t, err);
    if (status == NT_OK) {
        status = start_collect(&s);
    }
    if (status == NT_OK) {
        status = start_fix_sizes(&s);
    }
    nt_map_clear(&s.known);
    nt_release(&t->alloc, s.blocks, s.capacity * sizeof(start_block));
    nt_release(&t->alloc, s.order, s.order_count * sizeof(nt_sort_item));
    return status;
}
