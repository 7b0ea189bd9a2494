/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a raster holds, shared by its files and by nobody else: nt_raster.c (making it,
 * series), nt_raster_map.c (the address axis and which segment a block lies in),
 * nt_raster_view.c (states and addresses as pixels), nt_raster_sums.c and
 * nt_raster_draw.c (the planes) and nt_raster_top.c (the largest blocks).
 */
#ifndef NT_RASTER_STATE_H
#define NT_RASTER_STATE_H

#include "picture/nt_raster.h"

/* A block or a segment, on the axes: it stands in states begin .. end - 1. */
typedef struct nt_raster_item {
    uint32_t place;      /* position of its first byte >> place_shift, or where there is
                          * no room for it NT_RASTER_WIDE */
    uint32_t length;     /* bytes >> length_shift; of a wide one a number of `wides` */
    uint32_t begin, end; /* none where end <= begin: only a series counts it then */
} nt_raster_item;

#define NT_RASTER_WIDE UINT32_MAX

/* What does not fit into an item, of a few. */
typedef struct nt_raster_wide {
    uint64_t place, length; /* bytes on the axis */
    bool is_cut;            /* it ends with its range: of its bytes more than that */
} nt_raster_wide;

/* What the items count in: addresses and sizes are rounded by the allocator. */
typedef struct nt_raster_units {
    uint32_t place_shift, length_shift;
    nt_raster_wide *wides;
} nt_raster_units;

/* Items that follow each other in r->items: a view that sees none of their states need
 * not look at them. */
#define NT_RASTER_CHUNK 32

typedef struct nt_raster_chunk {
    uint32_t begin, end; /* all of their states are among begin .. end - 1 */
} nt_raster_chunk;

struct nt_raster {
    nt_alloc alloc;
    const nt_timeline *timeline; /* the caller's, outlives this */
    nt_raster_options options;
    size_t states;
    nt_rising positions; /* states + 1 of them; owned */
    nt_raster_range *ranges;
    size_t range_count, range_capacity;
    uint64_t height;
    nt_raster_item *items; /* blocks first, then segments */
    size_t item_count, block_count, item_capacity;
    /* The rows of the timeline's segments, and of its allocations if there is a filter;
     * without one each of these is the item of its number. */
    uint32_t *segment_rows, *block_rows;
    size_t segment_capacity, block_capacity;
    nt_raster_units units;
    size_t wide_count, wide_capacity;
    nt_raster_chunk *chunks; /* of items 0 .. NT_RASTER_CHUNK - 1, and so on */
    size_t chunk_count;
    /* What blocks are compared by: the rank of each one's size, or if none of them is
     * wide, NULL: its length. */
    uint32_t *ranks;
};

/* The first state without what ends with `event`, which may be NT_EVENT_NEVER. */
static inline uint32_t
nt_raster_end_state(const nt_raster *r, int32_t event)
{
    if (event == NT_EVENT_NEVER) {
        return (uint32_t)r->states;
    }
    return event < 0 ? 0 : (uint32_t)(event + 1);
}

/* The first item from number `i` on that may stand in states first .. end - 1; a number
 * from r->item_count on if there is none. */
static inline size_t
nt_raster_next(const nt_raster *r, size_t i, uint32_t first, uint32_t end)
{
    while (i % NT_RASTER_CHUNK == 0 && i < r->item_count) {
        const nt_raster_chunk chunk = r->chunks[i / NT_RASTER_CHUNK];
        if (chunk.begin < end && chunk.end > first) {
            break;
        }
        i += NT_RASTER_CHUNK;
    }
    return i;
}

/* Fills r->ranges and r->height from the segments that pass the filter. */
nt_status
nt_raster_make_map(nt_raster *r, nt_error *err);

/* Adds the blocks and then the segments that pass the filter to r->items. */
nt_status
nt_raster_make_items(nt_raster *r, nt_error *err);

/* Positions from *from to *to, which is behind it. */
static inline void
nt_raster_extent(const nt_raster_units *units, const nt_raster_item *item,
                 uint64_t *from, uint64_t *to)
{
    if (NT_UNLIKELY(item->place == NT_RASTER_WIDE)) {
        *from = units->wides[item->length].place;
        *to = *from + units->wides[item->length].length;
        return;
    }
    *from = (uint64_t)item->place << units->place_shift;
    *to = *from + ((uint64_t)item->length << units->length_shift);
}

/* The row of the timeline's allocations that a block is. */
static inline uint32_t
nt_raster_block_row(const nt_raster *r, size_t block)
{
    return r->block_rows == NULL ? (uint32_t)block : r->block_rows[block];
}

/* In bytes. */
static inline uint64_t
nt_raster_block_size(const nt_raster *r, size_t block)
{
    const nt_raster_item *item = &r->items[block];
    if (item->place != NT_RASTER_WIDE) {
        return (uint64_t)item->length << r->units.length_shift;
    }
    const nt_raster_wide *wide = &r->units.wides[item->length];
    return wide->is_cut ? nt_timeline_allocations(r->timeline)
                              ->size[nt_raster_block_row(r, block)]
                        : wide->length;
}

/* A view's time axis. */
typedef struct nt_raster_time {
    nt_rising positions; /* of the raster's states */
    uint64_t x_first, x_end;
    uint32_t first, end; /* the states that the view sees */
    uint32_t width;
    uint64_t span; /* positions of the view: a pixel is `span` fractions wide */
} nt_raster_time;

/* NT_ARGUMENT unless the view is on the axes. */
nt_status
nt_raster_time_init(nt_raster_time *time, const nt_raster *r,
                    const nt_raster_view *view, nt_error *err) NT_CHECKED;

/* Where a state from time->first to time->end begins. */
typedef struct nt_raster_place {
    uint32_t state;
    uint32_t column;
    uint32_t last;   /* the last column that sees one of the view's states before it:
                      * where its time ends, or that of a last one without width */
    uint64_t offset; /* in its column, in fractions */
} nt_raster_place;

/* That of the first state, and of the state after `place`. */
nt_raster_place
nt_raster_time_start(const nt_raster_time *time);
void
nt_raster_time_step(const nt_raster_time *time, nt_raster_place *place);

/* The states with which columns begin, and the first ends that a later one sees. */
typedef struct nt_raster_edges {
    nt_alloc alloc;
    uint32_t first, end; /* the states that the view sees */
    uint32_t width;
    uint32_t *begin; /* width + 1: the first state in a column or behind it */
    uint32_t *after; /* width: an item that ends before it is in no later column */
    uint16_t *hints; /* the last column of ends in stretches of 2^hint_shift states */
    uint32_t hint_shift;
} nt_raster_edges;

/* On failure there is nothing to clear. */
nt_status
nt_raster_edges_init(nt_raster_edges *edges, const nt_alloc *alloc,
                     const nt_raster_time *time, nt_error *err) NT_CHECKED;
void
nt_raster_edges_clear(nt_raster_edges *edges);

/* The column in which a state of the view begins, and the last that sees an item which
 * ends with `to`, from `column` on. */
uint32_t
nt_raster_column_of(const nt_raster_edges *edges, uint32_t state);
uint32_t
nt_raster_last_of(const nt_raster_edges *edges, uint32_t to, uint32_t column);

/* The columns that see an item; false if it does not stand in the view. *first comes in
 * as a guess: items that follow each other mostly begin in the same column. */
static inline bool
nt_raster_columns_of(const nt_raster_edges *e, const nt_raster_item *item,
                     uint32_t *first, uint32_t *last)
{
    const uint32_t from = item->begin < e->first ? e->first : item->begin;
    const uint32_t to = item->end > e->end ? e->end : item->end;
    if (from >= to) {
        return false;
    }
    if (from < e->begin[*first] || from >= e->begin[*first + 1]) {
        *first = nt_raster_column_of(e, from);
    }
    *last = to < e->after[*first] ? *first : nt_raster_last_of(e, to, *first);
    return true;
}

/* Whether all of a chunk's items are in one column and no later one sees them: which it
 * is comes in as a guess, as above. */
static inline bool
nt_raster_is_in_column(const nt_raster_edges *e, const nt_raster_chunk *chunk,
                       uint32_t *column)
{
    if (chunk->begin < e->first || chunk->begin >= chunk->end || chunk->end >= e->end) {
        return false;
    }
    if (chunk->begin < e->begin[*column] || chunk->begin >= e->begin[*column + 1]) {
        *column = nt_raster_column_of(e, chunk->begin);
    }
    return chunk->end < e->begin[*column + 1];
}

/* A view's address axis. */
typedef struct nt_raster_scale {
    nt_raster_units units; /* the raster's */
    uint64_t first, end;
    uint64_t height;     /* pixels */
    uint64_t span;       /* positions of the view: a pixel is `span` fractions high */
    double per_fraction; /* 1 / span */
} nt_raster_scale;

nt_raster_scale
nt_raster_scale_of(const nt_raster *r, const nt_raster_view *view);

/* An item's rows of pixels in a view, and how much of the outer ones it covers. */
typedef struct nt_raster_rows {
    uint32_t first, last;
    uint64_t in_first, in_last; /* in fractions: a pixel is `span` of them high */
    uint64_t span;
} nt_raster_rows;

/* fractions / span, and what is left over. The estimate is off by one at most: a view
 * has fewer pixels than a double tells apart. */
static inline uint32_t
nt_raster_divide(const nt_raster_scale *scale, uint64_t fractions, uint64_t *rest)
{
    /* Below 2^63: signed numbers turn into doubles in one instruction. */
    uint32_t pixel =
        (uint32_t)(int32_t)((double)(int64_t)fractions * scale->per_fraction);
    uint64_t below = pixel * scale->span;
    if (below > fractions) {
        pixel--;
        below -= scale->span;
    } else if (fractions - below >= scale->span) {
        pixel++;
        below += scale->span;
    }
    *rest = fractions - below;
    return pixel;
}

/* False if the item is outside the view. */
static inline bool
nt_raster_rows_of(const nt_raster_scale *scale, const nt_raster_item *item,
                  nt_raster_rows *out)
{
    uint64_t from, to;
    nt_raster_extent(&scale->units, item, &from, &to);
    if (to <= scale->first || from >= scale->end) {
        return false;
    }
    from = from < scale->first ? scale->first : from;
    to = to > scale->end ? scale->end : to;
    const uint64_t low = (from - scale->first) * scale->height;
    const uint64_t high = (to - scale->first) * scale->height;
    uint64_t before, behind;
    out->span = scale->span;
    out->first = out->last = nt_raster_divide(scale, low, &before);
    out->in_first = out->in_last = high - low;
    if (high - low > scale->span - before) {
        out->last = nt_raster_divide(scale, high - 1, &behind);
        out->in_first = scale->span - before;
        out->in_last = behind + 1;
    }
    return true;
}

static inline uint64_t
nt_raster_row_share(const nt_raster_rows *rows, uint32_t row)
{
    return row == rows->first  ? rows->in_first
           : row == rows->last ? rows->in_last
                               : rows->span;
}

/* Fills planes->used, ->reserved and ->seen, those that there are, which are zero. */
nt_status
nt_raster_sums(const nt_raster *r, const nt_raster_view *view,
               const nt_raster_time *time, const nt_raster_planes *planes,
               nt_error *err) NT_CHECKED;

#endif
