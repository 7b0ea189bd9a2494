/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pack.h"

#include <string.h>

#include "nt_file.h"
#include "nt_random.h"
#include "nt_same.h"
#include "nt_test.h"

static nt_status
pack_save(nt_file *file, const nt_snapshot *snapshot)
{
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = nt_file_collect, .ctx = file};
    return nt_pack_save(&alloc, snapshot, &sink, NULL);
}

static nt_status
pack_load(const nt_alloc *alloc, const uint8_t *bytes, size_t size, nt_snapshot **out,
          nt_error *err)
{
    nt_source source;
    nt_source_init_memory(&source, bytes, size, NULL);
    const nt_status status = nt_pack_load(alloc, &source, out, err);
    nt_source_clear(&source);
    return status;
}

static void
pack_check_ids(nt_test *t, const nt_snapshot *a, const nt_snapshot *b)
{
    const nt_event_columns *x = nt_snapshot_events(a), *y = nt_snapshot_events(b);
    NT_CHECK_UINT(nt_snapshot_keys(b), nt_snapshot_keys(a));
    NT_CHECK_UINT(nt_strings_count(nt_snapshot_strings(b)),
                  nt_strings_count(nt_snapshot_strings(a)));
    NT_CHECK_UINT(nt_stacks_count(nt_snapshot_stacks(b)),
                  nt_stacks_count(nt_snapshot_stacks(a)));
    if (x->count != 0 && x->count == y->count) {
        NT_CHECK(memcmp(x->stack, y->stack, x->count * sizeof *x->stack) == 0);
        NT_CHECK(memcmp(x->action, y->action, x->count) == 0);
    }
}

static void
pack_check_notes(nt_test *t, const nt_snapshot *a, const nt_snapshot *b)
{
    size_t notes, notes_b, ignored, ignored_b;
    const nt_broken_note *x = nt_snapshot_broken(a, &notes);
    const nt_broken_note *y = nt_snapshot_broken(b, &notes_b);
    if (NT_CHECK_UINT(notes_b, notes)) {
        for (size_t i = 0; i < notes; i++) {
            NT_CHECK_UINT(y[i].kind, x[i].kind);
            NT_CHECK_UINT(y[i].count, x[i].count);
            NT_CHECK_UINT(y[i].first, x[i].first);
        }
    }
    const uint32_t *keys = nt_snapshot_ignored(a, &ignored);
    const uint32_t *keys_b = nt_snapshot_ignored(b, &ignored_b);
    if (NT_CHECK_UINT(ignored_b, ignored) && ignored != 0) {
        NT_CHECK(memcmp(keys, keys_b, ignored * sizeof *keys) == 0);
    }
    NT_CHECK_STR(nt_snapshot_partial(b), nt_snapshot_partial(a));
}

/* Packs and unpacks: the same under the same ids, and the same bytes once more. Returns
 * how many they are. */
static size_t
pack_check_round_trip(nt_test *t, const nt_snapshot *snapshot)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_file file = {.size = 0}, second = {.size = 0};
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_snapshot *again = NULL;
    (void)NT_CHECK_OK(pack_save(&file, snapshot), NULL);
    (void)NT_CHECK_OK(pack_load(&alloc, file.bytes, file.size, &again, &err), &err);
    if (again != NULL) {
        NT_CHECK_STR(nt_same_snapshot(snapshot, again), NULL);
        pack_check_ids(t, snapshot, again);
        pack_check_notes(t, snapshot, again);
        (void)NT_CHECK_OK(pack_save(&second, again), NULL);
        if (NT_CHECK_UINT(second.size, file.size)) {
            NT_CHECK(memcmp(second.bytes, file.bytes, file.size) == 0);
        }
    }
    const size_t size = file.size;
    nt_snapshot_free(again);
    nt_file_clear(&file);
    nt_file_clear(&second);
    return size;
}

NT_TEST(random_snapshots_survive_packing)
{
    for (uint64_t start = 1; start <= 60 && t->failures == 0; start++) {
        uint64_t seed = start;
        const uint32_t dropped =
            (uint32_t)nt_test_random(&seed) & (uint32_t)NT_RANDOM_OPTIONAL_KEYS;
        nt_snapshot *snapshot =
            nt_random_snapshot(t, (uint32_t)NT_RANDOM_KEYS & ~dropped, &seed);
        (void)pack_check_round_trip(t, snapshot);
        nt_snapshot_free(snapshot);
        if (t->failures != 0) {
            NT_FAIL("so it was with seed %d", (int)start);
        }
    }
}

/* A real one takes less than half of what it takes as a pickle, before any compression.
 */
NT_TEST(real_snapshots_survive_packing)
{
    static const char *const names[] = {"metadata", "cpp_stacks", "multi_stream",
                                        "cuda_graph_pool", "frag_default"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size;
        const uint8_t *bytes = nt_test_sample(t, names[i], &size);
        NT_REQUIRE(bytes != NULL);
        nt_snapshot *snapshot = nt_file_load(t, bytes, size);
        NT_REQUIRE(snapshot != NULL);
        const size_t packed = pack_check_round_trip(t, snapshot);
        NT_CHECK(nt_snapshot_events(snapshot)->count < 2000 || packed < size / 2);
        nt_snapshot_free(snapshot);
    }
}

/* The notes of a file, the keys that nobody read, and why it breaks off. */
NT_TEST(notes_survive_packing)
{
    const nt_broken_note note = {NT_BROKEN_SUMS, 3, 7, 512, 4096};
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_TRACES);
    const uint32_t key = nt_file_intern(t, snapshot, "unread", 6);
    (void)NT_CHECK_OK(nt_snapshot_add_broken(snapshot, &note, NULL), NULL);
    (void)NT_CHECK_OK(nt_snapshot_add_ignored(snapshot, key, NULL), NULL);
    nt_snapshot_set_partial(snapshot, "it ends early");
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    (void)pack_check_round_trip(t, snapshot);
    nt_snapshot_free(snapshot);
}

static void
pack_add(nt_test *t, nt_snapshot *snapshot, uint8_t action, uint64_t addr,
         uint64_t size)
{
    const nt_event event = {
        .action = action,
        .addr = addr,
        .size = size,
        .time_us = 1 + (int64_t)nt_snapshot_events(snapshot)->count,
        .stack = NT_NO_STACK,
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    (void)NT_CHECK_OK(nt_snapshot_add_event(snapshot, &event, NULL), NULL);
}

/* Blocks that stand beside each other and are freed in another order, over and over:
 * more rows than are written at a time, on two devices. */
NT_TEST(long_traces_name_what_was_before)
{
    enum { BLOCKS = 100, ROUNDS = 250 };
    nt_snapshot *snapshot = nt_file_begin(t, NT_HAS_TRACES | NT_HAS_EVENT_TIME);
    for (uint64_t device = 0; device < 2; device++) {
        (void)NT_CHECK_OK(nt_snapshot_begin_trace(snapshot, NULL), NULL);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t addr = (device + 1) << 40, seed = round, sizes[BLOCKS];
            for (size_t i = 0; i < BLOCKS; i++) {
                sizes[i] = 1 + nt_test_random(&seed) % 4096;
                pack_add(t, snapshot, NT_ACTION_ALLOC, addr + 4096 * i, sizes[i]);
            }
            for (size_t i = 0; i < BLOCKS; i++) {
                const size_t at = i * 37 % BLOCKS;
                const uint64_t lies = i == 50;
                pack_add(t, snapshot, NT_ACTION_FREE_REQUESTED, addr + 4096 * at,
                         sizes[at] - lies);
                pack_add(t, snapshot, NT_ACTION_FREE_COMPLETED, addr + 4096 * at,
                         sizes[at] + lies);
            }
        }
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    const size_t events = nt_snapshot_events(snapshot)->count;
    const size_t size = pack_check_round_trip(t, snapshot);
    /* An action, a book, a time, a size or a distance, and nothing that repeats. */
    NT_CHECK(size < 7 * events);
    nt_snapshot_free(snapshot);
}

NT_TEST(what_breaks_off_is_refused)
{
    const nt_alloc alloc = nt_alloc_system();
    uint64_t seed = 5;
    nt_snapshot *snapshot = nt_random_snapshot(t, NT_RANDOM_KEYS, &seed);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(pack_save(&file, snapshot), NULL);
    for (size_t size = 0; size < file.size && t->failures == 0; size++) {
        nt_snapshot *none = NULL;
        nt_error err = {.offset = NT_NO_OFFSET};
        (void)NT_CHECK_STATUS(pack_load(&alloc, file.bytes, size, &none, &err),
                              NT_MALFORMED, &err);
        NT_CHECK(none == NULL);
    }
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

/* Any bytes are refused, or are a snapshot that can be written. */
NT_TEST(damaged_bytes_do_no_harm)
{
    uint64_t seed = 9;
    nt_snapshot *snapshot = nt_random_snapshot(t, NT_RANDOM_KEYS, &seed);
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(pack_save(&file, snapshot), NULL);
    for (size_t at = 8; at < file.size && t->failures == 0; at++) {
        const uint8_t byte = file.bytes[at];
        file.bytes[at] = (uint8_t)(byte ^ (1 + nt_test_random(&seed) % 255));
        nt_snapshot *some = NULL;
        nt_budget budget;
        nt_budget_init(&budget, nt_alloc_system(), (size_t)64 << 20);
        const nt_alloc alloc = nt_budget_alloc(&budget);
        const nt_status status = pack_load(&alloc, file.bytes, file.size, &some, NULL);
        NT_CHECK(status == NT_OK || status == NT_MALFORMED || status == NT_NOMEM ||
                 status == NT_LIMIT);
        if (some != NULL) {
            nt_file pickle = {.size = 0};
            (void)NT_CHECK_OK(nt_file_save(&pickle, some), NULL);
            nt_file_clear(&pickle);
        }
        nt_snapshot_free(some);
        NT_CHECK_UINT(budget.used, 0);
        file.bytes[at] = byte;
    }
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

NT_TEST(failing_sinks_end_the_packing)
{
    uint64_t seed = 3;
    nt_snapshot *snapshot = nt_random_snapshot(t, NT_RANDOM_KEYS, &seed);
    nt_file whole = {.size = 0};
    (void)NT_CHECK_OK(pack_save(&whole, snapshot), NULL);
    for (size_t fail_at = 1; fail_at <= whole.writes; fail_at++) {
        nt_file file = {.fail_at = fail_at};
        (void)NT_CHECK_STATUS(pack_save(&file, snapshot), NT_IO, NULL);
        NT_CHECK_UINT(file.writes, fail_at);
        nt_file_clear(&file);
    }
    nt_file_clear(&whole);
    nt_snapshot_free(snapshot);
}

static nt_status
pack_sweep_save(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    nt_file file = {.size = 0};
    const nt_sink sink = {.write = nt_file_collect, .ctx = &file};
    const nt_status status = nt_pack_save(alloc, ctx, &sink, NULL);
    nt_file_clear(&file);
    return status;
}

static nt_status
pack_sweep_load(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const nt_file *file = ctx;
    nt_snapshot *snapshot = NULL;
    const nt_status status = pack_load(alloc, file->bytes, file->size, &snapshot, NULL);
    NT_CHECK((snapshot != NULL) == (status == NT_OK));
    nt_snapshot_free(snapshot);
    return status;
}

NT_TEST(packing_survives_refused_memory)
{
    uint64_t seed = 7;
    nt_snapshot *snapshot = nt_random_snapshot(t, NT_RANDOM_KEYS, &seed);
    nt_file file = {.size = 0};
    nt_test_sweep(t, pack_sweep_save, snapshot);
    (void)NT_CHECK_OK(pack_save(&file, snapshot), NULL);
    nt_test_sweep(t, pack_sweep_load, &file);
    nt_file_clear(&file);
    nt_snapshot_free(snapshot);
}

extern const nt_test_case nt_pack_tests[];

const nt_test_case nt_pack_tests[] = {
    NT_CASE(random_snapshots_survive_packing),
    NT_CASE(real_snapshots_survive_packing),
    NT_CASE(notes_survive_packing),
    NT_CASE(long_traces_name_what_was_before),
    NT_CASE(what_breaks_off_is_refused),
    NT_CASE(damaged_bytes_do_no_harm),
    NT_CASE(failing_sinks_end_the_packing),
    NT_CASE(packing_survives_refused_memory),
    NT_CASES_END,
};
