/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of nt_pickle's stack machine, shared by its files and by
 * nobody else: nt_pickle.c (opcodes one by one), nt_pickle_record.c (dicts that
 * are records), nt_pickle_fast.c and nt_pickle_template.c (the fast ways through
 * those), nt_pickle_close.c (what a truncated input left open), nt_pickle_refuse.c
 * (what is never obeyed) and nt_pickle_text.c (protocol 0's lines of text).
 */
#ifndef NT_PICKLE_MACHINE_H
#define NT_PICKLE_MACHINE_H

#include <string.h>

#include "trace/nt_pickle.h"

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

/*
 * One step of a record's form as it was seen last: the bytes of the opcode that
 * fetched the key, and of a short string that was its value. The next record is
 * held against them before anything is decoded.
 */
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

/*
 * A list of fetched records as it was seen last: the bytes from its first item up to
 * APPENDS. The same bytes are the same sequence, as long as the memo entries stand.
 */
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

/*
 * A form of whole records. Parts follow each other with one open value between them;
 * the last one ends with SETITEMS.
 */
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
nt_pickle_u16(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint16_t, at);
}

static inline uint32_t
nt_pickle_u32(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint32_t, at);
}

static inline uint64_t
nt_pickle_u64(const uint8_t *at)
{
    NT_PICKLE_LOAD(uint64_t, at);
}

/* The mask of a word's first `count` bytes in memory, 0 to 8. */
static inline uint64_t
nt_pickle_low_bytes(size_t count)
{
    return count == 0 ? 0 : UINT64_MAX >> 8 * (8 - count);
}

/* Reports NT_MALFORMED at the current opcode. */
nt_status
nt_pickle_malformed(nt_pickle *p, const char *what);

/*
 * `count` bytes are at source->next .. limit. When the input ends before them,
 * p->truncated is set and NT_MALFORMED returned.
 */
nt_status
nt_pickle_need_slow(nt_pickle *p, uint64_t count);

static inline nt_status
nt_pickle_need(nt_pickle *p, uint64_t count)
{
    if (NT_LIKELY((uint64_t)(p->limit - p->source->next) >= count)) {
        return NT_OK;
    }
    return nt_pickle_need_slow(p, count);
}

/* Sets p->limit anew after the window or the frame changed. */
void
nt_pickle_set_limit(nt_pickle *p);

nt_status
nt_pickle_push(nt_pickle *p, nt_value value);

/* How low the stack may be popped: to the last mark. */
static inline size_t
nt_pickle_floor(const nt_pickle *p)
{
    return p->mark_count == 0 ? 0 : p->marks[p->mark_count - 1];
}

/* Appends the values from stack height `first` up to the list below them. */
nt_status
nt_pickle_append_from(nt_pickle *p, size_t first);

/* Puts the pairs from stack height `first` up into the dict below them. */
nt_status
nt_pickle_set_from(nt_pickle *p, size_t first);

/* The top of the stack goes into memo entry `index`. */
nt_status
nt_pickle_memoize(nt_pickle *p, uint64_t index);

/* Memo entry `index` is pushed. */
nt_status
nt_pickle_fetch(nt_pickle *p, uint64_t index);

/* The string of `length` UTF-8 bytes (surrogates allowed, as Python writes them). */
nt_status
nt_pickle_string(nt_pickle *p, const uint8_t *bytes, size_t length, nt_value *out);

/* Forgets the forms: the memo entries that they rest on may have changed. */
static inline void
nt_pickle_forget_steps(nt_pickle *p)
{
    p->template_count = 0;
    p->generation++;
    for (size_t i = 0; i < NT_PICKLE_MOST_STEPS; i++) {
        p->steps[0][i].key_mask = 0;
        p->steps[1][i].key_mask = 0;
    }
}

/* What an integer of `count` little-endian bytes (LONG1, LONG4) is. */
nt_status
nt_pickle_long(nt_pickle *p, const uint8_t *bytes, size_t count, nt_value *out);

/* nt_pickle_record.c ------------------------------------------------------- */

/* `value` is put into a container: a dict that is a record and a list that is a
 * sequence are handed to the visitor, and *out stands for it. */
nt_status
nt_pickle_place(nt_pickle *p, nt_value value, nt_value *out);

/* The dict on top of the stack has just got its pairs: if it is whole, it is placed
 * now, so that records keep their order whichever way they are read. */
nt_status
nt_pickle_settle(nt_pickle *p);

/* NT_LIMIT if `item`, which was placed, is one of the dicts that are bounded, and the
 * list holds too many with the `waiting` items that are still to be appended. */
nt_status
nt_pickle_check_bound(nt_pickle *p, nt_value list, size_t waiting, nt_value item);

/* Calls the visitor for a record; *out stands for it. */
nt_status
nt_pickle_emit_record(nt_pickle *p, uint32_t kind, const nt_value *fields,
                      uint32_t present, nt_value *out);

/* The kind that a dict with the `present` keys is, or NT_NONE. */
uint32_t
nt_pickle_record_kind(const nt_pickle *p, uint32_t present);

/* Calls the visitor for the sequence of `count` records in p->scratch. */
nt_status
nt_pickle_emit_sequence(nt_pickle *p, size_t count, nt_value *out);

/* Room for `count` ids in p->scratch. */
nt_status
nt_pickle_reserve_scratch(nt_pickle *p, size_t count);

/* Whether it is a record that sequences are made of. */
static inline bool
nt_pickle_is_element(const nt_pickle *p, nt_value value)
{
    return nt_value_tag_of(value) == NT_VALUE_RECORD &&
           nt_value_kind(value) == p->visitor->sequence_kind;
}

/* nt_pickle_fast.c --------------------------------------------------------- */

/*
 * At an EMPTY_DICT opcode: reads whole records that lie in the window and pushes
 * them, as many as follow each other. *done is false, and nothing has happened,
 * when the first is not of the expected form: then the opcodes go one by one.
 */
nt_status
nt_pickle_fast_records(nt_pickle *p, bool *done);

/* Room for `need` entries in the memo, and where that is foreseen, for all that are to
 * come: a memo that moves as it grows leaves as much room unused. */
nt_status
nt_pickle_grow_memo(nt_pickle *p, size_t need);

/* nt_pickle_close.c -------------------------------------------------------- */

/* Closes what a truncated input left open; one value stands on the stack then. */
nt_status
nt_pickle_close(nt_pickle *p);

/* nt_pickle_refuse.c ------------------------------------------------------- */

/* The error for an opcode that is refused or unknown. */
nt_status
nt_pickle_refuse(nt_pickle *p, uint8_t opcode);

/* nt_pickle_text.c --------------------------------------------------------- */

/* INT, LONG, FLOAT, UNICODE, GET and PUT: opcodes with a line of text. */
nt_status
nt_pickle_text_opcode(nt_pickle *p, uint8_t opcode);

#endif
