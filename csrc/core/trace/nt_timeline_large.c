/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_large.h"

#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

#define LARGE_MIB_BITS 20
#define LARGE_MIB_MASK ((UINT64_C(1) << LARGE_MIB_BITS) - 1)

/* How far a block that max_split_size_mb keeps whole is looked for to the end, so
 * that a file's settings cannot make each event slow. */
#define LARGE_MOST_REACH (UINT64_C(1) << 28)

/* Notes `address` under its MiB. */
static nt_status
large_note(nt_map *map, uint64_t address, nt_error *err)
{
    return nt_map_set(map, address >> LARGE_MIB_BITS,
                      (uint32_t)(address & LARGE_MIB_MASK), err);
}

static void
large_forget(nt_map *map, uint64_t address)
{
    const uint64_t mib = address >> LARGE_MIB_BITS;
    if (nt_map_find(map, mib) == (uint32_t)(address & LARGE_MIB_MASK)) {
        (void)nt_map_remove(map, mib);
    }
}

/* The address noted under `mib` if it is at least `from`, else `otherwise`. */
static uint64_t
large_look(const nt_map *map, uint64_t mib, uint64_t from, uint64_t otherwise)
{
    const uint32_t offset = nt_map_find(map, mib);
    const uint64_t address = mib << LARGE_MIB_BITS | offset;
    return offset != NT_NONE && address >= from ? address : otherwise;
}

/* The ranges ever mapped, by address, those that touch as one. */
static nt_status
large_collect_expandable(nt_timeline_large *large, const nt_timeline *t, nt_error *err)
{
    const nt_segment_life_columns *s = &t->segments;
    size_t count = 0;
    for (size_t row = 0; row < s->count; row++) {
        count += s->is_expandable[row] != 0;
    }
    if (count == 0) {
        return NT_OK;
    }
    nt_sort_item *items = nt_allocate(&large->alloc, count * sizeof *items);
    large->expandable = nt_allocate(&large->alloc, count * sizeof *large->expandable);
    large->expandable_capacity = large->expandable != NULL ? count : 0;
    if (items == NULL || large->expandable == NULL) {
        nt_release(&large->alloc, items, count * sizeof *items);
        return nt_fail_nomem(err);
    }
    size_t filled = 0;
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->is_expandable[row]) {
            items[filled++] = (nt_sort_item){s->address[row], row};
        }
    }
    nt_sort(items, count);
    nt_address_range *ranges = large->expandable;
    for (size_t i = 0; i < count; i++) {
        const uint64_t first = items[i].key;
        const uint64_t end = first + s->size[items[i].value];
        if (large->expandable_count == 0 ||
            ranges[large->expandable_count - 1].end < first) {
            ranges[large->expandable_count++] = (nt_address_range){first, end};
        } else if (ranges[large->expandable_count - 1].end < end) {
            ranges[large->expandable_count - 1].end = end;
        }
    }
    nt_release(&large->alloc, items, count * sizeof *items);
    return NT_OK;
}

static bool
large_is_expandable(const nt_timeline_large *large, uint64_t address)
{
    size_t low = 0, high = large->expandable_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (large->expandable[middle].end <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < large->expandable_count && large->expandable[low].first <= address;
}

nt_status
nt_timeline_large_init(nt_timeline_large *large, const nt_timeline *t, nt_error *err)
{
    *large = (nt_timeline_large){
        .settings = nt_snapshot_settings(t->snapshot),
        .alloc = t->alloc,
    };
    nt_map_init(&large->starts, t->alloc);
    nt_map_init(&large->ends, t->alloc);
    NT_TRY(large_collect_expandable(large, t, err));
    const nt_segment_life_columns *s = &t->segments;
    for (size_t row = 0; row < s->count; row++) {
        if (s->alloc_event[row] == NT_EVENT_BEFORE && !s->is_expandable[row]) {
            NT_TRY(nt_timeline_large_add_segment(large, s->address[row], s->size[row],
                                                 err));
        }
    }
    return NT_OK;
}

void
nt_timeline_large_clear(nt_timeline_large *large)
{
    nt_map_clear(&large->starts);
    nt_map_clear(&large->ends);
    nt_release(&large->alloc, large->expandable,
               large->expandable_capacity * sizeof *large->expandable);
    *large = (nt_timeline_large){.alloc = large->alloc};
}

nt_status
nt_timeline_large_add_segment(nt_timeline_large *large, uint64_t address, uint64_t size,
                              nt_error *err)
{
    return size > NT_SMALL_BUFFER ? large_note(&large->ends, address + size, err)
                                  : NT_OK;
}

void
nt_timeline_large_remove_segment(nt_timeline_large *large, uint64_t address,
                                 uint64_t size)
{
    if (size > NT_SMALL_BUFFER) {
        large_forget(&large->ends, address + size);
    }
}

/* Where the free memory ends that begins before `from`, if that is at most `reach`
 * bytes behind it; else UINT64_MAX. */
static uint64_t
large_find_end(const nt_timeline_large *large, uint64_t from, uint64_t reach)
{
    const uint64_t last = (from + reach) >> LARGE_MIB_BITS;
    for (uint64_t mib = from >> LARGE_MIB_BITS; mib <= last; mib++) {
        const uint64_t start = large_look(&large->starts, mib, from, UINT64_MAX);
        const uint64_t end = large_look(&large->ends, mib, from, start);
        const uint64_t nearest = start < end ? start : end;
        if (nearest != UINT64_MAX) {
            return nearest;
        }
    }
    return UINT64_MAX;
}

nt_status
nt_timeline_large_place(nt_timeline_large *large, uint64_t address, uint64_t *size,
                        nt_error *err)
{
    const nt_settings *settings = large->settings;
    uint64_t reach = NT_SMALL_SIZE;
    if (NT_UNLIKELY(*size >= settings->max_split_size)) {
        reach = settings->max_non_split_rounding < LARGE_MOST_REACH
                    ? settings->max_non_split_rounding
                    : LARGE_MOST_REACH;
    }
    if (large->expandable_count != 0 && large_is_expandable(large, address)) {
        return NT_OK;
    }
    if (address <= UINT64_MAX - reach - *size) {
        const uint64_t end = large_find_end(large, address + *size, reach);
        if (end != UINT64_MAX &&
            !nt_should_split(settings, end - address, *size, false, false)) {
            *size = end - address;
        }
    }
    return large_note(&large->starts, address, err);
}

nt_status
nt_timeline_large_add(nt_timeline_large *large, uint64_t address, nt_error *err)
{
    if (large->expandable_count != 0 && large_is_expandable(large, address)) {
        return NT_OK;
    }
    return large_note(&large->starts, address, err);
}

void
nt_timeline_large_remove(nt_timeline_large *large, uint64_t address)
{
    large_forget(&large->starts, address);
}
