/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_device.h"

#include <string.h>

#include "base/nt_columns.h"
#include "monitor/nt_device_state.h"

#define DEVICE_NVML "libnvidia-ml.so.1"
#define DEVICE_DRIVER "libcuda.so.1"

/* clang-format off */
#define NVML(field, name, is_needed) {name, offsetof(device_nvml, field), is_needed}
/* clang-format on */

static const nt_library_entry device_nvml_entries[] = {
    NVML(init, "nvmlInit_v2", true),
    NVML(shutdown, "nvmlShutdown", true),
    NVML(error, "nvmlErrorString", true),
    NVML(version, "nvmlSystemGetDriverVersion", false),
    NVML(count, "nvmlDeviceGetCount_v2", true),
    NVML(by_index, "nvmlDeviceGetHandleByIndex_v2", true),
    NVML(by_uuid, "nvmlDeviceGetHandleByUUID", true),
    NVML(name, "nvmlDeviceGetName", false),
    NVML(uuid, "nvmlDeviceGetUUID", true),
    NVML(memory, "nvmlDeviceGetMemoryInfo", true),
    NVML(memory_v2, "nvmlDeviceGetMemoryInfo_v2", false),
    NVML(compute_v2, "nvmlDeviceGetComputeRunningProcesses_v2", false),
    NVML(compute_v3, "nvmlDeviceGetComputeRunningProcesses_v3", false),
    NVML(graphics_v2, "nvmlDeviceGetGraphicsRunningProcesses_v2", false),
    NVML(graphics_v3, "nvmlDeviceGetGraphicsRunningProcesses_v3", false),
    NVML(mig, "nvmlDeviceGetMigMode", false),
};

nt_status
nt_device_fail_nvml(const nt_device *device, nt_status status, const char *what,
                    nt_nvml_status code, nt_error *err)
{
    const char *words = device->nvml.error(code);
    return nt_fail(err, status, NT_NO_OFFSET, "NVML's %s: %s (%d)", what,
                   words != NULL ? words : "an unknown error", (int)code);
}

device_slot *
nt_device_slot(const nt_device *device, size_t number)
{
    device_slot *at = __atomic_load_n(&device->slots, __ATOMIC_ACQUIRE);
    while (at != NULL && number-- > 0) {
        at = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE);
    }
    return at;
}

/* Adds a slot for `handle`; `*slot` is written on success. */
static nt_status
device_add(nt_device *d, nt_nvml_device handle, size_t *slot, nt_error *err)
{
    device_slot made = {.handle = handle};
    const nt_nvml_status code = d->nvml.uuid(handle, made.info.uuid, NT_NVML_UUID_SIZE);
    if (code != NT_NVML_SUCCESS) {
        return nt_device_fail_nvml(d, NT_IO, "nvmlDeviceGetUUID", code, err);
    }
    unsigned int mode = 0, pending = 0;
    if (d->nvml.mig != NULL &&
        d->nvml.mig(handle, &mode, &pending) == NT_NVML_SUCCESS) {
        made.info.is_mig = mode == NT_NVML_MIG_ENABLED;
    }
    if (d->nvml.name == NULL ||
        d->nvml.name(handle, made.info.name, NT_NVML_NAME_SIZE) != NT_NVML_SUCCESS) {
        made.info.name[0] = '\0';
    }
    made.info.uuid[NT_DEVICE_TEXT - 1] = made.info.name[NT_DEVICE_TEXT - 1] = '\0';
    device_slot *kept = nt_allocate(&d->alloc, sizeof *kept), **place = &d->slots;
    if (kept == NULL) {
        return nt_fail_nomem(err);
    }
    *kept = made;
    size_t number = 0;
    for (; *place != NULL; number++) {
        place = &(*place)->next;
    }
    __atomic_store_n(place, kept, __ATOMIC_RELEASE);
    *slot = number;
    return NT_OK;
}

/* Every device that answers; one that has fallen off the bus is passed over. */
static nt_status
device_list(nt_device *d, nt_error *err)
{
    unsigned int count = 0;
    const nt_nvml_status code = d->nvml.count(&count);
    if (code != NT_NVML_SUCCESS) {
        return nt_device_fail_nvml(d, NT_REFUSED, "nvmlDeviceGetCount", code, err);
    }
    for (unsigned int i = 0; i < count; i++) {
        nt_nvml_device handle;
        size_t slot;
        if (d->nvml.by_index(i, &handle) != NT_NVML_SUCCESS) {
            continue;
        }
        const nt_status status = device_add(d, handle, &slot, err);
        if (status == NT_NOMEM) {
            return status;
        }
    }
    return NT_OK;
}

/*
 * The drivers of CUDA 12.2 before its update 2 (535.43 to 535.86; 535.98 has no v3)
 * fill rows of 32 bytes under the name of v3, and tell nobody: those are left alone.
 * Their v2 is as it always was.
 */
static void
device_drop_other_lists(nt_device *d)
{
    const char *minor = d->version + 4;
    if (strncmp(d->version, "535.", 4) == 0 && minor[2] == '.' &&
        strncmp(minor, "98", 2) < 0) {
        d->nvml.compute_v3 = d->nvml.graphics_v3 = NULL;
    }
}

/* NT_REFUSED, with the reason in `err`, where NVML is missing or won't start. */
static nt_status
device_start_nvml(nt_device *d, const char *name, nt_error *err)
{
    NT_TRY(nt_library_open(name, false, &d->nvml_library, err));
    NT_TRY(nt_library_load(&d->nvml_library, device_nvml_entries,
                           NT_LENGTH(device_nvml_entries), &d->nvml, err));
    const nt_nvml_status code = d->nvml.init();
    if (code != NT_NVML_SUCCESS) {
        return nt_device_fail_nvml(d, NT_REFUSED, "nvmlInit", code, err);
    }
    d->has_nvml = true;
    if (d->nvml.version == NULL ||
        d->nvml.version(d->version, NT_NVML_VERSION_SIZE) != NT_NVML_SUCCESS) {
        d->version[0] = '\0';
    }
    d->version[NT_NVML_VERSION_SIZE - 1] = '\0';
    device_drop_other_lists(d);
    return device_list(d, err);
}

/* NVML is stopped, and what was learnt from it forgotten; the reason stays. */
static void
device_stop_nvml(nt_device *d)
{
    if (d->has_nvml) {
        (void)d->nvml.shutdown();
    }
    d->has_nvml = false;
    nt_library_close(&d->nvml_library);
    while (d->slots != NULL) {
        device_slot *next = d->slots->next;
        nt_release(&d->alloc, d->slots, sizeof *d->slots);
        d->slots = next;
    }
}

nt_status
nt_device_open(const nt_alloc *alloc, const nt_device_names *names, nt_device **out,
               nt_error *err)
{
    nt_device *d = nt_allocate(alloc, sizeof *d);
    if (d == NULL) {
        return nt_fail_nomem(err);
    }
    const char *nvml = names != NULL && names->nvml != NULL ? names->nvml : DEVICE_NVML;
    *d = (nt_device){.alloc = *alloc, .driver_name = DEVICE_DRIVER};
    if (names != NULL && names->driver != NULL) {
        d->driver_name = names->driver;
    }
    const nt_status status = device_start_nvml(d, nvml, &d->nvml_reason);
    if (status != NT_OK) {
        device_stop_nvml(d);
    }
    if (status == NT_NOMEM) {
        nt_device_close(d);
        return nt_fail_nomem(err);
    }
    *out = d;
    return NT_OK;
}

void
nt_device_close(nt_device *device)
{
    if (device == NULL) {
        return;
    }
    device_stop_nvml(device);
    nt_library_close(&device->cuda_library);
    nt_library_close(&device->cuda_held);
    const nt_alloc alloc = device->alloc;
    nt_release(&alloc, device, sizeof *device);
}

const char *
nt_device_nvml_reason(const nt_device *device)
{
    return device->has_nvml ? NULL : device->nvml_reason.message;
}

const char *
nt_device_driver_version(const nt_device *device)
{
    return device->version;
}

size_t
nt_device_count(const nt_device *device)
{
    size_t count = 0;
    while (nt_device_slot(device, count) != NULL) {
        count++;
    }
    return count;
}

const nt_device_info *
nt_device_get(const nt_device *device, size_t slot)
{
    return &nt_device_slot(device, slot)->info;
}

bool
nt_device_find(nt_device *device, const char *uuid, size_t *slot)
{
    size_t number = 0;
    for (const device_slot *at = device->slots; at != NULL; at = at->next, number++) {
        if (strcmp(at->info.uuid, uuid) == 0) {
            *slot = number;
            return true;
        }
    }
    nt_nvml_device handle;
    nt_error err;
    size_t made;
    if (!device->has_nvml || device->nvml.by_uuid(uuid, &handle) != NT_NVML_SUCCESS ||
        device_add(device, handle, &made, &err) != NT_OK) {
        return false;
    }
    *slot = made;
    return true;
}
