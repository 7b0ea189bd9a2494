/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses made up: the space is cut into places of equal size, each large enough for
 * any segment, and an order of addresses is an order in which places are handed out.
 */
#include "whatif/nt_replay_state.h"
#include "trace/nt_rounding.h"

/* Addresses are below 2^62. */
#define REPLAY_SPACE 62

/* So many of the places given back last are looked at for one to use again. */
#define REPLAY_GIVEN 64

enum { REPLAY_SMALL, REPLAY_LARGE };

static size_t
replay_kind(uint64_t size)
{
    return size <= NT_SMALL_BUFFER ? REPLAY_SMALL : REPLAY_LARGE;
}

/* The trace's places that were new when it took them, behind the start's areas. */
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
        status = nt_map_set(&seen[replay_kind(area->size)], area->address, 0, err);
    }
    for (size_t i = 0; i < p->program->place_count && status == NT_OK; i++) {
        const nt_program_place *place = &p->program->places[i];
        const size_t kind = replay_kind(place->size);
        if (nt_map_find(&seen[kind], place->address) != NT_NONE) {
            continue;
        }
        status = nt_map_set(&seen[kind], place->address, 0, err);
        p->order_of[kind][p->order_count[kind]++] = (uint32_t)*count;
        items[*count] = (nt_sort_item){place->address, (uint32_t)*count};
        (*count)++;
    }
    nt_map_clear(&seen[0]);
    nt_map_clear(&seen[1]);
    return status;
}

/* Finds out how the trace's places lie to each other. */
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
    p->order_of[0] = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    p->order_of[1] = nt_allocate(&p->alloc, p->rank_count * sizeof(uint32_t));
    nt_sort_item *items = nt_allocate(&p->alloc, bytes);
    if (p->ranks == NULL || p->order_of[0] == NULL || p->order_of[1] == NULL ||
        items == NULL) {
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

nt_status
nt_replay_open_places(replay *r, uint64_t largest)
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

void
nt_replay_close_places(replay *r)
{
    replay_places *p = &r->places;
    const size_t bytes = p->rank_count * sizeof(uint32_t);
    nt_release(&p->alloc, p->ranks, bytes);
    nt_map_clear(&p->used);
    for (size_t kind = 0; kind < 2; kind++) {
        nt_release(&p->alloc, p->order_of[kind], bytes);
        nt_release(&p->alloc, p->given[kind],
                   p->given_capacity[kind] * sizeof(replay_place));
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

/* The newest of the places given back that is large enough. */
static bool
replay_take_again(replay_places *p, uint64_t size, uint64_t *address)
{
    const size_t kind = replay_kind(size);
    replay_place *given = p->given[kind];
    const size_t count = p->given_count[kind];
    const size_t end = count > REPLAY_GIVEN ? count - REPLAY_GIVEN : 0;
    for (size_t i = count; i-- > end;) {
        if (given[i].size >= size) {
            *address = given[i].address;
            for (; i + 1 < count; i++) {
                given[i] = given[i + 1];
            }
            p->given_count[kind]--;
            return true;
        }
    }
    return false;
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
    } else if (replay_take_again(p, need->size, address)) {
        return NT_OK;
    } else if (p->order_next[kind] < p->order_count[kind]) {
        const uint32_t next = p->order_of[kind][p->order_next[kind]++];
        place = (p->count - p->program->area_count - p->program->place_count) / 2 +
                p->ranks[next];
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
    p->is_short |=
        nt_grow(&p->alloc, (void **)&p->given[kind], &p->given_capacity[kind],
                p->given_count[kind] + 1, sizeof(replay_place), NULL) != NT_OK;
    if (!p->is_short) {
        p->given[kind][p->given_count[kind]++] = (replay_place){address, size};
    }
}

nt_allocator_places
nt_replay_get_places(replay *r)
{
    return (nt_allocator_places){.take = replay_take, .give = replay_give, .ctx = r};
}

nt_status
nt_replay_start_place(replay *r, uint32_t i, uint64_t *address)
{
    replay_places *p = &r->places;
    uint64_t place;
    if (p->order == NT_ORDER_RANDOM) {
        NT_TRY(replay_draw(p, &place, r->err));
    } else {
        place = (p->count - p->program->area_count - p->program->place_count) / 2 +
                p->ranks[i];
    }
    *address = place << p->shift;
    return NT_OK;
}
