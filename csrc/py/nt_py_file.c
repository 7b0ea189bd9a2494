/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots read from files and written to them. */
#include "nt_py.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trace/nt_reader.h"
#include "trace/nt_source.h"
#include "trace/nt_pack.h"
#include "trace/nt_writer.h"

/* ---- reading --------------------------------------------------------------------- */

/* Where the bytes come from, and the progress that holds the thread's state. */
typedef struct load_input {
    int fd;
    PyObject *reader;  /* borrowed */
    nt_budget *budget; /* what is read is drawn from it */
    size_t limit;      /* the caller's bound for it */
    size_t taken;      /* bytes that were read */
    nt_py_progress *progress;
} load_input;

/* The memory that the bytes of a pickle may take, and that of a small one. Snapshots
 * take up to five times their bytes; an empty container, which is one byte, takes 40 or
 * more. */
#define LOAD_RATIO 16
#define LOAD_FLOOR ((size_t)16 << 20)

/* Bounds a budget by what the bytes read so far may take, and by `limit`. */
static void
load_bound(nt_budget *budget, size_t limit, size_t bytes)
{
    const size_t most = LOAD_FLOOR + LOAD_RATIO * bytes;
    budget->limit = most < limit ? most : limit;
    if (budget->limit < budget->used) {
        budget->limit = budget->used;
    }
}

/* With the GIL, after read(2) failed: 0 to try again, or an exception is set. */
static int
load_after_error(int error)
{
    if (error == EINTR) {
        return PyErr_CheckSignals();
    }
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* A file descriptor, read without the GIL. A signal ends the wait for a pipe. */
static int
load_read_fd(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    load_input *input = ctx;
    for (;;) {
        const ssize_t got = read(input->fd, buffer, capacity);
        if (got >= 0) {
            *count = (size_t)got;
            input->taken += *count;
            load_bound(input->budget, input->limit, input->taken);
            return 0;
        }
        const int error = errno;
        PyEval_RestoreThread(input->progress->thread);
        const int failed = load_after_error(error);
        input->progress->thread = PyEval_SaveThread();
        if (failed) {
            return 1;
        }
    }
}

/* A reader of packed data allows so much memory for the packed bytes that it has taken
 * so far (its `allowance`); others leave that to the bytes read. -1 with an exception.
 */
static int
load_heed_allowance(load_input *input)
{
    PyObject *allowance = PyObject_GetAttrString(input->reader, "allowance");
    if (allowance == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        load_bound(input->budget, input->limit, input->taken);
        return 0;
    }
    const size_t bytes =
        allowance == Py_None ? input->limit : PyLong_AsSize_t(allowance);
    Py_DECREF(allowance);
    if (PyErr_Occurred()) {
        return -1;
    }
    load_bound(input->budget, bytes < input->limit ? bytes : input->limit,
               input->taken);
    return 0;
}

/* A Python object's read(n), which must give bytes. */
static int
load_read_object(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    load_input *input = ctx;
    PyEval_RestoreThread(input->progress->thread);
    PyObject *bytes =
        PyObject_CallMethod(input->reader, "read", "n", (Py_ssize_t)capacity);
    int failed = bytes == NULL;
    if (!failed &&
        (!PyBytes_Check(bytes) || (size_t)PyBytes_GET_SIZE(bytes) > capacity)) {
        PyErr_SetString(PyExc_TypeError, "read(n) must return at most n bytes");
        failed = 1;
    }
    if (!failed) {
        *count = (size_t)PyBytes_GET_SIZE(bytes);
        memcpy(buffer, PyBytes_AS_STRING(bytes), *count);
        input->taken += *count;
    }
    Py_XDECREF(bytes);
    failed = failed || load_heed_allowance(input) < 0;
    input->progress->thread = PyEval_SaveThread();
    return failed;
}

/* What to say where the budget was not enough: `limit` is what the caller allows. */
static nt_status
load_refuse(const nt_budget *budget, size_t limit, nt_error *err)
{
    if (budget->limit < limit) {
        return nt_fail(
            err, NT_LIMIT, NT_NO_OFFSET,
            "what is in it takes far more memory than a snapshot of its size");
    }
    return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                   "reading it takes more than the %zu bytes that max_memory allows",
                   limit);
}

/* Reads `source`, whose window is set up, into `object`. */
static PyObject *
load_run(nt_py_snapshot *object, nt_source *source, size_t limit,
         nt_py_progress *progress, PyObject *callback)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_budget_alloc(&object->budget);
    source->progress = &progress->progress;
    nt_py_begin(progress, callback);
    nt_status status = nt_reader_load(&alloc, source, &object->snapshot, &err);
    nt_source_clear(source);
    nt_py_end(progress);
    if (status == NT_OK) {
        object->budget.limit = limit;
        return (PyObject *)object;
    }
    if (status == NT_NOMEM && object->budget.exceeded) {
        status = load_refuse(&object->budget, limit, &err);
    }
    Py_DECREF(object);
    return nt_py_raise(status, &err);
}

static PyObject *
load_buffer(nt_py_snapshot *object, PyObject *from, PyObject *callback)
{
    Py_buffer view;
    if (PyObject_GetBuffer(from, &view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(object);
        return NULL;
    }
    nt_py_progress progress;
    nt_source source;
    nt_source_init_memory(&source, view.buf, (size_t)view.len, NULL);
    const size_t limit = object->budget.limit;
    load_bound(&object->budget, limit, (size_t)view.len);
    PyObject *result = load_run(object, &source, limit, &progress, callback);
    PyBuffer_Release(&view);
    return result;
}

/* Bytes that are left of a file; 0 where that is not known. */
static uint64_t
load_total(int fd)
{
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        return 0;
    }
    const off_t at = lseek(fd, 0, SEEK_CUR);
    return at < 0 || at > status.st_size ? 0 : (uint64_t)(status.st_size - at);
}

PyObject *
nt_py_load(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "max_memory", "progress", NULL};
    PyObject *from, *callback = Py_None;
    unsigned long long limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OK|O:load", names, &from, &limit,
                                     &callback)) {
        return NULL;
    }
    nt_py_snapshot *object =
        nt_py_snapshot_new(PyModule_GetState(module), (size_t)limit);
    if (object == NULL) {
        return NULL;
    }
    if (PyObject_CheckBuffer(from)) {
        return load_buffer(object, from, callback);
    }
    nt_py_progress progress;
    load_input input = {
        .fd = -1,
        .reader = from,
        .budget = &object->budget,
        .limit = (size_t)limit,
        .progress = &progress,
    };
    nt_input read = {.read = load_read_object, .ctx = &input};
    if (PyLong_Check(from)) {
        input.fd = PyObject_AsFileDescriptor(from);
        read.read = load_read_fd;
        if (input.fd < 0) {
            Py_DECREF(object);
            return NULL;
        }
    }
    nt_source source;
    nt_source_init_input(&source, nt_budget_alloc(&object->budget), read, NULL);
    source.total = load_total(input.fd);
    return load_run(object, &source, input.limit, &progress, callback);
}

/* ---- writing --------------------------------------------------------------------- */

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
