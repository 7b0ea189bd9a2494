/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend_parts.h"

/* The estimated memory of a walk is, in one of some hundreds, below 1 - so much / n,
 * after its bias and two standard errors were added: Dickey and Fuller, J. of the
 * American Statistical Association 74, 1979, for a series with a line taken off. Each
 * step taken off besides makes a walk look more as if it had a level: Perron,
 * Econometrica 57, 1989. */
#define TREND_UNIT_ROOT 18.0
#define TREND_UNIT_ROOT_STEP 3.0

/* What single points have besides the level hides how long this stays off its line:
 * Schwert, J. of Business and Economic Statistics 7, 1989. So what remembers more than
 * this comes back no sooner than a walk. */
#define TREND_LITTLE 0.35

/* Changes remember each other over this share of all of them. */
#define TREND_REACH 0.15

/* What z deviates of the normal distribution are for a quotient whose error is of the
 * changes within a share b: z (1 + b (0.74 + 0.19 z z)). Fitted to 200,000 quotients of
 * normal changes for each b from 0.1 to 0.35 and 29 to 199 changes; within 2 % up to
 * z = 3.1, beyond which one in a thousand lies: 200 of the quotients, and too few to
 * fit to further out. At TREND_REACH 800,000 more were within 2.5 % up to 3.55, the
 * most that is asked for. */
#define TREND_WIDER 0.74
#define TREND_WIDER_OUTSIDE 0.19

/* A walk reaches this deviate in one of 540 series. Where it was chosen from where on
 * it is looked at, or single changes were left out, more is asked for. */
#define TREND_WALKS 2.9
#define TREND_WALKS_CHOSEN 0.35

/* What is asked for of sixty points, rising to TREND_WALKS where a hundred are left. A
 * leak of a third of the noise of a change reaches it there in 95 of a hundred,
 * whatever that noise remembers; so does one walk in twenty. A series of fewer steps
 * promises no leak so small, and one of a hundred and more has better proof of it. */
#define TREND_WALKS_SIXTY 1.65
enum { TREND_SIXTY = 60, TREND_HUNDRED = 100, TREND_PROMISED = 54 };

/* What is asked of the means of points that come back to their line too soon for a walk
 * by itself: the 1 % point, since a walk in noise must look so besides. */
#define TREND_WALKS_BACK 2.326

/* So many means a series has: enough for Newey and West's variance, and of noise of the
 * single points each has little. */
enum { TREND_MEANS = 20 };

/* The 1 % point: what may be a walk is no more than notable. */
#define TREND_MAY_WALK 2.326

static bool
trend_is_cut(const trend_cuts *cuts, size_t at)
{
    for (size_t k = 0; k < cuts->count; k++) {
        if (cuts->at[k] == at) {
            return true;
        }
    }
    return false;
}

/* The deviate of a quotient t > 0 whose error is of what lies within a share b. */
static double
trend_deviate(double t, double b)
{
    double low = 0.0, high = t;
    for (int round = 0; round < 50; round++) {
        const double z = 0.5 * (low + high);
        const double wider = 1.0 + b * (TREND_WIDER + TREND_WIDER_OUTSIDE * z * z);
        if (z * wider < t) {
            low = z;
        } else {
            high = z;
        }
    }
    return low;
}

/*
 * How far the mean of z[0 .. m - 1], m > 2, is from 0 as a deviate, whatever they
 * remember of each other; they come out without their mean. The mean's variance is that
 * of Newey and West (Econometrica 55, 1987), and the quotient's distribution for a
 * reach that is a share of m that of Kiefer and Vogelsang (Econometric Theory 21,
 * 2005).
 */
static double
trend_drift(double *z, size_t m)
{
    const double count = (double)m;
    const size_t share = (size_t)(TREND_REACH * count), reach = share == 0 ? 1 : share;
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < m; i++) {
        mean += z[i] / count;
    }
    for (size_t i = 0; i < m; i++) {
        z[i] -= mean;
    }
    for (size_t lag = 0; lag < reach; lag++) {
        const double weight = 1.0 - (double)lag / (double)reach;
        double sum = 0.0;
        for (size_t i = lag; i < m; i++) {
            sum += z[i] * z[i - lag];
        }
        variance += (lag == 0 ? 1.0 : 2.0 * weight) * sum / count;
    }
    if (!(mean > 0.0) || !(variance > 0.0)) {
        return 0.0;
    }
    const double t = mean / nt_trend_root(variance / count);
    return trend_deviate(t, (double)reach / count);
}

/* The deviate that the changes of n points of `all` must have to be no walk's, where
 * it is `most` at most. */
static double
trend_asked(size_t n, size_t all, double most)
{
    if (all < TREND_PROMISED) {
        return most;
    }
    const double more = n < TREND_SIXTY ? 0.0 : (double)(n - TREND_SIXTY);
    const double share = more / (double)(TREND_HUNDRED - TREND_SIXTY);
    return TREND_WALKS_SIXTY + share * (TREND_WALKS - TREND_WALKS_SIXTY);
}

/*
 * Fills w->scratch with the changes of y but those at cuts, of bridged points only the
 * one over the bridge; returns how many, and the squares of their distances from their
 * mean.
 */
static size_t
trend_walk_changes(trend_work *w, const double *y, const double *raw, size_t n,
                   const trend_cuts *cuts, double *squares)
{
    size_t count = 0, last = 0;
    double mean = 0.0;
    *squares = 0.0;
    for (size_t i = 1; i < n; i++) {
        if (y[i] != raw[i]) {
            continue;
        }
        if (!trend_is_cut(cuts, i)) {
            const double change = y[i] - y[last], off = change - mean;
            w->scratch[count++] = change;
            mean += off / (double)count;
            *squares += off * (change - mean);
        }
        last = i;
    }
    return count;
}

/* Whether a cut lies behind point `first` and before point `end`. */
static bool
trend_has_cut(const trend_cuts *cuts, size_t first, size_t end)
{
    for (size_t k = 0; k < cuts->count; k++) {
        if (cuts->at[k] > first && cuts->at[k] < end) {
            return true;
        }
    }
    return false;
}

/* The drift of the means of y, each of as many points, two at least, but over cuts. */
static double
trend_drift_of_means(trend_work *w, const double *y, size_t n, const trend_cuts *cuts)
{
    const size_t wide = n < 2 * TREND_MEANS ? 2 : n / TREND_MEANS;
    size_t count = 0;
    for (size_t end = n % wide + 2 * wide; end <= n; end += wide) {
        double change = 0.0;
        for (size_t i = end - wide; i < end; i++) {
            change += (y[i] - y[i - wide]) / (double)wide;
        }
        if (!trend_has_cut(cuts, end - 2 * wide, end)) {
            w->scratch[count++] = change;
        }
    }
    return count > 2 ? trend_drift(w->scratch, count) : 0.0;
}

/* Whether y, with the steps at of->level taken off, comes back to its line too soon for
 * a walk, and means of many points do not wander as those of a walk in noise. */
static bool
trend_comes_back(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
                 const nt_trend_doubted *of, double memory)
{
    const double steps = (double)of->level->count;
    const double apart = TREND_UNIT_ROOT + TREND_UNIT_ROOT_STEP * steps;
    return memory < TREND_LITTLE && memory < 1.0 - apart / (double)n &&
           trend_drift_of_means(w, y, n, cuts) > TREND_WALKS_BACK;
}

/* How far the mean of the changes of x[from .. n - 1] is above what chance carries that
 * of a walk to, as a deviate. */
static double
trend_walk_drift(trend_work *w, const double *x, size_t from, size_t n,
                 const trend_cuts *cuts)
{
    double squares;
    const size_t left = n - from;
    const size_t count =
        trend_walk_changes(w, x + from, w->raw + from, left, cuts, &squares);
    /* Exact to the byte: no chance is in it. */
    if (count < 3 || squares * 12.0 <= (double)count) {
        return TREND_WALKS;
    }
    const bool is_chosen = from > 0 || cuts->count > 0 || w->has_season;
    const double most = TREND_WALKS + (is_chosen ? TREND_WALKS_CHOSEN : 0.0);
    const double asked = w->has_season ? most : trend_asked(left, n, most);
    return trend_drift(w->scratch, count) - asked;
}

double
nt_trend_as_walk(trend_work *w, const double *x, size_t from, size_t n,
                 const trend_cuts *cuts, const nt_trend_doubted *of, double score)
{
    const double *seen = w->goes_both_ways ? w->raw : x, *y = seen + from;
    const size_t left = n - from;
    const double memory =
        w->goes_both_ways ? nt_trend_memory(y, left, of->level) : of->memory;
    if (left < NT_TREND_FEW || nt_trend_goes_up(w, seen, from, n) ||
        trend_comes_back(w, y, left, cuts, of, memory)) {
        return score;
    }
    const double walk = n < TREND_HUNDRED
                            ? NT_TREND_SURE + trend_walk_drift(w, seen, from, n, cuts)
                            : TREND_MAY_WALK;
    return walk < score ? walk : score;
}
