/* SPDX-License-Identifier: Apache-2.0 */
/* The state before the trace, in the model. */
#include "whatif/nt_replay_state.h"
#include "trace/nt_rounding.h"

typedef struct replay_start {
    replay *r;
    nt_allocator_piece *pieces; /* of one area */
    uint32_t *blocks;           /* its blocks in use */
    size_t count, piece_capacity, block_capacity;
} replay_start;

static nt_status
replay_add_piece(replay_start *s, const nt_allocator_piece *piece)
{
    NT_TRY(nt_grow(&s->r->alloc, (void **)&s->pieces, &s->piece_capacity, s->count + 1,
                   sizeof *s->pieces, s->r->err));
    NT_TRY(nt_grow(&s->r->alloc, (void **)&s->blocks, &s->block_capacity, s->count + 1,
                   sizeof *s->blocks, s->r->err));
    s->pieces[s->count++] = *piece;
    return NT_OK;
}

static nt_status
replay_add_pieces(replay_start *s, const nt_program_area *area)
{
    for (size_t i = 0; i < area->piece_count; i++) {
        const nt_program_piece *from = &s->r->program->pieces[area->first_piece + i];
        const nt_allocator_piece piece = {
            .size = from->size,
            .requested = from->requested,
            .tag = from->slot,
            .state = from->slot == NT_NONE ? NT_PIECE_FREE
                     : from->is_pending    ? NT_PIECE_PENDING
                                           : NT_PIECE_ALLOCATED,
        };
        NT_TRY(replay_add_piece(s, &piece));
    }
    return NT_OK;
}

/* The pieces gathered so far become an area of the model at `address`. */
static nt_status
replay_adopt(replay_start *s, const nt_program_area *area, uint64_t address)
{
    replay *r = s->r;
    const nt_allocator_area a = {
        .address = address,
        .lane = area->lane,
        .small = area->small,
        .is_reservation = area->is_expandable,
        .pieces = s->pieces,
        .count = s->count,
    };
    NT_TRY(nt_allocator_adopt(r->model, &a, s->blocks, r->err));
    for (size_t i = 0; i < s->count; i++) {
        if (s->blocks[i] != NT_NONE) {
            r->slots[s->pieces[i].tag] = s->blocks[i];
        }
    }
    s->count = 0;
    return NT_OK;
}

static nt_status
replay_adopt_segment(replay_start *s, size_t i)
{
    replay *r = s->r;
    const nt_program_area *area = &r->program->areas[i];
    uint64_t address = area->address;
    NT_TRY(replay_add_pieces(s, area));
    if (r->check != NULL) {
        NT_TRY(nt_replay_start_recorded(r->check, address, area->size, r->err));
    } else {
        NT_TRY(nt_replay_start_place(r, (uint32_t)i, &address));
    }
    return replay_adopt(s, area, address);
}

static nt_status
replay_add_unmapped(replay_start *s, uint64_t size)
{
    const nt_allocator_piece piece = {.size = size, .state = NT_PIECE_UNMAPPED};
    return size == 0 ? NT_OK : replay_add_piece(s, &piece);
}

/* How many of the mapped ranges items[0 .. count - 1] of one stream and pool lie in one
 * reservation, if it begins with the first of them. */
static size_t
replay_count_together(const replay *r, const nt_sort_item *items, size_t count)
{
    const nt_program_area *areas = r->program->areas;
    const nt_program_area *first = &areas[items[0].value];
    const uint64_t size = nt_allocator_reservation_size(r->model, first->small);
    size_t together = 1;
    while (together < count) {
        const nt_program_area *next = &areas[items[together].value];
        if (next->address - first->address > size ||
            next->size > size - (next->address - first->address)) {
            break;
        }
        together++;
    }
    return together;
}

/* The mapped ranges items[0 .. count - 1] of one stream and pool, by address, are of
 * one reservation; it begins with the first of them. */
static nt_status
replay_adopt_reservation(replay_start *s, const nt_sort_item *items, size_t count)
{
    replay *r = s->r;
    const nt_program_area *first = &r->program->areas[items[0].value];
    const uint64_t page = nt_page_size(&r->options.settings, first->small);
    uint64_t size = nt_allocator_reservation_size(r->model, first->small);
    uint64_t end = first->address, address = first->address;
    for (size_t i = 0; i < count; i++) {
        const nt_program_area *area = &r->program->areas[items[i].value];
        NT_TRY(replay_add_unmapped(s, area->address - end));
        NT_TRY(replay_add_pieces(s, area));
        end = area->address + area->size;
    }
    if (end - address > size) {
        size = (end - address + page - 1) / page * page;
    }
    NT_TRY(replay_add_unmapped(s, size - (end - address)));
    if (r->check != NULL) {
        NT_TRY(nt_replay_start_recorded(r->check, address, size, r->err));
    } else {
        NT_TRY(nt_replay_start_place(r, items[0].value, &address));
    }
    return replay_adopt(s, first, address);
}

static nt_status
replay_adopt_expandable(replay_start *s)
{
    replay *r = s->r;
    const nt_program *program = r->program;
    const size_t bytes = program->area_count * sizeof(nt_sort_item);
    nt_sort_item *items = nt_allocate(&r->alloc, bytes);
    size_t count = 0;
    if (items == NULL && bytes != 0) {
        return nt_fail_nomem(r->err);
    }
    for (uint32_t i = 0; i < program->area_count; i++) {
        const nt_program_area *area = &program->areas[i];
        if (area->is_expandable) {
            items[count++] =
                (nt_sort_item){((uint64_t)area->lane << 1) | area->small, i};
        }
    }
    nt_sort(items, count);
    nt_status status = NT_OK;
    for (size_t i = 0; i < count && status == NT_OK;) {
        size_t end = i + 1;
        while (end < count && items[end].key == items[i].key) {
            end++;
        }
        const size_t together = replay_count_together(r, items + i, end - i);
        status = replay_adopt_reservation(s, items + i, together);
        i += together;
    }
    nt_release(&r->alloc, items, bytes);
    return status;
}

/* Allocates what is there before the trace anew in `model`, by address; *fits is false
 * if memory runs out. `slots` may be NULL. */
static nt_status
replay_allocate(const replay *r, nt_allocator *model, uint32_t *slots, bool *fits)
{
    const nt_program *program = r->program;
    *fits = true;
    for (size_t i = 0; i < program->area_count; i++) {
        const nt_program_area *area = &program->areas[i];
        for (size_t k = 0; k < area->piece_count; k++) {
            const nt_program_piece *piece = &program->pieces[area->first_piece + k];
            uint32_t block;
            if (piece->slot == NT_NONE || piece->requested == 0) {
                continue;
            }
            NT_TRY(nt_allocator_malloc(model, area->lane, piece->requested, piece->slot,
                                       &block, r->err));
            if (block == NT_NONE) {
                *fits = false;
                return NT_OK;
            }
            if (slots != NULL) {
                slots[piece->slot] = block;
            }
            if (piece->is_pending) {
                nt_allocator_give_later(model, block);
            }
        }
    }
    return NT_OK;
}

/* A model of its own, under `settings` and without a limit, in which what is there
 * before the trace is allocated anew: what the device was asked for then. */
static nt_status
replay_try_start(const replay *r, const nt_settings *settings, nt_allocator_stats *out)
{
    const nt_allocator_options options = {
        .settings = *settings,
        .version = r->options.version,
        .device_total = r->options.device_total,
    };
    nt_allocator *model;
    bool fits;
    NT_TRY(nt_allocator_new(&r->alloc, &options, &model, r->err));
    nt_status status = nt_replay_add_lanes(r->program, model, r->err);
    if (status == NT_OK) {
        status = replay_allocate(r, model, NULL, &fits);
    }
    *out = *nt_allocator_get_stats(model);
    nt_allocator_free(model);
    return status;
}

/* How often the device was asked for the start: once for each segment. Of mappings the
 * layout does not tell; as often as allocating its blocks one by one takes. */
static nt_status
replay_count_calls(replay *r)
{
    nt_allocator_stats stats;
    r->start_allocs = r->program->area_count;
    if (!r->options.settings.expandable_segments || r->program->area_count == 0) {
        return NT_OK;
    }
    NT_TRY(replay_try_start(r, &r->options.settings, &stats));
    if (stats.device_allocs > r->start_allocs) {
        r->start_allocs = stats.device_allocs;
    }
    return NT_OK;
}

/* Whether the state before the trace can stay as it lies under these settings. */
static bool
replay_can_keep(const nt_program *program, const nt_replay_options *options)
{
    const uint64_t then = nt_snapshot_settings(nt_timeline_snapshot(program->timeline))
                              ->large_segment_size;
    bool has_pages = false;
    for (size_t i = 0; i < program->area_count; i++) {
        has_pages |= program->areas[i].is_expandable;
    }
    return !has_pages || options->settings.large_segment_size == then;
}

/* Whether segments are to stay as they lie: unless something else is asked for, where
 * they are of the kind that the settings make, with the pages that they would have. */
static bool
replay_is_copy(const replay *r)
{
    if (r->check == NULL && r->options.begin != NT_BEGIN_AUTO) {
        return r->options.begin != NT_BEGIN_ANEW &&
               replay_can_keep(r->program, &r->options);
    }
    const nt_settings *now = &r->options.settings;
    const nt_settings *then =
        nt_snapshot_settings(nt_timeline_snapshot(r->program->timeline));
    return r->check != NULL || (now->expandable_segments == then->expandable_segments &&
                                replay_can_keep(r->program, &r->options));
}

nt_status
nt_replay_has_history(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, bool *out, nt_error *err)
{
    const replay r = {
        .alloc = *alloc, .program = program, .options = *options, .err = err};
    const nt_settings *then =
        nt_snapshot_settings(nt_timeline_snapshot(program->timeline));
    nt_allocator_stats stats = {.segments = 0};
    uint64_t reserved = 0;
    for (size_t i = 0; i < program->area_count; i++) {
        reserved += program->areas[i].size;
    }
    NT_TRY(replay_try_start(&r, then, &stats));
    *out = stats.bytes[NT_METRIC_RESERVED] != reserved;
    return NT_OK;
}

static nt_status
replay_copy_start(replay_start *s)
{
    const nt_program *program = s->r->program;
    for (size_t i = 0; i < program->area_count; i++) {
        if (!program->areas[i].is_expandable) {
            NT_TRY(replay_adopt_segment(s, i));
        }
    }
    NT_TRY(replay_adopt_expandable(s));
    return replay_count_calls(s->r);
}

static nt_status
replay_build_start(replay *r)
{
    bool fits;
    NT_TRY(replay_allocate(r, r->model, r->slots, &fits));
    r->figures.start_rebuilt = r->program->area_count != 0;
    if (!fits) {
        r->figures.is_stopped = true;
        r->figures.stopped_event = NT_EVENT_BEFORE;
    }
    return NT_OK;
}

nt_status
nt_replay_start(replay *r)
{
    if (!replay_is_copy(r)) {
        return replay_build_start(r);
    }
    replay_start s = {.r = r};
    nt_status status = replay_copy_start(&s);
    if (status == NT_OK && r->check == NULL && r->options.begin == NT_BEGIN_EMPTIED) {
        status = nt_allocator_empty_cache(r->model, r->err);
    }
    nt_release(&r->alloc, s.pieces, s.piece_capacity * sizeof *s.pieces);
    nt_release(&r->alloc, s.blocks, s.block_capacity * sizeof *s.blocks);
    return status;
}
