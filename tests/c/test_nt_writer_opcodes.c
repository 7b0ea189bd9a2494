/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer_opcodes.h"

#include <stdlib.h>
#include <string.h>

#include "nt_file.h"
#include "nt_test.h"

/* The opcodes that `put` gathers, without the frame around them. */
static void
writer_opcodes_of(nt_test *t, nt_file *file, int64_t number)
{
    uint8_t *frame = malloc(NT_WRITER_FRAME);
    NT_REQUIRE(NT_CHECK(frame != NULL));
    const nt_sink sink = {.write = nt_file_collect, .ctx = file};
    nt_writer_out out = {.sink = &sink, .frame = frame};
    nt_writer_integer(&out, number);
    (void)nt_file_collect(file, frame, out.length);
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
        nt_file file = {.size = 0};
        writer_opcodes_of(t, &file, cases[i].number);
        if (NT_CHECK_UINT(file.size, cases[i].size)) {
            NT_CHECK_BYTES(file.bytes, cases[i].bytes, cases[i].size);
        }
        nt_file_clear(&file);
    }
}

NT_TEST(lists_are_batched_by_thousand)
{
    /* A list of numbers among the settings; no other byte of it is 'e'. */
    static const uint32_t counts[] = {0, 1, 999, 1000, 1001, 2000, 2001};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        nt_file file = {.size = 0};
        uint8_t *frame = malloc(NT_WRITER_FRAME);
        NT_REQUIRE(NT_CHECK(frame != NULL));
        const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
        nt_writer_out out = {.sink = &sink, .frame = frame};
        nt_writer_list(&out, NULL);
        for (uint32_t item = 0; item < counts[i]; item++) {
            nt_writer_item(&out, item);
            nt_writer_none(&out);
        }
        nt_writer_items_end(&out, counts[i]);
        nt_writer_end(&out);
        NT_CHECK_UINT(nt_file_count(&file, "e", 1), (counts[i] + 999) / 1000);
        NT_CHECK_UINT(nt_file_count(&file, "(", 1), (counts[i] + 999) / 1000);
        NT_CHECK_UINT(nt_file_count(&file, "N", 1), counts[i]);
        free(frame);
        nt_file_clear(&file);
    }
}

/* How the frames and strings outside of them follow each other. Gives the largest
 * frame; every byte must belong to a frame or to a long string. */
static size_t
writer_walk_frames(nt_test *t, const nt_file *file, size_t *strings_outside)
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
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_ANNOTATIONS | NT_HAS_TRACES);
    for (size_t i = 0; i < count; i++) {
        char *text = malloc(lengths[i] + 1);
        NT_REQUIRE(NT_CHECK(text != NULL));
        memset(text, (int)('a' + i % 26), lengths[i] + 1);
        const nt_annotation annotation = {
            .name = nt_file_intern(t, snapshot, text, lengths[i])};
        free(text);
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL),
                          NULL);
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    nt_file file = {.size = 0};
    size_t strings;
    (void)NT_CHECK_OK(nt_file_save(&file, snapshot), NULL);
    NT_CHECK(writer_walk_frames(t, &file, &strings) <= NT_WRITER_FRAME);
    NT_CHECK_UINT(strings, outside);
    nt_file_check_round_trip(t, snapshot);
    nt_file_clear(&file);
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

extern const nt_test_case nt_writer_opcodes_tests[];

const nt_test_case nt_writer_opcodes_tests[] = {
    NT_CASE(integers_take_the_shortest_opcode),
    NT_CASE(lists_are_batched_by_thousand),
    NT_CASE(frames_hold_at_most_64_kib),
    NT_CASE(long_strings_stand_outside_frames),
    NT_CASES_END,
};
