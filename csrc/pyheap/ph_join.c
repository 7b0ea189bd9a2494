/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_join.h"

#include <string.h>

#include "base/nt_sort.h"

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
    nt_release(alloc, join->added, join->added_capacity * sizeof *join->added);
    nt_release(alloc, join->links, join->link_capacity * sizeof *join->links);
    nt_release(alloc, join->links_in, join->walked * sizeof *join->links_in);
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
join_copy(ph_join *join, const char *text, const char **copy, nt_error *err)
{
    *copy = (const char *)nt_arena_copy(&join->arena, text, strlen(text) + 1);
    return *copy == NULL ? nt_fail_nomem(err) : NT_OK;
}

nt_status
ph_join_add(ph_join *join, const char *label, const char *file, int line,
            uint64_t thread, uint32_t *node, nt_error *err)
{
    ph_added added = {.line = line, .thread = thread};
    NT_TRY(join_copy(join, label, &added.label, err));
    NT_TRY(join_copy(join, file, &added.file, err));
    NT_TRY(nt_grow(&join->alloc, (void **)&join->added, &join->added_capacity,
                   join->added_count + 1, sizeof *join->added, err));
    join->added[join->added_count] = added;
    *node = join->walked + (uint32_t)join->added_count++;
    return NT_OK;
}

static nt_status
join_append(ph_join *join, ph_link link, nt_error *err)
{
    NT_TRY(join_copy(join, link.name, &link.name, err));
    NT_TRY(nt_grow(&join->alloc, (void **)&join->links, &join->link_capacity,
                   join->link_count + 1, sizeof *join->links, err));
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
    nt_release(&join->alloc, items, count * sizeof *items);
    nt_release(&join->alloc, sorted, count * sizeof *sorted);
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
    join->links_in = nt_allocate(&join->alloc, join->walked * sizeof *join->links_in);
    if (join->links_in == NULL) {
        return nt_fail_nomem(err);
    }
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

/*
 * Of `left` references that the walk does not show: a tensor that C++ holds, however
 * often, costs one; so does a node of PyTorch's graph that is an object of Python. An
 * attribute that a tensor hides is one reference each. A dict of hooks is held by the
 * tensor and by C++.
 */
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
