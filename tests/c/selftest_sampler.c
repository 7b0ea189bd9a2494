/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "selftest_sampler.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "monitor/nt_sampler.h"

/* The device number -1 has the first place. */
#define MADE_UP_DEVICES 5

typedef struct made_up_device {
    atomic_ullong allocated, reserved, used, total, cap;
    atomic_int answer;      /* of stats */
    atomic_ullong delay_us; /* how long stats takes */
    atomic_ullong calls;
} made_up_device;

static made_up_device made_up[MADE_UP_DEVICES];

static int
made_up_stats(void *ctx, int32_t device, nt_reading *out)
{
    (void)ctx;
    made_up_device *d = &made_up[device + 1];
    const unsigned long long delay_us = atomic_load(&d->delay_us);
    const struct timespec delay = {
        .tv_sec = (time_t)(delay_us / 1000000),
        .tv_nsec = (long)(delay_us % 1000000 * 1000),
    };
    if (delay_us != 0) {
        (void)nanosleep(&delay, NULL);
    }
    (void)atomic_fetch_add(&d->calls, 1);
    out->figure[NT_FIGURE_ALLOCATED] = atomic_load(&d->allocated);
    out->figure[NT_FIGURE_ACTIVE] = atomic_load(&d->allocated);
    out->figure[NT_FIGURE_REQUESTED] = atomic_load(&d->allocated);
    out->figure[NT_FIGURE_RESERVED] = atomic_load(&d->reserved);
    out->peak_allocated = out->figure[NT_FIGURE_ALLOCATED];
    out->peak_reserved = out->figure[NT_FIGURE_RESERVED];
    return atomic_load(&d->answer);
}

static int
made_up_memory(void *ctx, int32_t device, nt_sampler_memory *out)
{
    (void)ctx;
    out->used = atomic_load(&made_up[device + 1].used);
    out->total = atomic_load(&made_up[device + 1].total);
    out->cap = atomic_load(&made_up[device + 1].cap);
    return out->total == 0 ? -1 : 0;
}

static nt_sampler_source made_up_source = {
    .stats = made_up_stats,
    .memory = made_up_memory,
};

PyDoc_STRVAR(source_doc, "sampler_source($module, /)\n--\n\n"
                         "A capsule for neutracer._core.Sampler.");

static PyObject *
selftest_sampler_source(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyCapsule_New(&made_up_source, "neutracer.sampler_source", NULL);
}

PyDoc_STRVAR(set_doc,
             "sampler_set($module, device, allocated, reserved, used, total, answer,\n"
             "            delay_us, /)\n--\n\nWhat the device says from now on.");

static PyObject *
selftest_sampler_set(PyObject *module, PyObject *args)
{
    int device, answer;
    unsigned long long allocated, reserved, used, total, delay_us;
    (void)module;
    if (!PyArg_ParseTuple(args, "iKKKKiK:sampler_set", &device, &allocated, &reserved,
                          &used, &total, &answer, &delay_us)) {
        return NULL;
    }
    if (device < -1 || device >= MADE_UP_DEVICES - 1) {
        return PyErr_Format(PyExc_ValueError, "no device %d is made up", device);
    }
    made_up_device *d = &made_up[device + 1];
    atomic_store(&d->allocated, allocated);
    atomic_store(&d->reserved, reserved);
    atomic_store(&d->used, used);
    atomic_store(&d->total, total);
    atomic_store(&d->answer, answer);
    atomic_store(&d->delay_us, delay_us);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cap_doc, "sampler_cap($module, device, cap, /)\n--\n\n"
                      "What the allocator may reserve from now on; 0: all.");

static PyObject *
selftest_sampler_cap(PyObject *module, PyObject *args)
{
    int device;
    unsigned long long cap;
    (void)module;
    if (!PyArg_ParseTuple(args, "iK:sampler_cap", &device, &cap)) {
        return NULL;
    }
    if (device < -1 || device >= MADE_UP_DEVICES - 1) {
        return PyErr_Format(PyExc_ValueError, "no device %d is made up", device);
    }
    atomic_store(&made_up[device + 1].cap, cap);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(calls_doc, "sampler_calls($module, device, /)\n--\n\n"
                        "How often the device was asked.");

static PyObject *
selftest_sampler_calls(PyObject *module, PyObject *args)
{
    int device;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:sampler_calls", &device)) {
        return NULL;
    }
    if (device < -1 || device >= MADE_UP_DEVICES - 1) {
        return PyErr_Format(PyExc_ValueError, "no device %d is made up", device);
    }
    return PyLong_FromUnsignedLongLong(atomic_load(&made_up[device + 1].calls));
}

PyMethodDef selftest_sampler_methods[] = {
    {"sampler_source", selftest_sampler_source, METH_NOARGS, source_doc},
    {"sampler_set", selftest_sampler_set, METH_VARARGS, set_doc},
    {"sampler_cap", selftest_sampler_cap, METH_VARARGS, cap_doc},
    {"sampler_calls", selftest_sampler_calls, METH_VARARGS, calls_doc},
    {NULL, NULL, 0, NULL},
};
