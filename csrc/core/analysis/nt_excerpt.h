/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a page keeps of a long timeline one by one: the allocations that matter most,
 * and the events that these and everything else of note need.
 *
 * An allocation's weight is its bytes times the events that it lived. Within a focus,
 * a range of events, only those in it count, and what lived in it goes before all else.
 * Events are kept if a kept allocation is made, freed or completed by them, if they are
 * neither alloc nor free, if they are a peak of allocated or reserved bytes or the
 * first highest or lowest of these in one of some thousand stretches, and the last one.
 */
#ifndef NT_EXCERPT_H
#define NT_EXCERPT_H

#include "base/nt_base.h"
#include "trace/nt_timeline.h"

/* Stretches of a trace whose extremes are kept. */
#define NT_EXCERPT_STRETCHES 4096

typedef struct nt_excerpt nt_excerpt;

/*
 * Chooses at most `most` allocations of `timeline`, which is not kept. The focus goes
 * from event `first` up to, but not with, `end`; an empty one is the whole trace. Time
 * is linear but for equal weights, memory about 20 bytes an event at the most.
 */
nt_status
nt_excerpt_new(const nt_alloc *alloc, const nt_timeline *timeline, size_t most,
               size_t first, size_t end, nt_excerpt **out, nt_error *err) NT_CHECKED;
void
nt_excerpt_free(nt_excerpt *excerpt);

/* The kept rows of the timeline's allocations, and the kept events, rising. */
const uint32_t *
nt_excerpt_rows(const nt_excerpt *excerpt, size_t *count);
const uint32_t *
nt_excerpt_events(const nt_excerpt *excerpt, size_t *count);

/* By event of the trace, how many kept events come before it; one more at the end. */
const uint32_t *
nt_excerpt_places(const nt_excerpt *excerpt, size_t *count);

/*
 * Whether a series of `events` values is what it was at the start and the sizes of rows
 * that come with event begins[row] and go with ends[row], where these are not negative:
 * then a page needs no series. `steps` is room for `events` numbers.
 */
bool
nt_excerpt_adds_up(const uint64_t *sizes, const int32_t *begins, const int32_t *ends,
                   size_t rows, uint64_t start, const uint64_t *series, size_t events,
                   uint64_t *steps);

#endif
