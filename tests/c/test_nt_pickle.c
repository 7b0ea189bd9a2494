/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pickle.h"

#include <stdio.h>
#include <string.h>

#include "nt_test.h"

/* Dicts with "x" are records of kind 0 (their ids count up, their sum is kept), those
 * with "f" of kind 1, of which lists are sequences. Of those with "w" a list may hold
 * two. */
static const char *const words[] = {"x", "y", "f", "w"};
static const uint8_t tags[] = {0, 2};

typedef struct pickle_log {
    size_t records, sequences, elements;
    uint64_t ys;
    nt_values *values;
} pickle_log;

static nt_status
log_record(void *ctx, uint32_t kind, const nt_value *fields, uint32_t present,
           uint32_t *id, nt_error *err)
{
    (void)err;
    pickle_log *log = ctx;
    uint64_t y = 0;
    if (kind == 0 && (present & 2) != 0 &&
        nt_values_get_integer(log->values, fields[1], &y)) {
        log->ys += y;
    }
    *id = (uint32_t)log->records++;
    return NT_OK;
}

static nt_status
log_sequence(void *ctx, const uint32_t *records, size_t count, uint32_t *id,
             nt_error *err)
{
    (void)err;
    (void)records;
    pickle_log *log = ctx;
    log->elements += count;
    *id = (uint32_t)log->sequences++;
    return NT_OK;
}

typedef struct pickle_read {
    nt_strings *strings;
    nt_values *values;
    pickle_log log;
    nt_pickle_result result;
    nt_error err;
} pickle_read;

static nt_status
pickle_run(pickle_read *r, const nt_alloc *alloc, const void *bytes, size_t size)
{
    *r = (pickle_read){.err.offset = NT_NO_OFFSET};
    nt_status status = nt_strings_new(alloc, &r->strings, &r->err);
    if (status == NT_OK) {
        status = nt_values_new(alloc, &r->values, &r->err);
    }
    if (status != NT_OK) {
        return status;
    }
    r->log.values = r->values;
    const nt_pickle_visitor visitor = {
        .ctx = &r->log,
        .words = words,
        .word_count = 4,
        .key_count = 3,
        .tags = tags,
        .kind_count = 2,
        .sequence_kind = 1,
        .bound = {3, 2, "wide dicts"},
        .record = log_record,
        .sequence = log_sequence,
    };
    nt_source source;
    nt_source_init_memory(&source, bytes, size, NULL);
    status = nt_pickle_read(alloc, &source, r->strings, r->values, &visitor, &r->result,
                            &r->err);
    nt_source_clear(&source);
    return status;
}

static void
pickle_clear(pickle_read *r)
{
    nt_values_free(r->values);
    nt_strings_free(r->strings);
}

#define READ(literal) pickle_run(&r, &alloc, literal, sizeof(literal) - 1)

NT_TEST(records_are_told_as_they_come)
{
    const nt_alloc alloc = nt_alloc_system();
    pickle_read r;
    /* Twice the same list of dicts: opcode by opcode, and in the form of traces. */
    NT_CHECK_OK(READ("\x80\x04](}\x8c\x01xK\x01s}\x8c\x01yK\x05se."), &r.err);
    NT_CHECK_UINT(r.log.records, 1);
    pickle_clear(&r);
    NT_CHECK_OK(READ("\x80\x04]\x94(}\x94(\x8c\x01x\x94K\x01\x8c\x01y\x94K\x07u"
                     "}\x94(h\x02K\x02h\x03K\x08u}\x94(h\x02K\x02h\x03K\x09ue."
                     "trailing bytes that nobody reads, whatever they are"),
                &r.err);
    NT_CHECK_UINT(r.log.records, 3);
    NT_CHECK_UINT(r.log.ys, 24);
    size_t count;
    const nt_value_pair *runs = nt_values_pairs(r.values, r.result.root, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 1));
    NT_CHECK_UINT(runs[0].second, 3);
    NT_CHECK(!r.result.truncated);
    pickle_clear(&r);
}

NT_TEST(shared_lists_are_one_sequence)
{
    const nt_alloc alloc = nt_alloc_system();
    pickle_read r;
    NT_CHECK_OK(READ("\x80\x04}(\x8c\x01"
                     "a]\x94(}\x8c\x01"
                     "fK\x01s}\x8c\x01"
                     "fK\x01se\x8c\x01"
                     "bh\x00\x8c\x01"
                     "ch\x00u."),
                &r.err);
    NT_CHECK_UINT(r.log.sequences, 1);
    NT_CHECK_UINT(r.log.elements, 2);
    pickle_clear(&r);
}

NT_TEST(every_dangerous_opcode_is_refused)
{
    static const uint8_t refused[] = {'c',  0x93, 'R',  'b',  'i',  'o',
                                      0x81, 0x92, 0x82, 0x83, 0x84, 'P',
                                      'Q',  0x97, 0x98, 'S',  'T',  'U'};
    const nt_alloc alloc = nt_alloc_system();
    for (size_t i = 0; i < sizeof refused; i++) {
        pickle_read r;
        const uint8_t bytes[] = {0x80, 4, ')', refused[i], '\n', '\n', '.'};
        NT_CHECK_STATUS(pickle_run(&r, &alloc, bytes, sizeof bytes), NT_REFUSED,
                        &r.err);
        NT_CHECK_UINT(r.err.offset, 3);
        NT_CHECK(strstr(r.err.message, "is refused") != NULL);
        pickle_clear(&r);
    }
}

NT_TEST(malformed_pickles_are_told_where)
{
    static const struct {
        const char *bytes;
        size_t size;
        uint64_t offset;
    } cases[] = {
        {"\x80\x06.", 3, 0},     /* protocol */
        {"\x80\x04\xff.", 4, 2}, /* no opcode */
        {"\x80\x04"
         "e.",
         4, 2}, /* no mark */
        {"\x80\x04"
         "K\x01(K\x02"
         "e.",
         8, 7},                              /* no list */
        {"\x80\x04h\x05.", 5, 2},            /* memo never set */
        {"\x80\x04Nq\xff.", 6, 3},           /* memo index beyond the file */
        {"\x80\x04}(K\x01u.", 7, 6},         /* key without value */
        {"\x80\x04.", 3, 2},                 /* nothing on the stack */
        {"\x80\x04\x8c\x02\xc0\x80.", 7, 2}, /* not UTF-8 */
        {"\x80\x04\x95\x01\0\0\0\0\0\0\0K\x01.", 14, 11}, /* across its frame */
        {"Ixyz\n.", 6, 0},
        {"V\\u12\n.", 7, 0},
        /* Cut off, and what is open is a record by now. */
        {"\x80\x04}\x94(\x8c\x01y]\x94(h\x00(\x8c\x01xK\x01u}", 21, 21},
    };
    const nt_alloc alloc = nt_alloc_system();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pickle_read r;
        NT_CHECK_STATUS(pickle_run(&r, &alloc, cases[i].bytes, cases[i].size),
                        NT_MALFORMED, &r.err);
        if (!NT_CHECK_UINT(r.err.offset, cases[i].offset)) {
            NT_FAIL("case %zu: %s", i, r.err.message);
        }
        pickle_clear(&r);
    }
}

NT_TEST(lengths_are_not_believed)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    pickle_read r;
    static const char huge[] = "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fxyz";
    NT_CHECK_STATUS(pickle_run(&r, &hostile.alloc, huge, sizeof huge - 1), NT_MALFORMED,
                    &r.err);
    NT_CHECK(hostile.peak_bytes < 100000);
    pickle_clear(&r);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(depth_is_bounded)
{
    const nt_alloc alloc = nt_alloc_system();
    pickle_read r;
    char bytes[1000];
    memset(bytes, '(', sizeof bytes);
    NT_CHECK_STATUS(pickle_run(&r, &alloc, bytes, sizeof bytes), NT_LIMIT, &r.err);
    NT_CHECK_UINT(r.err.offset, NT_PICKLE_MOST_DEPTH);
    pickle_clear(&r);
}

NT_TEST(bounded_dicts_are_refused_as_they_come)
{
    const nt_alloc alloc = nt_alloc_system();
    static const struct {
        const char *bytes;
        size_t size, offset; /* 0: within the bound */
    } cases[] = {
#define CASE(literal, offset) {literal, sizeof(literal) - 1, offset}
#define W "}(\x8c\x01wK\x01u" /* {"w": 1}, 8 bytes */
#define Z "}(\x8c\x01zK\x01u"
        CASE("\x80\x04](" W W "e.", 0),
        CASE("\x80\x04](" W W Z Z Z "e.", 0),
        CASE("\x80\x04](](" W W "e](" W W "ee.", 0),
        /* All behind one mark: nothing that follows is waited for. */
        CASE("\x80\x04](" W Z W "}}}}}", 2 + 2 + 3 * 8 - 1),
        CASE("\x80\x04](" W W "e(" W "}zzz", 2 + 2 + 2 * 8 + 2 + 8 - 1),
        CASE("\x80\x04]" W "a" W "a" W "azzz", 2 + 1 + 3 * 9 - 1),
        /* One that is put in again and again. */
        CASE("\x80\x04](}\x94(\x8c\x01wK\x01uh\x00h\x00"
             "ezzz",
             2 + 2 + 9 + 4),
#undef CASE
#undef W
#undef Z
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pickle_read r;
        const nt_status status = pickle_run(&r, &alloc, cases[i].bytes, cases[i].size);
        NT_CHECK_STATUS(status, cases[i].offset == 0 ? NT_OK : NT_LIMIT, &r.err);
        if (cases[i].offset != 0) {
            NT_CHECK_UINT(r.err.offset, cases[i].offset);
            NT_CHECK_STR(r.err.message, "more than 2 wide dicts");
        }
        pickle_clear(&r);
    }
}

NT_TEST(truncated_lists_keep_whole_items)
{
    static const char whole[] =
        "\x80\x04]\x94(}\x94(\x8c\x01x\x94K\x01\x8c\x01y\x94K\x07u"
        "}\x94(h\x02K\x02h\x03K\x08u}\x94(h\x02K\x02h\x03K\x09ue.";
    const nt_alloc alloc = nt_alloc_system();
    size_t before = 0;
    for (size_t size = 3; size < sizeof whole - 1; size++) {
        pickle_read r;
        NT_REQUIRE(NT_CHECK_OK(pickle_run(&r, &alloc, whole, size), &r.err));
        NT_CHECK(r.result.truncated);
        size_t runs, items = 0;
        const nt_value_pair *pairs = nt_values_pairs(r.values, r.result.root, &runs);
        for (size_t i = 0; i < runs; i++) {
            NT_CHECK(nt_value_tag_of(pairs[i].first) == NT_VALUE_RECORD);
            items += (size_t)pairs[i].second;
        }
        NT_CHECK(items >= before && items <= 3);
        before = items;
        pickle_clear(&r);
    }
    NT_CHECK_UINT(before, 3);
}

/* Values that go into the memo one after the other. */
enum { MEMOIZED = 140000 };

static nt_status
pickle_long_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    static uint8_t bytes[3 * MEMOIZED + 8] = {0x80, 4};
    uint8_t *at = bytes + 2;
    for (size_t i = 0; i < MEMOIZED; i++) {
        memcpy(at, "N\x94\x30", 3); /* NONE, MEMOIZE, POP */
        at += 3;
    }
    memcpy(at, "j\xdf\x22\x02\0.", 6); /* entry 139,999 */
    pickle_read r;
    const nt_status status = pickle_run(&r, alloc, bytes, (size_t)(at + 6 - bytes));
    if (status == NT_OK) {
        NT_CHECK_UINT(nt_value_tag_of(r.result.root), NT_VALUE_NONE);
    }
    pickle_clear(&r);
    return status;
}

NT_TEST(room_for_the_memo_is_foreseen)
{
    nt_budget budget;
    nt_budget_init(&budget, nt_alloc_system(), SIZE_MAX);
    const nt_alloc alloc = nt_budget_alloc(&budget);
    NT_CHECK_UINT(pickle_long_body(t, &alloc, NULL), NT_OK);
    /* Twice as much at the most where it is not. */
    NT_CHECK(budget.peak < MEMOIZED * sizeof(nt_value) + 300000);
    nt_test_sweep(t, pickle_long_body, NULL);
}

static nt_status
pickle_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    (void)ctx;
    static const char text[] =
        "(lp0\n(dp1\nVx\np2\nI1\nsVy\nL5L\nsa(dp3\ng2\nF0.5\nsa.";
    static const char binary[] =
        "\x80\x04]\x94(}\x94(\x8c\x01x\x94K\x01\x8c\x01y\x94K\x07u"
        "}\x94(h\x02]\x94(}\x94(\x8c\x01"
        "f\x94K\x01ueue.";
    pickle_read r;
    nt_status status = pickle_run(&r, alloc, text, sizeof text - 1);
    pickle_clear(&r);
    if (status == NT_OK) {
        status = pickle_run(&r, alloc, binary, sizeof binary - 1);
        pickle_clear(&r);
    }
    return status;
}

NT_TEST(reading_survives_running_out_of_memory)
{
    nt_test_sweep(t, pickle_body, NULL);
}

const nt_test_case nt_pickle_tests[] = {
    NT_CASE(records_are_told_as_they_come),
    NT_CASE(shared_lists_are_one_sequence),
    NT_CASE(every_dangerous_opcode_is_refused),
    NT_CASE(malformed_pickles_are_told_where),
    NT_CASE(lengths_are_not_believed),
    NT_CASE(depth_is_bounded),
    NT_CASE(bounded_dicts_are_refused_as_they_come),
    NT_CASE(truncated_lists_keep_whole_items),
    NT_CASE(room_for_the_memo_is_foreseen),
    NT_CASE(reading_survives_running_out_of_memory),
    NT_CASES_END,
};
