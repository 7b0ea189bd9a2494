/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ring.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nt_test.h"

/* An entry whose every word is told by its number, so that a torn one shows. */
static nt_ring_entry
entry_of(uint64_t i)
{
    return (nt_ring_entry){
        .ticks = i,
        .addr = nt_mix64(i),
        .size = i ^ 0x5555,
        .stream = ~i,
        .pool_first = i * 3,
        .pool_second = i * 5,
        .stack = (uint32_t)i,
        .metadata = (uint32_t)(i >> 3),
        .action = (uint8_t)(i % 9),
        .flags = (uint8_t)(i >> 1 & 3),
    };
}

static bool
same_entry(const nt_ring_entry *a, uint64_t i)
{
    const nt_ring_entry b = entry_of(i);
    return memcmp(a, &b, sizeof b) == 0;
}

static void
push_many(nt_ring *ring, uint64_t from, uint64_t until)
{
    for (uint64_t i = from; i < until; i++) {
        const nt_ring_entry entry = entry_of(i);
        nt_ring_push(ring, &entry);
    }
}

NT_TEST(what_was_pushed_is_read)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 100, 0);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    NT_CHECK(nt_ring_room(ring) >= 125);
    NT_CHECK_UINT((uintptr_t)ring->entries % 64, 0);
    push_many(ring, 0, 40);
    nt_ring_entry out[40];
    NT_CHECK_UINT(nt_ring_head(ring), 40);
    NT_CHECK_UINT(nt_ring_read(ring, 0, 40, out), 0);
    for (uint64_t i = 0; i < 40; i++) {
        NT_CHECK(same_entry(&out[i], i));
    }
    NT_CHECK_UINT(nt_ring_read(ring, 38, 40, out), 38);
    NT_CHECK(same_entry(&out[0], 38) && same_entry(&out[1], 39));
    nt_ring_free(ring);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(overwritten_events_are_counted_exactly)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 0, 0);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    const uint64_t room = nt_ring_room(ring);
    nt_ring_entry out[64];
    NT_REQUIRE(NT_CHECK_UINT(room, 63));
    push_many(ring, 0, room);
    NT_CHECK_UINT(nt_ring_read(ring, 0, room, out), 0);
    push_many(ring, room, room + 1);
    NT_CHECK_UINT(nt_ring_read(ring, 0, room, out), 1);
    NT_CHECK(same_entry(&out[1], 1));
    push_many(ring, room + 1, 10 * room);
    NT_CHECK_UINT(nt_ring_read(ring, 9 * room, 10 * room, out), 9 * room);
    for (uint64_t i = 0; i < room; i++) {
        NT_CHECK(same_entry(&out[i], 9 * room + i));
    }
    NT_CHECK_UINT(nt_ring_read(ring, 8 * room, 8 * room + 5, out), 8 * room + 5);
    nt_ring_free(ring);
}

NT_TEST(restart_sets_old_events_apart)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 10, 0);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    NT_CHECK(nt_ring_is_late(ring));
    nt_ring_restart(ring, 0);
    NT_CHECK(!nt_ring_is_late(ring));
    push_many(ring, 0, 5);
    NT_CHECK_UINT(nt_ring_start(ring), 0);
    nt_ring_restart(ring, 1);
    NT_CHECK_UINT(nt_ring_start(ring), 5);
    NT_CHECK(nt_ring_is_late(ring));
    nt_ring_free(ring);
}

NT_TEST(no_memory_gives_no_ring)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    hostile.fail_at = 1;
    NT_CHECK(nt_ring_new(&hostile.alloc, 100, 1) == NULL);
    NT_CHECK(nt_ring_new(&hostile.alloc, UINT64_MAX, 0) == NULL);
    NT_CHECK(nt_ring_new(&hostile.alloc, UINT64_C(1) << 60, 1) == NULL);
    nt_ring_free(NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

/* Code objects by number; 13 can't be described. */
static int
describe(uint64_t code, nt_ring_code *out)
{
    static const uint8_t lines[] = {1, 2, 3};
    static const char *const names[] = {"forward", "backward", "step"};
    if (code == 13) {
        return -1;
    }
    *out = (nt_ring_code){
        .name = {names[code % 3], (uint32_t)strlen(names[code % 3]), 1},
        .filename = {"train.py", 8, 1},
        .lines = lines,
        .line_bytes = sizeof lines,
        .first_line = (int32_t)code,
        .format = NT_RING_LINES_311,
    };
    return 0;
}

static uint32_t
stack_of(nt_ring *ring, const nt_ring_frame *frames, size_t count)
{
    uint64_t print[2];
    nt_ring_fingerprint(frames, count, print);
    const uint32_t found = nt_ring_find_stack(ring, print);
    return found != NT_RING_NONE
               ? found
               : nt_ring_add_stack(ring, frames, count, print, describe);
}

NT_TEST(equal_stacks_have_one_id)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 10, 1);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    nt_ring_frame frames[] = {{1, 7, 10, 0}, {2, 7, 20, 0}, {3, 7, 30, 0}};
    const uint32_t first = stack_of(ring, frames, 3);
    NT_CHECK_UINT(stack_of(ring, frames, 3), first);
    const uint32_t shorter = stack_of(ring, frames, 2);
    NT_CHECK(shorter != first);
    frames[0].lasti = 12;
    const uint32_t moved = stack_of(ring, frames, 3);
    frames[0].lasti = 10;
    frames[0].version = 8;
    const uint32_t reborn = stack_of(ring, frames, 3);
    NT_CHECK(moved != first && reborn != first && reborn != moved);
    nt_ring_counts counts;
    nt_ring_count(ring, &counts);
    NT_CHECK_UINT(counts.stacks, 4);
    NT_CHECK_UINT(counts.frames, 5);
    NT_CHECK_UINT(counts.codes, 4);
    size_t count;
    const uint32_t *ids = nt_ring_stack_frames(ring, first, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 3));
    nt_ring_code code;
    NT_CHECK_UINT(nt_ring_frame_lasti(ring, ids[1], &code), 20);
    NT_CHECK_UINT(code.name.length, 4);
    NT_CHECK_BYTES(code.name.data, "step", 4);
    NT_CHECK_BYTES(code.filename.data, "train.py", 8);
    NT_CHECK_INT(code.first_line, 2);
    NT_CHECK_UINT(code.line_bytes, 3);
    nt_ring_free(ring);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(stack_that_fails_is_counted)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 10, 1);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    const nt_ring_frame frames[] = {{1, 7, 10, 0}, {13, 7, 20, 0}};
    NT_CHECK_UINT(stack_of(ring, frames, 2), NT_RING_NONE);
    nt_ring_counts counts;
    nt_ring_count(ring, &counts);
    NT_CHECK_UINT(counts.lost_stacks, 1);
    NT_CHECK_UINT(counts.stacks, 0);
    NT_CHECK_UINT(stack_of(ring, frames, 1), 0);
    nt_ring_free(ring);
}

NT_TEST(full_tables_keep_what_they_have)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 10, 1);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    uint64_t lost = 0, code = 100;
    for (; lost < 10; code++) {
        const nt_ring_frame frame = {code, 1, 4, 0};
        lost += stack_of(ring, &frame, 1) == NT_RING_NONE;
    }
    nt_ring_counts counts;
    nt_ring_count(ring, &counts);
    NT_CHECK_UINT(counts.lost_stacks, lost);
    NT_CHECK_UINT(counts.stacks, code - 100 - lost);
    NT_CHECK_UINT(counts.codes, counts.stacks);
    for (uint64_t i = 100; i < code - lost; i++) {
        const nt_ring_frame frame = {i, 1, 4, 0};
        NT_REQUIRE(NT_CHECK_UINT(stack_of(ring, &frame, 1), i - 100));
    }
    nt_ring_free(ring);
}

NT_TEST(texts_are_kept_until_full)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_ring *ring = nt_ring_new(&hostile.alloc, 10, 0);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    NT_CHECK_UINT(nt_ring_add_text(ring, "", 0), 0);
    const uint32_t first = nt_ring_add_text(ring, "attention block", 15);
    NT_CHECK_UINT(nt_ring_add_text(ring, "attention block", 15), first);
    NT_CHECK(nt_ring_add_text(ring, "attention blocks", 16) != first);
    size_t length;
    NT_CHECK_BYTES(nt_ring_text_get(ring, first, &length), "attention block", 15);
    NT_CHECK_UINT(length, 15);
    uint64_t lost = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        lost += nt_ring_add_text(ring, (const char *)&i, sizeof i) == NT_RING_NONE;
    }
    nt_ring_counts counts;
    nt_ring_count(ring, &counts);
    NT_CHECK(lost > 0);
    NT_CHECK_UINT(counts.lost_texts, lost);
    NT_CHECK_UINT(counts.texts, 3 + 5000 - lost);
    char *huge = calloc(1, 70000);
    NT_REQUIRE(NT_CHECK(huge != NULL));
    NT_CHECK_UINT(nt_ring_add_text(ring, huge, 70000), NT_RING_NONE);
    free(huge);
    nt_ring_free(ring);
}

/* ---- a producer and readers at the same time ------------------------------------ */

#define RACE_EVENTS UINT64_C(200000)

typedef struct race {
    nt_ring *ring;
    uint64_t delivered, torn, lost, wrong_stacks;
} race;

/* Every 64th event has a stack of its own, added just before. */
static void *
race_produce(void *argument)
{
    nt_ring *ring = ((race *)argument)->ring;
    for (uint64_t i = 0; i < RACE_EVENTS; i++) {
        nt_ring_entry entry = entry_of(i);
        const nt_ring_frame frame = {i / 64 % 1000 + 100, 1, (uint32_t)(i / 64), 0};
        entry.stack = i % 64 == 0 ? stack_of(ring, &frame, 1) : NT_RING_NONE;
        nt_ring_push(ring, &entry);
    }
    return NULL;
}

static void
race_check(race *r, const nt_ring_entry *entry, uint64_t i)
{
    nt_ring_entry expected = entry_of(i);
    expected.stack = entry->stack;
    r->torn += memcmp(entry, &expected, sizeof expected) != 0;
    if (i % 64 != 0) {
        r->torn += entry->stack != NT_RING_NONE;
        return;
    }
    size_t count = 0;
    nt_ring_code code = {0};
    const uint32_t *frames = nt_ring_stack_frames(r->ring, entry->stack, &count);
    const uint32_t lasti =
        count == 1 ? nt_ring_frame_lasti(r->ring, frames[0], &code) : UINT32_MAX;
    r->wrong_stacks += lasti != (uint32_t)(i / 64) ||
                       code.first_line != (int32_t)(i / 64 % 1000 + 100);
}

/* Follows the ring to its end, and accounts for every event. */
static void *
race_read(void *argument)
{
    race *r = argument;
    nt_ring_entry out[512];
    for (uint64_t next = 0; next < RACE_EVENTS;) {
        uint64_t head = nt_ring_head(r->ring);
        head = head < next + 512 ? head : next + 512;
        const uint64_t first = nt_ring_read(r->ring, next, head, out);
        r->lost += first - next;
        for (uint64_t i = first; i < head; i++) {
            race_check(r, &out[i - next], i);
            r->delivered++;
        }
        next = head;
    }
    return NULL;
}

NT_TEST(readers_never_get_torn_events)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_ring *ring = nt_ring_new(&alloc, 600, 1);
    NT_REQUIRE(NT_CHECK(ring != NULL));
    race producer = {.ring = ring}, readers[2] = {{.ring = ring}, {.ring = ring}};
    pthread_t threads[3];
    bool started = pthread_create(&threads[0], NULL, race_read, &readers[0]) == 0 &&
                   pthread_create(&threads[1], NULL, race_read, &readers[1]) == 0 &&
                   pthread_create(&threads[2], NULL, race_produce, &producer) == 0;
    NT_REQUIRE(NT_CHECK(started));
    for (size_t i = 0; i < 3; i++) {
        NT_CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        NT_CHECK_UINT(readers[i].torn, 0);
        NT_CHECK_UINT(readers[i].wrong_stacks, 0);
        NT_CHECK(readers[i].delivered > 0);
        NT_CHECK_UINT(readers[i].delivered + readers[i].lost, RACE_EVENTS);
    }
    nt_ring_free(ring);
}

const nt_test_case nt_ring_tests[] = {
    NT_CASE(what_was_pushed_is_read),
    NT_CASE(overwritten_events_are_counted_exactly),
    NT_CASE(restart_sets_old_events_apart),
    NT_CASE(no_memory_gives_no_ring),
    NT_CASE(equal_stacks_have_one_id),
    NT_CASE(stack_that_fails_is_counted),
    NT_CASE(full_tables_keep_what_they_have),
    NT_CASE(texts_are_kept_until_full),
    NT_CASE(readers_never_get_torn_events),
    NT_CASES_END,
};
