/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

/* Of the normal distribution: the 97.5 % point, and that with half of a hundredth above
 * it. */
#define TREND_95 1.959964
#define TREND_APART 2.576

/* A row of the equations: mean, line, steps, each without what the row before it left.
 */
static void
trend_row(const trend_cuts *cuts, size_t n, size_t i, double memory, double *x)
{
    const double t = ((double)i + 0.5) / (double)n - 0.5;
    x[0] = 1.0 - memory;
    x[1] = t - memory * (t - 1.0 / (double)n);
    for (size_t k = 0; k < cuts->count; k++) {
        const size_t at = cuts->at[k];
        x[2 + k] = i < at ? 0.0 : i == at ? 1.0 : 1.0 - memory;
    }
}

/* What is fitted to the changes of y, and that with its first point too. */
typedef struct trend_normal {
    double a[NT_TREND_COLUMNS][NT_TREND_COLUMNS];
    double b[NT_TREND_COLUMNS];
    size_t parts;
} trend_normal;

/* The slope, and what its variance is where that of the noise is 1; `a` is lost. */
static double
trend_solved_slope(trend_normal *normal, double *variance)
{
    trend_normal unit = *normal;
    for (size_t k = 0; k < unit.parts; k++) {
        unit.b[k] = k == 1 ? 1.0 : 0.0;
    }
    nt_trend_solve(unit.a, unit.b, unit.parts);
    *variance = unit.b[1];
    nt_trend_solve(normal->a, normal->b, normal->parts);
    return normal->b[1];
}

/* The equations of all points but the first. */
static void
trend_sum(trend_normal *normal, const double *y, size_t n, const trend_cuts *cuts,
          double memory)
{
    double x[NT_TREND_COLUMNS];
    *normal = (trend_normal){.parts = 2 + cuts->count};
    for (size_t i = 1; i < n; i++) {
        const double z = (y[i] - y[0]) - memory * (y[i - 1] - y[0]);
        trend_row(cuts, n, i, memory, x);
        for (size_t k = 0; k < normal->parts; k++) {
            normal->b[k] += x[k] * z;
            for (size_t j = 0; j < normal->parts; j++) {
                normal->a[k][j] += x[k] * x[j];
            }
        }
    }
}

/* The squares that `parts` leave of all points but the first. */
static double
trend_left(const double *parts, const double *y, size_t n, const trend_cuts *cuts,
           double memory)
{
    double x[NT_TREND_COLUMNS], squares = 0.0;
    for (size_t i = 1; i < n; i++) {
        double rest = (y[i] - y[0]) - memory * (y[i - 1] - y[0]);
        trend_row(cuts, n, i, memory, x);
        for (size_t k = 0; k < 2 + cuts->count; k++) {
            rest -= parts[k] * x[k];
        }
        squares += rest * rest;
    }
    return squares;
}

/* Adds the first point, y[0] - y[0] = 0, which no step is before. */
static void
trend_add_first(trend_normal *normal, size_t n, double memory, double doubt)
{
    const double weight = (1.0 - memory * memory) / doubt;
    const double x[2] = {1.0, 0.5 / (double)n - 0.5};
    for (size_t k = 0; k < 2; k++) {
        for (size_t j = 0; j < 2; j++) {
            normal->a[k][j] += weight * x[k] * x[j];
        }
    }
}

trend_start
nt_trend_look_back(const double *y, size_t n, const trend_cuts *cuts, double memory,
                   double doubt)
{
    const trend_start nothing = {0.0, 0.0, 0.0, 0.0};
    trend_normal changes;
    trend_sum(&changes, y, n, cuts, memory);
    trend_normal all = changes;
    trend_add_first(&all, n, memory, doubt);
    double loose, tight;
    const double alone = trend_solved_slope(&changes, &loose);
    const double both = trend_solved_slope(&all, &tight);
    const double squares = trend_left(changes.b, y, n, cuts, memory);
    /* What is exact to the byte has no noise that the first point could help against.
     */
    if (n < 2 + all.parts || squares * 12.0 <= (double)n || !(loose > 0.0) ||
        !(tight > 0.0) || tight > 0.999 * loose) {
        return nothing;
    }
    const double left = (double)(n - 1 - all.parts);
    const double points = (double)n;
    trend_start found = {.share = 1.0 - tight / loose};
    found.slope = (both - (1.0 - found.share) * alone) / found.share / points;
    found.error = nt_trend_root(squares / left * tight / found.share) / points;
    /* Student's t as a deviate: Abramowitz and Stegun, 26.7.8. */
    const double t = found.slope / found.error;
    found.score = t * (1.0 - 0.25 / left) / nt_trend_root(1.0 + t * t / (2.0 * left));
    return found;
}

void
nt_trend_add_start(const trend_start *start, double inflation, nt_trend *out)
{
    const double share = start->share, rest = 1.0 - share;
    if (!(share > 0.0)) {
        return;
    }
    const double score = start->score / nt_trend_root(inflation);
    const double narrow = nt_trend_root(share), wide = nt_trend_root(rest);
    /* Of one line both say the same but for chance. Where the first point alone speaks
     * for growth, the series came up to its level and stays there. */
    if (wide * score - narrow * out->score > TREND_APART) {
        return;
    }
    const double error = share * TREND_95 * start->error * nt_trend_root(inflation);
    const double below = rest * (out->slope - out->low);
    const double above = rest * (out->high - out->slope);
    out->score = wide * out->score + narrow * score;
    out->slope = rest * out->slope + share * start->slope;
    out->low = out->slope - nt_trend_root(below * below + error * error);
    out->high = out->slope + nt_trend_root(above * above + error * error);
}
