/* SPDX-License-Identifier: Apache-2.0 */
/* What a pickle's stack and memo hold: one 64-bit word a value. Small integers are in
 * the word; everything else is an id into the store. Containers are shared by id and
 * never copied, so a memo reference costs one word. */
#ifndef NT_VALUE_H
#define NT_VALUE_H

#include "base/nt_base.h"
#include "base/nt_map.h"

/* Low four bits: what it is. The other sixty: the integer, or an id. */
typedef uint64_t nt_value;

typedef enum nt_value_tag {
    NT_VALUE_ABSENT, /* no value: a memo entry never set, a key never seen */
    NT_VALUE_NONE,
    NT_VALUE_BOOL,
    NT_VALUE_INT,      /* fits 60 bits, signed */
    NT_VALUE_BIG,      /* id of a wider integer */
    NT_VALUE_FLOAT,    /* id */
    NT_VALUE_STRING,   /* id in the nt_strings handed to nt_pickle */
    NT_VALUE_TUPLE,    /* id of a node */
    NT_VALUE_LIST,     /* id of a node */
    NT_VALUE_DICT,     /* id of a node */
    NT_VALUE_RECORD,   /* kind << 32 | id, as the visitor gave it */
    NT_VALUE_SEQUENCE, /* id of a list of records, as the visitor gave it */
    NT_VALUE_OPAQUE,   /* bytes or a set: read over, never used */
} nt_value_tag;

static inline nt_value
nt_value_make(nt_value_tag tag, uint64_t payload)
{
    return payload << 4 | (uint64_t)tag;
}

static inline nt_value_tag
nt_value_tag_of(nt_value value)
{
    return (nt_value_tag)(value & 15);
}

/* The id (or the bool) of any value but NT_VALUE_INT. */
static inline uint32_t
nt_value_id(nt_value value)
{
    return (uint32_t)(value >> 4);
}

/* The 64 bits in two's complement of an NT_VALUE_INT: the sign is carried down by the
 * arithmetic shift. */
static inline uint64_t
nt_value_int(nt_value value)
{
    return (uint64_t)((int64_t)value >> 4);
}

/* The kind of a record. */
static inline uint32_t
nt_value_kind(nt_value value)
{
    return (uint32_t)(value >> 36);
}

/* Two words: of a dict a key and its value; of a list a value and how many times the
 * run goes on (records with ids counting up are one run); of a tuple an item. */
typedef struct nt_value_pair {
    nt_value first;
    uint64_t second;
} nt_value_pair;

typedef struct nt_values nt_values;

nt_status
nt_values_new(const nt_alloc *alloc, nt_values **out, nt_error *err) NT_CHECKED;
void
nt_values_free(nt_values *values);

/* An integer; `bits` is its low 64 bits in two's complement, `negative` its sign,
 * `fits` whether it is in -2^63 .. 2^64 - 1. */
nt_status
nt_values_integer(nt_values *values, uint64_t bits, bool negative, bool fits,
                  nt_value *out, nt_error *err) NT_CHECKED;
nt_status
nt_values_float(nt_values *values, double real, nt_value *out,
                nt_error *err) NT_CHECKED;

/* An empty container; `tag` is NT_VALUE_TUPLE, _LIST or _DICT. */
nt_status
nt_values_container(nt_values *values, nt_value_tag tag, nt_value *out,
                    nt_error *err) NT_CHECKED;

/* The tuple of `count` items. Equal pairs of integers may be one tuple. */
nt_status
nt_values_tuple(nt_values *values, const nt_value *items, size_t count, nt_value *out,
                nt_error *err) NT_CHECKED;

/* Adds to a list an item (of records `count` that count up from it), or a pair to a
 * dict (equal keys stay; the last one counts). NT_MALFORMED when the container has been
 * exchanged (nt_values_exchange). */
nt_status
nt_values_append(nt_values *values, nt_value list, nt_value item, uint64_t count,
                 nt_error *err) NT_CHECKED;
nt_status
nt_values_set(nt_values *values, nt_value dict, nt_value key, nt_value item,
              nt_error *err) NT_CHECKED;

/* What replaces `value` now: itself, or what its container was exchanged for. */
nt_value
nt_values_resolve(const nt_values *values, nt_value value);

/* From now on `by` replaces `container`, whose contents are given up. */
void
nt_values_exchange(nt_values *values, nt_value container, nt_value by);

/* A mark on the contents that a container has now: they were looked at and are nothing
 * special. Pairs that come behind them do not have it. */
void
nt_values_set_judged(nt_values *values, nt_value container);
/* Whether all of the contents have it (an empty container's do), and how many do. */
bool
nt_values_is_judged(const nt_values *values, nt_value container);
size_t
nt_values_judged_count(const nt_values *values, nt_value container);

/* A mark on the container itself, which stays whatever comes into it: it is one of
 * those of which only so many may be. */
void
nt_values_set_counted(nt_values *values, nt_value container);
bool
nt_values_is_counted(const nt_values *values, nt_value container);

/* The contents of a container that was not exchanged; valid until it changes. */
const nt_value_pair *
nt_values_pairs(const nt_values *values, nt_value container, size_t *count);

/* The value under the string `key` of a dict, resolved; NT_VALUE_ABSENT (0) if there is
 * none or `dict` is not a dict. */
nt_value
nt_values_lookup(const nt_values *values, nt_value dict, uint32_t key);

/* The integer as 64 bits in two's complement; false for what is no integer (a bool is
 * one) or does not fit. */
bool
nt_values_get_integer(const nt_values *values, nt_value value, uint64_t *bits);
double
nt_values_get_float(const nt_values *values, nt_value value);

#endif
