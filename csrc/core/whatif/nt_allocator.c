/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_allocator.h"

#include <string.h>

#include "base/nt_ordered.h"
#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

typedef enum allocator_state {
    ALLOCATOR_UNUSED, /* a row without a block */
    ALLOCATOR_FREE,
    ALLOCATOR_ALLOCATED,
    ALLOCATOR_PENDING,
    ALLOCATOR_UNMAPPED,
} allocator_state;

/* A block, or what is not mapped of a reservation. One cache line. */
typedef struct allocator_block {
    uint64_t address, size;
    union {
        uint64_t requested; /* in use */
        uint64_t born;      /* free: calls of its pool when it became so */
    } u;
    uint32_t lane;
    uint32_t before, after; /* its neighbours in the segment, or NT_NONE */
    uint32_t area;          /* its reservation; NT_NONE in an ordinary segment */
    uint32_t tag;
    uint32_t earlier, later; /* pending: the queue; unused: `later` is the next */
    uint8_t state;           /* allocator_state */
    uint8_t kind;            /* nt_pool_kind */
} allocator_block;

/* The free blocks of one stream in one pool, small and large. */
typedef struct allocator_lane {
    uint32_t pool;
    uint64_t stream;
    nt_ordered idle[NT_POOL_KIND_COUNT];     /* (size, address): free and mapped */
    nt_ordered unmapped[NT_POOL_KIND_COUNT]; /* (0, address) */
    nt_ordered loose[NT_POOL_KIND_COUNT]; /* those of `idle` of which something could be
                                           * given back */
    bool is_listed[NT_POOL_KIND_COUNT];   /* among the loose lanes of its pool */
    bool has_segment[NT_POOL_KIND_COUNT]; /* or had one, or a reservation */
    bool has_places;                      /* somebody asked for them by address: */
    nt_ordered places;                    /* (address, 0): those of `idle` */
    bool has_plain; /* segments don't expand any more, and some did: */
    nt_ordered plain[NT_POOL_KIND_COUNT]; /* those of `idle` in ordinary segments */
} allocator_lane;

typedef struct allocator_pool {
    unsigned flags;
    uint64_t released;      /* the number of its last release; 0: it is in use */
    uint32_t before, after; /* loose and released: its neighbours among those */
    uint64_t calls[NT_POOL_KIND_COUNT]; /* of find, while garbage is collected */
    size_t loose;                       /* of all its lanes */
    size_t pending;                     /* blocks in the queue */
    nt_ordered loose_lanes[NT_POOL_KIND_COUNT]; /* (stream, lane): all that have loose
                                                 * blocks, and some that had */
    uint32_t *lanes;
    size_t lane_count, lane_capacity;
} allocator_pool;

/* The address range of an expandable segment; in a row without one, which has size 0,
 * `address` is the next such row, or NT_NONE. */
typedef struct allocator_area {
    uint64_t address, size;
} allocator_area;

struct nt_allocator {
    nt_alloc alloc;
    nt_allocator_options options;
    uint64_t limit;       /* bytes; NT_UNLIMITED when no fraction is set */
    uint64_t gc_limit;    /* bytes from which garbage is collected, or NT_UNLIMITED */
    uint64_t device_room; /* bytes that this process can have at most */
    uint64_t next_place;  /* where the built-in policy goes on */
    bool is_capturing;
    bool has_lenders; /* some pool is a last resort for others */
    allocator_block *blocks;
    size_t block_count, block_capacity;
    uint32_t unused; /* the first row without a block, or NT_NONE */
    allocator_lane *lanes;
    size_t lane_count, lane_capacity;
    allocator_pool *pools;
    size_t pool_count, pool_capacity;
    allocator_area *areas;
    size_t area_count, area_capacity;
    uint32_t unused_area;                 /* the first row without one, or NT_NONE */
    uint32_t first_pending, last_pending; /* in the order of their frees */
    uint64_t releases;                    /* of pools, so far */
    uint32_t first_loose; /* pools that are released and have loose blocks */
    size_t loose_pools;   /* how many those are */
    uint32_t *found;      /* blocks that a release found; between calls empty */
    size_t found_capacity;
    nt_allocator_stats stats;
};

/* A request under way. */
typedef struct allocator_request {
    uint32_t lane;
    uint32_t pool;
    uint8_t kind;
    bool expands;     /* new memory for it comes from an expandable segment */
    uint64_t rounded; /* bytes of the block that it needs */
    uint64_t segment; /* bytes of the segment that it would open */
} allocator_request;

static inline allocator_block *
allocator_at(const nt_allocator *model, uint32_t block)
{
    return &model->blocks[block];
}

static inline bool
allocator_is_split(const allocator_block *block)
{
    return block->before != NT_NONE || block->after != NT_NONE;
}

static inline void
allocator_tell(const nt_allocator *model, nt_action action, uint32_t lane,
               uint64_t address, uint64_t size, uint32_t tag)
{
    if (model->options.observer.tell != NULL) {
        model->options.observer.tell(model->options.observer.ctx, action, lane, address,
                                     size, tag);
    }
}

static inline void
allocator_rise(nt_allocator *model, nt_metric metric, uint64_t bytes)
{
    nt_allocator_stats *stats = &model->stats;
    stats->bytes[metric] += bytes;
    if (stats->bytes[metric] > stats->peak[metric]) {
        stats->peak[metric] = stats->bytes[metric];
    }
}

/* A new row between `before` and `after`, which may be NT_NONE. */
static nt_status
allocator_add_block(nt_allocator *model, const allocator_block *block, uint32_t *out,
                    nt_error *err)
{
    uint32_t row = model->unused;
    if (row != NT_NONE) {
        model->unused = model->blocks[row].later;
    } else {
        if (model->block_count >= NT_NONE) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 blocks");
        }
        NT_TRY(NT_GROW(&model->alloc, model->blocks, model->block_capacity,
                       model->block_count + 1, err));
        row = (uint32_t)model->block_count++;
    }
    model->blocks[row] = *block;
    if (block->before != NT_NONE) {
        model->blocks[block->before].after = row;
    }
    if (block->after != NT_NONE) {
        model->blocks[block->after].before = row;
    }
    *out = row;
    return NT_OK;
}

static void
allocator_drop_block(nt_allocator *model, uint32_t block)
{
    allocator_block *b = allocator_at(model, block);
    b->state = ALLOCATOR_UNUSED;
    b->later = model->unused;
    model->unused = block;
}

/* Whether a release would give something of a free block back: it is a whole segment,
 * or has a whole page of an expandable one in it. */
static bool
allocator_is_loose(const nt_allocator *model, const allocator_block *block)
{
    if (block->area == NT_NONE) {
        return !allocator_is_split(block);
    }
    const uint64_t page =
        nt_page_size(&model->options.settings, block->kind == NT_POOL_SMALL);
    const uint64_t offset = block->address - model->areas[block->area].address;
    return block->size >= page &&
           (offset + block->size) / page > (offset + page - 1) / page;
}

/* Puts a pool among those that are released and have loose blocks, or takes it out. */
static void
allocator_list_pool(nt_allocator *model, uint32_t pool)
{
    allocator_pool *p = &model->pools[pool];
    p->before = NT_NONE;
    p->after = model->first_loose;
    if (p->after != NT_NONE) {
        model->pools[p->after].before = pool;
    }
    model->first_loose = pool;
    model->loose_pools++;
}

static void
allocator_unlist_pool(nt_allocator *model, uint32_t pool)
{
    const allocator_pool *p = &model->pools[pool];
    if (p->before != NT_NONE) {
        model->pools[p->before].after = p->after;
    } else {
        model->first_loose = p->after;
    }
    if (p->after != NT_NONE) {
        model->pools[p->after].before = p->before;
    }
    model->loose_pools--;
}

/* Notes a loose block, and lists its lane and its pool. */
static nt_status
allocator_add_loose(nt_allocator *model, uint32_t block, nt_error *err)
{
    const allocator_block *b = allocator_at(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    allocator_pool *pool = &model->pools[lane->pool];
    NT_TRY(nt_ordered_add(&lane->loose[b->kind], &model->alloc,
                          (nt_ordered_entry){b->size, b->address, block}, err));
    if (pool->loose++ == 0 && pool->released != 0) {
        allocator_list_pool(model, lane->pool);
    }
    if (lane->is_listed[b->kind]) {
        return NT_OK;
    }
    lane->is_listed[b->kind] = true;
    return nt_ordered_add(&pool->loose_lanes[b->kind], &model->alloc,
                          (nt_ordered_entry){lane->stream, b->lane, b->lane}, err);
}

/* Takes out one that is loose no more. Its lane stays where it is: the next walk over
 * the loose ones takes it out, if it has none then. */
static void
allocator_drop_loose(nt_allocator *model, const allocator_block *block)
{
    allocator_lane *lane = &model->lanes[block->lane];
    allocator_pool *pool = &model->pools[lane->pool];
    (void)nt_ordered_remove(&lane->loose[block->kind], &model->alloc, block->size,
                            block->address);
    if (--pool->loose == 0 && pool->released != 0) {
        allocator_unlist_pool(model, lane->pool);
    }
}

/* Puts a free block among those of its lane, or takes it out. */
static nt_status
allocator_store(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = allocator_at(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    b->state = ALLOCATOR_FREE;
    b->u.born = model->pools[lane->pool].calls[b->kind];
    if (allocator_is_loose(model, b)) {
        NT_TRY(allocator_add_loose(model, block, err));
    }
    if (lane->has_places) {
        NT_TRY(nt_ordered_add(&lane->places, &model->alloc,
                              (nt_ordered_entry){b->address, 0, block}, err));
    }
    if (lane->has_plain && b->area == NT_NONE) {
        NT_TRY(nt_ordered_add(&lane->plain[b->kind], &model->alloc,
                              (nt_ordered_entry){b->size, b->address, block}, err));
    }
    return nt_ordered_add(&lane->idle[b->kind], &model->alloc,
                          (nt_ordered_entry){b->size, b->address, block}, err);
}

static void
allocator_unstore(nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    if (b->state == ALLOCATOR_UNMAPPED) {
        (void)nt_ordered_remove(&lane->unmapped[b->kind], &model->alloc, 0, b->address);
        return;
    }
    if (allocator_is_loose(model, b)) {
        allocator_drop_loose(model, b);
    }
    if (lane->has_places) {
        (void)nt_ordered_remove(&lane->places, &model->alloc, b->address, 0);
    }
    if (lane->has_plain && b->area == NT_NONE) {
        (void)nt_ordered_remove(&lane->plain[b->kind], &model->alloc, b->size,
                                b->address);
    }
    (void)nt_ordered_remove(&lane->idle[b->kind], &model->alloc, b->size, b->address);
}

/* The same for a free block that is part of one that was in the sets, or has taken it
 * in: `was`, as it stood there. */
static nt_status
allocator_rekey(nt_allocator *model, const allocator_block *was, uint32_t block,
                nt_error *err)
{
    allocator_block *b = allocator_at(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    const nt_ordered_entry entry = {b->size, b->address, block};
    b->state = ALLOCATOR_FREE;
    b->u.born = model->pools[lane->pool].calls[b->kind];
    if (allocator_is_loose(model, was)) {
        allocator_drop_loose(model, was);
    }
    if (allocator_is_loose(model, b)) {
        NT_TRY(allocator_add_loose(model, block, err));
    }
    if (lane->has_places) {
        NT_TRY(nt_ordered_move(&lane->places, &model->alloc, was->address, 0,
                               (nt_ordered_entry){b->address, 0, block}, err));
    }
    if (lane->has_plain && b->area == NT_NONE) {
        NT_TRY(nt_ordered_move(&lane->plain[b->kind], &model->alloc, was->size,
                               was->address, entry, err));
    }
    return nt_ordered_move(&lane->idle[b->kind], &model->alloc, was->size, was->address,
                           entry, err);
}

/* Keeps the free blocks of the lane's ordinary segments apart from now on. */
static nt_status
allocator_part_plain(nt_allocator *model, uint32_t lane, nt_error *err)
{
    allocator_lane *l = &model->lanes[lane];
    for (size_t kind = 0; kind < NT_POOL_KIND_COUNT && !l->has_plain; kind++) {
        const nt_ordered *set = &l->idle[kind];
        nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
        while (entry.value != NT_NONE) {
            if (model->blocks[entry.value].area == NT_NONE) {
                NT_TRY(nt_ordered_add(&l->plain[kind], &model->alloc, entry, err));
            }
            entry = nt_ordered_after(set, entry.first, entry.second);
        }
    }
    l->has_plain = true;
    return NT_OK;
}

/* The free block of a lane that begins at `address`, or as the next one below; NT_NONE
 * where there is none. */
static nt_status
allocator_find_below(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint32_t *block, nt_error *err)
{
    allocator_lane *l = &model->lanes[lane];
    for (size_t kind = 0; kind < NT_POOL_KIND_COUNT && !l->has_places; kind++) {
        const nt_ordered *set = &l->idle[kind];
        nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
        while (entry.value != NT_NONE) {
            NT_TRY(nt_ordered_add(&l->places, &model->alloc,
                                  (nt_ordered_entry){entry.second, 0, entry.value},
                                  err));
            entry = nt_ordered_after(set, entry.first, entry.second);
        }
    }
    l->has_places = true;
    *block = nt_ordered_before(&l->places, address, 1).value;
    return NT_OK;
}

/* The same for what is unmapped. */
static nt_status
allocator_store_unmapped(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = allocator_at(model, block);
    b->state = ALLOCATOR_UNMAPPED;
    return nt_ordered_add(&model->lanes[b->lane].unmapped[b->kind], &model->alloc,
                          (nt_ordered_entry){0, b->address, block}, err);
}

/* Cuts the lowest `size` bytes off `block` as a new block of the same state, which is
 * in no set; where `block` stands in its sets is for the caller to correct. */
static nt_status
allocator_cut(nt_allocator *model, uint32_t block, uint64_t size, uint32_t *low,
              nt_error *err)
{
    allocator_block part = *allocator_at(model, block);
    part.size = size;
    part.after = block;
    NT_TRY(allocator_add_block(model, &part, low, err));
    allocator_block *rest = allocator_at(model, block);
    rest->address += size;
    rest->size -= size;
    return NT_OK;
}

/* Takes a free or unmapped neighbour of the same state, which is in no set any more,
 * into `block`. */
static void
allocator_absorb(nt_allocator *model, uint32_t block, uint32_t other)
{
    allocator_block *b = allocator_at(model, block);
    const allocator_block *o = allocator_at(model, other);
    if (b->before == other) {
        b->address = o->address;
        b->before = o->before;
        if (o->before != NT_NONE) {
            model->blocks[o->before].after = block;
        }
    } else {
        b->after = o->after;
        if (o->after != NT_NONE) {
            model->blocks[o->after].before = block;
        }
    }
    b->size += o->size;
    allocator_drop_block(model, other);
}

/* Joins `block`, which is in no set, with neighbours of the same state. */
static void
allocator_merge(nt_allocator *model, uint32_t block)
{
    const uint8_t state = allocator_at(model, block)->state;
    const uint32_t sides[2] = {allocator_at(model, block)->before,
                               allocator_at(model, block)->after};
    for (size_t i = 0; i < 2; i++) {
        if (sides[i] != NT_NONE && model->blocks[sides[i]].state == state) {
            allocator_unstore(model, sides[i]);
            allocator_absorb(model, block, sides[i]);
        }
    }
}

/* Puts a free block that is in no set there, joined with its free neighbours. */
static nt_status
allocator_join(nt_allocator *model, uint32_t block, nt_error *err)
{
    const uint32_t before = allocator_at(model, block)->before;
    const uint32_t after = allocator_at(model, block)->after;
    const bool joins_after =
        after != NT_NONE && model->blocks[after].state == ALLOCATOR_FREE;
    if (before != NT_NONE && model->blocks[before].state == ALLOCATOR_FREE) {
        const allocator_block was = *allocator_at(model, before);
        allocator_absorb(model, block, before);
        if (joins_after) {
            allocator_unstore(model, after);
            allocator_absorb(model, block, after);
        }
        return allocator_rekey(model, &was, block, err);
    }
    if (joins_after) {
        const allocator_block was = *allocator_at(model, after);
        allocator_absorb(model, block, after);
        return allocator_rekey(model, &was, block, err);
    }
    return allocator_store(model, block, err);
}

/* A block in use becomes free; `block` is no name of it any more. */
static nt_status
allocator_settle(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = allocator_at(model, block);
    model->stats.bytes[NT_METRIC_ACTIVE] -= b->size;
    model->stats.bytes[NT_METRIC_REQUESTED] -= b->u.requested;
    model->stats.active--;
    b->state = ALLOCATOR_FREE;
    return allocator_join(model, block, err);
}

/* Takes a block out of the queue of pending ones, or puts it at the end. */
static void
allocator_enqueue(nt_allocator *model, uint32_t block)
{
    allocator_block *b = allocator_at(model, block);
    b->earlier = model->last_pending;
    b->later = NT_NONE;
    if (b->earlier != NT_NONE) {
        model->blocks[b->earlier].later = block;
    } else {
        model->first_pending = block;
    }
    model->last_pending = block;
    model->pools[model->lanes[b->lane].pool].pending++;
}

static void
allocator_dequeue(nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    if (b->earlier != NT_NONE) {
        model->blocks[b->earlier].later = b->later;
    } else {
        model->first_pending = b->later;
    }
    if (b->later != NT_NONE) {
        model->blocks[b->later].earlier = b->earlier;
    } else {
        model->last_pending = b->earlier;
    }
    model->pools[model->lanes[b->lane].pool].pending--;
}

/* Whether `bytes` more than what is reserved are within a bound, and how far that would
 * be so with other bounds. */
static bool
allocator_is_within(const nt_allocator *model, uint64_t bound, uint64_t bytes,
                    nt_allocator_span *span)
{
    const uint64_t needed = model->stats.bytes[NT_METRIC_RESERVED] + bytes;
    if (needed <= bound) {
        span->least = needed > span->least ? needed : span->least;
        return true;
    }
    span->most = needed - 1 < span->most ? needed - 1 : span->most;
    return false;
}

/* Whether the device has `bytes` more for this process. */
static bool
allocator_has_room(nt_allocator *model, uint64_t bytes)
{
    return allocator_is_within(model, model->device_room, bytes, &model->stats.room);
}

/* Notes that a lane has one more segment or reservation. */
static void
allocator_note_segment(nt_allocator *model, uint32_t lane, uint8_t kind)
{
    bool *has_segment = &model->lanes[lane].has_segment[kind];
    model->stats.has_order |= *has_segment;
    *has_segment = true;
}

static nt_status
allocator_take_place(nt_allocator *model, const nt_allocator_need *need,
                     uint64_t *address, nt_error *err)
{
    const nt_allocator_places *places = &model->options.places;
    if (places->take != NULL) {
        return places->take(places->ctx, need, address, err);
    }
    if (need->size > (UINT64_C(1) << 63) - model->next_place) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "out of addresses");
    }
    *address = model->next_place;
    model->next_place += need->size;
    return NT_OK;
}

static void
allocator_give_place(nt_allocator *model, uint64_t address, uint64_t size)
{
    const nt_allocator_places *places = &model->options.places;
    if (places->give != NULL) {
        places->give(places->ctx, address, size);
    }
}

/* Gives the segment of a free, unsplit block back; the block is gone. */
static void
allocator_release_segment(nt_allocator *model, uint32_t block)
{
    const allocator_block b = *allocator_at(model, block);
    NT_ASSERT(b.state == ALLOCATOR_FREE && !allocator_is_split(&b));
    allocator_unstore(model, block);
    allocator_drop_block(model, block);
    model->stats.bytes[NT_METRIC_RESERVED] -= b.size;
    model->stats.segments--;
    model->stats.device_frees++;
    allocator_tell(model, NT_ACTION_SEGMENT_FREE, b.lane, b.address, b.size, NT_NONE);
    allocator_give_place(model, b.address, b.size);
}

/* A cudaMalloc. */
static nt_status
allocator_open_segment(nt_allocator *model, const allocator_request *request,
                       uint32_t *block, nt_error *err)
{
    const nt_allocator_need need = {
        .size = request->segment,
        .lane = request->lane,
        .small = request->kind == NT_POOL_SMALL,
    };
    allocator_block fresh = {
        .size = request->segment,
        .lane = request->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .area = NT_NONE,
        .state = ALLOCATOR_FREE,
        .kind = request->kind,
    };
    NT_TRY(allocator_take_place(model, &need, &fresh.address, err));
    NT_TRY(allocator_add_block(model, &fresh, block, err));
    allocator_note_segment(model, fresh.lane, fresh.kind);
    if (model->options.settings.expandable_segments) {
        /* It may lie where a reservation did that was large enough. */
        model->stats.reserve = (nt_allocator_span){.least = UINT64_MAX};
    }
    allocator_rise(model, NT_METRIC_RESERVED, fresh.size);
    model->stats.segments++;
    model->stats.device_allocs++;
    allocator_tell(model, NT_ACTION_SEGMENT_ALLOC, fresh.lane, fresh.address,
                   fresh.size, NT_NONE);
    return NT_OK;
}

static uint64_t
allocator_page(const nt_allocator *model, uint8_t kind)
{
    return nt_page_size(&model->options.settings, kind == NT_POOL_SMALL);
}

/* Notes that something would have been otherwise had the block's reservation lost more
 * than so many bytes at its end, or had so many more. */
static void
allocator_note_less(nt_allocator *model, uint32_t block, uint64_t bytes)
{
    const allocator_block *b = allocator_at(model, block);
    nt_allocator_span *span = &model->stats.reserve;
    const uint64_t page = allocator_page(model, b->kind);
    const uint64_t least = model->areas[b->area].size - bytes / page * page;
    span->least = least > span->least ? least : span->least;
}

static void
allocator_note_more(nt_allocator *model, uint32_t block, uint64_t bytes)
{
    const allocator_block *b = allocator_at(model, block);
    nt_allocator_span *span = &model->stats.reserve;
    /* A reservation has up to a page more than nine eighths of the device. */
    const uint64_t page = allocator_page(model, b->kind);
    const uint64_t most = model->areas[b->area].size + bytes - 1;
    span->most = most - page < span->most ? most - page : span->most;
}

/* Whether the blocks from here on that nobody uses have `size` bytes together; *end is
 * where those end that were looked at. */
static bool
allocator_has_space(nt_allocator *model, uint32_t block, uint64_t size, uint64_t *end)
{
    const uint32_t first = block;
    uint64_t bytes = 0;
    while (bytes < size && block != NT_NONE) {
        const allocator_block *b = allocator_at(model, block);
        if (b->state != ALLOCATOR_FREE && b->state != ALLOCATOR_UNMAPPED) {
            return false;
        }
        bytes += b->size;
        *end = b->address + b->size;
        block = b->after;
    }
    if (bytes < size) {
        allocator_note_more(model, first, size - bytes);
    } else if (block == NT_NONE) {
        allocator_note_less(model, first, bytes - size);
    }
    return bytes >= size;
}

static uint32_t
allocator_find_space(nt_allocator *model, const allocator_request *request)
{
    const nt_ordered *set = &model->lanes[request->lane].unmapped[request->kind];
    nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
    while (entry.value != NT_NONE) {
        uint64_t end = 0;
        uint32_t block = entry.value;
        const uint32_t before = allocator_at(model, block)->before;
        if (before != NT_NONE && model->blocks[before].state == ALLOCATOR_FREE) {
            block = before;
        }
        if (allocator_has_space(model, block, request->rounded, &end)) {
            return block;
        }
        /* What begins within these blocks has less space than they. */
        entry = nt_ordered_from(set, 0, end);
    }
    return NT_NONE;
}

/* What counts as the bytes of an endless device here: addresses are not endless. */
#define ALLOCATOR_ENDLESS (UINT64_C(1) << 44)

uint64_t
nt_allocator_reservation_size(const nt_allocator *model, bool small)
{
    /* An eighth more than the device, so that pages that had to be unmapped in the
     * middle can be mapped at the end. */
    const uint64_t total = model->options.device_total != 0
                               ? model->options.device_total
                               : ALLOCATOR_ENDLESS;
    const uint64_t page = allocator_page(model, small ? NT_POOL_SMALL : NT_POOL_LARGE);
    return (total + total / 8 + page - 1) / page * page;
}

/* A row of its own for an address range. */
static nt_status
allocator_add_area(nt_allocator *model, const allocator_area *area, uint32_t *out,
                   nt_error *err)
{
    if (model->unused_area != NT_NONE) {
        *out = model->unused_area;
        model->unused_area = (uint32_t)model->areas[*out].address;
        model->areas[*out] = *area;
        return NT_OK;
    }
    NT_TRY(NT_GROW(&model->alloc, model->areas, model->area_capacity,
                   model->area_count + 1, err));
    *out = (uint32_t)model->area_count;
    model->areas[model->area_count++] = *area;
    return NT_OK;
}

static nt_status
allocator_reserve(nt_allocator *model, const allocator_request *request,
                  uint32_t *block, nt_error *err)
{
    const bool small = request->kind == NT_POOL_SMALL;
    allocator_area area = {.size = nt_allocator_reservation_size(model, small)};
    const nt_allocator_need need = {
        .size = area.size,
        .lane = request->lane,
        .small = small,
        .is_reservation = true,
    };
    *block = NT_NONE;
    if (area.size < request->rounded) {
        /* A larger one would have been there, though with no room for its pages. */
        model->stats.reserve = (nt_allocator_span){.least = UINT64_MAX};
        return NT_OK;
    }
    allocator_block fresh = {
        .size = area.size,
        .lane = request->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .state = ALLOCATOR_UNMAPPED,
        .kind = request->kind,
    };
    NT_TRY(allocator_take_place(model, &need, &area.address, err));
    fresh.address = area.address;
    allocator_note_segment(model, fresh.lane, fresh.kind);
    NT_TRY(allocator_add_area(model, &area, &fresh.area, err));
    NT_TRY(allocator_add_block(model, &fresh, block, err));
    allocator_note_less(model, *block, area.size - request->rounded);
    return allocator_store_unmapped(model, *block, err);
}

/* Maps the first `size` bytes of an unmapped block, in whole pages, and joins them with
 * free neighbours. `block` stands for the result; *mapped is false if the device has no
 * room. */
static nt_status
allocator_map(nt_allocator *model, uint32_t block, uint64_t size, bool *mapped,
              nt_error *err)
{
    const uint64_t page = allocator_page(model, allocator_at(model, block)->kind);
    const uint64_t bytes = (size + page - 1) / page * page;
    *mapped = allocator_has_room(model, bytes);
    if (!*mapped) {
        return NT_OK;
    }
    allocator_unstore(model, block);
    const uint64_t address = allocator_at(model, block)->address;
    if (bytes < allocator_at(model, block)->size) {
        /* The block's name goes to what is mapped, at the low end. */
        allocator_block rest = *allocator_at(model, block);
        uint32_t row;
        rest.address += bytes;
        rest.size -= bytes;
        rest.before = block;
        NT_TRY(allocator_add_block(model, &rest, &row, err));
        NT_TRY(allocator_store_unmapped(model, row, err));
        allocator_at(model, block)->size = bytes;
    }
    allocator_at(model, block)->state = ALLOCATOR_FREE;
    allocator_merge(model, block);
    NT_TRY(allocator_store(model, block, err));
    allocator_rise(model, NT_METRIC_RESERVED, bytes);
    model->stats.device_allocs++;
    allocator_tell(model, NT_ACTION_SEGMENT_MAP, allocator_at(model, block)->lane,
                   address, bytes, NT_NONE);
    return NT_OK;
}

static uint64_t
allocator_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The same in an expandable segment. */
static nt_status
allocator_expand(nt_allocator *model, const allocator_request *request, uint32_t *block,
                 nt_error *err)
{
    uint32_t found = allocator_find_space(model, request);
    bool mapped = true;
    *block = NT_NONE;
    if (found == NT_NONE) {
        NT_TRY(allocator_reserve(model, request, &found, err));
        if (found == NT_NONE) {
            return NT_OK;
        }
    }
    const allocator_block *b = allocator_at(model, found);
    if (b->state == ALLOCATOR_UNMAPPED) {
        NT_TRY(allocator_map(model, found, allocator_least(b->size, request->rounded),
                             &mapped, err));
    }
    while (mapped && allocator_at(model, found)->size < request->rounded) {
        const uint64_t missing = request->rounded - allocator_at(model, found)->size;
        found = allocator_at(model, found)->after;
        const uint64_t size = allocator_at(model, found)->size;
        NT_TRY(
            allocator_map(model, found, allocator_least(missing, size), &mapped, err));
    }
    if (mapped) {
        allocator_unstore(model, found);
        *block = found;
    }
    return NT_OK;
}

/* New memory for a request; *block is free, in no set, and may be larger than the
 * request; NT_NONE if there is none. */
static nt_status
allocator_open(nt_allocator *model, const allocator_request *request, uint32_t *block,
               nt_error *err)
{
    *block = NT_NONE;
    if (!allocator_is_within(model, model->limit, request->segment,
                             &model->stats.limit)) {
        return NT_OK;
    }
    if (request->expands) {
        return allocator_expand(model, request, block, err);
    }
    if (!allocator_has_room(model, request->segment)) {
        return NT_OK;
    }
    return allocator_open_segment(model, request, block, err);
}

/* Expandable segments: an address range is reserved once for each stream and pool, and
 * memory is mapped into it, and unmapped, in whole pages. */

/* Puts what is left of a free block beside its unmapped pages among the free ones. */
static nt_status
allocator_keep_ends(nt_allocator *model, uint32_t block, uint64_t begin, uint64_t end,
                    nt_error *err)
{
    uint32_t row;
    const uint64_t address = allocator_at(model, block)->address;
    if (begin > address) {
        NT_TRY(allocator_cut(model, block, begin - address, &row, err));
        NT_TRY(allocator_store(model, row, err));
    }
    allocator_block high = *allocator_at(model, block);
    if (end < high.address + high.size) {
        high.size -= end - high.address;
        high.address = end;
        high.before = block;
        NT_TRY(allocator_add_block(model, &high, &row, err));
        NT_TRY(allocator_store(model, row, err));
        allocator_at(model, block)->size = end - begin;
    }
    return NT_OK;
}

/* Ends a reservation of which nothing is mapped. */
static void
allocator_end_area(nt_allocator *model, uint32_t block)
{
    const allocator_block b = *allocator_at(model, block);
    allocator_unstore(model, block);
    allocator_drop_block(model, block);
    model->areas[b.area] = (allocator_area){.address = model->unused_area};
    model->unused_area = b.area;
    allocator_give_place(model, b.address, b.size);
}

/* Unmaps the whole pages of a free block; a reservation of which nothing is mapped then
 * goes. */
static nt_status
allocator_unmap(nt_allocator *model, uint32_t block, nt_error *err)
{
    const allocator_block b = *allocator_at(model, block);
    const uint64_t page = allocator_page(model, b.kind);
    const uint64_t base = model->areas[b.area].address;
    const uint64_t begin = base + (b.address - base + page - 1) / page * page;
    const uint64_t end = base + (b.address + b.size - base) / page * page;
    if (begin >= end) {
        return NT_OK;
    }
    allocator_unstore(model, block);
    NT_TRY(allocator_keep_ends(model, block, begin, end, err));
    allocator_at(model, block)->state = ALLOCATOR_UNMAPPED;
    allocator_merge(model, block);
    NT_TRY(allocator_store_unmapped(model, block, err));
    model->stats.bytes[NT_METRIC_RESERVED] -= end - begin;
    model->stats.device_frees++;
    allocator_tell(model, NT_ACTION_SEGMENT_UNMAP, b.lane, begin, end - begin, NT_NONE);
    if (!allocator_is_split(allocator_at(model, block))) {
        allocator_end_area(model, block);
    }
    return NT_OK;
}

/* What the allocator gives back to the device, when memory is short or on request. */

/* Whether a garbage collection may free it, or would if it were not expandable. */
static bool
allocator_is_whole(const nt_allocator *model, uint32_t block)
{
    return !allocator_is_split(allocator_at(model, block));
}

static uint64_t
allocator_age(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    const allocator_pool *pool = &model->pools[model->lanes[b->lane].pool];
    return pool->calls[b->kind] - b->u.born;
}

/* Notes the blocks of a set behind `count` others, in their order. */
static nt_status
allocator_find_set(nt_allocator *model, const nt_ordered *set, size_t *count,
                   nt_error *err)
{
    NT_TRY(NT_GROW(&model->alloc, model->found, model->found_capacity,
                   *count + set->count, err));
    nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
    while (entry.value != NT_NONE) {
        model->found[(*count)++] = entry.value;
        entry = nt_ordered_after(set, entry.first, entry.second);
    }
    return NT_OK;
}

/* The loose blocks of a pool in the order in which PyTorch walks it: by stream, size
 * and address. Whole ones are all among them. */
static nt_status
allocator_find_pool(nt_allocator *model, uint32_t pool, nt_pool_kind kind,
                    size_t *count, nt_error *err)
{
    nt_ordered *lanes = &model->pools[pool].loose_lanes[kind];
    nt_ordered_entry entry = nt_ordered_from(lanes, 0, 0);
    *count = 0;
    while (entry.value != NT_NONE) {
        allocator_lane *lane = &model->lanes[entry.value];
        const nt_ordered_entry next =
            nt_ordered_after(lanes, entry.first, entry.second);
        if (lane->loose[kind].count != 0) {
            NT_TRY(allocator_find_set(model, &lane->loose[kind], count, err));
        } else {
            lane->is_listed[kind] = false;
            (void)nt_ordered_remove(lanes, &model->alloc, entry.first, entry.second);
        }
        entry = next;
    }
    return NT_OK;
}

/* One round over the blocks found: frees those of average age or more. */
static bool
allocator_collect_round(nt_allocator *model, size_t count, uint64_t *ages,
                        uint64_t *blocks, uint64_t *reclaimed)
{
    const double threshold = (double)*ages / (double)*blocks;
    bool is_any_freed = false;
    for (size_t i = 0; i < count; i++) {
        const uint32_t block = model->found[i];
        if (block == NT_NONE || !allocator_is_whole(model, block) ||
            allocator_at(model, block)->area != NT_NONE) {
            continue;
        }
        const uint64_t age = allocator_age(model, block);
        if ((double)age >= threshold) {
            is_any_freed = true;
            *reclaimed += allocator_at(model, block)->size;
            *ages -= age;
            (*blocks)--;
            allocator_release_segment(model, block);
            model->found[i] = NT_NONE;
        }
    }
    return is_any_freed;
}

static nt_status
allocator_collect(nt_allocator *model, nt_error *err)
{
    const uint64_t reserved = model->stats.bytes[NT_METRIC_RESERVED];
    if (reserved <= model->gc_limit) {
        return NT_OK;
    }
    size_t count;
    uint64_t ages = 0, blocks = 0, reclaimed = 0;
    NT_TRY(allocator_find_pool(model, NT_DEFAULT_POOL, NT_POOL_LARGE, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (allocator_is_whole(model, model->found[i])) {
            ages += allocator_age(model, model->found[i]);
            blocks++;
        }
    }
    bool goes_on = true;
    while (goes_on && blocks > 0 && reclaimed < reserved - model->gc_limit) {
        goes_on = allocator_collect_round(model, count, &ages, &blocks, &reclaimed);
    }
    return NT_OK;
}

/* Releases oversize blocks of the request's stream; *enough says whether the bytes that
 * max_split_size asks for came together. */
static void
allocator_release_oversize(nt_allocator *model, const allocator_request *request,
                           bool *enough)
{
    const uint64_t max_split = model->options.settings.max_split_size;
    const nt_ordered *set = &model->lanes[request->lane].idle[request->kind];
    const uint64_t wanted = request->rounded > max_split ? request->rounded : max_split;
    *enough = false;
    if (max_split == NT_UNLIMITED) {
        return;
    }
    nt_ordered_entry entry = nt_ordered_from(set, wanted, 0);
    if (entry.value != NT_NONE && model->blocks[entry.value].area == NT_NONE) {
        if (allocator_is_whole(model, entry.value)) {
            allocator_release_segment(model, entry.value);
        }
        *enough = true;
        return;
    }
    /* No single one is large enough: several, the largest first. */
    uint64_t released = 0;
    set = &model->lanes[request->lane].loose[request->kind];
    entry = nt_ordered_before(set, wanted, 0);
    while (released < wanted && entry.value != NT_NONE && entry.first >= max_split) {
        if (model->blocks[entry.value].area == NT_NONE &&
            allocator_is_whole(model, entry.value)) {
            released += entry.first;
            allocator_release_segment(model, entry.value);
        }
        entry = nt_ordered_before(set, entry.first, entry.second);
    }
    *enough = released >= wanted;
}

/* Gives back whole segments, and then whole pages of expandable ones. */
static nt_status
allocator_release_blocks(nt_allocator *model, uint32_t pool, nt_pool_kind kind,
                         nt_error *err)
{
    size_t count, mapped = 0;
    NT_TRY(allocator_find_pool(model, pool, kind, &count, err));
    for (size_t i = 0; i < count; i++) {
        const uint32_t block = model->found[i];
        if (allocator_at(model, block)->area != NT_NONE) {
            model->found[mapped++] = block;
        } else if (allocator_is_whole(model, block)) {
            allocator_release_segment(model, block);
        }
    }
    for (size_t i = 0; i < mapped; i++) {
        NT_TRY(allocator_unmap(model, model->found[i], err));
    }
    return NT_OK;
}

nt_status
nt_allocator_complete(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_dequeue(model, block);
    return allocator_settle(model, block, err);
}

/* What was given later is complete once all streams have been waited for: all of it, or
 * what is of one pool. */
static nt_status
allocator_wait(nt_allocator *model, uint32_t pool, nt_error *err)
{
    model->stats.waits++;
    uint32_t block = model->first_pending;
    while (block != NT_NONE && (pool == NT_NONE || model->pools[pool].pending != 0)) {
        const allocator_block b = *allocator_at(model, block);
        if (pool == NT_NONE || model->lanes[b.lane].pool == pool) {
            allocator_tell(model, NT_ACTION_FREE_COMPLETED, b.lane, b.address,
                           b.u.requested, b.tag);
            NT_TRY(nt_allocator_complete(model, block, err));
        }
        block = b.later;
    }
    return NT_OK;
}

/* What is free in a private pool, small before large. */
static nt_status
allocator_release_both(nt_allocator *model, uint32_t pool, nt_error *err)
{
    NT_TRY(allocator_release_blocks(model, pool, NT_POOL_SMALL, err));
    return allocator_release_blocks(model, pool, NT_POOL_LARGE, err);
}

/* Gives back what can be of the private pools that nobody uses any more. */
static nt_status
allocator_release_private(nt_allocator *model, nt_error *err)
{
    if (model->loose_pools == 0) {
        return NT_OK;
    }
    const size_t bytes = model->loose_pools * sizeof(nt_sort_item);
    nt_sort_item *items;
    NT_TRY(nt_take(&model->alloc, (void **)&items, bytes, err));
    size_t count = 0;
    for (uint32_t i = model->first_loose; i != NT_NONE; i = model->pools[i].after) {
        items[count++] = (nt_sort_item){model->pools[i].released, i};
    }
    nt_sort(items, count);
    nt_status status = NT_OK;
    for (size_t i = 0; i < count && status == NT_OK; i++) {
        status = allocator_release_both(model, items[i].value, err);
    }
    nt_release(&model->alloc, items, bytes);
    return status;
}

/* Waits for all streams, and gives back all that can be. */
static nt_status
allocator_release_cache(nt_allocator *model, nt_error *err)
{
    NT_TRY(allocator_wait(model, NT_NONE, err));
    NT_TRY(allocator_release_blocks(model, NT_DEFAULT_POOL, NT_POOL_LARGE, err));
    NT_TRY(allocator_release_blocks(model, NT_DEFAULT_POOL, NT_POOL_SMALL, err));
    return allocator_release_private(model, err);
}

/* Waits for the blocks of one private pool, and gives back what can be of it. */
static nt_status
allocator_release_one(nt_allocator *model, uint32_t pool, nt_error *err)
{
    NT_TRY(allocator_wait(model, pool, err));
    return allocator_release_both(model, pool, err);
}

/* The state of the model: taken up from outside, and shown as a layout. */

/* A layout with what is needed to free it. */
typedef struct allocator_view {
    nt_layout layout; /* the first member: the caller holds a pointer to it */
    size_t segment_capacity, block_capacity;
} allocator_view;

static const uint8_t allocator_piece_states[NT_PIECE_STATE_COUNT] = {
    [NT_PIECE_FREE] = ALLOCATOR_FREE,
    [NT_PIECE_ALLOCATED] = ALLOCATOR_ALLOCATED,
    [NT_PIECE_PENDING] = ALLOCATOR_PENDING,
    [NT_PIECE_UNMAPPED] = ALLOCATOR_UNMAPPED,
};

static bool
allocator_is_idle(nt_piece_state state)
{
    return state == NT_PIECE_FREE || state == NT_PIECE_UNMAPPED;
}

/* Checks the pieces of an area; *total are their bytes. */
static bool
allocator_check_pieces(const nt_allocator_area *area, uint64_t page, uint64_t *total)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < area->count; i++) {
        const nt_allocator_piece *piece = &area->pieces[i];
        const bool ends_page = i == 0 || bytes % page == 0;
        const bool is_unmapped = piece->state == NT_PIECE_UNMAPPED;
        const bool was_unmapped =
            i > 0 && area->pieces[i - 1].state == NT_PIECE_UNMAPPED;
        if (piece->size == 0 || piece->size % NT_MIN_BLOCK_SIZE != 0 ||
            piece->size > (UINT64_C(1) << 62) - bytes ||
            (!allocator_is_idle(piece->state) && piece->requested > piece->size) ||
            (is_unmapped && !area->is_reservation) ||
            (is_unmapped != was_unmapped && !ends_page) ||
            (i > 0 && allocator_is_idle(piece->state) &&
             piece->state == area->pieces[i - 1].state)) {
            return false;
        }
        bytes += piece->size;
    }
    *total = bytes;
    return bytes != 0 && (!area->is_reservation || bytes % page == 0);
}

static nt_status
allocator_adopt_piece(nt_allocator *model, const nt_allocator_piece *piece,
                      uint32_t block, nt_error *err)
{
    allocator_block *b = allocator_at(model, block);
    b->tag = piece->tag;
    b->state = allocator_piece_states[piece->state];
    if (piece->state == NT_PIECE_UNMAPPED) {
        return allocator_store_unmapped(model, block, err);
    }
    allocator_rise(model, NT_METRIC_RESERVED, piece->size);
    if (piece->state == NT_PIECE_FREE) {
        return allocator_store(model, block, err);
    }
    b->u.requested = piece->requested;
    model->stats.active++;
    allocator_rise(model, NT_METRIC_ACTIVE, piece->size);
    allocator_rise(model, NT_METRIC_REQUESTED, piece->requested);
    if (piece->state == NT_PIECE_PENDING) {
        allocator_enqueue(model, block);
        return NT_OK;
    }
    model->stats.allocations++;
    allocator_rise(model, NT_METRIC_ALLOCATED, piece->size);
    return NT_OK;
}

nt_status
nt_allocator_adopt(nt_allocator *model, const nt_allocator_area *area, uint32_t *blocks,
                   nt_error *err)
{
    allocator_area range = {.address = area->address};
    allocator_block next = {
        .address = area->address,
        .lane = area->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .area = NT_NONE,
        .kind = area->small ? NT_POOL_SMALL : NT_POOL_LARGE,
    };
    if (!allocator_check_pieces(
            area, nt_page_size(&model->options.settings, area->small), &range.size)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a segment from before the trace is not one that the allocator "
                       "makes: the file is damaged, or other settings applied then");
    }
    if (area->is_reservation) {
        NT_TRY(allocator_add_area(model, &range, &next.area, err));
        if (!model->options.settings.expandable_segments) {
            NT_TRY(allocator_part_plain(model, area->lane, err));
        }
    } else {
        model->stats.segments++;
    }
    allocator_note_segment(model, area->lane, next.kind);
    uint32_t row = NT_NONE, first = NT_NONE;
    for (size_t i = 0; i < area->count; i++) {
        next.size = area->pieces[i].size;
        NT_TRY(allocator_add_block(model, &next, &row, err));
        first = i == 0 ? row : first;
        next.address += next.size;
        next.before = row;
    }
    row = first;
    for (size_t i = 0; i < area->count; i++) {
        NT_TRY(allocator_adopt_piece(model, &area->pieces[i], row, err));
        blocks[i] = allocator_is_idle(area->pieces[i].state) ? NT_NONE : row;
        row = allocator_at(model, row)->after;
    }
    return NT_OK;
}

/* The first blocks of all segments, by address; the caller frees *capacity items. */
static nt_status
allocator_find_heads(const nt_allocator *model, nt_sort_item **out, size_t *count,
                     size_t *capacity, nt_error *err)
{
    nt_sort_item *items = NULL;
    *count = 0;
    *capacity = 0;
    for (uint32_t i = 0; i < model->block_count; i++) {
        const allocator_block *b = allocator_at(model, i);
        if (b->state == ALLOCATOR_UNUSED || b->before != NT_NONE) {
            continue;
        }
        const nt_status status = nt_grow(&model->alloc, (void **)&items, capacity,
                                         *count + 1, sizeof *items, err);
        if (status != NT_OK) {
            NT_RELEASE(&model->alloc, items, *capacity);
            return status;
        }
        items[(*count)++] = (nt_sort_item){b->address, i};
    }
    nt_sort(items, *count);
    *out = items;
    return NT_OK;
}

/* Adds the mapped blocks from `first` on as one segment; *end is the block behind. */
static nt_status
allocator_show_segment(const nt_allocator *model, uint32_t first, allocator_view *view,
                       uint32_t *end, nt_error *err)
{
    const allocator_block *head = allocator_at(model, first);
    const allocator_lane *lane = &model->lanes[head->lane];
    nt_segment segment = {
        .address = head->address,
        .stream = lane->stream,
        .pool = {0, lane->pool},
        .kind = head->kind,
        .is_expandable = head->area != NT_NONE,
        .stack = NT_NO_STACK,
    };
    uint32_t i = first;
    for (; i != NT_NONE; i = allocator_at(model, i)->after) {
        const allocator_block *b = allocator_at(model, i);
        if (b->state == ALLOCATOR_UNMAPPED) {
            break;
        }
        segment.total_size += b->size;
        if (b->state != ALLOCATOR_FREE) {
            segment.active_size += b->size;
            segment.requested_size += b->u.requested;
            segment.allocated_size += b->state == ALLOCATOR_ALLOCATED ? b->size : 0;
        }
    }
    *end = i;
    return nt_layout_add_segment(&view->layout, &model->alloc, &view->segment_capacity,
                                 &segment, err);
}

static nt_status
allocator_show_block(const nt_allocator *model, uint32_t block, allocator_view *view,
                     nt_error *err)
{
    const allocator_block *b = allocator_at(model, block);
    const bool is_free = b->state == ALLOCATOR_FREE;
    const nt_block row = {
        .address = b->address,
        .size = b->size,
        .requested_size = is_free ? 0 : b->u.requested,
        .state = is_free                           ? NT_BLOCK_INACTIVE
                 : b->state == ALLOCATOR_ALLOCATED ? NT_BLOCK_ACTIVE_ALLOCATED
                                                   : NT_BLOCK_ACTIVE_PENDING_FREE,
        .stack = NT_NO_STACK,
    };
    return nt_layout_add_block(&view->layout, &model->alloc, &view->block_capacity,
                               &row, err);
}

static nt_status
allocator_show(const nt_allocator *model, uint32_t head, allocator_view *view,
               nt_error *err)
{
    uint32_t block = head;
    while (block != NT_NONE) {
        uint32_t end = allocator_at(model, block)->after;
        if (allocator_at(model, block)->state != ALLOCATOR_UNMAPPED) {
            NT_TRY(allocator_show_segment(model, block, view, &end, err));
            for (; block != end; block = allocator_at(model, block)->after) {
                NT_TRY(allocator_show_block(model, block, view, err));
            }
        }
        block = end;
    }
    return NT_OK;
}

void
nt_allocator_layout_free(const nt_allocator *model, nt_layout *layout)
{
    if (layout == NULL) {
        return;
    }
    allocator_view *view = (allocator_view *)layout;
    nt_layout_clear(&view->layout, &model->alloc, view->segment_capacity,
                    view->block_capacity);
    nt_release(&model->alloc, view, sizeof *view);
}

nt_status
nt_allocator_layout(const nt_allocator *model, nt_layout **out, nt_error *err)
{
    nt_sort_item *heads;
    size_t count, capacity;
    allocator_view *view;
    NT_TRY(NT_NEW(&model->alloc, view, 1, err));
    *view = (allocator_view){.segment_capacity = 0};
    nt_status status = allocator_find_heads(model, &heads, &count, &capacity, err);
    if (status == NT_OK) {
        for (size_t i = 0; i < count && status == NT_OK; i++) {
            status = allocator_show(model, heads[i].value, view, err);
        }
        NT_RELEASE(&model->alloc, heads, capacity);
    }
    if (status != NT_OK) {
        nt_allocator_layout_free(model, &view->layout);
        return status;
    }
    *out = &view->layout;
    return NT_OK;
}

/* Every invariant of the model, for tests. */

typedef struct allocator_tally {
    uint64_t bytes[NT_METRIC_COUNT];
    uint64_t allocations, active, segments, pending;
    size_t seen, unmapped, idle, loose, placed, plain;
} allocator_tally;

/* Leaves the function with the words for what does not hold. */
#define ALLOCATOR_HOLDS(condition, words)                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            return (words);                                                            \
        }                                                                              \
    } while (0)

static bool
allocator_is_in(const nt_ordered *set, uint32_t block, uint64_t first, uint64_t second)
{
    const nt_ordered_entry entry = nt_ordered_from(set, first, second);
    return entry.value == block && entry.first == first && entry.second == second;
}

/* A free or unmapped block stands in its sets, under its keys. */
static bool
allocator_is_stored(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    const allocator_lane *lane = &model->lanes[b->lane];
    if (b->state != ALLOCATOR_FREE) {
        return allocator_is_in(&lane->unmapped[b->kind], block, 0, b->address);
    }
    return allocator_is_in(&lane->idle[b->kind], block, b->size, b->address) &&
           (!allocator_is_loose(model, b) ||
            allocator_is_in(&lane->loose[b->kind], block, b->size, b->address)) &&
           (!lane->has_places ||
            allocator_is_in(&lane->places, block, b->address, 0)) &&
           (!lane->has_plain || b->area != NT_NONE ||
            allocator_is_in(&lane->plain[b->kind], block, b->size, b->address));
}

static const char *
allocator_check_neighbours(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    if (b->after == NT_NONE) {
        return NULL;
    }
    const allocator_block *next = allocator_at(model, b->after);
    ALLOCATOR_HOLDS(next->before == block, "neighbours know each other");
    ALLOCATOR_HOLDS(next->address == b->address + b->size, "blocks leave no gap");
    ALLOCATOR_HOLDS(next->lane == b->lane && next->kind == b->kind &&
                        next->area == b->area,
                    "a segment belongs to one stream of one pool");
    const bool is_idle = b->state == ALLOCATOR_FREE || b->state == ALLOCATOR_UNMAPPED;
    ALLOCATOR_HOLDS(!is_idle || next->state != b->state,
                    "free blocks side by side are one");
    if (b->area != NT_NONE &&
        (b->state == ALLOCATOR_UNMAPPED) != (next->state == ALLOCATOR_UNMAPPED)) {
        const uint64_t page =
            nt_page_size(&model->options.settings, b->kind == NT_POOL_SMALL);
        ALLOCATOR_HOLDS((next->address - model->areas[b->area].address) % page == 0,
                        "whole pages are mapped");
    }
    return NULL;
}

static const char *
allocator_check_block(const nt_allocator *model, uint32_t block, allocator_tally *tally)
{
    const allocator_block *b = allocator_at(model, block);
    tally->seen++;
    ALLOCATOR_HOLDS(b->size != 0 && b->size % NT_MIN_BLOCK_SIZE == 0,
                    "sizes are multiples of 512");
    ALLOCATOR_HOLDS(b->address <= UINT64_MAX - b->size, "addresses do not wrap");
    if (b->state == ALLOCATOR_UNMAPPED) {
        tally->unmapped++;
        ALLOCATOR_HOLDS(b->area != NT_NONE, "only reservations have unmapped parts");
        ALLOCATOR_HOLDS(allocator_is_stored(model, block), "unmapped parts are stored");
        return allocator_check_neighbours(model, block);
    }
    tally->bytes[NT_METRIC_RESERVED] += b->size;
    if (b->state == ALLOCATOR_FREE) {
        tally->idle++;
        tally->loose += allocator_is_loose(model, b);
        tally->placed += model->lanes[b->lane].has_places;
        tally->plain += model->lanes[b->lane].has_plain && b->area == NT_NONE;
        ALLOCATOR_HOLDS(allocator_is_stored(model, block), "free blocks are stored");
        return allocator_check_neighbours(model, block);
    }
    tally->active++;
    tally->bytes[NT_METRIC_ACTIVE] += b->size;
    tally->bytes[NT_METRIC_REQUESTED] += b->u.requested;
    if (b->state == ALLOCATOR_ALLOCATED) {
        tally->allocations++;
        tally->bytes[NT_METRIC_ALLOCATED] += b->size;
    } else {
        tally->pending++;
    }
    return allocator_check_neighbours(model, block);
}

static const char *
allocator_check_segment(const nt_allocator *model, uint32_t head,
                        allocator_tally *tally, nt_ordered *spans)
{
    const allocator_block *first = allocator_at(model, head);
    uint64_t end = first->address;
    for (uint32_t i = head; i != NT_NONE; i = allocator_at(model, i)->after) {
        const char *broken = allocator_check_block(model, i, tally);
        if (broken != NULL) {
            return broken;
        }
        ALLOCATOR_HOLDS(tally->seen <= model->block_count, "segments have an end");
        end += allocator_at(model, i)->size;
    }
    if (first->area == NT_NONE) {
        tally->segments++;
    } else {
        const allocator_area *area = &model->areas[first->area];
        ALLOCATOR_HOLDS(area->address == first->address &&
                            area->size == end - first->address,
                        "a reservation is covered by its blocks");
    }
    const nt_ordered_entry below = nt_ordered_before(spans, end, 0);
    ALLOCATOR_HOLDS(below.value == NT_NONE || below.second <= first->address,
                    "segments do not overlap");
    const nt_alloc alloc = nt_alloc_system();
    ALLOCATOR_HOLDS(nt_ordered_add(spans, &alloc,
                                   (nt_ordered_entry){first->address, end, head},
                                   NULL) == NT_OK,
                    "there is memory for the check");
    return NULL;
}

static const char *
allocator_check_pending(const nt_allocator *model, uint64_t expected)
{
    uint64_t count = 0;
    uint32_t earlier = NT_NONE;
    for (uint32_t i = model->first_pending; i != NT_NONE;
         i = allocator_at(model, i)->later) {
        const allocator_block *b = allocator_at(model, i);
        ALLOCATOR_HOLDS(b->state == ALLOCATOR_PENDING && b->earlier == earlier &&
                            ++count <= expected,
                        "the queue holds what is pending");
        earlier = i;
    }
    ALLOCATOR_HOLDS(count == expected && model->last_pending == earlier,
                    "all that is pending is in the queue");
    return NULL;
}

static const char *
allocator_check_pools(const nt_allocator *model, const allocator_tally *tally)
{
    size_t loose = 0, lanes_loose = 0, pending = 0, loose_pools = 0, listed = 0;
    size_t placed = 0, plain = 0;
    for (size_t i = 0; i < model->pool_count; i++) {
        const allocator_pool *pool = &model->pools[i];
        loose += pool->loose;
        pending += pool->pending;
        loose_pools += pool->released != 0 && pool->loose != 0;
    }
    for (uint32_t i = model->first_loose; i != NT_NONE && listed < loose_pools;
         i = model->pools[i].after) {
        ALLOCATOR_HOLDS(model->pools[i].released != 0 && model->pools[i].loose != 0,
                        "pools with something to give back are listed");
        listed++;
    }
    for (size_t i = 0; i < model->lane_count; i++) {
        const allocator_lane *lane = &model->lanes[i];
        placed += lane->places.count;
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            plain += lane->plain[kind].count;
            lanes_loose += lane->loose[kind].count;
            ALLOCATOR_HOLDS(lane->is_listed[kind] || lane->loose[kind].count == 0,
                            "lanes with something to give back are listed");
        }
    }
    ALLOCATOR_HOLDS(placed == tally->placed && plain == tally->plain,
                    "what is kept apart is free");
    ALLOCATOR_HOLDS(loose == tally->loose && lanes_loose == loose &&
                        loose_pools == model->loose_pools && listed == loose_pools,
                    "what could be given back is counted");
    ALLOCATOR_HOLDS(pending == tally->pending, "what is pending is counted");
    return NULL;
}

static const char *
allocator_check_sums(const nt_allocator *model, const allocator_tally *tally)
{
    const nt_allocator_stats *stats = &model->stats;
    size_t used = 0, idle = 0, unmapped = 0;
    for (size_t i = 0; i < model->block_count; i++) {
        used += model->blocks[i].state != ALLOCATOR_UNUSED;
    }
    for (size_t i = 0; i < model->lane_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            const allocator_lane *lane = &model->lanes[i];
            ALLOCATOR_HOLDS(nt_ordered_check(&lane->idle[kind]) &&
                                nt_ordered_check(&lane->unmapped[kind]),
                            "sets are in order");
            idle += lane->idle[kind].count;
            unmapped += lane->unmapped[kind].count;
        }
    }
    const char *broken = allocator_check_pools(model, tally);
    if (broken != NULL) {
        return broken;
    }
    ALLOCATOR_HOLDS(used == tally->seen, "every block is in a segment");
    ALLOCATOR_HOLDS(idle == tally->idle && unmapped == tally->unmapped,
                    "sets hold nothing else");
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        ALLOCATOR_HOLDS(stats->bytes[metric] == tally->bytes[metric],
                        "figures are sums over the blocks");
        ALLOCATOR_HOLDS(stats->peak[metric] >= stats->bytes[metric],
                        "no figure is above its peak");
    }
    ALLOCATOR_HOLDS(stats->allocations == tally->allocations &&
                        stats->active == tally->active &&
                        stats->segments == tally->segments,
                    "counts are those of the blocks");
    return allocator_check_pending(model, tally->pending);
}

const char *
nt_allocator_check(const nt_allocator *model)
{
    allocator_tally tally = {.seen = 0};
    /* Not the model's memory, of which there may be no more. */
    const nt_alloc alloc = nt_alloc_system();
    nt_ordered spans = {.count = 0};
    const char *broken = NULL;
    for (uint32_t i = 0; i < model->block_count && broken == NULL; i++) {
        const allocator_block *b = allocator_at(model, i);
        if (b->state != ALLOCATOR_UNUSED && b->before == NT_NONE) {
            broken = allocator_check_segment(model, i, &tally, &spans);
        }
    }
    nt_ordered_clear(&spans, &alloc);
    return broken != NULL ? broken : allocator_check_sums(model, &tally);
}

/* From this version on a request that fails elsewhere looks into the pools that their
 * users lend for that. */
#define ALLOCATOR_LENDS NT_TORCH(2, 8)

/* From this one on private pools have expandable segments too. */
#define ALLOCATOR_EXPANDS_PRIVATE NT_TORCH(2, 5)
#define ALLOCATOR_NEWEST UINT32_MAX

/* Where the built-in policy begins: 0 is no address. */
#define ALLOCATOR_FIRST_PLACE NT_ROUND_LARGE

/* floor(fraction * bytes), as PyTorch does it in floating point. */
static uint64_t
allocator_fraction(double fraction, uint64_t bytes)
{
    return (uint64_t)(fraction * (double)bytes);
}

static void
allocator_find_limits(nt_allocator *model)
{
    const nt_allocator_options *options = &model->options;
    const nt_settings *settings = &options->settings;
    model->limit = options->limit != 0 ? options->limit : NT_UNLIMITED;
    if (options->limit == 0 && settings->per_process_memory_fraction < 1 &&
        options->device_total != 0) {
        model->limit = allocator_fraction(settings->per_process_memory_fraction,
                                          options->device_total);
    }
    model->gc_limit = NT_UNLIMITED;
    if (model->limit != NT_UNLIMITED && settings->garbage_collection_threshold > 0) {
        model->gc_limit =
            allocator_fraction(settings->garbage_collection_threshold, model->limit);
    }
    if (settings->garbage_collection_threshold > 0 ||
        settings->per_process_memory_fraction < 1) {
        /* It is not only held against requests, or is a share of the device. */
        model->stats.limit = (nt_allocator_span){model->limit, model->limit};
    }
    model->device_room = NT_LARGEST_DEVICE;
    if (options->device_total != 0) {
        model->device_room = options->device_total > options->device_other
                                 ? options->device_total - options->device_other
                                 : 0;
    }
}

void
nt_allocator_free(nt_allocator *model)
{
    if (model == NULL) {
        return;
    }
    const nt_alloc alloc = model->alloc;
    for (size_t i = 0; i < model->lane_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            nt_ordered_clear(&model->lanes[i].idle[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].loose[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].unmapped[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].plain[kind], &alloc);
        }
        nt_ordered_clear(&model->lanes[i].places, &alloc);
    }
    for (size_t i = 0; i < model->pool_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            nt_ordered_clear(&model->pools[i].loose_lanes[kind], &alloc);
        }
        NT_RELEASE(&alloc, model->pools[i].lanes, model->pools[i].lane_capacity);
    }
    NT_RELEASE(&alloc, model->blocks, model->block_capacity);
    NT_RELEASE(&alloc, model->lanes, model->lane_capacity);
    NT_RELEASE(&alloc, model->pools, model->pool_capacity);
    NT_RELEASE(&alloc, model->areas, model->area_capacity);
    NT_RELEASE(&alloc, model->found, model->found_capacity);
    nt_release(&alloc, model, sizeof *model);
}

nt_status
nt_allocator_add_pool(nt_allocator *model, unsigned flags, uint32_t *pool,
                      nt_error *err)
{
    NT_TRY(NT_GROW(&model->alloc, model->pools, model->pool_capacity,
                   model->pool_count + 1, err));
    *pool = (uint32_t)model->pool_count;
    model->pools[model->pool_count++] = (allocator_pool){.flags = flags};
    model->has_lenders |= (flags & NT_POOL_USE_ON_OOM) != 0;
    return NT_OK;
}

nt_status
nt_allocator_new(const nt_alloc *alloc, const nt_allocator_options *options,
                 nt_allocator **out, nt_error *err)
{
    if (options->device_total > NT_LARGEST_DEVICE ||
        options->settings.large_segment_size > NT_LARGEST_DEVICE) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "no device has more than 2^58 bytes");
    }
    nt_allocator *model;
    NT_TRY(NT_NEW(alloc, model, 1, err));
    *model = (nt_allocator){
        .alloc = *alloc,
        .options = *options,
        .next_place = ALLOCATOR_FIRST_PLACE,
        .unused = NT_NONE,
        .unused_area = NT_NONE,
        .first_pending = NT_NONE,
        .last_pending = NT_NONE,
        .first_loose = NT_NONE,
        .stats = {.limit.most = NT_UNLIMITED,
                  .room.most = NT_UNLIMITED,
                  .reserve.most = NT_UNLIMITED},
    };
    if (model->options.version == 0) {
        model->options.version = ALLOCATOR_NEWEST;
    }
    allocator_find_limits(model);
    uint32_t pool;
    const nt_status status = nt_allocator_add_pool(model, 0, &pool, err);
    if (status != NT_OK) {
        nt_allocator_free(model);
        return status;
    }
    *out = model;
    return NT_OK;
}

void
nt_allocator_release_pool(nt_allocator *model, uint32_t pool, bool is_released)
{
    allocator_pool *p = &model->pools[pool];
    if (p->released != 0 && p->loose != 0) {
        allocator_unlist_pool(model, pool);
    }
    p->released = is_released ? ++model->releases : 0;
    if (p->released != 0 && p->loose != 0) {
        allocator_list_pool(model, pool);
    }
}

nt_status
nt_allocator_add_lane(nt_allocator *model, uint32_t pool, uint64_t stream,
                      uint32_t *lane, nt_error *err)
{
    allocator_pool *p = &model->pools[pool];
    NT_TRY(NT_GROW(&model->alloc, model->lanes, model->lane_capacity,
                   model->lane_count + 1, err));
    NT_TRY(NT_GROW(&model->alloc, p->lanes, p->lane_capacity, p->lane_count + 1, err));
    p->lanes[p->lane_count++] = (uint32_t)model->lane_count;
    *lane = (uint32_t)model->lane_count;
    model->lanes[model->lane_count++] =
        (allocator_lane){.pool = pool, .stream = stream};
    return NT_OK;
}

void
nt_allocator_set_capturing(nt_allocator *model, bool is_capturing)
{
    model->is_capturing = is_capturing;
}

/* What PyTorch counts a block as, when it decides which of them fits best. */
static uint64_t
allocator_expandable_size(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = allocator_at(model, block);
    const uint32_t after = b->after;
    return after != NT_NONE && model->blocks[after].state == ALLOCATOR_UNMAPPED
               ? b->size + model->blocks[after].size
               : b->size;
}

/* Whether what is unmapped behind a block is the end of its reservation. */
static bool
allocator_has_end(const nt_allocator *model, uint32_t block)
{
    const uint32_t after = allocator_at(model, block)->after;
    return after != NT_NONE && model->blocks[after].state == ALLOCATOR_UNMAPPED &&
           model->blocks[after].after == NT_NONE;
}

/* Whether a block is smaller than another, as PyTorch counts them; one may be larger by
 * the end of its reservation. */
static bool
allocator_is_smaller(nt_allocator *model, uint32_t block, uint32_t other)
{
    const uint64_t a = allocator_expandable_size(model, block);
    const uint64_t b = allocator_expandable_size(model, other);
    const bool has_end = allocator_has_end(model, block);
    if (has_end != allocator_has_end(model, other)) {
        const uint32_t end = has_end ? block : other;
        const uint64_t ends = has_end ? a : b, not_ends = has_end ? b : a;
        if (ends >= not_ends) {
            allocator_note_less(model, end, ends - not_ends - (ends > not_ends));
        }
        if (ends <= not_ends) {
            allocator_note_more(model, end, not_ends - ends);
        }
    }
    return a < b;
}

/* The best fit among the free blocks of the request's stream, or NT_NONE. */
static uint32_t
allocator_look_up(nt_allocator *model, const allocator_request *request)
{
    const allocator_lane *lane = &model->lanes[request->lane];
    const nt_ordered *set = lane->has_plain && !request->expands
                                ? &lane->plain[request->kind]
                                : &lane->idle[request->kind];
    nt_ordered_entry best = nt_ordered_from(set, request->rounded, 0);
    while (best.value != NT_NONE && model->blocks[best.value].area != NT_NONE) {
        const nt_ordered_entry next = nt_ordered_after(set, best.first, best.second);
        if (request->expands &&
            (next.value == NT_NONE ||
             !allocator_is_smaller(model, next.value, best.value))) {
            break;
        }
        best = next;
    }
    return best.value != NT_NONE &&
                   nt_may_use(&model->options.settings, best.first, request->rounded)
               ? best.value
               : NT_NONE;
}

/* The same, counted as a search. */
static uint32_t
allocator_find(nt_allocator *model, const allocator_request *request)
{
    if (model->gc_limit != NT_UNLIMITED) {
        model->pools[request->pool].calls[request->kind]++;
    }
    return allocator_look_up(model, request);
}

/* A free block of the request's stream, taken out of one of the pools that lend theirs;
 * there it is served as if segments did not expand. */
static uint32_t
allocator_borrow(nt_allocator *model, allocator_request *request)
{
    if (!model->has_lenders || request->pool != NT_DEFAULT_POOL ||
        model->options.version < ALLOCATOR_LENDS) {
        return NT_NONE;
    }
    const uint64_t stream = model->lanes[request->lane].stream;
    for (uint32_t pool = NT_DEFAULT_POOL + 1; pool < model->pool_count; pool++) {
        const allocator_pool *p = &model->pools[pool];
        for (size_t i = 0; (p->flags & NT_POOL_USE_ON_OOM) && i < p->lane_count; i++) {
            if (model->lanes[p->lanes[i]].stream == stream) {
                allocator_request other = *request;
                other.lane = p->lanes[i];
                other.pool = pool;
                other.expands = false;
                const uint32_t block = allocator_find(model, &other);
                if (block != NT_NONE) {
                    allocator_unstore(model, block);
                    *request = other;
                    return block;
                }
            }
        }
    }
    return NT_NONE;
}

/* No free block serves the request: the steps that PyTorch takes, in their order. */
static nt_status
allocator_struggle(nt_allocator *model, allocator_request *request, uint32_t *block,
                   nt_error *err)
{
    bool enough;
    NT_TRY(allocator_collect(model, err));
    NT_TRY(allocator_open(model, request, block, err));
    if (*block == NT_NONE) {
        *block = allocator_borrow(model, request);
    }
    if (*block == NT_NONE) {
        allocator_release_oversize(model, request, &enough);
        if (enough) {
            NT_TRY(allocator_open(model, request, block, err));
        }
    }
    if (*block == NT_NONE && !model->is_capturing && request->pool == NT_DEFAULT_POOL) {
        NT_TRY(allocator_release_cache(model, err));
        model->stats.retries++;
        NT_TRY(allocator_open(model, request, block, err));
    }
    if (*block == NT_NONE) {
        model->stats.ooms++;
        allocator_tell(model, NT_ACTION_OOM, request->lane, 0, request->rounded,
                       NT_NONE);
    }
    return NT_OK;
}

/* The found block becomes one in use. */
static void
allocator_hand_out(nt_allocator *model, uint32_t block, uint64_t nbytes, uint32_t tag)
{
    allocator_block *b = allocator_at(model, block);
    b->state = ALLOCATOR_ALLOCATED;
    b->u.requested = nbytes;
    b->tag = tag;
    allocator_rise(model, NT_METRIC_ALLOCATED, b->size);
    allocator_rise(model, NT_METRIC_ACTIVE, b->size);
    allocator_rise(model, NT_METRIC_REQUESTED, nbytes);
    model->stats.allocations++;
    model->stats.active++;
}

/* Keeps the first `size` bytes of the found block; the others are free. */
static nt_status
allocator_split(nt_allocator *model, uint32_t *block, uint64_t size, nt_error *err)
{
    const uint32_t rest = *block;
    NT_TRY(allocator_cut(model, rest, size, block, err));
    return allocator_store(model, rest, err);
}

/* Whether the rest of the found block is worth a block of its own. */
static bool
allocator_has_rest(const nt_allocator *model, const allocator_request *request,
                   uint32_t block)
{
    const allocator_block *found = allocator_at(model, block);
    const allocator_pool *pool = &model->pools[model->lanes[found->lane].pool];
    return !(pool->flags & NT_POOL_NO_SPLIT) &&
           nt_should_split(&model->options.settings, found->size, request->rounded,
                           request->kind == NT_POOL_SMALL, request->expands);
}

static nt_status
allocator_make_request(const nt_allocator *model, uint32_t lane, uint64_t nbytes,
                       allocator_request *out, nt_error *err)
{
    if (nbytes == 0 || nbytes > NT_LARGEST_REQUEST) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a request must be for 1 to 2^60 bytes");
    }
    const nt_settings *settings = &model->options.settings;
    const uint64_t rounded = nt_round_size(settings, nbytes);
    const uint32_t pool = model->lanes[lane].pool;
    *out = (allocator_request){
        .lane = lane,
        .pool = pool,
        .kind = nt_is_small(rounded) ? NT_POOL_SMALL : NT_POOL_LARGE,
        .rounded = rounded,
        .segment = nt_segment_size(settings, rounded),
        .expands = settings->expandable_segments &&
                   !(model->pools[pool].flags & NT_POOL_OWN_ALLOCATOR) &&
                   (pool == NT_DEFAULT_POOL ||
                    model->options.version >= ALLOCATOR_EXPANDS_PRIVATE),
    };
    return NT_OK;
}

nt_status
nt_allocator_malloc(nt_allocator *model, uint32_t lane, uint64_t nbytes, uint32_t tag,
                    uint32_t *block, nt_error *err)
{
    allocator_request request;
    NT_TRY(allocator_make_request(model, lane, nbytes, &request, err));
    uint32_t found = allocator_find(model, &request);
    const bool is_stored = found != NT_NONE;
    if (!is_stored) {
        NT_TRY(allocator_struggle(model, &request, &found, err));
    }
    if (found != NT_NONE) {
        const bool has_rest = allocator_has_rest(model, &request, found);
        if (has_rest && is_stored) {
            const allocator_block was = *allocator_at(model, found);
            const uint32_t rest = found;
            NT_TRY(allocator_cut(model, rest, request.rounded, &found, err));
            NT_TRY(allocator_rekey(model, &was, rest, err));
        } else if (has_rest) {
            NT_TRY(allocator_split(model, &found, request.rounded, err));
        } else if (is_stored) {
            allocator_unstore(model, found);
        }
        allocator_hand_out(model, found, nbytes, tag);
    }
    *block = found;
    return NT_OK;
}

/* The free block of the lane that covers the range; or NT_NONE. */
static nt_status
allocator_find_cover(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint64_t size, uint32_t *block, nt_error *err)
{
    NT_TRY(allocator_find_below(model, lane, address, block, err));
    if (*block != NT_NONE) {
        const allocator_block *b = allocator_at(model, *block);
        if (size > b->size || address - b->address > b->size - size) {
            *block = NT_NONE;
        }
    }
    return NT_OK;
}

bool
nt_allocator_leads_to(nt_allocator *model, uint32_t lane, uint64_t nbytes,
                      uint64_t address)
{
    allocator_request request;
    if (allocator_make_request(model, lane, nbytes, &request, NULL) != NT_OK) {
        return false;
    }
    const uint32_t fit = allocator_look_up(model, &request);
    return fit != NT_NONE && allocator_at(model, fit)->address == address;
}

nt_status
nt_allocator_restore(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint64_t nbytes, uint32_t tag, uint32_t *block, nt_error *err)
{
    allocator_request request;
    NT_TRY(allocator_make_request(model, lane, nbytes, &request, err));
    /* What is put back is a block as it was: its size is not rounded again, and where a
     * small segment was free for more than a small request, it stays in it. */
    const bool is_block =
        address % NT_MIN_BLOCK_SIZE == 0 && nbytes % NT_MIN_BLOCK_SIZE == 0;
    const uint64_t size = is_block ? nbytes : request.rounded;
    const bool is_other =
        size != request.rounded || !nt_allocator_leads_to(model, lane, nbytes, address);
    uint32_t found = NT_NONE;
    if (is_other && address % NT_MIN_BLOCK_SIZE == 0) {
        NT_TRY(allocator_find_cover(model, lane, address, size, &found, err));
    }
    if (found == NT_NONE) {
        *block = NT_NONE;
        return NT_OK;
    }
    allocator_unstore(model, found);
    const uint64_t before = address - allocator_at(model, found)->address;
    if (before != 0) {
        uint32_t low;
        NT_TRY(allocator_cut(model, found, before, &low, err));
        NT_TRY(allocator_store(model, low, err));
    }
    if (allocator_at(model, found)->size > size) {
        NT_TRY(allocator_split(model, &found, size, err));
    }
    allocator_hand_out(model, found, nbytes, tag);
    *block = found;
    return NT_OK;
}

nt_status
nt_allocator_give(nt_allocator *model, uint32_t block, nt_error *err)
{
    model->stats.bytes[NT_METRIC_ALLOCATED] -= allocator_at(model, block)->size;
    model->stats.allocations--;
    return allocator_settle(model, block, err);
}

void
nt_allocator_give_later(nt_allocator *model, uint32_t block)
{
    allocator_block *b = allocator_at(model, block);
    model->stats.bytes[NT_METRIC_ALLOCATED] -= b->size;
    model->stats.allocations--;
    b->state = ALLOCATOR_PENDING;
    allocator_enqueue(model, block);
}

nt_status
nt_allocator_empty_cache(nt_allocator *model, nt_error *err)
{
    /* During a capture nothing may be waited for. */
    return model->is_capturing ? allocator_release_private(model, err)
                               : allocator_release_cache(model, err);
}

bool
nt_allocator_is_lean(const nt_allocator *model, uint32_t pool)
{
    const allocator_pool *p = &model->pools[pool];
    if (pool != NT_DEFAULT_POOL) {
        return p->loose == 0 && p->pending == 0;
    }
    return p->loose == 0 && model->loose_pools == 0 && model->first_pending == NT_NONE;
}

nt_status
nt_allocator_empty_pool(nt_allocator *model, uint32_t pool, nt_error *err)
{
    nt_allocator_release_pool(model, pool, true);
    return allocator_release_one(model, pool, err);
}

uint64_t
nt_allocator_address(const nt_allocator *model, uint32_t block)
{
    return allocator_at(model, block)->address;
}

uint64_t
nt_allocator_size(const nt_allocator *model, uint32_t block)
{
    return allocator_at(model, block)->size;
}

uint64_t
nt_allocator_requested(const nt_allocator *model, uint32_t block)
{
    return allocator_at(model, block)->u.requested;
}

uint32_t
nt_allocator_lane(const nt_allocator *model, uint32_t block)
{
    return allocator_at(model, block)->lane;
}

const nt_allocator_stats *
nt_allocator_get_stats(const nt_allocator *model)
{
    return &model->stats;
}
