/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often the allocator ran out of memory, and gave its cache back to try again.
 * It releases segments for four reasons: the user's empty_cache(), which has that frame
 * in its stack; the retry, right before the segment that it then gets, or the OOM; and,
 * where the settings say so, to collect garbage or to make room for a request that
 * max_split_size_mb makes oversize, likewise right before a segment. Where only
 * allocations have stacks, what empty_cache() releases has the stack of the segment's
 * allocation; what a request releases has that request's.
 */
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_state.h"

typedef struct retries {
    nt_timeline *t;
    const nt_event_columns *events;
    const nt_settings *settings;
    uint8_t *is_users; /* by stack: a frame called empty_cache is in it; may be NULL */
    size_t stack_count;
} retries;

/* Whether only a retry gives back what event `i` does: garbage is collected from large
 * segments only, and room for oversize requests is made by oversize segments. */
static bool
retries_is_plain(const retries *r, size_t i)
{
    const size_t at = r->t->first + i;
    const uint64_t size = r->events->size[at];
    const bool collects = r->settings->garbage_collection_threshold > 0;
    return r->events->action[at] == NT_ACTION_SEGMENT_UNMAP ||
           size <= NT_SMALL_BUFFER || (!collects && size < r->settings->max_split_size);
}

/* One run of releases, events first .. end - 1: whether a retry gave them back. */
static bool
retries_is_retry(retries *r, size_t first, size_t end)
{
    const nt_timeline *t = r->t;
    const uint32_t stack = r->events->stack[t->first + first];
    const uint8_t next =
        end < t->count ? r->events->action[t->first + end] : NT_ACTION_COUNT;
    if (stack != NT_NO_STACK && r->is_users != NULL && r->is_users[stack]) {
        return false;
    }
    if (next == NT_ACTION_OOM) {
        return true;
    }
    if (next != NT_ACTION_SEGMENT_ALLOC && next != NT_ACTION_SEGMENT_MAP) {
        return false;
    }
    if (!t->facts.frees_known && stack != r->events->stack[t->first + end]) {
        return false;
    }
    if (stack == NT_NO_STACK || !t->facts.frees_known) {
        r->t->facts.retries_known = false;
    }
    for (size_t i = first; i < end; i++) {
        if (retries_is_plain(r, i)) {
            return true;
        }
    }
    r->t->facts.retries_known = false;
    return false;
}

/* Whether frees have stacks of their own: false if all have that of the allocation. */
static bool
retries_frees_known(const nt_timeline *t, const nt_event_columns *events)
{
    const nt_allocation_columns *a = &t->allocations;
    bool shown = false;
    for (size_t row = 0; row < a->count; row++) {
        if (a->alloc_event[row] < 0 || a->free_event[row] < 0) {
            continue;
        }
        const uint32_t made = events->stack[t->first + (size_t)a->alloc_event[row]];
        if (made != events->stack[t->first + (size_t)a->free_event[row]]) {
            return true;
        }
        shown |= made != NT_NO_STACK;
    }
    return !shown;
}

/* An OOM comes after a retry, even where that had nothing to give back. */
static void
retries_count(retries *r)
{
    nt_timeline *t = r->t;
    const uint8_t *action = r->events->action + t->first;
    size_t after_retry = SIZE_MAX; /* the event behind the last retry */
    for (size_t other = 0; other < t->other_count; other++) {
        const size_t first = t->others[other];
        if (action[first] == NT_ACTION_OOM) {
            t->facts.oom_count++;
            t->facts.retries += first != after_retry;
        }
        if (!nt_events_is_release(action[first])) {
            continue;
        }
        size_t end = first + 1;
        while (end < t->count && nt_events_is_release(action[end])) {
            end++;
        }
        const bool is_retry = retries_is_retry(r, first, end);
        after_retry = is_retry ? end : after_retry;
        other += end - first - 1;
        t->facts.release_runs++;
        t->facts.retries += is_retry;
    }
}

nt_status
nt_timeline_count_retries(nt_timeline *t, nt_error *err)
{
    retries r = {
        .t = t,
        .events = nt_snapshot_events(t->snapshot),
        .settings = nt_snapshot_settings(t->snapshot),
    };
    t->facts.retries_known = true;
    t->facts.frees_known = retries_frees_known(t, r.events);
    if (t->count == 0) {
        return NT_OK;
    }
    NT_TRY(nt_snapshot_mark_function(t->snapshot, "empty_cache", &t->alloc, &r.is_users,
                                     &r.stack_count, err));
    retries_count(&r);
    nt_release(&t->alloc, r.is_users, r.stack_count);
    return NT_OK;
}
