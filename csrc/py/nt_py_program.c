/* SPDX-License-Identifier: Apache-2.0 */
/* What a timeline asked of the allocator, and its runs on the model. A program is read
 * only, so any number of threads run one at a time, without the GIL. */
#include "nt_py.h"

#include "whatif/nt_replay.h"

typedef struct py_program {
    PyObject_HEAD nt_py_timeline *timeline; /* owned: the program reads it */
    PyObject *original; /* owned: of an edited one what it was made of, or NULL */
    nt_program *program;
    uint8_t *marks; /* owned: what find_silence found, or NULL; as are the drops */
    int32_t *drops;
    size_t places; /* how many there are in both */
} py_program;

static inline const nt_program *
program_of(PyObject *self)
{
    return ((py_program *)self)->program;
}

/* None where nothing bounds the value. */
static PyObject *
replay_number(uint64_t value)
{
    return value == UINT64_MAX ? Py_NewRef(Py_None)
                               : PyLong_FromUnsignedLongLong(value);
}

/* What a call asks for. */
typedef struct replay_request {
    nt_replay_options options;
    size_t runs, index; /* of find_range and its parts */
    PyObject *variants; /* borrowed: of join_variants; None */
    PyObject *callback;
} replay_request;

/* ---- plain data for Python ------------------------------------------------------- */

static PyObject *
replay_event(bool is_there, int32_t event)
{
    return is_there ? PyLong_FromLong(event) : Py_NewRef(Py_None);
}

static PyObject *
replay_bytes(const uint64_t *bytes)
{
    return Py_BuildValue("{sNsNsNsN}", "allocated",
                         replay_number(bytes[NT_METRIC_ALLOCATED]), "active",
                         replay_number(bytes[NT_METRIC_ACTIVE]), "reserved",
                         replay_number(bytes[NT_METRIC_RESERVED]), "requested",
                         replay_number(bytes[NT_METRIC_REQUESTED]));
}

/* Of a span both bounds, where NT_UNLIMITED is a number. */
static PyObject *
replay_reach(const nt_replay_reach *reach)
{
    return Py_BuildValue(
        "((KK)(KK)(KK)O)", (unsigned long long)reach->limit.least,
        (unsigned long long)reach->limit.most, (unsigned long long)reach->room.least,
        (unsigned long long)reach->room.most, (unsigned long long)reach->reserve.least,
        (unsigned long long)reach->reserve.most, reach->any_order ? Py_True : Py_False);
}

static PyObject *
replay_figures(const nt_replay_figures *f)
{
    return Py_BuildValue(
        "{sNsNsNsNsNsNsNsNsNsNsNsOsN}", "peak", replay_bytes(f->peak), "final",
        replay_bytes(f->final), "segments", replay_number(f->segments), "device_allocs",
        replay_number(f->device_allocs), "device_frees", replay_number(f->device_frees),
        "ooms", replay_number(f->ooms), "retries", replay_number(f->retries), "waits",
        replay_number(f->waits), "stopped_event",
        replay_event(f->is_stopped, f->stopped_event), "beyond_event",
        replay_event(f->is_beyond, f->beyond_event), "failed_event",
        replay_event(f->failed_event != NT_EVENT_NEVER, f->failed_event),
        "start_rebuilt", f->start_rebuilt ? Py_True : Py_False, "reach",
        replay_reach(&f->reach));
}

static PyObject *
replay_deed(const nt_replay_deed *deed)
{
    if (deed->action >= NT_ACTION_COUNT) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(iKK)", (int)deed->action, (unsigned long long)deed->address,
                         (unsigned long long)deed->size);
}

static PyObject *
replay_fidelity(const nt_replay_fidelity *f, const nt_replay_figures *figures)
{
    const bool differs = f->first_event != NT_EVENT_NEVER;
    nt_replay_variant variant;
    memset(&variant, 0, sizeof variant);
    variant.figures = *figures;
    return Py_BuildValue(
        "{sKsKsKsKsOsOsNsNsNsy#}", "mallocs", (unsigned long long)f->mallocs,
        "mallocs_same", (unsigned long long)f->mallocs_same, "device_events",
        (unsigned long long)f->device_events, "device_events_same",
        (unsigned long long)f->device_events_same, "is_same",
        f->is_same ? Py_True : Py_False, "is_end_same",
        f->is_end_same ? Py_True : Py_False, "first_event",
        replay_event(differs, f->first_event), "recorded", replay_deed(&f->recorded),
        "modelled", replay_deed(&f->modelled), "variant", (const char *)&variant,
        (Py_ssize_t)sizeof variant);
}

/* ---- runs ------------------------------------------------------------------------ */

/* Where something may have been silent, as find_silence of the program found it, or of
 * the one that it was made of; 0, or -1 with an exception. */
static int
program_set_silence(PyObject *self, bool with_places, nt_replay_silence *out)
{
    const py_program *found = (py_program *)self;
    while (found->marks == NULL && found->original != NULL) {
        found = (py_program *)found->original;
    }
    if (found->marks == NULL) {
        PyErr_SetString(PyExc_ValueError, "find_silence() comes first");
        return -1;
    }
    *out = (nt_replay_silence){.marks = found->marks,
                               .drops = found->drops,
                               .places = with_places ? found->places : 0};
    return 0;
}

/* 0 and the request, or -1 with an exception. */
static int
program_parse(PyObject *self, PyObject *args, PyObject *kwargs, replay_request *out)
{
    static char *names[] = {
        "settings", "limit",  "device_total", "device_other", "version",  "order",
        "timing",   "seed",   "least_ooms",   "goes_on",      "runs",     "progress",
        "begin",    "silent", "share",        "index",        "variants", NULL};
    PyObject *settings = Py_None;
    int order = NT_ORDER_RECORDED, timing = NT_TIMING_RECORDED;
    int least_ooms = 0, goes_on = 0, begin = NT_BEGIN_AUTO, silent = 0;
    Py_ssize_t runs = 0, index = 0;
    const nt_replay_options defaults = nt_replay_default(program_of(self));
    unsigned long long limit = defaults.limit, total = defaults.device_total;
    unsigned long long other = defaults.device_other, seed = 0;
    unsigned version = 0, share = 0;
    *out =
        (replay_request){.options = defaults, .variants = Py_None, .callback = Py_None};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|O$KKKIiiKppnOiiInO", names, &settings, &limit, &total,
            &other, &version, &order, &timing, &seed, &least_ooms, &goes_on, &runs,
            &out->callback, &begin, &silent, &share, &index, &out->variants)) {
        return -1;
    }
    if (order < NT_ORDER_RECORDED || order > NT_ORDER_FALLING ||
        timing < NT_TIMING_RECORDED || timing > NT_TIMING_MIXED ||
        begin < NT_BEGIN_AUTO || begin > NT_BEGIN_ANEW || runs < 0 || index < 0) {
        PyErr_SetString(PyExc_ValueError, "no such order, timing, start or number");
        return -1;
    }
    if (settings != Py_None &&
        nt_py_parse_settings(settings, &out->options.settings) < 0) {
        return -1;
    }
    nt_replay_options *o = &out->options;
    if (silent && program_set_silence(self, silent > 1, &o->silence) < 0) {
        return -1;
    }
    o->silence.share = share;
    o->begin = (nt_replay_begin)begin;
    o->limit = limit;
    o->device_total = total;
    o->device_other = other;
    o->version = version;
    o->order = (nt_replay_order)order;
    o->timing = (nt_replay_timing)timing;
    o->seed = seed;
    o->least_ooms = least_ooms != 0;
    o->goes_on = goes_on != 0;
    out->runs = (size_t)runs;
    out->index = (size_t)index;
    return 0;
}

PyDoc_STRVAR(run_doc,
             "run(settings=None, *, limit, device_total, device_other, version=0,\n"
             "    order=0, timing=0, seed=0, least_ooms=False, goes_on=False,\n"
             "    progress=None)\n--\n\n"
             "The figures under these settings; None are the recorded ones. Limits in\n"
             "bytes; what is left out is as it was recorded.");

/* The methods that run a program, and what their docstrings say. */
static PyObject *
program_run(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_figures figures;
    const nt_alloc alloc = nt_alloc_system();
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status = nt_replay_run(&alloc, program_of(self), &request.options,
                                           &progress.progress, NULL, &figures, &err);
    nt_py_end(&progress);
    return status != NT_OK ? nt_py_raise(status, &err) : replay_figures(&figures);
}

static PyObject *
replay_range(const nt_replay_figures *base, const nt_replay_range *range)
{
    return Py_BuildValue("(NNNIn)", replay_figures(base), replay_figures(&range->low),
                         replay_figures(&range->high), range->causes,
                         (Py_ssize_t)range->runs);
}

PyDoc_STRVAR(find_range_doc,
             "find_range(settings=None, *, runs=0, ...)\n--\n\n"
             "(figures, lowest, highest, causes, runs) with other orders of addresses\n"
             "and timings; None stands for what nothing bounds. Keywords as in run.");

static PyObject *
program_find_range(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_figures base;
    nt_replay_range range;
    const nt_alloc alloc = nt_alloc_system();
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status =
        nt_replay_find_range(&alloc, program_of(self), &request.options, request.runs,
                             &progress.progress, &base, &range, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    return replay_range(&base, &range);
}

PyDoc_STRVAR(count_variants_doc,
             "count_variants(settings=None, *, runs=0, ...)\n--\n\n"
             "Of how many runs find_range makes its range. Keywords as there.");

static PyObject *
program_count_variants(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_alloc_system();
    size_t count;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_replay_count_variants(
        &alloc, program_of(self), &request.options, request.runs, &count, &err);
    Py_END_ALLOW_THREADS return status != NT_OK ? nt_py_raise(status, &err)
                                                : PyLong_FromSize_t(count);
}

PyDoc_STRVAR(run_variant_doc,
             "run_variant(settings=None, *, index, runs=0, ...)\n--\n\n"
             "One of the runs that find_range makes, as bytes for join_variants.\n"
             "Keywords as there.");

static PyObject *
program_run_variant(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_variant variant;
    bool is_there;
    const nt_alloc alloc = nt_alloc_system();
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status = nt_replay_run_variant(
        &alloc, program_of(self), &request.options, request.runs, request.index,
        &progress.progress, &variant, &is_there, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    if (!is_there) {
        PyErr_SetString(PyExc_ValueError, "there is no such run");
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)&variant, sizeof variant);
}

/* The variants in a list of bytes, owned by the caller; NULL with an exception. */
static nt_replay_variant *
replay_variants(PyObject *list, size_t *count)
{
    const Py_ssize_t length = PyList_Check(list) ? PyList_GET_SIZE(list) : 0;
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "variants must be a list of bytes");
        return NULL;
    }
    nt_replay_variant *variants = PyMem_Calloc((size_t)length, sizeof *variants);
    if (variants == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (!PyBytes_Check(item) || PyBytes_GET_SIZE(item) != sizeof *variants) {
            PyMem_Free(variants);
            PyErr_SetString(PyExc_ValueError, "variants must be what run_variant gave");
            return NULL;
        }
        memcpy(&variants[i], PyBytes_AS_STRING(item), sizeof *variants);
    }
    *count = (size_t)length;
    return variants;
}

PyDoc_STRVAR(join_variants_doc,
             "join_variants(settings=None, *, variants, ...)\n--\n\n"
             "What find_range returns, of a list of what run_variant gave; the first\n"
             "is what the others are held against. Keywords as there.");

static PyObject *
program_join_variants(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    size_t count;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_replay_variant *variants = replay_variants(request.variants, &count);
    if (variants == NULL) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_range range;
    const nt_alloc alloc = nt_alloc_system();
    const nt_status status = nt_replay_join_variants(
        &alloc, program_of(self), &request.options, variants, count, &range, &err);
    const nt_replay_figures base = variants[0].figures;
    PyMem_Free(variants);
    return status != NT_OK ? nt_py_raise(status, &err) : replay_range(&base, &range);
}

PyDoc_STRVAR(check_doc,
             "check(settings=None, *, ...)\n--\n\n"
             "(fidelity, figures): the run with the addresses of the trace, compared\n"
             "with it event by event; fidelity[\"variant\"] are the figures for\n"
             "join_variants. Keywords as in run.");

static PyObject *
program_check(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_fidelity fidelity;
    nt_replay_figures figures;
    const nt_alloc alloc = nt_alloc_system();
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status =
        nt_replay_check(&alloc, program_of(self), &request.options, &progress.progress,
                        &fidelity, &figures, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    return Py_BuildValue("(NN)", replay_fidelity(&fidelity, &figures),
                         replay_figures(&figures));
}

/* The data of a new bytes object of `count` items, which is aligned for any type, under
 * `name` in the dict; NULL with an exception. */
static void *
replay_room(PyObject *dict, const char *name, size_t count, size_t item)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * item));
    void *data = NULL;
    if (bytes != NULL && PyDict_SetItemString(dict, name, bytes) == 0) {
        data = PyBytes_AS_STRING(bytes);
    }
    Py_XDECREF(bytes);
    return data;
}

static PyObject *
replay_make_series(size_t count, nt_replay_series *series)
{
    static const char *const bytes[] = {
        [NT_METRIC_ALLOCATED] = "allocated",
        [NT_METRIC_ACTIVE] = "active",
        [NT_METRIC_RESERVED] = "reserved",
        [NT_METRIC_REQUESTED] = "requested",
    };
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    bool is_made = true;
    for (size_t i = 0; i < NT_METRIC_COUNT; i++) {
        series->bytes[i] = replay_room(dict, bytes[i], count, sizeof *series->bytes[i]);
        is_made = is_made && series->bytes[i] != NULL;
    }
    series->segments = replay_room(dict, "segments", count, sizeof(uint32_t));
    series->device_allocs = replay_room(dict, "device_allocs", count, sizeof(uint32_t));
    series->device_frees = replay_room(dict, "device_frees", count, sizeof(uint32_t));
    series->ooms = replay_room(dict, "ooms", count, sizeof(uint32_t));
    if (!is_made || series->segments == NULL || series->device_allocs == NULL ||
        series->device_frees == NULL || series->ooms == NULL) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyDoc_STRVAR(series_doc,
             "series(settings=None, *, ...)\n--\n\n"
             "(figures, columns): the values after each event as native numbers, 64\n"
             "bits for bytes and 32 for counts. Keywords as in run.");

static PyObject *
program_series(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_replay_figures figures;
    nt_replay_series series = {.segments = NULL};
    const nt_alloc alloc = nt_alloc_system();
    PyObject *dict = replay_make_series(
        nt_timeline_event_count(((py_program *)self)->timeline->timeline), &series);
    if (dict == NULL) {
        return NULL;
    }
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status = nt_replay_run(&alloc, program_of(self), &request.options,
                                           &progress.progress, &series, &figures, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        Py_DECREF(dict);
        return nt_py_raise(status, &err);
    }
    return Py_BuildValue("(NN)", replay_figures(&figures), dict);
}

PyDoc_STRVAR(trace_doc,
             "trace(settings=None, *, ...)\n--\n\n"
             "A Snapshot of the run, with made-up addresses. Keywords as in run.");

static PyObject *
program_trace(PyObject *self, PyObject *args, PyObject *kwargs)
{
    replay_request request;
    nt_py_state *state = nt_py_state_of(Py_TYPE(self));
    if (program_parse(self, args, kwargs, &request) < 0) {
        return NULL;
    }
    nt_py_snapshot *made = nt_py_snapshot_new(state, SIZE_MAX);
    if (made == NULL) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_budget_alloc(&made->budget);
    nt_py_progress progress;
    nt_py_begin(&progress, request.callback);
    const nt_status status = nt_replay_trace(&alloc, program_of(self), &request.options,
                                             &progress.progress, &made->snapshot, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        Py_DECREF(made);
        return nt_py_raise(status, &err);
    }
    return (PyObject *)made;
}

/* ---- the type, and other programs made of it ------------------------------------- */

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
program_facts(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_program *p = program_of(self);
    const nt_replay_options o = nt_replay_default(p);
    Py_ssize_t calls = 0;
    for (size_t i = 0; i < p->step_count; i++) {
        calls += p->steps[i].kind == NT_PROGRAM_EMPTY_CACHE;
    }
    return Py_BuildValue(
        "{snsnsnsnsnsnsNsNsOsKsKsKsOsOsOsO}", "steps", (Py_ssize_t)p->step_count,
        "lanes", (Py_ssize_t)p->lane_count, "pools", (Py_ssize_t)p->pool_count, "areas",
        (Py_ssize_t)p->area_count, "calls", calls, "segments_without_pool",
        program_count_unknown(p), "limit_low", replay_number(p->bounds.low),
        "limit_high", replay_number(p->bounds.high), "is_device",
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
        nt_program_edit(&alloc, program_of(self), &change, out, err);
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

PyDoc_STRVAR(
    go_on_doc,
    "go_on(failed, begins, like, after, rounds, stretch=None, growth=None,\n"
    "      stays=None, /)\n"
    "--\n\n"
    "Another Program: up to the request that failed at event `failed`, which\n"
    "it makes; then the rest of the round, as round `like` has it behind event\n"
    "`after`, and `rounds` more, as those before it. `begins` has the events\n"
    "at which rounds begin (32 bits each), `stretch` what the rest asks for\n"
    "over what its like did (a double an event), `growth` the bytes that a\n"
    "request grows by from round to round (64 bits an event).");

static nt_status
go_on_make(PyObject *self, const Py_buffer *begins, const Py_buffer *stretch,
           const Py_buffer *growth, const Py_buffer *stays, nt_program_sequel *sequel,
           nt_program **out, nt_error *err)
{
    const size_t count =
        nt_timeline_event_count(((py_program *)self)->timeline->timeline);
    if (!edit_fits(stretch, count, sizeof *sequel->stretch) ||
        !edit_fits(growth, count, sizeof *sequel->growth) ||
        !edit_fits(stays, count, sizeof *sequel->stays)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a change has one item for each event");
    }
    sequel->begins = begins->buf;
    sequel->begin_count = (size_t)begins->len / sizeof *sequel->begins;
    sequel->stretch = stretch->buf;
    sequel->growth = growth->buf;
    sequel->stays = stays->buf;
    const nt_alloc alloc = nt_alloc_system();
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_program_go_on(&alloc, program_of(self), sequel, out, err);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *
program_go_on(PyObject *self, PyObject *args)
{
    Py_buffer begins = {.buf = NULL}, stretch = {.buf = NULL};
    Py_buffer growth = {.buf = NULL}, stays = {.buf = NULL};
    Py_ssize_t like, rounds;
    int failed, after;
    if (!PyArg_ParseTuple(args, "iy*nin|z*z*z*:go_on", &failed, &begins, &like, &after,
                          &rounds, &stretch, &growth, &stays)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_program *program = NULL;
    nt_program_sequel sequel = {
        .failed = failed,
        .like = (size_t)like,
        .from = after,
        .rounds = (size_t)rounds,
    };
    const nt_status status =
        go_on_make(self, &begins, &stretch, &growth, &stays, &sequel, &program, &err);
    PyBuffer_Release(&begins);
    PyBuffer_Release(&stretch);
    PyBuffer_Release(&growth);
    PyBuffer_Release(&stays);
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
    {"go_on", program_go_on, METH_VARARGS, go_on_doc},
    {"run", KEYWORDS(program_run), run_doc},
    {"find_range", KEYWORDS(program_find_range), find_range_doc},
    {"count_variants", KEYWORDS(program_count_variants), count_variants_doc},
    {"run_variant", KEYWORDS(program_run_variant), run_variant_doc},
    {"join_variants", KEYWORDS(program_join_variants), join_variants_doc},
    {"check", KEYWORDS(program_check), check_doc},
    {"series", KEYWORDS(program_series), series_doc},
    {"trace", KEYWORDS(program_trace), trace_doc},
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
