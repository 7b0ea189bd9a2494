/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frees that waited for other streams are complete when a later request sees that these
 * are done: at its start, or when it found no memory, waited for all of them and gave
 * the cache back. What is free only then comes too late for the request itself, which
 * does not look at free blocks again. In the trace both stand before the request.
 */
#include "whatif/nt_program_state.h"
#include "trace/nt_rounding.h"

bool
nt_program_completes_next(const program_maker *m, size_t i)
{
    const size_t at = m->first + i;
    return i + 1 < m->count && m->events->action[at + 1] == NT_ACTION_FREE_COMPLETED &&
           m->rows[i + 1] == m->rows[i] &&
           m->events->stack[at + 1] == m->events->stack[at];
}

/* Whether event `i` is there, and its stack is that of the call under way. */
static bool
program_is_of_call(const program_maker *m, size_t i, uint32_t stack)
{
    return i < m->count && m->events->stack[m->first + i] == stack;
}

/* The allocation that event `i` completes the free of, or NT_NONE where it completes
 * nothing. */
static uint32_t
program_completed(const program_maker *m, size_t i)
{
    const uint32_t row = m->rows[i];
    return m->events->action[m->first + i] == NT_ACTION_FREE_COMPLETED &&
                   row != NT_NONE && m->slots[row] != NT_NONE &&
                   (m->slots[row] & PROGRAM_LATER) != 0
               ? row
               : NT_NONE;
}

/* The request that event `i` is part of: the next of its call that asked for memory, or
 * m->count. */
static size_t
program_request_at(program_maker *m, size_t i)
{
    const uint8_t *action = m->events->action + m->first;
    const uint32_t stack = m->events->stack[m->first + i];
    if (i < m->request_end) {
        return m->request;
    }
    while (program_is_of_call(m, i, stack) && action[i] != NT_ACTION_ALLOC &&
           action[i] != NT_ACTION_OOM) {
        i++;
    }
    m->request_end = i;
    m->request = program_is_of_call(m, i, stack) ? i : m->count;
    return m->request;
}

/* Whether the release may come before the wait: of garbage, or of what is oversize on
 * the request's stream. */
static bool
program_may_be_first(const program_maker *m, size_t release, size_t request)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
    const uint64_t *stream = m->events->stream + m->first;
    const uint64_t size = m->events->size[m->first + release];
    return m->events->action[m->first + release] == NT_ACTION_SEGMENT_FREE &&
           ((settings->garbage_collection_threshold > 0 && size > NT_SMALL_BUFFER) ||
            (size >= settings->max_split_size && stream[release] == stream[request]));
}

/* Whether one of the blocks completed by events first .. end - 1 would have served the
 * request, had it been free at its start. */
static bool
program_would_serve(const program_maker *m, size_t first, size_t end, size_t request)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
    const uint64_t *stream = m->events->stream + m->first;
    const uint64_t *sizes = nt_timeline_allocations(m->timeline)->size;
    const uint64_t rounded =
        nt_round_size(settings, m->events->size[m->first + request]);
    for (size_t i = first; i < end; i++) {
        const uint64_t size = sizes[m->rows[i]];
        if (stream[i] == stream[request] && size >= rounded &&
            nt_is_small(size) == nt_is_small(rounded) &&
            nt_may_use(settings, size, rounded)) {
            return true;
        }
    }
    return false;
}

/* Whether the completions that begin with event `i` are of a request that waited for
 * all streams: nothing waits behind them, and the request then released memory, or
 * failed. */
static bool
program_waits_at(program_maker *m, size_t i)
{
    const uint8_t *action = m->events->action + m->first;
    const uint32_t stack = m->events->stack[m->first + i];
    size_t end = i;
    while (program_is_of_call(m, end, stack) && program_completed(m, end) != NT_NONE) {
        end++;
    }
    m->wait_end = end;
    const size_t request = program_request_at(m, i);
    if (end - i != m->pending || request == m->count) {
        return false;
    }
    if (end == request) {
        return action[end] == NT_ACTION_OOM;
    }
    if (i != 0 && nt_events_is_release(action[i - 1]) && stack != NT_NO_STACK &&
        program_is_of_call(m, i - 1, stack)) {
        /* Nothing is released before a request looks at what is complete. */
        return true;
    }
    return nt_events_is_release(action[end]) &&
           (!program_may_be_first(m, end, request) ||
            program_would_serve(m, i, end, request));
}

nt_status
nt_program_defer(program_maker *m, size_t i, bool *deferred)
{
    const uint32_t row = program_completed(m, i);
    *deferred = false;
    if (row == NT_NONE) {
        return NT_OK;
    }
    if (i >= m->wait_end) {
        m->is_waiting = program_waits_at(m, i) && !nt_program_has_noted(m, i);
    }
    if (m->is_waiting) {
        NT_TRY(nt_grow(&m->p->alloc, (void **)&m->late, &m->late_capacity,
                       m->late_count + 1, sizeof *m->late, m->err));
        m->late[m->late_count++] = (uint32_t)i;
        *deferred = true;
    }
    return NT_OK;
}

bool
nt_program_ends_wait(const program_maker *m, size_t i)
{
    const uint8_t action = m->events->action[m->first + i];
    const bool is_part =
        nt_events_is_release(action) || action == NT_ACTION_FREE_COMPLETED ||
        action == NT_ACTION_SEGMENT_ALLOC || action == NT_ACTION_SEGMENT_MAP ||
        action == NT_ACTION_ALLOC || action == NT_ACTION_OOM;
    return !is_part ||
           m->events->stack[m->first + i] != m->events->stack[m->first + m->late[0]];
}
