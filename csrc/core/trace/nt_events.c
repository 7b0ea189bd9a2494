/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_events.h"

#include <string.h>

#include "base/nt_columns.h"

/* Optional columns follow the ones every event fills. */
static const nt_column_spec event_specs[] = {
    NT_EVENT_LIST(NT_COLUMN_SPEC, nt_event_columns)};

enum {
    EVENT_TIME = 5,
    EVENT_DEVICE_FREE,
    EVENT_POOL_FIRST,
    EVENT_POOL_SECOND,
    EVENT_COMPILE_CONTEXT,
    EVENT_USER_METADATA,
    EVENT_INTERNAL_METADATA,
    EVENT_FORWARD,
};

void
nt_events_clear(nt_events *events)
{
    for (size_t i = 0; i < NT_EVENT_COLUMNS; i++) {
        nt_release(&events->alloc, nt_column_get(&events->columns, event_specs[i]),
                   events->capacity[i] * event_specs[i].element);
    }
    NT_RELEASE(&events->alloc, events->runs, events->run_capacity);
    *events = (nt_events){.alloc = events->alloc};
}

/* Room for what is expected in column `i`; NULL where there is none. */
static void *
events_expand(const nt_events *events, size_t i, void *data)
{
    const size_t element = event_specs[i].element;
    size_t bytes;
    if (!nt_size_mul(events->expected, element, &bytes)) {
        return NULL;
    }
    return events->alloc.resize(events->alloc.ctx, data, events->capacity[i] * element,
                                bytes);
}

static nt_status
events_grow_column(nt_events *events, size_t i, size_t need, nt_error *err)
{
    if (need <= events->capacity[i]) {
        return NT_OK;
    }
    void *data = nt_column_get(&events->columns, event_specs[i]);
    void *grown = need <= events->expected ? events_expand(events, i, data) : NULL;
    if (grown != NULL) {
        data = grown;
        events->capacity[i] = events->expected;
    } else {
        NT_TRY(nt_grow(&events->alloc, &data, &events->capacity[i], need,
                       event_specs[i].element, err));
    }
    nt_column_put(&events->columns, event_specs[i], data);
    return NT_OK;
}

/* The optional column `i` is wanted: filled up to `rows` with the value that stands for
 * "absent" (all bits set for string ids, else zero). */
static nt_status
events_want_column(nt_events *events, size_t i, size_t rows, nt_error *err)
{
    if (events->capacity[i] != 0) {
        return NT_OK;
    }
    NT_TRY(events_grow_column(events, i, rows + 1, err));
    const int fill = i >= EVENT_COMPILE_CONTEXT ? 0xff : 0;
    memset(nt_column_get(&events->columns, event_specs[i]), fill,
           (rows + 1) * event_specs[i].element);
    return NT_OK;
}

nt_status
nt_events_reserve(nt_events *events, const nt_event *event, nt_error *err)
{
    const size_t count = events->columns.count;
    const struct {
        size_t column;
        bool wanted;
    } optional[] = {
        {EVENT_TIME, event->time_us != 0},
        {EVENT_DEVICE_FREE, event->device_free != 0},
        {EVENT_POOL_FIRST, (event->pool.first | event->pool.second) != 0},
        {EVENT_POOL_SECOND, (event->pool.first | event->pool.second) != 0},
        {EVENT_COMPILE_CONTEXT, event->compile_context != NT_NONE},
        {EVENT_USER_METADATA, event->user_metadata != NT_NONE},
        {EVENT_INTERNAL_METADATA, event->internal_metadata != NT_NONE},
        {EVENT_FORWARD, event->forward != NT_NO_STACK},
    };
    for (size_t i = 0; i < NT_LENGTH(optional); i++) {
        if (optional[i].wanted) {
            NT_TRY(events_want_column(events, optional[i].column, count, err));
        }
    }
    size_t room = SIZE_MAX;
    for (size_t i = 0; i < NT_EVENT_COLUMNS; i++) {
        if (i < EVENT_TIME || events->capacity[i] != 0) {
            NT_TRY(events_grow_column(events, i, count + 1, err));
            room = events->capacity[i] < room ? events->capacity[i] : room;
        }
    }
    events->room = room;
    return NT_OK;
}

/* NT_NO_STACK, which is NT_NONE, where the column is not in use. */
static uint32_t
events_id_at(const uint32_t *column, size_t row)
{
    return column == NULL ? NT_NONE : column[row];
}

nt_event
nt_events_row(const nt_event_columns *columns, size_t row)
{
    nt_event event = {
        .action = columns->action[row],
        .addr = columns->addr[row],
        .size = columns->size[row],
        .stream = columns->stream[row],
        .stack = columns->stack[row],
        .time_us = columns->time_us == NULL ? 0 : columns->time_us[row],
        .device_free = columns->device_free == NULL ? 0 : columns->device_free[row],
        .compile_context = events_id_at(columns->compile_context, row),
        .user_metadata = events_id_at(columns->user_metadata, row),
        .internal_metadata = events_id_at(columns->internal_metadata, row),
        .forward = events_id_at(columns->forward, row),
    };
    if (columns->pool_second != NULL) {
        event.pool = (nt_pool_id){columns->pool_first[row], columns->pool_second[row]};
    }
    return event;
}

nt_status
nt_events_pick(nt_events *events, size_t first, size_t count, nt_error *err)
{
    NT_ASSERT(first + count <= events->columns.count);
    NT_TRY(NT_GROW(&events->alloc, events->runs, events->run_capacity,
                   events->run_count + 1, err));
    nt_event_run *last =
        events->run_count == 0 ? NULL : &events->runs[events->run_count - 1];
    if (last != NULL && last->first + last->count == first) {
        last->count += count;
    } else {
        events->runs[events->run_count++] = (nt_event_run){first, count};
    }
    events->picked += count;
    return NT_OK;
}

/* One column in the order of the runs, in a new array of `picked` rows. */
static nt_status
events_arrange_column(nt_events *events, size_t i, nt_error *err)
{
    const size_t element = event_specs[i].element;
    char *fresh;
    NT_TRY(nt_take(&events->alloc, (void **)&fresh, events->picked * element, err));
    char *old = nt_column_get(&events->columns, event_specs[i]);
    size_t row = 0;
    for (size_t run = 0; run < events->run_count; run++) {
        const nt_event_run piece = events->runs[run];
        memcpy(fresh + row * element, old + piece.first * element,
               piece.count * element);
        row += piece.count;
    }
    nt_release(&events->alloc, old, events->capacity[i] * element);
    nt_column_put(&events->columns, event_specs[i], fresh);
    events->capacity[i] = events->picked;
    events->room = 0;
    return NT_OK;
}

nt_status
nt_events_arrange(nt_events *events, nt_error *err)
{
    /* Nearly always all events are one run: they came in the order they stay in. */
    const bool in_order = events->run_count == 0 ||
                          (events->run_count == 1 && events->runs[0].first == 0);
    if (!in_order) {
        for (size_t i = 0; i < NT_EVENT_COLUMNS; i++) {
            if (events->capacity[i] != 0) {
                NT_TRY(events_arrange_column(events, i, err));
            }
        }
    }
    events->columns.count = events->picked;
    NT_RELEASE(&events->alloc, events->runs, events->run_capacity);
    events->runs = NULL;
    events->run_count = 0;
    events->run_capacity = 0;
    return NT_OK;
}

/* Optional columns are there exactly when the file had the key. */
static nt_status
events_seal_optional(nt_events *events, uint32_t keys, nt_error *err)
{
    static const struct {
        uint32_t key;
        size_t column;
    } optional[] = {
        {NT_HAS_EVENT_TIME, EVENT_TIME},
        {NT_HAS_EVENT_DEVICE_FREE, EVENT_DEVICE_FREE},
        {NT_HAS_EVENT_POOL, EVENT_POOL_FIRST},
        {NT_HAS_EVENT_POOL, EVENT_POOL_SECOND},
        {NT_HAS_EVENT_COMPILE_CONTEXT, EVENT_COMPILE_CONTEXT},
        {NT_HAS_EVENT_USER_METADATA, EVENT_USER_METADATA},
        {NT_HAS_EVENT_INTERNAL, EVENT_INTERNAL_METADATA},
        {NT_HAS_EVENT_FORWARD, EVENT_FORWARD},
    };
    for (size_t i = 0; i < NT_LENGTH(optional) && events->columns.count != 0; i++) {
        if ((keys & optional[i].key) != 0) {
            NT_TRY(events_want_column(events, optional[i].column, events->columns.count,
                                      err));
        }
    }
    return NT_OK;
}

nt_status
nt_events_seal(nt_events *events, uint32_t keys, nt_error *err)
{
    events->room = 0;
    NT_TRY(events_seal_optional(events, keys, err));
    for (size_t i = 0; i < NT_EVENT_COLUMNS; i++) {
        void *data = nt_column_get(&events->columns, event_specs[i]);
        nt_shrink(&events->alloc, &data, &events->capacity[i],
                  events->capacity[i] == 0 ? 0 : events->columns.count,
                  event_specs[i].element);
        nt_column_put(&events->columns, event_specs[i], data);
    }
    return NT_OK;
}
