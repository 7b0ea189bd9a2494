/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "trace/nt_reader_schema.h"

/* Rows may be shared by reference in a pickle, and each reference makes a row.
 * Every item and pair of an honest file costs a byte at least, so one that asks
 * for more of them than its size (and these free ones) unfolds itself. */
#define FREE_WORK (UINT64_C(1) << 20)

const char *const nt_reader_words[WORDS] = {
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "device_free",
    "pool_id",
    "compile_context",
    "user_metadata",
    "internal_metadata",
    "forward_frames",
    "frames",
    "filename",
    "name",
    "line",
    "fx_node_op",
    "fx_node_name",
    "fx_node_target",
    "fx_original_trace",
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
    "segments_before",
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
    "state",
    "history",
    "real_size",
    "stage",
    "small",
    "large",
    "inactive",
    "active_allocated",
    "active_pending_free",
    "active_awaiting_free",
    "START",
    "END",
};

nt_status
nt_reader_malformed(nt_reader *r, nt_reader_place place, const char *what)
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

nt_status
nt_reader_charge(nt_reader *r, uint64_t units)
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

bool
nt_reader_is_missing(nt_value value)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    return tag == NT_VALUE_ABSENT || tag == NT_VALUE_NONE;
}

nt_status
nt_reader_integer(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
                  uint64_t *out)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    if (tag == NT_VALUE_ABSENT ||
        (tag != NT_VALUE_BOOL && nt_values_get_integer(r->values, value, out))) {
        return NT_OK;
    }
    return reader_wrong_type(r, place, key, "an integer of 64 bits");
}

nt_status
nt_reader_flag(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
               bool *out)
{
    uint64_t bits = *out;
    if (!nt_reader_is_missing(value) &&
        !nt_values_get_integer(r->values, value, &bits)) {
        return reader_wrong_type(r, place, key, "true or false");
    }
    *out = bits != 0;
    return NT_OK;
}

nt_status
nt_reader_needs(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value)
{
    if (nt_value_tag_of(value) != NT_VALUE_ABSENT) {
        return NT_OK;
    }
    (void)nt_fail(r->err, NT_MALFORMED, NT_NO_OFFSET, "%s %llu: it has no '%s'",
                  place.table, (unsigned long long)place.row, nt_reader_words[key]);
    return NT_MALFORMED;
}

nt_status
nt_reader_string(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
                 uint32_t *out)
{
    if (nt_reader_is_missing(value)) {
        return NT_OK;
    }
    if (nt_value_tag_of(value) != NT_VALUE_STRING) {
        return reader_wrong_type(r, place, key, "a string");
    }
    *out = nt_value_id(value);
    return NT_OK;
}

nt_status
nt_reader_device(nt_reader *r, nt_reader_place place, nt_value value, int32_t *out)
{
    uint64_t number = 0;
    NT_TRY(nt_reader_integer(r, place, KEY_DEVICE, value, &number));
    if (number >= MOST_DEVICES) {
        return reader_wrong_type(r, place, KEY_DEVICE, "a device number");
    }
    *out = (int32_t)number;
    return NT_OK;
}

const nt_value_pair *
nt_reader_items(const nt_reader *r, nt_value value, size_t *count)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    *count = 0;
    return tag == NT_VALUE_TUPLE || tag == NT_VALUE_LIST
               ? nt_values_pairs(r->values, value, count)
               : NULL;
}

/* A pool id, written as a tuple or a list of two integers. */
nt_status
nt_reader_pool(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
               nt_pool_id *out)
{
    if (nt_reader_is_missing(value)) {
        return NT_OK;
    }
    size_t count;
    const nt_value_pair *items = nt_reader_items(r, value, &count);
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
        NT_TRY(nt_reader_string(r, place, KEY_FX_NODE_OP + (uint32_t)i, fields[i],
                                into[i]));
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
    NT_TRY(nt_reader_string(r, place, KEY_FILENAME, fields[0], &frame.filename));
    NT_TRY(nt_reader_string(r, place, KEY_NAME, fields[1], &frame.name));
    if (!nt_reader_is_missing(fields[2])) {
        NT_TRY(nt_reader_integer(r, place, KEY_LINE, fields[2], &line));
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
    NT_TRY(nt_reader_charge(r, count));
    size_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t step = 0; step < items[i].second; step++) {
            NT_TRY(nt_reader_charge(r, 1));
            NT_TRY(nt_grow(&r->alloc, (void **)&r->frames, &r->frames_capacity,
                           filled + 1, sizeof(uint32_t), r->err));
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

nt_status
nt_reader_stack(nt_reader *r, nt_reader_place place, nt_value value, uint32_t *out)
{
    if (nt_value_tag_of(value) == NT_VALUE_SEQUENCE) {
        *out = nt_value_id(value);
        return NT_OK;
    }
    if (nt_reader_is_missing(value)) {
        *out = NT_NO_STACK;
        return NT_OK;
    }
    size_t count;
    const nt_value_pair *items = nt_reader_items(r, value, &count);
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

/* nt_reader_integer for what is nearly always a small one. */
static inline nt_status
reader_number(nt_reader *r, nt_reader_place place, uint32_t key, nt_value value,
              uint64_t *out)
{
    if (NT_LIKELY(nt_value_tag_of(value) == NT_VALUE_INT)) {
        *out = nt_value_int(value);
        return NT_OK;
    }
    return nt_reader_integer(r, place, key, value, out);
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
    const nt_value_pair *items = nt_reader_items(r, value, &count);
    NT_TRY(nt_reader_charge(r, count));
    NT_TRY(nt_strings_intern(r->strings, "", 0, &empty, r->err));
    for (size_t i = 0; i < count; i++) {
        NT_TRY(nt_grow(&r->alloc, (void **)&r->frames, &r->frames_capacity, i + 1,
                       sizeof(uint32_t), r->err));
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
    NT_TRY(nt_reader_pool(r, place, KEY_POOL_ID, fields[KEY_POOL_ID], &event->pool));
    NT_TRY(nt_reader_string(r, place, KEY_COMPILE_CONTEXT, fields[KEY_COMPILE_CONTEXT],
                            &event->compile_context));
    NT_TRY(nt_reader_string(r, place, KEY_USER_METADATA, fields[KEY_USER_METADATA],
                            &event->user_metadata));
    NT_TRY(nt_reader_string(r, place, KEY_INTERNAL_METADATA,
                            fields[KEY_INTERNAL_METADATA], &event->internal_metadata));
    if (NT_UNLIKELY(!nt_reader_is_missing(fields[KEY_FORWARD_FRAMES]))) {
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
        return nt_reader_needs(r, place, key, NT_VALUE_ABSENT);
    }
    NT_TRY(reader_number(r, place, KEY_ADDR, fields[KEY_ADDR], &event.addr));
    NT_TRY(reader_number(r, place, KEY_SIZE, fields[KEY_SIZE], &event.size));
    NT_TRY(reader_number(r, place, KEY_STREAM, fields[KEY_STREAM], &event.stream));
    NT_TRY(reader_number(r, place, KEY_TIME_US, fields[KEY_TIME_US], &time_us));
    NT_TRY(reader_event_extras(r, place, fields, &event));
    if (nt_value_tag_of(fields[KEY_FRAMES]) != NT_VALUE_SEQUENCE) {
        NT_TRY(nt_reader_stack(r, place, fields[KEY_FRAMES], &event.stack));
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

nt_status
nt_reader_on_record(void *ctx, uint32_t kind, const nt_value *fields, uint32_t present,
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

nt_status
nt_reader_on_sequence(void *ctx, const uint32_t *records, size_t count, uint32_t *id,
                      nt_error *err)
{
    nt_reader *r = ctx;
    return nt_stacks_intern(r->stacks, records, count, id, err);
}
