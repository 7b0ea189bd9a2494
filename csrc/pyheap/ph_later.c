/* SPDX-License-Identifier: Apache-2.0 */
/* What collections free one after the other. The collector does not see that C++ holds
 * an object: it is shown a ctx only once nothing but its output's tensor holds the
 * node. A chain of such cycles therefore goes one at a time, each when the one before
 * it is gone. That is done here in counts:
 *
 *     dead  ->  drop its references  ->  what has none left is dead too
 *      ^                                           |
 *      +--- what a collection would find now  <----+
 *
 * Followed are references that are counted exactly: those of the walk, and in C++ a
 * tensor's grad_fn and gradient, a node's next nodes and the leaf that it accumulates
 * into. What anything else holds, a saved tensor among it, stays. */
#include "ph_describe.h"

#include <string.h>

#include "base/nt_map.h"

/* A node of PyTorch's graph, or a TensorImpl. */
typedef struct later_native {
    uintptr_t address;
    uint32_t uses;   /* strong references left */
    uint32_t object; /* its node of the walk; NT_NONE: none */
    uint32_t origin;
    bool is_tensor;
} later_native;

typedef struct later_state {
    const ph_heap *heap;
    const nt_graph *graph;
    nt_bitset *dead;
    nt_alloc alloc;
    uint32_t count;   /* nodes of the walk */
    uint32_t *refs;   /* of a candidate: references of Python's that are left */
    uint32_t *inside; /* of these, from candidates that are left */
    uint32_t *native; /* of a node of the walk: its place in `natives` */
    uint32_t *origin; /* of a candidate: the dead node that leads to it; else NT_NONE */
    uint32_t *queue;
    uint32_t queued;
    uint32_t *candidates;
    uint32_t candidate_count;
    bool *alive;  /* of a node of the walk, in one round */
    nt_map impls; /* TensorImpl -> node of the walk */
    nt_map index; /* address -> place in `natives` */
    later_native *natives;
    size_t native_count;
    size_t native_capacity;
    ph_later *out;
    nt_status status;
    nt_error *err;
} later_state;

/* ---- references ------------------------------------------------------------------ */

/* Called with each reference that C++ holds: the address of a node or a TensorImpl. */
typedef void (*later_visit)(later_state *s, uintptr_t address, bool is_tensor,
                            uint32_t from);

static void
later_each_native(later_state *s, const later_native *native, later_visit visit)
{
    const uint32_t from = native->origin;
    const uintptr_t address = native->address;
    if (native->is_tensor) {
        const uintptr_t made = ph_graph_grad_fn(address), grad = ph_graph_grad(address);
        if (made != 0) {
            visit(s, made, false, from);
        }
        if (grad != 0) {
            visit(s, grad, true, from);
        }
        return;
    }
    const uintptr_t leaf = ph_graph_variable(address);
    if (leaf != 0) {
        visit(s, leaf, true, from);
    }
    size_t edges;
    const uintptr_t first = ph_graph_edges(address, &edges);
    for (size_t at = 0; at < edges; at++) {
        const uintptr_t next = ph_graph_next(first, at);
        if (next != 0) {
            visit(s, next, false, from);
        }
    }
}

/* The node of the walk that belongs to a node of C++ or a TensorImpl, or NT_NONE. */
static uint32_t
later_object(const later_state *s, uintptr_t address, bool is_tensor)
{
    if (is_tensor) {
        return nt_map_find(&s->impls, address);
    }
    PyObject *object = ph_graph_object(address);
    const uint32_t node = object == NULL ? NT_NONE : ph_heap_find(s->heap, object);
    return node != NT_NONE && ph_tensor_check_node(object) ? node : NT_NONE;
}

/* The object of the node that made a tensor: the walk shows a reference to it that is
 * the node's, and not one of Python's. NT_NONE: there is none. */
static uint32_t
later_shown(const later_state *s, uint32_t node)
{
    const uint32_t native = s->native[node];
    if (native == NT_NONE || !s->natives[native].is_tensor) {
        return NT_NONE;
    }
    const uintptr_t made = ph_graph_grad_fn(s->natives[native].address);
    return made == 0 ? NT_NONE : later_object(s, made, false);
}

/* Whether C++ holds an object by what belongs to it. */
static bool
later_is_held(const later_state *s, uint32_t node)
{
    return s->native[node] != NT_NONE && s->natives[s->native[node]].uses > 1;
}

/* ---- candidates ------------------------------------------------------------------ */

static void
later_add_object(later_state *s, uint32_t node, uint32_t origin);

/* Takes note of a node of C++ or a TensorImpl, and its object, at first sight. */
static void
later_add_native(later_state *s, uintptr_t address, bool is_tensor, uint32_t origin)
{
    if (s->status != NT_OK || nt_map_find(&s->index, address) != NT_NONE) {
        return;
    }
    const uint32_t at = (uint32_t)s->native_count;
    s->status =
        NT_GROW(&s->alloc, s->natives, s->native_capacity, s->native_count + 1, s->err);
    if (s->status == NT_OK) {
        s->status = nt_map_set(&s->index, address, at, s->err);
    }
    if (s->status != NT_OK) {
        return;
    }
    const uint32_t node = later_object(s, address, is_tensor);
    s->natives[s->native_count++] = (later_native){.address = address,
                                                   .uses = ph_graph_uses(address),
                                                   .object = node,
                                                   .origin = origin,
                                                   .is_tensor = is_tensor};
    if (node != NT_NONE) {
        s->native[node] = at;
        later_add_object(s, node, origin);
    }
}

/* A type and a module outlive what refers to them. */
static void
later_add_object(later_state *s, uint32_t node, uint32_t origin)
{
    PyObject *object = ph_heap_object(s->heap, node);
    if (s->origin[node] != NT_NONE || nt_bitset_has(s->dead, node) ||
        PyType_Check(object) || PyModule_Check(object)) {
        return;
    }
    s->origin[node] = origin;
    s->candidates[s->candidate_count++] = node;
}

/* The node or TensorImpl of an object of Python. */
static void
later_add_own(later_state *s, uint32_t node, uint32_t origin)
{
    PyObject *object = ph_heap_object(s->heap, node);
    ph_tensor tensor;
    uintptr_t address = 0;
    bool is_tensor = false;
    if (ph_tensor_check(object)) {
        is_tensor = true;
        address = ph_tensor_read(object, &tensor) ? (uintptr_t)tensor.impl : 0;
    } else if (ph_tensor_check_node(object)) {
        address = ph_graph_node(object);
    }
    if (address != 0) {
        later_add_native(s, address, is_tensor, origin);
    }
}

static nt_status
later_find_tensors(later_state *s, nt_error *err)
{
    for (uint32_t node = 0; node < s->count; node++) {
        PyObject *object = ph_heap_object(s->heap, node);
        ph_tensor tensor;
        if (ph_tensor_check(object) && ph_tensor_read(object, &tensor)) {
            NT_TRY(nt_map_set(&s->impls, tensor.impl, node, err));
        }
    }
    return NT_OK;
}

/* Everything that C++ leads to from what is dead, and what that leads to. */
static nt_status
later_find_candidates(later_state *s)
{
    for (size_t n = nt_bitset_next(s->dead, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->dead, n + 1)) {
        later_add_own(s, (uint32_t)n, (uint32_t)n);
    }
    uint32_t native = 0, object = 0;
    while (s->status == NT_OK &&
           (native < s->native_count || object < s->candidate_count)) {
        if (native < s->native_count) {
            const later_native entry = s->natives[native++];
            later_each_native(s, &entry, later_add_native);
            continue;
        }
        const uint32_t node = s->candidates[object++];
        later_add_own(s, node, s->origin[node]);
        for (uint32_t e = s->graph->first[node]; e < s->graph->first[node + 1]; e++) {
            later_add_object(s, s->graph->targets[e], s->origin[node]);
        }
    }
    return s->status;
}

/* ---- what goes ------------------------------------------------------------------- */

static void
later_free(later_state *s, uint32_t node)
{
    nt_bitset_add(s->dead, node);
    s->queue[s->queued++] = node;
}

/* A reference to an object is gone, or C++ holds it no more. */
static void
later_let_go(later_state *s, uint32_t node)
{
    if (s->origin[node] != NT_NONE && s->refs[node] == 0 && !later_is_held(s, node) &&
        !nt_bitset_has(s->dead, node)) {
        later_free(s, node);
    }
}

static void
later_keep_tensor(later_state *s, const later_native *native)
{
    ph_later *out = s->out;
    ph_later_tensor kept = {.origin = native->origin};
    if (native->object != NT_NONE ||
        !ph_graph_read_tensor(native->address, &kept.tensor)) {
        return;
    }
    if (s->status == NT_OK) {
        s->status = NT_GROW(&s->alloc, out->tensors, out->capacity,
                            (size_t)out->count + 1, s->err);
    }
    if (s->status == NT_OK) {
        out->tensors[out->count++] = kept;
    }
}

/* Drops a reference that C++ has. Nodes without an object, which go with their last
 * reference, are put into the queue behind the numbers of the walk. */
static void
later_drop(later_state *s, uintptr_t address, bool Py_UNUSED(is_tensor),
           uint32_t Py_UNUSED(from))
{
    const uint32_t at = nt_map_find(&s->index, address);
    if (at == NT_NONE || s->natives[at].uses == 0) {
        return;
    }
    later_native *native = &s->natives[at];
    native->uses--;
    if (native->uses == 0) {
        s->queue[s->queued++] = s->count + at;
    } else if (native->uses == 1 && native->object != NT_NONE) {
        later_let_go(s, native->object);
    }
}

static void
later_drop_references(later_state *s, uint32_t node)
{
    uint32_t shown = later_shown(s, node);
    for (uint32_t e = s->graph->first[node]; e < s->graph->first[node + 1]; e++) {
        const uint32_t target = s->graph->targets[e];
        if (target == shown) {
            shown = NT_NONE;
        } else if (s->origin[target] != NT_NONE && s->refs[target] > 0) {
            s->refs[target]--;
            later_let_go(s, target);
        }
    }
    if (s->native[node] != NT_NONE) {
        later_drop(s, s->natives[s->native[node]].address, false, 0);
    }
}

/* Frees what is in the queue, and what goes with it. */
static void
later_cascade(later_state *s)
{
    while (s->queued > 0) {
        const uint32_t number = s->queue[--s->queued];
        if (number < s->count) {
            later_drop_references(s, number);
        } else {
            const later_native native = s->natives[number - s->count];
            later_keep_tensor(s, &native);
            later_each_native(s, &native, later_drop);
        }
    }
}

/* ---- one collection -------------------------------------------------------------- */

static bool
later_is_left(const later_state *s, uint32_t node)
{
    return s->origin[node] != NT_NONE && !nt_bitset_has(s->dead, node);
}

/* The ctx that a tensor shows the collector: where nothing else holds the tensor, and
 * nothing but the tensor the node. NT_NONE: none. */
static uint32_t
later_visible(const later_state *s, uint32_t node)
{
    if (later_is_held(s, node)) {
        return NT_NONE;
    }
    const uint32_t shown = later_shown(s, node);
    return shown != NT_NONE && s->native[shown] != NT_NONE &&
                   s->natives[s->native[shown]].uses == 2
               ? shown
               : NT_NONE;
}

/* Counts the references from candidates. One that is held by a node which a tensor
 * shows is as if it were not held: `alive` has those for now. */
static void
later_count_inside(later_state *s)
{
    memset(s->alive, 0, s->count * sizeof *s->alive);
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        s->inside[s->candidates[i]] = 0;
    }
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        const uint32_t node = s->candidates[i];
        if (!later_is_left(s, node)) {
            continue;
        }
        uint32_t shown = later_shown(s, node);
        const uint32_t visible = later_visible(s, node);
        for (uint32_t e = s->graph->first[node]; e < s->graph->first[node + 1]; e++) {
            const uint32_t target = s->graph->targets[e];
            if (target == shown) {
                shown = NT_NONE;
            } else {
                s->inside[target]++;
            }
        }
        if (visible != NT_NONE) {
            s->alive[visible] = true;
        }
    }
}

static void
later_mark(later_state *s, uint32_t node)
{
    if (later_is_left(s, node) && !s->alive[node]) {
        s->alive[node] = true;
        s->queue[s->queued++] = node;
    }
}

/* Marks what has a reference from outside of the candidates, and what that reaches. */
static void
later_mark_alive(later_state *s)
{
    uint32_t roots = 0;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        const uint32_t node = s->candidates[i];
        const bool held = later_is_held(s, node) && !s->alive[node];
        if (later_is_left(s, node) && (held || s->refs[node] != s->inside[node])) {
            s->queue[roots++] = node;
        }
    }
    memset(s->alive, 0, s->count * sizeof *s->alive);
    for (uint32_t i = 0; i < roots; i++) {
        s->alive[s->queue[i]] = true;
    }
    s->queued = roots;
    while (s->queued > 0) {
        const uint32_t node = s->queue[--s->queued];
        for (uint32_t e = s->graph->first[node]; e < s->graph->first[node + 1]; e++) {
            later_mark(s, s->graph->targets[e]);
        }
        const uint32_t visible = later_visible(s, node);
        if (visible != NT_NONE) {
            later_mark(s, visible);
        }
    }
}

/* Whether a collection would free anything more. */
static bool
later_collect(later_state *s)
{
    later_count_inside(s);
    later_mark_alive(s);
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        const uint32_t node = s->candidates[i];
        if (!later_is_left(s, node)) {
            continue;
        }
        if (s->alive[node]) {
            s->candidates[left++] = node;
        } else {
            later_free(s, node);
        }
    }
    s->candidate_count = left;
    const bool any = s->queued > 0;
    later_cascade(s);
    return any;
}

/* ---- all of it ------------------------------------------------------------------- */

/* Whether something of PyTorch's graph is dead. */
static bool
later_has_work(const ph_heap *heap, const nt_bitset *dead)
{
    for (size_t n = nt_bitset_next(dead, 0); ph_graph_ready() && n != NT_NO_MEMBER;
         n = nt_bitset_next(dead, n + 1)) {
        PyObject *object = ph_heap_object(heap, (uint32_t)n);
        ph_tensor tensor;
        if (ph_tensor_check_node(object) ||
            (ph_tensor_check(object) && ph_tensor_read(object, &tensor) &&
             tensor.requires_grad)) {
            return true;
        }
    }
    return false;
}

static nt_status
later_room(later_state *s, nt_error *err)
{
    uint32_t **const arrays[] = {&s->refs, &s->inside, &s->native, &s->origin,
                                 &s->candidates};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        NT_TRY(NT_NEW(&s->alloc, *arrays[i], s->count, err));
        memset(*arrays[i], 0xFF, (size_t)s->count * sizeof **arrays[i]);
    }
    return NT_NEW(&s->alloc, s->alive, s->count, err);
}

static void
later_clear(later_state *s)
{
    NT_RELEASE(&s->alloc, s->refs, s->count);
    NT_RELEASE(&s->alloc, s->inside, s->count);
    NT_RELEASE(&s->alloc, s->native, s->count);
    NT_RELEASE(&s->alloc, s->origin, s->count);
    NT_RELEASE(&s->alloc, s->candidates, s->count);
    NT_RELEASE(&s->alloc, s->queue, s->count + s->native_count);
    NT_RELEASE(&s->alloc, s->natives, s->native_capacity);
    NT_RELEASE(&s->alloc, s->alive, s->count);
    nt_map_clear(&s->impls);
    nt_map_clear(&s->index);
}

/* What Python holds of each candidate: C++ has one reference to an object while it
 * holds what belongs to it. */
static void
later_count(later_state *s)
{
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        const uint32_t node = s->candidates[i];
        const uint32_t references = (uint32_t)Py_REFCNT(ph_heap_object(s->heap, node));
        s->refs[node] = references - later_is_held(s, node);
    }
}

static nt_status
later_run(later_state *s, nt_error *err)
{
    NT_TRY(later_room(s, err));
    NT_TRY(later_find_tensors(s, err));
    NT_TRY(later_find_candidates(s));
    NT_TRY(NT_NEW(&s->alloc, s->queue, s->count + s->native_count, err));
    later_count(s);
    for (size_t n = nt_bitset_next(s->dead, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->dead, n + 1)) {
        s->queue[s->queued++] = (uint32_t)n;
    }
    later_cascade(s);
    while (later_collect(s)) {
    }
    return s->status;
}

nt_status
ph_later_find(const ph_heap *heap, nt_bitset *dead, ph_later *out, nt_error *err)
{
    if (!later_has_work(heap, dead)) {
        return NT_OK;
    }
    later_state s = {.heap = heap,
                     .graph = ph_heap_graph(heap),
                     .dead = dead,
                     .alloc = nt_alloc_system(),
                     .count = ph_heap_count(heap),
                     .out = out,
                     .err = err};
    nt_map_init(&s.impls, s.alloc);
    nt_map_init(&s.index, s.alloc);
    const nt_status status = later_run(&s, err);
    if (status == NT_OK) {
        out->origin = s.origin;
        out->nodes = s.count;
        s.origin = NULL;
    }
    later_clear(&s);
    return status;
}

void
ph_later_clear(ph_later *later)
{
    const nt_alloc alloc = nt_alloc_system();
    NT_RELEASE(&alloc, later->origin, later->nodes);
    NT_RELEASE(&alloc, later->tensors, later->capacity);
    *later = (ph_later){.origin = NULL};
}
