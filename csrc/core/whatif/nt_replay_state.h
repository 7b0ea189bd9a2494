/* SPDX-License-Identifier: Apache-2.0 */
/* A run, shared by nt_replay.c (the steps), nt_replay_start.c (the state before),
 * nt_replay_places.c (made-up addresses), nt_replay_check.c (recorded ones),
 * nt_replay_silence.c (what leaves no trace) and nt_replay_record.c (a run as a
 * snapshot). */
#ifndef NT_REPLAY_STATE_H
#define NT_REPLAY_STATE_H

#include "whatif/nt_replay.h"
#include "base/nt_ordered.h"
#include "base/nt_sort.h"

/* A place that was given back. */
typedef struct replay_place {
    uint64_t address, size;
} replay_place;

/* Made-up addresses: places of equal size, numbered. */
typedef struct replay_places {
    nt_alloc alloc;
    const nt_program *program;
    nt_replay_order order;
    uint64_t seed;
    unsigned shift;     /* a place has 2^shift bytes */
    uint64_t count;     /* of places in all */
    uint64_t low, high; /* places below and from here on are free */
    uint32_t *ranks;    /* the start's areas, then the new places of the trace */
    size_t rank_count;
    uint32_t *order_of[2]; /* new places of the trace: small ones, larger ones */
    size_t order_count[2], order_next[2];
    replay_place *given[2]; /* newest last */
    size_t given_count[2], given_capacity[2];
    bool is_short; /* there was no memory to note one that was given back */
    nt_map used;   /* random: places taken */
} replay_places;

/* The addresses of the trace, and how the model compares with it. */
typedef struct replay_check {
    nt_alloc alloc;
    const nt_program *program;
    const nt_event_columns *events;
    size_t first, count, next; /* `next`: the first event not yet compared */
    const uint8_t *marks; /* by event, as nt_replay_silence has them; may be NULL */
    uint64_t spare;       /* where places are that the trace has not */
    nt_ordered taken;     /* (address, end) */
    nt_replay_fidelity fidelity;
} replay_check;

/* Where silence may have been, while it is looked for. */
typedef struct replay_quiet {
    uint8_t *marks;
    int32_t *drops;
    int32_t *made;    /* by slot: the request whose block is in it */
    size_t run_first; /* since this event all has one stack */
} replay_quiet;

/* Where a block lies in the run that lay at some address in the trace. */
typedef struct replay_moved {
    uint64_t address, size;
    uint64_t asked;   /* bytes of its request in the trace */
    uint32_t earlier; /* row of another block that lay at that address, or NT_NONE */
} replay_moved;

/* The snapshot that is made of a run. */
typedef struct replay_record {
    nt_snapshot *snapshot;
    nt_map stacks;    /* address of a block in use -> its stack */
    size_t event;     /* of the trace, for which the model is at work */
    bool is_begun;    /* the state before the trace is made */
    nt_status status; /* the first failure of a call from inside of the model */
} replay_record;

typedef struct replay {
    nt_alloc alloc;
    const nt_program *program;
    nt_replay_options options;
    nt_allocator *model;
    uint32_t *slots; /* block by slot, or NT_NONE */
    replay_places places;
    replay_check *check;   /* NULL: made-up addresses */
    replay_quiet *quiet;   /* NULL: nobody looks for silence */
    replay_record *record; /* NULL: no snapshot is made */
    size_t next_drop;      /* of `drops` below */
    nt_sort_item *drops;   /* the silent ends of pools: event -> pool */
    size_t drop_count, drop_capacity;
    nt_map moved_rows; /* of private pools: recorded address -> newest row of `moved` */
    replay_moved *moved;
    size_t moved_count, moved_capacity;
    uint64_t start_allocs;
    nt_replay_figures figures;
    nt_error *err;
} replay;

/* Readies the made-up addresses, for places of up to `largest` bytes. */
nt_status
nt_replay_open_places(replay *r, uint64_t largest) NT_CHECKED;
void
nt_replay_close_places(replay *r);
nt_allocator_places
nt_replay_get_places(replay *r);
/* The place of the start's area `i`, or of one more for NT_NONE. */
nt_status
nt_replay_start_place(replay *r, uint32_t i, uint64_t *address) NT_CHECKED;

/* The same with the trace's addresses; and what the model gives. */
nt_allocator_places
nt_replay_get_recorded(replay_check *check);
nt_status
nt_replay_start_recorded(replay_check *check, uint64_t address, uint64_t size,
                         nt_error *err) NT_CHECKED;
void
nt_replay_compare_deed(replay_check *check, nt_action action, uint64_t address,
                       uint64_t size);
/* After a step: block is what a malloc gave, or NT_NONE. */
void
nt_replay_compare_step(replay *r, const nt_program_step *step, uint32_t block);

/* Gives the model the program's pools and lanes, under the same numbers. */
nt_status
nt_replay_add_lanes(const nt_program *program, nt_allocator *model,
                    nt_error *err) NT_CHECKED;

/* Whether a request of the trace was served out of order, in a private pool that was
 * restored: then *block is where the trace has it, else NT_NONE. */
nt_status
nt_replay_restore(replay *r, const nt_program_step *step, uint32_t *block) NT_CHECKED;
/* After the last step: what the trace still has, and the blocks at its end. */
nt_status
nt_replay_compare_end(replay *r) NT_CHECKED;

/*
 * Whether the state before the trace is more than the blocks in it: memory that was
 * cached, or is cut up, by what the program did before. Under other settings it would
 * then be different, and how is not known.
 */
nt_status
nt_replay_has_history(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, bool *out,
                      nt_error *err) NT_CHECKED;

/* Sorts the ends of pools that are silent; nt_replay_clear_silence() frees them. */
nt_status
nt_replay_open_silence(replay *r) NT_CHECKED;
void
nt_replay_close_silence(replay *r);
/* A request that puts a block back: where and how large the block is in this run. True
 * if it is one, and *place then has size 0 if nothing is to be put back. */
bool
nt_replay_find_moved(const replay *r, const nt_program_step *step, replay_moved *place);
/* Notes where a block of a private pool is. */
nt_status
nt_replay_note_moved(replay *r, const nt_program_step *step, uint32_t block) NT_CHECKED;
/* Marks requests that have the stack of one that puts a block back. */
nt_status
nt_replay_mark_restored(replay *r) NT_CHECKED;
/* After step `i`: does what is silent there, or notes that something may be. */
nt_status
nt_replay_pass_silence(replay *r, size_t i) NT_CHECKED;

/* Runs a program, with a check or a record if there are any; `r` holds what it needs.
 */
nt_status
nt_replay_whole(replay *r, const nt_progress *progress,
                const nt_replay_series *series) NT_CHECKED;

/* Writes the events of a step into the record: before it is done what goes, and
 * afterwards what came. `block` is what the step is about, or NT_NONE. */
void
nt_replay_record_free(replay *r, const nt_program_step *step, uint32_t block);
void
nt_replay_record_malloc(replay *r, const nt_program_step *step, uint32_t block);
/* After the last step: the blocks at the end. */
nt_status
nt_replay_record_end(replay *r) NT_CHECKED;
/* Writes what the model gives. */
void
nt_replay_record_deed(replay *r, nt_action action, uint32_t lane, uint64_t address,
                      uint64_t size);

/* Makes the state before the trace. */
nt_status
nt_replay_start(replay *r) NT_CHECKED;

#endif
