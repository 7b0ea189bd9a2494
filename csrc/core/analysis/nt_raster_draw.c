/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planes of a view. Each row of pixels knows how much of it is in blocks and how
 * much is reserved, in whole fractions; a sweep over the states changes these with what
 * begins and ends, and before a row changes, what it was is written into the pixels of
 * the time since its last change. The largest blocks are painted one by one.
 */
#include <string.h>

#include "analysis/nt_raster_state.h"

/* A row of pixels while the sweep passes. */
typedef struct draw_row {
    uint64_t used, reserved; /* fractions of the pixels' height */
    uint32_t since;          /* the state from which it has been so */
} draw_row;

typedef struct draw_sweep {
    const nt_raster *raster;
    const nt_raster_view *view;
    const nt_raster_planes *planes;
    nt_raster_columns columns;
    nt_raster_scale scale;
    draw_row *rows;
    double per_area; /* turns fractions times fractions into a share of a pixel */
} draw_sweep;

/* Adds `width` fractions of a row's share to a pixel. */
static void
draw_add(const draw_sweep *d, size_t pixel, const draw_row *row, uint64_t width)
{
    const double wide = (double)width * d->per_area;
    const uint64_t full = d->view->y_end - d->view->y_first;
    /* In a trace that contradicts itself blocks lie over each other. */
    const uint64_t used = row->used < full ? row->used : full;
    d->planes->used[pixel] += (double)used * wide;
    d->planes->reserved[pixel] += (double)row->reserved * wide;
}

/* Writes what row number `at` has been since its last change, up to state `to`. */
static void
draw_flush(draw_sweep *d, uint32_t at, uint32_t to)
{
    draw_row *row = &d->rows[at];
    const nt_raster_columns *c = &d->columns;
    const uint32_t from = row->since < c->first ? c->first : row->since;
    row->since = to;
    if (from >= to || (row->used | row->reserved) == 0) {
        return;
    }
    const uint8_t seen = (uint8_t)((row->used != 0 ? NT_SEEN_BLOCK : 0) |
                                   (row->reserved != 0 ? NT_SEEN_RESERVED : 0) |
                                   (row->reserved > row->used ? NT_SEEN_HOLE : 0));
    const size_t line = (size_t)at * d->view->width;
    const uint32_t first = c->column[from - c->first];
    const uint32_t last = nt_raster_last_column(c, to);
    const uint32_t end = c->column[to - c->first];
    for (uint32_t column = first; d->planes->seen != NULL && column <= last; column++) {
        d->planes->seen[line + column] |= seen;
    }
    if (d->planes->used == NULL) {
        return;
    }
    const uint64_t begins = c->offset[from - c->first], ends = c->offset[to - c->first];
    if (first == end) {
        draw_add(d, line + first, row, ends - begins);
        return;
    }
    draw_add(d, line + first, row, c->span - begins);
    for (uint32_t column = first + 1; column < end; column++) {
        draw_add(d, line + column, row, c->span);
    }
    if (ends != 0) {
        draw_add(d, line + end, row, ends);
    }
}

/* An item begins or ends with `state`: its rows change. */
static void
draw_change(draw_sweep *d, uint32_t change, uint32_t state)
{
    const nt_raster *r = d->raster;
    const size_t number = change / 2;
    const bool ends = change % 2 != 0, is_block = number < r->block_count;
    nt_raster_rows rows;
    if (!nt_raster_rows_of(&d->scale, &r->items[number], &rows)) {
        return;
    }
    for (uint32_t at = rows.first; at <= rows.last; at++) {
        const uint64_t share = nt_raster_row_share(&rows, at);
        draw_flush(d, at, state);
        uint64_t *sum = is_block ? &d->rows[at].used : &d->rows[at].reserved;
        *sum = ends ? *sum - share : *sum + share;
    }
}

/* What stands in the view's first state. */
static void
draw_begin(draw_sweep *d)
{
    const nt_raster *r = d->raster;
    const uint32_t first = d->columns.first;
    for (size_t i = nt_raster_next(r, 0, first, first + 1); i < r->item_count;
         i = nt_raster_next(r, i + 1, first, first + 1)) {
        const nt_raster_item *item = &r->items[i];
        nt_raster_rows rows;
        if (item->begin > first || item->end <= first ||
            !nt_raster_rows_of(&d->scale, item, &rows)) {
            continue;
        }
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            const uint64_t share = nt_raster_row_share(&rows, at);
            uint64_t *sum =
                i < r->block_count ? &d->rows[at].used : &d->rows[at].reserved;
            *sum += share;
        }
    }
}

static void
draw_states(draw_sweep *d)
{
    const nt_raster *r = d->raster;
    const uint32_t end = d->columns.end;
    for (uint32_t state = d->columns.first + 1; state < end; state++) {
        for (uint32_t i = r->change_first[state]; i < r->change_first[state + 1]; i++) {
            draw_change(d, r->changes[i], state);
        }
    }
    for (uint32_t at = 0; at < d->view->height; at++) {
        draw_flush(d, at, end);
    }
}

/* The columns and rows of pixels that an item is seen in. */
typedef struct draw_box {
    uint32_t first, last; /* columns */
    nt_raster_rows rows;
} draw_box;

static bool
draw_box_of(const draw_sweep *d, const nt_raster_item *item, draw_box *box)
{
    const nt_raster_columns *c = &d->columns;
    const uint32_t from = item->begin < c->first ? c->first : item->begin;
    const uint32_t to = item->end > c->end ? c->end : item->end;
    if (from >= to || !nt_raster_rows_of(&d->scale, item, &box->rows)) {
        return false;
    }
    box->first = c->column[from - c->first];
    box->last = nt_raster_last_column(c, to);
    return true;
}

/* Paints one line of a block over smaller ones. */
static void
draw_block(const nt_raster_item *item, uint64_t *largest, uint32_t *row, uint32_t count)
{
    const uint64_t size = item->size;
    for (uint32_t i = 0; row == NULL && i < count; i++) {
        largest[i] = largest[i] < size ? size : largest[i];
    }
    for (uint32_t i = 0; row != NULL && i < count; i++) {
        const bool is_larger = largest[i] < size;
        largest[i] = is_larger ? size : largest[i];
        row[i] = is_larger ? item->row : row[i];
    }
}

/* Paints each block over the smaller ones in the pixels that see it; `largest` is the
 * caller's plane, or room for one. */
static void
draw_largest(const draw_sweep *d, uint64_t *largest)
{
    const nt_raster *r = d->raster;
    const uint32_t first = d->columns.first, end = d->columns.end;
    for (size_t i = nt_raster_next(r, 0, first, end); i < r->block_count;
         i = nt_raster_next(r, i + 1, first, end)) {
        draw_box box;
        if (!draw_box_of(d, &r->items[i], &box)) {
            continue;
        }
        for (uint32_t at = box.rows.first; at <= box.rows.last; at++) {
            const size_t pixel = (size_t)at * d->view->width + box.first;
            draw_block(&r->items[i], largest + pixel,
                       d->planes->row == NULL ? NULL : d->planes->row + pixel,
                       box.last - box.first + 1);
        }
    }
}

static void
draw_standing(const draw_sweep *d)
{
    const nt_raster *r = d->raster;
    for (size_t i = r->block_count; i < r->item_count; i++) {
        draw_box box;
        if (!draw_box_of(d, &r->items[i], &box)) {
            continue;
        }
        for (uint32_t at = box.rows.first; at <= box.rows.last; at++) {
            memset(d->planes->standing + (size_t)at * d->view->width + box.first, 1,
                   box.last - box.first + 1);
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
    for (size_t i = 0; planes->row != NULL && i < pixels; i++) {
        planes->row[i] = NT_NONE;
    }
}

/* What the sweep over the states finds out. */
static nt_status
draw_sums(draw_sweep *d, nt_error *err)
{
    const size_t bytes = d->view->height * sizeof(draw_row);
    d->rows = nt_allocate(&d->raster->alloc, bytes);
    if (d->rows == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t at = 0; at < d->view->height; at++) {
        d->rows[at] = (draw_row){0};
    }
    d->per_area = 1.0 / ((double)d->scale.span * (double)d->columns.span);
    draw_begin(d);
    draw_states(d);
    nt_release(&d->raster->alloc, d->rows, bytes);
    return NT_OK;
}

/* What the blocks one by one do. */
static nt_status
draw_blocks(const draw_sweep *d, nt_error *err)
{
    const nt_alloc *alloc = &d->raster->alloc;
    const size_t pixels = (size_t)d->view->width * d->view->height;
    const size_t bytes = d->planes->largest == NULL ? pixels * sizeof(uint64_t) : 0;
    uint64_t *largest = bytes == 0 ? d->planes->largest : nt_allocate(alloc, bytes);
    if (largest == NULL) {
        return nt_fail_nomem(err);
    }
    memset(largest, 0, pixels * sizeof(uint64_t));
    draw_largest(d, largest);
    if (bytes != 0) {
        nt_release(alloc, largest, bytes);
    }
    return NT_OK;
}

nt_status
nt_raster_draw(const nt_raster *r, const nt_raster_view *view,
               const nt_raster_planes *planes, nt_error *err)
{
    draw_sweep d = {.raster = r, .view = view, .planes = planes};
    NT_TRY(nt_raster_columns_init(&d.columns, r, view, planes->used != NULL, err));
    nt_status status = NT_OK;
    d.scale = nt_raster_scale_of(view);
    draw_clear(view, planes);
    if (planes->standing != NULL) {
        draw_standing(&d);
    }
    if (planes->seen != NULL || planes->used != NULL) {
        NT_TRY_DONE(draw_sums(&d, err));
    }
    if (planes->largest != NULL || planes->row != NULL) {
        NT_TRY_DONE(draw_blocks(&d, err));
    }
done:
    nt_raster_columns_clear(&d.columns);
    return status;
}
