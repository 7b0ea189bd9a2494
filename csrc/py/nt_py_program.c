/* SPDX-License-Identifier: Apache-2.0 */
/* What a timeline asked of the allocator: the type, what it knows of itself, and other
 * programs made of it. */
#include "nt_py_replay.h"

PyDoc_STRVAR(program_doc,
             "Program(timeline)\n--\n\n"
             "What a timeline asked of the allocator. Threads may share one; every\n"
             "call runs it on a model of its own, without the GIL.");

/* Takes over `program`. */
static PyObject *
program_object(PyTypeObject *type, PyObject *timeline, PyObject *original,
               nt_program *program)
{
    py_program *self = PyObject_New(py_program, type);
    if (self == NULL) {
        nt_program_free(program);
        return NULL;
    }
    self->timeline = (nt_py_timeline *)Py_NewRef(timeline);
    self->original = Py_XNewRef(original);
    self->program = program;
    self->marks = NULL;
    self->drops = NULL;
    self->places = 0;
    return (PyObject *)self;
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeline", NULL};
    nt_py_state *state = nt_py_state_of(type);
    PyObject *timeline;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Program", names,
                                     state->timeline_type, &timeline)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_program *program = NULL;
    const nt_alloc alloc = nt_alloc_system();
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_program_new(&alloc, ((nt_py_timeline *)timeline)->timeline, &program, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    return program_object(type, timeline, NULL, program);
}

static void
program_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_program_free(((py_program *)self)->program);
    PyMem_Free(((py_program *)self)->marks);
    PyMem_Free(((py_program *)self)->drops);
    Py_XDECREF(((py_program *)self)->original);
    Py_DECREF(((py_program *)self)->timeline);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *
nt_py_replay_number(uint64_t value)
{
    return value == UINT64_MAX ? Py_NewRef(Py_None)
                               : PyLong_FromUnsignedLongLong(value);
}

/* The segments whose pool nothing tells: the events have none, and they are gone. */
static Py_ssize_t
program_count_unknown(const nt_program *p)
{
    const nt_segment_life_columns *lives = nt_timeline_segments(p->timeline);
    Py_ssize_t count = 0;
    for (size_t i = 0; i < lives->count; i++) {
        count += lives->pool_known[i] == 0;
    }
    return count;
}

PyDoc_STRVAR(facts_doc,
             "facts()\n--\n\n"
             "What is known of the program, and of the device it ran on: a dict.");

static PyObject *
program_facts(PyObject *self, PyObject *unused)
{
    (void)unused;
    const nt_program *p = nt_py_program_of(self);
    const nt_replay_options o = nt_replay_default(p);
    Py_ssize_t calls = 0;
    for (size_t i = 0; i < p->step_count; i++) {
        calls += p->steps[i].kind == NT_PROGRAM_EMPTY_CACHE;
    }
    return Py_BuildValue(
        "{snsnsnsnsnsnsNsNsOsKsKsKsOsOsOsO}", "steps", (Py_ssize_t)p->step_count,
        "lanes", (Py_ssize_t)p->lane_count, "pools", (Py_ssize_t)p->pool_count, "areas",
        (Py_ssize_t)p->area_count, "calls", calls, "segments_without_pool",
        program_count_unknown(p), "limit_low", nt_py_replay_number(p->bounds.low),
        "limit_high", nt_py_replay_number(p->bounds.high), "is_device",
        p->bounds.is_device ? Py_True : Py_False, "limit", (unsigned long long)o.limit,
        "device_total", (unsigned long long)o.device_total, "device_other",
        (unsigned long long)o.device_other, "has_later",
        p->has_later ? Py_True : Py_False, "has_rough_sizes",
        p->has_rough_sizes ? Py_True : Py_False, "calls_known",
        p->calls_known ? Py_True : Py_False, "calls_noted",
        p->calls_noted ? Py_True : Py_False);
}

PyDoc_STRVAR(
    edit_doc,
    "edit(sizes=None, ends=None, calls=None, /)\n--\n\n"
    "Another Program: with these sizes of requests (64 bits an event, 0:\n"
    "left out), blocks freed after these events (32 bits an event, -1: as\n"
    "they were), and empty_cache() after these events (32 bits each, rising).");

/* Whether a buffer has one item of `size` bytes for each of `count` events, or none. */
static bool
edit_fits(const Py_buffer *buffer, size_t count, size_t size)
{
    return buffer->buf == NULL || buffer->len == (Py_ssize_t)(count * size);
}

static nt_status
edit_make(PyObject *self, const Py_buffer *sizes, const Py_buffer *ends,
          const Py_buffer *calls, nt_program **out, nt_error *err)
{
    const size_t count =
        nt_timeline_event_count(((py_program *)self)->timeline->timeline);
    const nt_program_change change = {
        .sizes = sizes->buf,
        .ends = ends->buf,
        .calls = calls->buf,
        .call_count =
            calls->buf == NULL ? 0 : (size_t)calls->len / sizeof *change.calls,
    };
    if (!edit_fits(sizes, count, sizeof *change.sizes) ||
        !edit_fits(ends, count, sizeof *change.ends)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a change has one item for each event");
    }
    const nt_alloc alloc = nt_alloc_system();
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_program_edit(&alloc, nt_py_program_of(self), &change, out, err);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *
program_edit(PyObject *self, PyObject *args)
{
    Py_buffer sizes = {.buf = NULL}, ends = {.buf = NULL}, calls = {.buf = NULL};
    if (!PyArg_ParseTuple(args, "|z*z*z*:edit", &sizes, &ends, &calls)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_program *program = NULL;
    const nt_status status = edit_make(self, &sizes, &ends, &calls, &program, &err);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&calls);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    return program_object(Py_TYPE(self), (PyObject *)((py_program *)self)->timeline,
                          self, program);
}

PyDoc_STRVAR(find_silence_doc,
             "find_silence(progress=None, /)\n--\n\n"
             "Finds out where calls of empty_cache() and ends of private pools may\n"
             "have left no trace, and keeps it for find_range(..., silent=True).\n"
             "Returns the number of these places.");

static PyObject *
program_find_silence(PyObject *self, PyObject *args)
{
    PyObject *callback = Py_None;
    if (!PyArg_ParseTuple(args, "|O:find_silence", &callback)) {
        return NULL;
    }
    py_program *p = (py_program *)self;
    const size_t events = nt_timeline_event_count(p->timeline->timeline);
    const size_t pools = p->program->pool_count;
    uint8_t *marks = PyMem_Malloc(events + 1);
    int32_t *drops = PyMem_Calloc(pools + 1, sizeof *drops);
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = nt_fail(&err, NT_NOMEM, NT_NO_OFFSET, "out of memory");
    if (marks != NULL && drops != NULL) {
        const nt_alloc alloc = nt_alloc_system();
        nt_py_progress progress;
        nt_py_begin(&progress, callback);
        status = nt_replay_find_silence(&alloc, p->program, &progress.progress, marks,
                                        drops, &err);
        nt_py_end(&progress);
    }
    if (status != NT_OK || p->marks != NULL) {
        PyMem_Free(marks);
        PyMem_Free(drops);
    } else {
        p->marks = marks;
        p->drops = drops;
        for (size_t i = 0; i < events; i++) {
            p->places += (marks[i] & NT_MARK_SILENT) != 0;
        }
        for (size_t i = 0; i < pools; i++) {
            p->places += drops[i] != NT_EVENT_NEVER;
        }
    }
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    return PyLong_FromSize_t(p->places);
}

#define KEYWORDS(function)                                                             \
    (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef program_methods[] = {
    {"facts", program_facts, METH_NOARGS, facts_doc},
    {"edit", program_edit, METH_VARARGS, edit_doc},
    {"run", KEYWORDS(nt_py_program_run), nt_py_run_doc},
    {"find_range", KEYWORDS(nt_py_program_find_range), nt_py_find_range_doc},
    {"count_variants", KEYWORDS(nt_py_program_count_variants),
     nt_py_count_variants_doc},
    {"run_variant", KEYWORDS(nt_py_program_run_variant), nt_py_run_variant_doc},
    {"join_variants", KEYWORDS(nt_py_program_join_variants), nt_py_join_variants_doc},
    {"check", KEYWORDS(nt_py_program_check), nt_py_check_doc},
    {"series", KEYWORDS(nt_py_program_series), nt_py_series_doc},
    {"trace", KEYWORDS(nt_py_program_trace), nt_py_trace_doc},
    {"find_silence", program_find_silence, METH_VARARGS, find_silence_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_doc, (void *)program_doc},
    {0, NULL},
};

PyType_Spec nt_py_program_spec = {
    .name = "neutracer._core.Program",
    .basicsize = sizeof(py_program),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = program_slots,
};
