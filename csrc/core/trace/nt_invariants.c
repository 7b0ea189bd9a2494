/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_invariants.h"

#include <string.h>

#include "base/nt_map.h"
#include "base/nt_sort.h"

/* Notes, counted by kind. */

/* A file may have more devices than notes are worth a reader's time: those from this
 * number on are counted with the one below. */
#define NT_NOTED_DEVICES 16

/* All-zero but for the snapshot is valid. */
typedef struct nt_invariants_notes {
    nt_snapshot *snapshot;
    nt_broken_note by_kind[NT_BROKEN_KINDS][NT_NOTED_DEVICES];
} nt_invariants_notes;

static inline void
invariants_note(nt_invariants_notes *notes, nt_broken kind, int32_t device,
                uint64_t first, uint64_t bytes)
{
    const int32_t last = NT_NOTED_DEVICES - 1;
    const int32_t at = device < 0 ? 0 : device < last ? device : last;
    nt_broken_note *note = &notes->by_kind[kind][at];
    if (note->count == 0) {
        *note =
            (nt_broken_note){.kind = (uint8_t)kind, .device = device, .first = first};
    }
    note->count++;
    note->bytes += bytes;
}

/* The events of a file by themselves. A long trace is looked through in passes over
 * whole columns that only tell whether anything is wrong; what is, is looked for
 * then. */

static nt_status
invariants_notes_end(const nt_invariants_notes *notes, nt_error *err)
{
    for (int kind = 0; kind < NT_BROKEN_KINDS; kind++) {
        for (int32_t device = 0; device < NT_NOTED_DEVICES; device++) {
            if (notes->by_kind[kind][device].count != 0) {
                NT_TRY(nt_snapshot_add_broken(notes->snapshot,
                                              &notes->by_kind[kind][device], err));
            }
        }
    }
    return NT_OK;
}

/* Whether an event's size is one of memory; what others say of theirs is not known. */
static inline bool
trace_has_size(uint8_t action)
{
    return action <= NT_ACTION_SEGMENT_UNMAP || action == NT_ACTION_OOM;
}

/* The first row of an event with a size whose value is above `most`; e->count without
 * one. */
static size_t
trace_first_above(const nt_event_columns *e, const uint64_t *column, uint64_t most)
{
    uint64_t any = 0;
    for (size_t i = 0; i < e->count; i++) {
        any |= (uint64_t)(column[i] > most);
    }
    size_t row = any ? 0 : e->count;
    while (row < e->count && (column[row] <= most || !trace_has_size(e->action[row]))) {
        row++;
    }
    return row;
}

static nt_status
trace_check_column(const nt_event_columns *e, const uint64_t *column, const char *name,
                   nt_error *err)
{
    const size_t row = trace_first_above(e, column, NT_MOST_BYTES);
    if (row < e->count) {
        return nt_fail(err, NT_MALFORMED, NT_NO_OFFSET,
                       "event %zu: its '%s' is %lld bytes, which no device has", row,
                       name, (long long)column[row]);
    }
    return NT_OK;
}

static nt_status
trace_check_sizes(const nt_event_columns *e, nt_error *err)
{
    NT_TRY(trace_check_column(e, e->size, "size", err));
    if (e->device_free != NULL) {
        NT_TRY(trace_check_column(e, e->device_free, "device_free", err));
    }
    uint64_t kibibytes = 0;
    for (size_t i = 0; i < e->count; i++) {
        kibibytes += trace_has_size(e->action[i]) ? e->size[i] >> 10 : 0;
    }
    for (size_t row = trace_first_above(e, e->addr, UINT64_MAX - NT_MOST_BYTES);
         row < e->count; row++) {
        if (trace_has_size(e->action[row]) && e->size[row] != 0 &&
            e->addr[row] > UINT64_MAX - (e->size[row] - 1)) {
            return nt_fail(err, NT_MALFORMED, NT_NO_OFFSET,
                           "event %zu: it reaches beyond the last address", row);
        }
    }
    if (kibibytes > UINT64_MAX >> 11) {
        return nt_fail(err, NT_MALFORMED, NT_NO_OFFSET,
                       "the sizes of the events add up to more than 2^63 bytes");
    }
    return NT_OK;
}

/* Whether the times of a trace rise, are all there, and are times. */
static bool
trace_times_hold(const int64_t *time, size_t count)
{
    uint64_t wrong = 0;
    for (size_t i = 1; i < count; i++) {
        wrong |= (uint64_t)(time[i] < time[i - 1]);
    }
    return count == 0 || (!wrong && time[0] > 0 && time[count - 1] <= NT_MOST_TIME);
}

/* Events whose time is none, or further back than clocks differ. */
static bool
trace_note_times(nt_invariants_notes *notes, int32_t device, const int64_t *time,
                 size_t count)
{
    int64_t last = 0;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (time[i] < 0 || time[i] > NT_MOST_TIME ||
            (time[i] != 0 && time[i] < last - NT_CLOCK_SKEW)) {
            invariants_note(notes, NT_BROKEN_TIME, device, i, 0);
            any = true;
        } else if (time[i] > last) {
            last = time[i];
        }
    }
    return any;
}

/* Small steps back are smoothed; an event without a time gets the one before's, or at
 * the beginning the first there is. */
static void
trace_mend_times(nt_invariants_notes *notes, int32_t device, int64_t *time,
                 size_t count)
{
    size_t first = 0;
    while (first < count && time[first] == 0) {
        first++;
    }
    if (first == count) {
        return;
    }
    int64_t last = time[first];
    for (size_t i = 0; i < count; i++) {
        if (time[i] == 0) {
            invariants_note(notes, NT_BROKEN_TIME_MISSING, device, i, 0);
        }
        time[i] = last = time[i] < last ? last : time[i];
    }
}

/* The times of one trace; where they can't be, every event of it loses its own. */
static void
trace_check_times(nt_snapshot *snapshot, nt_invariants_notes *notes, size_t device)
{
    size_t first, count;
    nt_snapshot_trace(snapshot, device, &first, &count);
    int64_t *time = nt_snapshot_event_table(snapshot)->columns.time_us + first;
    if (trace_times_hold(time, count)) {
        return;
    }
    if (!trace_note_times(notes, (int32_t)device, time, count)) {
        trace_mend_times(notes, (int32_t)device, time, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        time[i] = 0;
    }
}

enum { KIND_GONE, KIND_MAPPED, KIND_WHOLE };

/* By device and address, how the range came that begins there, or that it went. */
typedef struct trace_kinds {
    nt_map numbers; /* of addresses, as they are first seen */
    nt_map kinds;   /* by device and such a number */
} trace_kinds;

/* The key in `kinds`: both are whole numbers of 32 bits. */
static uint64_t
trace_key(size_t device, uint32_t number)
{
    return (uint64_t)device << 32 | number;
}

static nt_status
trace_set_kind(trace_kinds *k, size_t device, uint64_t address, uint32_t kind,
               nt_error *err)
{
    uint32_t number = nt_map_find(&k->numbers, address);
    if (number == NT_NONE) {
        number = (uint32_t)k->numbers.count;
        NT_TRY(nt_map_set(&k->numbers, address, number, err));
    }
    return nt_map_set(&k->kinds, trace_key(device, number), kind, err);
}

static uint32_t
trace_find_kind(const trace_kinds *k, size_t device, uint64_t address)
{
    const uint32_t number = nt_map_find(&k->numbers, address);
    return number == NT_NONE ? NT_NONE
                             : nt_map_find(&k->kinds, trace_key(device, number));
}

static nt_status
trace_collect_kinds(const nt_snapshot *snapshot, trace_kinds *kinds, nt_error *err)
{
    const nt_event_columns *e = nt_snapshot_events(snapshot);
    for (size_t device = 0; device < nt_snapshot_trace_count(snapshot); device++) {
        size_t first, count;
        nt_snapshot_trace(snapshot, device, &first, &count);
        for (size_t at = first; at < first + count; at++) {
            const uint8_t action = e->action[at];
            if (NT_LIKELY(action < NT_ACTION_SEGMENT_ALLOC ||
                          action > NT_ACTION_SEGMENT_UNMAP)) {
                continue;
            }
            const uint32_t came =
                action == NT_ACTION_SEGMENT_MAP ? KIND_MAPPED : KIND_WHOLE;
            NT_TRY(trace_set_kind(kinds, device, e->addr[at],
                                  nt_events_is_release(action) ? KIND_GONE : came,
                                  err));
        }
    }
    return NT_OK;
}

/* A segment of the other kind than the trace made it is what the trace says. */
static void
trace_check_expandable(nt_snapshot *snapshot, nt_invariants_notes *notes,
                       const trace_kinds *kinds)
{
    nt_segment_columns *s = &nt_snapshot_layout_table(snapshot)->segments;
    for (size_t row = 0; row < s->count; row++) {
        const uint32_t kind =
            trace_find_kind(kinds, (size_t)s->device[row], s->address[row]);
        if (kind == (s->is_expandable[row] ? KIND_WHOLE : KIND_MAPPED)) {
            invariants_note(notes, NT_BROKEN_EXPANDABLE, s->device[row],
                            s->address[row], s->total_size[row]);
            s->is_expandable[row] = kind == KIND_MAPPED;
        }
    }
}

static nt_status
trace_check_kinds(const nt_alloc *alloc, nt_snapshot *snapshot,
                  nt_invariants_notes *notes, nt_error *err)
{
    trace_kinds kinds;
    nt_map_init(&kinds.numbers, *alloc);
    nt_map_init(&kinds.kinds, *alloc);
    const nt_status status = trace_collect_kinds(snapshot, &kinds, err);
    if (status == NT_OK) {
        trace_check_expandable(snapshot, notes, &kinds);
    }
    nt_map_clear(&kinds.numbers);
    nt_map_clear(&kinds.kinds);
    return status;
}

/* The events: sizes, sums, times; and whether segments are of the kind that the trace
 * made. */
static nt_status
invariants_trace(const nt_alloc *alloc, nt_snapshot *snapshot,
                 nt_invariants_notes *notes, nt_error *err)
{
    const nt_event_columns *e = nt_snapshot_events(snapshot);
    NT_TRY(trace_check_sizes(e, err));
    const size_t devices = e->time_us == NULL ? 0 : nt_snapshot_trace_count(snapshot);
    for (size_t device = 0; device < devices; device++) {
        trace_check_times(snapshot, notes, device);
    }
    const bool says_kind =
        (nt_snapshot_keys(snapshot) & NT_HAS_SEGMENT_EXPANDABLE) != 0;
    return says_kind ? trace_check_kinds(alloc, snapshot, notes, err) : NT_OK;
}

/* What the blocks and segments of a file must be. */

typedef struct layout_check {
    nt_snapshot *snapshot;
    nt_segment_columns *segments;
    nt_block_columns *blocks;
    nt_alloc alloc;
    nt_sort_item *items; /* `capacity` of them, twice */
    size_t capacity;     /* as many as there are segments, or blocks */
    uint8_t *left_out;   /* by block */
    size_t left_out_capacity;
    bool has_left_out;
    uint8_t *overlaps; /* by segment: it is where another one is */
    size_t overlaps_capacity;
    nt_invariants_notes *notes;
    nt_error *err;
} layout_check;

/* What the blocks of one segment add up to. */
typedef struct block_sums {
    uint64_t size, allocated, active, requested;
    uint64_t held; /* requested, once that is put right */
} block_sums;

static nt_status
layout_refuse_size(const layout_check *c, const char *table, size_t row,
                   const char *what, uint64_t size)
{
    return nt_fail(c->err, NT_MALFORMED, NT_NO_OFFSET,
                   "%s %zu: its '%s' is %lld bytes, which no device has", table, row,
                   what, (long long)size);
}

/* The sizes of a segment, without its blocks. */
static nt_status
layout_check_segment(const layout_check *c, size_t row, uint64_t *sum)
{
    const nt_segment_columns *s = c->segments;
    const struct {
        const char *name;
        uint64_t size;
    } sizes[] = {
        {"total_size", s->total_size[row]},
        {"allocated_size", s->allocated_size[row]},
        {"active_size", s->active_size[row]},
        {"requested_size", s->requested_size[row]},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].size > NT_MOST_BYTES) {
            return layout_refuse_size(c, "segment", row, sizes[i].name, sizes[i].size);
        }
    }
    *sum += s->total_size[row];
    const uint64_t total = s->total_size[row];
    if (*sum > NT_MOST_SUM ||
        (total != 0 && s->address[row] > UINT64_MAX - (total - 1))) {
        return nt_fail(c->err, NT_MALFORMED, NT_NO_OFFSET,
                       "segment %zu: with it the segments are larger than any address "
                       "space",
                       row);
    }
    return NT_OK;
}

static nt_status
layout_check_block(const layout_check *c, size_t row)
{
    const nt_block_columns *b = c->blocks;
    const uint64_t total = c->segments->total_size[b->segment[row]];
    if (b->size[row] > NT_MOST_BYTES) {
        return layout_refuse_size(c, "block", row, "size", b->size[row]);
    }
    if (b->requested_size[row] > NT_MOST_BYTES) {
        return layout_refuse_size(c, "block", row, "requested_size",
                                  b->requested_size[row]);
    }
    if (b->size[row] > total) {
        return nt_fail(
            c->err, NT_MALFORMED, NT_NO_OFFSET,
            "block %zu: its %llu bytes are more than the %llu of its segment", row,
            (unsigned long long)b->size[row], (unsigned long long)total);
    }
    return NT_OK;
}

static nt_status
layout_check_sizes(const layout_check *c)
{
    uint64_t sum = 0;
    for (size_t row = 0; row < c->segments->count; row++) {
        NT_TRY(layout_check_segment(c, row, &sum));
    }
    for (size_t row = 0; row < c->blocks->count; row++) {
        NT_TRY(layout_check_block(c, row));
    }
    return NT_OK;
}

static void
layout_swap_blocks(nt_block_columns *b, const nt_block *rows, size_t first,
                   size_t count)
{
    for (size_t i = 0; i < count; i++) {
        b->address[first + i] = rows[i].address;
        b->size[first + i] = rows[i].size;
        b->requested_size[first + i] = rows[i].requested_size;
        b->state[first + i] = rows[i].state;
        b->stack[first + i] = rows[i].stack;
    }
}

/* Puts the blocks of a segment in the order of their addresses. */
static nt_status
layout_sort_blocks(const layout_check *c, size_t first, size_t count)
{
    nt_block_columns *b = c->blocks;
    nt_block *rows;
    NT_TRY(NT_NEW(&c->alloc, rows, count, c->err));
    for (size_t i = 0; i < count; i++) {
        c->items[i] = (nt_sort_item){b->address[first + i], (uint32_t)i};
    }
    nt_sort(c->items, count);
    for (size_t i = 0; i < count; i++) {
        const size_t at = first + c->items[i].value;
        rows[i] = (nt_block){b->address[at], b->size[at], b->requested_size[at],
                             b->state[at], b->stack[at]};
    }
    layout_swap_blocks(b, rows, first, count);
    NT_RELEASE(&c->alloc, rows, count);
    return NT_OK;
}

static nt_status
layout_order_blocks(const layout_check *c, size_t segment)
{
    const nt_segment_columns *s = c->segments;
    const size_t first = s->block_first[segment], count = s->block_count[segment];
    bool is_sorted = true;
    for (size_t i = 1; i < count; i++) {
        is_sorted &= c->blocks->address[first + i - 1] <= c->blocks->address[first + i];
    }
    if (is_sorted) {
        return NT_OK;
    }
    invariants_note(c->notes, NT_BROKEN_BLOCK_ORDER, s->device[segment],
                    s->address[segment], 0);
    return layout_sort_blocks(c, first, count);
}

/* Whether a block is not where its segment is; it is left out then. */
static bool
layout_leave_out(layout_check *c, size_t segment, size_t block)
{
    const nt_segment_columns *s = c->segments;
    const uint64_t address = c->blocks->address[block], size = c->blocks->size[block];
    const uint64_t into = address - s->address[segment];
    if (address >= s->address[segment] && into <= s->total_size[segment] &&
        size <= s->total_size[segment] - into) {
        return false;
    }
    invariants_note(c->notes, NT_BROKEN_BLOCK_OUTSIDE, s->device[segment], address,
                    size);
    c->left_out[block] = 1;
    c->has_left_out = true;
    return true;
}

/* Adds a block to the sums, as it is in the file; then what is requested in it is put
 * right. */
static void
layout_count_block(const layout_check *c, size_t segment, size_t block,
                   block_sums *sums)
{
    nt_block_columns *b = c->blocks;
    sums->size += b->size[block];
    if (b->state[block] == NT_BLOCK_INACTIVE) {
        return;
    }
    sums->active += b->size[block];
    sums->requested += b->requested_size[block];
    if (b->state[block] == NT_BLOCK_ACTIVE_ALLOCATED) {
        sums->allocated += b->size[block];
    }
    if (b->requested_size[block] > b->size[block]) {
        invariants_note(c->notes, NT_BROKEN_REQUESTED, c->segments->device[segment],
                        b->address[block], b->requested_size[block] - b->size[block]);
        b->requested_size[block] = b->size[block];
    }
    sums->held += b->requested_size[block];
}

/* A segment's own sums, where the file has them, are those of its blocks; else they are
 * made so. */
static void
layout_check_sums(const layout_check *c, size_t row, const block_sums *sums)
{
    nt_segment_columns *s = c->segments;
    const uint32_t keys = nt_snapshot_keys(c->snapshot);
    const struct {
        uint32_t key;
        uint64_t *said;
        uint64_t is;
    } all[] = {
        {NT_HAS_SEGMENT_ALLOCATED, &s->allocated_size[row], sums->allocated},
        {NT_HAS_SEGMENT_ACTIVE, &s->active_size[row], sums->active},
        {NT_HAS_SEGMENT_REQUESTED, &s->requested_size[row], sums->requested},
    };
    bool is_wrong = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        /* Before torch 2.1 blocks do not say what was requested in them. */
        const bool known = all[i].key != NT_HAS_SEGMENT_REQUESTED ||
                           (keys & NT_HAS_BLOCK_REQUESTED) != 0;
        if (known && *all[i].said != all[i].is) {
            is_wrong |= (keys & all[i].key) != 0;
            *all[i].said = all[i].is;
        }
        if (known && all[i].key == NT_HAS_SEGMENT_REQUESTED) {
            *all[i].said = sums->held;
        }
    }
    /* Blocks that are missing are told already. */
    if (is_wrong && sums->size == s->total_size[row]) {
        invariants_note(c->notes, NT_BROKEN_SUMS, s->device[row], s->address[row], 0);
    }
}

/* The blocks of one segment: inside it, beside each other, adding up to it. */
static nt_status
layout_check_blocks(layout_check *c, size_t segment)
{
    const nt_segment_columns *s = c->segments;
    const size_t first = s->block_first[segment], count = s->block_count[segment];
    uint64_t end = s->address[segment];
    block_sums sums = {0};
    NT_TRY(layout_order_blocks(c, segment));
    for (size_t block = first; block < first + count; block++) {
        if (layout_leave_out(c, segment, block)) {
            continue;
        }
        if (c->blocks->address[block] < end) {
            return nt_fail(c->err, NT_MALFORMED, NT_NO_OFFSET,
                           "block %zu: another block is at its address %#llx", block,
                           (unsigned long long)c->blocks->address[block]);
        }
        end = c->blocks->address[block] + c->blocks->size[block];
        layout_count_block(c, segment, block, &sums);
    }
    if (sums.active != 0 && s->total_size[segment] == 0) {
        return layout_refuse_size(c, "segment", segment, "total_size", 0);
    }
    if (sums.size != s->total_size[segment]) {
        invariants_note(c->notes, NT_BROKEN_UNFILLED, s->device[segment],
                        s->address[segment], s->total_size[segment] - sums.size);
    }
    layout_check_sums(c, segment, &sums);
    return NT_OK;
}

/* Whether segment `row` begins where the one before it, in the order of addresses,
 * still is; *before becomes the one that reaches further. */
static bool
layout_meets(const nt_segment_columns *s, size_t row, size_t *before)
{
    const size_t last = *before;
    if (s->total_size[row] == 0) {
        return false;
    }
    const bool meets =
        last != SIZE_MAX && s->address[row] - s->address[last] < s->total_size[last];
    if (!meets ||
        s->address[row] + s->total_size[row] > s->address[last] + s->total_size[last]) {
        *before = row;
    }
    return meets;
}

/* A segment where the same device has another one is left out with its blocks. */
static void
layout_find_overlaps(layout_check *c)
{
    const nt_segment_columns *s = c->segments;
    if (s->count == 0) {
        return;
    }
    nt_sort_item *by_device = c->items + c->capacity;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < s->count; i++) {
        by_device[i] =
            (nt_sort_item){(uint64_t)s->device[c->items[i].value], (uint32_t)i};
    }
    nt_sort(by_device, s->count);
    for (size_t i = 0; i < s->count; i++) {
        const size_t row = c->items[by_device[i].value].value, before = last;
        if (before != SIZE_MAX && s->device[before] != s->device[row]) {
            last = SIZE_MAX;
        }
        if (layout_meets(s, row, &last)) {
            invariants_note(c->notes, NT_BROKEN_SEGMENT_OVERLAP, s->device[row],
                            s->address[row], s->total_size[row]);
            c->overlaps[row] = 1;
            last = before;
        }
    }
}

/* An address of two devices: both keep what they say is there. */
static void
layout_find_shared(layout_check *c)
{
    const nt_segment_columns *s = c->segments;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < s->count; i++) {
        const size_t row = c->items[i].value, before = last;
        if (!c->overlaps[row] && layout_meets(s, row, &last) &&
            s->device[before] != s->device[row]) {
            invariants_note(c->notes, NT_BROKEN_SEGMENT_SHARED, s->device[row],
                            s->address[row], s->total_size[row]);
        }
    }
}

static void
layout_compare_segments(layout_check *c)
{
    const nt_segment_columns *s = c->segments;
    for (size_t i = 0; i < s->count; i++) {
        c->items[i] = (nt_sort_item){s->address[i], (uint32_t)i};
    }
    nt_sort(c->items, s->count);
    layout_find_overlaps(c);
    layout_find_shared(c);
}

#define LAYOUT_MOVE(columns, type, name) columns->name[to] = columns->name[from];

static void
layout_move_block(nt_block_columns *b, size_t to, size_t from)
{
    NT_BLOCK_LIST(LAYOUT_MOVE, b)
}

static void
layout_move_segment(nt_segment_columns *s, size_t to, size_t from)
{
    NT_SEGMENT_LIST(LAYOUT_MOVE, s)
}

static void
layout_drop(layout_check *c)
{
    nt_segment_columns *s = c->segments;
    nt_block_columns *b = c->blocks;
    size_t segments = 0, blocks = 0;
    for (size_t row = 0; row < s->count; row++) {
        const size_t first = s->block_first[row], end = first + s->block_count[row];
        const size_t begins = blocks;
        if (c->overlaps[row]) {
            continue;
        }
        for (size_t block = first; block < end; block++) {
            if (!c->left_out[block]) {
                layout_move_block(b, blocks, block);
                b->segment[blocks++] = (uint32_t)segments;
            }
        }
        layout_move_segment(s, segments, row);
        s->block_first[segments] = (uint32_t)begins;
        s->block_count[segments++] = (uint32_t)(blocks - begins);
    }
    s->count = segments;
    b->count = blocks;
}

static nt_status
layout_allocate(layout_check *c)
{
    const size_t segments = c->segments->count, blocks = c->blocks->count;
    c->capacity = segments > blocks ? segments : blocks;
    c->items = nt_allocate(&c->alloc, 2 * c->capacity * sizeof(nt_sort_item));
    c->left_out_capacity = blocks;
    c->left_out = nt_allocate(&c->alloc, blocks);
    c->overlaps_capacity = segments;
    c->overlaps = nt_allocate(&c->alloc, segments);
    if ((c->items == NULL && c->capacity != 0) ||
        (c->left_out == NULL && blocks != 0) ||
        (c->overlaps == NULL && segments != 0)) {
        return nt_fail_nomem(c->err);
    }
    if (blocks != 0) {
        memset(c->left_out, 0, blocks);
    }
    if (segments != 0) {
        memset(c->overlaps, 0, segments);
    }
    return NT_OK;
}

static nt_status
layout_run(layout_check *c)
{
    NT_TRY(layout_check_sizes(c));
    NT_TRY(layout_allocate(c));
    layout_compare_segments(c);
    bool has_dropped = false;
    for (size_t row = 0; row < c->segments->count; row++) {
        if (c->overlaps[row]) {
            has_dropped = true;
        } else {
            NT_TRY(layout_check_blocks(c, row));
        }
    }
    if (has_dropped || c->has_left_out) {
        layout_drop(c);
    }
    return NT_OK;
}

static nt_status
invariants_layout(const nt_alloc *alloc, nt_snapshot *snapshot, nt_layout *layout,
                  nt_invariants_notes *notes, nt_error *err)
{
    layout_check c = {
        .snapshot = snapshot,
        .segments = &layout->segments,
        .blocks = &layout->blocks,
        .alloc = *alloc,
        .notes = notes,
        .err = err,
    };
    const nt_status status = layout_run(&c);
    NT_RELEASE(alloc, c.items, 2 * c.capacity);
    nt_release(alloc, c.left_out, c.left_out_capacity);
    nt_release(alloc, c.overlaps, c.overlaps_capacity);
    return status;
}

nt_status
nt_invariants_check(const nt_alloc *alloc, nt_snapshot *snapshot, nt_error *err)
{
    nt_invariants_notes notes = {.snapshot = snapshot};
    NT_TRY(invariants_layout(alloc, snapshot, nt_snapshot_layout_table(snapshot),
                             &notes, err));
    NT_TRY(invariants_layout(alloc, snapshot, nt_snapshot_before_table(snapshot),
                             &notes, err));
    NT_TRY(invariants_trace(alloc, snapshot, &notes, err));
    return invariants_notes_end(&notes, err);
}
