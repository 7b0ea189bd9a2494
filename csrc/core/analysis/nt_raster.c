/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_raster.h"

#include "analysis/nt_raster_state.h"

/* Positions of the states by time, from the events' own times. */
static nt_status
raster_place_by_time(nt_raster *r, const int64_t *times, nt_error *err)
{
    int64_t start = 0, latest = 0;
    uint64_t at = 0;
    r->positions[0] = 0;
    for (size_t s = 1; s < r->states; s++) {
        const int64_t time = times[s - 1];
        if (start == 0 && time > 0) {
            start = latest = time;
        }
        latest = time > latest ? time : latest;
        at = (uint64_t)(latest - start);
        r->positions[s] = at;
    }
    if (r->states > 1 && start == 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the events of this snapshot have no times");
    }
    r->positions[r->states] = at + 1;
    return NT_OK;
}

static nt_status
raster_make_positions(nt_raster *r, nt_error *err)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(r->timeline);
    const size_t events = nt_timeline_event_count(r->timeline);
    r->states = events + 1;
    r->positions = nt_allocate(&r->alloc, (r->states + 1) * sizeof(uint64_t));
    if (r->positions == NULL) {
        return nt_fail_nomem(err);
    }
    if (!r->options.by_time) {
        for (size_t s = 0; s <= r->states; s++) {
            r->positions[s] = s;
        }
        return NT_OK;
    }
    const int64_t *times = nt_snapshot_events(snapshot)->time_us;
    if (times == NULL && events != 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the events of this snapshot have no times");
    }
    size_t first = 0, count = 0;
    if (events != 0) {
        const int32_t device = nt_timeline_device(r->timeline);
        nt_snapshot_trace(snapshot, (size_t)device, &first, &count);
    }
    return raster_place_by_time(r, times == NULL ? NULL : times + first, err);
}

/* Sorts the items' beginnings and ends by state, by counting them. */
static nt_status
raster_make_changes(nt_raster *r, nt_error *err)
{
    r->change_count = 2 * r->item_count; /* at most: some stand in no state */
    r->change_first = nt_allocate(&r->alloc, (r->states + 1) * sizeof(uint32_t));
    r->changes = nt_allocate(&r->alloc, r->change_count * sizeof(uint32_t));
    if (r->change_first == NULL || (r->changes == NULL && r->change_count != 0)) {
        return nt_fail_nomem(err);
    }
    for (size_t s = 0; s <= r->states; s++) {
        r->change_first[s] = 0;
    }
    for (size_t i = 0; i < r->item_count; i++) {
        const nt_raster_item *item = &r->items[i];
        if (item->begin < item->end) {
            r->change_first[item->begin]++;
            /* What never ends counts behind the last state, and is not visited. */
            r->change_first[item->end]++;
        }
    }
    uint32_t sum = 0;
    for (size_t s = 0; s <= r->states; s++) {
        sum += r->change_first[s];
        r->change_first[s] = sum;
    }
    /* From the ends downwards, so that each count turns into where its state begins. */
    for (size_t i = r->item_count; i-- > 0;) {
        const nt_raster_item *item = &r->items[i];
        if (item->begin < item->end) {
            r->changes[--r->change_first[item->end]] = (uint32_t)(2 * i + 1);
            r->changes[--r->change_first[item->begin]] = (uint32_t)(2 * i);
        }
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

static nt_status
raster_make(nt_raster *r, nt_error *err)
{
    NT_TRY(raster_make_positions(r, err));
    NT_TRY(nt_raster_make_map(r, err));
    NT_TRY(nt_raster_make_items(r, err));
    if (r->positions[r->states] > NT_RASTER_MOST_EXTENT ||
        r->height > NT_RASTER_MOST_EXTENT) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "an axis would be longer than 2^50: its times or addresses make "
                       "no sense");
    }
    NT_TRY(raster_make_chunks(r, err));
    return raster_make_changes(r, err);
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
    nt_release(&alloc, r->positions, (r->states + 1) * sizeof(uint64_t));
    nt_release(&alloc, r->ranges, r->range_capacity * sizeof(nt_raster_range));
    nt_release(&alloc, r->items, r->item_capacity * sizeof(nt_raster_item));
    nt_release(&alloc, r->chunks, r->chunk_count * sizeof(nt_raster_chunk));
    nt_release(&alloc, r->changes, r->change_count * sizeof(uint32_t));
    nt_release(&alloc, r->change_first, (r->states + 1) * sizeof(uint32_t));
    nt_release(&alloc, r, sizeof *r);
}

uint64_t
nt_raster_width(const nt_raster *r)
{
    return r->positions[r->states];
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

const uint64_t *
nt_raster_states(const nt_raster *r, size_t *count)
{
    *count = r->states;
    return r->positions;
}

/* Adds the bytes of what begins, and takes those of what ends, with each state. */
static void
raster_count_item(const nt_raster *r, const nt_raster_item *item, uint32_t end,
                  uint64_t *out)
{
    out[item->begin] += item->size;
    if (end < r->states) {
        out[end] -= item->size;
    }
}

nt_status
nt_raster_series(const nt_raster *r, nt_metric metric, uint64_t *out, nt_error *err)
{
    if (metric != NT_METRIC_ALLOCATED && metric != NT_METRIC_ACTIVE &&
        metric != NT_METRIC_RESERVED) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "no picture has that series");
    }
    const bool reserved = metric == NT_METRIC_RESERVED;
    const size_t end = reserved ? r->item_count : r->block_count;
    for (size_t s = 0; s < r->states; s++) {
        out[s] = 0;
    }
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    for (size_t i = reserved ? r->block_count : 0; i < end; i++) {
        const nt_raster_item *item = &r->items[i];
        uint32_t last = item->end;
        if (metric == NT_METRIC_ALLOCATED) {
            last = item->freed;
        } else if (metric == NT_METRIC_ACTIVE) {
            last = nt_raster_end_state(r, a->completed_event[item->row]);
        }
        if (item->begin < last) {
            raster_count_item(r, item, last, out);
        }
    }
    for (size_t s = 1; s < r->states; s++) {
        out[s] += out[s - 1];
    }
    return NT_OK;
}
