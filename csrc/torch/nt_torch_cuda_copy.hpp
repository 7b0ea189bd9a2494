/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch reports of its device allocator, in the words of nt_live_api.h. */
#ifndef NT_TORCH_CUDA_COPY_HPP
#define NT_TORCH_CUDA_COPY_HPP

#include <c10/cuda/CUDACachingAllocator.h>

#include "trace/nt_live_api.h"

namespace neutracer
{

namespace cca = c10::cuda::CUDACachingAllocator;

/* The figures of a device. */
void
copy_stats(const cca::DeviceStats &stats, nt_live_stats *out) noexcept;

/* One segment with its blocks; 0, or -1 where the builder refuses. */
int
copy_segment(nt_live_builder *builder,
             const c10::CachingDeviceAllocator::SegmentInfo &from);

/* What the allocator is set to; 0, or else what the builder said. */
int
copy_settings(nt_live_builder *builder, const cca::AllocatorConfigInfo &config);

} // namespace neutracer

#endif
