/* SPDX-License-Identifier: Apache-2.0 */
/* The monitor's sampler as a type, and where its readings come from: functions that its
 * native thread calls, without the GIL. */
#include "nt_py.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "monitor/nt_device.h"
#include "monitor/nt_sampler.h"
#include "trace/nt_live_api.h"

/* The devices that are followed, and NVML's number of each. */
typedef struct monitor_places {
    const nt_device *device;    /* NULL: there is no NVML, and every slot is -1 */
    const nt_live_source *live; /* the shim, or NULL */
    size_t count;
    int32_t devices[NT_SAMPLER_DEVICES];
    int32_t slots[NT_SAMPLER_DEVICES];
} monitor_places;

/* ---- readings -------------------------------------------------------------------- */

/* The allocator's figures through the shim: nt_sampler_source.stats. `ctx` is the
 * shim's const nt_live_source. */
static int
monitor_read_live(void *ctx, int32_t device, nt_reading *out)
{
    const nt_live_source *live = ctx;
    nt_live_brief brief;
    const int answer = live->device_brief(live->ctx, device, &brief);
    if (answer != 0) {
        return answer == 1 ? NT_SOURCE_NOT_YET : answer;
    }
    /* The peak can be set back, by a program that takes all of its memory back too. The
     * CPU (-1) is in use without a tensor on it. */
    if (device >= 0 && brief.reserved_bytes == 0 && brief.peak_reserved_bytes == 0 &&
        brief.ever_reserved_bytes == 0) {
        return NT_SOURCE_NOT_YET;
    }
    out->figure[NT_FIGURE_ALLOCATED] = (uint64_t)brief.allocated_bytes;
    out->figure[NT_FIGURE_RESERVED] = (uint64_t)brief.reserved_bytes;
    out->figure[NT_FIGURE_ACTIVE] = (uint64_t)brief.active_bytes;
    out->figure[NT_FIGURE_INACTIVE_SPLIT] = (uint64_t)brief.inactive_split_bytes;
    out->figure[NT_FIGURE_REQUESTED] = (uint64_t)brief.requested_bytes;
    out->figure[NT_FIGURE_RETRIES] = (uint64_t)brief.num_alloc_retries;
    out->figure[NT_FIGURE_OOMS] = (uint64_t)brief.num_ooms;
    out->peak_allocated = (uint64_t)brief.peak_allocated_bytes;
    out->peak_reserved = (uint64_t)brief.peak_reserved_bytes;
    return NT_SOURCE_OK;
}

/* What the kernel says of this machine's memory. */
static int
monitor_read_system(nt_sampler_memory *out)
{
    unsigned long long all = 0, available = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return -1;
    }
    while ((all == 0 || available == 0) && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "MemTotal: %llu kB", &all);
        (void)sscanf(line, "MemAvailable: %llu kB", &available);
    }
    (void)fclose(file);
    if (all == 0 || available == 0 || available > all) {
        return -1;
    }
    out->used = (uint64_t)(all - available) << 10;
    out->total = (uint64_t)all << 10;
    return NT_SOURCE_OK;
}

/* Bytes that PyTorch's allocator may reserve of `total`; 0 where nobody said. */
static uint64_t
monitor_read_cap(const nt_live_source *live, int32_t device, uint64_t total)
{
    const double share = live == NULL || live->device_fraction == NULL
                             ? 1.0
                             : live->device_fraction(live->ctx, device);
    return share > 0.0 && share < 1.0 ? (uint64_t)(share * (double)total) : 0;
}

/* Through NVML, or for the CPU from the kernel, and the cap through the shim:
 * nt_sampler_source.memory. `ctx` is a
 * const monitor_places. */
static int
monitor_read_memory(void *ctx, int32_t device, nt_sampler_memory *out)
{
    const monitor_places *places = ctx;
    nt_device_memory memory;
    if (device == NT_SAMPLER_CPU) {
        return monitor_read_system(out);
    }
    for (size_t i = 0; i < places->count; i++) {
        if (places->devices[i] == device && places->slots[i] >= 0) {
            if (nt_device_read_memory(places->device, (size_t)places->slots[i], &memory,
                                      NULL) != NT_OK) {
                return -1;
            }
            out->used = memory.used;
            out->total = memory.total;
            out->cap = monitor_read_cap(places->live, device, memory.total);
            return NT_SOURCE_OK;
        }
    }
    return -1;
}

/* A capsule with an nt_sampler_source that lives as long as the capsule. */
#define MONITOR_SOURCE_CAPSULE "neutracer.sampler_source"

typedef struct py_sampler {
    PyObject_HEAD nt_sampler *sampler;
    PyObject *nvml;   /* owned: the object that `device` belongs to, or NULL */
    PyObject *source; /* owned: the capsule that the source came from, or NULL */
    monitor_places places;
    bool asks; /* the sampler's thread has a source of readings */
} py_sampler;

/* ---- making one ------------------------------------------------------------------ */

PyDoc_STRVAR(sampler_doc,
             "Sampler(devices, slots, nvml, source, options)\n--\n\n"
             "A native thread that reads these devices (-1: the CPU). `slots`: NVML's\n"
             "number of each, or -1, with `nvml` their Devices or None. `source`: a\n"
             "capsule; None is the shim, if there is one; False none. `options`:\n"
             "(interval_us, memory_interval_us, rows, phase_rows, cooldown_us,\n"
             "growth_window_us, least_unused, ((limit, clear, patience_us), ...)).");

/* 0, or -1 with an exception. */
static int
monitor_options(PyObject *plain, nt_sampler_options *out)
{
    unsigned long long interval, memory_interval, cooldown, window, least;
    unsigned long long patience[NT_ALERT_RULES];
    nt_alert_rule *r = out->rule;
    Py_ssize_t rows, phase_rows;
    if (!PyArg_ParseTuple(plain, "KKnnKKK((ddK)(ddK)(ddK))", &interval,
                          &memory_interval, &rows, &phase_rows, &cooldown, &window,
                          &least, &r[0].limit, &r[0].clear, &patience[0], &r[1].limit,
                          &r[1].clear, &patience[1], &r[2].limit, &r[2].clear,
                          &patience[2])) {
        return -1;
    }
    if (rows < 0 || phase_rows < 0) {
        PyErr_SetString(PyExc_ValueError, "a history has no negative number of rows");
        return -1;
    }
    for (size_t i = 0; i < NT_ALERT_RULES; i++) {
        r[i].patience_us = patience[i];
    }
    out->interval_us = interval;
    out->memory_interval_us = memory_interval;
    out->rows = (size_t)rows;
    out->phase_rows = (size_t)phase_rows;
    out->cooldown_us = cooldown;
    out->growth_window_us = window;
    out->least_unused = least;
    return 0;
}

/* The numbers of a tuple into an array of NT_SAMPLER_DEVICES; their count or -1. */
static Py_ssize_t
monitor_numbers(PyObject *tuple, int32_t *out)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count > NT_SAMPLER_DEVICES) {
        PyErr_Format(PyExc_ValueError, "a monitor follows at most %d devices",
                     NT_SAMPLER_DEVICES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const long number = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (number == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (number < -1 || number > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "there is no device %ld", number);
            return -1;
        }
        out[i] = (int32_t)number;
    }
    return count;
}

/* Where the readings come from; 0, or -1 with an exception. */
static int
monitor_source(py_sampler *self, nt_sampler_source *out)
{
    const nt_live_source *live = nt_py_live_source();
    *out = (nt_sampler_source){.stats = NULL};
    if (self->source == Py_False) {
        return 0;
    }
    if (self->source != NULL) {
        const nt_sampler_source *given =
            PyCapsule_GetPointer(self->source, MONITOR_SOURCE_CAPSULE);
        if (given == NULL) {
            return -1;
        }
        *out = *given;
        return 0;
    }
    self->places.live = live;
    if (live != NULL && live->device_brief != NULL) {
        out->stats = monitor_read_live;
        out->stats_ctx = (void *)live;
    }
    out->memory = monitor_read_memory;
    out->memory_ctx = &self->places;
    return 0;
}

/* Fills a new object from its arguments; 0, or -1 with an exception. */
static int
monitor_fill(py_sampler *self, PyObject *devices, PyObject *slots, PyObject *nvml,
             PyObject *source, PyObject *plain)
{
    nt_sampler_options options;
    nt_sampler_source from;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_alloc_system();
    if (nvml != Py_None) {
        self->places.device = nt_py_device_of(nvml);
        if (self->places.device == NULL) {
            return -1;
        }
        self->nvml = Py_NewRef(nvml);
    }
    self->source = source == Py_None ? NULL : Py_NewRef(source);
    const Py_ssize_t count = monitor_numbers(devices, self->places.devices);
    if (count < 0 || monitor_options(plain, &options) < 0) {
        return -1;
    }
    if (PyTuple_GET_SIZE(slots) != count ||
        monitor_numbers(slots, self->places.slots) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "each device has a slot, or -1");
        }
        return -1;
    }
    for (Py_ssize_t i = 0; self->places.device == NULL && i < count; i++) {
        self->places.slots[i] = -1;
    }
    self->places.count = (size_t)count;
    if (monitor_source(self, &from) < 0) {
        return -1;
    }
    self->asks = from.stats != NULL;
    const nt_status status =
        nt_sampler_new(&alloc, &options, &from, self->places.devices,
                       self->places.count, &self->sampler, &err);
    if (status != NT_OK) {
        (void)nt_py_raise(status, &err);
        return -1;
    }
    return 0;
}

static PyObject *
sampler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"devices", "slots", "nvml", "source", "options", NULL};
    PyObject *devices, *slots, *nvml, *source, *options;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOO!:Sampler", names,
                                     &PyTuple_Type, &devices, &PyTuple_Type, &slots,
                                     &nvml, &source, &PyTuple_Type, &options)) {
        return NULL;
    }
    py_sampler *self = PyObject_New(py_sampler, type);
    if (self == NULL) {
        return NULL;
    }
    self->sampler = NULL;
    self->nvml = self->source = NULL;
    self->places.device = NULL;
    self->places.live = NULL;
    self->asks = false;
    self->places.count = 0;
    if (monitor_fill(self, devices, slots, nvml, source, options) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
sampler_dealloc(PyObject *object)
{
    py_sampler *self = (py_sampler *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_BEGIN_ALLOW_THREADS nt_sampler_free(self->sampler);
    Py_END_ALLOW_THREADS Py_CLEAR(self->source);
    Py_CLEAR(self->nvml);
    PyObject_Free(self);
    Py_DECREF(type);
}

static nt_sampler *
sampler_of(PyObject *self)
{
    return ((py_sampler *)self)->sampler;
}

/* ---- running --------------------------------------------------------------------- */

PyDoc_STRVAR(start_doc, "start()\n--\n\n"
                        "Starts the thread; does nothing where it runs already.");

static PyObject *
sampler_start(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_sampler_start(sampler_of(self), &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stop_doc, "stop()\n--\n\nEnds the thread, and every wait.");

static PyObject *
sampler_stop(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Py_BEGIN_ALLOW_THREADS nt_sampler_stop(sampler_of(self));
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyDoc_STRVAR(forget_doc, "forget()\n--\n\n"
                         "For the child of a fork, where the thread is gone.");

static PyObject *
sampler_forget(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_sampler_forget(sampler_of(self));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(ask_doc, "ask()\n--\n\nAsks the source about every device, now.");

static PyObject *
sampler_ask(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Py_BEGIN_ALLOW_THREADS nt_sampler_ask(sampler_of(self));
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyDoc_STRVAR(mark_doc, "mark()\n--\n\nA phase begins; its number, from 0 on.");

static PyObject *
sampler_mark(PyObject *self, PyObject *Py_UNUSED(unused))
{
    uint64_t mark;
    Py_BEGIN_ALLOW_THREADS mark = nt_sampler_mark(sampler_of(self));
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(mark);
}

/* 0, or -1 with an exception for a device that is not followed. */
static int
sampler_index(PyObject *self, Py_ssize_t index)
{
    if (index < 0 || (size_t)index >= ((py_sampler *)self)->places.count) {
        PyErr_SetString(PyExc_IndexError, "no such device is followed");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(put_doc,
             "put(index, allocated, reserved, active, inactive_split, requested,\n"
             "    retries, ooms, peak_allocated, peak_reserved, /)\n--\n\n"
             "A reading from elsewhere, of the device at `index`.");

static PyObject *
sampler_put(PyObject *self, PyObject *args)
{
    Py_ssize_t index;
    unsigned long long v[9];
    if (!PyArg_ParseTuple(args, "nKKKKKKKKK:put", &index, &v[0], &v[1], &v[2], &v[3],
                          &v[4], &v[5], &v[6], &v[7], &v[8]) ||
        sampler_index(self, index) < 0) {
        return NULL;
    }
    const nt_reading reading = {
        .figure = {[NT_FIGURE_ALLOCATED] = v[0],
                   [NT_FIGURE_RESERVED] = v[1],
                   [NT_FIGURE_ACTIVE] = v[2],
                   [NT_FIGURE_INACTIVE_SPLIT] = v[3],
                   [NT_FIGURE_REQUESTED] = v[4],
                   [NT_FIGURE_RETRIES] = v[5],
                   [NT_FIGURE_OOMS] = v[6]},
        .peak_allocated = v[7],
        .peak_reserved = v[8],
    };
    nt_sampler_put(sampler_of(self), (size_t)index, &reading);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(put_memory_doc,
             "put_memory(index, used, total, cap, /)\n--\n\n"
             "The device's own bytes, and what of them may be reserved (0: all).");

static PyObject *
sampler_put_memory(PyObject *self, PyObject *args)
{
    Py_ssize_t index;
    unsigned long long used, total, cap;
    if (!PyArg_ParseTuple(args, "nKKK:put_memory", &index, &used, &total, &cap) ||
        sampler_index(self, index) < 0) {
        return NULL;
    }
    const nt_sampler_memory memory = {.used = used, .total = total, .cap = cap};
    nt_sampler_put_memory(sampler_of(self), (size_t)index, &memory);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(put_failure_doc,
             "put_failure(index, answer, /)\n--\n\nThe device could not be read.");

static PyObject *
sampler_put_failure(PyObject *self, PyObject *args)
{
    Py_ssize_t index;
    int answer;
    if (!PyArg_ParseTuple(args, "ni:put_failure", &index, &answer) ||
        sampler_index(self, index) < 0) {
        return NULL;
    }
    nt_sampler_put_failure(sampler_of(self), (size_t)index, answer);
    Py_RETURN_NONE;
}

/* ---- what was seen --------------------------------------------------------------- */

static PyObject *
sampler_alert(const nt_alert *alert)
{
    const uint64_t *figure = alert->reading.figure;
    return Py_BuildValue(
        "{sisisOsKsdsdsKsKsKsKsK}", "kind", (int)alert->kind, "device",
        (int)alert->device, "is_over", alert->is_over ? Py_True : Py_False, "time_us",
        (unsigned long long)alert->time_us, "value", alert->value, "limit",
        alert->limit, "allocated_bytes",
        (unsigned long long)figure[NT_FIGURE_ALLOCATED], "reserved_bytes",
        (unsigned long long)figure[NT_FIGURE_RESERVED], "device_used_bytes",
        (unsigned long long)alert->device_used, "total_bytes",
        (unsigned long long)alert->device_total, "cap_bytes",
        (unsigned long long)alert->device_cap);
}

PyDoc_STRVAR(wait_doc,
             "wait(timeout_s=None, /)\n--\n\n"
             "The next alert as a dict; None after that time or after a stop.");

static PyObject *
sampler_wait(PyObject *self, PyObject *args)
{
    PyObject *timeout = Py_None;
    uint64_t timeout_us = UINT64_MAX;
    nt_alert alert;
    bool has_one;
    if (!PyArg_ParseTuple(args, "|O:wait", &timeout)) {
        return NULL;
    }
    if (timeout != Py_None) {
        const double seconds = PyFloat_AsDouble(timeout);
        if (seconds == -1.0 && PyErr_Occurred()) {
            return NULL;
        }
        timeout_us = seconds > 0 && seconds < 1e9 ? (uint64_t)(seconds * 1e6) : 0;
    }
    Py_BEGIN_ALLOW_THREADS has_one =
        nt_sampler_wait(sampler_of(self), timeout_us, &alert);
    Py_END_ALLOW_THREADS if (!has_one)
    {
        Py_RETURN_NONE;
    }
    return sampler_alert(&alert);
}

/* Flags, or counts, of the kinds of alerts. */
static PyObject *
sampler_kinds(const nt_sampler_state *s, bool counts)
{
    PyObject *tuple = PyTuple_New(NT_ALERT_KINDS);
    for (Py_ssize_t i = 0; tuple != NULL && i < NT_ALERT_KINDS; i++) {
        PyObject *item = counts ? PyLong_FromUnsignedLongLong(s->raised[i])
                                : PyBool_FromLong(s->is_active[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, item);
        }
    }
    return tuple;
}

PyDoc_STRVAR(now_doc, "now(index, /)\n--\n\nWhat is known of a device, as a dict.");

static PyObject *
sampler_now(PyObject *self, PyObject *args)
{
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "n:now", &index) || sampler_index(self, index) < 0) {
        return NULL;
    }
    const nt_sampler_state s = nt_sampler_now(sampler_of(self), (size_t)index);
    const uint64_t *f = s.reading.figure;
#define U(value) ((unsigned long long)(value))
    return Py_BuildValue(
        "{sisKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsdsdsdsdsKsKsisNsN}", "device",
        (int)s.device, "time_us", U(s.time_us), "allocated", U(f[NT_FIGURE_ALLOCATED]),
        "reserved", U(f[NT_FIGURE_RESERVED]), "active", U(f[NT_FIGURE_ACTIVE]),
        "inactive_split", U(f[NT_FIGURE_INACTIVE_SPLIT]), "requested",
        U(f[NT_FIGURE_REQUESTED]), "retries", U(f[NT_FIGURE_RETRIES]), "ooms",
        U(f[NT_FIGURE_OOMS]), "device_used", U(s.device_used), "device_total",
        U(s.device_total), "device_cap", U(s.device_cap), "non_torch", U(s.non_torch),
        "peak_allocated", U(s.peak[NT_FIGURE_ALLOCATED]), "peak_reserved",
        U(s.peak[NT_FIGURE_RESERVED]), "peak_device_used",
        U(s.peak[NT_FIGURE_DEVICE_USED]), "peak_us", U(s.peak_us), "used_share",
        s.used_share, "ratio_high", s.ratio_high, "ratio_sum", s.ratio_sum, "growth",
        s.growth, "readings", U(s.readings), "failures", U(s.failures), "last_failure",
        s.last_failure, "is_active", sampler_kinds(&s, false), "raised",
        sampler_kinds(&s, true));
#undef U
}

PyDoc_STRVAR(spent_doc, "spent()\n--\n\nWhat the sampling costs, as a dict.");

static PyObject *
sampler_spent(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_sampler_cost c = nt_sampler_spent(sampler_of(self));
    return Py_BuildValue("{sKsKsKsK}", "ticks", (unsigned long long)c.ticks, "late",
                         (unsigned long long)c.late, "cpu_ns",
                         (unsigned long long)c.cpu_ns, "dropped_alerts",
                         (unsigned long long)c.dropped);
}

/* Columns of rows, each with where its 8 bytes stand in a row. */
static const struct {
    const char *name;
    size_t offset;
} sampler_columns[] = {
#define BOUNDED(name, i)                                                               \
    {name, offsetof(nt_sample_row, last) + (i) * sizeof(uint64_t)},                    \
        {name "_low", offsetof(nt_sample_row, low) + (i) * sizeof(uint64_t)},          \
    {                                                                                  \
        name "_high", offsetof(nt_sample_row, high) + (i) * sizeof(uint64_t)           \
    }
#define LAST(name, i) {name, offsetof(nt_sample_row, last) + (i) * sizeof(uint64_t)}
    {"begin_us", offsetof(nt_sample_row, begin_us)},
    {"end_us", offsetof(nt_sample_row, end_us)},
    {"mark", offsetof(nt_sample_row, mark)},
    {"marks", offsetof(nt_sample_row, marks)},
    {"readings", offsetof(nt_sample_row, readings)},
    BOUNDED("allocated", NT_FIGURE_ALLOCATED),
    BOUNDED("reserved", NT_FIGURE_RESERVED),
    BOUNDED("device_used", NT_FIGURE_DEVICE_USED),
    LAST("active", NT_FIGURE_ACTIVE),
    LAST("inactive_split", NT_FIGURE_INACTIVE_SPLIT),
    LAST("requested", NT_FIGURE_REQUESTED),
    LAST("retries", NT_FIGURE_RETRIES),
    LAST("ooms", NT_FIGURE_OOMS),
    {"ratio_sum", offsetof(nt_sample_row, ratio_sum)},
    {"ratio_high", offsetof(nt_sample_row, ratio_high)},
#undef BOUNDED
#undef LAST
};

static PyObject *
sampler_column(const nt_sample_row *rows, size_t count, size_t offset)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    char *to = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    for (size_t i = 0; to != NULL && i < count; i++) {
        memcpy(to + i * 8, (const char *)&rows[i] + offset, 8);
    }
    return bytes;
}

PyDoc_STRVAR(
    rows_doc,
    "rows(index, phases, /)\n--\n\n"
    "The history of a device, or its phases: a dict of columns, each of native\n"
    "items of 8 bytes: doubles in ratio_sum and ratio_high, else unsigned.");

static PyObject *
sampler_rows(PyObject *self, PyObject *args)
{
    Py_ssize_t index;
    int phases;
    if (!PyArg_ParseTuple(args, "np:rows", &index, &phases) ||
        sampler_index(self, index) < 0) {
        return NULL;
    }
    nt_sampler *sampler = sampler_of(self);
    /* Rows that come in between are left for the next time. */
    const size_t room = nt_sampler_rows(sampler, (size_t)index, phases, NULL, 0);
    nt_sample_row *rows = PyMem_Calloc(room + 1, sizeof *rows);
    if (rows == NULL) {
        return PyErr_NoMemory();
    }
    size_t count;
    Py_BEGIN_ALLOW_THREADS count =
        nt_sampler_rows(sampler, (size_t)index, phases, rows, room);
    Py_END_ALLOW_THREADS count = count < room ? count : room;
    PyObject *dict = PyDict_New();
    const size_t columns = sizeof sampler_columns / sizeof *sampler_columns;
    for (size_t i = 0; dict != NULL && i < columns; i++) {
        PyObject *column = sampler_column(rows, count, sampler_columns[i].offset);
        if (column == NULL ||
            PyDict_SetItemString(dict, sampler_columns[i].name, column) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(column);
    }
    PyMem_Free(rows);
    return dict;
}

static PyObject *
sampler_get_asks(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(((py_sampler *)self)->asks);
}

static PyGetSetDef sampler_getset[] = {
    {"asks", sampler_get_asks, NULL, "Whether the thread has a source to ask.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef sampler_methods[] = {
    {"start", sampler_start, METH_NOARGS, start_doc},
    {"stop", sampler_stop, METH_NOARGS, stop_doc},
    {"forget", sampler_forget, METH_NOARGS, forget_doc},
    {"ask", sampler_ask, METH_NOARGS, ask_doc},
    {"mark", sampler_mark, METH_NOARGS, mark_doc},
    {"put", sampler_put, METH_VARARGS, put_doc},
    {"put_memory", sampler_put_memory, METH_VARARGS, put_memory_doc},
    {"put_failure", sampler_put_failure, METH_VARARGS, put_failure_doc},
    {"wait", sampler_wait, METH_VARARGS, wait_doc},
    {"now", sampler_now, METH_VARARGS, now_doc},
    {"spent", sampler_spent, METH_NOARGS, spent_doc},
    {"rows", sampler_rows, METH_VARARGS, rows_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sampler_slots[] = {
    {Py_tp_new, sampler_new},         {Py_tp_dealloc, sampler_dealloc},
    {Py_tp_methods, sampler_methods}, {Py_tp_getset, sampler_getset},
    {Py_tp_doc, (void *)sampler_doc}, {0, NULL},
};

PyType_Spec nt_py_sampler_spec = {
    .name = "neutracer._core.Sampler",
    .basicsize = sizeof(py_sampler),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = sampler_slots,
};
