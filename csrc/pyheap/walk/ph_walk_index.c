/* SPDX-License-Identifier: Apache-2.0 */
#include "walk/ph_walk_state.h"

#include <string.h>

/* The first chunks' room; a small program has some hundred. */
#define INDEX_FIRST_CHUNKS 256

void
walk_index_reset(walk_index *index)
{
    index->chunked = false;
    index->low = UINTPTR_MAX;
    index->span = 0;
    index->chunk_count = 0;
}

void
walk_index_free(ph_heap *heap)
{
    walk_index *index = &heap->index;
    nt_release(&heap->alloc, index->nodes.items,
               index->nodes.capacity * sizeof(uint32_t));
    nt_release(&heap->alloc, index->slots.items,
               index->slots.capacity * sizeof(uint64_t));
    nt_release(&heap->alloc, index->words, index->word_capacity * sizeof(walk_word));
    nt_release(&heap->alloc, index->numbers,
               index->number_capacity * sizeof(uintptr_t));
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

nt_status
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
    NT_TRY(nt_grow(&heap->alloc, (void **)&index->numbers, &index->number_capacity,
                   count + (size_t)1, sizeof(uintptr_t), err));
    return nt_grow(&heap->alloc, (void **)&index->words, &index->word_capacity,
                   (count + (size_t)1) * WALK_CHUNK_WORDS, sizeof(walk_word), err);
}

nt_status
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

void
walk_index_rank(walk_index *index)
{
    uint32_t rank = 0;
    const size_t words = (size_t)index->chunk_count * WALK_CHUNK_WORDS;
    for (size_t i = 0; i < words; i++) {
        index->words[i].rank = rank;
        rank += (uint32_t)__builtin_popcountll(index->words[i].bits);
    }
}

void
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
