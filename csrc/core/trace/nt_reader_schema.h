/* SPDX-License-Identifier: Apache-2.0 */
/* The words of PyTorch's snapshot schema and its limits, for reader, writer, pack. */
#ifndef NT_READER_SCHEMA_H
#define NT_READER_SCHEMA_H

#include <stddef.h>

/* The keys of records come first: they are what nt_pickle looks for. The others are
 * interned behind them, so that every key of the schema is its own string id. */
#define NT_READER_RECORD_KEYS(X)                                                       \
    X(KEY_ACTION, "action")                                                            \
    X(KEY_ADDR, "addr")                                                                \
    X(KEY_SIZE, "size")                                                                \
    X(KEY_STREAM, "stream")                                                            \
    X(KEY_TIME_US, "time_us")                                                          \
    X(KEY_DEVICE_FREE, "device_free")                                                  \
    X(KEY_POOL_ID, "pool_id")                                                          \
    X(KEY_COMPILE_CONTEXT, "compile_context")                                          \
    X(KEY_USER_METADATA, "user_metadata")                                              \
    X(KEY_INTERNAL_METADATA, "internal_metadata")                                      \
    X(KEY_FORWARD_FRAMES, "forward_frames")                                            \
    X(KEY_FRAMES, "frames")                                                            \
    X(KEY_FILENAME, "filename")                                                        \
    X(KEY_NAME, "name")                                                                \
    X(KEY_LINE, "line")                                                                \
    X(KEY_FX_NODE_OP, "fx_node_op")                                                    \
    X(KEY_FX_NODE_NAME, "fx_node_name")                                                \
    X(KEY_FX_NODE_TARGET, "fx_node_target")                                            \
    X(KEY_FX_ORIGINAL_TRACE, "fx_original_trace")

#define NT_READER_OTHER_WORDS(X)                                                       \
    X(KEY_SEGMENTS, "segments")                                                        \
    X(KEY_DEVICE_TRACES, "device_traces")                                              \
    X(KEY_ALLOCATOR_SETTINGS, "allocator_settings")                                    \
    X(KEY_EXTERNAL_ANNOTATIONS, "external_annotations")                                \
    X(KEY_HOST_SEGMENTS, "host_segments")                                              \
    X(KEY_HOST_TRACES, "host_traces")                                                  \
    X(KEY_SEGMENTS_BEFORE, "segments_before")                                          \
    X(KEY_DEVICE, "device")                                                            \
    X(KEY_ADDRESS, "address")                                                          \
    X(KEY_TOTAL_SIZE, "total_size")                                                    \
    X(KEY_ALLOCATED_SIZE, "allocated_size")                                            \
    X(KEY_ACTIVE_SIZE, "active_size")                                                  \
    X(KEY_REQUESTED_SIZE, "requested_size")                                            \
    X(KEY_SEGMENT_TYPE, "segment_type")                                                \
    X(KEY_SEGMENT_POOL_ID, "segment_pool_id")                                          \
    X(KEY_IS_EXPANDABLE, "is_expandable")                                              \
    X(KEY_BLOCKS, "blocks")                                                            \
    X(KEY_STATE, "state")                                                              \
    X(KEY_HISTORY, "history")                                                          \
    X(KEY_REAL_SIZE, "real_size")                                                      \
    X(KEY_STAGE, "stage")                                                              \
    X(WORD_SMALL, "small")                                                             \
    X(WORD_LARGE, "large")                                                             \
    X(WORD_INACTIVE, "inactive")                                                       \
    X(WORD_ACTIVE_ALLOCATED, "active_allocated")                                       \
    X(WORD_ACTIVE_PENDING_FREE, "active_pending_free")                                 \
    X(WORD_ACTIVE_AWAITING_FREE, "active_awaiting_free")                               \
    X(WORD_START, "START")                                                             \
    X(WORD_END, "END")

#define NT_READER_ID(id, word) id,
#define NT_READER_WORD(id, word) word,

enum {
    NT_READER_RECORD_KEYS(NT_READER_ID) NT_READER_OTHER_WORDS(NT_READER_ID) WORDS,
    RECORD_KEYS = KEY_SEGMENTS,
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
