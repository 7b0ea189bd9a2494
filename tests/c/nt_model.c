/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_model.h"

#include <stdlib.h>
#include <string.h>

#define MIB UINT64_C(1048576)
#define BASE UINT64_C(0x700000000)
#define RESERVATION (256 * MIB) /* address space of an expandable segment */

#define SAMPLE_EVERY 37 /* events for one layout that is kept */

uint64_t
nt_model_below(nt_model *m, uint64_t limit)
{
    return nt_test_random(&m->seed) % limit;
}

static uint64_t
model_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* ---- what is true now --------------------------------------------------------------
 */

static void
model_add_run(nt_model *m, nt_model_event *e, const nt_model_area *area, size_t *at)
{
    nt_segment segment = {
        .address = area->blocks[*at].addr,
        .stream = area->stream,
        .kind = area->small ? NT_POOL_SMALL : NT_POOL_LARGE,
        .is_expandable = m->expandable,
        .stack = NT_NO_STACK,
    };
    nt_test *t = m->test;
    size_t end = *at;
    for (; end < area->count && area->blocks[end].state != NT_MODEL_UNMAPPED; end++) {
        segment.total_size += area->blocks[end].size;
    }
    NT_CHECK_OK(nt_layout_add_segment(&e->layout, &m->alloc, &e->segment_capacity,
                                      &segment, NULL),
                NULL);
    for (; *at < end; ++*at) {
        static const uint8_t states[] = {NT_BLOCK_INACTIVE, NT_BLOCK_ACTIVE_ALLOCATED,
                                         NT_BLOCK_ACTIVE_PENDING_FREE};
        const nt_model_block *b = &area->blocks[*at];
        const nt_block block = {b->addr, b->size, b->requested, states[b->state],
                                NT_NO_STACK};
        NT_CHECK_OK(nt_layout_add_block(&e->layout, &m->alloc, &e->block_capacity,
                                        &block, NULL),
                    NULL);
    }
}

static void
model_take_layout(nt_model *m, nt_model_event *e)
{
    for (size_t i = 0; i < m->area_count; i++) {
        for (size_t at = 0; at < m->areas[i]->count;) {
            if (m->areas[i]->blocks[at].state == NT_MODEL_UNMAPPED) {
                at++;
            } else {
                model_add_run(m, e, m->areas[i], &at);
            }
        }
    }
}

static void
model_sum(const nt_model *m, nt_model_event *e)
{
    for (size_t i = 0; i < m->area_count; i++) {
        for (size_t k = 0; k < m->areas[i]->count; k++) {
            const nt_model_block *b = &m->areas[i]->blocks[k];
            const bool active =
                b->state == NT_MODEL_ALLOCATED || b->state == NT_MODEL_PENDING;
            e->bytes[NT_METRIC_RESERVED] += b->state != NT_MODEL_UNMAPPED ? b->size : 0;
            e->bytes[NT_METRIC_ACTIVE] += active ? b->size : 0;
            e->bytes[NT_METRIC_REQUESTED] += active ? b->requested : 0;
            e->bytes[NT_METRIC_ALLOCATED] +=
                b->state == NT_MODEL_ALLOCATED ? b->size : 0;
            e->active += active;
        }
    }
}

/* The model has done it already. */
static void
model_emit(nt_model *m, nt_action action, uint64_t addr, uint64_t size, uint64_t stream)
{
    nt_model_event *e = &m->events[m->event_count++];
    *e = (nt_model_event){
        .action = action, .addr = addr, .size = size, .stream = stream};
    model_sum(m, e);
    if (m->event_count % SAMPLE_EVERY == 0) {
        model_take_layout(m, e);
    }
}

/* ---- the allocator -----------------------------------------------------------------
 */

static void
area_insert(nt_model_area *area, size_t at, nt_model_block block)
{
    memmove(area->blocks + at + 1, area->blocks + at,
            (area->count - at) * sizeof(nt_model_block));
    area->blocks[at] = block;
    area->count++;
}

/* Splits the block at `at` so that its first part has `size` bytes. */
static void
area_split(nt_model_area *area, size_t at, uint64_t size)
{
    nt_model_block *block = &area->blocks[at];
    if (block->size > size) {
        const nt_model_block rest = {block->addr + size, block->size - size,
                                     block->requested, block->state};
        block->size = size;
        area_insert(area, at + 1, rest);
    }
}

/* Joins neighbours that are both free or both unmapped. */
static void
area_merge(nt_model_area *area)
{
    size_t kept = 0;
    for (size_t i = 1; i < area->count; i++) {
        nt_model_block *last = &area->blocks[kept];
        const nt_model_state state = area->blocks[i].state;
        if (state == last->state &&
            (state == NT_MODEL_FREE || state == NT_MODEL_UNMAPPED)) {
            last->size += area->blocks[i].size;
        } else {
            area->blocks[++kept] = area->blocks[i];
        }
    }
    area->count = kept + 1;
}

/* A new area at the lowest place where it fits; NULL when there are too many. */
static nt_model_area *
model_add_area(nt_model *m, uint64_t size, uint64_t stream, bool small,
               nt_model_state state)
{
    uint64_t addr = BASE;
    size_t at = 0;
    for (; at < m->area_count; at++) {
        const nt_model_area *area = m->areas[at];
        if (area->blocks[0].addr >= addr + size) {
            break;
        }
        const nt_model_block *last = &area->blocks[area->count - 1];
        addr = last->addr + last->size;
    }
    nt_model_area *area =
        m->area_count < NT_MODEL_AREAS ? calloc(1, sizeof *area) : NULL;
    if (area != NULL) {
        area->stream = stream;
        area->small = small;
        area->count = 1;
        area->blocks[0] = (nt_model_block){addr, size, 0, state};
        memmove(m->areas + at + 1, m->areas + at,
                (m->area_count - at) * sizeof *m->areas);
        m->areas[at] = area;
        m->area_count++;
    }
    return area;
}

static void
model_remove_area(nt_model *m, size_t at)
{
    free(m->areas[at]);
    m->area_count--;
    memmove(m->areas + at, m->areas + at + 1, (m->area_count - at) * sizeof *m->areas);
}

/* The smallest free block that serves the request, the lowest of equal ones. */
static nt_model_area *
model_best_fit(nt_model *m, uint64_t size, uint64_t stream, size_t *at)
{
    nt_model_area *best = NULL;
    for (size_t i = 0; i < m->area_count; i++) {
        nt_model_area *area = m->areas[i];
        if (area->stream != stream || area->small != (size <= MIB)) {
            continue;
        }
        for (size_t k = 0; k < area->count; k++) {
            const nt_model_block *b = &area->blocks[k];
            if (b->state == NT_MODEL_FREE && b->size >= size &&
                (best == NULL || b->size < best->blocks[*at].size)) {
                best = area;
                *at = k;
            }
        }
    }
    if (best == NULL) {
        return NULL;
    }
    const uint64_t found = best->blocks[*at].size;
    const bool refused =
        size < m->max_split ? found >= m->max_split : found >= size + 20 * MIB;
    return refused ? NULL : best;
}

static nt_model_area *
model_reserve(nt_model *m, uint64_t size, uint64_t stream)
{
    const uint64_t large = size < 10 * MIB ? 20 * MIB : model_up(size, 2 * MIB);
    const uint64_t bytes = size <= MIB ? 2 * MIB : large;
    nt_model_area *area = model_add_area(m, bytes, stream, size <= MIB, NT_MODEL_FREE);
    if (area != NULL) {
        model_emit(m, NT_ACTION_SEGMENT_ALLOC, area->blocks[0].addr, bytes, stream);
    }
    return area;
}

/* Maps what a request lacks behind the first free place where it then fits. */
static nt_model_area *
model_map(nt_model *m, uint64_t size, uint64_t stream, size_t *at)
{
    const bool small = size <= MIB;
    const uint64_t page = small ? 2 * MIB : 20 * MIB;
    nt_model_area *area = NULL;
    for (size_t i = 0; i < m->area_count && area == NULL; i++) {
        area = m->areas[i]->stream == stream && m->areas[i]->small == small
                   ? m->areas[i]
                   : NULL;
    }
    if (area == NULL) {
        area = model_add_area(m, RESERVATION / page * page, stream, small,
                              NT_MODEL_UNMAPPED);
    }
    for (size_t k = 0; area != NULL && k < area->count; k++) {
        const bool joins = k > 0 && area->blocks[k - 1].state == NT_MODEL_FREE;
        const uint64_t there = joins ? area->blocks[k - 1].size : 0;
        nt_model_block *block = &area->blocks[k];
        if (block->state != NT_MODEL_UNMAPPED || there + block->size < size) {
            continue;
        }
        const uint64_t addr = block->addr, bytes = model_up(size - there, page);
        area_split(area, k, bytes);
        area->blocks[k].state = NT_MODEL_FREE;
        area_merge(area);
        *at = joins ? k - 1 : k;
        model_emit(m, NT_ACTION_SEGMENT_MAP, addr, bytes, stream);
        return area;
    }
    return NULL;
}

static void
model_allocate(nt_model *m, uint64_t requested, uint64_t stream)
{
    const uint64_t size = model_up(requested, 512);
    size_t at = 0;
    nt_model_area *area = model_best_fit(m, size, stream, &at);
    if (area == NULL) {
        area = m->expandable ? model_map(m, size, stream, &at)
                             : model_reserve(m, size, stream);
    }
    if (area == NULL || area->count + 1 >= NT_MODEL_BLOCKS) {
        return;
    }
    const uint64_t rest = area->blocks[at].size - size;
    if (size <= MIB || m->expandable ? rest >= 512
                                     : size < m->max_split && rest > MIB) {
        area_split(area, at, size);
    }
    area->blocks[at].state = NT_MODEL_ALLOCATED;
    area->blocks[at].requested = requested;
    const uint64_t block_size = area->blocks[at].size;
    model_emit(m, NT_ACTION_ALLOC, area->blocks[at].addr, requested, stream);
    m->events[m->event_count - 1].block_size = block_size;
}

/* One of the blocks in `state`, any of them; false if there is none. */
static bool
model_pick(nt_model *m, nt_model_state state, nt_model_area **area, size_t *at)
{
    uint64_t seen = 0;
    for (size_t i = 0; i < m->area_count; i++) {
        for (size_t k = 0; k < m->areas[i]->count; k++) {
            if (m->areas[i]->blocks[k].state == state &&
                nt_model_below(m, ++seen) == 0) {
                *area = m->areas[i];
                *at = k;
            }
        }
    }
    return seen != 0;
}

static void
model_complete(nt_model *m, nt_model_area *area, size_t at)
{
    const nt_model_block block = area->blocks[at];
    area->blocks[at].state = NT_MODEL_FREE;
    area_merge(area);
    model_emit(m, NT_ACTION_FREE_COMPLETED, block.addr, block.requested, area->stream);
}

static void
model_free(nt_model *m)
{
    nt_model_area *area;
    size_t at;
    if (model_pick(m, NT_MODEL_ALLOCATED, &area, &at)) {
        area->blocks[at].state = NT_MODEL_PENDING;
        model_emit(m, NT_ACTION_FREE_REQUESTED, area->blocks[at].addr,
                   area->blocks[at].requested, area->stream);
        if (nt_model_below(m, 5) != 0) {
            model_complete(m, area, at);
        }
    }
}

/* Unmaps the whole pages of the free block at `at`. */
static void
model_unmap(nt_model *m, nt_model_area *area, size_t at)
{
    const uint64_t page = area->small ? 2 * MIB : 20 * MIB, base = area->blocks[0].addr;
    const nt_model_block block = area->blocks[at];
    const uint64_t from = base + model_up(block.addr - base, page);
    const uint64_t to = base + (block.addr + block.size - base) / page * page;
    if (from < to && area->count + 2 < NT_MODEL_BLOCKS) {
        const size_t inner = at + (from > block.addr);
        area_split(area, at, from > block.addr ? from - block.addr : block.size);
        area_split(area, inner, to - from);
        area->blocks[inner].state = NT_MODEL_UNMAPPED;
        area_merge(area);
        model_emit(m, NT_ACTION_SEGMENT_UNMAP, from, to - from, area->stream);
    }
}

static void
model_empty_cache(nt_model *m)
{
    for (size_t i = m->area_count; i-- > 0;) {
        nt_model_area *area = m->areas[i];
        const nt_model_block first = area->blocks[0];
        if (!m->expandable && area->count == 1 && first.state == NT_MODEL_FREE) {
            const uint64_t stream = area->stream;
            model_remove_area(m, i);
            model_emit(m, NT_ACTION_SEGMENT_FREE, first.addr, first.size, stream);
        }
        for (size_t k = 0; m->expandable && k < area->count; k++) {
            if (area->blocks[k].state == NT_MODEL_FREE) {
                model_unmap(m, area, k);
            }
        }
    }
}

static void
model_step(nt_model *m)
{
    static const uint64_t limits[] = {600, MIB, 3 * MIB, 12 * MIB, 40 * MIB};
    const uint64_t dice = nt_model_below(m, 100);
    nt_model_area *area;
    size_t at;
    if (dice < 48) {
        const bool oversize = m->max_split != UINT64_MAX && nt_model_below(m, 12) == 0;
        const uint64_t limit = oversize ? 120 * MIB : limits[nt_model_below(m, 5)];
        model_allocate(m, 1 + nt_model_below(m, limit), nt_model_below(m, 3) == 0);
    } else if (dice < 92) {
        model_free(m);
    } else if (dice < 97) {
        if (model_pick(m, NT_MODEL_PENDING, &area, &at)) {
            model_complete(m, area, at);
        }
    } else if (dice < 98) {
        model_empty_cache(m);
    } else {
        model_emit(m, dice == 98 ? NT_ACTION_OOM : NT_ACTION_SNAPSHOT, 0, MIB, 0);
    }
}

bool
nt_model_run(nt_model *m, nt_test *t, uint64_t seed, bool expandable,
             uint64_t max_split)
{
    *m = (nt_model){.test = t,
                    .alloc = nt_alloc_system(),
                    .seed = seed,
                    .expandable = expandable,
                    .max_split = max_split};
    m->events =
        calloc(NT_MODEL_EVENTS + NT_MODEL_AREAS * NT_MODEL_BLOCKS, sizeof *m->events);
    while (m->events != NULL && m->event_count < NT_MODEL_EVENTS) {
        model_step(m);
    }
    if (m->events != NULL && m->events[m->event_count - 1].layout.segments.count == 0) {
        model_take_layout(m, &m->events[m->event_count - 1]);
    }
    return NT_CHECK(m->events != NULL);
}

void
nt_model_clear(nt_model *m)
{
    for (size_t i = 0; m->events != NULL && i < m->event_count; i++) {
        nt_model_event *e = &m->events[i];
        nt_layout_clear(&e->layout, &m->alloc, e->segment_capacity, e->block_capacity);
    }
    free(m->events);
    while (m->area_count > 0) {
        model_remove_area(m, m->area_count - 1);
    }
}
