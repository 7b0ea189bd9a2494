/* SPDX-License-Identifier: Apache-2.0 */
/* Ground of the core: status codes, errors with a message, the allocator that every
 * module gets, and arithmetic on sizes that cannot wrap. */
#ifndef NT_BASE_H
#define NT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a call failed. NT_OK is zero, so `if (status)` reads "on failure". */
typedef enum nt_status {
    NT_OK = 0,
    NT_NOMEM,     /* the allocator returned NULL */
    NT_LIMIT,     /* a bound set by the caller or by design was reached */
    NT_MALFORMED, /* the input breaks the rules of its format */
    NT_REFUSED,   /* the input asks for something that is never done (naming a class) */
    NT_IO,        /* the caller's read or write function failed */
    NT_CANCELLED, /* the caller's progress function asked to stop */
    NT_ARGUMENT,  /* an argument is outside what the contract allows */
} nt_status;

#define NT_NO_OFFSET UINT64_MAX

/* What went wrong, in words. Plain data; all-zero is "no error". */
typedef struct nt_error {
    nt_status status;
    uint64_t offset;   /* byte in the input, or NT_NO_OFFSET */
    char message[256]; /* UTF-8, no newline, always terminated */
} nt_error;

/* The result of a fallible function must be looked at. */
#if defined(__GNUC__)
#define NT_CHECKED __attribute__((warn_unused_result))
#define NT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define NT_LIKELY(x) __builtin_expect(!!(x), 1)
#define NT_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NT_PREFETCH(at) __builtin_prefetch(at)
#else
#define NT_CHECKED
#define NT_PRINTF(fmt, args)
#define NT_LIKELY(x) (x)
#define NT_UNLIKELY(x) (x)
#define NT_PREFETCH(at) ((void)(at))
#endif

/* Returns the status of a call that failed from the calling function. */
#define NT_TRY(call)                                                                   \
    do {                                                                               \
        const nt_status nt_try_status = (call);                                        \
        if (NT_UNLIKELY(nt_try_status != NT_OK)) {                                     \
            return nt_try_status;                                                      \
        }                                                                              \
    } while (0)

/* The same in a function that cleans up: sets `status` and goes to `done`. */
#define NT_TRY_DONE(call)                                                              \
    do {                                                                               \
        status = (call);                                                               \
        if (NT_UNLIKELY(status != NT_OK)) {                                            \
            goto done;                                                                 \
        }                                                                              \
    } while (0)

/* An invariant of our own code; never of input. Compiled out without NT_DEBUG. */
#if defined(NT_DEBUG)
#define NT_ASSERT(x) ((x) ? (void)0 : __builtin_trap())
#else
#define NT_ASSERT(x) ((void)0)
#endif

/* Fills `err` (which may be NULL) and returns `status`, so that a failing function ends
 * with `return nt_fail(...)`. The message is cut to fit. */
nt_status
nt_fail(nt_error *err, nt_status status, uint64_t offset, const char *format, ...)
    NT_PRINTF(4, 5);

/* NT_NOMEM with the usual message. */
nt_status
nt_fail_nomem(nt_error *err);

/* The one way to get memory. `resize` behaves like realloc, but also gets the old size:
 * ptr NULL (old_size 0) allocates, and new_size 0 frees and returns NULL. NULL for a
 * new_size above 0 means failure, and the old block is as it was. Called from one
 * thread at a time for one `ctx`. */
typedef struct nt_alloc {
    void *(*resize)(void *ctx, void *ptr, size_t old_size, size_t new_size);
    void *ctx;
} nt_alloc;

/* The operating system's memory: malloc, and whole pages for large blocks. */
nt_alloc
nt_alloc_system(void);

/* `size` bytes, not cleared; NULL on failure or for size 0. */
void *
nt_allocate(const nt_alloc *alloc, size_t size);

/* The same with NT_NOMEM on failure; *out is NULL then, and for size 0. */
nt_status
nt_take(const nt_alloc *alloc, void **out, size_t size, nt_error *err) NT_CHECKED;

/* nt_take for `count` elements of the pointer `array`. */
#define NT_NEW(alloc, array, count, err)                                               \
    nt_take(alloc, (void **)&(array), (count) * sizeof *(array), err)

/* Gives back a block of `size` bytes; NULL is fine. */
void
nt_release(const nt_alloc *alloc, void *ptr, size_t size);

/* nt_release for `count` elements of the pointer `array`, which is none to void. */
#define NT_RELEASE(alloc, array, count)                                                \
    nt_release(alloc, array, (count) * sizeof *(array))

/* Makes room for `need` elements of `element` bytes in *array, which has room for
 * *capacity of them, and at least doubles it when it grows. On failure nothing changed.
 */
nt_status
nt_grow(const nt_alloc *alloc, void **array, size_t *capacity, size_t need,
        size_t element, nt_error *err) NT_CHECKED;

/* nt_grow on the pointer `array` and its `capacity`. */
#define NT_GROW(alloc, array, capacity, need, err)                                     \
    nt_grow(alloc, (void **)&(array), &(capacity), need, sizeof *(array), err)

/* Cuts *array down to exactly `count` elements; keeps it as it is if that fails. */
void
nt_shrink(const nt_alloc *alloc, void **array, size_t *capacity, size_t count,
          size_t element);

/* An allocator that passes requests on to `inner`, and refuses those that would exceed
 * `limit` bytes. */
typedef struct nt_budget {
    nt_alloc inner;
    size_t limit;  /* bytes; may be raised while in use */
    size_t used;   /* bytes held now */
    size_t peak;   /* most bytes held at once */
    bool exceeded; /* a request was refused because of `limit` */
} nt_budget;

void
nt_budget_init(nt_budget *budget, nt_alloc inner, size_t limit);

/* The allocator that draws on `budget`, which must outlive what it hands out. */
nt_alloc
nt_budget_alloc(nt_budget *budget);

/* *out = a * b and a + b; false, with *out untouched, where that would wrap. */
bool
nt_size_mul(size_t a, size_t b, size_t *out);
bool
nt_size_add(size_t a, size_t b, size_t *out);

/* A scrambled `x`: every bit of the result depends on every bit of x. */
static inline uint64_t
nt_mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

/* Tells the caller how far a long task has got. Called every few milliseconds, without
 * locks; a return value other than 0 ends the work with NT_CANCELLED. */
typedef struct nt_progress {
    int (*report)(void *ctx, uint64_t done);
    void *ctx;
} nt_progress;

#endif
