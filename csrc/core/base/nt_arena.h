/* SPDX-License-Identifier: Apache-2.0 */
/* Bump memory: many small pieces with one lifetime. Pieces never move, are never freed
 * one by one, and all go with the arena. */
#ifndef NT_ARENA_H
#define NT_ARENA_H

#include "base/nt_base.h"

typedef struct nt_arena_chunk nt_arena_chunk;

/* All-zero but for `alloc` is a valid, empty arena. */
typedef struct nt_arena {
    nt_alloc alloc;
    nt_arena_chunk *chunks; /* newest first */
    uint8_t *next;          /* first free byte of the newest chunk */
    uint8_t *end;           /* one past its last byte */
    size_t chunk_size;      /* bytes of the next ordinary chunk */
} nt_arena;

void
nt_arena_init(nt_arena *arena, nt_alloc alloc);

/* Frees everything; the arena is empty and usable again. */
void
nt_arena_clear(nt_arena *arena);

/* `size` bytes, not cleared, aligned to `align` (a power of two, at most 16). A size of
 * 0 gives a pointer that is not NULL. NULL when memory runs out. */
void *
nt_arena_take(nt_arena *arena, size_t size, size_t align);

/* A copy of `size` bytes with no alignment; NULL when memory runs out. */
const uint8_t *
nt_arena_copy(nt_arena *arena, const void *bytes, size_t size);

#endif
