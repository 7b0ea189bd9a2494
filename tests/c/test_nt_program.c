/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program.h"

#include <string.h>

#include "nt_recorded.h"
#include "nt_trace.h"

#define BASE UINT64_C(0x7f0000000000)

/* The program of a trace made by hand; NULL fails the case. */
static nt_program *
program_of(nt_trace *r)
{
    nt_test *t = r->test;
    nt_program *program = NULL;
    if (nt_trace_replay(r)) {
        NT_CHECK_OK(nt_program_new(&r->alloc, r->timeline, &program, NULL), NULL);
    }
    return program;
}

/* The kinds of all steps, as letters. */
static void
program_check_steps(nt_test *t, const nt_program *program, const char *expected)
{
    static const char letters[] = "MFLCEPQO";
    char found[64] = "";
    for (size_t i = 0; i < program->step_count && i < sizeof found - 1; i++) {
        found[i] = letters[program->steps[i].kind];
        found[i + 1] = 0;
    }
    NT_CHECK_STR(found, expected);
}

static void
program_add_segment(nt_trace *r)
{
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
}

/* The end of most traces here: one segment, all free. */
static void
program_end_free(nt_trace *r)
{
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(r, BASE, 20 * MIB, 0, NT_BLOCK_INACTIVE);
}

NT_TEST(requests_and_frees_become_steps)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 2 * MIB, 3 * MIB - 9);
    nt_trace_free(&r, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(&r, BASE + 2 * MIB, 3 * MIB - 9);
    nt_trace_free(&r, BASE, 2 * MIB);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MMFMFF");
    NT_CHECK_UINT(program->slot_count, 2);
    NT_CHECK_UINT(program->steps[1].size, 3 * MIB - 9);
    NT_CHECK_INT(program->steps[1].event, 2);
    /* A free stands for both of its events. */
    NT_CHECK_INT(program->steps[2].event, 4);
    NT_CHECK_UINT(program->steps[3].slot, program->steps[0].slot);
    NT_CHECK_UINT(program->place_count, 1);
    NT_CHECK_UINT(program->bounds.low, 20 * MIB);
    NT_CHECK(program->bounds.high == NT_UNLIMITED);
    NT_CHECK(!program->has_later && program->calls_known);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* A block that waited for a stream is completed by the next request, and has its
 * stack; one that did not has the stack of its free. */
NT_TEST(waiting_blocks_are_told_by_stack)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t free_stack = nt_trace_stack(&r, "forget", 3, NULL);
    const uint32_t other = nt_trace_stack(&r, "empty", 9, NULL);
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 2 * MIB, 2 * MIB);
    nt_trace_event_at(&r, NT_ACTION_FREE_REQUESTED, BASE, 2 * MIB, free_stack);
    nt_trace_event_at(&r, NT_ACTION_FREE_COMPLETED, BASE, 2 * MIB, free_stack);
    nt_trace_event_at(&r, NT_ACTION_FREE_REQUESTED, BASE + 2 * MIB, 2 * MIB,
                      free_stack);
    nt_trace_event_at(&r, NT_ACTION_FREE_COMPLETED, BASE + 2 * MIB, 2 * MIB, other);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MMFLC");
    NT_CHECK(program->has_later);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* Lost and repeated events: each block is freed once. */
NT_TEST(blocks_are_freed_only_once)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 2 * MIB, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE + 2 * MIB, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE + 2 * MIB, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE, 2 * MIB);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MMLLCCMLC");
    nt_program_free(program);
    nt_trace_close(&r);
}

/* What a request of `size` bytes did, under one stack: 'c' completed a free of 8 MiB,
 * 'r' released a segment, 'o' failed. */
static void
program_check_wait(nt_test *t, const char *settings, const char *deeds, uint64_t size,
                   bool has_other, const char *expected)
{
    const uint64_t second = BASE + 64 * MIB, third = BASE + 128 * MIB;
    const uint64_t opened = size < 10 * MIB ? 20 * MIB : size;
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, settings);
    r.stack = nt_trace_stack(&r, "forget", 1, NULL);
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 8 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE + 8 * MIB, 8 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, second, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, second, 12 * MIB);
    nt_trace_free(&r, second, 12 * MIB);
    nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE, 8 * MIB);
    if (has_other) {
        nt_trace_event(&r, NT_ACTION_FREE_REQUESTED, BASE + 8 * MIB, 8 * MIB);
    }
    r.stack = nt_trace_stack(&r, "linear", 2, NULL);
    for (const char *deed = deeds; *deed != 0; deed++) {
        if (*deed == 'c') {
            nt_trace_event(&r, NT_ACTION_FREE_COMPLETED, BASE, 8 * MIB);
        } else if (*deed == 'r') {
            nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, second, 20 * MIB);
        } else {
            nt_trace_event(&r, NT_ACTION_OOM, 0, size);
        }
    }
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 8 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_trace_block(&r, BASE + 8 * MIB, 8 * MIB, 8 * MIB,
                   has_other ? NT_BLOCK_ACTIVE_PENDING_FREE
                             : NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 16 * MIB, 4 * MIB, 0, NT_BLOCK_INACTIVE);
    if (strchr(deeds, 'o') == NULL) {
        nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, third, opened);
        nt_trace_event(&r, NT_ACTION_ALLOC, third, size);
        nt_trace_segment(&r, third, opened, NT_POOL_LARGE, false);
        nt_trace_block(&r, third, size, size, NT_BLOCK_ACTIVE_ALLOCATED);
        if (size < opened) {
            nt_trace_block(&r, third + size, opened - size, 0, NT_BLOCK_INACTIVE);
        }
    }
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, expected);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* What a request completed when it waited for all streams came too late for it. */
NT_TEST(completions_of_a_wait_follow_the_request)
{
    static const char gc[] = "garbage_collection_threshold:0.5";
    program_check_wait(t, "", "cr", 30 * MIB, false, "MMMFLMC");
    program_check_wait(t, "", "cro", 30 * MIB, false, "MMMFLOC");
    /* While another block waits, nobody has waited for all. */
    program_check_wait(t, "", "cr", 30 * MIB, true, "MMMFLLCM");
    /* Garbage is collected before; but what was complete then would have served. */
    program_check_wait(t, gc, "cr", 30 * MIB, false, "MMMFLCM");
    program_check_wait(t, gc, "cr", 7 * MIB, false, "MMMFLMC");
    program_check_wait(t, gc, "rc", 30 * MIB, false, "MMMFLMC");
}

/* Releases under a stack, and what comes behind them. */
static void
program_check_release(nt_test *t, const char *function, bool gets_segment,
                      const char *settings, const char *expected, bool known)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, settings);
    const uint32_t stack =
        function != NULL ? nt_trace_stack(&r, function, 1, NULL) : NT_NO_STACK;
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(&r, BASE, 2 * MIB);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB, stack);
    if (gets_segment) {
        nt_trace_event_at(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB, stack);
    } else {
        nt_trace_event(&r, NT_ACTION_SNAPSHOT, 0, 0);
        nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    }
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_free(&r, BASE, 2 * MIB);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, expected);
    NT_CHECK(program->calls_known == known);
    nt_program_free(program);
    nt_trace_close(&r);
}

NT_TEST(calls_are_told_from_retries)
{
    program_check_release(t, "empty_cache", true, "", "MFEMF", true);
    program_check_release(t, "linear", true, "", "MFMF", true);
    program_check_release(t, "linear", false, "", "MFEMF", true);
    program_check_release(t, NULL, false, "", "MFEMF", true);
    program_check_release(t, NULL, true, "", "MFEMF", false);
    program_check_release(t, NULL, true, "max_split_size_mb:64", "MFMF", false);
}

NT_TEST(failed_requests_bound_the_limit)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "roundup_power2_divisions:4");
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_OOM, 0, 40 * MIB);
    nt_trace_free(&r, BASE, 2 * MIB);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MOF");
    NT_CHECK_UINT(program->steps[1].size, 40 * MIB);
    NT_CHECK_UINT(program->bounds.low, 20 * MIB);
    NT_CHECK_UINT(program->bounds.high, 60 * MIB - 1);
    /* Four steps from 32 to 64 MiB: it may have been for anything above 32. */
    NT_CHECK(program->has_rough_sizes);
    NT_CHECK_UINT(nt_program_least_request(program, 40 * MIB), 32 * MIB + 1);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* Releases in one run under two stacks: a call's, and those of a request that was short
 * of memory. */
NT_TEST(runs_of_releases_end_with_their_stack)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const uint32_t call = nt_trace_stack(&r, "drop", 1, NULL);
    const uint32_t request = nt_trace_stack(&r, "linear", 2, NULL);
    const uint64_t second = BASE + 64 * MIB;
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 2 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_ALLOC, second, 20 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, second, 19 * MIB + 1);
    nt_trace_free(&r, BASE, 2 * MIB);
    nt_trace_free(&r, second, 19 * MIB + 1);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB, call);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_FREE, second, 20 * MIB, request);
    nt_trace_event_at(&r, NT_ACTION_OOM, 0, 40 * MIB, request);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MMFFEO");
    nt_program_free(program);
    nt_trace_close(&r);
}

/* Garbage is collected where more than the threshold's share is reserved: the limit is
 * below this under this threshold. */
static void
program_check_garbage(nt_test *t, const char *settings, uint64_t high)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, settings);
    r.stack = nt_trace_stack(&r, "linear", 1, NULL);
    program_add_segment(&r);
    nt_trace_event(&r, NT_ACTION_SEGMENT_FREE, BASE, 20 * MIB);
    program_add_segment(&r);
    program_end_free(&r);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    NT_CHECK_UINT(program->bounds.high, high);
    nt_program_free(program);
    nt_trace_close(&r);
}

NT_TEST(collected_garbage_bounds_the_limit)
{
    program_check_garbage(t, "garbage_collection_threshold:0.5", 40 * MIB - 1);
    program_check_garbage(t, "garbage_collection_threshold:1e-300", NT_UNLIMITED);
}

/* A request that had to unmap before it could map: its first attempt was too much, by
 * the segment that it would have opened, not by what it mapped. */
NT_TEST(retries_that_map_bound_the_limit)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, "expandable_segments:True");
    r.stack = nt_trace_stack(&r, "linear", 1, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 60 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 50 * MIB);
    nt_trace_free(&r, BASE, 50 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_UNMAP, BASE + 20 * MIB, 40 * MIB);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE + 20 * MIB, 60 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 70 * MIB - 5);
    nt_trace_segment(&r, BASE, 80 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE, 70 * MIB, 70 * MIB - 5, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 70 * MIB, 10 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "MFM");
    NT_CHECK_UINT(program->bounds.high, 60 * MIB + 70 * MIB - 1);
    /* 80 MiB were mapped, of which less than a page of 20 was for whole pages. */
    NT_CHECK_UINT(program->bounds.low, 60 * MIB);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* A free block that is too large for a request is unmapped, and what is left of it
 * serves the request: that was no call. The steps under these settings, where the
 * request has the stack of the release, or another. */
static void
program_check_rest(nt_test *t, const char *settings, bool is_same, const char *steps,
                   uint64_t high)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_settings(&r, settings);
    r.stack = nt_trace_stack(&r, "linear", 1, NULL);
    const uint32_t other = nt_trace_stack(&r, "release", 2, NULL);
    nt_trace_event(&r, NT_ACTION_SEGMENT_MAP, BASE, 80 * MIB);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 74 * MIB);
    nt_trace_free(&r, BASE, 74 * MIB);
    nt_trace_event_at(&r, NT_ACTION_SEGMENT_UNMAP, BASE + 20 * MIB, 60 * MIB,
                      is_same ? r.stack : other);
    nt_trace_event(&r, NT_ACTION_ALLOC, BASE, 3 * MIB);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, true);
    nt_trace_block(&r, BASE, 3 * MIB, 3 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 3 * MIB, 17 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, steps);
    NT_CHECK_UINT(program->bounds.high, high);
    nt_program_free(program);
    nt_trace_close(&r);
}

NT_TEST(unmapped_rest_serves_its_request)
{
    const char *oversize = "expandable_segments:True,max_split_size_mb:64";
    program_check_rest(t, oversize, true, "MFM", 100 * MIB - 1);
    program_check_rest(t, oversize, false, "MFEM", NT_UNLIMITED);
    program_check_rest(t, "expandable_segments:True", true, "MFEM", NT_UNLIMITED);
}

NT_TEST(blocks_before_are_in_areas)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_trace_free(&r, BASE + 4 * MIB, 2 * MIB);
    nt_trace_segment(&r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    nt_trace_block(&r, BASE, 4 * MIB, 4 * MIB - 1, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_trace_block(&r, BASE + 4 * MIB, 16 * MIB, 0, NT_BLOCK_INACTIVE);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "F");
    NT_CHECK_UINT(program->area_count, 1);
    NT_CHECK_UINT(program->areas[0].address, BASE);
    NT_CHECK_UINT(program->areas[0].piece_count, 3);
    NT_CHECK_UINT(program->pieces[0].requested, 4 * MIB - 1);
    NT_CHECK_UINT(program->pieces[1].slot, program->steps[0].slot);
    NT_CHECK_UINT(program->pieces[2].slot, NT_NONE);
    nt_program_free(program);
    nt_trace_close(&r);
}

/* What fails before any request went through is not of the pool that lies first. */
NT_TEST(first_failure_is_of_default_pool)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    const nt_segment own = {
        .address = BASE,
        .total_size = 20 * MIB,
        .kind = NT_POOL_LARGE,
        .pool = {0, 1},
        .stack = r.stack,
    };
    nt_trace_event(&r, NT_ACTION_OOM, 0, 40 * MIB);
    NT_CHECK_OK(nt_snapshot_add_segment(r.snapshot, &own, NULL), NULL);
    nt_trace_block(&r, BASE, 20 * MIB, 20 * MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    nt_program *program = program_of(&r);
    NT_REQUIRE(NT_CHECK(program != NULL));
    program_check_steps(t, program, "O");
    NT_CHECK_UINT(program->pool_count, 2);
    NT_CHECK_UINT(program->lanes[program->steps[0].lane].pool, 0);
    nt_program_free(program);
    nt_trace_close(&r);
}

NT_TEST(private_pools_have_own_lanes)
{
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "cuda_graph_pool")) {
        const nt_program *program = recorded.program;
        NT_CHECK_UINT(program->pool_count, 3);
        NT_CHECK_UINT(program->pools[0].first + program->pools[0].second, 0);
        size_t own = 0;
        for (size_t i = 0; i < program->step_count; i++) {
            own += program->steps[i].kind == NT_PROGRAM_MALLOC &&
                   program->lanes[program->steps[i].lane].pool != 0;
        }
        NT_CHECK(own > 0 && own < program->step_count);
    }
    nt_recorded_close(&recorded);
}

static nt_status
program_make(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    nt_program *program = NULL;
    const nt_recorded *recorded = ctx;
    const nt_status status = nt_program_new(alloc, recorded->timeline, &program, NULL);
    NT_CHECK((program != NULL) == (status == NT_OK));
    nt_program_free(program);
    return status;
}

NT_TEST(refused_memory_leaves_no_program)
{
    nt_recorded recorded;
    if (nt_recorded_open(&recorded, t, "cuda_graph_pool")) {
        nt_test_sweep(t, program_make, &recorded);
    }
    nt_recorded_close(&recorded);
}

const nt_test_case nt_program_tests[] = {
    NT_CASE(requests_and_frees_become_steps),
    NT_CASE(waiting_blocks_are_told_by_stack),
    NT_CASE(blocks_are_freed_only_once),
    NT_CASE(completions_of_a_wait_follow_the_request),
    NT_CASE(calls_are_told_from_retries),
    NT_CASE(failed_requests_bound_the_limit),
    NT_CASE(runs_of_releases_end_with_their_stack),
    NT_CASE(collected_garbage_bounds_the_limit),
    NT_CASE(retries_that_map_bound_the_limit),
    NT_CASE(unmapped_rest_serves_its_request),
    NT_CASE(blocks_before_are_in_areas),
    NT_CASE(first_failure_is_of_default_pool),
    NT_CASE(private_pools_have_own_lanes),
    NT_CASE(refused_memory_leaves_no_program),
    NT_CASES_END,
};
