/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_same.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The two sides, and for every id of the left one the id of the right one that was
 * found equal, so that nothing is compared twice. */
typedef struct same {
    const nt_snapshot *a, *b;
    uint32_t *strings, *stacks;
} same;

static char same_words[160];

static const char *
same_differs(const char *table, const char *column, size_t row)
{
    (void)snprintf(same_words, sizeof same_words, "%s: %s of row %zu", table, column,
                   row);
    return same_words;
}

static uint32_t *
same_table(size_t count)
{
    uint32_t *table = malloc((count + 1) * sizeof *table);
    if (table == NULL) {
        abort();
    }
    memset(table, 0xff, (count + 1) * sizeof *table);
    return table;
}

static void
same_init(same *s, const nt_snapshot *a, const nt_snapshot *b)
{
    *s = (same){.a = a, .b = b};
    s->strings = same_table(nt_strings_count(nt_snapshot_strings(a)));
    s->stacks = same_table(nt_stacks_count(nt_snapshot_stacks(a)));
}

static void
same_clear(same *s)
{
    free(s->strings);
    free(s->stacks);
}

static bool
same_string(same *s, uint32_t in_a, uint32_t in_b)
{
    if (in_a == NT_NONE || in_b == NT_NONE) {
        return in_a == in_b;
    }
    if (s->strings[in_a] == NT_NONE) {
        size_t length_a, length_b;
        const char *a = nt_strings_get(nt_snapshot_strings(s->a), in_a, &length_a);
        const char *b = nt_strings_get(nt_snapshot_strings(s->b), in_b, &length_b);
        if (length_a == length_b && memcmp(a, b, length_a) == 0) {
            s->strings[in_a] = in_b;
        }
    }
    return s->strings[in_a] == in_b;
}

static bool
same_fx(same *s, uint32_t in_a, uint32_t in_b)
{
    if (in_a == 0 || in_b == 0) {
        return in_a == in_b;
    }
    size_t count;
    const nt_fx_node *a = &nt_stacks_fx(nt_snapshot_stacks(s->a), &count)[in_a - 1];
    const nt_fx_node *b = &nt_stacks_fx(nt_snapshot_stacks(s->b), &count)[in_b - 1];
    return same_string(s, a->op, b->op) && same_string(s, a->name, b->name) &&
           same_string(s, a->target, b->target) && same_string(s, a->trace, b->trace);
}

static bool
same_frame(same *s, uint32_t in_a, uint32_t in_b)
{
    const nt_frame *a = &nt_stacks_frames(nt_snapshot_stacks(s->a))[in_a];
    const nt_frame *b = &nt_stacks_frames(nt_snapshot_stacks(s->b))[in_b];
    return a->line == b->line && same_string(s, a->name, b->name) &&
           same_string(s, a->filename, b->filename) && same_fx(s, a->fx, b->fx);
}

/* Both tables hold each stack once, so equal stacks are one id on either side. */
static bool
same_stack(same *s, uint32_t in_a, uint32_t in_b)
{
    const nt_stacks *a = nt_snapshot_stacks(s->a), *b = nt_snapshot_stacks(s->b);
    if (in_a == NT_NO_STACK || in_b == NT_NO_STACK) {
        return in_a == in_b;
    }
    uint32_t x = in_a, y = in_b;
    while (x != NT_EMPTY_STACK && y != NT_EMPTY_STACK && s->stacks[x] != y) {
        if (s->stacks[x] != NT_NONE ||
            !same_frame(s, nt_stacks_innermost(a)[x], nt_stacks_innermost(b)[y])) {
            return false;
        }
        x = nt_stacks_parent(a)[x];
        y = nt_stacks_parent(b)[y];
    }
    if (x == NT_EMPTY_STACK ? y != NT_EMPTY_STACK : s->stacks[x] != y) {
        return false;
    }
    for (; in_a != x; in_a = nt_stacks_parent(a)[in_a]) {
        s->stacks[in_a] = in_b;
        in_b = nt_stacks_parent(b)[in_b];
    }
    return true;
}

/* Leaves the function with the difference, if there is one. */
#define SAME(table, row, column, holds)                                                \
    do {                                                                               \
        if (!(holds)) {                                                                \
            return same_differs(table, #column, row);                                  \
        }                                                                              \
    } while (0)

/* The value of a column in both, the default where a side has no such column. */
#define SAME_NUMBER(table, row, column, missing)                                       \
    SAME(table, row, column,                                                           \
         (a->column == NULL ? (missing) : a->column[row]) ==                           \
             (b->column == NULL ? (missing) : b->column[row]))

#define SAME_STRING(table, row, column)                                                \
    SAME(table, row, column,                                                           \
         same_string(s, a->column == NULL ? NT_NONE : a->column[row],                  \
                     b->column == NULL ? NT_NONE : b->column[row]))

static bool
same_action(same *s, uint8_t in_a, uint8_t in_b)
{
    size_t length_a, length_b;
    const char *a = nt_snapshot_action_name(s->a, in_a, &length_a);
    const char *b = nt_snapshot_action_name(s->b, in_b, &length_b);
    return length_a == length_b && memcmp(a, b, length_a) == 0;
}

static const char *
same_events(same *s)
{
    const nt_event_columns *a = nt_snapshot_events(s->a), *b = nt_snapshot_events(s->b);
    SAME("events", a->count, count, a->count == b->count);
    for (size_t row = 0; row < a->count; row++) {
        SAME("events", row, action, same_action(s, a->action[row], b->action[row]));
        SAME_NUMBER("events", row, addr, 0);
        SAME_NUMBER("events", row, size, 0);
        SAME_NUMBER("events", row, stream, 0);
        SAME_NUMBER("events", row, time_us, 0);
        SAME_NUMBER("events", row, device_free, 0);
        SAME_NUMBER("events", row, pool_first, 0);
        SAME_NUMBER("events", row, pool_second, 0);
        SAME_STRING("events", row, compile_context);
        SAME_STRING("events", row, user_metadata);
        SAME_STRING("events", row, internal_metadata);
        SAME("events", row, forward,
             same_stack(s, a->forward == NULL ? NT_NO_STACK : a->forward[row],
                        b->forward == NULL ? NT_NO_STACK : b->forward[row]));
        SAME("events", row, stack, same_stack(s, a->stack[row], b->stack[row]));
    }
    return NULL;
}

static const char *
same_segments(same *s, const nt_segment_columns *a, const nt_segment_columns *b)
{
    SAME("segments", a->count, count, a->count == b->count);
    for (size_t row = 0; row < a->count; row++) {
        SAME_NUMBER("segments", row, device, 0);
        SAME_NUMBER("segments", row, address, 0);
        SAME_NUMBER("segments", row, total_size, 0);
        SAME_NUMBER("segments", row, allocated_size, 0);
        SAME_NUMBER("segments", row, active_size, 0);
        SAME_NUMBER("segments", row, requested_size, 0);
        SAME_NUMBER("segments", row, stream, 0);
        SAME_NUMBER("segments", row, pool_first, 0);
        SAME_NUMBER("segments", row, pool_second, 0);
        SAME_NUMBER("segments", row, kind, 0);
        SAME_NUMBER("segments", row, is_expandable, 0);
        SAME_NUMBER("segments", row, block_first, 0);
        SAME_NUMBER("segments", row, block_count, 0);
        SAME("segments", row, stack, same_stack(s, a->stack[row], b->stack[row]));
    }
    return NULL;
}

static const char *
same_blocks(same *s, const nt_block_columns *a, const nt_block_columns *b)
{
    SAME("blocks", a->count, count, a->count == b->count);
    for (size_t row = 0; row < a->count; row++) {
        SAME_NUMBER("blocks", row, segment, 0);
        SAME_NUMBER("blocks", row, address, 0);
        SAME_NUMBER("blocks", row, size, 0);
        SAME_NUMBER("blocks", row, requested_size, 0);
        SAME_NUMBER("blocks", row, state, 0);
        SAME("blocks", row, stack, same_stack(s, a->stack[row], b->stack[row]));
    }
    return NULL;
}

static const char *
same_annotations(same *s)
{
    const nt_annotation_columns *a = nt_snapshot_annotations(s->a);
    const nt_annotation_columns *b = nt_snapshot_annotations(s->b);
    SAME("annotations", a->count, count, a->count == b->count);
    for (size_t row = 0; row < a->count; row++) {
        SAME_NUMBER("annotations", row, stage, 0);
        SAME_NUMBER("annotations", row, device, 0);
        SAME_NUMBER("annotations", row, time_us, 0);
        SAME_STRING("annotations", row, name);
    }
    return NULL;
}

static const char *
same_settings(same *s)
{
    size_t count, count_b;
    const nt_setting *a = nt_snapshot_setting_rows(s->a, &count);
    const nt_setting *b = nt_snapshot_setting_rows(s->b, &count_b);
    SAME("settings", count, count, count == count_b);
    for (size_t row = 0; row < count; row++, a++, b++) {
        SAME("settings", row, parent, a->parent == b->parent);
        SAME("settings", row, key, same_string(s, a->key, b->key));
        SAME("settings", row, kind, a->kind == b->kind);
        SAME("settings", row, integer, a->integer == b->integer);
        /* As bits: a number that is none equals itself. */
        SAME("settings", row, real, memcmp(&a->real, &b->real, sizeof a->real) == 0);
        SAME("settings", row, string,
             a->kind != NT_SETTING_STRING || same_string(s, a->string, b->string));
    }
    return NULL;
}

static const char *
same_traces(same *s)
{
    const size_t count = nt_snapshot_trace_count(s->a);
    SAME("traces", count, count, count == nt_snapshot_trace_count(s->b));
    for (size_t device = 0; device < count; device++) {
        size_t first_a, events_a, first_b, events_b;
        nt_snapshot_trace(s->a, device, &first_a, &events_a);
        nt_snapshot_trace(s->b, device, &first_b, &events_b);
        SAME("traces", device, first, first_a == first_b);
        SAME("traces", device, events, events_a == events_b);
    }
    return NULL;
}

static const char *
same_layouts(same *s, const nt_layout *a, const nt_layout *b)
{
    const char *found = same_segments(s, &a->segments, &b->segments);
    return found != NULL ? found : same_blocks(s, &a->blocks, &b->blocks);
}

/* The keys at the top of the file; those of rows may be lost with the last row. */
static const char *
same_keys(const same *s)
{
    const uint32_t top =
        NT_HAS_SETTINGS | NT_HAS_ANNOTATIONS | NT_HAS_TRACES | NT_SEGMENTS_ONLY;
    SAME("snapshot", 0, keys,
         (nt_snapshot_keys(s->a) & top) == (nt_snapshot_keys(s->b) & top));
    return NULL;
}

static const char *
same_hosts(const nt_snapshot *a, const nt_snapshot *b)
{
    const nt_snapshot *host_a = nt_snapshot_host(a), *host_b = nt_snapshot_host(b);
    if ((host_a == NULL) != (host_b == NULL)) {
        return "only one has pinned memory";
    }
    return host_a == NULL ? NULL : nt_same_snapshot(host_a, host_b);
}

const char *
nt_same_snapshot(const nt_snapshot *a, const nt_snapshot *b)
{
    same s;
    same_init(&s, a, b);
    const char *found = same_keys(&s);
    found = found != NULL ? found : same_traces(&s);
    found = found != NULL ? found : same_events(&s);
    found = found != NULL
                ? found
                : same_layouts(&s, nt_snapshot_layout(a), nt_snapshot_layout(b));
    const nt_layout *before_a = nt_snapshot_before(a),
                    *before_b = nt_snapshot_before(b);
    if (found == NULL && (before_a == NULL) != (before_b == NULL)) {
        found = "only one says what was before the traces";
    } else if (found == NULL && before_a != NULL) {
        found = same_layouts(&s, before_a, before_b);
    }
    found = found != NULL ? found : same_annotations(&s);
    found = found != NULL ? found : same_settings(&s);
    found = found != NULL ? found : same_hosts(a, b);
    same_clear(&s);
    return found;
}

const char *
nt_same_layout(const nt_snapshot *a, const nt_layout *in_a, const nt_snapshot *b,
               const nt_layout *in_b)
{
    same s;
    same_init(&s, a, b);
    const char *found = same_layouts(&s, in_a, in_b);
    same_clear(&s);
    return found;
}
