/* SPDX-License-Identifier: Apache-2.0 */
/* Sees what each collection of the garbage collector is about to find. One C function
 * in gc.callbacks serves every subscriber of an interpreter: at "start" it walks the
 * generations that will be collected and finds what is unreachable. Each subscriber
 * then describes what it cares about as plain data, and learns at "stop" what became of
 * it. GIL held throughout.
 *
 *     "start"  walk -> unreachable -> describe() of each subscriber -> walk freed
 *              (the collector runs: finalizers, weak references, clearing)
 *     "stop"   survivors found -> deliver() of each that described something */
#ifndef PH_GCWATCH_H
#define PH_GCWATCH_H

#include "ph_walk.h"

/* One collection, as it is known at "stop". */
typedef struct ph_collection {
    uint64_t number;         /* from 1, since the first subscriber of this process */
    uint32_t generation;     /* 0 to 2 */
    uint32_t predicted;      /* objects found unreachable at "start"; those that do not
                              * survive are freed by the collector, or by finalizers
                              * before it comes to them */
    uint32_t survivor_count; /* of those, the ones that live on: brought back by a
                              * finalizer, or put into gc.garbage */
    const uint64_t *survivors; /* their addresses, ascending */
    uint64_t collected;        /* as the collector counts */
    uint64_t uncollectable;
    uint64_t pause_ns; /* what the watch took at "start", describing included */
} ph_collection;

/* Whether the object that was predicted at this address lives on. */
bool
ph_collection_survived(const ph_collection *collection, uint64_t object);

/* What a subscriber does. `ctx` is its own; every call is made with the GIL held and
 * none is made for it after free(). */
typedef struct ph_gcwatch_hooks {
    /* At "start", only if something is unreachable: `dead` has `count` members, nodes
     * of `heap`. Makes no Python object, takes no reference, runs no Python code.
     * *plain is what deliver() gets (it owns all that it needs, since the walk is
     * freed), or stays NULL: nothing of interest, no delivery. A failure is counted and
     * kept for ph_gcwatch_get_status. */
    nt_status (*describe)(void *ctx, const ph_heap *heap, const nt_bitset *dead,
                          uint32_t count, void **plain, nt_error *err);
    /* At "stop": takes `plain` over. May run any Python code, adding and removing
     * watches included; a collection that it asks for does nothing. -1 with an
     * exception set is reported through sys.unraisablehook. */
    int (*deliver)(void *ctx, void *plain, const ph_collection *collection);
    /* Takes over a `plain` that is not delivered: the watch was removed, the process
     * forked, or the interpreter's modules are being torn down. */
    void (*discard)(void *ctx, void *plain);
    /* After removal, when no call of this subscriber is under way, or at the end of the
     * interpreter. May give up references to Python objects. */
    void (*free)(void *ctx);
} ph_gcwatch_hooks;

/* What the watch of this interpreter has done; times are of the monotonic clock. A
 * child process begins anew with all at 0 and the same subscribers. */
typedef struct ph_gcwatch_status {
    uint32_t subscribers;
    bool listed;          /* our function is in gc.callbacks; where it is not although
                           * there are subscribers, somebody cleared the list */
    uint64_t collections; /* seen */
    uint64_t walked;      /* objects walked, all collections together */
    uint64_t predicted;   /* objects found unreachable */
    uint64_t described;   /* collections in which a subscriber found something */
    uint64_t survivors;   /* of the objects of those collections */
    uint64_t refused;     /* collections that could not be looked at, or in which a
                           * subscriber failed to describe */
    uint64_t spent_ns;    /* inside of the watch; deliver() is not counted */
    uint64_t longest_ns;  /* largest pause at "start" */
    char refusal[256];    /* the reason of the last refusal, or "" */
} ph_gcwatch_status;

/* Subscribes; prepares the walk (NT_REFUSED with the reason where it can't be done) and
 * puts the callback into gc.callbacks if it is not there. Takes `ctx` over on success.
 * *id is never 0 and never used again in the process. May create Python objects. Never
 * leaves an exception set. */
nt_status
ph_gcwatch_add(const ph_gcwatch_hooks *hooks, void *ctx, uint64_t *id,
               nt_error *err) NT_CHECKED;

/* False if there is no such subscriber (removed already). It may be called anywhere,
 * even within a callback of the collector, or of the watch itself. */
bool
ph_gcwatch_remove(uint64_t id);

/* Whether it is subscribed in the running interpreter. */
bool
ph_gcwatch_is_on(uint64_t id);

/* All zero where nothing ever subscribed in this interpreter. */
void
ph_gcwatch_get_status(ph_gcwatch_status *out);

#endif
