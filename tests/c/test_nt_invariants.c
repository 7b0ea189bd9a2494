/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_invariants.h"

#include "nt_test.h"

/* What a case changes of a sound snapshot: two segments of 4,096 bytes, the first with
 * blocks of 1,024, 2,048 and 1,024 bytes; and two events. */
typedef struct made {
    nt_segment segments[2];
    nt_block blocks[3];
    nt_event events[2];
} made;

static made
invariants_sound(void)
{
    return (made){
        .segments =
            {
                {.address = 4096,
                 .total_size = 4096,
                 .allocated_size = 3072,
                 .active_size = 3072,
                 .requested_size = 3000,
                 .stack = NT_NO_STACK},
                {.address = 65536, .total_size = 4096, .stack = NT_NO_STACK},
            },
        .blocks =
            {
                {4096, 1024, 1000, NT_BLOCK_ACTIVE_ALLOCATED, NT_NO_STACK},
                {5120, 2048, 2000, NT_BLOCK_ACTIVE_ALLOCATED, NT_NO_STACK},
                {7168, 1024, 9999, NT_BLOCK_INACTIVE, NT_NO_STACK},
            },
        .events =
            {
                {.action = NT_ACTION_SEGMENT_ALLOC,
                 .addr = 4096,
                 .size = 4096,
                 .time_us = 5000,
                 .stack = NT_NO_STACK},
                {.action = NT_ACTION_ALLOC,
                 .addr = 4096,
                 .size = 1000,
                 .time_us = 6000,
                 .stack = NT_NO_STACK},
            },
    };
}

static nt_status
invariants_fill(nt_snapshot *snapshot, const made *m, nt_error *err)
{
    static const nt_block rest = {65536, 4096, 0, NT_BLOCK_INACTIVE, NT_NO_STACK};
    NT_TRY(nt_snapshot_add_segment(snapshot, &m->segments[0], err));
    for (size_t i = 0; i < 3; i++) {
        NT_TRY(nt_snapshot_add_block(snapshot, &m->blocks[i], err));
    }
    NT_TRY(nt_snapshot_add_segment(snapshot, &m->segments[1], err));
    NT_TRY(nt_snapshot_add_block(snapshot, &rest, err));
    NT_TRY(nt_snapshot_begin_trace(snapshot, err));
    for (size_t i = 0; i < 2; i++) {
        NT_TRY(nt_snapshot_add_event(snapshot, &m->events[i], err));
    }
    nt_snapshot_set_keys(snapshot,
                         NT_HAS_EVENT_TIME | NT_HAS_SEGMENT_ALLOCATED |
                             NT_HAS_SEGMENT_ACTIVE | NT_HAS_SEGMENT_REQUESTED |
                             NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_BLOCK_REQUESTED);
    return NT_OK;
}

/* The checked snapshot; NULL and the status where it is refused. */
static nt_status
invariants_make(const nt_alloc *alloc, const made *m, nt_snapshot **out, nt_error *err)
{
    nt_snapshot *snapshot = NULL;
    NT_TRY(nt_snapshot_new(alloc, &snapshot, err));
    nt_status status = invariants_fill(snapshot, m, err);
    if (status == NT_OK) {
        status = nt_invariants_check(alloc, snapshot, err);
    }
    if (status != NT_OK) {
        nt_snapshot_free(snapshot);
        return status;
    }
    *out = snapshot;
    return NT_OK;
}

/* Checks that there is one note, of this kind; the caller frees what comes back. */
static nt_snapshot *
invariants_noted(nt_test *t, const made *m, nt_broken kind)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    nt_error err = {0};
    size_t count = 0;
    if (!NT_CHECK_OK(invariants_make(&alloc, m, &snapshot, &err), &err)) {
        return NULL;
    }
    const nt_broken_note *notes = nt_snapshot_broken(snapshot, &count);
    NT_CHECK_UINT(count, 1);
    if (count != 0) {
        NT_CHECK_UINT(notes[0].kind, kind);
        NT_CHECK_UINT(notes[0].count, 1);
    }
    return snapshot;
}

static void
invariants_refused(nt_test *t, const made *m)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    nt_error err = {0};
    NT_CHECK_STATUS(invariants_make(&alloc, m, &snapshot, &err), NT_MALFORMED, &err);
    NT_CHECK(snapshot == NULL);
}

NT_TEST(what_is_sound_has_no_notes)
{
    const nt_alloc alloc = nt_alloc_system();
    const made m = invariants_sound();
    nt_snapshot *snapshot = NULL;
    size_t count = 1;
    NT_REQUIRE(NT_CHECK_OK(invariants_make(&alloc, &m, &snapshot, NULL), NULL));
    (void)nt_snapshot_broken(snapshot, &count);
    NT_CHECK_UINT(count, 0);
    NT_CHECK_UINT(nt_layout_check(nt_snapshot_layout(snapshot)), NT_NONE);
    nt_snapshot_free(snapshot);
}

NT_TEST(a_block_outside_is_left_out)
{
    made m = invariants_sound();
    m.blocks[2].address = 8000;
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    size_t count;
    NT_REQUIRE(NT_CHECK_OK(invariants_make(&alloc, &m, &snapshot, NULL), NULL));
    const nt_broken_note *notes = nt_snapshot_broken(snapshot, &count);
    NT_CHECK_UINT(count, 2);
    NT_CHECK_UINT(notes[0].kind, NT_BROKEN_BLOCK_OUTSIDE);
    NT_CHECK_UINT(notes[0].bytes, 1024);
    NT_CHECK_UINT(notes[0].first, 8000);
    NT_CHECK_UINT(notes[1].kind, NT_BROKEN_UNFILLED);
    NT_CHECK_UINT(notes[1].bytes, 1024);
    const nt_layout *layout = nt_snapshot_layout(snapshot);
    NT_CHECK_UINT(layout->blocks.count, 3);
    NT_CHECK_UINT(layout->segments.block_count[0], 2);
    NT_CHECK_UINT(layout->segments.block_first[1], 2);
    NT_CHECK_UINT(layout->blocks.segment[2], 1);
    nt_snapshot_free(snapshot);
}

NT_TEST(blocks_out_of_order_are_sorted)
{
    made m = invariants_sound();
    const nt_block first = m.blocks[0];
    m.blocks[0] = m.blocks[1];
    m.blocks[1] = first;
    nt_snapshot *snapshot = invariants_noted(t, &m, NT_BROKEN_BLOCK_ORDER);
    if (snapshot != NULL) {
        NT_CHECK_UINT(nt_layout_check(nt_snapshot_layout(snapshot)), NT_NONE);
    }
    nt_snapshot_free(snapshot);
}

NT_TEST(figures_that_lie_are_put_right)
{
    made m = invariants_sound();
    m.blocks[1].requested_size = 4000;
    m.segments[0].requested_size = 5000;
    nt_snapshot *snapshot = invariants_noted(t, &m, NT_BROKEN_REQUESTED);
    if (snapshot != NULL) {
        NT_CHECK_UINT(nt_snapshot_layout(snapshot)->blocks.requested_size[1], 2048);
    }
    nt_snapshot_free(snapshot);
    m = invariants_sound();
    m.segments[0].allocated_size = 7;
    snapshot = invariants_noted(t, &m, NT_BROKEN_SUMS);
    if (snapshot != NULL) {
        NT_CHECK_UINT(nt_snapshot_layout(snapshot)->segments.allocated_size[0], 3072);
    }
    nt_snapshot_free(snapshot);
    m = invariants_sound();
    m.segments[0].is_expandable = true;
    snapshot = invariants_noted(t, &m, NT_BROKEN_EXPANDABLE);
    if (snapshot != NULL) {
        NT_CHECK_UINT(nt_snapshot_layout(snapshot)->segments.is_expandable[0], 0);
    }
    nt_snapshot_free(snapshot);
}

NT_TEST(a_segment_in_another_is_left_out)
{
    made m = invariants_sound();
    m.segments[1].address = 8000;
    nt_snapshot *snapshot = invariants_noted(t, &m, NT_BROKEN_SEGMENT_OVERLAP);
    if (snapshot != NULL) {
        NT_CHECK_UINT(nt_snapshot_layout(snapshot)->segments.count, 1);
        NT_CHECK_UINT(nt_snapshot_layout(snapshot)->blocks.count, 3);
    }
    nt_snapshot_free(snapshot);
}

NT_TEST(times_that_run_backwards_are_dropped)
{
    made m = invariants_sound();
    m.events[1].time_us = 4000;
    nt_snapshot *snapshot = invariants_noted(t, &m, NT_BROKEN_TIME);
    if (snapshot != NULL) {
        NT_CHECK_INT(nt_snapshot_events(snapshot)->time_us[0], 0);
    }
    nt_snapshot_free(snapshot);
    m.events[1].time_us = 0;
    snapshot = invariants_noted(t, &m, NT_BROKEN_TIME_MISSING);
    if (snapshot != NULL) {
        NT_CHECK_INT(nt_snapshot_events(snapshot)->time_us[1], 5000);
    }
    nt_snapshot_free(snapshot);
}

NT_TEST(what_nothing_rests_on_is_refused)
{
    made m = invariants_sound();
    m.segments[0].total_size = (uint64_t)-4096;
    invariants_refused(t, &m);
    m = invariants_sound();
    m.blocks[1].size = 8192;
    invariants_refused(t, &m);
    m = invariants_sound();
    m.blocks[1].address = 4608;
    invariants_refused(t, &m);
    m = invariants_sound();
    m.blocks[0].requested_size = NT_MOST_BYTES + 1;
    invariants_refused(t, &m);
    m = invariants_sound();
    m.events[1].size = (uint64_t)-1;
    invariants_refused(t, &m);
    m = invariants_sound();
    m.segments[1].address = UINT64_MAX - 100;
    invariants_refused(t, &m);
}

/* 300 devices; on two of them a range begins at addresses that differ in the bits that
 * an address has above its 56th. */
NT_TEST(segments_of_many_devices_are_told_apart)
{
    const nt_alloc alloc = nt_alloc_system();
    const uint64_t low = 4096, high = low | (uint64_t)1 << 56;
    nt_snapshot *snapshot = NULL;
    size_t count = 1;
    NT_REQUIRE(NT_CHECK_OK(nt_snapshot_new(&alloc, &snapshot, NULL), NULL));
    const nt_segment segment = {.address = high,
                                .total_size = 4096,
                                .device = 256,
                                .is_expandable = 1,
                                .stack = NT_NO_STACK};
    const nt_block rest = {high, 4096, 0, NT_BLOCK_INACTIVE, NT_NO_STACK};
    nt_status status = nt_snapshot_add_segment(snapshot, &segment, NULL);
    status = status == NT_OK ? nt_snapshot_add_block(snapshot, &rest, NULL) : status;
    for (uint32_t device = 0; status == NT_OK && device < 300; device++) {
        status = nt_snapshot_begin_trace(snapshot, NULL);
        const bool maps = device == 256, allocates = device == 257;
        const nt_event event = {.action = maps ? NT_ACTION_SEGMENT_MAP
                                               : NT_ACTION_SEGMENT_ALLOC,
                                .addr = maps ? high : low,
                                .size = 4096,
                                .stack = NT_NO_STACK};
        if (status == NT_OK && (maps || allocates)) {
            status = nt_snapshot_add_event(snapshot, &event, NULL);
        }
    }
    nt_snapshot_set_keys(snapshot, NT_HAS_SEGMENT_EXPANDABLE);
    status = status == NT_OK ? nt_invariants_check(&alloc, snapshot, NULL) : status;
    NT_CHECK_STATUS(status, NT_OK, NULL);
    const nt_broken_note *notes = nt_snapshot_broken(snapshot, &count);
    for (size_t i = 0; i < count; i++) {
        NT_CHECK(notes[i].kind != NT_BROKEN_EXPANDABLE);
    }
    nt_snapshot_free(snapshot);
}

static nt_status
invariants_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const made *m = ctx;
    nt_snapshot *snapshot = NULL;
    const nt_status status = invariants_make(alloc, m, &snapshot, NULL);
    NT_CHECK(status == NT_OK || snapshot == NULL);
    nt_snapshot_free(snapshot);
    return status;
}

NT_TEST(checks_survive_running_out_of_memory)
{
    made m = invariants_sound();
    m.blocks[0].address = 5120;
    m.blocks[1].address = 90000;
    m.events[1].time_us = 4000;
    nt_test_sweep(t, invariants_body, &m);
}

const nt_test_case nt_invariants_tests[] = {
    NT_CASE(what_is_sound_has_no_notes),
    NT_CASE(a_block_outside_is_left_out),
    NT_CASE(blocks_out_of_order_are_sorted),
    NT_CASE(figures_that_lie_are_put_right),
    NT_CASE(a_segment_in_another_is_left_out),
    NT_CASE(times_that_run_backwards_are_dropped),
    NT_CASE(what_nothing_rests_on_is_refused),
    NT_CASE(segments_of_many_devices_are_told_apart),
    NT_CASE(checks_survive_running_out_of_memory),
    NT_CASES_END,
};
