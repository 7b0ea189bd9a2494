/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, blocks, annotations, and notes of what a file said wrongly. */
#include "trace/nt_invariants.h"
#include "trace/nt_pack_numbers.h"
#include "trace/nt_reader_schema.h"

enum { PLAIN = NT_PACK_PLAIN, STEPS = NT_PACK_STEPS, IDS = NT_PACK_IDS };

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
        !nt_pack_is_stack(in, v[11]) || row >= MOST_SEGMENTS) {
        return nt_pack_odd(in);
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
        !nt_pack_is_stack(in, v[5]) || (row != 0 && v[0] < c->segment[row - 1])) {
        return nt_pack_odd(in);
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
    if (v[0] >= NT_STAGE_COUNT || (!nt_pack_is_string(in, v[1]) && v[1] != NT_NONE) ||
        v[2] >= MOST_DEVICES || v[3] > (uint64_t)NT_MOST_TIME) {
        return nt_pack_odd(in);
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
        return nt_pack_odd(in);
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
    return nt_pack_is_string(in, v[0])
               ? nt_snapshot_add_ignored(in->snapshot, (uint32_t)v[0], in->err)
               : nt_pack_odd(in);
}

static const nt_pack_table rows_segments = {
    12,
    {STEPS, STEPS, PLAIN, PLAIN, PLAIN, PLAIN, STEPS, STEPS, STEPS, PLAIN, PLAIN, IDS},
    segments_count,
    segments_give,
    segments_take,
};
static const nt_pack_table rows_blocks = {
    6, {STEPS, STEPS, PLAIN, PLAIN, PLAIN, IDS}, blocks_count, blocks_give, blocks_take,
};
static const nt_pack_table rows_segments_before = {
    12,
    {STEPS, STEPS, PLAIN, PLAIN, PLAIN, PLAIN, STEPS, STEPS, STEPS, PLAIN, PLAIN, IDS},
    segments_before_count,
    segments_before_give,
    segments_take,
};
static const nt_pack_table rows_blocks_before = {
    6,
    {STEPS, STEPS, PLAIN, PLAIN, PLAIN, IDS},
    blocks_before_count,
    blocks_before_give,
    blocks_take,
};
static const nt_pack_table rows_annotations = {
    4,
    {PLAIN, IDS, PLAIN, STEPS},
    annotations_count,
    annotations_give,
    annotations_take,
};
static const nt_pack_table rows_broken = {
    5, {PLAIN, PLAIN, PLAIN, PLAIN, PLAIN}, broken_count, broken_give, broken_take,
};
static const nt_pack_table rows_ignored = {
    1, {PLAIN}, ignored_count, ignored_give, ignored_take,
};

void
nt_pack_put_rows(nt_pack_out *out)
{
    nt_pack_put_table(out, &rows_segments);
    nt_pack_put_table(out, &rows_blocks);
    nt_pack_put_table(out, &rows_annotations);
    if ((nt_snapshot_keys(out->snapshot) & NT_HAS_BEFORE) != 0) {
        nt_pack_put_table(out, &rows_segments_before);
        nt_pack_put_table(out, &rows_blocks_before);
    }
}

nt_status
nt_pack_get_rows(nt_pack_in *in)
{
    NT_TRY(nt_pack_get_table(in, &rows_segments));
    NT_TRY(nt_pack_get_table(in, &rows_blocks));
    blocks_share(in);
    NT_TRY(nt_pack_get_table(in, &rows_annotations));
    if ((nt_snapshot_keys(in->snapshot) & NT_HAS_BEFORE) != 0) {
        nt_snapshot_begin_before(in->snapshot);
        NT_TRY(nt_pack_get_table(in, &rows_segments_before));
        NT_TRY(nt_pack_get_table(in, &rows_blocks_before));
        blocks_share(in);
    }
    return NT_OK;
}

void
nt_pack_put_notes(nt_pack_out *out)
{
    nt_pack_put_table(out, &rows_broken);
    nt_pack_put_table(out, &rows_ignored);
}

nt_status
nt_pack_get_notes(nt_pack_in *in)
{
    NT_TRY(nt_pack_get_table(in, &rows_broken));
    return nt_pack_get_table(in, &rows_ignored);
}
