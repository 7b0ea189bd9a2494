/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_strip_series.h"

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
        .value = (uint32_t)i,
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
    return one.value < other.value ? one : other;
}

/* Leaves of the values only those that differ from the one before, if these are so few
 * that their states take less room; else one a state. */
static nt_status
series_find_starts(const nt_alloc *alloc, nt_strip_series *s, uint64_t *values,
                   size_t states, nt_error *err)
{
    size_t count = 1;
    for (size_t i = 1; i < states; i++) {
        count += values[i] != values[i - 1];
    }
    s->count = states;
    if (count > states / 2) {
        return NT_OK;
    }
    s->starts = nt_allocate(alloc, count * sizeof(uint32_t));
    if (s->starts == NULL) {
        return nt_fail_nomem(err);
    }
    s->count = count;
    size_t kept = 0;
    for (size_t i = 0; i < states; i++) {
        if (i == 0 || values[i] != values[kept - 1]) {
            s->starts[kept] = (uint32_t)i;
            values[kept++] = values[i];
        }
    }
    return NT_OK;
}

/* Keeps values as two halves, of which the upper one is mostly not needed. */
static nt_status
series_keep(const nt_alloc *alloc, nt_strip_series *s, const uint64_t *values,
            nt_error *err)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < s->count; i++) {
        bits |= values[i];
    }
    s->shift = bits == 0 ? 0 : (unsigned)__builtin_ctzll(bits);
    const bool is_wide = bits >> s->shift > UINT32_MAX;
    s->low = nt_allocate(alloc, s->count * sizeof(uint32_t));
    s->high = is_wide ? nt_allocate(alloc, s->count * sizeof(uint32_t)) : NULL;
    if (s->low == NULL || (is_wide && s->high == NULL)) {
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < s->count; i++) {
        s->low[i] = (uint32_t)(values[i] >> s->shift);
        if (is_wide) {
            s->high[i] = (uint32_t)(values[i] >> s->shift >> 32);
        }
    }
    return NT_OK;
}

static nt_status
series_make_levels(const nt_alloc *alloc, nt_strip_series *s, nt_error *err)
{
    const nt_strip_most *below = NULL;
    for (size_t count = s->count; count > FANOUT;
         count = s->counts[s->level_count - 1]) {
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
    NT_TRY_DONE(series_find_starts(alloc, s, values, states, err));
    NT_TRY_DONE(series_keep(alloc, s, values, err));
    NT_TRY_DONE(series_make_levels(alloc, s, err));
done:
    /* Last, so that nothing that stays lies in this room: something as large comes. */
    nt_release(alloc, values, states * sizeof *values);
    return status;
}

void
nt_strip_series_clear(const nt_alloc *alloc, nt_strip_series *s)
{
    const size_t bytes = s->count * sizeof(uint32_t);
    nt_release(alloc, s->starts, s->starts == NULL ? 0 : bytes);
    nt_release(alloc, s->low, s->low == NULL ? 0 : bytes);
    nt_release(alloc, s->high, s->high == NULL ? 0 : bytes);
    for (size_t k = 0; k < s->level_count; k++) {
        nt_release(alloc, s->levels[k], s->counts[k] * sizeof(nt_strip_most));
    }
}

/* The number of the value that holds in a state. */
static size_t
series_value_of(const nt_strip_series *s, size_t state)
{
    if (s->starts == NULL) {
        return state;
    }
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (s->starts[middle] <= state) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t
nt_strip_series_at(const nt_strip_series *s, size_t state)
{
    const size_t value = series_value_of(s, state);
    const uint64_t high = s->high == NULL ? 0 : s->high[value];
    return (high << 32 | s->low[value]) << s->shift;
}

/* Of values first .. end - 1 the one with most, the first of several. */
static uint32_t
series_highest_value(const nt_strip_series *s, size_t first, size_t end)
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
    return best.value;
}

uint32_t
nt_strip_series_highest(const nt_strip_series *s, size_t first, size_t end)
{
    const size_t low = series_value_of(s, first), high = series_value_of(s, end - 1);
    const uint32_t value = series_highest_value(s, low, high + 1);
    const uint32_t state = s->starts == NULL ? value : s->starts[value];
    return state < first ? (uint32_t)first : state;
}
