/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "picture/nt_pyramid.h"
#include "picture/nt_raster.h"

typedef struct py_raster {
    PyObject_HEAD nt_py_timeline *timeline; /* owned: the raster reads from it */
    nt_raster *raster;
} py_raster;

static const nt_raster *
raster_of(PyObject *self)
{
    return ((py_raster *)self)->raster;
}

PyDoc_STRVAR(raster_doc,
             "Raster(timeline, by_time, raw_addresses=False, until_freed=False,\n"
             "       stream=None, pool=None)\n--\n\n"
             "A timeline's blocks and segments on the axes of a picture.");

/* Fills the filter from None or a number, and None or a pair of them. */
static int
raster_filter(PyObject *stream, PyObject *pool, nt_raster_options *options)
{
    unsigned long long first = 0, second = 0;
    options->by_stream = stream != Py_None;
    options->by_pool = pool != Py_None;
    if (options->by_stream) {
        options->stream = PyLong_AsUnsignedLongLong(stream);
    }
    if (!PyErr_Occurred() && options->by_pool) {
        if (!PyTuple_Check(pool)) {
            PyErr_SetString(PyExc_TypeError, "a pool is a tuple of two numbers");
        } else if (PyArg_ParseTuple(pool, "KK", &first, &second)) {
            options->pool = (nt_pool_id){first, second};
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
raster_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "timeline", "by_time", "raw_addresses", "until_freed", "stream", "pool", NULL};
    nt_py_state *state = nt_py_state_of(type);
    PyObject *timeline, *stream = Py_None, *pool = Py_None;
    int by_time, raw = 0, until_freed = 0;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!p|ppOO:Raster", names,
                                     state->timeline_type, &timeline, &by_time, &raw,
                                     &until_freed, &stream, &pool)) {
        return NULL;
    }
    nt_raster_options options = {
        .by_time = by_time != 0,
        .raw_addresses = raw != 0,
        .until_freed = until_freed != 0,
    };
    if (raster_filter(stream, pool, &options) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_raster *raster = NULL;
    const nt_alloc alloc = nt_alloc_system();
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_raster_new(
        &alloc, ((nt_py_timeline *)timeline)->timeline, &options, &raster, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    py_raster *self = PyObject_New(py_raster, type);
    if (self == NULL) {
        nt_raster_free(raster);
        return NULL;
    }
    self->timeline = (nt_py_timeline *)Py_NewRef(timeline);
    self->raster = raster;
    return (PyObject *)self;
}

static void
raster_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_raster_free(((py_raster *)self)->raster);
    Py_DECREF(((py_raster *)self)->timeline);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(extent_doc, "extent()\n--\n\n"
                         "The ends of the time axis and of the address axis.");

static PyObject *
raster_extent(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_raster *r = raster_of(self);
    return Py_BuildValue("KK", (unsigned long long)nt_raster_width(r),
                         (unsigned long long)nt_raster_height(r));
}

PyDoc_STRVAR(ranges_doc, "ranges()\n--\n\n"
                         "Tuples (address, size, position), by address.");

static PyObject *
raster_ranges(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_raster_range *ranges = nt_raster_ranges(raster_of(self), &count);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("KKK", (unsigned long long)ranges[i].address,
                                       (unsigned long long)ranges[i].size,
                                       (unsigned long long)ranges[i].position);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

PyDoc_STRVAR(states_doc,
             "states()\n--\n\n"
             "Where each state begins as native 64-bit numbers, and the axis' end.");

static PyObject *
raster_states(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_rising states = nt_raster_states(raster_of(self), &count);
    PyObject *bytes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((count + 1) * sizeof(uint64_t)));
    uint64_t *out = bytes == NULL ? NULL : (void *)PyBytes_AS_STRING(bytes);
    for (size_t s = 0; out != NULL && s <= count; s++) {
        out[s] = nt_rising_at(states, s);
    }
    return bytes;
}

PyDoc_STRVAR(series_doc,
             "series(metric, /)\n--\n\n"
             "Bytes of what is drawn in each state as native 64-bit numbers.");

static PyObject *
raster_series(PyObject *self, PyObject *metric)
{
    const long number = PyLong_AsLong(metric);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    size_t count;
    (void)nt_raster_states(raster_of(self), &count);
    PyObject *bytes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));
    if (bytes == NULL) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    uint64_t *out = (uint64_t *)(void *)PyBytes_AS_STRING(bytes);
    const nt_metric what =
        number < 0 || number >= NT_METRIC_COUNT ? NT_METRIC_COUNT : (nt_metric)number;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_raster_series(raster_of(self), what, out, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        Py_DECREF(bytes);
        return nt_py_raise(status, &err);
    }
    return bytes;
}

/* The six numbers of a view; -1 with an exception where they are none. */
static int
raster_view(PyObject *view, nt_raster_view *out)
{
    unsigned long long x_first, x_end, y_first, y_end;
    unsigned int width, height;
    if (!PyTuple_Check(view)) {
        PyErr_SetString(PyExc_TypeError, "a view is a tuple of six numbers");
        return -1;
    }
    if (!PyArg_ParseTuple(view, "KKKKII;a view is a tuple of six numbers", &x_first,
                          &x_end, &y_first, &y_end, &width, &height)) {
        return -1;
    }
    *out = (nt_raster_view){x_first, x_end, y_first, y_end, width, height};
    /* What the core refuses is not allocated before it does. */
    if (width > NT_RASTER_MOST_PIXELS || height > NT_RASTER_MOST_PIXELS) {
        PyErr_Format(PyExc_ValueError, "a picture has 1 to %d pixels a side",
                     NT_RASTER_MOST_PIXELS);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(
    draw_doc,
    "draw(view, /)\n--\n\n"
    "The planes of a view (x first, x end, y first, y end, width, height):\n"
    "largest block (64-bit numbers), share used, share reserved (doubles), and\n"
    "what was seen (bytes; 1: a block, 2: a hole, 4: something reserved).");

static PyObject *
raster_draw(PyObject *self, PyObject *args)
{
    nt_raster_view view;
    if (raster_view(args, &view) < 0) {
        return NULL;
    }
    const Py_ssize_t pixels = (Py_ssize_t)view.width * view.height;
    PyObject *largest = PyBytes_FromStringAndSize(NULL, pixels * 8);
    PyObject *used = PyBytes_FromStringAndSize(NULL, pixels * 8);
    PyObject *reserved = PyBytes_FromStringAndSize(NULL, pixels * 8);
    PyObject *seen = PyBytes_FromStringAndSize(NULL, pixels);
    PyObject *result = NULL;
    if (largest != NULL && used != NULL && reserved != NULL && seen != NULL) {
        const nt_raster_planes planes = {
            .largest = (uint64_t *)(void *)PyBytes_AS_STRING(largest),
            .used = (double *)(void *)PyBytes_AS_STRING(used),
            .reserved = (double *)(void *)PyBytes_AS_STRING(reserved),
            .seen = (uint8_t *)PyBytes_AS_STRING(seen),
        };
        nt_error err = {.offset = NT_NO_OFFSET};
        nt_status status;
        Py_BEGIN_ALLOW_THREADS status =
            nt_raster_draw(raster_of(self), &view, &planes, &err);
        Py_END_ALLOW_THREADS result =
            status == NT_OK ? PyTuple_Pack(4, largest, used, reserved, seen)
                            : nt_py_raise(status, &err);
    }
    Py_XDECREF(largest);
    Py_XDECREF(used);
    Py_XDECREF(reserved);
    Py_XDECREF(seen);
    return result;
}

PyDoc_STRVAR(top_doc,
             "top(view, most, /)\n--\n\n"
             "Rows of the view's largest allocations as native 32-bit numbers, and of\n"
             "all others the most bytes in each column as 64-bit numbers.");

static PyObject *
raster_top(PyObject *self, PyObject *args)
{
    nt_raster_view view;
    PyObject *numbers;
    unsigned int most;
    if (!PyArg_ParseTuple(args, "OI", &numbers, &most) ||
        raster_view(numbers, &view) < 0) {
        return NULL;
    }
    const size_t blocks =
        nt_timeline_allocations(((py_raster *)self)->timeline->timeline)->count;
    const size_t kept = most < blocks ? most : blocks;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(kept * 4));
    PyObject *rest = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)view.width * 8);
    PyObject *result = NULL;
    if (rows != NULL && rest != NULL) {
        size_t count = 0;
        nt_error err = {.offset = NT_NO_OFFSET};
        uint32_t *row_out = (uint32_t *)(void *)PyBytes_AS_STRING(rows);
        uint64_t *rest_out = (uint64_t *)(void *)PyBytes_AS_STRING(rest);
        nt_status status;
        Py_BEGIN_ALLOW_THREADS status = nt_raster_top(raster_of(self), &view, kept,
                                                      row_out, &count, rest_out, &err);
        Py_END_ALLOW_THREADS result =
            status != NT_OK ? nt_py_raise(status, &err)
                            : Py_BuildValue("y#O", PyBytes_AS_STRING(rows),
                                            (Py_ssize_t)(count * 4), rest);
    }
    Py_XDECREF(rows);
    Py_XDECREF(rest);
    return result;
}

static PyMethodDef raster_methods[] = {
    {"extent", raster_extent, METH_NOARGS, extent_doc},
    {"ranges", raster_ranges, METH_NOARGS, ranges_doc},
    {"states", raster_states, METH_NOARGS, states_doc},
    {"series", raster_series, METH_O, series_doc},
    {"draw", raster_draw, METH_O, draw_doc},
    {"top", raster_top, METH_VARARGS, top_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot raster_slots[] = {
    {Py_tp_new, raster_new},
    {Py_tp_dealloc, raster_dealloc},
    {Py_tp_methods, raster_methods},
    {Py_tp_doc, (void *)raster_doc},
    {0, NULL},
};

PyType_Spec nt_py_raster_spec = {
    .name = "neutracer._core.Raster",
    .basicsize = sizeof(py_raster),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = raster_slots,
};

typedef struct py_pyramid {
    PyObject_HEAD nt_pyramid *pyramid;
} py_pyramid;

PyDoc_STRVAR(pyramid_doc, "Pyramid(values)\n--\n\n"
                          "Levels of detail of a buffer of native 64-bit numbers.");

static PyObject *
pyramid_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"values", NULL};
    Py_buffer values;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*:Pyramid", names, &values)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_pyramid *pyramid = NULL;
    const nt_alloc alloc = nt_alloc_system();
    const nt_status status =
        values.len % 8 != 0
            ? nt_fail(&err, NT_ARGUMENT, NT_NO_OFFSET, "not 64-bit numbers")
            : nt_pyramid_new(&alloc, values.buf, (size_t)values.len / 8, &pyramid,
                             &err);
    PyBuffer_Release(&values);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    py_pyramid *self = PyObject_New(py_pyramid, type);
    if (self == NULL) {
        nt_pyramid_free(pyramid);
        return NULL;
    }
    self->pyramid = pyramid;
    return (PyObject *)self;
}

static void
pyramid_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_pyramid_free(((py_pyramid *)self)->pyramid);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Fills the extremes of each range; false where one is empty or not in the series. */
static bool
pyramid_ranges(const nt_pyramid *p, const Py_buffer *first, const Py_buffer *end,
               uint64_t *least, uint64_t *largest)
{
    const uint64_t *from = first->buf, *to = end->buf;
    for (Py_ssize_t i = 0; i < first->len / 8; i++) {
        if (from[i] >= to[i] || to[i] > nt_pyramid_count(p)) {
            return false;
        }
        const nt_extremes found = nt_pyramid_range(p, (size_t)from[i], (size_t)to[i]);
        least[i] = found.least;
        largest[i] = found.largest;
    }
    return true;
}

PyDoc_STRVAR(
    extremes_doc,
    "extremes(first, end, /)\n--\n\n"
    "The least and the largest value of each range, as native 64-bit numbers;\n"
    "its ends come as two buffers of such numbers.");

static PyObject *
pyramid_extremes(PyObject *self, PyObject *args)
{
    Py_buffer first, end;
    if (!PyArg_ParseTuple(args, "y*y*", &first, &end)) {
        return NULL;
    }
    PyObject *least = PyBytes_FromStringAndSize(NULL, first.len);
    PyObject *largest = PyBytes_FromStringAndSize(NULL, first.len);
    PyObject *result = NULL;
    if (least == NULL || largest == NULL) {
        goto done;
    }
    if (first.len != end.len || first.len % 8 != 0 ||
        !pyramid_ranges(((py_pyramid *)self)->pyramid, &first, &end,
                        (uint64_t *)(void *)PyBytes_AS_STRING(least),
                        (uint64_t *)(void *)PyBytes_AS_STRING(largest))) {
        PyErr_SetString(PyExc_ValueError, "a range is empty or not in the series");
        goto done;
    }
    result = PyTuple_Pack(2, least, largest);
done:
    Py_XDECREF(least);
    Py_XDECREF(largest);
    PyBuffer_Release(&first);
    PyBuffer_Release(&end);
    return result;
}

PyDoc_STRVAR(levels_doc, "levels()\n--\n\n"
                         "(least, largest) of each entry as native 64-bit numbers in\n"
                         "turns, a bytes object a level, from the finest.");

static PyObject *
pyramid_levels(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_pyramid *p = ((py_pyramid *)self)->pyramid;
    PyObject *list = PyList_New(0);
    for (size_t level = 1; list != NULL && level <= nt_pyramid_levels(p); level++) {
        size_t count;
        const nt_extremes *entries = nt_pyramid_level(p, level, &count);
        PyObject *item = PyBytes_FromStringAndSize(
            (const char *)entries, (Py_ssize_t)(count * sizeof *entries));
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyMethodDef pyramid_methods[] = {
    {"extremes", pyramid_extremes, METH_VARARGS, extremes_doc},
    {"levels", pyramid_levels, METH_NOARGS, levels_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyramid_slots[] = {
    {Py_tp_new, pyramid_new},
    {Py_tp_dealloc, pyramid_dealloc},
    {Py_tp_methods, pyramid_methods},
    {Py_tp_doc, (void *)pyramid_doc},
    {0, NULL},
};

PyType_Spec nt_py_pyramid_spec = {
    .name = "neutracer._core.Pyramid",
    .basicsize = sizeof(py_pyramid),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pyramid_slots,
};
