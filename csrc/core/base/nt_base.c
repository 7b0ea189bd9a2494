/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__linux__)
#define _GNU_SOURCE /* mremap, MADV_HUGEPAGE */
#endif
#include "base/nt_base.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nt_status
nt_fail(nt_error *err, nt_status status, uint64_t offset, const char *format, ...)
{
    if (err != NULL) {
        err->status = status;
        err->offset = offset;
        va_list args;
        va_start(args, format);
        (void)vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

nt_status
nt_fail_nomem(nt_error *err)
{
    return nt_fail(err, NT_NOMEM, NT_NO_OFFSET, "out of memory");
}

#if defined(__linux__)

/* Columns of a long trace are pages of their own: they grow by moving the pages and not
 * the bytes, and huge pages spare most of the faults. Below this a block comes from
 * malloc. */
#define BASE_PAGED ((size_t)1 << 20)
#define BASE_PAGE ((size_t)2 << 20)

/* Whole huge pages; 0 where that would wrap. */
static size_t
base_paged_size(size_t size)
{
    return size > SIZE_MAX - BASE_PAGE ? 0 : (size + BASE_PAGE - 1) & ~(BASE_PAGE - 1);
}

static void *
base_map(size_t size)
{
    const size_t bytes = base_paged_size(size);
    if (bytes == 0) {
        return NULL;
    }
    void *pages =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(pages, bytes, MADV_HUGEPAGE);
    return pages;
}

static void *
base_remap(void *ptr, size_t old_size, size_t new_size)
{
    const size_t bytes = base_paged_size(new_size);
    if (bytes == 0) {
        return NULL;
    }
    void *pages = mremap(ptr, base_paged_size(old_size), bytes, MREMAP_MAYMOVE);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(pages, bytes, MADV_HUGEPAGE);
    return pages;
}

/* From malloc to pages, or the other way round. */
static void *
base_move(void *ptr, size_t old_size, size_t new_size)
{
    void *moved = new_size >= BASE_PAGED ? base_map(new_size) : malloc(new_size);
    if (moved == NULL) {
        return NULL;
    }
    if (ptr != NULL) {
        memcpy(moved, ptr, old_size < new_size ? old_size : new_size);
    }
    if (old_size >= BASE_PAGED) {
        (void)munmap(ptr, base_paged_size(old_size));
    } else {
        free(ptr);
    }
    return moved;
}

static void *
base_system_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    (void)ctx;
    if (new_size == 0) {
        if (old_size >= BASE_PAGED) {
            (void)munmap(ptr, base_paged_size(old_size));
        } else {
            free(ptr);
        }
        return NULL;
    }
    if (old_size < BASE_PAGED && new_size < BASE_PAGED) {
        return realloc(ptr, new_size);
    }
    if (old_size >= BASE_PAGED && new_size >= BASE_PAGED) {
        return base_remap(ptr, old_size, new_size);
    }
    return base_move(ptr, old_size, new_size);
}

#else

static void *
base_system_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    (void)ctx;
    (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

#endif

nt_alloc
nt_alloc_system(void)
{
    return (nt_alloc){base_system_resize, NULL};
}

void *
nt_allocate(const nt_alloc *alloc, size_t size)
{
    return size == 0 ? NULL : alloc->resize(alloc->ctx, NULL, 0, size);
}

nt_status
nt_take(const nt_alloc *alloc, void **out, size_t size, nt_error *err)
{
    *out = nt_allocate(alloc, size);
    return *out == NULL && size != 0 ? nt_fail_nomem(err) : NT_OK;
}

void
nt_release(const nt_alloc *alloc, void *ptr, size_t size)
{
    if (ptr != NULL) {
        (void)alloc->resize(alloc->ctx, ptr, size, 0);
    }
}

/* How many elements an array gets that has `capacity` and shall have `need`. */
static size_t
base_room(size_t capacity, size_t need)
{
#ifdef NT_DEBUG
    /* Next to nothing to spare, so that a write without having asked is seen. */
    (void)capacity;
    return need + need / 16;
#else
    /* Eight at least, so that short arrays do not grow one by one. */
    const size_t wanted = capacity * 2 + 8;
    return wanted < need ? need : wanted;
#endif
}

nt_status
nt_grow(const nt_alloc *alloc, void **array, size_t *capacity, size_t need,
        size_t element, nt_error *err)
{
    if (need <= *capacity) {
        return NT_OK;
    }
    const size_t wanted = base_room(*capacity, need);
    size_t bytes;
    if (!nt_size_mul(wanted, element, &bytes)) {
        return nt_fail_nomem(err);
    }
    void *grown = alloc->resize(alloc->ctx, *array, *capacity * element, bytes);
    if (grown == NULL) {
        return nt_fail_nomem(err);
    }
    *array = grown;
    *capacity = wanted;
    return NT_OK;
}

void
nt_shrink(const nt_alloc *alloc, void **array, size_t *capacity, size_t count,
          size_t element)
{
    if (count == *capacity) {
        return;
    }
    void *cut = alloc->resize(alloc->ctx, *array, *capacity * element, count * element);
    if (cut != NULL || count == 0) {
        *array = cut;
        *capacity = count;
    }
}

static void *
base_budget_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    nt_budget *budget = ctx;
    if (new_size > old_size && new_size - old_size > budget->limit - budget->used) {
        budget->exceeded = true;
        return NULL;
    }
    void *result = budget->inner.resize(budget->inner.ctx, ptr, old_size, new_size);
    if (result == NULL && new_size != 0) {
        return NULL;
    }
    budget->used = budget->used - old_size + new_size;
    if (budget->used > budget->peak) {
        budget->peak = budget->used;
    }
    return result;
}

void
nt_budget_init(nt_budget *budget, nt_alloc inner, size_t limit)
{
    *budget = (nt_budget){.inner = inner, .limit = limit};
}

nt_alloc
nt_budget_alloc(nt_budget *budget)
{
    return (nt_alloc){base_budget_resize, budget};
}

bool
nt_size_mul(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b) {
        return false;
    }
    *out = a * b;
    return true;
}

bool
nt_size_add(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) {
        return false;
    }
    *out = a + b;
    return true;
}
