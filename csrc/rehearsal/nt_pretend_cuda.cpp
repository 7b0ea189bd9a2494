/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device that is not there, for fake tensors: what PyTorch's CPU library asks of
 * the CUDA library is answered as if one device existed and were current. Nothing here
 * runs a kernel or has memory.
 *
 * PyTorch keeps one object of CUDAHooksInterface for a process and makes it when it is
 * first asked for; so while this is installed, that object gets the virtual table of
 * the hooks below, which have no data of their own. The guard for CUDA's devices is
 * replaced in PyTorch's registry of guards. Both are put back by nt_pretend_remove().
 * The caller holds the GIL and makes sure that no other thread uses PyTorch's CUDA
 * meanwhile.
 */
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>

namespace
{

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

/* The current device and the number of devices, for hooks and guard alike. */
std::atomic<int> current{0};
std::atomic<int> count{1};
/* cuDNN's version, as cudnnGetVersion() has it. */
std::atomic<long> cudnn{0};

struct Hooks final : at::CUDAHooksInterface {
    void
    init() const override
    {
    }
    bool
    isBuilt() const override
    {
        return true;
    }
    bool
    isAvailable() const override
    {
        return true;
    }
    bool
    hasCUDA() const override
    {
        return true;
    }
    bool
    hasCUDART() const override
    {
        return true;
    }
    bool
    hasMAGMA() const override
    {
        return true;
    }
    bool
    hasCuDNN() const override
    {
        return true;
    }
    bool
    hasCuSOLVER() const override
    {
        return true;
    }
    bool
    hasCuBLASLt() const override
    {
        return true;
    }
    std::string
    showConfig() const override
    {
        return "";
    }
    bool
    hasPrimaryContext(DeviceIndex) const override
    {
        return true;
    }
    DeviceIndex
    deviceCount() const override
    {
        return (DeviceIndex)count.load();
    }
    int
    getNumGPUs() const override
    {
        return count;
    }
    DeviceIndex
    current_device() const override
    {
        return (DeviceIndex)current.load();
    }
    DeviceIndex
    getCurrentDevice() const override
    {
        return (DeviceIndex)current.load();
    }
    void
    setCurrentDevice(DeviceIndex device) const override
    {
        current = device;
    }
    DeviceIndex
    exchangeDevice(DeviceIndex device) const override
    {
        return device < 0 ? getCurrentDevice() : (DeviceIndex)current.exchange(device);
    }
    DeviceIndex
    maybeExchangeDevice(DeviceIndex device) const override
    {
        return exchangeDevice(device);
    }
    bool
    compiledWithCuDNN() const override
    {
        return true;
    }
    bool
    supportsDilatedConvolutionWithCuDNN() const override
    {
        return true;
    }
    bool
    supportsDepthwiseConvolutionWithCuDNN() const override
    {
        return true;
    }
    bool
    supportsBFloat16ConvolutionWithCuDNNv8() const override
    {
        return true;
    }
    bool
    supportsBFloat16RNNWithCuDNN() const override
    {
        return true;
    }
    long
    versionCuDNN() const override
    {
        return cudnn;
    }
    long
    versionRuntimeCuDNN() const override
    {
        return cudnn;
    }
    double
    batchnormMinEpsilonCuDNN() const override
    {
        return 1e-5;
    }
    void
    deviceSynchronize(DeviceIndex) const override
    {
    }
    const at::Generator &
    getDefaultGenerator(DeviceIndex) const override
    {
        return at::detail::getDefaultCPUGenerator();
    }
    at::Generator
    getNewGenerator(DeviceIndex) const override
    {
        return at::detail::createCPUGenerator();
    }
    at::Allocator *
    getPinnedMemoryAllocator() const override
    {
        return c10::GetCPUAllocator();
    }
    bool
    isPinnedPtr(const void *) const override
    {
        return false;
    }
};

/* All streams are the default one, and all events have happened. */
struct Guard final : c10::impl::DeviceGuardImplInterface {
    DeviceType
    type() const override
    {
        return DeviceType::CUDA;
    }
    Device
    exchangeDevice(Device device) const override
    {
        return Device(DeviceType::CUDA,
                      device.has_index() ? (DeviceIndex)current.exchange(device.index())
                                         : (DeviceIndex)current.load());
    }
    Device
    getDevice() const override
    {
        return Device(DeviceType::CUDA, (DeviceIndex)current.load());
    }
    void
    setDevice(Device device) const override
    {
        if (device.has_index()) {
            current = device.index();
        }
    }
    void
    uncheckedSetDevice(Device device) const noexcept override
    {
        if (device.has_index()) {
            current = device.index();
        }
    }
    Stream
    getStream(Device device) const override
    {
        return default_of(device);
    }
    Stream
    getDefaultStream(Device device) const override
    {
        return default_of(device);
    }
    Stream
    getStreamFromGlobalPool(Device device, bool) const override
    {
        return default_of(device);
    }
    Stream
    getNewStream(Device device, int) const override
    {
        return default_of(device);
    }
    Stream
    exchangeStream(Stream stream) const override
    {
        return default_of(stream.device());
    }
    DeviceIndex
    deviceCount() const noexcept override
    {
        return (DeviceIndex)count.load();
    }
    void
    record(void **, const Stream &, const DeviceIndex,
           const c10::EventFlag) const override
    {
    }
    void
    block(void *, const Stream &) const override
    {
    }
    bool
    queryEvent(void *) const override
    {
        return true;
    }
    bool
    queryStream(const Stream &) const override
    {
        return true;
    }
    void
    synchronizeStream(const Stream &) const override
    {
    }
    void
    synchronizeEvent(void *) const override
    {
    }
    void
    synchronizeDevice(const DeviceIndex) const override
    {
    }

  private:
    Stream
    default_of(Device device) const
    {
        return Stream(Stream::DEFAULT, device.has_index() ? device : getDevice());
    }
};

/* What was there before; a null guard is no guard. */
struct Before {
    bool is_installed;
    void *table;
    const c10::impl::DeviceGuardImplInterface *guard;
};
Before before{};

std::atomic<const c10::impl::DeviceGuardImplInterface *> &
registered()
{
    return c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)];
}

/* PyTorch's object, of which only the pointer to its virtual table changes. */
void *
hooks_object()
{
    return const_cast<at::CUDAHooksInterface *>(&at::detail::getCUDAHooks());
}

} // namespace

/* From now on there are `devices` CUDA devices and that cuDNN. 0, or 1 if that is so
 * already. */
extern "C" __attribute__((visibility("default"))) int
nt_pretend_install(int devices, long cudnn_version)
{
    /* Both live as long as the process: other threads may still be in them. */
    static const Hooks *const hooks = new Hooks();
    static const Guard *const guard = new Guard();
    if (before.is_installed) {
        return 1;
    }
    count = devices;
    current = 0;
    cudnn = cudnn_version;
    std::memcpy(&before.table, hooks_object(), sizeof before.table);
    std::memcpy(hooks_object(), hooks, sizeof before.table);
    before.guard = registered().exchange(guard);
    before.is_installed = true;
    return 0;
}

/* Puts back what was there before nt_pretend_install(). */
extern "C" __attribute__((visibility("default"))) void
nt_pretend_remove(void)
{
    if (!before.is_installed) {
        return;
    }
    std::memcpy(hooks_object(), &before.table, sizeof before.table);
    registered().store(before.guard);
    before.is_installed = false;
}
