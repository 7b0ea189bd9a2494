/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of empty_cache() that a recording noted: in a snapshot, in a file and a part of
 * it, and in the program of its trace. */
#include <stdio.h>

#include "nt_file.h"
#include "nt_trace.h"
#include "trace/nt_writer.h"
#include "whatif/nt_program.h"
#include "whatif/nt_replay.h"

#define BASE UINT64_C(0x7f0000000000)

/* One segment: a block comes and goes (events 1 to 3), what there is goes back and is
 * taken again if `releases` (4 and 5), and a request fails; the block comes and goes.
 */
static void
calls_open(nt_trace *r, nt_test *t, const nt_alloc *alloc, bool releases)
{
    nt_trace_open(r, t, alloc);
    r->keys |= NT_HAS_SETTINGS | NT_HAS_TRACES;
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    if (releases) {
        nt_trace_event(r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB);
        nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    }
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(r, NT_ACTION_SNAPSHOT, 0, 0);
    nt_trace_event(r, NT_ACTION_OOM, 0, 64 * MIB);
    nt_trace_free(r, BASE, 2 * MIB);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 20 * MIB, 0, NT_BLOCK_INACTIVE);
}

/* The calls of device 0, as a text; "-" where none are noted. */
static void
calls_check(nt_test *t, const nt_snapshot *snapshot, const char *expected)
{
    const nt_setting *rows;
    size_t count;
    char found[64] = "-";
    if (nt_snapshot_noted_calls(snapshot, 0, &rows, &count)) {
        found[0] = 0;
        for (size_t i = 0, at = 0; i < count; i++) {
            at += (size_t)snprintf(found + at, sizeof found - at, "%d ",
                                   (int)rows[i].integer);
        }
    }
    NT_CHECK_STR(found, expected);
}

static bool
calls_note(nt_trace *r, const int32_t *calls, size_t count)
{
    nt_test *t = r->test;
    return NT_CHECK_OK(nt_snapshot_note_calls(r->snapshot, 0, calls, count, NULL),
                       NULL);
}

NT_TEST(numbers_and_ranges_come_back_from_files)
{
    static const int64_t numbers[] = {INT64_C(1) << 60, -3};
    static const char name[] = "neutracer.phase: sleep";
    const nt_annotation begin = {.stage = NT_STAGE_START, .device = 1, .time_us = 5};
    nt_trace r;
    calls_open(&r, t, NULL, false);
    nt_snapshot *s = r.snapshot;
    if (nt_trace_replay(&r)) {
        size_t count;
        NT_CHECK_OK(nt_snapshot_note_numbers(s, "in_use", 0, numbers, 2, NULL), NULL);
        NT_CHECK_OK(nt_snapshot_note_numbers(s, "in_use", 1, numbers, 0, NULL), NULL);
        NT_CHECK(nt_snapshot_note_numbers(s, "in_use", 1, numbers, 1, NULL) ==
                 NT_ARGUMENT);
        NT_CHECK_OK(nt_snapshot_note_range(s, name, sizeof name - 1, begin, NULL),
                    NULL);
        const nt_setting *rows = nt_snapshot_setting_rows(s, &count);
        NT_CHECK(count >= 5 && rows[count - 2].integer == -3);
        NT_CHECK(nt_snapshot_annotations(s)->count == 1);
        nt_file_check_round_trip(t, s);
    }
    nt_trace_close(&r);
}

NT_TEST(notes_come_back_from_files_and_parts)
{
    static const int32_t calls[] = {0, 3, 7};
    nt_trace r;
    calls_open(&r, t, NULL, false);
    calls_check(t, r.snapshot, "-");
    if (calls_note(&r, calls, 3) && nt_trace_replay(&r)) {
        calls_check(t, r.snapshot, "0 3 7 ");
        nt_file_check_round_trip(t, r.snapshot);
        nt_file file = {.size = 0};
        const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
        const nt_writer_range range = {r.timeline, 2, 7};
        NT_CHECK_OK(nt_writer_save_ranges(&r.alloc, &range, 1, &sink, NULL, NULL),
                    NULL);
        nt_snapshot *part = nt_file_load(t, file.bytes, file.size);
        if (part != NULL) {
            calls_check(t, part, "1 ");
        }
        nt_snapshot_free(part);
        nt_file_clear(&file);
    }
    nt_trace_close(&r);
}

NT_TEST(what_is_no_note_is_refused)
{
    static const int32_t falling[] = {3, 2}, behind[] = {99}, before[] = {-1};
    nt_trace r;
    calls_open(&r, t, NULL, false);
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 0, falling, 2, NULL) == NT_ARGUMENT);
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 0, behind, 1, NULL) == NT_ARGUMENT);
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 0, before, 1, NULL) == NT_ARGUMENT);
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 4, falling, 1, NULL) == NT_ARGUMENT);
    calls_check(t, r.snapshot, "-");
    NT_CHECK_OK(nt_snapshot_note_calls(r.snapshot, 0, NULL, 0, NULL), NULL);
    calls_check(t, r.snapshot, "");
    /* Noted already; and what follows other settings is in nobody's place. */
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 0, NULL, 0, NULL) == NT_ARGUMENT);
    nt_trace_settings(&r, "max_split_size_mb:64");
    NT_CHECK(nt_snapshot_note_calls(r.snapshot, 1, NULL, 0, NULL) == NT_ARGUMENT);
    (void)nt_trace_replay(&r);
    nt_trace_close(&r);
}

/* What the program of the trace asks for with these calls noted, as letters, and at the
 * first call the event. */
static void
calls_check_steps(nt_test *t, bool releases, const int32_t *calls, size_t count,
                  const char *expected, int32_t event)
{
    static const char letters[] = "MFLCEPQO";
    char found[32] = "";
    int32_t first = NT_EVENT_NEVER;
    nt_trace r;
    nt_program *program = NULL;
    calls_open(&r, t, NULL, releases);
    if (calls_note(&r, calls, count) && nt_trace_replay(&r) &&
        NT_CHECK_OK(nt_program_new(&r.alloc, r.timeline, &program, NULL), NULL)) {
        for (size_t i = 0; i < program->step_count && i < sizeof found - 1; i++) {
            found[i] = letters[program->steps[i].kind];
            if (found[i] == 'E' && first == NT_EVENT_NEVER) {
                first = program->steps[i].event;
            }
        }
        NT_CHECK_STR(found, expected);
        NT_CHECK_INT(first, event);
        NT_CHECK(program->calls_noted && program->calls_known);
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

NT_TEST(noted_calls_are_steps_where_they_were)
{
    static const int32_t early[] = {1}, late[] = {6, 8}, freed[] = {3};
    calls_check_steps(t, false, early, 1, "MEFMOF", 1);
    /* Behind the request that failed, and behind the last event. */
    calls_check_steps(t, false, late, 2, "MFMOEFE", 6);
    /* What was released is the call's, and no other call is made of it. */
    calls_check_steps(t, true, freed, 1, "MFEMOF", 4);
    /* The request's own, where no call is noted. */
    calls_check_steps(t, true, NULL, 0, "MFMOF", NT_EVENT_NEVER);
}

NT_TEST(nothing_is_silent_where_calls_are_noted)
{
    static const int32_t calls[] = {1};
    uint8_t marks[16];
    int32_t drops[1];
    nt_trace r;
    nt_program *program = NULL;
    calls_open(&r, t, NULL, false);
    if (calls_note(&r, calls, 1) && nt_trace_replay(&r) &&
        NT_CHECK_OK(nt_program_new(&r.alloc, r.timeline, &program, NULL), NULL) &&
        NT_CHECK_OK(nt_replay_find_silence(&r.alloc, program, NULL, marks, drops, NULL),
                    NULL)) {
        for (size_t i = 0; i < nt_timeline_event_count(r.timeline); i++) {
            NT_CHECK_UINT(marks[i], 0);
        }
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

static nt_status
calls_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    static const int32_t calls[] = {1, 3};
    (void)t;
    (void)ctx;
    nt_snapshot *s = NULL;
    NT_TRY(nt_snapshot_new(alloc, &s, NULL));
    nt_status status = nt_snapshot_begin_trace(s, NULL);
    const nt_event event = {.stack = NT_NO_STACK};
    for (int i = 0; i < 4 && status == NT_OK; i++) {
        status = nt_snapshot_add_event(s, &event, NULL);
    }
    if (status == NT_OK) {
        status = nt_snapshot_note_calls(s, 0, calls, 2, NULL);
    }
    nt_snapshot_free(s);
    return status;
}

NT_TEST(notes_survive_running_out_of_memory)
{
    nt_test_sweep(t, calls_body, NULL);
}

extern const nt_test_case nt_snapshot_calls_tests[];

const nt_test_case nt_snapshot_calls_tests[] = {
    NT_CASE(numbers_and_ranges_come_back_from_files),
    NT_CASE(notes_come_back_from_files_and_parts),
    NT_CASE(what_is_no_note_is_refused),
    NT_CASE(noted_calls_are_steps_where_they_were),
    NT_CASE(nothing_is_silent_where_calls_are_noted),
    NT_CASE(notes_survive_running_out_of_memory),
    NT_CASES_END,
};
