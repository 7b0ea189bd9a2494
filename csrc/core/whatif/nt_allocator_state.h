/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model holds, shared by its files and by nobody else: nt_allocator.c (the
 * public calls), nt_allocator_blocks.c (blocks, their neighbours and the free ones),
 * nt_allocator_segments.c (memory from and to the device), nt_allocator_release.c
 * (what is given back when memory is short), nt_allocator_expandable.c and
 * nt_allocator_layout.c.
 */
#ifndef NT_ALLOCATOR_STATE_H
#define NT_ALLOCATOR_STATE_H

#include "whatif/nt_allocator.h"
#include "base/nt_ordered.h"
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
nt_allocator_block(const nt_allocator *model, uint32_t block)
{
    return &model->blocks[block];
}

/* Whether it has a neighbour in its segment. */
static inline bool
nt_allocator_is_split(const allocator_block *block)
{
    return block->before != NT_NONE || block->after != NT_NONE;
}

static inline void
nt_allocator_tell(const nt_allocator *model, nt_action action, uint32_t lane,
                  uint64_t address, uint64_t size, uint32_t tag)
{
    if (model->options.observer.tell != NULL) {
        model->options.observer.tell(model->options.observer.ctx, action, lane, address,
                                     size, tag);
    }
}

static inline void
nt_allocator_rise(nt_allocator *model, nt_metric metric, uint64_t bytes)
{
    nt_allocator_stats *stats = &model->stats;
    stats->bytes[metric] += bytes;
    if (stats->bytes[metric] > stats->peak[metric]) {
        stats->peak[metric] = stats->bytes[metric];
    }
}

/* Blocks. ---------------------------------------------------------------- */

/* A new row between `before` and `after`, which may be NT_NONE. */
nt_status
nt_allocator_add_block(nt_allocator *model, const allocator_block *block, uint32_t *out,
                       nt_error *err) NT_CHECKED;
void
nt_allocator_drop_block(nt_allocator *model, uint32_t block);

/* Puts a pool among those that are released and have loose blocks, or takes it out. */
void
nt_allocator_list_pool(nt_allocator *model, uint32_t pool);
void
nt_allocator_unlist_pool(nt_allocator *model, uint32_t pool);

/* Puts a free block among those of its lane, or takes it out. */
nt_status
nt_allocator_store(nt_allocator *model, uint32_t block, nt_error *err) NT_CHECKED;
void
nt_allocator_unstore(nt_allocator *model, uint32_t block);
/* The same for what is unmapped. */
nt_status
nt_allocator_store_unmapped(nt_allocator *model, uint32_t block,
                            nt_error *err) NT_CHECKED;

/* Whether a release would give something of a free block back: it is a whole segment,
 * or has a whole page of an expandable one in it. */
bool
nt_allocator_is_loose(const nt_allocator *model, const allocator_block *block);

/* Keeps the free blocks of the lane's ordinary segments apart from now on. */
nt_status
nt_allocator_part_plain(nt_allocator *model, uint32_t lane, nt_error *err) NT_CHECKED;

/* The free block of a lane that begins at `address`, or as the next one below; NT_NONE
 * where there is none. */
nt_status
nt_allocator_find_below(nt_allocator *model, uint32_t lane, uint64_t address,
                        uint32_t *block, nt_error *err) NT_CHECKED;

/* Cuts the lowest `size` bytes off `block` as a new block of the same state, which is
 * in no set; `block` must not be in one either. */
nt_status
nt_allocator_cut(nt_allocator *model, uint32_t block, uint64_t size, uint32_t *low,
                 nt_error *err) NT_CHECKED;

/* Joins `block`, which is in no set, with neighbours of the same state. */
void
nt_allocator_merge(nt_allocator *model, uint32_t block);

/* A block in use becomes free; `block` is no name of it any more. */
nt_status
nt_allocator_settle(nt_allocator *model, uint32_t block, nt_error *err) NT_CHECKED;

/* Takes a block out of the queue of pending ones, or puts it at the end. */
void
nt_allocator_enqueue(nt_allocator *model, uint32_t block);
void
nt_allocator_dequeue(nt_allocator *model, uint32_t block);

/* Memory from the device. ------------------------------------------------ */

/* Whether the device has `bytes` more for this process. */
bool
nt_allocator_has_room(const nt_allocator *model, uint64_t bytes);
nt_status
nt_allocator_take_place(nt_allocator *model, const nt_allocator_need *need,
                        uint64_t *address, nt_error *err) NT_CHECKED;
void
nt_allocator_give_place(nt_allocator *model, uint64_t address, uint64_t size);

/* Gives the segment of a free, unsplit block back; the block is gone. */
void
nt_allocator_release_segment(nt_allocator *model, uint32_t block);

/* A row of its own for an address range. */
nt_status
nt_allocator_add_area(nt_allocator *model, const allocator_area *area, uint32_t *out,
                      nt_error *err) NT_CHECKED;

/* New memory for a request; *block is free, in no set, and may be larger than the
 * request; NT_NONE if there is none. */
nt_status
nt_allocator_open(nt_allocator *model, const allocator_request *request,
                  uint32_t *block, nt_error *err) NT_CHECKED;

/* The same in an expandable segment. */
nt_status
nt_allocator_expand(nt_allocator *model, const allocator_request *request,
                    uint32_t *block, nt_error *err) NT_CHECKED;
/* Unmaps the whole pages of a free block; a reservation of which nothing is mapped
 * then goes. */
nt_status
nt_allocator_unmap(nt_allocator *model, uint32_t block, nt_error *err) NT_CHECKED;

/* Memory given back. ----------------------------------------------------- */

/* Collects garbage, where the settings and the limit say so. */
nt_status
nt_allocator_collect(nt_allocator *model, nt_error *err) NT_CHECKED;

/* Releases oversize blocks of the request's stream; *enough says whether the bytes
 * that max_split_size asks for came together. */
void
nt_allocator_release_oversize(nt_allocator *model, const allocator_request *request,
                              bool *enough);

/* Waits for all streams, and gives back all that can be. */
nt_status
nt_allocator_release_cache(nt_allocator *model, nt_error *err) NT_CHECKED;
/* Gives back what can be of the private pools that nobody uses any more. */
nt_status
nt_allocator_release_private(nt_allocator *model, nt_error *err) NT_CHECKED;
/* Waits for the blocks of one private pool, and gives back what can be of it. */
nt_status
nt_allocator_release_one(nt_allocator *model, uint32_t pool, nt_error *err) NT_CHECKED;

#endif
