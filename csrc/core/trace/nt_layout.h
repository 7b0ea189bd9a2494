/* SPDX-License-Identifier: Apache-2.0 */
/* A layout: which block is where in which segment at one moment, as columns. A
 * snapshot's end state is one; the timeline makes one for any event. */
#ifndef NT_LAYOUT_H
#define NT_LAYOUT_H

#include "base/nt_base.h"
#include "base/nt_columns.h"
#include "base/nt_map.h"

typedef enum nt_block_state {
    NT_BLOCK_INACTIVE,
    NT_BLOCK_ACTIVE_ALLOCATED,
    NT_BLOCK_ACTIVE_PENDING_FREE, /* freed by the user, waiting for another stream */
    NT_BLOCK_STATE_COUNT,
} nt_block_state;

typedef enum nt_pool_kind {
    NT_POOL_SMALL,
    NT_POOL_LARGE,
    NT_POOL_KIND_COUNT
} nt_pool_kind;

/* A private pool's id as PyTorch gives it; {0, 0} is the default pool. */
typedef struct nt_pool_id {
    uint64_t first, second;
} nt_pool_id;

/* The stack of a row that had no `frames` key at all. */
#define NT_NO_STACK NT_NONE

typedef struct nt_segment {
    int32_t device;
    uint64_t address;
    uint64_t total_size;
    uint64_t allocated_size;
    uint64_t active_size;
    uint64_t requested_size;
    uint64_t stream;
    nt_pool_id pool;
    uint8_t kind; /* nt_pool_kind; PyTorch's segment_type */
    bool is_expandable;
    uint32_t stack;
} nt_segment;

typedef struct nt_block {
    uint64_t address;
    uint64_t size;
    uint64_t requested_size; /* stale for inactive blocks, as PyTorch writes it */
    uint8_t state;
    uint32_t stack;
} nt_block;

#define NT_SEGMENT_LIST(X, T)                                                          \
    X(T, int32_t, device)                                                              \
    X(T, uint64_t, address)                                                            \
    X(T, uint64_t, total_size)                                                         \
    X(T, uint64_t, allocated_size)                                                     \
    X(T, uint64_t, active_size)                                                        \
    X(T, uint64_t, requested_size)                                                     \
    X(T, uint64_t, stream)                                                             \
    X(T, uint64_t, pool_first)                                                         \
    X(T, uint64_t, pool_second)                                                        \
    X(T, uint8_t, kind)                                                                \
    X(T, uint8_t, is_expandable)                                                       \
    X(T, uint32_t, stack)                                                              \
    X(T, uint32_t, block_first)                                                        \
    X(T, uint32_t, block_count)

/* Never NULL where count > 0. The blocks of segment i are the rows block_first[i] ..
 * block_first[i] + block_count[i] - 1, in the file's order. */
typedef struct nt_segment_columns {
    size_t count;
    NT_SEGMENT_LIST(NT_COLUMN_FIELD, )
} nt_segment_columns;

#define NT_BLOCK_LIST(X, T)                                                            \
    X(T, uint32_t, segment) /* row of its segment */                                   \
    X(T, uint64_t, address)                                                            \
    X(T, uint64_t, size)                                                               \
    X(T, uint64_t, requested_size)                                                     \
    X(T, uint8_t, state)                                                               \
    X(T, uint32_t, stack)

typedef struct nt_block_columns {
    size_t count;
    NT_BLOCK_LIST(NT_COLUMN_FIELD, )
} nt_block_columns;

/* Which block is where at one moment; a snapshot's own end state is one. */
typedef struct nt_layout {
    nt_segment_columns segments;
    nt_block_columns blocks;
} nt_layout;

/* Checks the allocator's invariants of a layout: blocks contiguous, inside their
 * segment and adding up to it, sums equal to the segment's own figures. Returns the
 * first row of a segment that breaks one, or NT_NONE. */
uint32_t
nt_layout_check(const nt_layout *layout);

/* PyTorch's `<metric>.<pool>.current` figures of one device. */
typedef struct nt_pool_stats {
    uint64_t allocation, segment, active, inactive_split;
    uint64_t allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes;
    uint64_t requested_bytes;
} nt_pool_stats;

/* out[NT_POOL_SMALL], out[NT_POOL_LARGE]: summed over the device's segments by the
 * rules of PyTorch's memory_stats(). */
void
nt_layout_stats(const nt_layout *layout, int32_t device,
                nt_pool_stats out[NT_POOL_KIND_COUNT]);

/* Layouts that are built outside a snapshot (by the timeline). A zeroed layout is valid
 * and empty; rows are added as to a snapshot. */
nt_status
nt_layout_add_segment(nt_layout *layout, const nt_alloc *alloc, size_t *capacity,
                      const nt_segment *segment, nt_error *err) NT_CHECKED;
nt_status
nt_layout_add_block(nt_layout *layout, const nt_alloc *alloc, size_t *capacity,
                    const nt_block *block, nt_error *err) NT_CHECKED;
/* Frees the columns; the capacities are those the add functions kept. */
void
nt_layout_clear(nt_layout *layout, const nt_alloc *alloc, size_t segment_capacity,
                size_t block_capacity);

#endif
