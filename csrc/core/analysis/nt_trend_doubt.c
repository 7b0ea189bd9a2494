/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend_parts.h"

/* The point of the normal distribution with a fortieth beyond it, and a chance. */
#define TREND_FORTIETH 1.96
#define TREND_HUNDREDTH 0.01

/* The estimated memory of a walk is, in one of some hundreds, below 1 - so much / n,
 * after its bias and two standard errors were added: Dickey and Fuller, J. of the
 * American Statistical Association 74, 1979, for a series with a line taken off. */
#define TREND_UNIT_ROOT 14.0

/* What is asked for of the changes of a walk is less for fewer points than these: by so
 * much for each e-th part of them, and so much at the most. */
#define TREND_PROOF 120.0
#define TREND_LENIENT 1.73
#define TREND_MOST_LENIENT 1.2

/* Fewer rises say nothing of when they come. */
enum { TREND_RISES = 5 };

/* The logarithm of x >= 1, from that of its power of two and a series. */
static double
trend_log(double x)
{
    double log = 0.0;
    while (x > 1.5) {
        x *= 0.5;
        log += 0.6931471805599453;
    }
    const double u = (x - 1.0) / (x + 1.0), square = u * u;
    return log + 2.0 * u * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)));
}

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

/* How far the mean of z[0 .. m - 1] is from 0, in standard errors; m > 2. */
static double
trend_mean_score(const double *z, size_t m)
{
    double mean = 0.0, squares = 0.0;
    for (size_t i = 0; i < m; i++) {
        const double off = z[i] - mean;
        mean += off / (double)(i + 1);
        squares += off * (z[i] - mean);
    }
    const double error = nt_trend_root(squares / (double)(m - 1) / (double)m);
    return error > 0.0 ? mean / error : 0.0;
}

/*
 * Wilcoxon's signed ranks (Biometrics Bulletin 1, 1945) of z[0 .. m - 1], zeros left
 * out, as a deviate: they need no more than that rises and falls are alike, and single
 * large ones count for little. Only pairs are compared: the sum of the signs of all
 * z[i] + z[j], i <= j, is that of the signed ranks.
 */
static double
trend_sign_score(const double *z, size_t m)
{
    double sum = 0.0, moved = 0.0;
    for (size_t i = 0; i < m; i++) {
        if (z[i] == 0.0) {
            continue;
        }
        moved += 1.0;
        for (size_t j = 0; j <= i; j++) {
            const double pair = z[i] + z[j];
            sum += z[j] == 0.0 ? 0.0 : (double)(pair > 0.0) - (double)(pair < 0.0);
        }
    }
    const double variance = moved * (moved + 1.0) * (2.0 * moved + 1.0) / 6.0;
    return variance > 0.0 ? sum / nt_trend_root(variance) : 0.0;
}

double
nt_trend_as_walk(trend_work *w, const double *y, const double *raw, size_t n,
                 const trend_cuts *cuts, double memory, double score)
{
    if (n < NT_TREND_FEW || memory < 1.0 - TREND_UNIT_ROOT / (double)n) {
        return score;
    }
    size_t count = 0;
    double mean = 0.0, spread = 0.0;
    size_t last = 0;
    for (size_t i = 1; i < n; i++) {
        if (y[i] != raw[i]) {
            continue;
        }
        if (!trend_is_cut(cuts, i)) {
            const double change = y[i] - y[last], off = change - mean;
            w->scratch[count++] = change;
            mean += off / (double)count;
            spread += off * (change - mean);
        }
        last = i;
    }
    /* Exact to the byte: no chance is in it. */
    if (count < 3 || spread * 12.0 <= (double)count) {
        return score;
    }
    const double by_mean = trend_mean_score(w->scratch, count);
    const double by_sign = trend_sign_score(w->scratch, count);
    const double points = (double)n;
    const double lacking = points < TREND_PROOF ? trend_log(TREND_PROOF / points) : 0.0;
    const double lenient = TREND_LENIENT * lacking;
    const double walk = (by_mean > by_sign ? by_mean : by_sign) +
                        (lenient < TREND_MOST_LENIENT ? lenient : TREND_MOST_LENIENT);
    return walk < score ? walk : score;
}

/* The chance that none of so many rises, each anywhere, comes in the last `share`. */
static double
trend_none_in(double share, size_t rises)
{
    double chance = 1.0;
    for (size_t k = 0; k < rises && chance > 1e-9; k++) {
        chance *= 1.0 - share;
    }
    return chance;
}

bool
nt_trend_has_slowed(const double *y, size_t n)
{
    if (n < NT_TREND_FEW) {
        return false;
    }
    const double points = (double)(n - 1), mean = (y[n - 1] - y[0]) / points;
    double moment = 0.0, squares = 0.0;
    size_t rises = 0, last = 0;
    for (size_t i = 1; i < n; i++) {
        const double change = y[i] - y[i - 1];
        moment += change * (((double)i - 0.5) / points - 0.5);
        squares += (change - mean) * (change - mean);
        if (change > mean) {
            rises++;
            last = i;
        }
    }
    /* Rounding to bytes alone makes such sums. */
    if (squares * 12.0 <= points) {
        return false;
    }
    if (moment < -TREND_FORTIETH * nt_trend_root(squares / 12.0)) {
        return true;
    }
    const double share = (double)(n - 1 - last) / points;
    return rises >= TREND_RISES && trend_none_in(share, rises) < TREND_HUNDREDTH;
}
