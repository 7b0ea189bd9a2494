/* SPDX-License-Identifier: Apache-2.0 */
/* Objects are numbered: the nodes of the walk, and behind them the extras, objects
 * outside of the set that only the set keeps. */
#include "ph_describe.h"

#include <stdlib.h>
#include <string.h>

#include "base/nt_map.h"
#include "base/nt_sort.h"

/* One reference on the way: from `node` to the next one. */
typedef struct ph_step {
    uint32_t node;
    uint32_t holder; /* what refers to the next one: `node`, or its dict or cell */
    ph_edge_kind kind;
    const char *name;
} ph_step;

/* What is known of a component that is a cycle and keeps wanted tensors. */
typedef struct ph_component {
    uint32_t component;
    uint64_t bytes;
    uint64_t top_bytes[4]; /* its largest tensors, the largest first */
    uint32_t top[4];
    uint32_t tensors;
    uint32_t cycle; /* the entry of its shape, or NT_NONE */
    ph_device_bytes devices[4];
    uint32_t device_count;
} ph_component;

typedef struct ph_state {
    const ph_heap *heap;
    const nt_graph *graph;
    const nt_bitset *set;
    ph_describe_options options;
    nt_alloc alloc;
    uint32_t count; /* nodes of the walk */

    uint32_t *component; /* of a node; NT_NONE outside of the set */
    uint32_t *owner;     /* the cycle that keeps a node */
    uint32_t components;
    uint32_t *sizes;
    bool *cyclic;
    uint32_t *member_first; /* members of component c: members[member_first[c]] .. */
    uint32_t *members;
    nt_map found;       /* component -> index in `kept` */
    ph_component *kept; /* those with wanted tensors */
    size_t kept_count;
    size_t kept_capacity;
    nt_map storages; /* seen */

    PyObject **extras;
    uint32_t *extra_owner;
    uint32_t extra_count;
    size_t extra_capacity;
    nt_map extra_index; /* address -> number */

    /* The way round that was found last, for who asks for it again: a component of a
     * million objects is gone through once. */
    uint32_t *way;
    uint32_t way_length;
    uint32_t way_component;

    nt_arena scratch; /* emptied for each component */
    ph_cycles *out;
    size_t cycle_capacity;
} ph_state;

static PyObject *
ph_state_object(const ph_state *s, uint32_t node)
{
    return node < s->count ? ph_heap_object(s->heap, node) : s->extras[node - s->count];
}

/* The number of an object, or NT_NONE. */
static uint32_t
ph_state_find(const ph_state *s, const PyObject *object)
{
    const uint32_t node = ph_heap_find(s->heap, object);
    if (node != NT_NONE && nt_bitset_has(s->set, node)) {
        return node;
    }
    return s->extra_count == 0 ? NT_NONE
                               : nt_map_find(&s->extra_index, (uintptr_t)object);
}

/* The component of the cycle that keeps a node, or NT_NONE. */
static uint32_t
ph_state_owner(const ph_state *s, uint32_t node)
{
    return node < s->count ? s->owner[node] : s->extra_owner[node - s->count];
}

/* ---- what goes with the set ------------------------------------------------------ */

/* What goes with the set: when its members are freed, so is every object that only
 * they, and what goes with them, refer to. References from there are counted until they
 * are all that an object has, as reference counting will do. */

/* More is not followed: it would be a description of half the heap. */
#define MOST_EXTRAS (1u << 20)

/* References seen to an object outside of the set. */
typedef struct seen {
    PyObject *object;
    Py_ssize_t references;
    uint32_t owner; /* the smallest that refers to it */
    bool goes;
} seen;

typedef struct extra_round {
    ph_state *state;
    seen *seen;
    size_t count;
    size_t capacity;
    nt_map index;    /* address -> in seen */
    uint32_t *queue; /* those that go and were not followed yet */
    size_t queued;
    size_t queue_capacity;
    uint32_t owner; /* of the object that is being followed */
    nt_status status;
} extra_round;

/* A type is never freed with an instance; what the collector does not track is no
 * tensor and keeps none. */
static bool
extra_counts(const extra_round *round, PyObject *object)
{
    if (!PyObject_IS_GC(object) || PyType_Check(object) || PyModule_Check(object)) {
        return false;
    }
    const uint32_t node = ph_heap_find(round->state->heap, object);
    return node == NT_NONE || !nt_bitset_has(round->state->set, node);
}

static nt_status
extra_add(extra_round *round, PyObject *object, uint32_t *found)
{
    const nt_alloc *alloc = &round->state->alloc;
    if (round->count >= MOST_EXTRAS) {
        return NT_OK;
    }
    NT_TRY(NT_GROW(alloc, round->seen, round->capacity, round->count + 1, NULL));
    NT_TRY(nt_map_set(&round->index, (uintptr_t)object, (uint32_t)round->count, NULL));
    round->seen[round->count] = (seen){.object = object, .owner = NT_NONE};
    *found = (uint32_t)round->count++;
    return NT_OK;
}

static nt_status
extra_see(extra_round *round, PyObject *object)
{
    uint32_t at = nt_map_find(&round->index, (uintptr_t)object);
    if (at == NT_NONE) {
        NT_TRY(extra_add(round, object, &at));
        if (at == NT_NONE) {
            return NT_OK;
        }
    }
    seen *entry = &round->seen[at];
    entry->references++;
    entry->owner = round->owner < entry->owner ? round->owner : entry->owner;
    if (entry->goes || entry->references != Py_REFCNT(object)) {
        return NT_OK;
    }
    entry->goes = true;
    NT_TRY(NT_GROW(&round->state->alloc, round->queue, round->queue_capacity,
                   round->queued + 1, NULL));
    round->queue[round->queued++] = at;
    return NT_OK;
}

static int
extra_visit(PyObject *object, void *arg)
{
    extra_round *round = arg;
    if (extra_counts(round, object)) {
        round->status = extra_see(round, object);
    }
    return round->status != NT_OK;
}

static nt_status
extra_follow(extra_round *round, PyObject *object, uint32_t owner)
{
    const traverseproc traverse = Py_TYPE(object)->tp_traverse;
    round->owner = owner;
    if (traverse != NULL) {
        (void)traverse(object, extra_visit, round);
    }
    return round->status;
}

static nt_status
extra_keep(ph_state *s, const seen *entry)
{
    NT_TRY(nt_map_set(&s->extra_index, (uintptr_t)entry->object,
                      s->count + s->extra_count, NULL));
    s->extras[s->extra_count] = entry->object;
    s->extra_owner[s->extra_count] = entry->owner;
    s->extra_count++;
    return NT_OK;
}

static void
extra_clear(ph_state *s)
{
    NT_RELEASE(&s->alloc, s->extras, s->extra_capacity);
    NT_RELEASE(&s->alloc, s->extra_owner, s->extra_capacity);
    nt_map_clear(&s->extra_index);
    s->extras = NULL;
    s->extra_owner = NULL;
    s->extra_count = 0;
    s->extra_capacity = 0;
}

static nt_status
extra_collect(ph_state *s, const extra_round *round)
{
    size_t going = 0;
    for (size_t i = 0; i < round->count; i++) {
        going += round->seen[i].goes;
    }
    if (going == 0) {
        return NT_OK;
    }
    extra_clear(s);
    s->extra_capacity = going;
    s->extras = nt_allocate(&s->alloc, going * sizeof(PyObject *));
    s->extra_owner = nt_allocate(&s->alloc, going * sizeof(uint32_t));
    if (s->extras == NULL || s->extra_owner == NULL) {
        return NT_NOMEM;
    }
    for (size_t i = 0; i < round->count; i++) {
        if (round->seen[i].goes) {
            NT_TRY(extra_keep(s, &round->seen[i]));
        }
    }
    return NT_OK;
}

/* Fills the extras, in place of what was there. */
static nt_status
ph_describe_extras(ph_state *s, nt_error *err)
{
    extra_round round = {.state = s};
    nt_map_init(&round.index, s->alloc);
    nt_status status = NT_OK;
    for (size_t node = nt_bitset_next(s->set, 0); node != NT_NO_MEMBER;
         node = nt_bitset_next(s->set, node + 1)) {
        NT_TRY_DONE(extra_follow(&round, ph_heap_object(s->heap, (uint32_t)node),
                                 s->owner == NULL ? 0 : s->owner[node]));
    }
    for (size_t done = 0; done < round.queued; done++) {
        const seen entry = round.seen[round.queue[done]];
        NT_TRY_DONE(extra_follow(&round, entry.object, entry.owner));
    }
    status = extra_collect(s, &round);
done:
    NT_RELEASE(&s->alloc, round.seen, round.capacity);
    NT_RELEASE(&s->alloc, round.queue, round.queue_capacity);
    nt_map_clear(&round.index);
    return status == NT_OK ? NT_OK : nt_fail_nomem(err);
}

/* ---- a way in words -------------------------------------------------------------- */

/*
 * A way through the objects in words. An instance's dict, a closure's tuple and its
 * cells are how Python holds an attribute or a variable; to a reader each is one step:
 *
 *     object --__dict__--> dict --'next'--> other        object --.next--> other
 *     function --__closure__--> tuple --0--> cell --cell_contents--> other
 *                                                        function --closure x--> other
 */

/* Steps of a longer way that go into its signature. */
#define MOST_SIGNED 4096

/* Of a longer way only so many steps from its beginning and from its end are named: the
 * others are neither shown nor signed by name. */
#define MOST_NAMED 4096
#define NAMED_AT_AN_END 64

/* A copy of a text in the arena; NULL when memory runs out. */
static const char *
chain_copy(nt_arena *arena, const char *text)
{
    return (const char *)nt_arena_copy(arena, text, strlen(text) + 1);
}

/* A way while it is made: nodes with what the reference to the next one is called. */
typedef struct chain {
    ph_state *state;
    ph_step *steps;
    uint32_t count;
    bool closed;
} chain;

/* The object `by` steps after the one at `at`, or NULL behind the end of an open way.
 */
static PyObject *
chain_object(const chain *c, uint32_t at, uint32_t by)
{
    if (!c->closed && at + by >= c->count) {
        return NULL;
    }
    return ph_state_object(c->state, c->steps[(at + by) % c->count].node);
}

static nt_status
chain_set(chain *c, ph_step *step, ph_edge_kind kind, const char *name)
{
    step->kind = kind;
    step->name = chain_copy(&c->state->scratch, name);
    return step->name == NULL ? NT_NOMEM : NT_OK;
}

/* Whether the object at `at` is only how the one before it keeps the one after it. */
static bool
chain_inner(const chain *c, uint32_t at)
{
    ph_edge_kind kind;
    char name[PH_NAME_BYTES];
    const uint32_t before = at == 0 ? c->count - 1 : at - 1;
    PyObject *object = chain_object(c, at, 0);
    return PyCell_Check(object) ||
           ph_names_through(chain_object(c, before, 0), object, chain_object(c, at, 1),
                            &kind, name);
}

/* Names the reference from `at`, and says over how many raw steps it leads. */
static nt_status
chain_merge(chain *c, uint32_t at, ph_step *merged, uint32_t *taken)
{
    ph_edge_kind kind = PH_EDGE_OTHER;
    char name[PH_NAME_BYTES] = "";
    PyObject *object = chain_object(c, at, 0);
    PyObject *next = chain_object(c, at, 1);
    PyObject *third = chain_object(c, at, 2);
    *merged = c->steps[at];
    *taken = 1;
    if (next == NULL) {
        return chain_set(c, merged, kind, name);
    }
    if (third == NULL || !ph_names_through(object, next, third, &kind, name)) {
        (void)ph_names_find(object, next, &kind, name);
        return chain_set(c, merged, kind, name);
    }
    *taken = 2;
    if (PyCell_Check(third) && chain_object(c, at, 3) != NULL) {
        *taken = 3;
        kind = PH_EDGE_VARIABLE;
    }
    return chain_set(c, merged, kind, name);
}

/* Begins a closed way at an object that a reader knows. */
static void
chain_rotate(ph_step *steps, uint32_t count, uint32_t by)
{
    if (by == 0) {
        return;
    }
    /* Three reversals turn an array in place. */
    const uint32_t ends[3][2] = {{0, by}, {by, count}, {0, count}};
    for (int part = 0; part < 3; part++) {
        uint32_t low = ends[part][0], high = ends[part][1];
        while (low + 1 < high) {
            const ph_step kept = steps[low];
            steps[low++] = steps[--high];
            steps[high] = kept;
        }
    }
}

static void
chain_open(chain *c)
{
    for (uint32_t at = 0; at < c->count; at++) {
        if (!chain_inner(c, at)) {
            chain_rotate(c->steps, c->count, at);
            return;
        }
    }
}

/* The references along `nodes` (with the one from the last to the first if `closed`) by
 * their names, steps that are one to a reader made one. The steps are in the scratch
 * arena; an open way's last step has no name. */
static nt_status
ph_describe_steps(ph_state *s, const uint32_t *nodes, uint32_t count, bool closed,
                  ph_step **steps, uint32_t *step_count, nt_error *err)
{
    ph_step *raw = nt_arena_take(&s->scratch, count * sizeof *raw, _Alignof(ph_step));
    ph_step *made = nt_arena_take(&s->scratch, count * sizeof *raw, _Alignof(ph_step));
    if (raw == NULL || made == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t at = 0; at < count; at++) {
        raw[at] = (ph_step){.node = nodes[at], .holder = nodes[at]};
    }
    chain c = {.state = s, .steps = raw, .count = count, .closed = closed};
    if (closed) {
        chain_open(&c);
    }
    uint32_t made_count = 0;
    for (uint32_t at = 0, taken; at < count; at += taken) {
        if (count > MOST_NAMED && at >= NAMED_AT_AN_END &&
            at < count - NAMED_AT_AN_END) {
            made[made_count++] = raw[at];
            made[made_count - 1].name = "";
            taken = 1;
        } else if (chain_merge(&c, at, &made[made_count++], &taken) != NT_OK) {
            return nt_fail_nomem(err);
        }
        made[made_count - 1].holder = raw[(at + taken - 1) % count].node;
    }
    *steps = made;
    *step_count = made_count;
    return NT_OK;
}

static uint64_t
chain_hash(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    }
    return nt_mix64(hash);
}

/* A position or a key differs between objects of one shape; an attribute does not. */
static bool
chain_named_alike(ph_edge_kind kind)
{
    return kind != PH_EDGE_VALUE && kind != PH_EDGE_KEY && kind != PH_EDGE_ITEM;
}

static uint64_t
chain_step_hash(const ph_state *s, const ph_step *step)
{
    ph_label label;
    ph_names_label(ph_state_object(s, step->node), &label);
    uint64_t hash = chain_hash(UINT64_C(0xcbf29ce484222325), label.type);
    if (label.kind == PH_NODE_FUNCTION || label.kind == PH_NODE_METHOD ||
        label.kind == PH_NODE_FRAME) {
        hash = chain_hash(hash, label.text);
    }
    hash = nt_mix64(hash ^ (uint64_t)step->kind);
    return chain_named_alike(step->kind) ? chain_hash(hash, step->name) : hash;
}

/* The same for every cycle of the same shape, wherever it begins. */
static uint64_t
ph_describe_signature(const ph_state *s, const ph_step *steps, uint32_t count)
{
    /* A sum over neighbours does not depend on where the round begins. */
    const uint32_t last = count < MOST_SIGNED ? count : MOST_SIGNED;
    const uint64_t first = chain_step_hash(s, &steps[0]);
    uint64_t hash = first, sum = nt_mix64(count);
    for (uint32_t at = 0; at < last; at++) {
        const uint64_t next =
            at + 1 == last ? first : chain_step_hash(s, &steps[at + 1]);
        sum += nt_mix64(hash * 3 + next);
        hash = next;
    }
    return sum;
}

#define MOST_RANK 5

/* The smaller, the better a reader knows it. */
static int
chain_rank(const ph_label *label)
{
    switch (label->kind) {
    case PH_NODE_OBJECT: return 0;
    case PH_NODE_TENSOR: return 1;
    case PH_NODE_EXCEPTION: return 2;
    case PH_NODE_FRAME: return 3;
    case PH_NODE_FUNCTION: return 4;
    default: return MOST_RANK;
    }
}

/* Where a step stands among those that a way may begin with: by rank, type, name. */
typedef struct chain_place {
    int rank;
    char type[PH_NAME_BYTES];
    const char *name;
} chain_place;

static bool
chain_before(const chain_place *one, const chain_place *other)
{
    if (one->rank != other->rank) {
        return one->rank < other->rank;
    }
    const int types = strcmp(one->type, other->type);
    return types != 0 ? types < 0 : strcmp(one->name, other->name) < 0;
}

/* Turns a closed way so that it begins with what its reader knows best. */
static void
ph_describe_turn(const ph_state *s, ph_step *steps, uint32_t count)
{
    uint32_t best = 0;
    chain_place best_place = {.rank = MOST_RANK + 1, .name = ""};
    for (uint32_t at = 0; at < count && at < MOST_SIGNED; at++) {
        ph_label label;
        ph_names_label(ph_state_object(s, steps[at].node), &label);
        chain_place place = {.rank = chain_rank(&label), .name = steps[at].name};
        memcpy(place.type, label.type, sizeof place.type);
        if (chain_before(&place, &best_place)) {
            best = at;
            best_place = place;
        }
    }
    chain_rotate(steps, count, best);
}

/* ---- the picture of a cycle ------------------------------------------------------ */

/* The picture of one cycle: the way round, its middle folded where it is long, and the
 * shortest ways from it to the largest tensors that it keeps. */

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
           uint32_t number, bool in_cycle)
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
                                                  .step = number,
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
            NT_TRY(graph_edge(round, last, id, &steps[last_at], last_at, true));
        }
        last = id;
        last_at = at;
    }
    round->cycle->chain_length = round->cycle->node_count;
    return graph_edge(round, last, first, &steps[count - 1], count - 1, true);
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
    NT_TRY(NT_GROW(alloc, round->queue, round->queue_capacity, count, NULL));
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
    NT_TRY(NT_GROW(&round->state->alloc, round->queue, round->queue_capacity,
                   round->queued + 1, NULL));
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
            NT_TRY(graph_edge(round, source, target, &steps[i], i, false));
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

/* Nodes and edges of `cycle`: the way round, and the ways from it
 * to the largest tensors of the component. */
static nt_status
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
    NT_RELEASE(&s->alloc, round.queue, round.queue_capacity);
    nt_release(&s->alloc, round.way, round.way != NULL ? graph_way_bytes(&round) : 0);
    return status == NT_OK ? NT_OK : nt_fail_nomem(err);
}

/* ---- the living heap ------------------------------------------------------------- */

/* Which part of the living heap is looked at for cycles. A module's namespace refers to
 * its functions, and each of them back to the namespace; classes refer to their bases
 * and methods. Left in, these make one component of most of a program. */

static void
live_collect(const ph_heap *heap, const nt_bitset *dead, nt_bitset *live)
{
    const uint32_t count = ph_heap_count(heap);
    for (uint32_t node = 0; node < count; node++) {
        PyObject *object = ph_heap_object(heap, node);
        const bool left_out = PyType_Check(object) || PyModule_Check(object);
        if (!left_out && !nt_bitset_has(dead, node)) {
            nt_bitset_add(live, node);
        }
    }
    for (uint32_t node = 0; node < count; node++) {
        PyObject *object = ph_heap_object(heap, node);
        if (PyModule_Check(object)) {
            const uint32_t names = ph_heap_find(heap, PyModule_GetDict(object));
            if (names != NT_NONE) {
                nt_bitset_remove(live, names);
            }
        } else if (PyFunction_Check(object)) {
            /* What runs by exec has a namespace without a module. */
            const uint32_t names = ph_heap_find(heap, PyFunction_GET_GLOBALS(object));
            if (names != NT_NONE) {
                nt_bitset_remove(live, names);
            }
        }
    }
}

nt_status
ph_describe_live(const ph_heap *heap, const nt_bitset *dead, nt_bitset *live,
                 uint32_t *cut, nt_error *err)
{
    const uint32_t count = ph_heap_count(heap);
    NT_TRY(nt_bitset_init(live, nt_alloc_system(), count, err));
    live_collect(heap, dead, live);
    uint32_t left = 0;
    for (uint32_t node = 0; node < count; node++) {
        left += !nt_bitset_has(live, node) && !nt_bitset_has(dead, node);
    }
    *cut = left;
    return NT_OK;
}

/* ---- the description ------------------------------------------------------------- */

/* Components of the set, the cycle that keeps each object, the tensors that each cycle
 * keeps; then, for each that keeps wanted ones, its shape, and one description a
 * shape. */

/* In a component of at most so many objects the shortest way round is looked for from
 * each; in a larger one from a few, and then it may not be the shortest of all. */
#define TRY_EACH 32
#define TRY_SOME 4

/* And in one of more than this from one, since each look may go through all of it. */
#define TRY_LARGE 4096

/* ---- which cycle keeps what ------------------------------------------------------ */

static nt_status
describe_allocate(ph_state *s, void **array, size_t count, size_t element)
{
    *array = nt_allocate(&s->alloc, (count + 1) * element);
    return *array == NULL ? NT_NOMEM : NT_OK;
}

/* The members of each component, one after the other. */
static nt_status
describe_members(ph_state *s)
{
    NT_TRY(describe_allocate(s, (void **)&s->member_first, s->components + 1,
                             sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->members, s->count, sizeof(uint32_t)));
    uint32_t sum = 0;
    for (uint32_t c = 0; c < s->components; c++) {
        s->member_first[c] = sum;
        sum += s->sizes[c];
    }
    s->member_first[s->components] = sum;
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        s->members[s->member_first[s->component[n]]++] = (uint32_t)n;
    }
    for (uint32_t c = s->components; c-- > 0;) {
        s->member_first[c + 1] = s->member_first[c];
    }
    s->member_first[0] = 0;
    return NT_OK;
}

static nt_status
describe_components(ph_state *s, nt_error *err)
{
    NT_TRY(describe_allocate(s, (void **)&s->component, s->count, sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->owner, s->count, sizeof(uint32_t)));
    NT_TRY(nt_graph_components(s->graph, s->set, s->component, &s->components, err));
    NT_TRY(describe_allocate(s, (void **)&s->sizes, s->components, sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->cyclic, s->components, sizeof(bool)));
    nt_graph_component_facts(s->graph, s->component, s->components, s->sizes,
                             s->cyclic);
    NT_TRY(nt_graph_owners(s->graph, s->component, s->components, s->owner, err));
    return describe_members(s);
}

static bool
describe_wanted(const ph_describe_options *options, const ph_tensor *tensor)
{
    switch (options->device_type) {
    case PH_ANY_DEVICE: return true;
    case PH_ACCELERATORS:
        return tensor->device_type != PH_DEVICE_CPU &&
               tensor->device_type != PH_DEVICE_META;
    default:
        return tensor->device_type == options->device_type &&
               (options->device_index < 0 ||
                tensor->device_index == options->device_index);
    }
}

/* Adds to the bytes of a device; the last entry takes what has no place. */
static void
describe_add_device(ph_device_bytes *devices, uint32_t *count, uint32_t most,
                    int16_t type, int16_t index, uint64_t bytes)
{
    uint32_t at = 0;
    while (at < *count && (devices[at].type != type || devices[at].index != index)) {
        at++;
    }
    if (at == *count && *count < most) {
        devices[(*count)++] = (ph_device_bytes){.type = type, .index = index};
    }
    devices[at < most ? at : most - 1].bytes += bytes;
}

/* Keeps the four largest tensors of a component, the largest first. */
static void
describe_rank(ph_component *kept, uint32_t node, uint64_t bytes)
{
    const uint32_t filled = kept->tensors < 4 ? kept->tensors : 4;
    uint32_t at = filled;
    while (at > 0 && kept->top_bytes[at - 1] < bytes) {
        at--;
    }
    if (at == 4) {
        return;
    }
    const uint32_t moved = (filled < 4 ? filled : 3) - at;
    memmove(&kept->top[at + 1], &kept->top[at], moved * sizeof kept->top[0]);
    memmove(&kept->top_bytes[at + 1], &kept->top_bytes[at],
            moved * sizeof kept->top_bytes[0]);
    kept->top[at] = node;
    kept->top_bytes[at] = bytes;
}

static nt_status
describe_kept(ph_state *s, uint32_t component, ph_component **out)
{
    uint32_t at = nt_map_find(&s->found, component);
    if (at == NT_NONE) {
        NT_TRY(NT_GROW(&s->alloc, s->kept, s->kept_capacity, s->kept_count + 1, NULL));
        NT_TRY(nt_map_set(&s->found, component, (uint32_t)s->kept_count, NULL));
        at = (uint32_t)s->kept_count++;
        s->kept[at] = (ph_component){.component = component, .cycle = NT_NONE};
    }
    *out = &s->kept[at];
    return NT_OK;
}

/* Counts a tensor to the cycle that keeps it, its storage once. */
static nt_status
describe_tensor(ph_state *s, uint32_t node)
{
    ph_tensor tensor;
    PyObject *object = ph_state_object(s, node);
    if (!ph_tensor_check(object) || !ph_tensor_read(object, &tensor) ||
        !describe_wanted(&s->options, &tensor)) {
        return NT_OK;
    }
    uint64_t bytes = tensor.storage_bytes;
    if (tensor.storage != 0) {
        uint32_t before;
        NT_TRY(nt_map_swap(&s->storages, tensor.storage, 1, &before, NULL));
        bytes = before == NT_NONE ? bytes : 0;
    }
    if (s->options.dying && bytes > 0 && tensor.data_ptr != 0) {
        ph_cycles *out = s->out;
        NT_TRY(NT_GROW(&s->alloc, out->storages, out->storage_capacity,
                       out->storage_count + 1, NULL));
        out->storages[out->storage_count++] = tensor.data_ptr;
    }
    const uint32_t owner = ph_state_owner(s, node);
    if (owner == NT_NONE) {
        s->out->loose_bytes += bytes;
        return NT_OK;
    }
    ph_component *kept;
    NT_TRY(describe_kept(s, owner, &kept));
    describe_rank(kept, node, bytes);
    kept->tensors++;
    kept->bytes += bytes;
    describe_add_device(kept->devices, &kept->device_count, 4, tensor.device_type,
                        tensor.device_index, bytes);
    return NT_OK;
}

static nt_status
describe_tensors(ph_state *s)
{
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        NT_TRY(describe_tensor(s, (uint32_t)n));
    }
    for (uint32_t i = 0; i < s->extra_count; i++) {
        NT_TRY(describe_tensor(s, s->count + i));
    }
    return NT_OK;
}

/* ---- shapes ---------------------------------------------------------------------- */

/* A short way round a component. */
static nt_status
describe_way(ph_state *s, uint32_t component, uint32_t **way, uint32_t *length,
             nt_error *err)
{
    const uint32_t size = s->sizes[component];
    const uint32_t *members = s->members + s->member_first[component];
    const uint32_t tries = size <= TRY_EACH ? size : size <= TRY_LARGE ? TRY_SOME : 1;
    *way = NULL;
    *length = 0;
    for (uint32_t i = 0; i < tries && *length != 1; i++) {
        uint32_t *tried, tried_length;
        const uint32_t from = members[(uint64_t)i * size / tries];
        NT_TRY(
            nt_graph_cycle(s->graph, s->component, from, &tried, &tried_length, err));
        if (tried != NULL && (*way == NULL || tried_length < *length)) {
            NT_RELEASE(&s->graph->alloc, *way, *length);
            *way = tried;
            *length = tried_length;
        } else {
            NT_RELEASE(&s->graph->alloc, tried, tried_length);
        }
        /* Nothing is shorter than two objects that refer to each other, unless one
         * refers to itself, and that one says so from where it stands. */
        if (*length == 2 && size == 2) {
            break;
        }
    }
    return NT_OK;
}

static void
describe_forget_way(ph_state *s)
{
    NT_RELEASE(&s->graph->alloc, s->way, s->way_length);
    s->way = NULL;
    s->way_length = 0;
}

static nt_status
describe_steps_of(ph_state *s, uint32_t component, ph_step **steps, uint32_t *count,
                  uint32_t *length, nt_error *err)
{
    nt_arena_clear(&s->scratch);
    if (s->way == NULL || s->way_component != component) {
        describe_forget_way(s);
        s->way_component = component;
        NT_TRY(describe_way(s, component, &s->way, &s->way_length, err));
    }
    *length = s->way_length;
    *count = 0;
    return s->way == NULL
               ? NT_OK
               : ph_describe_steps(s, s->way, s->way_length, true, steps, count, err);
}

static nt_status
describe_new_cycle(ph_state *s, uint64_t signature, uint32_t *out)
{
    ph_cycles *cycles = s->out;
    NT_TRY(NT_GROW(&s->alloc, cycles->cycles, s->cycle_capacity,
                   (size_t)cycles->count + 1, NULL));
    cycles->cycles[cycles->count] = (ph_cycle){.signature = signature};
    *out = cycles->count++;
    return NT_OK;
}

/* Counts a component to the entry of its shape, which `shapes` finds. */
static nt_status
describe_count(ph_state *s, nt_map *shapes, ph_component *kept, uint64_t signature)
{
    kept->cycle = nt_map_find(shapes, signature);
    if (kept->cycle == NT_NONE) {
        NT_TRY(describe_new_cycle(s, signature, &kept->cycle));
        NT_TRY(nt_map_set(shapes, signature, kept->cycle, NULL));
    }
    ph_cycle *cycle = &s->out->cycles[kept->cycle];
    cycle->count++;
    cycle->tensors += kept->tensors;
    cycle->bytes += kept->bytes;
    for (uint32_t i = 0; i < kept->device_count; i++) {
        describe_add_device(cycle->devices, &cycle->device_count, PH_MOST_DEVICES,
                            kept->devices[i].type, kept->devices[i].index,
                            kept->devices[i].bytes);
    }
    s->out->components++;
    s->out->bytes += kept->bytes;
    return NT_OK;
}

static nt_status
describe_shapes(ph_state *s, nt_map *shapes, nt_error *err)
{
    for (size_t i = 0; i < s->kept_count; i++) {
        ph_component *kept = &s->kept[i];
        if (kept->bytes < s->options.min_bytes) {
            continue;
        }
        ph_step *steps;
        uint32_t count, length;
        NT_TRY(
            describe_steps_of(s, s->kept[i].component, &steps, &count, &length, err));
        if (count > 0) {
            NT_TRY(describe_count(s, shapes, kept,
                                  ph_describe_signature(s, steps, count)));
        }
    }
    return NT_OK;
}

/* ---- the cut --------------------------------------------------------------------- */

/* Any reference of a way round breaks it. The one to name is the one that programs need
 * least: a stored bound method, a closed-over variable, an exception kept in its own
 * frame, a reference back to a parent; and one of the program rather than of a library.
 * It is proved: with the references that were chosen so far taken out of the component,
 * further ones are chosen until no cycle is left that keeps a wanted tensor. */

#define CUT_OF_PROGRAM 16 /* above every rank of its kind */

static bool
cut_any_source(const ph_node *nodes, const ph_edge *way, uint32_t count,
               ph_node_kind kind)
{
    for (uint32_t at = 0; at < count; at++) {
        if (nodes[way[at].source].kind == kind) {
            return true;
        }
    }
    return false;
}

/* Whether a weak reference is no help: the type allows none, or it would die at once.
 */
static bool
cut_hides_its_use(const ph_node *target)
{
    return target->is_strong || strcmp(target->type, "functools.partial") == 0;
}

/* Whether an attribute or a key usually refers back to an owner: "trainer", "_parent",
 * "model_ctx", each with or without a number behind it. */
static bool
cut_leads_back(const char *name)
{
    static const char *const words[] = {
        "parent", "owner",   "root",    "prev",      "back", "up",  "previous",
        "outer",  "trainer", "manager", "container", "ctx",  "self"};
    const char *end = name + strlen(name);
    while (end > name && (end[-1] == '\'' || (end[-1] >= '0' && end[-1] <= '9'))) {
        end--;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(end - name) < length ||
            memcmp(end - length, words[i], length) != 0) {
            continue;
        }
        if (end - length == name || end[-(ptrdiff_t)length - 1] == '_' ||
            end[-(ptrdiff_t)length - 1] == '\'') {
            return true;
        }
    }
    return false;
}

static int
cut_rank_of_kind(ph_edge_kind kind)
{
    switch ((int)kind) {
    case PH_EDGE_SELF: return 9;
    case PH_EDGE_VARIABLE:
    case PH_EDGE_DEFAULT: return 7;
    case PH_EDGE_CALLBACK: return 6;
    case PH_EDGE_ATTRIBUTE:
    case PH_EDGE_LOCAL:
    case PH_EDGE_AUTOGRAD: return 5;
    case PH_EDGE_VALUE:
    case PH_EDGE_ITEM:
    case PH_EDGE_MEMBER:
    case PH_EDGE_GLOBAL: return 4;
    case PH_EDGE_CLASS:
    case PH_EDGE_FIELD: return 3;
    case PH_EDGE_FUNCTION: return 2;
    case PH_EDGE_TYPE:
    case PH_EDGE_GLOBALS:
    case PH_EDGE_CELL:
    case PH_EDGE_CLOSURE:
    case PH_EDGE_INSTANCE_DICT: return 0;
    default: return 1;
    }
}

/* How easily a program does without a reference; higher is easier. */
static int
cut_rank(const ph_node *nodes, const ph_edge *way, uint32_t count, uint32_t at)
{
    const ph_edge *edge = &way[at];
    const ph_node *source = &nodes[edge->source], *target = &nodes[edge->target];
    const bool is_attribute = edge->kind == PH_EDGE_ATTRIBUTE;
    const bool is_value = edge->kind == PH_EDGE_VALUE;
    const bool is_item = edge->kind == PH_EDGE_ITEM;
    if (source->kind == PH_NODE_TYPE && strcmp(edge->name, "__mro__") == 0) {
        return 12;
    }
    if ((is_attribute || is_value || is_item) && target->kind == PH_NODE_EXCEPTION) {
        return cut_any_source(nodes, way, count, PH_NODE_TRACEBACK) ? 11 : 5;
    }
    if (is_item && strcmp(source->type, "tuple") == 0) {
        const ph_edge *before = &way[(at + count - 1) % count];
        const char *holder = nodes[before->source].type;
        return strcmp(holder, "functools.partial") == 0 ? 6 : 2;
    }
    if (is_attribute && cut_hides_its_use(target)) {
        return 3;
    }
    if (edge->kind == PH_EDGE_LOCAL &&
        cut_any_source(nodes, way, count, PH_NODE_EXCEPTION)) {
        return 10;
    }
    if ((is_attribute || is_value) && cut_leads_back(edge->name)) {
        return 8;
    }
    return cut_rank_of_kind(edge->kind);
}

/* Whether a file is of an installed package or of Python's library. */
static bool
cut_in_library(const char *file)
{
    return strstr(file, "/site-packages/") != NULL ||
           strstr(file, "/dist-packages/") != NULL ||
           strstr(file, "/lib/python3.") != NULL;
}

/* Whether the program's own code holds a reference: a container is its keeper's. */
static bool
cut_is_own(const ph_node *nodes, const ph_edge *way, uint32_t count, uint32_t at)
{
    for (uint32_t back = 0; back < count; back++) {
        const char *file = nodes[way[(at + count - back) % count].source].file;
        if (file[0] != '\0') {
            return !cut_in_library(file);
        }
    }
    return false;
}

uint32_t
ph_cut_choose(const ph_node *nodes, const ph_edge *way, uint32_t count)
{
    uint32_t best = 0;
    int best_rank = -1;
    for (uint32_t at = 0; at < count; at++) {
        int rank = cut_rank(nodes, way, count, at);
        if (rank > 0 && cut_is_own(nodes, way, count, at)) {
            rank += CUT_OF_PROGRAM;
        }
        if (rank >= best_rank) {
            best = at;
            best_rank = rank;
        }
    }
    return best;
}

/* So many references of one component are named, */
#define MOST_CUTS 8

/* and nothing is proved of a component that keeps more objects than this. */
#define MOST_PROVED (1u << 17)

/* What a component keeps, as a graph of its own from which references are taken out. */
typedef struct cut_round {
    ph_state *state;
    uint32_t component;
    nt_map local;      /* number of an object -> its number here */
    uint32_t *numbers; /* the other way round */
    size_t count;
    size_t capacity;
    bool *wanted; /* of each object here: a tensor that was asked about */
    nt_graph graph;
    uint32_t *parts; /* the components that are left */
    uint32_t *owners;
    uint32_t part_count;
} cut_round;

static nt_status
cut_add(cut_round *round, uint32_t number)
{
    if (nt_map_find(&round->local, number) != NT_NONE) {
        return NT_OK;
    }
    NT_TRY(NT_GROW(&round->state->alloc, round->numbers, round->capacity,
                   round->count + 1, NULL));
    NT_TRY(nt_map_set(&round->local, number, (uint32_t)round->count, NULL));
    round->numbers[round->count++] = number;
    return NT_OK;
}

/* The component's objects, and behind them what it keeps; of a set that is dead, all of
 * it: what leads to the component from another cycle keeps it, too. */
static nt_status
cut_gather(cut_round *round)
{
    const ph_state *s = round->state;
    const uint32_t *members = s->members + s->member_first[round->component];
    for (uint32_t i = 0; i < s->sizes[round->component]; i++) {
        NT_TRY(cut_add(round, members[i]));
    }
    if (s->options.dying) {
        for (size_t n = nt_bitset_next(s->set, 0);
             n != NT_NO_MEMBER && round->count <= MOST_PROVED;
             n = nt_bitset_next(s->set, n + 1)) {
            NT_TRY(cut_add(round, (uint32_t)n));
        }
        return NT_OK;
    }
    for (size_t at = 0; at < round->count && round->count <= MOST_PROVED; at++) {
        const uint32_t number = round->numbers[at];
        for (uint32_t e = s->graph->first[number]; e < s->graph->first[number + 1];
             e++) {
            if (s->owner[s->graph->targets[e]] == round->component) {
                NT_TRY(cut_add(round, s->graph->targets[e]));
            }
        }
    }
    return NT_OK;
}

/* The references between the objects; their number. With `targets` NULL they are only
 * counted. */
static uint32_t
cut_references(const cut_round *round, uint32_t *first, uint32_t *targets)
{
    const nt_graph *graph = round->state->graph;
    uint32_t count = 0;
    for (size_t at = 0; at < round->count; at++) {
        const uint32_t number = round->numbers[at];
        if (targets != NULL) {
            first[at] = count;
        }
        for (uint32_t e = graph->first[number]; e < graph->first[number + 1]; e++) {
            const uint32_t target = nt_map_find(&round->local, graph->targets[e]);
            if (target != NT_NONE) {
                if (targets != NULL) {
                    targets[count] = target;
                }
                count++;
            }
        }
    }
    return count;
}

/* Which of the objects are wanted tensors; where none is in the walk, as what only the
 * set keeps is not, all that the cycle goes through. */
static void
cut_find_wanted(cut_round *round)
{
    const ph_state *s = round->state;
    bool any = false;
    for (size_t at = 0; at < round->count; at++) {
        ph_tensor tensor;
        PyObject *object = ph_state_object(s, round->numbers[at]);
        round->wanted[at] = s->owner[round->numbers[at]] == round->component &&
                            ph_tensor_check(object) &&
                            ph_tensor_read(object, &tensor) &&
                            describe_wanted(&s->options, &tensor);
        any = any || round->wanted[at];
    }
    for (uint32_t at = 0; !any && at < s->sizes[round->component]; at++) {
        round->wanted[at] = true;
    }
}

/* Takes all references from one object to another out: they lead to the last node
 * instead, which refers to nothing. How many there were. */
static uint32_t
cut_remove(cut_round *round, uint32_t holder, uint32_t target)
{
    nt_graph *graph = &round->graph;
    const uint32_t from = nt_map_find(&round->local, holder);
    const uint32_t to = nt_map_find(&round->local, target);
    uint32_t removed = 0;
    for (uint32_t e = graph->first[from]; e < graph->first[from + 1]; e++) {
        if (graph->targets[e] == to) {
            graph->targets[e] = graph->node_count - 1;
            removed++;
        }
    }
    return removed;
}

/* *node gets an object of a cycle that still keeps a wanted tensor, or NT_NONE. */
static nt_status
cut_left(cut_round *round, uint32_t *node, nt_error *err)
{
    *node = NT_NONE;
    NT_TRY(nt_graph_components(&round->graph, NULL, round->parts, &round->part_count,
                               err));
    NT_TRY(nt_graph_owners(&round->graph, round->parts, round->part_count,
                           round->owners, err));
    uint32_t part = NT_NONE;
    for (size_t at = 0; at < round->count && part == NT_NONE; at++) {
        part = round->wanted[at] ? round->owners[at] : NT_NONE;
    }
    for (uint32_t at = 0; part != NT_NONE && *node == NT_NONE; at++) {
        *node = round->parts[at] == part ? at : NT_NONE;
    }
    return NT_OK;
}

/* A further way round, through a node of the component as it is by now, with the
 * reference to break. */
static nt_status
cut_further(cut_round *round, uint32_t node, ph_step **steps, uint32_t *count,
            ph_cut *cut, nt_error *err)
{
    ph_state *s = round->state;
    uint32_t *way, length;
    nt_status status;
    ph_cycle drawn = {.signature = 0};
    graph_round graph = {.state = s, .cycle = &drawn};
    NT_TRY(nt_graph_cycle(&round->graph, round->parts, node, &way, &length, err));
    nt_map_init(&graph.ids, s->alloc);
    for (uint32_t at = 0; at < length; at++) {
        way[at] = round->numbers[way[at]];
    }
    NT_TRY_DONE(ph_describe_steps(s, way, length, true, steps, count, err));
    ph_describe_turn(s, *steps, *count);
    NT_TRY_DONE(graph_way(&graph, *steps, *count));
    *cut = (ph_cut){.nodes = drawn.nodes,
                    .node_count = drawn.node_count,
                    .edges = drawn.edges,
                    .edge_count = drawn.edge_count,
                    .edge = ph_cut_choose(drawn.nodes, drawn.edges, drawn.edge_count)};
done:
    nt_map_clear(&graph.ids);
    NT_RELEASE(&round->graph.alloc, way, length);
    return status == NT_NOMEM ? nt_fail_nomem(err) : status;
}

/* Chooses one cut after the other, the first on the way round that is drawn. */
static nt_status
cut_all(cut_round *round, ph_step *steps, uint32_t count, ph_cycle *cycle,
        nt_error *err)
{
    ph_cut *cut = cycle->cuts;
    for (uint32_t node;; cut++) {
        const uint32_t step = cut->edges[cut->edge].step;
        cut->references =
            cut_remove(round, steps[step].holder, steps[(step + 1) % count].node);
        NT_TRY(cut_left(round, &node, err));
        cycle->is_proved = node == NT_NONE;
        if (cycle->is_proved || cycle->cut_count == MOST_CUTS) {
            return NT_OK;
        }
        NT_TRY(cut_further(round, node, &steps, &count, cut + 1, err));
        cycle->cut_count++;
    }
}

static nt_status
cut_prove(cut_round *round, ph_step *steps, uint32_t count, ph_cycle *cycle,
          nt_error *err)
{
    const nt_alloc *alloc = &round->state->alloc;
    nt_status status;
    NT_TRY(cut_gather(round));
    if (round->count > MOST_PROVED) {
        return NT_OK;
    }
    const uint32_t nodes = (uint32_t)round->count + 1;
    const uint32_t edges = cut_references(round, NULL, NULL);
    NT_TRY_DONE(nt_graph_init(&round->graph, alloc, nodes, edges, err));
    NT_TRY_DONE(NT_NEW(alloc, round->wanted, nodes, err));
    NT_TRY_DONE(NT_NEW(alloc, round->parts, nodes, err));
    NT_TRY_DONE(NT_NEW(alloc, round->owners, nodes, err));
    (void)cut_references(round, round->graph.first, round->graph.targets);
    round->graph.first[nodes - 1] = edges;
    round->graph.first[nodes] = edges;
    cut_find_wanted(round);
    status = cut_all(round, steps, count, cycle, err);
done:
    NT_RELEASE(alloc, round->wanted, nodes);
    NT_RELEASE(alloc, round->parts, nodes);
    NT_RELEASE(alloc, round->owners, nodes);
    nt_graph_clear(&round->graph);
    return status;
}

/* The references to break in a cycle whose way round is drawn. */
static nt_status
describe_cuts(ph_state *s, uint32_t component, ph_step *steps, uint32_t count,
              ph_cycle *cycle, nt_error *err)
{
    const uint32_t length = cycle->chain_length;
    cut_round round = {.state = s, .component = component};
    cycle->cuts = nt_arena_take(&s->out->arena, (MOST_CUTS + 1) * sizeof(ph_cut),
                                _Alignof(ph_cut));
    if (cycle->cuts == NULL) {
        return nt_fail_nomem(err);
    }
    cycle->cuts[0] =
        (ph_cut){.nodes = cycle->nodes,
                 .node_count = length,
                 .edges = cycle->edges,
                 .edge_count = length,
                 .references = 1,
                 .edge = ph_cut_choose(cycle->nodes, cycle->edges, length)};
    cycle->cut_count = 1;
    nt_map_init(&round.local, s->alloc);
    const nt_status status = cut_prove(&round, steps, count, cycle, err);
    nt_map_clear(&round.local);
    NT_RELEASE(&s->alloc, round.numbers, round.capacity);
    return status == NT_NOMEM ? nt_fail_nomem(err) : status;
}

/* ---- one description a shape ----------------------------------------------------- */

static int
describe_larger_first(const void *a, const void *b)
{
    const ph_cycle *one = a, *other = b;
    if (one->bytes != other->bytes) {
        return one->bytes > other->bytes ? -1 : 1;
    }
    return one->signature < other->signature ? -1 : one->signature > other->signature;
}

/* Orders the shapes and tells each component where its shape went. */
static nt_status
describe_order(ph_state *s, nt_map *shapes)
{
    ph_cycles *out = s->out;
    uint64_t *before =
        nt_allocate(&s->alloc, ((size_t)out->count + 1) * sizeof *before);
    if (before == NULL) {
        return NT_NOMEM;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        before[i] = out->cycles[i].signature;
    }
    qsort(out->cycles, out->count, sizeof *out->cycles, describe_larger_first);
    nt_status status = NT_OK;
    for (uint32_t i = 0; i < out->count && status == NT_OK; i++) {
        status = nt_map_set(shapes, out->cycles[i].signature, i, NULL);
    }
    for (size_t i = 0; i < s->kept_count; i++) {
        if (s->kept[i].cycle != NT_NONE) {
            s->kept[i].cycle = nt_map_find(shapes, before[s->kept[i].cycle]);
        }
    }
    NT_RELEASE(&s->alloc, before, ((size_t)out->count + 1));
    return status;
}

/* Notes an object of each component, and which component of a shape keeps most. */
static nt_status
describe_examples(ph_state *s, uint32_t *example)
{
    ph_cycles *out = s->out;
    for (uint32_t i = 0; i < out->count; i++) {
        out->cycles[i].objects = nt_arena_take(
            &out->arena, out->cycles[i].count * sizeof(uint64_t), sizeof(uint64_t));
        if (out->cycles[i].objects == NULL) {
            return NT_NOMEM;
        }
        out->cycles[i].count = 0;
        example[i] = NT_NONE;
    }
    for (size_t i = 0; i < s->kept_count; i++) {
        const uint32_t at = s->kept[i].cycle;
        if (at == NT_NONE) {
            continue;
        }
        ph_cycle *cycle = &out->cycles[at];
        const uint32_t first = s->members[s->member_first[s->kept[i].component]];
        cycle->objects[cycle->count++] = (uintptr_t)ph_state_object(s, first);
        if (example[at] == NT_NONE || s->kept[i].bytes > s->kept[example[at]].bytes) {
            example[at] = (uint32_t)i;
        }
    }
    return NT_OK;
}

static nt_status
describe_one(ph_state *s, ph_cycle *cycle, uint32_t at, nt_error *err)
{
    const ph_component *kept = &s->kept[at];
    const uint32_t component = kept->component;
    ph_step *steps;
    uint32_t count;
    NT_TRY(describe_steps_of(s, component, &steps, &count, &cycle->length, err));
    ph_describe_turn(s, steps, count);
    cycle->one_bytes = kept->bytes;
    cycle->one_tensors = kept->tensors;
    cycle->one_objects = s->sizes[component];
    NT_TRY(ph_describe_graph(s, component, kept, steps, count, cycle, err));
    return describe_cuts(s, component, steps, count, cycle, err);
}

static nt_status
describe_cycles(ph_state *s, nt_error *err)
{
    ph_cycles *out = s->out;
    const size_t size = ((size_t)out->count + 1) * sizeof(uint32_t);
    uint32_t *example;
    NT_TRY(nt_take(&s->alloc, (void **)&example, size, err));
    nt_status status = describe_examples(s, example);
    const uint32_t most = s->options.most < out->count ? s->options.most : out->count;
    const nt_map *known = s->options.known;
    for (uint32_t i = 0; i < most && status == NT_OK; i++) {
        if (known == NULL || nt_map_find(known, out->cycles[i].signature) == NT_NONE) {
            status = describe_one(s, &out->cycles[i], example[i], err);
        }
    }
    out->left_out = out->count - most;
    out->count = most;
    nt_release(&s->alloc, example, size);
    return status;
}

static uint32_t
describe_count_cyclic(const ph_state *s)
{
    uint32_t cyclic = 0;
    for (uint32_t c = 0; c < s->components; c++) {
        cyclic += s->cyclic[c];
    }
    return cyclic;
}

/* Whether there is any tensor to tell of: most collections end here. */
static bool
describe_any_tensor(const ph_state *s)
{
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        if (ph_tensor_check(ph_heap_object(s->heap, (uint32_t)n))) {
            return true;
        }
    }
    for (uint32_t i = 0; i < s->extra_count; i++) {
        if (ph_tensor_check(s->extras[i])) {
            return true;
        }
    }
    return false;
}

static nt_status
describe_all(ph_state *s, nt_map *shapes, bool *any, nt_error *err)
{
    if (s->options.dying) {
        NT_TRY(ph_describe_extras(s, err));
    }
    *any = describe_any_tensor(s);
    if (!*any) {
        return NT_OK;
    }
    NT_TRY(describe_components(s, err));
    if (s->extra_count > 0) {
        /* Once more, now that it is known which cycle keeps whom. */
        NT_TRY(ph_describe_extras(s, err));
    }
    NT_TRY(describe_tensors(s));
    s->out->others = describe_count_cyclic(s);
    if (s->kept_count == 0) {
        return NT_OK;
    }
    NT_TRY(describe_shapes(s, shapes, err));
    if (s->out->count == 0) {
        return NT_OK;
    }
    s->out->others -= s->out->components;
    NT_TRY(describe_order(s, shapes));
    return describe_cycles(s, err);
}

static void
describe_clear(ph_state *s)
{
    const nt_alloc *alloc = &s->alloc;
    const size_t nodes = ((size_t)s->count + 1) * sizeof(uint32_t);
    const size_t components = (size_t)s->components + 1;
    nt_release(alloc, s->component, nodes);
    nt_release(alloc, s->owner, nodes);
    nt_release(alloc, s->members, nodes);
    NT_RELEASE(alloc, s->sizes, components);
    NT_RELEASE(alloc, s->cyclic, components);
    NT_RELEASE(alloc, s->member_first, components + 1);
    NT_RELEASE(alloc, s->kept, s->kept_capacity);
    NT_RELEASE(alloc, s->extras, s->extra_capacity);
    NT_RELEASE(alloc, s->extra_owner, s->extra_capacity);
    describe_forget_way(s);
    nt_map_clear(&s->found);
    nt_map_clear(&s->storages);
    nt_map_clear(&s->extra_index);
    nt_arena_clear(&s->scratch);
}

nt_status
ph_describe(const ph_heap *heap, const nt_bitset *set,
            const ph_describe_options *options, ph_cycles **out, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    ph_state s = {.heap = heap,
                  .graph = ph_heap_graph(heap),
                  .set = set,
                  .options = *options,
                  .alloc = alloc,
                  .count = ph_heap_count(heap)};
    nt_map shapes;
    *out = NULL;
    NT_TRY(NT_NEW(&alloc, s.out, 1, err));
    *s.out = (ph_cycles){.count = 0};
    nt_arena_init(&s.out->arena, alloc);
    nt_arena_init(&s.scratch, alloc);
    nt_map_init(&shapes, alloc);
    nt_map_init(&s.found, alloc);
    nt_map_init(&s.storages, alloc);
    nt_map_init(&s.extra_index, alloc);
    bool any = false;
    const nt_status status = describe_all(&s, &shapes, &any, err);
    s.out->capacity = s.cycle_capacity;
    describe_clear(&s);
    nt_map_clear(&shapes);
    if (status != NT_OK || !any) {
        ph_cycles_free(s.out);
        return status == NT_NOMEM ? nt_fail_nomem(err) : status;
    }
    *out = s.out;
    return NT_OK;
}

void
ph_cycles_free(ph_cycles *cycles)
{
    if (cycles != NULL) {
        const nt_alloc alloc = cycles->arena.alloc;
        NT_RELEASE(&alloc, cycles->cycles, cycles->capacity);
        NT_RELEASE(&alloc, cycles->storages, cycles->storage_capacity);
        nt_arena_clear(&cycles->arena);
        nt_release(&alloc, cycles, sizeof *cycles);
    }
}
