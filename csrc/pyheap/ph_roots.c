/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_roots.h"

#include <stdio.h>
#include <string.h>

#include "compat/py_compat_frames.h"

typedef struct roots_round {
    ph_join *join;
    const char *own;
    size_t own_length;
    bool asking; /* the frames so far are whoever is asking */
    uint64_t thread;
    uint32_t node;     /* of the thread; NT_NONE before it has one */
    nt_bitset *spaces; /* namespaces that a module keeps */
    nt_error *err;
    nt_status status;
} roots_round;

/* UTF-8 of a str; "" for what has none (a lone surrogate). */
static const char *
roots_text(PyObject *text)
{
    const char *utf8 = NULL;
    if (text != NULL && PyUnicode_Check(text)) {
        utf8 = PyUnicode_AsUTF8(text);
        if (utf8 == NULL) {
            PyErr_Clear();
        }
    }
    return utf8 == NULL ? "" : utf8;
}

static void
roots_link(roots_round *round, uint32_t source, PyObject *object, ph_edge_kind kind,
           const char *name)
{
    const uint32_t node =
        object == NULL ? NT_NONE : ph_heap_find(round->join->heap, object);
    if (node != NT_NONE && round->status == NT_OK) {
        round->status = ph_join_link(round->join, source, node, kind, name, round->err);
    }
}

/* What stands at a place among a frame's values. */
static void
roots_link_value(roots_round *round, uint32_t source, const py_compat_frame *frame,
                 Py_ssize_t at)
{
    bool held;
    PyObject *value = py_compat_frame_value(frame, at, &held);
    const uint32_t node =
        value == NULL ? NT_NONE : ph_heap_find(round->join->heap, value);
    if (node == NT_NONE || round->status != NT_OK) {
        return;
    }
    PyObject *name = at < frame->named ? py_compat_local_name(frame->code, at) : NULL;
    const ph_edge_kind kind = name == NULL ? PH_EDGE_OTHER : PH_EDGE_LOCAL;
    const char *text = name == NULL ? "a value in use" : roots_text(name);
    round->status =
        held ? ph_join_link(round->join, source, node, kind, text, round->err)
             : ph_join_borrow(round->join, source, node, kind, text, round->err);
}

/* A namespace without a module: what exec runs in. */
static void
roots_link_space(roots_round *round, uint32_t source, PyObject *space, const char *name)
{
    const uint32_t node =
        space == NULL ? NT_NONE : ph_heap_find(round->join->heap, space);
    if (node != NT_NONE && !nt_bitset_has(round->spaces, node)) {
        roots_link(round, source, space, PH_EDGE_FIELD, name);
    }
}

static bool
roots_is_asking(roots_round *round, const py_compat_frame *frame)
{
    round->asking = round->asking && strncmp(roots_text(frame->code->co_filename),
                                             round->own, round->own_length) == 0;
    return round->asking;
}

static int
roots_frame(void *ctx, const py_compat_frame *frame)
{
    roots_round *round = ctx;
    const bool asked = round->asking;
    if (roots_is_asking(round, frame)) {
        return 0;
    }
    if (asked && !frame->whole) {
        /* Called by way of C, which keeps the arguments until the call is over. */
        round->join->call_references = 1;
    }
    PyObject *function = (PyObject *)frame->code->co_name;
#if PY_VERSION_HEX >= 0x030B0000
    function = frame->code->co_qualname;
#endif
    char label[PH_NAME_BYTES + 16];
    (void)snprintf(label, sizeof label, "frame of %.*s", PH_NAME_BYTES,
                   roots_text(function));
    uint32_t node;
    round->status =
        ph_join_add(round->join, label, roots_text(frame->code->co_filename),
                    frame->line, round->thread, &node, round->err);
    if (round->status != NT_OK) {
        return 1;
    }
    for (Py_ssize_t at = 0; at < frame->count; at++) {
        roots_link_value(round, node, frame, at);
    }
    if (frame->code->co_flags & CO_OPTIMIZED) {
        roots_link(round, node, frame->function, PH_EDGE_FIELD, "the function it runs");
    }
    roots_link_space(round, node, frame->locals, "f_locals");
    roots_link_space(round, node, frame->globals, "f_globals");
    return round->status != NT_OK;
}

static int
roots_held(void *ctx, const char *name, PyObject *object)
{
    roots_round *round = ctx;
    if (ph_heap_find(round->join->heap, object) == NT_NONE) {
        return 0;
    }
    if (round->node == NT_NONE) {
        round->status = ph_join_add(round->join, "thread", "", 0, round->thread,
                                    &round->node, round->err);
        if (round->status != NT_OK) {
            return 1;
        }
    }
    roots_link(round, round->node, object, PH_EDGE_FIELD, name);
    return round->status != NT_OK;
}

/* Calls `visit` with each value of sys.modules that the walk has. */
static void
roots_each_module(const ph_join *join, void (*visit)(void *, uint32_t, PyObject *),
                  void *ctx)
{
    PyObject *modules = PyImport_GetModuleDict(), *module;
    Py_ssize_t at = 0;
    while (modules != NULL && PyDict_Next(modules, &at, NULL, &module)) {
        const uint32_t node = ph_heap_find(join->heap, module);
        if (node != NT_NONE) {
            visit(ctx, node, module);
        }
    }
}

static void
roots_space(void *ctx, uint32_t Py_UNUSED(node), PyObject *module)
{
    roots_round *round = ctx;
    if (PyModule_Check(module)) {
        const uint32_t space =
            ph_heap_find(round->join->heap, PyModule_GetDict(module));
        if (space != NT_NONE) {
            nt_bitset_add(round->spaces, space);
        }
    }
}

nt_status
ph_roots_add(ph_join *join, const char *own, nt_error *err)
{
    nt_bitset spaces = {.words = NULL};
    roots_round round = {.join = join,
                         .own = own,
                         .own_length = strlen(own),
                         .spaces = &spaces,
                         .err = err};
    NT_TRY(nt_bitset_init(&spaces, join->alloc, join->walked, err));
    roots_each_module(join, roots_space, &round);
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(here->interp);
    for (; thread != NULL && round.status == NT_OK;
         thread = PyThreadState_Next(thread)) {
        round.asking = thread == here;
        round.thread = thread->thread_id;
        round.node = NT_NONE;
        (void)py_compat_each_frame(thread, roots_frame, &round);
        if (round.status == NT_OK) {
            (void)py_compat_each_held(thread, roots_held, &round);
        }
    }
    nt_bitset_clear(&spaces);
    return round.status;
}

static void
roots_module(void *ctx, uint32_t node, PyObject *Py_UNUSED(module))
{
    nt_bitset_add(ctx, node);
}

nt_status
ph_roots_mark(const ph_join *join, nt_bitset *roots, nt_error *err)
{
    NT_TRY(nt_bitset_init(roots, join->alloc, join->graph.node_count, err));
    for (uint32_t node = join->walked; node < join->graph.node_count; node++) {
        nt_bitset_add(roots, node);
    }
    roots_each_module(join, roots_module, roots);
    return NT_OK;
}
