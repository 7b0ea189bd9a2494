/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planes of a view: what is reserved, and the largest blocks, which are painted one
 * by one. What a sweep over the states finds out is in nt_raster_sums.c.
 */
#include <string.h>

#include "analysis/nt_raster_state.h"

typedef struct draw_job {
    const nt_raster *raster;
    const nt_raster_view *view;
    const nt_raster_planes *planes;
    nt_raster_edges edges;
    nt_raster_scale scale;
} draw_job;

/* Of two blocks the larger one has the larger key, of as large ones that with the lower
 * row; it is never 0. */
static inline uint64_t
draw_key(const nt_raster *r, size_t i)
{
    const uint64_t size = r->ranks != NULL
                              ? r->ranks[i]
                              : nt_raster_block_size(r, &r->items[i]) >> r->size_shift;
    return size << 32 | (uint32_t)~r->items[i].row;
}

/* The larger key stays. */
static inline void
draw_over(uint64_t *pixel, uint64_t key)
{
    *pixel = *pixel < key ? key : *pixel;
}

/* Paints the items from number `i` up to `end`, each in its columns. */
static void
draw_items(const draw_job *d, uint64_t *keys, size_t i, size_t end, uint32_t *first)
{
    const nt_raster *r = d->raster;
    const size_t width = d->view->width;
    uint32_t last;
    nt_raster_rows rows;
    for (; i < end; i++) {
        const nt_raster_item *item = &r->items[i];
        if (!nt_raster_rows_of(&d->scale, item, &rows) ||
            !nt_raster_columns_of(&d->edges, item, first, &last)) {
            continue;
        }
        const uint64_t key = draw_key(r, i);
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            uint64_t *const line = keys + at * width;
            for (uint32_t column = *first; column <= last; column++) {
                draw_over(line + column, key);
            }
        }
    }
}

/* The same of items that only one column sees: into `keys`, which are that column's.
 * Few blocks are higher than two pixels; which are in one is not to be foreseen. */
static void
draw_column(const draw_job *d, uint64_t *keys, size_t i, size_t end)
{
    const nt_raster *r = d->raster;
    const nt_raster_scale *scale = &d->scale;
    uint64_t from, to, rest;
    for (; i < end; i++) {
        const nt_raster_item *item = &r->items[i];
        nt_raster_extent(scale->wides, item, &from, &to);
        if (item->begin >= item->end || to <= scale->first || from >= scale->end) {
            continue;
        }
        from = from < scale->first ? scale->first : from;
        to = to > scale->end ? scale->end : to;
        const uint32_t low =
            nt_raster_divide(scale, (from - scale->first) * scale->height, &rest);
        const uint32_t high =
            nt_raster_divide(scale, (to - scale->first) * scale->height - 1, &rest);
        const uint64_t key = draw_key(r, i);
        draw_over(keys + low, key);
        draw_over(keys + high, key);
        for (uint32_t at = low + 1; at < high; at++) {
            draw_over(keys + at, key);
        }
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

/* What the blocks one by one do. */
static nt_status
draw_blocks(const draw_job *d, nt_error *err)
{
    const nt_alloc *alloc = &d->raster->alloc;
    const size_t pixels = (size_t)d->view->width * d->view->height;
    const size_t bytes = (pixels + d->view->height) * sizeof(uint64_t);
    const uint64_t *sizes = nt_timeline_allocations(d->raster->timeline)->size;
    uint64_t *keys = nt_allocate(alloc, bytes);
    if (keys == NULL) {
        return nt_fail_nomem(err);
    }
    memset(keys, 0, bytes);
    draw_keys(d, keys, keys + pixels);
    for (size_t i = 0; d->planes->row != NULL && i < pixels; i++) {
        d->planes->row[i] = keys[i] == 0 ? NT_NONE : ~(uint32_t)keys[i];
    }
    for (size_t i = 0; d->planes->largest != NULL && i < pixels; i++) {
        d->planes->largest[i] = keys[i] == 0 ? 0 : sizes[~(uint32_t)keys[i]];
    }
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
