/* SPDX-License-Identifier: Apache-2.0 */
/* What can come out where addresses, time and rounding leave it open. */
#include "analysis/nt_replay_state.h"

#include <string.h>

#include "base/nt_columns.h"

#define RANGE_STEPS ((size_t)4000000)
#define RANGE_LEAST ((size_t)8)
#define RANGE_MOST ((size_t)40)

/* Every figure that has a range. */
#define RANGE_FIGURE(member) offsetof(nt_replay_figures, member)
static const size_t range_bytes[] = {
    RANGE_FIGURE(peak[NT_METRIC_ALLOCATED]),  RANGE_FIGURE(peak[NT_METRIC_ACTIVE]),
    RANGE_FIGURE(peak[NT_METRIC_RESERVED]),   RANGE_FIGURE(peak[NT_METRIC_REQUESTED]),
    RANGE_FIGURE(final[NT_METRIC_ALLOCATED]), RANGE_FIGURE(final[NT_METRIC_ACTIVE]),
    RANGE_FIGURE(final[NT_METRIC_RESERVED]),  RANGE_FIGURE(final[NT_METRIC_REQUESTED]),
};
static const size_t range_counts[] = {
    RANGE_FIGURE(segments), RANGE_FIGURE(device_allocs), RANGE_FIGURE(device_frees),
    RANGE_FIGURE(ooms),     RANGE_FIGURE(retries),       RANGE_FIGURE(waits),
};

static uint64_t *
range_figure(nt_replay_figures *figures, size_t offset)
{
    return (uint64_t *)((char *)figures + offset);
}

/* Takes one figure of a run in; true if it is not the one of `base`. */
static bool
range_widen(nt_replay_range *range, nt_replay_figures *base, nt_replay_figures *run,
            size_t offset)
{
    uint64_t *low = range_figure(&range->low, offset);
    uint64_t *high = range_figure(&range->high, offset);
    const uint64_t value = *range_figure(run, offset);
    *low = value < *low ? value : *low;
    *high = value > *high ? value : *high;
    return value != *range_figure(base, offset);
}

static bool
range_add(nt_replay_range *range, nt_replay_figures *base, nt_replay_figures *run)
{
    bool differs = false;
    for (size_t i = 0; i < NT_LENGTH(range_bytes); i++) {
        differs |= range_widen(range, base, run, range_bytes[i]);
    }
    for (size_t i = 0; i < NT_LENGTH(range_counts); i++) {
        differs |= range_widen(range, base, run, range_counts[i]);
    }
    if (run->is_beyond || run->is_stopped) {
        range->causes |= NT_CAUSE_BEYOND;
    }
    range->low.is_beyond |= run->is_beyond;
    range->high.is_beyond |= run->is_beyond;
    range->low.is_stopped |= run->is_stopped;
    range->high.is_stopped |= run->is_stopped;
    range->runs++;
    return differs;
}

/* What a program that goes on may still do: anything that its limit allows, from what
 * it has done on. What it holds at its end may be nothing. */
static void
range_open(nt_replay_range *range, const nt_replay_options *options)
{
    uint64_t most = options->limit != 0 ? options->limit : UINT64_MAX;
    if (options->limit != 0 && options->settings.expandable_segments) {
        /* The limit is tested before the request is rounded up to whole pages. */
        most += options->settings.large_segment_size;
    }
    if (options->device_total > options->device_other &&
        options->device_total - options->device_other < most) {
        most = options->device_total - options->device_other;
    }
    for (size_t i = 0; i < NT_LENGTH(range_bytes); i++) {
        *range_figure(&range->high, range_bytes[i]) = most;
    }
    for (size_t i = 0; i < NT_LENGTH(range_counts); i++) {
        *range_figure(&range->high, range_counts[i]) = UINT64_MAX;
    }
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        range->low.final[metric] = 0;
    }
    range->low.segments = 0;
}

/* Whether the order of addresses can matter: only in a lane with several segments. */
static bool
range_has_order(const nt_program *program, const nt_replay_options *options)
{
    bool has_order = !options->settings.expandable_segments;
    for (size_t i = 0; i < program->area_count && !has_order; i++) {
        has_order = !program->areas[i].is_expandable;
    }
    return has_order;
}

/* What run `i` does otherwise than the first; false when there are no more. */
static bool
range_vary(const nt_program *program, size_t i, nt_replay_options *options,
           unsigned *cause)
{
    const bool has_order = range_has_order(program, options);
    size_t next = 1;
    *cause = 0;
    if (program->has_later && i < (next += 2)) {
        options->timing = i == next - 2 ? NT_TIMING_EARLY : NT_TIMING_LATE;
        *cause = NT_CAUSE_TIMING;
        return true;
    }
    if (program->has_rough_sizes && i < (next += 1)) {
        options->least_ooms = true;
        return true;
    }
    if (!has_order) {
        return false;
    }
    *cause = NT_CAUSE_TIES;
    options->order = i == next       ? NT_ORDER_RISING
                     : i == next + 1 ? NT_ORDER_FALLING
                                     : NT_ORDER_RANDOM;
    options->seed = i;
    /* Half of the orders meet the other timings and sizes as well. */
    if (i % 2 == 1 && program->has_later) {
        options->timing = i % 4 == 1 ? NT_TIMING_EARLY : NT_TIMING_LATE;
        *cause = 0;
    }
    if (i % 2 == 1 && program->has_rough_sizes) {
        options->least_ooms = true;
        *cause = 0;
    }
    return true;
}

/* Whether a whole large segment was free before the trace: how long it had been so
 * decides which one is garbage, and is not known. */
static bool
range_lacks_ages(const nt_program *program, const nt_replay_options *options)
{
    bool lacks = false;
    for (size_t i = 0; i < program->area_count; i++) {
        const nt_program_area *area = &program->areas[i];
        lacks |= !area->small && !area->is_expandable && area->piece_count == 1 &&
                 program->pieces[area->first_piece].slot == NT_NONE;
    }
    return lacks && options->settings.garbage_collection_threshold > 0;
}

/* Whether two settings lay memory out by the same rules. */
static bool
range_are_alike(const nt_settings *a, const nt_settings *b)
{
    return a->expandable_segments == b->expandable_segments &&
           a->max_split_size == b->max_split_size &&
           a->max_non_split_rounding == b->max_non_split_rounding &&
           a->large_segment_size == b->large_segment_size &&
           a->garbage_collection_threshold == b->garbage_collection_threshold &&
           memcmp(a->roundup_power2_divisions, b->roundup_power2_divisions,
                  sizeof a->roundup_power2_divisions) == 0;
}

/* Whether the program would have begun in this very state. */
static nt_status
range_find_start(const nt_alloc *alloc, const nt_program *program,
                 const nt_replay_options *options, bool *is_known, nt_error *err)
{
    const nt_trace_facts *facts = nt_timeline_facts(program->timeline);
    bool has_history = false;
    if (!range_are_alike(&options->settings, nt_snapshot_settings(nt_timeline_snapshot(
                                                 program->timeline)))) {
        NT_TRY(nt_replay_has_history(alloc, program, options, &has_history, err));
    }
    *is_known = facts->slack_bound == 0 && facts->unmatched == 0 && !has_history &&
                !range_lacks_ages(program, options);
    return NT_OK;
}

static size_t
range_runs(const nt_program *program)
{
    const size_t runs = RANGE_STEPS / (program->step_count + 1);
    return runs < RANGE_LEAST ? RANGE_LEAST : runs > RANGE_MOST ? RANGE_MOST : runs;
}

nt_status
nt_replay_find_range(const nt_alloc *alloc, const nt_program *program,
                     const nt_replay_options *options, size_t runs,
                     const nt_progress *progress, nt_replay_figures *base,
                     nt_replay_range *out, nt_error *err)
{
    nt_replay_figures first, figures;
    unsigned cause;
    bool is_known;
    runs = runs == 0 ? range_runs(program) : runs;
    NT_TRY(nt_replay_run(alloc, program, options, progress, NULL, &first, err));
    nt_replay_range range = {.low = first, .high = first};
    (void)range_add(&range, &first, &first);
    NT_TRY(range_find_start(alloc, program, options, &is_known, err));
    range.causes |= is_known ? 0 : NT_CAUSE_START;
    for (size_t i = 1; i < runs; i++) {
        nt_replay_options other = *options;
        if (!range_vary(program, i, &other, &cause)) {
            break;
        }
        NT_TRY(nt_replay_run(alloc, program, &other, progress, NULL, &figures, err));
        if (range_add(&range, &first, &figures)) {
            range.causes |= cause;
        }
    }
    if (range.high.is_beyond || range.high.is_stopped) {
        range_open(&range, options);
    }
    *base = first;
    *out = range;
    return NT_OK;
}
