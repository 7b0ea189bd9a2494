/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this machine and who uses their memory, by NVML and the CUDA driver,
 * both loaded at run time. CUDA is never initialised: the driver is asked only where
 * this process has already started it, and no context is ever made.
 *
 * NVML knows all devices, numbered by `slot`; CUDA_VISIBLE_DEVICES means nothing to it.
 * The CUDA driver knows the visible ones, numbered by ordinal as PyTorch numbers them.
 * What the two have in common is the UUID. */
#ifndef NT_DEVICE_H
#define NT_DEVICE_H

#include "base/nt_base.h"

#define NT_DEVICE_TEXT 96
/* Room for the processes of one device: as many as NVML is ever asked for. */
#define NT_DEVICE_MOST_PROCESSES 256
/* A size that can't be known. */
#define NT_DEVICE_UNKNOWN UINT64_MAX

typedef struct nt_device nt_device;

/* Names of the libraries, or NULL for the usual ones. */
typedef struct nt_device_names {
    const char *nvml;
    const char *driver;
} nt_device_names;

typedef struct nt_device_info {
    char uuid[NT_DEVICE_TEXT]; /* "GPU-..." or "MIG-..."; never empty */
    char name[NT_DEVICE_TEXT]; /* may be empty */
    bool is_mig;               /* it is cut into instances */
} nt_device_info;

/* Bytes. total is what programs can have: used + free. */
typedef struct nt_device_memory {
    uint64_t total;
    uint64_t free;
    uint64_t used;
    uint64_t reserved; /* the driver's own beside; NT_DEVICE_UNKNOWN: it is in used */
} nt_device_memory;

typedef struct nt_device_process {
    uint32_t pid;  /* as the host numbers it: not a container's own number */
    uint64_t used; /* bytes, or NT_DEVICE_UNKNOWN */
} nt_device_process;

/* Loads NVML, if it is there, and lists its devices. The object is usable without it:
 * `nt_device_nvml_reason` says what is missing. Only lack of memory is failure. An
 * object belongs to the process that made it: a fork's child opens its own. */
nt_status
nt_device_open(const nt_alloc *alloc, const nt_device_names *names, nt_device **out,
               nt_error *err) NT_CHECKED;

/* NULL is fine. */
void
nt_device_close(nt_device *device);

/* Why there is no NVML, in one clause; NULL where there is. */
const char *
nt_device_nvml_reason(const nt_device *device);

/* The driver's version as NVML gives it; "" where it can't. */
const char *
nt_device_driver_version(const nt_device *device);

/* NVML's devices: slots 0 .. count - 1. One that NVML can't open has no slot. */
size_t
nt_device_count(const nt_device *device);

/* Of a slot that there is; valid as long as the object. */
const nt_device_info *
nt_device_get(const nt_device *device, size_t slot);

/* The slot of the device with exactly this UUID; false where there is none. Adds a slot
 * for an instance of a MIG device, so two threads must not call it at once; others may
 * read slots meanwhile. */
bool
nt_device_find(nt_device *device, const char *uuid, size_t *slot);

/* The memory of a slot: some 3 microseconds. Any thread may call it, several at once.
 * NT_IO, in NVML's words, where the device does not answer. */
nt_status
nt_device_read_memory(const nt_device *device, size_t slot, nt_device_memory *out,
                      nt_error *err) NT_CHECKED;

/* Processes that use a slot, each once, into `rows`. NT_REFUSED, in NVML's words, where
 * it gives no list here; NT_LIMIT where there are more than `capacity`. Where a device
 * in use has an empty list, NVML keeps it back, as in some containers. Any thread. */
nt_status
nt_device_read_processes(const nt_device *device, size_t slot, nt_device_process *rows,
                         size_t capacity, size_t *count, nt_error *err) NT_CHECKED;

/* Whether the CUDA driver can be loaded. If so it is loaded, and nothing in it is
 * called. Two threads must not call this at once. */
bool
nt_device_has_driver(nt_device *device);

/* The devices that CUDA shows to this process, by the driver. NT_REFUSED where it has
 * not been started in this process. Two threads must not call these three at once. */
nt_status
nt_device_count_visible(nt_device *device, size_t *count, nt_error *err) NT_CHECKED;

nt_status
nt_device_get_visible(nt_device *device, size_t ordinal, nt_device_info *out,
                      nt_error *err) NT_CHECKED;

/* The driver's own figures, for where NVML is missing. free and used are
 * NT_DEVICE_UNKNOWN where this process has no context on the device. */
nt_status
nt_device_read_visible(nt_device *device, size_t ordinal, nt_device_memory *out,
                       nt_error *err) NT_CHECKED;

#endif
