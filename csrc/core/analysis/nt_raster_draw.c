/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planes of a view. Each row of pixels knows how much of it is in blocks and how
 * much is reserved, in whole fractions; a sweep over the states changes these with what
 * begins and ends, and before a row changes, what it was is written into the pixels of
 * the time since its last change. The largest blocks are painted one by one.
 */
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
    if (!nt_raster_rows_of(d->view, &r->items[number], &rows)) {
        return;
    }
    for (uint32_t at = rows.first; at <= rows.last; at++) {
        const uint64_t share = nt_raster_row_share(&rows, at);
        draw_flush(d, at, state);
        uint64_t *sum = is_block ? &d->rows[at].used : &d->rows[at].reserved;
        *sum = ends ? *sum - share : *sum + share;
    }
}

static void
draw_states(draw_sweep *d)
{
    const nt_raster *r = d->raster;
    const uint32_t end = d->columns.end;
    for (uint32_t state = 0; state < end; state++) {
        for (uint32_t i = r->change_first[state]; i < r->change_first[state + 1]; i++) {
            draw_change(d, r->changes[i], state);
        }
    }
    for (uint32_t at = 0; at < d->view->height; at++) {
        draw_flush(d, at, end);
    }
}

/* Paints columns first .. last of one line with a block. */
static void
draw_block(const draw_sweep *d, const nt_raster_item *item, size_t line, uint32_t first,
           uint32_t last)
{
    if (d->planes->largest != NULL) {
        uint64_t *largest = d->planes->largest + line;
        for (uint32_t column = first; column <= last; column++) {
            largest[column] =
                largest[column] < item->size ? item->size : largest[column];
        }
    }
    if (d->planes->row != NULL) {
        const uint64_t *sizes = nt_timeline_allocations(d->raster->timeline)->size;
        uint32_t *row = d->planes->row + line;
        for (uint32_t column = first; column <= last; column++) {
            if (row[column] == NT_NONE || sizes[row[column]] < item->size) {
                row[column] = item->row;
            }
        }
    }
}

/* Paints each block over the smaller ones in the pixels that see it. */
static void
draw_largest(const draw_sweep *d)
{
    const nt_raster *r = d->raster;
    const nt_raster_columns *c = &d->columns;
    for (size_t i = 0; i < r->block_count; i++) {
        const nt_raster_item *item = &r->items[i];
        const uint32_t from = item->begin < c->first ? c->first : item->begin;
        const uint32_t to = item->end > c->end ? c->end : item->end;
        nt_raster_rows rows;
        if (from >= to || !nt_raster_rows_of(d->view, item, &rows)) {
            continue;
        }
        const uint32_t first = c->column[from - c->first];
        const uint32_t last = nt_raster_last_column(c, to);
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            draw_block(d, item, (size_t)at * d->view->width, first, last);
        }
    }
}

static void
draw_clear(const nt_raster_view *view, const nt_raster_planes *planes)
{
    const size_t pixels = (size_t)view->width * view->height;
    for (size_t i = 0; planes->largest != NULL && i < pixels; i++) {
        planes->largest[i] = 0;
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

nt_status
nt_raster_draw(const nt_raster *r, const nt_raster_view *view,
               const nt_raster_planes *planes, nt_error *err)
{
    draw_sweep d = {.raster = r, .view = view, .planes = planes};
    NT_TRY(nt_raster_columns_init(&d.columns, r, view, err));
    nt_status status = NT_OK;
    const size_t bytes = view->height * sizeof(draw_row);
    d.rows = nt_allocate(&r->alloc, bytes);
    if (d.rows == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (uint32_t at = 0; at < view->height; at++) {
        d.rows[at] = (draw_row){0};
    }
    d.per_area = 1.0 / ((double)(view->y_end - view->y_first) * (double)d.columns.span);
    draw_clear(view, planes);
    draw_states(&d);
    draw_largest(&d);
done:
    nt_release(&r->alloc, d.rows, bytes);
    nt_raster_columns_clear(&d.columns);
    return status;
}
