/* SPDX-License-Identifier: Apache-2.0 */
#include "selftest_heap.h"

#include <stdlib.h>
#include <string.h>

#include "ph_gcwatch.h"
#include "py_compat.h"

/* ---- a subscriber that writes down everything ------------------------------------ */

typedef struct heap_watch {
    PyObject *receiver; /* owned; called with a dict for each collection that found
                         * something; None: nothing is described */
    bool hold; /* mark what is found as finalized already, so that the collector
                * runs no finalizer and its own set stays whole */
    bool fail; /* describing fails */
} heap_watch;

typedef struct heap_record {
    uint32_t count;
    uint64_t addresses[]; /* `count` of them */
} heap_record;

/* Everything that was described and neither delivered nor discarded, and every
 * subscriber that was not freed: for the tests, which expect none to be left. */
static long heap_records;
static long heap_watches;

static nt_status
watch_describe(void *ctx, const ph_heap *heap, const nt_bitset *dead, uint32_t count,
               void **plain, nt_error *err)
{
    const heap_watch *watch = ctx;
    if (watch->fail) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "asked to fail");
    }
    if (watch->receiver == Py_None) {
        return NT_OK;
    }
    heap_record *record = malloc(sizeof *record + count * sizeof(uint64_t));
    if (record == NULL) {
        return nt_fail_nomem(err);
    }
    record->count = 0;
    for (size_t n = nt_bitset_next(dead, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(dead, n + 1)) {
        PyObject *object = ph_heap_object(heap, (uint32_t)n);
        record->addresses[record->count++] = (uintptr_t)object;
        if (watch->hold) {
            ((ph_gc_link *)object - 1)->prev |= 1;
        }
    }
    heap_records++;
    *plain = record;
    return NT_OK;
}

static PyObject *
watch_list(const uint64_t *addresses, uint32_t count)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *address = PyLong_FromUnsignedLongLong(addresses[i]);
        if (address == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, address);
        }
    }
    return list;
}

static int
watch_deliver(void *ctx, void *plain, const ph_collection *collection)
{
    const heap_watch *watch = ctx;
    heap_record *record = plain;
    PyObject *found = Py_BuildValue(
        "{s:K,s:I,s:I,s:N,s:N,s:K,s:K,s:K}", "number",
        (unsigned long long)collection->number, "generation",
        (unsigned)collection->generation, "count", (unsigned)collection->predicted,
        "predicted", watch_list(record->addresses, record->count), "survivors",
        watch_list(collection->survivors, collection->survivor_count), "collected",
        (unsigned long long)collection->collected, "uncollectable",
        (unsigned long long)collection->uncollectable, "pause_ns",
        (unsigned long long)collection->pause_ns);
    free(record);
    heap_records--;
    PyObject *done = found != NULL
                         ? PyObject_CallFunctionObjArgs(watch->receiver, found, NULL)
                         : NULL;
    Py_XDECREF(found);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static void
watch_discard(void *ctx, void *plain)
{
    (void)ctx;
    free(plain);
    heap_records--;
}

static void
watch_free(void *ctx)
{
    heap_watch *watch = ctx;
    PyObject *receiver = watch->receiver;
    free(watch);
    heap_watches--;
    Py_DECREF(receiver);
}

/* ---- what Python sees ------------------------------------------------------------ */

static PyObject *
heap_watch_add(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"receiver", "hold", "fail", NULL};
    static const ph_gcwatch_hooks hooks = {watch_describe, watch_deliver, watch_discard,
                                           watch_free};
    PyObject *receiver;
    int hold = 0, fail = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|pp", names, &receiver, &hold,
                                     &fail)) {
        return NULL;
    }
    heap_watch *watch = malloc(sizeof *watch);
    if (watch == NULL) {
        return PyErr_NoMemory();
    }
    heap_watches++;
    *watch = (heap_watch){Py_NewRef(receiver), hold != 0, fail != 0};
    uint64_t id;
    nt_error err = {.offset = NT_NO_OFFSET};
    if (ph_gcwatch_add(&hooks, watch, &id, &err) != NT_OK) {
        watch_free(watch);
        PyErr_SetString(PyExc_RuntimeError, err.message);
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *
heap_watch_remove(PyObject *module, PyObject *id)
{
    (void)module;
    const unsigned long long number = PyLong_AsUnsignedLongLong(id);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(ph_gcwatch_remove(number));
}

static PyObject *
heap_watch_is_on(PyObject *module, PyObject *id)
{
    (void)module;
    const unsigned long long number = PyLong_AsUnsignedLongLong(id);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(ph_gcwatch_is_on(number));
}

static PyObject *
heap_watch_status(PyObject *module, PyObject *unused)
{
    ph_gcwatch_status s;
    (void)module;
    (void)unused;
    ph_gcwatch_get_status(&s);
    return Py_BuildValue(
        "{s:I,s:N,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:s,s:l,s:l}", "subscribers",
        (unsigned)s.subscribers, "listed", PyBool_FromLong(s.listed), "collections",
        (unsigned long long)s.collections, "walked", (unsigned long long)s.walked,
        "predicted", (unsigned long long)s.predicted, "described",
        (unsigned long long)s.described, "survivors", (unsigned long long)s.survivors,
        "refused", (unsigned long long)s.refused, "spent_ns",
        (unsigned long long)s.spent_ns, "longest_ns", (unsigned long long)s.longest_ns,
        "refusal", s.refusal, "records_left", heap_records, "watches_left",
        heap_watches);
}

/* The targets of a node as a list; None for NT_NONE. */
static PyObject *
heap_targets(const ph_heap *heap, uint32_t node)
{
    const nt_graph *graph = ph_heap_graph(heap);
    if (node == NT_NONE) {
        Py_RETURN_NONE;
    }
    const uint32_t first = graph->first[node];
    const uint32_t count = graph->first[node + 1] - first;
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *target = ph_heap_object(heap, graph->targets[first + i]);
        PyList_SET_ITEM(list, i, Py_NewRef(target));
    }
    return list;
}

/* For each item of a list, what it leads to in a walk, or None where the walk did not
 * take it. */
static PyObject *
heap_edges(PyObject *module, PyObject *args)
{
    PyObject *items;
    int extent, leaves;
    ph_heap *heap = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    (void)module;
    if (!PyArg_ParseTuple(args, "O!ip", &PyList_Type, &items, &extent, &leaves)) {
        return NULL;
    }
    if (ph_walk_prepare(&err) != NT_OK ||
        ph_heap_new((ph_extent)extent, leaves != 0, &heap, &err) != NT_OK) {
        PyErr_SetString(PyExc_RuntimeError, err.message);
        return NULL;
    }
    PyObject *result = PyList_New(PyList_GET_SIZE(items));
    for (Py_ssize_t i = 0; result != NULL && i < PyList_GET_SIZE(items); i++) {
        const uint32_t node = ph_heap_find(heap, PyList_GET_ITEM(items, i));
        PyObject *targets = heap_targets(heap, node);
        if (targets == NULL) {
            Py_CLEAR(result);
        } else {
            PyList_SET_ITEM(result, i, targets);
        }
    }
    ph_heap_free(heap);
    return result;
}

/* Whether something that is no object of the walk holds the first item of a list. */
static PyObject *
heap_is_root(PyObject *module, PyObject *args)
{
    PyObject *list;
    int extent, leaves, root = 0;
    ph_heap *heap = NULL;
    nt_bitset roots = {.words = NULL};
    nt_error err = {.offset = NT_NO_OFFSET};
    (void)module;
    if (!PyArg_ParseTuple(args, "O!ip", &PyList_Type, &list, &extent, &leaves)) {
        return NULL;
    }
    if (ph_walk_prepare(&err) != NT_OK ||
        ph_heap_new((ph_extent)extent, leaves != 0, &heap, &err) != NT_OK ||
        ph_heap_roots(heap, &roots, &err) != NT_OK) {
        ph_heap_free(heap);
        PyErr_SetString(PyExc_RuntimeError, err.message);
        return NULL;
    }
    const uint32_t node = ph_heap_find(heap, PyList_GET_ITEM(list, 0));
    root = node != NT_NONE && nt_bitset_has(&roots, node);
    nt_bitset_clear(&roots);
    ph_heap_free(heap);
    return PyBool_FromLong(root);
}

/* A walk of an extent with what a collection would find in it; NULL with an exception.
 */
static ph_heap *
heap_walk(PyObject *extent, nt_bitset *dead, uint32_t *count)
{
    ph_heap *heap = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    const long value = PyLong_AsLong(extent);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (ph_walk_prepare(&err) != NT_OK ||
        ph_heap_new((ph_extent)value, false, &heap, &err) != NT_OK ||
        ph_heap_unreachable(heap, dead, count, &err) != NT_OK) {
        ph_heap_free(heap);
        PyErr_SetString(PyExc_RuntimeError, err.message);
        return NULL;
    }
    return heap;
}

/* (id, name of the type) of what a collection of an extent would find now. No object is
 * touched but for its type, which a dead object keeps alive: so no collection may begin
 * for what is made. */
static PyObject *
heap_unreachable(PyObject *module, PyObject *extent)
{
    nt_bitset dead = {.words = NULL};
    uint32_t count;
    (void)module;
    ph_heap *heap = heap_walk(extent, &dead, &count);
    if (heap == NULL) {
        return NULL;
    }
    const int enabled = PyGC_Disable();
    PyObject *list = PyList_New(count);
    Py_ssize_t used = 0;
    for (size_t n = nt_bitset_next(&dead, 0); list != NULL && n != NT_NO_MEMBER;
         n = nt_bitset_next(&dead, n + 1)) {
        PyObject *object = ph_heap_object(heap, (uint32_t)n);
        PyObject *member =
            Py_BuildValue("(Ns)", PyLong_FromVoidPtr(object), Py_TYPE(object)->tp_name);
        if (member == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, used++, member);
        }
    }
    if (enabled) {
        PyGC_Enable();
    }
    nt_bitset_clear(&dead);
    ph_heap_free(heap);
    return list;
}

/* A walk's objects, references, unreachable objects, and bytes held and at most. */
static PyObject *
heap_facts(PyObject *module, PyObject *extent)
{
    nt_bitset dead = {.words = NULL};
    uint32_t count;
    size_t peak;
    (void)module;
    ph_heap *heap = heap_walk(extent, &dead, &count);
    if (heap == NULL) {
        return NULL;
    }
    const size_t bytes = ph_heap_bytes(heap, &peak);
    PyObject *facts = Py_BuildValue(
        "{s:I,s:I,s:I,s:n,s:n}", "objects", (unsigned)ph_heap_count(heap), "edges",
        (unsigned)ph_heap_graph(heap)->edge_count, "unreachable", (unsigned)count,
        "bytes", (Py_ssize_t)bytes, "peak_bytes", (Py_ssize_t)peak);
    nt_bitset_clear(&dead);
    ph_heap_free(heap);
    return facts;
}

PyMethodDef selftest_heap_methods[] = {
    {"heap_unreachable", heap_unreachable, METH_O, NULL},
    {"heap_facts", heap_facts, METH_O, NULL},
    {"heap_watch_add", (PyCFunction)(void (*)(void))heap_watch_add,
     METH_VARARGS | METH_KEYWORDS, NULL},
    {"heap_watch_remove", heap_watch_remove, METH_O, NULL},
    {"heap_watch_is_on", heap_watch_is_on, METH_O, NULL},
    {"heap_watch_status", heap_watch_status, METH_NOARGS, NULL},
    {"heap_edges", heap_edges, METH_VARARGS, NULL},
    {"heap_is_root", heap_is_root, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
