/* SPDX-License-Identifier: Apache-2.0 */
/* Does a series of bytes, one per step, keep growing? The warm-up is set aside, bursts
 * that come back are bridged, and jumps of the level are told apart from growth. Slope
 * and test use ranks and medians; one rule decides (nt_trend.c, TREND_GROWS). Numbers
 * alone cannot tell a random walk from slow growth: of driftless walks it takes one in
 * twelve for growth. */
#ifndef NT_TREND_H
#define NT_TREND_H

#include "base/nt_base.h"

/* Longer series are first put together in equal bins, each with its lower median, so
 * that what is quadratic in the number of points is bounded: half a million pairs. */
#define NT_TREND_MOST 1024

/* Jumps that are reported, the largest ones. */
#define NT_TREND_MOST_JUMPS 16

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
    /* Theil-Sen slope in bytes per value with its 95 % interval, and the deviate of
     * Mann and Kendall's one-sided test, both after each point's `memory` times its
     * predecessor was taken off (Yue and others, Hydrological Processes 16, 2002).
     * `memory` is an upper bound of the lag-one autocorrelation: two standard errors
     * above the estimate corrected for its bias (Kendall, Biometrika 41, 1954); up to
     * 0.9 for short series, whose estimate says too little. */
    double slope, low, high;
    double score;
    double memory;
    /* The least Mann-Kendall deviate of the medians, floors and late floors of its
     * twelfths; 0 for fewer than eight points, which never grow. */
    double deviate;
    bool grows;
    double noise;      /* standard deviation of single changes */
    bool is_levelling; /* it grew, and ever more slowly */
    /* Rising by the rank test, but not distinguishable from a random walk. */
    bool is_in_doubt;
    size_t bursts; /* rises taken back within a few steps */
    /* A saw-tooth: gradual rises that end with a fall, which takes less long. Where
     * there are two at least, slope, interval and score are of the points after the
     * falls. */
    size_t teeth;
    double tooth;       /* the median fall */
    double tooth_slope; /* the median rise a value between falls */
    size_t jump_count;
    nt_trend_jump jumps[NT_TREND_MOST_JUMPS]; /* in order */
} nt_trend;

/* Looks at `count` values (at least one). Uses at most some 4.3 MiB while it runs.
 * `find_warmup` says whether leading values may be set aside, `are_windows` whether
 * each is of equally many events, so that a collection may take as long as what it
 * collects. */
nt_status
nt_trend_find(const nt_alloc *alloc, const uint64_t *values, size_t count,
              bool find_warmup, bool are_windows, nt_trend *out,
              nt_error *err) NT_CHECKED;

/* The least value of each step: step k is values starts[k] .. starts[k + 1] - 1, the
 * last one up to `count`. `starts` rises and is below `count`; `floors` has room for
 * `steps` of them. */
nt_status
nt_trend_floors(const uint64_t *values, size_t count, const uint64_t *starts,
                size_t steps, uint64_t *floors, nt_error *err) NT_CHECKED;

/* The largest value of each step, in the same way. */
nt_status
nt_trend_highs(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, uint64_t *highs, nt_error *err) NT_CHECKED;

#endif
