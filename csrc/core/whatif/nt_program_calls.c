/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose releases those are: the user's, who called empty_cache(), or the allocator's,
 * which was short of memory. Only the user's belong to the program. A recording of ours
 * has noted each call; in others stacks and what follows tell, and a call that found
 * nothing to release leaves no trace.
 */
#include "whatif/nt_program_state.h"

nt_status
nt_program_find_calls(program_maker *m)
{
    const int32_t device = nt_timeline_device(m->timeline);
    m->p->face.calls_noted =
        device >= 0 &&
        nt_snapshot_noted_calls(nt_timeline_snapshot(m->timeline), (size_t)device,
                                &m->noted, &m->noted_count);
    return nt_snapshot_mark_function(nt_timeline_snapshot(m->timeline), "empty_cache",
                                     &m->p->alloc, &m->is_users, &m->stack_count,
                                     m->err);
}

bool
nt_program_has_noted(const program_maker *m, size_t i)
{
    return m->next_noted < m->noted_count &&
           m->noted[m->next_noted].integer < (int64_t)i;
}

/* Whether no call of empty_cache() does that. */
static bool
program_asks(uint8_t action)
{
    return action == NT_ACTION_ALLOC || action == NT_ACTION_FREE_REQUESTED ||
           action == NT_ACTION_OOM || action == NT_ACTION_SEGMENT_ALLOC ||
           action == NT_ACTION_SEGMENT_MAP;
}

void
nt_program_pass_noted(program_maker *m, size_t i, bool *is_silent)
{
    *is_silent = false;
    if (!nt_program_has_noted(m, i)) {
        return;
    }
    if (i < m->count && !program_asks(m->events->action[m->first + i])) {
        return;
    }
    *is_silent = !m->noted_released;
    m->noted_released = false;
    while (nt_program_has_noted(m, i)) {
        m->next_noted++;
    }
}

/* Whether the allocator may release memory of its own accord, as far as the trace and
 * the settings tell. */
static bool
program_runs_short(const program_maker *m)
{
    const nt_settings *settings = nt_program_settings(m);
    return settings->garbage_collection_threshold > 0 ||
           settings->max_split_size != NT_UNLIMITED ||
           nt_timeline_facts(m->timeline)->oom_count != 0;
}

/* Whether the stack of the event has empty_cache() in it. */
static bool
program_is_users(const program_maker *m, size_t i)
{
    const uint32_t stack = m->events->stack[m->first + i];
    return stack != NT_NO_STACK && stack < m->stack_count && m->is_users[stack];
}

bool
nt_program_is_quiet(const program_maker *m, size_t i)
{
    return m->events->stack[m->first + i] != NT_NO_STACK && !program_is_users(m, i);
}

/* Whether the request of event `end`, which mapped nothing, may have unmapped what lies
 * before it: a free block that was too large to be used, and whose rest serves it now.
 */
static bool
program_unmaps_first(const program_maker *m, size_t end)
{
    const size_t at = m->first + end;
    return end < m->count && m->events->action[at] == NT_ACTION_ALLOC &&
           m->events->action[at - 1] == NT_ACTION_SEGMENT_UNMAP &&
           m->events->stack[at] != NT_NO_STACK &&
           m->events->stack[at] == m->events->stack[at - 1] &&
           nt_program_settings(m)->max_split_size != NT_UNLIMITED;
}

bool
nt_program_is_call(program_maker *m, size_t first, size_t end)
{
    const uint32_t stack = m->events->stack[m->first + first];
    const uint8_t next =
        end < m->count ? m->events->action[m->first + end] : NT_ACTION_COUNT;
    if (nt_program_has_noted(m, first)) {
        m->noted_released = true;
        return true;
    }
    if (program_is_users(m, first)) {
        return true;
    }
    if (next == NT_ACTION_FREE_COMPLETED && stack != NT_NO_STACK &&
        m->events->stack[m->first + end] == stack) {
        /* A request that released garbage, or what is oversize, and then waits. */
        return false;
    }
    if (program_unmaps_first(m, end)) {
        return false;
    }
    if (next != NT_ACTION_SEGMENT_ALLOC && next != NT_ACTION_SEGMENT_MAP &&
        next != NT_ACTION_OOM) {
        /* With frames it is a call from C++. */
        return true;
    }
    /* All that one request does has the stack of that request. Where only allocations
     * have stacks, a segment that empty_cache() releases may have the same by chance.
     */
    const bool asks = stack != NT_NO_STACK || next != NT_ACTION_OOM;
    if (asks && stack != m->events->stack[m->first + end]) {
        return true;
    }
    if (m->p->face.calls_noted) {
        return false;
    }
    if (stack != NT_NO_STACK) {
        if (!nt_timeline_facts(m->timeline)->frees_known) {
            m->p->face.calls_known = false;
        }
        return false;
    }
    if (next == NT_ACTION_OOM) {
        return false;
    }
    m->p->face.calls_known = false;
    return !program_runs_short(m);
}
