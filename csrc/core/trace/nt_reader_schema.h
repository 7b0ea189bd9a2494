/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of PyTorch's snapshot schema and how its fields are read, shared by
 * nt_reader.c (what stands in the finished pickle) and nt_reader_fields.c (single
 * fields, frames and events as they come). nt_writer.c takes the words; nobody else
 * takes anything.
 */
#ifndef NT_READER_SCHEMA_H
#define NT_READER_SCHEMA_H

#include "trace/nt_pickle.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_source.h"

/* The keys of records come first: they are what nt_pickle looks for. The others
 * are interned behind them, so that every key of the schema is its own string id. */
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

enum { KIND_EVENT, KIND_FRAME, KINDS };

/* Devices of a snapshot; PyTorch numbers them in a byte. */
#define MOST_DEVICES 1024

/* Segments of a snapshot: more than the largest device has of the smallest segments,
 * and few enough for a report that lists them. */
#define MOST_SEGMENTS ((size_t)1 << 19)

/* Deepest nesting of allocator_settings; PyTorch's has two levels. */
#define MOST_SETTING_DEPTH 8

/* Action codes are remembered for string ids below this; actions are among the
 * first strings of a file. */
#define ACTION_CACHE 256
#define ACTION_UNKNOWN UINT8_MAX

typedef struct nt_reader {
    nt_snapshot *snapshot; /* while the host's memory is read, that of it */
    bool is_host;
    nt_strings *strings;
    nt_stacks *stacks;
    nt_values *values;
    uint32_t keys;          /* NT_HAS_... seen so far */
    uint32_t event_present; /* the keys of the last event, which are in `keys` */
    uint8_t action_codes[ACTION_CACHE];
    const nt_source *source; /* how far it has come bounds `work` */
    /* Events and bytes when the columns of events were last full. */
    size_t full_count;
    uint64_t full_offset;
    uint64_t work;    /* pairs and items looked at so far */
    uint32_t *frames; /* ids of a stack that holds plain dicts */
    size_t frames_capacity;
    nt_alloc alloc;
    nt_error *err; /* never NULL */
} nt_reader;

/* Which row of which table a message is about. */
typedef struct nt_reader_place {
    const char *table;
    uint64_t row;
} nt_reader_place;

/* NT_MALFORMED about one row; the offset is filled in by nt_pickle where it can. */
nt_status
nt_reader_malformed(nt_reader *r, nt_reader_place place, const char *what);

/* Charges `units` of work; a file can only ask for work in proportion to its size. */
nt_status
nt_reader_charge(nt_reader *r, uint64_t units);

/* Whether a key is not there or holds None. */
bool
nt_reader_is_missing(nt_value value);

/* One field each: *out is left as it was where the key is missing, and a value of
 * another type is NT_MALFORMED with the row and key in the message. None is no integer,
 * and True is one only as a flag. */
nt_status
nt_reader_integer(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
                  uint64_t *out);
nt_status
nt_reader_flag(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
               bool *out);
/* NT_MALFORMED where the key is missing: without it nothing can be said of the row. */
nt_status
nt_reader_needs(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value);
nt_status
nt_reader_string(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
                 uint32_t *out);
nt_status
nt_reader_device(nt_reader *r, nt_reader_place place, nt_value value, int32_t *out);
nt_status
nt_reader_pool(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
               nt_pool_id *out);

/* The stack under `frames`: NT_NO_STACK where the key is missing. */
nt_status
nt_reader_stack(nt_reader *r, nt_reader_place place, nt_value value, uint32_t *out);

/* The items of a tuple or list; NULL for anything else and for empty ones. */
const nt_value_pair *
nt_reader_items(const nt_reader *r, nt_value value, size_t *count);

/* The visitor's functions (nt_pickle.h). */
nt_status
nt_reader_on_record(void *ctx, uint32_t kind, const nt_value *fields, uint32_t present,
                    uint32_t *id, nt_error *err);
nt_status
nt_reader_on_sequence(void *ctx, const uint32_t *records, size_t count, uint32_t *id,
                      nt_error *err);

#endif
