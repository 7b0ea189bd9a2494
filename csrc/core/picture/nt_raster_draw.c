/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planes of a view: what is reserved, and the largest blocks, which are painted one
 * by one. What a sweep over the states finds out is in nt_raster_sums.c.
 */
#include <string.h>

#include "picture/nt_raster_state.h"

/* Where a pixel of a column begins, from the view's first position: it sees what begins
 * before the next one's `begin` and ends behind its own `reach`. These differ by one
 * where the border is within a byte. */
typedef struct draw_border {
    uint64_t begin, reach;
} draw_border;

typedef struct draw_job {
    const nt_raster *raster;
    const nt_raster_view *view;
    const nt_raster_planes *planes;
    nt_raster_edges edges;
    nt_raster_scale scale;
    /* Of the pixels of a column, and of some behind it that nothing reaches. */
    draw_border *borders;
    double per_byte; /* pixels */
} draw_job;

/* Of two blocks the larger one has the larger key, of as large ones that with the lower
 * row; it is never 0. */
static inline uint64_t
draw_key(const nt_raster *r, size_t i)
{
    const uint64_t size = r->ranks != NULL ? r->ranks[i] : r->items[i].length;
    return size << 32 | (uint32_t)~nt_raster_block_row(r, i);
}

/* More than any rounding in draw_pixel_of comes to, in pixels. */
#define DRAW_LOW 1e-6

/* The larger key stays. */
static inline void
draw_over(uint64_t *pixel, uint64_t key)
{
    *pixel = *pixel < key ? key : *pixel;
}

/* The pixel of a column that a position is in, which counts from the view's first one.
 * What is divided may come out a little low: then the next pixel begins before it. */
static inline uint32_t
draw_pixel_of(const draw_border *borders, double per_byte, uint64_t from)
{
    const double pixels = (double)(int64_t)from * per_byte;
    const uint32_t low = (uint32_t)(int32_t)(pixels - DRAW_LOW);
    return low + (from >= borders[low + 1].begin);
}

/* Paints the items from number `i` up to `end`, each in its columns. */
static void
draw_items(const draw_job *d, uint64_t *keys, size_t i, size_t end, uint32_t *first)
{
    const nt_raster *r = d->raster;
    const uint64_t view_first = d->scale.first, view_end = d->scale.end;
    uint64_t from, to;
    uint32_t last;
    for (; i < end; i++) {
        const nt_raster_item *item = &r->items[i];
        nt_raster_extent(&d->scale.units, item, &from, &to);
        if (to <= view_first || from >= view_end ||
            !nt_raster_columns_of(&d->edges, item, first, &last)) {
            continue;
        }
        const uint64_t key = draw_key(r, i);
        from = from > view_first ? from - view_first : 0;
        to -= view_first;
        uint32_t at = draw_pixel_of(d->borders, d->per_byte, from);
        uint64_t *line = keys + (size_t)at * d->view->width;
        do {
            for (uint32_t column = *first; column <= last; column++) {
                draw_over(line + column, key);
            }
            line += d->view->width;
        } while (to > d->borders[++at].reach);
    }
}

/*
 * The same of items that only one column sees: into `keys`, which are that column's.
 * Few blocks are higher than two pixels; which are in one is not to be foreseen.
 */
static inline void
draw_in_column(const draw_job *d, uint64_t *keys, size_t i, size_t end, bool is_plain)
{
    const nt_raster *r = d->raster;
    const nt_raster_units units = d->scale.units;
    const uint64_t view_first = d->scale.first, view_end = d->scale.end;
    const draw_border *borders = d->borders;
    const double per_byte = d->per_byte;
    uint64_t from, to;
    for (const nt_raster_item *item = &r->items[i]; i < end; i++, item++) {
        if (is_plain) {
            from = (uint64_t)item->place << units.place_shift;
            to = from + ((uint64_t)item->length << units.length_shift);
        } else {
            nt_raster_extent(&units, item, &from, &to);
        }
        if (item->begin >= item->end || to <= view_first || from >= view_end) {
            continue;
        }
        const uint64_t key =
            is_plain ? (uint64_t)item->length << 32 | (uint32_t)~i : draw_key(r, i);
        from = from > view_first ? from - view_first : 0;
        to -= view_first;
        uint32_t at = draw_pixel_of(borders, per_byte, from);
        draw_over(keys + at, key);
        draw_over(keys + at + (to > borders[at + 1].reach), key);
        for (at += 2; to > borders[at].reach; at++) {
            draw_over(keys + at, key);
        }
    }
}

static void
draw_column(const draw_job *d, uint64_t *keys, size_t i, size_t end)
{
    const nt_raster *r = d->raster;
    if (r->wide_count == 0 && r->block_rows == NULL) {
        draw_in_column(d, keys, i, end, true);
    } else {
        draw_in_column(d, keys, i, end, false);
    }
}

/* Puts a column's keys into the picture's, and leaves it empty. */
static void
draw_put_column(const draw_job *d, uint64_t *keys, uint64_t *of_column, uint32_t column)
{
    for (uint32_t at = 0; at < d->view->height; at++) {
        draw_over(keys + (size_t)at * d->view->width + column, of_column[at]);
        of_column[at] = 0;
    }
}

/*
 * Paints each block over the smaller ones in the pixels that see it, chunk after chunk.
 * Where a column has many states, most chunks are seen by one column only: these are
 * painted side by side, since pixels above each other lie on pages of their own.
 */
static void
draw_keys(const draw_job *d, uint64_t *keys, uint64_t *of_column)
{
    const nt_raster *r = d->raster;
    const nt_raster_edges *e = &d->edges;
    uint32_t guess = 0, open = 0;
    for (size_t i = nt_raster_next(r, 0, e->first, e->end); i < r->block_count;
         i = nt_raster_next(r, i + NT_RASTER_CHUNK, e->first, e->end)) {
        const size_t left = r->block_count - i;
        const size_t end = i + (left < NT_RASTER_CHUNK ? left : NT_RASTER_CHUNK);
        if (!nt_raster_is_in_column(e, &r->chunks[i / NT_RASTER_CHUNK], &guess)) {
            draw_items(d, keys, i, end, &guess);
            continue;
        }
        if (guess != open) {
            draw_put_column(d, keys, of_column, open);
            open = guess;
        }
        draw_column(d, of_column, i, end);
    }
    draw_put_column(d, keys, of_column, open);
}

static void
draw_standing(const draw_job *d)
{
    const nt_raster *r = d->raster;
    uint32_t first = 0, last;
    nt_raster_rows rows;
    for (size_t i = r->block_count; i < r->item_count; i++) {
        if (!nt_raster_columns_of(&d->edges, &r->items[i], &first, &last) ||
            !nt_raster_rows_of(&d->scale, &r->items[i], &rows)) {
            continue;
        }
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            memset(d->planes->standing + (size_t)at * d->view->width + first, 1,
                   last - first + 1);
        }
    }
}

static void
draw_clear(const nt_raster_view *view, const nt_raster_planes *planes)
{
    const size_t pixels = (size_t)view->width * view->height;
    if (planes->standing != NULL) {
        memset(planes->standing, 0, pixels);
    }
    for (size_t i = 0; planes->used != NULL && i < pixels; i++) {
        planes->used[i] = planes->reserved[i] = 0;
    }
    for (size_t i = 0; planes->seen != NULL && i < pixels; i++) {
        planes->seen[i] = 0;
    }
}

/* Borders behind the last pixel of a column. */
enum { BORDERS_BEHIND = 2 };

static void
draw_find_borders(draw_job *d)
{
    const nt_raster_scale *scale = &d->scale;
    const uint64_t height = scale->height;
    d->per_byte = (double)height / (double)scale->span;
    for (uint64_t at = 0; at < height; at++) {
        const uint64_t border = at * scale->span;
        d->borders[at].reach = border / height;
        d->borders[at].begin = d->borders[at].reach + (border % height != 0);
    }
    for (uint64_t at = height; at < height + BORDERS_BEHIND; at++) {
        d->borders[at] = (draw_border){UINT64_MAX, UINT64_MAX};
    }
}

static void
draw_put_planes(const draw_job *d, const uint64_t *keys, size_t pixels)
{
    const uint64_t *sizes = nt_timeline_allocations(d->raster->timeline)->size;
    for (size_t i = 0; d->planes->row != NULL && i < pixels; i++) {
        d->planes->row[i] = keys[i] == 0 ? NT_NONE : ~(uint32_t)keys[i];
    }
    for (size_t i = 0; d->planes->largest != NULL && i < pixels; i++) {
        d->planes->largest[i] = keys[i] == 0 ? 0 : sizes[~(uint32_t)keys[i]];
    }
}

/* What the blocks one by one do. */
static nt_status
draw_blocks(draw_job *d, nt_error *err)
{
    const nt_alloc *alloc = &d->raster->alloc;
    const size_t height = d->view->height, pixels = d->view->width * height;
    const size_t key_bytes = (pixels + height) * sizeof(uint64_t);
    const size_t bytes = key_bytes + (height + BORDERS_BEHIND) * sizeof(draw_border);
    uint64_t *keys = nt_allocate(alloc, bytes);
    if (keys == NULL) {
        return nt_fail_nomem(err);
    }
    memset(keys, 0, key_bytes);
    d->borders = (draw_border *)(keys + pixels + height);
    draw_find_borders(d);
    draw_keys(d, keys, keys + pixels);
    draw_put_planes(d, keys, pixels);
    nt_release(alloc, keys, bytes);
    return NT_OK;
}

nt_status
nt_raster_draw(const nt_raster *r, const nt_raster_view *view,
               const nt_raster_planes *planes, nt_error *err)
{
    nt_raster_time time;
    NT_TRY(nt_raster_time_init(&time, r, view, err));
    draw_job d = {.raster = r, .view = view, .planes = planes};
    NT_TRY(nt_raster_edges_init(&d.edges, &r->alloc, &time, err));
    nt_status status = NT_OK;
    d.scale = nt_raster_scale_of(r, view);
    draw_clear(view, planes);
    if (planes->standing != NULL) {
        draw_standing(&d);
    }
    if (planes->seen != NULL || planes->used != NULL) {
        NT_TRY_DONE(nt_raster_sums(r, view, &time, planes, err));
    }
    if (planes->largest != NULL || planes->row != NULL) {
        NT_TRY_DONE(draw_blocks(&d, err));
    }
done:
    nt_raster_edges_clear(&d.edges);
    return status;
}
