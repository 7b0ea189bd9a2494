/* SPDX-License-Identifier: Apache-2.0 */
/* A walk's arrays, and the index that turns an address into a node
 * without touching the object.
 *
 * Few objects: a hash table of 32-bit words, a part of the hash beside the node, so
 * that the object's address is compared only where both agree; nodes are in the order
 * of the collector's lists.
 *
 * Many: a bit for each granule of 16 bytes, of which a live object's first byte is the
 * only such one in its granule. The bits lie in chunks, each for 16 KiB of addresses,
 * found through a hash table of chunks. Beside every 64 bits stands their rank, the
 * number of bits before them: node = rank + bits before the object's own.
 *
 *     address   | chunk number  | word, 4 bits | bit, 6 bits | 4 bits | */
#include "ph_walk.h"

#include <string.h>

#include "py_compat.h"
#include "py_compat_objects.h"
#include "base/nt_map.h"

#define WALK_GRANULE_BITS 4
#define WALK_WORD_BITS (WALK_GRANULE_BITS + 6)
#define WALK_CHUNK_BITS (WALK_WORD_BITS + 4)
#define WALK_CHUNK_WORDS 16

/* Addresses above this are not of a process's own half on any system that is known. */
#define WALK_ADDRESS_BITS 48

/* Bits of a chunk's slot that hold its place; the others hold its number. */
#define WALK_PLACE_BITS 28

/* Bits of an object's slot that hold the node + 1; the others are of the hash. */
#define WALK_NODE_BITS 14

/* Up to here the hash table is quicker; above, going through the objects in the order
 * of their addresses is worth more than setting up the chunks costs. */
#define WALK_MOST_HASHED 1000

typedef struct walk_word {
    uint64_t bits;
    uint32_t rank; /* nodes before the first bit */
    uint32_t unused;
} walk_word;

/* Open addressing; a slot is key << value bits | value, 0 is empty. */
typedef struct walk_slots {
    uint64_t *items;
    size_t capacity; /* slots there is memory for */
    size_t mask;     /* slots in use - 1, a power of two less one */
    unsigned shift;  /* 64 - log2 of the slots in use */
} walk_slots;

/* The same for nodes; 0 is empty. */
typedef struct walk_nodes {
    uint32_t *items;
    size_t capacity;
    size_t mask;
    unsigned shift;
} walk_nodes;

typedef struct walk_index {
    bool chunked;
    uintptr_t low;  /* smallest address, or chunk number if chunked */
    uintptr_t span; /* largest - low */
    walk_nodes nodes;
    PyObject *const *objects; /* of the walk, where the nodes are hashed */
    walk_slots slots;
    walk_word *words; /* WALK_CHUNK_WORDS of each chunk */
    size_t word_capacity;
    uintptr_t *numbers; /* of each chunk */
    size_t number_capacity;
    uint32_t chunk_count;
} walk_index;

/* Scratch memory for counting references, kept for the next time. */
typedef struct walk_scratch {
    uint64_t *marks;
    size_t mark_capacity;
    uint32_t *stack;
    size_t stack_capacity;
} walk_scratch;

struct ph_heap {
    nt_budget budget; /* what all of it is drawn from */
    nt_alloc alloc;
    bool leaves;
    uint32_t count;
    PyObject **objects;
    size_t object_capacity;
    uint32_t *refs; /* reference count less the references from inside, modulo 2^32: the
                       collector's own count wraps too */
    size_t ref_capacity;
    nt_graph graph;
    size_t first_capacity;
    size_t target_capacity;
    walk_index index;
    walk_scratch scratch;
};

static inline uint64_t
walk_mix(uint64_t key)
{
    return key * UINT64_C(0x9e3779b97f4a7c15);
}

/* The value of `key`, or NT_NONE. */
static inline uint32_t
walk_slots_find(const walk_slots *slots, uint64_t key)
{
    for (size_t at = walk_mix(key) >> slots->shift;; at = (at + 1) & slots->mask) {
        const uint64_t slot = slots->items[at];
        if (NT_LIKELY(slot >> WALK_PLACE_BITS == key)) {
            return (uint32_t)(slot & ((UINT64_C(1) << WALK_PLACE_BITS) - 1));
        }
        if (slot == 0) {
            return NT_NONE;
        }
    }
}

/* The bits of a hash that stand in the slot: none of those that chose it. */
static inline uint32_t
walk_tag(uint64_t mixed)
{
    return (uint32_t)(mixed >> 16) << WALK_NODE_BITS;
}

/* Puts an object, which is not there, and for which there is room, into the hash. */
static inline void
walk_put_hashed(walk_index *index, uintptr_t address, uint32_t node)
{
    const uint64_t mixed = walk_mix(address >> WALK_GRANULE_BITS);
    size_t at = mixed >> index->nodes.shift;
    while (index->nodes.items[at] != 0) {
        at = (at + 1) & index->nodes.mask;
    }
    index->nodes.items[at] = walk_tag(mixed) | (node + 1);
}

static inline walk_word *
walk_word_of(const walk_index *index, uint32_t chunk, uintptr_t address)
{
    return &index->words[(size_t)chunk * WALK_CHUNK_WORDS +
                         (address >> WALK_WORD_BITS) % WALK_CHUNK_WORDS];
}

static inline uint64_t
walk_bit_of(uintptr_t address)
{
    return UINT64_C(1) << ((address >> WALK_GRANULE_BITS) & 63);
}

/* The node at an address where a live object begins, or NT_NONE. Small: it is made part
 * of every visitor, so that each is one function for the compiler. */
static inline __attribute__((always_inline)) uint32_t
walk_find_hashed(const walk_index *index, uintptr_t address)
{
    if (address - index->low > index->span) {
        return NT_NONE;
    }
    const uint64_t mixed = walk_mix(address >> WALK_GRANULE_BITS);
    const uint32_t tag = walk_tag(mixed);
    const uint32_t node_mask = (UINT32_C(1) << WALK_NODE_BITS) - 1;
    for (size_t at = mixed >> index->nodes.shift;; at = (at + 1) & index->nodes.mask) {
        const uint32_t slot = index->nodes.items[at];
        if (slot == 0) {
            return NT_NONE;
        }
        const uint32_t node = (slot & node_mask) - 1;
        if ((slot & ~node_mask) == tag && (uintptr_t)index->objects[node] == address) {
            return node;
        }
    }
}

static inline __attribute__((always_inline)) uint32_t
walk_find_chunked(const walk_index *index, uintptr_t address)
{
    const uintptr_t number = address >> WALK_CHUNK_BITS;
    if (number - index->low > index->span) {
        return NT_NONE;
    }
    const uint32_t chunk = walk_slots_find(&index->slots, number);
    if (chunk == NT_NONE) {
        return NT_NONE;
    }
    const walk_word *word = walk_word_of(index, chunk, address);
    const uint64_t bit = walk_bit_of(address);
    return (word->bits & bit) == 0
               ? NT_NONE
               : word->rank + (uint32_t)__builtin_popcountll(word->bits & (bit - 1));
}

/* Memory for `need` elements, whose old content is lost where it has to grow. An array
 * that is large enough keeps what it has. */
static nt_status
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

/* ---- the index ------------------------------------------------------------------- */

/* The first chunks' room; a small program has some hundred. */
#define INDEX_FIRST_CHUNKS 256

static void
walk_index_reset(walk_index *index)
{
    index->chunked = false;
    index->low = UINTPTR_MAX;
    index->span = 0;
    index->chunk_count = 0;
}

static void
walk_index_free(ph_heap *heap)
{
    walk_index *index = &heap->index;
    NT_RELEASE(&heap->alloc, index->nodes.items, index->nodes.capacity);
    NT_RELEASE(&heap->alloc, index->slots.items, index->slots.capacity);
    NT_RELEASE(&heap->alloc, index->words, index->word_capacity);
    NT_RELEASE(&heap->alloc, index->numbers, index->number_capacity);
}

/* Slots for `count` keys: a power of two, at most half of them used. */
static size_t
index_slots(size_t count, unsigned *shift)
{
    size_t size = 64;
    *shift = 58;
    while (size < count * 2) {
        size *= 2;
        --*shift;
    }
    return size;
}

static nt_status
index_clear_slots(ph_heap *heap, size_t count, nt_error *err)
{
    walk_slots *slots = &heap->index.slots;
    const size_t size = index_slots(count, &slots->shift);
    NT_TRY(walk_reserve(heap, (void **)&slots->items, &slots->capacity, size,
                        sizeof(uint64_t), err));
    memset(slots->items, 0, size * sizeof(uint64_t));
    slots->mask = size - 1;
    return NT_OK;
}

/* `number` is not there yet, and a slot is free. */
static inline void
index_put(walk_slots *slots, uint64_t number, uint32_t place)
{
    size_t at = walk_mix(number) >> slots->shift;
    while (slots->items[at] != 0) {
        at = (at + 1) & slots->mask;
    }
    slots->items[at] = number << WALK_PLACE_BITS | place;
}

/* An empty hash with room for `count` nodes, which are to be in heap->objects. */
static nt_status
walk_index_hash(ph_heap *heap, size_t count, nt_error *err)
{
    walk_index *index = &heap->index;
    walk_nodes *nodes = &index->nodes;
    const size_t size = index_slots(count, &nodes->shift);
    NT_TRY(walk_reserve(heap, (void **)&nodes->items, &nodes->capacity, size,
                        sizeof(uint32_t), err));
    memset(nodes->items, 0, size * sizeof(uint32_t));
    nodes->mask = size - 1;
    index->objects = heap->objects;
    return NT_OK;
}

/* Room for one more chunk, and for it in the slots. */
static nt_status
index_make_room(ph_heap *heap, nt_error *err)
{
    walk_index *index = &heap->index;
    const uint32_t count = index->chunk_count;
    if (count == 0) {
        NT_TRY(index_clear_slots(heap, INDEX_FIRST_CHUNKS, err));
    } else if (count >= UINT32_C(1) << WALK_PLACE_BITS) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                       "the objects are spread over more than %u chunks of memory",
                       count);
    } else if (count * (size_t)2 > index->slots.mask) {
        NT_TRY(index_clear_slots(heap, count * (size_t)2, err));
        for (uint32_t i = 0; i < count; i++) {
            index_put(&index->slots, index->numbers[i], i);
        }
    }
    NT_TRY(NT_GROW(&heap->alloc, index->numbers, index->number_capacity,
                   count + (size_t)1, err));
    return NT_GROW(&heap->alloc, index->words, index->word_capacity,
                   (count + (size_t)1) * WALK_CHUNK_WORDS, err);
}

/* The chunk of this number, made if there is none. */
static nt_status
walk_index_chunk(ph_heap *heap, uintptr_t number, uint32_t *chunk, nt_error *err)
{
    walk_index *index = &heap->index;
    if (index->chunk_count > 0) {
        *chunk = walk_slots_find(&index->slots, number);
        if (*chunk != NT_NONE) {
            return NT_OK;
        }
    }
    if (number >> (WALK_ADDRESS_BITS - WALK_CHUNK_BITS) != 0) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "an object is above the known addresses");
    }
    NT_TRY(index_make_room(heap, err));
    const uint32_t added = index->chunk_count++;
    index->numbers[added] = number;
    memset(&index->words[(size_t)added * WALK_CHUNK_WORDS], 0,
           WALK_CHUNK_WORDS * sizeof(walk_word));
    index_put(&index->slots, number, added);
    const uintptr_t high =
        index->low == UINTPTR_MAX ? number : index->low + index->span;
    index->low = number < index->low ? number : index->low;
    index->span = (number > high ? number : high) - index->low;
    *chunk = added;
    return NT_OK;
}

/* Gives the words their ranks when all bits are set. */
static void
walk_index_rank(walk_index *index)
{
    uint32_t rank = 0;
    const size_t words = (size_t)index->chunk_count * WALK_CHUNK_WORDS;
    for (size_t i = 0; i < words; i++) {
        index->words[i].rank = rank;
        rank += (uint32_t)__builtin_popcountll(index->words[i].bits);
    }
}

/* heap->objects from the bits, in their order. */
static void
walk_index_list(ph_heap *heap)
{
    const walk_index *index = &heap->index;
    PyObject **out = heap->objects;
    const size_t words = (size_t)index->chunk_count * WALK_CHUNK_WORDS;
    for (size_t i = 0; i < words; i++) {
        const uintptr_t base = index->numbers[i / WALK_CHUNK_WORDS] << WALK_CHUNK_BITS |
                               (uintptr_t)(i % WALK_CHUNK_WORDS) << WALK_WORD_BITS;
        for (uint64_t bits = index->words[i].bits; bits != 0; bits &= bits - 1) {
            const uintptr_t bit = (uintptr_t)__builtin_ctzll(bits);
            *out++ = (PyObject *)(base | bit << WALK_GRANULE_BITS);
        }
    }
}

/* ---- leaves and references ------------------------------------------------------- */

/* Objects are fetched so many ahead: the walk is in the order of addresses and not of
 * the lists, so that this can be done. */
#define EDGES_AHEAD 8

/* Room for so many references an object at first; 3 is usual. */
#define EDGES_FIRST 4

/* From here on (elements) an array grows by an eighth: it is pages of its own, that
 * move without being copied. */
#define EDGES_LARGE 262144

/* What a visitor needs, in one place. */
typedef struct edges_round {
    const walk_index *index;
    uint32_t *refs;
    uint32_t *cursor;
    uint32_t *limit;
    ph_heap *heap;
    nt_status status;
    nt_error *err;
} edges_round;

/* More room for targets; -1 ends the traverse that asked. */
static int
edges_more(edges_round *round)
{
    ph_heap *heap = round->heap;
    const size_t used = (size_t)(round->cursor - heap->graph.targets);
    const size_t old = heap->target_capacity;
    const size_t size = old + (old < EDGES_LARGE ? old + 64 : old / 8);
    if (size >= NT_NONE) {
        round->status = nt_fail(round->err, NT_LIMIT, NT_NO_OFFSET,
                                "the objects have more than 4,000,000,000 references");
        return -1;
    }
    uint32_t *grown =
        heap->alloc.resize(heap->alloc.ctx, heap->graph.targets, old * sizeof(uint32_t),
                           size * sizeof(uint32_t));
    if (grown == NULL) {
        round->status = nt_fail_nomem(round->err);
        return -1;
    }
    heap->graph.targets = grown;
    heap->target_capacity = size;
    round->cursor = grown + used;
    round->limit = grown + size;
    return 0;
}

static inline __attribute__((always_inline)) int
edges_add(edges_round *round, uint32_t node)
{
    if (node == NT_NONE) {
        return 0;
    }
    round->refs[node]--;
    if (NT_UNLIKELY(round->cursor == round->limit) && edges_more(round) != 0) {
        return -1;
    }
    *round->cursor++ = node;
    return 0;
}

static inline __attribute__((always_inline)) void
edges_give_back(edges_round *round, uint32_t node)
{
    if (node != NT_NONE) {
        round->refs[node]++;
    }
}

/* Whether what an object refers to belongs to the walk: always if it is tracked; an
 * untracked one is asked only where it is of a type that lets go of being tracked, for
 * others may be half built or about to go. */
static bool
edges_expands(PyObject *object)
{
    return PyObject_IS_GC(object) &&
           (ph_gc_is_tracked(object) || PyTuple_CheckExact(object) ||
            PyDict_CheckExact(object));
}

/* The round over all objects. `visit` and `find` do the same; `find` is for exact lists
 * and tuples, the most frequent containers, whose tp_traverse is this loop. */
static inline __attribute__((always_inline)) void
edges_each(edges_round *round, visitproc visit, py_compat_borrowed_visit give_back,
           uint32_t (*find)(const walk_index *, uintptr_t))
{
    ph_heap *heap = round->heap;
    const traverseproc of_list = PyList_Type.tp_traverse;
    const traverseproc of_tuple = PyTuple_Type.tp_traverse;
    const uint32_t count = heap->count;
    uint32_t i = 0;
    for (; i < count; i++) {
        PyObject *object = heap->objects[i];
        if (i + EDGES_AHEAD < count) {
            __builtin_prefetch(heap->objects[i + EDGES_AHEAD]);
        }
        heap->graph.first[i] = (uint32_t)(round->cursor - heap->graph.targets);
        round->refs[i] += (uint32_t)Py_REFCNT(object);
        if (heap->leaves && !edges_expands(object)) {
            continue;
        }
        const traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse == of_list || traverse == of_tuple) {
            PyObject **items = traverse == of_list ? ((PyListObject *)object)->ob_item
                                                   : ((PyTupleObject *)object)->ob_item;
            for (Py_ssize_t k = Py_SIZE(object); --k >= 0;) {
                if (items[k] != NULL &&
                    edges_add(round, find(round->index, (uintptr_t)items[k])) != 0) {
                    return;
                }
            }
        } else {
            (void)traverse(object, visit, round);
            if (NT_UNLIKELY(round->status != NT_OK)) {
                return;
            }
            if (NT_UNLIKELY(py_compat_may_borrow(traverse))) {
                py_compat_each_borrowed(object, give_back, round);
            }
        }
    }
    heap->graph.first[i] = (uint32_t)(round->cursor - heap->graph.targets);
}

static int
edges_visit_hashed(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_hashed(round->index, (uintptr_t)object));
}

static void
edges_give_back_hashed(void *arg, PyObject *object)
{
    edges_round *round = arg;
    edges_give_back(round, walk_find_hashed(round->index, (uintptr_t)object));
}

static void
edges_each_hashed(edges_round *round)
{
    edges_each(round, edges_visit_hashed, edges_give_back_hashed, walk_find_hashed);
}

static int
edges_visit_chunked(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_chunked(round->index, (uintptr_t)object));
}

static void
edges_give_back_chunked(void *arg, PyObject *object)
{
    edges_round *round = arg;
    edges_give_back(round, walk_find_chunked(round->index, (uintptr_t)object));
}

static void
edges_each_chunked(edges_round *round)
{
    edges_each(round, edges_visit_chunked, edges_give_back_chunked, walk_find_chunked);
}

#if defined(__x86_64__)
/* The same with the instruction that counts bits, which the oldest processors lack. */
__attribute__((target("popcnt"))) static int
edges_visit_counted(PyObject *object, void *arg)
{
    edges_round *round = arg;
    return edges_add(round, walk_find_chunked(round->index, (uintptr_t)object));
}

__attribute__((target("popcnt"))) static void
edges_each_counted(edges_round *round)
{
    edges_each(round, edges_visit_counted, edges_give_back_chunked, walk_find_chunked);
}
#endif

static void
edges_choose(edges_round *round)
{
    if (!round->index->chunked) {
        edges_each_hashed(round);
        return;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("popcnt")) {
        edges_each_counted(round);
        return;
    }
#endif
    edges_each_chunked(round);
}

static nt_status
walk_find_edges(ph_heap *heap, nt_error *err)
{
    const size_t count = heap->count;
    nt_graph *graph = &heap->graph;
    NT_TRY(walk_reserve(heap, (void **)&heap->refs, &heap->ref_capacity, count,
                        sizeof(uint32_t), err));
    NT_TRY(walk_reserve(heap, (void **)&graph->first, &heap->first_capacity, count + 1,
                        sizeof(uint32_t), err));
    NT_TRY(walk_reserve(heap, (void **)&graph->targets, &heap->target_capacity,
                        count * EDGES_FIRST, sizeof(uint32_t), err));
    for (size_t i = 0; i < count; i++) {
        heap->refs[i] = 0;
    }
    edges_round round = {.index = &heap->index,
                         .refs = heap->refs,
                         .cursor = graph->targets,
                         .limit = graph->targets + heap->target_capacity,
                         .heap = heap,
                         .err = err};
    edges_choose(&round);
    NT_TRY(round.status);
    graph->node_count = heap->count;
    graph->edge_count = graph->first[count];
    if (heap->target_capacity >= EDGES_LARGE) {
        nt_shrink(&heap->alloc, (void **)&graph->targets, &heap->target_capacity,
                  graph->edge_count, sizeof(uint32_t));
    }
    return NT_OK;
}

/* ---- leaves ---------------------------------------------------------------------- */

typedef struct leaves_round {
    ph_heap *heap;
    PyObject **found;
    size_t count;
    size_t capacity;
    nt_status status;
    nt_error *err;
} leaves_round;

static int
leaves_visit(PyObject *object, void *arg)
{
    leaves_round *round = arg;
    const uintptr_t address = (uintptr_t)object;
    uint32_t chunk;
    round->status =
        walk_index_chunk(round->heap, address >> WALK_CHUNK_BITS, &chunk, round->err);
    if (round->status != NT_OK) {
        return -1;
    }
    walk_word *word = walk_word_of(&round->heap->index, chunk, address);
    if ((word->bits & walk_bit_of(address)) != 0) {
        return 0;
    }
    word->bits |= walk_bit_of(address);
    round->status = NT_GROW(&round->heap->alloc, round->found, round->capacity,
                            round->count + 1, round->err);
    if (round->status != NT_OK) {
        return -1;
    }
    round->found[round->count++] = object;
    return 0;
}

/* Follows everything found, the new ones as they come. */
static nt_status
leaves_follow(leaves_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        PyObject *object = round->found[i];
        if (edges_expands(object)) {
            (void)Py_TYPE(object)->tp_traverse(object, leaves_visit, round);
            NT_TRY(round->status);
        }
    }
    return round->count < NT_NONE
               ? NT_OK
               : nt_fail(round->err, NT_LIMIT, NT_NO_OFFSET,
                         "there are more than 4,000,000,000 objects");
}

/* Sets bits for the objects that the walk's objects lead to, and what those do; fills
 * heap->objects and heap->count. The objects so far are the first in `found`. */
static nt_status
walk_find_leaves(ph_heap *heap, nt_error *err)
{
    leaves_round round = {.heap = heap, .err = err};
    nt_status status = NT_OK;
    round.found = heap->objects;
    round.count = heap->count;
    round.capacity = heap->object_capacity;
    heap->objects = NULL;
    heap->object_capacity = 0;

    NT_TRY_DONE(leaves_follow(&round));
    walk_index_rank(&heap->index);
    NT_TRY_DONE(walk_reserve(heap, (void **)&heap->objects, &heap->object_capacity,
                             round.count, sizeof(PyObject *), err));
    heap->count = (uint32_t)round.count;
    for (size_t i = 0; i < round.count; i++) {
        const uintptr_t address = (uintptr_t)round.found[i];
        heap->objects[walk_find_chunked(&heap->index, address)] = round.found[i];
    }

done:
    NT_RELEASE(&heap->alloc, round.found, round.capacity);
    return status;
}

/* ---- the walk -------------------------------------------------------------------- */

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

/* ---- collecting the nodes -------------------------------------------------------- */

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

/* Sets the bits of the rest of a list, from `link` on, from both ends at a time: each
 * step along a list waits for memory, and so two waits overlap. */
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
    NT_RELEASE(&alloc, heap->objects, heap->object_capacity);
    NT_RELEASE(&alloc, heap->refs, heap->ref_capacity);
    NT_RELEASE(&alloc, heap->graph.first, heap->first_capacity);
    NT_RELEASE(&alloc, heap->graph.targets, heap->target_capacity);
    NT_RELEASE(&alloc, heap->scratch.marks, heap->scratch.mark_capacity);
    NT_RELEASE(&alloc, heap->scratch.stack, heap->scratch.stack_capacity);
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

/* Marks what the roots reach. `left` nodes are not marked yet; returns how many are not
 * at the end. `stack` has room for `left`. */
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
