/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_steps.h"

#include "leak/nt_steps_parts.h"

nt_status
nt_steps_add_edge(steps_work *w, size_t event, nt_error *err)
{
    if (w->edge_count > 0 && w->edges[w->edge_count - 1] >= event) {
        return NT_OK;
    }
    NT_TRY(nt_grow(&w->alloc, (void **)&w->edges, &w->edge_capacity, w->edge_count + 1,
                   sizeof *w->edges, err));
    w->edges[w->edge_count++] = (uint32_t)event;
    return NT_OK;
}

bool
nt_steps_has(steps_work *w, size_t least)
{
    if (w->edge_count <= least) {
        w->edge_count = 0;
        w->text = w->frame = NT_NONE;
        return false;
    }
    return true;
}

size_t
nt_steps_at_time(const steps_work *w, int64_t time_us)
{
    size_t low = 0, high = w->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (w->time_us[middle] < time_us) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool
nt_steps_are_outside(const steps_work *w)
{
    size_t outside = 0;
    for (size_t k = 0; k + 1 < w->edge_count; k++) {
        size_t event = w->edges[k];
        while (event < w->edges[k + 1] &&
               !(nt_steps_allocates(w, event) &&
                 (w->role[event] == NT_ROLE_USER || w->role[event] == NT_ROLE_EMPTY))) {
            event++;
        }
        outside += event < w->edges[k + 1];
    }
    return 2 * outside >= w->edge_count - 1;
}

size_t
nt_steps_mark_stacks(const nt_snapshot *snapshot, size_t device, uint8_t *marks)
{
    const uint32_t *stack = nt_snapshot_events(snapshot)->stack;
    size_t first, count, found = 0;
    nt_snapshot_trace(snapshot, device, &first, &count);
    for (size_t i = first; i < first + count; i++) {
        if (stack[i] != NT_NO_STACK && marks[stack[i]] == 0) {
            marks[stack[i]] = 1;
            found++;
        }
    }
    return found;
}

/*
 * Each event's role. Autograd's threads have no Python frames: where the trace has a
 * backward pass, events without a stack are of it.
 */
static nt_status
steps_set_roles(steps_work *w, const uint8_t *roles, nt_error *err)
{
    bool trains = false;
    w->role = nt_allocate(&w->alloc, w->count);
    if (w->role == NULL) {
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < w->count; i++) {
        const uint8_t role =
            w->stack[i] == NT_NO_STACK ? NT_ROLE_EMPTY : roles[w->stack[i]];
        w->role[i] = role;
        trains |= role == NT_ROLE_SEED || role == NT_ROLE_BACKWARD ||
                  role == NT_ROLE_OPTIMIZER;
    }
    for (size_t i = 0; trains && i < w->count; i++) {
        w->role[i] = w->role[i] == NT_ROLE_EMPTY ? NT_ROLE_BACKWARD : w->role[i];
    }
    return NT_OK;
}

typedef nt_status (*steps_finder)(steps_work *w, nt_error *err);

/* Tries one kind of evidence after the other. A trace with a backward pass, but not
 * with steps of any, is of one step: what recurs in it are the layers. */
static nt_status
steps_search(steps_work *w, nt_steps_how *how, nt_error *err)
{
    static const steps_finder finders[NT_STEPS_HOW_COUNT] = {
        [NT_STEPS_METADATA] = nt_steps_by_metadata,
        [NT_STEPS_ANNOTATIONS] = nt_steps_by_annotations,
        [NT_STEPS_OPTIMIZER] = nt_steps_by_optimizer,
        [NT_STEPS_BACKWARD] = nt_steps_by_backward,
        [NT_STEPS_LOOP] = nt_steps_by_loop,
        [NT_STEPS_RHYTHM] = nt_steps_by_rhythm,
    };
    NT_TRY(nt_steps_find_passes(w, err));
    *how = NT_STEPS_NONE;
    for (int one = NT_STEPS_METADATA; one < NT_STEPS_HOW_COUNT; one++) {
        if (one >= NT_STEPS_LOOP && w->pass_count != 0) {
            return NT_OK;
        }
        NT_TRY(finders[one](w, err));
        const bool is_loop = one >= NT_STEPS_LOOP;
        if (nt_steps_has(w, is_loop ? NT_STEPS_LEAST_LOOP : NT_STEPS_LEAST)) {
            *how = (nt_steps_how)one;
            return NT_OK;
        }
    }
    return NT_OK;
}

static steps_work
steps_open(const nt_alloc *alloc, const nt_snapshot *snapshot, size_t device)
{
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    size_t first, count;
    nt_snapshot_trace(snapshot, device, &first, &count);
    steps_work w = {.alloc = *alloc, .snapshot = snapshot, .count = count};
    w.text = w.frame = NT_NONE;
    if (count != 0) {
        w.action = events->action + first;
        w.stack = events->stack + first;
        w.size = events->size + first;
        w.time_us = events->time_us == NULL ? NULL : events->time_us + first;
        w.user_metadata =
            events->user_metadata == NULL ? NULL : events->user_metadata + first;
    }
    return w;
}

nt_status
nt_steps_find(const nt_alloc *alloc, const nt_snapshot *snapshot, size_t device,
              const uint8_t *roles, nt_steps *out, nt_error *err)
{
    steps_work w = steps_open(alloc, snapshot, device);
    nt_steps found = {.alloc = *alloc, .text = NT_NONE, .frame = NT_NONE};
    nt_status status = NT_OK;
    if (w.count != 0) {
        status = steps_set_roles(&w, roles, err);
        if (status == NT_OK) {
            status = steps_search(&w, &found.how, err);
        }
    }
    if (status == NT_OK && found.how != NT_STEPS_NONE) {
        nt_shrink(alloc, (void **)&w.edges, &w.edge_capacity, w.edge_count,
                  sizeof *w.edges);
        found.count = w.edge_count - 1;
        found.edges = nt_allocate(alloc, w.edge_count * sizeof *w.edges);
        status = found.edges == NULL ? nt_fail_nomem(err) : NT_OK;
        for (size_t k = 0; status == NT_OK && k < w.edge_count; k++) {
            found.edges[k] = w.edges[k];
        }
        found.text = w.text;
        found.frame = w.frame;
    }
    nt_release(alloc, w.role, w.count);
    nt_release(alloc, w.passes, w.pass_capacity * sizeof *w.passes);
    nt_release(alloc, w.edges, w.edge_capacity * sizeof *w.edges);
    if (status == NT_OK) {
        *out = found;
    }
    return status;
}

void
nt_steps_clear(nt_steps *steps)
{
    if (steps->edges != NULL) {
        nt_release(&steps->alloc, steps->edges,
                   (steps->count + 1) * sizeof *steps->edges);
    }
    *steps = (nt_steps){.alloc = steps->alloc, .text = NT_NONE, .frame = NT_NONE};
}
