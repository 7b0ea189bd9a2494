/* SPDX-License-Identifier: Apache-2.0 */
/* A directed graph as two arrays (compressed sparse rows), and what an object graph is
 * asked: what is reachable, which components are cycles, the shortest way round or in,
 * who dominates whom and how many bytes hang on each node.
 *
 * Nodes are numbers 0 .. node_count - 1; a result array has one entry a node, made by
 * the caller, whose contents mean nothing after a failure. Everything is iterative: a
 * chain of ten million nodes is fine. What a call takes beside its results is said in
 * bytes. */
#ifndef NT_GRAPH_H
#define NT_GRAPH_H

#include "base/nt_base.h"
#include "base/nt_bitset.h"
#include "base/nt_map.h" /* NT_NONE */

/* The highest bit of a node's number is free for marks. */
#define NT_GRAPH_MOST_NODES ((UINT32_C(1) << 31) - 1)

/* The edges of node n lead to targets[first[n]] .. targets[first[n + 1] - 1]; the same
 * target may come more than once. All-zero is the empty graph. If it is not
 * nt_graph_init that fills the struct, the blocks must have exactly these sizes. */
typedef struct nt_graph {
    nt_alloc alloc;
    uint32_t node_count;
    uint32_t edge_count;
    uint32_t *first;   /* node_count + 1 */
    uint32_t *targets; /* edge_count */
} nt_graph;

/* Room for a graph, its arrays not filled: 4 bytes a node and 4 an edge. On failure
 * `graph` is empty. NT_LIMIT for too many nodes. */
nt_status
nt_graph_init(nt_graph *graph, const nt_alloc *alloc, uint32_t node_count,
              uint32_t edge_count, nt_error *err) NT_CHECKED;
void
nt_graph_clear(nt_graph *graph);

/* Whether `first` ascends from 0 to edge_count and every target is a node. All
 * functions below rely on it. */
bool
nt_graph_check(const nt_graph *graph);

/* The same graph with every edge turned round; each node's edges ascend. Takes no
 * memory but the result's. */
nt_status
nt_graph_reverse(const nt_graph *graph, nt_graph *out, nt_error *err) NT_CHECKED;

/* Adds to `marked` what can be reached from `seeds`, the seeds included. Nodes that are
 * marked already are not passed through, and so can fence off a part. On failure some
 * may be missing. Takes 4 to 8 bytes for each node that it marks. */
nt_status
nt_graph_mark(const nt_graph *graph, const uint32_t *seeds, size_t seed_count,
              nt_bitset *marked, nt_error *err) NT_CHECKED;

/* Strongly connected components of the subgraph of the nodes in `within` (NULL: all).
 * component[n] is a number from 0 to *count - 1, or NT_NONE for a node that is left
 * out; an edge between two components leads to the smaller number (sinks come first).
 * Takes 8 bytes for each node of the subgraph. */
nt_status
nt_graph_components(const nt_graph *graph, const nt_bitset *within, uint32_t *component,
                    uint32_t *count, nt_error *err) NT_CHECKED;

/* sizes[c] = nodes of component c; a component of one node is a cycle only where the
 * node refers to itself: cyclic[c] says. Either array may be NULL. No memory. */
void
nt_graph_component_facts(const nt_graph *graph, const uint32_t *component,
                         uint32_t count, uint32_t *sizes, bool *cyclic);

/* owner[n] = the component that is a cycle, reaches n, and lies furthest downstream
 * (the smallest such number; a cycle owns its own nodes); NT_NONE where none does.
 * Nodes without a component are not passed through. Takes 4 bytes a component, and 4 to
 * 8 for each node of the cycle that owns most. */
nt_status
nt_graph_owners(const nt_graph *graph, const uint32_t *component, uint32_t count,
                uint32_t *owner, nt_error *err) NT_CHECKED;

/* A shortest cycle through `node` inside of its component: the nodes in order,
 * beginning with `node`, each with an edge to the next and the last to the first.
 * *cycle is to be given back with nt_release(&graph->alloc, cycle, *length * 4); its
 * length is 0, and *cycle NULL, where there is none. Of equally short ones the one
 * found by following edges in their order. Takes time, and 8 to 50 bytes, for each node
 * that is as near as the cycle is long; from 4,096 of these on also a bit a node of the
 * graph. */
nt_status
nt_graph_cycle(const nt_graph *graph, const uint32_t *component, uint32_t node,
               uint32_t **cycle, uint32_t *length, nt_error *err) NT_CHECKED;

/* A chain from a root to the node that was asked about. */
typedef struct nt_graph_path {
    uint32_t *nodes; /* the root first, the node asked about last */
    uint32_t length;
} nt_graph_path;

/* At most `most` shortest chains from members of `roots` to `node`, the shortest first,
 * each with one root, at its top, and none through a node of `hidden` (NULL: nothing is
 * hidden). `reversed` is the graph turned round. No two go through the same referrer of
 * `node`; where only one referrer leads to a root, no two through the same referrer of
 * that one, and so on upwards. A root that is `node` itself is the chain of one; others
 * to it follow. Give them back with nt_graph_paths_free. Takes a bit a node, and 8 to
 * 16 bytes for each that one search looks at. */
nt_status
nt_graph_paths(const nt_graph *reversed, uint32_t node, const nt_bitset *roots,
               const nt_bitset *hidden, uint32_t most, nt_graph_path **paths,
               uint32_t *count, nt_error *err) NT_CHECKED;
void
nt_graph_paths_free(const nt_graph *reversed, nt_graph_path *paths, uint32_t count);

/* idom[n] = the immediate dominator of n seen from `roots` (a root that nothing else
 * but the outside dominates has NT_NONE, as has what no root reaches; tell these apart
 * with order[]). `order` gets the nodes that were reached, dominators before what they
 * dominate; *reached is their number. Lengauer and Tarjan, 1979. Takes 16 bytes a node,
 * 4 for each that is reached and 4 for each edge of those. */
nt_status
nt_graph_dominators(const nt_graph *graph, const uint32_t *roots, size_t root_count,
                    uint32_t *idom, uint32_t *order, uint32_t *reached,
                    nt_error *err) NT_CHECKED;

/* retained[n] = bytes[n] and those of all that n dominates; 0 where not reached. The
 * two arrays differ. No memory. */
void
nt_graph_retained(uint32_t node_count, const uint32_t *idom, const uint32_t *order,
                  uint32_t reached, const uint64_t *bytes, uint64_t *retained);

#endif
