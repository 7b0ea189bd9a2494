/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the CUDA driver, filled by tests through the fake_ functions. With
 * NO_FIRST_UUID it has only the form of cuDeviceGetUuid that CUDA 13's header calls. */
#include <string.h>

#include "monitor/nt_device_abi.h"

#define EXPORT __attribute__((visibility("default")))
enum { MOST_DEVICES = 8 };

typedef struct fake_device {
    nt_cuda_uuid whole;
    nt_cuda_uuid part;
    size_t total;
    size_t free_bytes;
    int has_context;
} fake_device;

static fake_device devices[MOST_DEVICES];
static int device_count, is_started, retained, pushed;

EXPORT void
fake_reset(int started)
{
    memset(devices, 0, sizeof devices);
    device_count = retained = pushed = 0;
    is_started = started;
}

/* `part`: the UUID of the instance, or NULL where the device is whole. */
EXPORT void
fake_add(const char *whole, const char *part, size_t total, size_t free_bytes,
         int has_context)
{
    fake_device *d = &devices[device_count++];
    memcpy(d->whole.bytes, whole, sizeof d->whole.bytes);
    memcpy(d->part.bytes, part != NULL ? part : whole, sizeof d->part.bytes);
    d->total = total;
    d->free_bytes = free_bytes;
    d->has_context = has_context;
}

/* Contexts held and pushed: none may be left behind. */
EXPORT int
fake_left(void)
{
    return retained + pushed;
}

EXPORT nt_cuda_status
cuDeviceGetCount(int *count)
{
    *count = device_count;
    return is_started ? 0 : NT_CUDA_NOT_INITIALIZED;
}

EXPORT nt_cuda_status
cuDeviceGet(nt_cuda_device *out, int ordinal)
{
    *out = ordinal;
    return 0;
}

EXPORT nt_cuda_status
cuDeviceGetName(char *name, int size, nt_cuda_device device)
{
    (void)device;
    strncpy(name, "Fake", (size_t)size);
    return 0;
}

#ifndef NO_FIRST_UUID
EXPORT nt_cuda_status
cuDeviceGetUuid(nt_cuda_uuid *out, nt_cuda_device device)
{
    *out = devices[device].whole;
    return 0;
}
#endif

EXPORT nt_cuda_status
cuDeviceGetUuid_v2(nt_cuda_uuid *out, nt_cuda_device device)
{
    *out = devices[device].part;
    return 0;
}

EXPORT nt_cuda_status
cuDeviceTotalMem_v2(size_t *bytes, nt_cuda_device device)
{
    *bytes = devices[device].total;
    return 0;
}

EXPORT nt_cuda_status
cuDevicePrimaryCtxGetState(nt_cuda_device device, unsigned int *flags, int *is_active)
{
    *flags = 0;
    *is_active = devices[device].has_context;
    return 0;
}

EXPORT nt_cuda_status
cuDevicePrimaryCtxRetain(nt_cuda_context *out, nt_cuda_device device)
{
    *out = &devices[device];
    retained++;
    return 0;
}

EXPORT nt_cuda_status
cuDevicePrimaryCtxRelease_v2(nt_cuda_device device)
{
    (void)device;
    retained--;
    return 0;
}

static nt_cuda_context current;

EXPORT nt_cuda_status
cuCtxPushCurrent_v2(nt_cuda_context context)
{
    current = context;
    pushed++;
    return 0;
}

EXPORT nt_cuda_status
cuCtxPopCurrent_v2(nt_cuda_context *out)
{
    *out = current;
    pushed--;
    return 0;
}

EXPORT nt_cuda_status
cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (pushed == 0) {
        return 201; /* no context */
    }
    *free_bytes = ((fake_device *)current)->free_bytes;
    *total = ((fake_device *)current)->total;
    return 0;
}
