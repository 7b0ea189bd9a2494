/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Components after Tarjan, 1972, with the memory of Pearce, 2016: the result array
 * itself tells how far a node has come, and the two stacks of the search share one
 * array from its two ends, because no node is on both.
 *
 *     component[n]   0                    not seen yet
 *                    1 .. node_count      seen: the smallest number, in the order of
 *                                         opening, of a node known to be reached
 *                    from the top down    its component is known (number 0 is
 *                                         COMPONENTS_FIRST, 1 the value below, ...)
 *                    NT_NONE              left out
 *
 * As what is known or left out exceeds what is seen, taking the smallest value of all
 * targets ignores it without a question. In the end the numbers are turned round.
 */
#include "heap/nt_graph.h"

#include <string.h>

#include "heap/nt_graph_queue.h"

#define COMPONENTS_FIRST (NT_NONE - 1)

/* In the stack of open nodes: nothing opened before this node was reached from it so
 * far. Node numbers leave the highest bit free. */
#define COMPONENTS_TOPMOST (UINT32_C(1) << 31)

/* On a node that stands for its component: there are others. */
#define OWNERS_SEVERAL (UINT32_C(1) << 31)

/* Entries of so many targets are asked for ahead of looking at them. */
#define COMPONENTS_AHEAD 8

typedef struct components_state {
    const nt_graph *graph;
    uint32_t *value;  /* the result array */
    uint32_t *stack;  /* from below the open nodes, from above what waits for the
                         topmost node of its component */
    uint32_t *cursor; /* for each open node but the last: the edge to go on with */
    uint32_t depth;   /* open nodes but the last */
    uint32_t waiting; /* stack[waiting] was put there last */
    uint32_t opened;
    uint32_t next; /* value of the next component */
} components_state;

/* The node that is being looked at. */
typedef struct components_node {
    uint32_t number;
    uint32_t edge; /* the next one to look at */
    uint32_t end;
    uint32_t low; /* its value */
    uint32_t topmost;
} components_node;

static components_node
components_open(components_state *s, uint32_t number)
{
    const uint32_t *targets = s->graph->targets;
    const uint32_t begin = s->graph->first[number];
    const uint32_t end = s->graph->first[number + 1];
    const uint32_t soon =
        end - begin < COMPONENTS_AHEAD ? end : begin + COMPONENTS_AHEAD;
    for (uint32_t e = begin; e < soon; e++) {
        NT_PREFETCH(&s->value[targets[e]]);
        NT_PREFETCH(&s->graph->first[targets[e]]);
    }
    s->opened++;
    s->value[number] = s->opened;
    return (components_node){number, begin, end, s->opened, COMPONENTS_TOPMOST};
}

/* Goes along the edges; true where one leads to a node that was not seen yet. */
static bool
components_advance(const components_state *s, components_node *node, uint32_t *unseen)
{
    const uint32_t *targets = s->graph->targets;
    while (node->edge < node->end) {
        const uint32_t target = targets[node->edge++];
        const uint32_t value = s->value[target];
        if (node->end - node->edge > COMPONENTS_AHEAD) {
            NT_PREFETCH(&s->value[targets[node->edge + COMPONENTS_AHEAD]]);
        }
        if (value == 0) {
            *unseen = target;
            return true;
        }
        if (value < node->low) {
            node->low = value;
            node->topmost = 0;
        }
    }
    return false;
}

/* All edges were looked at: the node waits, or closes its component. */
static uint32_t
components_close(components_state *s, uint32_t members, const components_node *node)
{
    if (node->topmost == 0) {
        s->value[node->number] = node->low;
        s->stack[--s->waiting] = node->number;
        return node->low;
    }
    const uint32_t component = s->next--;
    while (s->waiting < members && s->value[s->stack[s->waiting]] >= node->low) {
        s->value[s->stack[s->waiting++]] = component;
    }
    s->value[node->number] = component;
    return component;
}

static void
components_search(components_state *s, uint32_t members, uint32_t root)
{
    components_node node = components_open(s, root);
    for (;;) {
        uint32_t unseen;
        if (components_advance(s, &node, &unseen)) {
            s->value[node.number] = node.low;
            s->stack[s->depth] = node.number | node.topmost;
            s->cursor[s->depth++] = node.edge;
            node = components_open(s, unseen);
            continue;
        }
        const uint32_t low = components_close(s, members, &node);
        if (s->depth == 0) {
            return;
        }
        const uint32_t above = s->stack[--s->depth];
        if (s->depth >= 4) {
            const uint32_t soon = s->stack[s->depth - 4] & ~COMPONENTS_TOPMOST;
            NT_PREFETCH(&s->graph->first[soon]);
            NT_PREFETCH(&s->value[soon]);
            NT_PREFETCH(&s->graph->targets[s->cursor[s->depth - 4]]);
        }
        node.topmost = above & COMPONENTS_TOPMOST;
        node.number = above & ~COMPONENTS_TOPMOST;
        node.edge = s->cursor[s->depth];
        node.end = s->graph->first[node.number + 1];
        node.low = s->value[node.number];
        if (low < node.low) {
            node.low = low;
            node.topmost = 0;
        }
    }
}

/* 0 for the nodes that take part, whose number is returned, NT_NONE for the others. */
static uint32_t
components_choose(uint32_t node_count, const nt_bitset *within, uint32_t *component)
{
    if (within == NULL) {
        memset(component, 0, (size_t)node_count * sizeof *component);
        return node_count;
    }
    uint32_t members = 0;
    for (size_t n = 0; n < node_count; n++) {
        const bool has = nt_bitset_has(within, n);
        component[n] = has ? 0 : NT_NONE;
        members += has;
    }
    return members;
}

nt_status
nt_graph_components(const nt_graph *graph, const nt_bitset *within, uint32_t *component,
                    uint32_t *count, nt_error *err)
{
    if (graph->node_count == 0) {
        *count = 0;
        return NT_OK;
    }
    const uint32_t members = components_choose(graph->node_count, within, component);
    const size_t bytes = (size_t)members * sizeof(uint32_t);
    components_state s = {.graph = graph, .value = component, .waiting = members};
    nt_status status = NT_OK;
    s.next = COMPONENTS_FIRST;
    s.stack = nt_allocate(&graph->alloc, bytes);
    s.cursor = nt_allocate(&graph->alloc, bytes);
    if (members > 0 && (s.stack == NULL || s.cursor == NULL)) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (uint32_t n = 0; n < graph->node_count; n++) {
        if (component[n] == 0) {
            components_search(&s, members, n);
        }
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        component[n] =
            component[n] == NT_NONE ? NT_NONE : COMPONENTS_FIRST - component[n];
    }
    *count = COMPONENTS_FIRST - s.next;
done:
    nt_release(&graph->alloc, s.stack, bytes);
    nt_release(&graph->alloc, s.cursor, bytes);
    return status;
}

static bool
components_refers_to_itself(const nt_graph *graph, uint32_t node)
{
    for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
        if (graph->targets[e] == node) {
            return true;
        }
    }
    return false;
}

/* cyclic[c] counts the nodes, up to 2, as bytes; a single node that refers to itself
 * counts for two. Bytes of 0 and 1 are what a bool may hold in the end. */
static void
components_find_cyclic(const nt_graph *graph, const uint32_t *component, uint32_t count,
                       bool *cyclic)
{
    unsigned char *nodes = (unsigned char *)cyclic;
    memset(cyclic, 0, count * sizeof *cyclic);
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const uint32_t c = component[n];
        if (c != NT_NONE && nodes[c] < 2) {
            nodes[c]++;
        }
    }
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const uint32_t c = component[n];
        if (c != NT_NONE && nodes[c] == 1 && components_refers_to_itself(graph, n)) {
            nodes[c] = 2;
        }
    }
    for (uint32_t c = 0; c < count; c++) {
        cyclic[c] = nodes[c] == 2;
    }
}

void
nt_graph_component_facts(const nt_graph *graph, const uint32_t *component,
                         uint32_t count, uint32_t *sizes, bool *cyclic)
{
    if (sizes != NULL && count > 0) {
        memset(sizes, 0, count * sizeof *sizes);
        for (size_t n = 0; n < graph->node_count; n++) {
            if (component[n] != NT_NONE) {
                sizes[component[n]]++;
            }
        }
    }
    if (cyclic != NULL && count > 0) {
        components_find_cyclic(graph, component, count, cyclic);
    }
}

/* Gives what `seed` reaches, and has no owner yet, to the component of `seed`. What is
 * owned already belongs to one further downstream, and so does all behind it. */
static nt_status
owners_spread(const nt_graph *graph, const uint32_t *component, uint32_t seed,
              uint32_t *owner, graph_queue *queue, nt_error *err)
{
    const uint32_t mine = component[seed];
    queue->count = 0;
    owner[seed] = mine;
    NT_TRY(graph_queue_push(queue, &graph->alloc, seed, err));
    for (size_t at = 0; at < queue->count; at++) {
        const uint32_t node = queue->nodes[at];
        graph_queue_look_ahead(queue, graph, at);
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            const uint32_t target = graph->targets[e];
            if (owner[target] == NT_NONE && component[target] != NT_NONE) {
                owner[target] = mine;
                NT_TRY(graph_queue_push(queue, &graph->alloc, target, err));
            }
        }
    }
    return NT_OK;
}

/* Some node of each component, marked where there is a second one. As a component
 * reaches all of itself, one node stands for it. */
static void
owners_find_seeds(const nt_graph *graph, const uint32_t *component, uint32_t count,
                  uint32_t *seeds)
{
    memset(seeds, 0xff, count * sizeof *seeds);
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const uint32_t c = component[n];
        if (c != NT_NONE && seeds[c] == NT_NONE) {
            seeds[c] = n;
        } else if (c != NT_NONE) {
            seeds[c] |= OWNERS_SEVERAL;
        }
    }
}

nt_status
nt_graph_owners(const nt_graph *graph, const uint32_t *component, uint32_t count,
                uint32_t *owner, nt_error *err)
{
    if (graph->node_count == 0) {
        return NT_OK;
    }
    memset(owner, 0xff, graph->node_count * sizeof *owner);
    if (count == 0) {
        return NT_OK;
    }
    nt_status status = NT_OK;
    graph_queue queue = {0};
    uint32_t *seeds = nt_allocate(&graph->alloc, count * sizeof *seeds);
    if (seeds == NULL) {
        return nt_fail_nomem(err);
    }
    owners_find_seeds(graph, component, count, seeds);
    for (uint32_t c = 0; c < count; c++) {
        const uint32_t seed = seeds[c] & ~OWNERS_SEVERAL;
        if ((seeds[c] & OWNERS_SEVERAL) != 0 ||
            components_refers_to_itself(graph, seed)) {
            NT_TRY_DONE(owners_spread(graph, component, seed, owner, &queue, err));
        }
    }
done:
    graph_queue_clear(&queue, &graph->alloc);
    nt_release(&graph->alloc, seeds, count * sizeof *seeds);
    return status;
}
