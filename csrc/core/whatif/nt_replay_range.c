/* SPDX-License-Identifier: Apache-2.0 */
#include "whatif/nt_replay.h"

#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_rounding.h"

#define RANGE_STEPS ((size_t)2500000)
#define RANGE_LEAST ((size_t)4)
#define RANGE_MOST ((size_t)40)

/* Which of many places are calls that left no trace is a choice among very many: where
 * runs cost little, so many try it; of few places, so many for each. */
#define RANGE_MOST_SILENT ((size_t)160)
#define RANGE_A_PLACE ((size_t)4)

/* Of so many runs one more tries a timing that is mixed. */
#define RANGE_MIXED 8

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
    RANGE_FIGURE(ooms),     RANGE_FIGURE(retries),
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
    /* Every call of empty_cache() waits, whatever else comes of it. */
    (void)range_widen(range, base, run, RANGE_FIGURE(waits));
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

/* One figure, by a multiple of `grain` and down to `floor` at most. */
static void
range_extend_one(nt_replay_range *range, size_t offset, uint64_t grain, uint64_t floor)
{
    uint64_t *low = range_figure(&range->low, offset);
    uint64_t *high = range_figure(&range->high, offset);
    const uint64_t share = (*high - *low) / range->runs;
    const uint64_t step = (share + grain - 1) / grain * grain;
    if (*high == *low) {
        return;
    }
    const uint64_t room = *low > floor ? *low - floor : 0;
    *low -= step < room ? step : room;
    *high += step < UINT64_MAX / 2 - *high ? step : 0;
}

/* Widens what differs between runs by an n-th of its span in either direction, whole
 * segments of bytes; memory that is reserved holds all that is in use. */
static void
range_extend(nt_replay_range *range)
{
    static const size_t bytes[] = {RANGE_FIGURE(peak[NT_METRIC_RESERVED]),
                                   RANGE_FIGURE(final[NT_METRIC_RESERVED])};
    static const size_t least[] = {RANGE_FIGURE(peak[NT_METRIC_ACTIVE]),
                                   RANGE_FIGURE(final[NT_METRIC_ACTIVE])};
    static const size_t counts[] = {RANGE_FIGURE(segments), RANGE_FIGURE(device_allocs),
                                    RANGE_FIGURE(device_frees)};
    for (size_t i = 0; i < NT_LENGTH(bytes); i++) {
        const uint64_t floor = *range_figure(&range->low, least[i]);
        range_extend_one(range, bytes[i], NT_SMALL_BUFFER, floor);
    }
    for (size_t i = 0; i < NT_LENGTH(counts); i++) {
        range_extend_one(range, counts[i], 1, 0);
    }
}

/* What a program that goes on may still do: anything that its limit allows, from what
 * it has done on, which is more than that where it began with more. What it holds at
 * its end may be nothing. */
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
        uint64_t *high = range_figure(&range->high, range_bytes[i]);
        *high = *high < most ? most : *high;
    }
    for (size_t i = 0; i < NT_LENGTH(range_counts); i++) {
        *range_figure(&range->high, range_counts[i]) = UINT64_MAX;
    }
    range->high.waits = UINT64_MAX;
    for (size_t metric = 0; metric < NT_METRIC_COUNT; metric++) {
        range->low.final[metric] = 0;
    }
    range->low.segments = 0;
}

/* What a program leaves open. */
typedef struct range_open_ends {
    bool has_order;
    bool has_history;   /* the start was left by other settings */
    size_t silent_runs; /* that try what may be silent; 0: nothing may be */
    size_t timed_runs;  /* that try other timings; 0: nothing waits for a stream */
} range_open_ends;

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

/* Which starts are tried where the start is not known, and which shares of what is
 * silent where something may be. */
static const nt_replay_begin range_begins[] = {
    NT_BEGIN_KEPT,
    NT_BEGIN_EMPTIED,
    NT_BEGIN_ANEW,
};
static const uint32_t range_counts_silent[] = {1, 4, 16};

static bool
range_has_silence(const nt_replay_options *options)
{
    return options->silence.places != 0;
}

/* The share of what may be silent that the `i`-th run takes: all, half, an eighth, or
 * as much as makes a few calls. */
static uint32_t
range_share(const nt_replay_options *options, size_t i)
{
    static const uint32_t parts[] = {1, 2, 8};
    const size_t few = NT_LENGTH(range_counts_silent);
    i %= NT_LENGTH(parts) + 2 * few;
    if (i < NT_LENGTH(parts)) {
        return UINT32_MAX / parts[i];
    }
    const uint64_t count = range_counts_silent[(i - NT_LENGTH(parts)) % few];
    return options->silence.places <= count
               ? UINT32_MAX
               : (uint32_t)(UINT32_MAX / options->silence.places * count);
}

/* When blocks are free again in the `i`-th run that tries other timings: at once, as
 * late as can be, and then each in its own way. */
static nt_replay_timing
range_timing(size_t i)
{
    return i == 0 ? NT_TIMING_EARLY : i == 1 ? NT_TIMING_LATE : NT_TIMING_MIXED;
}

/* What run `i` does otherwise than the first; false when there are no more. */
static bool
range_vary(const nt_program *program, const range_open_ends *ends, size_t i,
           nt_replay_options *options, unsigned *cause)
{
    size_t next = 1;
    *cause = 0;
    options->seed = i;
    if (ends->has_history && i < (next += NT_LENGTH(range_begins))) {
        options->begin = range_begins[next - 1 - i];
        return true;
    }
    if (ends->silent_runs != 0 && i < (next += ends->silent_runs)) {
        options->silence.share = range_share(options, ends->silent_runs - (next - i));
        *cause = NT_CAUSE_SILENT;
        return true;
    }
    if (ends->timed_runs != 0 && i < (next += ends->timed_runs)) {
        options->timing = range_timing(ends->timed_runs - (next - i));
        *cause = NT_CAUSE_TIMING;
        return true;
    }
    if (program->has_rough_sizes && i < (next += 1)) {
        options->least_ooms = true;
        return true;
    }
    if (!ends->has_order) {
        options->timing = NT_TIMING_MIXED;
        *cause = NT_CAUSE_TIMING;
        return program->has_later;
    }
    *cause = NT_CAUSE_TIES;
    options->order = i == next       ? NT_ORDER_RISING
                     : i == next + 1 ? NT_ORDER_FALLING
                                     : NT_ORDER_RANDOM;
    /* Half of the orders meet the other timings and sizes as well. */
    if (i % 2 == 1 && program->has_later) {
        options->timing = range_timing(i / 2 % 3);
        *cause = 0;
    }
    if (i % 2 == 1 && program->has_rough_sizes) {
        options->least_ooms = true;
        *cause = 0;
    }
    if (i % 3 == 1 && ends->silent_runs != 0) {
        options->silence.share = range_share(options, i / 3);
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

/* Whether the program would have begun in this very state, and if not, whether other
 * settings left it. */
static nt_status
range_find_start(const nt_alloc *alloc, const nt_program *program,
                 const nt_replay_options *options, bool *is_known, bool *has_history,
                 nt_error *err)
{
    const nt_trace_facts *facts = nt_timeline_facts(program->timeline);
    *has_history = false;
    if (!range_are_alike(&options->settings, nt_snapshot_settings(nt_timeline_snapshot(
                                                 program->timeline)))) {
        NT_TRY(nt_replay_has_history(alloc, program, options, has_history, err));
    }
    *is_known = facts->slack_bound == 0 && facts->unmatched == 0 && !*has_history &&
                !range_lacks_ages(program, options);
    return NT_OK;
}

static size_t
range_runs(const nt_program *program)
{
    const size_t runs = RANGE_STEPS / (program->step_count + 1);
    return runs < RANGE_LEAST ? RANGE_LEAST : runs > RANGE_MOST ? RANGE_MOST : runs;
}

/* Whether the trace puts blocks back, which would have lain elsewhere. */
static bool
range_has_restored(const nt_program *program, const nt_replay_options *options)
{
    const uint8_t *marks = options->silence.marks;
    const size_t count = nt_timeline_event_count(program->timeline);
    bool has_restored = false;
    for (size_t i = 0; marks != NULL && i < count && !has_restored; i++) {
        has_restored = (marks[i] & NT_MARK_RESTORED) != 0;
    }
    return has_restored && !range_are_alike(&options->settings,
                                            nt_snapshot_settings(nt_timeline_snapshot(
                                                program->timeline)));
}

/* How many of `base` runs try what may be silent: half, or more where these are cheap
 * and there are many places to choose among. */
static size_t
range_silent_runs(const nt_program *program, const nt_replay_silence *silence,
                  size_t base)
{
    const size_t cheap = RANGE_STEPS / 2 / (program->step_count + 1);
    size_t most = cheap < RANGE_MOST_SILENT ? cheap : RANGE_MOST_SILENT;
    most =
        most / RANGE_A_PLACE < silence->places ? most : silence->places * RANGE_A_PLACE;
    return most > base / 2 ? most : base / 2;
}

/* How many runs there are in all, where the caller does not say, and how many of them
 * try what may be silent and other timings. */
static void
range_count_runs(const nt_program *program, const nt_replay_options *options,
                 range_open_ends *ends, size_t *runs)
{
    const size_t base = *runs == 0 ? range_runs(program) : *runs;
    const size_t silent =
        *runs == 0 ? range_silent_runs(program, &options->silence, base) : base / 2;
    ends->silent_runs = range_has_silence(options) ? silent : 0;
    ends->timed_runs = program->has_later ? 2 + base / RANGE_MIXED : 0;
    if (*runs == 0) {
        *runs = base + ends->silent_runs;
        *runs += ends->has_history ? NT_LENGTH(range_begins) : 0;
    }
}

/* What is open in the program, and of how many runs its range is made. */
static nt_status
range_plan(const nt_alloc *alloc, const nt_program *program,
           const nt_replay_options *options, size_t *runs, range_open_ends *ends,
           bool *is_known, nt_error *err)
{
    *ends = (range_open_ends){.has_order = range_has_order(program, options)};
    NT_TRY(
        range_find_start(alloc, program, options, is_known, &ends->has_history, err));
    range_count_runs(program, options, ends, runs);
    return NT_OK;
}

nt_status
nt_replay_count_variants(const nt_alloc *alloc, const nt_program *program,
                         const nt_replay_options *options, size_t runs, size_t *out,
                         nt_error *err)
{
    range_open_ends ends;
    bool is_known;
    unsigned cause;
    NT_TRY(range_plan(alloc, program, options, &runs, &ends, &is_known, err));
    *out = 1;
    for (; *out < runs; (*out)++) {
        nt_replay_options other = *options;
        if (!range_vary(program, &ends, *out, &other, &cause)) {
            break;
        }
    }
    return NT_OK;
}

nt_status
nt_replay_run_variant(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, size_t runs, size_t index,
                      const nt_progress *progress, nt_replay_variant *out,
                      bool *is_there, nt_error *err)
{
    nt_replay_variant variant = {.cause = 0};
    nt_replay_options other = *options;
    range_open_ends ends;
    bool is_known;
    NT_TRY(range_plan(alloc, program, options, &runs, &ends, &is_known, err));
    *is_there = index == 0 || (index < runs && range_vary(program, &ends, index, &other,
                                                          &variant.cause));
    if (*is_there) {
        NT_TRY(nt_replay_run(alloc, program, &other, progress, NULL, &variant.figures,
                             err));
    }
    *out = variant;
    return NT_OK;
}

nt_status
nt_replay_join_variants(const nt_alloc *alloc, const nt_program *program,
                        const nt_replay_options *options,
                        const nt_replay_variant *variants, size_t count,
                        nt_replay_range *out, nt_error *err)
{
    nt_replay_figures first = variants[0].figures;
    nt_replay_range range = {.low = first, .high = first};
    bool is_known, has_history;
    NT_TRY(range_find_start(alloc, program, options, &is_known, &has_history, err));
    range.causes |= is_known ? 0 : NT_CAUSE_START;
    range.causes |= range_has_restored(program, options) ? NT_CAUSE_RESTORED : 0;
    for (size_t i = 0; i < count; i++) {
        nt_replay_figures figures = variants[i].figures;
        if (range_add(&range, &first, &figures)) {
            range.causes |= variants[i].cause;
        }
    }
    range_extend(&range);
    if (range.high.is_beyond || range.high.is_stopped) {
        range_open(&range, options);
    }
    *out = range;
    return NT_OK;
}

nt_status
nt_replay_find_range(const nt_alloc *alloc, const nt_program *program,
                     const nt_replay_options *options, size_t runs,
                     const nt_progress *progress, nt_replay_figures *base,
                     nt_replay_range *out, nt_error *err)
{
    nt_replay_variant *variants = NULL;
    size_t count;
    bool is_there;
    NT_TRY(nt_replay_count_variants(alloc, program, options, runs, &count, err));
    const size_t bytes = count * sizeof *variants;
    NT_TRY(nt_take(alloc, (void **)&variants, bytes, err));
    nt_status status = NT_OK;
    for (size_t i = 0; i < count; i++) {
        NT_TRY_DONE(nt_replay_run_variant(alloc, program, options, runs, i, progress,
                                          &variants[i], &is_there, err));
    }
    NT_TRY_DONE(
        nt_replay_join_variants(alloc, program, options, variants, count, out, err));
    *base = variants[0].figures;
done:
    nt_release(alloc, variants, bytes);
    return status;
}
