/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "leak/nt_steps_parts.h"

static bool
steps_is_backward(uint8_t role)
{
    return role == NT_ROLE_BACKWARD || role == NT_ROLE_SEED;
}

static bool
steps_is_optimizer(uint8_t role)
{
    return role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE ||
           role == NT_ROLE_ZERO_GRAD || role == NT_ROLE_SCALER;
}

/* Whether something is allocated in events first .. end - 1. */
static bool
steps_allocate(const steps_work *w, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        if (nt_steps_allocates(w, i)) {
            return true;
        }
    }
    return false;
}

/* Whether an optimizer or a module works in events first .. end - 1. */
static bool
steps_go_on(const steps_work *w, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        const uint8_t role = w->role[i];
        if (role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE ||
            role == NT_ROLE_ZERO_GRAD || role == NT_ROLE_MODULE) {
            return true;
        }
    }
    return false;
}

/* Another thread's lines and the scaler's may come between: runs with nothing but frees
 * between them are one pass, unless training went on there. */
static nt_status
steps_add_pass(steps_work *w, size_t first, size_t end, nt_error *err)
{
    if (w->pass_count > 0) {
        steps_pass *last = &w->passes[w->pass_count - 1];
        if (!steps_allocate(w, last->end, first) && !steps_go_on(w, last->end, first)) {
            last->end = (uint32_t)end;
            return NT_OK;
        }
    }
    NT_TRY(nt_grow(&w->alloc, (void **)&w->passes, &w->pass_capacity, w->pass_count + 1,
                   sizeof *w->passes, err));
    w->passes[w->pass_count++] = (steps_pass){(uint32_t)first, (uint32_t)end};
    return NT_OK;
}

nt_status
nt_steps_find_passes(steps_work *w, nt_error *err)
{
    for (size_t i = 0; i < w->count; i++) {
        const size_t first = i;
        while (i < w->count && steps_is_backward(w->role[i])) {
            i++;
        }
        if (i > first) {
            NT_TRY(steps_add_pass(w, first, i, err));
        }
    }
    size_t kept = 0;
    for (size_t k = 0; k < w->pass_count; k++) {
        if (steps_allocate(w, w->passes[k].first, w->passes[k].end)) {
            w->passes[kept++] = w->passes[k];
        }
    }
    w->pass_count = kept;
    return NT_OK;
}

/* Where the first step begins: after the making of the model. */
static size_t
steps_first(const steps_work *w)
{
    for (size_t i = w->passes[0].first; i-- > 0;) {
        if (w->role[i] == NT_ROLE_BUILD) {
            return i + 1;
        }
    }
    return 0;
}

/* How many passes begin before an event; `known` is how many begin before an earlier.
 */
static size_t
steps_passes_before(const steps_work *w, size_t event, size_t known)
{
    while (known < w->pass_count && w->passes[known].first < event) {
        known++;
    }
    return known;
}

/* Whether a module allocates from `event` on. */
static bool
steps_has_forward(const steps_work *w, size_t event)
{
    for (size_t i = event; i < w->count; i++) {
        if (w->role[i] == NT_ROLE_MODULE && nt_steps_allocates(w, i)) {
            return true;
        }
    }
    return false;
}

/* What nt_steps_end_at knows of the steps so far. */
typedef struct steps_ends {
    size_t edge;   /* the last one */
    size_t passes; /* that begin before it */
} steps_ends;

static nt_status
steps_begin(steps_work *w, steps_ends *ends, nt_error *err)
{
    ends->edge = steps_first(w);
    ends->passes = steps_passes_before(w, ends->edge, 0);
    return nt_steps_add_edge(w, ends->edge, err);
}

/* A step ends at the first allocation from `end` on that is not the optimizer's, if a
 * backward pass is in it. */
static nt_status
steps_end_at(steps_work *w, steps_ends *ends, size_t end, nt_error *err)
{
    size_t edge = end > ends->edge ? end : ends->edge;
    while (edge < w->count &&
           (!nt_steps_allocates(w, edge) || steps_is_optimizer(w->role[edge]))) {
        edge++;
    }
    const size_t passes = steps_passes_before(w, edge, ends->passes);
    if (passes > ends->passes) {
        *ends = (steps_ends){edge, passes};
        return nt_steps_add_edge(w, edge, err);
    }
    return NT_OK;
}

/* The last step has what is left, if no module is called any more. */
static void
steps_finish(steps_work *w)
{
    if (w->edge_count > 1 && !steps_has_forward(w, w->edges[w->edge_count - 1])) {
        w->edges[w->edge_count - 1] = (uint32_t)w->count;
    }
}

/* By PyTorch's own ranges, as long as their ends come one after the other. */
static nt_status
steps_by_ranges(steps_work *w, bool *found, nt_error *err)
{
    static const char step[] = "Optimizer.step#";
    const nt_annotation_columns *ranges = nt_snapshot_annotations(w->snapshot);
    steps_ends ends = {0, 0};
    *found = false;
    if (w->time_us == NULL || w->time_us[0] == 0) {
        return NT_OK;
    }
    for (size_t i = 0; i < ranges->count; i++) {
        size_t length = 0;
        if (ranges->stage[i] != NT_STAGE_END || ranges->name[i] == NT_NONE) {
            continue;
        }
        const char *name =
            nt_strings_get(nt_snapshot_strings(w->snapshot), ranges->name[i], &length);
        if (length < sizeof step - 1 || memcmp(name, step, sizeof step - 1) != 0) {
            continue;
        }
        if (!*found) {
            NT_TRY(steps_begin(w, &ends, err));
            *found = true;
        }
        const int64_t at = ranges->time_us[i];
        const size_t end = at == INT64_MAX ? w->count : nt_steps_at_time(w, at + 1);
        NT_TRY(steps_end_at(w, &ends, end, err));
    }
    return NT_OK;
}

nt_status
nt_steps_by_optimizer(steps_work *w, nt_error *err)
{
    bool found = false;
    if (w->pass_count == 0) {
        return NT_OK;
    }
    NT_TRY(steps_by_ranges(w, &found, err));
    if (!found) {
        steps_ends ends = {0, 0};
        NT_TRY(steps_begin(w, &ends, err));
        for (size_t i = 0; i < w->count; i++) {
            const uint8_t role = w->role[i];
            const uint8_t next = i + 1 < w->count ? w->role[i + 1] : NT_ROLE_EMPTY;
            const bool works = role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE;
            if (works && next != NT_ROLE_OPTIMIZER && next != NT_ROLE_STATE &&
                i + 1 >= ends.edge) {
                NT_TRY(steps_end_at(w, &ends, i + 1, err));
            }
        }
    }
    steps_finish(w);
    return NT_OK;
}

nt_status
nt_steps_by_backward(steps_work *w, nt_error *err)
{
    steps_ends ends;
    if (w->pass_count == 0) {
        return NT_OK;
    }
    NT_TRY(steps_begin(w, &ends, err));
    for (size_t k = 0; k < w->pass_count; k++) {
        NT_TRY(steps_end_at(w, &ends, w->passes[k].end, err));
    }
    steps_finish(w);
    return NT_OK;
}
