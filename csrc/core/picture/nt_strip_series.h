/* SPDX-License-Identifier: Apache-2.0 */
/* A series of a strip: bytes in each state, and where most are in each stretch of
 * states. For nt_strip.c only. */
#ifndef NT_STRIP_SERIES_H
#define NT_STRIP_SERIES_H

#include "trace/nt_timeline.h"

#define NT_STRIP_LEVELS 8 /* 16^8 values are more than there can be */

/* The value with most bytes of a stretch of them, the first of several. Its bytes are
 * beside it: in the series they lie far from those of the next stretch. */
typedef struct nt_strip_most {
    uint32_t low, high;
    uint32_t value; /* its number */
} nt_strip_most;

/* Bytes are (high << 32 | low) << shift: what the allocator gives is rounded, so that
 * there is hardly ever anything to keep in `high`. */

typedef struct nt_strip_series {
    uint32_t *starts; /* the state from which each value holds; NULL: one a state */
    size_t count;     /* values */
    uint32_t *low;
    uint32_t *high; /* NULL if all are 0 */
    unsigned shift;
    nt_strip_most *levels[NT_STRIP_LEVELS]; /* level k: one for 16^(k+1) values */
    size_t counts[NT_STRIP_LEVELS];
    size_t level_count;
} nt_strip_series;

/* On failure nt_strip_series_clear gives back what is there. */
nt_status
nt_strip_series_make(const nt_alloc *alloc, const nt_timeline *timeline,
                     nt_metric metric, size_t states, nt_strip_series *out,
                     nt_error *err) NT_CHECKED;
void
nt_strip_series_clear(const nt_alloc *alloc, nt_strip_series *series);

/* Of states first .. end - 1 the one with most, the first of several. */
uint32_t
nt_strip_series_highest(const nt_strip_series *series, size_t first, size_t end);

/* The bytes in a state. */
uint64_t
nt_strip_series_at(const nt_strip_series *series, size_t state);

#endif
