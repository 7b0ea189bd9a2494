/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

const char *const nt_trend_figure_names[NT_TREND_FIGURES] = {
    [NT_TREND_SCORE] = "score",
    [NT_TREND_MEMORY] = "memory",
    [NT_TREND_MEDIANS] = "medians",
    [NT_TREND_FLOORS] = "floors",
    [NT_TREND_LATE_FLOORS] = "late_floors",
    [NT_TREND_LINE] = "line",
    [NT_TREND_EIGHTH] = "eighth",
    [NT_TREND_RETURNS] = "returns",
    [NT_TREND_PARTS_RETURN] = "parts_return",
    [NT_TREND_SKEW] = "skew",
    [NT_TREND_DRIFT] = "drift",
    [NT_TREND_BARE_LINE] = "bare_line",
    [NT_TREND_BARE_DRIFT] = "bare_drift",
    [NT_TREND_BARE_RANGE] = "bare_range",
    [NT_TREND_HINGE] = "hinge",
    [NT_TREND_HINGE_RISE] = "hinge_rise",
    [NT_TREND_HINGE_RETURNS] = "hinge_returns",
    [NT_TREND_JUMPS] = "jumps",
    [NT_TREND_JUMP_SHARE] = "jump_share",
};

/* Parts of a series: of twelve rises most have one. What is asked of the changes from
 * part to part is of more of them, since their variance is asked for. */
enum { FIGURE_PARTS = 12, FIGURE_MORE_PARTS = 20 };

/* The late part of a series, in hundredths. */
enum { FIGURE_LATE = 65 };

/* Changes from part to part remember each other over this share of all of them. */
#define FIGURE_REACH 0.15

/* What is taken for the local alternative to a walk where a line is taken off: Elliott,
 * Rothenberg and Stock, Econometrica 64, 1996. */
#define FIGURE_NEAR_WALK 13.5

/* The standard deviation of what rounding to bytes leaves. */
#define FIGURE_ROUNDING 0.29

/* What is exact has no noise to be measured by: a figure ends here. */
#define FIGURE_MOST 50.0

/* The longest memory that what is off a line is taken to have. */
#define FIGURE_MOST_MEMORY 0.999

typedef enum figure_of { FIGURE_FLOOR, FIGURE_MEDIAN } figure_of;

static double
figure_within(double x)
{
    return x > FIGURE_MOST ? FIGURE_MOST : x < -FIGURE_MOST ? -FIGURE_MOST : x;
}

/* Fills values with the median or least of equal parts of y, fewer where it has fewer
 * points; returns how many. */
static size_t
figure_parts(trend_work *w, const double *y, size_t n, size_t parts, figure_of of,
             double *values)
{
    const size_t count = parts < n ? parts : n;
    for (size_t k = 0; k < count; k++) {
        const size_t first = k * n / count, end = (k + 1) * n / count;
        if (of == FIGURE_MEDIAN) {
            values[k] = nt_trend_median(y + first, end - first, w->scratch);
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
figure_kendall(const double *values, size_t n)
{
    const double count = (double)n;
    double signs = 0.0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            signs += (double)(values[j] > values[i]);
            signs -= (double)(values[j] < values[i]);
        }
    }
    return signs / nt_trend_root(count * (count - 1.0) * (2.0 * count + 5.0) / 18.0);
}

/* The deviate of the medians, or the least values, of twelve parts of y. */
static double
figure_by_parts(trend_work *w, const double *y, size_t n, figure_of of)
{
    double values[FIGURE_PARTS] = {0.0};
    return figure_kendall(values, figure_parts(w, y, n, FIGURE_PARTS, of, values));
}

/* The rise of y's least-squares line over n points; what y is off it goes to `rest`. */
static double
figure_fit(const double *y, size_t n, double *rest)
{
    const double middle = 0.5 * ((double)n - 1.0);
    double mean = 0.0, along = 0.0, wide = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double t = (double)i - middle;
        mean += (y[i] - y[0]) / (double)n;
        along += t * (y[i] - y[0]);
        wide += t * t;
    }
    const double slope = along / wide;
    for (size_t i = 0; i < n; i++) {
        rest[i] = y[i] - y[0] - mean - slope * ((double)i - middle);
    }
    return slope * (double)n;
}

/*
 * The standard deviation that z, what is off a line, has in the long run, as an
 * autoregression of the first order. Its memory is taken from two points on where that
 * says more: noise of single points takes as much from both.
 */
static double
figure_lasting(const double *z, size_t n)
{
    double all = 0.0, lagged = 0.0, twice = 0.0;
    for (size_t i = 0; i < n; i++) {
        all += z[i] * z[i];
        lagged += i < 1 ? 0.0 : z[i] * z[i - 1];
        twice += i < 2 ? 0.0 : z[i] * z[i - 2];
    }
    const double next = lagged > 0.0 ? lagged / all : 0.0;
    const double later = twice > 0.0 ? nt_trend_root(twice / all) : 0.0;
    const double longer = later > next ? later : next;
    const double memory = longer < FIGURE_MOST_MEMORY ? longer : FIGURE_MOST_MEMORY;
    const double spread = nt_trend_root(all / (double)n) + FIGURE_ROUNDING;
    return spread * nt_trend_root((1.0 + memory) / (1.0 - memory));
}

/* The rise of y's line in the long-run deviations of what is off it. */
static double
figure_line(trend_work *w, const double *y, size_t n)
{
    const double rise = figure_fit(y, n, w->z);
    return figure_within(rise / figure_lasting(w->z, n));
}

/* Of all that what never comes back below a value rises by, the share of the last
 * eighth of the series. */
static double
figure_eighth(const double *y, size_t n)
{
    double least = y[n - 1], late = y[n - 1];
    for (size_t i = n - 1; i-- > 0;) {
        least = y[i] < least ? y[i] : least;
        late = i >= n - n / 8 - 1 ? least : late;
    }
    const double all = y[n - 1] - least;
    return all > 0.0 ? (y[n - 1] - late) / all : 0.0;
}

/* What the mean of y and its line are where it is a walk, nearly: least squares of its
 * quasi-differences. */
static void
figure_walk_line(const double *y, size_t n, double *mean, double *slope)
{
    const double near = 1.0 - FIGURE_NEAR_WALK / (double)n, a = near > 0.0 ? near : 0.0;
    double ones = 0.0, both = 0.0, times = 0.0, along = 0.0, rising = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double before = i == 0 ? 0.0 : a, t = (double)i;
        const double one = 1.0 - before, time = t - before * (t - 1.0);
        const double value = i == 0 ? 0.0 : y[i] - y[0] - before * (y[i - 1] - y[0]);
        ones += one * one;
        both += one * time;
        times += time * time;
        along += one * value;
        rising += time * value;
    }
    const double whole = ones * times - both * both;
    *mean = (along * times - both * rising) / whole;
    *slope = (ones * rising - both * along) / whole;
}

/*
 * How surely z, what is off a line, comes back to it: Dickey and Fuller's statistic (J.
 * of the American Statistical Association 74, 1979); about -3 and less is seldom a
 * walk's.
 */
static double
figure_back(const double *z, size_t n)
{
    double moved = 0.0, squares = 0.0, left = 0.0;
    for (size_t i = 1; i < n; i++) {
        moved += (z[i] - z[i - 1]) * z[i - 1];
        squares += z[i - 1] * z[i - 1];
    }
    if (!(squares > (double)n / 12.0)) {
        return -FIGURE_MOST;
    }
    const double back = moved / squares;
    for (size_t i = 1; i < n; i++) {
        const double off = z[i] - (1.0 + back) * z[i - 1];
        left += off * off;
    }
    const double error = nt_trend_root(left / (double)n / squares);
    return error > 0.0 ? figure_within(back / error) : -FIGURE_MOST;
}

/* How surely y comes back to its line, which is taken off as from a walk. */
static double
figure_returns(trend_work *w, const double *y, size_t n)
{
    double mean, slope;
    figure_walk_line(y, n, &mean, &slope);
    for (size_t i = 0; i < n; i++) {
        w->z[i] = y[i] - y[0] - mean - slope * (double)i;
    }
    return figure_back(w->z, n);
}

/* The same of the medians of parts, whose noise hides less of what lingers. */
static double
figure_parts_return(trend_work *w, const double *y, size_t n)
{
    double values[FIGURE_MORE_PARTS] = {0.0};
    const size_t count =
        figure_parts(w, y, n, FIGURE_MORE_PARTS, FIGURE_MEDIAN, values);
    return figure_returns(w, values, count);
}

/* The skewness, about 0, of the changes from mean to mean of pairs of points. */
static double
figure_skew(const double *y, size_t n)
{
    double squares = 0.0, cubes = 0.0, count = 0.0;
    for (size_t i = n % 2; i + 3 < n; i += 2) {
        const double change = 0.5 * (y[i + 2] + y[i + 3] - y[i] - y[i + 1]);
        squares += change * change;
        cubes += change * change * change;
        count += 1.0;
    }
    const double variance = squares / count;
    const double cube = variance * nt_trend_root(variance);
    return cube > 0.0 ? figure_within(cubes / count / cube) : 0.0;
}

/* The mean of z[0 .. m - 1] in standard errors, whatever those less than `reach` apart
 * remember of each other, as by Newey and West (Econometrica 55, 1987); they come out
 * without it. */
static double
figure_mean(double *z, size_t m, size_t reach)
{
    const double count = (double)m;
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
    const double error = nt_trend_root(variance / count);
    return error > 0.0 ? figure_within(mean / error) : mean > 0.0 ? FIGURE_MOST : 0.0;
}

/* That of the changes from point to point of y, which remember each other over the cube
 * root of their number. */
static double
figure_drift(trend_work *w, const double *y, size_t n)
{
    size_t reach = 1;
    while (reach * reach * reach < n) {
        reach++;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        w->z[i] = y[i + 1] - y[i];
    }
    return figure_mean(w->z, n - 1, reach);
}

/* That of the changes from part to part of y. */
static double
figure_drift_of_parts(trend_work *w, const double *y, size_t n)
{
    double values[FIGURE_MORE_PARTS] = {0.0};
    const size_t count =
        figure_parts(w, y, n, FIGURE_MORE_PARTS, FIGURE_MEDIAN, values);
    for (size_t k = 0; k + 1 < count; k++) {
        values[k] = values[k + 1] - values[k];
    }
    const size_t share = (size_t)(FIGURE_REACH * (double)(count - 1));
    return figure_mean(values, count - 1, share == 0 ? 1 : share);
}

/* A line that is level up to a point, and rises by so much a point from there on. */
typedef struct figure_hinge {
    size_t at;
    double mean, slope;
    double explained; /* of the sum of squares */
} figure_hinge;

static figure_hinge
figure_hinge_at(const double *y, size_t n, size_t at)
{
    const double count = (double)n;
    double sum = 0.0, ramp = 0.0, both = 0.0, wide = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double t = i > at ? (double)(i - at) : 0.0, value = y[i] - y[0];
        sum += value / count;
        ramp += t / count;
        both += t * value;
        wide += t * t;
    }
    const double along = both - count * ramp * sum;
    const double slope = along / (wide - count * ramp * ramp);
    return (figure_hinge){at, sum - slope * ramp, slope, slope * along};
}

/* The best of them, which begins to rise at one of the twelfths up to the middle. What
 * y is off it goes to w->z. */
static figure_hinge
figure_best_hinge(trend_work *w, const double *y, size_t n)
{
    figure_hinge best = figure_hinge_at(y, n, 0);
    for (size_t k = 1; k <= FIGURE_PARTS / 2; k++) {
        const figure_hinge next = figure_hinge_at(y, n, k * n / FIGURE_PARTS);
        best = next.explained > best.explained ? next : best;
    }
    for (size_t i = 0; i < n; i++) {
        const double t = i > best.at ? (double)(i - best.at) : 0.0;
        w->z[i] = y[i] - y[0] - best.mean - best.slope * t;
    }
    return best;
}

static double
figure_range(const double *y, size_t n)
{
    double low = y[0], high = y[0];
    for (size_t i = 1; i < n; i++) {
        low = y[i] < low ? y[i] : low;
        high = y[i] > high ? y[i] : high;
    }
    return high - low;
}

/* Fills w->season with y less the jumps in `found`, its first level kept. */
static void
figure_level(trend_work *w, const double *y, size_t n, const nt_trend *found)
{
    double off = 0.0;
    for (size_t i = 0, k = 0; i < n; i++) {
        while (k < found->jump_count &&
               found->jumps[k].step <= (found->warmup + i) * found->bin) {
            off += found->jumps[k++].bytes;
        }
        w->season[i] = y[i] - off;
    }
}

/* The figures of y as it is, n points of it. */
static void
figure_plain(trend_work *w, const double *y, size_t n, double *figures)
{
    const size_t late = n * FIGURE_LATE / 100;
    figures[NT_TREND_MEDIANS] = figure_by_parts(w, y, n, FIGURE_MEDIAN);
    figures[NT_TREND_FLOORS] = figure_by_parts(w, y, n, FIGURE_FLOOR);
    figures[NT_TREND_LATE_FLOORS] =
        figure_by_parts(w, y + n - late, late, FIGURE_FLOOR);
    figures[NT_TREND_LINE] = figure_line(w, y, n);
    figures[NT_TREND_EIGHTH] = figure_eighth(y, n);
    figures[NT_TREND_RETURNS] = figure_returns(w, y, n);
    figures[NT_TREND_PARTS_RETURN] = figure_parts_return(w, y, n);
    figures[NT_TREND_SKEW] = figure_skew(y, n);
    figures[NT_TREND_DRIFT] = figure_drift(w, y, n);
}

/* The figures of y without bursts and jumps, beside a level of so many bytes. */
static void
figure_bare(trend_work *w, const double *y, size_t n, double level, double *figures)
{
    figures[NT_TREND_BARE_LINE] = figure_line(w, y, n);
    figures[NT_TREND_BARE_DRIFT] = figure_drift_of_parts(w, y, n);
    const figure_hinge hinge = figure_best_hinge(w, y, n);
    const double rise = hinge.slope * (double)(n - hinge.at);
    figures[NT_TREND_HINGE] = (double)hinge.at / (double)n;
    figures[NT_TREND_HINGE_RISE] = figure_within(rise / figure_lasting(w->z, n));
    figures[NT_TREND_HINGE_RETURNS] = figure_back(w->z, n);
    figures[NT_TREND_BARE_RANGE] =
        figure_within(figure_range(y, n) / (level > 1.0 ? level : 1.0));
}

/* The figures of the jumps that were taken off y. */
static void
figure_jumps(const double *y, size_t n, const nt_trend *found, double *figures)
{
    double heights = 0.0;
    for (size_t k = 0; k < found->jump_count; k++) {
        const double height = found->jumps[k].bytes;
        heights += height < 0.0 ? -height : height;
    }
    figures[NT_TREND_JUMPS] = (double)found->jump_count;
    figures[NT_TREND_JUMP_SHARE] =
        heights > 0.0 ? heights / (heights + figure_range(y, n)) : 0.0;
}

void
nt_trend_measure(trend_work *w, const double *x, size_t n, nt_trend *found)
{
    const size_t from = found->warmup, left = n - from;
    double *figures = found->figures;
    figures[NT_TREND_SCORE] = figure_within(found->score);
    figures[NT_TREND_MEMORY] = found->memory;
    figure_plain(w, w->raw + from, left, figures);
    const double level = nt_trend_median(w->raw + from, left, w->scratch);
    figure_level(w, x + from, left, found);
    figure_bare(w, w->season, left, level, figures);
    figure_jumps(w->season, left, found, figures);
}
