/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_points.h"

static bool
points_is_range(uint64_t address, uint64_t size)
{
    return size != 0 && address <= UINT64_MAX - size;
}

bool
nt_timeline_has_segment(const nt_timeline *t, const nt_layout *layout, size_t row)
{
    const nt_segment_columns *s = &layout->segments;
    return s->device[row] == t->device &&
           points_is_range(s->address[row], s->total_size[row]);
}

bool
nt_timeline_has_range(const nt_timeline *t, size_t i)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    return points_is_range(e->addr[t->first + i], e->size[t->first + i]);
}

static void
points_add(nt_timeline_points *points, uint64_t address, uint64_t size)
{
    points->items[points->count++].key = address;
    points->items[points->count++].key = address + size;
}

/* The segments of a layout that are ranges of this device; none of no layout. */
static size_t
points_of_layout(const nt_timeline *t, const nt_layout *layout)
{
    size_t ranges = 0;
    for (size_t row = 0; layout != NULL && row < layout->segments.count; row++) {
        ranges += nt_timeline_has_segment(t, layout, row);
    }
    return ranges;
}

/* How many points there are at most. */
static size_t
points_most(const nt_timeline *t)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    size_t ranges = 0;
    for (size_t i = 0; i < t->other_count; i++) {
        ranges += nt_timeline_is_reserving(e->action[t->first + t->others[i]]);
    }
    return 2 * (ranges + points_of_layout(t, nt_snapshot_layout(t->snapshot)) +
                points_of_layout(t, nt_snapshot_before(t->snapshot)));
}

static void
points_collect_layout(nt_timeline_points *points, const nt_timeline *t,
                      const nt_layout *layout)
{
    for (size_t row = 0; layout != NULL && row < layout->segments.count; row++) {
        if (nt_timeline_has_segment(t, layout, row)) {
            points_add(points, layout->segments.address[row],
                       layout->segments.total_size[row]);
        }
    }
}

static void
points_collect(nt_timeline_points *points, const nt_timeline *t)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    for (size_t i = 0; i < t->other_count; i++) {
        const size_t at = t->first + t->others[i];
        if (nt_timeline_is_reserving(e->action[at]) &&
            nt_timeline_has_range(t, t->others[i])) {
            points_add(points, e->addr[at], e->size[at]);
        }
    }
    points_collect_layout(points, t, nt_snapshot_layout(t->snapshot));
    points_collect_layout(points, t, nt_snapshot_before(t->snapshot));
}

/* In order, each once. */
static void
points_sort(nt_timeline_points *points)
{
    nt_sort_item *items = points->items;
    size_t distinct = 0;
    for (uint32_t i = 0; i < points->count; i++) {
        items[i].value = i;
    }
    nt_sort(items, points->count);
    for (size_t i = 0; i < points->count; i++) {
        if (distinct == 0 || items[distinct - 1].key != items[i].key) {
            items[distinct++].key = items[i].key;
        }
    }
    points->count = distinct;
}

nt_status
nt_timeline_points_init(nt_timeline_points *points, const nt_timeline *t, nt_error *err)
{
    const size_t most = points_most(t);
    size_t bytes;
    *points = (nt_timeline_points){.alloc = t->alloc};
    if (most >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^31 segment events");
    }
    points->items = nt_size_mul(most, sizeof(nt_sort_item), &bytes)
                        ? nt_allocate(&t->alloc, bytes)
                        : NULL;
    if (points->items == NULL && most != 0) {
        return nt_fail_nomem(err);
    }
    points->capacity = most;
    points_collect(points, t);
    points_sort(points);
    return NT_OK;
}

void
nt_timeline_points_clear(nt_timeline_points *points)
{
    nt_release(&points->alloc, points->items, points->capacity * sizeof(nt_sort_item));
    *points = (nt_timeline_points){.alloc = points->alloc};
}

size_t
nt_timeline_points_rank(const nt_timeline_points *points, uint64_t address)
{
    size_t low = 0, high = points->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (points->items[middle].key <= address) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
