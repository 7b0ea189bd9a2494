/* SPDX-License-Identifier: Apache-2.0 */
/* The largest blocks of a view, and all others as one band. */
#include "picture/nt_raster_state.h"

#include "base/nt_sort.h"

/* Whether a view sees a block in one of its states. */
static bool
top_is_seen(const nt_raster *r, const nt_raster_view *view, const nt_raster_time *time,
            const nt_raster_item *item)
{
    uint64_t from, to;
    nt_raster_extent(&r->units, item, &from, &to);
    return item->begin < item->end && item->begin < time->end &&
           item->end > time->first && from < view->y_end && to > view->y_first;
}

/* Adds each block's bytes to the columns' largest sums of the states they see. */
static void
top_sum_rest(const nt_raster *r, const nt_raster_time *time, const nt_sort_item *seen,
             size_t kept, size_t found, uint64_t *delta, uint64_t *out)
{
    const uint32_t first = time->first;
    const size_t states = time->end - first;
    for (size_t i = 0; i < states; i++) {
        delta[i] = 0;
    }
    for (size_t i = kept; i < found; i++) {
        const nt_raster_item *item = &r->items[seen[i].value];
        const uint64_t size = nt_raster_block_size(r, seen[i].value);
        delta[item->begin < first ? 0 : item->begin - first] += size;
        if (item->end < time->end) {
            delta[item->end - first] -= size;
        }
    }
    for (uint32_t column = 0; column < time->width; column++) {
        out[column] = 0;
    }
    uint64_t sum = 0;
    nt_raster_place place = nt_raster_time_start(time);
    while (place.state < time->end) {
        sum += delta[place.state - first];
        uint32_t column = place.column;
        nt_raster_time_step(time, &place);
        for (; column <= place.last; column++) {
            out[column] = out[column] < sum ? sum : out[column];
        }
    }
}

nt_status
nt_raster_top(const nt_raster *r, const nt_raster_view *view, size_t most,
              uint32_t *rows, size_t *count, uint64_t *rest, nt_error *err)
{
    nt_raster_time time;
    NT_TRY(nt_raster_time_init(&time, r, view, err));
    nt_status status = NT_OK;
    const size_t states = time.end - time.first;
    uint64_t *delta = nt_allocate(&r->alloc, states * sizeof *delta);
    nt_sort_item *seen = nt_allocate(&r->alloc, r->block_count * sizeof *seen);
    size_t found = 0;
    if (delta == NULL || (seen == NULL && r->block_count != 0)) {
        status = nt_fail_nomem(err);
        goto done;
    }
    /* Items follow the rows unless a filter has ordered them by their beginnings, which
     * is the order of the rows as well. */
    for (size_t i = nt_raster_next(r, 0, time.first, time.end); i < r->block_count;
         i = nt_raster_next(r, i + 1, time.first, time.end)) {
        if (top_is_seen(r, view, &time, &r->items[i])) {
            seen[found++] = (nt_sort_item){~nt_raster_block_size(r, i), (uint32_t)i};
        }
    }
    nt_sort(seen, found);
    const size_t kept = found < most ? found : most;
    top_sum_rest(r, &time, seen, kept, found, delta, rest);
    for (size_t i = 0; i < kept; i++) {
        rows[i] = nt_raster_block_row(r, seen[i].value);
    }
    *count = kept;
done:
    nt_release(&r->alloc, delta, states * sizeof *delta);
    nt_release(&r->alloc, seen, r->block_count * sizeof *seen);
    return status;
}
