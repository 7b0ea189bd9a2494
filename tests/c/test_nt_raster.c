/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_raster.h"

#include "base/nt_columns.h"
#include "nt_trace.h"

#define BASE UINT64_C(0x7f0000000000)

enum { RASTER_MOST = 64 * 64 };

/* A picture of at most RASTER_MOST pixels. */
typedef struct raster_image {
    nt_raster_view view;
    uint64_t largest[RASTER_MOST];
    double used[RASTER_MOST], reserved[RASTER_MOST];
    uint8_t seen[RASTER_MOST];
    uint32_t row[RASTER_MOST];
} raster_image;

static bool
raster_open(nt_trace *r, const nt_raster_options *options, nt_raster **out)
{
    nt_test *t = r->test;
    nt_error err = {.offset = NT_NO_OFFSET};
    return NT_CHECK_OK(nt_raster_new(&r->alloc, r->timeline, options, out, &err), &err);
}

/* All of a raster in width x height pixels. */
static bool
raster_image_draw(nt_trace *r, const nt_raster *raster, uint32_t width, uint32_t height,
                  raster_image *image)
{
    nt_test *t = r->test;
    nt_error err = {.offset = NT_NO_OFFSET};
    image->view = (nt_raster_view){
        .x_end = nt_raster_width(raster),
        .y_end = nt_raster_height(raster),
        .width = width,
        .height = height,
    };
    const nt_raster_planes planes = {image->largest, image->used, image->reserved,
                                     image->seen,    image->row,  NULL};
    /* What is not wanted changes nothing of the rest. */
    static uint32_t rows[RASTER_MOST];
    const nt_raster_planes alone = {.row = rows};
    const nt_timeline *timeline = r->timeline;
    const uint64_t *sizes = nt_timeline_allocations(timeline)->size;
    bool same =
        NT_CHECK_OK(nt_raster_draw(raster, &image->view, &planes, &err), &err) &&
        NT_CHECK_OK(nt_raster_draw(raster, &image->view, &alone, &err), &err);
    for (size_t i = 0; same && i < (size_t)width * height; i++) {
        const uint32_t row = image->row[i];
        same = NT_CHECK_UINT(rows[i], row) &&
               NT_CHECK_UINT(image->largest[i], row == NT_NONE ? 0 : sizes[row]);
    }
    return same;
}

/* Two segments far apart: 20 MiB with blocks of 4 MiB and 8 MiB, then one of 2 MiB with
 * a block of 512 bytes that lives for one event. */
static bool
raster_small_trace(nt_trace *r)
{
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);    /* 0 */
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 4 * MIB);             /* 1 */
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 4 * MIB, 8 * MIB);   /* 2 */
    nt_trace_free(r, BASE, 4 * MIB);                               /* 3, 4 */
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, 2 * BASE, 2 * MIB); /* 5 */
    nt_trace_event(r, NT_ACTION_ALLOC, 2 * BASE, 512);             /* 6 */
    nt_trace_free(r, 2 * BASE, 512);                               /* 7, 8 */
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 4 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(r, BASE + 4 * MIB, 8 * MIB, 8 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 12 * MIB, 8 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_segment(r, 2 * BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(r, 2 * BASE, 2 * MIB, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(r);
}

NT_TEST(reserved_ranges_lie_end_to_end)
{
    nt_trace r;
    nt_raster *raster = NULL;
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = false}, &raster)) {
        size_t count;
        const nt_raster_range *ranges = nt_raster_ranges(raster, &count);
        if (NT_CHECK_UINT(count, 2)) {
            NT_CHECK_UINT(ranges[0].address, BASE);
            NT_CHECK_UINT(ranges[1].address, 2 * BASE);
            NT_CHECK_UINT(ranges[1].position, 20 * MIB);
        }
        NT_CHECK_UINT(nt_raster_height(raster), 22 * MIB);
        NT_CHECK_UINT(nt_raster_width(raster), 10);
    }
    nt_raster_free(raster);
    raster = NULL;
    if (r.timeline != NULL &&
        raster_open(&r, &(nt_raster_options){.raw_addresses = true}, &raster)) {
        NT_CHECK_UINT(nt_raster_height(raster), BASE + 2 * MIB);
    }
    nt_raster_free(raster);
    nt_raster_free(NULL);
    nt_trace_close(&r);
}

NT_TEST(thin_block_marks_its_pixel)
{
    nt_trace r;
    nt_raster *raster = NULL;
    raster_image image;
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = false}, &raster) &&
        raster_image_draw(&r, raster, 2, 11, &image)) {
        /* The 512 bytes in the topmost row, states 7 and 8 of 10: a pixel of 2 MiB and
         * five states of which it fills 512 bytes and two states. */
        const size_t pixel = 10 * 2 + 1;
        NT_CHECK_UINT(image.largest[pixel], 512);
        NT_CHECK_UINT(image.seen[pixel],
                      NT_SEEN_BLOCK | NT_SEEN_HOLE | NT_SEEN_RESERVED);
        const double share = image.used[pixel] * 2 * MIB * 5;
        NT_CHECK(share > 2 * 512 - 0.001 && share < 2 * 512 + 0.001);
        NT_CHECK_UINT(image.seen[pixel - 1], 0);
        /* 8 MiB from 4 MiB on, for all of the second half: no hole. */
        NT_CHECK_UINT(image.largest[3 * 2 + 1], 8 * MIB);
        NT_CHECK_UINT(image.seen[3 * 2 + 1], NT_SEEN_BLOCK | NT_SEEN_RESERVED);
        /* Above it, nothing but a hole. */
        NT_CHECK_UINT(image.largest[7 * 2 + 1], 0);
        NT_CHECK_UINT(image.seen[7 * 2 + 1], NT_SEEN_HOLE | NT_SEEN_RESERVED);
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

NT_TEST(block_ends_as_it_was_asked)
{
    nt_trace r;
    nt_raster *raster = NULL;
    raster_image image;
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r)) {
        for (int until_freed = 0; until_freed < 2; until_freed++) {
            const nt_raster_options options = {.until_freed = until_freed != 0};
            raster = NULL;
            if (raster_open(&r, &options, &raster) &&
                raster_image_draw(&r, raster, 10, 11, &image)) {
                /* The 4 MiB are freed by event 3 and completed by event 4. */
                NT_CHECK_UINT(image.largest[3], 4 * MIB);
                NT_CHECK_UINT(image.largest[4], until_freed ? 0 : 4 * MIB);
                NT_CHECK_UINT(image.largest[5], 0);
            }
            nt_raster_free(raster);
        }
    }
    nt_trace_close(&r);
}

NT_TEST(filter_keeps_one_stream_only)
{
    nt_trace r;
    nt_raster *raster = NULL;
    uint64_t series[8] = {0};
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    r.stream = 7;
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE + 2 * MIB, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 2 * MIB, 1024);
    r.stream = 0;
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 512);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 512, 512, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 512, 2 * MIB - 512, 0, NT_BLOCK_INACTIVE);
    r.stream = 7;
    nt_trace_segment(&r, BASE + 2 * MIB, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE + 2 * MIB, 1024, 1024, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 2 * MIB + 1024, 2 * MIB - 1024, 0, NT_BLOCK_INACTIVE);
    const nt_raster_options options = {.by_stream = true, .stream = 7};
    if (nt_trace_replay(&r) && raster_open(&r, &options, &raster)) {
        NT_CHECK_UINT(nt_raster_height(raster), 2 * MIB);
        NT_CHECK_OK(nt_raster_series(raster, NT_METRIC_ALLOCATED, series, &err), &err);
        NT_CHECK_UINT(series[4], 1024);
        NT_CHECK_OK(nt_raster_series(raster, NT_METRIC_RESERVED, series, &err), &err);
        NT_CHECK_UINT(series[1], 0);
        NT_CHECK_UINT(series[4], 2 * MIB);
        NT_CHECK_STATUS(nt_raster_series(raster, NT_METRIC_REQUESTED, series, &err),
                        NT_ARGUMENT, &err);
    }
    nt_raster_free(raster);
    raster = NULL;
    const nt_raster_options none = {.by_pool = true, .pool = {3, 4}};
    if (r.timeline != NULL && raster_open(&r, &none, &raster)) {
        size_t count;
        (void)nt_raster_ranges(raster, &count);
        NT_CHECK_UINT(count, 0);
        NT_CHECK_UINT(nt_raster_height(raster), 1);
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

NT_TEST(largest_blocks_leave_a_band)
{
    nt_trace r;
    nt_raster *raster = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = false}, &raster)) {
        uint32_t rows[3];
        uint64_t rest[10];
        size_t count = 0;
        const nt_raster_view view = {
            .x_end = 10, .y_end = 22 * MIB, .width = 10, .height = 1};
        NT_CHECK_OK(nt_raster_top(raster, &view, 1, rows, &count, rest, &err), &err);
        if (NT_CHECK_UINT(count, 1)) {
            const uint64_t size = nt_timeline_allocations(r.timeline)->size[rows[0]];
            NT_CHECK_UINT(size, 8 * MIB);
        }
        NT_CHECK_UINT(rest[1], 0);
        NT_CHECK_UINT(rest[2], 4 * MIB);
        NT_CHECK_UINT(rest[4], 4 * MIB);
        NT_CHECK_UINT(rest[5], 0);
        NT_CHECK_UINT(rest[7], 512);
        NT_CHECK_OK(nt_raster_top(raster, &view, 3, rows, &count, rest, &err), &err);
        NT_CHECK_UINT(count, 3);
        NT_CHECK_UINT(rest[2], 0);
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

NT_TEST(view_off_the_axes_is_refused)
{
    nt_trace r;
    nt_raster *raster = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = false}, &raster)) {
        static const nt_raster_view views[] = {
            {0, 11, 0, 1, 1, 1}, {3, 3, 0, 1, 1, 1},  {0, 1, 0, 23 * MIB, 1, 1},
            {0, 1, 5, 5, 1, 1},  {0, 10, 0, 1, 0, 1}, {0, 10, 0, 1, 1, 8193},
        };
        for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
            NT_CHECK_STATUS(
                nt_raster_draw(raster, &views[i], &(nt_raster_planes){0}, &err),
                NT_ARGUMENT, &err);
        }
    }
    nt_raster_free(raster);
    raster = NULL;
    const nt_raster_options by_time = {.by_time = true};
    if (r.timeline != NULL) {
        NT_CHECK_STATUS(nt_raster_new(&r.alloc, r.timeline, &by_time, &raster, &err),
                        NT_ARGUMENT, &err);
        NT_CHECK(raster == NULL);
    }
    nt_trace_close(&r);
}

#define GIB (1024 * MIB)

/* Blocks of sizes that have no low bit in common and need more than 32. */
static bool
raster_odd_trace(nt_trace *r)
{
    static const uint64_t sizes[] = {5 * GIB + 1, 5 * GIB + 2, 5 * GIB + 2, 513};
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 24 * GIB);
    nt_trace_segment(r, BASE, 24 * GIB, NT_POOL_LARGE, false);
    for (uint64_t i = 0; i < NT_LENGTH(sizes); i++) {
        nt_trace_event(r, NT_ACTION_ALLOC, BASE + i * 6 * GIB, sizes[i]);
        nt_trace_block(r, BASE + i * 6 * GIB, sizes[i], sizes[i],
                       NT_BLOCK_ACTIVE_ALLOCATED);
        nt_trace_block(r, BASE + i * 6 * GIB + sizes[i], 6 * GIB - sizes[i], 0,
                       NT_BLOCK_INACTIVE);
    }
    return nt_trace_replay(r);
}

NT_TEST(sizes_of_any_bits_are_compared)
{
    nt_trace r;
    nt_raster *raster = NULL;
    raster_image image;
    nt_trace_open(&r, t, NULL);
    if (raster_odd_trace(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = false}, &raster)) {
        /* In one pixel, in halves of the addresses, and each in its own. */
        if (raster_image_draw(&r, raster, 1, 1, &image)) {
            NT_CHECK_UINT(image.row[0], 1);
        }
        if (raster_image_draw(&r, raster, 1, 2, &image)) {
            NT_CHECK_UINT(image.row[0], 1);
            NT_CHECK_UINT(image.row[1], 2);
        }
        for (uint32_t i = 0; raster_image_draw(&r, raster, 6, 4, &image) && i < 4;
             i++) {
            NT_CHECK_UINT(image.row[i * 6 + 5], i);
        }
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

/* Blocks that come and go one after the other, `step` bytes apart and `odd` beside
 * that: none is left. */
enum { MANY_BLOCKS = 150 };

static bool
raster_many_trace(nt_trace *r, uint64_t step, uint64_t odd)
{
    const uint64_t room = 64 * step;
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, room);
    for (uint64_t i = 0; i < MANY_BLOCKS; i++) {
        const uint64_t at = i * 37 % 60, size = (i * i % 4 + 1) * step;
        nt_trace_event(r, NT_ACTION_ALLOC, BASE + at * step + odd, size);
        nt_trace_free(r, BASE + at * step + odd, size);
    }
    nt_trace_segment(r, BASE, room, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, room, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(r);
}

/* The row of a pixel, as one loop over the blocks finds it. By event, from 0 on. */
static uint32_t
raster_row_by_hand(const nt_trace *r, const nt_raster_view *v, uint32_t x, uint32_t y)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    const uint64_t wide = v->x_end, high = v->y_end - v->y_first;
    uint32_t found = NT_NONE;
    for (uint32_t row = 0; row < a->count; row++) {
        const uint64_t begin = (uint64_t)a->alloc_event[row] + 1;
        const uint64_t end = (uint64_t)a->completed_event[row] + 1;
        const uint64_t from = a->address[row] - BASE, to = from + a->size[row];
        const bool is_then =
            begin * v->width < (x + 1) * wide && end * v->width > x * wide;
        const bool is_there =
            to > v->y_first && (to - v->y_first) * v->height > y * high &&
            (from < v->y_first || (from - v->y_first) * v->height < (y + 1) * high);
        if (is_then && is_there &&
            (found == NT_NONE || a->size[row] > a->size[found])) {
            found = row;
        }
    }
    return found;
}

static void
raster_check_view(nt_trace *r, const nt_raster *raster, const nt_raster_view *view)
{
    nt_test *t = r->test;
    nt_error err = {.offset = NT_NO_OFFSET};
    static uint32_t rows[RASTER_MOST];
    const nt_raster_planes planes = {.row = rows};
    if (!NT_CHECK_OK(nt_raster_draw(raster, view, &planes, &err), &err)) {
        return;
    }
    for (uint32_t y = 0; y < view->height; y++) {
        for (uint32_t x = 0; x < view->width; x++) {
            NT_CHECK_UINT(rows[y * view->width + x], raster_row_by_hand(r, view, x, y));
        }
    }
}

/* Where a column has many states, whatever the borders of its pixels: within a byte, at
 * the blocks' own, or in between. */
static void
raster_check_many(nt_test *t, uint64_t step, uint64_t odd)
{
    nt_trace r;
    nt_raster *raster = NULL;
    nt_trace_open(&r, t, NULL);
    const nt_raster_options options = {.until_freed = false};
    if (raster_many_trace(&r, step, odd) && raster_open(&r, &options, &raster)) {
        const uint64_t wide = nt_raster_width(raster), high = nt_raster_height(raster);
        static const uint32_t heights[] = {1, 2, 3, 7, 16, 61, 64};
        for (size_t i = 0; i < NT_LENGTH(heights); i++) {
            const nt_raster_view views[] = {
                {0, wide, 0, high, 3, heights[i]},
                {0, wide, 0, high, 50, heights[i]},
                {0, wide, high / 4, high / 2, 2, heights[i]},
                {0, wide, high / 3 + 1, high / 3 + 4 * step, 2, heights[i]},
            };
            for (size_t k = 0; k < NT_LENGTH(views); k++) {
                raster_check_view(&r, raster, &views[k]);
            }
        }
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

NT_TEST(columns_of_many_states_show_the_largest)
{
    raster_check_many(t, MIB, 0);
    raster_check_many(t, 512, 0);
    /* Addresses of which not all are counted in 32 bits. */
    raster_check_many(t, 256 * MIB, 3);
}

/* Two events, and what the states of a picture by time are from the first one's time
 * and how much later the second is; the first state has no width. */
static void
raster_check_clock(nt_test *t, int64_t start, int64_t later, uint64_t expected)
{
    nt_trace r;
    nt_raster *raster = NULL;
    nt_trace_open(&r, t, NULL);
    r.time_us = start;
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    r.time_us = start + later;
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, MIB);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, MIB, MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + MIB, MIB, 0, NT_BLOCK_INACTIVE);
    if (nt_trace_replay(&r) &&
        raster_open(&r, &(nt_raster_options){.by_time = true}, &raster)) {
        size_t count;
        const nt_rising states = nt_raster_states(raster, &count);
        NT_CHECK_UINT(count, 3);
        NT_CHECK_UINT(nt_rising_at(states, 0), 0);
        NT_CHECK_UINT(nt_rising_at(states, 1), 0);
        NT_CHECK_UINT(nt_rising_at(states, 2), expected);
        NT_CHECK_UINT(nt_rising_at(states, 3), expected + 1);
        NT_CHECK_UINT(nt_raster_width(raster), expected + 1);
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

NT_TEST(states_begin_with_their_times)
{
    const int64_t start = INT64_C(1790000000000000), most = UINT32_MAX - 1;
    raster_check_clock(t, start, 7, 7);
    raster_check_clock(t, start, -7, 0);
    raster_check_clock(t, start, most, (uint64_t)most);
    raster_check_clock(t, start, most + 1, (uint64_t)most + 1);
    raster_check_clock(t, start, 2 * most, 2 * (uint64_t)most);
}

static nt_status
raster_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const nt_timeline *timeline = ctx;
    nt_raster *raster = NULL;
    raster_image image = {.view = {0, 10, 0, 22 * MIB, 4, 4}};
    const nt_raster_planes planes = {image.largest, image.used, image.reserved,
                                     image.seen,    image.row,  NULL};
    const nt_raster_options options = {.by_stream = true};
    nt_error err = {.offset = NT_NO_OFFSET};
    uint32_t rows[2];
    size_t count = 77;
    nt_status status = nt_raster_new(alloc, timeline, &options, &raster, &err);
    NT_CHECK((status == NT_OK) == (raster != NULL));
    if (status == NT_OK) {
        status = nt_raster_draw(raster, &image.view, &planes, &err);
    }
    if (status == NT_OK) {
        status =
            nt_raster_top(raster, &image.view, 2, rows, &count, image.largest, &err);
        NT_CHECK_UINT(count, status == NT_OK ? 2 : 77);
    }
    nt_raster_free(raster);
    return status;
}

static nt_status
raster_odd_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_raster *raster = NULL;
    const nt_status status = nt_raster_new(
        alloc, ctx, &(nt_raster_options){.by_time = false}, &raster, NULL);
    NT_CHECK((status == NT_OK) == (raster != NULL));
    nt_raster_free(raster);
    return status;
}

NT_TEST(raster_survives_every_refused_allocation)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (raster_small_trace(&r)) {
        nt_test_sweep(t, raster_sweep, r.timeline);
    }
    nt_trace_close(&r);
    nt_trace_open(&r, t, NULL);
    if (raster_odd_trace(&r)) {
        nt_test_sweep(t, raster_odd_sweep, r.timeline);
    }
    nt_trace_close(&r);
}

const nt_test_case nt_raster_tests[] = {
    NT_CASE(reserved_ranges_lie_end_to_end),
    NT_CASE(thin_block_marks_its_pixel),
    NT_CASE(block_ends_as_it_was_asked),
    NT_CASE(filter_keeps_one_stream_only),
    NT_CASE(largest_blocks_leave_a_band),
    NT_CASE(sizes_of_any_bits_are_compared),
    NT_CASE(view_off_the_axes_is_refused),
    NT_CASE(states_begin_with_their_times),
    NT_CASE(columns_of_many_states_show_the_largest),
    NT_CASE(raster_survives_every_refused_allocation),
    NT_CASES_END,
};
