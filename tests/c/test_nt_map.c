/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_map.h"

#include <stdio.h>
#include <string.h>

#include "nt_test.h"

/* Sets `key`; a status other than NT_OK is a failure of the case. */
static void
map_put(nt_test *t, nt_map *map, uint64_t key, uint32_t value)
{
    nt_error err = {0};
    NT_CHECK_OK(nt_map_set(map, key, value, &err), &err);
}

NT_TEST(empty_map_finds_nothing)
{
    nt_hostile hostile;
    nt_map map;
    nt_hostile_init(&hostile, t);
    nt_map_init(&map, hostile.alloc);
    NT_CHECK_UINT(nt_map_find(&map, 0), NT_NONE);
    NT_CHECK_UINT(nt_map_remove(&map, 0), NT_NONE);
    nt_map_clear(&map);
    NT_CHECK_UINT(hostile.requests, 0);
}

NT_TEST(zeroed_map_works_like_new)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_map map = {.alloc = hostile.alloc};
    NT_CHECK_UINT(nt_map_find(&map, 5), NT_NONE);
    map_put(t, &map, 5, 6);
    NT_CHECK_UINT(nt_map_find(&map, 5), 6);
    nt_map_clear(&map);
    NT_CHECK_UINT(nt_map_find(&map, 5), NT_NONE);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(every_key_and_value_is_allowed)
{
    static const uint64_t keys[] = {0, 1, UINT32_MAX, UINT64_MAX - 1, UINT64_MAX};
    const nt_alloc alloc = nt_alloc_system();
    nt_map map;
    nt_map_init(&map, alloc);
    for (uint32_t i = 0; i < 5; i++) {
        map_put(t, &map, keys[i], i == 0 ? 0 : NT_NONE - i);
    }
    NT_CHECK_UINT(map.count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        NT_CHECK_UINT(nt_map_find(&map, keys[i]), i == 0 ? 0 : NT_NONE - i);
    }
    NT_CHECK_UINT(nt_map_find(&map, 2), NT_NONE);
    nt_map_clear(&map);
}

NT_TEST(swap_tells_what_was_there)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_map map;
    uint32_t old = 1;
    nt_map_init(&map, alloc);
    NT_CHECK_OK(nt_map_swap(&map, 9, 10, &old, NULL), NULL);
    NT_CHECK_UINT(old, NT_NONE);
    NT_CHECK_OK(nt_map_swap(&map, 9, 11, &old, NULL), NULL);
    NT_CHECK_UINT(old, 10);
    NT_CHECK_UINT(map.count, 1);
    NT_CHECK_UINT(nt_map_remove(&map, 9), 11);
    NT_CHECK_UINT(map.count, 0);
    NT_CHECK_OK(nt_map_swap(&map, 9, 12, &old, NULL), NULL);
    NT_CHECK_UINT(old, NT_NONE);
    nt_map_clear(&map);
}

NT_TEST(map_grows_without_losing_keys)
{
    enum { KEYS = 100000 };
    nt_hostile hostile;
    nt_map map;
    nt_hostile_init(&hostile, t);
    nt_map_init(&map, hostile.alloc);
    /* Addresses as an allocator hands them out: multiples of 512. */
    for (uint32_t i = 0; i < KEYS; i++) {
        map_put(t, &map, UINT64_C(0x7f0000000000) + i * UINT64_C(512), i);
    }
    NT_CHECK_UINT(map.count, KEYS);
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint64_t key = UINT64_C(0x7f0000000000) + i * UINT64_C(512);
        NT_REQUIRE(NT_CHECK_UINT(nt_map_find(&map, key), i));
        NT_REQUIRE(NT_CHECK_UINT(nt_map_find(&map, key + 1), NT_NONE));
    }
    nt_map_clear(&map);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(replacing_and_removing_needs_no_memory)
{
    nt_hostile hostile;
    nt_map map;
    nt_hostile_init(&hostile, t);
    nt_map_init(&map, hostile.alloc);
    for (uint32_t i = 0; i < 20; i++) {
        map_put(t, &map, i, i);
    }
    const size_t requests = hostile.requests;
    for (uint32_t i = 0; i < 10000; i++) {
        map_put(t, &map, i % 20, i);
        NT_CHECK_UINT(nt_map_remove(&map, (i + 7) % 20), i < 13 ? i + 7 : i - 13);
        map_put(t, &map, (i + 7) % 20, i < 13 ? i + 7 : i - 13);
    }
    NT_CHECK_UINT(hostile.requests, requests);
    nt_map_clear(&map);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(map_that_cannot_grow_stays_whole)
{
    nt_hostile hostile;
    nt_map map;
    nt_error err = {0};
    uint32_t keys, old = 77;
    nt_hostile_init(&hostile, t);
    nt_map_init(&map, hostile.alloc);
    map_put(t, &map, 0, 0);
    hostile.fail_at = hostile.requests + 1;
    hostile.fail_on = true;
    for (keys = 1; nt_map_swap(&map, keys, keys, &old, &err) == NT_OK; keys++) {
        NT_CHECK_UINT(old, NT_NONE);
        old = 77;
    }
    NT_CHECK_INT(err.status, NT_NOMEM);
    NT_CHECK_UINT(old, 77);
    NT_CHECK_UINT(map.count, keys);
    for (uint32_t i = 0; i < keys; i++) {
        NT_CHECK_UINT(nt_map_find(&map, i), i);
    }
    NT_CHECK_UINT(nt_map_find(&map, keys), NT_NONE);
    hostile.fail_at = 0;
    map_put(t, &map, keys, keys);
    NT_CHECK_UINT(nt_map_find(&map, keys), keys);
    nt_map_clear(&map);
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
map_fill(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_map map;
    nt_status status = NT_OK;
    (void)ctx;
    nt_map_init(&map, *alloc);
    for (uint32_t i = 0; i < 500 && status == NT_OK; i++) {
        nt_error err = {0};
        status = nt_map_set(&map, i * UINT64_C(0x10001), i, &err);
        NT_CHECK_INT(err.status, status);
        NT_CHECK_UINT(map.count, status == NT_OK ? i + 1 : i);
    }
    nt_map_clear(&map);
    return status;
}

NT_TEST(map_survives_every_refusal)
{
    nt_test_sweep(t, map_fill, NULL);
}

/* One random step on a map and on an array of values by key. */
static void
map_step(nt_test *t, nt_map *map, uint32_t *model, size_t keys, uint64_t *seed)
{
    const uint64_t r = nt_test_random(seed);
    const size_t key = (size_t)(r >> 8) % keys;
    const uint32_t value = (uint32_t)(r >> 40);
    const uint64_t address = UINT64_C(0x300000000) + key * UINT64_C(0x200000);
    uint32_t old = 0;
    switch (r % 8) {
    case 0:
    case 1:
    case 2:
        NT_CHECK_UINT(nt_map_remove(map, address), model[key]);
        model[key] = NT_NONE;
        break;
    case 3: NT_CHECK_UINT(nt_map_find(map, address), model[key]); break;
    default:
        NT_CHECK_OK(nt_map_swap(map, address, value, &old, NULL), NULL);
        NT_CHECK_UINT(old, model[key]);
        model[key] = value;
        break;
    }
}

NT_TEST(random_steps_follow_an_array)
{
    for (uint64_t run = 1; run <= 30; run++) {
        uint32_t model[300];
        uint64_t seed = run;
        const size_t failures = t->failures, keys = 10 + (size_t)run * 9;
        size_t count = 0;
        nt_hostile hostile;
        nt_map map;
        nt_hostile_init(&hostile, t);
        nt_map_init(&map, hostile.alloc);
        memset(model, 0xff, sizeof model);
        for (int step = 0; step < 5000 && t->failures == failures; step++) {
            map_step(t, &map, model, keys, &seed);
        }
        for (size_t key = 0; key < keys; key++) {
            const uint64_t address = UINT64_C(0x300000000) + key * UINT64_C(0x200000);
            NT_CHECK_UINT(nt_map_find(&map, address), model[key]);
            count += model[key] != NT_NONE;
        }
        NT_CHECK_UINT(map.count, count);
        nt_map_clear(&map);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

/* The id of `text`; a failure of the case if there is none. */
static uint32_t
map_intern(nt_test *t, nt_strings *strings, const char *text, size_t length)
{
    uint32_t id = NT_NONE;
    nt_error err = {0};
    NT_CHECK_OK(nt_strings_intern(strings, text, length, &id, &err), &err);
    return id;
}

NT_TEST(equal_strings_share_one_id)
{
    nt_hostile hostile;
    nt_strings *strings = NULL;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_strings_new(&hostile.alloc, &strings, NULL), NULL));
    NT_CHECK_UINT(nt_strings_count(strings), 0);
    NT_CHECK_UINT(nt_strings_find(strings, "a", 1), NT_NONE);
    NT_CHECK_UINT(map_intern(t, strings, "forward", 7), 0);
    NT_CHECK_UINT(map_intern(t, strings, "backward", 8), 1);
    NT_CHECK_UINT(map_intern(t, strings, "forward", 7), 0);
    NT_CHECK_UINT(map_intern(t, strings, "forward", 3), 2);
    NT_CHECK_UINT(nt_strings_find(strings, "backward", 8), 1);
    NT_CHECK_UINT(nt_strings_find(strings, "backward", 4), NT_NONE);
    NT_CHECK_UINT(nt_strings_count(strings), 3);
    nt_strings_free(strings);
    nt_strings_free(NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(strings_may_hold_any_bytes)
{
    static const char *const texts[] = {"", "\0", "\0\0", "a\0b", "a\0c", "\xff\xfe"};
    static const size_t lengths[] = {0, 1, 2, 3, 3, 2};
    const nt_alloc alloc = nt_alloc_system();
    nt_strings *strings = NULL;
    NT_REQUIRE(NT_CHECK_OK(nt_strings_new(&alloc, &strings, NULL), NULL));
    for (uint32_t i = 0; i < 6; i++) {
        NT_CHECK_UINT(map_intern(t, strings, texts[i], lengths[i]), i);
    }
    for (uint32_t i = 0; i < 6; i++) {
        size_t length = 77;
        const char *text = nt_strings_get(strings, i, &length);
        NT_CHECK_UINT(length, lengths[i]);
        NT_CHECK_BYTES(text, texts[i], lengths[i]);
        NT_CHECK_UINT(nt_strings_find(strings, texts[i], lengths[i]), i);
    }
    NT_CHECK_UINT(map_intern(t, strings, NULL, 0), 0);
    nt_strings_free(strings);
}

NT_TEST(long_string_is_kept_whole)
{
    static char text[3 << 20];
    nt_hostile hostile;
    nt_strings *strings = NULL;
    size_t length;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_strings_new(&hostile.alloc, &strings, NULL), NULL));
    memset(text, 'x', sizeof text);
    NT_CHECK_UINT(map_intern(t, strings, text, sizeof text), 0);
    text[sizeof text - 1] = 'y';
    NT_CHECK_UINT(map_intern(t, strings, text, sizeof text), 1);
    const char *kept = nt_strings_get(strings, 1, &length);
    NT_CHECK_UINT(length, sizeof text);
    NT_CHECK_BYTES(kept, text, sizeof text);
    nt_strings_free(strings);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(text_stays_put_as_table_grows)
{
    nt_hostile hostile;
    nt_strings *strings = NULL;
    char text[32];
    size_t length;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_strings_new(&hostile.alloc, &strings, NULL), NULL));
    NT_CHECK_UINT(map_intern(t, strings, "first", 5), 0);
    const char *first = nt_strings_get(strings, 0, &length);
    for (uint32_t i = 1; i < 20000; i++) {
        const int size = snprintf(text, sizeof text, "name_%u", i * 7919);
        NT_REQUIRE(NT_CHECK_UINT(map_intern(t, strings, text, (size_t)size), i));
    }
    NT_CHECK(nt_strings_get(strings, 0, &length) == first);
    NT_CHECK_BYTES(first, "first", 5);
    for (uint32_t i = 1; i < 20000; i++) {
        const int size = snprintf(text, sizeof text, "name_%u", i * 7919);
        NT_REQUIRE(NT_CHECK_UINT(nt_strings_find(strings, text, (size_t)size), i));
    }
    nt_strings_free(strings);
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
map_fill_strings(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_strings *strings = NULL;
    char text[40];
    (void)ctx;
    const nt_status made = nt_strings_new(alloc, &strings, NULL);
    if (made != NT_OK) {
        NT_CHECK(strings == NULL);
        return made;
    }
    nt_status status = NT_OK;
    for (uint32_t i = 0; i < 300 && status == NT_OK; i++) {
        const int size = snprintf(text, sizeof text, "a name of some length %u", i);
        nt_error err = {0};
        uint32_t id = 77;
        status = nt_strings_intern(strings, text, (size_t)size, &id, &err);
        NT_CHECK_UINT(id, status == NT_OK ? i : 77);
        NT_CHECK_INT(err.status, status);
        NT_CHECK_UINT(nt_strings_count(strings), status == NT_OK ? i + 1 : i);
        NT_CHECK_UINT(nt_strings_find(strings, text, (size_t)size),
                      status == NT_OK ? i : NT_NONE);
    }
    nt_strings_free(strings);
    return status;
}

NT_TEST(strings_survive_every_refusal)
{
    nt_test_sweep(t, map_fill_strings, NULL);
}

/* A string over two letters, so that many are equal and many begin alike. */
static size_t
map_random_text(uint64_t *seed, char text[8])
{
    const size_t length = (size_t)(nt_test_random(seed) % 9);
    for (size_t i = 0; i < length; i++) {
        text[i] = (char)('a' + nt_test_random(seed) % 2);
    }
    return length;
}

typedef struct map_text {
    char text[8];
    size_t length;
} map_text;

static uint32_t
map_model_find(const map_text *model, uint32_t count, const char *text, size_t length)
{
    for (uint32_t i = 0; i < count; i++) {
        if (model[i].length == length && memcmp(model[i].text, text, length) == 0) {
            return i;
        }
    }
    return NT_NONE;
}

NT_TEST(random_strings_follow_a_list)
{
    for (uint64_t run = 1; run <= 10; run++) {
        static map_text model[1024];
        uint64_t seed = run;
        uint32_t count = 0;
        const size_t failures = t->failures;
        nt_hostile hostile;
        nt_strings *strings = NULL;
        nt_hostile_init(&hostile, t);
        NT_REQUIRE(NT_CHECK_OK(nt_strings_new(&hostile.alloc, &strings, NULL), NULL));
        for (int step = 0; step < 1500 && t->failures == failures; step++) {
            char text[8];
            const size_t length = map_random_text(&seed, text);
            const uint32_t known = map_model_find(model, count, text, length);
            NT_CHECK_UINT(nt_strings_find(strings, text, length), known);
            NT_CHECK_UINT(map_intern(t, strings, text, length),
                          known == NT_NONE ? count : known);
            if (known == NT_NONE) {
                memcpy(model[count].text, text, length);
                model[count++].length = length;
            }
            NT_CHECK_UINT(nt_strings_count(strings), count);
        }
        nt_strings_free(strings);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

const nt_test_case nt_map_tests[] = {
    NT_CASE(empty_map_finds_nothing),
    NT_CASE(zeroed_map_works_like_new),
    NT_CASE(every_key_and_value_is_allowed),
    NT_CASE(swap_tells_what_was_there),
    NT_CASE(map_grows_without_losing_keys),
    NT_CASE(replacing_and_removing_needs_no_memory),
    NT_CASE(map_that_cannot_grow_stays_whole),
    NT_CASE(map_survives_every_refusal),
    NT_CASE(random_steps_follow_an_array),
    NT_CASE(equal_strings_share_one_id),
    NT_CASE(strings_may_hold_any_bytes),
    NT_CASE(long_string_is_kept_whole),
    NT_CASE(text_stays_put_as_table_grows),
    NT_CASE(strings_survive_every_refusal),
    NT_CASE(random_strings_follow_a_list),
    NT_CASES_END,
};
