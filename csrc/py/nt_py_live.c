/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "trace/nt_live.h"

#define LIVE_SOURCE_CAPSULE "neutracer._torch.live_source"

/* One shim serves the whole process: native threads ask without the GIL, and so it is
 * no module's state. The capsule is kept for good. */
static const nt_live_source *live_source;

const nt_live_source *
nt_py_live_source(void)
{
    return __atomic_load_n(&live_source, __ATOMIC_ACQUIRE);
}

int
nt_py_live_add(PyObject *module)
{
    /* A capsule's pointer is not const; nobody writes through it. */
    PyObject *capsule =
        PyCapsule_New((void *)(uintptr_t)nt_live_table(), NT_LIVE_CAPSULE, NULL);
    const int failed =
        capsule == NULL ? -1 : PyModule_AddObjectRef(module, "live_api", capsule);
    Py_XDECREF(capsule);
    return failed;
}

PyDoc_STRVAR(set_source_doc,
             "live_set_source(capsule, /)\n--\n\n"
             "Connects the shim: a capsule '" LIVE_SOURCE_CAPSULE "'. It stays\n"
             "connected; another one takes its place.\n\n"
             "Raises RuntimeError for a shim that was built for another release.");

static PyObject *
live_set_source(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    const nt_live_source *source = PyCapsule_GetPointer(capsule, LIVE_SOURCE_CAPSULE);
    if (source == NULL) {
        return NULL;
    }
    if (source->version != NT_LIVE_API_VERSION || source->size != sizeof *source) {
        return PyErr_Format(PyExc_RuntimeError,
                            "the hooks were built for interface %u, this is %u",
                            (unsigned)source->version, NT_LIVE_API_VERSION);
    }
    /* Threads may be asking the source before this one: both live for ever. */
    Py_INCREF(capsule);
    __atomic_store_n(&live_source, source, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *
live_tail_dict(const nt_live_tail *tail)
{
    const nt_ring_counts *counts = &tail->tables;
    return Py_BuildValue("{sisOsKsKsIsIsIsKsKsK}", "device", (int)tail->device, "late",
                         tail->late ? Py_True : Py_False, "pushed",
                         (unsigned long long)tail->pushed, "taken",
                         (unsigned long long)tail->taken, "stacks", counts->stacks,
                         "frames", counts->frames, "codes", counts->codes,
                         "lost_stacks", (unsigned long long)counts->lost_stacks,
                         "lost_texts", (unsigned long long)counts->lost_texts,
                         "lost_origins", (unsigned long long)counts->lost_origins);
}

static PyObject *
live_tail_list(const nt_live_tail *tails, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = live_tail_dict(&tails[i]);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

PyDoc_STRVAR(snapshot_doc,
             "live_snapshot(device_type, max_events, /)\n--\n\n"
             "(Snapshot, a dict a device about its ring) of the connected shim:\n"
             "device_type 0 is CUDA, 1 the CPU; at most max_events a device.");

static PyObject *
live_snapshot(PyObject *module, PyObject *args)
{
    int type;
    unsigned long long most;
    nt_live_tail tails[NT_LIVE_MOST_DEVICES];
    size_t count = 0;
    if (!PyArg_ParseTuple(args, "iK:live_snapshot", &type, &most)) {
        return NULL;
    }
    const nt_live_source *source = nt_py_live_source();
    if (source == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks are connected");
        return NULL;
    }
    if (type != NT_LIVE_CUDA && type != NT_LIVE_CPU) {
        return PyErr_Format(PyExc_ValueError, "no device type has number %d", type);
    }
    nt_py_snapshot *object = nt_py_snapshot_new(PyModule_GetState(module), SIZE_MAX);
    if (object == NULL) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_budget_alloc(&object->budget);
    nt_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = nt_live_build(&alloc, source, (nt_live_device_type)type, most,
                           &object->snapshot, tails, &count, &err);
    Py_END_ALLOW_THREADS;
    if (status != NT_OK) {
        Py_DECREF(object);
        return nt_py_raise(status, &err);
    }
    return Py_BuildValue("NN", object, live_tail_list(tails, count));
}

PyDoc_STRVAR(
    span_doc,
    "live_span(device, follow, /)\n--\n\n"
    "(allocated, peak allocated, reserved, peak reserved, retries, ooms, allocations,\n"
    "frees) of a CUDA device, in bytes and events, by the connected shim; None "
    "without\n"
    "one, and where it does not know the device. The peaks are those since the last\n"
    "call, if it said to follow them.");

static PyObject *
live_span(PyObject *Py_UNUSED(module), PyObject *args)
{
    const nt_live_source *source = nt_py_live_source();
    long device;
    int follow;
    nt_live_span span;
    if (!PyArg_ParseTuple(args, "lp:live_span", &device, &follow)) {
        return NULL;
    }
    /* The lock of the allocator is held for less than what giving up the GIL takes. */
    if (source == NULL || source->device_span == NULL || device < 0 ||
        device > INT32_MAX ||
        source->device_span(source->ctx, (int32_t)device, follow, &span) != 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue(
        "LLLLLLLL", (long long)span.allocated_bytes,
        (long long)span.peak_allocated_bytes, (long long)span.reserved_bytes,
        (long long)span.peak_reserved_bytes, (long long)span.num_alloc_retries,
        (long long)span.num_ooms, (long long)span.allocations, (long long)span.frees);
}

PyMethodDef nt_py_live_methods[] = {
    {"live_span", live_span, METH_VARARGS, span_doc},
    {"live_set_source", live_set_source, METH_O, set_source_doc},
    {"live_snapshot", live_snapshot, METH_VARARGS, snapshot_doc},
    {NULL, NULL, 0, NULL},
};
