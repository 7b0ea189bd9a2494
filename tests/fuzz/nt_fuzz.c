/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asked by AddressSanitizer: what it keeps of freed memory and of stacks is cut down,
 * so that a run costs little more than the code under test. */
const char *
__asan_default_options(void);

const char *
__asan_default_options(void)
{
    return "malloc_context_size=2:quarantine_size_mb=4:"
           "thread_local_quarantine_size_kb=64:max_malloc_fill_size=0";
}

void
nt_fuzz_fail(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

int
nt_fuzz_collect(void *ctx, const void *bytes, size_t count)
{
    nt_fuzz_file *file = ctx;
    if (count > file->capacity - file->size) {
        file->capacity = 2 * (file->size + count);
        file->bytes = realloc(file->bytes, file->capacity);
        NT_FUZZ_CHECK(file->bytes != NULL);
    }
    memcpy(file->bytes + file->size, bytes, count);
    file->size += count;
    return 0;
}

void
nt_fuzz_clear(nt_fuzz_file *file)
{
    free(file->bytes);
    *file = (nt_fuzz_file){.size = 0};
}
