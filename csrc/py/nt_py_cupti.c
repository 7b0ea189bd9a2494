/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <unistd.h>

#include "base/nt_columns.h"
#include "monitor/nt_cupti.h"

/* Rules that one attribution takes. */
#define CUPTI_MOST_RULES 64

typedef struct py_attribution {
    PyObject_HEAD nt_cupti *cupti;
    pid_t process; /* a fork's child has the object, but not what it stands for */
} py_attribution;

PyDoc_STRVAR(attribution_doc,
             "Attribution(name, only_loaded, rules)\n--\n\n"
             "Switches CUPTI's memory activity on. `rules` are pairs (part of a path,\n"
             "library). One thread at a time uses it.");

/* The tracker; NULL with an exception in a fork's child. */
static nt_cupti *
attribution_get(PyObject *self)
{
    const py_attribution *a = (py_attribution *)self;
    if (a->process != getpid()) {
        PyErr_SetString(PyExc_RuntimeError, "this belongs to the process that forked");
        return NULL;
    }
    return a->cupti;
}

static PyObject *
attribution_raise(nt_status status, const nt_error *err)
{
    return nt_py_raise_unavailable(status, err, "CUPTI's memory activity");
}

/* Calls what may wait for the device. */
static PyObject *
attribution_call(PyObject *self, nt_status (*call)(nt_cupti *cupti, nt_error *err))
{
    nt_cupti *cupti = attribution_get(self);
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    if (cupti == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = call(cupti, &err);
    Py_END_ALLOW_THREADS return status == NT_OK ? Py_NewRef(Py_None)
                                                : attribution_raise(status, &err);
}

/* The number of rules of a sequence of pairs, whose texts it keeps; -1 with an
 * exception. */
static Py_ssize_t
attribution_parse(PyObject *pairs, nt_ledger_rule *rules)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    if (count > CUPTI_MOST_RULES) {
        PyErr_SetString(PyExc_ValueError, "too many rules");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        if (!PyTuple_Check(pair) ||
            !PyArg_ParseTuple(pair, "ss", &rules[i].part, &rules[i].library)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a rule is a pair of texts");
            }
            return -1;
        }
    }
    return count;
}

static PyObject *
attribution_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "only_loaded", "rules", NULL};
    const char *name;
    int only_loaded;
    PyObject *pairs;
    nt_ledger_rule rules[CUPTI_MOST_RULES];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "spO!", names, &name, &only_loaded,
                                     &PyTuple_Type, &pairs)) {
        return NULL;
    }
    const Py_ssize_t count = attribution_parse(pairs, rules);
    py_attribution *self = count < 0 ? NULL : (py_attribution *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    self->process = getpid();
    Py_BEGIN_ALLOW_THREADS status = nt_cupti_start(
        &alloc, name, only_loaded != 0, rules, (size_t)count, &self->cupti, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        Py_DECREF(self);
        return attribution_raise(status, &err);
    }
    return (PyObject *)self;
}

static void
attribution_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    py_attribution *a = (py_attribution *)self;
    const bool is_child = a->process != getpid();
    Py_BEGIN_ALLOW_THREADS nt_cupti_free(a->cupti, is_child);
    Py_END_ALLOW_THREADS type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(attribution_flush_doc,
             "flush()\n--\n\n"
             "Makes read() return all that has happened until now.");

static PyObject *
attribution_flush(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return attribution_call(self, nt_cupti_flush);
}

PyDoc_STRVAR(attribution_stop_doc,
             "stop()\n--\n\n"
             "Switches the activity off; what was seen can still be read.");

static PyObject *
attribution_stop(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return attribution_call(self, nt_cupti_stop);
}

PyDoc_STRVAR(attribution_seed_doc,
             "seed(path, device, address, nbytes, /)\n--\n\n"
             "An earlier allocation, requested by the file at `path`.");

static PyObject *
attribution_seed(PyObject *self, PyObject *args)
{
    const char *path;
    unsigned device;
    unsigned long long address, nbytes;
    nt_cupti *cupti = attribution_get(self);
    if (cupti == NULL ||
        !PyArg_ParseTuple(args, "sIKK", &path, &device, &address, &nbytes)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_ledger_live seed = {
        .address = address,
        .bytes = nbytes,
        .device = device,
        .kind = NT_CUPTI_KIND_DEVICE,
    };
    nt_cupti_state state;
    nt_ledger *ledger = nt_cupti_lock(cupti, &state);
    nt_status status = nt_ledger_find_library(ledger, path, &seed.library, &err);
    if (status == NT_OK) {
        status = nt_ledger_seed(ledger, &seed, &err);
    }
    nt_cupti_unlock(cupti);
    return status == NT_OK ? Py_NewRef(Py_None) : attribution_raise(status, &err);
}

/* ---- reading --------------------------------------------------------------------- */

/* A text of the ledger's, which never moves. */
typedef struct attribution_text {
    const char *at;
    size_t length;
} attribution_text;

/* What a ledger holds, copied: no Python object may be made under the lock, because
 * that may run the garbage collector, a finalizer, and so a release of device memory,
 * which would wait for the lock. */
typedef struct attribution_copy {
    nt_cupti_state state;
    uint64_t unmatched;
    nt_ledger_use *uses;
    attribution_text *use_names;
    size_t use_count;
    attribution_text *paths;
    attribution_text *owners; /* the library of each path */
    size_t path_count;
    nt_ledger_live *live;
    attribution_text *live_names;
    size_t live_count;
} attribution_copy;

static void
copy_clear(attribution_copy *copy)
{
    PyMem_RawFree(copy->uses);
    PyMem_RawFree(copy->use_names);
    PyMem_RawFree(copy->paths);
    PyMem_RawFree(copy->owners);
    PyMem_RawFree(copy->live);
    PyMem_RawFree(copy->live_names);
}

/* Room for one more than `count`, so that NULL is failure. */
static bool
copy_reserve(attribution_copy *copy)
{
    copy->uses = PyMem_RawCalloc(copy->use_count + 1, sizeof *copy->uses);
    copy->use_names = PyMem_RawCalloc(copy->use_count + 1, sizeof *copy->use_names);
    copy->paths = PyMem_RawCalloc(copy->path_count + 1, sizeof *copy->paths);
    copy->owners = PyMem_RawCalloc(copy->path_count + 1, sizeof *copy->owners);
    copy->live = PyMem_RawCalloc(copy->live_count + 1, sizeof *copy->live);
    copy->live_names = PyMem_RawCalloc(copy->live_count + 1, sizeof *copy->live_names);
    return copy->uses != NULL && copy->use_names != NULL && copy->paths != NULL &&
           copy->owners != NULL && copy->live != NULL && copy->live_names != NULL;
}

static attribution_text
copy_name(const nt_ledger *ledger, uint32_t library)
{
    attribution_text text;
    text.at = nt_ledger_name(ledger, library, &text.length);
    return text;
}

/* With the lock held; false when memory runs out. */
static bool
copy_fill(const nt_ledger *ledger, attribution_copy *copy)
{
    const nt_ledger_use *uses = nt_ledger_uses(ledger, &copy->use_count);
    copy->path_count = nt_ledger_source_count(ledger);
    copy->live_count = nt_ledger_list(ledger, NULL, 0);
    copy->unmatched = nt_ledger_unmatched(ledger);
    if (!copy_reserve(copy)) {
        return false;
    }
    for (size_t i = 0; i < copy->use_count; i++) {
        copy->uses[i] = uses[i];
        copy->use_names[i] = copy_name(ledger, uses[i].library);
    }
    for (size_t i = 0; i < copy->path_count; i++) {
        uint32_t library;
        copy->paths[i].at =
            nt_ledger_source(ledger, i, &copy->paths[i].length, &library);
        copy->owners[i] = copy_name(ledger, library);
    }
    (void)nt_ledger_list(ledger, copy->live, copy->live_count);
    for (size_t i = 0; i < copy->live_count; i++) {
        copy->live_names[i] = copy_name(ledger, copy->live[i].library);
    }
    return true;
}

static PyObject *
copy_text(attribution_text text)
{
    return PyUnicode_DecodeUTF8(text.at, (Py_ssize_t)text.length, "replace");
}

static PyObject *
copy_use(const attribution_copy *copy, size_t i)
{
    const nt_ledger_use *u = &copy->uses[i];
    return Py_BuildValue("(INIKKKK)", u->device, copy_text(copy->use_names[i]), u->kind,
                         (unsigned long long)u->bytes,
                         (unsigned long long)u->peak_bytes, (unsigned long long)u->live,
                         (unsigned long long)u->allocations);
}

static PyObject *
copy_source(const attribution_copy *copy, size_t i)
{
    return Py_BuildValue("(NN)", copy_text(copy->paths[i]), copy_text(copy->owners[i]));
}

static PyObject *
copy_live(const attribution_copy *copy, size_t i)
{
    const nt_ledger_live *row = &copy->live[i];
    return Py_BuildValue("(INIKK)", row->device, copy_text(copy->live_names[i]),
                         row->kind, (unsigned long long)row->address,
                         (unsigned long long)row->bytes);
}

static PyObject *
copy_list(const attribution_copy *copy, size_t count,
          PyObject *(*make)(const attribution_copy *, size_t))
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *row = make(copy, i);
        if (row == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, row);
        }
    }
    return list;
}

PyDoc_STRVAR(
    attribution_read_doc,
    "read()\n--\n\n"
    "What was seen until the last flush: a dict of \"uses\" (device, library,\n"
    "kind, bytes, peak, live, allocations), \"sources\" (path, library),\n"
    "\"live\" (device, library, kind, address, bytes) and figures.");

static PyObject *
attribution_read(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_cupti *cupti = attribution_get(self);
    if (cupti == NULL) {
        return NULL;
    }
    attribution_copy copy = {.uses = NULL};
    const nt_ledger *ledger = nt_cupti_lock(cupti, &copy.state);
    const bool is_copied = copy_fill(ledger, &copy);
    nt_cupti_unlock(cupti);
    PyObject *result = NULL;
    if (is_copied) {
        result = Py_BuildValue("{sNsNsNsKsKsKsKsIsOsO}", "uses",
                               copy_list(&copy, copy.use_count, copy_use), "sources",
                               copy_list(&copy, copy.path_count, copy_source), "live",
                               copy_list(&copy, copy.live_count, copy_live),
                               "unmatched", (unsigned long long)copy.unmatched,
                               "records", (unsigned long long)copy.state.records,
                               "dropped", (unsigned long long)copy.state.dropped,
                               "buffer_bytes", (unsigned long long)copy.state.buffers,
                               "version", copy.state.version, "has_sources",
                               copy.state.has_sources ? Py_True : Py_False, "is_on",
                               copy.state.is_on ? Py_True : Py_False);
    } else {
        PyErr_NoMemory();
    }
    copy_clear(&copy);
    return result;
}

static PyMethodDef attribution_methods[] = {
    {"flush", attribution_flush, METH_NOARGS, attribution_flush_doc},
    {"stop", attribution_stop, METH_NOARGS, attribution_stop_doc},
    {"seed", attribution_seed, METH_VARARGS, attribution_seed_doc},
    {"read", attribution_read, METH_NOARGS, attribution_read_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot attribution_slots[] = {
    {Py_tp_new, attribution_new},
    {Py_tp_dealloc, attribution_dealloc},
    {Py_tp_methods, attribution_methods},
    {Py_tp_doc, (void *)attribution_doc},
    {0, NULL},
};

PyType_Spec nt_py_attribution_spec = {
    .name = "neutracer._core.Attribution",
    .basicsize = sizeof(py_attribution),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = attribution_slots,
};
