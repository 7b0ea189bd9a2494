/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_pyramid.h"

#include "nt_test.h"

enum { PYRAMID_MOST = 300 };

/* The extremes as one loop finds them. */
static nt_extremes
pyramid_by_hand(const uint64_t *values, size_t first, size_t end)
{
    nt_extremes sum = {values[first], values[first]};
    for (size_t i = first; i < end; i++) {
        sum.least = values[i] < sum.least ? values[i] : sum.least;
        sum.largest = values[i] > sum.largest ? values[i] : sum.largest;
    }
    return sum;
}

static void
pyramid_check_ranges(nt_test *t, const uint64_t *values, size_t count)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_pyramid *pyramid = NULL;
    nt_error err = {0};
    NT_REQUIRE(
        NT_CHECK_OK(nt_pyramid_new(&alloc, values, count, &pyramid, &err), &err));
    NT_CHECK_UINT(nt_pyramid_count(pyramid), count);
    for (size_t first = 0; first < count; first++) {
        for (size_t end = first + 1; end <= count; end++) {
            const nt_extremes truth = pyramid_by_hand(values, first, end);
            const nt_extremes found = nt_pyramid_range(pyramid, first, end);
            if (found.least != truth.least || found.largest != truth.largest) {
                NT_FAIL("range %zu to %zu of %zu is wrong", first, end, count);
                nt_pyramid_free(pyramid);
                return;
            }
        }
    }
    nt_pyramid_free(pyramid);
}

NT_TEST(every_range_has_its_extremes)
{
    uint64_t values[PYRAMID_MOST], seed = 5;
    static const size_t counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 129};
    for (size_t i = 0; i < PYRAMID_MOST; i++) {
        values[i] = nt_test_random(&seed) % 1000;
    }
    values[7] = UINT64_MAX;
    values[40] = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        pyramid_check_ranges(t, values, counts[i]);
    }
}

NT_TEST(levels_sum_up_the_ones_below)
{
    const nt_alloc alloc = nt_alloc_system();
    const uint64_t values[] = {5, 1, 9, 3, 8, 2};
    nt_pyramid *pyramid = NULL;
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(nt_pyramid_new(&alloc, values, 6, &pyramid, &err), &err));
    size_t count;
    NT_REQUIRE(NT_CHECK_UINT(nt_pyramid_levels(pyramid), 2));
    const nt_extremes *level = nt_pyramid_level(pyramid, 1, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 2));
    NT_CHECK_UINT(level[0].least, 1);
    NT_CHECK_UINT(level[0].largest, 9);
    NT_CHECK_UINT(level[1].least, 2);
    NT_CHECK_UINT(level[1].largest, 8);
    level = nt_pyramid_level(pyramid, 2, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 1));
    NT_CHECK_UINT(level[0].least, 1);
    NT_CHECK_UINT(level[0].largest, 9);
    nt_pyramid_free(pyramid);
}

NT_TEST(empty_series_has_no_levels)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_pyramid *pyramid = NULL;
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(nt_pyramid_new(&alloc, NULL, 0, &pyramid, &err), &err));
    NT_CHECK_UINT(nt_pyramid_count(pyramid), 0);
    NT_CHECK_UINT(nt_pyramid_levels(pyramid), 0);
    nt_pyramid_free(pyramid);
    nt_pyramid_free(NULL);
}

static nt_status
pyramid_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    const uint64_t values[] = {5, 1, 9, 3, 8, 2};
    nt_pyramid *pyramid = NULL;
    nt_error err = {0};
    const nt_status status = nt_pyramid_new(alloc, values, 6, &pyramid, &err);
    NT_CHECK((status == NT_OK) == (pyramid != NULL));
    nt_pyramid_free(pyramid);
    return status;
}

NT_TEST(pyramid_survives_every_refused_allocation)
{
    nt_test_sweep(t, pyramid_sweep, NULL);
}

const nt_test_case nt_pyramid_tests[] = {
    NT_CASE(every_range_has_its_extremes),
    NT_CASE(levels_sum_up_the_ones_below),
    NT_CASE(empty_series_has_no_levels),
    NT_CASE(pyramid_survives_every_refused_allocation),
    NT_CASES_END,
};
