/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When which address range was reserved. Ordinary segments come and go whole.
 * Expandable ones are mapped and unmapped in ranges: the ranges reserved at a
 * time are kept sorted by address, and an unmapping ends the rows it touches and
 * lets the rests of them go on as new rows. What is given back without having
 * been seen coming, or stands in the end layout so, was there before the trace.
 */
#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_state.h"

static const nt_column_spec life_specs[] = {
    NT_COLUMN(nt_segment_life_columns, address),
    NT_COLUMN(nt_segment_life_columns, size),
    NT_COLUMN(nt_segment_life_columns, stream),
    NT_COLUMN(nt_segment_life_columns, pool_first),
    NT_COLUMN(nt_segment_life_columns, pool_second),
    NT_COLUMN(nt_segment_life_columns, kind),
    NT_COLUMN(nt_segment_life_columns, is_expandable),
    NT_COLUMN(nt_segment_life_columns, pool_known),
    NT_COLUMN(nt_segment_life_columns, alloc_event),
    NT_COLUMN(nt_segment_life_columns, free_event),
    NT_COLUMN(nt_segment_life_columns, stack),
};

typedef struct segment_life {
    uint64_t address, size, stream;
    nt_pool_id pool;
    uint8_t kind;
    bool is_expandable, pool_known;
    int32_t alloc_event, free_event;
    uint32_t stack;
} segment_life;

/* Ranges reserved now, by address. They never overlap in a sound trace. */
typedef struct segment_ranges {
    uint32_t *rows;
    size_t count, capacity;
} segment_ranges;

void
nt_timeline_clear_segments(nt_timeline *t)
{
    nt_columns_release(&t->alloc, &t->segments, life_specs, NT_LENGTH(life_specs),
                       t->segment_capacity);
}

static nt_status
segments_add(nt_timeline *t, const segment_life *life, uint32_t *row, nt_error *err)
{
    nt_segment_life_columns *s = &t->segments;
    const size_t at = s->count;
    if (at >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 segments");
    }
    NT_TRY(nt_columns_reserve(&t->alloc, s, life_specs, NT_LENGTH(life_specs), at,
                              &t->segment_capacity, at + 1, err));
    s->address[at] = life->address;
    s->size[at] = life->size;
    s->stream[at] = life->stream;
    s->pool_first[at] = life->pool.first;
    s->pool_second[at] = life->pool.second;
    s->kind[at] = life->kind;
    s->is_expandable[at] = life->is_expandable;
    s->pool_known[at] = life->pool_known;
    s->alloc_event[at] = life->alloc_event;
    s->free_event[at] = life->free_event;
    s->stack[at] = life->stack;
    s->count = at + 1;
    *row = (uint32_t)at;
    return NT_OK;
}

/* What event `i` (a segment event) says of its range. */
static segment_life
segments_of_event(const nt_timeline *t, size_t i, bool begins)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    const size_t row = t->first + i;
    const bool expandable = e->action[row] == NT_ACTION_SEGMENT_MAP ||
                            e->action[row] == NT_ACTION_SEGMENT_UNMAP;
    return (segment_life){
        .address = e->addr[row],
        .size = e->size[row],
        .stream = e->stream[row],
        .pool = e->pool_first == NULL
                    ? (nt_pool_id){0, 0}
                    : (nt_pool_id){e->pool_first[row], e->pool_second[row]},
        /* Segments and pages of the small pool are 2 MiB; no others are. */
        .kind = e->size[row] <= NT_SMALL_BUFFER ? NT_POOL_SMALL : NT_POOL_LARGE,
        .is_expandable = expandable,
        .pool_known = e->pool_first != NULL,
        .alloc_event = begins ? (int32_t)i : NT_EVENT_BEFORE,
        .free_event = begins ? NT_EVENT_NEVER : (int32_t)i,
        .stack = begins ? e->stack[row] : NT_NO_STACK,
    };
}

/* The first of the ranges that ends behind `address`. */
static size_t
ranges_find(const nt_timeline *t, const segment_ranges *ranges, uint64_t address)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const uint32_t row = ranges->rows[middle];
        if (t->segments.address[row] + t->segments.size[row] > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static nt_status
ranges_insert(nt_timeline *t, segment_ranges *ranges, uint32_t row, nt_error *err)
{
    const size_t at = ranges_find(t, ranges, t->segments.address[row]);
    NT_TRY(nt_grow(&t->alloc, (void **)&ranges->rows, &ranges->capacity,
                   ranges->count + 1, sizeof(uint32_t), err));
    memmove(ranges->rows + at + 1, ranges->rows + at,
            (ranges->count - at) * sizeof(uint32_t));
    ranges->rows[at] = row;
    ranges->count++;
    return NT_OK;
}

static void
ranges_remove(segment_ranges *ranges, size_t at)
{
    ranges->count--;
    memmove(ranges->rows + at, ranges->rows + at + 1,
            (ranges->count - at) * sizeof(uint32_t));
}

/* The part [from, to) of the range in `row` goes on as a row of its own. */
static nt_status
segments_continue(nt_timeline *t, segment_ranges *ranges, uint32_t row, uint64_t from,
                  uint64_t to, int32_t event, nt_error *err)
{
    if (from >= to) {
        return NT_OK;
    }
    const nt_segment_life_columns *s = &t->segments;
    const segment_life rest = {
        .address = from,
        .size = to - from,
        .stream = s->stream[row],
        .pool = {s->pool_first[row], s->pool_second[row]},
        .kind = s->kind[row],
        .is_expandable = s->is_expandable[row] != 0,
        .pool_known = s->pool_known[row] != 0,
        .alloc_event = event,
        .free_event = NT_EVENT_NEVER,
        .stack = s->stack[row],
    };
    uint32_t added;
    NT_TRY(segments_add(t, &rest, &added, err));
    return ranges_insert(t, ranges, added, err);
}

/* The range of `life` ends at its free_event; parts of it that nothing covers
 * were there before the trace. */
static nt_status
segments_end(nt_timeline *t, segment_ranges *ranges, const segment_life *life,
             nt_error *err)
{
    const uint64_t end = life->address + life->size;
    uint64_t next = life->address;
    while (next < end) {
        const size_t at = ranges_find(t, ranges, next);
        const uint32_t row = at < ranges->count ? ranges->rows[at] : NT_NONE;
        const uint64_t begins = row == NT_NONE ? end : t->segments.address[row];
        if (begins > next) {
            segment_life before = *life;
            before.address = next;
            before.size = (begins < end ? begins : end) - next;
            uint32_t added;
            NT_TRY(segments_add(t, &before, &added, err));
            next = before.address + before.size;
            continue;
        }
        const uint64_t ends = begins + t->segments.size[row];
        t->segments.free_event[row] = life->free_event;
        ranges_remove(ranges, at);
        NT_TRY(segments_continue(t, ranges, row, begins, next, life->free_event, err));
        NT_TRY(segments_continue(t, ranges, row, end, ends, life->free_event, err));
        next = ends;
    }
    return NT_OK;
}

static nt_status
segments_begin(nt_timeline *t, segment_ranges *ranges, const segment_life *life,
               nt_error *err)
{
    uint32_t row;
    NT_TRY(segments_add(t, life, &row, err));
    return ranges_insert(t, ranges, row, err);
}

static nt_status
segments_replay_event(nt_timeline *t, segment_ranges *ranges, size_t i, nt_error *err)
{
    const uint8_t action = nt_snapshot_events(t->snapshot)->action[t->first + i];
    const bool begins =
        action == NT_ACTION_SEGMENT_ALLOC || action == NT_ACTION_SEGMENT_MAP;
    const segment_life life = segments_of_event(t, i, begins);
    if (life.size == 0 || life.address > UINT64_MAX - life.size) {
        t->facts.unmatched++;
        return NT_OK;
    }
    return begins ? segments_begin(t, ranges, &life, err)
                  : segments_end(t, ranges, &life, err);
}

/* The row takes over what the end layout's segment says of pool and kind. */
static void
segments_inherit(nt_timeline *t, uint32_t row, const nt_segment_columns *s, size_t final)
{
    t->segments.pool_first[row] = s->pool_first[final];
    t->segments.pool_second[row] = s->pool_second[final];
    t->segments.pool_known[row] = 1;
    t->segments.kind[row] = s->kind[final];
    t->segments.is_expandable[row] = s->is_expandable[final];
}

/* One segment of the end layout: rows that lie in it are told their pool, and
 * what no row covers was there before the trace and lives on. */
static nt_status
segments_match_final(nt_timeline *t, segment_ranges *ranges, size_t final, nt_error *err)
{
    const nt_segment_columns *s = &nt_snapshot_layout(t->snapshot)->segments;
    uint64_t next = s->address[final];
    const uint64_t end = next + s->total_size[final];
    while (next < end) {
        const size_t at = ranges_find(t, ranges, next);
        const uint32_t row = at < ranges->count ? ranges->rows[at] : NT_NONE;
        const uint64_t begins = row == NT_NONE ? end : t->segments.address[row];
        if (begins > next) {
            const segment_life before = {
                .address = next,
                .size = (begins < end ? begins : end) - next,
                .stream = s->stream[final],
                .alloc_event = NT_EVENT_BEFORE,
                .free_event = NT_EVENT_NEVER,
                .stack = s->stack[final],
            };
            uint32_t added;
            NT_TRY(segments_add(t, &before, &added, err));
            segments_inherit(t, added, s, final);
            NT_TRY(ranges_insert(t, ranges, added, err));
            next = before.address + before.size;
            continue;
        }
        segments_inherit(t, row, s, final);
        next = begins + t->segments.size[row];
    }
    return NT_OK;
}

/* Rows that the end layout does not have: their end was lost with some events. */
static void
segments_end_lost(nt_timeline *t, const segment_ranges *ranges)
{
    const nt_segment_columns *s = &nt_snapshot_layout(t->snapshot)->segments;
    uint64_t reserved = 0, final = 0;
    for (size_t i = 0; i < ranges->count; i++) {
        reserved += t->segments.size[ranges->rows[i]];
    }
    for (size_t i = 0; i < s->count; i++) {
        final += s->device[i] == t->device ? s->total_size[i] : 0;
    }
    if (reserved == final || t->count == 0) {
        return;
    }
    for (size_t i = 0; i < ranges->count; i++) {
        const uint32_t row = ranges->rows[i];
        bool kept = false;
        for (size_t k = 0; k < s->count && !kept; k++) {
            kept = s->device[k] == t->device &&
                   t->segments.address[row] >= s->address[k] &&
                   t->segments.address[row] - s->address[k] < s->total_size[k];
        }
        if (!kept) {
            t->segments.free_event[row] = (int32_t)t->count - 1;
            t->facts.unmatched++;
        }
    }
}

static nt_status
segments_replay(nt_timeline *t, segment_ranges *ranges, nt_error *err)
{
    const uint8_t *action = nt_snapshot_events(t->snapshot)->action;
    for (size_t i = 0; i < t->count; i++) {
        const uint8_t code = action[t->first + i];
        if (code >= NT_ACTION_SEGMENT_ALLOC && code <= NT_ACTION_SEGMENT_UNMAP) {
            NT_TRY(segments_replay_event(t, ranges, i, err));
        }
    }
    const nt_segment_columns *s = &nt_snapshot_layout(t->snapshot)->segments;
    for (size_t i = 0; i < s->count; i++) {
        if (s->device[i] == t->device && s->address[i] <= UINT64_MAX - s->total_size[i]) {
            NT_TRY(segments_match_final(t, ranges, i, err));
        }
    }
    segments_end_lost(t, ranges);
    return NT_OK;
}

nt_status
nt_timeline_replay_segments(nt_timeline *t, nt_error *err)
{
    segment_ranges ranges = {0};
    const nt_status status = segments_replay(t, &ranges, err);
    nt_release(&t->alloc, ranges.rows, ranges.capacity * sizeof(uint32_t));
    for (size_t row = 0; row < t->segments.count; row++) {
        if (t->segments.alloc_event[row] == NT_EVENT_BEFORE) {
            t->facts.start_bytes[NT_METRIC_RESERVED] += t->segments.size[row];
        }
    }
    return status;
}
