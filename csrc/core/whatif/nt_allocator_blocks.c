/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_allocator_state.h"

nt_status
nt_allocator_add_block(nt_allocator *model, const allocator_block *block, uint32_t *out,
                       nt_error *err)
{
    uint32_t row = model->unused;
    if (row != NT_NONE) {
        model->unused = model->blocks[row].later;
    } else {
        if (model->block_count >= NT_NONE) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 blocks");
        }
        NT_TRY(nt_grow(&model->alloc, (void **)&model->blocks, &model->block_capacity,
                       model->block_count + 1, sizeof *model->blocks, err));
        row = (uint32_t)model->block_count++;
    }
    model->blocks[row] = *block;
    if (block->before != NT_NONE) {
        model->blocks[block->before].after = row;
    }
    if (block->after != NT_NONE) {
        model->blocks[block->after].before = row;
    }
    *out = row;
    return NT_OK;
}

void
nt_allocator_drop_block(nt_allocator *model, uint32_t block)
{
    allocator_block *b = nt_allocator_block(model, block);
    b->state = ALLOCATOR_UNUSED;
    b->later = model->unused;
    model->unused = block;
}

bool
nt_allocator_is_loose(const nt_allocator *model, const allocator_block *block)
{
    if (block->area == NT_NONE) {
        return !nt_allocator_is_split(block);
    }
    const uint64_t page =
        nt_page_size(&model->options.settings, block->kind == NT_POOL_SMALL);
    const uint64_t offset = block->address - model->areas[block->area].address;
    return block->size >= page &&
           (offset + block->size) / page > (offset + page - 1) / page;
}

void
nt_allocator_list_pool(nt_allocator *model, uint32_t pool)
{
    allocator_pool *p = &model->pools[pool];
    p->before = NT_NONE;
    p->after = model->first_loose;
    if (p->after != NT_NONE) {
        model->pools[p->after].before = pool;
    }
    model->first_loose = pool;
    model->loose_pools++;
}

void
nt_allocator_unlist_pool(nt_allocator *model, uint32_t pool)
{
    const allocator_pool *p = &model->pools[pool];
    if (p->before != NT_NONE) {
        model->pools[p->before].after = p->after;
    } else {
        model->first_loose = p->after;
    }
    if (p->after != NT_NONE) {
        model->pools[p->after].before = p->before;
    }
    model->loose_pools--;
}

/* Notes a loose block, and lists its lane and its pool. */
static nt_status
allocator_add_loose(nt_allocator *model, uint32_t block, nt_error *err)
{
    const allocator_block *b = nt_allocator_block(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    allocator_pool *pool = &model->pools[lane->pool];
    NT_TRY(nt_ordered_add(&lane->loose[b->kind], &model->alloc,
                          (nt_ordered_entry){b->size, b->address, block}, err));
    if (pool->loose++ == 0 && pool->released != 0) {
        nt_allocator_list_pool(model, lane->pool);
    }
    if (lane->is_listed[b->kind]) {
        return NT_OK;
    }
    lane->is_listed[b->kind] = true;
    return nt_ordered_add(&pool->loose_lanes[b->kind], &model->alloc,
                          (nt_ordered_entry){lane->stream, b->lane, b->lane}, err);
}

/* Takes out one that is loose no more. Its lane stays where it is: the next walk over
 * the loose ones takes it out, if it has none then. */
static void
allocator_drop_loose(nt_allocator *model, const allocator_block *block)
{
    allocator_lane *lane = &model->lanes[block->lane];
    allocator_pool *pool = &model->pools[lane->pool];
    (void)nt_ordered_remove(&lane->loose[block->kind], &model->alloc, block->size,
                            block->address);
    if (--pool->loose == 0 && pool->released != 0) {
        nt_allocator_unlist_pool(model, lane->pool);
    }
}

nt_status
nt_allocator_store(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = nt_allocator_block(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    b->state = ALLOCATOR_FREE;
    b->u.born = model->pools[lane->pool].calls[b->kind];
    if (nt_allocator_is_loose(model, b)) {
        NT_TRY(allocator_add_loose(model, block, err));
    }
    if (lane->has_places) {
        NT_TRY(nt_ordered_add(&lane->places, &model->alloc,
                              (nt_ordered_entry){b->address, 0, block}, err));
    }
    if (lane->has_plain && b->area == NT_NONE) {
        NT_TRY(nt_ordered_add(&lane->plain[b->kind], &model->alloc,
                              (nt_ordered_entry){b->size, b->address, block}, err));
    }
    return nt_ordered_add(&lane->idle[b->kind], &model->alloc,
                          (nt_ordered_entry){b->size, b->address, block}, err);
}

void
nt_allocator_unstore(nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    if (b->state == ALLOCATOR_UNMAPPED) {
        (void)nt_ordered_remove(&lane->unmapped[b->kind], &model->alloc, 0, b->address);
        return;
    }
    if (nt_allocator_is_loose(model, b)) {
        allocator_drop_loose(model, b);
    }
    if (lane->has_places) {
        (void)nt_ordered_remove(&lane->places, &model->alloc, b->address, 0);
    }
    if (lane->has_plain && b->area == NT_NONE) {
        (void)nt_ordered_remove(&lane->plain[b->kind], &model->alloc, b->size,
                                b->address);
    }
    (void)nt_ordered_remove(&lane->idle[b->kind], &model->alloc, b->size, b->address);
}

nt_status
nt_allocator_part_plain(nt_allocator *model, uint32_t lane, nt_error *err)
{
    allocator_lane *l = &model->lanes[lane];
    for (size_t kind = 0; kind < NT_POOL_KIND_COUNT && !l->has_plain; kind++) {
        const nt_ordered *set = &l->idle[kind];
        nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
        while (entry.value != NT_NONE) {
            if (model->blocks[entry.value].area == NT_NONE) {
                NT_TRY(nt_ordered_add(&l->plain[kind], &model->alloc, entry, err));
            }
            entry = nt_ordered_after(set, entry.first, entry.second);
        }
    }
    l->has_plain = true;
    return NT_OK;
}

nt_status
nt_allocator_find_below(nt_allocator *model, uint32_t lane, uint64_t address,
                        uint32_t *block, nt_error *err)
{
    allocator_lane *l = &model->lanes[lane];
    for (size_t kind = 0; kind < NT_POOL_KIND_COUNT && !l->has_places; kind++) {
        const nt_ordered *set = &l->idle[kind];
        nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
        while (entry.value != NT_NONE) {
            NT_TRY(nt_ordered_add(&l->places, &model->alloc,
                                  (nt_ordered_entry){entry.second, 0, entry.value},
                                  err));
            entry = nt_ordered_after(set, entry.first, entry.second);
        }
    }
    l->has_places = true;
    *block = nt_ordered_before(&l->places, address, 1).value;
    return NT_OK;
}

nt_status
nt_allocator_store_unmapped(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = nt_allocator_block(model, block);
    b->state = ALLOCATOR_UNMAPPED;
    return nt_ordered_add(&model->lanes[b->lane].unmapped[b->kind], &model->alloc,
                          (nt_ordered_entry){0, b->address, block}, err);
}

nt_status
nt_allocator_cut(nt_allocator *model, uint32_t block, uint64_t size, uint32_t *low,
                 nt_error *err)
{
    allocator_block part = *nt_allocator_block(model, block);
    part.size = size;
    part.after = block;
    NT_TRY(nt_allocator_add_block(model, &part, low, err));
    allocator_block *rest = nt_allocator_block(model, block);
    rest->address += size;
    rest->size -= size;
    return NT_OK;
}

/* Takes a free or unmapped neighbour of the same state into `block`. */
static void
allocator_absorb(nt_allocator *model, uint32_t block, uint32_t other)
{
    allocator_block *b = nt_allocator_block(model, block);
    const allocator_block *o = nt_allocator_block(model, other);
    nt_allocator_unstore(model, other);
    if (b->before == other) {
        b->address = o->address;
        b->before = o->before;
        if (o->before != NT_NONE) {
            model->blocks[o->before].after = block;
        }
    } else {
        b->after = o->after;
        if (o->after != NT_NONE) {
            model->blocks[o->after].before = block;
        }
    }
    b->size += o->size;
    nt_allocator_drop_block(model, other);
}

void
nt_allocator_merge(nt_allocator *model, uint32_t block)
{
    const uint8_t state = nt_allocator_block(model, block)->state;
    const uint32_t sides[2] = {nt_allocator_block(model, block)->before,
                               nt_allocator_block(model, block)->after};
    for (size_t i = 0; i < 2; i++) {
        if (sides[i] != NT_NONE && model->blocks[sides[i]].state == state) {
            allocator_absorb(model, block, sides[i]);
        }
    }
}

nt_status
nt_allocator_settle(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = nt_allocator_block(model, block);
    model->stats.bytes[NT_METRIC_ACTIVE] -= b->size;
    model->stats.bytes[NT_METRIC_REQUESTED] -= b->u.requested;
    model->stats.active--;
    b->state = ALLOCATOR_FREE;
    nt_allocator_merge(model, block);
    return nt_allocator_store(model, block, err);
}

void
nt_allocator_enqueue(nt_allocator *model, uint32_t block)
{
    allocator_block *b = nt_allocator_block(model, block);
    b->earlier = model->last_pending;
    b->later = NT_NONE;
    if (b->earlier != NT_NONE) {
        model->blocks[b->earlier].later = block;
    } else {
        model->first_pending = block;
    }
    model->last_pending = block;
    model->pools[model->lanes[b->lane].pool].pending++;
}

void
nt_allocator_dequeue(nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    if (b->earlier != NT_NONE) {
        model->blocks[b->earlier].later = b->later;
    } else {
        model->first_pending = b->later;
    }
    if (b->later != NT_NONE) {
        model->blocks[b->later].earlier = b->earlier;
    } else {
        model->last_pending = b->earlier;
    }
    model->pools[model->lanes[b->lane].pool].pending--;
}
