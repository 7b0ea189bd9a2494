/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States and addresses as pixels. A distance from the view's edge, times the number of
 * pixels, counts in fractions of which a pixel has as many as the view has positions:
 * whole numbers, so that what lies on the border between two pixels is never in doubt.
 */
#include "analysis/nt_raster_state.h"

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

/* The first state at `position` or behind it; r->states where there is none. */
static size_t
view_first_at(const nt_raster *r, uint64_t position)
{
    size_t low = 0, high = r->states;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (r->positions[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

nt_status
nt_raster_columns_init(nt_raster_columns *c, const nt_raster *r,
                       const nt_raster_view *v, nt_error *err)
{
    NT_TRY(view_check(r, v, err));
    size_t first = view_first_at(r, v->x_first);
    /* The state before lasts into the view where its successor begins inside of it. */
    if (first > 0 && r->positions[first] > v->x_first) {
        first--;
    }
    *c = (nt_raster_columns){
        .alloc = r->alloc,
        .first = (uint32_t)first,
        .end = (uint32_t)view_first_at(r, v->x_end),
        .width = v->width,
        .span = v->x_end - v->x_first,
    };
    c->count = c->end - c->first + 1;
    c->column = nt_allocate(&c->alloc, c->count * sizeof(uint32_t));
    c->offset = nt_allocate(&c->alloc, c->count * sizeof(uint64_t));
    if (c->column == NULL || c->offset == NULL) {
        nt_raster_columns_clear(c);
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < c->count; i++) {
        uint64_t at = r->positions[first + i];
        at = at < v->x_first ? v->x_first : at > v->x_end ? v->x_end : at;
        const uint64_t fractions = (at - v->x_first) * v->width;
        c->column[i] = (uint32_t)(fractions / c->span);
        c->offset[i] = fractions % c->span;
    }
    return NT_OK;
}

void
nt_raster_columns_clear(nt_raster_columns *c)
{
    nt_release(&c->alloc, c->column, c->count * sizeof(uint32_t));
    nt_release(&c->alloc, c->offset, c->count * sizeof(uint64_t));
    c->column = NULL;
    c->offset = NULL;
}

bool
nt_raster_rows_of(const nt_raster_view *v, const nt_raster_item *item,
                  nt_raster_rows *out)
{
    if (item->to <= v->y_first || item->from >= v->y_end) {
        return false;
    }
    const uint64_t from = item->from < v->y_first ? v->y_first : item->from;
    const uint64_t to = item->to > v->y_end ? v->y_end : item->to;
    const uint64_t span = v->y_end - v->y_first;
    const uint64_t low = (from - v->y_first) * v->height;
    const uint64_t high = (to - v->y_first) * v->height;
    out->span = span;
    out->first = (uint32_t)(low / span);
    out->last = (uint32_t)((high - 1) / span);
    if (out->first == out->last) {
        out->in_first = out->in_last = high - low;
    } else {
        out->in_first = (out->first + UINT64_C(1)) * span - low;
        out->in_last = high - out->last * span;
    }
    return true;
}
