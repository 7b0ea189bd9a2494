/* SPDX-License-Identifier: Apache-2.0 */
/* A layout, and where its free bytes are. */
#include "nt_py.h"

#include "fragmentation/nt_fragment.h"

PyObject *
nt_py_layout_new(nt_py_state *state, nt_py_timeline *timeline, int32_t event)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_layout *layout = NULL;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_timeline_layout(timeline->timeline, event, &layout, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    nt_py_layout *self = PyObject_New(nt_py_layout, state->layout_type);
    if (self == NULL) {
        nt_timeline_layout_free(timeline->timeline, layout);
        return NULL;
    }
    self->timeline = (nt_py_timeline *)Py_NewRef((PyObject *)timeline);
    self->layout = layout;
    return (PyObject *)self;
}

static void
layout_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    nt_py_layout *self = (nt_py_layout *)object;
    nt_timeline_layout_free(self->timeline->timeline, self->layout);
    Py_DECREF(self->timeline);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(tables_doc,
             "tables()\n--\n\n"
             "A dict of the tables segments and blocks: each a dict name -> Column.");

static PyObject *
layout_tables(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return nt_py_layout_tables(nt_py_state_of(Py_TYPE(self)), self,
                               ((nt_py_layout *)self)->layout);
}

static PyMethodDef layout_methods[] = {
    {"tables", layout_tables, METH_NOARGS, tables_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot layout_slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_methods, layout_methods},
    {0, NULL},
};

PyType_Spec nt_py_layout_spec = {
    .name = "neutracer._core.Layout",
    .basicsize = sizeof(nt_py_layout),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = layout_slots,
};

/* ---- fragmentation --------------------------------------------------------------- */

typedef struct py_fragment {
    PyObject_HEAD nt_fragment *fragment;
} py_fragment;

PyDoc_STRVAR(fragment_doc,
             "Fragment(snapshot, layout, device)\n--\n\n"
             "Where the free bytes of a device are: in the Layout, or in the\n"
             "snapshot's own end state where that is None.");

static PyObject *
fragment_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"snapshot", "layout", "device", NULL};
    nt_py_state *state = nt_py_state_of(type);
    PyObject *snapshot, *from;
    int device;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oi:Fragment", names,
                                     state->snapshot_type, &snapshot, &from, &device)) {
        return NULL;
    }
    const nt_snapshot *s = ((nt_py_snapshot *)snapshot)->snapshot;
    const nt_layout *layout = nt_snapshot_layout(s);
    if (PyObject_TypeCheck(from, state->layout_type)) {
        layout = ((nt_py_layout *)from)->layout;
    } else if (from != Py_None) {
        PyErr_SetString(PyExc_TypeError, "layout is a Layout or None");
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_fragment *fragment = NULL;
    const nt_alloc alloc = nt_alloc_system();
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_fragment_new(
        &alloc, layout, nt_snapshot_settings(s), device, &fragment, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    py_fragment *self = PyObject_New(py_fragment, type);
    if (self == NULL) {
        nt_fragment_free(fragment);
        return NULL;
    }
    self->fragment = fragment;
    return (PyObject *)self;
}

static void
fragment_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_fragment_free(((py_fragment *)self)->fragment);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Appends `item` (stolen) to the list; clears the list on failure. */
static void
fragment_append(PyObject **list, PyObject *item)
{
    if (item == NULL || PyList_Append(*list, item) < 0) {
        Py_CLEAR(*list);
    }
    Py_XDECREF(item);
}

PyDoc_STRVAR(holes_doc,
             "holes()\n--\n\n"
             "Tuples (block, segment, address, size, block before, block after),\n"
             "largest first; blocks and segments as rows of the layout, 2**32 - 1\n"
             "at a segment's border.");

static PyObject *
fragment_holes(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_hole *holes = nt_fragment_holes(((py_fragment *)self)->fragment, &count);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const nt_hole *h = &holes[i];
        fragment_append(&list, Py_BuildValue("IIKKII", h->block, h->segment,
                                             (unsigned long long)h->address,
                                             (unsigned long long)h->size, h->before,
                                             h->after));
    }
    return list;
}

static PyObject *
fragment_group(const nt_fragment_group *g)
{
    return Py_BuildValue(
        "{sis(KK)sKsOsOsIsIsIsKsKsKsKsKsKsKsK}", "device", (int)g->device, "pool",
        (unsigned long long)g->pool.first, (unsigned long long)g->pool.second, "stream",
        (unsigned long long)g->stream, "small",
        g->kind == NT_POOL_SMALL ? Py_True : Py_False, "has_expandable",
        g->has_expandable ? Py_True : Py_False, "segments", g->segments, "blocks",
        g->blocks, "holes", g->holes, "reserved_bytes", (unsigned long long)g->reserved,
        "allocated_bytes", (unsigned long long)g->allocated, "active_bytes",
        (unsigned long long)g->active, "requested_bytes",
        (unsigned long long)g->requested, "pending_bytes",
        (unsigned long long)g->pending, "reclaimable_bytes",
        (unsigned long long)g->reclaimable, "largest_hole",
        (unsigned long long)g->largest_hole, "largest_request",
        (unsigned long long)g->largest_request);
}

/* The group `index`; past the last, an IndexError, which ends an iteration. */
static PyObject *
fragment_item(PyObject *self, Py_ssize_t index)
{
    size_t count;
    const nt_fragment_group *groups =
        nt_fragment_groups(((py_fragment *)self)->fragment, &count);
    if (index < 0 || (size_t)index >= count) {
        PyErr_SetNone(PyExc_IndexError);
        return NULL;
    }
    return fragment_group(&groups[index]);
}

PyDoc_STRVAR(groups_doc,
             "groups()\n--\n\n"
             "An iterator: a dict for each device, pool, stream and kind, by reserved\n"
             "bytes. A file can have a pool for each segment.");

static PyObject *
fragment_groups(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PySeqIter_New(self);
}

PyDoc_STRVAR(segments_doc,
             "segments()\n--\n\n"
             "Tuples (segment, holes, free bytes, largest hole, reclaimable\n"
             "bytes, smallest active block), in the layout's order.");

static PyObject *
fragment_segments(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_fragment_segment *segments =
        nt_fragment_segments(((py_fragment *)self)->fragment, &count);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const nt_fragment_segment *s = &segments[i];
        fragment_append(&list, Py_BuildValue("IIKKKI", s->segment, s->holes,
                                             (unsigned long long)s->free_bytes,
                                             (unsigned long long)s->largest_hole,
                                             (unsigned long long)s->reclaimable,
                                             s->pinned_by));
    }
    return list;
}

PyDoc_STRVAR(fits_doc,
             "fits(device, pool, stream, nbytes, /)\n--\n\n"
             "Whether a request succeeds in a free block, without the device.");

static PyObject *
fragment_fits(PyObject *self, PyObject *args)
{
    int device;
    unsigned long long first, second, stream, nbytes;
    if (!PyArg_ParseTuple(args, "i(KK)KK", &device, &first, &second, &stream,
                          &nbytes)) {
        return NULL;
    }
    const bool fits = nt_fragment_fits(((py_fragment *)self)->fragment, device,
                                       (nt_pool_id){first, second}, stream, nbytes);
    return PyBool_FromLong(fits);
}

PyObject *
nt_py_fragment_ratios(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer allocated, reserved, action;
    if (!PyArg_ParseTuple(args, "y*y*y*", &allocated, &reserved, &action)) {
        return NULL;
    }
    const Py_ssize_t count = action.len;
    PyObject *ratios = NULL, *result = NULL;
    if (allocated.len != count * 8 || reserved.len != count * 8) {
        PyErr_SetString(PyExc_ValueError, "the series differ in length");
    } else {
        ratios = PyBytes_FromStringAndSize(NULL, count * 8);
    }
    if (ratios != NULL) {
        nt_ratio_summary summary;
        double *out = (double *)(void *)PyBytes_AS_STRING(ratios);
        Py_BEGIN_ALLOW_THREADS summary = nt_fragment_ratios(
            allocated.buf, reserved.buf, action.buf, (size_t)count, out);
        Py_END_ALLOW_THREADS result =
            Py_BuildValue("NdLdd", ratios, summary.largest,
                          (long long)summary.largest_event, summary.mean, summary.last);
    }
    PyBuffer_Release(&allocated);
    PyBuffer_Release(&reserved);
    PyBuffer_Release(&action);
    return result;
}

PyDoc_STRVAR(serves_doc,
             "serves(size, below, small, /)\n--\n\n"
             "The least and the most bytes of the requests that a free block of\n"
             "`size` bytes in a small or a large pool serves, where the next smaller\n"
             "free block of the pool has `below` bytes; None if it serves none.");

static PyObject *
fragment_serves(PyObject *self, PyObject *args)
{
    unsigned long long size, below;
    int small;
    if (!PyArg_ParseTuple(args, "KKp", &size, &below, &small)) {
        return NULL;
    }
    uint64_t least, most;
    if (!nt_fragment_serves(((py_fragment *)self)->fragment, size, below, small != 0,
                            &least, &most)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("KK", (unsigned long long)least, (unsigned long long)most);
}

static PyMethodDef fragment_methods[] = {
    {"holes", fragment_holes, METH_NOARGS, holes_doc},
    {"groups", fragment_groups, METH_NOARGS, groups_doc},
    {"segments", fragment_segments, METH_NOARGS, segments_doc},
    {"fits", fragment_fits, METH_VARARGS, fits_doc},
    {"serves", fragment_serves, METH_VARARGS, serves_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot fragment_slots[] = {
    {Py_tp_new, fragment_new},           {Py_tp_dealloc, fragment_dealloc},
    {Py_tp_methods, fragment_methods},   {Py_tp_doc, (void *)fragment_doc},
    {Py_sq_item, (void *)fragment_item}, {0, NULL},
};

PyType_Spec nt_py_fragment_spec = {
    .name = "neutracer._core.Fragment",
    .basicsize = sizeof(py_fragment),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fragment_slots,
};
