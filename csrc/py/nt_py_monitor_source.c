/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py_monitor.h"

#include <stdio.h>

int
nt_py_read_live(void *ctx, int32_t device, nt_reading *out)
{
    const nt_live_source *live = ctx;
    nt_live_brief brief;
    const int answer = live->device_brief(live->ctx, device, &brief);
    if (answer != 0) {
        return answer == 1 ? NT_SOURCE_NOT_YET : answer;
    }
    /* The peak can be set back, by a program that takes all of its memory back too. The
     * CPU (-1) is in use without a tensor on it. */
    if (device >= 0 && brief.reserved_bytes == 0 && brief.peak_reserved_bytes == 0 &&
        brief.ever_reserved_bytes == 0) {
        return NT_SOURCE_NOT_YET;
    }
    out->figure[NT_FIGURE_ALLOCATED] = (uint64_t)brief.allocated_bytes;
    out->figure[NT_FIGURE_RESERVED] = (uint64_t)brief.reserved_bytes;
    out->figure[NT_FIGURE_ACTIVE] = (uint64_t)brief.active_bytes;
    out->figure[NT_FIGURE_INACTIVE_SPLIT] = (uint64_t)brief.inactive_split_bytes;
    out->figure[NT_FIGURE_REQUESTED] = (uint64_t)brief.requested_bytes;
    out->figure[NT_FIGURE_RETRIES] = (uint64_t)brief.num_alloc_retries;
    out->figure[NT_FIGURE_OOMS] = (uint64_t)brief.num_ooms;
    out->peak_allocated = (uint64_t)brief.peak_allocated_bytes;
    out->peak_reserved = (uint64_t)brief.peak_reserved_bytes;
    return NT_SOURCE_OK;
}

/* What the kernel says of this machine's memory. */
static int
monitor_read_system(nt_sampler_memory *out)
{
    unsigned long long all = 0, available = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return -1;
    }
    while ((all == 0 || available == 0) && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "MemTotal: %llu kB", &all);
        (void)sscanf(line, "MemAvailable: %llu kB", &available);
    }
    (void)fclose(file);
    if (all == 0 || available == 0 || available > all) {
        return -1;
    }
    out->used = (uint64_t)(all - available) << 10;
    out->total = (uint64_t)all << 10;
    return NT_SOURCE_OK;
}

/* Bytes that PyTorch's allocator may reserve of `total`; 0 where nobody said. */
static uint64_t
monitor_read_cap(const nt_live_source *live, int32_t device, uint64_t total)
{
    const double share = live == NULL || live->device_fraction == NULL
                             ? 1.0
                             : live->device_fraction(live->ctx, device);
    return share > 0.0 && share < 1.0 ? (uint64_t)(share * (double)total) : 0;
}

int
nt_py_read_memory(void *ctx, int32_t device, nt_sampler_memory *out)
{
    const nt_py_places *places = ctx;
    nt_device_memory memory;
    if (device == NT_SAMPLER_CPU) {
        return monitor_read_system(out);
    }
    for (size_t i = 0; i < places->count; i++) {
        if (places->devices[i] == device && places->slots[i] >= 0) {
            if (nt_device_read_memory(places->device, (size_t)places->slots[i], &memory,
                                      NULL) != NT_OK) {
                return -1;
            }
            out->used = memory.used;
            out->total = memory.total;
            out->cap = monitor_read_cap(places->live, device, memory.total);
            return NT_SOURCE_OK;
        }
    }
    return -1;
}
