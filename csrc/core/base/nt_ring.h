/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of fixed-size allocator events, and beside it the tables of the stacks and
 * texts that the events name. One producer pushes (whoever holds the device's lock);
 * any number of readers copy at the same time and learn what was overwritten under
 * them. All memory is taken and touched when a ring is made: pushing and interning take
 * no memory, no lock, and call nobody but `describe`.
 *
 * This header is C and C++, and includes nothing of the core, since the shim on c10
 * pushes by its inline functions. Shared words are accessed through __atomic_*, which
 * both languages have. */
#ifndef NT_RING_H
#define NT_RING_H

#include <stddef.h>
#include <stdint.h>

#include "base/nt_ring_origins.h"

#ifdef __cplusplus
extern "C" {
#endif

/* No stack, no text. The same value as the core's NT_NONE and NT_NO_STACK. */
#define NT_RING_NONE UINT32_MAX

/* Frames of a stack that are kept, from the innermost. */
#define NT_RING_FRAMES 64

#define NT_RING_WORDS 8

/* One event: one cache line. */
typedef struct nt_ring_entry {
    uint64_t ticks; /* the producer's clock; a reader knows how to convert it */
    uint64_t addr;  /* of an oom event: the device's free bytes */
    uint64_t size;  /* bytes */
    uint64_t stream;
    uint64_t pool_first, pool_second;
    uint32_t stack;    /* of this ring's tables, or NT_RING_NONE */
    uint32_t metadata; /* text id, or NT_RING_NONE */
    uint8_t action;    /* nt_live_action */
    uint8_t flags;     /* the producer's; 0 where it has none */
    uint16_t unused16; /* 0 */
    uint32_t unused32; /* 0 */
} nt_ring_entry;

/* A frame as the producer finds it, by identity. `version` tells code objects apart
 * that had the same address one after the other. */
typedef struct nt_ring_frame {
    uint64_t code;    /* address of the code object; never followed here */
    uint64_t version; /* anything that differs when another code object lives there */
    uint32_t lasti;   /* the instruction, in bytes, as Python's f_lasti */
    uint32_t unused;  /* 0 */
} nt_ring_frame;

/* How a code object's table gives the line of an instruction. */
typedef enum nt_ring_lines {
    NT_RING_LINES_NONE, /* no table: the first line stands for all */
    NT_RING_LINES_310,  /* co_linetable of CPython 3.10 */
    NT_RING_LINES_311,  /* co_linetable (locations) of CPython 3.11 and later */
} nt_ring_lines;

/* A str as CPython holds it: `length` characters of `width` (1, 2 or 4) bytes each;
 * with width 1 the bytes are Latin-1. */
typedef struct nt_ring_text {
    const void *data;
    uint32_t length;
    uint32_t width;
} nt_ring_text;

/* What `describe` gives of a code object; copied before it returns to Python. */
typedef struct nt_ring_code {
    nt_ring_text name, filename;
    const uint8_t *lines;
    uint32_t line_bytes;
    int32_t first_line;
    nt_ring_lines format;
} nt_ring_code;

/* Describes the code object at `code`, without Python; 0, or -1 if it can't. */
typedef int (*nt_ring_describe)(uint64_t code, nt_ring_code *out);

/* A stack in the table, found by a fingerprint of 128 bits over its frames. */
typedef struct nt_ring_stack {
    uint64_t print_low, print_high;
    uint32_t first; /* of its frame ids */
    uint32_t count;
} nt_ring_stack;

/* What the inline functions need of the tables; the rest is nt_ring.c's. */
typedef struct nt_ring_index {
    const nt_ring_stack *stacks;
    const uint32_t *slots; /* stack ids or NT_RING_NONE */
    uint64_t mask;         /* slots - 1; there is always an empty slot */
} nt_ring_index;

typedef struct nt_ring_tables nt_ring_tables;

/* A ring. `head` is the number of events ever pushed; event i lies in entry i & mask.
 * The producer may be writing over event head - capacity at any time, and so the last
 * capacity - 1 events can be read. */
typedef struct nt_ring {
    nt_ring_entry *entries;  /* aligned to a cache line */
    uint64_t mask;           /* capacity - 1; the capacity is a power of two */
    uint64_t head;           /* written by the producer only */
    nt_ring_index index;     /* of stacks; slots is NULL where frames are not kept */
    nt_ring_origins origins; /* of blocks in use; likewise */
    nt_ring_tables *tables;
    uint64_t start; /* events before this one belong to an earlier recording */
    uint32_t late;  /* 1: the recording began after the first allocation */
    uint64_t size;  /* bytes of memory */
    void *block;    /* the memory, all of it */
    void *(*resize)(void *, void *, size_t, size_t); /* what it came from */
    void *resize_ctx;
} nt_ring;

/* Words of an entry are stored with release and loaded with acquire: a reader that sees
 * any word of event i has, after it, head >= i, and so finds that it was torn. */
static inline void
nt_ring_push(nt_ring *ring, const nt_ring_entry *entry)
{
    const uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
    nt_ring_entry *slot = &ring->entries[head & ring->mask];
    const uint64_t ids = (uint64_t)entry->stack | (uint64_t)entry->metadata << 32;
    const uint64_t kind = (uint64_t)entry->action | (uint64_t)entry->flags << 8;
    uint64_t *words = (uint64_t *)(void *)slot;
    __atomic_store_n(&words[0], entry->ticks, __ATOMIC_RELEASE);
    __atomic_store_n(&words[1], entry->addr, __ATOMIC_RELEASE);
    __atomic_store_n(&words[2], entry->size, __ATOMIC_RELEASE);
    __atomic_store_n(&words[3], entry->stream, __ATOMIC_RELEASE);
    __atomic_store_n(&words[4], entry->pool_first, __ATOMIC_RELEASE);
    __atomic_store_n(&words[5], entry->pool_second, __ATOMIC_RELEASE);
    __atomic_store_n(&words[6], ids, __ATOMIC_RELEASE);
    __atomic_store_n(&words[7], kind, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
}

/* Events ever pushed. */
static inline uint64_t
nt_ring_head(const nt_ring *ring)
{
    return __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
}

static inline uint64_t
nt_ring_scramble(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

/* Two sums of 64 bits over `count` frames, independent of each other. */
static inline void
nt_ring_fingerprint(const nt_ring_frame *frames, size_t count, uint64_t print[2])
{
    uint64_t low = count, high = ~(uint64_t)count;
    for (size_t i = 0; i < count; i++) {
        const uint64_t code = frames[i].code ^ (uint64_t)frames[i].lasti << 48;
        const uint64_t rest = frames[i].version + (uint64_t)frames[i].lasti;
        low = (low ^ code) * UINT64_C(0x9e3779b97f4a7c15);
        low = (low ^ (low >> 29)) + rest;
        high = (high ^ rest) * UINT64_C(0xc2b2ae3d27d4eb4f);
        high = (high ^ (high >> 31)) + code;
    }
    print[0] = nt_ring_scramble(low);
    print[1] = nt_ring_scramble(high);
}

/* The id of the stack with this fingerprint, or NT_RING_NONE. The producer's. */
static inline uint32_t
nt_ring_find_stack(const nt_ring *ring, const uint64_t print[2])
{
    const nt_ring_index *index = &ring->index;
    uint64_t slot = print[0] & index->mask;
    while (index->slots[slot] != NT_RING_NONE) {
        const nt_ring_stack *stack = &index->stacks[index->slots[slot]];
        if (stack->print_low == print[0] && stack->print_high == print[1]) {
            return index->slots[slot];
        }
        slot = (slot + 1) & index->mask;
    }
    return NT_RING_NONE;
}

/* Making one, and filling its tables. -------------------------------------- */

struct nt_alloc;

/* A ring that keeps at least the last `events` events, and a quarter more, so that a
 * reader has time. With `frames` it has tables for stacks. NULL when there is no
 * memory, or the request exceeds the address space. */
nt_ring *
nt_ring_new(const struct nt_alloc *alloc, uint64_t events, int frames);
void
nt_ring_free(nt_ring *ring);

/* Events pushed from now on do not continue those pushed before, and no block in use
 * has an origin. Nobody may push meanwhile. `late` is 0 only if nothing was ever
 * allocated before. */
void
nt_ring_restart(nt_ring *ring, int late);

/* The producer's. The id of a stack that nt_ring_find_stack did not find, innermost
 * frame first; NT_RING_NONE, and counted, when a table is full or `describe` fails. */
uint32_t
nt_ring_add_stack(nt_ring *ring, const nt_ring_frame *frames, size_t count,
                  const uint64_t print[2], nt_ring_describe describe);

/* The producer's. The id of a text; NT_RING_NONE, and counted, when full. Id 0 is the
 * empty text. */
uint32_t
nt_ring_add_text(nt_ring *ring, const char *text, size_t length);

/* Reading, from any thread. ------------------------------------------------ */

/* Copies events from .. until - 1 (at most capacity - 1 of them, already pushed), event
 * i to out[i - from]. Returns the first of them that is whole, or `until`: those before
 * it were overwritten, now or earlier, and `out` holds nothing of use there. */
uint64_t
nt_ring_read(const nt_ring *ring, uint64_t from, uint64_t until, nt_ring_entry *out);

/* The first event of the recording in force. */
uint64_t
nt_ring_start(const nt_ring *ring);
int
nt_ring_is_late(const nt_ring *ring);
/* Events that a reader may ask for at once. */
uint64_t
nt_ring_room(const nt_ring *ring);

/* How full the tables are, and how often something found no room. */
typedef struct nt_ring_counts {
    uint32_t stacks, frames, codes, texts;
    uint64_t lost_stacks, lost_texts, lost_origins;
} nt_ring_counts;

void
nt_ring_count(const nt_ring *ring, nt_ring_counts *out);

/* What an id stands for, once an event that has it was read. Valid as long as the ring.
 * The frames' ids of a stack, innermost first, and their number. */
const uint32_t *
nt_ring_stack_frames(const nt_ring *ring, uint32_t stack, size_t *count);
/* The frame's code object, and its instruction in bytes. */
uint32_t
nt_ring_frame_lasti(const nt_ring *ring, uint32_t frame, nt_ring_code *out);
const char *
nt_ring_text_get(const nt_ring *ring, uint32_t text, size_t *length);

#ifdef __cplusplus
}
#endif

#endif
