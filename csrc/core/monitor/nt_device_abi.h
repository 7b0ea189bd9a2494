/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of NVML and of the CUDA driver, declared here so that neither's headers
 * are needed. tests/fakes/toolkit_abi.c holds it against them where they are installed;
 * it defines NT_ABI_TOOLKIT and gives their types the names that stand here. */
#ifndef NT_DEVICE_ABI_H
#define NT_DEVICE_ABI_H

#include <stddef.h>

enum {
    NT_NVML_SUCCESS = 0,
    NT_NVML_INSUFFICIENT_SIZE = 7,
    NT_NVML_UUID_SIZE = 96, /* of a UUID's text with its terminator */
    NT_NVML_NAME_SIZE = 96,
    NT_NVML_VERSION_SIZE = 80,
    NT_NVML_MIG_ENABLED = 1,
    NT_CUDA_SUCCESS = 0,
    NT_CUDA_NOT_INITIALIZED = 3, /* nobody in this process has called cuInit */
};

/* A size that NVML can't tell. */
#define NT_NVML_NOT_AVAILABLE UINT64_MAX

/* What nvmlMemory_v2_t.version must be: the struct's size and the number 2. */
#define NT_NVML_MEMORY_VERSION (sizeof(nt_nvml_memory_v2) | 2U << 24)

#ifndef NT_ABI_TOOLKIT

typedef int nt_nvml_status;
typedef void *nt_nvml_device;

typedef struct nt_nvml_memory {
    unsigned long long total; /* bytes, all three; used includes the driver's own */
    unsigned long long free;
    unsigned long long used;
} nt_nvml_memory;

typedef struct nt_nvml_memory_v2 {
    unsigned int version;
    unsigned long long total;
    unsigned long long
        reserved; /* bytes that the driver keeps, in none of the others */
    unsigned long long free;
    unsigned long long used;
} nt_nvml_memory_v2;

typedef struct nt_nvml_process {
    unsigned int pid;
    unsigned long long used; /* bytes, or NT_NVML_NOT_AVAILABLE */
    unsigned int gpu_instance;
    unsigned int compute_instance;
} nt_nvml_process;

typedef int nt_cuda_status;
typedef int nt_cuda_device;
typedef void *nt_cuda_context;

typedef struct nt_cuda_uuid {
    char bytes[16];
} nt_cuda_uuid;

#endif

typedef nt_nvml_status
nt_nvml_init_fn(void);
typedef nt_nvml_status
nt_nvml_shutdown_fn(void);
typedef const char *
nt_nvml_error_fn(nt_nvml_status status);
typedef nt_nvml_status
nt_nvml_version_fn(char *version, unsigned int size);
typedef nt_nvml_status
nt_nvml_count_fn(unsigned int *count);
typedef nt_nvml_status
nt_nvml_by_index_fn(unsigned int index, nt_nvml_device *out);
typedef nt_nvml_status
nt_nvml_by_uuid_fn(const char *uuid, nt_nvml_device *out);
typedef nt_nvml_status
nt_nvml_text_fn(nt_nvml_device device, char *text, unsigned int size);
typedef nt_nvml_status
nt_nvml_memory_fn(nt_nvml_device device, nt_nvml_memory *out);
typedef nt_nvml_status
nt_nvml_memory_v2_fn(nt_nvml_device device, nt_nvml_memory_v2 *out);
typedef nt_nvml_status
nt_nvml_processes_fn(nt_nvml_device device, unsigned int *count, nt_nvml_process *out);
typedef nt_nvml_status
nt_nvml_mig_fn(nt_nvml_device device, unsigned int *current, unsigned int *pending);

typedef nt_cuda_status
nt_cuda_count_fn(int *count);
typedef nt_cuda_status
nt_cuda_get_fn(nt_cuda_device *out, int ordinal);
typedef nt_cuda_status
nt_cuda_name_fn(char *name, int size, nt_cuda_device device);
typedef nt_cuda_status
nt_cuda_uuid_fn(nt_cuda_uuid *out, nt_cuda_device device);
typedef nt_cuda_status
nt_cuda_total_fn(size_t *bytes, nt_cuda_device device);
typedef nt_cuda_status
nt_cuda_state_fn(nt_cuda_device device, unsigned int *flags, int *is_active);
typedef nt_cuda_status
nt_cuda_retain_fn(nt_cuda_context *out, nt_cuda_device device);
typedef nt_cuda_status
nt_cuda_release_fn(nt_cuda_device device);
typedef nt_cuda_status
nt_cuda_push_fn(nt_cuda_context context);
typedef nt_cuda_status
nt_cuda_pop_fn(nt_cuda_context *out);
typedef nt_cuda_status
nt_cuda_memory_fn(size_t *free_bytes, size_t *total_bytes);

#endif
