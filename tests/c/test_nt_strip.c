/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_strip.h"

#include <string.h>

#include "nt_recorded.h"
#include "nt_trace.h"
#include "picture/nt_raster.h"

#define BASE UINT64_C(0x7f0000000000)

enum { STRIP_BANDS = 3, STRIP_WIDE = 64, STRIP_CODES = 4096, STRIP_EVENTS = 8192 };

/* Room for an answer, and the codes that it goes by: each row's number, modulo. */
typedef struct strip_answer {
    int32_t event[STRIP_WIDE];
    uint64_t allocated[STRIP_WIDE], reserved[STRIP_WIDE];
    uint64_t bands[STRIP_WIDE * STRIP_BANDS];
} strip_answer;

static uint8_t strip_codes[STRIP_CODES];

static void
strip_fill_codes(void)
{
    for (size_t row = 0; row < STRIP_CODES; row++) {
        strip_codes[row] = (uint8_t)(row % STRIP_BANDS);
    }
}

static nt_strip_columns
strip_columns(strip_answer *a)
{
    return (nt_strip_columns){a->event, a->allocated, a->reserved, a->bands};
}

/* Bytes of one band after an event, as one loop over the rows finds them. */
static uint64_t
strip_band_by_hand(const nt_timeline *timeline, int32_t event, uint8_t band)
{
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    uint64_t sum = 0;
    for (size_t row = 0; row < a->count; row++) {
        const int32_t freed = a->free_event[row];
        const bool lives =
            a->alloc_event[row] <= event && (freed == NT_EVENT_NEVER || freed > event);
        sum += lives && strip_codes[row] == band ? a->size[row] : 0;
    }
    return sum;
}

/* Whether a column has seen a state: it overlaps its range, or lies in it. */
static bool
strip_sees(const nt_strip_view *view, uint32_t column, size_t state)
{
    const uint64_t span = view->end - view->first;
    const uint64_t from = column * span, to = (column + UINT64_C(1)) * span;
    const uint64_t begin = nt_rising_at(view->positions, state);
    const uint64_t end = nt_rising_at(view->positions, state + 1);
    if (begin < view->first) {
        return end > view->first && (end - view->first) * view->width > from;
    }
    const uint64_t low = (begin - view->first) * view->width;
    if (begin == end) {
        return low >= from && low < to;
    }
    return low < to && (end - view->first) * view->width > from;
}

/* Checks each column against all states that it has seen. */
static void
strip_check(nt_test *t, const nt_timeline *timeline, const nt_strip *strip,
            const nt_strip_view *view, const strip_answer *found)
{
    const size_t states = nt_timeline_event_count(timeline) + 1;
    for (uint32_t c = 0; c < view->width; c++) {
        uint64_t allocated = 0, reserved = 0;
        bool any = false;
        for (size_t s = 0; s < states; s++) {
            if (strip_sees(view, c, s)) {
                const uint64_t here = nt_strip_bytes(strip, false, s);
                const uint64_t kept = nt_strip_bytes(strip, true, s);
                allocated = here > allocated ? here : allocated;
                reserved = kept > reserved ? kept : reserved;
                any = true;
            }
        }
        uint64_t sum = 0;
        for (uint8_t band = 0; band < STRIP_BANDS; band++) {
            const uint64_t held = found->bands[c * STRIP_BANDS + band];
            NT_CHECK_UINT(held, strip_band_by_hand(timeline, found->event[c], band));
            sum += held;
        }
        if (!NT_CHECK(any) || !NT_CHECK_UINT(found->allocated[c], allocated) ||
            !NT_CHECK_UINT(found->reserved[c], reserved) ||
            !NT_CHECK_UINT(sum, allocated)) {
            return;
        }
    }
}

/* Every view of a raster's axis is what the states say. */
static void
strip_check_views(nt_test *t, const nt_timeline *timeline, bool by_time)
{
    const nt_alloc alloc = nt_alloc_system();
    static strip_answer answer;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_raster_options options = {.by_time = by_time};
    nt_raster *raster = NULL;
    nt_strip *strip = NULL;
    size_t states;
    strip_fill_codes();
    if (NT_CHECK_OK(nt_raster_new(&alloc, timeline, &options, &raster, &err), &err) &&
        NT_CHECK_OK(nt_strip_new(&alloc, timeline, &strip, &err), &err) &&
        NT_CHECK_OK(nt_strip_set_bands(strip, strip_codes, STRIP_BANDS, &err), &err)) {
        const uint64_t end = nt_raster_width(raster);
        const uint64_t ends[][2] = {
            {0, end}, {end / 3, end / 2}, {end - 1, end}, {0, 1}, {end / 2, end}};
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            for (uint32_t width = 1; width <= STRIP_WIDE; width += 21) {
                const nt_strip_view view = {nt_raster_states(raster, &states),
                                            ends[i][0], ends[i][1], width};
                const nt_strip_columns out = strip_columns(&answer);
                if (view.first < view.end &&
                    NT_CHECK_OK(nt_strip_draw(strip, &view, &out, &err), &err)) {
                    strip_check(t, timeline, strip, &view, &answer);
                }
            }
        }
    }
    nt_strip_free(strip);
    nt_raster_free(raster);
}

NT_TEST(columns_are_what_a_recording_had)
{
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "frag_default")) {
        NT_CHECK(nt_timeline_allocations(recorded.timeline)->count < STRIP_CODES);
        strip_check_views(t, recorded.timeline, true);
        strip_check_views(t, recorded.timeline, false);
    }
    nt_recorded_close(&recorded);
}

/* Whichever states begin and end a range, against one loop over them. */
static void
strip_check_highest(nt_test *t, const nt_strip *strip, bool reserved, size_t states)
{
    for (size_t first = 0; first < states; first += 97) {
        size_t best = first;
        for (size_t end = first + 1; end <= states; end++) {
            if (nt_strip_bytes(strip, reserved, end - 1) >
                nt_strip_bytes(strip, reserved, best)) {
                best = end - 1;
            }
            if (nt_strip_highest(strip, reserved, first, end) != best) {
                NT_FAIL("states %zu to %zu", first, end);
                break;
            }
        }
    }
}

/* The bytes are the timeline's, of the few that change as of those that do each time.
 */
static void
strip_check_bytes(nt_test *t, const nt_timeline *timeline, const nt_strip *strip)
{
    static uint64_t series[STRIP_EVENTS];
    const size_t events = nt_timeline_event_count(timeline);
    for (int reserved = 0; NT_CHECK(events <= STRIP_EVENTS) && reserved <= 1;
         reserved++) {
        nt_timeline_series(timeline,
                           reserved ? NT_METRIC_RESERVED : NT_METRIC_ALLOCATED, series);
        for (size_t e = 0; e < events; e++) {
            NT_CHECK_UINT(nt_strip_bytes(strip, reserved != 0, e + 1), series[e]);
        }
        strip_check_highest(t, strip, reserved != 0, events + 1);
    }
}

NT_TEST(highest_is_the_first_of_any_range)
{
    nt_recorded recorded;
    const nt_alloc alloc = nt_alloc_system();
    nt_strip *strip = NULL;
    if (nt_recorded_open(&recorded, t, "frag_default") &&
        NT_CHECK_OK(nt_strip_new(&alloc, recorded.timeline, &strip, NULL), NULL)) {
        strip_check_bytes(t, recorded.timeline, strip);
    }
    nt_strip_free(strip);
    nt_recorded_close(&recorded);
}

/* Two blocks of the end layout that the trace, which lost events, knows nothing of. */
static bool
strip_small_trace(nt_trace *r)
{
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 8 * MIB, 2 * MIB);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 4 * MIB, 4 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 4 * MIB, 4 * MIB, 4 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 8 * MIB, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 10 * MIB, 10 * MIB, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(r);
}

NT_TEST(what_only_the_end_knows_is_in_its_band)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (strip_small_trace(&r)) {
        strip_check_views(t, r.timeline, false);
    }
    nt_trace_close(&r);
}

NT_TEST(view_off_the_axis_is_refused)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const nt_alloc alloc = nt_alloc_system();
    nt_strip *strip = NULL;
    if (strip_small_trace(&r) &&
        NT_CHECK_OK(nt_strip_new(&alloc, r.timeline, &strip, NULL), NULL)) {
        const uint32_t each[] = {0, 1, 2, 3, 4, 5};
        const nt_rising positions = {.narrow = each};
        const nt_strip_view wrong[] = {
            {positions, 2, 2, 4},
            {positions, 0, 6, 4},
            {positions, 0, 5, 0},
            {positions, 0, 5, NT_STRIP_MOST_COLUMNS + 1},
        };
        static strip_answer answer;
        const nt_strip_columns out = strip_columns(&answer);
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            nt_error err = {.offset = NT_NO_OFFSET};
            NT_CHECK_STATUS(nt_strip_draw(strip, &wrong[i], &out, &err), NT_ARGUMENT,
                            &err);
        }
    }
    nt_strip_free(strip);
    nt_trace_close(&r);
}

static nt_status
strip_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    static strip_answer answer;
    const uint64_t each[] = {0, 1, 2, 3, 4, 5};
    const nt_rising positions = {.wide = each};
    const nt_strip_view view = {positions, 0, 5, 4};
    const nt_strip_columns out = strip_columns(&answer);
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_strip *strip = NULL;
    nt_status status = nt_strip_new(alloc, ctx, &strip, &err);
    if (status == NT_OK) {
        status = nt_strip_set_bands(strip, strip_codes, STRIP_BANDS, &err);
    }
    if (status == NT_OK) {
        status = nt_strip_draw(strip, &view, &out, &err);
    }
    nt_strip_free(strip);
    return status;
}

NT_TEST(strip_survives_every_refused_allocation)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    strip_fill_codes();
    if (strip_small_trace(&r)) {
        nt_test_sweep(t, strip_sweep, r.timeline);
    }
    nt_trace_close(&r);
}

const nt_test_case nt_strip_tests[] = {
    NT_CASE(columns_are_what_a_recording_had),
    NT_CASE(highest_is_the_first_of_any_range),
    NT_CASE(what_only_the_end_knows_is_in_its_band),
    NT_CASE(view_off_the_axis_is_refused),
    NT_CASE(strip_survives_every_refused_allocation),
    NT_CASES_END,
};
