/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
test_append(nt_test *t, const char *format, va_list args)
{
    const size_t room = sizeof t->message - t->length;
    const int written = vsnprintf(t->message + t->length, room, format, args);
    if (written > 0) {
        t->length += (size_t)written < room ? (size_t)written : room - 1;
    }
}

static void
test_print(nt_test *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    test_append(t, format, args);
    va_end(args);
}

void
nt_test_fail(nt_test *t, const char *file, int line, const char *format, ...)
{
    va_list args;
    t->failures += 1;
    test_print(t, "%s%s:%d: ", t->length > 0 ? "\n" : "", file, line);
    va_start(args, format);
    test_append(t, format, args);
    va_end(args);
}

bool
nt_test_check(nt_test *t, bool held, const char *file, int line, const char *text)
{
    if (!held) {
        nt_test_fail(t, file, line, "does not hold: %s", text);
    }
    return held;
}

bool
nt_test_uint(nt_test *t, uint64_t actual, uint64_t expected, const char *file, int line,
             const char *text)
{
    if (actual != expected) {
        nt_test_fail(t, file, line, "%s is %" PRIu64 ", not %" PRIu64, text, actual,
                     expected);
    }
    return actual == expected;
}

bool
nt_test_int(nt_test *t, int64_t actual, int64_t expected, const char *file, int line,
            const char *text)
{
    if (actual != expected) {
        nt_test_fail(t, file, line, "%s is %" PRId64 ", not %" PRId64, text, actual,
                     expected);
    }
    return actual == expected;
}

bool
nt_test_str(nt_test *t, const char *actual, const char *expected, const char *file,
            int line, const char *text)
{
    const bool both = actual != NULL && expected != NULL;
    const bool same = both ? strcmp(actual, expected) == 0 : actual == expected;
    if (!same) {
        nt_test_fail(t, file, line, "%s is \"%.300s\", not \"%.300s\"", text,
                     actual != NULL ? actual : "(null)",
                     expected != NULL ? expected : "(null)");
    }
    return same;
}

bool
nt_test_bytes(nt_test *t, const void *actual, const void *expected, size_t size,
              const char *file, int line, const char *text)
{
    const uint8_t *a = actual;
    const uint8_t *b = expected;
    for (size_t i = 0; i < size; i++) {
        if (a[i] != b[i]) {
            nt_test_fail(t, file, line, "%s differs at byte %zu of %zu: %02x, not %02x",
                         text, i, size, a[i], b[i]);
            return false;
        }
    }
    return true;
}

static const char *
test_status_name(nt_status status)
{
    static const char *const names[] = {
        "NT_OK",      "NT_NOMEM", "NT_LIMIT",     "NT_MALFORMED",
        "NT_REFUSED", "NT_IO",    "NT_CANCELLED", "NT_ARGUMENT",
    };
    const size_t index = (size_t)status;
    return index < sizeof names / sizeof names[0] ? names[index] : "no status";
}

bool
nt_test_status(nt_test *t, nt_status actual, nt_status expected, const nt_error *err,
               const char *file, int line, const char *text)
{
    if (actual != expected) {
        const bool told = err != NULL && actual != NT_OK;
        nt_test_fail(t, file, line, "%s is %s, not %s%s%s", text,
                     test_status_name(actual), test_status_name(expected),
                     told ? ": " : "", told ? err->message : "");
    }
    return actual == expected;
}

const uint8_t *
nt_test_sample(nt_test *t, const char *name, size_t *size)
{
    const uint8_t *bytes =
        t->sample != NULL ? t->sample(t->sample_ctx, name, size) : NULL;
    if (bytes == NULL) {
        nt_test_fail(t, __FILE__, __LINE__, "no bundled snapshot is called %s", name);
    }
    return bytes;
}

uint64_t
nt_test_random(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/*
 * A hostile block, from its lowest address:
 *
 *     mark (8) | size (8) | the caller's bytes ... | tail mark (8)
 *
 * 16 bytes in front keep the caller's bytes aligned as malloc aligns them.
 */
enum {
    HOSTILE_FRONT = 16,
    HOSTILE_BACK = 8,
    HOSTILE_NEW = 0xa5,
    HOSTILE_FREED = 0xdd,
};
#define HOSTILE_LIVE UINT64_C(0x6c6976652d626c6b)
#define HOSTILE_TAIL UINT64_C(0x7461696c2d626c6b)

static void *
hostile_new(nt_hostile *h, size_t size)
{
    const uint64_t live = HOSTILE_LIVE;
    const uint64_t tail = HOSTILE_TAIL;
    const uint64_t stored = size;
    if (size > SIZE_MAX / 2) {
        return NULL;
    }
    uint8_t *base = malloc(HOSTILE_FRONT + size + HOSTILE_BACK);
    if (base == NULL) {
        return NULL;
    }
    memcpy(base, &live, sizeof live);
    memcpy(base + 8, &stored, sizeof stored);
    memset(base + HOSTILE_FRONT, HOSTILE_NEW, size);
    memcpy(base + HOSTILE_FRONT + size, &tail, sizeof tail);
    h->live_blocks += 1;
    h->live_bytes += size;
    h->peak_bytes = h->live_bytes > h->peak_bytes ? h->live_bytes : h->peak_bytes;
    return base + HOSTILE_FRONT;
}

/* The block's true size if it is a live block of ours, as the caller should know it. */
static bool
hostile_look(nt_hostile *h, const uint8_t *base, size_t told, size_t *size)
{
    uint64_t mark, stored, tail;
    memcpy(&mark, base, sizeof mark);
    memcpy(&stored, base + 8, sizeof stored);
    if (mark != HOSTILE_LIVE) {
        nt_test_fail(h->test, __FILE__, __LINE__, "a block that is not live came back");
        return false;
    }
    if (stored != told) {
        nt_test_fail(h->test, __FILE__, __LINE__,
                     "a block of %" PRIu64 " bytes came back as one of %zu", stored,
                     told);
    }
    memcpy(&tail, base + HOSTILE_FRONT + stored, sizeof tail);
    if (tail != HOSTILE_TAIL) {
        nt_test_fail(h->test, __FILE__, __LINE__,
                     "the end of a block of %" PRIu64 " bytes was written over",
                     stored);
    }
    *size = (size_t)stored;
    return true;
}

static void
hostile_free(nt_hostile *h, uint8_t *base, size_t size)
{
    memset(base, HOSTILE_FREED, HOSTILE_FRONT + size + HOSTILE_BACK);
    free(base);
    h->live_blocks -= 1;
    h->live_bytes -= size;
}

static bool
hostile_refuses(nt_hostile *h)
{
    h->requests += 1;
    if (h->fail_at == 0 || h->requests < h->fail_at) {
        return false;
    }
    return h->requests == h->fail_at || h->fail_on;
}

static void *
hostile_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    nt_hostile *h = ctx;
    uint8_t *base = ptr != NULL ? (uint8_t *)ptr - HOSTILE_FRONT : NULL;
    size_t size = 0;
    if (base == NULL && old_size != 0) {
        nt_test_fail(h->test, __FILE__, __LINE__, "NULL came back with a size");
    }
    if (base != NULL && !hostile_look(h, base, old_size, &size)) {
        return NULL;
    }
    if (new_size == 0) {
        if (base != NULL) {
            hostile_free(h, base, size);
        }
        return NULL;
    }
    if (hostile_refuses(h)) {
        return NULL;
    }
    void *block = hostile_new(h, new_size);
    if (block != NULL && base != NULL) {
        memcpy(block, ptr, size < new_size ? size : new_size);
        hostile_free(h, base, size);
    }
    return block;
}

void
nt_hostile_init(nt_hostile *hostile, nt_test *t)
{
    *hostile = (nt_hostile){.test = t};
    hostile->alloc = (nt_alloc){.resize = hostile_resize, .ctx = hostile};
}

/* One run of a sweep; false when nothing was refused or the case has failed. */
static bool
sweep_once(nt_test *t, nt_sweep_fn body, void *ctx, size_t fail_at, bool fail_on)
{
    nt_hostile hostile;
    const size_t failures = t->failures;
    nt_hostile_init(&hostile, t);
    hostile.fail_at = fail_at;
    hostile.fail_on = fail_on;
    const nt_status status = body(t, &hostile.alloc, ctx);
    const bool refused = hostile.requests >= fail_at;
    if (status != NT_OK && !(refused && status == NT_NOMEM)) {
        NT_FAIL("the run returned %s", test_status_name(status));
    }
    NT_CHECK_NO_LEAK(&hostile);
    if (t->failures != failures) {
        NT_FAIL("so it was with request %zu%s refused", fail_at,
                fail_on ? " and all later ones" : "");
        return false;
    }
    return refused;
}

void
nt_test_sweep(nt_test *t, nt_sweep_fn body, void *ctx)
{
    for (int fail_on = 0; fail_on <= 1; fail_on++) {
        size_t fail_at = 1;
        while (sweep_once(t, body, ctx, fail_at, fail_on != 0)) {
            fail_at += 1;
        }
    }
}
