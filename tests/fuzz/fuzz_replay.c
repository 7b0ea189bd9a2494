/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: whatever trace a file holds, a program is made of it, and the program is
 * checked and replayed under any settings or refused in words; what comes out is the
 * same each time, no figure is above its peak, and each lies in its range. So it is
 * with the program changed in any way that is allowed.
 */
#include <string.h>

#include "nt_fuzz.h"
#include "whatif/nt_replay.h"

static const char *const settings[] = {
    "",
    "max_split_size_mb:20,garbage_collection_threshold:0.3",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:64,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
};

#define SETTINGS (sizeof settings / sizeof *settings)

static void
check_status(nt_status status, const nt_error *err)
{
    NT_FUZZ_CHECK(status == NT_OK || status == NT_ARGUMENT || status == NT_LIMIT);
    NT_FUZZ_CHECK(status == NT_OK || err->message[0] != 0);
}

static void
check_figures(const nt_replay_figures *f)
{
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        NT_FUZZ_CHECK(f->final[metric] <= f->peak[metric]);
    }
}

static void
check_run(const nt_program *program, const nt_replay_options *options)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_figures first, base;
    nt_replay_range range;
    memset(&first, 0, sizeof first);
    memset(&base, 0, sizeof base);
    const nt_status status =
        nt_replay_run(&alloc, program, options, NULL, NULL, &first, &err);
    check_status(status, &err);
    if (status != NT_OK) {
        return;
    }
    check_figures(&first);
    if (nt_replay_find_range(&alloc, program, options, 6, NULL, &base, &range, &err) ==
        NT_OK) {
        NT_FUZZ_CHECK(memcmp(first.peak, base.peak, sizeof first.peak) == 0);
        NT_FUZZ_CHECK(first.device_allocs == base.device_allocs);
        NT_FUZZ_CHECK(range.low.ooms <= base.ooms && base.ooms <= range.high.ooms);
    }
}

/* What leaves no trace is found, and the snapshot of a run is sound. */
static void
check_snapshot(const nt_program *program, const nt_replay_options *options)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const size_t events = nt_timeline_event_count(program->timeline);
    const size_t pools = program->pool_count * sizeof(int32_t);
    nt_replay_options other = *options;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_snapshot *snapshot = NULL;
    uint8_t *marks = nt_allocate(&alloc, events);
    int32_t *drops = nt_allocate(&alloc, pools);
    if ((marks != NULL || events == 0) && drops != NULL && events != 0) {
        if (nt_replay_find_silence(&alloc, program, NULL, marks, drops, &err) ==
            NT_OK) {
            other.silence = (nt_replay_silence){
                .marks = marks, .drops = drops, .places = 1, .share = UINT32_MAX / 2};
        }
        const nt_status status =
            nt_replay_trace(&alloc, program, &other, NULL, &snapshot, &err);
        check_status(status, &err);
        NT_FUZZ_CHECK(status != NT_OK ||
                      nt_layout_check(nt_snapshot_layout(snapshot)) == NT_NONE);
        nt_snapshot_free(snapshot);
    }
    nt_release(&alloc, marks, events);
    nt_release(&alloc, drops, pools);
}

/* Whether every step is part of the series: a block that ends behind the last event is
 * free after the series is over. */
static bool
is_covered(const nt_program *program)
{
    const size_t events = nt_timeline_event_count(program->timeline);
    bool covered = events != 0;
    for (size_t i = 0; i < program->step_count; i++) {
        covered &= (size_t)program->steps[i].event < events;
    }
    return covered;
}

/* The last values of the series are the figures at the end. */
static void
check_series(const nt_program *program, const nt_replay_options *options)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const size_t events = nt_timeline_event_count(program->timeline);
    nt_replay_series series = {.segments = nt_allocate(&alloc, events * 4)};
    nt_replay_figures f;
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        series.bytes[metric] = nt_allocate(&alloc, events * 8);
    }
    if (nt_replay_run(&alloc, program, options, NULL, &series, &f, NULL) == NT_OK &&
        is_covered(program)) {
        NT_FUZZ_CHECK(series.segments[events - 1] == f.segments);
        for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
            NT_FUZZ_CHECK(series.bytes[metric][events - 1] == f.final[metric]);
        }
    }
    nt_release(&alloc, series.segments, events * 4);
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        nt_release(&alloc, series.bytes[metric], events * 8);
    }
}

/* The program with other sizes, ends and calls, which the file's last byte chooses. */
static void
check_edit(const nt_program *program, nt_replay_options *options, uint8_t choice)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const size_t events = nt_timeline_event_count(program->timeline);
    uint64_t *sizes = nt_allocate(&alloc, events * sizeof *sizes);
    int32_t *ends = nt_allocate(&alloc, events * sizeof *ends);
    int32_t *calls = nt_allocate(&alloc, events * sizeof *calls);
    nt_program_change change = {.sizes = sizes, .ends = ends, .calls = calls};
    for (size_t i = 0; i < events; i++) {
        const uint64_t draw = nt_mix64(((uint64_t)choice << 32) + i + 1);
        sizes[i] = draw % 4 == 0 ? 0 : (draw >> 8) % ((uint64_t)1 << draw % 32);
        ends[i] =
            draw % 3 == 0 ? NT_EVENT_NEVER : (int32_t)(i + (draw >> 40) % (events - i));
        if (draw % 5 == 0) {
            calls[change.call_count++] = (int32_t)i;
        }
    }
    change.sizes = choice % 3 == 0 ? NULL : sizes;
    change.ends = choice % 3 == 1 ? NULL : ends;
    nt_program *edited = NULL;
    NT_FUZZ_CHECK(nt_program_edit(&alloc, program, &change, &edited, NULL) == NT_OK);
    options->begin = (nt_replay_begin)(choice % 4);
    options->timing = (nt_replay_timing)(choice / 4 % 4);
    options->order = (nt_replay_order)(choice / 16 % 4);
    options->least_ooms = choice % 2 != 0;
    check_run(edited, options);
    check_series(edited, options);
    nt_program_free(edited);
    nt_release(&alloc, sizes, events * sizeof *sizes);
    nt_release(&alloc, ends, events * sizeof *ends);
    nt_release(&alloc, calls, events * sizeof *calls);
}

static void
check_program(const nt_program *program, uint8_t choice)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_fidelity f;
    nt_replay_options options = nt_replay_default(program);
    const nt_status status =
        nt_replay_check(&alloc, program, &options, NULL, &f, NULL, &err);
    check_status(status, &err);
    if (status == NT_OK) {
        NT_FUZZ_CHECK(f.mallocs_same <= f.mallocs);
        NT_FUZZ_CHECK(f.device_events_same <= f.device_events);
        NT_FUZZ_CHECK(!f.is_same || (f.mallocs_same == f.mallocs &&
                                     f.device_events_same == f.device_events));
    }
    check_run(program, &options);
    const char *text = settings[choice % SETTINGS];
    NT_FUZZ_CHECK(nt_settings_parse(text, strlen(text), &options.settings, NULL) ==
                  NT_OK);
    options.goes_on = choice % 2 == 0;
    if (choice >= 128) {
        options.limit = (uint64_t)(choice - 127) << 20;
    }
    check_run(program, &options);
    check_snapshot(program, &options);
    check_edit(program, &options, choice);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_snapshot *snapshot = nt_fuzz_load(data, size);
    const size_t devices = snapshot == NULL ? 0 : nt_snapshot_trace_count(snapshot);
    for (size_t i = 0; i < devices && i < 4; i++) {
        nt_timeline *timeline = NULL;
        nt_program *program = NULL;
        if (nt_fuzz_rows(snapshot) > NT_FUZZ_MOST_ROWS ||
            nt_timeline_new(&alloc, snapshot, (int32_t)i, NULL, &timeline, NULL) !=
                NT_OK) {
            break;
        }
        if (nt_program_new(&alloc, timeline, &program, NULL) == NT_OK) {
            check_program(program, data[size - 1]);
        }
        nt_program_free(program);
        nt_timeline_free(timeline);
    }
    nt_snapshot_free(snapshot);
    nt_fuzz_finish();
    return 0;
}
