/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "leak/nt_trend_parts.h"
#include "nt_series.h"
#include "nt_test.h"

NT_TEST(trees_and_knots_are_whole)
{
    NT_CHECK(nt_trend_tree_count > 0);
    for (size_t k = 0; k < nt_trend_tree_count; k++) {
        for (size_t i = 0; i < 3; i++) {
            NT_CHECK(nt_trend_trees[k].figure[i] < NT_TREND_FIGURES);
        }
    }
    NT_CHECK(nt_trend_knot_count >= 2);
    for (size_t k = 1; k < nt_trend_knot_count; k++) {
        NT_CHECK(nt_trend_knots[k].odds > nt_trend_knots[k - 1].odds);
        NT_CHECK(nt_trend_knots[k].deviate > nt_trend_knots[k - 1].deviate);
    }
}

NT_TEST(more_of_what_speaks_for_growth_never_speaks_against_it)
{
    static const int rising[] = {
        NT_TREND_SCORE,     NT_TREND_MEDIANS,     NT_TREND_FLOORS,
        NT_TREND_LINE,      NT_TREND_LATE_FLOORS, NT_TREND_DRIFT,
        NT_TREND_BARE_LINE, NT_TREND_BARE_DRIFT,  NT_TREND_HINGE_RISE,
    };
    uint64_t values[200];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        nt_series_make(values, 200, 0.8, 2e6, seed % 2 == 0 ? 2e5 : 0.0, seed);
        const nt_trend found = nt_series_look(t, values, 200);
        for (size_t k = 0; k < sizeof rising / sizeof *rising; k++) {
            double figures[NT_TREND_FIGURES];
            memcpy(figures, found.figures, sizeof figures);
            double before = -50.0;
            for (double at = -10.0; at <= 50.0; at += 0.5) {
                figures[rising[k]] = at;
                const double deviate = nt_trend_weigh(figures);
                NT_CHECK(deviate >= before);
                before = deviate;
            }
        }
    }
}

NT_TEST(figures_of_what_is_exact_end_at_fifty)
{
    uint64_t values[40];
    for (size_t i = 0; i < 40; i++) {
        values[i] = NT_SERIES_LEVEL + ((uint64_t)i << 40);
    }
    const nt_trend found = nt_series_look(t, values, 40);
    NT_CHECK(found.score > 2.748);
    for (size_t k = 0; k < NT_TREND_FIGURES; k++) {
        NT_CHECK(found.figures[k] >= -50.0 && found.figures[k] <= 50.0);
        NT_CHECK(nt_trend_figure_names[k] != NULL);
    }
}

NT_TEST(floors_are_of_the_least_values_of_parts)
{
    uint64_t values[240];
    uint64_t seed = 1;
    for (size_t i = 0; i < 240; i++) {
        const uint64_t rise = 100000 * i;
        values[i] =
            NT_SERIES_LEVEL + (nt_test_random(&seed) % 2 == 0 ? rise : 900000000);
    }
    const nt_trend rising = nt_series_look(t, values, 240);
    const double *figures = rising.figures;
    /* Of twelve values that all rise: 66 pairs over their deviation. */
    NT_CHECK(figures[NT_TREND_FLOORS] > 4.5 && figures[NT_TREND_FLOORS] < 4.6);
    NT_CHECK(figures[NT_TREND_LATE_FLOORS] > 4.5);
    for (size_t i = 0; i < 240; i++) {
        values[i] = 2 * NT_SERIES_LEVEL - values[i];
    }
    NT_CHECK(nt_series_look(t, values, 240).figures[NT_TREND_FLOORS] < 3.0);
}

NT_TEST(figures_are_of_the_whole_where_what_is_behind_a_jump_grows)
{
    uint64_t values[200];
    size_t parts = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        nt_series_make(values, 200, 0.8, 2e6, 0.0, seed);
        for (size_t i = 80; i < 200; i++) {
            values[i] -= 900000000 - 500000 * (i - 80);
        }
        const nt_trend found = nt_series_look(t, values, 200);
        parts += found.warmup == 80 && found.jump_count == 0;
        NT_CHECK(found.figures[NT_TREND_JUMPS] >= 1.0);
        NT_CHECK(found.figures[NT_TREND_JUMP_SHARE] > 0.5);
    }
    NT_CHECK(parts > 0);
}

const nt_test_case nt_trend_figures_tests[] = {
    NT_CASE(trees_and_knots_are_whole),
    NT_CASE(more_of_what_speaks_for_growth_never_speaks_against_it),
    NT_CASE(figures_of_what_is_exact_end_at_fifty),
    NT_CASE(floors_are_of_the_least_values_of_parts),
    NT_CASE(figures_are_of_the_whole_where_what_is_behind_a_jump_grows),
    NT_CASES_END,
};
