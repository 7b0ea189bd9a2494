/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a raster holds, shared by its files and by nobody else: nt_raster.c (making it,
 * series), nt_raster_map.c (the address axis and which segment a block lies in),
 * nt_raster_view.c (states and addresses as pixels), nt_raster_draw.c (the planes)
 * and nt_raster_top.c (the largest blocks).
 */
#ifndef NT_RASTER_STATE_H
#define NT_RASTER_STATE_H

#include "analysis/nt_raster.h"

/* A block or a segment, on the axes: it stands in states begin .. end - 1. */
typedef struct nt_raster_item {
    uint64_t from, to;   /* positions; to > from */
    uint64_t size;       /* bytes, also where `to` was cut at the end of a range */
    uint32_t begin, end; /* none where end <= begin: only a series counts it then */
    uint32_t freed;      /* of a block: the first state in which it is not allocated */
    uint32_t row;        /* of the timeline's allocations or segments */
} nt_raster_item;

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
    uint64_t *positions; /* states + 1 of them */
    nt_raster_range *ranges;
    size_t range_count, range_capacity;
    uint64_t height;
    nt_raster_item *items; /* blocks first, then segments */
    size_t item_count, block_count, item_capacity;
    nt_raster_chunk *chunks; /* of items 0 .. NT_RASTER_CHUNK - 1, and so on */
    size_t chunk_count;
    /* The items that begin or end with each state, as item * 2 + (1 at its end):
     * those of state s stand at change_first[s] .. change_first[s + 1] - 1. */
    uint32_t *changes;
    uint32_t *change_first; /* states + 1 of them */
    size_t change_count;
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

/* A view's time axis: where each of its states begins, in pixels and in fractions. */
typedef struct nt_raster_columns {
    nt_alloc alloc;
    uint32_t first, end; /* the states that the view sees */
    uint32_t width;
    uint64_t span;    /* positions of the view: a pixel is `span` fractions wide */
    size_t count;     /* end - first + 1: one more than states, for the end */
    uint16_t *column; /* in which state first + i begins */
    uint16_t *last; /* the last one that sees one of the states before first + i: where
                     * its time ends, or that of a last state without width */
    uint64_t *offset; /* where state first + i begins in its column, in fractions; NULL
                       * unless asked for */
} nt_raster_columns;

/* NT_ARGUMENT unless the view is on the axes. On failure there is nothing to clear. */
nt_status
nt_raster_columns_init(nt_raster_columns *columns, const nt_raster *r,
                       const nt_raster_view *view, bool has_offsets, nt_error *err);
void
nt_raster_columns_clear(nt_raster_columns *columns);

/* The last column that sees one of the view's states before state `to`, which is above
 * c->first. */
static inline uint32_t
nt_raster_last_column(const nt_raster_columns *c, uint32_t to)
{
    return c->last[to - c->first];
}

/* A view's address axis. */
typedef struct nt_raster_scale {
    uint64_t first, end;
    uint64_t height;     /* pixels */
    uint64_t span;       /* positions of the view: a pixel is `span` fractions high */
    double per_fraction; /* 1 / span */
} nt_raster_scale;

nt_raster_scale
nt_raster_scale_of(const nt_raster_view *view);

/* An item's rows of pixels in a view, and how much of the outer ones it covers. */
typedef struct nt_raster_rows {
    uint32_t first, last;
    uint64_t in_first, in_last; /* in fractions: a pixel is `span` of them high */
    uint64_t span;
} nt_raster_rows;

/* False if the item is outside the view. */
bool
nt_raster_rows_of(const nt_raster_scale *scale, const nt_raster_item *item,
                  nt_raster_rows *out);

static inline uint64_t
nt_raster_row_share(const nt_raster_rows *rows, uint32_t row)
{
    return row == rows->first  ? rows->in_first
           : row == rows->last ? rows->in_last
                               : rows->span;
}

#endif
