/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to nt_writer: what a file is made of. nt_writer.c writes it, and
 * nt_writer_ranges.c works out the layouts of ranges.
 */
#ifndef NT_WRITER_PARTS_H
#define NT_WRITER_PARTS_H

#include "trace/nt_writer.h"

/* What is written of one device, or of all of them. */
typedef struct nt_writer_part {
    const nt_layout *layout;
    const nt_layout *before; /* or NULL */
    bool is_whole;           /* all events of all devices */
    size_t device, first, end;
} nt_writer_part;

typedef struct nt_writer_parts {
    const nt_writer_part *items;
    size_t count;
} nt_writer_parts;

/* Writes parts of the snapshot with the keys (NT_HAS_...) that are named. */
nt_status
nt_writer_save_parts(const nt_alloc *alloc, const nt_snapshot *snapshot, uint32_t keys,
                     nt_writer_parts parts, const nt_sink *sink,
                     const nt_progress *progress, nt_error *err) NT_CHECKED;

#endif
