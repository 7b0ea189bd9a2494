/* SPDX-License-Identifier: Apache-2.0 */
/* Traces that begin late: what was there before. */
#include "trace/nt_timeline.h"

#include "nt_trace.h"

#define BASE UINT64_C(0x700000000)

/* Row of the block that was there before the trace at `address`. */
static size_t
start_row(nt_trace *r, uint64_t address)
{
    const nt_allocation_columns *a = nt_timeline_allocations(r->timeline);
    size_t row = 0;
    while (row < a->count &&
           (a->address[row] != address || a->alloc_event[row] != NT_EVENT_BEFORE)) {
        row++;
    }
    if (row == a->count) {
        nt_test_fail(r->test, __FILE__, __LINE__, "no such block before the trace");
        return 0;
    }
    return row;
}

NT_TEST(blocks_freed_unseen_were_there)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_free(&r, BASE, 1000);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE + 1024, 3000);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 4096);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 4096, 4096, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 4096, 4096, 4000, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 8192, 512, 1, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_trace_block(&r, BASE + 8704, 2 * MIB - 8704, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 4, 0, 0);
    NT_CHECK(!nt_timeline_facts(r.timeline)->complete);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, -1), 1024 + 4096);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ACTIVE, -1), 1024 + 3072 + 4096 + 512);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, -1), 1000 + 3000 + 4000 + 1);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, -1), 2 * MIB);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 3), 4096 + 4096);
    const nt_allocation_columns *a = nt_timeline_allocations(r.timeline);
    NT_CHECK_INT(a->free_event[start_row(&r, BASE + 1024)], NT_EVENT_FREED_BEFORE);
    NT_CHECK_INT(a->completed_event[start_row(&r, BASE + 1024)], 2);
    NT_CHECK_INT(a->free_event[start_row(&r, BASE + 8192)], NT_EVENT_FREED_BEFORE);
    NT_CHECK_INT(a->free_event[start_row(&r, BASE + 4096)], NT_EVENT_NEVER);
    for (int32_t event = -1; event < 4; event++) {
        nt_trace_check(&r, event);
    }
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(freed_start_block_still_waits)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 19 * MIB);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 20 * MIB, 19 * MIB, NT_BLOCK_ACTIVE_PENDING_FREE);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 1, 0, 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, -1), 20 * MIB);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 0), 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ACTIVE, 0), 20 * MIB);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

/* Frees a start block of `size` bytes at BASE, in a segment of 20 MiB that a survivor
 * at `next` shares with it, and ends with `landings` allocated and freed before. */
static void
start_replay_large(nt_trace *r, nt_test *t, uint64_t size, uint64_t next,
                   uint64_t landing)
{
    nt_trace_open(r, t, NULL);
    if (landing != 0) {
        nt_trace_event(r, NT_ACTION_ALLOC, BASE + landing, 2 * MIB);
    }
    nt_trace_free(r, BASE, size);
    if (landing != 0) {
        nt_trace_free(r, BASE + landing, 2 * MIB);
    }
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, next, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(r, BASE + next, 20 * MIB - next, 20 * MIB - next,
                   NT_BLOCK_ACTIVE_ALLOCATED);
    if (nt_trace_replay(r)) {
        nt_trace_check(r, -1);
        nt_trace_check_end(r);
    }
}

NT_TEST(small_gap_belongs_to_block)
{
    nt_trace r;
    start_replay_large(&r, t, 5 * MIB - 100, 6 * MIB, 0);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, 0);
    NT_CHECK_UINT(nt_trace_block_size(&r, 0), 6 * MIB);
    nt_trace_close(&r);
}

NT_TEST(landing_tells_where_block_ends)
{
    nt_trace r;
    start_replay_large(&r, t, 5 * MIB, 12 * MIB, 5 * MIB + 512 * 99);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, 0);
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 5 * MIB + 512 * 99);
    NT_CHECK_UINT(nt_trace_block_size(&r, 0), 2 * MIB);
    nt_trace_close(&r);
    start_replay_large(&r, t, 5 * MIB, 12 * MIB, 6 * MIB);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, 0);
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 6 * MIB);
    nt_trace_close(&r);
    /* Too far behind to be the first in the free block. */
    start_replay_large(&r, t, 5 * MIB, 12 * MIB, 6 * MIB + 512);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, MIB);
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 5 * MIB);
    nt_trace_close(&r);
}

NT_TEST(open_gap_bounds_the_slack)
{
    nt_trace r;
    start_replay_large(&r, t, 5 * MIB, 12 * MIB, 0);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, MIB);
    nt_trace_close(&r);
    start_replay_large(&r, t, 5 * MIB, 6 * MIB + 4096, 0);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, 4096 - 512);
    nt_trace_close(&r);
    /* A free block of the least size it can have: nothing is left for the block. */
    start_replay_large(&r, t, 5 * MIB, 6 * MIB + 512, 0);
    NT_REQUIRE(NT_CHECK(r.timeline != NULL));
    nt_trace_check_facts(&r, 2, 0, 0);
    nt_trace_close(&r);
}

NT_TEST(oversize_start_block_is_whole)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "max_split_size_mb:64");
    nt_trace_free(&r, BASE, 85 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 100 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_trace_check_facts(&r, 1, 0, 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, -1), 100 * MIB);
    nt_trace_close(&r);
}

NT_TEST(unseen_segments_were_there)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE + 20 * MIB, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 40 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE, 60 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE + 200 * MIB, 20 * MIB);
    nt_trace_segment(&r, BASE + 60 * MIB, 20 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE + 60 * MIB, 20 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    static const uint64_t reserved[] = {100 * MIB, 60 * MIB, 80 * MIB, 40 * MIB,
                                        20 * MIB};
    for (int32_t event = -1; event < 4; event++) {
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, event),
                      reserved[event + 1]);
        nt_trace_check(&r, event);
    }
    nt_trace_check_end(&r);
    nt_trace_check_facts(&r, 0, 0, 0);
    nt_trace_close(&r);
}

NT_TEST(device_without_trace_has_layout)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 4096, 4000, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 4096, 2 * MIB - 4096, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_timeline_event_count(r.timeline), 0);
    const nt_moment peak = nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED);
    NT_CHECK_UINT(peak.bytes, 4096);
    NT_CHECK_INT(peak.event, -1);
    nt_trace_check_facts(&r, 1, 0, 0);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(empty_device_has_empty_timeline)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK(nt_timeline_facts(r.timeline)->complete);
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_RESERVED).bytes, 0);
    nt_trace_check_end(&r);
    nt_holder *holders;
    nt_churn *churn;
    size_t count;
    NT_CHECK_OK(
        nt_timeline_holders(r.timeline, -1, NT_BY_STACK, &holders, &count, NULL), NULL);
    NT_CHECK_UINT(count, 0);
    nt_timeline_holders_free(r.timeline, holders, count);
    NT_CHECK_OK(nt_timeline_churn(r.timeline, &churn, &count, NULL), NULL);
    NT_CHECK_UINT(count, 0);
    nt_timeline_churn_free(r.timeline, churn, count);
    nt_trace_close(&r);
}

/* Every way through at once: blocks and segments from before, lost events, a large
 * block with a rest, pending frees, an expandable segment unmapped in part. */
static nt_status
start_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_trace r;
    (void)ctx;
    nt_trace_open(&r, t, alloc);
    const uint32_t stack = nt_trace_stack(&r, "f", 1, "empty_cache");
    nt_trace_free(&r, BASE, 5 * MIB);
    nt_trace_event_at(&r, NT_ACTION_ALLOC, BASE, 3 * MIB, stack);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 4 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 64 * MIB, 60 * MIB);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_UNMAP, BASE + 84 * MIB, 20 * MIB, stack);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 20 * MIB, 19 * MIB, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_layout *layout = NULL;
    nt_holder *holders = NULL;
    nt_churn *churn = NULL;
    size_t held = 0, churned = 0;
    if (r.status == NT_OK) {
        r.status = nt_snapshot_seal(r.snapshot, NULL);
    }
    if (r.status == NT_OK) {
        r.status = nt_timeline_new(alloc, r.snapshot, 0, NULL, &r.timeline, NULL);
        NT_CHECK((r.timeline != NULL) == (r.status == NT_OK));
    }
    if (r.status == NT_OK) {
        r.status = nt_timeline_layout(r.timeline, 2, &layout, NULL);
        NT_CHECK((layout != NULL) == (r.status == NT_OK));
    }
    if (r.status == NT_OK) {
        r.status =
            nt_timeline_holders(r.timeline, 2, NT_BY_FUNCTION, &holders, &held, NULL);
        NT_CHECK((holders != NULL) == (r.status == NT_OK));
    }
    if (r.status == NT_OK) {
        r.status = nt_timeline_churn(r.timeline, &churn, &churned, NULL);
        NT_CHECK((churn != NULL) == (r.status == NT_OK));
    }
    if (r.status == NT_OK) {
        const int32_t ends[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
        uint64_t peak = 0;
        NT_CHECK(nt_timeline_allocations(r.timeline)->count <= NT_LENGTH(ends));
        r.status = nt_timeline_peak_if_freed(r.timeline, ends, &peak, NULL);
        NT_CHECK((peak != 0) == (r.status == NT_OK));
    }
    if (r.status == NT_OK) {
        nt_broken_note notes[NT_TRACE_BROKEN_KINDS];
        size_t noted = SIZE_MAX;
        r.status = nt_timeline_broken(r.timeline, notes, &noted, NULL);
        NT_CHECK((noted != SIZE_MAX) == (r.status == NT_OK));
    }
    if (r.timeline != NULL) {
        nt_timeline_layout_free(r.timeline, layout);
        nt_timeline_holders_free(r.timeline, holders, held);
        nt_timeline_churn_free(r.timeline, churn, churned);
    }
    const nt_status status = r.status;
    nt_trace_close(&r);
    return status;
}

NT_TEST(timeline_survives_running_out_of_memory)
{
    nt_test_sweep(t, start_sweep, NULL);
}

const nt_test_case nt_timeline_start_tests[] = {
    NT_CASE(blocks_freed_unseen_were_there),
    NT_CASE(freed_start_block_still_waits),
    NT_CASE(small_gap_belongs_to_block),
    NT_CASE(landing_tells_where_block_ends),
    NT_CASE(open_gap_bounds_the_slack),
    NT_CASE(oversize_start_block_is_whole),
    NT_CASE(unseen_segments_were_there),
    NT_CASE(device_without_trace_has_layout),
    NT_CASE(empty_device_has_empty_timeline),
    NT_CASE(timeline_survives_running_out_of_memory),
    NT_CASES_END,
};
