/* SPDX-License-Identifier: Apache-2.0 */
/* Copies field by field; nothing here is called under the allocator's lock. */
#include "nt_torch.hpp"

#if NT_TORCH_CUDA

#include "nt_torch_cuda_copy.hpp"

#include <string>
#include <vector>

namespace neutracer
{

namespace
{

nt_live_stat
stat_of(const c10::CachingAllocator::Stat &stat) noexcept
{
    return {stat.current, stat.peak, stat.allocated, stat.freed};
}

} // namespace

void
copy_stats(const cca::DeviceStats &stats, nt_live_stats *out) noexcept
{
    const c10::CachingAllocator::StatArray *metrics[NT_LIVE_METRICS] = {
        &stats.allocation,      &stats.segment,
        &stats.active,          &stats.inactive_split,
        &stats.allocated_bytes, &stats.reserved_bytes,
        &stats.active_bytes,    &stats.inactive_split_bytes,
        &stats.requested_bytes,
    };
    for (int metric = 0; metric < NT_LIVE_METRICS; metric++) {
        for (int pool = 0; pool < NT_LIVE_POOLS; pool++) {
            out->metric[metric][pool] = stat_of((*metrics[metric])[pool]);
        }
    }
    out->oversize_allocations = stat_of(stats.oversize_allocations);
    out->oversize_segments = stat_of(stats.oversize_segments);
    out->num_alloc_retries = stats.num_alloc_retries;
    out->num_ooms = stats.num_ooms;
    out->num_sync_all_streams = stats.num_sync_all_streams;
    out->num_device_alloc = stats.num_device_alloc;
    out->num_device_free = stats.num_device_free;
    out->max_split_size = stats.max_split_size;
}

int
copy_segment(nt_live_builder *builder,
             const c10::CachingDeviceAllocator::SegmentInfo &from)
{
    nt_live_segment segment{};
    segment.address = from.address;
    segment.total_size = from.total_size;
    segment.allocated_size = from.allocated_size;
    segment.active_size = from.active_size;
    segment.requested_size = from.requested_size;
    segment.stream = reinterpret_cast<uintptr_t>(from.stream);
    segment.pool_first = from.owner_private_pool_id.first;
    segment.pool_second = from.owner_private_pool_id.second;
    segment.device = from.device;
    segment.is_large = from.is_large ? 1 : 0;
    segment.is_expandable = from.is_expandable ? 1 : 0;
    if (core->add_segment(builder, &segment) != 0) {
        return -1;
    }
    uint64_t address = from.address;
    for (const auto &found : from.blocks) {
        nt_live_block block{};
        block.address = address;
        block.size = found.size;
        block.requested_size = found.requested_size;
        block.state = found.allocated ? 1 : found.active ? 2 : 0;
        if (core->add_block(builder, &block) != 0) {
            return -1;
        }
        address += found.size;
    }
    return 0;
}

int
copy_settings(nt_live_builder *builder, const cca::AllocatorConfigInfo &config)
{
    const std::string &conf = config.last_allocator_settings;
    const std::vector<uint64_t> roundup(config.roundup_power2_divisions.begin(),
                                        config.roundup_power2_divisions.end());
    int failed =
        core->set_text(builder, "PYTORCH_CUDA_ALLOC_CONF", conf.data(), conf.size());
    failed |= core->set_int(builder, "max_split_size",
                            static_cast<int64_t>(config.max_split_size));
    failed |= core->set_real(builder, "garbage_collection_threshold",
                             config.garbage_collection_threshold);
    failed |= core->set_bool(builder, "expandable_segments",
                             config.expandable_segments ? 1 : 0);
    failed |= core->set_int(builder, "pinned_num_register_threads",
                            static_cast<int64_t>(config.pinned_num_register_threads));
    failed |= core->set_bool(builder, "release_lock_on_cudamalloc",
                             config.release_lock_on_malloc ? 1 : 0);
    failed |= core->set_bool(builder, "pinned_use_cuda_host_register",
                             config.pinned_use_host_register ? 1 : 0);
    failed |= core->set_bool(builder, "graph_capture_record_stream_reuse",
                             config.graph_capture_record_stream_reuse ? 1 : 0);
    failed |= core->set_roundup(builder, roundup.data(), roundup.size());
    return failed;
}

} // namespace neutracer

#endif
