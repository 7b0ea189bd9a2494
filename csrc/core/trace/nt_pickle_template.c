/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole records held against one that was read before. Most bytes of an event are those
 * of the event before it: opcodes, keys, strings that stay. They are compared a word at
 * a time, and only what stands between them is decoded.
 */
#include <string.h>

#include "trace/nt_pickle_fast.h"

/* The longest string that is taken for one that stays. */
#define TEMPLATE_TEXT 16

/* Two words at a time, where the compiler has such. */
#if defined(__GNUC__)
typedef uint64_t template_words __attribute__((vector_size(16)));
#define TEMPLATE_ARE_ZERO(words) (((words)[0] | (words)[1]) == 0)
#else
typedef uint64_t template_words;
#define TEMPLATE_ARE_ZERO(words) ((words) == 0)
#endif

static inline template_words
template_load(const uint8_t *at)
{
    template_words words;
    memcpy(&words, at, sizeof words);
    return words;
}

/* Whether the bytes at `at`, as many pairs of words as the part has, are the part's. */
static inline bool
template_matches(const nt_pickle_template *t, const nt_pickle_part *part,
                 const uint8_t *at)
{
    const uint8_t *bytes = t->bytes + part->first;
    const uint8_t *const end = bytes + part->padded;
    const ptrdiff_t masks = t->masks - t->bytes;
    template_words differs = template_load(t->masks);
    differs ^= differs;
    for (; bytes != end; bytes += sizeof differs, at += sizeof differs) {
        differs |=
            (template_load(at) ^ template_load(bytes)) & template_load(bytes + masks);
    }
    return TEMPLATE_ARE_ZERO(differs);
}

/* Bytes of a hole in a part at `at`. */
static inline uint64_t
template_look(const nt_pickle_hole *hole, const uint8_t *at)
{
    return nt_pickle_u64(at + hole->at) & hole->mask;
}

/* Decodes the holes of a part that matches at `at`, and sets the memo entries. */
static inline bool
template_fill(nt_pickle *p, nt_pickle_template *t, const nt_pickle_part *part,
              const uint8_t *at)
{
    const nt_pickle_hole *hole = &t->holes[NT_HOLE_NUMBER][part->holes[NT_HOLE_NUMBER]];
    const nt_pickle_hole *end = hole + part->hole_count[NT_HOLE_NUMBER];
    nt_value *const memo = p->memo;
    size_t memo_count = p->memo_count;
    bool fits = true;
    for (; hole != end; hole++) {
        const uint64_t number = template_look(hole, at) ^ hole->aside;
        t->fields[hole->field] = nt_value_make(NT_VALUE_INT, number - hole->aside);
    }
    hole = &t->holes[NT_HOLE_FETCH][part->holes[NT_HOLE_FETCH]];
    end = hole + part->hole_count[NT_HOLE_FETCH];
    for (; hole != end; hole++) {
        const uint64_t index = template_look(hole, at);
        const nt_value value = index < memo_count ? memo[index] : NT_VALUE_ABSENT;
        fits &= nt_value_tag_of(value) == NT_VALUE_STRING;
        t->fields[hole->field] = value;
    }
    hole = &t->holes[NT_HOLE_PUT][part->holes[NT_HOLE_PUT]];
    end = hole + part->hole_count[NT_HOLE_PUT];
    for (; hole != end; hole++) {
        fits &= hole->mask == 0 || template_look(hole, at) == memo_count;
        memo[memo_count++] = hole->aside;
    }
    p->memoized += memo_count - p->memo_count;
    p->memo_count = memo_count;
    return fits;
}

/* A record of form `t` at *at. The first part matches; *at is behind the last one then,
 * and the memo has its entries, the record's own apart. */
static nt_fast
template_read_parts(nt_pickle *p, nt_pickle_template *t, const uint8_t **at)
{
    const nt_pickle_part *part = t->parts;
    for (size_t left = t->part_count;; part++) {
        /* Room for each part anew: the value before it may have taken what there was.
         */
        const size_t added = part->hole_count[NT_HOLE_PUT];
        if (NT_UNLIKELY(p->memo_capacity - p->memo_count < added)) {
            NT_FAST_TRY(NT_FAST_STATUS(nt_pickle_grow_memo(p, p->memo_count + added)));
        }
        if (!template_fill(p, t, part, *at)) {
            return NT_FAST_OTHER;
        }
        *at += part->length;
        if (--left == 0) {
            return NT_FAST_DONE;
        }
        NT_FAST_TRY(nt_pickle_fast_value(p, at, false, &t->fields[part->open_field]));
        const size_t need = (size_t)part[1].padded + NT_FAST_PAIR;
        if (*at >= p->limit || (size_t)(p->limit - *at) < need ||
            !template_matches(t, &part[1], *at)) {
            return NT_FAST_OTHER;
        }
    }
}

/* Whether a record at `at` begins as those of form `t` do. */
static inline bool
template_begins(const nt_pickle *p, const nt_pickle_template *t, const uint8_t *at)
{
    const size_t need = (size_t)t->parts[0].padded + NT_FAST_PAIR;
    return (size_t)(p->limit - at) >= need && template_matches(t, &t->parts[0], at);
}

/* The template that a record at `at` begins like, or NULL: first of all the one that
 * came behind the last record's last time. */
static inline nt_pickle_template *
template_choose(nt_pickle *p, const uint8_t *at)
{
    if (p->template_count == 0) {
        return NULL;
    }
    nt_pickle_template *const last = &p->templates[p->template_last];
    nt_pickle_template *t = &p->templates[last->next];
    if (NT_LIKELY(last->next < p->template_count && template_begins(p, t, at))) {
        p->template_last = last->next;
        return t;
    }
    for (size_t i = 0; i < p->template_count; i++) {
        t = &p->templates[i];
        if (i != last->next && template_begins(p, t, at)) {
            last->next = (uint8_t)i;
            p->template_last = i;
            return t;
        }
    }
    return NULL;
}

nt_fast
nt_pickle_template_read(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    nt_pickle_template *t = template_choose(p, *at);
    if (t == NULL ||
        (t->hole_count[NT_HOLE_PUT] != 0 && p->memoized != p->memo_count)) {
        return NT_FAST_OTHER;
    }
    const size_t index = p->memo_count;
    NT_FAST_TRY(template_read_parts(p, t, at));
    if (!nt_pickle_fast_is_whole(p, *at)) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(
        NT_FAST_STATUS(nt_pickle_emit_record(p, t->kind, t->fields, t->present, out)));
    if (t->is_memoized) {
        p->memo[index] = *out;
    }
    return NT_FAST_DONE;
}

/* Learning a form ---------------------------------------------------------- */

typedef struct learner {
    const nt_pickle *p;
    nt_pickle_template *t;
    const uint8_t *at; /* what is looked at next */
} learner;

static nt_pickle_part *
learner_part(learner *l)
{
    return &l->t->parts[l->t->part_count - 1];
}

/* The next `count` bytes stand (mask 0xff) or differ (mask 0). */
static bool
learner_take(learner *l, size_t count, uint8_t mask)
{
    nt_pickle_part *part = learner_part(l);
    const size_t first = (size_t)part->first + part->length;
    if (count > sizeof l->t->bytes - first) {
        return false;
    }
    memcpy(l->t->bytes + first, l->at, count);
    memset(l->t->masks + first, mask, count);
    l->at += count;
    part->length = (uint8_t)(part->length + count);
    part->padded = (uint8_t)((part->length + 15) / 16 * 16);
    return true;
}

/* `rest` bytes that stand, then a hole of `count` bytes, seven at most. */
static bool
learner_hole(learner *l, nt_pickle_hole_kind kind, nt_pickle_hole hole, size_t rest,
             size_t count)
{
    const size_t number = l->t->hole_count[kind];
    if (number == NT_PICKLE_HOLES || !learner_take(l, rest, 0xff)) {
        return false;
    }
    hole.at = learner_part(l)->length;
    hole.mask = ((uint64_t)1 << 8 * count) - 1;
    l->t->holes[kind][number] = hole;
    l->t->hole_count[kind]++;
    learner_part(l)->hole_count[kind]++;
    return learner_take(l, count, 0);
}

/* What puts `constant` into the memo, if the next opcode does. */
static bool
learner_memo(learner *l, nt_value constant)
{
    const nt_pickle_hole hole = {.aside = constant};
    switch (*l->at) {
    case OP_MEMOIZE: return learner_hole(l, NT_HOLE_PUT, hole, 1, 0);
    case OP_BINPUT: return learner_hole(l, NT_HOLE_PUT, hole, 1, 1);
    case OP_LONG_BINPUT: return learner_hole(l, NT_HOLE_PUT, hole, 1, 4);
    default: return true;
    }
}

/* An integer, or a pair of two, which stands. */
static bool
learner_integer(learner *l, const nt_fast_pair *pair, uint8_t field, nt_value value)
{
    if (nt_value_tag_of(value) == NT_VALUE_TUPLE) {
        /* TUPLE2 is behind two integers, whose bytes may be anything. */
        const size_t first = nt_pickle_fast_width(l->at);
        const size_t both = first + nt_pickle_fast_width(l->at + first);
        return learner_take(l, both + 1, 0xff) && learner_memo(l, value);
    }
    const size_t head = *l->at == OP_LONG1 ? 2 : 1;
    const size_t width = (size_t)(pair->end - pair->value) - head;
    const bool is_signed = *l->at == OP_BININT || *l->at == OP_LONG1;
    const nt_pickle_hole hole = {
        .aside = is_signed ? (uint64_t)1 << (8 * width - 1) : 0,
        .field = field,
    };
    return width < 8 && learner_hole(l, NT_HOLE_NUMBER, hole, head, width);
}

/* A value of any form: a new part begins behind it. */
static bool
learner_open(learner *l, const nt_fast_pair *pair, uint8_t field)
{
    nt_pickle_part *part = learner_part(l);
    if (l->t->part_count == NT_PICKLE_PARTS) {
        return false;
    }
    part->open_field = field;
    l->t->part_count++;
    part[1] = (nt_pickle_part){.first = (uint8_t)(part->first + part->padded)};
    memcpy(part[1].holes, l->t->hole_count, sizeof part[1].holes);
    l->at = pair->end;
    return true;
}

/* A value that is fetched or written out. */
static bool
learner_value(learner *l, const nt_fast_pair *pair, uint8_t field, nt_value value)
{
    const bool is_string = nt_value_tag_of(value) == NT_VALUE_STRING;
    const nt_pickle_hole hole = {.field = field};
    switch (*l->at) {
    case OP_BINGET:
    case OP_LONG_BINGET:
        return is_string ? learner_hole(l, NT_HOLE_FETCH, hole, 1,
                                        (size_t)(pair->end - pair->value) - 1)
                         : learner_open(l, pair, field);
    case OP_BININT1:
    case OP_BININT2:
    case OP_BININT:
    case OP_LONG1: return learner_integer(l, pair, field, value);
    case OP_NONE: return learner_take(l, 1, 0xff);
    case OP_SHORT_BINUNICODE:
        if (l->at[1] <= TEMPLATE_TEXT) {
            return learner_take(l, (size_t)2 + l->at[1], 0xff) &&
                   learner_memo(l, value);
        }
        return learner_open(l, pair, field);
    default: return learner_open(l, pair, field);
    }
}

static bool
learner_pair(learner *l, const nt_fast_pair *pair)
{
    const bool known = pair->field < l->p->visitor->key_count;
    const uint8_t field = known ? (uint8_t)pair->field : NT_PICKLE_MOST_KEYS;
    /* Of equal keys the last one counts, which a hole might be in front of. */
    if ((*pair->key != OP_BINGET && *pair->key != OP_LONG_BINGET) ||
        (known && (l->t->present >> field & 1) != 0) ||
        !learner_take(l, (size_t)(pair->value - pair->key), 0xff)) {
        return false;
    }
    l->t->fields[field] = pair->is;
    l->t->present |= known ? (uint32_t)1 << field : 0;
    return learner_value(l, pair, field, pair->is) && l->at == pair->end;
}

static bool
learner_record(learner *l, const nt_fast_pair *pairs, size_t count)
{
    if (!learner_take(l, 1, 0xff) ||
        !learner_memo(l, nt_value_make(NT_VALUE_NONE, 0)) ||
        !learner_take(l, 1, 0xff)) {
        return false;
    }
    l->t->is_memoized = l->t->hole_count[NT_HOLE_PUT] != 0;
    for (size_t i = 0; i < count; i++) {
        if (!learner_pair(l, &pairs[i])) {
            return false;
        }
    }
    return learner_take(l, 1, 0xff);
}

void
nt_pickle_template_learn(nt_pickle *p, const uint8_t *start, uint32_t kind,
                         const nt_fast_pair *pairs, size_t count)
{
    const bool spare = p->template_count < NT_PICKLE_TEMPLATES;
    const size_t number = spare ? p->template_count : p->template_oldest;
    nt_pickle_template *t = &p->templates[number];
    /* Nobody looks at it until it is whole. */
    p->template_count = spare ? number : 0;
    memset(t->masks, 0, sizeof t->masks);
    t->parts[0] = (nt_pickle_part){0};
    t->part_count = 1;
    t->kind = kind;
    t->present = 0;
    memset(t->fields, 0, sizeof t->fields); /* NT_VALUE_ABSENT */
    memset(t->hole_count, 0, sizeof t->hole_count);
    t->next = (uint8_t)number;
    learner l = {.p = p, .t = t, .at = start};
    if (!learner_record(&l, pairs, count)) {
        return;
    }
    p->template_count = spare ? number + 1 : NT_PICKLE_TEMPLATES;
    p->template_oldest = spare ? 0 : (number + 1) % NT_PICKLE_TEMPLATES;
    p->templates[p->template_last].next = (uint8_t)number;
    p->template_last = number;
}
