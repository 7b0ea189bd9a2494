/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States and addresses as pixels. A distance from the view's edge, times the number of
 * pixels, counts in fractions of which a pixel has as many as the view has positions:
 * whole numbers, so that what lies on the border between two pixels is never in doubt.
 */
#include "picture/nt_raster_state.h"
#include "base/nt_search.h"

/* Stretches of states whose columns are known, for a search to begin with: few enough
 * to stay in the processor's nearest cache. */
#define VIEW_HINTS 4096

static nt_status
view_check(const nt_raster *r, const nt_raster_view *v, nt_error *err)
{
    if (v->x_first >= v->x_end || v->x_end > nt_raster_width(r) ||
        v->y_first >= v->y_end || v->y_end > r->height) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the view is empty, or not on the picture's axes");
    }
    if (v->width == 0 || v->width > NT_RASTER_MOST_PIXELS || v->height == 0 ||
        v->height > NT_RASTER_MOST_PIXELS) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a picture has 1 to %d pixels a side", NT_RASTER_MOST_PIXELS);
    }
    return NT_OK;
}

nt_status
nt_raster_time_init(nt_raster_time *time, const nt_raster *r, const nt_raster_view *v,
                    nt_error *err)
{
    NT_TRY(view_check(r, v, err));
    size_t first =
        nt_search_ahead(r->positions, 0, r->states, v->x_first, r->states / 2);
    /* The state before lasts into the view where its successor begins inside of it. */
    if (first > 0 && nt_rising_at(r->positions, first) > v->x_first) {
        first--;
    }
    *time = (nt_raster_time){
        .positions = r->positions,
        .x_first = v->x_first,
        .x_end = v->x_end,
        .first = (uint32_t)first,
        .end = (uint32_t)nt_search_ahead(r->positions, first, r->states, v->x_end,
                                         (r->states - first) / 2),
        .width = v->width,
        .span = v->x_end - v->x_first,
    };
    return NT_OK;
}

nt_raster_place
nt_raster_time_start(const nt_raster_time *time)
{
    return (nt_raster_place){.state = time->first};
}

static uint64_t
view_clamp(const nt_raster_time *time, uint64_t at)
{
    return at < time->x_first ? time->x_first : at > time->x_end ? time->x_end : at;
}

/* Positions rise, and most states are narrower than a pixel: it rarely takes a
 * division to see how far the next one is from the last. */
void
nt_raster_time_step(const nt_raster_time *time, nt_raster_place *place)
{
    const uint64_t begin = nt_rising_at(time->positions, place->state);
    const uint64_t end = nt_rising_at(time->positions, place->state + 1);
    const uint32_t before = place->column;
    place->offset += (view_clamp(time, end) - view_clamp(time, begin)) * time->width;
    if (place->offset >= time->span) {
        place->column += (uint32_t)(place->offset / time->span);
        place->offset %= time->span;
    }
    const uint32_t open = place->column - (place->offset == 0 && place->column != 0);
    place->last = open > before ? open : before;
    place->state++;
}

/* The state at which a column ends is seen by the next one; an item that ends with it
 * is as well if some of its time lies behind the border. */
static void
view_find_edges(nt_raster_edges *e, const nt_raster_time *time)
{
    size_t ahead = (e->end - e->first) / e->width;
    e->begin[0] = e->first;
    for (uint32_t c = 0; c < e->width; c++) {
        const uint64_t border = (c + UINT64_C(1)) * time->span;
        const uint64_t low = time->x_first + border / e->width;
        const bool is_whole = border % e->width == 0;
        const uint32_t next = (uint32_t)nt_search_ahead(time->positions, e->begin[c],
                                                        e->end, low + !is_whole, ahead);
        ahead = next - e->begin[c];
        e->begin[c + 1] = next;
        e->after[c] = next + (is_whole && nt_rising_at(time->positions, next) == low);
    }
    e->begin[e->width] = e->end;
    e->after[e->width - 1] = UINT32_MAX;
}

static void
view_make_hints(nt_raster_edges *e)
{
    while ((e->end - e->first) >> e->hint_shift >= VIEW_HINTS) {
        e->hint_shift++;
    }
    uint32_t column = 0;
    for (uint64_t k = 0; k <= VIEW_HINTS; k++) {
        const uint64_t to = e->first + (k << e->hint_shift);
        while (column < e->width - 1 && to >= e->after[column]) {
            column++;
        }
        e->hints[k] = (uint16_t)column;
    }
}

/* Bytes of the arrays of edges, which are one block. */
static size_t
view_edge_bytes(uint32_t width)
{
    return (2 * (size_t)width + 1) * sizeof(uint32_t) +
           (VIEW_HINTS + 1) * sizeof(uint16_t);
}

nt_status
nt_raster_edges_init(nt_raster_edges *e, const nt_alloc *alloc,
                     const nt_raster_time *time, nt_error *err)
{
    *e = (nt_raster_edges){
        .alloc = *alloc,
        .first = time->first,
        .end = time->end,
        .width = time->width,
        .begin = nt_allocate(alloc, view_edge_bytes(time->width)),
    };
    if (e->begin == NULL) {
        return nt_fail_nomem(err);
    }
    e->after = e->begin + e->width + 1;
    e->hints = (uint16_t *)(e->after + e->width);
    view_find_edges(e, time);
    view_make_hints(e);
    return NT_OK;
}

void
nt_raster_edges_clear(nt_raster_edges *e)
{
    nt_release(&e->alloc, e->begin, view_edge_bytes(e->width));
    e->begin = e->after = NULL;
    e->hints = NULL;
}

uint32_t
nt_raster_column_of(const nt_raster_edges *e, uint32_t state)
{
    uint32_t low = 0, high = e->width;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (e->begin[middle] <= state) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t
nt_raster_last_of(const nt_raster_edges *e, uint32_t to, uint32_t column)
{
    const uint16_t *hint = e->hints + ((to - e->first) >> e->hint_shift);
    uint32_t low = hint[0] < column ? column : hint[0];
    uint32_t high = hint[1] < column ? column : hint[1];
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (to < e->after[middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

nt_raster_scale
nt_raster_scale_of(const nt_raster *r, const nt_raster_view *view)
{
    const uint64_t span = view->y_end - view->y_first;
    return (nt_raster_scale){
        .units = r->units,
        .first = view->y_first,
        .end = view->y_end,
        .height = view->height,
        .span = span,
        .per_fraction = 1.0 / (double)span,
    };
}
