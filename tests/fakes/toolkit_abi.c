/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What csrc/core/monitor declares by hand, held against the vendor's own headers.
 * Compiled twice for each: with our types, whose layouts and numbers are compared, and,
 * with NT_ABI_TOOLKIT, with theirs under our names, so that prototypes are compared.
 *
 * WITH_NVML, WITH_CUDA, WITH_CUPTI: which headers there are.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef WITH_NVML
/* Each function by its own name, as it is looked up. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#endif
#ifdef WITH_CUDA
#include <cuda.h>
#endif
#ifdef WITH_CUPTI
#include <cupti.h>
/* CUDA 12.6: the fourth form of the record, and the function that fills its source. */
#define FIRST_WITH_SOURCE 24
#define HAS_SOURCE (CUPTI_API_VERSION >= FIRST_WITH_SOURCE)
#if HAS_SOURCE
typedef CUpti_ActivityMemory4 cupti_latest;
#else
typedef CUpti_ActivityMemory3 cupti_latest;
#endif
#endif

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, our_field, theirs, their_field)                               \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&       \
                       sizeof(((ours *)0)->our_field) ==                               \
                           sizeof(((theirs *)0)->their_field),                         \
                   #our_field)
#define SAME_NUMBER(ours, theirs)                                                      \
    _Static_assert((unsigned long long)(ours) == (unsigned long long)(theirs), #ours)
#define SAME_TYPE(ours, theirs)                                                        \
    _Static_assert(__builtin_types_compatible_p(ours, __typeof__(theirs)), #theirs)

#ifdef NT_ABI_TOOLKIT
#ifdef WITH_NVML
typedef nvmlReturn_t nt_nvml_status;
typedef nvmlDevice_t nt_nvml_device;
typedef nvmlMemory_t nt_nvml_memory;
typedef nvmlMemory_v2_t nt_nvml_memory_v2;
typedef nvmlProcessInfo_v2_t nt_nvml_process;
#else
typedef int nt_nvml_status;
typedef void *nt_nvml_device, *nt_nvml_memory, *nt_nvml_memory_v2, *nt_nvml_process;
#endif
#ifdef WITH_CUDA
typedef CUresult nt_cuda_status;
typedef CUdevice nt_cuda_device;
typedef CUcontext nt_cuda_context;
typedef CUuuid nt_cuda_uuid;
#else
typedef int nt_cuda_status, nt_cuda_device;
typedef void *nt_cuda_context, *nt_cuda_uuid;
#endif
#ifdef WITH_CUPTI
typedef CUptiResult nt_cupti_status;
typedef CUpti_ActivityKind nt_cupti_kind;
typedef CUcontext nt_cupti_context;
typedef CUpti_Activity nt_cupti_record;
#else
typedef int nt_cupti_status, nt_cupti_kind;
typedef void *nt_cupti_context, *nt_cupti_record;
#endif
#endif

#include "monitor/nt_cupti_abi.h"
#include "monitor/nt_device_abi.h"

#ifndef NT_ABI_TOOLKIT
#ifdef WITH_NVML
SAME_SIZE(nt_nvml_memory, nvmlMemory_t);
SAME_PLACE(nt_nvml_memory, total, nvmlMemory_t, total);
SAME_PLACE(nt_nvml_memory, free, nvmlMemory_t, free);
SAME_PLACE(nt_nvml_memory, used, nvmlMemory_t, used);
SAME_SIZE(nt_nvml_memory_v2, nvmlMemory_v2_t);
SAME_PLACE(nt_nvml_memory_v2, version, nvmlMemory_v2_t, version);
SAME_PLACE(nt_nvml_memory_v2, total, nvmlMemory_v2_t, total);
SAME_PLACE(nt_nvml_memory_v2, reserved, nvmlMemory_v2_t, reserved);
SAME_PLACE(nt_nvml_memory_v2, free, nvmlMemory_v2_t, free);
SAME_PLACE(nt_nvml_memory_v2, used, nvmlMemory_v2_t, used);
SAME_NUMBER(NT_NVML_MEMORY_VERSION, nvmlMemory_v2);
SAME_SIZE(nt_nvml_process, nvmlProcessInfo_v2_t);
/* v3 is given this one. In CUDA 12.2 before its update 2 it is a longer one with the
 * same beginning: v3 of those drivers is not called. */
_Static_assert(sizeof(nvmlProcessInfo_t) == sizeof(nt_nvml_process) ||
                   sizeof(nvmlProcessInfo_t) == sizeof(nt_nvml_process) + 8,
               "nvmlProcessInfo_t");
SAME_PLACE(nt_nvml_process, pid, nvmlProcessInfo_v2_t, pid);
SAME_PLACE(nt_nvml_process, used, nvmlProcessInfo_v2_t, usedGpuMemory);
SAME_PLACE(nt_nvml_process, gpu_instance, nvmlProcessInfo_v2_t, gpuInstanceId);
SAME_PLACE(nt_nvml_process, compute_instance, nvmlProcessInfo_v2_t, computeInstanceId);
SAME_SIZE(nt_nvml_status, nvmlReturn_t);
SAME_SIZE(nt_nvml_device, nvmlDevice_t);
SAME_NUMBER(NT_NVML_SUCCESS, NVML_SUCCESS);
SAME_NUMBER(NT_NVML_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
SAME_NUMBER(NT_NVML_UUID_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE);
SAME_NUMBER(NT_NVML_NAME_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE);
SAME_NUMBER(NT_NVML_VERSION_SIZE, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
SAME_NUMBER(NT_NVML_MIG_ENABLED, NVML_DEVICE_MIG_ENABLE);
SAME_NUMBER(NT_NVML_NOT_AVAILABLE, (unsigned long long)NVML_VALUE_NOT_AVAILABLE);
#endif
#ifdef WITH_CUDA
SAME_SIZE(nt_cuda_status, CUresult);
SAME_SIZE(nt_cuda_device, CUdevice);
SAME_SIZE(nt_cuda_context, CUcontext);
SAME_SIZE(nt_cuda_uuid, CUuuid);
SAME_NUMBER(NT_CUDA_SUCCESS, CUDA_SUCCESS);
SAME_NUMBER(NT_CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
#endif
#ifdef WITH_CUPTI
#define CUPTI_FIELD(ours, theirs)                                                      \
    SAME_PLACE(nt_cupti_memory, ours, cupti_latest, theirs)
CUPTI_FIELD(kind, kind);
CUPTI_FIELD(operation, memoryOperationType);
CUPTI_FIELD(memory_kind, memoryKind);
CUPTI_FIELD(correlation, correlationId);
CUPTI_FIELD(address, address);
CUPTI_FIELD(bytes, bytes);
CUPTI_FIELD(timestamp, timestamp);
CUPTI_FIELD(pc, PC);
CUPTI_FIELD(process, processId);
CUPTI_FIELD(device, deviceId);
CUPTI_FIELD(context, contextId);
CUPTI_FIELD(stream, streamId);
CUPTI_FIELD(name, name);
CUPTI_FIELD(is_async, isAsync);
CUPTI_FIELD(pool_type, memoryPoolConfig.memoryPoolType);
CUPTI_FIELD(pool_address, memoryPoolConfig.address);
CUPTI_FIELD(pool_threshold, memoryPoolConfig.releaseThreshold);
CUPTI_FIELD(pool_size, memoryPoolConfig.pool.size);
CUPTI_FIELD(pool_used, memoryPoolConfig.utilizedSize);
#if HAS_SOURCE
SAME_SIZE(nt_cupti_memory, cupti_latest);
CUPTI_FIELD(source, source);
#endif
/* The older forms are a beginning of it: nothing that is read has moved. */
SAME_PLACE(nt_cupti_memory, device, CUpti_ActivityMemory2, deviceId);
SAME_PLACE(nt_cupti_memory, pool_size, CUpti_ActivityMemory2,
           memoryPoolConfig.pool.size);
SAME_PLACE(nt_cupti_memory, device, CUpti_ActivityMemory3, deviceId);
SAME_PLACE(nt_cupti_memory, pool_used, CUpti_ActivityMemory3,
           memoryPoolConfig.utilizedSize);
_Static_assert(sizeof(CUpti_ActivityMemory3) == offsetof(nt_cupti_memory, source), "");
SAME_NUMBER(NT_CUPTI_VERSION_SOURCE, FIRST_WITH_SOURCE);
_Static_assert(CUPTI_API_VERSION >= NT_CUPTI_VERSION_LEAST &&
                   CUPTI_API_VERSION < NT_CUPTI_VERSION_BEYOND,
               "CUPTI is refused by its version");
SAME_SIZE(nt_cupti_status, CUptiResult);
SAME_SIZE(nt_cupti_kind, CUpti_ActivityKind);
SAME_NUMBER(NT_CUPTI_SUCCESS, CUPTI_SUCCESS);
SAME_NUMBER(NT_CUPTI_MAX_LIMIT_REACHED, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME_NUMBER(NT_CUPTI_KIND_MEMORY2, CUPTI_ACTIVITY_KIND_MEMORY2);
SAME_NUMBER(NT_CUPTI_OPERATION_ALLOCATION,
            CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION);
SAME_NUMBER(NT_CUPTI_OPERATION_RELEASE, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE);
SAME_NUMBER(NT_CUPTI_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
SAME_NUMBER(NT_CUPTI_MEMORY_PINNED, CUPTI_ACTIVITY_MEMORY_KIND_PINNED);
SAME_NUMBER(NT_CUPTI_MEMORY_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
SAME_NUMBER(NT_CUPTI_MEMORY_ARRAY, CUPTI_ACTIVITY_MEMORY_KIND_ARRAY);
SAME_NUMBER(NT_CUPTI_MEMORY_MANAGED, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED);
SAME_NUMBER(NT_CUPTI_MEMORY_DEVICE_STATIC, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC);
SAME_NUMBER(NT_CUPTI_MEMORY_MANAGED_STATIC, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC);
#endif
#else
#ifdef WITH_NVML
SAME_TYPE(nt_nvml_init_fn, nvmlInit_v2);
SAME_TYPE(nt_nvml_shutdown_fn, nvmlShutdown);
SAME_TYPE(nt_nvml_error_fn, nvmlErrorString);
SAME_TYPE(nt_nvml_version_fn, nvmlSystemGetDriverVersion);
SAME_TYPE(nt_nvml_count_fn, nvmlDeviceGetCount_v2);
SAME_TYPE(nt_nvml_by_index_fn, nvmlDeviceGetHandleByIndex_v2);
SAME_TYPE(nt_nvml_by_uuid_fn, nvmlDeviceGetHandleByUUID);
SAME_TYPE(nt_nvml_text_fn, nvmlDeviceGetName);
SAME_TYPE(nt_nvml_text_fn, nvmlDeviceGetUUID);
SAME_TYPE(nt_nvml_memory_fn, nvmlDeviceGetMemoryInfo);
SAME_TYPE(nt_nvml_memory_v2_fn, nvmlDeviceGetMemoryInfo_v2);
SAME_TYPE(nt_nvml_mig_fn, nvmlDeviceGetMigMode);
/* Theirs has a name of its own for the struct, which was compared above. */
typedef nvmlReturn_t
their_processes_fn(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
SAME_TYPE(nt_nvml_processes_fn, nvmlDeviceGetComputeRunningProcesses_v2);
SAME_TYPE(nt_nvml_processes_fn, nvmlDeviceGetGraphicsRunningProcesses_v2);
SAME_TYPE(their_processes_fn, nvmlDeviceGetComputeRunningProcesses_v3);
SAME_TYPE(their_processes_fn, nvmlDeviceGetGraphicsRunningProcesses_v3);
#endif
#ifdef WITH_CUDA
SAME_TYPE(nt_cuda_count_fn, cuDeviceGetCount);
SAME_TYPE(nt_cuda_get_fn, cuDeviceGet);
SAME_TYPE(nt_cuda_name_fn, cuDeviceGetName);
SAME_TYPE(nt_cuda_uuid_fn, cuDeviceGetUuid);
SAME_TYPE(nt_cuda_uuid_fn, cuDeviceGetUuid_v2);
SAME_TYPE(nt_cuda_total_fn, cuDeviceTotalMem_v2);
SAME_TYPE(nt_cuda_state_fn, cuDevicePrimaryCtxGetState);
SAME_TYPE(nt_cuda_retain_fn, cuDevicePrimaryCtxRetain);
SAME_TYPE(nt_cuda_release_fn, cuDevicePrimaryCtxRelease_v2);
SAME_TYPE(nt_cuda_push_fn, cuCtxPushCurrent_v2);
SAME_TYPE(nt_cuda_pop_fn, cuCtxPopCurrent_v2);
SAME_TYPE(nt_cuda_memory_fn, cuMemGetInfo_v2);
#endif
#ifdef WITH_CUPTI
SAME_TYPE(nt_cupti_version_fn, cuptiGetVersion);
SAME_TYPE(nt_cupti_words_fn, cuptiGetResultString);
SAME_TYPE(nt_cupti_register_fn, cuptiActivityRegisterCallbacks);
SAME_TYPE(nt_cupti_enable_fn, cuptiActivityEnable);
SAME_TYPE(nt_cupti_enable_fn, cuptiActivityDisable);
#if HAS_SOURCE
SAME_TYPE(nt_cupti_source_fn, cuptiActivityEnableAllocationSource);
#endif
SAME_TYPE(nt_cupti_flush_fn, cuptiActivityFlushAll);
SAME_TYPE(nt_cupti_next_fn, cuptiActivityGetNextRecord);
SAME_TYPE(nt_cupti_dropped_fn, cuptiActivityGetNumDroppedRecords);
#endif
#endif

typedef int nothing_else;
