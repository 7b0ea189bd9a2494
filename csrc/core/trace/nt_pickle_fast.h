/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fast way through records, shared by nt_pickle_fast.c (pair by pair) and
 * nt_pickle_template.c (whole records that look like one seen before) and by nobody
 * else. Fast functions look first and act last: on anything unexpected they leave the
 * machine as it was, but for interned strings and frames, which do no harm, and for
 * entries at the memo's end, which whoever began cuts off again.
 */
#ifndef NT_PICKLE_FAST_H
#define NT_PICKLE_FAST_H

#include "trace/nt_pickle_machine.h"

/* A key and a value of fixed size with their memo opcodes need less than this. */
#define NT_FAST_PAIR 48

/* Bytes looked at behind a record: two opcodes with arguments of four bytes. */
#define NT_FAST_AHEAD 10

/* What a fast function came to: it read its piece, or the piece is not of the
 * expected form, or the machine failed (p->err says). */
typedef enum nt_fast { NT_FAST_DONE, NT_FAST_OTHER, NT_FAST_FAILED } nt_fast;

/* Leaves a fast function unless the piece was read. */
#define NT_FAST_TRY(call)                                                              \
    do {                                                                               \
        const nt_fast fast_try_outcome = (call);                                       \
        if (NT_UNLIKELY(fast_try_outcome != NT_FAST_DONE)) {                           \
            return fast_try_outcome;                                                   \
        }                                                                              \
    } while (0)

#define NT_FAST_STATUS(call) ((call) == NT_OK ? NT_FAST_DONE : NT_FAST_FAILED)

/*
 * A memo opcode, if one is at *at, stores `value`. Only the entry next in line:
 * then taking back is cutting the memo to its old length.
 */
static inline nt_fast
nt_pickle_fast_memo(nt_pickle *p, const uint8_t **at, nt_value value)
{
    const uint8_t *next = *at;
    size_t index;
    if (next[0] == OP_MEMOIZE) {
        index = p->memoized;
        next += 1;
    } else if (next[0] == OP_BINPUT) {
        index = next[1];
        next += 2;
    } else if (next[0] == OP_LONG_BINPUT) {
        index = nt_pickle_u32(next + 1);
        next += 5;
    } else {
        return NT_FAST_DONE;
    }
    if (index != p->memo_count || p->memoized != p->memo_count) {
        return NT_FAST_OTHER;
    }
    if (NT_UNLIKELY(index == p->memo_capacity)) {
        NT_FAST_TRY(NT_FAST_STATUS(nt_pickle_grow_memo(p, index + 1)));
    }
    p->memo[index] = value;
    p->memo_count = index + 1;
    p->memoized = index + 1;
    *at = next;
    return NT_FAST_DONE;
}

/* What BINGET or LONG_BINGET at *at fetches; NT_FAST_OTHER for other opcodes. */
static inline nt_fast
nt_pickle_fast_fetch(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    const uint8_t *next = *at;
    size_t index;
    if (NT_LIKELY(next[0] == OP_BINGET)) {
        index = next[1];
        *at = next + 2;
    } else if (next[0] == OP_LONG_BINGET) {
        index = nt_pickle_u32(next + 1);
        *at = next + 5;
    } else {
        return NT_FAST_OTHER;
    }
    if (NT_UNLIKELY(index >= p->memo_count || p->memo[index] == NT_VALUE_ABSENT)) {
        return NT_FAST_OTHER;
    }
    const nt_value value = p->memo[index];
    const nt_value_tag tag = nt_value_tag_of(value);
    if (NT_UNLIKELY(tag == NT_VALUE_LIST || tag == NT_VALUE_DICT)) {
        return NT_FAST_STATUS(nt_pickle_place(p, value, out));
    }
    *out = value;
    return NT_FAST_DONE;
}

static inline bool
nt_pickle_fast_is_integer(uint8_t opcode)
{
    return opcode == OP_BININT1 || opcode == OP_BININT2 || opcode == OP_BININT ||
           opcode == OP_LONG1;
}

/* Bytes of the integer opcode at `at`, its argument included. */
static inline size_t
nt_pickle_fast_width(const uint8_t *at)
{
    return at[0] == OP_BININT1   ? 2
           : at[0] == OP_BININT2 ? 3
           : at[0] == OP_BININT  ? 5
                                 : 2 + (size_t)at[1];
}

/* The value of a pair at *at, behind which NT_FAST_PAIR bytes are at hand. `nested`: of
 * a record inside a list, which holds no list. */
nt_fast
nt_pickle_fast_value(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out);

/*
 * Whether the dict before `at` is whole: what follows its SETITEMS, and a memo opcode,
 * is the next item or the end of a list. Anything else might be more pairs for it.
 */
static inline bool
nt_pickle_fast_is_whole(const nt_pickle *p, const uint8_t *at)
{
    if (NT_UNLIKELY((size_t)(p->limit - at) < NT_FAST_AHEAD)) {
        return false;
    }
    at += at[0] == OP_MEMOIZE       ? 1
          : at[0] == OP_BINPUT      ? 2
          : at[0] == OP_LONG_BINPUT ? 5
                                    : 0;
    if (NT_LIKELY(at[0] == OP_EMPTY_DICT || at[0] == OP_APPENDS ||
                  at[0] == OP_APPEND)) {
        return true;
    }
    if (at[0] != OP_BINGET && at[0] != OP_LONG_BINGET) {
        return false;
    }
    const size_t index = at[0] == OP_BINGET ? at[1] : nt_pickle_u32(at + 1);
    return index < p->memo_count && nt_value_tag_of(p->memo[index]) != NT_VALUE_STRING;
}

/* A record at *at that looks like one of the templates. */
nt_fast
nt_pickle_template_read(nt_pickle *p, const uint8_t **at, nt_value *out);

/* A pair of a record that has been read: where its key and value lie, the number of
 * the key among the visitor's or another string id, and what its value is. */
typedef struct nt_fast_pair {
    const uint8_t *key, *value, *end;
    nt_value is;
    uint32_t field;
} nt_fast_pair;

/* Makes a template of the record of kind `kind` at `start`, which has just been read: a
 * dict with a mark and these pairs. Some forms have none. */
void
nt_pickle_template_learn(nt_pickle *p, const uint8_t *start, uint32_t kind,
                         const nt_fast_pair *pairs, size_t count);

#endif
