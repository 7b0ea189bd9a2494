/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pack.h"

#include <string.h>

#include "base/nt_base.h"
#include "base/nt_columns.h"
#include "base/nt_utf8.h"
#include "trace/nt_invariants.h"
#include "trace/nt_reader_schema.h"

/* Columns of numbers as bytes. */

/* Rows whose columns are written one after the other. */
#define NT_PACK_ROWS ((size_t)1 << 16)

/* Columns of the widest table. */
#define NT_PACK_COLUMNS 16

/* What is written of a column's numbers. */
typedef enum nt_pack_how {
    NT_PACK_PLAIN,
    NT_PACK_STEPS, /* the difference to the row before, small ones of either sign small
                    */
    NT_PACK_IDS,   /* of 32 bits, one more, so that NT_NONE is 0 */
} nt_pack_how;

/* The first failure stays in `status`; from then on nothing more is written. */
typedef struct nt_pack_out {
    const nt_snapshot *snapshot;
    const nt_sink *sink;
    nt_alloc alloc;
    uint64_t *numbers; /* NT_PACK_COLUMNS columns of NT_PACK_ROWS */
    uint8_t *bytes;    /* NT_PACK_ROWS of them */
    nt_status status;
    nt_error *err;
} nt_pack_out;

typedef struct nt_pack_in {
    nt_snapshot *snapshot;
    nt_source *source;
    nt_alloc alloc;
    uint64_t *numbers; /* NT_PACK_COLUMNS columns of NT_PACK_ROWS */
    nt_error *err;
} nt_pack_in;

/* A difference as a number that is small where the difference is, of either sign. */
static inline uint64_t
pack_fold(uint64_t step)
{
    return step << 1 ^ (0 - (step >> 63));
}

static inline uint64_t
pack_unfold(uint64_t number)
{
    return number >> 1 ^ (0 - (number & 1));
}

/* Rows of the next chunk, where so many are left. */
static inline size_t
pack_rows(uint64_t left)
{
    return left < NT_PACK_ROWS ? (size_t)left : NT_PACK_ROWS;
}

static inline uint64_t *
pack_column(uint64_t *numbers, size_t column)
{
    return numbers + column * NT_PACK_ROWS;
}

/* A table but the events: a row is some numbers. */
typedef struct nt_pack_table {
    size_t columns;
    uint8_t how[NT_PACK_COLUMNS]; /* nt_pack_how */
    size_t (*count)(const nt_snapshot *snapshot);
    /* The numbers of a row. */
    void (*give)(const nt_snapshot *snapshot, size_t row, uint64_t *v);
    /* Adds a row, or ends with pack_odd. */
    nt_status (*take)(nt_pack_in *in, size_t row, const uint64_t *v);
} nt_pack_table;

static void
pack_put_bytes(nt_pack_out *out, const void *bytes, size_t count)
{
    if (out->status == NT_OK && count != 0 &&
        out->sink->write(out->sink->ctx, bytes, count) != 0) {
        out->status = nt_fail(out->err, NT_IO, NT_NO_OFFSET, "writing failed");
    }
}

static void
numbers_fold(uint64_t *numbers, size_t count, nt_pack_how how)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count && how != NT_PACK_PLAIN; i++) {
        const uint64_t number = numbers[i];
        const uint64_t step = number - last;
        numbers[i] = how == NT_PACK_IDS ? (uint32_t)(number + 1) : pack_fold(step);
        last = number;
    }
}

static void
numbers_unfold(uint64_t *numbers, size_t count, nt_pack_how how)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count && how != NT_PACK_PLAIN; i++) {
        last = how == NT_PACK_IDS ? (uint32_t)(numbers[i] - 1)
                                  : last + pack_unfold(numbers[i]);
        numbers[i] = last;
    }
}

/* Writes `count` numbers, at most NT_PACK_ROWS, which are changed on the way. `least`
 * bytes a number are written: with 1, rows that a file claims cost it bytes. */
static void
pack_put(nt_pack_out *out, uint64_t *numbers, size_t count, nt_pack_how how,
         unsigned least)
{
    numbers_fold(numbers, count, how);
    uint64_t any = 0;
    for (size_t i = 0; i < count; i++) {
        any |= numbers[i];
    }
    uint8_t width = (uint8_t)least;
    while (width < 8 && any >> 8 * width != 0) {
        width++;
    }
    pack_put_bytes(out, &width, 1);
    for (unsigned plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < count; i++) {
            out->bytes[i] = (uint8_t)(numbers[i] >> 8 * plane);
        }
        pack_put_bytes(out, out->bytes, count);
    }
}

static void
pack_put_one(nt_pack_out *out, uint64_t number)
{
    pack_put(out, &number, 1, NT_PACK_PLAIN, 0);
}

/* NT_MALFORMED: what nt_pack_save did not write. */
static nt_status
pack_odd(nt_pack_in *in)
{
    return nt_fail(in->err, NT_MALFORMED, nt_source_offset(in->source),
                   "the packed snapshot is damaged");
}

/* Sees to it that `count` bytes are at in->source->next. */
static nt_status
pack_need(nt_pack_in *in, size_t count)
{
    NT_TRY(nt_source_fill(in->source, count, in->err));
    const size_t at_hand = (size_t)(in->source->end - in->source->next);
    return at_hand < count ? pack_odd(in) : NT_OK;
}

static nt_status
pack_get(nt_pack_in *in, uint64_t *numbers, size_t count, nt_pack_how how,
         unsigned least)
{
    NT_TRY(pack_need(in, 1));
    const unsigned width = *in->source->next++;
    if (width > 8 || width < least) {
        return pack_odd(in);
    }
    memset(numbers, 0, count * sizeof *numbers);
    for (unsigned plane = 0; plane < width; plane++) {
        NT_TRY(pack_need(in, count));
        for (size_t i = 0; i < count; i++) {
            numbers[i] |= (uint64_t)in->source->next[i] << 8 * plane;
        }
        in->source->next += count;
    }
    numbers_unfold(numbers, count, how);
    return NT_OK;
}

static nt_status
pack_get_one(nt_pack_in *in, uint64_t *number)
{
    return pack_get(in, number, 1, NT_PACK_PLAIN, 0);
}

static void
pack_put_table(nt_pack_out *out, const nt_pack_table *table)
{
    const size_t rows = table->count(out->snapshot);
    pack_put_one(out, rows);
    for (size_t first = 0; first < rows && out->status == NT_OK;
         first += NT_PACK_ROWS) {
        const size_t count = pack_rows(rows - first);
        for (size_t i = 0; i < count; i++) {
            uint64_t v[NT_PACK_COLUMNS];
            table->give(out->snapshot, first + i, v);
            for (size_t k = 0; k < table->columns; k++) {
                pack_column(out->numbers, k)[i] = v[k];
            }
        }
        for (size_t k = 0; k < table->columns; k++) {
            pack_put(out, pack_column(out->numbers, k), count, table->how[k], k == 0);
        }
    }
}

static nt_status
pack_get_table(nt_pack_in *in, const nt_pack_table *table)
{
    uint64_t rows;
    NT_TRY(pack_get_one(in, &rows));
    for (uint64_t first = 0; first < rows; first += NT_PACK_ROWS) {
        const size_t count = pack_rows(rows - first);
        for (size_t k = 0; k < table->columns; k++) {
            NT_TRY(pack_get(in, pack_column(in->numbers, k), count, table->how[k],
                            k == 0));
        }
        for (size_t i = 0; i < count; i++) {
            uint64_t v[NT_PACK_COLUMNS];
            for (size_t k = 0; k < table->columns; k++) {
                v[k] = pack_column(in->numbers, k)[i];
            }
            NT_TRY(table->take(in, (size_t)first + i, v));
        }
    }
    return NT_OK;
}

/* Whether there is such a string, or such a stack or NT_NO_STACK. */
static bool
pack_is_string(const nt_pack_in *in, uint64_t id)
{
    return id < nt_strings_count(nt_snapshot_strings(in->snapshot));
}

static bool
pack_is_stack(const nt_pack_in *in, uint64_t id)
{
    return id < nt_stacks_count(nt_snapshot_stacks(in->snapshot)) || id == NT_NO_STACK;
}

/* What rows have ids of. The ids are those of the snapshot that was written. */

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
    pack_put(out, out->numbers, count, NT_PACK_PLAIN, 1);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *text = nt_strings_get(strings, (uint32_t)(first + i), &length);
        pack_put_bytes(out, text, length);
    }
}

static nt_status
strings_get_chunk(nt_pack_in *in, size_t first, size_t count)
{
    NT_TRY(pack_get(in, in->numbers, count, NT_PACK_PLAIN, 1));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = NT_NONE;
        if (in->numbers[i] > UINT32_MAX) {
            return pack_odd(in);
        }
        const size_t length = (size_t)in->numbers[i];
        NT_TRY(pack_need(in, length));
        if (!nt_utf8_check(in->source->next, length)) {
            return pack_odd(in);
        }
        NT_TRY(nt_strings_intern(nt_snapshot_strings(in->snapshot), in->source->next,
                                 length, &id, in->err));
        in->source->next += length;
        if (id != first + i) {
            return pack_odd(in);
        }
    }
    return NT_OK;
}

static void
strings_put(nt_pack_out *out)
{
    const size_t rows = nt_strings_count(nt_snapshot_strings(out->snapshot));
    pack_put_one(out, rows);
    for (size_t first = 0; first < rows; first += NT_PACK_ROWS) {
        strings_put_chunk(out, first, pack_rows(rows - first));
    }
}

static nt_status
strings_get(nt_pack_in *in)
{
    uint64_t rows;
    NT_TRY(pack_get_one(in, &rows));
    for (uint64_t first = 0; first < rows; first += NT_PACK_ROWS) {
        NT_TRY(strings_get_chunk(in, (size_t)first, pack_rows(rows - first)));
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
        if (!pack_is_string(in, v[i]) && v[i] != NT_NONE) {
            return pack_odd(in);
        }
    }
    const nt_fx_node node = {(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2],
                             (uint32_t)v[3]};
    NT_TRY(
        nt_stacks_intern_fx(nt_snapshot_stacks(in->snapshot), node, &number, in->err));
    return number == row + 1 ? NT_OK : pack_odd(in);
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
    if (!pack_is_string(in, v[0]) || !pack_is_string(in, v[1]) ||
        v[3] > fx_count(in->snapshot)) {
        return pack_odd(in);
    }
    const nt_frame frame = {(uint32_t)v[0], (uint32_t)v[1], (int64_t)v[2],
                            (uint32_t)v[3]};
    NT_TRY(
        nt_stacks_intern_frame(nt_snapshot_stacks(in->snapshot), frame, &id, in->err));
    return id == row ? NT_OK : pack_odd(in);
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
        return pack_odd(in);
    }
    NT_TRY(nt_stacks_intern_call(stacks, (uint32_t)v[1], (uint32_t)v[0], &id, in->err));
    return id == row + 1 ? NT_OK : pack_odd(in);
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
    if (!pack_is_string(in, v[0])) {
        return pack_odd(in);
    }
    NT_TRY(nt_snapshot_intern_action(in->snapshot, (uint32_t)v[0], &code, in->err));
    return code == NT_ACTION_COUNT + row ? NT_OK : pack_odd(in);
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
        (!pack_is_string(in, v[2]) && v[2] != NT_NONE) ||
        (v[0] == NT_SETTING_STRING && !pack_is_string(in, v[5]))) {
        return pack_odd(in);
    }
    return nt_snapshot_add_setting(in->snapshot, &setting, in->err);
}

#define PACK_TABLE(name, ...) PACK_TABLE_OF(name, name, __VA_ARGS__)
/* The rows that `from` gives, taken as those of `name`. */
#define PACK_TABLE_OF(from, name, count, ...)                                          \
    {count, {__VA_ARGS__}, from##_count, from##_give, name##_take}

static const nt_pack_table texts_tables[] = {
    PACK_TABLE(fx, 4, IDS, IDS, IDS, IDS),
    PACK_TABLE(frames, 4, PLAIN, PLAIN, PLAIN, PLAIN),
    PACK_TABLE(stacks, 2, PLAIN, STEPS),
    PACK_TABLE(actions, 1, PLAIN),
    PACK_TABLE(settings, 6, PLAIN, IDS, IDS, PLAIN, PLAIN, IDS),
};

static void
pack_put_texts(nt_pack_out *out)
{
    strings_put(out);
    for (size_t i = 0; i < NT_LENGTH(texts_tables); i++) {
        pack_put_table(out, &texts_tables[i]);
    }
}

static nt_status
pack_get_texts(nt_pack_in *in)
{
    NT_TRY(strings_get(in));
    for (size_t i = 0; i < NT_LENGTH(texts_tables); i++) {
        NT_TRY(pack_get_table(in, &texts_tables[i]));
    }
    return NT_OK;
}

/* Segments and blocks ------------------------------------------------------ */

/* The layout before the traces comes behind the one at the end, where there is one. */
static nt_layout *
rows_filling(nt_snapshot *s)
{
    return nt_snapshot_before(s) != NULL ? nt_snapshot_before_table(s)
                                         : nt_snapshot_layout_table(s);
}

static size_t
segments_count(const nt_snapshot *s)
{
    return nt_snapshot_layout(s)->segments.count;
}

static size_t
segments_before_count(const nt_snapshot *s)
{
    const nt_layout *before = nt_snapshot_before(s);
    return before == NULL ? 0 : before->segments.count;
}

static void
segments_give_of(const nt_segment_columns *c, size_t row, uint64_t *v)
{
    v[0] = (uint64_t)c->device[row];
    v[1] = c->address[row];
    v[2] = c->total_size[row];
    v[3] = c->allocated_size[row];
    v[4] = c->active_size[row];
    v[5] = c->requested_size[row];
    v[6] = c->stream[row];
    v[7] = c->pool_first[row];
    v[8] = c->pool_second[row];
    v[9] = c->kind[row];
    v[10] = c->is_expandable[row];
    v[11] = c->stack[row];
}

static void
segments_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    segments_give_of(&nt_snapshot_layout(s)->segments, row, v);
}

static void
segments_before_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    segments_give_of(&nt_snapshot_before(s)->segments, row, v);
}

static nt_status
segments_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    const nt_segment segment = {
        .device = (int32_t)v[0],
        .address = v[1],
        .total_size = v[2],
        .allocated_size = v[3],
        .active_size = v[4],
        .requested_size = v[5],
        .stream = v[6],
        .pool = {v[7], v[8]},
        .kind = (uint8_t)v[9],
        .is_expandable = v[10] != 0,
        .stack = (uint32_t)v[11],
    };
    if (v[0] >= MOST_DEVICES || v[9] >= NT_POOL_KIND_COUNT || v[10] > 1 ||
        !pack_is_stack(in, v[11]) || row >= MOST_SEGMENTS) {
        return pack_odd(in);
    }
    return nt_snapshot_add_segment(in->snapshot, &segment, in->err);
}

static size_t
blocks_count(const nt_snapshot *s)
{
    return nt_snapshot_layout(s)->blocks.count;
}

static size_t
blocks_before_count(const nt_snapshot *s)
{
    const nt_layout *before = nt_snapshot_before(s);
    return before == NULL ? 0 : before->blocks.count;
}

static void
blocks_give_of(const nt_block_columns *c, size_t row, uint64_t *v)
{
    v[0] = c->segment[row];
    v[1] = c->address[row];
    v[2] = c->size[row];
    v[3] = c->requested_size[row];
    v[4] = c->state[row];
    v[5] = c->stack[row];
}

static void
blocks_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    blocks_give_of(&nt_snapshot_layout(s)->blocks, row, v);
}

static void
blocks_before_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    blocks_give_of(&nt_snapshot_before(s)->blocks, row, v);
}

/* A block is one of the last segment at first; blocks_share gives it to its own. */
static nt_status
blocks_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    nt_layout *layout = rows_filling(in->snapshot);
    nt_block_columns *c = &layout->blocks;
    const nt_block block = {
        .address = v[1],
        .size = v[2],
        .requested_size = v[3],
        .state = (uint8_t)v[4],
        .stack = (uint32_t)v[5],
    };
    if (v[0] >= layout->segments.count || v[4] >= NT_BLOCK_STATE_COUNT ||
        !pack_is_stack(in, v[5]) || (row != 0 && v[0] < c->segment[row - 1])) {
        return pack_odd(in);
    }
    NT_TRY(nt_snapshot_add_block(in->snapshot, &block, in->err));
    c->segment[row] = (uint32_t)v[0];
    return NT_OK;
}

/* Gives each segment its blocks, which are in the order of the segments. */
static void
blocks_share(nt_pack_in *in)
{
    nt_layout *layout = rows_filling(in->snapshot);
    nt_segment_columns *s = &layout->segments;
    uint32_t next = 0;
    for (size_t row = 0; row < s->count; row++) {
        s->block_first[row] = next;
        while (next < layout->blocks.count && layout->blocks.segment[next] == row) {
            next++;
        }
        s->block_count[row] = next - s->block_first[row];
    }
}

/* Annotations, notes ------------------------------------------------------- */

static size_t
annotations_count(const nt_snapshot *s)
{
    return nt_snapshot_annotations(s)->count;
}

static void
annotations_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    const nt_annotation_columns *c = nt_snapshot_annotations(s);
    v[0] = c->stage[row];
    v[1] = c->name[row];
    v[2] = (uint64_t)c->device[row];
    v[3] = (uint64_t)c->time_us[row];
}

static nt_status
annotations_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    (void)row;
    const nt_annotation annotation = {
        .stage = (uint8_t)v[0],
        .name = (uint32_t)v[1],
        .device = (int32_t)v[2],
        .time_us = (int64_t)v[3],
    };
    if (v[0] >= NT_STAGE_COUNT || (!pack_is_string(in, v[1]) && v[1] != NT_NONE) ||
        v[2] >= MOST_DEVICES || v[3] > (uint64_t)NT_MOST_TIME) {
        return pack_odd(in);
    }
    return nt_snapshot_add_annotation(in->snapshot, &annotation, in->err);
}

static size_t
broken_count(const nt_snapshot *s)
{
    size_t count;
    (void)nt_snapshot_broken(s, &count);
    return count;
}

static void
broken_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    size_t count;
    const nt_broken_note *note = &nt_snapshot_broken(s, &count)[row];
    v[0] = note->kind;
    v[1] = (uint64_t)note->device;
    v[2] = note->count;
    v[3] = note->bytes;
    v[4] = note->first;
}

static nt_status
broken_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    (void)row;
    const nt_broken_note note = {(uint8_t)v[0], (int32_t)v[1], v[2], v[3], v[4]};
    if (v[0] >= NT_BROKEN_KINDS || v[1] >= MOST_DEVICES) {
        return pack_odd(in);
    }
    return nt_snapshot_add_broken(in->snapshot, &note, in->err);
}

static size_t
ignored_count(const nt_snapshot *s)
{
    size_t count;
    (void)nt_snapshot_ignored(s, &count);
    return count;
}

static void
ignored_give(const nt_snapshot *s, size_t row, uint64_t *v)
{
    size_t count;
    v[0] = nt_snapshot_ignored(s, &count)[row];
}

static nt_status
ignored_take(nt_pack_in *in, size_t row, const uint64_t *v)
{
    (void)row;
    return pack_is_string(in, v[0])
               ? nt_snapshot_add_ignored(in->snapshot, (uint32_t)v[0], in->err)
               : pack_odd(in);
}

static const nt_pack_table rows_segments =
    PACK_TABLE(segments, 12, STEPS, STEPS, PLAIN, PLAIN, PLAIN, PLAIN, STEPS, STEPS,
               STEPS, PLAIN, PLAIN, IDS);
static const nt_pack_table rows_blocks =
    PACK_TABLE(blocks, 6, STEPS, STEPS, PLAIN, PLAIN, PLAIN, IDS);
static const nt_pack_table rows_segments_before =
    PACK_TABLE_OF(segments_before, segments, 12, STEPS, STEPS, PLAIN, PLAIN, PLAIN,
                  PLAIN, STEPS, STEPS, STEPS, PLAIN, PLAIN, IDS);
static const nt_pack_table rows_blocks_before =
    PACK_TABLE_OF(blocks_before, blocks, 6, STEPS, STEPS, PLAIN, PLAIN, PLAIN, IDS);
static const nt_pack_table rows_annotations =
    PACK_TABLE(annotations, 4, PLAIN, IDS, PLAIN, STEPS);
static const nt_pack_table rows_broken =
    PACK_TABLE(broken, 5, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN);
static const nt_pack_table rows_ignored = PACK_TABLE(ignored, 1, PLAIN);

static void
pack_put_rows(nt_pack_out *out)
{
    pack_put_table(out, &rows_segments);
    pack_put_table(out, &rows_blocks);
    pack_put_table(out, &rows_annotations);
    if ((nt_snapshot_keys(out->snapshot) & NT_HAS_BEFORE) != 0) {
        pack_put_table(out, &rows_segments_before);
        pack_put_table(out, &rows_blocks_before);
    }
}

static nt_status
pack_get_rows(nt_pack_in *in)
{
    NT_TRY(pack_get_table(in, &rows_segments));
    NT_TRY(pack_get_table(in, &rows_blocks));
    blocks_share(in);
    NT_TRY(pack_get_table(in, &rows_annotations));
    if ((nt_snapshot_keys(in->snapshot) & NT_HAS_BEFORE) != 0) {
        nt_snapshot_begin_before(in->snapshot);
        NT_TRY(pack_get_table(in, &rows_segments_before));
        NT_TRY(pack_get_table(in, &rows_blocks_before));
        blocks_share(in);
    }
    return NT_OK;
}

/* Notes and ignored keys, which are added once what was read has been checked. */
static void
pack_put_notes(nt_pack_out *out)
{
    pack_put_table(out, &rows_broken);
    pack_put_table(out, &rows_ignored);
}

static nt_status
pack_get_notes(nt_pack_in *in)
{
    NT_TRY(pack_get_table(in, &rows_broken));
    return pack_get_table(in, &rows_ignored);
}

/* Events. Where memory is comes back all the time: a free names what was allocated, and
 * an allocation takes what was freed or begins where another one ends. So an address is
 * how many allocations, or frees, ago it was seen, and a free has the size of what it
 * frees. */

/* Where an address was seen before. */
enum {
    BOOK_NONE,   /* nowhere: its difference to the event before is written */
    BOOK_OPENED, /* something was allocated there */
    BOOK_ENDED,  /* something was allocated and ends there */
    BOOK_ASKED,  /* something was freed there */
    BOOKS,
};

/* What an event does with the memory at its address. */
enum { SIDE_OPENS, SIDE_ASKS, SIDE_COMPLETES, SIDE_NEITHER, SIDES };

/* Columns of a chunk, in their order in the file. */
enum {
    EVENT_ACTION,
    EVENT_BOOK,
    EVENT_BACK,   /* of events with a book: how many entries ago, from 1 */
    EVENT_ADDR,   /* of those without */
    EVENT_SIZE,   /* of events that have no size from another one */
    EVENT_RESIZE, /* of those that have: the difference */
    EVENT_PLACES, /* how many of these there are; others follow */
};

/* The columns that stand for themselves. */
static const struct event_column {
    nt_column_spec spec;
    nt_pack_how how;
} event_columns[] = {
    {NT_COLUMN(nt_event_columns, stream), NT_PACK_STEPS},
    {NT_COLUMN(nt_event_columns, stack), NT_PACK_IDS},
    {NT_COLUMN(nt_event_columns, time_us), NT_PACK_STEPS},
    {NT_COLUMN(nt_event_columns, device_free), NT_PACK_PLAIN},
    {NT_COLUMN(nt_event_columns, pool_first), NT_PACK_STEPS},
    {NT_COLUMN(nt_event_columns, pool_second), NT_PACK_STEPS},
    {NT_COLUMN(nt_event_columns, compile_context), NT_PACK_IDS},
    {NT_COLUMN(nt_event_columns, user_metadata), NT_PACK_IDS},
    {NT_COLUMN(nt_event_columns, internal_metadata), NT_PACK_IDS},
    {NT_COLUMN(nt_event_columns, forward), NT_PACK_IDS},
};

/* Rows of events in the order in which they came. */
typedef struct event_rows {
    uint32_t *rows;
    size_t count, capacity;
} event_rows;

typedef struct event_books {
    nt_alloc alloc;
    event_rows opened, asked;
    nt_map numbers[BOOKS]; /* who writes finds an address's last number in them here */
} event_books;

static void
books_init(event_books *books, nt_alloc alloc)
{
    *books = (event_books){.alloc = alloc};
    for (int book = 0; book < BOOKS; book++) {
        nt_map_init(&books->numbers[book], alloc);
    }
}

static void
books_clear(event_books *books)
{
    for (int book = 0; book < BOOKS; book++) {
        nt_map_clear(&books->numbers[book]);
    }
    NT_RELEASE(&books->alloc, books->opened.rows, books->opened.capacity);
    NT_RELEASE(&books->alloc, books->asked.rows, books->asked.capacity);
}

static int
event_side(uint8_t action)
{
    switch (nt_events_as_written(action)) {
    case NT_ACTION_ALLOC:
    case NT_ACTION_SEGMENT_ALLOC:
    case NT_ACTION_SEGMENT_MAP: return SIDE_OPENS;
    case NT_ACTION_FREE_REQUESTED:
    case NT_ACTION_SEGMENT_FREE:
    case NT_ACTION_SEGMENT_UNMAP: return SIDE_ASKS;
    case NT_ACTION_FREE_COMPLETED: return SIDE_COMPLETES;
    default: return SIDE_NEITHER;
    }
}

/* Where the block behind an allocation begins, which is rounded to 512 bytes. */
static uint64_t
event_end(const nt_event_columns *e, size_t row)
{
    return (e->addr[row] + e->size[row] + 511) & ~(uint64_t)511;
}

static const event_rows *
books_rows(const event_books *books, unsigned book)
{
    return book == BOOK_ASKED ? &books->asked : &books->opened;
}

/* Whether an event has the size of the one that the book names. */
static bool
event_has_size(uint8_t action, unsigned book)
{
    const int side = event_side(action);
    return book != BOOK_NONE && (side == SIDE_ASKS || side == SIDE_COMPLETES);
}

/* Enters an event that has been added to the snapshot. */
static nt_status
books_enter(event_books *books, uint8_t action, size_t row, nt_error *err)
{
    const int side = event_side(action);
    if (side != SIDE_OPENS && side != SIDE_ASKS) {
        return NT_OK;
    }
    event_rows *rows = side == SIDE_OPENS ? &books->opened : &books->asked;
    if (NT_UNLIKELY(rows->count == rows->capacity)) {
        NT_TRY(
            NT_GROW(&books->alloc, rows->rows, rows->capacity, rows->count + 1, err));
    }
    rows->rows[rows->count++] = (uint32_t)row;
    return NT_OK;
}

/* Makes the event that was entered last known by its addresses. */
static nt_status
books_learn(event_books *books, const nt_event_columns *e, size_t row, nt_error *err)
{
    const int side = event_side(e->action[row]);
    if (side == SIDE_OPENS) {
        const uint32_t number = (uint32_t)(books->opened.count - 1);
        NT_TRY(nt_map_set(&books->numbers[BOOK_OPENED], e->addr[row], number, err));
        NT_TRY(nt_map_set(&books->numbers[BOOK_ENDED], event_end(e, row), number, err));
    } else if (side == SIDE_ASKS) {
        const uint32_t number = (uint32_t)(books->asked.count - 1);
        NT_TRY(nt_map_set(&books->numbers[BOOK_ASKED], e->addr[row], number, err));
    }
    return NT_OK;
}

/* The book that has an event's address, and the number of its entry there. */
static unsigned
books_find(const event_books *books, const nt_event_columns *e, size_t row,
           uint32_t *number)
{
    static const uint8_t order[SIDES][2] = {
        [SIDE_OPENS] = {BOOK_ASKED, BOOK_ENDED},
        [SIDE_ASKS] = {BOOK_OPENED},
        [SIDE_COMPLETES] = {BOOK_ASKED, BOOK_OPENED},
    };
    const uint8_t *tries = order[event_side(e->action[row])];
    for (int i = 0; i < 2; i++) {
        *number = nt_map_find(&books->numbers[tries[i]], e->addr[row]);
        if (*number != NT_NONE) {
            return tries[i];
        }
    }
    return BOOK_NONE;
}

/* Writing ------------------------------------------------------------------ */

typedef struct event_chunk {
    uint64_t *columns;
    size_t counts[EVENT_PLACES];
} event_chunk;

static void
chunk_push(event_chunk *chunk, unsigned column, uint64_t number)
{
    pack_column(chunk->columns, column)[chunk->counts[column]++] = number;
}

/* What is written of one event's place. */
static void
chunk_add(event_chunk *chunk, const event_books *books, const nt_event_columns *e,
          size_t row)
{
    uint32_t number;
    const uint8_t action = e->action[row];
    const unsigned book = books_find(books, e, row, &number);
    const event_rows *rows = books_rows(books, book);
    chunk_push(chunk, EVENT_ACTION, action);
    chunk_push(chunk, EVENT_BOOK, book);
    if (book == BOOK_NONE) {
        chunk_push(chunk, EVENT_ADDR, e->addr[row]);
    } else {
        chunk_push(chunk, EVENT_BACK, rows->count - number);
    }
    if (event_has_size(action, book)) {
        const uint64_t size = e->size[rows->rows[number]];
        chunk_push(chunk, EVENT_RESIZE, pack_fold(e->size[row] - size));
    } else {
        chunk_push(chunk, EVENT_SIZE, e->size[row]);
    }
}

/* A column as numbers of 64 bits. */
static void
events_widen(const void *data, size_t element, size_t first, size_t count,
             uint64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = element == sizeof(uint32_t) ? ((const uint32_t *)data)[first + i]
                                             : ((const uint64_t *)data)[first + i];
    }
}

static void
events_put_chunk(nt_pack_out *out, event_books *books, size_t first, size_t count)
{
    const nt_event_columns *e = nt_snapshot_events(out->snapshot);
    event_chunk chunk = {.columns = out->numbers};
    for (size_t row = first; row < first + count && out->status == NT_OK; row++) {
        chunk_add(&chunk, books, e, row);
        out->status = books_enter(books, e->action[row], row, out->err);
        if (out->status == NT_OK) {
            out->status = books_learn(books, e, row, out->err);
        }
    }
    for (unsigned i = 0; i < EVENT_PLACES; i++) {
        pack_put(out, pack_column(out->numbers, i), chunk.counts[i],
                 i == EVENT_ADDR ? NT_PACK_STEPS : NT_PACK_PLAIN, i == EVENT_ACTION);
    }
    for (size_t i = 0; i < NT_LENGTH(event_columns); i++) {
        const void *data = nt_column_get(e, event_columns[i].spec);
        if (data != NULL) {
            events_widen(data, event_columns[i].spec.element, first, count,
                         out->numbers);
            pack_put(out, out->numbers, count, event_columns[i].how, 0);
        }
    }
}

/* A bit for each column that there is. */
static uint64_t
events_present(const nt_event_columns *e)
{
    uint64_t present = 0;
    for (size_t i = 0; i < NT_LENGTH(event_columns); i++) {
        present |= (uint64_t)(nt_column_get(e, event_columns[i].spec) != NULL) << i;
    }
    return present;
}

static void
pack_put_events(nt_pack_out *out)
{
    event_books books;
    const size_t traces = nt_snapshot_trace_count(out->snapshot);
    books_init(&books, out->alloc);
    pack_put_one(out, events_present(nt_snapshot_events(out->snapshot)));
    pack_put_one(out, traces);
    for (size_t device = 0; device < traces; device++) {
        size_t first, count;
        nt_snapshot_trace(out->snapshot, device, &first, &count);
        pack_put_one(out, count);
        for (size_t done = 0; done < count && out->status == NT_OK;) {
            const size_t rows = pack_rows(count - done);
            events_put_chunk(out, &books, first + done, rows);
            done += rows;
        }
    }
    books_clear(&books);
}

/* Reading ------------------------------------------------------------------ */

/* How many numbers each of a chunk's columns has, by what its events are. */
static nt_status
events_count_places(nt_pack_in *in, size_t rows, size_t counts[EVENT_PLACES])
{
    const uint64_t *actions = pack_column(in->numbers, EVENT_ACTION);
    const uint64_t *books = pack_column(in->numbers, EVENT_BOOK);
    const size_t known = nt_snapshot_action_count(in->snapshot);
    for (size_t i = 0; i < rows; i++) {
        if (actions[i] >= known || books[i] >= BOOKS) {
            return pack_odd(in);
        }
        const bool has_size = event_has_size((uint8_t)actions[i], (unsigned)books[i]);
        counts[books[i] == BOOK_NONE ? EVENT_ADDR : EVENT_BACK]++;
        counts[has_size ? EVENT_RESIZE : EVENT_SIZE]++;
    }
    return NT_OK;
}

static nt_status
events_get_columns(nt_pack_in *in, size_t rows, uint64_t present)
{
    size_t counts[EVENT_PLACES] = {[EVENT_ACTION] = rows, [EVENT_BOOK] = rows};
    for (unsigned i = 0; i < EVENT_PLACES; i++) {
        NT_TRY(pack_get(in, pack_column(in->numbers, i), counts[i],
                        i == EVENT_ADDR ? NT_PACK_STEPS : NT_PACK_PLAIN,
                        i == EVENT_ACTION));
        if (i == EVENT_BOOK) {
            NT_TRY(events_count_places(in, rows, counts));
        }
    }
    for (size_t i = 0; i < NT_LENGTH(event_columns); i++) {
        uint64_t *column = pack_column(in->numbers, EVENT_PLACES + i);
        if ((present >> i & 1) != 0) {
            NT_TRY(pack_get(in, column, rows, event_columns[i].how, 0));
        } else {
            /* What stands for nothing: 0, or no id. */
            const uint64_t none = event_columns[i].how == NT_PACK_IDS ? NT_NONE : 0;
            for (size_t row = 0; row < rows; row++) {
                column[row] = none;
            }
        }
    }
    return NT_OK;
}

/* The columns that stand for themselves; false where an id is none. */
static bool
events_fill(const nt_pack_in *in, size_t i, nt_event *event)
{
    const size_t strings = nt_strings_count(nt_snapshot_strings(in->snapshot));
    const size_t stacks = nt_stacks_count(nt_snapshot_stacks(in->snapshot));
    uint64_t v[NT_LENGTH(event_columns)];
    for (size_t k = 0; k < NT_LENGTH(event_columns); k++) {
        v[k] = pack_column(in->numbers, EVENT_PLACES + k)[i];
    }
    event->stream = v[0];
    event->stack = (uint32_t)v[1];
    event->time_us = (int64_t)v[2];
    event->device_free = v[3];
    event->pool = (nt_pool_id){v[4], v[5]};
    event->compile_context = (uint32_t)v[6];
    event->user_metadata = (uint32_t)v[7];
    event->internal_metadata = (uint32_t)v[8];
    event->forward = (uint32_t)v[9];
    return (v[1] < stacks || v[1] == NT_NONE) && (v[6] < strings || v[6] == NT_NONE) &&
           (v[7] < strings || v[7] == NT_NONE) && (v[8] < strings || v[8] == NT_NONE) &&
           (v[9] < stacks || v[9] == NT_NONE);
}

/* Where the next number of each column is. */
typedef struct event_cursor {
    const uint64_t *next[EVENT_PLACES];
} event_cursor;

static nt_status
events_place(nt_pack_in *in, const event_books *books, event_cursor *at,
             nt_event *event)
{
    const nt_event_columns *e = nt_snapshot_events(in->snapshot);
    const unsigned book = (unsigned)*at->next[EVENT_BOOK]++;
    event->action = (uint8_t)*at->next[EVENT_ACTION]++;
    if (book == BOOK_NONE) {
        event->addr = *at->next[EVENT_ADDR]++;
        event->size = *at->next[EVENT_SIZE]++;
        return NT_OK;
    }
    const event_rows *rows = books_rows(books, book);
    const uint64_t back = *at->next[EVENT_BACK]++;
    if (back == 0 || back > rows->count) {
        return pack_odd(in);
    }
    const size_t named = rows->rows[rows->count - back];
    event->addr = book == BOOK_ENDED ? event_end(e, named) : e->addr[named];
    if (event_has_size(event->action, book)) {
        event->size = e->size[named] + pack_unfold(*at->next[EVENT_RESIZE]++);
    } else {
        event->size = *at->next[EVENT_SIZE]++;
    }
    return NT_OK;
}

static nt_status
events_get_chunk(nt_pack_in *in, event_books *books, size_t rows, uint64_t present)
{
    nt_events *events = nt_snapshot_event_table(in->snapshot);
    event_cursor at;
    NT_TRY(events_get_columns(in, rows, present));
    for (unsigned i = 0; i < EVENT_PLACES; i++) {
        at.next[i] = pack_column(in->numbers, i);
    }
    for (size_t i = 0; i < rows; i++) {
        nt_event event;
        NT_TRY(events_place(in, books, &at, &event));
        if (!events_fill(in, i, &event) || events->columns.count >= NT_NONE) {
            return pack_odd(in);
        }
        NT_TRY(nt_events_add(events, &event, in->err));
        NT_TRY(books_enter(books, event.action, events->columns.count - 1, in->err));
    }
    return NT_OK;
}

static nt_status
events_get_traces(nt_pack_in *in, event_books *books)
{
    uint64_t present, traces, count;
    NT_TRY(pack_get_one(in, &present));
    NT_TRY(pack_get_one(in, &traces));
    if (traces > MOST_DEVICES) {
        return pack_odd(in);
    }
    while (traces-- != 0) {
        NT_TRY(pack_get_one(in, &count));
        NT_TRY(nt_snapshot_begin_trace(in->snapshot, in->err));
        while (count != 0) {
            const size_t rows = pack_rows(count);
            NT_TRY(events_get_chunk(in, books, rows, present));
            count -= rows;
        }
    }
    return NT_OK;
}

static nt_status
pack_get_events(nt_pack_in *in)
{
    event_books books;
    books_init(&books, in->alloc);
    const nt_status status = events_get_traces(in, &books);
    books_clear(&books);
    return status;
}

static const char pack_magic[8] = {'n', 't', 'p', 'a', 'c', 'k', '1', '\n'};

/* Room for the numbers of a chunk. */
#define PACK_ROOM (NT_PACK_COLUMNS * NT_PACK_ROWS * sizeof(uint64_t))

/* Why only a part was read: a length, and the text. */
static void
pack_put_partial(nt_pack_out *out)
{
    const char *reason = nt_snapshot_partial(out->snapshot);
    pack_put_one(out, reason == NULL ? 0 : strlen(reason) + 1);
    if (reason != NULL) {
        pack_put_bytes(out, reason, strlen(reason) + 1);
    }
}

static nt_status
pack_get_partial(nt_pack_in *in)
{
    uint64_t length;
    NT_TRY(pack_get_one(in, &length));
    if (length > 256) {
        return pack_odd(in);
    }
    NT_TRY(pack_need(in, (size_t)length));
    const char *reason = (const char *)in->source->next;
    if (length != 0) {
        if (memchr(reason, 0, (size_t)length) != reason + length - 1) {
            return pack_odd(in);
        }
        nt_snapshot_set_partial(in->snapshot, reason);
    }
    in->source->next += length;
    return NT_OK;
}

/* The host's memory, where there is any: rows under the ids of the whole. */
static void
pack_put_host(nt_pack_out *out)
{
    const nt_snapshot *host = nt_snapshot_host(out->snapshot);
    pack_put_one(out, host != NULL);
    if (host != NULL) {
        out->snapshot = host;
        pack_put_one(out, nt_snapshot_keys(host));
        pack_put_rows(out);
        pack_put_events(out);
        pack_put_notes(out);
    }
}

nt_status
nt_pack_save(const nt_alloc *alloc, const nt_snapshot *snapshot, const nt_sink *sink,
             nt_error *err)
{
    nt_pack_out out = {
        .snapshot = snapshot,
        .sink = sink,
        .alloc = *alloc,
        .numbers = nt_allocate(alloc, PACK_ROOM),
        .bytes = nt_allocate(alloc, NT_PACK_ROWS),
        .err = err,
    };
    if (out.numbers == NULL || out.bytes == NULL) {
        out.status = nt_fail_nomem(err);
    } else {
        pack_put_bytes(&out, pack_magic, sizeof pack_magic);
        pack_put_one(&out, nt_snapshot_keys(snapshot));
        pack_put_texts(&out);
        pack_put_rows(&out);
        pack_put_events(&out);
        pack_put_notes(&out);
        pack_put_partial(&out);
        pack_put_host(&out);
    }
    nt_release(alloc, out.numbers, out.numbers == NULL ? 0 : PACK_ROOM);
    nt_release(alloc, out.bytes, out.bytes == NULL ? 0 : NT_PACK_ROWS);
    return out.status;
}

static nt_status
pack_get_tables(nt_pack_in *in, uint64_t keys)
{
    nt_snapshot_set_keys(in->snapshot, (uint32_t)keys);
    NT_TRY(pack_get_rows(in));
    NT_TRY(pack_get_events(in));
    /* What one that was written keeps; the notes are those it was written with. */
    NT_TRY(nt_invariants_check(&in->alloc, in->snapshot, in->err));
    nt_snapshot_drop_broken(in->snapshot);
    return pack_get_notes(in);
}

static nt_status
pack_get_host(nt_pack_in *in)
{
    uint64_t has_host, keys;
    NT_TRY(pack_get_one(in, &has_host));
    if (has_host > 1) {
        return pack_odd(in);
    }
    if (has_host == 0) {
        return NT_OK;
    }
    nt_snapshot *device = in->snapshot;
    NT_TRY(pack_get_one(in, &keys));
    NT_TRY(nt_snapshot_begin_host(device, &in->snapshot, in->err));
    const nt_status status =
        (keys & NT_HAS_BEFORE) != 0 ? pack_odd(in) : pack_get_tables(in, keys);
    in->snapshot = device;
    return status;
}

static nt_status
pack_get_all(nt_pack_in *in)
{
    uint64_t keys;
    NT_TRY(pack_need(in, sizeof pack_magic));
    if (memcmp(in->source->next, pack_magic, sizeof pack_magic) != 0) {
        return pack_odd(in);
    }
    in->source->next += sizeof pack_magic;
    NT_TRY(pack_get_one(in, &keys));
    NT_TRY(pack_get_texts(in));
    NT_TRY(pack_get_tables(in, keys));
    NT_TRY(pack_get_partial(in));
    NT_TRY(pack_get_host(in));
    return nt_snapshot_seal(in->snapshot, in->err);
}

nt_status
nt_pack_load(const nt_alloc *alloc, nt_source *source, nt_snapshot **out, nt_error *err)
{
    nt_pack_in in = {
        .source = source,
        .alloc = *alloc,
        .numbers = nt_allocate(alloc, PACK_ROOM),
        .err = err,
    };
    nt_status status = in.numbers == NULL ? nt_fail_nomem(err) : NT_OK;
    if (status == NT_OK) {
        status = nt_snapshot_new(alloc, &in.snapshot, err);
    }
    if (status == NT_OK) {
        status = pack_get_all(&in);
    }
    nt_release(alloc, in.numbers, in.numbers == NULL ? 0 : PACK_ROOM);
    if (status != NT_OK) {
        nt_snapshot_free(in.snapshot);
        return status;
    }
    *out = in.snapshot;
    return NT_OK;
}
