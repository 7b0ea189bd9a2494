/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <string.h>

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
pick_rows(PyObject *module, PyObject *args)
{
    (void)module;
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
