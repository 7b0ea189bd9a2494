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

PyObject *
nt_py_save(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "write", "first", "end", "progress", NULL};
    nt_py_state *state = PyModule_GetState(module);
    PyObject *source, *write, *callback = Py_None;
    Py_ssize_t first = 0, end = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|nnO:save", names, &source,
                                     &write, &first, &end, &callback)) {
        return NULL;
    }
    const bool is_range = PyObject_TypeCheck(source, state->timeline_type);
    if (!is_range && !PyObject_TypeCheck(source, state->snapshot_type)) {
        PyErr_SetString(PyExc_TypeError, "source is a Snapshot or a Timeline");
        return NULL;
    }
    if (first < 0 || end < 0) {
        PyErr_SetString(PyExc_ValueError, "an event number is negative");
        return NULL;
    }
    nt_py_progress progress;
    save_output output = {.write = write, .progress = &progress};
    const nt_sink sink = {.write = save_write, .ctx = &output};
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    nt_py_begin(&progress, callback);
    if (is_range) {
        const nt_py_timeline *t = (const nt_py_timeline *)source;
        status = nt_writer_save_range(&alloc, t->timeline, t->device, (size_t)first,
                                      (size_t)end, &sink, &progress.progress, &err);
    } else {
        status = nt_writer_save(&alloc, ((nt_py_snapshot *)source)->snapshot, &sink,
                                &progress.progress, &err);
    }
    nt_py_end(&progress);
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
