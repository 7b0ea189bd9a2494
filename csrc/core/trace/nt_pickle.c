/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pickle.h"

#include <string.h>

#include "base/nt_utf8.h"
#include "trace/nt_pickle_machine.h"

nt_status
nt_pickle_malformed(nt_pickle *p, const char *what)
{
    (void)nt_fail(p->err, NT_MALFORMED, p->opcode_offset, "%s", what);
    return NT_MALFORMED;
}

void
nt_pickle_set_limit(nt_pickle *p)
{
    p->limit = p->source->end;
    if (p->frame_end != NT_NO_OFFSET && p->frame_end < p->source->end_offset) {
        p->limit -= p->source->end_offset - p->frame_end;
    }
}

nt_status
nt_pickle_need_slow(nt_pickle *p, uint64_t count)
{
    const uint64_t at = nt_source_offset(p->source);
    if (p->frame_end != NT_NO_OFFSET && p->frame_end - at < count) {
        if (at != p->frame_end || at != p->opcode_offset) {
            return nt_pickle_malformed(p, "an opcode runs across the end of its frame");
        }
        p->frame_end = NT_NO_OFFSET;
    }
    const size_t wanted = count > SIZE_MAX ? SIZE_MAX : (size_t)count;
    NT_TRY(nt_source_fill(p->source, wanted, p->err));
    nt_pickle_set_limit(p);
    if ((uint64_t)(p->source->end - p->source->next) < count) {
        p->truncated = true;
        return nt_pickle_malformed(p, "the file ends inside the pickle");
    }
    return NT_OK;
}

nt_status
nt_pickle_push(nt_pickle *p, nt_value value)
{
    if (NT_UNLIKELY(p->stack_count == p->stack_capacity)) {
        NT_TRY(nt_grow(&p->alloc, (void **)&p->stack, &p->stack_capacity,
                       p->stack_count + 1, sizeof(nt_value), p->err));
    }
    p->stack[p->stack_count++] = value;
    return NT_OK;
}

static nt_status
pickle_need_stack(nt_pickle *p, size_t count)
{
    if (p->stack_count - nt_pickle_floor(p) < count) {
        return nt_pickle_malformed(p, "an opcode finds too few values on the stack");
    }
    return NT_OK;
}

nt_status
nt_pickle_string(nt_pickle *p, const uint8_t *bytes, size_t length, nt_value *out)
{
    if (!nt_utf8_check(bytes, length)) {
        return nt_pickle_malformed(p, "a string is not UTF-8");
    }
    uint32_t id;
    NT_TRY(nt_strings_intern(p->strings, bytes, length, &id, p->err));
    *out = nt_value_make(NT_VALUE_STRING, id);
    return NT_OK;
}

/* Sets memo entry `index`; no index beyond the number of bytes read. */
static nt_status
pickle_memo_put(nt_pickle *p, uint64_t index, nt_value value)
{
    /* Every put costs a byte at least, so an honest index is below the offset. */
    if (index >= nt_source_offset(p->source)) {
        return nt_pickle_malformed(p, "a memo index is larger than the file so far");
    }
    const size_t need = (size_t)index + 1;
    if (need > p->memo_count) {
        NT_TRY(nt_pickle_grow_memo(p, need));
        memset(p->memo + p->memo_count, 0, (need - p->memo_count) * sizeof(nt_value));
        p->memo_count = need;
        p->memoized++;
    } else {
        p->memoized += p->memo[index] == NT_VALUE_ABSENT;
        nt_pickle_forget_steps(p);
    }
    p->memo[index] = value;
    return NT_OK;
}

/* The memo entry `index`; NT_MALFORMED if it was never set. */
static nt_status
pickle_memo_get(nt_pickle *p, uint64_t index, nt_value *out)
{
    if (index >= p->memo_count || p->memo[index] == NT_VALUE_ABSENT) {
        return nt_pickle_malformed(p, "a memo entry is fetched that was never stored");
    }
    *out = nt_values_resolve(p->values, p->memo[index]);
    return NT_OK;
}

nt_status
nt_pickle_long(nt_pickle *p, const uint8_t *bytes, size_t count, nt_value *out)
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

nt_status
nt_pickle_memoize(nt_pickle *p, uint64_t index)
{
    NT_TRY(pickle_need_stack(p, 1));
    return pickle_memo_put(p, index, p->stack[p->stack_count - 1]);
}

nt_status
nt_pickle_fetch(nt_pickle *p, uint64_t index)
{
    nt_value value = NT_VALUE_ABSENT;
    NT_TRY(pickle_memo_get(p, index, &value));
    return nt_pickle_push(p, value);
}

static nt_status
pickle_push_mark(nt_pickle *p)
{
    if (p->mark_count >= NT_PICKLE_MOST_DEPTH) {
        return nt_fail(p->err, NT_LIMIT, p->opcode_offset,
                       "containers are nested more than %d deep", NT_PICKLE_MOST_DEPTH);
    }
    NT_TRY(nt_grow(&p->alloc, (void **)&p->marks, &p->mark_capacity, p->mark_count + 1,
                   sizeof(size_t), p->err));
    p->marks[p->mark_count++] = p->stack_count;
    return NT_OK;
}

/* The stack height at the last mark, which is taken away. */
static nt_status
pickle_pop_mark(nt_pickle *p, size_t *first)
{
    if (p->mark_count == 0) {
        return nt_pickle_malformed(p, "an opcode looks for a mark and there is none");
    }
    *first = p->marks[--p->mark_count];
    return NT_OK;
}

nt_status
nt_pickle_append_from(nt_pickle *p, size_t first)
{
    if (first <= nt_pickle_floor(p) ||
        nt_value_tag_of(p->stack[first - 1]) != NT_VALUE_LIST) {
        return nt_pickle_malformed(p, "values are appended to what is no list");
    }
    for (size_t i = first; i < p->stack_count;) {
        nt_value item;
        NT_TRY(nt_pickle_place(p, p->stack[i++], &item));
        /* Records that count up go in as one run. */
        uint64_t count = 1;
        while (nt_value_tag_of(item) == NT_VALUE_RECORD && i < p->stack_count &&
               p->stack[i] == item + (count << 4)) {
            count++;
            i++;
        }
        NT_TRY(nt_values_append(p->values, p->stack[first - 1], item, count, p->err));
        NT_TRY(nt_pickle_check_bound(p, p->stack[first - 1], 0, item));
    }
    p->stack_count = first;
    return NT_OK;
}

nt_status
nt_pickle_set_from(nt_pickle *p, size_t first)
{
    if (first <= nt_pickle_floor(p) ||
        nt_value_tag_of(p->stack[first - 1]) != NT_VALUE_DICT) {
        return nt_pickle_malformed(p, "keys are set in what is no dict");
    }
    if ((p->stack_count - first) % 2 != 0) {
        return nt_pickle_malformed(p, "a dict gets a key without a value");
    }
    for (size_t i = first; i < p->stack_count; i += 2) {
        nt_value item;
        NT_TRY(nt_pickle_place(p, p->stack[i + 1], &item));
        NT_TRY(
            nt_values_set(p->values, p->stack[first - 1], p->stack[i], item, p->err));
    }
    p->stack_count = first;
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
            NT_TRY(nt_pickle_place(p, p->stack[i], &p->stack[i]));
        }
        NT_TRY(nt_values_tuple(p->values, p->stack + first, p->stack_count - first,
                               &made, p->err));
        p->stack_count = first;
        return nt_pickle_push(p, made);
    }
    NT_TRY(nt_values_container(p->values, tag, &made, p->err));
    NT_TRY(nt_pickle_push(p, made));
    memmove(p->stack + first + 1, p->stack + first,
            (p->stack_count - 1 - first) * sizeof(nt_value));
    p->stack[first] = made;
    return tag == NT_VALUE_LIST ? nt_pickle_append_from(p, first + 1)
                                : nt_pickle_set_from(p, first + 1);
}

static nt_status
pickle_build_tuple(nt_pickle *p, size_t count)
{
    NT_TRY(pickle_need_stack(p, count));
    const size_t first = p->stack_count - count;
    for (size_t i = first; i < p->stack_count; i++) {
        NT_TRY(nt_pickle_place(p, p->stack[i], &p->stack[i]));
    }
    nt_value tuple;
    NT_TRY(nt_values_tuple(p->values, p->stack + first, count, &tuple, p->err));
    p->stack_count = first;
    return nt_pickle_push(p, tuple);
}

static nt_status
pickle_push_container(nt_pickle *p, nt_value_tag tag)
{
    nt_value made;
    NT_TRY(nt_values_container(p->values, tag, &made, p->err));
    return nt_pickle_push(p, made);
}

/* `width` bytes of a little-endian length at source->next. */
static nt_status
pickle_read_length(nt_pickle *p, size_t width, uint64_t *out)
{
    NT_TRY(nt_pickle_need(p, width));
    const uint8_t *at = p->source->next;
    *out = width == 1   ? at[0]
           : width == 2 ? nt_pickle_u16(at)
           : width == 4 ? nt_pickle_u32(at)
                        : nt_pickle_u64(at);
    p->source->next += width;
    return NT_OK;
}

/* A length of `width` bytes, then that many: they are at *bytes and consumed. */
static nt_status
pickle_read_bytes(nt_pickle *p, size_t width, const uint8_t **bytes, size_t *length)
{
    uint64_t count;
    NT_TRY(pickle_read_length(p, width, &count));
    NT_TRY(nt_pickle_need(p, count));
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
    NT_TRY(nt_pickle_string(p, bytes, length, &value));
    return nt_pickle_push(p, value);
}

static nt_status
pickle_load_opaque(nt_pickle *p, size_t width)
{
    const uint8_t *bytes;
    size_t length;
    NT_TRY(pickle_read_bytes(p, width, &bytes, &length));
    return nt_pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0));
}

static nt_status
pickle_load_long(nt_pickle *p, size_t width)
{
    const uint8_t *bytes;
    size_t length;
    nt_value value;
    NT_TRY(pickle_read_bytes(p, width, &bytes, &length));
    NT_TRY(nt_pickle_long(p, bytes, length, &value));
    return nt_pickle_push(p, value);
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
    return nt_pickle_push(p, nt_value_make(NT_VALUE_INT, bits));
}

static nt_status
pickle_load_float(nt_pickle *p)
{
    NT_TRY(nt_pickle_need(p, 8));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++) {
        bits = bits << 8 | p->source->next[i];
    }
    p->source->next += 8;
    double real;
    memcpy(&real, &bits, sizeof real);
    nt_value value;
    NT_TRY(nt_values_float(p->values, real, &value, p->err));
    return nt_pickle_push(p, value);
}

static nt_status
pickle_load_indexed(nt_pickle *p, size_t width, bool put)
{
    uint64_t index;
    NT_TRY(pickle_read_length(p, width, &index));
    return put ? nt_pickle_memoize(p, index) : nt_pickle_fetch(p, index);
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
        return nt_pickle_malformed(p, "a frame begins inside another frame");
    }
    /* Half the range of an offset: a frame that long never ends anyway. */
    if (length > UINT64_MAX / 2) {
        return nt_pickle_malformed(p, "a frame's length is absurd");
    }
    p->frame_end = at + length;
    nt_pickle_set_limit(p);
    return NT_OK;
}

/* POP takes a value, or the mark if nothing is above it. */
static nt_status
pickle_pop(nt_pickle *p)
{
    if (p->mark_count != 0 && p->stack_count == nt_pickle_floor(p)) {
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
    return push_opaque ? nt_pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0)) : NT_OK;
}

static nt_status
pickle_append_one(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 2));
    return nt_pickle_append_from(p, p->stack_count - 1);
}

static nt_status
pickle_set_one(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 3));
    return nt_pickle_set_from(p, p->stack_count - 2);
}

static nt_status
pickle_append_marked(nt_pickle *p)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    return nt_pickle_append_from(p, first);
}

static nt_status
pickle_set_marked(nt_pickle *p)
{
    size_t first;
    NT_TRY(pickle_pop_mark(p, &first));
    NT_TRY(nt_pickle_set_from(p, first));
    return nt_pickle_settle(p);
}

static nt_status
pickle_dup(nt_pickle *p)
{
    NT_TRY(pickle_need_stack(p, 1));
    return nt_pickle_push(p, p->stack[p->stack_count - 1]);
}

static nt_status
pickle_load_dict(nt_pickle *p)
{
    bool done;
    p->source->next--; /* The fast way begins at the opcode itself. */
    NT_TRY(nt_pickle_fast_records(p, &done));
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
    case OP_EMPTY_SET: return nt_pickle_push(p, nt_value_make(NT_VALUE_OPAQUE, 0));
    case OP_MEMOIZE: return nt_pickle_memoize(p, p->memoized);
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
    case OP_NONE: return nt_pickle_push(p, nt_value_make(NT_VALUE_NONE, 0));
    case OP_NEWTRUE: return nt_pickle_push(p, nt_value_make(NT_VALUE_BOOL, 1));
    case OP_NEWFALSE: return nt_pickle_push(p, nt_value_make(NT_VALUE_BOOL, 0));
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
    case OP_PUT: return nt_pickle_text_opcode(p, opcode);
    default: return nt_pickle_refuse(p, opcode);
    }
}

/* Runs up to STOP. */
static nt_status
pickle_run(nt_pickle *p)
{
    for (;;) {
        p->opcode_offset = nt_source_offset(p->source);
        NT_TRY(nt_pickle_need(p, 1));
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
    NT_TRY(nt_grow(&p->alloc, (void **)&p->stack, &p->stack_capacity, 64,
                   sizeof(nt_value), p->err));
    NT_TRY(pickle_intern_words(p));
    const nt_status status = pickle_run(p);
    if (status != NT_OK) {
        if (!p->truncated || status != NT_MALFORMED) {
            return status;
        }
        NT_TRY(nt_pickle_close(p));
    }
    nt_value root;
    NT_TRY(nt_pickle_place(p, p->stack[p->stack_count - 1], &root));
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
    nt_release(alloc, p.stack, p.stack_capacity * sizeof(nt_value));
    nt_release(alloc, p.marks, p.mark_capacity * sizeof(size_t));
    nt_release(alloc, p.memo, p.memo_capacity * sizeof(nt_value));
    nt_release(alloc, p.scratch, p.scratch_capacity * sizeof(uint32_t));
    return status;
}
