/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline.h"

#include <string.h>

#include "base/nt_bitset.h"
#include "base/nt_columns.h"
#include "base/nt_map.h"
#include "base/nt_search.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline_replay.h"

/* How often the allocator ran out of memory, and gave its cache back to try again. It
 * releases segments for four reasons: the user's empty_cache(), which has that frame in
 * its stack; the retry, right before the segment that it then gets, or the OOM; and,
 * where the settings say so, to collect garbage or to make room for a request that
 * max_split_size_mb makes oversize, likewise right before a segment. Where only
 * allocations have stacks, what empty_cache() releases has the stack of the segment's
 * allocation; what a request releases has that request's. */

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

static nt_status
timeline_count_retries(nt_timeline *t, nt_error *err)
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

/* A trace against itself: what is allocated where something is, where nothing is
 * reserved, or is left in a segment that goes. Programs use the same addresses again
 * and again; so each distinct one has a number, in the order of addresses, and what is
 * alive is a set of numbers. */

/* So many events at the end of a trace are looked through for what lies where; in a
 * longer one the rest would cost a third of the time it takes to load. */
#define MOST_EVENTS ((size_t)1 << 18)

typedef struct broken {
    const nt_timeline *t;
    size_t from; /* the first event that is looked at */
    const nt_event_columns *events;
    nt_alloc alloc;
    uint32_t *numbers;    /* by row: of its address, at first as it was first seen */
    nt_sort_item *places; /* by number: an address; its value is no use */
    size_t place_count, place_capacity;
    uint64_t *sizes;      /* by number: requested in what is alive there */
    uint64_t *known;      /* by number: up to where memory is reserved from there on */
    uint32_t *known_when; /* by number: the state of the segments in which that held */
    nt_bitset live;
    nt_sort_item *starts; /* where reserved ranges ever begin, upwards; values unused */
    size_t start_count, start_capacity;
    nt_bitset begins;  /* those of them at which one begins now */
    uint64_t *ends;    /* by start: where it ends */
    uint32_t state;    /* counts changes of what is reserved */
    size_t next;       /* of t->reserved */
    bool has_segments; /* else it is a trace of the CPU's allocator */
    nt_broken_note notes[NT_TRACE_BROKEN_KINDS];
    nt_error *err;
} broken;

static void
broken_note(broken *b, nt_broken kind, size_t event, uint64_t bytes)
{
    nt_broken_note *note = &b->notes[kind - NT_BROKEN_FREE];
    if (note->count == 0) {
        *note = (nt_broken_note){
            .kind = (uint8_t)kind, .device = b->t->device, .first = event};
    }
    note->count++;
    note->bytes += bytes;
}

/* What the replay could not match, by event. */
static void
broken_collect_unmatched(broken *b)
{
    const nt_timeline *t = b->t;
    const int32_t *freed = t->allocations.free_event;
    for (size_t i = 0; i < t->count; i++) {
        const uint8_t action = b->events->action[t->first + i];
        const uint32_t row = t->event_allocations[i];
        if ((action == NT_ACTION_FREE_REQUESTED &&
             (row == NT_NONE || freed[row] != (int32_t)i)) ||
            (action == NT_ACTION_FREE_COMPLETED && row == NT_NONE)) {
            broken_note(b, NT_BROKEN_FREE, i, 0);
        }
    }
    for (size_t i = 0; i < t->lost_count; i++) {
        const nt_lost_event *lost = &t->lost[i];
        const bool at_end = lost->event == (int32_t)t->count - 1 &&
                            t->event_allocations[lost->event] != lost->row;
        broken_note(b, at_end ? NT_BROKEN_LIVE_SET : NT_BROKEN_ALLOC,
                    (size_t)lost->event, t->allocations.size[lost->row]);
    }
    uint64_t found = 0;
    for (size_t kind = 0; kind < NT_TRACE_BROKEN_KINDS; kind++) {
        found += b->notes[kind].count;
    }
    for (uint64_t i = found; i < t->facts.unmatched; i++) {
        broken_note(b, NT_BROKEN_SEGMENT, t->count == 0 ? 0 : t->count - 1, 0);
    }
}

/* Whether a row is alive at the first event that is looked at, or later. */
static inline bool
broken_concerns(const broken *b, size_t row)
{
    const int32_t gone = b->t->allocations.completed_event[row];
    return gone == NT_EVENT_NEVER || gone >= (int32_t)b->from;
}

/* Numbers the addresses of the allocations as they are first seen. */
static nt_status
broken_see_places(broken *b, nt_map *seen)
{
    const nt_allocation_columns *a = &b->t->allocations;
    for (size_t row = 0; row < a->count; row++) {
        if (!broken_concerns(b, row)) {
            continue;
        }
        uint32_t number = nt_map_find(seen, a->address[row]);
        if (number == NT_NONE) {
            number = (uint32_t)b->place_count;
            NT_TRY(nt_map_set(seen, a->address[row], number, b->err));
            NT_TRY(NT_GROW(&b->alloc, b->places, b->place_capacity, b->place_count + 1,
                           b->err));
            b->places[b->place_count++] = (nt_sort_item){a->address[row], number};
        }
        b->numbers[row] = number;
    }
    return NT_OK;
}

/* The numbers become those of the order of addresses. */
static nt_status
broken_order_places(broken *b)
{
    const size_t bytes = b->place_count * sizeof(uint32_t);
    uint32_t *rank;
    NT_TRY(nt_take(&b->alloc, (void **)&rank, bytes, b->err));
    nt_sort(b->places, b->place_count);
    for (size_t number = 0; number < b->place_count; number++) {
        rank[b->places[number].value] = (uint32_t)number;
    }
    for (size_t row = 0; row < b->t->allocations.count; row++) {
        if (broken_concerns(b, row)) {
            b->numbers[row] = rank[b->numbers[row]];
        }
    }
    nt_release(&b->alloc, rank, bytes);
    return NT_OK;
}

static nt_status
broken_find_places(broken *b)
{
    nt_map seen;
    const size_t rows = b->t->allocations.count;
    NT_TRY(NT_NEW(&b->alloc, b->numbers, rows, b->err));
    nt_map_init(&seen, b->alloc);
    nt_status status = broken_see_places(b, &seen);
    nt_map_clear(&seen);
    return status == NT_OK ? broken_order_places(b) : status;
}

/* The first of `count` sorted items whose key is at least `key`. */
static size_t
broken_rank(const nt_sort_item *items, size_t count, uint64_t key)
{
    size_t low = 0, high = count;
    NT_BISECT(low, high, middle, items[middle].key < key);
    return low;
}

/* The distinct addresses at which ranges are reserved in the trace. */
static nt_status
broken_find_starts(broken *b)
{
    const nt_segment_life_columns *s = &b->t->segments;
    b->start_capacity = s->count;
    b->starts = nt_allocate(&b->alloc, s->count * sizeof(nt_sort_item));
    b->ends = nt_allocate(&b->alloc, s->count * sizeof(uint64_t));
    if ((b->starts == NULL || b->ends == NULL) && s->count != 0) {
        return nt_fail_nomem(b->err);
    }
    for (size_t row = 0; row < s->count; row++) {
        b->starts[row] = (nt_sort_item){s->address[row], 0};
    }
    nt_sort(b->starts, s->count);
    for (size_t row = 0; row < s->count; row++) {
        if (row == 0 || b->starts[row].key != b->starts[b->start_count - 1].key) {
            b->starts[b->start_count++] = b->starts[row];
        }
    }
    return nt_bitset_init(&b->begins, b->alloc, b->start_count, b->err);
}

static nt_status
broken_allocate(broken *b)
{
    const size_t places = b->place_count;
    NT_TRY(nt_bitset_init(&b->live, b->alloc, places, b->err));
    b->sizes = nt_allocate(&b->alloc, places * sizeof(uint64_t));
    b->known = nt_allocate(&b->alloc, places * sizeof(uint64_t));
    b->known_when = nt_allocate(&b->alloc, places * sizeof(uint32_t));
    if (places != 0 &&
        (b->sizes == NULL || b->known == NULL || b->known_when == NULL)) {
        return nt_fail_nomem(b->err);
    }
    for (size_t number = 0; number < places; number++) {
        b->known_when[number] = 0;
    }
    return broken_find_starts(b);
}

static void
broken_clear(broken *b)
{
    const size_t places = b->place_count;
    NT_RELEASE(&b->alloc, b->sizes, places);
    NT_RELEASE(&b->alloc, b->known, places);
    NT_RELEASE(&b->alloc, b->known_when, places);
    NT_RELEASE(&b->alloc, b->starts, b->start_capacity);
    NT_RELEASE(&b->alloc, b->ends, b->start_capacity);
    NT_RELEASE(&b->alloc, b->numbers, b->t->allocations.count);
    NT_RELEASE(&b->alloc, b->places, b->place_capacity);
    nt_bitset_clear(&b->live);
    nt_bitset_clear(&b->begins);
}

/* A row of the segments is reserved from now on, or no more. */
static void
broken_reserve(broken *b, size_t row, bool begins)
{
    const nt_segment_life_columns *s = &b->t->segments;
    const size_t start = broken_rank(b->starts, b->start_count, s->address[row]);
    b->state++;
    if (begins) {
        b->ends[start] = s->address[row] + s->size[row];
        nt_bitset_add(&b->begins, start);
    } else {
        nt_bitset_remove(&b->begins, start);
    }
}

/* Up to where memory is reserved without a gap from `address` on; `address` itself
 * where it is not. */
static uint64_t
broken_reserved_end(const broken *b, uint64_t address)
{
    uint64_t end = address;
    const size_t behind = broken_rank(b->starts, b->start_count, address + 1);
    size_t at = behind == 0 ? NT_NO_MEMBER : nt_bitset_last(&b->begins, behind - 1);
    while (at != NT_NO_MEMBER && b->starts[at].key <= end && b->ends[at] > end) {
        end = b->ends[at];
        at =
            at + 1 < b->start_count ? nt_bitset_next(&b->begins, at + 1) : NT_NO_MEMBER;
    }
    return end;
}

/* The segments as they are after event `i`; a range that the device gets back has no
 * block in it. */
static void
broken_step_segments(broken *b, size_t i)
{
    const nt_timeline *t = b->t;
    const nt_segment_life_columns *s = &t->segments;
    const size_t from = b->next;
    while (b->next < t->reserved_count && t->reserved[b->next].key == i) {
        const uint32_t row = t->reserved[b->next++].value;
        if (s->free_event[row] == (int32_t)i) {
            broken_reserve(b, row, false);
        }
    }
    for (size_t at = from; at < b->next; at++) {
        const uint32_t row = t->reserved[at].value;
        if (s->alloc_event[row] == (int32_t)i && s->free_event[row] != (int32_t)i) {
            broken_reserve(b, row, true);
        }
    }
}

/* Whether something alive is in a range of addresses; numbers from `at` on are in it or
 * behind it. */
static bool
broken_is_taken(const broken *b, size_t at, uint64_t address, uint64_t size)
{
    const size_t behind =
        at < b->place_count ? nt_bitset_next(&b->live, at) : NT_NO_MEMBER;
    if (behind != NT_NO_MEMBER && b->places[behind].key - address < size) {
        return true;
    }
    const size_t before = at == 0 ? NT_NO_MEMBER : nt_bitset_last(&b->live, at - 1);
    return before != NT_NO_MEMBER && address - b->places[before].key < b->sizes[before];
}

static void
broken_step_alloc(broken *b, size_t i, uint32_t row)
{
    const uint64_t address = b->t->allocations.address[row];
    const uint64_t size = b->t->allocations.requested_size[row];
    const uint32_t number = b->numbers[row];
    /* What is at the same address is known to the replay. */
    nt_bitset_remove(&b->live, number);
    if (NT_UNLIKELY(broken_is_taken(b, number, address, size))) {
        broken_note(b, NT_BROKEN_ALLOC, i, size);
    }
    if (b->has_segments) {
        if (b->known_when[number] != b->state) {
            b->known[number] = broken_reserved_end(b, address);
            b->known_when[number] = b->state;
        }
        if (NT_UNLIKELY(b->known[number] - address < size)) {
            broken_note(b, NT_BROKEN_UNRESERVED, i, size);
        }
    }
    b->sizes[number] = size;
    nt_bitset_add(&b->live, number);
}

static void
broken_step(broken *b, size_t i)
{
    const size_t at = b->t->first + i;
    const uint32_t row = b->t->event_allocations[i];
    const uint8_t action = b->events->action[at];
    if (action == NT_ACTION_ALLOC) {
        broken_step_alloc(b, i, row);
    } else if (action == NT_ACTION_FREE_COMPLETED && row != NT_NONE) {
        nt_bitset_remove(&b->live, b->numbers[row]);
    } else if (nt_events_is_release(action) && b->has_segments) {
        const uint64_t address = b->events->addr[at], size = b->events->size[at];
        if (broken_is_taken(b, broken_rank(b->places, b->place_count, address), address,
                            size)) {
            broken_note(b, NT_BROKEN_SEGMENT_FREE, i, size);
        }
    }
}

/* What is there before the first event that is looked at. */
static void
broken_begin(broken *b)
{
    const nt_timeline *t = b->t;
    const nt_allocation_columns *a = &t->allocations;
    b->state = 1;
    for (size_t row = 0; row < t->segments.count; row++) {
        if (t->segments.alloc_event[row] == NT_EVENT_BEFORE) {
            broken_reserve(b, row, true);
        }
    }
    while (b->next < t->reserved_count && t->reserved[b->next].key < b->from) {
        broken_step_segments(b, (size_t)t->reserved[b->next].key);
    }
    for (size_t row = 0; row < a->count && a->alloc_event[row] < (int32_t)b->from;
         row++) {
        if (broken_concerns(b, row)) {
            b->sizes[b->numbers[row]] = a->requested_size[row];
            nt_bitset_add(&b->live, b->numbers[row]);
        }
    }
}

static nt_status
broken_run(broken *b)
{
    const nt_timeline *t = b->t;
    if (t->facts.unmatched != 0) {
        broken_collect_unmatched(b);
    }
    if (t->count == 0) {
        return NT_OK;
    }
    NT_TRY(broken_find_places(b));
    NT_TRY(broken_allocate(b));
    broken_begin(b);
    for (size_t i = b->from; i < t->count; i++) {
        if (NT_UNLIKELY(b->next < t->reserved_count && t->reserved[b->next].key == i)) {
            broken_step_segments(b, i);
        }
        broken_step(b, i);
    }
    return NT_OK;
}

nt_status
nt_timeline_broken(const nt_timeline *t, nt_broken_note out[NT_TRACE_BROKEN_KINDS],
                   size_t *count, nt_error *err)
{
    broken b = {
        .t = t,
        .events = nt_snapshot_events(t->snapshot),
        .from = t->count > MOST_EVENTS ? t->count - MOST_EVENTS : 0,
        .alloc = t->alloc,
        .has_segments = !nt_snapshot_settings(t->snapshot)->exact_sizes,
        .err = err,
    };
    const nt_status status = broken_run(&b);
    broken_clear(&b);
    if (status != NT_OK) {
        return status;
    }
    *count = 0;
    for (size_t kind = 0; kind < NT_TRACE_BROKEN_KINDS; kind++) {
        if (b.notes[kind].count != 0) {
            out[(*count)++] = b.notes[kind];
        }
    }
    return NT_OK;
}

/* Which block lay where after an event: the ranges reserved then and the blocks active
 * then, both by address, walked side by side. What no active block covers is one
 * inactive block, because the allocator merges free neighbours. */

/* A layout with what is needed to add to it and to free it. */
typedef struct timeline_layout {
    nt_layout layout; /* first: the caller holds a pointer to it */
    size_t segment_capacity, block_capacity;
} timeline_layout;

typedef struct layout_maker {
    const nt_timeline *t;
    int32_t event;
    nt_sort_item *blocks, *segments; /* rows by address */
    size_t block_count, segment_count;
    timeline_layout *out;
    nt_error *err;
} layout_maker;

/* The rows for which `is_there` holds, by address. */
static nt_status
layout_select(const layout_maker *m, size_t rows, const uint64_t *address,
              bool (*is_there)(const nt_timeline *, size_t, int32_t),
              nt_sort_item **items, size_t *count)
{
    size_t selected = 0, bytes;
    for (size_t row = 0; row < rows; row++) {
        selected += is_there(m->t, row, m->event);
    }
    *items = nt_size_mul(selected, sizeof(nt_sort_item), &bytes)
                 ? nt_allocate(&m->t->alloc, bytes)
                 : NULL;
    if (*items == NULL && selected != 0) {
        return nt_fail_nomem(m->err);
    }
    for (size_t row = 0; row < rows; row++) {
        if (is_there(m->t, row, m->event)) {
            (*items)[(*count)++] = (nt_sort_item){address[row], (uint32_t)row};
        }
    }
    nt_sort(*items, selected);
    return NT_OK;
}

static nt_status
layout_add_block(layout_maker *m, const nt_block *block)
{
    timeline_layout *out = m->out;
    nt_segment_columns *s = &out->layout.segments;
    const size_t segment = s->count - 1;
    if (block->state != NT_BLOCK_INACTIVE) {
        s->active_size[segment] += block->size;
        s->requested_size[segment] += block->requested_size;
    }
    if (block->state == NT_BLOCK_ACTIVE_ALLOCATED) {
        s->allocated_size[segment] += block->size;
    }
    return nt_layout_add_block(&out->layout, &m->t->alloc, &out->block_capacity, block,
                               m->err);
}

static nt_status
layout_add_hole(layout_maker *m, uint64_t from, uint64_t to)
{
    if (from >= to) {
        return NT_OK;
    }
    const nt_block hole = {
        .address = from,
        .size = to - from,
        .state = NT_BLOCK_INACTIVE,
        .stack = NT_EMPTY_STACK,
    };
    return layout_add_block(m, &hole);
}

/* The blocks of [address, end), from number *next on. */
static nt_status
layout_fill(layout_maker *m, uint64_t address, uint64_t end, size_t *next)
{
    const nt_allocation_columns *a = &m->t->allocations;
    while (*next < m->block_count && m->blocks[*next].key < address) {
        ++*next; /* in no segment: the trace has a gap */
    }
    for (; *next < m->block_count && m->blocks[*next].key < end; ++*next) {
        const uint32_t row = m->blocks[*next].value;
        if (a->address[row] < address || a->size[row] > end - a->address[row]) {
            continue;
        }
        NT_TRY(layout_add_hole(m, address, a->address[row]));
        const nt_block block = {
            .address = a->address[row],
            .size = a->size[row],
            .requested_size = a->requested_size[row],
            .state = nt_timeline_is_allocated(m->t, row, m->event)
                         ? NT_BLOCK_ACTIVE_ALLOCATED
                         : NT_BLOCK_ACTIVE_PENDING_FREE,
            .stack = a->stack[row],
        };
        NT_TRY(layout_add_block(m, &block));
        address = block.address + block.size;
    }
    return layout_add_hole(m, address, end);
}

/* Whether two rows are ranges of one expandable segment that touch. */
static bool
layout_is_continued(const nt_timeline *t, uint32_t row, uint64_t end, uint32_t next)
{
    const nt_segment_life_columns *s = &t->segments;
    return s->is_expandable[row] && s->is_expandable[next] && s->address[next] == end &&
           s->stream[row] == s->stream[next] && s->kind[row] == s->kind[next] &&
           s->pool_first[row] == s->pool_first[next] &&
           s->pool_second[row] == s->pool_second[next];
}

static nt_status
layout_fill_segments(layout_maker *m)
{
    const nt_segment_life_columns *s = &m->t->segments;
    size_t next_block = 0;
    for (size_t i = 0; i < m->segment_count;) {
        const uint32_t row = m->segments[i++].value;
        uint64_t end = s->address[row] + s->size[row];
        while (i < m->segment_count &&
               layout_is_continued(m->t, row, end, m->segments[i].value)) {
            end += s->size[m->segments[i++].value];
        }
        const nt_segment segment = {
            .device = m->t->device,
            .address = s->address[row],
            .total_size = end - s->address[row],
            .stream = s->stream[row],
            .pool = {s->pool_first[row], s->pool_second[row]},
            .kind = s->kind[row],
            .is_expandable = s->is_expandable[row] != 0,
            .stack = s->stack[row],
        };
        NT_TRY(nt_layout_add_segment(&m->out->layout, &m->t->alloc,
                                     &m->out->segment_capacity, &segment, m->err));
        NT_TRY(layout_fill(m, segment.address, end, &next_block));
    }
    return NT_OK;
}

static nt_status
layout_make(layout_maker *m)
{
    const nt_timeline *t = m->t;
    NT_TRY(layout_select(m, t->segments.count, t->segments.address,
                         nt_timeline_is_reserved, &m->segments, &m->segment_count));
    NT_TRY(layout_select(m, t->allocations.count, t->allocations.address,
                         nt_timeline_is_active, &m->blocks, &m->block_count));
    return layout_fill_segments(m);
}

void
nt_timeline_layout_free(const nt_timeline *t, nt_layout *layout)
{
    if (layout != NULL) {
        timeline_layout *whole = (timeline_layout *)layout;
        nt_layout_clear(layout, &t->alloc, whole->segment_capacity,
                        whole->block_capacity);
        nt_release(&t->alloc, whole, sizeof *whole);
    }
}

nt_status
nt_timeline_layout(const nt_timeline *t, int32_t event, nt_layout **out, nt_error *err)
{
    if (event < -1 || event >= (int32_t)t->count) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "event %d is not in the trace of %zu events", (int)event,
                       t->count);
    }
    layout_maker m = {.t = t, .event = event, .err = err};
    NT_TRY(NT_NEW(&t->alloc, m.out, 1, err));
    *m.out = (timeline_layout){.segment_capacity = 0};
    const nt_status status = layout_make(&m);
    NT_RELEASE(&t->alloc, m.segments, m.segment_count);
    NT_RELEASE(&t->alloc, m.blocks, m.block_count);
    if (status != NT_OK) {
        nt_timeline_layout_free(t, &m.out->layout);
        return status;
    }
    *out = &m.out->layout;
    return NT_OK;
}

/* Who holds the bytes: live allocations put together by where they were made. */

typedef struct holder_table {
    const nt_timeline *t;
    nt_holder_key by;
    nt_map names; /* by function: (name, filename) -> frame id that stands for it */
    nt_holder *entries; /* by key; the last one: no stack */
    size_t size;
    nt_error *err;
} holder_table;

/* The frame that stands for the function of `frame`. */
static nt_status
holders_function(holder_table *h, uint32_t frame, uint32_t *out)
{
    const nt_frame *f = &nt_stacks_frames(nt_snapshot_stacks(h->t->snapshot))[frame];
    const uint64_t key = (uint64_t)f->name << 32 | f->filename;
    *out = nt_map_find(&h->names, key);
    if (*out == NT_NONE) {
        *out = frame;
        return nt_map_set(&h->names, key, frame, h->err);
    }
    return NT_OK;
}

/* The entry that an allocation made at `stack` counts for. */
static nt_status
holders_entry(holder_table *h, uint32_t stack, size_t *out)
{
    *out = h->size - 1;
    if (stack == NT_NO_STACK || h->by == NT_BY_STACK) {
        *out = stack == NT_NO_STACK ? *out : stack;
        return NT_OK;
    }
    const uint32_t frame =
        nt_stacks_innermost(nt_snapshot_stacks(h->t->snapshot))[stack];
    if (frame == NT_NONE) {
        return NT_OK;
    }
    uint32_t key = frame;
    if (h->by == NT_BY_FUNCTION) {
        NT_TRY(holders_function(h, frame, &key));
    }
    *out = key;
    return NT_OK;
}

static nt_status
holders_sum(holder_table *h, int32_t event)
{
    const nt_allocation_columns *a = &h->t->allocations;
    for (size_t row = 0; row < a->count; row++) {
        if (!nt_timeline_is_allocated(h->t, row, event)) {
            continue;
        }
        size_t entry;
        NT_TRY(holders_entry(h, a->stack[row], &entry));
        h->entries[entry].count++;
        h->entries[entry].bytes += a->size[row];
        h->entries[entry].requested_bytes += a->requested_size[row];
    }
    return NT_OK;
}

/* The entries with something in them, largest first, in an array of their own. */
static nt_status
holders_rank(holder_table *h, nt_holder **out, size_t *count)
{
    const nt_alloc *alloc = &h->t->alloc;
    size_t used = 0, filled = 0;
    for (size_t i = 0; i < h->size; i++) {
        used += h->entries[i].count != 0;
    }
    nt_sort_item *order = nt_allocate(alloc, used * sizeof *order);
    nt_holder *ranked = nt_allocate(alloc, used * sizeof *ranked);
    if (used != 0 && (order == NULL || ranked == NULL)) {
        NT_RELEASE(alloc, order, used);
        NT_RELEASE(alloc, ranked, used);
        return nt_fail_nomem(h->err);
    }
    for (uint32_t i = 0; i < h->size; i++) {
        if (h->entries[i].count != 0) {
            order[filled++] = (nt_sort_item){UINT64_MAX - h->entries[i].bytes, i};
        }
    }
    nt_sort(order, used);
    for (size_t i = 0; i < used; i++) {
        ranked[i] = h->entries[order[i].value];
        ranked[i].key = order[i].value == h->size - 1 ? NT_NONE : order[i].value;
    }
    NT_RELEASE(alloc, order, used);
    *out = ranked;
    *count = used;
    return NT_OK;
}

nt_status
nt_timeline_holders(const nt_timeline *t, int32_t event, nt_holder_key by,
                    nt_holder **out, size_t *count, nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(t->snapshot);
    holder_table h = {.t = t, .by = by, .err = err};
    h.size = 1 + (by == NT_BY_STACK ? nt_stacks_count(stacks)
                                    : nt_stacks_frame_count(stacks));
    NT_TRY(NT_NEW(&t->alloc, h.entries, h.size, err));
    memset(h.entries, 0, h.size * sizeof(nt_holder));
    nt_map_init(&h.names, t->alloc);
    nt_status status = holders_sum(&h, event);
    if (status == NT_OK) {
        status = holders_rank(&h, out, count);
    }
    nt_map_clear(&h.names);
    NT_RELEASE(&t->alloc, h.entries, h.size);
    return status;
}

void
nt_timeline_holders_free(const nt_timeline *t, nt_holder *holders, size_t count)
{
    NT_RELEASE(&t->alloc, holders, count);
}

/* One entry a stack, the last for allocations without one. `held` is what the stack
 * holds while the trace is walked through. */
typedef struct churn_table {
    nt_churn *entries;
    uint64_t *held;
    size_t size;
} churn_table;

static size_t
churn_entry(const churn_table *table, uint32_t stack)
{
    return stack == NT_NO_STACK ? table->size - 1 : stack;
}

static void
churn_hold(churn_table *table, size_t entry, uint64_t bytes, int32_t event)
{
    nt_churn *churn = &table->entries[entry];
    table->held[entry] += bytes;
    if (table->held[entry] > churn->peak_bytes) {
        churn->peak_bytes = table->held[entry];
        churn->peak_event = event;
    }
}

static void
churn_step(const nt_timeline *t, churn_table *table, uint32_t row, int32_t event)
{
    const nt_allocation_columns *a = &t->allocations;
    const size_t entry = churn_entry(table, a->stack[row]);
    const uint8_t action =
        nt_snapshot_events(t->snapshot)->action[t->first + (size_t)event];
    if (action == NT_ACTION_ALLOC) {
        table->entries[entry].count++;
        table->entries[entry].bytes += a->size[row];
        churn_hold(table, entry, a->size[row], event);
    } else if (a->free_event[row] == event) {
        table->held[entry] -= a->size[row];
    }
}

/* What event `i` does to rows that are not its own, from number `lost` of t->lost on:
 * the frees before its own doing, so that no peak counts both, the allocations
 * after. */
static void
churn_step_lost(const nt_timeline *t, churn_table *table, size_t lost, int32_t event,
                bool allocations)
{
    for (; lost < t->lost_count && t->lost[lost].event == event; lost++) {
        const uint8_t changes = t->lost[lost].changes;
        const uint32_t row = t->lost[lost].row;
        const size_t entry = churn_entry(table, t->allocations.stack[row]);
        if (allocations && changes == NT_LOST_ALLOCATION) {
            churn_hold(table, entry, t->allocations.size[row], event);
        } else if (!allocations && (changes & NT_LOST_FREE) &&
                   !(changes & NT_LOST_ALLOCATION)) {
            table->held[entry] -= t->allocations.size[row];
        }
    }
}

static void
churn_walk(const nt_timeline *t, churn_table *table)
{
    const nt_allocation_columns *a = &t->allocations;
    for (size_t row = 0; row < a->count; row++) {
        if (nt_timeline_is_allocated(t, row, -1)) {
            churn_hold(table, churn_entry(table, a->stack[row]), a->size[row], -1);
        }
    }
    size_t lost = 0;
    for (size_t i = 0; i < t->count; i++) {
        churn_step_lost(t, table, lost, (int32_t)i, false);
        if (t->event_allocations[i] != NT_NONE) {
            churn_step(t, table, t->event_allocations[i], (int32_t)i);
        }
        churn_step_lost(t, table, lost, (int32_t)i, true);
        while (lost < t->lost_count && t->lost[lost].event == (int32_t)i) {
            lost++;
        }
    }
}

/* Moves the entries that were used to the front and says how many. */
static size_t
churn_pack(churn_table *table)
{
    size_t used = 0;
    for (size_t i = 0; i < table->size; i++) {
        if (table->entries[i].count != 0 || table->entries[i].peak_bytes != 0) {
            const uint32_t stack = i == table->size - 1 ? NT_NO_STACK : (uint32_t)i;
            table->entries[used] = table->entries[i];
            table->entries[used++].stack = stack;
        }
    }
    return used;
}

nt_status
nt_timeline_churn(const nt_timeline *t, nt_churn **out, size_t *count, nt_error *err)
{
    churn_table table = {.size = nt_stacks_count(nt_snapshot_stacks(t->snapshot)) + 1};
    size_t capacity = table.size;
    void *entries = nt_allocate(&t->alloc, table.size * sizeof(nt_churn));
    table.held = nt_allocate(&t->alloc, table.size * sizeof(uint64_t));
    if (entries == NULL || table.held == NULL) {
        nt_release(&t->alloc, entries, table.size * sizeof(nt_churn));
        NT_RELEASE(&t->alloc, table.held, table.size);
        return nt_fail_nomem(err);
    }
    table.entries = entries;
    memset(entries, 0, table.size * sizeof(nt_churn));
    memset(table.held, 0, table.size * sizeof(uint64_t));
    churn_walk(t, &table);
    const size_t used = churn_pack(&table);
    NT_RELEASE(&t->alloc, table.held, table.size);
    nt_shrink(&t->alloc, &entries, &capacity, used, sizeof(nt_churn));
    if (capacity != used) {
        nt_release(&t->alloc, entries, capacity * sizeof(nt_churn));
        return nt_fail_nomem(err);
    }
    *out = entries;
    *count = used;
    return NT_OK;
}

void
nt_timeline_churn_free(const nt_timeline *t, nt_churn *churn, size_t count)
{
    NT_RELEASE(&t->alloc, churn, count);
}

/* The bytes after an event, and how many rows of t->lost are behind. */
typedef struct timeline_sums {
    uint64_t bytes[NT_METRIC_COUNT];
    size_t lost;
} timeline_sums;

static inline void
timeline_begin_row(const nt_timeline *t, timeline_sums *sums, uint32_t row)
{
    const nt_allocation_columns *a = &t->allocations;
    sums->bytes[NT_METRIC_ALLOCATED] += a->size[row];
    sums->bytes[NT_METRIC_ACTIVE] += a->size[row];
    sums->bytes[NT_METRIC_REQUESTED] += a->requested_size[row];
}

static inline void
timeline_complete_row(const nt_timeline *t, timeline_sums *sums, uint32_t row)
{
    sums->bytes[NT_METRIC_ACTIVE] -= t->allocations.size[row];
    sums->bytes[NT_METRIC_REQUESTED] -= t->allocations.requested_size[row];
}

/* What happens to rows with event `i` that is not theirs. */
static void
timeline_step_lost(const nt_timeline *t, timeline_sums *sums, size_t i)
{
    for (; sums->lost < t->lost_count && t->lost[sums->lost].event == (int32_t)i;
         sums->lost++) {
        const nt_lost_event *lost = &t->lost[sums->lost];
        if (lost->changes & NT_LOST_ALLOCATION) {
            timeline_begin_row(t, sums, lost->row);
        }
        if (lost->changes & NT_LOST_FREE) {
            sums->bytes[NT_METRIC_ALLOCATED] -= t->allocations.size[lost->row];
        }
        if (lost->changes & NT_LOST_COMPLETION) {
            timeline_complete_row(t, sums, lost->row);
        }
    }
}

/* Moves the sums of the blocks on by event `i`. Whether it allocates or frees is a
 * factor and no branch, which would be guessed wrongly every other time. */
static inline void
timeline_step(const nt_timeline *t, const uint8_t *actions, timeline_sums *sums,
              size_t i)
{
    const uint32_t row = t->event_allocations[i];
    if (row != NT_NONE) {
        const nt_allocation_columns *a = &t->allocations;
        const uint64_t begins = actions[i] == NT_ACTION_ALLOC;
        /* A free_completed without a free_requested is both. */
        const uint64_t is_freed = a->free_event[row] == (int32_t)i && begins == 0;
        const uint64_t completes = actions[i] == NT_ACTION_FREE_COMPLETED;
        sums->bytes[NT_METRIC_ALLOCATED] += (begins - is_freed) * a->size[row];
        sums->bytes[NT_METRIC_ACTIVE] += (begins - completes) * a->size[row];
        sums->bytes[NT_METRIC_REQUESTED] +=
            (begins - completes) * a->requested_size[row];
    }
    timeline_step_lost(t, sums, i);
}

/* What each event does; NULL where there is none. */
static const uint8_t *
timeline_actions(const nt_timeline *t)
{
    return t->count == 0 ? NULL : nt_snapshot_events(t->snapshot)->action + t->first;
}

static timeline_sums
timeline_start(const nt_timeline *t)
{
    timeline_sums sums = {.lost = 0};
    memcpy(sums.bytes, t->facts.start_bytes, sizeof sums.bytes);
    return sums;
}

static void
timeline_raise_peak(nt_moment *peak, uint64_t bytes, int32_t event)
{
    if (bytes > peak->bytes) {
        *peak = (nt_moment){.event = event, .bytes = bytes};
    }
}

static nt_status
timeline_collect_reserved(nt_timeline *t, nt_error *err)
{
    const nt_segment_life_columns *s = &t->segments;
    size_t bytes;
    if (s->count == 0) {
        return NT_OK;
    }
    t->reserved = nt_size_mul(s->count, 2 * sizeof(nt_sort_item), &bytes)
                      ? nt_allocate(&t->alloc, bytes)
                      : NULL;
    if (t->reserved == NULL) {
        return nt_fail_nomem(err);
    }
    t->reserved_capacity = 2 * s->count;
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->alloc_event[row] >= 0) {
            t->reserved[t->reserved_count++] =
                (nt_sort_item){(uint64_t)s->alloc_event[row], row};
        }
        if (s->free_event[row] >= 0) {
            t->reserved[t->reserved_count++] =
                (nt_sort_item){(uint64_t)s->free_event[row], row};
        }
    }
    nt_sort(t->reserved, t->reserved_count);
    return NT_OK;
}

/* The reserved bytes after the events of t->reserved up to `event`. */
static uint64_t
timeline_step_reserved(const nt_timeline *t, uint64_t bytes, size_t *next,
                       int32_t event)
{
    const nt_segment_life_columns *s = &t->segments;
    while (*next < t->reserved_count && t->reserved[*next].key == (uint64_t)event) {
        const uint32_t row = t->reserved[(*next)++].value;
        /* A row that begins and ends with one event stands in the list twice. */
        const bool begins = s->alloc_event[row] == event;
        const bool ends = s->free_event[row] == event;
        if (begins != ends) {
            bytes += begins ? s->size[row] : 0 - s->size[row];
        }
    }
    return bytes;
}

static void
timeline_find_peaks(nt_timeline *t)
{
    static const nt_metric of_blocks[] = {NT_METRIC_ALLOCATED, NT_METRIC_ACTIVE,
                                          NT_METRIC_REQUESTED};
    const uint8_t *actions = timeline_actions(t);
    timeline_sums sums = timeline_start(t);
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        t->peaks[metric] = (nt_moment){.event = -1, .bytes = sums.bytes[metric]};
    }
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, actions, &sums, i);
        for (size_t k = 0; k < NT_LENGTH(of_blocks); k++) {
            timeline_raise_peak(&t->peaks[of_blocks[k]], sums.bytes[of_blocks[k]],
                                (int32_t)i);
        }
    }
}

static void
timeline_find_reserved_peak(nt_timeline *t)
{
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    for (size_t next = 0; next < t->reserved_count;) {
        const int32_t event = (int32_t)t->reserved[next].key;
        reserved = timeline_step_reserved(t, reserved, &next, event);
        timeline_raise_peak(&t->peaks[NT_METRIC_RESERVED], reserved, event);
    }
}

static void
timeline_fill_reserved(const nt_timeline *t, uint64_t *out)
{
    uint64_t reserved = t->facts.start_bytes[NT_METRIC_RESERVED];
    size_t i = 0;
    for (size_t next = 0; next < t->reserved_count;) {
        const size_t event = (size_t)t->reserved[next].key;
        for (; i < event; i++) {
            out[i] = reserved;
        }
        reserved = timeline_step_reserved(t, reserved, &next, (int32_t)event);
    }
    for (; i < t->count; i++) {
        out[i] = reserved;
    }
}

void
nt_timeline_series(const nt_timeline *t, nt_metric metric, uint64_t *out)
{
    if (metric == NT_METRIC_RESERVED) {
        timeline_fill_reserved(t, out);
        return;
    }
    const uint8_t *actions = timeline_actions(t);
    timeline_sums sums = timeline_start(t);
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, actions, &sums, i);
        out[i] = sums.bytes[metric];
    }
}

nt_status
nt_timeline_peak_if_freed(const nt_timeline *t, const int32_t *ends, uint64_t *out,
                          nt_error *err)
{
    const nt_allocation_columns *rows = &t->allocations;
    const uint8_t *actions = timeline_actions(t);
    timeline_sums sums = timeline_start(t);
    uint64_t peak = sums.bytes[NT_METRIC_ALLOCATED], less = 0;
    /* By event, the bytes that are gone from it on; falls where they go as recorded. */
    uint64_t *gone = NULL;
    NT_TRY(NT_NEW(&t->alloc, gone, t->count + 1, err));
    memset(gone, 0, (t->count + 1) * sizeof *gone);
    for (size_t row = 0; row < rows->count; row++) {
        if (ends[row] >= 0) {
            const int32_t freed = rows->free_event[row];
            gone[ends[row] + 1] += rows->size[row];
            gone[freed >= 0 ? (size_t)freed : t->count] -= rows->size[row];
        }
    }
    for (size_t i = 0; i < t->count; i++) {
        timeline_step(t, actions, &sums, i);
        less += gone[i];
        const uint64_t left = sums.bytes[NT_METRIC_ALLOCATED] - less;
        peak = left > peak ? left : peak;
    }
    NT_RELEASE(&t->alloc, gone, t->count + 1);
    *out = peak;
    return NT_OK;
}

/* Counts the alloc events and notes those of other kinds. */
static nt_status
timeline_sort_events(nt_timeline *t, nt_error *err)
{
    if (t->count == 0) {
        return NT_OK;
    }
    const uint8_t *action = timeline_actions(t);
    size_t allocs = 0;
    for (size_t i = 0; i < t->count; i++) {
        allocs += action[i] == NT_ACTION_ALLOC;
        if (NT_UNLIKELY(action[i] > NT_ACTION_FREE_COMPLETED)) {
            NT_TRY(NT_GROW(&t->alloc, t->others, t->other_capacity, t->other_count + 1,
                           err));
            t->others[t->other_count++] = (uint32_t)i;
        }
    }
    t->alloc_count = allocs;
    return NT_OK;
}

static void
timeline_drop_others(nt_timeline *t)
{
    NT_RELEASE(&t->alloc, t->others, t->other_capacity);
    t->others = NULL;
    t->other_count = 0;
    t->other_capacity = 0;
}

static nt_status
timeline_replay(nt_timeline *t, nt_error *err)
{
    NT_TRY(timeline_sort_events(t, err));
    NT_TRY(nt_timeline_replay_segments(t, err));
    t->facts.complete = t->facts.start_bytes[NT_METRIC_RESERVED] == 0;
    NT_TRY(nt_timeline_replay_blocks(t, err));
    NT_TRY(timeline_collect_reserved(t, err));
    if (!t->peaks_stand) {
        timeline_find_peaks(t);
    }
    timeline_find_reserved_peak(t);
    return timeline_count_retries(t, err);
}

void
nt_timeline_free(nt_timeline *t)
{
    if (t == NULL) {
        return;
    }
    const nt_alloc alloc = t->alloc;
    nt_timeline_clear_rows(t);
    NT_RELEASE(&alloc, t->event_allocations, t->count);
    NT_RELEASE(&alloc, t->reserved, t->reserved_capacity);
    NT_RELEASE(&alloc, t->lost, t->lost_capacity);
    timeline_drop_others(t);
    nt_release(&alloc, t, sizeof *t);
}

nt_status
nt_timeline_new(const nt_alloc *alloc, const nt_snapshot *snapshot, int32_t device,
                const nt_progress *progress, nt_timeline **out, nt_error *err)
{
    nt_timeline *t;
    NT_TRY(NT_NEW(alloc, t, 1, err));
    *t = (nt_timeline){.alloc = *alloc, .snapshot = snapshot, .device = device};
    t->progress = progress;
    if (device >= 0) {
        nt_snapshot_trace(snapshot, (size_t)device, &t->first, &t->count);
    }
    const nt_status status = timeline_replay(t, err);
    if (status != NT_OK) {
        nt_timeline_free(t);
        return status;
    }
    t->progress = NULL;
    timeline_drop_others(t);
    *out = t;
    return NT_OK;
}

const nt_snapshot *
nt_timeline_snapshot(const nt_timeline *t)
{
    return t->snapshot;
}

int32_t
nt_timeline_device(const nt_timeline *t)
{
    return t->device;
}

size_t
nt_timeline_event_count(const nt_timeline *t)
{
    return t->count;
}

const nt_allocation_columns *
nt_timeline_allocations(const nt_timeline *t)
{
    return &t->allocations;
}

const nt_segment_life_columns *
nt_timeline_segments(const nt_timeline *t)
{
    return &t->segments;
}

const nt_trace_facts *
nt_timeline_facts(const nt_timeline *t)
{
    return &t->facts;
}

nt_moment
nt_timeline_peak(const nt_timeline *t, nt_metric metric)
{
    return t->peaks[metric];
}

const uint32_t *
nt_timeline_event_allocations(const nt_timeline *t)
{
    return t->event_allocations;
}
