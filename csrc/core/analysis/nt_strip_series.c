/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_strip_series.h"

/* Entries of a level that one entry of the next level stands for. */
#define FANOUT 16

/* Entry `i` of a level, `entries`, or of the series itself where that is NULL. */
static inline nt_strip_most
series_entry(const nt_strip_series *s, const nt_strip_most *entries, size_t i)
{
    if (entries != NULL) {
        return entries[i];
    }
    return (nt_strip_most){
        .low = s->low[i],
        .high = s->high == NULL ? 0 : s->high[i],
        .state = (uint32_t)i,
    };
}

/* Of two the one with more, of equal ones the earlier. */
static inline nt_strip_most
series_better(nt_strip_most one, nt_strip_most other)
{
    const uint64_t mine = (uint64_t)one.high << 32 | one.low;
    const uint64_t others = (uint64_t)other.high << 32 | other.low;
    if (mine != others) {
        return mine > others ? one : other;
    }
    return one.state < other.state ? one : other;
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
    const nt_strip_most *below = NULL;
    for (size_t count = states; count > FANOUT; count = s->counts[s->level_count - 1]) {
        const size_t entries = (count + FANOUT - 1) / FANOUT;
        nt_strip_most *level = nt_allocate(alloc, entries * sizeof *level);
        if (level == NULL) {
            return nt_fail_nomem(err);
        }
        s->levels[s->level_count] = level;
        s->counts[s->level_count++] = entries;
        for (size_t k = 0; k < entries; k++) {
            const size_t stop = (k + 1) * FANOUT < count ? (k + 1) * FANOUT : count;
            level[k] = series_entry(s, below, k * FANOUT);
            for (size_t i = k * FANOUT + 1; i < stop; i++) {
                level[k] = series_better(level[k], series_entry(s, below, i));
            }
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
    nt_status status;
    NT_TRY_DONE(series_keep(alloc, s, values, states, err));
    NT_TRY_DONE(series_make_levels(alloc, s, states, err));
done:
    /* Last, so that nothing that stays lies in this room: something as large comes. */
    nt_release(alloc, values, states * sizeof *values);
    return status;
}

void
nt_strip_series_clear(const nt_alloc *alloc, nt_strip_series *s, size_t states)
{
    nt_release(alloc, s->low, s->low == NULL ? 0 : states * sizeof(uint32_t));
    nt_release(alloc, s->high, s->high == NULL ? 0 : states * sizeof(uint32_t));
    for (size_t k = 0; k < s->level_count; k++) {
        nt_release(alloc, s->levels[k], s->counts[k] * sizeof(nt_strip_most));
    }
}

uint32_t
nt_strip_series_highest(const nt_strip_series *s, size_t first, size_t end)
{
    nt_strip_most best = series_entry(s, NULL, first);
    /* What does not fill an entry of the next level is looked at in this one. */
    for (size_t level = 0; first < end; level++) {
        const nt_strip_most *entries = level == 0 ? NULL : s->levels[level - 1];
        const bool last = level == s->level_count;
        while (first < end && (first % FANOUT != 0 || last)) {
            best = series_better(best, series_entry(s, entries, first++));
        }
        while (first < end && end % FANOUT != 0) {
            best = series_better(best, series_entry(s, entries, --end));
        }
        first /= FANOUT;
        end /= FANOUT;
    }
    return best.state;
}
