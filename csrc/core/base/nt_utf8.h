/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as Python's pickles hold it: surrogates are allowed, because that is how Python
 * writes names that are not text. */
#ifndef NT_UTF8_H
#define NT_UTF8_H

#include "base/nt_base.h"

/* Whether `length` bytes are well-formed: no overlong form, none above U+10FFFF. */
bool
nt_utf8_check(const uint8_t *bytes, size_t length);

/* Writes `point` (at most U+10FFFF) to `out`, which has four bytes; their number. */
size_t
nt_utf8_put(uint8_t *out, uint32_t point);

#endif
