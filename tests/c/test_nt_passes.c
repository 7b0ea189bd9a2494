/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_passes.h"

#include "nt_trace.h"

#define BASE UINT64_C(0x7f0000000000)

NT_TEST(role_of_a_stack_is_decided_by_its_frames)
{
    const uint16_t call = NT_ROLE_MODULE | NT_FRAME_TORCH;
    const uint16_t own = NT_ROLE_USER | NT_FRAME_OUTSIDE;
    const uint16_t step = NT_ROLE_OPTIMIZER | NT_FRAME_TORCH | NT_FRAME_ALGORITHM;
    const uint16_t reverse = NT_ROLE_USER | NT_FRAME_OUTSIDE | NT_FRAME_REVERSE;
    const uint16_t apply = NT_ROLE_USER | NT_FRAME_TORCH | NT_FRAME_APPLIES;
    NT_CHECK_UINT(nt_role_of(NULL, 0), NT_ROLE_EMPTY);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){own, call, own}, 3), NT_ROLE_MODULE);
    /* A model called by a closure, and what the closure itself makes. */
    NT_CHECK_UINT(nt_role_of((uint16_t[]){call, own, step}, 3), NT_ROLE_MODULE);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){own, step, own}, 3), NT_ROLE_USER);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){step, own}, 2), NT_ROLE_OPTIMIZER);
    /* A backward function of the program's own, and a forward one. */
    NT_CHECK_UINT(nt_role_of((uint16_t[]){reverse, apply}, 2), NT_ROLE_BACKWARD);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){own, apply}, 2), NT_ROLE_USER);
    /* Forward run again in a backward pass. */
    NT_CHECK_UINT(nt_role_of((uint16_t[]){call, own, NT_ROLE_BACKWARD}, 3),
                  NT_ROLE_BACKWARD);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){call, NT_ROLE_ZERO_GRAD}, 2), NT_ROLE_MODULE);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){NT_ROLE_BUILD, NT_ROLE_STATE}, 2),
                  NT_ROLE_STATE);
    /* Who made it is known by name, whatever is around. */
    NT_CHECK_UINT(nt_role_of((uint16_t[]){NT_ROLE_REDUCE, NT_ROLE_BACKWARD}, 2),
                  NT_ROLE_REDUCE);
    NT_CHECK_UINT(nt_role_of((uint16_t[]){NT_ROLE_WORKSPACE, call}, 2),
                  NT_ROLE_WORKSPACE);
}

/* Frames 0 to 4; what they say is in `says` of the tests. */
static bool
passes_trace(nt_trace *r)
{
    static const char *const names[] = {"build", "call", "seed", "step", "reduce"};
    static const uint8_t made[] = {0, 1, 2, 9, 4, 9, 3, 1, 9, 9, 3};
    uint32_t stacks[5];
    for (size_t i = 0; i < 5; i++) {
        stacks[i] = nt_trace_stack(r, names[i], (int64_t)i + 1, NULL);
    }
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 20 * MIB);
    for (size_t i = 0; i < sizeof made; i++) {
        const uint32_t stack = made[i] < 5 ? stacks[made[i]] : NT_NO_STACK;
        nt_trace_event_at(r, NT_ACTION_ALLOC, BASE + i * MIB, MIB, stack);
    }
    nt_trace_segment(r, BASE, 20 * MIB, NT_POOL_LARGE, false);
    for (size_t i = 0; i < sizeof made; i++) {
        nt_trace_block(r, BASE + i * MIB, MIB, MIB, NT_BLOCK_ACTIVE_ALLOCATED);
    }
    nt_trace_block(r, BASE + 11 * MIB, 9 * MIB, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(r);
}

static const uint16_t says[] = {NT_ROLE_BUILD, NT_ROLE_MODULE, NT_ROLE_SEED,
                                NT_ROLE_OPTIMIZER, NT_ROLE_REDUCE};

NT_TEST(passes_follow_from_roles)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_passes *passes = NULL;
    nt_error err = {0};
    if (passes_trace(&r) &&
        NT_CHECK_OK(nt_passes_new(&r.alloc, r.timeline, says, 5, &passes, &err),
                    &err)) {
        size_t count;
        const nt_span *spans = nt_passes_backward(passes, &count);
        /* Events 3 to 6: the seed, without a stack, reduced, without a stack. */
        NT_CHECK_UINT(count, 2);
        NT_CHECK_INT(spans[0].begin, 3);
        NT_CHECK_INT(spans[0].end, 7);
        NT_CHECK_INT(spans[1].begin, 9);
        NT_CHECK_INT(spans[1].end, 11);
        const int32_t *forward = nt_passes_forward(passes, &count);
        NT_CHECK_UINT(count, 2);
        NT_CHECK_INT(forward[0], 2);
        NT_CHECK_INT(forward[1], 8);
        NT_CHECK_UINT(nt_passes_roles(passes)[4], NT_ROLE_BACKWARD);
        NT_CHECK_UINT(nt_passes_roles(passes)[5], NT_ROLE_REDUCE);
        NT_CHECK(!nt_passes_is_torch(passes, NT_NO_STACK));
        NT_CHECK(nt_passes_timeline(passes) == r.timeline);
    }
    nt_passes_free(passes);
    nt_trace_close(&r);
}

NT_TEST(passes_need_every_frame)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    nt_passes *passes = NULL;
    nt_error err = {0};
    if (passes_trace(&r)) {
        NT_CHECK_UINT(nt_passes_new(&r.alloc, r.timeline, says, 4, &passes, &err),
                      NT_ARGUMENT);
    }
    nt_trace_close(&r);
}

static nt_status
passes_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    nt_passes *passes = NULL;
    nt_error err = {0};
    const nt_status status = nt_passes_new(alloc, ctx, says, 5, &passes, &err);
    nt_passes_free(passes);
    return status;
}

NT_TEST(passes_survive_every_refused_allocation)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (passes_trace(&r)) {
        nt_test_sweep(t, passes_body, r.timeline);
    }
    nt_trace_close(&r);
}

const nt_test_case nt_passes_tests[] = {
    NT_CASE(role_of_a_stack_is_decided_by_its_frames),
    NT_CASE(passes_follow_from_roles),
    NT_CASE(passes_need_every_frame),
    NT_CASE(passes_survive_every_refused_allocation),
    NT_CASES_END,
};
