/* SPDX-License-Identifier: Apache-2.0 */
/* Searching what is sorted, near where it is expected. */
#ifndef NT_SEARCH_H
#define NT_SEARCH_H

#include "base/nt_base.h"

/* Raises `low` to the first index for which `is_before`, an expression in `middle`, is
 * false, or to `high`, if it is true for all. Behind an index for which it is false it
 * is false too. */
#define NT_BISECT(low, high, middle, is_before)                                        \
    do {                                                                               \
        while ((low) < (high)) {                                                       \
            const size_t middle = (low) + ((high) - (low)) / 2;                        \
            if (is_before) {                                                           \
                (low) = middle + 1;                                                    \
            } else {                                                                   \
                (high) = middle;                                                       \
            }                                                                          \
        }                                                                              \
    } while (0)

/* Numbers that never fall: in 32 bits each where none needs more, and `wide` is NULL.
 */
typedef struct nt_rising {
    const uint64_t *wide;
    const uint32_t *narrow;
} nt_rising;

static inline uint64_t
nt_rising_at(nt_rising values, size_t i)
{
    return values.wide != NULL ? values.wide[i] : values.narrow[i];
}

/* The first i of low .. high - 1 with values[i] >= `value`, or `high`. It looks around
 * low + `ahead` first and goes out from there in growing steps: a search by halves
 * reads a page of memory at nearly every step, and each of them may be one that the
 * processor has no address of. */
static inline size_t
nt_search_ahead(nt_rising values, size_t low, size_t high, uint64_t value, size_t ahead)
{
    size_t step = 16;
    if (low < high) {
        const size_t guess = ahead < high - low ? low + ahead : high - 1;
        if (nt_rising_at(values, guess) < value) {
            for (low = guess + 1;
                 high - low > step && nt_rising_at(values, low + step) < value;
                 step *= 4) {
                low += step + 1;
            }
            high = high - low > step ? low + step : high;
        } else {
            for (high = guess;
                 high - low > step && nt_rising_at(values, high - step) >= value;
                 step *= 4) {
                high -= step;
            }
            low = high - low > step ? high - step + 1 : low;
        }
    }
    NT_BISECT(low, high, middle, nt_rising_at(values, middle) < value);
    return low;
}

#endif
