/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_device.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/nt_columns.h"
#include "monitor/nt_device_abi.h"
#include "monitor/nt_library.h"

typedef struct device_nvml {
    nt_nvml_init_fn *init;
    nt_nvml_shutdown_fn *shutdown;
    nt_nvml_error_fn *error;
    nt_nvml_version_fn *version; /* from here on NULL where it is absent */
    nt_nvml_count_fn *count;
    nt_nvml_by_index_fn *by_index;
    nt_nvml_by_uuid_fn *by_uuid;
    nt_nvml_text_fn *name;
    nt_nvml_text_fn *uuid;
    nt_nvml_memory_fn *memory;
    nt_nvml_memory_v2_fn *memory_v2;
    nt_nvml_processes_fn *compute_v2; /* v2 and v3 fill the same struct */
    nt_nvml_processes_fn *compute_v3; /* NULL where it fills another one */
    nt_nvml_processes_fn *graphics_v2;
    nt_nvml_processes_fn *graphics_v3;
    nt_nvml_mig_fn *mig;
} device_nvml;

typedef struct device_cuda {
    nt_cuda_count_fn *count;
    nt_cuda_get_fn *get;
    nt_cuda_name_fn *name;
    nt_cuda_uuid_fn *uuid;    /* of the whole device; or NULL */
    nt_cuda_uuid_fn *uuid_v2; /* of the instance, where it is one; or NULL */
    nt_cuda_total_fn *total;
    nt_cuda_state_fn *state;
    nt_cuda_retain_fn *retain;
    nt_cuda_release_fn *release;
    nt_cuda_push_fn *push;
    nt_cuda_pop_fn *pop;
    nt_cuda_memory_fn *memory;
} device_cuda;

/* A slot never moves, so that others may read slots while one is added. */
typedef struct device_slot {
    nt_nvml_device handle;
    nt_device_info info;
    struct device_slot *next; /* written once, when the slot after it is whole */
} device_slot;

struct nt_device {
    nt_alloc alloc;
    const char *driver_name; /* the caller's, or a constant */
    nt_library nvml_library;
    nt_library cuda_library; /* none until the driver is found loaded */
    nt_library cuda_held;    /* by nt_device_has_driver, once it was asked */
    device_nvml nvml;
    device_cuda cuda;
    bool has_nvml;
    nt_error nvml_reason;
    char version[NT_NVML_VERSION_SIZE];
    device_slot *slots; /* the first */
};

static nt_status
device_fail_slot(size_t slot, nt_error *err)
{
    return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "NVML has no device %zu", slot);
}

/* `err` says that `what` failed and how NVML calls it. */
static nt_status
device_fail_nvml(const nt_device *device, nt_status status, const char *what,
                 nt_nvml_status code, nt_error *err)
{
    const char *words = device->nvml.error(code);
    return nt_fail(err, status, NT_NO_OFFSET, "NVML's %s: %s (%d)", what,
                   words != NULL ? words : "an unknown error", (int)code);
}

/* NVML's first form of the figures: what the driver keeps for itself is in `used`. */
static nt_status
device_read_old(const nt_device *d, nt_nvml_device handle, nt_device_memory *out,
                nt_error *err)
{
    nt_nvml_memory m = {0};
    const nt_nvml_status code = d->nvml.memory(handle, &m);
    if (code != NT_NVML_SUCCESS) {
        return device_fail_nvml(d, NT_IO, "nvmlDeviceGetMemoryInfo", code, err);
    }
    *out = (nt_device_memory){m.free + m.used, m.free, m.used, NT_DEVICE_UNKNOWN};
    return NT_OK;
}

/* The slot with this number; NULL where there is none. Any thread. */
static device_slot *
device_at(const nt_device *device, size_t number)
{
    device_slot *at = __atomic_load_n(&device->slots, __ATOMIC_ACQUIRE);
    while (at != NULL && number-- > 0) {
        at = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE);
    }
    return at;
}

nt_status
nt_device_read_memory(const nt_device *device, size_t slot, nt_device_memory *out,
                      nt_error *err)
{
    const device_slot *at = device_at(device, slot);
    if (at == NULL) {
        return device_fail_slot(slot, err);
    }
    nt_nvml_memory_v2 m = {.version = NT_NVML_MEMORY_VERSION};
    if (device->nvml.memory_v2 == NULL ||
        device->nvml.memory_v2(at->handle, &m) != NT_NVML_SUCCESS) {
        return device_read_old(device, at->handle, out, err);
    }
    *out = (nt_device_memory){m.free + m.used, m.free, m.used, m.reserved};
    return NT_OK;
}

/* The rows of one call of NVML; *count is the room, and then the number of them. */
static nt_nvml_status
device_ask(nt_nvml_device handle, nt_nvml_processes_fn *v2, nt_nvml_processes_fn *v3,
           nt_nvml_process *rows, unsigned int *count)
{
    const unsigned int room = *count;
    nt_nvml_processes_fn *const forms[] = {v2, v3};
    nt_nvml_status code = -1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i] == NULL) {
            continue;
        }
        *count = room;
        code = forms[i](handle, count, rows);
        if (code == NT_NVML_SUCCESS || code == NT_NVML_INSUFFICIENT_SIZE) {
            return code;
        }
    }
    return code;
}

/* Adds the rows of processes that are not there yet; of one that is, the larger size.
 */
static nt_status
device_merge(nt_device_process *rows, size_t capacity, size_t *count,
             const nt_nvml_process *more, unsigned int more_count, nt_error *err)
{
    for (unsigned int k = 0; k < more_count; k++) {
        const uint64_t used =
            more[k].used == NT_NVML_NOT_AVAILABLE ? NT_DEVICE_UNKNOWN : more[k].used;
        size_t i = 0;
        while (i < *count && rows[i].pid != more[k].pid) {
            i++;
        }
        if (i == capacity) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than %zu processes",
                           capacity);
        }
        if (i == *count) {
            rows[(*count)++] = (nt_device_process){more[k].pid, used};
        } else if (rows[i].used == NT_DEVICE_UNKNOWN ||
                   (used != NT_DEVICE_UNKNOWN && used > rows[i].used)) {
            rows[i].used = used;
        }
    }
    return NT_OK;
}

nt_status
nt_device_read_processes(const nt_device *device, size_t slot, nt_device_process *rows,
                         size_t capacity, size_t *count, nt_error *err)
{
    const device_slot *at = device_at(device, slot);
    if (at == NULL) {
        return device_fail_slot(slot, err);
    }
    const device_nvml *nvml = &device->nvml;
    nt_nvml_processes_fn *const kinds[][2] = {{nvml->compute_v2, nvml->compute_v3},
                                              {nvml->graphics_v2, nvml->graphics_v3}};
    if (nvml->compute_v2 == NULL && nvml->compute_v3 == NULL) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "driver %s has no list of processes in a known form",
                       device->version);
    }
    nt_nvml_status code = -1;
    size_t found = 0;
    bool has_list = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        nt_nvml_process part[NT_DEVICE_MOST_PROCESSES];
        unsigned int part_count = NT_DEVICE_MOST_PROCESSES;
        const nt_nvml_status answer =
            device_ask(at->handle, kinds[i][0], kinds[i][1], part, &part_count);
        if (answer == NT_NVML_INSUFFICIENT_SIZE) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than %d processes",
                           NT_DEVICE_MOST_PROCESSES);
        }
        if (answer == NT_NVML_SUCCESS) {
            NT_TRY(device_merge(rows, capacity, &found, part, part_count, err));
            has_list = true;
        } else if (i == 0) {
            code = answer;
        }
    }
    if (!has_list) {
        return device_fail_nvml(device, NT_REFUSED, "list of processes", code, err);
    }
    *count = found;
    return NT_OK;
}

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

/* Adds a slot for `handle`; `*slot` is written on success. */
static nt_status
device_add(nt_device *d, nt_nvml_device handle, size_t *slot, nt_error *err)
{
    device_slot made = {.handle = handle};
    const nt_nvml_status code = d->nvml.uuid(handle, made.info.uuid, NT_NVML_UUID_SIZE);
    if (code != NT_NVML_SUCCESS) {
        return device_fail_nvml(d, NT_IO, "nvmlDeviceGetUUID", code, err);
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
        return device_fail_nvml(d, NT_REFUSED, "nvmlDeviceGetCount", code, err);
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

/* The drivers of CUDA 12.2 before its update 2 (535.43 to 535.86; 535.98 has no v3)
 * fill rows of 32 bytes under the name of v3, and tell nobody: those are left alone.
 * Their v2 is as it always was. */
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
        return device_fail_nvml(d, NT_REFUSED, "nvmlInit", code, err);
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

nt_status
nt_device_open(const nt_alloc *alloc, const nt_device_names *names, nt_device **out,
               nt_error *err)
{
    nt_device *d;
    NT_TRY(NT_NEW(alloc, d, 1, err));
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
    while (device_at(device, count) != NULL) {
        count++;
    }
    return count;
}

const nt_device_info *
nt_device_get(const nt_device *device, size_t slot)
{
    return &device_at(device, slot)->info;
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
