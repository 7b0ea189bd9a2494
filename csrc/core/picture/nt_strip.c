/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_strip.h"

#include <string.h>

#include "base/nt_search.h"
#include "base/nt_sort.h"
#include "trace/nt_timeline.h"

#define NT_STRIP_LEVELS 8 /* 16^8 values are more than there can be */

/* The value with most bytes of a stretch of them, the first of several. Its bytes are
 * beside it: in the series they lie far from those of the next stretch. */
typedef struct nt_strip_most {
    uint32_t low, high;
    uint32_t value; /* its number */
} nt_strip_most;

/* Bytes are (high << 32 | low) << shift: what the allocator gives is rounded, so that
 * there is hardly ever anything to keep in `high`. */

typedef struct nt_strip_series {
    uint32_t *starts; /* the state from which each value holds; NULL: one a state */
    size_t count;     /* values */
    uint32_t *low;
    uint32_t *high; /* NULL if all are 0 */
    unsigned shift;
    nt_strip_most *levels[NT_STRIP_LEVELS]; /* level k: one for 16^(k+1) values */
    size_t counts[NT_STRIP_LEVELS];
    size_t level_count;
} nt_strip_series;

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
    NT_TRY(NT_NEW(alloc, s->starts, count, err));
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
        nt_strip_most *level;
        NT_TRY(NT_NEW(alloc, level, entries, err));
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

/* On failure strip_series_clear gives back what is there. */
static nt_status
strip_series_make(const nt_alloc *alloc, const nt_timeline *timeline, nt_metric metric,
                  size_t states, nt_strip_series *s, nt_error *err)
{
    uint64_t *values;
    NT_TRY(NT_NEW(alloc, values, states, err));
    values[0] = nt_timeline_facts(timeline)->start_bytes[metric];
    nt_timeline_series(timeline, metric, values + 1);
    nt_status status;
    NT_TRY_DONE(series_find_starts(alloc, s, values, states, err));
    NT_TRY_DONE(series_keep(alloc, s, values, err));
    NT_TRY_DONE(series_make_levels(alloc, s, err));
done:
    /* Last, so that nothing that stays lies in this room: something as large comes. */
    NT_RELEASE(alloc, values, states);
    return status;
}

static void
strip_series_clear(const nt_alloc *alloc, nt_strip_series *s)
{
    const size_t bytes = s->count * sizeof(uint32_t);
    nt_release(alloc, s->starts, s->starts == NULL ? 0 : bytes);
    nt_release(alloc, s->low, s->low == NULL ? 0 : bytes);
    nt_release(alloc, s->high, s->high == NULL ? 0 : bytes);
    for (size_t k = 0; k < s->level_count; k++) {
        NT_RELEASE(alloc, s->levels[k], s->counts[k]);
    }
}

/* The number of the value that holds in a state. */
static size_t
series_value_of(const nt_strip_series *s, size_t state)
{
    if (s->starts == NULL) {
        return state;
    }
    size_t low = 1, high = s->count;
    NT_BISECT(low, high, middle, s->starts[middle] <= state);
    return low - 1;
}

/* The bytes in a state. */
static uint64_t
strip_series_at(const nt_strip_series *s, size_t state)
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

/* Of states first .. end - 1 the one with most, the first of several. */
static uint32_t
strip_series_highest(const nt_strip_series *s, size_t first, size_t end)
{
    const size_t low = series_value_of(s, first), high = series_value_of(s, end - 1);
    const uint32_t value = series_highest_value(s, low, high + 1);
    const uint32_t state = s->starts == NULL ? value : s->starts[value];
    return state < first ? (uint32_t)first : state;
}

/* States between two that the bands are known of. */
#define CHECKPOINT 64

struct nt_strip {
    nt_alloc alloc;
    const nt_timeline *timeline;
    size_t states;
    nt_strip_series allocated, reserved;
    const uint8_t *codes; /* the caller's */
    size_t band_count;
    uint64_t *checkpoints; /* bytes by band, after each CHECKPOINT-th state */
    size_t checkpoint_count;
    /* The allocations that begin or end with an event that is another one's, by event:
     * the key is event * 2 + (1 at the end), the value the row. */
    nt_sort_item *extras;
    size_t extra_count, extra_capacity;
};

size_t
nt_strip_highest(const nt_strip *strip, bool reserved, size_t first, size_t end)
{
    return strip_series_highest(reserved ? &strip->reserved : &strip->allocated, first,
                                end);
}

uint64_t
nt_strip_bytes(const nt_strip *strip, bool reserved, size_t state)
{
    return strip_series_at(reserved ? &strip->reserved : &strip->allocated, state);
}

/* ---- bands ----------------------------------------------------------------------- */

static nt_status
strip_add_extra(nt_strip *strip, uint32_t row, int32_t event, bool ends, nt_error *err)
{
    NT_TRY(NT_GROW(&strip->alloc, strip->extras, strip->extra_capacity,
                   strip->extra_count + 1, err));
    strip->extras[strip->extra_count++] =
        (nt_sort_item){.key = (uint64_t)event * 2 + ends, .value = row};
    return NT_OK;
}

/* Several rows may come and go with one event of a trace that lost some; an event knows
 * one of them. */
static nt_status
strip_find_extras(nt_strip *strip, nt_error *err)
{
    const nt_allocation_columns *a = nt_timeline_allocations(strip->timeline);
    const uint32_t *subject = nt_timeline_event_allocations(strip->timeline);
    for (size_t row = 0; row < a->count; row++) {
        const int32_t made = a->alloc_event[row], freed = a->free_event[row];
        if (made >= 0 && subject[made] != row) {
            NT_TRY(strip_add_extra(strip, (uint32_t)row, made, false, err));
        }
        if (freed >= 0 && (subject[freed] != row || freed == made)) {
            NT_TRY(strip_add_extra(strip, (uint32_t)row, freed, true, err));
        }
    }
    nt_sort(strip->extras, strip->extra_count);
    return NT_OK;
}

static void
strip_step(const nt_strip *strip, size_t event, uint64_t *bands)
{
    const nt_allocation_columns *a = nt_timeline_allocations(strip->timeline);
    const uint32_t row = nt_timeline_event_allocations(strip->timeline)[event];
    if (row == NT_NONE) {
        return;
    }
    if (a->alloc_event[row] == (int32_t)event) {
        bands[strip->codes[row]] += a->size[row];
    } else if (a->free_event[row] == (int32_t)event) {
        bands[strip->codes[row]] -= a->size[row];
    }
}

/* What the events from `first` up to `end` change beside that. */
static void
strip_step_extras(const nt_strip *strip, size_t first, size_t end, uint64_t *bands)
{
    const uint64_t *sizes = nt_timeline_allocations(strip->timeline)->size;
    size_t low = 0, high = strip->extra_count;
    NT_BISECT(low, high, middle, strip->extras[middle].key / 2 < first);
    for (; low < strip->extra_count && strip->extras[low].key / 2 < end; low++) {
        const uint32_t row = strip->extras[low].value;
        uint64_t *band = &bands[strip->codes[row]];
        *band =
            strip->extras[low].key % 2 != 0 ? *band - sizes[row] : *band + sizes[row];
    }
}

static void
strip_start_bands(const nt_strip *strip, uint64_t *bands)
{
    const nt_allocation_columns *a = nt_timeline_allocations(strip->timeline);
    memset(bands, 0, strip->band_count * sizeof *bands);
    for (size_t row = 0; row < a->count; row++) {
        if (a->alloc_event[row] < 0 && a->free_event[row] != NT_EVENT_FREED_BEFORE) {
            bands[strip->codes[row]] += a->size[row];
        }
    }
}

static void
strip_release_bands(nt_strip *strip)
{
    NT_RELEASE(&strip->alloc, strip->checkpoints,
               strip->checkpoint_count * strip->band_count);
    strip->checkpoints = NULL;
    strip->codes = NULL;
    strip->checkpoint_count = strip->band_count = 0;
}

nt_status
nt_strip_set_bands(nt_strip *strip, const uint8_t *codes, size_t count, nt_error *err)
{
    strip_release_bands(strip);
    const size_t checkpoints = (strip->states - 1) / CHECKPOINT + 1;
    uint64_t *room;
    NT_TRY(NT_NEW(&strip->alloc, room, checkpoints * count, err));
    strip->codes = codes;
    strip->band_count = count;
    strip->checkpoints = room;
    strip->checkpoint_count = checkpoints;
    strip_start_bands(strip, room);
    for (size_t k = 1; k < checkpoints; k++) {
        uint64_t *bands = room + k * count;
        memcpy(bands, bands - count, count * sizeof *bands);
        for (size_t e = (k - 1) * CHECKPOINT; e < k * CHECKPOINT; e++) {
            strip_step(strip, e, bands);
        }
        strip_step_extras(strip, (k - 1) * CHECKPOINT, k * CHECKPOINT, bands);
    }
    return NT_OK;
}

/* Bytes by band in a state. `bands` has those of state *known, a lower one, or
 * *known is above `state`. */
static void
strip_bands_at(const nt_strip *strip, size_t state, size_t *known, uint64_t *bands)
{
    const size_t from = state / CHECKPOINT;
    if (*known > state || *known < from * CHECKPOINT) {
        memcpy(bands, strip->checkpoints + from * strip->band_count,
               strip->band_count * sizeof *bands);
        *known = from * CHECKPOINT;
    }
    for (size_t event = *known; event < state; event++) {
        strip_step(strip, event, bands);
    }
    strip_step_extras(strip, *known, state, bands);
    *known = state;
}

/* ---- making and drawing ---------------------------------------------------------- */

void
nt_strip_free(nt_strip *strip)
{
    if (strip == NULL) {
        return;
    }
    const nt_alloc alloc = strip->alloc;
    strip_release_bands(strip);
    strip_series_clear(&alloc, &strip->allocated);
    strip_series_clear(&alloc, &strip->reserved);
    NT_RELEASE(&alloc, strip->extras, strip->extra_capacity);
    nt_release(&alloc, strip, sizeof *strip);
}

nt_status
nt_strip_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_strip **out,
             nt_error *err)
{
    nt_strip *strip;
    NT_TRY(NT_NEW(alloc, strip, 1, err));
    *strip = (nt_strip){.alloc = *alloc,
                        .timeline = timeline,
                        .states = nt_timeline_event_count(timeline) + 1};
    nt_status status;
    NT_TRY_DONE(strip_series_make(alloc, timeline, NT_METRIC_ALLOCATED, strip->states,
                                  &strip->allocated, err));
    NT_TRY_DONE(strip_series_make(alloc, timeline, NT_METRIC_RESERVED, strip->states,
                                  &strip->reserved, err));
    NT_TRY_DONE(strip_find_extras(strip, err));
    *out = strip;
    return NT_OK;
done:
    nt_strip_free(strip);
    return status;
}

static nt_status
strip_check(const nt_strip *strip, const nt_strip_view *view, nt_error *err)
{
    if (view->first >= view->end ||
        view->end > nt_rising_at(view->positions, strip->states) || view->width == 0 ||
        view->width > NT_STRIP_MOST_COLUMNS) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the view is empty, or not on the axis");
    }
    return NT_OK;
}

nt_status
nt_strip_draw(const nt_strip *strip, const nt_strip_view *view,
              const nt_strip_columns *out, nt_error *err)
{
    NT_TRY(strip_check(strip, view, err));
    const uint64_t span = view->end - view->first;
    const size_t room = (strip->band_count + 1) * sizeof(uint64_t);
    uint64_t *bands;
    NT_TRY(nt_take(&strip->alloc, (void **)&bands, room, err));
    size_t known = SIZE_MAX;
    const nt_rising at = view->positions;
    size_t next = nt_search_ahead(at, 0, strip->states, view->first, strip->states / 2);
    size_t ahead = (strip->states - next) / view->width;
    for (uint32_t c = 0; c < view->width; c++) {
        /* Column c begins at c * span / width: the positions in it are those from
         * there, rounded up, and the state before them lasts into it. */
        const uint64_t from = c * span, to = (c + UINT64_C(1)) * span;
        const uint64_t high = view->first + (to + view->width - 1) / view->width;
        size_t first = next;
        if (first > 0 &&
            (first == strip->states ||
             (nt_rising_at(at, first) - view->first) * view->width > from)) {
            first--;
        }
        next = nt_search_ahead(at, next, strip->states, high, ahead);
        ahead = next - first;
        const size_t end = next > first ? next : first + 1;
        const size_t state = nt_strip_highest(strip, false, first, end);
        out->event[c] = (int32_t)state - 1;
        out->allocated[c] = strip_series_at(&strip->allocated, state);
        out->reserved[c] = strip_series_at(&strip->reserved,
                                           nt_strip_highest(strip, true, first, end));
        if (strip->band_count != 0) {
            strip_bands_at(strip, state, &known, bands);
            memcpy(out->bands + c * strip->band_count, bands,
                   strip->band_count * sizeof *bands);
        }
    }
    nt_release(&strip->alloc, bands, room);
    return NT_OK;
}
