/* SPDX-License-Identifier: Apache-2.0 */
/* The trace events of a snapshot as columns. Columns that only newer PyTorch writes
 * come into being when the first event needs them. */
#ifndef NT_EVENTS_H
#define NT_EVENTS_H

#include "base/nt_base.h"
#include "base/nt_columns.h"
#include "base/nt_map.h"
#include "trace/nt_layout.h"

/* Trace actions under PyTorch's names. Codes from NT_ACTION_COUNT on stand for actions
 * that only the file names: see nt_snapshot_action_name. */
typedef enum nt_action {
    NT_ACTION_ALLOC,
    NT_ACTION_FREE_REQUESTED,
    NT_ACTION_FREE_COMPLETED,
    NT_ACTION_SEGMENT_ALLOC,
    NT_ACTION_SEGMENT_FREE,
    NT_ACTION_SEGMENT_MAP,
    NT_ACTION_SEGMENT_UNMAP,
    NT_ACTION_SNAPSHOT,
    NT_ACTION_OOM,
    NT_ACTION_ANNOTATE,
    NT_ACTION_USER_DEFINED,
    NT_ACTION_WORKSPACE_SNAPSHOT,
    /* What the allocator asked of itself (internal_metadata): none of the program's, so
     * whoever follows the program's blocks passes over them. */
    NT_ACTION_INTERNAL_ALLOC,
    NT_ACTION_INTERNAL_FREE_REQUESTED,
    NT_ACTION_INTERNAL_FREE_COMPLETED,
    NT_ACTION_COUNT,
} nt_action;

/* The action under PyTorch's name as one of the allocator's own, and back; others stay
 * what they are. */
static inline uint8_t
nt_events_as_internal(uint8_t action)
{
    return action <= NT_ACTION_FREE_COMPLETED
               ? (uint8_t)(NT_ACTION_INTERNAL_ALLOC + action)
               : action;
}

static inline uint8_t
nt_events_as_written(uint8_t action)
{
    return action >= NT_ACTION_INTERNAL_ALLOC && action < NT_ACTION_COUNT
               ? (uint8_t)(action - NT_ACTION_INTERNAL_ALLOC)
               : action;
}

/* Whether the device gets memory back. */
static inline bool
nt_events_is_release(uint8_t action)
{
    return action == NT_ACTION_SEGMENT_FREE || action == NT_ACTION_SEGMENT_UNMAP;
}

/* Which optional keys the file had: bits of nt_snapshot_keys(). */
enum {
    NT_HAS_EVENT_TIME = 1 << 0,            /* time_us, torch 2.2 */
    NT_HAS_EVENT_POOL = 1 << 1,            /* pool_id */
    NT_HAS_EVENT_COMPILE_CONTEXT = 1 << 2, /* torch 2.8 */
    NT_HAS_EVENT_USER_METADATA = 1 << 3,   /* torch 2.10 */
    NT_HAS_EVENT_DEVICE_FREE = 1 << 4,     /* at least one oom event */
    NT_HAS_BLOCK_ADDRESS = 1 << 5,         /* else derived from the segment's */
    NT_HAS_BLOCK_REQUESTED = 1 << 6,       /* requested_size, else 0 */
    NT_HAS_SEGMENT_REQUESTED = 1 << 7,
    NT_HAS_SEGMENT_POOL = 1 << 8,       /* segment_pool_id */
    NT_HAS_SEGMENT_EXPANDABLE = 1 << 9, /* is_expandable */
    NT_HAS_SETTINGS = 1 << 10,          /* allocator_settings, torch 2.3 */
    NT_HAS_ANNOTATIONS = 1 << 11,       /* external_annotations, torch 2.5 */
    NT_HAS_TRACES = 1 << 12,            /* device_traces */
    NT_SEGMENTS_ONLY = 1 << 13,         /* the file is a bare list of segments */
    NT_HAS_SEGMENT_ALLOCATED = 1 << 14, /* allocated_size */
    NT_HAS_SEGMENT_ACTIVE = 1 << 15,    /* active_size */
    NT_HAS_EVENT_INTERNAL = 1 << 16,    /* internal_metadata, torch 2.15 */
    NT_HAS_EVENT_FORWARD = 1 << 17,     /* forward_frames */
    NT_HAS_EVENT = NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL |
        NT_HAS_EVENT_COMPILE_CONTEXT | NT_HAS_EVENT_USER_METADATA |
        NT_HAS_EVENT_DEVICE_FREE | NT_HAS_EVENT_INTERNAL |
        NT_HAS_EVENT_FORWARD, /* those of columns of events */
    NT_HAS_BEFORE = 1 << 18,  /* segments_before: neutracer's own, nt_snapshot_before */
};

/* One trace entry. Ids of strings are NT_NONE where the key was absent. */
typedef struct nt_event {
    uint8_t action;
    uint64_t addr;   /* 0 for oom */
    uint64_t size;   /* as requested; bytes mapped for segment_*; rounded for oom */
    uint64_t stream; /* the raw cudaStream_t */
    int64_t time_us; /* since the epoch; 0 when unknown */
    uint64_t device_free; /* oom only, else 0 */
    nt_pool_id pool;
    uint32_t stack; /* NT_NO_STACK when not recorded */
    uint32_t compile_context;
    uint32_t user_metadata;
    uint32_t internal_metadata;
    uint32_t forward; /* the stack of forward_frames, whose frames have texts as names;
                         NT_NO_STACK when not recorded */
} nt_event;

#define NT_EVENT_LIST(X, T)                                                            \
    X(T, uint8_t, action)                                                              \
    X(T, uint64_t, addr)                                                               \
    X(T, uint64_t, size)                                                               \
    X(T, uint64_t, stream)                                                             \
    X(T, uint32_t, stack)                                                              \
    X(T, int64_t, time_us)          /* NULL without NT_HAS_EVENT_TIME */               \
    X(T, uint64_t, device_free)     /* NULL without NT_HAS_EVENT_DEVICE_FREE */        \
    X(T, uint64_t, pool_first)      /* NULL without NT_HAS_EVENT_POOL */               \
    X(T, uint64_t, pool_second)     /* NULL without NT_HAS_EVENT_POOL */               \
    X(T, uint32_t, compile_context) /* string ids or NT_NONE; NULL without the key */  \
    X(T, uint32_t, user_metadata)   /* the same */                                     \
    X(T, uint32_t, internal_metadata) /* the same */                                   \
    X(T, uint32_t, forward) /* stack ids or NT_NO_STACK; NULL without the key */

/* Columns of `count` rows. A column whose key the file never had is NULL. */
typedef struct nt_event_columns {
    size_t count;
    NT_EVENT_LIST(NT_COLUMN_FIELD, )
} nt_event_columns;

#define NT_EVENT_COLUMNS 13

/* Events that follow each other, as they were added. */
typedef struct nt_event_run {
    size_t first, count;
} nt_event_run;

/* All-zero but for `alloc` is a valid table without events. */
typedef struct nt_events {
    nt_alloc alloc;
    nt_event_columns columns;
    size_t capacity[NT_EVENT_COLUMNS]; /* a column at a time; 0: not in use */
    size_t room;        /* rows that every column in use has room for, or fewer */
    size_t expected;    /* rows that are likely to come in all; 0: not known. Columns
                         * that grow get room for so many, if there is memory for it */
    nt_event_run *runs; /* kept by nt_events_pick */
    size_t run_count, run_capacity;
    size_t picked; /* events in the runs */
} nt_events;

void
nt_events_clear(nt_events *events);

/* Every column can take one more row, and the optional ones that `event` is the first
 * to need exist. */
nt_status
nt_events_reserve(nt_events *events, const nt_event *event, nt_error *err) NT_CHECKED;

/* Whether `event` has a value for a column that is not in use yet. */
static inline bool
nt_events_lacks(const nt_event_columns *columns, const nt_event *event)
{
    return (columns->time_us == NULL && event->time_us != 0) ||
           (columns->device_free == NULL && event->device_free != 0) ||
           (columns->pool_second == NULL &&
            (event->pool.first | event->pool.second) != 0) ||
           (columns->compile_context == NULL && event->compile_context != NT_NONE) ||
           (columns->user_metadata == NULL && event->user_metadata != NT_NONE) ||
           (columns->internal_metadata == NULL &&
            event->internal_metadata != NT_NONE) ||
           (columns->forward == NULL && event->forward != NT_NO_STACK);
}

/* Adds a row; on failure the table is as it was. */
static inline nt_status
nt_events_add(nt_events *events, const nt_event *event, nt_error *err)
{
    nt_event_columns *columns = &events->columns;
    const size_t row = columns->count;
    if (NT_UNLIKELY(row >= events->room || nt_events_lacks(columns, event))) {
        NT_TRY(nt_events_reserve(events, event, err));
    }
    columns->addr[row] = event->addr;
    columns->size[row] = event->size;
    columns->stream[row] = event->stream;
    columns->stack[row] = event->stack;
    if (columns->time_us != NULL) {
        columns->time_us[row] = event->time_us;
    }
    if (columns->device_free != NULL) {
        columns->device_free[row] = event->device_free;
    }
    if (columns->pool_second != NULL) {
        columns->pool_first[row] = event->pool.first;
        columns->pool_second[row] = event->pool.second;
    }
    if (columns->compile_context != NULL) {
        columns->compile_context[row] = event->compile_context;
    }
    if (columns->user_metadata != NULL) {
        columns->user_metadata[row] = event->user_metadata;
    }
    if (columns->internal_metadata != NULL) {
        columns->internal_metadata[row] = event->internal_metadata;
    }
    if (columns->forward != NULL) {
        columns->forward[row] = event->forward;
    }
    columns->action[row] = event->action;
    columns->count = row + 1;
    return NT_OK;
}

/* A row as it was added. */
nt_event
nt_events_row(const nt_event_columns *columns, size_t row);

/* Notes that rows first .. first + count - 1 come next in the final order. */
nt_status
nt_events_pick(nt_events *events, size_t first, size_t count, nt_error *err) NT_CHECKED;

/* Puts the picked rows in order and drops the others. */
nt_status
nt_events_arrange(nt_events *events, nt_error *err) NT_CHECKED;

/* Cuts the columns to size; those of `keys` (NT_HAS_EVENT_...) exist then. */
nt_status
nt_events_seal(nt_events *events, uint32_t keys, nt_error *err) NT_CHECKED;

#endif
