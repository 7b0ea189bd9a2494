/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ph_walk: a walk's arrays, and the index that turns an address into a node
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
 *     address   | chunk number  | word, 4 bits | bit, 6 bits | 4 bits |
 */
#ifndef PH_WALK_STATE_H
#define PH_WALK_STATE_H

#include "compat/py_compat.h"
#include "compat/py_compat_objects.h"
#include "base/nt_map.h"
#include "walk/ph_walk.h"

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

/*
 * Memory for `need` elements, whose old content is lost where it has to grow. An array
 * that is large enough keeps what it has.
 */
nt_status
walk_reserve(ph_heap *heap, void **array, size_t *capacity, size_t need, size_t element,
             nt_error *err) NT_CHECKED;

/* ---- ph_walk_index.c ------------------------------------------------------------- */

/* Empties the index. */
void
walk_index_reset(walk_index *index);
void
walk_index_free(ph_heap *heap);

/* An empty hash with room for `count` nodes, which are to be in heap->objects. */
nt_status
walk_index_hash(ph_heap *heap, size_t count, nt_error *err) NT_CHECKED;

/* The chunk of this number, made if there is none. */
nt_status
walk_index_chunk(ph_heap *heap, uintptr_t number, uint32_t *chunk,
                 nt_error *err) NT_CHECKED;

/* Gives the words their ranks when all bits are set. */
void
walk_index_rank(walk_index *index);

/* heap->objects from the bits, in their order. */
void
walk_index_list(ph_heap *heap);

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

/* ---- ph_walk_edges.c ------------------------------------------------------------- */

/* Sets bits for the objects that the walk's objects lead to, and what those do; fills
 * heap->objects and heap->count. The objects so far are the first in `found`. */
nt_status
walk_find_leaves(ph_heap *heap, nt_error *err) NT_CHECKED;

/* Fills graph and refs by one tp_traverse of each object. */
nt_status
walk_find_edges(ph_heap *heap, nt_error *err) NT_CHECKED;

#endif
