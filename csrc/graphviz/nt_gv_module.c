/* SPDX-License-Identifier: Apache-2.0 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "nt_gv_graph.h"

/* The exception that stands for a failed call; always returns -1. */
static int
module_raise(nt_status status, const nt_error *err)
{
    if (status == NT_NOMEM) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *text =
        PyUnicode_DecodeUTF8(err->message, (Py_ssize_t)strlen(err->message), "replace");
    if (text != NULL) {
        PyErr_SetObject(status == NT_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError,
                        text);
        Py_DECREF(text);
    }
    return -1;
}

/* UTF-8 that lives as long as `text`; ValueError where a NUL would cut it. */
static const char *
module_text(PyObject *text)
{
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 != NULL && strlen(utf8) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "a text holds a NUL character");
        return NULL;
    }
    return utf8;
}

/* The next pair of a dict from str to str: 1, or 0 at its end, or -1. */
static int
module_next(PyObject *attributes, Py_ssize_t *at, const char **name, const char **value)
{
    PyObject *key, *item;
    if (!PyDict_Next(attributes, at, &key, &item)) {
        return 0;
    }
    *name = module_text(key);
    *value = *name == NULL ? NULL : module_text(item);
    return *value == NULL ? -1 : 1;
}

static int
module_set(nt_gv_item *item, PyObject *attributes)
{
    const char *name, *value;
    Py_ssize_t at = 0;
    int more;
    while ((more = module_next(attributes, &at, &name, &value)) > 0) {
        nt_error err = {.offset = NT_NO_OFFSET};
        const nt_status status = nt_gv_set(item, name, value, &err);
        if (status != NT_OK) {
            return module_raise(status, &err);
        }
    }
    return more;
}

static int
module_set_defaults(nt_gv_graph *graph, nt_gv_defaults which, PyObject *attributes)
{
    const char *name, *value;
    Py_ssize_t at = 0;
    int more;
    while ((more = module_next(attributes, &at, &name, &value)) > 0) {
        nt_error err = {.offset = NT_NO_OFFSET};
        const nt_status status = nt_gv_set_default(graph, which, name, value, &err);
        if (status != NT_OK) {
            return module_raise(status, &err);
        }
    }
    return more;
}

static int
module_add_nodes(nt_gv_graph *graph, PyObject *nodes)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); i++) {
        PyObject *node = PyList_GET_ITEM(nodes, i);
        const char *name;
        PyObject *attributes;
        if (!PyTuple_Check(node)) {
            PyErr_SetString(PyExc_TypeError, "a node is a tuple");
            return -1;
        }
        if (!PyArg_ParseTuple(node, "sO!", &name, &PyDict_Type, &attributes)) {
            return -1;
        }
        nt_error err = {.offset = NT_NO_OFFSET};
        nt_gv_item *item;
        const nt_status status = nt_gv_add_node(graph, name, &item, &err);
        if (status != NT_OK) {
            return module_raise(status, &err);
        }
        if (module_set(item, attributes) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
module_add_edges(nt_gv_graph *graph, PyObject *edges)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(edges); i++) {
        PyObject *edge = PyList_GET_ITEM(edges, i);
        const char *tail, *head;
        PyObject *attributes;
        if (!PyTuple_Check(edge)) {
            PyErr_SetString(PyExc_TypeError, "an edge is a tuple");
            return -1;
        }
        if (!PyArg_ParseTuple(edge, "ssO!", &tail, &head, &PyDict_Type, &attributes)) {
            return -1;
        }
        nt_error err = {.offset = NT_NO_OFFSET};
        nt_gv_item *item;
        const nt_status status = nt_gv_add_edge(graph, tail, head, &item, &err);
        if (status != NT_OK) {
            return module_raise(status, &err);
        }
        if (module_set(item, attributes) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
module_picture(nt_gv_graph *graph, const char *engine, const char *format)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_gv_picture picture;
    const nt_status status = nt_gv_render(graph, engine, format, &picture, &err);
    if (status != NT_OK) {
        module_raise(status, &err);
        return NULL;
    }
    return Py_BuildValue("(y#dd)", picture.bytes, (Py_ssize_t)picture.size,
                         picture.width, picture.height);
}

PyDoc_STRVAR(
    render_doc,
    "render(engine, format, graph, frame, node, edge, nodes, edges, /)\n--\n\n"
    "Lays a graph out and renders it: (bytes, width, height), in points.\n\n"
    "graph, node and edge are dicts of attributes: of the whole, and defaults; frame\n"
    "is those of a frame around all nodes, or None. nodes is a list of (name,\n"
    "attributes), edges of (tail, head, attributes).\n\n"
    "Raises ValueError for a wrong argument, and RuntimeError with what Graphviz "
    "said.");

static PyObject *
module_render(PyObject *module, PyObject *args)
{
    (void)module;
    const char *engine, *format;
    PyObject *whole, *frame, *node, *edge, *nodes, *edges;
    if (!PyArg_ParseTuple(args, "ssO!OO!O!O!O!:render", &engine, &format, &PyDict_Type,
                          &whole, &frame, &PyDict_Type, &node, &PyDict_Type, &edge,
                          &PyList_Type, &nodes, &PyList_Type, &edges)) {
        return NULL;
    }
    if (frame != Py_None && !PyDict_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "frame is a dict or None");
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_gv_graph *graph = NULL;
    const nt_status status = nt_gv_new(frame != Py_None, &graph, &err);
    if (status != NT_OK) {
        module_raise(status, &err);
        return NULL;
    }
    PyObject *result = NULL;
    if (module_set(nt_gv_whole(graph), whole) == 0 &&
        (frame == Py_None || module_set(nt_gv_frame(graph), frame) == 0) &&
        module_set_defaults(graph, NT_GV_NODES, node) == 0 &&
        module_set_defaults(graph, NT_GV_EDGES, edge) == 0 &&
        module_add_nodes(graph, nodes) == 0 && module_add_edges(graph, edges) == 0) {
        result = module_picture(graph, engine, format);
    }
    nt_gv_free(graph);
    return result;
}

static PyMethodDef module_methods[] = {
    {"render", module_render, METH_VARARGS, render_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_graphviz",
    .m_doc = "Pictures by Graphviz, for a process that does nothing else.",
    .m_size = 0,
    .m_methods = module_methods,
};

PyMODINIT_FUNC
PyInit__graphviz(void)
{
    return PyModuleDef_Init(&module_def);
}
