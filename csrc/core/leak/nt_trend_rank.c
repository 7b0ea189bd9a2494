/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

/* Of the normal distribution: 1 / (its third quartile), and its 97.5 % point. */
#define TREND_MAD 1.4826
#define TREND_95 1.959964

double
nt_trend_root(double x)
{
    if (!(x > 0.0)) {
        return 0.0;
    }
    /* Scaled into [1, 4), where four of Newton's steps from 1.5 are exact enough. */
    double scale = 1.0;
    while (x >= 4.0) {
        x *= 0.25;
        scale *= 2.0;
    }
    while (x < 1.0) {
        x *= 4.0;
        scale *= 0.5;
    }
    double root = 1.5;
    for (int i = 0; i < 5; i++) {
        root = 0.5 * (root + x / root);
    }
    return root * scale;
}

static void
trend_swap(double *a, double *b)
{
    const double kept = *a;
    *a = *b;
    *b = kept;
}

double
nt_trend_select(double *values, size_t n, size_t k)
{
    size_t first = 0, end = n;
    uint64_t seed = n;
    while (end - first > 1) {
        seed = nt_mix64(seed + 0x9e3779b97f4a7c15u);
        const double pivot = values[first + seed % (end - first)];
        /* Three parts: below, equal, above; series have many equal values. */
        size_t below = first, above = end, at = first;
        while (at < above) {
            if (values[at] < pivot) {
                trend_swap(&values[at++], &values[below++]);
            } else if (values[at] > pivot) {
                trend_swap(&values[at], &values[--above]);
            } else {
                at++;
            }
        }
        if (k < below) {
            end = below;
        } else if (k >= above) {
            first = above;
        } else {
            return pivot;
        }
    }
    return values[first];
}

double
nt_trend_median(const double *values, size_t n, double *scratch)
{
    for (size_t i = 0; i < n; i++) {
        scratch[i] = values[i];
    }
    const double upper = nt_trend_select(scratch, n, n / 2);
    if (n % 2 != 0) {
        return upper;
    }
    return 0.5 * (upper + nt_trend_select(scratch, n, n / 2 - 1));
}

double
nt_trend_spread(const double *values, size_t n, double centre, double *scratch)
{
    for (size_t i = 0; i < n; i++) {
        scratch[i] = values[i] > centre ? values[i] - centre : centre - values[i];
    }
    return TREND_MAD * nt_trend_select(scratch, n, n / 2);
}

/* The slopes of all pairs, and the Mann-Kendall sum of their signs. */
static size_t
trend_pairs(trend_work *w, const double *values, size_t n, double *signs)
{
    size_t count = 0;
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            const double rise = values[j] - values[i];
            sum += (rise > 0.0) - (rise < 0.0);
            w->pairs[count++] = rise / (double)(j - i);
        }
    }
    *signs = (double)sum;
    return count;
}

/* The median of w->pairs. */
static double
trend_middle(trend_work *w, size_t count)
{
    const double upper = nt_trend_select(w->pairs, count, count / 2);
    if (count % 2 != 0) {
        return upper;
    }
    return 0.5 * (upper + nt_trend_select(w->pairs, count, count / 2 - 1));
}

double
nt_trend_slope(trend_work *w, const double *values, size_t n)
{
    double signs;
    return trend_middle(w, trend_pairs(w, values, n, &signs));
}

/*
 * The variance of the Mann-Kendall sum where nothing grows; t equal values take
 * t (t - 1) (2 t + 5) / 18 off. The values in `scratch` come into another order.
 */
static double
trend_variance(double *scratch, size_t n)
{
    const double all = (double)n;
    double variance = all * (all - 1.0) * (2.0 * all + 5.0);
    /* The smallest that is left, and its equals, are taken away round by round. */
    for (size_t first = 0; first < n;) {
        const double least = nt_trend_select(scratch + first, n - first, 0);
        size_t end = first;
        for (size_t i = first; i < n; i++) {
            if (scratch[i] == least) {
                trend_swap(&scratch[i], &scratch[end++]);
            }
        }
        const double t = (double)(end - first);
        variance -= t * (t - 1.0) * (2.0 * t + 5.0);
        first = end;
    }
    return variance / 18.0;
}

/* Sen's interval: ranks of the slopes as far from the middle as chance carries the sum.
 */
static void
trend_interval(trend_work *w, size_t count, double variance, double scale,
               nt_trend *out)
{
    const double off = TREND_95 * nt_trend_root(variance);
    const double low = 0.5 * ((double)count - off);
    const double high = 0.5 * ((double)count + off);
    const size_t below = low > 0.0 ? (size_t)low : 0;
    const size_t above = high < (double)(count - 1) ? (size_t)high + 1 : count - 1;
    out->slope = trend_middle(w, count) * scale;
    out->low = nt_trend_select(w->pairs, count, below) * scale;
    out->high =
        nt_trend_select(w->pairs, count, above < count ? above : count - 1) * scale;
}

void
nt_trend_test(trend_work *w, const double *y, size_t n, double memory, double inflation,
              nt_trend *out)
{
    const size_t m = n - 1;
    double signs = 0.0, variance = 0.0;
    size_t count = m < 2 ? 0 : trend_pairs(w, w->z, m, &signs);
    if (count != 0) {
        for (size_t i = 0; i < m; i++) {
            w->scratch[i] = w->z[i];
        }
        variance = trend_variance(w->scratch, m) * inflation;
    }
    const double step = (double)((signs > 0.0) - (signs < 0.0));
    out->score = variance > 0.0 ? (signs - step) / nt_trend_root(variance) : 0.0;
    out->memory = memory;
    if (n >= NT_TREND_FEW) {
        trend_interval(w, count, variance, 1.0 / (1.0 - memory), out);
        return;
    }
    /* Every slope that two points have: with so few, chance may carry it as far. */
    count = trend_pairs(w, y, n, &signs);
    out->slope = trend_middle(w, count);
    out->low = nt_trend_select(w->pairs, count, 0);
    out->high = nt_trend_select(w->pairs, count, count - 1);
}
