/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_live.h"

#include <string.h>

#include "nt_test.h"
#include "trace/nt_timeline.h"

/* A made-up process: one device with a segment of 2 MiB and two blocks in it, whose
 * trace is in a ring. */
typedef struct process {
    nt_ring *ring;
    nt_live_blocks *blocks; /* of a CPU, else NULL */
    uint64_t head;          /* at the layout */
    bool fails, is_double;
    int released;
} process;

#define BASE UINT64_C(0x700000000)
#define MIB UINT64_C(1048576)

static int
describe(uint64_t code, nt_ring_code *out)
{
    static const uint16_t wide[] = {0x4e2d, 0x6587};
    *out = (nt_ring_code){
        .name = {"forward", 7, 1},
        .filename = {wide, 2, 2},
        .first_line = (int32_t)code,
        .format = NT_RING_LINES_NONE,
    };
    return 0;
}

static uint32_t
add_stack(nt_ring *ring, uint64_t code)
{
    const nt_ring_frame frames[] = {{code, 1, 0, 0}, {5, 1, 0, 0}};
    uint64_t print[2];
    nt_ring_fingerprint(frames, 2, print);
    const uint32_t found = nt_ring_find_stack(ring, print);
    return found != NT_RING_NONE ? found
                                 : nt_ring_add_stack(ring, frames, 2, print, describe);
}

static void
push(process *p, nt_live_action action, uint64_t addr, uint64_t size, uint32_t stack)
{
    const nt_ring_entry entry = {
        .ticks = nt_ring_head(p->ring),
        .addr = addr,
        .size = size,
        .stack = stack,
        .action = (uint8_t)action,
        .flags = p->blocks != NULL ? NT_LIVE_FLAG_BARE : 0,
    };
    nt_ring_push(p->ring, &entry);
}

static int
process_layout(void *ctx, nt_live_device_type type, nt_live_builder *b)
{
    process *p = ctx;
    const nt_live_api *api = nt_live_table();
    int failed = api->set_mark(b, 0, p->ring, p->head);
    if (type == NT_LIVE_CPU) {
        nt_live_blocks *copy = nt_live_blocks_copy(p->blocks);
        failed |= copy == NULL ? -1 : api->blocks_emit(copy, b, 0);
        nt_live_blocks_free(copy);
        return failed;
    }
    const nt_live_segment segment = {.address = BASE,
                                     .total_size = 2 * MIB,
                                     .allocated_size = 1024,
                                     .active_size = 1536,
                                     .requested_size = 1400};
    const nt_live_block blocks[] = {{BASE, 1024, 1000, 1},
                                    {BASE + 1024, 512, 400, 2},
                                    {BASE + 1536, 2 * MIB - 1536, 77, 0}};
    failed |= api->add_segment(b, &segment);
    for (size_t i = 0; i < 3; i++) {
        failed |= api->add_block(b, &blocks[i]);
    }
    const uint64_t roundup[] = {0, 4};
    failed |= api->set_bool(b, "expandable_segments", 0);
    failed |= api->set_int(b, "max_split_size", 64 * (int64_t)MIB);
    failed |= api->set_real(b, "garbage_collection_threshold", 0.75);
    failed |= api->set_text(b, "PYTORCH_CUDA_ALLOC_CONF", "", 0);
    failed |= api->set_roundup(b, roundup, 2);
    failed |= p->is_double ? api->set_mark(b, 0, p->ring, p->head) : 0;
    return p->fails ? 7 : failed;
}

static void
process_release(void *ctx)
{
    ((process *)ctx)->released++;
}

static int64_t
process_time(void *ctx, nt_live_device_type type, uint64_t ticks)
{
    (void)ctx;
    (void)type;
    return 1000000 + (int64_t)ticks;
}

static nt_live_source
source_of(process *p)
{
    return (nt_live_source){.version = NT_LIVE_API_VERSION,
                            .size = sizeof(nt_live_source),
                            .ctx = p,
                            .layout = process_layout,
                            .release = process_release,
                            .time_us = process_time};
}

/* The events that led to process_layout, and one behind it. */
static bool
process_begin(process *p)
{
    const nt_alloc system = nt_alloc_system();
    *p = (process){.ring = nt_ring_new(&system, 1000, 1)};
    if (p->ring == NULL) {
        return false;
    }
    nt_ring_restart(p->ring, 0);
    push(p, NT_LIVE_SEGMENT_ALLOC, BASE, 2 * MIB, add_stack(p->ring, 11));
    push(p, NT_LIVE_ALLOC, BASE, 1000, add_stack(p->ring, 11));
    push(p, NT_LIVE_ALLOC, BASE + 1024, 400, add_stack(p->ring, 12));
    push(p, NT_LIVE_OOM, 12345, 4 * MIB, NT_RING_NONE);
    push(p, NT_LIVE_FREE_REQUESTED, BASE + 1024, 400, NT_RING_NONE);
    p->head = nt_ring_head(p->ring);
    push(p, NT_LIVE_SNAPSHOT, 0, 1536, NT_RING_NONE);
    push(p, NT_LIVE_FREE_COMPLETED, BASE + 1024, 400, NT_RING_NONE);
    return true;
}

static nt_status
build(process *p, const nt_alloc *alloc, nt_live_device_type type, uint64_t most,
      nt_snapshot **out, nt_live_tail *tail, nt_error *err)
{
    const nt_live_source source = source_of(p);
    nt_live_tail tails[NT_LIVE_MOST_DEVICES];
    size_t count = 99;
    NT_TRY(nt_live_build(alloc, &source, type, most, out, tails, &count, err));
    *tail = tails[0];
    return NT_OK;
}

static const nt_setting *
find_setting(const nt_snapshot *s, const char *key)
{
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(s, &count);
    const uint32_t id = nt_strings_find(nt_snapshot_strings(s), key, strlen(key));
    for (size_t i = 0; i < count; i++) {
        if (rows[i].key == id) {
            return &rows[i];
        }
    }
    return NULL;
}

static void
check_stack(nt_test *t, const nt_snapshot *s, uint32_t stack, int64_t line)
{
    const nt_stacks *stacks = nt_snapshot_stacks(s);
    NT_REQUIRE(NT_CHECK(stack != NT_EMPTY_STACK && stack != NT_NO_STACK));
    const nt_frame *frame =
        &nt_stacks_frames(stacks)[nt_stacks_innermost(stacks)[stack]];
    size_t length;
    NT_CHECK_INT(frame->line, line);
    NT_CHECK_BYTES(nt_strings_get(nt_snapshot_strings(s), frame->name, &length),
                   "forward", 7);
    NT_CHECK_UINT(length, 7);
    NT_CHECK_BYTES(nt_strings_get(nt_snapshot_strings(s), frame->filename, &length),
                   "\xe4\xb8\xad\xe6\x96\x87", 6);
    NT_CHECK_UINT(length, 6);
}

NT_TEST(tail_joins_layout_at_marker)
{
    process p;
    nt_hostile hostile;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    NT_REQUIRE(NT_CHECK_OK(
        build(&p, &hostile.alloc, NT_LIVE_CUDA, 1000, &s, &tail, &err), &err));
    const nt_event_columns *e = nt_snapshot_events(s);
    const nt_layout *layout = nt_snapshot_layout(s);
    NT_REQUIRE(NT_CHECK_UINT(e->count, 5));
    NT_CHECK_UINT(e->action[4], NT_ACTION_FREE_REQUESTED);
    NT_CHECK_INT(e->time_us[4], 1000004);
    NT_CHECK_UINT(e->addr[3], 0);
    NT_CHECK_UINT(e->device_free[3], 12345);
    NT_CHECK_UINT(e->stack[3], NT_NO_STACK);
    NT_CHECK(e->user_metadata != NULL);
    check_stack(t, s, e->stack[1], 11);
    check_stack(t, s, e->stack[2], 12);
    NT_CHECK_UINT(layout->segments.count, 1);
    NT_REQUIRE(NT_CHECK_UINT(layout->blocks.count, 3));
    NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
    check_stack(t, s, layout->segments.stack[0], 11);
    check_stack(t, s, layout->blocks.stack[1], 12);
    NT_CHECK_UINT(layout->blocks.stack[2], NT_EMPTY_STACK);
    NT_CHECK_UINT(tail.pushed, 5);
    NT_CHECK_UINT(tail.taken, 5);
    NT_CHECK(!tail.late);
    NT_CHECK_INT(p.released, 1);
    const nt_settings *settings = nt_snapshot_settings(s);
    NT_CHECK_UINT(settings->max_split_size, 64 * MIB);
    NT_CHECK_UINT(settings->roundup_power2_divisions[1], 4);
    NT_CHECK(!settings->exact_sizes);
    nt_timeline *timeline;
    NT_REQUIRE(NT_CHECK_OK(nt_timeline_new(&hostile.alloc, s, 0, NULL, &timeline, &err),
                           &err));
    const nt_trace_facts *facts = nt_timeline_facts(timeline);
    NT_CHECK(facts->complete);
    NT_CHECK_UINT(facts->unmatched, 0);
    NT_CHECK_UINT(nt_timeline_peak(timeline, NT_METRIC_REQUESTED).bytes, 1400);
    nt_timeline_free(timeline);
    nt_snapshot_free(s);
    nt_ring_free(p.ring);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(annotations_stay_and_unknown_events_go)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    push(&p, NT_LIVE_ANNOTATE, BASE, 0, add_stack(p.ring, 11));
    push(&p, NT_LIVE_ANNOTATE + 1, BASE, 0, NT_RING_NONE);
    push(&p, NT_LIVE_FREE_REQUESTED, BASE, 1000, NT_RING_NONE);
    p.head = nt_ring_head(p.ring);
    NT_REQUIRE(NT_CHECK_OK(build(&p, &system, NT_LIVE_CUDA, 4, &s, &tail, &err), &err));
    const nt_event_columns *e = nt_snapshot_events(s);
    NT_REQUIRE(NT_CHECK_UINT(e->count, 3));
    NT_CHECK_UINT(e->action[0], NT_ACTION_FREE_COMPLETED);
    NT_CHECK_UINT(e->action[1], NT_ACTION_ANNOTATE);
    NT_CHECK_UINT(e->addr[1], BASE);
    check_stack(t, s, e->stack[1], 11);
    NT_CHECK_UINT(e->action[2], NT_ACTION_FREE_REQUESTED);
    nt_snapshot_free(s);
    nt_ring_free(p.ring);
}

NT_TEST(cut_and_late_recordings_say_so)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    NT_REQUIRE(NT_CHECK_OK(build(&p, &system, NT_LIVE_CUDA, 3, &s, &tail, &err), &err));
    NT_CHECK_UINT(nt_snapshot_events(s)->count, 3);
    NT_CHECK_UINT(tail.pushed, 5);
    NT_CHECK_UINT(tail.taken, 3);
    const nt_setting *said = find_setting(s, "trace_alloc_overflowed");
    NT_REQUIRE(NT_CHECK(said != NULL && said->kind == NT_SETTING_DICT));
    NT_CHECK_INT(said[1].integer, 1);
    said = find_setting(s, "trace_alloc_began_late");
    NT_REQUIRE(NT_CHECK(said != NULL));
    NT_CHECK_INT(said[1].integer, 0);
    nt_snapshot_free(s);
    nt_ring_restart(p.ring, 1);
    p.head = nt_ring_head(p.ring);
    NT_REQUIRE(NT_CHECK_OK(build(&p, &system, NT_LIVE_CUDA, 3, &s, &tail, &err), &err));
    NT_CHECK_UINT(nt_snapshot_events(s)->count, 0);
    NT_CHECK(tail.late);
    NT_CHECK_INT(find_setting(s, "trace_alloc_overflowed")[1].integer, 0);
    NT_CHECK_INT(find_setting(s, "trace_alloc_began_late")[1].integer, 1);
    /* Blocks whose allocation is not in the tail have no stack. */
    NT_CHECK_UINT(nt_snapshot_layout(s)->blocks.stack[0], NT_EMPTY_STACK);
    nt_snapshot_free(s);
    nt_ring_free(p.ring);
}

NT_TEST(failing_source_is_told_apart)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    p.fails = true;
    NT_CHECK_STATUS(build(&p, &system, NT_LIVE_CUDA, 9, &s, &tail, &err), NT_IO, &err);
    p.fails = false;
    p.is_double = true;
    NT_CHECK_STATUS(build(&p, &system, NT_LIVE_CUDA, 9, &s, &tail, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK(s == NULL);
    NT_CHECK_INT(p.released, 2);
    nt_live_source source = source_of(&p);
    nt_live_tail tails[NT_LIVE_MOST_DEVICES];
    size_t count = 99;
    source.layout = NULL;
    NT_CHECK_STATUS(
        nt_live_build(&system, &source, NT_LIVE_CUDA, 9, &s, tails, &count, &err),
        NT_IO, &err);
    NT_CHECK_UINT(count, 99);
    nt_ring_free(p.ring);
}

static nt_status
sweep_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    process *p = ctx;
    const nt_status status =
        build(p, alloc, p->blocks != NULL ? NT_LIVE_CPU : NT_LIVE_CUDA, 1000, &s, &tail,
              &err);
    NT_CHECK((s == NULL) == (status != NT_OK));
    nt_snapshot_free(s);
    return status;
}

NT_TEST(refused_memory_leaves_nothing_behind)
{
    process p;
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    nt_test_sweep(t, sweep_body, &p);
    nt_ring_free(p.ring);
}

/* ---- an allocator without segments ---------------------------------------------- */

static void
bare_alloc(process *p, uint64_t addr, uint64_t size)
{
    const uint32_t stack = add_stack(p->ring, addr >> 6);
    (void)nt_live_blocks_add(p->blocks, addr, size, stack);
    push(p, NT_LIVE_ALLOC, addr, size, stack);
}

static void
bare_free(process *p, uint64_t addr)
{
    const uint64_t size = nt_live_blocks_remove(p->blocks, addr);
    push(p, NT_LIVE_FREE_COMPLETED, addr, size, NT_RING_NONE);
}

static bool
bare_begin(process *p)
{
    const nt_alloc system = nt_alloc_system();
    *p = (process){.ring = nt_ring_new(&system, 1000, 1),
                   .blocks = nt_live_blocks_new(&system, 100)};
    if (p->ring == NULL || p->blocks == NULL) {
        return false;
    }
    nt_ring_restart(p->ring, 0);
    /* Close neighbours, which would overlap if sizes were rounded as on a device. */
    for (uint64_t i = 1; i <= 20; i++) {
        bare_alloc(p, 64 * i, 40 + i % 3);
    }
    for (uint64_t i = 1; i <= 20; i += 2) {
        bare_free(p, 64 * i);
    }
    p->head = nt_ring_head(p->ring);
    return true;
}

static void
bare_end(process *p)
{
    nt_ring_free(p->ring);
    nt_live_blocks_free(p->blocks);
}

NT_TEST(bare_blocks_are_own_segments)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(bare_begin(&p)));
    NT_REQUIRE(
        NT_CHECK_OK(build(&p, &system, NT_LIVE_CPU, 1000, &s, &tail, &err), &err));
    NT_CHECK_UINT(nt_snapshot_events(s)->count, 20 * 2 + 10 * 3);
    const nt_layout *layout = nt_snapshot_layout(s);
    NT_CHECK_UINT(layout->segments.count, 10);
    NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
    check_stack(t, s, layout->blocks.stack[0], 2);
    nt_timeline *timeline;
    NT_REQUIRE(
        NT_CHECK_OK(nt_timeline_new(&system, s, 0, NULL, &timeline, &err), &err));
    const nt_trace_facts *facts = nt_timeline_facts(timeline);
    NT_CHECK(facts->complete);
    NT_CHECK_UINT(facts->unmatched, 0);
    uint64_t sum = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        sum += 40 + i % 3;
    }
    NT_CHECK_UINT(nt_timeline_peak(timeline, NT_METRIC_ALLOCATED).bytes, sum);
    NT_CHECK_UINT(nt_timeline_peak(timeline, NT_METRIC_RESERVED).bytes, sum);
    nt_timeline_free(timeline);
    nt_snapshot_free(s);
    bare_end(&p);
}

NT_TEST(bare_tail_keeps_to_its_limit)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(bare_begin(&p)));
    NT_REQUIRE(NT_CHECK_OK(build(&p, &system, NT_LIVE_CPU, 10, &s, &tail, &err), &err));
    NT_CHECK_UINT(nt_snapshot_events(s)->count, 9);
    NT_CHECK_UINT(tail.taken, 3);
    nt_timeline *timeline;
    NT_REQUIRE(
        NT_CHECK_OK(nt_timeline_new(&system, s, 0, NULL, &timeline, &err), &err));
    NT_CHECK_UINT(nt_timeline_facts(timeline)->unmatched, 0);
    NT_CHECK(!nt_timeline_facts(timeline)->complete);
    nt_timeline_free(timeline);
    nt_snapshot_free(s);
    bare_end(&p);
}

NT_TEST(bare_layout_survives_refused_memory)
{
    process p;
    NT_REQUIRE(NT_CHECK(bare_begin(&p)));
    nt_test_sweep(t, sweep_body, &p);
    bare_end(&p);
}

NT_TEST(block_table_agrees_with_model)
{
    enum { PLACES = 500 };
    nt_hostile hostile;
    uint64_t sizes[PLACES] = {0}, live = 0, seed = 7;
    nt_hostile_init(&hostile, t);
    nt_live_blocks *blocks = nt_live_blocks_new(&hostile.alloc, 300);
    NT_REQUIRE(NT_CHECK(blocks != NULL));
    for (size_t i = 0; i < 20000; i++) {
        const uint64_t place = nt_test_random(&seed) % PLACES;
        const uint64_t address = (place + 1) * 64;
        if (nt_test_random(&seed) % 2 == 0) {
            const bool fits = sizes[place] != 0 || live < 300;
            NT_CHECK_INT(nt_live_blocks_add(blocks, address, i + 1, 0), fits ? 0 : -1);
            live += fits && sizes[place] == 0;
            sizes[place] = fits ? i + 1 : sizes[place];
        } else {
            NT_CHECK_UINT(nt_live_blocks_remove(blocks, address), sizes[place]);
            live -= sizes[place] != 0;
            sizes[place] = 0;
        }
        NT_REQUIRE(NT_CHECK_UINT(nt_live_blocks_count(blocks), live));
    }
    for (uint64_t place = 0; place < PLACES; place++) {
        NT_CHECK_UINT(nt_live_blocks_remove(blocks, (place + 1) * 64), sizes[place]);
    }
    nt_live_blocks_free(blocks);
    NT_CHECK_NO_LEAK(&hostile);
}

/* ---- lines ---------------------------------------------------------------------- */

NT_TEST(old_line_table_is_read)
{
    /* 4 bytes of line 10, 2 without a line, 6 of line 13, 2 of line 11. */
    const uint8_t table[] = {4, 0, 2, 128, 6, 3, 2, 254};
    const nt_ring_code code = {.lines = table,
                               .line_bytes = sizeof table,
                               .first_line = 10,
                               .format = NT_RING_LINES_310};
    NT_CHECK_INT(nt_live_line(&code, 0), 10);
    NT_CHECK_INT(nt_live_line(&code, 3), 10);
    NT_CHECK_INT(nt_live_line(&code, 4), -1);
    NT_CHECK_INT(nt_live_line(&code, 6), 13);
    NT_CHECK_INT(nt_live_line(&code, 13), 11);
    NT_CHECK_INT(nt_live_line(&code, 14), -1);
}

NT_TEST(line_beyond_what_a_file_has_is_none)
{
    /* Two steps of 2^53: a kind with a step, and nine bytes of six bits. */
    const uint8_t far[] = {0xe8, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x01,
                           0xe8, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x01};
    const uint8_t near[] = {0xe8, 0x04, 0xe8, 0x03};
    nt_ring_code code = {.lines = far,
                         .line_bytes = sizeof far,
                         .first_line = 10,
                         .format = NT_RING_LINES_311};
    NT_CHECK_INT(nt_live_line(&code, 0), -1);
    NT_CHECK_INT(nt_live_line(&code, 2), -1);
    code.lines = near;
    code.line_bytes = sizeof near;
    NT_CHECK_INT(nt_live_line(&code, 0), 12);
    NT_CHECK_INT(nt_live_line(&code, 2), 11);
}

NT_TEST(any_line_table_is_safe)
{
    uint8_t table[40];
    uint64_t seed = 1;
    for (size_t round = 0; round < 20000; round++) {
        const uint32_t length = (uint32_t)(nt_test_random(&seed) % sizeof table);
        for (size_t i = 0; i < length; i++) {
            table[i] = (uint8_t)nt_test_random(&seed);
        }
        const nt_ring_code code = {
            .lines = table,
            .line_bytes = length,
            .first_line = INT32_MAX,
            .format = (nt_ring_lines)(nt_test_random(&seed) % 3),
        };
        (void)nt_live_line(&code, (uint32_t)nt_test_random(&seed) % 100);
    }
    const nt_ring_code none = {.first_line = 5};
    NT_CHECK_INT(nt_live_line(&none, 8), 5);
}

NT_TEST(long_lived_blocks_keep_their_stacks)
{
    process p;
    nt_snapshot *s = NULL;
    nt_live_tail tail;
    nt_error err;
    const nt_alloc system = nt_alloc_system();
    NT_REQUIRE(NT_CHECK(process_begin(&p)));
    nt_ring_origins_set(&p.ring->origins, BASE, 1, add_stack(p.ring, 11));
    nt_ring_origins_set(&p.ring->origins, BASE + 1024, 2, add_stack(p.ring, 12));
    /* So many events that none of the above is kept; the layout is as it was. */
    for (int i = 0; i < 3000; i++) {
        push(&p, NT_LIVE_FREE_REQUESTED, BASE + MIB, 512, NT_RING_NONE);
    }
    p.head = nt_ring_head(p.ring);
    /* After the layout the second block gave way to another. */
    nt_ring_origins_drop(&p.ring->origins, BASE + 1024);
    nt_ring_origins_set(&p.ring->origins, BASE + 1024, p.head, add_stack(p.ring, 13));
    NT_REQUIRE(
        NT_CHECK_OK(build(&p, &system, NT_LIVE_CUDA, 1000, &s, &tail, &err), &err));
    const nt_layout *layout = nt_snapshot_layout(s);
    check_stack(t, s, layout->blocks.stack[0], 11);
    NT_CHECK_UINT(layout->blocks.stack[1], NT_EMPTY_STACK);
    NT_CHECK_UINT(layout->blocks.stack[2], NT_EMPTY_STACK);
    nt_snapshot_free(s);
    nt_ring_restart(p.ring, 1);
    p.head = nt_ring_head(p.ring);
    NT_REQUIRE(
        NT_CHECK_OK(build(&p, &system, NT_LIVE_CUDA, 1000, &s, &tail, &err), &err));
    NT_CHECK_UINT(nt_snapshot_layout(s)->blocks.stack[0], NT_EMPTY_STACK);
    nt_snapshot_free(s);
    nt_ring_free(p.ring);
}

const nt_test_case nt_live_tests[] = {
    NT_CASE(tail_joins_layout_at_marker),
    NT_CASE(annotations_stay_and_unknown_events_go),
    NT_CASE(cut_and_late_recordings_say_so),
    NT_CASE(long_lived_blocks_keep_their_stacks),
    NT_CASE(failing_source_is_told_apart),
    NT_CASE(refused_memory_leaves_nothing_behind),
    NT_CASE(bare_blocks_are_own_segments),
    NT_CASE(bare_tail_keeps_to_its_limit),
    NT_CASE(bare_layout_survives_refused_memory),
    NT_CASE(block_table_agrees_with_model),
    NT_CASE(old_line_table_is_read),
    NT_CASE(line_beyond_what_a_file_has_is_none),
    NT_CASE(any_line_table_is_safe),
    NT_CASES_END,
};
