/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address axis, and what stands on it. With a filter, which segment a block lies in
 * is told by a sweep over the states: a set of the segments that stand, numbered by
 * address, in which the last one at or below the block's address is looked up.
 */
#include "picture/nt_raster_state.h"

#include "base/nt_bitset.h"
#include "base/nt_sort.h"

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
    nt_sort_item *items = nt_allocate(&r->alloc, s->count * sizeof *items);
    if (items == NULL && s->count != 0) {
        return nt_fail_nomem(err);
    }
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
    NT_TRY(nt_grow(&r->alloc, (void **)&r->ranges, &r->range_capacity,
                   r->range_count + 1, sizeof(nt_raster_range), err));
    r->ranges[r->range_count++] = (nt_raster_range){first, end - first, 0};
    return NT_OK;
}

nt_status
nt_raster_make_map(nt_raster *r, nt_error *err)
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
    nt_release(&r->alloc, items, s->count * sizeof *items);
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
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (r->ranges[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
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
    const uint32_t completed = nt_raster_end_state(r, a->completed_event[row]);
    item.end =
        r->options.until_freed ? nt_raster_end_state(r, a->free_event[row]) : completed;
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
        map_add_step(m, nt_raster_end_state(r, s->free_event[row]), MAP_SEGMENT_ENDS,
                     i);
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
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (m->segments[middle].key <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const size_t found =
        low == 0 ? NT_NO_MEMBER : nt_bitset_last(&m->standing, low - 1);
    return found != NT_NO_MEMBER &&
           address - m->segments[found].key < s->size[m->segments[found].value];
}

/* Adds the blocks that lie in the given segments. */
static nt_status
map_add_filtered(nt_raster *r, const nt_sort_item *segments, size_t count,
                 nt_error *err)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    map_sweep m = {.segments = segments, .segment_count = count};
    const size_t bytes = (2 * count + a->count) * sizeof(nt_sort_item);
    NT_TRY(nt_bitset_init(&m.standing, r->alloc, count, err));
    nt_status status = NT_OK;
    m.steps = nt_allocate(&r->alloc, bytes);
    if (m.steps == NULL && bytes != 0) {
        status = nt_fail_nomem(err);
        goto done;
    }
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
        item.end = nt_raster_end_state(r, s->free_event[row]);
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
        r->block_rows = nt_allocate(&r->alloc, blocks * sizeof(uint32_t));
        if (r->block_rows == NULL) {
            return nt_fail_nomem(err);
        }
        r->block_capacity = blocks;
    }
    return NT_OK;
}

nt_status
nt_raster_make_items(nt_raster *r, nt_error *err)
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
    nt_release(&r->alloc, segments, s->count * sizeof *segments);
    return status;
}
