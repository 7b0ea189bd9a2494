/* SPDX-License-Identifier: Apache-2.0 */
#include "selftest_live.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/nt_base.h"
#include "trace/nt_live.h"
#include "trace/nt_live_api.h"

#define LIVE_DEVICES 4
#define LIVE_PLACES 256

typedef struct live_segment {
    nt_live_segment segment;
    size_t block_count;
} live_segment;

/* What the layout gives: the rings, and what Python told; or, while a thread churns,
 * the blocks of the thread, each in a segment of its own that never goes. */
typedef struct live_state {
    const nt_live_api *api;
    nt_ring *rings[LIVE_DEVICES];
    live_segment *segments;
    nt_live_block *blocks;
    size_t segment_count;
    pthread_mutex_t lock; /* stands for the allocator's, while a thread churns */
    pthread_t thread;
    bool churning, stop;
    uint64_t sizes[LIVE_PLACES]; /* 0: free */
} live_state;

static live_state live = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define LIVE_BASE UINT64_C(0x7f0000000000)
#define LIVE_SEGMENT UINT64_C(2097152)

static uint64_t
live_place(size_t place)
{
    return LIVE_BASE + place * LIVE_SEGMENT;
}

/* ---- the thread ----------------------------------------------------------------- */

static void
live_push(nt_live_action action, uint64_t addr, uint64_t size)
{
    const nt_ring_entry entry = {.ticks = nt_ring_head(live.rings[0]),
                                 .addr = addr,
                                 .size = size,
                                 .stack = NT_RING_NONE,
                                 .action = (uint8_t)action};
    nt_ring_push(live.rings[0], &entry);
}

static void
live_churn_once(uint64_t *seed)
{
    *seed = nt_mix64(*seed + UINT64_C(0x9e3779b97f4a7c15));
    const size_t place = *seed % LIVE_PLACES;
    const uint64_t addr = live_place(place);
    if (live.sizes[place] == 0) {
        live.sizes[place] = 512 + (*seed >> 20 & 0xfffff);
        live_push(NT_LIVE_ALLOC, addr, live.sizes[place]);
    } else {
        live_push(NT_LIVE_FREE_REQUESTED, addr, live.sizes[place]);
        live_push(NT_LIVE_FREE_COMPLETED, addr, live.sizes[place]);
        live.sizes[place] = 0;
    }
}

/* Some million events a second: a ring is not overwritten while it is read. */
static void *
live_churn(void *unused)
{
    const struct timespec pause = {.tv_nsec = 1000};
    uint64_t seed = 1;
    (void)unused;
    while (!__atomic_load_n(&live.stop, __ATOMIC_ACQUIRE)) {
        (void)pthread_mutex_lock(&live.lock);
        for (size_t i = 0; i < 200; i++) {
            live_churn_once(&seed);
        }
        (void)pthread_mutex_unlock(&live.lock);
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

/* ---- the source ----------------------------------------------------------------- */

static int
live_layout_churned(nt_live_builder *builder)
{
    uint64_t sizes[LIVE_PLACES];
    (void)pthread_mutex_lock(&live.lock);
    const uint64_t head = nt_ring_head(live.rings[0]);
    memcpy(sizes, live.sizes, sizeof sizes);
    live_push(NT_LIVE_SNAPSHOT, 0, 0);
    (void)pthread_mutex_unlock(&live.lock);
    int failed = live.api->set_mark(builder, 0, live.rings[0], head);
    for (size_t place = 0; place < LIVE_PLACES && !failed; place++) {
        const uint64_t rounded = (sizes[place] + 511) & ~UINT64_C(511);
        const nt_live_segment segment = {.address = live_place(place),
                                         .total_size = LIVE_SEGMENT,
                                         .allocated_size = rounded,
                                         .active_size = rounded,
                                         .requested_size = sizes[place]};
        const nt_live_block used = {live_place(place), rounded, sizes[place], 1};
        const nt_live_block rest = {live_place(place) + rounded, LIVE_SEGMENT - rounded,
                                    0, 0};
        failed = live.api->add_segment(builder, &segment);
        if (rounded != 0 && !failed) {
            failed = live.api->add_block(builder, &used);
        }
        failed = failed || live.api->add_block(builder, &rest);
    }
    return failed;
}

static int
live_layout_told(nt_live_builder *builder)
{
    int failed = 0;
    for (int device = 0; device < LIVE_DEVICES && !failed; device++) {
        const nt_ring *ring = live.rings[device];
        failed = ring != NULL &&
                 live.api->set_mark(builder, device, ring, nt_ring_head(ring)) != 0;
    }
    const nt_live_block *block = live.blocks;
    for (size_t i = 0; i < live.segment_count && !failed; i++) {
        failed = live.api->add_segment(builder, &live.segments[i].segment);
        for (size_t k = 0; k < live.segments[i].block_count && !failed; k++) {
            failed = live.api->add_block(builder, block++);
        }
    }
    return failed || live.api->set_bool(builder, "expandable_segments", 0);
}

static int
live_layout(void *ctx, nt_live_device_type type, nt_live_builder *builder)
{
    (void)ctx;
    if (type != NT_LIVE_CUDA) {
        return 3;
    }
    return live.churning ? live_layout_churned(builder) : live_layout_told(builder);
}

static int64_t
live_time(void *ctx, nt_live_device_type type, uint64_t ticks)
{
    (void)ctx;
    (void)type;
    return (int64_t)ticks;
}

/* Device 0 has figures, 1 is not in use yet, and there are no others. */
static int
live_span(void *ctx, int32_t device, int follow, nt_live_span *out)
{
    (void)ctx;
    *out = (nt_live_span){.allocated_bytes = 1,
                          .peak_allocated_bytes = (int64_t)1 << 40,
                          .reserved_bytes = 3,
                          .peak_reserved_bytes = 4,
                          .num_alloc_retries = 5,
                          .num_ooms = 6,
                          .allocations = 7,
                          .frees = follow};
    return device == 0 ? 0 : device == 1 ? 1 : -1;
}

static const nt_live_source live_source = {.version = NT_LIVE_API_VERSION,
                                           .device_span = live_span,
                                           .size = sizeof live_source,
                                           .layout = live_layout,
                                           .time_us = live_time};

/* ---- Python's side -------------------------------------------------------------- */

PyDoc_STRVAR(live_source_doc, "live_source($module, live_api, /)\n--\n\n"
                              "The capsule of the made-up shim, using the core's.");

static PyObject *
selftest_live_source(PyObject *module, PyObject *capsule)
{
    (void)module;
    live.api = PyCapsule_GetPointer(capsule, NT_LIVE_CAPSULE);
    return live.api == NULL ? NULL
                            : PyCapsule_New((void *)(uintptr_t)&live_source,
                                            "neutracer._torch.live_source", NULL);
}

PyDoc_STRVAR(live_open_doc,
             "live_open($module, device, events, frames, late, /)\n--\n\n"
             "A new ring for the device; of 0 events: none.");

static PyObject *
selftest_live_open(PyObject *module, PyObject *args)
{
    int device, frames, late;
    unsigned long long events;
    (void)module;
    if (!PyArg_ParseTuple(args, "iKpp:live_open", &device, &events, &frames, &late)) {
        return NULL;
    }
    if (device < 0 || device >= LIVE_DEVICES || live.api == NULL || live.churning) {
        PyErr_SetString(PyExc_ValueError, "no such device, or not connected");
        return NULL;
    }
    live.api->ring_free(live.rings[device]);
    live.rings[device] = events == 0 ? NULL : live.api->ring_new(events, frames);
    if (live.rings[device] != NULL) {
        live.api->ring_restart(live.rings[device], late);
    }
    Py_RETURN_NONE;
}

static nt_ring_text
live_text(PyObject *text)
{
    return (nt_ring_text){PyUnicode_DATA(text), (uint32_t)PyUnicode_GET_LENGTH(text),
                          (uint32_t)PyUnicode_KIND(text)};
}

/* With the GIL, the public way; a new reference to co_linetable stays in `kept`. */
static int
live_describe_with(PyObject *code, nt_ring_code *out, PyObject **kept)
{
    PyCodeObject *co = (PyCodeObject *)code;
    *kept = PyObject_GetAttrString(code, "co_linetable");
    if (*kept == NULL) {
        PyErr_Clear();
        return -1;
    }
    *out = (nt_ring_code){
        .name = live_text(co->co_name),
        .filename = live_text(co->co_filename),
        .lines = (const uint8_t *)PyBytes_AS_STRING(*kept),
        .line_bytes = (uint32_t)PyBytes_GET_SIZE(*kept),
        .first_line = co->co_firstlineno,
        .format = PY_VERSION_HEX < 0x030B0000 ? NT_RING_LINES_310 : NT_RING_LINES_311,
    };
    return 0;
}

/* The table belongs to the code object, and so outlives the call. */
static int
live_describe(uint64_t address, nt_ring_code *out)
{
    PyObject *kept;
    const int failed = live_describe_with((PyObject *)(uintptr_t)address, out, &kept);
    Py_XDECREF(kept);
    return failed;
}

/* The id of [(code, lasti), ...], innermost first. */
static int
live_stack(nt_ring *ring, PyObject *stack, uint32_t *out)
{
    nt_ring_frame frames[NT_RING_FRAMES] = {{0}};
    const Py_ssize_t count = PyList_Check(stack) ? PyList_GET_SIZE(stack) : 0;
    *out = NT_RING_NONE;
    for (Py_ssize_t i = 0; i < count && i < NT_RING_FRAMES; i++) {
        PyObject *code;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(stack, i), "O!I", &PyCode_Type, &code,
                              &frames[i].lasti)) {
            return -1;
        }
        frames[i].code = (uint64_t)(uintptr_t)code;
    }
    if (PyList_Check(stack)) {
        uint64_t print[2];
        nt_ring_fingerprint(frames, (size_t)count, print);
        *out = nt_ring_find_stack(ring, print);
        if (*out == NT_RING_NONE) {
            *out = live.api->ring_add_stack(ring, frames, (size_t)count, print,
                                            live_describe);
        }
    }
    return 0;
}

PyDoc_STRVAR(live_push_doc,
             "live_push($module, device, action, addr, size, stream, time_us,\n"
             "          stack=None, metadata='', pool=(0, 0), /)\n--\n\n"
             "Pushes an event; the stack is a list of (code, lasti) or None.");

static PyObject *
selftest_live_push(PyObject *module, PyObject *args)
{
    int device, action;
    unsigned long long addr, size, stream, ticks, first = 0, second = 0;
    PyObject *stack = Py_None;
    const char *metadata = "";
    (void)module;
    if (!PyArg_ParseTuple(args, "iiKKKK|Os(KK):live_push", &device, &action, &addr,
                          &size, &stream, &ticks, &stack, &metadata, &first, &second)) {
        return NULL;
    }
    if (device < 0 || device >= LIVE_DEVICES || live.rings[device] == NULL) {
        PyErr_SetString(PyExc_ValueError, "the device has no ring");
        return NULL;
    }
    nt_ring *ring = live.rings[device];
    nt_ring_entry entry = {.ticks = ticks,
                           .addr = addr,
                           .size = size,
                           .stream = stream,
                           .pool_first = first,
                           .pool_second = second,
                           .action = (uint8_t)action};
    if (live_stack(ring, stack, &entry.stack) < 0) {
        return NULL;
    }
    entry.metadata = live.api->ring_add_text(ring, metadata, strlen(metadata));
    nt_ring_push(ring, &entry);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    live_tell_doc,
    "live_tell($module, segments, blocks, /)\n--\n\n"
    "What the layout says from now on: segments are tuples (device, address,\n"
    "total, allocated, active, requested, stream, large, expandable, number of\n"
    "blocks, pool, pool), blocks (address, size, requested, state).");

static int
live_parse_segments(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        nt_live_segment *s = &live.segments[i].segment;
        unsigned long long n[10];
        int device, is_large, is_expandable;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iKKKKKKppKKK", &device, &n[0],
                              &n[1], &n[2], &n[3], &n[4], &n[5], &is_large,
                              &is_expandable, &n[6], &n[7], &n[8])) {
            return -1;
        }
        *s = (nt_live_segment){n[0],
                               n[1],
                               n[2],
                               n[3],
                               n[4],
                               n[5],
                               n[7],
                               n[8],
                               device,
                               (uint8_t)is_large,
                               (uint8_t)is_expandable};
        live.segments[i].block_count = (size_t)n[6];
    }
    return 0;
}

static int
live_parse_blocks(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        unsigned long long n[3];
        int state;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "KKKi", &n[0], &n[1], &n[2],
                              &state)) {
            return -1;
        }
        live.blocks[i] = (nt_live_block){n[0], n[1], n[2], (uint8_t)state};
    }
    return 0;
}

static PyObject *
selftest_live_tell(PyObject *module, PyObject *args)
{
    PyObject *segments, *blocks;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!:live_tell", &PyList_Type, &segments, &PyList_Type,
                          &blocks)) {
        return NULL;
    }
    live.segment_count = 0;
    free(live.segments);
    free(live.blocks);
    live.segments =
        calloc((size_t)PyList_GET_SIZE(segments) + 1, sizeof *live.segments);
    live.blocks = calloc((size_t)PyList_GET_SIZE(blocks) + 1, sizeof *live.blocks);
    if (live.segments == NULL || live.blocks == NULL) {
        return PyErr_NoMemory();
    }
    if (live_parse_segments(segments) < 0 || live_parse_blocks(blocks) < 0) {
        return NULL;
    }
    live.segment_count = (size_t)PyList_GET_SIZE(segments);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(live_churn_doc,
             "live_churn($module, on, /)\n--\n\n"
             "A thread that allocates and frees on device 0, begun or ended; the\n"
             "layout is its own while it runs.");

static PyObject *
selftest_live_churn(PyObject *module, PyObject *on)
{
    const int wanted = PyObject_IsTrue(on);
    (void)module;
    if (wanted < 0 || (wanted && live.rings[0] == NULL)) {
        PyErr_SetString(PyExc_ValueError, "device 0 has no ring");
        return NULL;
    }
    if (wanted && !live.churning) {
        memset(live.sizes, 0, sizeof live.sizes);
        __atomic_store_n(&live.stop, false, __ATOMIC_RELEASE);
        live.churning = pthread_create(&live.thread, NULL, live_churn, NULL) == 0;
    } else if (!wanted && live.churning) {
        __atomic_store_n(&live.stop, true, __ATOMIC_RELEASE);
        Py_BEGIN_ALLOW_THREADS;
        (void)pthread_join(live.thread, NULL);
        Py_END_ALLOW_THREADS;
        live.churning = false;
    }
    return PyLong_FromUnsignedLongLong(
        live.rings[0] == NULL ? 0 : nt_ring_head(live.rings[0]));
}

PyDoc_STRVAR(live_line_doc, "live_line($module, code, lasti, /)\n--\n\n"
                            "The line of an instruction (in bytes) of a code object.");

static PyObject *
selftest_live_line(PyObject *module, PyObject *args)
{
    PyObject *code, *kept;
    unsigned int lasti;
    nt_ring_code described;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!I:live_line", &PyCode_Type, &code, &lasti)) {
        return NULL;
    }
    if (live_describe_with(code, &described, &kept) < 0) {
        PyErr_SetString(PyExc_ValueError, "the code object has no line table");
        return NULL;
    }
    const int64_t line = nt_live_line(&described, lasti);
    Py_DECREF(kept);
    return PyLong_FromLongLong(line);
}

PyMethodDef selftest_live_methods[] = {
    {"live_source", selftest_live_source, METH_O, live_source_doc},
    {"live_open", selftest_live_open, METH_VARARGS, live_open_doc},
    {"live_push", selftest_live_push, METH_VARARGS, live_push_doc},
    {"live_tell", selftest_live_tell, METH_VARARGS, live_tell_doc},
    {"live_churn", selftest_live_churn, METH_O, live_churn_doc},
    {"live_line", selftest_live_line, METH_VARARGS, live_line_doc},
    {NULL, NULL, 0, NULL},
};
