/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

/* The core tells how far it is: signals (Ctrl-C) are looked at, and the callback
 * is called. An exception stops the work and stays set. */
static int
progress_report(void *ctx, uint64_t done)
{
    nt_py_progress *p = ctx;
    PyEval_RestoreThread(p->thread);
    int stop = PyErr_CheckSignals() < 0;
    if (!stop && p->callback != NULL && p->callback != Py_None) {
        PyObject *result =
            PyObject_CallFunction(p->callback, "K", (unsigned long long)done);
        stop = result == NULL;
        Py_XDECREF(result);
    }
    p->thread = PyEval_SaveThread();
    return stop;
}

void
nt_py_begin(nt_py_progress *p, PyObject *callback)
{
    p->callback = callback;
    p->progress = (nt_progress){.report = progress_report, .ctx = p};
    p->thread = PyEval_SaveThread();
}

void
nt_py_end(nt_py_progress *p)
{
    PyEval_RestoreThread(p->thread);
}
