/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a snapshot of the live process is made from, shared by nt_live.c (the calls
 * that the shim makes), nt_live_drain.c (rings to events) and nt_live_blocks.c.
 */
#ifndef NT_LIVE_BUILDER_H
#define NT_LIVE_BUILDER_H

#include "trace/nt_live.h"

/* A ring at the moment of the layout, and its entries copied at once, since the
 * producer goes on. Ids of the ring's tables are translated when first met. */
typedef struct nt_live_mark {
    const nt_ring *ring;
    uint64_t start, head; /* of the recording; of the layout */
    uint64_t first;       /* the oldest entry that was whole */
    bool is_cut;          /* earlier entries of the recording are missing */
    nt_live_tail tail;
    nt_ring_entry *entries; /* entry i at i - from */
    uint64_t from;
    size_t room;
    nt_ring_counts counts;             /* when the entries had been copied */
    uint32_t *stacks, *frames, *texts; /* ring id -> the snapshot's, or NT_NONE */
    size_t stack_room, frame_room, text_room;
} nt_live_mark;

typedef struct nt_live_row {
    nt_live_segment segment;
    size_t block_first, block_count;
} nt_live_row;

typedef struct nt_live_block_row {
    nt_live_block block;
    uint32_t stack; /* the ring's; only of bare blocks */
} nt_live_block_row;

struct nt_live_builder {
    nt_alloc alloc;
    const nt_live_source *source;
    nt_live_device_type type;
    uint64_t most_events;
    nt_snapshot *snapshot;
    nt_live_mark *marks;
    size_t mark_count, mark_capacity;
    nt_live_row *segments;
    size_t segment_count, segment_capacity;
    nt_live_block_row *blocks;
    size_t block_count, block_capacity;
    uint32_t keys;
    size_t setting_count;
    nt_status status; /* of the first call that failed */
    nt_error *err;
};

/* Notes a failure, unless there is one already, and returns -1. */
int
nt_live_builder_fail(nt_live_builder *builder, nt_status status);

/* add_bare of nt_live_api. */
int
nt_live_builder_add_bare(nt_live_builder *builder, int32_t device, uint64_t address,
                         uint64_t size, uint32_t stack);

/* Copies the last entries of the mark's ring before its head. */
nt_status
nt_live_mark_copy(nt_live_mark *mark, const nt_alloc *alloc, uint64_t most,
                  nt_error *err);
void
nt_live_mark_clear(nt_live_mark *mark, const nt_alloc *alloc);

/* The entries as events of the trace that was begun last. */
nt_status
nt_live_mark_drain(nt_live_mark *mark, nt_live_builder *builder);

/* The snapshot's id of a stack of the mark's ring; the empty stack for none. */
nt_status
nt_live_mark_stack(nt_live_mark *mark, nt_live_builder *builder, uint32_t stack,
                   uint32_t *out);

#endif
