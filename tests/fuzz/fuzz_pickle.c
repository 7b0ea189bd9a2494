/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: what nt_pickle_read makes of any bytes does not depend on how they come.
 * Read from memory at once, and through an input that gives them in small pieces,
 * they end in the same status at the same offset, with equal values.
 */
#include <stdlib.h>
#include <string.h>

#include "nt_fuzz.h"
#include "trace/nt_pickle.h"

/* Values looked at when two readings are compared: containers may hold themselves. */
#define MOST_VALUES 4096
#define MOST_DEPTH 32

/* The keys of two kinds of records, as the snapshot reader declares them. */
static const char *const words[] = {"action", "frames", "filename", "name", "line"};
static const uint8_t tags[] = {0, 2};

/* Sums over what the visitor was told, by the id it gave. */
typedef struct sums {
    uint64_t *sum;
    size_t count, capacity;
} sums;

/* One reading and what came of it. */
typedef struct reading {
    nt_strings *strings;
    nt_values *values;
    nt_status status;
    nt_error err;
    nt_pickle_result result;
    sums records, sequences;
    size_t values_left;
    uint64_t sum; /* over the root and all that is in it */
} reading;

/* The id under which `sum` is kept. */
static uint32_t
sums_add(sums *s, uint64_t sum)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity * 2 + 64;
        s->sum = realloc(s->sum, s->capacity * sizeof *s->sum);
        NT_FUZZ_CHECK(s->sum != NULL);
    }
    s->sum[s->count] = sum;
    return (uint32_t)s->count++;
}

static uint64_t
sums_get(const sums *s, uint32_t id)
{
    NT_FUZZ_CHECK(id < s->count);
    return s->sum[id];
}

static uint64_t
mix(uint64_t sum, uint64_t value)
{
    return nt_mix64(sum ^ value) + value;
}

/* Strings are compared by their text: ids may differ where strings were seen and
 * given up. */
static uint64_t
mix_string(const reading *r, uint64_t sum, uint32_t id)
{
    size_t length;
    const char *text = nt_strings_get(r->strings, id, &length);
    for (size_t i = 0; i < length; i++) {
        sum = mix(sum, (uint8_t)text[i]);
    }
    return mix(sum, length);
}

static uint64_t
mix_value(reading *r, uint64_t sum, nt_value value, unsigned depth);

static uint64_t
mix_container(reading *r, uint64_t sum, nt_value value, unsigned depth)
{
    size_t count;
    const nt_value_tag tag = nt_value_tag_of(value);
    const nt_value_pair *pairs = nt_values_pairs(r->values, value, &count);
    sum = mix(sum, count);
    for (size_t i = 0; i < count; i++) {
        sum = mix_value(r, sum, pairs[i].first, depth);
        if (tag == NT_VALUE_DICT) {
            sum = mix_value(r, sum, pairs[i].second, depth);
        } else if (tag == NT_VALUE_LIST) {
            NT_FUZZ_CHECK(pairs[i].second >= 1);
            sum = mix(sum, pairs[i].second);
        }
    }
    return sum;
}

static uint64_t
mix_value(reading *r, uint64_t sum, nt_value value, unsigned depth)
{
    value = nt_values_resolve(r->values, value);
    const nt_value_tag tag = nt_value_tag_of(value);
    uint64_t bits = 0;
    if (depth >= MOST_DEPTH || r->values_left == 0) {
        return sum;
    }
    r->values_left--;
    sum = mix(sum, tag);
    switch (tag) {
    case NT_VALUE_BOOL:
    case NT_VALUE_INT:
    case NT_VALUE_BIG:
        sum = mix(sum, nt_values_get_integer(r->values, value, &bits));
        return mix(sum, bits);
    case NT_VALUE_FLOAT: {
        const double real = nt_values_get_float(r->values, value);
        memcpy(&bits, &real, sizeof bits);
        return mix(sum, bits);
    }
    case NT_VALUE_STRING:
        NT_FUZZ_CHECK(nt_value_id(value) < nt_strings_count(r->strings));
        return mix_string(r, sum, nt_value_id(value));
    case NT_VALUE_TUPLE:
    case NT_VALUE_LIST:
    case NT_VALUE_DICT: return mix_container(r, sum, value, depth + 1);
    case NT_VALUE_RECORD:
        NT_FUZZ_CHECK(nt_value_kind(value) < sizeof tags);
        return mix(sum, sums_get(&r->records, nt_value_id(value)));
    case NT_VALUE_SEQUENCE:
        return mix(sum, sums_get(&r->sequences, nt_value_id(value)));
    default: return sum;
    }
}

static nt_status
on_record(void *ctx, uint32_t kind, const nt_value *fields, uint32_t present,
          uint32_t *id, nt_error *err)
{
    reading *r = ctx;
    (void)err;
    NT_FUZZ_CHECK(kind < sizeof tags);
    NT_FUZZ_CHECK((present >> tags[kind] & 1) != 0);
    NT_FUZZ_CHECK(present >> sizeof words / sizeof *words == 0);
    uint64_t sum = mix(kind, present);
    r->values_left = 64;
    for (size_t key = 0; key < sizeof words / sizeof *words; key++) {
        if ((present >> key & 1) != 0) {
            sum = mix_value(r, sum, fields[key], MOST_DEPTH - 2);
        }
    }
    *id = sums_add(&r->records, sum);
    return NT_OK;
}

static nt_status
on_sequence(void *ctx, const uint32_t *records, size_t count, uint32_t *id,
            nt_error *err)
{
    reading *r = ctx;
    (void)err;
    NT_FUZZ_CHECK(count != 0);
    uint64_t sum = count;
    for (size_t i = 0; i < count; i++) {
        sum = mix(sum, sums_get(&r->records, records[i]));
    }
    *id = sums_add(&r->sequences, sum);
    return NT_OK;
}

/* Gives the bytes in pieces of 1 to 64, by a rule that depends on the bytes alone. */
typedef struct pieces {
    const uint8_t *data;
    size_t size, at;
} pieces;

static int
pieces_read(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    pieces *p = ctx;
    size_t piece = p->at < p->size ? (size_t)1 + p->data[p->at] % 64 : 0;
    piece = piece < capacity ? piece : capacity;
    piece = piece < p->size - p->at ? piece : p->size - p->at;
    if (piece != 0) {
        memcpy(buffer, p->data + p->at, piece);
    }
    p->at += piece;
    *count = piece;
    return 0;
}

/*
 * Memory for the source's window alone: one block that is kept, because asking for so
 * much costs more than all the rest of a run.
 */
static void *
window_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    static uint8_t *kept;
    static size_t room;
    (void)ctx;
    (void)ptr;
    NT_FUZZ_CHECK(old_size <= room);
    if (new_size > room) {
        kept = realloc(kept, new_size);
        NT_FUZZ_CHECK(kept != NULL);
        room = new_size;
    }
    return new_size == 0 ? NULL : kept;
}

static void
reading_run(reading *r, nt_source *source)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const nt_pickle_visitor visitor = {
        .ctx = r,
        .words = words,
        .word_count = sizeof words / sizeof *words,
        .key_count = sizeof words / sizeof *words,
        .tags = tags,
        .kind_count = sizeof tags,
        .sequence_kind = 1,
        .record = on_record,
        .sequence = on_sequence,
    };
    NT_FUZZ_CHECK(nt_strings_new(&alloc, &r->strings, NULL) == NT_OK);
    NT_FUZZ_CHECK(nt_values_new(&alloc, &r->values, NULL) == NT_OK);
    r->status = nt_pickle_read(&alloc, source, r->strings, r->values, &visitor,
                               &r->result, &r->err);
    nt_source_clear(source);
    r->values_left = MOST_VALUES;
    if (r->status == NT_OK) {
        r->sum = mix_value(r, 0, r->result.root, 0);
    }
}

static void
reading_clear(reading *r)
{
    nt_values_free(r->values);
    nt_strings_free(r->strings);
    free(r->records.sum);
    free(r->sequences.sum);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reading whole = {.sum = 0}, parts = {.sum = 0};
    nt_source source;
    nt_source_init_memory(&source, data, size, NULL);
    reading_run(&whole, &source);
    pieces input = {.data = data, .size = size};
    nt_source_init_input(&source, (nt_alloc){window_resize, NULL},
                         (nt_input){pieces_read, &input}, NULL);
    reading_run(&parts, &source);
    NT_FUZZ_CHECK(whole.status == parts.status);
    if (whole.status == NT_OK) {
        NT_FUZZ_CHECK(whole.result.end_offset <= size);
        NT_FUZZ_CHECK(whole.result.end_offset == parts.result.end_offset);
        NT_FUZZ_CHECK(whole.result.truncated == parts.result.truncated);
        NT_FUZZ_CHECK(whole.sum == parts.sum);
    } else {
        NT_FUZZ_CHECK(whole.err.offset <= size);
        NT_FUZZ_CHECK(whole.err.offset == parts.err.offset);
        NT_FUZZ_CHECK(strcmp(whole.err.message, parts.err.message) == 0);
    }
    reading_clear(&whole);
    reading_clear(&parts);
    nt_fuzz_finish();
    return 0;
}
