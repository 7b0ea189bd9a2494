/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pickle.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/nt_utf8.h"

/* The opcodes that are obeyed, under the names of Python's pickletools. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_FLOAT = 'F',
    OP_INT = 'I',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_LONG = 'L',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_UNICODE = 'V',
    OP_BINUNICODE = 'X',
    OP_APPEND = 'a',
    OP_DICT = 'd',
    OP_EMPTY_DICT = '}',
    OP_APPENDS = 'e',
    OP_GET = 'g',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_EMPTY_LIST = ']',
    OP_PUT = 'p',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_BINFLOAT = 'G',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_PROTO = 0x80,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96,
};

/* One step of a record's form as it was seen last: the bytes of the opcode that fetched
 * the key, and of a short string that was its value. The next record is held against
 * them before anything is decoded. */
typedef struct nt_pickle_step {
    uint64_t key_bytes, key_mask;
    uint64_t text_bytes, text_mask; /* mask 0: no short string seen */
    nt_value text;
    uint32_t field; /* number of the key among the visitor's, or another string id */
    uint8_t key_length;
    uint8_t text_length;
} nt_pickle_step;

/* Steps of the longest form that is remembered. */
#define NT_PICKLE_MOST_STEPS 16

/* A list of fetched records as it was seen last: the bytes from its first item up to
 * APPENDS. The same bytes are the same sequence, as long as the memo entries stand. */
#define NT_PICKLE_SEEN 64
#define NT_PICKLE_SEEN_BYTES 120

typedef struct nt_pickle_seen {
    uint64_t generation; /* p->generation when it was read */
    uint64_t tail_mask;  /* of the last length % 8 bytes */
    nt_value sequence;
    uint8_t length; /* at most NT_PICKLE_SEEN_BYTES - 8 */
    uint8_t bytes[NT_PICKLE_SEEN_BYTES];
} nt_pickle_seen;

/* A place in a record where those of one form differ, or where there is something to be
 * done: its bytes are what `mask` leaves of a little-endian word. */
typedef struct nt_pickle_hole {
    uint64_t mask;
    uint64_t aside; /* of a signed integer the bit of its sign, of any other 0; of a put
                     * the value that goes into the memo */
    uint8_t at;     /* bytes from the beginning of its part */
    uint8_t field;  /* where the value goes; NT_PICKLE_MOST_KEYS: nowhere */
} nt_pickle_hole;

/* What holes are for: integers, memo indexes of strings, and entries of the memo that
 * are set (where the bytes do not say which, the mask is 0). */
typedef enum nt_pickle_hole_kind {
    NT_HOLE_NUMBER,
    NT_HOLE_FETCH,
    NT_HOLE_PUT,
    NT_HOLE_KINDS,
} nt_pickle_hole_kind;

/* Bytes that all records of a form share, except for the holes. */
typedef struct nt_pickle_part {
    uint8_t first;  /* of the template's bytes and masks */
    uint8_t length; /* how many there are */
    uint8_t padded; /* the same up to a multiple of 16, with masks of 0 */
    uint8_t holes[NT_HOLE_KINDS], hole_count[NT_HOLE_KINDS]; /* the first, how many */
    uint8_t open_field; /* the value after it may be of any form, and goes here */
} nt_pickle_part;

#define NT_PICKLE_TEMPLATES 8
#define NT_PICKLE_PARTS 3
#define NT_PICKLE_HOLES 12 /* of each kind */
#define NT_PICKLE_FORM 192 /* bytes, with the padding */

/* A form of whole records. Parts follow each other with one open value between them;
 * the last one ends with SETITEMS. */
typedef struct nt_pickle_template {
    uint8_t bytes[NT_PICKLE_FORM], masks[NT_PICKLE_FORM];
    nt_pickle_hole holes[NT_HOLE_KINDS][NT_PICKLE_HOLES];
    nt_pickle_part parts[NT_PICKLE_PARTS];
    nt_value fields[NT_PICKLE_MOST_KEYS + 1]; /* of the last record; constants stay */
    uint32_t present, kind;
    bool is_memoized; /* the first entry of the memo is the record's own */
    uint8_t part_count;
    uint8_t hole_count[NT_HOLE_KINDS];
    uint8_t next; /* the template that the record behind the last one had */
} nt_pickle_template;

typedef struct nt_pickle {
    nt_alloc alloc;
    nt_source *source;
    nt_strings *strings;
    nt_values *values;
    const nt_pickle_visitor *visitor;
    nt_error *err; /* the caller's, or one of our own: never NULL */

    const uint8_t *limit; /* end of the window or of the frame, the nearer one */
    uint64_t frame_end;   /* offset after the current frame, or NT_NO_OFFSET */
    uint64_t opcode_offset;
    bool truncated; /* the input ended inside an opcode */

    nt_value *stack;
    size_t stack_count, stack_capacity;
    size_t *marks; /* stack heights */
    size_t mark_count, mark_capacity;
    nt_value *memo;
    size_t memo_count, memo_capacity; /* count: one above the highest index set */
    size_t memoized;                  /* how many puts: MEMOIZE's next index */

    /* The forms of records in a trace and of records inside those. */
    nt_pickle_step steps[2][NT_PICKLE_MOST_STEPS];

    /* The same in whole, and the lists in them. */
    nt_pickle_template templates[NT_PICKLE_TEMPLATES];
    size_t template_count;  /* valid ones */
    size_t template_last;   /* number of the one read or learned last */
    size_t template_oldest; /* number of the one to be given up next */
    nt_pickle_seen seen[NT_PICKLE_SEEN];
    uint64_t generation; /* changes whenever memo entries do; from 1 */

    uint32_t *scratch; /* ids of a sequence being put together */
    size_t scratch_capacity;
} nt_pickle;

/* Little-endian numbers at any address: one load on the machines that matter. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NT_PICKLE_LOAD(type, at)                                                       \
    type number;                                                                       \
    memcpy(&number, at, sizeof number);                                                \
    return number
#else
#define NT_PICKLE_LOAD(type, at)                                                       \
    type number = 0;                                                                   \
    for (size_t i = sizeof number; i-- > 0;) {                                         \
        number = (type)(number << 8 | (at)[i]);                                        \
    }                                                                                  \
    return number
#endif

static inline uint16_t
pickle_u16(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint16_t, at);
}

static inline uint32_t
pickle_u32(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint32_t, at);
}

static inline uint64_t
pickle_u64(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint64_t, at);
}

/* The mask of a word's first `count` bytes in memory, 0 to 8. */
static inline uint64_t
pickle_low_bytes(size_t count)
{
    return count == 0 ? 0 : UINT64_MAX >> 8 * (8 - count);
}

static nt_status
pickle_malformed(nt_pickle *p, const char *what)
{
    (void)nt_fail(p->err, NT_MALFORMED, p->opcode_offset, "%s", what);
    return NT_MALFORMED;
}

/* Sets p->limit anew after the window or the frame changed. */
static void
pickle_set_limit(nt_pickle *p)
{
    p->limit = p->source->end;
    if (p->frame_end != NT_NO_OFFSET && p->frame_end < p->source->end_offset) {
        p->limit -= p->source->end_offset - p->frame_end;
    }
}

/* `count` bytes are at source->next .. limit. When the input ends before them,
 * p->truncated is set and NT_MALFORMED returned. */
static nt_status
pickle_need_slow(nt_pickle *p, uint64_t count)
{
    const uint64_t at = nt_source_offset(p->source);
    if (p->frame_end != NT_NO_OFFSET && p->frame_end - at < count) {
        if (at != p->frame_end || at != p->opcode_offset) {
            return pickle_malformed(p, "an opcode runs across the end of its frame");
        }
        p->frame_end = NT_NO_OFFSET;
    }
    const size_t wanted = count > SIZE_MAX ? SIZE_MAX : (size_t)count;
    NT_TRY(nt_source_fill(p->source, wanted, p->err));
    pickle_set_limit(p);
    if ((uint64_t)(p->source->end - p->source->next) < count) {
        p->truncated = true;
        return pickle_malformed(p, "the file ends inside the pickle");
    }
    return NT_OK;
}

static inline nt_status
pickle_need(nt_pickle *p, uint64_t count)
{
    if (NT_LIKELY((uint64_t)(p->limit - p->source->next) >= count)) {
        return NT_OK;
    }
    return pickle_need_slow(p, count);
}

/* How low the stack may be popped: to the last mark. */
static inline size_t
pickle_floor(const nt_pickle *p)
{
    return p->mark_count == 0 ? 0 : p->marks[p->mark_count - 1];
}

/* Forgets the forms: the memo entries that they rest on may have changed. */
static inline void
pickle_forget_steps(nt_pickle *p)
{
    p->template_count = 0;
    p->generation++;
    for (size_t i = 0; i < NT_PICKLE_MOST_STEPS; i++) {
        p->steps[0][i].key_mask = 0;
        p->steps[1][i].key_mask = 0;
    }
}

/* Whether it is a record that sequences are made of. */
static inline bool
pickle_is_element(const nt_pickle *p, nt_value value)
{
    return nt_value_tag_of(value) == NT_VALUE_RECORD &&
           nt_value_kind(value) == p->visitor->sequence_kind;
}

/* A key and a value of fixed size with their memo opcodes need less than this. */
#define NT_FAST_PAIR 48

/* Bytes looked at behind a record: two opcodes with arguments of four bytes. */
#define NT_FAST_AHEAD 10

/* What a fast function came to: it read its piece, or the piece is not of the expected
 * form, or the machine failed (p->err says). */
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

/* Room for `need` entries in the memo, and where that is foreseen, for all that are to
 * come: a memo that moves as it grows leaves as much room unused. */
static nt_status
pickle_grow_memo(nt_pickle *p, size_t need)
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
    return NT_GROW(&p->alloc, p->memo, p->memo_capacity, need, p->err);
}

/* A memo opcode, if one is at *at, stores `value`. Only the entry next in line: then
 * taking back is cutting the memo to its old length. */
static inline nt_fast
pickle_fast_memo(nt_pickle *p, const uint8_t **at, nt_value value)
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
        index = pickle_u32(next + 1);
        next += 5;
    } else {
        return NT_FAST_DONE;
    }
    if (index != p->memo_count || p->memoized != p->memo_count) {
        return NT_FAST_OTHER;
    }
    if (NT_UNLIKELY(index == p->memo_capacity)) {
        NT_FAST_TRY(NT_FAST_STATUS(pickle_grow_memo(p, index + 1)));
    }
    p->memo[index] = value;
    p->memo_count = index + 1;
    p->memoized = index + 1;
    *at = next;
    return NT_FAST_DONE;
}

/* Calls the visitor for a record; *out stands for it. */
static nt_status
pickle_emit_record(nt_pickle *p, uint32_t kind, const nt_value *fields,
                   uint32_t present, nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->record(p->visitor->ctx, kind, fields, present, &id, p->err));
    *out = nt_value_make(NT_VALUE_RECORD, (uint64_t)kind << 32 | id);
    return NT_OK;
}

/* The kind that a dict with the `present` keys is, or NT_NONE. */
static uint32_t
pickle_record_kind(const nt_pickle *p, uint32_t present)
{
    for (uint32_t kind = 0; kind < p->visitor->kind_count; kind++) {
        if ((present >> p->visitor->tags[kind] & 1) != 0) {
            return kind;
        }
    }
    return NT_NONE;
}

/* Whether one of the pairs from number `first` on has this word for a key. */
static bool
record_has_key(const nt_value_pair *pairs, size_t first, size_t count, uint32_t word)
{
    const nt_value wanted = nt_value_make(NT_VALUE_STRING, word);
    for (size_t i = first; i < count; i++) {
        if (pairs[i].first == wanted) {
            return true;
        }
    }
    return false;
}

/* Whether one of the pairs from number `first` on has a key that makes a record. */
static bool
record_has_tag(const nt_pickle *p, const nt_value_pair *pairs, size_t first,
               size_t count)
{
    for (size_t kind = 0; kind < p->visitor->kind_count; kind++) {
        if (record_has_key(pairs, first, count, p->visitor->tags[kind])) {
            return true;
        }
    }
    return false;
}

static nt_status
record_place_dict(nt_pickle *p, nt_value dict, nt_value *out)
{
    nt_value fields[NT_PICKLE_MOST_KEYS] = {NT_VALUE_ABSENT};
    uint32_t present = 0;
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(p->values, dict, &count);
    const size_t judged = nt_values_judged_count(p->values, dict);
    if (!record_has_tag(p, pairs, judged, count)) {
        if (record_has_key(pairs, judged, count, p->visitor->bound.key)) {
            nt_values_set_counted(p->values, dict);
        }
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
    NT_TRY(pickle_emit_record(p, pickle_record_kind(p, present), fields, present, out));
    nt_values_exchange(p->values, dict, *out);
    return NT_OK;
}

/* Calls the visitor for the sequence of `count` records in p->scratch. */
static nt_status
pickle_emit_sequence(nt_pickle *p, size_t count, nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->sequence(p->visitor->ctx, p->scratch, count, &id, p->err));
    *out = nt_value_make(NT_VALUE_SEQUENCE, id);
    return NT_OK;
}

static nt_status
pickle_reserve_scratch(nt_pickle *p, size_t count)
{
    return NT_GROW(&p->alloc, p->scratch, p->scratch_capacity, count, p->err);
}

static nt_status
record_place_list(nt_pickle *p, nt_value list, nt_value *out)
{
    size_t runs, count = 0;
    const nt_value_pair *pairs = nt_values_pairs(p->values, list, &runs);
    for (size_t i = 0; i < runs; i++) {
        if (!pickle_is_element(p, pairs[i].first)) {
            runs = 0;
        } else {
            count += (size_t)pairs[i].second;
        }
    }
    if (runs == 0) {
        nt_values_set_judged(p->values, list);
        return NT_OK;
    }
    NT_TRY(pickle_reserve_scratch(p, count));
    size_t filled = 0;
    for (size_t i = 0; i < runs; i++) {
        for (uint64_t step = 0; step < pairs[i].second; step++) {
            p->scratch[filled++] = nt_value_id(pairs[i].first) + (uint32_t)step;
        }
    }
    NT_TRY(pickle_emit_sequence(p, count, out));
    nt_values_exchange(p->values, list, *out);
    return NT_OK;
}

/* `value` is put into a container: a dict that is a record and a list that is a
 * sequence are handed to the visitor, and *out stands for it. */
static nt_status
pickle_place(nt_pickle *p, nt_value value, nt_value *out)
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

/* What BINGET or LONG_BINGET at *at fetches; NT_FAST_OTHER for other opcodes. */
static inline nt_fast
pickle_fast_fetch(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    const uint8_t *next = *at;
    size_t index;
    if (NT_LIKELY(next[0] == OP_BINGET)) {
        index = next[1];
        *at = next + 2;
    } else if (next[0] == OP_LONG_BINGET) {
        index = pickle_u32(next + 1);
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
        return NT_FAST_STATUS(pickle_place(p, value, out));
    }
    *out = value;
    return NT_FAST_DONE;
}

static inline bool
pickle_fast_is_integer(uint8_t opcode)
{
    return opcode == OP_BININT1 || opcode == OP_BININT2 || opcode == OP_BININT ||
           opcode == OP_LONG1;
}

/* Bytes of the integer opcode at `at`, its argument included. */
static inline size_t
pickle_fast_width(const uint8_t *at)
{
    return at[0] == OP_BININT1   ? 2
           : at[0] == OP_BININT2 ? 3
           : at[0] == OP_BININT  ? 5
                                 : 2 + (size_t)at[1];
}

/* Whether the dict before `at` is whole: what follows its SETITEMS, and a memo opcode,
 * is the next item or the end of a list. Anything else might be more pairs for it. */
static inline bool
pickle_fast_is_whole(const nt_pickle *p, const uint8_t *at)
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
    const size_t index = at[0] == OP_BINGET ? at[1] : pickle_u32(at + 1);
    return index < p->memo_count && nt_value_tag_of(p->memo[index]) != NT_VALUE_STRING;
}

/* A pair of a record that has been read: where its key and value lie, the number of the
 * key among the visitor's or another string id, and what its value is. */
typedef struct nt_fast_pair {
    const uint8_t *key, *value, *end;
    nt_value is;
    uint32_t field;
} nt_fast_pair;

/* The opcodes that are never obeyed, and what is said of them. */

/* The name of an opcode that could name a class, call or reach outside. */
static const char *
refuse_name(uint8_t opcode)
{
    switch (opcode) {
    case 'c': return "GLOBAL";
    case 0x93: return "STACK_GLOBAL";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x92: return "NEWOBJ_EX";
    case 0x82: return "EXT1";
    case 0x83: return "EXT2";
    case 0x84: return "EXT4";
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    case 0x97: return "NEXT_BUFFER";
    case 0x98: return "READONLY_BUFFER";
    case 'S': return "STRING";
    case 'T': return "BINSTRING";
    case 'U': return "SHORT_BINSTRING";
    default: return NULL;
    }
}

/* The error for an opcode that is refused or unknown. */
static nt_status
pickle_refuse(nt_pickle *p, uint8_t opcode)
{
    const char *name = refuse_name(opcode);
    if (name == NULL) {
        return nt_fail(p->err, NT_MALFORMED, p->opcode_offset,
                       "byte 0x%02x is not a pickle opcode", opcode);
    }
    if (strstr(name, "STRING") != NULL) {
        return nt_fail(p->err, NT_REFUSED, p->opcode_offset,
                       "opcode %s is refused: only Python 2 wrote it", name);
    }
    return nt_fail(p->err, NT_REFUSED, p->opcode_offset,
                   "opcode %s is refused: it could run code, and no snapshot needs it",
                   name);
}

/* Dicts that are records. Opcode by opcode they arrive as ordinary dicts and are turned
 * into records when they are placed. A trace repeats one form a million times, though:
 * pickle_fast_records reads that form. */

/* NT_LIMIT if `item`, which was placed, is one of the dicts that are bounded, and the
 * list holds too many with the `waiting` items that are still to be appended. */
static nt_status
pickle_check_bound(nt_pickle *p, nt_value list, size_t waiting, nt_value item)
{
    const nt_pickle_bound *bound = &p->visitor->bound;
    size_t count;
    list = nt_values_resolve(p->values, list);
    if (bound->most == 0 || nt_value_tag_of(item) != NT_VALUE_DICT ||
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return NT_OK;
    }
    (void)nt_values_pairs(p->values, list, &count);
    if (count + waiting <= bound->most || !nt_values_is_counted(p->values, item)) {
        return NT_OK;
    }
    return nt_fail(p->err, NT_LIMIT, p->opcode_offset, "more than %zu %s", bound->most,
                   bound->name);
}

/* Whether what comes next is another dict or the end of a list, a frame's head aside:
 * then the dict on top of the stack is whole. */
static nt_status
record_peek_item_end(nt_pickle *p, bool *ends)
{
    const size_t ahead = 10; /* FRAME, its length, and an opcode */
    if ((size_t)(p->source->end - p->source->next) < ahead) {
        NT_TRY(nt_source_fill(p->source, ahead, p->err));
        pickle_set_limit(p);
    }
    const uint8_t *at = p->source->next;
    const size_t at_hand = (size_t)(p->source->end - at);
    const size_t skip = at_hand >= ahead && at[0] == OP_FRAME ? ahead - 1 : 0;
    *ends = at_hand > skip && (at[skip] == OP_EMPTY_DICT || at[skip] == OP_APPENDS);
    return NT_OK;
}

/* The dict on top of the stack has just got its pairs: if it is whole, it is placed
 * now, so that records keep their order whichever way they are read. */
static nt_status
pickle_settle(nt_pickle *p)
{
    bool ends;
    NT_TRY(record_peek_item_end(p, &ends));
    nt_value *const top = &p->stack[p->stack_count - 1];
    if (!ends) {
        return NT_OK;
    }
    NT_TRY(pickle_place(p, *top, top));
    /* All items of a list may stand behind one mark. */
    const size_t floor = pickle_floor(p);
    return floor == 0 ? NT_OK
                      : pickle_check_bound(p, p->stack[floor - 1],
                                           p->stack_count - floor, *top);
}

/* Whole records held against one that was read before. Most bytes of an event are those
 * of the event before it: opcodes, keys, strings that stay. They are compared a word at
 * a time, and only what stands between them is decoded. */

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
    return pickle_u64(at + hole->at) & hole->mask;
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

/* The string of `length` UTF-8 bytes (surrogates allowed, as Python writes them). */
static nt_status
pickle_string(nt_pickle *p, const uint8_t *bytes, size_t length, nt_value *out)
{
    if (!nt_utf8_check(bytes, length)) {
        return pickle_malformed(p, "a string is not UTF-8");
    }
    uint32_t id;
    NT_TRY(nt_strings_intern(p->strings, bytes, length, &id, p->err));
    *out = nt_value_make(NT_VALUE_STRING, id);
    return NT_OK;
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
        length = pickle_u32(next + 1);
        next += 5;
    }
    /* Behind the string a pair's worth of bytes, for whatever follows it. */
    if ((size_t)(p->limit - next) < NT_FAST_PAIR ||
        (size_t)(p->limit - next) - NT_FAST_PAIR < length) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(NT_FAST_STATUS(pickle_string(p, next, length, out)));
    *at = next + length;
    return pickle_fast_memo(p, at, *out);
}

/* What an integer of `count` little-endian bytes (LONG1, LONG4) is. */
static nt_status
pickle_long(nt_pickle *p, const uint8_t *bytes, size_t count, nt_value *out)
{
    const bool negative = count != 0 && (bytes[count - 1] & 0x80) != 0;
    uint64_t bits = negative ? UINT64_MAX : 0;
    for (size_t i = count < 8 ? count : 8; i-- > 0;) {
        bits = bits << 8 | bytes[i];
    }
    /* Bytes above the eighth must only carry the sign on. */
    bool fits = true;
    for (size_t i = 8; i < count; i++) {
        fits = fits && bytes[i] == (negative ? 0xff : 0);
    }
    fits = fits && (!negative || (bits >> 63) != 0);
    return nt_values_integer(p->values, bits, negative, fits, out, p->err);
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
        *out = nt_value_make(NT_VALUE_INT, pickle_u16(next + 1));
        *at = next + 3;
        return NT_FAST_DONE;
    case OP_BININT:
        *out = nt_value_make(NT_VALUE_INT, (uint64_t)(int32_t)pickle_u32(next + 1));
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
            const uint64_t bits = pickle_u64(next + 2) << unused;
            const int64_t number = (int64_t)bits >> unused;
            *out = nt_value_make(NT_VALUE_INT, (uint64_t)number);
            return NT_FAST_DONE;
        }
        return NT_FAST_STATUS(pickle_long(p, next + 2, count, out));
    }
    default: return NT_FAST_OTHER;
    }
}

/* An integer, or the pair of two that PyTorch writes for a pool id. */
static inline nt_fast
fast_integer_or_pair(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    NT_FAST_TRY(fast_integer(p, at, out));
    if (NT_LIKELY(!pickle_fast_is_integer(**at))) {
        return NT_FAST_DONE;
    }
    nt_value items[2] = {*out};
    NT_FAST_TRY(fast_integer(p, at, &items[1]));
    if (**at != OP_TUPLE2) {
        return NT_FAST_OTHER;
    }
    ++*at;
    NT_FAST_TRY(NT_FAST_STATUS(nt_values_tuple(p->values, items, 2, out, p->err)));
    return pickle_fast_memo(p, at, *out);
}

/* Where a list whose bytes begin so is remembered. */
static inline nt_pickle_seen *
fast_seen(nt_pickle *p, const uint8_t *bytes)
{
    return &p->seen[nt_mix64(pickle_u64(bytes)) % NT_PICKLE_SEEN];
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
        differs |= pickle_u64(bytes + i) ^ pickle_u64(seen->bytes + i);
    }
    const uint64_t tail = pickle_u64(bytes + i) ^ pickle_u64(seen->bytes + i);
    return (differs | (tail & seen->tail_mask)) == 0;
}

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
        const size_t first = pickle_fast_width(l->at);
        const size_t both = first + pickle_fast_width(l->at + first);
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

/* Makes a template of the record of kind `kind` at `start`, which has just been read: a
 * dict with a mark and these pairs. Some forms have none. */
static void
pickle_template_learn(nt_pickle *p, const uint8_t *start, uint32_t kind,
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

typedef struct fast_fields {
    nt_value value[NT_PICKLE_MOST_KEYS];
    uint32_t present;
    nt_fast_pair pairs[NT_PICKLE_MOST_STEPS];
    size_t pair_count;
} fast_fields;

static nt_fast
pickle_fast_value(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out);

/* The key of a pair: as the step says, or decoded, and the step learns it. */
static inline nt_fast
fast_key(nt_pickle *p, const uint8_t **at, nt_pickle_step *step)
{
    const uint64_t bytes = pickle_u64(*at);
    if (NT_LIKELY(step->key_mask != 0 && (bytes & step->key_mask) == step->key_bytes)) {
        *at += step->key_length;
        return NT_FAST_DONE;
    }
    const uint8_t *start = *at;
    nt_value key;
    const bool fetched = *start != OP_SHORT_BINUNICODE && *start != OP_BINUNICODE;
    NT_FAST_TRY(fetched ? pickle_fast_fetch(p, at, &key) : fast_string(p, at, &key));
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
    const uint64_t bytes = pickle_u64(*at);
    if (NT_LIKELY(step->text_mask != 0 &&
                  (bytes & step->text_mask) == step->text_bytes)) {
        *at += step->text_length;
        *out = step->text;
        return pickle_fast_memo(p, at, *out);
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
            NT_FAST_TRY(pickle_fast_value(p, &at, nested, &value));
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
    NT_FAST_TRY(pickle_fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
    const bool memoized = p->memo_count != index;
    if (**at != OP_MARK) {
        return NT_FAST_OTHER;
    }
    ++*at;
    fast_fields fields;
    NT_FAST_TRY(fast_pairs(p, at, nested, &fields));
    if (!pickle_fast_is_whole(p, *at)) {
        return NT_FAST_OTHER;
    }
    const uint32_t kind = pickle_record_kind(p, fields.present);
    if (kind == NT_NONE || (nested && kind != p->visitor->sequence_kind)) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(
        NT_FAST_STATUS(pickle_emit_record(p, kind, fields.value, fields.present, out)));
    if (memoized) {
        p->memo[index] = *out;
    }
    if (!nested && fields.pair_count <= NT_PICKLE_MOST_STEPS) {
        pickle_template_learn(p, start, kind, fields.pairs, fields.pair_count);
    }
    return NT_FAST_DONE;
}

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
        NT_FAST_TRY(pickle_fast_fetch(p, at, &element));
    }
    *id = nt_value_id(element);
    return pickle_is_element(p, element) ? NT_FAST_DONE : NT_FAST_OTHER;
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
    seen->tail_mask = pickle_low_bytes(tail);
    memcpy(seen->bytes, bytes, length);
}

/* The items of a list at *at, all of them records of the sequence kind, behind its mark
 * if it has one, and what appends them. */
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
            NT_FAST_TRY(NT_FAST_STATUS(pickle_reserve_scratch(p, count + 1)));
        }
        p->scratch[count++] = id;
    } while (marked && **at != OP_APPENDS);
    /* Without a mark the one item must be appended; else it was a pair's key. */
    if (!marked && **at != OP_APPEND) {
        return NT_FAST_OTHER;
    }
    ++*at;
    NT_FAST_TRY(NT_FAST_STATUS(pickle_emit_sequence(p, count, out)));
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
    NT_FAST_TRY(pickle_fast_memo(p, at, nt_value_make(NT_VALUE_NONE, 0)));
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

/* The value of a pair at *at, behind which NT_FAST_PAIR bytes are at hand. `nested`: of
 * a record inside a list, which holds no list. */
static nt_fast
pickle_fast_value(nt_pickle *p, const uint8_t **at, bool nested, nt_value *out)
{
    /* One by one: the processor foresees this better than a jump table. */
    const uint8_t opcode = **at;
    if (opcode == OP_BINGET || opcode == OP_LONG_BINGET) {
        return pickle_fast_fetch(p, at, out);
    }
    if (pickle_fast_is_integer(opcode)) {
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
            NT_FAST_TRY(NT_FAST_STATUS(pickle_grow_memo(p, p->memo_count + added)));
        }
        if (!template_fill(p, t, part, *at)) {
            return NT_FAST_OTHER;
        }
        *at += part->length;
        if (--left == 0) {
            return NT_FAST_DONE;
        }
        NT_FAST_TRY(pickle_fast_value(p, at, false, &t->fields[part->open_field]));
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

/* A record at *at that looks like one of the templates. */
static nt_fast
pickle_template_read(nt_pickle *p, const uint8_t **at, nt_value *out)
{
    nt_pickle_template *t = template_choose(p, *at);
    if (t == NULL ||
        (t->hole_count[NT_HOLE_PUT] != 0 && p->memoized != p->memo_count)) {
        return NT_FAST_OTHER;
    }
    const size_t index = p->memo_count;
    NT_FAST_TRY(template_read_parts(p, t, at));
    if (!pickle_fast_is_whole(p, *at)) {
        return NT_FAST_OTHER;
    }
    NT_FAST_TRY(
        NT_FAST_STATUS(pickle_emit_record(p, t->kind, t->fields, t->present, out)));
    if (t->is_memoized) {
        p->memo[index] = *out;
    }
    return NT_FAST_DONE;
}

/* Learning a form ---------------------------------------------------------- */

/* Records that lie whole in the window, read pair by pair straight into fields: the
 * keys are held against the form of the record before, and nothing becomes a dict. */

/* Where the fast way wants the window to reach, so that records seldom straddle. */
#define FAST_WINDOW ((size_t)4096)

static nt_status
pickle_push(nt_pickle *p, nt_value value)
{
    if (NT_UNLIKELY(p->stack_count == p->stack_capacity)) {
        NT_TRY(NT_GROW(&p->alloc, p->stack, p->stack_capacity, p->stack_count + 1,
                       p->err));
    }
    p->stack[p->stack_count++] = value;
    return NT_OK;
}

/* One record at source->next, or the machine as it was. */
static nt_fast
fast_record(nt_pickle *p)
{
    const size_t memo_count = p->memo_count, memoized = p->memoized;
    const uint8_t *at = p->source->next;
    nt_value record;
    nt_fast outcome = pickle_template_read(p, &at, &record);
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
        return NT_FAST_STATUS(pickle_push(p, record));
    }
    p->memo_count = memo_count;
    p->memoized = memoized;
    pickle_forget_steps(p);
    return outcome;
}

/* At an EMPTY_DICT opcode: reads whole records that lie in the window and pushes them,
 * as many as follow each other. *done is false, and nothing has happened, when the
 * first is not of the expected form: then the opcodes go one by one. */
static nt_status
pickle_fast_records(nt_pickle *p, bool *done)
{
    *done = false;
    for (;;) {
        if ((size_t)(p->limit - p->source->next) < FAST_WINDOW) {
            NT_TRY(nt_source_fill(p->source, FAST_WINDOW, p->err));
            pickle_set_limit(p);
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

/* The opcodes of protocol 0, whose argument is a line of text. */

/* Longer than any number that fits 64 bits or any float that Python writes. */
#define TEXT_MOST_NUMBER 64

/* The line at source->next without its newline, consumed. */
static nt_status
text_line(nt_pickle *p, const uint8_t **line, size_t *length)
{
    size_t scanned = 0;
    for (;;) {
        const size_t at_hand = (size_t)(p->limit - p->source->next);
        const uint8_t *end = at_hand == scanned ? NULL
                                                : memchr(p->source->next + scanned,
                                                         '\n', at_hand - scanned);
        if (end != NULL) {
            *line = p->source->next;
            *length = (size_t)(end - p->source->next);
            p->source->next = end + 1;
            return NT_OK;
        }
        scanned = at_hand;
        NT_TRY(pickle_need(p, (uint64_t)at_hand + 1));
    }
}

/* A decimal number, with or without sign; `fits` as in nt_values_integer. */
static bool
text_decimal(const uint8_t *digits, size_t length, uint64_t *bits, bool *negative,
             bool *fits)
{
    size_t i = 0;
    *negative = length != 0 && digits[0] == '-';
    i += length != 0 && (digits[0] == '-' || digits[0] == '+');
    if (i == length) {
        return false;
    }
    uint64_t magnitude = 0;
    *fits = true;
    for (; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return false;
        }
        const uint64_t digit = (uint64_t)(digits[i] - '0');
        if (magnitude > (UINT64_MAX - digit) / 10) {
            *fits = false;
        }
        magnitude = magnitude * 10 + digit;
    }
    if (*negative && magnitude > (uint64_t)1 << 63) {
        *fits = false;
    }
    *bits = *negative ? 0 - magnitude : magnitude;
    *negative = *negative && magnitude != 0;
    return true;
}

/* INT: a number, or 00 and 01 for the booleans. LONG: a number and an L. */
static nt_status
text_integer(nt_pickle *p, const uint8_t *line, size_t length, bool is_long)
{
    if (!is_long && length == 2 && line[0] == '0' &&
        (line[1] == '0' || line[1] == '1')) {
        return pickle_push(p, nt_value_make(NT_VALUE_BOOL, line[1] == '1'));
    }
    if (is_long && length != 0 && line[length - 1] == 'L') {
        length--;
    }
    uint64_t bits;
    bool negative, fits;
    if (!text_decimal(line, length, &bits, &negative, &fits)) {
        return pickle_malformed(p, "a line of text is no integer");
    }
    nt_value value;
    NT_TRY(nt_values_integer(p->values, bits, negative, fits, &value, p->err));
    return pickle_push(p, value);
}

static nt_status
text_float(nt_pickle *p, const uint8_t *line, size_t length)
{
    char text[TEXT_MOST_NUMBER];
    if (length == 0 || length >= sizeof text || line[0] == ' ') {
        return pickle_malformed(p, "a line of text is no float");
    }
    memcpy(text, line, length);
    text[length] = '\0';
    /* strtod wants the decimal point of the process's locale. */
    char *point = strchr(text, '.');
    if (point != NULL) {
        *point = localeconv()->decimal_point[0];
    }
    char *end;
    const double real = strtod(text, &end);
    if (end != text + length) {
        return pickle_malformed(p, "a line of text is no float");
    }
    nt_value value;
    NT_TRY(nt_values_float(p->values, real, &value, p->err));
    return pickle_push(p, value);
}

/* The value of `count` hexadecimal digits; false if there are other characters. */
static bool
text_hexadecimal(const uint8_t *digits, size_t count, uint32_t *out)
{
    uint32_t value = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t c = digits[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return false;
        }
        value = value << 4 | (uint32_t)digit;
    }
    *out = value;
    return true;
}

/* One code point of Python's raw-unicode-escape at line[*at]: \uXXXX, \UXXXXXXXX or a
 * Latin-1 byte. */
static bool
text_code_point(const uint8_t *line, size_t length, size_t *at, uint32_t *point)
{
    const size_t left = length - *at;
    const uint8_t next = left > 1 ? line[*at + 1] : 0;
    if (line[*at] != '\\' || (next != 'u' && next != 'U')) {
        *point = line[(*at)++];
        return true;
    }
    const size_t digits = next == 'u' ? 4 : 8;
    if (left < 2 + digits || !text_hexadecimal(line + *at + 2, digits, point) ||
        *point > 0x10ffff) {
        return false;
    }
    *at += 2 + digits;
    return true;
}

static nt_status
text_unicode(nt_pickle *p, const uint8_t *line, size_t length)
{
    size_t size;
    if (!nt_size_mul(length + 1, 2, &size)) {
        return nt_fail_nomem(p->err);
    }
    /* A Latin-1 byte becomes two bytes at most, an escape of six becomes three. */
    uint8_t *utf8;
    NT_TRY(nt_take(&p->alloc, (void **)&utf8, size, p->err));
    nt_status status = NT_OK;
    size_t written = 0;
    for (size_t at = 0; at < length && status == NT_OK;) {
        uint32_t point;
        if (text_code_point(line, length, &at, &point)) {
            written += nt_utf8_put(utf8 + written, point);
        } else {
            status = pickle_malformed(p, "a line of text has a broken \\u escape");
        }
    }
    nt_value value = NT_VALUE_ABSENT;
    if (status == NT_OK) {
        status = pickle_string(p, utf8, written, &value);
    }
    nt_release(&p->alloc, utf8, size);
    return status == NT_OK ? pickle_push(p, value) : status;
}

static nt_status
pickle_need_stack(nt_pickle *p, size_t count)
{
    if (p->stack_count - pickle_floor(p) < count) {
        return pickle_malformed(p, "an opcode finds too few values on the stack");
    }
    return NT_OK;
}

/* Sets memo entry `index`; no index beyond the number of bytes read. */
static nt_status
pickle_memo_put(nt_pickle *p, uint64_t index, nt_value value)
{
    /* Every put costs a byte at least, so an honest index is below the offset. */
    if (index >= nt_source_offset(p->source)) {
        return pickle_malformed(p, "a memo index is larger than the file so far");
    }
    const size_t need = (size_t)index + 1;
    if (need > p->memo_count) {
        NT_TRY(pickle_grow_memo(p, need));
        memset(p->memo + p->memo_count, 0, (need - p->memo_count) * sizeof(nt_value));
        p->memo_count = need;
        p->memoized++;
    } else {
        p->memoized += p->memo[index] == NT_VALUE_ABSENT;
        pickle_forget_steps(p);
    }
    p->memo[index] = value;
    return NT_OK;
}

static nt_status
pickle_memoize(nt_pickle *p, uint64_t index)
{
    NT_TRY(pickle_need_stack(p, 1));
    return pickle_memo_put(p, index, p->stack[p->stack_count - 1]);
}

/* The memo entry `index`; NT_MALFORMED if it was never set. */
static nt_status
pickle_memo_get(nt_pickle *p, uint64_t index, nt_value *out)
{
    if (index >= p->memo_count || p->memo[index] == NT_VALUE_ABSENT) {
        return pickle_malformed(p, "a memo entry is fetched that was never stored");
    }
    *out = nt_values_resolve(p->values, p->memo[index]);
    return NT_OK;
}

static nt_status
pickle_fetch(nt_pickle *p, uint64_t index)
{
    nt_value value = NT_VALUE_ABSENT;
    NT_TRY(pickle_memo_get(p, index, &value));
    return pickle_push(p, value);
}

static nt_status
text_memo(nt_pickle *p, const uint8_t *line, size_t length, bool put)
{
    uint64_t index;
    bool negative, fits;
    if (!text_decimal(line, length, &index, &negative, &fits) || negative || !fits) {
        return pickle_malformed(p, "a line of text is no memo index");
    }
    return put ? pickle_memoize(p, index) : pickle_fetch(p, index);
}

static nt_status
pickle_text_opcode(nt_pickle *p, uint8_t opcode)
{
    const uint8_t *line;
    size_t length;
    NT_TRY(text_line(p, &line, &length));
    switch (opcode) {
    case OP_INT: return text_integer(p, line, length, false);
    case OP_LONG: return text_integer(p, line, length, true);
    case OP_FLOAT: return text_float(p, line, length);
    case OP_UNICODE: return text_unicode(p, line, length);
    case OP_GET: return text_memo(p, line, length, false);
    default: return text_memo(p, line, length, true);
    }
}

/* A file that ends early leaves containers open. Here they are closed from the inside
 * out: lists and the dicts that are values keep what was whole, and a dict that was to
 * become an item of a list (an event, block or segment that is not all there) is left
 * out. */

static bool
pickle_is_container(nt_value value)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    return tag == NT_VALUE_RECORD || tag == NT_VALUE_LIST || tag == NT_VALUE_DICT ||
           tag == NT_VALUE_TUPLE || tag == NT_VALUE_SEQUENCE;
}

/* A dict that was only just begun: whatever it was to be, nothing is known. */
static bool
pickle_is_empty_dict(const nt_pickle *p, nt_value value)
{
    size_t count = 1;
    if (nt_value_tag_of(value) == NT_VALUE_DICT) {
        (void)nt_values_pairs(p->values, value, &count);
    }
    return count == 0;
}

/* A dict with strings behind it was waiting for those to be set in it. */
static bool
pickle_is_waiting(const nt_pickle *p, size_t at)
{
    return at + 1 < p->stack_count && nt_value_tag_of(p->stack[at]) == NT_VALUE_DICT &&
           nt_value_tag_of(p->stack[at + 1]) == NT_VALUE_STRING;
}

static nt_status
pickle_append_from(nt_pickle *p, size_t first)
{
    if (first <= pickle_floor(p) ||
        nt_value_tag_of(p->stack[first - 1]) != NT_VALUE_LIST) {
        return pickle_malformed(p, "values are appended to what is no list");
    }
    for (size_t i = first; i < p->stack_count;) {
        nt_value item;
        NT_TRY(pickle_place(p, p->stack[i++], &item));
        /* Records that count up go in as one run. */
        uint64_t count = 1;
        while (nt_value_tag_of(item) == NT_VALUE_RECORD && i < p->stack_count &&
               p->stack[i] == item + (count << 4)) {
            count++;
            i++;
        }
        NT_TRY(nt_values_append(p->values, p->stack[first - 1], item, count, p->err));
        NT_TRY(pickle_check_bound(p, p->stack[first - 1], 0, item));
    }
    p->stack_count = first;
    return NT_OK;
}

/* The open list at height `first` - 1 gets the whole items above it. */
static nt_status
pickle_close_list(nt_pickle *p, size_t first)
{
    size_t end = first;
    while (end < p->stack_count && pickle_is_container(p->stack[end]) &&
           !pickle_is_empty_dict(p, p->stack[end])) {
        end++;
    }
    if (end > first && pickle_is_waiting(p, end - 1)) {
        end--;
    }
    p->stack_count = end;
    return pickle_append_from(p, first);
}

/* Whether the container at height `at` was to become an item of a list. */
static bool
pickle_is_list_item(const nt_pickle *p, size_t at)
{
    if (at == 0) {
        return false;
    }
    if (nt_value_tag_of(p->stack[at - 1]) == NT_VALUE_LIST) {
        return true; /* directly above its list, or the first behind its mark */
    }
    const size_t floor = pickle_floor(p);
    return p->mark_count != 0 && floor > 0 && floor <= at &&
           nt_value_tag_of(p->stack[floor - 1]) == NT_VALUE_LIST;
}

/* Without a mark between them, containers on top of a list are one inside the other:
 * from the top down to height `list` each goes into the list below it. */
static nt_status
pickle_fold(nt_pickle *p, size_t list, size_t end)
{
    for (size_t at = end; --at > list;) {
        nt_value item;
        if (nt_value_tag_of(p->stack[at - 1]) == NT_VALUE_LIST) {
            NT_TRY(pickle_place(p, p->stack[at], &item));
            NT_TRY(nt_values_append(p->values, p->stack[at - 1], item, 1, p->err));
        }
    }
    return NT_OK;
}

static nt_status
pickle_set_from(nt_pickle *p, size_t first)
{
    if (first <= pickle_floor(p) ||
        nt_value_tag_of(p->stack[first - 1]) != NT_VALUE_DICT) {
        return pickle_malformed(p, "keys are set in what is no dict");
    }
    if ((p->stack_count - first) % 2 != 0) {
        return pickle_malformed(p, "a dict gets a key without a value");
    }
    for (size_t i = first; i < p->stack_count; i += 2) {
        nt_value item;
        NT_TRY(pickle_place(p, p->stack[i + 1], &item));
        NT_TRY(
            nt_values_set(p->values, p->stack[first - 1], p->stack[i], item, p->err));
    }
    p->stack_count = first;
    return NT_OK;
}

/* The open dict at height `first` - 1 gets the whole pairs above it; a list among the
 * values takes the containers that follow it, which were meant for it. */
static nt_status
pickle_close_dict(nt_pickle *p, size_t first)
{
    size_t read = first, written = first;
    while (read + 1 < p->stack_count &&
           nt_value_tag_of(p->stack[read]) == NT_VALUE_STRING) {
        const nt_value key = p->stack[read], value = p->stack[read + 1];
        size_t end = read + 2;
        while (end < p->stack_count && nt_value_tag_of(value) == NT_VALUE_LIST &&
               pickle_is_container(p->stack[end])) {
            if (pickle_is_waiting(p, end)) {
                p->stack_count = end;
                break;
            }
            end++;
        }
        NT_TRY(pickle_fold(p, read + 1, end));
        read = end;
        p->stack[written++] = key;
        p->stack[written++] = value;
    }
    p->stack_count = written;
    return pickle_set_from(p, first);
}

static nt_status
pickle_close_mark(nt_pickle *p)
{
    const size_t first = p->marks[--p->mark_count];
    const nt_value_tag tag =
        first == 0 ? NT_VALUE_ABSENT : nt_value_tag_of(p->stack[first - 1]);
    if (tag == NT_VALUE_LIST) {
        return pickle_close_list(p, first);
    }
    if (tag == NT_VALUE_DICT && !pickle_is_list_item(p, first - 1)) {
        return pickle_close_dict(p, first);
    }
    p->stack_count = tag == NT_VALUE_DICT ? first - 1 : first;
    return NT_OK;
}

/* A dict on top may be waiting for more keys, so it is no whole item of a list. */
static void
pickle_drop_unfinished(nt_pickle *p)
{
    const size_t floor = pickle_floor(p);
    if (p->stack_count > floor &&
        nt_value_tag_of(p->stack[p->stack_count - 1]) == NT_VALUE_DICT &&
        pickle_is_list_item(p, p->stack_count - 1)) {
        p->stack_count--;
    }
}

/* Closes what a truncated input left open; one value stands on the stack then. */
static nt_status
pickle_close(nt_pickle *p)
{
    pickle_drop_unfinished(p);
    while (p->mark_count != 0) {
        NT_TRY(pickle_close_mark(p));
    }
    if (p->stack_count > 1) {
        const nt_value_tag tag = nt_value_tag_of(p->stack[0]);
        if (tag == NT_VALUE_LIST) {
            NT_TRY(pickle_close_list(p, 1));
        } else if (tag == NT_VALUE_DICT) {
            NT_TRY(pickle_close_dict(p, 1));
        }
        p->stack_count = 1;
    }
    if (p->stack_count == 0) {
        return pickle_malformed(p, "the file ends before anything could be read");
    }
    return NT_OK;
}

static nt_status
pickle_push_mark(nt_pickle *p)
{
    if (p->mark_count >= NT_PICKLE_MOST_DEPTH) {
        return nt_fail(p->err, NT_LIMIT, p->opcode_offset,
                       "containers are nested more than %d deep", NT_PICKLE_MOST_DEPTH);
    }
    NT_TRY(NT_GROW(&p->alloc, p->marks, p->mark_capacity, p->mark_count + 1, p->err));
    p->marks[p->mark_count++] = p->stack_count;
    return NT_OK;
}

/* The stack height at the last mark, which is taken away. */
static nt_status
pickle_pop_mark(nt_pickle *p, size_t *first)
{
    if (p->mark_count == 0) {
        return pickle_malformed(p, "an opcode looks for a mark and there is none");
    }
    *first = p->marks[--p->mark_count];
    return NT_OK;
}

/* A list or dict (LIST, DICT) or tuple made of what is above the last mark. */
static nt_status
pickle_build_from_mark(nt_pickle *p, nt_value_tag tag)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    nt_value made;
    if (tag == NT_VALUE_TUPLE) {
        for (size_t i = first; i < p->stack_count; i++) {
            NT_TRY(pickle_place(p, p->stack[i], &p->stack[i]));
        }
        NT_TRY(nt_values_tuple(p->values, p->stack + first, p->stack_count - first,
                               &made, p->err));
        p->stack_count = first;
        return pickle_push(p, made);
    }
    NT_TRY(nt_values_container(p->values, tag, &made, p->err));
    NT_TRY(pickle_push(p, made));
    memmove(p->stack + first + 1, p->stack + first,
            (p->stack_count - 1 - first) * sizeof(nt_value));
    p->stack[first] = made;
    return tag == NT_VALUE_LIST ? pickle_append_from(p, first + 1)
                                : pickle_set_from(p, first + 1);
}

static nt_status
pickle_build_tuple(nt_pickle *p, size_t count)
{
    NT_TRY(pickle_need_stack(p, count));
    const size_t first = p->stack_count - count;
    for (size_t i = first; i < p->stack_count; i++) {
        NT_TRY(pickle_place(p, p->stack[i], &p->stack[i]));
    }
    nt_value tuple;
    NT_TRY(nt_values_tuple(p->values, p->stack + first, count, &tuple, p->err));
    p->stack_count = first;
    return pickle_push(p, tuple);
}

static nt_status
pickle_push_container(nt_pickle *p, nt_value_tag tag)
{
    nt_value made;
    NT_TRY(nt_values_container(p->values, tag, &made, p->err));
    return pickle_push(p, made);
}

/* `width` bytes of a little-endian length at source->next. */
static nt_status
pickle_read_length(nt_pickle *p, size_t width, uint64_t *out)
{
    NT_TRY(pickle_need(p, width));
    const uint8_t *at = p->source->next;
    *out = width == 1   ? at[0]
           : width == 2 ? pickle_u16(at)
           : width == 4 ? pickle_u32(at)
                        : pickle_u64(at);
    p->source->next += width;
    return NT_OK;
}

/* A length of `width` bytes, then that many: they are at *bytes and consumed. */
static nt_status
pickle_read_bytes(nt_pickle *p, size_t width, const uint8_t **bytes, size_t *length)
{
    uint64_t count;
    NT_TRY(pickle_read_length(p, width, &count));
    NT_TRY(pickle_need(p, count));
    *bytes = p->source->next;
    *length = (size_t)count;
    p->source->next += count;
    return NT_OK;
}

static nt_status
pickle_load_string(nt_pickle *p, size_t width)
{
    const uint8_t *bytes;
    size_t length;
    nt_value value;
    NT_TRY(pickle_read_bytes(p, width, &bytes, &length));
    NT_TRY(pickle_string(p, bytes, length, &value));
    return pickle_push(p, value);
}

static nt_status
pickle_load_opaque(nt_pickle *p, size_t width)
{
    const uint8_t *bytes;
    size_t length;
    NT_TRY(pickle_read_bytes(p, width, &bytes, &length));
    return pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0));
}

static nt_status
pickle_load_long(nt_pickle *p, size_t width)
{
    const uint8_t *bytes;
    size_t length;
    nt_value value;
    NT_TRY(pickle_read_bytes(p, width, &bytes, &length));
    NT_TRY(pickle_long(p, bytes, length, &value));
    return pickle_push(p, value);
}

/* BININT (signed), BININT1 and BININT2 (unsigned). */
static nt_status
pickle_load_int(nt_pickle *p, size_t width)
{
    uint64_t bits;
    NT_TRY(pickle_read_length(p, width, &bits));
    if (width == 4 && (bits >> 31) != 0) {
        bits |= UINT64_MAX << 32;
    }
    return pickle_push(p, nt_value_make(NT_VALUE_INT, bits));
}

static nt_status
pickle_load_float(nt_pickle *p)
{
    NT_TRY(pickle_need(p, 8));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++) {
        bits = bits << 8 | p->source->next[i];
    }
    p->source->next += 8;
    double real;
    memcpy(&real, &bits, sizeof real);
    nt_value value;
    NT_TRY(nt_values_float(p->values, real, &value, p->err));
    return pickle_push(p, value);
}

static nt_status
pickle_load_indexed(nt_pickle *p, size_t width, bool put)
{
    uint64_t index;
    NT_TRY(pickle_read_length(p, width, &index));
    return put ? pickle_memoize(p, index) : pickle_fetch(p, index);
}

static nt_status
pickle_load_proto(nt_pickle *p)
{
    uint64_t version;
    NT_TRY(pickle_read_length(p, 1, &version));
    if (version > 5) {
        return nt_fail(p->err, NT_MALFORMED, p->opcode_offset,
                       "pickle protocol %u is unknown (0 to 5 are read)",
                       (unsigned)version);
    }
    return NT_OK;
}

static nt_status
pickle_load_frame(nt_pickle *p)
{
    uint64_t length;
    NT_TRY(pickle_read_length(p, 8, &length));
    const uint64_t at = nt_source_offset(p->source);
    if (p->frame_end != NT_NO_OFFSET && p->frame_end != at) {
        return pickle_malformed(p, "a frame begins inside another frame");
    }
    /* Half the range of an offset: a frame that long never ends anyway. */
    if (length > UINT64_MAX / 2) {
        return pickle_malformed(p, "a frame's length is absurd");
    }
    p->frame_end = at + length;
    pickle_set_limit(p);
    return NT_OK;
}

/* POP takes a value, or the mark if nothing is above it. */
static nt_status
pickle_pop(nt_pickle *p)
{
    if (p->mark_count != 0 && p->stack_count == pickle_floor(p)) {
        p->mark_count--;
        return NT_OK;
    }
    NT_TRY(pickle_need_stack(p, 1));
    p->stack_count--;
    return NT_OK;
}

/* ADDITEMS empties a set's items into the set, FROZENSET makes one of them. */
static nt_status
pickle_drop_to_mark(nt_pickle *p, bool push_opaque)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    p->stack_count = first;
    return push_opaque ? pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0)) : NT_OK;
}

static nt_status
pickle_append_one(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 2));
    return pickle_append_from(p, p->stack_count - 1);
}

static nt_status
pickle_set_one(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 3));
    return pickle_set_from(p, p->stack_count - 2);
}

static nt_status
pickle_append_marked(nt_pickle *p)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    return pickle_append_from(p, first);
}

static nt_status
pickle_set_marked(nt_pickle *p)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    NT_TRY(pickle_set_from(p, first));
    return pickle_settle(p);
}

static nt_status
pickle_dup(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 1));
    return pickle_push(p, p->stack[p->stack_count - 1]);
}

static nt_status
pickle_load_dict(nt_pickle *p)
{
    bool done;
    p->source->next--; /* The fast way begins at the opcode itself. */
    NT_TRY(pickle_fast_records(p, &done));
    if (done) {
        return NT_OK;
    }
    p->source->next++;
    return pickle_push_container(p, NT_VALUE_DICT);
}

/* Obeys one opcode other than STOP; its own byte is consumed already. */
static nt_status
pickle_obey(nt_pickle *p, uint8_t opcode)
{
    switch (opcode) {
    case OP_EMPTY_DICT: return pickle_load_dict(p);
    case OP_EMPTY_LIST: return pickle_push_container(p, NT_VALUE_LIST);
    case OP_EMPTY_TUPLE: return pickle_build_tuple(p, 0);
    case OP_EMPTY_SET: return pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0));
    case OP_MEMOIZE: return pickle_memoize(p, p->memoized);
    case OP_BINGET: return pickle_load_indexed(p, 1, false);
    case OP_LONG_BINGET: return pickle_load_indexed(p, 4, false);
    case OP_BINPUT: return pickle_load_indexed(p, 1, true);
    case OP_LONG_BINPUT: return pickle_load_indexed(p, 4, true);
    case OP_MARK: return pickle_push_mark(p);
    case OP_APPEND: return pickle_append_one(p);
    case OP_APPENDS: return pickle_append_marked(p);
    case OP_SETITEM: return pickle_set_one(p);
    case OP_SETITEMS: return pickle_set_marked(p);
    case OP_LIST: return pickle_build_from_mark(p, NT_VALUE_LIST);
    case OP_DICT: return pickle_build_from_mark(p, NT_VALUE_DICT);
    case OP_TUPLE: return pickle_build_from_mark(p, NT_VALUE_TUPLE);
    case OP_TUPLE1: return pickle_build_tuple(p, 1);
    case OP_TUPLE2: return pickle_build_tuple(p, 2);
    case OP_TUPLE3: return pickle_build_tuple(p, 3);
    case OP_BININT: return pickle_load_int(p, 4);
    case OP_BININT1: return pickle_load_int(p, 1);
    case OP_BININT2: return pickle_load_int(p, 2);
    case OP_LONG1: return pickle_load_long(p, 1);
    case OP_LONG4: return pickle_load_long(p, 4);
    case OP_SHORT_BINUNICODE: return pickle_load_string(p, 1);
    case OP_BINUNICODE: return pickle_load_string(p, 4);
    case OP_BINUNICODE8: return pickle_load_string(p, 8);
    case OP_SHORT_BINBYTES: return pickle_load_opaque(p, 1);
    case OP_BINBYTES: return pickle_load_opaque(p, 4);
    case OP_BINBYTES8: return pickle_load_opaque(p, 8);
    case OP_BYTEARRAY8: return pickle_load_opaque(p, 8);
    case OP_BINFLOAT: return pickle_load_float(p);
    case OP_NONE: return pickle_push(p, nt_value_make(NT_VALUE_NONE, 0));
    case OP_NEWTRUE: return pickle_push(p, nt_value_make(NT_VALUE_BOOL, 1));
    case OP_NEWFALSE: return pickle_push(p, nt_value_make(NT_VALUE_BOOL, 0));
    case OP_POP: return pickle_pop(p);
    case OP_POP_MARK: return pickle_drop_to_mark(p, false);
    case OP_ADDITEMS: return pickle_drop_to_mark(p, false);
    case OP_FROZENSET: return pickle_drop_to_mark(p, true);
    case OP_DUP: return pickle_dup(p);
    case OP_FRAME: return pickle_load_frame(p);
    case OP_PROTO: return pickle_load_proto(p);
    case OP_INT:
    case OP_LONG:
    case OP_FLOAT:
    case OP_UNICODE:
    case OP_GET:
    case OP_PUT: return pickle_text_opcode(p, opcode);
    default: return pickle_refuse(p, opcode);
    }
}

static nt_status
pickle_run(nt_pickle *p)
{
    for (;;) {
        p->opcode_offset = nt_source_offset(p->source);
        NT_TRY(pickle_need(p, 1));
        const uint8_t opcode = *p->source->next++;
        if (opcode == OP_STOP) {
            return pickle_need_stack(p, 1);
        }
        NT_TRY(pickle_obey(p, opcode));
    }
}

static nt_status
pickle_intern_words(nt_pickle *p)
{
    NT_ASSERT(p->visitor->key_count <= NT_PICKLE_MOST_KEYS);
    for (size_t i = 0; i < p->visitor->word_count; i++) {
        uint32_t id;
        const char *word = p->visitor->words[i];
        NT_TRY(nt_strings_intern(p->strings, word, strlen(word), &id, p->err));
        if (id != i) {
            return nt_fail(p->err, NT_ARGUMENT, NT_NO_OFFSET,
                           "the string table must be empty");
        }
    }
    return NT_OK;
}

static nt_status
pickle_read(nt_pickle *p, nt_pickle_result *result)
{
    /* From here on the stack is an array, even when nothing stands on it. */
    NT_TRY(NT_GROW(&p->alloc, p->stack, p->stack_capacity, 64, p->err));
    NT_TRY(pickle_intern_words(p));
    const nt_status status = pickle_run(p);
    if (status != NT_OK) {
        if (!p->truncated || status != NT_MALFORMED) {
            return status;
        }
        NT_TRY(pickle_close(p));
    }
    nt_value root;
    NT_TRY(pickle_place(p, p->stack[p->stack_count - 1], &root));
    *result = (nt_pickle_result){
        .root = root,
        .end_offset = nt_source_offset(p->source),
        .truncated = p->truncated,
    };
    return NT_OK;
}

nt_status
nt_pickle_read(const nt_alloc *alloc, nt_source *source, nt_strings *strings,
               nt_values *values, const nt_pickle_visitor *visitor,
               nt_pickle_result *result, nt_error *err)
{
    nt_error own;
    nt_error *const told = err == NULL ? &own : err;
    *told = (nt_error){.offset = NT_NO_OFFSET};
    nt_pickle p = {
        .alloc = *alloc,
        .source = source,
        .strings = strings,
        .values = values,
        .visitor = visitor,
        .err = told,
        .limit = source->end,
        .frame_end = NT_NO_OFFSET,
        .generation = 1,
    };
    const nt_status status = pickle_read(&p, result);
    if (status != NT_OK && told->offset == NT_NO_OFFSET) {
        told->offset = p.opcode_offset;
    }
    NT_RELEASE(alloc, p.stack, p.stack_capacity);
    NT_RELEASE(alloc, p.marks, p.mark_capacity);
    NT_RELEASE(alloc, p.memo, p.memo_capacity);
    NT_RELEASE(alloc, p.scratch, p.scratch_capacity);
    return status;
}
