/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds the bytes: live allocations put together by where they were made. */
#include <string.h>

#include "trace/nt_timeline_state.h"

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
        nt_release(alloc, order, used * sizeof *order);
        nt_release(alloc, ranked, used * sizeof *ranked);
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
    nt_release(alloc, order, used * sizeof *order);
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
    h.entries = nt_allocate(&t->alloc, h.size * sizeof(nt_holder));
    if (h.entries == NULL) {
        return nt_fail_nomem(err);
    }
    memset(h.entries, 0, h.size * sizeof(nt_holder));
    nt_map_init(&h.names, t->alloc);
    nt_status status = holders_sum(&h, event);
    if (status == NT_OK) {
        status = holders_rank(&h, out, count);
    }
    nt_map_clear(&h.names);
    nt_release(&t->alloc, h.entries, h.size * sizeof(nt_holder));
    return status;
}

void
nt_timeline_holders_free(const nt_timeline *t, nt_holder *holders, size_t count)
{
    nt_release(&t->alloc, holders, count * sizeof *holders);
}

/* One entry a stack, the last for allocations without one. `held` is what the
 * stack holds while the trace is walked through. */
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

/* What event `i` does to `row`, its own. */
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

/*
 * What event `i` does to rows that are not its own, from number `lost` of t->lost on:
 * the frees before its own doing, so that no peak counts both, the allocations after.
 */
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
        nt_release(&t->alloc, table.held, table.size * sizeof(uint64_t));
        return nt_fail_nomem(err);
    }
    table.entries = entries;
    memset(entries, 0, table.size * sizeof(nt_churn));
    memset(table.held, 0, table.size * sizeof(uint64_t));
    churn_walk(t, &table);
    const size_t used = churn_pack(&table);
    nt_release(&t->alloc, table.held, table.size * sizeof(uint64_t));
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
    nt_release(&t->alloc, churn, count * sizeof *churn);
}
