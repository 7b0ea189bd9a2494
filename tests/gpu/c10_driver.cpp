/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives PyTorch's device allocator through c10 alone, and tells what it holds from
 * PyTorch's own answers: what neutracer says is held against these. For
 * c10_releases.py.
 */
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

namespace c10::cuda::_internal
{
/* What the rest of torch tells c10 at its start; no header has it. */
C10_CUDA_API void
setHasPrimaryContext(bool (*)(DeviceIndex));
} // namespace c10::cuda::_internal

namespace
{

namespace cca = c10::cuda::CUDACachingAllocator;

std::vector<c10::DataPtr> kept;
std::vector<std::thread> storms;
std::atomic<bool> calm, is_held;

void
begin_in(int device)
{
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
}

/* Blocks of many sizes on three streams, some of which another stream uses as well. */
std::vector<c10::DataPtr>
churn(int device, uint64_t seed, const std::function<bool(int)> &goes_on)
{
    begin_in(device);
    std::mt19937_64 chance(seed);
    const std::array<c10::cuda::CUDAStream, 3> streams = {
        c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(device)),
        c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device)),
        c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device))};
    std::vector<c10::DataPtr> mine;
    for (int round = 0; goes_on(round); round++) {
        if (mine.size() > 60 || (!mine.empty() && chance() % 100 < 45)) {
            mine.erase(mine.begin() + static_cast<long>(chance() % mine.size()));
            continue;
        }
        c10::cuda::setCurrentCUDAStream(streams[chance() % 3]);
        const size_t size = (size_t{1} << (4 + chance() % 21)) + chance() % 5000;
        mine.push_back(cca::get()->allocate(size));
        if (chance() % 8 == 0) {
            cca::recordStream(mine.back(), streams[chance() % 3]);
        }
    }
    c10::cuda::setCurrentCUDAStream(streams[0]);
    return mine;
}

/* Whether this release can annotate a block. */
template <typename Allocator, typename = void> struct annotator {
    static int
    annotate(Allocator *, const void *, const char *)
    {
        return 0;
    }
};
template <typename Allocator>
struct annotator<Allocator, std::void_t<decltype(&Allocator::annotateMemory)>> {
    static int
    annotate(Allocator *allocator, const void *address, const char *text)
    {
        allocator->annotateMemory(address, text);
        return 1;
    }
};

} // namespace

extern "C" {

void
driver_begin(int devices)
{
    for (int device = devices - 1; device >= 0; device--) {
        begin_in(device);
        cudaFree(nullptr);
    }
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    c10::cuda::detail::init_p2p_access_cache(devices);
    cca::init(devices);
}

void
driver_churn(int device, uint64_t seed, int rounds)
{
    auto mine = churn(device, seed, [=](int round) { return round < rounds; });
    for (auto &block : mine) {
        kept.push_back(std::move(block));
    }
    begin_in(0);
}

void
driver_storm_begin(int device)
{
    calm = false;
    storms.emplace_back(
        [device] { (void)churn(device, 99, [](int) { return !calm.load(); }); });
}

void
driver_storm_end(void)
{
    calm = true;
    for (auto &storm : storms) {
        storm.join();
    }
    storms.clear();
}

/* A block of 5 MiB in a pool of its own, given out and kept. */
uint64_t
driver_pool(void)
{
    const c10::MempoolId_t pool{0, 77};
    cca::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    kept.push_back(cca::get()->allocate(5 << 20));
    cca::endAllocateToPool(0, pool);
    return reinterpret_cast<uintptr_t>(kept.back().get());
}

/* 1 if the allocator ran out of memory, as it should. */
int
driver_oom(uint64_t bytes)
{
    try {
        const c10::DataPtr block = cca::get()->allocate(bytes);
        return 0;
    } catch (const c10::OutOfMemoryError &) {
        return 1;
    }
}

/* The address of the block that was annotated, or 0. */
uint64_t
driver_annotate(const char *text)
{
    const void *address = kept.back().get();
    const int done = annotator<cca::CUDAAllocator>::annotate(cca::get(), address, text);
    return done == 0 ? 0 : reinterpret_cast<uintptr_t>(address);
}

/* Gives back a block that another stream goes on using until driver_let_go. */
void
driver_hold(int device)
{
    begin_in(device);
    const auto other =
        c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device));
    is_held = true;
    cudaLaunchHostFunc(
        other.stream(),
        [](void *) {
            while (is_held.load()) {
                std::this_thread::yield();
            }
        },
        nullptr);
    cca::recordStream(cca::get()->allocate(3 << 20), other);
    begin_in(0);
}

void
driver_let_go(int devices)
{
    is_held = false;
    for (int device = 0; device < devices; device++) {
        begin_in(device);
        cudaDeviceSynchronize();
    }
    begin_in(0);
}

/* Current, peak, allocated and freed, pool by pool, of the figures that c10_releases.py
 * names. */
void
driver_stats(int device, int64_t out[108])
{
    const auto stats = cca::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const c10::CachingAllocator::StatArray *metrics[] = {
        &stats.allocation,      &stats.segment,
        &stats.active,          &stats.inactive_split,
        &stats.allocated_bytes, &stats.reserved_bytes,
        &stats.active_bytes,    &stats.inactive_split_bytes,
        &stats.requested_bytes,
    };
    for (const auto *metric : metrics) {
        for (const auto &pool : *metric) {
            for (const int64_t value :
                 {pool.current, pool.peak, pool.allocated, pool.freed}) {
                *out++ = value;
            }
        }
    }
}

/* Rows of device, segment, its bytes, stream, block, bytes, bytes asked for, state;
 * returns how many rows there are, of which `most` are written. */
uint64_t
driver_layout(int64_t (*out)[8], uint64_t most)
{
    uint64_t count = 0;
    for (const auto &segment : cca::get()->snapshot({0, 0}, false).segments) {
        uint64_t address = segment.address;
        for (const auto &block : segment.blocks) {
            const int64_t row[8] = {segment.device,
                                    static_cast<int64_t>(segment.address),
                                    static_cast<int64_t>(segment.total_size),
                                    reinterpret_cast<intptr_t>(segment.stream),
                                    static_cast<int64_t>(address),
                                    static_cast<int64_t>(block.size),
                                    static_cast<int64_t>(block.requested_size),
                                    block.allocated ? 1
                                    : block.active  ? 2
                                                    : 0};
            if (count < most) {
                std::copy(row, row + 8, out[count]);
            }
            count++;
            address += block.size;
        }
    }
    return count;
}

/* ns that one of `rounds` allocations takes together with its release. */
double
driver_ns(uint64_t rounds)
{
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < rounds; i++) {
        cca::get()->raw_deallocate(cca::get()->raw_allocate(512));
    }
    const std::chrono::duration<double, std::nano> took =
        std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(rounds);
}

} // extern "C"
