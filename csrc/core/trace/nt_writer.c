/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer.h"

#include <string.h>

#include "trace/nt_reader_schema.h"
#include "trace/nt_writer_opcodes.h"
#include "trace/nt_writer_parts.h"

/* Events between two calls of the progress function. */
#define WRITER_TICK ((size_t)1 << 16)

void
nt_writer_word(nt_writer *w, uint32_t word)
{
    uint32_t *slot = w->words[word];
    if (!nt_writer_fetch(&w->out, *slot)) {
        nt_writer_text(&w->out, nt_reader_words[word], strlen(nt_reader_words[word]));
        nt_writer_memoize(&w->out, slot);
    }
}

void
nt_writer_string(nt_writer *w, uint32_t id)
{
    if (id == NT_NONE) {
        nt_writer_none(&w->out);
    } else if (!nt_writer_fetch(&w->out, w->strings[id])) {
        size_t length;
        const nt_strings *strings = nt_snapshot_strings(w->snapshot);
        const char *text = nt_strings_get(strings, id, &length);
        nt_writer_text(&w->out, text, length);
        nt_writer_memoize(&w->out, &w->strings[id]);
    }
}

/* A number of 64 bits; from 2^63 on as the negative one with the same bits, because
 * PyTorch's viewer takes no integer of nine bytes. */
static void
writer_unsigned(nt_writer *w, uint32_t key, uint64_t number)
{
    nt_writer_word(w, key);
    nt_writer_integer(&w->out, (int64_t)number);
}

static void
writer_signed(nt_writer *w, uint32_t key, int64_t number)
{
    nt_writer_word(w, key);
    nt_writer_integer(&w->out, number);
}

static void
writer_text(nt_writer *w, uint32_t key, uint32_t id)
{
    nt_writer_word(w, key);
    nt_writer_string(w, id);
}

/* A dict of fewer keys than a batch, from here to writer_end_dict. */
static void
writer_begin_dict(nt_writer *w, uint32_t *slot)
{
    nt_writer_dict(&w->out, slot);
    nt_writer_opcode(&w->out, '(');
}

static void
writer_end_dict(nt_writer *w)
{
    nt_writer_opcode(&w->out, 'u');
}

static void
writer_pool(nt_writer *w, uint32_t key, uint64_t first, uint64_t second)
{
    writer_unsigned(w, key, first);
    nt_writer_integer(&w->out, (int64_t)second);
    nt_writer_pair(&w->out);
}

static void
writer_fx(nt_writer *w, uint32_t number)
{
    if (number == 0) {
        return;
    }
    size_t count;
    const nt_fx_node node =
        nt_stacks_fx(nt_snapshot_stacks(w->snapshot), &count)[number - 1];
    const uint32_t texts[4] = {node.op, node.name, node.target, node.trace};
    for (uint32_t i = 0; i < 4; i++) {
        if (texts[i] != NT_NONE) {
            writer_text(w, KEY_FX_NODE_OP + i, texts[i]);
        }
    }
}

static void
writer_frame(nt_writer *w, uint32_t id)
{
    if (nt_writer_fetch(&w->out, w->frames[id])) {
        return;
    }
    const nt_frame *frame = &nt_stacks_frames(nt_snapshot_stacks(w->snapshot))[id];
    writer_begin_dict(w, &w->frames[id]);
    writer_text(w, KEY_NAME, frame->name);
    writer_text(w, KEY_FILENAME, frame->filename);
    writer_signed(w, KEY_LINE, frame->line);
    writer_fx(w, frame->fx);
    writer_end_dict(w);
}

/* The key `frames` with the stack, where one was recorded. */
static void
writer_stack(nt_writer *w, uint32_t stack)
{
    if (stack == NT_NO_STACK) {
        return;
    }
    nt_writer_word(w, KEY_FRAMES);
    if (nt_writer_fetch(&w->out, w->stacks[stack])) {
        return;
    }
    const nt_stacks *stacks = nt_snapshot_stacks(w->snapshot);
    nt_writer_list(&w->out, &w->stacks[stack]);
    size_t count = 0;
    for (uint32_t s = stack; s != NT_EMPTY_STACK; s = nt_stacks_parent(stacks)[s]) {
        nt_writer_item(&w->out, count++);
        writer_frame(w, nt_stacks_innermost(stacks)[s]);
    }
    nt_writer_items_end(&w->out, count);
}

static void
writer_block(nt_writer *w, const nt_block_columns *b, size_t row)
{
    static const uint32_t states[NT_BLOCK_STATE_COUNT] = {
        [NT_BLOCK_INACTIVE] = WORD_INACTIVE,
        [NT_BLOCK_ACTIVE_ALLOCATED] = WORD_ACTIVE_ALLOCATED,
        [NT_BLOCK_ACTIVE_PENDING_FREE] = WORD_ACTIVE_PENDING_FREE,
    };
    writer_begin_dict(w, NULL);
    if ((w->keys & NT_HAS_BLOCK_ADDRESS) != 0) {
        writer_unsigned(w, KEY_ADDRESS, b->address[row]);
    }
    writer_unsigned(w, KEY_SIZE, b->size[row]);
    if ((w->keys & NT_HAS_BLOCK_REQUESTED) != 0) {
        writer_unsigned(w, KEY_REQUESTED_SIZE, b->requested_size[row]);
    }
    nt_writer_word(w, KEY_STATE);
    nt_writer_word(w, states[b->state[row]]);
    writer_stack(w, b->stack[row]);
    writer_end_dict(w);
}

static void
writer_blocks(nt_writer *w, const nt_block_columns *b, size_t first, size_t count)
{
    nt_writer_word(w, KEY_BLOCKS);
    nt_writer_list(&w->out, NULL);
    for (size_t i = 0; i < count && w->out.status == NT_OK; i++) {
        nt_writer_item(&w->out, i);
        writer_block(w, b, first + i);
    }
    nt_writer_items_end(&w->out, count);
}

static void
writer_segment(nt_writer *w, const nt_layout *layout, size_t row)
{
    const nt_segment_columns *s = &layout->segments;
    writer_begin_dict(w, NULL);
    writer_signed(w, KEY_DEVICE, w->is_host ? -1 : s->device[row]);
    writer_unsigned(w, KEY_ADDRESS, s->address[row]);
    writer_unsigned(w, KEY_TOTAL_SIZE, s->total_size[row]);
    writer_unsigned(w, KEY_ALLOCATED_SIZE, s->allocated_size[row]);
    writer_unsigned(w, KEY_ACTIVE_SIZE, s->active_size[row]);
    if ((w->keys & NT_HAS_SEGMENT_REQUESTED) != 0) {
        writer_unsigned(w, KEY_REQUESTED_SIZE, s->requested_size[row]);
    }
    writer_unsigned(w, KEY_STREAM, s->stream[row]);
    nt_writer_word(w, KEY_SEGMENT_TYPE);
    nt_writer_word(w, s->kind[row] == NT_POOL_SMALL ? WORD_SMALL : WORD_LARGE);
    if ((w->keys & NT_HAS_SEGMENT_POOL) != 0) {
        writer_pool(w, KEY_SEGMENT_POOL_ID, s->pool_first[row], s->pool_second[row]);
    }
    if ((w->keys & NT_HAS_SEGMENT_EXPANDABLE) != 0) {
        nt_writer_word(w, KEY_IS_EXPANDABLE);
        nt_writer_bool(&w->out, s->is_expandable[row] != 0);
    }
    writer_stack(w, s->stack[row]);
    writer_blocks(w, &layout->blocks, s->block_first[row], s->block_count[row]);
    writer_end_dict(w);
}

/* The segments of a layout as items of a list that has *count of them. */
static void
writer_segments(nt_writer *w, const nt_layout *layout, size_t *count)
{
    const size_t rows = layout->segments.count;
    for (size_t row = 0; row < rows && w->out.status == NT_OK; row++) {
        nt_writer_item(&w->out, (*count)++);
        writer_segment(w, layout, row);
    }
}

static void
writer_action(nt_writer *w, uint8_t action)
{
    nt_writer_word(w, KEY_ACTION);
    uint32_t *slot = w->actions[action];
    if (!nt_writer_fetch(&w->out, *slot)) {
        size_t length;
        const char *name = nt_snapshot_action_name(w->snapshot, action, &length);
        nt_writer_text(&w->out, name, length);
        nt_writer_memoize(&w->out, slot);
    }
}

/* An oom event has `device_free` in place of `addr`; what else a file put into
 * either is kept. */
static void
writer_event_place(nt_writer *w, const nt_event_columns *e, size_t row)
{
    const uint64_t device_free = e->device_free == NULL ? 0 : e->device_free[row];
    const bool is_oom = e->action[row] == NT_ACTION_OOM && e->device_free != NULL;
    if (!is_oom || e->addr[row] != 0) {
        writer_unsigned(w, KEY_ADDR, e->addr[row]);
    }
    if (is_oom || device_free != 0) {
        writer_unsigned(w, KEY_DEVICE_FREE, device_free);
    }
}

/* The texts that are the names of a stack's frames, as a list. */
static void
writer_forward(nt_writer *w, uint32_t stack)
{
    const nt_stacks *stacks = nt_snapshot_stacks(w->snapshot);
    size_t count = 0;
    nt_writer_word(w, KEY_FORWARD_FRAMES);
    nt_writer_list(&w->out, NULL);
    for (uint32_t s = stack; s != NT_EMPTY_STACK; s = nt_stacks_parent(stacks)[s]) {
        const uint32_t frame = nt_stacks_innermost(stacks)[s];
        nt_writer_item(&w->out, count++);
        nt_writer_string(w, nt_stacks_frames(stacks)[frame].name);
    }
    nt_writer_items_end(&w->out, count);
}

static void
writer_event(nt_writer *w, const nt_event_columns *e, size_t row)
{
    writer_begin_dict(w, NULL);
    writer_action(w, nt_events_as_written(e->action[row]));
    writer_event_place(w, e, row);
    writer_unsigned(w, KEY_SIZE, e->size[row]);
    writer_unsigned(w, KEY_STREAM, e->stream[row]);
    if (e->time_us != NULL) {
        writer_signed(w, KEY_TIME_US, e->time_us[row]);
    }
    if (e->pool_first != NULL) {
        writer_pool(w, KEY_POOL_ID, e->pool_first[row], e->pool_second[row]);
    }
    if (e->compile_context != NULL && e->compile_context[row] != NT_NONE) {
        writer_text(w, KEY_COMPILE_CONTEXT, e->compile_context[row]);
    }
    if (e->user_metadata != NULL && e->user_metadata[row] != NT_NONE) {
        writer_text(w, KEY_USER_METADATA, e->user_metadata[row]);
    }
    if (e->internal_metadata != NULL && e->internal_metadata[row] != NT_NONE) {
        writer_text(w, KEY_INTERNAL_METADATA, e->internal_metadata[row]);
    }
    if (e->forward != NULL && e->forward[row] != NT_NO_STACK) {
        writer_forward(w, e->forward[row]);
    }
    writer_stack(w, e->stack[row]);
    writer_end_dict(w);
}

/* Tells how far it has come; sets the status when the caller wants to stop. */
static void
writer_report(nt_writer *w)
{
    if (w->progress != NULL && w->done % WRITER_TICK == 0 && w->out.status == NT_OK &&
        w->progress->report(w->progress->ctx, w->done) != 0) {
        w->out.status = nt_fail(w->out.err, NT_CANCELLED, NT_NO_OFFSET, "cancelled");
    }
    w->done++;
}

/* The list of the events first .. end - 1, as rows of the snapshot. */
static void
writer_trace(nt_writer *w, size_t first, size_t end)
{
    const nt_event_columns *e = nt_snapshot_events(w->snapshot);
    nt_writer_list(&w->out, NULL);
    for (size_t row = first; row < end && w->out.status == NT_OK; row++) {
        writer_report(w);
        nt_writer_item(&w->out, row - first);
        writer_event(w, e, row);
    }
    nt_writer_items_end(&w->out, end - first);
}

static void
writer_annotations(nt_writer *w)
{
    const nt_annotation_columns *a = nt_snapshot_annotations(w->snapshot);
    nt_writer_word(w, KEY_EXTERNAL_ANNOTATIONS);
    nt_writer_list(&w->out, NULL);
    for (size_t row = 0; row < a->count && w->out.status == NT_OK; row++) {
        nt_writer_item(&w->out, row);
        writer_begin_dict(w, NULL);
        nt_writer_word(w, KEY_STAGE);
        nt_writer_word(w, a->stage[row] == NT_STAGE_START ? WORD_START : WORD_END);
        writer_text(w, KEY_NAME, a->name[row]);
        writer_signed(w, KEY_DEVICE, a->device[row]);
        writer_signed(w, KEY_TIME_US, a->time_us[row]);
        writer_end_dict(w);
    }
    nt_writer_items_end(&w->out, a->count);
}

static void
writer_traces(nt_writer *w, nt_writer_parts parts)
{
    const size_t count = nt_snapshot_trace_count(w->snapshot);
    nt_writer_word(w, KEY_DEVICE_TRACES);
    nt_writer_list(&w->out, NULL);
    for (size_t device = 0; device < count; device++) {
        size_t first, events;
        nt_snapshot_trace(w->snapshot, device, &first, &events);
        size_t from = first, to = first;
        for (size_t i = 0; i < parts.count; i++) {
            const nt_writer_part *part = &parts.items[i];
            if (part->is_whole) {
                to = first + events;
            } else if (part->device == device) {
                from = first + part->first;
                to = first + part->end;
            }
        }
        nt_writer_item(&w->out, device);
        writer_trace(w, from, to);
    }
    nt_writer_items_end(&w->out, count);
}

/* The segments at the end, or before, of all parts. */
static void
writer_layouts(nt_writer *w, nt_writer_parts parts, bool before)
{
    size_t count = 0;
    nt_writer_list(&w->out, NULL);
    for (size_t i = 0; i < parts.count; i++) {
        const nt_writer_part *part = &parts.items[i];
        const nt_layout *layout = before ? part->before : part->layout;
        if (layout != NULL) {
            writer_segments(w, layout, &count);
        }
    }
    nt_writer_items_end(&w->out, count);
}

/* The pinned memory of the host: its segments, and its trace as one list. */
static void
writer_host(nt_writer *w, const nt_snapshot *host)
{
    const nt_snapshot *device = w->snapshot;
    const uint32_t keys = w->keys;
    w->snapshot = host;
    w->is_host = true;
    w->keys = nt_snapshot_keys(host);
    size_t count = 0;
    nt_writer_word(w, KEY_HOST_SEGMENTS);
    nt_writer_list(&w->out, NULL);
    writer_segments(w, nt_snapshot_layout(host), &count);
    nt_writer_items_end(&w->out, count);
    nt_writer_word(w, KEY_HOST_TRACES);
    writer_trace(w, 0, nt_snapshot_events(host)->count);
    w->snapshot = device;
    w->is_host = false;
    w->keys = keys;
}

static void
writer_run(nt_writer *w, nt_writer_parts parts)
{
    nt_writer_begin(&w->out);
    if ((w->keys & NT_SEGMENTS_ONLY) != 0) {
        writer_layouts(w, parts, false);
        nt_writer_end(&w->out);
        return;
    }
    writer_begin_dict(w, NULL);
    nt_writer_word(w, KEY_SEGMENTS);
    writer_layouts(w, parts, false);
    if ((w->keys & NT_HAS_TRACES) != 0) {
        writer_traces(w, parts);
    }
    if ((w->keys & NT_HAS_SETTINGS) != 0) {
        nt_writer_settings(w, parts);
    }
    if ((w->keys & NT_HAS_ANNOTATIONS) != 0) {
        writer_annotations(w);
    }
    const nt_snapshot *host = nt_snapshot_host(w->snapshot);
    if (host != NULL && parts.count == 1 && parts.items[0].is_whole) {
        writer_host(w, host);
    }
    if ((w->keys & NT_HAS_BEFORE) != 0) {
        nt_writer_word(w, KEY_SEGMENTS_BEFORE);
        writer_layouts(w, parts, true);
    }
    writer_end_dict(w);
    nt_writer_end(&w->out);
}

/* The place of the string with these bytes, or `spare` where it is none. */
static uint32_t *
writer_find_slot(nt_writer *w, const char *text, size_t length, uint32_t *spare)
{
    const nt_strings *strings = nt_snapshot_strings(w->snapshot);
    const uint32_t id = nt_strings_find(strings, text, length);
    *spare = NT_NONE;
    return id == NT_NONE ? spare : &w->strings[id];
}

/* `count` memo indexes, none of them set. */
static nt_status
writer_make_slots(nt_writer *w, size_t count, uint32_t **slots)
{
    size_t bytes;
    *slots = nt_size_mul(count, sizeof **slots, &bytes) ? nt_allocate(&w->alloc, bytes)
                                                        : NULL;
    if (*slots == NULL) {
        return count == 0 ? NT_OK : nt_fail_nomem(w->out.err);
    }
    memset(*slots, 0xff, bytes);
    return NT_OK;
}

static nt_status
writer_prepare(nt_writer *w)
{
    w->out.frame = nt_allocate(&w->alloc, NT_WRITER_FRAME);
    if (w->out.frame == NULL) {
        return nt_fail_nomem(w->out.err);
    }
    NT_TRY(writer_make_slots(w, w->string_count, &w->strings));
    NT_TRY(writer_make_slots(w, w->frame_count, &w->frames));
    NT_TRY(writer_make_slots(w, w->stack_count, &w->stacks));
    for (size_t i = 0; i < WORDS; i++) {
        w->words[i] = writer_find_slot(w, nt_reader_words[i],
                                       strlen(nt_reader_words[i]), &w->spare_words[i]);
    }
    for (size_t code = 0; code < nt_snapshot_action_count(w->snapshot); code++) {
        size_t length;
        const char *name = nt_snapshot_action_name(w->snapshot, (uint8_t)code, &length);
        w->actions[code] = writer_find_slot(w, name, length, &w->spare_actions[code]);
    }
    return NT_OK;
}

static nt_status
writer_save(nt_writer *w, nt_writer_parts parts)
{
    const nt_stacks *stacks = nt_snapshot_stacks(w->snapshot);
    w->string_count = nt_strings_count(nt_snapshot_strings(w->snapshot));
    w->frame_count = nt_stacks_frame_count(stacks);
    w->stack_count = nt_stacks_count(stacks);
    nt_status status = writer_prepare(w);
    if (status == NT_OK) {
        writer_run(w, parts);
        status = w->out.status;
    }
    nt_release(&w->alloc, w->out.frame, NT_WRITER_FRAME);
    nt_release(&w->alloc, w->strings, w->string_count * sizeof *w->strings);
    nt_release(&w->alloc, w->frames, w->frame_count * sizeof *w->frames);
    nt_release(&w->alloc, w->stacks, w->stack_count * sizeof *w->stacks);
    return status;
}

nt_status
nt_writer_save_parts(const nt_alloc *alloc, const nt_snapshot *snapshot, uint32_t keys,
                     nt_writer_parts parts, const nt_sink *sink,
                     const nt_progress *progress, nt_error *err)
{
    nt_writer w = {
        .out = {.sink = sink, .err = err},
        .alloc = *alloc,
        .snapshot = snapshot,
        .progress = progress,
        .keys = keys,
    };
    return writer_save(&w, parts);
}

nt_status
nt_writer_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
               const nt_progress *progress, nt_error *err)
{
    const nt_writer_part whole = {
        .layout = nt_snapshot_layout(snapshot),
        .before = nt_snapshot_before(snapshot),
        .is_whole = true,
    };
    return nt_writer_save_parts(alloc, snapshot, nt_snapshot_keys(snapshot),
                                (nt_writer_parts){&whole, 1}, sink, progress, err);
}
