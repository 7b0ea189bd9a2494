/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ph_gcwatch: the watch of one interpreter. ph_gcwatch.c keeps it and its
 * subscribers, ph_gcwatch_call.c is what the collector calls.
 */
#ifndef PH_GCWATCH_STATE_H
#define PH_GCWATCH_STATE_H

#include "watch/ph_gcwatch.h"

#include <sys/types.h>

#include "base/nt_sort.h"

/* The name of the capsule that owns a gcwatch_state. */
#define GCWATCH_CAPSULE "neutracer.gcwatch"

typedef struct gcwatch_subscriber {
    uint64_t id;
    ph_gcwatch_hooks hooks;
    void *ctx;
    void *plain; /* described at "start", not delivered yet; NULL: nothing */
    bool removed;
} gcwatch_subscriber;

/* What is kept from "start" to "stop". */
typedef struct gcwatch_pending {
    nt_sort_item *predicted; /* addresses, if a subscriber described something */
    uint32_t count;
    unsigned generation;
    uint64_t pause_ns;
} gcwatch_pending;

/* The watch of one interpreter; guard of all: the GIL. */
typedef struct gcwatch_state {
    pid_t pid;          /* the process that the figures and the pending are of */
    PyObject *gc;       /* the gc module, owned; a list of it would be kept alive by its
                         * own element, while a module is emptied at the end */
    PyObject *key;      /* "callbacks", interned, owned */
    PyObject *function; /* what stands in gc.callbacks; it owns this state */
    gcwatch_subscriber **subscribers;
    size_t capacity;
    size_t count;
    unsigned busy; /* rounds over the subscribers under way */
    bool inside;   /* between our work at "start" and at "stop" */
    /* The phase in which the function was called last, and how often. */
    const PyObject *turn_info;
    bool turn_start;
    unsigned turn_calls;
    gcwatch_pending pending;
    ph_gcwatch_status totals;
} gcwatch_state;

/* The function in gc.callbacks: METH_FASTCALL, its self the capsule. */
PyObject *
gcwatch_call(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* ---- ph_gcwatch.c ---------------------------------------------------------------- */

/* Drops what was described and not delivered. */
void
gcwatch_discard(gcwatch_state *state);

/* In a forked child: what the parent was about to deliver is the parent's. Whether this
 * is one. */
bool
gcwatch_reset_in_child(gcwatch_state *state);

/* Those that were not removed. */
uint32_t
gcwatch_live(const gcwatch_state *state);

/* Frees the subscribers that were removed, unless a round is under way; the function
 * leaves the list with the last one, but not in the middle of a collection. Freeing
 * may run Python code that comes here again. */
void
gcwatch_purge(gcwatch_state *state);

/* gc.callbacks, borrowed; NULL where the gc module has no such list (any more). */
PyObject *
gcwatch_list(const gcwatch_state *state);

/* Removes the function from the list, except where it stands the first `keep` times. */
void
gcwatch_unlist(const gcwatch_state *state, PyObject *list, unsigned keep);

#endif
