/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator's settings: the text of PYTORCH_CUDA_ALLOC_CONF parsed with
 * PyTorch's own rules (which keys, which ranges, both forms of
 * roundup_power2_divisions), for reports, replay and model alike.
 */
#ifndef NT_SETTINGS_H
#define NT_SETTINGS_H

#include "base/nt_base.h"

/* One entry a power of two of MiB: entry i holds the divisions for requests of
 * 2^i MiB up to 2^(i+1) MiB; the first also for smaller ones, the last for larger. */
#define NT_ROUNDUP_INTERVALS 16

/* No limit: `max_split_size` unset. */
#define NT_UNLIMITED UINT64_MAX

/* Plain data; nt_settings_default() is PyTorch's default. Sizes in bytes. */
typedef struct nt_settings {
    uint64_t max_split_size;            /* NT_UNLIMITED when unset */
    uint64_t max_non_split_rounding;    /* 20 MiB when unset */
    uint64_t large_segment_size;        /* 20 MiB when unset */
    double garbage_collection_threshold; /* 0 when off, else 0 < x < 1 */
    double per_process_memory_fraction; /* 1 when unset */
    bool expandable_segments;
    uint32_t roundup_power2_divisions[NT_ROUNDUP_INTERVALS]; /* 0 or 1: off */
    bool native_backend; /* false: cudaMallocAsync or another backend */
} nt_settings;

nt_settings
nt_settings_default(void);

/*
 * Parses `text` (`length` bytes, no terminator needed) over the defaults.
 * Unknown keys, malformed numbers and values outside PyTorch's ranges are
 * NT_ARGUMENT; err->offset is the byte in `text`, and the message names the
 * legal keys or the legal range. Keys that do not concern device memory
 * (pinned_*, release_lock_on_cudamalloc, ...) are accepted and checked.
 */
nt_status
nt_settings_parse(const char *text, size_t length, nt_settings *out,
                  nt_error *err) NT_CHECKED;

/* Writes the settings that differ from the default in PyTorch's syntax into
 * `buffer` (always terminated when size > 0); returns the length it needs. */
size_t
nt_settings_format(const nt_settings *settings, char *buffer, size_t size);

#endif
