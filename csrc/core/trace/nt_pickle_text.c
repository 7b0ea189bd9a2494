/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes of protocol 0, whose argument is a line of text. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/nt_utf8.h"
#include "trace/nt_pickle.h"
#include "trace/nt_pickle_machine.h"

/* Longer than any number that fits 64 bits or any float that Python writes. */
#define TEXT_MOST_NUMBER 64

/* The line at source->next without its newline, consumed. */
static nt_status
text_line(nt_pickle *p, const uint8_t **line, size_t *length)
{
    size_t scanned = 0;
    for (;;) {
        const size_t at_hand = (size_t)(p->limit - p->source->next);
        const uint8_t *end = at_hand == scanned ? NULL
                                                : memchr(p->source->next + scanned,
                                                         '\n', at_hand - scanned);
        if (end != NULL) {
            *line = p->source->next;
            *length = (size_t)(end - p->source->next);
            p->source->next = end + 1;
            return NT_OK;
        }
        scanned = at_hand;
        NT_TRY(nt_pickle_need(p, (uint64_t)at_hand + 1));
    }
}

/* A decimal number, with or without sign; `fits` as in nt_values_integer. */
static bool
text_decimal(const uint8_t *digits, size_t length, uint64_t *bits, bool *negative,
             bool *fits)
{
    size_t i = 0;
    *negative = length != 0 && digits[0] == '-';
    i += length != 0 && (digits[0] == '-' || digits[0] == '+');
    if (i == length) {
        return false;
    }
    uint64_t magnitude = 0;
    *fits = true;
    for (; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return false;
        }
        const uint64_t digit = (uint64_t)(digits[i] - '0');
        if (magnitude > (UINT64_MAX - digit) / 10) {
            *fits = false;
        }
        magnitude = magnitude * 10 + digit;
    }
    if (*negative && magnitude > (uint64_t)1 << 63) {
        *fits = false;
    }
    *bits = *negative ? 0 - magnitude : magnitude;
    *negative = *negative && magnitude != 0;
    return true;
}

/* INT: a number, or 00 and 01 for the booleans. LONG: a number and an L. */
static nt_status
text_integer(nt_pickle *p, const uint8_t *line, size_t length, bool is_long)
{
    if (!is_long && length == 2 && line[0] == '0' &&
        (line[1] == '0' || line[1] == '1')) {
        return nt_pickle_push(p, nt_value_make(NT_VALUE_BOOL, line[1] == '1'));
    }
    if (is_long && length != 0 && line[length - 1] == 'L') {
        length--;
    }
    uint64_t bits;
    bool negative, fits;
    if (!text_decimal(line, length, &bits, &negative, &fits)) {
        return nt_pickle_malformed(p, "a line of text is no integer");
    }
    nt_value value;
    NT_TRY(nt_values_integer(p->values, bits, negative, fits, &value, p->err));
    return nt_pickle_push(p, value);
}

static nt_status
text_float(nt_pickle *p, const uint8_t *line, size_t length)
{
    char text[TEXT_MOST_NUMBER];
    if (length == 0 || length >= sizeof text || line[0] == ' ') {
        return nt_pickle_malformed(p, "a line of text is no float");
    }
    memcpy(text, line, length);
    text[length] = '\0';
    /* strtod wants the decimal point of the process's locale. */
    char *point = strchr(text, '.');
    if (point != NULL) {
        *point = localeconv()->decimal_point[0];
    }
    char *end;
    const double real = strtod(text, &end);
    if (end != text + length) {
        return nt_pickle_malformed(p, "a line of text is no float");
    }
    nt_value value;
    NT_TRY(nt_values_float(p->values, real, &value, p->err));
    return nt_pickle_push(p, value);
}

/* The value of `count` hexadecimal digits; false if there are other characters. */
static bool
text_hexadecimal(const uint8_t *digits, size_t count, uint32_t *out)
{
    uint32_t value = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t c = digits[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return false;
        }
        value = value << 4 | (uint32_t)digit;
    }
    *out = value;
    return true;
}

/*
 * One code point of Python's raw-unicode-escape at line[*at]: \uXXXX, \UXXXXXXXX
 * or a Latin-1 byte.
 */
static bool
text_code_point(const uint8_t *line, size_t length, size_t *at, uint32_t *point)
{
    const size_t left = length - *at;
    const uint8_t next = left > 1 ? line[*at + 1] : 0;
    if (line[*at] != '\\' || (next != 'u' && next != 'U')) {
        *point = line[(*at)++];
        return true;
    }
    const size_t digits = next == 'u' ? 4 : 8;
    if (left < 2 + digits || !text_hexadecimal(line + *at + 2, digits, point) ||
        *point > 0x10ffff) {
        return false;
    }
    *at += 2 + digits;
    return true;
}

static nt_status
text_unicode(nt_pickle *p, const uint8_t *line, size_t length)
{
    size_t size;
    if (!nt_size_mul(length + 1, 2, &size)) {
        return nt_fail_nomem(p->err);
    }
    /* A Latin-1 byte becomes two bytes at most, an escape of six becomes three. */
    uint8_t *utf8 = nt_allocate(&p->alloc, size);
    if (utf8 == NULL) {
        return nt_fail_nomem(p->err);
    }
    nt_status status = NT_OK;
    size_t written = 0;
    for (size_t at = 0; at < length && status == NT_OK;) {
        uint32_t point;
        if (text_code_point(line, length, &at, &point)) {
            written += nt_utf8_put(utf8 + written, point);
        } else {
            status = nt_pickle_malformed(p, "a line of text has a broken \\u escape");
        }
    }
    nt_value value = NT_VALUE_ABSENT;
    if (status == NT_OK) {
        status = nt_pickle_string(p, utf8, written, &value);
    }
    nt_release(&p->alloc, utf8, size);
    return status == NT_OK ? nt_pickle_push(p, value) : status;
}

/* GET and PUT: a memo index in decimal. */
static nt_status
text_memo(nt_pickle *p, const uint8_t *line, size_t length, bool put)
{
    uint64_t index;
    bool negative, fits;
    if (!text_decimal(line, length, &index, &negative, &fits) || negative || !fits) {
        return nt_pickle_malformed(p, "a line of text is no memo index");
    }
    return put ? nt_pickle_memoize(p, index) : nt_pickle_fetch(p, index);
}

nt_status
nt_pickle_text_opcode(nt_pickle *p, uint8_t opcode)
{
    const uint8_t *line;
    size_t length;
    NT_TRY(text_line(p, &line, &length));
    switch (opcode) {
    case OP_INT: return text_integer(p, line, length, false);
    case OP_LONG: return text_integer(p, line, length, true);
    case OP_FLOAT: return text_float(p, line, length);
    case OP_UNICODE: return text_unicode(p, line, length);
    case OP_GET: return text_memo(p, line, length, false);
    default: return text_memo(p, line, length, true);
    }
}
