/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records that lie whole in the window, read pair by pair straight into fields: the
 * keys are held against the form of the record before, and nothing becomes a dict.
 */
#include "trace/nt_pickle_fast.h"

#include <string.h>

/* Where the fast way wants the window to reach, so that records seldom straddle. */
#define FAST_WINDOW ((size_t)4096)

typedef struct fast_fields {
    nt_value value[NT_PICKLE_MOST_KEYS];
    uint32_t present;
    nt_fast_pair pairs[NT_PICKLE_MOST_STEPS];
    size_t pair_count;
} fast_fields;

/* Entries from which on their density in the file says how many more there are. */
#define FAST_SAMPLE ((size_t)1 << 16)

/* Entries that the memo is likely to have in all, if the rest of the input has as many
 * a byte; 0 where that is not known. */
static size_t
fast_expect_memo(const nt_pickle *p, size_t count)
{
    const uint64_t offset = nt_source_offset(p->source), total = p->source->total;
    if (count < FAST_SAMPLE || total <= offset || offset == 0) {
        return 0;
    }
    /* By an eighth at least, so that guesses that are too low stay few. */
    const double more = (double)count * ((double)(total - offset) / (double)offset);
    const double least = (double)count / 8;
    const double expected = (double)count + (more > least ? more : least);
    return expected < (double)UINT32_MAX ? (size_t)expected : 0;
}

nt_status
nt_pickle_grow_memo(nt_pickle *p, size_t need)
{
    const size_t expected = fast_expect_memo(p, need);
    size_t bytes;
    if (need > p->memo_capacity && nt_size_mul(expected, sizeof(nt_value), &bytes) &&
        bytes != 0) {
        nt_value *memo = p->alloc.resize(p->alloc.ctx, p->memo,
                                         p->memo_capacity * sizeof(nt_value), bytes);
        if (memo != NULL) {
            p->memo = memo;
            p->memo_capacity = expected;
        }
    }
    return nt_grow(&p->alloc, (void **)&p->memo, &p->memo_capacity, need,
                   sizeof(nt_value), p->err);
}

/* SHORT_BINUNICODE or BINUNICODE at *at, with its memo opcode. */
static nt_fast
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
    if ((size_t)(p->limit - next) < NT_FAST_PAIR ||
        (size_t)(p->limit - next) - NT_FAST_PAIR < length) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(NT_FAST_STATUS(nt_pickle_string(p, next, length, out)));
    *at = next + length;
    return nt_pickle_fast_memo(p, at, *out);
}

/* BININT, BININT1, BININT2 or LONG1 of at most 8 bytes at *at. */
static inline nt_fast
fast_integer(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    const uint8_t *next = *at;
    switch (next[0]) {
    case OP_BININT1:
        *out = nt_value_make(NT_VALUE_INT, next[1]);
        *at = next + 2;
        return NT_FAST_DONE;
    case OP_BININT2:
        *out = nt_value_make(NT_VALUE_INT, nt_pickle_u16(next + 1));
        *at = next + 3;
        return NT_FAST_DONE;
    case OP_BININT:
        *out = nt_value_make(NT_VALUE_INT, (uint64_t)(int32_t)nt_pickle_u32(next + 1));
        *at = next + 5;
        return NT_FAST_DONE;
    case OP_LONG1: {
        const size_t count = next[1];
        if (count == 0 || count > 8) {
            return NT_FAST_OTHER;
        }
        *at = next + 2 + count;
        if (NT_LIKELY(count < 8)) {
            const unsigned unused = 64 - 8 * (unsigned)count;
            const uint64_t bits = nt_pickle_u64(next + 2) << unused;
            const int64_t number = (int64_t)bits >> unused;
            *out = nt_value_make(NT_VALUE_INT, (uint64_t)number);
            return NT_FAST_DONE;
        }
        return NT_FAST_STATUS(nt_pickle_long(p, next + 2, count, out));
    }
    default: return NT_FAST_OTHER;
    }
}

/* An integer, or the pair of two that PyTorch writes for a pool id. */
static inline nt_fast
fast_integer_or_pair(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    NT_FAST_TRY(fast_integer(p, at, out));
    if (NT_LIKELY(!nt_pickle_fast_is_integer(**at))) {
        return NT_FAST_DONE;
    }
    nt_value items[2] = {*out};
    NT_FAST_TRY(fast_integer(p, at, &items[1]));
    if (**at != OP_TUPLE2) {
        return NT_FAST_OTHER;
    }
    ++*at;
    NT_FAST_TRY(NT_FAST_STATUS(nt_values_tuple(p->values, items, 2, out, p->err)));
    return nt_pickle_fast_memo(p, at, *out);
}

static nt_fast
fast_dict(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out);

/* One record of the sequence kind: fetched from the memo or written out. */
static nt_fast
fast_element(nt_pickle *p, const uint8_t **at, uint32_t *id)
{
    if ((size_t)(p->limit - *at) < NT_FAST_PAIR) {
        return NT_FAST_OTHER;
    }
    nt_value element;
    if (**at == OP_EMPTY_DICT) {
        NT_FAST_TRY(fast_dict(p, at, true, &element));
    } else {
        NT_FAST_TRY(nt_pickle_fast_fetch(p, at, &element));
    }
    *id = nt_value_id(element);
    return nt_pickle_is_element(p, element) ? NT_FAST_DONE : NT_FAST_OTHER;
}

/* Where a list whose bytes begin so is remembered. */
static inline nt_pickle_seen *
fast_seen(nt_pickle *p, const uint8_t *bytes)
{
    return &p->seen[nt_mix64(nt_pickle_u64(bytes)) % NT_PICKLE_SEEN];
}

/* Whether the items at `bytes`, NT_PICKLE_SEEN_BYTES of them at hand, are those of a
 * list that was read before: the bytes are the same, and what they fetch is. */
static inline bool
fast_is_seen(const nt_pickle *p, const nt_pickle_seen *seen, const uint8_t *bytes)
{
    uint64_t differs = 0;
    size_t i = 0;
    if (seen->generation != p->generation) {
        return false;
    }
    for (; i + 8 <= seen->length; i += 8) {
        differs |= nt_pickle_u64(bytes + i) ^ nt_pickle_u64(seen->bytes + i);
    }
    const uint64_t tail = nt_pickle_u64(bytes + i) ^ nt_pickle_u64(seen->bytes + i);
    return (differs | (tail & seen->tail_mask)) == 0;
}

/* Remembers a list of fetched items from `bytes` up to `end`, if it is not too long. */
static void
fast_remember(nt_pickle *p, const uint8_t *bytes, const uint8_t *end, nt_value sequence)
{
    const size_t length = (size_t)(end - bytes), tail = length % 8;
    if (length > NT_PICKLE_SEEN_BYTES - 8) {
        return;
    }
    nt_pickle_seen *seen = fast_seen(p, bytes);
    seen->generation = p->generation;
    seen->sequence = sequence;
    seen->length = (uint8_t)length;
    seen->tail_mask = nt_pickle_low_bytes(tail);
    memcpy(seen->bytes, bytes, length);
}

/* The items of a list at *at, all of them records of the sequence kind, behind its
 * mark if it has one, and what appends them. */
static nt_fast
fast_items(nt_pickle *p, const uint8_t **at, bool marked, nt_value *out)
{
    const uint8_t *start = *at;
    bool fetched = marked;
    size_t count = 0;
    do {
        uint32_t id;
        fetched = fetched && **at != OP_EMPTY_DICT;
        NT_FAST_TRY(fast_element(p, at, &id));
        if (*at >= p->limit) {
            return NT_FAST_OTHER;
        }
        if (NT_UNLIKELY(count == p->scratch_capacity)) {
            NT_FAST_TRY(NT_FAST_STATUS(nt_pickle_reserve_scratch(p, count + 1)));
        }
        p->scratch[count++] = id;
    } while (marked && **at != OP_APPENDS);
    /* Without a mark the one item must be appended; else it was a pair's key. */
    if (!marked && **at != OP_APPEND) {
        return NT_FAST_OTHER;
    }
    ++*at;
    NT_FAST_TRY(NT_FAST_STATUS(nt_pickle_emit_sequence(p, count, out)));
    if (fetched) {
        fast_remember(p, start, *at, *out);
    }
    return NT_FAST_DONE;
}

/* A new list at *at whose items are records of the sequence kind. */
static nt_fast
fast_list(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    ++*at;
    const size_t index = p->memo_count;
    NT_FAST_TRY(nt_pickle_fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
    const bool memoized = p->memo_count != index;
    const bool marked = **at == OP_MARK;
    *at += marked;
    const nt_pickle_seen *seen = fast_seen(p, *at);
    if (NT_LIKELY(marked && (size_t)(p->limit - *at) >= NT_PICKLE_SEEN_BYTES &&
                  fast_is_seen(p, seen, *at))) {
        *out = seen->sequence;
        *at += seen->length;
    } else {
        NT_FAST_TRY(fast_items(p, at, marked, out));
    }
    if (memoized) {
        p->memo[index] = *out;
    }
    return NT_FAST_DONE;
}

nt_fast
nt_pickle_fast_value(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out)
{
    /* One by one: the processor foresees this better than a jump table. */
    const uint8_t opcode = **at;
    if (opcode == OP_BINGET || opcode == OP_LONG_BINGET) {
        return nt_pickle_fast_fetch(p, at, out);
    }
    if (nt_pickle_fast_is_integer(opcode)) {
        return fast_integer_or_pair(p, at, out);
    }
    if (opcode == OP_EMPTY_LIST && !nested) {
        return fast_list(p, at, out);
    }
    if (opcode == OP_BINUNICODE || opcode == OP_SHORT_BINUNICODE) {
        return fast_string(p, at, out);
    }
    if (opcode == OP_NONE) {
        ++*at;
        *out = nt_value_make(NT_VALUE_NONE, 0);
        return NT_FAST_DONE;
    }
    return NT_FAST_OTHER;
}

/* The key of a pair: as the step says, or decoded, and the step learns it. */
static inline nt_fast
fast_key(nt_pickle *p, const uint8_t **at, nt_pickle_step *step)
{
    const uint64_t bytes = nt_pickle_u64(*at);
    if (NT_LIKELY(step->key_mask != 0 && (bytes & step->key_mask) == step->key_bytes)) {
        *at += step->key_length;
        return NT_FAST_DONE;
    }
    const uint8_t *start = *at;
    nt_value key;
    const bool fetched = *start != OP_SHORT_BINUNICODE && *start != OP_BINUNICODE;
    NT_FAST_TRY(fetched ? nt_pickle_fast_fetch(p, at, &key) : fast_string(p, at, &key));
    if (nt_value_tag_of(key) != NT_VALUE_STRING) {
        return NT_FAST_OTHER;
    }
    step->field = nt_value_id(key);
    step->key_length = (uint8_t)(fetched ? *at - start : 0);
    /* A fetching opcode is two or five bytes long; a key written out is not kept. */
    step->key_mask = fetched ? ((uint64_t)1 << 8 * step->key_length) - 1 : 0;
    step->key_bytes = bytes & step->key_mask;
    step->text_mask = 0;
    return NT_FAST_DONE;
}

/* A string as value: the one that the step saw last, or decoded. */
static inline nt_fast
fast_text(nt_pickle *p, const uint8_t **at, nt_pickle_step *step, nt_value *out)
{
    const uint64_t bytes = nt_pickle_u64(*at);
    if (NT_LIKELY(step->text_mask != 0 &&
                  (bytes & step->text_mask) == step->text_bytes)) {
        *at += step->text_length;
        *out = step->text;
        return nt_pickle_fast_memo(p, at, *out);
    }
    const uint8_t *start = *at;
    NT_FAST_TRY(fast_string(p, at, out));
    /* Opcode, length and text are kept where they fit one word. */
    if (start[0] == OP_SHORT_BINUNICODE && start[1] <= 6) {
        step->text_length = (uint8_t)(2 + start[1]);
        step->text_mask = UINT64_MAX >> 8 * (8 - step->text_length);
        step->text_bytes = bytes & step->text_mask;
        step->text = *out;
    }
    return NT_FAST_DONE;
}

/* The pairs of a dict up to SETITEMS. */
static inline nt_fast
fast_pairs(nt_pickle *p, const uint8_t **cursor, bool nested, fast_fields *fields)
{
    const uint8_t *at = *cursor;
    const size_t key_count = p->visitor->key_count;
    nt_pickle_step *step = p->steps[nested];
    nt_pickle_step *const last = step + NT_PICKLE_MOST_STEPS - 1;
    uint32_t present = 0;
    fields->pair_count = 0;
    memset(fields->value, 0, key_count * sizeof(nt_value)); /* NT_VALUE_ABSENT */
    while (*at != OP_SETITEMS) {
        nt_value value;
        if (NT_UNLIKELY((size_t)(p->limit - at) < NT_FAST_PAIR)) {
            return NT_FAST_OTHER;
        }
        const uint8_t *key = at;
        NT_FAST_TRY(fast_key(p, &at, step));
        const uint8_t *start = at;
        if (*at == OP_SHORT_BINUNICODE) {
            NT_FAST_TRY(fast_text(p, &at, step, &value));
        } else {
            NT_FAST_TRY(nt_pickle_fast_value(p, &at, nested, &value));
        }
        if (NT_LIKELY(step->field < key_count)) {
            fields->value[step->field] = value;
            present |= (uint32_t)1 << step->field;
        }
        if (NT_UNLIKELY(at >= p->limit)) {
            return NT_FAST_OTHER;
        }
        fields->pairs[step - p->steps[nested]] =
            (nt_fast_pair){key, start, at, value, step->field};
        fields->pair_count++;
        step += step != last;
    }
    fields->present = present;
    *cursor = at + 1;
    return NT_FAST_DONE;
}

/* EMPTY_DICT, memo, MARK, pairs, SETITEMS: a record. */
static nt_fast
fast_dict(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out)
{
    const uint8_t *start = (*at)++;
    const size_t index = p->memo_count;
    NT_FAST_TRY(nt_pickle_fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
    const bool memoized = p->memo_count != index;
    if (**at != OP_MARK) {
        return NT_FAST_OTHER;
    }
    ++*at;
    fast_fields fields;
    NT_FAST_TRY(fast_pairs(p, at, nested, &fields));
    if (!nt_pickle_fast_is_whole(p, *at)) {
        return NT_FAST_OTHER;
    }
    const uint32_t kind = nt_pickle_record_kind(p, fields.present);
    if (kind == NT_NONE || (nested && kind != p->visitor->sequence_kind)) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(NT_FAST_STATUS(
        nt_pickle_emit_record(p, kind, fields.value, fields.present, out)));
    if (memoized) {
        p->memo[index] = *out;
    }
    if (!nested && fields.pair_count <= NT_PICKLE_MOST_STEPS) {
        nt_pickle_template_learn(p, start, kind, fields.pairs, fields.pair_count);
    }
    return NT_FAST_DONE;
}

/* One record at source->next, or the machine as it was. */
static nt_fast
fast_record(nt_pickle *p)
{
    const size_t memo_count = p->memo_count, memoized = p->memoized;
    const uint8_t *at = p->source->next;
    nt_value record;
    nt_fast outcome = nt_pickle_template_read(p, &at, &record);
    if (outcome == NT_FAST_OTHER) {
        /* Lists seen on the way may have fetched what is cut off the memo. */
        p->generation += p->memo_count != memo_count;
        p->memo_count = memo_count;
        p->memoized = memoized;
        at = p->source->next;
        outcome = fast_dict(p, &at, false, &record);
    }
    if (outcome == NT_FAST_DONE) {
        p->source->next = at;
        return NT_FAST_STATUS(nt_pickle_push(p, record));
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
        if ((size_t)(p->limit - p->source->next) < NT_FAST_PAIR ||
            *p->source->next != OP_EMPTY_DICT) {
            return NT_OK;
        }
        p->opcode_offset = nt_source_offset(p->source);
        const nt_fast outcome = fast_record(p);
        if (outcome == NT_FAST_FAILED) {
            return p->err->status;
        }
        if (outcome == NT_FAST_OTHER) {
            return NT_OK;
        }
        *done = true;
    }
}
