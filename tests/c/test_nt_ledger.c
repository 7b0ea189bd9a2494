/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_ledger.h"

#include <string.h>

#include "nt_test.h"

static const nt_ledger_rule ledger_rules[] = {
    {"/libc10_cuda", "PyTorch"},
    {"/libnccl", "NCCL"},
    {"/nccl", "never reached by the one above"},
};

static nt_status
ledger_new(const nt_alloc *alloc, nt_ledger **out, nt_error *err)
{
    return nt_ledger_new(alloc, ledger_rules,
                         sizeof ledger_rules / sizeof *ledger_rules, out, err);
}

static nt_status
ledger_record(nt_ledger *ledger, uint64_t time, bool is_release, uint64_t address,
              uint64_t bytes, const char *path, nt_error *err)
{
    nt_ledger_record r = {.time = time,
                          .address = address,
                          .bytes = bytes,
                          .kind = 3,
                          .is_release = is_release};
    NT_TRY(nt_ledger_find_library(ledger, path, &r.library, err));
    return nt_ledger_push(ledger, &r, err);
}

/* The use of the library called `name`; all-zero where there is none. */
static nt_ledger_use
ledger_use(const nt_ledger *ledger, const char *name)
{
    size_t count, length;
    const nt_ledger_use *uses = nt_ledger_uses(ledger, &count);
    for (size_t i = 0; i < count; i++) {
        const char *text = nt_ledger_name(ledger, uses[i].library, &length);
        if (length == strlen(name) && memcmp(text, name, length) == 0) {
            return uses[i];
        }
    }
    return (nt_ledger_use){0};
}

NT_TEST(first_rule_names_the_library)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ledger *ledger = NULL;
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(ledger_new(&hostile.alloc, &ledger, &err), &err));
    const char *const paths[] = {"/a/libc10_cuda.so", "/b/libnccl.so.2",
                                 "/c/libown.so.1.2",  "/d/libown.so",
                                 "program",           NULL};
    const char *const names[] = {"PyTorch",   "NCCL",    "libown.so",
                                 "libown.so", "program", ""};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        uint32_t library;
        size_t length;
        NT_CHECK_OK(nt_ledger_find_library(ledger, paths[i], &library, &err), &err);
        const char *name = nt_ledger_name(ledger, library, &length);
        NT_CHECK_UINT(length, strlen(names[i]));
        NT_CHECK_BYTES(name, names[i], strlen(names[i]));
    }
    NT_CHECK_UINT(nt_ledger_source_count(ledger), 5);
    nt_ledger_free(ledger);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(records_apply_in_order_of_time)
{
    nt_alloc alloc = nt_alloc_system();
    nt_ledger *ledger = NULL;
    NT_REQUIRE(NT_CHECK_OK(ledger_new(&alloc, &ledger, NULL), NULL));
    NT_CHECK_OK(ledger_record(ledger, 20, true, 64, 0, NULL, NULL), NULL);
    NT_CHECK_OK(ledger_record(ledger, 30, false, 64, 7, "/libnccl.so", NULL), NULL);
    NT_CHECK_OK(ledger_record(ledger, 10, false, 64, 5, "/libnccl.so", NULL), NULL);
    NT_CHECK_UINT(nt_ledger_waiting(ledger), 3);
    NT_CHECK_OK(nt_ledger_settle(ledger, 1, NULL), NULL);
    NT_CHECK_UINT(nt_ledger_waiting(ledger), 1);
    NT_CHECK_UINT(ledger_use(ledger, "NCCL").bytes, 0);
    NT_CHECK_OK(nt_ledger_settle(ledger, 0, NULL), NULL);
    const nt_ledger_use use = ledger_use(ledger, "NCCL");
    NT_CHECK_UINT(use.bytes, 7);
    NT_CHECK_UINT(use.peak_bytes, 7);
    NT_CHECK_UINT(use.allocations, 2);
    NT_CHECK(nt_ledger_check(ledger));
    nt_ledger_free(ledger);
}

NT_TEST(a_release_ends_the_older_claim)
{
    nt_alloc alloc = nt_alloc_system();
    nt_ledger *ledger = NULL;
    NT_REQUIRE(NT_CHECK_OK(ledger_new(&alloc, &ledger, NULL), NULL));
    const char *const paths[] = {"/libnccl.so", "/libc10_cuda.so", "/libown.so"};
    for (uint64_t i = 0; i < 3; i++) {
        NT_CHECK_OK(ledger_record(ledger, i, false, 64, 1 + i, paths[i], NULL), NULL);
    }
    for (uint64_t i = 3; i < 5; i++) {
        NT_CHECK_OK(ledger_record(ledger, i, true, 64, 0, NULL, NULL), NULL);
        NT_CHECK_OK(nt_ledger_settle(ledger, 0, NULL), NULL);
        NT_CHECK(nt_ledger_check(ledger));
    }
    NT_CHECK_UINT(ledger_use(ledger, "NCCL").live, 0);
    NT_CHECK_UINT(ledger_use(ledger, "PyTorch").live, 0);
    NT_CHECK_UINT(ledger_use(ledger, "libown.so").bytes, 3);
    NT_CHECK_OK(ledger_record(ledger, 9, true, 65, 0, NULL, NULL), NULL);
    NT_CHECK_OK(nt_ledger_settle(ledger, 0, NULL), NULL);
    NT_CHECK_UINT(nt_ledger_unmatched(ledger), 1);
    nt_ledger_free(ledger);
}

NT_TEST(a_seed_gives_way_to_its_record)
{
    nt_alloc alloc = nt_alloc_system();
    nt_ledger *ledger = NULL;
    nt_ledger_live seed = {.address = 64, .bytes = 10, .kind = 3}, rows[2];
    NT_REQUIRE(NT_CHECK_OK(ledger_new(&alloc, &ledger, NULL), NULL));
    NT_CHECK_OK(nt_ledger_find_library(ledger, "/libc10_cuda.so", &seed.library, NULL),
                NULL);
    NT_CHECK_OK(nt_ledger_seed(ledger, &seed, NULL), NULL);
    NT_CHECK_OK(nt_ledger_seed(ledger, &seed, NULL), NULL);
    NT_CHECK_UINT(ledger_use(ledger, "PyTorch").bytes, 10);
    NT_CHECK_UINT(ledger_use(ledger, "PyTorch").allocations, 0);
    NT_CHECK_OK(ledger_record(ledger, 1, false, 64, 10, "/libc10_cuda.so", NULL), NULL);
    NT_CHECK_OK(nt_ledger_settle(ledger, 0, NULL), NULL);
    NT_CHECK_UINT(ledger_use(ledger, "PyTorch").bytes, 10);
    NT_CHECK_UINT(ledger_use(ledger, "PyTorch").live, 1);
    NT_CHECK_UINT(nt_ledger_list(ledger, rows, 2), 1);
    NT_CHECK_UINT(rows[0].address, 64);
    NT_CHECK_UINT(rows[0].library, seed.library);
    NT_CHECK(nt_ledger_check(ledger));
    nt_ledger_free(ledger);
}

/* Random records against plain sums, settled in pieces, with the records of a piece in
 * any order. */
NT_TEST(random_records_agree_with_sums)
{
    enum { ADDRESSES = 64, PIECES = 60, PIECE = 50 };
    nt_alloc alloc = nt_alloc_system();
    nt_ledger *ledger = NULL;
    uint64_t seed = 11, time = 0, held[ADDRESSES] = {0}, sum = 0, peak = 0;
    NT_REQUIRE(NT_CHECK_OK(ledger_new(&alloc, &ledger, NULL), NULL));
    for (size_t piece = 0; piece < PIECES; piece++) {
        nt_ledger_record records[PIECE];
        for (size_t i = 0; i < PIECE; i++) {
            const size_t at = nt_test_random(&seed) % ADDRESSES;
            const uint64_t bytes = 1 + nt_test_random(&seed) % 1000;
            records[i] = (nt_ledger_record){.time = ++time,
                                            .address = at,
                                            .bytes = bytes,
                                            .kind = 3,
                                            .is_release = held[at] != 0};
            sum = held[at] != 0 ? sum - held[at] : sum + bytes;
            held[at] = held[at] != 0 ? 0 : bytes;
            peak = sum > peak ? sum : peak;
        }
        for (size_t i = PIECE; i > 0; i--) {
            const size_t k = nt_test_random(&seed) % i;
            NT_CHECK_OK(nt_ledger_push(ledger, &records[k], NULL), NULL);
            records[k] = records[i - 1];
        }
        NT_CHECK_OK(nt_ledger_settle(ledger, 0, NULL), NULL);
        NT_CHECK(nt_ledger_check(ledger));
    }
    NT_CHECK_UINT(ledger_use(ledger, "").bytes, sum);
    NT_CHECK_UINT(ledger_use(ledger, "").peak_bytes, peak);
    nt_ledger_free(ledger);
}

static nt_status
ledger_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    nt_ledger *ledger = NULL;
    nt_error err;
    nt_status status = ledger_new(alloc, &ledger, &err);
    if (status != NT_OK) {
        NT_CHECK(ledger == NULL);
        return status;
    }
    const nt_ledger_live seed = {.address = 3, .bytes = 9};
    NT_TRY_DONE(nt_ledger_seed(ledger, &seed, &err));
    for (uint64_t i = 0; i < 40; i++) {
        NT_TRY_DONE(ledger_record(ledger, i, i % 4 == 3, i / 4 * 4 + i % 2, i + 1,
                                  i % 2 ? "/libnccl.so" : "/libc10_cuda.so", &err));
    }
    const size_t waiting = nt_ledger_waiting(ledger);
    status = nt_ledger_settle(ledger, 0, &err);
    NT_CHECK(status == NT_OK || nt_ledger_waiting(ledger) > 0);
    NT_CHECK(nt_ledger_waiting(ledger) <= waiting);
    NT_CHECK(nt_ledger_check(ledger));
done:
    nt_ledger_free(ledger);
    return status;
}

NT_TEST(refused_memory_leaves_a_sound_ledger)
{
    nt_test_sweep(t, ledger_sweep, NULL);
}

const nt_test_case nt_ledger_tests[] = {
    NT_CASE(first_rule_names_the_library),
    NT_CASE(records_apply_in_order_of_time),
    NT_CASE(a_release_ends_the_older_claim),
    NT_CASE(a_seed_gives_way_to_its_record),
    NT_CASE(random_records_agree_with_sums),
    NT_CASE(refused_memory_leaves_a_sound_ledger),
    NT_CASES_END,
};
