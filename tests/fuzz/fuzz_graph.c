/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: of any graph of up to 16 nodes every answer is what its definition says,
 * computed on sets of bits: what is reached, components, a shortest cycle, chains from
 * roots, dominators and what they retain.
 *
 * The first four bytes of an input choose nodes and roots; each further one is an edge,
 * from its high half to its low half.
 */
#include <string.h>

#include "heap/nt_graph.h"
#include "nt_fuzz.h"

#define MOST_NODES 16
#define MOST_EDGES 128
#define MOST_PATHS 3
#define BIT(n) (1u << (n))

typedef struct model {
    nt_alloc alloc;
    uint32_t nodes;
    uint32_t roots, fence; /* sets */
    nt_graph graph, reversed;
    uint32_t to[MOST_NODES];
    uint32_t component[MOST_NODES], count;
} model;

/* What `seeds` reach along edges, without going into `avoid`. */
static uint32_t
reach(const model *m, uint32_t seeds, uint32_t avoid)
{
    uint32_t reached = seeds & ~avoid, before = 0;
    while (reached != before) {
        const uint32_t fresh = reached & ~before;
        before = reached;
        for (uint32_t n = 0; n < m->nodes; n++) {
            reached |= (fresh & BIT(n)) != 0 ? m->to[n] & ~avoid : 0;
        }
    }
    return reached;
}

/* Edges from a member of `from` to `node`, at least one; NT_NONE where no way leads. */
static uint32_t
distance(const model *m, uint32_t from, uint32_t node, uint32_t avoid)
{
    uint32_t seen = 0, edge = from & ~avoid;
    for (uint32_t steps = 1; edge != 0; steps++) {
        uint32_t next = 0;
        for (uint32_t n = 0; n < m->nodes; n++) {
            next |= (edge & BIT(n)) != 0 ? m->to[n] & ~avoid : 0;
        }
        if ((next & BIT(node)) != 0) {
            return steps;
        }
        edge = next & ~seen;
        seen |= next;
    }
    return NT_NONE;
}

static void
make(model *m, const uint8_t *data, size_t size)
{
    const size_t edges = size < MOST_EDGES ? size : MOST_EDGES;
    NT_FUZZ_CHECK(
        nt_graph_init(&m->graph, &m->alloc, m->nodes, (uint32_t)edges, NULL) == NT_OK);
    uint32_t at = 0;
    for (uint32_t n = 0; n < m->nodes; n++) {
        m->graph.first[n] = at;
        for (size_t i = 0; i < edges; i++) {
            if ((data[i] >> 4) % m->nodes == n) {
                const uint32_t target = (data[i] & 15u) % m->nodes;
                m->graph.targets[at++] = target;
                m->to[n] |= BIT(target);
            }
        }
    }
    m->graph.first[m->nodes] = at;
    NT_FUZZ_CHECK(nt_graph_check(&m->graph));
    NT_FUZZ_CHECK(nt_graph_reverse(&m->graph, &m->reversed, NULL) == NT_OK);
    NT_FUZZ_CHECK(nt_graph_check(&m->reversed));
}

static void
make_set(const model *m, uint32_t members, nt_bitset *set)
{
    NT_FUZZ_CHECK(nt_bitset_init(set, m->alloc, m->nodes, NULL) == NT_OK);
    const uint64_t bits = members;
    nt_bitset_assign(set, &bits);
}

static size_t
list(uint32_t members, uint32_t *out)
{
    size_t count = 0;
    for (uint32_t n = 0; n < MOST_NODES; n++) {
        if ((members & BIT(n)) != 0) {
            out[count++] = n;
        }
    }
    return count;
}

static void
check_mark(const model *m)
{
    uint32_t seeds[MOST_NODES];
    nt_bitset marked;
    make_set(m, m->fence, &marked);
    const size_t count = list(m->roots, seeds);
    NT_FUZZ_CHECK(nt_graph_mark(&m->graph, seeds, count, &marked, NULL) == NT_OK);
    NT_FUZZ_CHECK(marked.words[0] == (m->fence | reach(m, m->roots, m->fence)));
    nt_bitset_clear(&marked);
}

static void
check_components(model *m)
{
    NT_FUZZ_CHECK(nt_graph_components(&m->graph, NULL, m->component, &m->count, NULL) ==
                  NT_OK);
    uint32_t reached[MOST_NODES];
    for (uint32_t n = 0; n < m->nodes; n++) {
        reached[n] = reach(m, BIT(n), 0);
        NT_FUZZ_CHECK(m->component[n] < m->count);
    }
    for (uint32_t a = 0; a < m->nodes; a++) {
        for (uint32_t b = 0; b < m->nodes; b++) {
            const bool both = (reached[a] & BIT(b)) != 0 && (reached[b] & BIT(a)) != 0;
            NT_FUZZ_CHECK(both == (m->component[a] == m->component[b]));
            NT_FUZZ_CHECK((m->to[a] & BIT(b)) == 0 ||
                          m->component[b] <= m->component[a]);
        }
    }
}

/* The owner of a node is the least component among the cycles that it is reached from:
 * that of a cycle's own nodes is the cycle. */
static void
check_owners(const model *m)
{
    uint32_t owner[MOST_NODES];
    NT_FUZZ_CHECK(nt_graph_owners(&m->graph, m->component, m->count, owner, NULL) ==
                  NT_OK);
    for (uint32_t n = 0; n < m->nodes; n++) {
        uint32_t least = NT_NONE;
        for (uint32_t c = 0; c < m->nodes; c++) {
            if (distance(m, BIT(c), c, 0) != NT_NONE &&
                (reach(m, BIT(c), 0) & BIT(n)) != 0 && m->component[c] < least) {
                least = m->component[c];
            }
        }
        NT_FUZZ_CHECK(owner[n] == least);
    }
}

static void
check_cycle(const model *m, uint32_t node)
{
    uint32_t *cycle = NULL, length = 0;
    NT_FUZZ_CHECK(
        nt_graph_cycle(&m->graph, m->component, node, &cycle, &length, NULL) == NT_OK);
    const uint32_t shortest = distance(m, BIT(node), node, 0);
    NT_FUZZ_CHECK(length == (shortest == NT_NONE ? 0 : shortest));
    NT_FUZZ_CHECK((length == 0) == (cycle == NULL));
    for (uint32_t i = 0; i < length; i++) {
        NT_FUZZ_CHECK((m->to[cycle[i]] & BIT(cycle[(i + 1) % length])) != 0);
    }
    NT_FUZZ_CHECK(length == 0 || cycle[0] == node);
    nt_release(&m->graph.alloc, cycle, length * sizeof *cycle);
}

static void
check_path(const model *m, const nt_graph_path *path, uint32_t node)
{
    NT_FUZZ_CHECK(path->length != 0 && path->nodes[path->length - 1] == node);
    NT_FUZZ_CHECK((m->roots & BIT(path->nodes[0])) != 0);
    for (uint32_t i = 0; i < path->length; i++) {
        NT_FUZZ_CHECK(i == 0 || (m->roots & BIT(path->nodes[i])) == 0 ||
                      path->nodes[i] == node);
        NT_FUZZ_CHECK((m->fence & BIT(path->nodes[i])) == 0 || path->nodes[i] == node);
        NT_FUZZ_CHECK(i == 0 || (m->to[path->nodes[i - 1]] & BIT(path->nodes[i])) != 0);
    }
}

static void
check_paths(const model *m, uint32_t node)
{
    nt_bitset roots, hidden;
    nt_graph_path *paths = NULL;
    uint32_t count = 0;
    make_set(m, m->roots, &roots);
    make_set(m, m->fence, &hidden);
    NT_FUZZ_CHECK(nt_graph_paths(&m->reversed, node, &roots, &hidden, MOST_PATHS,
                                 &paths, &count, NULL) == NT_OK);
    NT_FUZZ_CHECK(count <= MOST_PATHS);
    for (uint32_t i = 0; i < count; i++) {
        check_path(m, &paths[i], node);
        NT_FUZZ_CHECK(i == 0 || paths[i - 1].length <= paths[i].length);
    }
    const bool hides = (m->fence & BIT(node)) != 0;
    if (!hides) {
        uint32_t steps = distance(m, m->roots, node, m->fence);
        steps = (m->roots & BIT(node)) != 0 ? 0 : steps;
        NT_FUZZ_CHECK((count == 0) == (steps == NT_NONE));
        NT_FUZZ_CHECK(count == 0 || paths[0].length == steps + 1);
    }
    nt_graph_paths_free(&m->reversed, paths, count);
    nt_bitset_clear(&roots);
    nt_bitset_clear(&hidden);
}

/* a dominates b where b is not reached once a is taken out. */
static bool
dominates(const model *m, uint32_t a, uint32_t b)
{
    return (reach(m, m->roots, BIT(a)) & BIT(b)) == 0;
}

static void
check_dominators(const model *m)
{
    uint32_t roots[MOST_NODES], idom[MOST_NODES], order[MOST_NODES], reached;
    uint64_t bytes[MOST_NODES], retained[MOST_NODES];
    const size_t count = list(m->roots, roots);
    NT_FUZZ_CHECK(nt_graph_dominators(&m->graph, roots, count, idom, order, &reached,
                                      NULL) == NT_OK);
    const uint32_t all = reach(m, m->roots, 0);
    NT_FUZZ_CHECK(reached == (uint32_t)__builtin_popcount(all));
    for (uint32_t n = 0; n < m->nodes; n++) {
        bytes[n] = BIT(n);
    }
    nt_graph_retained(m->nodes, idom, order, reached, bytes, retained);
    for (uint32_t n = 0; n < m->nodes; n++) {
        uint64_t under = 0;
        for (uint32_t b = 0; b < m->nodes; b++) {
            under |= (all & BIT(n) & BIT(b)) != 0 ||
                             ((all & BIT(n)) != 0 && (all & BIT(b)) != 0 &&
                              dominates(m, n, b))
                         ? BIT(b)
                         : 0;
        }
        NT_FUZZ_CHECK(retained[n] == under);
        NT_FUZZ_CHECK(idom[n] == NT_NONE || dominates(m, idom[n], n));
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    model m = {.alloc = nt_fuzz_alloc()};
    m.nodes = 1 + data[0] % MOST_NODES;
    const uint32_t all = BIT(m.nodes) - 1;
    m.roots = (BIT(data[1] >> 4) | BIT(data[1] & 15)) & all;
    m.fence = (data[0] & 128) != 0 ? BIT(data[2] & 15) & all : 0;
    make(&m, data + 4, size - 4);
    check_mark(&m);
    check_components(&m);
    check_owners(&m);
    const uint32_t node = data[3] % m.nodes;
    check_cycle(&m, node);
    check_paths(&m, node);
    check_dominators(&m);
    nt_graph_clear(&m.graph);
    nt_graph_clear(&m.reversed);
    nt_fuzz_finish();
    return 0;
}
