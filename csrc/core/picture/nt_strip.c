/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_strip.h"

#include <string.h>

#include "picture/nt_strip_series.h"
#include "base/nt_search.h"
#include "base/nt_sort.h"

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
    return nt_strip_series_highest(reserved ? &strip->reserved : &strip->allocated,
                                   first, end);
}

uint64_t
nt_strip_bytes(const nt_strip *strip, bool reserved, size_t state)
{
    return nt_strip_series_at(reserved ? &strip->reserved : &strip->allocated, state);
}

/* ---- bands --------------------------------------------------------------------------
 */

static nt_status
strip_add_extra(nt_strip *strip, uint32_t row, int32_t event, bool ends, nt_error *err)
{
    NT_TRY(nt_grow(&strip->alloc, (void **)&strip->extras, &strip->extra_capacity,
                   strip->extra_count + 1, sizeof *strip->extras, err));
    strip->extras[strip->extra_count++] =
        (nt_sort_item){.key = (uint64_t)event * 2 + ends, .value = row};
    return NT_OK;
}

/* Several rows may come and go with one event of a trace that lost some; an event
 * knows one of them. */
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

/* What an event changes. */
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
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strip->extras[middle].key / 2 < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
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
    nt_release(&strip->alloc, strip->checkpoints,
               strip->checkpoint_count * strip->band_count * sizeof(uint64_t));
    strip->checkpoints = NULL;
    strip->codes = NULL;
    strip->checkpoint_count = strip->band_count = 0;
}

nt_status
nt_strip_set_bands(nt_strip *strip, const uint8_t *codes, size_t count, nt_error *err)
{
    strip_release_bands(strip);
    const size_t checkpoints = (strip->states - 1) / CHECKPOINT + 1;
    uint64_t *room = nt_allocate(&strip->alloc, checkpoints * count * sizeof *room);
    if (room == NULL) {
        return nt_fail_nomem(err);
    }
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

/* ---- making and drawing -------------------------------------------------------------
 */

nt_status
nt_strip_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_strip **out,
             nt_error *err)
{
    nt_strip *strip = nt_allocate(alloc, sizeof *strip);
    if (strip == NULL) {
        return nt_fail_nomem(err);
    }
    *strip = (nt_strip){.alloc = *alloc,
                        .timeline = timeline,
                        .states = nt_timeline_event_count(timeline) + 1};
    nt_status status;
    NT_TRY_DONE(nt_strip_series_make(alloc, timeline, NT_METRIC_ALLOCATED,
                                     strip->states, &strip->allocated, err));
    NT_TRY_DONE(nt_strip_series_make(alloc, timeline, NT_METRIC_RESERVED, strip->states,
                                     &strip->reserved, err));
    NT_TRY_DONE(strip_find_extras(strip, err));
    *out = strip;
    return NT_OK;
done:
    nt_strip_free(strip);
    return status;
}

void
nt_strip_free(nt_strip *strip)
{
    if (strip == NULL) {
        return;
    }
    const nt_alloc alloc = strip->alloc;
    strip_release_bands(strip);
    nt_strip_series_clear(&alloc, &strip->allocated);
    nt_strip_series_clear(&alloc, &strip->reserved);
    nt_release(&alloc, strip->extras, strip->extra_capacity * sizeof *strip->extras);
    nt_release(&alloc, strip, sizeof *strip);
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
    uint64_t *bands = nt_allocate(&strip->alloc, room);
    if (bands == NULL) {
        return nt_fail_nomem(err);
    }
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
        out->allocated[c] = nt_strip_series_at(&strip->allocated, state);
        out->reserved[c] = nt_strip_series_at(
            &strip->reserved, nt_strip_highest(strip, true, first, end));
        if (strip->band_count != 0) {
            strip_bands_at(strip, state, &known, bands);
            memcpy(out->bands + c * strip->band_count, bands,
                   strip->band_count * sizeof *bands);
        }
    }
    nt_release(&strip->alloc, bands, room);
    return NT_OK;
}
