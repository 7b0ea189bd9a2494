/* SPDX-License-Identifier: Apache-2.0 */
/* What an nt_device is made of, for its own files. */
#ifndef NT_DEVICE_STATE_H
#define NT_DEVICE_STATE_H

#include "monitor/nt_device.h"
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

/* The slot with this number; NULL where there is none. Any thread. */
device_slot *
nt_device_slot(const nt_device *device, size_t number);

/* `err` says that `what` failed and how NVML calls it. */
nt_status
nt_device_fail_nvml(const nt_device *device, nt_status status, const char *what,
                    nt_nvml_status code, nt_error *err);

#endif
