/* SPDX-License-Identifier: Apache-2.0 */
/* What rows have ids of. The ids are those of the snapshot that was written. */
#include <string.h>

#include "base/nt_columns.h"
#include "base/nt_utf8.h"
#include "trace/nt_pack_numbers.h"
#include "trace/nt_reader_schema.h"

enum { PLAIN = NT_PACK_PLAIN, STEPS = NT_PACK_STEPS, IDS = NT_PACK_IDS };

/* Strings ------------------------------------------------------------------ */

static void
strings_put_chunk(nt_pack_out *out, size_t first, size_t count)
{
    const nt_strings *strings = nt_snapshot_strings(out->snapshot);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        (void)nt_strings_get(strings, (uint32_t)(first + i), &length);
        out->numbers[i] = length;
    }
    nt_pack_put(out, out->numbers, count, NT_PACK_PLAIN, 1);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *text = nt_strings_get(strings, (uint32_t)(first + i), &length);
        nt_pack_put_bytes(out, text, length);
    }
}

static nt_status
strings_get_chunk(nt_pack_in *in, size_t first, size_t count)
{
    NT_TRY(nt_pack_get(in, in->numbers, count, NT_PACK_PLAIN, 1));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = NT_NONE;
        if (in->numbers[i] > UINT32_MAX) {
            return nt_pack_odd(in);
        }
        const size_t length = (size_t)in->numbers[i];
        NT_TRY(nt_pack_need(in, length));
        if (!nt_utf8_check(in->source->next, length)) {
            return nt_pack_odd(in);
        }
        NT_TRY(nt_strings_intern(nt_snapshot_strings(in->snapshot), in->source->next,
                                 length, &id, in->err));
        in->source->next += length;
        if (id != first + i) {
            return nt_pack_odd(in);
        }
    }
    return NT_OK;
}

static void
strings_put(nt_pack_out *out)
{
    const size_t rows = nt_strings_count(nt_snapshot_strings(out->snapshot));
    nt_pack_put_one(out, rows);
    for (size_t first = 0; first < rows; first += NT_PACK_ROWS) {
        strings_put_chunk(out, first, nt_pack_rows(rows - first));
    }
}

static nt_status
strings_get(nt_pack_in *in)
{
    uint64_t rows;
    NT_TRY(nt_pack_get_one(in, &rows));
    for (uint64_t first = 0; first < rows; first += NT_PACK_ROWS) {
        NT_TRY(strings_get_chunk(in, (size_t)first, nt_pack_rows(rows - first)));
    }
    return NT_OK;
}

/* Frames, stacks, actions -------------------------------------------------- */

static size_t
fx_count(const nt_snapshot *s)
{
    size_t count;
    (void)nt_stacks_fx(nt_snapshot_stacks(s), &count);
    return count;
}

static void
fx_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    size_t count;
    const nt_fx_node node = nt_stacks_fx(nt_snapshot_stacks(s), &count)[row];
    v[0] = node.op;
    v[1] = node.name;
    v[2] = node.target;
    v[3] = node.trace;
}

static nt_status
fx_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    uint32_t number = 0;
    for (size_t i = 0; i < 4; i++) {
        if (!nt_pack_is_string(in, v[i]) && v[i] != NT_NONE) {
            return nt_pack_odd(in);
        }
    }
    const nt_fx_node node = {(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2],
                             (uint32_t)v[3]};
    NT_TRY(
        nt_stacks_intern_fx(nt_snapshot_stacks(in->snapshot), node, &number, in->err));
    return number == row + 1 ? NT_OK : nt_pack_odd(in);
}

static size_t
frames_count(const nt_snapshot *s)
{
    return nt_stacks_frame_count(nt_snapshot_stacks(s));
}

static void
frames_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    const nt_frame *frame = &nt_stacks_frames(nt_snapshot_stacks(s))[row];
    v[0] = frame->name;
    v[1] = frame->filename;
    v[2] = (uint64_t)frame->line;
    v[3] = frame->fx;
}

static nt_status
frames_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    uint32_t id = NT_NONE;
    if (!nt_pack_is_string(in, v[0]) || !nt_pack_is_string(in, v[1]) ||
        v[3] > fx_count(in->snapshot)) {
        return nt_pack_odd(in);
    }
    const nt_frame frame = {(uint32_t)v[0], (uint32_t)v[1], (int64_t)v[2],
                            (uint32_t)v[3]};
    NT_TRY(
        nt_stacks_intern_frame(nt_snapshot_stacks(in->snapshot), frame, &id, in->err));
    return id == row ? NT_OK : nt_pack_odd(in);
}

/* All but the empty stack, which is there from the beginning. */
static size_t
stacks_count(const nt_snapshot *s)
{
    return nt_stacks_count(nt_snapshot_stacks(s)) - 1;
}

static void
stacks_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    const nt_stacks *stacks = nt_snapshot_stacks(s);
    v[0] = nt_stacks_innermost(stacks)[row + 1];
    v[1] = nt_stacks_parent(stacks)[row + 1];
}

static nt_status
stacks_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    nt_stacks *stacks = nt_snapshot_stacks(in->snapshot);
    uint32_t id = NT_NONE;
    if (v[0] >= nt_stacks_frame_count(stacks) || v[1] > row) {
        return nt_pack_odd(in);
    }
    NT_TRY(nt_stacks_intern_call(stacks, (uint32_t)v[1], (uint32_t)v[0], &id, in->err));
    return id == row + 1 ? NT_OK : nt_pack_odd(in);
}

/* Those that only the file names. */
static size_t
actions_count(const nt_snapshot *s)
{
    return nt_snapshot_action_count(s) - NT_ACTION_COUNT;
}

static void
actions_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    size_t length;
    const char *name =
        nt_snapshot_action_name(s, (uint8_t)(NT_ACTION_COUNT + row), &length);
    v[0] = nt_strings_find(nt_snapshot_strings(s), name, length);
}

static nt_status
actions_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    uint8_t code = 0;
    if (!nt_pack_is_string(in, v[0])) {
        return nt_pack_odd(in);
    }
    NT_TRY(nt_snapshot_intern_action(in->snapshot, (uint32_t)v[0], &code, in->err));
    return code == NT_ACTION_COUNT + row ? NT_OK : nt_pack_odd(in);
}

/* Settings ----------------------------------------------------------------- */

static size_t
settings_count(const nt_snapshot *s)
{
    size_t count;
    (void)nt_snapshot_setting_rows(s, &count);
    return count;
}

static void
settings_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    size_t count;
    const nt_setting *setting = &nt_snapshot_setting_rows(s, &count)[row];
    v[0] = setting->kind;
    v[1] = setting->parent;
    v[2] = setting->key;
    v[3] = (uint64_t)setting->integer;
    memcpy(&v[4], &setting->real, sizeof v[4]);
    v[5] = setting->string;
}

/* Whether a row's parent is a dict or list before it, and not too deep. */
static bool
settings_is_parent(const nt_pack_in *in, size_t row, uint64_t parent)
{
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(in->snapshot, &count);
    unsigned depth = 0;
    for (; parent != NT_NONE; parent = rows[parent].parent) {
        if (parent >= row || depth++ >= MOST_SETTING_DEPTH ||
            (rows[parent].kind != NT_SETTING_DICT &&
             rows[parent].kind != NT_SETTING_LIST)) {
            return false;
        }
    }
    return true;
}

static nt_status
settings_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    nt_setting setting = {
        .parent = (uint32_t)v[1],
        .key = (uint32_t)v[2],
        .kind = (nt_setting_kind)v[0],
        .integer = (int64_t)v[3],
        .string = (uint32_t)v[5],
    };
    memcpy(&setting.real, &v[4], sizeof setting.real);
    if (v[0] > NT_SETTING_LIST || !settings_is_parent(in, row, v[1]) ||
        (!nt_pack_is_string(in, v[2]) && v[2] != NT_NONE) ||
        (v[0] == NT_SETTING_STRING && !nt_pack_is_string(in, v[5]))) {
        return nt_pack_odd(in);
    }
    return nt_snapshot_add_setting(in->snapshot, &setting, in->err);
}

static const nt_pack_table texts_tables[] = {
    {4, {IDS, IDS, IDS, IDS}, fx_count, fx_give, fx_take},
    {4, {PLAIN, PLAIN, PLAIN, PLAIN}, frames_count, frames_give, frames_take},
    {2, {PLAIN, STEPS}, stacks_count, stacks_give, stacks_take},
    {1, {PLAIN}, actions_count, actions_give, actions_take},
    {6,
     {PLAIN, IDS, IDS, PLAIN, PLAIN, IDS},
     settings_count,
     settings_give,
     settings_take},
};

void
nt_pack_put_texts(nt_pack_out *out)
{
    strings_put(out);
    for (size_t i = 0; i < NT_LENGTH(texts_tables); i++) {
        nt_pack_put_table(out, &texts_tables[i]);
    }
}

nt_status
nt_pack_get_texts(nt_pack_in *in)
{
    NT_TRY(strings_get(in));
    for (size_t i = 0; i < NT_LENGTH(texts_tables); i++) {
        NT_TRY(nt_pack_get_table(in, &texts_tables[i]));
    }
    return NT_OK;
}
