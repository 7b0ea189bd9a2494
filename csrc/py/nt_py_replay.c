/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline's program run on the model of the allocator. A program is read only, so
 * any number of threads run one at a time, without the GIL. */
#include "nt_py_replay.h"

#include "whatif/nt_replay_range.h"

/* What a call asks for. */
typedef struct replay_request {
    nt_replay_options options;
    size_t runs, index; /* of find_range and its parts */
    PyObject *variants; /* borrowed: of join_variants; None */
    PyObject *callback;
} replay_request;

/* ---- plain data for Python ---------------------------------------------------------
 */

static PyObject *
replay_event(bool is_there, int32_t event)
{
    return is_there ? PyLong_FromLong(event) : Py_NewRef(Py_None);
}

static PyObject *
replay_bytes(const uint64_t *bytes)
{
    return Py_BuildValue("{sNsNsNsN}", "allocated",
                         nt_py_replay_number(bytes[NT_METRIC_ALLOCATED]), "active",
                         nt_py_replay_number(bytes[NT_METRIC_ACTIVE]), "reserved",
                         nt_py_replay_number(bytes[NT_METRIC_RESERVED]), "requested",
                         nt_py_replay_number(bytes[NT_METRIC_REQUESTED]));
}

static PyObject *
replay_figures(const nt_replay_figures *f)
{
    return Py_BuildValue(
        "{sNsNsNsNsNsNsNsNsNsNsO}", "peak", replay_bytes(f->peak), "final",
        replay_bytes(f->final), "segments", nt_py_replay_number(f->segments),
        "device_allocs", nt_py_replay_number(f->device_allocs), "device_frees",
        nt_py_replay_number(f->device_frees), "ooms", nt_py_replay_number(f->ooms),
        "retries", nt_py_replay_number(f->retries), "waits",
        nt_py_replay_number(f->waits), "stopped_event",
        replay_event(f->is_stopped, f->stopped_event), "beyond_event",
        replay_event(f->is_beyond, f->beyond_event), "start_rebuilt",
        f->start_rebuilt ? Py_True : Py_False);
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

/* ---- runs --------------------------------------------------------------------------
 */

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
    const nt_replay_options defaults = nt_replay_default(nt_py_program_of(self));
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

const char nt_py_run_doc[] = PyDoc_STR(
    "run(settings=None, *, limit, device_total, device_other, version=0,\n"
    "    order=0, timing=0, seed=0, least_ooms=False, goes_on=False,\n"
    "    progress=None)\n--\n\n"
    "The figures under these settings; None are the recorded ones. Limits in\n"
    "bytes; what is left out is as it was recorded.");

PyObject *
nt_py_program_run(PyObject *self, PyObject *args, PyObject *kwargs)
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
    const nt_status status =
        nt_replay_run(&alloc, nt_py_program_of(self), &request.options,
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

const char nt_py_find_range_doc[] = PyDoc_STR(
    "find_range(settings=None, *, runs=0, ...)\n--\n\n"
    "(figures, lowest, highest, causes, runs) with other orders of addresses\n"
    "and timings; None stands for what nothing bounds. Keywords as in run.");

PyObject *
nt_py_program_find_range(PyObject *self, PyObject *args, PyObject *kwargs)
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
        nt_replay_find_range(&alloc, nt_py_program_of(self), &request.options,
                             request.runs, &progress.progress, &base, &range, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    return replay_range(&base, &range);
}

const char nt_py_count_variants_doc[] =
    PyDoc_STR("count_variants(settings=None, *, runs=0, ...)\n--\n\n"
              "Of how many runs find_range makes its range. Keywords as there.");

PyObject *
nt_py_program_count_variants(PyObject *self, PyObject *args, PyObject *kwargs)
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
        &alloc, nt_py_program_of(self), &request.options, request.runs, &count, &err);
    Py_END_ALLOW_THREADS return status != NT_OK ? nt_py_raise(status, &err)
                                                : PyLong_FromSize_t(count);
}

const char nt_py_run_variant_doc[] =
    PyDoc_STR("run_variant(settings=None, *, index, runs=0, ...)\n--\n\n"
              "One of the runs that find_range makes, as bytes for join_variants.\n"
              "Keywords as there.");

PyObject *
nt_py_program_run_variant(PyObject *self, PyObject *args, PyObject *kwargs)
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
        &alloc, nt_py_program_of(self), &request.options, request.runs, request.index,
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

const char nt_py_join_variants_doc[] =
    PyDoc_STR("join_variants(settings=None, *, variants, ...)\n--\n\n"
              "What find_range returns, of a list of what run_variant gave; the first\n"
              "is what the others are held against. Keywords as there.");

PyObject *
nt_py_program_join_variants(PyObject *self, PyObject *args, PyObject *kwargs)
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
    const nt_status status =
        nt_replay_join_variants(&alloc, nt_py_program_of(self), &request.options,
                                variants, count, &range, &err);
    const nt_replay_figures base = variants[0].figures;
    PyMem_Free(variants);
    return status != NT_OK ? nt_py_raise(status, &err) : replay_range(&base, &range);
}

const char nt_py_check_doc[] =
    PyDoc_STR("check(settings=None, *, ...)\n--\n\n"
              "(fidelity, figures): the run with the addresses of the trace, compared\n"
              "with it event by event; fidelity[\"variant\"] are the figures for\n"
              "join_variants. Keywords as in run.");

PyObject *
nt_py_program_check(PyObject *self, PyObject *args, PyObject *kwargs)
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
        nt_replay_check(&alloc, nt_py_program_of(self), &request.options,
                        &progress.progress, &fidelity, &figures, &err);
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

const char nt_py_series_doc[] =
    PyDoc_STR("series(settings=None, *, ...)\n--\n\n"
              "(figures, columns): the values after each event as native numbers, 64\n"
              "bits for bytes and 32 for counts. Keywords as in run.");

PyObject *
nt_py_program_series(PyObject *self, PyObject *args, PyObject *kwargs)
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
    const nt_status status =
        nt_replay_run(&alloc, nt_py_program_of(self), &request.options,
                      &progress.progress, &series, &figures, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        Py_DECREF(dict);
        return nt_py_raise(status, &err);
    }
    return Py_BuildValue("(NN)", replay_figures(&figures), dict);
}

const char nt_py_trace_doc[] =
    PyDoc_STR("trace(settings=None, *, ...)\n--\n\n"
              "A Snapshot of the run, with made-up addresses. Keywords as in run.");

PyObject *
nt_py_program_trace(PyObject *self, PyObject *args, PyObject *kwargs)
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
    const nt_status status =
        nt_replay_trace(&alloc, nt_py_program_of(self), &request.options,
                        &progress.progress, &made->snapshot, &err);
    nt_py_end(&progress);
    if (status != NT_OK) {
        Py_DECREF(made);
        return nt_py_raise(status, &err);
    }
    return (PyObject *)made;
}
