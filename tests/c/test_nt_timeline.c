/* SPDX-License-Identifier: Apache-2.0 */
/* Whole traces: block sizes, series, peaks, layouts, holders, retries. */
#include "trace/nt_timeline.h"

#include <string.h>

#include "nt_trace.h"

#define BASE UINT64_C(0x700000000)

NT_TEST(series_fall_when_pytorch_says)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 1000);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 1024, 600);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 1000);
    nt_trace_event(&r, NT_ACTION_OOM, 0, 100 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE, 1000);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 1024, 1000, NT_BLOCK_INACTIVE);
    nt_trace_block(&r, BASE + 1024, 1024, 600, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 2048, 2 * MIB - 2048, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    static const uint64_t allocated[] = {0, 0, 1024, 2048, 1024, 1024, 1024};
    static const uint64_t active[] = {0, 0, 1024, 2048, 2048, 2048, 1024};
    static const uint64_t requested[] = {0, 0, 1000, 1600, 1600, 1600, 600};
    for (int32_t event = -1; event < 6; event++) {
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, event),
                      allocated[event + 1]);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ACTIVE, event), active[event + 1]);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_REQUESTED, event),
                      requested[event + 1]);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, event),
                      event < 0 ? 0 : 2 * MIB);
        nt_trace_check(&r, event);
    }
    nt_trace_check_end(&r);
    const nt_trace_facts *facts = nt_timeline_facts(r.timeline);
    NT_CHECK(facts->complete);
    NT_CHECK_UINT(facts->preexisting + facts->unmatched, 0);
    NT_CHECK_UINT(facts->oom_count, 1);
    nt_trace_close(&r);
}

NT_TEST(peak_is_first_of_largest)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    for (int round = 0; round < 2; round++) {
        nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 4096);
        nt_trace_free(&r, BASE, 4096);
    }
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 2 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    const nt_moment allocated = nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED);
    const nt_moment reserved = nt_timeline_peak(r.timeline, NT_METRIC_RESERVED);
    NT_CHECK_UINT(allocated.bytes, 4096);
    NT_CHECK_INT(allocated.event, 1);
    NT_CHECK_UINT(reserved.bytes, 2 * MIB);
    NT_CHECK_INT(reserved.event, 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, 7), 0);
    nt_trace_close(&r);
}

NT_TEST(block_waits_for_its_stream)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 4096);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 4096);
    nt_trace_segment(&r, BASE, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(&r, BASE, 4096, 4096, NT_BLOCK_ACTIVE_PENDING_FREE);
    nt_trace_block(&r, BASE + 4096, 2 * MIB - 4096, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 2), 0);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ACTIVE, 2), 4096);
    NT_CHECK_UINT(nt_timeline_facts(r.timeline)->unmatched, 0);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

/* A trace with one ordinary segment of 20 MiB, and one request in it. */
static void
timeline_open_large(nt_trace *r, nt_test *t, uint64_t size)
{
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, size);
}

NT_TEST(rest_too_small_stays_in_block)
{
    nt_trace r;
    timeline_open_large(&r, t, 19 * MIB);
    nt_trace_free(&r, BASE, 19 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 19 * MIB - 1);
    nt_trace_free(&r, BASE, 19 * MIB - 1);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 19 * MIB - 512);
    nt_trace_free(&r, BASE, 19 * MIB - 512);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 20 * MIB);
    NT_CHECK_UINT(nt_trace_block_size(&r, 4), 20 * MIB);
    NT_CHECK_UINT(nt_trace_block_size(&r, 7), 19 * MIB - 512);
    nt_trace_close(&r);
}

NT_TEST(rest_reaches_to_next_block)
{
    nt_trace r;
    timeline_open_large(&r, t, 6 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 6 * MIB, 8 * MIB);
    nt_trace_free(&r, BASE, 6 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 5 * MIB + 100);
    nt_trace_free(&r, BASE, 5 * MIB + 100);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 5 * MIB - 512);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 5 * MIB - 512, 5 * MIB - 512, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 5 * MIB - 512, MIB + 512, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(&r, BASE + 6 * MIB, 8 * MIB, 8 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 14 * MIB, 6 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 5), 6 * MIB);
    NT_CHECK_UINT(nt_trace_block_size(&r, 8), 5 * MIB - 512);
    nt_trace_check(&r, 5);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(segments_that_touch_stay_apart)
{
    nt_trace r;
    timeline_open_large(&r, t, 18 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE + 20 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 20 * MIB, 19 * MIB + 512);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 18 * MIB, MIB + 512);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 18 * MIB, 18 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 18 * MIB, 2 * MIB, MIB + 512, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_segment(&r, BASE + 20 * MIB, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE + 20 * MIB, 20 * MIB, 19 * MIB + 512,
                   NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED).bytes, 40 * MIB);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(expandable_blocks_have_no_rest)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 19 * MIB + 512);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 20 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 19 * MIB + 512, 2 * MIB);
    nt_trace_free(&r, BASE, 19 * MIB + 512);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 19 * MIB);
    nt_trace_segment(&r, BASE, 40 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE, 19 * MIB, 19 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 19 * MIB, 512, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(&r, BASE + 19 * MIB + 512, 2 * MIB, 2 * MIB,
                   NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 21 * MIB + 512, 19 * MIB - 512, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 19 * MIB + 512);
    NT_CHECK_UINT(nt_trace_block_size(&r, 6), 19 * MIB);
    for (int32_t event = -1; event < 7; event++) {
        nt_trace_check(&r, event);
    }
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(oversize_blocks_are_kept_whole)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "max_split_size_mb:64");
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 100 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 99 * MIB);
    nt_trace_free(&r, BASE, 99 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 85 * MIB);
    nt_trace_free(&r, BASE, 85 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 100 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 100 * MIB);
    NT_CHECK_UINT(nt_trace_block_size(&r, 4), 100 * MIB);
    nt_trace_close(&r);
}

NT_TEST(requests_are_rounded_by_settings)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "roundup_power2_divisions:4");
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 9 * MIB);
    nt_trace_free(&r, BASE, 9 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 10 * MIB);
    nt_trace_close(&r);
}

NT_TEST(survivors_have_recorded_sizes)
{
    nt_trace r;
    timeline_open_large(&r, t, 3 * MIB);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 20 * MIB, 3 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    NT_REQUIRE(nt_trace_replay(&r));
    NT_CHECK_UINT(nt_trace_block_size(&r, 1), 20 * MIB);
    NT_CHECK_UINT(nt_timeline_peak(r.timeline, NT_METRIC_ALLOCATED).bytes, 20 * MIB);
    NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 1), 20 * MIB);
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(partial_unmapping_leaves_the_rests)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 60 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE + 20 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 20 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE, 40 * MIB);
    nt_trace_segment(&r, BASE + 40 * MIB, 20 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE + 40 * MIB, 20 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    static const uint64_t reserved[] = {60 * MIB, 40 * MIB, 60 * MIB, 20 * MIB};
    static const size_t segments[] = {1, 2, 1, 1};
    for (int32_t event = 0; event < 4; event++) {
        nt_layout *layout;
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, event), reserved[event]);
        NT_REQUIRE(
            NT_CHECK_OK(nt_timeline_layout(r.timeline, event, &layout, NULL), NULL));
        NT_CHECK_UINT(layout->segments.count, segments[event]);
        nt_timeline_layout_free(r.timeline, layout);
    }
    nt_trace_check_end(&r);
    nt_trace_close(&r);
}

NT_TEST(pools_are_told_by_size_or_end)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE + 32 * MIB, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 64 * MIB, 6 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 96 * MIB, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 2 * MIB);
    nt_trace_segment(&r, BASE + 32 * MIB, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE + 32 * MIB, 20 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(nt_trace_replay(&r));
    const nt_segment_life_columns *lives = nt_timeline_segments(r.timeline);
    static const uint8_t kinds[] = {NT_POOL_SMALL, NT_POOL_LARGE, NT_POOL_SMALL,
                                    NT_POOL_LARGE};
    static const uint8_t known[] = {0, 1, 0, 0};
    NT_REQUIRE(NT_CHECK_UINT(lives->count, 4));
    for (size_t row = 0; row < 4; row++) {
        NT_CHECK_UINT(lives->kind[row], kinds[row]);
        NT_CHECK_UINT(lives->pool_known[row], known[row]);
    }
    NT_CHECK_INT(lives->free_event[0], 4);
    NT_CHECK_INT(lives->free_event[1], NT_EVENT_NEVER);
    nt_trace_close(&r);
}

NT_TEST(layout_of_no_event_is_refused)
{
    nt_trace r;
    timeline_open_large(&r, t, 3 * MIB);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_layout *layout = NULL;
    NT_CHECK_STATUS(nt_timeline_layout(r.timeline, 2, &layout, NULL), NT_ARGUMENT,
                    NULL);
    NT_CHECK_STATUS(nt_timeline_layout(r.timeline, -2, &layout, NULL), NT_ARGUMENT,
                    NULL);
    NT_CHECK(layout == NULL);
    nt_trace_close(&r);
}

/* Three sites: load() twice on line 3, once on line 4, and none recorded. */
static void
timeline_open_holders(nt_trace *r, nt_test *t)
{
    nt_trace_open(r, t, NULL);
    const uint32_t three = nt_trace_stack(r, "load", 3, "main");
    const uint32_t four = nt_trace_stack(r, "load", 4, "main");
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 2 * MIB);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE, 1024, three);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 4096, 1000, four);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 8192, 512, three);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 12288, 2048);
    nt_trace_free(r, BASE, 1024);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE, 3072, three);
    nt_trace_free(r, BASE, 3072);
}

static void
timeline_check_holders(nt_trace *r, nt_holder_key by, size_t count,
                       const uint64_t *bytes, const uint32_t *counts)
{
    nt_test *t = r->test;
    nt_holder *holders;
    size_t found;
    NT_REQUIRE(NT_CHECK_OK(
        nt_timeline_holders(r->timeline, 4, by, &holders, &found, NULL), NULL));
    if (NT_CHECK_UINT(found, count)) {
        for (size_t i = 0; i < count; i++) {
            NT_CHECK_UINT(holders[i].bytes, bytes[i]);
            NT_CHECK_UINT(holders[i].count, counts[i]);
        }
        NT_CHECK_UINT(holders[by == NT_BY_FUNCTION ? 1 : 0].key, NT_NONE);
    }
    nt_timeline_holders_free(r->timeline, holders, found);
}

NT_TEST(holders_are_put_together)
{
    static const uint64_t by_line[] = {2048, 1536, 1024};
    static const uint32_t line_counts[] = {1, 2, 1};
    static const uint64_t by_function[] = {2560, 2048};
    static const uint32_t function_counts[] = {3, 1};
    nt_trace r;
    timeline_open_holders(&r, t);
    NT_REQUIRE(nt_trace_replay(&r));
    timeline_check_holders(&r, NT_BY_STACK, 3, by_line, line_counts);
    timeline_check_holders(&r, NT_BY_LINE, 3, by_line, line_counts);
    timeline_check_holders(&r, NT_BY_FUNCTION, 2, by_function, function_counts);
    nt_trace_close(&r);
}

NT_TEST(churn_counts_each_allocation_once)
{
    nt_trace r;
    timeline_open_holders(&r, t);
    NT_REQUIRE(nt_trace_replay(&r));
    nt_churn *churn;
    size_t count;
    NT_REQUIRE(NT_CHECK_OK(nt_timeline_churn(r.timeline, &churn, &count, NULL), NULL));
    NT_REQUIRE(NT_CHECK_UINT(count, 3));
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += churn[i].bytes;
        if (churn[i].count == 3) { /* line 3 */
            NT_CHECK_UINT(churn[i].bytes, 1024 + 512 + 3072);
            NT_CHECK_UINT(churn[i].peak_bytes, 512 + 3072);
            NT_CHECK_INT(churn[i].peak_event, 7);
        }
    }
    NT_CHECK_UINT(bytes, 1024 + 1024 + 512 + 2048 + 3072);
    nt_timeline_churn_free(r.timeline, churn, count);
    nt_trace_close(&r);
}

NT_TEST(peak_falls_if_blocks_are_freed_earlier)
{
    nt_trace r;
    timeline_open_holders(&r, t);
    NT_REQUIRE(nt_trace_replay(&r));
    int32_t ends[] = {-1, -1, -1, -1, -1};
    uint64_t peak = 0;
    NT_REQUIRE(nt_timeline_allocations(r.timeline)->count == NT_LENGTH(ends));
    NT_CHECK_OK(nt_timeline_peak_if_freed(r.timeline, ends, &peak, NULL), NULL);
    NT_CHECK_UINT(peak, 1024 + 512 + 2048 + 3072);
    /* It is still there after the event that ends it. */
    ends[3] = 7;
    NT_CHECK_OK(nt_timeline_peak_if_freed(r.timeline, ends, &peak, NULL), NULL);
    NT_CHECK_UINT(peak, 1024 + 512 + 2048 + 3072);
    /* The peak moves to where four blocks are. */
    ends[3] = 6;
    NT_CHECK_OK(nt_timeline_peak_if_freed(r.timeline, ends, &peak, NULL), NULL);
    NT_CHECK_UINT(peak, 1024 + 1024 + 512 + 2048);
    /* What is gone early is not taken off again when the trace frees it. */
    ends[0] = 1;
    ends[1] = 2;
    NT_CHECK_OK(nt_timeline_peak_if_freed(r.timeline, ends, &peak, NULL), NULL);
    NT_CHECK_UINT(peak, 512 + 3072);
    nt_trace_close(&r);
}

static void
timeline_release(nt_trace *r, uint64_t size, uint32_t stack)
{
    nt_trace_event_at(r, NT_ACTION_SEGMENT_FREE, BASE, size, stack);
}

static void
timeline_check_retries(nt_trace *r, uint32_t runs, uint32_t retries, bool known)
{
    nt_test *t = r->test;
    NT_REQUIRE(nt_trace_replay(r));
    const nt_trace_facts *facts = nt_timeline_facts(r->timeline);
    NT_CHECK_UINT(facts->release_runs, runs);
    NT_CHECK_UINT(facts->retries, retries);
    NT_CHECK(facts->retries_known == known);
    nt_trace_close(r);
}

NT_TEST(retries_are_told_from_empty_cache)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t user = nt_trace_stack(&r, "memory", 1, "empty_cache");
    const uint32_t own = nt_trace_stack(&r, "forward", 1, NULL);
    timeline_release(&r, 20 * MIB, user);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB);
    timeline_release(&r, 40 * MIB, own);
    timeline_release(&r, 2 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 40 * MIB);
    timeline_release(&r, 40 * MIB, own);
    nt_trace_event(&r, NT_ACTION_OOM, 0, 100 * MIB);
    nt_trace_event(&r, NT_ACTION_OOM, 0, 100 * MIB);
    timeline_release(&r, 2 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
    timeline_check_retries(&r, 4, 3, true);
}

NT_TEST(retries_without_frames_are_guesses)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    timeline_release(&r, 20 * MIB, NT_NO_STACK);
    nt_trace_event(&r, NT_ACTION_OOM, 0, 100 * MIB);
    timeline_release(&r, 20 * MIB, NT_NO_STACK);
    timeline_check_retries(&r, 2, 1, true);
    nt_trace_open(&r, t, NULL);
    timeline_release(&r, 20 * MIB, NT_NO_STACK);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB);
    timeline_check_retries(&r, 1, 1, false);
}

NT_TEST(retries_are_told_where_only_allocations_have_stacks)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t made = nt_trace_stack(&r, "build", 1, NULL);
    const uint32_t own = nt_trace_stack(&r, "forward", 1, NULL);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB, made);
    nt_trace_event_at(&r, NT_ACTION_ALLOC, BASE, 20 * MIB, made);
    nt_trace_event_at(&r, NT_ACTION_FREE_REQUESTED, BASE, 20 * MIB, made);
    nt_trace_event_at(&r, NT_ACTION_FREE_COMPLETED, BASE, 20 * MIB, made);
    timeline_release(&r, 20 * MIB, made);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB, own);
    timeline_release(&r, 40 * MIB, own);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB, own);
    timeline_check_retries(&r, 2, 1, false);
}

NT_TEST(garbage_collection_is_no_retry)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "garbage_collection_threshold:0.6");
    const uint32_t own = nt_trace_stack(&r, "forward", 1, NULL);
    timeline_release(&r, 40 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB);
    timeline_release(&r, 2 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 40 * MIB);
    timeline_check_retries(&r, 2, 1, false);
}

NT_TEST(room_for_oversize_is_no_retry)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "max_split_size_mb:64");
    const uint32_t own = nt_trace_stack(&r, "forward", 1, NULL);
    timeline_release(&r, 64 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 80 * MIB);
    timeline_release(&r, 80 * MIB, own);
    timeline_release(&r, 40 * MIB, own);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 80 * MIB);
    timeline_check_retries(&r, 2, 1, false);
}

static int
timeline_stop(void *ctx, uint64_t done)
{
    *(uint64_t *)ctx = done + 1;
    return 1;
}

NT_TEST(progress_can_end_the_replay)
{
    nt_trace r;
    timeline_open_large(&r, t, 3 * MIB);
    NT_REQUIRE(NT_CHECK_OK(nt_snapshot_seal(r.snapshot, &r.err), &r.err));
    uint64_t calls = 0;
    const nt_progress progress = {timeline_stop, &calls};
    NT_CHECK_STATUS(
        nt_timeline_new(&r.alloc, r.snapshot, 0, &progress, &r.timeline, &r.err),
        NT_CANCELLED, &r.err);
    NT_CHECK(r.timeline == NULL);
    NT_CHECK_UINT(calls, 1);
    nt_trace_close(&r);
}

const nt_test_case nt_timeline_tests[] = {
    NT_CASE(series_fall_when_pytorch_says),
    NT_CASE(peak_is_first_of_largest),
    NT_CASE(block_waits_for_its_stream),
    NT_CASE(rest_too_small_stays_in_block),
    NT_CASE(rest_reaches_to_next_block),
    NT_CASE(segments_that_touch_stay_apart),
    NT_CASE(expandable_blocks_have_no_rest),
    NT_CASE(oversize_blocks_are_kept_whole),
    NT_CASE(requests_are_rounded_by_settings),
    NT_CASE(survivors_have_recorded_sizes),
    NT_CASE(partial_unmapping_leaves_the_rests),
    NT_CASE(pools_are_told_by_size_or_end),
    NT_CASE(layout_of_no_event_is_refused),
    NT_CASE(holders_are_put_together),
    NT_CASE(churn_counts_each_allocation_once),
    NT_CASE(peak_falls_if_blocks_are_freed_earlier),
    NT_CASE(retries_are_told_from_empty_cache),
    NT_CASE(retries_without_frames_are_guesses),
    NT_CASE(retries_are_told_where_only_allocations_have_stacks),
    NT_CASE(garbage_collection_is_no_retry),
    NT_CASE(room_for_oversize_is_no_retry),
    NT_CASE(progress_can_end_the_replay),
    NT_CASES_END,
};
