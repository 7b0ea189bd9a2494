/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libFuzzer changes an input. Bytes changed blindly nearly always end in a pickle
 * that the reader refuses, so most changes keep the pickle whole: numbers and
 * memo references get other values, dicts are put in once more or taken out.
 */
#include <string.h>

#include "nt_fuzz.h"

/* The opcodes that a change looks for. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_EMPTY_DICT = '}',
    OP_SETITEMS = 'u',
    OP_BINGET = 'h',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE = 'X',
};

/* Opcodes of one input that are looked at. */
#define MOST_OPCODES 4096

typedef struct mutation {
    const uint8_t *data;
    uint64_t random;
    size_t count;
    size_t at[MOST_OPCODES + 1]; /* where each opcode begins, and where the last ends */
} mutation;

size_t
LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity);
size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed);

/* A number below `bound`, or 0. */
static size_t
mutate_choose(mutation *m, size_t bound)
{
    m->random += UINT64_C(0x9e3779b97f4a7c15);
    return bound == 0 ? 0 : (size_t)((nt_mix64(m->random) >> 16) % bound);
}

static uint8_t
mutate_opcode(const mutation *m, size_t i)
{
    return m->data[m->at[i]];
}

static uint64_t
mutate_load(const uint8_t *bytes, size_t width)
{
    uint64_t number = 0;
    for (size_t i = width; i-- > 0;) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/* Bytes that stand behind an opcode: of a fixed argument, or of a length. */
static size_t
mutate_argument(uint8_t opcode)
{
    switch (opcode) {
    case OP_BININT1:
    case OP_BINGET:
    case OP_BINPUT:
    case OP_LONG1:
    case OP_SHORT_BINUNICODE:
    case 'C':
    case 0x80: return 1;
    case OP_BININT2: return 2;
    case OP_BININT:
    case OP_BINUNICODE:
    case 'j':
    case OP_LONG_BINPUT:
    case 0x8b:
    case 'B': return 4;
    case OP_FRAME:
    case 0x8d:
    case 0x8e:
    case 0x96:
    case 'G': return 8;
    default: return 0;
    }
}

/* Bytes of the opcode at `bytes` with all of its argument; more than `left` where it
 * is not all there. */
static size_t
mutate_length(const uint8_t *bytes, size_t left)
{
    static const char counted[] = {(char)0x8a, (char)0x8b, (char)0x8c, 'X',       'C',
                                   'B',        (char)0x8d, (char)0x8e, (char)0x96};
    const size_t width = mutate_argument(bytes[0]);
    if (memchr("ILFVgp", bytes[0], 6) != NULL) {
        const uint8_t *end = memchr(bytes, '\n', left);
        return end == NULL ? left + 1 : (size_t)(end - bytes) + 1;
    }
    if (width >= left || memchr(counted, bytes[0], sizeof counted) == NULL) {
        return 1 + width;
    }
    const uint64_t count = mutate_load(bytes + 1, width);
    return count > left ? left + 1 : 1 + width + (size_t)count;
}

/* Finds where the opcodes are, up to STOP or the first that is cut off. */
static void
mutate_scan(mutation *m, size_t size)
{
    size_t at = 0;
    m->count = 0;
    m->at[0] = 0;
    while (at < size && m->count < MOST_OPCODES && m->data[at] != OP_STOP) {
        const size_t length = mutate_length(m->data + at, size - at);
        if (length > size - at) {
            return;
        }
        at += length;
        m->at[++m->count] = at;
    }
}

static bool
mutate_is_number(uint8_t opcode)
{
    return opcode == OP_BININT || opcode == OP_BININT1 || opcode == OP_BININT2 ||
           opcode == OP_LONG1;
}

/* The first opcode from a chance place on, round the end, that is a number (or with
 * `opcode` not 0 that one); `count` where there is none. */
static size_t
mutate_find(mutation *m, uint8_t opcode)
{
    const size_t first = mutate_choose(m, m->count);
    for (size_t i = 0; i < m->count; i++) {
        const size_t at = (first + i) % m->count;
        const uint8_t found = mutate_opcode(m, at);
        if (opcode == 0 ? mutate_is_number(found) : found == opcode) {
            return at;
        }
    }
    return m->count;
}

/* The bytes of a number, behind the opcode and LONG1's length. */
static size_t
mutate_number_at(const mutation *m, size_t i, size_t *width)
{
    const size_t head = mutate_opcode(m, i) == OP_LONG1 ? 2 : 1;
    *width = m->at[i + 1] - m->at[i] - head;
    *width = *width < 8 ? *width : 8;
    return m->at[i] + head;
}

/* A number becomes that of another opcode, or its own, moved by a step that matters
 * to an allocator; or any other. */
static void
mutate_number(mutation *m, uint8_t *data)
{
    static const uint64_t steps[] = {0, 0, 0, 1, 512, 1 << 20, 2 << 20, 20 << 20};
    const size_t target = mutate_find(m, 0);
    if (target == m->count) {
        return;
    }
    size_t width, from_width;
    const size_t from = mutate_number_at(
        m, mutate_choose(m, 2) ? target : mutate_find(m, 0), &from_width);
    uint64_t number = mutate_load(data + from, from_width);
    const uint64_t step = steps[mutate_choose(m, sizeof steps / sizeof *steps)];
    number = mutate_choose(m, 2) ? number + step : number - step;
    if (mutate_choose(m, 8) == 0) {
        number = mutate_choose(m, SIZE_MAX) >> mutate_choose(m, 64);
    }
    const size_t to = mutate_number_at(m, target, &width);
    for (size_t i = 0; i < width; i++) {
        data[to + i] = (uint8_t)(number >> 8 * i);
    }
}

/* A memo reference becomes another that the pickle has. */
static void
mutate_reference(mutation *m, uint8_t *data)
{
    const size_t target = mutate_find(m, OP_BINGET);
    if (target != m->count) {
        data[m->at[target] + 1] = data[m->at[mutate_find(m, OP_BINGET)] + 1];
    }
}

/* One behind the opcode that ends the dict which opcode `first` begins; 0 where the
 * dict is not EMPTY_DICT .. MARK .. SETITEMS. */
static size_t
mutate_dict_end(const mutation *m, size_t first)
{
    size_t depth = 0;
    for (size_t i = first + 1; i < m->count; i++) {
        const uint8_t opcode = mutate_opcode(m, i);
        depth += opcode == OP_MARK;
        if (memchr("uetdl1", opcode, 6) != NULL) {
            if (depth <= 1) {
                return depth == 1 && opcode == OP_SETITEMS ? i + 1 : 0;
            }
            depth--;
        }
    }
    return 0;
}

typedef struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
} buffer;

static bool
mutate_put(buffer *out, const void *bytes, size_t count)
{
    if (count > out->capacity - out->size) {
        return false;
    }
    memcpy(out->bytes + out->size, bytes, count);
    out->size += count;
    return true;
}

/* How opcodes are copied; no way copies a FRAME, whose length would be wrong. */
typedef enum copying {
    COPY_ALL,
    COPY_VALUES, /* nothing is stored: what follows still counts the memo right */
    COPY_MEMO,   /* None in place of what was stored, and nothing else */
} copying;

static bool
mutate_copy(const mutation *m, buffer *out, size_t first, size_t end, copying how)
{
    bool fits = true;
    for (size_t i = first; i < end; i++) {
        const uint8_t opcode = mutate_opcode(m, i);
        const bool puts = opcode == OP_MEMOIZE || opcode == OP_BINPUT ||
                          opcode == OP_LONG_BINPUT || opcode == 'p';
        if (opcode == OP_FRAME || (how == COPY_VALUES && puts) ||
            (how == COPY_MEMO && !puts)) {
            continue;
        }
        fits = fits && (how != COPY_MEMO || mutate_put(out, "N", 1));
        fits = fits && mutate_put(out, m->data + m->at[i], m->at[i + 1] - m->at[i]);
        fits = fits && (how != COPY_MEMO || mutate_put(out, "0", 1));
    }
    return fits;
}

/* A dict is taken out, or put in once more: behind itself or before another. */
static bool
mutate_dict(mutation *m, buffer *out, size_t size)
{
    const size_t first = mutate_find(m, OP_EMPTY_DICT);
    const size_t end = first == m->count ? 0 : mutate_dict_end(m, first);
    if (end == 0) {
        return false;
    }
    bool fits;
    if (mutate_choose(m, 3) == 0) {
        fits = mutate_copy(m, out, 0, first, COPY_ALL) &&
               mutate_copy(m, out, first, end, COPY_MEMO) &&
               mutate_copy(m, out, end, m->count, COPY_ALL);
    } else {
        const size_t place = mutate_choose(m, 2) ? end : mutate_find(m, OP_EMPTY_DICT);
        fits = mutate_copy(m, out, 0, place, COPY_ALL) &&
               mutate_copy(m, out, first, end, COPY_VALUES) &&
               mutate_copy(m, out, place, m->count, COPY_ALL);
    }
    const size_t rest = m->at[m->count];
    return fits && mutate_put(out, m->data + rest, size - rest);
}

size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    static mutation m;
    static uint8_t room[1 << 16];
    m.data = data;
    m.random = seed;
    if (mutate_choose(&m, 4) == 0) {
        return LLVMFuzzerMutate(data, size, capacity);
    }
    mutate_scan(&m, size);
    if (mutate_choose(&m, 4) == 0) {
        buffer out = {room, 0, capacity < sizeof room ? capacity : sizeof room};
        if (mutate_dict(&m, &out, size)) {
            memcpy(data, room, out.size);
            return out.size;
        }
    }
    for (size_t times = 1 + mutate_choose(&m, 3); times-- > 0;) {
        if (mutate_choose(&m, 4) == 0) {
            mutate_reference(&m, data);
        } else {
            mutate_number(&m, data);
        }
    }
    return size;
}
