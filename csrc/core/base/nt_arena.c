/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_arena.h"

#include <string.h>

/* Chunks start small, so that an arena for a tiny file stays tiny, and double until
 * they are large enough for their header not to matter. */
#define ARENA_FIRST_CHUNK ((size_t)4096)
#define ARENA_LARGEST_CHUNK ((size_t)1 << 20)

struct nt_arena_chunk {
    nt_arena_chunk *older;
    size_t size; /* bytes of the whole chunk, this header included */
};

#define ARENA_HEADER ((sizeof(nt_arena_chunk) + 15) & ~(size_t)15)

void
nt_arena_init(nt_arena *arena, nt_alloc alloc)
{
    *arena = (nt_arena){.alloc = alloc, .chunk_size = ARENA_FIRST_CHUNK};
}

void
nt_arena_clear(nt_arena *arena)
{
    nt_arena_chunk *chunk = arena->chunks;
    while (chunk != NULL) {
        nt_arena_chunk *older = chunk->older;
        nt_release(&arena->alloc, chunk, chunk->size);
        chunk = older;
    }
    nt_arena_init(arena, arena->alloc);
}

/* A chunk with room for `size` bytes behind its header becomes the newest. */
static bool
arena_add_chunk(nt_arena *arena, size_t size)
{
    size_t bytes;
    if (!nt_size_add(size, ARENA_HEADER + 16, &bytes)) {
        return false;
    }
    if (arena->chunk_size == 0) {
        arena->chunk_size = ARENA_FIRST_CHUNK;
    }
    if (bytes < arena->chunk_size) {
        bytes = arena->chunk_size;
    }
    nt_arena_chunk *chunk = nt_allocate(&arena->alloc, bytes);
    if (chunk == NULL) {
        return false;
    }
    chunk->older = arena->chunks;
    chunk->size = bytes;
    arena->chunks = chunk;
    arena->next = (uint8_t *)chunk + ARENA_HEADER;
    arena->end = (uint8_t *)chunk + bytes;
    if (arena->chunk_size < ARENA_LARGEST_CHUNK) {
        arena->chunk_size *= 2;
    }
    return true;
}

void *
nt_arena_take(nt_arena *arena, size_t size, size_t align)
{
    NT_ASSERT(align != 0 && (align & (align - 1)) == 0 && align <= 16);
    for (int attempt = 0; attempt < 2; attempt++) {
        if (arena->next != NULL) {
            const uintptr_t at = (uintptr_t)arena->next;
            const size_t padding = (size_t)(-at & (align - 1));
            const size_t room = (size_t)(arena->end - arena->next);
            if (padding <= room && size <= room - padding) {
                uint8_t *piece = arena->next + padding;
                arena->next = piece + size;
                return piece;
            }
        }
        if (attempt == 1 || !arena_add_chunk(arena, size)) {
            break;
        }
    }
    return NULL;
}

const uint8_t *
nt_arena_copy(nt_arena *arena, const void *bytes, size_t size)
{
    uint8_t *copy = nt_arena_take(arena, size, 1);
    if (copy != NULL && size != 0) {
        memcpy(copy, bytes, size);
    }
    return copy;
}
