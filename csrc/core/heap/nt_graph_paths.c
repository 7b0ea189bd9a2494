/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/nt_graph.h"

#include <string.h>

#include "heap/nt_graph_queue.h"

/* ---- the shortest way round ---- */

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

/* Turns from the map to bits. */
static nt_status
cycle_to_bits(cycle_search *s, nt_error *err)
{
    const size_t bytes = cycle_bits_bytes(s->graph);
    s->bits = nt_allocate(&s->graph->alloc, bytes);
    if (s->bits == NULL) {
        return nt_fail_nomem(err);
    }
    memset(s->bits, 0, bytes);
    for (size_t i = 0; i < s->queue.count; i++) {
        const uint32_t node = s->queue.nodes[i];
        s->bits[node / 64] |= UINT64_C(1) << node % 64;
    }
    return NT_OK;
}

/* Whether `node` is found for the first time. */
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
    uint32_t *nodes = nt_allocate(alloc, count * sizeof *nodes);
    if (nodes == NULL && count > 0) {
        return nt_fail_nomem(err);
    }
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
 * referrer after the other through which alone a root can be reached. The chains
 * part at its tip. Each is a search of its own, upwards in breadth from the referrers
 * of the tip through which no chain goes yet, to the first root:
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
 * there are at most `most`, repeat work.
 */

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
    NT_TRY(nt_grow(alloc, (void **)&s->paths, &s->capacity, (size_t)s->count + 1,
                   sizeof *s->paths, err));
    uint32_t *nodes = nt_allocate(alloc, length * sizeof *nodes);
    if (nodes == NULL) {
        return nt_fail_nomem(err);
    }
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

/* Begins anew from `tip`, the new end of the stem. */
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
    search.seen = nt_allocate(alloc, seen_bytes);
    if (search.seen == NULL) {
        return nt_fail_nomem(err);
    }
    memset(search.seen, 0, seen_bytes);
    NT_TRY_DONE(paths_collect(&search, node, most, err));
    exact = nt_allocate(alloc, search.count * sizeof *exact);
    if (exact == NULL && search.count > 0) {
        status = nt_fail_nomem(err);
        goto done;
    }
    if (search.count > 0) {
        memcpy(exact, search.paths, search.count * sizeof *exact);
    }
    *paths = exact;
    *count = search.count;
    search.count = 0;
done:
    for (uint32_t i = 0; i < search.count; i++) {
        nt_release(alloc, search.paths[i].nodes,
                   search.paths[i].length * sizeof(uint32_t));
    }
    nt_release(alloc, search.paths, search.capacity * sizeof *search.paths);
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
        nt_release(&reversed->alloc, paths[i].nodes,
                   paths[i].length * sizeof *paths[i].nodes);
    }
    nt_release(&reversed->alloc, paths, count * sizeof *paths);
}
