/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_writer_opcodes.h"

enum {
    OP_PROTO = 0x80,
    OP_TUPLE2 = 0x86,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
};

static void
writer_emit(nt_writer_out *out, const void *bytes, size_t count)
{
    if (out->status == NT_OK && out->sink->write(out->sink->ctx, bytes, count) != 0) {
        out->status = nt_fail(out->err, NT_IO, NT_NO_OFFSET, "writing failed");
    }
}

/* Little-endian, as all of a pickle's numbers but floats are. */
static void
writer_store(uint8_t *at, uint64_t number, size_t width)
{
    for (size_t i = 0; i < width; i++) {
        at[i] = (uint8_t)(number >> 8 * i);
    }
}

void
nt_writer_flush(nt_writer_out *out)
{
    if (out->length == 0) {
        return;
    }
    uint8_t head[9] = {OP_FRAME};
    writer_store(head + 1, out->length, 8);
    writer_emit(out, head, sizeof head);
    writer_emit(out, out->frame, out->length);
    out->length = 0;
}

void
nt_writer_begin(nt_writer_out *out)
{
    const uint8_t proto[2] = {OP_PROTO, 4};
    writer_emit(out, proto, sizeof proto);
}

void
nt_writer_end(nt_writer_out *out)
{
    nt_writer_opcode(out, '.');
    nt_writer_flush(out);
}

/* An opcode with the low `width` bytes of `number`. */
static void
writer_number(nt_writer_out *out, uint8_t opcode, uint64_t number, size_t width)
{
    uint8_t *at = nt_writer_take(out, 1 + width);
    at[0] = opcode;
    writer_store(at + 1, number, width);
}

/* LONG1 with as few bytes as the two's complement needs: eight at most. */
static void
writer_long(nt_writer_out *out, int64_t number)
{
    size_t width = 8;
    while (width > 1 && number >= -(INT64_C(1) << (8 * width - 9)) &&
           number < INT64_C(1) << (8 * width - 9)) {
        width--;
    }
    uint8_t *at = nt_writer_take(out, 2 + width);
    at[0] = OP_LONG1;
    at[1] = (uint8_t)width;
    writer_store(at + 2, (uint64_t)number, width);
}

void
nt_writer_integer(nt_writer_out *out, int64_t number)
{
    const uint64_t bits = (uint64_t)number;
    if (bits <= UINT8_MAX) {
        writer_number(out, 'K', bits, 1);
    } else if (bits <= UINT16_MAX) {
        writer_number(out, 'M', bits, 2);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        writer_number(out, 'J', bits, 4);
    } else {
        writer_long(out, number);
    }
}

void
nt_writer_bool(nt_writer_out *out, bool value)
{
    nt_writer_opcode(out, value ? OP_NEWTRUE : OP_NEWFALSE);
}

void
nt_writer_none(nt_writer_out *out)
{
    nt_writer_opcode(out, 'N');
}

void
nt_writer_float(nt_writer_out *out, double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint8_t *at = nt_writer_take(out, 9);
    at[0] = 'G';
    for (size_t i = 0; i < 8; i++) {
        at[1 + i] = (uint8_t)(bits >> 8 * (7 - i));
    }
}

void
nt_writer_text(nt_writer_out *out, const char *text, size_t length)
{
    const bool is_short = length <= UINT8_MAX;
    const size_t width = is_short ? 1 : length <= UINT32_MAX ? 4 : 8;
    uint8_t head[9] = {is_short     ? OP_SHORT_BINUNICODE
                       : width == 4 ? (uint8_t)'X'
                                    : OP_BINUNICODE8};
    writer_store(head + 1, length, width);
    if (length <= NT_WRITER_FRAME - sizeof head) {
        uint8_t *at = nt_writer_take(out, 1 + width + length);
        memcpy(at, head, 1 + width);
        memcpy(at + 1 + width, text, length);
        return;
    }
    nt_writer_flush(out);
    writer_emit(out, head, 1 + width);
    writer_emit(out, text, length);
}

void
nt_writer_pair(nt_writer_out *out)
{
    nt_writer_opcode(out, OP_TUPLE2);
    nt_writer_memoize(out, NULL);
}

void
nt_writer_memoize(nt_writer_out *out, uint32_t *slot)
{
    nt_writer_opcode(out, OP_MEMOIZE);
    /* What has no index in 32 bits can't be fetched, and is written out again. */
    if (slot != NULL) {
        *slot = out->memoized;
    }
    out->memoized += out->memoized != NT_NONE;
}

bool
nt_writer_fetch(nt_writer_out *out, uint32_t slot)
{
    if (slot == NT_NONE) {
        return false;
    }
    if (slot <= UINT8_MAX) {
        writer_number(out, 'h', slot, 1);
    } else {
        writer_number(out, 'j', slot, 4);
    }
    return true;
}

void
nt_writer_dict(nt_writer_out *out, uint32_t *slot)
{
    nt_writer_opcode(out, '}');
    nt_writer_memoize(out, slot);
}

void
nt_writer_list(nt_writer_out *out, uint32_t *slot)
{
    nt_writer_opcode(out, ']');
    nt_writer_memoize(out, slot);
}

/* Before number `i`: ends the batch that is full, and begins the next. */
static void
writer_step(nt_writer_out *out, size_t i, uint8_t close)
{
    if (i % NT_WRITER_BATCH == 0) {
        if (i != 0) {
            nt_writer_opcode(out, close);
        }
        nt_writer_opcode(out, '(');
    }
}

void
nt_writer_item(nt_writer_out *out, size_t i)
{
    writer_step(out, i, 'e');
}

void
nt_writer_items_end(nt_writer_out *out, size_t count)
{
    if (count != 0) {
        nt_writer_opcode(out, 'e');
    }
}

void
nt_writer_key(nt_writer_out *out, size_t i)
{
    writer_step(out, i, 'u');
}

void
nt_writer_keys_end(nt_writer_out *out, size_t count)
{
    if (count != 0) {
        nt_writer_opcode(out, 'u');
    }
}
