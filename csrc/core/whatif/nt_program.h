/* SPDX-License-Identifier: Apache-2.0 */
/* What a program asked of the allocator, taken out of a trace: its requests, frees and
 * calls of empty_cache() in order, and the blocks that were there before. What the
 * allocator did about them, its segments and addresses, is left out. */
#ifndef NT_PROGRAM_H
#define NT_PROGRAM_H

#include "base/nt_base.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_timeline.h"

typedef enum nt_program_kind {
    NT_PROGRAM_MALLOC,
    NT_PROGRAM_FREE,       /* at once */
    NT_PROGRAM_FREE_LATER, /* another stream uses it: complete when PyTorch saw so */
    NT_PROGRAM_COMPLETE,
    NT_PROGRAM_EMPTY_CACHE,
    NT_PROGRAM_RELEASE_POOL, /* nobody uses the private pool `lane` any more */
    NT_PROGRAM_EMPTY_POOL,   /* the same, and what is cached in it goes back at once */
    NT_PROGRAM_OOM,          /* a request that failed; its size is the rounded one */
} nt_program_kind;

typedef struct nt_program_step {
    uint64_t size; /* bytes requested */
    uint32_t slot; /* names the block from its request until it is complete */
    uint32_t lane;
    int32_t event; /* the last one of the trace that the step covers */
    uint8_t kind;  /* nt_program_kind */
} nt_program_step;

/* A stream in a pool; pool 0 is the default one. */
typedef struct nt_program_lane {
    uint32_t pool;
    uint64_t stream;
} nt_program_lane;

/* A block from before the trace, or the free space between two. */
typedef struct nt_program_piece {
    uint64_t size;
    uint64_t requested;
    uint32_t slot; /* NT_NONE: free */
    bool is_pending;
} nt_program_piece;

/* A segment from before the trace; of an expandable one a range mapped in one piece. */
typedef struct nt_program_area {
    uint64_t address;
    uint64_t size;
    uint32_t lane;
    bool small, is_expandable;
    size_t first_piece, piece_count;
} nt_program_area;

/* A cudaMalloc of the trace. */
typedef struct nt_program_place {
    uint64_t address, size;
} nt_program_place;

/* Bounds on the memory that the process was allowed to have, from the requests that
 * went through and those that did not; high is NT_UNLIMITED where none failed. */
typedef struct nt_program_bounds {
    uint64_t low, high; /* bytes: the limit is in low .. high */
    bool is_device;     /* the device had no more: it was no limit of PyTorch's */
} nt_program_bounds;

/* Read only; lives until nt_program_free. */
typedef struct nt_program {
    const nt_timeline *timeline;
    const nt_program_step *steps;
    size_t step_count;
    const nt_program_lane *lanes;
    size_t lane_count;
    const nt_pool_id *pools; /* PyTorch's names of them; the default one first */
    size_t pool_count;
    uint32_t slot_count;          /* most blocks in use at one time */
    const nt_program_area *areas; /* before the first event, by address */
    size_t area_count;
    const nt_program_piece *pieces;
    size_t piece_count;
    const nt_program_place *places; /* in the order of the trace */
    size_t place_count;
    nt_program_bounds bounds;
    uint64_t reservation; /* bytes that a reservation of an expandable segment has at
                           * most, from the distances between them; 0: not known */
    bool has_later;       /* some block waited for another stream */
    bool has_rough_sizes; /* some OOM's request is not known to 512 bytes */
    bool calls_known; /* false: some release may be a call of empty_cache() or not */
    bool calls_noted; /* all calls of empty_cache() are there: the recording noted them
                       */
    int32_t sequel; /* the event from which on nothing is recorded, as nt_program_go_on
                     * makes it up, or NT_EVENT_NEVER */
} nt_program;

/* From the timeline, which must outlive the program. Time is linear in events. */
nt_status
nt_program_new(const nt_alloc *alloc, const nt_timeline *timeline, nt_program **out,
               nt_error *err) NT_CHECKED;
void
nt_program_free(nt_program *program);

/* How a program might be otherwise. Arrays have an entry for each event of the trace.
 */
typedef struct nt_program_change {
    const uint64_t *sizes; /* bytes that each request asks for, 0: leaves it out, with
                            * all that becomes of its block; or NULL: as they are */
    const int32_t *ends;   /* the block of this request is freed after that event, its
                            * own (at once) or a later one, unless it is gone by then;
                            * NT_EVENT_NEVER, or NULL for all: as it was */
    const int32_t *calls;  /* the program calls empty_cache() after these events; they
                            * rise */
    size_t call_count;
} nt_program_change;

/* A copy of the program with the change in it, to be freed like any other. It reads
 * `program`, which must outlive it. NT_ARGUMENT for a size above NT_LARGEST_REQUEST,
 * ends before the request or behind the trace, calls that don't rise or are after no
 * event of the trace, and of a program with a sequel. Blocks from before the trace stay
 * as they are. */
nt_status
nt_program_edit(const nt_alloc *alloc, const nt_program *program,
                const nt_program_change *change, nt_program **out,
                nt_error *err) NT_CHECKED;

/* How a program goes on behind a request that failed. Rounds are numbered by `begins`;
 * the request that failed is of the last one. Arrays by event have an entry for each
 * event of the trace. */
typedef struct nt_program_sequel {
    int32_t failed;        /* event of the request that failed */
    const int32_t *begins; /* events at which rounds begin; they rise */
    size_t begin_count;    /* 1 or more */
    size_t like; /* the round whose rest the failing one does: below begin_count - 1, or
                  * that for no rest */
    int32_t from; /* the event of that round which stands where the request failed:
                   * of its stack, or of no request */
    const double *stretch; /* by event: how many times as much as there the failing
                            * round asks for in its rest; NULL: once */
    const uint8_t *stays; /* by event: 1 where a block of the failing round stays though
                           * no round before made its like; NULL: none does */
    size_t rounds; /* that follow: the last NT_SEQUEL_REPEATED that ended, in turn,
                    * again; the first of all only where it is the only one */
    const uint64_t *growth; /* by event: bytes that this request grows by from a round
                             * to the next; NULL: none does */
} nt_program_sequel;

/* Rounds that a sequel repeats, at most. */
#define NT_SEQUEL_REPEATED 10

/* A copy of the program up to the request that failed, which it makes like any other,
 * and then the rest of that round and more rounds. A block made by the n-th request of
 * a stack in a round is freed where its like was, in the same round or as many rounds
 * later; of the failing round the rest has its like in the rest of the other, whatever
 * number it has; where a round makes more of a stack than its like, the others are
 * freed with the last that has one, and, unless it stays, at the end of the failing
 * round if its stack has none. Steps that are made up have as their event the number of
 * events of the trace, and that of the round that follows (0: the rest) in addition. It
 * reads `program`, which must outlive it. NT_ARGUMENT for events that are not of the
 * trace, out of order, or no request that failed. */
nt_status
nt_program_go_on(const nt_alloc *alloc, const nt_program *program,
                 const nt_program_sequel *sequel, nt_program **out,
                 nt_error *err) NT_CHECKED;

/* The smallest request that the settings of the trace round to `rounded`: of a request
 * that failed PyTorch writes down the rounded size. */
uint64_t
nt_program_least_request(const nt_program *program, uint64_t rounded);

#endif
