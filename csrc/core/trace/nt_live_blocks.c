/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live blocks by address in an open-addressing table of fixed size. What is removed
 * leaves no mark: the blocks behind it that are not at home move up.
 */
#include <string.h>

#include "base/nt_sort.h"
#include "trace/nt_live.h"
#include "trace/nt_live_builder.h"

typedef struct blocks_row {
    uint64_t address; /* 0: an empty slot */
    uint64_t size;
    uint32_t stack;
} blocks_row;

struct nt_live_blocks {
    nt_alloc alloc;
    blocks_row *rows;
    uint64_t slots; /* a power of two, at least twice `most`; `count` in a copy */
    uint64_t count, most;
    uint64_t lost; /* blocks that found no room */
};

static nt_live_blocks *
blocks_make(const nt_alloc *alloc, uint64_t slots)
{
    size_t size;
    if (slots > SIZE_MAX || !nt_size_mul((size_t)slots, sizeof(blocks_row), &size)) {
        return NULL;
    }
    nt_live_blocks *blocks = nt_allocate(alloc, sizeof *blocks);
    blocks_row *rows = nt_allocate(alloc, size);
    if (blocks == NULL || (rows == NULL && size != 0)) {
        nt_release(alloc, blocks, sizeof *blocks);
        nt_release(alloc, rows, size);
        return NULL;
    }
    *blocks = (nt_live_blocks){.alloc = *alloc, .rows = rows, .slots = slots};
    return blocks;
}

nt_live_blocks *
nt_live_blocks_new(const nt_alloc *alloc, uint64_t most)
{
    if (most > UINT32_MAX / 4) {
        return NULL;
    }
    uint64_t slots = 16;
    while (slots < 2 * most) {
        slots <<= 1;
    }
    nt_live_blocks *blocks = blocks_make(alloc, slots);
    if (blocks != NULL) {
        blocks->most = most;
        nt_live_blocks_clear(blocks);
    }
    return blocks;
}

void
nt_live_blocks_free(nt_live_blocks *blocks)
{
    if (blocks != NULL) {
        const nt_alloc alloc = blocks->alloc;
        nt_release(&alloc, blocks->rows, (size_t)blocks->slots * sizeof(blocks_row));
        nt_release(&alloc, blocks, sizeof *blocks);
    }
}

void
nt_live_blocks_clear(nt_live_blocks *blocks)
{
    memset(blocks->rows, 0, (size_t)blocks->slots * sizeof(blocks_row));
    blocks->count = 0;
    blocks->lost = 0;
}

static uint64_t
blocks_home(const nt_live_blocks *blocks, uint64_t address)
{
    return nt_mix64(address) & (blocks->slots - 1);
}

/* The slot of `address`, or the empty one where it would be. */
static uint64_t
blocks_find(const nt_live_blocks *blocks, uint64_t address)
{
    uint64_t slot = blocks_home(blocks, address);
    while (blocks->rows[slot].address != address && blocks->rows[slot].address != 0) {
        slot = (slot + 1) & (blocks->slots - 1);
    }
    return slot;
}

int
nt_live_blocks_add(nt_live_blocks *blocks, uint64_t address, uint64_t size,
                   uint32_t stack)
{
    const uint64_t slot = blocks_find(blocks, address);
    const int is_new = blocks->rows[slot].address == 0;
    if (address == 0 || (is_new && blocks->count >= blocks->most)) {
        blocks->lost++;
        return -1;
    }
    blocks->count += (uint64_t)is_new;
    blocks->rows[slot] = (blocks_row){address, size, stack};
    return 0;
}

uint64_t
nt_live_blocks_remove(nt_live_blocks *blocks, uint64_t address)
{
    const uint64_t mask = blocks->slots - 1;
    uint64_t hole = blocks_find(blocks, address);
    if (address == 0 || blocks->rows[hole].address == 0) {
        return 0;
    }
    const uint64_t size = blocks->rows[hole].size;
    for (uint64_t at = (hole + 1) & mask; blocks->rows[at].address != 0;
         at = (at + 1) & mask) {
        const uint64_t home = blocks_home(blocks, blocks->rows[at].address);
        /* A block whose home lies behind the hole can't be found from there. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            blocks->rows[hole] = blocks->rows[at];
            hole = at;
        }
    }
    blocks->rows[hole] = (blocks_row){0};
    blocks->count--;
    return size;
}

nt_live_blocks *
nt_live_blocks_copy(const nt_live_blocks *blocks)
{
    nt_live_blocks *copy = blocks_make(&blocks->alloc, blocks->count);
    if (copy == NULL) {
        return NULL;
    }
    for (uint64_t slot = 0; slot < blocks->slots && copy->count < blocks->count;
         slot++) {
        if (blocks->rows[slot].address != 0) {
            copy->rows[copy->count++] = blocks->rows[slot];
        }
    }
    copy->lost = blocks->lost;
    return copy;
}

uint64_t
nt_live_blocks_count(const nt_live_blocks *blocks)
{
    return blocks->count;
}

int
nt_live_blocks_emit(const nt_live_blocks *blocks, nt_live_builder *builder,
                    int32_t device)
{
    const nt_alloc *alloc = &blocks->alloc;
    const size_t bytes = (size_t)blocks->count * sizeof(nt_sort_item);
    nt_sort_item *order = nt_allocate(alloc, bytes);
    if (order == NULL && bytes != 0) {
        return nt_live_builder_fail(builder, NT_NOMEM);
    }
    size_t count = 0;
    for (uint64_t slot = 0; slot < blocks->slots && count < blocks->count; slot++) {
        if (blocks->rows[slot].address != 0) {
            order[count++] = (nt_sort_item){blocks->rows[slot].address, (uint32_t)slot};
        }
    }
    nt_sort(order, count);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        const blocks_row *row = &blocks->rows[order[i].value];
        failed = nt_live_builder_add_bare(builder, device, row->address, row->size,
                                          row->stack);
    }
    nt_release(alloc, order, bytes);
    return failed;
}
