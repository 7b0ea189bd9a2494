/* SPDX-License-Identifier: Apache-2.0 */
/* The model held against PyTorch: the same settings, and others. */
#include "whatif/nt_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nt_recorded.h"
#include "nt_trace.h"

/* Bytes of the device that all bundled snapshots come from. */
#define DEVICE UINT64_C(150109880320)

enum { REPLAY_SETTINGS = 9, REPLAY_PROGRAMS = 3, REPLAY_FIGURES = 7 };

static const char *const replay_settings[REPLAY_SETTINGS] = {
    "",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
};

typedef struct replay_program {
    const char *name;
    uint64_t limit; /* bytes that set_per_process_memory_fraction left it; 0: all */
} replay_program;

static const replay_program replay_programs[REPLAY_PROGRAMS] = {
    {"frag_default", 2048 * MIB},
    {"dyn_transformer_capped", 2600 * MIB},
    {"mixed_streams", 0},
};

/* What PyTorch's memory_stats() said at the end of each program under each setting:
 * reserved MiB at the peak and at the end, segments, device allocations and frees,
 * OOMs, retries. */
static const uint64_t replay_truth[REPLAY_PROGRAMS][REPLAY_SETTINGS][REPLAY_FIGURES] = {
    {
        {2028, 540, 18, 32, 14, 1, 2},
        {2020, 584, 23, 43, 20, 1, 1},
        {2028, 540, 18, 32, 14, 1, 2},
        {1334, 618, 18, 24, 6, 1, 1},
        {2028, 540, 18, 32, 14, 1, 2},
        {1340, 540, 18, 32, 14, 1, 1},
        {1740, 540, 18, 32, 14, 1, 1},
        {680, 500, 0, 18, 1, 1, 1},
        {740, 540, 0, 24, 1, 1, 1},
    },
    {
        {2550, 2540, 74, 79, 5, 1, 1},
        {2592, 2534, 87, 107, 20, 1, 2},
        {2550, 2540, 74, 79, 5, 1, 1},
        {2396, 2388, 73, 77, 4, 1, 1},
        {2550, 2540, 74, 79, 5, 1, 1},
        {2462, 2452, 73, 91, 18, 1, 1},
        {2486, 2476, 77, 97, 20, 1, 1},
        {2512, 2504, 0, 73, 2, 1, 1},
        {2372, 2364, 0, 74, 2, 1, 1},
    },
    {
        {136, 136, 14, 19, 5, 0, 0},
        {136, 136, 14, 19, 5, 0, 0},
        {136, 136, 14, 20, 6, 0, 0},
        {156, 156, 15, 20, 5, 0, 0},
        {136, 136, 14, 19, 5, 0, 0},
        {136, 136, 14, 19, 5, 0, 0},
        {136, 136, 14, 19, 5, 0, 0},
        {136, 136, 0, 18, 4, 0, 0},
        {136, 136, 0, 19, 5, 0, 0},
    },
};

static void
replay_list(const nt_replay_figures *f, uint64_t out[REPLAY_FIGURES])
{
    out[0] = f->peak[NT_METRIC_RESERVED];
    out[1] = f->final[NT_METRIC_RESERVED];
    out[2] = f->segments;
    out[3] = f->device_allocs;
    out[4] = f->device_frees;
    out[5] = f->ooms;
    out[6] = f->retries;
}

/* The figures as the truth has them. */
static void
replay_list_mib(const nt_replay_figures *f, uint64_t out[REPLAY_FIGURES])
{
    replay_list(f, out);
    out[0] /= MIB;
    out[1] /= MIB;
}

static void
replay_check_same(nt_test *t, const char *name)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    nt_replay_fidelity f = {0};
    if (nt_recorded_open(&recorded, t, name)) {
        const nt_replay_options options = nt_replay_default(recorded.program);
        NT_CHECK_OK(
            nt_replay_check(&alloc, recorded.program, &options, NULL, &f, NULL, NULL),
            NULL);
        if (!NT_CHECK(f.is_same && f.is_end_same)) {
            NT_FAIL("%s: event %d", name, (int)f.first_event);
        }
        NT_CHECK(f.mallocs > 0 && f.mallocs == f.mallocs_same);
        NT_CHECK_UINT(f.device_events_same, f.device_events);
    }
    nt_recorded_close(&recorded);
}

NT_TEST(snapshots_replay_address_by_address)
{
    static const char *const names[] = {
        "attention_flash",
        "attention_math",
        "cpp_pickled",
        "cpp_stacks",
        "create_graph_leak",
        "cuda_graph_pool",
        "cycle_nodes",
        "foreign_memory",
        "frag_default",
        "leak_list",
        "metadata",
        "multi_stream",
        "train_resnet_healthy",
        "train_resnet_late_zero_grad",
        "weight_streaming",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        replay_check_same(t, names[i]);
    }
}

/* The limit, where there was one, follows from the traces closely enough. */
NT_TEST(all_settings_replay_by_address)
{
    for (size_t i = 0; i < REPLAY_PROGRAMS; i++) {
        for (size_t n = 0; n < REPLAY_SETTINGS; n++) {
            char name[64];
            (void)snprintf(name, sizeof name, "whatif/%zu/%s", n,
                           replay_programs[i].name);
            replay_check_same(t, name);
        }
    }
}

static nt_replay_options
replay_options(nt_test *t, const char *settings, uint64_t limit)
{
    nt_replay_options options = {.device_total = DEVICE, .limit = limit};
    (void)NT_CHECK_OK(
        nt_settings_parse(settings, strlen(settings), &options.settings, NULL), NULL);
    return options;
}

/* One program recorded under setting `from`, predicted under all nine: `exact` of the
 * cells have all seven figures, and each truth lies in its range. */
static void
replay_check_program(nt_test *t, size_t program, size_t from, size_t exact)
{
    const nt_alloc alloc = nt_alloc_system();
    const replay_program *what = &replay_programs[program];
    nt_recorded recorded;
    char name[64];
    size_t found = 0;
    (void)snprintf(name, sizeof name, "whatif/%zu/%s", from, what->name);
    const bool is_open = nt_recorded_open(&recorded, t, name);
    for (size_t n = 0; is_open && n < REPLAY_SETTINGS; n++) {
        const nt_replay_options options =
            replay_options(t, replay_settings[n], what->limit);
        nt_replay_figures base = {0};
        nt_replay_range range = {.causes = 0};
        uint64_t figures[REPLAY_FIGURES], low[REPLAY_FIGURES], high[REPLAY_FIGURES];
        NT_CHECK_OK(nt_replay_find_range(&alloc, recorded.program, &options, 20, NULL,
                                         &base, &range, NULL),
                    NULL);
        replay_list_mib(&base, figures);
        replay_list_mib(&range.low, low);
        replay_list_mib(&range.high, high);
        const uint64_t *truth = replay_truth[program][n];
        const bool is_exact = memcmp(figures, truth, sizeof figures) == 0;
        found += is_exact;
        for (size_t k = 0; k < REPLAY_FIGURES; k++) {
            if (!NT_CHECK(low[k] <= truth[k] && truth[k] <= high[k])) {
                NT_FAIL("%s under %s: figure %zu", name, replay_settings[n], k);
            }
        }
        /* What is not exact has a cause. */
        NT_CHECK(is_exact || range.causes != 0);
    }
    NT_CHECK_UINT(found, exact);
    nt_recorded_close(&recorded);
}

NT_TEST(other_settings_are_predicted_exactly)
{
    replay_check_program(t, 0, 0, 9);
    replay_check_program(t, 1, 0, 7);
    replay_check_program(t, 2, 1, 8);
}

NT_TEST(predictions_hold_from_any_recording)
{
    replay_check_program(t, 0, 7, 9);
    replay_check_program(t, 1, 3, 1);
    replay_check_program(t, 1, 8, 3);
    replay_check_program(t, 2, 2, 1);
}

/* Under the trace's own settings the series are those of the trace. */
NT_TEST(series_follow_the_recorded_ones)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "leak_list")) {
        const size_t count = nt_timeline_event_count(recorded.timeline);
        const nt_replay_options options = nt_replay_default(recorded.program);
        uint64_t *truth = malloc(count * sizeof *truth);
        nt_replay_series series = {.segments = NULL};
        nt_replay_figures figures;
        NT_REQUIRE(NT_CHECK(truth != NULL));
        for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
            series.bytes[metric] = malloc(count * sizeof *truth);
        }
        series.device_allocs = malloc(count * sizeof *series.device_allocs);
        NT_REQUIRE(NT_CHECK(series.device_allocs != NULL));
        NT_CHECK_OK(nt_replay_run(&alloc, recorded.program, &options, NULL, &series,
                                  &figures, NULL),
                    NULL);
        NT_CHECK_UINT(series.device_allocs[count - 1], figures.device_allocs);
        NT_CHECK_UINT(series.device_allocs[0] + 37, figures.device_allocs);
        free(series.device_allocs);
        const uint8_t *action = nt_snapshot_events(recorded.snapshot)->action;
        for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
            size_t wrong = 0;
            nt_timeline_series(recorded.timeline, (nt_metric)metric, truth);
            for (size_t i = 0; i < count; i++) {
                /* The model takes a segment with the request that needs it. */
                wrong += series.bytes[metric][i] != truth[i] &&
                         action[i] != NT_ACTION_SEGMENT_ALLOC;
            }
            NT_CHECK_UINT(wrong, 0);
            NT_CHECK_UINT(figures.peak[metric],
                          nt_timeline_peak(recorded.timeline, (nt_metric)metric).bytes);
            free(series.bytes[metric]);
        }
        free(truth);
    }
    nt_recorded_close(&recorded);
}

NT_TEST(smaller_limit_stops_the_program)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "train_resnet_healthy")) {
        nt_replay_options options = replay_options(t, "", 1024 * MIB);
        nt_replay_figures figures;
        NT_CHECK_OK(nt_replay_run(&alloc, recorded.program, &options, NULL, NULL,
                                  &figures, NULL),
                    NULL);
        NT_CHECK(figures.is_stopped);
        NT_CHECK_UINT(figures.ooms, 1);
        NT_CHECK(figures.peak[NT_METRIC_RESERVED] <= 1024 * MIB);
        options.goes_on = true;
        NT_CHECK_OK(nt_replay_run(&alloc, recorded.program, &options, NULL, NULL,
                                  &figures, NULL),
                    NULL);
        NT_CHECK(!figures.is_stopped);
        NT_CHECK(figures.ooms > 1);
        /* What is there before the trace does not fit in this. */
        options = replay_options(t, "expandable_segments:True", 60 * MIB);
        NT_CHECK_OK(nt_replay_run(&alloc, recorded.program, &options, NULL, NULL,
                                  &figures, NULL),
                    NULL);
        NT_CHECK(figures.is_stopped && figures.start_rebuilt);
        NT_CHECK_INT(figures.stopped_event, NT_EVENT_BEFORE);
    }
    nt_recorded_close(&recorded);
}

/* What a program does once a request of it has failed is not in its trace: it may end,
 * or go on. */
NT_TEST(nothing_bounds_what_follows_a_failure)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "train_resnet_healthy")) {
        nt_replay_options options = replay_options(t, "", 1024 * MIB);
        nt_replay_figures base;
        nt_replay_range range;
        NT_CHECK_OK(nt_replay_find_range(&alloc, recorded.program, &options, 2, NULL,
                                         &base, &range, NULL),
                    NULL);
        NT_CHECK(base.is_stopped);
        NT_CHECK_UINT(range.causes & NT_CAUSE_BEYOND, NT_CAUSE_BEYOND);
        NT_CHECK_UINT(range.high.ooms, UINT64_MAX);
        NT_CHECK_UINT(range.low.ooms, 1);
        NT_CHECK_UINT(range.high.peak[NT_METRIC_RESERVED], 1024 * MIB);
        NT_CHECK_UINT(range.low.final[NT_METRIC_RESERVED], 0);
        /* Whole pages may pass the limit. */
        options = replay_options(t, "expandable_segments:True", 1024 * MIB);
        NT_CHECK_OK(nt_replay_find_range(&alloc, recorded.program, &options, 2, NULL,
                                         &base, &range, NULL),
                    NULL);
        NT_CHECK(base.is_stopped);
        NT_CHECK_UINT(range.high.peak[NT_METRIC_RESERVED], 1044 * MIB);
    }
    nt_recorded_close(&recorded);
}

/* A trace that does not follow the rules: the first event that does not is named. */
NT_TEST(first_difference_is_told)
{
    const uint64_t base = UINT64_C(0x7f0000000000);
    const nt_alloc alloc = nt_alloc_system();
    nt_trace r;
    nt_program *program = NULL;
    nt_replay_fidelity f = {0};
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, base, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, base, 4 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, base + 10 * MIB, 4 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, base + 32 * MIB, 20 * MIB);
    nt_trace_segment(&r, base, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, base, 4 * MIB, 4 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, base + 4 * MIB, 6 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(&r, base + 10 * MIB, 4 * MIB, 4 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, base + 14 * MIB, 6 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_segment(&r, base + 32 * MIB, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, base + 32 * MIB, 20 * MIB, 0, NT_BLOCK_INACTIVE);
    NT_REQUIRE(NT_CHECK(nt_trace_replay(&r)));
    NT_CHECK_OK(nt_program_new(&alloc, r.timeline, &program, NULL), NULL);
    const nt_replay_options options = nt_replay_default(program);
    NT_CHECK_OK(nt_replay_check(&alloc, program, &options, NULL, &f, NULL, NULL), NULL);
    NT_CHECK(!f.is_same);
    NT_CHECK_INT(f.first_event, 2);
    NT_CHECK_UINT(f.recorded.address, base + 10 * MIB);
    NT_CHECK_UINT(f.modelled.address, base + 4 * MIB);
    NT_CHECK_UINT(f.mallocs_same, 1);
    NT_CHECK_UINT(f.device_events, 2);
    NT_CHECK_UINT(f.device_events_same, 1);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* What was cached before the trace was cached under its settings; under others it might
 * not be there. */
NT_TEST(state_of_other_settings_is_told)
{
    const uint64_t base = UINT64_C(0x7f0000000000);
    const nt_alloc alloc = nt_alloc_system();
    for (int has_cache = 0; has_cache < 2; has_cache++) {
        nt_trace r;
        nt_program *program = NULL;
        nt_replay_figures figures;
        nt_replay_range range = {.causes = 0};
        nt_trace_open(&r, t, NULL);
        nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
        nt_trace_segment(&r, base, 20 * MIB, NT_POOL_LARGE, false);
        nt_trace_block(&r, base, 3 * MIB, 3 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
        nt_trace_block(&r, base + 3 * MIB, 17 * MIB, 0, NT_BLOCK_INACTIVE);
        if (has_cache) {
            nt_trace_segment(&r, base + 32 * MIB, 30 * MIB, NT_POOL_LARGE, false);
            nt_trace_block(&r, base + 32 * MIB, 30 * MIB, 0, NT_BLOCK_INACTIVE);
        }
        NT_REQUIRE(NT_CHECK(nt_trace_replay(&r)));
        NT_CHECK_OK(nt_program_new(&alloc, r.timeline, &program, NULL), NULL);
        nt_replay_options options = nt_replay_default(program);
        NT_CHECK_OK(nt_replay_find_range(&alloc, program, &options, 0, NULL, &figures,
                                         &range, NULL),
                    NULL);
        NT_CHECK_UINT(range.causes, 0);
        NT_CHECK_UINT(figures.final[NT_METRIC_RESERVED], (has_cache ? 50 : 20) * MIB);
        options = replay_options(t, "expandable_segments:True", 0);
        NT_CHECK_OK(nt_replay_find_range(&alloc, program, &options, 0, NULL, &figures,
                                         &range, NULL),
                    NULL);
        NT_CHECK_UINT(range.causes, has_cache ? NT_CAUSE_START : 0);
        NT_CHECK(figures.start_rebuilt);
        NT_CHECK_UINT(figures.peak[NT_METRIC_RESERVED], 20 * MIB);
        nt_program_free(program);
        nt_trace_close(&r);
    }
}

/* The runs of a range made one by one, the last first. */
static nt_status
replay_join_runs(const nt_alloc *alloc, const nt_program *program,
                 const nt_replay_options *options, nt_replay_range *out, nt_error *err)
{
    nt_replay_variant variants[8];
    size_t count;
    bool is_there;
    NT_TRY(nt_replay_count_variants(alloc, program, options, 6, &count, err));
    for (size_t i = count; i-- > 0;) {
        NT_TRY(nt_replay_run_variant(alloc, program, options, 6, i, NULL, &variants[i],
                                     &is_there, err));
    }
    return nt_replay_join_variants(alloc, program, options, variants, count, out, err);
}

NT_TEST(runs_of_a_range_can_be_made_apart)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "frag_default")) {
        const nt_replay_options options =
            replay_options(t, "roundup_power2_divisions:4", 0);
        nt_replay_figures base = {0};
        nt_replay_range whole = {.runs = 0}, joined = {.runs = 99};
        nt_replay_variant beyond;
        bool is_there = true;
        NT_CHECK_OK(nt_replay_find_range(&alloc, recorded.program, &options, 6, NULL,
                                         &base, &whole, NULL),
                    NULL);
        NT_CHECK_OK(replay_join_runs(&alloc, recorded.program, &options, &joined, NULL),
                    NULL);
        NT_CHECK_UINT(joined.runs, 6);
        NT_CHECK_UINT(joined.causes, whole.causes);
        NT_CHECK(memcmp(&joined.low, &whole.low, sizeof whole.low) == 0);
        NT_CHECK(memcmp(&joined.high, &whole.high, sizeof whole.high) == 0);
        NT_CHECK_OK(nt_replay_run_variant(&alloc, recorded.program, &options, 6, 6,
                                          NULL, &beyond, &is_there, NULL),
                    NULL);
        NT_CHECK(!is_there);
    }
    nt_recorded_close(&recorded);
}

typedef struct replay_sweep {
    nt_recorded recorded;
    nt_replay_options options;
} replay_sweep;

static nt_status
replay_run_all(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const replay_sweep *s = ctx;
    nt_replay_fidelity f = {0};
    nt_replay_figures figures = {.ooms = 99};
    nt_replay_range range = {.runs = 99};
    nt_status status =
        nt_replay_check(alloc, s->recorded.program, &s->options, NULL, &f, NULL, NULL);
    NT_CHECK(status == NT_OK || f.mallocs == 0);
    if (status == NT_OK) {
        status = nt_replay_find_range(alloc, s->recorded.program, &s->options, 4, NULL,
                                      &figures, &range, NULL);
        NT_CHECK(status == NT_OK || (figures.ooms == 99 && range.runs == 99));
    }
    if (status == NT_OK) {
        nt_replay_range joined = {.runs = 99};
        status =
            replay_join_runs(alloc, s->recorded.program, &s->options, &joined, NULL);
        NT_CHECK(status == NT_OK || joined.runs == 99);
    }
    return status;
}

NT_TEST(refused_memory_leaves_no_figures)
{
    replay_sweep s;
    if (nt_recorded_open(&s.recorded, t, "weight_streaming")) {
        s.options = replay_options(t, "", 0);
        nt_test_sweep(t, replay_run_all, &s);
    }
    nt_recorded_close(&s.recorded);
    if (nt_recorded_open(&s.recorded, t, "metadata")) {
        s.options = replay_options(t, "expandable_segments:True", 0);
        nt_test_sweep(t, replay_run_all, &s);
    }
    nt_recorded_close(&s.recorded);
}

/* Whatever was refused, it is not as if nothing had been. */
static nt_status
replay_run_once(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const nt_program *program = ctx;
    const nt_hostile *hostile = alloc->ctx;
    const nt_replay_options options = nt_replay_default(program);
    nt_replay_figures figures;
    const nt_status status =
        nt_replay_run(alloc, program, &options, NULL, NULL, &figures, NULL);
    NT_CHECK(status != NT_OK || hostile->requests < hostile->fail_at);
    return status;
}

NT_TEST(refused_memory_is_never_passed_over)
{
    nt_trace r;
    nt_program *program = NULL;
    nt_trace_open(&r, t, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, 128 * MIB, 30 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, 128 * MIB, 30 * MIB);
    nt_trace_free(&r, 128 * MIB, 30 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, 128 * MIB, 30 * MIB);
    if (nt_trace_replay(&r) &&
        NT_CHECK_OK(nt_program_new(&r.alloc, r.timeline, &program, NULL), NULL)) {
        nt_test_sweep(t, replay_run_once, program);
    }
    nt_program_free(program);
    nt_trace_close(&r);
}

static int
replay_cancel(void *ctx, uint64_t done)
{
    (void)done;
    return ++*(int *)ctx;
}

NT_TEST(long_replays_can_be_cancelled)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_recorded recorded;
    int calls = 0;
    const nt_progress progress = {.report = replay_cancel, .ctx = &calls};
    if (nt_recorded_open(&recorded, t, "metadata")) {
        const nt_replay_options options = replay_options(t, "", 0);
        nt_replay_figures figures = {.ooms = 99};
        (void)NT_CHECK_STATUS(nt_replay_run(&alloc, recorded.program, &options,
                                            &progress, NULL, &figures, NULL),
                              NT_CANCELLED, NULL);
        NT_CHECK_INT(calls, 1);
        NT_CHECK_UINT(figures.ooms, 99);
    }
    nt_recorded_close(&recorded);
}

const nt_test_case nt_replay_tests[] = {
    NT_CASE(snapshots_replay_address_by_address),
    NT_CASE(all_settings_replay_by_address),
    NT_CASE(other_settings_are_predicted_exactly),
    NT_CASE(predictions_hold_from_any_recording),
    NT_CASE(series_follow_the_recorded_ones),
    NT_CASE(smaller_limit_stops_the_program),
    NT_CASE(nothing_bounds_what_follows_a_failure),
    NT_CASE(first_difference_is_told),
    NT_CASE(state_of_other_settings_is_told),
    NT_CASE(runs_of_a_range_can_be_made_apart),
    NT_CASE(refused_memory_leaves_no_figures),
    NT_CASE(refused_memory_is_never_passed_over),
    NT_CASE(long_replays_can_be_cancelled),
    NT_CASES_END,
};
