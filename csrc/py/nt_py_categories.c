/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "trace/nt_categories.h"
#include "trace/nt_passes.h"

/* What is made without the GIL. */
typedef struct passes_made {
    nt_alloc alloc;
    nt_passes *passes;
    uint8_t *rules;
    size_t rows;
} passes_made;

static nt_status
passes_make(passes_made *made, const nt_timeline *timeline, const Py_buffer *frames,
            nt_error *err)
{
    made->rows = nt_timeline_allocations(timeline)->count;
    NT_TRY(nt_take(&made->alloc, (void **)&made->rules, made->rows, err));
    NT_TRY(nt_passes_new(&made->alloc, timeline, frames->buf,
                         (size_t)frames->len / sizeof(uint16_t), &made->passes, err));
    return nt_categories_decide(&made->alloc, made->passes, made->rules, err);
}

static PyObject *
passes_bytes(const void *data, size_t size)
{
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
}

static PyObject *
passes_result(const passes_made *made, const nt_timeline *timeline)
{
    size_t spans, calls;
    const nt_span *backward = nt_passes_backward(made->passes, &spans);
    const int32_t *forward = nt_passes_forward(made->passes, &calls);
    return Py_BuildValue(
        "NNNN",
        passes_bytes(nt_passes_roles(made->passes), nt_timeline_event_count(timeline)),
        passes_bytes(backward, spans * sizeof *backward),
        passes_bytes(forward, calls * sizeof *forward),
        passes_bytes(made->rules, made->rows));
}

PyDoc_STRVAR(
    passes_doc,
    "passes(timeline, frames, /)\n--\n\n"
    "(roles by event, backward passes, forward events, rules by allocation) as\n"
    "bytes: the second and third are native 32-bit numbers, begin and end in\n"
    "turns. frames: what each frame says, as native 16-bit numbers.");

static PyObject *
passes_new(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *timeline;
    Py_buffer frames;
    if (!PyArg_ParseTuple(args, "O!y*", state->timeline_type, &timeline, &frames)) {
        return NULL;
    }
    const nt_timeline *t = ((nt_py_timeline *)timeline)->timeline;
    nt_error err = {.offset = NT_NO_OFFSET};
    passes_made made = {.alloc = nt_alloc_system()};
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = passes_make(&made, t, &frames, &err);
    Py_END_ALLOW_THREADS PyObject *result =
        status == NT_OK ? passes_result(&made, t) : nt_py_raise(status, &err);
    nt_passes_free(made.passes);
    nt_release(&made.alloc, made.rules, made.rows);
    PyBuffer_Release(&frames);
    return result;
}

PyDoc_STRVAR(role_of_doc,
             "role_of(frames, /)\n--\n\n"
             "The role of one stack: what its frames say, innermost first, as\n"
             "native 16-bit numbers.");

static PyObject *
passes_role_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer frames;
    if (!PyArg_ParseTuple(args, "y*", &frames)) {
        return NULL;
    }
    const long role = nt_role_of(frames.buf, (size_t)frames.len / sizeof(uint16_t));
    PyBuffer_Release(&frames);
    return PyLong_FromLong(role);
}

/* 0 and the codes of a timeline's allocations, or -1 with an exception. */
static int
categories_codes(const nt_timeline *t, const Py_buffer *codes, int count)
{
    const size_t rows = nt_timeline_allocations(t)->count;
    if (count < 1 || count >= UINT8_MAX || (size_t)codes->len != rows) {
        PyErr_SetString(PyExc_ValueError, "one code an allocation");
        return -1;
    }
    for (size_t row = 0; row < rows; row++) {
        if (((const uint8_t *)codes->buf)[row] > count) {
            PyErr_SetString(PyExc_ValueError, "a code is out of range");
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(sum_doc,
             "sum_codes(timeline, codes, count, event, /)\n--\n\n"
             "By code what is allocated after an event: tuples (bytes, requested\n"
             "bytes, allocations). codes: one byte an allocation, below count.");

static PyObject *
categories_sum(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *timeline, *list = NULL;
    Py_buffer codes;
    int count, event;
    if (!PyArg_ParseTuple(args, "O!y*ii", state->timeline_type, &timeline, &codes,
                          &count, &event)) {
        return NULL;
    }
    const nt_timeline *t = ((nt_py_timeline *)timeline)->timeline;
    nt_category_sum sums[UINT8_MAX];
    if (categories_codes(t, &codes, count) == 0) {
        nt_categories_sum(t, codes.buf, event, sums, (size_t)count + 1);
        list = PyList_New(count);
    }
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("KKI", (unsigned long long)sums[i].bytes,
                                       (unsigned long long)sums[i].requested_bytes,
                                       (unsigned)sums[i].count);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, item);
        }
    }
    PyBuffer_Release(&codes);
    return list;
}

PyDoc_STRVAR(weigh_doc, "weigh_codes(timeline, codes, count, /)\n--\n\n"
                        "By code the bytes times the events lived, as floats.");

static PyObject *
categories_weigh(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *timeline, *list = NULL;
    Py_buffer codes;
    int count;
    if (!PyArg_ParseTuple(args, "O!y*i", state->timeline_type, &timeline, &codes,
                          &count)) {
        return NULL;
    }
    const nt_timeline *t = ((nt_py_timeline *)timeline)->timeline;
    double weights[UINT8_MAX];
    if (categories_codes(t, &codes, count) == 0) {
        nt_categories_weigh(t, codes.buf, weights, (size_t)count + 1);
        list = PyList_New(count);
    }
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *item = PyFloat_FromDouble(weights[i]);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, item);
        }
    }
    PyBuffer_Release(&codes);
    return list;
}

PyDoc_STRVAR(series_doc,
             "series_codes(timeline, codes, count, /)\n--\n\n"
             "The bytes allocated after each event, code by code, as native\n"
             "64-bit unsigned integers; the code `count` belongs to none.");

static PyObject *
categories_series(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *timeline, *bytes = NULL;
    Py_buffer codes;
    int count;
    if (!PyArg_ParseTuple(args, "O!y*i", state->timeline_type, &timeline, &codes,
                          &count)) {
        return NULL;
    }
    const nt_timeline *t = ((nt_py_timeline *)timeline)->timeline;
    if (categories_codes(t, &codes, count) == 0) {
        const size_t values = (size_t)count * nt_timeline_event_count(t);
        bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(values * 8));
    }
    if (bytes != NULL) {
        /* The data of a bytes object is aligned for any type. */
        uint64_t *out = (uint64_t *)(void *)PyBytes_AS_STRING(bytes);
        Py_BEGIN_ALLOW_THREADS nt_categories_series(t, codes.buf, (size_t)count, out);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&codes);
    return bytes;
}

PyMethodDef nt_py_categories_methods[] = {
    {"passes", passes_new, METH_VARARGS, passes_doc},
    {"role_of", passes_role_of, METH_VARARGS, role_of_doc},
    {"sum_codes", categories_sum, METH_VARARGS, sum_doc},
    {"series_codes", categories_series, METH_VARARGS, series_doc},
    {"weigh_codes", categories_weigh, METH_VARARGS, weigh_doc},
    {NULL, NULL, 0, NULL},
};
