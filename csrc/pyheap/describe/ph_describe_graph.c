/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture of one cycle: the way round, its middle folded where it is long, and the
 * shortest ways from it to the largest tensors that it keeps.
 */
#include <string.h>

#include "describe/ph_describe_state.h"

/* A way round is shown so far from its beginning and from its end. */
#define SHOWN_AT_AN_END 12

/* Objects that are looked at for a way to a tensor. */
#define MOST_LOOKED_AT (1u << 18)

typedef struct graph_round {
    ph_state *state;
    ph_cycle *cycle;
    uint32_t component;
    size_t node_capacity;
    size_t edge_capacity;
    nt_map ids;    /* number of an object -> node of the picture */
    uint64_t *way; /* a bit a node of the walk: is on the way round */
    nt_map before; /* number of another object -> the one it was reached from */
    uint32_t *queue;
    size_t queued;
    size_t queue_capacity;
    uint32_t from; /* whose references are being followed */
    nt_status status;
} graph_round;

/* The picture's arrays grow in the arena of the result: doubled, the old one left. */
static nt_status
graph_room(graph_round *round, void **array, size_t *capacity, size_t count,
           size_t element)
{
    if (count < *capacity) {
        return NT_OK;
    }
    const size_t wanted = *capacity * 2 + 16;
    void *grown = nt_arena_take(&round->state->out->arena, wanted * element, 16);
    if (grown == NULL) {
        return NT_NOMEM;
    }
    if (count > 0) {
        memcpy(grown, *array, count * element);
    }
    *array = grown;
    *capacity = wanted;
    return NT_OK;
}

static const char *
graph_text(graph_round *round, const char *text)
{
    return (const char *)nt_arena_copy(&round->state->out->arena, text,
                                       strlen(text) + 1);
}

static nt_status
graph_new_node(graph_round *round, ph_node **out, uint32_t *id)
{
    ph_cycle *cycle = round->cycle;
    NT_TRY(graph_room(round, (void **)&cycle->nodes, &round->node_capacity,
                      cycle->node_count, sizeof *cycle->nodes));
    *id = cycle->node_count++;
    *out = &cycle->nodes[*id];
    **out = (ph_node){.type = "", .label = "", .file = "", .count = 1};
    return NT_OK;
}

/* The picture's node for an object, made at first sight. */
static nt_status
graph_node(graph_round *round, uint32_t number, uint32_t *id)
{
    *id = nt_map_find(&round->ids, number);
    if (*id != NT_NONE) {
        return NT_OK;
    }
    ph_node *node;
    NT_TRY(graph_new_node(round, &node, id));
    NT_TRY(nt_map_set(&round->ids, number, *id, NULL));
    PyObject *object = ph_state_object(round->state, number);
    ph_label label;
    ph_names_label(object, &label);
    node->kind = label.kind;
    node->line = label.line;
    node->is_strong = label.is_strong;
    node->type = graph_text(round, label.type);
    node->label = graph_text(round, label.text);
    node->file = graph_text(round, label.file);
    if (ph_tensor_check(object) && ph_tensor_read(object, &node->tensor)) {
        node->kind = PH_NODE_TENSOR;
    } else if (node->kind == PH_NODE_TENSOR) {
        node->kind = PH_NODE_OBJECT;
    }
    return node->type == NULL || node->label == NULL || node->file == NULL ? NT_NOMEM
                                                                           : NT_OK;
}

static nt_status
graph_edge(graph_round *round, uint32_t source, uint32_t target, const ph_step *step,
           bool in_cycle)
{
    ph_cycle *cycle = round->cycle;
    NT_TRY(graph_room(round, (void **)&cycle->edges, &round->edge_capacity,
                      cycle->edge_count, sizeof *cycle->edges));
    const char *name = graph_text(round, step->name);
    if (name == NULL) {
        return NT_NOMEM;
    }
    cycle->edges[cycle->edge_count++] = (ph_edge){.source = source,
                                                  .target = target,
                                                  .name = name,
                                                  .kind = step->kind,
                                                  .in_cycle = in_cycle};
    return NT_OK;
}

/* The node of a step of the way round; the first of the middle stands for all of it. */
static nt_status
graph_way_node(graph_round *round, const ph_step *steps, uint32_t count, uint32_t at,
               uint32_t *id)
{
    const bool folded = count > 2 * SHOWN_AT_AN_END + 1 && at == SHOWN_AT_AN_END;
    if (!folded) {
        return graph_node(round, steps[at].node, id);
    }
    ph_node *node;
    NT_TRY(graph_new_node(round, &node, id));
    node->kind = PH_NODE_FOLDED;
    node->count = count - 2 * SHOWN_AT_AN_END;
    return NT_OK;
}

static nt_status
graph_way(graph_round *round, const ph_step *steps, uint32_t count)
{
    const bool folded = count > 2 * SHOWN_AT_AN_END + 1;
    uint32_t first = NT_NONE, last = NT_NONE, last_at = 0;
    for (uint32_t at = 0; at < count; at++) {
        if (folded && at > SHOWN_AT_AN_END && at < count - SHOWN_AT_AN_END) {
            last_at = at;
            continue;
        }
        uint32_t id;
        NT_TRY(graph_way_node(round, steps, count, at, &id));
        if (last == NT_NONE) {
            first = id;
        } else {
            NT_TRY(graph_edge(round, last, id, &steps[last_at], true));
        }
        last = id;
        last_at = at;
    }
    round->cycle->chain_length = round->cycle->node_count;
    return graph_edge(round, last, first, &steps[count - 1], true);
}

static size_t
graph_way_bytes(const graph_round *round)
{
    return ((size_t)round->state->count / 64 + 1) * 8;
}

static bool
graph_on_way(const graph_round *round, uint32_t number)
{
    return number < round->state->count &&
           (round->way[number / 64] >> number % 64 & 1) != 0;
}

static bool
graph_is_reached(const graph_round *round, uint32_t number)
{
    return graph_on_way(round, number) ||
           nt_map_find(&round->before, number) != NT_NONE;
}

/* The search begins at all objects of the way round. */
static nt_status
graph_begin(graph_round *round, const ph_step *steps, uint32_t count)
{
    const nt_alloc *alloc = &round->state->alloc;
    round->way = nt_allocate(alloc, graph_way_bytes(round));
    if (round->way == NULL) {
        return NT_NOMEM;
    }
    memset(round->way, 0, graph_way_bytes(round));
    NT_TRY(nt_grow(alloc, (void **)&round->queue, &round->queue_capacity, count,
                   sizeof *round->queue, NULL));
    for (uint32_t at = 0; at < count; at++) {
        const uint32_t number = steps[at].node;
        round->way[number / 64] |= UINT64_C(1) << number % 64;
        round->queue[at] = number;
    }
    round->queued = count;
    return NT_OK;
}

/* Puts an object that the component keeps into the queue, once. */
static nt_status
graph_reach(graph_round *round, uint32_t number)
{
    if (graph_is_reached(round, number)) {
        return NT_OK;
    }
    NT_TRY(nt_map_set(&round->before, number, round->from, NULL));
    NT_TRY(nt_grow(&round->state->alloc, (void **)&round->queue, &round->queue_capacity,
                   round->queued + 1, sizeof *round->queue, NULL));
    round->queue[round->queued++] = number;
    return NT_OK;
}

static int
graph_visit(PyObject *object, void *arg)
{
    graph_round *round = arg;
    const uint32_t number = ph_state_find(round->state, object);
    if (number != NT_NONE && ph_state_owner(round->state, number) == round->component) {
        round->status = graph_reach(round, number);
    }
    return round->status != NT_OK;
}

/* Follows references breadth first until all of the tensors are reached. */
static nt_status
graph_search(graph_round *round, const uint32_t *tensors, uint32_t count)
{
    for (size_t done = 0; done < round->queued && done < MOST_LOOKED_AT; done++) {
        uint32_t missing = 0;
        for (uint32_t i = 0; i < count; i++) {
            missing += !graph_is_reached(round, tensors[i]);
        }
        if (missing == 0) {
            return NT_OK;
        }
        round->from = round->queue[done];
        PyObject *object = ph_state_object(round->state, round->from);
        if (Py_TYPE(object)->tp_traverse != NULL) {
            (void)Py_TYPE(object)->tp_traverse(object, graph_visit, round);
        }
        NT_TRY(round->status);
    }
    return NT_OK;
}

/* The way to a tensor from the way round, or from what is drawn already. One that was
 * not come to stands by itself. */
static nt_status
graph_tensor(graph_round *round, uint32_t tensor)
{
    ph_state *s = round->state;
    uint32_t alone;
    uint32_t length = 1;
    for (uint32_t at = tensor; !graph_on_way(round, at); length++) {
        at = nt_map_find(&round->before, at);
        if (at == NT_NONE) {
            return graph_node(round, tensor, &alone);
        }
    }
    uint32_t *nodes = nt_arena_take(&s->scratch, length * sizeof *nodes, 4);
    if (nodes == NULL) {
        return NT_NOMEM;
    }
    uint32_t at = tensor;
    for (uint32_t i = length; i-- > 0; at = nt_map_find(&round->before, at)) {
        nodes[i] = at;
    }
    ph_step *steps;
    uint32_t count;
    NT_TRY(ph_describe_steps(s, nodes, length, false, &steps, &count, NULL));
    for (uint32_t i = 0; i + 1 < count; i++) {
        const bool drawn = nt_map_find(&round->ids, steps[i + 1].node) != NT_NONE;
        uint32_t source, target;
        NT_TRY(graph_node(round, steps[i].node, &source));
        NT_TRY(graph_node(round, steps[i + 1].node, &target));
        if (!drawn) {
            NT_TRY(graph_edge(round, source, target, &steps[i], false));
        }
    }
    return NT_OK;
}

static nt_status
graph_fill(graph_round *round, const ph_component *kept, const ph_step *steps,
           uint32_t count)
{
    NT_TRY(graph_way(round, steps, count));
    NT_TRY(graph_begin(round, steps, count));
    uint32_t tensors = 0;
    while (tensors < 4 && tensors < kept->tensors) {
        tensors++;
    }
    NT_TRY(graph_search(round, kept->top, tensors));
    for (uint32_t i = 0; i < tensors; i++) {
        if (nt_map_find(&round->ids, kept->top[i]) == NT_NONE) {
            NT_TRY(graph_tensor(round, kept->top[i]));
        }
    }
    return NT_OK;
}

nt_status
ph_describe_graph(ph_state *s, uint32_t component, const ph_component *kept,
                  const ph_step *steps, uint32_t count, ph_cycle *cycle, nt_error *err)
{
    graph_round round = {.state = s, .cycle = cycle, .component = component};
    nt_map_init(&round.ids, s->alloc);
    nt_map_init(&round.before, s->alloc);
    cycle->node_count = 0;
    cycle->edge_count = 0;
    const nt_status status = graph_fill(&round, kept, steps, count);
    nt_map_clear(&round.ids);
    nt_map_clear(&round.before);
    nt_release(&s->alloc, round.queue, round.queue_capacity * sizeof *round.queue);
    nt_release(&s->alloc, round.way, round.way != NULL ? graph_way_bytes(&round) : 0);
    return status == NT_OK ? NT_OK : nt_fail_nomem(err);
}
