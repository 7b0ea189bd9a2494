/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When which address range was reserved. Ordinary segments come and go whole;
 * expandable ones are mapped and unmapped in ranges, so a range that is unmapped in
 * part ends, and its rests go on as rows of their own.
 *
 * What is given back without having been seen coming, or stands in the end layout so,
 * was there before the trace, unless the file says what was.
 */
#include "base/nt_bitset.h"
#include "base/nt_columns.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_points.h"

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
nt_timeline_clear_segments(nt_timeline *t)
{
    nt_columns_release(&t->alloc, &t->segments, life_specs, NT_LENGTH(life_specs),
                       t->segment_capacity);
}

static const nt_segment_columns *
segments_final(const nt_timeline *t)
{
    return &nt_snapshot_layout(t->snapshot)->segments;
}

/* What is kept by point. */
static nt_status
segments_init(reserving *r)
{
    nt_timeline *t = r->t;
    NT_TRY(nt_timeline_points_init(&r->points, t, r->err));
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
    nt_release(alloc, r->rows, r->points.capacity * sizeof(uint32_t));
    nt_release(alloc, r->ends, r->points.capacity * sizeof(uint32_t));
    nt_bitset_clear(&r->begins);
    nt_bitset_clear(&r->unseen);
    nt_timeline_points_clear(&r->points);
}

static nt_point_range
segments_range(const reserving *r, uint64_t address, uint64_t size)
{
    return (nt_point_range){nt_timeline_points_rank(&r->points, address),
                            nt_timeline_points_rank(&r->points, address + size)};
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

/* Adds a row for a range that is reserved from now on. */
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

/* The next part of `range`, from *at on, in which nothing has happened so far; from
 * now on it counts as seen. False when there is none left. */
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

/*
 * The pool that a range belongs to, by its size. Ordinary segments of the small pool
 * are 2 MiB, and no others are; expandable ones are mapped in pages, of which those of
 * the large pool are larger.
 */
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
        if (nt_timeline_has_segment(r->t, before, row)) {
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

/*
 * A part of a final segment that no row covers: it was there before the trace, and
 * lives on. But where the trace saw it go, it must have come again behind the trace's
 * end, before the snapshot took down the segments.
 */
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

/*
 * An ordinary segment of the end layout that the trace did not leave as it is, because
 * events were lost: what is reserved there ends, and the segment comes, with the last
 * event. But where the trace never touched it, it was there all the time.
 */
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

/* The end layout's segments of this device, by address. */
static size_t
segments_sort_final(const nt_timeline *t, nt_sort_item *items)
{
    const nt_segment_columns *s = segments_final(t);
    size_t count = 0;
    for (size_t row = 0; row < s->count; row++) {
        if (nt_timeline_has_segment(t, nt_snapshot_layout(t->snapshot), row)) {
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
        const size_t to = i == count
                              ? r->points.count
                              : nt_timeline_points_rank(&r->points, final[i].key);
        uint32_t cut = 0;
        if (from < to) {
            NT_TRY(segments_cut(r, (nt_point_range){from, to}, (int32_t)t->count - 1,
                                &cut));
        }
        t->facts.unmatched += cut;
        if (i < count) {
            const uint64_t size = s->total_size[final[i].value];
            const size_t end = nt_timeline_points_rank(&r->points, final[i].key + size);
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
    nt_sort_item *final = nt_allocate(&t->alloc, most * sizeof(nt_sort_item));
    if (final == NULL && most != 0) {
        return nt_fail_nomem(r->err);
    }
    const size_t count = segments_sort_final(t, final);
    nt_status status = segments_end_lost(r, final, count);
    for (size_t i = 0; i < count && status == NT_OK; i++) {
        status = segments_match_final(r, final[i].value);
    }
    nt_release(&t->alloc, final, most * sizeof(nt_sort_item));
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
        if (!nt_timeline_is_reserving(action[t->first + i])) {
            continue;
        }
        if (nt_timeline_has_range(t, i)) {
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
