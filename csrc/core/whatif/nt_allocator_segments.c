/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_allocator_state.h"

bool
nt_allocator_has_room(const nt_allocator *model, uint64_t bytes)
{
    const uint64_t reserved = model->stats.bytes[NT_METRIC_RESERVED];
    return reserved <= model->device_room && bytes <= model->device_room - reserved;
}

nt_status
nt_allocator_take_place(nt_allocator *model, const nt_allocator_need *need,
                        uint64_t *address, nt_error *err)
{
    const nt_allocator_places *places = &model->options.places;
    if (places->take != NULL) {
        return places->take(places->ctx, need, address, err);
    }
    if (need->size > (UINT64_C(1) << 63) - model->next_place) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "out of addresses");
    }
    *address = model->next_place;
    model->next_place += need->size;
    return NT_OK;
}

void
nt_allocator_give_place(nt_allocator *model, uint64_t address, uint64_t size)
{
    const nt_allocator_places *places = &model->options.places;
    if (places->give != NULL) {
        places->give(places->ctx, address, size);
    }
}

void
nt_allocator_release_segment(nt_allocator *model, uint32_t block)
{
    const allocator_block b = *nt_allocator_block(model, block);
    NT_ASSERT(b.state == ALLOCATOR_FREE && !nt_allocator_is_split(&b));
    nt_allocator_unstore(model, block);
    nt_allocator_drop_block(model, block);
    model->stats.bytes[NT_METRIC_RESERVED] -= b.size;
    model->stats.segments--;
    model->stats.device_frees++;
    nt_allocator_tell(model, NT_ACTION_SEGMENT_FREE, b.lane, b.address, b.size,
                      NT_NONE);
    nt_allocator_give_place(model, b.address, b.size);
}

/* A cudaMalloc. */
static nt_status
allocator_open_segment(nt_allocator *model, const allocator_request *request,
                       uint32_t *block, nt_error *err)
{
    const nt_allocator_need need = {
        .size = request->segment,
        .lane = request->lane,
        .small = request->kind == NT_POOL_SMALL,
    };
    allocator_block fresh = {
        .size = request->segment,
        .lane = request->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .area = NT_NONE,
        .state = ALLOCATOR_FREE,
        .kind = request->kind,
    };
    NT_TRY(nt_allocator_take_place(model, &need, &fresh.address, err));
    NT_TRY(nt_allocator_add_block(model, &fresh, block, err));
    nt_allocator_rise(model, NT_METRIC_RESERVED, fresh.size);
    model->stats.segments++;
    model->stats.device_allocs++;
    nt_allocator_tell(model, NT_ACTION_SEGMENT_ALLOC, fresh.lane, fresh.address,
                      fresh.size, NT_NONE);
    return NT_OK;
}

nt_status
nt_allocator_open(nt_allocator *model, const allocator_request *request,
                  uint32_t *block, nt_error *err)
{
    const uint64_t reserved = model->stats.bytes[NT_METRIC_RESERVED];
    *block = NT_NONE;
    if (reserved > model->limit || request->segment > model->limit - reserved) {
        return NT_OK;
    }
    if (request->expands) {
        return nt_allocator_expand(model, request, block, err);
    }
    if (!nt_allocator_has_room(model, request->segment)) {
        return NT_OK;
    }
    return allocator_open_segment(model, request, block, err);
}
