/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_join.h"

#include <string.h>

#include "base/nt_map.h"
#include "base/nt_sort.h"

/* References of one component that a shortest way round is looked for through. */
#define MOST_TRIED 8

/* Tensors of one component that are told one by one. */
#define MOST_KEPT 5

typedef struct loop_entry {
    uint32_t component;
    uint32_t objects;
    uint32_t tensors;
    uint64_t bytes;
    bool hidden;
    bool alive;
    bool behind; /* kept by one that nothing frees */
    const ph_link *tried[MOST_TRIED];
    uint32_t tried_count;
    ph_device_bytes devices[PH_MOST_DEVICES];
    uint32_t device_count;
    uint32_t kept[MOST_KEPT]; /* the largest first */
    uint64_t kept_bytes[MOST_KEPT];
    uint32_t kept_count;
} loop_entry;

typedef struct loop_search {
    const ph_join *join;
    nt_alloc alloc;
    nt_bitset within;
    nt_bitset living; /* what modules and frames lead to */
    uint32_t *component;
    uint32_t *owner;
    uint32_t components;
    nt_map index; /* component -> entry */
    loop_entry *entries;
    size_t count;
    size_t capacity;
    nt_map storages; /* seen */
    uint32_t *inner; /* of a node: links of C++ that lead to it inside of a component */
    uint32_t *before; /* of a node, in a search: the one that it was reached from */
    uint32_t *queue;
} loop_search;

static uint32_t
loop_node_count(const loop_search *s)
{
    return s->join->graph.node_count;
}

static nt_status
loop_room(loop_search *s, nt_error *err)
{
    const size_t bytes = (size_t)loop_node_count(s) * sizeof(uint32_t);
    s->component = nt_allocate(&s->alloc, bytes);
    s->owner = nt_allocate(&s->alloc, bytes);
    s->inner = nt_allocate(&s->alloc, bytes);
    s->before = nt_allocate(&s->alloc, bytes);
    s->queue = nt_allocate(&s->alloc, bytes);
    return s->component == NULL || s->owner == NULL || s->inner == NULL ||
                   s->before == NULL || s->queue == NULL
               ? nt_fail_nomem(err)
               : NT_OK;
}

/* ---- which components ------------------------------------------------------------ */

static nt_status
loop_entry_of(loop_search *s, uint32_t component, loop_entry **out, nt_error *err)
{
    uint32_t at = nt_map_find(&s->index, component);
    if (at == NT_NONE) {
        at = (uint32_t)s->count;
        NT_TRY(NT_GROW(&s->alloc, s->entries, s->capacity, s->count + 1, err));
        NT_TRY(nt_map_set(&s->index, component, at, err));
        s->entries[s->count++] = (loop_entry){.component = component};
    }
    *out = &s->entries[at];
    return NT_OK;
}

/* Whether a link joins two nodes of one component. */
static bool
loop_is_inner(const loop_search *s, const ph_link *link)
{
    const uint32_t component = s->component[link->source];
    return link->kind == PH_EDGE_AUTOGRAD && component != NT_NONE &&
           component == s->component[link->target];
}

/* Whether the collector would see a link once all else let go of the cycle. It is shown
 * a tensor's hooks, and the ctx of a Function written in Python, as soon as nothing but
 * the tensor holds the one, and nothing in C++ the other. */
static bool
loop_shows(const loop_search *s, const ph_link *link)
{
    if (link->seen) {
        return true;
    }
    if (nt_bitset_has(&s->join->autograd, link->source) || s->inner[link->source] > 0) {
        return false;
    }
    PyTypeObject *type = Py_TYPE(ph_join_object(s->join, link->target));
    if (strcmp(link->name, ".grad_fn") == 0) {
        return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
               s->inner[link->target] == 1;
    }
    return strstr(link->name, "_hooks") != NULL;
}

/* References that begin at a tensor are what a program wrote; those between nodes of
 * PyTorch's graph are not. Names last, so that equal cycles are told by equal ways. */
static bool
loop_link_better(const loop_search *s, const ph_link *a, const ph_link *b)
{
    const bool a_shows = loop_shows(s, a), b_shows = loop_shows(s, b);
    if (a_shows != b_shows) {
        return b_shows;
    }
    const bool a_inner = nt_bitset_has(&s->join->autograd, a->source);
    const bool b_inner = nt_bitset_has(&s->join->autograd, b->source);
    return a_inner != b_inner ? b_inner : strcmp(a->name, b->name) < 0;
}

/* Keeps the best ones, the best first. */
static void
loop_try(const loop_search *s, loop_entry *entry, const ph_link *link)
{
    entry->hidden = entry->hidden || !loop_shows(s, link);
    uint32_t at = entry->tried_count;
    if (at < MOST_TRIED) {
        entry->tried_count++;
    } else if (!loop_link_better(s, link, entry->tried[--at])) {
        return;
    }
    for (; at > 0 && loop_link_better(s, link, entry->tried[at - 1]); at--) {
        entry->tried[at] = entry->tried[at - 1];
    }
    entry->tried[at] = link;
}

static nt_status
loop_collect(loop_search *s, nt_error *err)
{
    const ph_join *join = s->join;
    memset(s->inner, 0, (size_t)loop_node_count(s) * sizeof *s->inner);
    for (size_t i = 0; i < join->link_count; i++) {
        s->inner[join->links[i].target] += loop_is_inner(s, &join->links[i]);
    }
    for (size_t i = 0; i < join->link_count; i++) {
        const ph_link *link = &join->links[i];
        if (loop_is_inner(s, link)) {
            loop_entry *entry;
            NT_TRY(loop_entry_of(s, s->component[link->source], &entry, err));
            loop_try(s, entry, link);
        }
    }
    return NT_OK;
}

static void
loop_measure(loop_search *s)
{
    for (uint32_t node = 0; node < loop_node_count(s); node++) {
        const uint32_t at = s->component[node] == NT_NONE
                                ? NT_NONE
                                : nt_map_find(&s->index, s->component[node]);
        if (at != NT_NONE) {
            s->entries[at].objects++;
            if (nt_bitset_has(&s->living, node)) {
                s->entries[at].alive = true;
            }
        }
    }
}

/* ---- what they keep -------------------------------------------------------------- */

static void
loop_keep(loop_entry *entry, uint32_t node, uint64_t bytes)
{
    uint32_t at = entry->kept_count < MOST_KEPT ? entry->kept_count++ : MOST_KEPT;
    for (; at > 0 && bytes > entry->kept_bytes[at - 1]; at--) {
        if (at < MOST_KEPT) {
            entry->kept[at] = entry->kept[at - 1];
            entry->kept_bytes[at] = entry->kept_bytes[at - 1];
        }
    }
    if (at < MOST_KEPT) {
        entry->kept[at] = node;
        entry->kept_bytes[at] = bytes;
    }
}

static void
loop_add_bytes(loop_entry *entry, const ph_tensor *tensor)
{
    entry->bytes += tensor->storage_bytes;
    uint32_t at = 0;
    while (at < entry->device_count &&
           (entry->devices[at].type != tensor->device_type ||
            entry->devices[at].index != tensor->device_index)) {
        at++;
    }
    if (at == entry->device_count) {
        at = at < PH_MOST_DEVICES ? entry->device_count++ : PH_MOST_DEVICES - 1;
        entry->devices[at] = (ph_device_bytes){.type = tensor->device_type,
                                               .index = tensor->device_index};
    }
    entry->devices[at].bytes += tensor->storage_bytes;
}

static nt_status
loop_add_tensor(loop_search *s, uint32_t node, nt_error *err)
{
    const uint32_t at =
        s->owner[node] == NT_NONE ? NT_NONE : nt_map_find(&s->index, s->owner[node]);
    PyObject *object = ph_join_object(s->join, node);
    ph_tensor tensor;
    if (at == NT_NONE || !ph_tensor_check(object) || !ph_tensor_read(object, &tensor)) {
        return NT_OK;
    }
    s->entries[at].tensors++;
    if (tensor.storage == 0) {
        return NT_OK;
    }
    uint32_t seen;
    NT_TRY(nt_map_swap(&s->storages, tensor.storage, at, &seen, err));
    if (seen == NT_NONE) {
        loop_add_bytes(&s->entries[at], &tensor);
        loop_keep(&s->entries[at], node, tensor.storage_bytes);
    }
    return NT_OK;
}

/* ---- the way round --------------------------------------------------------------- */

/* The shortest way from the link's target to its source inside of the component, put to
 * the end of `queue`'s room backwards; returns its length, 0 where there is none. */
static uint32_t
loop_way(loop_search *s, const ph_link *link, uint32_t *way, uint32_t room)
{
    const nt_graph *graph = &s->join->graph;
    const uint32_t component = s->component[link->source];
    uint32_t count = 0, length = 0;
    s->queue[count++] = link->target;
    s->before[link->target] = link->target;
    for (uint32_t at = 0; at < count && s->before[link->source] == NT_NONE; at++) {
        const uint32_t node = s->queue[at];
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            const uint32_t next = graph->targets[e];
            if (s->component[next] == component && s->before[next] == NT_NONE) {
                s->before[next] = node;
                s->queue[count++] = next;
            }
        }
    }
    if (s->before[link->source] != NT_NONE) {
        uint32_t node = link->source;
        for (; length < room && node != link->target; node = s->before[node]) {
            way[length++] = node;
        }
        if (length < room) {
            way[length++] = link->target;
        } else {
            length = 0;
        }
    }
    for (uint32_t at = 0; at < count; at++) {
        s->before[s->queue[at]] = NT_NONE;
    }
    return length;
}

/* Begins with the link's source, so that the link is the first step. */
static void
loop_turn(uint32_t *way, uint32_t length)
{
    for (uint32_t low = 1, high = length; low + 1 < high;) {
        const uint32_t kept = way[low];
        way[low++] = way[--high];
        way[high] = kept;
    }
}

static nt_status
loop_describe_way(loop_search *s, const loop_entry *entry, nt_arena *arena,
                  ph_loop *loop, nt_error *err)
{
    const size_t bytes = (size_t)entry->objects * sizeof(uint32_t);
    uint32_t *best = nt_allocate(&s->alloc, bytes);
    uint32_t *way = nt_allocate(&s->alloc, bytes);
    uint32_t best_length = 0;
    nt_status status = NT_OK;
    if (best == NULL || way == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (uint32_t i = 0; i < entry->tried_count; i++) {
        const bool counts = !loop_shows(s, entry->tried[i]) || !entry->hidden;
        const uint32_t room = best_length == 0 ? entry->objects : best_length - 1;
        const uint32_t length = counts ? loop_way(s, entry->tried[i], way, room) : 0;
        if (length > 0) {
            memcpy(best, way, length * sizeof *best);
            best_length = length;
        }
    }
    if (best_length == 0) {
        status = nt_fail(err, NT_REFUSED, NT_NO_OFFSET, "a cycle without a way round");
        goto done;
    }
    loop_turn(best, best_length);
    status = ph_way_make(s->join, best, best_length, true, arena, &loop->way, err);
done:
    nt_release(&s->alloc, best, bytes);
    nt_release(&s->alloc, way, bytes);
    return status;
}

static nt_status
loop_describe_kept(const loop_search *s, const loop_entry *entry, nt_arena *arena,
                   ph_loop *loop, nt_error *err)
{
    loop->kept =
        nt_arena_take(arena, MOST_KEPT * sizeof *loop->kept, _Alignof(ph_node));
    if (loop->kept == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t i = 0; i < entry->kept_count; i++) {
        ph_way one;
        NT_TRY(ph_way_make(s->join, &entry->kept[i], 1, false, arena, &one, err));
        loop->kept[loop->kept_count++] = one.nodes[0];
    }
    return NT_OK;
}

static nt_status
loop_describe(loop_search *s, const loop_entry *entry, nt_arena *arena, ph_loop *loop,
              nt_error *err)
{
    *loop = (ph_loop){.objects = entry->objects,
                      .tensors = entry->tensors,
                      .bytes = entry->bytes,
                      .hidden = entry->hidden || entry->behind,
                      .alive = entry->alive,
                      .device_count = entry->device_count};
    memcpy(loop->devices, entry->devices, sizeof loop->devices);
    NT_TRY(loop_describe_kept(s, entry, arena, loop, err));
    return loop_describe_way(s, entry, arena, loop, err);
}

static nt_status
loop_describe_all(loop_search *s, uint32_t most, ph_loops *out, nt_error *err)
{
    nt_sort_item *order = nt_allocate(&s->alloc, s->count * sizeof *order);
    const uint32_t count = s->count < most ? (uint32_t)s->count : most;
    out->loops =
        nt_arena_take(&out->arena, count * sizeof *out->loops, _Alignof(ph_loop));
    nt_status status = NT_OK;
    if (order == NULL || out->loops == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (size_t i = 0; i < s->count; i++) {
        order[i] = (nt_sort_item){~s->entries[i].bytes, (uint32_t)i};
    }
    nt_sort(order, s->count);
    for (size_t i = 0; i < s->count; i++) {
        const loop_entry *entry = &s->entries[order[i].value];
        if (i >= count) {
            out->left_out++;
            out->left_out_bytes += entry->bytes;
        } else {
            NT_TRY_DONE(
                loop_describe(s, entry, &out->arena, &out->loops[out->count], err));
            out->count++;
        }
    }
done:
    NT_RELEASE(&s->alloc, order, s->count);
    return status;
}

/* ---- all of it ------------------------------------------------------------------- */

/* What modules and running frames lead to. */
static nt_status
loop_mark_living(loop_search *s, nt_error *err)
{
    nt_bitset roots = {.words = NULL};
    uint32_t *seeds = s->queue;
    size_t count = 0;
    nt_status status;
    NT_TRY_DONE(ph_roots_mark(s->join, &roots, err));
    NT_TRY_DONE(nt_bitset_init(&s->living, s->alloc, loop_node_count(s), err));
    for (size_t node = nt_bitset_next(&roots, 0); node != NT_NO_MEMBER;
         node = nt_bitset_next(&roots, node + 1)) {
        seeds[count++] = (uint32_t)node;
    }
    status = nt_graph_mark(&s->join->graph, seeds, count, &s->living, err);
done:
    nt_bitset_clear(&roots);
    return status;
}

/* What hangs on a cycle that nothing frees is not freed either. */
static nt_status
loop_mark_behind(loop_search *s, nt_error *err)
{
    nt_bitset lost = {.words = NULL};
    size_t count = 0;
    nt_status status;
    NT_TRY_DONE(nt_bitset_init(&lost, s->alloc, loop_node_count(s), err));
    for (uint32_t node = 0; node < loop_node_count(s); node++) {
        const uint32_t at = s->component[node] == NT_NONE
                                ? NT_NONE
                                : nt_map_find(&s->index, s->component[node]);
        if (at != NT_NONE && s->entries[at].hidden && !s->entries[at].alive) {
            s->queue[count++] = node;
        }
    }
    NT_TRY_DONE(nt_graph_mark(&s->join->graph, s->queue, count, &lost, err));
    for (uint32_t node = 0; count > 0 && node < loop_node_count(s); node++) {
        if (s->component[node] != NT_NONE && nt_bitset_has(&lost, node)) {
            const uint32_t at = nt_map_find(&s->index, s->component[node]);
            if (at != NT_NONE) {
                s->entries[at].behind = !s->entries[at].alive;
            }
        }
    }
done:
    nt_bitset_clear(&lost);
    return status;
}

static nt_status
loop_search_all(loop_search *s, uint32_t most, ph_loops *out, nt_error *err)
{
    const nt_graph *graph = &s->join->graph;
    NT_TRY(ph_join_within(s->join, &s->within, &out->cut, err));
    NT_TRY(loop_room(s, err));
    NT_TRY(nt_graph_components(graph, &s->within, s->component, &s->components, err));
    NT_TRY(loop_collect(s, err));
    if (s->count == 0) {
        return NT_OK;
    }
    NT_TRY(nt_graph_owners(graph, s->component, s->components, s->owner, err));
    NT_TRY(loop_mark_living(s, err));
    loop_measure(s);
    NT_TRY(loop_mark_behind(s, err));
    for (uint32_t node = 0; node < s->join->walked; node++) {
        NT_TRY(loop_add_tensor(s, node, err));
    }
    memset(s->before, 0xff, (size_t)loop_node_count(s) * sizeof *s->before);
    return loop_describe_all(s, most, out, err);
}

nt_status
ph_loops_find(const ph_join *join, uint32_t most, ph_loops **out, nt_error *err)
{
    *out = NULL;
    loop_search s = {.join = join, .alloc = join->alloc};
    nt_map_init(&s.index, s.alloc);
    nt_map_init(&s.storages, s.alloc);
    const size_t bytes = (size_t)join->graph.node_count * sizeof(uint32_t);
    ph_loops *loops = nt_allocate(&s.alloc, sizeof *loops);
    nt_status status = NT_OK;
    if (loops == NULL) {
        return nt_fail_nomem(err);
    }
    *loops = (ph_loops){.count = 0};
    nt_arena_init(&loops->arena, s.alloc);
    status = loop_search_all(&s, most, loops, err);
    nt_release(&s.alloc, s.component, bytes);
    nt_release(&s.alloc, s.owner, bytes);
    nt_release(&s.alloc, s.inner, bytes);
    nt_release(&s.alloc, s.before, bytes);
    nt_release(&s.alloc, s.queue, bytes);
    NT_RELEASE(&s.alloc, s.entries, s.capacity);
    nt_map_clear(&s.index);
    nt_map_clear(&s.storages);
    nt_bitset_clear(&s.within);
    nt_bitset_clear(&s.living);
    if (status != NT_OK) {
        ph_loops_free(loops);
        return status;
    }
    *out = loops;
    return NT_OK;
}

void
ph_loops_free(ph_loops *loops)
{
    if (loops != NULL) {
        const nt_alloc alloc = loops->arena.alloc;
        nt_arena_clear(&loops->arena);
        nt_release(&alloc, loops, sizeof *loops);
    }
}
