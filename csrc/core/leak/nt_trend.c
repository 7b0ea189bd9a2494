/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend.h"

#include <string.h>

/* The rule. A series grows where its own rank test shows a rise, and the medians, the
 * floors and the late floors of its twelfths each rise by a Mann-Kendall deviate above
 * TREND_GROWS. Floors that rise to the end are what a leak has and noise, bursts and
 * garbage do not. A driftless random walk has them in one of twelve cases, a leak in 99
 * of 100 at 2.8; at 3.5 it is one walk in 28 and 97 leaks of 100. */
#define TREND_GROWS 2.8

/* The rank test's deviate from which on a rise is notable: the 2.5 % point of the
 * normal distribution, where the 95 % interval of the slope lies above 0; and sure: 0.3
 * %. */
#define TREND_NOTABLE 1.96
#define TREND_SURE 2.748

/* A rise that is sure by ranks is in doubt down to this deviate of its twelfths. */
#define TREND_DOUBTFUL 1.3722
#define TREND_DOUBTFUL_RISE 2.326

/* Points below which a slope after whitening says nothing, and a jump neither. */
enum { TREND_FEW = 8 };

/* Parts whose medians and floors are compared, and the late share of a series in
 * hundredths: growth that ended before it is no growth. */
enum { TREND_PARTS = 12, TREND_LATE = 65 };

/* Working memory. Arrays have room for `capacity` points, `pairs` for all pairs. */
typedef struct trend_work {
    nt_alloc alloc;
    size_t capacity; /* points; at least two */
    double *z;       /* whitened: each point less `memory` times its predecessor */
    double *scratch; /* for medians */
    double *change;  /* from one point to the next */
    double *raw;     /* all points with their bursts */
    double *pairs;   /* slopes of pairs */
    size_t pair_capacity;
    size_t bridged;      /* points on a line drawn over a burst */
    bool is_gradual;     /* the warm-up came to its level little by little */
    bool goes_both_ways; /* dips were bridged as well as bursts, as in a walk */
    bool are_windows;    /* as nt_trend_find has it */
} trend_work;

/* Where the level of a series changed: points before which it did, rising. */
enum { TREND_MOST_CUTS = NT_TREND_MOST_JUMPS + 3 };

typedef struct trend_cuts {
    size_t count;
    size_t at[TREND_MOST_CUTS];
} trend_cuts;

/* Columns of a least-squares fit at most: mean, line, bend, and the steps at cuts. */
enum { TREND_COLUMNS = TREND_MOST_CUTS + 3 };

/* ---- ranks and medians ----------------------------------------------------------- */

/* Of the normal distribution: 1 / (its third quartile), and its 97.5 % point. */
#define TREND_MAD 1.4826
#define TREND_95 1.959964

static double
trend_root(double x)
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

static double
trend_select(double *values, size_t n, size_t k)
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

static double
trend_median(const double *values, size_t n, double *scratch)
{
    for (size_t i = 0; i < n; i++) {
        scratch[i] = values[i];
    }
    const double upper = trend_select(scratch, n, n / 2);
    if (n % 2 != 0) {
        return upper;
    }
    return 0.5 * (upper + trend_select(scratch, n, n / 2 - 1));
}

static double
trend_spread(const double *values, size_t n, double centre, double *scratch)
{
    for (size_t i = 0; i < n; i++) {
        scratch[i] = values[i] > centre ? values[i] - centre : centre - values[i];
    }
    return TREND_MAD * trend_select(scratch, n, n / 2);
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

static double
trend_middle(trend_work *w, size_t count)
{
    const double upper = trend_select(w->pairs, count, count / 2);
    if (count % 2 != 0) {
        return upper;
    }
    return 0.5 * (upper + trend_select(w->pairs, count, count / 2 - 1));
}

static double
trend_slope(trend_work *w, const double *values, size_t n)
{
    double signs;
    return trend_middle(w, trend_pairs(w, values, n, &signs));
}

/* The variance of the Mann-Kendall sum where nothing grows; t equal values take t (t -
 * 1) (2 t + 5) / 18 off. The values in `scratch` come into another order. */
static double
trend_variance(double *scratch, size_t n)
{
    const double all = (double)n;
    double variance = all * (all - 1.0) * (2.0 * all + 5.0);
    /* The smallest that is left, and its equals, are taken away round by round. */
    for (size_t first = 0; first < n;) {
        const double least = trend_select(scratch + first, n - first, 0);
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
    const double off = TREND_95 * trend_root(variance);
    const double low = 0.5 * ((double)count - off);
    const double high = 0.5 * ((double)count + off);
    const size_t below = low > 0.0 ? (size_t)low : 0;
    const size_t above = high < (double)(count - 1) ? (size_t)high + 1 : count - 1;
    out->slope = trend_middle(w, count) * scale;
    out->low = trend_select(w->pairs, count, below) * scale;
    out->high =
        trend_select(w->pairs, count, above < count ? above : count - 1) * scale;
}

static void
trend_rank_test(trend_work *w, const double *y, size_t n, double memory,
                double inflation, nt_trend *out)
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
    out->score = variance > 0.0 ? (signs - step) / trend_root(variance) : 0.0;
    out->memory = memory;
    if (n >= TREND_FEW) {
        trend_interval(w, count, variance, 1.0 / (1.0 - memory), out);
        return;
    }
    /* Every slope that two points have: with so few, chance may carry it as far. */
    count = trend_pairs(w, y, n, &signs);
    out->slope = trend_middle(w, count);
    out->low = trend_select(w->pairs, count, 0);
    out->high = trend_select(w->pairs, count, count - 1);
}

/* Fills w->change with the changes of y and returns their spread; `centre` is their
 * median. */
static double
trend_noise(trend_work *w, const double *y, size_t n, double *centre)
{
    *centre = 0.0;
    if (n < 2) {
        return 0.0;
    }
    for (size_t i = 1; i < n; i++) {
        w->change[i - 1] = y[i] - y[i - 1];
    }
    *centre = trend_median(w->change, n - 1, w->scratch);
    return trend_spread(w->change, n - 1, *centre, w->scratch);
}

/* ---- lines against steps, by least squares --------------------------------------- */

/* As in nt_trend_shape.c; where most changes are equal, so many times the mean one. */
#define TREND_JUMP 6.0
#define TREND_JUMP_OF_MEAN 7.5

/* Bytes by which changes differ that are equal but for rounding. */
#define TREND_ROUNDING 2.0

/* So many jumps, most of them upwards, are how the series grows. */
enum { TREND_STAIRS = 6 };

/* Steps that a line is held against, and what each must explain beyond it: so many
 * times the noise's variance. Noise lets the best of all steps explain that in a
 * hundredth. */
enum { TREND_STEPS = TREND_MOST_CUTS - NT_TREND_MOST_JUMPS };
#define TREND_STEP_COST 10.0

/* Fewer points are not held against steps. */
enum { TREND_LEAST = 12 };

static double
trend_size(double x)
{
    return x < 0.0 ? -x : x;
}

/* The parts of a series between its cuts, one after the other. */
static bool
trend_next_part(const trend_cuts *cuts, size_t n, size_t k, size_t *first, size_t *end)
{
    if (k > cuts->count) {
        return false;
    }
    *first = k == 0 ? 0 : cuts->at[k - 1];
    *end = k < cuts->count ? cuts->at[k] : n;
    return true;
}

static double
trend_mean(const double *y, size_t first, size_t end)
{
    double mean = 0.0;
    for (size_t i = first; i < end; i++) {
        mean += y[i] / (double)(end - first);
    }
    return mean;
}

/* The slope that all parts share, by least squares. */
static double
trend_shared_slope(const double *y, size_t n, const trend_cuts *cuts)
{
    double rise = 0.0, wide = 0.0;
    size_t first = 0, end = 0;
    for (size_t k = 0; trend_next_part(cuts, n, k, &first, &end); k++) {
        const double mean = trend_mean(y, first, end);
        const double middle = 0.5 * ((double)first + (double)end - 1.0);
        for (size_t i = first; i < end; i++) {
            const double t = (double)i - middle;
            rise += t * (y[i] - mean);
            wide += t * t;
        }
    }
    return wide > 0.0 ? rise / wide : 0.0;
}

static double
trend_memory(const double *y, size_t n, const trend_cuts *cuts)
{
    /* The most that is believed: of a short series an estimate says too little. */
    const double points = (double)n, parts = (double)cuts->count;
    const double most = 1.0 - 6.0 / points > 0.9 ? 1.0 - 6.0 / points : 0.9;
    if (n < 8 + 2 * cuts->count) {
        return most;
    }
    const double slope = trend_shared_slope(y, n, cuts);
    double all = 0.0, lagged = 0.0;
    size_t first = 0, end = 0;
    for (size_t k = 0; trend_next_part(cuts, n, k, &first, &end); k++) {
        const double mean = trend_mean(y, first, end);
        const double middle = 0.5 * ((double)first + (double)end - 1.0);
        double before = 0.0;
        for (size_t i = first; i < end; i++) {
            const double rest = y[i] - mean - slope * ((double)i - middle);
            all += rest * rest;
            lagged += i == first ? 0.0 : rest * before;
            before = rest;
        }
    }
    if (!(all > 0.0)) {
        return 0.0;
    }
    /* A line and a mean taken off lower the estimate by (2 + 4 memory) / n, each mean
     * more by (1 + memory) / n. */
    double memory = (lagged / all * points + 2.0 + parts) / (points - 4.0 - parts);
    const double inner = memory < 1.0 ? 1.0 - memory * memory : 0.0;
    memory += 2.0 * trend_root(inner / points);
    return memory < 0.0 ? 0.0 : memory > most ? most : memory;
}

static void
trend_forget(double *z, const double *y, size_t m, double memory)
{
    for (size_t i = 0; i < m; i++) {
        z[i] = y[i + 1] - memory * y[i];
    }
}

/* Puts a cut in order among the others; there is room. */
static void
trend_add_cut(trend_cuts *cuts, size_t at)
{
    size_t i = cuts->count++;
    for (; i > 0 && cuts->at[i - 1] > at; i--) {
        cuts->at[i] = cuts->at[i - 1];
    }
    cuts->at[i] = at;
}

/* What z is fitted with besides: nothing, a line, a line that bends. */
enum { TREND_FLAT, TREND_LINE, TREND_BENT };

/* What z is fitted with by least squares: its mean, line, bend, and steps. A step
 * before point k of y is, in z, 1 at k - 1 and what memory leaves of 1 behind it. */
typedef struct trend_model {
    double memory;
    size_t m;     /* items of z */
    size_t lines; /* TREND_FLAT, TREND_LINE or TREND_BENT */
    trend_cuts steps;
    double parts[TREND_COLUMNS]; /* mean, line, bend, then the steps' heights */
    double squares;              /* that the fit leaves */
} trend_model;

/* Item i of a column. Line and bend go from -1/2 to 1/2 and from 1/6 to 1/6. */
static double
trend_column(const trend_model *model, size_t column, size_t i)
{
    if (column <= model->lines) {
        const double t = ((double)i + 0.5) / (double)model->m - 0.5;
        return column == 0 ? 1.0 : column == 1 ? t : t * t - 1.0 / 12.0;
    }
    const size_t at = model->steps.at[column - 1 - model->lines];
    return i + 1 < at ? 0.0 : i + 1 == at ? 1.0 : 1.0 - model->memory;
}

static void
trend_solve(double a[TREND_COLUMNS][TREND_COLUMNS], double *b, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const bool is_empty = a[k][k] <= 1e-9;
        for (size_t i = k + 1; i < n; i++) {
            const double share = is_empty ? 0.0 : a[i][k] / a[k][k];
            for (size_t j = k; j < n; j++) {
                a[i][j] -= share * a[k][j];
            }
            b[i] -= share * b[k];
        }
        if (is_empty) {
            a[k][k] = 0.0;
        }
    }
    for (size_t k = n; k-- > 0;) {
        for (size_t j = k + 1; j < n; j++) {
            b[k] -= a[k][j] * b[j];
        }
        b[k] = a[k][k] > 0.0 ? b[k] / a[k][k] : 0.0;
    }
}

/* Fits z, and leaves in `rest` what the fit does not explain. */
static void
trend_fit(trend_model *model, const double *z, double *rest)
{
    const size_t n = 1 + model->lines + model->steps.count;
    double a[TREND_COLUMNS][TREND_COLUMNS] = {{0.0}}, *b = model->parts;
    double x[TREND_COLUMNS];
    for (size_t k = 0; k < n; k++) {
        b[k] = 0.0;
    }
    for (size_t i = 0; i < model->m; i++) {
        for (size_t k = 0; k < n; k++) {
            x[k] = trend_column(model, k, i);
            b[k] += x[k] * z[i];
            for (size_t j = 0; j <= k; j++) {
                a[k][j] += x[k] * x[j];
            }
        }
    }
    for (size_t k = 0; k < n; k++) {
        for (size_t j = k + 1; j < n; j++) {
            a[k][j] = a[j][k];
        }
    }
    trend_solve(a, b, n);
    model->squares = 0.0;
    for (size_t i = 0; i < model->m; i++) {
        rest[i] = z[i];
        for (size_t k = 0; k < n; k++) {
            rest[i] -= b[k] * trend_column(model, k, i);
        }
        model->squares += rest[i] * rest[i];
    }
}

/* The step that by itself explains most of `rest`, whose mean is 0; 0: none does. */
static size_t
trend_best_step(const trend_model *model, const double *rest)
{
    const double late = 1.0 - model->memory;
    size_t best = 0;
    double most = 0.0, tail = 0.0;
    for (size_t at = model->m; at >= 1; at--) {
        const double behind = (double)(model->m - at);
        const double sum = 1.0 + late * behind;
        const double wide = 1.0 + late * late * behind - sum * sum / (double)model->m;
        const double along = rest[at - 1] + late * tail;
        if (wide > 1e-9 && along * along > most * wide) {
            most = along * along / wide;
            best = at;
        }
        tail += rest[at - 1];
    }
    return best;
}

static void
trend_find_steps(trend_work *w, const double *y, size_t n, trend_cuts *cuts)
{
    if (n < TREND_LEAST) {
        return;
    }
    trend_model line = {.m = n - 1, .lines = TREND_LINE, .steps = *cuts};
    line.memory = trend_memory(y, n, cuts);
    trend_model steps = line;
    steps.lines = TREND_FLAT;
    trend_forget(w->z, y, line.m, line.memory);
    trend_fit(&line, w->z, w->scratch);
    trend_fit(&steps, w->z, w->scratch);
    double least = line.squares;
    const size_t known = cuts->count;
    for (size_t more = 1; more <= TREND_STEPS; more++) {
        const size_t at = trend_best_step(&steps, w->scratch);
        if (at == 0 || known + 2 * more + TREND_LEAST / 2 > steps.m) {
            return;
        }
        trend_add_cut(&steps.steps, at);
        trend_fit(&steps, w->z, w->scratch);
        const double left = (double)(steps.m - known - 2 * more);
        const double cost =
            steps.squares * (1.0 + TREND_STEP_COST * (double)more / left);
        if (cost < least) {
            least = cost;
            *cuts = steps.steps;
        }
    }
}

static void
trend_find_jumps(trend_work *w, const double *y, size_t n, double noise,
                 trend_cuts *cuts)
{
    double centre, mean = 0.0;
    (void)trend_noise(w, y, n, &centre);
    for (size_t i = 0; i + 1 < n; i++) {
        mean += trend_size(w->change[i] - centre) / (double)(n - 1);
    }
    double least = noise > 0.0 ? TREND_JUMP * noise : TREND_JUMP_OF_MEAN * mean;
    least = least < TREND_ROUNDING ? TREND_ROUNDING : least;
    size_t up = 0, down = 0;
    cuts->count = 0;
    for (size_t i = 0; n >= TREND_FEW && i + 1 < n; i++) {
        const double jump = w->change[i] - centre;
        if (trend_size(jump) > least) {
            up += jump > 0.0;
            down += jump < 0.0;
            if (up + down > NT_TREND_MOST_JUMPS) {
                cuts->count = 0;
                return;
            }
            trend_add_cut(cuts, i + 1);
        }
    }
    if (up >= TREND_STAIRS && up > 3 * down) {
        cuts->count = 0;
    }
}

static double
trend_whiten(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
             double memory, double *heights)
{
    trend_model model = {.memory = memory, .m = n - 1, .lines = TREND_LINE};
    model.steps = *cuts;
    trend_forget(w->z, y, model.m, memory);
    if (cuts->count == 0) {
        return 1.0;
    }
    trend_fit(&model, w->z, w->scratch);
    for (size_t k = 0; k < cuts->count; k++) {
        heights[k] = model.parts[1 + model.lines + k];
        for (size_t i = 0; i < model.m; i++) {
            w->z[i] -= heights[k] * trend_column(&model, 1 + model.lines + k, i);
        }
    }
    /* How much of a line the steps can't imitate. */
    trend_model steps = model;
    steps.lines = TREND_FLAT;
    for (size_t i = 0; i < model.m; i++) {
        w->change[i] = trend_column(&model, TREND_LINE, i);
    }
    trend_fit(&steps, w->change, w->scratch);
    const double points = (double)model.m;
    const double whole = (points - 1.0 / points) / 12.0;
    return steps.squares > 1e-9 * whole ? whole / steps.squares : 1e9;
}

static bool
trend_levels_off(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
                 double memory, double sure, double share)
{
    trend_model line = {.memory = memory, .m = n - 1, .lines = TREND_LINE};
    line.steps = *cuts;
    trend_model bent = line;
    bent.lines = TREND_BENT;
    trend_forget(w->z, y, line.m, memory);
    trend_fit(&line, w->z, w->scratch);
    trend_fit(&bent, w->z, w->scratch);
    const double left = (double)bent.m - 3.0 - (double)cuts->count;
    const double begin = bent.parts[1] - bent.parts[2];
    const double end = bent.parts[1] + bent.parts[2];
    const bool is_sure =
        (line.squares - bent.squares) * left > sure * sure * bent.squares;
    return is_sure && bent.parts[2] < 0.0 && begin > 0.0 && end < share * begin;
}

/* ---- warm-up, bursts, saw-teeth -------------------------------------------------- */

/* A change is a jump at so many standard deviations of single changes: among a thousand
 * changes of normal noise there is none in a million series. A fall of a saw-tooth is
 * more than noise that remembers wanders off in all. */
#define TREND_JUMP 6.0
#define TREND_FALL 8.0

/* The two changes that begin and end a burst are so large: noise seldom has two such,
 * one taking the other back, and bursts widen what is taken for the noise. */
#define TREND_BURST 4.5

/* A level is as wide as so many standard deviations of its changes at most, where it
 * remembers 0.9. */
#define TREND_WIDE 2.2

/* Before it falls, what piles up goes back by at most this share of the rise: noise
 * that a fall stands out of is no wider. A walk goes back and forth. */
#define TREND_BACK 0.45

/* A fall of a saw-tooth is at least so much of the range that the series has, and the
 * rise before it at least so much of the fall. */
#define TREND_FALL_SHARE 0.25
#define TREND_RISE_SHARE 0.5

/* What piles up goes in a third of its time at most; a hill goes down as it goes up. */
enum { TREND_FASTER = 3 };

/* Garbage piles up all the time. What stays within the first fifth of its rise for more
 * than two fifths of the time to the next fall is at rest: an evaluation comes now and
 * then, and gives back what it made. */
#define TREND_REST_SHARE 0.2
#define TREND_REST_TIME 0.4

/* A rise of so much of a fall is as large. */
#define TREND_AT_ONCE 0.5

/* So much of a fall is no single step's garbage: most teeth have four steps and more.
 */
#define TREND_AGAIN 0.35

/* A warm-up ends at once with a change of so many spreads of the rest: one that comes
 * nearer by at most a factor of e a step, and is within a spread of its end, has no
 * more than 1.7 of these in its last change. */
#define TREND_ABRUPT 4.0

/* Or with one change that leaves so much of it, e^-3, as what comes nearer little by
 * little does not: it came up at once, whatever follows. */
#define TREND_LEFT 0.05

/* Falls that are not at once end at the same level, but for so much of a fall. */
#define TREND_SAME_LEVEL 0.01

/* Whether the jump before point `at` of y is taken back before point `end`. */
static bool
trend_returns(const trend_work *w, const double *y, size_t at, size_t end,
              double centre, double noise)
{
    const double jump = w->change[at - 1] - centre, back = w->change[end - 1] - centre;
    const double size = trend_size(jump);
    const double off = trend_size(y[end] - y[at - 1] - centre * (double)(end - at + 1));
    return size > TREND_BURST * noise && trend_size(back) > TREND_BURST * noise &&
           back * jump < 0.0 && trend_size(back) >= 0.5 * size &&
           off <= 0.3 * size + 4.0 * noise;
}

/* Draws a line from the point before `at` to point `end`, and the changes with it. */
static void
trend_draw(trend_work *w, double *y, size_t at, size_t end)
{
    const double step = (y[end] - y[at - 1]) / (double)(end - at + 1);
    for (size_t i = at; i < end; i++) {
        y[i] = y[at - 1] + step * (double)(i - at + 1);
    }
    for (size_t i = at; i <= end; i++) {
        w->change[i - 1] = y[i] - y[i - 1];
    }
}

static size_t
trend_bridge(trend_work *w, double *y, size_t n, double noise)
{
    const size_t reach = n / 8 < 3 ? 3 : n / 8;
    double centre;
    (void)trend_noise(w, y, n, &centre);
    size_t bursts = 0, dips = 0;
    w->bridged = 0;
    /* The short ones first: else what lies between two bursts is taken for one. */
    for (size_t width = 1; width <= reach; width++) {
        for (size_t at = 1; at + width < n; at++) {
            if (trend_returns(w, y, at, at + width, centre, noise)) {
                dips += y[at] < y[at - 1];
                trend_draw(w, y, at, at + width);
                w->bridged += width;
                bursts++;
            }
        }
    }
    w->goes_both_ways = bursts >= 2 && 4 * dips >= bursts && 4 * dips <= 3 * bursts;
    return bursts;
}

/* Whether no other cut is within two points of cut k. */
static bool
trend_is_alone(const trend_cuts *cuts, size_t k)
{
    return (k == 0 || cuts->at[k] > cuts->at[k - 1] + 2) &&
           (k + 1 == cuts->count || cuts->at[k + 1] > cuts->at[k] + 2);
}

/* Fills w->z with y without its jumps that have some points before them and none of
 * their like nearby: what is before such a jump is moved to the level behind it. */
static void
trend_level(trend_work *w, const double *y, size_t n)
{
    trend_cuts cuts;
    double centre, off = 0.0;
    trend_find_jumps(w, y, n, trend_noise(w, y, n, &centre), &cuts);
    size_t k = cuts.count;
    for (size_t i = n; i-- > 0;) {
        w->z[i] = y[i] + off;
        if (k > 0 && i == cuts.at[k - 1]) {
            k--;
            if (i >= TREND_FEW && trend_is_alone(&cuts, k)) {
                off += w->change[i - 1] - centre;
            }
        }
    }
}

/* Whether a warm-up of so many points ended at once; w->z less its line is how far it
 * was off at each. */
static bool
trend_is_abrupt(const trend_work *w, size_t warmup, double base, double slope,
                double spread, double noise)
{
    const double last = trend_size(w->z[warmup] - w->z[warmup - 1]);
    double before = 0.0;
    bool is_abrupt = last > TREND_ABRUPT * spread && last > TREND_JUMP * noise;
    for (size_t i = 0; i < warmup; i++) {
        const double off = trend_size(w->z[i] - base - slope * (double)i);
        is_abrupt = is_abrupt || off < TREND_LEFT * before;
        before = off;
    }
    return is_abrupt;
}

static size_t
trend_warmup(trend_work *w, const double *y, size_t n)
{
    const size_t from = n / 3;
    if (from == 0 || n - from < 2) {
        return 0;
    }
    const size_t rest = n - from;
    const double *z = w->z;
    double centre;
    trend_level(w, y, n);
    const double noise = trend_noise(w, z + from, rest, &centre);
    const double slope = trend_slope(w, z + from, rest);
    for (size_t i = 0; i < rest; i++) {
        w->change[i] = z[from + i] - slope * (double)(from + i);
    }
    const double base = trend_median(w->change, rest, w->scratch);
    double spread = trend_spread(w->change, rest, base, w->scratch);
    spread = spread < TREND_WIDE * noise ? TREND_WIDE * noise : spread;
    /* Half a byte, where nothing but what is exact is left. What is far off the line is
     * set aside together with the way from there to it. */
    double tolerance = TREND_FALL * spread + 0.5;
    size_t warmup = 0;
    while (warmup < from &&
           trend_size(z[warmup] - base - slope * (double)warmup) > tolerance) {
        warmup++;
        tolerance = spread + 0.5;
    }
    if (warmup > 0) {
        w->is_gradual = !trend_is_abrupt(w, warmup, base, slope, spread, noise);
    }
    return warmup;
}

/* The range without a twentieth at each end. */
static double
trend_range(trend_work *w, const double *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        w->scratch[i] = y[i];
    }
    const double high = trend_select(w->scratch, n, n - 1 - n / 20);
    return high - trend_select(w->scratch, n, n / 20);
}

/* Whether y rose gradually from point `from` up to `top`, by enough for a fall of
 * `depth`. */
static bool
trend_climbs(const double *y, size_t from, size_t top, double depth)
{
    if (top < from + 3) {
        return false;
    }
    const double climb = y[top] - y[from];
    double largest = 0.0, high = y[from], back = 0.0;
    for (size_t i = from + 1; i <= top; i++) {
        largest = y[i] - y[i - 1] > largest ? y[i] - y[i - 1] : largest;
        high = y[i] > high ? y[i] : high;
        back = high - y[i] > back ? high - y[i] : back;
    }
    return climb >= TREND_RISE_SHARE * depth && largest <= 0.6 * climb &&
           back <= TREND_BACK * climb;
}

/* Whether y, which rises from point `from` up to `top`, rests for most of that time. */
static bool
trend_rests(const double *y, size_t from, size_t top)
{
    const double foot = y[from] + TREND_REST_SHARE * (y[top] - y[from]);
    size_t low = 0;
    for (size_t i = from; i < top; i++) {
        low += y[i] < foot;
    }
    return (double)low > TREND_REST_TIME * (double)(top - from);
}

/* Slope, interval and score of the points after the falls. */
static void
trend_base(trend_work *w, const double *y, const size_t *falls, double noise,
           nt_trend *out)
{
    size_t count = 0;
    for (size_t i = 0; i < out->teeth; i++) {
        for (size_t j = i + 1; j < out->teeth; j++) {
            w->pairs[count++] =
                (y[falls[j]] - y[falls[i]]) / (double)(falls[j] - falls[i]);
        }
    }
    out->slope = trend_median(w->pairs, count, w->pairs + count);
    out->low = trend_select(w->pairs, count, 0);
    out->high = trend_select(w->pairs, count, count - 1);
    const double growth = out->slope * (double)(falls[out->teeth - 1] - falls[0]);
    out->score = 0.0;
    if (out->teeth >= 3 && growth > 0.05 * out->tooth) {
        /* Noise with a memory of 0.9 is 2.2 times as wide as its changes; a difference
         * of two such points 1.4 times as wide again. */
        const double score = growth / (3.2 * noise + 1e-3 * growth);
        out->score = score < 8.0 ? score : 8.0;
    }
}

/* Whether y rises at once by so much in more than half as many places as it falls: a
 * walk goes up as it comes down, and garbage does not. */
static bool
trend_rises_at_once(const double *y, size_t n, const nt_trend *out)
{
    size_t rises = 0;
    for (size_t i = 1; i < n; i++) {
        rises += y[i] - y[i - 1] > TREND_AT_ONCE * out->tooth;
    }
    return 2 * rises > out->teeth;
}

/* Whether `raw` rises at once next to most falls: what was given back is taken again,
 * as gradients and caches are. Garbage begins anew with what one step leaves. */
static bool
trend_is_taken_again(const double *raw, size_t n, const size_t *falls,
                     const nt_trend *out)
{
    size_t again = 0;
    for (size_t k = 0; k < out->teeth; k++) {
        const size_t first = falls[k] < 2 ? 0 : falls[k] - 2;
        double most = 0.0;
        for (size_t i = first; i + 1 < n && i < falls[k] + 2; i++) {
            most = raw[i + 1] - raw[i] > most ? raw[i + 1] - raw[i] : most;
        }
        again += most > TREND_AGAIN * out->tooth;
    }
    return 2 * again > out->teeth;
}

/* Whether y stands at one level after all falls. */
static bool
trend_ends_level(const double *y, const size_t *falls, const nt_trend *out)
{
    double low = y[falls[0]], high = low;
    for (size_t k = 1; k < out->teeth; k++) {
        const double foot = y[falls[k]];
        low = foot < low ? foot : low;
        high = foot > high ? foot : high;
    }
    return high - low <= TREND_SAME_LEVEL * out->tooth;
}

static void
trend_find_teeth(trend_work *w, const double *y, const double *raw, size_t n,
                 double noise, size_t *falls, nt_trend *out)
{
    const double least = TREND_FALL_SHARE * trend_range(w, y, n);
    size_t from = 0, rises = 0, gradual = 0, resting = 0;
    double *depths = w->z, *slopes = w->change;
    out->teeth = 0;
    for (size_t i = 1; i < n; i++) {
        if (y[i] >= y[i - 1]) {
            continue;
        }
        const size_t top = i - 1;
        double once = y[top] - y[i];
        while (i + 1 < n && y[i + 1] < y[i]) {
            i++;
            once = y[i - 1] - y[i] > once ? y[i - 1] - y[i] : once;
        }
        const double depth = y[top] - y[i];
        if (depth <= least || depth <= TREND_FALL * noise) {
            continue;
        }
        const bool is_fast = w->are_windows || TREND_FASTER * (i - top) <= top - from;
        if (is_fast && trend_climbs(y, from, top, depth) &&
            y[i] <= y[from] + 0.5 * depth) {
            depths[out->teeth] = depth;
            falls[out->teeth++] = i;
            gradual += once < TREND_AT_ONCE * depth;
            resting += trend_rests(y, from, top);
            slopes[rises++] = (y[top] - y[from]) / (double)(top - from);
        }
        from = i;
    }
    if (out->teeth >= 2) {
        out->tooth = trend_median(depths, out->teeth, w->scratch);
        /* What wanders goes down little by little, as it goes up. */
        const bool wanders =
            2 * gradual >= out->teeth && !trend_ends_level(y, falls, out);
        if (wanders || 2 * resting > out->teeth ||
            trend_is_taken_again(raw, n, falls, out) ||
            trend_rises_at_once(w->goes_both_ways ? raw : y, n, out)) {
            out->teeth = 0;
            return;
        }
        out->tooth_slope = trend_median(slopes, rises, w->scratch);
        trend_base(w, y, falls, noise, out);
    }
}

/* ---- growth that slows ----------------------------------------------------------- */

/* The point of the normal distribution with a fortieth beyond it. */
#define TREND_FORTIETH 1.96

/* Numbers remember each other at a lag whose autocorrelation is above this: of a
 * hundred that do not, it is so by chance in one series of fifteen. */
#define TREND_REMEMBERED 0.15

/* Changes that remember each other for long still make so many sums, in which growth
 * that ended after four fifths of them stands out. */
enum { TREND_SUMS = 12 };

static double
trend_average(const double *z, size_t m)
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
    const double mean = trend_average(z, m);
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

static bool
trend_has_slowed(trend_work *w, const double *y, size_t n)
{
    if (n < TREND_FEW) {
        return false;
    }
    double *z = w->scratch, moment = 0.0, squares = 0.0;
    for (size_t i = 1; i < n; i++) {
        z[i - 1] = y[i] - y[i - 1];
    }
    const size_t wide = trend_reach(z, n - 1, (n - 1) / TREND_SUMS);
    const size_t m = trend_add_up(z, n - 1, wide);
    const double mean = trend_average(z, m);
    for (size_t i = 0; i < m; i++) {
        moment += z[i] * (((double)i + 0.5) / (double)m - 0.5);
        squares += (z[i] - mean) * (z[i] - mean);
    }
    /* Rounding to bytes alone makes such sums. */
    return squares * 12.0 > (double)m &&
           moment < -TREND_FORTIETH * trend_root(squares / 12.0);
}

/* ---- floors and medians of parts ------------------------------------------------- */

typedef enum trend_part_of { TREND_FLOOR, TREND_MEDIAN } trend_part_of;

/* Fills values with the median or least of equal parts of y, fewer where it has fewer
 * points; returns how many. */
static size_t
trend_parts(trend_work *w, const double *y, size_t n, size_t parts, trend_part_of of,
            double *values)
{
    const size_t count = parts < n ? parts : n;
    for (size_t k = 0; k < count; k++) {
        const size_t first = k * n / count, end = (k + 1) * n / count;
        if (of == TREND_MEDIAN) {
            values[k] = trend_median(y + first, end - first, w->scratch);
            continue;
        }
        values[k] = y[first];
        for (size_t i = first + 1; i < end; i++) {
            values[k] = y[i] < values[k] ? y[i] : values[k];
        }
    }
    return count;
}

/* Mann and Kendall's deviate of n values, two at least. */
static double
trend_kendall(const double *values, size_t n)
{
    const double count = (double)n;
    double signs = 0.0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            signs += (double)(values[j] > values[i]);
            signs -= (double)(values[j] < values[i]);
        }
    }
    return signs / trend_root(count * (count - 1.0) * (2.0 * count + 5.0) / 18.0);
}

/* The deviate of the medians, or the least values, of twelve parts of y. */
static double
trend_by_parts(trend_work *w, const double *y, size_t n, trend_part_of of)
{
    double values[TREND_PARTS] = {0.0};
    return trend_kendall(values, trend_parts(w, y, n, TREND_PARTS, of, values));
}

/* Of all that what never comes back below a value rises by, the share of the last
 * eighth of the series. */
static double
trend_eighth(const double *y, size_t n)
{
    double least = y[n - 1], late = y[n - 1];
    for (size_t i = n - 1; i-- > 0;) {
        least = y[i] < least ? y[i] : least;
        late = i >= n - n / 8 - 1 ? least : late;
    }
    const double all = y[n - 1] - least;
    return all > 0.0 ? (y[n - 1] - late) / all : 0.0;
}

/* ---- the rule -------------------------------------------------------------------- */

/* A bend of so many standard errors is one: half of a hundredth of straight lines have
 * it. Behind a warm-up that came to its level little by little a twentieth is
 * enough. */
#define TREND_BEND 2.6
#define TREND_BENT_AFTER 1.7

/* Growth slows down where it ends at less than this share of what it began at: half of
 * it, or e^-1, what comes ever nearer in one time constant, where the last eighth rises
 * by half of its due and more. */
#define TREND_SLOWER 0.5
#define TREND_SLOWER_STILL 0.37
#define TREND_STILL (1.0 / 16.0)

/* What grows by less than this share of such a warm-up is the rest of that. */
#define TREND_REST 0.05

/* Points that are left at least when growth that levels off is set aside; and so few
 * that whatever slows may level off: nothing shows yet that it goes on. */
enum { TREND_REMAINING = 8, TREND_YOUNG = 24 };

/* So many jumps are changes of the level; more may be how the series rises. */
enum { TREND_LEVELS = 2 };

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
    NT_RELEASE(&w->alloc, w->pairs, w->pair_capacity);
}

static nt_status
trend_work_init(trend_work *w, const nt_alloc *alloc, size_t points, nt_error *err)
{
    /* At least two of each, so that no size is 0. */
    const size_t capacity = points < 2 ? 2 : points;
    const size_t pairs = capacity * (capacity + 1) / 2;
    *w = (trend_work){.alloc = *alloc, .capacity = capacity, .pair_capacity = pairs};
    w->z = nt_allocate(alloc, capacity * sizeof *w->z);
    w->scratch = nt_allocate(alloc, capacity * sizeof *w->scratch);
    w->change = nt_allocate(alloc, capacity * sizeof *w->change);
    w->raw = nt_allocate(alloc, capacity * sizeof *w->raw);
    w->pairs = nt_allocate(alloc, pairs * sizeof *w->pairs);
    if (w->z == NULL || w->scratch == NULL || w->change == NULL || w->raw == NULL ||
        w->pairs == NULL) {
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
    double heights[TREND_MOST_CUTS];
    const double memory = trend_memory(y, n, cuts);
    const double inflation = trend_whiten(w, y, n, cuts, memory, heights);
    /* Points that were made up tell nothing, and at most half are counted as such. */
    const double points = (double)n, seen = (double)n - (double)w->bridged;
    const double made_up = 2.0 * seen > points ? points / seen : 2.0;
    trend_rank_test(w, y, n, memory, inflation * made_up, out);
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
    out->noise = trend_noise(w, y, left, &centre);
    if (left < 2) {
        out->slope = out->low = out->high = out->score = 0.0;
        return;
    }
    trend_find_jumps(w, y, left, out->noise, cuts);
    trend_test(w, y, left, cuts, out);
    if (out->score > TREND_NOTABLE) {
        trend_cuts steps = *cuts;
        trend_find_steps(w, y, left, &steps);
        trend_test(w, y, left, &steps, out);
    }
}

/* Whether x[out->warmup ..] rises by its own test: where the jumps that were taken off
 * are how it rises, by the test with them. */
static bool
trend_rises(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    if (out->score <= TREND_NOTABLE && out->jump_count > TREND_LEVELS) {
        const trend_cuts none = {0};
        nt_trend whole = *out;
        trend_test(w, x + out->warmup, n - out->warmup, &none, &whole);
        *out = whole.score > TREND_NOTABLE ? whole : *out;
    }
    return out->score > TREND_NOTABLE;
}

/* The least deviate of the medians, floors and late floors of the parts of y. */
static double
trend_parts_deviate(trend_work *w, const double *y, size_t n)
{
    const size_t late = n * TREND_LATE / 100;
    const double medians = trend_by_parts(w, y, n, TREND_MEDIAN);
    const double floors = trend_by_parts(w, y, n, TREND_FLOOR);
    const double ends = trend_by_parts(w, y + n - late, late, TREND_FLOOR);
    const double least = medians < floors ? medians : floors;
    return ends < least ? ends : least;
}

/* Fills w->z with the n points behind the warm-up, bursts and all, less the changes of
 * the level in out->jumps; more than TREND_LEVELS of them stay, since the series may
 * rise by them. */
static void
trend_take_jumps_off(trend_work *w, size_t n, const nt_trend *out)
{
    const size_t count = out->jump_count <= TREND_LEVELS ? out->jump_count : 0;
    double off = 0.0;
    for (size_t i = 0, k = 0; i < n; i++) {
        while (k < count && out->jumps[k].step <= (out->warmup + i) * out->bin) {
            off += out->jumps[k++].bytes;
        }
        w->z[i] = w->raw[out->warmup + i] - off;
    }
}

/* The rule at the top of this file, asked of x[out->warmup ..], whose slope, score and
 * jumps are those of its test. Of a saw-tooth the points after its falls decide. */
static void
trend_decide(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    const size_t left = n - out->warmup;
    out->grows = false;
    out->is_in_doubt = false;
    out->deviate = 0.0;
    if (left < TREND_FEW) {
        return;
    }
    trend_take_jumps_off(w, left, out);
    out->deviate = trend_parts_deviate(w, w->z, left);
    if (out->teeth >= 2) {
        out->grows = out->score > TREND_SURE && out->deviate > TREND_DOUBTFUL;
    } else if (out->deviate > TREND_DOUBTFUL && trend_rises(w, x, n, out)) {
        out->grows = out->deviate > TREND_GROWS;
        out->is_in_doubt = !out->grows && out->score > TREND_DOUBTFUL_RISE;
    }
}

/* Whether x[out->warmup ..] grows ever more slowly. Where it still rises at its end, a
 * warm-up that came to its level little by little is a part of what slows down. */
static bool
trend_bends(trend_work *w, const double *x, size_t n, const trend_cuts *cuts,
            const nt_trend *out)
{
    const bool is_gradual = w->is_gradual;
    const bool still_rises =
        trend_eighth(w->raw + out->warmup, n - out->warmup) > TREND_STILL;
    const double sure = is_gradual ? TREND_BENT_AFTER : TREND_BEND;
    const double share = still_rises && !is_gradual ? TREND_SLOWER_STILL : TREND_SLOWER;
    trend_cuts all = *cuts;
    for (size_t k = 0; k < all.count; k++) {
        all.at[k] += out->warmup;
    }
    return trend_levels_off(w, x + out->warmup, n - out->warmup, cuts, out->memory,
                            sure, share) &&
           (!(is_gradual && still_rises) ||
            trend_levels_off(w, x, n, &all, out->memory, sure, TREND_SLOWER_STILL));
}

/* Whether what rises from x[out->warmup] on, as its test shows, is about to end, or
 * has. What is behind growth that levels off is so where it slows at all. */
static bool
trend_is_levelling(trend_work *w, const double *x, size_t n, const trend_cuts *cuts,
                   const nt_trend *out)
{
    const double *y = x + out->warmup;
    const size_t left = n - out->warmup;
    const bool is_gradual = w->is_gradual, was_levelling = out->is_levelling;
    if (out->score <= TREND_NOTABLE || left < TREND_REMAINING) {
        return false;
    }
    const double rest = TREND_REST * (y[0] - x[0]);
    return trend_bends(w, x, n, cuts, out) ||
           (is_gradual && out->slope * (double)(left - 1) < rest) ||
           ((was_levelling || left < TREND_YOUNG) && trend_has_slowed(w, y, left));
}

/* Sets more aside as long as what is left levels off. */
static void
trend_settle(trend_work *w, const double *x, size_t n, trend_cuts *cuts, nt_trend *out)
{
    for (;;) {
        const size_t left = n - out->warmup;
        out->is_levelling = trend_is_levelling(w, x, n, cuts, out);
        const size_t more = left / 6 == 0 ? 1 : left / 6;
        if (!out->is_levelling || left - more < TREND_REMAINING ||
            left - more < n / 3) {
            return;
        }
        out->warmup += more;
        w->is_gradual = true;
        trend_examine(w, x, n, cuts, out);
    }
}

/* Tests x[out->warmup ..] and decides whether that grows. Growth that levels off is set
 * aside, and the rest is reported: the part of it that goes on without slowing may be
 * growth. */
static void
trend_judge(trend_work *w, const double *x, size_t n, nt_trend *out)
{
    trend_cuts cuts;
    trend_examine(w, x, n, &cuts, out);
    nt_trend settled = *out;
    trend_decide(w, x, n, out);
    if (out->grows && !trend_is_levelling(w, x, n, &cuts, &settled)) {
        return;
    }
    trend_settle(w, x, n, &cuts, &settled);
    const bool rises = settled.is_levelling || settled.score > TREND_NOTABLE;
    settled.deviate = out->deviate;
    settled.is_in_doubt = out->is_in_doubt && rises;
    if (out->grows && !settled.is_levelling) {
        trend_decide(w, x, n, &settled);
    } else {
        settled.grows = out->grows && settled.score > TREND_SURE;
    }
    *out = settled;
}

/* The work on points x[0 .. n - 1]; `falls` has room for n. */
static void
trend_look(trend_work *w, double *x, size_t *falls, size_t n, bool find_warmup,
           nt_trend *out)
{
    double centre;
    memcpy(w->raw, x, n * sizeof *x);
    out->noise = trend_noise(w, x, n, &centre);
    out->bursts = n < 4 ? 0 : trend_bridge(w, x, n, out->noise);
    out->warmup = find_warmup ? trend_warmup(w, x, n) : 0;
    trend_find_teeth(w, x + out->warmup, w->raw + out->warmup, n - out->warmup,
                     out->noise, falls, out);
    if (out->teeth < 2) {
        trend_judge(w, x, n, out);
    } else {
        trend_decide(w, x, n, out);
    }
    const double *rest = x + out->warmup;
    out->points = n - out->warmup;
    out->level = trend_median(rest, out->points, w->scratch);
    const size_t last = out->points < TREND_LAST ? out->points : TREND_LAST;
    out->last = trend_median(rest + out->points - last, last, w->scratch);
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
    NT_RELEASE(alloc, x, n);
    NT_RELEASE(alloc, falls, n);
    trend_work_clear(&w);
    return status;
}

/* ---- floors and highs of steps --------------------------------------------------- */

static nt_status
trend_check_starts(const uint64_t *starts, size_t steps, size_t count, nt_error *err)
{
    for (size_t k = 0; k < steps; k++) {
        if (starts[k] >= count || (k > 0 && starts[k] <= starts[k - 1])) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                           "step %zu begins at %llu: the beginnings rise, and the "
                           "series has %zu values",
                           k, (unsigned long long)starts[k], count);
        }
    }
    return NT_OK;
}

/* The most or the least value of each step, into `found`. */
static nt_status
trend_extremes(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, bool most, uint64_t *found, nt_error *err)
{
    NT_TRY(trend_check_starts(starts, steps, count, err));
    for (size_t k = 0; k < steps; k++) {
        const size_t end = k + 1 < steps ? (size_t)starts[k + 1] : count;
        uint64_t best = values[starts[k]];
        for (size_t i = (size_t)starts[k]; i < end; i++) {
            best = (most ? values[i] > best : values[i] < best) ? values[i] : best;
        }
        found[k] = best;
    }
    return NT_OK;
}

nt_status
nt_trend_floors(const uint64_t *values, size_t count, const uint64_t *starts,
                size_t steps, uint64_t *floors, nt_error *err)
{
    return trend_extremes(values, count, starts, steps, false, floors, err);
}

nt_status
nt_trend_highs(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, uint64_t *highs, nt_error *err)
{
    return trend_extremes(values, count, starts, steps, true, highs, err);
}
