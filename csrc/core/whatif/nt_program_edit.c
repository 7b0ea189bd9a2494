/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that differ from what was recorded. */
#include "whatif/nt_program_state.h"

#include "base/nt_columns.h"
#include "trace/nt_rounding.h"

typedef struct program_editor {
    program *p; /* the copy */
    const nt_program_change *change;
    size_t events;
    uint8_t *gone;    /* by slot: its block was left out, or freed already */
    int32_t *owners;  /* by slot: the request whose block it is, or NT_EVENT_NEVER */
    uint32_t *slots;  /* by event: the slot of the block that it made */
    int32_t *first;   /* by event: a request whose block ends after it */
    int32_t *others;  /* by request: another one that ends with it */
    int32_t next_end; /* blocks that end after earlier events are freed */
    size_t next_call;
    nt_error *err;
} program_editor;

static nt_status
program_put(program_editor *e, const nt_program_step *step)
{
    program *p = e->p;
    NT_TRY(nt_grow(&p->alloc, (void **)&p->steps, &p->step_capacity,
                   p->face.step_count + 1, sizeof *p->steps, e->err));
    p->steps[p->face.step_count++] = *step;
    return NT_OK;
}

/* The calls of empty_cache() that come before event `event`. */
static nt_status
program_put_calls(program_editor *e, int32_t event)
{
    const nt_program_change *change = e->change;
    while (e->next_call < change->call_count && change->calls[e->next_call] < event) {
        const nt_program_step call = {
            .slot = NT_NONE,
            .event = change->calls[e->next_call++],
            .kind = NT_PROGRAM_EMPTY_CACHE,
        };
        NT_TRY(program_put(e, &call));
    }
    return NT_OK;
}

/* Frees the blocks that end before event `event`. */
static nt_status
program_put_ends(program_editor *e, int32_t event)
{
    if (e->change->ends == NULL) {
        return NT_OK;
    }
    for (; e->next_end < event && (size_t)e->next_end < e->events; e->next_end++) {
        for (int32_t i = e->first[e->next_end]; i != NT_EVENT_NEVER; i = e->others[i]) {
            const uint32_t slot = e->slots[i];
            if (slot == NT_NONE || e->owners[slot] != i || e->gone[slot] != 0) {
                continue;
            }
            const nt_program_step step = {
                .slot = slot,
                .event = e->next_end + 1, /* as of a free that takes two events */
                .kind = NT_PROGRAM_FREE,
            };
            e->gone[slot] = 1;
            NT_TRY(program_put(e, &step));
        }
    }
    return NT_OK;
}

/* Notes whose block is in a slot, after a step of the program. */
static void
program_note_owner(program_editor *e, const nt_program_step *step)
{
    if (e->change->ends == NULL || step->slot == NT_NONE) {
        return;
    }
    const bool is_made = step->kind == NT_PROGRAM_MALLOC && e->gone[step->slot] == 0;
    e->owners[step->slot] = is_made ? step->event : NT_EVENT_NEVER;
    if (is_made) {
        e->slots[step->event] = step->slot;
    }
}

static nt_status
program_put_request(program_editor *e, const nt_program_step *from)
{
    const nt_program_change *change = e->change;
    nt_program_step step = *from;
    if (change->sizes != NULL) {
        step.size = change->sizes[step.event];
    }
    if (step.size > NT_LARGEST_REQUEST) {
        return nt_fail(e->err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a request is larger than the allocator takes");
    }
    if (step.kind == NT_PROGRAM_MALLOC) {
        e->gone[step.slot] = step.size == 0;
    }
    return step.size == 0 ? NT_OK : program_put(e, &step);
}

static nt_status
program_put_steps(program_editor *e, const nt_program *from)
{
    for (size_t i = 0; i < from->step_count; i++) {
        const nt_program_step *step = &from->steps[i];
        NT_TRY(program_put_ends(e, step->event));
        NT_TRY(program_put_calls(e, step->event));
        if (step->kind == NT_PROGRAM_MALLOC || step->kind == NT_PROGRAM_OOM) {
            NT_TRY(program_put_request(e, step));
        } else if (step->slot == NT_NONE || e->gone[step->slot] == 0) {
            NT_TRY(program_put(e, step));
        }
        program_note_owner(e, step);
    }
    NT_TRY(program_put_ends(e, INT32_MAX));
    return program_put_calls(e, INT32_MAX);
}

static nt_status
program_check_calls(const nt_program *program, const nt_program_change *change,
                    nt_error *err)
{
    const int64_t count = (int64_t)nt_timeline_event_count(program->timeline);
    int64_t last = 0;
    for (size_t i = 0; i < change->call_count; i++) {
        if (change->calls[i] < last || change->calls[i] >= count) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                           "no call can be after event %d in this place",
                           (int)change->calls[i]);
        }
        last = change->calls[i];
    }
    return NT_OK;
}

/* Sorts the requests by where their blocks end. */
static nt_status
program_sort_ends(program_editor *e)
{
    const int32_t *ends = e->change->ends;
    for (size_t i = 0; i < e->events; i++) {
        e->first[i] = NT_EVENT_NEVER;
        e->slots[i] = NT_NONE;
    }
    for (size_t i = e->events; i-- > 0;) {
        if (ends[i] == NT_EVENT_NEVER) {
            continue;
        }
        if (ends[i] < (int32_t)i || (size_t)ends[i] >= e->events) {
            return nt_fail(e->err, NT_ARGUMENT, NT_NO_OFFSET,
                           "no block can be made by event %zu and end after event %d",
                           i, (int)ends[i]);
        }
        e->others[i] = e->first[ends[i]];
        e->first[ends[i]] = (int32_t)i;
    }
    return NT_OK;
}

/* Room for what the editor keeps. */
static nt_status
program_open_editor(program_editor *e, const nt_alloc *alloc, size_t slots)
{
    const bool has_ends = e->change->ends != NULL;
    const size_t events = has_ends ? e->events : 0, owned = has_ends ? slots : 0;
    e->gone = nt_allocate(alloc, slots);
    e->owners = nt_allocate(alloc, owned * sizeof *e->owners);
    e->slots = nt_allocate(alloc, events * sizeof *e->slots);
    e->first = nt_allocate(alloc, events * sizeof *e->first);
    e->others = nt_allocate(alloc, events * sizeof *e->others);
    if ((slots != 0 && e->gone == NULL) || (owned != 0 && e->owners == NULL) ||
        (events != 0 && (e->slots == NULL || e->first == NULL || e->others == NULL))) {
        return nt_fail_nomem(e->err);
    }
    for (size_t i = 0; i < slots; i++) {
        e->gone[i] = 0;
    }
    for (size_t i = 0; i < owned; i++) {
        e->owners[i] = NT_EVENT_NEVER;
    }
    return has_ends ? program_sort_ends(e) : NT_OK;
}

static void
program_close_editor(program_editor *e, const nt_alloc *alloc, size_t slots)
{
    const bool has_ends = e->change->ends != NULL;
    const size_t events = has_ends ? e->events : 0, owned = has_ends ? slots : 0;
    nt_release(alloc, e->gone, slots);
    nt_release(alloc, e->owners, owned * sizeof *e->owners);
    nt_release(alloc, e->slots, events * sizeof *e->slots);
    nt_release(alloc, e->first, events * sizeof *e->first);
    nt_release(alloc, e->others, events * sizeof *e->others);
}

nt_status
nt_program_edit(const nt_alloc *alloc, const nt_program *from,
                const nt_program_change *change, nt_program **out, nt_error *err)
{
    NT_TRY(program_check_calls(from, change, err));
    program *p = nt_allocate(alloc, sizeof *p);
    if (p == NULL) {
        return nt_fail_nomem(err);
    }
    /* All but the steps is shared with `from`. */
    *p = (program){.face = *from, .alloc = *alloc};
    p->face.step_count = 0;
    program_editor e = {
        .p = p,
        .change = change,
        .events = nt_timeline_event_count(from->timeline),
        .err = err,
    };
    nt_status status = program_open_editor(&e, alloc, from->slot_count);
    if (status == NT_OK) {
        status = program_put_steps(&e, from);
    }
    program_close_editor(&e, alloc, from->slot_count);
    p->face.steps = p->steps;
    if (status == NT_OK) {
        *out = &p->face;
    } else {
        nt_program_free(&p->face);
    }
    return status;
}
