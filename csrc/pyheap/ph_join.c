/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nt_sort.h"
#include "py_compat_objects.h"

nt_status
ph_join_init(ph_join *join, const ph_heap *heap, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    *join = (ph_join){.heap = heap, .alloc = alloc, .walked = ph_heap_count(heap)};
    nt_arena_init(&join->arena, alloc);
    NT_TRY(nt_bitset_init(&join->hidden, alloc, join->walked, err));
    return nt_bitset_init(&join->autograd, alloc, join->walked, err);
}

void
ph_join_clear(ph_join *join)
{
    const nt_alloc *alloc = &join->alloc;
    if (alloc->resize == NULL) {
        return;
    }
    NT_RELEASE(alloc, join->added, join->added_capacity);
    NT_RELEASE(alloc, join->links, join->link_capacity);
    NT_RELEASE(alloc, join->links_in, join->walked);
    nt_bitset_clear(&join->hidden);
    nt_bitset_clear(&join->autograd);
    if (join->graph.first != NULL) {
        nt_graph_clear(&join->graph);
    }
    nt_arena_clear(&join->arena);
    *join = (ph_join){.heap = NULL};
}

void
ph_join_hide(ph_join *join, PyObject *object)
{
    const uint32_t node = ph_heap_find(join->heap, object);
    if (node != NT_NONE) {
        nt_bitset_add(&join->hidden, node);
    }
}

PyObject *
ph_join_object(const ph_join *join, uint32_t node)
{
    return node < join->walked ? ph_heap_object(join->heap, node) : NULL;
}

static nt_status
join_copy(nt_arena *arena, const char *text, const char **copy, nt_error *err)
{
    *copy = (const char *)nt_arena_copy(arena, text, strlen(text) + 1);
    return *copy == NULL ? nt_fail_nomem(err) : NT_OK;
}

nt_status
ph_join_add(ph_join *join, const char *label, const char *file, int line,
            uint64_t thread, uint32_t *node, nt_error *err)
{
    ph_added added = {.line = line, .thread = thread};
    NT_TRY(join_copy(&join->arena, label, &added.label, err));
    NT_TRY(join_copy(&join->arena, file, &added.file, err));
    NT_TRY(NT_GROW(&join->alloc, join->added, join->added_capacity,
                   join->added_count + 1, err));
    join->added[join->added_count] = added;
    *node = join->walked + (uint32_t)join->added_count++;
    return NT_OK;
}

static nt_status
join_append(ph_join *join, ph_link link, nt_error *err)
{
    NT_TRY(join_copy(&join->arena, link.name, &link.name, err));
    NT_TRY(NT_GROW(&join->alloc, join->links, join->link_capacity, join->link_count + 1,
                   err));
    join->links[join->link_count++] = link;
    return NT_OK;
}

nt_status
ph_join_link(ph_join *join, uint32_t source, uint32_t target, ph_edge_kind kind,
             const char *name, nt_error *err)
{
    const ph_link link = {
        .source = source, .target = target, .kind = kind, .name = name};
    return join_append(join, link, err);
}

nt_status
ph_join_borrow(ph_join *join, uint32_t source, uint32_t target, ph_edge_kind kind,
               const char *name, nt_error *err)
{
    const ph_link link = {.source = source,
                          .target = target,
                          .kind = kind,
                          .borrowed = true,
                          .name = name};
    return join_append(join, link, err);
}

/* ---- what tensors hide ----------------------------------------------------------- */

typedef struct join_round {
    ph_join *join;
    uint32_t source;
    nt_error *err;
    nt_status status;
} join_round;

static int
join_visit(void *ctx, PyObject *target, ph_edge_kind kind, const char *name)
{
    join_round *round = ctx;
    const uint32_t node = ph_heap_find(round->join->heap, target);
    if (node == NT_NONE ||
        (kind != PH_EDGE_ATTRIBUTE && kind != PH_EDGE_INSTANCE_DICT)) {
        return 0;
    }
    round->status =
        ph_join_link(round->join, round->source, node, kind, name, round->err);
    return round->status != NT_OK;
}

nt_status
ph_join_tensors(ph_join *join, nt_error *err)
{
    if (!ph_tensor_ready()) {
        return NT_OK;
    }
    for (uint32_t node = 0; node < join->walked; node++) {
        PyObject *object = ph_heap_object(join->heap, node);
        ph_tensor tensor;
        if (ph_tensor_check(object) && ph_tensor_read(object, &tensor) &&
            tensor.use_count > 1) {
            join_round round = {.join = join, .source = node, .err = err};
            (void)ph_names_each(object, join_visit, &round);
            NT_TRY(round.status);
        }
    }
    return NT_OK;
}

/* ---- the graph ------------------------------------------------------------------- */

static nt_status
join_sort(ph_join *join, nt_error *err)
{
    const size_t count = join->link_count;
    nt_sort_item *items = nt_allocate(&join->alloc, count * sizeof *items);
    ph_link *sorted = nt_allocate(&join->alloc, count * sizeof *sorted);
    const bool made = items != NULL && sorted != NULL;
    for (size_t i = 0; made && i < count; i++) {
        const ph_link *link = &join->links[i];
        items[i].key = link->source; /* of equal ones the first told stays first */
        items[i].value = (uint32_t)i;
    }
    if (made) {
        nt_sort(items, count);
        for (size_t i = 0; i < count; i++) {
            sorted[i] = join->links[items[i].value];
        }
        memcpy(join->links, sorted, count * sizeof *sorted);
    }
    NT_RELEASE(&join->alloc, items, count);
    NT_RELEASE(&join->alloc, sorted, count);
    return made ? NT_OK : nt_fail_nomem(err);
}

static bool
join_walk_shows(const nt_graph *walk, uint32_t source, uint32_t target)
{
    for (uint32_t e = walk->first[source]; e < walk->first[source + 1]; e++) {
        if (walk->targets[e] == target) {
            return true;
        }
    }
    return false;
}

/* Marks what the collector sees too, and counts what C++ holds. */
static nt_status
join_judge(ph_join *join, const nt_graph *walk, nt_error *err)
{
    NT_TRY(NT_NEW(&join->alloc, join->links_in, join->walked, err));
    memset(join->links_in, 0, join->walked * sizeof *join->links_in);
    for (size_t i = 0; i < join->link_count; i++) {
        ph_link *link = &join->links[i];
        if (link->source < join->walked && link->target < join->walked) {
            link->seen = join_walk_shows(walk, link->source, link->target);
            join->links_in[link->target] += link->kind == PH_EDGE_AUTOGRAD;
        }
    }
    return NT_OK;
}

static nt_status
join_build(ph_join *join, const nt_graph *walk, nt_error *err)
{
    const uint32_t count = join->walked + (uint32_t)join->added_count;
    uint64_t edges = join->link_count;
    for (uint32_t n = 0; n < join->walked; n++) {
        if (!nt_bitset_has(&join->hidden, n)) {
            edges += walk->first[n + 1] - walk->first[n];
        }
    }
    if (edges > UINT32_MAX) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 references");
    }
    NT_TRY(nt_graph_init(&join->graph, &join->alloc, count, (uint32_t)edges, err));
    uint32_t *first = join->graph.first, *targets = join->graph.targets, at = 0;
    size_t link = 0;
    for (uint32_t n = 0; n < count; n++) {
        first[n] = at;
        if (n < join->walked && !nt_bitset_has(&join->hidden, n)) {
            const uint32_t length = walk->first[n + 1] - walk->first[n];
            memcpy(targets + at, walk->targets + walk->first[n],
                   length * sizeof *targets);
            at += length;
        }
        for (; link < join->link_count && join->links[link].source == n; link++) {
            targets[at++] = join->links[link].target;
        }
    }
    first[count] = at;
    return NT_OK;
}

nt_status
ph_join_close(ph_join *join, nt_error *err)
{
    const nt_graph *walk = ph_heap_graph(join->heap);
    if (join->walked == 0) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET, "a heap without objects");
    }
    if (join->link_count > 0) {
        NT_TRY(join_sort(join, err));
    }
    NT_TRY(join_judge(join, walk, err));
    return join_build(join, walk, err);
}

bool
ph_join_cut(ph_join *join, uint32_t source, uint32_t target)
{
    for (uint32_t e = join->graph.first[source]; e < join->graph.first[source + 1];
         e++) {
        if (join->graph.targets[e] == target) {
            /* A reference to itself leads nowhere. */
            join->graph.targets[e] = source;
            return true;
        }
    }
    return false;
}

const ph_link *
ph_join_find_link(const ph_join *join, uint32_t source, uint32_t target)
{
    size_t low = 0, high = join->link_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (join->links[middle].source < source) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < join->link_count && join->links[low].source == source; low++) {
        if (join->links[low].target == target) {
            return &join->links[low];
        }
    }
    return NULL;
}

/* ---- what is not accounted for --------------------------------------------------- */

/* Whether a reference is counted where the walk does not show it. */
static bool
join_is_hidden(const ph_link *link)
{
    return !link->seen && !link->borrowed && link->kind != PH_EDGE_AUTOGRAD;
}

/* Of `left` references that the walk does not show: a tensor that C++ holds, however
 * often, costs one; so does a node of PyTorch's graph that is an object of Python. An
 * attribute that a tensor hides is one reference each. A dict of hooks is held by the
 * tensor and by C++. */
static uint64_t
join_forgive(const ph_join *join, uint32_t node, uint64_t left, uint32_t hidden_links)
{
    uint64_t known = hidden_links;
    if (join->links_in[node] > 0) {
        const bool hooks = PyDict_Check(ph_heap_object(join->heap, node));
        known += hooks ? 2 : 1;
    }
    return left > known ? left - known : 0;
}

static uint64_t
join_native(const ph_join *join, uint32_t node)
{
    PyObject *object = ph_heap_object(join->heap, node);
    ph_tensor tensor;
    if (!ph_tensor_ready() || !ph_tensor_check(object) ||
        !ph_tensor_read(object, &tensor)) {
        return 0;
    }
    const uint64_t known = (uint64_t)join->links_in[node] + 1;
    return tensor.use_count > known ? tensor.use_count - known : 0;
}

void
ph_join_unexplained(const ph_join *join, uint32_t node, uint64_t *python,
                    uint64_t *native)
{
    uint32_t hidden_links = 0;
    for (size_t i = 0; i < join->link_count; i++) {
        const ph_link *link = &join->links[i];
        hidden_links += link->target == node && join_is_hidden(link);
    }
    *native = join_native(join, node);
    const uint64_t left = join_forgive(
        join, node, ph_heap_references_left(join->heap, node), hidden_links);
    /* What C++ holds besides the links costs one reference too. */
    *python = left > 0 && *native > 0 && join->links_in[node] == 0 ? left - 1 : left;
}

nt_status
ph_join_outside(const ph_join *join, nt_bitset *outside, nt_error *err)
{
    const size_t bytes = (size_t)join->walked * sizeof(uint32_t);
    uint32_t *hidden_links = nt_allocate(&join->alloc, bytes);
    nt_status status = NT_OK;
    if (hidden_links == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    NT_TRY_DONE(nt_bitset_init(outside, join->alloc, join->graph.node_count, err));
    memset(hidden_links, 0, bytes);
    for (size_t i = 0; i < join->link_count; i++) {
        const ph_link *link = &join->links[i];
        if (link->source < join->walked && link->target < join->walked) {
            hidden_links[link->target] += join_is_hidden(link);
        }
    }
    for (uint32_t node = 0; node < join->walked; node++) {
        const uint64_t left = ph_heap_references_left(join->heap, node);
        if (left > 0 && (join_forgive(join, node, left, hidden_links[node]) > 0 ||
                         join_native(join, node) > 0)) {
            nt_bitset_add(outside, node);
        }
    }
done:
    nt_release(&join->alloc, hidden_links, bytes);
    return status;
}

/* ---- what cycles are looked for in ----------------------------------------------- */

static void
join_leave_out(const ph_join *join, nt_bitset *within, PyObject *object)
{
    const uint32_t node = object == NULL ? NT_NONE : ph_heap_find(join->heap, object);
    if (node != NT_NONE) {
        nt_bitset_remove(within, node);
    }
}

nt_status
ph_join_within(const ph_join *join, nt_bitset *within, uint32_t *cut, nt_error *err)
{
    NT_TRY(nt_bitset_init(within, join->alloc, join->graph.node_count, err));
    for (uint32_t node = 0; node < join->walked; node++) {
        PyObject *object = ph_heap_object(join->heap, node);
        if (!PyType_Check(object) && !PyModule_Check(object) &&
            !nt_bitset_has(&join->hidden, node)) {
            nt_bitset_add(within, node);
        }
    }
    for (uint32_t node = 0; node < join->walked; node++) {
        PyObject *object = ph_heap_object(join->heap, node);
        if (PyModule_Check(object)) {
            join_leave_out(join, within, PyModule_GetDict(object));
        } else if (PyFunction_Check(object)) {
            /* What runs by exec has a namespace without a module. */
            join_leave_out(join, within, PyFunction_GET_GLOBALS(object));
        }
    }
    uint32_t left = 0;
    for (uint32_t node = 0; node < join->walked; node++) {
        left += !nt_bitset_has(within, node);
    }
    *cut = left;
    return NT_OK;
}

/* ---- what keeps objects alive by itself ------------------------------------------ */

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

/* ---- a way through a join -------------------------------------------------------- */

static nt_status
way_added(const ph_join *join, uint32_t number, nt_arena *arena, ph_node *node,
          nt_error *err)
{
    const ph_added *added = &join->added[number - join->walked];
    *node =
        (ph_node){.type = "", .kind = PH_NODE_ROOT, .line = added->line, .count = 1};
    NT_TRY(join_copy(arena, added->label, &node->label, err));
    return join_copy(arena, added->file, &node->file, err);
}

static nt_status
way_node(const ph_join *join, uint32_t number, nt_arena *arena, ph_node *node,
         nt_error *err)
{
    PyObject *object = ph_join_object(join, number);
    if (object == NULL) {
        return way_added(join, number, arena, node, err);
    }
    ph_label label;
    ph_names_label(object, &label);
    *node = (ph_node){.kind = label.kind,
                      .line = label.line,
                      .count = 1,
                      .is_strong = label.is_strong};
    if (nt_bitset_has(&join->autograd, number)) {
        node->kind = PH_NODE_AUTOGRAD;
    } else if (node->kind == PH_NODE_TENSOR && !ph_tensor_read(object, &node->tensor)) {
        node->kind = PH_NODE_OBJECT;
    }
    NT_TRY(join_copy(arena, label.type, &node->type, err));
    NT_TRY(join_copy(arena, label.text, &node->label, err));
    return join_copy(arena, label.file, &node->file, err);
}

/* A cell is known by its variable where the way comes from the function. */
static const char *
way_variable(const ph_join *join, const uint32_t *nodes, uint32_t at,
             const ph_edge *edges)
{
    if (at < 2 || edges[at].kind != PH_EDGE_CELL ||
        edges[at - 1].kind != PH_EDGE_ITEM || edges[at - 2].kind != PH_EDGE_CLOSURE) {
        return "";
    }
    PyObject *function = ph_join_object(join, nodes[at - 2]);
    return function == NULL ? "" : ph_names_cell(function, atol(edges[at - 1].name));
}

static nt_status
way_edge(const ph_join *join, const uint32_t *nodes, uint32_t count, uint32_t at,
         nt_arena *arena, ph_edge *edges, nt_error *err)
{
    const uint32_t source = nodes[at], target = nodes[(at + 1) % count];
    ph_edge *edge = &edges[at];
    *edge = (ph_edge){.source = at, .target = (at + 1) % count, .name = ""};
    const ph_link *link = ph_join_find_link(join, source, target);
    PyObject *object = ph_join_object(join, source);
    if (link != NULL) {
        edge->kind = link->kind;
        return join_copy(arena, link->name, &edge->name, err);
    }
    if (object == NULL) {
        return NT_OK;
    }
    char name[PH_NAME_BYTES];
    (void)ph_names_find(object, ph_join_object(join, target), &edge->kind, name);
    const char *variable = way_variable(join, nodes, at, edges);
    return join_copy(arena, variable[0] != '\0' ? variable : name, &edge->name, err);
}

static nt_status
way_room(nt_arena *arena, uint32_t count, ph_way *way, nt_error *err)
{
    way->nodes = nt_arena_take(arena, count * sizeof *way->nodes, _Alignof(ph_node));
    way->edges = nt_arena_take(arena, count * sizeof *way->edges, _Alignof(ph_edge));
    way->threads = nt_arena_take(arena, count * sizeof *way->threads, 8);
    const bool made = way->nodes != NULL && way->edges != NULL && way->threads != NULL;
    return made ? NT_OK : nt_fail_nomem(err);
}

/* Puts one node in the place of all beyond the first and the last half. */
static void
way_fold(ph_way *way)
{
    const uint32_t half = PH_WAY_NODES / 2, out = way->count - PH_WAY_NODES;
    way->nodes[half] = (ph_node){
        .type = "", .label = "", .file = "", .kind = PH_NODE_FOLDED, .count = out + 1};
    way->threads[half] = 0;
    for (uint32_t at = half + 1; at < PH_WAY_NODES; at++) {
        way->nodes[at] = way->nodes[at + out];
        way->threads[at] = way->threads[at + out];
    }
    const bool closed = way->edge_count == way->count;
    way->count = PH_WAY_NODES;
    way->edge_count = closed ? PH_WAY_NODES : PH_WAY_NODES - 1;
    for (uint32_t at = half; at < way->edge_count; at++) {
        way->edges[at] = way->edges[at + out];
        way->edges[at].source = at;
        way->edges[at].target = (at + 1) % way->count;
    }
    way->edges[half - 1].target = half;
}

nt_status
ph_way_make(const ph_join *join, const uint32_t *nodes, uint32_t count, bool closed,
            nt_arena *arena, ph_way *way, nt_error *err)
{
    ph_way made = {.count = count, .edge_count = closed ? count : count - 1};
    NT_TRY(way_room(arena, count, &made, err));
    for (uint32_t at = 0; at < count; at++) {
        NT_TRY(way_node(join, nodes[at], arena, &made.nodes[at], err));
        made.threads[at] =
            nodes[at] < join->walked ? 0 : join->added[nodes[at] - join->walked].thread;
        if (at < made.edge_count) {
            NT_TRY(way_edge(join, nodes, count, at, arena, made.edges, err));
            made.edges[at].in_cycle = closed;
        }
    }
    if (count > PH_WAY_NODES) {
        way_fold(&made);
    }
    *way = made;
    return NT_OK;
}
