/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dicts that are records. Opcode by opcode they arrive as ordinary dicts and are
 * turned into records when they are placed. A trace repeats one form a million
 * times, though; `fast` functions read that form straight from the window into
 * fields. They look first and act last: on anything unexpected they leave the
 * machine as it was (but for interned strings and frames, which do no harm).
 */
#include <string.h>

#include "trace/nt_pickle.h"
#include "trace/nt_pickle_machine.h"

/* A key and a value of fixed size with their memo opcodes need less than this. */
#define FAST_PAIR 48

/* Bytes looked at behind a record: two opcodes with arguments of four bytes. */
#define FAST_AHEAD 10

/* Where the fast way wants the window to reach, so that records seldom straddle. */
#define FAST_WINDOW ((size_t)4096)

/* Calls the visitor for a record; *out stands for it. */
static nt_status
record_emit(nt_pickle *p, uint32_t kind, const nt_value *fields, uint32_t present,
            nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->record(p->visitor->ctx, kind, fields, present, &id, p->err));
    *out = nt_value_make(NT_VALUE_RECORD, (uint64_t)kind << 32 | id);
    return NT_OK;
}

/* The kind that a dict with the `present` keys is, or NT_NONE. */
static uint32_t
record_kind(const nt_pickle *p, uint32_t present)
{
    for (uint32_t kind = 0; kind < p->visitor->kind_count; kind++) {
        if ((present >> p->visitor->tags[kind] & 1) != 0) {
            return kind;
        }
    }
    return NT_NONE;
}

/* Whether one of the pairs from number `first` on has a key that makes a record. */
static bool
record_has_tag(const nt_pickle *p, const nt_value_pair *pairs, size_t first,
               size_t count)
{
    for (size_t i = first; i < count; i++) {
        for (size_t kind = 0; kind < p->visitor->kind_count; kind++) {
            const uint32_t tag = p->visitor->tags[kind];
            if (pairs[i].first == nt_value_make(NT_VALUE_STRING, tag)) {
                return true;
            }
        }
    }
    return false;
}

static nt_status
record_place_dict(nt_pickle *p, nt_value dict, nt_value *out)
{
    nt_value fields[NT_PICKLE_MOST_KEYS];
    uint32_t present = 0;
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(p->values, dict, &count);
    if (!record_has_tag(p, pairs, nt_values_judged_count(p->values, dict), count)) {
        nt_values_set_judged(p->values, dict);
        return NT_OK;
    }
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = nt_value_id(pairs[i].first);
        if (nt_value_tag_of(pairs[i].first) == NT_VALUE_STRING &&
            key < p->visitor->key_count) {
            fields[key] = nt_values_resolve(p->values, pairs[i].second);
            present |= (uint32_t)1 << key;
        }
    }
    NT_TRY(record_emit(p, record_kind(p, present), fields, present, out));
    nt_values_exchange(p->values, dict, *out);
    return NT_OK;
}

static nt_status
record_emit_sequence(nt_pickle *p, size_t count, nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->sequence(p->visitor->ctx, p->scratch, count, &id, p->err));
    *out = nt_value_make(NT_VALUE_SEQUENCE, id);
    return NT_OK;
}

static bool
record_is_element(const nt_pickle *p, nt_value value)
{
    return nt_value_tag_of(value) == NT_VALUE_RECORD &&
           nt_value_kind(value) == p->visitor->sequence_kind;
}

static nt_status
record_reserve_scratch(nt_pickle *p, size_t count)
{
    return nt_grow(&p->alloc, (void **)&p->scratch, &p->scratch_capacity, count,
                   sizeof(uint32_t), p->err);
}

static nt_status
record_place_list(nt_pickle *p, nt_value list, nt_value *out)
{
    size_t runs, count = 0;
    const nt_value_pair *pairs = nt_values_pairs(p->values, list, &runs);
    for (size_t i = 0; i < runs; i++) {
        if (!record_is_element(p, pairs[i].first)) {
            runs = 0;
        } else {
            count += (size_t)pairs[i].second;
        }
    }
    if (runs == 0) {
        nt_values_set_judged(p->values, list);
        return NT_OK;
    }
    NT_TRY(record_reserve_scratch(p, count));
    size_t filled = 0;
    for (size_t i = 0; i < runs; i++) {
        for (uint64_t step = 0; step < pairs[i].second; step++) {
            p->scratch[filled++] = nt_value_id(pairs[i].first) + (uint32_t)step;
        }
    }
    NT_TRY(record_emit_sequence(p, count, out));
    nt_values_exchange(p->values, list, *out);
    return NT_OK;
}

nt_status
nt_pickle_place(nt_pickle *p, nt_value value, nt_value *out)
{
    value = nt_values_resolve(p->values, value);
    *out = value;
    const nt_value_tag tag = nt_value_tag_of(value);
    if ((tag != NT_VALUE_DICT && tag != NT_VALUE_LIST) ||
        nt_values_is_judged(p->values, value)) {
        return NT_OK;
    }
    return tag == NT_VALUE_DICT ? record_place_dict(p, value, out)
                                : record_place_list(p, value, out);
}

/* Whether what comes next is another dict or the end of a list, a frame's head
 * aside: then the dict on top of the stack is whole. */
static nt_status
record_peek_item_end(nt_pickle *p, bool *ends)
{
    const size_t ahead = 10; /* FRAME, its length, and an opcode */
    if ((size_t)(p->source->end - p->source->next) < ahead) {
        NT_TRY(nt_source_fill(p->source, ahead, p->err));
        nt_pickle_set_limit(p);
    }
    const uint8_t *at = p->source->next;
    const size_t at_hand = (size_t)(p->source->end - at);
    const size_t skip = at_hand >= ahead && at[0] == OP_FRAME ? ahead - 1 : 0;
    *ends = at_hand > skip && (at[skip] == OP_EMPTY_DICT || at[skip] == OP_APPENDS);
    return NT_OK;
}

nt_status
nt_pickle_settle(nt_pickle *p)
{
    bool ends;
    NT_TRY(record_peek_item_end(p, &ends));
    nt_value *const top = &p->stack[p->stack_count - 1];
    return ends ? nt_pickle_place(p, *top, top) : NT_OK;
}

/* The fast way ------------------------------------------------------------ */

/* What a fast function came to: it read its piece, or the piece is not of the
 * expected form, or the machine failed (p->err tells). */
typedef enum fast_outcome { FAST_DONE, FAST_OTHER, FAST_FAILED } fast_outcome;

/* Leaves a fast function unless the piece was read. */
#define FAST_TRY(call)                                                                 \
    do {                                                                               \
        const fast_outcome fast_try_outcome = (call);                                  \
        if (NT_UNLIKELY(fast_try_outcome != FAST_DONE)) {                              \
            return fast_try_outcome;                                                   \
        }                                                                              \
    } while (0)

#define FAST_STATUS(call) ((call) == NT_OK ? FAST_DONE : FAST_FAILED)

typedef struct fast_fields {
    nt_value value[NT_PICKLE_MOST_KEYS];
    uint32_t present;
} fast_fields;

/*
 * A memo opcode, if one is at *at, stores `value`. Only the entry next in line:
 * then taking back is cutting the memo to its old length.
 */
static inline fast_outcome
fast_memo(nt_pickle *p, const uint8_t **at, nt_value value)
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
        return FAST_DONE;
    }
    if (index != p->memo_count || p->memoized != p->memo_count) {
        return FAST_OTHER;
    }
    if (NT_UNLIKELY(index == p->memo_capacity)) {
        FAST_TRY(FAST_STATUS(nt_grow(&p->alloc, (void **)&p->memo, &p->memo_capacity,
                                     index + 1, sizeof(nt_value), p->err)));
    }
    p->memo[index] = value;
    p->memo_count = index + 1;
    p->memoized = index + 1;
    *at = next;
    return FAST_DONE;
}

/* What BINGET or LONG_BINGET at *at fetches; FAST_OTHER for other opcodes. */
static inline fast_outcome
fast_fetch(nt_pickle *p, const uint8_t **at, nt_value *out)
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
        return FAST_OTHER;
    }
    if (NT_UNLIKELY(index >= p->memo_count || p->memo[index] == NT_VALUE_ABSENT)) {
        return FAST_OTHER;
    }
    const nt_value value = p->memo[index];
    const nt_value_tag tag = nt_value_tag_of(value);
    if (NT_UNLIKELY(tag == NT_VALUE_LIST || tag == NT_VALUE_DICT)) {
        return FAST_STATUS(nt_pickle_place(p, value, out));
    }
    *out = value;
    return FAST_DONE;
}

/* SHORT_BINUNICODE or BINUNICODE at *at, with its memo opcode. */
static fast_outcome
fast_string(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    const uint8_t *next = *at;
    size_t length;
    if (next[0] == OP_SHORT_BINUNICODE) {
        length = next[1];
        next += 2;
    } else {
        length = nt_pickle_u32(next + 1);
        next += 5;
    }
    /* Behind the string a pair's worth of bytes, for whatever follows it. */
    if ((size_t)(p->limit - next) < FAST_PAIR ||
        (size_t)(p->limit - next) - FAST_PAIR < length) {
        return FAST_OTHER;
    }
    FAST_TRY(FAST_STATUS(nt_pickle_string(p, next, length, out)));
    *at = next + length;
    return fast_memo(p, at, *out);
}

/* BININT, BININT1, BININT2 or LONG1 of at most 8 bytes at *at. */
static inline fast_outcome
fast_integer(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    const uint8_t *next = *at;
    switch (next[0]) {
    case OP_BININT1:
        *out = nt_value_make(NT_VALUE_INT, next[1]);
        *at = next + 2;
        return FAST_DONE;
    case OP_BININT2:
        *out = nt_value_make(NT_VALUE_INT, nt_pickle_u16(next + 1));
        *at = next + 3;
        return FAST_DONE;
    case OP_BININT:
        *out = nt_value_make(NT_VALUE_INT, (uint64_t)(int32_t)nt_pickle_u32(next + 1));
        *at = next + 5;
        return FAST_DONE;
    case OP_LONG1: {
        const size_t count = next[1];
        if (count == 0 || count > 8) {
            return FAST_OTHER;
        }
        *at = next + 2 + count;
        if (NT_LIKELY(count < 8)) {
            const unsigned unused = 64 - 8 * (unsigned)count;
            const uint64_t bits = nt_pickle_u64(next + 2) << unused;
            const int64_t number = (int64_t)bits >> unused;
            *out = nt_value_make(NT_VALUE_INT, (uint64_t)number);
            return FAST_DONE;
        }
        return FAST_STATUS(nt_pickle_long(p, next + 2, count, out));
    }
    default: return FAST_OTHER;
    }
}

static inline bool
fast_is_integer(uint8_t opcode)
{
    return opcode == OP_BININT1 || opcode == OP_BININT2 || opcode == OP_BININT ||
           opcode == OP_LONG1;
}

/* An integer, or the pair of two that PyTorch writes for a pool id. */
static inline fast_outcome
fast_integer_or_pair(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    FAST_TRY(fast_integer(p, at, out));
    if (NT_LIKELY(!fast_is_integer(**at))) {
        return FAST_DONE;
    }
    nt_value items[2] = {*out};
    FAST_TRY(fast_integer(p, at, &items[1]));
    if (**at != OP_TUPLE2) {
        return FAST_OTHER;
    }
    ++*at;
    FAST_TRY(FAST_STATUS(nt_values_tuple(p->values, items, 2, out, p->err)));
    return fast_memo(p, at, *out);
}

static fast_outcome
fast_dict(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out);

/* One record of the sequence kind: fetched from the memo or written out. */
static fast_outcome
fast_element(nt_pickle *p, const uint8_t **at, uint32_t *id)
{
    if ((size_t)(p->limit - *at) < FAST_PAIR) {
        return FAST_OTHER;
    }
    nt_value element;
    if (**at == OP_EMPTY_DICT) {
        FAST_TRY(fast_dict(p, at, true, &element));
    } else {
        FAST_TRY(fast_fetch(p, at, &element));
    }
    *id = nt_value_id(element);
    return record_is_element(p, element) ? FAST_DONE : FAST_OTHER;
}

/* A new list at *at whose items are records of the sequence kind. */
static fast_outcome
fast_list(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    ++*at;
    const size_t index = p->memo_count;
    FAST_TRY(fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
    const bool memoized = p->memo_count != index;
    const bool marked = **at == OP_MARK;
    *at += marked;
    size_t count = 0;
    do {
        FAST_TRY(FAST_STATUS(record_reserve_scratch(p, count + 1)));
        uint32_t id;
        FAST_TRY(fast_element(p, at, &id));
        if (*at >= p->limit) {
            return FAST_OTHER;
        }
        p->scratch[count++] = id;
    } while (marked && **at != OP_APPENDS);
    /* Without a mark the one item must be appended; else it was a pair's key. */
    if (!marked && **at != OP_APPEND) {
        return FAST_OTHER;
    }
    ++*at;
    FAST_TRY(FAST_STATUS(record_emit_sequence(p, count, out)));
    if (memoized) {
        p->memo[index] = *out;
    }
    return FAST_DONE;
}

/* The value of a pair. `nested`: of a record inside a list, which holds no list. */
static inline fast_outcome
fast_value(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out)
{
    /* One by one: the processor foresees this better than a jump table. */
    const uint8_t opcode = **at;
    if (opcode == OP_BINGET || opcode == OP_LONG_BINGET) {
        return fast_fetch(p, at, out);
    }
    if (fast_is_integer(opcode)) {
        return fast_integer_or_pair(p, at, out);
    }
    if (opcode == OP_EMPTY_LIST && !nested) {
        return fast_list(p, at, out);
    }
    if (opcode == OP_BINUNICODE) {
        return fast_string(p, at, out);
    }
    if (opcode == OP_NONE) {
        ++*at;
        *out = nt_value_make(NT_VALUE_NONE, 0);
        return FAST_DONE;
    }
    return FAST_OTHER;
}

/* The key of a pair: as the step says, or decoded, and the step learns it. */
static inline fast_outcome
fast_key(nt_pickle *p, const uint8_t **at, nt_pickle_step *step)
{
    const uint64_t bytes = nt_pickle_u64(*at);
    if (NT_LIKELY(step->key_mask != 0 && (bytes & step->key_mask) == step->key_bytes)) {
        *at += step->key_length;
        return FAST_DONE;
    }
    const uint8_t *start = *at;
    nt_value key;
    const bool fetched = *start != OP_SHORT_BINUNICODE && *start != OP_BINUNICODE;
    FAST_TRY(fetched ? fast_fetch(p, at, &key) : fast_string(p, at, &key));
    if (nt_value_tag_of(key) != NT_VALUE_STRING) {
        return FAST_OTHER;
    }
    step->field = nt_value_id(key);
    step->key_length = (uint8_t)(fetched ? *at - start : 0);
    /* A fetching opcode is two or five bytes long; a key written out is not kept. */
    step->key_mask = fetched ? ((uint64_t)1 << 8 * step->key_length) - 1 : 0;
    step->key_bytes = bytes & step->key_mask;
    step->text_mask = 0;
    return FAST_DONE;
}

/* A string as value: the one that the step saw last, or decoded. */
static inline fast_outcome
fast_text(nt_pickle *p, const uint8_t **at, nt_pickle_step *step, nt_value *out)
{
    const uint64_t bytes = nt_pickle_u64(*at);
    if (NT_LIKELY(step->text_mask != 0 &&
                  (bytes & step->text_mask) == step->text_bytes)) {
        *at += step->text_length;
        *out = step->text;
        return fast_memo(p, at, *out);
    }
    const uint8_t *start = *at;
    FAST_TRY(fast_string(p, at, out));
    /* Opcode, length and text are kept where they fit one word. */
    if (start[0] == OP_SHORT_BINUNICODE && start[1] <= 6) {
        step->text_length = (uint8_t)(2 + start[1]);
        step->text_mask = UINT64_MAX >> 8 * (8 - step->text_length);
        step->text_bytes = bytes & step->text_mask;
        step->text = *out;
    }
    return FAST_DONE;
}

/* The pairs of a dict up to SETITEMS. */
static inline fast_outcome
fast_pairs(nt_pickle *p, const uint8_t **cursor, bool nested, fast_fields *fields)
{
    const uint8_t *at = *cursor;
    const size_t key_count = p->visitor->key_count;
    nt_pickle_step *step = p->steps[nested];
    nt_pickle_step *const last = step + NT_PICKLE_MOST_STEPS - 1;
    uint32_t present = 0;
    while (*at != OP_SETITEMS) {
        nt_value value;
        if (NT_UNLIKELY((size_t)(p->limit - at) < FAST_PAIR)) {
            return FAST_OTHER;
        }
        FAST_TRY(fast_key(p, &at, step));
        if (*at == OP_SHORT_BINUNICODE) {
            FAST_TRY(fast_text(p, &at, step, &value));
        } else {
            FAST_TRY(fast_value(p, &at, nested, &value));
        }
        if (NT_LIKELY(step->field < key_count)) {
            fields->value[step->field] = value;
            present |= (uint32_t)1 << step->field;
        }
        if (NT_UNLIKELY(at >= p->limit)) {
            return FAST_OTHER;
        }
        step += step != last;
    }
    fields->present = present;
    *cursor = at + 1;
    return FAST_DONE;
}

/*
 * Whether the dict before `at` is whole: what follows its SETITEMS, and a memo opcode,
 * is the next item or the end of a list. Anything else might be more pairs for it.
 */
static inline bool
fast_is_whole(const nt_pickle *p, const uint8_t *at)
{
    if (NT_UNLIKELY((size_t)(p->limit - at) < FAST_AHEAD)) {
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

/* EMPTY_DICT, memo, MARK, pairs, SETITEMS: a record. */
static fast_outcome
fast_dict(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out)
{
    ++*at;
    const size_t index = p->memo_count;
    FAST_TRY(fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
    const bool memoized = p->memo_count != index;
    if (**at != OP_MARK) {
        return FAST_OTHER;
    }
    ++*at;
    fast_fields fields;
    FAST_TRY(fast_pairs(p, at, nested, &fields));
    if (!fast_is_whole(p, *at)) {
        return FAST_OTHER;
    }
    const uint32_t kind = record_kind(p, fields.present);
    if (kind == NT_NONE || (nested && kind != p->visitor->sequence_kind)) {
        return FAST_OTHER;
    }
    FAST_TRY(FAST_STATUS(record_emit(p, kind, fields.value, fields.present, out)));
    if (memoized) {
        p->memo[index] = *out;
    }
    return FAST_DONE;
}

/* One record at source->next, or the machine as it was. */
static fast_outcome
fast_record(nt_pickle *p)
{
    const size_t memo_count = p->memo_count, memoized = p->memoized;
    const uint8_t *at = p->source->next;
    nt_value record;
    const fast_outcome outcome = fast_dict(p, &at, false, &record);
    if (outcome == FAST_DONE) {
        p->source->next = at;
        return FAST_STATUS(nt_pickle_push(p, record));
    }
    p->memo_count = memo_count;
    p->memoized = memoized;
    nt_pickle_forget_steps(p);
    return outcome;
}

nt_status
nt_pickle_fast_records(nt_pickle *p, bool *done)
{
    *done = false;
    for (;;) {
        if ((size_t)(p->limit - p->source->next) < FAST_WINDOW) {
            NT_TRY(nt_source_fill(p->source, FAST_WINDOW, p->err));
            nt_pickle_set_limit(p);
        }
        if ((size_t)(p->limit - p->source->next) < FAST_PAIR ||
            *p->source->next != OP_EMPTY_DICT) {
            return NT_OK;
        }
        p->opcode_offset = nt_source_offset(p->source);
        const fast_outcome outcome = fast_record(p);
        if (outcome == FAST_FAILED) {
            return p->err->status;
        }
        if (outcome == FAST_OTHER) {
            return NT_OK;
        }
        *done = true;
    }
}
