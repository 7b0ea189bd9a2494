/* SPDX-License-Identifier: Apache-2.0 */
/* The thread, its clock and its lock. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np, pthread_condattr_setclock, syscall */
#endif
#include "monitor/nt_sampler.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "monitor/nt_sampler_device.h"

#define SAMPLER_LEAST_INTERVAL_US 100
#define SAMPLER_LEAST_ROWS 16

/* The thread calls into an allocator's library, where an exception may be unwound. */
#define SAMPLER_STACK_BYTES ((size_t)512 << 10)

struct nt_sampler {
    nt_alloc alloc;
    nt_sampler_options options;
    nt_sampler_source source;
    size_t count;
    nt_sample_row *rows; /* of all histories */
    size_t row_count;
    uint64_t unix_us; /* Unix time at monotonic time 0 */

    pthread_mutex_t lock; /* guards all below; held for less than a microsecond, and a
                             few hundred where a history is thinned */
    pthread_cond_t told;  /* there is an alert, or there will be none */
    nt_sampler_device *devices;
    nt_sampler_queue queue;
    uint64_t marks;
    uint64_t cpu_ns; /* of threads that have ended */
    pthread_t thread;
    bool has_thread; /* `thread` is to be joined */
    _Atomic uint64_t ticks, late;
    _Atomic uint32_t is_stopping; /* written with the lock; the thread sleeps on it */
};

/* ---- time and threads ------------------------------------------------------------ */

static uint64_t
sampler_clock_ns(clockid_t clock)
{
    struct timespec t = {0};
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static uint64_t
sampler_monotonic_us(void)
{
    return sampler_clock_ns(CLOCK_MONOTONIC) / 1000;
}

/* Unix time that never goes back: the clock may be set while the sampler runs. */
static uint64_t
sampler_time_us(const nt_sampler *s)
{
    return s->unix_us + sampler_monotonic_us();
}

/* False once the monotonic time is `until_us`. The lock is held, and given up inside.
 */
static bool
sampler_wait_until(nt_sampler *s, pthread_cond_t *condition, uint64_t until_us)
{
    if (until_us == UINT64_MAX) {
        return pthread_cond_wait(condition, &s->lock) == 0;
    }
    const struct timespec until = {
        .tv_sec = (time_t)(until_us / 1000000),
        .tv_nsec = (long)(until_us % 1000000 * 1000),
    };
    return pthread_cond_timedwait(condition, &s->lock, &until) == 0;
}

/* Sleeps until the monotonic time is `until_us`, or the sampler is to stop; the time
 * then. One call of the kernel, whose futexes take this form of time on systems of 64
 * bits: a condition with its lock would be a fifth of what a reading costs. */
static uint64_t
sampler_sleep(nt_sampler *s, uint64_t until_us)
{
    const struct timespec until = {
        .tv_sec = (time_t)(until_us / 1000000),
        .tv_nsec = (long)(until_us % 1000000 * 1000),
    };
    uint64_t now_us;
    do {
        (void)syscall(SYS_futex, &s->is_stopping, FUTEX_WAIT_BITSET_PRIVATE, 0, &until,
                      NULL, FUTEX_BITSET_MATCH_ANY);
        now_us = sampler_monotonic_us();
    } while (now_us < until_us && atomic_load(&s->is_stopping) == 0);
    return now_us;
}

static void
sampler_init_lock(nt_sampler *s)
{
    pthread_condattr_t monotonic;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->told, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

/* ---- readings -------------------------------------------------------------------- */

/* The same reading, with the peaks since `before`: the allocator's own are higher than
 * they were where it went higher in between. */
static nt_reading
sampler_since(const nt_sampler_state *before, const nt_reading *reading)
{
    const nt_reading *b = &before->reading;
    nt_reading since = *reading;
    if (before->time_us == 0 || reading->peak_allocated <= b->peak_allocated) {
        since.peak_allocated = reading->figure[NT_FIGURE_ALLOCATED];
    }
    if (before->time_us == 0 || reading->peak_reserved <= b->peak_reserved) {
        since.peak_reserved = reading->figure[NT_FIGURE_RESERVED];
    }
    return since;
}

/* The lock is held. */
static void
sampler_add(nt_sampler *s, nt_sampler_device *d, const nt_reading *reading)
{
    const size_t waiting = s->queue.count;
    const uint64_t time_us = sampler_time_us(s);
    const uint64_t mark = s->marks == 0 ? NT_NO_MARK : s->marks - 1;
    const nt_reading since = sampler_since(&d->now, reading);
    nt_sampler_device_add(d, &s->options, &s->queue, reading, time_us);
    nt_sampler_history_add(&d->ticks, &since, d->now.device_used, mark, time_us);
    nt_sampler_history_add(&d->phases, &since, d->now.device_used, mark, time_us);
    if (s->queue.count != waiting) {
        (void)pthread_cond_signal(&s->told);
    }
}

/* The lock is held. */
static void
sampler_fail(nt_sampler *s, nt_sampler_device *d, int answer)
{
    nt_sampler_device_failed(d, &s->queue, answer, sampler_time_us(s));
    (void)pthread_cond_signal(&s->told);
}

void
nt_sampler_put(nt_sampler *s, size_t index, const nt_reading *reading)
{
    (void)pthread_mutex_lock(&s->lock);
    sampler_add(s, &s->devices[index], reading);
    (void)pthread_mutex_unlock(&s->lock);
}

void
nt_sampler_put_memory(nt_sampler *s, size_t index, const nt_sampler_memory *memory)
{
    (void)pthread_mutex_lock(&s->lock);
    nt_sampler_device *d = &s->devices[index];
    nt_sampler_device_memory(d, d->now.reading.figure[NT_FIGURE_RESERVED], memory);
    (void)pthread_mutex_unlock(&s->lock);
}

void
nt_sampler_put_failure(nt_sampler *s, size_t index, int answer)
{
    (void)pthread_mutex_lock(&s->lock);
    sampler_fail(s, &s->devices[index], answer);
    (void)pthread_mutex_unlock(&s->lock);
}

/* What of a device is to be asked for at `now_us`, which is not asked for again by
 * another thread. */
static bool
sampler_is_due(nt_sampler *s, nt_sampler_device *d, uint64_t now_us, bool *memory)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool is_due = d->ask_at_us == 0 || now_us >= d->ask_at_us;
    *memory = is_due && s->source.memory != NULL && now_us >= d->memory_at_us;
    if (*memory) {
        d->memory_at_us = now_us + s->options.memory_interval_us;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return is_due;
}

/* Asks the source about one device, without the lock. The device's own figures, where
 * they are due, come before the reading to which they belong; what can't be had is
 * asked for again at the next time. */
static void
sampler_ask(nt_sampler *s, nt_sampler_device *d, uint64_t now_us)
{
    nt_reading reading = {.peak_allocated = 0};
    nt_sampler_memory memory = {.used = 0};
    bool asks_memory;
    if (!sampler_is_due(s, d, now_us, &asks_memory)) {
        return;
    }
    const int answer = s->source.stats(s->source.stats_ctx, d->now.device, &reading);
    const bool is_used = answer == NT_SOURCE_OK;
    const bool has_memory =
        asks_memory && (is_used || answer == NT_SOURCE_NOT_YET) &&
        s->source.memory(s->source.memory_ctx, d->now.device, &memory) == NT_SOURCE_OK;
    (void)pthread_mutex_lock(&s->lock);
    if (has_memory) {
        nt_sampler_device_memory(d, is_used ? reading.figure[NT_FIGURE_RESERVED] : 0,
                                 &memory);
    }
    if (is_used) {
        sampler_add(s, d, &reading);
    } else if (answer != NT_SOURCE_NOT_YET) {
        sampler_fail(s, d, answer);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

static void
sampler_ask_all(nt_sampler *s, uint64_t now_us)
{
    for (size_t i = 0; s->source.stats != NULL && i < s->count; i++) {
        sampler_ask(s, &s->devices[i], now_us);
    }
}

void
nt_sampler_ask(nt_sampler *s)
{
    sampler_ask_all(s, sampler_time_us(s));
}

uint64_t
nt_sampler_mark(nt_sampler *s)
{
    nt_sampler_ask(s);
    (void)pthread_mutex_lock(&s->lock);
    const uint64_t mark = s->marks++;
    const uint64_t time_us = sampler_time_us(s);
    for (size_t i = 0; i < s->count; i++) {
        nt_sampler_device *d = &s->devices[i];
        nt_sampler_history_begin(&d->phases, mark, time_us);
        if (d->now.time_us != 0 && d->wait_us == 0) {
            nt_reading first = d->now.reading;
            first.peak_allocated = first.figure[NT_FIGURE_ALLOCATED];
            first.peak_reserved = first.figure[NT_FIGURE_RESERVED];
            nt_sampler_history_add(&d->phases, &first, d->now.device_used, mark,
                                   time_us);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return mark;
}

/* ---- the thread ------------------------------------------------------------------ */

/* The next tick after `due_us`; those that have gone by are left out. */
static uint64_t
sampler_next(nt_sampler *s, uint64_t due_us)
{
    const uint64_t interval_us = s->options.interval_us;
    const uint64_t now_us = sampler_monotonic_us();
    const uint64_t behind = now_us > due_us ? (now_us - due_us) / interval_us : 0;
    (void)atomic_fetch_add_explicit(&s->ticks, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&s->late, behind, memory_order_relaxed);
    return due_us + (behind + 1) * interval_us;
}

static void *
sampler_run(void *arg)
{
    nt_sampler *s = arg;
    uint64_t now_us = sampler_monotonic_us();
    uint64_t due_us = now_us;
    (void)pthread_setname_np(pthread_self(), "nt-sampler");
    while (atomic_load(&s->is_stopping) == 0) {
        sampler_ask_all(s, s->unix_us + now_us);
        due_us = s->source.stats == NULL ? UINT64_MAX : sampler_next(s, due_us);
        now_us = sampler_sleep(s, due_us);
    }
    (void)pthread_mutex_lock(&s->lock);
    s->cpu_ns += sampler_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A thread that no signal of the program is given to. */
static int
sampler_create(nt_sampler *s)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int failed = pthread_attr_init(&attributes);
    if (failed != 0) {
        return failed;
    }
    (void)pthread_attr_setstacksize(&attributes, SAMPLER_STACK_BYTES);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&s->thread, &attributes, sampler_run, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return failed;
}

nt_status
nt_sampler_start(nt_sampler *s, nt_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    int failed = 0;
    if (!s->has_thread) {
        atomic_store(&s->is_stopping, 0);
        failed = sampler_create(s);
        s->has_thread = failed == 0;
        atomic_store(&s->is_stopping, failed != 0);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (failed != 0) {
        return nt_fail(err, NT_IO, NT_NO_OFFSET,
                       "the system could not start the monitor's thread (error %d)",
                       failed);
    }
    return NT_OK;
}

void
nt_sampler_stop(nt_sampler *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool joins = s->has_thread;
    s->has_thread = false;
    atomic_store(&s->is_stopping, 1);
    (void)pthread_cond_broadcast(&s->told);
    (void)pthread_mutex_unlock(&s->lock);
    if (joins) {
        (void)syscall(SYS_futex, &s->is_stopping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        (void)pthread_join(s->thread, NULL);
    }
}

void
nt_sampler_forget(nt_sampler *s)
{
    /* Whoever held the lock at the fork is not here to give it up. */
    sampler_init_lock(s);
    s->has_thread = false;
    atomic_store(&s->is_stopping, 1);
    s->marks = s->cpu_ns = 0;
    atomic_store(&s->ticks, 0);
    atomic_store(&s->late, 0);
    s->queue = (nt_sampler_queue){.count = 0};
    for (size_t i = 0; i < s->count; i++) {
        nt_sampler_device_init(&s->devices[i], s->devices[i].now.device);
    }
}

/* ---- what was seen --------------------------------------------------------------- */

bool
nt_sampler_wait(nt_sampler *s, uint64_t timeout_us, nt_alert *out)
{
    const uint64_t until_us =
        timeout_us == UINT64_MAX ? timeout_us : sampler_monotonic_us() + timeout_us;
    (void)pthread_mutex_lock(&s->lock);
    while (s->queue.count == 0 && atomic_load(&s->is_stopping) == 0 &&
           sampler_wait_until(s, &s->told, until_us)) {
    }
    const bool has_one = nt_sampler_queue_take(&s->queue, out);
    (void)pthread_mutex_unlock(&s->lock);
    return has_one;
}

nt_sampler_state
nt_sampler_now(nt_sampler *s, size_t index)
{
    (void)pthread_mutex_lock(&s->lock);
    const nt_sampler_state now = s->devices[index].now;
    (void)pthread_mutex_unlock(&s->lock);
    return now;
}

nt_sampler_cost
nt_sampler_spent(nt_sampler *s)
{
    clockid_t clock;
    (void)pthread_mutex_lock(&s->lock);
    nt_sampler_cost cost = {
        .ticks = atomic_load(&s->ticks),
        .late = atomic_load(&s->late),
        .cpu_ns = s->cpu_ns,
        .dropped = s->queue.dropped,
    };
    if (s->has_thread && pthread_getcpuclockid(s->thread, &clock) == 0) {
        cost.cpu_ns += sampler_clock_ns(clock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return cost;
}

size_t
nt_sampler_rows(nt_sampler *s, size_t index, bool phases, nt_sample_row *out,
                size_t room)
{
    (void)pthread_mutex_lock(&s->lock);
    const nt_sampler_device *d = &s->devices[index];
    const nt_sampler_history *h = phases ? &d->phases : &d->ticks;
    const size_t count = h->count < room ? h->count : room;
    if (count != 0) {
        memcpy(out, h->rows, count * sizeof *out);
    }
    const size_t all = h->count;
    (void)pthread_mutex_unlock(&s->lock);
    return all;
}

/* ---- from the first to the last -------------------------------------------------- */

static nt_status
sampler_check(const nt_sampler_options *o, const int32_t *devices, size_t count,
              nt_error *err)
{
    if (count == 0 || count > NT_SAMPLER_DEVICES) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a monitor follows 1 to %d devices", NT_SAMPLER_DEVICES);
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (devices[i] == devices[j]) {
                return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                               "device %d is named twice", (int)devices[i]);
            }
        }
    }
    if (o->interval_us < SAMPLER_LEAST_INTERVAL_US ||
        o->memory_interval_us < SAMPLER_LEAST_INTERVAL_US) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "an interval must be at least %d microseconds",
                       SAMPLER_LEAST_INTERVAL_US);
    }
    if (o->rows < SAMPLER_LEAST_ROWS || o->rows % 2 != 0 ||
        o->phase_rows < SAMPLER_LEAST_ROWS || o->phase_rows % 2 != 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a history has %d rows or more, an even number",
                       SAMPLER_LEAST_ROWS);
    }
    return NT_OK;
}

static nt_status
sampler_room(nt_sampler *s, size_t count, nt_error *err)
{
    size_t each, all, device_bytes, row_bytes;
    if (!nt_size_add(s->options.rows, s->options.phase_rows, &each) ||
        !nt_size_mul(each, count, &all) ||
        !nt_size_mul(all, sizeof *s->rows, &row_bytes) ||
        !nt_size_mul(count, sizeof *s->devices, &device_bytes)) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "a history of too many rows");
    }
    s->devices = nt_allocate(&s->alloc, device_bytes);
    s->rows = nt_allocate(&s->alloc, row_bytes);
    s->count = count;
    s->row_count = all;
    return s->devices == NULL || s->rows == NULL ? nt_fail_nomem(err) : NT_OK;
}

static void
sampler_release(nt_sampler *s)
{
    const nt_alloc alloc = s->alloc;
    NT_RELEASE(&alloc, s->devices, s->count);
    NT_RELEASE(&alloc, s->rows, s->row_count);
    nt_release(&alloc, s, sizeof *s);
}

nt_status
nt_sampler_new(const nt_alloc *alloc, const nt_sampler_options *options,
               const nt_sampler_source *source, const int32_t *devices, size_t count,
               nt_sampler **out, nt_error *err)
{
    NT_TRY(sampler_check(options, devices, count, err));
    nt_sampler *s;
    NT_TRY(NT_NEW(alloc, s, 1, err));
    *s = (nt_sampler){.alloc = *alloc, .options = *options, .source = *source};
    atomic_store(&s->is_stopping, 1);
    s->unix_us = sampler_clock_ns(CLOCK_REALTIME) / 1000 - sampler_monotonic_us();
    const nt_status status = sampler_room(s, count, err);
    if (status != NT_OK) {
        sampler_release(s);
        return status;
    }
    nt_sample_row *rows = s->rows;
    for (size_t i = 0; i < count; i++) {
        s->devices[i] = (nt_sampler_device){
            .ticks = {.rows = rows, .room = options->rows},
            .phases = {.rows = rows + options->rows, .room = options->phase_rows},
        };
        nt_sampler_device_init(&s->devices[i], devices[i]);
        rows += options->rows + options->phase_rows;
    }
    sampler_init_lock(s);
    *out = s;
    return NT_OK;
}

void
nt_sampler_free(nt_sampler *s)
{
    if (s == NULL) {
        return;
    }
    nt_sampler_stop(s);
    (void)pthread_cond_destroy(&s->told);
    (void)pthread_mutex_destroy(&s->lock);
    sampler_release(s);
}
