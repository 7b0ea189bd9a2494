/* SPDX-License-Identifier: Apache-2.0 */
/* Input as a stream of bytes seen through a window: a file of any size is read with a
 * bounded buffer, and no length that the file claims is believed before that many bytes
 * are there. */
#ifndef NT_SOURCE_H
#define NT_SOURCE_H

#include "base/nt_base.h"

/* Gives the next bytes: writes up to `capacity` of them to `buffer` and their number to
 * *count; 0 means the end. A return value other than 0 stops the reading with NT_IO (or
 * NT_LIMIT, NT_CANCELLED when it is that status). */
typedef struct nt_input {
    int (*read)(void *ctx, void *buffer, size_t capacity, size_t *count);
    void *ctx;
} nt_input;

/* The window. `next` .. `end` are bytes at hand; both move on refill. */
typedef struct nt_source {
    nt_alloc alloc;
    nt_input input;      /* read == NULL: reading from memory */
    uint8_t *buffer;     /* owned; NULL when reading from memory */
    size_t capacity;     /* bytes of `buffer` */
    const uint8_t *next; /* first byte not yet consumed */
    const uint8_t *end;  /* one past the last available byte */
    uint64_t end_offset; /* offset in the input of `end` */
    size_t memory_left;  /* bytes after `end` when reading from memory */
    bool exhausted;      /* the input has no more bytes after `end` */
    uint64_t total; /* bytes of the input, for estimates; 0 if they are not known */
    const nt_progress *progress; /* NULL, or called at every refill */
} nt_source;

/* Reads `count` bytes at `bytes`, which must stay until nt_source_clear. */
void
nt_source_init_memory(nt_source *source, const void *bytes, size_t count,
                      const nt_progress *progress);

/* Reads from `input` through a buffer that nt_source_clear frees. */
void
nt_source_init_input(nt_source *source, nt_alloc alloc, nt_input input,
                     const nt_progress *progress);

void
nt_source_clear(nt_source *source);

/* The offset in the input of source->next. */
static inline uint64_t
nt_source_offset(const nt_source *source)
{
    return source->end_offset - (uint64_t)(source->end - source->next);
}

/* Brings more bytes until `count` are at hand or the input ends (then fewer are; that
 * is NT_OK). Memory grows with the bytes that came, not with `count`. */
nt_status
nt_source_fill(nt_source *source, size_t count, nt_error *err) NT_CHECKED;

#endif
