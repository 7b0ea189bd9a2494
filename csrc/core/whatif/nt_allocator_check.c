/* SPDX-License-Identifier: Apache-2.0 */
/* Every invariant of the model, for tests. */
#include "whatif/nt_allocator_state.h"

typedef struct allocator_tally {
    uint64_t bytes[NT_METRIC_COUNT];
    uint64_t allocations, active, segments, pending;
    size_t seen, unmapped, idle, loose, placed, plain;
} allocator_tally;

/* Leaves the function with the words for what does not hold. */
#define ALLOCATOR_HOLDS(condition, words)                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            return (words);                                                            \
        }                                                                              \
    } while (0)

static bool
allocator_is_in(const nt_ordered *set, uint32_t block, uint64_t first, uint64_t second)
{
    const nt_ordered_entry entry = nt_ordered_from(set, first, second);
    return entry.value == block && entry.first == first && entry.second == second;
}

/* A free or unmapped block stands in its sets, under its keys. */
static bool
allocator_is_stored(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    const allocator_lane *lane = &model->lanes[b->lane];
    if (b->state != ALLOCATOR_FREE) {
        return allocator_is_in(&lane->unmapped[b->kind], block, 0, b->address);
    }
    return allocator_is_in(&lane->idle[b->kind], block, b->size, b->address) &&
           (!nt_allocator_is_loose(model, b) ||
            allocator_is_in(&lane->loose[b->kind], block, b->size, b->address)) &&
           (!lane->has_places ||
            allocator_is_in(&lane->places, block, b->address, 0)) &&
           (!lane->has_plain || b->area != NT_NONE ||
            allocator_is_in(&lane->plain[b->kind], block, b->size, b->address));
}

static const char *
allocator_check_neighbours(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    if (b->after == NT_NONE) {
        return NULL;
    }
    const allocator_block *next = nt_allocator_block(model, b->after);
    ALLOCATOR_HOLDS(next->before == block, "neighbours know each other");
    ALLOCATOR_HOLDS(next->address == b->address + b->size, "blocks leave no gap");
    ALLOCATOR_HOLDS(next->lane == b->lane && next->kind == b->kind &&
                        next->area == b->area,
                    "a segment belongs to one stream of one pool");
    const bool is_idle = b->state == ALLOCATOR_FREE || b->state == ALLOCATOR_UNMAPPED;
    ALLOCATOR_HOLDS(!is_idle || next->state != b->state,
                    "free blocks side by side are one");
    if (b->area != NT_NONE &&
        (b->state == ALLOCATOR_UNMAPPED) != (next->state == ALLOCATOR_UNMAPPED)) {
        const uint64_t page =
            nt_page_size(&model->options.settings, b->kind == NT_POOL_SMALL);
        ALLOCATOR_HOLDS((next->address - model->areas[b->area].address) % page == 0,
                        "whole pages are mapped");
    }
    return NULL;
}

static const char *
allocator_check_block(const nt_allocator *model, uint32_t block, allocator_tally *tally)
{
    const allocator_block *b = nt_allocator_block(model, block);
    tally->seen++;
    ALLOCATOR_HOLDS(b->size != 0 && b->size % NT_MIN_BLOCK_SIZE == 0,
                    "sizes are multiples of 512");
    ALLOCATOR_HOLDS(b->address <= UINT64_MAX - b->size, "addresses do not wrap");
    if (b->state == ALLOCATOR_UNMAPPED) {
        tally->unmapped++;
        ALLOCATOR_HOLDS(b->area != NT_NONE, "only reservations have unmapped parts");
        ALLOCATOR_HOLDS(allocator_is_stored(model, block), "unmapped parts are stored");
        return allocator_check_neighbours(model, block);
    }
    tally->bytes[NT_METRIC_RESERVED] += b->size;
    if (b->state == ALLOCATOR_FREE) {
        tally->idle++;
        tally->loose += nt_allocator_is_loose(model, b);
        tally->placed += model->lanes[b->lane].has_places;
        tally->plain += model->lanes[b->lane].has_plain && b->area == NT_NONE;
        ALLOCATOR_HOLDS(allocator_is_stored(model, block), "free blocks are stored");
        return allocator_check_neighbours(model, block);
    }
    tally->active++;
    tally->bytes[NT_METRIC_ACTIVE] += b->size;
    tally->bytes[NT_METRIC_REQUESTED] += b->u.requested;
    if (b->state == ALLOCATOR_ALLOCATED) {
        tally->allocations++;
        tally->bytes[NT_METRIC_ALLOCATED] += b->size;
    } else {
        tally->pending++;
    }
    return allocator_check_neighbours(model, block);
}

/* The blocks of one segment, from its first one on. */
static const char *
allocator_check_segment(const nt_allocator *model, uint32_t head,
                        allocator_tally *tally, nt_ordered *spans)
{
    const allocator_block *first = nt_allocator_block(model, head);
    uint64_t end = first->address;
    for (uint32_t i = head; i != NT_NONE; i = nt_allocator_block(model, i)->after) {
        const char *broken = allocator_check_block(model, i, tally);
        if (broken != NULL) {
            return broken;
        }
        ALLOCATOR_HOLDS(tally->seen <= model->block_count, "segments have an end");
        end += nt_allocator_block(model, i)->size;
    }
    if (first->area == NT_NONE) {
        tally->segments++;
    } else {
        const allocator_area *area = &model->areas[first->area];
        ALLOCATOR_HOLDS(area->address == first->address &&
                            area->size == end - first->address,
                        "a reservation is covered by its blocks");
    }
    const nt_ordered_entry below = nt_ordered_before(spans, end, 0);
    ALLOCATOR_HOLDS(below.value == NT_NONE || below.second <= first->address,
                    "segments do not overlap");
    const nt_alloc alloc = nt_alloc_system();
    ALLOCATOR_HOLDS(nt_ordered_add(spans, &alloc,
                                   (nt_ordered_entry){first->address, end, head},
                                   NULL) == NT_OK,
                    "there is memory for the check");
    return NULL;
}

static const char *
allocator_check_pending(const nt_allocator *model, uint64_t expected)
{
    uint64_t count = 0;
    uint32_t earlier = NT_NONE;
    for (uint32_t i = model->first_pending; i != NT_NONE;
         i = nt_allocator_block(model, i)->later) {
        const allocator_block *b = nt_allocator_block(model, i);
        ALLOCATOR_HOLDS(b->state == ALLOCATOR_PENDING && b->earlier == earlier &&
                            ++count <= expected,
                        "the queue holds what is pending");
        earlier = i;
    }
    ALLOCATOR_HOLDS(count == expected && model->last_pending == earlier,
                    "all that is pending is in the queue");
    return NULL;
}

/* What is counted by pool and by lane. */
static const char *
allocator_check_pools(const nt_allocator *model, const allocator_tally *tally)
{
    size_t loose = 0, lanes_loose = 0, pending = 0, loose_pools = 0, listed = 0;
    size_t placed = 0, plain = 0;
    for (size_t i = 0; i < model->pool_count; i++) {
        const allocator_pool *pool = &model->pools[i];
        loose += pool->loose;
        pending += pool->pending;
        loose_pools += pool->released != 0 && pool->loose != 0;
    }
    for (uint32_t i = model->first_loose; i != NT_NONE && listed < loose_pools;
         i = model->pools[i].after) {
        ALLOCATOR_HOLDS(model->pools[i].released != 0 && model->pools[i].loose != 0,
                        "pools with something to give back are listed");
        listed++;
    }
    for (size_t i = 0; i < model->lane_count; i++) {
        const allocator_lane *lane = &model->lanes[i];
        placed += lane->places.count;
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            plain += lane->plain[kind].count;
            lanes_loose += lane->loose[kind].count;
            ALLOCATOR_HOLDS(lane->is_listed[kind] || lane->loose[kind].count == 0,
                            "lanes with something to give back are listed");
        }
    }
    ALLOCATOR_HOLDS(placed == tally->placed && plain == tally->plain,
                    "what is kept apart is free");
    ALLOCATOR_HOLDS(loose == tally->loose && lanes_loose == loose &&
                        loose_pools == model->loose_pools && listed == loose_pools,
                    "what could be given back is counted");
    ALLOCATOR_HOLDS(pending == tally->pending, "what is pending is counted");
    return NULL;
}

static const char *
allocator_check_sums(const nt_allocator *model, const allocator_tally *tally)
{
    const nt_allocator_stats *stats = &model->stats;
    size_t used = 0, idle = 0, unmapped = 0;
    for (size_t i = 0; i < model->block_count; i++) {
        used += model->blocks[i].state != ALLOCATOR_UNUSED;
    }
    for (size_t i = 0; i < model->lane_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            const allocator_lane *lane = &model->lanes[i];
            ALLOCATOR_HOLDS(nt_ordered_check(&lane->idle[kind]) &&
                                nt_ordered_check(&lane->unmapped[kind]),
                            "sets are in order");
            idle += lane->idle[kind].count;
            unmapped += lane->unmapped[kind].count;
        }
    }
    const char *broken = allocator_check_pools(model, tally);
    if (broken != NULL) {
        return broken;
    }
    ALLOCATOR_HOLDS(used == tally->seen, "every block is in a segment");
    ALLOCATOR_HOLDS(idle == tally->idle && unmapped == tally->unmapped,
                    "sets hold nothing else");
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        ALLOCATOR_HOLDS(stats->bytes[metric] == tally->bytes[metric],
                        "figures are sums over the blocks");
        ALLOCATOR_HOLDS(stats->peak[metric] >= stats->bytes[metric],
                        "no figure is above its peak");
    }
    ALLOCATOR_HOLDS(stats->allocations == tally->allocations &&
                        stats->active == tally->active &&
                        stats->segments == tally->segments,
                    "counts are those of the blocks");
    return allocator_check_pending(model, tally->pending);
}

const char *
nt_allocator_check(const nt_allocator *model)
{
    allocator_tally tally = {.seen = 0};
    /* Not the model's memory, of which there may be no more. */
    const nt_alloc alloc = nt_alloc_system();
    nt_ordered spans = {.count = 0};
    const char *broken = NULL;
    for (uint32_t i = 0; i < model->block_count && broken == NULL; i++) {
        const allocator_block *b = nt_allocator_block(model, i);
        if (b->state != ALLOCATOR_UNUSED && b->before == NT_NONE) {
            broken = allocator_check_segment(model, i, &tally, &spans);
        }
    }
    nt_ordered_clear(&spans, &alloc);
    return broken != NULL ? broken : allocator_check_sums(model, &tally);
}
