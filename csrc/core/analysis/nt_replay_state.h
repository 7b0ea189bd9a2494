/* SPDX-License-Identifier: Apache-2.0 */
/* A run, shared by nt_replay.c (the steps), nt_replay_start.c (the state before),
 * nt_replay_places.c (made-up addresses) and nt_replay_check.c (recorded ones). */
#ifndef NT_REPLAY_STATE_H
#define NT_REPLAY_STATE_H

#include "analysis/nt_replay.h"
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
    nt_map used; /* random: places taken */
} replay_places;

/* The addresses of the trace, and how the model compares with it. */
typedef struct replay_check {
    nt_alloc alloc;
    const nt_program *program;
    const nt_event_columns *events;
    size_t first, count, next; /* `next`: the first event not yet compared */
    uint64_t spare;            /* where places are that the trace has not */
    nt_ordered taken;          /* (address, end) */
    nt_replay_fidelity fidelity;
} replay_check;

typedef struct replay {
    nt_alloc alloc;
    const nt_program *program;
    nt_replay_options options;
    nt_allocator *model;
    uint32_t *slots; /* block by slot, or NT_NONE */
    replay_places places;
    replay_check *check; /* NULL: made-up addresses */
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

/* The same with the trace's addresses; and what the model tells. */
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
 * then be another one, and which is not known.
 */
nt_status
nt_replay_has_history(const nt_alloc *alloc, const nt_program *program,
                      const nt_replay_options *options, bool *out,
                      nt_error *err) NT_CHECKED;

/* Makes the state before the trace. */
nt_status
nt_replay_start(replay *r) NT_CHECKED;

#endif
