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

/* Paints each block over the smaller ones in the pixels that see it. */
static void
draw_keys(const draw_job *d, uint64_t *keys)
{
    const nt_raster *r = d->raster;
    const size_t width = d->view->width;
    uint32_t first = 0, last;
    nt_raster_rows rows;
    for (size_t i = nt_raster_next(r, 0, d->edges.first, d->edges.end);
         i < r->block_count;
         i = nt_raster_next(r, i + 1, d->edges.first, d->edges.end)) {
        const nt_raster_item *item = &r->items[i];
        if (!nt_raster_rows_of(&d->scale, item, &rows) ||
            !nt_raster_columns_of(&d->edges, item, &first, &last)) {
            continue;
        }
        const uint64_t key = draw_key(r, i);
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            uint64_t *const line = keys + at * width;
            for (uint32_t column = first; column <= last; column++) {
                line[column] = line[column] < key ? key : line[column];
            }
        }
    }
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
    const uint64_t *sizes = nt_timeline_allocations(d->raster->timeline)->size;
    uint64_t *keys = nt_allocate(alloc, pixels * sizeof *keys);
    if (keys == NULL) {
        return nt_fail_nomem(err);
    }
    memset(keys, 0, pixels * sizeof *keys);
    draw_keys(d, keys);
    for (size_t i = 0; d->planes->row != NULL && i < pixels; i++) {
        d->planes->row[i] = keys[i] == 0 ? NT_NONE : ~(uint32_t)keys[i];
    }
    for (size_t i = 0; d->planes->largest != NULL && i < pixels; i++) {
        d->planes->largest[i] = keys[i] == 0 ? 0 : sizes[~(uint32_t)keys[i]];
    }
    nt_release(alloc, keys, pixels * sizeof *keys);
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
    d.scale = nt_raster_scale_of(view);
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
