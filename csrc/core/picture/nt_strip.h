/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline as columns of pixels: in each the moment at which most was allocated, what
 * was reserved at most, and who had the bytes at that moment, in bands.
 *
 * States and positions are those of a picture (nt_raster): state 0 stands before the
 * first event, state e + 1 after event e. A column has seen the states that the picture
 * of the same width sees in it. */
#ifndef NT_STRIP_H
#define NT_STRIP_H

#include "base/nt_base.h"
#include "base/nt_search.h"
#include "trace/nt_timeline.h"

typedef struct nt_strip nt_strip;

/* One entry a column; `bands` has nt_strip_set_bands' count for each. */
typedef struct nt_strip_columns {
    int32_t *event;      /* after which most was allocated; NT_EVENT_BEFORE */
    uint64_t *allocated; /* bytes then */
    uint64_t *reserved;  /* the most bytes in any state of the column */
    uint64_t *bands;     /* bytes by band after `event` */
} nt_strip_columns;

/* A part of the time axis, as columns. */
typedef struct nt_strip_view {
    nt_rising positions; /* where each state begins, and the axis' end */
    uint64_t first, end; /* positions, end not included */
    uint32_t width;      /* columns: 1 .. NT_STRIP_MOST_COLUMNS */
} nt_strip_view;

#define NT_STRIP_MOST_COLUMNS 8192

/* The timeline must outlive it. Memory is some 5 bytes an event, and
 * 8 more while it is made. */
nt_status
nt_strip_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_strip **out,
             nt_error *err) NT_CHECKED;
void
nt_strip_free(nt_strip *strip);

/* Puts each row of the timeline's allocations into the band codes[row], below `count`.
 * The codes are the caller's, and stay until others are set. Time is linear in
 * events. */
nt_status
nt_strip_set_bands(nt_strip *strip, const uint8_t *codes, size_t count,
                   nt_error *err) NT_CHECKED;

/* The state of states first .. end - 1, which are at least one, with the most bytes
 * allocated, or reserved; the first of several. */
size_t
nt_strip_highest(const nt_strip *strip, bool reserved, size_t first, size_t end);

/* Bytes allocated, or reserved, in a state. */
uint64_t
nt_strip_bytes(const nt_strip *strip, bool reserved, size_t state);

/* NT_ARGUMENT for a view without extent, or one that is not on the axis. */
nt_status
nt_strip_draw(const nt_strip *strip, const nt_strip_view *view,
              const nt_strip_columns *out, nt_error *err) NT_CHECKED;

#endif
