/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program.h"

#include <stdio.h>
#include <string.h>

#include "nt_recorded.h"
#include "nt_trace.h"
#include "whatif/nt_replay.h"

#define BASE UINT64_C(0x7f0000000000)
#define EVENTS 13
#define FAILED 12

typedef struct sequel_case {
    nt_trace trace;
    nt_program *program; /* NULL where the case failed */
} sequel_case;

static const int32_t sequel_begins[] = {1, 5, 11};

/* Two rounds, which keep a block until the next has kept its own, and work with
 * another; and a third, in which the request to work with fails. */
static bool
sequel_open(sequel_case *c, nt_test *t)
{
    nt_trace *r = &c->trace;
    c->program = NULL;
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    const uint32_t keep = nt_trace_stack(r, "keep", 1, NULL);
    const uint32_t work = nt_trace_stack(r, "work", 2, NULL);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE, 2 * MIB, keep);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 2 * MIB, 4 * MIB, work);
    nt_trace_free(r, BASE + 2 * MIB, 4 * MIB);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 2 * MIB, 2 * MIB, keep);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 4 * MIB, 4 * MIB, work);
    nt_trace_free(r, BASE + 4 * MIB, 4 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    nt_trace_event_at(r, NT_ACTION_ALLOC, BASE, 2 * MIB, keep);
    nt_trace_event_at(r, NT_ACTION_OOM, 0, 4 * MIB, work);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 2 * MIB, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 4 * MIB, 16 * MIB, 0, NT_BLOCK_INACTIVE);
    if (nt_trace_replay(r)) {
        NT_CHECK_OK(nt_program_new(&r->alloc, r->timeline, &c->program, NULL), NULL);
    }
    return NT_CHECK(c->program != NULL);
}

static void
sequel_close(sequel_case *c)
{
    nt_program_free(c->program);
    nt_trace_close(&c->trace);
}

static nt_program_sequel
sequel_of(size_t rounds)
{
    return (nt_program_sequel){
        .failed = FAILED,
        .begins = sequel_begins,
        .begin_count = 3,
        .like = 1,
        .from = 6,
        .rounds = rounds,
    };
}

/* The steps that are made up: for each the round, its kind, its slot, and the MiB of a
 * request. */
static void
sequel_check(nt_test *t, const nt_program *from, const nt_program_sequel *sequel,
             const nt_alloc *alloc, const char *expected)
{
    static const char letters[] = "MFLCEPQO";
    char found[256] = "";
    const int events = (int)nt_timeline_event_count(from->timeline);
    size_t end = 0;
    nt_program *p = NULL;
    if (!NT_CHECK_OK(nt_program_go_on(alloc, from, sequel, &p, NULL), NULL)) {
        return;
    }
    for (size_t i = 0; i < p->step_count && end + 24 < sizeof found; i++) {
        const nt_program_step *step = &p->steps[i];
        const int round = (int)step->event - events;
        if (round < 0) {
            continue;
        }
        const int mib = step->kind == NT_PROGRAM_MALLOC ? (int)(step->size / MIB) : 0;
        end += (size_t)snprintf(found + end, sizeof found - end, "%d%c%u/%d ", round,
                                letters[step->kind], step->slot, mib);
    }
    NT_CHECK_STR(found, expected);
    nt_program_free(p);
}

NT_TEST(the_rest_and_the_rounds_are_made_up)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        const uint32_t failed = c.program->slot_count;
        const nt_program_sequel sequel = sequel_of(2);
        NT_CHECK_UINT(failed, 3);
        /* Of the round that failed what it worked with and what the one before kept;
         * then rounds that let go of what the one before each kept. */
        sequel_check(t, c.program, &sequel, &c.trace.alloc,
                     "0F3/0 0F1/0 1M4/2 1M5/4 1F5/0 1F0/0 2M6/2 2M7/4 2F7/0 2F4/0 ");
    }
    sequel_close(&c);
}

NT_TEST(requests_stretch_and_grow)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        double stretch[EVENTS];
        uint64_t growth[EVENTS] = {[1] = MIB, [5] = MIB};
        nt_program_sequel sequel = sequel_of(2);
        for (size_t i = 0; i < EVENTS; i++) {
            stretch[i] = 3;
        }
        sequel.from = 5;
        sequel.stretch = stretch;
        sequel.growth = growth;
        /* It works twice in the failing round, as its like does not: both go together.
         * The rounds grow by as many times as they are later than their likes. */
        sequel_check(t, c.program, &sequel, &c.trace.alloc,
                     "0M4/12 0F3/0 0F4/0 0F1/0 1M5/4 1M6/4 1F6/0 1F0/0 "
                     "2M7/5 2M8/4 2F8/0 2F5/0 ");
    }
    sequel_close(&c);
}

/* A round that saves two blocks and works between; and one that has saved three when it
 * runs out: it has one more to save, at the point that `from` is put to. */
NT_TEST(a_longer_round_goes_on_with_copies_of_its_like)
{
    static const int32_t begins[] = {1, 13};
    nt_trace trace;
    nt_trace *r = &trace;
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    const uint32_t save = nt_trace_stack(r, "save", 1, NULL);
    const uint32_t work = nt_trace_stack(r, "work", 2, NULL);
    const uint64_t third = BASE + 4 * MIB, space = BASE + 6 * MIB;
    for (uint64_t i = 0; i < 2; i++) {
        nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 2 * MIB * i, 2 * MIB, save);
        nt_trace_event_at(r, NT_ACTION_ALLOC, space, 4 * MIB, work);
        nt_trace_free(r, space, 4 * MIB);
    }
    nt_trace_free(r, BASE + 2 * MIB, 2 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    for (uint64_t i = 0; i < 3; i++) {
        nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + 2 * MIB * i, 2 * MIB, save);
        if (i < 2) {
            nt_trace_event_at(r, NT_ACTION_ALLOC, space, 4 * MIB, work);
            nt_trace_free(r, space, 4 * MIB);
        }
    }
    nt_trace_event_at(r, NT_ACTION_OOM, 0, 4 * MIB, work);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 2 * MIB, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, third, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, space, 14 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_program *program = NULL;
    if (nt_trace_replay(r) &&
        NT_CHECK_OK(nt_program_new(&r->alloc, r->timeline, &program, NULL), NULL)) {
        const nt_program_sequel sequel = {
            .failed = 22,
            .begins = begins,
            .begin_count = 2,
            .like = 0,
            .from = 2,
        };
        /* The request that failed is done with; the fourth is saved and worked on; then
         * the fourth goes with what has no like, and the first as its like does. */
        sequel_check(t, program, &sequel, &r->alloc,
                     "0F3/0 0M4/2 0M5/4 0F5/0 0F1/0 0F2/0 0F4/0 0F0/0 ");
    }
    nt_program_free(program);
    nt_trace_close(r);
}

NT_TEST(no_rest_is_the_request_alone)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        nt_program_sequel sequel = sequel_of(2);
        sequel.like = 2;
        sequel_check(t, c.program, &sequel, &c.trace.alloc, "");
    }
    sequel_close(&c);
}

/* A request that failed goes through where there is room, and everything after it. */
static void
sequel_check_run(nt_test *t, const sequel_case *c, uint64_t limit, int32_t failed)
{
    nt_program *p = NULL;
    nt_replay_figures figures;
    const nt_program_sequel sequel = sequel_of(2);
    if (!NT_CHECK_OK(nt_program_go_on(&c->trace.alloc, c->program, &sequel, &p, NULL),
                     NULL)) {
        return;
    }
    nt_replay_options options = nt_replay_default(p);
    options.device_total = limit;
    options.device_other = 0;
    options.limit = 0;
    options.goes_on = true;
    uint64_t reserved[EVENTS + 1] = {[EVENTS] = 77};
    const nt_replay_series series = {.bytes = {[NT_METRIC_RESERVED] = reserved}};
    NT_CHECK_OK(
        nt_replay_run(&c->trace.alloc, p, &options, NULL, &series, &figures, NULL),
        NULL);
    NT_CHECK_INT(figures.failed_event, failed);
    NT_CHECK(figures.is_stopped == (failed != NT_EVENT_NEVER));
    NT_CHECK_UINT(reserved[EVENTS], 77);
    nt_program_free(p);
}

NT_TEST(it_runs_until_a_request_fails)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        sequel_check_run(t, &c, 64 * MIB, NT_EVENT_NEVER);
        sequel_check_run(t, &c, 20 * MIB, NT_EVENT_NEVER);
        sequel_check_run(t, &c, 4 * MIB, 1);
    }
    sequel_close(&c);
}

static void
sequel_check_refused(nt_test *t, const sequel_case *c, const nt_program_sequel *sequel)
{
    nt_program *p = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    NT_CHECK_INT(nt_program_go_on(&c->trace.alloc, c->program, sequel, &p, &err),
                 NT_ARGUMENT);
    NT_CHECK(p == NULL);
}

NT_TEST(senseless_sequels_are_refused)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        const int32_t falling[] = {5, 1, 11}, late[] = {1, 5, FAILED + 1};
        nt_program_sequel wrong[8];
        for (size_t i = 0; i < 8; i++) {
            wrong[i] = sequel_of(2);
        }
        wrong[0].failed = 11; /* no request that failed */
        wrong[1].failed = EVENTS;
        wrong[2].begins = falling;
        wrong[3].begins = late;
        wrong[4].begin_count = 0;
        wrong[5].like = 3;
        wrong[6].from = 11; /* of another round */
        wrong[7].rounds = EVENTS + 1;
        for (size_t i = 0; i < 8; i++) {
            sequel_check_refused(t, &c, &wrong[i]);
        }
    }
    sequel_close(&c);
}

NT_TEST(a_sequel_has_no_sequel_and_no_changes)
{
    sequel_case c;
    nt_program *p = NULL, *other = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_program_sequel sequel = sequel_of(2);
    const nt_program_change change = {.sizes = NULL};
    if (sequel_open(&c, t) &&
        NT_CHECK_OK(nt_program_go_on(&c.trace.alloc, c.program, &sequel, &p, NULL),
                    NULL)) {
        NT_CHECK_INT(nt_program_go_on(&c.trace.alloc, p, &sequel, &other, &err),
                     NT_ARGUMENT);
        NT_CHECK_INT(nt_program_edit(&c.trace.alloc, p, &change, &other, &err),
                     NT_ARGUMENT);
        NT_CHECK(other == NULL);
    }
    nt_program_free(p);
    sequel_close(&c);
}

static nt_status
sequel_make(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_program *p = NULL;
    const nt_program_sequel sequel = sequel_of(2);
    const nt_status status = nt_program_go_on(alloc, ctx, &sequel, &p, NULL);
    NT_CHECK((p != NULL) == (status == NT_OK));
    nt_program_free(p);
    return status;
}

NT_TEST(refused_memory_leaves_no_sequel)
{
    sequel_case c;
    if (sequel_open(&c, t)) {
        nt_test_sweep(t, sequel_make, c.program);
    }
    sequel_close(&c);
}

const nt_test_case nt_program_sequel_tests[] = {
    NT_CASE(the_rest_and_the_rounds_are_made_up),
    NT_CASE(requests_stretch_and_grow),
    NT_CASE(a_longer_round_goes_on_with_copies_of_its_like),
    NT_CASE(no_rest_is_the_request_alone),
    NT_CASE(it_runs_until_a_request_fails),
    NT_CASE(senseless_sequels_are_refused),
    NT_CASE(a_sequel_has_no_sequel_and_no_changes),
    NT_CASE(refused_memory_leaves_no_sequel),
    NT_CASES_END,
};
