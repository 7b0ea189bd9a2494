/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of empty_cache() that a recording noted, as rows of allocator_settings: a dict
 * by the device's number with a list of events each. */
#include "trace/nt_snapshot.h"

#include <stdio.h>
#include <string.h>

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

nt_status
nt_snapshot_note_calls(nt_snapshot *snapshot, size_t device, const int32_t *events,
                       size_t count, nt_error *err)
{
    char name[24];
    uint32_t list, dict = calls_find(snapshot, NT_NONE, NT_SNAPSHOT_CALLS);
    calls_name(device, name);
    NT_TRY(calls_check(snapshot, device, events, count, err));
    if (dict != NT_NONE && (calls_find(snapshot, dict, name) != NT_NONE ||
                            !calls_is_last(snapshot, dict))) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the calls of device %zu are noted, or come too late", device);
    }
    if (dict == NT_NONE) {
        const nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_DICT};
        NT_TRY(calls_add(snapshot, row, NT_SNAPSHOT_CALLS, &dict, err));
    }
    const nt_setting row = {.parent = dict, .kind = NT_SETTING_LIST};
    NT_TRY(calls_add(snapshot, row, name, &list, err));
    for (size_t i = 0; i < count; i++) {
        const nt_setting call = {
            .parent = list,
            .key = NT_NONE,
            .kind = NT_SETTING_INT,
            .integer = events[i],
        };
        NT_TRY(nt_snapshot_add_setting(snapshot, &call, err));
    }
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
