/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_bitset.h"

#include <string.h>

#include "nt_test.h"

NT_TEST(empty_set_has_no_member)
{
    nt_hostile hostile;
    nt_bitset set;
    nt_hostile_init(&hostile, t);
    for (size_t size = 0; size < 5000; size = size * 3 + 1) {
        NT_REQUIRE(NT_CHECK_OK(nt_bitset_init(&set, hostile.alloc, size, NULL), NULL));
        NT_CHECK_UINT(nt_bitset_next(&set, 0), NT_NO_MEMBER);
        NT_CHECK_UINT(nt_bitset_last(&set, size == 0 ? 0 : size - 1), NT_NO_MEMBER);
        nt_bitset_clear(&set);
    }
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(members_far_apart_are_found)
{
    const size_t size = (size_t)64 * 64 * 64 + 7;
    nt_hostile hostile;
    nt_bitset set;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_bitset_init(&set, hostile.alloc, size, NULL), NULL));
    nt_bitset_add(&set, 3);
    nt_bitset_add(&set, size - 1);
    NT_CHECK_UINT(nt_bitset_next(&set, 3), 3);
    NT_CHECK_UINT(nt_bitset_next(&set, 4), size - 1);
    NT_CHECK_UINT(nt_bitset_last(&set, size - 2), 3);
    NT_CHECK_UINT(nt_bitset_last(&set, 2), NT_NO_MEMBER);
    nt_bitset_remove(&set, size - 1);
    nt_bitset_remove(&set, size - 1);
    NT_CHECK_UINT(nt_bitset_next(&set, 4), NT_NO_MEMBER);
    NT_CHECK_UINT(nt_bitset_next(&set, size), NT_NO_MEMBER);
    nt_bitset_clear(&set);
    NT_CHECK_NO_LEAK(&hostile);
}

/* Adds, removes and asks at random; `members` is a byte a number. */
static void
bitset_compare(nt_test *t, nt_bitset *set, uint8_t *members, uint64_t seed)
{
    for (int step = 0; step < 3000; step++) {
        const size_t number = (size_t)(nt_test_random(&seed) % set->size);
        const size_t asked = (size_t)(nt_test_random(&seed) % set->size);
        const bool adds = nt_test_random(&seed) % 3 == 0;
        members[number] = adds;
        if (adds) {
            nt_bitset_add(set, number);
        } else {
            nt_bitset_remove(set, number);
        }
        size_t next = asked, last = asked;
        while (next < set->size && !members[next]) {
            next++;
        }
        while (last != SIZE_MAX && !members[last]) {
            last--;
        }
        NT_CHECK_UINT(nt_bitset_next(set, asked),
                      next < set->size ? next : NT_NO_MEMBER);
        NT_CHECK_UINT(nt_bitset_last(set, asked), last);
    }
}

NT_TEST(set_finds_what_search_finds)
{
    static const size_t sizes[] = {1, 63, 64, 65, 300, 4096, 4097};
    static uint8_t members[4097];
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nt_bitset set;
        NT_REQUIRE(
            NT_CHECK_OK(nt_bitset_init(&set, hostile.alloc, sizes[i], NULL), NULL));
        memset(members, 0, sizeof members);
        bitset_compare(t, &set, members, i + 1);
        nt_bitset_clear(&set);
    }
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(assigned_bits_are_the_members)
{
    static const size_t sizes[] = {1, 64, 65, 300, 4097};
    uint64_t bits[65];
    uint64_t seed = 7;
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nt_bitset set;
        NT_REQUIRE(
            NT_CHECK_OK(nt_bitset_init(&set, hostile.alloc, sizes[i], NULL), NULL));
        nt_bitset_add(&set, 0);
        for (size_t k = 0; k < 65; k++) {
            /* Runs of empty words, and bits beyond the size. */
            bits[k] = nt_test_random(&seed) % 3 == 0 ? nt_test_random(&seed) : 0;
        }
        nt_bitset_assign(&set, bits);
        size_t expected = NT_NO_MEMBER;
        for (size_t k = sizes[i]; k-- > 0;) {
            expected = (bits[k / 64] >> k % 64 & 1) != 0 ? k : expected;
            NT_CHECK_UINT(nt_bitset_next(&set, k), expected);
        }
        nt_bitset_clear(&set);
    }
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
bitset_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_bitset set;
    (void)t;
    (void)ctx;
    const nt_status status = nt_bitset_init(&set, *alloc, 1000, NULL);
    nt_bitset_clear(&set);
    return status;
}

NT_TEST(set_survives_running_out_of_memory)
{
    nt_test_sweep(t, bitset_sweep, NULL);
}

const nt_test_case nt_bitset_tests[] = {
    NT_CASE(empty_set_has_no_member),
    NT_CASE(members_far_apart_are_found),
    NT_CASE(set_finds_what_search_finds),
    NT_CASE(assigned_bits_are_the_members),
    NT_CASE(set_survives_running_out_of_memory),
    NT_CASES_END,
};
