/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer.h"

#include <stdlib.h>
#include <string.h>

#include "nt_same.h"
#include "nt_test.h"
#include "trace/nt_reader.h"
#include "trace/nt_source.h"
#include "trace/nt_writer_opcodes.h"

/* What was written. A case that fails leaves it to writer_clear as well. */
typedef struct writer_file {
    uint8_t *bytes;
    size_t size, capacity;
    size_t writes;  /* calls so far */
    size_t fail_at; /* the call that fails; 0: none */
} writer_file;

static int
writer_collect(void *ctx, const void *bytes, size_t count)
{
    writer_file *file = ctx;
    file->writes++;
    if (file->writes == file->fail_at) {
        return 1;
    }
    if (count > file->capacity - file->size) {
        file->capacity = 2 * (file->size + count);
        file->bytes = realloc(file->bytes, file->capacity);
        if (file->bytes == NULL) {
            abort();
        }
    }
    memcpy(file->bytes + file->size, bytes, count);
    file->size += count;
    return 0;
}

static void
writer_clear(writer_file *file)
{
    free(file->bytes);
    *file = (writer_file){.size = 0};
}

static nt_status
writer_save_to(writer_file *file, const nt_snapshot *snapshot)
{
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = writer_collect, .ctx = file};
    return nt_writer_save(&alloc, snapshot, &sink, NULL, NULL);
}

/* Reads `size` bytes into a snapshot, or fails the case and gives NULL. */
static nt_snapshot *
writer_load(nt_test *t, const uint8_t *bytes, size_t size)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_source source;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_snapshot *snapshot = NULL;
    nt_source_init_memory(&source, bytes, size, NULL);
    (void)NT_CHECK_OK(nt_reader_load(&alloc, &source, &snapshot, &err), &err);
    nt_source_clear(&source);
    return snapshot;
}

/* Saves `snapshot` and loads it again: nothing may have changed. */
static void
writer_check_round_trip(nt_test *t, const nt_snapshot *snapshot)
{
    writer_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_to(&file, snapshot), NULL);
    nt_snapshot *again = writer_load(t, file.bytes, file.size);
    if (again != NULL) {
        const char *difference = nt_same_snapshot(snapshot, again);
        NT_CHECK_STR(difference, NULL);
    }
    nt_snapshot_free(again);
    writer_clear(&file);
}

/* An empty snapshot with these keys; the caller seals and frees it. */
static nt_snapshot *
writer_new_snapshot(nt_test *t, uint32_t keys)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    (void)NT_CHECK_OK(nt_snapshot_new(&alloc, &snapshot, NULL), NULL);
    nt_snapshot_set_keys(snapshot, keys);
    return snapshot;
}

static uint32_t
writer_intern(nt_test *t, nt_snapshot *snapshot, const char *text, size_t length)
{
    uint32_t id = NT_NONE;
    (void)NT_CHECK_OK(
        nt_strings_intern(nt_snapshot_strings(snapshot), text, length, &id, NULL), NULL);
    return id;
}

/* A number of any size: small, large and the largest are all likely. */
static uint64_t
writer_random_number(uint64_t *seed)
{
    return nt_test_random(seed) >> nt_test_random(seed) % 64;
}

static uint32_t
writer_random_string(nt_test *t, nt_snapshot *snapshot, uint64_t *seed)
{
    const char *text = "abcdefghijklmnopqrstuvwxyz";
    return writer_intern(t, snapshot, text, nt_test_random(seed) % 26);
}

static uint32_t
writer_random_stack(nt_test *t, nt_snapshot *snapshot, uint64_t *seed)
{
    uint32_t frames[6], stack = NT_NO_STACK;
    const size_t count = nt_test_random(seed) % 7;
    if (count == 6) {
        return NT_NO_STACK;
    }
    for (size_t i = 0; i < count; i++) {
        const nt_frame frame = {
            .name = writer_random_string(t, snapshot, seed),
            .filename = writer_random_string(t, snapshot, seed),
            .line = (int64_t)writer_random_number(seed),
        };
        (void)NT_CHECK_OK(nt_stacks_intern_frame(nt_snapshot_stacks(snapshot), frame,
                                                 &frames[i], NULL),
                          NULL);
    }
    (void)NT_CHECK_OK(
        nt_stacks_intern(nt_snapshot_stacks(snapshot), frames, count, &stack, NULL),
        NULL);
    return stack;
}

static void
writer_add_events(nt_test *t, nt_snapshot *snapshot, size_t count, uint64_t *seed)
{
    const uint32_t keys = nt_snapshot_keys(snapshot);
    const uint64_t pools = (keys & NT_HAS_EVENT_POOL) != 0 ? UINT64_MAX : 0;
    for (size_t i = 0; i < count; i++) {
        nt_event event = {
            .addr = writer_random_number(seed),
            .size = writer_random_number(seed),
            .stream = writer_random_number(seed),
            .pool = {writer_random_number(seed) & pools,
                     writer_random_number(seed) & pools},
            .stack = writer_random_stack(t, snapshot, seed),
            .compile_context = NT_NONE,
            .user_metadata = NT_NONE,
        };
        if ((keys & NT_HAS_EVENT_TIME) != 0) {
            event.time_us = (int64_t)writer_random_number(seed);
        }
        if ((keys & NT_HAS_EVENT_DEVICE_FREE) != 0) {
            event.device_free = writer_random_number(seed);
        }
        if ((keys & NT_HAS_EVENT_USER_METADATA) != 0) {
            event.user_metadata = writer_random_string(t, snapshot, seed);
        }
        const uint32_t name = writer_random_string(t, snapshot, seed);
        event.action = (uint8_t)(nt_test_random(seed) % NT_ACTION_COUNT);
        if (nt_test_random(seed) % 4 == 0) {
            (void)NT_CHECK_OK(
                nt_snapshot_intern_action(snapshot, name, &event.action, NULL), NULL);
        }
        (void)NT_CHECK_OK(nt_snapshot_add_event(snapshot, &event, NULL), NULL);
    }
}

static void
writer_add_segments(nt_test *t, nt_snapshot *snapshot, size_t count, uint64_t *seed)
{
    for (size_t i = 0; i < count; i++) {
        const nt_segment segment = {
            .device = (int32_t)(nt_test_random(seed) % 9),
            .address = writer_random_number(seed),
            .total_size = writer_random_number(seed),
            .allocated_size = writer_random_number(seed),
            .active_size = writer_random_number(seed),
            .requested_size = writer_random_number(seed),
            .stream = writer_random_number(seed),
            .pool = {writer_random_number(seed), writer_random_number(seed)},
            .kind = (uint8_t)(nt_test_random(seed) % NT_POOL_KIND_COUNT),
            .is_expandable = nt_test_random(seed) % 2 != 0,
            .stack = writer_random_stack(t, snapshot, seed),
        };
        (void)NT_CHECK_OK(nt_snapshot_add_segment(snapshot, &segment, NULL), NULL);
        for (size_t block = nt_test_random(seed) % 4; block-- > 0;) {
            const nt_block added = {
                .address = writer_random_number(seed),
                .size = writer_random_number(seed),
                .requested_size = writer_random_number(seed),
                .state = (uint8_t)(nt_test_random(seed) % NT_BLOCK_STATE_COUNT),
                .stack = writer_random_stack(t, snapshot, seed),
            };
            (void)NT_CHECK_OK(nt_snapshot_add_block(snapshot, &added, NULL), NULL);
        }
    }
}

/* A dict of every kind of value, a list of `items` numbers, and a dict in a dict. */
static void
writer_add_settings(nt_test *t, nt_snapshot *snapshot, uint32_t items)
{
    const double real = 0.8;
    const uint32_t key = writer_intern(t, snapshot, "key", 3);
    nt_setting rows[] = {
        {.parent = NT_NONE, .kind = NT_SETTING_NONE},
        {.parent = NT_NONE, .kind = NT_SETTING_BOOL, .integer = 1},
        {.parent = NT_NONE, .kind = NT_SETTING_INT, .integer = INT64_MIN},
        {.parent = NT_NONE, .kind = NT_SETTING_FLOAT, .real = real},
        {.parent = NT_NONE, .kind = NT_SETTING_STRING, .string = key},
        {.parent = NT_NONE, .kind = NT_SETTING_DICT},
        {.parent = 5, .kind = NT_SETTING_DICT},
        {.parent = 6, .kind = NT_SETTING_BOOL},
        {.parent = 5, .kind = NT_SETTING_LIST},
        {.parent = NT_NONE, .kind = NT_SETTING_LIST},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        /* Keys must differ: of equal ones a reader keeps the last. */
        const char name = (char)('A' + i);
        rows[i].key = writer_intern(t, snapshot, &name, 1);
        (void)NT_CHECK_OK(nt_snapshot_add_setting(snapshot, &rows[i], NULL), NULL);
    }
    for (uint32_t i = 0; i < items; i++) {
        const nt_setting item = {
            .parent = 9, .key = NT_NONE, .kind = NT_SETTING_INT, .integer = i};
        (void)NT_CHECK_OK(nt_snapshot_add_setting(snapshot, &item, NULL), NULL);
    }
}

static nt_snapshot *
writer_random_snapshot(nt_test *t, uint32_t keys, uint64_t *seed)
{
    nt_snapshot *snapshot = writer_new_snapshot(t, keys);
    writer_add_segments(t, snapshot, nt_test_random(seed) % 5, seed);
    for (size_t device = nt_test_random(seed) % 4; device-- > 0;) {
        (void)NT_CHECK_OK(nt_snapshot_begin_trace(snapshot, NULL), NULL);
        writer_add_events(t, snapshot, nt_test_random(seed) % 20, seed);
    }
    for (size_t row = nt_test_random(seed) % 3; row-- > 0;) {
        const nt_annotation annotation = {
            .stage = (uint8_t)(nt_test_random(seed) % NT_STAGE_COUNT),
            .name = writer_random_string(t, snapshot, seed),
            .device = (int32_t)(nt_test_random(seed) % 9),
            .time_us = (int64_t)writer_random_number(seed),
        };
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL), NULL);
    }
    writer_add_settings(t, snapshot, 3);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    return snapshot;
}

/* Every key that a row can lack and still be the same after a round trip. */
enum {
    ALL_KEYS = NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL | NT_HAS_EVENT_USER_METADATA |
               NT_HAS_EVENT_DEVICE_FREE | NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED |
               NT_HAS_SEGMENT_REQUESTED | NT_HAS_SEGMENT_POOL |
               NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_SETTINGS | NT_HAS_ANNOTATIONS |
               NT_HAS_TRACES,
    OPTIONAL_EVENT_KEYS = NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL |
                          NT_HAS_EVENT_USER_METADATA | NT_HAS_EVENT_DEVICE_FREE,
};

NT_TEST(random_snapshots_survive_a_round_trip)
{
    for (uint64_t start = 1; start <= 200 && t->failures == 0; start++) {
        uint64_t seed = start;
        const uint32_t dropped =
            (uint32_t)nt_test_random(&seed) & (uint32_t)OPTIONAL_EVENT_KEYS;
        nt_snapshot *snapshot =
            writer_random_snapshot(t, (uint32_t)ALL_KEYS & ~dropped, &seed);
        writer_check_round_trip(t, snapshot);
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
        nt_snapshot *snapshot = writer_load(t, bytes, size);
        NT_REQUIRE(snapshot != NULL);
        writer_check_round_trip(t, snapshot);
        nt_snapshot_free(snapshot);
    }
}

NT_TEST(a_bare_list_stays_one)
{
    /* PROTO 4, FRAME of 3 bytes, EMPTY_LIST, MEMOIZE, STOP. */
    static const uint8_t expected[] = {0x80, 4, 0x95, 3, 0, 0,    0,
                                       0,    0, 0,    0, ']', 0x94, '.'};
    writer_file file = {.size = 0};
    nt_snapshot *snapshot = writer_new_snapshot(t, NT_SEGMENTS_ONLY);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    (void)NT_CHECK_OK(writer_save_to(&file, snapshot), NULL);
    if (NT_CHECK_UINT(file.size, sizeof expected)) {
        NT_CHECK_BYTES(file.bytes, expected, sizeof expected);
    }
    writer_clear(&file);
    nt_snapshot_free(snapshot);
}

/* The opcodes that `put` gathers, without the frame around them. */
static void
writer_opcodes_of(nt_test *t, writer_file *file, int64_t number)
{
    uint8_t *frame = malloc(NT_WRITER_FRAME);
    NT_REQUIRE(NT_CHECK(frame != NULL));
    const nt_sink sink = {.write = writer_collect, .ctx = file};
    nt_writer_out out = {.sink = &sink, .frame = frame};
    nt_writer_integer(&out, number);
    (void)writer_collect(file, frame, out.length);
    free(frame);
}

NT_TEST(integers_take_the_shortest_opcode)
{
    static const struct {
        int64_t number;
        size_t size;
        uint8_t bytes[10];
    } cases[] = {
        {0, 2, {'K', 0}},
        {255, 2, {'K', 255}},
        {256, 3, {'M', 0, 1}},
        {65535, 3, {'M', 255, 255}},
        {65536, 5, {'J', 0, 0, 1, 0}},
        {-1, 5, {'J', 255, 255, 255, 255}},
        {INT32_MAX, 5, {'J', 255, 255, 255, 127}},
        {INT32_MIN, 5, {'J', 0, 0, 0, 128}},
        {INT64_C(0x80000000), 7, {0x8a, 5, 0, 0, 0, 128, 0}},
        {INT64_C(-0x80000001), 7, {0x8a, 5, 255, 255, 255, 127, 255}},
        {INT64_C(0x7fffffffff), 7, {0x8a, 5, 255, 255, 255, 255, 127}},
        {INT64_C(0x8000000000), 8, {0x8a, 6, 0, 0, 0, 0, 128, 0}},
        {INT64_C(-0x8000000000), 7, {0x8a, 5, 0, 0, 0, 0, 128}},
        {INT64_MAX, 10, {0x8a, 8, 255, 255, 255, 255, 255, 255, 255, 127}},
        {INT64_MIN, 10, {0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 128}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        writer_file file = {.size = 0};
        writer_opcodes_of(t, &file, cases[i].number);
        if (NT_CHECK_UINT(file.size, cases[i].size)) {
            NT_CHECK_BYTES(file.bytes, cases[i].bytes, cases[i].size);
        }
        writer_clear(&file);
    }
}

/* How the frames and strings outside of them follow each other. Gives the largest
 * frame; every byte must belong to a frame or to a long string. */
static size_t
writer_walk_frames(nt_test *t, const writer_file *file, size_t *strings_outside)
{
    size_t largest = 0, at = 2;
    *strings_outside = 0;
    while (at + 9 <= file->size) {
        size_t length = 0;
        const bool is_frame = file->bytes[at] == 0x95;
        const size_t width = is_frame ? 8 : 4;
        for (size_t i = 0; i < width; i++) {
            length |= (size_t)file->bytes[at + 1 + i] << 8 * i;
        }
        if (is_frame) {
            largest = length > largest ? length : largest;
        } else if (NT_CHECK(file->bytes[at] == 'X')) {
            ++*strings_outside;
        }
        at += 1 + width + length;
    }
    NT_CHECK_UINT(at, file->size);
    return largest;
}

/* A snapshot of one annotation for each length, named by that many letters. */
static void
writer_check_names(nt_test *t, const size_t *lengths, size_t count, size_t outside)
{
    nt_snapshot *snapshot = writer_new_snapshot(t, NT_HAS_ANNOTATIONS | NT_HAS_TRACES);
    for (size_t i = 0; i < count; i++) {
        char *text = malloc(lengths[i] + 1);
        NT_REQUIRE(NT_CHECK(text != NULL));
        memset(text, (int)('a' + i % 26), lengths[i] + 1);
        const nt_annotation annotation = {
            .name = writer_intern(t, snapshot, text, lengths[i])};
        free(text);
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL), NULL);
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    writer_file file = {.size = 0};
    size_t strings;
    (void)NT_CHECK_OK(writer_save_to(&file, snapshot), NULL);
    NT_CHECK(writer_walk_frames(t, &file, &strings) <= NT_WRITER_FRAME);
    NT_CHECK_UINT(strings, outside);
    writer_check_round_trip(t, snapshot);
    writer_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(frames_hold_at_most_64_kib)
{
    static const size_t lengths[] = {255, 256, 1024, 40000, 40000, 65500, 65527, 17};
    writer_check_names(t, lengths, sizeof lengths / sizeof *lengths, 0);
}

NT_TEST(long_strings_stand_outside_frames)
{
    static const size_t lengths[] = {65528, 65536, 1, 300000};
    writer_check_names(t, lengths, sizeof lengths / sizeof *lengths, 3);
}

static size_t
writer_count_byte(const writer_file *file, uint8_t byte)
{
    size_t count = 0;
    for (size_t i = 0; i < file->size; i++) {
        count += file->bytes[i] == byte;
    }
    return count;
}

NT_TEST(lists_are_batched_by_thousand)
{
    /* A list of numbers among the settings; no other byte of it is 'e'. */
    static const uint32_t counts[] = {0, 1, 999, 1000, 1001, 2000, 2001};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        writer_file file = {.size = 0};
        uint8_t *frame = malloc(NT_WRITER_FRAME);
        NT_REQUIRE(NT_CHECK(frame != NULL));
        const nt_sink sink = {.write = writer_collect, .ctx = &file};
        nt_writer_out out = {.sink = &sink, .frame = frame};
        nt_writer_list(&out, NULL);
        for (uint32_t item = 0; item < counts[i]; item++) {
            nt_writer_item(&out, item);
            nt_writer_none(&out);
        }
        nt_writer_items_end(&out, counts[i]);
        nt_writer_end(&out);
        NT_CHECK_UINT(writer_count_byte(&file, 'e'), (counts[i] + 999) / 1000);
        NT_CHECK_UINT(writer_count_byte(&file, '('), (counts[i] + 999) / 1000);
        NT_CHECK_UINT(writer_count_byte(&file, 'N'), counts[i]);
        free(frame);
        writer_clear(&file);
    }
}

NT_TEST(long_settings_survive_a_round_trip)
{
    nt_snapshot *snapshot = writer_new_snapshot(t, NT_HAS_SETTINGS | NT_HAS_TRACES);
    writer_add_settings(t, snapshot, 2500);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    writer_check_round_trip(t, snapshot);
    nt_snapshot_free(snapshot);
}

/* Whether `needle` occurs in the file. */
static bool
writer_holds(const writer_file *file, const void *needle, size_t size)
{
    for (size_t at = 0; at + size <= file->size; at++) {
        if (memcmp(file->bytes + at, needle, size) == 0) {
            return true;
        }
    }
    return false;
}

NT_TEST(oom_events_have_device_free)
{
    nt_snapshot *snapshot =
        writer_new_snapshot(t, NT_HAS_TRACES | NT_HAS_EVENT_DEVICE_FREE);
    const nt_event event = {
        .action = NT_ACTION_OOM,
        .size = 512,
        .device_free = 77,
        .stack = NT_NO_STACK,
    };
    (void)NT_CHECK_OK(nt_snapshot_begin_trace(snapshot, NULL), NULL);
    (void)NT_CHECK_OK(nt_snapshot_add_event(snapshot, &event, NULL), NULL);
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    writer_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_to(&file, snapshot), NULL);
    NT_CHECK(writer_holds(&file, "\x8c\x0b" "device_free\x94K\x4d", 16));
    NT_CHECK(!writer_holds(&file, "addr", 4));
    NT_CHECK(!writer_holds(&file, "time_us", 7));
    NT_CHECK(!writer_holds(&file, "frames", 6));
    writer_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(equal_strings_are_written_once)
{
    nt_snapshot *snapshot = writer_new_snapshot(t, NT_HAS_ANNOTATIONS);
    const nt_annotation annotation = {.name = writer_intern(t, snapshot, "stage", 5)};
    for (int i = 0; i < 3; i++) {
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL), NULL);
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    writer_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_to(&file, snapshot), NULL);
    /* As a key and as a value: "g" is in no other word of this file. */
    NT_CHECK_UINT(writer_count_byte(&file, 'g') - writer_count_byte(&file, 'm') * 0, 2);
    writer_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(failing_sinks_end_the_writing)
{
    size_t size;
    const uint8_t *bytes = nt_test_sample(t, "frag_default", &size);
    NT_REQUIRE(bytes != NULL);
    nt_snapshot *snapshot = writer_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    writer_file whole = {.size = 0};
    (void)NT_CHECK_OK(writer_save_to(&whole, snapshot), NULL);
    for (size_t fail_at = 1; fail_at <= whole.writes; fail_at++) {
        writer_file file = {.fail_at = fail_at};
        (void)NT_CHECK_STATUS(writer_save_to(&file, snapshot), NT_IO, NULL);
        NT_CHECK_UINT(file.writes, fail_at);
        writer_clear(&file);
    }
    writer_clear(&whole);
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
    nt_snapshot *snapshot = writer_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    uint64_t done = 1;
    writer_file file = {.size = 0};
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = writer_collect, .ctx = &file};
    const nt_progress progress = {.report = writer_refuse, .ctx = &done};
    (void)NT_CHECK_STATUS(nt_writer_save(&alloc, snapshot, &sink, &progress, NULL),
                          NT_CANCELLED, NULL);
    NT_CHECK_UINT(done, 0);
    writer_clear(&file);
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
    *snapshot = bytes == NULL ? NULL : writer_load(t, bytes, size);
    if (*snapshot != NULL) {
        (void)NT_CHECK_OK(nt_timeline_new(&alloc, *snapshot, 0, NULL, &timeline, NULL),
                          NULL);
    }
    return timeline;
}

static nt_status
writer_save_range_to(writer_file *file, const nt_timeline *timeline, size_t first,
                     size_t end)
{
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = writer_collect, .ctx = file};
    return nt_writer_save_range(&alloc, timeline, 0, first, end, &sink, NULL, NULL);
}

static void
writer_check_range(nt_test *t, const nt_timeline *timeline, size_t first, size_t end)
{
    const nt_snapshot *whole = nt_timeline_snapshot(timeline);
    writer_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_range_to(&file, timeline, first, end), NULL);
    nt_snapshot *part = writer_load(t, file.bytes, file.size);
    writer_clear(&file);
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
    writer_file file = {.size = 0};
    (void)NT_CHECK_OK(writer_save_range_to(&file, timeline, 0, 0), NULL);
    nt_snapshot *part = writer_load(t, file.bytes, file.size);
    writer_clear(&file);
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
    writer_file file = {.size = 0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)NT_CHECK_STATUS(
            writer_save_range_to(&file, timeline, bad[i][0], bad[i][1]), NT_ARGUMENT,
            NULL);
    }
    (void)NT_CHECK_STATUS(writer_save_range_to(&file, timeline, 0, count + 1),
                          NT_ARGUMENT, NULL);
    NT_CHECK_UINT(file.size, 0);
    writer_clear(&file);
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
}

static nt_status
writer_sweep_save(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    writer_file file = {.size = 0};
    const nt_sink sink = {.write = writer_collect, .ctx = &file};
    const nt_status status = nt_writer_save(alloc, ctx, &sink, NULL, NULL);
    writer_clear(&file);
    return status;
}

NT_TEST(saving_survives_refused_memory)
{
    uint64_t seed = 7;
    nt_snapshot *snapshot = writer_random_snapshot(t, ALL_KEYS, &seed);
    nt_test_sweep(t, writer_sweep_save, snapshot);
    nt_snapshot_free(snapshot);
}

extern const nt_test_case nt_writer_tests[];

const nt_test_case nt_writer_tests[] = {
    NT_CASE(random_snapshots_survive_a_round_trip),
    NT_CASE(real_snapshots_survive_a_round_trip),
    NT_CASE(a_bare_list_stays_one),
    NT_CASE(integers_take_the_shortest_opcode),
    NT_CASE(frames_hold_at_most_64_kib),
    NT_CASE(long_strings_stand_outside_frames),
    NT_CASE(lists_are_batched_by_thousand),
    NT_CASE(long_settings_survive_a_round_trip),
    NT_CASE(oom_events_have_device_free),
    NT_CASE(equal_strings_are_written_once),
    NT_CASE(failing_sinks_end_the_writing),
    NT_CASE(progress_can_cancel_the_writing),
    NT_CASE(ranges_end_with_their_layout),
    NT_CASE(empty_ranges_keep_the_beginning),
    NT_CASE(ranges_outside_are_refused),
    NT_CASE(saving_survives_refused_memory),
    NT_CASES_END,
};
