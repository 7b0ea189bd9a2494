/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs at random, each answer held against its definition on sets of at most 64. */
#include "heap/nt_graph.h"

#include <string.h>

#include "nt_edges.h"
#include "nt_test.h"

#define MOST_NODES 64
#define MOST_EDGES 256
#define MOST_PATHS 4
#define BIT(n) (UINT64_C(1) << (n))

typedef struct model {
    nt_test *t;
    nt_alloc alloc;
    uint32_t nodes;
    nt_graph graph;
    nt_graph reversed;
    uint64_t to[MOST_NODES];   /* whom a node refers to */
    uint64_t from[MOST_NODES]; /* who refers to it */
} model;

/* What `seeds` reach along `edges`, without going into `avoid`. */
static uint64_t
model_reach(const uint64_t *edges, uint64_t seeds, uint64_t avoid)
{
    uint64_t reached = seeds & ~avoid, before = 0;
    while (reached != before) {
        before = reached;
        for (uint32_t n = 0; n < MOST_NODES; n++) {
            if (before & BIT(n)) {
                reached |= edges[n] & ~avoid;
            }
        }
    }
    return reached;
}

/* Steps from `node` to a member of `goals` along `edges`; NT_NONE if there is no way
 * but through `avoid`. */
static uint32_t
model_distance(const uint64_t *edges, uint32_t node, uint64_t goals, uint64_t avoid)
{
    uint64_t seen = BIT(node) & ~avoid, last = 0;
    for (uint32_t steps = 0; seen != last; steps++) {
        if (seen & goals) {
            return steps;
        }
        last = seen;
        for (uint32_t n = 0; n < MOST_NODES; n++) {
            if (last & BIT(n)) {
                seen |= edges[n] & ~avoid;
            }
        }
    }
    return NT_NONE;
}

static bool
model_make(model *m, nt_test *t, const nt_alloc *alloc, uint64_t *random)
{
    nt_edge edges[MOST_EDGES];
    *m = (model){.t = t, .alloc = *alloc};
    m->nodes = 1 + (uint32_t)(nt_test_random(random) % MOST_NODES);
    const uint32_t most = m->nodes * (uint32_t)(1 + nt_test_random(random) % 4);
    const uint32_t count = (uint32_t)(nt_test_random(random) % (most + 1));
    /* Some graphs are deep: most of their edges go to the next few nodes. */
    const bool deep = nt_test_random(random) % 2 == 0;
    for (uint32_t e = 0; e < count; e++) {
        const uint32_t from = (uint32_t)(nt_test_random(random) % m->nodes);
        uint32_t to = (uint32_t)(nt_test_random(random) % m->nodes);
        if (deep && nt_test_random(random) % 8 != 0) {
            to = (from + to % 4) % m->nodes;
        }
        edges[e] = (nt_edge){from, to};
        m->to[from] |= BIT(to);
        m->from[to] |= BIT(from);
    }
    return NT_CHECK_OK(nt_edges_graph(alloc, m->nodes, edges, count, &m->graph),
                       NULL) &&
           NT_CHECK_OK(nt_graph_reverse(&m->graph, &m->reversed, NULL), NULL);
}

static void
model_clear(model *m)
{
    nt_graph_clear(&m->graph);
    nt_graph_clear(&m->reversed);
}

static uint64_t
model_random_set(const model *m, uint64_t *random, unsigned sparse)
{
    uint64_t set = nt_test_random(random);
    for (unsigned i = 1; i < sparse; i++) {
        set &= nt_test_random(random);
    }
    return m->nodes == 64 ? set : set & (BIT(m->nodes) - 1);
}

static bool
model_bitset(const model *m, uint64_t set, nt_bitset *out)
{
    nt_test *t = m->t;
    if (!NT_CHECK_OK(nt_bitset_init(out, m->alloc, m->nodes, NULL), NULL)) {
        return false;
    }
    for (uint32_t n = 0; n < m->nodes; n++) {
        if (set & BIT(n)) {
            nt_bitset_add(out, n);
        }
    }
    return true;
}

/* ---- reversed and marked ---- */

static void
model_check_reversed(const model *m)
{
    nt_test *t = m->t;
    NT_CHECK(nt_graph_check(&m->graph) && nt_graph_check(&m->reversed));
    NT_CHECK_UINT(m->reversed.edge_count, m->graph.edge_count);
    for (uint32_t n = 0; n < m->nodes; n++) {
        uint64_t from = 0;
        uint32_t before = 0;
        for (uint32_t e = m->reversed.first[n]; e < m->reversed.first[n + 1]; e++) {
            NT_CHECK(before <= m->reversed.targets[e]);
            before = m->reversed.targets[e];
            from |= BIT(before);
        }
        NT_CHECK_UINT(from, m->from[n]);
    }
}

static void
model_check_mark(const model *m, uint64_t *random)
{
    nt_test *t = m->t;
    const uint64_t fence = model_random_set(m, random, 3);
    uint32_t seeds[3];
    uint64_t seed_set = 0;
    nt_bitset marked;
    for (int i = 0; i < 3; i++) {
        seeds[i] = (uint32_t)(nt_test_random(random) % m->nodes);
        seed_set |= BIT(seeds[i]);
    }
    NT_REQUIRE(model_bitset(m, fence, &marked));
    NT_CHECK_OK(nt_graph_mark(&m->graph, seeds, 3, &marked, NULL), NULL);
    NT_CHECK_UINT(marked.words[0], fence | model_reach(m->to, seed_set, fence));
    nt_bitset_clear(&marked);
}

/* ---- components ---- */

typedef struct model_parts {
    uint64_t within;
    uint64_t reach[MOST_NODES]; /* along one edge or more, inside of `within` */
    uint32_t component[MOST_NODES];
    uint32_t count;
} model_parts;

static void
model_check_components(const model *m, const model_parts *p)
{
    nt_test *t = m->t;
    uint64_t used = 0;
    for (uint32_t a = 0; a < m->nodes; a++) {
        NT_CHECK((p->component[a] == NT_NONE) == !(p->within & BIT(a)));
        for (uint32_t b = 0; b < m->nodes && p->component[a] != NT_NONE; b++) {
            const bool same =
                a == b || ((p->reach[a] & BIT(b)) && (p->reach[b] & BIT(a)));
            NT_CHECK(p->component[b] == NT_NONE ||
                     same == (p->component[a] == p->component[b]));
            if (m->to[a] & p->within & BIT(b)) {
                NT_CHECK(p->component[b] <= p->component[a]);
            }
        }
        if (p->component[a] != NT_NONE) {
            NT_REQUIRE(NT_CHECK(p->component[a] < p->count));
            used |= BIT(p->component[a]);
        }
    }
    NT_CHECK_UINT(used, p->count == 64 ? UINT64_MAX : BIT(p->count) - 1);
}

static void
model_check_owners(const model *m, const model_parts *p)
{
    nt_test *t = m->t;
    uint32_t sizes[MOST_NODES], owner[MOST_NODES];
    bool cyclic[MOST_NODES], alone[MOST_NODES];
    nt_graph_component_facts(&m->graph, p->component, p->count, sizes, cyclic);
    nt_graph_component_facts(&m->graph, p->component, p->count, NULL, alone);
    NT_REQUIRE(NT_CHECK_OK(
        nt_graph_owners(&m->graph, p->component, p->count, owner, NULL), NULL));
    for (uint32_t n = 0; n < m->nodes; n++) {
        const uint32_t c = p->component[n];
        uint32_t nearest = NT_NONE, size = 0;
        for (uint32_t a = 0; a < m->nodes; a++) {
            const bool rounds = (p->reach[a] & BIT(a)) != 0;
            if (rounds && (a == n || p->reach[a] & BIT(n)) &&
                p->component[a] < nearest) {
                nearest = p->component[a];
            }
            size += p->component[a] == c;
        }
        NT_CHECK_UINT(owner[n], nearest);
        if (c != NT_NONE) {
            NT_CHECK_UINT(sizes[c], size);
            NT_CHECK_UINT(cyclic[c], (p->reach[n] & BIT(n)) != 0);
            NT_CHECK_UINT(alone[c], cyclic[c]);
        }
    }
}

static void
model_check_cycle(const model *m, const model_parts *p, uint32_t node)
{
    nt_test *t = m->t;
    uint32_t *cycle, length;
    NT_REQUIRE(NT_CHECK_OK(
        nt_graph_cycle(&m->graph, p->component, node, &cycle, &length, NULL), NULL));
    uint32_t shortest = NT_NONE;
    for (uint32_t a = 0; a < m->nodes; a++) {
        if ((m->to[a] & BIT(node)) && (p->within & BIT(a)) && (p->within & BIT(node))) {
            const uint32_t way = model_distance(m->to, node, BIT(a), ~p->within);
            shortest = way < shortest ? way : shortest;
        }
    }
    NT_CHECK_UINT(length, shortest == NT_NONE ? 0 : shortest + 1);
    NT_CHECK((cycle == NULL) == (length == 0));
    for (uint32_t i = 0; i < length; i++) {
        NT_CHECK(m->to[cycle[i]] & BIT(cycle[(i + 1) % length]));
    }
    NT_CHECK(length == 0 || cycle[0] == node);
    nt_release(&m->alloc, cycle, length * sizeof *cycle);
}

static void
model_check_parts(const model *m, uint64_t *random)
{
    nt_test *t = m->t;
    const bool all = nt_test_random(random) % 2 == 0;
    model_parts p = {.within = model_random_set(m, random, 1)};
    nt_bitset within;
    p.within |= model_random_set(m, random, 1);
    NT_REQUIRE(model_bitset(m, p.within, &within));
    if (all) {
        p.within = m->nodes == 64 ? UINT64_MAX : BIT(m->nodes) - 1;
    }
    for (uint32_t n = 0; n < m->nodes; n++) {
        if (p.within & BIT(n)) {
            p.reach[n] = model_reach(m->to, m->to[n], ~p.within);
        }
    }
    if (NT_CHECK_OK(nt_graph_components(&m->graph, all ? NULL : &within, p.component,
                                        &p.count, NULL),
                    NULL)) {
        model_check_components(m, &p);
        model_check_owners(m, &p);
        for (uint32_t n = 0; n < m->nodes; n++) {
            model_check_cycle(m, &p, n);
        }
    }
    nt_bitset_clear(&within);
}

/* ---- chains from roots ---- */

typedef struct model_ways {
    uint64_t roots;
    uint64_t hidden;
    uint32_t lengths[MOST_NODES]; /* of the chains that there should be, ascending */
    uint32_t count;
} model_ways;

/* Goes up from `node` as long as there is one referrer that leads to a root; the
 * lengths are those through each referrer of where that ends. */
static void
model_find_ways(const model *m, uint32_t node, model_ways *ways)
{
    uint64_t stem = BIT(node);
    uint32_t below = 1, tip = node, only = 0;
    do {
        ways->count = 0;
        for (uint32_t r = 0; r < m->nodes; r++) {
            const uint64_t avoid = stem | ways->hidden;
            const uint32_t way = model_distance(m->from, r, ways->roots, avoid);
            if ((m->from[tip] & BIT(r)) && way != NT_NONE) {
                uint32_t place = ways->count++;
                for (; place > 0 && ways->lengths[place - 1] > below + 1 + way;
                     place--) {
                    ways->lengths[place] = ways->lengths[place - 1];
                }
                ways->lengths[place] = below + 1 + way;
                only = r;
            }
        }
        tip = only;
        stem |= BIT(tip);
        below++;
    } while (ways->count == 1 && !(ways->roots & BIT(tip)));
}

static void
model_check_path(const model *m, const model_ways *ways, const nt_graph_path *path,
                 uint32_t node)
{
    nt_test *t = m->t;
    uint64_t seen = 0;
    NT_CHECK(ways->roots & BIT(path->nodes[0]));
    NT_CHECK_UINT(path->nodes[path->length - 1], node);
    for (uint32_t i = 0; i < path->length; i++) {
        const uint64_t bit = BIT(path->nodes[i]);
        const bool last = i + 1 == path->length;
        NT_CHECK(!(seen & bit));
        NT_CHECK(last || !(ways->hidden & bit));
        NT_CHECK(i == 0 || last || !(ways->roots & bit));
        NT_CHECK(last || (m->to[path->nodes[i]] & BIT(path->nodes[i + 1])));
        seen |= bit;
    }
}

static void
model_check_paths(const model *m, uint64_t *random)
{
    nt_test *t = m->t;
    model_ways ways = {.roots = model_random_set(m, random, 3),
                       .hidden = model_random_set(m, random, 3)};
    const uint32_t most = (uint32_t)(nt_test_random(random) % (MOST_PATHS + 1));
    nt_bitset roots, hidden;
    NT_REQUIRE(model_bitset(m, ways.roots, &roots));
    NT_REQUIRE(model_bitset(m, ways.hidden, &hidden));
    for (uint32_t n = 0; n < m->nodes; n++) {
        nt_graph_path *paths;
        uint32_t count;
        const uint32_t itself = most > 0 && (ways.roots & BIT(n)) ? 1 : 0;
        NT_REQUIRE(NT_CHECK_OK(nt_graph_paths(&m->reversed, n, &roots, &hidden, most,
                                              &paths, &count, NULL),
                               NULL));
        model_find_ways(m, n, &ways);
        const uint32_t expected = itself + ways.count;
        NT_CHECK_UINT(count, expected < most ? expected : most);
        for (uint32_t i = 0; i < count; i++) {
            model_check_path(m, &ways, &paths[i], n);
            NT_CHECK_UINT(paths[i].length, i < itself ? 1 : ways.lengths[i - itself]);
        }
        nt_graph_paths_free(&m->reversed, paths, count);
    }
    nt_bitset_clear(&roots);
    nt_bitset_clear(&hidden);
}

/* ---- dominators ---- */

/* What dominates `node`, itself left out: without it the node is not reached. */
static uint64_t
model_dominators(const model *m, uint64_t roots, uint32_t node)
{
    uint64_t found = 0;
    for (uint32_t d = 0; d < m->nodes; d++) {
        if (d != node && !(model_reach(m->to, roots, BIT(d)) & BIT(node))) {
            found |= BIT(d);
        }
    }
    return found;
}

static void
model_check_dominators(const model *m, uint64_t *random)
{
    nt_test *t = m->t;
    uint32_t roots[MOST_NODES], idom[MOST_NODES], order[MOST_NODES], reached;
    uint64_t bytes[MOST_NODES], retained[MOST_NODES], sums[MOST_NODES] = {0};
    uint64_t root_set = 0, before = 0;
    const uint32_t root_count = (uint32_t)(nt_test_random(random) % 4);
    for (uint32_t i = 0; i < root_count; i++) {
        roots[i] = (uint32_t)(nt_test_random(random) % m->nodes);
        root_set |= BIT(roots[i]);
    }
    NT_REQUIRE(NT_CHECK_OK(
        nt_graph_dominators(&m->graph, roots, root_count, idom, order, &reached, NULL),
        NULL));
    const uint64_t reach = model_reach(m->to, root_set, 0);
    for (uint32_t i = 0; i < reached; i++) {
        const uint32_t n = order[i];
        const uint64_t strict = model_dominators(m, root_set, n);
        NT_CHECK(!(before & BIT(n)) && (strict & ~before) == 0);
        before |= BIT(n);
        /* The nearest dominator is the one that all the others dominate. */
        NT_CHECK((idom[n] == NT_NONE) == (strict == 0));
        if (idom[n] != NT_NONE) {
            const uint64_t others = strict & ~BIT(idom[n]);
            NT_CHECK(strict & BIT(idom[n]));
            NT_CHECK_UINT(model_dominators(m, root_set, idom[n]), others);
        }
        bytes[n] = nt_test_random(random) % 1000;
        for (uint32_t d = 0; d < m->nodes; d++) {
            sums[d] += (strict | BIT(n)) & BIT(d) ? bytes[n] : 0;
        }
    }
    NT_CHECK_UINT(before, reach);
    nt_graph_retained(m->nodes, idom, order, reached, bytes, retained);
    for (uint32_t n = 0; n < m->nodes; n++) {
        NT_CHECK_UINT(retained[n], reach & BIT(n) ? sums[n] : 0);
        NT_CHECK((reach & BIT(n)) || idom[n] == NT_NONE);
    }
}

NT_TEST(every_answer_fits_its_definition)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    for (uint64_t seed = 1; seed <= 600 && t->failures == 0; seed++) {
        uint64_t random = seed;
        model m;
        if (model_make(&m, t, &hostile.alloc, &random)) {
            model_check_reversed(&m);
            model_check_mark(&m, &random);
            model_check_parts(&m, &random);
            model_check_paths(&m, &random);
            model_check_dominators(&m, &random);
        }
        model_clear(&m);
        if (t->failures > 0) {
            NT_FAIL("that was seed %u", (unsigned)seed);
        }
    }
    NT_CHECK_NO_LEAK(&hostile);
}

const nt_test_case nt_graph_model_tests[] = {
    NT_CASE(every_answer_fits_its_definition),
    NT_CASES_END,
};
