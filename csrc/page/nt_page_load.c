/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a file, saving it, choosing what further calls are about; its columns by name
 * and the steps of its program. */
#include "nt_page.h"

#include <string.h>

#include "trace/nt_pack.h"
#include "trace/nt_reader.h"
#include "trace/nt_source.h"
#include "trace/nt_writer.h"
#include "leak/nt_steps.h"

/* The page's functions: bytes come and go through the module's memory. `read` gives how
 * many bytes it wrote, and 0 at the end; a negative number stops. */
NT_PAGE_IMPORT(read) int32_t page_read(void *buffer, uint32_t capacity);
NT_PAGE_IMPORT(write) int32_t page_write(const void *bytes, uint32_t count);
/* The memory that reading what came so far may take; 0: as much as there is. */
NT_PAGE_IMPORT(allowance) double page_allowance(void);

nt_page nt_pages[NT_PAGES];
nt_page *nt_page_now = &nt_pages[NT_PAGE_FILE];
nt_budget nt_page_budget;
nt_alloc nt_page_memory;
nt_error nt_page_err;
double nt_page_figures[NT_PAGE_FIGURES];
nt_page_column nt_page_answers[8];
nt_page_room nt_page_rooms[NT_ROOMS];

static size_t page_limit;

nt_status
nt_page_reserve(nt_page_room *room, size_t bytes)
{
    if (bytes <= room->capacity) {
        return NT_OK;
    }
    nt_release(&nt_page_memory, room->data, room->capacity);
    *room = (nt_page_room){0};
    NT_TRY(nt_take(&nt_page_memory, (void **)&room->data, bytes, &nt_page_err));
    room->capacity = bytes;
    return NT_OK;
}

static void
page_release(nt_page_room *room)
{
    nt_release(&nt_page_memory, room->data, room->capacity);
    *room = (nt_page_room){0};
}

void
nt_page_clear_timeline(nt_page *page)
{
    nt_strip_free(page->strip);
    nt_raster_free(page->raster);
    nt_fragment_free(page->fragment);
    if (page->timeline != NULL) {
        nt_timeline_layout_free(page->timeline, page->layout);
        nt_timeline_holders_free(page->timeline, page->holders, page->holder_count);
    }
    nt_release(&nt_page_memory, page->step_edges,
               page->step_edges == NULL ? 0
                                        : (page->step_count + 1) * sizeof(uint32_t));
    page_release(&page->codes);
    page_release(&page->rules);
    page_release(&page->roles);
    page_release(&page->spans);
    nt_timeline_free(page->timeline);
    *page = (nt_page){.whole = page->whole, .snapshot = page->snapshot};
}

void
nt_page_clear(nt_page *page)
{
    nt_page_clear_timeline(page);
    nt_snapshot_free(page->whole);
    *page = (nt_page){0};
}

NT_PAGE_EXPORT(error) const nt_error *page_error(void)
{
    return &nt_page_err;
}

NT_PAGE_EXPORT(figures) const double *page_figures(void)
{
    return nt_page_figures;
}

/* Room for what the page hands over; it gives it back. */
NT_PAGE_EXPORT(allocate) void *page_allocate(uint32_t size)
{
    return nt_allocate(&nt_page_memory, size);
}

NT_PAGE_EXPORT(release) void page_give_back(void *data, uint32_t size)
{
    nt_release(&nt_page_memory, data, size);
}

/* Bytes that are in use, and the most that were. */
NT_PAGE_EXPORT(memory_used) void page_memory_used(void)
{
    nt_page_figures[0] = (double)nt_page_budget.used;
    nt_page_figures[1] = (double)nt_page_budget.peak;
}

/* 0: the file, 1: the outcome of other settings. */
NT_PAGE_EXPORT(use) void page_use(uint32_t which)
{
    nt_page_now = &nt_pages[which < NT_PAGES ? which : 0];
}

static int
load_read(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    (void)ctx;
    const int32_t got = page_read(buffer, (uint32_t)capacity);
    *count = got < 0 ? 0 : (size_t)got;
    const double allowed = page_allowance();
    if (allowed > 0) {
        const size_t bytes =
            allowed < (double)page_limit ? (size_t)allowed : page_limit;
        nt_page_budget.limit =
            bytes > nt_page_budget.used ? bytes : nt_page_budget.used;
    }
    return got < 0;
}

/* Reads a snapshot of `total` bytes in at most `limit` bytes of memory; what was read
 * before is gone, and no room that an answer had is kept. `is_packed`: not a pickle,
 * but what nt_pack wrote. */
NT_PAGE_EXPORT(load) int32_t page_load(double limit, double total, uint32_t is_packed)
{
    nt_page_clear_program();
    nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
    nt_page_clear(&nt_pages[NT_PAGE_FILE]);
    for (size_t i = 0; i < NT_ROOMS; i++) {
        page_release(&nt_page_rooms[i]);
    }
    memset(nt_page_answers, 0, sizeof nt_page_answers);
    page_limit = (size_t)limit;
    nt_budget_init(&nt_page_budget, nt_alloc_system(), page_limit);
    nt_page_memory = nt_budget_alloc(&nt_page_budget);
    nt_page_err = (nt_error){.offset = NT_NO_OFFSET};
    nt_source source;
    nt_source_init_input(&source, nt_page_memory, (nt_input){.read = load_read}, NULL);
    source.total = (uint64_t)total;
    nt_status (*const load)(const nt_alloc *, nt_source *, nt_snapshot **, nt_error *) =
        is_packed ? nt_pack_load : nt_reader_load;
    nt_page *page = &nt_pages[NT_PAGE_FILE];
    const nt_status status = load(&nt_page_memory, &source, &page->whole, &nt_page_err);
    page->snapshot = page->whole;
    nt_source_clear(&source);
    /* Whether what was packed may not take more, or nothing may. */
    nt_page_figures[0] = nt_page_budget.limit < page_limit;
    nt_page_budget.limit = page_limit;
    return status;
}

static int
save_write(void *ctx, const void *bytes, size_t count)
{
    (void)ctx;
    return page_write(bytes, (uint32_t)count);
}

/* Hands the snapshot out as a pickle, piece by piece. */
NT_PAGE_EXPORT(save) int32_t page_save(void)
{
    const nt_sink sink = {.write = save_write};
    return nt_writer_save(&nt_page_memory, nt_page_now->whole, &sink, NULL,
                          &nt_page_err);
}

/* How many devices have a trace, and why only a part was read: a text, or NULL. */
NT_PAGE_EXPORT(traces) uint32_t page_traces(void)
{
    return (uint32_t)nt_snapshot_trace_count(nt_page_now->snapshot);
}

/* Events of a device's trace. */
NT_PAGE_EXPORT(trace_length) uint32_t page_trace_length(uint32_t device)
{
    size_t first = 0, events = 0;
    if (device < nt_snapshot_trace_count(nt_page_now->snapshot)) {
        nt_snapshot_trace(nt_page_now->snapshot, device, &first, &events);
    }
    return (uint32_t)events;
}

NT_PAGE_EXPORT(partial) const char *page_partial(void)
{
    return nt_snapshot_partial(nt_page_now->snapshot);
}

/* Further calls are about the pinned memory of the host, or about the devices again; 0
 * where the file has none of it. What was asked of the other is gone. */
NT_PAGE_EXPORT(turn) uint32_t page_turn(uint32_t to_host)
{
    nt_page *page = &nt_pages[NT_PAGE_FILE];
    nt_snapshot *host = nt_snapshot_host(page->whole);
    nt_snapshot *wanted = to_host && host != NULL ? host : page->whole;
    if (wanted != page->snapshot) {
        nt_page_clear_program();
        nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
        nt_page_clear_timeline(page);
        page->snapshot = wanted;
    }
    return host != NULL;
}

/* Replays the trace of a device; further calls are about it. */
NT_PAGE_EXPORT(replay) int32_t page_replay(int32_t device)
{
    nt_page *page = nt_page_now;
    if (page == &nt_pages[NT_PAGE_FILE]) {
        nt_page_clear_program();
        nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
    }
    nt_page_clear_timeline(page);
    return nt_timeline_new(&nt_page_memory, page->snapshot, device, NULL,
                           &page->timeline, &nt_page_err);
}

/* ---- columns by name ------------------------------------------------------------- */

typedef enum column_table {
    TABLE_EVENTS, /* of the timeline's device */
    TABLE_ALLOCATIONS,
    TABLE_SEGMENTS, /* their lives */
    TABLE_LAYOUT_SEGMENTS,
    TABLE_LAYOUT_BLOCKS,
    TABLE_ANNOTATIONS,
} column_table;

typedef struct column_entry {
    const char *name;
    column_table table;
    size_t offset; /* of the column's pointer in the table's struct */
    nt_page_type type;
} column_entry;

/* clang-format off */
#define EVENT(field, type) {"event." #field, TABLE_EVENTS, \
    offsetof(nt_event_columns, field), NT_PAGE_##type}
#define ALLOCATION(field, type) {"alloc." #field, TABLE_ALLOCATIONS, \
    offsetof(nt_allocation_columns, field), NT_PAGE_##type}
#define SEGMENT(field, type) {"segment." #field, TABLE_SEGMENTS, \
    offsetof(nt_segment_life_columns, field), NT_PAGE_##type}
#define LAYOUT(field, type) {"layout." #field, TABLE_LAYOUT_SEGMENTS, \
    offsetof(nt_segment_columns, field), NT_PAGE_##type}
#define BLOCK(field, type) {"block." #field, TABLE_LAYOUT_BLOCKS, \
    offsetof(nt_block_columns, field), NT_PAGE_##type}
#define ANNOTATION(field, type) {"annotation." #field, TABLE_ANNOTATIONS, \
    offsetof(nt_annotation_columns, field), NT_PAGE_##type}

static const column_entry column_entries[] = {
    EVENT(action, U8), EVENT(addr, U64), EVENT(size, U64), EVENT(stream, U64),
    EVENT(stack, U32), EVENT(time_us, I64), EVENT(device_free, U64),
    EVENT(pool_first, U64), EVENT(pool_second, U64), EVENT(compile_context, U32),
    EVENT(user_metadata, U32), EVENT(forward, U32),
    ALLOCATION(address, U64), ALLOCATION(size, U64), ALLOCATION(requested_size, U64),
    ALLOCATION(stream, U64), ALLOCATION(alloc_event, I32), ALLOCATION(free_event, I32),
    ALLOCATION(completed_event, I32), ALLOCATION(stack, U32),
    SEGMENT(address, U64), SEGMENT(size, U64), SEGMENT(stream, U64),
    SEGMENT(pool_first, U64), SEGMENT(pool_second, U64), SEGMENT(kind, U8),
    SEGMENT(is_expandable, U8), SEGMENT(pool_known, U8), SEGMENT(alloc_event, I32),
    SEGMENT(free_event, I32), SEGMENT(stack, U32),
    LAYOUT(device, I32), LAYOUT(address, U64), LAYOUT(total_size, U64),
    LAYOUT(allocated_size, U64), LAYOUT(stream, U64), LAYOUT(pool_first, U64),
    LAYOUT(pool_second, U64), LAYOUT(kind, U8), LAYOUT(is_expandable, U8),
    LAYOUT(block_first, U32), LAYOUT(block_count, U32),
    BLOCK(address, U64), BLOCK(size, U64), BLOCK(requested_size, U64), BLOCK(state, U8),
    BLOCK(stack, U32),
    ANNOTATION(stage, U8), ANNOTATION(name, U32), ANNOTATION(device, I32),
    ANNOTATION(time_us, I64),
};

/* clang-format on */

static const size_t column_widths[] = {
    [NT_PAGE_U8] = 1,  [NT_PAGE_I32] = 4, [NT_PAGE_U32] = 4,
    [NT_PAGE_U64] = 8, [NT_PAGE_I64] = 8, [NT_PAGE_F64] = 8,
};

/* The struct of a table, its rows, and the first of them that counts; NULL where there
 * is none. */
static const void *
column_find_table(column_table table, size_t *first, size_t *count)
{
    const nt_page *page = nt_page_now;
    const nt_layout *layout =
        page->layout != NULL ? page->layout : nt_snapshot_layout(page->snapshot);
    *first = 0;
    switch (table) {
    case TABLE_LAYOUT_SEGMENTS:
        *count = layout->segments.count;
        return &layout->segments;
    case TABLE_LAYOUT_BLOCKS: *count = layout->blocks.count; return &layout->blocks;
    case TABLE_ANNOTATIONS:
        *count = nt_snapshot_annotations(page->snapshot)->count;
        return nt_snapshot_annotations(page->snapshot);
    default: break;
    }
    if (page->timeline == NULL) {
        return NULL;
    }
    if (table == TABLE_ALLOCATIONS) {
        *count = nt_timeline_allocations(page->timeline)->count;
        return nt_timeline_allocations(page->timeline);
    }
    if (table == TABLE_SEGMENTS) {
        *count = nt_timeline_segments(page->timeline)->count;
        return nt_timeline_segments(page->timeline);
    }
    *count = nt_timeline_event_count(page->timeline);
    if (*count != 0) {
        size_t events;
        nt_snapshot_trace(page->snapshot, (size_t)nt_timeline_device(page->timeline),
                          first, &events);
    }
    return nt_snapshot_events(page->snapshot);
}

static void
column_set(nt_page_column *out, const void *data, size_t count, nt_page_type type)
{
    *out = (nt_page_column){
        .data = data, .count = data == NULL ? 0 : (uint32_t)count, .type = type};
}

/* Columns that are in no table. */
static void
column_find_other(const char *name, nt_page_column *out)
{
    const nt_page *page = nt_page_now;
    const nt_stacks *stacks = nt_snapshot_stacks(page->snapshot);
    const size_t stack_count = nt_stacks_count(stacks);
    size_t count = 0;
    if (strcmp(name, "stack.innermost") == 0) {
        column_set(out, nt_stacks_innermost(stacks), stack_count, NT_PAGE_U32);
    } else if (strcmp(name, "stack.parent") == 0) {
        column_set(out, nt_stacks_parent(stacks), stack_count, NT_PAGE_U32);
    } else if (strcmp(name, "frame") == 0) {
        /* Six numbers a frame: name, file, a line of 64 bits, its node, nothing. */
        column_set(out, nt_stacks_frames(stacks), 6 * nt_stacks_frame_count(stacks),
                   NT_PAGE_U32);
    } else if (strcmp(name, "fx") == 0) {
        /* Four strings a node: op, name, target, the model's own stack. */
        const nt_fx_node *nodes = nt_stacks_fx(stacks, &count);
        column_set(out, nodes, 4 * count, NT_PAGE_U32);
    } else if (strcmp(name, "event.row") == 0 && page->timeline != NULL) {
        column_set(out, nt_timeline_event_allocations(page->timeline),
                   nt_timeline_event_count(page->timeline), NT_PAGE_U32);
    } else if (strcmp(name, "axis.states") == 0 && page->raster != NULL) {
        const nt_rising states = nt_raster_states(page->raster, &count);
        if (states.wide != NULL) {
            column_set(out, states.wide, count + 1, NT_PAGE_U64);
        } else {
            column_set(out, states.narrow, count + 1, NT_PAGE_U32);
        }
    } else if (strcmp(name, "axis.ranges") == 0 && page->raster != NULL) {
        /* Three numbers a range: address, size, position. */
        const nt_raster_range *ranges = nt_raster_ranges(page->raster, &count);
        column_set(out, ranges, 3 * count, NT_PAGE_U64);
    } else if (strcmp(name, "rules") == 0 && page->timeline != NULL) {
        column_set(out, page->rules.data,
                   nt_timeline_allocations(page->timeline)->count, NT_PAGE_U8);
    } else if (strcmp(name, "passes") == 0 && page->timeline != NULL) {
        /* Two numbers a pass: its first event, and the one behind it. */
        column_set(out, page->spans.data, 2 * page->span_count, NT_PAGE_I32);
    } else if (strcmp(name, "roles") == 0 && page->timeline != NULL) {
        column_set(out, page->roles.data, nt_timeline_event_count(page->timeline),
                   NT_PAGE_U8);
    } else if (strcmp(name, "steps") == 0) {
        column_set(out, page->step_edges, page->step_count + 1, NT_PAGE_U32);
    }
}

/* A column by name, with a count of 0 where the file has none. */
NT_PAGE_EXPORT(column) const nt_page_column *page_column(const char *name)
{
    static nt_page_column found;
    column_set(&found, NULL, 0, NT_PAGE_U8);
    for (size_t i = 0; i < sizeof column_entries / sizeof *column_entries; i++) {
        const column_entry *entry = &column_entries[i];
        if (strcmp(entry->name, name) != 0) {
            continue;
        }
        size_t first = 0, count = 0;
        const void *table = column_find_table(entry->table, &first, &count);
        if (table != NULL) {
            const char *data;
            memcpy(&data, (const char *)table + entry->offset, sizeof data);
            column_set(&found,
                       data == NULL ? NULL : data + first * column_widths[entry->type],
                       count, entry->type);
        }
        return &found;
    }
    column_find_other(name, &found);
    return &found;
}

/* The columns that the last call answered with. */
NT_PAGE_EXPORT(answer) const nt_page_column *page_answer(uint32_t which)
{
    return &nt_page_answers[which < 8 ? which : 7];
}

/* The bytes of a string, and their number as the first figure; of how many there are as
 * the second. */
NT_PAGE_EXPORT(string) const char *page_string(uint32_t id)
{
    const nt_strings *strings = nt_snapshot_strings(nt_page_now->snapshot);
    size_t length = 0;
    nt_page_figures[1] = (double)nt_strings_count(strings);
    const char *text = NULL;
    if (id < nt_strings_count(strings)) {
        text = nt_strings_get(strings, id, &length);
    }
    nt_page_figures[0] = (double)length;
    return text;
}

/* The name of an action code; NULL where there is no such code. */
NT_PAGE_EXPORT(action) const char *page_action(uint32_t code)
{
    const nt_snapshot *snapshot = nt_page_now->snapshot;
    size_t length = 0;
    const char *name = NULL;
    if (code < nt_snapshot_action_count(snapshot)) {
        name = nt_snapshot_action_name(snapshot, (uint8_t)code, &length);
    }
    nt_page_figures[0] = (double)length;
    return name;
}

/* ---- the steps of the program ---------------------------------------------------- */

/* Answer 0: 1 for each stack whose role is needed. */
NT_PAGE_EXPORT(step_stacks) int32_t page_step_stacks(void)
{
    const nt_snapshot *snapshot = nt_page_now->snapshot;
    const size_t count = nt_stacks_count(nt_snapshot_stacks(snapshot));
    nt_page_room *room = &nt_page_rooms[NT_ROOM_MARKS];
    NT_TRY(nt_page_reserve(room, count + 1));
    memset(room->data, 0, count);
    (void)nt_steps_mark_stacks(
        snapshot, (size_t)nt_timeline_device(nt_page_now->timeline), room->data);
    nt_page_answers[0] = (nt_page_column){room->data, (uint32_t)count, NT_PAGE_U8};
    return NT_OK;
}

/* Finds the steps, the column `steps`, from a role for each stack. Figures: how, text,
 * frame (-1: none). */
NT_PAGE_EXPORT(find_steps) int32_t page_find_steps(const uint8_t *roles)
{
    nt_page *page = nt_page_now;
    nt_steps found;
    NT_TRY(nt_steps_find(&nt_page_memory, page->snapshot,
                         (size_t)nt_timeline_device(page->timeline), roles, &found,
                         &nt_page_err));
    nt_release(&nt_page_memory, page->step_edges,
               page->step_edges == NULL ? 0
                                        : (page->step_count + 1) * sizeof(uint32_t));
    /* The edges are the page's own from here on: they were made by its allocator. */
    page->step_edges = found.edges;
    page->step_count = found.count;
    nt_page_figures[0] = found.how;
    nt_page_figures[1] = found.text == NT_NONE ? -1 : (double)found.text;
    nt_page_figures[2] = found.frame == NT_NONE ? -1 : (double)found.frame;
    return NT_OK;
}
