/* SPDX-License-Identifier: Apache-2.0 */
/* Fragmentation of a layout: where the free bytes are, what keeps them apart, and what
 * would fit without asking the device. All sizes in bytes. */
#ifndef NT_FRAGMENT_H
#define NT_FRAGMENT_H

#include "base/nt_base.h"
#include "trace/nt_settings.h"
#include "trace/nt_snapshot.h"

/* An inactive block. Neighbours are rows of the layout's blocks (NT_NONE at the border
 * of the segment, or where a truncated file lacks them): they are what pins it. */
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
    /* `requested` is that of the active blocks; `pending` is active, not allocated. */
    uint64_t reserved, allocated, active, requested, pending;
    /* What empty_cache() gives back: ordinary segments without an allocated block, and
     * the whole pages (nt_page_size) between the allocated blocks of expandable ones.
     * Pending blocks count as free: it waits for them. 0 for private pools: theirs only
     * goes back when nobody uses the pool any more, which a layout does not tell. */
    uint64_t reclaimable;
    uint64_t largest_hole;
    /* That succeeds without the device, in a hole as it stands: what lies behind it in
     * the address range of an expandable segment would have to be mapped first. */
    uint64_t largest_request;
} nt_fragment_group;

/* The same of one segment. `pinned_by` is the row of the smallest active block in it,
 * the first of several (NT_NONE if it is all free). */
typedef struct nt_fragment_segment {
    uint32_t segment;
    uint32_t holes;
    uint64_t free_bytes;
    uint64_t largest_hole;
    uint64_t reclaimable;
    uint32_t pinned_by;
} nt_fragment_segment;

typedef struct nt_fragment nt_fragment;

/* Looks at every segment of `layout` on `device` (all devices for a negative one). The
 * layout and settings are not kept. Holes come largest first, groups by reserved bytes,
 * both otherwise in the layout's order, as segments do. */
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

/* Whether a request of `nbytes` on `stream` of `device` succeeds in a free block of
 * `pool` ({0, 0}: the default pool), without the device. A request of 0 bytes needs no
 * block. */
bool
nt_fragment_fits(const nt_fragment *fragment, int32_t device, nt_pool_id pool,
                 uint64_t stream, uint64_t nbytes);

/* The requests that a free block of `size` bytes in a small or a large pool serves,
 * from *least to *most bytes, where the next smaller free block of the pool has `below`
 * bytes (0 where there is none). False, with both 0, if it serves none. */
bool
nt_fragment_serves(const nt_fragment *fragment, uint64_t size, uint64_t below,
                   bool small, uint64_t *least, uint64_t *most);

/* How the ratio (reserved - allocated) / reserved went over a trace. */
typedef struct nt_ratio_summary {
    double largest, mean, last; /* over the events; 0 where there is none */
    int64_t largest_event;      /* the first with the largest; -1 where there is none */
} nt_ratio_summary;

/* Writes the ratio after each of `count` events to `out`, from the series of the
 * timeline and the events' actions; 0 where nothing is reserved. A new segment and the
 * allocation that it is for are one call: between the two the ratio is that behind the
 * allocation, because no program can see the state between them. */
nt_ratio_summary
nt_fragment_ratios(const uint64_t *allocated, const uint64_t *reserved,
                   const uint8_t *action, size_t count, double *out);

#endif
