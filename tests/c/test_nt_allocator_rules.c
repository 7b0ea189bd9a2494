/* SPDX-License-Identifier: Apache-2.0 */
/* The model where rules meet: expandable segments beside ordinary ones, with oversize
 * rules, with garbage; streams and pools that are left alone; memory that ends halfway.
 */
#include "whatif/nt_allocator.h"

#include "nt_desk.h"
#include "nt_test.h"

#define PLACE (UINT64_C(1) << 34)

/* Segments that happen to touch stay two. */
NT_TEST(blocks_never_cross_segments)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    d.fixed[0] = PLACE;
    d.fixed[1] = PLACE + 12 * MIB;
    d.fixed_count = 2;
    const uint32_t a = nt_desk_malloc(&d, 12 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 12 * MIB);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    (void)nt_desk_malloc(&d, 24 * MIB);
    NT_CHECK_UINT(nt_desk_reserved(&d), 48 * MIB);
    nt_desk_close(&d);
}

NT_TEST(pending_neighbours_stay_apart)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    const uint32_t a = nt_desk_malloc(&d, 5 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 5 * MIB);
    const uint64_t begin = nt_desk_address(&d, a);
    nt_desk_free_later(&d, b);
    nt_desk_free(&d, a);
    /* 5 free, 5 pending and 10 free MiB. */
    NT_CHECK(nt_desk_address(&d, nt_desk_malloc(&d, 9 * MIB)) == begin + 10 * MIB);
    nt_desk_complete(&d, b);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 9 * MIB)), begin);
    NT_CHECK_UINT(nt_desk_reserved(&d), 20 * MIB);
    nt_desk_close(&d);
}

/* PyTorch writes the rounded size of what failed, not its segment's. */
NT_TEST(failure_tells_the_rounded_request)
{
    nt_desk d;
    nt_desk_open(&d, t, "roundup_power2_divisions:2", 16 * MIB);
    (void)nt_desk_malloc(&d, 15 * MIB);
    NT_CHECK_UINT(nt_desk_malloc(&d, 1), NT_NONE);
    NT_CHECK_UINT(nt_desk_malloc(&d, 5 * MIB), NT_NONE);
    NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_OOM), 2);
    NT_CHECK_UINT(nt_desk_sum(&d, NT_ACTION_OOM), 512 + 6 * MIB);
    nt_desk_close(&d);
}

/* What is oversize on another stream goes only with all the rest. */
NT_TEST(oversize_release_keeps_other_streams)
{
    nt_desk d;
    nt_desk_open(&d, t, "max_split_size_mb:64", 200 * MIB);
    const uint32_t other = nt_desk_lane(&d, NT_DEFAULT_POOL, 0x77);
    const uint32_t small = nt_desk_malloc(&d, 512);
    nt_desk_free(&d, nt_desk_malloc_on(&d, other, 120 * MIB));
    nt_desk_free(&d, small);
    NT_CHECK(nt_desk_malloc(&d, 100 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 2);
    nt_desk_close(&d);
}

/* Only large segments of the default pool are garbage. */
NT_TEST(garbage_is_large_and_public)
{
    nt_desk d;
    nt_desk_open(&d, t, "garbage_collection_threshold:0.2", 200 * MIB);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    nt_desk_free(&d, nt_desk_malloc(&d, 512));
    nt_desk_free(&d, nt_desk_malloc_on(&d, lane, 30 * MIB));
    nt_desk_free(&d, nt_desk_malloc(&d, 40 * MIB));
    d.deed_count = 0;
    NT_CHECK(nt_desk_malloc(&d, 50 * MIB) != NT_NONE);
    NT_CHECK_UINT(d.deed_count, 2);
    NT_CHECK_INT(d.deeds[0].action, NT_ACTION_SEGMENT_FREE);
    NT_CHECK_UINT(d.deeds[0].size, 40 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    nt_desk_close(&d);
}

/* What is mapped is no garbage: it goes only when memory is short. */
NT_TEST(garbage_is_never_expandable)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True,garbage_collection_threshold:0.2",
                 100 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 30 * MIB);
    (void)nt_desk_malloc(&d, 20 * MIB);
    nt_desk_free(&d, a);
    d.deed_count = 0;
    NT_CHECK(nt_desk_malloc(&d, 39 * MIB) != NT_NONE);
    NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_SEGMENT_UNMAP), 0);
    NT_CHECK_UINT(nt_desk_reserved(&d), 100 * MIB);
    NT_CHECK(nt_desk_malloc(&d, 31 * MIB) == NT_NONE);
    NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_SEGMENT_UNMAP), 1);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    nt_desk_close(&d);
}

/* Memory from before the settings changed: 60 MiB that are free, and with `count` 2 a
 * block of 20 MiB behind them. */
static void
rules_adopt(nt_desk *d, nt_test *t, bool is_reservation, size_t count)
{
    const nt_allocator_piece pieces[] = {
        {.size = 60 * MIB, .state = NT_PIECE_FREE},
        {.size = 20 * MIB, .requested = 20 * MIB, .state = NT_PIECE_ALLOCATED},
    };
    uint32_t blocks[2];
    const nt_allocator_area area = {
        .address = PLACE,
        .lane = d->lane,
        .is_reservation = is_reservation,
        .pieces = pieces,
        .count = count,
    };
    NT_CHECK_OK(nt_allocator_adopt(d->model, &area, blocks, NULL), NULL);
    d->deed_count = 0;
}

/* Not even where all of a range is free. Its age counts all the same, so that what came
 * after it is younger than the average; that of a part of a range does not. */
NT_TEST(mapped_ranges_are_no_garbage)
{
    for (size_t count = 1; count <= 2; count++) {
        nt_desk d;
        nt_desk_open(&d, t, "garbage_collection_threshold:0.2", 200 * MIB);
        rules_adopt(&d, t, true, count);
        const uint64_t before = nt_desk_reserved(&d);
        nt_desk_free(&d, nt_desk_malloc(&d, 40 * MIB));
        d.deed_count = 0;
        NT_CHECK(nt_desk_malloc(&d, 50 * MIB) != NT_NONE);
        NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_SEGMENT_UNMAP), 0);
        NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_SEGMENT_FREE), count - 1);
        NT_CHECK_UINT(nt_desk_reserved(&d), before + (count == 1 ? 90 : 50) * MIB);
        nt_desk_close(&d);
    }
}

NT_TEST(mapped_memory_serves_expandable_requests_only)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 0);
    rules_adopt(&d, t, true, 2);
    const uint32_t a = nt_desk_malloc(&d, 50 * MIB);
    NT_CHECK(nt_desk_address(&d, a) != PLACE);
    NT_CHECK_INT(d.deeds[0].action, NT_ACTION_SEGMENT_ALLOC);
    /* It can go all the same, after what is not expandable, though that is larger. */
    nt_desk_free(&d, a);
    nt_desk_free(&d, nt_desk_malloc(&d, 70 * MIB));
    d.deed_count = 0;
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(d.deed_count, 3);
    NT_CHECK_UINT(d.deeds[0].size, 50 * MIB);
    NT_CHECK_UINT(d.deeds[1].size, 70 * MIB);
    NT_CHECK_INT(d.deeds[2].action, NT_ACTION_SEGMENT_UNMAP);
    NT_CHECK_UINT(d.deeds[2].size, 60 * MIB);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 3);
    nt_desk_close(&d);
}

/* And is split as finely as what is mapped. */
NT_TEST(ordinary_memory_serves_expandable_requests)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True", 0);
    rules_adopt(&d, t, false, 2);
    const uint32_t a = nt_desk_malloc(&d, 60 * MIB - 512);
    NT_CHECK_UINT(nt_desk_address(&d, a), PLACE);
    NT_CHECK_UINT(nt_desk_size(&d, a), 60 * MIB - 512);
    NT_CHECK_UINT(d.deed_count, 0);
    nt_desk_close(&d);
}

/* Oversize rules hold for mapped blocks too, but for splitting. */
NT_TEST(oversize_rules_hold_for_mapped_blocks)
{
    nt_desk d;
    nt_desk_open(&d, t, "expandable_segments:True,max_split_size_mb:64", 0);
    const uint32_t a = nt_desk_malloc(&d, 100 * MIB);
    const uint32_t kept = nt_desk_malloc(&d, 20 * MIB);
    const uint64_t begin = nt_desk_address(&d, a);
    nt_desk_free(&d, a);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 50 * MIB)), begin + 120 * MIB);
    const uint32_t c = nt_desk_malloc(&d, 90 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, c), begin);
    NT_CHECK_UINT(nt_desk_size(&d, c), 90 * MIB);
    nt_desk_free(&d, kept);
    nt_desk_close(&d);
}

/* An address range ends: two holes and an end too small for a request make another.
 * What a hole just holds goes into it. */
NT_TEST(full_address_range_gets_another)
{
    nt_desk d;
    nt_desk_open_with(&d, t, "expandable_segments:True",
                      (nt_allocator_options){.device_total = 240 * MIB});
    NT_CHECK_UINT(nt_allocator_reservation_size(d.model, false), 280 * MIB);
    NT_CHECK_UINT(nt_allocator_reservation_size(d.model, true), 270 * MIB);
    const uint32_t a = nt_desk_malloc(&d, 80 * MIB);
    (void)nt_desk_malloc(&d, 20 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 80 * MIB);
    (void)nt_desk_malloc(&d, 20 * MIB);
    const uint64_t base = nt_desk_address(&d, a);
    nt_desk_free(&d, a);
    nt_desk_free(&d, b);
    nt_desk_empty_cache(&d);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    NT_CHECK(nt_desk_address(&d, nt_desk_malloc(&d, 90 * MIB)) >= base + 280 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 80 * MIB)), base);
    NT_CHECK_UINT(nt_desk_reserved(&d), 220 * MIB);
    nt_desk_close(&d);
}

/* Two pieces are to be mapped, and the device has room for the first only: it stays. */
NT_TEST(half_mapped_request_keeps_its_pages)
{
    nt_desk d;
    nt_desk_open_with(&d, t, "expandable_segments:True",
                      (nt_allocator_options){.device_total = 100 * MIB});
    const uint32_t a = nt_desk_malloc(&d, 40 * MIB);
    const uint32_t b = nt_desk_malloc(&d, 40 * MIB);
    const uint64_t base = nt_desk_address(&d, a);
    nt_desk_free(&d, a);
    nt_desk_empty_cache(&d);
    nt_desk_free(&d, b);
    NT_CHECK_UINT(nt_desk_reserved(&d), 40 * MIB);
    nt_allocator_set_capturing(d.model, true);
    d.deed_count = 0;
    /* 40 MiB unmapped, 40 free and 40 unmapped lie there. */
    NT_CHECK_UINT(nt_desk_malloc(&d, 118 * MIB), NT_NONE);
    NT_CHECK_UINT(nt_desk_count(&d, NT_ACTION_SEGMENT_MAP), 1);
    NT_CHECK_UINT(d.deeds[0].address, base);
    NT_CHECK_UINT(nt_desk_reserved(&d), 80 * MIB);
    NT_CHECK_UINT(nt_desk_address(&d, nt_desk_malloc(&d, 80 * MIB)), base);
    nt_desk_close(&d);
}

/* Only requests of the default pool borrow, and before anything is given back. */
NT_TEST(private_requests_borrow_nothing)
{
    nt_desk d;
    nt_desk_open(&d, t, "", 60 * MIB);
    const uint32_t lends = nt_desk_lane(&d, nt_desk_pool(&d, NT_POOL_USE_ON_OOM), 0);
    const uint32_t other = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    const uint32_t foreign = nt_desk_lane(&d, NT_DEFAULT_POOL, 0x77);
    nt_desk_free(&d, nt_desk_malloc_on(&d, lends, 30 * MIB));
    nt_desk_free(&d, nt_desk_malloc(&d, 20 * MIB));
    NT_CHECK_UINT(nt_desk_malloc_on(&d, other, 25 * MIB), NT_NONE);
    const uint32_t lent = nt_desk_malloc(&d, 25 * MIB);
    NT_REQUIRE(NT_CHECK(lent != NT_NONE));
    NT_CHECK_UINT(nt_allocator_lane(d.model, lent), lends);
    NT_CHECK_UINT(nt_desk_stats(&d)->device_frees, 0);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 0);
    nt_desk_free(&d, lent);
    /* Nor does another stream: its request takes what the cache gives back. */
    const uint32_t own = nt_desk_malloc_on(&d, foreign, 25 * MIB);
    NT_REQUIRE(NT_CHECK(own != NT_NONE));
    NT_CHECK_UINT(nt_allocator_lane(d.model, own), foreign);
    NT_CHECK_UINT(nt_desk_stats(&d)->retries, 1);
    nt_desk_close(&d);
}

/* A block that is put back is not rounded again, even where best fit leads there. */
NT_TEST(restored_block_is_not_rounded_again)
{
    nt_desk d;
    uint32_t block;
    nt_desk_open(&d, t, "roundup_power2_divisions:2", 0);
    const uint32_t lane = nt_desk_lane(&d, nt_desk_pool(&d, 0), 0);
    const uint64_t size = 5 * MIB;
    const uint32_t probe = nt_desk_malloc_on(&d, lane, size);
    const uint64_t base = nt_desk_address(&d, probe);
    NT_CHECK_UINT(nt_desk_size(&d, probe), 6 * MIB);
    nt_desk_free(&d, probe);
    NT_CHECK(nt_allocator_leads_to(d.model, lane, size, base));
    NT_CHECK(!nt_allocator_leads_to(d.model, lane, size, base + 512));
    NT_CHECK(!nt_allocator_leads_to(d.model, lane, 0, base));
    NT_CHECK_OK(nt_allocator_restore(d.model, lane, base, size, 0, &block, NULL), NULL);
    NT_REQUIRE(NT_CHECK(block != NT_NONE));
    NT_CHECK_UINT(nt_desk_size(&d, block), size);
    NT_CHECK_UINT(nt_desk_address(&d, block), base);
    NT_CHECK_STR(nt_allocator_check(d.model), NULL);
    nt_desk_close(&d);
}

const nt_test_case nt_allocator_rules_tests[] = {
    NT_CASE(blocks_never_cross_segments),
    NT_CASE(pending_neighbours_stay_apart),
    NT_CASE(failure_tells_the_rounded_request),
    NT_CASE(oversize_release_keeps_other_streams),
    NT_CASE(garbage_is_large_and_public),
    NT_CASE(garbage_is_never_expandable),
    NT_CASE(mapped_ranges_are_no_garbage),
    NT_CASE(mapped_memory_serves_expandable_requests_only),
    NT_CASE(ordinary_memory_serves_expandable_requests),
    NT_CASE(oversize_rules_hold_for_mapped_blocks),
    NT_CASE(full_address_range_gets_another),
    NT_CASE(half_mapped_request_keeps_its_pages),
    NT_CASE(private_requests_borrow_nothing),
    NT_CASE(restored_block_is_not_rounded_again),
    NT_CASES_END,
};
