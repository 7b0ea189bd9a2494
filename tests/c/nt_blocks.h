/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts made by hand, block by block, for the C tests. */
#ifndef NT_BLOCKS_H
#define NT_BLOCKS_H

#include "fragmentation/nt_fragment.h"
#include "nt_test.h"
#include "trace/nt_layout.h"

/* A layout with memory that does not fail. */
typedef struct nt_blocks {
    nt_alloc alloc;
    nt_layout layout;
    size_t segment_capacity, block_capacity;
    uint64_t end; /* where the next block of the last segment begins */
} nt_blocks;

nt_blocks
nt_blocks_new(void);
void
nt_blocks_clear(nt_blocks *l);

/* A further segment, without blocks; its `total_size` comes with them. */
void
nt_blocks_segment(nt_test *t, nt_blocks *l, nt_segment segment);

/* The next block of the last segment. Every one has a requested_size that is one byte
 * less, inactive ones too: there it is stale, as PyTorch leaves it. */
void
nt_blocks_add(nt_test *t, nt_blocks *l, nt_block_state state, uint64_t size);

/* What nt_fragment makes of a layout; `settings` NULL: the defaults. */
nt_fragment *
nt_blocks_fragment(nt_test *t, const nt_layout *layout, const nt_settings *settings,
                   int32_t device);

/* The reclaimable bytes of all its groups. */
uint64_t
nt_blocks_reclaimable(const nt_fragment *fragment);

#endif
