/* SPDX-License-Identifier: Apache-2.0 */
/* The tables beside a ring: code objects, frames, stacks and texts, each an array that
 * only grows, with a hash index that only the producer reads. What an id stands for is
 * written before the event that has the id is pushed, and never changes. */
#ifndef NT_RING_TABLES_H
#define NT_RING_TABLES_H

#include "base/nt_ring.h"

/* Open addressing, never more than half full. */
typedef struct nt_ring_slots {
    uint32_t *items; /* ids, or NT_RING_NONE */
    uint64_t mask;
} nt_ring_slots;

/* Bytes in the store, as `length` characters of `width` bytes. */
typedef struct nt_ring_piece {
    uint32_t first, length, width;
} nt_ring_piece;

typedef struct nt_ring_code_row {
    uint64_t code, version;
    nt_ring_piece name, filename, lines;
    int32_t first_line;
    uint32_t format;
} nt_ring_code_row;

typedef struct nt_ring_frame_row {
    uint32_t code; /* row */
    uint32_t lasti;
} nt_ring_frame_row;

/* `count` is stored with release after the row. */
struct nt_ring_tables {
    nt_ring_stack *stacks;
    nt_ring_slots stack_slots;
    uint32_t stack_count, stack_most;
    uint32_t *ids; /* frame ids of stacks */
    uint32_t id_count, id_most;
    nt_ring_frame_row *frames;
    nt_ring_slots frame_slots;
    uint32_t frame_count, frame_most;
    nt_ring_code_row *codes;
    nt_ring_slots code_slots;
    uint32_t code_count, code_most;
    nt_ring_piece *texts; /* metadata and file names */
    nt_ring_slots text_slots;
    uint32_t text_count, text_most;
    uint8_t *store;
    uint32_t store_used, store_most;
    uint64_t lost_stacks, lost_texts;
};

#endif
