/* SPDX-License-Identifier: Apache-2.0 */
#include "walk/ph_walk_state.h"

#include <string.h>

/* A walk of at most this many bytes is kept for the next one, so that a collection of
 * the youngest objects, of which there are many in a second, asks for no memory. */
#define WALK_MOST_SPARE ((size_t)1 << 20)

/* guard: the GIL */
static ph_heap *walk_spare;

nt_status
ph_walk_prepare(nt_error *err)
{
    NT_TRY(ph_gc_prepare(err));
    return py_compat_check_borrowed(err);
}

nt_status
walk_reserve(ph_heap *heap, void **array, size_t *capacity, size_t need, size_t element,
             nt_error *err)
{
    /* One at least: an array that is there may be handed out. */
    need = need > 0 ? need : 1;
    if (need <= *capacity) {
        return NT_OK;
    }
    size_t bytes;
    nt_release(&heap->alloc, *array, *capacity * element);
    *array = NULL;
    *capacity = 0;
    if (!nt_size_mul(need, element, &bytes)) {
        return nt_fail_nomem(err);
    }
    *array = nt_allocate(&heap->alloc, bytes);
    if (*array == NULL) {
        return nt_fail_nomem(err);
    }
    *capacity = need;
    return NT_OK;
}

/* ---- collecting the nodes -------------------------------------------------------- */

/* Turns to chunks: sets the bits of the objects that were listed. */
static nt_status
walk_to_chunks(ph_heap *heap, nt_error *err)
{
    walk_index_reset(&heap->index);
    heap->index.chunked = true;
    for (uint32_t i = 0; i < heap->count; i++) {
        const uintptr_t address = (uintptr_t)heap->objects[i];
        uint32_t chunk;
        NT_TRY(walk_index_chunk(heap, address >> WALK_CHUNK_BITS, &chunk, err));
        walk_word_of(&heap->index, chunk, address)->bits |= walk_bit_of(address);
    }
    return NT_OK;
}

/* One end of a list that is being gone through, and the chunk that it is in. */
typedef struct walk_end {
    uintptr_t number; /* of the chunk */
    uint32_t chunk;
    uintptr_t low_bits; /* of all addresses */
} walk_end;

/* Sets an object's bit. Neighbours in the list mostly lie in one chunk. */
static inline nt_status
walk_set_bit(ph_heap *heap, walk_end *end, const ph_gc_link *link, nt_error *err)
{
    const uintptr_t address = (uintptr_t)ph_gc_object(link);
    if (address >> WALK_CHUNK_BITS != end->number) {
        end->number = address >> WALK_CHUNK_BITS;
        NT_TRY(walk_index_chunk(heap, end->number, &end->chunk, err));
    }
    walk_word_of(&heap->index, end->chunk, address)->bits |= walk_bit_of(address);
    end->low_bits |= address;
    return NT_OK;
}

/*
 * Sets the bits of the rest of a list, from `link` on, from both ends at a time: each
 * step along a list waits for memory, and so two waits overlap.
 */
static nt_status
walk_list_chunked(ph_heap *heap, const ph_gc_link *link, const ph_gc_link *head,
                  uintptr_t *low_bits, nt_error *err)
{
    walk_end front = {.number = UINTPTR_MAX}, back = {.number = UINTPTR_MAX};
    const ph_gc_link *last = ph_gc_prev(head);
    size_t count = heap->count;
    for (; link != last && link != head; count += 2) {
        NT_TRY(walk_set_bit(heap, &front, link, err));
        NT_TRY(walk_set_bit(heap, &back, last, err));
        link = ph_gc_next(link);
        if (link == last) {
            link = head;
        }
        last = ph_gc_prev(last);
    }
    if (link != head) {
        NT_TRY(walk_set_bit(heap, &front, link, err));
        count++;
    }
    if (count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                       "there are more than 4,000,000,000 objects");
    }
    heap->count = (uint32_t)count;
    *low_bits |= front.low_bits | back.low_bits;
    return NT_OK;
}

/* Lists and hashes objects from `link` on, up to the end or to as many as are hashed;
 * returns where it came to. The hash is filled here and not afterwards: each step of
 * the list waits for memory, and that time is enough for it. */
static const ph_gc_link *
walk_list_hashed(ph_heap *heap, const ph_gc_link *link, const ph_gc_link *head,
                 uintptr_t *low_bits)
{
    walk_index *index = &heap->index;
    uintptr_t low = index->low, seen = 0;
    uintptr_t high = low == UINTPTR_MAX ? 0 : low + index->span;
    for (; link != head && heap->count < WALK_MOST_HASHED; link = ph_gc_next(link)) {
        const uintptr_t address = (uintptr_t)ph_gc_object(link);
        low = address < low ? address : low;
        high = address > high ? address : high;
        seen |= address;
        heap->objects[heap->count] = ph_gc_object(link);
        walk_put_hashed(index, address, heap->count++);
    }
    index->low = low;
    index->span = high > low ? high - low : 0;
    *low_bits |= seen;
    return link;
}

/* Takes the objects of one of the collector's lists. */
static nt_status
walk_list(ph_heap *heap, const ph_gc_link *head, uintptr_t *low_bits, nt_error *err)
{
    const ph_gc_link *link = ph_gc_next(head);
    if (!heap->index.chunked) {
        link = walk_list_hashed(heap, link, head, low_bits);
        if (link == head) {
            return NT_OK;
        }
        NT_TRY(walk_to_chunks(heap, err));
    }
    return walk_list_chunked(heap, link, head, low_bits, err);
}

static nt_status
walk_lists(ph_heap *heap, ph_extent extent, nt_error *err)
{
    ph_gc_lists lists;
    if (!ph_gc_get_lists(&lists)) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "the garbage collector's lists were not looked for");
    }
    uintptr_t low_bits = 0;
    NT_TRY(walk_reserve(heap, (void **)&heap->objects, &heap->object_capacity,
                        WALK_MOST_HASHED, sizeof(PyObject *), err));
    if (!heap->index.chunked) {
        NT_TRY(walk_index_hash(heap, WALK_MOST_HASHED, err));
    }
    for (int k = 0; k < PH_GC_GENERATIONS && k <= (int)extent; k++) {
        NT_TRY(walk_list(heap, lists.generations[k], &low_bits, err));
    }
    if (extent == PH_ALL) {
        NT_TRY(walk_list(heap, lists.frozen, &low_bits, err));
    }
    if (low_bits % (1 << WALK_GRANULE_BITS) != 0) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "an allocator gives memory that is not aligned to 16 bytes");
    }
    return NT_OK;
}

/* Lists and index are complete after this, in whichever way they are kept. */
static nt_status
walk_take_nodes(ph_heap *heap, ph_extent extent, nt_error *err)
{
    NT_TRY(walk_lists(heap, extent, err));
    if (heap->leaves && !heap->index.chunked) {
        NT_TRY(walk_to_chunks(heap, err));
    } else if (heap->index.chunked) {
        NT_TRY(walk_reserve(heap, (void **)&heap->objects, &heap->object_capacity,
                            heap->count, sizeof(PyObject *), err));
        walk_index_rank(&heap->index);
        walk_index_list(heap);
    }
    return heap->leaves ? walk_find_leaves(heap, err) : NT_OK;
}

/* ---- objects --------------------------------------------------------------------- */

static void
walk_release(ph_heap *heap)
{
    const nt_alloc alloc = heap->alloc;
    walk_index_free(heap);
    nt_release(&alloc, heap->objects, heap->object_capacity * sizeof(PyObject *));
    nt_release(&alloc, heap->refs, heap->ref_capacity * sizeof(uint32_t));
    nt_release(&alloc, heap->graph.first, heap->first_capacity * sizeof(uint32_t));
    nt_release(&alloc, heap->graph.targets, heap->target_capacity * sizeof(uint32_t));
    nt_release(&alloc, heap->scratch.marks,
               heap->scratch.mark_capacity * sizeof(uint64_t));
    nt_release(&alloc, heap->scratch.stack,
               heap->scratch.stack_capacity * sizeof(uint32_t));
    const nt_alloc system = nt_alloc_system();
    nt_release(&system, heap, sizeof *heap);
}

/* The spare walk, emptied, or a new one. */
static ph_heap *
walk_take(bool leaves)
{
    ph_heap *heap = walk_spare;
    walk_spare = NULL;
    if (heap == NULL) {
        const nt_alloc system = nt_alloc_system();
        heap = nt_allocate(&system, sizeof *heap);
        if (heap == NULL) {
            return NULL;
        }
        memset(heap, 0, sizeof *heap);
        nt_budget_init(&heap->budget, system, SIZE_MAX);
        heap->alloc = nt_budget_alloc(&heap->budget);
        heap->graph.alloc = heap->alloc;
    }
    walk_index_reset(&heap->index);
    /* The next collection is likely to be of as many objects as the last one. */
    heap->index.chunked = heap->count > WALK_MOST_HASHED;
    heap->budget.peak = heap->budget.used;
    heap->count = 0;
    heap->graph.node_count = 0;
    heap->graph.edge_count = 0;
    heap->leaves = leaves;
    return heap;
}

nt_status
ph_heap_new(ph_extent extent, bool leaves, ph_heap **out, nt_error *err)
{
    *out = NULL;
    ph_heap *heap = walk_take(leaves);
    if (heap == NULL) {
        return nt_fail_nomem(err);
    }
    nt_status status = walk_take_nodes(heap, extent, err);
    if (status == NT_OK) {
        status = walk_find_edges(heap, err);
    }
    if (status != NT_OK) {
        walk_release(heap);
        return status;
    }
    *out = heap;
    return NT_OK;
}

void
ph_heap_free(ph_heap *heap)
{
    if (heap == NULL) {
        return;
    }
    if (walk_spare == NULL && heap->budget.used <= WALK_MOST_SPARE) {
        walk_spare = heap;
    } else {
        walk_release(heap);
    }
}

uint32_t
ph_heap_count(const ph_heap *heap)
{
    return heap->count;
}

PyObject *
ph_heap_object(const ph_heap *heap, uint32_t node)
{
    return heap->objects[node];
}

uint32_t
ph_heap_find(const ph_heap *heap, const void *object)
{
    const uintptr_t address = (uintptr_t)object;
    const uint32_t node = heap->index.chunked ? walk_find_chunked(&heap->index, address)
                                              : walk_find_hashed(&heap->index, address);
    return node != NT_NONE && heap->objects[node] == object ? node : NT_NONE;
}

const nt_graph *
ph_heap_graph(const ph_heap *heap)
{
    return &heap->graph;
}

uint64_t
ph_heap_references_left(const ph_heap *heap, uint32_t node)
{
    const uint64_t count = (uint64_t)Py_REFCNT(heap->objects[node]);
    /* `refs` is the count less these, and wraps with 32 bits. */
    const uint32_t inside = (uint32_t)count - heap->refs[node];
    return count > inside ? count - inside : 0;
}

size_t
ph_heap_bytes(const ph_heap *heap, size_t *peak)
{
    if (peak != NULL) {
        *peak = heap->budget.peak;
    }
    return heap->budget.used;
}

/* ---- what lives ------------------------------------------------------------------ */

/* Marks the nodes that have references from outside; their number. */
static uint32_t
walk_mark_roots(const ph_heap *heap, uint64_t *marks)
{
    uint32_t roots = 0;
    for (uint32_t base = 0; base < heap->count; base += 64) {
        const uint32_t end = heap->count - base < 64 ? heap->count : base + 64;
        uint64_t word = 0;
        for (uint32_t i = base; i < end; i++) {
            word |= (uint64_t)(heap->refs[i] != 0) << (i - base);
        }
        marks[base / 64] = word;
        roots += (uint32_t)__builtin_popcountll(word);
    }
    return roots;
}

/* Marks what the roots reach. `left` nodes are not marked yet; returns how many are
 * not at the end. `stack` has room for `left`. */
static uint32_t
walk_mark_reached(const ph_heap *heap, uint64_t *marks, uint32_t *stack, uint32_t left)
{
    const uint32_t *first = heap->graph.first;
    const uint32_t *targets = heap->graph.targets;
    for (uint32_t root = 0; root < heap->count && left > 0; root++) {
        if (heap->refs[root] == 0) {
            continue;
        }
        uint32_t node = root, depth = 0;
        for (;;) {
            for (uint32_t e = first[node]; e < first[node + 1]; e++) {
                const uint32_t target = targets[e];
                const uint64_t bit = UINT64_C(1) << target % 64;
                if ((marks[target / 64] & bit) == 0) {
                    marks[target / 64] |= bit;
                    stack[depth++] = target;
                    left--;
                }
            }
            if (depth == 0) {
                break;
            }
            node = stack[--depth];
        }
    }
    return left;
}

nt_status
ph_heap_unreachable(ph_heap *heap, nt_bitset *dead, uint32_t *count, nt_error *err)
{
    walk_scratch *scratch = &heap->scratch;
    const size_t words = ((size_t)heap->count + 63) / 64;
    if (heap->leaves) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a walk with leaves can't tell what is unreachable");
    }
    NT_TRY(walk_reserve(heap, (void **)&scratch->marks, &scratch->mark_capacity, words,
                        sizeof(uint64_t), err));
    uint32_t left = heap->count - walk_mark_roots(heap, scratch->marks);
    NT_TRY(walk_reserve(heap, (void **)&scratch->stack, &scratch->stack_capacity, left,
                        sizeof(uint32_t), err));
    left = walk_mark_reached(heap, scratch->marks, scratch->stack, left);
    NT_TRY(nt_bitset_init(dead, nt_alloc_system(), heap->count, err));
    if (left > 0) {
        for (size_t i = 0; i < words; i++) {
            scratch->marks[i] = ~scratch->marks[i];
        }
        nt_bitset_assign(dead, scratch->marks);
    }
    *count = left;
    return NT_OK;
}

nt_status
ph_heap_roots(const ph_heap *heap, nt_bitset *roots, nt_error *err)
{
    NT_TRY(nt_bitset_init(roots, nt_alloc_system(), heap->count, err));
    for (uint32_t i = 0; i < heap->count; i++) {
        if (heap->refs[i] != 0) {
            nt_bitset_add(roots, i);
        }
    }
    return NT_OK;
}
