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

/* Positions rise, and most states are narrower than a pixel: it rarely takes a
 * division to see how far the next one is from the last. */
static void
view_place_states(nt_raster_columns *c, const nt_raster *r, const nt_raster_view *v)
{
    uint64_t last = v->x_first, offset = 0;
    uint32_t column = 0;
    for (size_t i = 0; i < c->count; i++) {
        uint64_t at = r->positions[c->first + i];
        at = at < v->x_first ? v->x_first : at > v->x_end ? v->x_end : at;
        offset += (at - last) * v->width;
        last = at;
        if (offset >= c->span) {
            column += (uint32_t)(offset / c->span);
            offset %= c->span;
        }
        const uint32_t open = column - (offset == 0 && column != 0);
        const uint32_t before = i == 0 ? 0 : c->column[i - 1];
        c->column[i] = (uint16_t)column;
        c->last[i] = (uint16_t)(open > before ? open : before);
        if (c->offset != NULL) {
            c->offset[i] = offset;
        }
    }
}

nt_status
nt_raster_columns_init(nt_raster_columns *c, const nt_raster *r,
                       const nt_raster_view *v, bool has_offsets, nt_error *err)
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
    c->column = nt_allocate(&c->alloc, c->count * sizeof(uint16_t));
    c->last = nt_allocate(&c->alloc, c->count * sizeof(uint16_t));
    if (has_offsets) {
        c->offset = nt_allocate(&c->alloc, c->count * sizeof(uint64_t));
    }
    if (c->column == NULL || c->last == NULL || (has_offsets && c->offset == NULL)) {
        nt_raster_columns_clear(c);
        return nt_fail_nomem(err);
    }
    view_place_states(c, r, v);
    return NT_OK;
}

void
nt_raster_columns_clear(nt_raster_columns *c)
{
    nt_release(&c->alloc, c->column, c->count * sizeof(uint16_t));
    nt_release(&c->alloc, c->last, c->count * sizeof(uint16_t));
    nt_release(&c->alloc, c->offset,
               c->offset == NULL ? 0 : c->count * sizeof(uint64_t));
    c->column = c->last = NULL;
    c->offset = NULL;
}

/* fractions / span, and what is left over. The estimate is off by one at most: a view
 * has fewer pixels than a double tells apart. */
static uint32_t
view_divide(const nt_raster_scale *scale, uint64_t fractions, uint64_t *rest)
{
    uint32_t pixel = (uint32_t)((double)fractions * scale->per_fraction);
    uint64_t below = pixel * scale->span;
    if (below > fractions) {
        pixel--;
        below -= scale->span;
    } else if (fractions - below >= scale->span) {
        pixel++;
        below += scale->span;
    }
    *rest = fractions - below;
    return pixel;
}

nt_raster_scale
nt_raster_scale_of(const nt_raster_view *view)
{
    const uint64_t span = view->y_end - view->y_first;
    return (nt_raster_scale){
        .first = view->y_first,
        .end = view->y_end,
        .height = view->height,
        .span = span,
        .per_fraction = 1.0 / (double)span,
    };
}

bool
nt_raster_rows_of(const nt_raster_scale *scale, const nt_raster_item *item,
                  nt_raster_rows *out)
{
    if (item->to <= scale->first || item->from >= scale->end) {
        return false;
    }
    const uint64_t from = item->from < scale->first ? scale->first : item->from;
    const uint64_t to = item->to > scale->end ? scale->end : item->to;
    const uint64_t low = (from - scale->first) * scale->height;
    const uint64_t high = (to - scale->first) * scale->height;
    uint64_t before, behind;
    out->span = scale->span;
    out->first = view_divide(scale, low, &before);
    out->last = view_divide(scale, high - 1, &behind);
    if (out->first == out->last) {
        out->in_first = out->in_last = high - low;
    } else {
        out->in_first = scale->span - before;
        out->in_last = behind + 1;
    }
    return true;
}
