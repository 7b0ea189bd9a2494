/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a series of bytes, one a step, keep growing? The warm-up is found and set aside,
 * bursts that come and go are bridged, a season is taken out, and jumps of the level
 * are told apart; slope and its test use ranks and medians, except for what the first
 * point says. Whether it is growth is decided by figures of its shape, weighed as they
 * were found to tell leaks from everything else that programs do.
 */
#ifndef NT_TREND_H
#define NT_TREND_H

#include "base/nt_base.h"

/*
 * Longer series are first put together in equal bins, each with its lower median, so
 * that what is quadratic in the number of points is bounded: half a million pairs.
 */
#define NT_TREND_MOST 1024

/* Jumps that are reported, the largest ones. */
#define NT_TREND_MOST_JUMPS 16

/*
 * What the decision rests on besides the series' own test: figures without a unit, of
 * the points behind the warm-up and without their season. `BARE` ones are of what is
 * left when bursts are bridged and jumps taken off too. Deviates and ratios end at 50:
 * what is exact to the byte has no noise to be measured by. How many points there are
 * is none of them: that is how long somebody looked, and says nothing of growth.
 */
enum {
    NT_TREND_SCORE,        /* of the test of ranks */
    NT_TREND_MEMORY,       /* that this reckoned with */
    NT_TREND_MEDIANS,      /* of twelve parts: Mann and Kendall's deviate */
    NT_TREND_FLOORS,       /* the same of the least values of these parts */
    NT_TREND_LATE_FLOORS,  /* and of twelve parts of the last 65 % */
    NT_TREND_LINE,         /* the rise of a straight line, in long-run deviations */
    NT_TREND_EIGHTH,       /* the last eighth's share of the rise that stays */
    NT_TREND_RETURNS,      /* how surely it comes back to its line: Dickey and Fuller */
    NT_TREND_PARTS_RETURN, /* the same of the medians of twenty parts */
    NT_TREND_SKEW,         /* of the changes of pairs */
    NT_TREND_DRIFT,        /* the mean change, in standard errors */
    NT_TREND_BARE_LINE,
    NT_TREND_BARE_DRIFT, /* the mean change of twenty parts, in standard errors */
    NT_TREND_BARE_RANGE, /* in levels */
    NT_TREND_HINGE,      /* where a line that was level best begins to rise, 0 to 0.5 */
    NT_TREND_HINGE_RISE, /* its rise, in long-run deviations */
    NT_TREND_HINGE_RETURNS, /* how surely it is come back to */
    NT_TREND_JUMPS,         /* how many were taken off */
    NT_TREND_JUMP_SHARE,    /* their heights, of these and what the bare series goes
                               through */
    NT_TREND_FIGURES
};

extern const char *const nt_trend_figure_names[NT_TREND_FIGURES];

/* The level changed at once and stayed so. */
typedef struct nt_trend_jump {
    size_t step;  /* the first one at the new level */
    double bytes; /* by how much; negative for a fall */
} nt_trend_jump;

/* What a series does. Steps are counted from its first value; bytes may have parts. */
typedef struct nt_trend {
    size_t bin;    /* values in a point: 1 unless the series is long */
    size_t warmup; /* values set aside at the beginning */
    size_t points; /* of what is left */
    double level;  /* its median */
    double last;   /* the median of its last points, bursts bridged */
    /*
     * The slope in bytes a value with its 95 % interval. It combines two independent
     * estimates, each weighted by how much it tells: Theil-Sen slope of the series
     * after each point's `memory` times its predecessor was taken off (Yue and others,
     * Hydrological Processes 16, 2002), and how far the level is above the first point:
     * the row that Prais and Winsten (Cowles Commission 383, 1954) add, without which
     * much of what a short series says of a trend is lost (Park and Mitchell, J. of
     * Econometrics 13, 1980). `memory` is an upper bound of the lag-one autocorrelation
     * (two standard errors above the estimate, which is corrected for its bias as by
     * Kendall, Biometrika 41, 1954; the estimate of a short series may not be believed,
     * so it is up to 0.9 there).
     */
    double slope, low, high;
    double memory;
    /*
     * How sure it is that the series keeps growing, as a deviate of the normal
     * distribution: how seldom what does not grow has such figures. Where the test of
     * these estimates (Mann and Kendall's) shows no rise, the less of both; of fewer
     * than eight points that test alone.
     */
    double score;
    /* Of all that was judged first, whatever of it was set aside after. 0 where points
     * are fewer than eight. */
    double figures[NT_TREND_FIGURES];
    double noise;      /* standard deviation of single changes */
    bool is_levelling; /* it grew, and ever more slowly */
    /* The test shows a rise, and the figures may be growth's, but are others' too. */
    bool is_in_doubt;
    size_t bursts; /* rises that were taken back within a few steps */
    /*
     * A saw-tooth: gradual rises that end with a fall, which takes less long. Where
     * there are two at least, slope, interval and score are of the points after the
     * falls.
     */
    size_t teeth;
    double tooth;       /* the median fall */
    double tooth_slope; /* the median rise a value between falls */
    size_t jump_count;
    nt_trend_jump jumps[NT_TREND_MOST_JUMPS]; /* in order */
} nt_trend;

/*
 * Looks at `count` values (at least one). Uses at most some 4.3 MiB while it runs.
 * `find_warmup` says whether leading values may be set aside, `are_windows` whether
 * each is of equally many events, so that a collection may take as long as what it
 * collects.
 */
nt_status
nt_trend_find(const nt_alloc *alloc, const uint64_t *values, size_t count,
              bool find_warmup, bool are_windows, nt_trend *out,
              nt_error *err) NT_CHECKED;

/*
 * The least value of each step: step k is values starts[k] .. starts[k + 1] - 1, the
 * last one up to `count`. `starts` rises and is below `count`; `floors` has room for
 * `steps` of them.
 */
nt_status
nt_trend_floors(const uint64_t *values, size_t count, const uint64_t *starts,
                size_t steps, uint64_t *floors, nt_error *err) NT_CHECKED;

/* The largest value of each step, in the same way. */
nt_status
nt_trend_highs(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, uint64_t *highs, nt_error *err) NT_CHECKED;

#endif
