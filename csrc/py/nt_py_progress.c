/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <time.h>

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

/* The core tells how far it is: signals (Ctrl-C) are looked at, and the callback
 * is called. An exception stops the work and stays set. */
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
