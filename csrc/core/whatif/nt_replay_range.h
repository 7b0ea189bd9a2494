/* SPDX-License-Identifier: Apache-2.0 */
/* What can come out where addresses, time and rounding leave it open. */
#ifndef NT_REPLAY_RANGE_H
#define NT_REPLAY_RANGE_H

#include "whatif/nt_replay.h"

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
