/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_search.h"

#include "nt_test.h"

#define MOST 700

static size_t
first_not_below(const uint64_t *values, size_t low, size_t high, uint64_t value)
{
    while (low < high && values[low] < value) {
        low++;
    }
    return low;
}

NT_TEST(what_is_searched_is_found_from_anywhere)
{
    uint64_t seed = 41, values[MOST];
    uint32_t narrow[MOST];
    for (size_t count = 0; count < MOST; count += 23) {
        uint64_t last = 0;
        for (size_t i = 0; i < count; i++) {
            /* Runs of equal ones, small steps and now and then a leap. */
            const uint64_t by = nt_test_random(&seed) % 40;
            last += by < 20 ? 0 : by < 39 ? by - 19 : 3000;
            values[i] = last;
            narrow[i] = (uint32_t)last;
        }
        for (size_t k = 0; k < 400; k++) {
            const size_t low = nt_test_random(&seed) % (count + 1);
            const size_t high = low + nt_test_random(&seed) % (count - low + 1);
            const size_t ahead = nt_test_random(&seed) % (2 * MOST);
            const uint64_t value = nt_test_random(&seed) % (last + 3);
            const size_t first = first_not_below(values, low, high, value);
            NT_CHECK_UINT(
                nt_search_ahead((nt_rising){.wide = values}, low, high, value, ahead),
                first);
            NT_CHECK_UINT(
                nt_search_ahead((nt_rising){.narrow = narrow}, low, high, value, ahead),
                first);
        }
    }
}

NT_TEST(largest_values_are_found_too)
{
    const uint64_t wide[] = {0, UINT64_MAX - 1, UINT64_MAX, UINT64_MAX};
    const nt_rising values = {.wide = wide};
    NT_CHECK_UINT(nt_search_ahead(values, 0, 4, UINT64_MAX, SIZE_MAX), 2);
    NT_CHECK_UINT(nt_search_ahead(values, 0, 4, 0, 3), 0);
    NT_CHECK_UINT(nt_search_ahead(values, 0, 2, UINT64_MAX, 0), 2);
}

const nt_test_case nt_search_tests[] = {
    NT_CASE(what_is_searched_is_found_from_anywhere),
    NT_CASE(largest_values_are_found_too),
    NT_CASES_END,
};
