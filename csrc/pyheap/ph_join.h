/* SPDX-License-Identifier: Apache-2.0 */
/* A walk's graph, joined with what the collector does not see: references that only C++
 * knows, and nodes that stand for what keeps objects alive (a running frame, a thread).
 * The caller's own objects are left out. The nodes of the walk keep their numbers;
 * added ones come after them. GIL held; nothing is created, nobody's Python runs. Valid
 * as long as the walk. */
#ifndef PH_JOIN_H
#define PH_JOIN_H

#include "base/nt_arena.h"
#include "ph_describe.h"

/* Kinds of nodes and references that Python does not have. */
#define PH_NODE_AUTOGRAD ((ph_node_kind)65)
#define PH_NODE_ROOT ((ph_node_kind)66)

/* A reference that is joined to the graph. */
typedef struct ph_link {
    uint32_t source;
    uint32_t target;
    ph_edge_kind kind;
    bool seen;        /* the collector sees it too */
    bool borrowed;    /* it costs its target no reference */
    const char *name; /* in the join's arena */
} ph_link;

/* A node that is no object of the walk. */
typedef struct ph_added {
    const char *label;
    const char *file; /* "" if there is none */
    int32_t line;
    uint64_t thread; /* the thread's ident; 0: none */
} ph_added;

/* Borrowed parts are for reading. `graph` is there after ph_join_close. */
typedef struct ph_join {
    const ph_heap *heap;
    nt_alloc alloc;
    nt_arena arena;
    uint32_t walked; /* nodes of the walk */
    ph_added *added;
    size_t added_count;
    size_t added_capacity;
    ph_link *links; /* by source, then as they were added, after ph_join_close */
    size_t link_count;
    size_t link_capacity;
    uint32_t *links_in;       /* of a node of the walk: links that C++ holds it by */
    uint32_t call_references; /* that a caller keeps for the time of the call asking */
    nt_bitset hidden;         /* nodes of the walk that lead nowhere */
    nt_bitset autograd;       /* nodes of the walk that are nodes of PyTorch's graph */
    nt_graph graph;
} ph_join;

/* On failure `join` is valid for ph_join_clear only. */
nt_status
ph_join_init(ph_join *join, const ph_heap *heap, nt_error *err) NT_CHECKED;
void
ph_join_clear(ph_join *join);

/* The references of this object are left out. An object that was not walked is fine. */
void
ph_join_hide(ph_join *join, PyObject *object);

/* A node for something other than an object. Texts are copied. */
nt_status
ph_join_add(ph_join *join, const char *label, const char *file, int line,
            uint64_t thread, uint32_t *node, nt_error *err) NT_CHECKED;

/* A reference; the name is copied. Before ph_join_close. */
nt_status
ph_join_link(ph_join *join, uint32_t source, uint32_t target, ph_edge_kind kind,
             const char *name, nt_error *err) NT_CHECKED;

/* The same for one that its source borrows from whoever holds the target. */
nt_status
ph_join_borrow(ph_join *join, uint32_t source, uint32_t target, ph_edge_kind kind,
               const char *name, nt_error *err) NT_CHECKED;

/* The attributes of tensors that C++ holds too: the collector does not see these, or it
 * would take such a tensor for garbage. Before ph_join_close. */
nt_status
ph_join_tensors(ph_join *join, nt_error *err) NT_CHECKED;

/* Builds the graph. */
nt_status
ph_join_close(ph_join *join, nt_error *err) NT_CHECKED;

/* Takes one reference from `source` to `target` out of the graph, if there is one. */
bool
ph_join_cut(ph_join *join, uint32_t source, uint32_t target);

/* The first of the links from `source` to `target`, or NULL. */
const ph_link *
ph_join_find_link(const ph_join *join, uint32_t source, uint32_t target);

/* NULL for an added node. */
PyObject *
ph_join_object(const ph_join *join, uint32_t node);

/* Objects with more references than the walk and the links account for: what C code, a
 * running frame or C++ keeps. `outside` is initialised here for all nodes; the added
 * ones are no members. */
nt_status
ph_join_outside(const ph_join *join, nt_bitset *outside, nt_error *err) NT_CHECKED;

/* References to an object that neither the walk nor a link accounts for; of a tensor
 * also those that C++ holds. */
void
ph_join_unexplained(const ph_join *join, uint32_t node, uint64_t *python,
                    uint64_t *native);

/* Nodes of cycles worth naming: without modules, types, namespaces and what is hidden,
 * through which nearly all of a program hangs together. `within` is initialised here;
 * *cut is how many nodes of the walk were left out. */
nt_status
ph_join_within(const ph_join *join, nt_bitset *within, uint32_t *cut,
               nt_error *err) NT_CHECKED;

/* ---- what keeps objects alive by itself ------------------------------------------ */

/* Modules, and threads with the frames that they run. Each frame and thread becomes a
 * node of a join. */

/* Adds every thread and frame with what it holds. The innermost frames of this thread
 * whose file begins with `own` belong to the caller, and are left out. Before
 * ph_join_close. */
nt_status
ph_roots_add(ph_join *join, const char *own, nt_error *err) NT_CHECKED;

/* The added nodes, and the modules of sys.modules. `roots` is initialised here for all
 * nodes. After ph_join_close. */
nt_status
ph_roots_mark(const ph_join *join, nt_bitset *roots, nt_error *err) NT_CHECKED;

/* ---- a way through a join -------------------------------------------------------- */

/* What its nodes are, and by which names each refers to the next, as plain data that
 * refers to no object. */

/* Of a longer way the middle is one folded node. */
#define PH_WAY_NODES 128

typedef struct ph_way {
    ph_node *nodes; /* in order, in the arena that it was made in */
    uint32_t count;
    ph_edge *edges; /* from each node to the next; a closed way's last leads back */
    uint32_t edge_count;
    uint64_t *threads; /* of an added node the ident of its thread, else 0 */
} ph_way;

/* `nodes`: numbers of the join, each with an edge to the next. */
nt_status
ph_way_make(const ph_join *join, const uint32_t *nodes, uint32_t count, bool closed,
            nt_arena *arena, ph_way *way, nt_error *err) NT_CHECKED;

/* ---- bytes that holders keep ----------------------------------------------------- */

/* How many bytes of tensors would be freed with some objects: dominators of
 * a join, with a node for each holder. GIL held; nothing is created. */

/* One reference that a holder would drop: from an object to another. */
typedef struct ph_hold {
    uint32_t holder; /* 0 .. holder_count - 1 */
    PyObject *container;
    PyObject *value;
} ph_hold;

typedef struct ph_held {
    uint64_t bytes;     /* freed if only this holder let go */
    uint64_t reachable; /* of all tensors that it leads to */
    uint32_t tensors;   /* that would go */
    uint32_t holds;     /* references that were found */
} ph_held;

/* A join to which `holder_count` nodes are added last for the holders. Adds them,
 * closes the join, takes the holds out of it. `held` has an entry a holder; *together
 * is what would be freed if all let go. */
nt_status
ph_held_measure(ph_join *join, const ph_hold *holds, size_t hold_count, ph_held *held,
                uint32_t holder_count, uint64_t *together, nt_error *err) NT_CHECKED;

/* ---- cycles ---------------------------------------------------------------------- */

/* Cycles that PyTorch's graph has a part in: found in a join, with what each keeps, as
 * plain data. GIL held; nothing is created, nobody's Python runs. */

/* A component of the join with a reference of PyTorch's graph inside. */
typedef struct ph_loop {
    ph_way way;       /* a shortest way round through such a reference */
    uint32_t objects; /* of the component */
    uint32_t tensors; /* that it keeps */
    uint64_t bytes;   /* of their storages, each once */
    bool hidden;      /* one such reference is hidden from the collector, so that it
                       * can never find the cycle dead */
    bool alive;       /* a module or a running frame leads to it */
    ph_device_bytes devices[PH_MOST_DEVICES];
    uint32_t device_count;
    ph_node *kept; /* its largest tensors */
    uint32_t kept_count;
} ph_loop;

typedef struct ph_loops {
    nt_arena arena; /* owns all of it */
    ph_loop *loops; /* most bytes first */
    uint32_t count;
    uint32_t left_out; /* components beyond the requested number */
    uint64_t left_out_bytes;
    uint32_t cut; /* nodes of the walk that cycles were not looked for in */
} ph_loops;

/* At most `most` components are described. On failure *out is NULL. */
nt_status
ph_loops_find(const ph_join *join, uint32_t most, ph_loops **out,
              nt_error *err) NT_CHECKED;
void
ph_loops_free(ph_loops *loops);

#endif
