/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_steps_parts.h"

/* Rounds that are a rhythm, the share of the trace that they are at least, and what
 * each allocates at least: what is allocated and freed again alone is no step. */
enum { STEPS_ROUNDS = 8, STEPS_SHARE = 2, STEPS_ALLOCATIONS = 2 };

/* The end of a trace may be something else: it is left out in these shares. */
static const size_t STEPS_TAILS[] = {0, 32, 16, 8, 4};

/* What is alike in two rounds: action, size and stack. */
static uint32_t
steps_key(const steps_work *w, size_t event)
{
    const uint64_t what = (uint64_t)w->action[event] << 32 | w->stack[event];
    return (uint32_t)nt_mix64(nt_mix64(what) + w->size[event]);
}

/*
 * The shortest period of the longest run of events that ends before `end` and has
 * enough rounds; 0: there is none. *length: of the run. `borders` has room for `end`:
 * by the prefix function of the events read backwards, as in Knuth, Morris and Pratt,
 * SIAM J. on Computing 6, 1977.
 */
static size_t
steps_period(const uint32_t *keys, size_t end, uint32_t *borders, size_t *length)
{
    size_t period = 0;
    *length = 0;
    borders[0] = 0;
    for (size_t i = 1; i < end; i++) {
        size_t border = borders[i - 1];
        while (border > 0 && keys[end - 1 - i] != keys[end - 1 - border]) {
            border = borders[border - 1];
        }
        border += keys[end - 1 - i] == keys[end - 1 - border];
        borders[i] = (uint32_t)border;
        const size_t shift = i + 1 - border;
        /* A longer run has no shorter period. */
        if (shift > end / STEPS_ROUNDS) {
            break;
        }
        if (shift >= 2 && i + 1 >= STEPS_ROUNDS * shift) {
            *length = i + 1;
            period = shift;
        }
    }
    return period;
}

/* Whether the `period` events before `end` are enough for a step. */
static bool
steps_is_step(const steps_work *w, size_t period, size_t end)
{
    size_t allocations = 0;
    for (size_t i = end - period; i < end; i++) {
        allocations += nt_steps_allocates(w, i);
    }
    return allocations >= STEPS_ALLOCATIONS;
}

/* Edges each `period` events, in a run of `length` that ends before `end` and may go on
 * behind it. */
static nt_status
steps_cut_rhythm(steps_work *w, const uint32_t *keys, size_t period, size_t length,
                 size_t end, nt_error *err)
{
    const size_t begin = end - length;
    while (end < w->count && keys[end] == keys[end - period]) {
        end++;
    }
    for (size_t at = begin; at <= end; at += period) {
        NT_TRY(nt_steps_add_edge(w, at, err));
    }
    return NT_OK;
}

static nt_status
steps_search_rhythm(steps_work *w, const uint32_t *keys, uint32_t *borders,
                    nt_error *err)
{
    for (size_t k = 0; k < sizeof STEPS_TAILS / sizeof *STEPS_TAILS; k++) {
        const size_t tail = STEPS_TAILS[k] == 0 ? 0 : w->count / STEPS_TAILS[k];
        const size_t end = w->count - tail;
        size_t length;
        const size_t period = steps_period(keys, end, borders, &length);
        if (period == 0 || length < w->count / STEPS_SHARE ||
            !steps_is_step(w, period, end)) {
            continue;
        }
        NT_TRY(steps_cut_rhythm(w, keys, period, length, end, err));
        if (!nt_steps_are_outside(w)) {
            w->edge_count = 0;
        }
        return NT_OK;
    }
    return NT_OK;
}

nt_status
nt_steps_by_rhythm(steps_work *w, nt_error *err)
{
    const size_t size = w->count * sizeof(uint32_t);
    uint32_t *keys = nt_allocate(&w->alloc, size);
    uint32_t *borders = nt_allocate(&w->alloc, size);
    nt_status status = NT_OK;
    if (keys == NULL || borders == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (size_t i = 0; i < w->count; i++) {
        keys[i] = steps_key(w, i);
    }
    status = steps_search_rhythm(w, keys, borders, err);
done:
    nt_release(&w->alloc, keys, size);
    nt_release(&w->alloc, borders, size);
    return status;
}
