/* SPDX-License-Identifier: Apache-2.0 */
/* The model under settings that change its rules: oversize blocks, garbage, expandable
 * segments, private pools, versions. */
#include "whatif/nt_allocator.h"

#include "nt_desk.h"
#include "nt_test.h"

NT_TEST(oversize_blocks_serve_close_requests)
{
    nt_desk d;
    nt_desk_open(&d, t, "max_split_size_mb:64", 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 100 * MIB));
    (void)nt_desk_malloc(&d, 50 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 150 * MIB);
    (void)nt_desk_malloc(&d, 80 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 230 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 80 * MIB + 1)), 100 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 230 * MIB);
    nt_desk_close(&d);
    nt_desk_open(&d, t, "max_split_size_mb:64,max_non_split_rounding_mb:40", 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 100 * MIB));
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 65 * MIB)), 100 * MIB);
    nt_desk_close(&d);
}

NT_TEST(oversize_blocks_go_largest_first)
{
    nt_desk d;
    nt_desk_open(&d, t, "max_split_size_mb:64", 300 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 100 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 120 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 70 * MIB);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    nt_desk_free(&d, c);
    d.deed_count = 0;
    NT_CHECK(nt_desk_malloc(&d, 200 * MIB) != NT_NONE);
    NT_CHECK_UINT(d.deed_count, 3);
    NT_CHECK_UINT(d.deeds[0].size, 120 * MIB);
    NT_CHECK_UINT(d.deeds[1].size, 100 * MIB);
    NT_CHECK_INT(d.deeds[2].action, NT_ACTION_SEGMENT_ALLOC);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    nt_desk_close(&d);
}

NT_TEST(one_oversize_block_is_enough)
{
    nt_desk d;
    nt_desk_open(&d, t, "max_split_size_mb:64", 330 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 200 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 100 * MIB);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    d.deed_count = 0;
    /* Both are more than 20 MiB too large to serve it. */
    NT_CHECK(nt_desk_malloc(&d, 70 * MIB) != NT_NONE);
    NT_CHECK_UINT(d.deed_count, 2);
    NT_CHECK_UINT(d.deeds[0].size, 100 * MIB);
    nt_desk_close(&d);
}

/* Some goes, not enough: then everything does. */
NT_TEST(too_few_oversize_blocks_retry)
{
    nt_desk d;
    nt_desk_open(&d, t, "max_split_size_mb:64", 200 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 80 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 50 * MIB);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    NT_CHECK(nt_desk_malloc(&d, 190 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 2);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    nt_desk_close(&d);
}

NT_TEST(garbage_goes_by_its_age)
{
    nt_desk d;
    nt_desk_open(&d, t, "garbage_collection_threshold:0.5", 200 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 32 * MIB);
    (void)nt_desk_malloc(&d, 30 * MIB);
    nt_desk_free(&d, a);
    const uint32_t c = nt_desk_malloc(&d, 36 * MIB);
    nt_desk_free(&d, c);
    nt_desk_free(&d, b);
    NT_CHECK_UINT(nt_desk_reserved(&d), 128 * MIB);
    d.deed_count = 0;
    /* 28 MiB are too many. Ages are 2, 1 and 1 requests: only the oldest is above
     * average, and it is enough. */
    NT_CHECK(nt_desk_malloc(&d, 60 * MIB) != NT_NONE);
    NT_CHECK_UINT(d.deed_count, 2);
    NT_CHECK_UINT(d.deeds[0].size, 30 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    d.deed_count = 0;
    /* Now 58 MiB are: the first round frees both, which are of one age. */
    NT_CHECK(nt_desk_malloc(&d, 40 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_sum(&d, NT_ACTION_SEGMENT_FREE), 68 * MIB);
    nt_desk_close(&d);
}

NT_TEST(garbage_stays_without_limit)
{
    nt_desk d;
    nt_desk_open(&d, t, "garbage_collection_threshold:0.1", 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 30 * MIB));
    (void)nt_desk_malloc(&d, 60 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 0);
    nt_desk_close(&d);
}

NT_TEST(expandable_segments_map_whole_pages)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    /* The free end serves, and is extended by what it lacks. */
    const uint32_t b = nt_desk_malloc(&d, 25 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, b), nt_desk_address(&d, a) + 30 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 60 * MIB);
    NT_CHECK_UINT(d.deeds[1].address, nt_desk_address(&d, a) + 40 * MIB);
    NT_CHECK_UINT(d.deeds[1].size, 20 * MIB);
    (void)nt_desk_malloc(&d, 512);
    NT_CHECK_UINT(nt_desk_reserved(&d), 62 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_allocs, 3);
    NT_CHECK_UINT(nt_desk_stats(&d)->segments, 0);
    nt_desk_close(&d);
}

NT_TEST(expandable_blocks_split_to_512)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc(&d, 20 * MIB - 512)), 20 * MIB - 512);
    const uint32_t b = nt_desk_malloc(&d, 2 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, b), 2 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    nt_desk_close(&d);
}

NT_TEST(whole_pages_are_unmapped)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 55 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 15 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 100 * MIB);
    const uint64_t base = nt_desk_address(&d, a);
    nt_desk_free(&d, b);
    d.deed_count = 0;
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(d.deed_count, 1);
    NT_CHECK_INT(d.deeds[0].action, NT_ACTION_SEGMENT_UNMAP);
    NT_CHECK_UINT(d.deeds[0].address, base + 40 * MIB);
    NT_CHECK_UINT(d.deeds[0].size, 40 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 60 * MIB);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(d.deed_count, 1);
    nt_desk_free(&d, a);
    nt_desk_free(&d, c);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    nt_desk_close(&d);
}

/* The hole is used where it is large enough, with the free blocks beside it; a larger
 * request goes to the end. */
NT_TEST(unmapped_hole_is_used_first)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 55 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 15 * MIB);
    const uint64_t base = nt_desk_address(&d, a);
    nt_desk_free(&d, b);
    nt_desk_empty_cache(&d);
    /* 10 free, 40 unmapped and 5 free MiB lie between the others. */
    const uint32_t too_large = nt_desk_malloc(&d, 56 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, too_large), base + 100 * MIB);
    const uint32_t fits = nt_desk_malloc(&d, 52 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, fits), base + 30 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 160 * MIB);
    nt_desk_free(&d, c);
    nt_desk_close(&d);
}

/* A block that could grow counts as large as it could become. */
NT_TEST(growing_end_is_used_last)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    const uint32_t a = nt_desk_malloc(&d, 11 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 20 * MIB);
    const uint64_t hole = nt_desk_address(&d, a);
    nt_desk_free(&d, a);
    /* 11 MiB are free at the beginning and 9 MiB at the end. */
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 8 * MIB)), hole);
    nt_desk_free(&d, b);
    nt_desk_close(&d);
}

NT_TEST(limit_counts_requests_not_pages)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 45 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 41 * MIB);
    NT_CHECK(a != NT_NONE);
    NT_CHECK_UINT(nt_desk_reserved(&d), 60 * MIB);
    nt_desk_close(&d);
    nt_desk_open(&d, t, "expandable_segments:True", 65 * MIB);
    (void)nt_desk_malloc(&d, 30 * MIB);
    /* 10 MiB are free, and 20 more could be mapped; but all of it is counted. */
    NT_CHECK_UINT(nt_desk_malloc(&d, 28 * MIB), NT_NONE);
    NT_CHECK(nt_desk_malloc(&d, 25 * MIB) == NT_NONE);
    NT_CHECK(nt_desk_malloc(&d, 24 * MIB) != NT_NONE);
    nt_desk_close(&d);
}

NT_TEST(full_device_maps_nothing)
{
    nt_desk d;
    nt_desk_open_with(&d, t, "expandable_segments:True",
                      (nt_allocator_options){.device_total = 50 * MIB});
    NT_CHECK_UINT(nt_desk_malloc(&d, 50 * MIB), NT_NONE);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    NT_CHECK_UINT(nt_desk_stats(&d)->ooms, 1);
    NT_CHECK(nt_desk_malloc(&d, 38 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_malloc(&d, 90 * MIB), NT_NONE);
    nt_desk_close(&d);
}

NT_TEST(private_pools_keep_their_memory)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t pool = nt_desk_pool(&d, 0);
    const uint32_t lane = nt_desk_lane(&d, pool, 0);
    nt_desk_free(&d, nt_desk_malloc_on(&d, lane, 12 * MIB));
    (void)nt_desk_malloc(&d, 12 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 24 * MIB);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 24 * MIB);
    nt_allocator_release_pool(d.model, pool, true);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 12 * MIB);
    nt_desk_close(&d);
}

/* As for a captured graph: the blocks come back where they lay, whatever fits best. */
NT_TEST(blocks_are_restored_in_place)
{
    nt_desk d;
    uint32_t block;
    nt_desk_open(&d, t, "", 0);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    const uint32_t first = nt_desk_malloc_on(&d, lane, 12 * MIB);
    const uint64_t base = nt_desk_address(&d, first);
    nt_desk_free(&d, first);
    NT_CHECK_OK(
        nt_allocator_restore(d.model, lane, base + 4 * MIB, 2 * MIB, 0, &block, NULL),
        NULL);
    NT_REQUIRE(NT_CHECK(block != NT_NONE));
    NT_CHECK_UINT(nt_desk_address(&d, block), base + 4 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, block), 2 * MIB);
    NT_CHECK_STR(nt_allocator_check(d.model), NULL);
    uint32_t other;
    /* Where it is taken, where it ends too late, and where it comes anyway. */
    const uint64_t not_there[] = {base + 5 * MIB, base + 11 * MIB, base, base + 1};
    for (size_t i = 0; i < 4; i++) {
        NT_CHECK_OK(
            nt_allocator_restore(d.model, lane, not_there[i], 2 * MIB, 0, &other, NULL),
            NULL);
        NT_CHECK_UINT(other, NT_NONE);
    }
    nt_desk_free(&d, block);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc_on(&d, lane, 12 * MIB)), base);
    nt_desk_close(&d);
}

/* A block that is put back keeps its size, whatever requests are rounded to, and the
 * segment it was in, whatever requests of its size would get. */
NT_TEST(restored_blocks_keep_size_and_segment)
{
    nt_desk d;
    uint32_t block;
    nt_desk_open(&d, t, "roundup_power2_divisions:1", 0);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    const uint32_t first = nt_desk_malloc_on(&d, lane, MIB / 2);
    const uint64_t base = nt_desk_address(&d, first);
    const uint64_t size = 2 * MIB - MIB / 2;
    NT_CHECK_OK(
        nt_allocator_restore(d.model, lane, base + MIB / 2, size, 0, &block, NULL),
        NULL);
    NT_REQUIRE(NT_CHECK(block != NT_NONE));
    NT_CHECK_UINT(nt_desk_address(&d, block), base + MIB / 2);
    NT_CHECK_UINT(nt_desk_size(&d, block), size);
    NT_CHECK_UINT(nt_desk_stats(&d)->segments, 1);
    nt_desk_free(&d, block);
    nt_desk_free(&d, first);
    nt_desk_close(&d);
}

/* When a pool's owner goes: it is waited for that pool alone, and only its memory goes,
 * that for small requests first. */
NT_TEST(dropped_pool_gives_its_own_memory)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t pool = nt_desk_pool(&d, 0);
    const uint32_t lane = nt_desk_lane(&d, pool, 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 12 * MIB));
    const uint32_t waits = nt_desk_malloc(&d, 30 * MIB);
    nt_desk_free_later(&d, waits);
    nt_desk_free(&d, nt_desk_malloc_on(&d, lane, 14 * MIB));
    nt_desk_free(&d, nt_desk_malloc_on(&d, lane, 512));
    nt_desk_free_later(&d, nt_desk_malloc_on(&d, lane, 40 * MIB));
    const uint32_t kept = nt_desk_malloc_on(&d, lane, 50 * MIB);
    d.deed_count = 0;
    NT_CHECK_OK(nt_allocator_empty_pool(d.model, pool, NULL), NULL);
    NT_CHECK_STR(nt_allocator_check(d.model), NULL);
    NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_FREE_COMPLETED), 1);
    NT_CHECK_UINT(nt_desk_sum(&d, NT_ACTION_SEGMENT_FREE), 56 * MIB);
    NT_CHECK_UINT(d.deeds[1].size, 2 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 92 * MIB);
    nt_desk_complete(&d, waits);
    nt_desk_free(&d, kept);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    nt_desk_close(&d);
}

/* Of pools that nobody uses, the one released last gives its memory back last; the
 * default pool is before them all. */
NT_TEST(released_pools_go_in_their_order)
{
    nt_desk d;
    uint32_t pools[3];
    nt_desk_open(&d, t, "", 0);
    for (size_t i = 0; i < 3; i++) {
        pools[i] = nt_desk_pool(&d, 0);
        const uint32_t lane = nt_desk_lane(&d, pools[i], 0);
        nt_desk_free(&d, nt_desk_malloc_on(&d, lane, (12 + 2 * i) * MIB));
    }
    nt_allocator_release_pool(d.model, pools[0], true);
    nt_allocator_release_pool(d.model, pools[2], true);
    nt_allocator_release_pool(d.model, pools[1], true);
    nt_allocator_release_pool(d.model, pools[0], true);
    nt_allocator_release_pool(d.model, pools[1], false);
    nt_desk_free(&d, nt_desk_malloc(&d, 512));
    d.deed_count = 0;
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(d.deed_count, 3);
    NT_CHECK_UINT(d.deeds[0].size, 2 * MIB);
    NT_CHECK_UINT(d.deeds[1].size, 16 * MIB);
    NT_CHECK_UINT(d.deeds[2].size, 12 * MIB);
    nt_allocator_release_pool(d.model, pools[1], true);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    nt_desk_close(&d);
}

NT_TEST(captures_do_not_retry)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 40 * MIB);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 30 * MIB));
    NT_CHECK_UINT(nt_desk_malloc_on(&d, lane, 12 * MIB), NT_NONE);
    nt_allocator_set_capturing(d.model, true);
    NT_CHECK_UINT(nt_desk_malloc(&d, 32 * MIB), NT_NONE);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    NT_CHECK_UINT(nt_desk_reserved(&d), 30 * MIB);
    nt_allocator_set_capturing(d.model, false);
    NT_CHECK(nt_desk_malloc(&d, 32 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    nt_desk_close(&d);
}

NT_TEST(pools_lend_when_memory_ends)
{
    for (uint32_t minor = 7; minor <= 8; minor++) {
        nt_desk d;
        nt_desk_open_with(&d, t, "expandable_segments:True",
                          (nt_allocator_options){
                              .version = NT_TORCH(2, minor),
                              .device_total = 1024 * MIB,
                              .limit = 30 * MIB,
                          });
        const uint32_t pool =
            nt_desk_pool(&d, NT_POOL_USE_ON_OOM | NT_POOL_OWN_ALLOCATOR);
        const uint32_t lane = nt_desk_lane(&d, pool, 0);
        const uint32_t lent = nt_desk_malloc_on(&d, lane, 30 * MIB);
        NT_CHECK_UINT(nt_desk_stats(&d)->segments, 1);
        nt_desk_free(&d, lent);
        const uint32_t block = nt_desk_malloc(&d, 29 * MIB);
        NT_CHECK((block != NT_NONE) == (minor == 8));
        if (block != NT_NONE) {
            /* Split as in a pool that does not expand. */
            NT_CHECK_UINT(nt_desk_size(&d, block), 30 * MIB);
        }
        nt_desk_close(&d);
    }
}

NT_TEST(unsplit_pools_give_whole_segments)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, NT_POOL_NO_SPLIT), 0);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc_on(&d, lane, 3 * MIB)), 20 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, nt_desk_malloc_on(&d, lane, 512)), 2 * MIB);
    nt_desk_close(&d);
}

NT_TEST(private_pools_expand_since_2_5)
{
    for (uint32_t minor = 4; minor <= 5; minor++) {
        nt_desk d;
        nt_desk_open_with(&d, t, "expandable_segments:True",
                          (nt_allocator_options){
                              .version = NT_TORCH(2, minor),
                              .device_total = 1024 * MIB,
                          });
        const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
        (void)nt_desk_malloc_on(&d, lane, 3 * MIB);
        NT_CHECK_UINT(nt_desk_stats(&d)->segments, minor == 4);
        nt_desk_close(&d);
    }
}

/* The pieces of a small segment, and what is wrong with each list but the first. */
NT_TEST(state_is_adopted_as_it_lies)
{
    nt_desk d;
    uint32_t blocks[3] = {0};
    const nt_allocator_piece pieces[] = {
        {.size = 4 * MIB, .requested = 4 * MIB - 5, .state = NT_PIECE_ALLOCATED},
        {.size = 6 * MIB, .state = NT_PIECE_FREE},
        {.size = 10 * MIB, .requested = 10 * MIB, .state = NT_PIECE_PENDING},
    };
    nt_allocator_area area = {.address = 1 << 30, .pieces = pieces, .count = 3};
    nt_desk_open(&d, t, "", 0);
    NT_CHECK_OK(nt_allocator_adopt(d.model, &area, blocks, NULL), NULL);
    NT_CHECK_UINT(blocks[1], NT_NONE);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->peak[NT_METRIC_ACTIVE], 14 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 5 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, b), (1 << 30) + 4 * MIB);
    NT_CHECK_UINT(nt_desk_size(&d, b), 6 * MIB);
    nt_desk_complete(&d, blocks[2]);
    nt_desk_free(&d, blocks[0]);
    nt_desk_free(&d, b);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    nt_desk_close(&d);
}

NT_TEST(impossible_states_are_refused)
{
    static const nt_allocator_piece wrong[][2] = {
        {{.size = 100}, {.size = 412, .state = NT_PIECE_ALLOCATED}},
        {{.size = 0}, {.size = 512, .state = NT_PIECE_ALLOCATED}},
        {{.size = 512}, {.size = 512}},
        {{.size = 512, .state = NT_PIECE_UNMAPPED}, {.size = 512}},
        {{.size = UINT64_C(1) << 62}, {.size = 512, .state = NT_PIECE_ALLOCATED}},
        {{.size = 512, .requested = 513, .state = NT_PIECE_ALLOCATED}, {.size = 512}},
        {{.size = 512, .requested = UINT64_MAX, .state = NT_PIECE_PENDING},
         {.size = 512}},
    };
    nt_desk d;
    uint32_t blocks[2];
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nt_allocator_area area = {.address = 1 << 30, .pieces = wrong[i], .count = 2};
        (void)NT_CHECK_STATUS(nt_allocator_adopt(d.model, &area, blocks, NULL),
                              NT_ARGUMENT, NULL);
        area.is_reservation = true;
        (void)NT_CHECK_STATUS(nt_allocator_adopt(d.model, &area, blocks, NULL),
                              NT_ARGUMENT, NULL);
    }
    NT_CHECK_UINT(nt_desk_reserved(&d), 0);
    nt_desk_close(&d);
}

NT_TEST(layout_shows_mapped_ranges)
{
    nt_desk d;
    nt_layout *layout = NULL;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    (void)nt_desk_malloc(&d, 30 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 55 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 15 * MIB);
    nt_desk_free(&d, b);
    nt_desk_free_later(&d, c);
    NT_CHECK_OK(nt_allocator_layout(d.model, &layout, NULL), NULL);
    NT_CHECK_UINT(layout->segments.count, 1);
    NT_CHECK_UINT(layout->blocks.count, 3);
    NT_CHECK_UINT(layout->blocks.state[2], NT_BLOCK_ACTIVE_PENDING_FREE);
    NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
    nt_allocator_layout_free(d.model, layout);
    nt_desk_complete(&d, c);
    (void)nt_desk_malloc(&d, 75 * MIB);
    const uint32_t last = nt_desk_malloc(&d, 60 * MIB);
    const uint32_t end = nt_desk_malloc(&d, MIB + 1);
    nt_desk_free(&d, last);
    nt_desk_empty_cache(&d);
    NT_CHECK_OK(nt_allocator_layout(d.model, &layout, NULL), NULL);
    /* A hole splits the range in two. */
    NT_CHECK_UINT(layout->segments.count, 2);
    NT_CHECK(layout->segments.is_expandable[1] != 0);
    NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
    nt_allocator_layout_free(d.model, layout);
    nt_desk_free(&d, end);
    nt_desk_close(&d);
}

const nt_test_case nt_allocator_settings_tests[] = {
    NT_CASE(oversize_blocks_serve_close_requests),
    NT_CASE(oversize_blocks_go_largest_first),
    NT_CASE(one_oversize_block_is_enough),
    NT_CASE(too_few_oversize_blocks_retry),
    NT_CASE(garbage_goes_by_its_age),
    NT_CASE(garbage_stays_without_limit),
    NT_CASE(expandable_segments_map_whole_pages),
    NT_CASE(expandable_blocks_split_to_512),
    NT_CASE(whole_pages_are_unmapped),
    NT_CASE(unmapped_hole_is_used_first),
    NT_CASE(growing_end_is_used_last),
    NT_CASE(limit_counts_requests_not_pages),
    NT_CASE(full_device_maps_nothing),
    NT_CASE(private_pools_keep_their_memory),
    NT_CASE(blocks_are_restored_in_place),
    NT_CASE(restored_blocks_keep_size_and_segment),
    NT_CASE(dropped_pool_gives_its_own_memory),
    NT_CASE(released_pools_go_in_their_order),
    NT_CASE(captures_do_not_retry),
    NT_CASE(pools_lend_when_memory_ends),
    NT_CASE(unsplit_pools_give_whole_segments),
    NT_CASE(private_pools_expand_since_2_5),
    NT_CASE(state_is_adopted_as_it_lies),
    NT_CASE(impossible_states_are_refused),
    NT_CASE(layout_shows_mapped_ranges),
    NT_CASES_END,
};
