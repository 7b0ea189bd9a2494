/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

static const nt_py_column_def allocation_defs[] = {
    NT_ALLOCATION_LIST(NT_PY_COLUMN_DEF, nt_allocation_columns)};

static const nt_py_column_def life_defs[] = {
    NT_SEGMENT_LIFE_LIST(NT_PY_COLUMN_DEF, nt_segment_life_columns)};

static nt_py_timeline *
timeline_of(PyObject *self)
{
    return (nt_py_timeline *)self;
}

PyDoc_STRVAR(timeline_doc, "Timeline(snapshot, device, progress=None)\n--\n\n"
                           "One device's trace, replayed without the GIL.");

static PyObject *
timeline_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"snapshot", "device", "progress", NULL};
    nt_py_state *state = nt_py_state_of(type);
    PyObject *snapshot, *callback = Py_None;
    int device;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!i|O:Timeline",
                                                      names, state->snapshot_type,
                                                      &snapshot, &device, &callback)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_timeline *timeline = NULL;
    const nt_alloc alloc = nt_alloc_system();
    nt_py_progress progress;
    nt_py_begin(&progress, callback);
    const nt_status status =
        nt_timeline_new(&alloc, ((nt_py_snapshot *)snapshot)->snapshot, device,
                        &progress.progress, &timeline, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    nt_py_timeline *self = PyObject_New(nt_py_timeline, type);
    if (self == NULL) {
        nt_timeline_free(timeline);
        return NULL;
    }
    self->snapshot = (nt_py_snapshot *)Py_NewRef(snapshot);
    self->timeline = timeline;
    self->device = device;
    return (PyObject *)self;
}

static void
timeline_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_timeline_free(timeline_of(self)->timeline);
    Py_DECREF(timeline_of(self)->snapshot);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(tables_doc, "tables()\n--\n\n"
                         "A dict of the tables allocations and segments: each a dict\n"
                         "name -> Column.");

static PyObject *
timeline_tables(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_py_state *state = nt_py_state_of(Py_TYPE(self));
    const nt_timeline *t = timeline_of(self)->timeline;
    const nt_allocation_columns *a = nt_timeline_allocations(t);
    const nt_segment_life_columns *s = nt_timeline_segments(t);
    PyObject *allocations = nt_py_columns(state, self, a, a->count, allocation_defs,
                                          NT_LENGTH(allocation_defs));
    PyObject *segments =
        nt_py_columns(state, self, s, s->count, life_defs, NT_LENGTH(life_defs));
    if (allocations == NULL || segments == NULL) {
        Py_XDECREF(allocations);
        Py_XDECREF(segments);
        return NULL;
    }
    return Py_BuildValue("{sNsN}", "allocations", allocations, "segments", segments);
}

/* 0 and *out set, or -1 with an exception. */
static int
timeline_metric(PyObject *arg, nt_metric *out)
{
    const long metric = PyLong_AsLong(arg);
    if (metric < 0 || metric >= NT_METRIC_COUNT) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "no such metric");
        }
        return -1;
    }
    *out = (nt_metric)metric;
    return 0;
}

PyDoc_STRVAR(series_doc, "series(metric, /)\n--\n\n"
                         "A Column: the bytes after each event.");

static PyObject *
timeline_series(PyObject *self, PyObject *arg)
{
    nt_metric metric;
    void *out;
    const nt_timeline *t = timeline_of(self)->timeline;
    if (timeline_metric(arg, &metric) < 0) {
        return NULL;
    }
    PyObject *column =
        nt_py_own_column(nt_py_state_of(Py_TYPE(self)),
                         (Py_ssize_t)nt_timeline_event_count(t), 'Q', &out);
    if (column != NULL) {
        Py_BEGIN_ALLOW_THREADS nt_timeline_series(t, metric, out);
        Py_END_ALLOW_THREADS
    }
    return column;
}

PyDoc_STRVAR(peak_doc, "peak(metric, /)\n--\n\n(event, bytes) of the largest value.");

static PyObject *
timeline_peak(PyObject *self, PyObject *arg)
{
    nt_metric metric;
    if (timeline_metric(arg, &metric) < 0) {
        return NULL;
    }
    const nt_moment peak = nt_timeline_peak(timeline_of(self)->timeline, metric);
    return Py_BuildValue("iK", (int)peak.event, (unsigned long long)peak.bytes);
}

static bool
timeline_has_events(const int32_t *events, size_t count, size_t event_count)
{
    for (size_t i = 0; i < count; i++) {
        if (events[i] >= 0 && (size_t)events[i] >= event_count) {
            return false;
        }
    }
    return true;
}

PyDoc_STRVAR(peak_if_freed_doc,
             "peak_if_freed(ends, /)\n--\n\n"
             "The peak of allocated if blocks had been freed earlier: `ends` has 32\n"
             "bits an allocation, the event after which it is freed, or -1.");

static PyObject *
timeline_peak_if_freed(PyObject *self, PyObject *arg)
{
    const nt_timeline *t = timeline_of(self)->timeline;
    const size_t count = nt_timeline_allocations(t)->count;
    Py_buffer ends;
    if (PyObject_GetBuffer(arg, &ends, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if ((size_t)ends.len != count * sizeof(int32_t) ||
        !timeline_has_events(ends.buf, count, nt_timeline_event_count(t))) {
        PyBuffer_Release(&ends);
        PyErr_SetString(PyExc_ValueError, "no event of the trace for each allocation");
        return NULL;
    }
    uint64_t peak = 0;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_timeline_peak_if_freed(t, ends.buf, &peak, &err);
    Py_END_ALLOW_THREADS PyBuffer_Release(&ends);
    return status == NT_OK ? PyLong_FromUnsignedLongLong(peak)
                           : nt_py_raise(status, &err);
}

PyDoc_STRVAR(facts_doc,
             "facts()\n--\n\nWhat the replay found out about the trace: a dict.");

static PyObject *
timeline_facts(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_trace_facts *f = nt_timeline_facts(timeline_of(self)->timeline);
    return Py_BuildValue(
        "{sOs(KKKK)sKsIsIsIsIsIsOsO}", "complete", f->complete ? Py_True : Py_False,
        "start_bytes", (unsigned long long)f->start_bytes[NT_METRIC_ALLOCATED],
        (unsigned long long)f->start_bytes[NT_METRIC_ACTIVE],
        (unsigned long long)f->start_bytes[NT_METRIC_RESERVED],
        (unsigned long long)f->start_bytes[NT_METRIC_REQUESTED], "slack_bound",
        (unsigned long long)f->slack_bound, "preexisting", f->preexisting, "unmatched",
        f->unmatched, "oom_count", f->oom_count, "release_runs", f->release_runs,
        "retries", f->retries, "retries_known", f->retries_known ? Py_True : Py_False,
        "frees_known", f->frees_known ? Py_True : Py_False);
}

PyDoc_STRVAR(broken_doc, "broken()\n--\n\n"
                         "What the trace says that can't be: a list of tuples (kind,\n"
                         "device, count, bytes).");

static PyObject *
timeline_broken(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_broken_note notes[NT_TRACE_BROKEN_KINDS];
    size_t count = 0;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_timeline_broken(timeline_of(self)->timeline, notes, &count, &err);
    Py_END_ALLOW_THREADS return status == NT_OK ? nt_py_broken_notes(notes, count)
                                                : nt_py_raise(status, &err);
}

PyDoc_STRVAR(layout_doc,
             "layout(event, /)\n--\n\nThe Layout after an event; -1: before all.");

static PyObject *
timeline_layout(PyObject *self, PyObject *arg)
{
    const long event = PyLong_AsLong(arg);
    if (event == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (event < -1 || event > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such event");
        return NULL;
    }
    return nt_py_layout_new(nt_py_state_of(Py_TYPE(self)), timeline_of(self),
                            (int32_t)event);
}

static PyObject *
timeline_holder_list(const nt_holder *holders, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("IIKK", holders[i].key, holders[i].count,
                                       (unsigned long long)holders[i].bytes,
                                       (unsigned long long)holders[i].requested_bytes);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

PyDoc_STRVAR(holders_doc,
             "holders(event, by, /)\n--\n\n"
             "Tuples (key, count, bytes, requested bytes), largest first; by is 0\n"
             "for stacks, 1 for lines, 2 for functions; key 2**32 - 1: no stack.");

static PyObject *
timeline_holders(PyObject *self, PyObject *args)
{
    int event, by;
    if (!PyArg_ParseTuple(args, "ii", &event, &by)) {
        return NULL;
    }
    if (by < NT_BY_STACK || by > NT_BY_FUNCTION) {
        PyErr_SetString(PyExc_ValueError, "no such grouping");
        return NULL;
    }
    const nt_timeline *t = timeline_of(self)->timeline;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_holder *holders = NULL;
    size_t count = 0;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_timeline_holders(t, event, (nt_holder_key)by, &holders, &count, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    PyObject *list = timeline_holder_list(holders, count);
    nt_timeline_holders_free(t, holders, count);
    return list;
}

PyDoc_STRVAR(churn_doc,
             "churn()\n--\n\n"
             "Tuples (stack, allocations, bytes, peak bytes, peak event) by stack.");

static PyObject *
timeline_churn(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_timeline *t = timeline_of(self)->timeline;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_churn *churn = NULL;
    size_t count = 0;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_timeline_churn(t, &churn, &count, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue(
            "IIKKi", churn[i].stack, churn[i].count, (unsigned long long)churn[i].bytes,
            (unsigned long long)churn[i].peak_bytes, (int)churn[i].peak_event);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    nt_timeline_churn_free(t, churn, count);
    return list;
}

static PyMethodDef timeline_methods[] = {
    {"tables", timeline_tables, METH_NOARGS, tables_doc},
    {"series", timeline_series, METH_O, series_doc},
    {"peak", timeline_peak, METH_O, peak_doc},
    {"peak_if_freed", timeline_peak_if_freed, METH_O, peak_if_freed_doc},
    {"broken", timeline_broken, METH_NOARGS, broken_doc},
    {"facts", timeline_facts, METH_NOARGS, facts_doc},
    {"layout", timeline_layout, METH_O, layout_doc},
    {"holders", timeline_holders, METH_VARARGS, holders_doc},
    {"churn", timeline_churn, METH_NOARGS, churn_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot timeline_slots[] = {
    {Py_tp_new, timeline_new},
    {Py_tp_dealloc, timeline_dealloc},
    {Py_tp_methods, timeline_methods},
    {Py_tp_doc, (void *)timeline_doc},
    {0, NULL},
};

PyType_Spec nt_py_timeline_spec = {
    .name = "neutracer._core.Timeline",
    .basicsize = sizeof(nt_py_timeline),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = timeline_slots,
};
