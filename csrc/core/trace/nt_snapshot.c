/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_snapshot.h"

#include <string.h>

#include "base/nt_columns.h"
#include "trace/nt_snapshot_settings.h"

static const nt_column_spec annotation_specs[] = {
    NT_COLUMN(nt_annotation_columns, stage),
    NT_COLUMN(nt_annotation_columns, name),
    NT_COLUMN(nt_annotation_columns, device),
    NT_COLUMN(nt_annotation_columns, time_us),
};

struct nt_snapshot {
    nt_alloc alloc;
    nt_snapshot *host; /* owned; or NULL */
    bool is_host;      /* strings and stacks are its owner's */
    nt_strings *strings;
    nt_stacks *stacks;
    nt_events events;
    nt_layout layout;
    size_t segment_capacity, block_capacity;
    nt_layout before; /* the layout before the traces */
    size_t before_segment_capacity, before_block_capacity;
    bool has_before; /* segments and blocks are added to it */
    nt_annotation_columns annotations;
    size_t annotation_capacity;
    nt_setting *settings_rows;
    size_t setting_count, setting_capacity;
    uint32_t *ignored; /* string ids */
    size_t ignored_count, ignored_capacity;
    nt_broken_note *broken;
    size_t broken_count, broken_capacity;
    size_t *trace_first; /* first event of each device's trace */
    size_t trace_count, trace_capacity;
    uint32_t *extra_actions; /* string ids of codes NT_ACTION_COUNT and up */
    size_t extra_count, extra_capacity;
    nt_settings settings;
    uint32_t keys;
    bool is_partial;
    char partial[256];
};

nt_status
nt_snapshot_new(const nt_alloc *alloc, nt_snapshot **out, nt_error *err)
{
    nt_snapshot *snapshot = nt_allocate(alloc, sizeof *snapshot);
    if (snapshot == NULL) {
        return nt_fail_nomem(err);
    }
    *snapshot = (nt_snapshot){
        .alloc = *alloc,
        .events.alloc = *alloc,
        .settings = nt_settings_default(),
    };
    nt_status status = nt_strings_new(alloc, &snapshot->strings, err);
    if (status == NT_OK) {
        status = nt_stacks_new(alloc, &snapshot->stacks, err);
    }
    if (status != NT_OK) {
        nt_snapshot_free(snapshot);
        return status;
    }
    *out = snapshot;
    return NT_OK;
}

void
nt_snapshot_free(nt_snapshot *snapshot)
{
    if (snapshot == NULL) {
        return;
    }
    const nt_alloc alloc = snapshot->alloc;
    nt_snapshot_free(snapshot->host);
    if (!snapshot->is_host) {
        nt_strings_free(snapshot->strings);
        nt_stacks_free(snapshot->stacks);
    }
    nt_events_clear(&snapshot->events);
    nt_layout_clear(&snapshot->layout, &alloc, snapshot->segment_capacity,
                    snapshot->block_capacity);
    nt_layout_clear(&snapshot->before, &alloc, snapshot->before_segment_capacity,
                    snapshot->before_block_capacity);
    nt_columns_release(&alloc, &snapshot->annotations, annotation_specs,
                       NT_LENGTH(annotation_specs), snapshot->annotation_capacity);
    nt_release(&alloc, snapshot->settings_rows,
               snapshot->setting_capacity * sizeof(nt_setting));
    nt_release(&alloc, snapshot->ignored,
               snapshot->ignored_capacity * sizeof(uint32_t));
    nt_release(&alloc, snapshot->broken,
               snapshot->broken_capacity * sizeof(nt_broken_note));
    nt_release(&alloc, snapshot->trace_first,
               snapshot->trace_capacity * sizeof(size_t));
    nt_release(&alloc, snapshot->extra_actions,
               snapshot->extra_capacity * sizeof(uint32_t));
    nt_release(&alloc, snapshot, sizeof *snapshot);
}

/* A setting that is true. */
static nt_status
snapshot_add_flag(nt_snapshot *snapshot, const char *name, nt_error *err)
{
    nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_BOOL, .integer = 1};
    NT_TRY(nt_strings_intern(snapshot->strings, name, strlen(name), &row.key, err));
    return nt_snapshot_add_setting(snapshot, &row, err);
}

static nt_status
snapshot_copy_actions(nt_snapshot *to, const nt_snapshot *from, nt_error *err)
{
    for (size_t i = 0; i < from->extra_count; i++) {
        uint8_t code;
        NT_TRY(nt_snapshot_intern_action(to, from->extra_actions[i], &code, err));
    }
    return NT_OK;
}

nt_status
nt_snapshot_begin_host(nt_snapshot *snapshot, nt_snapshot **out, nt_error *err)
{
    nt_snapshot *host = nt_allocate(&snapshot->alloc, sizeof *host);
    if (host == NULL) {
        return nt_fail_nomem(err);
    }
    *host = (nt_snapshot){
        .alloc = snapshot->alloc,
        .is_host = true,
        .strings = snapshot->strings,
        .stacks = snapshot->stacks,
        .events.alloc = snapshot->alloc,
        .settings = nt_settings_default(),
    };
    nt_status status = snapshot_copy_actions(host, snapshot, err);
    if (status == NT_OK) {
        status = snapshot_add_flag(host, "exact_sizes", err);
    }
    if (status == NT_OK) {
        status = snapshot_add_flag(host, "pinned", err);
    }
    if (status != NT_OK) {
        nt_snapshot_free(host);
        return status;
    }
    nt_snapshot_free(snapshot->host);
    *out = snapshot->host = host;
    return NT_OK;
}

nt_status
nt_snapshot_begin_trace(nt_snapshot *snapshot, nt_error *err)
{
    NT_TRY(nt_grow(&snapshot->alloc, (void **)&snapshot->trace_first,
                   &snapshot->trace_capacity, snapshot->trace_count + 1, sizeof(size_t),
                   err));
    snapshot->trace_first[snapshot->trace_count++] = snapshot->events.columns.count;
    return NT_OK;
}

nt_status
nt_snapshot_add_event(nt_snapshot *snapshot, const nt_event *event, nt_error *err)
{
    return nt_events_add(&snapshot->events, event, err);
}

nt_events *
nt_snapshot_event_table(nt_snapshot *snapshot)
{
    return &snapshot->events;
}

nt_status
nt_snapshot_arrange_trace(nt_snapshot *snapshot, nt_error *err)
{
    NT_TRY(nt_snapshot_begin_trace(snapshot, err));
    snapshot->trace_first[snapshot->trace_count - 1] = snapshot->events.picked;
    return NT_OK;
}

nt_status
nt_snapshot_arrange_events(nt_snapshot *snapshot, size_t first, size_t count,
                           nt_error *err)
{
    return nt_events_pick(&snapshot->events, first, count, err);
}

nt_status
nt_snapshot_arrange(nt_snapshot *snapshot, nt_error *err)
{
    return nt_events_arrange(&snapshot->events, err);
}

nt_status
nt_snapshot_add_segment(nt_snapshot *snapshot, const nt_segment *segment, nt_error *err)
{
    return snapshot->has_before
               ? nt_layout_add_segment(&snapshot->before, &snapshot->alloc,
                                       &snapshot->before_segment_capacity, segment, err)
               : nt_layout_add_segment(&snapshot->layout, &snapshot->alloc,
                                       &snapshot->segment_capacity, segment, err);
}

nt_status
nt_snapshot_add_block(nt_snapshot *snapshot, const nt_block *block, nt_error *err)
{
    return snapshot->has_before
               ? nt_layout_add_block(&snapshot->before, &snapshot->alloc,
                                     &snapshot->before_block_capacity, block, err)
               : nt_layout_add_block(&snapshot->layout, &snapshot->alloc,
                                     &snapshot->block_capacity, block, err);
}

void
nt_snapshot_begin_before(nt_snapshot *snapshot)
{
    snapshot->has_before = true;
}

nt_status
nt_snapshot_add_annotation(nt_snapshot *snapshot, const nt_annotation *annotation,
                           nt_error *err)
{
    nt_annotation_columns *a = &snapshot->annotations;
    const size_t row = a->count;
    NT_TRY(nt_columns_reserve(&snapshot->alloc, a, annotation_specs,
                              NT_LENGTH(annotation_specs), row,
                              &snapshot->annotation_capacity, row + 1, err));
    a->stage[row] = annotation->stage;
    a->name[row] = annotation->name;
    a->device[row] = annotation->device;
    a->time_us[row] = annotation->time_us;
    a->count = row + 1;
    return NT_OK;
}

nt_status
nt_snapshot_add_setting(nt_snapshot *snapshot, const nt_setting *setting, nt_error *err)
{
    NT_TRY(nt_grow(&snapshot->alloc, (void **)&snapshot->settings_rows,
                   &snapshot->setting_capacity, snapshot->setting_count + 1,
                   sizeof(nt_setting), err));
    snapshot->settings_rows[snapshot->setting_count++] = *setting;
    return NT_OK;
}

nt_status
nt_snapshot_add_ignored(nt_snapshot *snapshot, uint32_t name, nt_error *err)
{
    NT_TRY(nt_grow(&snapshot->alloc, (void **)&snapshot->ignored,
                   &snapshot->ignored_capacity, snapshot->ignored_count + 1,
                   sizeof(uint32_t), err));
    snapshot->ignored[snapshot->ignored_count++] = name;
    return NT_OK;
}

nt_layout *
nt_snapshot_layout_table(nt_snapshot *snapshot)
{
    return &snapshot->layout;
}

nt_layout *
nt_snapshot_before_table(nt_snapshot *snapshot)
{
    return &snapshot->before;
}

nt_status
nt_snapshot_add_broken(nt_snapshot *snapshot, const nt_broken_note *note, nt_error *err)
{
    NT_TRY(nt_grow(&snapshot->alloc, (void **)&snapshot->broken,
                   &snapshot->broken_capacity, snapshot->broken_count + 1,
                   sizeof(nt_broken_note), err));
    snapshot->broken[snapshot->broken_count++] = *note;
    return NT_OK;
}

void
nt_snapshot_drop_broken(nt_snapshot *snapshot)
{
    snapshot->broken_count = 0;
}

static const char *const snapshot_action_names[NT_ACTION_COUNT] = {
    [NT_ACTION_ALLOC] = "alloc",
    [NT_ACTION_FREE_REQUESTED] = "free_requested",
    [NT_ACTION_FREE_COMPLETED] = "free_completed",
    [NT_ACTION_SEGMENT_ALLOC] = "segment_alloc",
    [NT_ACTION_SEGMENT_FREE] = "segment_free",
    [NT_ACTION_SEGMENT_MAP] = "segment_map",
    [NT_ACTION_SEGMENT_UNMAP] = "segment_unmap",
    [NT_ACTION_SNAPSHOT] = "snapshot",
    [NT_ACTION_OOM] = "oom",
    [NT_ACTION_ANNOTATE] = "annotate",
    [NT_ACTION_USER_DEFINED] = "user_defined",
    [NT_ACTION_WORKSPACE_SNAPSHOT] = "workspace_snapshot",
    [NT_ACTION_INTERNAL_ALLOC] = "internal_alloc",
    [NT_ACTION_INTERNAL_FREE_REQUESTED] = "internal_free_requested",
    [NT_ACTION_INTERNAL_FREE_COMPLETED] = "internal_free_completed",
};

nt_status
nt_snapshot_intern_action(nt_snapshot *snapshot, uint32_t name, uint8_t *out,
                          nt_error *err)
{
    size_t length;
    const char *text = nt_strings_get(snapshot->strings, name, &length);
    for (uint8_t code = 0; code < NT_ACTION_INTERNAL_ALLOC; code++) {
        const char *known = snapshot_action_names[code];
        if (strlen(known) == length && memcmp(known, text, length) == 0) {
            *out = code;
            return NT_OK;
        }
    }
    for (size_t i = 0; i < snapshot->extra_count; i++) {
        if (snapshot->extra_actions[i] == name) {
            *out = (uint8_t)(NT_ACTION_COUNT + i);
            return NT_OK;
        }
    }
    if (NT_ACTION_COUNT + snapshot->extra_count >= UINT8_MAX) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                       "more than %d different trace actions", UINT8_MAX);
    }
    NT_TRY(nt_grow(&snapshot->alloc, (void **)&snapshot->extra_actions,
                   &snapshot->extra_capacity, snapshot->extra_count + 1,
                   sizeof(uint32_t), err));
    *out = (uint8_t)(NT_ACTION_COUNT + snapshot->extra_count);
    snapshot->extra_actions[snapshot->extra_count++] = name;
    return NT_OK;
}

void
nt_snapshot_set_keys(nt_snapshot *snapshot, uint32_t keys)
{
    snapshot->keys = keys;
}

void
nt_snapshot_set_partial(nt_snapshot *snapshot, const char *reason)
{
    size_t length = strlen(reason);
    if (length >= sizeof snapshot->partial) {
        length = sizeof snapshot->partial - 1;
    }
    memcpy(snapshot->partial, reason, length);
    snapshot->partial[length] = '\0';
    snapshot->is_partial = true;
}

nt_status
nt_snapshot_seal(nt_snapshot *snapshot, nt_error *err)
{
    for (size_t device = 0; device < snapshot->trace_count; device++) {
        size_t first, events;
        nt_snapshot_trace(snapshot, device, &first, &events);
        if (events > INT32_MAX - 1) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                           "the trace of device %zu has 2^31 events or more", device);
        }
    }
    NT_TRY(nt_events_seal(&snapshot->events, snapshot->keys, err));
    snapshot->settings = nt_snapshot_read_settings(snapshot);
    return snapshot->host == NULL ? NT_OK : nt_snapshot_seal(snapshot->host, err);
}

nt_strings *
nt_snapshot_strings(const nt_snapshot *snapshot)
{
    return snapshot->strings;
}

nt_stacks *
nt_snapshot_stacks(const nt_snapshot *snapshot)
{
    return snapshot->stacks;
}

nt_status
nt_snapshot_mark_function(const nt_snapshot *snapshot, const char *name,
                          const nt_alloc *alloc, uint8_t **marks, size_t *count,
                          nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(snapshot);
    const uint32_t found =
        nt_strings_find(nt_snapshot_strings(snapshot), name, strlen(name));
    const size_t needed = found == NT_NONE ? 0 : nt_stacks_count(stacks);
    uint8_t *made = needed == 0 ? NULL : nt_allocate(alloc, needed);
    if (made == NULL && needed != 0) {
        return nt_fail_nomem(err);
    }
    if (made != NULL) {
        nt_stacks_mark(stacks, found, made);
    }
    *marks = made;
    *count = needed;
    return NT_OK;
}

const nt_event_columns *
nt_snapshot_events(const nt_snapshot *snapshot)
{
    return &snapshot->events.columns;
}

const nt_layout *
nt_snapshot_layout(const nt_snapshot *snapshot)
{
    return &snapshot->layout;
}

const nt_layout *
nt_snapshot_before(const nt_snapshot *snapshot)
{
    return snapshot->has_before ? &snapshot->before : NULL;
}

nt_snapshot *
nt_snapshot_host(const nt_snapshot *snapshot)
{
    return snapshot->host;
}

const nt_annotation_columns *
nt_snapshot_annotations(const nt_snapshot *snapshot)
{
    return &snapshot->annotations;
}

const nt_setting *
nt_snapshot_setting_rows(const nt_snapshot *snapshot, size_t *count)
{
    *count = snapshot->setting_count;
    return snapshot->settings_rows;
}

const uint32_t *
nt_snapshot_ignored(const nt_snapshot *snapshot, size_t *count)
{
    *count = snapshot->ignored_count;
    return snapshot->ignored;
}

const nt_broken_note *
nt_snapshot_broken(const nt_snapshot *snapshot, size_t *count)
{
    *count = snapshot->broken_count;
    return snapshot->broken;
}

uint32_t
nt_snapshot_keys(const nt_snapshot *snapshot)
{
    return snapshot->keys;
}

const char *
nt_snapshot_partial(const nt_snapshot *snapshot)
{
    return snapshot->is_partial ? snapshot->partial : NULL;
}

const nt_settings *
nt_snapshot_settings(const nt_snapshot *snapshot)
{
    return &snapshot->settings;
}

size_t
nt_snapshot_trace_count(const nt_snapshot *snapshot)
{
    return snapshot->trace_count;
}

void
nt_snapshot_trace(const nt_snapshot *snapshot, size_t device, size_t *first,
                  size_t *events)
{
    *first = snapshot->events.columns.count;
    *events = 0;
    if (device < snapshot->trace_count) {
        const size_t end = device + 1 < snapshot->trace_count
                               ? snapshot->trace_first[device + 1]
                               : snapshot->events.columns.count;
        *first = snapshot->trace_first[device];
        *events = end - *first;
    }
}

const char *
nt_snapshot_action_name(const nt_snapshot *snapshot, uint8_t action, size_t *length)
{
    if (action < NT_ACTION_COUNT) {
        *length = strlen(snapshot_action_names[action]);
        return snapshot_action_names[action];
    }
    NT_ASSERT((size_t)action - NT_ACTION_COUNT < snapshot->extra_count);
    return nt_strings_get(snapshot->strings,
                          snapshot->extra_actions[action - NT_ACTION_COUNT], length);
}

size_t
nt_snapshot_action_count(const nt_snapshot *snapshot)
{
    return NT_ACTION_COUNT + snapshot->extra_count;
}
