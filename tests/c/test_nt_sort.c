/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_sort.h"

#include "nt_test.h"

#define MOST 300

NT_TEST(sorted_items_are_in_order)
{
    uint64_t seed = 20;
    for (size_t count = 0; count <= MOST; count += 7) {
        nt_sort_item items[MOST];
        uint64_t sum = 0, after = 0;
        for (size_t i = 0; i < count; i++) {
            items[i] = (nt_sort_item){nt_test_random(&seed) % 50, (uint32_t)i};
            sum += items[i].key;
        }
        nt_sort(items, count);
        for (size_t i = 0; i < count; i++) {
            after += items[i].key;
            NT_CHECK(i == 0 || items[i - 1].key < items[i].key ||
                     (items[i - 1].key == items[i].key &&
                      items[i - 1].value < items[i].value));
        }
        NT_CHECK_UINT(after, sum);
    }
}

NT_TEST(largest_keys_are_sorted_too)
{
    nt_sort_item items[] = {{UINT64_MAX, 0}, {0, 1}, {UINT64_MAX - 1, 2}};
    nt_sort(items, 3);
    NT_CHECK_UINT(items[0].value, 1);
    NT_CHECK_UINT(items[1].value, 2);
    NT_CHECK_UINT(items[2].value, 0);
}

const nt_test_case nt_sort_tests[] = {
    NT_CASE(sorted_items_are_in_order),
    NT_CASE(largest_keys_are_sorted_too),
    NT_CASES_END,
};
