/* SPDX-License-Identifier: Apache-2.0 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 /* pipe2, syscall */
#endif
#include "py_compat.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030A0000
#define COMPAT_KNOWN 1
#else
#define COMPAT_KNOWN 0
#endif

/* The collector's state lies within the interpreter's. In it each generation is a head
 * and, somewhere behind it, two numbers, the threshold and a count; the generations are
 * an array; the head of what is frozen is near them.
 *
 *     first                    stride
 *     |----------------------->|----------------->|
 *     state of an interpreter  generation 0       generation 1     ...     frozen */
typedef struct compat_places {
    uintptr_t first;  /* bytes from an interpreter's state to generation 0; 0: not
                       * learnt yet */
    uintptr_t stride; /* from one generation's head to the next one's */
    intptr_t frozen;  /* from generation 0's head */
} compat_places;

/* The same for all interpreters of a process. guard: the GIL */
static compat_places compat_learnt;

/* The last interpreter in which all checks held. */
static int64_t compat_checked = -1;

static nt_status
compat_refuse(nt_error *err, const char *what)
{
    const char *version = Py_GetVersion();
    PyErr_Clear();
    return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                   "the garbage collector's lists are not found in this Python "
                   "(%.*s): %s",
                   (int)strcspn(version, " "), version, what);
}

#if COMPAT_KNOWN

/* A list longer than this is believed without being counted: the gc module would make a
 * list of as many objects for it. */
#define COMPAT_MOST_COUNTED 200000

/* Python code in an audit hook, or another thread, may come between two counts. */
#define COMPAT_TRIES 5

/* An interpreter's state is smaller than this. */
#define COMPAT_MOST_OFFSET ((uintptr_t)1 << 20)

/* What lies in the state is aligned to this at least. */
#define COMPAT_STEP 4

/* A head, a threshold and a count take 24 bytes; a release may add some. */
#define COMPAT_MOST_STRIDE 64

/* How far before generation 0 and behind the last one frozen's head is looked for. */
#define COMPAT_REACH 512

static const ph_gc_link *
compat_head(PyInterpreterState *interpreter, unsigned generation)
{
    return (const ph_gc_link *)((uintptr_t)interpreter + compat_learnt.first +
                                generation * compat_learnt.stride);
}

static const ph_gc_link *
compat_frozen(PyInterpreterState *interpreter)
{
    return (const ph_gc_link *)((uintptr_t)interpreter + compat_learnt.first +
                                (uintptr_t)compat_learnt.frozen);
}

/* ---- what may be a head ---------------------------------------------------------- */

/* Copies memory that may not be there: the kernel answers where a read would end the
 * process. `pipe` is one that is empty. A sanitizer's own write() would look at the
 * address first, and end the process at that. */
static bool
compat_peek(const int *pipe, uintptr_t from, void *to, size_t bytes)
{
    return syscall(SYS_write, pipe[1], (const void *)from, bytes) == (long)bytes &&
           read(pipe[0], to, bytes) == (ssize_t)bytes;
}

/* Whether the links before and behind this one, wherever they are, name it. */
static bool
compat_is_linked(const int *pipe, uintptr_t address)
{
    ph_gc_link link, next, prev;
    return compat_peek(pipe, address, &link, sizeof link) && link.next != 0 &&
           link.next % COMPAT_STEP == 0 && link.prev % COMPAT_STEP == 0 &&
           compat_peek(pipe, link.next, &next, sizeof next) &&
           (next.prev & ~PH_GC_PREV_FLAGS) == address &&
           compat_peek(pipe, link.prev, &prev, sizeof prev) && prev.next == address;
}

/* Links in a ring, counted up to COMPAT_MOST_COUNTED; -1 if it is not closed. */
static Py_ssize_t
compat_length(const ph_gc_link *head)
{
    Py_ssize_t count = 0;
    const ph_gc_link *link = head;
    do {
        const ph_gc_link *next = ph_gc_next(link);
        if (next == NULL || ph_gc_prev(next) != link) {
            return -1;
        }
        link = next;
        count++;
    } while (link != head && count <= COMPAT_MOST_COUNTED);
    return count - 1;
}

/* ---- what the gc module says ----------------------------------------------------- */

static PyObject *
compat_call(const char *function, int generation)
{
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *result = NULL;
    if (gc != NULL) {
        result = generation < 0 ? PyObject_CallMethod(gc, function, NULL)
                                : PyObject_CallMethod(gc, function, "i", generation);
        Py_DECREF(gc);
    }
    return result;
}

static bool
compat_told_thresholds(int out[PH_GC_GENERATIONS])
{
    PyObject *told = compat_call("get_threshold", -1);
    const bool fine = told != NULL && PyTuple_Check(told) &&
                      PyArg_ParseTuple(told, "iii", &out[0], &out[1], &out[2]);
    Py_XDECREF(told);
    return fine;
}

/* Whether gc.get_objects gives as many objects of a generation as its list has. */
static bool
compat_length_matches(const ph_gc_link *head, int generation)
{
    for (int i = 0; i < COMPAT_TRIES; i++) {
        const Py_ssize_t before = compat_length(head);
        if (before < 0 || before >= COMPAT_MOST_COUNTED) {
            return before > 0;
        }
        PyObject *told = compat_call("get_objects", generation);
        if (told == NULL || !PyList_Check(told)) {
            Py_XDECREF(told);
            return false;
        }
        /* The list that was made is in generation 0 itself, and not in the list. */
        const Py_ssize_t length = compat_length(head) - (generation == 0);
        const bool same = length == PyList_GET_SIZE(told);
        Py_DECREF(told);
        if (same) {
            return true;
        }
    }
    return false;
}

/* Whether a ring has as many links as objects are frozen. */
static bool
compat_frozen_matches(const ph_gc_link *head)
{
    PyObject *told = compat_call("get_freeze_count", -1);
    const Py_ssize_t count = told != NULL ? PyLong_AsSsize_t(told) : -1;
    Py_XDECREF(told);
    const Py_ssize_t length = compat_length(head);
    return count >= 0 && (length == count || (length >= COMPAT_MOST_COUNTED &&
                                              count >= COMPAT_MOST_COUNTED));
}

/* ---- learning the places --------------------------------------------------------- */

/* Generation 0 is where a new object is appended, if that is within the state. */
static bool
compat_learn_first(uintptr_t state, compat_places *places)
{
    PyObject *fresh = PyList_New(0);
    if (fresh == NULL) {
        return false;
    }
    const ph_gc_link *link = (const ph_gc_link *)fresh - 1;
    places->first = link->next - state;
    const bool fine = link->next > state && places->first < COMPAT_MOST_OFFSET &&
                      places->first % COMPAT_STEP == 0 &&
                      ph_gc_prev(ph_gc_next(link)) == link;
    Py_DECREF(fresh);
    return fine;
}

/* Whether every generation's threshold stands at one distance from its head. */
static bool
compat_has_thresholds(uintptr_t first, uintptr_t stride, const int *told)
{
    for (uintptr_t at = sizeof(ph_gc_link); at + sizeof(int) <= stride;
         at += COMPAT_STEP) {
        bool same = true;
        for (uintptr_t k = 0; same && k < PH_GC_GENERATIONS; k++) {
            same = *(const int *)(first + k * stride + at) == told[k];
        }
        if (same) {
            return true;
        }
    }
    return false;
}

/* The one distance at which heads follow each other with thresholds beside them. */
static bool
compat_learn_stride(const int *pipe, uintptr_t state, compat_places *places)
{
    int told[PH_GC_GENERATIONS];
    const uintptr_t first = state + places->first;
    unsigned found = 0;
    if (!compat_told_thresholds(told)) {
        return false;
    }
    for (uintptr_t stride = sizeof(ph_gc_link) + sizeof(int);
         stride <= COMPAT_MOST_STRIDE; stride += COMPAT_STEP) {
        if (compat_has_thresholds(first, stride, told) &&
            compat_is_linked(pipe, first + stride) &&
            compat_is_linked(pipe, first + 2 * stride)) {
            places->stride = stride;
            found++;
        }
    }
    return found == 1;
}

/* The one other ring near the generations that has as many links as are frozen. */
static bool
compat_learn_frozen(const int *pipe, uintptr_t state, compat_places *places)
{
    const uintptr_t first = state + places->first;
    const uintptr_t behind = first + PH_GC_GENERATIONS * places->stride;
    const uintptr_t before =
        places->first < COMPAT_REACH ? state : first - COMPAT_REACH;
    unsigned found = 0;
    for (uintptr_t at = before; at < behind + COMPAT_REACH; at += COMPAT_STEP) {
        const bool own = at + sizeof(ph_gc_link) > first && at < behind;
        if (!own && compat_is_linked(pipe, at) &&
            compat_frozen_matches((const ph_gc_link *)at)) {
            places->frozen = (intptr_t)(at - first);
            found++;
        }
    }
    return found == 1;
}

/* ---- both together --------------------------------------------------------------- */

static nt_status
compat_learn(uintptr_t state, nt_error *err)
{
    compat_places places = {.first = 0};
    int ends[2];
    if (!compat_learn_first(state, &places)) {
        return compat_refuse(err, "a new object is not at the end of generation 0");
    }
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return compat_refuse(err, "no pipe could be opened to look for them");
    }
    const bool stride = compat_learn_stride(ends, state, &places);
    const bool frozen = stride && compat_learn_frozen(ends, state, &places);
    close(ends[0]);
    close(ends[1]);
    if (!stride) {
        return compat_refuse(err, "no lists with the thresholds of gc.get_threshold()");
    }
    if (!frozen) {
        return compat_refuse(err,
                             "no list, or several, of gc.get_freeze_count() objects");
    }
    compat_learnt = places;
    return NT_OK;
}

/* Whether the places that were learnt hold in this interpreter. */
static nt_status
compat_check(PyInterpreterState *interpreter, nt_error *err)
{
    compat_places fresh;
    int told[PH_GC_GENERATIONS];
    if (!compat_learn_first((uintptr_t)interpreter, &fresh) ||
        fresh.first != compat_learnt.first) {
        return compat_refuse(err, "a new object is not at the end of generation 0");
    }
    for (unsigned k = 0; k < PH_GC_GENERATIONS; k++) {
        if (!compat_length_matches(compat_head(interpreter, k), (int)k)) {
            return compat_refuse(err, "a list is not what gc.get_objects() gives");
        }
    }
    if (!compat_told_thresholds(told) ||
        !compat_has_thresholds((uintptr_t)compat_head(interpreter, 0),
                               compat_learnt.stride, told)) {
        return compat_refuse(err, "the thresholds are not those of gc.get_threshold()");
    }
    if (!compat_frozen_matches(compat_frozen(interpreter))) {
        return compat_refuse(err, "the frozen objects are not gc.get_freeze_count()");
    }
    return NT_OK;
}

/* Why this release's lists mean something else, or NULL. */
static const char *
compat_other_collector(void)
{
#if PY_VERSION_HEX >= 0x030E0000
    if (Py_Version >= 0x030E0000 && Py_Version < 0x030E0500) {
        return "3.14.0 to 3.14.4 collect in increments, which can't be foreseen; "
               "3.14.5 and later do not";
    }
#endif
    return NULL;
}

nt_status
ph_gc_prepare(nt_error *err)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    const int64_t id = PyInterpreterState_GetID(interpreter);
    if (id == compat_checked) {
        return NT_OK;
    }
    const char *other = compat_other_collector();
    if (other != NULL) {
        return compat_refuse(err, other);
    }
    const compat_places before = compat_learnt;
    if (before.first == 0) {
        NT_TRY(compat_learn((uintptr_t)interpreter, err));
    }
    const nt_status status = compat_check(interpreter, err);
    if (status != NT_OK) {
        compat_learnt = before;
        return status;
    }
    compat_checked = id;
    return NT_OK;
}

bool
ph_gc_get_lists(ph_gc_lists *lists)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (compat_learnt.first == 0) {
        return false;
    }
    for (unsigned k = 0; k < PH_GC_GENERATIONS; k++) {
        const ph_gc_link *head = compat_head(interpreter, k);
        if (head->next == 0 || ph_gc_prev(ph_gc_next(head)) != head) {
            return false;
        }
        lists->generations[k] = head;
    }
    lists->frozen = compat_frozen(interpreter);
    return true;
}

#else

nt_status
ph_gc_prepare(nt_error *err)
{
    (void)compat_checked;
    (void)compat_learnt;
#if defined(Py_GIL_DISABLED)
    return compat_refuse(err, "a free-threaded build keeps none; snapshots are read, "
                              "replayed and drawn there all the same");
#else
    return compat_refuse(err, "this version is not known");
#endif
}

bool
ph_gc_get_lists(ph_gc_lists *lists)
{
    (void)lists;
    return false;
}

#endif

bool
ph_is_tearing_down(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    const int ending = Py_IsFinalizing();
#elif defined(PYPY_VERSION)
    const int ending = 0;
#else
    const int ending = _Py_IsFinalizing();
#endif
    /* The first thing that is taken from an ending interpreter is sys.path. */
    return ending && PySys_GetObject("path") == Py_None;
}
