/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend.h"

#include <string.h>

#include "analysis/nt_trend_parts.h"

/* What a growth must reach to be looked at more closely: the 1 % point. */
#define TREND_NOTABLE 2.326

/* A bend of so many standard errors is one: half of a hundredth of straight lines have
 * it. Behind a warm-up that came to its level little by little a twentieth is enough.
 */
#define TREND_BENT 2.6
#define TREND_BENT_AFTER 1.7

/* What grows by less than this share of such a warm-up is the rest of that. */
#define TREND_REST 0.05

/* Points that are left at least when growth that levels off is set aside. */
enum { TREND_LEFT = 8 };

/* A level that changes more often than this goes by jumps. */
enum { TREND_SEVERAL = 3 };

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
    w->z = nt_allocate(alloc, capacity * sizeof *w->z);
    w->scratch = nt_allocate(alloc, capacity * sizeof *w->scratch);
    w->change = nt_allocate(alloc, capacity * sizeof *w->change);
    w->raw = nt_allocate(alloc, capacity * sizeof *w->raw);
    w->season = nt_allocate(alloc, capacity * sizeof *w->season);
    w->pairs = nt_allocate(alloc, pairs * sizeof *w->pairs);
    if (w->z == NULL || w->scratch == NULL || w->change == NULL || w->raw == NULL ||
        w->season == NULL || w->pairs == NULL) {
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

/* Tests the points from out->warmup on, and finds the jumps in them. */
static void
trend_examine(trend_work *w, const double *x, size_t n, trend_cuts *cuts, nt_trend *out)
{
    const double *y = x + out->warmup;
    const size_t left = n - out->warmup;
    double centre;
    *cuts = (trend_cuts){0};
    out->may_wander = false;
    out->noise = nt_trend_noise(w, y, left, &centre);
    if (left < 2) {
        out->slope = out->low = out->high = out->score = 0.0;
        return;
    }
    nt_trend_find_jumps(w, y, left, out->noise, cuts);
    trend_test(w, y, left, cuts, out);
    if (out->score > TREND_NOTABLE) {
        /* What goes by many jumps has these for its changes. */
        const trend_cuts none = {0}, jumps = cuts->count > TREND_SEVERAL ? none : *cuts;
        const bool by_jumps = cuts->count > TREND_SEVERAL;
        nt_trend_find_steps(w, y, left, cuts);
        trend_test(w, y, left, cuts, out);
        const nt_trend_doubted of = {
            .memory = by_jumps ? nt_trend_memory(y, left, &none) : out->memory,
            .level = by_jumps ? &none : cuts};
        const double walk =
            nt_trend_as_walk(w, x, out->warmup, n, &jumps, &of, out->score);
        out->may_wander = out->score > NT_TREND_SURE && walk <= NT_TREND_SURE &&
                          nt_trend_seems_to_rise(w, x, out->warmup, n);
        out->score = walk;
    }
}

/* Whether what grows from x[out->warmup] on is about to end, or has. */
static bool
trend_is_levelling(trend_work *w, const double *x, size_t n, const trend_cuts *cuts,
                   const nt_trend *out)
{
    const double *y = x + out->warmup;
    const size_t left = n - out->warmup;
    const bool is_gradual = w->doubt > 1.0;
    if (out->score <= TREND_NOTABLE || left < TREND_LEFT) {
        return false;
    }
    const double rest = TREND_REST * (y[0] - x[0]);
    return nt_trend_levels_off(w, y, left, cuts, out->memory,
                               is_gradual ? TREND_BENT_AFTER : TREND_BENT) ||
           nt_trend_has_slowed(w, y, left) ||
           (is_gradual && out->slope * (double)(left - 1) < rest);
}

/* Sets more aside as long as what is left levels off. */
static void
trend_settle(trend_work *w, const double *x, size_t n, trend_cuts *cuts, nt_trend *out)
{
    trend_examine(w, x, n, cuts, out);
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

static bool
trend_is_growing(const nt_trend *out)
{
    return out->score > NT_TREND_SURE && !out->is_levelling;
}

/* Adds the season of the points from `from` on to x and w->raw, so many times; what is
 * on no bridge stays the same in both. */
static void
trend_add_season(trend_work *w, double *x, size_t from, size_t n, double times)
{
    for (size_t i = from; i < n; i++) {
        const bool is_bridged = x[i] != w->raw[i];
        x[i] += times * w->season[i];
        w->raw[i] = is_bridged ? w->raw[i] + times * w->season[i] : x[i];
    }
}

/* Draws the bridges of points x[from ..] anew, over what they are in w->raw. */
static void
trend_bridge_again(trend_work *w, double *x, size_t from, size_t n)
{
    double centre;
    memcpy(x + from, w->raw + from, (n - from) * sizeof *x);
    const double noise = nt_trend_noise(w, x + from, n - from, &centre);
    (void)nt_trend_bridge(w, x + from, n - from, noise < 0.5 ? 0.5 : noise);
}

/*
 * Looks once more at x[out->warmup ..] without the season of what it was before bursts
 * were bridged, or else of what it is; false where it has none. x and w->raw come back
 * as they were, but for where its bridges lie.
 */
static bool
trend_look_without(trend_work *w, double *x, size_t n, bool is_raw, nt_trend *out)
{
    const size_t from = out->warmup;
    trend_cuts cuts;
    if (!nt_trend_find_season(w, (is_raw ? w->raw : x) + from, n - from,
                              w->season + from)) {
        return false;
    }
    w->has_season = true;
    trend_add_season(w, x, from, n, -1.0);
    if (is_raw) {
        trend_bridge_again(w, x, from, n);
    }
    trend_settle(w, x, n, &cuts, out);
    trend_add_season(w, x, from, n, 1.0);
    if (is_raw) {
        trend_bridge_again(w, x, 0, n);
    }
    /* Less than a byte in all is what rounding left of the season. */
    return trend_is_growing(out) && out->slope * (double)(n - out->warmup) >= 1.0;
}

/* Looks at x[out->warmup ..], and, if that does not grow and has a season, once more
 * without this: what is found there counts if it grows. */
static void
trend_settle_season(trend_work *w, double *x, size_t n, nt_trend *out)
{
    const nt_trend begin = *out;
    const double doubt = w->doubt;
    trend_cuts cuts;
    trend_settle(w, x, n, &cuts, out);
    /* Where nothing was bridged both are the same. */
    const int looks = w->bridged == 0 ? 1 : 2;
    for (int look = 0; look < looks && !trend_is_growing(out); look++) {
        nt_trend without = begin;
        w->doubt = doubt;
        if (trend_look_without(w, x, n, look == 0, &without)) {
            *out = without;
        }
    }
}

/* The work on points x[0 .. n - 1]; `falls` has room for n. */
static void
trend_look(trend_work *w, double *x, size_t *falls, size_t n, bool find_warmup,
           nt_trend *out)
{
    double centre;
    for (size_t i = 0; i < n; i++) {
        w->raw[i] = x[i];
    }
    out->noise = nt_trend_noise(w, x, n, &centre);
    out->bursts = n < 4 ? 0 : nt_trend_bridge(w, x, n, out->noise);
    out->warmup = find_warmup ? nt_trend_warmup(w, x, n) : 0;
    nt_trend_find_teeth(w, x + out->warmup, w->raw + out->warmup, n - out->warmup,
                        out->noise, falls, out);
    if (out->teeth < 2) {
        trend_settle_season(w, x, n, out);
    }
    const double *rest = x + out->warmup;
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
