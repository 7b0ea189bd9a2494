/* SPDX-License-Identifier: Apache-2.0 */
/* A run as a snapshot: the trace that PyTorch would have written of it. */
#include "whatif/nt_replay_state.h"

static const nt_snapshot *
record_source(const replay *r)
{
    return nt_timeline_snapshot(r->program->timeline);
}

/* The strings under the ids that they have in `from`. */
static nt_status
record_copy_strings(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_strings *strings = nt_snapshot_strings(from);
    uint32_t id;
    for (uint32_t i = 0; i < nt_strings_count(strings); i++) {
        size_t length;
        const char *text = nt_strings_get(strings, i, &length);
        NT_TRY(nt_strings_intern(nt_snapshot_strings(to), text, length, &id, err));
        NT_ASSERT(id == i);
    }
    return NT_OK;
}

/* The stacks under the ids that they have in `from`: one comes behind the one that it
 * was called from, so that each call adds one. */
static nt_status
record_copy_stacks(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(from);
    nt_stacks *copies = nt_snapshot_stacks(to);
    uint32_t id;
    size_t nodes;
    const nt_fx_node *fx = nt_stacks_fx(stacks, &nodes);
    for (size_t i = 0; i < nodes; i++) {
        NT_TRY(nt_stacks_intern_fx(copies, fx[i], &id, err));
    }
    for (size_t i = 0; i < nt_stacks_frame_count(stacks); i++) {
        NT_TRY(nt_stacks_intern_frame(copies, nt_stacks_frames(stacks)[i], &id, err));
    }
    for (uint32_t i = NT_EMPTY_STACK + 1; i < nt_stacks_count(stacks); i++) {
        NT_TRY(nt_stacks_intern_call(copies, nt_stacks_parent(stacks)[i],
                                     nt_stacks_innermost(stacks)[i], &id, err));
        NT_ASSERT(id == i);
    }
    return NT_OK;
}

static nt_status
record_copy_annotations(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    const nt_annotation_columns *rows = nt_snapshot_annotations(from);
    for (size_t i = 0; i < rows->count; i++) {
        const nt_annotation row = {
            .stage = rows->stage[i],
            .name = rows->name[i],
            .device = rows->device[i],
            .time_us = rows->time_us[i],
        };
        NT_TRY(nt_snapshot_add_annotation(to, &row, err));
    }
    return NT_OK;
}

/* The settings as the text that PYTORCH_CUDA_ALLOC_CONF would have had. */
static nt_status
record_add_settings(const nt_settings *settings, nt_snapshot *to, nt_error *err)
{
    static const char key[] = "PYTORCH_CUDA_ALLOC_CONF";
    char text[1024];
    nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_STRING};
    const size_t length = nt_settings_format(settings, text, sizeof text);
    NT_ASSERT(length < sizeof text);
    nt_strings *strings = nt_snapshot_strings(to);
    NT_TRY(nt_strings_intern(strings, key, sizeof key - 1, &row.key, err));
    NT_TRY(nt_strings_intern(strings, text, length, &row.string, err));
    return nt_snapshot_add_setting(to, &row, err);
}

/* What marks a run that was never recorded; its row, as the file's, under the ids that
 * its strings have there. */
static nt_status
record_copy_mark(const nt_snapshot *from, nt_snapshot *to, nt_error *err)
{
    static const char name[] = "rehearsed";
    size_t count;
    const nt_setting *rows = nt_snapshot_setting_rows(from, &count);
    const uint32_t key =
        nt_strings_find(nt_snapshot_strings(from), name, sizeof name - 1);
    for (size_t i = 0; key != NT_NONE && i < count; i++) {
        if (rows[i].key == key && rows[i].parent == NT_NONE &&
            rows[i].kind == NT_SETTING_STRING) {
            return nt_snapshot_add_setting(to, &rows[i], err);
        }
    }
    return NT_OK;
}

static nt_status
record_begin(replay *r)
{
    const nt_snapshot *from = record_source(r);
    nt_snapshot *to = r->record->snapshot;
    NT_TRY(record_copy_strings(from, to, r->err));
    NT_TRY(record_copy_stacks(from, to, r->err));
    NT_TRY(record_copy_annotations(from, to, r->err));
    NT_TRY(record_add_settings(&r->options.settings, to, r->err));
    NT_TRY(record_copy_mark(from, to, r->err));
    for (int32_t i = 0; i <= nt_timeline_device(r->program->timeline); i++) {
        NT_TRY(nt_snapshot_begin_trace(to, r->err));
    }
    /* The model calls the device a little more or less often. */
    const size_t events = nt_timeline_event_count(r->program->timeline);
    nt_snapshot_event_table(to)->expected = events + events / 64;
    return NT_OK;
}

static nt_pool_id
record_pool(const replay *r, size_t pool)
{
    return r->program->pools[pool];
}

/* An event of the model in the place of the recorded one that is under way. */
static void
record_add(replay *r, nt_action action, uint32_t lane, uint64_t address, uint64_t size)
{
    replay_record *record = r->record;
    const nt_timeline *timeline = r->program->timeline;
    const nt_event_columns *from = nt_snapshot_events(record_source(r));
    size_t first, count;
    nt_snapshot_trace(record_source(r), (size_t)nt_timeline_device(timeline), &first,
                      &count);
    const size_t at = first + (record->event < count ? record->event : count - 1);
    const nt_program_lane *where = &r->program->lanes[lane];
    const nt_event event = {
        .action = (uint8_t)action,
        .addr = address,
        .size = size,
        .stream = where->stream,
        .time_us = from->time_us != NULL ? from->time_us[at] : 0,
        .pool = record_pool(r, where->pool),
        .stack = from->stack[at],
        .compile_context =
            from->compile_context != NULL ? from->compile_context[at] : NT_NONE,
        .user_metadata =
            from->user_metadata != NULL ? from->user_metadata[at] : NT_NONE,
        .internal_metadata = NT_NONE,
        .forward = NT_NO_STACK,
    };
    if (record->status == NT_OK) {
        record->status = nt_snapshot_add_event(record->snapshot, &event, r->err);
    }
    if (action != NT_ACTION_ALLOC || record->status != NT_OK) {
        return;
    }
    if (event.stack == NT_NO_STACK) {
        (void)nt_map_remove(&record->stacks, address);
    } else {
        record->status = nt_map_set(&record->stacks, address, event.stack, r->err);
    }
}

void
nt_replay_record_deed(replay *r, nt_action action, uint32_t lane, uint64_t address,
                      uint64_t size)
{
    if (r->record->is_begun) {
        record_add(r, action, lane, address, size);
    }
}

void
nt_replay_record_malloc(replay *r, const nt_program_step *step, uint32_t block)
{
    record_add(r, NT_ACTION_ALLOC, step->lane, nt_allocator_address(r->model, block),
               nt_allocator_requested(r->model, block));
}

void
nt_replay_record_free(replay *r, const nt_program_step *step, uint32_t block)
{
    const uint64_t address = nt_allocator_address(r->model, block);
    const uint64_t size = nt_allocator_requested(r->model, block);
    const uint32_t lane = nt_allocator_lane(r->model, block);
    if (step->kind != NT_PROGRAM_COMPLETE) {
        record_add(r, NT_ACTION_FREE_REQUESTED, lane, address, size);
    }
    if (step->kind != NT_PROGRAM_FREE_LATER) {
        record_add(r, NT_ACTION_FREE_COMPLETED, lane, address, size);
    }
}

/* The blocks of row `i` of the layout's segments. */
static nt_status
record_add_blocks(replay *r, const nt_layout *layout, size_t i)
{
    const nt_block_columns *b = &layout->blocks;
    const uint32_t first = layout->segments.block_first[i];
    for (uint32_t k = first; k < first + layout->segments.block_count[i]; k++) {
        const bool is_free = b->state[k] == NT_BLOCK_INACTIVE;
        const nt_block row = {
            .address = b->address[k],
            .size = b->size[k],
            .requested_size = b->requested_size[k],
            .state = b->state[k],
            .stack =
                is_free ? NT_NO_STACK : nt_map_find(&r->record->stacks, b->address[k]),
        };
        NT_TRY(nt_snapshot_add_block(r->record->snapshot, &row, r->err));
    }
    return NT_OK;
}

static nt_status
record_add_layout(replay *r, const nt_layout *layout)
{
    const nt_segment_columns *s = &layout->segments;
    for (size_t i = 0; i < s->count; i++) {
        const nt_segment row = {
            .device = nt_timeline_device(r->program->timeline),
            .address = s->address[i],
            .total_size = s->total_size[i],
            .allocated_size = s->allocated_size[i],
            .active_size = s->active_size[i],
            .requested_size = s->requested_size[i],
            .stream = s->stream[i],
            .pool = record_pool(r, (size_t)s->pool_second[i]),
            .kind = s->kind[i],
            .is_expandable = s->is_expandable[i] != 0,
            .stack = NT_NO_STACK,
        };
        NT_TRY(nt_snapshot_add_segment(r->record->snapshot, &row, r->err));
        NT_TRY(record_add_blocks(r, layout, i));
    }
    return NT_OK;
}

nt_status
nt_replay_record_end(replay *r)
{
    nt_layout *layout;
    NT_TRY(r->record->status);
    NT_TRY(nt_allocator_layout(r->model, &layout, r->err));
    const nt_status status = record_add_layout(r, layout);
    nt_allocator_layout_free(r->model, layout);
    return status;
}

/* Which keys the file of the snapshot would have. */
static uint32_t
record_keys(const nt_program *program)
{
    const uint32_t events = NT_HAS_EVENT_TIME | NT_HAS_EVENT_COMPILE_CONTEXT |
                            NT_HAS_EVENT_USER_METADATA | NT_HAS_ANNOTATIONS;
    uint32_t keys = nt_snapshot_keys(nt_timeline_snapshot(program->timeline)) & events;
    keys |= NT_HAS_SEGMENT_ALLOCATED | NT_HAS_SEGMENT_ACTIVE;
    keys |= NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |
            NT_HAS_SEGMENT_POOL | NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_SETTINGS |
            NT_HAS_TRACES;
    return program->pool_count > 1 ? keys | NT_HAS_EVENT_POOL : keys;
}

nt_status
nt_replay_trace(const nt_alloc *alloc, const nt_program *program,
                const nt_replay_options *options, const nt_progress *progress,
                nt_snapshot **out, nt_error *err)
{
    replay_record record = {.status = NT_OK};
    replay r = {
        .alloc = *alloc,
        .program = program,
        .options = *options,
        .record = &record,
        .err = err,
    };
    r.places.alloc = *alloc;
    nt_map_init(&record.stacks, *alloc);
    NT_TRY(nt_snapshot_new(alloc, &record.snapshot, err));
    nt_status status = record_begin(&r);
    if (status == NT_OK) {
        status = nt_replay_whole(&r, progress, NULL);
    }
    if (status == NT_OK) {
        nt_snapshot_set_keys(record.snapshot, record_keys(program));
        status = nt_snapshot_seal(record.snapshot, err);
    }
    nt_map_clear(&record.stacks);
    if (status != NT_OK) {
        nt_snapshot_free(record.snapshot);
        return status;
    }
    *out = record.snapshot;
    return NT_OK;
}
