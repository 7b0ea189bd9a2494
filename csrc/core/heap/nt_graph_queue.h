/* SPDX-License-Identifier: Apache-2.0 */
/* Private to nt_graph: the nodes that a search has found, in the order of finding. */
#ifndef NT_GRAPH_QUEUE_H
#define NT_GRAPH_QUEUE_H

#include "heap/nt_graph.h"

/* All-zero is the empty queue. Nothing is ever removed: readers walk along it. */
typedef struct graph_queue {
    uint32_t *nodes;
    size_t capacity;
    size_t count;
} graph_queue;

static inline nt_status
graph_queue_push(graph_queue *queue, const nt_alloc *alloc, uint32_t node,
                 nt_error *err)
{
    if (NT_UNLIKELY(queue->count == queue->capacity)) {
        NT_TRY(nt_grow(alloc, (void **)&queue->nodes, &queue->capacity,
                       queue->count + 1, sizeof *queue->nodes, err));
    }
    queue->nodes[queue->count++] = node;
    return NT_OK;
}

static inline void
graph_queue_clear(graph_queue *queue, const nt_alloc *alloc)
{
    nt_release(alloc, queue->nodes, queue->capacity * sizeof *queue->nodes);
    *queue = (graph_queue){0};
}

/* Prefetches the edges of nodes that come up after place `at`: first where they begin,
 * and nearer by the edges themselves. In a large graph nearly every one lies in a cache
 * line of its own, and waiting for them one by one would take most of the time. */
static inline void
graph_queue_look_ahead(const graph_queue *queue, const nt_graph *graph, size_t at)
{
    if (at + 16 < queue->count) {
        NT_PREFETCH(&graph->first[queue->nodes[at + 16]]);
    }
    if (at + 8 < queue->count) {
        NT_PREFETCH(&graph->targets[graph->first[queue->nodes[at + 8]]]);
    }
}

#endif
