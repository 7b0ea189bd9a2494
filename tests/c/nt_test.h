/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness of the core's own tests. A file test_nt_<module>.c holds cases and a
 * table of them, `const nt_test_case nt_<module>_tests[]`, closed by NT_CASES_END;
 * the build finds the table by the file's name. A check that fails is recorded with
 * its place and the case goes on; a requirement that fails leaves the case.
 */
#ifndef NT_TEST_H
#define NT_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nt_base.h"

/* Bytes of a bundled snapshot, alive until the case ends; NULL if there is none. */
typedef const uint8_t *(*nt_sample_fn)(void *ctx, const char *name, size_t *size);

/* One run of one case: what failed so far. */
typedef struct nt_test {
    size_t failures;
    size_t length;      /* bytes of `message` in use */
    char message[4096]; /* the first failures, a line each */
    nt_sample_fn sample;
    void *sample_ctx;
} nt_test;

typedef struct nt_test_case {
    const char *name; /* a sentence of four to six words, joined by underscores */
    void (*run)(nt_test *t);
} nt_test_case;

/* `NT_TEST(map_grows_without_losing_keys) { ... }`, then `NT_CASE(...)` in the table.
 */
#define NT_TEST(name) static void name(nt_test *t)
#define NT_CASE(name) {#name, name}
#define NT_CASES_END {NULL, NULL}

/* Each check is an expression that is true if it held; `t` is the case's argument. */
#define NT_CHECK(condition)                                                            \
    nt_test_check(t, (condition), __FILE__, __LINE__, #condition)
#define NT_CHECK_UINT(actual, expected)                                                \
    nt_test_uint(t, (actual), (expected), __FILE__, __LINE__, #actual)
#define NT_CHECK_INT(actual, expected)                                                 \
    nt_test_int(t, (actual), (expected), __FILE__, __LINE__, #actual)
#define NT_CHECK_STR(actual, expected)                                                 \
    nt_test_str(t, (actual), (expected), __FILE__, __LINE__, #actual)
#define NT_CHECK_BYTES(actual, expected, size)                                         \
    nt_test_bytes(t, (actual), (expected), (size), __FILE__, __LINE__, #actual)
/* `call` returns an nt_status; `err` is the nt_error it filled, or NULL. */
#define NT_CHECK_STATUS(call, expected, err)                                           \
    nt_test_status(t, (call), (expected), (err), __FILE__, __LINE__, #call)
#define NT_CHECK_OK(call, err) NT_CHECK_STATUS(call, NT_OK, err)

/* A check without which the rest of the case makes no sense: leaves the function. */
#define NT_REQUIRE(check)                                                              \
    do {                                                                               \
        if (!(check)) {                                                                \
            return;                                                                    \
        }                                                                              \
    } while (0)

/* Records a failure in words. */
void
nt_test_fail(nt_test *t, const char *file, int line, const char *format, ...)
    NT_PRINTF(4, 5);
#define NT_FAIL(...) nt_test_fail(t, __FILE__, __LINE__, __VA_ARGS__)

bool
nt_test_check(nt_test *t, bool held, const char *file, int line, const char *text);
bool
nt_test_uint(nt_test *t, uint64_t actual, uint64_t expected, const char *file, int line,
             const char *text);
bool
nt_test_int(nt_test *t, int64_t actual, int64_t expected, const char *file, int line,
            const char *text);
bool
nt_test_str(nt_test *t, const char *actual, const char *expected, const char *file,
            int line, const char *text);
bool
nt_test_bytes(nt_test *t, const void *actual, const void *expected, size_t size,
              const char *file, int line, const char *text);
bool
nt_test_status(nt_test *t, nt_status actual, nt_status expected, const nt_error *err,
               const char *file, int line, const char *text);

/* The bundled snapshot tests/data/<name>.pickle.xz, unpacked; a failure if missing. */
const uint8_t *
nt_test_sample(nt_test *t, const char *name, size_t *size);

/*
 * An allocator that is as unkind as the contract allows: new memory is filled with a
 * pattern, a resized block always moves, freed memory is overwritten, and one request
 * can be refused. A write past an end, a wrong old size and a block that is given back
 * twice are recorded as failures of the case.
 */
typedef struct nt_hostile {
    nt_test *test;
    nt_alloc alloc;  /* hand out a pointer to this one, or a copy */
    size_t requests; /* calls so far that asked for memory */
    size_t fail_at;  /* the request that is refused (1 is the first); 0: none */
    bool fail_on;    /* every later request is refused too */
    size_t live_blocks;
    size_t live_bytes;
    size_t peak_bytes;
} nt_hostile;

void
nt_hostile_init(nt_hostile *hostile, nt_test *t);

/* Every block was given back. */
#define NT_CHECK_NO_LEAK(hostile) NT_CHECK_UINT((hostile)->live_blocks, 0)

/*
 * Runs `body` with its first request for memory refused, then with its second, and so
 * on until a run has no more requests than that; then again with all that follow
 * refused too. A run must return NT_NOMEM, or NT_OK where it can do without, and leave
 * no block behind; the run that nothing disturbs must return NT_OK. `body` itself
 * checks that the outputs of a call that failed are untouched.
 */
typedef nt_status (*nt_sweep_fn)(nt_test *t, const nt_alloc *alloc, void *ctx);

void
nt_test_sweep(nt_test *t, nt_sweep_fn body, void *ctx);

/* The next number of a repeatable series (splitmix64); any seed will do. */
uint64_t
nt_test_random(uint64_t *seed);

#endif
