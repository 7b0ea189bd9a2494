/* SPDX-License-Identifier: Apache-2.0 */
/* A signal that ends the process by default, put off for a last report. Python is not
 * told: signal.getsignal() still says SIG_DFL, and a handler that the program sets
 * takes our place. The kernel takes our handler off as it calls it, and a timer sends
 * the signal again, so that the process ends whatever becomes of the report. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* syscall, struct sigevent */
#endif
#include "nt_py.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Of the whole process, as signals are. Written by the main thread, with the GIL, while
 * our handler is not set. */
static struct {
    int signum; /* 0: none was put off */
    int fd;
    pid_t process;
    int timer; /* the kernel's number of it; -1: none */
    struct itimerspec after;
} put_off = {.timer = -1};

static void
last_signal_handle(int signum)
{
    const int before = errno;
    if (getpid() != put_off.process) {
        /* The child of a fork meets it as it would without this. */
        (void)kill(getpid(), signum);
    } else {
        /* Python itself may write the numbers of signals there. */
        const unsigned char word = (unsigned char)(signum | 128);
        if (put_off.timer >= 0) {
            (void)syscall(SYS_timer_settime, put_off.timer, 0, &put_off.after, NULL);
        }
        if (put_off.timer < 0 || write(put_off.fd, &word, 1) != 1) {
            (void)kill(getpid(), signum);
        }
    }
    errno = before;
}

/* The kernel's own call: the library's is in another library up to glibc 2.33. */
static int
last_signal_timer(int signum)
{
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = signum;
    int timer = -1;
    return syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0 ? timer : -1;
}

PyDoc_STRVAR(
    put_off_doc,
    "put_off_signal(signum, fd, seconds, /)\n--\n\n"
    "Write the signal's number + 128 to fd when it comes, and let it end the process\n"
    "after so many seconds. False if something else handles it.");

static PyObject *
last_signal_put_off(PyObject *Py_UNUSED(module), PyObject *args)
{
    int signum, fd;
    double seconds;
    if (!PyArg_ParseTuple(args, "iid", &signum, &fd, &seconds)) {
        return NULL;
    }
    struct sigaction now;
    if (put_off.signum != 0 || !(seconds > 0 && seconds < 1e6) ||
        sigaction(signum, NULL, &now) != 0 || now.sa_handler != SIG_DFL) {
        Py_RETURN_FALSE;
    }
    const double whole = floor(seconds);
    put_off.timer = last_signal_timer(signum);
    if (put_off.timer < 0) {
        Py_RETURN_FALSE;
    }
    put_off.after.it_value.tv_sec = (time_t)whole;
    put_off.after.it_value.tv_nsec = (long)((seconds - whole) * 1e9);
    put_off.fd = fd;
    put_off.process = getpid();
    put_off.signum = signum;
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = last_signal_handle;
    ours.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    (void)sigemptyset(&ours.sa_mask);
    if (sigaction(signum, &ours, NULL) != 0) {
        (void)syscall(SYS_timer_delete, put_off.timer);
        put_off.signum = 0;
        Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(put_back_doc, "put_back_signal()\n--\n\n"
                           "Let the signal that was put off end the process again.");

static PyObject *
last_signal_put_back(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    struct sigaction now;
    if (put_off.signum != 0 && sigaction(put_off.signum, NULL, &now) == 0) {
        if (now.sa_handler == last_signal_handle) {
            now.sa_handler = SIG_DFL;
            (void)sigaction(put_off.signum, &now, NULL);
        }
        if (put_off.process == getpid()) {
            (void)syscall(SYS_timer_delete, put_off.timer);
        }
        put_off.signum = 0;
        put_off.timer = -1;
    }
    Py_RETURN_NONE;
}

PyMethodDef nt_py_last_signal_methods[] = {
    {"put_off_signal", last_signal_put_off, METH_VARARGS, put_off_doc},
    {"put_back_signal", last_signal_put_back, METH_NOARGS, put_back_doc},
    {NULL, NULL, 0, NULL},
};
