/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of this interpreter that the garbage collector tracks, and what they
 * refer to, as a graph. Everything here runs with the GIL held, creates no Python
 * object, takes no reference and runs no Python code; memory comes from the system, not
 * from Python. A walk is valid until the next Python code runs. */
#ifndef PH_WALK_H
#define PH_WALK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_bitset.h"
#include "heap/nt_graph.h"

/* Which objects a walk takes. */
typedef enum ph_extent {
    PH_YOUNG = 0,  /* generation 0 */
    PH_MIDDLE = 1, /* generations 0 and 1 */
    PH_FULL = 2,   /* generations 0 to 2: what a full collection looks at */
    PH_ALL = 3,    /* and what gc.freeze set aside */
} ph_extent;

typedef struct ph_heap ph_heap;

/* Finds the collector's lists of the running interpreter, and proves what is known of
 * them and of borrowed references. Called once before any walk in an interpreter;
 * NT_REFUSED with the reason where it can't be proved (a free-threaded build, an
 * incremental collector, an unknown version). May create Python objects. Cheap when
 * called again. */
nt_status
ph_walk_prepare(nt_error *err) NT_CHECKED;

/* Walks. With `leaves`, what the walk's objects lead to are nodes too: strings,
 * numbers, untracked tuples and dicts and what these lead to, and tracked objects
 * outside of the extent. It does not ask other untracked objects (a running frame) what
 * they refer to. */
nt_status
ph_heap_new(ph_extent extent, bool leaves, ph_heap **out, nt_error *err) NT_CHECKED;
void
ph_heap_free(ph_heap *heap);

uint32_t
ph_heap_count(const ph_heap *heap);

/* Borrowed. */
PyObject *
ph_heap_object(const ph_heap *heap, uint32_t node);

/* The node of an object, or NT_NONE where the walk did not take it. */
uint32_t
ph_heap_find(const ph_heap *heap, const void *object);

/* Edges lead only to objects that the walk took. Borrowed. */
const nt_graph *
ph_heap_graph(const ph_heap *heap);

/* References to a node's object that no object of the walk holds. */
uint64_t
ph_heap_references_left(const ph_heap *heap, uint32_t node);

/* Bytes that the walk holds now, and held at most. */
size_t
ph_heap_bytes(const ph_heap *heap, size_t *peak);

/* The nodes that a collection of this extent would find unreachable now, computed as
 * the collector does: reference counts less the references from inside the set. An
 * object with any left over lives, and so does what it reaches. `dead` is initialised
 * here for ph_heap_count members; *count is how many it got. Walks with leaves have no
 * such answer: NT_ARGUMENT. */
nt_status
ph_heap_unreachable(ph_heap *heap, nt_bitset *dead, uint32_t *count,
                    nt_error *err) NT_CHECKED;

/* The nodes whose reference count exceeds the references from inside of the walk:
 * something other than a tracked object holds them (C code, a running frame). `roots`
 * is initialised here. Holds for walks with and without leaves. */
nt_status
ph_heap_roots(const ph_heap *heap, nt_bitset *roots, nt_error *err) NT_CHECKED;

#endif
