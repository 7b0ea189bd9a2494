/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for one input. Blocks are cut from one piece of memory, apart from each other
 * and poisoned for AddressSanitizer when they are given back; none is used a second
 * time before the input is done, and one that grows moves. That finds what malloc's
 * would find, and wrong old sizes and leaks besides, at a small part of the cost.
 */
#include <stdlib.h>
#include <string.h>

#include "nt_fuzz.h"

#if defined(__SANITIZE_ADDRESS__)
#define HEAP_POISONED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEAP_POISONED
#endif
#endif

#if defined(HEAP_POISONED)
#include <sanitizer/asan_interface.h>
#define HEAP_UNCHECKED __attribute__((no_sanitize("address")))
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define HEAP_UNCHECKED
#endif

/* Blocks from here on come from malloc, and so do all once the heap is used up. */
#define HEAP_LARGE ((size_t)1 << 16)
#define HEAP_BYTES ((size_t)4 << 20)

/* Before every block: nothing else may read or write it, so that it keeps blocks apart.
 */
typedef struct heap_head {
    size_t size; /* bytes of the block; HEAP_GONE once it was given back */
    size_t unused;
} heap_head;

#define HEAP_GONE SIZE_MAX

static _Alignas(16) uint8_t heap[HEAP_BYTES];
static size_t heap_used;
static size_t heap_live; /* blocks that were not given back, those of malloc too */

static bool
heap_has(const void *ptr)
{
    return (uintptr_t)ptr - (uintptr_t)heap < HEAP_BYTES;
}

HEAP_UNCHECKED static size_t
heap_exchange_size(void *ptr, size_t size)
{
    heap_head *head = (heap_head *)ptr - 1;
    const size_t before = head->size;
    head->size = size;
    return before;
}

static void *
heap_take(size_t size)
{
    const size_t room = (size + 15) / 16 * 16 + sizeof(heap_head);
    heap_live++;
    if (size >= HEAP_LARGE || room > HEAP_BYTES - heap_used) {
        return malloc(size);
    }
    uint8_t *block = heap + heap_used + sizeof(heap_head);
    heap_used += room;
    (void)heap_exchange_size(block, size);
    ASAN_UNPOISON_MEMORY_REGION(block, size);
    return block;
}

static void
heap_give(void *ptr, size_t size)
{
    heap_live--;
    if (!heap_has(ptr)) {
        free(ptr);
        return;
    }
    NT_FUZZ_CHECK(heap_exchange_size(ptr, HEAP_GONE) == size);
    ASAN_POISON_MEMORY_REGION(ptr, size);
}

static void *
heap_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    (void)ctx;
    NT_FUZZ_CHECK((ptr == NULL) == (old_size == 0));
    void *made = new_size == 0 ? NULL : heap_take(new_size);
    NT_FUZZ_CHECK((made == NULL) == (new_size == 0));
    if (ptr != NULL) {
        if (made != NULL) {
            memcpy(made, ptr, old_size < new_size ? old_size : new_size);
        }
        heap_give(ptr, old_size);
    }
    return made;
}

nt_alloc
nt_fuzz_alloc(void)
{
    static bool poisoned;
    if (!poisoned) {
        ASAN_POISON_MEMORY_REGION(heap, HEAP_BYTES);
        poisoned = true;
    }
    return (nt_alloc){heap_resize, NULL};
}

void
nt_fuzz_finish(void)
{
    NT_FUZZ_CHECK(heap_live == 0);
    ASAN_POISON_MEMORY_REGION(heap, heap_used);
    heap_used = 0;
}
