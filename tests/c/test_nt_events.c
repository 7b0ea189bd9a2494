/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_events.h"

#include "nt_test.h"

static nt_event
event_of(uint64_t i)
{
    return (nt_event){
        .action = (uint8_t)(i % NT_ACTION_COUNT),
        .addr = i,
        .size = i * 2,
        .stream = 7,
        .stack = NT_NO_STACK,
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
}

NT_TEST(late_columns_begin_with_absent_values)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_events events = {.alloc = hostile.alloc};
    for (uint64_t i = 0; i < 300; i++) {
        nt_event event = event_of(i);
        event.time_us = i >= 100 ? (int64_t)i : 0;
        event.user_metadata = i >= 200 ? (uint32_t)i : NT_NONE;
        NT_CHECK_OK(nt_events_add(&events, &event, NULL), NULL);
    }
    NT_CHECK_OK(nt_events_seal(&events, 0, NULL), NULL);
    NT_REQUIRE(NT_CHECK(events.columns.time_us != NULL));
    NT_CHECK_INT(events.columns.time_us[99], 0);
    NT_CHECK_INT(events.columns.time_us[100], 100);
    NT_CHECK_UINT(events.columns.user_metadata[199], NT_NONE);
    NT_CHECK_UINT(events.columns.user_metadata[299], 299);
    NT_CHECK(events.columns.compile_context == NULL);
    NT_CHECK(events.columns.pool_first == NULL);
    nt_events_clear(&events);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(picked_runs_are_put_in_order)
{
    nt_events events = {.alloc = nt_alloc_system()};
    for (uint64_t i = 0; i < 50; i++) {
        const nt_event event = event_of(i);
        NT_CHECK_OK(nt_events_add(&events, &event, NULL), NULL);
    }
    NT_CHECK_OK(nt_events_pick(&events, 40, 10, NULL), NULL);
    NT_CHECK_OK(nt_events_pick(&events, 5, 2, NULL), NULL);
    NT_CHECK_OK(nt_events_pick(&events, 7, 1, NULL), NULL);
    NT_CHECK_OK(nt_events_arrange(&events, NULL), NULL);
    NT_REQUIRE(NT_CHECK_UINT(events.columns.count, 13));
    NT_CHECK_UINT(events.columns.addr[0], 40);
    NT_CHECK_UINT(events.columns.addr[9], 49);
    NT_CHECK_UINT(events.columns.addr[10], 5);
    NT_CHECK_UINT(events.columns.size[12], 14);
    nt_events_clear(&events);
}

NT_TEST(sealed_columns_are_those_of_keys)
{
    nt_events events = {.alloc = nt_alloc_system()};
    const nt_event event = event_of(1);
    NT_CHECK_OK(nt_events_add(&events, &event, NULL), NULL);
    NT_CHECK_OK(nt_events_seal(&events, NT_HAS_EVENT_POOL | NT_HAS_EVENT_TIME, NULL),
                NULL);
    NT_CHECK(events.columns.pool_first != NULL && events.columns.pool_second != NULL);
    NT_CHECK(events.columns.time_us != NULL);
    NT_CHECK(events.columns.device_free == NULL);
    nt_events_clear(&events);
}

NT_TEST(columns_get_room_for_what_is_expected)
{
    nt_budget budget;
    nt_budget_init(&budget, nt_alloc_system(), (size_t)64 << 10);
    const nt_event event = event_of(1);
    nt_events events = {.alloc = nt_budget_alloc(&budget), .expected = 1000};
    NT_CHECK_OK(nt_events_add(&events, &event, NULL), NULL);
    NT_CHECK_UINT(events.room, 1000);
    /* For more there is no memory: columns grow as far as there is. */
    events.expected = 1 << 20;
    for (size_t i = 1; i < 1200; i++) {
        NT_CHECK_OK(nt_events_add(&events, &event, NULL), NULL);
    }
    NT_CHECK(events.room >= 1200 && events.room < 4000);
    nt_events_clear(&events);
    NT_CHECK_UINT(budget.used, 0);
}

static nt_status
events_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    nt_events events = {.alloc = *alloc};
    nt_status status = NT_OK;
    for (uint64_t i = 0; status == NT_OK && i < 60; i++) {
        nt_event event = event_of(i);
        event.time_us = (int64_t)i;
        event.pool.second = i / 20;
        status = nt_events_add(&events, &event, NULL);
        NT_CHECK_UINT(events.columns.count, status == NT_OK ? i + 1 : i);
    }
    if (status == NT_OK) {
        status = nt_events_pick(&events, 10, 20, NULL);
    }
    if (status == NT_OK) {
        status = nt_events_arrange(&events, NULL);
    }
    if (status == NT_OK) {
        status = nt_events_seal(&events, NT_HAS_EVENT_COMPILE_CONTEXT, NULL);
    }
    nt_events_clear(&events);
    return status;
}

NT_TEST(events_survive_running_out_of_memory)
{
    nt_test_sweep(t, events_body, NULL);
}

const nt_test_case nt_events_tests[] = {
    NT_CASE(late_columns_begin_with_absent_values),
    NT_CASE(picked_runs_are_put_in_order),
    NT_CASE(sealed_columns_are_those_of_keys),
    NT_CASE(columns_get_room_for_what_is_expected),
    NT_CASE(events_survive_running_out_of_memory),
    NT_CASES_END,
};
