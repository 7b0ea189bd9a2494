/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of nt_steps share. Events count within the device's trace. */
#ifndef NT_STEPS_PARTS_H
#define NT_STEPS_PARTS_H

#include "leak/nt_steps.h"

/* Fewer steps than these are no evidence of a loop, and no steps at all. */
enum { NT_STEPS_LEAST_LOOP = 3, NT_STEPS_LEAST = 2 };

/* Events of one backward pass: first .. end - 1. */
typedef struct steps_pass {
    uint32_t first, end;
} steps_pass;

typedef struct steps_work {
    nt_alloc alloc;
    const nt_snapshot *snapshot;
    size_t count; /* events */
    const uint8_t *action;
    const uint32_t *stack;
    const uint64_t *size;
    const int64_t *time_us;        /* or NULL */
    const uint32_t *user_metadata; /* or NULL */
    uint8_t *role;                 /* of each event */
    steps_pass *passes;            /* backward, in order and apart */
    size_t pass_count, pass_capacity;
    uint32_t *edges; /* of the steps found so far, and at last where they end */
    size_t edge_count, edge_capacity;
    uint32_t text, frame;
} steps_work;

static inline bool
nt_steps_allocates(const steps_work *w, size_t event)
{
    return w->action[event] == NT_ACTION_ALLOC;
}

/* Appends an edge, unless it is not above the one before. */
nt_status
nt_steps_add_edge(steps_work *w, size_t event, nt_error *err) NT_CHECKED;

/* Whether w->edges are so many steps at least; else there are none any more. */
bool
nt_steps_has(steps_work *w, size_t least);

/* The first event at or after a time, in a trace with times. */
size_t
nt_steps_at_time(const steps_work *w, int64_t time_us);

/* nt_steps_texts.c: steps that the program names. Each leaves edges, or none. */
nt_status
nt_steps_by_metadata(steps_work *w, nt_error *err) NT_CHECKED;
nt_status
nt_steps_by_annotations(steps_work *w, nt_error *err) NT_CHECKED;

/* nt_steps_passes.c: w->passes, and the steps that end with them or the optimizer's. */
nt_status
nt_steps_find_passes(steps_work *w, nt_error *err) NT_CHECKED;
nt_status
nt_steps_by_optimizer(steps_work *w, nt_error *err) NT_CHECKED;
nt_status
nt_steps_by_backward(steps_work *w, nt_error *err) NT_CHECKED;

/* nt_steps_loop.c: the outermost loop of the program's own lines. */
nt_status
nt_steps_by_loop(steps_work *w, nt_error *err) NT_CHECKED;

/* nt_steps_rhythm.c: the shortest run of events that the trace ends by repeating. */
nt_status
nt_steps_by_rhythm(steps_work *w, nt_error *err) NT_CHECKED;

/* Whether half of the steps at least allocate something of their own, outside of
 * modules: what does not is the layers of a module. */
bool
nt_steps_are_outside(const steps_work *w);

#endif
