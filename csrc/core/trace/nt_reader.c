/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_reader.h"

#include <stdio.h>
#include <string.h>

#include "trace/nt_invariants.h"
#include "trace/nt_reader_schema.h"
#include "trace/nt_rounding.h"

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
        return nt_reader_malformed(r, place, "it is not a dict of the expected keys");
    }
    size_t pairs;
    (void)nt_values_pairs(r->values, value, &pairs);
    return nt_reader_charge(r, pairs + 1);
}

static nt_status
reader_block_state(nt_reader *r, nt_reader_place place, nt_value value, uint8_t *out)
{
    uint32_t word = WORD_INACTIVE;
    NT_TRY(nt_reader_string(r, place, KEY_STATE, value, &word));
    switch (word) {
    case WORD_INACTIVE: *out = NT_BLOCK_INACTIVE; return NT_OK;
    case WORD_ACTIVE_ALLOCATED: *out = NT_BLOCK_ACTIVE_ALLOCATED; return NT_OK;
    case WORD_ACTIVE_PENDING_FREE:
    case WORD_ACTIVE_AWAITING_FREE: *out = NT_BLOCK_ACTIVE_PENDING_FREE; return NT_OK;
    default:
        return nt_reader_malformed(r, place, "its 'state' is none that PyTorch has");
    }
}

/* Before torch 2.1 a block tells of its allocation in its `history`'s first entry. */
static nt_status
reader_block_history(nt_reader *r, nt_reader_place place, nt_value dict,
                     nt_block *block)
{
    size_t count;
    const nt_value history = reader_get(r, dict, KEY_HISTORY);
    const nt_value_pair *items = nt_reader_items(r, history, &count);
    if (count == 0 || nt_value_tag_of(items[0].first) != NT_VALUE_DICT) {
        return NT_OK;
    }
    const nt_value first = items[0].first;
    NT_TRY(reader_check_dict(r, place, first));
    if (nt_reader_is_missing(reader_get(r, dict, KEY_REQUESTED_SIZE))) {
        const nt_value real_size = reader_get(r, first, KEY_REAL_SIZE);
        NT_TRY(nt_reader_integer(r, place, KEY_REAL_SIZE, real_size,
                                 &block->requested_size));
        r->keys |= nt_reader_is_missing(real_size) ? 0 : NT_HAS_BLOCK_REQUESTED;
    }
    if (block->stack == NT_NO_STACK) {
        return nt_reader_stack(r, place, reader_get(r, first, KEY_FRAMES),
                               &block->stack);
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
    NT_TRY(nt_reader_needs(r, place, KEY_SIZE, reader_get(r, dict, KEY_SIZE)));
    NT_TRY(nt_reader_integer(r, place, KEY_ADDRESS, address, &block.address));
    NT_TRY(nt_reader_integer(r, place, KEY_SIZE, reader_get(r, dict, KEY_SIZE),
                             &block.size));
    NT_TRY(nt_reader_integer(r, place, KEY_REQUESTED_SIZE, requested,
                             &block.requested_size));
    NT_TRY(reader_block_state(r, place, reader_get(r, dict, KEY_STATE), &block.state));
    NT_TRY(nt_reader_stack(r, place, reader_get(r, dict, KEY_FRAMES), &block.stack));
    NT_TRY(reader_block_history(r, place, dict, &block));
    r->keys |= nt_reader_is_missing(address) ? 0 : NT_HAS_BLOCK_ADDRESS;
    r->keys |= nt_reader_is_missing(requested) ? 0 : NT_HAS_BLOCK_REQUESTED;
    *next = block.address + block.size;
    return nt_snapshot_add_block(r->snapshot, &block, r->err);
}

/* The pool by its name, or by the segment's size where there is no name. */
static nt_status
reader_segment_kind(nt_reader *r, nt_reader_place place, nt_value dict,
                    nt_segment *segment)
{
    uint32_t word = segment->total_size <= NT_SMALL_BUFFER ? WORD_SMALL : WORD_LARGE;
    NT_TRY(nt_reader_string(r, place, KEY_SEGMENT_TYPE,
                            reader_get(r, dict, KEY_SEGMENT_TYPE), &word));
    if (word != WORD_SMALL && word != WORD_LARGE) {
        return nt_reader_malformed(r, place,
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
        NT_TRY(nt_reader_integer(r, place, fields[i].key,
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
        NT_TRY(nt_reader_device(r, place, reader_get(r, dict, KEY_DEVICE),
                                &segment->device));
    }
    NT_TRY(reader_segment_sizes(r, place, dict, segment));
    NT_TRY(nt_reader_pool(r, place, KEY_SEGMENT_POOL_ID, pool, &segment->pool));
    NT_TRY(reader_segment_kind(r, place, dict, segment));
    NT_TRY(nt_reader_flag(r, place, KEY_IS_EXPANDABLE, expandable,
                          &segment->is_expandable));
    NT_TRY(nt_reader_stack(r, place, reader_get(r, dict, KEY_FRAMES), &segment->stack));
    r->keys |= nt_reader_is_missing(pool) ? 0 : NT_HAS_SEGMENT_POOL;
    r->keys |= nt_reader_is_missing(expandable) ? 0 : NT_HAS_SEGMENT_EXPANDABLE;
    static const struct {
        uint32_t key, bit;
    } sums[] = {
        {KEY_REQUESTED_SIZE, NT_HAS_SEGMENT_REQUESTED},
        {KEY_ALLOCATED_SIZE, NT_HAS_SEGMENT_ALLOCATED},
        {KEY_ACTIVE_SIZE, NT_HAS_SEGMENT_ACTIVE},
    };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        const bool known = !nt_reader_is_missing(reader_get(r, dict, sums[i].key));
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
    const nt_value_pair *items = nt_reader_items(r, list, &count);
    if (items == NULL && !nt_reader_is_missing(list) &&
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return nt_reader_malformed(r, place, "a list was expected");
    }
    for (size_t i = 0; i < count; i++) {
        NT_TRY(nt_reader_charge(r, items[i].second));
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
        return nt_reader_malformed(r, place, "it is a whole snapshot, in a list");
    }
    NT_TRY(nt_reader_needs(r, place, KEY_ADDRESS, reader_get(r, dict, KEY_ADDRESS)));
    NT_TRY(
        nt_reader_needs(r, place, KEY_TOTAL_SIZE, reader_get(r, dict, KEY_TOTAL_SIZE)));
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
    NT_TRY(
        nt_reader_string(r, place, KEY_STAGE, reader_get(r, dict, KEY_STAGE), &word));
    if (word != WORD_START && word != WORD_END) {
        return nt_reader_malformed(r, place, "its 'stage' is not 'START' or 'END'");
    }
    annotation.stage = word == WORD_START ? NT_STAGE_START : NT_STAGE_END;
    NT_TRY(nt_reader_string(r, place, KEY_NAME, reader_get(r, dict, KEY_NAME),
                            &annotation.name));
    NT_TRY(nt_reader_device(r, place, reader_get(r, dict, KEY_DEVICE),
                            &annotation.device));
    NT_TRY(nt_reader_integer(r, place, KEY_TIME_US, reader_get(r, dict, KEY_TIME_US),
                             &time_us));
    if (time_us > (uint64_t)NT_MOST_TIME) {
        return nt_reader_malformed(r, place, "its 'time_us' is no time");
    }
    annotation.time_us = (int64_t)time_us;
    return nt_snapshot_add_annotation(r->snapshot, &annotation, r->err);
}

/* One value of allocator_settings, without its children. */
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
            return nt_reader_malformed(r, place, "an integer does not fit 64 bits");
        }
        row->integer = (int64_t)bits;
    }
    return NT_OK;
}

static nt_status
reader_settings(nt_reader *r, nt_value container, uint32_t parent, unsigned depth);

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
    NT_TRY(nt_reader_charge(r, count));
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
    const nt_value_pair *items = nt_reader_items(r, list, &count);
    if (items == NULL && nt_value_tag_of(list) != NT_VALUE_LIST) {
        return nt_reader_malformed(r, place, "a list of events was expected");
    }
    NT_TRY(nt_snapshot_arrange_trace(r->snapshot, r->err));
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(items[i].first) != NT_VALUE_RECORD ||
            nt_value_kind(items[i].first) != KIND_EVENT) {
            return nt_reader_malformed(r, place, "an entry has no 'action'");
        }
        NT_TRY(nt_reader_charge(r, items[i].second));
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
    const nt_value_pair *items = nt_reader_items(r, list, &count);
    if (items == NULL && !nt_reader_is_missing(list) &&
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return nt_reader_malformed(r, place, "a list of events was expected");
    }
    NT_TRY(nt_snapshot_begin_trace(r->snapshot, r->err));
    for (size_t i = 0; i < count; i++) {
        if (nt_value_tag_of(items[i].first) != NT_VALUE_RECORD ||
            nt_value_kind(items[i].first) != KIND_EVENT) {
            return nt_reader_malformed(r, place, "an entry has no 'action'");
        }
        NT_TRY(nt_reader_charge(r, items[i].second));
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
    return nt_reader_is_missing(list) || (nt_value_tag_of(list) == NT_VALUE_LIST &&
                                          nt_reader_items(r, list, &count) == NULL);
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

/* Notes the keys at the top that are not read. */
static nt_status
reader_ignored(nt_reader *r, nt_value root)
{
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(r->values, root, &count);
    NT_TRY(nt_reader_charge(r, count));
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
    if (nt_reader_is_missing(segments) && nt_reader_is_missing(traces)) {
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
    r->keys |= nt_reader_is_missing(traces) ? 0 : NT_HAS_TRACES;
    r->keys |= nt_reader_is_missing(annotations) ? 0 : NT_HAS_ANNOTATIONS;
    if (!nt_reader_is_missing(before)) {
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
        .record = nt_reader_on_record,
        .sequence = nt_reader_on_sequence,
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
    nt_release(alloc, r.frames, r.frames_capacity * sizeof(uint32_t));
    if (status != NT_OK) {
        nt_snapshot_free(r.snapshot);
        return status;
    }
    *out = r.snapshot;
    return NT_OK;
}
