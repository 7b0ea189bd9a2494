/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about the whole heap that need more than the collector is shown: cycles
 * through PyTorch's graph, why something is alive, what holders keep. Each walks once,
 * makes plain data, lets go of the walk, and only then makes Python objects.
 */
#include "nt_py.h"

#include "nt_py_plain.h"
#include "ph_held.h"
#include "ph_loops.h"
#include "ph_join.h"
#include "py_compat_objects.h"

/* ---- what Python tells of PyTorch's graph ---------------------------------------- */

/* References that only C++ knows, as Python read them. */
typedef struct roots_told {
    PyObject *objects; /* list of what takes part */
    Py_buffer kinds;   /* a byte an object; 1: a node of PyTorch's graph */
    Py_buffer links;   /* three 32-bit numbers each: source, target, name */
    PyObject *names;   /* tuple of str */
} roots_told;

static void
told_clear(roots_told *told)
{
    PyBuffer_Release(&told->kinds);
    PyBuffer_Release(&told->links);
}

static nt_status
told_refuse(nt_error *err)
{
    return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "links do not fit the objects");
}

static nt_status
told_link(const roots_told *told, ph_join *join, const uint32_t *nodes,
          const uint32_t *link, nt_error *err)
{
    const size_t objects = (size_t)PyList_GET_SIZE(told->objects);
    const size_t names = (size_t)PyTuple_GET_SIZE(told->names);
    if (link[0] >= objects || link[1] >= objects || link[2] >= names) {
        return told_refuse(err);
    }
    const uint32_t source = nodes[link[0]], target = nodes[link[1]];
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(told->names, link[2]));
    if (name == NULL) {
        PyErr_Clear();
        return told_refuse(err);
    }
    return source == NT_NONE || target == NT_NONE
               ? NT_OK
               : ph_join_link(join, source, target, PH_EDGE_AUTOGRAD, name, err);
}

/* Hides the list and joins what it tells. */
static nt_status
told_join(const roots_told *told, ph_join *join, nt_error *err)
{
    const size_t count = (size_t)PyList_GET_SIZE(told->objects);
    const size_t bytes = count * sizeof(uint32_t);
    const uint8_t *kinds = told->kinds.buf;
    const uint32_t *links = told->links.buf;
    if ((size_t)told->kinds.len != count || told->links.len % 12 != 0) {
        return told_refuse(err);
    }
    uint32_t *nodes = nt_allocate(&join->alloc, bytes);
    if (nodes == NULL && count > 0) {
        return nt_fail_nomem(err);
    }
    nt_status status = NT_OK;
    for (size_t i = 0; i < count; i++) {
        nodes[i] = ph_heap_find(join->heap, PyList_GET_ITEM(told->objects, i));
        if (nodes[i] != NT_NONE && kinds[i] == 1) {
            nt_bitset_add(&join->autograd, nodes[i]);
        }
    }
    ph_join_hide(join, told->objects);
    for (Py_ssize_t i = 0; i < told->links.len / 12 && status == NT_OK; i++) {
        status = told_link(told, join, nodes, links + i * 3, err);
    }
    nt_release(&join->alloc, nodes, bytes);
    return status == NT_OK ? ph_join_tensors(join, err) : status;
}

nt_status
nt_py_heap_learn(nt_error *err)
{
    NT_TRY(ph_walk_prepare(err));
    NT_TRY(ph_names_prepare(err));
    NT_TRY(py_compat_check_frames(err));
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GetItemString(modules, "torch") != NULL) {
        NT_TRY(ph_tensor_prepare(err));
    }
    return NT_OK;
}

static PyObject *
roots_thread(const void *threads, uint32_t at)
{
    return PyLong_FromUnsignedLongLong(((const uint64_t *)threads)[at]);
}

static PyObject *
roots_way(const ph_way *way)
{
    return Py_BuildValue("{s:N,s:N,s:N}", "nodes",
                         nt_py_plain_nodes(way->nodes, way->count), "edges",
                         nt_py_plain_edges(way->edges, way->edge_count), "threads",
                         nt_py_plain_list(way->count, roots_thread, way->threads));
}

/* ---- cycles ---------------------------------------------------------------------- */

static PyObject *
roots_loop(const void *loops, uint32_t at)
{
    const ph_loop *loop = (const ph_loop *)loops + at;
    return Py_BuildValue(
        "{s:N,s:I,s:I,s:K,s:O,s:O,s:N,s:N}", "way", roots_way(&loop->way), "objects",
        (unsigned)loop->objects, "tensors", (unsigned)loop->tensors, "bytes",
        (unsigned long long)loop->bytes, "hidden", loop->hidden ? Py_True : Py_False,
        "alive", loop->alive ? Py_True : Py_False, "devices",
        nt_py_plain_devices(loop->devices, loop->device_count), "kept",
        nt_py_plain_nodes(loop->kept, loop->kept_count));
}

static nt_status
roots_find_loops(const roots_told *told, const char *own, uint32_t most,
                 ph_loops **loops, uint32_t *objects, nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    nt_status status;
    NT_TRY_DONE(ph_heap_new(PH_ALL, false, &heap, err));
    *objects = ph_heap_count(heap);
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    NT_TRY_DONE(told_join(told, &join, err));
    NT_TRY_DONE(ph_roots_add(&join, own, err));
    NT_TRY_DONE(ph_join_close(&join, err));
    status = ph_loops_find(&join, most, loops, err);
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

PyDoc_STRVAR(
    autograd_loops_doc,
    "autograd_loops(objects, kinds, links, names, own, most)\n--\n\n"
    "Cycles with a part in PyTorch's graph. `links` are triples (source, target,\n"
    "name) of positions in `objects` and `names`; frames of files that begin with\n"
    "`own` are passed over.");

static PyObject *
roots_py_autograd_loops(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    const char *own;
    unsigned most;
    if (!PyArg_ParseTuple(args, "O!y*y*O!sI:autograd_loops", &PyList_Type,
                          &told.objects, &told.kinds, &told.links, &PyTuple_Type,
                          &told.names, &own, &most)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    ph_loops *loops = NULL;
    uint32_t objects = 0;
    nt_status status = nt_py_heap_learn(&err);
    if (status == NT_OK) {
        status = roots_find_loops(&told, own, most, &loops, &objects, &err);
    }
    told_clear(&told);
    if (status != NT_OK) {
        return nt_py_raise_heap(status, &err);
    }
    PyObject *result =
        Py_BuildValue("{s:N,s:I,s:K,s:I,s:I}", "loops",
                      nt_py_plain_list(loops->count, roots_loop, loops->loops),
                      "left_out", (unsigned)loops->left_out, "left_out_bytes",
                      (unsigned long long)loops->left_out_bytes, "cut",
                      (unsigned)loops->cut, "objects", (unsigned)objects);
    ph_loops_free(loops);
    return result;
}

/* ---- why something is alive ------------------------------------------------------ */

typedef struct roots_alive {
    nt_arena arena;
    ph_way *ways;
    uint32_t count;
    ph_way target;   /* the object alone */
    bool walked;     /* the walk has the object */
    bool loose;      /* the ways begin at what something unknown holds */
    uint64_t python; /* references that are not accounted for */
    uint64_t native;
    uint32_t call;      /* of `python`, what the call itself may be */
    uint32_t referrers; /* references that the walk and the links show */
    uint32_t objects;
} roots_alive;

static nt_status
alive_describe(const ph_join *join, const nt_graph_path *paths, uint32_t count,
               roots_alive *alive, nt_error *err)
{
    alive->ways =
        nt_arena_take(&alive->arena, count * sizeof(ph_way), _Alignof(ph_way));
    if (alive->ways == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t i = 0; i < count; i++) {
        NT_TRY(ph_way_make(join, paths[i].nodes, paths[i].length, false, &alive->arena,
                           &alive->ways[i], err));
        alive->count++;
    }
    return NT_OK;
}

static nt_status
alive_paths(const ph_join *join, const nt_graph *reversed, uint32_t node,
            const nt_bitset *roots, uint32_t most, roots_alive *alive, nt_error *err)
{
    nt_graph_path *paths = NULL;
    uint32_t count = 0;
    NT_TRY(nt_graph_paths(reversed, node, roots, NULL, most, &paths, &count, err));
    const nt_status status =
        count == 0 ? NT_OK : alive_describe(join, paths, count, alive, err);
    nt_graph_paths_free(reversed, paths, count);
    return status;
}

/* Ways from what something unknown holds, where no module and no frame leads there. */
static nt_status
alive_loose(const ph_join *join, const nt_graph *reversed, uint32_t node, uint32_t most,
            roots_alive *alive, nt_error *err)
{
    nt_bitset outside = {.words = NULL};
    nt_status status;
    NT_TRY_DONE(ph_join_outside(join, &outside, err));
    for (uint32_t n = 0; n < join->walked; n++) {
        if (nt_bitset_has(&join->hidden, n)) {
            nt_bitset_remove(&outside, n);
        }
    }
    /* The object itself is told apart: its own count says more. */
    nt_bitset_remove(&outside, node);
    alive->loose = true;
    status = alive_paths(join, reversed, node, &outside, most, alive, err);
done:
    nt_bitset_clear(&outside);
    return status;
}

static nt_status
alive_ask(ph_join *join, uint32_t node, uint32_t most, roots_alive *alive,
          nt_error *err)
{
    nt_graph reversed = {.first = NULL};
    nt_bitset roots = {.words = NULL};
    nt_status status;
    NT_TRY_DONE(ph_roots_mark(join, &roots, err));
    NT_TRY_DONE(nt_graph_reverse(&join->graph, &reversed, err));
    NT_TRY_DONE(alive_paths(join, &reversed, node, &roots, most, alive, err));
    ph_join_unexplained(join, node, &alive->python, &alive->native);
    alive->call = join->call_references;
    alive->referrers = reversed.first[node + 1] - reversed.first[node];
    if (alive->count == 0) {
        NT_TRY_DONE(alive_loose(join, &reversed, node, most, alive, err));
    }
done:
    nt_bitset_clear(&roots);
    if (reversed.first != NULL) {
        nt_graph_clear(&reversed);
    }
    return status;
}

static nt_status
roots_ask_alive(PyObject *target, const roots_told *told, const char *own,
                uint32_t most, roots_alive *alive, nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    PyObject *object = PyList_GET_ITEM(target, 0);
    const bool leaves = !PyObject_GC_IsTracked(object);
    nt_status status;
    NT_TRY_DONE(ph_heap_new(PH_ALL, leaves, &heap, err));
    alive->objects = ph_heap_count(heap);
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    ph_join_hide(&join, target);
    NT_TRY_DONE(told_join(told, &join, err));
    NT_TRY_DONE(ph_roots_add(&join, own, err));
    NT_TRY_DONE(ph_join_close(&join, err));
    const uint32_t node = ph_heap_find(heap, object);
    alive->walked = node != NT_NONE;
    if (alive->walked) {
        NT_TRY_DONE(
            ph_way_make(&join, &node, 1, false, &alive->arena, &alive->target, err));
        status = alive_ask(&join, node, most, alive, err);
    }
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

static PyObject *
roots_alive_way(const void *ways, uint32_t at)
{
    return roots_way((const ph_way *)ways + at);
}

PyDoc_STRVAR(alive_ways_doc,
             "alive_ways(target, objects, kinds, links, names, own, most)\n--\n\n"
             "The shortest ways from modules, threads and frames to the one object in\n"
             "the list `target`, which is passed over as a holder.");

static PyObject *
roots_py_alive_ways(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    PyObject *target;
    const char *own;
    unsigned most;
    if (!PyArg_ParseTuple(args, "O!O!y*y*O!sI:alive_ways", &PyList_Type, &target,
                          &PyList_Type, &told.objects, &told.kinds, &told.links,
                          &PyTuple_Type, &told.names, &own, &most)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    roots_alive alive = {.ways = NULL};
    nt_arena_init(&alive.arena, nt_alloc_system());
    nt_status status = PyList_GET_SIZE(target) == 1
                           ? nt_py_heap_learn(&err)
                           : nt_fail(&err, NT_ARGUMENT, NT_NO_OFFSET, "not one target");
    if (status == NT_OK) {
        status = roots_ask_alive(target, &told, own, most, &alive, &err);
    }
    told_clear(&told);
    PyObject *result = NULL;
    if (status != NT_OK) {
        (void)nt_py_raise_heap(status, &err);
    } else {
        result = Py_BuildValue(
            "{s:N,s:N,s:O,s:O,s:K,s:K,s:I,s:I,s:I}", "ways",
            nt_py_plain_list(alive.count, roots_alive_way, alive.ways), "target",
            nt_py_plain_nodes(alive.target.nodes, alive.target.count), "walked",
            alive.walked ? Py_True : Py_False, "loose",
            alive.loose ? Py_True : Py_False, "python",
            (unsigned long long)alive.python, "native",
            (unsigned long long)alive.native, "call", (unsigned)alive.call, "referrers",
            (unsigned)alive.referrers, "objects", (unsigned)alive.objects);
    }
    nt_arena_clear(&alive.arena);
    return result;
}

/* ---- what holders keep ----------------------------------------------------------- */

typedef struct roots_holds {
    ph_hold *holds;
    size_t count;
    ph_held *held;
    uint32_t holders;
    uint64_t together;
} roots_holds;

/* `lists`: a list a holder, of container, value, container, value. */
static nt_status
holds_parse(PyObject *lists, roots_holds *holds, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    size_t pairs = 0, at = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists); i++) {
        PyObject *list = PyList_GET_ITEM(lists, i);
        if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) % 2 != 0) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "holds are lists of pairs");
        }
        pairs += (size_t)PyList_GET_SIZE(list) / 2;
    }
    holds->count = pairs;
    holds->holders = (uint32_t)PyList_GET_SIZE(lists);
    holds->holds = nt_allocate(&alloc, pairs * sizeof *holds->holds);
    holds->held = nt_allocate(&alloc, holds->holders * sizeof *holds->held);
    if ((holds->holds == NULL && pairs > 0) ||
        (holds->held == NULL && holds->holders > 0)) {
        return nt_fail_nomem(err);
    }
    for (uint32_t i = 0; i < holds->holders; i++) {
        PyObject *list = PyList_GET_ITEM(lists, i);
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k += 2) {
            holds->holds[at++] = (ph_hold){.holder = i,
                                           .container = PyList_GET_ITEM(list, k),
                                           .value = PyList_GET_ITEM(list, k + 1)};
        }
    }
    return NT_OK;
}

static void
holds_clear(roots_holds *holds)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_release(&alloc, holds->holds, holds->count * sizeof *holds->holds);
    nt_release(&alloc, holds->held, holds->holders * sizeof *holds->held);
}

static nt_status
holds_measure(PyObject *lists, const roots_told *told, roots_holds *holds,
              nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    nt_status status;
    NT_TRY_DONE(holds_parse(lists, holds, err));
    NT_TRY_DONE(ph_heap_new(PH_ALL, false, &heap, err));
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    ph_join_hide(&join, lists);
    for (uint32_t i = 0; i < holds->holders; i++) {
        ph_join_hide(&join, PyList_GET_ITEM(lists, i));
    }
    NT_TRY_DONE(told_join(told, &join, err));
    status = ph_held_measure(&join, holds->holds, holds->count, holds->held,
                             holds->holders, &holds->together, err);
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

static PyObject *
roots_held(const void *held, uint32_t at)
{
    const ph_held *one = (const ph_held *)held + at;
    return Py_BuildValue("(KKII)", (unsigned long long)one->bytes,
                         (unsigned long long)one->reachable, (unsigned)one->tensors,
                         (unsigned)one->holds);
}

PyDoc_STRVAR(
    held_bytes_doc,
    "held_bytes(holders, objects, kinds, links, names)\n--\n\n"
    "For each holder, a list of container, value, container, value: bytes of\n"
    "tensors that would go if it let go, bytes that it leads to, tensors that\n"
    "would go, references that were found; and what would go if all did.");

static PyObject *
roots_py_held_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    PyObject *lists;
    if (!PyArg_ParseTuple(args, "O!O!y*y*O!:held_bytes", &PyList_Type, &lists,
                          &PyList_Type, &told.objects, &told.kinds, &told.links,
                          &PyTuple_Type, &told.names)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    roots_holds holds = {.holds = NULL};
    nt_status status = nt_py_heap_learn(&err);
    if (status == NT_OK) {
        status = holds_measure(lists, &told, &holds, &err);
    }
    told_clear(&told);
    PyObject *result = NULL;
    if (status != NT_OK) {
        (void)nt_py_raise_heap(status, &err);
    } else {
        result = Py_BuildValue("(NK)",
                               nt_py_plain_list(holds.holders, roots_held, holds.held),
                               (unsigned long long)holds.together);
    }
    holds_clear(&holds);
    return result;
}

PyMethodDef nt_py_roots_methods[] = {
    {"autograd_loops", roots_py_autograd_loops, METH_VARARGS, autograd_loops_doc},
    {"alive_ways", roots_py_alive_ways, METH_VARARGS, alive_ways_doc},
    {"held_bytes", roots_py_held_bytes, METH_VARARGS, held_bytes_doc},
    {NULL, NULL, 0, NULL},
};
