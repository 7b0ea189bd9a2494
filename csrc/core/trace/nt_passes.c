/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_passes.h"

#include "base/nt_map.h"

struct nt_passes {
    nt_alloc alloc;
    const nt_timeline *timeline;
    uint8_t *stack_role; /* by stack id */
    uint8_t *innermost;  /* by stack id: PASSES_TORCH, PASSES_INIT */
    size_t stacks;
    uint8_t *role; /* by event */
    size_t events;
    void *backward; /* nt_span */
    size_t backward_count, backward_capacity;
    void *forward; /* int32_t */
    size_t forward_count, forward_capacity;
};

/* Of a stack: its innermost frame is in PyTorch's files; its innermost frame outside of
 * them is an __init__. */
enum { PASSES_TORCH = 1, PASSES_INIT = 2 };

/* What the frames around a stack's innermost one amount to. */
typedef struct passes_outer {
    uint8_t user;      /* the stack's role if its innermost frame says nothing */
    uint8_t overrules; /* the nearest role that overrules others, or EMPTY */
    uint8_t reverse;   /* whether a backward pass is among them */
} passes_outer;

/* Where two frames say different things, the one that is decided by these. */
static bool
passes_overrules(uint8_t role)
{
    return role == NT_ROLE_BACKWARD || role == NT_ROLE_ZERO_GRAD ||
           role == NT_ROLE_STATE || role == NT_ROLE_SEED;
}

/* What stands whatever is around it: who made it is known by name. */
static bool
passes_is_final(uint8_t role)
{
    return role == NT_ROLE_BUCKET || role == NT_ROLE_GATHER || role == NT_ROLE_REDUCE ||
           role == NT_ROLE_WORKSPACE;
}

/* What `frame` says where it calls `inner` (0: nothing). *closed: what is around it
 * does not count. */
static uint8_t
passes_frame_role(uint16_t frame, uint16_t inner, bool *closed)
{
    const uint8_t role = frame & NT_FRAME_ROLE;
    *closed = (frame & NT_FRAME_ALGORITHM) && (inner & NT_FRAME_OUTSIDE);
    if (*closed) {
        return NT_ROLE_USER;
    }
    if ((frame & NT_FRAME_APPLIES) && (inner & NT_FRAME_REVERSE)) {
        return NT_ROLE_BACKWARD;
    }
    return role;
}

/* The role of a stack whose innermost frame has `role`, from what is around it. */
static uint8_t
passes_join(uint8_t role, const passes_outer *around)
{
    if (role == NT_ROLE_USER) {
        return around->user;
    }
    if (passes_overrules(role) || passes_is_final(role)) {
        return role;
    }
    if (role == NT_ROLE_MODULE || role == NT_ROLE_CACHE) {
        return around->reverse ? NT_ROLE_BACKWARD : role;
    }
    return around->overrules != NT_ROLE_EMPTY ? around->overrules : role;
}

/* What lies around a frame that `frame` calls; `inner` is that one. */
static passes_outer
passes_around(uint16_t frame, uint16_t inner, const passes_outer *around)
{
    bool closed;
    const uint8_t role = passes_frame_role(frame, inner, &closed);
    if (closed) {
        return (passes_outer){.user = NT_ROLE_USER};
    }
    passes_outer out = *around;
    out.user = passes_join(role, around);
    if (passes_overrules(role)) {
        out.overrules = role;
    }
    out.reverse |= role == NT_ROLE_BACKWARD;
    return out;
}

nt_role
nt_role_of(const uint16_t *frames, size_t count)
{
    if (count == 0) {
        return NT_ROLE_EMPTY;
    }
    passes_outer outer = {.user = NT_ROLE_USER};
    for (size_t i = count - 1; i > 0; i--) {
        outer = passes_around(frames[i], frames[i - 1], &outer);
    }
    bool closed;
    return passes_join(passes_frame_role(frames[0], 0, &closed), &outer);
}

/* Decides the role of every stack. A stack's caller has a smaller id than itself. */
static nt_status
passes_decide_stacks(nt_passes *p, const uint16_t *frames, nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(nt_timeline_snapshot(p->timeline));
    const uint32_t *innermost = nt_stacks_innermost(stacks);
    const uint32_t *parent = nt_stacks_parent(stacks);
    passes_outer *outer;
    NT_TRY(NT_NEW(&p->alloc, outer, p->stacks, err));
    outer[NT_EMPTY_STACK] = (passes_outer){.user = NT_ROLE_USER};
    p->stack_role[NT_EMPTY_STACK] = NT_ROLE_EMPTY;
    p->innermost[NT_EMPTY_STACK] = 0;
    for (size_t s = 1; s < p->stacks; s++) {
        const uint16_t frame = frames[innermost[s]];
        const uint32_t from = parent[s];
        outer[s] = outer[NT_EMPTY_STACK];
        if (from != NT_EMPTY_STACK) {
            outer[s] = passes_around(frames[innermost[from]], frame, &outer[from]);
        }
        bool closed;
        p->stack_role[s] = passes_join(passes_frame_role(frame, 0, &closed), &outer[s]);
        const bool init = frame & NT_FRAME_OUTSIDE ? frame & NT_FRAME_INIT
                                                   : p->innermost[from] & PASSES_INIT;
        p->innermost[s] = (uint8_t)((frame & NT_FRAME_TORCH ? PASSES_TORCH : 0) |
                                    (init ? PASSES_INIT : 0));
    }
    NT_RELEASE(&p->alloc, outer, p->stacks);
    return NT_OK;
}

static const uint32_t *
passes_columns(const nt_timeline *t, const uint8_t **action)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(t);
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    size_t first = 0, count;
    if (nt_timeline_device(t) >= 0 &&
        (size_t)nt_timeline_device(t) < nt_snapshot_trace_count(snapshot)) {
        nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(t), &first, &count);
    }
    *action = events->action + first;
    return events->stack + first;
}

static uint8_t
passes_role_of(const nt_passes *p, uint32_t stack)
{
    return stack == NT_NO_STACK ? NT_ROLE_EMPTY : p->stack_role[stack];
}

/* Gives each event its role; in a program that trains, no stack is backward's. */
static void
passes_decide_events(nt_passes *p, const uint32_t *stack)
{
    bool trains = false;
    for (size_t i = 0; i < p->events; i++) {
        const uint8_t role = passes_role_of(p, stack[i]);
        p->role[i] = role;
        trains |= role == NT_ROLE_SEED || role == NT_ROLE_BACKWARD ||
                  role == NT_ROLE_OPTIMIZER;
    }
    for (size_t i = 0; trains && i < p->events; i++) {
        if (p->role[i] == NT_ROLE_EMPTY) {
            p->role[i] = NT_ROLE_BACKWARD;
        }
    }
}

/* Where frees have no stacks of their own, gives them, and what has none, the role of
 * the allocation before it. */
static void
passes_carry_over(nt_passes *p, const uint32_t *stack, const uint8_t *action)
{
    const uint32_t *rows = nt_timeline_event_allocations(p->timeline);
    uint8_t before = NT_ROLE_EMPTY;
    for (size_t i = 0; i < p->events; i++) {
        if (action[i] == NT_ACTION_ALLOC) {
            before = p->role[i];
        } else if (rows[i] != NT_NONE || stack[i] == NT_NO_STACK) {
            p->role[i] = before;
        }
    }
}

static bool
passes_is_reverse(uint8_t role)
{
    return role == NT_ROLE_BACKWARD || role == NT_ROLE_SEED;
}

/* What divides one backward pass from the next even where nothing is allocated. */
static bool
passes_divides(uint8_t role)
{
    return role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE ||
           role == NT_ROLE_ZERO_GRAD || role == NT_ROLE_MODULE;
}

static nt_status
passes_add_backward(nt_passes *p, nt_span span, nt_error *err)
{
    NT_TRY(nt_grow(&p->alloc, &p->backward, &p->backward_capacity,
                   p->backward_count + 1, sizeof span, err));
    ((nt_span *)p->backward)[p->backward_count++] = span;
    return NT_OK;
}

/* Finds the backward passes: runs of events in one, joined over what allocates nothing
 * (another thread's lines and the scaler's may come between; a pass ends where the
 * program goes on) and over what is made for passes of either direction, without those
 * that allocate nothing themselves. */
static nt_status
passes_find_backward(nt_passes *p, const uint8_t *action, nt_error *err)
{
    nt_span pass = {-1, -1};
    bool fills = false, parted = false;
    for (size_t i = 0; i < p->events; i++) {
        const bool allocates = action[i] == NT_ACTION_ALLOC;
        if (passes_is_final(p->role[i])) {
            continue;
        }
        if (!passes_is_reverse(p->role[i])) {
            parted |= allocates || passes_divides(p->role[i]);
            continue;
        }
        if (pass.begin < 0 || parted) {
            if (fills) {
                NT_TRY(passes_add_backward(p, pass, err));
            }
            pass.begin = (int32_t)i;
            fills = false;
        }
        pass.end = (int32_t)i + 1;
        fills |= allocates;
        parted = false;
    }
    return fills ? passes_add_backward(p, pass, err) : NT_OK;
}

static nt_status
passes_find_forward(nt_passes *p, const uint8_t *action, nt_error *err)
{
    for (size_t i = 0; i < p->events; i++) {
        const bool inside = p->role[i] == NT_ROLE_MODULE || p->role[i] == NT_ROLE_CACHE;
        if (inside && action[i] == NT_ACTION_ALLOC) {
            NT_TRY(nt_grow(&p->alloc, &p->forward, &p->forward_capacity,
                           p->forward_count + 1, sizeof(int32_t), err));
            ((int32_t *)p->forward)[p->forward_count++] = (int32_t)i;
        }
    }
    return NT_OK;
}

nt_status
nt_passes_new(const nt_alloc *alloc, const nt_timeline *timeline,
              const uint16_t *frames, size_t frame_count, nt_passes **out,
              nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(nt_timeline_snapshot(timeline));
    if (frame_count != nt_stacks_frame_count(stacks)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "passes need what each frame of the snapshot says");
    }
    nt_passes *p;
    NT_TRY(NT_NEW(alloc, p, 1, err));
    *p = (nt_passes){.alloc = *alloc, .timeline = timeline};
    p->stacks = nt_stacks_count(stacks);
    p->events = nt_timeline_event_count(timeline);
    p->stack_role = nt_allocate(alloc, p->stacks);
    p->innermost = nt_allocate(alloc, p->stacks);
    p->role = nt_allocate(alloc, p->events);
    nt_status status = NT_OK;
    if (p->stack_role == NULL || p->innermost == NULL ||
        (p->events != 0 && p->role == NULL)) {
        status = nt_fail_nomem(err);
        goto done;
    }
    NT_TRY_DONE(passes_decide_stacks(p, frames, err));
    if (p->events != 0) {
        const uint8_t *action;
        const uint32_t *stack = passes_columns(timeline, &action);
        passes_decide_events(p, stack);
        if (!nt_timeline_facts(timeline)->frees_known) {
            passes_carry_over(p, stack, action);
        }
        NT_TRY_DONE(passes_find_backward(p, action, err));
        NT_TRY_DONE(passes_find_forward(p, action, err));
    }
done:
    if (status != NT_OK) {
        nt_passes_free(p);
        return status;
    }
    *out = p;
    return NT_OK;
}

void
nt_passes_free(nt_passes *passes)
{
    if (passes == NULL) {
        return;
    }
    const nt_alloc alloc = passes->alloc;
    nt_release(&alloc, passes->stack_role, passes->stacks);
    nt_release(&alloc, passes->innermost, passes->stacks);
    nt_release(&alloc, passes->role, passes->events);
    nt_release(&alloc, passes->backward, passes->backward_capacity * sizeof(nt_span));
    nt_release(&alloc, passes->forward, passes->forward_capacity * sizeof(int32_t));
    nt_release(&alloc, passes, sizeof *passes);
}

const nt_timeline *
nt_passes_timeline(const nt_passes *passes)
{
    return passes->timeline;
}

nt_role
nt_passes_stack_role(const nt_passes *passes, uint32_t stack)
{
    return (nt_role)passes_role_of(passes, stack);
}

const uint8_t *
nt_passes_roles(const nt_passes *passes)
{
    return passes->role;
}

const nt_span *
nt_passes_backward(const nt_passes *passes, size_t *count)
{
    *count = passes->backward_count;
    return passes->backward;
}

const int32_t *
nt_passes_forward(const nt_passes *passes, size_t *count)
{
    *count = passes->forward_count;
    return passes->forward;
}

bool
nt_passes_is_torch(const nt_passes *passes, uint32_t stack)
{
    return stack != NT_NO_STACK && (passes->innermost[stack] & PASSES_TORCH);
}

bool
nt_passes_is_init(const nt_passes *passes, uint32_t stack)
{
    return stack != NT_NO_STACK && (passes->innermost[stack] & PASSES_INIT);
}
