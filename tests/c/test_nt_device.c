/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of an NVML that is made up here: this library stands in for it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include "monitor/nt_device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "monitor/nt_device_abi.h"
#include "nt_test.h"

/* Devices that NVML lists; any number of instances are found by their UUID. */
#define DEVICE_LISTED 2
#define DEVICE_FREE 1000

#define DEVICE_SHOWN __attribute__((visibility("default")))

DEVICE_SHOWN nt_nvml_init_fn nvmlInit_v2;
DEVICE_SHOWN nt_nvml_shutdown_fn nvmlShutdown;
DEVICE_SHOWN nt_nvml_error_fn nvmlErrorString;
DEVICE_SHOWN nt_nvml_count_fn nvmlDeviceGetCount_v2;
DEVICE_SHOWN nt_nvml_by_index_fn nvmlDeviceGetHandleByIndex_v2;
DEVICE_SHOWN nt_nvml_by_uuid_fn nvmlDeviceGetHandleByUUID;
DEVICE_SHOWN nt_nvml_text_fn nvmlDeviceGetUUID;
DEVICE_SHOWN nt_nvml_memory_fn nvmlDeviceGetMemoryInfo;

static uintptr_t
device_number(nt_nvml_device device)
{
    return (uintptr_t)device - 1;
}

static nt_nvml_status
device_handle(uintptr_t number, nt_nvml_device *out)
{
    *out = (nt_nvml_device)(number + 1);
    return NT_NVML_SUCCESS;
}

nt_nvml_status
nvmlInit_v2(void)
{
    return NT_NVML_SUCCESS;
}

nt_nvml_status
nvmlShutdown(void)
{
    return NT_NVML_SUCCESS;
}

const char *
nvmlErrorString(nt_nvml_status status)
{
    return status == NT_NVML_SUCCESS ? "success" : "failure";
}

nt_nvml_status
nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = DEVICE_LISTED;
    return NT_NVML_SUCCESS;
}

nt_nvml_status
nvmlDeviceGetHandleByIndex_v2(unsigned int index, nt_nvml_device *out)
{
    return device_handle(index, out);
}

nt_nvml_status
nvmlDeviceGetHandleByUUID(const char *uuid, nt_nvml_device *out)
{
    if (strncmp(uuid, "MIG-", 4) != 0) {
        return 6; /* not found */
    }
    return device_handle((uintptr_t)strtoul(uuid + 4, NULL, 10), out);
}

nt_nvml_status
nvmlDeviceGetUUID(nt_nvml_device device, char *text, unsigned int size)
{
    const uintptr_t number = device_number(device);
    (void)snprintf(text, size, number < DEVICE_LISTED ? "GPU-%u" : "MIG-%u",
                   (unsigned)number);
    return NT_NVML_SUCCESS;
}

/* Of each device as many bytes are in use as its number. */
nt_nvml_status
nvmlDeviceGetMemoryInfo(nt_nvml_device device, nt_nvml_memory *out)
{
    const unsigned long long used = device_number(device);
    *out = (nt_nvml_memory){DEVICE_FREE + used, DEVICE_FREE, used};
    return NT_NVML_SUCCESS;
}

static nt_status
device_open(const nt_alloc *alloc, nt_device **out, nt_error *err)
{
    static const char here;
    Dl_info info = {0};
    if (dladdr(&here, &info) == 0) {
        return nt_fail(err, NT_IO, NT_NO_OFFSET, "this library has no name");
    }
    const nt_device_names names = {.nvml = info.dli_fname, .driver = "no driver"};
    return nt_device_open(alloc, &names, out, err);
}

static bool
device_find(nt_device *device, unsigned number, size_t *slot)
{
    char uuid[32];
    (void)snprintf(uuid, sizeof uuid, "MIG-%u", number);
    return nt_device_find(device, uuid, slot);
}

NT_TEST(slots_stay_while_more_are_found)
{
    enum { FOUND = 40 };
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    nt_device *device = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    NT_REQUIRE(NT_CHECK_OK(device_open(&hostile.alloc, &device, &err), &err));
    NT_CHECK(nt_device_nvml_reason(device) == NULL);
    NT_CHECK_UINT(nt_device_count(device), DEVICE_LISTED);
    const nt_device_info *first = nt_device_get(device, 0);
    for (unsigned i = 0; i < FOUND; i++) {
        size_t slot = 0;
        NT_CHECK(device_find(device, 100 + i, &slot));
        NT_CHECK_UINT(slot, DEVICE_LISTED + i);
    }
    NT_CHECK_STR(first->uuid, "GPU-0");
    size_t again = 0;
    NT_CHECK(device_find(device, 117, &again));
    NT_CHECK_UINT(again, DEVICE_LISTED + 17);
    NT_CHECK_UINT(nt_device_count(device), DEVICE_LISTED + FOUND);
    nt_device_memory memory;
    NT_CHECK_OK(nt_device_read_memory(device, again, &memory, &err), &err);
    NT_CHECK_UINT(memory.used, 117);
    NT_CHECK_STATUS(nt_device_read_memory(device, DEVICE_LISTED + FOUND, &memory, &err),
                    NT_ARGUMENT, NULL);
    NT_CHECK(!nt_device_find(device, "GPU-unknown", &again));
    nt_device_close(device);
    NT_CHECK_NO_LEAK(&hostile);
}

/* So many are added, and these of them once a round of reading has begun. */
enum { DEVICE_ADDED = 300, DEVICE_A_ROUND = 10 };

typedef struct device_reader {
    const nt_device *device;
    int ends;      /* __atomic, as the next two */
    size_t added;  /* by the other thread */
    size_t rounds; /* that have begun */
    size_t raced;  /* rounds at whose end there were more than at their begin */
    size_t wrong;
} device_reader;

static bool
device_reads_on(const device_reader *reader)
{
    return __atomic_load_n(&reader->ends, __ATOMIC_ACQUIRE) == 0;
}

/* Reads all slots again and again, each time over an addition. */
static void *
device_read_on(void *ctx)
{
    device_reader *reader = ctx;
    while (device_reads_on(reader)) {
        const size_t before = nt_device_count(reader->device);
        const size_t added = __atomic_load_n(&reader->added, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&reader->rounds, 1, __ATOMIC_RELEASE);
        nt_device_memory memory = {0};
        size_t slot = 0;
        for (; nt_device_read_memory(reader->device, slot, &memory, NULL) == NT_OK;
             slot++) {
            reader->wrong += memory.used != slot;
            while (slot == 0 && device_reads_on(reader) &&
                   __atomic_load_n(&reader->added, __ATOMIC_ACQUIRE) == added) {
                (void)sched_yield();
            }
        }
        reader->wrong += slot < before;
        reader->raced += slot > before;
    }
    return NULL;
}

NT_TEST(slots_are_read_while_one_is_added)
{
    nt_alloc alloc = nt_alloc_system();
    nt_device *device = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    NT_REQUIRE(NT_CHECK_OK(device_open(&alloc, &device, &err), &err));
    device_reader reader = {.device = device};
    pthread_t thread;
    NT_REQUIRE(NT_CHECK_INT(pthread_create(&thread, NULL, device_read_on, &reader), 0));
    for (unsigned i = 0; i < DEVICE_ADDED; i++) {
        while (__atomic_load_n(&reader.rounds, __ATOMIC_ACQUIRE) <=
               i / DEVICE_A_ROUND) {
            (void)sched_yield();
        }
        size_t slot;
        NT_CHECK(device_find(device, DEVICE_LISTED + i, &slot));
        __atomic_add_fetch(&reader.added, 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&reader.ends, 1, __ATOMIC_RELEASE);
    (void)pthread_join(thread, NULL);
    NT_CHECK(reader.raced >= DEVICE_ADDED / DEVICE_A_ROUND);
    NT_CHECK_UINT(reader.wrong, 0);
    NT_CHECK_UINT(nt_device_count(device), DEVICE_LISTED + DEVICE_ADDED);
    nt_device_close(device);
}

static nt_status
device_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    nt_device *device = NULL;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = device_open(alloc, &device, &err);
    if (status != NT_OK) {
        NT_CHECK(device == NULL);
        return status;
    }
    const size_t before = nt_device_count(device);
    size_t slot = SIZE_MAX;
    const bool is_found = device_find(device, 7, &slot);
    NT_CHECK_UINT(nt_device_count(device), before + is_found);
    NT_CHECK_UINT(slot, is_found ? before : SIZE_MAX);
    nt_device_close(device);
    return is_found ? NT_OK : NT_NOMEM;
}

NT_TEST(refused_memory_leaves_a_sound_list)
{
    nt_test_sweep(t, device_sweep, NULL);
}

const nt_test_case nt_device_tests[] = {
    NT_CASE(slots_stay_while_more_are_found),
    NT_CASE(slots_are_read_while_one_is_added),
    NT_CASE(refused_memory_leaves_a_sound_list),
    NT_CASES_END,
};
