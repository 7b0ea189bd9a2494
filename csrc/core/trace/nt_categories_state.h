/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules of nt_categories use; for its own files only. */
#ifndef NT_CATEGORIES_STATE_H
#define NT_CATEGORIES_STATE_H

#include "trace/nt_categories.h"
#include "base/nt_map.h"

typedef struct categories {
    nt_alloc alloc;
    const nt_passes *passes;
    const nt_timeline *timeline;
    const nt_allocation_columns *a;
    const uint8_t *role; /* by event */
    const nt_span *spans;
    size_t span_count;
    const int32_t *forward;
    size_t forward_count;
    size_t first;   /* the first row that the trace itself allocates */
    uint8_t *rules; /* by row; the caller's */
    nt_map built;   /* requested size -> blocks that modules made and keep */
    nt_map known;   /* requested sizes of blocks kept to the end */
    nt_map seen;    /* requested size -> survivors of all passes */
    nt_map sizes;   /* requested sizes of gradients */
    nt_map largest; /* of the pass that leaves the most bytes: size -> gradients */
    uint64_t bytes; /* what that pass leaves */
    nt_error *err;
} categories;

/* The nt_role of a row: that of the event that allocates it. Of one from before the
 * trace, that of its stack, which a block keeps when the ring has lost its event. */
static inline uint8_t
categories_role(const categories *c, size_t row)
{
    return row < c->first ? (uint8_t)nt_passes_stack_role(c->passes, c->a->stack[row])
                          : c->role[c->a->alloc_event[row]];
}

/* Adds 1 to what `map` has under `key`. */
nt_status
nt_categories_count(categories *c, nt_map *map, uint64_t key) NT_CHECKED;
/* What `map` has under `key`; 0 for nothing. */
uint32_t
nt_categories_counted(const nt_map *map, uint64_t key);

/* Sizes of workspaces that cuBLAS keeps. */
#define NT_WORKSPACES 3

/* Which of these a request has; NT_WORKSPACES: none. */
size_t
nt_categories_workspace(uint64_t asked);

/* How many passes end before `event`, or begin before it. */
size_t
nt_categories_ended(const categories *c, int32_t event);
size_t
nt_categories_begun(const categories *c, int32_t event);
/* The number of the backward pass that an event is in; SIZE_MAX: in none. */
size_t
nt_categories_pass(const categories *c, int32_t event);

/* Whether what was made in a forward pass was freed before the backward pass after the
 * next one began, or the trace ended before that. */
bool
nt_categories_ends_soon(const categories *c, int32_t made, int32_t freed);
/* Whether it was kept to the end, or past the next backward pass. */
bool
nt_categories_outlives(const categories *c, int32_t made, int32_t freed);

/* nt_categories_scratch.c: what one operation makes and frees. */
void
nt_categories_scratch(categories *c);
/* nt_categories_backward.c: what backward passes make, and so the gradients' sizes. */
nt_status
nt_categories_backward(categories *c) NT_CHECKED;
/* nt_categories_copies.c: tensors of the program's own as large as its gradients. */
nt_status
nt_categories_copies(categories *c) NT_CHECKED;

#endif
