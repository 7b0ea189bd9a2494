/* SPDX-License-Identifier: Apache-2.0 */
/* Columns back to a pickle in PyTorch's own format: protocol 4, keys and types as
 * PyTorch writes them, equal strings, frames and stacks shared through the memo,
 * integers of at most eight bytes, so that PyTorch's viewer opens it. */
#ifndef NT_WRITER_H
#define NT_WRITER_H

#include "base/nt_base.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_timeline.h"

/* Where the bytes go. `write` returns 0, or another value to stop with NT_IO. */
typedef struct nt_sink {
    int (*write)(void *ctx, const void *bytes, size_t count);
    void *ctx;
} nt_sink;

/* The whole snapshot, the host's memory too; only keys that it has (nt_snapshot_keys)
 * are written, and the pickle read back gives the same columns, but for one of an
 * optional key that had no value in any row. Numbers from 2^63 on are written as the
 * negative ones with the same 64 bits, as PyTorch's C++ pickler does. */
nt_status
nt_writer_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
               const nt_progress *progress, nt_error *err) NT_CHECKED;

/* The events first .. end-1 of a device's timeline. */
typedef struct nt_writer_range {
    const nt_timeline *timeline;
    size_t first, end;
} nt_writer_range;

/* Ranges of `count` timelines of one snapshot, 1 at least and each of another device:
 * their events, their devices' segments as they stood after event end-1 (at the
 * beginning for end 0), and under `segments_before`, which PyTorch's viewer passes
 * over, as they stood before event `first`, so that a reader of the file knows what
 * lived then. Traces of other devices are written empty. */
nt_status
nt_writer_save_ranges(const nt_alloc *alloc, const nt_writer_range *ranges,
                      size_t count, const nt_sink *sink, const nt_progress *progress,
                      nt_error *err) NT_CHECKED;

#endif
