/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_allocator_state.h"

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

nt_status
nt_allocator_store(nt_allocator *model, uint32_t block, nt_error *err)
{
    allocator_block *b = nt_allocator_block(model, block);
    allocator_lane *lane = &model->lanes[b->lane];
    b->state = ALLOCATOR_FREE;
    b->u.born = model->pools[lane->pool].calls[b->kind];
    model->pools[lane->pool].loose += nt_allocator_is_loose(model, b);
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
    } else {
        model->pools[lane->pool].loose -= nt_allocator_is_loose(model, b);
        (void)nt_ordered_remove(&lane->idle[b->kind], &model->alloc, b->size,
                                b->address);
    }
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
}
