/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of numbers as bytes, for the files of nt_pack. */
#ifndef NT_PACK_NUMBERS_H
#define NT_PACK_NUMBERS_H

#include "base/nt_base.h"
#include "trace/nt_pack.h"

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
nt_pack_fold(uint64_t step)
{
    return step << 1 ^ (0 - (step >> 63));
}

static inline uint64_t
nt_pack_unfold(uint64_t number)
{
    return number >> 1 ^ (0 - (number & 1));
}

/* Rows of the next chunk, where so many are left. */
static inline size_t
nt_pack_rows(uint64_t left)
{
    return left < NT_PACK_ROWS ? (size_t)left : NT_PACK_ROWS;
}

/* A column of the room for them. */
static inline uint64_t *
nt_pack_column(uint64_t *numbers, size_t column)
{
    return numbers + column * NT_PACK_ROWS;
}

void
nt_pack_put_bytes(nt_pack_out *out, const void *bytes, size_t count);

/* Writes `count` numbers, at most NT_PACK_ROWS, which are changed on the way. `least`
 * bytes a number are written: with 1, rows that a file claims cost it bytes. */
void
nt_pack_put(nt_pack_out *out, uint64_t *numbers, size_t count, nt_pack_how how,
            unsigned least);

/* One number. */
void
nt_pack_put_one(nt_pack_out *out, uint64_t number);

/* Sees to it that `count` bytes are at in->source->next. */
nt_status
nt_pack_need(nt_pack_in *in, size_t count) NT_CHECKED;

nt_status
nt_pack_get(nt_pack_in *in, uint64_t *numbers, size_t count, nt_pack_how how,
            unsigned least) NT_CHECKED;

nt_status
nt_pack_get_one(nt_pack_in *in, uint64_t *number) NT_CHECKED;

/* NT_MALFORMED: what nt_pack_save did not write. */
nt_status
nt_pack_odd(nt_pack_in *in) NT_CHECKED;

/* A table but the events: a row is some numbers. */
typedef struct nt_pack_table {
    size_t columns;
    uint8_t how[NT_PACK_COLUMNS]; /* nt_pack_how */
    size_t (*count)(const nt_snapshot *snapshot);
    /* The numbers of a row. */
    void (*give)(const nt_snapshot *snapshot, size_t row, uint64_t *v);
    /* Adds a row, or ends with nt_pack_odd. */
    nt_status (*take)(nt_pack_in *in, size_t row, const uint64_t *v);
} nt_pack_table;

void
nt_pack_put_table(nt_pack_out *out, const nt_pack_table *table);
nt_status
nt_pack_get_table(nt_pack_in *in, const nt_pack_table *table) NT_CHECKED;

/* Whether there is such a string, or such a stack or NT_NO_STACK. */
bool
nt_pack_is_string(const nt_pack_in *in, uint64_t id);
bool
nt_pack_is_stack(const nt_pack_in *in, uint64_t id);

/* Strings, frames, stacks, actions, settings: what rows have ids of (nt_pack_texts.c).
 */
void
nt_pack_put_texts(nt_pack_out *out);
nt_status
nt_pack_get_texts(nt_pack_in *in) NT_CHECKED;

/* Segments, blocks, annotations (nt_pack_rows.c). */
void
nt_pack_put_rows(nt_pack_out *out);
nt_status
nt_pack_get_rows(nt_pack_in *in) NT_CHECKED;

/* Notes and ignored keys, which are added once what was read has been checked. */
void
nt_pack_put_notes(nt_pack_out *out);
nt_status
nt_pack_get_notes(nt_pack_in *in) NT_CHECKED;

/* The events of all traces (nt_pack_events.c). */
void
nt_pack_put_events(nt_pack_out *out);
nt_status
nt_pack_get_events(nt_pack_in *in) NT_CHECKED;

#endif
