/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_excerpt.h"

#include "base/nt_sort.h"

/*
 * Weights are put into buckets by their highest EXCERPT_DIGITS + 1 bits, those of the
 * focus above all others; only the bucket in which the last kept one lies needs an
 * order.
 */
enum {
    EXCERPT_DIGITS = 10,
    EXCERPT_STEPS = 1 << EXCERPT_DIGITS,
    EXCERPT_HALF = (64 - EXCERPT_DIGITS) * EXCERPT_STEPS,
    EXCERPT_BUCKETS = 2 * EXCERPT_HALF,
};

/* The bit of a weight that tells of the focus. */
#define EXCERPT_FOCUS (UINT64_C(1) << 63)

struct nt_excerpt {
    nt_alloc alloc;
    uint32_t *rows, *events, *places;
    size_t row_count, row_capacity, event_count, event_capacity;
    size_t total; /* events of the trace */
};

/* What choosing needs, apart from what is chosen. */
typedef struct excerpt_choice {
    const nt_allocation_columns *columns;
    size_t most, first, end;
    uint64_t *weights; /* by row */
    uint32_t *counts;  /* by bucket */
    uint8_t *marks;    /* by event: whether it is kept */
    uint64_t *series;
} excerpt_choice;

static size_t
excerpt_bucket(uint64_t weight)
{
    const size_t first = weight & EXCERPT_FOCUS ? EXCERPT_HALF : 0;
    weight &= ~EXCERPT_FOCUS;
    unsigned shift = 0;
    for (unsigned step = 32; step != 0; step /= 2) {
        if (weight >> shift >> step >= EXCERPT_STEPS) {
            shift += step;
        }
    }
    /* What is below EXCERPT_STEPS has shift 0 and stays itself. */
    return first + (size_t)shift * EXCERPT_STEPS + (size_t)(weight >> shift);
}

/* What lived in the focus has EXCERPT_FOCUS on top of its weight. */
static uint64_t
excerpt_weight(const excerpt_choice *c, size_t row, size_t total)
{
    const nt_allocation_columns *a = c->columns;
    const uint64_t most = EXCERPT_FOCUS - 1;
    const int32_t freed = a->free_event[row];
    const size_t born = a->alloc_event[row] < 0 ? 0 : (size_t)a->alloc_event[row];
    size_t gone = freed >= 0 ? (size_t)freed : total;
    gone = freed == NT_EVENT_FREED_BEFORE ? born : gone;
    const size_t begin = born > c->first ? born : c->first;
    const size_t stop = gone < c->end ? gone : c->end;
    const bool inside = begin < stop || (born >= c->first && born < c->end);
    const uint64_t lived = inside ? (begin < stop ? stop - begin : 0) : gone - born;
    const uint64_t size = a->size[row];
    const uint64_t weight = lived != 0 && size > most / lived ? most : size * lived;
    return inside ? weight | EXCERPT_FOCUS : weight;
}

/* Adds the rows whose bucket is above `bucket`, and the `room` heaviest of that one. */
static nt_status
excerpt_take(nt_excerpt *e, const excerpt_choice *c, size_t bucket, size_t room,
             nt_error *err)
{
    const size_t equal = c->counts[bucket];
    nt_sort_item *items = nt_allocate(&e->alloc, equal * sizeof *items);
    if (items == NULL && equal != 0) {
        return nt_fail_nomem(err);
    }
    size_t found = 0;
    for (size_t row = 0; row < c->columns->count; row++) {
        if (excerpt_bucket(c->weights[row]) == bucket) {
            items[found++] = (nt_sort_item){~c->weights[row], (uint32_t)row};
        }
    }
    nt_sort(items, found);
    /* The kept ones of the bucket, by row, so that one pass merges them with the rest.
     */
    for (size_t i = 0; i < room; i++) {
        items[i].key = items[i].value;
    }
    nt_sort(items, room);
    size_t next = 0;
    for (size_t row = 0; row < c->columns->count; row++) {
        if (next < room && items[next].value == row) {
            e->rows[e->row_count++] = (uint32_t)row;
            next++;
        } else if (excerpt_bucket(c->weights[row]) > bucket) {
            e->rows[e->row_count++] = (uint32_t)row;
        }
    }
    nt_release(&e->alloc, items, equal * sizeof *items);
    return NT_OK;
}

static nt_status
excerpt_choose_rows(nt_excerpt *e, excerpt_choice *c, nt_error *err)
{
    const size_t count = c->columns->count;
    const size_t kept = c->most < count ? c->most : count;
    NT_TRY(nt_grow(&e->alloc, (void **)&e->rows, &e->row_capacity, kept,
                   sizeof *e->rows, err));
    for (size_t i = 0; i < EXCERPT_BUCKETS; i++) {
        c->counts[i] = 0;
    }
    for (size_t row = 0; row < count; row++) {
        c->weights[row] = excerpt_weight(c, row, e->total);
        c->counts[excerpt_bucket(c->weights[row])]++;
    }
    size_t above = 0, bucket = EXCERPT_BUCKETS - 1;
    while (bucket > 0 && above + c->counts[bucket] < kept) {
        above += c->counts[bucket--];
    }
    return excerpt_take(e, c, bucket, kept - above, err);
}

static void
excerpt_mark_rows(const nt_excerpt *e, excerpt_choice *c)
{
    const nt_allocation_columns *a = c->columns;
    const int32_t *const columns[] = {a->alloc_event, a->free_event,
                                      a->completed_event};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
        for (size_t i = 0; i < e->row_count; i++) {
            const int32_t event = columns[k][e->rows[i]];
            if (event >= 0) {
                c->marks[event] = 1;
            }
        }
    }
}

/* Marks the first highest and lowest value of each stretch, and the peak. */
static void
excerpt_mark_extremes(const nt_excerpt *e, excerpt_choice *c,
                      const nt_timeline *timeline, nt_metric metric)
{
    nt_timeline_series(timeline, metric, c->series);
    const size_t step = e->total / NT_EXCERPT_STRETCHES;
    size_t begin = 0;
    while (begin < e->total) {
        const size_t stop = begin + (step == 0 ? 1 : step);
        size_t low = begin, high = begin;
        for (size_t i = begin; i < stop && i < e->total; i++) {
            low = c->series[i] < c->series[low] ? i : low;
            high = c->series[i] > c->series[high] ? i : high;
        }
        c->marks[low] = c->marks[high] = 1;
        begin = stop;
    }
    const nt_moment peak = nt_timeline_peak(timeline, metric);
    if (peak.event >= 0) {
        c->marks[peak.event] = 1;
    }
}

static void
excerpt_mark_others(const nt_excerpt *e, excerpt_choice *c, const nt_timeline *timeline)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    size_t first = 0, count = 0;
    nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(timeline), &first, &count);
    for (size_t i = 0; i < e->total; i++) {
        if (events->action[first + i] > NT_ACTION_FREE_COMPLETED) {
            c->marks[i] = 1;
        }
    }
    c->marks[e->total - 1] = 1;
}

static nt_status
excerpt_list_events(nt_excerpt *e, const excerpt_choice *c, nt_error *err)
{
    uint32_t kept = 0;
    for (size_t i = 0; i < e->total; i++) {
        e->places[i] = kept;
        kept += c->marks[i];
    }
    e->places[e->total] = kept;
    NT_TRY(nt_grow(&e->alloc, (void **)&e->events, &e->event_capacity, kept,
                   sizeof *e->events, err));
    for (size_t i = 0; i < e->total; i++) {
        if (c->marks[i]) {
            e->events[e->event_count++] = (uint32_t)i;
        }
    }
    return NT_OK;
}

static nt_status
excerpt_fill(nt_excerpt *e, excerpt_choice *c, const nt_timeline *timeline,
             nt_error *err)
{
    NT_TRY(excerpt_choose_rows(e, c, err));
    for (size_t i = 0; i < e->total; i++) {
        c->marks[i] = 0;
    }
    if (e->total != 0) {
        excerpt_mark_rows(e, c);
        excerpt_mark_others(e, c, timeline);
        excerpt_mark_extremes(e, c, timeline, NT_METRIC_ALLOCATED);
        excerpt_mark_extremes(e, c, timeline, NT_METRIC_RESERVED);
    }
    return excerpt_list_events(e, c, err);
}

static nt_status
excerpt_make(nt_excerpt *e, excerpt_choice *c, const nt_timeline *timeline,
             nt_error *err)
{
    const nt_alloc *alloc = &e->alloc;
    const size_t rows = c->columns->count, total = e->total;
    nt_status status = NT_NOMEM;
    e->places = nt_allocate(alloc, (total + 1) * sizeof *e->places);
    c->weights = nt_allocate(alloc, rows * sizeof *c->weights);
    c->counts = nt_allocate(alloc, EXCERPT_BUCKETS * sizeof *c->counts);
    c->marks = nt_allocate(alloc, total);
    c->series = nt_allocate(alloc, total * sizeof *c->series);
    const bool has_rows = c->weights != NULL || rows == 0;
    const bool has_events = (c->marks != NULL && c->series != NULL) || total == 0;
    if (e->places == NULL || c->counts == NULL || !has_rows || !has_events) {
        (void)nt_fail_nomem(err);
    } else {
        status = excerpt_fill(e, c, timeline, err);
    }
    nt_release(alloc, c->weights, rows * sizeof *c->weights);
    nt_release(alloc, c->counts, EXCERPT_BUCKETS * sizeof *c->counts);
    nt_release(alloc, c->marks, total);
    nt_release(alloc, c->series, total * sizeof *c->series);
    return status;
}

nt_status
nt_excerpt_new(const nt_alloc *alloc, const nt_timeline *timeline, size_t most,
               size_t first, size_t end, nt_excerpt **out, nt_error *err)
{
    nt_excerpt *e = nt_allocate(alloc, sizeof *e);
    if (e == NULL) {
        return nt_fail_nomem(err);
    }
    *e = (nt_excerpt){.alloc = *alloc, .total = nt_timeline_event_count(timeline)};
    excerpt_choice choice = {
        .columns = nt_timeline_allocations(timeline),
        .most = most,
        .first = first < end ? first : 0,
        .end = first < end ? end : SIZE_MAX,
    };
    const nt_status status = excerpt_make(e, &choice, timeline, err);
    if (status != NT_OK) {
        nt_excerpt_free(e);
        return status;
    }
    *out = e;
    return NT_OK;
}

void
nt_excerpt_free(nt_excerpt *e)
{
    if (e == NULL) {
        return;
    }
    const nt_alloc alloc = e->alloc;
    nt_release(&alloc, e->rows, e->row_capacity * sizeof *e->rows);
    nt_release(&alloc, e->events, e->event_capacity * sizeof *e->events);
    if (e->places != NULL) {
        nt_release(&alloc, e->places, (e->total + 1) * sizeof *e->places);
    }
    nt_release(&alloc, e, sizeof *e);
}

const uint32_t *
nt_excerpt_rows(const nt_excerpt *e, size_t *count)
{
    *count = e->row_count;
    return e->rows;
}

const uint32_t *
nt_excerpt_events(const nt_excerpt *e, size_t *count)
{
    *count = e->event_count;
    return e->events;
}

const uint32_t *
nt_excerpt_places(const nt_excerpt *e, size_t *count)
{
    *count = e->total + 1;
    return e->places;
}

bool
nt_excerpt_adds_up(const uint64_t *sizes, const int32_t *begins, const int32_t *ends,
                   size_t rows, uint64_t start, const uint64_t *series, size_t events,
                   uint64_t *steps)
{
    for (size_t i = 0; i < events; i++) {
        steps[i] = 0;
    }
    for (size_t row = 0; row < rows; row++) {
        if (begins[row] >= 0) {
            steps[begins[row]] += sizes[row];
        }
        if (ends[row] >= 0) {
            steps[ends[row]] -= sizes[row];
        }
    }
    uint64_t sum = start;
    for (size_t i = 0; i < events; i++) {
        sum += steps[i];
        if (sum != series[i]) {
            return false;
        }
    }
    return true;
}
