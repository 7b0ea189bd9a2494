/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_torch.hpp"
#include "nt_torch_marks.hpp"
#include "nt_torch_uses.hpp"

#include <c10/util/ApproximateClock.h>

#include <mutex>
#include <vector>

#include <pthread.h>

namespace neutracer
{

const nt_live_api *core = nullptr;
std::atomic<uint32_t> mode_word{0};

namespace
{

/* ---- the clock: a line through two points of c10's converter -------------------- */

struct clock_line {
    uint64_t ticks = 0;
    int64_t ns = 0;
    double ns_per_tick = 0.0; /* 0: not measured yet */
};

/* Made once and never destroyed: events may still come while the process ends. */
std::atomic<c10::ApproximateClockToUnixTimeConverter *> clock_converter{nullptr};
thread_local clock_line clock_here;

clock_line
clock_measure(c10::ApproximateClockToUnixTimeConverter &converter)
{
    /* The distance of the two points: their rounding to whole ns is 1e-9 of it. */
    constexpr uint64_t APART = 1000000000;
    const auto convert = converter.makeConverter();
    clock_line line;
    line.ticks = static_cast<uint64_t>(c10::getApproximateTime());
    line.ns = convert(line.ticks);
    line.ns_per_tick =
        static_cast<double>(convert(line.ticks + APART) - line.ns) / APART;
    return line;
}

/* ---- rings that layouts read ---------------------------------------------------- */

struct ring_keeping {
    std::mutex lock; /* guards what follows */
    int holds = 0;   /* of all threads */
    std::vector<nt_ring *> retired;
};

ring_keeping &
rings()
{
    /* Never destroyed, for the same reason as the clock. */
    static ring_keeping *made = new ring_keeping();
    return *made;
}

thread_local int rings_held = 0;

/* OOMs of each device. */
std::atomic<uint64_t> oom_counts[MOST_DEVICES] = {};

/* ---- forks ---------------------------------------------------------------------- */

/* In the order in which they are taken elsewhere. */
void
fork_lock() noexcept
{
    backend_lock();
    uses_lock();
    rings().lock.lock();
}

void
fork_unlock() noexcept
{
    rings().lock.unlock();
    uses_unlock();
    backend_unlock();
}

/* The child does not record: c10 takes a lock of its own for every report, which may
 * have stayed with a thread that is not there. */
void
fork_child() noexcept
{
    mode_word.store(0);
    marks_forget();
    uses_on.store(false);
    fork_unlock();
}

/* ---- the source: what native threads call --------------------------------------- */

uint64_t
source_oom_count(void *, int32_t device)
{
    return oom_count(device);
}

void
source_release(void *)
{
    rings_release();
}

int64_t
source_time_us(void *, nt_live_device_type, uint64_t ticks)
{
    return clock_us(ticks);
}

} // namespace

void
clock_begin()
{
    if (clock_converter.load() == nullptr) {
        auto *made = new c10::ApproximateClockToUnixTimeConverter();
        c10::ApproximateClockToUnixTimeConverter *none = nullptr;
        if (!clock_converter.compare_exchange_strong(none, made)) {
            delete made;
        }
    }
}

void
clock_refresh() noexcept
{
    auto *converter = clock_converter.load();
    try {
        if (converter != nullptr) {
            clock_here = clock_measure(*converter);
        }
    } catch (...) {
        /* The line measured before goes on being used. */
    }
}

int64_t
clock_us(uint64_t ticks) noexcept
{
    if (clock_here.ns_per_tick == 0.0) {
        clock_refresh();
    }
    const clock_line &line = clock_here;
    /* Signed, so that ticks before the line's point come out before it. */
    const auto apart = static_cast<int64_t>(ticks - line.ticks);
    const double ns = static_cast<double>(apart) * line.ns_per_tick;
    return line.ns_per_tick == 0.0 ? 0 : (line.ns + static_cast<int64_t>(ns)) / 1000;
}

void
fork_begin()
{
    static const int failed = pthread_atfork(fork_lock, fork_unlock, fork_child);
    if (failed != 0) {
        throw std::runtime_error("the system keeps no note of what to do at a fork");
    }
}

uint64_t
clock_ticks() noexcept
{
    return static_cast<uint64_t>(c10::getApproximateTime());
}

void
rings_hold()
{
    const std::lock_guard<std::mutex> guard(rings().lock);
    rings().holds++;
    rings_held++;
}

void
rings_release() noexcept
{
    try {
        const std::lock_guard<std::mutex> guard(rings().lock);
        rings().holds -= rings_held;
        rings_held = 0;
        if (rings().holds == 0) {
            for (nt_ring *ring : rings().retired) {
                core->ring_free(ring);
            }
            rings().retired.clear();
        }
    } catch (...) {
        /* Rings that were not given back are kept. */
    }
}

void
rings_retire(nt_ring *ring) noexcept
{
    if (ring == nullptr) {
        return;
    }
    try {
        const std::lock_guard<std::mutex> guard(rings().lock);
        if (rings().holds == 0) {
            core->ring_free(ring);
        } else {
            rings().retired.push_back(ring);
        }
    } catch (...) {
        /* A ring that can't be noted is kept. */
    }
}

size_t
rings_facts(ring_fact out[MOST_DEVICES])
{
    size_t count = 0;
    /* None is freed meanwhile: it would first be retired. */
    const std::lock_guard<std::mutex> guard(rings().lock);
    for (int device = 0; device < MOST_DEVICES; device++) {
        const nt_ring *ring = backend_ring(device);
        if (ring != nullptr) {
            out[count++] = {device, nt_ring_head(ring), ring->mask + 1};
        }
    }
    return count;
}

void
oom_note(int32_t device) noexcept
{
    oom_counts[device].fetch_add(1);
}

uint64_t
oom_count(int32_t device) noexcept
{
    return device >= 0 && device < MOST_DEVICES ? oom_counts[device].load() : 0;
}

namespace
{

thread_local char thread_text[MOST_TEXT];
thread_local size_t thread_text_length = 0;

} // namespace

void
text_set(const char *text, size_t length) noexcept
{
    if (length > MOST_TEXT) {
        length = MOST_TEXT;
        while (length > 0 &&
               (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
            length--;
        }
    }
    std::copy_n(text, length, thread_text);
    thread_text_length = length;
}

const char *
text_now(size_t *length) noexcept
{
    *length = thread_text_length;
    return thread_text;
}

void
common_source(nt_live_source *out) noexcept
{
    out->oom_count = source_oom_count;
    out->release = source_release;
    out->time_us = source_time_us;
}

} // namespace neutracer
