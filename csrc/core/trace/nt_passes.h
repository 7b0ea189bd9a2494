/* SPDX-License-Identifier: Apache-2.0 */
/* The forward and backward passes of a program that trains, from the stacks of its
 * events. What one frame says is decided by whoever knows PyTorch's files; what a whole
 * stack says, and which passes follow from it, is decided here. */
#ifndef NT_PASSES_H
#define NT_PASSES_H

#include "base/nt_base.h"
#include "trace/nt_timeline.h"

/* What a stack was doing; neutracer/trace/roles.py has the same numbers. */
typedef enum nt_role {
    NT_ROLE_EMPTY,  /* no frames */
    NT_ROLE_USER,   /* nothing of the below: the program's own lines and their calls */
    NT_ROLE_MODULE, /* inside of a call of an nn.Module */
    NT_ROLE_BUILD,  /* making, moving or loading a module */
    NT_ROLE_SEED,   /* backward() making the first gradient, that of the loss */
    NT_ROLE_BACKWARD,  /* the backward pass */
    NT_ROLE_OPTIMIZER, /* inside of an optimizer's step */
    NT_ROLE_STATE,     /* an optimizer making its state */
    NT_ROLE_ZERO_GRAD, /* zero_grad() of an optimizer or module */
    NT_ROLE_SCALER,    /* the gradient scaler, gradient clipping */
    NT_ROLE_BUCKET,    /* DistributedDataParallel making its buckets of gradients */
    NT_ROLE_GATHER,    /* a sharded parameter being put together */
    NT_ROLE_REDUCE,    /* gradients being reduced to a shard */
    NT_ROLE_CACHE,     /* a cache of keys and values */
    NT_ROLE_WORKSPACE, /* cuBLAS or cuDNN getting a workspace */
    NT_ROLE_COUNT,
} nt_role;

/* What one frame says: an nt_role, and any of the bits below. */
enum {
    NT_FRAME_ROLE = 0xf,
    NT_FRAME_TORCH = 1 << 4,   /* Python in PyTorch's own files */
    NT_FRAME_OUTSIDE = 1 << 5, /* Python in other files */
    NT_FRAME_REVERSE = 1 << 6, /* a function named backward */
    NT_FRAME_APPLIES = 1 << 7, /* of NT_ROLE_BACKWARD if it calls NT_FRAME_REVERSE */
    NT_FRAME_ALGORITHM = 1
        << 8,               /* an optimizer's step in PyTorch: what it calls outside
                             * of PyTorch is a closure, not the optimizer's */
    NT_FRAME_INIT = 1 << 9, /* the __init__ of a class outside of PyTorch */
};

/* Events begin .. end - 1. */
typedef struct nt_span {
    int32_t begin, end;
} nt_span;

/* The nt_role of one stack: what its `count` frames say, innermost first. */
nt_role
nt_role_of(const uint16_t *frames, size_t count);

typedef struct nt_passes nt_passes;

/* `frames` has what each frame id of the timeline's snapshot says, `frame_count` of
 * them; NT_ARGUMENT where that is another number. The timeline must outlive the passes.
 * Time is linear in stacks and events; memory 8 bytes a stack and up to 5 an event. */
nt_status
nt_passes_new(const nt_alloc *alloc, const nt_timeline *timeline,
              const uint16_t *frames, size_t frame_count, nt_passes **out,
              nt_error *err) NT_CHECKED;
void
nt_passes_free(nt_passes *passes);

const nt_timeline *
nt_passes_timeline(const nt_passes *passes);
/* The nt_role of each event. An event without a stack is of the backward pass where the
 * trace has one, since autograd's threads have no Python frames. */
const uint8_t *
nt_passes_roles(const nt_passes *passes);
/* The nt_role of a stack of the snapshot; of NT_NO_STACK NT_ROLE_EMPTY. */
nt_role
nt_passes_stack_role(const nt_passes *passes, uint32_t stack);
/* The backward passes, rising. */
const nt_span *
nt_passes_backward(const nt_passes *passes, size_t *count);
/* The events that allocate inside of modules, rising. */
const int32_t *
nt_passes_forward(const nt_passes *passes, size_t *count);
/* Whether the innermost frame of a stack is in PyTorch's own files. */
bool
nt_passes_is_torch(const nt_passes *passes, uint32_t stack);
/* Whether the innermost NT_FRAME_OUTSIDE of a stack is an NT_FRAME_INIT. */
bool
nt_passes_is_init(const nt_passes *passes, uint32_t stack);

#endif
