/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/nt_graph.h"

#include <string.h>

#include "nt_edges.h"
#include "nt_test.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))

/* Two rings, 0-1-2 and 4-5, joined by 2 -> 3 -> 4; 6 refers to itself and hangs on 5,
 * 7 hangs on 6, and 8 refers to 0 twice. */
enum { RINGS_NODES = 9 };
static const nt_edge rings[] = {
    {0, 1}, {1, 2}, {2, 0}, {2, 3}, {3, 4}, {4, 5},
    {5, 4}, {5, 6}, {6, 6}, {6, 7}, {8, 0}, {8, 0},
};

static bool
graph_make(nt_test *t, const nt_alloc *alloc, uint32_t nodes, const nt_edge *edges,
           uint32_t count, nt_graph *out)
{
    return NT_CHECK_OK(nt_edges_graph(alloc, nodes, edges, count, out), NULL) &&
           NT_CHECK(nt_graph_check(out));
}

NT_TEST(empty_graph_has_empty_answers)
{
    nt_hostile hostile;
    nt_graph graph = {0}, made, reversed;
    uint32_t count = 1;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(nt_graph_init(&made, &hostile.alloc, 0, 0, NULL), NULL));
    made.first[0] = 0;
    const nt_graph *both[] = {&graph, &made};
    for (int i = 0; i < 2; i++) {
        nt_bitset marked;
        NT_CHECK(nt_graph_check(both[i]));
        NT_CHECK_OK(nt_graph_reverse(both[i], &reversed, NULL), NULL);
        NT_CHECK(nt_graph_check(&reversed));
        nt_graph_clear(&reversed);
        NT_REQUIRE(NT_CHECK_OK(nt_bitset_init(&marked, hostile.alloc, 0, NULL), NULL));
        NT_CHECK_OK(nt_graph_mark(both[i], NULL, 0, &marked, NULL), NULL);
        nt_bitset_clear(&marked);
        NT_CHECK_OK(nt_graph_components(both[i], NULL, NULL, &count, NULL), NULL);
        NT_CHECK_UINT(count, 0);
        nt_graph_component_facts(both[i], NULL, 0, NULL, NULL);
        NT_CHECK_OK(nt_graph_owners(both[i], NULL, 0, NULL, NULL), NULL);
        count = 1;
        NT_CHECK_OK(nt_graph_dominators(both[i], NULL, 0, NULL, NULL, &count, NULL),
                    NULL);
        NT_CHECK_UINT(count, 0);
        nt_graph_retained(0, NULL, NULL, 0, NULL, NULL);
    }
    nt_graph_clear(&graph);
    nt_graph_clear(&made);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(wrong_arrays_are_found_out)
{
    nt_hostile hostile;
    nt_graph graph;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, RINGS_NODES, rings, COUNT(rings), &graph));
    graph.targets[COUNT(rings) - 1] = RINGS_NODES;
    NT_CHECK(!nt_graph_check(&graph));
    graph.targets[COUNT(rings) - 1] = 0;
    graph.first[RINGS_NODES] = COUNT(rings) - 1;
    NT_CHECK(!nt_graph_check(&graph));
    graph.first[RINGS_NODES] = COUNT(rings);
    graph.first[0] = 1;
    NT_CHECK(!nt_graph_check(&graph));
    graph.first[0] = 0;
    graph.first[3] = COUNT(rings) + 1;
    NT_CHECK(!nt_graph_check(&graph));
    nt_graph_clear(&graph);
    graph.node_count = 1;
    NT_CHECK(!nt_graph_check(&graph));
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(too_many_nodes_are_refused)
{
    nt_hostile hostile;
    nt_graph graph;
    nt_error err = {0};
    nt_hostile_init(&hostile, t);
    NT_CHECK_STATUS(
        nt_graph_init(&graph, &hostile.alloc, NT_GRAPH_MOST_NODES + 1, 0, &err),
        NT_LIMIT, &err);
    NT_CHECK_STR(err.message, "a graph of more than 2^31 - 1 nodes");
    NT_CHECK_UINT(hostile.requests, 0);
    NT_CHECK(nt_graph_check(&graph));
}

NT_TEST(reversed_edges_ascend_and_stay_parallel)
{
    static const uint32_t first[] = {0, 3, 4, 5, 6, 8, 9, 11, 12, 12};
    static const uint32_t targets[] = {2, 8, 8, 0, 1, 2, 3, 5, 4, 5, 6, 6};
    nt_hostile hostile;
    nt_graph graph, reversed;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, RINGS_NODES, rings, COUNT(rings), &graph));
    NT_REQUIRE(NT_CHECK_OK(nt_graph_reverse(&graph, &reversed, NULL), NULL));
    NT_CHECK_BYTES(reversed.first, first, sizeof first);
    NT_CHECK_BYTES(reversed.targets, targets, sizeof targets);
    nt_graph_clear(&reversed);
    nt_graph_clear(&graph);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(marking_stops_at_the_fence)
{
    static const uint32_t seeds[] = {8, 8, 5};
    nt_hostile hostile;
    nt_graph graph;
    nt_bitset marked;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, RINGS_NODES, rings, COUNT(rings), &graph));
    NT_REQUIRE(
        NT_CHECK_OK(nt_bitset_init(&marked, hostile.alloc, RINGS_NODES, NULL), NULL));
    nt_bitset_add(&marked, 3);
    NT_CHECK_OK(nt_graph_mark(&graph, seeds, 2, &marked, NULL), NULL);
    NT_CHECK_UINT(marked.words[0], 0x10f);
    /* A seed that is marked is not passed through either. */
    nt_bitset_add(&marked, 5);
    NT_CHECK_OK(nt_graph_mark(&graph, seeds, 3, &marked, NULL), NULL);
    NT_CHECK_UINT(marked.words[0], 0x12f);
    nt_bitset_clear(&marked);
    nt_graph_clear(&graph);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(components_put_what_hangs_first)
{
    static const uint32_t expected[] = {4, 4, 4, 3, 2, 2, 1, 0, 5};
    static const uint32_t sizes_expected[] = {1, 1, 2, 1, 3, 1};
    static const bool cyclic_expected[] = {false, true, true, false, true, false};
    static const uint32_t owner_expected[] = {4, 4, 4, 4, 2, 2, 1, 1, NT_NONE};
    uint32_t component[RINGS_NODES], sizes[RINGS_NODES], owner[RINGS_NODES], count;
    bool cyclic[RINGS_NODES];
    nt_graph graph;
    const nt_alloc alloc = nt_alloc_system();
    NT_REQUIRE(graph_make(t, &alloc, RINGS_NODES, rings, COUNT(rings), &graph));
    NT_REQUIRE(
        NT_CHECK_OK(nt_graph_components(&graph, NULL, component, &count, NULL), NULL));
    NT_CHECK_UINT(count, 6);
    NT_CHECK_BYTES(component, expected, sizeof expected);
    nt_graph_component_facts(&graph, component, count, sizes, cyclic);
    NT_CHECK_BYTES(sizes, sizes_expected, sizeof sizes_expected);
    NT_CHECK_BYTES(cyclic, cyclic_expected, sizeof cyclic_expected);
    NT_CHECK_OK(nt_graph_owners(&graph, component, count, owner, NULL), NULL);
    NT_CHECK_BYTES(owner, owner_expected, sizeof owner_expected);
    nt_graph_clear(&graph);
}

NT_TEST(components_of_a_part_ignore_the_rest)
{
    static const uint32_t part[] = {0, 1, 6, 8};
    uint32_t component[RINGS_NODES], owner[RINGS_NODES], length = 7, *cycle, count;
    nt_graph graph;
    nt_bitset within;
    const nt_alloc alloc = nt_alloc_system();
    NT_REQUIRE(graph_make(t, &alloc, RINGS_NODES, rings, COUNT(rings), &graph));
    NT_REQUIRE(NT_CHECK_OK(nt_bitset_init(&within, alloc, RINGS_NODES, NULL), NULL));
    NT_CHECK_OK(nt_graph_components(&graph, &within, component, &count, NULL), NULL);
    NT_CHECK_UINT(count, 0);
    NT_CHECK_OK(nt_graph_owners(&graph, component, count, owner, NULL), NULL);
    NT_CHECK_UINT(owner[0], NT_NONE);
    for (uint32_t i = 0; i < COUNT(part); i++) {
        nt_bitset_add(&within, part[i]);
    }
    NT_CHECK_OK(nt_graph_components(&graph, &within, component, &count, NULL), NULL);
    NT_CHECK_UINT(count, 4);
    for (uint32_t n = 0; n < RINGS_NODES; n++) {
        NT_CHECK_UINT(component[n] == NT_NONE, !nt_bitset_has(&within, n));
    }
    NT_CHECK(component[1] < component[0] && component[0] < component[8]);
    NT_CHECK_OK(nt_graph_cycle(&graph, component, 0, &cycle, &length, NULL), NULL);
    NT_CHECK(length == 0 && cycle == NULL);
    nt_bitset_clear(&within);
    nt_graph_clear(&graph);
}

NT_TEST(shortest_cycle_follows_the_edges_order)
{
    /* 0 has two ways round by three, over 3 first; 2 refers to itself. */
    static const nt_edge edges[] = {{0, 3}, {0, 1}, {0, 5}, {1, 2}, {2, 0}, {2, 2},
                                    {3, 4}, {4, 0}, {5, 6}, {6, 7}, {7, 0}, {2, 8}};
    static const uint32_t round[] = {0, 3, 4};
    uint32_t component[9], count, *cycle, length;
    nt_hostile hostile;
    nt_graph graph;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, 9, edges, COUNT(edges), &graph));
    NT_CHECK_OK(nt_graph_components(&graph, NULL, component, &count, NULL), NULL);
    NT_CHECK_OK(nt_graph_cycle(&graph, component, 0, &cycle, &length, NULL), NULL);
    NT_REQUIRE(NT_CHECK_UINT(length, 3));
    NT_CHECK_BYTES(cycle, round, sizeof round);
    nt_release(&graph.alloc, cycle, length * sizeof *cycle);
    NT_CHECK_OK(nt_graph_cycle(&graph, component, 2, &cycle, &length, NULL), NULL);
    NT_REQUIRE(NT_CHECK_UINT(length, 1));
    NT_CHECK_UINT(cycle[0], 2);
    nt_release(&graph.alloc, cycle, length * sizeof *cycle);
    NT_CHECK_OK(nt_graph_cycle(&graph, component, 8, &cycle, &length, NULL), NULL);
    NT_CHECK(length == 0 && cycle == NULL);
    nt_graph_clear(&graph);
    NT_CHECK_NO_LEAK(&hostile);
}

/* Node 5 is held by 4 alone, 4 by 1, 2 and 3, and by 6, which only 5 holds; 0 holds 1,
 * 7 holds 2 by way of 8, and 3 as well. Roots are 0 and 7. */
enum { HELD_NODES = 9 };
static const nt_edge held[] = {
    {4, 5}, {1, 4}, {2, 4}, {3, 4}, {6, 4}, {5, 6},
    {0, 1}, {7, 8}, {8, 2}, {7, 3}, {7, 3}, {1, 4},
};

/* Checks that the chains to `node` are these, each written as digits. */
static void
graph_check_paths(nt_test *t, const nt_graph *reversed, uint32_t node,
                  const uint32_t *hidden_node, uint32_t most, const char *expected)
{
    nt_bitset roots, hidden;
    nt_graph_path *paths;
    uint32_t count;
    char text[100];
    size_t length = 0;
    NT_REQUIRE(
        NT_CHECK_OK(nt_bitset_init(&roots, reversed->alloc, HELD_NODES, NULL), NULL));
    NT_REQUIRE(
        NT_CHECK_OK(nt_bitset_init(&hidden, reversed->alloc, HELD_NODES, NULL), NULL));
    nt_bitset_add(&roots, 0);
    nt_bitset_add(&roots, 7);
    if (hidden_node != NULL) {
        nt_bitset_add(&hidden, *hidden_node);
    }
    NT_REQUIRE(NT_CHECK_OK(nt_graph_paths(reversed, node, &roots,
                                          hidden_node != NULL ? &hidden : NULL, most,
                                          &paths, &count, NULL),
                           NULL));
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < paths[i].length; k++) {
            text[length++] = (char)('0' + paths[i].nodes[k]);
        }
        text[length++] = ' ';
    }
    text[length] = '\0';
    NT_CHECK_STR(text, expected);
    nt_graph_paths_free(reversed, paths, count);
    nt_bitset_clear(&roots);
    nt_bitset_clear(&hidden);
}

NT_TEST(paths_part_at_the_nearest_fork)
{
    const uint32_t one = 1, four = 4, five = 5;
    nt_hostile hostile;
    nt_graph graph, reversed;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, HELD_NODES, held, COUNT(held), &graph));
    NT_REQUIRE(NT_CHECK_OK(nt_graph_reverse(&graph, &reversed, NULL), NULL));
    graph_check_paths(t, &reversed, 5, NULL, UINT32_MAX, "0145 7345 78245 ");
    graph_check_paths(t, &reversed, 5, NULL, 2, "0145 7345 ");
    graph_check_paths(t, &reversed, 5, NULL, 0, "");
    graph_check_paths(t, &reversed, 5, &one, 3, "7345 78245 ");
    graph_check_paths(t, &reversed, 5, &four, 3, "");
    /* Hiding the node itself hides nothing. */
    graph_check_paths(t, &reversed, 5, &five, 1, "0145 ");
    graph_check_paths(t, &reversed, 6, NULL, 9, "01456 73456 782456 ");
    graph_check_paths(t, &reversed, 7, NULL, 3, "7 ");
    graph_check_paths(t, &reversed, 8, NULL, 3, "78 ");
    nt_graph_clear(&reversed);
    nt_graph_clear(&graph);
    NT_CHECK_NO_LEAK(&hostile);
}

/* The example of Lengauer and Tarjan's paper: R is 0, A to L are 1 to 12. */
enum { R, A, B, C, D, E, F, G, H, I, J, K, L, FLOW_NODES };
static const nt_edge flow[] = {
    {R, A}, {R, B}, {R, C}, {A, D}, {B, A}, {B, D}, {B, E},
    {C, F}, {C, G}, {D, L}, {E, H}, {F, I}, {G, I}, {G, J},
    {H, E}, {H, K}, {I, K}, {J, I}, {K, I}, {K, R}, {L, H},
};

NT_TEST(dominators_are_those_of_the_paper)
{
    static const uint32_t expected[] = {NT_NONE, R, R, R, R, R, C, C, R, R, G, R, D};
    static const uint64_t sums[] = {91, 2, 3, 30, 18, 6, 7, 19, 9, 10, 11, 12, 13};
    const uint32_t roots[] = {R, R};
    uint32_t idom[FLOW_NODES], order[FLOW_NODES], reached;
    uint64_t bytes[FLOW_NODES], retained[FLOW_NODES];
    nt_hostile hostile;
    nt_graph graph;
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(graph_make(t, &hostile.alloc, FLOW_NODES, flow, COUNT(flow), &graph));
    NT_CHECK_OK(nt_graph_dominators(&graph, roots, 2, idom, order, &reached, NULL),
                NULL);
    NT_CHECK_UINT(reached, FLOW_NODES);
    NT_CHECK_UINT(order[0], R);
    NT_CHECK_BYTES(idom, expected, sizeof expected);
    for (uint32_t n = 0; n < FLOW_NODES; n++) {
        bytes[n] = n + 1;
    }
    nt_graph_retained(FLOW_NODES, idom, order, reached, bytes, retained);
    NT_CHECK_BYTES(retained, sums, sizeof sums);
    /* Seen from I and K, which hold each other, nothing dominates either. */
    const uint32_t two[] = {I, K};
    NT_CHECK_OK(nt_graph_dominators(&graph, two, 2, idom, order, &reached, NULL), NULL);
    NT_CHECK_UINT(reached, FLOW_NODES);
    NT_CHECK_UINT(idom[I], NT_NONE);
    NT_CHECK_UINT(idom[K], NT_NONE);
    NT_CHECK_UINT(idom[R], K);
    NT_CHECK_OK(nt_graph_dominators(&graph, NULL, 0, idom, order, &reached, NULL),
                NULL);
    NT_CHECK_UINT(reached, 0);
    NT_CHECK_UINT(idom[R], NT_NONE);
    nt_graph_clear(&graph);
    NT_CHECK_NO_LEAK(&hostile);
}

/* ---- a million nodes in a row ---- */

enum { LONG_NODES = 1000000, LONG_BYTES = 24 };

/* Node n refers to n + 1, and the last one to 0 where the row is closed; `arrays` is
 * room for six arrays of one entry a node. */
static bool
graph_make_long(nt_test *t, bool closed, nt_graph *graph, uint32_t **arrays)
{
    const nt_alloc alloc = nt_alloc_system();
    const uint32_t edges = closed ? LONG_NODES : LONG_NODES - 1;
    if (!NT_CHECK_OK(nt_graph_init(graph, &alloc, LONG_NODES, edges, NULL), NULL)) {
        return false;
    }
    for (uint32_t n = 0; n <= LONG_NODES; n++) {
        graph->first[n] = n < edges ? n : edges;
    }
    for (uint32_t e = 0; e < edges; e++) {
        graph->targets[e] = (e + 1) % LONG_NODES;
    }
    *arrays = nt_allocate(&alloc, (size_t)LONG_NODES * LONG_BYTES);
    return NT_CHECK(*arrays != NULL);
}

static void
graph_check_long(nt_test *t, const nt_graph *graph, uint32_t *arrays)
{
    uint32_t *idom = arrays, *order = arrays + LONG_NODES, reached, count;
    uint64_t *retained = (uint64_t *)(void *)(arrays + (size_t)2 * LONG_NODES);
    uint64_t *bytes = retained + LONG_NODES;
    const uint32_t root = 0;
    nt_graph_path *paths;
    nt_graph reversed;
    nt_bitset roots;
    NT_CHECK_OK(nt_graph_dominators(graph, &root, 1, idom, order, &reached, NULL),
                NULL);
    NT_CHECK_UINT(reached, LONG_NODES);
    for (uint32_t n = 0; n < LONG_NODES; n++) {
        NT_REQUIRE(NT_CHECK_UINT(idom[n], n == 0 ? NT_NONE : n - 1));
        bytes[n] = n;
    }
    nt_graph_retained(LONG_NODES, idom, order, reached, bytes, retained);
    NT_CHECK_UINT(retained[0], (uint64_t)LONG_NODES * (LONG_NODES - 1) / 2);
    NT_REQUIRE(NT_CHECK_OK(nt_graph_reverse(graph, &reversed, NULL), NULL));
    NT_REQUIRE(
        NT_CHECK_OK(nt_bitset_init(&roots, graph->alloc, LONG_NODES, NULL), NULL));
    NT_CHECK_OK(nt_graph_mark(graph, &root, 1, &roots, NULL), NULL);
    NT_CHECK_UINT(nt_bitset_last(&roots, LONG_NODES - 1), LONG_NODES - 1);
    nt_bitset_clear(&roots);
    NT_REQUIRE(
        NT_CHECK_OK(nt_bitset_init(&roots, graph->alloc, LONG_NODES, NULL), NULL));
    nt_bitset_add(&roots, 0);
    NT_CHECK_OK(nt_graph_paths(&reversed, LONG_NODES - 1, &roots, NULL, 3, &paths,
                               &count, NULL),
                NULL);
    NT_REQUIRE(NT_CHECK_UINT(count, 1));
    NT_CHECK_UINT(paths[0].length, LONG_NODES);
    nt_graph_paths_free(&reversed, paths, count);
    nt_bitset_clear(&roots);
    nt_graph_clear(&reversed);
}

NT_TEST(chain_of_a_million_is_fine)
{
    nt_graph graph;
    uint32_t *component, count;
    NT_REQUIRE(graph_make_long(t, false, &graph, &component));
    NT_CHECK_OK(nt_graph_components(&graph, NULL, component, &count, NULL), NULL);
    NT_CHECK_UINT(count, LONG_NODES);
    NT_CHECK_UINT(component[0], LONG_NODES - 1);
    NT_CHECK_UINT(component[LONG_NODES - 1], 0);
    graph_check_long(t, &graph, component);
    nt_release(&graph.alloc, component, (size_t)LONG_NODES * LONG_BYTES);
    nt_graph_clear(&graph);
}

NT_TEST(ring_of_a_million_is_fine)
{
    nt_graph graph;
    uint32_t *component, *cycle, count, length;
    NT_REQUIRE(graph_make_long(t, true, &graph, &component));
    NT_CHECK_OK(nt_graph_components(&graph, NULL, component, &count, NULL), NULL);
    NT_CHECK_UINT(count, 1);
    NT_CHECK_OK(nt_graph_cycle(&graph, component, 7, &cycle, &length, NULL), NULL);
    NT_REQUIRE(NT_CHECK_UINT(length, LONG_NODES));
    NT_CHECK_UINT(cycle[LONG_NODES - 1], 6);
    nt_release(&graph.alloc, cycle, length * sizeof *cycle);
    uint32_t *owner = component + LONG_NODES;
    NT_CHECK_OK(nt_graph_owners(&graph, component, count, owner, NULL), NULL);
    NT_CHECK_UINT(owner[LONG_NODES / 2], 0);
    graph_check_long(t, &graph, component);
    nt_release(&graph.alloc, component, (size_t)LONG_NODES * LONG_BYTES);
    nt_graph_clear(&graph);
}

/* ---- without memory ---- */

/* Outputs that a call which fails must leave as they are. */
static nt_status
graph_sweep_chains(nt_test *t, const nt_graph *graph, const nt_graph *reversed,
                   const uint32_t *component)
{
    uint32_t nothing = 5, *cycle = &nothing, length = 77, count = 78;
    nt_graph_path path, *paths = &path;
    nt_bitset roots;
    nt_status status = nt_graph_cycle(graph, component, 4, &cycle, &length, NULL);
    if (status != NT_OK) {
        NT_CHECK(cycle == &nothing && length == 77);
        return status;
    }
    nt_release(&graph->alloc, cycle, length * sizeof *cycle);
    status = nt_bitset_init(&roots, graph->alloc, HELD_NODES, NULL);
    if (status == NT_OK) {
        nt_bitset_add(&roots, 0);
        nt_bitset_add(&roots, 7);
        status = nt_graph_paths(reversed, 5, &roots, NULL, 3, &paths, &count, NULL);
        if (status == NT_OK) {
            nt_graph_paths_free(reversed, paths, count);
        } else {
            NT_CHECK(paths == &path && count == 78);
        }
    }
    nt_bitset_clear(&roots);
    return status;
}

static nt_status
graph_sweep_arrays(nt_test *t, const nt_graph *graph)
{
    uint32_t component[HELD_NODES], owner[HELD_NODES], order[HELD_NODES];
    uint32_t count = 77, reached = 77;
    const uint32_t root = 7;
    nt_graph reversed = {.node_count = 77};
    nt_status status = nt_graph_components(graph, NULL, component, &count, NULL);
    if (status != NT_OK) {
        NT_CHECK_UINT(count, 77);
        return status;
    }
    NT_TRY(nt_graph_owners(graph, component, count, owner, NULL));
    status = nt_graph_dominators(graph, &root, 1, owner, order, &reached, NULL);
    if (status != NT_OK) {
        NT_CHECK_UINT(reached, 77);
        return status;
    }
    status = nt_graph_reverse(graph, &reversed, NULL);
    if (status != NT_OK) {
        NT_CHECK_UINT(reversed.node_count, 77);
        return status;
    }
    status = graph_sweep_chains(t, graph, &reversed, component);
    nt_graph_clear(&reversed);
    return status;
}

static nt_status
graph_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    const uint32_t seed = 7;
    nt_graph graph;
    nt_bitset marked = {.alloc = *alloc};
    (void)ctx;
    nt_status status = nt_edges_graph(alloc, HELD_NODES, held, COUNT(held), &graph);
    if (status != NT_OK) {
        NT_CHECK(nt_graph_check(&graph));
        return status;
    }
    NT_TRY_DONE(nt_bitset_init(&marked, *alloc, HELD_NODES, NULL));
    NT_TRY_DONE(nt_graph_mark(&graph, &seed, 1, &marked, NULL));
    NT_TRY_DONE(graph_sweep_arrays(t, &graph));
done:
    nt_bitset_clear(&marked);
    nt_graph_clear(&graph);
    return status;
}

NT_TEST(graph_survives_running_out_of_memory)
{
    nt_test_sweep(t, graph_sweep, NULL);
}

const nt_test_case nt_graph_tests[] = {
    NT_CASE(empty_graph_has_empty_answers),
    NT_CASE(wrong_arrays_are_found_out),
    NT_CASE(too_many_nodes_are_refused),
    NT_CASE(reversed_edges_ascend_and_stay_parallel),
    NT_CASE(marking_stops_at_the_fence),
    NT_CASE(components_put_what_hangs_first),
    NT_CASE(components_of_a_part_ignore_the_rest),
    NT_CASE(shortest_cycle_follows_the_edges_order),
    NT_CASE(paths_part_at_the_nearest_fork),
    NT_CASE(dominators_are_those_of_the_paper),
    NT_CASE(chain_of_a_million_is_fine),
    NT_CASE(ring_of_a_million_is_fine),
    NT_CASE(graph_survives_running_out_of_memory),
    NT_CASES_END,
};
