/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_categories_state.h"

/* Events that the scratch memory of one operation lives at most. */
#define CATEGORIES_BRIEF 64

/* Whether nothing that was made while a row lived outlives it. */
static bool
scratch_is_nested(const categories *c, size_t row)
{
    const nt_allocation_columns *a = c->a;
    const int32_t end = a->free_event[row];
    size_t after = row + 1;
    while (after < a->count && a->alloc_event[after] < end &&
           a->free_event[after] >= 0 && a->free_event[after] < end) {
        if (a->stack[after] != a->stack[row]) {
            return false;
        }
        after++;
    }
    return after == a->count || a->alloc_event[after] > end;
}

/* The stack ids of the device's events. */
static const uint32_t *
scratch_stacks(const categories *c)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(c->timeline);
    size_t first, count;
    nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(c->timeline), &first,
                      &count);
    return nt_snapshot_events(snapshot)->stack + first;
}

/* Whether all events from one to another come from one line of PyTorch's own files:
 * such a line calls one operation. */
static bool
scratch_is_one_call(const categories *c, const uint32_t *stack, int32_t begin,
                    int32_t end)
{
    if (!nt_timeline_facts(c->timeline)->frees_known ||
        !nt_passes_is_torch(c->passes, stack[begin])) {
        return false;
    }
    for (int32_t at = begin + 1; at <= end; at++) {
        if (stack[at] != stack[begin]) {
            return false;
        }
    }
    return true;
}

void
nt_categories_scratch(categories *c)
{
    if (c->first == c->a->count) {
        return;
    }
    const uint32_t *stack = scratch_stacks(c);
    for (size_t row = c->first; row < c->a->count; row++) {
        const int32_t begin = c->a->alloc_event[row], end = c->a->free_event[row];
        const uint8_t role = c->role[begin];
        const bool of_module = role == NT_ROLE_MODULE || role == NT_ROLE_CACHE;
        if (end <= begin || end - begin > CATEGORIES_BRIEF) {
            continue;
        }
        /* A line of the program's own calls more than one operation. */
        if (((of_module || role == NT_ROLE_BACKWARD) && scratch_is_nested(c, row)) ||
            ((of_module || role == NT_ROLE_USER) &&
             scratch_is_one_call(c, stack, begin, end))) {
            c->rules[row] = NT_RULE_SCRATCH;
        }
    }
}
