/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_join.h"

#include <string.h>

#include "base/nt_map.h"

typedef struct held_search {
    ph_join *join;
    uint32_t holders; /* number of the first holder's node */
    uint32_t holder_count;
    uint32_t storages; /* number of the first storage's node */
    uint32_t storage_count;
    uint64_t *bytes; /* of a storage */
    size_t capacity;
    nt_map index;   /* storage -> number among the storages */
    uint32_t nodes; /* of the closed join */
    nt_bitset outside;
    uint32_t *roots;
    size_t root_count;
} held_search;

static nt_status
held_storage(held_search *s, const ph_tensor *tensor, uint32_t *node, nt_error *err)
{
    const uint32_t known = nt_map_find(&s->index, tensor->storage);
    if (known != NT_NONE) {
        *node = s->storages + known;
        return NT_OK;
    }
    NT_TRY(NT_GROW(&s->join->alloc, s->bytes, s->capacity, (size_t)s->storage_count + 1,
                   err));
    NT_TRY(nt_map_set(&s->index, tensor->storage, s->storage_count, err));
    NT_TRY(ph_join_add(s->join, "storage", "", 0, 0, node, err));
    s->bytes[s->storage_count++] = tensor->storage_bytes;
    return NT_OK;
}

/* A node for each storage, which its tensors lead to. */
static nt_status
held_add_storages(held_search *s, nt_error *err)
{
    s->storages = s->join->walked + (uint32_t)s->join->added_count;
    if (!ph_tensor_ready()) {
        return NT_OK;
    }
    for (uint32_t n = 0; n < s->join->walked; n++) {
        PyObject *object = ph_heap_object(s->join->heap, n);
        ph_tensor tensor;
        if (!ph_tensor_check(object) || !ph_tensor_read(object, &tensor) ||
            tensor.storage == 0) {
            continue;
        }
        uint32_t node;
        NT_TRY(held_storage(s, &tensor, &node, err));
        NT_TRY(ph_join_link(s->join, n, node, PH_EDGE_OTHER, "", err));
    }
    return NT_OK;
}

static nt_status
held_add_holders(held_search *s, const ph_hold *holds, size_t count, nt_error *err)
{
    s->holders = s->join->walked + (uint32_t)s->join->added_count;
    for (uint32_t i = 0; i < s->holder_count; i++) {
        uint32_t node;
        NT_TRY(ph_join_add(s->join, "holder", "", 0, 0, &node, err));
    }
    for (size_t i = 0; i < count; i++) {
        const uint32_t value = ph_heap_find(s->join->heap, holds[i].value);
        if (value != NT_NONE) {
            NT_TRY(ph_join_link(s->join, s->holders + holds[i].holder, value,
                                PH_EDGE_OTHER, "", err));
        }
    }
    return NT_OK;
}

static void
held_cut(held_search *s, const ph_hold *holds, size_t count, ph_held *held)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t source = ph_heap_find(s->join->heap, holds[i].container);
        const uint32_t target = ph_heap_find(s->join->heap, holds[i].value);
        if (source != NT_NONE && target != NT_NONE &&
            ph_join_cut(s->join, source, target)) {
            held[holds[i].holder].holds++;
        }
    }
}

/* What lives by itself: all that something unknown holds, and every added node but the
 * storages and the holders. */
static nt_status
held_mark_roots(held_search *s, nt_error *err)
{
    NT_TRY(ph_join_outside(s->join, &s->outside, err));
    NT_TRY(NT_NEW(&s->join->alloc, s->roots, (size_t)s->nodes, err));
    for (uint32_t n = 0; n < s->holders && n < s->storages; n++) {
        if (n >= s->join->walked || nt_bitset_has(&s->outside, n)) {
            s->roots[s->root_count++] = n;
        }
    }
    return NT_OK;
}

/* ---- the answers ----------------------------------------------------------------- */

static nt_status
held_together(held_search *s, uint64_t *together, nt_error *err)
{
    nt_bitset marked = {.words = NULL};
    nt_status status;
    NT_TRY_DONE(nt_bitset_init(&marked, s->join->alloc, s->nodes, err));
    NT_TRY_DONE(nt_graph_mark(&s->join->graph, s->roots, s->root_count, &marked, err));
    uint64_t bytes = 0;
    nt_bitset from = {.words = NULL};
    /* What was garbage before is nobody's to let go. */
    status = nt_bitset_init(&from, s->join->alloc, s->nodes, err);
    if (status == NT_OK) {
        for (uint32_t i = 0; i < s->holder_count && status == NT_OK; i++) {
            const uint32_t node = s->holders + i;
            status = nt_graph_mark(&s->join->graph, &node, 1, &from, err);
        }
        for (uint32_t i = 0; i < s->storage_count; i++) {
            const uint32_t node = s->storages + i;
            const bool goes =
                !nt_bitset_has(&marked, node) && nt_bitset_has(&from, node);
            bytes += goes ? s->bytes[i] : 0;
        }
        *together = bytes;
    }
    nt_bitset_clear(&from);
done:
    nt_bitset_clear(&marked);
    return status;
}

/* Bytes that a holder leads to, modules, types and namespaces not passed through. */
static nt_status
held_reachable(held_search *s, uint32_t holder, const nt_bitset *within, ph_held *held,
               nt_error *err)
{
    nt_bitset marked = {.words = NULL};
    nt_status status;
    NT_TRY_DONE(nt_bitset_init(&marked, s->join->alloc, s->nodes, err));
    for (uint32_t n = 0; n < s->join->walked; n++) {
        if (!nt_bitset_has(within, n)) {
            nt_bitset_add(&marked, n);
        }
    }
    const uint32_t node = s->holders + holder;
    NT_TRY_DONE(nt_graph_mark(&s->join->graph, &node, 1, &marked, err));
    for (uint32_t i = 0; i < s->storage_count; i++) {
        held->reachable += nt_bitset_has(&marked, s->storages + i) ? s->bytes[i] : 0;
    }
done:
    nt_bitset_clear(&marked);
    return status;
}

/* Tensors that a holder dominates: each dominator's holder is its own's. */
static void
held_count_tensors(held_search *s, const uint32_t *idom, const uint32_t *order,
                   uint32_t reached, uint32_t *of, ph_held *held)
{
    for (uint32_t i = 0; i < reached; i++) {
        const uint32_t n = order[i];
        const bool holder = n >= s->holders && n < s->holders + s->holder_count;
        of[n] = holder ? n - s->holders : idom[n] == NT_NONE ? NT_NONE : of[idom[n]];
        PyObject *object = ph_join_object(s->join, n);
        if (of[n] != NT_NONE && object != NULL && ph_tensor_check(object)) {
            held[of[n]].tensors++;
        }
    }
}

static nt_status
held_dominate(held_search *s, ph_held *held, nt_error *err)
{
    const nt_alloc *alloc = &s->join->alloc;
    const size_t narrow = (size_t)s->nodes * sizeof(uint32_t), wide = narrow * 2;
    uint32_t *idom = nt_allocate(alloc, narrow), *order = nt_allocate(alloc, narrow);
    uint32_t *of = nt_allocate(alloc, narrow);
    uint64_t *bytes = nt_allocate(alloc, wide), *retained = nt_allocate(alloc, wide);
    uint32_t reached;
    nt_status status = NT_OK;
    if (idom == NULL || order == NULL || of == NULL || bytes == NULL ||
        retained == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    memset(bytes, 0, wide);
    if (s->storage_count > 0) {
        memcpy(bytes + s->storages, s->bytes, s->storage_count * sizeof *bytes);
    }
    for (uint32_t i = 0; i < s->holder_count; i++) {
        s->roots[s->root_count + i] = s->holders + i;
    }
    NT_TRY_DONE(nt_graph_dominators(&s->join->graph, s->roots,
                                    s->root_count + s->holder_count, idom, order,
                                    &reached, err));
    nt_graph_retained(s->nodes, idom, order, reached, bytes, retained);
    for (uint32_t i = 0; i < s->holder_count; i++) {
        held[i].bytes = retained[s->holders + i];
    }
    held_count_tensors(s, idom, order, reached, of, held);
done:
    nt_release(alloc, idom, narrow);
    nt_release(alloc, order, narrow);
    nt_release(alloc, of, narrow);
    nt_release(alloc, bytes, wide);
    nt_release(alloc, retained, wide);
    return status;
}

static nt_status
held_answer(held_search *s, ph_held *held, uint64_t *together, nt_error *err)
{
    nt_bitset within = {.words = NULL};
    uint32_t cut;
    nt_status status;
    NT_TRY_DONE(ph_join_within(s->join, &within, &cut, err));
    NT_TRY_DONE(held_mark_roots(s, err));
    NT_TRY_DONE(held_together(s, together, err));
    for (uint32_t i = 0; i < s->holder_count; i++) {
        NT_TRY_DONE(held_reachable(s, i, &within, &held[i], err));
    }
    status = held_dominate(s, held, err);
done:
    nt_bitset_clear(&within);
    return status;
}

nt_status
ph_held_measure(ph_join *join, const ph_hold *holds, size_t hold_count, ph_held *held,
                uint32_t holder_count, uint64_t *together, nt_error *err)
{
    held_search s = {.join = join, .holder_count = holder_count};
    nt_map_init(&s.index, join->alloc);
    nt_status status;
    for (uint32_t i = 0; i < holder_count; i++) {
        held[i] = (ph_held){0};
    }
    NT_TRY_DONE(held_add_storages(&s, err));
    NT_TRY_DONE(held_add_holders(&s, holds, hold_count, err));
    NT_TRY_DONE(ph_join_close(join, err));
    s.nodes = join->graph.node_count;
    held_cut(&s, holds, hold_count, held);
    status = held_answer(&s, held, together, err);
done:
    NT_RELEASE(&join->alloc, s.bytes, s.capacity);
    NT_RELEASE(&join->alloc, s.roots, (size_t)s.nodes);
    nt_map_clear(&s.index);
    nt_bitset_clear(&s.outside);
    return status;
}
