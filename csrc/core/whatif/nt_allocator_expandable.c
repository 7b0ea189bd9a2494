/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expandable segments: an address range is reserved once for each stream and pool, and
 * memory is mapped into it, and unmapped, in whole pages.
 */
#include "whatif/nt_allocator_state.h"

/* What counts as the bytes of an endless device here: addresses are not endless. */
#define ALLOCATOR_ENDLESS (UINT64_C(1) << 44)

static uint64_t
allocator_page(const nt_allocator *model, uint8_t kind)
{
    return nt_page_size(&model->options.settings, kind == NT_POOL_SMALL);
}

uint64_t
nt_allocator_reservation_size(const nt_allocator *model, bool small)
{
    /* An eighth more than the device, so that pages that had to be unmapped in the
     * middle can be mapped at the end. */
    const uint64_t total = model->options.device_total != 0
                               ? model->options.device_total
                               : ALLOCATOR_ENDLESS;
    const uint64_t page = allocator_page(model, small ? NT_POOL_SMALL : NT_POOL_LARGE);
    return (total + total / 8 + page - 1) / page * page;
}

/* Whether the blocks from here on that nobody uses have `size` bytes together; *end is
 * where those end that were looked at. */
static bool
allocator_has_space(const nt_allocator *model, uint32_t block, uint64_t size,
                    uint64_t *end)
{
    uint64_t bytes = 0;
    while (bytes < size && block != NT_NONE) {
        const allocator_block *b = nt_allocator_block(model, block);
        if (b->state != ALLOCATOR_FREE && b->state != ALLOCATOR_UNMAPPED) {
            return false;
        }
        bytes += b->size;
        *end = b->address + b->size;
        block = b->after;
    }
    return bytes >= size;
}

static uint32_t
allocator_find_space(const nt_allocator *model, const allocator_request *request)
{
    const nt_ordered *set = &model->lanes[request->lane].unmapped[request->kind];
    nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
    while (entry.value != NT_NONE) {
        uint64_t end = 0;
        uint32_t block = entry.value;
        const uint32_t before = nt_allocator_block(model, block)->before;
        if (before != NT_NONE && model->blocks[before].state == ALLOCATOR_FREE) {
            block = before;
        }
        if (allocator_has_space(model, block, request->rounded, &end)) {
            return block;
        }
        /* What begins within these blocks has less space than they. */
        entry = nt_ordered_from(set, 0, end);
    }
    return NT_NONE;
}

nt_status
nt_allocator_add_area(nt_allocator *model, const allocator_area *area, uint32_t *out,
                      nt_error *err)
{
    if (model->unused_area != NT_NONE) {
        *out = model->unused_area;
        model->unused_area = (uint32_t)model->areas[*out].address;
        model->areas[*out] = *area;
        return NT_OK;
    }
    NT_TRY(nt_grow(&model->alloc, (void **)&model->areas, &model->area_capacity,
                   model->area_count + 1, sizeof *model->areas, err));
    *out = (uint32_t)model->area_count;
    model->areas[model->area_count++] = *area;
    return NT_OK;
}

static nt_status
allocator_reserve(nt_allocator *model, const allocator_request *request,
                  uint32_t *block, nt_error *err)
{
    const bool small = request->kind == NT_POOL_SMALL;
    allocator_area area = {.size = nt_allocator_reservation_size(model, small)};
    const nt_allocator_need need = {
        .size = area.size,
        .lane = request->lane,
        .small = small,
        .is_reservation = true,
    };
    *block = NT_NONE;
    if (area.size < request->rounded) {
        return NT_OK;
    }
    allocator_block fresh = {
        .size = area.size,
        .lane = request->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .state = ALLOCATOR_UNMAPPED,
        .kind = request->kind,
    };
    NT_TRY(nt_allocator_take_place(model, &need, &area.address, err));
    fresh.address = area.address;
    NT_TRY(nt_allocator_add_area(model, &area, &fresh.area, err));
    NT_TRY(nt_allocator_add_block(model, &fresh, block, err));
    return nt_allocator_store_unmapped(model, *block, err);
}

/* Maps the first `size` bytes of an unmapped block, in whole pages, and joins them with
 * free neighbours. `block` stands for the result; *mapped is false if the device has
 * no room. */
static nt_status
allocator_map(nt_allocator *model, uint32_t block, uint64_t size, bool *mapped,
              nt_error *err)
{
    const uint64_t page = allocator_page(model, nt_allocator_block(model, block)->kind);
    const uint64_t bytes = (size + page - 1) / page * page;
    *mapped = nt_allocator_has_room(model, bytes);
    if (!*mapped) {
        return NT_OK;
    }
    nt_allocator_unstore(model, block);
    const uint64_t address = nt_allocator_block(model, block)->address;
    if (bytes < nt_allocator_block(model, block)->size) {
        /* The block's name goes to what is mapped, at the low end. */
        allocator_block rest = *nt_allocator_block(model, block);
        uint32_t row;
        rest.address += bytes;
        rest.size -= bytes;
        rest.before = block;
        NT_TRY(nt_allocator_add_block(model, &rest, &row, err));
        NT_TRY(nt_allocator_store_unmapped(model, row, err));
        nt_allocator_block(model, block)->size = bytes;
    }
    nt_allocator_block(model, block)->state = ALLOCATOR_FREE;
    nt_allocator_merge(model, block);
    NT_TRY(nt_allocator_store(model, block, err));
    nt_allocator_rise(model, NT_METRIC_RESERVED, bytes);
    model->stats.device_allocs++;
    nt_allocator_tell(model, NT_ACTION_SEGMENT_MAP,
                      nt_allocator_block(model, block)->lane, address, bytes, NT_NONE);
    return NT_OK;
}

static uint64_t
allocator_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

nt_status
nt_allocator_expand(nt_allocator *model, const allocator_request *request,
                    uint32_t *block, nt_error *err)
{
    uint32_t found = allocator_find_space(model, request);
    bool mapped = true;
    *block = NT_NONE;
    if (found == NT_NONE) {
        NT_TRY(allocator_reserve(model, request, &found, err));
        if (found == NT_NONE) {
            return NT_OK;
        }
    }
    const allocator_block *b = nt_allocator_block(model, found);
    if (b->state == ALLOCATOR_UNMAPPED) {
        NT_TRY(allocator_map(model, found, allocator_least(b->size, request->rounded),
                             &mapped, err));
    }
    while (mapped && nt_allocator_block(model, found)->size < request->rounded) {
        const uint64_t missing =
            request->rounded - nt_allocator_block(model, found)->size;
        found = nt_allocator_block(model, found)->after;
        const uint64_t size = nt_allocator_block(model, found)->size;
        NT_TRY(
            allocator_map(model, found, allocator_least(missing, size), &mapped, err));
    }
    if (mapped) {
        nt_allocator_unstore(model, found);
        *block = found;
    }
    return NT_OK;
}

/* Puts what is left of a free block beside its unmapped pages among the free ones. */
static nt_status
allocator_keep_ends(nt_allocator *model, uint32_t block, uint64_t begin, uint64_t end,
                    nt_error *err)
{
    uint32_t row;
    const uint64_t address = nt_allocator_block(model, block)->address;
    if (begin > address) {
        NT_TRY(nt_allocator_cut(model, block, begin - address, &row, err));
        NT_TRY(nt_allocator_store(model, row, err));
    }
    allocator_block high = *nt_allocator_block(model, block);
    if (end < high.address + high.size) {
        high.size -= end - high.address;
        high.address = end;
        high.before = block;
        NT_TRY(nt_allocator_add_block(model, &high, &row, err));
        NT_TRY(nt_allocator_store(model, row, err));
        nt_allocator_block(model, block)->size = end - begin;
    }
    return NT_OK;
}

/* Ends a reservation of which nothing is mapped. */
static void
allocator_end_area(nt_allocator *model, uint32_t block)
{
    const allocator_block b = *nt_allocator_block(model, block);
    nt_allocator_unstore(model, block);
    nt_allocator_drop_block(model, block);
    model->areas[b.area] = (allocator_area){.address = model->unused_area};
    model->unused_area = b.area;
    nt_allocator_give_place(model, b.address, b.size);
}

nt_status
nt_allocator_unmap(nt_allocator *model, uint32_t block, nt_error *err)
{
    const allocator_block b = *nt_allocator_block(model, block);
    const uint64_t page = allocator_page(model, b.kind);
    const uint64_t base = model->areas[b.area].address;
    const uint64_t begin = base + (b.address - base + page - 1) / page * page;
    const uint64_t end = base + (b.address + b.size - base) / page * page;
    if (begin >= end) {
        return NT_OK;
    }
    nt_allocator_unstore(model, block);
    NT_TRY(allocator_keep_ends(model, block, begin, end, err));
    nt_allocator_block(model, block)->state = ALLOCATOR_UNMAPPED;
    nt_allocator_merge(model, block);
    NT_TRY(nt_allocator_store_unmapped(model, block, err));
    model->stats.bytes[NT_METRIC_RESERVED] -= end - begin;
    model->stats.device_frees++;
    nt_allocator_tell(model, NT_ACTION_SEGMENT_UNMAP, b.lane, begin, end - begin,
                      NT_NONE);
    if (!nt_allocator_is_split(nt_allocator_block(model, block))) {
        allocator_end_area(model, block);
    }
    return NT_OK;
}
