/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns of integers in few bytes. Numbers are as narrow as their values allow, and
 * are stored by planes, which deflate better than numbers side by side: first the
 * lowest bytes of all numbers, then the next ones.
 */
#ifndef NT_PLANES_H
#define NT_PLANES_H

#include "base/nt_base.h"

/* The grain of the allocator: addresses and sizes of blocks are multiples of it. */
#define NT_PLANES_GRAIN 512

/* How a column is stored. */
typedef struct nt_planes_form {
    bool delta;       /* each number as the difference to the one before it */
    uint32_t scale;   /* numbers are divided by it first */
    uint8_t width;    /* bytes of a stored number: 1, 2, 4 or 8 */
    bool is_signed;   /* of stored numbers; those of 8 bytes are */
    bool needs_float; /* some number itself needs more than 32 bits with its sign */
} nt_planes_form;

/*
 * Finds the form of `count` values; grained ones are divided by NT_PLANES_GRAIN if that
 * divides them all. NT_LIMIT where a value, or a difference that would be stored, has
 * more than the 53 bits that a double holds.
 */
nt_status
nt_planes_measure(const int64_t *values, size_t count, bool delta, bool grained,
                  nt_planes_form *out, nt_error *err) NT_CHECKED;

/* Writes the planes: count * form->width bytes. */
void
nt_planes_write(const int64_t *values, size_t count, const nt_planes_form *form,
                uint8_t *out);

#endif
