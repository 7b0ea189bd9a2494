/* SPDX-License-Identifier: Apache-2.0 */
/* What the module knows, as columns by name. */
#include "nt_page.h"

#include <string.h>

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

/* The bytes of a string, and their number as the first figure; of how many there are
 * as the second. */
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
