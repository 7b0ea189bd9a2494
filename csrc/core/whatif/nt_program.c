/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_program.h"

#include "base/nt_columns.h"
#include "base/nt_map.h"
#include "base/nt_ordered.h"
#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

/* Slots are below this: there are fewer than 2^31 events, and as many blocks. */
#define PROGRAM_LATER (UINT32_C(1) << 31)

/* The public struct first: the caller holds a pointer to it. */
typedef struct program {
    nt_program face;
    nt_alloc alloc;
    nt_program_step *steps;
    nt_program_lane *lanes;
    nt_pool_id *pools;
    nt_program_area *areas;
    nt_program_piece *pieces;
    nt_program_place *places;
    size_t step_capacity, lane_capacity, pool_capacity;
    size_t area_capacity, piece_capacity, place_capacity;
} program;

typedef struct program_maker {
    program *p;
    const nt_timeline *timeline;
    const nt_event_columns *events;
    size_t first, count;  /* rows of the device's events */
    const uint32_t *rows; /* allocation of each event */
    nt_error *err;
    nt_strings *lane_names, *pool_names; /* numbers of lanes and pools */
    uint32_t *slots; /* by allocation; NT_NONE while it has none, PROGRAM_LATER in
                      * it once it is freed and not complete */
    size_t slot_rows;
    uint32_t *idle_slots; /* a stack */
    size_t idle_count, idle_capacity;
    nt_ordered segments; /* (address, 0): segments there now, as rows of the lives */
    nt_sort_item *begins, *ends; /* event -> segment row */
    size_t life_count, next_begin, next_end;
    bool has_private_pools;
    uint8_t *is_users;       /* by stack: empty_cache is in it; may be NULL */
    const nt_setting *noted; /* calls that the recording noted */
    size_t noted_count, next_noted;
    bool noted_released; /* the next of them gave memory back, and is a step already */
    size_t stack_count;
    uint32_t last_lane; /* of the last request that went through; NT_NONE: none yet */
    uint32_t pending;   /* blocks that are freed and not complete */
    size_t wait_end;    /* behind the completions looked at last, and whether a */
    bool is_waiting;    /* request made them when it waited for all streams */
    size_t request;     /* that of all events of one call up to `request_end`, or */
    size_t request_end; /* m->count; of the call looked at last */
    uint32_t *late;     /* those: events */
    size_t late_count, late_capacity;
    bool has_refused;       /* PyTorch refused what the device had room for */
    uint64_t reserved;      /* bytes now */
    uint64_t reserved_then; /* before the releases of a request that then failed */
} program_maker;

/* What the memory that the process got, and did not get, says of its limit. */

static const nt_settings *
program_settings(const program_maker *m)
{
    return nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
}

/* What m->reserved, to which a segment or mapped pages have just been added, says of
 * the limit. */
static void
program_note_growth(program_maker *m, bool is_map)
{
    /* What is mapped was held against the limit before it was rounded up to pages. */
    const uint64_t page = is_map ? nt_page_size(program_settings(m), false) : 0;
    nt_program_bounds *bounds = &m->p->face.bounds;
    if (m->reserved > page && m->reserved - page > bounds->low) {
        bounds->low = m->reserved - page;
    }
}

/* An attempt to get `segment` bytes above `reserved` failed, while the device had
 * `device_free` bytes (NT_UNLIMITED: unknown): what the process may have is less. */
static void
program_note_failure(program_maker *m, uint64_t reserved, uint64_t segment,
                     uint64_t device_free)
{
    nt_program_bounds *bounds = &m->p->face.bounds;
    const bool is_device = device_free < segment;
    const uint64_t high = is_device ? reserved + device_free : reserved + segment - 1;
    if (high < bounds->high) {
        bounds->high = high;
    }
    if (device_free != NT_UNLIMITED) {
        /* Where the device had room even once, it is PyTorch that refuses. */
        m->has_refused |= !is_device;
        bounds->is_device = !m->has_refused;
    }
}

/* The segment that the allocator first asked for before it got memory with event `end`;
 * 0: not known. What is mapped does not tell: part of it was there. */
static uint64_t
program_attempt(const program_maker *m, size_t end)
{
    const uint8_t *action = m->events->action + m->first;
    const uint64_t *size = m->events->size + m->first;
    if (action[end] == NT_ACTION_SEGMENT_ALLOC) {
        return size[end];
    }
    while (end < m->count && action[end] == NT_ACTION_SEGMENT_MAP) {
        end++;
    }
    if (end == m->count || action[end] != NT_ACTION_ALLOC) {
        return 0;
    }
    const nt_settings *settings = program_settings(m);
    return nt_segment_size(settings, nt_round_size(settings, size[end]));
}

/* Releases of the allocator's own, events first .. end - 1, before the request that got
 * memory with event `end`: they answer a first attempt that failed, or collect garbage,
 * which never unmaps. */
static void
program_note_shortage(program_maker *m, size_t first, size_t end)
{
    const uint64_t *size = m->events->size + m->first;
    const double threshold = program_settings(m)->garbage_collection_threshold;
    const uint64_t attempt = program_attempt(m, end);
    if (attempt == 0) {
        return;
    }
    if (threshold <= 0 ||
        m->events->action[m->first + first] == NT_ACTION_SEGMENT_UNMAP) {
        program_note_failure(m, m->reserved, attempt, NT_UNLIMITED);
        return;
    }
    for (size_t i = first; i < end; i++) {
        if (size[i] <= NT_SMALL_BUFFER) {
            return;
        }
    }
    /* Garbage is collected only above the threshold. One that is met with any limit
     * says nothing; up to 2^63 a double can be made a whole number. */
    const double least = (double)m->reserved / threshold;
    if (least >= 0x1p63) {
        return;
    }
    uint64_t most = (uint64_t)least;
    while (most > 0 && (uint64_t)(threshold * (double)most) >= m->reserved) {
        most--;
    }
    nt_program_bounds *bounds = &m->p->face.bounds;
    /* Garbage is collected under a limit of PyTorch's only. */
    m->has_refused = true;
    bounds->is_device = false;
    if (most < bounds->high) {
        bounds->high = most;
    }
}

/* Whose releases those are: the user's, who called empty_cache(), or the allocator's,
 * which was short of memory. Only the user's belong to the program. A recording of ours
 * has noted each call; in others stacks and what follows tell, and a call that found
 * nothing to release leaves no trace. */

static nt_status
program_find_calls(program_maker *m)
{
    const int32_t device = nt_timeline_device(m->timeline);
    m->p->face.calls_noted =
        device >= 0 &&
        nt_snapshot_noted_calls(nt_timeline_snapshot(m->timeline), (size_t)device,
                                &m->noted, &m->noted_count);
    return nt_snapshot_mark_function(nt_timeline_snapshot(m->timeline), "empty_cache",
                                     &m->p->alloc, &m->is_users, &m->stack_count,
                                     m->err);
}

/* Whether a noted call comes before event `i`, behind all that was passed. */
static bool
program_has_noted(const program_maker *m, size_t i)
{
    return m->next_noted < m->noted_count &&
           m->noted[m->next_noted].integer < (int64_t)i;
}

/* Whether no call of empty_cache() does that. */
static bool
program_asks(uint8_t action)
{
    return action == NT_ACTION_ALLOC || action == NT_ACTION_FREE_REQUESTED ||
           action == NT_ACTION_OOM || action == NT_ACTION_SEGMENT_ALLOC ||
           action == NT_ACTION_SEGMENT_MAP;
}

/* Passes the noted calls before event `i`, unless what that event does may be theirs.
 * *is_silent: one of them left no trace, and is still to become a step. */
static void
program_pass_noted(program_maker *m, size_t i, bool *is_silent)
{
    *is_silent = false;
    if (!program_has_noted(m, i)) {
        return;
    }
    if (i < m->count && !program_asks(m->events->action[m->first + i])) {
        return;
    }
    *is_silent = !m->noted_released;
    m->noted_released = false;
    while (program_has_noted(m, i)) {
        m->next_noted++;
    }
}

/* Whether the allocator may release memory of its own accord, as far as the trace and
 * the settings tell. */
static bool
program_runs_short(const program_maker *m)
{
    const nt_settings *settings = program_settings(m);
    return settings->garbage_collection_threshold > 0 ||
           settings->max_split_size != NT_UNLIMITED ||
           nt_timeline_facts(m->timeline)->oom_count != 0;
}

/* Whether the stack of the event has empty_cache() in it. */
static bool
program_is_users(const program_maker *m, size_t i)
{
    const uint32_t stack = m->events->stack[m->first + i];
    return stack != NT_NO_STACK && stack < m->stack_count && m->is_users[stack];
}

/* Whether event `i` has a stack, and no empty_cache() in it: memory that goes back then
 * without need is that of a pool whose owner is gone. */
static bool
program_is_quiet(const program_maker *m, size_t i)
{
    return m->events->stack[m->first + i] != NT_NO_STACK && !program_is_users(m, i);
}

/* Whether the request of event `end`, which mapped nothing, may have unmapped what lies
 * before it: a free block that was too large to be used, and whose rest serves it
 * now. */
static bool
program_unmaps_first(const program_maker *m, size_t end)
{
    const size_t at = m->first + end;
    return end < m->count && m->events->action[at] == NT_ACTION_ALLOC &&
           m->events->action[at - 1] == NT_ACTION_SEGMENT_UNMAP &&
           m->events->stack[at] != NT_NO_STACK &&
           m->events->stack[at] == m->events->stack[at - 1] &&
           program_settings(m)->max_split_size != NT_UNLIMITED;
}

/* Whether the run of releases, events first .. end - 1, is a call of empty_cache(). */
static bool
program_is_call(program_maker *m, size_t first, size_t end)
{
    const uint32_t stack = m->events->stack[m->first + first];
    const uint8_t next =
        end < m->count ? m->events->action[m->first + end] : NT_ACTION_COUNT;
    if (program_has_noted(m, first)) {
        m->noted_released = true;
        return true;
    }
    if (program_is_users(m, first)) {
        return true;
    }
    if (next == NT_ACTION_FREE_COMPLETED && stack != NT_NO_STACK &&
        m->events->stack[m->first + end] == stack) {
        /* A request that released garbage, or what is oversize, and then waits. */
        return false;
    }
    if (program_unmaps_first(m, end)) {
        return false;
    }
    if (next != NT_ACTION_SEGMENT_ALLOC && next != NT_ACTION_SEGMENT_MAP &&
        next != NT_ACTION_OOM) {
        /* With frames it is a call from C++. */
        return true;
    }
    /* All that one request does has the stack of that request. Where only allocations
     * have stacks, a segment that empty_cache() releases may have the same by
     * chance. */
    const bool asks = stack != NT_NO_STACK || next != NT_ACTION_OOM;
    if (asks && stack != m->events->stack[m->first + end]) {
        return true;
    }
    if (m->p->face.calls_noted) {
        return false;
    }
    if (stack != NT_NO_STACK) {
        if (!nt_timeline_facts(m->timeline)->frees_known) {
            m->p->face.calls_known = false;
        }
        return false;
    }
    if (next == NT_ACTION_OOM) {
        return false;
    }
    m->p->face.calls_known = false;
    return !program_runs_short(m);
}

/* Frees that waited for other streams are complete when a later request sees that these
 * are done: at its start, or when it found no memory, waited for all of them and gave
 * the cache back. What is free only then comes too late for the request itself, which
 * does not look at free blocks again. In the trace both stand before the request. */

/* Whether the free that event `i` asks for is complete at once. One that waited for a
 * stream is completed by a later request, and has that one's stack. */
static bool
program_completes_next(const program_maker *m, size_t i)
{
    const size_t at = m->first + i;
    return i + 1 < m->count && m->events->action[at + 1] == NT_ACTION_FREE_COMPLETED &&
           m->rows[i + 1] == m->rows[i] &&
           m->events->stack[at + 1] == m->events->stack[at];
}

/* Whether event `i` is there, and its stack is that of the call under way. */
static bool
program_is_of_call(const program_maker *m, size_t i, uint32_t stack)
{
    return i < m->count && m->events->stack[m->first + i] == stack;
}

/* The allocation that event `i` completes the free of, or NT_NONE where it completes
 * nothing. */
static uint32_t
program_completed(const program_maker *m, size_t i)
{
    const uint32_t row = m->rows[i];
    return m->events->action[m->first + i] == NT_ACTION_FREE_COMPLETED &&
                   row != NT_NONE && m->slots[row] != NT_NONE &&
                   (m->slots[row] & PROGRAM_LATER) != 0
               ? row
               : NT_NONE;
}

/* The request that event `i` is part of: the next of its call that asked for memory, or
 * m->count. */
static size_t
program_request_at(program_maker *m, size_t i)
{
    const uint8_t *action = m->events->action + m->first;
    const uint32_t stack = m->events->stack[m->first + i];
    if (i < m->request_end) {
        return m->request;
    }
    while (program_is_of_call(m, i, stack) && action[i] != NT_ACTION_ALLOC &&
           action[i] != NT_ACTION_OOM) {
        i++;
    }
    m->request_end = i;
    m->request = program_is_of_call(m, i, stack) ? i : m->count;
    return m->request;
}

/* Whether the release may come before the wait: of garbage, or of what is oversize on
 * the request's stream. */
static bool
program_may_be_first(const program_maker *m, size_t release, size_t request)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
    const uint64_t *stream = m->events->stream + m->first;
    const uint64_t size = m->events->size[m->first + release];
    return m->events->action[m->first + release] == NT_ACTION_SEGMENT_FREE &&
           ((settings->garbage_collection_threshold > 0 && size > NT_SMALL_BUFFER) ||
            (size >= settings->max_split_size && stream[release] == stream[request]));
}

/* Whether one of the blocks completed by events first .. end - 1 would have served the
 * request, had it been free at its start. */
static bool
program_would_serve(const program_maker *m, size_t first, size_t end, size_t request)
{
    const nt_settings *settings =
        nt_snapshot_settings(nt_timeline_snapshot(m->timeline));
    const uint64_t *stream = m->events->stream + m->first;
    const uint64_t *sizes = nt_timeline_allocations(m->timeline)->size;
    const uint64_t rounded =
        nt_round_size(settings, m->events->size[m->first + request]);
    for (size_t i = first; i < end; i++) {
        const uint64_t size = sizes[m->rows[i]];
        if (stream[i] == stream[request] && size >= rounded &&
            nt_is_small(size) == nt_is_small(rounded) &&
            nt_may_use(settings, size, rounded)) {
            return true;
        }
    }
    return false;
}

/* Whether the completions that begin with event `i` are of a request that waited for
 * all streams: nothing waits behind them, and the request then released memory, or
 * failed. */
static bool
program_waits_at(program_maker *m, size_t i)
{
    const uint8_t *action = m->events->action + m->first;
    const uint32_t stack = m->events->stack[m->first + i];
    size_t end = i;
    while (program_is_of_call(m, end, stack) && program_completed(m, end) != NT_NONE) {
        end++;
    }
    m->wait_end = end;
    const size_t request = program_request_at(m, i);
    if (end - i != m->pending || request == m->count) {
        return false;
    }
    if (end == request) {
        return action[end] == NT_ACTION_OOM;
    }
    if (i != 0 && nt_events_is_release(action[i - 1]) && stack != NT_NO_STACK &&
        program_is_of_call(m, i - 1, stack)) {
        /* Nothing is released before a request looks at what is complete. */
        return true;
    }
    return nt_events_is_release(action[end]) &&
           (!program_may_be_first(m, end, request) ||
            program_would_serve(m, i, end, request));
}

/* Whether event `i` completes a free only while a request waits for all streams: the
 * step is then to come after that request, and the event is noted. */
static nt_status
program_defer(program_maker *m, size_t i, bool *deferred)
{
    const uint32_t row = program_completed(m, i);
    *deferred = false;
    if (row == NT_NONE) {
        return NT_OK;
    }
    if (i >= m->wait_end) {
        m->is_waiting = program_waits_at(m, i) && !program_has_noted(m, i);
    }
    if (m->is_waiting) {
        NT_TRY(NT_GROW(&m->p->alloc, m->late, m->late_capacity, m->late_count + 1,
                       m->err));
        m->late[m->late_count++] = (uint32_t)i;
        *deferred = true;
    }
    return NT_OK;
}

/* Whether event `i` is of another call than the one whose completions are noted. */
static bool
program_ends_wait(const program_maker *m, size_t i)
{
    const uint8_t action = m->events->action[m->first + i];
    const bool is_part =
        nt_events_is_release(action) || action == NT_ACTION_FREE_COMPLETED ||
        action == NT_ACTION_SEGMENT_ALLOC || action == NT_ACTION_SEGMENT_MAP ||
        action == NT_ACTION_ALLOC || action == NT_ACTION_OOM;
    return !is_part ||
           m->events->stack[m->first + i] != m->events->stack[m->first + m->late[0]];
}

/* The largest distance between neighbouring reservations is less than so many of them.
 */
#define PROGRAM_GAPS 16

/* A slot for a block that begins, which has the row `row`. */
static nt_status
program_take_slot(program_maker *m, uint32_t row, uint32_t *out)
{
    if (m->idle_count > 0) {
        *out = m->idle_slots[--m->idle_count];
    } else {
        if (m->p->face.slot_count >= PROGRAM_LATER) {
            return nt_fail(m->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^31 blocks");
        }
        *out = m->p->face.slot_count++;
        /* Room for giving it back later, which then can't fail. */
        NT_TRY(NT_GROW(&m->p->alloc, m->idle_slots, m->idle_capacity,
                       m->p->face.slot_count, m->err));
    }
    m->slots[row] = *out;
    return NT_OK;
}

static nt_status
program_name_blocks(program_maker *m, nt_map *slots)
{
    const nt_allocation_columns *rows = nt_timeline_allocations(m->timeline);
    for (uint32_t row = 0; row < rows->count; row++) {
        if (rows->alloc_event[row] == NT_EVENT_BEFORE) {
            uint32_t slot;
            NT_TRY(program_take_slot(m, row, &slot));
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
program_find_pool(program_maker *m, nt_pool_id pool, uint32_t *out)
{
    program *p = m->p;
    uint32_t id;
    NT_TRY(nt_strings_intern(m->pool_names, &pool, sizeof pool, &id, m->err));
    if (id == p->face.pool_count) {
        NT_TRY(NT_GROW(&p->alloc, p->pools, p->pool_capacity, (size_t)id + 1, m->err));
        p->pools[p->face.pool_count++] = pool;
    }
    *out = id;
    return NT_OK;
}

static nt_status
program_find_lane(program_maker *m, nt_pool_id pool, uint64_t stream, uint32_t *out)
{
    program *p = m->p;
    const uint64_t name[3] = {pool.first, pool.second, stream};
    uint32_t id;
    NT_TRY(nt_strings_intern(m->lane_names, name, sizeof name, &id, m->err));
    if (id == p->face.lane_count) {
        nt_program_lane lane = {.stream = stream};
        NT_TRY(program_find_pool(m, pool, &lane.pool));
        NT_TRY(NT_GROW(&p->alloc, p->lanes, p->lane_capacity, (size_t)id + 1, m->err));
        p->lanes[p->face.lane_count++] = lane;
    }
    *out = id;
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
    NT_TRY(program_find_lane(m, pool, segments->stream[row], &area.lane));
    NT_TRY(NT_GROW(&p->alloc, p->pieces, p->piece_capacity,
                   p->face.piece_count + area.piece_count, m->err));
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
    NT_TRY(
        NT_GROW(&p->alloc, p->areas, p->area_capacity, p->face.area_count + 1, m->err));
    p->areas[p->face.area_count++] = area;
    return NT_OK;
}

static nt_status
program_find_start(program_maker *m)
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

static nt_status
program_find_reservation(program_maker *m)
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

#define PROGRAM_DEFAULT_POOL ((nt_pool_id){0, 0})

static nt_status
program_add_step(program *p, const nt_program_step *step, nt_error *err)
{
    NT_TRY(NT_GROW(&p->alloc, p->steps, p->step_capacity, p->face.step_count + 1, err));
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
    NT_TRY(program_find_lane(m, program_pool_at(m, i, m->events->addr[at]),
                             m->events->stream[at], &step.lane));
    m->last_lane = step.lane;
    NT_TRY(program_take_slot(m, m->rows[i], &step.slot));
    return program_add_step(m->p, &step, m->err);
}

/* The pool of the request that failed with event `i`. Where events do not say it, it is
 * that of the request before, if that was of the same stream: a captured graph has its
 * own, or a pool that is in use; but only the default pool's requests release
 * memory. */
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
                          program_settings(m)->max_split_size != NT_UNLIMITED;
    program_note_failure(m, is_first ? m->reserved_then : m->reserved,
                         nt_segment_size(program_settings(m), step.size), free_then);
    NT_TRY(program_find_lane(m, program_pool_of_oom(m, i), m->events->stream[at],
                             &step.lane));
    m->reserved_then = 0;
    return program_add_step(m->p, &step, m->err);
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
    return program_add_step(m->p, &step, m->err);
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
    return program_add_step(m->p, &step, m->err);
}

static nt_status
program_add_completion(program_maker *m, size_t i)
{
    bool deferred;
    NT_TRY(program_defer(m, i, &deferred));
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
            NT_TRY(program_add_step(m->p, &step, m->err));
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
    const bool is_call = program_is_call(m, i, last);
    if (is_call || last == m->count ||
        program_is_default(
            program_pool_at(m, last, m->events->addr[m->first + last]))) {
        NT_TRY(program_release_pools(m, i, last, &pool));
    }
    if (!is_call && last < m->count &&
        (action[last] == NT_ACTION_SEGMENT_ALLOC ||
         action[last] == NT_ACTION_SEGMENT_MAP || action[last] == NT_ACTION_ALLOC)) {
        program_note_shortage(m, i, last);
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
    if (pool != 0 && pool != NT_NONE && program_is_quiet(m, i) && !m->noted_released) {
        step.kind = NT_PROGRAM_EMPTY_POOL;
        step.lane = pool;
    }
    return program_add_step(m->p, &step, m->err);
}

static nt_status
program_add_segment(program_maker *m, size_t i)
{
    program *p = m->p;
    const nt_program_place place = {m->events->addr[m->first + i],
                                    m->events->size[m->first + i]};
    const bool is_map = m->events->action[m->first + i] == NT_ACTION_SEGMENT_MAP;
    m->reserved += place.size;
    program_note_growth(m, is_map);
    if (is_map) {
        return NT_OK;
    }
    NT_TRY(NT_GROW(&p->alloc, p->places, p->place_capacity, p->face.place_count + 1,
                   m->err));
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
        if (program_completes_next(m, i)) {
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
    program_pass_noted(m, i, &is_silent);
    const nt_program_step step = {
        .slot = NT_NONE,
        .event = (int32_t)i - 1,
        .kind = NT_PROGRAM_EMPTY_CACHE,
    };
    return is_silent ? program_add_step(m->p, &step, m->err) : NT_OK;
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
        i += action == NT_ACTION_FREE_REQUESTED && program_completes_next(m, i);
    }
    return NT_GROW(&p->alloc, p->steps, p->step_capacity, steps, m->err);
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
        if (m->late_count != 0 && program_ends_wait(m, i)) {
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
    NT_TRY(program_find_calls(m));
    NT_TRY(program_find_start(m));
    NT_TRY(program_find_reservation(m));
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
    NT_RELEASE(alloc, m->slots, m->slot_rows);
    NT_RELEASE(alloc, m->idle_slots, m->idle_capacity);
    NT_RELEASE(alloc, m->late, m->late_capacity);
    NT_RELEASE(alloc, m->begins, m->life_count);
    NT_RELEASE(alloc, m->ends, m->life_count);
    nt_release(alloc, m->is_users, m->stack_count);
}

void
nt_program_free(nt_program *face)
{
    if (face == NULL) {
        return;
    }
    program *p = (program *)face;
    const nt_alloc alloc = p->alloc;
    NT_RELEASE(&alloc, p->steps, p->step_capacity);
    NT_RELEASE(&alloc, p->lanes, p->lane_capacity);
    NT_RELEASE(&alloc, p->pools, p->pool_capacity);
    NT_RELEASE(&alloc, p->areas, p->area_capacity);
    NT_RELEASE(&alloc, p->pieces, p->piece_capacity);
    NT_RELEASE(&alloc, p->places, p->place_capacity);
    nt_release(&alloc, p, sizeof *p);
}

nt_status
nt_program_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_program **out,
               nt_error *err)
{
    program *p;
    NT_TRY(NT_NEW(alloc, p, 1, err));
    *p = (program){.alloc = *alloc};
    p->face.timeline = timeline;
    p->face.calls_known = true;
    p->face.sequel = NT_EVENT_NEVER;
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

/* Programs that differ from what was recorded. */

typedef struct program_editor {
    program *p; /* the copy */
    const nt_program_change *change;
    size_t events;
    uint8_t *gone;    /* by slot: its block was left out, or freed already */
    int32_t *owners;  /* by slot: the request whose block it is, or NT_EVENT_NEVER */
    uint32_t *slots;  /* by event: the slot of the block that it made */
    int32_t *first;   /* by event: a request whose block ends after it */
    int32_t *others;  /* by request: another one that ends with it */
    int32_t next_end; /* blocks that end after earlier events are freed */
    size_t next_call;
    nt_error *err;
} program_editor;

/* The calls of empty_cache() that come before event `event`. */
static nt_status
program_put_calls(program_editor *e, int32_t event)
{
    const nt_program_change *change = e->change;
    while (e->next_call < change->call_count && change->calls[e->next_call] < event) {
        const nt_program_step call = {
            .slot = NT_NONE,
            .event = change->calls[e->next_call++],
            .kind = NT_PROGRAM_EMPTY_CACHE,
        };
        NT_TRY(program_add_step(e->p, &call, e->err));
    }
    return NT_OK;
}

static nt_status
program_put_ends(program_editor *e, int32_t event)
{
    if (e->change->ends == NULL) {
        return NT_OK;
    }
    for (; e->next_end < event && (size_t)e->next_end < e->events; e->next_end++) {
        for (int32_t i = e->first[e->next_end]; i != NT_EVENT_NEVER; i = e->others[i]) {
            const uint32_t slot = e->slots[i];
            if (slot == NT_NONE || e->owners[slot] != i || e->gone[slot] != 0) {
                continue;
            }
            const nt_program_step step = {
                .slot = slot,
                .event = e->next_end + 1, /* as of a free that takes two events */
                .kind = NT_PROGRAM_FREE,
            };
            e->gone[slot] = 1;
            NT_TRY(program_add_step(e->p, &step, e->err));
        }
    }
    return NT_OK;
}

static void
program_note_owner(program_editor *e, const nt_program_step *step)
{
    if (e->change->ends == NULL || step->slot == NT_NONE) {
        return;
    }
    const bool is_made = step->kind == NT_PROGRAM_MALLOC && e->gone[step->slot] == 0;
    e->owners[step->slot] = is_made ? step->event : NT_EVENT_NEVER;
    if (is_made) {
        e->slots[step->event] = step->slot;
    }
}

static nt_status
program_put_request(program_editor *e, const nt_program_step *from)
{
    const nt_program_change *change = e->change;
    nt_program_step step = *from;
    if (change->sizes != NULL) {
        step.size = change->sizes[step.event];
    }
    if (step.size > NT_LARGEST_REQUEST) {
        return nt_fail(e->err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a request is larger than the allocator takes");
    }
    if (step.kind == NT_PROGRAM_MALLOC) {
        e->gone[step.slot] = step.size == 0;
    }
    return step.size == 0 ? NT_OK : program_add_step(e->p, &step, e->err);
}

static nt_status
program_put_steps(program_editor *e, const nt_program *from)
{
    for (size_t i = 0; i < from->step_count; i++) {
        const nt_program_step *step = &from->steps[i];
        NT_TRY(program_put_ends(e, step->event));
        NT_TRY(program_put_calls(e, step->event));
        if (step->kind == NT_PROGRAM_MALLOC || step->kind == NT_PROGRAM_OOM) {
            NT_TRY(program_put_request(e, step));
        } else if (step->slot == NT_NONE || e->gone[step->slot] == 0) {
            NT_TRY(program_add_step(e->p, step, e->err));
        }
        program_note_owner(e, step);
    }
    NT_TRY(program_put_ends(e, INT32_MAX));
    return program_put_calls(e, INT32_MAX);
}

static nt_status
program_check_calls(const nt_program *program, const nt_program_change *change,
                    nt_error *err)
{
    const int64_t count = (int64_t)nt_timeline_event_count(program->timeline);
    int64_t last = 0;
    for (size_t i = 0; i < change->call_count; i++) {
        if (change->calls[i] < last || change->calls[i] >= count) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                           "no call can be after event %d in this place",
                           (int)change->calls[i]);
        }
        last = change->calls[i];
    }
    return NT_OK;
}

static nt_status
program_sort_ends(program_editor *e)
{
    const int32_t *ends = e->change->ends;
    for (size_t i = 0; i < e->events; i++) {
        e->first[i] = NT_EVENT_NEVER;
        e->slots[i] = NT_NONE;
    }
    for (size_t i = e->events; i-- > 0;) {
        if (ends[i] == NT_EVENT_NEVER) {
            continue;
        }
        if (ends[i] < (int32_t)i || (size_t)ends[i] >= e->events) {
            return nt_fail(e->err, NT_ARGUMENT, NT_NO_OFFSET,
                           "no block can be made by event %zu and end after event %d",
                           i, (int)ends[i]);
        }
        e->others[i] = e->first[ends[i]];
        e->first[ends[i]] = (int32_t)i;
    }
    return NT_OK;
}

/* Room for what the editor keeps. */
static nt_status
program_open_editor(program_editor *e, const nt_alloc *alloc, size_t slots)
{
    const bool has_ends = e->change->ends != NULL;
    const size_t events = has_ends ? e->events : 0, owned = has_ends ? slots : 0;
    e->gone = nt_allocate(alloc, slots);
    e->owners = nt_allocate(alloc, owned * sizeof *e->owners);
    e->slots = nt_allocate(alloc, events * sizeof *e->slots);
    e->first = nt_allocate(alloc, events * sizeof *e->first);
    e->others = nt_allocate(alloc, events * sizeof *e->others);
    if ((slots != 0 && e->gone == NULL) || (owned != 0 && e->owners == NULL) ||
        (events != 0 && (e->slots == NULL || e->first == NULL || e->others == NULL))) {
        return nt_fail_nomem(e->err);
    }
    for (size_t i = 0; i < slots; i++) {
        e->gone[i] = 0;
    }
    for (size_t i = 0; i < owned; i++) {
        e->owners[i] = NT_EVENT_NEVER;
    }
    return has_ends ? program_sort_ends(e) : NT_OK;
}

static void
program_close_editor(program_editor *e, const nt_alloc *alloc, size_t slots)
{
    const bool has_ends = e->change->ends != NULL;
    const size_t events = has_ends ? e->events : 0, owned = has_ends ? slots : 0;
    nt_release(alloc, e->gone, slots);
    NT_RELEASE(alloc, e->owners, owned);
    NT_RELEASE(alloc, e->slots, events);
    NT_RELEASE(alloc, e->first, events);
    NT_RELEASE(alloc, e->others, events);
}

nt_status
nt_program_edit(const nt_alloc *alloc, const nt_program *from,
                const nt_program_change *change, nt_program **out, nt_error *err)
{
    NT_TRY(program_check_calls(from, change, err));
    if (from->sequel != NT_EVENT_NEVER) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "a sequel can't be changed");
    }
    program *p;
    NT_TRY(NT_NEW(alloc, p, 1, err));
    /* All but the steps is shared with `from`. */
    *p = (program){.face = *from, .alloc = *alloc};
    p->face.step_count = 0;
    program_editor e = {
        .p = p,
        .change = change,
        .events = nt_timeline_event_count(from->timeline),
        .err = err,
    };
    nt_status status = program_open_editor(&e, alloc, from->slot_count);
    if (status == NT_OK) {
        status = program_put_steps(&e, from);
    }
    program_close_editor(&e, alloc, from->slot_count);
    p->face.steps = p->steps;
    if (status == NT_OK) {
        *out = &p->face;
    } else {
        nt_program_free(&p->face);
    }
    return status;
}

/* What a program does behind a request that failed. */

typedef struct sequel_block {
    uint32_t round; /* that made it; NT_NONE: none did */
    uint32_t key;   /* of its stack and which request of that in the round */
} sequel_block;

typedef struct sequel_maker {
    program *p; /* the copy */
    const nt_program *from;
    const nt_program_sequel *sequel;
    const uint32_t *stacks; /* by event */
    nt_map keys;            /* stack and number in a round -> key */
    nt_map counts;          /* round and stack -> requests */
    nt_map slots;           /* round and key -> slot of a block in use */
    nt_map rest;            /* key in the like of the failing round -> of its copy */
    uint32_t failed;        /* key of the request that failed */
    uint64_t *names;        /* by key: stack and number */
    size_t key_count, key_capacity;
    sequel_block *of_slot; /* by slot of `from`: what is in it */
    sequel_block *of_step; /* by step of `from`: what it makes or frees */
    size_t *first;         /* by round, and one more: its first step */
    nt_error *err;
} sequel_maker;

static uint64_t
sequel_pair(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

/* The next request of a stack in a round: its key. */
static nt_status
sequel_name(sequel_maker *m, uint32_t round, uint32_t stack, uint32_t *key)
{
    const uint64_t counted = sequel_pair(round, stack);
    const uint32_t before = nt_map_find(&m->counts, counted);
    const uint32_t number = before == NT_NONE ? 0 : before;
    const uint64_t name = sequel_pair(stack, number);
    NT_TRY(nt_map_set(&m->counts, counted, number + 1, m->err));
    *key = nt_map_find(&m->keys, name);
    if (*key != NT_NONE) {
        return NT_OK;
    }
    NT_TRY(NT_GROW(&m->p->alloc, m->names, m->key_capacity, m->key_count + 1, m->err));
    *key = (uint32_t)m->key_count;
    m->names[m->key_count++] = name;
    return nt_map_set(&m->keys, name, *key, m->err);
}

static nt_status
sequel_put_request(sequel_maker *m, const nt_program_step *step, uint32_t round,
                   uint32_t stack, uint32_t *key)
{
    NT_TRY(sequel_name(m, round, stack, key));
    NT_TRY(nt_map_set(&m->slots, sequel_pair(round, *key), step->slot, m->err));
    return program_add_step(m->p, step, m->err);
}

/* Frees, in the way of `step`, the block of a round and key, if it is in use. */
static nt_status
sequel_put_free(sequel_maker *m, const nt_program_step *step, uint32_t round,
                uint32_t key)
{
    const uint64_t pair = sequel_pair(round, key);
    nt_program_step one = *step;
    one.slot = nt_map_find(&m->slots, pair);
    if (one.slot == NT_NONE) {
        return NT_OK;
    }
    if (one.kind != NT_PROGRAM_FREE_LATER) {
        (void)nt_map_remove(&m->slots, pair);
    }
    return program_add_step(m->p, &one, m->err);
}

/* Of the failing round's like the first request of a stack that has a copy, where
 * number `last` has one. */
static uint32_t
sequel_first_of_rest(const sequel_maker *m, uint32_t stack, uint32_t last)
{
    uint32_t first = last;
    while (first > 0) {
        const uint32_t key = nt_map_find(&m->keys, sequel_pair(stack, first - 1));
        if (nt_map_find(&m->rest, key) == NT_NONE) {
            break;
        }
        first--;
    }
    return first;
}

/* Which requests of its stack a round made that have no like, where `like` is the last
 * of that in its own round: from *first up to *end. `copy` stands for it in `round`. */
static void
sequel_others(const sequel_maker *m, sequel_block like, uint32_t copy, uint32_t round,
              uint32_t *first, uint32_t *end)
{
    const uint32_t stack = (uint32_t)(m->names[like.key] >> 32);
    const uint32_t number = (uint32_t)m->names[like.key];
    const uint32_t count = nt_map_find(&m->counts, sequel_pair(round, stack));
    *first = *end = number + 1;
    if (count == NT_NONE ||
        nt_map_find(&m->counts, sequel_pair(like.round, stack)) != number + 1) {
        return;
    }
    *end = count;
    if (copy != like.key) {
        *first = sequel_first_of_rest(m, stack, number);
        *end = (uint32_t)m->names[copy] - (number - *first);
    }
}

/* Frees what stands for `like` in a round, and with the last of a stack what has none,
 * in the order in which they were made. */
static nt_status
sequel_put_frees(sequel_maker *m, const nt_program_step *step, sequel_block like,
                 uint32_t copy, uint32_t round)
{
    uint32_t first, end;
    nt_program_step one = *step;
    one.kind = NT_PROGRAM_FREE;
    sequel_others(m, like, copy, round, &first, &end);
    if (copy == like.key) {
        NT_TRY(sequel_put_free(m, step, round, copy));
    }
    for (uint32_t i = first; i < end && step->kind != NT_PROGRAM_FREE_LATER; i++) {
        const uint64_t name = sequel_pair((uint32_t)(m->names[copy] >> 32), i);
        NT_TRY(sequel_put_free(m, &one, round, nt_map_find(&m->keys, name)));
    }
    return copy == like.key ? NT_OK : sequel_put_free(m, step, round, copy);
}

/* The round that an event is of; NT_NONE before the first. */
static uint32_t
sequel_round(const nt_program_sequel *sequel, uint32_t round, int32_t event)
{
    while (round + 1 < sequel->begin_count && sequel->begins[round + 1] <= event) {
        round++; /* NT_NONE becomes 0 */
    }
    return round;
}

/* A step of the trace: what it makes or frees is noted for its copies. */
static nt_status
sequel_note(sequel_maker *m, size_t i, uint32_t round)
{
    const nt_program_step *step = &m->from->steps[i];
    sequel_block *block = &m->of_step[i];
    *block = (sequel_block){NT_NONE, NT_NONE};
    if (step->slot == NT_NONE || step->kind == NT_PROGRAM_OOM) {
        return NT_OK;
    }
    if (step->kind == NT_PROGRAM_MALLOC) {
        if (round != NT_NONE) {
            block->round = round;
            NT_TRY(sequel_name(m, round, m->stacks[step->event], &block->key));
        }
        m->of_slot[step->slot] = *block;
        return NT_OK;
    }
    *block = m->of_slot[step->slot];
    if (step->kind != NT_PROGRAM_FREE_LATER) {
        m->of_slot[step->slot] = (sequel_block){NT_NONE, NT_NONE};
    }
    return NT_OK;
}

/* Notes the blocks of the rounds that are in use where the request failed. */
static nt_status
sequel_note_live(sequel_maker *m)
{
    for (uint32_t slot = 0; slot < m->from->slot_count; slot++) {
        const sequel_block block = m->of_slot[slot];
        if (block.round != NT_NONE) {
            NT_TRY(nt_map_set(&m->slots, sequel_pair(block.round, block.key), slot,
                              m->err));
        }
    }
    return NT_OK;
}

/* All up to the request that failed, which is made like any other. */
static nt_status
sequel_put_recorded(sequel_maker *m)
{
    const nt_program_sequel *sequel = m->sequel;
    uint32_t round = NT_NONE;
    size_t next = 0;
    for (size_t i = 0; i < m->from->step_count; i++) {
        nt_program_step step = m->from->steps[i];
        if (step.event > sequel->failed) {
            break;
        }
        round = sequel_round(sequel, round, step.event);
        for (; round != NT_NONE && next <= round; next++) {
            m->first[next] = i;
        }
        m->first[sequel->begin_count] = i + 1;
        if (step.kind == NT_PROGRAM_OOM && step.event == sequel->failed) {
            step.kind = NT_PROGRAM_MALLOC;
            step.slot = m->p->face.slot_count++;
            return sequel_put_request(m, &step, round, m->stacks[step.event],
                                      &m->failed);
        }
        NT_TRY(sequel_note(m, i, round));
        NT_TRY(program_add_step(m->p, &step, m->err));
    }
    return NT_OK;
}

static uint64_t
sequel_size(const sequel_maker *m, const nt_program_step *step, uint32_t rounds)
{
    const nt_program_sequel *sequel = m->sequel;
    double size = (double)step->size;
    if (rounds == 0 && sequel->stretch != NULL) {
        size *= sequel->stretch[step->event];
    }
    if (sequel->growth != NULL) {
        size += (double)sequel->growth[step->event] * rounds;
    }
    const double most = (double)NT_LARGEST_REQUEST;
    return size < 1 ? 1 : size < most ? (uint64_t)size : NT_LARGEST_REQUEST;
}

/* A copy of step `i`, of round `like`, in round `round`; `rounds` later than its size
 * is of. */
static nt_status
sequel_copy(sequel_maker *m, size_t i, uint32_t like, uint32_t round, uint32_t rounds)
{
    const nt_program_step *from = &m->from->steps[i];
    const sequel_block block = m->of_step[i];
    const uint32_t failed = (uint32_t)m->sequel->begin_count - 1;
    nt_program_step step = *from;
    step.event = (int32_t)(nt_timeline_event_count(m->from->timeline) + round - failed);
    if (from->kind == NT_PROGRAM_EMPTY_CACHE) {
        return program_add_step(m->p, &step, m->err);
    }
    if (block.round == NT_NONE) {
        /* Blocks from before the rounds are gone already, and pools of the rounds
         * before serve again. */
        return NT_OK;
    }
    if (from->kind == NT_PROGRAM_MALLOC) {
        step.slot = m->p->face.slot_count++;
        step.size = sequel_size(m, from, rounds);
        uint32_t key;
        NT_TRY(sequel_put_request(m, &step, round, m->stacks[from->event], &key));
        return round == failed ? nt_map_set(&m->rest, block.key, key, m->err) : NT_OK;
    }
    const uint32_t made = round - (like - block.round);
    const uint32_t copy =
        round == failed && made == failed ? nt_map_find(&m->rest, block.key) : NT_NONE;
    return sequel_put_frees(m, &step, block, copy == NT_NONE ? block.key : copy, made);
}

/* Frees what the failing round made by stacks that its like has not. */
static nt_status
sequel_close_round(sequel_maker *m)
{
    const uint32_t like = (uint32_t)m->sequel->like;
    const uint32_t round = (uint32_t)m->sequel->begin_count - 1;
    const nt_program_step step = {
        .event = (int32_t)nt_timeline_event_count(m->from->timeline),
        .kind = NT_PROGRAM_FREE,
    };
    for (size_t i = m->first[round]; i < m->first[round + 1]; i++) {
        const int32_t event = m->from->steps[i].event;
        const uint64_t stack = sequel_pair(like, m->stacks[event]);
        const bool stays = m->sequel->stays != NULL && m->sequel->stays[event] != 0;
        if (m->from->steps[i].kind == NT_PROGRAM_MALLOC && !stays &&
            nt_map_find(&m->counts, stack) == NT_NONE) {
            NT_TRY(sequel_put_free(m, &step, round, m->of_step[i].key));
        }
    }
    return NT_OK;
}

/* The request that failed stands for that of its stack where its like stood. */
static nt_status
sequel_pair_failed(sequel_maker *m, uint32_t key)
{
    const bool alike = m->names[key] >> 32 == m->names[m->failed] >> 32;
    return alike ? nt_map_set(&m->rest, key, m->failed, m->err) : NT_OK;
}

static nt_status
sequel_put_made_up(sequel_maker *m)
{
    const nt_program_sequel *sequel = m->sequel;
    const uint32_t ended = (uint32_t)sequel->begin_count - 1;
    const uint32_t like = (uint32_t)sequel->like;
    if (like == ended) {
        return NT_OK;
    }
    for (size_t i = m->first[like]; i < m->first[like + 1]; i++) {
        const nt_program_step *step = &m->from->steps[i];
        if (step->event > sequel->from) {
            NT_TRY(sequel_copy(m, i, like, ended, 0));
        } else if (step->event == sequel->from && step->kind == NT_PROGRAM_MALLOC) {
            NT_TRY(sequel_pair_failed(m, m->of_step[i].key));
        }
    }
    NT_TRY(sequel_close_round(m));
    /* The first round makes what stays: it comes again only where it is the only one.
     */
    const uint32_t others = ended > 1 ? ended - 1 : ended;
    const uint32_t repeated = others < NT_SEQUEL_REPEATED ? others : NT_SEQUEL_REPEATED;
    for (uint32_t n = 0; n < sequel->rounds; n++) {
        const uint32_t one = ended - repeated + n % repeated, round = ended + 1 + n;
        for (size_t i = m->first[one]; i < m->first[one + 1]; i++) {
            NT_TRY(sequel_copy(m, i, one, round, round - one));
        }
    }
    return NT_OK;
}

static bool
sequel_is_valid(const nt_program *from, const nt_program_sequel *s,
                const nt_event_columns *events, size_t first)
{
    const size_t count = nt_timeline_event_count(from->timeline);
    if (s->failed < 0 || (size_t)s->failed >= count ||
        events->action[first + (size_t)s->failed] != NT_ACTION_OOM ||
        s->begin_count == 0 || s->begin_count > count || s->like >= s->begin_count ||
        s->rounds > count || s->begins[0] < 0 ||
        s->begins[s->begin_count - 1] > s->failed) {
        return false;
    }
    for (size_t i = 1; i < s->begin_count; i++) {
        if (s->begins[i] <= s->begins[i - 1]) {
            return false;
        }
    }
    return s->like + 1 == s->begin_count ||
           (s->from >= s->begins[s->like] && s->from < s->begins[s->like + 1]);
}

static nt_status
sequel_open(sequel_maker *m, const nt_alloc *alloc)
{
    nt_map_init(&m->keys, *alloc);
    nt_map_init(&m->counts, *alloc);
    nt_map_init(&m->slots, *alloc);
    nt_map_init(&m->rest, *alloc);
    NT_TRY(NT_NEW(alloc, m->of_slot, m->from->slot_count + 1, m->err));
    NT_TRY(NT_NEW(alloc, m->of_step, m->from->step_count + 1, m->err));
    NT_TRY(NT_NEW(alloc, m->first, m->sequel->begin_count + 1, m->err));
    for (size_t i = 0; i < m->from->slot_count; i++) {
        m->of_slot[i] = (sequel_block){NT_NONE, NT_NONE};
    }
    for (size_t i = 0; i <= m->sequel->begin_count; i++) {
        m->first[i] = 0;
    }
    return NT_OK;
}

static void
sequel_clear(sequel_maker *m, const nt_alloc *alloc)
{
    nt_map_clear(&m->keys);
    nt_map_clear(&m->counts);
    nt_map_clear(&m->slots);
    nt_map_clear(&m->rest);
    NT_RELEASE(alloc, m->names, m->key_capacity);
    NT_RELEASE(alloc, m->of_slot, m->from->slot_count + 1);
    NT_RELEASE(alloc, m->of_step, m->from->step_count + 1);
    NT_RELEASE(alloc, m->first, m->sequel->begin_count + 1);
}

nt_status
nt_program_go_on(const nt_alloc *alloc, const nt_program *from,
                 const nt_program_sequel *sequel, nt_program **out, nt_error *err)
{
    const nt_timeline *timeline = from->timeline;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    size_t first = 0, count = 0;
    if (nt_timeline_event_count(timeline) != 0) {
        nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(timeline), &first,
                          &count);
    }
    if (from->sequel != NT_EVENT_NEVER ||
        !sequel_is_valid(from, sequel, events, first)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a sequel begins at a request that failed, in the last of its "
                       "rounds");
    }
    program *p;
    NT_TRY(NT_NEW(alloc, p, 1, err));
    *p = (program){.face = *from, .alloc = *alloc};
    p->face.step_count = 0;
    p->face.sequel = sequel->failed;
    sequel_maker m = {
        .p = p,
        .from = from,
        .sequel = sequel,
        .stacks = events->stack + first,
        .err = err,
    };
    nt_status status = sequel_open(&m, alloc);
    if (status == NT_OK) {
        status = sequel_put_recorded(&m);
    }
    if (status == NT_OK) {
        status = sequel_note_live(&m);
    }
    if (status == NT_OK) {
        status = sequel_put_made_up(&m);
    }
    sequel_clear(&m, alloc);
    p->face.steps = p->steps;
    if (status == NT_OK) {
        *out = &p->face;
    } else {
        nt_program_free(&p->face);
    }
    return status;
}
