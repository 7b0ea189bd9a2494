/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

/* The point of the normal distribution with a fortieth beyond it. */
#define TREND_FORTIETH 1.96

/* Numbers remember each other at a lag whose autocorrelation is above this: of a
 * hundred that do not, it is so by chance in one series of fifteen. */
#define TREND_REMEMBERED 0.15

/* Changes that remember each other for long still make so many sums, in which growth
 * that ended after four fifths of them stands out. */
enum { TREND_SUMS = 12 };

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
    return squares * 12.0 > (double)m &&
           moment < -TREND_FORTIETH * nt_trend_root(squares / 12.0);
}
