/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_replay.h"

#include <string.h>

#include "whatif/nt_replay_state.h"

/* Steps between two calls of the progress function. */
#define REPLAY_TICK ((size_t)1 << 10)

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

static void
replay_listen(void *ctx, nt_action action, uint32_t lane, uint64_t address,
              uint64_t size, uint32_t tag)
{
    replay *r = ctx;
    if (r->record != NULL) {
        nt_replay_record_deed(r, action, lane, address, size);
    }
    if (action == NT_ACTION_FREE_COMPLETED) {
        /* The model waited for all streams: the trace's own completion comes too late.
         * A slot that was freed already may name another block. */
        if (r->slots[tag] != NT_NONE &&
            nt_allocator_address(r->model, r->slots[tag]) == address) {
            r->slots[tag] = NT_NONE;
        }
    } else if (r->check != NULL) {
        nt_replay_compare_deed(r->check, action, address, size);
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
        .places = r->check != NULL ? nt_replay_get_recorded(r->check)
                                   : nt_replay_get_places(r),
        .observer = {.tell = replay_listen, .ctx = r},
    };
    NT_TRY(nt_allocator_new(&r->alloc, &options, &r->model, r->err));
    return r->check != NULL ? NT_OK : nt_replay_open_places(r, replay_largest(r));
}

nt_status
nt_replay_add_lanes(const nt_program *program, nt_allocator *model, nt_error *err)
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

static nt_status
replay_make_slots(replay *r)
{
    const size_t count = r->program->slot_count;
    r->slots = nt_allocate(&r->alloc, count * sizeof *r->slots);
    if (r->slots == NULL && count != 0) {
        return nt_fail_nomem(r->err);
    }
    for (size_t i = 0; i < count; i++) {
        r->slots[i] = NT_NONE;
    }
    return NT_OK;
}

/* Gets a step's block: where `moved` says, or where the trace has it, or from the
 * model; NT_NONE where there is no room. */
static nt_status
replay_get_block(replay *r, const nt_program_step *step, const replay_moved *moved,
                 uint32_t *block)
{
    const bool is_least = step->kind == NT_PROGRAM_OOM && r->options.least_ooms;
    uint64_t size =
        is_least ? nt_program_least_request(r->program, step->size) : step->size;
    *block = NT_NONE;
    if (moved != NULL) {
        size = moved->size;
        NT_TRY(nt_allocator_restore(r->model, step->lane, moved->address, size,
                                    step->slot, block, r->err));
    } else if (r->check != NULL) {
        NT_TRY(nt_replay_restore(r, step, block));
    }
    if (*block == NT_NONE) {
        NT_TRY(
            nt_allocator_malloc(r->model, step->lane, size, step->slot, block, r->err));
    }
    if (*block == NT_NONE) {
        return NT_OK;
    }
    NT_TRY(nt_replay_note_moved(r, step, *block));
    if (r->record != NULL) {
        nt_replay_record_malloc(r, step, *block);
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
        nt_replay_record_free(r, step, block);
    }
    return nt_allocator_give(r->model, block, r->err);
}

static nt_status
replay_malloc(replay *r, const nt_program_step *step, uint32_t *block)
{
    replay_moved moved;
    const bool is_moved = nt_replay_find_moved(r, step, &moved);
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
    if (*block == NT_NONE && !r->options.goes_on) {
        r->figures.is_stopped = true;
        r->figures.stopped_event = step->event;
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
        nt_replay_record_free(r, step, block);
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
        nt_replay_compare_step(r, step, block);
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
    size_t next = 0;
    for (size_t i = 0; i < program->step_count && !replay_is_over(r); i++) {
        const nt_program_step *step = &program->steps[i];
        if (series != NULL) {
            replay_write(r, series, &next, (size_t)step->event);
        }
        if (r->record != NULL) {
            r->record->event = (size_t)step->event;
        }
        NT_TRY(replay_step(r, step));
        NT_TRY(nt_replay_pass_silence(r, i));
        if (series != NULL && step->kind == NT_PROGRAM_FREE &&
            series->bytes[NT_METRIC_ALLOCATED] != NULL) {
            /* It is not allocated any more from the event before on. */
            series->bytes[NT_METRIC_ALLOCATED][step->event - 1] =
                nt_allocator_get_stats(r->model)->bytes[NT_METRIC_ALLOCATED];
        }
        if (progress != NULL && i % REPLAY_TICK == 0 &&
            progress->report(progress->ctx, i) != 0) {
            return nt_fail(r->err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
        }
    }
    if (series != NULL) {
        replay_write(r, series, &next, nt_timeline_event_count(program->timeline));
    }
    return NT_OK;
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
}

static nt_status
replay_all(replay *r, const nt_progress *progress, const nt_replay_series *series)
{
    NT_TRY(nt_replay_open_silence(r));
    NT_TRY(replay_make_model(r));
    NT_TRY(nt_replay_add_lanes(r->program, r->model, r->err));
    NT_TRY(replay_make_slots(r));
    NT_TRY(nt_replay_start(r));
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
        NT_TRY(nt_replay_record_end(r));
    }
    if (r->quiet != NULL) {
        NT_TRY(nt_replay_mark_restored(r));
    }
    return r->check != NULL ? nt_replay_compare_end(r) : NT_OK;
}

static void
replay_clear(replay *r)
{
    const nt_program *program = r->program;
    nt_allocator_free(r->model);
    if (r->check == NULL) {
        nt_replay_close_places(r);
    } else {
        nt_ordered_clear(&r->check->taken, &r->alloc);
    }
    nt_replay_close_silence(r);
    nt_release(&r->alloc, r->slots, program->slot_count * sizeof *r->slots);
}

nt_status
nt_replay_whole(replay *r, const nt_progress *progress, const nt_replay_series *series)
{
    const nt_status status = replay_all(r, progress, series);
    replay_clear(r);
    return status;
}

nt_status
nt_replay_run(const nt_alloc *alloc, const nt_program *program,
              const nt_replay_options *options, const nt_progress *progress,
              const nt_replay_series *series, nt_replay_figures *out, nt_error *err)
{
    replay r = {.alloc = *alloc, .program = program, .options = *options, .err = err};
    r.places.alloc = *alloc;
    NT_TRY(nt_replay_whole(&r, progress, series));
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
    return nt_replay_whole(r, progress, NULL);
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
    uint8_t *known = nt_allocate(alloc, count);
    if (known == NULL) {
        return nt_fail_nomem(err);
    }
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
