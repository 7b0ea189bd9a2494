/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/ph_gcwatch_state.h"

#include <string.h>
#include <time.h>

#include "compat/py_compat.h"

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

/*
 * Whether this call is the one to work in. A callback after ours could change the heap
 * between our look and the collector's, so we work as the last one: if we are not, we
 * append ourselves, and the collector, which reads the list's size each time round,
 * calls again. Once a phase: somebody else may want the same.
 */
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
    nt_sort_item *items = nt_allocate(&system, count * sizeof *items);
    if (items == NULL) {
        return nt_fail_nomem(err);
    }
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

/*
 * The predicted objects that live on, their addresses first in pending->predicted; the
 * number of them. The collector has put them at the end of the list of the generation
 * that survivors go to, nothing behind them, so as many links are looked at as objects
 * were predicted. An object that got the address of a freed one is in generation 0.
 */
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
        nt_release(&system, pending.predicted, pending.count * sizeof(nt_sort_item));
    }
    gcwatch_discard(state);
    state->inside = false;
    gcwatch_purge(state);
}

/* ---- the function ---------------------------------------------------------------- */

PyObject *
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
