/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator's size rules: how a request is rounded, which pool serves it, how large
 * a segment it opens and when a free block is split. All sizes in bytes. Rules as in
 * PyTorch's native CUDA caching allocator. */
#ifndef NT_ROUNDING_H
#define NT_ROUNDING_H

#include "base/nt_base.h"
#include "trace/nt_settings.h"

#define NT_MIN_BLOCK_SIZE UINT64_C(512)        /* every block is a multiple */
#define NT_SMALL_SIZE UINT64_C(1048576)        /* largest request of the small pool */
#define NT_SMALL_BUFFER UINT64_C(2097152)      /* a segment of the small pool */
#define NT_MIN_LARGE_ALLOC UINT64_C(10485760)  /* segments fit requests from here */
#define NT_ROUND_LARGE UINT64_C(2097152)       /* and are multiples of this */
#define NT_LARGEST_REQUEST (UINT64_C(1) << 60) /* PyTorch refuses more than 1 EiB */

/* The block size for a request of `nbytes`: 512 at least, NT_LARGEST_REQUEST at most
 * (callers refuse larger requests before), and never less for a larger one. */
uint64_t
nt_round_size(const nt_settings *settings, uint64_t nbytes);

/* Whether a rounded request is served by the small pool. */
bool
nt_is_small(uint64_t rounded);

/* The segment that a rounded request opens when no block fits (not expandable).
 * `rounded`, here and below, is what nt_round_size returns. */
uint64_t
nt_segment_size(const nt_settings *settings, uint64_t rounded);

/* The granularity in which expandable segments of a pool are mapped. */
uint64_t
nt_page_size(const nt_settings *settings, bool small);

/* Whether a free block of `block_size` bytes (`rounded` or more) is split for a request
 * of `rounded` bytes; if not, the request gets the whole block. `expandable` says
 * whether the pool's segments are expandable now, not whether this one is. */
bool
nt_should_split(const nt_settings *settings, uint64_t block_size, uint64_t rounded,
                bool small, bool expandable);

/* Whether the allocator would hand out a free block of `block_size` bytes, the best fit
 * found, for a request of `rounded` bytes: it may be too small, or kept back by the
 * oversize rules of max_split_size_mb. */
bool
nt_may_use(const nt_settings *settings, uint64_t block_size, uint64_t rounded);

/* The largest request in bytes that a free block of `block_size` bytes in a small or a
 * large pool serves without the device; 0 if none. Inverse of nt_round_size under
 * nt_is_small and nt_may_use. */
uint64_t
nt_largest_request(const nt_settings *settings, uint64_t block_size, bool small);

/* The smallest request that such a block serves where the next smaller free block of
 * the pool has `below` bytes (0 where there is none): all requests from here up to
 * nt_largest_request go to this block. 0 if none do. */
uint64_t
nt_smallest_request(const nt_settings *settings, uint64_t block_size, uint64_t below,
                    bool small);

#endif
