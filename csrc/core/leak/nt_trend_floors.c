/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_trend.h"

static nt_status
trend_check_starts(const uint64_t *starts, size_t steps, size_t count, nt_error *err)
{
    for (size_t k = 0; k < steps; k++) {
        if (starts[k] >= count || (k > 0 && starts[k] <= starts[k - 1])) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                           "step %zu begins at %llu: the beginnings rise, and the "
                           "series has %zu values",
                           k, (unsigned long long)starts[k], count);
        }
    }
    return NT_OK;
}

/* The most or the least value of each step, into `found`. */
static nt_status
trend_extremes(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, bool most, uint64_t *found, nt_error *err)
{
    NT_TRY(trend_check_starts(starts, steps, count, err));
    for (size_t k = 0; k < steps; k++) {
        const size_t end = k + 1 < steps ? (size_t)starts[k + 1] : count;
        uint64_t best = values[starts[k]];
        for (size_t i = (size_t)starts[k]; i < end; i++) {
            best = (most ? values[i] > best : values[i] < best) ? values[i] : best;
        }
        found[k] = best;
    }
    return NT_OK;
}

nt_status
nt_trend_floors(const uint64_t *values, size_t count, const uint64_t *starts,
                size_t steps, uint64_t *floors, nt_error *err)
{
    return trend_extremes(values, count, starts, steps, false, floors, err);
}

nt_status
nt_trend_highs(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, uint64_t *highs, nt_error *err)
{
    return trend_extremes(values, count, starts, steps, true, highs, err);
}
