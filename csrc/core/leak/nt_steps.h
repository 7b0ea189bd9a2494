/* SPDX-License-Identifier: Apache-2.0 */
/* A device's trace cut into the steps of its program, by the best evidence there is:
 * texts that the program gave, its optimizer, its backward passes, a loop of its own,
 * or the same events over and over. What happens inside of a module is no step: the
 * layers of one forward pass recur as well. */
#ifndef NT_STEPS_H
#define NT_STEPS_H

#include "base/nt_base.h"
#include "trace/nt_passes.h"
#include "trace/nt_snapshot.h"

typedef enum nt_steps_how {
    NT_STEPS_NONE,
    NT_STEPS_METADATA,    /* user_metadata that counts up or repeats */
    NT_STEPS_ANNOTATIONS, /* named ranges that differ in a number only */
    NT_STEPS_OPTIMIZER,   /* each ends with an optimizer's step */
    NT_STEPS_BACKWARD,    /* each ends with a backward pass */
    NT_STEPS_LOOP,        /* a function of the program goes back to an earlier line */
    NT_STEPS_RHYTHM,      /* the same events, over and over */
    NT_STEPS_HOW_COUNT,
} nt_steps_how;

/* Steps that follow each other: step k is events edges[k] .. edges[k + 1] - 1. */
typedef struct nt_steps {
    nt_alloc alloc;
    nt_steps_how how;
    size_t count;
    uint32_t *edges; /* count + 1 of them, rising; NULL for no steps */
    uint32_t text;   /* string id of the first step's text, or NT_NONE */
    uint32_t frame;  /* frame id of the line that begins a loop's steps, or NT_NONE */
} nt_steps;

/* Marks the stacks that the device's events name: `marks` has a 0 for each stack id,
 * which becomes 1. Returns how many there are. */
size_t
nt_steps_mark_stacks(const nt_snapshot *snapshot, size_t device, uint8_t *marks);

/* The steps of the trace of `device`, one of the sealed `snapshot`'s traces. `roles`
 * has a role for each stack id that nt_steps_mark_stacks marks. Time is linear in
 * events, memory 17 bytes an event at most, for a while. nt_steps_clear gives *out
 * back. */
nt_status
nt_steps_find(const nt_alloc *alloc, const nt_snapshot *snapshot, size_t device,
              const uint8_t *roles, nt_steps *out, nt_error *err) NT_CHECKED;
void
nt_steps_clear(nt_steps *steps);

#endif
