/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer.h"

#include <string.h>

#include "base/nt_sort.h"
#include "trace/nt_reader_schema.h"
#include "trace/nt_writer_opcodes.h"

/* What is written of one device, or of all of them. */
typedef struct nt_writer_part {
    const nt_layout *layout;
    const nt_layout *before; /* or NULL */
    bool is_whole;           /* all events of all devices */
    size_t device, first, end;
} nt_writer_part;

typedef struct nt_writer_parts {
    const nt_writer_part *items;
    size_t count;
} nt_writer_parts;

/* The first failure stays in out.status; from then on nothing more is written. */
typedef struct nt_writer {
    nt_writer_out out;
    nt_alloc alloc;
    const nt_snapshot *snapshot; /* or, while it is written, the one of the host */
    bool is_host;
    const nt_progress *progress;
    uint32_t keys;
    uint64_t done; /* events written */

    /* Memo indexes by id, NT_NONE for what was not written yet. */
    uint32_t *strings, *frames, *stacks;
    size_t string_count, frame_count, stack_count;

    /* Of words and actions: the string's own place above, or the spare one of a word
     * that is none of the snapshot's strings. */
    uint32_t *words[WORDS], spare_words[WORDS];
    uint32_t *actions[UINT8_MAX + 1], spare_actions[UINT8_MAX + 1];
} nt_writer;

/* The rows of allocator_settings, depth first: what is in a dict or list follows its
 * own row. `next` is the row to be written next. */
typedef struct writer_tree {
    const nt_setting *rows;
    size_t count, next;
    nt_writer_parts parts;
    /* Where only a part of the events is written: the lists of calls that were noted,
     * by row, with the device of each. */
    nt_sort_item *noted;
    size_t noted_count, next_noted;
    uint32_t left_out; /* the key of a text that only the whole has, or NT_NONE */
} writer_tree;

static nt_status
writer_find_noted(const nt_writer *w, writer_tree *tree)
{
    const size_t devices = nt_snapshot_trace_count(w->snapshot);
    const nt_setting *rows;
    size_t count;
    NT_TRY(NT_NEW(&w->alloc, tree->noted, devices, w->out.err));
    for (size_t device = 0; device < devices; device++) {
        if (nt_snapshot_noted_calls(w->snapshot, device, &rows, &count)) {
            const size_t list = (size_t)(rows - tree->rows) - 1;
            tree->noted[tree->noted_count++] = (nt_sort_item){list, (uint32_t)device};
        }
    }
    nt_sort(tree->noted, tree->noted_count);
    return NT_OK;
}

/* Whether row `list` has calls of which only a part is written: then first .. end - 1
 * are the events that are. */
static bool
writer_cuts_calls(writer_tree *tree, uint32_t list, nt_writer_part *events)
{
    if (tree->next_noted == tree->noted_count ||
        tree->noted[tree->next_noted].key != list) {
        return false;
    }
    const size_t device = tree->noted[tree->next_noted++].value;
    *events = (nt_writer_part){.first = 0};
    for (size_t i = 0; i < tree->parts.count; i++) {
        if (tree->parts.items[i].device == device) {
            *events = tree->parts.items[i];
        }
    }
    return true;
}

/* The calls after these events, as events of what is written. */
static void
writer_calls(nt_writer *w, writer_tree *tree, uint32_t list, nt_writer_part events)
{
    size_t done = 0;
    for (; tree->next < tree->count && tree->rows[tree->next].parent == list;
         tree->next++) {
        const int64_t call = tree->rows[tree->next].integer;
        if (call >= (int64_t)events.first && call < (int64_t)events.end) {
            nt_writer_item(&w->out, done++);
            nt_writer_integer(&w->out, call - (int64_t)events.first);
        }
    }
    nt_writer_items_end(&w->out, done);
}

static void
writer_children(nt_writer *w, writer_tree *tree, uint32_t parent, bool is_dict);

/* The string `id`; None where the file had no string. */
static void
writer_string(nt_writer *w, uint32_t id)
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

/* One row's value with all that is in it. The reader bounds the depth, so the recursion
 * is bounded as well. */
static void
writer_setting(nt_writer *w, writer_tree *tree)
{
    const uint32_t row = (uint32_t)tree->next++;
    const nt_setting *setting = &tree->rows[row];
    nt_writer_part events;
    switch (setting->kind) {
    case NT_SETTING_BOOL: nt_writer_bool(&w->out, setting->integer != 0); break;
    case NT_SETTING_INT: nt_writer_integer(&w->out, setting->integer); break;
    case NT_SETTING_FLOAT: nt_writer_float(&w->out, setting->real); break;
    case NT_SETTING_STRING: writer_string(w, setting->string); break;
    case NT_SETTING_DICT:
        nt_writer_dict(&w->out, NULL);
        writer_children(w, tree, row, true);
        break;
    case NT_SETTING_LIST:
        nt_writer_list(&w->out, NULL);
        if (writer_cuts_calls(tree, row, &events)) {
            writer_calls(w, tree, row, events);
        } else {
            writer_children(w, tree, row, false);
        }
        break;
    default: nt_writer_none(&w->out); break;
    }
}

static void
writer_children(nt_writer *w, writer_tree *tree, uint32_t parent, bool is_dict)
{
    size_t done = 0;
    while (tree->next < tree->count && tree->rows[tree->next].parent == parent) {
        const nt_setting *child = &tree->rows[tree->next];
        if (is_dict && parent == NT_NONE && child->key == tree->left_out &&
            child->kind == NT_SETTING_STRING) {
            tree->next++;
            continue;
        }
        if (is_dict) {
            nt_writer_key(&w->out, done++);
            writer_string(w, tree->rows[tree->next].key);
        } else {
            nt_writer_item(&w->out, done++);
        }
        writer_setting(w, tree);
    }
    if (is_dict) {
        nt_writer_keys_end(&w->out, done);
    } else {
        nt_writer_items_end(&w->out, done);
    }
}

static void
writer_word(nt_writer *w, uint32_t word)
{
    uint32_t *slot = w->words[word];
    if (!nt_writer_fetch(&w->out, *slot)) {
        nt_writer_text(&w->out, nt_reader_words[word], strlen(nt_reader_words[word]));
        nt_writer_memoize(&w->out, slot);
    }
}

/* allocator_settings; the calls that were noted are of the parts' events. */
static void
writer_settings(nt_writer *w, nt_writer_parts parts)
{
    const size_t devices = nt_snapshot_trace_count(w->snapshot);
    const bool is_whole = parts.count != 0 && parts.items[0].is_whole;
    writer_tree tree = {.parts = parts, .left_out = NT_NONE};
    tree.rows = nt_snapshot_setting_rows(w->snapshot, &tree.count);
    if (!is_whole && w->out.status == NT_OK) {
        static const char uses[] = NT_SNAPSHOT_USES;
        tree.left_out =
            nt_strings_find(nt_snapshot_strings(w->snapshot), uses, sizeof uses - 1);
        w->out.status = writer_find_noted(w, &tree);
    }
    writer_word(w, KEY_ALLOCATOR_SETTINGS);
    nt_writer_dict(&w->out, NULL);
    writer_children(w, &tree, NT_NONE, true);
    NT_RELEASE(&w->alloc, tree.noted, devices);
}

/* Events between two calls of the progress function. */
#define WRITER_TICK ((size_t)1 << 16)

/* A number of 64 bits; from 2^63 on as the negative one with the same bits, because
 * PyTorch's viewer takes no integer of nine bytes. */
static void
writer_unsigned(nt_writer *w, uint32_t key, uint64_t number)
{
    writer_word(w, key);
    nt_writer_integer(&w->out, (int64_t)number);
}

static void
writer_signed(nt_writer *w, uint32_t key, int64_t number)
{
    writer_word(w, key);
    nt_writer_integer(&w->out, number);
}

static void
writer_text(nt_writer *w, uint32_t key, uint32_t id)
{
    writer_word(w, key);
    writer_string(w, id);
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

static void
writer_stack(nt_writer *w, uint32_t stack)
{
    if (stack == NT_NO_STACK) {
        return;
    }
    writer_word(w, KEY_FRAMES);
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
    writer_word(w, KEY_STATE);
    writer_word(w, states[b->state[row]]);
    writer_stack(w, b->stack[row]);
    writer_end_dict(w);
}

static void
writer_blocks(nt_writer *w, const nt_block_columns *b, size_t first, size_t count)
{
    writer_word(w, KEY_BLOCKS);
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
    writer_word(w, KEY_SEGMENT_TYPE);
    writer_word(w, s->kind[row] == NT_POOL_SMALL ? WORD_SMALL : WORD_LARGE);
    if ((w->keys & NT_HAS_SEGMENT_POOL) != 0) {
        writer_pool(w, KEY_SEGMENT_POOL_ID, s->pool_first[row], s->pool_second[row]);
    }
    if ((w->keys & NT_HAS_SEGMENT_EXPANDABLE) != 0) {
        writer_word(w, KEY_IS_EXPANDABLE);
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
    writer_word(w, KEY_ACTION);
    uint32_t *slot = w->actions[action];
    if (!nt_writer_fetch(&w->out, *slot)) {
        size_t length;
        const char *name = nt_snapshot_action_name(w->snapshot, action, &length);
        nt_writer_text(&w->out, name, length);
        nt_writer_memoize(&w->out, slot);
    }
}

/* An oom event has `device_free` in place of `addr`; what else a file put into either
 * is kept. */
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
    writer_word(w, KEY_FORWARD_FRAMES);
    nt_writer_list(&w->out, NULL);
    for (uint32_t s = stack; s != NT_EMPTY_STACK; s = nt_stacks_parent(stacks)[s]) {
        const uint32_t frame = nt_stacks_innermost(stacks)[s];
        nt_writer_item(&w->out, count++);
        writer_string(w, nt_stacks_frames(stacks)[frame].name);
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
    writer_word(w, KEY_EXTERNAL_ANNOTATIONS);
    nt_writer_list(&w->out, NULL);
    for (size_t row = 0; row < a->count && w->out.status == NT_OK; row++) {
        nt_writer_item(&w->out, row);
        writer_begin_dict(w, NULL);
        writer_word(w, KEY_STAGE);
        writer_word(w, a->stage[row] == NT_STAGE_START ? WORD_START : WORD_END);
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
    writer_word(w, KEY_DEVICE_TRACES);
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
    writer_word(w, KEY_HOST_SEGMENTS);
    nt_writer_list(&w->out, NULL);
    writer_segments(w, nt_snapshot_layout(host), &count);
    nt_writer_items_end(&w->out, count);
    writer_word(w, KEY_HOST_TRACES);
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
    writer_word(w, KEY_SEGMENTS);
    writer_layouts(w, parts, false);
    if ((w->keys & NT_HAS_TRACES) != 0) {
        writer_traces(w, parts);
    }
    if ((w->keys & NT_HAS_SETTINGS) != 0) {
        writer_settings(w, parts);
    }
    if ((w->keys & NT_HAS_ANNOTATIONS) != 0) {
        writer_annotations(w);
    }
    const nt_snapshot *host = nt_snapshot_host(w->snapshot);
    if (host != NULL && parts.count == 1 && parts.items[0].is_whole) {
        writer_host(w, host);
    }
    if ((w->keys & NT_HAS_BEFORE) != 0) {
        writer_word(w, KEY_SEGMENTS_BEFORE);
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
    NT_TRY(nt_take(&w->alloc, (void **)&w->out.frame, NT_WRITER_FRAME, w->out.err));
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
    NT_RELEASE(&w->alloc, w->strings, w->string_count);
    NT_RELEASE(&w->alloc, w->frames, w->frame_count);
    NT_RELEASE(&w->alloc, w->stacks, w->stack_count);
    return status;
}

static nt_status
writer_save_parts(const nt_alloc *alloc, const nt_snapshot *snapshot, uint32_t keys,
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
    return writer_save_parts(alloc, snapshot, nt_snapshot_keys(snapshot),
                             (nt_writer_parts){&whole, 1}, sink, progress, err);
}

/* The layouts are worked out here, so they have all of their keys. */
#define RANGES_KEYS                                                                    \
    (NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |        \
     NT_HAS_SEGMENT_POOL | NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_BEFORE)

/* One range while it is written: the layouts in `part`, to be freed here. */
typedef struct range_layouts {
    nt_layout *layout, *before; /* or NULL */
} range_layouts;

static nt_status
ranges_make(const nt_writer_range *range, range_layouts *made, nt_writer_part *part,
            nt_error *err)
{
    const nt_timeline *t = range->timeline;
    const size_t count = nt_timeline_event_count(t);
    if (range->first > range->end || range->end > count || nt_timeline_device(t) < 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "events %zu to %zu are not a range of the %zu events there are",
                       range->first, range->end, count);
    }
    NT_TRY(nt_timeline_layout(t, (int32_t)range->end - 1, &made->layout, err));
    NT_TRY(nt_timeline_layout(t, (int32_t)range->first - 1, &made->before, err));
    *part = (nt_writer_part){
        .layout = made->layout,
        .before = made->before,
        .device = (size_t)nt_timeline_device(t),
        .first = range->first,
        .end = range->end,
    };
    return NT_OK;
}

nt_status
nt_writer_save_ranges(const nt_alloc *alloc, const nt_writer_range *ranges,
                      size_t count, const nt_sink *sink, const nt_progress *progress,
                      nt_error *err)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(ranges[0].timeline);
    nt_writer_part *parts = nt_allocate(alloc, count * sizeof *parts);
    range_layouts *made = nt_allocate(alloc, count * sizeof *made);
    nt_status status = NT_OK;
    size_t begun = 0;
    if (parts == NULL || made == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    memset(made, 0, count * sizeof *made);
    for (; begun < count && status == NT_OK; begun++) {
        status = ranges_make(&ranges[begun], &made[begun], &parts[begun], err);
    }
    if (status == NT_OK) {
        status =
            writer_save_parts(alloc, snapshot, nt_snapshot_keys(snapshot) | RANGES_KEYS,
                              (nt_writer_parts){parts, count}, sink, progress, err);
    }
done:
    for (size_t i = 0; i < begun; i++) {
        nt_timeline_layout_free(ranges[i].timeline, made[i].layout);
        nt_timeline_layout_free(ranges[i].timeline, made[i].before);
    }
    NT_RELEASE(alloc, made, count);
    NT_RELEASE(alloc, parts, count);
    return status;
}
