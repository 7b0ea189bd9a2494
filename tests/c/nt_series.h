/* SPDX-License-Identifier: Apache-2.0 */
/* Series of bytes, one a step, for the C tests of trends. */
#ifndef NT_SERIES_H
#define NT_SERIES_H

#include "leak/nt_trend.h"
#include "nt_test.h"

#define NT_SERIES_LEVEL (UINT64_C(8) << 30)

/* One look with the system's allocator; the case fails if it does. */
nt_trend
nt_series_look(nt_test *t, const uint64_t *values, size_t count);

/* Nearly normal noise of standard deviation 1: the sum of twelve equal numbers. */
double
nt_series_noise(uint64_t *seed);

/* The level with noise of `noise` bytes that remembers `memory`, growing by `slope`. */
void
nt_series_make(uint64_t *values, size_t count, double memory, double noise,
               double slope, uint64_t seed);

#endif
