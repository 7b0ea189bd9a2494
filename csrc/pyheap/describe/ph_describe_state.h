/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ph_describe: what its parts share while a description is made. Objects
 * are numbered: the nodes of the walk, and behind them the extras, objects outside of
 * the set that only the set keeps.
 */
#ifndef PH_DESCRIBE_STATE_H
#define PH_DESCRIBE_STATE_H

#include "base/nt_map.h"
#include "describe/ph_describe.h"

/* One reference on the way: from `node` to the next one. */
typedef struct ph_step {
    uint32_t node;
    ph_edge_kind kind;
    const char *name;
} ph_step;

/* What is known of a component that is a cycle and keeps wanted tensors. */
typedef struct ph_component {
    uint32_t component;
    uint64_t bytes;
    uint64_t top_bytes[4]; /* its largest tensors, the largest first */
    uint32_t top[4];
    uint32_t tensors;
    uint32_t cycle; /* the entry of its shape, or NT_NONE */
    ph_device_bytes devices[4];
    uint32_t device_count;
} ph_component;

typedef struct ph_state {
    const ph_heap *heap;
    const nt_graph *graph;
    const nt_bitset *set;
    ph_describe_options options;
    nt_alloc alloc;
    uint32_t count; /* nodes of the walk */

    uint32_t *component; /* of a node; NT_NONE outside of the set */
    uint32_t *owner;     /* the cycle that keeps a node */
    uint32_t components;
    uint32_t *sizes;
    bool *cyclic;
    uint32_t *member_first; /* members of component c: members[member_first[c]] .. */
    uint32_t *members;
    nt_map found;       /* component -> index in `kept` */
    ph_component *kept; /* those with wanted tensors */
    size_t kept_count;
    size_t kept_capacity;
    nt_map storages; /* seen */

    PyObject **extras;
    uint32_t *extra_owner;
    uint32_t extra_count;
    size_t extra_capacity;
    nt_map extra_index; /* address -> number */

    /* The way round that was found last, for who asks for it again: a component of a
     * million objects is gone through once. */
    uint32_t *way;
    uint32_t way_length;
    uint32_t way_component;

    nt_arena scratch; /* emptied for each component */
    ph_cycles *out;
    size_t cycle_capacity;
} ph_state;

PyObject *
ph_state_object(const ph_state *s, uint32_t node);
/* The number of an object, or NT_NONE. */
uint32_t
ph_state_find(const ph_state *s, const PyObject *object);
/* The component of the cycle that keeps a node, or NT_NONE. */
uint32_t
ph_state_owner(const ph_state *s, uint32_t node);

/* ph_describe_extra.c: fills the extras, in place of what was there. */
nt_status
ph_describe_extras(ph_state *s, nt_error *err) NT_CHECKED;

/* ph_describe_chain.c */

/*
 * The references along `nodes` (with the one from the last to the first if `closed`)
 * by their names, steps that are one to a reader made one. The steps are in the
 * scratch arena; an open way's last step has no name.
 */
nt_status
ph_describe_steps(ph_state *s, const uint32_t *nodes, uint32_t count, bool closed,
                  ph_step **steps, uint32_t *step_count, nt_error *err) NT_CHECKED;

/* The same for every cycle of the same shape, wherever it begins. */
uint64_t
ph_describe_signature(const ph_state *s, const ph_step *steps, uint32_t count);

/* Turns a closed way so that it begins with what its reader knows best. */
void
ph_describe_turn(const ph_state *s, ph_step *steps, uint32_t count);

/* ph_describe_graph.c: nodes and edges of `cycle`: the way round, and the ways from it
 * to the largest tensors of the component. */
nt_status
ph_describe_graph(ph_state *s, uint32_t component, const ph_component *kept,
                  const ph_step *steps, uint32_t count, ph_cycle *cycle,
                  nt_error *err) NT_CHECKED;

#endif
