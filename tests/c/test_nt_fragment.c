/* SPDX-License-Identifier: Apache-2.0 */
#include "fragmentation/nt_fragment.h"

#include "nt_blocks.h"
#include "nt_test.h"
#include "trace/nt_rounding.h"

#define MIB UINT64_C(1048576)

#define FREE(l, size) nt_blocks_add(t, l, NT_BLOCK_INACTIVE, size)
#define USED(l, size) nt_blocks_add(t, l, NT_BLOCK_ACTIVE_ALLOCATED, size)
#define PENDING(l, size) nt_blocks_add(t, l, NT_BLOCK_ACTIVE_PENDING_FREE, size)

/* The only group of what holds one. */
static nt_fragment_group
fragment_group(nt_test *t, const nt_fragment *fragment)
{
    size_t count = 0;
    const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
    return NT_CHECK_UINT(count, 1) ? groups[0] : (nt_fragment_group){0};
}

NT_TEST(empty_layout_has_no_groups)
{
    const nt_layout layout = {0};
    nt_fragment *fragment = nt_blocks_fragment(t, &layout, NULL, -1);
    size_t holes, groups, segments;
    (void)nt_fragment_holes(fragment, &holes);
    (void)nt_fragment_groups(fragment, &groups);
    (void)nt_fragment_segments(fragment, &segments);
    NT_CHECK_UINT(holes + groups + segments, 0);
    NT_CHECK(!nt_fragment_fits(fragment, 0, (nt_pool_id){0, 0}, 0, 1));
    nt_fragment_free(fragment);
    nt_fragment_free(NULL);
}

NT_TEST(group_sums_its_segments)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l, (nt_segment){.address = 0x1000000, .kind = NT_POOL_LARGE});
    USED(&l, 4 * MIB);
    FREE(&l, 6 * MIB);
    PENDING(&l, 2 * MIB);
    FREE(&l, 8 * MIB);
    nt_blocks_segment(t, &l, (nt_segment){.address = 0x9000000, .kind = NT_POOL_LARGE});
    USED(&l, 20 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    const nt_fragment_group group = fragment_group(t, fragment);
    NT_CHECK_INT(group.device, 0);
    NT_CHECK_UINT(group.kind, NT_POOL_LARGE);
    NT_CHECK_UINT(group.segments, 2);
    NT_CHECK_UINT(group.blocks, 5);
    NT_CHECK_UINT(group.holes, 2);
    NT_CHECK_UINT(group.reserved, 40 * MIB);
    NT_CHECK_UINT(group.allocated, 24 * MIB);
    NT_CHECK_UINT(group.active, 26 * MIB);
    NT_CHECK_UINT(group.pending, 2 * MIB);
    NT_CHECK_UINT(group.requested, 26 * MIB - 3);
    NT_CHECK_UINT(group.largest_hole, 8 * MIB);
    NT_CHECK_UINT(group.largest_request, 8 * MIB);
    NT_CHECK_UINT(group.reclaimable, 0);
    NT_CHECK(!group.has_expandable);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(holes_know_what_pins_them)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l, (nt_segment){.address = 0x1000000, .kind = NT_POOL_LARGE});
    FREE(&l, 2 * MIB);
    USED(&l, 3 * MIB);
    FREE(&l, 7 * MIB);
    PENDING(&l, 1 * MIB);
    USED(&l, 1 * MIB);
    FREE(&l, 6 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, -1);
    static const nt_hole expected[] = {
        {2, 0, 0x1000000 + 5 * 0x100000, 7 * 0x100000, 1, 3},
        {5, 0, 0x1000000 + 14 * 0x100000, 6 * 0x100000, 4, NT_NONE},
        {0, 0, 0x1000000, 2 * 0x100000, NT_NONE, 1},
    };
    size_t count;
    const nt_hole *holes = nt_fragment_holes(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 3));
    for (size_t i = 0; i < 3; i++) {
        NT_CHECK_UINT(holes[i].block, expected[i].block);
        NT_CHECK_UINT(holes[i].segment, expected[i].segment);
        NT_CHECK_UINT(holes[i].address, expected[i].address);
        NT_CHECK_UINT(holes[i].size, expected[i].size);
        NT_CHECK_UINT(holes[i].before, expected[i].before);
        NT_CHECK_UINT(holes[i].after, expected[i].after);
    }
    const nt_fragment_segment *segment = nt_fragment_segments(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 1));
    NT_CHECK_UINT(segment->holes, 3);
    NT_CHECK_UINT(segment->free_bytes, 15 * MIB);
    NT_CHECK_UINT(segment->largest_hole, 7 * MIB);
    /* The pending and the used MiB are alike: the first counts. */
    NT_CHECK_UINT(segment->pinned_by, 3);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(holes_of_equal_size_keep_order)
{
    nt_blocks l = nt_blocks_new();
    for (uint64_t i = 0; i < 40; i++) {
        nt_blocks_segment(t, &l,
                          (nt_segment){.address = (40 - i) << 32, .stream = i % 3});
        USED(&l, 1024);
        FREE(&l, 2048);
    }
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, -1);
    size_t count;
    const nt_hole *holes = nt_fragment_holes(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 40));
    for (uint32_t i = 0; i < 40; i++) {
        NT_CHECK_UINT(holes[i].segment, i);
    }
    const nt_fragment_segment *segments = nt_fragment_segments(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 40));
    for (uint32_t i = 0; i < 40; i++) {
        NT_CHECK_UINT(segments[i].segment, i);
    }
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(unsplit_free_segments_are_reclaimable)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = 0x10000000, .kind = NT_POOL_LARGE});
    FREE(&l, 20 * MIB);
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = 0x20000000, .kind = NT_POOL_LARGE});
    FREE(&l, 19 * MIB);
    USED(&l, 512);
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = 0x30000000, .kind = NT_POOL_LARGE});
    USED(&l, 20 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    NT_CHECK_UINT(nt_blocks_reclaimable(fragment), 20 * MIB);
    size_t count;
    const nt_fragment_segment *segments = nt_fragment_segments(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 3));
    NT_CHECK_UINT(segments[0].reclaimable, 20 * MIB);
    NT_CHECK_UINT(segments[0].pinned_by, NT_NONE);
    NT_CHECK_UINT(segments[1].reclaimable, 0);
    NT_CHECK_UINT(segments[1].pinned_by, 2);
    NT_CHECK_UINT(segments[2].reclaimable, 0);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(pending_blocks_pin_no_segment)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = 0x10000000, .kind = NT_POOL_LARGE});
    PENDING(&l, 3 * MIB);
    FREE(&l, 2 * MIB);
    PENDING(&l, 15 * MIB);
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = 0x20000000, .kind = NT_POOL_SMALL});
    PENDING(&l, MIB);
    USED(&l, MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    NT_CHECK_UINT(nt_blocks_reclaimable(fragment), 20 * MIB);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(expandable_segments_give_whole_pages)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = UINT64_C(0x302000000),
                                   .kind = NT_POOL_LARGE,
                                   .is_expandable = true});
    USED(&l, 1 * MIB);
    FREE(&l, 38 * MIB); /* 1 to 39: not one page of 20 */
    USED(&l, 1 * MIB);
    FREE(&l, 25 * MIB);    /* 40 to 65: one page, */
    PENDING(&l, 20 * MIB); /* and with these up to 85 a second */
    USED(&l, 15 * MIB);
    FREE(&l, 20 * MIB); /* 100 to 120: one */
    nt_blocks_segment(t, &l,
                      (nt_segment){.address = UINT64_C(0x402000000),
                                   .kind = NT_POOL_SMALL,
                                   .is_expandable = true});
    USED(&l, 512);
    FREE(&l, 6 * MIB - 512); /* two pages of 2 */
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    size_t count;
    const nt_fragment_segment *segments = nt_fragment_segments(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 2));
    NT_CHECK_UINT(segments[0].reclaimable, 60 * MIB);
    NT_CHECK_UINT(segments[1].reclaimable, 4 * MIB);
    NT_CHECK_UINT(nt_blocks_reclaimable(fragment), 64 * MIB);
    NT_CHECK(nt_fragment_groups(fragment, &count)[0].has_expandable);
    nt_fragment_free(fragment);
    nt_settings settings = nt_settings_default();
    settings.large_segment_size = 40 * MIB;
    fragment = nt_blocks_fragment(t, &l.layout, &settings, 0);
    NT_CHECK_UINT(nt_blocks_reclaimable(fragment), 44 * MIB);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(private_pools_give_nothing_back)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l, (nt_segment){.address = 1 << 28, .pool = {0, 1}});
    FREE(&l, 2 * MIB);
    nt_blocks_segment(t, &l, (nt_segment){.address = 2 << 28, .pool = {1, 0}});
    FREE(&l, 2 * MIB);
    nt_blocks_segment(
        t, &l, (nt_segment){.address = 3 << 28, .pool = {0, 2}, .is_expandable = true});
    FREE(&l, 8 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    size_t count;
    const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 3));
    NT_CHECK_UINT(nt_blocks_reclaimable(fragment), 0);
    /* Their free blocks serve their own requests all the same. */
    NT_CHECK_UINT(groups[0].largest_request, MIB);
    NT_CHECK(nt_fragment_fits(fragment, 0, (nt_pool_id){1, 0}, 0, MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, (nt_pool_id){0, 0}, 0, 512));
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(each_difference_makes_a_group)
{
    nt_blocks l = nt_blocks_new();
    const nt_segment segments[] = {
        {.address = 1 << 28},
        {.address = 2 << 28, .device = 1},
        {.address = 3 << 28, .stream = 1},
        {.address = 4 << 28, .pool = {1, 0}},
        {.address = 5 << 28, .pool = {0, 1}},
        {.address = UINT64_C(6) << 28, .kind = NT_POOL_LARGE},
    };
    for (size_t twice = 0; twice < 2; twice++) {
        for (size_t i = 0; i < 6; i++) {
            nt_blocks_segment(t, &l, segments[i]);
            USED(&l, (i + 1) * 1024);
        }
    }
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, -1);
    size_t count;
    const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 6));
    for (size_t i = 0; i < 6; i++) {
        /* Largest first: in the opposite order. */
        const nt_segment *segment = &segments[5 - i];
        NT_CHECK_UINT(groups[i].segments, 2);
        NT_CHECK_UINT(groups[i].reserved, 2 * (6 - i) * 1024);
        NT_CHECK_INT(groups[i].device, segment->device);
        NT_CHECK_UINT(groups[i].stream, segment->stream);
        NT_CHECK_UINT(groups[i].kind, segment->kind);
        NT_CHECK_UINT(groups[i].pool.first, segment->pool.first);
        NT_CHECK_UINT(groups[i].pool.second, segment->pool.second);
    }
    nt_fragment_free(fragment);
    fragment = nt_blocks_fragment(t, &l.layout, NULL, 1);
    NT_CHECK_INT(fragment_group(t, fragment).device, 1);
    (void)nt_fragment_segments(fragment, &count);
    NT_CHECK_UINT(count, 2);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(many_streams_make_many_groups)
{
    enum { STREAMS = 20000 };
    nt_blocks l = nt_blocks_new();
    for (uint64_t i = 0; i < STREAMS; i++) {
        nt_blocks_segment(t, &l, (nt_segment){.address = i << 28, .stream = i * 4096});
        FREE(&l, 1024 + i * 512);
    }
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    size_t count;
    const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, STREAMS));
    for (uint64_t i = 0; i < STREAMS; i++) {
        NT_REQUIRE(NT_CHECK_UINT(groups[i].stream, (STREAMS - 1 - i) * 4096));
    }
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(request_fits_its_own_pool_only)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l, (nt_segment){.address = 1 << 28, .stream = 7});
    USED(&l, 512);
    FREE(&l, 2 * MIB - 512);
    nt_blocks_segment(t, &l, (nt_segment){.address = 2 << 28, .kind = NT_POOL_LARGE});
    USED(&l, 12 * MIB);
    FREE(&l, 8 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    const nt_pool_id pool = {0, 0};
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 7, MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 7, MIB + 1));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, MIB));
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, MIB + 1));
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, 8 * MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, 8 * MIB + 1));
    NT_CHECK(!nt_fragment_fits(fragment, 1, pool, 0, 8 * MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, (nt_pool_id){0, 1}, 0, 8 * MIB));
    NT_CHECK(nt_fragment_fits(fragment, 1, pool, 5, 0));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, UINT64_MAX));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, NT_LARGEST_REQUEST + 1));
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(oversize_rules_keep_blocks_back)
{
    nt_blocks l = nt_blocks_new();
    nt_settings settings = nt_settings_default();
    settings.max_split_size = 64 * MIB;
    nt_blocks_segment(t, &l, (nt_segment){.address = 1 << 28, .kind = NT_POOL_LARGE});
    USED(&l, 10 * MIB);
    FREE(&l, 10 * MIB);
    nt_blocks_segment(t, &l, (nt_segment){.address = 2 << 28, .kind = NT_POOL_LARGE});
    FREE(&l, 100 * MIB);
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, &settings, 0);
    const nt_pool_id pool = {0, 0};
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, 10 * MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, 11 * MIB));
    NT_CHECK(!nt_fragment_fits(fragment, 0, pool, 0, 80 * MIB));
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, 80 * MIB + 1));
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, 100 * MIB));
    NT_CHECK_UINT(fragment_group(t, fragment).largest_request, 100 * MIB);
    nt_fragment_free(fragment);
    fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    NT_CHECK(nt_fragment_fits(fragment, 0, pool, 0, 11 * MIB));
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

NT_TEST(cut_files_have_holes_without_neighbours)
{
    nt_blocks l = nt_blocks_new();
    nt_blocks_segment(t, &l, (nt_segment){.address = 1 << 28});
    USED(&l, 1024);
    l.end += 512;
    FREE(&l, 1024);
    FREE(&l, 1024);
    l.end = 1 << 20;
    USED(&l, 1024);
    nt_blocks_segment(t, &l, (nt_segment){.address = UINT64_MAX - 511});
    FREE(&l, UINT64_MAX - 511);
    FREE(&l, UINT64_MAX - 511);
    nt_blocks_segment(t, &l, (nt_segment){.is_expandable = true});
    l.end = UINT64_MAX - 511;
    FREE(&l, UINT64_MAX - 511);
    nt_blocks_segment(t, &l, (nt_segment){.address = 4 << 28});
    nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, NULL, 0);
    size_t count;
    const nt_hole *holes = nt_fragment_holes(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 5));
    for (size_t i = 0; i < 5; i++) {
        NT_CHECK_UINT(holes[i].before, NT_NONE);
        NT_CHECK_UINT(holes[i].after, NT_NONE);
    }
    const nt_fragment_segment *segments = nt_fragment_segments(fragment, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 4));
    NT_CHECK_UINT(segments[3].free_bytes, 0);
    NT_CHECK_UINT(segments[3].reclaimable, 0);
    NT_CHECK_UINT(segments[3].pinned_by, NT_NONE);
    nt_fragment_free(fragment);
    nt_blocks_clear(&l);
}

static nt_status
fragment_build(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const nt_settings settings = nt_settings_default();
    nt_fragment *fragment = NULL;
    nt_error err = {0};
    const nt_status status =
        nt_fragment_new(alloc, ctx, &settings, -1, &fragment, &err);
    NT_CHECK((status == NT_OK) == (fragment != NULL));
    NT_CHECK_INT(err.status, status);
    nt_fragment_free(fragment);
    return status;
}

NT_TEST(fragment_survives_every_refusal)
{
    uint64_t seed = 3;
    nt_blocks l = nt_blocks_new();
    /* Enough of everything for each array to grow more than once. */
    for (uint64_t i = 0; i < 120; i++) {
        nt_blocks_segment(t, &l, (nt_segment){.address = i << 28, .stream = i / 2});
        for (int k = 0; k < 4; k++) {
            FREE(&l, 512 + nt_test_random(&seed) % 99 * 512);
            USED(&l, 512);
        }
    }
    nt_test_sweep(t, fragment_build, &l.layout);
    nt_blocks_clear(&l);
}

const nt_test_case nt_fragment_tests[] = {
    NT_CASE(empty_layout_has_no_groups),
    NT_CASE(group_sums_its_segments),
    NT_CASE(holes_know_what_pins_them),
    NT_CASE(holes_of_equal_size_keep_order),
    NT_CASE(unsplit_free_segments_are_reclaimable),
    NT_CASE(pending_blocks_pin_no_segment),
    NT_CASE(expandable_segments_give_whole_pages),
    NT_CASE(private_pools_give_nothing_back),
    NT_CASE(each_difference_makes_a_group),
    NT_CASE(many_streams_make_many_groups),
    NT_CASE(request_fits_its_own_pool_only),
    NT_CASE(oversize_rules_keep_blocks_back),
    NT_CASE(cut_files_have_holes_without_neighbours),
    NT_CASE(fragment_survives_every_refusal),
    NT_CASES_END,
};
