/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend.h"

#include "nt_series.h"
#include "nt_test.h"

enum { TREND_MOST = 3000 };

NT_TEST(constant_series_does_not_grow)
{
    uint64_t values[40];
    for (size_t count = 1; count <= 40; count++) {
        for (size_t i = 0; i < count; i++) {
            values[i] = NT_SERIES_LEVEL;
        }
        const nt_trend found = nt_series_look(t, values, count);
        NT_CHECK(found.slope == 0.0 && found.low == 0.0 && found.high == 0.0);
        NT_CHECK(found.score == 0.0);
        NT_CHECK_UINT(found.warmup, 0);
        NT_CHECK_UINT(found.points, count);
        NT_CHECK(found.level == (double)NT_SERIES_LEVEL);
    }
}

NT_TEST(straight_line_has_its_slope)
{
    uint64_t values[50];
    for (size_t i = 0; i < 50; i++) {
        values[i] = NT_SERIES_LEVEL + 4096 * i;
    }
    const nt_trend found = nt_series_look(t, values, 50);
    NT_CHECK(found.slope > 4095.99 && found.slope < 4096.01);
    NT_CHECK(found.low > 4095.9 && found.high < 4096.1);
    NT_CHECK(found.score > 4.0);
    NT_CHECK(found.score > 6.0);
    NT_CHECK_UINT(found.warmup, 0);
    NT_CHECK(!found.is_levelling);
}

NT_TEST(falling_series_scores_below_zero)
{
    uint64_t values[50];
    for (size_t i = 0; i < 50; i++) {
        values[i] = NT_SERIES_LEVEL - 4096 * i;
    }
    NT_CHECK(nt_series_look(t, values, 50).score < -6.0);
}

NT_TEST(warmup_is_set_aside)
{
    uint64_t values[60];
    nt_series_make(values, 60, 0.5, 2e6, 0.0, 3);
    for (size_t i = 0; i < 5; i++) {
        values[i] -= UINT64_C(2) << 30;
    }
    const nt_trend found = nt_series_look(t, values, 60);
    NT_CHECK(found.warmup >= 5 && found.warmup <= 8);
    NT_CHECK(found.score < 2.3);
}

NT_TEST(growth_that_ends_is_warmup)
{
    uint64_t values[90];
    for (size_t i = 0; i < 90; i++) {
        values[i] = NT_SERIES_LEVEL + (UINT64_C(1) << 22) * (i < 40 ? i : 40);
    }
    const nt_trend found = nt_series_look(t, values, 90);
    NT_CHECK(found.warmup >= 30);
    NT_CHECK(found.score < 2.3 || found.is_levelling);
}

NT_TEST(one_jump_is_no_growth)
{
    uint64_t values[60];
    for (size_t at = 5; at < 56; at++) {
        nt_series_make(values, 60, 0.3, 2e6, 0.0, at);
        for (size_t i = at; i < 60; i++) {
            values[i] += UINT64_C(1) << 30;
        }
        const nt_trend found = nt_series_look(t, values, 60);
        if (found.grows) {
            NT_FAIL("a jump at %zu is taken for growth", at);
        }
        NT_CHECK(found.jump_count != 0 || found.warmup != 0);
    }
}

NT_TEST(many_equal_jumps_are_growth)
{
    uint64_t values[60];
    for (size_t i = 0; i < 60; i++) {
        values[i] = NT_SERIES_LEVEL + (UINT64_C(2) << 20) * (i / 3);
    }
    const nt_trend found = nt_series_look(t, values, 60);
    NT_CHECK(found.score > 4.0);
    NT_CHECK(found.slope > 0.6e6 && found.slope < 0.8e6);
}

NT_TEST(as_many_cuts_as_there_is_room_for_are_borne)
{
    uint64_t values[400];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t state = seed;
        double at = (double)NT_SERIES_LEVEL;
        for (size_t i = 0; i < 400; i++) {
            const double move = 1e8 * nt_series_noise(&state);
            at += nt_test_random(&state) % 20 == 0 ? move : 0.0;
            values[i] = (uint64_t)at;
        }
        const nt_trend found = nt_series_look(t, values, 400);
        NT_CHECK(found.jump_count <= NT_TREND_MOST_JUMPS);
        NT_CHECK(found.score == found.score);
    }
}

NT_TEST(bursts_are_bridged)
{
    uint64_t values[80];
    nt_series_make(values, 80, 0.3, 2e6, 0.0, 11);
    for (size_t i = 7; i < 80; i += 12) {
        values[i] += UINT64_C(1) << 30;
    }
    const nt_trend found = nt_series_look(t, values, 80);
    /* The seventh is at the end, where nothing shows that it goes. */
    NT_CHECK_UINT(found.bursts, 6);
    NT_CHECK(found.score < 2.3 && found.score > -2.3);
}

NT_TEST(sawtooth_is_told_from_growth)
{
    uint64_t values[100];
    for (size_t i = 0; i < 100; i++) {
        values[i] = NT_SERIES_LEVEL + (UINT64_C(1) << 26) * (i % 20);
    }
    const nt_trend found = nt_series_look(t, values, 100);
    NT_CHECK_UINT(found.teeth, 4);
    NT_CHECK(found.tooth == 19.0 * (double)(UINT64_C(1) << 26));
    NT_CHECK(found.tooth_slope == (double)(UINT64_C(1) << 26));
    NT_CHECK(found.score == 0.0 && found.slope == 0.0);
    for (size_t i = 0; i < 100; i++) {
        values[i] += (UINT64_C(1) << 24) * i;
    }
    const nt_trend leaking = nt_series_look(t, values, 100);
    NT_CHECK(leaking.teeth >= 3);
    NT_CHECK(leaking.score > 2.6);
    NT_CHECK(leaking.slope > 0.9 * (1 << 24) && leaking.slope < 1.1 * (1 << 24));
}

NT_TEST(noise_seldom_looks_like_growth)
{
    static const double memories[] = {0.0, 0.5, 0.9};
    uint64_t values[60];
    for (size_t k = 0; k < sizeof memories / sizeof *memories; k++) {
        size_t alarms = 0, found = 0;
        for (uint64_t seed = 1; seed <= 300; seed++) {
            nt_series_make(values, 60, memories[k], 0.003 * (double)NT_SERIES_LEVEL,
                           0.0, seed);
            alarms += nt_series_look(t, values, 60).grows;
            nt_series_make(values, 60, memories[k], 0.003 * (double)NT_SERIES_LEVEL,
                           0.001 * (double)NT_SERIES_LEVEL, seed);
            found += nt_series_look(t, values, 60).grows;
        }
        /* One in a hundred, and four more for chance; 97 in a hundred. What remembers
         * 0.9 for so short rises no further than one walk of 200 does: 80 there.
         */
        const size_t least = memories[k] < 0.9 ? 291 : 240;
        if (alarms > 7 || found < least) {
            NT_FAIL("memory %g: %zu of 300 false, %zu of 300 found", memories[k],
                    alarms, found);
        }
    }
}

NT_TEST(long_series_are_put_in_bins)
{
    static uint64_t values[TREND_MOST];
    nt_series_make(values, TREND_MOST, 0.0, 2e6, 1000.0, 5);
    const nt_trend found = nt_series_look(t, values, TREND_MOST);
    NT_CHECK_UINT(found.bin, 3);
    NT_CHECK_UINT(found.points * found.bin + found.warmup, TREND_MOST);
    NT_CHECK(found.slope > 850.0 && found.slope < 1150.0);
    NT_CHECK(found.low < found.slope && found.slope < found.high);
    NT_CHECK(found.grows);
    NT_CHECK(found.score > 5.0);
}

NT_TEST(extreme_values_give_finite_figures)
{
    uint64_t values[64], seed = 9;
    for (size_t round = 0; round < 200; round++) {
        const size_t count = 1 + nt_test_random(&seed) % 64;
        for (size_t i = 0; i < count; i++) {
            const uint64_t kind = nt_test_random(&seed) % 4;
            values[i] = kind == 0   ? 0
                        : kind == 1 ? UINT64_MAX
                                    : nt_test_random(&seed) >> (kind == 2 ? 0 : 50);
        }
        const nt_trend found = nt_series_look(t, values, count);
        /* A number that is none differs from itself; infinity less itself is none. */
        const double all[] = {found.slope, found.low,        found.high,  found.score,
                              found.level, found.last,       found.noise, found.memory,
                              found.tooth, found.tooth_slope};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            if (all[i] - all[i] != 0.0) {
                NT_FAIL("round %zu: figure %zu is %g", round, i, all[i]);
            }
        }
        NT_CHECK(found.low <= found.slope && found.slope <= found.high);
        NT_CHECK(found.points >= 1 && found.points <= count);
        NT_CHECK(found.memory >= 0.0 && found.memory < 1.0);
    }
}

NT_TEST(floors_are_the_least_values)
{
    const uint64_t values[] = {5, 3, 9, 8, 7, 2, 4};
    const uint64_t starts[] = {1, 2, 5};
    uint64_t floors[3] = {0};
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(nt_trend_floors(values, 7, starts, 3, floors, &err), &err));
    NT_CHECK_UINT(floors[0], 3);
    NT_CHECK_UINT(floors[1], 7);
    NT_CHECK_UINT(floors[2], 2);
    const uint64_t falling[] = {2, 1}, beyond[] = {0, 7};
    NT_CHECK_STATUS(nt_trend_floors(values, 7, falling, 2, floors, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK_STATUS(nt_trend_floors(values, 7, beyond, 2, floors, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK_UINT(floors[0], 3);
}

NT_TEST(highs_are_the_largest_values)
{
    const uint64_t values[] = {5, 3, 9, 8, 7, 2, 4};
    const uint64_t starts[] = {1, 2, 5};
    uint64_t highs[3] = {0};
    nt_error err = {0};
    NT_REQUIRE(NT_CHECK_OK(nt_trend_highs(values, 7, starts, 3, highs, &err), &err));
    NT_CHECK_UINT(highs[0], 3);
    NT_CHECK_UINT(highs[1], 9);
    NT_CHECK_UINT(highs[2], 4);
    const uint64_t falling[] = {2, 1}, beyond[] = {0, 7};
    NT_CHECK_STATUS(nt_trend_highs(values, 7, falling, 2, highs, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK_STATUS(nt_trend_highs(values, 7, beyond, 2, highs, &err), NT_ARGUMENT,
                    &err);
    NT_CHECK_UINT(highs[0], 3);
}

NT_TEST(empty_series_is_refused)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_trend found = {.points = 77};
    nt_error err = {0};
    NT_CHECK_STATUS(nt_trend_find(&alloc, NULL, 0, true, false, &found, &err),
                    NT_ARGUMENT, &err);
    NT_CHECK_UINT(found.points, 77);
}

NT_TEST(what_rests_between_its_rises_is_no_garbage)
{
    /* Of 20 steps the last `busy` rise by 64 MiB each, and then all of it goes. */
    for (size_t busy = 4; busy <= 19; busy += 5) {
        uint64_t values[160];
        nt_series_make(values, 160, 0.0, 1e5, 0.0, busy);
        for (size_t i = 0; i < 160; i++) {
            const size_t at = i % 20, first = 20 - busy;
            values[i] += at < first ? 0 : (UINT64_C(1) << 26) * (at - first + 1);
        }
        const nt_trend found = nt_series_look(t, values, 160);
        NT_CHECK((found.teeth >= 2) == (busy > 9));
        NT_CHECK(found.grows == false);
    }
}

/* Hills of `period` steps, as high as `height` bytes, their feet at 0. */
/* A level in noise with rises of 32 MiB, each six steps in the mean. */
static void
trend_bursts(uint64_t *values, size_t count, uint64_t seed)
{
    nt_series_make(values, count, 0.6, 2e6, 0.0, seed);
    uint64_t total = 40 * (UINT64_C(1) << 25);
    for (size_t i = 0; i < count; i++) {
        if (nt_test_random(&seed) % 6 == 0) {
            total += nt_test_random(&seed) % (UINT64_C(1) << 26);
        }
        values[i] += total;
    }
}

NT_TEST(rare_rises_are_growth)
{
    uint64_t values[200];
    size_t found = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        trend_bursts(values, 200, seed);
        const nt_trend rising = nt_series_look(t, values, 200);
        found += rising.grows && !rising.is_levelling;
    }
    if (found < 194) {
        NT_FAIL("%zu of 200 found", found);
    }
}

NT_TEST(what_is_in_doubt_is_said_to_be)
{
    uint64_t values[300];
    size_t proved = 0, doubted = 0, both = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        /* A walk that goes up by a sixth of its changes. */
        nt_series_make(values, 300, 1.0, 6e6, 1e6, seed);
        const nt_trend found = nt_series_look(t, values, 300);
        proved += found.grows;
        doubted += found.is_in_doubt;
        both += found.is_in_doubt && found.grows;
        nt_series_make(values, 300, 0.3, 6e6, 0.0, seed);
        NT_CHECK(!nt_series_look(t, values, 300).is_in_doubt);
    }
    NT_CHECK_UINT(both, 0);
    /* Four of five are one or the other, and a quarter is more than chance. */
    if (proved < 50 || proved + doubted < 160) {
        NT_FAIL("%zu of 200 proved, %zu in doubt", proved, doubted);
    }
}

NT_TEST(leak_far_below_what_came_up_at_once_is_growth)
{
    /* A first step loads the model; every tenth step leaves more, so that the second
     * point is off the line by a little. */
    uint64_t values[40] = {10000000, 100000000};
    for (size_t i = 2; i < 40; i++) {
        values[i] = values[i - 1] + (i % 10 == 0 ? 120000 : 40000);
    }
    const nt_trend found = nt_series_look(t, values, 40);
    NT_CHECK(found.grows);
    NT_CHECK(!found.is_levelling);
}

NT_TEST(leaks_that_begin_late_are_growth)
{
    uint64_t values[200];
    size_t found = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        nt_series_make(values, 200, 0.6, 2e6, 0.0, seed);
        for (size_t i = 80; i < 200; i++) {
            values[i] += 20000000 + 500000 * (i - 80);
        }
        found += nt_series_look(t, values, 200).grows;
    }
    if (found < 170) {
        NT_FAIL("%zu of 200 found", found);
    }
}

NT_TEST(what_is_taken_again_at_once_is_no_saw_tooth)
{
    uint64_t values[240];
    /* Gradients of sixteen micro-batches, and a loss kept of each until they are used.
     */
    for (size_t i = 0; i < 240; i++) {
        const uint64_t turn = i % 16;
        values[i] =
            NT_SERIES_LEVEL + (turn > 0 ? UINT64_C(100) << 20 : 0) + (turn << 23);
    }
    NT_CHECK_UINT(nt_series_look(t, values, 240).teeth, 0);
    /* What each step leaves alone is one. */
    for (size_t i = 0; i < 240; i++) {
        values[i] = NT_SERIES_LEVEL + ((i % 16) << 23);
    }
    NT_CHECK(nt_series_look(t, values, 240).teeth > 10);
}

NT_TEST(pauses_are_no_slowing)
{
    uint64_t values[240];
    for (size_t pause = 6; pause <= 20; pause++) {
        uint64_t held = NT_SERIES_LEVEL;
        for (size_t i = 0; i < 240; i++) {
            held += i % (20 + pause) < 20 ? UINT64_C(1) << 23 : 0;
            values[i] = held;
        }
        const nt_trend found = nt_series_look(t, values, 240);
        if (!found.grows || found.is_levelling) {
            NT_FAIL("with pauses of %zu the score is %g", pause, found.score);
        }
    }
}

NT_TEST(windows_may_fall_slowly)
{
    const nt_alloc alloc = nt_alloc_system();
    uint64_t values[201];
    nt_trend found = {0};
    nt_error err = {0};
    for (size_t i = 0; i < 201; i++) {
        const uint64_t at = i % 40;
        values[i] = NT_SERIES_LEVEL + (UINT64_C(1) << 26) * (at < 20 ? at : 40 - at);
    }
    (void)NT_CHECK_OK(nt_trend_find(&alloc, values, 201, true, true, &found, &err),
                      &err);
    NT_CHECK(found.teeth >= 4);
    NT_CHECK_UINT(nt_series_look(t, values, 201).teeth, 0);
}

static nt_status
trend_sweep(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    uint64_t values[40];
    nt_series_make(values, 40, 0.5, 2e6, 1e6, 1);
    nt_trend found = {.points = 77};
    nt_error err = {0};
    const nt_status status =
        nt_trend_find(alloc, values, 40, true, false, &found, &err);
    NT_CHECK((status == NT_OK) == (found.points != 77));
    return status;
}

NT_TEST(trend_survives_every_refused_allocation)
{
    nt_test_sweep(t, trend_sweep, NULL);
}

const nt_test_case nt_trend_tests[] = {
    NT_CASE(constant_series_does_not_grow),
    NT_CASE(straight_line_has_its_slope),
    NT_CASE(falling_series_scores_below_zero),
    NT_CASE(warmup_is_set_aside),
    NT_CASE(growth_that_ends_is_warmup),
    NT_CASE(one_jump_is_no_growth),
    NT_CASE(many_equal_jumps_are_growth),
    NT_CASE(as_many_cuts_as_there_is_room_for_are_borne),
    NT_CASE(bursts_are_bridged),
    NT_CASE(sawtooth_is_told_from_growth),
    NT_CASE(noise_seldom_looks_like_growth),
    NT_CASE(long_series_are_put_in_bins),
    NT_CASE(extreme_values_give_finite_figures),
    NT_CASE(what_rests_between_its_rises_is_no_garbage),
    NT_CASE(rare_rises_are_growth),
    NT_CASE(what_is_in_doubt_is_said_to_be),
    NT_CASE(leak_far_below_what_came_up_at_once_is_growth),
    NT_CASE(leaks_that_begin_late_are_growth),
    NT_CASE(what_is_taken_again_at_once_is_no_saw_tooth),
    NT_CASE(pauses_are_no_slowing),
    NT_CASE(windows_may_fall_slowly),
    NT_CASE(floors_are_the_least_values),
    NT_CASE(highs_are_the_largest_values),
    NT_CASE(empty_series_is_refused),
    NT_CASE(trend_survives_every_refused_allocation),
    NT_CASES_END,
};
