/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVML. Tests fill it through the fake_ functions, of the same file
 * loaded by ctypes. Functions that an old driver lacks are left out by a macro each.
 * DRIVER is the driver's version; with LONG_V3 the third lists have longer rows.
 */
#include <stdint.h>
#include <string.h>

#include "monitor/nt_device_abi.h"

#define EXPORT __attribute__((visibility("default")))
#ifndef DRIVER
#define DRIVER 580.01
#endif
#define WORDS(text) #text
#define AS_WORDS(macro) WORDS(macro)
enum { MOST_DEVICES = 8, MOST_PROCESSES = 300, NOT_FOUND = 6, NOT_SUPPORTED = 3 };

typedef struct fake_device {
    char uuid[NT_NVML_UUID_SIZE];
    char name[NT_NVML_NAME_SIZE];
    nt_nvml_memory_v2 memory;
    nt_nvml_process processes[MOST_PROCESSES];
    unsigned int process_count;
    int processes_code; /* what the lists answer; 0: the list */
    int memory_code;
    int handle_code;
    unsigned int mig;
    int is_hidden; /* an instance: found by UUID, not by number */
} fake_device;

static fake_device devices[MOST_DEVICES];
static int device_count, init_code, count_code, started;

EXPORT void
fake_reset(void)
{
    memset(devices, 0, sizeof devices);
    device_count = init_code = count_code = started = 0;
}

EXPORT int
fake_add(const char *uuid, const char *name, unsigned long long total,
         unsigned long long free_bytes, unsigned long long reserved, int is_hidden)
{
    fake_device *d = &devices[device_count];
    strncpy(d->uuid, uuid, sizeof d->uuid - 1);
    strncpy(d->name, name, sizeof d->name - 1);
    d->memory.total = total + reserved;
    d->memory.free = free_bytes;
    d->memory.used = total - free_bytes;
    d->memory.reserved = reserved;
    d->is_hidden = is_hidden;
    return device_count++;
}

EXPORT void
fake_add_process(int device, unsigned int pid, unsigned long long used)
{
    fake_device *d = &devices[device];
    d->processes[d->process_count++] = (nt_nvml_process){pid, used, ~0U, ~0U};
}

EXPORT void
fake_fail(int device, const char *what, int code)
{
    fake_device *d = &devices[device];
    if (strcmp(what, "processes") == 0) {
        d->processes_code = code;
    } else if (strcmp(what, "memory") == 0) {
        d->memory_code = code;
    } else if (strcmp(what, "handle") == 0) {
        d->handle_code = code;
    } else if (strcmp(what, "mig") == 0) {
        d->mig = (unsigned int)code;
    } else if (strcmp(what, "init") == 0) {
        init_code = code;
    } else {
        count_code = code;
    }
}

EXPORT int
fake_started(void)
{
    return started;
}

EXPORT nt_nvml_status
nvmlInit_v2(void)
{
    started += init_code == 0;
    return init_code;
}

EXPORT nt_nvml_status
nvmlShutdown(void)
{
    started--;
    return 0;
}

EXPORT const char *
nvmlErrorString(nt_nvml_status code)
{
    return code == NOT_SUPPORTED ? "Not Supported"
           : code == 9           ? "Driver Not Loaded"
                                 : NULL;
}

EXPORT nt_nvml_status
nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    strncpy(version, AS_WORDS(DRIVER), size);
    return 0;
}

EXPORT nt_nvml_status
nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 0;
    for (int i = 0; i < device_count; i++) {
        *count += !devices[i].is_hidden;
    }
    return count_code;
}

EXPORT nt_nvml_status
nvmlDeviceGetHandleByIndex_v2(unsigned int index, nt_nvml_device *out)
{
    *out = &devices[index];
    return devices[index].handle_code;
}

EXPORT nt_nvml_status
nvmlDeviceGetHandleByUUID(const char *uuid, nt_nvml_device *out)
{
    for (int i = 0; i < device_count; i++) {
        if (strcmp(devices[i].uuid, uuid) == 0) {
            *out = &devices[i];
            return devices[i].handle_code;
        }
    }
    return NOT_FOUND;
}

EXPORT nt_nvml_status
nvmlDeviceGetUUID(nt_nvml_device device, char *text, unsigned int size)
{
    strncpy(text, ((fake_device *)device)->uuid, size);
    return 0;
}

EXPORT nt_nvml_status
nvmlDeviceGetName(nt_nvml_device device, char *text, unsigned int size)
{
    strncpy(text, ((fake_device *)device)->name, size);
    return 0;
}

EXPORT nt_nvml_status
nvmlDeviceGetMigMode(nt_nvml_device device, unsigned int *current,
                     unsigned int *pending)
{
    *current = *pending = ((fake_device *)device)->mig;
    return 0;
}

EXPORT nt_nvml_status
nvmlDeviceGetMemoryInfo(nt_nvml_device device, nt_nvml_memory *out)
{
    const fake_device *d = device;
    *out = (nt_nvml_memory){d->memory.total, d->memory.free,
                            d->memory.used + d->memory.reserved};
    return d->memory_code;
}

#ifndef NO_MEMORY_V2
EXPORT nt_nvml_status
nvmlDeviceGetMemoryInfo_v2(nt_nvml_device device, nt_nvml_memory_v2 *out)
{
    const fake_device *d = device;
    if (out->version != (unsigned)NT_NVML_MEMORY_VERSION) {
        return 25; /* a wrong version of an argument */
    }
    *out = d->memory;
    return d->memory_code;
}
#endif

static nt_nvml_status
fake_list(const fake_device *d, unsigned int *count, nt_nvml_process *out)
{
    const unsigned int room = *count;
    if (d->processes_code != 0) {
        return d->processes_code;
    }
    *count = d->process_count;
    if (room < d->process_count) {
        return NT_NVML_INSUFFICIENT_SIZE;
    }
    memcpy(out, d->processes, d->process_count * sizeof *out);
    return 0;
}

#ifndef NO_PROCESSES_V2
EXPORT nt_nvml_status
nvmlDeviceGetComputeRunningProcesses_v2(nt_nvml_device device, unsigned int *count,
                                        nt_nvml_process *out)
{
    return fake_list(device, count, out);
}
#endif

#ifdef LONG_V3
typedef struct fake_long_process {
    nt_nvml_process known;
    unsigned long long used_protected;
} fake_long_process;

static nt_nvml_status
fake_long_list(const fake_device *d, unsigned int *count, nt_nvml_process *out)
{
    nt_nvml_process rows[MOST_PROCESSES];
    const nt_nvml_status code = fake_list(d, count, rows);
    for (unsigned int i = 0; code == 0 && i < *count; i++) {
        const fake_long_process row = {rows[i], 0};
        memcpy((char *)out + i * sizeof row, &row, sizeof row);
    }
    return code;
}
#else
#define fake_long_list fake_list
#endif

#ifndef NO_PROCESSES
EXPORT nt_nvml_status
nvmlDeviceGetComputeRunningProcesses_v3(nt_nvml_device device, unsigned int *count,
                                        nt_nvml_process *out)
{
    return fake_long_list(device, count, out);
}

/* A process that draws is in this list too: told once, with the larger of its sizes. */
EXPORT nt_nvml_status
nvmlDeviceGetGraphicsRunningProcesses_v3(nt_nvml_device device, unsigned int *count,
                                         nt_nvml_process *out)
{
    const fake_device *d = device;
    const nt_nvml_status code = fake_long_list(d, count, out);
    if (code == 0 && *count > 1) {
        *count = 1;
        out[0].used -= out[0].used == NT_NVML_NOT_AVAILABLE ? 0 : out[0].used / 2;
    }
    return code;
}
#endif
