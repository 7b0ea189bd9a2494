/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_rounding.h"

#define ROUNDING_MIB_BITS 20

/* In a large pool a free block keeps a rest only if it is larger than this. */
#define ROUNDING_LARGE_REST NT_SMALL_SIZE

static unsigned
rounding_log2(uint64_t x)
{
#if defined(__GNUC__)
    return x == 0 ? 0 : 63 - (unsigned)__builtin_clzll(x);
#else
    unsigned log = 0;
    while (x >>= 1) {
        log++;
    }
    return log;
#endif
}

static uint64_t
rounding_up(uint64_t nbytes, uint64_t multiple)
{
    const uint64_t rest = nbytes % multiple;
    return rest == 0 ? nbytes : nbytes - rest + multiple;
}

/* The divisions in force for a request; 0 where the rounding is off. */
static uint64_t
rounding_divisions(const nt_settings *settings, uint64_t nbytes)
{
    const unsigned log = rounding_log2(nbytes);
    unsigned interval = log < ROUNDING_MIB_BITS ? 0 : log - ROUNDING_MIB_BITS;
    if (interval >= NT_ROUNDUP_INTERVALS) {
        interval = NT_ROUNDUP_INTERVALS - 1;
    }
    return settings->roundup_power2_divisions[interval];
}

/* The next of `divisions` even steps between two powers of two. */
static uint64_t
rounding_power2(uint64_t nbytes, uint64_t divisions)
{
    const uint64_t floor = UINT64_C(1) << rounding_log2(nbytes);
    if (floor == nbytes) {
        return nbytes;
    }
    const uint64_t step = floor >> rounding_log2(divisions);
    return step == 0 ? floor << 1 : rounding_up(nbytes, step);
}

uint64_t
nt_round_size(const nt_settings *settings, uint64_t nbytes)
{
    if (settings->exact_sizes) {
        return nbytes;
    }
    if (nbytes < NT_MIN_BLOCK_SIZE) {
        return NT_MIN_BLOCK_SIZE;
    }
    /* PyTorch refuses requests above this; here they only must not wrap. */
    if (nbytes > NT_LARGEST_REQUEST) {
        return NT_LARGEST_REQUEST;
    }
    const uint64_t divisions = rounding_divisions(settings, nbytes);
    if (divisions > 1 && nbytes > NT_MIN_BLOCK_SIZE * divisions) {
        return rounding_power2(nbytes, divisions);
    }
    return rounding_up(nbytes, NT_MIN_BLOCK_SIZE);
}

bool
nt_is_small(uint64_t rounded)
{
    return rounded <= NT_SMALL_SIZE;
}

uint64_t
nt_segment_size(const nt_settings *settings, uint64_t rounded)
{
    if (nt_is_small(rounded)) {
        return NT_SMALL_BUFFER;
    }
    if (rounded < NT_MIN_LARGE_ALLOC) {
        return settings->large_segment_size;
    }
    return rounding_up(rounded, NT_ROUND_LARGE);
}

uint64_t
nt_page_size(const nt_settings *settings, bool small)
{
    return small ? NT_SMALL_BUFFER : settings->large_segment_size;
}

bool
nt_should_split(const nt_settings *settings, uint64_t block_size, uint64_t rounded,
                bool small, bool expandable)
{
    const uint64_t rest = block_size - rounded;
    if (small || expandable) {
        return rest >= NT_MIN_BLOCK_SIZE;
    }
    return rounded < settings->max_split_size && rest > ROUNDING_LARGE_REST;
}

bool
nt_may_use(const nt_settings *settings, uint64_t block_size, uint64_t rounded)
{
    if (block_size < rounded) {
        return false;
    }
    if (rounded < settings->max_split_size) {
        return block_size < settings->max_split_size;
    }
    /* An oversize request takes an oversize block that is not much larger. */
    return block_size - rounded < settings->max_non_split_rounding;
}

uint64_t
nt_largest_request(const nt_settings *settings, uint64_t block_size, bool small)
{
    /* Rounding grows with the request, and so does the chance that the oversize rules
     * allow it: what rounds to the most is the only one to look at. */
    const uint64_t most = small ? NT_SMALL_SIZE : NT_LARGEST_REQUEST;
    uint64_t low = 0;
    uint64_t high = block_size < most ? block_size : most;
    while (high > low) {
        const uint64_t middle = high - (high - low) / 2;
        if (nt_round_size(settings, middle) <= block_size) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const uint64_t rounded = nt_round_size(settings, high);
    const bool usable = high != 0 && nt_is_small(rounded) == small &&
                        nt_may_use(settings, block_size, rounded);
    return usable ? high : 0;
}

/* Whether a request goes to a block of `block_size` bytes and not to one of `below`. */
static bool
rounding_goes_to(const nt_settings *settings, uint64_t nbytes, uint64_t block_size,
                 uint64_t below, bool small)
{
    const uint64_t rounded = nt_round_size(settings, nbytes);
    return rounded > below && nt_is_small(rounded) == small &&
           nt_may_use(settings, block_size, rounded);
}

uint64_t
nt_smallest_request(const nt_settings *settings, uint64_t block_size, uint64_t below,
                    bool small)
{
    /* Up to the largest request, each condition once met holds for all larger ones. */
    uint64_t high = nt_largest_request(settings, block_size, small);
    if (high == 0 || !rounding_goes_to(settings, high, block_size, below, small)) {
        return 0;
    }
    uint64_t low = 1;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (rounding_goes_to(settings, middle, block_size, below, small)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return high;
}
