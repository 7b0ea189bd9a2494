/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `_torch`, the shim between PyTorch's allocators and the core. `common`
 * is what every build has: the core's functions, the mode word, the clock, stacks, the
 * counts of OOMs. The `backend` is nt_torch_cuda.cpp where torch is built for CUDA and
 * nt_torch_cpu.cpp elsewhere. Backend functions throw `std::exception`s with a reason
 * unless they are noexcept; the module turns them into Python's. */
#ifndef NT_TORCH_HPP
#define NT_TORCH_HPP

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "nt_torch_frames.hpp"
#include "trace/nt_live_api.h"

/* A torch built for CUDA ships this header; one for the CPU has c10/cuda without it. */
#if !defined(NT_TORCH_CUDA)
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#define NT_TORCH_CUDA 1
#else
#define NT_TORCH_CUDA 0
#endif
#endif

namespace neutracer
{

/* Devices that are followed; those beyond are not recorded. */
constexpr int MOST_DEVICES = 64;

/* ---- common --------------------------------------------------------------------- */

/* The core's functions; set when the module is imported, before anything else. */
extern const nt_live_api *core;

/* What the trackers do, in one word: 0 nothing, else bit 0 with the number of frames to
 * keep in the bits from 8 on. Written by the backend. */
extern std::atomic<uint32_t> mode_word;

inline uint32_t
mode_of(unsigned frames) noexcept
{
    return 1u | frames << 8;
}

inline unsigned
mode_frames(uint32_t mode) noexcept
{
    return mode >> 8;
}

/* Begins to measure the clock; the first call must come before the first event. */
void
clock_begin();
/* Ticks of the events' clock as microseconds since the epoch; any thread. */
int64_t
clock_us(uint64_t ticks) noexcept;
/* Measures anew what `clock_us` uses in this thread. */
void
clock_refresh() noexcept;
/* The clock of the events, now. */
uint64_t
clock_ticks() noexcept;

/* The id in `ring` of the calling thread's stack of at most `frames` frames, or
 * NT_RING_NONE. The producer's. */
inline uint32_t
stack_now(nt_ring *ring, unsigned frames) noexcept
{
    nt_ring_frame found[NT_RING_FRAMES];
    const size_t count = frames_walk(found, frames);
    if (count == 0 || ring->index.slots == nullptr) {
        return NT_RING_NONE;
    }
    uint64_t print[2];
    nt_ring_fingerprint(found, count, print);
    const uint32_t stack = nt_ring_find_stack(ring, print);
    if (__builtin_expect(stack != NT_RING_NONE, 1)) {
        return stack;
    }
    return core->ring_add_stack(ring, found, count, print, frames_describe);
}

/* A ring that another takes the place of stays while a layout may read it. A thread
 * that takes a layout holds all rings from before it looks for one until it releases
 * them. Any thread; what these need of locks is taken after a backend's, never
 * before. */
void
rings_hold();
/* Ends what the calling thread holds, all of it at once. */
void
rings_release() noexcept;
/* Frees a ring that nobody finds any more, now or when nobody holds. Takes nullptr. */
void
rings_retire(nt_ring *ring) noexcept;

/* What the calling thread's events are marked with where PyTorch's allocator keeps no
 * text of its own: at most MOST_TEXT bytes of UTF-8 are kept. */
constexpr size_t MOST_TEXT = 500;
void
text_set(const char *text, size_t length) noexcept;
/* It, and its length. */
const char *
text_now(size_t *length) noexcept;

/* The type ModuleCalls, new, and what it marks with: a capsule for a str. */
PyObject *
module_calls_type() noexcept;
PyObject *
module_text(PyObject *, PyObject *text);

/* Lets the child of a fork go on, without recording: the forking thread has every lock
 * of the hooks while the process is copied, so that none stays with a thread that is
 * not there. Once, when the module is imported. */
void
fork_begin();

/* A device's ring: events ever pushed, and how many it keeps. */
struct ring_fact {
    int device;
    uint64_t pushed, kept;
};
/* Of every ring; how many there are. */
size_t
rings_facts(ring_fact out[MOST_DEVICES]);

/* Counts an OOM of a device below MOST_DEVICES. */
void
oom_note(int32_t device) noexcept;
/* OOMs of a device. */
uint64_t
oom_count(int32_t device) noexcept;

/* Fills what native threads may call and what is the same in all backends. */
void
common_source(nt_live_source *out) noexcept;

/* ---- the backend ---------------------------------------------------------------- */

extern const char *const backend_name; /* "cuda" or "cpu" */

/* What this torch's allocator does other than it must, found by trying it out: a
 * sentence without its end, or "". Do not call it with the GIL. Before anything is
 * attached. */
std::string
backend_differs();

/* Attaches the tracker once, and makes a ring of `events` events for each device; a
 * ring of another size is made anew. Leaves the mode off. */
void
backend_attach(uint64_t events);
bool
backend_attached() noexcept;

/* From now on what modules allocate is marked (nt_torch_marks.hpp), without rings too.
 */
void
backend_attach_marks();

/* Whether the calling thread's work goes into a graph, whose replays nobody sees. */
bool
backend_captures() noexcept;

/* Begins to record with up to `frames` frames an event. What was recorded before is set
 * apart, since what happened in between is not known. */
void
backend_start(unsigned frames);
/* No event is pushed any more when this returns. Where the layout goes on without the
 * events, what was recorded is set apart. */
void
backend_stop();

/* Threads: the CPU's reports come from threads that asked for them only. */
void
backend_watch_thread();
/* Whether the calling thread was watched. */
bool
backend_unwatch_thread();

/* Takes and gives back what a backend locks while it notes an event. */
void
backend_lock() noexcept;
void
backend_unlock() noexcept;

/* Fills the rest of it. */
void
backend_source(nt_live_source *out) noexcept;
/* The ring of a device, or nullptr. */
const nt_ring *
backend_ring(int device) noexcept;
/* Further facts for `_torch.state()`, as name and value; false at the end. */
bool
backend_fact(int index, const char **name, uint64_t *value) noexcept;

} // namespace neutracer

#endif
