/* SPDX-License-Identifier: Apache-2.0 */
/* Traces with gaps, traces that end a moment before the recorded blocks, and damaged
 * ones. */
#include "trace/nt_timeline.h"

#include "nt_trace.h"

#define BASE UINT64_C(0x700000000)

NT_TEST(second_allocation_ends_the_first)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t stack = nt_trace_stack(&r, "f", 1, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event_at(&r, NT_ACTION_ALLOC, BASE, 1024, stack);
    nt_trace_event_at(&r, NT_ACTION_ALLOC, BASE, 2048, stack);
    nt_trace_free(&r, BASE, 2048);
    nt_trace_free(&r, BASE, 2048);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 2 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 0, 3, 0);
    for (int32_t event = -1; event < 8; event++) {
        nt_trace_check(&r, event);
    }
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED).bytes, 2048);
    nt_churn *churn;
    size_t count;
    NT_REQUIRE(NT_CHECK_OK(nt_timeline_churn(r.timeline, &churn, &count, NULL), NULL));
    NT_CHECK_UINT(count, 1);
    NT_CHECK_UINT(churn[0].peak_bytes, 2048);
    nt_timeline_churn_free(r.timeline, churn, count);
    nt_trace_close(&r);
}

NT_TEST(freed_again_was_not_there)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 1024);
    nt_trace_free(&r, BASE, 1024);
    nt_trace_free(&r, BASE, 1024);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE + 4096, 512);
    nt_trace_free(&r, BASE + 4096, 512);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 2 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 1, 4, 0);
    for (int32_t event = -1; event < 8; event++) {
        nt_trace_check(&r, event);
    }
    nt_trace_close(&r);
}

NT_TEST(second_free_changes_nothing)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 1024);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 1024);
    nt_trace_free(&r, BASE, 1024);
    nt_trace_free(&r, BASE, 1024);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 2 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 0, 3, 0);
    for (int32_t event = -1; event < 8; event++) {
        nt_trace_check(&r, event);
    }
    nt_trace_close(&r);
}

/* The trace leaves one block of 1024 bytes at BASE; the end layout has what the case
 * says. Whatever it is, the series end there. */
static void
lost_open(nt_trace *r, nt_test *t, nt_action last)
{
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 1024);
    nt_trace_event(r, last, BASE, 1024);
    nt_trace_segment(r, BASE, 2 * MIB, NT_POOL_SMALL, false);
}

static void
lost_check(nt_trace *r, uint32_t unmatched)
{
    nt_test *t = r->test;
    NT_REQUIRE(nt_trace_replay(r));
    nt_trace_check_facts(r, 0, unmatched, 0);
    NT_CHECK(nt_timeline_facts(r->timeline)->complete);
    for (int32_t event = -1; event < 3; event++) {
        nt_trace_check(r, event);
    }
    NT_CHECK_UINT(nt_trace_bytes(r, NT_METRIC_ALLOCATED, 1), 1024);
    nt_trace_check_end(r);
    nt_trace_close(r);
}

NT_TEST(late_allocation_counts_from_end)
{
    nt_trace r;
    lost_open(&r, t, NT_ACTION_SNAPSHOT);
    nt_trace_block(&r, BASE, 1024, 1024, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 1024, 512, 500, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 1536, 512, 500, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_trace_block(&r, BASE + 2048, 2 * MIB - 2048, 0, NT_BLOCK_INACTIVE);
    lost_check(&r, 2);
}

NT_TEST(late_allocation_has_its_stack)
{
    nt_trace r;
    lost_open(&r, t, NT_ACTION_SNAPSHOT);
    r.stack = nt_trace_stack(&r, "f", 1, NULL);
    nt_trace_block(&r, BASE, 1024, 1024, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 1024, 512, 500, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 1536, 2 * MIB - 1536, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    const nt_allocation_columns *a = nt_timeline_allocations(r.timeline);
    NT_REQUIRE(NT_CHECK_UINT(a->count, 2));
    NT_CHECK_UINT(a->stack[0], r.stack);
    NT_CHECK_UINT(a->stack[1], r.stack);
    NT_CHECK_INT(a->alloc_event[1], 2);
    nt_churn *churn;
    size_t count;
    NT_REQUIRE(NT_CHECK_OK(nt_timeline_churn(r.timeline, &churn, &count, NULL), NULL));
    NT_CHECK_UINT(count, 1);
    NT_CHECK_UINT(churn[0].count, 1);
    NT_CHECK_UINT(churn[0].peak_bytes, 1536);
    NT_CHECK_INT(churn[0].peak_event, 2);
    nt_timeline_churn_free(r.timeline, churn, count);
    nt_trace_close(&r);
}

NT_TEST(late_allocation_in_late_trace)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 2 * MIB, 1024, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_segment(&r, BASE + 2 * MIB, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE + 2 * MIB, 2 * MIB, 1024, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 1, 1, 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 0), 2 * MIB);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 1), 4 * MIB);
    nt_trace_check(&r, -1);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(late_free_counts_from_end)
{
    nt_trace r;
    lost_open(&r, t, NT_ACTION_SNAPSHOT);
    nt_trace_block(&r, BASE, 2 * MIB, 0, NT_BLOCK_INACTIVE);
    lost_check(&r, 1);
    lost_open(&r, t, NT_ACTION_FREE_REQUESTED);
    nt_trace_block(&r, BASE, 2 * MIB, 0, NT_BLOCK_INACTIVE);
    lost_check(&r, 1);
    lost_open(&r, t, NT_ACTION_SNAPSHOT);
    nt_trace_block(&r, BASE, 1024, 1024, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_trace_block(&r, BASE + 1024, 2 * MIB - 1024, 0, NT_BLOCK_INACTIVE);
    lost_check(&r, 1);
}

NT_TEST(late_reuse_is_another_allocation)
{
    nt_trace r;
    lost_open(&r, t, NT_ACTION_FREE_REQUESTED);
    nt_trace_block(&r, BASE, 4096, 4000, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 4096, 2 * MIB - 4096, 0, NT_BLOCK_INACTIVE);
    lost_check(&r, 2);
}

NT_TEST(late_segments_count_from_end)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE + 64 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 20 * MIB, 20 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    static const uint64_t reserved[] = {0, 20 * MIB, 40 * MIB, 20 * MIB, 20 * MIB};
    for (int32_t event = -1; event < 4; event++) {
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, event),
                      reserved[event + 1]);
        nt_trace_check(&r, event);
    }
    nt_trace_check_facts(&r, 0, 3, 0);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(late_mappings_count_from_end)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    r.stream = 1;
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 64 * MIB, 20 * MIB);
    r.stream = 2;
    nt_trace_segment(&r, BASE, 40 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE, 40 * MIB, 40 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    static const uint64_t reserved[] = {0, 40 * MIB, 20 * MIB, 40 * MIB};
    for (int32_t event = -1; event < 3; event++) {
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, event),
                      reserved[event + 1]);
        nt_trace_check(&r, event);
    }
    NT_CHECK(nt_timeline_facts(r.timeline)->complete);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(segment_reserved_twice_counts_once)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 40 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_RESERVED).bytes, 40 * MIB);
    for (int32_t event = -1; event < 4; event++) {
        nt_trace_check(&r, event);
    }
    nt_trace_check_facts(&r, 0, 2, 0);
    nt_trace_close(&r);
}

NT_TEST(unsound_ranges_are_passed_over)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, UINT64_MAX - MIB, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE, 0);
    nt_trace_event(&r, NT_ACTION_ALLOC, UINT64_MAX - 5, UINT64_MAX);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, UINT64_MAX, UINT64_MAX);
    nt_trace_event(&r, (nt_action)(NT_ACTION_COUNT + 3), UINT64_MAX, UINT64_MAX);
    nt_trace_segment(&r, UINT64_MAX - 5, 2 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, UINT64_MAX - 5, 2 * MIB, 1, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_RESERVED).bytes, 0);
    nt_layout *layout;
    for (int32_t event = -1; event < 5; event++) {
        NT_REQUIRE(
            NT_CHECK_OK(nt_timeline_layout(r.timeline, event, &layout, NULL), NULL));
        NT_CHECK_UINT(layout->segments.count, 0);
        nt_timeline_layout_free(r.timeline, layout);
    }
    nt_trace_close(&r);
}

NT_TEST(overlaps_leave_layouts_sound)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 4096);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 512, 4096);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 20 * MIB - 512, 4096);
    for (uint64_t i = 0; i < 4; i++) {
        nt_trace_segment(&r, BASE + i * MIB, (20 - 2 * i) * MIB, NT_POOL_LARGE, i < 2);
        nt_trace_block(&r, BASE + i * MIB, (20 - 2 * i) * MIB, 1,
                       NT_BLOCK_ACTIVE_ALLOCATED);
    }
    NT_REQUIRE(nt_trace_replay(&r));
    for (int32_t event = -1; event < 4; event++) {
        nt_layout *layout;
        NT_REQUIRE(
            NT_CHECK_OK(nt_timeline_layout(r.timeline, event, &layout, NULL), NULL));
        NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
        nt_timeline_layout_free(r.timeline, layout);
    }
    nt_trace_close(&r);
}

NT_TEST(files_without_requested_sizes_keep_events)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    r.keys = NT_HAS_TRACES;
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 1000);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 1024, 0, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 1024, 4096, 0, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 5120, 2 * MIB - 5120, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, -1), 4096);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, 0), 4096 + 1000);
    nt_trace_close(&r);
}

/* A sound end layout of random segments, none of which touch. */
static void
lost_add_random_end(nt_trace *r, uint64_t *seed)
{
    uint64_t address = BASE;
    for (int i = 0; i < 6; i++) {
        const bool expandable = nt_test_random(seed) % 2 != 0;
        const uint64_t size = (1 + nt_test_random(seed) % 8) * MIB;
        address += (1 + nt_test_random(seed) % 8) * (MIB / 2);
        r->stream = nt_test_random(seed) % 2;
        nt_trace_segment(r, address, size, (nt_pool_kind)(size > 2 * MIB), expandable);
        uint64_t state = NT_BLOCK_ACTIVE_ALLOCATED;
        for (uint64_t end = address + size; address < end;) {
            const uint64_t part = (1 + nt_test_random(seed) % 4) * (MIB / 2);
            const uint64_t bytes = part < end - address ? part : end - address;
            /* Free blocks that touch would be one. */
            state = state == NT_BLOCK_INACTIVE ? 1 + nt_test_random(seed) % 2
                                               : nt_test_random(seed) % 3;
            nt_trace_block(r, address, bytes, 1 + nt_test_random(seed) % bytes,
                           (nt_block_state)state);
            address += bytes;
        }
    }
}

/* Whatever the events say, layouts are sound, and the end is the recorded one. */
static void
lost_check_random(nt_test *t, uint64_t seed)
{
    static const uint64_t sizes[] = {0,       1,       MIB / 2,  MIB,       2 * MIB,
                                     3 * MIB, 5 * MIB, 20 * MIB, UINT64_MAX};
    const uint64_t events = 1 + nt_test_random(&seed) % 60;
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    for (uint64_t i = 0; i < events; i++) {
        const uint64_t address = BASE + nt_test_random(&seed) % 64 * (MIB / 2);
        const uint64_t size = sizes[nt_test_random(&seed) % 9];
        r.stream = nt_test_random(&seed) % 2;
        nt_trace_event(&r, (nt_action)(nt_test_random(&seed) % 9), address, size);
    }
    lost_add_random_end(&r, &seed);
    NT_REQUIRE(nt_trace_replay(&r));
    for (int32_t event = -1; event < (int32_t)events; event += 7) {
        nt_layout *layout;
        NT_REQUIRE(
            NT_CHECK_OK(nt_timeline_layout(r.timeline, event, &layout, NULL), NULL));
        NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
        nt_timeline_layout_free(r.timeline, layout);
    }
    nt_trace_check(&r, (int32_t)events - 1);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(garbage_ends_as_recorded)
{
    for (uint64_t seed = 1; seed <= 300 && t->failures == 0; seed++) {
        lost_check_random(t, seed);
        if (t->failures != 0) {
            NT_FAIL("that was seed %d", (int)seed);
        }
    }
}

/* Requested bytes that no device has: their sum falls below 0 and so rises. */
NT_TEST(peaks_hold_where_sums_wrap)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE + 4 * MIB, MIB + 1);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, MIB, 0 - MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + MIB, MIB, 9, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    const nt_moment peak = nt_timeline_peak(r.timeline, NT_METRIC_REQUESTED);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, -1), 10);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, 0), 9 - MIB);
    NT_CHECK_UINT(peak.bytes, 9 - MIB);
    NT_CHECK_INT(peak.event, 0);
    nt_trace_close(&r);
}

/* The end layout has two blocks at one address: the start goes with the row's size. */
NT_TEST(start_goes_with_corrected_sizes)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE + 8 * MIB, MIB);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, MIB);
    nt_trace_segment(&r, BASE + MIB, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, MIB, MIB, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_trace_block(&r, BASE, 4 * MIB, 9, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    const nt_allocation_columns *a = nt_timeline_allocations(r.timeline);
    uint64_t allocated = 0, requested = 0;
    for (size_t row = 0; row < a->count; row++) {
        const bool before = a->alloc_event[row] == NT_EVENT_BEFORE;
        const bool freed = a->free_event[row] == NT_EVENT_FREED_BEFORE;
        allocated += before && !freed ? a->size[row] : 0;
        requested += before ? a->requested_size[row] : 0;
    }
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, -1), allocated);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, -1), requested);
    nt_trace_close(&r);
}

const nt_test_case nt_timeline_lost_tests[] = {
    NT_CASE(second_allocation_ends_the_first),
    NT_CASE(freed_again_was_not_there),
    NT_CASE(second_free_changes_nothing),
    NT_CASE(late_allocation_counts_from_end),
    NT_CASE(late_allocation_has_its_stack),
    NT_CASE(late_allocation_in_late_trace),
    NT_CASE(late_free_counts_from_end),
    NT_CASE(late_reuse_is_another_allocation),
    NT_CASE(late_segments_count_from_end),
    NT_CASE(late_mappings_count_from_end),
    NT_CASE(segment_reserved_twice_counts_once),
    NT_CASE(unsound_ranges_are_passed_over),
    NT_CASE(overlaps_leave_layouts_sound),
    NT_CASE(files_without_requested_sizes_keep_events),
    NT_CASE(garbage_ends_as_recorded),
    NT_CASE(peaks_hold_where_sums_wrap),
    NT_CASE(start_goes_with_corrected_sizes),
    NT_CASES_END,
};
