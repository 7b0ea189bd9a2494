/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes of pickle protocol 4 that a snapshot needs, gathered in frames as
 * Python's own pickler gathers them. Knows nothing of snapshots. */
#ifndef NT_WRITER_OPCODES_H
#define NT_WRITER_OPCODES_H

#include <string.h>

#include "base/nt_map.h"
#include "trace/nt_writer.h"

/* Most bytes in a frame. Python's pickler ends a frame when it has reached this. */
#define NT_WRITER_FRAME ((size_t)64 * 1024)

/* Items that go into a list or dict at once: as many as Python's pickler takes. */
#define NT_WRITER_BATCH 1000

/* Where the pickle has come to. The first failure stays in `status`; from then on
 * nothing more is written, so that callers need not look after every opcode. */
typedef struct nt_writer_out {
    const nt_sink *sink;
    uint8_t *frame;    /* NT_WRITER_FRAME bytes, owned by the caller */
    size_t length;     /* bytes of `frame` in use */
    uint32_t memoized; /* MEMOIZE opcodes so far; stays at NT_NONE once there */
    nt_status status;
    nt_error *err;
} nt_writer_out;

/* The PROTO opcode, which comes before the first frame. */
void
nt_writer_begin(nt_writer_out *out);

/* STOP, and what is still in the frame. */
void
nt_writer_end(nt_writer_out *out);

/* Writes out the frame gathered so far, if there is anything in it. */
void
nt_writer_flush(nt_writer_out *out);

/* Room for `count` bytes (at most NT_WRITER_FRAME), which are in use from now on. */
static inline uint8_t *
nt_writer_take(nt_writer_out *out, size_t count)
{
    if (NT_UNLIKELY(count > NT_WRITER_FRAME - out->length)) {
        nt_writer_flush(out);
    }
    out->length += count;
    return out->frame + out->length - count;
}

/* An opcode without argument. */
static inline void
nt_writer_opcode(nt_writer_out *out, uint8_t opcode)
{
    *nt_writer_take(out, 1) = opcode;
}

/* The shortest opcode for the number: BININT1, BININT2, BININT or LONG1. */
void
nt_writer_integer(nt_writer_out *out, int64_t number);
void
nt_writer_bool(nt_writer_out *out, bool value);
void
nt_writer_none(nt_writer_out *out);
void
nt_writer_float(nt_writer_out *out, double real);

/* A string of UTF-8 (surrogates allowed); one too long for a frame is alone. */
void
nt_writer_text(nt_writer_out *out, const char *text, size_t length);

/* Ends a tuple of the two values written last. */
void
nt_writer_pair(nt_writer_out *out);

/* Puts the value written last into the memo; its index goes to *slot, if any. */
void
nt_writer_memoize(nt_writer_out *out, uint32_t *slot);

/* Fetches the value under a memo index; false if `slot` is NT_NONE. */
bool
nt_writer_fetch(nt_writer_out *out, uint32_t slot);

/* An empty dict or list, put into the memo. */
void
nt_writer_dict(nt_writer_out *out, uint32_t *slot);
void
nt_writer_list(nt_writer_out *out, uint32_t *slot);

/* Stand before item `i` of a list and before pair `i` of a dict, which both begin
 * empty, and behind the last of `count`. */
void
nt_writer_item(nt_writer_out *out, size_t i);
void
nt_writer_items_end(nt_writer_out *out, size_t count);
void
nt_writer_key(nt_writer_out *out, size_t i);
void
nt_writer_keys_end(nt_writer_out *out, size_t count);

#endif
