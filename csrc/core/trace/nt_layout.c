/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_layout.h"

#include <string.h>

#include "base/nt_columns.h"

static const nt_column_spec segment_specs[] = {
    NT_SEGMENT_LIST(NT_COLUMN_SPEC, nt_segment_columns)};

static const nt_column_spec block_specs[] = {
    NT_BLOCK_LIST(NT_COLUMN_SPEC, nt_block_columns)};

nt_status
nt_layout_add_segment(nt_layout *layout, const nt_alloc *alloc, size_t *capacity,
                      const nt_segment *segment, nt_error *err)
{
    nt_segment_columns *s = &layout->segments;
    const size_t row = s->count;
    if (row >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 segments");
    }
    NT_TRY(nt_columns_reserve(alloc, s, segment_specs, NT_LENGTH(segment_specs), row,
                              capacity, row + 1, err));
    s->device[row] = segment->device;
    s->address[row] = segment->address;
    s->total_size[row] = segment->total_size;
    s->allocated_size[row] = segment->allocated_size;
    s->active_size[row] = segment->active_size;
    s->requested_size[row] = segment->requested_size;
    s->stream[row] = segment->stream;
    s->pool_first[row] = segment->pool.first;
    s->pool_second[row] = segment->pool.second;
    s->kind[row] = segment->kind;
    s->is_expandable[row] = segment->is_expandable;
    s->stack[row] = segment->stack;
    s->block_first[row] = (uint32_t)layout->blocks.count;
    s->block_count[row] = 0;
    s->count = row + 1;
    return NT_OK;
}

nt_status
nt_layout_add_block(nt_layout *layout, const nt_alloc *alloc, size_t *capacity,
                    const nt_block *block, nt_error *err)
{
    nt_block_columns *b = &layout->blocks;
    const size_t row = b->count;
    if (layout->segments.count == 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "a block needs a segment first");
    }
    if (row >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 blocks");
    }
    NT_TRY(nt_columns_reserve(alloc, b, block_specs, NT_LENGTH(block_specs), row,
                              capacity, row + 1, err));
    b->segment[row] = (uint32_t)layout->segments.count - 1;
    b->address[row] = block->address;
    b->size[row] = block->size;
    b->requested_size[row] = block->requested_size;
    b->state[row] = block->state;
    b->stack[row] = block->stack;
    b->count = row + 1;
    layout->segments.block_count[layout->segments.count - 1]++;
    return NT_OK;
}

void
nt_layout_clear(nt_layout *layout, const nt_alloc *alloc, size_t segment_capacity,
                size_t block_capacity)
{
    nt_columns_release(alloc, &layout->segments, segment_specs,
                       NT_LENGTH(segment_specs), segment_capacity);
    nt_columns_release(alloc, &layout->blocks, block_specs, NT_LENGTH(block_specs),
                       block_capacity);
    layout->segments.count = 0;
    layout->blocks.count = 0;
}

/* Whether the blocks of one segment cover it without gap and add up. */
static bool
layout_segment_holds(const nt_layout *layout, uint32_t row)
{
    const nt_segment_columns *s = &layout->segments;
    const nt_block_columns *b = &layout->blocks;
    uint64_t next = s->address[row], total = 0;
    uint64_t allocated = 0, active = 0, requested = 0;
    for (uint32_t i = 0; i < s->block_count[row]; i++) {
        const uint32_t block = s->block_first[row] + i;
        if (b->address[block] != next) {
            return false;
        }
        next += b->size[block];
        total += b->size[block];
        if (b->state[block] != NT_BLOCK_INACTIVE) {
            active += b->size[block];
            requested += b->requested_size[block];
        }
        if (b->state[block] == NT_BLOCK_ACTIVE_ALLOCATED) {
            allocated += b->size[block];
        }
    }
    return total == s->total_size[row] && allocated == s->allocated_size[row] &&
           active == s->active_size[row] && requested == s->requested_size[row];
}

uint32_t
nt_layout_check(const nt_layout *layout)
{
    for (uint32_t row = 0; row < layout->segments.count; row++) {
        if (!layout_segment_holds(layout, row)) {
            return row;
        }
    }
    return NT_NONE;
}

static void
layout_add_block_stats(const nt_layout *layout, uint32_t block, bool is_split,
                       nt_pool_stats *stats)
{
    const nt_block_columns *b = &layout->blocks;
    if (b->state[block] == NT_BLOCK_INACTIVE) {
        stats->inactive_split += is_split;
        stats->inactive_split_bytes += is_split ? b->size[block] : 0;
        return;
    }
    stats->active++;
    stats->active_bytes += b->size[block];
    stats->requested_bytes += b->requested_size[block];
    if (b->state[block] == NT_BLOCK_ACTIVE_ALLOCATED) {
        stats->allocation++;
        stats->allocated_bytes += b->size[block];
    }
}

void
nt_layout_stats(const nt_layout *layout, int32_t device,
                nt_pool_stats out[NT_POOL_KIND_COUNT])
{
    const nt_segment_columns *s = &layout->segments;
    memset(out, 0, NT_POOL_KIND_COUNT * sizeof *out);
    for (uint32_t row = 0; row < s->count; row++) {
        if (s->device[row] != device) {
            continue;
        }
        nt_pool_stats *stats = &out[s->kind[row]];
        stats->segment += !s->is_expandable[row];
        stats->reserved_bytes += s->total_size[row];
        /* PyTorch does not count free parts of expandable segments as split. */
        const bool is_split = !s->is_expandable[row] && s->block_count[row] > 1;
        for (uint32_t i = 0; i < s->block_count[row]; i++) {
            layout_add_block_stats(layout, s->block_first[row] + i, is_split, stats);
        }
    }
}
