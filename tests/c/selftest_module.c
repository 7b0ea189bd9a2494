/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neutracer._selftest: the C cases of tests/c for pytest. Built only when asked for
 * (NEUTRACER_SELFTEST=1), never part of what is installed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "nt_test.h"
#include "selftest_heap.h"
#include "selftest_live.h"
#include "selftest_sampler.h"

/* Written by the build: `selftest_suites`, a table of every test_nt_<module>.c. */
#include "nt_selftest_list.h"

/* What `run` was given to fetch snapshots with, and what it has fetched. */
typedef struct selftest_samples {
    PyObject *fetch; /* borrowed: name -> bytes, or NULL */
    PyObject *kept;  /* owned: a list of bytes objects, alive until the case ends */
} selftest_samples;

static const uint8_t *
selftest_sample(void *ctx, const char *name, size_t *size)
{
    selftest_samples *samples = ctx;
    if (samples->fetch == NULL || PyErr_Occurred()) {
        return NULL;
    }
    PyObject *bytes = PyObject_CallFunction(samples->fetch, "s", name);
    if (bytes == NULL) {
        return NULL;
    }
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "a sample must be bytes");
        Py_DECREF(bytes);
        return NULL;
    }
    const int failed = PyList_Append(samples->kept, bytes);
    Py_DECREF(bytes);
    if (failed) {
        return NULL;
    }
    *size = (size_t)PyBytes_GET_SIZE(bytes);
    return (const uint8_t *)PyBytes_AS_STRING(bytes);
}

/* The case called "<module>:<case>", or NULL. */
static const nt_test_case *
selftest_find(const char *name)
{
    const char *colon = strchr(name, ':');
    const size_t length = colon != NULL ? (size_t)(colon - name) : 0;
    for (const selftest_suite *s = selftest_suites; s->module != NULL; s++) {
        if (strlen(s->module) != length || strncmp(s->module, name, length) != 0) {
            continue;
        }
        for (const nt_test_case *c = s->cases; c->name != NULL; c++) {
            if (strcmp(c->name, colon + 1) == 0) {
                return c;
            }
        }
    }
    return NULL;
}

PyDoc_STRVAR(selftest_cases_doc, "cases($module, /)\n--\n\n"
                                 "The names of all cases, each '<module>:<case>'.");

static PyObject *
selftest_cases(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *names = PyList_New(0);
    for (const selftest_suite *s = selftest_suites; names && s->module != NULL; s++) {
        for (const nt_test_case *c = s->cases; names && c->name != NULL; c++) {
            PyObject *name = PyUnicode_FromFormat("%s:%s", s->module, c->name);
            if (name == NULL || PyList_Append(names, name) < 0) {
                Py_CLEAR(names);
            }
            Py_XDECREF(name);
        }
    }
    return names;
}

/* The failures as an AssertionError; what the cases quote need not be UTF-8. */
static PyObject *
selftest_raise(const nt_test *t)
{
    PyObject *message =
        PyUnicode_DecodeUTF8(t->message, (Py_ssize_t)t->length, "backslashreplace");
    if (message != NULL) {
        PyErr_SetObject(PyExc_AssertionError, message);
        Py_DECREF(message);
    }
    return NULL;
}

PyDoc_STRVAR(selftest_run_doc,
             "run($module, name, sample=None, /)\n--\n\n"
             "Run one case; AssertionError with the failed checks, a line each.\n\n"
             "'sample' maps the name of a bundled snapshot to its bytes.");

static PyObject *
selftest_run(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *fetch = Py_None;
    (void)module;
    if (!PyArg_ParseTuple(args, "s|O:run", &name, &fetch)) {
        return NULL;
    }
    const nt_test_case *found = selftest_find(name);
    if (found == NULL) {
        return PyErr_Format(PyExc_ValueError, "no case is called %s", name);
    }
    selftest_samples samples = {.fetch = fetch != Py_None ? fetch : NULL};
    samples.kept = PyList_New(0);
    if (samples.kept == NULL) {
        return NULL;
    }
    nt_test t = {.sample = selftest_sample, .sample_ctx = &samples};
    found->run(&t);
    Py_DECREF(samples.kept);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return t.failures > 0 ? selftest_raise(&t) : Py_NewRef(Py_None);
}

static PyMethodDef selftest_methods[] = {
    {"cases", selftest_cases, METH_NOARGS, selftest_cases_doc},
    {"run", selftest_run, METH_VARARGS, selftest_run_doc},
    {NULL, NULL, 0, NULL},
};

static int
selftest_exec(PyObject *module)
{
    PyMethodDef *const tables[] = {selftest_heap_methods, selftest_live_methods,
                                   selftest_sampler_methods};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (PyModule_AddFunctions(module, tables[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot selftest_slots[] = {{Py_mod_exec, selftest_exec}, {0, NULL}};

static struct PyModuleDef selftest_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "neutracer._selftest",
    .m_doc = "The C core's own test cases.",
    .m_size = 0,
    .m_methods = selftest_methods,
    .m_slots = selftest_slots,
};

PyMODINIT_FUNC
PyInit__selftest(void);

PyMODINIT_FUNC
PyInit__selftest(void)
{
    return PyModuleDef_Init(&selftest_module);
}
