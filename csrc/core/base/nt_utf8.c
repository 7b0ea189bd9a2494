/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_utf8.h"

#include <string.h>

/* The number of a UTF-8 sequence's bytes at `at`, or 0 if it is none. Surrogates are
 * let through: that is how Python writes names that are no text. */
static size_t
utf8_length(const uint8_t *at, size_t left)
{
    const uint8_t lead = at[0];
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    if (length == 0 || length > left) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* Overlong forms, and code points above U+10FFFF. */
    if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xf0 && at[1] < 0x90) ||
        (lead == 0xf4 && at[1] >= 0x90)) {
        return 0;
    }
    return length;
}

bool
nt_utf8_check(const uint8_t *bytes, size_t length)
{
    size_t i = 0;
    while (i < length) {
        uint64_t word;
        if (length - i >= 8) {
            memcpy(&word, bytes + i, 8);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                i += 8;
                continue;
            }
        }
        const size_t step = utf8_length(bytes + i, length - i);
        if (step == 0) {
            return false;
        }
        i += step;
    }
    return true;
}

size_t
nt_utf8_put(uint8_t *out, uint32_t point)
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (uint8_t)(0xc0 | point >> 6);
        out[1] = (uint8_t)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (uint8_t)(0xe0 | point >> 12);
        out[1] = (uint8_t)(0x80 | (point >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | point >> 18);
    out[1] = (uint8_t)(0x80 | (point >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (point >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (point & 0x3f));
    return 4;
}
