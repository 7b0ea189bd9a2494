/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events. Where memory is comes back all the time: a free names what was allocated, and
 * an allocation takes what was freed or begins where another one ends. So an address is
 * how many allocations, or frees, ago it was seen, and a free has the size of what it
 * frees.
 */
#include "base/nt_columns.h"
#include "trace/nt_pack_numbers.h"
#include "trace/nt_reader_schema.h"

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
    nt_release(&books->alloc, books->opened.rows,
               books->opened.capacity * sizeof(uint32_t));
    nt_release(&books->alloc, books->asked.rows,
               books->asked.capacity * sizeof(uint32_t));
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
        NT_TRY(nt_grow(&books->alloc, (void **)&rows->rows, &rows->capacity,
                       rows->count + 1, sizeof(uint32_t), err));
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
    nt_pack_column(chunk->columns, column)[chunk->counts[column]++] = number;
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
        chunk_push(chunk, EVENT_RESIZE, nt_pack_fold(e->size[row] - size));
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
        nt_pack_put(out, nt_pack_column(out->numbers, i), chunk.counts[i],
                    i == EVENT_ADDR ? NT_PACK_STEPS : NT_PACK_PLAIN, i == EVENT_ACTION);
    }
    for (size_t i = 0; i < NT_LENGTH(event_columns); i++) {
        const void *data = nt_column_get(e, event_columns[i].spec);
        if (data != NULL) {
            events_widen(data, event_columns[i].spec.element, first, count,
                         out->numbers);
            nt_pack_put(out, out->numbers, count, event_columns[i].how, 0);
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

void
nt_pack_put_events(nt_pack_out *out)
{
    event_books books;
    const size_t traces = nt_snapshot_trace_count(out->snapshot);
    books_init(&books, out->alloc);
    nt_pack_put_one(out, events_present(nt_snapshot_events(out->snapshot)));
    nt_pack_put_one(out, traces);
    for (size_t device = 0; device < traces; device++) {
        size_t first, count;
        nt_snapshot_trace(out->snapshot, device, &first, &count);
        nt_pack_put_one(out, count);
        for (size_t done = 0; done < count && out->status == NT_OK;) {
            const size_t rows = nt_pack_rows(count - done);
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
    const uint64_t *actions = nt_pack_column(in->numbers, EVENT_ACTION);
    const uint64_t *books = nt_pack_column(in->numbers, EVENT_BOOK);
    const size_t known = nt_snapshot_action_count(in->snapshot);
    for (size_t i = 0; i < rows; i++) {
        if (actions[i] >= known || books[i] >= BOOKS) {
            return nt_pack_odd(in);
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
        NT_TRY(nt_pack_get(in, nt_pack_column(in->numbers, i), counts[i],
                           i == EVENT_ADDR ? NT_PACK_STEPS : NT_PACK_PLAIN,
                           i == EVENT_ACTION));
        if (i == EVENT_BOOK) {
            NT_TRY(events_count_places(in, rows, counts));
        }
    }
    for (size_t i = 0; i < NT_LENGTH(event_columns); i++) {
        uint64_t *column = nt_pack_column(in->numbers, EVENT_PLACES + i);
        if ((present >> i & 1) != 0) {
            NT_TRY(nt_pack_get(in, column, rows, event_columns[i].how, 0));
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
        v[k] = nt_pack_column(in->numbers, EVENT_PLACES + k)[i];
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
        return nt_pack_odd(in);
    }
    const size_t named = rows->rows[rows->count - back];
    event->addr = book == BOOK_ENDED ? event_end(e, named) : e->addr[named];
    if (event_has_size(event->action, book)) {
        event->size = e->size[named] + nt_pack_unfold(*at->next[EVENT_RESIZE]++);
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
        at.next[i] = nt_pack_column(in->numbers, i);
    }
    for (size_t i = 0; i < rows; i++) {
        nt_event event;
        NT_TRY(events_place(in, books, &at, &event));
        if (!events_fill(in, i, &event) || events->columns.count >= NT_NONE) {
            return nt_pack_odd(in);
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
    NT_TRY(nt_pack_get_one(in, &present));
    NT_TRY(nt_pack_get_one(in, &traces));
    if (traces > MOST_DEVICES) {
        return nt_pack_odd(in);
    }
    while (traces-- != 0) {
        NT_TRY(nt_pack_get_one(in, &count));
        NT_TRY(nt_snapshot_begin_trace(in->snapshot, in->err));
        while (count != 0) {
            const size_t rows = nt_pack_rows(count);
            NT_TRY(events_get_chunk(in, books, rows, present));
            count -= rows;
        }
    }
    return NT_OK;
}

nt_status
nt_pack_get_events(nt_pack_in *in)
{
    event_books books;
    books_init(&books, in->alloc);
    const nt_status status = events_get_traces(in, &books);
    books_clear(&books);
    return status;
}
