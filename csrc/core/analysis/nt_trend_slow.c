/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend_parts.h"

/* The points of the normal distribution with a fortieth and a hundredth beyond them,
 * and a chance. */
#define TREND_FORTIETH 1.96
#define TREND_PERCENT 2.326
#define TREND_HUNDREDTH 0.01

/* Numbers remember each other at a lag whose autocorrelation is above this: of a
 * hundred that do not, it is so by chance in one series of fifteen. */
#define TREND_REMEMBERED 0.15

/* Changes that remember each other for long still make so many sums, in which growth
 * that ended after four fifths of them stands out. */
enum { TREND_SUMS = 12 };

/* Changes of so many spreads are more than noise. */
#define TREND_LARGE 3.0

/* Fewer rises say nothing of when they come. */
enum { TREND_RISES = 5 };

static double
trend_mean(const double *z, size_t m)
{
    double sum = 0.0;
    for (size_t i = 0; i < m; i++) {
        sum += z[i];
    }
    return sum / (double)m;
}

/* The first lag, 1 at least, at which z[0 .. m - 1], m > 0, no longer remember each
 * other; `most` where they do up to there. */
static size_t
trend_reach(const double *z, size_t m, size_t most)
{
    const double mean = trend_mean(z, m);
    double squares = 0.0;
    size_t lag = 1;
    for (size_t i = 0; i < m; i++) {
        squares += (z[i] - mean) * (z[i] - mean);
    }
    for (; lag < most; lag++) {
        double sum = 0.0;
        for (size_t i = lag; i < m; i++) {
            sum += (z[i] - mean) * (z[i - lag] - mean);
        }
        if (sum <= TREND_REMEMBERED * squares) {
            break;
        }
    }
    return lag;
}

/* Puts the sums of each `wide` of z[0 .. m - 1] in their place and returns how many
 * there are; what is left over at the beginning goes. */
static size_t
trend_add_up(double *z, size_t m, size_t wide)
{
    const size_t count = m / wide, first = m - count * wide;
    for (size_t k = 0; k < count; k++) {
        double sum = 0.0;
        for (size_t i = 0; i < wide; i++) {
            sum += z[first + k * wide + i];
        }
        z[k] = sum;
    }
    return count;
}

/* Where z[0 .. m - 1], rises, lie: how many are above `least`, how far their middle is
 * from that of all, as a deviate, and behind the last one the share without any. */
typedef struct trend_rises {
    size_t count;
    double late;
    double silence;
} trend_rises;

static trend_rises
trend_find_rises(const double *z, size_t m, double least)
{
    trend_rises found = {.silence = 1.0};
    const double points = (double)m;
    for (size_t i = 0; i < m; i++) {
        if (z[i] > least) {
            found.count++;
            found.late += ((double)i + 0.5) / points - 0.5;
            found.silence = (double)(m - 1 - i) / points;
        }
    }
    if (found.count > 0) {
        found.late /= nt_trend_root((double)found.count / 12.0);
    }
    return found;
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
nt_trend_has_slowed(trend_work *w, const double *y, size_t n)
{
    if (n < NT_TREND_FEW) {
        return false;
    }
    double *z = w->scratch, moment = 0.0, squares = 0.0;
    for (size_t i = 1; i < n; i++) {
        z[i - 1] = y[i] - y[i - 1];
    }
    const size_t wide = trend_reach(z, n - 1, (n - 1) / TREND_SUMS);
    const size_t m = trend_add_up(z, n - 1, wide);
    const double mean = trend_mean(z, m);
    for (size_t i = 0; i < m; i++) {
        moment += z[i] * (((double)i + 0.5) / (double)m - 0.5);
        squares += (z[i] - mean) * (z[i] - mean);
    }
    /* Rounding to bytes alone makes such sums. */
    if (squares * 12.0 <= (double)m) {
        return false;
    }
    if (moment < -TREND_FORTIETH * nt_trend_root(squares / 12.0)) {
        return true;
    }
    const double noise = nt_trend_spread(z, m, mean, w->change);
    const trend_rises rises = trend_find_rises(z, m, mean + TREND_LARGE * noise);
    return rises.count >= TREND_RISES &&
           (rises.late < -TREND_PERCENT ||
            trend_none_in(rises.silence, rises.count) < TREND_HUNDREDTH);
}
