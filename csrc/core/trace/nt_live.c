/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_live.h"

#include <stdio.h>
#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_live_builder.h"
#include "trace/nt_rounding.h"

int
nt_live_builder_fail(nt_live_builder *b, nt_status status)
{
    if (b->status == NT_OK) {
        b->status = status;
        if (status == NT_NOMEM) {
            (void)nt_fail_nomem(b->err);
        }
    }
    return -1;
}

/* What the shim is told of a call's outcome. */
static int
live_note(nt_live_builder *b, nt_status status)
{
    if (status != NT_OK) {
        b->status = status;
    }
    return status == NT_OK ? 0 : -1;
}

/* The mark of a device, or NULL. */
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
    NT_TRY(nt_grow(&b->alloc, (void **)&b->marks, &b->mark_capacity, b->mark_count + 1,
                   sizeof(nt_live_mark), b->err));
    nt_live_mark *mark = &b->marks[b->mark_count++];
    *mark = (nt_live_mark){.ring = ring,
                           .start = nt_ring_start(ring),
                           .head = head,
                           .tail = {.device = device}};
    mark->start = mark->start < head ? mark->start : head;
    return nt_live_mark_copy(mark, &b->alloc, b->most_events, b->err);
}

static int
live_set_mark(nt_live_builder *b, int32_t device, const nt_ring *ring, uint64_t head)
{
    return b->status != NT_OK ? -1 : live_note(b, live_add_mark(b, device, ring, head));
}

static int
live_add_segment(nt_live_builder *b, const nt_live_segment *segment)
{
    if (b->status != NT_OK) {
        return -1;
    }
    const nt_status status =
        nt_grow(&b->alloc, (void **)&b->segments, &b->segment_capacity,
                b->segment_count + 1, sizeof(nt_live_row), b->err);
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
    NT_TRY(nt_grow(&b->alloc, (void **)&b->blocks, &b->block_capacity,
                   b->block_count + 1, sizeof(nt_live_block_row), b->err));
    b->blocks[b->block_count++] = (nt_live_block_row){*block, stack};
    b->segments[b->segment_count - 1].block_count++;
    return NT_OK;
}

static int
live_add_block(nt_live_builder *b, const nt_live_block *block)
{
    return b->status != NT_OK ? -1
                              : live_note(b, live_append_block(b, block, NT_RING_NONE));
}

int
nt_live_builder_add_bare(nt_live_builder *b, int32_t device, uint64_t address,
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

/* What the settings tell of the recording itself. */
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
            NT_TRY(nt_live_mark_drain(mark, b));
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
    return mark == NULL ? NT_OK : nt_live_mark_stack(mark, b, stack, out);
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
        nt_live_mark_clear(&b->marks[i], &b->alloc);
    }
    nt_release(&b->alloc, b->marks, b->mark_capacity * sizeof(nt_live_mark));
    nt_release(&b->alloc, b->segments, b->segment_capacity * sizeof(nt_live_row));
    nt_release(&b->alloc, b->blocks, b->block_capacity * sizeof(nt_live_block_row));
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
        .add_bare = nt_live_builder_add_bare,
        .set_bool = live_set_bool,
        .set_int = live_set_int,
        .set_real = live_set_real,
        .set_text = live_set_text,
        .set_roundup = live_set_roundup,
        .blocks_new = live_blocks_new,
        .blocks_free = nt_live_blocks_free,
        .blocks_clear = nt_live_blocks_clear,
        .blocks_add = nt_live_blocks_add,
        .blocks_remove = nt_live_blocks_remove,
        .blocks_emit = nt_live_blocks_emit,
        .blocks_copy = nt_live_blocks_copy,
        .blocks_count = nt_live_blocks_count,
    };
    return &table;
}
