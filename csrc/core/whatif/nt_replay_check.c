/* SPDX-License-Identifier: Apache-2.0 */
/* The model held against the trace: it gets the trace's addresses for new memory, and
 * each of its deeds is compared with the next one of the trace. */
#include "whatif/nt_replay_state.h"

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

void
nt_replay_compare_deed(replay_check *check, nt_action action, uint64_t address,
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

void
nt_replay_compare_step(replay *r, const nt_program_step *step, uint32_t block)
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

nt_status
nt_replay_restore(replay *r, const nt_program_step *step, uint32_t *block)
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

nt_status
nt_replay_compare_end(replay *r)
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

nt_allocator_places
nt_replay_get_recorded(replay_check *check)
{
    check->spare = REPLAY_FIRST_SPARE;
    return (nt_allocator_places){
        .take = replay_take_recorded, .give = replay_give_recorded, .ctx = check};
}

nt_status
nt_replay_start_recorded(replay_check *check, uint64_t address, uint64_t size,
                         nt_error *err)
{
    if (!replay_is_open(check, address, size)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "segments from before the trace overlap: the trace has gaps, or "
                       "the file is damaged");
    }
    return replay_mark(check, address, size, err);
}
