/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Line tables of CPython's code objects. That of 3.10 is pairs of bytes: how far the
 * range goes, and the step of the line (-128: no line). From 3.11 on an entry is a byte
 * with the top bit set, its kind and its length in code units, and then bytes without
 * the top bit: the step of the line as a varint for some kinds, implied by the others.
 * A table that leaves the lines that CPython can have is damaged, and has no line.
 */
#include "trace/nt_live.h"

/* Kinds of entries from 3.11 on; below LINES_ONE_LINE the line does not step. */
enum {
    LINES_ONE_LINE = 10, /* 10, 11, 12: steps by 0, 1, 2 */
    LINES_NO_COLUMN = 13,
    LINES_LONG = 14,
    LINES_NONE = 15,
};

#define LINES_CODE_UNIT 2 /* bytes */

static int64_t
lines_find_310(const nt_ring_code *code, uint32_t lasti)
{
    int64_t line = code->first_line;
    uint64_t end = 0;
    for (uint32_t i = 0; i + 1 < code->line_bytes; i += 2) {
        const int step =
            code->lines[i + 1] < 128 ? code->lines[i + 1] : code->lines[i + 1] - 256;
        end += code->lines[i];
        line += step == -128 ? 0 : step;
        if (lasti < end) {
            return step == -128 ? -1 : line;
        }
    }
    return -1;
}

/* A signed varint at *i: six bits a byte, the lowest first, bit 6 says that more
 * follow, and the lowest bit of the whole is the sign. */
static int64_t
lines_read_step(const nt_ring_code *code, uint32_t *i)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *i < code->line_bytes && shift < 60; shift += 6) {
        const uint8_t byte = code->lines[(*i)++];
        value |= (uint64_t)(byte & 63) << shift;
        if ((byte & 64) == 0) {
            break;
        }
    }
    return (value & 1) != 0 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

static int64_t
lines_find_311(const nt_ring_code *code, uint32_t lasti)
{
    int64_t line = code->first_line;
    uint64_t end = 0;
    for (uint32_t i = 0; i < code->line_bytes;) {
        const uint8_t head = code->lines[i++];
        const int kind = head >> 3 & 15;
        if (kind == LINES_NO_COLUMN || kind == LINES_LONG) {
            line += lines_read_step(code, &i);
            if (line < INT32_MIN || line > INT32_MAX) {
                return -1;
            }
        } else if (kind >= LINES_ONE_LINE && kind < LINES_NO_COLUMN) {
            line += kind - LINES_ONE_LINE;
        }
        end += ((uint64_t)(head & 7) + 1) * LINES_CODE_UNIT;
        if (lasti < end) {
            return kind == LINES_NONE ? -1 : line;
        }
        while (i < code->line_bytes && (code->lines[i] & 128) == 0) {
            i++;
        }
    }
    return -1;
}

int64_t
nt_live_line(const nt_ring_code *code, uint32_t lasti)
{
    switch (code->format) {
    case NT_RING_LINES_310: return lines_find_310(code, lasti);
    case NT_RING_LINES_311: return lines_find_311(code, lasti);
    default: return code->first_line;
    }
}
