/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

/*
 * A change is a jump at so many standard deviations of single changes: among a thousand
 * changes of normal noise there is none in a million series. A fall of a saw-tooth is
 * more than noise that remembers wanders off in all.
 */
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
 * than two fifths of the time to the next fall is at rest: an evaluation comes now
 * and then, and gives back what it made. */
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

static double
trend_size(double x)
{
    return x < 0.0 ? -x : x;
}

double
nt_trend_noise(trend_work *w, const double *y, size_t n, double *centre)
{
    *centre = 0.0;
    if (n < 2) {
        return 0.0;
    }
    for (size_t i = 1; i < n; i++) {
        w->change[i - 1] = y[i] - y[i - 1];
    }
    *centre = nt_trend_median(w->change, n - 1, w->scratch);
    return nt_trend_spread(w->change, n - 1, *centre, w->scratch);
}

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

size_t
nt_trend_bridge(trend_work *w, double *y, size_t n, double noise)
{
    const size_t reach = n / 8 < 3 ? 3 : n / 8;
    double centre;
    (void)nt_trend_noise(w, y, n, &centre);
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
    nt_trend_find_jumps(w, y, n, nt_trend_noise(w, y, n, &centre), &cuts);
    size_t k = cuts.count;
    for (size_t i = n; i-- > 0;) {
        w->z[i] = y[i] + off;
        if (k > 0 && i == cuts.at[k - 1]) {
            k--;
            if (i >= NT_TREND_FEW && trend_is_alone(&cuts, k)) {
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

size_t
nt_trend_warmup(trend_work *w, const double *y, size_t n)
{
    const size_t from = n / 3;
    if (from == 0 || n - from < 2) {
        return 0;
    }
    const size_t rest = n - from;
    const double *z = w->z;
    double centre;
    trend_level(w, y, n);
    const double noise = nt_trend_noise(w, z + from, rest, &centre);
    const double slope = nt_trend_slope(w, z + from, rest);
    for (size_t i = 0; i < rest; i++) {
        w->change[i] = z[from + i] - slope * (double)(from + i);
    }
    const double base = nt_trend_median(w->change, rest, w->scratch);
    double spread = nt_trend_spread(w->change, rest, base, w->scratch);
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
        const bool is_abrupt = trend_is_abrupt(w, warmup, base, slope, spread, noise);
        w->doubt = is_abrupt ? 1.0 : NT_TREND_DOUBT;
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
    const double high = nt_trend_select(w->scratch, n, n - 1 - n / 20);
    return high - nt_trend_select(w->scratch, n, n / 20);
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
    out->slope = nt_trend_median(w->pairs, count, w->pairs + count);
    out->low = nt_trend_select(w->pairs, count, 0);
    out->high = nt_trend_select(w->pairs, count, count - 1);
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

void
nt_trend_find_teeth(trend_work *w, const double *y, const double *raw, size_t n,
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
        out->tooth = nt_trend_median(depths, out->teeth, w->scratch);
        /* What wanders goes down little by little, as it goes up. */
        const bool wanders =
            2 * gradual >= out->teeth && !trend_ends_level(y, falls, out);
        if (wanders || 2 * resting > out->teeth ||
            trend_is_taken_again(raw, n, falls, out) ||
            trend_rises_at_once(w->goes_both_ways ? raw : y, n, out)) {
            out->teeth = 0;
            return;
        }
        out->tooth_slope = nt_trend_median(slopes, rises, w->scratch);
        trend_base(w, y, falls, noise, out);
    }
}
