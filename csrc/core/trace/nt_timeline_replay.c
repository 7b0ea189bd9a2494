/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_replay.h"

#include <string.h>

#include "base/nt_bitset.h"
#include "base/nt_columns.h"
#include "base/nt_search.h"
#include "base/nt_sort.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_live.h"

/* A row to be added; its number is t->allocations.count - 1 then. */
typedef struct nt_allocation {
    uint64_t address, size, requested_size, stream;
    int32_t alloc_event, free_event, completed_event;
    uint32_t stack;
} nt_allocation;

static const nt_column_spec allocation_specs[] = {
    NT_ALLOCATION_LIST(NT_COLUMN_SPEC, nt_allocation_columns)};

static nt_status
timeline_reserve_allocations(nt_timeline *t, size_t rows, nt_error *err)
{
    if (rows >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 allocations");
    }
    return nt_columns_reserve(&t->alloc, &t->allocations, allocation_specs,
                              NT_LENGTH(allocation_specs), t->allocations.count,
                              &t->allocation_capacity, rows, err);
}

static inline nt_status
timeline_add_allocation(nt_timeline *t, const nt_allocation *row, nt_error *err)
{
    nt_allocation_columns *a = &t->allocations;
    const size_t at = a->count;
    if (NT_UNLIKELY(at >= t->allocation_capacity)) {
        NT_TRY(timeline_reserve_allocations(t, at + 1, err));
    }
    a->address[at] = row->address;
    a->size[at] = row->size;
    a->requested_size[at] = row->requested_size;
    a->stream[at] = row->stream;
    a->alloc_event[at] = row->alloc_event;
    a->free_event[at] = row->free_event;
    a->completed_event[at] = row->completed_event;
    a->stack[at] = row->stack;
    a->count = at + 1;
    return NT_OK;
}

/* Tells the progress function; NT_CANCELLED when it wants to stop. Called with the
 * number of events done, every NT_TIMELINE_TICK of them. */
#define NT_TIMELINE_TICK ((size_t)1 << 18)

/* The places at which a range of reserved memory can begin or end, known before the
 * replay: the ends of all ranges that the trace's segment events name, and of the
 * segments at the end and, where the file has them, before. Between two of these points
 * that follow each other, memory is reserved as a whole or not at all; so the replay of
 * segments counts in points. */

/* All-zero is valid for clear only. */
typedef struct nt_timeline_points {
    nt_alloc alloc;
    nt_sort_item *items; /* keys: distinct addresses, upwards */
    size_t count;
    size_t capacity; /* at least twice the ranges: room for what is kept by point */
} nt_timeline_points;

/* A range from one point to another, by their numbers. */
typedef struct nt_point_range {
    size_t from, to;
} nt_point_range;

/* The four segment actions follow each other. */
static inline bool
timeline_is_reserving(uint8_t action)
{
    return action >= NT_ACTION_SEGMENT_ALLOC && action <= NT_ACTION_SEGMENT_UNMAP;
}

/* Where the blocks of the large pool begin in ordinary segments, while a trace is
 * replayed: with that, a request's true block size follows. All blocks there are larger
 * than 1 MiB, so no two begin in the same MiB of the address space, and a look at the
 * two MiB after a request says whether its free block was split. */

/* Addresses from first up to end. */
typedef struct nt_address_range {
    uint64_t first, end;
} nt_address_range;

/* This many MiB that follow each other are noted together: what is behind a request is
 * seldom further away. */
#define NT_LARGE_PAGE 16

/* Where in a MiB a block begins, which row it is, and where a segment ends; NT_NONE:
 * nowhere, and the row is 0 then. The block is there as long as its row is active. */
typedef struct nt_large_mib {
    uint32_t start, row, end, unused;
} nt_large_mib;

typedef struct nt_large_page {
    nt_large_mib mibs[NT_LARGE_PAGE];
} nt_large_page;

/* All-zero is valid for clear only. */
typedef struct nt_timeline_large {
    const nt_settings *settings;
    const nt_allocation_columns *rows; /* the timeline's */
    nt_map numbers;                    /* MiB / NT_LARGE_PAGE -> number in `pages` */
    nt_large_page *pages;
    size_t page_count, page_capacity;
    nt_alloc alloc;
    nt_address_range
        *expandable; /* ranges ever mapped, by address: not the matter here */
    size_t expandable_count, expandable_capacity;
} nt_timeline_large;

/* The sizes of an active block, as the end layout has them; requested sizes are left as
 * the events tell them where the file has none. */
static void
timeline_correct_sizes(const nt_timeline *t, size_t block, uint64_t *size,
                       uint64_t *requested_size)
{
    const nt_block_columns *b = &nt_snapshot_layout(t->snapshot)->blocks;
    *size = b->size[block];
    if (nt_snapshot_keys(t->snapshot) & NT_HAS_BLOCK_REQUESTED) {
        *requested_size = b->requested_size[block];
    }
}

/* An active block of one of the snapshot's layouts as a row that was there before the
 * trace. */
static nt_allocation
timeline_layout_allocation(const nt_timeline *t, const nt_layout *layout, size_t block)
{
    const nt_block_columns *b = &layout->blocks;
    const bool pending = b->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const bool says = (nt_snapshot_keys(t->snapshot) & NT_HAS_BLOCK_REQUESTED) != 0;
    return (nt_allocation){
        .address = b->address[block],
        .size = b->size[block],
        .requested_size = says ? b->requested_size[block] : b->size[block],
        .stream = layout->segments.stream[b->segment[block]],
        .alloc_event = NT_EVENT_BEFORE,
        .free_event = pending ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = b->stack[block],
    };
}

static nt_status
timeline_tick(const nt_timeline *t, size_t done, nt_error *err)
{
    if (t->progress != NULL && t->progress->report(t->progress->ctx, done) != 0) {
        return nt_fail(err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
    }
    return NT_OK;
}

static bool
points_is_range(uint64_t address, uint64_t size)
{
    return size != 0 && address <= UINT64_MAX - size;
}

/* Whether a segment of a layout is a range, and is on this device. */
static bool
timeline_has_segment(const nt_timeline *t, const nt_layout *layout, size_t row)
{
    const nt_segment_columns *s = &layout->segments;
    return s->device[row] == t->device &&
           points_is_range(s->address[row], s->total_size[row]);
}

/* Whether what segment event `i` names is a range: not empty, and not past the end of
 * the address space. */
static bool
timeline_has_range(const nt_timeline *t, size_t i)
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
        ranges += timeline_has_segment(t, layout, row);
    }
    return ranges;
}

static size_t
points_most(const nt_timeline *t)
{
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    size_t ranges = 0;
    for (size_t i = 0; i < t->other_count; i++) {
        ranges += timeline_is_reserving(e->action[t->first + t->others[i]]);
    }
    return 2 * (ranges + points_of_layout(t, nt_snapshot_layout(t->snapshot)) +
                points_of_layout(t, nt_snapshot_before(t->snapshot)));
}

static void
points_collect_layout(nt_timeline_points *points, const nt_timeline *t,
                      const nt_layout *layout)
{
    for (size_t row = 0; layout != NULL && row < layout->segments.count; row++) {
        if (timeline_has_segment(t, layout, row)) {
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
        if (timeline_is_reserving(e->action[at]) &&
            timeline_has_range(t, t->others[i])) {
            points_add(points, e->addr[at], e->size[at]);
        }
    }
    points_collect_layout(points, t, nt_snapshot_layout(t->snapshot));
    points_collect_layout(points, t, nt_snapshot_before(t->snapshot));
}

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

static nt_status
timeline_points_init(nt_timeline_points *points, const nt_timeline *t, nt_error *err)
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

static void
timeline_points_clear(nt_timeline_points *points)
{
    NT_RELEASE(&points->alloc, points->items, points->capacity);
    *points = (nt_timeline_points){.alloc = points->alloc};
}

/* The number of the last point that is at most `address`; there are points. */
static size_t
timeline_points_rank(const nt_timeline_points *points, uint64_t address)
{
    size_t low = 1, high = points->count;
    NT_BISECT(low, high, middle, points->items[middle].key <= address);
    return low - 1;
}

/* When which address range was reserved. Ordinary segments come and go whole;
 * expandable ones are mapped and unmapped in ranges, so a range that is unmapped in
 * part ends, and its rests go on as rows of their own.
 *
 * What is given back without having been seen coming, or stands in the end layout so,
 * was there before the trace, unless the file says what was. */

static const nt_column_spec life_specs[] = {
    NT_SEGMENT_LIFE_LIST(NT_COLUMN_SPEC, nt_segment_life_columns)};

/* One row to be, but for its range. */
typedef struct segment_life {
    uint64_t stream;
    nt_pool_id pool;
    uint8_t kind;
    bool is_expandable, pool_known;
    int32_t alloc_event, free_event;
    uint32_t stack;
} segment_life;

typedef struct reserving {
    nt_timeline *t;
    nt_timeline_points points;
    uint32_t *rows;   /* by point: the row of the range that begins there now */
    uint32_t *ends;   /* by point: where that range ends */
    nt_bitset begins; /* points at which a range begins now */
    nt_bitset unseen; /* points up to whose successor nothing has happened yet */
    nt_error *err;
} reserving;

void
nt_timeline_clear_rows(nt_timeline *t)
{
    nt_columns_release(&t->alloc, &t->allocations, allocation_specs,
                       NT_LENGTH(allocation_specs), t->allocation_capacity);
    nt_columns_release(&t->alloc, &t->segments, life_specs, NT_LENGTH(life_specs),
                       t->segment_capacity);
}

static const nt_segment_columns *
segments_final(const nt_timeline *t)
{
    return &nt_snapshot_layout(t->snapshot)->segments;
}

static nt_status
segments_init(reserving *r)
{
    nt_timeline *t = r->t;
    NT_TRY(timeline_points_init(&r->points, t, r->err));
    const size_t most = r->points.capacity;
    NT_TRY(nt_bitset_init(&r->begins, t->alloc, most, r->err));
    NT_TRY(nt_bitset_init(&r->unseen, t->alloc, most, r->err));
    r->rows = nt_allocate(&t->alloc, most * sizeof(uint32_t));
    r->ends = nt_allocate(&t->alloc, most * sizeof(uint32_t));
    if ((r->rows == NULL || r->ends == NULL) && most != 0) {
        return nt_fail_nomem(r->err);
    }
    for (size_t at = 0; at < r->points.count; at++) {
        nt_bitset_add(&r->unseen, at);
    }
    return NT_OK;
}

static void
segments_clear(reserving *r)
{
    const nt_alloc *alloc = &r->t->alloc;
    NT_RELEASE(alloc, r->rows, r->points.capacity);
    NT_RELEASE(alloc, r->ends, r->points.capacity);
    nt_bitset_clear(&r->begins);
    nt_bitset_clear(&r->unseen);
    timeline_points_clear(&r->points);
}

static nt_point_range
segments_range(const reserving *r, uint64_t address, uint64_t size)
{
    return (nt_point_range){timeline_points_rank(&r->points, address),
                            timeline_points_rank(&r->points, address + size)};
}

/* Adds a row for the range; its number is t->segments.count - 1 then. */
static nt_status
segments_add(reserving *r, nt_point_range range, const segment_life *life)
{
    nt_timeline *t = r->t;
    nt_segment_life_columns *s = &t->segments;
    const size_t at = s->count;
    if (at >= NT_NONE) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 segments");
    }
    NT_TRY(nt_columns_reserve(&t->alloc, s, life_specs, NT_LENGTH(life_specs), at,
                              &t->segment_capacity, at + 1, r->err));
    s->address[at] = r->points.items[range.from].key;
    s->size[at] = r->points.items[range.to].key - r->points.items[range.from].key;
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
    return NT_OK;
}

static nt_status
segments_begin(reserving *r, nt_point_range range, const segment_life *life)
{
    NT_TRY(segments_add(r, range, life));
    r->rows[range.from] = (uint32_t)(r->t->segments.count - 1);
    r->ends[range.from] = (uint32_t)range.to;
    nt_bitset_add(&r->begins, range.from);
    return NT_OK;
}

/* A part of the range in `row`, which ends at `event`, goes on as a row of its own. */
static nt_status
segments_continue(reserving *r, uint32_t row, nt_point_range part, int32_t event)
{
    if (part.from >= part.to) {
        return NT_OK;
    }
    const nt_segment_life_columns *s = &r->t->segments;
    const segment_life rest = {
        .stream = s->stream[row],
        .pool = {s->pool_first[row], s->pool_second[row]},
        .kind = s->kind[row],
        .is_expandable = s->is_expandable[row] != 0,
        .pool_known = s->pool_known[row] != 0,
        .alloc_event = event,
        .free_event = NT_EVENT_NEVER,
        .stack = s->stack[row],
    };
    return segments_begin(r, part, &rest);
}

/* The point at which the first range begins that reaches beyond point `from`. */
static size_t
segments_first_beyond(const reserving *r, size_t from)
{
    const size_t before = nt_bitset_last(&r->begins, from);
    if (before != NT_NO_MEMBER && r->ends[before] > from) {
        return before;
    }
    return nt_bitset_next(&r->begins, from);
}

/* Whatever is reserved in `range` ends at `event`: *count ranges, in part or whole. */
static nt_status
segments_cut(reserving *r, nt_point_range range, int32_t event, uint32_t *count)
{
    *count = 0;
    size_t at = segments_first_beyond(r, range.from);
    while (at != NT_NO_MEMBER && at < range.to) {
        const uint32_t row = r->rows[at];
        const size_t end = r->ends[at];
        r->t->segments.free_event[row] = event;
        nt_bitset_remove(&r->begins, at);
        NT_TRY(segments_continue(r, row, (nt_point_range){at, range.from}, event));
        NT_TRY(segments_continue(r, row, (nt_point_range){range.to, end}, event));
        ++*count;
        at = nt_bitset_next(&r->begins, end < range.to ? end : range.to);
    }
    return NT_OK;
}

/* The next part of `range`, from *at on, in which nothing has happened so far; from now
 * on it counts as seen. False when there is none left. */
static bool
segments_take_unseen(reserving *r, nt_point_range range, size_t *at,
                     nt_point_range *part)
{
    part->from = nt_bitset_next(&r->unseen, *at);
    if (part->from == NT_NO_MEMBER || part->from >= range.to) {
        return false;
    }
    size_t next = part->from;
    while (next < range.to && nt_bitset_next(&r->unseen, next) == next) {
        nt_bitset_remove(&r->unseen, next++);
    }
    part->to = next;
    *at = next;
    return true;
}

static void
segments_see(reserving *r, nt_point_range range)
{
    nt_point_range part;
    for (size_t at = range.from; segments_take_unseen(r, range, &at, &part);) {
        continue;
    }
}

/* The pool that a range belongs to, by its size. Ordinary segments of the small pool
 * are 2 MiB, and no others are; expandable ones are mapped in pages, of which those of
 * the large pool are larger. */
static uint8_t
segments_kind(const nt_timeline *t, uint64_t size, bool expandable)
{
    if (!expandable) {
        return size <= NT_SMALL_BUFFER ? NT_POOL_SMALL : NT_POOL_LARGE;
    }
    const uint64_t page = nt_page_size(nt_snapshot_settings(t->snapshot), false);
    return page != 0 && size % page == 0 ? NT_POOL_LARGE : NT_POOL_SMALL;
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
        .stream = e->stream[row],
        .pool = e->pool_first == NULL
                    ? (nt_pool_id){0, 0}
                    : (nt_pool_id){e->pool_first[row], e->pool_second[row]},
        .kind = segments_kind(t, e->size[row], expandable),
        .is_expandable = expandable,
        .pool_known = e->pool_first != NULL,
        .alloc_event = begins ? (int32_t)i : NT_EVENT_BEFORE,
        .free_event = begins ? NT_EVENT_NEVER : (int32_t)i,
        .stack = begins ? e->stack[row] : NT_NO_STACK,
    };
}

/* A range that is reserved anew although it is reserved has lost its end. */
static nt_status
segments_replay_begin(reserving *r, nt_point_range range, const segment_life *life)
{
    uint32_t cut;
    NT_TRY(segments_cut(r, range, life->alloc_event, &cut));
    r->t->facts.unmatched += cut;
    segments_see(r, range);
    return segments_begin(r, range, life);
}

/* Parts that were never seen coming were there before the trace. */
static nt_status
segments_replay_end(reserving *r, nt_point_range range, const segment_life *life)
{
    uint32_t ended;
    NT_TRY(segments_cut(r, range, life->free_event, &ended));
    nt_point_range part;
    for (size_t at = range.from; segments_take_unseen(r, range, &at, &part);) {
        NT_TRY(segments_add(r, part, life));
        ended++;
    }
    r->t->facts.unmatched += ended == 0;
    return NT_OK;
}

static nt_status
segments_replay_event(reserving *r, size_t i)
{
    nt_timeline *t = r->t;
    const nt_event_columns *e = nt_snapshot_events(t->snapshot);
    const uint8_t action = e->action[t->first + i];
    const bool begins =
        action == NT_ACTION_SEGMENT_ALLOC || action == NT_ACTION_SEGMENT_MAP;
    const uint64_t address = e->addr[t->first + i], size = e->size[t->first + i];
    const nt_point_range range = segments_range(r, address, size);
    const segment_life life = segments_of_event(t, i, begins);
    return begins ? segments_replay_begin(r, range, &life)
                  : segments_replay_end(r, range, &life);
}

/* What a layout's segment says of the ranges in it, which were there before. */
static segment_life
segments_of_layout(const nt_segment_columns *s, size_t row)
{
    return (segment_life){
        .stream = s->stream[row],
        .pool = {s->pool_first[row], s->pool_second[row]},
        .kind = s->kind[row],
        .is_expandable = s->is_expandable[row] != 0,
        .pool_known = true,
        .alloc_event = NT_EVENT_BEFORE,
        .free_event = NT_EVENT_NEVER,
        .stack = s->stack[row],
    };
}

/* Where the file says what was there before the trace, nothing else was. */
static nt_status
segments_begin_before(reserving *r)
{
    const nt_layout *before = nt_snapshot_before(r->t->snapshot);
    if (before == NULL) {
        return NT_OK;
    }
    segments_see(r, (nt_point_range){0, r->points.count});
    const nt_segment_columns *s = &before->segments;
    for (size_t row = 0; row < s->count; row++) {
        if (timeline_has_segment(r->t, before, row)) {
            const nt_point_range range =
                segments_range(r, s->address[row], s->total_size[row]);
            const segment_life life = segments_of_layout(s, row);
            NT_TRY(segments_begin(r, range, &life));
        }
    }
    return NT_OK;
}

/* A row takes over what the end layout says of its stream and pool. */
static void
segments_inherit(nt_timeline *t, uint32_t row, const segment_life *life)
{
    t->segments.stream[row] = life->stream;
    t->segments.pool_first[row] = life->pool.first;
    t->segments.pool_second[row] = life->pool.second;
    t->segments.pool_known[row] = 1;
    t->segments.kind[row] = life->kind;
    t->segments.is_expandable[row] = life->is_expandable;
}

/* A part of a final segment that no row covers: it was there before the trace, and
 * lives on. But where the trace saw it go, it must have come again behind the trace's
 * end, before the snapshot took down the segments. */
static nt_status
segments_add_missing(reserving *r, nt_point_range gap, const segment_life *life)
{
    nt_point_range part;
    for (size_t at = gap.from; segments_take_unseen(r, gap, &at, &part);) {
        NT_TRY(segments_begin(r, part, life));
    }
    segment_life late = *life;
    late.alloc_event = (int32_t)r->t->count - 1;
    for (size_t at = gap.from; at < gap.to;) {
        const size_t begins = segments_first_beyond(r, at);
        const size_t end = begins == NT_NO_MEMBER || begins > gap.to ? gap.to : begins;
        if (end > at) {
            NT_TRY(segments_begin(r, (nt_point_range){at, end}, &late));
            r->t->facts.unmatched++;
        }
        at = end > at ? end : r->ends[begins];
    }
    return NT_OK;
}

/* Whether nothing has happened in `range` so far. */
static bool
segments_is_unseen(const reserving *r, nt_point_range range)
{
    size_t at = range.from;
    while (at < range.to && nt_bitset_next(&r->unseen, at) == at) {
        at++;
    }
    return at == range.to;
}

/* An ordinary segment of the end layout that the trace did not leave as it is, because
 * events were lost: what is reserved there ends, and the segment comes, with the last
 * event. But where the trace never touched it, it was there all the time. */
static nt_status
segments_replace(reserving *r, nt_point_range range, const segment_life *life)
{
    nt_timeline *t = r->t;
    const int32_t last = (int32_t)t->count - 1;
    segment_life late = *life;
    late.alloc_event = last;
    if (segments_is_unseen(r, range)) {
        return NT_OK;
    }
    uint32_t cut;
    NT_TRY(segments_cut(r, range, last, &cut));
    t->facts.unmatched += cut + 1;
    segments_see(r, range);
    return segments_begin(r, range, &late);
}

/* One segment of the end layout against what the trace left reserved. */
static nt_status
segments_match_final(reserving *r, size_t final)
{
    const nt_segment_columns *s = segments_final(r->t);
    const nt_point_range range =
        segments_range(r, s->address[final], s->total_size[final]);
    const segment_life life = segments_of_layout(s, final);
    const bool whole = segments_first_beyond(r, range.from) == range.from &&
                       r->ends[range.from] == range.to;
    if (!whole && !life.is_expandable && r->t->count != 0) {
        NT_TRY(segments_replace(r, range, &life));
    }
    NT_TRY(segments_add_missing(r, range, &life));
    for (size_t at = segments_first_beyond(r, range.from);
         at != NT_NO_MEMBER && at < range.to;
         at = nt_bitset_next(&r->begins, r->ends[at])) {
        segments_inherit(r->t, r->rows[at], &life);
    }
    return NT_OK;
}

static size_t
segments_sort_final(const nt_timeline *t, nt_sort_item *items)
{
    const nt_segment_columns *s = segments_final(t);
    size_t count = 0;
    for (size_t row = 0; row < s->count; row++) {
        if (timeline_has_segment(t, nt_snapshot_layout(t->snapshot), row)) {
            items[count++] = (nt_sort_item){s->address[row], (uint32_t)row};
        }
    }
    nt_sort(items, count);
    return count;
}

/* What the end layout does not have went behind the trace's end, or some events were
 * lost; here it ends with the trace's last event. */
static nt_status
segments_end_lost(reserving *r, const nt_sort_item *final, size_t count)
{
    nt_timeline *t = r->t;
    const nt_segment_columns *s = segments_final(t);
    size_t from = 0;
    for (size_t i = 0; i <= count && t->count != 0; i++) {
        const size_t to = i == count ? r->points.count
                                     : timeline_points_rank(&r->points, final[i].key);
        uint32_t cut = 0;
        if (from < to) {
            NT_TRY(segments_cut(r, (nt_point_range){from, to}, (int32_t)t->count - 1,
                                &cut));
        }
        t->facts.unmatched += cut;
        if (i < count) {
            const uint64_t size = s->total_size[final[i].value];
            const size_t end = timeline_points_rank(&r->points, final[i].key + size);
            from = end > from ? end : from;
        }
    }
    return NT_OK;
}

/* What is reserved at the end is what the end layout says. */
static nt_status
segments_match_end(reserving *r)
{
    nt_timeline *t = r->t;
    const size_t most = segments_final(t)->count;
    nt_sort_item *final;
    NT_TRY(NT_NEW(&t->alloc, final, most, r->err));
    const size_t count = segments_sort_final(t, final);
    nt_status status = segments_end_lost(r, final, count);
    for (size_t i = 0; i < count && status == NT_OK; i++) {
        status = segments_match_final(r, final[i].value);
    }
    NT_RELEASE(&t->alloc, final, most);
    return status;
}

static nt_status
segments_replay(reserving *r)
{
    nt_timeline *t = r->t;
    NT_TRY(segments_init(r));
    NT_TRY(segments_begin_before(r));
    const uint8_t *action = nt_snapshot_events(t->snapshot)->action;
    for (size_t other = 0; other < t->other_count; other++) {
        const size_t i = t->others[other];
        if (!timeline_is_reserving(action[t->first + i])) {
            continue;
        }
        if (timeline_has_range(t, i)) {
            NT_TRY(segments_replay_event(r, i));
        } else {
            t->facts.unmatched++;
        }
    }
    return segments_match_end(r);
}

nt_status
nt_timeline_replay_segments(nt_timeline *t, nt_error *err)
{
    reserving r = {.t = t, .err = err};
    const nt_status status = segments_replay(&r);
    segments_clear(&r);
    for (size_t row = 0; row < t->segments.count; row++) {
        if (t->segments.alloc_event[row] == NT_EVENT_BEFORE) {
            t->facts.start_bytes[NT_METRIC_RESERVED] += t->segments.size[row];
        }
    }
    return status;
}

/* The state before a trace that does not go back to the first allocation. It is what
 * the file says of it, where it does (nt_snapshot_before). Else a block was there if it
 * is freed in the trace without having been allocated in it, or if it is in the end
 * layout and the trace never touched its address. */

/* The block now at an address was allocated within the trace. */
#define START_IN_TRACE (NT_NONE - 1)

/* A block that was there before the trace. */
typedef struct start_block {
    nt_allocation row;
    int32_t seen;   /* the event that first frees it; INT32_MAX: none does */
    int32_t gone;   /* its free_completed; INT32_MAX: none */
    uint64_t slack; /* bytes by which row.size may be too small */
} start_block;

typedef struct start {
    nt_timeline *t;
    const nt_event_columns *events;
    start_block *blocks;
    size_t count, capacity;
    nt_map live;         /* address -> number in `blocks`, or START_IN_TRACE */
    nt_map known;        /* address -> number in `blocks` */
    nt_sort_item *order; /* the blocks that were there, by address */
    size_t order_count, order_capacity;
    nt_sort_item *segments; /* rows from before the trace, by address */
    size_t segment_count, segment_capacity;
    nt_error *err;
} start;

/* How many of the `count` sorted items have a key of at most `key`. */
static size_t
start_rank(const nt_sort_item *items, size_t count, uint64_t key)
{
    size_t low = 0, high = count;
    NT_BISECT(low, high, middle, items[middle].key <= key);
    return low;
}

/* The row of the segment from before the trace that holds `address`, or NT_NONE. */
static uint32_t
start_find_segment(const start *s, uint64_t address)
{
    const size_t rank = start_rank(s->segments, s->segment_count, address);
    if (rank == 0) {
        return NT_NONE;
    }
    const nt_segment_life_columns *lives = &s->t->segments;
    const uint32_t row = s->segments[rank - 1].value;
    return address - lives->address[row] < lives->size[row] ? row : NT_NONE;
}

static nt_status
start_sort_segments(start *s)
{
    const nt_segment_life_columns *lives = &s->t->segments;
    size_t bytes;
    s->segments = nt_size_mul(lives->count, sizeof(nt_sort_item), &bytes)
                      ? nt_allocate(&s->t->alloc, bytes)
                      : NULL;
    if (s->segments == NULL && lives->count != 0) {
        return nt_fail_nomem(s->err);
    }
    s->segment_capacity = lives->count;
    for (uint32_t row = 0; row < lives->count; row++) {
        if (lives->alloc_event[row] == NT_EVENT_BEFORE) {
            s->segments[s->segment_count++] = (nt_sort_item){lives->address[row], row};
        }
    }
    nt_sort(s->segments, s->segment_count);
    return NT_OK;
}

/* Takes up a block, if it is the first at its address: one that goes or stays after
 * that was allocated by an event that was lost. */
static nt_status
start_add(start *s, const start_block *block, uint32_t *number)
{
    *number = START_IN_TRACE;
    if (nt_map_find(&s->known, block->row.address) != NT_NONE) {
        return NT_OK;
    }
    if (s->count >= START_IN_TRACE) {
        return nt_fail(s->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 allocations");
    }
    NT_TRY(NT_GROW(&s->t->alloc, s->blocks, s->capacity, s->count + 1, s->err));
    s->blocks[s->count] = *block;
    *number = (uint32_t)s->count++;
    return nt_map_set(&s->known, block->row.address, *number, s->err);
}

/* Event `i` frees a block that the trace did not allocate. */
static nt_status
start_add_freed(start *s, size_t i, bool was_requested, uint32_t *number)
{
    const size_t at = s->t->first + i;
    const start_block block = {
        .row =
            {
                .address = s->events->addr[at],
                .size = nt_round_size(nt_snapshot_settings(s->t->snapshot),
                                      s->events->size[at]),
                .requested_size = s->events->size[at],
                .stream = s->events->stream[at],
                .alloc_event = NT_EVENT_BEFORE,
                .free_event = was_requested ? NT_EVENT_FREED_BEFORE : NT_EVENT_NEVER,
                .completed_event = NT_EVENT_NEVER,
                .stack = NT_NO_STACK,
            },
        .seen = (int32_t)i,
        .gone = was_requested ? (int32_t)i : INT32_MAX,
        .slack = NT_SMALL_SIZE,
    };
    return start_add(s, &block, number);
}

static nt_status
start_look_at(start *s, size_t i)
{
    const uint64_t address = s->events->addr[s->t->first + i];
    uint32_t number;
    switch (s->events->action[s->t->first + i]) {
    case NT_ACTION_ALLOC: return nt_map_set(&s->live, address, START_IN_TRACE, s->err);
    case NT_ACTION_FREE_REQUESTED:
        if (nt_map_find(&s->live, address) == NT_NONE) {
            NT_TRY(start_add_freed(s, i, false, &number));
            return nt_map_set(&s->live, address, number, s->err);
        }
        return NT_OK;
    case NT_ACTION_FREE_COMPLETED:
        number = nt_map_remove(&s->live, address);
        if (number == NT_NONE) {
            return start_add_freed(s, i, true, &number);
        }
        if (number != START_IN_TRACE) {
            s->blocks[number].gone = (int32_t)i;
        }
        return NT_OK;
    default: return NT_OK;
    }
}

/* An active block of the end layout: it was there, if the trace has it not otherwise
 * and its memory was reserved then. */
static nt_status
start_look_at_final(start *s, size_t block)
{
    const nt_allocation row =
        timeline_layout_allocation(s->t, nt_snapshot_layout(s->t->snapshot), block);
    uint32_t number = nt_map_find(&s->live, row.address);
    if (number == NT_NONE && start_find_segment(s, row.address) != NT_NONE) {
        const start_block survivor = {.row = row, .seen = INT32_MAX, .gone = INT32_MAX};
        return start_add(s, &survivor, &number);
    }
    if (number < START_IN_TRACE) {
        /* Freed by request in the trace, and still waiting for its stream. */
        start_block *waiting = &s->blocks[number];
        timeline_correct_sizes(s->t, block, &waiting->row.size,
                               &waiting->row.requested_size);
        waiting->slack = 0;
    }
    return NT_OK;
}

static nt_status
start_collect(start *s)
{
    for (size_t i = 0; i < s->t->count; i++) {
        NT_TRY(start_look_at(s, i));
    }
    const nt_layout *final = nt_snapshot_layout(s->t->snapshot);
    for (size_t block = 0; block < final->blocks.count; block++) {
        if (final->segments.device[final->blocks.segment[block]] == s->t->device &&
            final->blocks.state[block] != NT_BLOCK_INACTIVE) {
            NT_TRY(start_look_at_final(s, block));
        }
    }
    return NT_OK;
}

/* Drops blocks at whose address the trace allocates before it frees them: those come
 * from an allocation that was lost. The others are put in order. */
static nt_status
start_sort(start *s)
{
    for (size_t i = 0; i < s->t->count; i++) {
        if (s->events->action[s->t->first + i] == NT_ACTION_ALLOC) {
            const uint64_t address = s->events->addr[s->t->first + i];
            const uint32_t number = nt_map_find(&s->known, address);
            if (number != NT_NONE && s->blocks[number].seen > (int32_t)i) {
                (void)nt_map_remove(&s->known, address);
            }
        }
    }
    NT_TRY(NT_NEW(&s->t->alloc, s->order, s->count, s->err));
    s->order_capacity = s->count;
    for (uint32_t i = 0; i < s->count; i++) {
        const uint64_t address = s->blocks[i].row.address;
        if (nt_map_find(&s->known, address) != NT_NONE) {
            s->order[s->order_count++] = (nt_sort_item){address, i};
        }
    }
    nt_sort(s->order, s->order_count);
    return NT_OK;
}

/* What lies behind the block at `position` of the order tells its size, or bounds it:
 * up to the next block or the end of the segment lies the rest of its own free block,
 * if that was too small to be split off; else a free block that was large enough. */
static void
start_fix_by_gap(start *s, size_t position)
{
    start_block *block = &s->blocks[s->order[position].value];
    const nt_segment_life_columns *lives = &s->t->segments;
    const uint32_t segment = start_find_segment(s, block->row.address);
    if (block->slack == 0 || nt_is_small(block->row.size) ||
        (segment != NT_NONE && lives->is_expandable[segment])) {
        block->slack = 0;
        return;
    }
    if (segment == NT_NONE) {
        return;
    }
    uint64_t limit = lives->address[segment] + lives->size[segment];
    if (position + 1 < s->order_count && s->order[position + 1].key < limit) {
        limit = s->order[position + 1].key;
    }
    const uint64_t room = limit - block->row.address;
    if (room < block->row.size) {
        return;
    }
    if (!nt_should_split(nt_snapshot_settings(s->t->snapshot), room, block->row.size,
                         false, false)) {
        block->row.size = room;
        block->slack = 0;
    } else if (room - block->row.size < 2 * NT_SMALL_SIZE) {
        /* The free block behind it is larger than 1 MiB. */
        block->slack = room - block->row.size - NT_SMALL_SIZE - NT_MIN_BLOCK_SIZE;
    }
}

/* A block that event `i` allocates at most 1 MiB behind what is known of a block that
 * lives then begins where that one ends. */
static void
start_fix_by_landing(start *s, size_t i)
{
    const uint64_t address = s->events->addr[s->t->first + i];
    const size_t rank = start_rank(s->order, s->order_count, address);
    if (rank == 0) {
        return;
    }
    start_block *block = &s->blocks[s->order[rank - 1].value];
    const uint64_t end = block->row.address + block->row.size;
    if (block->slack != 0 && (int32_t)i < block->gone && address >= end &&
        address - end <= NT_SMALL_SIZE) {
        block->row.size = address - block->row.address;
        block->slack = 0;
    }
}

static void
start_fix_sizes(start *s)
{
    size_t open = 0;
    for (size_t position = 0; position < s->order_count; position++) {
        start_fix_by_gap(s, position);
        open += s->blocks[s->order[position].value].slack != 0;
    }
    for (size_t i = 0; i < s->t->count && open != 0; i++) {
        const size_t at = s->t->first + i;
        /* Small requests do not land behind large blocks. */
        if (s->events->action[at] == NT_ACTION_ALLOC &&
            s->events->size[at] > NT_SMALL_SIZE / 2) {
            start_fix_by_landing(s, i);
        }
    }
}

static nt_status
start_add_rows(start *s)
{
    nt_timeline *t = s->t;
    for (size_t position = 0; position < s->order_count; position++) {
        const start_block *block = &s->blocks[s->order[position].value];
        t->facts.slack_bound += block->slack;
        NT_TRY(timeline_add_allocation(t, &block->row, s->err));
    }
    t->facts.preexisting = (uint32_t)s->order_count;
    return NT_OK;
}

static nt_status
start_find(start *s)
{
    NT_TRY(start_sort_segments(s));
    NT_TRY(start_collect(s));
    NT_TRY(start_sort(s));
    start_fix_sizes(s);
    return start_add_rows(s);
}

/* The active blocks of the layout before the trace, as it says they were. */
static nt_status
start_take(start *s, const nt_layout *before)
{
    const nt_block_columns *b = &before->blocks;
    NT_TRY(NT_NEW(&s->t->alloc, s->order, b->count, s->err));
    s->order_capacity = b->count;
    for (uint32_t block = 0; block < b->count; block++) {
        if (before->segments.device[b->segment[block]] == s->t->device &&
            b->state[block] != NT_BLOCK_INACTIVE) {
            s->order[s->order_count++] = (nt_sort_item){b->address[block], block};
        }
    }
    nt_sort(s->order, s->order_count);
    for (size_t position = 0; position < s->order_count; position++) {
        const nt_allocation row =
            timeline_layout_allocation(s->t, before, s->order[position].value);
        NT_TRY(timeline_add_allocation(s->t, &row, s->err));
    }
    s->t->facts.preexisting = (uint32_t)s->order_count;
    return NT_OK;
}

/* Adds a row for every block that was there before the trace, by address. Their sizes
 * are exact where the end layout or the trace fixes them; facts.slack_bound says by how
 * much the others may be too small. The segments must stand, and no allocations. */
static nt_status
timeline_find_start(nt_timeline *t, nt_error *err)
{
    const nt_layout *before = nt_snapshot_before(t->snapshot);
    start s = {.t = t, .events = nt_snapshot_events(t->snapshot), .err = err};
    nt_map_init(&s.live, t->alloc);
    nt_map_init(&s.known, t->alloc);
    const nt_status status = before != NULL ? start_take(&s, before) : start_find(&s);
    nt_map_clear(&s.live);
    nt_map_clear(&s.known);
    NT_RELEASE(&t->alloc, s.blocks, s.capacity);
    NT_RELEASE(&t->alloc, s.order, s.order_capacity);
    NT_RELEASE(&t->alloc, s.segments, s.segment_capacity);
    return status;
}

#define LARGE_MIB_BITS 20
#define LARGE_MIB_MASK ((UINT64_C(1) << LARGE_MIB_BITS) - 1)

/* How far a block that max_split_size_mb keeps whole is looked for to the end, so that
 * a file's settings cannot make each event slow. */
#define LARGE_MOST_REACH (UINT64_C(1) << 28)

/* The page that `mib` is on, or NULL. */
static inline nt_large_page *
large_find(const nt_timeline_large *large, uint64_t mib)
{
    const uint32_t number = nt_map_find(&large->numbers, mib / NT_LARGE_PAGE);
    return number == NT_NONE ? NULL : &large->pages[number];
}

/* The same; it comes into being where it is not there. */
static nt_status
large_want(nt_timeline_large *large, uint64_t mib, nt_large_page **out, nt_error *err)
{
    *out = large_find(large, mib);
    if (NT_LIKELY(*out != NULL)) {
        return NT_OK;
    }
    if (large->page_count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 large blocks");
    }
    NT_TRY(NT_GROW(&large->alloc, large->pages, large->page_capacity,
                   large->page_count + 1, err));
    NT_TRY(nt_map_set(&large->numbers, mib / NT_LARGE_PAGE, (uint32_t)large->page_count,
                      err));
    *out = &large->pages[large->page_count++];
    for (size_t i = 0; i < NT_LARGE_PAGE; i++) {
        (*out)->mibs[i] = (nt_large_mib){.start = NT_NONE, .end = NT_NONE};
    }
    return NT_OK;
}

static nt_status
large_note_start(nt_timeline_large *large, uint64_t address, uint32_t row,
                 nt_error *err)
{
    const uint64_t mib = address >> LARGE_MIB_BITS;
    nt_large_page *page;
    NT_TRY(large_want(large, mib, &page, err));
    nt_large_mib *noted = &page->mibs[mib % NT_LARGE_PAGE];
    noted->start = (uint32_t)(address & LARGE_MIB_MASK);
    noted->row = row;
    return NT_OK;
}

/* The ranges ever mapped, by address, those that touch as one. */
static nt_status
large_collect_expandable(nt_timeline_large *large, const nt_timeline *t, nt_error *err)
{
    const nt_segment_life_columns *s = &t->segments;
    size_t count = 0;
    for (size_t row = 0; row < s->count; row++) {
        count += s->is_expandable[row] != 0;
    }
    if (count == 0) {
        return NT_OK;
    }
    nt_sort_item *items = nt_allocate(&large->alloc, count * sizeof *items);
    large->expandable = nt_allocate(&large->alloc, count * sizeof *large->expandable);
    large->expandable_capacity = large->expandable != NULL ? count : 0;
    if (items == NULL || large->expandable == NULL) {
        NT_RELEASE(&large->alloc, items, count);
        return nt_fail_nomem(err);
    }
    size_t filled = 0;
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->is_expandable[row]) {
            items[filled++] = (nt_sort_item){s->address[row], row};
        }
    }
    nt_sort(items, count);
    nt_address_range *ranges = large->expandable;
    for (size_t i = 0; i < count; i++) {
        const uint64_t first = items[i].key;
        const uint64_t end = first + s->size[items[i].value];
        if (large->expandable_count == 0 ||
            ranges[large->expandable_count - 1].end < first) {
            ranges[large->expandable_count++] = (nt_address_range){first, end};
        } else if (ranges[large->expandable_count - 1].end < end) {
            ranges[large->expandable_count - 1].end = end;
        }
    }
    NT_RELEASE(&large->alloc, items, count);
    return NT_OK;
}

static bool
large_is_expandable(const nt_timeline_large *large, uint64_t address)
{
    size_t low = 0, high = large->expandable_count;
    NT_BISECT(low, high, middle, large->expandable[middle].end <= address);
    return low < large->expandable_count && large->expandable[low].first <= address;
}

/* An ordinary segment comes or goes; one of the small pool is left alone. */
static nt_status
timeline_large_add_segment(nt_timeline_large *large, uint64_t address, uint64_t size,
                           nt_error *err)
{
    if (size <= NT_SMALL_BUFFER) {
        return NT_OK;
    }
    const uint64_t end = address + size, mib = end >> LARGE_MIB_BITS;
    nt_large_page *page;
    NT_TRY(large_want(large, mib, &page, err));
    page->mibs[mib % NT_LARGE_PAGE].end = (uint32_t)(end & LARGE_MIB_MASK);
    return NT_OK;
}

/* For the trace of `t`, whose segments stand: those from before it are there. */
static nt_status
timeline_large_init(nt_timeline_large *large, const nt_timeline *t, nt_error *err)
{
    *large = (nt_timeline_large){
        .settings = nt_snapshot_settings(t->snapshot),
        .rows = &t->allocations,
        .alloc = t->alloc,
    };
    nt_map_init(&large->numbers, t->alloc);
    NT_TRY(large_collect_expandable(large, t, err));
    const nt_segment_life_columns *s = &t->segments;
    for (size_t row = 0; row < s->count; row++) {
        if (s->alloc_event[row] == NT_EVENT_BEFORE && !s->is_expandable[row]) {
            NT_TRY(
                timeline_large_add_segment(large, s->address[row], s->size[row], err));
        }
    }
    return NT_OK;
}

static void
timeline_large_clear(nt_timeline_large *large)
{
    nt_map_clear(&large->numbers);
    NT_RELEASE(&large->alloc, large->pages, large->page_capacity);
    NT_RELEASE(&large->alloc, large->expandable, large->expandable_capacity);
    *large = (nt_timeline_large){.alloc = large->alloc};
}

static void
timeline_large_remove_segment(nt_timeline_large *large, uint64_t address, uint64_t size)
{
    const uint64_t end = address + size, mib = end >> LARGE_MIB_BITS;
    nt_large_page *page = large_find(large, mib);
    if (size <= NT_SMALL_BUFFER || page == NULL) {
        return;
    }
    uint32_t *noted = &page->mibs[mib % NT_LARGE_PAGE].end;
    if (*noted == (uint32_t)(end & LARGE_MIB_MASK)) {
        *noted = NT_NONE;
    }
}

/* The lesser of `nearest` and, if that is so, `address`; without a branch. */
static inline uint64_t
large_nearer(uint64_t nearest, uint64_t address, unsigned is_so)
{
    const uint64_t candidate = address | ((uint64_t)is_so - 1);
    return candidate < nearest ? candidate : nearest;
}

/* The first thing noted under `mib` at `from` or behind it, if it is before `nearest`.
 * There are rows. */
static inline uint64_t
large_look(const nt_timeline_large *large, const nt_large_page *page, uint64_t mib,
           uint64_t from, uint64_t nearest)
{
    const nt_large_mib *noted = &page->mibs[mib % NT_LARGE_PAGE];
    const uint64_t base = mib << LARGE_MIB_BITS;
    const uint64_t start = base | noted->start, end = base | noted->end;
    const unsigned active = large->rows->completed_event[noted->row] == NT_EVENT_NEVER;
    nearest = large_nearer(nearest, end, (noted->end != NT_NONE) & (end >= from));
    return large_nearer(nearest, start,
                        (noted->start != NT_NONE) & (start >= from) & active);
}

/* Where the free memory ends that begins before `from`, if that is at most `reach`
 * bytes behind it; else UINT64_MAX. */
static inline uint64_t
large_find_end(const nt_timeline_large *large, uint64_t from, uint64_t reach)
{
    const uint64_t last = (from + reach) >> LARGE_MIB_BITS;
    uint64_t mib = from >> LARGE_MIB_BITS, nearest = UINT64_MAX;
    while (mib <= last && nearest == UINT64_MAX) {
        const nt_large_page *page = large_find(large, mib);
        const uint64_t next = (mib / NT_LARGE_PAGE + 1) * NT_LARGE_PAGE;
        const uint64_t stop = next > last ? last + 1 : next;
        for (; page != NULL && mib < stop; mib++) {
            nearest = large_look(large, page, mib, from, nearest);
        }
        mib = next;
    }
    return nearest;
}

/* A request of *size bytes, rounded and above 1 MiB, is served at `address`: *size is
 * the size of its block then, which is `row`. An address in an expandable segment is
 * left alone. */
static nt_status
timeline_large_place(nt_timeline_large *large, uint64_t address, uint32_t row,
                     uint64_t *size, nt_error *err)
{
    const nt_settings *settings = large->settings;
    uint64_t reach = NT_SMALL_SIZE;
    if (NT_UNLIKELY(*size >= settings->max_split_size)) {
        reach = settings->max_non_split_rounding < LARGE_MOST_REACH
                    ? settings->max_non_split_rounding
                    : LARGE_MOST_REACH;
    }
    if (large->expandable_count != 0 && large_is_expandable(large, address)) {
        return NT_OK;
    }
    if (address <= UINT64_MAX - reach - *size) {
        const uint64_t end = large_find_end(large, address + *size, reach);
        if (end != UINT64_MAX &&
            !nt_should_split(settings, end - address, *size, false, false)) {
            *size = end - address;
        }
    }
    return large_note_start(large, address, row, err);
}

/* A block whose size is known lies at `address`. */
static nt_status
timeline_large_add(nt_timeline_large *large, uint64_t address, uint32_t row,
                   nt_error *err)
{
    if (large->expandable_count != 0 && large_is_expandable(large, address)) {
        return NT_OK;
    }
    return large_note_start(large, address, row, err);
}

/* When which block lived, and how large it was. The trace gives what was asked for; the
 * block is that, rounded, and in the large pool of ordinary segments possibly more
 * (timeline_large_place).
 *
 * A trace that does not go back to the start is looked through first for blocks that
 * were there before it. */

typedef struct replay {
    nt_timeline *t;
    const nt_settings *settings;
    const nt_event_columns *events;
    nt_timeline_live live;           /* the rows of active allocations */
    nt_timeline_large large;         /* which of them may be larger than asked for */
    uint64_t bytes[NT_METRIC_COUNT]; /* after the event before; reserved is not kept */
    nt_error *err;
} replay;

static const nt_block_columns *
replay_final_blocks(const replay *r)
{
    return &nt_snapshot_layout(r->t->snapshot)->blocks;
}

/* Notes a change of `row` (bits of nt_lost_change) with an event not its own. */
static nt_status
replay_note_lost(replay *r, uint32_t row, int32_t event, uint8_t changes)
{
    nt_timeline *t = r->t;
    NT_TRY(NT_GROW(&t->alloc, t->lost, t->lost_capacity, t->lost_count + 1, r->err));
    t->lost[t->lost_count++] = (nt_lost_event){event, row, changes};
    t->facts.unmatched++;
    return NT_OK;
}

/* The row ends at `event` without having been seen to: an event was lost. */
static nt_status
replay_end_lost(replay *r, uint32_t row, int32_t event)
{
    nt_allocation_columns *a = &r->t->allocations;
    uint8_t changes = NT_LOST_COMPLETION;
    if (a->free_event[row] == NT_EVENT_NEVER) {
        changes |= NT_LOST_FREE;
        a->free_event[row] = event;
    }
    a->completed_event[row] = event;
    return replay_note_lost(r, row, event, changes);
}

/* Peaks are looked for where sums rise. A sum that has wrapped, which only sizes that
 * no device has can do, may also rise where it falls. */
static inline void
replay_raise_peak(replay *r, nt_metric metric, uint64_t more, int32_t event)
{
    nt_moment *peak = &r->t->peaks[metric];
    r->bytes[metric] += more;
    if (r->bytes[metric] > peak->bytes) {
        *peak = (nt_moment){.event = event, .bytes = r->bytes[metric]};
    } else if (r->bytes[metric] < more) {
        r->t->peaks_stand = false;
    }
}

static nt_status
replay_alloc(replay *r, size_t i)
{
    nt_timeline *t = r->t;
    const size_t at = t->first + i;
    const uint32_t row = (uint32_t)t->allocations.count;
    nt_allocation allocation = {
        .address = r->events->addr[at],
        .size = nt_round_size(r->settings, r->events->size[at]),
        .requested_size = r->events->size[at],
        .stream = r->events->stream[at],
        .alloc_event = (int32_t)i,
        .free_event = NT_EVENT_NEVER,
        .completed_event = NT_EVENT_NEVER,
        .stack = r->events->stack[at],
    };
    uint32_t old;
    NT_TRY(nt_timeline_live_set(&r->live, allocation.address, row, &old, r->err));
    if (NT_UNLIKELY(old != NT_NONE)) {
        NT_TRY(replay_end_lost(r, old, (int32_t)i));
    }
    NT_TRY(timeline_add_allocation(t, &allocation, r->err));
    uint64_t size = allocation.size;
    if (!nt_is_small(size)) {
        NT_TRY(timeline_large_place(&r->large, allocation.address, row, &size, r->err));
        t->allocations.size[row] = size;
    }
    t->event_allocations[i] = row;
    replay_raise_peak(r, NT_METRIC_ALLOCATED, size, (int32_t)i);
    replay_raise_peak(r, NT_METRIC_ACTIVE, size, (int32_t)i);
    replay_raise_peak(r, NT_METRIC_REQUESTED, allocation.requested_size, (int32_t)i);
    return NT_OK;
}

static inline void
replay_free(replay *r, uint32_t row, size_t i)
{
    nt_allocation_columns *a = &r->t->allocations;
    a->free_event[row] = (int32_t)i;
    r->bytes[NT_METRIC_ALLOCATED] -= a->size[row];
}

static inline void
replay_complete(replay *r, uint32_t row, size_t i)
{
    nt_allocation_columns *a = &r->t->allocations;
    a->completed_event[row] = (int32_t)i;
    r->bytes[NT_METRIC_ACTIVE] -= a->size[row];
    r->bytes[NT_METRIC_REQUESTED] -= a->requested_size[row];
}

static void
replay_free_requested(replay *r, size_t i)
{
    const uint32_t row =
        nt_timeline_live_find(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE || r->t->allocations.free_event[row] != NT_EVENT_NEVER) {
        r->t->facts.unmatched++;
        return;
    }
    replay_free(r, row, i);
}

static void
replay_free_completed(replay *r, size_t i)
{
    const uint32_t row =
        nt_timeline_live_remove(&r->live, r->events->addr[r->t->first + i]);
    r->t->event_allocations[i] = row;
    if (row == NT_NONE) {
        r->t->facts.unmatched++;
        return;
    }
    if (r->t->allocations.free_event[row] == NT_EVENT_NEVER) {
        replay_free(r, row, i);
    }
    replay_complete(r, row, i);
}

/* Nearly every free is requested and completed by two events in a row: both are
 * replayed at once, with one look at the map. False where it is not so. */
static inline bool
replay_free_pair(replay *r, size_t i)
{
    nt_timeline *t = r->t;
    const size_t at = t->first + i;
    if (i + 1 >= t->count || r->events->action[at] != NT_ACTION_FREE_REQUESTED ||
        r->events->action[at + 1] != NT_ACTION_FREE_COMPLETED ||
        r->events->addr[at] != r->events->addr[at + 1]) {
        return false;
    }
    const uint32_t row = nt_timeline_live_remove(&r->live, r->events->addr[at]);
    t->event_allocations[i] = row;
    t->event_allocations[i + 1] = row;
    if (row == NT_NONE) {
        t->facts.unmatched += 2;
        return true;
    }
    if (t->allocations.free_event[row] == NT_EVENT_NEVER) {
        replay_free(r, row, i);
    } else {
        t->facts.unmatched++;
    }
    replay_complete(r, row, i + 1);
    return true;
}

static nt_status
replay_event(replay *r, size_t i)
{
    const size_t at = r->t->first + i;
    switch (r->events->action[at]) {
    case NT_ACTION_ALLOC: return replay_alloc(r, i);
    case NT_ACTION_FREE_REQUESTED: replay_free_requested(r, i); return NT_OK;
    case NT_ACTION_FREE_COMPLETED: replay_free_completed(r, i); return NT_OK;
    default: break;
    }
    r->t->event_allocations[i] = NT_NONE;
    if (r->events->action[at] == NT_ACTION_SEGMENT_ALLOC) {
        return timeline_large_add_segment(&r->large, r->events->addr[at],
                                          r->events->size[at], r->err);
    }
    if (r->events->action[at] == NT_ACTION_SEGMENT_FREE) {
        timeline_large_remove_segment(&r->large, r->events->addr[at],
                                      r->events->size[at]);
    }
    return NT_OK;
}

/* The rows so far are the blocks from before the trace. */
static nt_status
replay_set_start(replay *r)
{
    nt_timeline *t = r->t;
    const nt_allocation_columns *a = &t->allocations;
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        r->bytes[metric] = t->facts.start_bytes[metric];
        t->peaks[metric] = (nt_moment){.event = -1, .bytes = r->bytes[metric]};
    }
    for (uint32_t row = 0; row < a->count; row++) {
        uint32_t old;
        NT_TRY(nt_timeline_live_set(&r->live, a->address[row], row, &old, r->err));
        if (!nt_is_small(a->size[row])) {
            NT_TRY(timeline_large_add(&r->large, a->address[row], row, r->err));
        }
        replay_raise_peak(r, NT_METRIC_ACTIVE, a->size[row], -1);
        replay_raise_peak(r, NT_METRIC_REQUESTED, a->requested_size[row], -1);
        if (a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            replay_raise_peak(r, NT_METRIC_ALLOCATED, a->size[row], -1);
        }
    }
    memcpy(t->facts.start_bytes, r->bytes, sizeof r->bytes);
    return NT_OK;
}

/* A block of the end layout that the trace left free was allocated behind the trace's
 * end, before the snapshot took down the blocks; here, by the trace's last event. */
static nt_status
replay_add_late(replay *r, size_t block)
{
    nt_timeline *t = r->t;
    nt_allocation row =
        timeline_layout_allocation(t, nt_snapshot_layout(t->snapshot), block);
    const int32_t last = (int32_t)t->count - 1;
    uint8_t changes = NT_LOST_ALLOCATION;
    row.alloc_event = last;
    if (row.free_event != NT_EVENT_NEVER) {
        row.free_event = last;
        changes |= NT_LOST_FREE;
    }
    NT_TRY(replay_note_lost(r, (uint32_t)t->allocations.count, last, changes));
    return timeline_add_allocation(t, &row, r->err);
}

/* A block from before the trace is larger by so much, modulo 2^64, than it was taken to
 * be: an end layout that has two blocks at one address says so. */
static void
replay_correct_start(replay *r, uint32_t row, uint64_t size, uint64_t requested)
{
    const nt_allocation_columns *a = &r->t->allocations;
    uint64_t *start = r->t->facts.start_bytes;
    if (a->alloc_event[row] == NT_EVENT_BEFORE) {
        start[NT_METRIC_ACTIVE] += size;
        start[NT_METRIC_REQUESTED] += requested;
        if (a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            start[NT_METRIC_ALLOCATED] += size;
        }
    }
}

/* The row takes over what the end layout says of its block. */
static void
replay_correct(replay *r, uint32_t row, size_t block)
{
    nt_allocation_columns *a = &r->t->allocations;
    const uint64_t size = a->size[row], requested = a->requested_size[row];
    timeline_correct_sizes(r->t, block, &a->size[row], &a->requested_size[row]);
    if (a->size[row] != size || a->requested_size[row] != requested) {
        r->t->peaks_stand = false;
        replay_correct_start(r, row, a->size[row] - size,
                             a->requested_size[row] - requested);
    }
    if (a->stack[row] == NT_NO_STACK) {
        a->stack[row] = replay_final_blocks(r)->stack[block];
    }
}

/* One active block of the end layout against what the trace left alive. */
static nt_status
replay_match_final(replay *r, size_t block)
{
    nt_allocation_columns *a = &r->t->allocations;
    const nt_block_columns *b = replay_final_blocks(r);
    const bool pending = b->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE;
    const int32_t last = (int32_t)r->t->count - 1;
    const uint32_t row = nt_timeline_live_find(&r->live, b->address[block]);
    /* What the trace saw being freed can only live as another allocation. */
    if (row == NT_NONE || (!pending && a->free_event[row] != NT_EVENT_NEVER)) {
        return r->t->count == 0 ? NT_OK : replay_add_late(r, block);
    }
    (void)nt_timeline_live_remove(&r->live, b->address[block]);
    replay_correct(r, row, block);
    if (pending && a->free_event[row] == NT_EVENT_NEVER) {
        a->free_event[row] = last;
        return replay_note_lost(r, row, last, NT_LOST_FREE);
    }
    return NT_OK;
}

/* What lives at the end is what the end layout says. */
static nt_status
replay_match_end(replay *r)
{
    const nt_layout *final = nt_snapshot_layout(r->t->snapshot);
    for (size_t block = 0; block < final->blocks.count; block++) {
        const uint32_t segment = final->blocks.segment[block];
        if (final->segments.device[segment] == r->t->device &&
            final->blocks.state[block] != NT_BLOCK_INACTIVE) {
            NT_TRY(replay_match_final(r, block));
        }
    }
    for (size_t at = 0; at < r->live.bucket_count * NT_LIVE_PLACES; at++) {
        const nt_live_bucket *bucket = &r->live.buckets[at / NT_LIVE_PLACES];
        const uint32_t row = bucket->row[at % NT_LIVE_PLACES];
        if (row != NT_NONE && r->t->count != 0) {
            NT_TRY(replay_end_lost(r, row, (int32_t)r->t->count - 1));
        }
    }
    return NT_OK;
}

static nt_status
replay_allocate(replay *r)
{
    nt_timeline *t = r->t;
    NT_TRY(
        timeline_reserve_allocations(t, t->allocations.count + t->alloc_count, r->err));
    t->event_allocations = nt_allocate(&t->alloc, t->count * sizeof(uint32_t));
    return t->event_allocations == NULL && t->count != 0 ? nt_fail_nomem(r->err)
                                                         : NT_OK;
}

/* How many events ahead the rows are fetched that frees will be about. */
#define REPLAY_AHEAD 8

/* The columns of the row that event `i` most likely ends are wanted soon. There is an
 * active row at least. */
static inline void
replay_fetch_row(const replay *r, size_t i)
{
    const nt_allocation_columns *a = &r->t->allocations;
    const uint64_t address = r->events->addr[r->t->first + i];
    const nt_live_bucket *bucket =
        &r->live.buckets[nt_timeline_live_home(&r->live, address)];
    const uint32_t row =
        bucket->row[nt_timeline_live_match(bucket, address) % NT_LIVE_PLACES];
    const size_t at = row == NT_NONE ? 0 : row;
    NT_PREFETCH(&a->size[at]);
    NT_PREFETCH(&a->requested_size[at]);
    NT_PREFETCH(&a->free_event[at]);
    NT_PREFETCH(&a->completed_event[at]);
}

static nt_status
replay_run(replay *r)
{
    nt_timeline *t = r->t;
    if (!t->facts.complete || t->count == 0) {
        NT_TRY(timeline_find_start(t, r->err));
    }
    NT_TRY(timeline_large_init(&r->large, t, r->err));
    NT_TRY(replay_allocate(r));
    t->peaks_stand = true;
    NT_TRY(replay_set_start(r));
    size_t tick = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (i >= tick) {
            NT_TRY(timeline_tick(t, i, r->err));
            tick = i + NT_TIMELINE_TICK;
        }
        if (NT_LIKELY(i + REPLAY_AHEAD < t->count && r->live.count != 0)) {
            replay_fetch_row(r, i + REPLAY_AHEAD);
        }
        if (replay_free_pair(r, i)) {
            i++;
        } else {
            NT_TRY(replay_event(r, i));
        }
    }
    NT_TRY(replay_match_end(r));
    t->peaks_stand = t->peaks_stand && t->lost_count == 0;
    return NT_OK;
}

nt_status
nt_timeline_replay_blocks(nt_timeline *t, nt_error *err)
{
    replay r = {
        .t = t,
        .settings = nt_snapshot_settings(t->snapshot),
        .events = nt_snapshot_events(t->snapshot),
        .err = err,
    };
    r.live.alloc = t->alloc;
    r.large.alloc = t->alloc;
    const nt_status status = replay_run(&r);
    nt_timeline_live_clear(&r.live);
    timeline_large_clear(&r.large);
    return status;
}
