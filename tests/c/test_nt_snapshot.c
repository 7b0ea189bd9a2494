/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_snapshot.h"

#include <string.h>

#include "nt_test.h"

static const nt_segment segment = {
    .address = 4096,
    .total_size = 2048,
    .allocated_size = 512,
    .active_size = 1536,
    .requested_size = 1100,
    .stack = NT_NO_STACK,
};

static const nt_block blocks[] = {
    {4096, 512, 100, NT_BLOCK_ACTIVE_ALLOCATED, NT_NO_STACK},
    {4608, 1024, 1000, NT_BLOCK_ACTIVE_PENDING_FREE, NT_NO_STACK},
    {5632, 512, 77, NT_BLOCK_INACTIVE, NT_NO_STACK},
};

static nt_status
snapshot_fill(nt_snapshot *s, nt_error *err)
{
    uint32_t name;
    uint8_t action;
    NT_TRY(nt_snapshot_begin_trace(s, err));
    NT_TRY(nt_strings_intern(nt_snapshot_strings(s), "odd", 3, &name, err));
    NT_TRY(nt_snapshot_intern_action(s, name, &action, err));
    const nt_event event = {
        .action = action,
        .stack = NT_NO_STACK,
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    NT_TRY(nt_snapshot_add_event(s, &event, err));
    NT_TRY(nt_snapshot_begin_trace(s, err));
    NT_TRY(nt_snapshot_add_segment(s, &segment, err));
    for (size_t i = 0; i < 3; i++) {
        NT_TRY(nt_snapshot_add_block(s, &blocks[i], err));
    }
    const nt_annotation annotation = {.name = name, .time_us = 5};
    NT_TRY(nt_snapshot_add_annotation(s, &annotation, err));
    NT_TRY(nt_strings_intern(nt_snapshot_strings(s), "max_split_size", 14, &name, err));
    const nt_setting setting = {
        .parent = NT_NONE, .key = name, .kind = NT_SETTING_INT, .integer = 1 << 26};
    NT_TRY(nt_snapshot_add_setting(s, &setting, err));
    NT_TRY(nt_snapshot_add_ignored(s, name, err));
    return nt_snapshot_seal(s, err);
}

NT_TEST(rows_come_back_as_added)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_snapshot *s = NULL;
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(nt_snapshot_new(&hostile.alloc, &s, &err), &err));
    NT_CHECK_OK(snapshot_fill(s, &err), &err);
    size_t first, events, length;
    NT_CHECK_UINT(nt_snapshot_trace_count(s), 2);
    nt_snapshot_trace(s, 0, &first, &events);
    NT_CHECK_UINT(events, 1);
    nt_snapshot_trace(s, 1, &first, &events);
    NT_CHECK_UINT(events, 0);
    nt_snapshot_trace(s, 9, &first, &events);
    NT_CHECK_UINT(events, 0);
    const uint8_t action = nt_snapshot_events(s)->action[0];
    NT_CHECK_UINT(action, NT_ACTION_COUNT);
    NT_CHECK_BYTES(nt_snapshot_action_name(s, action, &length), "odd", 3);
    NT_CHECK_UINT(nt_snapshot_action_count(s), NT_ACTION_COUNT + 1);
    NT_CHECK_UINT(nt_snapshot_settings(s)->max_split_size, 1 << 26);
    NT_CHECK_UINT(nt_snapshot_annotations(s)->count, 1);
    NT_CHECK(nt_snapshot_partial(s) == NULL);
    nt_snapshot_set_partial(s, "why");
    NT_CHECK_STR(nt_snapshot_partial(s), "why");
    nt_snapshot_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(unknown_actions_are_bounded)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *s = NULL;
    NT_REQUIRE(NT_CHECK_OK(nt_snapshot_new(&alloc, &s, NULL), NULL));
    nt_status status = NT_OK;
    size_t made = 0;
    for (; made < 1000 && status == NT_OK; made++) {
        uint32_t name;
        uint8_t code;
        NT_REQUIRE(NT_CHECK_OK(
            nt_strings_intern(nt_snapshot_strings(s), &made, sizeof made, &name, NULL),
            NULL));
        status = nt_snapshot_intern_action(s, name, &code, NULL);
    }
    NT_CHECK(status == NT_LIMIT);
    NT_CHECK(made > 200 && made < 256);
    nt_snapshot_free(s);
}

static nt_status
snapshot_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    (void)ctx;
    nt_snapshot *s = NULL;
    NT_TRY(nt_snapshot_new(alloc, &s, NULL));
    const nt_status status = snapshot_fill(s, NULL);
    nt_snapshot_free(s);
    return status;
}

NT_TEST(snapshots_survive_running_out_of_memory)
{
    nt_test_sweep(t, snapshot_body, NULL);
}

const nt_test_case nt_snapshot_tests[] = {
    NT_CASE(rows_come_back_as_added),
    NT_CASE(unknown_actions_are_bounded),
    NT_CASE(snapshots_survive_running_out_of_memory),
    NT_CASES_END,
};
