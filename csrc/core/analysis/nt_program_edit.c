/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that differ from what was recorded. */
#include "analysis/nt_program_state.h"

#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_rounding.h"

typedef struct program_editor {
    program *p; /* the copy */
    const nt_program_change *change;
    uint8_t *gone; /* by slot: its block was left out, or freed already */
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

static nt_status
program_put_request(program_editor *e, const nt_program_step *from)
{
    const nt_program_change *change = e->change;
    nt_program_step step = *from;
    const bool has_block = step.kind == NT_PROGRAM_MALLOC;
    if (change->sizes != NULL) {
        step.size = change->sizes[step.event];
    }
    if (step.size > NT_LARGEST_REQUEST) {
        return nt_fail(e->err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a request is larger than the allocator takes");
    }
    if (has_block) {
        e->gone[step.slot] = step.size == 0;
    }
    if (step.size == 0) {
        return NT_OK;
    }
    NT_TRY(program_put(e, &step));
    if (!has_block || change->freed == NULL || change->freed[step.event] == 0) {
        return NT_OK;
    }
    e->gone[step.slot] = 1;
    step.kind = NT_PROGRAM_FREE;
    step.event++; /* as of a free that takes two events */
    return program_put(e, &step);
}

static nt_status
program_put_steps(program_editor *e, const nt_program *from)
{
    for (size_t i = 0; i < from->step_count; i++) {
        const nt_program_step *step = &from->steps[i];
        NT_TRY(program_put_calls(e, step->event));
        if (step->kind == NT_PROGRAM_MALLOC || step->kind == NT_PROGRAM_OOM) {
            NT_TRY(program_put_request(e, step));
        } else if (step->slot == NT_NONE || e->gone[step->slot] == 0) {
            NT_TRY(program_put(e, step));
        }
    }
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

nt_status
nt_program_edit(const nt_alloc *alloc, const nt_program *from,
                const nt_program_change *change, nt_program **out, nt_error *err)
{
    NT_TRY(program_check_calls(from, change, err));
    program *p = nt_allocate(alloc, sizeof *p);
    uint8_t *gone = nt_allocate(alloc, from->slot_count);
    nt_status status = NT_OK;
    if (p == NULL || (gone == NULL && from->slot_count != 0)) {
        status = nt_fail_nomem(err);
        goto done;
    }
    if (gone != NULL) {
        memset(gone, 0, from->slot_count);
    }
    /* All but the steps is shared with `from`. */
    *p = (program){.face = *from, .alloc = *alloc};
    p->face.step_count = 0;
    program_editor e = {.p = p, .change = change, .gone = gone, .err = err};
    status = program_put_steps(&e, from);
    p->face.steps = p->steps;
    if (status == NT_OK) {
        *out = &p->face;
    } else {
        nt_program_free(&p->face);
    }
    p = NULL;
done:
    nt_release(alloc, gone, from->slot_count);
    nt_release(alloc, p, sizeof *p);
    return status;
}
