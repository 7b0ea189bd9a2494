/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of nt_trend share. Points are doubles; the first one is taken off. */
#ifndef NT_TREND_PARTS_H
#define NT_TREND_PARTS_H

#include "leak/nt_trend.h"

/* Below so many points a slope after pre-whitening says nothing, and a jump neither. */
enum { NT_TREND_FEW = 8 };

/* Working memory: every array has room for NT_TREND_MOST points, `pairs` for all pairs.
 */
typedef struct trend_work {
    nt_alloc alloc;
    size_t capacity; /* points; two where there is one */
    double *z;       /* without what it remembers */
    double *scratch; /* for medians */
    double *change;  /* from one point to the next */
    double *raw;     /* all points with their bursts; later without their season */
    double *shown;   /* with bursts bridged, and their season */
    double *season;  /* what comes again and again; later all but jumps */
    double *pairs;   /* slopes of pairs */
    size_t pair_capacity;
    size_t bridged; /* points that lie on a line drawn over a burst */
    double doubt;   /* as nt_trend_look_back takes it */
    double sure;    /* a deviate of the figures from which on growth is believed */
    /* Whether what was bridged is falls as well as rises, as a walk has them. */
    bool goes_both_ways;
    bool are_windows; /* as nt_trend_find has it */
} trend_work;

/* nt_trend_rank.c: ranks and medians. */

double
nt_trend_root(double x);

/* The item of rank k of values[0 .. n - 1], which come into another order. n > 0. */
double
nt_trend_select(double *values, size_t n, size_t k);

/* The median of `values`, which stay as they are; `scratch` has room for n. n > 0. */
double
nt_trend_median(const double *values, size_t n, double *scratch);

/* 1.48 times the median distance from `centre`: a standard deviation, for normal noise.
 */
double
nt_trend_spread(const double *values, size_t n, double centre, double *scratch);

/* The median slope of all pairs of n >= 2 points, per point. */
double
nt_trend_slope(trend_work *w, const double *values, size_t n);

/* Where the level of a series changed: points before which it did, rising. */
enum { NT_TREND_MOST_CUTS = NT_TREND_MOST_JUMPS + 3 };

typedef struct trend_cuts {
    size_t count;
    size_t at[NT_TREND_MOST_CUTS];
} trend_cuts;

/* What a least-squares fit has at most: mean, line, bend, and the steps at cuts. */
enum { NT_TREND_COLUMNS = NT_TREND_MOST_CUTS + 3 };

/*
 * Slope, interval and score of y[0 .. n - 1], n >= 2, that remembers `memory`, from
 * w->z as nt_trend_whiten left it; `inflation` is what that returned.
 */
void
nt_trend_test(trend_work *w, const double *y, size_t n, double memory, double inflation,
              nt_trend *out);

/* nt_trend_shape.c: what is no growth. */

/* The noise of single changes: w->change is filled, its spread returned. */
double
nt_trend_noise(trend_work *w, const double *y, size_t n, double *centre);

/* Finds a saw-tooth in y, which is `raw` with its bursts bridged; its falls stand in
 * falls[0 .. teeth - 1]. */
void
nt_trend_find_teeth(trend_work *w, const double *y, const double *raw, size_t n,
                    double noise, size_t *falls, nt_trend *out);

/* Bridges rises and falls of y that are taken back soon; returns how many, and counts
 * their points in w->bridged. */
size_t
nt_trend_bridge(trend_work *w, double *y, size_t n, double noise);

/* The number of leading points of y that lie off the line of the rest. Where they come
 * to it little by little, the first of the rest may be on its way still: w->doubt. */
size_t
nt_trend_warmup(trend_work *w, const double *y, size_t n);

/* Of the first point behind what came to its level little by little. */
#define NT_TREND_DOUBT 4.0

/* nt_trend_model.c: lines against steps, by least squares. */

/* Solves the symmetric equations a x = b by elimination, x in b's place; a column that
 * says nothing beyond those before it gets 0. `a` is lost. */
void
nt_trend_solve(double a[NT_TREND_COLUMNS][NT_TREND_COLUMNS], double *b, size_t n);

/* An upper bound of the lag-one autocorrelation of y, its level between cuts and its
 * slope taken off. */
double
nt_trend_memory(const double *y, size_t n, const trend_cuts *cuts);

/*
 * Finds the jumps of y[0 .. n - 1], n >= 2, single changes that noise does not make, as
 * cuts; none where they are so many that they are how the series grows, or no change of
 * the level at all.
 */
void
nt_trend_find_jumps(trend_work *w, const double *y, size_t n, double noise,
                    trend_cuts *cuts);

/* Adds up to three cuts if steps there explain y better than that it grows. */
void
nt_trend_find_steps(trend_work *w, const double *y, size_t n, trend_cuts *cuts);

/*
 * Fills w->z with the n - 1 items of y without what they remember and without the steps
 * at cuts, whose heights it writes. Returns by how much the variance of a slope is
 * larger because the heights are not known but estimated.
 */
double
nt_trend_whiten(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
                double memory, double *heights);

/* Whether y grows ever more slowly: without what it remembers, its slope at the end is
 * below `share` of the first, and the bend is more than `sure` standard errors. */
bool
nt_trend_levels_off(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
                    double memory, double sure, double share);

/* nt_trend_figures.c: what tells growth from what looks like it. */

/*
 * Fills found->figures from x[found->warmup .. n - 1], NT_TREND_FEW points and more,
 * whose bursts are bridged, and from what they are in w->raw. `found` has warm-up,
 * slope, score, memory and jumps already, all in points.
 */
void
nt_trend_measure(trend_work *w, const double *x, size_t n, nt_trend *found);

/* nt_trend_weigh.c, and nt_trend_trees.c, which tools/fit_trend.py writes. */

/* A tree of three questions, whether a figure is above a number: the first leads to the
 * second, or, if it is, to the third; and these to one of four summands of the odds. */
typedef struct nt_trend_tree {
    uint8_t figure[3];
    double at[3];
    double odds[4];
} nt_trend_tree;

extern const nt_trend_tree nt_trend_trees[];
extern const size_t nt_trend_tree_count;

/* How seldom a series of a kind that the trees never saw, and that does not grow, has
 * such odds: as a deviate of the normal distribution. Rising; two at least. */
typedef struct nt_trend_knot {
    double odds;
    double deviate;
} nt_trend_knot;

extern const nt_trend_knot nt_trend_knots[];
extern const size_t nt_trend_knot_count;

/* How far the figures are from those of what does not grow, as a deviate. */
double
nt_trend_weigh(const double *figures);

/* nt_trend_slow.c: when it grew. */

/* Whether y grows by less and less: its changes, those together that remember each
 * other, lie so early that it would be chance in one series of forty. */
bool
nt_trend_has_slowed(trend_work *w, const double *y, size_t n);

/* nt_trend_season.c: what comes again and again. */

/*
 * Whether y[0 .. n - 1] goes up and down three times and more in the same way, so that
 * this is most of what it does off a bent line: as waves of any length, or after a
 * whole number of points as whatever it is. It is written to `waves`, which has room
 * for n and means nothing else.
 */
bool
nt_trend_find_season(trend_work *w, const double *y, size_t n, double *waves);

/* nt_trend_start.c: the level against where it began. */

/* What the first point of a series adds to what its changes say of a slope. */
typedef struct trend_start {
    double share; /* of all that is known of the slope, 0 to 1; 0: the rest is 0 too */
    double slope; /* by the first point alone, and its standard error */
    double error;
    double score; /* a deviate of the normal distribution */
} trend_start;

/*
 * Looks back from y[0 .. n - 1], n >= NT_TREND_FEW, that remembers `memory` and has
 * steps at cuts, to y[0]. `doubt` is by how much the variance of y[0] is larger than
 * that of noise that has gone on for long.
 */
trend_start
nt_trend_look_back(const double *y, size_t n, const trend_cuts *cuts, double memory,
                   double doubt);

/* Puts what y[0] says together with the slope, interval and score in `out`, whose
 * errors are independent of it. `inflation` is of the variance of what it says. */
void
nt_trend_add_start(const trend_start *start, double inflation, nt_trend *out);

#endif
