/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a file by themselves. A long trace is looked through in passes over
 * whole columns that only tell whether anything is wrong; what is, is looked for then.
 */
#include "base/nt_map.h"
#include "trace/nt_invariants_notes.h"

nt_status
nt_invariants_notes_end(const nt_invariants_notes *notes, nt_error *err)
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
            nt_invariants_note(notes, NT_BROKEN_TIME, device, i, 0);
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
            nt_invariants_note(notes, NT_BROKEN_TIME_MISSING, device, i, 0);
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
            nt_invariants_note(notes, NT_BROKEN_EXPANDABLE, s->device[row],
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

nt_status
nt_invariants_trace(const nt_alloc *alloc, nt_snapshot *snapshot,
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
