/* SPDX-License-Identifier: Apache-2.0 */
/* What a trace does not show by itself: calls of empty_cache() and ends of private
 * pools that had nothing to give back, and blocks that were put back where they had
 * lain. */
#include "whatif/nt_replay_state.h"

#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_rounding.h"

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

nt_status
nt_replay_open_silence(replay *r)
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
        NT_TRY(nt_grow(&r->alloc, (void **)&r->drops, &r->drop_capacity,
                       r->drop_count + 1, sizeof *r->drops, r->err));
        r->drops[r->drop_count++] =
            (nt_sort_item){(uint64_t)silence->drops[pool], pool};
    }
    nt_sort(r->drops, r->drop_count);
    return NT_OK;
}

void
nt_replay_close_silence(replay *r)
{
    nt_release(&r->alloc, r->drops, r->drop_capacity * sizeof *r->drops);
    nt_release(&r->alloc, r->moved, r->moved_capacity * sizeof *r->moved);
    nt_map_clear(&r->moved_rows);
    if (r->quiet != NULL) {
        nt_release(&r->alloc, r->quiet->made,
                   r->program->slot_count * sizeof *r->quiet->made);
    }
}

static const uint32_t *
silence_stacks(const replay *r)
{
    return r->check->events->stack + r->check->first;
}

/* A request in the recorded run. */
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

/* A request in a private pool. */
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

nt_status
nt_replay_mark_restored(replay *r)
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

/* The address that the trace has for a request. */
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
           silence_is_private(r, step);
}

/* How well a block that was asked for with `asked` bytes is one of `size` bytes that is
 * put back: 2: it had exactly these, 1: with what was too little to split off; 0: not.
 */
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

bool
nt_replay_find_moved(const replay *r, const nt_program_step *step, replay_moved *place)
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

nt_status
nt_replay_note_moved(replay *r, const nt_program_step *step, uint32_t block)
{
    if (!silence_has_moved(r, step)) {
        return NT_OK;
    }
    const uint64_t address = silence_address(r, step);
    const uint32_t newest = nt_map_find(&r->moved_rows, address);
    uint32_t row = silence_moved_row(r, newest, step->size);
    if (row == NT_NONE) {
        NT_TRY(nt_grow(&r->alloc, (void **)&r->moved, &r->moved_capacity,
                       r->moved_count + 1, sizeof *r->moved, r->err));
        row = (uint32_t)r->moved_count++;
        r->moved[row].earlier = newest;
        NT_TRY(nt_map_set(&r->moved_rows, address, row, r->err));
    }
    r->moved[row].asked = step->size;
    r->moved[row].address = nt_allocator_address(r->model, block);
    r->moved[row].size = nt_allocator_size(r->model, block);
    return NT_OK;
}

nt_status
nt_replay_pass_silence(replay *r, size_t i)
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
