/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_torch.hpp"
#include "nt_torch_marks.hpp"
#include "nt_torch_uses.hpp"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <cxxabi.h>
#include <mutex>
#include <vector>

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* ---- facts of OOMs -------------------------------------------------------------- */

struct oom_state {
    std::mutex lock; /* guards `facts` and `noted` */
    oom_fact facts[MOST_OOM_FACTS] = {};
    uint64_t noted = 0;
    std::atomic<uint64_t> counts[MOST_DEVICES] = {};
    PyObject *listener = nullptr; /* guard: the GIL */
    PyObject *error = nullptr;    /* guard: the GIL */
    std::atomic<bool> listened{false};
};

oom_state &
oom()
{
    /* Never destroyed, for the same reason as the clock. */
    static oom_state *state = new oom_state();
    return *state;
}

thread_local bool oom_in_listener = false;

int64_t
now_ns() noexcept
{
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

bool
interpreter_ends() noexcept
{
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

void
remember(oom_fact fact) noexcept
{
    oom_state &state = oom();
    const std::lock_guard<std::mutex> guard(state.lock);
    fact.number = ++state.noted;
    state.facts[(fact.number - 1) % MOST_OOM_FACTS] = fact;
}

/* What was raised becomes text, and is forgotten; with the GIL. */
void
keep_error() noexcept
{
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *text = value == nullptr ? nullptr : PyObject_Repr(value);
    if (text == nullptr) {
        PyErr_Clear();
        text = PyUnicode_FromString("an exception without a text");
        PyErr_Clear();
    }
    Py_XDECREF(oom().error);
    oom().error = text;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Taking the GIL ends this thread, by unwinding it, once the interpreter ends. */
void
call_listener(const oom_fact &fact)
{
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *listener = oom().listener;
    Py_XINCREF(listener);
    if (listener != nullptr) {
        PyObject *result = PyObject_CallFunction(
            listener, "LKKKLL", static_cast<long long>(fact.device),
            static_cast<unsigned long long>(fact.asked),
            static_cast<unsigned long long>(fact.total),
            static_cast<unsigned long long>(fact.free),
            static_cast<long long>(fact.time_ns), static_cast<long long>(fact.thread));
        if (result == nullptr) {
            keep_error();
        }
        Py_XDECREF(result);
        Py_DECREF(listener);
    }
    PyErr_Restore(type, value, trace);
    PyGILState_Release(gil);
}

/* ---- forks ---------------------------------------------------------------------- */

/* In the order in which they are taken elsewhere. */
void
fork_lock() noexcept
{
    backend_lock();
    uses_lock();
    rings().lock.lock();
    oom().lock.lock();
}

void
fork_unlock() noexcept
{
    oom().lock.unlock();
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
oom_note(int64_t device, uint64_t asked, uint64_t total, uint64_t free)
{
    try {
        oom_fact fact{};
        fact.time_ns = now_ns();
        fact.device = device;
        fact.asked = asked;
        fact.total = total;
        fact.free = free;
        fact.thread = static_cast<int64_t>(syscall(SYS_gettid));
        remember(fact);
        if (device >= 0 && device < MOST_DEVICES) {
            oom().counts[device].fetch_add(1);
        }
        /* What the callable itself runs out of is a fact, and not told to it. */
        if (oom().listened.load() && !oom_in_listener && !interpreter_ends()) {
            oom_in_listener = true;
            call_listener(fact);
            oom_in_listener = false;
        }
    } catch (abi::__forced_unwind &) {
        /* The interpreter ended meanwhile, and ends this thread: nothing may hold it.
         */
        throw;
    } catch (...) {
        /* An observer that throws would take the place of the OOM error. */
        oom_in_listener = false;
    }
}

uint64_t
oom_count(int32_t device) noexcept
{
    if (device >= 0) {
        return device < MOST_DEVICES ? oom().counts[device].load() : 0;
    }
    uint64_t sum = 0;
    for (const auto &count : oom().counts) {
        sum += count.load();
    }
    return sum;
}

size_t
oom_facts(oom_fact out[MOST_OOM_FACTS]) noexcept
{
    oom_state &state = oom();
    const std::lock_guard<std::mutex> guard(state.lock);
    const uint64_t count = std::min<uint64_t>(state.noted, MOST_OOM_FACTS);
    for (uint64_t i = 0; i < count; i++) {
        out[i] = state.facts[(state.noted - count + i) % MOST_OOM_FACTS];
    }
    return count;
}

void
oom_listen(PyObject *callable) noexcept
{
    PyObject *before = oom().listener;
    Py_XINCREF(callable);
    oom().listener = callable;
    oom().listened.store(callable != nullptr);
    Py_XDECREF(before);
}

PyObject *
oom_listener_error() noexcept
{
    PyObject *text = oom().error == nullptr ? Py_None : oom().error;
    Py_INCREF(text);
    return text;
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
