/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_replay.h"

#include <string.h>

#include "base/nt_columns.h"
#include "base/nt_ordered.h"
#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

/* A place that was given back. */
typedef struct replay_place {
    uint64_t address, size;
} replay_place;

/* Made-up addresses: places of equal size, numbered. */
typedef struct replay_places {
    nt_alloc alloc;
    const nt_program *program;
    nt_replay_order order;
    uint64_t seed;
    unsigned shift;     /* a place has 2^shift bytes */
    uint64_t count;     /* of places in all */
    uint64_t low, high; /* places below and from here on are free */
    uint32_t *ranks;    /* the start's areas, then the new places of the trace */
    uint32_t *recorded; /* by place of the program: its item of `ranks` */
    size_t rank_count, recorded_next;
    bool is_left;          /* a new segment was not the next one of the trace */
    uint32_t *order_of[2]; /* new places of the trace: small ones, larger ones */
    size_t order_count[2], order_next[2];
    replay_place *given[2]; /* newest last */
    size_t given_count[2], given_capacity[2];
    bool is_short; /* there was no memory to note one that was given back */
    nt_map used;   /* random: places taken */
} replay_places;

/* The addresses of the trace, and how the model compares with it. */
typedef struct replay_check {
    nt_alloc alloc;
    const nt_program *program;
    const nt_event_columns *events;
    size_t first, count, next; /* `next`: the first event not yet compared */
    const uint8_t *marks; /* by event, as nt_replay_silence has them; may be NULL */
    uint64_t spare;       /* where places are that the trace has not */
    nt_ordered taken;     /* (address, end) */
    nt_replay_fidelity fidelity;
} replay_check;

/* Where silence may have been, while it is looked for. */
typedef struct replay_quiet {
    uint8_t *marks;
    int32_t *drops;
    int32_t *made;    /* by slot: the request whose block is in it */
    size_t run_first; /* since this event all has one stack */
} replay_quiet;

/* Where a block lies in the run that lay at some address in the trace. */
typedef struct replay_moved {
    uint64_t address, size;
    uint64_t asked;   /* bytes of its request in the trace */
    uint32_t earlier; /* row of another block that lay at that address, or NT_NONE */
} replay_moved;

/* The snapshot that is made of a run. */
typedef struct replay_record {
    nt_snapshot *snapshot;
    nt_map stacks;    /* address of a block in use -> its stack */
    size_t event;     /* of the trace, for which the model is at work */
    bool is_begun;    /* the state before the trace is made */
    nt_status status; /* the first failure of a call from inside of the model */
} replay_record;

typedef struct replay {
    nt_alloc alloc;
    const nt_program *program;
    nt_replay_options options;
    nt_allocator *model;
    uint32_t *slots; /* block by slot, or NT_NONE */
    replay_places places;
    replay_check *check;   /* NULL: made-up addresses */
    replay_quiet *quiet;   /* NULL: nobody looks for silence */
    replay_record *record; /* NULL: no snapshot is made */
    size_t next_drop;      /* of `drops` below */
    nt_sort_item *drops;   /* the silent ends of pools: event -> pool */
    size_t drop_count, drop_capacity;
    nt_map moved_rows; /* of private pools: recorded address -> newest row of `moved` */
    replay_moved *moved;
    size_t moved_count, moved_capacity;
    uint64_t start_allocs;
    nt_replay_figures figures;
    nt_error *err;
} replay;

/* Addresses made up: the space is cut into places of equal size, each large enough for
 * any segment, and an order of addresses is an order in which places are handed out. */

/* Addresses are below 2^62. */
#define REPLAY_SPACE 62

/* So many of the places given back last are looked at for one to use again. */
#define REPLAY_GIVEN 64

/* The same for the one that the trace took: all, where a device's segments are few
 * thousands, and a bound on the time where they are not. */
#define REPLAY_GIVEN_RECORDED 4096

enum { REPLAY_SMALL, REPLAY_LARGE };

static size_t
replay_kind(uint64_t size)
{
    return size <= NT_SMALL_BUFFER ? REPLAY_SMALL : REPLAY_LARGE;
}

static nt_status
replay_collect(replay_places *p, nt_sort_item *items, size_t *count, nt_error *err)
{
    nt_map seen[2];
    nt_status status = NT_OK;
    nt_map_init(&seen[0], p->alloc);
    nt_map_init(&seen[1], p->alloc);
    *count = 0;
    for (size_t i = 0; i < p->program->area_count && status == NT_OK; i++) {
        const nt_program_area *area = &p->program->areas[i];
        items[*count] = (nt_sort_item){area->address, (uint32_t)*count};
        (*count)++;
        status =
            nt_map_set(&seen[replay_kind(area->size)], area->address, (uint32_t)i, err);
    }
    for (size_t i = 0; i < p->program->place_count && status == NT_OK; i++) {
        const nt_program_place *place = &p->program->places[i];
        const size_t kind = replay_kind(place->size);
        p->recorded[i] = nt_map_find(&seen[kind], place->address);
        if (p->recorded[i] != NT_NONE) {
            continue;
        }
        p->recorded[i] = (uint32_t)*count;
        status = nt_map_set(&seen[kind], place->address, (uint32_t)*count, err);
        p->order_of[kind][p->order_count[kind]++] = (uint32_t)*count;
        items[*count] = (nt_sort_item){place->address, (uint32_t)*count};
        (*count)++;
    }
    nt_map_clear(&seen[0]);
    nt_map_clear(&seen[1]);
    return status;
}

static nt_status
replay_rank(replay_places *p, nt_error *err)
{
    const size_t most = p->program->area_count + p->program->place_count;
    size_t bytes, count;
    if (!nt_size_mul(most + 1, sizeof(nt_sort_item), &bytes) || most >= NT_NONE) {
        return nt_fail_nomem(err);
    }
    p->rank_count = most + 1;
    p->ranks = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    p->recorded = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    p->order_of[0] = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    p->order_of[1] = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    nt_sort_item *items = nt_allocate(&p->alloc, bytes);
    if (p->ranks == NULL || p->recorded == NULL || p->order_of[0] == NULL ||
        p->order_of[1] == NULL || items == NULL) {
        nt_release(&p->alloc, items, bytes);
        return nt_fail_nomem(err);
    }
    const nt_status status = replay_collect(p, items, &count, err);
    if (status == NT_OK) {
        nt_sort(items, count);
        for (size_t i = 0; i < count; i++) {
            p->ranks[items[i].value] = (uint32_t)i;
        }
    }
    nt_release(&p->alloc, items, bytes);
    return status;
}

static nt_status
replay_open_places(replay *r, uint64_t largest)
{
    replay_places *p = &r->places;
    *p = (replay_places){
        .alloc = r->alloc,
        .program = r->program,
        .order = r->options.order,
        .seed = r->options.seed,
    };
    nt_map_init(&p->used, p->alloc);
    while (p->shift < REPLAY_SPACE && (UINT64_C(1) << p->shift) < largest) {
        p->shift++;
    }
    p->count = UINT64_C(1) << (REPLAY_SPACE - p->shift);
    const size_t recorded = r->program->area_count + r->program->place_count;
    if (recorded >= p->count / 2) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET,
                       "too many segments for their size");
    }
    p->low = (p->count - recorded) / 2;
    p->high = p->low + recorded;
    return replay_rank(p, r->err);
}

static void
replay_close_places(replay *r)
{
    replay_places *p = &r->places;
    const size_t bytes = p->rank_count * sizeof(uint32_t);
    nt_release(&p->alloc, p->ranks, bytes);
    nt_release(&p->alloc, p->recorded, bytes);
    nt_map_clear(&p->used);
    for (size_t kind = 0; kind < 2; kind++) {
        nt_release(&p->alloc, p->order_of[kind], bytes);
        NT_RELEASE(&p->alloc, p->given[kind], p->given_capacity[kind]);
    }
}

/* A place that is free, anywhere. */
static nt_status
replay_draw(replay_places *p, uint64_t *place, nt_error *err)
{
    if (p->used.count >= p->count / 2) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "out of addresses");
    }
    /* A step of the golden ratio, scrambled: another number for each draw. */
    p->seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t at = nt_mix64(nt_mix64(p->seed)) % p->count;
    while (at == 0 || nt_map_find(&p->used, at) != NT_NONE) {
        at = (at + 1) % p->count;
    }
    NT_TRY(nt_map_set(&p->used, at, 0, err));
    *place = at;
    return NT_OK;
}

/* Below all or above all that was ever taken. */
static nt_status
replay_take_outside(replay_places *p, bool above, uint64_t *place, nt_error *err)
{
    if (above ? p->high >= p->count : p->low <= 1) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "out of addresses");
    }
    *place = above ? p->high++ : --p->low;
    return NT_OK;
}

/* Where a place of `ranks` lies. */
static uint64_t
replay_lie(const replay_places *p, uint32_t item)
{
    const size_t recorded = p->program->area_count + p->program->place_count;
    return ((p->count - recorded) / 2 + p->ranks[item]) << p->shift;
}

/* One of the places given back is taken. */
static void
replay_drop_given(replay_places *p, size_t kind, size_t i)
{
    replay_place *given = p->given[kind];
    for (; i + 1 < p->given_count[kind]; i++) {
        given[i] = given[i + 1];
    }
    p->given_count[kind]--;
}

/* The newest of the places given back that is large enough. */
static bool
replay_take_again(replay_places *p, size_t kind, uint64_t size, uint64_t *address)
{
    const size_t count = p->given_count[kind];
    const size_t end = count > REPLAY_GIVEN ? count - REPLAY_GIVEN : 0;
    for (size_t i = count; i-- > end;) {
        if (p->given[kind][i].size >= size) {
            *address = p->given[kind][i].address;
            replay_drop_given(p, kind, i);
            return true;
        }
    }
    return false;
}

/* Whether a place was given back; it is taken then. */
static bool
replay_take_back(replay_places *p, size_t kind, uint64_t address)
{
    const size_t count = p->given_count[kind];
    const size_t end =
        count > REPLAY_GIVEN_RECORDED ? count - REPLAY_GIVEN_RECORDED : 0;
    for (size_t i = count; i-- > end;) {
        if (p->given[kind][i].address == address) {
            replay_drop_given(p, kind, i);
            return true;
        }
    }
    return false;
}

/* Where the trace's next segment lay, as long as all new ones were the trace's. */
static bool
replay_take_next(replay_places *p, size_t kind, uint64_t size, uint64_t *address)
{
    const size_t next = p->recorded_next;
    p->is_left |=
        next >= p->program->place_count || p->program->places[next].size != size;
    if (p->is_left) {
        return false;
    }
    const uint32_t item = p->recorded[next];
    const size_t new = p->order_next[kind];
    *address = replay_lie(p, item);
    if (new < p->order_count[kind] && p->order_of[kind][new] == item) {
        p->order_next[kind]++;
    } else {
        p->is_left = !replay_take_back(p, kind, *address);
    }
    p->recorded_next++;
    return !p->is_left;
}

static nt_status
replay_take(void *ctx, const nt_allocator_need *need, uint64_t *address, nt_error *err)
{
    replay_places *p = &((replay *)ctx)->places;
    const size_t kind = replay_kind(need->size);
    uint64_t place = 0;
    if (p->is_short) {
        return nt_fail_nomem(err);
    }
    if (p->order == NT_ORDER_RANDOM) {
        NT_TRY(replay_draw(p, &place, err));
    } else if (p->order != NT_ORDER_RECORDED || need->is_reservation) {
        const bool above = p->order != NT_ORDER_FALLING;
        NT_TRY(replay_take_outside(p, above, &place, err));
    } else if (replay_take_next(p, kind, need->size, address) ||
               replay_take_again(p, kind, need->size, address)) {
        return NT_OK;
    } else if (p->order_next[kind] < p->order_count[kind]) {
        *address = replay_lie(p, p->order_of[kind][p->order_next[kind]++]);
        return NT_OK;
    } else {
        NT_TRY(replay_take_outside(p, false, &place, err));
    }
    *address = place << p->shift;
    return NT_OK;
}

static void
replay_give(void *ctx, uint64_t address, uint64_t size)
{
    replay_places *p = &((replay *)ctx)->places;
    const size_t kind = replay_kind(size);
    if (p->order == NT_ORDER_RANDOM) {
        (void)nt_map_remove(&p->used, address >> p->shift);
        return;
    }
    if (p->order != NT_ORDER_RECORDED) {
        return;
    }
    p->is_short |= NT_GROW(&p->alloc, p->given[kind], p->given_capacity[kind],
                           p->given_count[kind] + 1, NULL) != NT_OK;
    if (!p->is_short) {
        p->given[kind][p->given_count[kind]++] = (replay_place){address, size};
    }
}

static nt_allocator_places
replay_get_places(replay *r)
{
    return (nt_allocator_places){.take = replay_take, .give = replay_give, .ctx = r};
}

/* The place of the start's area `i`. */
static nt_status
replay_start_place(replay *r, uint32_t i, uint64_t *address)
{
    replay_places *p = &r->places;
    uint64_t place;
    if (p->order != NT_ORDER_RANDOM) {
        *address = replay_lie(p, i);
        return NT_OK;
    }
    NT_TRY(replay_draw(p, &place, r->err));
    *address = place << p->shift;
    return NT_OK;
}

/* The model held against the trace: it gets the trace's addresses for new memory, and
 * each of its deeds is compared with the next one of the trace. */

#define REPLAY_FIRST_SPARE (UINT64_C(1) << 62)

static bool
replay_is_deed(uint8_t action)
{
    return action == NT_ACTION_SEGMENT_ALLOC || action == NT_ACTION_SEGMENT_FREE ||
           action == NT_ACTION_SEGMENT_MAP || action == NT_ACTION_SEGMENT_UNMAP ||
           action == NT_ACTION_OOM;
}

static nt_replay_deed
replay_recorded(const replay_check *check, size_t i)
{
    if (i >= check->count) {
        return (nt_replay_deed){.action = NT_ACTION_COUNT};
    }
    const size_t at = check->first + i;
    const nt_action action = (nt_action)check->events->action[at];
    return (nt_replay_deed){
        .action = action,
        .address = action == NT_ACTION_OOM ? 0 : check->events->addr[at],
        .size = check->events->size[at],
    };
}

/* The next deed of the trace; check->count if there is none. */
static size_t
replay_next_deed(replay_check *check)
{
    while (check->next < check->count &&
           !replay_is_deed(check->events->action[check->first + check->next])) {
        check->next++;
    }
    return check->next;
}

static void
replay_note(replay_check *check, size_t event, nt_replay_deed recorded,
            nt_replay_deed modelled)
{
    nt_replay_fidelity *f = &check->fidelity;
    if (f->is_same) {
        f->is_same = false;
        f->first_event = (int32_t)event;
        f->recorded = recorded;
        f->modelled = modelled;
    }
}

static void
replay_compare_deed(replay_check *check, nt_action action, uint64_t address,
                    uint64_t size)
{
    const size_t i = replay_next_deed(check);
    const nt_replay_deed recorded = replay_recorded(check, i);
    const nt_replay_deed modelled = {action, address, size};
    if (recorded.action == action && recorded.address == address &&
        recorded.size == size) {
        check->fidelity.device_events++;
        check->fidelity.device_events_same++;
        check->next = i + 1;
    } else {
        replay_note(check, i, recorded, modelled);
    }
}

/* The model has done nothing in the place of what is left before event `end`. */
static void
replay_compare_until(replay_check *check, size_t end)
{
    const nt_replay_deed nothing = {.action = NT_ACTION_COUNT};
    for (size_t i = replay_next_deed(check); i < end; i = replay_next_deed(check)) {
        check->fidelity.device_events++;
        replay_note(check, i, replay_recorded(check, i), nothing);
        check->next = i + 1;
    }
}

/* After a step: block is what a malloc gave, or NT_NONE. */
static void
replay_compare_step(replay *r, const nt_program_step *step, uint32_t block)
{
    replay_check *check = r->check;
    replay_compare_until(check, (size_t)step->event + 1);
    if (step->kind != NT_PROGRAM_MALLOC) {
        return;
    }
    const nt_replay_deed recorded = replay_recorded(check, (size_t)step->event);
    nt_replay_deed modelled = {.action = NT_ACTION_OOM, .size = step->size};
    check->fidelity.mallocs++;
    if (block != NT_NONE) {
        modelled.action = NT_ACTION_ALLOC;
        modelled.address = nt_allocator_address(r->model, block);
    }
    if (block != NT_NONE && modelled.address == recorded.address) {
        check->fidelity.mallocs_same++;
    } else {
        replay_note(check, (size_t)step->event, recorded, modelled);
    }
}

/* Whether a request of the trace was served out of order, in a private pool that was
 * restored: then *block is where the trace has it, else NT_NONE. */
static nt_status
replay_restore(replay *r, const nt_program_step *step, uint32_t *block)
{
    replay_check *check = r->check;
    *block = NT_NONE;
    /* Restoring takes what the pool has: no deed stands before it in the trace. */
    if (step->kind != NT_PROGRAM_MALLOC || r->program->lanes[step->lane].pool == 0 ||
        replay_next_deed(check) < (size_t)step->event) {
        return NT_OK;
    }
    const nt_replay_deed recorded = replay_recorded(check, (size_t)step->event);
    const bool is_known =
        check->marks != NULL && (check->marks[step->event] & NT_MARK_RESTORED) != 0;
    if (!is_known &&
        nt_allocator_leads_to(r->model, step->lane, step->size, recorded.address)) {
        return NT_OK;
    }
    NT_TRY(nt_allocator_restore(r->model, step->lane, recorded.address, step->size,
                                step->slot, block, r->err));
    if (r->quiet != NULL && *block != NT_NONE) {
        r->quiet->marks[step->event] |= NT_MARK_RESTORED;
    }
    return NT_OK;
}

/* Whether row `i` of the model's blocks is row `k` of the snapshot's, which may not say
 * what was requested. */
static bool
replay_is_same_block(const nt_layout *model, size_t i, const nt_layout *recorded,
                     size_t k, bool says_requested)
{
    const nt_block_columns *a = &model->blocks, *b = &recorded->blocks;
    const nt_segment_columns *s = &model->segments, *z = &recorded->segments;
    const uint32_t m = a->segment[i], n = b->segment[k];
    return a->address[i] == b->address[k] && a->size[i] == b->size[k] &&
           a->state[i] == b->state[k] &&
           (a->state[i] == NT_BLOCK_INACTIVE || !says_requested ||
            a->requested_size[i] == b->requested_size[k]) &&
           s->address[m] == z->address[n] && s->total_size[m] == z->total_size[n] &&
           s->stream[m] == z->stream[n] && s->kind[m] == z->kind[n] &&
           s->is_expandable[m] == z->is_expandable[n];
}

/* Each block of the snapshot's device has its like in the model, and no other is there;
 * the snapshot's are in any order. */
static bool
replay_is_same_end(const nt_layout *model, const nt_snapshot *snapshot, int32_t device,
                   const nt_map *rows)
{
    const nt_layout *recorded = nt_snapshot_layout(snapshot);
    const bool says = (nt_snapshot_keys(snapshot) & NT_HAS_BLOCK_REQUESTED) != 0;
    size_t count = 0;
    for (size_t k = 0; k < recorded->blocks.count; k++) {
        if (recorded->segments.device[recorded->blocks.segment[k]] != device) {
            continue;
        }
        const uint32_t row = nt_map_find(rows, recorded->blocks.address[k]);
        if (row == NT_NONE || !replay_is_same_block(model, row, recorded, k, says)) {
            return false;
        }
        count++;
    }
    return count == model->blocks.count;
}

/* After the last step: what the trace still has, and the blocks at its end. */
static nt_status
replay_compare_end(replay *r)
{
    const nt_timeline *timeline = r->program->timeline;
    nt_layout *layout;
    nt_map rows;
    nt_status status = NT_OK;
    replay_compare_until(r->check, r->check->count);
    NT_TRY(nt_allocator_layout(r->model, &layout, r->err));
    nt_map_init(&rows, r->alloc);
    for (uint32_t i = 0; i < layout->blocks.count && status == NT_OK; i++) {
        status = nt_map_set(&rows, layout->blocks.address[i], i, r->err);
    }
    r->check->fidelity.is_end_same =
        status == NT_OK && replay_is_same_end(layout, nt_timeline_snapshot(timeline),
                                              nt_timeline_device(timeline), &rows);
    nt_map_clear(&rows);
    nt_allocator_layout_free(r->model, layout);
    return status;
}

/* Whether the range is one that the model can have: free, and not beyond its space. */
static bool
replay_is_open(const replay_check *check, uint64_t address, uint64_t size)
{
    if (address == 0 || address % 512 != 0 || size > REPLAY_FIRST_SPARE ||
        address > REPLAY_FIRST_SPARE - size) {
        return false;
    }
    const nt_ordered_entry below = nt_ordered_before(&check->taken, address + size, 0);
    return below.value == NT_NONE || below.second <= address;
}

static nt_status
replay_mark(replay_check *check, uint64_t address, uint64_t size, nt_error *err)
{
    return nt_ordered_add(&check->taken, &check->alloc,
                          (nt_ordered_entry){address, address + size, 0}, err);
}

static nt_status
replay_take_recorded(void *ctx, const nt_allocator_need *need, uint64_t *address,
                     nt_error *err)
{
    replay_check *check = ctx;
    const nt_replay_deed next = replay_recorded(check, replay_next_deed(check));
    const bool fits = need->is_reservation ? next.action == NT_ACTION_SEGMENT_MAP
                                           : next.action == NT_ACTION_SEGMENT_ALLOC &&
                                                 next.size == need->size;
    if (fits && replay_is_open(check, next.address, need->size)) {
        *address = next.address;
    } else if (need->size > UINT64_MAX / 2 - check->spare) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "out of addresses");
    } else {
        *address = check->spare;
        check->spare += need->size;
    }
    return replay_mark(check, *address, need->size, err);
}

static void
replay_give_recorded(void *ctx, uint64_t address, uint64_t size)
{
    replay_check *check = ctx;
    (void)nt_ordered_remove(&check->taken, &check->alloc, address, address + size);
}

/* The same with the trace's addresses; and what the model gives. */
static nt_allocator_places
replay_get_recorded(replay_check *check)
{
    check->spare = REPLAY_FIRST_SPARE;
    return (nt_allocator_places){
        .take = replay_take_recorded, .give = replay_give_recorded, .ctx = check};
}

static nt_status
replay_start_recorded(replay_check *check, uint64_t address, uint64_t size,
                      nt_error *err)
{
    if (!replay_is_open(check, address, size)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "segments from before the trace overlap: the trace has gaps, or "
                       "the file is damaged");
    }
    return replay_mark(check, address, size, err);
}

/* The state before the trace, in the model. */

typedef struct replay_adoption {
    replay *r;
    nt_allocator_piece *pieces; /* of one area */
    uint32_t *blocks;           /* its blocks in use */
    size_t count, piece_capacity, block_capacity;
} replay_adoption;

static nt_status
replay_add_piece(replay_adoption *s, const nt_allocator_piece *piece)
{
    NT_TRY(
        NT_GROW(&s->r->alloc, s->pieces, s->piece_capacity, s->count + 1, s->r->err));
    NT_TRY(
        NT_GROW(&s->r->alloc, s->blocks, s->block_capacity, s->count + 1, s->r->err));
    s->pieces[s->count++] = *piece;
    return NT_OK;
}

static nt_status
replay_add_pieces(replay_adoption *s, const nt_program_area *area)
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
replay_adopt(replay_adoption *s, const nt_program_area *area, uint64_t address)
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
replay_adopt_segment(replay_adoption *s, size_t i)
{
    replay *r = s->r;
    const nt_program_area *area = &r->program->areas[i];
    uint64_t address = area->address;
    NT_TRY(replay_add_pieces(s, area));
    if (r->check != NULL) {
        NT_TRY(replay_start_recorded(r->check, address, area->size, r->err));
    } else {
        NT_TRY(replay_start_place(r, (uint32_t)i, &address));
    }
    return replay_adopt(s, area, address);
}

static nt_status
replay_add_unmapped(replay_adoption *s, uint64_t size)
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
replay_adopt_reservation(replay_adoption *s, const nt_sort_item *items, size_t count)
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
        NT_TRY(replay_start_recorded(r->check, address, size, r->err));
    } else {
        NT_TRY(replay_start_place(r, items[0].value, &address));
    }
    return replay_adopt(s, first, address);
}

static nt_status
replay_adopt_expandable(replay_adoption *s)
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

static nt_status
replay_add_lanes(const nt_program *program, nt_allocator *model, nt_error *err)
{
    uint32_t number;
    for (size_t i = 1; i < program->pool_count; i++) {
        NT_TRY(nt_allocator_add_pool(model, 0, &number, err));
    }
    for (size_t i = 0; i < program->lane_count; i++) {
        NT_TRY(nt_allocator_add_lane(model, program->lanes[i].pool,
                                     program->lanes[i].stream, &number, err));
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
    nt_status status = replay_add_lanes(r->program, model, r->err);
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
replay_copy_start(replay_adoption *s)
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

static nt_status
replay_start(replay *r)
{
    if (!replay_is_copy(r)) {
        return replay_build_start(r);
    }
    replay_adoption s = {.r = r};
    nt_status status = replay_copy_start(&s);
    if (status == NT_OK && r->check == NULL && r->options.begin == NT_BEGIN_EMPTIED) {
        status = nt_allocator_empty_cache(r->model, r->err);
    }
    NT_RELEASE(&r->alloc, s.pieces, s.piece_capacity);
    NT_RELEASE(&r->alloc, s.blocks, s.block_capacity);
    return status;
}

/* What a trace does not show by itself: calls of empty_cache() and ends of private
 * pools that had nothing to give back, and blocks that were put back where they had
 * lain. */

/* Of so many blocks that lay at one address, with different sizes, it is known where
 * they lie in the run. */
#define SILENCE_MOVED 64

/* Whether what may be silent at place `number` is assumed to be so. */
static bool
silence_is_chosen(const replay *r, uint64_t number)
{
    const uint32_t share = r->options.silence.share;
    uint64_t bits = (r->options.seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + number;
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return share == UINT32_MAX || (uint32_t)(bits >> 32) < share;
}

/* Sorts the ends of pools that are silent; replay_close_silence() frees them. */
static nt_status
replay_open_silence(replay *r)
{
    const nt_replay_silence *silence = &r->options.silence;
    nt_map_init(&r->moved_rows, r->alloc);
    if (r->quiet != NULL) {
        const size_t slots = r->program->slot_count;
        r->quiet->made = nt_allocate(&r->alloc, slots * sizeof *r->quiet->made);
        for (size_t i = 0; r->quiet->made != NULL && i < slots; i++) {
            r->quiet->made[i] = NT_EVENT_NEVER;
        }
        return r->quiet->made != NULL || slots == 0 ? NT_OK : nt_fail_nomem(r->err);
    }
    if (silence->share == 0 || silence->drops == NULL) {
        return NT_OK;
    }
    for (uint32_t pool = 0; pool < r->program->pool_count; pool++) {
        /* Pools are numbered behind all events, which are fewer than 2^31. */
        if (silence->drops[pool] == NT_EVENT_NEVER ||
            !silence_is_chosen(r, (UINT64_C(1) << 32) + pool)) {
            continue;
        }
        NT_TRY(
            NT_GROW(&r->alloc, r->drops, r->drop_capacity, r->drop_count + 1, r->err));
        r->drops[r->drop_count++] =
            (nt_sort_item){(uint64_t)silence->drops[pool], pool};
    }
    nt_sort(r->drops, r->drop_count);
    return NT_OK;
}

static void
replay_close_silence(replay *r)
{
    NT_RELEASE(&r->alloc, r->drops, r->drop_capacity);
    NT_RELEASE(&r->alloc, r->moved, r->moved_capacity);
    nt_map_clear(&r->moved_rows);
    if (r->quiet != NULL) {
        NT_RELEASE(&r->alloc, r->quiet->made, r->program->slot_count);
    }
}

static const uint32_t *
silence_stacks(const replay *r)
{
    return r->check->events->stack + r->check->first;
}

static void
silence_note_malloc(replay *r, const nt_program_step *step)
{
    replay_quiet *quiet = r->quiet;
    const uint32_t pool = r->program->lanes[step->lane].pool;
    quiet->made[step->slot] = step->event;
    /* The end of a pool is behind the last request in it. */
    if (pool != NT_DEFAULT_POOL) {
        quiet->drops[pool] =
            nt_allocator_is_lean(r->model, pool) ? step->event : NT_EVENT_NEVER;
    }
}

/* A block that is freed by the call that made it. */
static void
silence_note_free(replay *r, const nt_program_step *step)
{
    const int32_t made =
        step->slot != NT_NONE ? r->quiet->made[step->slot] : NT_EVENT_NEVER;
    const uint32_t *stacks = silence_stacks(r);
    if (made != NT_EVENT_NEVER && (size_t)made >= r->quiet->run_first &&
        stacks[made] == stacks[step->event] && stacks[made] != NT_NO_STACK) {
        r->quiet->marks[made] |= NT_MARK_FILLER;
    }
}

static bool
silence_is_private(const replay *r, const nt_program_step *step)
{
    return step->kind == NT_PROGRAM_MALLOC &&
           r->program->lanes[step->lane].pool != NT_DEFAULT_POOL;
}

/* Finds out which stacks put blocks back: some request of theirs is served out of
 * order, and all are of whole blocks. */
static void
silence_find_restores(const replay *r, uint8_t *restores)
{
    const uint32_t *stacks = silence_stacks(r);
    for (size_t i = 0; i < r->check->count; i++) {
        if ((r->quiet->marks[i] & NT_MARK_RESTORED) != 0 && stacks[i] != NT_NO_STACK) {
            restores[stacks[i]] = 1;
        }
    }
    for (size_t i = 0; i < r->program->step_count; i++) {
        const nt_program_step *step = &r->program->steps[i];
        if (silence_is_private(r, step) && step->size % NT_MIN_BLOCK_SIZE != 0 &&
            stacks[step->event] != NT_NO_STACK) {
            restores[stacks[step->event]] = 0;
        }
    }
}

/* Marks requests that have the stack of one that puts a block back. */
static nt_status
replay_mark_restored(replay *r)
{
    if (r->check->count == 0) {
        return NT_OK;
    }
    const nt_snapshot *snapshot = nt_timeline_snapshot(r->program->timeline);
    const size_t count = nt_stacks_count(nt_snapshot_stacks(snapshot));
    const uint32_t *stacks = silence_stacks(r);
    uint8_t *restores = nt_allocate(&r->alloc, count); /* by stack */
    if (restores == NULL) {
        return nt_fail_nomem(r->err);
    }
    memset(restores, 0, count);
    silence_find_restores(r, restores);
    for (size_t i = 0; i < r->program->step_count; i++) {
        const nt_program_step *step = &r->program->steps[i];
        if (silence_is_private(r, step) && stacks[step->event] != NT_NO_STACK) {
            uint8_t *mark = &r->quiet->marks[step->event];
            *mark = (uint8_t)(*mark & ~NT_MARK_RESTORED);
            *mark |= restores[stacks[step->event]] != 0 ? NT_MARK_RESTORED : 0;
        }
    }
    nt_release(&r->alloc, restores, count);
    return NT_OK;
}

static uint64_t
silence_address(const replay *r, const nt_program_step *step)
{
    const nt_timeline *timeline = r->program->timeline;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    size_t first, count;
    nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(timeline), &first, &count);
    return nt_snapshot_events(snapshot)->addr[first + (size_t)step->event];
}

/* Whether blocks of the lane can be put back, and are so in the trace. */
static bool
silence_has_moved(const replay *r, const nt_program_step *step)
{
    return r->check == NULL && r->options.silence.marks != NULL &&
           (size_t)step->event < nt_timeline_event_count(r->program->timeline) &&
           silence_is_private(r, step);
}

/* How well a block that was asked for with `asked` bytes is one of `size` bytes that is
 * put back: 2: it had exactly these, 1: with what was too little to split off; 0:
 * not. */
static int
silence_match(const replay *r, uint64_t asked, uint64_t size)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(r->program->timeline));
    const uint64_t rounded = nt_round_size(settings, asked);
    if (rounded == size) {
        return 2;
    }
    return rounded < size && !nt_is_small(rounded) &&
           !nt_should_split(settings, size, rounded, false,
                            settings->expandable_segments);
}

/* A request that puts a block back: where and how large the block is in this run. True
 * if it is one, and *place then has size 0 if nothing is to be put back. */
static bool
replay_find_moved(const replay *r, const nt_program_step *step, replay_moved *place)
{
    *place = (replay_moved){.size = 0};
    if (!silence_has_moved(r, step) ||
        (r->options.silence.marks[step->event] & NT_MARK_RESTORED) == 0) {
        return false;
    }
    if ((r->options.silence.marks[step->event] & NT_MARK_FILLER) != 0) {
        return true;
    }
    int best = 0;
    uint32_t row = nt_map_find(&r->moved_rows, silence_address(r, step));
    for (; row != NT_NONE && best < 2; row = r->moved[row].earlier) {
        const int match = silence_match(r, r->moved[row].asked, step->size);
        if (match > best) {
            best = match;
            *place = r->moved[row];
        }
    }
    return best != 0;
}

/* The row of the blocks that lay at an address in which one of `asked` bytes is noted:
 * its own, or the last one once there are as many as can be, else NT_NONE. */
static uint32_t
silence_moved_row(const replay *r, uint32_t newest, uint64_t asked)
{
    size_t rows = 0;
    for (uint32_t row = newest; row != NT_NONE; row = r->moved[row].earlier) {
        if (r->moved[row].asked == asked || ++rows == SILENCE_MOVED) {
            return row;
        }
    }
    return NT_NONE;
}

static nt_status
replay_note_moved(replay *r, const nt_program_step *step, uint32_t block)
{
    if (!silence_has_moved(r, step)) {
        return NT_OK;
    }
    const uint64_t address = silence_address(r, step);
    const uint32_t newest = nt_map_find(&r->moved_rows, address);
    uint32_t row = silence_moved_row(r, newest, step->size);
    if (row == NT_NONE) {
        NT_TRY(NT_GROW(&r->alloc, r->moved, r->moved_capacity, r->moved_count + 1,
                       r->err));
        row = (uint32_t)r->moved_count++;
        r->moved[row].earlier = newest;
        NT_TRY(nt_map_set(&r->moved_rows, address, row, r->err));
    }
    r->moved[row].asked = step->size;
    r->moved[row].address = nt_allocator_address(r->model, block);
    r->moved[row].size = nt_allocator_size(r->model, block);
    return NT_OK;
}

/* After step `i`: does what is silent there, or notes that something may be. */
static nt_status
replay_pass_silence(replay *r, size_t i)
{
    const nt_program *program = r->program;
    const nt_program_step *step = &program->steps[i];
    const nt_replay_silence *silence = &r->options.silence;
    const size_t event = (size_t)step->event;
    const bool is_last = i + 1 == program->step_count || step[1].event != step->event;
    if (event >= nt_timeline_event_count(program->timeline)) {
        return NT_OK;
    }
    if (r->quiet != NULL) {
        if (silence_stacks(r)[event] != silence_stacks(r)[r->quiet->run_first]) {
            r->quiet->run_first = event;
        }
        if (step->kind == NT_PROGRAM_MALLOC) {
            silence_note_malloc(r, step);
        } else if (step->kind == NT_PROGRAM_FREE) {
            silence_note_free(r, step);
        }
        if (is_last && !program->calls_noted &&
            nt_allocator_is_lean(r->model, NT_DEFAULT_POOL)) {
            r->quiet->marks[event] |= NT_MARK_SILENT;
        }
        return NT_OK;
    }
    if (silence->share == 0 || !is_last) {
        return NT_OK;
    }
    while (r->next_drop < r->drop_count && r->drops[r->next_drop].key <= event) {
        const uint32_t pool = r->drops[r->next_drop++].value;
        NT_TRY(nt_allocator_empty_pool(r->model, pool, r->err));
    }
    if (silence->marks != NULL && (silence->marks[event] & NT_MARK_SILENT) != 0 &&
        silence_is_chosen(r, event)) {
        NT_TRY(nt_allocator_empty_cache(r->model, r->err));
    }
    return NT_OK;
}

/* A run as a snapshot: the trace that PyTorch would have written of it. */

static const nt_snapshot *
record_source(const replay *r)
{
    return nt_timeline_snapshot(r->program->timeline);
}

/* The strings under the ids that they have in `from`. */
static nt_status
record_copy_strings(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_strings *strings = nt_snapshot_strings(from);
    uint32_t id;
    for (uint32_t i = 0; i < nt_strings_count(strings); i++) {
        size_t length;
        const char *text = nt_strings_get(strings, i, &length);
        NT_TRY(nt_strings_intern(nt_snapshot_strings(to), text, length, &id, err));
        NT_ASSERT(id == i);
    }
    return NT_OK;
}

/* The stacks under the ids that they have in `from`: one comes behind the one that it
 * was called from, so that each call adds one. */
static nt_status
record_copy_stacks(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(from);
    nt_stacks *copies = nt_snapshot_stacks(to);
    uint32_t id;
    size_t nodes;
    const nt_fx_node *fx = nt_stacks_fx(stacks, &nodes);
    for (size_t i = 0; i < nodes; i++) {
        NT_TRY(nt_stacks_intern_fx(copies, fx[i], &id, err));
    }
    for (size_t i = 0; i < nt_stacks_frame_count(stacks); i++) {
        NT_TRY(nt_stacks_intern_frame(copies, nt_stacks_frames(stacks)[i], &id, err));
    }
    for (uint32_t i = NT_EMPTY_STACK + 1; i < nt_stacks_count(stacks); i++) {
        NT_TRY(nt_stacks_intern_call(copies, nt_stacks_parent(stacks)[i],
                                     nt_stacks_innermost(stacks)[i], &id, err));
        NT_ASSERT(id == i);
    }
    return NT_OK;
}

static nt_status
record_copy_annotations(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_annotation_columns *rows = nt_snapshot_annotations(from);
    for (size_t i = 0; i < rows->count; i++) {
        const nt_annotation row = {
            .stage = rows->stage[i],
            .name = rows->name[i],
            .device = rows->device[i],
            .time_us = rows->time_us[i],
        };
        NT_TRY(nt_snapshot_add_annotation(to, &row, err));
    }
    return NT_OK;
}

/* The settings as the text that PYTORCH_CUDA_ALLOC_CONF would have had. */
static nt_status
record_add_settings(const nt_settings *settings, nt_snapshot *to, nt_error *err)
{
    static const char key[] = "PYTORCH_CUDA_ALLOC_CONF";
    char text[1024];
    nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_STRING};
    const size_t length = nt_settings_format(settings, text, sizeof text);
    NT_ASSERT(length < sizeof text);
    nt_strings *strings = nt_snapshot_strings(to);
    NT_TRY(nt_strings_intern(strings, key, sizeof key - 1, &row.key, err));
    NT_TRY(nt_strings_intern(strings, text, length, &row.string, err));
    return nt_snapshot_add_setting(to, &row, err);
}

/* A text at the top of allocator_settings, if the file has it; its row, as the file's,
 * under the ids that its strings have there. */
static nt_status
record_copy_text(const nt_snapshot *from, nt_snapshot *to, const char *name,
                 nt_error *err)
{
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(from, &count);
    const uint32_t key = nt_strings_find(nt_snapshot_strings(from), name, strlen(name));
    for (size_t i = 0; key != NT_NONE && i < count; i++) {
        if (rows[i].key == key && rows[i].parent == NT_NONE &&
            rows[i].kind == NT_SETTING_STRING) {
            return nt_snapshot_add_setting(to, &rows[i], err);
        }
    }
    return NT_OK;
}

/* Whether the program makes each request of the trace: a change may leave some out. */
static bool
record_has_all_requests(const replay *r)
{
    const nt_snapshot *from = record_source(r);
    const nt_event_columns *events = nt_snapshot_events(from);
    size_t first, count, recorded = 0, made = 0;
    nt_snapshot_trace(from, (size_t)nt_timeline_device(r->program->timeline), &first,
                      &count);
    for (size_t i = first; i < first + count; i++) {
        recorded +=
            events->action[i] == NT_ACTION_ALLOC || events->action[i] == NT_ACTION_OOM;
    }
    for (size_t i = 0; i < r->program->step_count; i++) {
        const uint8_t kind = r->program->steps[i].kind;
        made += kind == NT_PROGRAM_MALLOC || kind == NT_PROGRAM_OOM;
    }
    return made == recorded;
}

static nt_status
record_begin(replay *r)
{
    const nt_snapshot *from = record_source(r);
    nt_snapshot *to = r->record->snapshot;
    NT_TRY(record_copy_strings(from, to, r->err));
    NT_TRY(record_copy_stacks(from, to, r->err));
    NT_TRY(record_copy_annotations(from, to, r->err));
    NT_TRY(record_add_settings(&r->options.settings, to, r->err));
    NT_TRY(record_copy_text(from, to, "rehearsed", r->err));
    if (record_has_all_requests(r)) {
        NT_TRY(record_copy_text(from, to, NT_SNAPSHOT_USES, r->err));
    }
    for (int32_t i = 0; i <= nt_timeline_device(r->program->timeline); i++) {
        NT_TRY(nt_snapshot_begin_trace(to, r->err));
    }
    /* The model calls the device a little more or less often. */
    const size_t events = nt_timeline_event_count(r->program->timeline);
    nt_snapshot_event_table(to)->expected = events + events / 64;
    return NT_OK;
}

static nt_pool_id
record_pool(const replay *r, size_t pool)
{
    return r->program->pools[pool];
}

/* The bytes that the model's device has left for the process. */
static uint64_t
record_device_free(const replay *r)
{
    const uint64_t reserved =
        nt_allocator_get_stats(r->model)->bytes[NT_METRIC_RESERVED];
    const uint64_t taken = reserved + r->options.device_other;
    return taken < r->options.device_total ? r->options.device_total - taken : 0;
}

/* An event of the model in the place of the recorded one that is under way. */
static void
record_add(replay *r, nt_action action, uint32_t lane, uint64_t address, uint64_t size)
{
    replay_record *record = r->record;
    const nt_timeline *timeline = r->program->timeline;
    const nt_event_columns *from = nt_snapshot_events(record_source(r));
    size_t first, count;
    nt_snapshot_trace(record_source(r), (size_t)nt_timeline_device(timeline), &first,
                      &count);
    const size_t at = first + (record->event < count ? record->event : count - 1);
    const nt_program_lane *where = &r->program->lanes[lane];
    const nt_event event = {
        .action = (uint8_t)action,
        .addr = address,
        .size = size,
        .stream = where->stream,
        .time_us = from->time_us != NULL ? from->time_us[at] : 0,
        .device_free = action == NT_ACTION_OOM ? record_device_free(r) : 0,
        .pool = record_pool(r, where->pool),
        .stack = from->stack[at],
        .compile_context =
            from->compile_context != NULL ? from->compile_context[at] : NT_NONE,
        .user_metadata =
            from->user_metadata != NULL ? from->user_metadata[at] : NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    if (record->status == NT_OK) {
        record->status = nt_snapshot_add_event(record->snapshot, &event, r->err);
    }
    if (action != NT_ACTION_ALLOC || record->status != NT_OK) {
        return;
    }
    if (event.stack == NT_NO_STACK) {
        (void)nt_map_remove(&record->stacks, address);
    } else {
        record->status = nt_map_set(&record->stacks, address, event.stack, r->err);
    }
}

static void
replay_record_deed(replay *r, nt_action action, uint32_t lane, uint64_t address,
                   uint64_t size)
{
    if (r->record->is_begun) {
        record_add(r, action, lane, address, size);
    }
}

static void
replay_record_malloc(replay *r, const nt_program_step *step, uint32_t block)
{
    record_add(r, NT_ACTION_ALLOC, step->lane, nt_allocator_address(r->model, block),
               nt_allocator_requested(r->model, block));
}

/* Writes the events of a step into the record: before it is done what goes, and
 * afterwards what came. `block` is what the step is about, or NT_NONE. */
static void
replay_record_free(replay *r, const nt_program_step *step, uint32_t block)
{
    const uint64_t address = nt_allocator_address(r->model, block);
    const uint64_t size = nt_allocator_requested(r->model, block);
    const uint32_t lane = nt_allocator_lane(r->model, block);
    if (step->kind != NT_PROGRAM_COMPLETE) {
        record_add(r, NT_ACTION_FREE_REQUESTED, lane, address, size);
    }
    if (step->kind != NT_PROGRAM_FREE_LATER) {
        record_add(r, NT_ACTION_FREE_COMPLETED, lane, address, size);
    }
}

static nt_status
record_add_blocks(replay *r, const nt_layout *layout, size_t i)
{
    const nt_block_columns *b = &layout->blocks;
    const uint32_t first = layout->segments.block_first[i];
    for (uint32_t k = first; k < first + layout->segments.block_count[i]; k++) {
        const bool is_free = b->state[k] == NT_BLOCK_INACTIVE;
        const nt_block row = {
            .address = b->address[k],
            .size = b->size[k],
            .requested_size = b->requested_size[k],
            .state = b->state[k],
            .stack =
                is_free ? NT_NO_STACK : nt_map_find(&r->record->stacks, b->address[k]),
        };
        NT_TRY(nt_snapshot_add_block(r->record->snapshot, &row, r->err));
    }
    return NT_OK;
}

static nt_status
record_add_layout(replay *r, const nt_layout *layout)
{
    const nt_segment_columns *s = &layout->segments;
    for (size_t i = 0; i < s->count; i++) {
        const nt_segment row = {
            .device = nt_timeline_device(r->program->timeline),
            .address = s->address[i],
            .total_size = s->total_size[i],
            .allocated_size = s->allocated_size[i],
            .active_size = s->active_size[i],
            .requested_size = s->requested_size[i],
            .stream = s->stream[i],
            .pool = record_pool(r, (size_t)s->pool_second[i]),
            .kind = s->kind[i],
            .is_expandable = s->is_expandable[i] != 0,
            .stack = NT_NO_STACK,
        };
        NT_TRY(nt_snapshot_add_segment(r->record->snapshot, &row, r->err));
        NT_TRY(record_add_blocks(r, layout, i));
    }
    return NT_OK;
}

static nt_status
replay_record_end(replay *r)
{
    nt_layout *layout;
    NT_TRY(r->record->status);
    NT_TRY(nt_allocator_layout(r->model, &layout, r->err));
    const nt_status status = record_add_layout(r, layout);
    nt_allocator_layout_free(r->model, layout);
    return status;
}

/* Which keys the file of the snapshot would have. */
static uint32_t
record_keys(const nt_program *program)
{
    const uint32_t events = NT_HAS_EVENT_TIME | NT_HAS_EVENT_COMPILE_CONTEXT |
                            NT_HAS_EVENT_USER_METADATA | NT_HAS_ANNOTATIONS;
    uint32_t keys = nt_snapshot_keys(nt_timeline_snapshot(program->timeline)) & events;
    keys |= NT_HAS_SEGMENT_ALLOCATED | NT_HAS_SEGMENT_ACTIVE;
    keys |= NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |
            NT_HAS_SEGMENT_POOL | NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_SETTINGS |
            NT_HAS_TRACES;
    return program->pool_count > 1 ? keys | NT_HAS_EVENT_POOL : keys;
}

/* The bytes of a device that holds this many with ease. */
static uint64_t
replay_device(uint64_t held)
{
    uint64_t total = NT_REPLAY_DEVICE;
    while (total / 2 < held && total < NT_LARGEST_DEVICE) {
        total *= 2;
    }
    return total;
}

static void
replay_listen(void *ctx, nt_action action, uint32_t lane, uint64_t address,
              uint64_t size, uint32_t tag)
{
    replay *r = ctx;
    if (r->record != NULL) {
        replay_record_deed(r, action, lane, address, size);
    }
    if (action == NT_ACTION_FREE_COMPLETED) {
        /* The model waited for all streams: the trace's own completion comes too late.
         * A slot that was freed already may name another block. */
        if (r->slots[tag] != NT_NONE &&
            nt_allocator_address(r->model, r->slots[tag]) == address) {
            r->slots[tag] = NT_NONE;
        }
    } else if (r->check != NULL) {
        replay_compare_deed(r->check, action, address, size);
    }
}

/* The largest range that the model or the start asks a place for. */
static uint64_t
replay_largest(const replay *r)
{
    uint64_t largest = r->options.device_total;
    bool reserves = r->options.settings.expandable_segments;
    for (size_t i = 0; i < r->program->area_count; i++) {
        const nt_program_area *area = &r->program->areas[i];
        reserves |= area->is_expandable;
        /* What was mapped apart may become one range. */
        const uint64_t size = area->is_expandable ? 2 * area->size : area->size;
        largest = size > largest ? size : largest;
    }
    for (size_t small = 0; reserves && small < 2; small++) {
        const uint64_t size = nt_allocator_reservation_size(r->model, small != 0);
        largest = size > largest ? size : largest;
    }
    return largest;
}

static nt_status
replay_make_model(replay *r)
{
    nt_replay_options *o = &r->options;
    if (o->device_total == 0) {
        o->device_total = replay_device(r->program->bounds.low);
    }
    const nt_allocator_options options = {
        .settings = o->settings,
        .version = o->version,
        .device_total = o->device_total,
        .device_other = o->device_other,
        .limit = o->limit,
        .places =
            r->check != NULL ? replay_get_recorded(r->check) : replay_get_places(r),
        .observer = {.tell = replay_listen, .ctx = r},
    };
    NT_TRY(nt_allocator_new(&r->alloc, &options, &r->model, r->err));
    return r->check != NULL ? NT_OK : replay_open_places(r, replay_largest(r));
}

static nt_status
replay_make_slots(replay *r)
{
    const size_t count = r->program->slot_count;
    NT_TRY(NT_NEW(&r->alloc, r->slots, count, r->err));
    for (size_t i = 0; i < count; i++) {
        r->slots[i] = NT_NONE;
    }
    return NT_OK;
}

/* Steps between two calls of the progress function. */
#define REPLAY_TICK ((size_t)1 << 10)

/* Gets a step's block: where `moved` says, or where the trace has it, or from the
 * model; NT_NONE where there is no room. */
static nt_status
replay_get_block(replay *r, const nt_program_step *step, const replay_moved *moved,
                 uint32_t *block)
{
    const bool failed =
        step->kind == NT_PROGRAM_OOM || step->event == r->program->sequel;
    const bool is_least = failed && r->options.least_ooms;
    uint64_t size =
        is_least ? nt_program_least_request(r->program, step->size) : step->size;
    *block = NT_NONE;
    if (moved != NULL) {
        size = moved->size;
        NT_TRY(nt_allocator_restore(r->model, step->lane, moved->address, size,
                                    step->slot, block, r->err));
    } else if (r->check != NULL) {
        NT_TRY(replay_restore(r, step, block));
    }
    if (*block == NT_NONE) {
        NT_TRY(
            nt_allocator_malloc(r->model, step->lane, size, step->slot, block, r->err));
    }
    if (*block == NT_NONE) {
        return NT_OK;
    }
    NT_TRY(replay_note_moved(r, step, *block));
    if (r->record != NULL) {
        replay_record_malloc(r, step, *block);
    }
    return NT_OK;
}

/* A request that failed in the trace got a block: what the program would have done from
 * here on is not known, and how long it would have kept the block neither. */
static nt_status
replay_go_beyond(replay *r, const nt_program_step *step, uint32_t block)
{
    if (!r->figures.is_beyond) {
        r->figures.is_beyond = true;
        r->figures.beyond_event = step->event;
    }
    if (!r->options.goes_on) {
        return NT_OK;
    }
    if (r->record != NULL) {
        replay_record_free(r, step, block);
    }
    return nt_allocator_give(r->model, block, r->err);
}

/* A request failed that went through in the trace, or is of the sequel. */
static void
replay_fail(replay *r, int32_t event)
{
    nt_replay_figures *f = &r->figures;
    const int32_t sequel = r->program->sequel;
    if (f->failed_event == NT_EVENT_NEVER) {
        f->failed_event = event;
    }
    if (!r->options.goes_on || (sequel != NT_EVENT_NEVER && event >= sequel)) {
        f->is_stopped = true;
        f->stopped_event = event;
    }
}

static nt_status
replay_malloc(replay *r, const nt_program_step *step, uint32_t *block)
{
    replay_moved moved;
    const bool is_moved = replay_find_moved(r, step, &moved);
    *block = NT_NONE;
    if (is_moved && moved.size == 0) {
        r->slots[step->slot] = NT_NONE;
        return NT_OK;
    }
    NT_TRY(replay_get_block(r, step, is_moved ? &moved : NULL, block));
    if (step->kind != NT_PROGRAM_MALLOC) {
        return *block == NT_NONE ? NT_OK : replay_go_beyond(r, step, *block);
    }
    r->slots[step->slot] = *block;
    if (*block == NT_NONE) {
        replay_fail(r, step->event);
    }
    return NT_OK;
}

/* When the block that a step frees is complete. */
static nt_replay_timing
replay_timing(const replay *r, const nt_program_step *step)
{
    if (r->options.timing != NT_TIMING_MIXED) {
        return r->options.timing;
    }
    const uint64_t draw = nt_mix64(r->options.seed ^ ((uint64_t)step->event << 32));
    return (nt_replay_timing)(draw % NT_TIMING_MIXED);
}

static nt_status
replay_free(replay *r, const nt_program_step *step)
{
    const nt_replay_timing timing = replay_timing(r, step);
    const uint32_t block = r->slots[step->slot];
    if (block == NT_NONE) {
        return NT_OK;
    }
    const bool is_later = step->kind == NT_PROGRAM_FREE_LATER;
    if (r->record != NULL) {
        replay_record_free(r, step, block);
    }
    if (is_later && timing != NT_TIMING_EARLY) {
        nt_allocator_give_later(r->model, block);
        if (timing == NT_TIMING_LATE) {
            r->slots[step->slot] = NT_NONE;
        }
        return NT_OK;
    }
    r->slots[step->slot] = NT_NONE;
    return step->kind == NT_PROGRAM_COMPLETE
               ? nt_allocator_complete(r->model, block, r->err)
               : nt_allocator_give(r->model, block, r->err);
}

static nt_status
replay_step(replay *r, const nt_program_step *step)
{
    uint32_t block = NT_NONE;
    switch (step->kind) {
    case NT_PROGRAM_MALLOC:
    case NT_PROGRAM_OOM: NT_TRY(replay_malloc(r, step, &block)); break;
    case NT_PROGRAM_EMPTY_CACHE:
        NT_TRY(nt_allocator_empty_cache(r->model, r->err));
        break;
    case NT_PROGRAM_RELEASE_POOL:
        nt_allocator_release_pool(r->model, step->lane, true);
        return NT_OK;
    case NT_PROGRAM_EMPTY_POOL:
        NT_TRY(nt_allocator_empty_pool(r->model, step->lane, r->err));
        break;
    default: NT_TRY(replay_free(r, step)); break;
    }
    if (r->check != NULL) {
        replay_compare_step(r, step, block);
    }
    return NT_OK;
}

/* Writes `value` for events first .. end - 1. */
static void
replay_write_count(uint32_t *counts, uint64_t value, size_t first, size_t end)
{
    for (size_t i = first; counts != NULL && i < end; i++) {
        counts[i] = (uint32_t)value;
    }
}

/* Writes what is now as the values after events *next .. end - 1. */
static void
replay_write(const replay *r, const nt_replay_series *series, size_t *next, size_t end)
{
    const nt_allocator_stats *stats = nt_allocator_get_stats(r->model);
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        uint64_t *bytes = series->bytes[metric];
        for (size_t i = *next; bytes != NULL && i < end; i++) {
            bytes[i] = stats->bytes[metric];
        }
    }
    replay_write_count(series->segments, stats->segments, *next, end);
    replay_write_count(series->device_allocs, stats->device_allocs + r->start_allocs,
                       *next, end);
    replay_write_count(series->device_frees, stats->device_frees, *next, end);
    replay_write_count(series->ooms, stats->ooms, *next, end);
    *next = end > *next ? end : *next;
}

/* Whether the program would not have gone on as it did when it was recorded. */
static bool
replay_is_over(const replay *r)
{
    return r->figures.is_stopped || (r->figures.is_beyond && !r->options.goes_on);
}

static nt_status
replay_go(replay *r, const nt_progress *progress, const nt_replay_series *series)
{
    const nt_program *program = r->program;
    const size_t count = nt_timeline_event_count(program->timeline);
    size_t next = 0;
    r->figures.failed_event = NT_EVENT_NEVER;
    for (size_t i = 0; i < program->step_count && !replay_is_over(r); i++) {
        const nt_program_step *step = &program->steps[i];
        const size_t event = (size_t)step->event;
        if (series != NULL) {
            replay_write(r, series, &next, event < count ? event : count);
        }
        if (r->record != NULL) {
            r->record->event = (size_t)step->event;
        }
        NT_TRY(replay_step(r, step));
        NT_TRY(replay_pass_silence(r, i));
        if (series != NULL && step->kind == NT_PROGRAM_FREE && event <= count &&
            series->bytes[NT_METRIC_ALLOCATED] != NULL) {
            /* It is not allocated any more from the event before on. */
            series->bytes[NT_METRIC_ALLOCATED][event - 1] =
                nt_allocator_get_stats(r->model)->bytes[NT_METRIC_ALLOCATED];
        }
        if (progress != NULL && i % REPLAY_TICK == 0 &&
            progress->report(progress->ctx, i) != 0) {
            return nt_fail(r->err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
        }
    }
    if (series != NULL) {
        replay_write(r, series, &next, count);
    }
    return NT_OK;
}

static nt_replay_reach
replay_find_reach(const replay *r)
{
    const nt_replay_options *o = &r->options;
    const nt_allocator_stats *stats = nt_allocator_get_stats(r->model);
    nt_replay_reach reach = {
        .limit = stats->limit,
        .room = stats->room,
        .reserve = stats->reserve,
        .any_order = !stats->has_order && o->timing != NT_TIMING_MIXED &&
                     (o->silence.share == 0 || o->silence.share == UINT32_MAX),
    };
    if (o->order == NT_ORDER_RANDOM && stats->has_order) {
        /* Places are drawn among as many as there are of their size, a power of two. */
        const uint64_t place = UINT64_C(1) << r->places.shift, low = place / 2;
        const uint64_t least = low + low / 8 + 2;
        const uint64_t most = place - nt_page_size(&o->settings, false);
        reach.reserve.least = least > reach.reserve.least ? least : reach.reserve.least;
        reach.reserve.most = most < reach.reserve.most ? most : reach.reserve.most;
    }
    for (size_t i = 0; i < r->program->area_count; i++) {
        if (r->program->areas[i].is_expandable) {
            /* Reservations of the trace were as large as its device. */
            reach.reserve = (nt_allocator_span){.least = UINT64_MAX};
        }
    }
    return reach;
}

static void
replay_sum_up(replay *r)
{
    const nt_allocator_stats *stats = nt_allocator_get_stats(r->model);
    nt_replay_figures *f = &r->figures;
    memcpy(f->peak, stats->peak, sizeof f->peak);
    memcpy(f->final, stats->bytes, sizeof f->final);
    f->segments = stats->segments;
    f->device_allocs = stats->device_allocs + r->start_allocs;
    f->device_frees = stats->device_frees;
    f->ooms = stats->ooms;
    f->retries = stats->retries;
    f->waits = stats->waits;
    f->reach = replay_find_reach(r);
}

static nt_status
replay_all(replay *r, const nt_progress *progress, const nt_replay_series *series)
{
    NT_TRY(replay_open_silence(r));
    NT_TRY(replay_make_model(r));
    NT_TRY(replay_add_lanes(r->program, r->model, r->err));
    NT_TRY(replay_make_slots(r));
    NT_TRY(replay_start(r));
    if (r->record != NULL) {
        r->record->is_begun = true;
    }
    NT_TRY(replay_go(r, progress, series));
    if (r->places.is_short) {
        return nt_fail_nomem(r->err);
    }
    NT_ASSERT(nt_allocator_check(r->model) == NULL);
    replay_sum_up(r);
    if (r->record != NULL) {
        NT_TRY(replay_record_end(r));
    }
    if (r->quiet != NULL) {
        NT_TRY(replay_mark_restored(r));
    }
    return r->check != NULL ? replay_compare_end(r) : NT_OK;
}

static void
replay_clear(replay *r)
{
    const nt_program *program = r->program;
    nt_allocator_free(r->model);
    if (r->check == NULL) {
        replay_close_places(r);
    } else {
        nt_ordered_clear(&r->check->taken, &r->alloc);
    }
    replay_close_silence(r);
    NT_RELEASE(&r->alloc, r->slots, program->slot_count);
}

/* Runs a program, with a check or a record if there are any; `r` holds what it needs.
 */
static nt_status
replay_whole(replay *r, const nt_progress *progress, const nt_replay_series *series)
{
    const nt_status status = replay_all(r, progress, series);
    replay_clear(r);
    return status;
}

nt_status
nt_replay_trace(const nt_alloc *alloc, const nt_program *program,
                const nt_replay_options *options, const nt_progress *progress,
                nt_snapshot **out, nt_error *err)
{
    replay_record record = {.status = NT_OK};
    replay r = {
        .alloc = *alloc,
        .program = program,
        .options = *options,
        .record = &record,
        .err = err,
    };
    r.places.alloc = *alloc;
    nt_map_init(&record.stacks, *alloc);
    NT_TRY(nt_snapshot_new(alloc, &record.snapshot, err));
    nt_status status = record_begin(&r);
    if (status == NT_OK) {
        status = replay_whole(&r, progress, NULL);
    }
    if (status == NT_OK) {
        nt_snapshot_set_keys(record.snapshot, record_keys(program));
        status = nt_snapshot_seal(record.snapshot, err);
    }
    nt_map_clear(&record.stacks);
    if (status != NT_OK) {
        nt_snapshot_free(record.snapshot);
        return status;
    }
    *out = record.snapshot;
    return NT_OK;
}

nt_replay_options
nt_replay_default(const nt_program *program)
{
    nt_replay_options options = {
        .settings = *nt_snapshot_settings(nt_timeline_snapshot(program->timeline)),
    };
    const nt_program_bounds *bounds = &program->bounds;
    bool is_full = false;
    if (bounds->high != NT_UNLIMITED) {
        /* The largest that fits the trace: every request that went through does. */
        if (bounds->is_device) {
            is_full = true;
        } else {
            options.limit = bounds->high;
        }
    }
    if (program->reservation != 0 && options.device_total == 0) {
        /* Reservations have an eighth more than the device, and up to a page. */
        options.device_total = program->reservation / 9 * 8;
        const uint64_t page = options.settings.large_segment_size;
        options.device_total -= page < options.device_total ? page : 0;
    }
    if (is_full) {
        /* The device had no more for this process; how large it is does not matter. */
        if (options.device_total < bounds->high) {
            options.device_total = replay_device(bounds->high);
        }
        options.device_other = options.device_total - bounds->high;
    }
    return options;
}

nt_status
nt_replay_run(const nt_alloc *alloc, const nt_program *program,
              const nt_replay_options *options, const nt_progress *progress,
              const nt_replay_series *series, nt_replay_figures *out, nt_error *err)
{
    replay r = {.alloc = *alloc, .program = program, .options = *options, .err = err};
    r.places.alloc = *alloc;
    NT_TRY(replay_whole(&r, progress, series));
    *out = r.figures;
    return NT_OK;
}

/* Runs the program with the addresses of the trace, and looks for silence if r->quiet
 * is not NULL. `marks` says which requests are known to put blocks back; or NULL. */
static nt_status
replay_compare(replay *r, replay_check *check, const uint8_t *marks,
               const nt_progress *progress)
{
    const nt_timeline *timeline = r->program->timeline;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    *check = (replay_check){
        .alloc = r->alloc,
        .program = r->program,
        .events = nt_snapshot_events(snapshot),
        .marks = marks,
        .fidelity = {.is_same = true, .first_event = NT_EVENT_NEVER},
    };
    r->check = check;
    r->options.timing = NT_TIMING_RECORDED;
    r->options.begin = NT_BEGIN_AUTO;
    r->options.silence = (nt_replay_silence){.share = 0};
    r->options.goes_on = true;
    if (nt_timeline_event_count(timeline) != 0) {
        nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(timeline), &check->first,
                          &check->count);
    }
    return replay_whole(r, progress, NULL);
}

static bool
replay_is_exact(const replay_check *check)
{
    return check->fidelity.is_same && check->fidelity.is_end_same;
}

/* Finds silence in one run; *restores tells whether requests put blocks back which that
 * run, as it was not told of them, may have taken for others. */
static nt_status
replay_listen_once(const replay *from, const uint8_t *known,
                   const nt_progress *progress, uint8_t *marks, int32_t *drops,
                   bool *restores)
{
    const size_t count = nt_timeline_event_count(from->program->timeline);
    replay_check check;
    replay_quiet quiet = {.marks = marks, .drops = drops};
    replay r = *from;
    r.options = nt_replay_default(r.program);
    r.quiet = &quiet;
    *restores = false;
    if (count != 0) {
        memset(marks, 0, count);
    }
    for (size_t i = 0; i < r.program->pool_count; i++) {
        drops[i] = NT_EVENT_NEVER;
    }
    NT_TRY(replay_compare(&r, &check, known, progress));
    for (size_t i = 0; i < count && !replay_is_exact(&check) && !*restores; i++) {
        *restores = (marks[i] & NT_MARK_RESTORED) != 0;
    }
    return NT_OK;
}

nt_status
nt_replay_find_silence(const nt_alloc *alloc, const nt_program *program,
                       const nt_progress *progress, uint8_t *marks, int32_t *drops,
                       nt_error *err)
{
    const size_t count = nt_timeline_event_count(program->timeline);
    const replay r = {.alloc = *alloc, .program = program, .err = err};
    bool restores;
    NT_TRY(replay_listen_once(&r, NULL, progress, marks, drops, &restores));
    if (!restores) {
        return NT_OK;
    }
    uint8_t *known;
    NT_TRY(nt_take(alloc, (void **)&known, count, err));
    memcpy(known, marks, count);
    const nt_status status =
        replay_listen_once(&r, known, progress, marks, drops, &restores);
    nt_release(alloc, known, count);
    return status;
}

/* The same comparison once more, for a program with pools of its own: this time it is
 * known which requests put blocks back. */
static nt_status
replay_compare_again(replay *r, replay_check *check, const nt_progress *progress)
{
    const nt_program *program = r->program;
    const size_t count = nt_timeline_event_count(program->timeline);
    const size_t drop_bytes = program->pool_count * sizeof(int32_t);
    uint8_t *marks = nt_allocate(&r->alloc, count);
    int32_t *drops = nt_allocate(&r->alloc, drop_bytes);
    nt_status status = NT_OK;
    if ((marks == NULL && count != 0) || drops == NULL) {
        status = nt_fail_nomem(r->err);
        goto done;
    }
    NT_TRY_DONE(
        nt_replay_find_silence(&r->alloc, program, progress, marks, drops, r->err));
    NT_TRY_DONE(replay_compare(r, check, marks, progress));
    check->marks = NULL;
done:
    nt_release(&r->alloc, marks, count);
    nt_release(&r->alloc, drops, drop_bytes);
    return status;
}

nt_status
nt_replay_check(const nt_alloc *alloc, const nt_program *program,
                const nt_replay_options *options, const nt_progress *progress,
                nt_replay_fidelity *out, nt_replay_figures *figures, nt_error *err)
{
    replay_check check;
    replay r = {.alloc = *alloc, .program = program, .options = *options, .err = err};
    NT_TRY(replay_compare(&r, &check, NULL, progress));
    if (!replay_is_exact(&check) && program->pool_count > 1) {
        r = (replay){
            .alloc = *alloc, .program = program, .options = *options, .err = err};
        NT_TRY(replay_compare_again(&r, &check, progress));
    }
    *out = check.fidelity;
    if (figures != NULL) {
        *figures = r.figures;
    }
    return NT_OK;
}
