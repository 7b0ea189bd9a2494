/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_edges.h"

nt_status
nt_edges_graph(const nt_alloc *alloc, uint32_t node_count, const nt_edge *edges,
               uint32_t edge_count, nt_graph *out)
{
    NT_TRY(nt_graph_init(out, alloc, node_count, edge_count, NULL));
    for (uint32_t n = 0; n <= node_count; n++) {
        out->first[n] = 0;
    }
    for (uint32_t e = 0; e < edge_count; e++) {
        out->first[edges[e].from]++;
    }
    for (uint32_t n = 1; n <= node_count; n++) {
        out->first[n] += out->first[n - 1];
    }
    for (uint32_t e = edge_count; e-- > 0;) {
        out->targets[--out->first[edges[e].from]] = edges[e].to;
    }
    return NT_OK;
}
