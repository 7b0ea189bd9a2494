/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace against itself: what is allocated where something is, where nothing is
 * reserved, or is left in a segment that goes. Programs use the same addresses again
 * and again; so each distinct one has a number, in the order of addresses, and what is
 * alive is a set of numbers.
 */
#include "base/nt_bitset.h"
#include "base/nt_map.h"
#include "trace/nt_timeline_state.h"

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
            NT_TRY(nt_grow(&b->alloc, (void **)&b->places, &b->place_capacity,
                           b->place_count + 1, sizeof(nt_sort_item), b->err));
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
    uint32_t *rank = nt_allocate(&b->alloc, bytes);
    if (rank == NULL && bytes != 0) {
        return nt_fail_nomem(b->err);
    }
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
    b->numbers = nt_allocate(&b->alloc, rows * sizeof(uint32_t));
    if (b->numbers == NULL && rows != 0) {
        return nt_fail_nomem(b->err);
    }
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
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (items[middle].key < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
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
    nt_release(&b->alloc, b->sizes, places * sizeof(uint64_t));
    nt_release(&b->alloc, b->known, places * sizeof(uint64_t));
    nt_release(&b->alloc, b->known_when, places * sizeof(uint32_t));
    nt_release(&b->alloc, b->starts, b->start_capacity * sizeof(nt_sort_item));
    nt_release(&b->alloc, b->ends, b->start_capacity * sizeof(uint64_t));
    nt_release(&b->alloc, b->numbers, b->t->allocations.count * sizeof(uint32_t));
    nt_release(&b->alloc, b->places, b->place_capacity * sizeof(nt_sort_item));
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
