/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the model: taken up from outside, and shown as a layout. */
#include "whatif/nt_allocator_state.h"
#include "base/nt_sort.h"

/* A layout with what is needed to free it. */
typedef struct allocator_view {
    nt_layout layout; /* the first member: the caller holds a pointer to it */
    size_t segment_capacity, block_capacity;
} allocator_view;

static const uint8_t allocator_piece_states[NT_PIECE_STATE_COUNT] = {
    [NT_PIECE_FREE] = ALLOCATOR_FREE,
    [NT_PIECE_ALLOCATED] = ALLOCATOR_ALLOCATED,
    [NT_PIECE_PENDING] = ALLOCATOR_PENDING,
    [NT_PIECE_UNMAPPED] = ALLOCATOR_UNMAPPED,
};

static bool
allocator_is_idle(nt_piece_state state)
{
    return state == NT_PIECE_FREE || state == NT_PIECE_UNMAPPED;
}

/* Checks the pieces of an area; *total are their bytes. */
static bool
allocator_check_pieces(const nt_allocator_area *area, uint64_t page, uint64_t *total)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < area->count; i++) {
        const nt_allocator_piece *piece = &area->pieces[i];
        const bool ends_page = i == 0 || bytes % page == 0;
        const bool is_unmapped = piece->state == NT_PIECE_UNMAPPED;
        const bool was_unmapped =
            i > 0 && area->pieces[i - 1].state == NT_PIECE_UNMAPPED;
        if (piece->size == 0 || piece->size % NT_MIN_BLOCK_SIZE != 0 ||
            piece->size > (UINT64_C(1) << 62) - bytes ||
            (!allocator_is_idle(piece->state) && piece->requested > piece->size) ||
            (is_unmapped && !area->is_reservation) ||
            (is_unmapped != was_unmapped && !ends_page) ||
            (i > 0 && allocator_is_idle(piece->state) &&
             piece->state == area->pieces[i - 1].state)) {
            return false;
        }
        bytes += piece->size;
    }
    *total = bytes;
    return bytes != 0 && (!area->is_reservation || bytes % page == 0);
}

static nt_status
allocator_adopt_piece(nt_allocator *model, const nt_allocator_piece *piece,
                      uint32_t block, nt_error *err)
{
    allocator_block *b = nt_allocator_block(model, block);
    b->tag = piece->tag;
    b->state = allocator_piece_states[piece->state];
    if (piece->state == NT_PIECE_UNMAPPED) {
        return nt_allocator_store_unmapped(model, block, err);
    }
    nt_allocator_rise(model, NT_METRIC_RESERVED, piece->size);
    if (piece->state == NT_PIECE_FREE) {
        return nt_allocator_store(model, block, err);
    }
    b->u.requested = piece->requested;
    model->stats.active++;
    nt_allocator_rise(model, NT_METRIC_ACTIVE, piece->size);
    nt_allocator_rise(model, NT_METRIC_REQUESTED, piece->requested);
    if (piece->state == NT_PIECE_PENDING) {
        nt_allocator_enqueue(model, block);
        return NT_OK;
    }
    model->stats.allocations++;
    nt_allocator_rise(model, NT_METRIC_ALLOCATED, piece->size);
    return NT_OK;
}

nt_status
nt_allocator_adopt(nt_allocator *model, const nt_allocator_area *area, uint32_t *blocks,
                   nt_error *err)
{
    allocator_area range = {.address = area->address};
    allocator_block next = {
        .address = area->address,
        .lane = area->lane,
        .before = NT_NONE,
        .after = NT_NONE,
        .area = NT_NONE,
        .kind = area->small ? NT_POOL_SMALL : NT_POOL_LARGE,
    };
    if (!allocator_check_pieces(
            area, nt_page_size(&model->options.settings, area->small), &range.size)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a segment from before the trace is not one that the allocator "
                       "makes: the file is damaged, or other settings applied then");
    }
    if (area->is_reservation) {
        NT_TRY(nt_allocator_add_area(model, &range, &next.area, err));
        if (!model->options.settings.expandable_segments) {
            NT_TRY(nt_allocator_part_plain(model, area->lane, err));
        }
    } else {
        model->stats.segments++;
    }
    uint32_t row = NT_NONE, first = NT_NONE;
    for (size_t i = 0; i < area->count; i++) {
        next.size = area->pieces[i].size;
        NT_TRY(nt_allocator_add_block(model, &next, &row, err));
        first = i == 0 ? row : first;
        next.address += next.size;
        next.before = row;
    }
    row = first;
    for (size_t i = 0; i < area->count; i++) {
        NT_TRY(allocator_adopt_piece(model, &area->pieces[i], row, err));
        blocks[i] = allocator_is_idle(area->pieces[i].state) ? NT_NONE : row;
        row = nt_allocator_block(model, row)->after;
    }
    return NT_OK;
}

/* The first blocks of all segments, by address; the caller frees *capacity items. */
static nt_status
allocator_find_heads(const nt_allocator *model, nt_sort_item **out, size_t *count,
                     size_t *capacity, nt_error *err)
{
    nt_sort_item *items = NULL;
    *count = 0;
    *capacity = 0;
    for (uint32_t i = 0; i < model->block_count; i++) {
        const allocator_block *b = nt_allocator_block(model, i);
        if (b->state == ALLOCATOR_UNUSED || b->before != NT_NONE) {
            continue;
        }
        const nt_status status = nt_grow(&model->alloc, (void **)&items, capacity,
                                         *count + 1, sizeof *items, err);
        if (status != NT_OK) {
            nt_release(&model->alloc, items, *capacity * sizeof *items);
            return status;
        }
        items[(*count)++] = (nt_sort_item){b->address, i};
    }
    nt_sort(items, *count);
    *out = items;
    return NT_OK;
}

/* Adds the mapped blocks from `first` on as one segment; *end is the block behind. */
static nt_status
allocator_show_segment(const nt_allocator *model, uint32_t first, allocator_view *view,
                       uint32_t *end, nt_error *err)
{
    const allocator_block *head = nt_allocator_block(model, first);
    const allocator_lane *lane = &model->lanes[head->lane];
    nt_segment segment = {
        .address = head->address,
        .stream = lane->stream,
        .pool = {0, lane->pool},
        .kind = head->kind,
        .is_expandable = head->area != NT_NONE,
        .stack = NT_NO_STACK,
    };
    uint32_t i = first;
    for (; i != NT_NONE; i = nt_allocator_block(model, i)->after) {
        const allocator_block *b = nt_allocator_block(model, i);
        if (b->state == ALLOCATOR_UNMAPPED) {
            break;
        }
        segment.total_size += b->size;
        if (b->state != ALLOCATOR_FREE) {
            segment.active_size += b->size;
            segment.requested_size += b->u.requested;
            segment.allocated_size += b->state == ALLOCATOR_ALLOCATED ? b->size : 0;
        }
    }
    *end = i;
    return nt_layout_add_segment(&view->layout, &model->alloc, &view->segment_capacity,
                                 &segment, err);
}

static nt_status
allocator_show_block(const nt_allocator *model, uint32_t block, allocator_view *view,
                     nt_error *err)
{
    const allocator_block *b = nt_allocator_block(model, block);
    const bool is_free = b->state == ALLOCATOR_FREE;
    const nt_block row = {
        .address = b->address,
        .size = b->size,
        .requested_size = is_free ? 0 : b->u.requested,
        .state = is_free                           ? NT_BLOCK_INACTIVE
                 : b->state == ALLOCATOR_ALLOCATED ? NT_BLOCK_ACTIVE_ALLOCATED
                                                   : NT_BLOCK_ACTIVE_PENDING_FREE,
        .stack = NT_NO_STACK,
    };
    return nt_layout_add_block(&view->layout, &model->alloc, &view->block_capacity,
                               &row, err);
}

static nt_status
allocator_show(const nt_allocator *model, uint32_t head, allocator_view *view,
               nt_error *err)
{
    uint32_t block = head;
    while (block != NT_NONE) {
        uint32_t end = nt_allocator_block(model, block)->after;
        if (nt_allocator_block(model, block)->state != ALLOCATOR_UNMAPPED) {
            NT_TRY(allocator_show_segment(model, block, view, &end, err));
            for (; block != end; block = nt_allocator_block(model, block)->after) {
                NT_TRY(allocator_show_block(model, block, view, err));
            }
        }
        block = end;
    }
    return NT_OK;
}

nt_status
nt_allocator_layout(const nt_allocator *model, nt_layout **out, nt_error *err)
{
    nt_sort_item *heads;
    size_t count, capacity;
    allocator_view *view = nt_allocate(&model->alloc, sizeof *view);
    if (view == NULL) {
        return nt_fail_nomem(err);
    }
    *view = (allocator_view){.segment_capacity = 0};
    nt_status status = allocator_find_heads(model, &heads, &count, &capacity, err);
    if (status == NT_OK) {
        for (size_t i = 0; i < count && status == NT_OK; i++) {
            status = allocator_show(model, heads[i].value, view, err);
        }
        nt_release(&model->alloc, heads, capacity * sizeof *heads);
    }
    if (status != NT_OK) {
        nt_allocator_layout_free(model, &view->layout);
        return status;
    }
    *out = &view->layout;
    return NT_OK;
}

void
nt_allocator_layout_free(const nt_allocator *model, nt_layout *layout)
{
    if (layout == NULL) {
        return;
    }
    allocator_view *view = (allocator_view *)layout;
    nt_layout_clear(&view->layout, &model->alloc, view->segment_capacity,
                    view->block_capacity);
    nt_release(&model->alloc, view, sizeof *view);
}
