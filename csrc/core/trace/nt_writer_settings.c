/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_sort.h"
#include "trace/nt_writer_parts.h"

/* The rows of allocator_settings, depth first: what is in a dict or list follows
 * its own row. `next` is the row to be written next. */
typedef struct writer_tree {
    const nt_setting *rows;
    size_t count, next;
    nt_writer_parts parts;
    /* Where only a part of the events is written: the lists of calls that were noted,
     * by row, with the device of each. */
    nt_sort_item *noted;
    size_t noted_count, next_noted;
} writer_tree;

static void
writer_setting(nt_writer *w, writer_tree *tree);

static nt_status
writer_find_noted(const nt_writer *w, writer_tree *tree)
{
    const size_t devices = nt_snapshot_trace_count(w->snapshot);
    const nt_setting *rows;
    size_t count;
    tree->noted = nt_allocate(&w->alloc, devices * sizeof *tree->noted);
    if (tree->noted == NULL && devices != 0) {
        return nt_fail_nomem(w->out.err);
    }
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

/* The rows of one parent, of which the first is tree->next. */
static void
writer_children(nt_writer *w, writer_tree *tree, uint32_t parent, bool is_dict)
{
    size_t done = 0;
    while (tree->next < tree->count && tree->rows[tree->next].parent == parent) {
        if (is_dict) {
            nt_writer_key(&w->out, done++);
            nt_writer_string(w, tree->rows[tree->next].key);
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

/* One row's value with all that is in it. The reader bounds the depth, so the
 * recursion is bounded as well. */
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
    case NT_SETTING_STRING: nt_writer_string(w, setting->string); break;
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

void
nt_writer_settings(nt_writer *w, nt_writer_parts parts)
{
    const size_t devices = nt_snapshot_trace_count(w->snapshot);
    const bool is_whole = parts.count != 0 && parts.items[0].is_whole;
    writer_tree tree = {.parts = parts};
    tree.rows = nt_snapshot_setting_rows(w->snapshot, &tree.count);
    if (!is_whole && w->out.status == NT_OK) {
        w->out.status = writer_find_noted(w, &tree);
    }
    nt_writer_word(w, KEY_ALLOCATOR_SETTINGS);
    nt_writer_dict(&w->out, NULL);
    writer_children(w, &tree, NT_NONE, true);
    nt_release(&w->alloc, tree.noted, devices * sizeof *tree.noted);
}
