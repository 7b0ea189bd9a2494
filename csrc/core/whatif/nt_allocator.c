/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_allocator.h"

#include <string.h>

#include "whatif/nt_allocator_state.h"

/* From this version on a request that fails elsewhere looks into the pools that their
 * users lend for that. */
#define ALLOCATOR_LENDS NT_TORCH(2, 8)
/* From this one on private pools have expandable segments too. */
#define ALLOCATOR_EXPANDS_PRIVATE NT_TORCH(2, 5)
#define ALLOCATOR_NEWEST UINT32_MAX

/* Where the built-in policy begins: 0 is no address. */
#define ALLOCATOR_FIRST_PLACE NT_ROUND_LARGE

/* floor(fraction * bytes), as PyTorch does it in floating point. */
static uint64_t
allocator_fraction(double fraction, uint64_t bytes)
{
    return (uint64_t)(fraction * (double)bytes);
}

static void
allocator_find_limits(nt_allocator *model)
{
    const nt_allocator_options *options = &model->options;
    const nt_settings *settings = &options->settings;
    model->limit = options->limit != 0 ? options->limit : NT_UNLIMITED;
    if (options->limit == 0 && settings->per_process_memory_fraction < 1 &&
        options->device_total != 0) {
        model->limit = allocator_fraction(settings->per_process_memory_fraction,
                                          options->device_total);
    }
    model->gc_limit = NT_UNLIMITED;
    if (model->limit != NT_UNLIMITED && settings->garbage_collection_threshold > 0) {
        model->gc_limit =
            allocator_fraction(settings->garbage_collection_threshold, model->limit);
    }
    model->device_room = NT_LARGEST_DEVICE;
    if (options->device_total != 0) {
        model->device_room = options->device_total > options->device_other
                                 ? options->device_total - options->device_other
                                 : 0;
    }
}

nt_status
nt_allocator_new(const nt_alloc *alloc, const nt_allocator_options *options,
                 nt_allocator **out, nt_error *err)
{
    if (options->device_total > NT_LARGEST_DEVICE ||
        options->settings.large_segment_size > NT_LARGEST_DEVICE) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "no device has more than 2^58 bytes");
    }
    nt_allocator *model = nt_allocate(alloc, sizeof *model);
    if (model == NULL) {
        return nt_fail_nomem(err);
    }
    *model = (nt_allocator){
        .alloc = *alloc,
        .options = *options,
        .next_place = ALLOCATOR_FIRST_PLACE,
        .unused = NT_NONE,
        .unused_area = NT_NONE,
        .first_pending = NT_NONE,
        .last_pending = NT_NONE,
        .first_loose = NT_NONE,
    };
    if (model->options.version == 0) {
        model->options.version = ALLOCATOR_NEWEST;
    }
    allocator_find_limits(model);
    uint32_t pool;
    const nt_status status = nt_allocator_add_pool(model, 0, &pool, err);
    if (status != NT_OK) {
        nt_allocator_free(model);
        return status;
    }
    *out = model;
    return NT_OK;
}

void
nt_allocator_free(nt_allocator *model)
{
    if (model == NULL) {
        return;
    }
    const nt_alloc alloc = model->alloc;
    for (size_t i = 0; i < model->lane_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            nt_ordered_clear(&model->lanes[i].idle[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].loose[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].unmapped[kind], &alloc);
            nt_ordered_clear(&model->lanes[i].plain[kind], &alloc);
        }
        nt_ordered_clear(&model->lanes[i].places, &alloc);
    }
    for (size_t i = 0; i < model->pool_count; i++) {
        for (size_t kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
            nt_ordered_clear(&model->pools[i].loose_lanes[kind], &alloc);
        }
        nt_release(&alloc, model->pools[i].lanes,
                   model->pools[i].lane_capacity * sizeof(uint32_t));
    }
    nt_release(&alloc, model->blocks, model->block_capacity * sizeof *model->blocks);
    nt_release(&alloc, model->lanes, model->lane_capacity * sizeof *model->lanes);
    nt_release(&alloc, model->pools, model->pool_capacity * sizeof *model->pools);
    nt_release(&alloc, model->areas, model->area_capacity * sizeof *model->areas);
    nt_release(&alloc, model->found, model->found_capacity * sizeof *model->found);
    nt_release(&alloc, model, sizeof *model);
}

nt_status
nt_allocator_add_pool(nt_allocator *model, unsigned flags, uint32_t *pool,
                      nt_error *err)
{
    NT_TRY(nt_grow(&model->alloc, (void **)&model->pools, &model->pool_capacity,
                   model->pool_count + 1, sizeof *model->pools, err));
    *pool = (uint32_t)model->pool_count;
    model->pools[model->pool_count++] = (allocator_pool){.flags = flags};
    model->has_lenders |= (flags & NT_POOL_USE_ON_OOM) != 0;
    return NT_OK;
}

void
nt_allocator_release_pool(nt_allocator *model, uint32_t pool, bool is_released)
{
    allocator_pool *p = &model->pools[pool];
    if (p->released != 0 && p->loose != 0) {
        nt_allocator_unlist_pool(model, pool);
    }
    p->released = is_released ? ++model->releases : 0;
    if (p->released != 0 && p->loose != 0) {
        nt_allocator_list_pool(model, pool);
    }
}

nt_status
nt_allocator_add_lane(nt_allocator *model, uint32_t pool, uint64_t stream,
                      uint32_t *lane, nt_error *err)
{
    allocator_pool *p = &model->pools[pool];
    NT_TRY(nt_grow(&model->alloc, (void **)&model->lanes, &model->lane_capacity,
                   model->lane_count + 1, sizeof *model->lanes, err));
    NT_TRY(nt_grow(&model->alloc, (void **)&p->lanes, &p->lane_capacity,
                   p->lane_count + 1, sizeof *p->lanes, err));
    p->lanes[p->lane_count++] = (uint32_t)model->lane_count;
    *lane = (uint32_t)model->lane_count;
    model->lanes[model->lane_count++] =
        (allocator_lane){.pool = pool, .stream = stream};
    return NT_OK;
}

void
nt_allocator_set_capturing(nt_allocator *model, bool is_capturing)
{
    model->is_capturing = is_capturing;
}

/* What PyTorch counts a block as, when it decides which of them fits best. */
static uint64_t
allocator_expandable_size(const nt_allocator *model, uint32_t block)
{
    const allocator_block *b = nt_allocator_block(model, block);
    const uint32_t after = b->after;
    return after != NT_NONE && model->blocks[after].state == ALLOCATOR_UNMAPPED
               ? b->size + model->blocks[after].size
               : b->size;
}

/* The best fit among the free blocks of the request's stream, or NT_NONE. */
static uint32_t
allocator_look_up(const nt_allocator *model, const allocator_request *request)
{
    const allocator_lane *lane = &model->lanes[request->lane];
    const nt_ordered *set = lane->has_plain && !request->expands
                                ? &lane->plain[request->kind]
                                : &lane->idle[request->kind];
    nt_ordered_entry best = nt_ordered_from(set, request->rounded, 0);
    while (best.value != NT_NONE && model->blocks[best.value].area != NT_NONE) {
        const nt_ordered_entry next = nt_ordered_after(set, best.first, best.second);
        if (request->expands && (next.value == NT_NONE ||
                                 allocator_expandable_size(model, next.value) >=
                                     allocator_expandable_size(model, best.value))) {
            break;
        }
        best = next;
    }
    return best.value != NT_NONE &&
                   nt_may_use(&model->options.settings, best.first, request->rounded)
               ? best.value
               : NT_NONE;
}

/* The same, counted as a search and taken out. */
static uint32_t
allocator_find(nt_allocator *model, const allocator_request *request)
{
    if (model->gc_limit != NT_UNLIMITED) {
        model->pools[request->pool].calls[request->kind]++;
    }
    const uint32_t block = allocator_look_up(model, request);
    if (block != NT_NONE) {
        nt_allocator_unstore(model, block);
    }
    return block;
}

/* A free block of the request's stream in one of the pools that lend theirs; there it
 * is served as if segments did not expand. */
static uint32_t
allocator_borrow(nt_allocator *model, allocator_request *request)
{
    if (!model->has_lenders || request->pool != NT_DEFAULT_POOL ||
        model->options.version < ALLOCATOR_LENDS) {
        return NT_NONE;
    }
    const uint64_t stream = model->lanes[request->lane].stream;
    for (uint32_t pool = NT_DEFAULT_POOL + 1; pool < model->pool_count; pool++) {
        const allocator_pool *p = &model->pools[pool];
        for (size_t i = 0; (p->flags & NT_POOL_USE_ON_OOM) && i < p->lane_count; i++) {
            if (model->lanes[p->lanes[i]].stream == stream) {
                allocator_request other = *request;
                other.lane = p->lanes[i];
                other.pool = pool;
                other.expands = false;
                const uint32_t block = allocator_find(model, &other);
                if (block != NT_NONE) {
                    *request = other;
                    return block;
                }
            }
        }
    }
    return NT_NONE;
}

/* No free block serves the request: the steps that PyTorch takes, in their order. */
static nt_status
allocator_struggle(nt_allocator *model, allocator_request *request, uint32_t *block,
                   nt_error *err)
{
    bool enough;
    NT_TRY(nt_allocator_collect(model, err));
    NT_TRY(nt_allocator_open(model, request, block, err));
    if (*block == NT_NONE) {
        *block = allocator_borrow(model, request);
    }
    if (*block == NT_NONE) {
        nt_allocator_release_oversize(model, request, &enough);
        if (enough) {
            NT_TRY(nt_allocator_open(model, request, block, err));
        }
    }
    if (*block == NT_NONE && !model->is_capturing && request->pool == NT_DEFAULT_POOL) {
        NT_TRY(nt_allocator_release_cache(model, err));
        model->stats.retries++;
        NT_TRY(nt_allocator_open(model, request, block, err));
    }
    if (*block == NT_NONE) {
        model->stats.ooms++;
        nt_allocator_tell(model, NT_ACTION_OOM, request->lane, 0, request->rounded,
                          NT_NONE);
    }
    return NT_OK;
}

/* The found block becomes one in use. */
static void
allocator_hand_out(nt_allocator *model, uint32_t block, uint64_t nbytes, uint32_t tag)
{
    allocator_block *b = nt_allocator_block(model, block);
    b->state = ALLOCATOR_ALLOCATED;
    b->u.requested = nbytes;
    b->tag = tag;
    nt_allocator_rise(model, NT_METRIC_ALLOCATED, b->size);
    nt_allocator_rise(model, NT_METRIC_ACTIVE, b->size);
    nt_allocator_rise(model, NT_METRIC_REQUESTED, nbytes);
    model->stats.allocations++;
    model->stats.active++;
}

/* Keeps the first `size` bytes of the found block; the others are free. */
static nt_status
allocator_split(nt_allocator *model, uint32_t *block, uint64_t size, nt_error *err)
{
    const uint32_t rest = *block;
    NT_TRY(nt_allocator_cut(model, rest, size, block, err));
    return nt_allocator_store(model, rest, err);
}

/* Whether the rest of the found block is worth a block of its own. */
static bool
allocator_has_rest(const nt_allocator *model, const allocator_request *request,
                   uint32_t block)
{
    const allocator_block *found = nt_allocator_block(model, block);
    const allocator_pool *pool = &model->pools[model->lanes[found->lane].pool];
    return !(pool->flags & NT_POOL_NO_SPLIT) &&
           nt_should_split(&model->options.settings, found->size, request->rounded,
                           request->kind == NT_POOL_SMALL, request->expands);
}

static nt_status
allocator_make_request(const nt_allocator *model, uint32_t lane, uint64_t nbytes,
                       allocator_request *out, nt_error *err)
{
    if (nbytes == 0 || nbytes > NT_LARGEST_REQUEST) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a request must be for 1 to 2^60 bytes");
    }
    const nt_settings *settings = &model->options.settings;
    const uint64_t rounded = nt_round_size(settings, nbytes);
    const uint32_t pool = model->lanes[lane].pool;
    *out = (allocator_request){
        .lane = lane,
        .pool = pool,
        .kind = nt_is_small(rounded) ? NT_POOL_SMALL : NT_POOL_LARGE,
        .rounded = rounded,
        .segment = nt_segment_size(settings, rounded),
        .expands = settings->expandable_segments &&
                   !(model->pools[pool].flags & NT_POOL_OWN_ALLOCATOR) &&
                   (pool == NT_DEFAULT_POOL ||
                    model->options.version >= ALLOCATOR_EXPANDS_PRIVATE),
    };
    return NT_OK;
}

nt_status
nt_allocator_malloc(nt_allocator *model, uint32_t lane, uint64_t nbytes, uint32_t tag,
                    uint32_t *block, nt_error *err)
{
    allocator_request request;
    NT_TRY(allocator_make_request(model, lane, nbytes, &request, err));
    uint32_t found = allocator_find(model, &request);
    if (found == NT_NONE) {
        NT_TRY(allocator_struggle(model, &request, &found, err));
    }
    if (found != NT_NONE) {
        if (allocator_has_rest(model, &request, found)) {
            NT_TRY(allocator_split(model, &found, request.rounded, err));
        }
        allocator_hand_out(model, found, nbytes, tag);
    }
    *block = found;
    return NT_OK;
}

/* The free block of the lane that covers the range; or NT_NONE. */
static nt_status
allocator_find_cover(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint64_t size, uint32_t *block, nt_error *err)
{
    NT_TRY(nt_allocator_find_below(model, lane, address, block, err));
    if (*block != NT_NONE) {
        const allocator_block *b = nt_allocator_block(model, *block);
        if (size > b->size || address - b->address > b->size - size) {
            *block = NT_NONE;
        }
    }
    return NT_OK;
}

bool
nt_allocator_leads_to(const nt_allocator *model, uint32_t lane, uint64_t nbytes,
                      uint64_t address)
{
    allocator_request request;
    if (allocator_make_request(model, lane, nbytes, &request, NULL) != NT_OK) {
        return false;
    }
    const uint32_t fit = allocator_look_up(model, &request);
    return fit != NT_NONE && nt_allocator_block(model, fit)->address == address;
}

nt_status
nt_allocator_restore(nt_allocator *model, uint32_t lane, uint64_t address,
                     uint64_t nbytes, uint32_t tag, uint32_t *block, nt_error *err)
{
    allocator_request request;
    NT_TRY(allocator_make_request(model, lane, nbytes, &request, err));
    /* What is put back is a block as it was: its size is not rounded again, and where
     * a small segment was free for more than a small request, it stays in it. */
    const bool is_block =
        address % NT_MIN_BLOCK_SIZE == 0 && nbytes % NT_MIN_BLOCK_SIZE == 0;
    const uint64_t size = is_block ? nbytes : request.rounded;
    const bool is_other =
        size != request.rounded || !nt_allocator_leads_to(model, lane, nbytes, address);
    uint32_t found = NT_NONE;
    if (is_other && address % NT_MIN_BLOCK_SIZE == 0) {
        NT_TRY(allocator_find_cover(model, lane, address, size, &found, err));
    }
    if (found == NT_NONE) {
        *block = NT_NONE;
        return NT_OK;
    }
    nt_allocator_unstore(model, found);
    const uint64_t before = address - nt_allocator_block(model, found)->address;
    if (before != 0) {
        uint32_t low;
        NT_TRY(nt_allocator_cut(model, found, before, &low, err));
        NT_TRY(nt_allocator_store(model, low, err));
    }
    if (nt_allocator_block(model, found)->size > size) {
        NT_TRY(allocator_split(model, &found, size, err));
    }
    allocator_hand_out(model, found, nbytes, tag);
    *block = found;
    return NT_OK;
}

nt_status
nt_allocator_give(nt_allocator *model, uint32_t block, nt_error *err)
{
    model->stats.bytes[NT_METRIC_ALLOCATED] -= nt_allocator_block(model, block)->size;
    model->stats.allocations--;
    return nt_allocator_settle(model, block, err);
}

void
nt_allocator_give_later(nt_allocator *model, uint32_t block)
{
    allocator_block *b = nt_allocator_block(model, block);
    model->stats.bytes[NT_METRIC_ALLOCATED] -= b->size;
    model->stats.allocations--;
    b->state = ALLOCATOR_PENDING;
    nt_allocator_enqueue(model, block);
}

nt_status
nt_allocator_complete(nt_allocator *model, uint32_t block, nt_error *err)
{
    nt_allocator_dequeue(model, block);
    return nt_allocator_settle(model, block, err);
}

nt_status
nt_allocator_empty_cache(nt_allocator *model, nt_error *err)
{
    /* During a capture nothing may be waited for. */
    return model->is_capturing ? nt_allocator_release_private(model, err)
                               : nt_allocator_release_cache(model, err);
}

bool
nt_allocator_is_lean(const nt_allocator *model, uint32_t pool)
{
    const allocator_pool *p = &model->pools[pool];
    if (pool != NT_DEFAULT_POOL) {
        return p->loose == 0 && p->pending == 0;
    }
    return p->loose == 0 && model->loose_pools == 0 && model->first_pending == NT_NONE;
}

nt_status
nt_allocator_empty_pool(nt_allocator *model, uint32_t pool, nt_error *err)
{
    nt_allocator_release_pool(model, pool, true);
    return nt_allocator_release_one(model, pool, err);
}

uint64_t
nt_allocator_address(const nt_allocator *model, uint32_t block)
{
    return nt_allocator_block(model, block)->address;
}

uint64_t
nt_allocator_size(const nt_allocator *model, uint32_t block)
{
    return nt_allocator_block(model, block)->size;
}

uint64_t
nt_allocator_requested(const nt_allocator *model, uint32_t block)
{
    return nt_allocator_block(model, block)->u.requested;
}

uint32_t
nt_allocator_lane(const nt_allocator *model, uint32_t block)
{
    return nt_allocator_block(model, block)->lane;
}

const nt_allocator_stats *
nt_allocator_get_stats(const nt_allocator *model)
{
    return &model->stats;
}

void
nt_allocator_reset_stats(nt_allocator *model)
{
    nt_allocator_stats *stats = &model->stats;
    memcpy(stats->peak, stats->bytes, sizeof stats->peak);
    stats->device_allocs = 0;
    stats->device_frees = 0;
    stats->ooms = 0;
    stats->retries = 0;
    stats->waits = 0;
}
