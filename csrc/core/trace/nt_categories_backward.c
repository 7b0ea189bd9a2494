/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_categories_state.h"

/* The share of bytes that must have the same number of copies, as 1 / 20ths. */
#define CATEGORIES_AGREEING 19
/* Numbers of copies that are told apart. */
#define CATEGORIES_COPIES 8

/* The sizes that modules made and keep, and those of all that is kept. */
static nt_status
backward_known(categories *c)
{
    const nt_allocation_columns *a = c->a;
    for (size_t row = 0; row < a->count; row++) {
        if (a->free_event[row] != NT_EVENT_NEVER) {
            continue;
        }
        const bool before = row < c->first;
        const bool made = categories_role(c, row) == NT_ROLE_BUILD;
        if (made) {
            NT_TRY(nt_categories_count(c, &c->built, a->requested_size[row]));
        }
        if (made || before) {
            NT_TRY(nt_categories_count(c, &c->known, a->requested_size[row]));
        }
    }
    return NT_OK;
}

/*
 * Drops workspaces from the survivors of one pass, rows first .. end - 1. What is as
 * large as a workspace and never freed may be one. The pass keeps as many of these as
 * modules have built tensors of that size, the last ones: a workspace is made by the
 * first operation that needs it.
 */
static void
backward_drop_workspaces(categories *c, size_t first, size_t end)
{
    const nt_allocation_columns *a = c->a;
    uint32_t left[NT_WORKSPACES] = {0};
    for (size_t row = first; row < end; row++) {
        const size_t kind = nt_categories_workspace(a->requested_size[row]);
        if (kind < NT_WORKSPACES && c->rules[row] == NT_RULE_SURVIVES_BACKWARD &&
            a->free_event[row] < 0) {
            left[kind]++;
        }
    }
    for (size_t row = first; row < end; row++) {
        const uint64_t asked = a->requested_size[row];
        const size_t kind = nt_categories_workspace(asked);
        if (kind < NT_WORKSPACES && c->rules[row] == NT_RULE_SURVIVES_BACKWARD &&
            a->free_event[row] < 0 &&
            left[kind] > nt_categories_counted(&c->built, asked)) {
            c->rules[row] = NT_RULE_WORKSPACE;
            left[kind]--;
        }
    }
}

/* Marks what backward passes make: what outlives its pass as a gradient for now. */
static void
backward_survivors(categories *c)
{
    const nt_allocation_columns *a = c->a;
    size_t pass = SIZE_MAX, first = c->first;
    for (size_t row = c->first; row < a->count; row++) {
        if (categories_role(c, row) != NT_ROLE_BACKWARD) {
            continue;
        }
        const int32_t freed = a->free_event[row];
        const size_t at = nt_categories_pass(c, a->alloc_event[row]);
        if (at == SIZE_MAX) {
            continue;
        }
        if (at != pass) {
            backward_drop_workspaces(c, first, row);
            pass = at;
            first = row;
        }
        if (freed >= 0 && freed <= c->spans[at].end) {
            c->rules[row] = c->rules[row] ? c->rules[row] : NT_RULE_INSIDE_BACKWARD;
        } else {
            c->rules[row] = NT_RULE_SURVIVES_BACKWARD;
        }
    }
    backward_drop_workspaces(c, first, a->count);
}

/* Whether what survives a pass is a gradient: zero_grad() frees it, or a parameter, or
 * what other passes leave, has its size. */
static bool
backward_is_gradient(const categories *c, size_t row)
{
    const uint64_t size = c->a->requested_size[row];
    const int32_t freed = c->a->free_event[row];
    return (freed >= 0 && c->role[freed] == NT_ROLE_ZERO_GRAD) || c->span_count == 1 ||
           nt_map_find(&c->known, size) != NT_NONE ||
           nt_categories_counted(&c->seen, size) > 1;
}

/* Decides about the survivors of one pass, rows first .. end - 1. */
static nt_status
backward_pass(categories *c, size_t first, size_t end)
{
    nt_map kept;
    nt_map_init(&kept, c->alloc);
    uint64_t bytes = 0;
    nt_status status = NT_OK;
    for (size_t row = first; row < end; row++) {
        if (c->rules[row] != NT_RULE_SURVIVES_BACKWARD) {
            continue;
        }
        if (!backward_is_gradient(c, row)) {
            c->rules[row] = NT_RULE_NONE;
            continue;
        }
        const uint64_t size = c->a->requested_size[row];
        bytes += size;
        NT_TRY_DONE(nt_categories_count(c, &kept, size));
        NT_TRY_DONE(nt_categories_count(c, &c->sizes, size));
    }
    if (bytes > c->bytes) {
        const nt_map before = c->largest;
        c->largest = kept;
        c->bytes = bytes;
        kept = before;
    }
done:
    nt_map_clear(&kept);
    return status;
}

static nt_status
backward_gradients(categories *c)
{
    const nt_allocation_columns *a = c->a;
    size_t pass = SIZE_MAX, first = c->first;
    for (size_t row = c->first; row < a->count; row++) {
        if (c->rules[row] == NT_RULE_SURVIVES_BACKWARD) {
            NT_TRY(nt_categories_count(c, &c->seen, a->requested_size[row]));
        }
    }
    for (size_t row = c->first; row < a->count; row++) {
        if (c->rules[row] != NT_RULE_SURVIVES_BACKWARD) {
            continue;
        }
        const size_t at = nt_categories_pass(c, a->alloc_event[row]);
        if (at != pass) {
            NT_TRY(backward_pass(c, first, row));
            pass = at;
            first = row;
        }
    }
    return backward_pass(c, first, a->count);
}

/* How many blocks of `there` there are for each gradient, where most bytes agree; else
 * 0. Buffers as large as small parameters (running means) make a few more. */
static size_t
backward_copies(const categories *c, const nt_map *there)
{
    uint64_t agreeing[CATEGORIES_COPIES] = {0}, total = 0;
    for (size_t i = 0; i < c->largest.slots; i++) {
        const nt_map_entry *entry = &c->largest.entries[i];
        if (entry->value == NT_NONE) {
            continue;
        }
        const uint64_t bytes = entry->key * entry->value;
        const size_t copies = nt_categories_counted(there, entry->key) / entry->value;
        agreeing[copies < CATEGORIES_COPIES ? copies : 0] += bytes;
        total += bytes;
    }
    size_t most = 0;
    for (size_t copies = 1; copies < CATEGORIES_COPIES; copies++) {
        most = agreeing[copies] > agreeing[most] ? copies : most;
    }
    return agreeing[most] / CATEGORIES_AGREEING >= total / 20 ? most : 0;
}

/* The rule for a block from before the trace that is kept, by its own stack. */
static uint8_t
backward_by_stack(const categories *c, size_t row)
{
    switch (categories_role(c, row)) {
    case NT_ROLE_BUILD: return NT_RULE_MODULE_MADE;
    case NT_ROLE_OPTIMIZER:
    case NT_ROLE_STATE: return NT_RULE_OPTIMIZER_KEPT;
    case NT_ROLE_BUCKET: return NT_RULE_BUCKET;
    case NT_ROLE_WORKSPACE: return NT_RULE_WORKSPACE;
    default: return NT_RULE_NONE;
    }
}

/* Whether a block from before the trace is kept, and made by a line of the program's or
 * nobody knows by what. */
static bool
backward_may_be_parameter(const categories *c, size_t row)
{
    const uint8_t role = categories_role(c, row);
    return c->a->free_event[row] == NT_EVENT_NEVER && c->rules[row] == NT_RULE_NONE &&
           (role == NT_ROLE_EMPTY || role == NT_ROLE_USER);
}

/* The rule for such a block, by its size; `copies` of them are there a gradient. */
static uint8_t
backward_of_size(const categories *c, const nt_map *there, size_t copies, size_t row)
{
    const uint64_t asked = c->a->requested_size[row];
    const uint32_t gradients = nt_categories_counted(&c->largest, asked);
    if (copies == 1) {
        return nt_categories_counted(&c->built, asked) < gradients
                   ? NT_RULE_AS_GRADIENTS
                   : NT_RULE_NONE;
    }
    return gradients != 0 && nt_categories_counted(there, asked) / gradients >= copies
               ? NT_RULE_ONE_OF_SEVERAL
               : NT_RULE_NONE;
}

/*
 * What was there before the trace began: its stack tells, its end, or its size. With
 * two or three of which nobody knows more for each gradient, most are the optimizer's
 * state, and nothing in the file tells a parameter from a state of its size: in some
 * programs the parameters have the lowest addresses, in others the highest.
 */
static nt_status
backward_preexisting(categories *c)
{
    const nt_allocation_columns *a = c->a;
    nt_map there;
    nt_map_init(&there, c->alloc);
    nt_status status = NT_OK;
    for (size_t row = 0; row < c->first; row++) {
        const int32_t freed = a->free_event[row];
        if (freed >= 0 && c->role[freed] == NT_ROLE_ZERO_GRAD) {
            c->rules[row] = NT_RULE_ZEROED;
        } else if (freed >= 0 && c->role[freed] == NT_ROLE_BACKWARD) {
            c->rules[row] = NT_RULE_FREED_IN_BACKWARD;
        } else if (freed == NT_EVENT_NEVER) {
            c->rules[row] = backward_by_stack(c, row);
            if (backward_may_be_parameter(c, row)) {
                NT_TRY_DONE(nt_categories_count(c, &there, a->requested_size[row]));
            }
        }
    }
    const size_t copies = backward_copies(c, &there);
    for (size_t row = 0; row < c->first && copies != 0; row++) {
        if (backward_may_be_parameter(c, row)) {
            c->rules[row] = backward_of_size(c, &there, copies, row);
        }
    }
done:
    nt_map_clear(&there);
    return status;
}

nt_status
nt_categories_backward(categories *c)
{
    NT_TRY(backward_known(c));
    backward_survivors(c);
    NT_TRY(backward_gradients(c));
    return backward_preexisting(c);
}
