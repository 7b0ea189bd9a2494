/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_random.h"

#include <string.h>

#include "nt_file.h"

/* A number of any size: small, large and the largest are all likely. */
static uint64_t
random_number(uint64_t *seed)
{
    return nt_test_random(seed) >> nt_test_random(seed) % 64;
}

static uint32_t
random_string(nt_test *t, nt_snapshot *snapshot, uint64_t *seed)
{
    const char *text = "abcdefghijklmnopqrstuvwxyz";
    return nt_file_intern(t, snapshot, text, nt_test_random(seed) % 26);
}

static uint32_t
random_stack(nt_test *t, nt_snapshot *snapshot, uint64_t *seed)
{
    uint32_t frames[6], stack = NT_NO_STACK;
    const size_t count = nt_test_random(seed) % 7;
    if (count == 6) {
        return NT_NO_STACK;
    }
    for (size_t i = 0; i < count; i++) {
        nt_frame frame = {
            .name = random_string(t, snapshot, seed),
            .filename = random_string(t, snapshot, seed),
            .line = (int64_t)random_number(seed),
        };
        if (nt_test_random(seed) % 3 == 0) {
            const nt_fx_node node = {
                .op = random_string(t, snapshot, seed),
                .name = random_string(t, snapshot, seed),
                .target = NT_NONE,
                .trace = random_string(t, snapshot, seed),
            };
            (void)NT_CHECK_OK(nt_stacks_intern_fx(nt_snapshot_stacks(snapshot), node,
                                                  &frame.fx, NULL),
                              NULL);
        }
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
random_add_events(nt_test *t, nt_snapshot *snapshot, size_t count, uint64_t *seed)
{
    const uint32_t keys = nt_snapshot_keys(snapshot);
    const uint64_t pools = (keys & NT_HAS_EVENT_POOL) != 0 ? UINT64_MAX : 0;
    for (size_t i = 0; i < count; i++) {
        nt_event event = {
            .addr = random_number(seed) >> 1,
            .size = random_number(seed) >> 24,
            .stream = random_number(seed),
            .pool = {random_number(seed) & pools, random_number(seed) & pools},
            .stack = random_stack(t, snapshot, seed),
            .compile_context = NT_NONE,
            .user_metadata = NT_NONE,
            .internal_metadata = NT_NONE,
            .forward = NT_NO_STACK,
        };
        if ((keys & NT_HAS_EVENT_TIME) != 0) {
            /* Times rise within a trace. */
            event.time_us = (int64_t)(i * 2000 + 1 + nt_test_random(seed) % 1000);
        }
        if ((keys & NT_HAS_EVENT_DEVICE_FREE) != 0) {
            event.device_free = random_number(seed) >> 16;
        }
        if ((keys & NT_HAS_EVENT_USER_METADATA) != 0) {
            event.user_metadata = random_string(t, snapshot, seed);
        }
        const uint32_t name = random_string(t, snapshot, seed);
        event.action = (uint8_t)(nt_test_random(seed) % NT_ACTION_INTERNAL_ALLOC);
        if (nt_test_random(seed) % 4 == 0) {
            (void)NT_CHECK_OK(
                nt_snapshot_intern_action(snapshot, name, &event.action, NULL), NULL);
        }
        if ((keys & NT_HAS_EVENT_INTERNAL) != 0 && nt_test_random(seed) % 4 == 0) {
            event.internal_metadata = random_string(t, snapshot, seed);
            event.action = nt_events_as_internal(event.action);
        }
        (void)NT_CHECK_OK(nt_snapshot_add_event(snapshot, &event, NULL), NULL);
    }
}

/* Blocks beside each other from `address` on; the segment gets their sums. */
static size_t
random_blocks(nt_test *t, nt_snapshot *snapshot, nt_segment *segment,
              nt_block blocks[4], uint64_t *seed)
{
    const size_t count = nt_test_random(seed) % 4;
    for (size_t i = 0; i < count; i++) {
        nt_block *block = &blocks[i];
        *block = (nt_block){
            .address = segment->address + segment->total_size,
            .size = 1 + (random_number(seed) >> 20),
            .state = (uint8_t)(nt_test_random(seed) % NT_BLOCK_STATE_COUNT),
            .stack = random_stack(t, snapshot, seed),
        };
        block->requested_size = nt_test_random(seed) % block->size;
        segment->total_size += block->size;
        if (block->state != NT_BLOCK_INACTIVE) {
            segment->active_size += block->size;
            segment->requested_size += block->requested_size;
        }
        if (block->state == NT_BLOCK_ACTIVE_ALLOCATED) {
            segment->allocated_size += block->size;
        }
    }
    return count;
}

static void
random_add_segments(nt_test *t, nt_snapshot *snapshot, size_t count, uint64_t *seed)
{
    for (size_t i = 0; i < count; i++) {
        nt_block blocks[4];
        nt_segment segment = {
            .device = (int32_t)(nt_test_random(seed) % 9),
            .address = ((uint64_t)i + 1) << 60,
            .stream = random_number(seed),
            .pool = {random_number(seed), random_number(seed)},
            .kind = (uint8_t)(nt_test_random(seed) % NT_POOL_KIND_COUNT),
            .is_expandable = nt_test_random(seed) % 2 != 0,
            .stack = random_stack(t, snapshot, seed),
        };
        const size_t many = random_blocks(t, snapshot, &segment, blocks, seed);
        (void)NT_CHECK_OK(nt_snapshot_add_segment(snapshot, &segment, NULL), NULL);
        for (size_t block = 0; block < many; block++) {
            (void)NT_CHECK_OK(nt_snapshot_add_block(snapshot, &blocks[block], NULL),
                              NULL);
        }
    }
}

void
nt_random_settings(nt_test *t, nt_snapshot *snapshot, uint32_t items)
{
    const double real = 0.8;
    const uint32_t key = nt_file_intern(t, snapshot, "key", 3);
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
        rows[i].key = nt_file_intern(t, snapshot, &name, 1);
        (void)NT_CHECK_OK(nt_snapshot_add_setting(snapshot, &rows[i], NULL), NULL);
    }
    for (uint32_t i = 0; i < items; i++) {
        const nt_setting item = {
            .parent = 9, .key = NT_NONE, .kind = NT_SETTING_INT, .integer = i};
        (void)NT_CHECK_OK(nt_snapshot_add_setting(snapshot, &item, NULL), NULL);
    }
}

/* Pinned memory: some segments, and the events of device 0 once more. */
static void
random_add_host(nt_test *t, nt_snapshot *snapshot, uint64_t *seed)
{
    nt_snapshot *host = NULL;
    NT_REQUIRE(NT_CHECK_OK(nt_snapshot_begin_host(snapshot, &host, NULL), NULL));
    nt_snapshot_set_keys(host, (nt_snapshot_keys(snapshot) | NT_HAS_SETTINGS) &
                                   ~(uint32_t)(NT_HAS_ANNOTATIONS | NT_HAS_BEFORE));
    random_add_segments(t, host, 1 + nt_test_random(seed) % 4, seed);
    nt_segment_columns *segments = &nt_snapshot_layout_table(host)->segments;
    memset(segments->device, 0, segments->count * sizeof *segments->device);
    size_t first, count;
    nt_snapshot_trace(snapshot, 0, &first, &count);
    (void)NT_CHECK_OK(nt_snapshot_begin_trace(host, NULL), NULL);
    for (size_t row = first; row < first + count; row++) {
        const nt_event event = nt_events_row(nt_snapshot_events(snapshot), row);
        (void)NT_CHECK_OK(nt_snapshot_add_event(host, &event, NULL), NULL);
    }
}

nt_snapshot *
nt_random_snapshot(nt_test *t, uint32_t keys, uint64_t *seed)
{
    nt_snapshot *snapshot = nt_file_begin(t, keys);
    random_add_segments(t, snapshot, nt_test_random(seed) % 5, seed);
    for (size_t device = nt_test_random(seed) % 4; device-- > 0;) {
        (void)NT_CHECK_OK(nt_snapshot_begin_trace(snapshot, NULL), NULL);
        random_add_events(t, snapshot, nt_test_random(seed) % 20, seed);
    }
    for (size_t row = nt_test_random(seed) % 3; row-- > 0;) {
        const nt_annotation annotation = {
            .stage = (uint8_t)(nt_test_random(seed) % NT_STAGE_COUNT),
            .name = random_string(t, snapshot, seed),
            .device = (int32_t)(nt_test_random(seed) % 9),
            .time_us = (int64_t)(random_number(seed) >> 11),
        };
        (void)NT_CHECK_OK(nt_snapshot_add_annotation(snapshot, &annotation, NULL),
                          NULL);
    }
    nt_random_settings(t, snapshot, 3);
    if ((keys & NT_HAS_TRACES) != 0) {
        random_add_host(t, snapshot, seed);
    }
    if ((keys & NT_HAS_BEFORE) != 0) {
        nt_snapshot_begin_before(snapshot);
        random_add_segments(t, snapshot, nt_test_random(seed) % 5, seed);
    }
    (void)NT_CHECK_OK(nt_snapshot_seal(snapshot, NULL), NULL);
    return snapshot;
}
