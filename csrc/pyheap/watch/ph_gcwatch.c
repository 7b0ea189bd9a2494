/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/ph_gcwatch.h"

#include <string.h>
#include <unistd.h>

#include "watch/ph_gcwatch_state.h"

static uint64_t gcwatch_last_id; /* guard: the GIL */

static void
gcwatch_forget_pending(gcwatch_state *state)
{
    const nt_alloc system = nt_alloc_system();
    nt_release(&system, state->pending.predicted,
               state->pending.count * sizeof(nt_sort_item));
    state->pending = (gcwatch_pending){.predicted = NULL};
}

void
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

bool
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

PyObject *
gcwatch_list(const gcwatch_state *state)
{
    PyObject *dict = PyModule_GetDict(state->gc);
    PyObject *list = PyDict_GetItemWithError(dict, state->key);
    if (list == NULL) {
        PyErr_Clear();
    }
    return list != NULL && PyList_CheckExact(list) ? list : NULL;
}

void
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

void
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

uint32_t
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
    nt_release(&system, state->subscribers,
               state->capacity * sizeof(gcwatch_subscriber *));
    Py_XDECREF(state->key);
    Py_XDECREF(state->gc);
    nt_release(&system, state, sizeof *state);
}

/* The name under which the interpreter's own dict holds the function: one for each
 * copy of this code in the process. New reference. */
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
    NT_TRY(nt_grow(&system, (void **)&state->subscribers, &state->capacity,
                   state->count + 1, sizeof(gcwatch_subscriber *), err));
    gcwatch_subscriber *s = nt_allocate(&system, sizeof *s);
    if (s == NULL) {
        return nt_fail_nomem(err);
    }
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
