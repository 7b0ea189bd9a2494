/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot made of a live process: the layout that the shim gives, and the last
 * events of its rings, joined at the marker that each ring got when the layout was
 * taken. The columns are those of a file, so whatever works on one works on this. */
#ifndef NT_LIVE_H
#define NT_LIVE_H

#include "base/nt_base.h"
#include "trace/nt_live_api.h"
#include "trace/nt_snapshot.h"

/* The functions that the shim is handed; they take the system's memory. */
const nt_live_api *
nt_live_table(void);

/* What became of one device's ring. */
typedef struct nt_live_tail {
    int32_t device;
    bool late;       /* the recording began after the device's first allocation */
    uint64_t pushed; /* entries of the recording, up to the layout */
    uint64_t taken;  /* the last of them that are in the snapshot */
    nt_ring_counts tables;
} nt_live_tail;

#define NT_LIVE_MOST_DEVICES 128

/* Takes a layout of all devices of a type from `source`, with at most the last
 * `most_events` events of each, and seals it. allocator_settings says for each device,
 * under its number, whether earlier events are missing (trace_alloc_overflowed) and
 * whether there were allocations before the recording (trace_alloc_began_late).
 *
 * Needs no GIL. `tails` has room for NT_LIVE_MOST_DEVICES; *tail_count is how many it
 * has then. NT_IO when the source fails. */
nt_status
nt_live_build(const nt_alloc *alloc, const nt_live_source *source,
              nt_live_device_type type, uint64_t most_events, nt_snapshot **out,
              nt_live_tail *tails, size_t *tail_count, nt_error *err) NT_CHECKED;

/* The line of the instruction `lasti` (bytes) by the code object's table: -1 where it
 * has none, as CPython gives it. Any bytes are safe. */
int64_t
nt_live_line(const nt_ring_code *code, uint32_t lasti);

/* The blocks of an allocator that keeps no list of them, at most 2^30; see
 * nt_live_api. */
nt_live_blocks *
nt_live_blocks_new(const nt_alloc *alloc, uint64_t most);
void
nt_live_blocks_free(nt_live_blocks *blocks);
int
nt_live_blocks_add(nt_live_blocks *blocks, uint64_t address, uint64_t size,
                   uint32_t stack);
uint64_t
nt_live_blocks_remove(nt_live_blocks *blocks, uint64_t address);
nt_live_blocks *
nt_live_blocks_copy(const nt_live_blocks *blocks);
uint64_t
nt_live_blocks_count(const nt_live_blocks *blocks);

#endif
