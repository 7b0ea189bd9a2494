/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend.h"

#include <string.h>

#include "leak/nt_trend_parts.h"

/* What a rise must reach to be looked at more closely: the 2.5 % point, from which on
 * the 95 % interval of the slope is above 0. */
#define TREND_NOTABLE 1.96

/* A score above which growth is believed: beyond it lies 0.003 of the normal
 * distribution, which is diagnose/leaks/verdict.py's ALPHA. */
#define TREND_SURE 2.748

/* The same of a part of a series whose whole was asked before: half as much, since what
 * is asked twice looks like growth more often. */
#define TREND_SURE_OF_PART 2.968

/* What has a score above this, the 8.5 % point, and a rise by its ranks that one in a
 * hundred has by chance, is in doubt. */
#define TREND_DOUBTFUL 1.3722
#define TREND_DOUBTFUL_RISE 2.326

/* A bend of so many standard errors is one: half of a hundredth of straight lines have
 * it. Behind a warm-up that came to its level little by little a twentieth is enough.
 */
#define TREND_BENT 2.6
#define TREND_BENT_AFTER 1.7

/* Growth slows down where it ends at less than this share of what it began at: half of
 * it, or e^-1, what comes ever nearer in one time constant, where the last eighth rises
 * by half of its due and more. */
#define TREND_SLOWER 0.5
#define TREND_SLOWER_STILL 0.37
#define TREND_STILL (1.0 / 16.0)

/* What grows by less than this share of such a warm-up is the rest of that. */
#define TREND_REST 0.05

/* Where more jumps than this were found, none of them is where something began: a walk
 * has many. */
enum { TREND_FEW_JUMPS = 4 };

/* Points that are left at least when growth that levels off is set aside; and so few
 * that whatever slows may level off: nothing shows yet that it goes on. */
enum { TREND_LEFT = 8, TREND_YOUNG = 24 };

/* Points whose median is the last value. */
enum { TREND_LAST = 5 };

static void
trend_work_clear(trend_work *w)
{
    const size_t size = w->capacity * sizeof *w->z;
    nt_release(&w->alloc, w->z, size);
    nt_release(&w->alloc, w->scratch, size);
    nt_release(&w->alloc, w->change, size);
    nt_release(&w->alloc, w->raw, size);
    nt_release(&w->alloc, w->shown, size);
    nt_release(&w->alloc, w->season, size);
    nt_release(&w->alloc, w->pairs, w->pair_capacity * sizeof *w->pairs);
}

static nt_status
trend_work_init(trend_work *w, const nt_alloc *alloc, size_t points, nt_error *err)
{
    /* At least two of each, so that no size is 0. */
    const size_t capacity = points < 2 ? 2 : points;
    const size_t pairs = capacity * (capacity + 1) / 2;
    *w = (trend_work){.alloc = *alloc, .capacity = capacity, .pair_capacity = pairs};
    w->doubt = 1.0;
    w->sure = TREND_SURE;
    w->z = nt_allocate(alloc, capacity * sizeof *w->z);
    w->scratch = nt_allocate(alloc, capacity * sizeof *w->scratch);
    w->change = nt_allocate(alloc, capacity * sizeof *w->change);
    w->raw = nt_allocate(alloc, capacity * sizeof *w->raw);
    w->shown = nt_allocate(alloc, capacity * sizeof *w->shown);
    w->season = nt_allocate(alloc, capacity * sizeof *w->season);
    w->pairs = nt_allocate(alloc, pairs * sizeof *w->pairs);
    if (w->z == NULL || w->scratch == NULL || w->change == NULL || w->raw == NULL ||
        w->shown == NULL || w->season == NULL || w->pairs == NULL) {
        trend_work_clear(w);
        return nt_fail_nomem(err);
    }
    return NT_OK;
}

/* A bin's lower median, for bins of any width: the value that half of them reach. */
static double
trend_bin(const uint64_t *values, size_t count)
{
    uint64_t low = UINT64_MAX, high = 0;
    for (size_t i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        size_t reached = 0;
        for (size_t i = 0; i < count; i++) {
            reached += values[i] <= middle;
        }
        if (2 * reached >= count) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return (double)low;
}

/* Fills `x`; the first bin is the one that may be short, since it is warm-up anyhow. */
static void
trend_fill(double *x, size_t points, const uint64_t *values, size_t count, size_t bin)
{
    size_t end = count;
    for (size_t i = points; i-- > 0;) {
        const size_t first = end > bin ? end - bin : 0;
        x[i] =
            bin == 1 ? (double)values[first] : trend_bin(values + first, end - first);
        end = first;
    }
}

/* Tests y[0 .. n - 1] with the steps at cuts, which out->jumps then tells. */
static void
trend_test(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
           nt_trend *out)
{
    double heights[NT_TREND_MOST_CUTS];
    const double memory = nt_trend_memory(y, n, cuts);
    const double inflation = nt_trend_whiten(w, y, n, cuts, memory, heights);
    /* Points that were made up tell nothing, and at most half are counted as such. */
    const double points = (double)n, seen = (double)n - (double)w->bridged;
    const double made_up = 2.0 * seen > points ? points / seen : 2.0;
    nt_trend_test(w, y, n, memory, inflation * made_up, out);
    if (n >= NT_TREND_FEW) {
        const trend_start start = nt_trend_look_back(y, n, cuts, memory, w->doubt);
        nt_trend_add_start(&start, made_up, out);
    }
    out->jump_count =
        cuts->count < NT_TREND_MOST_JUMPS ? cuts->count : NT_TREND_MOST_JUMPS;
    for (size_t k = 0; k < out->jump_count; k++) {
        out->jumps[k] =
            (nt_trend_jump){(out->warmup + cuts->at[k]) * out->bin, heights[k]};
    }
}

/* Tests the points from out->warmup on, and finds the jumps in them, which stand in
 * cuts without the steps that a rise is held against besides. */
static void
trend_examine(trend_work *w, const double *x, size_t n, trend_cuts *cuts, nt_trend *out)
{
    const double *y = x + out->warmup;
    const size_t left = n - out->warmup;
    double centre;
    *cuts = (trend_cuts){0};
    out->noise = nt_trend_noise(w, y, left, &centre);
    if (left < 2) {
        out->slope = out->low = out->high = out->score = 0.0;
        return;
    }
    nt_trend_find_jumps(w, y, left, out->noise, cuts);
    trend_test(w, y, left, cuts, out);
    if (out->score > TREND_NOTABLE) {
        trend_cuts steps = *cuts;
        nt_trend_find_steps(w, y, left, &steps);
        trend_test(w, y, left, &steps, out);
    }
}

/* Whether x[out->warmup ..] rises by its own test: of a saw-tooth, the points after its
 * falls; and where jumps were taken off that are how it rises, the test with them. */
static bool
trend_rises(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    if (out->teeth >= 2) {
        return out->slope > 0.0;
    }
    if (out->score <= TREND_NOTABLE && out->jump_count > 0) {
        const trend_cuts none = {0};
        nt_trend whole = *out;
        trend_test(w, x + out->warmup, n - out->warmup, &none, &whole);
        *out = whole.score > TREND_NOTABLE ? whole : *out;
    }
    return out->score > TREND_NOTABLE;
}

/* Weighs the figures of x, whose slope, score and jumps are those of its test. Where
 * that shows a rise, it is as sure as the figures say: a walk may rise beyond all
 * doubt. */
static void
trend_decide(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    if (n - out->warmup < NT_TREND_FEW) {
        return;
    }
    nt_trend_measure(w, x, n, out);
    const double weighed = nt_trend_weigh(out->figures);
    out->is_in_doubt = false;
    if (weighed <= TREND_DOUBTFUL) {
        out->score = weighed < out->score ? weighed : out->score;
    } else if (trend_rises(w, x, n, out)) {
        out->is_in_doubt = weighed <= w->sure && out->score > TREND_DOUBTFUL_RISE;
        out->score = weighed;
    }
}

/* Whether x[out->warmup ..] grows ever more slowly. Where it still rises at its end, a
 * warm-up that came to its level little by little is a part of what slows down. */
static bool
trend_bends(trend_work *w, const double *x, size_t n, const trend_cuts *cuts,
            const nt_trend *out)
{
    const bool is_gradual = w->doubt > 1.0;
    const bool still_rises = out->figures[NT_TREND_EIGHTH] > TREND_STILL;
    const double sure = is_gradual ? TREND_BENT_AFTER : TREND_BENT;
    const double share = still_rises && !is_gradual ? TREND_SLOWER_STILL : TREND_SLOWER;
    trend_cuts all = *cuts;
    for (size_t k = 0; k < all.count; k++) {
        all.at[k] += out->warmup;
    }
    return nt_trend_levels_off(w, x + out->warmup, n - out->warmup, cuts, out->memory,
                               sure, share) &&
           (!(is_gradual && still_rises) ||
            nt_trend_levels_off(w, x, n, &all, out->memory, sure, TREND_SLOWER_STILL));
}

/* Whether what rises from x[out->warmup] on, as its test shows, is about to end, or
 * has. What is behind growth that levels off is so where it slows at all. */
static bool
trend_is_levelling(trend_work *w, const double *x, size_t n, const trend_cuts *cuts,
                   const nt_trend *out)
{
    const double *y = x + out->warmup;
    const size_t left = n - out->warmup;
    const bool is_gradual = w->doubt > 1.0, was_levelling = out->is_levelling;
    if (out->score <= TREND_NOTABLE || left < TREND_LEFT) {
        return false;
    }
    const double rest = TREND_REST * (y[0] - x[0]);
    return trend_bends(w, x, n, cuts, out) ||
           (is_gradual && out->slope * (double)(left - 1) < rest) ||
           ((was_levelling || left < TREND_YOUNG) && nt_trend_has_slowed(w, y, left));
}

/* Sets more aside as long as what is left levels off. */
static void
trend_settle(trend_work *w, const double *x, size_t n, trend_cuts *cuts, nt_trend *out)
{
    for (;;) {
        const size_t left = n - out->warmup;
        out->is_levelling = trend_is_levelling(w, x, n, cuts, out);
        const size_t more = left / 6 == 0 ? 1 : left / 6;
        if (!out->is_levelling || left - more < TREND_LEFT || left - more < n / 3) {
            return;
        }
        out->warmup += more;
        w->doubt = NT_TREND_DOUBT;
        trend_examine(w, x, n, cuts, out);
    }
}

/* The figures that are told are those of all that was judged first: tools/fit_trend.py
 * fits the weights on them, and they don't depend on these weights. */
static void
trend_tell_figures_of(const nt_trend *whole, nt_trend *part)
{
    memcpy(part->figures, whole->figures, sizeof part->figures);
}

/*
 * Tests x[out->warmup ..], and decides whether that grows. What levels off is set
 * aside, and the rest is told: whatever of it goes on without slowing may be growth.
 */
static void
trend_judge(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    trend_cuts cuts;
    trend_examine(w, x, n, &cuts, out);
    nt_trend settled = *out;
    trend_decide(w, x, n, out);
    trend_tell_figures_of(out, &settled);
    const bool grows = out->score > w->sure;
    if (grows && !trend_is_levelling(w, x, n, &cuts, &settled)) {
        return;
    }
    trend_settle(w, x, n, &cuts, &settled);
    const bool rises = settled.is_levelling || settled.score > TREND_NOTABLE;
    if (grows && !settled.is_levelling) {
        trend_decide(w, x, n, &settled);
        trend_tell_figures_of(out, &settled);
    } else {
        settled.score = settled.score < out->score ? settled.score : out->score;
        settled.is_in_doubt = out->is_in_doubt && rises;
    }
    *out = settled;
}

/* The largest jump of x[out->warmup ..], as a point of x; 0 where there is none that
 * has points before it, and most of all points behind it, or where there are many. */
static size_t
trend_watershed(const nt_trend *out, size_t n)
{
    double most = 0.0;
    size_t at = 0;
    for (size_t k = 0; k < out->jump_count; k++) {
        const double height = out->jumps[k].bytes;
        const double size = height < 0.0 ? -height : height;
        at = size > most ? out->jumps[k].step / out->bin : at;
        most = size > most ? size : most;
    }
    const bool is_early = 2 * at <= n + out->warmup;
    const bool is_rare = out->jump_count <= TREND_FEW_JUMPS;
    return at >= out->warmup + NT_TREND_FEW && is_early && is_rare ? at : 0;
}

/* Judges x, and, where that does not grow beyond doubt, what is behind its largest
 * jump, as if all before were warm-up: a leak may begin with what began there. */
static void
trend_judge_parts(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    const double doubt = w->doubt;
    nt_trend behind = *out;
    trend_judge(w, x, n, out);
    const size_t at = out->score > w->sure ? 0 : trend_watershed(out, n);
    if (at == 0) {
        return;
    }
    w->doubt = doubt;
    w->sure = TREND_SURE_OF_PART;
    behind.warmup = at;
    trend_judge(w, x, n, &behind);
    if (behind.score > w->sure && !behind.is_levelling) {
        trend_tell_figures_of(out, &behind);
        *out = behind;
    }
}

/* Takes the season of the points from `from` on off x and w->raw, and bridges what is
 * left anew. It is one of what they were before bursts were bridged, or else of x. */
static void
trend_take_season(trend_work *w, double *x, size_t from, size_t n)
{
    const size_t left = n - from;
    double centre;
    if (!nt_trend_find_season(w, w->raw + from, left, w->season + from) &&
        (w->bridged == 0 ||
         !nt_trend_find_season(w, x + from, left, w->season + from))) {
        return;
    }
    for (size_t i = from; i < n; i++) {
        w->raw[i] -= w->season[i];
        x[i] = w->raw[i];
    }
    const double noise = nt_trend_noise(w, x + from, left, &centre);
    (void)nt_trend_bridge(w, x + from, left, noise < 0.5 ? 0.5 : noise);
}

/* The work on points x[0 .. n - 1]; `falls` has room for n. */
static void
trend_look(trend_work *w, double *x, size_t *falls, size_t n, bool find_warmup,
           nt_trend *out)
{
    double centre;
    memcpy(w->raw, x, n * sizeof *x);
    out->noise = nt_trend_noise(w, x, n, &centre);
    out->bursts = n < 4 ? 0 : nt_trend_bridge(w, x, n, out->noise);
    out->warmup = find_warmup ? nt_trend_warmup(w, x, n) : 0;
    memcpy(w->shown, x, n * sizeof *x);
    nt_trend_find_teeth(w, x + out->warmup, w->raw + out->warmup, n - out->warmup,
                        out->noise, falls, out);
    trend_take_season(w, x, out->warmup, n);
    if (out->teeth < 2) {
        trend_judge_parts(w, x, n, out);
    } else {
        trend_decide(w, x, n, out);
    }
    const double *rest = w->shown + out->warmup;
    out->points = n - out->warmup;
    out->level = nt_trend_median(rest, out->points, w->scratch);
    const size_t last = out->points < TREND_LAST ? out->points : TREND_LAST;
    out->last = nt_trend_median(rest + out->points - last, last, w->scratch);
    const double bin = (double)out->bin;
    out->warmup *= out->bin;
    out->slope /= bin;
    out->low /= bin;
    out->high /= bin;
    out->tooth_slope /= bin;
}

nt_status
nt_trend_find(const nt_alloc *alloc, const uint64_t *values, size_t count,
              bool find_warmup, bool are_windows, nt_trend *out, nt_error *err)
{
    if (count == 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "a series without values");
    }
    nt_trend found = {.bin = (count - 1) / NT_TREND_MOST + 1};
    const size_t n = (count - 1) / found.bin + 1;
    trend_work w = {.capacity = 0};
    double *x = NULL;
    size_t *falls = NULL;
    nt_status status = NT_OK;
    NT_TRY(trend_work_init(&w, alloc, n, err));
    x = nt_allocate(alloc, n * sizeof *x);
    falls = nt_allocate(alloc, n * sizeof *falls);
    if (x == NULL || falls == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    w.are_windows = are_windows;
    trend_fill(x, n, values, count, found.bin);
    trend_look(&w, x, falls, n, find_warmup, &found);
    *out = found;
done:
    nt_release(alloc, x, n * sizeof *x);
    nt_release(alloc, falls, n * sizeof *falls);
    trend_work_clear(&w);
    return status;
}
