/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of CUPTI, declared here so that its headers are not needed.
 * tests/fakes/toolkit_abi.c holds it against them where they are installed; it defines
 * NT_ABI_TOOLKIT and gives their types the names that stand here. */
#ifndef NT_CUPTI_ABI_H
#define NT_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

/* What cuptiGetVersion returns. CUPTI counted by itself up to CUDA 12.9, which is 28;
 * since CUDA 13 it is the toolkit's number: 130001 is 13.0, update 1. */
enum {
    NT_CUPTI_VERSION_LEAST = 16,      /* CUDA 11.5: the third form from here on */
    NT_CUPTI_VERSION_SOURCE = 24,     /* CUDA 12.6: the fourth form from here on */
    NT_CUPTI_VERSION_BEYOND = 140000, /* a CUDA whose form is not known */
};

enum {
    NT_CUPTI_SUCCESS = 0,
    NT_CUPTI_MAX_LIMIT_REACHED = 12, /* the buffer has no further record */
    NT_CUPTI_KIND_MEMORY2 = 49,
    NT_CUPTI_OPERATION_ALLOCATION = 1,
    NT_CUPTI_OPERATION_RELEASE = 2,
    NT_CUPTI_FLUSH_FORCED = 1,
    /* Kinds of memory. */
    NT_CUPTI_MEMORY_PINNED = 2,
    NT_CUPTI_MEMORY_DEVICE = 3,
    NT_CUPTI_MEMORY_ARRAY = 4,
    NT_CUPTI_MEMORY_MANAGED = 5,
    NT_CUPTI_MEMORY_DEVICE_STATIC = 6,
    NT_CUPTI_MEMORY_MANAGED_STATIC = 7,
};

/* A record of one allocation or release. Its beginning has been the same since the kind
 * was introduced (CUDA 11.2). It ends with the file that asked, where CUPTI can tell
 * which. Records are packed and aligned to 8 bytes. */
typedef struct nt_cupti_memory {
    int32_t kind; /* NT_CUPTI_KIND_MEMORY2 */
    int32_t operation;
    int32_t memory_kind;
    uint32_t correlation;
    uint64_t address;
    uint64_t bytes;
    uint64_t timestamp; /* ns */
    uint64_t pc;
    uint32_t process;
    uint32_t device; /* as CUDA numbers the visible devices */
    uint32_t context;
    uint32_t stream;
    const char *name;
    uint32_t is_async;
    uint32_t pad1;
    int32_t pool_type;
    uint32_t pad2;
    uint64_t pool_address;
    uint64_t pool_threshold;
    uint64_t pool_size;
    uint64_t pool_used; /* from here on only in the third and the fourth form */
    const char *source; /* only in the fourth */
} nt_cupti_memory;

#ifndef NT_ABI_TOOLKIT

typedef int nt_cupti_status;
typedef int nt_cupti_kind;
typedef void *nt_cupti_context;
typedef void nt_cupti_record;

#endif

typedef void
nt_cupti_request_fn(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void
nt_cupti_complete_fn(nt_cupti_context context, uint32_t stream, uint8_t *buffer,
                     size_t size, size_t valid);

typedef nt_cupti_status
nt_cupti_version_fn(uint32_t *version);
typedef nt_cupti_status
nt_cupti_words_fn(nt_cupti_status status, const char **out);
typedef nt_cupti_status
nt_cupti_register_fn(nt_cupti_request_fn *request, nt_cupti_complete_fn *complete);
typedef nt_cupti_status
nt_cupti_enable_fn(nt_cupti_kind kind);
typedef nt_cupti_status
nt_cupti_source_fn(uint8_t is_on);
typedef nt_cupti_status
nt_cupti_flush_fn(uint32_t flag);
typedef nt_cupti_status
nt_cupti_next_fn(uint8_t *buffer, size_t valid, nt_cupti_record **record);
typedef nt_cupti_status
nt_cupti_dropped_fn(nt_cupti_context context, uint32_t stream, size_t *dropped);

#endif
