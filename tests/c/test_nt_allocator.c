/* SPDX-License-Identifier: Apache-2.0 */
/* The model under its ordinary settings: one case a rule. */
#include "whatif/nt_allocator.h"

#include "nt_desk.h"
#include "nt_test.h"
#include "trace/nt_rounding.h"

NT_TEST(small_requests_share_a_segment)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t a = nt_desk_malloc(&d, 1);
    const uint32_t b = nt_desk_malloc(&d, 513);
    const uint32_t c = nt_desk_malloc(&d, MIB);
    NT_CHECK_UINT(nt_desk_size(&d, a), 512);
    NT_CHECK_UINT(nt_desk_size(&d, b), 1024);
    NT_CHECK_UINT(nt_desk_address(&d, b), nt_desk_address(&d, a) + 512);
    NT_CHECK_UINT(nt_desk_address(&d, c), nt_desk_address(&d, b) + 1024);
    NT_CHECK_UINT(nt_desk_reserved(&d), NT_SMALL_BUFFER);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_allocs, 1);
    NT_CHECK_UINT(nt_desk_stats(&d)->bytes[NT_METRIC_REQUESTED], 1 + 513 + MIB);
    nt_desk_close(&d);
}

NT_TEST(segments_fit_only_large_requests)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    (void)nt_desk_malloc(&d, MIB + 1);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    (void)nt_desk_malloc(&d, 10 * MIB - 1);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    (void)nt_desk_malloc(&d, 10 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 30 * MIB);
    (void)nt_desk_malloc(&d, 11 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 42 * MIB);
    nt_desk_close(&d);
}

NT_TEST(best_fit_takes_smallest_block)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 24 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 40 * MIB);
    const uint64_t expected = nt_desk_address(&d, b);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    nt_desk_free(&d, c);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 22 * MIB)), expected);
    NT_CHECK_UINT(nt_desk_reserved(&d), 94 * MIB);
    nt_desk_close(&d);
}

NT_TEST(lowest_address_wins_a_tie)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    d.fixed[0] = 3 * 64 * MIB;
    d.fixed[1] = 64 * MIB;
    d.fixed[2] = 2 * 64 * MIB;
    d.fixed_count = 3;
    uint32_t blocks[3];
    for (size_t i = 0; i < 3; i++) {
        blocks[i] = nt_desk_malloc(&d, 12 * MIB);
    }
    for (size_t i = 0; i < 3; i++) {
        nt_desk_free(&d, blocks[i]);
    }
    for (size_t i = 1; i <= 3; i++) {
        const uint32_t block = nt_desk_malloc(&d, 12 * MIB);
        NT_CHECK_UINT(nt_desk_address(&d, block), i * 64 * MIB);
    }
    nt_desk_close(&d);
}

NT_TEST(rest_of_one_mib_stays)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 9 * MIB)), 9 * MIB);
    /* 11 MiB are left of the segment. */
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 10 * MIB)), 11 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 9 * MIB)), 9 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 10 * MIB - 512)), 10 * MIB - 512);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->bytes[NT_METRIC_ALLOCATED], 39 * MIB - 512);
    nt_desk_close(&d);
}

NT_TEST(free_neighbours_become_one)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    uint32_t blocks[4];
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = nt_desk_malloc(&d, 5 * MIB);
    }
    const uint64_t begin = nt_desk_address(&d, blocks[0]);
    nt_desk_free(&d, blocks[0]);
    nt_desk_free(&d, blocks[2]);
    nt_desk_free(&d, blocks[1]);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 14 * MIB + 512)), begin);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    nt_desk_close(&d);
}

NT_TEST(streams_never_share_blocks)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t other = nt_desk_lane(&d, NT_DEFAULT_POOL, 0x5500);
    nt_desk_free(&d, nt_desk_malloc(&d, 12 * MIB));
    (void)nt_desk_malloc_on(&d, other, 12 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 24 * MIB);
    (void)nt_desk_malloc(&d, 12 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 24 * MIB);
    nt_desk_close(&d);
}

NT_TEST(divisions_make_blocks_alike)
{
    nt_desk d;
    nt_desk_open(&d, t, "roundup_power2_divisions:4", 0);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 41 * MIB)), 48 * MIB);
    nt_desk_close(&d);
    nt_desk_open(&d, t, "roundup_power2_divisions:[16:1,32:2,>:8]", 0);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 41 * MIB)), 48 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 65 * MIB)), 72 * MIB);
    nt_desk_close(&d);
}

NT_TEST(pending_blocks_do_not_serve)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t a = nt_desk_malloc(&d, 12 * MIB);
    const uint64_t address = nt_desk_address(&d, a);
    nt_desk_free_later(&d, a);
    NT_CHECK_UINT(nt_desk_stats(&d)->bytes[NT_METRIC_ALLOCATED], 0);
    NT_CHECK_UINT(nt_desk_stats(&d)->bytes[NT_METRIC_ACTIVE], 12 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 12 * MIB);
    NT_CHECK(nt_desk_address(&d, b) != address);
    nt_desk_complete(&d, a);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 12 * MIB)), address);
    NT_CHECK_UINT(nt_desk_reserved(&d), 24 * MIB);
    nt_desk_close(&d);
}

NT_TEST(limit_may_be_reached_exactly)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 40 * MIB);
    (void)nt_desk_malloc(&d, 20 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 5 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    NT_CHECK_UINT(nt_desk_malloc(&d, 16 * MIB), NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->ooms, 1);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    NT_CHECK_UINT(nt_desk_sum(&d, NT_ACTION_OOM), 16 * MIB);
    /* What is cached serves all the same. */
    NT_CHECK(nt_desk_malloc(&d, 14 * MIB) != NT_NONE);
    nt_desk_free(&d, b);
    nt_desk_close(&d);
}

NT_TEST(fraction_of_device_is_limit)
{
    nt_desk d;
    nt_desk_open_with(&d, t, "per_process_memory_fraction:0.25",
                      (nt_allocator_options){.device_total = 120 * MIB + 3});
    NT_CHECK(nt_desk_malloc(&d, 30 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_malloc(&d, 512), NT_NONE);
    nt_desk_close(&d);
}

NT_TEST(others_leave_less_of_the_device)
{
    nt_desk d;
    nt_desk_open_with(&d, t, "",
                      (nt_allocator_options){
                          .device_total = 100 * MIB,
                          .device_other = 60 * MIB,
                      });
    NT_CHECK(nt_desk_malloc(&d, 38 * MIB) != NT_NONE);
    NT_CHECK(nt_desk_malloc(&d, 512) != NT_NONE);
    NT_CHECK_UINT(nt_desk_malloc(&d, 2 * MIB), NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    nt_desk_close(&d);
}

/* Large segments first, then small ones; each by stream, then by size. */
NT_TEST(retry_releases_in_pool_order)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 100 * MIB);
    const uint32_t other = nt_desk_lane(&d, NT_DEFAULT_POOL, 0x77);
    const uint32_t small = nt_desk_malloc(&d, 512);
    const uint32_t b = nt_desk_malloc_on(&d, other, 12 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 30 * MIB);
    const uint32_t e = nt_desk_malloc(&d, 24 * MIB);
    const uint32_t kept = nt_desk_malloc(&d, 2 * MIB);
    const uint32_t freed = nt_desk_malloc(&d, 2 * MIB);
    d.deed_count = 0;
    nt_desk_free(&d, small);
    nt_desk_free(&d, b);
    nt_desk_free(&d, c);
    nt_desk_free(&d, e);
    nt_desk_free(&d, freed);
    NT_CHECK(nt_desk_malloc(&d, 70 * MIB) != NT_NONE);
    static const uint64_t sizes[] = {24 * MIB, 30 * MIB, 12 * MIB, 2 * MIB};
    NT_CHECK_UINT(d.deed_count, 5);
    for (size_t i = 0; i < 4; i++) {
        NT_CHECK_INT(d.deeds[i].action, NT_ACTION_SEGMENT_FREE);
        NT_CHECK_UINT(d.deeds[i].size, sizes[i]);
    }
    NT_CHECK_INT(d.deeds[4].action, NT_ACTION_SEGMENT_ALLOC);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 4);
    nt_desk_free(&d, kept);
    nt_desk_close(&d);
}

NT_TEST(retry_waits_for_all_streams)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 40 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 20 * MIB);
    (void)nt_desk_malloc(&d, 20 * MIB);
    nt_desk_free_later(&d, a);
    d.deed_count = 0;
    NT_CHECK(nt_desk_malloc(&d, 18 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->waits, 1);
    NT_CHECK_INT(d.deeds[0].action, NT_ACTION_FREE_COMPLETED);
    NT_CHECK_UINT(d.deeds[0].tag, 7);
    NT_CHECK_INT(d.deeds[1].action, NT_ACTION_SEGMENT_FREE);
    nt_desk_close(&d);
}

/* What the wait brought back is not searched: PyTorch asks the device only. */
NT_TEST(retry_does_not_search_again)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 20 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 9 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 11 * MIB);
    nt_desk_free_later(&d, a);
    NT_CHECK_UINT(nt_desk_malloc(&d, 9 * MIB), NT_NONE);
    NT_CHECK(nt_desk_malloc(&d, 9 * MIB) != NT_NONE);
    nt_desk_free(&d, b);
    nt_desk_close(&d);
}

NT_TEST(empty_cache_keeps_split_segments)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t a = nt_desk_malloc(&d, 5 * MIB);
    nt_desk_free(&d, nt_desk_malloc(&d, 30 * MIB));
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    nt_desk_free(&d, a);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 2);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    nt_desk_close(&d);
}

NT_TEST(segments_are_as_large_as_set)
{
    nt_desk d;
    nt_desk_open(&d, t, "large_segment_size_mb:32", 0);
    (void)nt_desk_malloc(&d, 5 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 32 * MIB);
    (void)nt_desk_malloc(&d, 26 * MIB);
    (void)nt_desk_malloc(&d, 28 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 60 * MIB);
    nt_desk_close(&d);
}

/*
 * Four layers are cached, a small one and a large one in turn; when the cache is full
 * the two oldest make room for one. Ten layers go through.
 */
NT_TEST(weight_streaming_leaves_known_ratios)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    uint32_t cache[4];
    size_t count = 0;
    double most = 0, sum = 0;
    for (size_t step = 0; step < 10; step++) {
        if (count == 4) {
            nt_desk_free(&d, cache[0]);
            nt_desk_free(&d, cache[1]);
            cache[0] = cache[2];
            cache[1] = cache[3];
            count = 2;
        }
        cache[count++] = nt_desk_malloc(&d, (step % 2 == 0 ? 12 : 84) * MIB);
        const uint64_t reserved = nt_desk_reserved(&d);
        const uint64_t used = nt_desk_stats(&d)->bytes[NT_METRIC_ALLOCATED];
        const double ratio = (double)(reserved - used) / (double)reserved;
        most = ratio > most ? ratio : most;
        sum += ratio;
    }
    NT_CHECK(most == 0.4375);
    NT_CHECK(sum / 10 == 0.13125);
    NT_CHECK_UINT(nt_desk_stats(&d)->segments, 4);
    nt_desk_close(&d);
}

NT_TEST(impossible_arguments_are_refused)
{
    nt_desk d;
    uint32_t block = 99;
    nt_desk_open(&d, t, "", 0);
    (void)NT_CHECK_STATUS(nt_allocator_malloc(d.model, d.lane, 0, 0, &block, NULL),
                          NT_ARGUMENT, NULL);
    (void)NT_CHECK_STATUS(
        nt_allocator_malloc(d.model, d.lane, NT_LARGEST_REQUEST + 1, 0, &block, NULL),
        NT_ARGUMENT, NULL);
    NT_CHECK_UINT(block, 99);
    NT_CHECK_UINT(nt_desk_malloc(&d, NT_LARGEST_REQUEST), NT_NONE);
    nt_allocator *other = NULL;
    nt_allocator_options options = {
        .settings = nt_settings_default(),
        .device_total = NT_LARGEST_DEVICE + 1,
    };
    (void)NT_CHECK_STATUS(nt_allocator_new(&d.hostile.alloc, &options, &other, NULL),
                          NT_ARGUMENT, NULL);
    NT_CHECK(other == NULL);
    nt_desk_close(&d);
}

/* The built-in policy, and a model of an endless device. */
static nt_status
allocator_run(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const char *text = ctx;
    nt_allocator_options options = {.device_total = 1024 * MIB, .limit = 300 * MIB};
    nt_allocator *model = NULL;
    uint32_t lane, blocks[24];
    nt_status status = NT_OK;
    size_t length = 0;
    while (text[length] != 0) {
        length++;
    }
    NT_CHECK_OK(nt_settings_parse(text, length, &options.settings, NULL), NULL);
    NT_TRY_DONE(nt_allocator_new(alloc, &options, &model, NULL));
    NT_TRY_DONE(nt_allocator_add_lane(model, NT_DEFAULT_POOL, 0, &lane, NULL));
    for (size_t i = 0; i < 24; i++) {
        NT_TRY_DONE(nt_allocator_malloc(model, lane, (i % 5 == 0 ? 300 : 6 * MIB * i),
                                        0, &blocks[i], NULL));
        if (i % 3 == 2 && blocks[i - 1] != NT_NONE) {
            NT_TRY_DONE(nt_allocator_give(model, blocks[i - 1], NULL));
        }
        if (i % 7 == 6 && blocks[i] != NT_NONE && i % 3 != 1) {
            nt_allocator_give_later(model, blocks[i]);
        }
    }
    NT_TRY_DONE(nt_allocator_empty_cache(model, NULL));
done:
    nt_allocator_free(model);
    return status;
}

NT_TEST(refused_memory_ends_the_model)
{
    char plain[] = "";
    char expandable[] = "expandable_segments:True,garbage_collection_threshold:0.4";
    char split[] = "max_split_size_mb:40,garbage_collection_threshold:0.3";
    nt_test_sweep(t, allocator_run, plain);
    nt_test_sweep(t, allocator_run, expandable);
    nt_test_sweep(t, allocator_run, split);
    nt_allocator_free(NULL);
}

const nt_test_case nt_allocator_tests[] = {
    NT_CASE(small_requests_share_a_segment),
    NT_CASE(segments_fit_only_large_requests),
    NT_CASE(best_fit_takes_smallest_block),
    NT_CASE(lowest_address_wins_a_tie),
    NT_CASE(rest_of_one_mib_stays),
    NT_CASE(free_neighbours_become_one),
    NT_CASE(streams_never_share_blocks),
    NT_CASE(divisions_make_blocks_alike),
    NT_CASE(pending_blocks_do_not_serve),
    NT_CASE(limit_may_be_reached_exactly),
    NT_CASE(fraction_of_device_is_limit),
    NT_CASE(others_leave_less_of_the_device),
    NT_CASE(retry_releases_in_pool_order),
    NT_CASE(retry_waits_for_all_streams),
    NT_CASE(retry_does_not_search_again),
    NT_CASE(empty_cache_keeps_split_segments),
    NT_CASE(segments_are_as_large_as_set),
    NT_CASE(weight_streaming_leaves_known_ratios),
    NT_CASE(impossible_arguments_are_refused),
    NT_CASE(refused_memory_ends_the_model),
    NT_CASES_END,
};
