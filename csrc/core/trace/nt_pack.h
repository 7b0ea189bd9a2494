/* SPDX-License-Identifier: Apache-2.0 */
/* Columns as few bytes, and back: what a page carries a snapshot in. Nothing is lost,
 * neither ids nor notes nor why only a part was read. It is made for a compressor to go
 * over it, and for nobody to keep: a snapshot is kept as a pickle (nt_writer).
 *
 * Numbers are written a column at a time, NT_PACK_ROWS rows of it, their lowest bytes
 * first, then the next ones, as far as the largest reaches. Times and the like are
 * differences to the row before. An event's address is where it was seen last: how many
 * allocations, or frees, ago there was one at it, or one that ended there. */
#ifndef NT_PACK_H
#define NT_PACK_H

#include "base/nt_base.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_source.h"
#include "trace/nt_writer.h"

/* Writes a sealed snapshot. */
nt_status
nt_pack_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
             nt_error *err) NT_CHECKED;

/* Reads what nt_pack_save wrote: the same rows under the same ids. Any other bytes are
 * NT_MALFORMED, or a snapshot that keeps what one of nt_reader_load keeps. */
nt_status
nt_pack_load(const nt_alloc *alloc, nt_source *source, nt_snapshot **out,
             nt_error *err) NT_CHECKED;

#endif
