/* SPDX-License-Identifier: Apache-2.0 */
/* A model of PyTorch's native CUDA caching allocator on one device: it serves requests
 * and frees by the same rules, from a device that is made of numbers only. Where the
 * driver would decide (the address of new memory), a policy does, which can be
 * replaced; where time would (when another stream is done with a block), the caller
 * does.
 *
 * The caller numbers what it deals with: a pool is the default one (number 0) or a
 * private one, a lane is one stream in one pool, and blocks are named by what malloc
 * returned until they are free. After a call that failed with another status than
 * NT_ARGUMENT the model can only be freed. */
#ifndef NT_ALLOCATOR_H
#define NT_ALLOCATOR_H

#include "base/nt_base.h"
#include "base/nt_map.h"
#include "trace/nt_events.h"
#include "trace/nt_layout.h"
#include "trace/nt_settings.h"
#include "trace/nt_timeline.h"

/* The number of the default pool; there from the start. */
#define NT_DEFAULT_POOL ((uint32_t)0)

/* A device can't have more bytes than this, and others can't hold more of it. */
#define NT_LARGEST_DEVICE (UINT64_C(1) << 58)

/* PyTorch 2.11 as a number; 0 is the newest one known. */
#define NT_TORCH(major, minor) ((uint32_t)(major) * 1000 + (minor))

/* New memory that needs an address. */
typedef struct nt_allocator_need {
    uint64_t size; /* bytes; of a reservation all that may ever be mapped in it */
    uint32_t lane;
    bool small;
    bool is_reservation; /* for an expandable segment; else a cudaMalloc */
} nt_allocator_need;

/* Gives addresses. `take` writes one where `size` bytes overlap nothing that is taken,
 * a multiple of 512, and below 2^63 with its end; it must not call the model. `give`
 * says that what was taken is free again. */
typedef struct nt_allocator_places {
    nt_status (*take)(void *ctx, const nt_allocator_need *need, uint64_t *address,
                      nt_error *err);
    void (*give)(void *ctx, uint64_t address, uint64_t size);
    void *ctx;
} nt_allocator_places;

/* Hears what the model does on its own, in the order in which PyTorch writes it into
 * its trace: segment_alloc, segment_free, segment_map, segment_unmap, oom (address 0,
 * the rounded request), and free_completed with the block's tag where the model waited
 * for a stream itself. It must not call the model. */
typedef struct nt_allocator_observer {
    void (*tell)(void *ctx, nt_action action, uint32_t lane, uint64_t address,
                 uint64_t size, uint32_t tag);
    void *ctx;
} nt_allocator_observer;

/* What the model stands for. All-zero but for the settings is an endless device. */
typedef struct nt_allocator_options {
    nt_settings settings;  /* per_process_memory_fraction below 1 makes a limit */
    uint32_t version;      /* of PyTorch: NT_TORCH(2, 11); 0: the newest known */
    uint64_t device_total; /* bytes of the device; 0: without bound */
    uint64_t device_other; /* of those, held by others or by CUDA itself */
    uint64_t limit;        /* of set_per_process_memory_fraction in bytes; 0: unset */
    nt_allocator_places places;     /* take NULL: each above all before it */
    nt_allocator_observer observer; /* tell NULL: nobody listens */
} nt_allocator_options;

/* Bytes that a bound may be and let through what it let through, and nothing else. */
typedef struct nt_allocator_span {
    uint64_t least, most;
} nt_allocator_span;

/* What PyTorch's memory_stats() counts, for both pools together; and what did not
 * matter to it. */
typedef struct nt_allocator_stats {
    uint64_t bytes[NT_METRIC_COUNT]; /* now */
    uint64_t peak[NT_METRIC_COUNT];  /* since the model was new, or since reset */
    uint64_t allocations, active;    /* blocks */
    uint64_t segments;               /* not expandable ones */
    uint64_t device_allocs, device_frees;
    uint64_t ooms, retries;
    uint64_t waits;          /* for all streams */
    nt_allocator_span limit; /* for PyTorch's limit; NT_UNLIMITED: none */
    nt_allocator_span room;  /* for the bytes that the device has for this process */
    nt_allocator_span
        reserve;    /* for nine eighths of the device, which reservations have
                     */
    bool has_order; /* some stream had several segments of one kind in a pool: their
                     * order decides between blocks of one size */
} nt_allocator_stats;

typedef struct nt_allocator nt_allocator;

nt_status
nt_allocator_new(const nt_alloc *alloc, const nt_allocator_options *options,
                 nt_allocator **out, nt_error *err) NT_CHECKED;
void
nt_allocator_free(nt_allocator *model);

/* A private pool's properties. */
enum {
    NT_POOL_OWN_ALLOCATOR = 1 << 0, /* the user's: its segments never expand */
    NT_POOL_NO_SPLIT = 1 << 1,
    NT_POOL_USE_ON_OOM = 1 << 2, /* its free blocks are a last resort for others */
};

/* A new private pool that somebody uses. Numbers count up by the calls. */
nt_status
nt_allocator_add_pool(nt_allocator *model, unsigned flags, uint32_t *pool,
                      nt_error *err) NT_CHECKED;

/* Nobody uses the pool any more (or somebody does again): what is cached in it goes
 * back to the device when the allocator gives its whole cache back; of several such
 * pools that which was released last goes last. */
void
nt_allocator_release_pool(nt_allocator *model, uint32_t pool, bool is_released);

/* A stream in a pool; at most one lane for each pair. Numbers count up from 0. */
nt_status
nt_allocator_add_lane(nt_allocator *model, uint32_t pool, uint64_t stream,
                      uint32_t *lane, nt_error *err) NT_CHECKED;

/* Whether a capture is under way from now on. A request in a private pool is always
 * part of one. */
void
nt_allocator_set_capturing(nt_allocator *model, bool is_capturing);

/* A request of `nbytes` (1 to NT_LARGEST_REQUEST, else NT_ARGUMENT). *block is the
 * block that serves it, or NT_NONE when memory ran out, which is NT_OK. `tag` is the
 * caller's. */
nt_status
nt_allocator_malloc(nt_allocator *model, uint32_t lane, uint64_t nbytes, uint32_t tag,
                    uint32_t *block, nt_error *err) NT_CHECKED;

/* Whether best fit would serve such a request of the lane from a free block that begins
 * at `address`. */
bool
nt_allocator_leads_to(nt_allocator *model, uint32_t lane, uint64_t nbytes,
                      uint64_t address);

/* A block that PyTorch puts back where it lay, as it does when it restores the private
 * pool of a captured graph: not by best fit, but at `address`, where the lane has the
 * bytes free. `nbytes` is the size of the block, which is not rounded again where it is
 * a multiple of 512. *block is NT_NONE where they are not free, or where a request
 * would get the same bytes there. */
nt_status
nt_allocator_restore(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint64_t nbytes, uint32_t tag, uint32_t *block,
                     nt_error *err) NT_CHECKED;

/* The user frees a block that no other stream uses: it can serve again at once. */
nt_status
nt_allocator_give(nt_allocator *model, uint32_t block, nt_error *err) NT_CHECKED;

/* The user frees a block that other streams use: it stays active until complete. */
void
nt_allocator_give_later(nt_allocator *model, uint32_t block);
/* The other streams are done with a block that was given later. */
nt_status
nt_allocator_complete(nt_allocator *model, uint32_t block, nt_error *err) NT_CHECKED;

/* The user's empty_cache(). */
nt_status
nt_allocator_empty_cache(nt_allocator *model, nt_error *err) NT_CHECKED;

/* Whether empty_cache() would change nothing: nothing waits for a stream, and nothing
 * that could be given back is free in the default pool, nor in one that nobody uses;
 * for a private pool, whether that holds of it. */
bool
nt_allocator_is_lean(const nt_allocator *model, uint32_t pool);

/* A pool's owner is gone: nobody uses the pool any more, and what is cached in it goes
 * back to the device. `pool` is a private one. */
nt_status
nt_allocator_empty_pool(nt_allocator *model, uint32_t pool, nt_error *err) NT_CHECKED;

/* A block in use: its address, and its size in bytes. */
uint64_t
nt_allocator_address(const nt_allocator *model, uint32_t block);
uint64_t
nt_allocator_size(const nt_allocator *model, uint32_t block);
/* The bytes that were requested, and where. */
uint64_t
nt_allocator_requested(const nt_allocator *model, uint32_t block);
uint32_t
nt_allocator_lane(const nt_allocator *model, uint32_t block);

const nt_allocator_stats *
nt_allocator_get_stats(const nt_allocator *model);

/* A state that is there before the first request. ------------------------- */

typedef enum nt_piece_state {
    NT_PIECE_FREE,
    NT_PIECE_ALLOCATED,
    NT_PIECE_PENDING,  /* given later, not complete */
    NT_PIECE_UNMAPPED, /* in a reservation only */
    NT_PIECE_STATE_COUNT,
} nt_piece_state;

/* A block, or a part of a reservation where nothing is mapped. */
typedef struct nt_allocator_piece {
    uint64_t size;      /* bytes, a multiple of 512 */
    uint64_t requested; /* of what is in use; at most its size */
    uint32_t tag;
    nt_piece_state state;
} nt_allocator_piece;

/* A segment, or with `is_reservation` the address range of an expandable one. */
typedef struct nt_allocator_area {
    uint64_t address;
    uint32_t lane;
    bool small, is_reservation;
    const nt_allocator_piece *pieces; /* by address, `count` (1 or more) of them */
    size_t count;
} nt_allocator_area;

/* Takes up memory as it is there, whatever the policy says. Pieces that are free or
 * unmapped do not touch each other, and what is mapped together in a reservation
 * consists of whole pages of it (nt_page_size): else NT_ARGUMENT, and nothing changed.
 * The blocks in use are written to `blocks`, which has room for `count`. */
nt_status
nt_allocator_adopt(nt_allocator *model, const nt_allocator_area *area, uint32_t *blocks,
                   nt_error *err) NT_CHECKED;

/* The bytes of address range that a reservation has on this device; 18 TiB on an
 * endless one. */
uint64_t
nt_allocator_reservation_size(const nt_allocator *model, bool small);

/* Looking at it. --------------------------------------------------------- */

/* Which block is where now, by address, as a snapshot would show it. Pools have their
 * numbers as {0, number}. The caller frees it with nt_allocator_layout_free. */
nt_status
nt_allocator_layout(const nt_allocator *model, nt_layout **out,
                    nt_error *err) NT_CHECKED;
void
nt_allocator_layout_free(const nt_allocator *model, nt_layout *layout);

/* Checks every invariant of the model, in time linear in its blocks; NULL, or the one
 * that does not hold, in words. */
const char *
nt_allocator_check(const nt_allocator *model);

#endif
