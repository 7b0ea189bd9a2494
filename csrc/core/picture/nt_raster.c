/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_raster.h"

#include <string.h>

#include "base/nt_bitset.h"
#include "base/nt_search.h"
#include "base/nt_sort.h"

/* A block or a segment, on the axes: it stands in states begin .. end - 1. */
typedef struct nt_raster_item {
    uint32_t place;      /* position of its first byte >> place_shift, or where there is
                          * no room for it NT_RASTER_WIDE */
    uint32_t length;     /* bytes >> length_shift; of a wide one a number of `wides` */
    uint32_t begin, end; /* none where end <= begin: only a series counts it then */
} nt_raster_item;

#define NT_RASTER_WIDE UINT32_MAX

/* What does not fit into an item, of a few. */
typedef struct nt_raster_wide {
    uint64_t place, length; /* bytes on the axis */
    bool is_cut;            /* it ends with its range: of its bytes more than that */
} nt_raster_wide;

/* What the items count in: addresses and sizes are rounded by the allocator. */
typedef struct nt_raster_units {
    uint32_t place_shift, length_shift;
    nt_raster_wide *wides;
} nt_raster_units;

/* Items that follow each other in r->items: a view that sees none of their states need
 * not look at them. */
#define NT_RASTER_CHUNK 32

typedef struct nt_raster_chunk {
    uint32_t begin, end; /* all of their states are among begin .. end - 1 */
} nt_raster_chunk;

struct nt_raster {
    nt_alloc alloc;
    const nt_timeline *timeline; /* the caller's, outlives this */
    nt_raster_options options;
    size_t states;
    nt_rising positions; /* states + 1 of them; owned */
    nt_raster_range *ranges;
    size_t range_count, range_capacity;
    uint64_t height;
    nt_raster_item *items; /* blocks first, then segments */
    size_t item_count, block_count, item_capacity;
    /* The rows of the timeline's segments, and of its allocations if there is a filter;
     * without one each of these is the item of its number. */
    uint32_t *segment_rows, *block_rows;
    size_t segment_capacity, block_capacity;
    nt_raster_units units;
    size_t wide_count, wide_capacity;
    nt_raster_chunk *chunks; /* of items 0 .. NT_RASTER_CHUNK - 1, and so on */
    size_t chunk_count;
    /* What blocks are compared by: the rank of each one's size, or if none of them is
     * wide, NULL: its length. */
    uint32_t *ranks;
};

/* The first state without what ends with `event`, which may be NT_EVENT_NEVER. */
static inline uint32_t
raster_end_state(const nt_raster *r, int32_t event)
{
    if (event == NT_EVENT_NEVER) {
        return (uint32_t)r->states;
    }
    return event < 0 ? 0 : (uint32_t)(event + 1);
}

/* The first item from number `i` on that may stand in states first .. end - 1; a number
 * from r->item_count on if there is none. */
static inline size_t
raster_next(const nt_raster *r, size_t i, uint32_t first, uint32_t end)
{
    while (i % NT_RASTER_CHUNK == 0 && i < r->item_count) {
        const nt_raster_chunk chunk = r->chunks[i / NT_RASTER_CHUNK];
        if (chunk.begin < end && chunk.end > first) {
            break;
        }
        i += NT_RASTER_CHUNK;
    }
    return i;
}

/* Positions from *from to *to, which is behind it. */
static inline void
raster_extent(const nt_raster_units *units, const nt_raster_item *item, uint64_t *from,
              uint64_t *to)
{
    if (NT_UNLIKELY(item->place == NT_RASTER_WIDE)) {
        *from = units->wides[item->length].place;
        *to = *from + units->wides[item->length].length;
        return;
    }
    *from = (uint64_t)item->place << units->place_shift;
    *to = *from + ((uint64_t)item->length << units->length_shift);
}

static inline uint32_t
raster_block_row(const nt_raster *r, size_t block)
{
    return r->block_rows == NULL ? (uint32_t)block : r->block_rows[block];
}

static inline uint64_t
raster_block_size(const nt_raster *r, size_t block)
{
    const nt_raster_item *item = &r->items[block];
    if (item->place != NT_RASTER_WIDE) {
        return (uint64_t)item->length << r->units.length_shift;
    }
    const nt_raster_wide *wide = &r->units.wides[item->length];
    return wide->is_cut
               ? nt_timeline_allocations(r->timeline)->size[raster_block_row(r, block)]
               : wide->length;
}

/* A view's time axis. */
typedef struct nt_raster_time {
    nt_rising positions; /* of the raster's states */
    uint64_t x_first, x_end;
    uint32_t first, end; /* the states that the view sees */
    uint32_t width;
    uint64_t span; /* positions of the view: a pixel is `span` fractions wide */
} nt_raster_time;

/* Where a state from time->first to time->end begins. */
typedef struct nt_raster_place {
    uint32_t state;
    uint32_t column;
    uint32_t last;   /* the last column that sees one of the view's states before it:
                      * where its time ends, or that of a last one without width */
    uint64_t offset; /* in its column, in fractions */
} nt_raster_place;

/* The states with which columns begin, and the first ends that a later one sees. */
typedef struct nt_raster_edges {
    nt_alloc alloc;
    uint32_t first, end; /* the states that the view sees */
    uint32_t width;
    uint32_t *begin; /* width + 1: the first state in a column or behind it */
    uint32_t *after; /* width: an item that ends before it is in no later column */
    uint16_t *hints; /* the last column of ends in stretches of 2^hint_shift states */
    uint32_t hint_shift;
} nt_raster_edges;

/* The column in which a state of the view begins, and the last that sees an item which
 * ends with `to`, from `column` on. */
static uint32_t
raster_column_of(const nt_raster_edges *e, uint32_t state)
{
    uint32_t low = 1, high = e->width;
    NT_BISECT(low, high, middle, e->begin[middle] <= state);
    return low - 1;
}

static uint32_t
raster_last_of(const nt_raster_edges *e, uint32_t to, uint32_t column)
{
    const uint16_t *hint = e->hints + ((to - e->first) >> e->hint_shift);
    uint32_t low = hint[0] < column ? column : hint[0];
    uint32_t high = hint[1] < column ? column : hint[1];
    NT_BISECT(low, high, middle, e->after[middle] <= to);
    return low;
}

/* The columns that see an item; false if it does not stand in the view. *first comes in
 * as a guess: items that follow each other mostly begin in the same column. */
static inline bool
raster_columns_of(const nt_raster_edges *e, const nt_raster_item *item, uint32_t *first,
                  uint32_t *last)
{
    const uint32_t from = item->begin < e->first ? e->first : item->begin;
    const uint32_t to = item->end > e->end ? e->end : item->end;
    if (from >= to) {
        return false;
    }
    if (from < e->begin[*first] || from >= e->begin[*first + 1]) {
        *first = raster_column_of(e, from);
    }
    *last = to < e->after[*first] ? *first : raster_last_of(e, to, *first);
    return true;
}

/* Whether all of a chunk's items are in one column and no later one sees them: which it
 * is comes in as a guess, as above. */
static inline bool
raster_is_in_column(const nt_raster_edges *e, const nt_raster_chunk *chunk,
                    uint32_t *column)
{
    if (chunk->begin < e->first || chunk->begin >= chunk->end || chunk->end >= e->end) {
        return false;
    }
    if (chunk->begin < e->begin[*column] || chunk->begin >= e->begin[*column + 1]) {
        *column = raster_column_of(e, chunk->begin);
    }
    return chunk->end < e->begin[*column + 1];
}

/* A view's address axis. */
typedef struct nt_raster_scale {
    nt_raster_units units; /* the raster's */
    uint64_t first, end;
    uint64_t height;     /* pixels */
    uint64_t span;       /* positions of the view: a pixel is `span` fractions high */
    double per_fraction; /* 1 / span */
} nt_raster_scale;

/* An item's rows of pixels in a view, and how much of the outer ones it covers. */
typedef struct nt_raster_rows {
    uint32_t first, last;
    uint64_t in_first, in_last; /* in fractions: a pixel is `span` of them high */
    uint64_t span;
} nt_raster_rows;

/* fractions / span, and what is left over. The estimate is off by one at most: a view
 * has fewer pixels than a double tells apart. */
static inline uint32_t
raster_divide(const nt_raster_scale *scale, uint64_t fractions, uint64_t *rest)
{
    /* Below 2^63: signed numbers turn into doubles in one instruction. */
    uint32_t pixel =
        (uint32_t)(int32_t)((double)(int64_t)fractions * scale->per_fraction);
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

/* False if the item is outside the view. */
static inline bool
raster_rows_of(const nt_raster_scale *scale, const nt_raster_item *item,
               nt_raster_rows *out)
{
    uint64_t from, to;
    raster_extent(&scale->units, item, &from, &to);
    if (to <= scale->first || from >= scale->end) {
        return false;
    }
    from = from < scale->first ? scale->first : from;
    to = to > scale->end ? scale->end : to;
    const uint64_t low = (from - scale->first) * scale->height;
    const uint64_t high = (to - scale->first) * scale->height;
    uint64_t before, behind;
    out->span = scale->span;
    out->first = out->last = raster_divide(scale, low, &before);
    out->in_first = out->in_last = high - low;
    if (high - low > scale->span - before) {
        out->last = raster_divide(scale, high - 1, &behind);
        out->in_first = scale->span - before;
        out->in_last = behind + 1;
    }
    return true;
}

static inline uint64_t
raster_row_share(const nt_raster_rows *rows, uint32_t row)
{
    return row == rows->first  ? rows->in_first
           : row == rows->last ? rows->in_last
                               : rows->span;
}

/* States and addresses as pixels. A distance from the view's edge, times the number of
 * pixels, counts in fractions of which a pixel has as many as the view has positions:
 * whole numbers, so that what lies on the border between two pixels is never in
 * doubt. */

/* Stretches of states whose columns are known, for a search to begin with: few enough
 * to stay in the processor's nearest cache. */
#define VIEW_HINTS 4096

uint64_t
nt_raster_width(const nt_raster *r)
{
    return nt_rising_at(r->positions, r->states);
}

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

/* NT_ARGUMENT unless the view is on the axes. */
static nt_status
raster_time_init(nt_raster_time *time, const nt_raster *r, const nt_raster_view *v,
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

/* That of the first state, and of the state after `place`. */
static nt_raster_place
raster_time_start(const nt_raster_time *time)
{
    return (nt_raster_place){.state = time->first};
}

static uint64_t
view_clamp(const nt_raster_time *time, uint64_t at)
{
    return at < time->x_first ? time->x_first : at > time->x_end ? time->x_end : at;
}

/* Positions rise, and most states are narrower than a pixel: it rarely takes a division
 * to see how far the next one is from the last. */
static void
raster_time_step(const nt_raster_time *time, nt_raster_place *place)
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

/* On failure there is nothing to clear. */
static nt_status
raster_edges_init(nt_raster_edges *e, const nt_alloc *alloc, const nt_raster_time *time,
                  nt_error *err)
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

static void
raster_edges_clear(nt_raster_edges *e)
{
    nt_release(&e->alloc, e->begin, view_edge_bytes(e->width));
    e->begin = e->after = NULL;
    e->hints = NULL;
}

static nt_raster_scale
raster_scale_of(const nt_raster *r, const nt_raster_view *view)
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

/* The address axis, and what stands on it. With a filter, which segment a block lies in
 * is told by a sweep over the states: a set of the segments that stand, numbered by
 * address, in which the last one at or below the block's address is looked up. */

/* The address behind `size` bytes at `address`; the last one where that would wrap. */
static uint64_t
map_end(uint64_t address, uint64_t size)
{
    return size > UINT64_MAX - address ? UINT64_MAX : address + size;
}

static bool
map_passes(const nt_raster *r, size_t row)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    const nt_raster_options *o = &r->options;
    return s->size[row] != 0 && (!o->by_stream || s->stream[row] == o->stream) &&
           (!o->by_pool || (s->pool_first[row] == o->pool.first &&
                            s->pool_second[row] == o->pool.second));
}

/* The rows of the segments that pass the filter, by address; *count of them. */
static nt_status
map_segments(const nt_raster *r, nt_sort_item **out, size_t *count, nt_error *err)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    nt_sort_item *items;
    NT_TRY(NT_NEW(&r->alloc, items, s->count, err));
    size_t passed = 0;
    for (size_t row = 0; row < s->count; row++) {
        if (map_passes(r, row)) {
            items[passed++] = (nt_sort_item){s->address[row], (uint32_t)row};
        }
    }
    nt_sort(items, passed);
    *out = items;
    *count = passed;
    return NT_OK;
}

/* The range from `first` to `end` joins the last one if it touches it. */
static nt_status
map_add_range(nt_raster *r, uint64_t first, uint64_t end, nt_error *err)
{
    nt_raster_range *last = r->range_count ? &r->ranges[r->range_count - 1] : NULL;
    if (last != NULL &&
        (r->options.raw_addresses || first <= map_end(last->address, last->size))) {
        const uint64_t size = end - last->address;
        last->size = size > last->size ? size : last->size;
        return NT_OK;
    }
    NT_TRY(NT_GROW(&r->alloc, r->ranges, r->range_capacity, r->range_count + 1, err));
    r->ranges[r->range_count++] = (nt_raster_range){first, end - first, 0};
    return NT_OK;
}

/* Fills r->ranges and r->height from the segments that pass the filter. */
static nt_status
raster_make_map(nt_raster *r, nt_error *err)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    nt_sort_item *items = NULL;
    size_t count = 0;
    NT_TRY(map_segments(r, &items, &count, err));
    nt_status status = NT_OK;
    for (size_t i = 0; i < count && status == NT_OK; i++) {
        const uint64_t size = s->size[items[i].value];
        status = map_add_range(r, items[i].key, map_end(items[i].key, size), err);
    }
    NT_RELEASE(&r->alloc, items, s->count);
    NT_TRY(status);
    uint64_t position = 0;
    for (size_t i = 0; i < r->range_count; i++) {
        r->ranges[i].position = position;
        position += r->ranges[i].size;
    }
    r->height = position == 0 ? 1 : position;
    return NT_OK;
}

/* The range that holds `address`, or NULL. */
static const nt_raster_range *
map_range_at(const nt_raster *r, uint64_t address)
{
    size_t low = 0, high = r->range_count;
    NT_BISECT(low, high, middle, r->ranges[middle].address <= address);
    if (low == 0 || address - r->ranges[low - 1].address >= r->ranges[low - 1].size) {
        return NULL;
    }
    return &r->ranges[low - 1];
}

/* What all of them can be counted in: a power of two, as the bits that are not needed.
 */
static uint32_t
map_shift(uint64_t bits)
{
    return bits == 0 ? 0 : (uint32_t)__builtin_ctzll(bits);
}

static void
map_find_units(nt_raster *r)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    uint64_t places = 0, lengths = 0;
    for (size_t i = 0; i < r->range_count; i++) {
        places |= r->ranges[i].address | r->ranges[i].position;
    }
    for (size_t row = 0; row < s->count; row++) {
        places |= s->address[row];
        lengths |= s->size[row];
    }
    for (size_t row = 0; row < a->count; row++) {
        places |= a->address[row];
        lengths |= a->size[row];
    }
    r->units.place_shift = map_shift(places);
    r->units.length_shift = map_shift(lengths);
}

/* Puts `item` on the axis as `size` bytes at `address`; false where no range holds
 * that. */
static nt_status
map_place_item(nt_raster *r, uint64_t address, uint64_t size, nt_raster_item *item,
               bool *is_placed, nt_error *err)
{
    const nt_raster_range *range = map_range_at(r, address);
    *is_placed = range != NULL && size != 0;
    if (!*is_placed) {
        return NT_OK;
    }
    const uint64_t inside = address - range->address, room = range->size - inside;
    const nt_raster_wide wide = {.place = range->position + inside,
                                 .length = size < room ? size : room,
                                 .is_cut = size > room};
    const uint64_t place = wide.place >> r->units.place_shift;
    const uint64_t length = wide.length >> r->units.length_shift;
    if (!wide.is_cut && place < NT_RASTER_WIDE && length <= UINT32_MAX) {
        item->place = (uint32_t)place;
        item->length = (uint32_t)length;
        return NT_OK;
    }
    NT_TRY(nt_grow(&r->alloc, (void **)&r->units.wides, &r->wide_capacity,
                   r->wide_count + 1, sizeof wide, err));
    item->place = NT_RASTER_WIDE;
    item->length = (uint32_t)r->wide_count;
    r->units.wides[r->wide_count++] = wide;
    return NT_OK;
}

/* Adds a block's row, if it stands in any state and its address is on the axis. Without
 * a filter each row is an item, which else stands nowhere. */
static nt_status
map_add_block(nt_raster *r, uint32_t row, nt_error *err)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    nt_raster_item item = {.begin = (uint32_t)(a->alloc_event[row] + 1)};
    const uint32_t completed = raster_end_state(r, a->completed_event[row]);
    item.end =
        r->options.until_freed ? raster_end_state(r, a->free_event[row]) : completed;
    bool is_placed = item.begin < completed || item.begin < item.end;
    if (is_placed) {
        NT_TRY(
            map_place_item(r, a->address[row], a->size[row], &item, &is_placed, err));
    }
    if (is_placed && r->block_rows != NULL) {
        r->block_rows[r->item_count] = row;
    }
    if (is_placed) {
        r->items[r->item_count++] = item;
    } else if (r->block_rows == NULL) {
        r->items[r->item_count++] = (nt_raster_item){.begin = UINT32_MAX};
    }
    return NT_OK;
}

/* What happens in a state, in this order. */
enum { MAP_SEGMENT_ENDS, MAP_SEGMENT_BEGINS, MAP_BLOCK_BEGINS, MAP_KINDS };

typedef struct map_sweep {
    const nt_sort_item *segments; /* rows by address */
    size_t segment_count;
    nt_sort_item *steps; /* key: state * MAP_KINDS + kind; value: row, or number */
    size_t step_count;
    nt_bitset standing; /* numbers of segments */
} map_sweep;

static void
map_add_step(map_sweep *m, uint32_t state, unsigned kind, size_t value)
{
    m->steps[m->step_count++] =
        (nt_sort_item){(uint64_t)state * MAP_KINDS + kind, (uint32_t)value};
}

static void
map_list_steps(const nt_raster *r, map_sweep *m)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    for (size_t i = 0; i < m->segment_count; i++) {
        const uint32_t row = m->segments[i].value;
        map_add_step(m, (uint32_t)(s->alloc_event[row] + 1), MAP_SEGMENT_BEGINS, i);
        map_add_step(m, raster_end_state(r, s->free_event[row]), MAP_SEGMENT_ENDS, i);
    }
    for (size_t row = 0; row < a->count; row++) {
        map_add_step(m, (uint32_t)(a->alloc_event[row] + 1), MAP_BLOCK_BEGINS, row);
    }
    nt_sort(m->steps, m->step_count);
}

/* Whether a segment that stands holds `address`. */
static bool
map_holds(const nt_raster *r, const map_sweep *m, uint64_t address)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    size_t low = 0, high = m->segment_count;
    NT_BISECT(low, high, middle, m->segments[middle].key <= address);
    const size_t found =
        low == 0 ? NT_NO_MEMBER : nt_bitset_last(&m->standing, low - 1);
    return found != NT_NO_MEMBER &&
           address - m->segments[found].key < s->size[m->segments[found].value];
}

static nt_status
map_add_filtered(nt_raster *r, const nt_sort_item *segments, size_t count,
                 nt_error *err)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    map_sweep m = {.segments = segments, .segment_count = count};
    const size_t bytes = (2 * count + a->count) * sizeof(nt_sort_item);
    NT_TRY(nt_bitset_init(&m.standing, r->alloc, count, err));
    nt_status status = NT_OK;
    NT_TRY_DONE(nt_take(&r->alloc, (void **)&m.steps, bytes, err));
    map_list_steps(r, &m);
    for (size_t i = 0; i < m.step_count; i++) {
        const uint32_t value = m.steps[i].value;
        switch (m.steps[i].key % MAP_KINDS) {
        case MAP_SEGMENT_ENDS: nt_bitset_remove(&m.standing, value); break;
        case MAP_SEGMENT_BEGINS: nt_bitset_add(&m.standing, value); break;
        default:
            if (map_holds(r, &m, a->address[value])) {
                NT_TRY_DONE(map_add_block(r, value, err));
            }
        }
    }
done:
    nt_release(&r->alloc, m.steps, bytes);
    nt_bitset_clear(&m.standing);
    return status;
}

static nt_status
map_add_blocks(nt_raster *r, const nt_sort_item *segments, size_t count, nt_error *err)
{
    if (r->options.by_stream || r->options.by_pool) {
        return map_add_filtered(r, segments, count, err);
    }
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    for (size_t row = 0; row < a->count; row++) {
        NT_TRY(map_add_block(r, (uint32_t)row, err));
    }
    return NT_OK;
}

static nt_status
map_add_segments(nt_raster *r, const nt_sort_item *segments, size_t count,
                 nt_error *err)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    for (size_t i = 0; i < count; i++) {
        const uint32_t row = segments[i].value;
        nt_raster_item item = {.begin = (uint32_t)(s->alloc_event[row] + 1)};
        item.end = raster_end_state(r, s->free_event[row]);
        bool is_placed = item.begin < item.end;
        if (is_placed) {
            NT_TRY(map_place_item(r, s->address[row], s->size[row], &item, &is_placed,
                                  err));
        }
        if (is_placed) {
            r->segment_rows[r->item_count - r->block_count] = row;
            r->items[r->item_count++] = item;
        }
    }
    return NT_OK;
}

/* Room for all that there may be. */
static nt_status
map_make_room(nt_raster *r, nt_error *err)
{
    const size_t segments = nt_timeline_segments(r->timeline)->count;
    const size_t blocks = nt_timeline_allocations(r->timeline)->count;
    const size_t most = blocks + segments;
    const bool is_filtered = r->options.by_stream || r->options.by_pool;
    if (most > INT32_MAX) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "too many blocks for a picture");
    }
    r->items = nt_allocate(&r->alloc, most * sizeof(nt_raster_item));
    r->item_capacity = r->items == NULL ? 0 : most;
    r->segment_rows = nt_allocate(&r->alloc, segments * sizeof(uint32_t));
    r->segment_capacity = r->segment_rows == NULL ? 0 : segments;
    if (r->item_capacity != most || r->segment_capacity != segments) {
        return nt_fail_nomem(err);
    }
    if (is_filtered && blocks != 0) {
        NT_TRY(NT_NEW(&r->alloc, r->block_rows, blocks, err));
        r->block_capacity = blocks;
    }
    return NT_OK;
}

/* Adds the blocks and then the segments that pass the filter to r->items. */
static nt_status
raster_make_items(nt_raster *r, nt_error *err)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    nt_sort_item *segments = NULL;
    size_t count = 0;
    NT_TRY(map_make_room(r, err));
    map_find_units(r);
    NT_TRY(map_segments(r, &segments, &count, err));
    nt_status status;
    NT_TRY_DONE(map_add_blocks(r, segments, count, err));
    r->block_count = r->item_count;
    NT_TRY_DONE(map_add_segments(r, segments, count, err));
done:
    NT_RELEASE(&r->alloc, segments, s->count);
    return status;
}

/* Shares of pixels, and what they have seen. Each row of pixels knows how much of it is
 * in blocks and how much is reserved, in whole fractions; a sweep over the states
 * changes these with what begins and ends, and before a row changes, what it was is
 * written into the pixels of the time since its last change. */

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
    /* The items that begin or end with each of the view's states but the first, as item
     * * 2 + (1 at its end): those of its state s are changes[change_first[s]] to
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
    if (!raster_rows_of(&d->scale, &r->items[number], &rows)) {
        return;
    }
    for (uint32_t at = rows.first; at <= rows.last; at++) {
        const uint64_t share = raster_row_share(&rows, at);
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
    for (size_t i = raster_next(r, 0, first, first + 1); i < r->item_count;
         i = raster_next(r, i + 1, first, first + 1)) {
        const nt_raster_item *item = &r->items[i];
        nt_raster_rows rows;
        if (item->begin > first || item->end <= first ||
            !raster_rows_of(&d->scale, item, &rows)) {
            continue;
        }
        for (uint32_t at = rows.first; at <= rows.last; at++) {
            const uint64_t share = raster_row_share(&rows, at);
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
    NT_TRY(NT_NEW(&r->alloc, d->change_first, states + 1, err));
    for (size_t s = 0; s <= states; s++) {
        d->change_first[s] = 0;
    }
    for (size_t i = raster_next(r, 0, first, end); i < r->item_count;
         i = raster_next(r, i + 1, first, end)) {
        sums_note(d, i, true);
    }
    uint32_t sum = 0;
    for (size_t s = 0; s <= states; s++) {
        sum += d->change_first[s];
        d->change_first[s] = sum;
    }
    d->change_count = sum;
    NT_TRY(NT_NEW(&r->alloc, d->changes, sum, err));
    /* From the ends downwards, so that each count turns into where its state begins. */
    for (size_t i = raster_next(r, 0, first, end); i < r->item_count;
         i = raster_next(r, i + 1, first, end)) {
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
        raster_time_step(d->time, &d->now);
    }
    for (uint32_t at = 0; at < d->view->height; at++) {
        sums_flush(d, at);
    }
}

/* Fills planes->used, ->reserved and ->seen, those that there are, which are zero. */
static nt_status
raster_sums(const nt_raster *r, const nt_raster_view *view, const nt_raster_time *time,
            const nt_raster_planes *planes, nt_error *err)
{
    sums_sweep d = {.raster = r, .view = view, .time = time, .planes = planes};
    const size_t bytes = view->height * sizeof(sums_row);
    nt_status status = NT_OK;
    d.scale = raster_scale_of(r, view);
    d.per_area = 1.0 / ((double)d.scale.span * (double)time->span);
    d.now = raster_time_start(time);
    NT_TRY(nt_take(&r->alloc, (void **)&d.rows, bytes, err));
    for (uint32_t at = 0; at < view->height; at++) {
        d.rows[at] = (sums_row){.since = d.now};
    }
    NT_TRY_DONE(sums_sort(&d, err));
    sums_begin(&d);
    sums_states(&d);
done:
    nt_release(&r->alloc, d.rows, bytes);
    NT_RELEASE(&r->alloc, d.changes, d.change_count);
    nt_release(&r->alloc, d.change_first,
               d.change_first == NULL
                   ? 0
                   : ((size_t)time->end - time->first + 1) * sizeof(uint32_t));
    return status;
}

/* The largest blocks of a view, and all others as one band. */

static bool
top_is_seen(const nt_raster *r, const nt_raster_view *view, const nt_raster_time *time,
            const nt_raster_item *item)
{
    uint64_t from, to;
    raster_extent(&r->units, item, &from, &to);
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
        const uint64_t size = raster_block_size(r, seen[i].value);
        delta[item->begin < first ? 0 : item->begin - first] += size;
        if (item->end < time->end) {
            delta[item->end - first] -= size;
        }
    }
    for (uint32_t column = 0; column < time->width; column++) {
        out[column] = 0;
    }
    uint64_t sum = 0;
    nt_raster_place place = raster_time_start(time);
    while (place.state < time->end) {
        sum += delta[place.state - first];
        uint32_t column = place.column;
        raster_time_step(time, &place);
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
    NT_TRY(raster_time_init(&time, r, view, err));
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
    for (size_t i = raster_next(r, 0, time.first, time.end); i < r->block_count;
         i = raster_next(r, i + 1, time.first, time.end)) {
        if (top_is_seen(r, view, &time, &r->items[i])) {
            seen[found++] = (nt_sort_item){~raster_block_size(r, i), (uint32_t)i};
        }
    }
    nt_sort(seen, found);
    const size_t kept = found < most ? found : most;
    top_sum_rest(r, &time, seen, kept, found, delta, rest);
    for (size_t i = 0; i < kept; i++) {
        rows[i] = raster_block_row(r, seen[i].value);
    }
    *count = kept;
done:
    NT_RELEASE(&r->alloc, delta, states);
    NT_RELEASE(&r->alloc, seen, r->block_count);
    return status;
}

/* The planes of a view: what is reserved, and the largest blocks, which are painted one
 * by one. */

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
    return size << 32 | (uint32_t)~raster_block_row(r, i);
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
        raster_extent(&d->scale.units, item, &from, &to);
        if (to <= view_first || from >= view_end ||
            !raster_columns_of(&d->edges, item, first, &last)) {
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

/* The same of items that only one column sees: into `keys`, which are that column's.
 * Few blocks are higher than two pixels; which are in one is not to be foreseen. */
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
            raster_extent(&units, item, &from, &to);
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

/* Paints each block over the smaller ones in the pixels that see it, chunk after chunk.
 * Where a column has many states, most chunks are seen by one column only: these are
 * painted side by side, since pixels above each other lie on pages of their own. */
static void
draw_keys(const draw_job *d, uint64_t *keys, uint64_t *of_column)
{
    const nt_raster *r = d->raster;
    const nt_raster_edges *e = &d->edges;
    uint32_t guess = 0, open = 0;
    for (size_t i = raster_next(r, 0, e->first, e->end); i < r->block_count;
         i = raster_next(r, i + NT_RASTER_CHUNK, e->first, e->end)) {
        const size_t left = r->block_count - i;
        const size_t end = i + (left < NT_RASTER_CHUNK ? left : NT_RASTER_CHUNK);
        if (!raster_is_in_column(e, &r->chunks[i / NT_RASTER_CHUNK], &guess)) {
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
        if (!raster_columns_of(&d->edges, &r->items[i], &first, &last) ||
            !raster_rows_of(&d->scale, &r->items[i], &rows)) {
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

static nt_status
draw_blocks(draw_job *d, nt_error *err)
{
    const nt_alloc *alloc = &d->raster->alloc;
    const size_t height = d->view->height, pixels = d->view->width * height;
    const size_t key_bytes = (pixels + height) * sizeof(uint64_t);
    const size_t bytes = key_bytes + (height + BORDERS_BEHIND) * sizeof(draw_border);
    uint64_t *keys;
    NT_TRY(nt_take(alloc, (void **)&keys, bytes, err));
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
    NT_TRY(raster_time_init(&time, r, view, err));
    draw_job d = {.raster = r, .view = view, .planes = planes};
    NT_TRY(raster_edges_init(&d.edges, &r->alloc, &time, err));
    nt_status status = NT_OK;
    d.scale = raster_scale_of(r, view);
    draw_clear(view, planes);
    if (planes->standing != NULL) {
        draw_standing(&d);
    }
    if (planes->seen != NULL || planes->used != NULL) {
        NT_TRY_DONE(raster_sums(r, view, &time, planes, err));
    }
    if (planes->largest != NULL || planes->row != NULL) {
        NT_TRY_DONE(draw_blocks(&d, err));
    }
done:
    raster_edges_clear(&d.edges);
    return status;
}

/* The times of the device's events, or NULL where there are none. */
static const int64_t *
raster_times(const nt_raster *r)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(r->timeline);
    const int64_t *times = nt_snapshot_events(snapshot)->time_us;
    size_t first = 0, count = 0;
    if (times == NULL || r->states == 1) {
        return NULL;
    }
    nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(r->timeline), &first,
                      &count);
    return times + first;
}

/* Where states begin by time, one after the other. */
typedef struct raster_clock {
    const int64_t *times; /* NULL: by event */
    int64_t start, latest;
} raster_clock;

/* The position of the state after `event`, which is the next one of those asked for. */
static uint64_t
raster_tick(raster_clock *clock, size_t event)
{
    if (clock->times == NULL) {
        return event + 1;
    }
    const int64_t time = clock->times[event];
    if (clock->start == 0 && time > 0) {
        clock->start = clock->latest = time;
    }
    clock->latest = time > clock->latest ? time : clock->latest;
    return (uint64_t)(clock->latest - clock->start);
}

/* The last state is one wide. */
static uint64_t
raster_end(raster_clock clock, size_t states)
{
    uint64_t last = 0;
    for (size_t s = 1; s < states; s++) {
        last = raster_tick(&clock, s - 1);
    }
    return last + 1;
}

static nt_status
raster_make_positions(nt_raster *r, nt_error *err)
{
    r->states = nt_timeline_event_count(r->timeline) + 1;
    raster_clock clock = {.times = r->options.by_time ? raster_times(r) : NULL};
    const uint64_t end = raster_end(clock, r->states);
    const size_t count = r->states + 1;
    uint64_t *wide = NULL;
    uint32_t *narrow = NULL;
    if (end > UINT32_MAX) {
        r->positions.wide = wide = nt_allocate(&r->alloc, count * sizeof *wide);
    } else {
        r->positions.narrow = narrow = nt_allocate(&r->alloc, count * sizeof *narrow);
    }
    if (wide == NULL && narrow == NULL) {
        return nt_fail_nomem(err);
    }
    for (size_t s = 0; s < count; s++) {
        const uint64_t at = s == 0           ? 0
                            : s == r->states ? end
                                             : raster_tick(&clock, s - 1);
        if (wide != NULL) {
            wide[s] = at;
        } else {
            narrow[s] = (uint32_t)at;
        }
    }
    if (r->options.by_time && r->states > 1 && clock.start == 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the events of this snapshot have no times");
    }
    return NT_OK;
}

static nt_status
raster_make_chunks(nt_raster *r, nt_error *err)
{
    r->chunk_count = r->item_count / NT_RASTER_CHUNK + 1;
    NT_TRY(NT_NEW(&r->alloc, r->chunks, r->chunk_count, err));
    for (size_t i = 0; i < r->chunk_count; i++) {
        r->chunks[i] = (nt_raster_chunk){UINT32_MAX, 0};
    }
    for (size_t i = 0; i < r->item_count; i++) {
        nt_raster_chunk *chunk = &r->chunks[i / NT_RASTER_CHUNK];
        const nt_raster_item *item = &r->items[i];
        if (item->begin < item->end) {
            chunk->begin = item->begin < chunk->begin ? item->begin : chunk->begin;
            chunk->end = item->end > chunk->end ? item->end : chunk->end;
        }
    }
    return NT_OK;
}

/* Numbers the sizes of the blocks from 1 upwards, if not all of them are lengths. */
static nt_status
raster_make_ranks(nt_raster *r, nt_error *err)
{
    bool is_any_wide = false;
    for (size_t i = 0; i < r->block_count; i++) {
        is_any_wide |= r->items[i].place == NT_RASTER_WIDE;
    }
    if (!is_any_wide) {
        return NT_OK;
    }
    const size_t bytes = r->block_count * sizeof(nt_sort_item);
    nt_sort_item *sorted = nt_allocate(&r->alloc, bytes);
    r->ranks = nt_allocate(&r->alloc, r->block_count * sizeof(uint32_t));
    if (sorted == NULL || r->ranks == NULL) {
        nt_release(&r->alloc, sorted, sorted == NULL ? 0 : bytes);
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < r->block_count; i++) {
        const uint64_t size = raster_block_size(r, i);
        sorted[i] = (nt_sort_item){size, (uint32_t)i};
    }
    nt_sort(sorted, r->block_count);
    uint32_t rank = 0;
    for (size_t i = 0; i < r->block_count; i++) {
        rank += i == 0 || sorted[i].key != sorted[i - 1].key;
        r->ranks[sorted[i].value] = rank;
    }
    nt_release(&r->alloc, sorted, bytes);
    return NT_OK;
}

static nt_status
raster_make(nt_raster *r, nt_error *err)
{
    NT_TRY(raster_make_positions(r, err));
    NT_TRY(raster_make_map(r, err));
    NT_TRY(raster_make_items(r, err));
    if (nt_raster_width(r) > NT_RASTER_MOST_EXTENT ||
        r->height > NT_RASTER_MOST_EXTENT) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "an axis would be longer than 2^50: its times or addresses make "
                       "no sense");
    }
    NT_TRY(raster_make_ranks(r, err));
    return raster_make_chunks(r, err);
}

void
nt_raster_free(nt_raster *r)
{
    if (r == NULL) {
        return;
    }
    const nt_alloc alloc = r->alloc;
    nt_release(&alloc, (void *)r->positions.wide, (r->states + 1) * sizeof(uint64_t));
    nt_release(&alloc, (void *)r->positions.narrow, (r->states + 1) * sizeof(uint32_t));
    NT_RELEASE(&alloc, r->ranges, r->range_capacity);
    NT_RELEASE(&alloc, r->items, r->item_capacity);
    NT_RELEASE(&alloc, r->units.wides, r->wide_capacity);
    NT_RELEASE(&alloc, r->segment_rows, r->segment_capacity);
    NT_RELEASE(&alloc, r->block_rows, r->block_capacity);
    nt_release(&alloc, r->ranks,
               r->ranks == NULL ? 0 : r->block_count * sizeof(uint32_t));
    NT_RELEASE(&alloc, r->chunks, r->chunk_count);
    nt_release(&alloc, r, sizeof *r);
}

nt_status
nt_raster_new(const nt_alloc *alloc, const nt_timeline *timeline,
              const nt_raster_options *options, nt_raster **out, nt_error *err)
{
    nt_raster *r;
    NT_TRY(NT_NEW(alloc, r, 1, err));
    *r = (nt_raster){.alloc = *alloc, .timeline = timeline, .options = *options};
    const nt_status status = raster_make(r, err);
    if (status != NT_OK) {
        nt_raster_free(r);
        return status;
    }
    *out = r;
    return NT_OK;
}

uint64_t
nt_raster_height(const nt_raster *r)
{
    return r->height;
}

const nt_raster_range *
nt_raster_ranges(const nt_raster *r, size_t *count)
{
    *count = r->range_count;
    return r->ranges;
}

nt_rising
nt_raster_states(const nt_raster *r, size_t *count)
{
    *count = r->states;
    return r->positions;
}

/* Adds `size` with a state, and takes it with another. */
static void
raster_count(const nt_raster *r, uint32_t begin, uint32_t end, uint64_t size,
             uint64_t *out)
{
    if (begin < end) {
        out[begin] += size;
        if (end < r->states) {
            out[end] -= size;
        }
    }
}

static void
raster_count_blocks(const nt_raster *r, bool until_freed, uint64_t *out)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    for (size_t i = 0; i < r->block_count; i++) {
        const uint32_t row = raster_block_row(r, i);
        const int32_t last = until_freed ? a->free_event[row] : a->completed_event[row];
        raster_count(r, r->items[i].begin, raster_end_state(r, last), a->size[row],
                     out);
    }
}

static void
raster_count_segments(const nt_raster *r, uint64_t *out)
{
    const nt_segment_life_columns *s = nt_timeline_segments(r->timeline);
    for (size_t i = r->block_count; i < r->item_count; i++) {
        const nt_raster_item *item = &r->items[i];
        const uint64_t size = s->size[r->segment_rows[i - r->block_count]];
        raster_count(r, item->begin, item->end, size, out);
    }
}

nt_status
nt_raster_series(const nt_raster *r, nt_metric metric, uint64_t *out, nt_error *err)
{
    if (metric != NT_METRIC_ALLOCATED && metric != NT_METRIC_ACTIVE &&
        metric != NT_METRIC_RESERVED) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "no picture has that series");
    }
    for (size_t s = 0; s < r->states; s++) {
        out[s] = 0;
    }
    if (metric == NT_METRIC_RESERVED) {
        raster_count_segments(r, out);
    } else {
        raster_count_blocks(r, metric == NT_METRIC_ALLOCATED, out);
    }
    for (size_t s = 1; s < r->states; s++) {
        out[s] += out[s - 1];
    }
    return NT_OK;
}
