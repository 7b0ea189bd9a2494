/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <string.h>

#include "analysis/nt_excerpt.h"
#include "base/nt_planes.h"

static PyObject *
excerpt_bytes(const uint32_t *numbers, size_t count)
{
    return PyBytes_FromStringAndSize((const char *)numbers,
                                     (Py_ssize_t)(count * sizeof *numbers));
}

PyDoc_STRVAR(excerpt_doc,
             "excerpt(timeline, most, first, end, /)\n--\n\n"
             "What a page keeps of a timeline, as native 32-bit numbers: rows of the\n"
             "allocations, events, and by event how many kept ones come before it.");

static PyObject *
excerpt_new(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *timeline;
    Py_ssize_t most, first, end;
    if (!PyArg_ParseTuple(args, "O!nnn", state->timeline_type, &timeline, &most, &first,
                          &end)) {
        return NULL;
    }
    if (most < 0 || first < 0 || end < 0) {
        PyErr_SetString(PyExc_ValueError, "an excerpt's numbers are not negative");
        return NULL;
    }
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_excerpt *excerpt = NULL;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_excerpt_new(&alloc, ((nt_py_timeline *)timeline)->timeline, (size_t)most,
                       (size_t)first, (size_t)end, &excerpt, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    size_t rows, events, places;
    const uint32_t *row = nt_excerpt_rows(excerpt, &rows);
    const uint32_t *event = nt_excerpt_events(excerpt, &events);
    const uint32_t *place = nt_excerpt_places(excerpt, &places);
    PyObject *result =
        Py_BuildValue("NNN", excerpt_bytes(row, rows), excerpt_bytes(event, events),
                      excerpt_bytes(place, places));
    nt_excerpt_free(excerpt);
    return result;
}

PyDoc_STRVAR(pick_doc, "pick(column, rows, /)\n--\n\n"
                       "The items of a buffer at native 32-bit row numbers, as bytes.");

static PyObject *
excerpt_pick_items(const Py_buffer *column, const Py_buffer *rows)
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
excerpt_pick(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *from;
    Py_buffer column, rows;
    if (!PyArg_ParseTuple(args, "Oy*", &from, &rows)) {
        return NULL;
    }
    PyObject *picked = NULL;
    if (PyObject_GetBuffer(from, &column, PyBUF_CONTIG_RO | PyBUF_FORMAT) == 0) {
        picked = excerpt_pick_items(&column, &rows);
        PyBuffer_Release(&column);
    }
    PyBuffer_Release(&rows);
    return picked;
}

PyDoc_STRVAR(renumber_doc,
             "renumber(events, places, /)\n--\n\n"
             "Native 32-bit numbers of events as their places; negative ones stay.");

static PyObject *
excerpt_renumber(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer events, places;
    if (!PyArg_ParseTuple(args, "y*y*", &events, &places)) {
        return NULL;
    }
    const size_t count = (size_t)events.len / 4, known = (size_t)places.len / 4;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * 4));
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        int32_t event;
        memcpy(&event, (const char *)events.buf + 4 * i, 4);
        if (event >= 0 && (size_t)event >= known) {
            PyErr_SetString(PyExc_IndexError, "an event lies behind the last place");
            Py_CLEAR(bytes);
        } else {
            const char *from = event < 0 ? (const char *)&event
                                         : (const char *)places.buf + 4 * (size_t)event;
            memcpy(PyBytes_AS_STRING(bytes) + 4 * i, from, 4);
        }
    }
    PyBuffer_Release(&events);
    PyBuffer_Release(&places);
    return bytes;
}

PyDoc_STRVAR(
    adds_up_doc,
    "adds_up(timeline, what, start, series, /)\n--\n\n"
    "Whether a timeline's series, a 64-bit number an event, is `start` and the\n"
    "sizes of its allocations (what is 0) or segments (1) that come and go.");

static PyObject *
excerpt_adds_up(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *object;
    int what;
    unsigned long long start;
    Py_buffer series;
    if (!PyArg_ParseTuple(args, "O!iKy*", state->timeline_type, &object, &what, &start,
                          &series)) {
        return NULL;
    }
    const nt_timeline *timeline = ((nt_py_timeline *)object)->timeline;
    const size_t events = nt_timeline_event_count(timeline);
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    const nt_segment_life_columns *s = nt_timeline_segments(timeline);
    PyObject *result = NULL;
    uint64_t *steps = PyMem_Malloc((events + 1) * sizeof *steps);
    if (steps == NULL) {
        PyErr_NoMemory();
    } else if ((size_t)series.len != events * 8) {
        PyErr_SetString(PyExc_ValueError, "a series has a 64-bit number an event");
    } else {
        bool adds_up;
        Py_BEGIN_ALLOW_THREADS adds_up =
            what == 0 ? nt_excerpt_adds_up(a->size, a->alloc_event, a->free_event,
                                           a->count, start, series.buf, events, steps)
                      : nt_excerpt_adds_up(s->size, s->alloc_event, s->free_event,
                                           s->count, start, series.buf, events, steps);
        Py_END_ALLOW_THREADS result = PyBool_FromLong(adds_up);
    }
    PyMem_Free(steps);
    PyBuffer_Release(&series);
    return result;
}

/* Item `at` of a buffer of integers; `format` is one of struct's letters. */
static inline int64_t
planes_item(const char *data, size_t at, char format)
{
    switch (format) {
    case 'b': return ((const int8_t *)data)[at];
    case 'B': return ((const uint8_t *)data)[at];
    case 'h': return ((const int16_t *)(const void *)data)[at];
    case 'H': return ((const uint16_t *)(const void *)data)[at];
    case 'i': return ((const int32_t *)(const void *)data)[at];
    case 'I': return ((const uint32_t *)(const void *)data)[at];
    default: return ((const int64_t *)(const void *)data)[at];
    }
}

/* Numbers from 2^63 on become negative, below what a column may hold. */
static char
planes_format(const Py_buffer *buffer)
{
    const char *format = buffer->format == NULL ? "B" : buffer->format;
    const char *known = "bBhHiIqQlL";
    if (strlen(format) != 1 || strchr(known, *format) == NULL ||
        (buffer->itemsize == 4 && strchr("lL", *format) != NULL)) {
        PyErr_SetString(PyExc_TypeError, "a column is of integers");
        return '\0';
    }
    return *format;
}

/* (type, scale, whether a value needs a double, planes) of `count` values. */
static PyObject *
planes_pack(const int64_t *values, size_t count, bool delta, bool grained)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_planes_form form;
    const nt_status status =
        nt_planes_measure(values, count, delta, grained, &form, &err);
    if (status != NT_OK) {
        PyErr_SetString(PyExc_OverflowError, err.message);
        return NULL;
    }
    PyObject *planes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * form.width));
    if (planes == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(planes);
    Py_BEGIN_ALLOW_THREADS nt_planes_write(values, count, &form, out);
    Py_END_ALLOW_THREADS static const char types[] = "BbHhIi";
    const int at = form.width == 1 ? 0 : form.width == 2 ? 2 : 4;
    const char type = form.width == 8 ? 'q' : types[at + form.is_signed];
    return Py_BuildValue("CINN", type, form.scale, PyBool_FromLong(form.needs_float),
                         planes);
}

PyDoc_STRVAR(planes_doc,
             "planes(values, delta, grained, base, /)\n--\n\n"
             "A buffer of integers, less a base, by planes: the type of array that "
             "holds what is\n"
             "stored, what it was divided by, whether a value needs more than 32\n"
             "bits, and the bytes. OverflowError above 53 bits.");

static PyObject *
excerpt_planes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *from;
    Py_buffer buffer;
    int delta, grained;
    unsigned long long base;
    if (!PyArg_ParseTuple(args, "OppK", &from, &delta, &grained, &base) ||
        PyObject_GetBuffer(from, &buffer, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0) {
        return NULL;
    }
    const char format = planes_format(&buffer);
    const size_t count = (size_t)(buffer.len / buffer.itemsize);
    int64_t *values = PyMem_Malloc((count + 1) * sizeof *values);
    PyObject *packed = NULL;
    if (values == NULL) {
        PyErr_NoMemory();
    } else if (format != '\0') {
        for (size_t i = 0; i < count; i++) {
            values[i] = (int64_t)((uint64_t)planes_item(buffer.buf, i, format) - base);
        }
        packed = planes_pack(values, count, delta != 0, grained != 0);
    }
    PyMem_Free(values);
    PyBuffer_Release(&buffer);
    return packed;
}

PyMethodDef nt_py_excerpt_methods[] = {
    {"excerpt", excerpt_new, METH_VARARGS, excerpt_doc},
    {"pick", excerpt_pick, METH_VARARGS, pick_doc},
    {"renumber", excerpt_renumber, METH_VARARGS, renumber_doc},
    {"adds_up", excerpt_adds_up, METH_VARARGS, adds_up_doc},
    {"planes", excerpt_planes, METH_VARARGS, planes_doc},
    {NULL, NULL, 0, NULL},
};
