/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of random programs, held against the layout after each event, pixel by
 * pixel. */
#include "picture/nt_raster.h"

#include <inttypes.h>
#include <string.h>

#include "base/nt_columns.h"
#include "nt_model.h"
#include "nt_trace.h"

enum { RANDOM_SIDE = 29, RANDOM_PIXELS = RANDOM_SIDE * RANDOM_SIDE };

typedef struct random_planes {
    uint64_t largest[RANDOM_PIXELS];
    double used[RANDOM_PIXELS], reserved[RANDOM_PIXELS];
    uint8_t seen[RANDOM_PIXELS];
    uint8_t standing[RANDOM_PIXELS];
} random_planes;

static bool
random_replay(nt_trace *r, nt_model *m)
{
    nt_trace_open(r, m->test, &m->alloc);
    for (size_t i = 0; i < m->event_count; i++) {
        const nt_model_event *e = &m->events[i];
        r->stream = e->stream;
        nt_trace_event(r, e->action, e->addr, e->size);
    }
    nt_trace_add_layout(r, &m->events[m->event_count - 1].layout);
    return nt_trace_replay(r);
}

/* How much of pixel `at` of `count`, which share first .. end, lies in from .. to, in
 * fractions of which a pixel has end - first. */
static uint64_t
random_overlap(uint64_t first, uint64_t end, uint32_t count, uint32_t at, uint64_t from,
               uint64_t to)
{
    const uint64_t span = end - first, low = first * count + at * span;
    const uint64_t high = low + span, a = from * count, b = to * count;
    const uint64_t begin = a > low ? a : low, stop = b < high ? b : high;
    return stop > begin ? stop - begin : 0;
}

/* Where the axis has an address that some range holds. */
static uint64_t
random_position(const nt_raster *raster, uint64_t address)
{
    size_t count;
    const nt_raster_range *ranges = nt_raster_ranges(raster, &count);
    for (size_t i = 0; i < count; i++) {
        if (address >= ranges[i].address &&
            address - ranges[i].address < ranges[i].size) {
            return ranges[i].position + (address - ranges[i].address);
        }
    }
    return UINT64_MAX / 64;
}

/* What one row of pixels has of a layout. */
typedef struct random_row {
    uint64_t used, reserved, largest;
} random_row;

static random_row
random_look(const nt_raster *raster, const nt_raster_view *v, const nt_layout *layout,
            uint32_t row)
{
    const nt_segment_columns *s = &layout->segments;
    const nt_block_columns *b = &layout->blocks;
    random_row sum = {0};
    for (size_t i = 0; i < s->count; i++) {
        const uint64_t at = random_position(raster, s->address[i]);
        sum.reserved += random_overlap(v->y_first, v->y_end, v->height, row, at,
                                       at + s->total_size[i]);
    }
    for (size_t i = 0; i < b->count; i++) {
        const uint64_t at = random_position(raster, b->address[i]);
        const uint64_t share =
            random_overlap(v->y_first, v->y_end, v->height, row, at, at + b->size[i]);
        if (b->state[i] != NT_BLOCK_INACTIVE && share != 0) {
            sum.used += share;
            sum.largest = b->size[i] > sum.largest ? b->size[i] : sum.largest;
        }
    }
    return sum;
}

/* Adds what the pixels see of the layout in `state`. */
static void
random_add_state(const nt_raster *raster, const nt_raster_view *v,
                 const nt_layout *layout, uint64_t state, random_planes *out)
{
    const double area =
        (double)(v->y_end - v->y_first) * (double)(v->x_end - v->x_first);
    for (uint32_t row = 0; row < v->height; row++) {
        const random_row look = random_look(raster, v, layout, row);
        for (uint32_t column = 0; column < v->width; column++) {
            const uint64_t wide = random_overlap(v->x_first, v->x_end, v->width, column,
                                                 state, state + 1);
            if (wide == 0) {
                continue;
            }
            const size_t pixel = (size_t)row * v->width + column;
            out->used[pixel] += (double)look.used * (double)wide / area;
            out->reserved[pixel] += (double)look.reserved * (double)wide / area;
            out->seen[pixel] |=
                (uint8_t)((look.used != 0 ? NT_SEEN_BLOCK : 0) |
                          (look.reserved != 0 ? NT_SEEN_RESERVED : 0) |
                          (look.reserved > look.used ? NT_SEEN_HOLE : 0));
            if (look.largest > out->largest[pixel]) {
                out->largest[pixel] = look.largest;
            }
        }
    }
}

static bool
random_near(double a, double b)
{
    return a - b < 1e-9 && b - a < 1e-9;
}

static bool
random_compare(nt_test *t, const nt_raster_view *v, const random_planes *found,
               const random_planes *truth)
{
    for (size_t i = 0; i < (size_t)v->width * v->height; i++) {
        if (found->largest[i] != truth->largest[i] ||
            found->seen[i] != truth->seen[i] ||
            found->standing[i] != ((truth->seen[i] & NT_SEEN_RESERVED) != 0) ||
            !random_near(found->used[i], truth->used[i]) ||
            !random_near(found->reserved[i], truth->reserved[i])) {
            NT_FAIL("pixel %zu of %ux%u saw %u, largest %" PRIu64 ", used %f; not %u, "
                    "%" PRIu64 ", %f",
                    i, v->width, v->height, found->seen[i], found->largest[i],
                    found->used[i], truth->seen[i], truth->largest[i], truth->used[i]);
            return false;
        }
    }
    return true;
}

/* A view of random size somewhere on the axes; `whole` takes all of them. */
static nt_raster_view
random_view(nt_model *m, const nt_raster *raster, bool whole)
{
    const uint64_t width = nt_raster_width(raster), height = nt_raster_height(raster);
    nt_raster_view v = {.x_end = width, .y_end = height};
    v.width = (uint32_t)(1 + nt_model_below(m, RANDOM_SIDE));
    v.height = (uint32_t)(1 + nt_model_below(m, RANDOM_SIDE));
    if (!whole) {
        v.x_first = nt_model_below(m, width);
        v.x_end = v.x_first + 1 + nt_model_below(m, width - v.x_first);
        v.y_first = nt_model_below(m, height);
        v.y_end = v.y_first + 1 + nt_model_below(m, height - v.y_first);
    }
    return v;
}

static void
random_check_view(nt_trace *r, const nt_raster *raster, const nt_raster_view *v)
{
    static random_planes found, truth;
    nt_test *t = r->test;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_raster_planes planes = {found.largest, found.used, found.reserved,
                                     found.seen,    NULL,       found.standing};
    NT_REQUIRE(NT_CHECK_OK(nt_raster_draw(raster, v, &planes, &err), &err));
    memset(&truth, 0, sizeof truth);
    for (uint64_t state = v->x_first; state < v->x_end; state++) {
        nt_layout *layout = NULL;
        NT_REQUIRE(NT_CHECK_OK(
            nt_timeline_layout(r->timeline, (int32_t)state - 1, &layout, &err), &err));
        random_add_state(raster, v, layout, state, &truth);
        nt_timeline_layout_free(r->timeline, layout);
    }
    (void)random_compare(t, v, &found, &truth);
}

/* The largest blocks of one state are all that stand in it, found by looking at all. */
static void
random_check_top(nt_trace *r, const nt_raster *raster, const nt_raster_view *v)
{
    static uint32_t rows[4096];
    static uint64_t rest[RANDOM_SIDE];
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    const int32_t event = (int32_t)v->x_first - 1;
    nt_test *t = r->test;
    nt_error err = {.offset = NT_NO_OFFSET};
    size_t count = 0, standing = 0;
    NT_REQUIRE(NT_CHECK(a->count < NT_LENGTH(rows)));
    NT_REQUIRE(NT_CHECK_OK(
        nt_raster_top(raster, v, NT_LENGTH(rows), rows, &count, rest, &err), &err));
    for (size_t row = 0; row < a->count; row++) {
        const int32_t ended = a->completed_event[row];
        standing +=
            a->alloc_event[row] <= event && (ended == NT_EVENT_NEVER || ended > event);
    }
    NT_CHECK_UINT(count, standing);
    for (size_t i = 0; i < count; i++) {
        const int32_t ended = a->completed_event[rows[i]];
        NT_CHECK(a->alloc_event[rows[i]] <= event);
        NT_CHECK(ended == NT_EVENT_NEVER || ended > event);
        NT_CHECK(i == 0 || a->size[rows[i - 1]] >= a->size[rows[i]]);
    }
}

static void
random_check_program(nt_model *m)
{
    nt_test *t = m->test;
    nt_trace r;
    nt_raster *raster = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_raster_options options = {.by_time = false};
    if (random_replay(&r, m) &&
        NT_CHECK_OK(nt_raster_new(&r.alloc, r.timeline, &options, &raster, &err),
                    &err)) {
        for (int i = 0; i < 4 && t->failures == 0; i++) {
            const nt_raster_view v = random_view(m, raster, i == 0);
            random_check_view(&r, raster, &v);
        }
        for (int i = 0; i < 20 && t->failures == 0; i++) {
            nt_raster_view v = random_view(m, raster, true);
            v.x_first = nt_model_below(m, v.x_end);
            v.x_end = v.x_first + 1;
            random_check_view(&r, raster, &v);
            random_check_top(&r, raster, &v);
        }
    }
    nt_raster_free(raster);
    nt_trace_close(&r);
}

static void
random_check_programs(nt_test *t, bool expandable)
{
    for (uint64_t seed = 21; seed <= 26 && t->failures == 0; seed++) {
        nt_model m;
        if (nt_model_run(&m, t, seed, expandable, UINT64_MAX)) {
            random_check_program(&m);
        }
        nt_model_clear(&m);
    }
}

NT_TEST(pixels_show_what_layouts_hold)
{
    random_check_programs(t, false);
}

NT_TEST(pixels_show_expandable_segments_too)
{
    random_check_programs(t, true);
}

const nt_test_case nt_raster_random_tests[] = {
    NT_CASE(pixels_show_what_layouts_hold),
    NT_CASE(pixels_show_expandable_segments_too),
    NT_CASES_END,
};
