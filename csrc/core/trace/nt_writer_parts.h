/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to nt_writer: what a file is made of. nt_writer.c writes it,
 * nt_writer_settings.c its settings, and nt_writer_ranges.c works out the layouts of
 * ranges.
 */
#ifndef NT_WRITER_PARTS_H
#define NT_WRITER_PARTS_H

#include "trace/nt_reader_schema.h"
#include "trace/nt_writer.h"
#include "trace/nt_writer_opcodes.h"

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

/* The first failure stays in out.status; from then on nothing more is written. */
typedef struct nt_writer {
    nt_writer_out out;
    nt_alloc alloc;
    const nt_snapshot *snapshot; /* or, while it is written, the one of the host */
    bool is_host;
    const nt_progress *progress;
    uint32_t keys;
    uint64_t done; /* events written */

    /* Memo indexes by id, NT_NONE for what was not written yet. */
    uint32_t *strings, *frames, *stacks;
    size_t string_count, frame_count, stack_count;

    /* Of words and actions: the string's own place above, or the spare one of a
     * word that is none of the snapshot's strings. */
    uint32_t *words[WORDS], spare_words[WORDS];
    uint32_t *actions[UINT8_MAX + 1], spare_actions[UINT8_MAX + 1];
} nt_writer;

/* One of nt_reader_words. */
void
nt_writer_word(nt_writer *w, uint32_t word);

/* The string `id`; None where the file had no string. */
void
nt_writer_string(nt_writer *w, uint32_t id);

/* allocator_settings; the calls that were noted are of the parts' events. */
void
nt_writer_settings(nt_writer *w, nt_writer_parts parts);

/* Writes parts of the snapshot with the keys (NT_HAS_...) that are named. */
nt_status
nt_writer_save_parts(const nt_alloc *alloc, const nt_snapshot *snapshot, uint32_t keys,
                     nt_writer_parts parts, const nt_sink *sink,
                     const nt_progress *progress, nt_error *err) NT_CHECKED;

#endif
