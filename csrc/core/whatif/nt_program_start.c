/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program_state.h"

/* The largest distance between neighbouring reservations is less than so many of them.
 */
#define PROGRAM_GAPS 16

/* The slots of the blocks that are there before the trace, by address. */
static nt_status
program_name_blocks(program_maker *m, nt_map *slots)
{
    const nt_allocation_columns *rows = nt_timeline_allocations(m->timeline);
    for (uint32_t row = 0; row < rows->count; row++) {
        if (rows->alloc_event[row] == NT_EVENT_BEFORE) {
            uint32_t slot;
            NT_TRY(nt_program_take_slot(m, row, &slot));
            if (rows->free_event[row] == NT_EVENT_FREED_BEFORE) {
                m->slots[row] |= PROGRAM_LATER;
                m->pending++;
            }
            NT_TRY(nt_map_set(slots, rows->address[row], slot, m->err));
        }
    }
    return NT_OK;
}

static nt_status
program_add_area(program_maker *m, const nt_layout *layout, size_t row,
                 const nt_map *slots)
{
    program *p = m->p;
    const nt_segment_columns *segments = &layout->segments;
    const nt_block_columns *blocks = &layout->blocks;
    nt_program_area area = {
        .address = segments->address[row],
        .size = segments->total_size[row],
        .small = segments->kind[row] == NT_POOL_SMALL,
        .is_expandable = segments->is_expandable[row] != 0,
        .first_piece = p->face.piece_count,
        .piece_count = segments->block_count[row],
    };
    const nt_pool_id pool = {segments->pool_first[row], segments->pool_second[row]};
    NT_TRY(nt_program_find_lane(m, pool, segments->stream[row], &area.lane));
    NT_TRY(nt_grow(&p->alloc, (void **)&p->pieces, &p->piece_capacity,
                   p->face.piece_count + area.piece_count, sizeof *p->pieces, m->err));
    for (size_t i = 0; i < area.piece_count; i++) {
        const size_t block = segments->block_first[row] + i;
        const bool is_free = blocks->state[block] == NT_BLOCK_INACTIVE;
        p->pieces[p->face.piece_count++] = (nt_program_piece){
            .size = blocks->size[block],
            .requested = is_free ? 0 : blocks->requested_size[block],
            .slot = is_free ? NT_NONE : nt_map_find(slots, blocks->address[block]),
            .is_pending = blocks->state[block] == NT_BLOCK_ACTIVE_PENDING_FREE,
        };
    }
    NT_TRY(nt_grow(&p->alloc, (void **)&p->areas, &p->area_capacity,
                   p->face.area_count + 1, sizeof *p->areas, m->err));
    p->areas[p->face.area_count++] = area;
    return NT_OK;
}

nt_status
nt_program_find_start(program_maker *m)
{
    nt_layout *layout;
    nt_map slots;
    NT_TRY(nt_timeline_layout(m->timeline, NT_EVENT_BEFORE, &layout, m->err));
    nt_map_init(&slots, m->p->alloc);
    nt_status status = program_name_blocks(m, &slots);
    for (size_t row = 0; row < layout->segments.count && status == NT_OK; row++) {
        status = program_add_area(m, layout, row, &slots);
    }
    nt_map_clear(&slots);
    nt_timeline_layout_free(m->timeline, layout);
    return status;
}

/* The lowest address of each stream and pool kind in which something is mapped. */
static nt_status
program_find_bases(program_maker *m, nt_sort_item *bases, size_t *count,
                   nt_strings *names)
{
    const nt_segment_life_columns *lives = nt_timeline_segments(m->timeline);
    *count = 0;
    for (size_t i = 0; i < lives->count; i++) {
        if (!lives->is_expandable[i]) {
            continue;
        }
        const uint64_t name[4] = {lives->pool_first[i], lives->pool_second[i],
                                  lives->stream[i], lives->kind[i]};
        uint32_t id;
        NT_TRY(nt_strings_intern(names, name, sizeof name, &id, m->err));
        if (id == *count) {
            bases[(*count)++] = (nt_sort_item){lives->address[i], id};
        } else if (lives->address[i] < bases[id].key) {
            bases[id].key = lives->address[i];
        }
    }
    return NT_OK;
}

/* The least distance between reservations. One that took the place of another can begin
 * a little beside it, as sizes of small and large ones differ by a page or two: such
 * distances, a small part of the largest, are none. */
static uint64_t
program_least_gap(const nt_sort_item *bases, size_t count)
{
    uint64_t largest = 0, least = 0;
    for (size_t i = 1; i < count; i++) {
        const uint64_t gap = bases[i].key - bases[i - 1].key;
        largest = gap > largest ? gap : largest;
    }
    for (size_t i = 1; i < count; i++) {
        const uint64_t gap = bases[i].key - bases[i - 1].key;
        if (gap > largest / PROGRAM_GAPS && (least == 0 || gap < least)) {
            least = gap;
        }
    }
    return least;
}

nt_status
nt_program_find_reservation(program_maker *m)
{
    const size_t rows = nt_timeline_segments(m->timeline)->count;
    const nt_alloc *alloc = &m->p->alloc;
    nt_strings *names = NULL;
    nt_sort_item *bases = NULL;
    size_t bytes = 0, count = 0;
    NT_TRY(nt_strings_new(alloc, &names, m->err));
    if (nt_size_mul(rows, sizeof *bases, &bytes)) {
        bases = nt_allocate(alloc, bytes);
    }
    nt_status status = bases == NULL && rows != 0
                           ? nt_fail_nomem(m->err)
                           : program_find_bases(m, bases, &count, names);
    if (status == NT_OK) {
        nt_sort(bases, count);
        m->p->face.reservation = program_least_gap(bases, count);
    }
    nt_release(alloc, bases, bytes);
    nt_strings_free(names);
    return status;
}
