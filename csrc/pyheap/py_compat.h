/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of the garbage collector, for builds of CPython with the GIL from 3.10 on.
 * Where they lie differs between versions, patch releases too, and is learnt from the
 * running interpreter: no offset is written here. GIL held throughout. */
#ifndef PY_COMPAT_H
#define PY_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"

/* What stands before every object that the collector may track, and heads its lists.
 * Objects are aligned to 16 bytes, the heads of some releases only to 4. */
typedef struct ph_gc_link {
    uintptr_t next; /* address of the next link; 0 in an object that is not tracked */
    uintptr_t prev; /* address of the one before; the two lowest bits are flags */
} __attribute__((packed, aligned(4))) ph_gc_link;

#define PH_GC_PREV_FLAGS ((uintptr_t)3)
#define PH_GC_GENERATIONS 3

/* The heads of one interpreter's lists. */
typedef struct ph_gc_lists {
    const ph_gc_link *generations[PH_GC_GENERATIONS];
    const ph_gc_link *frozen; /* what gc.freeze set aside */
} ph_gc_lists;

/* Finds the lists of the running interpreter. The list that a new object is appended to
 * is generation 0; the other heads are looked for near it, and each has to prove
 * itself: a closed ring of as many links as the gc module counts objects, and beside
 * the heads of the generations their thresholds. NT_REFUSED with the reason where there
 * is no such place, or more than one. Creates Python objects; never leaves an exception
 * set. Nearly free once it has succeeded in an interpreter. */
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

/* Whether the modules of an ending interpreter are being taken apart: from there on no
 * Python function can be relied on. */
bool
ph_is_tearing_down(void);

#endif
