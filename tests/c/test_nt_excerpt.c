/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_excerpt.h"

#include "nt_trace.h"

#define BASE UINT64_C(0x7f0000000000)

/* One segment; a large block that lives for one event, a small one that lives long, and
 * one of 2 MiB that is kept. Rows follow the events that allocate. */
static bool
excerpt_trace(nt_trace *r)
{
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 64 * MIB);  /* 0 */
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 8 * MIB);           /* 1: row 0 */
    nt_trace_free(r, BASE, 8 * MIB);                             /* 2, 3 */
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 3 * MIB);           /* 4: row 1 */
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 8 * MIB, 2 * MIB); /* 5: row 2 */
    nt_trace_event(r, NT_ACTION_SNAPSHOT, 0, 0);                 /* 6 */
    nt_trace_free(r, BASE, 3 * MIB);                             /* 7, 8 */
    nt_trace_event(r, NT_ACTION_SNAPSHOT, 0, 0);                 /* 9 */
    nt_trace_segment(r, BASE, 64 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 8 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(r, BASE + 8 * MIB, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 10 * MIB, 54 * MIB, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(r);
}

/* The rows that are kept, a bit a row. */
static uint64_t
excerpt_kept(nt_trace *r, size_t most, size_t first, size_t end)
{
    nt_test *t = r->test;
    nt_error err = {0};
    nt_excerpt *excerpt = NULL;
    if (!NT_CHECK_OK(
            nt_excerpt_new(&r->alloc, r->timeline, most, first, end, &excerpt, &err),
            &err)) {
        return 0;
    }
    size_t count;
    const uint32_t *rows = nt_excerpt_rows(excerpt, &count);
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        NT_CHECK(i == 0 || rows[i - 1] < rows[i]);
        found |= UINT64_C(1) << rows[i];
    }
    nt_excerpt_free(excerpt);
    return found;
}

NT_TEST(heaviest_rows_are_kept)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (excerpt_trace(&r)) {
        /* 8 MiB for 1 event, 3 MiB for 3, 2 MiB for 5. */
        NT_CHECK_UINT(excerpt_kept(&r, 0, 0, 0), 0);
        NT_CHECK_UINT(excerpt_kept(&r, 1, 0, 0), 4);
        NT_CHECK_UINT(excerpt_kept(&r, 2, 0, 0), 4 | 2);
        NT_CHECK_UINT(excerpt_kept(&r, 9, 0, 0), 4 | 2 | 1);
    }
    nt_trace_close(&r);
}

NT_TEST(focus_goes_before_all_else)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (excerpt_trace(&r)) {
        NT_CHECK_UINT(excerpt_kept(&r, 1, 0, 3), 1);
        NT_CHECK_UINT(excerpt_kept(&r, 1, 4, 7), 2);
        NT_CHECK_UINT(excerpt_kept(&r, 2, 4, 7), 2 | 4);
        NT_CHECK_UINT(excerpt_kept(&r, 2, 0, 2), 1 | 4);
    }
    nt_trace_close(&r);
}

NT_TEST(events_of_note_are_kept)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (excerpt_trace(&r)) {
        nt_error err = {0};
        nt_excerpt *excerpt = NULL;
        NT_REQUIRE(NT_CHECK_OK(
            nt_excerpt_new(&r.alloc, r.timeline, 1, 0, 0, &excerpt, &err), &err));
        /* With a stretch an event, each is the highest of its own. */
        size_t count;
        const uint32_t *events = nt_excerpt_events(excerpt, &count);
        NT_CHECK_UINT(count, nt_timeline_event_count(r.timeline));
        const uint32_t *places = nt_excerpt_places(excerpt, &count);
        NT_CHECK_UINT(count, nt_timeline_event_count(r.timeline) + 1);
        for (uint32_t i = 0; i + 1 < count; i++) {
            NT_CHECK_UINT(events[places[i]], i);
        }
        nt_excerpt_free(excerpt);
    }
    nt_trace_close(&r);
}

NT_TEST(long_traces_lose_most_events)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t rounds = 8 * NT_EXCERPT_STRETCHES;
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 64 * MIB);
    for (uint32_t i = 0; i < rounds; i++) {
        nt_trace_event(&r, NT_ACTION_ALLOC, BASE, i == rounds / 2 ? 4 * MIB : 2 * MIB);
        nt_trace_free(&r, BASE, i == rounds / 2 ? 4 * MIB : 2 * MIB);
    }
    nt_trace_segment(&r, BASE, 64 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 64 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_excerpt *excerpt = NULL;
    nt_error err = {0};
    if (nt_trace_replay(&r) &&
        NT_CHECK_OK(nt_excerpt_new(&r.alloc, r.timeline, 1, 0, 0, &excerpt, &err),
                    &err)) {
        size_t count, known;
        NT_CHECK_UINT(nt_excerpt_rows(excerpt, &count)[0], rounds / 2);
        const uint32_t *events = nt_excerpt_events(excerpt, &count);
        NT_CHECK(count < nt_timeline_event_count(r.timeline) / 2);
        const uint32_t *places = nt_excerpt_places(excerpt, &known);
        const int32_t peak = nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED).event;
        NT_CHECK_INT(events[places[peak]], peak);
        NT_CHECK_UINT(events[count - 1], nt_timeline_event_count(r.timeline) - 1);
        nt_excerpt_free(excerpt);
    }
    nt_trace_close(&r);
}

NT_TEST(series_that_rows_explain_add_up)
{
    const uint64_t sizes[] = {8, 2, 5};
    const int32_t begins[] = {0, 1, -1}, ends[] = {2, -1, 3};
    uint64_t series[] = {13, 15, 7, 2}, steps[4];
    NT_CHECK(nt_excerpt_adds_up(sizes, begins, ends, 3, 5, series, 4, steps));
    NT_CHECK(!nt_excerpt_adds_up(sizes, begins, ends, 3, 6, series, 4, steps));
    series[3] = 1;
    NT_CHECK(!nt_excerpt_adds_up(sizes, begins, ends, 3, 5, series, 4, steps));
    NT_CHECK(nt_excerpt_adds_up(sizes, begins, ends, 0, 5, series, 0, steps));
}

static nt_status
excerpt_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    const nt_timeline *timeline = ctx;
    nt_excerpt *excerpt = NULL;
    nt_error err = {0};
    const nt_status status = nt_excerpt_new(alloc, timeline, 2, 0, 0, &excerpt, &err);
    nt_excerpt_free(excerpt);
    return status;
}

NT_TEST(excerpt_survives_every_refused_allocation)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (excerpt_trace(&r)) {
        nt_test_sweep(t, excerpt_body, r.timeline);
    }
    nt_trace_close(&r);
}

const nt_test_case nt_excerpt_tests[] = {
    NT_CASE(heaviest_rows_are_kept),
    NT_CASE(focus_goes_before_all_else),
    NT_CASE(events_of_note_are_kept),
    NT_CASE(long_traces_lose_most_events),
    NT_CASE(series_that_rows_explain_add_up),
    NT_CASE(excerpt_survives_every_refused_allocation),
    NT_CASES_END,
};
