/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer.h"

#include <string.h>

/* CPython closes a frame when it has grown to this. */
#define WRITER_FRAME ((size_t)64 * 1024)

/* The longest piece that is put into a frame at once; longer strings stand alone. */
#define WRITER_MOST_PIECE ((size_t)1024)

/* Lists and dicts are written in batches of so many items, as CPython does. */
#define WRITER_BATCH 1000

/* Events between two calls of the progress function. */
#define WRITER_TICK ((size_t)1 << 16)

enum {
    KEY_SEGMENTS,
    KEY_DEVICE_TRACES,
    KEY_ALLOCATOR_SETTINGS,
    KEY_EXTERNAL_ANNOTATIONS,
    KEY_DEVICE,
    KEY_ADDRESS,
    KEY_TOTAL_SIZE,
    KEY_ALLOCATED_SIZE,
    KEY_ACTIVE_SIZE,
    KEY_REQUESTED_SIZE,
    KEY_STREAM,
    KEY_SEGMENT_TYPE,
    KEY_SEGMENT_POOL_ID,
    KEY_IS_EXPANDABLE,
    KEY_FRAMES,
    KEY_BLOCKS,
    KEY_SIZE,
    KEY_STATE,
    KEY_NAME,
    KEY_FILENAME,
    KEY_LINE,
    KEY_ACTION,
    KEY_ADDR,
    KEY_DEVICE_FREE,
    KEY_TIME_US,
    KEY_POOL_ID,
    KEY_COMPILE_CONTEXT,
    KEY_USER_METADATA,
    KEY_STAGE,
    WORD_SMALL,
    WORD_LARGE,
    WORD_INACTIVE,
    WORD_ACTIVE_ALLOCATED,
    WORD_ACTIVE_PENDING_FREE,
    WORD_START,
    WORD_END,
    WORDS,
};

static const char *const writer_words[WORDS] = {
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
    "size",
    "state",
    "name",
    "filename",
    "line",
    "action",
    "addr",
    "device_free",
    "time_us",
    "pool_id",
    "compile_context",
    "user_metadata",
    "stage",
    "small",
    "large",
    "inactive",
    "active_allocated",
    "active_pending_free",
    "START",
    "END",
};

/* Memo indexes of what was written already, NT_NONE for what was not. */
typedef struct writer_memo {
    uint32_t *index;
    size_t count;
} writer_memo;

/* The first failure stays in `status`; from then on nothing more is written. */
typedef struct writer {
    nt_alloc alloc;
    const nt_snapshot *snapshot;
    const nt_sink *sink;
    const nt_progress *progress;
    uint32_t keys;
    uint8_t *frame; /* WRITER_FRAME + WRITER_MOST_PIECE bytes */
    size_t length;
    uint32_t memoized;
    writer_memo words, strings, actions, frames, stacks;
    uint64_t done; /* events written */
    nt_status status;
    nt_error *err;
} writer;

static void
writer_emit(writer *w, const void *bytes, size_t count)
{
    if (w->status == NT_OK && w->sink->write(w->sink->ctx, bytes, count) != 0) {
        w->status = nt_fail(w->err, NT_IO, NT_NO_OFFSET, "writing failed");
    }
}

/* Writes the frame gathered so far: its opcode, its length, its bytes. */
static void
writer_flush(writer *w)
{
    if (w->length == 0) {
        return;
    }
    uint8_t head[9] = {0x95};
    for (size_t i = 0; i < 8; i++) {
        head[1 + i] = (uint8_t)((uint64_t)w->length >> 8 * i);
    }
    writer_emit(w, head, sizeof head);
    writer_emit(w, w->frame, w->length);
    w->length = 0;
}

/* Puts one opcode with its argument, at most WRITER_MOST_PIECE bytes. */
static inline void
writer_put(writer *w, const void *bytes, size_t count)
{
    memcpy(w->frame + w->length, bytes, count);
    w->length += count;
    if (w->length >= WRITER_FRAME) {
        writer_flush(w);
    }
}

static inline void
writer_opcode(writer *w, uint8_t opcode)
{
    writer_put(w, &opcode, 1);
}

/* An opcode with the low `width` bytes of `number`. */
static inline void
writer_number(writer *w, uint8_t opcode, uint64_t number, size_t width)
{
    uint8_t bytes[9] = {opcode};
    for (size_t i = 0; i < width; i++) {
        bytes[1 + i] = (uint8_t)(number >> 8 * i);
    }
    writer_put(w, bytes, 1 + width);
}

/* LONG1 with as few bytes as the two's complement needs. */
static void
writer_long(writer *w, uint64_t bits, bool negative)
{
    uint8_t bytes[11] = {0x8a};
    size_t count = 0;
    const uint8_t sign = negative ? 0xff : 0;
    for (; count < 9; count++) {
        bytes[2 + count] = count < 8 ? (uint8_t)(bits >> 8 * count) : sign;
        const uint64_t rest = count < 7 ? bits >> 8 * (count + 1) : 0;
        const uint64_t rest_of_sign =
            negative && count < 7 ? UINT64_MAX >> 8 * (count + 1) : 0;
        if (rest == rest_of_sign && (bytes[2 + count] & 0x80) == (sign & 0x80)) {
            break;
        }
    }
    bytes[1] = (uint8_t)(count + 1);
    writer_put(w, bytes, 3 + count);
}

static void
writer_unsigned(writer *w, uint64_t number)
{
    if (number <= UINT8_MAX) {
        writer_number(w, 'K', number, 1);
    } else if (number <= UINT16_MAX) {
        writer_number(w, 'M', number, 2);
    } else if (number <= INT32_MAX) {
        writer_number(w, 'J', number, 4);
    } else {
        writer_long(w, number, false);
    }
}

static void
writer_signed(writer *w, int64_t number)
{
    if (number >= 0) {
        writer_unsigned(w, (uint64_t)number);
    } else if (number >= INT32_MIN) {
        writer_number(w, 'J', (uint64_t)number, 4);
    } else {
        writer_long(w, (uint64_t)number, true);
    }
}

static void
writer_float(writer *w, double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint8_t bytes[9] = {'G'};
    for (size_t i = 0; i < 8; i++) {
        bytes[1 + i] = (uint8_t)(bits >> 8 * (7 - i));
    }
    writer_put(w, bytes, sizeof bytes);
}

static void
writer_text(writer *w, const char *text, size_t length)
{
    if (length <= UINT8_MAX) {
        uint8_t bytes[2 + UINT8_MAX] = {0x8c, (uint8_t)length};
        memcpy(bytes + 2, text, length);
        writer_put(w, bytes, 2 + length);
        return;
    }
    const bool fits = length <= UINT32_MAX;
    writer_number(w, fits ? 'X' : 0x8d, length, fits ? 4 : 8);
    if (length <= WRITER_MOST_PIECE) {
        writer_put(w, text, length);
    } else if (w->length < 5 + (fits ? 0u : 4u)) {
        /* The opcode went out with the frame before: it may not be cut off. */
        writer_emit(w, text, length);
    } else {
        /* Opcode and text stand outside of any frame. */
        const size_t head = fits ? 5 : 9;
        uint8_t opcode[9];
        w->length -= head;
        memcpy(opcode, w->frame + w->length, head);
        writer_flush(w);
        writer_emit(w, opcode, head);
        writer_emit(w, text, length);
    }
}

static void
writer_memoize(writer *w, writer_memo *memo, uint32_t id)
{
    writer_opcode(w, 0x94);
    if (memo != NULL) {
        memo->index[id] = w->memoized;
    }
    w->memoized++;
}

/* Fetches what was written before; false if it was not. */
static bool
writer_fetch(writer *w, const writer_memo *memo, uint32_t id)
{
    const uint32_t index = memo->index[id];
    if (index == NT_NONE) {
        return false;
    }
    writer_number(w, index <= UINT8_MAX ? 'h' : 'j', index, index <= UINT8_MAX ? 1 : 4);
    return true;
}

static void
writer_word(writer *w, uint32_t word)
{
    if (!writer_fetch(w, &w->words, word)) {
        writer_text(w, writer_words[word], strlen(writer_words[word]));
        writer_memoize(w, &w->words, word);
    }
}

/* The string `id`; None where the file had no string. */
static void
writer_string(writer *w, uint32_t id)
{
    if (id == NT_NONE) {
        writer_opcode(w, 'N');
    } else if (!writer_fetch(w, &w->strings, id)) {
        size_t length;
        const char *text =
            nt_strings_get(nt_snapshot_strings(w->snapshot), id, &length);
        writer_text(w, text, length);
        writer_memoize(w, &w->strings, id);
    }
}

static void
writer_key_unsigned(writer *w, uint32_t key, uint64_t number)
{
    writer_word(w, key);
    writer_unsigned(w, number);
}

static void
writer_bool(writer *w, bool value)
{
    writer_opcode(w, value ? 0x88 : 0x89);
}

static void
writer_begin(writer *w, uint8_t opcode)
{
    writer_opcode(w, opcode);
    writer_memoize(w, NULL, 0);
}

static void
writer_begin_dict(writer *w)
{
    writer_begin(w, '}');
    writer_opcode(w, '(');
}

/* Before item `i` of a list of `count`, and behind the last: batch borders. */
static void
writer_item(writer *w, size_t i, size_t count)
{
    if (i % WRITER_BATCH == 0 && i != 0) {
        writer_opcode(w, 'e');
    }
    if (i % WRITER_BATCH == 0 && i < count) {
        writer_opcode(w, '(');
    } else if (i == count && i % WRITER_BATCH != 0) {
        writer_opcode(w, 'e');
    }
}

static void
writer_pool(writer *w, uint32_t key, uint64_t first, uint64_t second)
{
    writer_word(w, key);
    writer_unsigned(w, first);
    writer_unsigned(w, second);
    writer_opcode(w, 0x86);
    writer_memoize(w, NULL, 0);
}

static void
writer_frame(writer *w, uint32_t id)
{
    if (writer_fetch(w, &w->frames, id)) {
        return;
    }
    const nt_frame *frame = &nt_stacks_frames(nt_snapshot_stacks(w->snapshot))[id];
    writer_opcode(w, '}');
    writer_memoize(w, &w->frames, id);
    writer_opcode(w, '(');
    writer_word(w, KEY_NAME);
    writer_string(w, frame->name);
    writer_word(w, KEY_FILENAME);
    writer_string(w, frame->filename);
    writer_word(w, KEY_LINE);
    writer_signed(w, frame->line);
    writer_opcode(w, 'u');
}

/* The key `frames` with the stack, where one was recorded. */
static void
writer_stack(writer *w, uint32_t stack)
{
    if (stack == NT_NO_STACK) {
        return;
    }
    writer_word(w, KEY_FRAMES);
    if (writer_fetch(w, &w->stacks, stack)) {
        return;
    }
    const nt_stacks *stacks = nt_snapshot_stacks(w->snapshot);
    writer_opcode(w, ']');
    writer_memoize(w, &w->stacks, stack);
    size_t count = 0;
    for (uint32_t s = stack; s != NT_EMPTY_STACK; s = nt_stacks_parent(stacks)[s]) {
        count++;
    }
    size_t i = 0;
    for (uint32_t s = stack; s != NT_EMPTY_STACK; s = nt_stacks_parent(stacks)[s]) {
        writer_item(w, i++, count);
        writer_frame(w, nt_stacks_innermost(stacks)[s]);
    }
    writer_item(w, i, count);
}

static void
writer_block(writer *w, const nt_block_columns *b, size_t row)
{
    static const uint32_t states[NT_BLOCK_STATE_COUNT] = {
        [NT_BLOCK_INACTIVE] = WORD_INACTIVE,
        [NT_BLOCK_ACTIVE_ALLOCATED] = WORD_ACTIVE_ALLOCATED,
        [NT_BLOCK_ACTIVE_PENDING_FREE] = WORD_ACTIVE_PENDING_FREE,
    };
    writer_begin_dict(w);
    if ((w->keys & NT_HAS_BLOCK_ADDRESS) != 0) {
        writer_key_unsigned(w, KEY_ADDRESS, b->address[row]);
    }
    writer_key_unsigned(w, KEY_SIZE, b->size[row]);
    if ((w->keys & NT_HAS_BLOCK_REQUESTED) != 0) {
        writer_key_unsigned(w, KEY_REQUESTED_SIZE, b->requested_size[row]);
    }
    writer_word(w, KEY_STATE);
    writer_word(w, states[b->state[row]]);
    writer_stack(w, b->stack[row]);
    writer_opcode(w, 'u');
}

static void
writer_segment(writer *w, const nt_layout *layout, size_t row)
{
    const nt_segment_columns *s = &layout->segments;
    writer_begin_dict(w);
    writer_key_unsigned(w, KEY_DEVICE, (uint64_t)s->device[row]);
    writer_key_unsigned(w, KEY_ADDRESS, s->address[row]);
    writer_key_unsigned(w, KEY_TOTAL_SIZE, s->total_size[row]);
    writer_key_unsigned(w, KEY_ALLOCATED_SIZE, s->allocated_size[row]);
    writer_key_unsigned(w, KEY_ACTIVE_SIZE, s->active_size[row]);
    if ((w->keys & NT_HAS_SEGMENT_REQUESTED) != 0) {
        writer_key_unsigned(w, KEY_REQUESTED_SIZE, s->requested_size[row]);
    }
    writer_key_unsigned(w, KEY_STREAM, s->stream[row]);
    writer_word(w, KEY_SEGMENT_TYPE);
    writer_word(w, s->kind[row] == NT_POOL_SMALL ? WORD_SMALL : WORD_LARGE);
    if ((w->keys & NT_HAS_SEGMENT_POOL) != 0) {
        writer_pool(w, KEY_SEGMENT_POOL_ID, s->pool_first[row], s->pool_second[row]);
    }
    if ((w->keys & NT_HAS_SEGMENT_EXPANDABLE) != 0) {
        writer_word(w, KEY_IS_EXPANDABLE);
        writer_bool(w, s->is_expandable[row] != 0);
    }
    writer_stack(w, s->stack[row]);
    writer_word(w, KEY_BLOCKS);
    writer_begin(w, ']');
    for (size_t i = 0; i < s->block_count[row]; i++) {
        writer_item(w, i, s->block_count[row]);
        writer_block(w, &layout->blocks, s->block_first[row] + i);
    }
    writer_item(w, s->block_count[row], s->block_count[row]);
    writer_opcode(w, 'u');
}

static void
writer_segments(writer *w, const nt_layout *layout)
{
    const size_t count = layout->segments.count;
    writer_begin(w, ']');
    for (size_t row = 0; row < count && w->status == NT_OK; row++) {
        writer_item(w, row, count);
        writer_segment(w, layout, row);
    }
    writer_item(w, count, count);
}

static void
writer_action(writer *w, uint8_t action)
{
    writer_word(w, KEY_ACTION);
    if (!writer_fetch(w, &w->actions, action)) {
        size_t length;
        const char *name = nt_snapshot_action_name(w->snapshot, action, &length);
        writer_text(w, name, length);
        writer_memoize(w, &w->actions, action);
    }
}

/* A string under `key`, where this event has one. */
static void
writer_optional(writer *w, uint32_t key, const uint32_t *column, size_t row)
{
    if (column != NULL && column[row] != NT_NONE) {
        writer_word(w, key);
        writer_string(w, column[row]);
    }
}

static void
writer_event(writer *w, const nt_event_columns *e, size_t row)
{
    writer_begin_dict(w);
    writer_action(w, e->action[row]);
    if (e->action[row] == NT_ACTION_OOM && e->device_free != NULL) {
        writer_key_unsigned(w, KEY_DEVICE_FREE, e->device_free[row]);
    } else {
        writer_key_unsigned(w, KEY_ADDR, e->addr[row]);
    }
    writer_key_unsigned(w, KEY_SIZE, e->size[row]);
    writer_key_unsigned(w, KEY_STREAM, e->stream[row]);
    if (e->time_us != NULL) {
        writer_word(w, KEY_TIME_US);
        writer_signed(w, e->time_us[row]);
    }
    if (e->pool_first != NULL) {
        writer_pool(w, KEY_POOL_ID, e->pool_first[row], e->pool_second[row]);
    }
    writer_optional(w, KEY_COMPILE_CONTEXT, e->compile_context, row);
    writer_optional(w, KEY_USER_METADATA, e->user_metadata, row);
    writer_stack(w, e->stack[row]);
    writer_opcode(w, 'u');
}

/* The list of the events first .. end - 1, as rows of the snapshot. */
static void
writer_trace(writer *w, size_t first, size_t end)
{
    const nt_event_columns *e = nt_snapshot_events(w->snapshot);
    const size_t count = end - first;
    writer_begin(w, ']');
    for (size_t i = 0; i < count && w->status == NT_OK; i++, w->done++) {
        if (w->done % WRITER_TICK == 0 && w->progress != NULL &&
            w->progress->report(w->progress->ctx, w->done) != 0) {
            w->status = nt_fail(w->err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
        }
        writer_item(w, i, count);
        writer_event(w, e, first + i);
    }
    writer_item(w, count, count);
}

/* The value of a setting; children of dicts and lists follow their row. */
static void
writer_setting(writer *w, const nt_setting *rows, size_t count, size_t row)
{
    const nt_setting *setting = &rows[row];
    switch (setting->kind) {
    case NT_SETTING_BOOL: writer_bool(w, setting->integer != 0); return;
    case NT_SETTING_INT: writer_signed(w, setting->integer); return;
    case NT_SETTING_FLOAT: writer_float(w, setting->real); return;
    case NT_SETTING_STRING: writer_string(w, setting->string); return;
    case NT_SETTING_NONE: writer_opcode(w, 'N'); return;
    default: break;
    }
    /* The reader bounds the depth, so this recursion is bounded as well. */
    const bool is_dict = setting->kind == NT_SETTING_DICT;
    writer_begin(w, is_dict ? '}' : ']');
    writer_opcode(w, '(');
    for (size_t child = row + 1; child < count; child++) {
        if (rows[child].parent == row) {
            if (is_dict) {
                writer_string(w, rows[child].key);
            }
            writer_setting(w, rows, count, child);
        }
    }
    writer_opcode(w, is_dict ? 'u' : 'e');
}

static void
writer_settings(writer *w)
{
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(w->snapshot, &count);
    writer_word(w, KEY_ALLOCATOR_SETTINGS);
    writer_begin_dict(w);
    for (size_t row = 0; row < count; row++) {
        if (rows[row].parent == NT_NONE) {
            writer_string(w, rows[row].key);
            writer_setting(w, rows, count, row);
        }
    }
    writer_opcode(w, 'u');
}

static void
writer_annotations(writer *w)
{
    const nt_annotation_columns *a = nt_snapshot_annotations(w->snapshot);
    writer_word(w, KEY_EXTERNAL_ANNOTATIONS);
    writer_begin(w, ']');
    for (size_t row = 0; row < a->count; row++) {
        writer_item(w, row, a->count);
        writer_begin_dict(w);
        writer_word(w, KEY_STAGE);
        writer_word(w, a->stage[row] == NT_STAGE_START ? WORD_START : WORD_END);
        writer_word(w, KEY_NAME);
        writer_string(w, a->name[row]);
        writer_key_unsigned(w, KEY_DEVICE, (uint64_t)a->device[row]);
        writer_word(w, KEY_TIME_US);
        writer_signed(w, a->time_us[row]);
        writer_opcode(w, 'u');
    }
    writer_item(w, a->count, a->count);
}

/* Which events are written: all, or a range of one device. */
typedef struct writer_range {
    bool is_whole;
    size_t device, first, end;
} writer_range;

static void
writer_traces(writer *w, const writer_range *range)
{
    const size_t count = nt_snapshot_trace_count(w->snapshot);
    writer_word(w, KEY_DEVICE_TRACES);
    writer_begin(w, ']');
    for (size_t device = 0; device < count; device++) {
        size_t first, events;
        nt_snapshot_trace(w->snapshot, device, &first, &events);
        writer_item(w, device, count);
        if (range->is_whole) {
            writer_trace(w, first, first + events);
        } else if (device == range->device) {
            writer_trace(w, first + range->first, first + range->end);
        } else {
            writer_trace(w, first, first);
        }
    }
    writer_item(w, count, count);
}

static nt_status
writer_run(writer *w, const nt_layout *layout, const writer_range *range)
{
    const uint8_t proto[2] = {0x80, 4};
    writer_emit(w, proto, sizeof proto);
    if ((w->keys & NT_SEGMENTS_ONLY) != 0) {
        writer_segments(w, layout);
    } else {
        writer_begin_dict(w);
        writer_word(w, KEY_SEGMENTS);
        writer_segments(w, layout);
        if ((w->keys & NT_HAS_TRACES) != 0) {
            writer_traces(w, range);
        }
        if ((w->keys & NT_HAS_SETTINGS) != 0) {
            writer_settings(w);
        }
        if ((w->keys & NT_HAS_ANNOTATIONS) != 0) {
            writer_annotations(w);
        }
        writer_opcode(w, 'u');
    }
    writer_opcode(w, '.');
    writer_flush(w);
    return w->status;
}

static nt_status
writer_make_memo(writer *w, writer_memo *memo, size_t count)
{
    size_t bytes;
    memo->index = nt_size_mul(count, sizeof(uint32_t), &bytes)
                      ? nt_allocate(&w->alloc, bytes)
                      : NULL;
    if (memo->index == NULL && count != 0) {
        return nt_fail_nomem(w->err);
    }
    memo->count = count;
    if (count != 0) {
        memset(memo->index, 0xff, bytes);
    }
    return NT_OK;
}

static nt_status
writer_prepare(writer *w)
{
    const nt_snapshot *s = w->snapshot;
    w->frame = nt_allocate(&w->alloc, WRITER_FRAME + WRITER_MOST_PIECE);
    if (w->frame == NULL) {
        return nt_fail_nomem(w->err);
    }
    NT_TRY(writer_make_memo(w, &w->words, WORDS));
    NT_TRY(writer_make_memo(w, &w->strings, nt_strings_count(nt_snapshot_strings(s))));
    NT_TRY(writer_make_memo(w, &w->actions, nt_snapshot_action_count(s)));
    NT_TRY(writer_make_memo(w, &w->frames, nt_stacks_frame_count(nt_snapshot_stacks(s))));
    return writer_make_memo(w, &w->stacks, nt_stacks_count(nt_snapshot_stacks(s)));
}

static void
writer_release_memo(writer *w, writer_memo *memo)
{
    nt_release(&w->alloc, memo->index, memo->count * sizeof(uint32_t));
}

static nt_status
writer_save(writer *w, const nt_layout *layout, const writer_range *range)
{
    nt_status status = writer_prepare(w);
    if (status == NT_OK) {
        status = writer_run(w, layout, range);
    }
    nt_release(&w->alloc, w->frame, WRITER_FRAME + WRITER_MOST_PIECE);
    writer_release_memo(w, &w->words);
    writer_release_memo(w, &w->strings);
    writer_release_memo(w, &w->actions);
    writer_release_memo(w, &w->frames);
    writer_release_memo(w, &w->stacks);
    return status;
}

nt_status
nt_writer_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
               const nt_progress *progress, nt_error *err)
{
    writer w = {
        .alloc = *alloc,
        .snapshot = snapshot,
        .sink = sink,
        .progress = progress,
        .keys = nt_snapshot_keys(snapshot),
        .err = err,
    };
    const writer_range whole = {.is_whole = true};
    return writer_save(&w, nt_snapshot_layout(snapshot), &whole);
}

nt_status
nt_writer_save_range(const nt_alloc *alloc, const nt_timeline *timeline, int32_t device,
                     size_t first, size_t end, const nt_sink *sink,
                     const nt_progress *progress, nt_error *err)
{
    if (first > end || end > nt_timeline_event_count(timeline) || device < 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "events %zu to %zu are not a range of the %zu there are", first,
                       end, nt_timeline_event_count(timeline));
    }
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    writer w = {
        .alloc = *alloc,
        .snapshot = snapshot,
        .sink = sink,
        .progress = progress,
        /* The layout is worked out here, so it has all of its keys. */
        .keys = nt_snapshot_keys(snapshot) | NT_HAS_BLOCK_ADDRESS |
                NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |
                NT_HAS_SEGMENT_POOL | NT_HAS_SEGMENT_EXPANDABLE,
        .err = err,
    };
    nt_layout *layout;
    NT_TRY(nt_timeline_layout(timeline, (int32_t)end - 1, &layout, err));
    const writer_range range = {.device = (size_t)device, .first = first, .end = end};
    const nt_status status = writer_save(&w, layout, &range);
    nt_timeline_layout_free(timeline, layout);
    return status;
}
