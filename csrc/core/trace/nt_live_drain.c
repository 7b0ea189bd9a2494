/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries of a ring as the events of a snapshot. The ring's own ids of stacks and
 * texts become the snapshot's when they are first met; lines are found then.
 */
#include <string.h>

#include "base/nt_columns.h"
#include "base/nt_utf8.h"
#include "trace/nt_live_builder.h"

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

nt_status
nt_live_mark_copy(nt_live_mark *mark, const nt_alloc *alloc, uint64_t most,
                  nt_error *err)
{
    uint64_t count = mark->head - mark->start;
    const uint64_t room = nt_ring_room(mark->ring);
    count = count < most ? count : most;
    count = count < room ? count : room;
    mark->from = mark->head - count;
    mark->entries = nt_allocate(alloc, (size_t)count * sizeof(nt_ring_entry));
    if (mark->entries == NULL && count != 0) {
        return nt_fail_nomem(err);
    }
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

void
nt_live_mark_clear(nt_live_mark *mark, const nt_alloc *alloc)
{
    nt_release(alloc, mark->entries, mark->room * sizeof(nt_ring_entry));
    nt_release(alloc, mark->stacks, mark->stack_room * sizeof(uint32_t));
    nt_release(alloc, mark->frames, mark->frame_room * sizeof(uint32_t));
    nt_release(alloc, mark->texts, mark->text_room * sizeof(uint32_t));
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

/* A str of Python's as UTF-8 among the snapshot's strings. */
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

nt_status
nt_live_mark_stack(nt_live_mark *mark, nt_live_builder *b, uint32_t stack,
                   uint32_t *out)
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
        NT_TRY(nt_live_mark_stack(mark, b, entry->stack, &event.stack));
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

nt_status
nt_live_mark_drain(nt_live_mark *mark, nt_live_builder *b)
{
    NT_TRY(drain_make_ids(b, mark->counts.stacks, &mark->stacks, &mark->stack_room));
    NT_TRY(drain_make_ids(b, mark->counts.frames, &mark->frames, &mark->frame_room));
    NT_TRY(drain_make_ids(b, mark->counts.texts, &mark->texts, &mark->text_room));
    for (uint64_t i = mark->first; i < mark->head; i++) {
        NT_TRY(drain_entry(mark, b, &mark->entries[i - mark->from]));
    }
    return NT_OK;
}
