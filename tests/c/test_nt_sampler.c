/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "monitor/nt_sampler.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "monitor/nt_sampler_device.h"
#include "nt_test.h"

#define SECOND UINT64_C(1000000)
#define MIB (UINT64_C(1) << 20)

static nt_sampler_options
options_default(void)
{
    return (nt_sampler_options){
        .interval_us = 1000,
        .memory_interval_us = 1000,
        .rows = 16,
        .phase_rows = 16,
        .rule = {{0.9, 0.85, 0}, {INFINITY, 0, 0}, {INFINITY, 0, 0}},
        .cooldown_us = 10 * SECOND,
        .growth_window_us = 8 * SECOND,
        .least_unused = 0,
    };
}

static nt_reading
reading_of(uint64_t allocated, uint64_t reserved)
{
    return (nt_reading){
        .figure = {[NT_FIGURE_ALLOCATED] = allocated, [NT_FIGURE_RESERVED] = reserved},
        .peak_allocated = allocated,
        .peak_reserved = reserved,
    };
}

/* ---- histories ---------------------------------------------------------------------
 */

NT_TEST(history_of_any_length_keeps_extremes)
{
    nt_sample_row rows[16];
    nt_sampler_history h = {.rows = rows, .room = 16, .span = 1};
    uint64_t seed = 7, low = UINT64_MAX, high = 0, readings = 0;
    double sum = 0, most = 0, expected = 0;
    for (uint64_t i = 1; i <= 5000; i++) {
        const uint64_t value = 1000 + nt_test_random(&seed) % 1000000;
        const nt_reading r = reading_of(value, 2 * value + i);
        low = value < low ? value : low;
        high = value > high ? value : high;
        expected += nt_sampler_ratio(&r);
        most = nt_sampler_ratio(&r) > most ? nt_sampler_ratio(&r) : most;
        nt_sampler_history_add(&h, &r, i % 3 == 0 ? 0 : value + 5, NT_NO_MARK, i * 10);
    }
    uint64_t seen_low = UINT64_MAX, seen_high = 0, used_low = UINT64_MAX;
    double seen_ratio = 0;
    for (size_t i = 0; i < h.count; i++) {
        NT_CHECK(i + 1 == h.count || rows[i].readings == h.span);
        NT_CHECK(i == 0 || rows[i].begin_us == rows[i - 1].end_us + 10);
        const uint64_t row_low = rows[i].low[NT_FIGURE_ALLOCATED];
        const uint64_t row_high = rows[i].high[NT_FIGURE_ALLOCATED];
        seen_low = row_low < seen_low ? row_low : seen_low;
        seen_high = row_high > seen_high ? row_high : seen_high;
        if (rows[i].low[NT_FIGURE_DEVICE_USED] < used_low) {
            used_low = rows[i].low[NT_FIGURE_DEVICE_USED];
        }
        seen_ratio = rows[i].ratio_high > seen_ratio ? rows[i].ratio_high : seen_ratio;
        readings += rows[i].readings;
        sum += rows[i].ratio_sum;
    }
    NT_CHECK_UINT(readings, 5000);
    NT_CHECK_UINT(seen_low, low);
    NT_CHECK_UINT(seen_high, high);
    NT_CHECK(used_low >= low + 5);
    NT_CHECK(fabs(sum - expected) < 1e-6 && seen_ratio == most);
    NT_CHECK_UINT(rows[0].begin_us, 10);
    NT_CHECK_UINT(rows[h.count - 1].end_us, 50000);
}

NT_TEST(phases_begin_at_their_marks)
{
    nt_sample_row rows[16];
    nt_sampler_history h = {.rows = rows, .room = 16, .span = 1, .is_phases = true};
    nt_reading r = reading_of(5, 5);
    nt_sampler_history_add(&h, &r, 0, NT_NO_MARK, 1);
    for (uint64_t mark = 0; mark < 3; mark++) {
        nt_sampler_history_begin(&h, mark, 100 * (mark + 1));
        for (uint64_t i = 0; i < mark; i++) {
            r = reading_of(10 * mark + i, 100);
            nt_sampler_history_add(&h, &r, 0, mark, 100 * (mark + 1) + i);
        }
    }
    NT_CHECK_UINT(h.count, 4);
    NT_CHECK_UINT(rows[0].mark, NT_NO_MARK);
    NT_CHECK_UINT(rows[1].mark, 0);
    NT_CHECK_UINT(rows[1].readings, 0);
    NT_CHECK_UINT(rows[1].begin_us, 100);
    NT_CHECK_UINT(rows[3].low[NT_FIGURE_ALLOCATED], 20);
    NT_CHECK_UINT(rows[3].high[NT_FIGURE_ALLOCATED], 21);
    NT_CHECK_UINT(rows[3].end_us, 301);
}

NT_TEST(phases_are_joined_in_pairs)
{
    nt_sample_row rows[16];
    nt_sampler_history h = {.rows = rows, .room = 16, .span = 1, .is_phases = true};
    for (uint64_t mark = 0; mark < 1000; mark++) {
        const nt_reading r = reading_of(1000 + mark, 5000);
        nt_sampler_history_begin(&h, mark, mark);
        nt_sampler_history_add(&h, &r, 0, mark, mark);
    }
    uint64_t next = 0;
    for (size_t i = 0; i < h.count; i++) {
        NT_CHECK_UINT(rows[i].mark, next);
        NT_CHECK_UINT(rows[i].low[NT_FIGURE_ALLOCATED], 1000 + next);
        next += rows[i].marks;
        NT_CHECK_UINT(rows[i].high[NT_FIGURE_ALLOCATED], 1000 + next - 1);
    }
    NT_CHECK_UINT(next, 1000);
}

/* ---- alerts ------------------------------------------------------------------------
 */

typedef struct alert_desk {
    nt_sample_row rows[32];
    nt_sampler_device device;
    nt_sampler_options options;
    nt_sampler_queue queue;
    uint64_t now_us;
} alert_desk;

static void
desk_init(alert_desk *desk)
{
    memset(desk, 0, sizeof *desk);
    desk->device.ticks = (nt_sampler_history){.rows = desk->rows, .room = 16};
    desk->device.phases = (nt_sampler_history){.rows = desk->rows + 16, .room = 16};
    nt_sampler_device_init(&desk->device, 3);
    desk->options = options_default();
    desk->now_us = 1000 * SECOND;
}

/* One reading a tenth of a second after the one before. */
static void
desk_read(alert_desk *desk, uint64_t allocated, uint64_t reserved)
{
    const nt_reading r = reading_of(allocated, reserved);
    desk->now_us += SECOND / 10;
    nt_sampler_device_add(&desk->device, &desk->options, &desk->queue, &r,
                          desk->now_us);
}

/* The device's own figures, when `reserved` was what the allocator had. */
static void
desk_memory(alert_desk *desk, uint64_t reserved, nt_sampler_memory memory)
{
    nt_sampler_device_memory(&desk->device, reserved, &memory);
}

/* The next alert is of this kind and tells this end of it. */
static bool
desk_told(alert_desk *desk, nt_alert_kind kind, bool is_over)
{
    nt_alert alert;
    return nt_sampler_queue_take(&desk->queue, &alert) && alert.kind == kind &&
           alert.is_over == is_over && alert.device == 3;
}

NT_TEST(threshold_counts_the_cap_too)
{
    alert_desk desk;
    desk_init(&desk);
    desk_memory(&desk, 500, (nt_sampler_memory){600, 1000, 800});
    desk_read(&desk, 500, 500);
    NT_CHECK(desk.device.now.used_share == 0.625);
    NT_CHECK_UINT(desk.queue.count, 0);
    desk_read(&desk, 720, 750);
    NT_CHECK(desk_told(&desk, NT_ALERT_THRESHOLD, false));
    /* What others have makes the device the narrower of the two. */
    desk_memory(&desk, 100, (nt_sampler_memory){850, 1000, 800});
    desk_read(&desk, 100, 100);
    NT_CHECK(desk.device.now.used_share == 0.85);
    /* The cap was taken away. */
    desk_memory(&desk, 700, (nt_sampler_memory){700, 1000, 0});
    desk_read(&desk, 700, 700);
    NT_CHECK(desk.device.now.used_share == 0.7);
}

NT_TEST(threshold_has_hysteresis_and_cooldown)
{
    alert_desk desk;
    desk_init(&desk);
    desk_memory(&desk, 500, (nt_sampler_memory){600, 1000, 0});
    desk_read(&desk, 700, 800);
    NT_CHECK_UINT(desk.queue.count, 0);
    NT_CHECK(desk.device.now.used_share == 0.8);
    desk_read(&desk, 800, 800);
    NT_CHECK(desk_told(&desk, NT_ALERT_THRESHOLD, false));
    desk_read(&desk, 760, 800); /* below the limit, above where it is over */
    desk_read(&desk, 900, 900);
    NT_CHECK_UINT(desk.queue.count, 0);
    desk_read(&desk, 700, 900);
    NT_CHECK(desk_told(&desk, NT_ALERT_THRESHOLD, true));
    for (int i = 0; i < 96; i++) {
        desk_read(&desk, 950, 950); /* it cools down since it was raised */
        NT_CHECK_UINT(desk.queue.count, 0);
    }
    desk_read(&desk, 950, 950);
    NT_CHECK(desk_told(&desk, NT_ALERT_THRESHOLD, false));
    NT_CHECK_UINT(desk.device.now.raised[NT_ALERT_THRESHOLD], 2);
}

NT_TEST(fragmentation_waits_for_its_patience)
{
    alert_desk desk;
    desk_init(&desk);
    desk.options.rule[NT_ALERT_FRAGMENTATION] =
        (nt_alert_rule){.limit = 0.4, .clear = 0.35, .patience_us = SECOND};
    desk.options.least_unused = 100;
    for (int i = 0; i < 9; i++) {
        desk_read(&desk, 500, 1000);
    }
    desk_read(&desk, 900, 1000); /* a moment without it begins the wait anew */
    for (int i = 0; i < 10; i++) {
        desk_read(&desk, 500, 1000);
        NT_CHECK_UINT(desk.queue.count, 0);
    }
    desk_read(&desk, 500, 1000);
    NT_CHECK(desk_told(&desk, NT_ALERT_FRAGMENTATION, false));
    desk_read(&desk, 10, 20); /* half unused, but next to nothing */
    NT_CHECK(desk_told(&desk, NT_ALERT_FRAGMENTATION, true));
}

NT_TEST(growth_ignores_a_saw_tooth)
{
    alert_desk desk;
    desk_init(&desk);
    desk.options.rule[NT_ALERT_GROWTH] = (nt_alert_rule){.limit = 50, .clear = 25};
    for (uint64_t i = 0; i < 400; i++) {
        desk_read(&desk, 1000 + i % 30 * 100, 10000);
    }
    NT_CHECK(fabs(desk.device.now.growth) < 1e-9);
    NT_CHECK_UINT(desk.queue.count, 0);
    for (uint64_t i = 0; i < 200; i++) {
        desk_read(&desk, 1000 + i % 10 * 100 + 10 * i, 10000); /* 100 a second */
    }
    NT_CHECK(desk_told(&desk, NT_ALERT_GROWTH, false));
    NT_CHECK(fabs(desk.device.now.growth - 100) < 15);
}

NT_TEST(growth_forgets_across_a_pause)
{
    alert_desk desk;
    desk_init(&desk);
    for (uint64_t i = 0; i < 200; i++) {
        desk_read(&desk, 1000, 10000);
    }
    NT_CHECK(desk.device.now.growth == 0);
    desk.now_us += 60 * SECOND;
    desk_read(&desk, 9000, 10000);
    NT_CHECK(isnan(desk.device.now.growth));
}

NT_TEST(full_queue_drops_the_oldest)
{
    alert_desk desk;
    nt_alert alert;
    desk_init(&desk);
    desk.options.cooldown_us = 0;
    desk_memory(&desk, 0, (nt_sampler_memory){0, 1000, 0});
    for (uint64_t i = 0; i < NT_SAMPLER_QUEUE; i++) {
        desk_read(&desk, 901 + i, 1000);
        desk_read(&desk, 1, 1000);
    }
    NT_CHECK_UINT(desk.queue.count, NT_SAMPLER_QUEUE);
    NT_CHECK_UINT(desk.queue.dropped, NT_SAMPLER_QUEUE);
    NT_REQUIRE(NT_CHECK(nt_sampler_queue_take(&desk.queue, &alert)));
    NT_CHECK_UINT(alert.reading.figure[NT_FIGURE_ALLOCATED],
                  901 + NT_SAMPLER_QUEUE / 2);
}

NT_TEST(failing_device_is_asked_less_often)
{
    alert_desk desk;
    uint64_t wait_us = SECOND;
    desk_init(&desk);
    for (int i = 0; i < 12; i++) {
        nt_sampler_device_failed(&desk.device, &desk.queue, 77, desk.now_us);
        NT_CHECK_UINT(desk.device.ask_at_us - desk.now_us,
                      wait_us < 60 * SECOND ? wait_us : 60 * SECOND);
        wait_us *= 2;
    }
    NT_CHECK(desk_told(&desk, NT_ALERT_DEVICE_ERROR, false));
    NT_CHECK_UINT(desk.queue.count, 0);
    desk_read(&desk, 1, 1);
    NT_CHECK(desk_told(&desk, NT_ALERT_DEVICE_ERROR, true));
    NT_CHECK_UINT(desk.device.ask_at_us, 0);
    NT_CHECK_UINT(desk.device.now.failures, 12);
}

/* ---- the thread --------------------------------------------------------------------
 */

/* A source whose devices are numbers. */
typedef struct made_up {
    atomic_uint_least64_t allocated;
    atomic_int answer;
    atomic_uint calls;
} made_up;

static int
made_up_stats(void *ctx, int32_t device, nt_reading *out)
{
    made_up *m = ctx;
    *out = reading_of(atomic_load(&m->allocated) + (uint64_t)device, 100 * MIB);
    (void)atomic_fetch_add(&m->calls, 1);
    return atomic_load(&m->answer);
}

static int
made_up_memory(void *ctx, int32_t device, nt_sampler_memory *out)
{
    (void)ctx;
    out->used = 110 * MIB + (uint64_t)device;
    out->total = 200 * MIB;
    return 0;
}

static const int32_t made_up_devices[] = {0, 2};

static nt_sampler *
made_up_sampler(nt_test *t, const nt_alloc *alloc, made_up *m, nt_sampler_options o)
{
    const nt_sampler_source source = {made_up_stats, m, made_up_memory, m};
    nt_sampler *s = NULL;
    nt_error err;
    atomic_init(&m->allocated, MIB);
    atomic_init(&m->answer, 0);
    atomic_init(&m->calls, 0);
    (void)NT_CHECK_OK(nt_sampler_new(alloc, &o, &source, made_up_devices, 2, &s, &err),
                      &err);
    return s;
}

/* Gives up after a minute: a machine may have much else to do. */
static bool
wait_for_readings(nt_sampler *s, uint64_t readings)
{
    for (int i = 0; i < 60000; i++) {
        if (nt_sampler_now(s, 1).readings >= readings) {
            return true;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

NT_TEST(thread_reads_until_it_is_stopped)
{
    nt_hostile hostile;
    made_up m;
    nt_hostile_init(&hostile, t);
    nt_sampler *s = made_up_sampler(t, &hostile.alloc, &m, options_default());
    NT_REQUIRE(NT_CHECK(s != NULL));
    NT_CHECK_OK(nt_sampler_start(s, NULL), NULL);
    NT_CHECK_OK(nt_sampler_start(s, NULL), NULL);
    NT_CHECK(wait_for_readings(s, 5));
    nt_sampler_stop(s);
    const unsigned calls = atomic_load(&m.calls);
    const nt_sampler_state now = nt_sampler_now(s, 1);
    NT_CHECK_INT(now.device, 2);
    NT_CHECK_UINT(now.reading.figure[NT_FIGURE_ALLOCATED], MIB + 2);
    NT_CHECK_UINT(now.device_used, 110 * MIB + 2);
    NT_CHECK_UINT(now.non_torch, 10 * MIB + 2);
    NT_CHECK(nt_sampler_spent(s).ticks >= 5 && nt_sampler_spent(s).cpu_ns > 0);
    NT_CHECK_OK(nt_sampler_start(s, NULL), NULL);
    NT_CHECK(wait_for_readings(s, now.readings + 1));
    nt_sampler_free(s);
    NT_CHECK(atomic_load(&m.calls) > calls);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(marks_read_at_both_ends)
{
    nt_hostile hostile;
    made_up m;
    nt_sample_row rows[16];
    nt_sampler_options o = options_default();
    o.interval_us = 3600 * SECOND;
    nt_hostile_init(&hostile, t);
    nt_sampler *s = made_up_sampler(t, &hostile.alloc, &m, o);
    NT_REQUIRE(NT_CHECK(s != NULL));
    for (uint64_t mark = 0; mark < 3; mark++) {
        atomic_store(&m.allocated, (mark + 1) * MIB);
        NT_CHECK_UINT(nt_sampler_mark(s), mark);
    }
    NT_CHECK_UINT(nt_sampler_rows(s, 0, true, rows, 16), 4);
    NT_CHECK_UINT(rows[1].readings, 2);
    NT_CHECK_UINT(rows[1].low[NT_FIGURE_ALLOCATED], MIB);
    NT_CHECK_UINT(rows[1].high[NT_FIGURE_ALLOCATED], 2 * MIB);
    NT_CHECK_UINT(rows[3].readings, 1);
    NT_CHECK_UINT(nt_sampler_rows(s, 0, false, rows, 2), 3);
    NT_CHECK_UINT(rows[1].mark, 0);
    nt_sampler_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(waiting_ends_with_an_alert_or_a_stop)
{
    nt_hostile hostile;
    made_up m;
    nt_alert alert;
    nt_hostile_init(&hostile, t);
    nt_sampler *s = made_up_sampler(t, &hostile.alloc, &m, options_default());
    NT_REQUIRE(NT_CHECK(s != NULL));
    NT_CHECK(!nt_sampler_wait(s, UINT64_MAX, &alert)); /* it does not run */
    NT_CHECK_OK(nt_sampler_start(s, NULL), NULL);
    NT_CHECK(!nt_sampler_wait(s, 2000, &alert));
    atomic_store(&m.allocated, 180 * MIB);
    bool told[3] = {false, false, false}; /* of a device; either may be read first */
    for (int i = 0; i < 2; i++) {
        NT_REQUIRE(NT_CHECK(nt_sampler_wait(s, UINT64_MAX, &alert)));
        NT_CHECK_INT(alert.kind, NT_ALERT_THRESHOLD);
        NT_REQUIRE(NT_CHECK(alert.device == 0 || alert.device == 2));
        const double used = (double)(190 * MIB + 2 * (uint64_t)alert.device);
        NT_CHECK(alert.value == used / (double)(200 * MIB) && alert.limit == 0.9);
        NT_CHECK_UINT(alert.device_total, 200 * MIB);
        told[alert.device] = true;
    }
    NT_CHECK(told[0] && told[2]);
    atomic_store(&m.answer, -5);
    NT_CHECK(nt_sampler_wait(s, UINT64_MAX, &alert));
    nt_sampler_stop(s);
    while (nt_sampler_wait(s, UINT64_MAX, &alert)) {
        NT_CHECK(alert.kind == NT_ALERT_THRESHOLD ||
                 alert.kind == NT_ALERT_DEVICE_ERROR);
    }
    nt_sampler_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(device_not_in_use_is_no_failure)
{
    nt_hostile hostile;
    made_up m;
    nt_hostile_init(&hostile, t);
    nt_sampler *s = made_up_sampler(t, &hostile.alloc, &m, options_default());
    NT_REQUIRE(NT_CHECK(s != NULL));
    atomic_store(&m.answer, NT_SOURCE_NOT_YET);
    (void)nt_sampler_mark(s);
    NT_CHECK_UINT(nt_sampler_now(s, 0).readings + nt_sampler_now(s, 0).failures, 0);
    atomic_store(&m.answer, NT_SOURCE_OK);
    (void)nt_sampler_mark(s);
    NT_CHECK_UINT(nt_sampler_now(s, 0).readings, 1);
    nt_sampler_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(peaks_between_readings_are_kept)
{
    nt_hostile hostile;
    nt_sample_row rows[16];
    nt_sampler *s = NULL;
    const int32_t device = 0;
    const nt_sampler_options o = options_default();
    const nt_sampler_source none = {.stats = NULL};
    nt_hostile_init(&hostile, t);
    NT_REQUIRE(NT_CHECK_OK(
        nt_sampler_new(&hostile.alloc, &o, &none, &device, 1, &s, NULL), NULL));
    nt_reading r = reading_of(10, 50);
    r.peak_allocated = 40; /* from before the monitor: not of this row */
    nt_sampler_put(s, 0, &r);
    r.peak_allocated = 45;
    nt_sampler_put(s, 0, &r);
    nt_sampler_put(s, 0, &r);
    NT_CHECK_UINT(nt_sampler_rows(s, 0, false, rows, 16), 3);
    NT_CHECK_UINT(rows[0].high[NT_FIGURE_ALLOCATED], 10);
    NT_CHECK_UINT(rows[1].high[NT_FIGURE_ALLOCATED], 45);
    NT_CHECK_UINT(rows[1].low[NT_FIGURE_ALLOCATED], 10);
    NT_CHECK_UINT(rows[2].high[NT_FIGURE_ALLOCATED], 10);
    NT_CHECK_UINT(nt_sampler_now(s, 0).peak[NT_FIGURE_ALLOCATED], 45);
    nt_sampler_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(forgotten_sampler_begins_anew)
{
    nt_hostile hostile;
    made_up m;
    nt_hostile_init(&hostile, t);
    nt_sampler *s = made_up_sampler(t, &hostile.alloc, &m, options_default());
    NT_REQUIRE(NT_CHECK(s != NULL));
    (void)nt_sampler_mark(s);
    nt_sampler_forget(s);
    NT_CHECK_UINT(nt_sampler_rows(s, 0, false, NULL, 0), 0);
    NT_CHECK_UINT(nt_sampler_now(s, 1).readings, 0);
    NT_CHECK_INT(nt_sampler_now(s, 1).device, 2);
    NT_CHECK_OK(nt_sampler_start(s, NULL), NULL);
    NT_CHECK(wait_for_readings(s, 2));
    nt_sampler_free(s);
    NT_CHECK_NO_LEAK(&hostile);
}

NT_TEST(wrong_options_are_refused)
{
    nt_hostile hostile;
    nt_sampler *s = NULL;
    const nt_sampler_source none = {.stats = NULL};
    const int32_t twice[] = {1, 1};
    nt_sampler_options o = options_default();
    nt_hostile_init(&hostile, t);
    const nt_alloc *alloc = &hostile.alloc;
    NT_CHECK_STATUS(nt_sampler_new(alloc, &o, &none, twice, 2, &s, NULL), NT_ARGUMENT,
                    NULL);
    NT_CHECK_STATUS(nt_sampler_new(alloc, &o, &none, twice, 0, &s, NULL), NT_ARGUMENT,
                    NULL);
    o.rows = 17;
    NT_CHECK_STATUS(nt_sampler_new(alloc, &o, &none, twice, 1, &s, NULL), NT_ARGUMENT,
                    NULL);
    o.rows = SIZE_MAX / 8 * 2;
    NT_CHECK_STATUS(nt_sampler_new(alloc, &o, &none, twice, 1, &s, NULL), NT_ARGUMENT,
                    NULL);
    o = options_default();
    o.interval_us = 99;
    NT_CHECK_STATUS(nt_sampler_new(alloc, &o, &none, twice, 1, &s, NULL), NT_ARGUMENT,
                    NULL);
    NT_CHECK(s == NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
sweep_new(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    nt_sampler *s = NULL;
    nt_error err;
    const nt_sampler_options o = options_default();
    const nt_sampler_source none = {.stats = NULL};
    const nt_status status =
        nt_sampler_new(alloc, &o, &none, made_up_devices, 2, &s, &err);
    NT_CHECK((s != NULL) == (status == NT_OK));
    nt_sampler_free(s);
    return status;
}

NT_TEST(refused_memory_leaves_nothing_behind)
{
    nt_test_sweep(t, sweep_new, NULL);
}

const nt_test_case nt_sampler_tests[] = {
    NT_CASE(history_of_any_length_keeps_extremes),
    NT_CASE(phases_begin_at_their_marks),
    NT_CASE(phases_are_joined_in_pairs),
    NT_CASE(threshold_counts_the_cap_too),
    NT_CASE(threshold_has_hysteresis_and_cooldown),
    NT_CASE(fragmentation_waits_for_its_patience),
    NT_CASE(growth_ignores_a_saw_tooth),
    NT_CASE(growth_forgets_across_a_pause),
    NT_CASE(full_queue_drops_the_oldest),
    NT_CASE(failing_device_is_asked_less_often),
    NT_CASE(thread_reads_until_it_is_stopped),
    NT_CASE(marks_read_at_both_ends),
    NT_CASE(waiting_ends_with_an_alert_or_a_stop),
    NT_CASE(device_not_in_use_is_no_failure),
    NT_CASE(peaks_between_readings_are_kept),
    NT_CASE(forgotten_sampler_begins_anew),
    NT_CASE(wrong_options_are_refused),
    NT_CASE(refused_memory_leaves_nothing_behind),
    NT_CASES_END,
};
