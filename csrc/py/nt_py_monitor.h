/* SPDX-License-Identifier: Apache-2.0 */
/* Where the monitor's readings come from: functions that its native thread calls,
 * without the GIL. */
#ifndef NT_PY_MONITOR_H
#define NT_PY_MONITOR_H

#include "nt_py.h"

#include "monitor/nt_device.h"
#include "monitor/nt_sampler.h"
#include "trace/nt_live_api.h"

/* The devices that are followed, and NVML's number of each. */
typedef struct nt_py_places {
    const nt_device *device;    /* NULL: there is no NVML, and every slot is -1 */
    const nt_live_source *live; /* the shim, or NULL */
    size_t count;
    int32_t devices[NT_SAMPLER_DEVICES];
    int32_t slots[NT_SAMPLER_DEVICES];
} nt_py_places;

/* The allocator's figures through the shim: nt_sampler_source.stats. `ctx` is the
 * shim's const nt_live_source. */
int
nt_py_read_live(void *ctx, int32_t device, nt_reading *out);

/* Through NVML, or for the CPU from the kernel, and the cap through the shim:
 * nt_sampler_source.memory. `ctx` is a
 * const nt_py_places. */
int
nt_py_read_memory(void *ctx, int32_t device, nt_sampler_memory *out);

#endif
