/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator's settings: the text of PYTORCH_CUDA_ALLOC_CONF parsed with PyTorch's
 * own rules (which keys, which ranges, both forms of roundup_power2_divisions), for
 * reports, replay and model alike. */
#ifndef NT_SETTINGS_H
#define NT_SETTINGS_H

#include "base/nt_base.h"

/* One entry a power of two of MiB: entry i holds the divisions for requests from 2^i
 * MiB up to 2^(i+1) MiB; the first also for smaller ones, the last for larger. */
#define NT_ROUNDUP_INTERVALS 16

/* No limit: `max_split_size` unset. */
#define NT_UNLIMITED UINT64_MAX

/* Plain data; nt_settings_default() is PyTorch's default. Sizes in bytes. */
typedef struct nt_settings {
    uint64_t max_split_size;             /* NT_UNLIMITED when unset */
    uint64_t max_non_split_rounding;     /* large_segment_size when unset */
    uint64_t large_segment_size;         /* 20 MiB when unset */
    double garbage_collection_threshold; /* 0 when off, else 0 < x < 1 */
    double per_process_memory_fraction;  /* 1 when unset */
    bool expandable_segments;
    uint32_t roundup_power2_divisions[NT_ROUNDUP_INTERVALS]; /* 0 or 1: off */
    bool native_backend; /* false: cudaMallocAsync or another backend */
    bool exact_sizes;    /* blocks are as large as the request, as PyTorch's are on the
                            CPU; no key of the text */
} nt_settings;

nt_settings
nt_settings_default(void);

/* Parses `text` (`length` bytes, no terminator needed) over the defaults; a key that
 * comes twice counts as it comes last, and white space means nothing. Unknown keys,
 * malformed numbers and values outside PyTorch's ranges are NT_ARGUMENT, and *out is
 * untouched; err->offset is the byte in `text`, and the message names the legal keys or
 * the legal range:
 *
 *   large_segment_size_mb           above 10
 *   max_split_size_mb               large_segment_size_mb (20 when unset) or more
 *   max_non_split_rounding_mb       the same
 *   garbage_collection_threshold    above 0, below 1
 *   per_process_memory_fraction     0 to 1
 *   roundup_power2_divisions        a power of two, or [MiB:divisions,...,>:divisions]
 *
 * In a list of divisions sizes are powers of two and 0 divisions is "off"; the first
 * size stands for all smaller ones as well, `>` for all above the size before it, and
 * sizes in between that are not named are off. Keys that change nothing in device
 * memory (pinned_*, release_lock_on_cudamalloc, ...) are checked and forgotten.
 *
 * Where PyTorch reads on after an error the text is refused here: trash behind a
 * number, a sign before it, a separator that is missing or too many, and divisions
 * above 2^31, which PyTorch would only use for requests of more than a TiB. */
nt_status
nt_settings_parse(const char *text, size_t length, nt_settings *out,
                  nt_error *err) NT_CHECKED;

/* Writes the settings that differ from the default in PyTorch's syntax (sizes in whole
 * MiB) into `buffer`, cut to fit and always terminated when `size` is above 0. Returns
 * the length of the whole text without its terminator. */
size_t
nt_settings_format(const nt_settings *settings, char *buffer, size_t size);

#endif
