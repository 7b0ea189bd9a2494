/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places at which a range of reserved memory can begin or end, known before the
 * replay: the ends of all ranges that the trace's segment events name, and of the
 * segments at the end and, where the file has them, before. Between two of these points
 * that follow each other, memory is reserved as a whole or not at all; so the replay of
 * segments counts in points.
 */
#ifndef NT_TIMELINE_POINTS_H
#define NT_TIMELINE_POINTS_H

#include "trace/nt_timeline_state.h"

/* All-zero is valid for clear only. */
typedef struct nt_timeline_points {
    nt_alloc alloc;
    nt_sort_item *items; /* keys: distinct addresses, upwards */
    size_t count;
    size_t capacity; /* at least twice the ranges: room for what is kept by point */
} nt_timeline_points;

/* A range from one point to another, by their numbers. */
typedef struct nt_point_range {
    size_t from, to;
} nt_point_range;

nt_status
nt_timeline_points_init(nt_timeline_points *points, const nt_timeline *t,
                        nt_error *err) NT_CHECKED;
void
nt_timeline_points_clear(nt_timeline_points *points);

/* The number of the last point that is at most `address`; there are points. */
size_t
nt_timeline_points_rank(const nt_timeline_points *points, uint64_t address);

/* The four segment actions follow each other. */
static inline bool
nt_timeline_is_reserving(uint8_t action)
{
    return action >= NT_ACTION_SEGMENT_ALLOC && action <= NT_ACTION_SEGMENT_UNMAP;
}

/* Whether what segment event `i` names is a range: not empty, and not past the end of
 * the address space. */
bool
nt_timeline_has_range(const nt_timeline *t, size_t i);

/* Whether a segment of a layout is a range, and is on this device. */
bool
nt_timeline_has_segment(const nt_timeline *t, const nt_layout *layout, size_t row);

#endif
