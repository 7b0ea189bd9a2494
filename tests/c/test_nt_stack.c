/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_stack.h"

#include <string.h>

#include "nt_test.h"

static uint32_t
stack_frame(nt_test *t, nt_stacks *stacks, uint32_t name, uint32_t file, int64_t line)
{
    const nt_frame frame = {.name = name, .filename = file, .line = line};
    uint32_t id = NT_NONE;
    nt_error err = {0};
    NT_CHECK_OK(nt_stacks_intern_frame(stacks, frame, &id, &err), &err);
    return id;
}

static uint32_t
stack_of(nt_test *t, nt_stacks *stacks, const uint32_t *frames, size_t count)
{
    uint32_t id = NT_NONE;
    nt_error err = {0};
    NT_CHECK_OK(nt_stacks_intern(stacks, frames, count, &id, &err), &err);
    return id;
}

/* Whether `stack`, walked outwards, is exactly `frames`. */
static void
stack_check(nt_test *t, const nt_stacks *stacks, uint32_t stack, const uint32_t *frames,
            size_t count)
{
    for (size_t i = 0; i < count; i++) {
        NT_REQUIRE(NT_CHECK(stack != NT_EMPTY_STACK));
        NT_CHECK_UINT(nt_stacks_innermost(stacks)[stack], frames[i]);
        stack = nt_stacks_parent(stacks)[stack];
    }
    NT_CHECK_UINT(stack, NT_EMPTY_STACK);
}

NT_TEST(new_tree_holds_empty_stack)
{
    nt_hostile hostile;
    nt_stacks *stacks = NULL;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&hostile.alloc, &stacks, NULL), NULL));
    NT_CHECK_UINT(nt_stacks_count(stacks), 1);
    NT_CHECK_UINT(nt_stacks_frame_count(stacks), 0);
    NT_CHECK_UINT(nt_stacks_innermost(stacks)[NT_EMPTY_STACK], NT_NONE);
    NT_CHECK_UINT(nt_stacks_parent(stacks)[NT_EMPTY_STACK], NT_EMPTY_STACK);
    NT_CHECK_UINT(stack_of(t, stacks, NULL, 0), NT_EMPTY_STACK);
    NT_CHECK_UINT(nt_stacks_count(stacks), 1);
    nt_stacks_free(stacks);
    nt_stacks_free(NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(equal_frames_share_one_id)
{
    nt_hostile hostile;
    nt_stacks *stacks = NULL;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&hostile.alloc, &stacks, NULL), NULL));
    NT_CHECK_UINT(stack_frame(t, stacks, 1, 2, 3), 0);
    NT_CHECK_UINT(stack_frame(t, stacks, 2, 1, 3), 1);
    NT_CHECK_UINT(stack_frame(t, stacks, 1, 2, 4), 2);
    NT_CHECK_UINT(stack_frame(t, stacks, 1, 2, 3), 0);
    NT_CHECK_UINT(stack_frame(t, stacks, 0, 0, INT64_MIN), 3);
    NT_CHECK_UINT(stack_frame(t, stacks, NT_NONE, NT_NONE, INT64_MAX), 4);
    NT_CHECK_UINT(nt_stacks_frame_count(stacks), 5);
    const nt_frame *frames = nt_stacks_frames(stacks);
    NT_CHECK_UINT(frames[1].name, 2);
    NT_CHECK_UINT(frames[1].filename, 1);
    NT_CHECK_INT(frames[3].line, INT64_MIN);
    NT_CHECK_INT(frames[4].line, INT64_MAX);
    nt_stacks_free(stacks);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(frames_that_hardly_differ_differ)
{
    /* So many that they meet in one slot, and differ in one of the three numbers. */
    enum { FRAMES = 3000 };
    const nt_alloc alloc = nt_alloc_system();
    nt_stacks *stacks = NULL;
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&alloc, &stacks, NULL), NULL));
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < FRAMES; i++) {
            NT_CHECK_UINT(stack_frame(t, stacks, 1 + i, 1, 0), 3 * i);
            NT_CHECK_UINT(stack_frame(t, stacks, 0, 1 + i, 0), 3 * i + 1);
            NT_REQUIRE(NT_CHECK_UINT(stack_frame(t, stacks, 0, 0, i), 3 * i + 2));
        }
    }
    NT_CHECK_UINT(nt_stacks_frame_count(stacks), 3 * FRAMES);
    nt_stacks_free(stacks);
}

NT_TEST(stacks_with_common_bottom_share_it)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_stacks *stacks = NULL;
    uint32_t frames[100];
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&alloc, &stacks, NULL), NULL));
    for (uint32_t i = 0; i < 100; i++) {
        frames[i] = stack_frame(t, stacks, i, 0, 1);
    }
    const uint32_t deep = stack_of(t, stacks, frames, 100);
    NT_CHECK_UINT(nt_stacks_count(stacks), 101);
    /* The stack of the outer 99 frames is there already; another leaf is one more. */
    NT_CHECK_UINT(stack_of(t, stacks, frames + 1, 99), nt_stacks_parent(stacks)[deep]);
    NT_CHECK_UINT(nt_stacks_count(stacks), 101);
    frames[0] = frames[50];
    const uint32_t other = stack_of(t, stacks, frames, 100);
    NT_CHECK(other != deep);
    NT_CHECK_UINT(nt_stacks_count(stacks), 102);
    stack_check(t, stacks, other, frames, 100);
    nt_stacks_free(stacks);
}

NT_TEST(order_of_frames_makes_difference)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_stacks *stacks = NULL;
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&alloc, &stacks, NULL), NULL));
    const uint32_t a = stack_frame(t, stacks, 0, 0, 1);
    const uint32_t b = stack_frame(t, stacks, 0, 0, 2);
    const uint32_t inner_a[] = {a, b}, inner_b[] = {b, a}, twice[] = {a, a};
    const uint32_t first = stack_of(t, stacks, inner_a, 2);
    const uint32_t second = stack_of(t, stacks, inner_b, 2);
    const uint32_t third = stack_of(t, stacks, twice, 2);
    NT_CHECK(first != second && second != third && first != third);
    NT_CHECK_UINT(nt_stacks_innermost(stacks)[first], a);
    NT_CHECK_UINT(nt_stacks_innermost(stacks)[second], b);
    stack_check(t, stacks, third, twice, 2);
    nt_stacks_free(stacks);
}

NT_TEST(parents_come_before_their_children)
{
    enum { FRAMES = 30 };
    const nt_alloc alloc = nt_alloc_system();
    nt_stacks *stacks = NULL;
    uint64_t seed = 5;
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&alloc, &stacks, NULL), NULL));
    for (uint32_t i = 0; i < FRAMES; i++) {
        NT_CHECK_UINT(stack_frame(t, stacks, i, i, i), i);
    }
    for (int i = 0; i < 500; i++) {
        uint32_t frames[8];
        const size_t count = (size_t)(nt_test_random(&seed) % 8);
        for (size_t k = 0; k < count; k++) {
            frames[k] = (uint32_t)(nt_test_random(&seed) % FRAMES);
        }
        (void)stack_of(t, stacks, frames, count);
    }
    for (uint32_t i = 1; i < nt_stacks_count(stacks); i++) {
        NT_CHECK(nt_stacks_parent(stacks)[i] < i);
        NT_CHECK(nt_stacks_innermost(stacks)[i] < FRAMES);
    }
    nt_stacks_free(stacks);
}

/* Frames and stacks until memory runs out: a failed call leaves its output alone, and
 * what was handed out before stays what it was. */
static nt_status
stack_fill(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_stacks *stacks = NULL;
    uint32_t frames[200], last = NT_EMPTY_STACK;
    size_t count = 0, depth = 0;
    (void)ctx;
    nt_status status = nt_stacks_new(alloc, &stacks, NULL);
    if (status != NT_OK) {
        NT_CHECK(stacks == NULL);
        return status;
    }
    while (count < 200 && status == NT_OK) {
        const nt_frame frame = {.name = (uint32_t)count, .line = 3};
        nt_error err = {0};
        uint32_t id = 77777, stack = 77777;
        status = nt_stacks_intern_frame(stacks, frame, &id, &err);
        NT_CHECK_UINT(id, status == NT_OK ? count : 77777);
        if (status == NT_OK) {
            frames[count++] = id;
            status = nt_stacks_intern(stacks, frames, count, &stack, &err);
            NT_CHECK(status == NT_OK ? stack != 77777 : stack == 77777);
        }
        NT_CHECK_INT(err.status, status);
        last = status == NT_OK ? stack : last;
        depth = status == NT_OK ? count : depth;
    }
    stack_check(t, stacks, last, frames, depth);
    nt_stacks_free(stacks);
    return status;
}

NT_TEST(stacks_survive_every_refusal)
{
    nt_test_sweep(t, stack_fill, NULL);
}

NT_TEST(failed_stack_can_be_interned_later)
{
    nt_hostile hostile;
    nt_stacks *stacks = NULL;
    uint32_t frames[60], id = 77;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&hostile.alloc, &stacks, NULL), NULL));
    for (uint32_t i = 0; i < 60; i++) {
        frames[i] = stack_frame(t, stacks, i, 1, 1);
    }
    hostile.fail_at = hostile.requests + 2;
    NT_CHECK_STATUS(nt_stacks_intern(stacks, frames, 60, &id, NULL), NT_NOMEM, NULL);
    NT_CHECK_UINT(id, 77);
    id = stack_of(t, stacks, frames, 60);
    stack_check(t, stacks, id, frames, 60);
    NT_CHECK_UINT(nt_stacks_count(stacks), 61);
    nt_stacks_free(stacks);
    NT_CHECK_NO_LEAK(&hostile);
}

typedef struct stack_list {
    uint32_t frames[6];
    size_t count;
    uint32_t id;
} stack_list;

/* Interns a random stack and holds it against all that came before it. */
static void
stack_step(nt_test *t, nt_stacks *stacks, stack_list *model, size_t known,
           uint64_t *seed)
{
    stack_list *list = &model[known];
    list->count = (size_t)(nt_test_random(seed) % 7);
    for (size_t i = 0; i < list->count; i++) {
        const uint64_t r = nt_test_random(seed);
        list->frames[i] =
            stack_frame(t, stacks, r % 2, r >> 8 & 1, (int64_t)(r >> 16 & 1));
    }
    list->id = stack_of(t, stacks, list->frames, list->count);
    for (size_t i = 0; i < known; i++) {
        const bool same = model[i].count == list->count &&
                          memcmp(model[i].frames, list->frames,
                                 list->count * sizeof *list->frames) == 0;
        NT_REQUIRE(NT_CHECK((model[i].id == list->id) == same));
    }
}

NT_TEST(random_stacks_follow_a_list)
{
    enum { STEPS = 400 };
    for (uint64_t run = 1; run <= 10; run++) {
        static stack_list model[STEPS];
        uint64_t seed = run;
        const size_t failures = t->failures;
        nt_hostile hostile;
        nt_stacks *stacks = NULL;
        nt_hostile_init(&hostile, t);
        NT_REQUIRE(NT_CHECK_OK(nt_stacks_new(&hostile.alloc, &stacks, NULL), NULL));
        for (size_t step = 0; step < STEPS && t->failures == failures; step++) {
            stack_step(t, stacks, model, step, &seed);
        }
        for (size_t step = 0; step < STEPS && t->failures == failures; step++) {
            stack_check(t, stacks, model[step].id, model[step].frames,
                        model[step].count);
        }
        nt_stacks_free(stacks);
        NT_CHECK_NO_LEAK(&hostile);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

const nt_test_case nt_stack_tests[] = {
    NT_CASE(new_tree_holds_empty_stack),
    NT_CASE(equal_frames_share_one_id),
    NT_CASE(frames_that_hardly_differ_differ),
    NT_CASE(stacks_with_common_bottom_share_it),
    NT_CASE(order_of_frames_makes_difference),
    NT_CASE(parents_come_before_their_children),
    NT_CASE(stacks_survive_every_refusal),
    NT_CASE(failed_stack_can_be_interned_later),
    NT_CASE(random_stacks_follow_a_list),
    NT_CASES_END,
};
