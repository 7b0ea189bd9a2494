/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_rounding.h"

#include "nt_test.h"

#define KIB UINT64_C(1024)
#define MIB UINT64_C(1048576)
#define GIB UINT64_C(1073741824)

static nt_settings
rounding_settings(uint32_t divisions)
{
    nt_settings settings = nt_settings_default();
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        settings.roundup_power2_divisions[i] = divisions;
    }
    return settings;
}

NT_TEST(requests_become_multiples_of_512)
{
    static const uint64_t cases[][2] = {
        {0, 512},
        {1, 512},
        {511, 512},
        {512, 512},
        {513, 1024},
        {1024, 1024},
        {MIB - 1, MIB},
        {MIB, MIB},
        {MIB + 1, MIB + 512},
        {3 * GIB + 1, 3 * GIB + 512},
    };
    const nt_settings usual = nt_settings_default();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        NT_CHECK_UINT(nt_round_size(&usual, cases[i][0]), cases[i][1]);
    }
}

NT_TEST(divisions_split_powers_of_two)
{
    static const struct {
        uint32_t divisions;
        uint64_t nbytes, rounded;
    } cases[] = {
        /* Up to 512 bytes a division the multiples of 512 are kept. */
        {4, 1200, 1536},
        {4, 2048, 2048},
        {4, 2049, 2560},
        {4, 5 * MIB + 1, 6 * MIB},
        {4, 8 * MIB, 8 * MIB},
        {4, 8 * MIB + 1, 10 * MIB},
        {2, 5 * MIB, 6 * MIB},
        {2, 6 * MIB + 1, 8 * MIB},
        {8, 9 * MIB, 9 * MIB},
        {8, 9 * MIB + 512, 10 * MIB},
        {1, 5 * MIB + 1, 5 * MIB + 512},
        {0, 5 * MIB + 1, 5 * MIB + 512},
        {UINT32_C(1) << 31, 5 * MIB + 1, 5 * MIB + 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const nt_settings settings = rounding_settings(cases[i].divisions);
        NT_CHECK_UINT(nt_round_size(&settings, cases[i].nbytes), cases[i].rounded);
    }
}

NT_TEST(interval_of_request_picks_divisions)
{
    nt_settings settings = nt_settings_default();
    settings.roundup_power2_divisions[0] = 2;
    settings.roundup_power2_divisions[1] = 4;
    settings.roundup_power2_divisions[NT_ROUNDUP_INTERVALS - 1] = 8;
    /* The first entry also stands for requests below a MiB. */
    NT_CHECK_UINT(nt_round_size(&settings, 65 * KIB), 96 * KIB);
    NT_CHECK_UINT(nt_round_size(&settings, 3 * MIB / 2), 3 * MIB / 2);
    NT_CHECK_UINT(nt_round_size(&settings, 3 * MIB / 2 + 1), 2 * MIB);
    NT_CHECK_UINT(nt_round_size(&settings, 2 * MIB + 1), 5 * MIB / 2);
    NT_CHECK_UINT(nt_round_size(&settings, 4 * MIB + 1), 4 * MIB + 512);
    /* From 32 GiB on the last one. */
    NT_CHECK_UINT(nt_round_size(&settings, 32 * GIB - 1), 32 * GIB);
    NT_CHECK_UINT(nt_round_size(&settings, 32 * GIB + 1), 36 * GIB);
    NT_CHECK_UINT(nt_round_size(&settings, 128 * GIB + 1), 144 * GIB);
}

NT_TEST(largest_requests_do_not_wrap)
{
    static const uint32_t divisions[] = {0, 4, UINT32_C(1) << 31};
    for (size_t i = 0; i < 3; i++) {
        const nt_settings settings = rounding_settings(divisions[i]);
        NT_CHECK_UINT(nt_round_size(&settings, NT_LARGEST_REQUEST - 1),
                      NT_LARGEST_REQUEST);
        NT_CHECK_UINT(nt_round_size(&settings, NT_LARGEST_REQUEST), NT_LARGEST_REQUEST);
        NT_CHECK_UINT(nt_round_size(&settings, UINT64_MAX), NT_LARGEST_REQUEST);
        NT_CHECK_UINT(nt_segment_size(&settings, NT_LARGEST_REQUEST),
                      NT_LARGEST_REQUEST);
    }
}

NT_TEST(rounded_size_decides_the_pool)
{
    const nt_settings settings = rounding_settings(2);
    NT_CHECK(nt_is_small(512));
    NT_CHECK(nt_is_small(MIB));
    NT_CHECK(!nt_is_small(MIB + 512));
    NT_CHECK(nt_is_small(nt_round_size(&settings, MIB - 1)));
    NT_CHECK(!nt_is_small(nt_round_size(&settings, MIB + 1)));
}

NT_TEST(segments_come_in_three_sizes)
{
    nt_settings settings = nt_settings_default();
    NT_CHECK_UINT(nt_segment_size(&settings, 512), 2 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, MIB), 2 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, MIB + 512), 20 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, 10 * MIB - 512), 20 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, 10 * MIB), 10 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, 10 * MIB + 512), 12 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, 3 * GIB), 3 * GIB);
    NT_CHECK_UINT(nt_page_size(&settings, true), 2 * MIB);
    NT_CHECK_UINT(nt_page_size(&settings, false), 20 * MIB);
    settings.large_segment_size = 32 * MIB;
    NT_CHECK_UINT(nt_segment_size(&settings, MIB), 2 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, MIB + 512), 32 * MIB);
    NT_CHECK_UINT(nt_segment_size(&settings, 11 * MIB), 12 * MIB);
    NT_CHECK_UINT(nt_page_size(&settings, true), 2 * MIB);
    NT_CHECK_UINT(nt_page_size(&settings, false), 32 * MIB);
}

NT_TEST(split_leaves_a_useful_rest)
{
    nt_settings settings = nt_settings_default();
    /* In a small pool any rest is kept. */
    NT_CHECK(nt_should_split(&settings, 1024, 512, true, false));
    NT_CHECK(!nt_should_split(&settings, 512, 512, true, false));
    /* In a large one only what exceeds a MiB, unless segments can grow. */
    NT_CHECK(!nt_should_split(&settings, 3 * MIB, 2 * MIB, false, false));
    NT_CHECK(nt_should_split(&settings, 3 * MIB + 512, 2 * MIB, false, false));
    NT_CHECK(nt_should_split(&settings, 2 * MIB + 512, 2 * MIB, false, true));
    NT_CHECK(!nt_should_split(&settings, 2 * MIB, 2 * MIB, false, true));
    /* An oversize request gets the whole block. */
    settings.max_split_size = 20 * MIB;
    NT_CHECK(nt_should_split(&settings, 40 * MIB, 20 * MIB - 512, false, false));
    NT_CHECK(!nt_should_split(&settings, 40 * MIB, 20 * MIB, false, false));
    NT_CHECK(nt_should_split(&settings, 40 * MIB, 20 * MIB, false, true));
}

NT_TEST(oversize_blocks_are_kept_back)
{
    nt_settings settings = nt_settings_default();
    NT_CHECK(nt_may_use(&settings, 40 * GIB, 512));
    NT_CHECK(nt_may_use(&settings, 512, 512));
    NT_CHECK(!nt_may_use(&settings, 512, 1024));
    settings.max_split_size = 100 * MIB;
    NT_CHECK(nt_may_use(&settings, 100 * MIB - 512, 2 * MIB));
    NT_CHECK(!nt_may_use(&settings, 100 * MIB, 2 * MIB));
    /* Oversize requests only take what is less than 20 MiB larger. */
    NT_CHECK(nt_may_use(&settings, 120 * MIB - 512, 100 * MIB));
    NT_CHECK(!nt_may_use(&settings, 120 * MIB, 100 * MIB));
    settings.max_non_split_rounding = 50 * MIB;
    NT_CHECK(nt_may_use(&settings, 120 * MIB, 100 * MIB));
    NT_CHECK(!nt_may_use(&settings, 150 * MIB, 100 * MIB));
}

NT_TEST(largest_request_of_known_blocks)
{
    nt_settings settings = nt_settings_default();
    NT_CHECK_UINT(nt_largest_request(&settings, 0, true), 0);
    NT_CHECK_UINT(nt_largest_request(&settings, 511, true), 0);
    NT_CHECK_UINT(nt_largest_request(&settings, 512, true), 512);
    NT_CHECK_UINT(nt_largest_request(&settings, 2 * MIB, true), MIB);
    /* A large pool serves no small request, however small its block. */
    NT_CHECK_UINT(nt_largest_request(&settings, MIB, false), 0);
    NT_CHECK_UINT(nt_largest_request(&settings, MIB + 512, false), MIB + 512);
    NT_CHECK_UINT(nt_largest_request(&settings, 3 * GIB, false), 3 * GIB);
    NT_CHECK_UINT(nt_largest_request(&settings, UINT64_MAX - 511, false),
                  NT_LARGEST_REQUEST);
    /* 7 MiB are no step between 4 and 8 MiB with two divisions. */
    settings = rounding_settings(2);
    NT_CHECK_UINT(nt_largest_request(&settings, 7 * MIB, false), 6 * MIB);
    NT_CHECK_UINT(nt_largest_request(&settings, 700 * KIB, true), 512 * KIB);
    settings.max_split_size = 64 * MIB;
    NT_CHECK_UINT(nt_largest_request(&settings, 64 * MIB, false), 64 * MIB);
    /* Here rounding leaves no oversize request, and others may not have the block. */
    NT_CHECK_UINT(nt_largest_request(&settings, 90 * MIB, false), 0);
    NT_CHECK_UINT(nt_largest_request(&settings, 80 * MIB, false), 64 * MIB);
}

/* Any settings that a text can give, oversize rules and all divisions among them. */
static nt_settings
rounding_random_settings(uint64_t *seed)
{
    nt_settings settings = nt_settings_default();
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        const uint64_t r = nt_test_random(seed);
        settings.roundup_power2_divisions[i] = r % 2 ? UINT32_C(1) << (r >> 8) % 7 : 0;
    }
    const uint64_t r = nt_test_random(seed);
    if (r % 2) {
        settings.max_split_size = (20 + (r >> 8) % 100) * MIB;
        settings.max_non_split_rounding = (20 + (r >> 32) % 40) * MIB;
    }
    return settings;
}

/* The rule in other words: the smallest of the steps that is large enough. */
static uint64_t
rounding_model(const nt_settings *settings, uint64_t nbytes)
{
    uint64_t floor = 512;
    while (floor * 2 <= nbytes) {
        floor *= 2;
    }
    size_t interval = 0;
    while (interval + 1 < NT_ROUNDUP_INTERVALS && MIB << (interval + 1) <= floor) {
        interval++;
    }
    const uint64_t divisions = settings->roundup_power2_divisions[interval];
    const bool divided = divisions > 1 && nbytes > 512 * divisions;
    const uint64_t step = divided ? floor / divisions : 512;
    uint64_t size = divided ? floor : nbytes / 512 * 512;
    while (size < nbytes || size == 0) {
        size += step;
    }
    return size;
}

NT_TEST(random_sizes_follow_the_model)
{
    for (uint64_t run = 1; run <= 300; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        const nt_settings settings = rounding_random_settings(&seed);
        for (int i = 0; i < 200 && t->failures == failures; i++) {
            const uint64_t nbytes =
                nt_test_random(&seed) >> (24 + nt_test_random(&seed) % 34);
            const uint64_t rounded = nt_round_size(&settings, nbytes);
            NT_CHECK_UINT(rounded, rounding_model(&settings, nbytes));
            NT_CHECK(rounded >= nbytes && rounded % NT_MIN_BLOCK_SIZE == 0);
            NT_CHECK_UINT(nt_round_size(&settings, rounded), rounded);
            NT_CHECK(nt_round_size(&settings, nbytes + 1) >= rounded);
        }
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

static bool
rounding_serves(const nt_settings *settings, uint64_t block, bool small,
                uint64_t nbytes)
{
    const uint64_t rounded = nt_round_size(settings, nbytes);
    return nt_is_small(rounded) == small && nt_may_use(settings, block, rounded);
}

NT_TEST(random_blocks_serve_nothing_larger)
{
    for (uint64_t run = 1; run <= 300; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        const nt_settings settings = rounding_random_settings(&seed);
        for (int i = 0; i < 60 && t->failures == failures; i++) {
            const bool small = nt_test_random(&seed) % 3 == 0;
            const uint64_t block =
                nt_test_random(&seed) % (small ? 4096 : 400 * 2048) * 512;
            const uint64_t most = nt_largest_request(&settings, block, small);
            NT_CHECK(most == 0 || rounding_serves(&settings, block, small, most));
            NT_CHECK(!rounding_serves(&settings, block, small, most + 1));
            for (int k = 0; k < 30; k++) {
                const uint64_t nbytes = most + 1 + nt_test_random(&seed) % (block + 1);
                if (rounding_serves(&settings, block, small, nbytes)) {
                    NT_FAIL("%llu fit in %llu, not just %llu",
                            (unsigned long long)nbytes, (unsigned long long)block,
                            (unsigned long long)most);
                }
            }
        }
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

static bool
rounding_prefers(const nt_settings *settings, uint64_t block, uint64_t below,
                 bool small, uint64_t nbytes)
{
    return nt_round_size(settings, nbytes) > below &&
           rounding_serves(settings, block, small, nbytes);
}

NT_TEST(random_requests_go_to_the_smallest_block)
{
    uint64_t seed = 11;
    size_t served = 0;
    for (int i = 0; i < 20000 && t->failures == 0; i++) {
        const nt_settings settings = rounding_random_settings(&seed);
        const bool small = nt_test_random(&seed) % 3 == 0;
        const uint64_t block =
            (1 + nt_test_random(&seed) % (small ? 4096 : 400 * 2048)) * 512;
        const uint64_t below = nt_test_random(&seed) % (block / 512) * 512;
        const uint64_t least = nt_smallest_request(&settings, block, below, small);
        const uint64_t most = nt_largest_request(&settings, block, small);
        const uint64_t first = least == 0 ? most : least;
        NT_CHECK(least <= most);
        NT_CHECK(rounding_prefers(&settings, block, below, small, first) ==
                     (least != 0) ||
                 most == 0);
        NT_CHECK(least <= 1 ||
                 !rounding_prefers(&settings, block, below, small, least - 1));
        served += least != 0;
    }
    NT_CHECK(served > 1000);
}

const nt_test_case nt_rounding_tests[] = {
    NT_CASE(requests_become_multiples_of_512),
    NT_CASE(divisions_split_powers_of_two),
    NT_CASE(interval_of_request_picks_divisions),
    NT_CASE(largest_requests_do_not_wrap),
    NT_CASE(rounded_size_decides_the_pool),
    NT_CASE(segments_come_in_three_sizes),
    NT_CASE(split_leaves_a_useful_rest),
    NT_CASE(oversize_blocks_are_kept_back),
    NT_CASE(largest_request_of_known_blocks),
    NT_CASE(random_sizes_follow_the_model),
    NT_CASE(random_blocks_serve_nothing_larger),
    NT_CASE(random_requests_go_to_the_smallest_block),
    NT_CASES_END,
};
