/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of empty_cache() that leave no trace, starts that other settings left, and runs
 * as snapshots. */
#include <string.h>

#include "base/nt_columns.h"
#include "nt_recorded.h"
#include "nt_trace.h"
#include "whatif/nt_replay.h"

#define BASE UINT64_C(0x7f0000000000)

enum { SILENCE_EVENTS = 9 };

static nt_replay_options
silence_options(nt_test *t, const nt_program *program, const char *settings)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_options options = nt_replay_default(program);
    NT_CHECK_OK(nt_settings_parse(settings, strlen(settings), &options.settings, &err),
                &err);
    return options;
}

/* Two requests in one segment; the first block is freed, so that its segment stays in
 * use and nothing can be given back; a small block is freed, whose segment could be. */
static bool
silence_open(nt_trace *r, nt_test *t, nt_program **program)
{
    *program = NULL;
    nt_trace_open(r, t, NULL);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE, 8 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 8 * MIB, 4 * MIB);
    nt_trace_free(r, BASE, 8 * MIB);
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE + 64 * MIB, 2 * MIB);
    nt_trace_event(r, NT_ACTION_ALLOC, BASE + 64 * MIB, MIB);
    nt_trace_free(r, BASE + 64 * MIB, MIB);
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 8 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(r, BASE + 8 * MIB, 4 * MIB, 4 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(r, BASE + 12 * MIB, 8 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_segment(r, BASE + 64 * MIB, 2 * MIB, NT_POOL_SMALL, false);
    nt_trace_block(r, BASE + 64 * MIB, 2 * MIB, 0, NT_BLOCK_INACTIVE);
    if (nt_trace_replay(r)) {
        NT_CHECK_OK(nt_program_new(&r->alloc, r->timeline, program, NULL), NULL);
    }
    return NT_CHECK(*program != NULL);
}

NT_TEST(silent_calls_are_where_nothing_is_loose)
{
    nt_trace r;
    nt_program *program;
    if (silence_open(&r, t, &program)) {
        uint8_t calls[SILENCE_EVENTS + 1] = {[SILENCE_EVENTS] = 7};
        int32_t drops[1] = {77};
        NT_CHECK_OK(nt_replay_find_silence(&r.alloc, program, NULL, calls, drops, NULL),
                    NULL);
        static const uint8_t expected[SILENCE_EVENTS + 1] = {0, 1, 1, 0, 1,
                                                             0, 1, 0, 0, 7};
        NT_CHECK(memcmp(calls, expected, sizeof expected) == 0);
        NT_CHECK_INT(drops[0], NT_EVENT_NEVER);
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

/* The run with a call after event 4 that may be silent, on pages of so many MiB. */
static void
silence_find_range(nt_test *t, const nt_program *program, uint64_t page_mib,
                   nt_replay_figures *base, nt_replay_range *range)
{
    static const uint8_t calls[SILENCE_EVENTS] = {0, 0, 0, 0, 1};
    const nt_alloc alloc = nt_alloc_system();
    nt_replay_options options = silence_options(t, program, "expandable_segments:True");
    options.settings.large_segment_size = page_mib * MIB;
    options.silence = (nt_replay_silence){.marks = calls, .places = 1};
    *range = (nt_replay_range){.runs = 0};
    NT_CHECK_OK(
        nt_replay_find_range(&alloc, program, &options, 0, NULL, base, range, NULL),
        NULL);
}

NT_TEST(silent_calls_widen_ranges_elsewhere)
{
    nt_trace r;
    nt_program *program;
    nt_replay_figures base;
    nt_replay_range range;
    if (silence_open(&r, t, &program)) {
        /* No whole page of 20 MiB is free. */
        silence_find_range(t, program, 20, &base, &range);
        NT_CHECK_UINT(range.causes, 0);
        NT_CHECK_UINT(range.high.device_frees, 0);
        /* Two pages of 4 MiB are. */
        silence_find_range(t, program, 4, &base, &range);
        NT_CHECK_UINT(range.causes, NT_CAUSE_SILENT);
        NT_CHECK_UINT(base.device_frees, 0);
        NT_CHECK_UINT(range.low.device_frees, 0);
        NT_CHECK_UINT(range.high.device_frees, 1);
        NT_CHECK_UINT(base.final[NT_METRIC_RESERVED], 14 * MIB);
        /* From 6 to 14 MiB in the runs: other runs may be beyond by a part of that. */
        NT_CHECK_UINT(range.low.final[NT_METRIC_RESERVED], 4 * MIB);
        NT_CHECK_UINT(range.high.final[NT_METRIC_RESERVED], 16 * MIB);
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

/* Of many places the choice is larger, and of a short program runs cost little. */
NT_TEST(more_runs_choose_among_more_places)
{
    static const uint8_t calls[SILENCE_EVENTS] = {0, 0, 0, 0, 1};
    static const size_t places[] = {1, 10, 1000}, expected[] = {20, 40, 160};
    nt_trace r;
    nt_program *program;
    if (silence_open(&r, t, &program)) {
        for (size_t i = 0; i < NT_LENGTH(places); i++) {
            nt_replay_options options =
                silence_options(t, program, "expandable_segments:True");
            size_t plain = 0, count = 0;
            NT_CHECK_OK(
                nt_replay_count_variants(&r.alloc, program, &options, 0, &plain, NULL),
                NULL);
            options.silence = (nt_replay_silence){.marks = calls, .places = places[i]};
            NT_CHECK_OK(
                nt_replay_count_variants(&r.alloc, program, &options, 0, &count, NULL),
                NULL);
            NT_CHECK_UINT(count - plain, expected[i]);
        }
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

/* A cached segment from before the trace: kept, given back, or never there. */
NT_TEST(starts_of_other_settings_are_tried)
{
    nt_trace r;
    nt_program *program = NULL;
    nt_replay_figures base;
    nt_replay_range range;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 3 * MIB, 3 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 3 * MIB, 17 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_segment(&r, BASE + 32 * MIB, 30 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE + 32 * MIB, 30 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(NT_CHECK(nt_trace_replay(&r)));
    NT_CHECK_OK(nt_program_new(&r.alloc, r.timeline, &program, NULL), NULL);
    const nt_replay_options options =
        silence_options(t, program, "expandable_segments:True");
    NT_CHECK_OK(
        nt_replay_find_range(&r.alloc, program, &options, 0, NULL, &base, &range, NULL),
        NULL);
    NT_CHECK_UINT(range.causes, NT_CAUSE_START);
    NT_CHECK_UINT(base.final[NT_METRIC_RESERVED], 20 * MIB);
    NT_CHECK_UINT(base.segments, 0);
    NT_CHECK_UINT(range.high.final[NT_METRIC_RESERVED], (50 + 2) * MIB);
    NT_CHECK_UINT(range.high.segments, 2);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* The snapshot of a run is one that the model itself reproduces. */
static void
silence_check_trace(nt_test *t, const char *sample, const char *settings)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, sample)) {
        nt_replay_options options = silence_options(t, recorded.program, settings);
        nt_replay_figures figures;
        nt_replay_fidelity f = {.is_same = false};
        nt_recorded made = {.snapshot = NULL};
        options.goes_on = true;
        NT_CHECK_OK(nt_replay_run(&alloc, recorded.program, &options, NULL, NULL,
                                  &figures, NULL),
                    NULL);
        NT_CHECK_OK(nt_replay_trace(&alloc, recorded.program, &options, NULL,
                                    &made.snapshot, NULL),
                    NULL);
        NT_CHECK_UINT(nt_layout_check(nt_snapshot_layout(made.snapshot)), NT_NONE);
        NT_CHECK_OK(
            nt_timeline_new(&alloc, made.snapshot, 0, NULL, &made.timeline, NULL),
            NULL);
        NT_CHECK_OK(nt_program_new(&alloc, made.timeline, &made.program, NULL), NULL);
        options.settings = *nt_snapshot_settings(made.snapshot);
        NT_CHECK_OK(
            nt_replay_check(&alloc, made.program, &options, NULL, &f, NULL, NULL),
            NULL);
        NT_CHECK(f.is_same && f.is_end_same);
        NT_CHECK_UINT(nt_timeline_peak(made.timeline, NT_METRIC_RESERVED).bytes,
                      figures.peak[NT_METRIC_RESERVED]);
        nt_recorded_close(&made);
    }
    nt_recorded_close(&recorded);
}

NT_TEST(snapshot_of_run_is_reproduced)
{
    static const char *const samples[] = {
        "frag_default", "multi_stream",     "cuda_graph_pool",
        "metadata",     "weight_streaming",
    };
    static const char *const settings[] = {"", "expandable_segments:True",
                                           "roundup_power2_divisions:4"};
    for (size_t i = 0; i < NT_LENGTH(samples); i++) {
        for (size_t k = 0; k < NT_LENGTH(settings); k++) {
            silence_check_trace(t, samples[i], settings[k]);
        }
    }
}

static nt_status
silence_trace(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const nt_recorded *recorded = ctx;
    const nt_replay_options options =
        silence_options(t, recorded->program, "expandable_segments:True");
    uint8_t calls[64];
    int32_t drops[8];
    nt_snapshot *snapshot = NULL;
    NT_TRY(nt_replay_find_silence(alloc, recorded->program, NULL, calls, drops, NULL));
    const nt_status status =
        nt_replay_trace(alloc, recorded->program, &options, NULL, &snapshot, NULL);
    NT_CHECK(status == NT_OK || snapshot == NULL);
    nt_snapshot_free(snapshot);
    return status;
}

NT_TEST(refused_memory_leaves_no_snapshot)
{
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "weight_streaming") &&
        NT_CHECK(nt_timeline_event_count(recorded.timeline) <= 64)) {
        nt_test_sweep(t, silence_trace, &recorded);
    }
    nt_recorded_close(&recorded);
}

const nt_test_case nt_replay_silence_tests[] = {
    NT_CASE(silent_calls_are_where_nothing_is_loose),
    NT_CASE(silent_calls_widen_ranges_elsewhere),
    NT_CASE(more_runs_choose_among_more_places),
    NT_CASE(starts_of_other_settings_are_tried),
    NT_CASE(snapshot_of_run_is_reproduced),
    NT_CASE(refused_memory_leaves_no_snapshot),
    NT_CASES_END,
};
