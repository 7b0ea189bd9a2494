/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/nt_graph.h"

#include <string.h>

#include "heap/nt_graph_queue.h"

nt_status
nt_graph_init(nt_graph *graph, const nt_alloc *alloc, uint32_t node_count,
              uint32_t edge_count, nt_error *err)
{
    *graph = (nt_graph){.alloc = *alloc};
    if (node_count > NT_GRAPH_MOST_NODES) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                       "a graph of more than 2^31 - 1 nodes");
    }
    size_t first_bytes, target_bytes;
    if (!nt_size_mul((size_t)node_count + 1, sizeof(uint32_t), &first_bytes) ||
        !nt_size_mul(edge_count, sizeof(uint32_t), &target_bytes)) {
        return nt_fail_nomem(err);
    }
    uint32_t *first = nt_allocate(alloc, first_bytes);
    uint32_t *targets = nt_allocate(alloc, target_bytes);
    if (first == NULL || (targets == NULL && edge_count > 0)) {
        nt_release(alloc, first, first_bytes);
        nt_release(alloc, targets, target_bytes);
        return nt_fail_nomem(err);
    }
    graph->node_count = node_count;
    graph->edge_count = edge_count;
    graph->first = first;
    graph->targets = targets;
    return NT_OK;
}

void
nt_graph_clear(nt_graph *graph)
{
    const size_t nodes = graph->node_count;
    nt_release(&graph->alloc, graph->first, (nodes + 1) * sizeof *graph->first);
    nt_release(&graph->alloc, graph->targets,
               (size_t)graph->edge_count * sizeof *graph->targets);
    *graph = (nt_graph){.alloc = graph->alloc};
}

bool
nt_graph_check(const nt_graph *graph)
{
    if (graph->first == NULL) {
        return graph->node_count == 0 && graph->edge_count == 0;
    }
    if (graph->first[0] != 0 || graph->first[graph->node_count] != graph->edge_count) {
        return false;
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        if (graph->first[n] > graph->first[n + 1]) {
            return false;
        }
    }
    for (size_t e = 0; e < graph->edge_count; e++) {
        if (graph->targets[e] >= graph->node_count) {
            return false;
        }
    }
    return true;
}

/* Makes first[n] the place behind the last edge that leads to n. */
static void
graph_count_referrers(const nt_graph *graph, uint32_t *first)
{
    memset(first, 0, ((size_t)graph->node_count + 1) * sizeof *first);
    for (size_t e = 0; e < graph->edge_count; e++) {
        first[graph->targets[e]]++;
    }
    for (size_t n = 1; n <= graph->node_count; n++) {
        first[n] += first[n - 1];
    }
}

/* Each node's places are filled from the last to the first, so that first[n] ends as
 * the place of the first one; nodes go downwards, so that the edges ascend. */
nt_status
nt_graph_reverse(const nt_graph *graph, nt_graph *out, nt_error *err)
{
    nt_graph turned;
    if (graph->node_count == 0) {
        *out = (nt_graph){.alloc = graph->alloc};
        return NT_OK;
    }
    NT_TRY(nt_graph_init(&turned, &graph->alloc, graph->node_count, graph->edge_count,
                         err));
    graph_count_referrers(graph, turned.first);
    for (uint32_t n = graph->node_count; n-- > 0;) {
        for (uint32_t e = graph->first[n + 1]; e-- > graph->first[n];) {
            /* Far enough ahead that the entry, and nearer the place, have come. */
            if (e >= 32) {
                NT_PREFETCH(&turned.first[graph->targets[e - 32]]);
                NT_PREFETCH(&turned.targets[turned.first[graph->targets[e - 16]]]);
            }
            turned.targets[--turned.first[graph->targets[e]]] = n;
        }
    }
    *out = turned;
    return NT_OK;
}

static nt_status
graph_mark_node(const nt_graph *graph, nt_bitset *marked, graph_queue *queue,
                uint32_t node, nt_error *err)
{
    if (nt_bitset_has(marked, node)) {
        return NT_OK;
    }
    NT_TRY(graph_queue_push(queue, &graph->alloc, node, err));
    nt_bitset_add(marked, node);
    return NT_OK;
}

nt_status
nt_graph_mark(const nt_graph *graph, const uint32_t *seeds, size_t seed_count,
              nt_bitset *marked, nt_error *err)
{
    nt_status status = NT_OK;
    graph_queue queue = {0};
    for (size_t i = 0; i < seed_count; i++) {
        NT_TRY_DONE(graph_mark_node(graph, marked, &queue, seeds[i], err));
    }
    for (size_t at = 0; at < queue.count; at++) {
        const uint32_t node = queue.nodes[at];
        graph_queue_look_ahead(&queue, graph, at);
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            NT_TRY_DONE(graph_mark_node(graph, marked, &queue, graph->targets[e], err));
        }
    }
done:
    graph_queue_clear(&queue, &graph->alloc);
    return status;
}
