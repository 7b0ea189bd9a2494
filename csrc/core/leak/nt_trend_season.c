/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

#include <string.h>

/* A season comes three times at least; one of waves has six points each time or more,
 * one of phases four. */
#define TREND_TURNS 3.0
enum { TREND_WAVE_POINTS = 6, TREND_PHASES = 4 };

/* Turns are tried at this distance: what lies between two of them is an eighth of a
 * turn off at most. Around the best one, at a tenth of that. */
#define TREND_TURNS_APART 0.25
#define TREND_TURNS_CLOSE 0.025

/* A season is what explains so much of what is off a bent line: half of it is explained
 * by chance in one walk of ten, and in leaks of a few rises. */
#define TREND_SEASON 0.7

/* Line and season together go down by so much of the season's height; else it is the
 * stairs or pauses by which the series grows. */
#define TREND_DOWN 0.25

/* Mean, line and bend; a wave and two of its overtones, each with cosine and sine. */
enum { TREND_LINES = 3, TREND_WAVES = 3 };
enum { TREND_SEASON_COLUMNS = TREND_LINES + 2 * TREND_WAVES };

/* Line and phases are fitted in turn; with three periods and more what a round leaves
 * of the error is less than a ninth. */
enum { TREND_ROUNDS = 12 };

#define TREND_TURN 6.283185307179586

/* A point on the unit circle. */
typedef struct trend_circle {
    double cosine, sine;
} trend_circle;

/* The point at an angle from 0 to 3: by the series of an eighth, doubled three times.
 */
static trend_circle
trend_at_angle(double angle)
{
    const double x = angle / 8.0, square = x * x;
    trend_circle at = {1.0, x};
    double term = 1.0;
    for (int k = 1; k <= 8; k++) {
        term *= -square / (double)((2 * k - 1) * (2 * k));
        at.cosine += term;
        at.sine += x * term / (double)(2 * k + 1);
    }
    for (int k = 0; k < 3; k++) {
        const double cosine = at.cosine * at.cosine - at.sine * at.sine;
        at.sine = 2.0 * at.cosine * at.sine;
        at.cosine = cosine;
    }
    return at;
}

static trend_circle
trend_turned(trend_circle a, trend_circle by)
{
    return (trend_circle){a.cosine * by.cosine - a.sine * by.sine,
                          a.sine * by.cosine + a.cosine * by.sine};
}

/* A season of waves: how often it turns, how many overtones it has with the wave
 * itself, what each is worth, and the squares that it leaves. */
typedef struct trend_season {
    double turns;
    size_t waves;
    double parts[NT_TREND_COLUMNS];
    double squares;
} trend_season;

/* What point i of n is fitted with, whose first wave is at `at`; returns how many. */
static size_t
trend_season_row(const trend_season *season, double *x, size_t i, size_t n,
                 trend_circle at)
{
    const double t = ((double)i + 0.5) / (double)n - 0.5;
    x[0] = 1.0;
    x[1] = t;
    x[2] = t * t - 1.0 / 12.0;
    trend_circle wave = at;
    for (size_t k = 0; k < season->waves; k++) {
        x[TREND_LINES + 2 * k] = wave.cosine;
        x[TREND_LINES + 2 * k + 1] = wave.sine;
        wave = trend_turned(wave, at);
    }
    return TREND_LINES + 2 * season->waves;
}

/* Fits y by least squares, less its first point: line and waves together. */
static void
trend_season_fit(trend_season *season, const double *y, size_t n)
{
    double a[NT_TREND_COLUMNS][NT_TREND_COLUMNS] = {{0.0}}, x[TREND_SEASON_COLUMNS];
    double along[TREND_SEASON_COLUMNS] = {0.0};
    const trend_circle step = trend_at_angle(TREND_TURN * season->turns / (double)n);
    trend_circle at = {1.0, 0.0};
    const size_t columns = TREND_LINES + 2 * season->waves;
    season->squares = 0.0;
    for (size_t i = 0; i < n; i++, at = trend_turned(at, step)) {
        const double value = y[i] - y[0];
        (void)trend_season_row(season, x, i, n, at);
        season->squares += value * value;
        for (size_t k = 0; k < columns; k++) {
            along[k] += x[k] * value;
            for (size_t j = 0; j < columns; j++) {
                a[k][j] += x[k] * x[j];
            }
        }
    }
    memcpy(season->parts, along, columns * sizeof *along);
    nt_trend_solve(a, season->parts, columns);
    for (size_t k = 0; k < columns; k++) {
        season->squares -= along[k] * season->parts[k];
    }
}

/* Fills `waves` with what the season adds to each of n points. */
static void
trend_season_waves(const trend_season *season, double *waves, size_t n)
{
    double x[TREND_SEASON_COLUMNS];
    const trend_circle step = trend_at_angle(TREND_TURN * season->turns / (double)n);
    trend_circle at = {1.0, 0.0};
    for (size_t i = 0; i < n; i++, at = trend_turned(at, step)) {
        const size_t columns = trend_season_row(season, x, i, n, at);
        waves[i] = 0.0;
        for (size_t k = TREND_LINES; k < columns; k++) {
            waves[i] += season->parts[k] * x[k];
        }
    }
}

/* What y is off a bent line, into `rest`, which may be y; returns its squares. */
static double
trend_off_line(const double *y, size_t n, double *rest)
{
    trend_season line = {.waves = 0};
    double x[TREND_SEASON_COLUMNS], squares = 0.0;
    const double first = y[0];
    trend_season_fit(&line, y, n);
    for (size_t i = 0; i < n; i++) {
        (void)trend_season_row(&line, x, i, n, (trend_circle){1.0, 0.0});
        rest[i] = y[i] - first;
        for (size_t k = 0; k < TREND_LINES; k++) {
            rest[i] -= line.parts[k] * x[k];
        }
        squares += rest[i] * rest[i];
    }
    return squares;
}

/* How much of a wave with so many turns `rest` has. */
static double
trend_power(const double *rest, size_t n, double turns)
{
    const trend_circle step = trend_at_angle(TREND_TURN * turns / (double)n);
    trend_circle at = {1.0, 0.0};
    double cosine = 0.0, sine = 0.0;
    for (size_t i = 0; i < n; i++, at = trend_turned(at, step)) {
        cosine += at.cosine * rest[i];
        sine += at.sine * rest[i];
    }
    return cosine * cosine + sine * sine;
}

/* A wave and as many overtones as have three points each time. */
static size_t
trend_most_waves(size_t n, double turns)
{
    size_t waves = 1;
    while (waves < TREND_WAVES && 3.0 * (double)(waves + 1) * turns < (double)n) {
        waves++;
    }
    return waves;
}

/* The season of waves that explains y best; `rest` is what y is off its line. */
static trend_season
trend_best_waves(const double *y, const double *rest, size_t n)
{
    const double most = (double)n / (double)TREND_WAVE_POINTS;
    double best = TREND_TURNS, power = 0.0;
    for (double turns = best; turns <= most; turns += TREND_TURNS_APART) {
        const double one = trend_power(rest, n, turns);
        best = one > power ? turns : best;
        power = one > power ? one : power;
    }
    trend_season found = {.waves = 0};
    for (double off = -TREND_TURNS_APART; off <= TREND_TURNS_APART;
         off += TREND_TURNS_CLOSE) {
        trend_season one = {.turns = best + off};
        one.waves = trend_most_waves(n, one.turns);
        trend_season_fit(&one, y, n);
        if (found.waves == 0 || one.squares < found.squares) {
            found = one;
        }
    }
    return found;
}

/* The mean of rest at `phase` of each period. */
static double
trend_at_phase(const double *rest, size_t n, size_t period, size_t phase)
{
    double sum = 0.0, count = 0.0;
    for (size_t i = phase; i < n; i += period) {
        sum += rest[i];
        count += 1.0;
    }
    return sum / count;
}

/* The squares that are left if those of n points are `squares` and a season with so
 * many free parts leaves so much, each part of which takes a point's share by chance.
 */
static double
trend_left(double squares, size_t n, size_t parts)
{
    return squares * (double)n / (double)(n - parts);
}

/* The whole number of points after which `rest`, of so many squares, comes again. */
static size_t
trend_best_period(const double *rest, size_t n, double squares)
{
    size_t best = 0;
    double least = 0.0;
    for (size_t period = TREND_PHASES; TREND_TURNS * (double)period <= (double)n;
         period++) {
        double left = squares;
        for (size_t phase = 0; phase < period; phase++) {
            const double mean = trend_at_phase(rest, n, period, phase);
            left -= mean * mean * (double)((n - 1 - phase) / period + 1);
        }
        left = trend_left(left, n, period);
        if (best == 0 || left < least) {
            least = left;
            best = period;
        }
    }
    return best;
}

/* Moves the mean of each phase from `rest` to `waves`. */
static void
trend_move_phases(double *rest, double *waves, size_t n, size_t period)
{
    for (size_t phase = 0; phase < period; phase++) {
        const double mean = trend_at_phase(rest, n, period, phase);
        for (size_t i = phase; i < n; i += period) {
            waves[i] += mean;
            rest[i] -= mean;
        }
    }
}

/* Fills `waves` with what comes again after each `period` points of y; `rest` has room
 * for n. Returns the squares that are left. */
static double
trend_phases(const double *y, size_t n, size_t period, double *waves, double *rest)
{
    double squares = 0.0, mean = 0.0;
    for (size_t i = 0; i < n; i++) {
        waves[i] = 0.0;
    }
    for (int round = 0; round < TREND_ROUNDS; round++) {
        for (size_t i = 0; i < n; i++) {
            rest[i] = y[i] - waves[i];
        }
        (void)trend_off_line(rest, n, rest);
        trend_move_phases(rest, waves, n, period);
    }
    for (size_t i = 0; i < period; i++) {
        mean += waves[i] / (double)period;
    }
    for (size_t i = 0; i < n; i++) {
        waves[i] -= mean;
        squares += rest[i] * rest[i];
    }
    return squares;
}

/* Whether the line of y and the waves together go down, as TREND_DOWN says. */
static bool
trend_goes_down(trend_work *w, const double *y, size_t n, const double *waves)
{
    double *level = w->scratch, *off = w->change;
    double low = waves[0], high = waves[0], top = 0.0, down = 0.0;
    for (size_t i = 0; i < n; i++) {
        level[i] = y[i] - waves[i];
    }
    (void)trend_off_line(level, n, off);
    for (size_t i = 0; i < n; i++) {
        const double at = level[i] - off[i] + waves[i];
        top = i == 0 || at > top ? at : top;
        down = top - at > down ? top - at : down;
        low = waves[i] < low ? waves[i] : low;
        high = waves[i] > high ? waves[i] : high;
    }
    return down >= TREND_DOWN * (high - low);
}

bool
nt_trend_find_season(trend_work *w, const double *y, size_t n, double *waves)
{
    if ((double)n < TREND_TURNS * (double)TREND_WAVE_POINTS) {
        return false;
    }
    const double squares = trend_off_line(y, n, w->scratch);
    /* Exact to the byte. */
    if (squares * 12.0 <= (double)n) {
        return false;
    }
    const size_t period = trend_best_period(w->scratch, n, squares);
    const trend_season season = trend_best_waves(y, w->scratch, n);
    const double by_waves = trend_left(season.squares, n, 2 * season.waves);
    const double phases = trend_phases(y, n, period, waves, w->change);
    double left = trend_left(phases, n, period);
    if (by_waves < left) {
        trend_season_waves(&season, waves, n);
        left = by_waves;
    }
    return left < (1.0 - TREND_SEASON) * squares && trend_goes_down(w, y, n, waves);
}
