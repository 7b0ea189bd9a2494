/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend_parts.h"

/* What the trees make of the figures: the logarithm of the odds that they are of a
 * series that keeps growing, in sets where every other kind does. */
static double
weigh_odds(const double *figures)
{
    double odds = 0.0;
    for (size_t k = 0; k < nt_trend_tree_count; k++) {
        const nt_trend_tree *tree = &nt_trend_trees[k];
        const bool above = figures[tree->figure[0]] > tree->at[0];
        const size_t branch = above ? 2 : 1;
        const bool beyond = figures[tree->figure[branch]] > tree->at[branch];
        odds += tree->odds[2 * (branch - 1) + (beyond ? 1 : 0)];
    }
    return odds;
}

double
nt_trend_weigh(const double *figures)
{
    const nt_trend_knot *knots = nt_trend_knots;
    const double odds = weigh_odds(figures);
    size_t k = 1;
    while (k + 1 < nt_trend_knot_count && odds > knots[k].odds) {
        k++;
    }
    const double rise =
        (knots[k].deviate - knots[k - 1].deviate) / (knots[k].odds - knots[k - 1].odds);
    const double deviate = knots[k - 1].deviate + rise * (odds - knots[k - 1].odds);
    const double least = knots[0].deviate;
    return deviate < least ? least : deviate;
}
