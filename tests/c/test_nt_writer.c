/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer.h"

#include <string.h>

#include "nt_file.h"
#include "nt_random.h"
#include "nt_same.h"
#include "nt_test.h"

NT_TEST(random_snapshots_survive_a_round_trip)
{
    for (uint64_t start = 1; start <= 200 && t->failures == 0; start++) {
        uint64_t seed = start;
        const uint32_t dropped =
            (uint32_t)nt_test_random(&seed) & (uint32_t)NT_RANDOM_OPTIONAL_KEYS;
        nt_snapshot *snapshot =
            nt_random_snapshot(t, (uint32_t)NT_RANDOM_KEYS & ~dropped, &seed);
        nt_file_check_round_trip(t, snapshot);
        nt_snapshot_free(snapshot);
        if (t->failures != 0) {
            NT_FAIL("so it was with seed %d", (int)start);
        }
    }
}

NT_TEST(real_snapshots_survive_a_round_trip)
{
    static const char *const names[] = {"metadata", "cpp_stacks", "multi_stream",
                                        "cuda_graph_pool"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size;
        const uint8_t *bytes = nt_test_sample(t, names[i], &size);
        NT_REQUIRE(bytes != NULL);
        nt_snapshot *snapshot = nt_file_load(t, bytes, size);
        NT_REQUIRE(snapshot != NULL);
        nt_file_check_round_trip(t, snapshot);
        nt_snapshot_free(snapshot);
    }
}

NT_TEST(a_bare_list_stays_one)
{
    /* PROTO 4, FRAME of 3 bytes, EMPTY_LIST, MEMOIZE, STOP. */
    static const uint8_t expected[] = {0x80, 4, 0x95, 3, 0,   0,    0,
                                       0,    0, 0,    0, ']', 0x94, '.'};
    nt_file file = {.size = 0};
    nt_snapshot *snapshot = nt_file_begin(t, NT_SEGMENTS_ONLY);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    (void)NT_CHECK_OK(nt_file_save(&file, snapshot), NULL);
    if (NT_CHECK_UINT(file.size, sizeof expected)) {
        NT_CHECK_BYTES(file.bytes, expected, sizeof expected);
    }
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(long_settings_survive_a_round_trip)
{
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_SETTINGS | NT_HAS_TRACES);
    nt_random_settings(t, snapshot, 2500);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    nt_file_check_round_trip(t, snapshot);
    nt_snapshot_free(snapshot);
}

NT_TEST(oom_events_have_device_free)
{
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_TRACES | NT_HAS_EVENT_DEVICE_FREE);
    const nt_event event = {
        .action = NT_ACTION_OOM,
        .size = 512,
        .device_free = 77,
        .stack = NT_NO_STACK,
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    (void)NT_CHECK_OK(nt_snapshot_begin_trace(snapshot, NULL), NULL);
    (void)NT_CHECK_OK(nt_snapshot_add_event(snapshot, &event, NULL), NULL);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(nt_file_save(&file, snapshot), NULL);
    NT_CHECK_UINT(nt_file_count(&file, "device_free\x94K\x4d", 14), 1);
    NT_CHECK_UINT(nt_file_count(&file, "addr", 4), 0);
    NT_CHECK_UINT(nt_file_count(&file, "time_us", 7), 0);
    NT_CHECK_UINT(nt_file_count(&file, "frames", 6), 0);
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(equal_strings_are_written_once)
{
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_ANNOTATIONS);
    const nt_annotation annotation = {.name = nt_file_intern(t, snapshot, "stage", 5)};
    for (int i = 0; i < 3; i++) {
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL),
                          NULL);
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(nt_file_save(&file, snapshot), NULL);
    /* It is a key and the name of three annotations. */
    NT_CHECK_UINT(nt_file_count(&file, "stage", 5), 1);
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(failing_sinks_end_the_writing)
{
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, "frag_default", &size);
    NT_REQUIRE(bytes != NULL);
    nt_snapshot *snapshot = nt_file_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    nt_file whole = {.size = 0};
    (void)NT_CHECK_OK(nt_file_save(&whole, snapshot), NULL);
    for (size_t fail_at = 1; fail_at <= whole.writes; fail_at++) {
        nt_file file = {.fail_at = fail_at};
        (void)NT_CHECK_STATUS(nt_file_save(&file, snapshot), NT_IO, NULL);
        NT_CHECK_UINT(file.writes, fail_at);
        nt_file_clear(&file);
    }
    nt_file_clear(&whole);
    nt_snapshot_free(snapshot);
}

static int
writer_refuse(void *ctx, uint64_t done)
{
    *(uint64_t *)ctx = done;
    return 1;
}

NT_TEST(progress_can_cancel_the_writing)
{
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, "metadata", &size);
    NT_REQUIRE(bytes != NULL);
    nt_snapshot *snapshot = nt_file_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    uint64_t done = 1;
    nt_file file = {.size = 0};
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_progress progress = {.report = writer_refuse, .ctx = &done};
    (void)NT_CHECK_STATUS(nt_writer_save(&alloc, snapshot, &sink, &progress, NULL),
                          NT_CANCELLED, NULL);
    NT_CHECK_UINT(done, 0);
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

/* A timeline of the device 0 of a bundled snapshot. */
static nt_timeline *
writer_timeline(nt_test *t, const char *name, nt_snapshot **snapshot)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_timeline *timeline = NULL;
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, name, &size);
    *snapshot = bytes == NULL ? NULL : nt_file_load(t, bytes, size);
    if (*snapshot != NULL) {
        (void)NT_CHECK_OK(nt_timeline_new(&alloc, *snapshot, 0, NULL, &timeline, NULL),
                          NULL);
    }
    return timeline;
}

static nt_status
writer_save_range_to(nt_file *file, const nt_timeline *timeline, size_t first,
                     size_t end)
{
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = nt_file_collect, .ctx = file};
    const nt_writer_range range = {timeline, first, end};
    return nt_writer_save_ranges(&alloc, &range, 1, &sink, NULL, NULL);
}

static void
writer_check_range(nt_test *t, const nt_timeline *timeline, size_t first, size_t end)
{
    const nt_snapshot *whole = nt_timeline_snapshot(timeline);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_range_to(&file, timeline, first, end), NULL);
    nt_snapshot *part = nt_file_load(t, file.bytes, file.size);
    nt_file_clear(&file);
    NT_REQUIRE(part != NULL);
    nt_layout *layout = NULL;
    (void)NT_CHECK_OK(nt_timeline_layout(timeline, (int32_t)end - 1, &layout, NULL),
                      NULL);
    NT_CHECK_STR(nt_same_layout(whole, layout, part, nt_snapshot_layout(part)), NULL);
    nt_timeline_layout_free(timeline, layout);
    const nt_event_columns *from = nt_snapshot_events(whole);
    const nt_event_columns *to = nt_snapshot_events(part);
    if (NT_CHECK_UINT(to->count, end - first)) {
        NT_CHECK(memcmp(to->addr, from->addr + first, to->count * 8) == 0);
        NT_CHECK(memcmp(to->size, from->size + first, to->count * 8) == 0);
        NT_CHECK(memcmp(to->time_us, from->time_us + first, to->count * 8) == 0);
    }
    nt_snapshot_free(part);
}

NT_TEST(ranges_end_with_their_layout)
{
    nt_snapshot *snapshot;
    nt_timeline *timeline = writer_timeline(t, "multi_stream", &snapshot);
    NT_REQUIRE(timeline != NULL);
    const size_t count = nt_timeline_event_count(timeline);
    writer_check_range(t, timeline, 0, count);
    writer_check_range(t, timeline, 0, 1);
    writer_check_range(t, timeline, count / 3, count / 2);
    writer_check_range(t, timeline, count - 1, count);
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
}

NT_TEST(empty_ranges_keep_the_beginning)
{
    nt_snapshot *snapshot;
    nt_timeline *timeline = writer_timeline(t, "foreign_memory", &snapshot);
    NT_REQUIRE(timeline != NULL);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_range_to(&file, timeline, 0, 0), NULL);
    nt_snapshot *part = nt_file_load(t, file.bytes, file.size);
    nt_file_clear(&file);
    if (part != NULL) {
        NT_CHECK_UINT(nt_snapshot_layout(part)->segments.count, 0);
        NT_CHECK_UINT(nt_snapshot_events(part)->count, 0);
        NT_CHECK_UINT(nt_snapshot_trace_count(part), nt_snapshot_trace_count(snapshot));
    }
    nt_snapshot_free(part);
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
}

NT_TEST(ranges_outside_are_refused)
{
    nt_snapshot *snapshot;
    nt_timeline *timeline = writer_timeline(t, "foreign_memory", &snapshot);
    NT_REQUIRE(timeline != NULL);
    const size_t count = nt_timeline_event_count(timeline);
    static const size_t bad[][2] = {{1, 0}, {0, SIZE_MAX}, {SIZE_MAX, SIZE_MAX}};
    nt_file file = {.size = 0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)NT_CHECK_STATUS(
            writer_save_range_to(&file, timeline, bad[i][0], bad[i][1]), NT_ARGUMENT,
            NULL);
    }
    (void)NT_CHECK_STATUS(writer_save_range_to(&file, timeline, 0, count + 1),
                          NT_ARGUMENT, NULL);
    NT_CHECK_UINT(file.size, 0);
    nt_file_clear(&file);
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
}

static nt_status
writer_sweep_save(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    nt_file file = {.size = 0};
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_status status = nt_writer_save(alloc, ctx, &sink, NULL, NULL);
    nt_file_clear(&file);
    return status;
}

NT_TEST(saving_survives_refused_memory)
{
    uint64_t seed = 7;
    nt_snapshot *snapshot = nt_random_snapshot(t, NT_RANDOM_KEYS, &seed);
    nt_test_sweep(t, writer_sweep_save, snapshot);
    nt_snapshot_free(snapshot);
}

static nt_status
writer_sweep_range(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    nt_timeline *timeline = NULL;
    NT_TRY(nt_timeline_new(alloc, ctx, 0, NULL, &timeline, NULL));
    nt_file file = {.size = 0};
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_writer_range range = {timeline, 0, 1};
    const nt_status status = nt_writer_save_ranges(alloc, &range, 1, &sink, NULL, NULL);
    nt_file_clear(&file);
    nt_timeline_free(timeline);
    return status;
}

NT_TEST(ranges_survive_refused_memory)
{
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, "foreign_memory", &size);
    NT_REQUIRE(bytes != NULL);
    nt_snapshot *snapshot = nt_file_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    nt_test_sweep(t, writer_sweep_range, snapshot);
    nt_snapshot_free(snapshot);
}

extern const nt_test_case nt_writer_tests[];

const nt_test_case nt_writer_tests[] = {
    NT_CASE(random_snapshots_survive_a_round_trip),
    NT_CASE(real_snapshots_survive_a_round_trip),
    NT_CASE(a_bare_list_stays_one),
    NT_CASE(long_settings_survive_a_round_trip),
    NT_CASE(oom_events_have_device_free),
    NT_CASE(equal_strings_are_written_once),
    NT_CASE(failing_sinks_end_the_writing),
    NT_CASE(progress_can_cancel_the_writing),
    NT_CASE(ranges_end_with_their_layout),
    NT_CASE(empty_ranges_keep_the_beginning),
    NT_CASE(ranges_outside_are_refused),
    NT_CASE(saving_survives_refused_memory),
    NT_CASE(ranges_survive_refused_memory),
    NT_CASES_END,
};
