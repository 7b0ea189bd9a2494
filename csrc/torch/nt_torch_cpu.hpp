/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What c10 reports of the CPU's allocator, and to whom. Releases of torch may differ in
 * it: what a compiler can see of that is asserted here, and `cpu_differs` tries out the
 * rest in the torch that runs.
 */
#ifndef NT_TORCH_CPU_HPP
#define NT_TORCH_CPU_HPP

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <memory>
#include <string>
#include <type_traits>

namespace neutracer
{

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;
using c10_reporting = c10::MemoryReportingInfoBase;
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

static_assert(std::is_same_v<decltype(&c10_reporting::reportMemoryUsage),
                             void (c10_reporting::*)(void *, int64_t, size_t, size_t,
                                                     c10::Device)>,
              "c10 reports a block by other things than its address, its size, two "
              "totals and its device");
static_assert(
    std::is_same_v<decltype(&c10_reporting::reportOutOfMemory),
                   void (c10_reporting::*)(int64_t, size_t, size_t, c10::Device)>,
    "c10 reports that memory ran out by other things than the size, two "
    "totals and the device");
static_assert(std::is_base_of_v<c10_reporting, ProfilerStateBase> &&
                  std::is_base_of_v<c10::DebugInfoBase, c10_reporting>,
              "a profiler of PyTorch is no listener of c10's allocators");
static_assert(
    std::is_same_v<decltype(&ThreadLocalDebugInfo::_push),
                   void (*)(DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>)> &&
        std::is_same_v<decltype(&ThreadLocalDebugInfo::get),
                       c10::DebugInfoBase *(*)(DebugInfoKind)>,
    "c10 keeps what belongs to a thread in another way");

/* What can lie in the profiler's place: PyTorch takes it for one that is off. */
class memory_listener : public ProfilerStateBase
{
  public:
    memory_listener() : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled))
    {
    }

    ActiveProfilerType
    profilerType() override
    {
        return ActiveProfilerType::NONE;
    }
};

/*
 * What PyTorch's CPU allocator does other than the watch relies on, as a sentence
 * without its end, or "". Allocates a few KiB, and requests more than there can be, in
 * threads of its own, one of which takes the GIL where PyTorch keeps Python's stack
 * with its errors: do not call it with the GIL. Throws where there are no threads or no
 * memory.
 */
std::string
cpu_differs();

} // namespace neutracer

#endif
