/* SPDX-License-Identifier: Apache-2.0 */
/* Private to nt_invariants: notes counted by kind, and the part about events. */
#ifndef NT_INVARIANTS_NOTES_H
#define NT_INVARIANTS_NOTES_H

#include "trace/nt_invariants.h"

/* A file may have more devices than notes are worth a reader's time: those from this
 * number on are counted with the one below. */
#define NT_NOTED_DEVICES 16

/* All-zero but for the snapshot is valid. */
typedef struct nt_invariants_notes {
    nt_snapshot *snapshot;
    nt_broken_note by_kind[NT_BROKEN_KINDS][NT_NOTED_DEVICES];
} nt_invariants_notes;

/* Counts one more block, segment or event of a kind. */
static inline void
nt_invariants_note(nt_invariants_notes *notes, nt_broken kind, int32_t device,
                   uint64_t first, uint64_t bytes)
{
    const int32_t last = NT_NOTED_DEVICES - 1;
    const int32_t at = device < 0 ? 0 : device < last ? device : last;
    nt_broken_note *note = &notes->by_kind[kind][at];
    if (note->count == 0) {
        *note =
            (nt_broken_note){.kind = (uint8_t)kind, .device = device, .first = first};
    }
    note->count++;
    note->bytes += bytes;
}

/* Gives the snapshot what was counted. */
nt_status
nt_invariants_notes_end(const nt_invariants_notes *notes, nt_error *err) NT_CHECKED;

/* The events: sizes, sums, times; and whether segments are of the kind that the trace
 * made. */
nt_status
nt_invariants_trace(const nt_alloc *alloc, nt_snapshot *snapshot,
                    nt_invariants_notes *notes, nt_error *err) NT_CHECKED;

#endif
