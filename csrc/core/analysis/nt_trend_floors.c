/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/nt_trend.h"

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

nt_status
nt_trend_floors(const uint64_t *values, size_t count, const uint64_t *starts,
                size_t steps, uint64_t *floors, nt_error *err)
{
    NT_TRY(trend_check_starts(starts, steps, count, err));
    for (size_t k = 0; k < steps; k++) {
        const size_t end = k + 1 < steps ? (size_t)starts[k + 1] : count;
        uint64_t least = values[starts[k]];
        for (size_t i = (size_t)starts[k]; i < end; i++) {
            least = values[i] < least ? values[i] : least;
        }
        floors[k] = least;
    }
    return NT_OK;
}

nt_status
nt_trend_highs(const uint64_t *values, size_t count, const uint64_t *starts,
               size_t steps, uint64_t *highs, nt_error *err)
{
    NT_TRY(trend_check_starts(starts, steps, count, err));
    for (size_t k = 0; k < steps; k++) {
        const size_t end = k + 1 < steps ? (size_t)starts[k + 1] : count;
        uint64_t most = values[starts[k]];
        for (size_t i = (size_t)starts[k]; i < end; i++) {
            most = values[i] > most ? values[i] : most;
        }
        highs[k] = most;
    }
    return NT_OK;
}
