/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragmentation of a layout: where the free bytes are, what keeps them apart,
 * and what would fit without asking the device. All sizes in bytes.
 */
#ifndef NT_FRAGMENT_H
#define NT_FRAGMENT_H

#include "base/nt_base.h"
#include "trace/nt_settings.h"
#include "trace/nt_snapshot.h"

/* An inactive block. Neighbours are rows of the layout's blocks, NT_NONE at the
 * border of the segment: they are what pins it. */
typedef struct nt_hole {
    uint32_t block;
    uint32_t segment;
    uint64_t address;
    uint64_t size;
    uint32_t before; /* row of the active block that ends where it begins */
    uint32_t after;  /* row of the active block that begins where it ends */
} nt_hole;

/* Sums over the segments of one device, private pool, stream and kind. */
typedef struct nt_fragment_group {
    int32_t device;
    nt_pool_id pool;
    uint64_t stream;
    uint8_t kind; /* nt_pool_kind */
    bool has_expandable;
    uint32_t segments, blocks, holes;
    uint64_t reserved, allocated, active, requested; /* requested: of active blocks */
    uint64_t pending;         /* active, not allocated */
    /* What empty_cache() gives back. 0 for private pools: theirs only goes back when
     * nobody uses the pool any more, which a layout does not tell. */
    uint64_t reclaimable;
    uint64_t largest_hole;
    uint64_t largest_request; /* that succeeds without the device; see nt_rounding */
} nt_fragment_group;

/* The same of one segment. `pinned_by` is the row of the smallest active block
 * in it (NT_NONE if it is all free). */
typedef struct nt_fragment_segment {
    uint32_t segment;
    uint32_t holes;
    uint64_t free_bytes;
    uint64_t largest_hole;
    uint64_t reclaimable;
    uint32_t pinned_by;
} nt_fragment_segment;

typedef struct nt_fragment nt_fragment;

/*
 * Looks at every segment of `layout` on `device` (all devices for a negative
 * one). The layout and settings are not kept. Holes come largest first, groups
 * by reserved bytes, segments in the layout's order.
 */
nt_status
nt_fragment_new(const nt_alloc *alloc, const nt_layout *layout,
                const nt_settings *settings, int32_t device, nt_fragment **out,
                nt_error *err) NT_CHECKED;
void
nt_fragment_free(nt_fragment *fragment);

const nt_hole *
nt_fragment_holes(const nt_fragment *fragment, size_t *count);
const nt_fragment_group *
nt_fragment_groups(const nt_fragment *fragment, size_t *count);
const nt_fragment_segment *
nt_fragment_segments(const nt_fragment *fragment, size_t *count);

/* Whether a request of `nbytes` on `stream` in the private pool `pool` of
 * `device` succeeds in a free block, without the device. */
bool
nt_fragment_fits(const nt_fragment *fragment, int32_t device, nt_pool_id pool,
                 uint64_t stream, uint64_t nbytes);

#endif
