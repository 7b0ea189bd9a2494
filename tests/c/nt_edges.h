/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the tests, written down as edges. */
#ifndef NT_EDGES_H
#define NT_EDGES_H

#include "heap/nt_graph.h"

typedef struct nt_edge {
    uint32_t from;
    uint32_t to;
} nt_edge;

/* A graph of these edges; those of one node keep their order. */
nt_status
nt_edges_graph(const nt_alloc *alloc, uint32_t node_count, const nt_edge *edges,
               uint32_t edge_count, nt_graph *out) NT_CHECKED;

#endif
