/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_source.h"

#include <string.h>

#include "nt_test.h"

/* Gives `left` bytes that count up, at most `step` at a time. */
typedef struct counting {
    size_t left, step, given;
    int fail_with; /* returned once nothing is left; 0: the end */
} counting;

static int
counting_read(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    counting *c = ctx;
    size_t n = c->left < c->step ? c->left : c->step;
    n = n < capacity ? n : capacity;
    if (n == 0 && c->fail_with != 0) {
        return c->fail_with;
    }
    for (size_t i = 0; i < n; i++) {
        ((uint8_t *)buffer)[i] = (uint8_t)(c->given + i);
    }
    c->left -= n;
    c->given += n;
    *count = n;
    return 0;
}

NT_TEST(input_is_seen_byte_for_byte)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    counting c = {.left = 1000003, .step = 4099};
    nt_source source;
    nt_source_init_input(&source, hostile.alloc, (nt_input){counting_read, &c}, NULL);
    uint64_t seed = 3, offset = 0;
    for (;;) {
        const size_t want = 1 + (size_t)(nt_test_random(&seed) % 9000);
        NT_REQUIRE(NT_CHECK_OK(nt_source_fill(&source, want, NULL), NULL));
        const size_t have = (size_t)(source.end - source.next);
        NT_CHECK(have >= want || source.exhausted);
        const size_t take = have < want ? have : want;
        NT_CHECK_UINT(nt_source_offset(&source), offset);
        for (size_t i = 0; i < take; i++) {
            NT_REQUIRE(NT_CHECK_UINT(source.next[i], (uint8_t)(offset + i)));
        }
        source.next += take;
        offset += take;
        if (take == 0) {
            break;
        }
    }
    NT_CHECK_UINT(offset, 1000003);
    nt_source_clear(&source);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(window_grows_with_bytes_not_claims)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    counting c = {.left = 5000, .step = 5000};
    nt_source source;
    nt_source_init_input(&source, hostile.alloc, (nt_input){counting_read, &c}, NULL);
    NT_CHECK_OK(nt_source_fill(&source, SIZE_MAX, NULL), NULL);
    NT_CHECK_UINT(source.end - source.next, 5000);
    NT_CHECK(hostile.peak_bytes < (size_t)2 << 20);
    nt_source_clear(&source);
}

NT_TEST(memory_is_windowed_without_copy)
{
    static uint8_t bytes[700000];
    nt_source source;
    nt_source_init_memory(&source, bytes, sizeof bytes, NULL);
    NT_CHECK_OK(nt_source_fill(&source, 1, NULL), NULL);
    NT_CHECK(source.next == bytes);
    NT_CHECK(source.end < bytes + sizeof bytes);
    NT_CHECK_OK(nt_source_fill(&source, SIZE_MAX, NULL), NULL);
    NT_CHECK(source.end == bytes + sizeof bytes && source.exhausted);
    nt_source_clear(&source);
}

static int
stop_at_once(void *ctx, uint64_t done)
{
    (void)ctx;
    (void)done;
    return 1;
}

NT_TEST(failures_and_cancelling_are_told)
{
    counting c = {.left = 10, .step = 10, .fail_with = 1};
    nt_error err = {0};
    nt_source source;
    nt_source_init_input(&source, nt_alloc_system(), (nt_input){counting_read, &c},
                         NULL);
    NT_CHECK_STATUS(nt_source_fill(&source, 11, &err), NT_IO, &err);
    NT_CHECK_UINT(err.offset, 10);
    c.fail_with = NT_LIMIT;
    NT_CHECK_STATUS(nt_source_fill(&source, 11, &err), NT_LIMIT, &err);
    const nt_progress stop = {stop_at_once, NULL};
    source.progress = &stop;
    NT_CHECK_STATUS(nt_source_fill(&source, 11, &err), NT_CANCELLED, &err);
    nt_source_clear(&source);
}

static nt_status
source_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    (void)ctx;
    counting c = {.left = 1 << 20, .step = 1 << 16};
    nt_source source;
    nt_source_init_input(&source, *alloc, (nt_input){counting_read, &c}, NULL);
    const nt_status status = nt_source_fill(&source, 1 << 20, NULL);
    nt_source_clear(&source);
    return status;
}

NT_TEST(source_survives_running_out_of_memory)
{
    nt_test_sweep(t, source_body, NULL);
}

const nt_test_case nt_source_tests[] = {
    NT_CASE(input_is_seen_byte_for_byte),
    NT_CASE(window_grows_with_bytes_not_claims),
    NT_CASE(memory_is_windowed_without_copy),
    NT_CASE(failures_and_cancelling_are_told),
    NT_CASE(source_survives_running_out_of_memory),
    NT_CASES_END,
};
