/* SPDX-License-Identifier: Apache-2.0 */
/* A pickle reader that cannot be attacked: protocols 0 to 5 as data. There is no way to
 * name a class, to call anything or to reach outside; opcodes that would are refused
 * with their name and offset. Dicts that the visitor has declared as records are handed
 * over as they come, so that a trace of a million events never stands as a tree of
 * values.
 *
 * Bounds: nothing is allocated on the word of a length, memo index or count before the
 * bytes are there; memory and time are linear in the bytes read. */
#ifndef NT_PICKLE_H
#define NT_PICKLE_H

#include "base/nt_base.h"
#include "base/nt_map.h"
#include "trace/nt_source.h"
#include "trace/nt_value.h"

/* Most keys that a visitor may declare. */
#define NT_PICKLE_MOST_KEYS 32

/* How deep containers may be nested; snapshots need eight levels. */
#define NT_PICKLE_MOST_DEPTH 256

/* The most dicts with word number `key` among their keys that one list may hold: one
 * more is NT_LIMIT, as soon as its bytes are there. `most` 0 bounds nothing. */
typedef struct nt_pickle_bound {
    uint32_t key;
    size_t most;
    const char *name; /* what these dicts are, for the message */
} nt_pickle_bound;

/* What is said about records. A dict whose keys include word number tags[k] is a record
 * of kind k (the lowest k counts). A list of nothing but records of kind
 * `sequence_kind`, one at least, is a sequence. */
typedef struct nt_pickle_visitor {
    void *ctx;
    const char *const *words; /* interned first: word i has string id i */
    size_t word_count;
    size_t key_count;    /* the first of the words: the keys of records */
    const uint8_t *tags; /* kind_count key numbers */
    size_t kind_count;
    uint32_t sequence_kind;
    nt_pickle_bound bound;

    /* fields[i] is the value under key i, resolved, where bit i of `present` is set,
     * else NT_VALUE_ABSENT. Gives the record's id. An error without offset gets the
     * opcode's. */
    nt_status (*record)(void *ctx, uint32_t kind, const nt_value *fields,
                        uint32_t present, uint32_t *id, nt_error *err);

    /* `count` records of the sequence kind; gives the sequence's id. */
    nt_status (*sequence)(void *ctx, const uint32_t *records, size_t count,
                          uint32_t *id, nt_error *err);
} nt_pickle_visitor;

/* How the reading ended, apart from errors. */
typedef struct nt_pickle_result {
    nt_value root;       /* what the pickle holds, resolved */
    uint64_t end_offset; /* byte after STOP, or where the input ended */
    bool truncated;      /* the input ended before STOP: what was open is closed,
                          * and an unfinished dict in a list is left out */
} nt_pickle_result;

/* Reads one pickle from `source`. Strings go into `strings` (which must be empty),
 * values into `values`; both must outlive the use of the result. NT_REFUSED for an
 * opcode that is never obeyed, NT_MALFORMED for anything that breaks the format, with
 * err->offset at the opcode. An input that ends before anything stands is
 * NT_MALFORMED. */
nt_status
nt_pickle_read(const nt_alloc *alloc, nt_source *source, nt_strings *strings,
               nt_values *values, const nt_pickle_visitor *visitor,
               nt_pickle_result *result, nt_error *err) NT_CHECKED;

#endif
