/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_series.h"

nt_trend
nt_series_look(nt_test *t, const uint64_t *values, size_t count)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_trend found = {0};
    nt_error err = {0};
    (void)NT_CHECK_OK(nt_trend_find(&alloc, values, count, true, false, &found, &err),
                      &err);
    return found;
}

double
nt_series_noise(uint64_t *seed)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        sum += (double)(nt_test_random(seed) >> 11) / (double)(UINT64_C(1) << 53);
    }
    return sum;
}

void
nt_series_make(uint64_t *values, size_t count, double memory, double noise,
               double slope, uint64_t seed)
{
    double at = 2.0 * noise * nt_series_noise(&seed);
    for (size_t i = 0; i < count; i++) {
        at = memory * at + noise * nt_series_noise(&seed);
        values[i] = (uint64_t)((double)NT_SERIES_LEVEL + at + slope * (double)i);
    }
}
