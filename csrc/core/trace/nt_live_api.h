/* SPDX-License-Identifier: Apache-2.0 */
/* What the core and the shim on c10 give each other. The binding hands the shim a
 * capsule with an `nt_live_api`; the shim hands an `nt_live_source` back. Neither is
 * linked with the other, and no state is held twice. C and C++, without Python.
 *
 * Functions return 0 on success unless they say otherwise; none of them throws. "The
 * producer" is the thread that holds the lock of the ring's device: what is marked so
 * takes no memory and no lock, and may be called inside the allocator. */
#ifndef NT_LIVE_API_H
#define NT_LIVE_API_H

#include "base/nt_ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when anything in this header or in nt_ring.h changes. A shim built for another
 * number is built anew. */
#define NT_LIVE_API_VERSION 6
#define NT_LIVE_CAPSULE "neutracer._core.live_api"

/* PyTorch's trace actions, in its order. */
typedef enum nt_live_action {
    NT_LIVE_ALLOC,
    NT_LIVE_FREE_REQUESTED,
    NT_LIVE_FREE_COMPLETED,
    NT_LIVE_SEGMENT_ALLOC,
    NT_LIVE_SEGMENT_FREE,
    NT_LIVE_SEGMENT_MAP,
    NT_LIVE_SEGMENT_UNMAP,
    NT_LIVE_SNAPSHOT,
    NT_LIVE_OOM,
    NT_LIVE_ANNOTATE, /* torch 2.14 */
} nt_live_action;

/* Flag of an entry from an allocator without segments (PyTorch's on the CPU): its
 * blocks are segments of one block each. Only ALLOC and FREE_COMPLETED are pushed; a
 * drained ALLOC becomes segment_alloc and alloc, a FREE_COMPLETED becomes
 * free_requested, free_completed and segment_free. */
#define NT_LIVE_FLAG_BARE 1u

typedef enum nt_live_device_type { NT_LIVE_CUDA, NT_LIVE_CPU } nt_live_device_type;

/* memory_stats() figures. Order of metrics as in snapshots' pool figures. */
typedef enum nt_live_metric {
    NT_LIVE_ALLOCATION,
    NT_LIVE_SEGMENT,
    NT_LIVE_ACTIVE,
    NT_LIVE_INACTIVE_SPLIT,
    NT_LIVE_ALLOCATED_BYTES,
    NT_LIVE_RESERVED_BYTES,
    NT_LIVE_ACTIVE_BYTES,
    NT_LIVE_INACTIVE_SPLIT_BYTES,
    NT_LIVE_REQUESTED_BYTES,
    NT_LIVE_METRICS,
} nt_live_metric;

typedef enum nt_live_pool {
    NT_LIVE_ALL_POOLS,
    NT_LIVE_SMALL_POOL,
    NT_LIVE_LARGE_POOL,
    NT_LIVE_POOLS,
} nt_live_pool;

typedef struct nt_live_stat {
    int64_t current, peak, allocated, freed;
} nt_live_stat;

typedef struct nt_live_stats {
    nt_live_stat metric[NT_LIVE_METRICS][NT_LIVE_POOLS];
    nt_live_stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams;
    int64_t num_device_alloc, num_device_free;
    int64_t max_split_size; /* bytes; -1: unlimited */
} nt_live_stats;

/* What a sampler keeps of nt_live_stats, of all pools together: a tenth of the bytes.
 */
typedef struct nt_live_brief {
    int64_t allocated_bytes, reserved_bytes, active_bytes;
    int64_t inactive_split_bytes, requested_bytes;
    int64_t peak_allocated_bytes, peak_reserved_bytes;
    int64_t ever_reserved_bytes; /* 0: the device was never used */
    int64_t num_alloc_retries, num_ooms;
} nt_live_brief;

/* What a device has now, of all pools together, and the most that it had in a span:
 * since the call before. None of PyTorch's own peaks is read or reset for it. */
typedef struct nt_live_span {
    int64_t allocated_bytes, reserved_bytes;
    int64_t peak_allocated_bytes, peak_reserved_bytes;
    int64_t num_alloc_retries, num_ooms;
    int64_t allocations, frees; /* ever, each an event of a trace */
} nt_live_span;

typedef struct nt_live_segment {
    uint64_t address;
    uint64_t total_size, allocated_size, active_size, requested_size;
    uint64_t stream;
    uint64_t pool_first, pool_second;
    int32_t device;
    uint8_t is_large;
    uint8_t is_expandable;
} nt_live_segment;

/* `state`: 0 inactive, 1 active_allocated, 2 active_pending_free. The stack, where the
 * ring knows it, is found by the builder. */
typedef struct nt_live_block {
    uint64_t address;
    uint64_t size, requested_size;
    uint8_t state;
} nt_live_block;

/* A layout under construction. Once a call has failed, all later ones fail, and whoever
 * began it learns why: stop and return non-zero. */
typedef struct nt_live_builder nt_live_builder;

/* Blocks of an allocator that keeps no list of them, by address: a table of fixed size.
 * For one thread at a time. */
typedef struct nt_live_blocks nt_live_blocks;

/* What `_core` gives `_torch`. Valid for the rest of the process. */
typedef struct nt_live_api {
    uint32_t version; /* NT_LIVE_API_VERSION */
    uint32_t size;    /* sizeof(nt_live_api) */

    /* A ring that holds the last `events` events or more; with `frames` it has tables
     * for stacks. NULL when there is no memory. Its memory is touched here. */
    nt_ring *(*ring_new)(uint64_t events, int frames);
    /* Only when no producer and no reader can have it any more; NULL is fine. */
    void (*ring_free)(nt_ring *ring);
    /* Events pushed from now on do not continue those pushed before. `late`: 0 only if
     * the device had never allocated anything. While nobody pushes. */
    void (*ring_restart)(nt_ring *ring, int late);

    /* The producer's. The id of a stack that nt_ring_find_stack did not find; innermost
     * frame first, at most NT_RING_FRAMES. NT_RING_NONE, and counted, when the tables
     * are full or `describe` fails. */
    uint32_t (*ring_add_stack)(nt_ring *ring, const nt_ring_frame *frames, size_t count,
                               const uint64_t print[2], nt_ring_describe describe);
    /* The producer's. The id of a text of UTF-8; NT_RING_NONE, and counted, when full.
     * Id 0 is the empty text in every ring. */
    uint32_t (*ring_add_text)(nt_ring *ring, const char *text, size_t length);

    /* Filling a layout, inside of nt_live_source.layout; see there. */
    int (*set_mark)(nt_live_builder *builder, int32_t device, const nt_ring *ring,
                    uint64_t head);
    int (*add_segment)(nt_live_builder *builder, const nt_live_segment *segment);
    /* A block of the segment added last, in the order of addresses. */
    int (*add_block)(nt_live_builder *builder, const nt_live_block *block);
    /* A bare block: a segment and its one block, with its own stack (of the marked ring
     * of its device, or NT_RING_NONE). */
    int (*add_bare)(nt_live_builder *builder, int32_t device, uint64_t address,
                    uint64_t size, uint32_t stack);
    /* Entries of allocator_settings, under PyTorch's keys. */
    int (*set_bool)(nt_live_builder *builder, const char *key, int value);
    int (*set_int)(nt_live_builder *builder, const char *key, int64_t value);
    int (*set_real)(nt_live_builder *builder, const char *key, double value);
    int (*set_text)(nt_live_builder *builder, const char *key, const char *text,
                    size_t length);
    /* roundup_power2_divisions, from "1" MB on, doubling. */
    int (*set_roundup)(nt_live_builder *builder, const uint64_t *divisions,
                       size_t count);

    /* Room for `most` blocks, touched here; NULL when there is no memory. */
    nt_live_blocks *(*blocks_new)(uint64_t most);
    void (*blocks_free)(nt_live_blocks *blocks);
    void (*blocks_clear)(nt_live_blocks *blocks);
    /* The producer's. -1, and counted, when full; a block that is there is replaced. */
    int (*blocks_add)(nt_live_blocks *blocks, uint64_t address, uint64_t size,
                      uint32_t stack);
    /* The producer's. Its size in bytes, or 0 for a block that is not there. */
    uint64_t (*blocks_remove)(nt_live_blocks *blocks, uint64_t address);
    /* add_bare for every block, in the order of addresses. A copy made under the
     * producer's lock keeps that short. */
    int (*blocks_emit)(const nt_live_blocks *blocks, nt_live_builder *builder,
                       int32_t device);
    /* What is in it now, to be emitted and freed, nothing else; NULL without memory. */
    nt_live_blocks *(*blocks_copy)(const nt_live_blocks *blocks);
    uint64_t (*blocks_count)(const nt_live_blocks *blocks);
} nt_live_api;

/* What `_torch` gives `_core`: functions that any native thread may call, without the
 * GIL, at any time until the process ends. `ctx` is handed back to each. A function
 * that can't be offered is NULL. */
typedef struct nt_live_source {
    uint32_t version; /* NT_LIVE_API_VERSION */
    uint32_t size;    /* sizeof(nt_live_source) */
    void *ctx;

    /* Devices whose figures are available; 0 before CUDA is initialised. */
    int (*device_count)(void *ctx);
    int (*device_stats)(void *ctx, int32_t device, nt_live_stats *out);
    /* 1 before CUDA is initialised; any other number but 0 is a failure. */
    int (*device_brief)(void *ctx, int32_t device, nt_live_brief *out);
    /* Ends a device's span. With `follow` the next one begins, of all devices, which
     * costs a look at the figures at each allocation; without, none is followed until
     * then, and the peaks of the first span after that are its figures at its end. For
     * one caller, at one time. Results as those of device_brief. */
    int (*device_span)(void *ctx, int32_t device, int follow, nt_live_span *out);
    /* The share of the device that the allocator may have; 1.0 where nobody said. */
    double (*device_fraction)(void *ctx, int32_t device);
    /* Out-of-memory events seen by our observer since it was attached. */
    uint64_t (*oom_count)(void *ctx, int32_t device);

    /* The layout of all devices of a type: for each device that has a ring, set_mark
     * with the ring and its head at the very moment of the layout (before the marker's
     * own push), then its segments in the order of addresses with their blocks, and the
     * settings. Devices in ascending order. The ring must stay until `release`. */
    int (*layout)(void *ctx, nt_live_device_type type, nt_live_builder *builder);
    /* The rings that the last `layout` of this thread marked are no longer read. */
    void (*release)(void *ctx);
    /* An entry's ticks as microseconds since the epoch. */
    int64_t (*time_us)(void *ctx, nt_live_device_type type, uint64_t ticks);
} nt_live_source;

#ifdef __cplusplus
}
#endif

#endif
