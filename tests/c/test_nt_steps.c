/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_steps.h"

#include "nt_trace.h"

enum { STEPS_BASE = 1 << 20, STEPS_MOST_STACKS = 64 };

/* A trace, and the role of each of its stacks. */
typedef struct steps_case {
    nt_trace trace;
    uint8_t roles[STEPS_MOST_STACKS];
    uint64_t next; /* address to hand out */
} steps_case;

static void
steps_open(steps_case *c, nt_test *t)
{
    *c = (steps_case){.next = STEPS_BASE};
    nt_trace_open(&c->trace, t, NULL);
}

static uint32_t
steps_stack(steps_case *c, const char *function, int64_t line, const char *outer,
            nt_role role)
{
    const uint32_t stack = nt_trace_stack(&c->trace, function, line, outer);
    if (stack < STEPS_MOST_STACKS) {
        c->roles[stack] = (uint8_t)role;
    }
    return stack;
}

static uint64_t
steps_alloc(steps_case *c, uint32_t stack, uint64_t size)
{
    const uint64_t addr = c->next;
    c->next += size;
    nt_trace_event_at(&c->trace, NT_ACTION_ALLOC, addr, size, stack);
    return addr;
}

/* Two allocations from one stack: the first stays, the second goes. */
static void
steps_round(steps_case *c, uint32_t stack)
{
    (void)steps_alloc(c, stack, 512);
    const uint64_t gone = steps_alloc(c, stack, 1024);
    c->trace.stack = stack;
    nt_trace_free(&c->trace, gone, 1024);
}

/* An event with a text. */
static void
steps_text(steps_case *c, const char *text)
{
    nt_event event = {.action = NT_ACTION_ALLOC, .addr = c->next, .size = 512};
    size_t length = 0;
    while (text[length] != '\0') {
        length++;
    }
    c->next += 512;
    event.stack = NT_NO_STACK;
    event.compile_context = NT_NONE;
    event.internal_metadata = NT_NONE;
    nt_snapshot *snapshot = c->trace.snapshot;
    nt_error err = {0};
    if (nt_strings_intern(nt_snapshot_strings(snapshot), text, length,
                          &event.user_metadata, &err) != NT_OK ||
        nt_snapshot_add_event(snapshot, &event, &err) != NT_OK) {
        c->trace.status = NT_NOMEM;
    }
}

/* The steps of the sealed trace; clear them. */
static nt_steps
steps_find(steps_case *c, nt_test *t)
{
    nt_error err = {0};
    nt_steps found = {.alloc = c->trace.alloc};
    (void)NT_CHECK_INT(c->trace.status, NT_OK);
    if (NT_CHECK_OK(nt_snapshot_seal(c->trace.snapshot, &err), &err)) {
        (void)NT_CHECK_OK(nt_steps_find(&c->trace.alloc, c->trace.snapshot, 0, c->roles,
                                        &found, &err),
                          &err);
    }
    return found;
}

/* Ends a case with what its steps must be. */
static void
steps_expect(steps_case *c, nt_test *t, nt_steps_how how, size_t count)
{
    nt_steps found = steps_find(c, t);
    NT_CHECK_INT(found.how, how);
    NT_CHECK_UINT(found.count, count);
    for (size_t k = 0; k < found.count; k++) {
        NT_CHECK(found.edges[k] < found.edges[k + 1]);
    }
    nt_steps_clear(&found);
    NT_CHECK(found.edges == NULL);
    nt_trace_close(&c->trace);
}

NT_TEST(lines_that_come_back_are_steps)
{
    steps_case c;
    steps_open(&c, t);
    const uint32_t load = steps_stack(&c, "main", 10, NULL, NT_ROLE_USER);
    const uint32_t work = steps_stack(&c, "main", 11, NULL, NT_ROLE_USER);
    const uint32_t rest = steps_stack(&c, "main", 12, NULL, NT_ROLE_USER);
    for (int round = 0; round < 9; round++) {
        (void)steps_alloc(&c, load, 512);
        (void)steps_alloc(&c, work, 512);
        if (round % 3 == 0) {
            (void)steps_alloc(&c, rest, 512);
        }
    }
    steps_expect(&c, t, NT_STEPS_LOOP, 9);
}

NT_TEST(inner_loops_are_part_of_steps)
{
    steps_case c;
    steps_open(&c, t);
    const uint32_t load = steps_stack(&c, "main", 10, NULL, NT_ROLE_USER);
    const uint32_t first = steps_stack(&c, "main", 11, NULL, NT_ROLE_USER);
    const uint32_t second = steps_stack(&c, "main", 12, NULL, NT_ROLE_USER);
    for (int round = 0; round < 10; round++) {
        (void)steps_alloc(&c, load, 512);
        for (int layer = 0; layer < 4; layer++) {
            (void)steps_alloc(&c, first, 512);
            (void)steps_alloc(&c, second, 512);
        }
    }
    steps_expect(&c, t, NT_STEPS_LOOP, 10);
}

NT_TEST(layers_of_modules_are_no_steps)
{
    steps_case c;
    steps_open(&c, t);
    const uint32_t first = steps_stack(&c, "main", 10, NULL, NT_ROLE_MODULE);
    const uint32_t second = steps_stack(&c, "main", 11, NULL, NT_ROLE_MODULE);
    for (int layer = 0; layer < 24; layer++) {
        steps_round(&c, first);
        steps_round(&c, second);
    }
    steps_expect(&c, t, NT_STEPS_NONE, 0);
}

NT_TEST(same_events_again_are_a_rhythm)
{
    steps_case c;
    steps_open(&c, t);
    const uint32_t line = steps_stack(&c, "main", 10, NULL, NT_ROLE_USER);
    const uint32_t other = steps_stack(&c, "main", 30, NULL, NT_ROLE_USER);
    (void)steps_alloc(&c, line, 4096);
    for (int round = 0; round < 30; round++) {
        steps_round(&c, line);
    }
    (void)steps_alloc(&c, other, 4096);
    steps_expect(&c, t, NT_STEPS_RHYTHM, 30);
}

NT_TEST(one_allocation_is_no_rhythm)
{
    steps_case c;
    steps_open(&c, t);
    for (int round = 0; round < 30; round++) {
        const uint64_t addr = steps_alloc(&c, NT_NO_STACK, 512);
        nt_trace_free(&c.trace, addr, 512);
    }
    steps_expect(&c, t, NT_STEPS_NONE, 0);
}

static void
steps_train(steps_case *c, int rounds)
{
    const uint32_t layer = steps_stack(c, "main", 10, NULL, NT_ROLE_MODULE);
    const uint32_t loss = steps_stack(c, "main", 11, NULL, NT_ROLE_USER);
    const uint32_t backward = steps_stack(c, "main", 12, NULL, NT_ROLE_SEED);
    const uint32_t update = steps_stack(c, "main", 13, NULL, NT_ROLE_OPTIMIZER);
    for (int round = 0; round < rounds; round++) {
        for (int one = 0; one < 12; one++) {
            (void)steps_alloc(c, layer, 512);
        }
        (void)steps_alloc(c, loss, 512);
        (void)steps_alloc(c, backward, 512);
        (void)steps_alloc(c, NT_NO_STACK, 512);
        (void)steps_alloc(c, update, 512);
    }
}

NT_TEST(one_training_step_has_no_steps)
{
    steps_case c;
    steps_open(&c, t);
    steps_train(&c, 1);
    steps_expect(&c, t, NT_STEPS_NONE, 0);
}

NT_TEST(optimizer_ends_each_step)
{
    steps_case c;
    steps_open(&c, t);
    steps_train(&c, 5);
    steps_expect(&c, t, NT_STEPS_OPTIMIZER, 5);
}

NT_TEST(texts_that_count_are_steps)
{
    steps_case c;
    steps_open(&c, t);
    const char *const texts[] = {"setup",  "step 8", "eval",   "step 9",
                                 "step 9", "eval",   "step 10"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        steps_text(&c, texts[i]);
    }
    steps_expect(&c, t, NT_STEPS_METADATA, 3);
}

NT_TEST(stacks_of_events_are_marked)
{
    steps_case c;
    steps_open(&c, t);
    const uint32_t used = steps_stack(&c, "main", 10, NULL, NT_ROLE_USER);
    const uint32_t unused = steps_stack(&c, "main", 11, NULL, NT_ROLE_USER);
    steps_round(&c, used);
    (void)steps_alloc(&c, NT_NO_STACK, 512);
    uint8_t marks[STEPS_MOST_STACKS] = {0};
    nt_steps found = steps_find(&c, t);
    NT_CHECK_UINT(nt_steps_mark_stacks(c.trace.snapshot, 0, marks), 1);
    NT_CHECK_UINT(marks[used], 1);
    NT_CHECK_UINT(marks[unused], 0);
    nt_steps_clear(&found);
    nt_trace_close(&c.trace);
}

NT_TEST(empty_trace_has_no_steps)
{
    steps_case c;
    steps_open(&c, t);
    steps_expect(&c, t, NT_STEPS_NONE, 0);
}

static nt_status
steps_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const steps_case *c = ctx;
    nt_error err = {0};
    nt_steps found = {.how = NT_STEPS_HOW_COUNT};
    const nt_status status =
        nt_steps_find(alloc, c->trace.snapshot, 0, c->roles, &found, &err);
    if (status == NT_OK) {
        NT_CHECK(found.count > 0);
        nt_steps_clear(&found);
    } else {
        NT_CHECK_INT(found.how, NT_STEPS_HOW_COUNT);
    }
    return status;
}

NT_TEST(steps_survive_every_refused_allocation)
{
    for (int kind = 0; kind < 4; kind++) {
        steps_case c;
        steps_open(&c, t);
        const uint32_t line = steps_stack(&c, "main", 10, NULL, NT_ROLE_USER);
        const uint32_t next = steps_stack(&c, "main", 11, NULL, NT_ROLE_USER);
        for (int round = 0; kind == 0 && round < 12; round++) {
            steps_round(&c, line);
            steps_round(&c, next);
        }
        for (int round = 0; kind == 1 && round < 12; round++) {
            steps_round(&c, line);
        }
        if (kind == 2) {
            steps_train(&c, 4);
        }
        for (int round = 0; kind == 3 && round < 8; round++) {
            steps_text(&c, round % 2 == 0 ? "step 1" : "step 2");
        }
        nt_error err = {0};
        if (NT_CHECK_OK(nt_snapshot_seal(c.trace.snapshot, &err), &err)) {
            nt_test_sweep(t, steps_body, &c);
        }
        nt_trace_close(&c.trace);
    }
}

const nt_test_case nt_steps_tests[] = {
    NT_CASE(lines_that_come_back_are_steps),
    NT_CASE(inner_loops_are_part_of_steps),
    NT_CASE(layers_of_modules_are_no_steps),
    NT_CASE(same_events_again_are_a_rhythm),
    NT_CASE(one_allocation_is_no_rhythm),
    NT_CASE(one_training_step_has_no_steps),
    NT_CASE(optimizer_ends_each_step),
    NT_CASE(texts_that_count_are_steps),
    NT_CASE(stacks_of_events_are_marked),
    NT_CASE(empty_trace_has_no_steps),
    NT_CASE(steps_survive_every_refused_allocation),
    NT_CASES_END,
};
