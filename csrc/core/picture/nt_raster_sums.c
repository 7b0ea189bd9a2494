/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of pixels, and what they have seen. Each row of pixels knows how much of it is
 * in blocks and how much is reserved, in whole fractions; a sweep over the states
 * changes these with what begins and ends, and before a row changes, what it was is
 * written into the pixels of the time since its last change.
 */
#include "picture/nt_raster_state.h"

/* A row of pixels while the sweep passes. */
typedef struct sums_row {
    uint64_t used, reserved; /* fractions of the pixels' height */
    nt_raster_place since;   /* the state from which it has been so */
} sums_row;

typedef struct sums_sweep {
    const nt_raster *raster;
    const nt_raster_view *view;
    const nt_raster_time *time;
    const nt_raster_planes *planes;
    nt_raster_scale scale;
    nt_raster_place now;
    sums_row *rows;
    double per_area; /* turns fractions times fractions into a share of a pixel */
    /* The items that begin or end with each of the view's states but the first, as
     * item * 2 + (1 at its end): those of its state s are changes[change_first[s]] to
     * changes[change_first[s + 1] - 1]. */
    uint32_t *changes, *change_first;
    size_t change_count;
} sums_sweep;

/* Adds `width` fractions of a row's share to a pixel. */
static void
sums_add(const sums_sweep *d, size_t pixel, const sums_row *row, uint64_t width)
{
    const double wide = (double)width * d->per_area;
    const uint64_t full = d->view->y_end - d->view->y_first;
    /* In a trace that contradicts itself blocks lie over each other. */
    const uint64_t used = row->used < full ? row->used : full;
    d->planes->used[pixel] += (double)used * wide;
    d->planes->reserved[pixel] += (double)row->reserved * wide;
}

/* Writes what row number `at` has been since its last change. */
static void
sums_flush(sums_sweep *d, uint32_t at)
{
    sums_row *row = &d->rows[at];
    const nt_raster_place since = row->since, now = d->now;
    row->since = now;
    if (since.state == now.state || (row->used | row->reserved) == 0) {
        return;
    }
    const uint8_t seen = (uint8_t)((row->used != 0 ? NT_SEEN_BLOCK : 0) |
                                   (row->reserved != 0 ? NT_SEEN_RESERVED : 0) |
                                   (row->reserved > row->used ? NT_SEEN_HOLE : 0));
    const size_t line = (size_t)at * d->view->width;
    for (uint32_t column = since.column; d->planes->seen != NULL && column <= now.last;
         column++) {
        d->planes->seen[line + column] |= seen;
    }
    if (d->planes->used == NULL) {
        return;
    }
    if (since.column == now.column) {
        sums_add(d, line + since.column, row, now.offset - since.offset);
        return;
    }
    sums_add(d, line + since.column, row, d->time->span - since.offset);
    for (uint32_t column = since.column + 1; column < now.column; column++) {
        sums_add(d, line + column, row, d->time->span);
    }
    if (now.offset != 0) {
        sums_add(d, line + now.column, row, now.offset);
    }
}

/* An item begins or ends with this state: its rows change. */
static void
sums_change(sums_sweep *d, uint32_t change)
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
        sums_flush(d, at);
        uint64_t *sum = is_block ? &d->rows[at].used : &d->rows[at].reserved;
        *sum = ends ? *sum - share : *sum + share;
    }
}

/* What stands in the view's first state. */
static void
sums_begin(sums_sweep *d)
{
    const nt_raster *r = d->raster;
    const uint32_t first = d->time->first;
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

/* Counts an item's beginning and end, if the view sees them, or puts them in place. */
static void
sums_note(sums_sweep *d, size_t i, bool is_counted)
{
    const nt_raster_item *item = &d->raster->items[i];
    const uint32_t first = d->time->first, end = d->time->end;
    if (item->begin >= item->end) {
        return;
    }
    const uint32_t states[2] = {item->begin, item->end};
    for (uint32_t k = 0; k < 2; k++) {
        if (states[k] > first && states[k] < end) {
            uint32_t *at = &d->change_first[states[k] - first];
            if (is_counted) {
                (*at)++;
            } else {
                d->changes[--*at] = (uint32_t)(2 * i + k);
            }
        }
    }
}

/* Sorts what begins and ends in the view by state, by counting it. */
static nt_status
sums_sort(sums_sweep *d, nt_error *err)
{
    const nt_raster *r = d->raster;
    const uint32_t first = d->time->first, end = d->time->end;
    const size_t states = end - first;
    d->change_first = nt_allocate(&r->alloc, (states + 1) * sizeof(uint32_t));
    if (d->change_first == NULL) {
        return nt_fail_nomem(err);
    }
    for (size_t s = 0; s <= states; s++) {
        d->change_first[s] = 0;
    }
    for (size_t i = nt_raster_next(r, 0, first, end); i < r->item_count;
         i = nt_raster_next(r, i + 1, first, end)) {
        sums_note(d, i, true);
    }
    uint32_t sum = 0;
    for (size_t s = 0; s <= states; s++) {
        sum += d->change_first[s];
        d->change_first[s] = sum;
    }
    d->change_count = sum;
    d->changes = nt_allocate(&r->alloc, sum * sizeof(uint32_t));
    if (d->changes == NULL && sum != 0) {
        return nt_fail_nomem(err);
    }
    /* From the ends downwards, so that each count turns into where its state begins. */
    for (size_t i = nt_raster_next(r, 0, first, end); i < r->item_count;
         i = nt_raster_next(r, i + 1, first, end)) {
        sums_note(d, i, false);
    }
    return NT_OK;
}

static void
sums_states(sums_sweep *d)
{
    const uint32_t first = d->time->first, end = d->time->end;
    while (d->now.state < end) {
        const uint32_t *from = d->change_first + (d->now.state - first);
        for (uint32_t i = from[0]; i < from[1]; i++) {
            sums_change(d, d->changes[i]);
        }
        nt_raster_time_step(d->time, &d->now);
    }
    for (uint32_t at = 0; at < d->view->height; at++) {
        sums_flush(d, at);
    }
}

nt_status
nt_raster_sums(const nt_raster *r, const nt_raster_view *view,
               const nt_raster_time *time, const nt_raster_planes *planes,
               nt_error *err)
{
    sums_sweep d = {.raster = r, .view = view, .time = time, .planes = planes};
    const size_t bytes = view->height * sizeof(sums_row);
    nt_status status = NT_OK;
    d.scale = nt_raster_scale_of(r, view);
    d.per_area = 1.0 / ((double)d.scale.span * (double)time->span);
    d.now = nt_raster_time_start(time);
    d.rows = nt_allocate(&r->alloc, bytes);
    if (d.rows == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t at = 0; at < view->height; at++) {
        d.rows[at] = (sums_row){.since = d.now};
    }
    NT_TRY_DONE(sums_sort(&d, err));
    sums_begin(&d);
    sums_states(&d);
done:
    nt_release(&r->alloc, d.rows, bytes);
    nt_release(&r->alloc, d.changes, d.change_count * sizeof(uint32_t));
    nt_release(&r->alloc, d.change_first,
               d.change_first == NULL
                   ? 0
                   : ((size_t)time->end - time->first + 1) * sizeof(uint32_t));
    return status;
}
