/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program.h"

#include <string.h>

#include "nt_recorded.h"
#include "nt_trace.h"
#include "whatif/nt_replay.h"

#define BASE UINT64_C(0x7f0000000000)
#define EVENTS 8

typedef struct edit_case {
    nt_trace trace;
    nt_program *program; /* NULL where the case failed */
} edit_case;

/* segment_alloc, two requests, the first one's two events of a free, another request in
 * its place, and the second one's free. */
static bool
edit_open(edit_case *c, nt_test *t)
{
    nt_trace *r = &c->trace;
    c->program = NULL;
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 2 * MIB, 4 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(r, BASE + 2 * MIB, 4 * MIB);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 2 * MIB, 2 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 2 * MIB, 18 * MIB, 0, NT_BLOCK_INACTIVE);
    if (nt_trace_replay(r)) {
        NT_CHECK_OK(nt_program_new(&r->alloc, r->timeline, &c->program, NULL), NULL);
    }
    return NT_CHECK(c->program != NULL);
}

static void
edit_close(edit_case *c)
{
    nt_program_free(c->program);
    nt_trace_close(&c->trace);
}

/* The kinds of all steps with their events. */
static void
edit_check_steps(nt_test *t, const nt_program *program, const char *expected)
{
    static const char letters[] = "MFLCEPQO";
    char found[64] = "";
    size_t end = 0;
    for (size_t i = 0; i < program->step_count && end + 2 < sizeof found; i++) {
        found[end++] = letters[program->steps[i].kind];
        found[end++] = (char)('0' + program->steps[i].event);
        found[end] = 0;
    }
    NT_CHECK_STR(found, expected);
}

static void
edit_check(nt_test *t, const nt_program_change *change, const char *expected)
{
    edit_case c;
    if (edit_open(&c, t)) {
        nt_program *edited = NULL;
        NT_CHECK_OK(nt_program_edit(&c.trace.alloc, c.program, change, &edited, NULL),
                    NULL);
        if (NT_CHECK(edited != NULL)) {
            edit_check_steps(t, edited, expected);
        }
        nt_program_free(edited);
    }
    edit_close(&c);
}

NT_TEST(no_change_is_a_copy)
{
    const nt_program_change change = {.sizes = NULL};
    edit_check(t, &change, "M1M2F4M5F7");
}

/* What is left out takes its free along, and not that of the next in its slot. */
NT_TEST(requests_are_left_out_with_their_frees)
{
    const uint64_t sizes[EVENTS] = {0, 0, 4 * MIB, 0, 0, 2 * MIB, 0, 0};
    const nt_program_change change = {.sizes = sizes};
    edit_check(t, &change, "M2M5F7");
}

NT_TEST(blocks_are_freed_as_they_are_made)
{
    const int32_t ends[EVENTS] = {-1, -1, 2, -1, -1, 5, -1, -1};
    const nt_program_change change = {.ends = ends};
    edit_check(t, &change, "M1M2F3F4M5F6");
}

NT_TEST(blocks_end_before_they_were_freed)
{
    /* Block 1 ends with the request of block 2, which is freed before its own end. */
    const int32_t ends[EVENTS] = {-1, 2, 7, -1, -1, -1, -1, -1};
    const nt_program_change change = {.ends = ends};
    edit_check(t, &change, "M1M2F3M5F7");
}

NT_TEST(calls_come_after_their_events)
{
    const int32_t calls[] = {0, 4, 7};
    const nt_program_change change = {.calls = calls, .call_count = 3};
    edit_check(t, &change, "E0M1M2F4E4M5F7E7");
}

static void
edit_check_refused(nt_test *t, const nt_program_change *change)
{
    edit_case c;
    if (edit_open(&c, t)) {
        nt_program *edited = NULL;
        nt_error err = {.offset = NT_NO_OFFSET};
        const nt_status status =
            nt_program_edit(&c.trace.alloc, c.program, change, &edited, &err);
        NT_CHECK_INT(status, NT_ARGUMENT);
        NT_CHECK(edited == NULL);
    }
    edit_close(&c);
}

NT_TEST(senseless_changes_are_refused)
{
    const int32_t calls[][2] = {{-1, 0}, {5, 4}, {0, EVENTS}};
    const int32_t ends[][EVENTS] = {
        {-1, -1, 1, -1, -1, -1, -1, -1},
        {-1, -1, EVENTS, -1, -1, -1, -1, -1},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const nt_program_change change = {.ends = ends[i]};
        edit_check_refused(t, &change);
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const nt_program_change change = {.calls = calls[i], .call_count = 2};
        edit_check_refused(t, &change);
    }
    uint64_t sizes[EVENTS];
    memset(sizes, 0xff, sizeof sizes);
    const nt_program_change change = {.sizes = sizes};
    edit_check_refused(t, &change);
}

/* A program whose last request is freed with an event behind the trace runs and gives
 * a series as long as the trace. */
NT_TEST(edited_programs_run_with_series)
{
    edit_case c;
    const int32_t ends[EVENTS] = {-1, 1, 2, -1, -1, 5, -1, 7};
    const int32_t calls[] = {EVENTS - 1};
    const nt_program_change change = {.ends = ends, .calls = calls, .call_count = 1};
    if (edit_open(&c, t)) {
        nt_program *edited = NULL;
        nt_replay_figures figures = {.segments = 9};
        uint64_t allocated[EVENTS + 1] = {[EVENTS] = 77};
        const nt_replay_series series = {
            .bytes = {[NT_METRIC_ALLOCATED] = allocated},
        };
        NT_CHECK_OK(nt_program_edit(&c.trace.alloc, c.program, &change, &edited, NULL),
                    NULL);
        const nt_replay_options options = nt_replay_default(edited);
        NT_CHECK_OK(nt_replay_run(&c.trace.alloc, edited, &options, NULL, &series,
                                  &figures, NULL),
                    NULL);
        NT_CHECK_UINT(figures.final[NT_METRIC_RESERVED], 0);
        NT_CHECK_UINT(figures.segments, 0);
        NT_CHECK_UINT(allocated[EVENTS - 1], 0);
        NT_CHECK_UINT(allocated[EVENTS], 77);
        nt_program_free(edited);
    }
    edit_close(&c);
}

static nt_status
edit_make(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const int32_t calls[] = {1, 3, 5};
    const nt_program_change change = {.calls = calls, .call_count = 3};
    nt_program *edited = NULL;
    const nt_status status = nt_program_edit(alloc, ctx, &change, &edited, NULL);
    NT_CHECK((edited != NULL) == (status == NT_OK));
    nt_program_free(edited);
    return status;
}

NT_TEST(refused_memory_leaves_no_edited_program)
{
    nt_recorded recorded;
    nt_program *program = NULL;
    const nt_alloc alloc = nt_alloc_system();
    if (nt_recorded_open(&recorded, t, "cuda_graph_pool") &&
        NT_CHECK_OK(nt_program_new(&alloc, recorded.timeline, &program, NULL), NULL)) {
        nt_test_sweep(t, edit_make, program);
    }
    nt_program_free(program);
    nt_recorded_close(&recorded);
}

const nt_test_case nt_program_edit_tests[] = {
    NT_CASE(no_change_is_a_copy),
    NT_CASE(requests_are_left_out_with_their_frees),
    NT_CASE(blocks_are_freed_as_they_are_made),
    NT_CASE(blocks_end_before_they_were_freed),
    NT_CASE(calls_come_after_their_events),
    NT_CASE(senseless_changes_are_refused),
    NT_CASE(edited_programs_run_with_series),
    NT_CASE(refused_memory_leaves_no_edited_program),
    NT_CASES_END,
};
