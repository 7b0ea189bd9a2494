/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_live.h"

#include "nt_test.h"

/* Addresses that the table is asked for: a few, so that they come again. */
#define ADDRESSES 700

/* Sets, finds and takes out at random; `rows` is what the table should hold. */
static nt_status
live_compare(nt_test *t, nt_timeline_live *live, uint32_t *rows, uint64_t seed)
{
    for (uint32_t step = 0; step < 20000; step++) {
        const size_t number = (size_t)(nt_test_random(&seed) % ADDRESSES);
        /* The last one is the address that stands for none. */
        const uint64_t address =
            number == ADDRESSES - 1 ? NT_LIVE_NOWHERE : (uint64_t)number * 512;
        NT_CHECK_UINT(nt_timeline_live_find(live, address), rows[number]);
        if (nt_test_random(&seed) % 2 == 0) {
            uint32_t old;
            NT_TRY(nt_timeline_live_set(live, address, step, &old, NULL));
            NT_CHECK_UINT(old, rows[number]);
            rows[number] = step;
        } else {
            NT_CHECK_UINT(nt_timeline_live_remove(live, address), rows[number]);
            rows[number] = NT_NONE;
        }
    }
    return NT_OK;
}

static nt_status
live_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    static uint32_t rows[ADDRESSES];
    nt_timeline_live live = {.alloc = *alloc};
    size_t held = 0, counted = 0;
    (void)ctx;
    for (size_t i = 0; i < ADDRESSES; i++) {
        rows[i] = NT_NONE;
    }
    const nt_status status = live_compare(t, &live, rows, 11);
    for (size_t i = 0; i < ADDRESSES; i++) {
        held += rows[i] != NT_NONE;
    }
    for (size_t at = 0; at < live.bucket_count * NT_LIVE_PLACES; at++) {
        const nt_live_bucket *bucket = &live.buckets[at / NT_LIVE_PLACES];
        counted += bucket->row[at % NT_LIVE_PLACES] != NT_NONE;
    }
    NT_CHECK_UINT(live.count, held);
    NT_CHECK_UINT(counted, held);
    nt_timeline_live_clear(&live);
    return status;
}

NT_TEST(rows_are_found_as_set)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    NT_CHECK_OK(live_body(t, &hostile.alloc, NULL), NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(table_survives_running_out_of_memory)
{
    nt_test_sweep(t, live_body, NULL);
}

NT_TEST(empty_table_holds_no_row)
{
    nt_timeline_live live = {.alloc = nt_alloc_system()};
    NT_CHECK_UINT(nt_timeline_live_find(&live, 512), NT_NONE);
    NT_CHECK_UINT(nt_timeline_live_find(&live, NT_LIVE_NOWHERE), NT_NONE);
    NT_CHECK_UINT(nt_timeline_live_remove(&live, 512), NT_NONE);
    nt_timeline_live_clear(&live);
}

const nt_test_case nt_timeline_live_tests[] = {
    NT_CASE(rows_are_found_as_set),
    NT_CASE(table_survives_running_out_of_memory),
    NT_CASE(empty_table_holds_no_row),
    NT_CASES_END,
};
