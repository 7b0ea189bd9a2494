/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_reader.h"

#include <stdio.h>
#include <string.h>

#include "trace/nt_invariants.h"
#include "trace/nt_pickle.h"
#include "trace/nt_reader_schema.h"
#include "trace/nt_rounding.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_source.h"

enum { KIND_EVENT, KIND_FRAME, KINDS };

/* Action codes are remembered for string ids below this; actions are among the first
 * strings of a file. */
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

/* Rows may be shared by reference in a pickle, and each reference makes a row. Every
 * item and pair of an honest file costs a byte at least, so one that asks for more of
 * them than its size (and these free ones) unfolds itself. */
#define FREE_WORK (UINT64_C(1) << 20)

const char *const nt_reader_words[WORDS] = {NT_READER_RECORD_KEYS(NT_READER_WORD)
                                                NT_READER_OTHER_WORDS(NT_READER_WORD)};

/* NT_MALFORMED about one row; the offset is filled in by nt_pickle where it can. */
static nt_status
reader_malformed(nt_reader *r, nt_reader_place place, const char *what)
{
    (void)nt_fail(r->err, NT_MALFORMED, NT_NO_OFFSET, "%s %llu: %s", place.table,
                  (unsigned long long)place.row, what);
    return NT_MALFORMED;
}

static nt_status
reader_wrong_type(nt_reader *r, nt_reader_place place, uint32_t key, const char *wanted)
{
    (void)nt_fail(r->err, NT_MALFORMED, NT_NO_OFFSET, "%s %llu: '%s' is not %s",
                  place.table, (unsigned long long)place.row, nt_reader_words[key],
                  wanted);
    return NT_MALFORMED;
}

/* Charges `units` of work; a file can only ask for work in proportion to its size. */
static nt_status
reader_charge(nt_reader *r, uint64_t units)
{
    r->work += units;
    if (r->work > FREE_WORK + nt_source_offset(r->source)) {
        return nt_fail(
            r->err, NT_LIMIT, NT_NO_OFFSET,
            "the file refers to the same data over and over: it would unfold "
            "to far more than its size");
    }
    return NT_OK;
}

/* Whether a key is not there or holds None. */
static bool
reader_is_missing(nt_value value)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    return tag == NT_VALUE_ABSENT || tag == NT_VALUE_NONE;
}

/* One field each: *out is left as it was where the key is missing, and a value of
 * another type is NT_MALFORMED with the row and key in the message. None is no integer,
 * and True is one only as a flag. */
static nt_status
reader_integer(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
               uint64_t *out)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    if (tag == NT_VALUE_ABSENT ||
        (tag != NT_VALUE_BOOL && nt_values_get_integer(r->values, value, out))) {
        return NT_OK;
    }
    return reader_wrong_type(r, place, key, "an integer of 64 bits");
}

static nt_status
reader_flag(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
            bool *out)
{
    uint64_t bits = *out;
    if (!reader_is_missing(value) && !nt_values_get_integer(r->values, value, &bits)) {
        return reader_wrong_type(r, place, key, "true or false");
    }
    *out = bits != 0;
    return NT_OK;
}

/* NT_MALFORMED where the key is missing: without it nothing can be said of the row. */
static nt_status
reader_needs(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value)
{
    if (nt_value_tag_of(value) != NT_VALUE_ABSENT) {
        return NT_OK;
    }
    (void)nt_fail(r->err, NT_MALFORMED, NT_NO_OFFSET, "%s %llu: it has no '%s'",
                  place.table, (unsigned long long)place.row, nt_reader_words[key]);
    return NT_MALFORMED;
}

static nt_status
reader_string(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
              uint32_t *out)
{
    if (reader_is_missing(value)) {
        return NT_OK;
    }
    if (nt_value_tag_of(value) != NT_VALUE_STRING) {
        return reader_wrong_type(r, place, key, "a string");
    }
    *out = nt_value_id(value);
    return NT_OK;
}

static nt_status
reader_device(nt_reader *r, nt_reader_place place, nt_value value, int32_t *out)
{
    uint64_t number = 0;
    NT_TRY(reader_integer(r, place, KEY_DEVICE, value, &number));
    if (number >= MOST_DEVICES) {
        return reader_wrong_type(r, place, KEY_DEVICE, "a device number");
    }
    *out = (int32_t)number;
    return NT_OK;
}

/* The items of a tuple or list; NULL for anything else and for empty ones. */
static const nt_value_pair *
reader_items(const nt_reader *r, nt_value value, size_t *count)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    *count = 0;
    return tag == NT_VALUE_TUPLE || tag == NT_VALUE_LIST
               ? nt_values_pairs(r->values, value, count)
               : NULL;
}

/* A pool id, written as a tuple or a list of two integers. */
static nt_status
reader_pool(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
            nt_pool_id *out)
{
    if (reader_is_missing(value)) {
        return NT_OK;
    }
    size_t count;
    const nt_value_pair *items = reader_items(r, value, &count);
    if (count != 2 || !nt_values_get_integer(r->values, items[0].first, &out->first) ||
        !nt_values_get_integer(r->values, items[1].first, &out->second)) {
        return reader_wrong_type(r, place, key, "a pair of integers");
    }
    return NT_OK;
}

/* What PyTorch adds to frames of generated code under augment_with_fx_traces, 2.10. */
static nt_status
reader_fx(nt_reader *r, nt_reader_place place, const nt_value fields[4], uint32_t *out)
{
    nt_fx_node node;
    uint32_t *const into[4] = {&node.op, &node.name, &node.target, &node.trace};
    bool is_known = false;
    for (size_t i = 0; i < 4; i++) {
        *into[i] = NT_NONE;
        NT_TRY(
            reader_string(r, place, KEY_FX_NODE_OP + (uint32_t)i, fields[i], into[i]));
        is_known = is_known || *into[i] != NT_NONE;
    }
    return is_known ? nt_stacks_intern_fx(r->stacks, node, out, r->err) : NT_OK;
}

/* `fields`: the file, the name, the line, and the four of reader_fx. */
static nt_status
reader_make_frame(nt_reader *r, const nt_value fields[7], uint32_t *id)
{
    const nt_reader_place place = {"frame", nt_stacks_frame_count(r->stacks)};
    nt_frame frame = {.name = NT_NONE, .filename = NT_NONE};
    uint64_t line = 0;
    NT_TRY(reader_string(r, place, KEY_FILENAME, fields[0], &frame.filename));
    NT_TRY(reader_string(r, place, KEY_NAME, fields[1], &frame.name));
    if (!reader_is_missing(fields[2])) {
        NT_TRY(reader_integer(r, place, KEY_LINE, fields[2], &line));
    }
    if (frame.name == NT_NONE || frame.filename == NT_NONE) {
        uint32_t empty;
        NT_TRY(nt_strings_intern(r->strings, "", 0, &empty, r->err));
        frame.name = frame.name == NT_NONE ? empty : frame.name;
        frame.filename = frame.filename == NT_NONE ? empty : frame.filename;
    }
    frame.line = (int64_t)line;
    NT_TRY(reader_fx(r, place, fields + 3, &frame.fx));
    return nt_stacks_intern_frame(r->stacks, frame, id, r->err);
}

/* A stack whose frames are not all records: dicts without a filename. */
static nt_status
reader_odd_stack(nt_reader *r, nt_reader_place place, const nt_value_pair *items,
                 size_t count, uint32_t *out)
{
    NT_TRY(reader_charge(r, count));
    size_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t step = 0; step < items[i].second; step++) {
            NT_TRY(reader_charge(r, 1));
            NT_TRY(
                NT_GROW(&r->alloc, r->frames, r->frames_capacity, filled + 1, r->err));
            const nt_value item = items[i].first;
            if (nt_value_tag_of(item) == NT_VALUE_RECORD &&
                nt_value_kind(item) == KIND_FRAME) {
                r->frames[filled++] = nt_value_id(item) + (uint32_t)step;
                continue;
            }
            if (nt_value_tag_of(item) != NT_VALUE_DICT) {
                return reader_wrong_type(r, place, KEY_FRAMES, "a list of frames");
            }
            const nt_value fields[7] = {
                NT_VALUE_ABSENT,
                nt_values_lookup(r->values, item, KEY_NAME),
                nt_values_lookup(r->values, item, KEY_LINE),
                NT_VALUE_ABSENT,
                NT_VALUE_ABSENT,
                NT_VALUE_ABSENT,
                NT_VALUE_ABSENT,
            };
            NT_TRY(reader_make_frame(r, fields, &r->frames[filled++]));
        }
    }
    return nt_stacks_intern(r->stacks, r->frames, filled, out, r->err);
}

/* The stack under `frames`: NT_NO_STACK where the key is missing. */
static nt_status
reader_stack(nt_reader *r, nt_reader_place place, nt_value value, uint32_t *out)
{
    if (nt_value_tag_of(value) == NT_VALUE_SEQUENCE) {
        *out = nt_value_id(value);
        return NT_OK;
    }
    if (reader_is_missing(value)) {
        *out = NT_NO_STACK;
        return NT_OK;
    }
    size_t count;
    const nt_value_pair *items = reader_items(r, value, &count);
    if (items == NULL && nt_value_tag_of(value) != NT_VALUE_LIST &&
        nt_value_tag_of(value) != NT_VALUE_TUPLE) {
        return reader_wrong_type(r, place, KEY_FRAMES, "a list");
    }
    if (count == 0) {
        *out = NT_EMPTY_STACK;
        return NT_OK;
    }
    return reader_odd_stack(r, place, items, count, out);
}

/* What the pickle reader tells ------------------------------------------- */

static nt_status
reader_action(nt_reader *r, nt_reader_place place, nt_value value, uint8_t *out)
{
    if (nt_value_tag_of(value) != NT_VALUE_STRING) {
        return reader_wrong_type(r, place, KEY_ACTION, "a string");
    }
    const uint32_t id = nt_value_id(value);
    if (id < ACTION_CACHE && r->action_codes[id] != ACTION_UNKNOWN) {
        *out = r->action_codes[id];
        return NT_OK;
    }
    NT_TRY(nt_snapshot_intern_action(r->snapshot, id, out, r->err));
    if (id < ACTION_CACHE) {
        r->action_codes[id] = *out;
    }
    return NT_OK;
}

/* The keys that are told apart as present or not, by their bit in `present`. */
static uint32_t
reader_event_keys(uint32_t present)
{
    uint32_t keys = 0;
    keys |= (present >> KEY_TIME_US & 1) * NT_HAS_EVENT_TIME;
    keys |= (present >> KEY_DEVICE_FREE & 1) * NT_HAS_EVENT_DEVICE_FREE;
    keys |= (present >> KEY_POOL_ID & 1) * NT_HAS_EVENT_POOL;
    keys |= (present >> KEY_COMPILE_CONTEXT & 1) * NT_HAS_EVENT_COMPILE_CONTEXT;
    keys |= (present >> KEY_USER_METADATA & 1) * NT_HAS_EVENT_USER_METADATA;
    keys |= (present >> KEY_INTERNAL_METADATA & 1) * NT_HAS_EVENT_INTERNAL;
    keys |= (present >> KEY_FORWARD_FRAMES & 1) * NT_HAS_EVENT_FORWARD;
    return keys;
}

/* reader_integer for what is nearly always a small one. */
static inline nt_status
reader_number(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
              uint64_t *out)
{
    if (NT_LIKELY(nt_value_tag_of(value) == NT_VALUE_INT)) {
        *out = nt_value_int(value);
        return NT_OK;
    }
    return reader_integer(r, place, key, value, out);
}

/* The stack whose frames have the texts of a list as names, in their order. */
static nt_status
reader_forward(nt_reader *r, nt_reader_place place, nt_value value, uint32_t *out)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    if (tag != NT_VALUE_LIST && tag != NT_VALUE_TUPLE) {
        return reader_wrong_type(r, place, KEY_FORWARD_FRAMES, "a list of strings");
    }
    size_t count;
    uint32_t empty;
    const nt_value_pair *items = reader_items(r, value, &count);
    NT_TRY(reader_charge(r, count));
    NT_TRY(nt_strings_intern(r->strings, "", 0, &empty, r->err));
    for (size_t i = 0; i < count; i++) {
        NT_TRY(NT_GROW(&r->alloc, r->frames, r->frames_capacity, i + 1, r->err));
        if (nt_value_tag_of(items[i].first) != NT_VALUE_STRING) {
            return reader_wrong_type(r, place, KEY_FORWARD_FRAMES, "a list of strings");
        }
        const nt_frame frame = {.name = nt_value_id(items[i].first), .filename = empty};
        NT_TRY(nt_stacks_intern_frame(r->stacks, frame, &r->frames[i], r->err));
    }
    return nt_stacks_intern(r->stacks, r->frames, count, out, r->err);
}

/* Events from which on their density in the file says how many more there are. */
#define READER_SAMPLE ((size_t)1 << 16)

/* The columns of events are full: how many are likely to come in all, if the rest of
 * the input has as many a byte as what came since they were full last. */
static void
reader_expect_events(nt_reader *r, nt_events *events)
{
    const uint64_t offset = nt_source_offset(r->source), total = r->source->total;
    const size_t count = events->columns.count;
    events->expected = 0;
    if (count >= READER_SAMPLE && total > offset && offset > r->full_offset) {
        const double density =
            (double)(count - r->full_count) / (double)(offset - r->full_offset);
        const double more = density * (double)(total - offset) * (1 + 1.0 / 64);
        /* By an eighth at least, so that guesses that are too low stay few. */
        const double least = (double)count / 8;
        const double expected = (double)count + (more > least ? more : least);
        events->expected = expected < (double)UINT32_MAX ? (size_t)expected : 0;
    }
    r->full_count = count;
    r->full_offset = offset;
}

/* What few events have, or what nearly all have that have it. */
static nt_status
reader_event_extras(nt_reader *r, nt_reader_place place, const nt_value *fields,
                    nt_event *event)
{
    NT_TRY(reader_number(r, place, KEY_DEVICE_FREE, fields[KEY_DEVICE_FREE],
                         &event->device_free));
    NT_TRY(reader_pool(r, place, KEY_POOL_ID, fields[KEY_POOL_ID], &event->pool));
    NT_TRY(reader_string(r, place, KEY_COMPILE_CONTEXT, fields[KEY_COMPILE_CONTEXT],
                         &event->compile_context));
    NT_TRY(reader_string(r, place, KEY_USER_METADATA, fields[KEY_USER_METADATA],
                         &event->user_metadata));
    NT_TRY(reader_string(r, place, KEY_INTERNAL_METADATA, fields[KEY_INTERNAL_METADATA],
                         &event->internal_metadata));
    if (NT_UNLIKELY(!reader_is_missing(fields[KEY_FORWARD_FRAMES]))) {
        NT_TRY(reader_forward(r, place, fields[KEY_FORWARD_FRAMES], &event->forward));
    }
    if (NT_UNLIKELY(event->internal_metadata != NT_NONE)) {
        event->action = nt_events_as_internal(event->action);
    }
    return NT_OK;
}

/* What an event must tell, by its action: a bit a key. */
static uint32_t
reader_needed(uint8_t action)
{
    if (action <= NT_ACTION_SEGMENT_UNMAP) {
        return UINT32_C(1) << KEY_ADDR | UINT32_C(1) << KEY_SIZE;
    }
    return action == NT_ACTION_OOM ? UINT32_C(1) << KEY_SIZE : 0;
}

static inline nt_status
reader_add_event(nt_reader *r, const nt_value *fields, uint32_t present, uint32_t *id)
{
    nt_events *const events = nt_snapshot_event_table(r->snapshot);
    const nt_reader_place place = {"event", events->columns.count};
    /* All of them: a compiler clears one that is named in part as a whole before. */
    nt_event event = {
        .action = 0,
        .addr = 0,
        .size = 0,
        .stream = 0,
        .time_us = 0,
        .device_free = 0,
        .pool = {0, 0},
        .stack = nt_value_id(fields[KEY_FRAMES]),
        .compile_context = NT_NONE,
        .user_metadata = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    if (place.row >= NT_NONE) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 events");
    }
    uint64_t time_us = 0;
    NT_TRY(reader_action(r, place, fields[KEY_ACTION], &event.action));
    if (NT_UNLIKELY((reader_needed(event.action) & ~present) != 0)) {
        const uint32_t key =
            (present >> KEY_SIZE & 1) != 0 ? (uint32_t)KEY_ADDR : (uint32_t)KEY_SIZE;
        return reader_needs(r, place, key, NT_VALUE_ABSENT);
    }
    NT_TRY(reader_number(r, place, KEY_ADDR, fields[KEY_ADDR], &event.addr));
    NT_TRY(reader_number(r, place, KEY_SIZE, fields[KEY_SIZE], &event.size));
    NT_TRY(reader_number(r, place, KEY_STREAM, fields[KEY_STREAM], &event.stream));
    NT_TRY(reader_number(r, place, KEY_TIME_US, fields[KEY_TIME_US], &time_us));
    NT_TRY(reader_event_extras(r, place, fields, &event));
    if (nt_value_tag_of(fields[KEY_FRAMES]) != NT_VALUE_SEQUENCE) {
        NT_TRY(reader_stack(r, place, fields[KEY_FRAMES], &event.stack));
    }
    event.time_us = (int64_t)time_us;
    if (NT_UNLIKELY(present != r->event_present)) {
        r->event_present = present;
        r->keys |= reader_event_keys(present);
    }
    *id = (uint32_t)place.row;
    if (NT_UNLIKELY(events->columns.count >= events->room)) {
        reader_expect_events(r, events);
    }
    return nt_events_add(events, &event, r->err);
}

/* The visitor's functions (nt_pickle.h). */
static nt_status
reader_on_record(void *ctx, uint32_t kind, const nt_value *fields, uint32_t present,
                 uint32_t *id, nt_error *err)
{
    nt_reader *r = ctx;
    r->err = err;
    if (kind == KIND_EVENT) {
        return reader_add_event(r, fields, present, id);
    }
    const nt_value frame[7] = {
        fields[KEY_FILENAME],
        fields[KEY_NAME],
        fields[KEY_LINE],
        fields[KEY_FX_NODE_OP],
        fields[KEY_FX_NODE_NAME],
        fields[KEY_FX_NODE_TARGET],
        fields[KEY_FX_ORIGINAL_TRACE],
    };
    return reader_make_frame(r, frame, id);
}

static nt_status
reader_on_sequence(void *ctx, const uint32_t *records, size_t count, uint32_t *id,
                   nt_error *err)
{
    nt_reader *r = ctx;
    return nt_stacks_intern(r->stacks, records, count, id, err);
}

static const uint8_t reader_tags[KINDS] = {
    [KIND_EVENT] = KEY_ACTION,
    [KIND_FRAME] = KEY_FILENAME,
};

/* What stands in the finished pickle ------------------------------------- */

/* A dict's own value under `key`; its size is charged by the caller. */
static nt_value
reader_get(const nt_reader *r, nt_value dict, uint32_t key)
{
    return nt_values_lookup(r->values, dict, key);
}

static nt_status
reader_check_dict(nt_reader *r, nt_reader_place place, nt_value value)
{
    if (nt_value_tag_of(value) != NT_VALUE_DICT) {
        return reader_malformed(r, place, "it is not a dict of the expected keys");
    }
    size_t pairs;
    (void)nt_values_pairs(r->values, value, &pairs);
    return reader_charge(r, pairs + 1);
}

static nt_status
reader_block_state(nt_reader *r, nt_reader_place place, nt_value value, uint8_t *out)
{
    uint32_t word = WORD_INACTIVE;
    NT_TRY(reader_string(r, place, KEY_STATE, value, &word));
    switch (word) {
    case WORD_INACTIVE: *out = NT_BLOCK_INACTIVE; return NT_OK;
    case WORD_ACTIVE_ALLOCATED: *out = NT_BLOCK_ACTIVE_ALLOCATED; return NT_OK;
    case WORD_ACTIVE_PENDING_FREE:
    case WORD_ACTIVE_AWAITING_FREE: *out = NT_BLOCK_ACTIVE_PENDING_FREE; return NT_OK;
    default: return reader_malformed(r, place, "its 'state' is none that PyTorch has");
    }
}

/* Before torch 2.1 a block tells of its allocation in its `history`'s first entry. */
static nt_status
reader_block_history(nt_reader *r, nt_reader_place place, nt_value dict,
                     nt_block *block)
{
    size_t count;
    const nt_value history = reader_get(r, dict, KEY_HISTORY);
    const nt_value_pair *items = reader_items(r, history, &count);
    if (count == 0 || nt_value_tag_of(items[0].first) != NT_VALUE_DICT) {
        return NT_OK;
    }
    const nt_value first = items[0].first;
    NT_TRY(reader_check_dict(r, place, first));
    if (reader_is_missing(reader_get(r, dict, KEY_REQUESTED_SIZE))) {
        const nt_value real_size = reader_get(r, first, KEY_REAL_SIZE);
        NT_TRY(
            reader_integer(r, place, KEY_REAL_SIZE, real_size, &block->requested_size));
        r->keys |= reader_is_missing(real_size) ? 0 : NT_HAS_BLOCK_REQUESTED;
    }
    if (block->stack == NT_NO_STACK) {
        return reader_stack(r, place, reader_get(r, first, KEY_FRAMES), &block->stack);
    }
    return NT_OK;
}

/* The layout that segments are read into: that before the traces comes last. */
static const nt_layout *
reader_layout(const nt_reader *r)
{
    const nt_layout *before = nt_snapshot_before(r->snapshot);
    return before != NULL ? before : nt_snapshot_layout(r->snapshot);
}

/* One block; *next is the address it has where the file does not say. */
static nt_status
reader_block(nt_reader *r, nt_value dict, uint64_t *next)
{
    const nt_reader_place place = {"block", reader_layout(r)->blocks.count};
    NT_TRY(reader_check_dict(r, place, dict));
    nt_block block = {.address = *next};
    const nt_value address = reader_get(r, dict, KEY_ADDRESS);
    const nt_value requested = reader_get(r, dict, KEY_REQUESTED_SIZE);
    NT_TRY(reader_needs(r, place, KEY_SIZE, reader_get(r, dict, KEY_SIZE)));
    NT_TRY(reader_integer(r, place, KEY_ADDRESS, address, &block.address));
    NT_TRY(
        reader_integer(r, place, KEY_SIZE, reader_get(r, dict, KEY_SIZE), &block.size));
    NT_TRY(
        reader_integer(r, place, KEY_REQUESTED_SIZE, requested, &block.requested_size));
    NT_TRY(reader_block_state(r, place, reader_get(r, dict, KEY_STATE), &block.state));
    NT_TRY(reader_stack(r, place, reader_get(r, dict, KEY_FRAMES), &block.stack));
    NT_TRY(reader_block_history(r, place, dict, &block));
    r->keys |= reader_is_missing(address) ? 0 : NT_HAS_BLOCK_ADDRESS;
    r->keys |= reader_is_missing(requested) ? 0 : NT_HAS_BLOCK_REQUESTED;
    *next = block.address + block.size;
    return nt_snapshot_add_block(r->snapshot, &block, r->err);
}

/* The pool by its name, or by the segment's size where there is no name. */
static nt_status
reader_segment_kind(nt_reader *r, nt_reader_place place, nt_value dict,
                    nt_segment *segment)
{
    uint32_t word = segment->total_size <= NT_SMALL_BUFFER ? WORD_SMALL : WORD_LARGE;
    NT_TRY(reader_string(r, place, KEY_SEGMENT_TYPE,
                         reader_get(r, dict, KEY_SEGMENT_TYPE), &word));
    if (word != WORD_SMALL && word != WORD_LARGE) {
        return reader_malformed(r, place,
                                "its 'segment_type' is not 'small' or 'large'");
    }
    segment->kind = word == WORD_SMALL ? NT_POOL_SMALL : NT_POOL_LARGE;
    return NT_OK;
}

static nt_status
reader_segment_sizes(nt_reader *r, nt_reader_place place, nt_value dict,
                     nt_segment *segment)
{
    const struct {
        uint32_t key;
        uint64_t *out;
    } fields[] = {
        {KEY_ADDRESS, &segment->address},
        {KEY_TOTAL_SIZE, &segment->total_size},
        {KEY_ALLOCATED_SIZE, &segment->allocated_size},
        {KEY_ACTIVE_SIZE, &segment->active_size},
        {KEY_REQUESTED_SIZE, &segment->requested_size},
        {KEY_STREAM, &segment->stream},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        NT_TRY(reader_integer(r, place, fields[i].key,
                              reader_get(r, dict, fields[i].key), fields[i].out));
    }
    return NT_OK;
}

static nt_status
reader_segment_fields(nt_reader *r, nt_reader_place place, nt_value dict,
                      nt_segment *segment)
{
    const nt_value pool = reader_get(r, dict, KEY_SEGMENT_POOL_ID);
    const nt_value expandable = reader_get(r, dict, KEY_IS_EXPANDABLE);
    if (!r->is_host) { /* PyTorch calls the host device -1; a snapshot of it has one */
        NT_TRY(
            reader_device(r, place, reader_get(r, dict, KEY_DEVICE), &segment->device));
    }
    NT_TRY(reader_segment_sizes(r, place, dict, segment));
    NT_TRY(reader_pool(r, place, KEY_SEGMENT_POOL_ID, pool, &segment->pool));
    NT_TRY(reader_segment_kind(r, place, dict, segment));
    NT_TRY(
        reader_flag(r, place, KEY_IS_EXPANDABLE, expandable, &segment->is_expandable));
    NT_TRY(reader_stack(r, place, reader_get(r, dict, KEY_FRAMES), &segment->stack));
    r->keys |= reader_is_missing(pool) ? 0 : NT_HAS_SEGMENT_POOL;
    r->keys |= reader_is_missing(expandable) ? 0 : NT_HAS_SEGMENT_EXPANDABLE;
    static const struct {
        uint32_t key, bit;
    } sums[] = {
        {KEY_REQUESTED_SIZE, NT_HAS_SEGMENT_REQUESTED},
        {KEY_ALLOCATED_SIZE, NT_HAS_SEGMENT_ALLOCATED},
        {KEY_ACTIVE_SIZE, NT_HAS_SEGMENT_ACTIVE},
    };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        const bool known = !reader_is_missing(reader_get(r, dict, sums[i].key));
        r->keys |= known ? sums[i].bit : 0;
    }
    return NT_OK;
}

/* Calls `each` for every item of a list, charging for it. */
static nt_status
reader_each(nt_reader *r, nt_reader_place place, nt_value list, uint64_t *state,
            nt_status (*each)(nt_reader *r, nt_value item, uint64_t *state))
{
    size_t count;
    const nt_value_pair *items = reader_items(r, list, &count);
    if (items == NULL && !reader_is_missing(list) &&
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return reader_malformed(r, place, "a list was expected");
    }
    for (size_t i = 0; i < count; i++) {
        NT_TRY(reader_charge(r, items[i].second));
        for (uint64_t step = 0; step < items[i].second; step++) {
            NT_TRY(each(r, nt_values_resolve(r->values, items[i].first), state));
        }
    }
    return NT_OK;
}

static nt_status
reader_segment(nt_reader *r, nt_value dict, uint64_t *unused)
{
    (void)unused;
    const nt_reader_place place = {r->is_host ? "host segment" : "segment",
                                   reader_layout(r)->segments.count};
    NT_TRY(reader_check_dict(r, place, dict));
    if (place.row >= MOST_SEGMENTS) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET, "more than %zu segments",
                       MOST_SEGMENTS);
    }
    if (nt_value_tag_of(reader_get(r, dict, KEY_SEGMENTS)) != NT_VALUE_ABSENT) {
        return reader_malformed(r, place, "it is a whole snapshot, in a list");
    }
    NT_TRY(reader_needs(r, place, KEY_ADDRESS, reader_get(r, dict, KEY_ADDRESS)));
    NT_TRY(reader_needs(r, place, KEY_TOTAL_SIZE, reader_get(r, dict, KEY_TOTAL_SIZE)));
    nt_segment segment = {.stack = NT_NO_STACK};
    NT_TRY(reader_segment_fields(r, place, dict, &segment));
    NT_TRY(nt_snapshot_add_segment(r->snapshot, &segment, r->err));
    uint64_t next = segment.address;
    return reader_each(r, place, reader_get(r, dict, KEY_BLOCKS), &next, reader_block);
}

static nt_status
reader_annotation(nt_reader *r, nt_value dict, uint64_t *unused)
{
    (void)unused;
    const nt_reader_place place = {"annotation",
                                   nt_snapshot_annotations(r->snapshot)->count};
    NT_TRY(reader_check_dict(r, place, dict));
    nt_annotation annotation = {.name = NT_NONE};
    uint32_t word = WORD_START;
    uint64_t time_us = 0;
    NT_TRY(reader_string(r, place, KEY_STAGE, reader_get(r, dict, KEY_STAGE), &word));
    if (word != WORD_START && word != WORD_END) {
        return reader_malformed(r, place, "its 'stage' is not 'START' or 'END'");
    }
    annotation.stage = word == WORD_START ? NT_STAGE_START : NT_STAGE_END;
    NT_TRY(reader_string(r, place, KEY_NAME, reader_get(r, dict, KEY_NAME),
                         &annotation.name));
    NT_TRY(
        reader_device(r, place, reader_get(r, dict, KEY_DEVICE), &annotation.device));
    NT_TRY(reader_integer(r, place, KEY_TIME_US, reader_get(r, dict, KEY_TIME_US),
                          &time_us));
    if (time_us > (uint64_t)NT_MOST_TIME) {
        return reader_malformed(r, place, "its 'time_us' is no time");
    }
    annotation.time_us = (int64_t)time_us;
    return nt_snapshot_add_annotation(r->snapshot, &annotation, r->err);
}

static nt_status
reader_setting_row(nt_reader *r, nt_value value, nt_setting *row)
{
    const nt_reader_place place = {"setting", 0};
    uint64_t bits = 0;
    switch (nt_value_tag_of(value)) {
    case NT_VALUE_BOOL: row->kind = NT_SETTING_BOOL; break;
    case NT_VALUE_INT:
    case NT_VALUE_BIG: row->kind = NT_SETTING_INT; break;
    case NT_VALUE_FLOAT:
        row->kind = NT_SETTING_FLOAT;
        row->real = nt_values_get_float(r->values, value);
        break;
    case NT_VALUE_STRING:
        row->kind = NT_SETTING_STRING;
        row->string = nt_value_id(value);
        break;
    case NT_VALUE_DICT: row->kind = NT_SETTING_DICT; break;
    case NT_VALUE_LIST:
    case NT_VALUE_TUPLE: row->kind = NT_SETTING_LIST; break;
    default: row->kind = NT_SETTING_NONE; break;
    }
    if (row->kind == NT_SETTING_BOOL || row->kind == NT_SETTING_INT) {
        if (!nt_values_get_integer(r->values, value, &bits)) {
            return reader_malformed(r, place, "an integer does not fit 64 bits");
        }
        row->integer = (int64_t)bits;
    }
    return NT_OK;
}

static nt_status
reader_setting(nt_reader *r, nt_value key, nt_value value, uint32_t parent,
               unsigned depth);

/* The pairs of a dict under strings. Of equal keys the last one counts: `last` has the
 * number of each key's last pair. */
static nt_status
reader_setting_pairs(nt_reader *r, nt_map *last, const nt_value_pair *pairs,
                     size_t count, uint32_t parent, unsigned depth)
{
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(pairs[i].first) == NT_VALUE_STRING) {
            NT_TRY(nt_map_set(last, pairs[i].first, (uint32_t)i, r->err));
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(pairs[i].first) == NT_VALUE_STRING &&
            nt_map_find(last, pairs[i].first) == i) {
            NT_TRY(reader_setting(r, pairs[i].first, pairs[i].second, parent, depth));
        }
    }
    return NT_OK;
}

/* The children of the dict or list at row `parent`, depth first. */
static nt_status
reader_settings(nt_reader *r, nt_value container, uint32_t parent, unsigned depth)
{
    if (depth > MOST_SETTING_DEPTH) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET,
                       "allocator_settings is nested more than %d deep",
                       MOST_SETTING_DEPTH);
    }
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(r->values, container, &count);
    NT_TRY(reader_charge(r, count));
    if (nt_value_tag_of(container) == NT_VALUE_DICT) {
        nt_map last;
        nt_map_init(&last, r->alloc);
        const nt_status status =
            reader_setting_pairs(r, &last, pairs, count, parent, depth);
        nt_map_clear(&last);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        NT_TRY(reader_setting(r, NT_VALUE_ABSENT, pairs[i].first, parent, depth));
    }
    return NT_OK;
}

/* The row of `value` under `key` (absent in a list), and the rows of what is in it. */
static nt_status
reader_setting(nt_reader *r, nt_value key, nt_value value, uint32_t parent,
               unsigned depth)
{
    const bool is_keyed = key != NT_VALUE_ABSENT;
    nt_setting row = {.parent = parent, .key = is_keyed ? nt_value_id(key) : NT_NONE};
    value = nt_values_resolve(r->values, value);
    NT_TRY(reader_setting_row(r, value, &row));
    size_t rows;
    (void)nt_snapshot_setting_rows(r->snapshot, &rows);
    NT_TRY(nt_snapshot_add_setting(r->snapshot, &row, r->err));
    if (row.kind == NT_SETTING_DICT || row.kind == NT_SETTING_LIST) {
        return reader_settings(r, value, (uint32_t)rows, depth + 1);
    }
    return NT_OK;
}

/* The list of one device's events: their runs become its trace. */
static nt_status
reader_trace(nt_reader *r, nt_value list, uint64_t *device)
{
    const nt_reader_place place = {"trace of device", (*device)++};
    size_t count;
    if (place.row >= MOST_DEVICES) {
        return nt_fail(r->err, NT_LIMIT, NT_NO_OFFSET, "more than %d devices",
                       MOST_DEVICES);
    }
    const nt_value_pair *items = reader_items(r, list, &count);
    if (items == NULL && nt_value_tag_of(list) != NT_VALUE_LIST) {
        return reader_malformed(r, place, "a list of events was expected");
    }
    NT_TRY(nt_snapshot_arrange_trace(r->snapshot, r->err));
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(items[i].first) != NT_VALUE_RECORD ||
            nt_value_kind(items[i].first) != KIND_EVENT) {
            return reader_malformed(r, place, "an entry has no 'action'");
        }
        NT_TRY(reader_charge(r, items[i].second));
        NT_TRY(nt_snapshot_arrange_events(r->snapshot, nt_value_id(items[i].first),
                                          (size_t)items[i].second, r->err));
    }
    return NT_OK;
}

/* Copies the events of the host's trace, one list, out of those that were read. */
static nt_status
reader_host_trace(nt_reader *r, nt_value list, const nt_event_columns *events)
{
    const nt_reader_place place = {"trace of host", 0};
    size_t count;
    const nt_value_pair *items = reader_items(r, list, &count);
    if (items == NULL && !reader_is_missing(list) &&
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return reader_malformed(r, place, "a list of events was expected");
    }
    NT_TRY(nt_snapshot_begin_trace(r->snapshot, r->err));
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(items[i].first) != NT_VALUE_RECORD ||
            nt_value_kind(items[i].first) != KIND_EVENT) {
            return reader_malformed(r, place, "an entry has no 'action'");
        }
        NT_TRY(reader_charge(r, items[i].second));
        for (uint64_t k = 0; k < items[i].second; k++) {
            const nt_event event =
                nt_events_row(events, nt_value_id(items[i].first) + (size_t)k);
            NT_TRY(nt_snapshot_add_event(r->snapshot, &event, r->err));
        }
    }
    return NT_OK;
}

static bool
reader_is_empty(const nt_reader *r, nt_value list)
{
    size_t count;
    return reader_is_missing(list) || (nt_value_tag_of(list) == NT_VALUE_LIST &&
                                       reader_items(r, list, &count) == NULL);
}

/* The pinned memory of the host, where the file has any; torch 2.14. */
static nt_status
reader_host(nt_reader *r, nt_value segments, nt_value trace)
{
    if (reader_is_empty(r, segments) && reader_is_empty(r, trace)) {
        return NT_OK;
    }
    nt_snapshot *device = r->snapshot;
    const uint32_t keys = r->keys;
    NT_TRY(nt_snapshot_begin_host(device, &r->snapshot, r->err));
    r->is_host = true;
    r->keys = (keys & NT_HAS_EVENT) | NT_HAS_TRACES | NT_HAS_SETTINGS;
    uint64_t unused = 0;
    nt_status status = reader_each(r, (nt_reader_place){"host_segments", 0}, segments,
                                   &unused, reader_segment);
    if (status == NT_OK) {
        status = reader_host_trace(r, trace, nt_snapshot_events(device));
    }
    nt_snapshot_set_keys(r->snapshot, r->keys);
    if (status == NT_OK) {
        status = nt_invariants_check(&r->alloc, r->snapshot, r->err);
    }
    r->snapshot = device;
    r->is_host = false;
    r->keys = keys;
    return status;
}

static nt_status
reader_ignored(nt_reader *r, nt_value root)
{
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(r->values, root, &count);
    NT_TRY(reader_charge(r, count));
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = nt_value_id(pairs[i].first);
        if (nt_value_tag_of(pairs[i].first) == NT_VALUE_STRING &&
            (key < KEY_SEGMENTS || key > KEY_SEGMENTS_BEFORE)) {
            NT_TRY(nt_snapshot_add_ignored(r->snapshot, key, r->err));
        }
    }
    return NT_OK;
}

static nt_status
reader_dict_root(nt_reader *r, nt_value root)
{
    const nt_value segments = reader_get(r, root, KEY_SEGMENTS);
    const nt_value traces = reader_get(r, root, KEY_DEVICE_TRACES);
    const nt_value settings = reader_get(r, root, KEY_ALLOCATOR_SETTINGS);
    const nt_value annotations = reader_get(r, root, KEY_EXTERNAL_ANNOTATIONS);
    const nt_value before = reader_get(r, root, KEY_SEGMENTS_BEFORE);
    if (reader_is_missing(segments) && reader_is_missing(traces)) {
        return nt_fail(
            r->err, NT_MALFORMED, NT_NO_OFFSET,
            "the pickle is a dict without 'segments' and 'device_traces': not "
            "a snapshot of the CUDA caching allocator");
    }
    uint64_t state = 0;
    const nt_reader_place top = {"snapshot", 0};
    NT_TRY(reader_each(r, top, segments, &state, reader_segment));
    NT_TRY(reader_each(r, top, traces, &state, reader_trace));
    NT_TRY(reader_each(r, top, annotations, &state, reader_annotation));
    NT_TRY(reader_host(r, reader_get(r, root, KEY_HOST_SEGMENTS),
                       reader_get(r, root, KEY_HOST_TRACES)));
    if (nt_value_tag_of(settings) == NT_VALUE_DICT) {
        NT_TRY(reader_settings(r, settings, NT_NONE, 0));
        r->keys |= NT_HAS_SETTINGS;
    }
    r->keys |= reader_is_missing(traces) ? 0 : NT_HAS_TRACES;
    r->keys |= reader_is_missing(annotations) ? 0 : NT_HAS_ANNOTATIONS;
    if (!reader_is_missing(before)) {
        nt_snapshot_begin_before(r->snapshot);
        NT_TRY(reader_each(r, top, before, &state, reader_segment));
        r->keys |= NT_HAS_BEFORE;
    }
    return reader_ignored(r, root);
}

static nt_status
reader_root(nt_reader *r, nt_value root)
{
    switch (nt_value_tag_of(root)) {
    case NT_VALUE_DICT: NT_TRY(reader_dict_root(r, root)); break;
    case NT_VALUE_LIST: {
        uint64_t state = 0;
        r->keys |= NT_SEGMENTS_ONLY;
        NT_TRY(reader_each(r, (nt_reader_place){"snapshot", 0}, root, &state,
                           reader_segment));
        break;
    }
    default:
        return nt_fail(r->err, NT_MALFORMED, NT_NO_OFFSET,
                       "the pickle holds neither a dict nor a list: not a snapshot of "
                       "the CUDA caching allocator");
    }
    return nt_snapshot_arrange(r->snapshot, r->err);
}

static nt_status
reader_run(nt_reader *r, nt_source *source)
{
    const nt_pickle_visitor visitor = {
        .ctx = r,
        .words = nt_reader_words,
        .word_count = WORDS,
        .key_count = RECORD_KEYS,
        .tags = reader_tags,
        .kind_count = KINDS,
        .sequence_kind = KIND_FRAME,
        .bound = {KEY_TOTAL_SIZE, MOST_SEGMENTS, "segments"},
        .record = reader_on_record,
        .sequence = reader_on_sequence,
    };
    nt_pickle_result result;
    NT_TRY(nt_pickle_read(&r->alloc, source, r->strings, r->values, &visitor, &result,
                          r->err));
    NT_TRY(reader_root(r, result.root));
    if (result.truncated) {
        char reason[128];
        (void)snprintf(reason, sizeof reason,
                       "the file ends after %llu bytes, before the pickle does",
                       (unsigned long long)result.end_offset);
        nt_snapshot_set_partial(r->snapshot, reason);
    }
    nt_snapshot_set_keys(r->snapshot, r->keys);
    NT_TRY(nt_invariants_check(&r->alloc, r->snapshot, r->err));
    return nt_snapshot_seal(r->snapshot, r->err);
}

nt_status
nt_reader_load(const nt_alloc *alloc, nt_source *source, nt_snapshot **out,
               nt_error *err)
{
    nt_error own = {.offset = NT_NO_OFFSET};
    nt_reader r = {.alloc = *alloc, .source = source, .err = err == NULL ? &own : err};
    memset(r.action_codes, ACTION_UNKNOWN, sizeof r.action_codes);
    nt_status status = nt_snapshot_new(alloc, &r.snapshot, r.err);
    if (status == NT_OK) {
        r.strings = nt_snapshot_strings(r.snapshot);
        r.stacks = nt_snapshot_stacks(r.snapshot);
        status = nt_values_new(alloc, &r.values, r.err);
    }
    if (status == NT_OK) {
        status = reader_run(&r, source);
    }
    nt_values_free(r.values);
    NT_RELEASE(alloc, r.frames, r.frames_capacity);
    if (status != NT_OK) {
        nt_snapshot_free(r.snapshot);
        return status;
    }
    *out = r.snapshot;
    return NT_OK;
}
