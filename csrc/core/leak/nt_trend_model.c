/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

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
enum { TREND_STEPS = NT_TREND_MOST_CUTS - NT_TREND_MOST_JUMPS };
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

double
nt_trend_memory(const double *y, size_t n, const trend_cuts *cuts)
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
    memory += 2.0 * nt_trend_root(inner / points);
    return memory < 0.0 ? 0.0 : memory > most ? most : memory;
}

/* z of y. */
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

/*
 * What z is fitted with by least squares: its mean, line, bend, and steps. A step
 * before point k of y is, in z, 1 at k - 1 and what memory leaves of 1 behind it.
 */
typedef struct trend_model {
    double memory;
    size_t m;     /* items of z */
    size_t lines; /* TREND_FLAT, TREND_LINE or TREND_BENT */
    trend_cuts steps;
    double parts[NT_TREND_COLUMNS]; /* mean, line, bend, then the steps' heights */
    double squares;                 /* that the fit leaves */
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

void
nt_trend_solve(double a[NT_TREND_COLUMNS][NT_TREND_COLUMNS], double *b, size_t n)
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
    double a[NT_TREND_COLUMNS][NT_TREND_COLUMNS] = {{0.0}}, *b = model->parts;
    double x[NT_TREND_COLUMNS];
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
    nt_trend_solve(a, b, n);
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

void
nt_trend_find_steps(trend_work *w, const double *y, size_t n, trend_cuts *cuts)
{
    if (n < TREND_LEAST) {
        return;
    }
    trend_model line = {.m = n - 1, .lines = TREND_LINE, .steps = *cuts};
    line.memory = nt_trend_memory(y, n, cuts);
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

void
nt_trend_find_jumps(trend_work *w, const double *y, size_t n, double noise,
                    trend_cuts *cuts)
{
    double centre, mean = 0.0;
    (void)nt_trend_noise(w, y, n, &centre);
    for (size_t i = 0; i + 1 < n; i++) {
        mean += trend_size(w->change[i] - centre) / (double)(n - 1);
    }
    double least = noise > 0.0 ? TREND_JUMP * noise : TREND_JUMP_OF_MEAN * mean;
    least = least < TREND_ROUNDING ? TREND_ROUNDING : least;
    size_t up = 0, down = 0;
    cuts->count = 0;
    for (size_t i = 0; n >= NT_TREND_FEW && i + 1 < n; i++) {
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

double
nt_trend_whiten(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
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

bool
nt_trend_levels_off(trend_work *w, const double *y, size_t n, const trend_cuts *cuts,
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
