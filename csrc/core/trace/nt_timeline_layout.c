/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block lay where after an event: the ranges reserved then and the blocks
 * active then, both by address, walked side by side. What no active block covers
 * is one inactive block, because the allocator merges free neighbours.
 */
#include "trace/nt_timeline_state.h"

/* A layout with what is needed to add to it and to free it. */
typedef struct timeline_layout {
    nt_layout layout; /* first: the caller holds a pointer to it */
    size_t segment_capacity, block_capacity;
} timeline_layout;

typedef struct layout_maker {
    const nt_timeline *t;
    int32_t event;
    nt_sort_item *blocks, *segments; /* rows by address */
    size_t block_count, segment_count;
    timeline_layout *out;
    nt_error *err;
} layout_maker;

/* The rows for which `is_there` holds, by address. */
static nt_status
layout_select(const layout_maker *m, size_t rows, const uint64_t *address,
              bool (*is_there)(const nt_timeline *, size_t, int32_t),
              nt_sort_item **items, size_t *count)
{
    size_t selected = 0, bytes;
    for (size_t row = 0; row < rows; row++) {
        selected += is_there(m->t, row, m->event);
    }
    *items = nt_size_mul(selected, sizeof(nt_sort_item), &bytes)
                 ? nt_allocate(&m->t->alloc, bytes)
                 : NULL;
    if (*items == NULL && selected != 0) {
        return nt_fail_nomem(m->err);
    }
    for (size_t row = 0; row < rows; row++) {
        if (is_there(m->t, row, m->event)) {
            (*items)[(*count)++] = (nt_sort_item){address[row], (uint32_t)row};
        }
    }
    nt_sort(*items, selected);
    return NT_OK;
}

static nt_status
layout_add_block(layout_maker *m, const nt_block *block)
{
    timeline_layout *out = m->out;
    nt_segment_columns *s = &out->layout.segments;
    const size_t segment = s->count - 1;
    if (block->state != NT_BLOCK_INACTIVE) {
        s->active_size[segment] += block->size;
        s->requested_size[segment] += block->requested_size;
    }
    if (block->state == NT_BLOCK_ACTIVE_ALLOCATED) {
        s->allocated_size[segment] += block->size;
    }
    return nt_layout_add_block(&out->layout, &m->t->alloc, &out->block_capacity, block,
                               m->err);
}

static nt_status
layout_add_hole(layout_maker *m, uint64_t from, uint64_t to)
{
    if (from >= to) {
        return NT_OK;
    }
    const nt_block hole = {
        .address = from,
        .size = to - from,
        .state = NT_BLOCK_INACTIVE,
        .stack = NT_EMPTY_STACK,
    };
    return layout_add_block(m, &hole);
}

/* The blocks of [address, end), from number *next on. */
static nt_status
layout_fill(layout_maker *m, uint64_t address, uint64_t end, size_t *next)
{
    const nt_allocation_columns *a = &m->t->allocations;
    while (*next < m->block_count && m->blocks[*next].key < address) {
        ++*next; /* in no segment: the trace has a gap */
    }
    for (; *next < m->block_count && m->blocks[*next].key < end; ++*next) {
        const uint32_t row = m->blocks[*next].value;
        if (a->address[row] < address || a->size[row] > end - a->address[row]) {
            continue;
        }
        NT_TRY(layout_add_hole(m, address, a->address[row]));
        const nt_block block = {
            .address = a->address[row],
            .size = a->size[row],
            .requested_size = a->requested_size[row],
            .state = nt_timeline_is_allocated(m->t, row, m->event)
                         ? NT_BLOCK_ACTIVE_ALLOCATED
                         : NT_BLOCK_ACTIVE_PENDING_FREE,
            .stack = a->stack[row],
        };
        NT_TRY(layout_add_block(m, &block));
        address = block.address + block.size;
    }
    return layout_add_hole(m, address, end);
}

/* Whether two rows are ranges of one expandable segment that touch. */
static bool
layout_is_continued(const nt_timeline *t, uint32_t row, uint64_t end, uint32_t next)
{
    const nt_segment_life_columns *s = &t->segments;
    return s->is_expandable[row] && s->is_expandable[next] && s->address[next] == end &&
           s->stream[row] == s->stream[next] && s->kind[row] == s->kind[next] &&
           s->pool_first[row] == s->pool_first[next] &&
           s->pool_second[row] == s->pool_second[next];
}

static nt_status
layout_fill_segments(layout_maker *m)
{
    const nt_segment_life_columns *s = &m->t->segments;
    size_t next_block = 0;
    for (size_t i = 0; i < m->segment_count;) {
        const uint32_t row = m->segments[i++].value;
        uint64_t end = s->address[row] + s->size[row];
        while (i < m->segment_count &&
               layout_is_continued(m->t, row, end, m->segments[i].value)) {
            end += s->size[m->segments[i++].value];
        }
        const nt_segment segment = {
            .device = m->t->device,
            .address = s->address[row],
            .total_size = end - s->address[row],
            .stream = s->stream[row],
            .pool = {s->pool_first[row], s->pool_second[row]},
            .kind = s->kind[row],
            .is_expandable = s->is_expandable[row] != 0,
            .stack = s->stack[row],
        };
        NT_TRY(nt_layout_add_segment(&m->out->layout, &m->t->alloc,
                                     &m->out->segment_capacity, &segment, m->err));
        NT_TRY(layout_fill(m, segment.address, end, &next_block));
    }
    return NT_OK;
}

static nt_status
layout_make(layout_maker *m)
{
    const nt_timeline *t = m->t;
    NT_TRY(layout_select(m, t->segments.count, t->segments.address,
                         nt_timeline_is_reserved, &m->segments, &m->segment_count));
    NT_TRY(layout_select(m, t->allocations.count, t->allocations.address,
                         nt_timeline_is_active, &m->blocks, &m->block_count));
    return layout_fill_segments(m);
}

nt_status
nt_timeline_layout(const nt_timeline *t, int32_t event, nt_layout **out, nt_error *err)
{
    if (event < -1 || event >= (int32_t)t->count) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "event %d is not in the trace of %zu events", (int)event,
                       t->count);
    }
    layout_maker m = {.t = t, .event = event, .err = err};
    m.out = nt_allocate(&t->alloc, sizeof *m.out);
    if (m.out == NULL) {
        return nt_fail_nomem(err);
    }
    *m.out = (timeline_layout){.segment_capacity = 0};
    const nt_status status = layout_make(&m);
    nt_release(&t->alloc, m.segments, m.segment_count * sizeof(nt_sort_item));
    nt_release(&t->alloc, m.blocks, m.block_count * sizeof(nt_sort_item));
    if (status != NT_OK) {
        nt_timeline_layout_free(t, &m.out->layout);
        return status;
    }
    *out = &m.out->layout;
    return NT_OK;
}

void
nt_timeline_layout_free(const nt_timeline *t, nt_layout *layout)
{
    if (layout != NULL) {
        timeline_layout *whole = (timeline_layout *)layout;
        nt_layout_clear(layout, &t->alloc, whole->segment_capacity,
                        whole->block_capacity);
        nt_release(&t->alloc, whole, sizeof *whole);
    }
}
