/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state before a trace that does not go back to the first allocation. It is what
 * the file says of it, where it does (nt_snapshot_before). Else a block was there if it
 * is freed in the trace without having been allocated in it, or if it is in the end
 * layout and the trace never touched its address.
 */
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_state.h"

/* A block that was there before the trace. */
typedef struct start_block {
    nt_allocation row;
    int32_t seen;   /* the event that first frees it; INT32_MAX: none does */
    int32_t gone;   /* its free_completed; INT32_MAX: none */
    uint64_t slack; /* bytes by which row.size may be too small */
} start_block;

typedef struct start {
    nt_timeline *t;
    const nt_event_columns *events;
    start_block *blocks;
    size_t count, capacity;
    nt_map live;         /* address -> number in `blocks`, or START_IN_TRACE */
    nt_map known;        /* address -> number in `blocks` */
    nt_sort_item *order; /* the blocks that were there, by address */
    size_t order_count, order_capacity;
    nt_sort_item *segments; /* rows from before the trace, by address */
    size_t segment_count, segment_capacity;
    nt_error *err;
} start;

/* The block now at an address was allocated within the trace. */
#define START_IN_TRACE (NT_NONE - 1)

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

/* The row of the segment from before the trace that holds `address`, or NT_NONE. */
static uint32_t
start_find_segment(const start *s, uint64_t address)
{
    const size_t rank = start_rank(s->segments, s->segment_count, address);
    if (rank == 0) {
        return NT_NONE;
    }
    const nt_segment_life_columns *lives = &s->t->segments;
    const uint32_t row = s->segments[rank - 1].value;
    return address - lives->address[row] < lives->size[row] ? row : NT_NONE;
}

static nt_status
start_sort_segments(start *s)
{
    const nt_segment_life_columns *lives = &s->t->segments;
    size_t bytes;
    s->segments = nt_size_mul(lives->count, sizeof(nt_sort_item), &bytes)
                      ? nt_allocate(&s->t->alloc, bytes)
                      : NULL;
    if (s->segments == NULL && lives->count != 0) {
        return nt_fail_nomem(s->err);
    }
    s->segment_capacity = lives->count;
    for (uint32_t row = 0; row < lives->count; row++) {
        if (lives->alloc_event[row] == NT_EVENT_BEFORE) {
            s->segments[s->segment_count++] = (nt_sort_item){lives->address[row], row};
        }
    }
    nt_sort(s->segments, s->segment_count);
    return NT_OK;
}

/* Takes up a block, if it is the first at its address: one that goes or stays after
 * that was allocated by an event that was lost. */
static nt_status
start_add(start *s, const start_block *block, uint32_t *number)
{
    *number = START_IN_TRACE;
    if (nt_map_find(&s->known, block->row.address) != NT_NONE) {
        return NT_OK;
    }
    if (s->count >= START_IN_TRACE) {
        return nt_fail(s->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 allocations");
    }
    NT_TRY(nt_grow(&s->t->alloc, (void **)&s->blocks, &s->capacity, s->count + 1,
                   sizeof(start_block), s->err));
    s->blocks[s->count] = *block;
    *number = (uint32_t)s->count++;
    return nt_map_set(&s->known, block->row.address, *number, s->err);
}

/* Event `i` frees a block that the trace did not allocate. */
static nt_status
start_add_freed(start *s, size_t i, bool was_requested, uint32_t *number)
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
        .seen = (int32_t)i,
        .gone = was_requested ? (int32_t)i : INT32_MAX,
        .slack = NT_SMALL_SIZE,
    };
    return start_add(s, &block, number);
}

static nt_status
start_look_at(start *s, size_t i)
{
    const uint64_t address = s->events->addr[s->t->first + i];
    uint32_t number;
    switch (s->events->action[s->t->first + i]) {
    case NT_ACTION_ALLOC: return nt_map_set(&s->live, address, START_IN_TRACE, s->err);
    case NT_ACTION_FREE_REQUESTED:
        if (nt_map_find(&s->live, address) == NT_NONE) {
            NT_TRY(start_add_freed(s, i, false, &number));
            return nt_map_set(&s->live, address, number, s->err);
        }
        return NT_OK;
    case NT_ACTION_FREE_COMPLETED:
        number = nt_map_remove(&s->live, address);
        if (number == NT_NONE) {
            return start_add_freed(s, i, true, &number);
        }
        if (number != START_IN_TRACE) {
            s->blocks[number].gone = (int32_t)i;
        }
        return NT_OK;
    default: return NT_OK;
    }
}

/* An active block of the end layout: it was there, if the trace has it not otherwise
 * and its memory was reserved then. */
static nt_status
start_look_at_final(start *s, size_t block)
{
    const nt_allocation row =
        nt_timeline_layout_allocation(s->t, nt_snapshot_layout(s->t->snapshot), block);
    uint32_t number = nt_map_find(&s->live, row.address);
    if (number == NT_NONE && start_find_segment(s, row.address) != NT_NONE) {
        const start_block survivor = {.row = row, .seen = INT32_MAX, .gone = INT32_MAX};
        return start_add(s, &survivor, &number);
    }
    if (number < START_IN_TRACE) {
        /* Freed by request in the trace, and still waiting for its stream. */
        start_block *waiting = &s->blocks[number];
        nt_timeline_correct_sizes(s->t, block, &waiting->row.size,
                                  &waiting->row.requested_size);
        waiting->slack = 0;
    }
    return NT_OK;
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

/* Drops blocks at whose address the trace allocates before it frees them: those come
 * from an allocation that was lost. The others are put in order. */
static nt_status
start_sort(start *s)
{
    for (size_t i = 0; i < s->t->count; i++) {
        if (s->events->action[s->t->first + i] == NT_ACTION_ALLOC) {
            const uint64_t address = s->events->addr[s->t->first + i];
            const uint32_t number = nt_map_find(&s->known, address);
            if (number != NT_NONE && s->blocks[number].seen > (int32_t)i) {
                (void)nt_map_remove(&s->known, address);
            }
        }
    }
    s->order = nt_allocate(&s->t->alloc, s->count * sizeof(nt_sort_item));
    if (s->order == NULL && s->count != 0) {
        return nt_fail_nomem(s->err);
    }
    s->order_capacity = s->count;
    for (uint32_t i = 0; i < s->count; i++) {
        const uint64_t address = s->blocks[i].row.address;
        if (nt_map_find(&s->known, address) != NT_NONE) {
            s->order[s->order_count++] = (nt_sort_item){address, i};
        }
    }
    nt_sort(s->order, s->order_count);
    return NT_OK;
}

/*
 * What lies behind the block at `position` of the order tells its size, or bounds it:
 * up to the next block or the end of the segment lies the rest of its own free block,
 * if that was too small to be split off; else a free block that was large enough.
 */
static void
start_fix_by_gap(start *s, size_t position)
{
    start_block *block = &s->blocks[s->order[position].value];
    const nt_segment_life_columns *lives = &s->t->segments;
    const uint32_t segment = start_find_segment(s, block->row.address);
    if (block->slack == 0 || nt_is_small(block->row.size) ||
        (segment != NT_NONE && lives->is_expandable[segment])) {
        block->slack = 0;
        return;
    }
    if (segment == NT_NONE) {
        return;
    }
    uint64_t limit = lives->address[segment] + lives->size[segment];
    if (position + 1 < s->order_count && s->order[position + 1].key < limit) {
        limit = s->order[position + 1].key;
    }
    const uint64_t room = limit - block->row.address;
    if (room < block->row.size) {
        return;
    }
    if (!nt_should_split(nt_snapshot_settings(s->t->snapshot), room, block->row.size,
                         false, false)) {
        block->row.size = room;
        block->slack = 0;
    } else if (room - block->row.size < 2 * NT_SMALL_SIZE) {
        /* The free block behind it is larger than 1 MiB. */
        block->slack = room - block->row.size - NT_SMALL_SIZE - NT_MIN_BLOCK_SIZE;
    }
}

/* A block that event `i` allocates at most 1 MiB behind what is known of a block that
 * lives then begins where that one ends. */
static void
start_fix_by_landing(start *s, size_t i)
{
    const uint64_t address = s->events->addr[s->t->first + i];
    const size_t rank = start_rank(s->order, s->order_count, address);
    if (rank == 0) {
        return;
    }
    start_block *block = &s->blocks[s->order[rank - 1].value];
    const uint64_t end = block->row.address + block->row.size;
    if (block->slack != 0 && (int32_t)i < block->gone && address >= end &&
        address - end <= NT_SMALL_SIZE) {
        block->row.size = address - block->row.address;
        block->slack = 0;
    }
}

static void
start_fix_sizes(start *s)
{
    size_t open = 0;
    for (size_t position = 0; position < s->order_count; position++) {
        start_fix_by_gap(s, position);
        open += s->blocks[s->order[position].value].slack != 0;
    }
    for (size_t i = 0; i < s->t->count && open != 0; i++) {
        const size_t at = s->t->first + i;
        /* Small requests do not land behind large blocks. */
        if (s->events->action[at] == NT_ACTION_ALLOC &&
            s->events->size[at] > NT_SMALL_SIZE / 2) {
            start_fix_by_landing(s, i);
        }
    }
}

static nt_status
start_add_rows(start *s)
{
    nt_timeline *t = s->t;
    for (size_t position = 0; position < s->order_count; position++) {
        const start_block *block = &s->blocks[s->order[position].value];
        t->facts.slack_bound += block->slack;
        NT_TRY(nt_timeline_add_allocation(t, &block->row, s->err));
    }
    t->facts.preexisting = (uint32_t)s->order_count;
    return NT_OK;
}

static nt_status
start_find(start *s)
{
    NT_TRY(start_sort_segments(s));
    NT_TRY(start_collect(s));
    NT_TRY(start_sort(s));
    start_fix_sizes(s);
    return start_add_rows(s);
}

/* The active blocks of the layout before the trace, as it says they were. */
static nt_status
start_take(start *s, const nt_layout *before)
{
    const nt_block_columns *b = &before->blocks;
    s->order = nt_allocate(&s->t->alloc, b->count * sizeof(nt_sort_item));
    if (s->order == NULL && b->count != 0) {
        return nt_fail_nomem(s->err);
    }
    s->order_capacity = b->count;
    for (uint32_t block = 0; block < b->count; block++) {
        if (before->segments.device[b->segment[block]] == s->t->device &&
            b->state[block] != NT_BLOCK_INACTIVE) {
            s->order[s->order_count++] = (nt_sort_item){b->address[block], block};
        }
    }
    nt_sort(s->order, s->order_count);
    for (size_t position = 0; position < s->order_count; position++) {
        const nt_allocation row =
            nt_timeline_layout_allocation(s->t, before, s->order[position].value);
        NT_TRY(nt_timeline_add_allocation(s->t, &row, s->err));
    }
    s->t->facts.preexisting = (uint32_t)s->order_count;
    return NT_OK;
}

nt_status
nt_timeline_find_start(nt_timeline *t, nt_error *err)
{
    const nt_layout *before = nt_snapshot_before(t->snapshot);
    start s = {.t = t, .events = nt_snapshot_events(t->snapshot), .err = err};
    nt_map_init(&s.live, t->alloc);
    nt_map_init(&s.known, t->alloc);
    const nt_status status = before != NULL ? start_take(&s, before) : start_find(&s);
    nt_map_clear(&s.live);
    nt_map_clear(&s.known);
    nt_release(&t->alloc, s.blocks, s.capacity * sizeof(start_block));
    nt_release(&t->alloc, s.order, s.order_capacity * sizeof(nt_sort_item));
    nt_release(&t->alloc, s.segments, s.segment_capacity * sizeof(nt_sort_item));
    return status;
}
