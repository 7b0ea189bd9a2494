/* SPDX-License-Identifier: Apache-2.0 */
/* A program (what a trace asked of the allocator) run on the model: under the settings
 * it was recorded with, to see how faithful the model is, or under others, to see what
 * they would have done. */
#ifndef NT_REPLAY_H
#define NT_REPLAY_H

#include "base/nt_base.h"
#include "whatif/nt_allocator.h"
#include "whatif/nt_program.h"

/* The bytes of a device of which nothing is known. */
#define NT_REPLAY_DEVICE (UINT64_C(1) << 40)

/* In which order the addresses of new segments come. Only the order matters: it decides
 * between free blocks of one size. The driver's own can't be predicted. */
typedef enum nt_replay_order {
    /* As the trace's, as long as the new segments are its own; then the n-th new place
     * lies as the n-th of the trace did. */
    NT_ORDER_RECORDED,
    NT_ORDER_RANDOM, /* as `seed` says */
    NT_ORDER_RISING,
    NT_ORDER_FALLING,
} nt_replay_order;

/* When blocks that other streams used can serve again. */
typedef enum nt_replay_timing {
    NT_TIMING_RECORDED,
    NT_TIMING_EARLY, /* as soon as they are freed */
    NT_TIMING_LATE,  /* not before the allocator waits for all streams */
    NT_TIMING_MIXED, /* each block in one of these ways, as `seed` says */
} nt_replay_timing;

/* How the state before the trace is made. */
typedef enum nt_replay_begin {
    NT_BEGIN_AUTO, /* as it lay, where the settings are of the same kind; else anew */
    NT_BEGIN_KEPT, /* as it lay, if its pages allow that */
    NT_BEGIN_EMPTIED, /* the same, and what was cached is given back */
    NT_BEGIN_ANEW,    /* its blocks allocated one by one */
} nt_replay_begin;

/* A call of empty_cache() that finds nothing to give back leaves no trace, unless the
 * recording noted it, nor does the end of a private pool with nothing cached in it;
 * under other settings there may be something. These are the places where that may have
 * been, and how many of them are assumed to be calls. Besides, where PyTorch put the
 * pool of a captured graph back as it was: its blocks are then not where they fit
 * best. */
enum {
    NT_MARK_SILENT = 1 << 0,   /* a call of empty_cache() after it would be silent */
    NT_MARK_RESTORED = 1 << 1, /* a request that puts a block back where it lay */
    NT_MARK_FILLER = 1 << 2, /* the same, of what was free then: it is freed at once */
};

typedef struct nt_replay_silence {
    const uint8_t *marks; /* by event: bits of NT_MARK_... */
    const int32_t *drops; /* by pool: the event after which its end would be silent, or
                           * NT_EVENT_NEVER */
    size_t places;        /* how many of both there are */
    uint32_t share;       /* 0: none, UINT32_MAX: all; else so many of 2^32, by seed */
} nt_replay_silence;

typedef struct nt_replay_options {
    nt_settings settings;
    uint32_t version; /* as nt_allocator_options has them */
    uint64_t device_total, device_other;
    uint64_t limit;
    nt_replay_order order;
    nt_replay_timing timing;
    uint64_t seed;
    nt_replay_begin begin;
    nt_replay_silence silence; /* all-zero: what leaves no trace was not */
    bool least_ooms; /* requests that failed were as small as they can have been, not
                      * as large: their exact size is not recorded */
    /* What to do about a request that fails here, and did not when it was recorded, and
     * about one that failed then and does not here: leave it out, and go on with what
     * the trace has. Else the run ends there, because the program would have done
     * something that is not in the trace. In a sequel, where nothing is recorded, the
     * run always ends at a request that fails. */
    bool goes_on;
} nt_replay_options;

/* The settings of the snapshot, and the bounds of the trace as limit. */
nt_replay_options
nt_replay_default(const nt_program *program);

/* With which other options a run would have gone the same way. */
typedef struct nt_replay_reach {
    nt_allocator_span limit;   /* of nt_replay_options; NT_UNLIMITED stands for none */
    nt_allocator_span room;    /* device_total without device_other */
    nt_allocator_span reserve; /* device_total and an eighth of it, rounded down */
    bool any_order;            /* and seed */
} nt_replay_reach;

typedef struct nt_replay_figures {
    uint64_t peak[NT_METRIC_COUNT], final[NT_METRIC_COUNT]; /* bytes */
    uint64_t segments;      /* at the end; expandable ones do not count */
    uint64_t device_allocs; /* cudaMalloc and mappings; what was there at the start
                             * counts as one for each segment or mapped range */
    uint64_t device_frees;
    uint64_t ooms, retries, waits;
    bool is_stopped;       /* the program ended at a request that failed */
    int32_t stopped_event; /* at this one; NT_EVENT_BEFORE: while the start was made */
    bool is_beyond;        /* a request that failed when recorded went through */
    int32_t beyond_event;  /* first at this one */
    int32_t failed_event;  /* the first request that failed and had not when it was
                            * recorded, or NT_EVENT_NEVER */
    bool start_rebuilt;    /* the start is not a copy: its blocks were allocated anew */
    nt_replay_reach reach;
} nt_replay_figures;

/* Values after each event of the trace, nt_timeline_event_count() of each that is not
 * NULL. */
typedef struct nt_replay_series {
    uint64_t *bytes[NT_METRIC_COUNT];
    uint32_t *segments;
    uint32_t *device_allocs,
        *device_frees; /* so far, as nt_replay_figures counts them */
    uint32_t *ooms;    /* so far */
} nt_replay_series;

/* Runs the program under `options`. `series` and `progress` may be NULL. Several
 * threads may run one program at a time, each with an nt_alloc of its own. Memory grows
 * with the blocks in use, not with the events. NT_ARGUMENT where the state before the
 * trace is one that the allocator can't have. */
nt_status
nt_replay_run(const nt_alloc *alloc, const nt_program *program,
              const nt_replay_options *options, const nt_progress *progress,
              const nt_replay_series *series, nt_replay_figures *out,
              nt_error *err) NT_CHECKED;

/* What nt_replay_silence has: runs the program under the settings it was recorded with,
 * and fills `marks`, which has room for nt_timeline_event_count() entries, and `drops`,
 * one for each pool. */
nt_status
nt_replay_find_silence(const nt_alloc *alloc, const nt_program *program,
                       const nt_progress *progress, uint8_t *marks, int32_t *drops,
                       nt_error *err) NT_CHECKED;

/* Runs the program and makes a snapshot of it: the trace that PyTorch would have
 * written, with made-up addresses, and the blocks at the end. Times, stacks and
 * annotations are those of the recorded events. The caller frees *out, which keeps a
 * copy of `alloc`. */
nt_status
nt_replay_trace(const nt_alloc *alloc, const nt_program *program,
                const nt_replay_options *options, const nt_progress *progress,
                nt_snapshot **out, nt_error *err) NT_CHECKED;

/* An event of the trace, and what the model did in its place. An action of
 * NT_ACTION_COUNT: nothing. */
typedef struct nt_replay_deed {
    nt_action action;
    uint64_t address, size;
} nt_replay_deed;

typedef struct nt_replay_fidelity {
    uint64_t mallocs, mallocs_same;             /* by address */
    uint64_t device_events, device_events_same; /* segments, mappings and OOMs */
    bool is_same;                               /* all of them, and no more came */
    bool is_end_same;    /* the blocks at the end are the snapshot's: address, size,
                          * state, request and segment of each */
    int32_t first_event; /* the first that is not */
    nt_replay_deed recorded, modelled; /* there */
} nt_replay_fidelity;

/* Runs the program with the device addresses of the trace and compares each address and
 * each event of the device. `options` says the settings, version, device and limit;
 * order and timing are the trace's. `figures` may be NULL. */
nt_status
nt_replay_check(const nt_alloc *alloc, const nt_program *program,
                const nt_replay_options *options, const nt_progress *progress,
                nt_replay_fidelity *out, nt_replay_figures *figures,
                nt_error *err) NT_CHECKED;

/* Whether the state before the trace is more than the blocks in it: memory that was
 * cached, or is cut up, by what the program did before. Under other settings it would
 * then be different, and how is not known. */
nt_status
nt_replay_has_history(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, bool *out,
                      nt_error *err) NT_CHECKED;

/* ---- ranges ---------------------------------------------------------------------- */

/* What can come out where addresses, time and rounding leave it open. */

/* Why what really happens can differ from what the model says. */
enum {
    NT_CAUSE_TIES = 1 << 0,   /* addresses decide between blocks of one size */
    NT_CAUSE_TIMING = 1 << 1, /* when a block that other streams use is free again */
    NT_CAUSE_BEYOND = 1 << 2, /* a request goes through that failed when recorded, or
                               * fails: the program may do what the trace has not */
    NT_CAUSE_START = 1 << 3, /* what was there before the trace is not all known, or was
                              * left there under other settings */
    NT_CAUSE_SILENT = 1 << 4,   /* the program calls empty_cache() or ends pools, which
                                 * may have left no trace in places */
    NT_CAUSE_RESTORED = 1 << 5, /* a captured graph's pool was put back as it was, and
                                 * under these settings it was otherwise */
};

/* The figures of several runs, each at its lowest and at its highest. Of runs that
 * differ the next one could be beyond these: of n runs, bytes reserved, segments and
 * calls of the device are widened by an n-th of their span in either direction. Where a
 * run went beyond the trace nothing bounds counts (UINT64_MAX), only the limit and the
 * device bound bytes. */
typedef struct nt_replay_range {
    nt_replay_figures low, high;
    unsigned causes; /* bits of NT_CAUSE_... */
    size_t runs;
} nt_replay_range;

/* Runs the program under `options`, whose figures are *base, and then with other orders
 * of addresses, and where that can matter other timings, other starts, other sizes of
 * requests that failed, and other shares of the silence in `options`: `runs` runs at
 * most, 0 for as many as take about as long as two and a half million steps (4 to 40,
 * and up to 160 more where something may be silent). Runs that can't differ are left
 * out. */
nt_status
nt_replay_find_range(const nt_alloc *alloc, const nt_program *program,
                     const nt_replay_options *options, size_t runs,
                     const nt_progress *progress, nt_replay_figures *base,
                     nt_replay_range *out, nt_error *err) NT_CHECKED;

/* One of the runs that a range is made of. */
typedef struct nt_replay_variant {
    nt_replay_figures figures;
    unsigned cause; /* the bit of NT_CAUSE_... that it shows if its figures are others
                     * than the first run's; 0: several at once */
} nt_replay_variant;

/* The parts of nt_replay_find_range, for callers that make its runs side by side.
 * `runs` is the same in all calls for one range. Counts the runs; makes run `index` (0:
 * the one under `options` themselves), where *is_there is false if it could not differ
 * from another; and joins runs, the first of which is what the others are held against:
 * run 0, or another one under the same settings. */
nt_status
nt_replay_count_variants(const nt_alloc *alloc, const nt_program *program,
                         const nt_replay_options *options, size_t runs, size_t *out,
                         nt_error *err) NT_CHECKED;
nt_status
nt_replay_run_variant(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, size_t runs, size_t index,
                      const nt_progress *progress, nt_replay_variant *out,
                      bool *is_there, nt_error *err) NT_CHECKED;
nt_status
nt_replay_join_variants(const nt_alloc *alloc, const nt_program *program,
                        const nt_replay_options *options,
                        const nt_replay_variant *variants, size_t count,
                        nt_replay_range *out, nt_error *err) NT_CHECKED;

#endif
