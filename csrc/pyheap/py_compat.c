/* SPDX-License-Identifier: Apache-2.0 */
#include "py_compat.h"

#if !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED) &&                             \
    PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x030E0000
#define COMPAT_KNOWN 1
#else
#define COMPAT_KNOWN 0
#endif

/*
 * The collector's lists within its state, the same in 3.10 to 3.13:
 *
 *     generation 0   next, prev, threshold (int), count (int)
 *     generation 1   the same
 *     generation 2   the same
 *     address of generation 0
 *     frozen         next, prev, threshold, count
 */
typedef struct compat_generation {
    ph_gc_link head;
    int threshold;
    int count;
} compat_generation;

typedef struct compat_lists {
    compat_generation generations[PH_GC_GENERATIONS];
    const compat_generation *generation0;
    compat_generation frozen;
} compat_lists;

/* The state of the collector lies within the interpreter's, which is smaller. */
#define COMPAT_MOST_OFFSET ((uintptr_t)1 << 20)

/* Where the lists lie, from the beginning of an interpreter's state: the same for all
 * interpreters of a process. 0: not found yet. */
static uintptr_t compat_offset;

/* The last interpreter in which all checks held. */
static int64_t compat_checked = -1;

static nt_status
compat_refuse(nt_error *err, const char *what)
{
    PyErr_Clear();
    return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                   "this Python (%.32s) keeps the garbage collector's lists otherwise "
                   "than CPython 3.10 to 3.13: %s",
                   PY_VERSION, what);
}

#if COMPAT_KNOWN

/* A list longer than this is believed without being counted: the gc module would make
 * a list of as many objects for it. */
#define COMPAT_MOST_COUNTED 200000

/* Python code in an audit hook, or another thread, may come between two counts. */
#define COMPAT_TRIES 5

static const compat_lists *
compat_lists_of(PyInterpreterState *interpreter)
{
    return (const compat_lists *)((uintptr_t)interpreter + compat_offset);
}

/* The offset of the lists, learnt from where a new object is appended; 0 if that is
 * not within the interpreter's state. */
static uintptr_t
compat_find_offset(void)
{
    PyObject *fresh = PyList_New(0);
    if (fresh == NULL) {
        return 0;
    }
    const ph_gc_link *link = (const ph_gc_link *)fresh - 1;
    const uintptr_t begin = (uintptr_t)PyInterpreterState_Get();
    uintptr_t offset = link->next - begin;
    if (link->next < begin || offset > COMPAT_MOST_OFFSET || offset % 8 != 0 ||
        ph_gc_prev(ph_gc_next(link)) != link) {
        offset = 0;
    }
    Py_DECREF(fresh);
    return offset;
}

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
compat_thresholds_match(const compat_lists *lists)
{
    PyObject *told = compat_call("get_threshold", -1);
    int seen[PH_GC_GENERATIONS];
    bool same = told != NULL && PyTuple_Check(told) &&
                PyArg_ParseTuple(told, "iii", &seen[0], &seen[1], &seen[2]);
    for (int k = 0; same && k < PH_GC_GENERATIONS; k++) {
        same = lists->generations[k].threshold == seen[k];
    }
    Py_XDECREF(told);
    return same;
}

/* Links in a list, counted up to COMPAT_MOST_COUNTED; -1 if it is not a ring. */
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

/* Whether gc.get_objects gives as many objects of a generation as its list has. */
static bool
compat_length_matches(const compat_lists *lists, int generation)
{
    const ph_gc_link *head = &lists->generations[generation].head;
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

static bool
compat_frozen_matches(const compat_lists *lists)
{
    PyObject *told = compat_call("get_freeze_count", -1);
    const Py_ssize_t count = told != NULL ? PyLong_AsSsize_t(told) : -1;
    Py_XDECREF(told);
    const Py_ssize_t length = compat_length(&lists->frozen.head);
    return count >= 0 && (length == count || (length >= COMPAT_MOST_COUNTED &&
                                              count >= COMPAT_MOST_COUNTED));
}

static nt_status
compat_check(const compat_lists *lists, nt_error *err)
{
    if (lists->generation0 != &lists->generations[0]) {
        return compat_refuse(err, "no pointer back to generation 0");
    }
    if (!compat_thresholds_match(lists)) {
        return compat_refuse(err, "the thresholds are not those of gc.get_threshold()");
    }
    for (int k = 0; k < PH_GC_GENERATIONS; k++) {
        if (!compat_length_matches(lists, k)) {
            return compat_refuse(err, "a list is not what gc.get_objects() gives");
        }
    }
    if (!compat_frozen_matches(lists)) {
        return compat_refuse(err, "the frozen objects are not gc.get_freeze_count()");
    }
    return NT_OK;
}

nt_status
ph_gc_prepare(nt_error *err)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    const int64_t id = PyInterpreterState_GetID(interpreter);
    if (id == compat_checked && compat_offset != 0) {
        return NT_OK;
    }
    const uintptr_t offset = compat_find_offset();
    if (offset == 0 || (compat_offset != 0 && offset != compat_offset)) {
        return compat_refuse(err, "a new object is not at the end of generation 0");
    }
    const uintptr_t before = compat_offset;
    compat_offset = offset;
    const nt_status status = compat_check(compat_lists_of(interpreter), err);
    if (status != NT_OK) {
        compat_offset = before;
        return status;
    }
    compat_checked = id;
    return NT_OK;
}

bool
ph_gc_get_lists(ph_gc_lists *lists)
{
    if (compat_offset == 0) {
        return false;
    }
    const compat_lists *found = compat_lists_of(PyInterpreterState_Get());
    if (found->generation0 != &found->generations[0]) {
        return false;
    }
    for (int k = 0; k < PH_GC_GENERATIONS; k++) {
        lists->generations[k] = &found->generations[k].head;
    }
    lists->frozen = &found->frozen.head;
    return true;
}

#else

nt_status
ph_gc_prepare(nt_error *err)
{
    (void)compat_checked;
    (void)compat_offset;
#if defined(Py_GIL_DISABLED)
    return compat_refuse(err, "a free-threaded build has no such lists");
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
