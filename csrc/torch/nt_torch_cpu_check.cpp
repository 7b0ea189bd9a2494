/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's CPU allocator, tried out: known blocks in a thread that a listener is put
 * into, one of them in a thread that PyTorch's own state is handed on to, and a request
 * that can't be met.
 */
#include "nt_torch.hpp"

#if !NT_TORCH_CUDA

#include "nt_torch_cpu.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <thread>
#include <vector>

namespace neutracer
{
namespace
{

/* Sizes that no allocator rounds to. */
constexpr int64_t HERE = 12345, HANDED_ON = 4321;
/* More than any address space has. */
constexpr int64_t TOO_MUCH = int64_t{1} << 60;
/* A profiler in another thread moves the running total between two reports. */
constexpr int MOST_TRIES = 20;

struct report {
    const void *address;
    int64_t size;
    uint64_t total;
};

class trial_listener final : public memory_listener
{
  public:
    std::vector<report> reports; /* by one thread at a time */
    std::vector<int64_t> refused;

    bool
    memoryProfilingEnabled() const override
    {
        return true;
    }

    void
    reportMemoryUsage(void *address, int64_t size, size_t total, size_t,
                      c10::Device device) override
    {
        if (device.is_cpu()) {
            reports.push_back({address, size, total});
        }
    }

    void
    reportOutOfMemory(int64_t size, size_t, size_t, c10::Device device) override
    {
        if (device.is_cpu()) {
            refused.push_back(size);
        }
    }
};

struct trial {
    std::shared_ptr<trial_listener> listener = std::make_shared<trial_listener>();
    const void *here = nullptr, *handed_on = nullptr; /* the blocks' addresses */
    bool is_in_place = false, is_handed_on = false;
    std::string failure; /* an exception that had no business there */
};

const void *
allocate_and_free(int64_t size)
{
    return c10::GetCPUAllocator()->allocate(static_cast<size_t>(size)).get();
}

/* Runs `work` in a thread of its own, to its end. */
template <typename Work>
void
in_a_thread(trial &seen, Work work)
{
    std::thread([&seen, work] {
        try {
            work();
        } catch (const std::exception &error) {
            /* c10's errors go on with a C++ stack after the first line. */
            const std::string what = error.what();
            seen.failure = what.substr(0, what.find('\n'));
        } catch (...) {
            seen.failure = "an exception without a text";
        }
    }).join();
}

bool
is_listening(const trial &seen)
{
    return ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) ==
           seen.listener.get();
}

void
try_handing_on(trial &seen)
{
    const at::ThreadLocalState state;
    in_a_thread(seen, [&seen, &state] {
        const at::ThreadLocalStateGuard guard(state);
        seen.is_handed_on = is_listening(seen);
        seen.handed_on = allocate_and_free(HANDED_ON);
    });
}

void
try_asking_too_much()
{
    try {
        allocate_and_free(TOO_MUCH);
    } catch (const c10::Error &) {
        /* As it should. */
    }
}

trial
try_once()
{
    trial seen;
    in_a_thread(seen, [&seen] {
        ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, seen.listener);
        seen.is_in_place = is_listening(seen);
        {
            const c10::DataPtr block = c10::GetCPUAllocator()->allocate(HERE);
            seen.here = block.get();
            try_handing_on(seen);
        }
        try_asking_too_much();
        ThreadLocalDebugInfo::_pop(DebugInfoKind::PROFILER_STATE);
        allocate_and_free(HERE);
    });
    return seen;
}

std::string
bytes(int64_t size)
{
    return std::to_string(size) + " bytes";
}

/* What was told of the blocks, held against what was done with them. */
std::string
reports_differ(const trial &seen)
{
    const struct {
        const void *address;
        int64_t size;
        const char *what;
    } expected[] = {
        {seen.here, HERE, "a new block"},
        {seen.handed_on, HANDED_ON, "a new block of a thread that works for another"},
        {seen.handed_on, -HANDED_ON, "the end of a block in such a thread"},
        {seen.here, -HERE, "the end of a block"},
    };
    const size_t count = sizeof expected / sizeof expected[0];
    const std::vector<report> &reports = seen.listener->reports;
    for (size_t i = 0; i < count; i++) {
        if (i >= reports.size()) {
            return std::string(expected[i].what) + " is not reported";
        }
        const report &told = reports[i];
        if (told.size != expected[i].size) {
            return std::string(expected[i].what) + " of " +
                   bytes(std::abs(expected[i].size)) + " is reported as " +
                   bytes(told.size);
        }
        if (told.address != expected[i].address) {
            return std::string(expected[i].what) +
                   " is reported with another address than it has";
        }
    }
    return reports.size() == count
               ? ""
               : "a thread's blocks are reported to a listener that has left it";
}

/* Whether the total moved by the size, of the two reports with least between them. */
bool
is_total_running(const std::vector<report> &reports)
{
    const report &before = reports[1], &now = reports[2];
    return before.total + static_cast<uint64_t>(now.size) == now.total;
}

std::string
trial_differs(const trial &seen)
{
    if (!seen.failure.empty()) {
        return "a trial of it failed: " + seen.failure;
    }
    if (!seen.is_in_place) {
        return "a listener that is put into a thread is not found there";
    }
    if (!seen.is_handed_on) {
        return "a listener is not handed on to threads that work for its own";
    }
    const std::string differs = reports_differ(seen);
    if (!differs.empty()) {
        return differs;
    }
    const std::vector<int64_t> &refused = seen.listener->refused;
    if (refused.size() != 1 || refused[0] != TOO_MUCH) {
        return refused.empty() ? "a request that can't be met is not reported"
                               : "a request that can't be met, of " + bytes(TOO_MUCH) +
                                     ", is reported as " + bytes(refused[0]);
    }
    return "";
}

} // namespace

std::string
cpu_differs()
{
    bool is_running = false;
    for (int i = 0; i < MOST_TRIES && !is_running; i++) {
        const trial seen = try_once();
        const std::string differs = trial_differs(seen);
        if (!differs.empty()) {
            return differs;
        }
        is_running = is_total_running(seen.listener->reports);
    }
    return is_running ? "" : "the total in its reports is not that of the sizes";
}

} // namespace neutracer

#endif
