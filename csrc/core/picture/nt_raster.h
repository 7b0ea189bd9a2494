/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of memory: address upwards, time to the right, any number of pixels.
 *
 * The time axis. A state is what stands after an event; state 0 stands before the first
 * one and state e + 1 after event e. State s begins at position x[s] and lasts until
 * x[s + 1]. By event each state is 1 wide. By time positions are microseconds since the
 * first event, the last state is 1 wide, and states of events with the same time have
 * no width; a time below an earlier one counts as that one.
 *
 * The address axis. Ranges that were ever reserved lie end to end, in the order of
 * their addresses; what was never reserved takes no room. With raw addresses there is
 * one range from the lowest address to the highest.
 *
 * Which pixel shows what. A pixel covers a range of positions on both axes, its lower
 * ends included, its upper ends not. It has seen a state that overlaps its range of
 * time, or one without width that lies in it; and in that state it has seen each block,
 * hole and reserved byte that overlaps its range of addresses. So nothing is too small
 * or too short to be seen, and nothing is seen where it was not. Beside what it has
 * seen, a pixel has the share of its area, bytes times time, that was in blocks and
 * that was reserved: states without width add nothing to these. */
#ifndef NT_RASTER_H
#define NT_RASTER_H

#include "base/nt_base.h"
#include "base/nt_search.h"
#include "trace/nt_timeline.h"

/* Most pixels a side, and most of an axis: their product stays below 2^63. */
#define NT_RASTER_MOST_PIXELS 8192
#define NT_RASTER_MOST_EXTENT ((uint64_t)1 << 50)

/* What is drawn of a timeline, and along which axes. */
typedef struct nt_raster_options {
    bool by_time;       /* else by event */
    bool raw_addresses; /* what was never reserved takes room too */
    bool until_freed;   /* a block ends with free_requested; else with free_completed,
                         * before which nothing else can have its bytes */
    bool by_stream;     /* only segments of `stream`, and the blocks in them */
    bool by_pool;       /* only segments of `pool` */
    uint64_t stream;
    nt_pool_id pool;
} nt_raster_options;

/* Addresses that were reserved at some time, and where the axis has them. */
typedef struct nt_raster_range {
    uint64_t address;
    uint64_t size;     /* bytes */
    uint64_t position; /* of its first byte */
} nt_raster_range;

/* A part of the picture: positions from `first` to `end` (not included). */
typedef struct nt_raster_view {
    uint64_t x_first, x_end;
    uint64_t y_first, y_end;
    uint32_t width, height; /* pixels */
} nt_raster_view;

/* What a pixel has seen. */
enum {
    NT_SEEN_BLOCK = 1,
    NT_SEEN_HOLE = 2, /* a byte that was reserved and in no block */
    NT_SEEN_RESERVED = 4,
};

/* The caller's arrays of width * height, row after row from the lowest address; NULL
 * for what is not wanted. */
typedef struct nt_raster_planes {
    uint64_t *largest; /* bytes of the largest block seen */
    double *used;      /* share of the area that was in blocks */
    double *reserved;  /* share of the area that was reserved; NULL if `used` is */
    uint8_t *seen;     /* NT_SEEN_... */
    uint32_t *row;     /* of the timeline's allocations: the largest block seen, the
                        * first of several; NT_NONE where none was */
    uint8_t
        *standing; /* 1 where NT_SEEN_RESERVED is, else 0: alone cheaper than `seen` */
} nt_raster_planes;

typedef struct nt_raster nt_raster;

/* Prepares the pictures of `timeline`, which must outlive it. A block belongs to the
 * segment that its address lies in when it is allocated; what was never reserved holds
 * no block. NT_ARGUMENT by time where the file has no times, and where an axis would be
 * longer than NT_RASTER_MOST_EXTENT. Time is n log n in allocations and segments,
 * memory about 17 bytes for each, and 4 or 8 for each event. */
nt_status
nt_raster_new(const nt_alloc *alloc, const nt_timeline *timeline,
              const nt_raster_options *options, nt_raster **out,
              nt_error *err) NT_CHECKED;
void
nt_raster_free(nt_raster *raster);

/* Ends of the two axes, which begin at 0; at least 1. */
uint64_t
nt_raster_width(const nt_raster *raster);
uint64_t
nt_raster_height(const nt_raster *raster);

/* The ranges by address; none where nothing was reserved. */
const nt_raster_range *
nt_raster_ranges(const nt_raster *raster, size_t *count);

/* Where each state begins; *count states, behind them the axis' end. */
nt_rising
nt_raster_states(const nt_raster *raster, size_t *count);

/* Bytes of what is drawn in each state, nt_raster_states() of them: allocated blocks,
 * active ones, or what is reserved. Without a filter that is the timeline's series.
 * NT_ARGUMENT for NT_METRIC_REQUESTED. */
nt_status
nt_raster_series(const nt_raster *raster, nt_metric metric, uint64_t *out,
                 nt_error *err) NT_CHECKED;

/* Draws a view, whose ends must lie on the axes, into `planes`. Time is linear in the
 * blocks of the view and around it (of others one in 32 is looked at) and in the pixels
 * that they fill; for `seen` and `used` also in its events. */
nt_status
nt_raster_draw(const nt_raster *raster, const nt_raster_view *view,
               const nt_raster_planes *planes, nt_error *err) NT_CHECKED;

/* The largest blocks of a view: at most `most` rows of the timeline's allocations into
 * `rows`, by size downwards, then by row; their number into *count. All others are one
 * band: `rest` gets, for each of the view's columns, the most bytes that they had in a
 * state that the column has seen. Blocks count whole, also where the view cuts them. */
nt_status
nt_raster_top(const nt_raster *raster, const nt_raster_view *view, size_t most,
              uint32_t *rows, size_t *count, uint64_t *rest, nt_error *err) NT_CHECKED;

#endif
