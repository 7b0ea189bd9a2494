/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ordered.h"

#include <string.h>

#include "nt_test.h"

enum { ORDERED_KEYS = 2048 };

/* A set of keys (i / 32, i % 32), beside a table of what is in it. */
typedef struct ordered_pair {
    nt_ordered set;
    bool is_in[ORDERED_KEYS];
} ordered_pair;

static uint64_t
ordered_first(size_t i)
{
    return i / 32;
}

static uint64_t
ordered_second(size_t i)
{
    /* The last of each 32 is the largest number there is: the next key has another
     * first number. */
    return i % 32 == 31 ? UINT64_MAX : i % 32;
}

static void
ordered_check_lookups(nt_test *t, const ordered_pair *pair, size_t i)
{
    const uint64_t first = ordered_first(i), second = ordered_second(i);
    size_t from = i, before = i;
    while (from < ORDERED_KEYS && !pair->is_in[from]) {
        from++;
    }
    while (before > 0 && !pair->is_in[before - 1]) {
        before--;
    }
    size_t after = i + 1;
    while (after < ORDERED_KEYS && !pair->is_in[after]) {
        after++;
    }
    NT_CHECK_UINT(nt_ordered_from(&pair->set, first, second).value,
                  from < ORDERED_KEYS ? from : NT_NONE);
    NT_CHECK_UINT(nt_ordered_after(&pair->set, first, second).value,
                  after < ORDERED_KEYS ? after : NT_NONE);
    NT_CHECK_UINT(nt_ordered_before(&pair->set, first, second).value,
                  before > 0 ? before - 1 : NT_NONE);
}

NT_TEST(empty_set_finds_nothing)
{
    nt_ordered set = {0};
    NT_CHECK_UINT(nt_ordered_from(&set, 0, 0).value, NT_NONE);
    NT_CHECK_UINT(nt_ordered_after(&set, 0, 0).value, NT_NONE);
    NT_CHECK_UINT(nt_ordered_before(&set, UINT64_MAX, UINT64_MAX).value, NT_NONE);
    NT_CHECK(nt_ordered_check(&set));
    const nt_alloc alloc = nt_alloc_system();
    NT_CHECK_UINT(nt_ordered_remove(&set, &alloc, 0, 0), NT_NONE);
    nt_ordered_clear(&set, &alloc);
}

NT_TEST(random_changes_follow_a_table)
{
    for (uint64_t run = 1; run <= 6; run++) {
        uint64_t seed = run;
        nt_hostile hostile;
        nt_hostile_init(&hostile, t);
        ordered_pair pair = {.set = {0}};
        /* Grows at first and shrinks at last, so that runs split and join. */
        for (int i = 0; i < 12000; i++) {
            const size_t key = nt_test_random(&seed) % ORDERED_KEYS;
            const bool adds = nt_test_random(&seed) % 12000 >= (uint64_t)i;
            if (adds && !pair.is_in[key]) {
                const nt_ordered_entry entry = {ordered_first(key), ordered_second(key),
                                                (uint32_t)key};
                NT_CHECK_OK(nt_ordered_add(&pair.set, &hostile.alloc, entry, NULL),
                            NULL);
                pair.is_in[key] = true;
            } else if (!adds) {
                NT_CHECK_UINT(nt_ordered_remove(&pair.set, &hostile.alloc,
                                                ordered_first(key),
                                                ordered_second(key)),
                              pair.is_in[key] ? key : NT_NONE);
                pair.is_in[key] = false;
            }
            /* One of all, to a place near it or anywhere. */
            const size_t moved = nt_test_random(&seed) % ORDERED_KEYS;
            const size_t near = nt_test_random(&seed) % (i % 2 == 0 ? 8 : ORDERED_KEYS);
            const size_t to = (moved + near) % ORDERED_KEYS;
            if (pair.is_in[moved] && !pair.is_in[to]) {
                const nt_ordered_entry entry = {ordered_first(to), ordered_second(to),
                                                (uint32_t)to};
                NT_CHECK_OK(nt_ordered_move(&pair.set, &hostile.alloc,
                                            ordered_first(moved), ordered_second(moved),
                                            entry, NULL),
                            NULL);
                pair.is_in[moved] = false;
                pair.is_in[to] = true;
            }
            if (i % 16 == 0) {
                ordered_check_lookups(t, &pair, nt_test_random(&seed) % ORDERED_KEYS);
            }
            if (i % 500 == 0) {
                NT_CHECK(nt_ordered_check(&pair.set));
            }
        }
        nt_ordered_clear(&pair.set, &hostile.alloc);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures > 0) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

NT_TEST(set_that_shrinks_gives_memory_back)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ordered set = {0};
    for (uint32_t i = 0; i < 10000; i++) {
        NT_CHECK_OK(
            nt_ordered_add(&set, &hostile.alloc, (nt_ordered_entry){i, 0, i}, NULL),
            NULL);
    }
    const size_t full = hostile.live_bytes;
    for (uint32_t i = 0; i < 10000; i++) {
        if (i % 100 != 0) {
            (void)nt_ordered_remove(&set, &hostile.alloc, i, 0);
        }
    }
    NT_CHECK_UINT(set.count, 100);
    NT_CHECK(nt_ordered_check(&set));
    NT_CHECK(hostile.live_bytes < full / 8);
    nt_ordered_clear(&set, &hostile.alloc);
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
ordered_fill(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_ordered set = {0};
    nt_status status = NT_OK;
    (void)ctx;
    for (uint32_t i = 0; i < 300 && status == NT_OK; i++) {
        const size_t count = set.count;
        status =
            nt_ordered_add(&set, alloc, (nt_ordered_entry){i * 7 % 300, i, i}, NULL);
        NT_CHECK_UINT(set.count, count + (status == NT_OK));
        NT_CHECK(nt_ordered_check(&set));
    }
    nt_ordered_clear(&set, alloc);
    return status;
}

NT_TEST(refused_memory_leaves_the_set)
{
    nt_test_sweep(t, ordered_fill, NULL);
}

const nt_test_case nt_ordered_tests[] = {
    NT_CASE(empty_set_finds_nothing),
    NT_CASE(random_changes_follow_a_table),
    NT_CASE(set_that_shrinks_gives_memory_back),
    NT_CASE(refused_memory_leaves_the_set),
    NT_CASES_END,
};
