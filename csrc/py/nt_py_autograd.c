/* SPDX-License-Identifier: Apache-2.0 */
/* What Python needs to read PyTorch's graph: all tensors, and the hooks of its nodes.
 */
#include "nt_py.h"

#include "nt_py_plain.h"
#include "ph_tensor.h"
#include "py_compat.h"

/* ---- all tensors ----------------------------------------------------------------- */

typedef struct autograd_tensors {
    PyObject **found; /* owned references */
    size_t count;
    size_t capacity;
} autograd_tensors;

static nt_status
tensors_collect(autograd_tensors *tensors, const ph_gc_link *head, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    for (const ph_gc_link *at = ph_gc_next(head); at != head; at = ph_gc_next(at)) {
        PyObject *object = ph_gc_object(at);
        ph_tensor facts;
        if (ph_tensor_check(object) && ph_tensor_read(object, &facts)) {
            NT_TRY(nt_grow(&alloc, (void **)&tensors->found, &tensors->capacity,
                           tensors->count + 1, sizeof *tensors->found, err));
            tensors->found[tensors->count++] = Py_NewRef(object);
        }
    }
    return NT_OK;
}

PyDoc_STRVAR(heap_tensors_doc,
             "heap_tensors()\n--\n\n"
             "A list of all tensors that are objects of Python. Empty where torch is\n"
             "not imported.");

static PyObject *
autograd_py_heap_tensors(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = nt_py_heap_learn(&err);
    ph_gc_lists lists;
    autograd_tensors tensors = {.found = NULL};
    if (status == NT_OK && ph_tensor_ready() && ph_gc_get_lists(&lists)) {
        for (int i = 0; i < PH_GC_GENERATIONS && status == NT_OK; i++) {
            status = tensors_collect(&tensors, lists.generations[i], &err);
        }
        if (status == NT_OK) {
            status = tensors_collect(&tensors, lists.frozen, &err);
        }
    }
    PyObject *list = status == NT_OK ? PyList_New((Py_ssize_t)tensors.count)
                                     : nt_py_raise_heap(status, &err);
    for (size_t i = 0; i < tensors.count; i++) {
        if (list == NULL) {
            Py_DECREF(tensors.found[i]);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, tensors.found[i]);
        }
    }
    const nt_alloc alloc = nt_alloc_system();
    nt_release(&alloc, tensors.found, tensors.capacity * sizeof *tensors.found);
    return list;
}

/* ---- nodes that have an object of Python ---------------------------------------- */

static size_t
nodes_count(const ph_gc_link *head)
{
    size_t count = 0;
    for (const ph_gc_link *at = ph_gc_next(head); at != head; at = ph_gc_next(at)) {
        count += ph_tensor_check_node(ph_gc_object(at));
    }
    return count;
}

PyDoc_STRVAR(heap_nodes_doc,
             "heap_nodes()\n--\n\n"
             "How many nodes of autograd's graph are objects of Python now.");

static PyObject *
autograd_py_heap_nodes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = nt_py_heap_learn(&err);
    ph_gc_lists lists;
    size_t count = 0;
    if (status != NT_OK) {
        return nt_py_raise_heap(status, &err);
    }
    if (ph_tensor_ready() && ph_gc_get_lists(&lists)) {
        for (int i = 0; i < PH_GC_GENERATIONS; i++) {
            count += nodes_count(lists.generations[i]);
        }
        count += nodes_count(lists.frozen);
    }
    return PyLong_FromSize_t(count);
}

/* ---- hooks of the graph's nodes
 * ------------------------------------------------------ */

PyDoc_STRVAR(node_begin_doc,
             "node_begin(node)\n--\n\n"
             "The first half of learning where a node keeps its hooks: it has none.");

static PyObject *
autograd_py_node_begin(PyObject *Py_UNUSED(module), PyObject *node)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_node_begin(node, &err);
    if (status != NT_OK) {
        return nt_py_raise_heap(status, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    node_learn_doc,
    "node_learn(node, before, after, tensor)\n--\n\n"
    "The second half: the same node, and the dicts of the hooks that it has got.");

static PyObject *
autograd_py_node_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *node, *dicts[PH_NODE_LISTS];
    if (!PyArg_ParseTuple(args, "OOOO:node_learn", &node, &dicts[0], &dicts[1],
                          &dicts[2])) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_node_learn(node, dicts, &err);
    if (status != NT_OK) {
        return nt_py_raise_heap(status, &err);
    }
    Py_RETURN_NONE;
}

#define MOST_DICTS 64

typedef struct autograd_hooks {
    PyObject *found[MOST_DICTS]; /* owned references */
    int lists[MOST_DICTS];
    Py_ssize_t count;
} autograd_hooks;

static int
hooks_visit(void *ctx, int list, PyObject *dict)
{
    autograd_hooks *hooks = ctx;
    hooks->found[hooks->count] = Py_NewRef(dict);
    hooks->lists[hooks->count++] = list;
    return hooks->count == MOST_DICTS;
}

PyDoc_STRVAR(node_hooks_doc,
             "node_hooks(node)\n--\n\n"
             "Pairs of a list's number and a dict of hooks; at most 64.");

static PyObject *
autograd_py_node_hooks(PyObject *Py_UNUSED(module), PyObject *node)
{
    autograd_hooks hooks = {.count = 0};
    (void)ph_node_each_hooks(node, hooks_visit, &hooks);
    PyObject *pairs = PyTuple_New(hooks.count);
    for (Py_ssize_t i = 0; i < hooks.count; i++) {
        PyObject *pair = pairs == NULL
                             ? NULL
                             : Py_BuildValue("(iO)", hooks.lists[i], hooks.found[i]);
        Py_DECREF(hooks.found[i]);
        if (pair == NULL) {
            Py_CLEAR(pairs);
        } else {
            PyTuple_SET_ITEM(pairs, i, pair);
        }
    }
    return pairs;
}

PyMethodDef nt_py_autograd_methods[] = {
    {"heap_tensors", autograd_py_heap_tensors, METH_NOARGS, heap_tensors_doc},
    {"heap_nodes", autograd_py_heap_nodes, METH_NOARGS, heap_nodes_doc},
    {"node_begin", autograd_py_node_begin, METH_O, node_begin_doc},
    {"node_learn", autograd_py_node_learn, METH_VARARGS, node_learn_doc},
    {"node_hooks", autograd_py_node_hooks, METH_O, node_hooks_doc},
    {NULL, NULL, 0, NULL},
};
