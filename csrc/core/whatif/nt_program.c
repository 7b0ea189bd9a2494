/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program.h"

#include "whatif/nt_program_state.h"
#include "trace/nt_rounding.h"

#define PROGRAM_DEFAULT_POOL ((nt_pool_id){0, 0})

const nt_settings *
nt_program_settings(const program_maker *m)
{
    return nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
}

static nt_status
program_find_pool(program_maker *m, nt_pool_id pool, uint32_t *out)
{
    program *p = m->p;
    uint32_t id;
    NT_TRY(nt_strings_intern(m->pool_names, &pool, sizeof pool, &id, m->err));
    if (id == p->face.pool_count) {
        NT_TRY(nt_grow(&p->alloc, (void **)&p->pools, &p->pool_capacity, (size_t)id + 1,
                       sizeof *p->pools, m->err));
        p->pools[p->face.pool_count++] = pool;
    }
    *out = id;
    return NT_OK;
}

nt_status
nt_program_find_lane(program_maker *m, nt_pool_id pool, uint64_t stream, uint32_t *out)
{
    program *p = m->p;
    const uint64_t name[3] = {pool.first, pool.second, stream};
    uint32_t id;
    NT_TRY(nt_strings_intern(m->lane_names, name, sizeof name, &id, m->err));
    if (id == p->face.lane_count) {
        nt_program_lane lane = {.stream = stream};
        NT_TRY(program_find_pool(m, pool, &lane.pool));
        NT_TRY(nt_grow(&p->alloc, (void **)&p->lanes, &p->lane_capacity, (size_t)id + 1,
                       sizeof *p->lanes, m->err));
        p->lanes[p->face.lane_count++] = lane;
    }
    *out = id;
    return NT_OK;
}

nt_status
nt_program_take_slot(program_maker *m, uint32_t row, uint32_t *out)
{
    if (m->idle_count > 0) {
        *out = m->idle_slots[--m->idle_count];
    } else {
        if (m->p->face.slot_count >= PROGRAM_LATER) {
            return nt_fail(m->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^31 blocks");
        }
        *out = m->p->face.slot_count++;
        /* Room for giving it back later, which then can't fail. */
        NT_TRY(nt_grow(&m->p->alloc, (void **)&m->idle_slots, &m->idle_capacity,
                       m->p->face.slot_count, sizeof *m->idle_slots, m->err));
    }
    m->slots[row] = *out;
    return NT_OK;
}

static nt_status
program_add_step(program_maker *m, const nt_program_step *step)
{
    program *p = m->p;
    NT_TRY(nt_grow(&p->alloc, (void **)&p->steps, &p->step_capacity,
                   p->face.step_count + 1, sizeof *p->steps, m->err));
    p->steps[p->face.step_count++] = *step;
    return NT_OK;
}

/* The segments that are there after event `i`. */
static nt_status
program_follow_segments(program_maker *m, int32_t i)
{
    const nt_segment_life_columns *lives = nt_timeline_segments(m->timeline);
    const nt_alloc *alloc = &m->p->alloc;
    while (m->next_begin < m->life_count &&
           (int64_t)m->begins[m->next_begin].key - 1 <= i) {
        const uint32_t row = m->begins[m->next_begin++].value;
        NT_TRY(nt_ordered_add(&m->segments, alloc,
                              (nt_ordered_entry){lives->address[row], row, row},
                              m->err));
    }
    while (m->next_end < m->life_count && (int64_t)m->ends[m->next_end].key <= i) {
        const uint32_t row = m->ends[m->next_end++].value;
        (void)nt_ordered_remove(&m->segments, alloc, lives->address[row], row);
    }
    return NT_OK;
}

/* The pool of the memory at `address`, by event `i`. */
static nt_pool_id
program_pool_at(const program_maker *m, size_t i, uint64_t address)
{
    const nt_segment_life_columns *lives = nt_timeline_segments(m->timeline);
    if (m->events->pool_first != NULL) {
        return (nt_pool_id){m->events->pool_first[m->first + i],
                            m->events->pool_second[m->first + i]};
    }
    if (!m->has_private_pools) {
        return PROGRAM_DEFAULT_POOL;
    }
    const nt_ordered_entry entry = nt_ordered_before(&m->segments, address, UINT64_MAX);
    if (entry.value == NT_NONE ||
        address - lives->address[entry.value] >= lives->size[entry.value]) {
        return PROGRAM_DEFAULT_POOL;
    }
    return (nt_pool_id){lives->pool_first[entry.value],
                        lives->pool_second[entry.value]};
}

static nt_status
program_add_malloc(program_maker *m, size_t i)
{
    const size_t at = m->first + i;
    nt_program_step step = {
        .size = m->events->size[at],
        .event = (int32_t)i,
        .kind = NT_PROGRAM_MALLOC,
    };
    if (m->rows[i] == NT_NONE || step.size == 0 || step.size > NT_LARGEST_REQUEST) {
        return NT_OK;
    }
    NT_TRY(nt_program_find_lane(m, program_pool_at(m, i, m->events->addr[at]),
                                m->events->stream[at], &step.lane));
    m->last_lane = step.lane;
    NT_TRY(nt_program_take_slot(m, m->rows[i], &step.slot));
    return program_add_step(m, &step);
}

/* The pool of the request that failed with event `i`. Where events do not say it, it is
 * that of the request before, if that was of the same stream: a captured graph has its
 * own, or a pool that is in use; but only the default pool's requests release memory.
 */
static nt_pool_id
program_pool_of_oom(const program_maker *m, size_t i)
{
    const program *p = m->p;
    if (m->events->pool_first != NULL) {
        return program_pool_at(m, i, 0);
    }
    const bool is_known =
        m->has_private_pools && m->reserved_then == 0 &&
        m->last_lane < p->face.lane_count &&
        p->lanes[m->last_lane].stream == m->events->stream[m->first + i];
    return is_known ? p->pools[p->lanes[m->last_lane].pool] : PROGRAM_DEFAULT_POOL;
}

static nt_status
program_add_oom(program_maker *m, size_t i)
{
    const size_t at = m->first + i;
    nt_program_step step = {
        .size = m->events->size[at],
        .slot = NT_NONE,
        .event = (int32_t)i,
        .kind = NT_PROGRAM_OOM,
    };
    if (step.size == 0 || step.size > NT_LARGEST_REQUEST) {
        return NT_OK;
    }
    m->p->face.has_rough_sizes |=
        step.size - nt_program_least_request(&m->p->face, step.size) >=
        NT_MIN_BLOCK_SIZE;
    const uint64_t free_then =
        m->events->device_free != NULL ? m->events->device_free[at] : NT_UNLIMITED;
    /* In a private pool nobody tries again after a release that was not enough. */
    const bool is_first = m->has_private_pools && m->reserved_then > m->reserved &&
                          nt_program_settings(m)->max_split_size != NT_UNLIMITED;
    nt_program_note_failure(m, is_first ? m->reserved_then : m->reserved,
                            nt_segment_size(nt_program_settings(m), step.size),
                            free_then);
    NT_TRY(nt_program_find_lane(m, program_pool_of_oom(m, i), m->events->stream[at],
                                &step.lane));
    m->reserved_then = 0;
    return program_add_step(m, &step);
}

static nt_status
program_free_later(program_maker *m, size_t i, uint32_t row)
{
    const nt_program_step step = {
        .slot = m->slots[row],
        .event = (int32_t)i,
        .kind = NT_PROGRAM_FREE_LATER,
    };
    m->slots[row] |= PROGRAM_LATER;
    m->pending++;
    m->p->face.has_later = true;
    return program_add_step(m, &step);
}

/* A free_requested, a free_completed, or with NT_PROGRAM_FREE both, of allocation
 * `row`. Where one of them was lost, or comes twice, the block is freed all the same,
 * and once. */
static nt_status
program_add_free(program_maker *m, size_t i, uint32_t row, nt_program_kind kind)
{
    if (row == NT_NONE || m->slots[row] == NT_NONE) {
        return NT_OK;
    }
    const bool is_later = (m->slots[row] & PROGRAM_LATER) != 0;
    if (kind != NT_PROGRAM_FREE && !is_later) {
        NT_TRY(program_free_later(m, i, row));
    }
    if (kind == NT_PROGRAM_FREE_LATER) {
        return NT_OK;
    }
    const nt_program_step step = {
        .slot = m->slots[row] & ~PROGRAM_LATER,
        .event = (int32_t)i + (kind == NT_PROGRAM_FREE),
        .kind = is_later ? NT_PROGRAM_COMPLETE : (uint8_t)kind,
    };
    m->slots[row] = NT_NONE;
    m->pending -= is_later;
    m->idle_slots[m->idle_count++] = step.slot;
    return program_add_step(m, &step);
}

static nt_status
program_add_completion(program_maker *m, size_t i)
{
    bool deferred;
    NT_TRY(nt_program_defer(m, i, &deferred));
    return deferred ? NT_OK : program_add_free(m, i, m->rows[i], NT_PROGRAM_COMPLETE);
}

/* What a request completed when it waited for all streams, after event `i`. */
static nt_status
program_add_late(program_maker *m, size_t i)
{
    for (size_t k = 0; k < m->late_count; k++) {
        NT_TRY(program_add_free(m, i, m->rows[m->late[k]], NT_PROGRAM_COMPLETE));
    }
    m->late_count = 0;
    return NT_OK;
}

/* What a run of releases says of private pools: one whose memory goes back is not used
 * any more. *only is the pool where all the memory is of one, else NT_NONE. */
static nt_status
program_release_pools(program_maker *m, size_t first, size_t end, uint32_t *only)
{
    uint32_t last = 0;
    *only = NT_NONE;
    for (size_t i = first; i < end; i++) {
        const nt_pool_id id = program_pool_at(m, i, m->events->addr[m->first + i]);
        uint32_t pool;
        NT_TRY(program_find_pool(m, id, &pool));
        *only = i == first || *only == pool ? pool : NT_NONE;
        if (pool != 0 && pool != last) {
            const nt_program_step step = {
                .slot = NT_NONE,
                .lane = pool,
                .event = (int32_t)first,
                .kind = NT_PROGRAM_RELEASE_POOL,
            };
            NT_TRY(program_add_step(m, &step));
            last = pool;
        }
    }
    return NT_OK;
}

static bool
program_is_default(nt_pool_id pool)
{
    return pool.first == 0 && pool.second == 0;
}

/* A run of releases that begins with event `i`; *end is the event behind it. One call
 * of the allocator has one stack. A request in a private pool releases memory of that
 * pool only, which is in use. */
static nt_status
program_add_releases(program_maker *m, size_t i, size_t *end)
{
    const uint8_t *action = m->events->action + m->first;
    const uint64_t *size = m->events->size + m->first;
    const uint32_t stack = m->events->stack[m->first + i];
    size_t last = i;
    while (last < m->count && m->events->stack[m->first + last] == stack &&
           (action[last] == NT_ACTION_SEGMENT_FREE ||
            action[last] == NT_ACTION_SEGMENT_UNMAP)) {
        last++;
    }
    *end = last;
    uint32_t pool = NT_NONE;
    const bool is_call = nt_program_is_call(m, i, last);
    if (is_call || last == m->count ||
        program_is_default(
            program_pool_at(m, last, m->events->addr[m->first + last]))) {
        NT_TRY(program_release_pools(m, i, last, &pool));
    }
    if (!is_call && last < m->count &&
        (action[last] == NT_ACTION_SEGMENT_ALLOC ||
         action[last] == NT_ACTION_SEGMENT_MAP || action[last] == NT_ACTION_ALLOC)) {
        nt_program_note_shortage(m, i, last);
    }
    m->reserved_then =
        !is_call && last < m->count && action[last] == NT_ACTION_OOM ? m->reserved : 0;
    for (size_t k = i; k < last; k++) {
        m->reserved -= size[k] < m->reserved ? size[k] : m->reserved;
    }
    if (!is_call) {
        return NT_OK;
    }
    nt_program_step step = {
        .slot = NT_NONE,
        .event = (int32_t)(last - 1),
        .kind = NT_PROGRAM_EMPTY_CACHE,
    };
    if (pool != 0 && pool != NT_NONE && nt_program_is_quiet(m, i) &&
        !m->noted_released) {
        step.kind = NT_PROGRAM_EMPTY_POOL;
        step.lane = pool;
    }
    return program_add_step(m, &step);
}

static nt_status
program_add_segment(program_maker *m, size_t i)
{
    program *p = m->p;
    const nt_program_place place = {m->events->addr[m->first + i],
                                    m->events->size[m->first + i]};
    const bool is_map = m->events->action[m->first + i] == NT_ACTION_SEGMENT_MAP;
    m->reserved += place.size;
    nt_program_note_growth(m, is_map);
    if (is_map) {
        return NT_OK;
    }
    NT_TRY(nt_grow(&p->alloc, (void **)&p->places, &p->place_capacity,
                   p->face.place_count + 1, sizeof *p->places, m->err));
    p->places[p->face.place_count++] = place;
    return NT_OK;
}

static nt_status
program_add_event(program_maker *m, size_t i, size_t *next)
{
    *next = i + 1;
    switch (m->events->action[m->first + i]) {
    case NT_ACTION_ALLOC: return program_add_malloc(m, i);
    case NT_ACTION_OOM: return program_add_oom(m, i);
    case NT_ACTION_FREE_REQUESTED:
        if (nt_program_completes_next(m, i)) {
            *next = i + 2;
            return program_add_free(m, i, m->rows[i], NT_PROGRAM_FREE);
        }
        return program_add_free(m, i, m->rows[i], NT_PROGRAM_FREE_LATER);
    case NT_ACTION_FREE_COMPLETED: return program_add_completion(m, i);
    case NT_ACTION_SEGMENT_FREE:
    case NT_ACTION_SEGMENT_UNMAP: return program_add_releases(m, i, next);
    case NT_ACTION_SEGMENT_ALLOC:
    case NT_ACTION_SEGMENT_MAP: return program_add_segment(m, i);
    default: return NT_OK;
    }
}

/* A noted call before event `i` that released nothing. */
static nt_status
program_add_noted(program_maker *m, size_t i)
{
    bool is_silent;
    nt_program_pass_noted(m, i, &is_silent);
    const nt_program_step step = {
        .slot = NT_NONE,
        .event = (int32_t)i - 1,
        .kind = NT_PROGRAM_EMPTY_CACHE,
    };
    return is_silent ? program_add_step(m, &step) : NT_OK;
}

/* Room for all steps at once: what grows needs its old and its new place at a time. The
 * few steps that are no event's own are not counted. */
static nt_status
program_reserve_steps(program_maker *m)
{
    program *p = m->p;
    size_t steps = 0;
    for (size_t i = 0; i < m->count; i++) {
        const uint8_t action = m->events->action[m->first + i];
        steps += action == NT_ACTION_ALLOC || action == NT_ACTION_OOM ||
                 action == NT_ACTION_FREE_REQUESTED ||
                 action == NT_ACTION_FREE_COMPLETED || action == NT_ACTION_SEGMENT_FREE;
        i += action == NT_ACTION_FREE_REQUESTED && nt_program_completes_next(m, i);
    }
    return nt_grow(&p->alloc, (void **)&p->steps, &p->step_capacity, steps,
                   sizeof *p->steps, m->err);
}

static nt_status
program_add_events(program_maker *m)
{
    NT_TRY(program_reserve_steps(m));
    for (size_t i = 0; i < m->count;) {
        size_t next;
        if (m->has_private_pools) {
            /* A segment that goes with this event is still to be found. */
            NT_TRY(program_follow_segments(m, (int32_t)i - 1));
        }
        if (m->late_count != 0 && nt_program_ends_wait(m, i)) {
            NT_TRY(program_add_late(m, i - 1));
        }
        NT_TRY(program_add_noted(m, i));
        NT_TRY(program_add_event(m, i, &next));
        const uint8_t action = m->events->action[m->first + i];
        if (action == NT_ACTION_ALLOC || action == NT_ACTION_OOM) {
            NT_TRY(program_add_late(m, i));
        }
        i = next;
    }
    NT_TRY(program_add_late(m, m->count - 1));
    return program_add_noted(m, m->count);
}

/* Prepares to know at every event which segments are there. */
static nt_status
program_sort_segments(program_maker *m)
{
    const nt_segment_life_columns *lives = nt_timeline_segments(m->timeline);
    const nt_alloc *alloc = &m->p->alloc;
    for (size_t i = 0; i < lives->count && !m->has_private_pools; i++) {
        m->has_private_pools = lives->pool_first[i] != 0 || lives->pool_second[i] != 0;
    }
    size_t bytes;
    if (!m->has_private_pools ||
        !nt_size_mul(lives->count, sizeof(nt_sort_item), &bytes)) {
        return NT_OK;
    }
    m->begins = nt_allocate(alloc, bytes);
    m->ends = nt_allocate(alloc, bytes);
    m->life_count = lives->count;
    if (m->begins == NULL || m->ends == NULL) {
        return nt_fail_nomem(m->err);
    }
    for (uint32_t i = 0; i < lives->count; i++) {
        const int32_t freed = lives->free_event[i];
        m->begins[i] =
            (nt_sort_item){(uint64_t)((int64_t)lives->alloc_event[i] + 1), i};
        m->ends[i] =
            (nt_sort_item){freed == NT_EVENT_NEVER ? INT64_MAX : (uint64_t)freed, i};
    }
    nt_sort(m->begins, m->life_count);
    nt_sort(m->ends, m->life_count);
    return NT_OK;
}

static nt_status
program_make(program_maker *m)
{
    const size_t rows = nt_timeline_allocations(m->timeline)->count;
    size_t bytes;
    uint32_t pool;
    NT_TRY(nt_strings_new(&m->p->alloc, &m->lane_names, m->err));
    NT_TRY(nt_strings_new(&m->p->alloc, &m->pool_names, m->err));
    NT_TRY(program_find_pool(m, PROGRAM_DEFAULT_POOL, &pool));
    m->slots = nt_size_mul(rows, sizeof *m->slots, &bytes)
                   ? nt_allocate(&m->p->alloc, bytes)
                   : NULL;
    if (m->slots == NULL && rows != 0) {
        return nt_fail_nomem(m->err);
    }
    m->slot_rows = rows;
    for (size_t i = 0; i < rows; i++) {
        m->slots[i] = NT_NONE;
    }
    NT_TRY(program_sort_segments(m));
    NT_TRY(nt_program_find_calls(m));
    NT_TRY(nt_program_find_start(m));
    NT_TRY(nt_program_find_reservation(m));
    m->reserved = nt_timeline_facts(m->timeline)->start_bytes[NT_METRIC_RESERVED];
    m->p->face.bounds = (nt_program_bounds){.low = m->reserved, .high = NT_UNLIMITED};
    return program_add_events(m);
}

/* The columns have their final place now. */
static void
program_show(program *p)
{
    p->face.steps = p->steps;
    p->face.lanes = p->lanes;
    p->face.pools = p->pools;
    p->face.areas = p->areas;
    p->face.pieces = p->pieces;
    p->face.places = p->places;
}

static void
program_clear_maker(program_maker *m)
{
    const nt_alloc *alloc = &m->p->alloc;
    nt_strings_free(m->lane_names);
    nt_strings_free(m->pool_names);
    nt_ordered_clear(&m->segments, alloc);
    nt_release(alloc, m->slots, m->slot_rows * sizeof *m->slots);
    nt_release(alloc, m->idle_slots, m->idle_capacity * sizeof *m->idle_slots);
    nt_release(alloc, m->late, m->late_capacity * sizeof *m->late);
    nt_release(alloc, m->begins, m->life_count * sizeof *m->begins);
    nt_release(alloc, m->ends, m->life_count * sizeof *m->ends);
    nt_release(alloc, m->is_users, m->stack_count);
}

uint64_t
nt_program_least_request(const nt_program *program, uint64_t rounded)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(program->timeline));
    uint64_t low = 1, high = rounded;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (nt_round_size(settings, middle) >= rounded) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

nt_status
nt_program_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_program **out,
               nt_error *err)
{
    program *p = nt_allocate(alloc, sizeof *p);
    if (p == NULL) {
        return nt_fail_nomem(err);
    }
    *p = (program){.alloc = *alloc};
    p->face.timeline = timeline;
    p->face.calls_known = true;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    program_maker m = {
        .p = p,
        .timeline = timeline,
        .events = nt_snapshot_events(snapshot),
        .count = nt_timeline_event_count(timeline),
        .rows = nt_timeline_event_allocations(timeline),
        .last_lane = NT_NONE,
        .err = err,
    };
    const int32_t device = nt_timeline_device(timeline);
    if (m.count != 0) {
        nt_snapshot_trace(snapshot, (size_t)device, &m.first, &m.count);
    }
    const nt_status status = program_make(&m);
    program_clear_maker(&m);
    if (status != NT_OK) {
        nt_program_free(&p->face);
        return status;
    }
    program_show(p);
    *out = &p->face;
    return NT_OK;
}

void
nt_program_free(nt_program *face)
{
    if (face == NULL) {
        return;
    }
    program *p = (program *)face;
    const nt_alloc alloc = p->alloc;
    nt_release(&alloc, p->steps, p->step_capacity * sizeof *p->steps);
    nt_release(&alloc, p->lanes, p->lane_capacity * sizeof *p->lanes);
    nt_release(&alloc, p->pools, p->pool_capacity * sizeof *p->pools);
    nt_release(&alloc, p->areas, p->area_capacity * sizeof *p->areas);
    nt_release(&alloc, p->pieces, p->piece_capacity * sizeof *p->pieces);
    nt_release(&alloc, p->places, p->place_capacity * sizeof *p->places);
    nt_release(&alloc, p, sizeof *p);
}
