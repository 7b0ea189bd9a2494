/* SPDX-License-Identifier: Apache-2.0 */
#include "walk/ph_walk_state.h"

/* Objects are fetched so many ahead: the walk is in the order of addresses and not of
 * the lists, so that this can be done. */
#define EDGES_AHEAD 8

/* Room for so many references an object at first; 3 is usual. */
#define EDGES_FIRST 4

/* From here on (elements) an array grows by an eighth: it is pages of its own, that
 * move without being copied. */
#define EDGES_LARGE 262144

/* What a visitor needs, in one place. */
typedef struct edges_round {
    const walk_index *index;
    uint32_t *refs;
    uint32_t *cursor;
    uint32_t *limit;
    ph_heap *heap;
    nt_status status;
    nt_error *err;
} edges_round;

/* More room for targets; -1 ends the traverse that asked. */
static int
edges_more(edges_round *round)
{
    ph_heap *heap = round->heap;
    const size_t used = (size_t)(round->cursor - heap->graph.targets);
    const size_t old = heap->target_capacity;
    const size_t size = old + (old < EDGES_LARGE ? old + 64 : old / 8);
    if (size >= NT_NONE) {
        round->status = nt_fail(round->err, NT_LIMIT, NT_NO_OFFSET,
                                "the objects have more than 4,000,000,000 references");
        return -1;
    }
    uint32_t *grown =
        heap->alloc.resize(heap->alloc.ctx, heap->graph.targets, old * sizeof(uint32_t),
                           size * sizeof(uint32_t));
    if (grown == NULL) {
        round->status = nt_fail_nomem(round->err);
        return -1;
    }
    heap->graph.targets = grown;
    heap->target_capacity = size;
    round->cursor = grown + used;
    round->limit = grown + size;
    return 0;
}

static inline __attribute__((always_inline)) int
edges_add(edges_round *round, uint32_t node)
{
    if (node == NT_NONE) {
        return 0;
    }
    round->refs[node]--;
    if (NT_UNLIKELY(round->cursor == round->limit) && edges_more(round) != 0) {
        return -1;
    }
    *round->cursor++ = node;
    return 0;
}

static inline __attribute__((always_inline)) void
edges_give_back(edges_round *round, uint32_t node)
{
    if (node != NT_NONE) {
        round->refs[node]++;
    }
}

/* Whether what an object refers to belongs to the walk: always if it is tracked; an
 * untracked one is asked only where it is of a type that lets go of being tracked, for
 * others may be half built or about to go. */
static bool
edges_expands(PyObject *object)
{
    return PyObject_IS_GC(object) &&
           (ph_gc_is_tracked(object) || PyTuple_CheckExact(object) ||
            PyDict_CheckExact(object));
}

/*
 * The round over all objects. `visit` and `find` do the same; `find` is for exact
 * lists and tuples, the most frequent containers, whose tp_traverse is this loop.
 */
static inline __attribute__((always_inline)) void
edges_each(edges_round *round, visitproc visit, py_compat_borrowed_visit give_back,
           uint32_t (*find)(const walk_index *, uintptr_t))
{
    ph_heap *heap = round->heap;
    const traverseproc of_list = PyList_Type.tp_traverse;
    const traverseproc of_tuple = PyTuple_Type.tp_traverse;
    const uint32_t count = heap->count;
    uint32_t i = 0;
    for (; i < count; i++) {
        PyObject *object = heap->objects[i];
        if (i + EDGES_AHEAD < count) {
            __builtin_prefetch(heap->objects[i + EDGES_AHEAD]);
        }
        heap->graph.first[i] = (uint32_t)(round->cursor - heap->graph.targets);
        round->refs[i] += (uint32_t)Py_REFCNT(object);
        if (heap->leaves && !edges_expands(object)) {
            continue;
        }
        const traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse == of_list || traverse == of_tuple) {
            PyObject **items = traverse == of_list ? ((PyListObject *)object)->ob_item
                                                   : ((PyTupleObject *)object)->ob_item;
            for (Py_ssize_t k = Py_SIZE(object); --k >= 0;) {
                if (items[k] != NULL &&
                    edges_add(round, find(round->index, (uintptr_t)items[k])) != 0) {
                    return;
                }
            }
        } else {
            (void)traverse(object, visit, round);
            if (NT_UNLIKELY(round->status != NT_OK)) {
                return;
            }
            if (NT_UNLIKELY(py_compat_may_borrow(traverse))) {
                py_compat_each_borrowed(object, give_back, round);
            }
        }
    }
    heap->graph.first[i] = (uint32_t)(round->cursor - heap->graph.targets);
}

static int
edges_visit_hashed(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_hashed(round->index, (uintptr_t)object));
}

static void
edges_give_back_hashed(void *arg, PyObject *object)
{
    edges_round *round = arg;
    edges_give_back(round, walk_find_hashed(round->index, (uintptr_t)object));
}

static void
edges_each_hashed(edges_round *round)
{
    edges_each(round, edges_visit_hashed, edges_give_back_hashed, walk_find_hashed);
}

static int
edges_visit_chunked(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_chunked(round->index, (uintptr_t)object));
}

static void
edges_give_back_chunked(void *arg, PyObject *object)
{
    edges_round *round = arg;
    edges_give_back(round, walk_find_chunked(round->index, (uintptr_t)object));
}

static void
edges_each_chunked(edges_round *round)
{
    edges_each(round, edges_visit_chunked, edges_give_back_chunked, walk_find_chunked);
}

#if defined(__x86_64__)
/* The same with the instruction that counts bits, which the oldest processors lack. */
__attribute__((target("popcnt"))) static int
edges_visit_counted(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_chunked(round->index, (uintptr_t)object));
}

__attribute__((target("popcnt"))) static void
edges_each_counted(edges_round *round)
{
    edges_each(round, edges_visit_counted, edges_give_back_chunked, walk_find_chunked);
}
#endif

static void
edges_choose(edges_round *round)
{
    if (!round->index->chunked) {
        edges_each_hashed(round);
        return;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("popcnt")) {
        edges_each_counted(round);
        return;
    }
#endif
    edges_each_chunked(round);
}

nt_status
walk_find_edges(ph_heap *heap, nt_error *err)
{
    const size_t count = heap->count;
    nt_graph *graph = &heap->graph;
    NT_TRY(walk_reserve(heap, (void **)&heap->refs, &heap->ref_capacity, count,
                        sizeof(uint32_t), err));
    NT_TRY(walk_reserve(heap, (void **)&graph->first, &heap->first_capacity, count + 1,
                        sizeof(uint32_t), err));
    NT_TRY(walk_reserve(heap, (void **)&graph->targets, &heap->target_capacity,
                        count * EDGES_FIRST, sizeof(uint32_t), err));
    for (size_t i = 0; i < count; i++) {
        heap->refs[i] = 0;
    }
    edges_round round = {.index = &heap->index,
                         .refs = heap->refs,
                         .cursor = graph->targets,
                         .limit = graph->targets + heap->target_capacity,
                         .heap = heap,
                         .err = err};
    edges_choose(&round);
    NT_TRY(round.status);
    graph->node_count = heap->count;
    graph->edge_count = graph->first[count];
    if (heap->target_capacity >= EDGES_LARGE) {
        nt_shrink(&heap->alloc, (void **)&graph->targets, &heap->target_capacity,
                  graph->edge_count, sizeof(uint32_t));
    }
    return NT_OK;
}

/* ---- leaves ---------------------------------------------------------------------- */

typedef struct leaves_round {
    ph_heap *heap;
    PyObject **found;
    size_t count;
    size_t capacity;
    nt_status status;
    nt_error *err;
} leaves_round;

static int
leaves_visit(PyObject *object, void *arg)
{
    leaves_round *round = arg;
    const uintptr_t address = (uintptr_t)object;
    uint32_t chunk;
    round->status =
        walk_index_chunk(round->heap, address >> WALK_CHUNK_BITS, &chunk, round->err);
    if (round->status != NT_OK) {
        return -1;
    }
    walk_word *word = walk_word_of(&round->heap->index, chunk, address);
    if ((word->bits & walk_bit_of(address)) != 0) {
        return 0;
    }
    word->bits |= walk_bit_of(address);
    round->status =
        nt_grow(&round->heap->alloc, (void **)&round->found, &round->capacity,
                round->count + 1, sizeof(PyObject *), round->err);
    if (round->status != NT_OK) {
        return -1;
    }
    round->found[round->count++] = object;
    return 0;
}

/* Follows everything found, the new ones as they come. */
static nt_status
leaves_follow(leaves_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        PyObject *object = round->found[i];
        if (edges_expands(object)) {
            (void)Py_TYPE(object)->tp_traverse(object, leaves_visit, round);
            NT_TRY(round->status);
        }
    }
    return round->count < NT_NONE
               ? NT_OK
               : nt_fail(round->err, NT_LIMIT, NT_NO_OFFSET,
                         "there are more than 4,000,000,000 objects");
}

nt_status
walk_find_leaves(ph_heap *heap, nt_error *err)
{
    leaves_round round = {.heap = heap, .err = err};
    nt_status status = NT_OK;
    round.found = heap->objects;
    round.count = heap->count;
    round.capacity = heap->object_capacity;
    heap->objects = NULL;
    heap->object_capacity = 0;

    NT_TRY_DONE(leaves_follow(&round));
    walk_index_rank(&heap->index);
    NT_TRY_DONE(walk_reserve(heap, (void **)&heap->objects, &heap->object_capacity,
                             round.count, sizeof(PyObject *), err));
    heap->count = (uint32_t)round.count;
    for (size_t i = 0; i < round.count; i++) {
        const uintptr_t address = (uintptr_t)round.found[i];
        heap->objects[walk_find_chunked(&heap->index, address)] = round.found[i];
    }

done:
    nt_release(&heap->alloc, round.found, round.capacity * sizeof(PyObject *));
    return status;
}
