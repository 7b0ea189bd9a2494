/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that the garbage collector tracks: what it would find, and figures. */
#include "nt_py.h"

#include <time.h>

#include "ph_names.h"
#include "ph_walk.h"

PyObject *
nt_py_raise_heap(nt_status status, const nt_error *err)
{
    return nt_py_raise_unavailable(status, err,
                                   "a view of the garbage collector's objects");
}

static PyObject *
heap_py_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = ph_walk_prepare(&err);
    if (status == NT_OK) {
        status = ph_names_prepare(&err);
    }
    return status == NT_OK ? Py_NewRef(Py_None) : nt_py_raise_heap(status, &err);
}

/* A walk of the extent that an argument names, or NULL with an exception. */
static ph_heap *
heap_walk(int extent)
{
    ph_heap *heap = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    if (extent < PH_YOUNG || extent > PH_ALL) {
        PyErr_Format(PyExc_ValueError, "extent must be 0 to 3, not %d", extent);
        return NULL;
    }
    nt_status status = ph_walk_prepare(&err);
    if (status == NT_OK) {
        status = ph_heap_new((ph_extent)extent, false, &heap, &err);
    }
    if (status != NT_OK) {
        (void)nt_py_raise_heap(status, &err);
    }
    return heap;
}

/* The ids and the names of the types of some nodes. No object is touched but for its
 * type, which a dead object keeps alive: so no collection may begin for what is made.
 */
static PyObject *
heap_members(const ph_heap *heap, const nt_bitset *set, uint32_t count)
{
    const int enabled = PyGC_Disable();
    PyObject *list = PyList_New(count);
    Py_ssize_t used = 0;
    for (size_t n = nt_bitset_next(set, 0); list != NULL && n != NT_NO_MEMBER;
         n = nt_bitset_next(set, n + 1)) {
        PyObject *object = ph_heap_object(heap, (uint32_t)n);
        PyObject *member = Py_BuildValue("(NN)", PyLong_FromVoidPtr(object),
                                         nt_py_message(Py_TYPE(object)->tp_name));
        if (member == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, used++, member);
        }
    }
    if (enabled) {
        PyGC_Enable();
    }
    return list;
}

static PyObject *
heap_py_unreachable(PyObject *Py_UNUSED(module), PyObject *args)
{
    int extent;
    if (!PyArg_ParseTuple(args, "i:heap_unreachable", &extent)) {
        return NULL;
    }
    ph_heap *heap = heap_walk(extent);
    if (heap == NULL) {
        return NULL;
    }
    nt_bitset dead = {.words = NULL};
    nt_error err = {.offset = NT_NO_OFFSET};
    uint32_t count;
    const nt_status status = ph_heap_unreachable(heap, &dead, &count, &err);
    PyObject *result = status == NT_OK ? heap_members(heap, &dead, count)
                                       : nt_py_raise_heap(status, &err);
    nt_bitset_clear(&dead);
    ph_heap_free(heap);
    return result;
}

static uint64_t
heap_now(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static PyObject *
heap_py_facts(PyObject *Py_UNUSED(module), PyObject *args)
{
    int extent;
    if (!PyArg_ParseTuple(args, "i:heap_facts", &extent)) {
        return NULL;
    }
    nt_bitset dead = {.words = NULL};
    nt_error err = {.offset = NT_NO_OFFSET};
    uint32_t count;
    const uint64_t begin = heap_now();
    ph_heap *heap = heap_walk(extent);
    if (heap == NULL) {
        return NULL;
    }
    const uint64_t walked = heap_now();
    const nt_status status = ph_heap_unreachable(heap, &dead, &count, &err);
    const uint64_t end = heap_now();
    size_t peak;
    const size_t bytes = ph_heap_bytes(heap, &peak);
    PyObject *result =
        status != NT_OK
            ? nt_py_raise_heap(status, &err)
            : Py_BuildValue("{s:I,s:I,s:I,s:n,s:n,s:K,s:K}", "objects",
                            (unsigned)ph_heap_count(heap), "edges",
                            (unsigned)ph_heap_graph(heap)->edge_count, "unreachable",
                            (unsigned)count, "bytes", (Py_ssize_t)bytes, "peak_bytes",
                            (Py_ssize_t)peak, "walk_ns",
                            (unsigned long long)(walked - begin), "ns",
                            (unsigned long long)(end - begin));
    nt_bitset_clear(&dead);
    ph_heap_free(heap);
    return result;
}

PyDoc_STRVAR(prepare_doc,
             "heap_prepare()\n--\n\n"
             "Checks that the garbage collector's objects can be walked here.\n\n"
             "Raises neutracer.UnavailableError with the reason where they can't.");
PyDoc_STRVAR(unreachable_doc,
             "heap_unreachable(extent, /)\n--\n\n"
             "(id, type) of what a collection of generation 0, 1 or 2 would find now;\n"
             "3: with what gc.freeze set aside.");
PyDoc_STRVAR(
    facts_doc,
    "heap_facts(extent, /)\n--\n\n"
    "A walk's objects, edges, unreachable objects, bytes held and at most, and "
    "times.");

PyMethodDef nt_py_heap_methods[] = {
    {"heap_prepare", heap_py_prepare, METH_NOARGS, prepare_doc},
    {"heap_unreachable", heap_py_unreachable, METH_VARARGS, unreachable_doc},
    {"heap_facts", heap_py_facts, METH_VARARGS, facts_doc},
    {NULL, NULL, 0, NULL},
};
