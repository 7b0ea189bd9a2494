/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_snapshot_settings.h"

#include <string.h>

#include "base/nt_columns.h"

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

nt_settings
nt_snapshot_read_settings(const nt_snapshot *snapshot)
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
