/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that would end the process by default, noticed by a thread of ours. They rest
 * on memory alone: descriptors can be closed and reused by the program. Python does not
 * know of our handler: signal.getsignal() still says SIG_DFL, and a handler that the
 * program sets takes our place. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* syscall, struct sigevent */
#endif
#include "nt_py.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_WAITERS 16 /* threads that wait; `run` and a watch of ranks are two */
#define MOST_SIGNALS 32 /* the classic ones, a bit each */
#define WOKEN 1u        /* bit 0, which is no signal: woken by `signals_wake` */

/* A thread that waits. Never destroyed: a handler may be running. */
typedef struct signals_waiter {
    _Atomic uint32_t came; /* a bit for each signal: the word of a futex */
    _Atomic pid_t process; /* whose waiter it is; 0: free */
} signals_waiter;

/* A signal that is ours. Written while our handler is not set. */
typedef struct signals_taken {
    signals_waiter *waiter;
    pid_t process;
    int timer; /* the kernel's number of it; -1: the signal ends nothing */
    struct itimerspec after;
} signals_taken;

static signals_waiter waiters[MOST_WAITERS];
static signals_taken taken[MOST_SIGNALS];

static void
signals_post(signals_waiter *waiter, uint32_t bit)
{
    atomic_fetch_or(&waiter->came, bit);
    (void)syscall(SYS_futex, &waiter->came, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void
signals_set(int signum, void (*handler)(int), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(signum, &action, NULL);
}

static void
signals_handle(int signum)
{
    const int before = errno;
    const signals_taken *one = &taken[signum];
    if (getpid() != one->process) {
        /* The child of a fork meets it as it would without this. */
        signals_set(signum, SIG_DFL, 0);
        (void)kill(getpid(), signum);
    } else {
        if (one->timer >= 0) {
            (void)syscall(SYS_timer_settime, one->timer, 0, &one->after, NULL);
        }
        signals_post(one->waiter, 1u << signum);
    }
    errno = before;
}

/* The kernel's own call: the library's is in another library up to glibc 2.33. */
static int
signals_timer(int signum)
{
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = signum;
    int timer = -1;
    return syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0 ? timer : -1;
}

/* Whether nothing handles the signal in this process; a parent's handler counts for
 * nothing. */
static bool
signals_is_free(int signum)
{
    struct sigaction now;
    return sigaction(signum, NULL, &now) == 0 &&
           (now.sa_handler == SIG_DFL ||
            (now.sa_handler == signals_handle && taken[signum].process != getpid()));
}

static void
signals_give_back(int signum)
{
    struct sigaction now;
    if (sigaction(signum, NULL, &now) == 0 && now.sa_handler == signals_handle) {
        signals_set(signum, SIG_DFL, 0);
    }
    if (taken[signum].timer >= 0) {
        (void)syscall(SYS_timer_delete, taken[signum].timer);
    }
    taken[signum].waiter = NULL;
}

static signals_waiter *
signals_waiter_of(long number)
{
    if (number >= 0 && number < MOST_WAITERS &&
        atomic_load(&waiters[number].process) == getpid()) {
        return &waiters[number];
    }
    PyErr_SetString(PyExc_ValueError, "no such waiter in this process");
    return NULL;
}

/* The waiter of a number that Python gives; NULL with an exception. */
static signals_waiter *
signals_waiter_of_argument(PyObject *argument)
{
    const long number = PyLong_AsLong(argument);
    return PyErr_Occurred() ? NULL : signals_waiter_of(number);
}

PyDoc_STRVAR(open_doc, "signals_open()\n--\n\n"
                       "The number of a new waiter, to which signals can be given.");

static PyObject *
signals_open(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const pid_t process = getpid();
    for (int i = 0; i < MOST_WAITERS; i++) {
        pid_t owner = atomic_load(&waiters[i].process);
        if (owner != process &&
            atomic_compare_exchange_strong(&waiters[i].process, &owner, process)) {
            atomic_store(&waiters[i].came, 0);
            return PyLong_FromLong(i);
        }
    }
    return PyErr_Format(PyExc_RuntimeError, "%d threads wait for signals already",
                        MOST_WAITERS);
}

PyDoc_STRVAR(
    take_doc,
    "signals_take(waiter, signum, seconds, /)\n--\n\n"
    "Give a signal to a waiter. With seconds above 0 it is noticed once, and ends the\n"
    "process that much later, whatever the waiter does. False if something else "
    "handles\n"
    "it.");

static PyObject *
signals_take(PyObject *Py_UNUSED(module), PyObject *args)
{
    int number, signum;
    double seconds;
    if (!PyArg_ParseTuple(args, "iid", &number, &signum, &seconds)) {
        return NULL;
    }
    signals_waiter *waiter = signals_waiter_of(number);
    if (waiter == NULL) {
        return NULL;
    }
    if (signum < 1 || signum >= MOST_SIGNALS || !(seconds >= 0 && seconds < 1e6)) {
        return PyErr_Format(PyExc_ValueError,
                            "signum must be 1 to %d, seconds below 1e6",
                            MOST_SIGNALS - 1);
    }
    const bool ends = seconds > 0;
    const int timer = ends ? signals_timer(signum) : -1;
    if (!signals_is_free(signum) || (ends && timer < 0)) {
        if (timer >= 0) {
            (void)syscall(SYS_timer_delete, timer);
        }
        Py_RETURN_FALSE;
    }
    const double whole = floor(seconds);
    signals_taken *one = &taken[signum];
    one->waiter = waiter;
    one->process = getpid();
    one->timer = timer;
    one->after.it_value.tv_sec = (time_t)whole;
    one->after.it_value.tv_nsec = (long)((seconds - whole) * 1e9);
    /* The kernel removes a handler that runs once, as it calls it. */
    signals_set(signum, signals_handle,
                SA_RESTART | SA_ONSTACK | (ends ? (int)SA_RESETHAND : 0));
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(wait_doc,
             "signals_wait(waiter, seconds, /)\n--\n\n"
             "Wait for that long, or for ever below 0. A bit for each signal\n"
             "that came, bit 0 once the waiter is to end, or 0.");

static PyObject *
signals_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    int number;
    double seconds;
    if (!PyArg_ParseTuple(args, "id", &number, &seconds)) {
        return NULL;
    }
    signals_waiter *waiter = signals_waiter_of(number);
    if (waiter == NULL) {
        return NULL;
    }
    const double bounded = seconds < 1e9 ? seconds : 1e9, whole = floor(bounded);
    const struct timespec most = {.tv_sec = (time_t)whole,
                                  .tv_nsec = (long)((bounded - whole) * 1e9)};
    uint32_t came = atomic_exchange(&waiter->came, 0);
    if (came == 0) {
        Py_BEGIN_ALLOW_THREADS;
        (void)syscall(SYS_futex, &waiter->came, FUTEX_WAIT_PRIVATE, 0,
                      seconds < 0 ? NULL : &most, NULL, 0);
        Py_END_ALLOW_THREADS;
        came = atomic_exchange(&waiter->came, 0);
    }
    return PyLong_FromUnsignedLong(came);
}

PyDoc_STRVAR(wake_doc, "signals_wake(waiter, /)\n--\n\n"
                       "Give back its signals, and tell it to end.");

static PyObject *
signals_wake(PyObject *Py_UNUSED(module), PyObject *argument)
{
    signals_waiter *waiter = signals_waiter_of_argument(argument);
    if (waiter == NULL) {
        return NULL;
    }
    for (int signum = 1; signum < MOST_SIGNALS; signum++) {
        if (taken[signum].waiter == waiter) {
            signals_give_back(signum);
        }
    }
    signals_post(waiter, WOKEN);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "signals_close(waiter, /)\n--\n\n"
                        "Free its number; after `signals_wake` and its last wait.");

static PyObject *
signals_close(PyObject *Py_UNUSED(module), PyObject *argument)
{
    signals_waiter *waiter = signals_waiter_of_argument(argument);
    if (waiter == NULL) {
        return NULL;
    }
    atomic_store(&waiter->process, 0);
    Py_RETURN_NONE;
}

PyMethodDef nt_py_signals_methods[] = {
    {"signals_open", signals_open, METH_NOARGS, open_doc},
    {"signals_take", signals_take, METH_VARARGS, take_doc},
    {"signals_wait", signals_wait, METH_VARARGS, wait_doc},
    {"signals_wake", signals_wake, METH_O, wake_doc},
    {"signals_close", signals_close, METH_O, close_doc},
    {NULL, NULL, 0, NULL},
};
