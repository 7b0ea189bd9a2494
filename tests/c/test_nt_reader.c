/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_reader.h"

#include <string.h>

#include "nt_test.h"

typedef struct sample {
    const uint8_t *bytes;
    size_t size;
} sample;

static nt_status
reader_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const sample *s = ctx;
    nt_snapshot *snapshot = NULL;
    nt_source source;
    nt_source_init_memory(&source, s->bytes, s->size, NULL);
    const nt_status status = nt_reader_load(alloc, &source, &snapshot, NULL);
    nt_source_clear(&source);
    NT_CHECK(status == NT_OK || snapshot == NULL);
    if (status == NT_OK) {
        NT_CHECK_UINT(nt_layout_check(nt_snapshot_layout(snapshot)), NT_NONE);
        nt_snapshot_free(snapshot);
    }
    return status;
}

NT_TEST(loading_survives_running_out_of_memory)
{
    static const char *const names[] = {"foreign_memory", "cuda_graph_pool",
                                        "metadata"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sample s;
        s.bytes = nt_test_sample(t, names[i], &s.size);
        NT_REQUIRE(NT_CHECK(s.bytes != NULL));
        nt_test_sweep(t, reader_body, &s);
    }
}

NT_TEST(columns_hold_what_was_recorded)
{
    sample s;
    s.bytes = nt_test_sample(t, "frag_default", &s.size);
    NT_REQUIRE(NT_CHECK(s.bytes != NULL));
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_snapshot *snapshot = NULL;
    nt_error err = {0};
    nt_source source;
    nt_source_init_memory(&source, s.bytes, s.size, NULL);
    NT_REQUIRE(
        NT_CHECK_OK(nt_reader_load(&hostile.alloc, &source, &snapshot, &err), &err));
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    NT_CHECK_UINT(events->count, 2375);
    NT_CHECK_UINT(events->action[0], NT_ACTION_SEGMENT_ALLOC);
    NT_CHECK_UINT(events->size[0], 23068672);
    NT_CHECK_UINT(events->action[2374], NT_ACTION_OOM);
    NT_CHECK(events->device_free[2374] > UINT64_C(100) << 30);
    NT_CHECK_UINT(nt_snapshot_layout(snapshot)->segments.count, 18);
    NT_CHECK_UINT(nt_snapshot_layout(snapshot)->blocks.count, 83);
    NT_CHECK(nt_snapshot_partial(snapshot) == NULL);
    nt_pool_stats stats[NT_POOL_KIND_COUNT];
    nt_layout_stats(nt_snapshot_layout(snapshot), 0, stats);
    NT_CHECK_UINT(stats[NT_POOL_LARGE].allocated_bytes, 425710592);
    nt_snapshot_free(snapshot);
    nt_source_clear(&source);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(other_pickles_are_no_snapshots)
{
    static const char *const others[] = {"K\x01.", "}.",
                                         ("}(\x8c\x01"
                                          "aK\x01u.")};
    const nt_alloc alloc = nt_alloc_system();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        nt_snapshot *snapshot = NULL;
        nt_error err = {0};
        nt_source source;
        nt_source_init_memory(&source, others[i], strlen(others[i]), NULL);
        NT_CHECK_STATUS(nt_reader_load(&alloc, &source, &snapshot, &err), NT_MALFORMED,
                        &err);
        NT_CHECK(strstr(err.message, "not a snapshot") != NULL);
        NT_CHECK(snapshot == NULL);
        nt_source_clear(&source);
    }
}

/* One list of 1,000 blocks, referred to by 60,000 segments: 60 million rows if it
 * were unfolded, from a file of half a megabyte. */
NT_TEST(shared_lists_can_not_unfold)
{
    static uint8_t bytes[1 << 20];
    size_t n = 0;
#define PUT(literal)                                                                   \
    (memcpy(bytes + n, literal, sizeof(literal) - 1), n += sizeof(literal) - 1)
    PUT("\x80\x04}(\x8c\x08segments](}\x94(\x8c\x07"
        "addressK\x01\x8c\x0atotal_sizeM\xff\xff\x8c\x06"
        "blocks](");
    for (size_t i = 0; i < 1000; i++) {
        PUT("}(\x8c\x04sizeK\x01u");
    }
    PUT("eu");
    for (size_t i = 0; i < 60000; i++) {
        PUT("h\x00");
    }
    PUT("eu.");
#undef PUT
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    nt_error err = {0};
    nt_source source;
    nt_source_init_memory(&source, bytes, n, NULL);
    NT_CHECK_STATUS(nt_reader_load(&alloc, &source, &snapshot, &err), NT_LIMIT, &err);
    nt_source_clear(&source);
}

/* A pickle made by hand. */
typedef struct script {
    uint8_t bytes[1 << 16];
    size_t size, memo; /* entries so far */
} script;

static void
script_add(script *s, const char *bytes, size_t count)
{
    memcpy(s->bytes + s->size, bytes, count);
    s->size += count;
}

/* An opcode or two, then MEMOIZE. */
static void
script_put(script *s, const char *bytes, size_t count)
{
    script_add(s, bytes, count);
    script_add(s, "\x94", 1);
    s->memo++;
}

/* A key: written out and kept as entry *entry, or fetched from there. */
static void
script_key(script *s, const char *text, size_t *entry)
{
    const uint8_t length = (uint8_t)strlen(text);
    if (*entry == 0) {
        *entry = s->memo;
        script_add(s, "\x8c", 1);
        script_add(s, (const char *)&length, 1);
        script_put(s, text, length);
    } else {
        const uint8_t index = (uint8_t)*entry;
        script_add(s, "h", 1);
        script_add(s, (const char *)&index, 1);
    }
}

/* An event that keeps three things: itself, a text too long to be held against the one
 * before, and behind that a short one. */
static void
script_event(script *s, size_t keys[5])
{
    static const char text[] = "\x8c\x14"
                               "twenty letters long.";
    script_put(s, "}", 1);
    script_add(s, "(", 1);
    script_key(s, "addr", &keys[0]);
    script_add(s, "M\x00\x02", 3);
    script_key(s, "size", &keys[1]);
    script_add(s, "M\x00\x02", 3);
    script_key(s, "stream", &keys[2]);
    script_add(s, "K\x00", 2);
    script_key(s, "user_metadata", &keys[3]);
    script_put(s, text, sizeof text - 1);
    script_key(s, "action", &keys[4]);
    script_put(s,
               "\x8c\x05"
               "alloc",
               7);
    script_add(s, "u", 1);
}

NT_TEST(memo_grows_inside_of_a_record)
{
    /* Wherever in a record the memo is full: its size is a power of two at each growth,
     * and each event has three entries. */
    for (size_t spare = 0; spare < 8; spare++) {
        static script s;
        size_t keys[5] = {0}, segments = 0, traces = 0;
        s.size = s.memo = 0;
        script_add(&s, "\x80\x04", 2);
        script_put(&s, "}", 1);
        for (size_t i = 0; i < spare; i++) {
            script_put(&s, "", 0);
        }
        script_add(&s, "(", 1);
        script_key(&s, "segments", &segments);
        script_put(&s, "]", 1);
        script_key(&s, "device_traces", &traces);
        script_put(&s, "]", 1);
        script_add(&s, "(", 1);
        script_put(&s, "]", 1);
        script_add(&s, "(", 1);
        for (size_t i = 0; i < 600; i++) {
            script_event(&s, keys);
        }
        script_add(&s, "eeu.", 4);
        nt_hostile hostile;
        nt_hostile_init(&hostile, t);
        nt_snapshot *snapshot = NULL;
        nt_error err = {0};
        nt_source source;
        nt_source_init_memory(&source, s.bytes, s.size, NULL);
        if (NT_CHECK_OK(nt_reader_load(&hostile.alloc, &source, &snapshot, &err),
                        &err)) {
            NT_CHECK_UINT(nt_snapshot_events(snapshot)->count, 600);
        }
        nt_source_clear(&source);
        nt_snapshot_free(snapshot);
        NT_CHECK_NO_LEAK(&hostile);
    }
}

const nt_test_case nt_reader_tests[] = {
    NT_CASE(loading_survives_running_out_of_memory),
    NT_CASE(columns_hold_what_was_recorded),
    NT_CASE(other_pickles_are_no_snapshots),
    NT_CASE(shared_lists_can_not_unfold),
    NT_CASE(memo_grows_inside_of_a_record),
    NT_CASES_END,
};
