/* SPDX-License-Identifier: Apache-2.0 */
/* Levels of detail of a series of bytes: the least and the largest value of any range
 * of it, exact, in a few steps. Level 0 is the series itself; each entry of level k
 * covers NT_PYRAMID_FANOUT entries of the level below it, the last one what is left. */
#ifndef NT_PYRAMID_H
#define NT_PYRAMID_H

#include "base/nt_base.h"

#define NT_PYRAMID_FANOUT 4

typedef struct nt_pyramid nt_pyramid;

typedef struct nt_extremes {
    uint64_t least, largest;
} nt_extremes;

/* `values` are copied. Memory is 8 bytes a value for level 0 and 5.4 for the others. */
nt_status
nt_pyramid_new(const nt_alloc *alloc, const uint64_t *values, size_t count,
               nt_pyramid **out, nt_error *err) NT_CHECKED;
void
nt_pyramid_free(nt_pyramid *pyramid);

size_t
nt_pyramid_count(const nt_pyramid *pyramid);
/* Levels above the series; the last has one entry, unless the series has none. */
size_t
nt_pyramid_levels(const nt_pyramid *pyramid);
/* The entries of level 1 .. nt_pyramid_levels(), *count of them. */
const nt_extremes *
nt_pyramid_level(const nt_pyramid *pyramid, size_t level, size_t *count);

/* Of values first .. end - 1, with first < end <= nt_pyramid_count(). */
nt_extremes
nt_pyramid_range(const nt_pyramid *pyramid, size_t first, size_t end);

#endif
