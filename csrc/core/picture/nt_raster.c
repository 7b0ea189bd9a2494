/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_raster.h"

#include "picture/nt_raster_state.h"
#include "base/nt_sort.h"

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
    r->chunks = nt_allocate(&r->alloc, r->chunk_count * sizeof *r->chunks);
    if (r->chunks == NULL) {
        return nt_fail_nomem(err);
    }
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
        const uint64_t size = nt_raster_block_size(r, i);
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
    NT_TRY(nt_raster_make_map(r, err));
    NT_TRY(nt_raster_make_items(r, err));
    if (nt_raster_width(r) > NT_RASTER_MOST_EXTENT ||
        r->height > NT_RASTER_MOST_EXTENT) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "an axis would be longer than 2^50: its times or addresses make "
                       "no sense");
    }
    NT_TRY(raster_make_ranks(r, err));
    return raster_make_chunks(r, err);
}

nt_status
nt_raster_new(const nt_alloc *alloc, const nt_timeline *timeline,
              const nt_raster_options *options, nt_raster **out, nt_error *err)
{
    nt_raster *r = nt_allocate(alloc, sizeof *r);
    if (r == NULL) {
        return nt_fail_nomem(err);
    }
    *r = (nt_raster){.alloc = *alloc, .timeline = timeline, .options = *options};
    const nt_status status = raster_make(r, err);
    if (status != NT_OK) {
        nt_raster_free(r);
        return status;
    }
    *out = r;
    return NT_OK;
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
    nt_release(&alloc, r->ranges, r->range_capacity * sizeof(nt_raster_range));
    nt_release(&alloc, r->items, r->item_capacity * sizeof(nt_raster_item));
    nt_release(&alloc, r->units.wides, r->wide_capacity * sizeof(nt_raster_wide));
    nt_release(&alloc, r->segment_rows, r->segment_capacity * sizeof(uint32_t));
    nt_release(&alloc, r->block_rows, r->block_capacity * sizeof(uint32_t));
    nt_release(&alloc, r->ranks,
               r->ranks == NULL ? 0 : r->block_count * sizeof(uint32_t));
    nt_release(&alloc, r->chunks, r->chunk_count * sizeof(nt_raster_chunk));
    nt_release(&alloc, r, sizeof *r);
}

uint64_t
nt_raster_width(const nt_raster *r)
{
    return nt_rising_at(r->positions, r->states);
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
        const uint32_t row = nt_raster_block_row(r, i);
        const int32_t last = until_freed ? a->free_event[row] : a->completed_event[row];
        raster_count(r, r->items[i].begin, nt_raster_end_state(r, last), a->size[row],
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
