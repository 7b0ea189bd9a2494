/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "monitor/nt_device_state.h"

static nt_status
device_fail_slot(size_t slot, nt_error *err)
{
    return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "NVML has no device %zu", slot);
}

/* NVML's first form of the figures: what the driver keeps for itself is in `used`. */
static nt_status
device_read_old(const nt_device *d, nt_nvml_device handle, nt_device_memory *out,
                nt_error *err)
{
    nt_nvml_memory m = {0};
    const nt_nvml_status code = d->nvml.memory(handle, &m);
    if (code != NT_NVML_SUCCESS) {
        return nt_device_fail_nvml(d, NT_IO, "nvmlDeviceGetMemoryInfo", code, err);
    }
    *out = (nt_device_memory){m.free + m.used, m.free, m.used, NT_DEVICE_UNKNOWN};
    return NT_OK;
}

nt_status
nt_device_read_memory(const nt_device *device, size_t slot, nt_device_memory *out,
                      nt_error *err)
{
    const device_slot *at = nt_device_slot(device, slot);
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
    const device_slot *at = nt_device_slot(device, slot);
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
        return nt_device_fail_nvml(device, NT_REFUSED, "list of processes", code, err);
    }
    *count = found;
    return NT_OK;
}
