/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <string.h>
#include <time.h>

#include "trace/nt_rounding.h"

/* ---- interruption and progress --------------------------------------------------- */

/* Between two visits to Python: short enough that Ctrl-C and a progress line feel
 * immediate, long enough that waiting for the GIL behind other threads costs little. */
#define PROGRESS_TICK_NS (UINT64_C(50) * 1000 * 1000)

static uint64_t
progress_clock_ns(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* The core tells how far it is: signals (Ctrl-C) are looked at, and the callback is
 * called. An exception stops the work and stays set. */
static int
progress_report(void *ctx, uint64_t done)
{
    nt_py_progress *p = ctx;
    if (progress_clock_ns() - p->last_ns < PROGRESS_TICK_NS) {
        return 0;
    }
    PyEval_RestoreThread(p->thread);
    int stop = PyErr_CheckSignals() < 0;
    if (!stop && p->callback != NULL && p->callback != Py_None) {
        PyObject *result =
            PyObject_CallFunction(p->callback, "K", (unsigned long long)done);
        stop = result == NULL;
        Py_XDECREF(result);
    }
    p->thread = PyEval_SaveThread();
    p->last_ns = progress_clock_ns();
    return stop;
}

void
nt_py_begin(nt_py_progress *p, PyObject *callback)
{
    p->callback = callback;
    p->last_ns = progress_clock_ns();
    p->progress = (nt_progress){.report = progress_report, .ctx = p};
    p->thread = PyEval_SaveThread();
}

void
nt_py_end(nt_py_progress *p)
{
    PyEval_RestoreThread(p->thread);
}

/* ---- the module ------------------------------------------------------------------ */

static struct PyModuleDef module_def;

nt_py_state *
nt_py_state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModule(type);
    return module == NULL ? NULL : PyModule_GetState(module);
}

/* An instance of neutracer.errors.<name> made of `args` (stolen) is raised. */
static void
module_raise(const char *name, PyObject *args)
{
    PyObject *errors = args == NULL ? NULL : PyImport_ImportModule("neutracer.errors");
    PyObject *type = errors == NULL ? NULL : PyObject_GetAttrString(errors, name);
    PyObject *error = type == NULL ? NULL : PyObject_CallObject(type, args);
    if (error != NULL) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(errors);
    Py_XDECREF(args);
}

PyObject *
nt_py_message(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *
nt_py_refuse_pickle(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyErr_Format(PyExc_TypeError, "cannot pickle '%.200s' object",
                        Py_TYPE(self)->tp_name);
}

static void
module_raise_builtin(PyObject *type, const nt_error *err)
{
    PyObject *message = nt_py_message(err->message);
    if (message != NULL) {
        PyErr_SetObject(type, message);
        Py_DECREF(message);
    }
}

PyObject *
nt_py_raise(nt_status status, const nt_error *err)
{
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (status == NT_NOMEM) {
        return PyErr_NoMemory();
    }
    if (status == NT_ARGUMENT) {
        module_raise_builtin(PyExc_ValueError, err);
        return NULL;
    }
    if (status == NT_IO) {
        module_raise_builtin(PyExc_OSError, err);
        return NULL;
    }
    const char *name = status == NT_LIMIT ? "LimitError" : "SnapshotError";
    PyObject *args = err->offset == NT_NO_OFFSET
                         ? Py_BuildValue("(N)", nt_py_message(err->message))
                         : Py_BuildValue("(NK)", nt_py_message(err->message),
                                         (unsigned long long)err->offset);
    module_raise(name, args);
    return NULL;
}

PyObject *
nt_py_raise_unavailable(nt_status status, const nt_error *err, const char *what)
{
    if (status != NT_REFUSED || PyErr_Occurred()) {
        return nt_py_raise(status, err);
    }
    module_raise("UnavailableError",
                 Py_BuildValue("(sN)", what, nt_py_message(err->message)));
    return NULL;
}

/* SettingsError, with the position counted in characters of `utf8`. */
static void
module_raise_settings(const char *utf8, Py_ssize_t length, const nt_error *err)
{
    PyObject *message = nt_py_message(err->message);
    if (err->offset > (uint64_t)length) {
        module_raise("SettingsError", Py_BuildValue("(N)", message));
        return;
    }
    Py_ssize_t position = 0;
    for (uint64_t i = 0; i < err->offset; i++) {
        position += ((unsigned char)utf8[i] & 0xC0) != 0x80;
    }
    module_raise("SettingsError", Py_BuildValue("(Nn)", message, position));
}

int
nt_py_parse_settings(PyObject *text, nt_settings *out)
{
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    nt_error err = {.offset = NT_NO_OFFSET};
    if (utf8 == NULL) {
        return -1;
    }
    if (nt_settings_parse(utf8, (size_t)length, out, &err) != NT_OK) {
        module_raise_settings(utf8, length, &err);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(
    parse_settings_doc,
    "parse_settings(text, /)\n--\n\n"
    "The settings of a PYTORCH_CUDA_ALLOC_CONF text as a dict; sizes in bytes.\n\n"
    "Raises neutracer.SettingsError with the position of what is wrong.");

static PyObject *
module_settings(PyObject *Py_UNUSED(module), PyObject *text)
{
    nt_settings settings;
    return nt_py_parse_settings(text, &settings) < 0 ? NULL
                                                     : nt_py_settings_dict(&settings);
}

PyDoc_STRVAR(
    round_size_doc,
    "round_size(nbytes, settings='', /)\n--\n\n"
    "The block size in bytes that the allocator looks for when asked for nbytes.");

static PyObject *
module_round_size(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long nbytes;
    PyObject *text = NULL;
    nt_settings settings = nt_settings_default();
    if (!PyArg_ParseTuple(args, "K|U", &nbytes, &text) ||
        (text != NULL && nt_py_parse_settings(text, &settings) < 0)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(nt_round_size(&settings, nbytes));
}

PyDoc_STRVAR(load_doc,
             "load(source, max_memory, progress=None)\n--\n\n"
             "A Snapshot from bytes, a file descriptor, or an object with read(n).");
PyDoc_STRVAR(save_doc,
             "save(source, write, progress=None)\n--\n\n"
             "Writes a Snapshot, or ranges of its Timelines (tuples of a Timeline, the "
             "first\nevent and the one after the last), through write(bytes).");
PyDoc_STRVAR(
    arrow_doc,
    "arrow_stream(columns, count, /)\n--\n\n"
    "A capsule 'arrow_array_stream' of one batch. Each column is a tuple (name,\n"
    "buffer, first item, dictionary or None, code that stands for null or None).");

PyDoc_STRVAR(pack_doc,
             "pack(snapshot, write, /)\n--\n\n"
             "Hands the columns as few bytes to write(bytes), piece by piece.");

PyDoc_STRVAR(
    ratios_doc,
    "ratios(allocated, reserved, action, /)\n--\n\n"
    "(reserved - allocated) / reserved after each event as native doubles, the\n"
    "largest, its event (-1: none), the mean, and the last.");

static PyMethodDef module_methods[] = {
    {"load", (PyCFunction)(void (*)(void))nt_py_load, METH_VARARGS | METH_KEYWORDS,
     load_doc},
    {"save", (PyCFunction)(void (*)(void))nt_py_save, METH_VARARGS | METH_KEYWORDS,
     save_doc},
    {"pack", nt_py_pack, METH_VARARGS, pack_doc},
    {"arrow_stream", nt_py_arrow_stream, METH_VARARGS, arrow_doc},
    {"ratios", nt_py_fragment_ratios, METH_VARARGS, ratios_doc},
    {"parse_settings", module_settings, METH_O, parse_settings_doc},
    {"round_size", module_round_size, METH_VARARGS, round_size_doc},
    {NULL, NULL, 0, NULL},
};

static int
module_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out)
{
    *out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out == NULL ? -1 : PyModule_AddType(module, *out);
}

static int
module_add_functions(PyObject *module)
{
    PyMethodDef *const tables[] = {nt_py_heap_methods,  nt_py_trend_methods,
                                   nt_py_pick_methods,  nt_py_live_methods,
                                   nt_py_dump_methods,  nt_py_signals_methods,
                                   nt_py_steps_methods, nt_py_categories_methods};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (PyModule_AddFunctions(module, tables[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
module_exec(PyObject *module)
{
    nt_py_state *state = PyModule_GetState(module);
    return module_add_type(module, &nt_py_column_spec, &state->column_type) < 0 ||
                   module_add_type(module, &nt_py_snapshot_spec,
                                   &state->snapshot_type) < 0 ||
                   module_add_type(module, &nt_py_timeline_spec,
                                   &state->timeline_type) < 0 ||
                   module_add_type(module, &nt_py_layout_spec, &state->layout_type) <
                       0 ||
                   module_add_type(module, &nt_py_fragment_spec,
                                   &state->fragment_type) < 0 ||
                   module_add_type(module, &nt_py_raster_spec, &state->raster_type) <
                       0 ||
                   module_add_type(module, &nt_py_pyramid_spec, &state->pyramid_type) <
                       0 ||
                   module_add_type(module, &nt_py_program_spec, &state->program_type) <
                       0 ||
                   module_add_type(module, &nt_py_sampler_spec, &state->sampler_type) <
                       0 ||
                   module_add_type(module, &nt_py_devices_spec, &state->devices_type) <
                       0 ||
                   module_add_type(module, &nt_py_attribution_spec,
                                   &state->attribution_type) < 0 ||
                   module_add_type(module, &nt_py_marks_spec, &state->marks_type) < 0 ||
                   module_add_type(module, &nt_py_around_spec, &state->around_type) <
                       0 ||
                   module_add_functions(module) < 0 || nt_py_live_add(module) < 0
               ? -1
               : 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    nt_py_state *state = PyModule_GetState(module);
    Py_VISIT(state->column_type);
    Py_VISIT(state->snapshot_type);
    Py_VISIT(state->timeline_type);
    Py_VISIT(state->layout_type);
    Py_VISIT(state->fragment_type);
    Py_VISIT(state->raster_type);
    Py_VISIT(state->pyramid_type);
    Py_VISIT(state->program_type);
    Py_VISIT(state->sampler_type);
    Py_VISIT(state->devices_type);
    Py_VISIT(state->attribution_type);
    Py_VISIT(state->marks_type);
    Py_VISIT(state->around_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    nt_py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->column_type);
    Py_CLEAR(state->snapshot_type);
    Py_CLEAR(state->timeline_type);
    Py_CLEAR(state->layout_type);
    Py_CLEAR(state->fragment_type);
    Py_CLEAR(state->raster_type);
    Py_CLEAR(state->pyramid_type);
    Py_CLEAR(state->program_type);
    Py_CLEAR(state->sampler_type);
    Py_CLEAR(state->devices_type);
    Py_CLEAR(state->attribution_type);
    Py_CLEAR(state->marks_type);
    Py_CLEAR(state->around_type);
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "neutracer._core",
    .m_doc = "The C core of neutracer. Use the names in neutracer instead.",
    .m_size = sizeof(nt_py_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
