/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/nt_columns.h"

/* What the rows of allocator_settings come to. */

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

nt_strings *
nt_snapshot_strings(const nt_snapshot *snapshot)
{
    return snapshot->strings;
}

const nt_setting *
nt_snapshot_setting_rows(const nt_snapshot *snapshot, size_t *count)
{
    *count = snapshot->setting_count;
    return snapshot->settings_rows;
}

/* The top-level row of allocator_settings called `name`, or NULL. */
static const nt_setting *
snapshot_find_setting(const nt_snapshot *snapshot, const char *name, uint32_t parent)
{
    const uint32_t key =
        nt_strings_find(nt_snapshot_strings(snapshot), name, strlen(name));
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(snapshot, &count);
    for (size_t i = 0; key != NT_NONE && i < count; i++) {
        const nt_setting *row = &rows[i];
        if (row->key == key && row->parent == parent) {
            return row;
        }
    }
    return NULL;
}

static void
snapshot_read_roundup(const nt_snapshot *snapshot, nt_settings *settings)
{
    static const char *const names[NT_ROUNDUP_INTERVALS] = {
        "1",   "2",   "4",    "8",    "16",   "32",   "64",    "128",
        "256", "512", "1024", "2048", "4096", "8192", "16384", "32768",
    };
    const nt_setting *dict =
        snapshot_find_setting(snapshot, "roundup_power2_divisions", NT_NONE);
    if (dict == NULL || dict->kind != NT_SETTING_DICT) {
        return;
    }
    size_t count;
    const uint32_t parent =
        (uint32_t)(dict - nt_snapshot_setting_rows(snapshot, &count));
    for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        const nt_setting *row = snapshot_find_setting(snapshot, names[i], parent);
        /* Divisions are powers of two up to 64 MiB's worth; others are noise. */
        if (row != NULL && row->kind == NT_SETTING_INT && row->integer >= 0 &&
            row->integer <= (1 << 20) && (row->integer & (row->integer - 1)) == 0) {
            settings->roundup_power2_divisions[i] = (uint32_t)row->integer;
        }
    }
}

/* The row of the settings' text: under the name of its device's environment variable,
 * or the one that all devices have. */
static const nt_setting *
snapshot_find_text(const nt_snapshot *snapshot)
{
    static const char *const names[] = {
        "PYTORCH_CUDA_ALLOC_CONF", /* CUDA */
        "PYTORCH_HIP_ALLOC_CONF",  /* ROCm */
        "PYTORCH_ALLOC_CONF",      /* any device, XPU */
    };
    const nt_setting *row = NULL;
    for (size_t i = 0; i < NT_LENGTH(names) && row == NULL; i++) {
        row = snapshot_find_setting(snapshot, names[i], NT_NONE);
    }
    return row;
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

/* Whether anything in the snapshot was mapped into an expandable segment. */
static bool
snapshot_has_mapped(const nt_snapshot *snapshot)
{
    const nt_segment_columns *segments = &nt_snapshot_layout(snapshot)->segments;
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    bool has_mapped = false;
    for (size_t i = 0; i < segments->count && !has_mapped; i++) {
        has_mapped = segments->is_expandable[i] != 0;
    }
    for (size_t i = 0; i < events->count && !has_mapped; i++) {
        has_mapped = events->action[i] == NT_ACTION_SEGMENT_MAP ||
                     events->action[i] == NT_ACTION_SEGMENT_UNMAP;
    }
    return has_mapped;
}

/* The text of the environment variable first, then the parsed fields over it: the
 * fields are what the allocator had in force. A file that states none shows one by what
 * it has: segments that expand. */
static nt_settings
snapshot_read_settings(const nt_snapshot *snapshot)
{
    nt_settings read = nt_settings_default(), *settings = &read;
    const nt_setting *row = snapshot_find_text(snapshot);
    if (row != NULL && row->kind == NT_SETTING_STRING) {
        size_t length;
        const char *text =
            nt_strings_get(nt_snapshot_strings(snapshot), row->string, &length);
        nt_settings parsed;
        if (nt_settings_parse(text, length, &parsed, NULL) == NT_OK) {
            *settings = parsed;
        }
    }
    row = snapshot_find_setting(snapshot, "max_split_size", NT_NONE);
    if (row != NULL && row->kind == NT_SETTING_INT) {
        settings->max_split_size =
            row->integer < 0 ? NT_UNLIMITED : (uint64_t)row->integer;
    }
    row = snapshot_find_setting(snapshot, "garbage_collection_threshold", NT_NONE);
    if (row != NULL && row->kind == NT_SETTING_FLOAT && row->real >= 0 &&
        row->real < 1) {
        settings->garbage_collection_threshold = row->real;
    }
    row = snapshot_find_setting(snapshot, "expandable_segments", NT_NONE);
    if (row != NULL && row->kind == NT_SETTING_BOOL) {
        settings->expandable_segments = row->integer != 0;
    }
    size_t count;
    (void)nt_snapshot_setting_rows(snapshot, &count);
    if (count == 0) {
        settings->expandable_segments = snapshot_has_mapped(snapshot);
    }
    row = snapshot_find_setting(snapshot, "exact_sizes", NT_NONE);
    settings->exact_sizes =
        row != NULL && row->kind == NT_SETTING_BOOL && row->integer != 0;
    snapshot_read_roundup(snapshot, settings);
    return read;
}

/* Calls of empty_cache() that a recording noted, as rows of allocator_settings: a dict
 * by the device's number with a list of events each. */

/* The number of the row under `name` in the dict `parent`, or NT_NONE. */
static uint32_t
calls_find(const nt_snapshot *snapshot, uint32_t parent, const char *name)
{
    const uint32_t key =
        nt_strings_find(nt_snapshot_strings(snapshot), name, strlen(name));
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(snapshot, &count);
    for (size_t i = 0; key != NT_NONE && i < count; i++) {
        if (rows[i].parent == parent && rows[i].key == key) {
            return (uint32_t)i;
        }
    }
    return NT_NONE;
}

static void
calls_name(size_t device, char name[24])
{
    (void)snprintf(name, 24, "%zu", device);
}

nt_status
nt_snapshot_add_setting(nt_snapshot *snapshot, const nt_setting *setting, nt_error *err)
{
    NT_TRY(NT_GROW(&snapshot->alloc, snapshot->settings_rows,
                   snapshot->setting_capacity, snapshot->setting_count + 1, err));
    snapshot->settings_rows[snapshot->setting_count++] = *setting;
    return NT_OK;
}

/* Adds the row under `name`, of which *row is the number then. */
static nt_status
calls_add(nt_snapshot *snapshot, nt_setting setting, const char *name, uint32_t *row,
          nt_error *err)
{
    size_t count;
    (void)nt_snapshot_setting_rows(snapshot, &count);
    NT_TRY(nt_strings_intern(nt_snapshot_strings(snapshot), name, strlen(name),
                             &setting.key, err));
    NT_TRY(nt_snapshot_add_setting(snapshot, &setting, err));
    *row = (uint32_t)count;
    return NT_OK;
}

/* Whether the rows behind `row` are all in it. */
static bool
calls_is_last(const nt_snapshot *snapshot, uint32_t row)
{
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(snapshot, &count);
    for (size_t i = (size_t)row + 1; i < count; i++) {
        if (rows[i].parent == NT_NONE || rows[i].parent < row) {
            return false;
        }
    }
    return true;
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

static nt_status
calls_check(const nt_snapshot *snapshot, size_t device, const int32_t *events,
            size_t count, nt_error *err)
{
    size_t first, length;
    int64_t last = -1;
    nt_snapshot_trace(snapshot, device, &first, &length);
    for (size_t i = 0; i < count; i++) {
        if (events[i] <= last || (size_t)events[i] >= length) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                           "no call can be after event %d in this place",
                           (int)events[i]);
        }
        last = events[i];
    }
    return NT_OK;
}

/* Begins the list of a device in the dict `key`, which is the last row or comes into
 * being; *list is its row. */
static nt_status
calls_begin(nt_snapshot *snapshot, const char *key, size_t device, uint32_t *list,
            nt_error *err)
{
    char name[24];
    uint32_t dict = calls_find(snapshot, NT_NONE, key);
    calls_name(device, name);
    if (dict != NT_NONE && (calls_find(snapshot, dict, name) != NT_NONE ||
                            !calls_is_last(snapshot, dict))) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "%s of device %zu are noted, or come too late", key, device);
    }
    if (dict == NT_NONE) {
        const nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_DICT};
        NT_TRY(calls_add(snapshot, row, key, &dict, err));
    }
    const nt_setting row = {.parent = dict, .kind = NT_SETTING_LIST};
    return calls_add(snapshot, row, name, list, err);
}

static nt_status
calls_add_number(nt_snapshot *snapshot, uint32_t list, int64_t number, nt_error *err)
{
    const nt_setting row = {
        .parent = list,
        .key = NT_NONE,
        .kind = NT_SETTING_INT,
        .integer = number,
    };
    return nt_snapshot_add_setting(snapshot, &row, err);
}

nt_status
nt_snapshot_note_calls(nt_snapshot *snapshot, size_t device, const int32_t *events,
                       size_t count, nt_error *err)
{
    uint32_t list;
    NT_TRY(calls_check(snapshot, device, events, count, err));
    NT_TRY(calls_begin(snapshot, NT_SNAPSHOT_CALLS, device, &list, err));
    for (size_t i = 0; i < count; i++) {
        NT_TRY(calls_add_number(snapshot, list, events[i], err));
    }
    return NT_OK;
}

nt_status
nt_snapshot_note_numbers(nt_snapshot *snapshot, const char *key, size_t device,
                         const int64_t *numbers, size_t count, nt_error *err)
{
    uint32_t list;
    NT_TRY(calls_begin(snapshot, key, device, &list, err));
    for (size_t i = 0; i < count; i++) {
        NT_TRY(calls_add_number(snapshot, list, numbers[i], err));
    }
    return NT_OK;
}

nt_status
nt_snapshot_note_range(nt_snapshot *snapshot, const char *name, size_t length,
                       nt_annotation annotation, nt_error *err)
{
    NT_TRY(nt_strings_intern(nt_snapshot_strings(snapshot), name, length,
                             &annotation.name, err));
    NT_TRY(nt_snapshot_add_annotation(snapshot, &annotation, err));
    snapshot->keys |= NT_HAS_ANNOTATIONS;
    return NT_OK;
}

bool
nt_snapshot_noted_calls(const nt_snapshot *snapshot, size_t device,
                        const nt_setting **rows, size_t *count)
{
    char name[24];
    size_t all, first, length;
    const nt_setting *settings = nt_snapshot_setting_rows(snapshot, &all);
    const uint32_t dict = calls_find(snapshot, NT_NONE, NT_SNAPSHOT_CALLS);
    calls_name(device, name);
    const uint32_t list = dict == NT_NONE ? NT_NONE : calls_find(snapshot, dict, name);
    *rows = NULL;
    *count = 0;
    if (list == NT_NONE || settings[list].kind != NT_SETTING_LIST) {
        return false;
    }
    nt_snapshot_trace(snapshot, device, &first, &length);
    size_t i = (size_t)list + 1;
    for (int64_t last = -1; i < all && settings[i].parent == list; i++) {
        if (settings[i].kind != NT_SETTING_INT || settings[i].integer <= last ||
            settings[i].integer >= (int64_t)length) {
            return false;
        }
        last = settings[i].integer;
    }
    *rows = settings + list + 1;
    *count = i - list - 1;
    return true;
}

static const nt_column_spec annotation_specs[] = {
    NT_ANNOTATION_LIST(NT_COLUMN_SPEC, nt_annotation_columns)};

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
    NT_RELEASE(&alloc, snapshot->settings_rows, snapshot->setting_capacity);
    NT_RELEASE(&alloc, snapshot->ignored, snapshot->ignored_capacity);
    NT_RELEASE(&alloc, snapshot->broken, snapshot->broken_capacity);
    NT_RELEASE(&alloc, snapshot->trace_first, snapshot->trace_capacity);
    NT_RELEASE(&alloc, snapshot->extra_actions, snapshot->extra_capacity);
    nt_release(&alloc, snapshot, sizeof *snapshot);
}

nt_status
nt_snapshot_new(const nt_alloc *alloc, nt_snapshot **out, nt_error *err)
{
    nt_snapshot *snapshot;
    NT_TRY(NT_NEW(alloc, snapshot, 1, err));
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

static nt_status
snapshot_add_flag(nt_snapshot *snapshot, const char *name, nt_error *err)
{
    nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_BOOL, .integer = 1};
    NT_TRY(nt_strings_intern(snapshot->strings, name, strlen(name), &row.key, err));
    return nt_snapshot_add_setting(snapshot, &row, err);
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
    NT_TRY(NT_GROW(&snapshot->alloc, snapshot->extra_actions, snapshot->extra_capacity,
                   snapshot->extra_count + 1, err));
    *out = (uint8_t)(NT_ACTION_COUNT + snapshot->extra_count);
    snapshot->extra_actions[snapshot->extra_count++] = name;
    return NT_OK;
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
    nt_snapshot *host;
    NT_TRY(NT_NEW(&snapshot->alloc, host, 1, err));
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
    NT_TRY(NT_GROW(&snapshot->alloc, snapshot->trace_first, snapshot->trace_capacity,
                   snapshot->trace_count + 1, err));
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
nt_snapshot_add_ignored(nt_snapshot *snapshot, uint32_t name, nt_error *err)
{
    NT_TRY(NT_GROW(&snapshot->alloc, snapshot->ignored, snapshot->ignored_capacity,
                   snapshot->ignored_count + 1, err));
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
    NT_TRY(NT_GROW(&snapshot->alloc, snapshot->broken, snapshot->broken_capacity,
                   snapshot->broken_count + 1, err));
    snapshot->broken[snapshot->broken_count++] = *note;
    return NT_OK;
}

void
nt_snapshot_drop_broken(nt_snapshot *snapshot)
{
    snapshot->broken_count = 0;
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
    snapshot->settings = snapshot_read_settings(snapshot);
    return snapshot->host == NULL ? NT_OK : nt_snapshot_seal(snapshot->host, err);
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
