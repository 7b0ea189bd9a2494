/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for torch built for CUDA. PyTorch calls the tracker under the lock of the
 * event's device, which makes each ring a ring of one producer. Neither tracker nor
 * observer can be detached, and so each is attached once and obeys the mode word. */
#include "nt_torch.hpp"

#if NT_TORCH_CUDA

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "nt_torch_marks.hpp"
#include "nt_torch_uses.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace neutracer
{

const char *const backend_name = "cuda";

namespace
{

namespace cca = c10::cuda::CUDACachingAllocator;

/* ---- copies of what PyTorch reports, field by field ------------------------------ */

/* None is made under the allocator's lock. */

nt_live_stat
stat_of(const c10::CachingAllocator::Stat &stat) noexcept
{
    return {stat.current, stat.peak, stat.allocated, stat.freed};
}

/* The figures of a device. */
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

/* One segment with its blocks; 0, or -1 where the builder refuses. */
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

/* What the allocator is set to; 0, or else what the builder said. */
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

/* ---- the tracker ----------------------------------------------------------------- */

using trace_entry = cca::TraceEntry;

/* The number of ANNOTATE, where this torch has it. */
template <typename Entry, typename = void>
constexpr int annotate_action = NT_LIVE_ANNOTATE;
template <typename Entry>
constexpr int annotate_action<Entry, std::void_t<decltype(Entry::ANNOTATE)>> =
    static_cast<int>(Entry::ANNOTATE);

static_assert(static_cast<int>(trace_entry::ALLOC) == NT_LIVE_ALLOC &&
                  static_cast<int>(trace_entry::FREE_COMPLETED) ==
                      NT_LIVE_FREE_COMPLETED &&
                  static_cast<int>(trace_entry::SEGMENT_FREE) == NT_LIVE_SEGMENT_FREE &&
                  static_cast<int>(trace_entry::SEGMENT_UNMAP) ==
                      NT_LIVE_SEGMENT_UNMAP &&
                  static_cast<int>(trace_entry::SNAPSHOT) == NT_LIVE_SNAPSHOT &&
                  static_cast<int>(trace_entry::OOM) == NT_LIVE_OOM &&
                  annotate_action<trace_entry> == NT_LIVE_ANNOTATE,
              "PyTorch's trace actions are those of nt_live_action");

/* What the tracker knows of a device: one cache line, guarded by the device's lock. */
struct alignas(64) device_slot {
    /* Changed only while no event is pushed; a marker may look for it then too. */
    std::atomic<nt_ring *> ring{nullptr};
    uint64_t freed_addr = 0; /* of the last free_requested */
    uint32_t freed_stack = NT_RING_NONE;
    uint32_t empty_text = NT_RING_NONE; /* the ring's id of "" */
};

device_slot slots[MOST_DEVICES];

nt_ring *
ring_of(int device) noexcept
{
    return slots[device].ring.load(std::memory_order_acquire);
}

struct backend_state {
    std::mutex
        lock; /* guards what follows; taken before a device's lock, never after */
    bool attached = false; /* with rings */
    bool tracked = false;
    int devices = 0;
    uint64_t events = 0; /* asked for, of each ring */
};

backend_state &
state()
{
    static backend_state *made = new backend_state();
    return *made;
}

/* A layout that this thread is taking: PyTorch's snapshot passes device after device,
 * with one marker each, which says device 0 whatever the device. */
struct layout_taking {
    int markers = 0;
    nt_ring *ring[MOST_DEVICES] = {}; /* that of the layout: a later one may follow */
    uint64_t head[MOST_DEVICES] = {};
};

thread_local layout_taking *taking = nullptr;

void
push(device_slot &slot, nt_ring *ring, const trace_entry &event, uint32_t mode) noexcept
{
    nt_ring_entry entry;
    entry.ticks = static_cast<uint64_t>(event.time_.approx_t_);
    entry.addr = event.addr_;
    entry.size = event.size_;
    entry.stream = reinterpret_cast<uintptr_t>(event.stream_);
    entry.pool_first = event.mempool_.first;
    entry.pool_second = event.mempool_.second;
    entry.stack = NT_RING_NONE;
    entry.metadata = slot.empty_text;
    entry.action = static_cast<uint8_t>(event.action_);
    entry.flags = 0;
    entry.unused16 = 0;
    entry.unused32 = 0;
    if (__builtin_expect(!event.user_metadata_.empty(), 0)) {
        entry.metadata = core->ring_add_text(ring, event.user_metadata_.data(),
                                             event.user_metadata_.size());
    }
    const unsigned frames = mode_frames(mode);
    if (frames != 0) {
        /* A free that completes at once has the stack of its request. */
        const bool again =
            entry.action == NT_LIVE_FREE_COMPLETED && entry.addr == slot.freed_addr;
        entry.stack = again ? slot.freed_stack : stack_now(ring, frames);
        slot.freed_addr = entry.action == NT_LIVE_FREE_REQUESTED ? entry.addr : 0;
        slot.freed_stack = entry.stack;
    } else {
        slot.freed_addr = 0;
    }
    nt_ring_push(ring, &entry);
    if (entry.action == NT_LIVE_ALLOC && entry.stack != NT_RING_NONE) {
        nt_ring_origins_set(&ring->origins, entry.addr, ring->head - 1, entry.stack);
    } else if (entry.action == NT_LIVE_FREE_COMPLETED && ring->origins.count != 0) {
        /* Without frames too: what has an origin may be from when there were some. */
        nt_ring_origins_drop(&ring->origins, entry.addr);
    }
}

void
on_marker(const trace_entry &event, uint32_t mode) noexcept
{
    int device = 0;
    if (taking != nullptr) {
        device = taking->markers++;
    } else if (ring_of(1) != nullptr) {
        /* Somebody else's snapshot: which device is locked can't be known. */
        return;
    }
    nt_ring *ring = device < MOST_DEVICES ? ring_of(device) : nullptr;
    if (ring == nullptr) {
        return;
    }
    if (taking != nullptr) {
        taking->ring[device] = ring;
        taking->head[device] = nt_ring_head(ring);
    }
    if (mode != 0) {
        push(slots[device], ring, event, mode);
    }
}

/* Whether the allocator asked this of itself, and frees it again at once: releases that
 * have internal_metadata_ (2.15) say so. */
template <typename entry>
auto
is_internal(const entry &event, int) noexcept
    -> decltype(event.internal_metadata_.empty())
{
    return !event.internal_metadata_.empty() &&
           (event.action_ == entry::ALLOC || event.action_ == entry::FREE_REQUESTED ||
            event.action_ == entry::FREE_COMPLETED);
}

template <typename entry>
bool
is_internal(const entry &, long) noexcept
{
    return false;
}

/* The most that a device had since its span began. PyTorch calls the tracker before it
 * counts an allocation and after it has counted a free: the level that an allocation
 * reached shows at the next event, as the growth of all that was ever allocated. */
struct alignas(64) span_slot {
    std::mutex lock; /* guards what follows; taken after the device's, never before */
    bool is_open =
        false;          /* the last event was an allocation, which is not counted yet */
    int64_t before = 0; /* allocated when it came */
    int64_t ever = 0;   /* and ever allocated */
    int64_t peak_allocated = 0, peak_reserved = 0;
};

span_slot spans[MOST_DEVICES];
std::atomic<bool> spans_wanted{false};

/* Takes the levels that `stats` shows into the span's peaks. */
void
span_settle(span_slot &span, const cca::DeviceStats &stats) noexcept
{
    const c10::CachingAllocator::Stat &allocated = stats.allocated_bytes[0];
    int64_t level = allocated.current;
    if (span.is_open && allocated.allocated > span.ever) {
        level = std::max(level, span.before + (allocated.allocated - span.ever));
        span.is_open = false;
    }
    span.peak_allocated = std::max(span.peak_allocated, level);
    span.peak_reserved =
        std::max<int64_t>(span.peak_reserved, stats.reserved_bytes[0].current);
}

/* Under the device's lock, which is recursive: its figures can be asked for. */
void
span_note(const trace_entry &event) noexcept
{
    const auto device = static_cast<unsigned>(event.device_);
    const bool is_alloc = event.action_ == trace_entry::ALLOC;
    if (device >= MOST_DEVICES) {
        return;
    }
    span_slot &span = spans[device];
    const std::lock_guard<std::mutex> guard(span.lock);
    if (!is_alloc && !span.is_open) {
        return;
    }
    try {
        const cca::DeviceStats stats =
            cca::get()->getDeviceStats(static_cast<c10::DeviceIndex>(device));
        span_settle(span, stats);
        span.is_open = is_alloc;
        span.before = stats.allocated_bytes[0].current;
        span.ever = stats.allocated_bytes[0].allocated;
    } catch (...) {
        span.is_open = false;
    }
}

/* Gives what is allocated the text of what it is made for. The entry is PyTorch's own,
 * which goes into the history behind the tracker. */
void
mark(const trace_entry &event) noexcept
{
    const auto action = event.action_;
    const bool is_free =
        action == event.FREE_REQUESTED || action == event.FREE_COMPLETED;
    try {
        const mark_text text = is_free ? nullptr : marks_now();
        if (text != nullptr) {
            const_cast<trace_entry &>(event).user_metadata_ = *text;
        }
    } catch (...) { /* It stays without. */
    }
}

/* Devices that had a request since uses were observed: they have a context. */
std::atomic<uint64_t> devices_used{0};

void
note_use(const trace_entry &event, unsigned device) noexcept
{
    const auto action = event.action_;
    if (action == trace_entry::ALLOC || action == trace_entry::OOM) {
        devices_used.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
        uses_request(static_cast<int>(device),
                     action == trace_entry::OOM ? 0
                                                : static_cast<uint64_t>(event.addr_));
    } else if (action == trace_entry::FREE_REQUESTED) {
        uses_free(static_cast<uint64_t>(event.addr_));
    }
}

void
on_event(const trace_entry &event) noexcept
{
    if (marks_wanted.load(std::memory_order_relaxed) != 0) {
        mark(event);
    }
    const uint32_t mode = mode_word.load(std::memory_order_acquire);
    if (__builtin_expect(event.action_ == trace_entry::SNAPSHOT, 0)) {
        on_marker(event, mode);
        return;
    }
    /* Not of a marker, which may be under another device's lock than it says. */
    if (__builtin_expect(spans_wanted.load(std::memory_order_relaxed), 0)) {
        span_note(event);
    }
    const auto device = static_cast<unsigned>(event.device_);
    if (device >= MOST_DEVICES || is_internal(event, 0)) {
        return;
    }
    if (__builtin_expect(uses_on.load(std::memory_order_relaxed), 0)) {
        note_use(event, device);
    }
    if (mode == 0) {
        return;
    }
    nt_ring *ring = ring_of(static_cast<int>(device));
    if (ring != nullptr) {
        push(slots[device], ring, event, mode);
    }
}

/* PyTorch's allocator, once CUDA is initialised; nullptr before. It stays what it is
 * from then on, and is asked for once: whoever reads figures now and then pays for
 * every line of code that it comes through. */
cca::CUDAAllocator *
allocator_ready() noexcept
{
    static std::atomic<cca::CUDAAllocator *> known;
    cca::CUDAAllocator *allocator = known.load(std::memory_order_acquire);
    if (allocator != nullptr) {
        return allocator;
    }
    try {
        allocator = cca::get();
        if (allocator == nullptr || !allocator->initialized()) {
            return nullptr;
        }
        known.store(allocator, std::memory_order_release);
        return allocator;
    } catch (...) {
        return nullptr;
    }
}

/* How many devices CUDA shows to this process, which is counted once. */
bool
device_shown(int32_t device) noexcept
{
    static const int count = c10::cuda::device_count();
    return device >= 0 && device < count;
}

cca::CUDAAllocator &
allocator_required()
{
    cca::CUDAAllocator *allocator = allocator_ready();
    if (allocator == nullptr) {
        throw std::runtime_error(
            "CUDA is not initialised in this process: hooks attached now would do "
            "nothing; use a device first");
    }
    if (allocator->name() != "native") {
        throw std::runtime_error("this process uses the allocator '" +
                                 allocator->name() +
                                 "', and only PyTorch's own can be followed");
    }
    return *allocator;
}

/* Passes every device's lock: who was inside of the tracker before is out of it. */
void
pass_locks(cca::CUDAAllocator &allocator)
{
    for (int device = 0; device < state().devices; device++) {
        (void)allocator.getDeviceStats(static_cast<c10::DeviceIndex>(device));
    }
}

bool
never_used(cca::CUDAAllocator &allocator, int device)
{
    const auto stats = allocator.getDeviceStats(static_cast<c10::DeviceIndex>(device));
    return stats.allocation[0].allocated == 0 && stats.segment[0].allocated == 0 &&
           stats.reserved_bytes[0].current == 0 && stats.num_device_alloc == 0 &&
           stats.num_ooms == 0;
}

/* Attaches the tracker, once. */
void
track(cca::CUDAAllocator &allocator)
{
    if (!std::exchange(state().tracked, true)) {
        allocator.attachAllocatorTraceTracker(&on_event);
    }
}

/* Rings of `events` events for all devices, or none where memory is short. While no
 * event is pushed. */
void
make_rings(backend_state &mine, uint64_t events)
{
    nt_ring *made[MOST_DEVICES] = {};
    for (int device = 0; device < mine.devices; device++) {
        made[device] = core->ring_new(events, 1);
        if (made[device] == nullptr) {
            for (int i = 0; i < device; i++) {
                core->ring_free(made[i]);
            }
            throw std::runtime_error("no memory for rings of " +
                                     std::to_string(events) + " events");
        }
    }
    for (int device = 0; device < mine.devices; device++) {
        slots[device].empty_text = core->ring_add_text(made[device], "", 0);
        rings_retire(slots[device].ring.exchange(made[device]));
    }
    mine.events = events;
}

/* Sets apart what was recorded. While no event is pushed. */
void
restart_rings(const backend_state &mine)
{
    for (int device = 0; device < mine.devices; device++) {
        nt_ring *ring = ring_of(device);
        if (ring != nullptr) {
            core->ring_restart(ring, 1);
            slots[device].freed_addr = 0;
        }
    }
}

/* ---- the source: what native threads call --------------------------------------- */

int
source_device_count(void *)
{
    if (allocator_ready() == nullptr) {
        return 0;
    }
    const int count = c10::cuda::device_count();
    return std::min(count, MOST_DEVICES);
}

int
source_device_stats(void *, int32_t device, nt_live_stats *out)
{
    try {
        cca::CUDAAllocator *allocator = allocator_ready();
        if (allocator == nullptr) {
            return 1;
        }
        if (device < 0 || device >= source_device_count(nullptr)) {
            return -1;
        }
        copy_stats(allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device)),
                   out);
        return 0;
    } catch (...) {
        return -1;
    }
}

int
source_device_brief(void *, int32_t device, nt_live_brief *out)
{
    try {
        cca::CUDAAllocator *allocator = allocator_ready();
        if (allocator == nullptr) {
            return 1;
        }
        if (!device_shown(device)) {
            return -1;
        }
        const cca::DeviceStats stats =
            allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device));
        out->allocated_bytes = stats.allocated_bytes[0].current;
        out->reserved_bytes = stats.reserved_bytes[0].current;
        out->active_bytes = stats.active_bytes[0].current;
        out->inactive_split_bytes = stats.inactive_split_bytes[0].current;
        out->requested_bytes = stats.requested_bytes[0].current;
        out->peak_allocated_bytes = stats.allocated_bytes[0].peak;
        out->peak_reserved_bytes = stats.reserved_bytes[0].peak;
        out->ever_reserved_bytes = stats.reserved_bytes[0].allocated;
        out->num_alloc_retries = stats.num_alloc_retries;
        out->num_ooms = stats.num_ooms;
        return 0;
    } catch (...) {
        return -1;
    }
}

/* Follows spans from now on. */
void
follow_spans(cca::CUDAAllocator &allocator)
{
    const std::lock_guard<std::mutex> guard(state().lock);
    track(allocator);
    for (span_slot &span : spans) {
        const std::lock_guard<std::mutex> inner(span.lock);
        span.is_open = false;
        span.peak_allocated = span.peak_reserved = 0;
    }
    spans_wanted.store(true);
}

int
source_device_span(void *, int32_t device, int follow, nt_live_span *out)
{
    try {
        cca::CUDAAllocator *allocator = allocator_ready();
        if (allocator == nullptr) {
            return 1;
        }
        if (!device_shown(device) || device >= MOST_DEVICES) {
            return -1;
        }
        if (follow != 0 && !spans_wanted.load()) {
            follow_spans(*allocator);
        }
        /* An allocation of another thread that comes here stays open. */
        const cca::DeviceStats stats =
            allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device));
        span_slot &span = spans[device];
        const std::lock_guard<std::mutex> guard(span.lock);
        span_settle(span, stats);
        out->allocated_bytes = stats.allocated_bytes[0].current;
        out->reserved_bytes = stats.reserved_bytes[0].current;
        out->peak_allocated_bytes = span.peak_allocated;
        out->peak_reserved_bytes = span.peak_reserved;
        out->num_alloc_retries = stats.num_alloc_retries;
        out->num_ooms = stats.num_ooms;
        out->allocations = stats.allocation[0].allocated;
        out->frees = stats.allocation[0].freed;
        span.peak_allocated = stats.allocated_bytes[0].current;
        span.peak_reserved = stats.reserved_bytes[0].current;
        spans_wanted.store(follow != 0);
        return 0;
    } catch (...) {
        return -1;
    }
}

double
source_device_fraction(void *, int32_t device)
{
    try {
        cca::CUDAAllocator *allocator = allocator_ready();
        if (allocator == nullptr || !device_shown(device)) {
            return 1.0;
        }
        return allocator->getMemoryFraction(static_cast<c10::DeviceIndex>(device));
    } catch (...) {
        return 1.0;
    }
}

/* PyTorch's segments of all devices, and how far each ring was under that lock. */
cca::SnapshotInfo
take_layout(cca::CUDAAllocator &allocator, layout_taking *mine)
{
    struct taking_guard {
        ~taking_guard()
        {
            taking = nullptr;
        }
    } guard;
    taking = mine;
    return allocator.snapshot({0, 0}, false);
}

int
emit_layout(nt_live_builder *builder, const cca::SnapshotInfo &info,
            const layout_taking &mine)
{
    const int devices = source_device_count(nullptr);
    auto segment = info.segments.begin();
    for (int device = 0; device < devices; device++) {
        /* Without a marker from every device, whose they are can't be known. */
        if (mine.ring[device] != nullptr && mine.markers == devices &&
            core->set_mark(builder, device, mine.ring[device], mine.head[device]) !=
                0) {
            return -1;
        }
        for (; segment != info.segments.end() && segment->device == device; ++segment) {
            if (copy_segment(builder, *segment) != 0) {
                return -1;
            }
        }
    }
    return copy_settings(builder, info.config_metadata);
}

int
source_layout(void *, nt_live_device_type type, nt_live_builder *builder)
{
    cca::CUDAAllocator *allocator = allocator_ready();
    if (type != NT_LIVE_CUDA || allocator == nullptr) {
        return -1;
    }
    try {
        {
            /* Not while rings are made. */
            const std::lock_guard<std::mutex> guard(state().lock);
            rings_hold();
        }
        layout_taking mine;
        const cca::SnapshotInfo info = take_layout(*allocator, &mine);
        clock_refresh();
        return emit_layout(builder, info, mine);
    } catch (...) {
        return -1;
    }
}

} // namespace

void
backend_attach(uint64_t events)
{
    cca::CUDAAllocator &allocator = allocator_required();
    const std::lock_guard<std::mutex> guard(state().lock);
    clock_begin();
    state().devices = source_device_count(nullptr);
    mode_word.store(0);
    pass_locks(allocator);
    if (events != state().events) {
        make_rings(state(), events);
    }
    track(allocator);
    state().attached = true;
}

void
backend_attach_marks()
{
    const std::lock_guard<std::mutex> guard(state().lock);
    track(allocator_required());
}

bool
backend_attached() noexcept
{
    return state().attached;
}

void
backend_start(unsigned frames)
{
    cca::CUDAAllocator &allocator = allocator_required();
    const std::lock_guard<std::mutex> guard(state().lock);
    if (!state().attached) {
        throw std::runtime_error("the tracker is not attached");
    }
    mode_word.store(0);
    pass_locks(allocator);
    restart_rings(state());
    mode_word.store(mode_of(frames), std::memory_order_release);
    for (int device = 0; device < state().devices; device++) {
        /* Still unused while recording: nothing can have been missed. */
        if (never_used(allocator, device)) {
            __atomic_store_n(&ring_of(device)->late, 0u, __ATOMIC_RELEASE);
        }
    }
}

void
backend_stop()
{
    cca::CUDAAllocator &allocator = allocator_required();
    const std::lock_guard<std::mutex> guard(state().lock);
    mode_word.store(0);
    pass_locks(allocator);
    /* A layout does not follow these events any more. */
    restart_rings(state());
}

/* Asked of a device with a context only, as it would get one. */
bool
backend_captures() noexcept
{
    try {
        const auto device = static_cast<unsigned>(c10::cuda::current_device());
        return device < MOST_DEVICES &&
               (devices_used.load(std::memory_order_relaxed) >> device & 1) != 0 &&
               c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
                   c10::cuda::CaptureStatus::None;
    } catch (...) {
        return false;
    }
}

/* Events come under the allocator's locks, and a fork's child has no CUDA. */
void
backend_lock() noexcept
{
}

void
backend_unlock() noexcept
{
}

void
backend_watch_thread()
{
    throw std::runtime_error(
        "this torch is built for CUDA: every thread's device memory is seen, and the "
        "CPU's is followed with a torch for the CPU only");
}

bool
backend_unwatch_thread()
{
    return false;
}

std::string
backend_differs()
{
    /* A trial would need a device; what is asked of it has no other form in c10. */
    return "";
}

void
backend_source(nt_live_source *out) noexcept
{
    out->device_count = source_device_count;
    out->device_stats = source_device_stats;
    out->device_brief = source_device_brief;
    out->device_span = source_device_span;
    out->device_fraction = source_device_fraction;
    out->layout = source_layout;
}

const nt_ring *
backend_ring(int device) noexcept
{
    return device >= 0 && device < MOST_DEVICES ? ring_of(device) : nullptr;
}

bool
backend_fact(int, const char **, uint64_t *) noexcept
{
    return false;
}

} // namespace neutracer

#endif
