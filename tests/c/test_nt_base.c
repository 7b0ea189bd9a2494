/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_base.h"

#include <string.h>

#include "nt_test.h"

NT_TEST(message_that_is_long_is_cut)
{
    char text[400];
    nt_error err;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memset(&err, 0xff, sizeof err);
    NT_CHECK_STATUS(nt_fail(&err, NT_LIMIT, 7, "%d%s", 42, text), NT_LIMIT, NULL);
    NT_CHECK_INT(err.status, NT_LIMIT);
    NT_CHECK_UINT(err.offset, 7);
    NT_CHECK_UINT(strlen(err.message), sizeof err.message - 1);
    NT_CHECK_BYTES(err.message, "42xxx", 5);
}

NT_TEST(failure_without_error_object_returns_status)
{
    nt_error err = {0};
    NT_CHECK_STATUS(nt_fail(NULL, NT_IO, 0, "%s", "nobody reads this"), NT_IO, NULL);
    NT_CHECK_STATUS(nt_fail_nomem(NULL), NT_NOMEM, NULL);
    NT_CHECK_STATUS(nt_fail_nomem(&err), NT_NOMEM, NULL);
    NT_CHECK_UINT(err.offset, NT_NO_OFFSET);
    NT_CHECK_STR(err.message, "out of memory");
}

NT_TEST(allocating_nothing_asks_for_nothing)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    NT_CHECK(nt_allocate(&hostile.alloc, 0) == NULL);
    nt_release(&hostile.alloc, NULL, 0);
    NT_CHECK_UINT(hostile.requests, 0);
    void *block = nt_allocate(&hostile.alloc, 24);
    NT_CHECK(block != NULL);
    NT_CHECK_UINT(hostile.live_bytes, 24);
    nt_release(&hostile.alloc, block, 24);
    NT_CHECK_NO_LEAK(&hostile);
}

/* Sizes on both sides of where an allocator may change its ways. */
static const size_t base_sizes[] = {
    1, 16, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 1, 5 << 20};

NT_TEST(system_allocator_keeps_bytes_on_resize)
{
    const nt_alloc alloc = nt_alloc_system();
    const size_t count = sizeof base_sizes / sizeof *base_sizes;
    for (size_t i = 0; i < count * count; i++) {
        const size_t old_size = base_sizes[i / count], size = base_sizes[i % count];
        const size_t kept = old_size < size ? old_size : size;
        uint8_t *block = nt_allocate(&alloc, old_size);
        NT_REQUIRE(NT_CHECK(block != NULL));
        NT_CHECK_UINT((uintptr_t)block % 16, 0);
        memset(block, 0x11, old_size);
        block[kept - 1] = 0x5a;
        block = alloc.resize(alloc.ctx, block, old_size, size);
        NT_REQUIRE(NT_CHECK(block != NULL));
        NT_CHECK_UINT((uintptr_t)block % 16, 0);
        NT_CHECK_UINT(block[kept - 1], 0x5a);
        NT_CHECK(kept == 1 || (block[0] == 0x11 && block[kept / 2 - 1] == 0x11));
        memset(block, 0x22, size);
        NT_CHECK(alloc.resize(alloc.ctx, block, size, 0) == NULL);
    }
}

NT_TEST(system_allocator_refuses_impossible_sizes)
{
    const nt_alloc alloc = nt_alloc_system();
    for (size_t i = 0; i < sizeof base_sizes / sizeof *base_sizes; i++) {
        const size_t size = base_sizes[i];
        uint8_t *block = nt_allocate(&alloc, size);
        NT_REQUIRE(NT_CHECK(block != NULL));
        block[size - 1] = 0x5a;
        NT_CHECK(alloc.resize(alloc.ctx, block, size, SIZE_MAX) == NULL);
        NT_CHECK(alloc.resize(alloc.ctx, block, size, SIZE_MAX - (3 << 20)) == NULL);
        NT_CHECK_UINT(block[size - 1], 0x5a);
        nt_release(&alloc, block, size);
    }
    NT_CHECK(nt_allocate(&alloc, SIZE_MAX) == NULL);
}

NT_TEST(growing_to_what_is_there_does_nothing)
{
    nt_hostile hostile;
    uint32_t *array = NULL;
    size_t capacity = 0;
    nt_hostile_init(&hostile, t);
    NT_CHECK_OK(nt_grow(&hostile.alloc, (void **)&array, &capacity, 0, 4, NULL), NULL);
    NT_CHECK(array == NULL);
    NT_CHECK_OK(nt_grow(&hostile.alloc, (void **)&array, &capacity, 5, 4, NULL), NULL);
    NT_CHECK(capacity >= 5);
    NT_CHECK_UINT(hostile.live_bytes, capacity * 4);
    const uint32_t *before = array;
    const size_t room = capacity;
    NT_CHECK_OK(nt_grow(&hostile.alloc, (void **)&array, &capacity, room, 4, NULL),
                NULL);
    NT_CHECK(array == before && capacity == room);
    nt_release(&hostile.alloc, array, capacity * 4);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(growing_one_by_one_is_cheap)
{
    nt_hostile hostile;
    uint64_t *array = NULL;
    size_t capacity = 0;
    nt_hostile_init(&hostile, t);
    for (uint64_t i = 0; i < 100000; i++) {
        NT_REQUIRE(NT_CHECK_OK(nt_grow(&hostile.alloc, (void **)&array, &capacity,
                                       i + 1, sizeof *array, NULL),
                               NULL));
        array[i] = i * i;
    }
#ifndef NT_DEBUG /* which leaves hardly any room, so that a write past it is seen */
    /* Doubled each time: 14 steps from 8 to 100,000. */
    NT_CHECK(hostile.requests <= 15);
#endif
    for (uint64_t i = 0; i < 100000; i++) {
        NT_REQUIRE(NT_CHECK_UINT(array[i], i * i));
    }
    nt_release(&hostile.alloc, array, capacity * sizeof *array);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(growing_beyond_all_sizes_changes_nothing)
{
    nt_hostile hostile;
    uint8_t *array = NULL;
    size_t capacity = 0;
    nt_error err = {0};
    nt_hostile_init(&hostile, t);
    NT_CHECK_STATUS(
        nt_grow(&hostile.alloc, (void **)&array, &capacity, SIZE_MAX / 8, 16, &err),
        NT_NOMEM, &err);
    NT_CHECK_INT(err.status, NT_NOMEM);
    NT_CHECK(array == NULL && capacity == 0);
    NT_CHECK_UINT(hostile.requests, 0);
}

NT_TEST(shrinking_leaves_exactly_what_counts)
{
    nt_hostile hostile;
    uint16_t *array = NULL;
    size_t capacity = 0;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(
        nt_grow(&hostile.alloc, (void **)&array, &capacity, 50, 2, NULL), NULL));
    for (uint16_t i = 0; i < 50; i++) {
        array[i] = i;
    }
    nt_shrink(&hostile.alloc, (void **)&array, &capacity, 30, 2);
    NT_CHECK_UINT(capacity, 30);
    NT_CHECK_UINT(hostile.live_bytes, 60);
    NT_CHECK_UINT(array[29], 29);
    nt_shrink(&hostile.alloc, (void **)&array, &capacity, 0, 2);
    NT_CHECK(array == NULL && capacity == 0);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(shrinking_that_fails_keeps_the_array)
{
    nt_hostile hostile;
    uint16_t *array = NULL;
    size_t capacity = 0;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(
        nt_grow(&hostile.alloc, (void **)&array, &capacity, 50, 2, NULL), NULL));
    array[49] = 49;
    const uint16_t *before = array;
    const size_t room = capacity;
    hostile.fail_at = hostile.requests + 1;
    nt_shrink(&hostile.alloc, (void **)&array, &capacity, 30, 2);
    NT_CHECK(array == before && capacity == room);
    NT_CHECK_UINT(array[49], 49);
    nt_release(&hostile.alloc, array, capacity * 2);
    NT_CHECK_NO_LEAK(&hostile);
}

/* Three arrays grown in turn: each failure leaves the one it met as it was. */
static nt_status
grow_three(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    uint32_t *arrays[3] = {NULL};
    size_t capacity[3] = {0};
    nt_status status = NT_OK;
    (void)ctx;
    for (size_t i = 0; i < 60 && status == NT_OK; i++) {
        const size_t k = i % 3;
        const uint32_t *before = arrays[k];
        const size_t room = capacity[k];
        nt_error err = {0};
        status = nt_grow(alloc, (void **)&arrays[k], &capacity[k], i + 1, 4, &err);
        if (status != NT_OK) {
            NT_CHECK(arrays[k] == before && capacity[k] == room);
            NT_CHECK_INT(err.status, NT_NOMEM);
            break;
        }
        arrays[k][i] = (uint32_t)i;
    }
    for (size_t k = 0; k < 3; k++) {
        nt_release(alloc, arrays[k], capacity[k] * 4);
    }
    return status;
}

NT_TEST(growing_survives_every_refusal)
{
    nt_test_sweep(t, grow_three, NULL);
}

NT_TEST(budget_counts_what_is_held)
{
    nt_hostile hostile;
    nt_budget budget;
    nt_hostile_init(&hostile, t);
    nt_budget_init(&budget, hostile.alloc, 1000);
    const nt_alloc alloc = nt_budget_alloc(&budget);
    void *first = nt_allocate(&alloc, 600);
    NT_CHECK(first != NULL);
    NT_CHECK(nt_allocate(&alloc, 401) == NULL);
    NT_CHECK(budget.exceeded);
    NT_CHECK_UINT(budget.used, 600);
    void *second = nt_allocate(&alloc, 400);
    NT_CHECK(second != NULL);
    NT_CHECK_UINT(budget.used, 1000);
    NT_CHECK(alloc.resize(alloc.ctx, first, 600, 601) == NULL);
    budget.limit = 1001;
    first = alloc.resize(alloc.ctx, first, 600, 601);
    NT_CHECK(first != NULL);
    nt_release(&alloc, second, 400);
    NT_CHECK_UINT(budget.used, 601);
    NT_CHECK_UINT(budget.peak, 1001);
    NT_CHECK_UINT(hostile.live_bytes, 601);
    nt_release(&alloc, first, 601);
    NT_CHECK_UINT(budget.used, 0);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(budget_tells_limit_from_exhaustion)
{
    nt_hostile hostile;
    nt_budget budget;
    nt_hostile_init(&hostile, t);
    hostile.fail_at = 1;
    nt_budget_init(&budget, hostile.alloc, 1000);
    const nt_alloc alloc = nt_budget_alloc(&budget);
    NT_CHECK(nt_allocate(&alloc, 10) == NULL);
    NT_CHECK(!budget.exceeded);
    NT_CHECK_UINT(budget.used, 0);
    NT_CHECK(nt_allocate(&alloc, SIZE_MAX) == NULL);
    NT_CHECK(budget.exceeded);
    NT_CHECK_UINT(hostile.requests, 1);
}

NT_TEST(sizes_that_wrap_are_refused)
{
    static const size_t edges[] = {
        0, 1, 2, 3, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX - 1, SIZE_MAX};
    const size_t count = sizeof edges / sizeof *edges;
    for (size_t i = 0; i < count * count; i++) {
        const size_t a = edges[i / count], b = edges[i % count];
        size_t sum = 77, product = 77;
        const bool sum_fits = a + b >= a;
        const bool product_fits = a == 0 || a * b / a == b;
        NT_CHECK(nt_size_add(a, b, &sum) == sum_fits);
        NT_CHECK_UINT(sum, sum_fits ? a + b : 77);
        NT_CHECK(nt_size_mul(a, b, &product) == product_fits);
        NT_CHECK_UINT(product, product_fits ? a * b : 77);
    }
}

NT_TEST(mixing_spreads_every_single_bit)
{
    uint64_t seed = 20;
    for (int bit = 0; bit < 64; bit++) {
        uint64_t changed = 0;
        for (int i = 0; i < 4096; i++) {
            const uint64_t x = nt_test_random(&seed);
            changed |= nt_mix64(x) ^ nt_mix64(x ^ UINT64_C(1) << bit);
        }
        if (changed != UINT64_MAX) {
            NT_FAIL("bit %d leaves bits of the result alone: %llx", bit,
                    (unsigned long long)changed);
        }
    }
}

NT_TEST(random_growing_follows_a_model)
{
    for (uint64_t run = 1; run <= 20; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        nt_hostile hostile;
        uint64_t *array = NULL, model[512];
        size_t capacity = 0, count = 0;
        nt_hostile_init(&hostile, t);
        for (int step = 0; step < 300; step++) {
            const size_t wanted = (size_t)(nt_test_random(&seed) % 512);
            if (nt_test_random(&seed) % 3 == 0) {
                count = wanted < count ? wanted : count;
                nt_shrink(&hostile.alloc, (void **)&array, &capacity, count, 8);
                NT_CHECK_UINT(capacity, count);
                continue;
            }
            NT_REQUIRE(NT_CHECK_OK(
                nt_grow(&hostile.alloc, (void **)&array, &capacity, wanted, 8, NULL),
                NULL));
            NT_CHECK(capacity >= wanted);
            for (; count < wanted; count++) {
                array[count] = model[count] = nt_test_random(&seed);
            }
        }
        NT_CHECK_BYTES(array, model, count * 8);
        NT_CHECK_UINT(hostile.live_bytes, capacity * 8);
        nt_release(&hostile.alloc, array, capacity * 8);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

const nt_test_case nt_base_tests[] = {
    NT_CASE(message_that_is_long_is_cut),
    NT_CASE(failure_without_error_object_returns_status),
    NT_CASE(allocating_nothing_asks_for_nothing),
    NT_CASE(system_allocator_keeps_bytes_on_resize),
    NT_CASE(system_allocator_refuses_impossible_sizes),
    NT_CASE(growing_to_what_is_there_does_nothing),
    NT_CASE(growing_one_by_one_is_cheap),
    NT_CASE(growing_beyond_all_sizes_changes_nothing),
    NT_CASE(shrinking_leaves_exactly_what_counts),
    NT_CASE(shrinking_that_fails_keeps_the_array),
    NT_CASE(growing_survives_every_refusal),
    NT_CASE(budget_counts_what_is_held),
    NT_CASE(budget_tells_limit_from_exhaustion),
    NT_CASE(sizes_that_wrap_are_refused),
    NT_CASE(mixing_spreads_every_single_bit),
    NT_CASE(random_growing_follows_a_model),
    NT_CASES_END,
};
