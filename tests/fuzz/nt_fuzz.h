/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: a check that stops the run with its place, an
 * allocator that watches, and the reading of one input.
 */
#ifndef NT_FUZZ_H
#define NT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "trace/nt_snapshot.h"

/* The entry point of every target, as libFuzzer and standalone_main.c call it. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Prints what does not hold and aborts, so that the fuzzer keeps the input. */
void
nt_fuzz_fail(const char *file, int line, const char *what);

#define NT_FUZZ_CHECK(condition)                                                       \
    ((condition) ? (void)0 : nt_fuzz_fail(__FILE__, __LINE__, #condition))

/* Memory for what is done with one input. */
nt_alloc
nt_fuzz_alloc(void);

/* Ends an input: checks that all of its memory was given back. */
void
nt_fuzz_finish(void);

/* Snapshots with more rows than this are not looked at any further: they only come
 * from rows shared by reference, and would make every run slow. */
#define NT_FUZZ_MOST_ROWS ((size_t)4096)

/* Rows of all tables together. */
size_t
nt_fuzz_rows(const nt_snapshot *snapshot);

/*
 * The snapshot in `size` bytes, or NULL where the reader refused them. Checks that
 * the memory for it was in proportion to the bytes and rows, that all of it comes
 * back on failure, and that a failure says why.
 */
nt_snapshot *
nt_fuzz_load(const uint8_t *data, size_t size);

/* What was written through the write function of an nt_sink; all-zero is empty. */
typedef struct nt_fuzz_file {
    uint8_t *bytes;
    size_t size, capacity;
} nt_fuzz_file;

int
nt_fuzz_collect(void *ctx, const void *bytes, size_t count);
void
nt_fuzz_clear(nt_fuzz_file *file);

#endif
