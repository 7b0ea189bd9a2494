/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_planes.h"

/* The number that is stored for value `at`. */
static inline int64_t
planes_stored(const int64_t *values, size_t at, const nt_planes_form *form)
{
    const int64_t here = values[at] / form->scale;
    return form->delta && at != 0 ? here - values[at - 1] / form->scale : here;
}

static bool
planes_fit(int64_t least, int64_t largest, unsigned width, bool is_signed)
{
    const unsigned bits = 8 * width;
    if (is_signed) {
        const int64_t end = (int64_t)1 << (bits - 1);
        return least >= -end && largest < end;
    }
    return least >= 0 && largest >> bits == 0;
}

/* The narrowest form that holds stored numbers from `least` to `largest`. */
static void
planes_narrow(int64_t least, int64_t largest, nt_planes_form *form)
{
    for (unsigned width = 1; width <= 4; width *= 2) {
        form->width = (uint8_t)width;
        form->is_signed = !planes_fit(least, largest, width, false);
        if (!form->is_signed || planes_fit(least, largest, width, true)) {
            return;
        }
    }
    form->width = 8;
    form->is_signed = true;
}

nt_status
nt_planes_measure(const int64_t *values, size_t count, bool delta, bool grained,
                  nt_planes_form *out, nt_error *err)
{
    const int64_t most = (int64_t)1 << 53;
    int64_t least = count == 0 ? 0 : values[0], largest = least;
    uint64_t bits = 0;
    for (size_t i = 0; i < count; i++) {
        least = values[i] < least ? values[i] : least;
        largest = values[i] > largest ? values[i] : largest;
        bits |= (uint64_t)values[i];
    }
    if (largest >= most || least <= -most || (delta && largest - least >= most)) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET,
                       "a number, or a difference, of more than 53 bits");
    }
    const bool divides = grained && bits % NT_PLANES_GRAIN == 0;
    nt_planes_form form = {
        .delta = delta,
        .scale = divides ? NT_PLANES_GRAIN : 1,
        .needs_float = least < INT32_MIN || largest > INT32_MAX,
    };
    int64_t low = 0, high = 0;
    for (size_t i = 0; i < count; i++) {
        const int64_t stored = planes_stored(values, i, &form);
        low = stored < low ? stored : low;
        high = stored > high ? stored : high;
    }
    planes_narrow(low, high, &form);
    *out = form;
    return NT_OK;
}

void
nt_planes_write(const int64_t *values, size_t count, const nt_planes_form *form,
                uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t stored = (uint64_t)planes_stored(values, i, form);
        for (size_t plane = 0; plane < form->width; plane++) {
            out[plane * count + i] = (uint8_t)stored;
            stored >>= 8;
        }
    }
}
