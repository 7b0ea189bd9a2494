/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ring_origins.h"

#include <pthread.h>
#include <string.h>

#include "nt_test.h"

#define SLOTS 64
#define NONE UINT32_MAX

static nt_ring_origins
origins_of(nt_ring_origin *slots, uint64_t count)
{
    memset(slots, 0, count * sizeof *slots);
    return (nt_ring_origins){.slots = slots, .mask = count - 1, .most = count / 4 * 3};
}

NT_TEST(block_is_known_until_it_is_free)
{
    nt_ring_origin slots[SLOTS];
    nt_ring_origins o = origins_of(slots, SLOTS);
    nt_ring_origins_set(&o, 512, 0, 0);
    nt_ring_origins_set(&o, 1024, 7, 65535);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 512, 1), 0);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1024, 8), 65535);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1024, 7), NONE);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1536, 8), NONE);
    nt_ring_origins_set(&o, 1024, 9, 3);
    NT_CHECK_UINT(o.count, 2);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1024, 9), NONE);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1024, 10), 3);
    nt_ring_origins_drop(&o, 512);
    nt_ring_origins_drop(&o, 512);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 512, 99), NONE);
    nt_ring_origins_clear(&o);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 1024, 99), NONE);
    NT_CHECK_UINT(o.count, 0);
    NT_CHECK_UINT(o.changes % 2, 0);
}

NT_TEST(no_table_and_no_address_are_fine)
{
    nt_ring_origin slots[SLOTS];
    nt_ring_origins none = {.slots = NULL}, o = origins_of(slots, SLOTS);
    nt_ring_origins_set(&none, 512, 1, 1);
    nt_ring_origins_drop(&none, 512);
    nt_ring_origins_clear(&none);
    NT_CHECK_UINT(nt_ring_origins_find(&none, 512, 9), NONE);
    nt_ring_origins_set(&o, 0, 1, 1);
    nt_ring_origins_drop(&o, 0);
    NT_CHECK_UINT(nt_ring_origins_find(&o, 0, 9), NONE);
    NT_CHECK_UINT(o.count, 0);
}

NT_TEST(full_table_counts_what_it_loses)
{
    nt_ring_origin slots[SLOTS];
    nt_ring_origins o = origins_of(slots, SLOTS);
    for (uint64_t i = 1; i <= 50; i++) {
        nt_ring_origins_set(&o, i * 512, i, (uint32_t)i);
    }
    NT_CHECK_UINT(o.count, 48);
    NT_CHECK_UINT(o.lost, 2);
    NT_CHECK_UINT(nt_ring_origins_find(&o, UINT64_C(49) * 512, 99), NONE);
    for (uint64_t i = 1; i <= 48; i++) {
        NT_CHECK_UINT(nt_ring_origins_find(&o, i * 512, 99), i);
    }
    nt_ring_origins_drop(&o, 512);
    nt_ring_origins_set(&o, UINT64_C(49) * 512, 51, 49);
    NT_CHECK_UINT(nt_ring_origins_find(&o, UINT64_C(49) * 512, 99), 49);
}

/* Blocks come and go at random, so many that homes collide; an array knows all. */
NT_TEST(random_blocks_agree_with_model)
{
    enum { BLOCKS = 96 };
    nt_ring_origin slots[SLOTS];
    nt_ring_origins o = origins_of(slots, SLOTS);
    uint32_t model[BLOCKS];
    uint64_t seed = 11, used = 0;
    memset(model, 0xff, sizeof model);
    for (uint32_t i = 0; i < 200000; i++) {
        const uint64_t r = nt_test_random(&seed);
        const size_t k = (size_t)(r % BLOCKS);
        /* Sizes of two kinds: small blocks side by side, and whole segments. */
        const uint64_t addr = k % 2 == 0 ? (k + 1) * 512 : (k + 1) << 21;
        if (model[k] != NONE) {
            nt_ring_origins_drop(&o, addr);
            model[k] = NONE;
            used--;
        } else if (used < o.most) {
            nt_ring_origins_set(&o, addr, i, i & 0xffff);
            model[k] = i & 0xffff;
            used++;
        }
        const size_t other = (size_t)(r >> 32) % BLOCKS;
        const uint64_t at = other % 2 == 0 ? (other + 1) * 512 : (other + 1) << 21;
        NT_REQUIRE(
            NT_CHECK_UINT(nt_ring_origins_find(&o, at, UINT64_MAX), model[other]));
    }
    NT_CHECK_UINT(o.count, used);
    NT_CHECK_UINT(o.lost, 0);
}

/* ---- a producer and a reader at the same time ----------------------------------- */

/* Enough that a look meets a change at its worst moment; a sanitizer of threads needs
 * no such luck, and is slow. */
#ifdef __SANITIZE_THREAD__
#define RACE_ROUNDS UINT64_C(100000)
#else
#define RACE_ROUNDS UINT64_C(8000000)
#endif

/* Few slots and nearly as many blocks: entries move up all the time. */
#define RACE_SLOTS 16
#define RACE_BLOCKS UINT64_C(11)

typedef struct race {
    nt_ring_origins *origins;
    int is_over;
    uint64_t found, wrong;
} race;

/* A block's stack is its number, whenever it is made: nothing else may ever be found.
 */
static void *
race_produce(void *argument)
{
    race *r = argument;
    uint64_t seed = 5;
    for (uint64_t i = 0; i < RACE_ROUNDS; i++) {
        const uint64_t block = nt_test_random(&seed) % RACE_BLOCKS + 1;
        nt_ring_origins_set(r->origins, block * 512, i, (uint32_t)block);
        nt_ring_origins_drop(r->origins,
                             (nt_test_random(&seed) % RACE_BLOCKS + 1) * 512);
    }
    __atomic_store_n(&r->is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}

NT_TEST(reader_finds_the_right_stack_or_none)
{
    nt_ring_origin slots[RACE_SLOTS];
    nt_ring_origins o = origins_of(slots, RACE_SLOTS);
    race r = {.origins = &o};
    pthread_t producer;
    uint64_t block = 0;
    NT_REQUIRE(NT_CHECK(pthread_create(&producer, NULL, race_produce, &r) == 0));
    while (__atomic_load_n(&r.is_over, __ATOMIC_ACQUIRE) == 0) {
        block = block % RACE_BLOCKS + 1;
        const uint32_t stack = nt_ring_origins_find(&o, block * 512, UINT64_MAX);
        r.found += stack == block;
        r.wrong += stack != block && stack != NONE;
    }
    NT_CHECK_INT(pthread_join(producer, NULL), 0);
    NT_CHECK_UINT(r.wrong, 0);
    NT_CHECK(o.count > 0 && o.count <= RACE_BLOCKS);
}

const nt_test_case nt_ring_origins_tests[] = {
    NT_CASE(block_is_known_until_it_is_free),
    NT_CASE(no_table_and_no_address_are_fine),
    NT_CASE(full_table_counts_what_it_loses),
    NT_CASE(random_blocks_agree_with_model),
    NT_CASE(reader_finds_the_right_stack_or_none),
    NT_CASES_END,
};
