/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_large.h"

#include <string.h>

#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

#define LARGE_MIB_BITS 20
#define LARGE_MIB_MASK ((UINT64_C(1) << LARGE_MIB_BITS) - 1)

/* How far a block that max_split_size_mb keeps whole is looked for to the end, so
 * that a file's settings cannot make each event slow. */
#define LARGE_MOST_REACH (UINT64_C(1) << 28)

/* The page that `mib` is on, or NULL. */
static inline nt_large_page *
large_find(const nt_timeline_large *large, uint64_t mib)
{
    const uint32_t number = nt_map_find(&large->numbers, mib / NT_LARGE_PAGE);
    return number == NT_NONE ? NULL : &large->pages[number];
}

/* The same; it comes into being where it is not there. */
static nt_status
large_want(nt_timeline_large *large, uint64_t mib, nt_large_page **out, nt_error *err)
{
    *out = large_find(large, mib);
    if (NT_LIKELY(*out != NULL)) {
        return NT_OK;
    }
    if (large->page_count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 large blocks");
    }
    NT_TRY(nt_grow(&large->alloc, (void **)&large->pages, &large->page_capacity,
                   large->page_count + 1, sizeof(nt_large_page), err));
    NT_TRY(nt_map_set(&large->numbers, mib / NT_LARGE_PAGE, (uint32_t)large->page_count,
                      err));
    *out = &large->pages[large->page_count++];
    for (size_t i = 0; i < NT_LARGE_PAGE; i++) {
        (*out)->mibs[i] = (nt_large_mib){.start = NT_NONE, .end = NT_NONE};
    }
    return NT_OK;
}

/* Notes that a block begins at `address`. */
static nt_status
large_note_start(nt_timeline_large *large, uint64_t address, uint32_t row,
                 nt_error *err)
{
    const uint64_t mib = address >> LARGE_MIB_BITS;
    nt_large_page *page;
    NT_TRY(large_want(large, mib, &page, err));
    nt_large_mib *noted = &page->mibs[mib % NT_LARGE_PAGE];
    noted->start = (uint32_t)(address & LARGE_MIB_MASK);
    noted->row = row;
    return NT_OK;
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
        .rows = &t->allocations,
        .alloc = t->alloc,
    };
    nt_map_init(&large->numbers, t->alloc);
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
    nt_map_clear(&large->numbers);
    nt_release(&large->alloc, large->pages,
               large->page_capacity * sizeof(nt_large_page));
    nt_release(&large->alloc, large->expandable,
               large->expandable_capacity * sizeof *large->expandable);
    *large = (nt_timeline_large){.alloc = large->alloc};
}

nt_status
nt_timeline_large_add_segment(nt_timeline_large *large, uint64_t address, uint64_t size,
                              nt_error *err)
{
    if (size <= NT_SMALL_BUFFER) {
        return NT_OK;
    }
    const uint64_t end = address + size, mib = end >> LARGE_MIB_BITS;
    nt_large_page *page;
    NT_TRY(large_want(large, mib, &page, err));
    page->mibs[mib % NT_LARGE_PAGE].end = (uint32_t)(end & LARGE_MIB_MASK);
    return NT_OK;
}

void
nt_timeline_large_remove_segment(nt_timeline_large *large, uint64_t address,
                                 uint64_t size)
{
    const uint64_t end = address + size, mib = end >> LARGE_MIB_BITS;
    nt_large_page *page = large_find(large, mib);
    if (size <= NT_SMALL_BUFFER || page == NULL) {
        return;
    }
    uint32_t *noted = &page->mibs[mib % NT_LARGE_PAGE].end;
    if (*noted == (uint32_t)(end & LARGE_MIB_MASK)) {
        *noted = NT_NONE;
    }
}

/* The lesser of `nearest` and, if that is so, `address`; without a branch. */
static inline uint64_t
large_nearer(uint64_t nearest, uint64_t address, unsigned is_so)
{
    const uint64_t candidate = address | ((uint64_t)is_so - 1);
    return candidate < nearest ? candidate : nearest;
}

/* The first thing noted under `mib` at `from` or behind it, if it is before `nearest`.
 * There are rows. */
static inline uint64_t
large_look(const nt_timeline_large *large, const nt_large_page *page, uint64_t mib,
           uint64_t from, uint64_t nearest)
{
    const nt_large_mib *noted = &page->mibs[mib % NT_LARGE_PAGE];
    const uint64_t base = mib << LARGE_MIB_BITS;
    const uint64_t start = base | noted->start, end = base | noted->end;
    const unsigned active = large->rows->completed_event[noted->row] == NT_EVENT_NEVER;
    nearest = large_nearer(nearest, end, (noted->end != NT_NONE) & (end >= from));
    return large_nearer(nearest, start,
                        (noted->start != NT_NONE) & (start >= from) & active);
}

/* Where the free memory ends that begins before `from`, if that is at most `reach`
 * bytes behind it; else UINT64_MAX. */
static inline uint64_t
large_find_end(const nt_timeline_large *large, uint64_t from, uint64_t reach)
{
    const uint64_t last = (from + reach) >> LARGE_MIB_BITS;
    uint64_t mib = from >> LARGE_MIB_BITS, nearest = UINT64_MAX;
    while (mib <= last && nearest == UINT64_MAX) {
        const nt_large_page *page = large_find(large, mib);
        const uint64_t next = (mib / NT_LARGE_PAGE + 1) * NT_LARGE_PAGE;
        const uint64_t stop = next > last ? last + 1 : next;
        for (; page != NULL && mib < stop; mib++) {
            nearest = large_look(large, page, mib, from, nearest);
        }
        mib = next;
    }
    return nearest;
}

nt_status
nt_timeline_large_place(nt_timeline_large *large, uint64_t address, uint32_t row,
                        uint64_t *size, nt_error *err)
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
    return large_note_start(large, address, row, err);
}

nt_status
nt_timeline_large_add(nt_timeline_large *large, uint64_t address, uint32_t row,
                      nt_error *err)
{
    if (large->expandable_count != 0 && large_is_expandable(large, address)) {
        return NT_OK;
    }
    return large_note_start(large, address, row, err);
}
