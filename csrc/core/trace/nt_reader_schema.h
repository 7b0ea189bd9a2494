/* SPDX-License-Identifier: Apache-2.0 */
/* The words of PyTorch's snapshot schema and its limits, for reader, writer and pack.
 */
#ifndef NT_READER_SCHEMA_H
#define NT_READER_SCHEMA_H

#include <stddef.h>

/* The keys of records come first: they are what nt_pickle looks for. The others are
 * interned behind them, so that every key of the schema is its own string id. */
enum {
    KEY_ACTION,
    KEY_ADDR,
    KEY_SIZE,
    KEY_STREAM,
    KEY_TIME_US,
    KEY_DEVICE_FREE,
    KEY_POOL_ID,
    KEY_COMPILE_CONTEXT,
    KEY_USER_METADATA,
    KEY_INTERNAL_METADATA,
    KEY_FORWARD_FRAMES,
    KEY_FRAMES,
    KEY_FILENAME,
    KEY_NAME,
    KEY_LINE,
    KEY_FX_NODE_OP,
    KEY_FX_NODE_NAME,
    KEY_FX_NODE_TARGET,
    KEY_FX_ORIGINAL_TRACE,
    RECORD_KEYS,
    KEY_SEGMENTS = RECORD_KEYS,
    KEY_DEVICE_TRACES,
    KEY_ALLOCATOR_SETTINGS,
    KEY_EXTERNAL_ANNOTATIONS,
    KEY_HOST_SEGMENTS,
    KEY_HOST_TRACES,
    KEY_SEGMENTS_BEFORE,
    KEY_DEVICE,
    KEY_ADDRESS,
    KEY_TOTAL_SIZE,
    KEY_ALLOCATED_SIZE,
    KEY_ACTIVE_SIZE,
    KEY_REQUESTED_SIZE,
    KEY_SEGMENT_TYPE,
    KEY_SEGMENT_POOL_ID,
    KEY_IS_EXPANDABLE,
    KEY_BLOCKS,
    KEY_STATE,
    KEY_HISTORY,
    KEY_REAL_SIZE,
    KEY_STAGE,
    WORD_SMALL,
    WORD_LARGE,
    WORD_INACTIVE,
    WORD_ACTIVE_ALLOCATED,
    WORD_ACTIVE_PENDING_FREE,
    WORD_ACTIVE_AWAITING_FREE,
    WORD_START,
    WORD_END,
    WORDS,
};

extern const char *const nt_reader_words[WORDS];

/* Devices of a snapshot; PyTorch numbers them in a byte. */
#define MOST_DEVICES 1024

/* Segments of a snapshot: more than the largest device has of the smallest segments,
 * and few enough for a report that lists them. */
#define MOST_SEGMENTS ((size_t)1 << 19)

/* Deepest nesting of allocator_settings; PyTorch's has two levels. */
#define MOST_SETTING_DEPTH 8

#endif
