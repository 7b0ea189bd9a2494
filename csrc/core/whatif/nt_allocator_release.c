/* SPDX-License-Identifier: Apache-2.0 */
/* What the allocator gives back to the device, when memory is short or on request. */
#include "whatif/nt_allocator_state.h"
#include "base/nt_sort.h"

/* Whether a garbage collection may free it, or would if it were not expandable. */
static bool
allocator_is_whole(const nt_allocator *model, uint32_t block)
{
    return !nt_allocator_is_split(nt_allocator_block(model, block));
}

static uint64_t
allocator_age(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    const allocator_pool *pool = &model->pools[model->lanes[b->lane].pool];
    return pool->calls[b->kind] - b->u.born;
}

/* Notes the blocks of a set behind `count` others, in their order. */
static nt_status
allocator_find_set(nt_allocator *model, const nt_ordered *set, size_t *count,
                   nt_error *err)
{
    NT_TRY(nt_grow(&model->alloc, (void **)&model->found, &model->found_capacity,
                   *count + set->count, sizeof *model->found, err));
    nt_ordered_entry entry = nt_ordered_from(set, 0, 0);
    while (entry.value != NT_NONE) {
        model->found[(*count)++] = entry.value;
        entry = nt_ordered_after(set, entry.first, entry.second);
    }
    return NT_OK;
}

/* The loose blocks of a pool in the order in which PyTorch walks it: by stream, size
 * and address. Whole ones are all among them. */
static nt_status
allocator_find_pool(nt_allocator *model, uint32_t pool, nt_pool_kind kind,
                    size_t *count, nt_error *err)
{
    nt_ordered *lanes = &model->pools[pool].loose_lanes[kind];
    nt_ordered_entry entry = nt_ordered_from(lanes, 0, 0);
    *count = 0;
    while (entry.value != NT_NONE) {
        allocator_lane *lane = &model->lanes[entry.value];
        const nt_ordered_entry next =
            nt_ordered_after(lanes, entry.first, entry.second);
        if (lane->loose[kind].count != 0) {
            NT_TRY(allocator_find_set(model, &lane->loose[kind], count, err));
        } else {
            lane->is_listed[kind] = false;
            (void)nt_ordered_remove(lanes, &model->alloc, entry.first, entry.second);
        }
        entry = next;
    }
    return NT_OK;
}

/* One round over the blocks found: frees those of average age or more. */
static bool
allocator_collect_round(nt_allocator *model, size_t count, uint64_t *ages,
                        uint64_t *blocks, uint64_t *reclaimed)
{
    const double threshold = (double)*ages / (double)*blocks;
    bool is_any_freed = false;
    for (size_t i = 0; i < count; i++) {
        const uint32_t block = model->found[i];
        if (block == NT_NONE || !allocator_is_whole(model, block) ||
            nt_allocator_block(model, block)->area != NT_NONE) {
            continue;
        }
        const uint64_t age = allocator_age(model, block);
        if ((double)age >= threshold) {
            is_any_freed = true;
            *reclaimed += nt_allocator_block(model, block)->size;
            *ages -= age;
            (*blocks)--;
            nt_allocator_release_segment(model, block);
            model->found[i] = NT_NONE;
        }
    }
    return is_any_freed;
}

nt_status
nt_allocator_collect(nt_allocator *model, nt_error *err)
{
    const uint64_t reserved = model->stats.bytes[NT_METRIC_RESERVED];
    if (reserved <= model->gc_limit) {
        return NT_OK;
    }
    size_t count;
    uint64_t ages = 0, blocks = 0, reclaimed = 0;
    NT_TRY(allocator_find_pool(model, NT_DEFAULT_POOL, NT_POOL_LARGE, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (allocator_is_whole(model, model->found[i])) {
            ages += allocator_age(model, model->found[i]);
            blocks++;
        }
    }
    bool goes_on = true;
    while (goes_on && blocks > 0 && reclaimed < reserved - model->gc_limit) {
        goes_on = allocator_collect_round(model, count, &ages, &blocks, &reclaimed);
    }
    return NT_OK;
}

void
nt_allocator_release_oversize(nt_allocator *model, const allocator_request *request,
                              bool *enough)
{
    const uint64_t max_split = model->options.settings.max_split_size;
    const nt_ordered *set = &model->lanes[request->lane].idle[request->kind];
    const uint64_t wanted = request->rounded > max_split ? request->rounded : max_split;
    *enough = false;
    if (max_split == NT_UNLIMITED) {
        return;
    }
    nt_ordered_entry entry = nt_ordered_from(set, wanted, 0);
    if (entry.value != NT_NONE && model->blocks[entry.value].area == NT_NONE) {
        if (allocator_is_whole(model, entry.value)) {
            nt_allocator_release_segment(model, entry.value);
        }
        *enough = true;
        return;
    }
    /* No single one is large enough: several, the largest first. */
    uint64_t released = 0;
    set = &model->lanes[request->lane].loose[request->kind];
    entry = nt_ordered_before(set, wanted, 0);
    while (released < wanted && entry.value != NT_NONE && entry.first >= max_split) {
        if (model->blocks[entry.value].area == NT_NONE &&
            allocator_is_whole(model, entry.value)) {
            released += entry.first;
            nt_allocator_release_segment(model, entry.value);
        }
        entry = nt_ordered_before(set, entry.first, entry.second);
    }
    *enough = released >= wanted;
}

/* Gives back whole segments, and then whole pages of expandable ones. */
static nt_status
allocator_release_blocks(nt_allocator *model, uint32_t pool, nt_pool_kind kind,
                         nt_error *err)
{
    size_t count, mapped = 0;
    NT_TRY(allocator_find_pool(model, pool, kind, &count, err));
    for (size_t i = 0; i < count; i++) {
        const uint32_t block = model->found[i];
        if (nt_allocator_block(model, block)->area != NT_NONE) {
            model->found[mapped++] = block;
        } else if (allocator_is_whole(model, block)) {
            nt_allocator_release_segment(model, block);
        }
    }
    for (size_t i = 0; i < mapped; i++) {
        NT_TRY(nt_allocator_unmap(model, model->found[i], err));
    }
    return NT_OK;
}

/* What was given later is complete once all streams have been waited for: all of it,
 * or what is of one pool. */
static nt_status
allocator_wait(nt_allocator *model, uint32_t pool, nt_error *err)
{
    model->stats.waits++;
    uint32_t block = model->first_pending;
    while (block != NT_NONE && (pool == NT_NONE || model->pools[pool].pending != 0)) {
        const allocator_block b = *nt_allocator_block(model, block);
        if (pool == NT_NONE || model->lanes[b.lane].pool == pool) {
            nt_allocator_tell(model, NT_ACTION_FREE_COMPLETED, b.lane, b.address,
                              b.u.requested, b.tag);
            NT_TRY(nt_allocator_complete(model, block, err));
        }
        block = b.later;
    }
    return NT_OK;
}

nt_status
nt_allocator_release_cache(nt_allocator *model, nt_error *err)
{
    NT_TRY(allocator_wait(model, NT_NONE, err));
    NT_TRY(allocator_release_blocks(model, NT_DEFAULT_POOL, NT_POOL_LARGE, err));
    NT_TRY(allocator_release_blocks(model, NT_DEFAULT_POOL, NT_POOL_SMALL, err));
    return nt_allocator_release_private(model, err);
}

/* What is free in a private pool, small before large. */
static nt_status
allocator_release_both(nt_allocator *model, uint32_t pool, nt_error *err)
{
    NT_TRY(allocator_release_blocks(model, pool, NT_POOL_SMALL, err));
    return allocator_release_blocks(model, pool, NT_POOL_LARGE, err);
}

nt_status
nt_allocator_release_private(nt_allocator *model, nt_error *err)
{
    if (model->loose_pools == 0) {
        return NT_OK;
    }
    const size_t bytes = model->loose_pools * sizeof(nt_sort_item);
    nt_sort_item *items = nt_allocate(&model->alloc, bytes);
    if (items == NULL) {
        return nt_fail_nomem(err);
    }
    size_t count = 0;
    for (uint32_t i = model->first_loose; i != NT_NONE; i = model->pools[i].after) {
        items[count++] = (nt_sort_item){model->pools[i].released, i};
    }
    nt_sort(items, count);
    nt_status status = NT_OK;
    for (size_t i = 0; i < count && status == NT_OK; i++) {
        status = allocator_release_both(model, items[i].value, err);
    }
    nt_release(&model->alloc, items, bytes);
    return status;
}

nt_status
nt_allocator_release_one(nt_allocator *model, uint32_t pool, nt_error *err)
{
    NT_TRY(allocator_wait(model, pool, err));
    return allocator_release_both(model, pool, err);
}
