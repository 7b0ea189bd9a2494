/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend_parts.h"

/*
 * What is asked of a series, so that of walks without drift, Gaussian or in blocks,
 * with heavy tails, pauses, bursts of changes or noise beside them, one in some
 * hundreds has it. One part in thirty of the way may lead down; more of it where the
 * last two thirds never go down, and where they seldom do the line may tell: it rises
 * by so many of its deviations, and by more where few points say what these are.
 */
#define RISE_SHARE 0.94
#define RISE_SHARE_LATE 0.65
#define RISE_ALWAYS 4.42
#define RISE_MOSTLY 3.8
#define RISE_DEVIATIONS 4.0
#define RISE_DEVIATIONS_FEW 120.0

/*
 * What is asked of the floors of parts, the least that each comes back to, as a
 * deviate; more where points are few, and so much more of a series that remembers all
 * of its last point: the floors of a walk rise together, those of a leak beneath other
 * things one after another.
 */
#define RISE_FLOORS_UP 3.9
#define RISE_FLOORS_UP_FEW 20.0
#define RISE_MEMORY 2.0

/* What seems to rise has floors that do: the 1 % point, were they not a walk's. */
#define RISE_SEEMS 2.326

/* What goes on rises at the end too: the 1 % point, and, where the floors rise, the
 * 10 % point. */
#define RISE_YET 2.326
#define RISE_HARDLY 1.2816

/* Parts of the whole series, and of its end, by their medians: of twelve events or more
 * most parts have one, and noise of single points hardly shows; and by their floors. */
enum { RISE_PARTS = 16, RISE_LATE_PARTS = 12, RISE_FLOORS = 20 };

/* Fills medians[0 .. parts - 1] with those of equal parts of y, n >= parts; what is
 * left over is at the beginning, and not looked at. */
static void
rise_medians(trend_work *w, const double *y, size_t n, size_t parts, double *medians)
{
    const size_t wide = n / parts, first = n - parts * wide;
    for (size_t k = 0; k < parts; k++) {
        medians[k] = nt_trend_median(y + first + k * wide, wide, w->scratch);
    }
}

/* How much of the way from median to median leads up, less what leads down: Kaufman's
 * efficiency ratio. */
static double
rise_share(trend_work *w, const double *x, size_t n)
{
    double medians[RISE_PARTS], way = 0.0;
    if (n < RISE_PARTS) {
        return 0.0;
    }
    rise_medians(w, x, n, RISE_PARTS, medians);
    for (size_t k = 1; k < RISE_PARTS; k++) {
        const double change = medians[k] - medians[k - 1];
        way += change < 0.0 ? -change : change;
    }
    return way > 0.0 ? (medians[RISE_PARTS - 1] - medians[0]) / way : 0.0;
}

/* The Mann-Kendall deviate of `parts` values, two at least. */
static double
rise_kendall(const double *values, size_t parts)
{
    const double count = (double)parts;
    double signs = 0.0;
    for (size_t i = 0; i < parts; i++) {
        for (size_t j = i + 1; j < parts; j++) {
            signs += (double)(values[j] > values[i]);
            signs -= (double)(values[j] < values[i]);
        }
    }
    return signs / nt_trend_root(count * (count - 1.0) * (2.0 * count + 5.0) / 18.0);
}

/* The Mann-Kendall deviate of the medians of the last `late` of n points. */
static double
rise_late(trend_work *w, const double *x, size_t n, size_t late)
{
    const size_t parts = late < RISE_LATE_PARTS ? late : RISE_LATE_PARTS;
    double medians[RISE_LATE_PARTS];
    if (parts < 2) {
        return 0.0;
    }
    rise_medians(w, x + n - late, late, parts, medians);
    return rise_kendall(medians, parts);
}

/* The Mann-Kendall deviate of the least values of equal parts of x. */
static double
rise_floors(const double *x, size_t n)
{
    double floors[RISE_FLOORS];
    if (n < RISE_FLOORS) {
        return 0.0;
    }
    for (size_t k = 0; k < RISE_FLOORS; k++) {
        const size_t first = k * n / RISE_FLOORS, end = (k + 1) * n / RISE_FLOORS;
        floors[k] = x[first];
        for (size_t i = first + 1; i < end; i++) {
            floors[k] = x[i] < floors[k] ? x[i] : floors[k];
        }
    }
    return rise_kendall(floors, RISE_FLOORS);
}

/* What a straight line leaves of a series. */
typedef struct rise_line {
    double rise;     /* of the line, from the first point to behind the last */
    double variance; /* of what is off it */
    double memory;   /* the lag-one autocorrelation of that, 0 at least */
    double
        lasting; /* the same by what it remembers after two points, if that is more */
} rise_line;

/* The least-squares line's rise over x; what x is off it goes to `rest`. */
static double
rise_fit(const double *x, size_t n, double *rest)
{
    const double middle = 0.5 * ((double)n - 1.0);
    double mean = 0.0, along = 0.0, wide = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double t = (double)i - middle;
        mean += (x[i] - x[0]) / (double)n;
        along += t * (x[i] - x[0]);
        wide += t * t;
    }
    const double slope = along / wide;
    for (size_t i = 0; i < n; i++) {
        rest[i] = x[i] - x[0] - mean - slope * ((double)i - middle);
    }
    return slope * (double)n;
}

static rise_line
rise_find_line(trend_work *w, const double *x, size_t n)
{
    const double rise = rise_fit(x, n, w->z);
    double all = 0.0, lagged = 0.0, twice = 0.0;
    for (size_t i = 0; i < n; i++) {
        all += w->z[i] * w->z[i];
        lagged += i < 1 ? 0.0 : w->z[i] * w->z[i - 1];
        twice += i < 2 ? 0.0 : w->z[i] * w->z[i - 2];
    }
    const double memory = lagged > 0.0 ? lagged / all : 0.0;
    /* Noise of single points beside a walk takes as much from both. */
    const double later = twice > 0.0 ? nt_trend_root(twice / all) : 0.0;
    return (rise_line){.rise = rise,
                       .variance = all / (double)n,
                       .memory = memory,
                       .lasting = later > memory ? later : memory};
}

/* The line's rise in the standard deviations that what is off it has in the long run,
 * as an autoregression of the first order. */
static double
rise_deviations(const rise_line *line)
{
    const double variance =
        line->variance * (1.0 + line->memory) / (1.0 - line->memory);
    /* Rounding to bytes alone leaves this much. */
    return line->rise / nt_trend_root(variance > 1.0 / 12.0 ? variance : 1.0 / 12.0);
}

/* The Mann-Kendall deviate of the last two fifths of x, from `from` on at most. */
static double
rise_yet(trend_work *w, const double *x, size_t from, size_t n)
{
    const size_t last = n * 2 / 5;
    return rise_late(w, x, n, last < n - from ? last : n - from);
}

bool
nt_trend_seems_to_rise(trend_work *w, const double *x, size_t from, size_t n)
{
    return rise_floors(x + from, n - from) > RISE_SEEMS &&
           rise_yet(w, x, from, n) > RISE_HARDLY;
}

bool
nt_trend_goes_up(trend_work *w, const double *x, size_t from, size_t n)
{
    const double yet = rise_yet(w, x, from, n);
    if (yet <= RISE_HARDLY) {
        return false;
    }
    const rise_line line = rise_find_line(w, x, n);
    const double floors = RISE_FLOORS_UP + RISE_FLOORS_UP_FEW / (double)n;
    if (rise_floors(x + from, n - from) > floors + RISE_MEMORY * line.lasting) {
        return true;
    }
    if (yet <= RISE_YET) {
        return false;
    }
    const double share = rise_share(w, x, n);
    const double late = rise_late(w, x, n, n * 13 / 20);
    if (share > RISE_SHARE || (share > RISE_SHARE_LATE && late > RISE_ALWAYS)) {
        return true;
    }
    const double least = RISE_DEVIATIONS + RISE_DEVIATIONS_FEW / (double)n;
    return late > RISE_MOSTLY && rise_deviations(&line) > least;
}
