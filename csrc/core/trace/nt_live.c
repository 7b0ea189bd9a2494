/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_live.h"

#include <stdio.h>
#include <string.h>

#include "base/nt_columns.h"
#include "base/nt_sort.h"
#include "base/nt_utf8.h"
#include "trace/nt_rounding.h"

/* A ring at the moment of the layout, and its entries copied at once, since the
 * producer goes on. Ids of the ring's tables are translated when first met. */
typedef struct nt_live_mark {
    const nt_ring *ring;
    uint64_t start, head; /* of the recording; of the layout */
    uint64_t first;       /* the oldest entry that was whole */
    bool is_cut;          /* earlier entries of the recording are missing */
    nt_live_tail tail;
    nt_ring_entry *entries; /* entry i at i - from */
    uint64_t from;
    size_t room;
    nt_ring_counts counts;             /* when the entries had been copied */
    uint32_t *stacks, *frames, *texts; /* ring id -> the snapshot's, or NT_NONE */
    size_t stack_room, frame_room, text_room;
} nt_live_mark;

typedef struct nt_live_row {
    nt_live_segment segment;
    size_t block_first, block_count;
} nt_live_row;

typedef struct nt_live_block_row {
    nt_live_block block;
    uint32_t stack; /* the ring's; only of bare blocks */
} nt_live_block_row;

struct nt_live_builder {
    nt_alloc alloc;
    const nt_live_source *source;
    nt_live_device_type type;
    uint64_t most_events;
    nt_snapshot *snapshot;
    nt_live_mark *marks;
    size_t mark_count, mark_capacity;
    nt_live_row *segments;
    size_t segment_count, segment_capacity;
    nt_live_block_row *blocks;
    size_t block_count, block_capacity;
    uint32_t keys;
    size_t setting_count;
    nt_status status; /* of the first call that failed */
    nt_error *err;
};

/* Live blocks by address in an open-addressing table of fixed size. What is removed
 * leaves no mark: the blocks behind it that are not at home move up. */

typedef struct blocks_row {
    uint64_t address; /* 0: an empty slot */
    uint64_t size;
    uint32_t stack;
} blocks_row;

struct nt_live_blocks {
    nt_alloc alloc;
    blocks_row *rows;
    uint64_t slots; /* a power of two, at least twice `most`; `count` in a copy */
    uint64_t count, most;
    uint64_t lost; /* blocks that found no room */
};

static nt_live_blocks *
blocks_make(const nt_alloc *alloc, uint64_t slots)
{
    size_t size;
    if (slots > SIZE_MAX || !nt_size_mul((size_t)slots, sizeof(blocks_row), &size)) {
        return NULL;
    }
    nt_live_blocks *blocks = nt_allocate(alloc, sizeof *blocks);
    blocks_row *rows = nt_allocate(alloc, size);
    if (blocks == NULL || (rows == NULL && size != 0)) {
        nt_release(alloc, blocks, sizeof *blocks);
        nt_release(alloc, rows, size);
        return NULL;
    }
    *blocks = (nt_live_blocks){.alloc = *alloc, .rows = rows, .slots = slots};
    return blocks;
}

static void
live_blocks_clear(nt_live_blocks *blocks)
{
    memset(blocks->rows, 0, (size_t)blocks->slots * sizeof(blocks_row));
    blocks->count = 0;
    blocks->lost = 0;
}

nt_live_blocks *
nt_live_blocks_new(const nt_alloc *alloc, uint64_t most)
{
    if (most > UINT32_MAX / 4) {
        return NULL;
    }
    uint64_t slots = 16;
    while (slots < 2 * most) {
        slots <<= 1;
    }
    nt_live_blocks *blocks = blocks_make(alloc, slots);
    if (blocks != NULL) {
        blocks->most = most;
        live_blocks_clear(blocks);
    }
    return blocks;
}

void
nt_live_blocks_free(nt_live_blocks *blocks)
{
    if (blocks != NULL) {
        const nt_alloc alloc = blocks->alloc;
        NT_RELEASE(&alloc, blocks->rows, (size_t)blocks->slots);
        nt_release(&alloc, blocks, sizeof *blocks);
    }
}

static uint64_t
blocks_home(const nt_live_blocks *blocks, uint64_t address)
{
    return nt_mix64(address) & (blocks->slots - 1);
}

/* The slot of `address`, or the empty one where it would be. */
static uint64_t
blocks_find(const nt_live_blocks *blocks, uint64_t address)
{
    uint64_t slot = blocks_home(blocks, address);
    while (blocks->rows[slot].address != address && blocks->rows[slot].address != 0) {
        slot = (slot + 1) & (blocks->slots - 1);
    }
    return slot;
}

int
nt_live_blocks_add(nt_live_blocks *blocks, uint64_t address, uint64_t size,
                   uint32_t stack)
{
    const uint64_t slot = blocks_find(blocks, address);
    const int is_new = blocks->rows[slot].address == 0;
    if (address == 0 || (is_new && blocks->count >= blocks->most)) {
        blocks->lost++;
        return -1;
    }
    blocks->count += (uint64_t)is_new;
    blocks->rows[slot] = (blocks_row){address, size, stack};
    return 0;
}

uint64_t
nt_live_blocks_remove(nt_live_blocks *blocks, uint64_t address)
{
    const uint64_t mask = blocks->slots - 1;
    uint64_t hole = blocks_find(blocks, address);
    if (address == 0 || blocks->rows[hole].address == 0) {
        return 0;
    }
    const uint64_t size = blocks->rows[hole].size;
    for (uint64_t at = (hole + 1) & mask; blocks->rows[at].address != 0;
         at = (at + 1) & mask) {
        const uint64_t home = blocks_home(blocks, blocks->rows[at].address);
        /* A block whose home lies behind the hole can't be found from there. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            blocks->rows[hole] = blocks->rows[at];
            hole = at;
        }
    }
    blocks->rows[hole] = (blocks_row){0};
    blocks->count--;
    return size;
}

nt_live_blocks *
nt_live_blocks_copy(const nt_live_blocks *blocks)
{
    nt_live_blocks *copy = blocks_make(&blocks->alloc, blocks->count);
    if (copy == NULL) {
        return NULL;
    }
    for (uint64_t slot = 0; slot < blocks->slots && copy->count < blocks->count;
         slot++) {
        if (blocks->rows[slot].address != 0) {
            copy->rows[copy->count++] = blocks->rows[slot];
        }
    }
    copy->lost = blocks->lost;
    return copy;
}

uint64_t
nt_live_blocks_count(const nt_live_blocks *blocks)
{
    return blocks->count;
}

/* Notes a failure, unless there is one already, and returns -1. */
static int
live_builder_fail(nt_live_builder *b, nt_status status)
{
    if (b->status == NT_OK) {
        b->status = status;
        if (status == NT_NOMEM) {
            (void)nt_fail_nomem(b->err);
        }
    }
    return -1;
}

static int
live_note(nt_live_builder *b, nt_status status)
{
    if (status != NT_OK) {
        b->status = status;
    }
    return status == NT_OK ? 0 : -1;
}

static int
live_add_segment(nt_live_builder *b, const nt_live_segment *segment)
{
    if (b->status != NT_OK) {
        return -1;
    }
    const nt_status status = NT_GROW(&b->alloc, b->segments, b->segment_capacity,
                                     b->segment_count + 1, b->err);
    if (status == NT_OK) {
        b->segments[b->segment_count++] =
            (nt_live_row){.segment = *segment, .block_first = b->block_count};
    }
    return live_note(b, status);
}

static nt_status
live_append_block(nt_live_builder *b, const nt_live_block *block, uint32_t stack)
{
    if (b->segment_count == 0) {
        return nt_fail(b->err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a block of the layout came before any segment");
    }
    NT_TRY(
        NT_GROW(&b->alloc, b->blocks, b->block_capacity, b->block_count + 1, b->err));
    b->blocks[b->block_count++] = (nt_live_block_row){*block, stack};
    b->segments[b->segment_count - 1].block_count++;
    return NT_OK;
}

static int
live_builder_add_bare(nt_live_builder *b, int32_t device, uint64_t address,
                      uint64_t size, uint32_t stack)
{
    const nt_live_segment segment = {
        .address = address,
        .total_size = size,
        .allocated_size = size,
        .active_size = size,
        .requested_size = size,
        .device = device,
        /* As the replay takes segments that the trace frees again. */
        .is_large = size > NT_SMALL_BUFFER,
    };
    const nt_live_block block = {address, size, size, NT_BLOCK_ACTIVE_ALLOCATED};
    return live_add_segment(b, &segment) != 0
               ? -1
               : live_note(b, live_append_block(b, &block, stack));
}

static int
live_blocks_emit(const nt_live_blocks *blocks, nt_live_builder *builder, int32_t device)
{
    const nt_alloc *alloc = &blocks->alloc;
    const size_t bytes = (size_t)blocks->count * sizeof(nt_sort_item);
    nt_sort_item *order = nt_allocate(alloc, bytes);
    if (order == NULL && bytes != 0) {
        return live_builder_fail(builder, NT_NOMEM);
    }
    size_t count = 0;
    for (uint64_t slot = 0; slot < blocks->slots && count < blocks->count; slot++) {
        if (blocks->rows[slot].address != 0) {
            order[count++] = (nt_sort_item){blocks->rows[slot].address, (uint32_t)slot};
        }
    }
    nt_sort(order, count);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        const blocks_row *row = &blocks->rows[order[i].value];
        failed =
            live_builder_add_bare(builder, device, row->address, row->size, row->stack);
    }
    nt_release(alloc, order, bytes);
    return failed;
}

/* Line tables of CPython's code objects. That of 3.10 is pairs of bytes: how far the
 * range goes, and the step of the line (-128: no line). From 3.11 on an entry is a byte
 * with the top bit set, its kind and its length in code units, and then bytes without
 * the top bit: the step of the line as a varint for some kinds, implied by the others.
 * A table that leaves the lines that CPython can have is damaged, and has no line. */

/* Kinds of entries from 3.11 on; below LINES_ONE_LINE the line does not step. */
enum {
    LINES_ONE_LINE = 10, /* 10, 11, 12: steps by 0, 1, 2 */
    LINES_NO_COLUMN = 13,
    LINES_LONG = 14,
    LINES_NONE = 15,
};

#define LINES_CODE_UNIT 2 /* bytes */

static int64_t
lines_find_310(const nt_ring_code *code, uint32_t lasti)
{
    int64_t line = code->first_line;
    uint64_t end = 0;
    for (uint32_t i = 0; i + 1 < code->line_bytes; i += 2) {
        const int step =
            code->lines[i + 1] < 128 ? code->lines[i + 1] : code->lines[i + 1] - 256;
        end += code->lines[i];
        line += step == -128 ? 0 : step;
        if (lasti < end) {
            return step == -128 ? -1 : line;
        }
    }
    return -1;
}

/* A signed varint at *i: six bits a byte, the lowest first, bit 6 says that more
 * follow, and the lowest bit of the whole is the sign. */
static int64_t
lines_read_step(const nt_ring_code *code, uint32_t *i)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *i < code->line_bytes && shift < 60; shift += 6) {
        const uint8_t byte = code->lines[(*i)++];
        value |= (uint64_t)(byte & 63) << shift;
        if ((byte & 64) == 0) {
            break;
        }
    }
    return (value & 1) != 0 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

static int64_t
lines_find_311(const nt_ring_code *code, uint32_t lasti)
{
    int64_t line = code->first_line;
    uint64_t end = 0;
    for (uint32_t i = 0; i < code->line_bytes;) {
        const uint8_t head = code->lines[i++];
        const int kind = head >> 3 & 15;
        if (kind == LINES_NO_COLUMN || kind == LINES_LONG) {
            line += lines_read_step(code, &i);
            if (line < INT32_MIN || line > INT32_MAX) {
                return -1;
            }
        } else if (kind >= LINES_ONE_LINE && kind < LINES_NO_COLUMN) {
            line += kind - LINES_ONE_LINE;
        }
        end += ((uint64_t)(head & 7) + 1) * LINES_CODE_UNIT;
        if (lasti < end) {
            return kind == LINES_NONE ? -1 : line;
        }
        while (i < code->line_bytes && (code->lines[i] & 128) == 0) {
            i++;
        }
    }
    return -1;
}

int64_t
nt_live_line(const nt_ring_code *code, uint32_t lasti)
{
    switch (code->format) {
    case NT_RING_LINES_310: return lines_find_310(code, lasti);
    case NT_RING_LINES_311: return lines_find_311(code, lasti);
    default: return code->first_line;
    }
}

/* The entries of a ring as the events of a snapshot. The ring's own ids of stacks and
 * texts become the snapshot's when they are first met; lines are found then. */

/* Bytes that a name in a frame may have; longer ones are cut. Python's own limit for a
 * path is 4096 in practice. */
#define DRAIN_TEXT 4096

/* Events that a bare entry becomes: see NT_LIVE_FLAG_BARE. */
static const nt_action drain_bare_alloc[] = {NT_ACTION_SEGMENT_ALLOC, NT_ACTION_ALLOC};
static const nt_action drain_bare_free[] = {
    NT_ACTION_FREE_REQUESTED, NT_ACTION_FREE_COMPLETED, NT_ACTION_SEGMENT_FREE};

_Static_assert((int)NT_LIVE_ALLOC == (int)NT_ACTION_ALLOC &&
                   (int)NT_LIVE_FREE_COMPLETED == (int)NT_ACTION_FREE_COMPLETED &&
                   (int)NT_LIVE_SEGMENT_UNMAP == (int)NT_ACTION_SEGMENT_UNMAP &&
                   (int)NT_LIVE_OOM == (int)NT_ACTION_OOM &&
                   (int)NT_LIVE_ANNOTATE == (int)NT_ACTION_ANNOTATE,
               "actions have one numbering");
_Static_assert(NT_RING_NONE == NT_NONE, "no id is the same on both sides");

/* The actions that an entry stands for, and how many; none for what is not known. */
static size_t
drain_actions(const nt_ring_entry *entry, nt_action single[1], const nt_action **out)
{
    *out = single;
    single[0] = (nt_action)entry->action;
    if (entry->action > NT_LIVE_ANNOTATE) {
        return 0;
    }
    if ((entry->flags & NT_LIVE_FLAG_BARE) == 0) {
        return 1;
    }
    if (entry->action == NT_LIVE_ALLOC) {
        *out = drain_bare_alloc;
        return NT_LENGTH(drain_bare_alloc);
    }
    if (entry->action == NT_LIVE_FREE_COMPLETED) {
        *out = drain_bare_free;
        return NT_LENGTH(drain_bare_free);
    }
    return 1;
}

/* Drops the oldest entries until the rest make at most `most` events. */
static void
drain_limit(nt_live_mark *mark, uint64_t most)
{
    uint64_t events = 0, first = mark->head;
    while (first > mark->first) {
        nt_action single[1];
        const nt_action *actions;
        events +=
            drain_actions(&mark->entries[first - 1 - mark->from], single, &actions);
        if (events > most) {
            break;
        }
        first--;
    }
    mark->first = first;
}

/* Copies the last entries of the mark's ring before its head. */
static nt_status
live_mark_copy(nt_live_mark *mark, const nt_alloc *alloc, uint64_t most, nt_error *err)
{
    uint64_t count = mark->head - mark->start;
    const uint64_t room = nt_ring_room(mark->ring);
    count = count < most ? count : most;
    count = count < room ? count : room;
    mark->from = mark->head - count;
    NT_TRY(NT_NEW(alloc, mark->entries, (size_t)count, err));
    mark->room = (size_t)count;
    mark->first = nt_ring_read(mark->ring, mark->from, mark->head, mark->entries);
    nt_ring_count(mark->ring, &mark->counts);
    drain_limit(mark, most);
    mark->is_cut = mark->first > mark->start;
    mark->tail.pushed = mark->head - mark->start;
    mark->tail.taken = mark->head - mark->first;
    mark->tail.late = nt_ring_is_late(mark->ring) != 0;
    mark->tail.tables = mark->counts;
    return NT_OK;
}

static void
live_mark_clear(nt_live_mark *mark, const nt_alloc *alloc)
{
    NT_RELEASE(alloc, mark->entries, mark->room);
    NT_RELEASE(alloc, mark->stacks, mark->stack_room);
    NT_RELEASE(alloc, mark->frames, mark->frame_room);
    NT_RELEASE(alloc, mark->texts, mark->text_room);
}

/* A translation of `count` ids, none of them known yet. */
static nt_status
drain_make_ids(nt_live_builder *b, size_t count, uint32_t **ids, size_t *room)
{
    *ids = nt_allocate(&b->alloc, count * sizeof(uint32_t));
    if (*ids == NULL && count != 0) {
        return nt_fail_nomem(b->err);
    }
    *room = count;
    if (count != 0) {
        memset(*ids, 0xff, count * sizeof(uint32_t));
    }
    return NT_OK;
}

static uint32_t
drain_character(const nt_ring_text *text, uint32_t i)
{
    uint16_t half;
    uint32_t whole;
    switch (text->width) {
    case 2:
        memcpy(&half, (const uint8_t *)text->data + (size_t)i * 2, sizeof half);
        return half;
    case 4:
        memcpy(&whole, (const uint8_t *)text->data + (size_t)i * 4, sizeof whole);
        return whole <= 0x10ffff ? whole : 0xfffd;
    default: return ((const uint8_t *)text->data)[i];
    }
}

static nt_status
drain_text(nt_live_builder *b, const nt_ring_text *text, uint32_t *out)
{
    uint8_t buffer[DRAIN_TEXT];
    size_t length = 0;
    for (uint32_t i = 0; i < text->length && length + 4 <= sizeof buffer; i++) {
        length += nt_utf8_put(buffer + length, drain_character(text, i));
    }
    return nt_strings_intern(nt_snapshot_strings(b->snapshot), buffer, length, out,
                             b->err);
}

static nt_status
drain_frame(nt_live_mark *mark, nt_live_builder *b, uint32_t id, uint32_t *out)
{
    if (mark->frames[id] == NT_NONE) {
        nt_ring_code code;
        nt_frame frame = {.fx = 0};
        const uint32_t lasti = nt_ring_frame_lasti(mark->ring, id, &code);
        NT_TRY(drain_text(b, &code.name, &frame.name));
        NT_TRY(drain_text(b, &code.filename, &frame.filename));
        frame.line = nt_live_line(&code, lasti);
        NT_TRY(nt_stacks_intern_frame(nt_snapshot_stacks(b->snapshot), frame,
                                      &mark->frames[id], b->err));
    }
    *out = mark->frames[id];
    return NT_OK;
}

/* The snapshot's id of a stack of the mark's ring; the empty stack for none. */
static nt_status
live_mark_stack(nt_live_mark *mark, nt_live_builder *b, uint32_t stack, uint32_t *out)
{
    if (stack >= mark->stack_room) {
        *out = NT_EMPTY_STACK;
        return NT_OK;
    }
    if (mark->stacks[stack] == NT_NONE) {
        uint32_t frames[NT_RING_FRAMES];
        size_t count;
        const uint32_t *ids = nt_ring_stack_frames(mark->ring, stack, &count);
        for (size_t i = 0; i < count; i++) {
            NT_TRY(drain_frame(mark, b, ids[i], &frames[i]));
        }
        NT_TRY(nt_stacks_intern(nt_snapshot_stacks(b->snapshot), frames, count,
                                &mark->stacks[stack], b->err));
    }
    *out = mark->stacks[stack];
    return NT_OK;
}

/* The user's metadata; what is no text is left out. */
static nt_status
drain_metadata(nt_live_mark *mark, nt_live_builder *b, uint32_t id, uint32_t *out)
{
    *out = NT_NONE;
    if (id >= mark->text_room) {
        return NT_OK;
    }
    if (mark->texts[id] == NT_NONE) {
        size_t length;
        const char *text = nt_ring_text_get(mark->ring, id, &length);
        if (!nt_utf8_check((const uint8_t *)text, length)) {
            return NT_OK;
        }
        NT_TRY(nt_strings_intern(nt_snapshot_strings(b->snapshot), text, length,
                                 &mark->texts[id], b->err));
    }
    *out = mark->texts[id];
    b->keys |= NT_HAS_EVENT_USER_METADATA;
    return NT_OK;
}

static nt_status
drain_entry(nt_live_mark *mark, nt_live_builder *b, const nt_ring_entry *entry)
{
    const nt_live_source *source = b->source;
    nt_event event = {
        .addr = entry->addr,
        .size = entry->size,
        .stream = entry->stream,
        .pool = {entry->pool_first, entry->pool_second},
        .stack = NT_NO_STACK,
        .compile_context = NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    if (source->time_us != NULL) {
        event.time_us = source->time_us(source->ctx, b->type, entry->ticks);
    }
    if (entry->action == NT_LIVE_OOM) {
        event.device_free = entry->addr;
        event.addr = 0;
        b->keys |= NT_HAS_EVENT_DEVICE_FREE;
    }
    if (entry->stack != NT_RING_NONE) {
        NT_TRY(live_mark_stack(mark, b, entry->stack, &event.stack));
    }
    NT_TRY(drain_metadata(mark, b, entry->metadata, &event.user_metadata));
    nt_action single[1];
    const nt_action *actions;
    const size_t count = drain_actions(entry, single, &actions);
    for (size_t i = 0; i < count; i++) {
        event.action = (uint8_t)actions[i];
        NT_TRY(nt_snapshot_add_event(b->snapshot, &event, b->err));
    }
    return NT_OK;
}

/* The entries as events of the trace that was begun last. */
static nt_status
live_mark_drain(nt_live_mark *mark, nt_live_builder *b)
{
    NT_TRY(drain_make_ids(b, mark->counts.stacks, &mark->stacks, &mark->stack_room));
    NT_TRY(drain_make_ids(b, mark->counts.frames, &mark->frames, &mark->frame_room));
    NT_TRY(drain_make_ids(b, mark->counts.texts, &mark->texts, &mark->text_room));
    for (uint64_t i = mark->first; i < mark->head; i++) {
        NT_TRY(drain_entry(mark, b, &mark->entries[i - mark->from]));
    }
    return NT_OK;
}

static nt_live_mark *
live_find_mark(const nt_live_builder *b, int32_t device)
{
    for (size_t i = 0; i < b->mark_count; i++) {
        if (b->marks[i].tail.device == device) {
            return &b->marks[i];
        }
    }
    return NULL;
}

static nt_status
live_add_mark(nt_live_builder *b, int32_t device, const nt_ring *ring, uint64_t head)
{
    if (device < 0 || device >= NT_LIVE_MOST_DEVICES ||
        live_find_mark(b, device) != NULL) {
        return nt_fail(b->err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the layout has device %d twice, or out of range", (int)device);
    }
    NT_TRY(NT_GROW(&b->alloc, b->marks, b->mark_capacity, b->mark_count + 1, b->err));
    nt_live_mark *mark = &b->marks[b->mark_count++];
    *mark = (nt_live_mark){.ring = ring,
                           .start = nt_ring_start(ring),
                           .head = head,
                           .tail = {.device = device}};
    mark->start = mark->start < head ? mark->start : head;
    return live_mark_copy(mark, &b->alloc, b->most_events, b->err);
}

static int
live_set_mark(nt_live_builder *b, int32_t device, const nt_ring *ring, uint64_t head)
{
    return b->status != NT_OK ? -1 : live_note(b, live_add_mark(b, device, ring, head));
}

static int
live_add_block(nt_live_builder *b, const nt_live_block *block)
{
    return b->status != NT_OK ? -1
                              : live_note(b, live_append_block(b, block, NT_RING_NONE));
}

/* A row of allocator_settings; *row, where it is not NULL, is its number. */
static nt_status
live_set_row(nt_live_builder *b, const char *key, nt_setting setting, uint32_t *row)
{
    NT_TRY(nt_strings_intern(nt_snapshot_strings(b->snapshot), key, strlen(key),
                             &setting.key, b->err));
    NT_TRY(nt_snapshot_add_setting(b->snapshot, &setting, b->err));
    if (row != NULL) {
        *row = (uint32_t)b->setting_count;
    }
    b->setting_count++;
    return NT_OK;
}

static int
live_set(nt_live_builder *b, const char *key, nt_setting setting)
{
    setting.parent = NT_NONE;
    return b->status != NT_OK ? -1 : live_note(b, live_set_row(b, key, setting, NULL));
}

static int
live_set_bool(nt_live_builder *b, const char *key, int value)
{
    return live_set(b, key,
                    (nt_setting){.kind = NT_SETTING_BOOL, .integer = value != 0});
}

static int
live_set_int(nt_live_builder *b, const char *key, int64_t value)
{
    return live_set(b, key, (nt_setting){.kind = NT_SETTING_INT, .integer = value});
}

static int
live_set_real(nt_live_builder *b, const char *key, double value)
{
    return live_set(b, key, (nt_setting){.kind = NT_SETTING_FLOAT, .real = value});
}

static int
live_set_text(nt_live_builder *b, const char *key, const char *text, size_t length)
{
    nt_setting setting = {.kind = NT_SETTING_STRING};
    if (b->status != NT_OK ||
        live_note(b, nt_strings_intern(nt_snapshot_strings(b->snapshot), text, length,
                                       &setting.string, b->err)) != 0) {
        return -1;
    }
    return live_set(b, key, setting);
}

/* A dict under `key` with `count` numbers or truths under the keys that `name` gives.
 */
static nt_status
live_set_dict(nt_live_builder *b, const char *key, nt_setting_kind kind, size_t count,
              void (*entry)(const void *from, size_t i, char *name, int64_t *value),
              const void *from)
{
    nt_setting setting = {.parent = NT_NONE, .kind = NT_SETTING_DICT};
    uint32_t parent;
    NT_TRY(live_set_row(b, key, setting, &parent));
    for (size_t i = 0; i < count; i++) {
        char name[24];
        setting = (nt_setting){.parent = parent, .kind = kind};
        entry(from, i, name, &setting.integer);
        NT_TRY(live_set_row(b, name, setting, NULL));
    }
    return NT_OK;
}

static void
live_roundup_entry(const void *from, size_t i, char *name, int64_t *value)
{
    (void)snprintf(name, 24, "%llu", 1ULL << (i & 63));
    *value = (int64_t)((const uint64_t *)from)[i];
}

static int
live_set_roundup(nt_live_builder *b, const uint64_t *divisions, size_t count)
{
    return b->status != NT_OK
               ? -1
               : live_note(b,
                           live_set_dict(b, "roundup_power2_divisions", NT_SETTING_INT,
                                         count, live_roundup_entry, divisions));
}

static void
live_cut_entry(const void *from, size_t i, char *name, int64_t *value)
{
    const nt_live_mark *mark = (const nt_live_mark *)from + i;
    (void)snprintf(name, 24, "%d", (int)mark->tail.device);
    *value = mark->is_cut;
}

static void
live_late_entry(const void *from, size_t i, char *name, int64_t *value)
{
    const nt_live_mark *mark = (const nt_live_mark *)from + i;
    (void)snprintf(name, 24, "%d", (int)mark->tail.device);
    *value = mark->tail.late;
}

static nt_status
live_set_recording(nt_live_builder *b)
{
    nt_setting most = {.parent = NT_NONE, .kind = NT_SETTING_INT};
    most.integer = b->most_events > INT64_MAX ? INT64_MAX : (int64_t)b->most_events;
    NT_TRY(live_set_row(b, "trace_alloc_max_entries", most, NULL));
    NT_TRY(live_set_dict(b, "trace_alloc_overflowed", NT_SETTING_BOOL, b->mark_count,
                         live_cut_entry, b->marks));
    NT_TRY(live_set_dict(b, "trace_alloc_began_late", NT_SETTING_BOOL, b->mark_count,
                         live_late_entry, b->marks));
    if (b->type == NT_LIVE_CPU) {
        const nt_setting exact = {
            .parent = NT_NONE, .kind = NT_SETTING_BOOL, .integer = 1};
        NT_TRY(live_set_row(b, "exact_sizes", exact, NULL));
    }
    return NT_OK;
}

/* The traces of devices 0 to the last that has a ring. */
static nt_status
live_add_traces(nt_live_builder *b)
{
    int32_t last = -1;
    for (size_t i = 0; i < b->mark_count; i++) {
        last = b->marks[i].tail.device > last ? b->marks[i].tail.device : last;
    }
    for (int32_t device = 0; device <= last; device++) {
        NT_TRY(nt_snapshot_begin_trace(b->snapshot, b->err));
        nt_live_mark *mark = live_find_mark(b, device);
        if (mark != NULL) {
            NT_TRY(live_mark_drain(mark, b));
        }
    }
    return NT_OK;
}

/* The stacks of what is live, by address: the last event that made it has them. */
static nt_status
live_find_stacks(const nt_live_mark *mark, nt_map *blocks, nt_map *segments,
                 nt_error *err)
{
    for (uint64_t i = mark->first; i < mark->head; i++) {
        const nt_ring_entry *entry = &mark->entries[i - mark->from];
        nt_map *map = NULL;
        if (entry->action == NT_LIVE_ALLOC) {
            map = blocks;
        } else if (entry->action == NT_LIVE_SEGMENT_ALLOC ||
                   entry->action == NT_LIVE_SEGMENT_MAP) {
            map = segments;
        }
        if (map != NULL && entry->stack < mark->stack_room) {
            NT_TRY(nt_map_set(map, entry->addr, entry->stack, err));
        } else if (map != NULL) {
            (void)nt_map_remove(map, entry->addr);
        }
    }
    return NT_OK;
}

/* The ring's stack of a block in use, or NT_RING_NONE: its own, that of its allocation
 * among the events that were copied, or of one before these. */
static uint32_t
live_block_stack(const nt_live_block_row *row, const nt_live_mark *mark,
                 const nt_map *blocks)
{
    const uint64_t address = row->block.address;
    uint32_t stack = row->stack;
    if (stack == NT_RING_NONE) {
        stack = nt_map_find(blocks, address);
    }
    if (stack == NT_RING_NONE && mark != NULL) {
        stack = nt_ring_origins_find(&mark->ring->origins, address, mark->first);
    }
    return stack;
}

static nt_status
live_translate(nt_live_builder *b, nt_live_mark *mark, uint32_t stack, uint32_t *out)
{
    *out = NT_EMPTY_STACK;
    return mark == NULL ? NT_OK : live_mark_stack(mark, b, stack, out);
}

static nt_status
live_emit_segment(nt_live_builder *b, const nt_live_row *row, nt_live_mark *mark,
                  const nt_map *blocks, const nt_map *segments)
{
    const nt_live_segment *s = &row->segment;
    nt_segment segment = {
        .device = s->device,
        .address = s->address,
        .total_size = s->total_size,
        .allocated_size = s->allocated_size,
        .active_size = s->active_size,
        .requested_size = s->requested_size,
        .stream = s->stream,
        .pool = {s->pool_first, s->pool_second},
        .kind = s->is_large ? NT_POOL_LARGE : NT_POOL_SMALL,
        .is_expandable = s->is_expandable != 0,
    };
    NT_TRY(live_translate(b, mark, nt_map_find(segments, s->address), &segment.stack));
    NT_TRY(nt_snapshot_add_segment(b->snapshot, &segment, b->err));
    for (size_t i = 0; i < row->block_count; i++) {
        const nt_live_block_row *from = &b->blocks[row->block_first + i];
        nt_block block = {
            .address = from->block.address,
            .size = from->block.size,
            .requested_size = from->block.requested_size,
            .state = from->block.state < NT_BLOCK_STATE_COUNT ? from->block.state
                                                              : NT_BLOCK_INACTIVE,
            .stack = NT_EMPTY_STACK,
        };
        if (block.state != NT_BLOCK_INACTIVE) {
            NT_TRY(live_translate(b, mark, live_block_stack(from, mark, blocks),
                                  &block.stack));
        }
        NT_TRY(nt_snapshot_add_block(b->snapshot, &block, b->err));
    }
    return NT_OK;
}

/* The layout's segments that follow each other on one device; *row is behind them. */
static nt_status
live_emit_device(nt_live_builder *b, size_t *row)
{
    const int32_t device = b->segments[*row].segment.device;
    nt_live_mark *mark = live_find_mark(b, device);
    nt_map blocks, segments;
    nt_map_init(&blocks, b->alloc);
    nt_map_init(&segments, b->alloc);
    nt_status status =
        mark == NULL ? NT_OK : live_find_stacks(mark, &blocks, &segments, b->err);
    for (; status == NT_OK && *row < b->segment_count &&
           b->segments[*row].segment.device == device;
         ++*row) {
        status = live_emit_segment(b, &b->segments[*row], mark, &blocks, &segments);
    }
    nt_map_clear(&blocks);
    nt_map_clear(&segments);
    return status;
}

static nt_status
live_fill(nt_live_builder *b)
{
    NT_TRY(live_set_recording(b));
    NT_TRY(live_add_traces(b));
    for (size_t row = 0; row < b->segment_count;) {
        NT_TRY(live_emit_device(b, &row));
    }
    nt_snapshot_set_keys(
        b->snapshot, b->keys | NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL |
                         NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED |
                         NT_HAS_SEGMENT_REQUESTED | NT_HAS_SEGMENT_ALLOCATED |
                         NT_HAS_SEGMENT_ACTIVE | NT_HAS_SEGMENT_POOL |
                         NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_SETTINGS | NT_HAS_TRACES);
    return nt_snapshot_seal(b->snapshot, b->err);
}

static void
live_clear(nt_live_builder *b)
{
    for (size_t i = 0; i < b->mark_count; i++) {
        live_mark_clear(&b->marks[i], &b->alloc);
    }
    NT_RELEASE(&b->alloc, b->marks, b->mark_capacity);
    NT_RELEASE(&b->alloc, b->segments, b->segment_capacity);
    NT_RELEASE(&b->alloc, b->blocks, b->block_capacity);
    nt_snapshot_free(b->snapshot);
}

static nt_status
live_take_layout(nt_live_builder *b)
{
    const nt_live_source *source = b->source;
    if (source->layout == NULL) {
        return nt_fail(b->err, NT_IO, NT_NO_OFFSET, "the hooks offer no layout");
    }
    const int failed = source->layout(source->ctx, b->type, b);
    if (b->status != NT_OK) {
        return b->status;
    }
    if (failed != 0) {
        return nt_fail(b->err, NT_IO, NT_NO_OFFSET,
                       "PyTorch's allocator gave no layout (code %d)", failed);
    }
    return NT_OK;
}

nt_status
nt_live_build(const nt_alloc *alloc, const nt_live_source *source,
              nt_live_device_type type, uint64_t most_events, nt_snapshot **out,
              nt_live_tail *tails, size_t *tail_count, nt_error *err)
{
    nt_live_builder b = {.alloc = *alloc,
                         .source = source,
                         .type = type,
                         .most_events = most_events,
                         .err = err};
    nt_status status = nt_snapshot_new(alloc, &b.snapshot, err);
    if (status == NT_OK) {
        status = live_take_layout(&b);
        if (status == NT_OK) {
            status = live_fill(&b);
        }
        if (source->release != NULL) {
            source->release(source->ctx);
        }
    }
    if (status == NT_OK) {
        for (size_t i = 0; i < b.mark_count; i++) {
            tails[i] = b.marks[i].tail;
        }
        *tail_count = b.mark_count;
        *out = b.snapshot;
        b.snapshot = NULL;
    }
    live_clear(&b);
    return status;
}

static nt_ring *
live_ring_new(uint64_t events, int frames)
{
    const nt_alloc alloc = nt_alloc_system();
    return nt_ring_new(&alloc, events, frames);
}

static nt_live_blocks *
live_blocks_new(uint64_t most)
{
    const nt_alloc alloc = nt_alloc_system();
    return nt_live_blocks_new(&alloc, most);
}

const nt_live_api *
nt_live_table(void)
{
    static const nt_live_api table = {
        .version = NT_LIVE_API_VERSION,
        .size = sizeof(nt_live_api),
        .ring_new = live_ring_new,
        .ring_free = nt_ring_free,
        .ring_restart = nt_ring_restart,
        .ring_add_stack = nt_ring_add_stack,
        .ring_add_text = nt_ring_add_text,
        .set_mark = live_set_mark,
        .add_segment = live_add_segment,
        .add_block = live_add_block,
        .add_bare = live_builder_add_bare,
        .set_bool = live_set_bool,
        .set_int = live_set_int,
        .set_real = live_set_real,
        .set_text = live_set_text,
        .set_roundup = live_set_roundup,
        .blocks_new = live_blocks_new,
        .blocks_free = nt_live_blocks_free,
        .blocks_clear = live_blocks_clear,
        .blocks_add = nt_live_blocks_add,
        .blocks_remove = nt_live_blocks_remove,
        .blocks_emit = live_blocks_emit,
        .blocks_copy = nt_live_blocks_copy,
        .blocks_count = nt_live_blocks_count,
    };
    return &table;
}
