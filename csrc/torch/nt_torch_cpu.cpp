/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend for torch built for the CPU. c10 reports the CPU allocator's calls to the
 * object in the slot PROFILER_STATE of the calling thread's debug information, which
 * PyTorch hands on to the threads that work for it (backward, at::launch).
 *
 * PyTorch believes that everything in the slot is a ProfilerStateBase: the watch is
 * one, of a profiler that is switched off. A profiler refuses to start where the slot
 * is taken, and so the Python side takes the watch out before, and puts it back after.
 * c10's running total shows that reports went elsewhere.
 */
#include "nt_torch.hpp"

#if !NT_TORCH_CUDA

#include "nt_torch_cpu.hpp"
#include "nt_torch_marks.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace neutracer
{

const char *const backend_name = "cpu";

namespace
{

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
    reportOutOfMemory(int64_t size, size_t total, size_t, c10::Device device) override
    {
        if (device.is_cpu()) {
            oom_note(0, static_cast<uint64_t>(size), total, 0);
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
backend_attach_oom()
{
    /* The watch tells of OOMs in any case, as long as it is recording. */
}

bool
backend_oom_attached() noexcept
{
    return state().ring != nullptr;
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

std::string
backend_differs()
{
    return cpu_differs();
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
