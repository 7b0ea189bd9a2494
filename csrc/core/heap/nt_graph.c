/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/nt_graph.h"

#include <string.h>

/* The nodes that a search has found, in the order of finding. All-zero is the empty
 * queue. Nothing is ever removed: readers walk along it. */
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
        NT_TRY(NT_GROW(alloc, queue->nodes, queue->capacity, queue->count + 1, err));
    }
    queue->nodes[queue->count++] = node;
    return NT_OK;
}

static inline void
graph_queue_clear(graph_queue *queue, const nt_alloc *alloc)
{
    NT_RELEASE(alloc, queue->nodes, queue->capacity);
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

/* Components after Tarjan, 1972, with the memory of Pearce, 2016: the result array
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
 * targets ignores it without a question. In the end the numbers are turned round. */

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
    uint32_t *seeds;
    NT_TRY(NT_NEW(&graph->alloc, seeds, count, err));
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
    NT_RELEASE(&graph->alloc, seeds, count);
    return status;
}

/* ---- the shortest way round ------------------------------------------------------ */

/* Up to here nodes that were found are kept in a map; of more, as bits of all nodes. */
#define CYCLE_MOST_MAPPED 4096

/* A search in breadth that remembers which place it came from. A short one costs as
 * much as was searched, however large the graph is. */
typedef struct cycle_search {
    const nt_graph *graph;
    graph_queue queue;
    graph_queue from; /* the place in `queue` that led to this one */
    nt_map found;
    uint64_t *bits; /* a bit a node, instead of `found`; NULL at first */
} cycle_search;

static size_t
cycle_bits_bytes(const nt_graph *graph)
{
    return ((size_t)graph->node_count / 64 + 1) * 8;
}

static nt_status
cycle_to_bits(cycle_search *s, nt_error *err)
{
    const size_t bytes = cycle_bits_bytes(s->graph);
    NT_TRY(nt_take(&s->graph->alloc, (void **)&s->bits, bytes, err));
    memset(s->bits, 0, bytes);
    for (size_t i = 0; i < s->queue.count; i++) {
        const uint32_t node = s->queue.nodes[i];
        s->bits[node / 64] |= UINT64_C(1) << node % 64;
    }
    return NT_OK;
}

static nt_status
cycle_find_node(cycle_search *s, uint32_t node, bool *fresh, nt_error *err)
{
    if (NT_UNLIKELY(s->bits == NULL && s->queue.count == CYCLE_MOST_MAPPED)) {
        NT_TRY(cycle_to_bits(s, err));
    }
    if (s->bits != NULL) {
        const uint64_t bit = UINT64_C(1) << node % 64;
        *fresh = (s->bits[node / 64] & bit) == 0;
        s->bits[node / 64] |= bit;
        return NT_OK;
    }
    uint32_t before;
    NT_TRY(nt_map_swap(&s->found, node, 0, &before, err));
    *fresh = before == NT_NONE;
    return NT_OK;
}

static nt_status
cycle_add(cycle_search *s, uint32_t node, uint32_t from, nt_error *err)
{
    bool fresh;
    NT_TRY(cycle_find_node(s, node, &fresh, err));
    if (!fresh) {
        return NT_OK;
    }
    NT_TRY(graph_queue_push(&s->queue, &s->graph->alloc, node, err));
    return graph_queue_push(&s->from, &s->graph->alloc, from, err);
}

/* *last is the place of the first node found that leads back to the first one, or
 * NT_NONE. */
static nt_status
cycle_find(cycle_search *s, const uint32_t *component, uint32_t node, uint32_t *last,
           nt_error *err)
{
    const nt_graph *graph = s->graph;
    NT_TRY(cycle_add(s, node, NT_NONE, err));
    for (size_t at = 0; at < s->queue.count; at++) {
        const uint32_t here = s->queue.nodes[at];
        graph_queue_look_ahead(&s->queue, graph, at);
        for (uint32_t e = graph->first[here]; e < graph->first[here + 1]; e++) {
            const uint32_t target = graph->targets[e];
            if (target == node) {
                *last = (uint32_t)at;
                return NT_OK;
            }
            if (component[target] == component[node]) {
                NT_TRY(cycle_add(s, target, (uint32_t)at, err));
            }
        }
    }
    *last = NT_NONE;
    return NT_OK;
}

static nt_status
cycle_spell(const cycle_search *s, const nt_alloc *alloc, uint32_t last,
            uint32_t **cycle, uint32_t *length, nt_error *err)
{
    uint32_t count = 0;
    for (uint32_t at = last; at != NT_NONE; at = s->from.nodes[at]) {
        count++;
    }
    uint32_t *nodes;
    NT_TRY(NT_NEW(alloc, nodes, count, err));
    uint32_t place = count;
    for (uint32_t at = last; at != NT_NONE; at = s->from.nodes[at]) {
        nodes[--place] = s->queue.nodes[at];
    }
    *cycle = nodes;
    *length = count;
    return NT_OK;
}

nt_status
nt_graph_cycle(const nt_graph *graph, const uint32_t *component, uint32_t node,
               uint32_t **cycle, uint32_t *length, nt_error *err)
{
    nt_status status = NT_OK;
    cycle_search search = {.graph = graph};
    uint32_t last = NT_NONE;
    nt_map_init(&search.found, graph->alloc);
    if (component[node] != NT_NONE) {
        NT_TRY_DONE(cycle_find(&search, component, node, &last, err));
    }
    NT_TRY_DONE(cycle_spell(&search, &graph->alloc, last, cycle, length, err));
done:
    graph_queue_clear(&search.queue, &graph->alloc);
    graph_queue_clear(&search.from, &graph->alloc);
    nt_map_clear(&search.found);
    nt_release(&graph->alloc, search.bits,
               search.bits != NULL ? cycle_bits_bytes(graph) : 0);
    return status;
}

/* ---- the shortest ways in ----
 *
 * The stem is what all chains have in common: the node asked about, and above it one
 * referrer after the other through which alone a root can be reached. The chains part
 * at its tip. Each is a search of its own, upwards in breadth from the referrers of the
 * tip through which no chain goes yet, to the first root:
 *
 *     root        root  root
 *       \          |     |
 *        a    b    c    /         c was taken by the first chain; the search for the
 *         \   |    |   d          second one begins at a, b and d
 *          `--+-tip+--'
 *               |
 *               node
 *
 * A search that finds no root has gone through all that is above its beginnings; none
 * of that is ever looked at again. So only the searches that find something, of which
 * there are at most `most`, repeat work. */

typedef struct paths_search {
    const nt_graph *reversed;
    const nt_bitset *roots;
    const nt_bitset *hidden;
    uint64_t *seen;   /* bit a node: in the queue or the stem, or leads to no root */
    graph_queue stem; /* the node asked about first, the tip last */
    graph_queue used; /* referrers of the tip that a chain goes through */
    graph_queue queue;
    graph_queue from; /* the place in `queue` that led to this one, or NT_NONE */
    nt_graph_path *paths;
    size_t capacity; /* of `paths` */
    uint32_t count;
    uint32_t parting; /* the first path that has the stem in it */
} paths_search;

static bool
paths_is_seen(const paths_search *s, uint32_t node)
{
    return (s->seen[node / 64] >> node % 64 & 1) != 0;
}

static void
paths_set_seen(paths_search *s, const graph_queue *nodes, bool seen)
{
    for (size_t i = 0; i < nodes->count; i++) {
        const uint64_t bit = UINT64_C(1) << nodes->nodes[i] % 64;
        uint64_t *word = &s->seen[nodes->nodes[i] / 64];
        *word = seen ? *word | bit : *word & ~bit;
    }
}

/* Queues the referrers of `node`; *found is the place of the first that is a root. */
static nt_status
paths_climb(paths_search *s, uint32_t node, uint32_t from, uint32_t *found,
            nt_error *err)
{
    const nt_graph *reversed = s->reversed;
    for (uint32_t e = reversed->first[node]; e < reversed->first[node + 1]; e++) {
        const uint32_t referrer = reversed->targets[e];
        if (paths_is_seen(s, referrer) ||
            (s->hidden != NULL && nt_bitset_has(s->hidden, referrer))) {
            continue;
        }
        s->seen[referrer / 64] |= UINT64_C(1) << referrer % 64;
        NT_TRY(graph_queue_push(&s->queue, &reversed->alloc, referrer, err));
        NT_TRY(graph_queue_push(&s->from, &reversed->alloc, from, err));
        if (nt_bitset_has(s->roots, referrer)) {
            *found = (uint32_t)s->queue.count - 1;
            break;
        }
    }
    return NT_OK;
}

/* *found is the place of the nearest root above the tip, or NT_NONE. */
static nt_status
paths_find(paths_search *s, uint32_t *found, nt_error *err)
{
    const uint32_t tip = s->stem.nodes[s->stem.count - 1];
    *found = NT_NONE;
    s->queue.count = 0;
    s->from.count = 0;
    /* What a chain goes through already is no beginning, but may be on the way. */
    paths_set_seen(s, &s->used, true);
    NT_TRY(paths_climb(s, tip, NT_NONE, found, err));
    paths_set_seen(s, &s->used, false);
    for (size_t at = 0; at < s->queue.count && *found == NT_NONE; at++) {
        graph_queue_look_ahead(&s->queue, s->reversed, at);
        NT_TRY(paths_climb(s, s->queue.nodes[at], (uint32_t)at, found, err));
    }
    return NT_OK;
}

/* The chain from the root at place `found` (NT_NONE: the tip itself) down the stem. */
static nt_status
paths_take(paths_search *s, uint32_t found, nt_error *err)
{
    const nt_alloc *alloc = &s->reversed->alloc;
    size_t length = s->stem.count;
    for (uint32_t at = found; at != NT_NONE; at = s->from.nodes[at]) {
        length++;
    }
    NT_TRY(NT_GROW(alloc, s->paths, s->capacity, (size_t)s->count + 1, err));
    uint32_t *nodes;
    NT_TRY(NT_NEW(alloc, nodes, length, err));
    size_t place = 0;
    for (uint32_t at = found; at != NT_NONE; at = s->from.nodes[at]) {
        nodes[place++] = s->queue.nodes[at];
    }
    for (size_t i = s->stem.count; i-- > 0;) {
        nodes[place++] = s->stem.nodes[i];
    }
    s->paths[s->count++] = (nt_graph_path){nodes, (uint32_t)length};
    return NT_OK;
}

static nt_status
paths_move_tip(paths_search *s, uint32_t tip, nt_error *err)
{
    const nt_alloc *alloc = &s->reversed->alloc;
    s->used.count = 0;
    s->seen[tip / 64] |= UINT64_C(1) << tip % 64;
    return graph_queue_push(&s->stem, alloc, tip, err);
}

/* A chain was found: its referrer of the tip is used, the rest may be gone through
 * again. */
static nt_status
paths_keep(paths_search *s, uint32_t found, nt_error *err)
{
    NT_TRY(paths_take(s, found, err));
    paths_set_seen(s, &s->queue, false);
    const nt_graph_path *path = &s->paths[s->count - 1];
    return graph_queue_push(&s->used, &s->reversed->alloc,
                            path->nodes[path->length - 1 - s->stem.count], err);
}

/* No further chain parts at the tip. Where only one goes through it, it is followed
 * upwards by a node; false where it ends there, or chains have parted. */
static nt_status
paths_lengthen_stem(paths_search *s, bool *longer, nt_error *err)
{
    *longer = false;
    if (s->count != s->parting + 1) {
        return NT_OK;
    }
    const nt_graph_path *only = &s->paths[s->parting];
    const size_t left = only->length - s->stem.count;
    if (left <= 1) {
        return NT_OK;
    }
    NT_TRY(paths_move_tip(s, only->nodes[left - 1], err));
    NT_TRY(graph_queue_push(&s->used, &s->reversed->alloc, only->nodes[left - 2], err));
    *longer = true;
    return NT_OK;
}

static nt_status
paths_collect(paths_search *s, uint32_t node, uint32_t most, nt_error *err)
{
    NT_TRY(paths_move_tip(s, node, err));
    if (nt_bitset_has(s->roots, node) && most > 0) {
        NT_TRY(paths_take(s, NT_NONE, err));
        s->parting = 1;
    }
    bool goes_on = true;
    while (goes_on && s->count < most) {
        uint32_t found;
        NT_TRY(paths_find(s, &found, err));
        if (found != NT_NONE) {
            NT_TRY(paths_keep(s, found, err));
        } else {
            NT_TRY(paths_lengthen_stem(s, &goes_on, err));
        }
    }
    return NT_OK;
}

nt_status
nt_graph_paths(const nt_graph *reversed, uint32_t node, const nt_bitset *roots,
               const nt_bitset *hidden, uint32_t most, nt_graph_path **paths,
               uint32_t *count, nt_error *err)
{
    const nt_alloc *alloc = &reversed->alloc;
    const size_t seen_bytes = ((size_t)reversed->node_count / 64 + 1) * 8;
    paths_search search = {.reversed = reversed, .roots = roots, .hidden = hidden};
    nt_graph_path *exact = NULL;
    nt_status status = NT_OK;
    NT_TRY(nt_take(alloc, (void **)&search.seen, seen_bytes, err));
    memset(search.seen, 0, seen_bytes);
    NT_TRY_DONE(paths_collect(&search, node, most, err));
    NT_TRY_DONE(NT_NEW(alloc, exact, search.count, err));
    if (search.count > 0) {
        memcpy(exact, search.paths, search.count * sizeof *exact);
    }
    *paths = exact;
    *count = search.count;
    search.count = 0;
done:
    for (uint32_t i = 0; i < search.count; i++) {
        NT_RELEASE(alloc, search.paths[i].nodes, search.paths[i].length);
    }
    NT_RELEASE(alloc, search.paths, search.capacity);
    nt_release(alloc, search.seen, seen_bytes);
    graph_queue_clear(&search.stem, alloc);
    graph_queue_clear(&search.used, alloc);
    graph_queue_clear(&search.queue, alloc);
    graph_queue_clear(&search.from, alloc);
    return status;
}

void
nt_graph_paths_free(const nt_graph *reversed, nt_graph_path *paths, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        NT_RELEASE(&reversed->alloc, paths[i].nodes, paths[i].length);
    }
    NT_RELEASE(&reversed->alloc, paths, count);
}

/* Dominators after Lengauer and Tarjan, 1979, the version with path compression only.
 *
 * Nodes are looked at by their number in the order of a search in depth, from 1 on; 0
 * is the outside, which refers to every root. A number's semidominator is the smallest
 * number from which a path leads to it through larger numbers only. Numbers are worked
 * off from the largest down, and those that are done hang in a forest under their
 * parents in the search, in which a path is shortened whenever it is walked.
 *
 * Four fields a number serve all of it, because those that share one live one after the
 * other:
 *
 *     parent    parent in the search; once done, a forest ancestor
 *     best      once done: the number of least semidominator on the way to `parent`
 *     semi      during the search the next edge; until done, the first of the numbers
 *               whose semidominator this is; once done, the semidominator of `best`
 *     dominator until done, the smallest referrer known; then the next number of the
 *               same semidominator; in the end the dominator */

/* On `dominator`: not this number but that one's dominator, to be looked up when that
 * is known. */
#define DOMINATORS_LATER (UINT32_C(1) << 31)

/* Entries of referrers are asked for so many edges ahead of their use. */
#define DOMINATORS_AHEAD 16

typedef struct dominators_entry {
    uint32_t parent;
    uint32_t best;
    uint32_t semi;
    uint32_t dominator;
} dominators_entry;

typedef struct dominators_state {
    const nt_graph *graph;
    uint32_t *number;          /* of each node, NT_NONE if not reached: the result array
                                  until the end */
    uint32_t *order;           /* order[i - 1] is the node of number i */
    dominators_entry *entries; /* by number */
    uint32_t reached;
    uint32_t
        *first; /* referrers of number i: from[first[i]] .. from[first[i + 1] - 1] */
    uint32_t *from;
    size_t from_count;
} dominators_state;

static uint32_t
dominators_open(dominators_state *s, uint32_t node, uint32_t parent)
{
    const nt_graph *graph = s->graph;
    const uint32_t begin = graph->first[node], end = graph->first[node + 1];
    for (uint32_t e = begin; e < end && e - begin < 8; e++) {
        NT_PREFETCH(&s->number[graph->targets[e]]);
        NT_PREFETCH(&graph->first[graph->targets[e]]);
    }
    s->order[s->reached++] = node;
    s->number[node] = s->reached;
    s->entries[s->reached] =
        (dominators_entry){.parent = parent, .semi = begin, .dominator = parent};
    return s->reached;
}

/* Numbers what `root` reaches and has no number yet. */
static void
dominators_search(dominators_state *s, uint32_t root)
{
    const nt_graph *graph = s->graph;
    uint32_t here = dominators_open(s, root, 0);
    while (here != 0) {
        const uint32_t end = graph->first[s->order[here - 1] + 1];
        uint32_t edge = s->entries[here].semi;
        while (edge < end && s->number[graph->targets[edge]] != NT_NONE) {
            edge++;
        }
        if (edge < end) {
            s->entries[here].semi = edge + 1;
            here = dominators_open(s, graph->targets[edge], here);
        } else {
            s->entries[here].semi = 0;
            here = s->entries[here].parent;
        }
    }
}

/* Asks for what the numbers below `i` lead to, one thing after the other on its way:
 * where the edges begin, the edges, the numbers of their targets, and the counters of
 * those. */
static void
dominators_look_ahead(const dominators_state *s, uint32_t i)
{
    const uint32_t *first = s->graph->first, *targets = s->graph->targets;
    if (i <= 24) {
        return;
    }
    NT_PREFETCH(&first[s->order[i - 24]]);
    NT_PREFETCH(&targets[first[s->order[i - 16]]]);
    const uint32_t far = s->order[i - 8], near = s->order[i - 4];
    for (uint32_t e = first[far]; e < first[far + 1] && e - first[far] < 8; e++) {
        NT_PREFETCH(&s->number[targets[e]]);
    }
    for (uint32_t e = first[near]; e < first[near + 1] && e - first[near] < 8; e++) {
        NT_PREFETCH(&s->first[s->number[targets[e]]]);
    }
}

/* Turns the edges between numbers round, as nt_graph_reverse does it. */
static nt_status
dominators_collect_referrers(dominators_state *s, nt_error *err)
{
    const nt_graph *graph = s->graph;
    size_t edges = 0;
    memset(s->first, 0, ((size_t)s->reached + 2) * sizeof *s->first);
    for (uint32_t i = s->reached; i > 0; i--) {
        const uint32_t node = s->order[i - 1];
        dominators_look_ahead(s, i);
        edges += graph->first[node + 1] - graph->first[node];
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            s->first[s->number[graph->targets[e]]]++;
        }
    }
    NT_TRY(NT_NEW(&graph->alloc, s->from, edges, err));
    s->from_count = edges;
    for (uint32_t i = 1; i <= s->reached + 1; i++) {
        s->first[i] += s->first[i - 1];
    }
    for (uint32_t i = s->reached; i > 0; i--) {
        const uint32_t node = s->order[i - 1];
        dominators_look_ahead(s, i);
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            s->from[--s->first[s->number[graph->targets[e]]]] = i;
        }
    }
    return NT_OK;
}

/* The entry of `number`, which is done, after its way up was cut short: its parent is
 * then the first on the way that is not done (at most `limit`). On the way up each step
 * is turned to point back, so that the way down needs no stack. */
static const dominators_entry *
dominators_shorten(dominators_entry *entries, uint32_t number, uint32_t limit)
{
    uint32_t below = 0, at = number;
    while (entries[at].parent > limit) {
        const uint32_t up = entries[at].parent;
        entries[at].parent = below;
        below = at;
        at = up;
    }
    const uint32_t top = entries[at].parent;
    while (below != 0) {
        dominators_entry *entry = &entries[below];
        if (entries[at].semi < entry->semi) {
            entry->semi = entries[at].semi;
            entry->best = entries[at].best;
        }
        at = below;
        below = entry->parent;
        entry->parent = top;
    }
    return &entries[number];
}

/* The numbers whose semidominator is `number`: that is their dominator too, unless
 * something between has a lesser semidominator and so the same dominator as they. */
static void
dominators_settle(dominators_state *s, uint32_t number)
{
    uint32_t next = s->entries[number].semi;
    while (next != 0) {
        dominators_entry *entry = &s->entries[next];
        const dominators_entry *way = dominators_shorten(s->entries, next, number);
        next = entry->dominator;
        entry->dominator = way->semi < number ? way->best | DOMINATORS_LATER : number;
    }
}

static void
dominators_sweep(dominators_state *s)
{
    dominators_entry *entries = s->entries;
    for (uint32_t i = s->reached; i > 0; i--) {
        if (s->first[i] >= DOMINATORS_AHEAD) {
            NT_PREFETCH(&entries[s->from[s->first[i] - DOMINATORS_AHEAD]]);
        }
        dominators_settle(s, i);
        uint32_t semi = entries[i].dominator;
        for (uint32_t e = s->first[i]; e < s->first[i + 1]; e++) {
            const uint32_t from = s->from[e];
            const uint32_t least =
                from <= i ? from : dominators_shorten(entries, from, i)->semi;
            semi = least < semi ? least : semi;
        }
        entries[i].best = i;
        entries[i].semi = semi;
        entries[i].dominator = entries[semi].semi;
        entries[semi].semi = i;
    }
    dominators_settle(s, 0);
    for (uint32_t i = 1; i <= s->reached; i++) {
        const uint32_t known = entries[i].dominator;
        if ((known & DOMINATORS_LATER) != 0) {
            entries[i].dominator = entries[known & ~DOMINATORS_LATER].dominator;
        }
    }
}

nt_status
nt_graph_dominators(const nt_graph *graph, const uint32_t *roots, size_t root_count,
                    uint32_t *idom, uint32_t *order, uint32_t *reached, nt_error *err)
{
    if (graph->node_count == 0) {
        *reached = 0;
        return NT_OK;
    }
    const size_t entry_bytes =
        ((size_t)graph->node_count + 1) * sizeof(dominators_entry);
    size_t first_bytes = 0;
    nt_status status = NT_OK;
    dominators_state s = {.graph = graph, .number = idom, .order = order};
    NT_TRY(nt_take(&graph->alloc, (void **)&s.entries, entry_bytes, err));
    memset(idom, 0xff, graph->node_count * sizeof *idom);
    s.entries[0] = (dominators_entry){0};
    for (size_t i = 0; i < root_count; i++) {
        if (idom[roots[i]] == NT_NONE) {
            dominators_search(&s, roots[i]);
        }
        /* A root that another one reached before refers to the outside too. */
        s.entries[idom[roots[i]]].dominator = 0;
    }
    first_bytes = ((size_t)s.reached + 2) * sizeof *s.first;
    NT_TRY_DONE(nt_take(&graph->alloc, (void **)&s.first, first_bytes, err));
    NT_TRY_DONE(dominators_collect_referrers(&s, err));
    dominators_sweep(&s);
    for (uint32_t i = 1; i <= s.reached; i++) {
        const uint32_t dominator = s.entries[i].dominator;
        idom[order[i - 1]] = dominator == 0 ? NT_NONE : order[dominator - 1];
    }
    *reached = s.reached;
done:
    nt_release(&graph->alloc, s.entries, entry_bytes);
    nt_release(&graph->alloc, s.first, first_bytes);
    NT_RELEASE(&graph->alloc, s.from, s.from_count);
    return status;
}

void
nt_graph_retained(uint32_t node_count, const uint32_t *idom, const uint32_t *order,
                  uint32_t reached, const uint64_t *bytes, uint64_t *retained)
{
    for (size_t n = 0; n < node_count; n++) {
        retained[n] = 0;
    }
    for (uint32_t i = 0; i < reached; i++) {
        retained[order[i]] = bytes[order[i]];
    }
    for (uint32_t i = reached; i-- > 0;) {
        if (idom[order[i]] != NT_NONE) {
            retained[idom[order[i]]] += retained[order[i]];
        }
    }
}

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
    NT_RELEASE(&graph->alloc, graph->first, nodes + 1);
    NT_RELEASE(&graph->alloc, graph->targets, (size_t)graph->edge_count);
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
