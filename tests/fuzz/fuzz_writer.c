/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: what the reader accepts can be written, and what was written is read back
 * as the same columns and written again as the same bytes. A range of a trace is read
 * back with the layout that stood at its end.
 */
#include <string.h>

#include "nt_fuzz.h"
#include "nt_same.h"
#include "trace/nt_writer.h"

static void
save(const nt_snapshot *s, nt_fuzz_file *file)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const nt_sink sink = {.write = nt_fuzz_collect, .ctx = file};
    NT_FUZZ_CHECK(nt_writer_save(&alloc, s, &sink, NULL, NULL) == NT_OK);
}

/* Saves and loads `s`; the bytes are in *file. */
static nt_snapshot *
save_and_load(const nt_snapshot *s, nt_fuzz_file *file)
{
    save(s, file);
    nt_snapshot *again = nt_fuzz_load(file->bytes, file->size);
    NT_FUZZ_CHECK(again != NULL);
    NT_FUZZ_CHECK(nt_snapshot_partial(again) == NULL);
    return again;
}

static void
check_whole(const nt_snapshot *s)
{
    nt_fuzz_file first = {.size = 0}, second = {.size = 0};
    nt_snapshot *again = save_and_load(s, &first);
    const char *difference = nt_same_snapshot(s, again);
    if (difference != NULL) {
        nt_fuzz_fail(__FILE__, __LINE__, difference);
    }
    save(again, &second);
    NT_FUZZ_CHECK(first.size == second.size);
    NT_FUZZ_CHECK(memcmp(first.bytes, second.bytes, first.size) == 0);
    nt_snapshot_free(again);
    nt_fuzz_clear(&first);
    nt_fuzz_clear(&second);
}

static void
check_range(const nt_snapshot *s, const nt_timeline *timeline, size_t first, size_t end)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_fuzz_file file = {.size = 0};
    const nt_sink sink = {.write = nt_fuzz_collect, .ctx = &file};
    const nt_writer_range range = {timeline, first, end};
    NT_FUZZ_CHECK(nt_writer_save_ranges(&alloc, &range, 1, &sink, NULL, NULL) == NT_OK);
    nt_snapshot *part = nt_fuzz_load(file.bytes, file.size);
    NT_FUZZ_CHECK(part != NULL);
    NT_FUZZ_CHECK(nt_snapshot_events(part)->count == end - first);
    nt_layout *layout = NULL;
    NT_FUZZ_CHECK(nt_timeline_layout(timeline, (int32_t)end - 1, &layout, NULL) ==
                  NT_OK);
    const char *difference = nt_same_layout(s, layout, part, nt_snapshot_layout(part));
    if (difference != NULL) {
        nt_fuzz_fail(__FILE__, __LINE__, difference);
    }
    nt_timeline_layout_free(timeline, layout);
    nt_snapshot_free(part);
    nt_fuzz_clear(&file);
}

/* A range that the input's size chooses: its end, its middle, all or nothing of it. */
static void
check_some_range(const nt_snapshot *s, size_t choice)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_timeline *timeline = NULL;
    NT_FUZZ_CHECK(nt_timeline_new(&alloc, s, 0, NULL, &timeline, NULL) == NT_OK);
    /* A part of a trace that contradicts itself need not be read as it was written. */
    nt_broken_note notes[NT_TRACE_BROKEN_KINDS];
    size_t broken = 0, said = 0;
    (void)nt_snapshot_broken(s, &said);
    NT_FUZZ_CHECK(nt_timeline_broken(timeline, notes, &broken, NULL) == NT_OK);
    if (said + broken != 0) {
        nt_timeline_free(timeline);
        return;
    }
    const size_t count = nt_timeline_event_count(timeline);
    const size_t first = count / (choice % 4 + 1);
    check_range(s, timeline, choice % 3 == 0 ? 0 : first,
                choice % 5 == 0 ? first : count);
    nt_timeline_free(timeline);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nt_snapshot *s = nt_fuzz_load(data, size);
    if (s != NULL && nt_fuzz_rows(s) <= NT_FUZZ_MOST_ROWS) {
        check_whole(s);
        check_some_range(s, size);
    }
    nt_snapshot_free(s);
    nt_fuzz_finish();
    return 0;
}
