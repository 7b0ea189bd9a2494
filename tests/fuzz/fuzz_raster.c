/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: the pictures of whatever trace a file holds are made or refused in words.
 * Axes, ranges and states are in order; no pixel shows what contradicts itself, no
 * share is outside 0 to 1, and the largest blocks come in their order. What is drawn
 * twice is the same.
 */
#include <string.h>

#include "nt_fuzz.h"
#include "picture/nt_raster.h"

#define MOST_SIDE 24
#define MOST_PIXELS (MOST_SIDE * MOST_SIDE)
#define MOST_TOP 5

/* Shares are sums of as many parts as there are events. */
#define NEARLY_ONE 1.000001

static void
check_axes(const nt_raster *raster)
{
    size_t count;
    const uint64_t width = nt_raster_width(raster), height = nt_raster_height(raster);
    NT_FUZZ_CHECK(width >= 1 && width <= NT_RASTER_MOST_EXTENT);
    NT_FUZZ_CHECK(height >= 1 && height <= NT_RASTER_MOST_EXTENT);
    const nt_raster_range *ranges = nt_raster_ranges(raster, &count);
    for (size_t i = 0; i < count; i++) {
        NT_FUZZ_CHECK(ranges[i].size <= height);
        NT_FUZZ_CHECK(ranges[i].position <= height - ranges[i].size);
        NT_FUZZ_CHECK(i == 0 || ranges[i - 1].position + ranges[i - 1].size ==
                                    ranges[i].position);
        NT_FUZZ_CHECK(i == 0 ||
                      ranges[i].address - ranges[i - 1].address >= ranges[i - 1].size);
    }
    const nt_rising states = nt_raster_states(raster, &count);
    NT_FUZZ_CHECK(count >= 1 && nt_rising_at(states, 0) == 0 &&
                  nt_rising_at(states, count) == width);
    for (size_t i = 0; i < count; i++) {
        NT_FUZZ_CHECK(nt_rising_at(states, i) <= nt_rising_at(states, i + 1));
    }
}

static nt_raster_view
choose_view(const nt_raster *raster, uint64_t random)
{
    const uint64_t width = nt_raster_width(raster), height = nt_raster_height(raster);
    nt_raster_view v = {.x_end = width, .y_end = height};
    v.width = 1 + (uint32_t)(random % MOST_SIDE);
    v.height = 1 + (uint32_t)(random / 32 % MOST_SIDE);
    if (random % 3 != 0) {
        random = nt_mix64(random + 1);
        v.x_first = random % width;
        v.x_end = v.x_first + 1 + (random >> 20) % (width - v.x_first);
        random = nt_mix64(random + 1);
        v.y_first = random % height;
        v.y_end = v.y_first + 1 + (random >> 20) % (height - v.y_first);
    }
    return v;
}

static void
check_draw(const nt_raster *raster, const nt_raster_view *v)
{
    static uint64_t largest[2][MOST_PIXELS];
    static double used[2][MOST_PIXELS], reserved[2][MOST_PIXELS];
    static uint8_t seen[2][MOST_PIXELS];
    static uint32_t row[2][MOST_PIXELS];
    const size_t pixels = (size_t)v->width * v->height;
    for (size_t i = 0; i < 2; i++) {
        const nt_raster_planes planes = {largest[i], used[i], reserved[i],
                                         seen[i],    row[i],  NULL};
        NT_FUZZ_CHECK(nt_raster_draw(raster, v, &planes, NULL) == NT_OK);
    }
    NT_FUZZ_CHECK(memcmp(largest[0], largest[1], pixels * sizeof **largest) == 0);
    NT_FUZZ_CHECK(memcmp(used[0], used[1], pixels * sizeof **used) == 0);
    NT_FUZZ_CHECK(memcmp(reserved[0], reserved[1], pixels * sizeof **reserved) == 0);
    NT_FUZZ_CHECK(memcmp(seen[0], seen[1], pixels) == 0);
    NT_FUZZ_CHECK(memcmp(row[0], row[1], pixels * sizeof **row) == 0);
    for (size_t i = 0; i < pixels; i++) {
        const uint8_t what = seen[0][i];
        NT_FUZZ_CHECK((largest[0][i] != 0) == ((what & NT_SEEN_BLOCK) != 0));
        NT_FUZZ_CHECK((row[0][i] != NT_NONE) == ((what & NT_SEEN_BLOCK) != 0));
        NT_FUZZ_CHECK(used[0][i] >= 0 && used[0][i] <= NEARLY_ONE);
        NT_FUZZ_CHECK(reserved[0][i] >= 0 && reserved[0][i] <= NEARLY_ONE);
        NT_FUZZ_CHECK(used[0][i] == 0 || (what & NT_SEEN_BLOCK) != 0);
        NT_FUZZ_CHECK(reserved[0][i] == 0 || (what & NT_SEEN_RESERVED) != 0);
        NT_FUZZ_CHECK((what & NT_SEEN_HOLE) == 0 || (what & NT_SEEN_RESERVED) != 0);
    }
}

static void
check_top(const nt_raster *raster, const nt_timeline *timeline, const nt_raster_view *v)
{
    static uint64_t rest[MOST_SIDE];
    uint32_t rows[MOST_TOP];
    size_t count = 0;
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    NT_FUZZ_CHECK(nt_raster_top(raster, v, MOST_TOP, rows, &count, rest, NULL) ==
                  NT_OK);
    NT_FUZZ_CHECK(count <= MOST_TOP);
    for (size_t i = 0; i < count; i++) {
        NT_FUZZ_CHECK(rows[i] < a->count);
        NT_FUZZ_CHECK(
            i == 0 || a->size[rows[i - 1]] > a->size[rows[i]] ||
            (a->size[rows[i - 1]] == a->size[rows[i]] && rows[i - 1] < rows[i]));
    }
}

/* Without a filter the picture's series is the timeline's. */
static void
check_series(const nt_raster *raster, const nt_timeline *timeline, bool whole)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    size_t states;
    (void)nt_raster_states(raster, &states);
    const size_t events = nt_timeline_event_count(timeline);
    uint64_t *drawn = nt_allocate(&alloc, states * sizeof *drawn);
    uint64_t *truth = nt_allocate(&alloc, events * sizeof *truth);
    const nt_metric metrics[] = {NT_METRIC_ALLOCATED, NT_METRIC_ACTIVE,
                                 NT_METRIC_RESERVED};
    NT_FUZZ_CHECK(states == events + 1);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        NT_FUZZ_CHECK(nt_raster_series(raster, metrics[i], drawn, NULL) == NT_OK);
        if (whole && metrics[i] == NT_METRIC_RESERVED && events != 0) {
            nt_timeline_series(timeline, metrics[i], truth);
            NT_FUZZ_CHECK(memcmp(drawn + 1, truth, events * sizeof *truth) == 0);
        }
    }
    nt_release(&alloc, drawn, states * sizeof *drawn);
    nt_release(&alloc, truth, events * sizeof *truth);
}

static void
check_timeline(const nt_timeline *timeline, uint64_t random)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_raster *raster = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_segment_life_columns *segments = nt_timeline_segments(timeline);
    const nt_raster_options options = {
        .by_time = (random & 1) != 0,
        .raw_addresses = (random & 6) == 2,
        .until_freed = (random & 8) != 0,
        .by_stream = (random & 0x30) == 0x10 && segments->count != 0,
        .stream = segments->count != 0 ? segments->stream[0] : 0,
    };
    const nt_status status = nt_raster_new(&alloc, timeline, &options, &raster, &err);
    if (status != NT_OK) {
        NT_FUZZ_CHECK(status == NT_ARGUMENT && err.message[0] != '\0');
        return;
    }
    check_axes(raster);
    check_series(raster, timeline, !options.by_stream);
    const nt_raster_view view = choose_view(raster, nt_mix64(random >> 6));
    check_draw(raster, &view);
    check_top(raster, timeline, &view);
    nt_raster_free(raster);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_snapshot *snapshot = nt_fuzz_load(data, size);
    nt_timeline *timeline = NULL;
    if (snapshot != NULL && nt_fuzz_rows(snapshot) <= NT_FUZZ_MOST_ROWS &&
        nt_snapshot_trace_count(snapshot) != 0 &&
        nt_timeline_new(&alloc, snapshot, 0, NULL, &timeline, NULL) == NT_OK) {
        check_timeline(timeline, data[size - 1] + (uint64_t)size * 256);
    }
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
    nt_fuzz_finish();
    return 0;
}
