/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the header of a torch built for CUDA: what nt_torch_cuda.cpp uses of
 * it, with an allocator whose events a test makes. It has no lock: one thread at a
 * time.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace c10
{

using DeviceIndex = signed char;

namespace CachingAllocator
{

struct Stat {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
using StatArray = Stat[3];

} // namespace CachingAllocator

namespace CachingDeviceAllocator
{

struct BlockInfo {
    size_t size = 0, requested_size = 0;
    bool allocated = false, active = false;
};

struct SegmentInfo {
    DeviceIndex device = 0;
    size_t address = 0, total_size = 0;
    size_t requested_size = 0, allocated_size = 0, active_size = 0;
    void *stream = nullptr;
    bool is_large = false, is_expandable = false;
    std::pair<uint64_t, uint64_t> owner_private_pool_id;
    std::vector<BlockInfo> blocks;
};

} // namespace CachingDeviceAllocator

namespace cuda::CUDACachingAllocator
{

struct TraceEntry {
    enum Action {
        ALLOC,
        FREE_REQUESTED,
        FREE_COMPLETED,
        SEGMENT_ALLOC,
        SEGMENT_FREE,
        SEGMENT_MAP,
        SEGMENT_UNMAP,
        SNAPSHOT,
        OOM,
        ANNOTATE,
    };
    union {
        int64_t approx_t_;
    } time_ = {};
    Action action_ = ALLOC;
    int device_ = 0;
    size_t addr_ = 0, size_ = 0;
    void *stream_ = nullptr;
    std::pair<uint64_t, uint64_t> mempool_;
    std::string user_metadata_;
};

struct DeviceStats {
    CachingAllocator::StatArray allocation, segment, active, inactive_split;
    CachingAllocator::StatArray allocated_bytes, reserved_bytes, active_bytes;
    CachingAllocator::StatArray inactive_split_bytes, requested_bytes;
    CachingAllocator::Stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
    int64_t num_device_alloc = 0, num_device_free = 0, max_split_size = -1;
};

struct AllocatorConfigInfo {
    std::string last_allocator_settings;
    std::vector<size_t> roundup_power2_divisions;
    size_t max_split_size = 0, pinned_num_register_threads = 1;
    double garbage_collection_threshold = 0;
    bool expandable_segments = false, release_lock_on_malloc = false;
    bool pinned_use_host_register = false, graph_capture_record_stream_reuse = false;
};

struct SnapshotInfo {
    std::vector<CachingDeviceAllocator::SegmentInfo> segments;
    AllocatorConfigInfo config_metadata;
};

class CUDAAllocator
{
  public:
    /* Called when a layout was taken and before it is handed over. */
    std::function<void()> after_layout;
    /* Of every device. */
    DeviceStats stats;

    void
    tell(TraceEntry::Action action, size_t address)
    {
        TraceEntry event;
        event.action_ = action;
        event.addr_ = address;
        event.size_ = 512;
        tracker(event);
    }

    bool
    initialized()
    {
        return true;
    }

    std::string
    name()
    {
        return "native";
    }

    DeviceStats
    getDeviceStats(DeviceIndex)
    {
        return stats;
    }

    double
    getMemoryFraction(DeviceIndex)
    {
        return 1.0;
    }

    SnapshotInfo
    snapshot(std::pair<uint64_t, uint64_t>, bool)
    {
        tell(TraceEntry::SNAPSHOT, 0);
        if (after_layout) {
            after_layout();
        }
        return {};
    }

    void
    attachAllocatorTraceTracker(std::function<void(const TraceEntry &)> given)
    {
        tracker = std::move(given);
    }

    void
    attachOutOfMemoryObserver(std::function<void(int64_t, size_t, size_t, size_t)>)
    {
    }

  private:
    std::function<void(const TraceEntry &)> tracker;
};

inline CUDAAllocator *
get()
{
    static CUDAAllocator made;
    return &made;
}

} // namespace cuda::CUDACachingAllocator
} // namespace c10
