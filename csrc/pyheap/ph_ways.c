/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_ways.h"

#include <stdlib.h>
#include <string.h>

static nt_status
way_copy(nt_arena *arena, const char *text, const char **copy, nt_error *err)
{
    *copy = (const char *)nt_arena_copy(arena, text, strlen(text) + 1);
    return *copy == NULL ? nt_fail_nomem(err) : NT_OK;
}

static nt_status
way_added(const ph_join *join, uint32_t number, nt_arena *arena, ph_node *node,
          nt_error *err)
{
    const ph_added *added = &join->added[number - join->walked];
    *node =
        (ph_node){.type = "", .kind = PH_NODE_ROOT, .line = added->line, .count = 1};
    NT_TRY(way_copy(arena, added->label, &node->label, err));
    return way_copy(arena, added->file, &node->file, err);
}

static nt_status
way_node(const ph_join *join, uint32_t number, nt_arena *arena, ph_node *node,
         nt_error *err)
{
    PyObject *object = ph_join_object(join, number);
    if (object == NULL) {
        return way_added(join, number, arena, node, err);
    }
    ph_label label;
    ph_names_label(object, &label);
    *node = (ph_node){.kind = label.kind,
                      .line = label.line,
                      .count = 1,
                      .is_strong = label.is_strong};
    if (nt_bitset_has(&join->autograd, number)) {
        node->kind = PH_NODE_AUTOGRAD;
    } else if (node->kind == PH_NODE_TENSOR && !ph_tensor_read(object, &node->tensor)) {
        node->kind = PH_NODE_OBJECT;
    }
    NT_TRY(way_copy(arena, label.type, &node->type, err));
    NT_TRY(way_copy(arena, label.text, &node->label, err));
    return way_copy(arena, label.file, &node->file, err);
}

/* A cell is known by its variable where the way comes from the function. */
static const char *
way_variable(const ph_join *join, const uint32_t *nodes, uint32_t at,
             const ph_edge *edges)
{
    if (at < 2 || edges[at].kind != PH_EDGE_CELL ||
        edges[at - 1].kind != PH_EDGE_ITEM || edges[at - 2].kind != PH_EDGE_CLOSURE) {
        return "";
    }
    PyObject *function = ph_join_object(join, nodes[at - 2]);
    return function == NULL ? "" : ph_names_cell(function, atol(edges[at - 1].name));
}

static nt_status
way_edge(const ph_join *join, const uint32_t *nodes, uint32_t count, uint32_t at,
         nt_arena *arena, ph_edge *edges, nt_error *err)
{
    const uint32_t source = nodes[at], target = nodes[(at + 1) % count];
    ph_edge *edge = &edges[at];
    *edge = (ph_edge){.source = at, .target = (at + 1) % count, .name = ""};
    const ph_link *link = ph_join_find_link(join, source, target);
    PyObject *object = ph_join_object(join, source);
    if (link != NULL) {
        edge->kind = link->kind;
        return way_copy(arena, link->name, &edge->name, err);
    }
    if (object == NULL) {
        return NT_OK;
    }
    char name[PH_NAME_BYTES];
    (void)ph_names_find(object, ph_join_object(join, target), &edge->kind, name);
    const char *variable = way_variable(join, nodes, at, edges);
    return way_copy(arena, variable[0] != '\0' ? variable : name, &edge->name, err);
}

static nt_status
way_room(nt_arena *arena, uint32_t count, ph_way *way, nt_error *err)
{
    way->nodes = nt_arena_take(arena, count * sizeof *way->nodes, _Alignof(ph_node));
    way->edges = nt_arena_take(arena, count * sizeof *way->edges, _Alignof(ph_edge));
    way->threads = nt_arena_take(arena, count * sizeof *way->threads, 8);
    const bool made = way->nodes != NULL && way->edges != NULL && way->threads != NULL;
    return made ? NT_OK : nt_fail_nomem(err);
}

/* Puts one node in the place of all beyond the first and the last half. */
static void
way_fold(ph_way *way)
{
    const uint32_t half = PH_WAY_NODES / 2, out = way->count - PH_WAY_NODES;
    way->nodes[half] = (ph_node){
        .type = "", .label = "", .file = "", .kind = PH_NODE_FOLDED, .count = out + 1};
    way->threads[half] = 0;
    for (uint32_t at = half + 1; at < PH_WAY_NODES; at++) {
        way->nodes[at] = way->nodes[at + out];
        way->threads[at] = way->threads[at + out];
    }
    const bool closed = way->edge_count == way->count;
    way->count = PH_WAY_NODES;
    way->edge_count = closed ? PH_WAY_NODES : PH_WAY_NODES - 1;
    for (uint32_t at = half; at < way->edge_count; at++) {
        way->edges[at] = way->edges[at + out];
        way->edges[at].source = at;
        way->edges[at].target = (at + 1) % way->count;
    }
    way->edges[half - 1].target = half;
}

nt_status
ph_way_make(const ph_join *join, const uint32_t *nodes, uint32_t count, bool closed,
            nt_arena *arena, ph_way *way, nt_error *err)
{
    ph_way made = {.count = count, .edge_count = closed ? count : count - 1};
    NT_TRY(way_room(arena, count, &made, err));
    for (uint32_t at = 0; at < count; at++) {
        NT_TRY(way_node(join, nodes[at], arena, &made.nodes[at], err));
        made.threads[at] =
            nodes[at] < join->walked ? 0 : join->added[nodes[at] - join->walked].thread;
        if (at < made.edge_count) {
            NT_TRY(way_edge(join, nodes, count, at, arena, made.edges, err));
            made.edges[at].in_cycle = closed;
        }
    }
    if (count > PH_WAY_NODES) {
        way_fold(&made);
    }
    *way = made;
    return NT_OK;
}
