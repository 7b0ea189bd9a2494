/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for CUPTI. fake_record() is what a thread of the program does when it
 * allocates: the record goes into a buffer that is asked for; a full one, and at a
 * flush every one, is handed over on a thread of its own.
 *
 * VERSION: what it says it is, and so whether it has sources; RECORD_SIZE: how long its
 * records are, where that is not as in that version.
 */
#include <pthread.h>
#include <string.h>

#include "monitor/nt_cupti_abi.h"

#define EXPORT __attribute__((visibility("default")))
#ifndef VERSION
#define VERSION 130001
#endif
#define HAS_SOURCE (VERSION >= 24)
#ifndef RECORD_SIZE
#define RECORD_SIZE                                                                    \
    (HAS_SOURCE ? sizeof(nt_cupti_memory) : offsetof(nt_cupti_memory, source))
#endif

/* A record with room for one that is longer than those that are known. */
typedef union fake_longest {
    nt_cupti_memory known;
    char bytes[256];
} fake_longest;

static nt_cupti_request_fn *request;
static nt_cupti_complete_fn *complete;
static _Atomic int is_enabled; /* read by the threads that allocate */
static _Atomic int has_source;
static int enable_code;
static uint8_t *buffer;
static size_t size, used, dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT void
fake_reset(int code)
{
    is_enabled = has_source = 0;
    enable_code = code;
    dropped = 0;
}

EXPORT int
fake_state(void)
{
    return is_enabled | has_source << 1;
}

static void *
fake_hand_over(void *unused)
{
    (void)unused;
    complete(NULL, 0, buffer, size, used);
    return NULL;
}

static void
fake_flush_buffer(void)
{
    pthread_t thread;
    if (buffer != NULL && pthread_create(&thread, NULL, fake_hand_over, NULL) == 0) {
        pthread_join(thread, NULL);
        buffer = NULL;
    }
}

EXPORT void
fake_record(int operation, int kind, uint64_t address, uint64_t bytes, uint64_t time,
            uint32_t device, const char *source)
{
    if (!is_enabled) {
        return;
    }
    fake_longest record = {{
        .kind = NT_CUPTI_KIND_MEMORY2,
        .operation = operation,
        .memory_kind = kind,
        .address = address,
        .bytes = bytes,
        .timestamp = time,
        .device = device,
        .source = has_source ? source : NULL,
    }};
    pthread_mutex_lock(&lock);
    if (buffer != NULL && used + RECORD_SIZE > size) {
        fake_flush_buffer();
    }
    if (buffer == NULL) {
        size_t most;
        request(&buffer, &size, &most);
        used = 0;
    }
    if (buffer == NULL) {
        dropped++;
    } else {
        memcpy(buffer + used, &record, RECORD_SIZE);
        used += RECORD_SIZE;
    }
    pthread_mutex_unlock(&lock);
}

EXPORT nt_cupti_status
cuptiGetVersion(uint32_t *version)
{
    *version = VERSION;
    return 0;
}

EXPORT nt_cupti_status
cuptiGetResultString(nt_cupti_status code, const char **out)
{
    *out = code == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : NULL;
    return 0;
}

EXPORT nt_cupti_status
cuptiActivityRegisterCallbacks(nt_cupti_request_fn *a, nt_cupti_complete_fn *b)
{
    request = a;
    complete = b;
    return 0;
}

EXPORT nt_cupti_status
cuptiActivityEnable(nt_cupti_kind kind)
{
    is_enabled = enable_code == 0 && kind == NT_CUPTI_KIND_MEMORY2;
    return enable_code;
}

EXPORT nt_cupti_status
cuptiActivityDisable(nt_cupti_kind kind)
{
    is_enabled = is_enabled && kind != NT_CUPTI_KIND_MEMORY2;
    return 0;
}

#if HAS_SOURCE
EXPORT nt_cupti_status
cuptiActivityEnableAllocationSource(uint8_t is_on)
{
    has_source = is_on;
    return 0;
}
#endif

EXPORT nt_cupti_status
cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    fake_flush_buffer();
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT nt_cupti_status
cuptiActivityGetNextRecord(uint8_t *from, size_t valid, nt_cupti_record **record)
{
    uint8_t *next = *record == NULL ? from : (uint8_t *)*record + RECORD_SIZE;
    if (next + RECORD_SIZE > from + valid) {
        return NT_CUPTI_MAX_LIMIT_REACHED;
    }
    *record = next;
    return 0;
}

EXPORT nt_cupti_status
cuptiActivityGetNumDroppedRecords(nt_cupti_context context, uint32_t stream,
                                  size_t *out)
{
    (void)context;
    (void)stream;
    *out = dropped;
    dropped = 0;
    return 0;
}
