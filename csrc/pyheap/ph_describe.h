/* SPDX-License-Identifier: Apache-2.0 */
/* The cycles in a set of objects that hold tensors, described in plain data: which
 * objects go round by which names, what hangs on them, how many bytes. Cycles of one
 * shape (the same types and names on the way round) are one entry with a count. The
 * description refers to no object, so it outlives what it describes. GIL held while it
 * is made; no Python object is made and nobody's Python runs. */
#ifndef PH_DESCRIBE_H
#define PH_DESCRIBE_H

#include "base/nt_arena.h"
#include "ph_names.h"
#include "ph_tensor.h"
#include "ph_walk.h"

/* What ph_describe_options.device_type can be besides a c10::DeviceType. */
#define PH_ANY_DEVICE (-1)
#define PH_ACCELERATORS (-2) /* all that is neither the CPU nor without memory */

/* A kind of edge that is made of several: function -> closure -> cell -> object. */
#define PH_EDGE_VARIABLE ((ph_edge_kind)64)

/* A reference that only PyTorch's graph knows. */
#define PH_EDGE_AUTOGRAD ((ph_edge_kind)65)

/* A node for the middle of a long cycle. */
#define PH_NODE_FOLDED ((ph_node_kind)64)

/* Bytes are counted separately for so many devices; the last one also gets those of all
 * further ones. */
#define PH_MOST_DEVICES 16

typedef struct ph_describe_options {
    int16_t device_type;  /* or PH_ANY_DEVICE, PH_ACCELERATORS */
    int16_t device_index; /* -1: any */
    uint64_t min_bytes;   /* cycles that keep less are left out */
    uint32_t
        most;   /* shapes that are described; of the others only the sum is reported */
    bool dying; /* the set is about to be freed: what only it keeps goes too */
    /* NULL, or a map whose keys are signatures that are counted and not described: of
     * these nothing behind `objects` is filled in. */
    const nt_map *known;
} ph_describe_options;

typedef struct ph_node {
    const char *type;
    const char *label;
    const char *file; /* "" if unknown */
    int32_t line;
    ph_node_kind kind;
    uint32_t count;   /* objects that it represents */
    bool is_strong;   /* Python makes no weak references to it */
    ph_tensor tensor; /* where kind is PH_NODE_TENSOR */
} ph_node;

typedef struct ph_edge {
    uint32_t source; /* in ph_cycle.nodes */
    uint32_t target;
    const char *name;
    ph_edge_kind kind;
    uint32_t step; /* its number on the way that it is drawn of */
    bool in_cycle;
} ph_edge;

/* A reference to break, on a way round. */
typedef struct ph_cut {
    const ph_node *nodes; /* of the way, in order */
    uint32_t node_count;
    const ph_edge *edges;
    uint32_t edge_count;
    uint32_t edge;       /* in `edges` */
    uint32_t references; /* from its holder to its target: each has to go */
} ph_cut;

typedef struct ph_device_bytes {
    int16_t type;
    int16_t index;
    uint64_t bytes;
} ph_device_bytes;

/* All cycles of one shape; one of them, the one that keeps most, in detail. */
typedef struct ph_cycle {
    uint64_t signature; /* the shape: equal in every process where names are */
    uint32_t count;     /* components of this shape */
    uint32_t tensors;   /* tensors that they keep, all together */
    uint64_t bytes;     /* storage bytes of these, each storage once */
    ph_device_bytes devices[PH_MOST_DEVICES];
    uint32_t device_count;
    uint64_t *objects; /* an address in each component: `count` of them */

    uint64_t one_bytes;   /* of the one in detail: bytes that it keeps, */
    uint32_t one_tensors; /* its tensors, */
    uint32_t one_objects; /* the objects of its component, */
    uint32_t length;      /* and those on its shortest way round */
    ph_node *nodes;       /* the way round first, in order: chain_length of them */
    uint32_t node_count;
    uint32_t chain_length;
    ph_edge *edges; /* the way round first: chain_length of them */
    uint32_t edge_count;
    ph_cut *cuts; /* what to break, the first one on the way round */
    uint32_t cut_count;
    bool is_proved; /* without these references no cycle is left that keeps its tensors
                     */
} ph_cycle;

/* The cycles found, most bytes first. Owns all it points to. */
typedef struct ph_cycles {
    nt_arena arena;
    ph_cycle *cycles;
    size_t capacity; /* of `cycles` */
    uint32_t count;
    uint32_t components;  /* cycles that hold a wanted tensor, of all shapes */
    uint32_t others;      /* cycles that don't */
    uint32_t left_out;    /* shapes that were not described */
    uint64_t bytes;       /* of all shapes */
    uint64_t loose_bytes; /* tensors of the set that no cycle holds (a finalizer's) */
    uint64_t *storages; /* of what is dying: where each wanted tensor's memory begins */
    size_t storage_count;
    size_t storage_capacity;
} ph_cycles;

/* `set`: nodes of the walk. On failure *out is NULL; it is NULL, with NT_OK, where no
 * tensor is in the set or goes with it. */
nt_status
ph_describe(const ph_heap *heap, const nt_bitset *set,
            const ph_describe_options *options, ph_cycles **out,
            nt_error *err) NT_CHECKED;
void
ph_cycles_free(ph_cycles *cycles);

/* The reference of a closed way that a program most easily does without: its place
 * among the `count` edges, of which the last leads to the source of the first. Of
 * equals the last, which closes the cycle. */
uint32_t
ph_cut_choose(const ph_node *nodes, const ph_edge *way, uint32_t count);

/* The nodes of a full walk in which live cycles are looked for: those that are not in
 * `dead`, less modules, their namespaces, and types, through which nearly all objects
 * of a program hang together. `live` is initialised here; *cut is how many nodes were
 * left out. */
nt_status
ph_describe_live(const ph_heap *heap, const nt_bitset *dead, nt_bitset *live,
                 uint32_t *cut, nt_error *err) NT_CHECKED;

#endif
