/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/nt_columns.h"
#include "monitor/nt_device_state.h"

/* clang-format off */
#define CUDA(field, name, is_needed) {name, offsetof(device_cuda, field), is_needed}
/* clang-format on */

/* The names that cuda.h maps its functions to; cuInit is not among them. */
static const nt_library_entry device_cuda_entries[] = {
    CUDA(count, "cuDeviceGetCount", true),
    CUDA(get, "cuDeviceGet", true),
    CUDA(name, "cuDeviceGetName", true),
    CUDA(uuid, "cuDeviceGetUuid", false),
    CUDA(uuid_v2, "cuDeviceGetUuid_v2", false),
    CUDA(total, "cuDeviceTotalMem_v2", true),
    CUDA(state, "cuDevicePrimaryCtxGetState", true),
    CUDA(retain, "cuDevicePrimaryCtxRetain", true),
    CUDA(release, "cuDevicePrimaryCtxRelease_v2", true),
    CUDA(push, "cuCtxPushCurrent_v2", true),
    CUDA(pop, "cuCtxPopCurrent_v2", true),
    CUDA(memory, "cuMemGetInfo_v2", true),
};

static nt_status
cuda_fail(const char *what, nt_cuda_status code, nt_error *err)
{
    return nt_fail(err, NT_IO, NT_NO_OFFSET, "the CUDA driver's %s: error %d", what,
                   (int)code);
}

/* The driver, found where this process has loaded it by now. */
static nt_status
cuda_load(nt_device *d, nt_error *err)
{
    if (d->cuda_library.handle != NULL) {
        return NT_OK;
    }
    nt_library found = {NULL};
    NT_TRY(nt_library_open(d->driver_name, true, &found, err));
    const nt_status status = nt_library_load(
        &found, device_cuda_entries, NT_LENGTH(device_cuda_entries), &d->cuda, err);
    if (status != NT_OK) {
        nt_library_close(&found);
        return status;
    }
    d->cuda_library = found;
    return NT_OK;
}

bool
nt_device_has_driver(nt_device *device)
{
    nt_error err;
    return device->cuda_held.handle != NULL ||
           nt_library_open(device->driver_name, false, &device->cuda_held, &err) ==
               NT_OK;
}

nt_status
nt_device_count_visible(nt_device *device, size_t *count, nt_error *err)
{
    NT_TRY(cuda_load(device, err));
    int found = 0;
    const nt_cuda_status code = device->cuda.count(&found);
    if (code == NT_CUDA_NOT_INITIALIZED) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "CUDA has not been started in this process");
    }
    if (code != NT_CUDA_SUCCESS) {
        return cuda_fail("cuDeviceGetCount", code, err);
    }
    *count = found > 0 ? (size_t)found : 0;
    return NT_OK;
}

/* "GPU-" or "MIG-", and the bytes in groups of 8, 4, 4, 4 and 12 digits. */
static void
cuda_spell(const nt_cuda_uuid *uuid, const char *kind, char *out)
{
    int length = snprintf(out, NT_DEVICE_TEXT, "%s", kind);
    for (size_t i = 0; i < sizeof uuid->bytes; i++) {
        const bool begins = i == 4 || i == 6 || i == 8 || i == 10;
        length += snprintf(out + length, NT_DEVICE_TEXT - (size_t)length, "%s%02x",
                           begins ? "-" : "", (unsigned)(unsigned char)uuid->bytes[i]);
    }
}

nt_status
nt_device_get_visible(nt_device *device, size_t ordinal, nt_device_info *out,
                      nt_error *err)
{
    size_t count;
    NT_TRY(nt_device_count_visible(device, &count, err));
    if (ordinal >= count) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "CUDA shows no device %zu",
                       ordinal);
    }
    const device_cuda *cuda = &device->cuda;
    nt_device_info info = {.is_mig = false};
    nt_cuda_device handle;
    nt_cuda_uuid whole = {{0}}, part = {{0}};
    nt_cuda_status code = cuda->get(&handle, (int)ordinal);
    if (code != NT_CUDA_SUCCESS) {
        return cuda_fail("cuDeviceGet", code, err);
    }
    nt_cuda_uuid_fn *const ask = cuda->uuid != NULL ? cuda->uuid : cuda->uuid_v2;
    code = ask == NULL ? -1 : ask(&whole, handle);
    if (code != NT_CUDA_SUCCESS) {
        return cuda_fail("cuDeviceGetUuid", code, err);
    }
    /* The two differ only where the device is an instance of another. */
    if (cuda->uuid_v2 != NULL && cuda->uuid_v2(&part, handle) == NT_CUDA_SUCCESS &&
        memcmp(&part, &whole, sizeof part) != 0) {
        info.is_mig = true;
    }
    cuda_spell(info.is_mig ? &part : &whole, info.is_mig ? "MIG-" : "GPU-", info.uuid);
    if (cuda->name(info.name, NT_DEVICE_TEXT, handle) != NT_CUDA_SUCCESS) {
        info.name[0] = '\0';
    }
    info.name[NT_DEVICE_TEXT - 1] = '\0';
    *out = info;
    return NT_OK;
}

/* Free and total bytes by a context that is active already: it is held for the time of
 * the question, so that none is made. False where there is none, or it can't tell. */
static bool
cuda_ask_context(const device_cuda *cuda, nt_cuda_device handle, size_t *free_bytes,
                 size_t *total_bytes)
{
    unsigned int flags = 0;
    int is_active = 0;
    nt_cuda_context context = NULL, popped = NULL;
    if (cuda->state(handle, &flags, &is_active) != NT_CUDA_SUCCESS || !is_active ||
        cuda->retain(&context, handle) != NT_CUDA_SUCCESS) {
        return false;
    }
    bool is_told = false;
    if (cuda->push(context) == NT_CUDA_SUCCESS) {
        is_told = cuda->memory(free_bytes, total_bytes) == NT_CUDA_SUCCESS;
        (void)cuda->pop(&popped);
    }
    (void)cuda->release(handle);
    return is_told;
}

nt_status
nt_device_read_visible(nt_device *device, size_t ordinal, nt_device_memory *out,
                       nt_error *err)
{
    nt_device_info info;
    NT_TRY(nt_device_get_visible(device, ordinal, &info, err));
    nt_cuda_device handle;
    size_t total = 0, free_bytes = 0;
    nt_cuda_status code = device->cuda.get(&handle, (int)ordinal);
    if (code != NT_CUDA_SUCCESS) {
        return cuda_fail("cuDeviceGet", code, err);
    }
    if (cuda_ask_context(&device->cuda, handle, &free_bytes, &total)) {
        *out = (nt_device_memory){total, free_bytes, total - free_bytes,
                                  NT_DEVICE_UNKNOWN};
        return NT_OK;
    }
    code = device->cuda.total(&total, handle);
    if (code != NT_CUDA_SUCCESS) {
        return cuda_fail("cuDeviceTotalMem", code, err);
    }
    *out = (nt_device_memory){total, NT_DEVICE_UNKNOWN, NT_DEVICE_UNKNOWN,
                              NT_DEVICE_UNKNOWN};
    return NT_OK;
}
