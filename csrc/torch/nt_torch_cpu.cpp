/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for torch built for the CPU. c10 reports the CPU allocator's calls to the
 * object in the slot PROFILER_STATE of the calling thread's debug information, which
 * PyTorch hands on to the threads that work for it (backward, at::launch).
 *
 * PyTorch believes that everything in the slot is a ProfilerStateBase: the watch is
 * one, of a profiler that is switched off. A profiler refuses to start where the slot
 * is taken, and so the Python side takes the watch out before, and puts it back after.
 * c10's running total shows that reports went elsewhere. */
#include "nt_torch.hpp"

#if !NT_TORCH_CUDA

#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "nt_torch_marks.hpp"
#include "nt_torch_uses.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace neutracer
{

const char *const backend_name = "cpu";

namespace
{

/* What c10 reports of the CPU's allocator, and to whom. Releases of torch may differ in
 * it: what a compiler can see of that is asserted here, and `backend_differs` tries out
 * the rest in the torch that runs. */
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

/* ---- the allocator, tried out ---------------------------------------------------- */

/* Known blocks in a thread that a listener is put into, one of them in a thread that
 * PyTorch's own state is handed on to, and a request that can't be met. */

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

/* ---- the watch ------------------------------------------------------------------- */

/* Live blocks that are followed at once; what is beyond is not in a layout. */
constexpr uint64_t MOST_BLOCKS = 1 << 20;

/* All of it is guarded by `lock`, which makes the watched threads one producer; whether
 * there is a ring can be asked without. */
struct backend_state {
    std::mutex lock;
    std::atomic<nt_ring *> ring{nullptr};
    uint64_t events = 0;
    nt_live_blocks *blocks = nullptr;
    uint64_t threads = 0;     /* asked to be watched, and not to be left alone again */
    uint64_t unfollowed = 0;  /* blocks that the table had no room for */
    uint64_t gaps = 0;        /* reports before which others went elsewhere */
    uint64_t total = 0;       /* c10's running total at the last report */
    bool total_known = false; /* no gap can be told before the first report */
    nt_live_stat count = {};  /* blocks that were reported while recording */
    nt_live_stat bytes = {};
};

backend_state &
state()
{
    /* Never destroyed: reports may still come while the process ends. */
    static backend_state *made = new backend_state();
    return *made;
}

void
push(backend_state &mine, uint8_t action, uint64_t address, uint64_t size,
     uint32_t stack) noexcept
{
    nt_ring_entry entry{};
    entry.ticks = clock_ticks();
    entry.addr = address;
    entry.size = size;
    entry.stack = stack;
    const mark_text module = marks_now();
    size_t length = module == nullptr ? 0 : module->size();
    const char *text = module == nullptr ? text_now(&length) : module->data();
    entry.metadata =
        length == 0 ? NT_RING_NONE : core->ring_add_text(mine.ring, text, length);
    entry.action = action;
    entry.flags = NT_LIVE_FLAG_BARE;
    nt_ring_push(mine.ring, &entry);
}

void
note_total(backend_state &mine, int64_t size, uint64_t total) noexcept
{
    if (mine.total_known && mine.total + static_cast<uint64_t>(size) != total) {
        mine.gaps++;
    }
    mine.total = total;
    mine.total_known = true;
}

void
count_stat(nt_live_stat &stat, int64_t change) noexcept
{
    stat.current += change;
    stat.peak = std::max(stat.peak, stat.current);
    (change < 0 ? stat.freed : stat.allocated) += change < 0 ? -change : change;
}

void
on_report(uint64_t address, int64_t size, uint64_t total) noexcept
{
    backend_state &mine = state();
    const std::lock_guard<std::mutex> guard(mine.lock);
    const uint32_t mode = mode_word.load(std::memory_order_relaxed);
    if (mode == 0 || mine.ring == nullptr || size == 0) {
        return;
    }
    note_total(mine, size, total);
    const unsigned frames = mode_frames(mode);
    const uint32_t stack = frames == 0 ? NT_RING_NONE : stack_now(mine.ring, frames);
    const uint64_t known = core->blocks_remove(mine.blocks, address);
    uses_free(address);
    if (known != 0) {
        count_stat(mine.count, -1);
        count_stat(mine.bytes, -static_cast<int64_t>(known));
    }
    if (size < 0) {
        push(mine, NT_LIVE_FREE_COMPLETED, address, static_cast<uint64_t>(-size),
             stack);
        return;
    }
    if (known != 0) {
        /* It was freed where nobody looked, since its address is given out again. */
        push(mine, NT_LIVE_FREE_COMPLETED, address, known, NT_RING_NONE);
    }
    if (core->blocks_add(mine.blocks, address, static_cast<uint64_t>(size), stack) !=
        0) {
        mine.unfollowed++;
    } else {
        count_stat(mine.count, 1);
        count_stat(mine.bytes, size);
    }
    push(mine, NT_LIVE_ALLOC, address, static_cast<uint64_t>(size), stack);
    uses_request(0, address);
}

class memory_watch final : public memory_listener
{
  public:
    bool
    memoryProfilingEnabled() const override
    {
        return mode_word.load(std::memory_order_relaxed) != 0;
    }

    void
    reportMemoryUsage(void *address, int64_t size, size_t total, size_t,
                      c10::Device device) override
    {
        if (device.is_cpu()) {
            on_report(reinterpret_cast<uintptr_t>(address), size, total);
        }
    }

    void
    reportOutOfMemory(int64_t, size_t, size_t, c10::Device device) override
    {
        if (device.is_cpu()) {
            oom_note(0);
        }
    }
};

static_assert(!std::is_abstract_v<memory_watch>,
              "a listener of c10's allocators has to do more than it did");

const std::shared_ptr<memory_watch> &
watch()
{
    static const auto *made =
        new std::shared_ptr<memory_watch>(std::make_shared<memory_watch>());
    return *made;
}

bool
watched_here()
{
    return ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) == watch().get();
}

int
source_device_count(void *)
{
    return 0;
}

/* What is followed of the CPU's memory is "device" -1: a block is a segment. */
int
source_device_stats(void *, int32_t device, nt_live_stats *out)
{
    if (device != -1) {
        return -1;
    }
    try {
        backend_state &mine = state();
        const std::lock_guard<std::mutex> guard(mine.lock);
        if (mine.ring == nullptr) {
            return 1;
        }
        *out = nt_live_stats{};
        for (const int metric : {NT_LIVE_ALLOCATION, NT_LIVE_SEGMENT, NT_LIVE_ACTIVE}) {
            out->metric[metric][NT_LIVE_ALL_POOLS] = mine.count;
        }
        for (const int metric : {NT_LIVE_ALLOCATED_BYTES, NT_LIVE_RESERVED_BYTES,
                                 NT_LIVE_ACTIVE_BYTES, NT_LIVE_REQUESTED_BYTES}) {
            out->metric[metric][NT_LIVE_ALL_POOLS] = mine.bytes;
        }
        out->num_ooms = static_cast<int64_t>(oom_count(0));
        out->max_split_size = -1;
        return 0;
    } catch (...) {
        return -1;
    }
}

int
source_device_brief(void *, int32_t device, nt_live_brief *out)
{
    if (device != -1) {
        return -1;
    }
    try {
        backend_state &mine = state();
        const std::lock_guard<std::mutex> guard(mine.lock);
        if (mine.ring == nullptr) {
            return 1;
        }
        *out = nt_live_brief{};
        out->allocated_bytes = out->reserved_bytes = mine.bytes.current;
        out->active_bytes = out->requested_bytes = mine.bytes.current;
        out->peak_allocated_bytes = out->peak_reserved_bytes = mine.bytes.peak;
        out->ever_reserved_bytes = mine.bytes.allocated;
        out->num_ooms = static_cast<int64_t>(oom_count(0));
        return 0;
    } catch (...) {
        return -1;
    }
}

int
source_layout(void *, nt_live_device_type type, nt_live_builder *builder)
{
    if (type != NT_LIVE_CPU) {
        return -1;
    }
    try {
        backend_state &mine = state();
        nt_live_blocks *copy = nullptr;
        const nt_ring *ring = nullptr;
        uint64_t head = 0;
        {
            const std::lock_guard<std::mutex> guard(mine.lock);
            if (mine.ring == nullptr) {
                return -1;
            }
            rings_hold();
            copy = core->blocks_copy(mine.blocks);
            ring = mine.ring;
            head = nt_ring_head(ring);
            if (mode_word.load() != 0) {
                push(mine, NT_LIVE_SNAPSHOT, 0,
                     static_cast<uint64_t>(mine.bytes.current), NT_RING_NONE);
            }
        }
        clock_refresh();
        int failed = copy == nullptr ? -1 : core->set_mark(builder, 0, ring, head);
        if (failed == 0) {
            failed = core->blocks_emit(copy, builder, 0);
        }
        core->blocks_free(copy);
        return failed;
    } catch (...) {
        return -1;
    }
}

} // namespace

/* Allocates a few KiB, and requests more than there can be, in threads of its own, one
 * of which takes the GIL where PyTorch keeps Python's stack with its errors. Throws
 * where there are no threads or no memory. */
std::string
backend_differs()
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

void
backend_attach(uint64_t events)
{
    backend_state &mine = state();
    clock_begin();
    const std::lock_guard<std::mutex> guard(mine.lock);
    mode_word.store(0);
    if (mine.blocks == nullptr) {
        mine.blocks = core->blocks_new(MOST_BLOCKS);
    }
    if (events != mine.events) {
        nt_ring *made = core->ring_new(events, 1);
        if (made != nullptr) {
            rings_retire(mine.ring.exchange(made));
            mine.events = events;
        }
    }
    if (mine.blocks == nullptr || mine.events != events) {
        throw std::runtime_error("no memory for a ring of " + std::to_string(events) +
                                 " events");
    }
}

bool
backend_attached() noexcept
{
    return state().ring != nullptr;
}

void
backend_attach_marks()
{
    /* Whoever pushes an event asks for its mark. */
}

void
backend_start(unsigned frames)
{
    backend_state &mine = state();
    const std::lock_guard<std::mutex> guard(mine.lock);
    if (mine.ring == nullptr) {
        throw std::runtime_error("there is no ring yet");
    }
    core->ring_restart(mine.ring, 1);
    core->blocks_clear(mine.blocks);
    mine.total_known = false;
    mine.count = nt_live_stat{};
    mine.bytes = nt_live_stat{};
    mode_word.store(mode_of(frames));
}

void
backend_stop()
{
    const std::lock_guard<std::mutex> guard(state().lock);
    mode_word.store(0);
}

bool
backend_captures() noexcept
{
    return false;
}

void
backend_lock() noexcept
{
    state().lock.lock();
}

void
backend_unlock() noexcept
{
    state().lock.unlock();
}

void
backend_watch_thread()
{
    if (watched_here()) {
        return;
    }
    if (ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) != nullptr) {
        throw std::runtime_error("PyTorch's profiler is running in this thread: the "
                                 "watch would take its place; stop it first");
    }
    ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, watch());
    const std::lock_guard<std::mutex> guard(state().lock);
    state().threads++;
}

bool
backend_unwatch_thread()
{
    if (!watched_here()) {
        return false;
    }
    ThreadLocalDebugInfo::_pop(DebugInfoKind::PROFILER_STATE);
    const std::lock_guard<std::mutex> guard(state().lock);
    state().threads--;
    return true;
}

void
backend_source(nt_live_source *out) noexcept
{
    out->device_count = source_device_count;
    out->device_stats = source_device_stats;
    out->device_brief = source_device_brief;
    out->layout = source_layout;
}

const nt_ring *
backend_ring(int device) noexcept
{
    return device == 0 ? state().ring.load() : nullptr;
}

bool
backend_fact(int index, const char **name, uint64_t *value) noexcept
{
    backend_state &mine = state();
    const std::lock_guard<std::mutex> guard(mine.lock);
    const struct {
        const char *name;
        uint64_t value;
    } facts[] = {
        {"threads", mine.threads},
        {"blocks", mine.blocks == nullptr ? 0 : core->blocks_count(mine.blocks)},
        {"unfollowed", mine.unfollowed},
        {"gaps", mine.gaps},
    };
    if (index < 0 || index >= static_cast<int>(sizeof facts / sizeof facts[0])) {
        return false;
    }
    *name = facts[index].name;
    *value = facts[index].value;
    return true;
}

} // namespace neutracer

#endif
