/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of traces, written and read again: their figures are those of the whole trace,
 * on random programs of the model and on bundled snapshots. */
#include <inttypes.h>
#include <stdlib.h>

#include "nt_file.h"
#include "nt_model.h"
#include "nt_same.h"
#include "nt_trace.h"
#include "trace/nt_reader.h"
#include "trace/nt_writer.h"

static const nt_metric ranges_metrics[] = {NT_METRIC_ALLOCATED, NT_METRIC_ACTIVE,
                                           NT_METRIC_RESERVED, NT_METRIC_REQUESTED};

/* The range of a timeline, as a snapshot of its own; NULL after a failure. */
static nt_snapshot *
ranges_cut(nt_test *t, const nt_timeline *whole, size_t first, size_t end)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_file file = {.size = 0};
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_writer_range range = {whole, first, end};
    nt_snapshot *part = NULL;
    if (NT_CHECK_OK(nt_writer_save_ranges(&alloc, &range, 1, &sink, NULL, NULL),
                    NULL)) {
        part = nt_file_load(t, file.bytes, file.size);
    }
    nt_file_clear(&file);
    return part;
}

static void
ranges_check_series(nt_test *t, const nt_timeline *whole, const nt_timeline *part,
                    size_t first)
{
    const size_t count = nt_timeline_event_count(part);
    uint64_t *expected = malloc(nt_timeline_event_count(whole) * sizeof *expected);
    uint64_t *found = malloc((count + 1) * sizeof *found);
    for (size_t k = 0; k < sizeof ranges_metrics / sizeof *ranges_metrics; k++) {
        nt_timeline_series(whole, ranges_metrics[k], expected);
        nt_timeline_series(part, ranges_metrics[k], found);
        for (size_t i = 0; i < count; i++) {
            if (found[i] != expected[first + i]) {
                NT_FAIL("metric %d after event %zu of the part from %zu is %" PRIu64
                        ", not %" PRIu64,
                        (int)ranges_metrics[k], i, first, found[i],
                        expected[first + i]);
                break;
            }
        }
    }
    free(expected);
    free(found);
}

/* The blocks that lived before the part are those of the whole, with size and stack. */
static void
ranges_check_layout(nt_test *t, const nt_timeline *whole, const nt_timeline *part,
                    int32_t at, size_t first)
{
    nt_layout *expected = NULL, *found = NULL;
    if (NT_CHECK_OK(nt_timeline_layout(whole, (int32_t)first + at, &expected, NULL),
                    NULL) &&
        NT_CHECK_OK(nt_timeline_layout(part, at, &found, NULL), NULL)) {
        NT_CHECK_STR(nt_same_layout(nt_timeline_snapshot(whole), expected,
                                    nt_timeline_snapshot(part), found),
                     NULL);
    }
    nt_timeline_layout_free(whole, expected);
    nt_timeline_layout_free(part, found);
}

static void
ranges_check(nt_test *t, const nt_timeline *whole, size_t first, size_t end)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = ranges_cut(t, whole, first, end);
    nt_timeline *part = NULL;
    if (snapshot != NULL &&
        NT_CHECK_OK(nt_timeline_new(&alloc, snapshot, 0, NULL, &part, NULL), NULL)) {
        NT_CHECK_UINT(nt_timeline_event_count(part), end - first);
        NT_CHECK_UINT(nt_timeline_facts(part)->slack_bound, 0);
        ranges_check_series(t, whole, part, first);
        ranges_check_layout(t, whole, part, -1, first);
        ranges_check_layout(t, whole, part, (int32_t)(end - first) / 2 - 1, first);
        ranges_check_layout(t, whole, part, (int32_t)(end - first) - 1, first);
    }
    nt_timeline_free(part);
    nt_snapshot_free(snapshot);
}

static void
ranges_check_model(nt_model *m)
{
    nt_trace whole;
    nt_trace_open(&whole, m->test, &m->alloc);
    if (m->max_split != UINT64_MAX) {
        nt_trace_settings(&whole, "max_split_size_mb:64");
        whole.keys |= NT_HAS_SETTINGS;
    }
    for (size_t i = 0; i < m->event_count; i++) {
        whole.stream = m->events[i].stream;
        nt_trace_event(&whole, m->events[i].action, m->events[i].addr,
                       m->events[i].size);
    }
    nt_trace_add_layout(&whole, &m->events[m->event_count - 1].layout);
    if (nt_trace_replay(&whole)) {
        for (size_t first = 0; first < m->event_count; first += 131) {
            const size_t most = m->event_count - first;
            ranges_check(m->test, whole.timeline, first,
                         first + (size_t)nt_model_below(m, most + 1));
        }
    }
    nt_trace_close(&whole);
}

static void
ranges_check_programs(nt_test *t, bool expandable, uint64_t max_split)
{
    for (uint64_t seed = 1; seed <= 4 && t->failures == 0; seed++) {
        nt_model m;
        if (nt_model_run(&m, t, seed, expandable, max_split)) {
            ranges_check_model(&m);
        }
        nt_model_clear(&m);
        if (t->failures != 0) {
            NT_FAIL("that was seed %" PRIu64, seed);
        }
    }
}

NT_TEST(parts_of_ordinary_segments_have_the_figures_of_the_whole)
{
    ranges_check_programs(t, false, UINT64_MAX);
}

NT_TEST(parts_of_expandable_segments_have_the_figures_of_the_whole)
{
    ranges_check_programs(t, true, UINT64_MAX);
}

NT_TEST(parts_with_oversize_blocks_have_the_figures_of_the_whole)
{
    ranges_check_programs(t, false, 64 * MIB);
}

static nt_snapshot *
ranges_sample(nt_test *t, const char *name)
{
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, name, &size);
    return bytes == NULL ? NULL : nt_file_load(t, bytes, size);
}

NT_TEST(parts_of_recordings_have_the_figures_of_the_whole)
{
    static const char *const names[] = {"multi_stream", "metadata", "foreign_memory"};
    const nt_alloc alloc = nt_alloc_system();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        nt_snapshot *snapshot = ranges_sample(t, names[i]);
        nt_timeline *whole = NULL;
        NT_REQUIRE(snapshot != NULL);
        (void)NT_CHECK_OK(nt_timeline_new(&alloc, snapshot, 0, NULL, &whole, NULL),
                          NULL);
        const size_t count = whole == NULL ? 0 : nt_timeline_event_count(whole);
        for (size_t piece = 0; piece < 5 && count != 0; piece++) {
            ranges_check(t, whole, count * piece / 5, count * (piece + 1) / 5);
        }
        nt_timeline_free(whole);
        nt_snapshot_free(snapshot);
    }
}

/* A part of a part is a part of the whole. */
NT_TEST(parts_of_parts_keep_what_was_before)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = ranges_sample(t, "multi_stream");
    nt_timeline *whole = NULL, *half = NULL;
    NT_REQUIRE(snapshot != NULL);
    (void)NT_CHECK_OK(nt_timeline_new(&alloc, snapshot, 0, NULL, &whole, NULL), NULL);
    const size_t count = nt_timeline_event_count(whole);
    nt_snapshot *second = ranges_cut(t, whole, count / 2, count);
    NT_REQUIRE(second != NULL);
    nt_file_check_round_trip(t, second);
    (void)NT_CHECK_OK(nt_timeline_new(&alloc, second, 0, NULL, &half, NULL), NULL);
    ranges_check(t, half, count / 8, count / 4);
    nt_timeline_free(half);
    nt_snapshot_free(second);
    nt_timeline_free(whole);
    nt_snapshot_free(snapshot);
}

/* What was before, and an end and a trace that know nothing of it: everything before is
 * gone with the last event, and what ends at the end came with it. */
NT_TEST(a_beginning_that_the_trace_contradicts_is_survived)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    r.keys |= NT_HAS_BEFORE;
    nt_trace_event(&r, NT_ACTION_ALLOC, 40 * MIB, 3 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, 7 * MIB, MIB);
    nt_trace_segment(&r, 40 * MIB, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, 40 * MIB, 20 * MIB, 3 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_snapshot_begin_before(r.snapshot);
    nt_trace_segment(&r, 50 * MIB, 20 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, 50 * MIB, 20 * MIB, 5 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    if (nt_trace_replay(&r)) {
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, -1), 20 * MIB);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, -1), 20 * MIB);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_ALLOCATED, 1), 20 * MIB);
        NT_CHECK_UINT(nt_trace_bytes(&r, NT_METRIC_RESERVED, 1), 20 * MIB);
        nt_trace_check(&r, 1);
    }
    nt_trace_close(&r);
}

static nt_status
ranges_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    const nt_file *file = ctx;
    nt_source source;
    nt_snapshot *part = NULL;
    nt_timeline *timeline = NULL;
    nt_source_init_memory(&source, file->bytes, file->size, NULL);
    nt_status status = nt_reader_load(alloc, &source, &part, NULL);
    nt_source_clear(&source);
    if (status == NT_OK) {
        status = nt_timeline_new(alloc, part, 0, NULL, &timeline, NULL);
    }
    if (status == NT_OK) {
        nt_file again = {.size = 0};
        const nt_sink sink = {.write = nt_file_collect, .ctx = &again};
        const nt_writer_range range = {timeline, 0, 1};
        status = nt_writer_save_ranges(alloc, &range, 1, &sink, NULL, NULL);
        nt_file_clear(&again);
    }
    nt_timeline_free(timeline);
    nt_snapshot_free(part);
    return status;
}

/* Reading a part with a noted call, replaying it and cutting it again. */
NT_TEST(parts_survive_refused_memory)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = ranges_sample(t, "foreign_memory");
    nt_timeline *whole = NULL;
    NT_REQUIRE(snapshot != NULL);
    (void)NT_CHECK_OK(nt_timeline_new(&alloc, snapshot, 0, NULL, &whole, NULL), NULL);
    const size_t count = nt_timeline_event_count(whole);
    const int32_t call = (int32_t)(count / 2);
    nt_file file = {.size = 0};
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_writer_range range = {whole, count / 2, count};
    (void)NT_CHECK_OK(nt_snapshot_note_calls(snapshot, 0, &call, 1, NULL), NULL);
    (void)NT_CHECK_OK(nt_writer_save_ranges(&alloc, &range, 1, &sink, NULL, NULL),
                      NULL);
    nt_test_sweep(t, ranges_sweep, &file);
    nt_file_clear(&file);
    nt_timeline_free(whole);
    nt_snapshot_free(snapshot);
}

extern const nt_test_case nt_writer_ranges_tests[];

const nt_test_case nt_writer_ranges_tests[] = {
    NT_CASE(parts_of_ordinary_segments_have_the_figures_of_the_whole),
    NT_CASE(parts_of_expandable_segments_have_the_figures_of_the_whole),
    NT_CASE(parts_with_oversize_blocks_have_the_figures_of_the_whole),
    NT_CASE(parts_of_recordings_have_the_figures_of_the_whole),
    NT_CASE(parts_of_parts_keep_what_was_before),
    NT_CASE(a_beginning_that_the_trace_contradicts_is_survived),
    NT_CASE(parts_survive_refused_memory),
    NT_CASES_END,
};
