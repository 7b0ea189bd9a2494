/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_gcwatch.h"

#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "base/nt_sort.h"
#include "py_compat.h"

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

/* ---- the watch and its subscribers ----------------------------------------------- */

static uint64_t gcwatch_last_id; /* guard: the GIL */

static void
gcwatch_forget_pending(gcwatch_state *state)
{
    const nt_alloc system = nt_alloc_system();
    NT_RELEASE(&system, state->pending.predicted, state->pending.count);
    state->pending = (gcwatch_pending){.predicted = NULL};
}

/* Drops what was described and not delivered. */
static void
gcwatch_discard(gcwatch_state *state)
{
    state->busy++;
    for (size_t i = 0; i < state->count; i++) {
        gcwatch_subscriber *s = state->subscribers[i];
        void *plain = s->plain;
        s->plain = NULL;
        if (plain != NULL) {
            s->hooks.discard(s->ctx, plain);
        }
    }
    state->busy--;
    gcwatch_forget_pending(state);
}

/* In a forked child: what the parent was about to deliver is the parent's. Whether this
 * is one. */
static bool
gcwatch_reset_in_child(gcwatch_state *state)
{
    const pid_t pid = getpid();
    if (pid == state->pid) {
        return false;
    }
    state->pid = pid;
    gcwatch_discard(state);
    state->totals = (ph_gcwatch_status){.subscribers = 0};
    return true;
}

/* gc.callbacks, borrowed; NULL where the gc module has no such list (any more). */
static PyObject *
gcwatch_list(const gcwatch_state *state)
{
    PyObject *dict = PyModule_GetDict(state->gc);
    PyObject *list = PyDict_GetItemWithError(dict, state->key);
    if (list == NULL) {
        PyErr_Clear();
    }
    return list != NULL && PyList_CheckExact(list) ? list : NULL;
}

/* Removes the function from the list, except where it stands the first `keep` times. */
static void
gcwatch_unlist(const gcwatch_state *state, PyObject *list, unsigned keep)
{
    Py_ssize_t i = 0;
    while (list != NULL && i < PyList_GET_SIZE(list)) {
        if (PyList_GET_ITEM(list, i) != state->function || keep > 0) {
            keep -= PyList_GET_ITEM(list, i) == state->function;
            i++;
        } else if (PyList_SetSlice(list, i, i + 1, NULL) < 0) {
            PyErr_Clear();
            return;
        }
    }
}

/* ---- subscribers ----------------------------------------------------------------- */

static void
gcwatch_free_subscriber(gcwatch_subscriber *s)
{
    const nt_alloc system = nt_alloc_system();
    if (s->plain != NULL) {
        s->hooks.discard(s->ctx, s->plain);
    }
    s->hooks.free(s->ctx);
    nt_release(&system, s, sizeof *s);
}

/* Frees the subscribers that were removed, unless a round is under way; the function
 * leaves the list with the last one, but not in the middle of a collection. Freeing may
 * run Python code that comes here again. */
static void
gcwatch_purge(gcwatch_state *state)
{
    size_t i = 0;
    while (state->busy == 0 && i < state->count) {
        gcwatch_subscriber *s = state->subscribers[i];
        if (!s->removed) {
            i++;
            continue;
        }
        state->count--;
        memmove(&state->subscribers[i], &state->subscribers[i + 1],
                (state->count - i) * sizeof(gcwatch_subscriber *));
        gcwatch_free_subscriber(s);
        i = 0;
    }
    if (state->count == 0 && !state->inside) {
        gcwatch_unlist(state, gcwatch_list(state), 0);
    }
}

static gcwatch_subscriber *
gcwatch_find(const gcwatch_state *state, uint64_t id)
{
    for (size_t i = 0; i < state->count; i++) {
        if (state->subscribers[i]->id == id && !state->subscribers[i]->removed) {
            return state->subscribers[i];
        }
    }
    return NULL;
}

/* Those that were not removed. */
static uint32_t
gcwatch_live(const gcwatch_state *state)
{
    uint32_t live = 0;
    for (size_t i = 0; i < state->count; i++) {
        live += !state->subscribers[i]->removed;
    }
    return live;
}

/* ---- an interpreter's watch ------------------------------------------------------ */

PyDoc_STRVAR(gcwatch_doc, "neutracer's watch of the garbage collector.");

/* The function in gc.callbacks: METH_FASTCALL, its self the capsule. */
static PyObject *
gcwatch_call(PyObject *self, PyObject *const *args, Py_ssize_t count);

static PyMethodDef gcwatch_method = {"neutracer_watch",
                                     (PyCFunction)(void (*)(void))gcwatch_call,
                                     METH_FASTCALL, gcwatch_doc};

static void
gcwatch_free(PyObject *capsule)
{
    const nt_alloc system = nt_alloc_system();
    gcwatch_state *state = PyCapsule_GetPointer(capsule, GCWATCH_CAPSULE);
    gcwatch_discard(state);
    while (state->count > 0) {
        gcwatch_free_subscriber(state->subscribers[--state->count]);
    }
    NT_RELEASE(&system, state->subscribers, state->capacity);
    Py_XDECREF(state->key);
    Py_XDECREF(state->gc);
    nt_release(&system, state, sizeof *state);
}

/* The name under which the interpreter's own dict holds the function: one for each copy
 * of this code in the process. New reference. */
static PyObject *
gcwatch_name(void)
{
    return PyUnicode_FromFormat("neutracer.gcwatch.%p", (void *)&gcwatch_method);
}

/* The watch of the running interpreter; NULL, without an exception, where none is. */
static gcwatch_state *
gcwatch_get(void)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *name = dict != NULL ? gcwatch_name() : NULL;
    PyObject *function = name != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    gcwatch_state *state = NULL;
    Py_XDECREF(name);
    if (function != NULL && PyCFunction_Check(function)) {
        PyObject *capsule = PyCFunction_GET_SELF(function);
        state = PyCapsule_GetPointer(capsule, GCWATCH_CAPSULE);
    }
    PyErr_Clear();
    return state;
}

/* A capsule with an empty watch; NULL with an exception. */
static PyObject *
gcwatch_capsule(gcwatch_state **out)
{
    const nt_alloc system = nt_alloc_system();
    gcwatch_state *state = nt_allocate(&system, sizeof *state);
    if (state == NULL) {
        return PyErr_NoMemory();
    }
    *state = (gcwatch_state){.pid = getpid()};
    PyObject *capsule = PyCapsule_New(state, GCWATCH_CAPSULE, gcwatch_free);
    if (capsule == NULL) {
        nt_release(&system, state, sizeof *state);
        return NULL;
    }
    state->gc = PyImport_ImportModule("gc");
    state->key = PyUnicode_InternFromString("callbacks");
    if (state->gc == NULL || state->key == NULL) {
        Py_DECREF(capsule);
        return NULL;
    }
    *out = state;
    return capsule;
}

/* Makes the interpreter's watch; NULL, with an exception set, if that fails. */
static gcwatch_state *
gcwatch_make(void)
{
    gcwatch_state *state = NULL;
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *name = gcwatch_name();
    PyObject *capsule = name != NULL ? gcwatch_capsule(&state) : NULL;
    PyObject *function =
        capsule != NULL ? PyCFunction_New(&gcwatch_method, capsule) : NULL;
    if (dict == NULL || function == NULL || PyDict_SetItem(dict, name, function) < 0) {
        state = NULL;
    } else {
        state->function = function;
    }
    Py_XDECREF(function);
    Py_XDECREF(capsule);
    Py_XDECREF(name);
    return state;
}

static bool
gcwatch_is_listed(const gcwatch_state *state)
{
    PyObject *list = gcwatch_list(state);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        if (PyList_GET_ITEM(list, i) == state->function) {
            return true;
        }
    }
    return false;
}

static nt_status
gcwatch_subscribe(gcwatch_state *state, const ph_gcwatch_hooks *hooks, void *ctx,
                  nt_error *err)
{
    const nt_alloc system = nt_alloc_system();
    PyObject *list = gcwatch_list(state);
    if (list == NULL) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET, "gc.callbacks is not a list");
    }
    NT_TRY(
        NT_GROW(&system, state->subscribers, state->capacity, state->count + 1, err));
    gcwatch_subscriber *s;
    NT_TRY(NT_NEW(&system, s, 1, err));
    if (!gcwatch_is_listed(state) && PyList_Append(list, state->function) < 0) {
        PyErr_Clear();
        nt_release(&system, s, sizeof *s);
        return nt_fail_nomem(err);
    }
    *s = (gcwatch_subscriber){.id = ++gcwatch_last_id, .hooks = *hooks, .ctx = ctx};
    state->subscribers[state->count++] = s;
    return NT_OK;
}

nt_status
ph_gcwatch_add(const ph_gcwatch_hooks *hooks, void *ctx, uint64_t *id, nt_error *err)
{
    NT_TRY(ph_walk_prepare(err));
    gcwatch_state *state = gcwatch_get();
    if (state == NULL) {
        state = gcwatch_make();
    }
    if (state == NULL) {
        PyErr_Clear();
        return nt_fail_nomem(err);
    }
    (void)gcwatch_reset_in_child(state);
    NT_TRY(gcwatch_subscribe(state, hooks, ctx, err));
    *id = gcwatch_last_id;
    return NT_OK;
}

bool
ph_gcwatch_remove(uint64_t id)
{
    gcwatch_state *state = gcwatch_get();
    gcwatch_subscriber *s = state != NULL ? gcwatch_find(state, id) : NULL;
    if (s == NULL) {
        return false;
    }
    s->removed = true;
    gcwatch_purge(state);
    return true;
}

bool
ph_gcwatch_is_on(uint64_t id)
{
    const gcwatch_state *state = gcwatch_get();
    return state != NULL && gcwatch_find(state, id) != NULL;
}

void
ph_gcwatch_get_status(ph_gcwatch_status *out)
{
    gcwatch_state *state = gcwatch_get();
    *out = (ph_gcwatch_status){.subscribers = 0};
    if (state != NULL) {
        (void)gcwatch_reset_in_child(state);
        *out = state->totals;
        out->subscribers = gcwatch_live(state);
        out->listed = gcwatch_is_listed(state);
    }
}

/* ---- what the collector calls ---------------------------------------------------- */

static uint64_t
gcwatch_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- whose turn it is ------------------------------------------------------------ */

static bool
gcwatch_is_last(const gcwatch_state *state, PyObject *list)
{
    const Py_ssize_t size = PyList_GET_SIZE(list);
    return size > 0 && PyList_GET_ITEM(list, size - 1) == state->function;
}

/* Whether this call is the one to work in. A callback after ours could change the heap
 * between our look and the collector's, so we work as the last one: if we are not, we
 * append ourselves, and the collector, which reads the list's size each time round,
 * calls again. Once a phase: somebody else may want the same. */
static bool
gcwatch_has_turn(gcwatch_state *state, bool start, const PyObject *info)
{
    PyObject *list = gcwatch_list(state);
    if (state->turn_info != info || state->turn_start != start) {
        state->turn_info = info;
        state->turn_start = start;
        state->turn_calls = 0;
    }
    if (list != NULL && state->turn_calls++ == 0) {
        /* Entries behind this first one can go without the collector losing its
         * place. */
        gcwatch_unlist(state, list, 1);
        if (PyList_GET_SIZE(list) > 0 && !gcwatch_is_last(state, list)) {
            if (PyList_Append(list, state->function) == 0) {
                return false;
            }
            PyErr_Clear();
        }
    } else if (list != NULL && gcwatch_is_last(state, list)) {
        /* And at the very end, those before it. */
        Py_ssize_t first = 0;
        while (PyList_GET_ITEM(list, first) != state->function) {
            first++;
        }
        if (first < PyList_GET_SIZE(list) - 1 &&
            PyList_SetSlice(list, first, first + 1, NULL) < 0) {
            PyErr_Clear();
        }
    }
    state->turn_info = NULL;
    return true;
}

/* ---- "start" --------------------------------------------------------------------- */

static void
gcwatch_note_refusal(gcwatch_state *state, const nt_error *err)
{
    state->totals.refused++;
    memcpy(state->totals.refusal, err->message, sizeof state->totals.refusal);
}

/* Lets every subscriber look; whether one found something. */
static bool
gcwatch_describe(gcwatch_state *state, const ph_heap *heap, const nt_bitset *dead,
                 uint32_t count)
{
    bool described = false;
    state->busy++;
    for (size_t i = 0; i < state->count; i++) {
        gcwatch_subscriber *s = state->subscribers[i];
        nt_error err = {.offset = NT_NO_OFFSET};
        if (s->removed) {
            continue;
        }
        void *plain = NULL;
        if (s->hooks.describe(s->ctx, heap, dead, count, &plain, &err) != NT_OK) {
            gcwatch_note_refusal(state, &err);
        } else {
            s->plain = plain;
            described |= plain != NULL;
        }
    }
    state->busy--;
    return described;
}

/* Keeps the addresses of what was predicted. */
static nt_status
gcwatch_keep(gcwatch_state *state, const ph_heap *heap, const nt_bitset *dead,
             uint32_t count, nt_error *err)
{
    const nt_alloc system = nt_alloc_system();
    nt_sort_item *items;
    NT_TRY(NT_NEW(&system, items, count, err));
    uint32_t used = 0;
    for (size_t n = nt_bitset_next(dead, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(dead, n + 1)) {
        items[used].key = (uintptr_t)ph_heap_object(heap, (uint32_t)n);
        items[used++].value = 0;
    }
    nt_sort(items, used);
    state->pending.predicted = items;
    state->pending.count = used;
    return NT_OK;
}

static nt_status
gcwatch_look(gcwatch_state *state, unsigned generation, nt_error *err)
{
    ph_heap *heap = NULL;
    nt_bitset dead = {.words = NULL};
    uint32_t count = 0;
    nt_status status;
    NT_TRY_DONE(ph_heap_new((ph_extent)generation, false, &heap, err));
    NT_TRY_DONE(ph_heap_unreachable(heap, &dead, &count, err));
    state->totals.walked += ph_heap_count(heap);
    state->totals.predicted += count;
    if (count > 0 && gcwatch_describe(state, heap, &dead, count)) {
        state->totals.described++;
        NT_TRY_DONE(gcwatch_keep(state, heap, &dead, count, err));
    }
done:
    nt_bitset_clear(&dead);
    ph_heap_free(heap);
    return status;
}

static void
gcwatch_start(gcwatch_state *state, unsigned generation)
{
    const uint64_t begin = gcwatch_now();
    nt_error err = {.offset = NT_NO_OFFSET};
    /* A "stop" that never came: the list was cleared in between. */
    gcwatch_discard(state);
    state->inside = true;
    if (gcwatch_live(state) == 0) {
        return;
    }
    state->totals.collections++;
    if (gcwatch_look(state, generation, &err) != NT_OK) {
        gcwatch_note_refusal(state, &err);
        gcwatch_discard(state);
    }
    const uint64_t pause = gcwatch_now() - begin;
    state->pending.generation = generation;
    state->pending.pause_ns = pause;
    state->totals.spent_ns += pause;
    if (pause > state->totals.longest_ns) {
        state->totals.longest_ns = pause;
    }
}

/* ---- "stop" ---------------------------------------------------------------------- */

/* The place of an address among those predicted; their count if it is none of them. */
static uint32_t
gcwatch_place(const gcwatch_pending *pending, uint64_t address)
{
    uint32_t low = 0, high = pending->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (pending->predicted[middle].key < address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < pending->count && pending->predicted[low].key == address
               ? low
               : pending->count;
}

/* The predicted objects that live on, their addresses first in pending->predicted; the
 * number of them. The collector has put them at the end of the list of the generation
 * that survivors go to, nothing behind them, so as many links are looked at as objects
 * were predicted. An object that got the address of a freed one is in generation 0. */
static uint32_t
gcwatch_survivors(gcwatch_pending *pending, uint64_t *addresses)
{
    ph_gc_lists lists;
    if (!ph_gc_get_lists(&lists)) {
        return 0;
    }
    const unsigned next =
        pending->generation + 1 < PH_GC_GENERATIONS ? pending->generation + 1 : 2;
    const ph_gc_link *head = lists.generations[next];
    const ph_gc_link *link = ph_gc_prev(head);
    uint32_t found = 0;
    for (uint32_t i = 0; i < pending->count && link != head; i++) {
        const uint32_t place = gcwatch_place(pending, (uintptr_t)ph_gc_object(link));
        if (place < pending->count) {
            pending->predicted[place].value = 1;
            found++;
        }
        link = ph_gc_prev(link);
    }
    uint32_t used = 0;
    for (uint32_t i = 0; found > 0 && i < pending->count; i++) {
        if (pending->predicted[i].value != 0) {
            addresses[used++] = pending->predicted[i].key;
        }
    }
    return used;
}

static uint64_t
gcwatch_number(PyObject *info, const char *name)
{
    PyObject *number = PyDict_GetItemString(info, name);
    const long long value =
        number != NULL && PyLong_Check(number) ? PyLong_AsLongLong(number) : 0;
    PyErr_Clear();
    return value > 0 ? (uint64_t)value : 0;
}

/* Tells the exception of a subscriber. Where it is that there was no room left for its
 * call, it saw nothing of the collection. */
static void
gcwatch_note_exception(gcwatch_state *state)
{
    if (PyErr_ExceptionMatches(PyExc_RecursionError)) {
        nt_error err = {.offset = NT_NO_OFFSET};
        (void)nt_fail(&err, NT_REFUSED, NT_NO_OFFSET,
                      "the recursion limit was too near to report what was found");
        gcwatch_note_refusal(state, &err);
    }
    PyErr_WriteUnraisable(state->function);
}

/* Hands on what was described. Any Python code may run, so a subscriber is looked for
 * anew each time and may be gone; a fork ends the round in the child. */
static void
gcwatch_deliver(gcwatch_state *state, const ph_collection *collection)
{
    state->busy++;
    for (size_t i = 0; i < state->count && !gcwatch_reset_in_child(state); i++) {
        gcwatch_subscriber *s = state->subscribers[i];
        void *plain = s->plain;
        s->plain = NULL;
        if (plain == NULL) {
            continue;
        }
        if (s->removed) {
            s->hooks.discard(s->ctx, plain);
        } else if (s->hooks.deliver(s->ctx, plain, collection) < 0 ||
                   PyErr_Occurred()) {
            gcwatch_note_exception(state);
        }
    }
    state->busy--;
}

static void
gcwatch_stop(gcwatch_state *state, PyObject *info)
{
    const nt_alloc system = nt_alloc_system();
    gcwatch_pending pending = state->pending;
    state->pending = (gcwatch_pending){.predicted = NULL};
    if (pending.predicted != NULL) {
        const uint64_t begin = gcwatch_now();
        const size_t bytes = pending.count * sizeof(uint64_t);
        uint64_t *addresses = nt_allocate(&system, bytes);
        ph_collection collection = {.number = state->totals.collections,
                                    .generation = pending.generation,
                                    .predicted = pending.count,
                                    .survivors = addresses,
                                    .collected = gcwatch_number(info, "collected"),
                                    .uncollectable =
                                        gcwatch_number(info, "uncollectable"),
                                    .pause_ns = pending.pause_ns};
        if (addresses != NULL) {
            collection.survivor_count = gcwatch_survivors(&pending, addresses);
            state->totals.survivors += collection.survivor_count;
            state->totals.spent_ns += gcwatch_now() - begin;
            gcwatch_deliver(state, &collection);
        } else {
            nt_error err = {.offset = NT_NO_OFFSET};
            (void)nt_fail_nomem(&err);
            gcwatch_note_refusal(state, &err);
        }
        nt_release(&system, addresses, bytes);
        NT_RELEASE(&system, pending.predicted, pending.count);
    }
    gcwatch_discard(state);
    state->inside = false;
    gcwatch_purge(state);
}

/* ---- the function ---------------------------------------------------------------- */

static PyObject *
gcwatch_call(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    gcwatch_state *state = PyCapsule_GetPointer(self, GCWATCH_CAPSULE);
    if (state == NULL) {
        return NULL;
    }
    if (count != 2 || !PyUnicode_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "only the garbage collector calls this");
        return NULL;
    }
    const bool start = PyUnicode_CompareWithASCIIString(args[0], "start") == 0;
    (void)gcwatch_reset_in_child(state);
    if (!gcwatch_has_turn(state, start, args[1])) {
        Py_RETURN_NONE;
    }
    if (ph_is_tearing_down()) {
        gcwatch_discard(state);
    } else if (start) {
        const uint64_t generation = gcwatch_number(args[1], "generation");
        gcwatch_start(state, generation < PH_FULL ? (unsigned)generation : PH_FULL);
    } else {
        gcwatch_stop(state, args[1]);
    }
    Py_RETURN_NONE;
}

bool
ph_collection_survived(const ph_collection *collection, uint64_t object)
{
    uint32_t low = 0, high = collection->survivor_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (collection->survivors[middle] == object) {
            return true;
        }
        if (collection->survivors[middle] < object) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return false;
}
