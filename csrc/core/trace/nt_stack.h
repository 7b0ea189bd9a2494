/* SPDX-License-Identifier: Apache-2.0 */
/* Frames and stacks. Equal frames are one frame id; stacks are a prefix tree from the
 * outermost frame inwards, so that a stack is one 32-bit id and a million stacks with a
 * common bottom share it. */
#ifndef NT_STACK_H
#define NT_STACK_H

#include "base/nt_base.h"
#include "base/nt_map.h"

/* The stack without frames; also the root of the tree. */
#define NT_EMPTY_STACK ((uint32_t)0)

/* One frame as PyTorch gives it. Strings are ids in the snapshot's nt_strings. */
typedef struct nt_frame {
    uint32_t name;
    uint32_t filename;
    int64_t line;
    uint32_t fx; /* number of its nt_fx_node, from 1; 0: none */
} nt_frame;

/* What torch.fx knows of a line of code that it generated: string ids, or NT_NONE. */
typedef struct nt_fx_node {
    uint32_t op, name, target;
    uint32_t trace; /* the model's own stack, as Python's traceback module writes it */
} nt_fx_node;

typedef struct nt_stacks nt_stacks;

nt_status
nt_stacks_new(const nt_alloc *alloc, nt_stacks **out, nt_error *err) NT_CHECKED;
void
nt_stacks_free(nt_stacks *stacks);

/* The number of `node` for an nt_frame, added at first sight. */
nt_status
nt_stacks_intern_fx(nt_stacks *stacks, nt_fx_node node, uint32_t *out,
                    nt_error *err) NT_CHECKED;

/* The id of `frame`, added at first sight. */
nt_status
nt_stacks_intern_frame(nt_stacks *stacks, nt_frame frame, uint32_t *out,
                       nt_error *err) NT_CHECKED;

/* The id of the stack made of `count` frame ids, innermost first. */
nt_status
nt_stacks_intern(nt_stacks *stacks, const uint32_t *frames, size_t count, uint32_t *out,
                 nt_error *err) NT_CHECKED;

/* The id of the stack that the frame id `frame` makes on top of the stack `parent`. */
nt_status
nt_stacks_intern_call(nt_stacks *stacks, uint32_t parent, uint32_t frame, uint32_t *out,
                      nt_error *err) NT_CHECKED;

/* Number of ids handed out; the empty stack counts. Ids run from 0. */
size_t
nt_stacks_count(const nt_stacks *stacks);
size_t
nt_stacks_frame_count(const nt_stacks *stacks);

/* The columns, indexed by stack id: innermost frame, and the stack it was called from.
 * Entry 0 is the empty stack (frame NT_NONE, parent 0). */
const uint32_t *
nt_stacks_innermost(const nt_stacks *stacks);
const uint32_t *
nt_stacks_parent(const nt_stacks *stacks);

/* Writes into `marks`, which has an entry for each stack, 1 where a frame of it is of
 * the function `name` (a string id), else 0. */
void
nt_stacks_mark(const nt_stacks *stacks, uint32_t name, uint8_t *marks);

/* The nodes of frames; number n is entry n - 1. */
const nt_fx_node *
nt_stacks_fx(const nt_stacks *stacks, size_t *count);

/* The frames, indexed by frame id. */
const nt_frame *
nt_stacks_frames(const nt_stacks *stacks);

#endif
