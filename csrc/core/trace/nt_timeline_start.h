/* SPDX-License-Identifier: Apache-2.0 */
/* The state before a trace that does not go back to the first allocation. */
#ifndef NT_TIMELINE_START_H
#define NT_TIMELINE_START_H

#include "trace/nt_timeline.h"

/*
 * Adds a row for every block that was there before the trace, by address: those
 * freed in it without having been allocated in it, and those of the end layout
 * that it never allocated. Their sizes are exact where the end layout or the
 * trace fixes them; facts.slack_bound says by how much the others may be too
 * small. The segments must stand, and no allocations.
 */
nt_status
nt_timeline_find_start(nt_timeline *t, nt_error *err);

/* The segment row from before the trace in which the start block `row` lies, or
 * NT_NONE. */
uint32_t
nt_timeline_start_segment(const nt_timeline *t, size_t row);

/* A row for the active block `block` of the end layout, there before the trace. */
nt_status
nt_timeline_add_survivor(nt_timeline *t, size_t block, nt_error *err);

/* Room for `rows` allocations in all. */
nt_status
nt_timeline_reserve_allocations(nt_timeline *t, size_t rows, nt_error *err);

#endif
