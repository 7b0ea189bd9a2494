/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "trace/nt_pack.h"
#include "trace/nt_writer.h"

typedef struct save_output {
    PyObject *write; /* borrowed */
    nt_py_progress *progress;
} save_output;

static int
save_write(void *ctx, const void *bytes, size_t count)
{
    save_output *output = ctx;
    PyEval_RestoreThread(output->progress->thread);
    PyObject *result =
        PyObject_CallFunction(output->write, "y#", bytes, (Py_ssize_t)count);
    const int failed = result == NULL;
    Py_XDECREF(result);
    output->progress->thread = PyEval_SaveThread();
    return failed;
}

/* A tuple of ranges, (timeline, first, end) each, as the core has them; NULL with an
 * exception. The caller frees it with PyMem_Free. */
static nt_writer_range *
save_ranges(const nt_py_state *state, PyObject *tuple)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    nt_writer_range *ranges = PyMem_New(nt_writer_range, (size_t)(count + 1));
    if (ranges == NULL) {
        return (nt_writer_range *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i), *timeline;
        Py_ssize_t first, end;
        if (!PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "O!nn", state->timeline_type, &timeline, &first,
                              &end)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a range is (timeline, first, end)");
            }
            goto failed;
        }
        ranges[i] = (nt_writer_range){((const nt_py_timeline *)timeline)->timeline,
                                      (size_t)first, (size_t)end};
        if (nt_timeline_snapshot(ranges[i].timeline) !=
            nt_timeline_snapshot(ranges[0].timeline)) {
            PyErr_SetString(PyExc_ValueError, "ranges are of one snapshot");
            goto failed;
        }
        if (first < 0 || end < 0) {
            PyErr_SetString(PyExc_ValueError, "an event number is negative");
            goto failed;
        }
    }
    return ranges;
failed:
    PyMem_Free(ranges);
    return NULL;
}

PyObject *
nt_py_save(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "write", "progress", NULL};
    nt_py_state *state = PyModule_GetState(module);
    PyObject *source, *write, *callback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:save", names, &source, &write,
                                     &callback)) {
        return NULL;
    }
    const bool is_ranges = PyTuple_Check(source) && PyTuple_GET_SIZE(source) != 0;
    if (!is_ranges && !PyObject_TypeCheck(source, state->snapshot_type)) {
        PyErr_SetString(PyExc_TypeError, "source is a Snapshot, or a tuple of ranges");
        return NULL;
    }
    nt_writer_range *ranges = is_ranges ? save_ranges(state, source) : NULL;
    if (is_ranges && ranges == NULL) {
        return NULL;
    }
    nt_py_progress progress;
    save_output output = {.write = write, .progress = &progress};
    const nt_sink sink = {.write = save_write, .ctx = &output};
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    nt_py_begin(&progress, callback);
    if (is_ranges) {
        status = nt_writer_save_ranges(&alloc, ranges, (size_t)PyTuple_GET_SIZE(source),
                                       &sink, &progress.progress, &err);
    } else {
        status = nt_writer_save(&alloc, ((nt_py_snapshot *)source)->snapshot, &sink,
                                &progress.progress, &err);
    }
    nt_py_end(&progress);
    PyMem_Free(ranges);
    return status == NT_OK ? Py_NewRef(Py_None) : nt_py_raise(status, &err);
}

PyObject *
nt_py_pack(PyObject *module, PyObject *args)
{
    nt_py_state *state = PyModule_GetState(module);
    PyObject *source, *write;
    if (!PyArg_ParseTuple(args, "O!O:pack", state->snapshot_type, &source, &write)) {
        return NULL;
    }
    nt_py_progress progress;
    save_output output = {.write = write, .progress = &progress};
    const nt_sink sink = {.write = save_write, .ctx = &output};
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_py_begin(&progress, Py_None);
    const nt_status status =
        nt_pack_save(&alloc, ((nt_py_snapshot *)source)->snapshot, &sink, &err);
    nt_py_end(&progress);
    return status == NT_OK ? Py_NewRef(Py_None) : nt_py_raise(status, &err);
}
