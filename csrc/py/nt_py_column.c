/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <string.h>

typedef struct py_column {
    PyObject_HEAD PyObject *owner; /* keeps `data` alive; NULL: nobody else does */
    const void *data;
    void *own;                /* `data`, where it is freed with the column; else NULL */
    Py_ssize_t shape, stride; /* items, and bytes of one */
    char format[2];
} py_column;

static Py_ssize_t
column_item_size(char format)
{
    switch (format) {
    case 'B': return 1;
    case 'i':
    case 'I': return 4;
    default: return 8;
    }
}

static py_column *
column_new(nt_py_state *state, Py_ssize_t count, char format)
{
    py_column *column = PyObject_New(py_column, state->column_type);
    if (column == NULL) {
        return NULL;
    }
    column->owner = NULL;
    column->data = NULL;
    column->own = NULL;
    column->shape = count;
    column->stride = column_item_size(format);
    column->format[0] = format;
    column->format[1] = '\0';
    return column;
}

PyObject *
nt_py_column(nt_py_state *state, PyObject *owner, const void *data, Py_ssize_t count,
             char format)
{
    py_column *column = column_new(state, count, format);
    if (column != NULL) {
        column->owner = Py_NewRef(owner);
        column->data = data;
    }
    return (PyObject *)column;
}

PyObject *
nt_py_own_column(nt_py_state *state, Py_ssize_t count, char format, void **data)
{
    const nt_alloc alloc = nt_alloc_system();
    py_column *column = column_new(state, count, format);
    if (column == NULL) {
        return NULL;
    }
    column->own = nt_allocate(&alloc, (size_t)(count * column->stride));
    column->data = column->own;
    if (column->own == NULL && count != 0) {
        Py_DECREF(column);
        return PyErr_NoMemory();
    }
    *data = column->own;
    return (PyObject *)column;
}

static void
column_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    py_column *column = (py_column *)self;
    const nt_alloc alloc = nt_alloc_system();
    nt_release(&alloc, column->own, (size_t)(column->shape * column->stride));
    Py_CLEAR(column->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
column_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    static const char nothing[1];
    py_column *column = (py_column *)self;
    const Py_ssize_t bytes = column->shape * column->stride;
    void *data = column->data == NULL ? (void *)nothing : (void *)column->data;
    if (PyBuffer_FillInfo(view, self, data, bytes, 1, flags) < 0) {
        return -1;
    }
    view->itemsize = column->stride;
    view->format = (flags & PyBUF_FORMAT) != 0 ? column->format : NULL;
    if ((flags & PyBUF_ND) == PyBUF_ND) {
        view->shape = &column->shape;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) {
        view->strides = &column->stride;
    }
    return 0;
}

static Py_ssize_t
column_length(PyObject *self)
{
    return ((py_column *)self)->shape;
}

static PyMethodDef column_methods[] = {
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot column_slots[] = {
    {Py_tp_dealloc, column_dealloc},
    {Py_bf_getbuffer, column_get_buffer},
    {Py_sq_length, column_length},
    {Py_tp_methods, column_methods},
    {0, NULL},
};

PyType_Spec nt_py_column_spec = {
    .name = "neutracer._core.Column",
    .basicsize = sizeof(py_column),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = column_slots,
};

PyObject *
nt_py_columns(nt_py_state *state, PyObject *owner, const void *columns, size_t count,
              const nt_py_column_def *defs, size_t def_count)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < def_count; i++) {
        const void *data;
        memcpy(&data, (const char *)columns + defs[i].offset, sizeof data);
        if (data == NULL && count != 0) {
            continue;
        }
        PyObject *column =
            nt_py_column(state, owner, data, (Py_ssize_t)count, defs[i].format);
        if (column == NULL || PyDict_SetItemString(dict, defs[i].name, column) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(column);
    }
    return dict;
}

PyDoc_STRVAR(pick_doc, "pick(column, rows, /)\n--\n\n"
                       "The items of a buffer at native 32-bit row numbers, as bytes.");

static PyObject *
pick_items(const Py_buffer *column, const Py_buffer *rows)
{
    const size_t count = (size_t)rows->len / 4, width = (size_t)column->itemsize;
    const size_t items = (size_t)column->len / width;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * width));
    char *out = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        uint32_t row;
        memcpy(&row, (const char *)rows->buf + 4 * i, 4);
        if (row >= items) {
            Py_DECREF(bytes);
            PyErr_SetString(PyExc_IndexError, "a row lies outside of the column");
            return NULL;
        }
        memcpy(out + i * width, (const char *)column->buf + row * width, width);
    }
    return bytes;
}

static PyObject *
pick_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *from;
    Py_buffer column, rows;
    if (!PyArg_ParseTuple(args, "Oy*", &from, &rows)) {
        return NULL;
    }
    PyObject *picked = NULL;
    if (PyObject_GetBuffer(from, &column, PyBUF_CONTIG_RO | PyBUF_FORMAT) == 0) {
        picked = pick_items(&column, &rows);
        PyBuffer_Release(&column);
    }
    PyBuffer_Release(&rows);
    return picked;
}

PyMethodDef nt_py_pick_methods[] = {
    {"pick", pick_rows, METH_VARARGS, pick_doc},
    {NULL, NULL, 0, NULL},
};
