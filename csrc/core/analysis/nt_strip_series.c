/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_strip_series.h"

/* Entries of a level that one entry of the next level stands for. */
#define FANOUT 16

static uint32_t
series_highest_of(const nt_strip_series *s, const uint32_t *below, size_t first,
                  size_t end)
{
    uint32_t best = below == NULL ? (uint32_t)first : below[first];
    for (size_t i = first + 1; i < end; i++) {
        const uint32_t at = below == NULL ? (uint32_t)i : below[i];
        best = nt_strip_series_at(s, at) > nt_strip_series_at(s, best) ? at : best;
    }
    return best;
}

/* Keeps values as two halves, of which the upper one is mostly not needed. */
static nt_status
series_keep(const nt_alloc *alloc, nt_strip_series *s, const uint64_t *values,
            size_t states, nt_error *err)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < states; i++) {
        bits |= values[i];
    }
    s->shift = bits == 0 ? 0 : (unsigned)__builtin_ctzll(bits);
    const bool is_wide = bits >> s->shift > UINT32_MAX;
    s->low = nt_allocate(alloc, states * sizeof(uint32_t));
    s->high = is_wide ? nt_allocate(alloc, states * sizeof(uint32_t)) : NULL;
    if (s->low == NULL || (is_wide && s->high == NULL)) {
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < states; i++) {
        s->low[i] = (uint32_t)(values[i] >> s->shift);
        if (is_wide) {
            s->high[i] = (uint32_t)(values[i] >> s->shift >> 32);
        }
    }
    return NT_OK;
}

static nt_status
series_make_levels(const nt_alloc *alloc, nt_strip_series *s, size_t states,
                   nt_error *err)
{
    const uint32_t *below = NULL;
    for (size_t count = states; count > FANOUT; count = s->counts[s->level_count - 1]) {
        const size_t entries = (count + FANOUT - 1) / FANOUT;
        uint32_t *level = nt_allocate(alloc, entries * sizeof *level);
        if (level == NULL) {
            return nt_fail_nomem(err);
        }
        s->levels[s->level_count] = level;
        s->counts[s->level_count++] = entries;
        for (size_t k = 0; k < entries; k++) {
            const size_t stop = (k + 1) * FANOUT < count ? (k + 1) * FANOUT : count;
            level[k] = series_highest_of(s, below, k * FANOUT, stop);
        }
        below = level;
    }
    return NT_OK;
}

nt_status
nt_strip_series_make(const nt_alloc *alloc, const nt_timeline *timeline,
                     nt_metric metric, size_t states, nt_strip_series *s, nt_error *err)
{
    uint64_t *values = nt_allocate(alloc, states * sizeof *values);
    if (values == NULL) {
        return nt_fail_nomem(err);
    }
    values[0] = nt_timeline_facts(timeline)->start_bytes[metric];
    nt_timeline_series(timeline, metric, values + 1);
    const nt_status status = series_keep(alloc, s, values, states, err);
    nt_release(alloc, values, states * sizeof *values);
    return status == NT_OK ? series_make_levels(alloc, s, states, err) : status;
}

void
nt_strip_series_clear(const nt_alloc *alloc, nt_strip_series *s, size_t states)
{
    nt_release(alloc, s->low, s->low == NULL ? 0 : states * sizeof(uint32_t));
    nt_release(alloc, s->high, s->high == NULL ? 0 : states * sizeof(uint32_t));
    for (size_t k = 0; k < s->level_count; k++) {
        nt_release(alloc, s->levels[k], s->counts[k] * sizeof(uint32_t));
    }
}

/* Of two states the one with more, of equal ones the earlier. */
static uint32_t
series_better(const nt_strip_series *s, uint32_t best, uint32_t at)
{
    const uint64_t mine = nt_strip_series_at(s, at),
                   other = nt_strip_series_at(s, best);
    if (mine != other) {
        return mine > other ? at : best;
    }
    return at < best ? at : best;
}

uint32_t
nt_strip_series_highest(const nt_strip_series *s, size_t first, size_t end)
{
    uint32_t best = (uint32_t)first;
    /* What does not fill an entry of the next level is looked at in this one. */
    for (size_t level = 0; first < end; level++) {
        const uint32_t *entries = level == 0 ? NULL : s->levels[level - 1];
        const bool last = level == s->level_count;
        while (first < end && (first % FANOUT != 0 || last)) {
            best = series_better(s, best, entries ? entries[first] : (uint32_t)first);
            first++;
        }
        while (first < end && end % FANOUT != 0) {
            end--;
            best = series_better(s, best, entries ? entries[end] : (uint32_t)end);
        }
        first /= FANOUT;
        end /= FANOUT;
    }
    return best;
}
