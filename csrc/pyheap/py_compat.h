/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lists of the garbage collector, which depend on Python's version. Known for the
 * GIL builds of CPython 3.10 to 3.13. What is read here is checked against the running
 * interpreter before it is believed. GIL held throughout.
 */
#ifndef PY_COMPAT_H
#define PY_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"

/* What stands before every object that the collector may track, and heads its lists. */
typedef struct ph_gc_link {
    uintptr_t next; /* address of the next link; 0 in an object that is not tracked */
    uintptr_t prev; /* address of the one before; the two lowest bits are flags */
} ph_gc_link;

#define PH_GC_PREV_FLAGS ((uintptr_t)3)
#define PH_GC_GENERATIONS 3

/* The heads of one interpreter's lists. */
typedef struct ph_gc_lists {
    const ph_gc_link *generations[PH_GC_GENERATIONS];
    const ph_gc_link *frozen; /* what gc.freeze set aside */
} ph_gc_lists;

/*
 * Finds the lists of the running interpreter: the list that a new object is appended
 * to is generation 0, and the others lie behind it. NT_REFUSED with the reason unless
 * thresholds, the pointer back to generation 0 and the lengths of the lists are what
 * the gc module says. Creates Python objects; never leaves an exception set. Nearly
 * free once it has succeeded in an interpreter.
 */
nt_status
ph_gc_prepare(nt_error *err) NT_CHECKED;

/* The lists of the running interpreter; false where ph_gc_prepare has not succeeded in
 * this process. Creates nothing. */
bool
ph_gc_get_lists(ph_gc_lists *lists);

static inline const ph_gc_link *
ph_gc_next(const ph_gc_link *link)
{
    return (const ph_gc_link *)link->next;
}

static inline const ph_gc_link *
ph_gc_prev(const ph_gc_link *link)
{
    return (const ph_gc_link *)(link->prev & ~PH_GC_PREV_FLAGS);
}

static inline PyObject *
ph_gc_object(const ph_gc_link *link)
{
    return (PyObject *)(link + 1);
}

/* Of an object for which PyObject_IS_GC holds. */
static inline bool
ph_gc_is_tracked(const PyObject *object)
{
    return ((const ph_gc_link *)object - 1)->next != 0;
}

/* Whether the modules of an ending interpreter are being taken apart: from there on
 * no Python function can be relied on. */
bool
ph_is_tearing_down(void);

#endif
