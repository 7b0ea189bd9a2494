/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a program: counts what PyTorch's CPU allocator asks of the C library,
 * and overwrites each block at the first such call after its last use, before the call
 * returns.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536

/* c10's alignment. */
#define ALIGNMENT 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_on;
static size_t count, poisoned;
static uint64_t addresses[MOST]; /* by call; stays after the end of a block */
static size_t sizes[MOST];       /* 0: ended, or overwritten */
static int64_t ends[MOST];       /* by call: the call at which to overwrite, or -1 */

static void
overwrite(size_t call)
{
    for (size_t i = 0; i < call; i++) {
        if (sizes[i] != 0 && ends[i] >= 0 && (size_t)ends[i] <= call) {
            memset((void *)(uintptr_t)addresses[i], 0xFF, sizes[i]);
            sizes[i] = 0;
            poisoned++;
        }
    }
}

int
posix_memalign(void **out, size_t alignment, size_t size)
{
    static int (*plain)(void **, size_t, size_t);
    if (plain == NULL) {
        *(void **)&plain = dlsym(RTLD_NEXT, "posix_memalign");
    }
    const int failed = plain(out, alignment, size);
    if (failed == 0 && alignment == ALIGNMENT) {
        pthread_mutex_lock(&lock);
        if (is_on && count < MOST) {
            overwrite(count);
            addresses[count] = (uintptr_t)*out;
            sizes[count++] = size;
        }
        pthread_mutex_unlock(&lock);
    }
    return failed;
}

void
free(void *address)
{
    static void (*plain)(void *);
    if (plain == NULL) {
        *(void **)&plain = dlsym(RTLD_NEXT, "free");
    }
    if (__atomic_load_n(&is_on, __ATOMIC_RELAXED) && address != NULL) {
        pthread_mutex_lock(&lock);
        for (size_t i = count; i-- > 0;) {
            if (addresses[i] == (uintptr_t)address) {
                sizes[i] = 0;
                break;
            }
        }
        pthread_mutex_unlock(&lock);
    }
    plain(address);
}

/* Counts from now on; `when` has `known` numbers as in `ends`. */
void
poison_begin(const int64_t *when, size_t known)
{
    pthread_mutex_lock(&lock);
    count = poisoned = 0;
    for (size_t i = 0; i < MOST; i++) {
        ends[i] = i < known ? when[i] : -1;
        sizes[i] = 0;
    }
    is_on = 1;
    pthread_mutex_unlock(&lock);
}

/* Ends it: how many calls there were, and how many blocks were overwritten. */
size_t
poison_end(uint64_t *out, size_t *overwritten)
{
    pthread_mutex_lock(&lock);
    is_on = 0;
    memcpy(out, addresses, count * sizeof *out);
    *overwritten = poisoned;
    pthread_mutex_unlock(&lock);
    return count;
}
