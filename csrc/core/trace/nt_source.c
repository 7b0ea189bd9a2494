/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_source.h"

#include <string.h>

/* Bytes read at a time: large enough that a read call costs nothing, small enough to
 * stay in the second-level cache while it is parsed. */
#define SOURCE_WINDOW ((size_t)256 * 1024)

void
nt_source_init_memory(nt_source *source, const void *bytes, size_t count,
                      const nt_progress *progress)
{
    *source = (nt_source){
        .next = bytes,
        .end = bytes,
        .memory_left = count,
        .total = count,
        .progress = progress,
    };
}

void
nt_source_init_input(nt_source *source, nt_alloc alloc, nt_input input,
                     const nt_progress *progress)
{
    *source = (nt_source){.alloc = alloc, .input = input, .progress = progress};
}

void
nt_source_clear(nt_source *source)
{
    nt_release(&source->alloc, source->buffer, source->capacity);
    *source = (nt_source){.exhausted = true};
}

/* More of the caller's memory comes into the window; nothing is copied. */
static void
source_fill_memory(nt_source *source, size_t count)
{
    const size_t at_hand = (size_t)(source->end - source->next);
    size_t more = count - at_hand;
    if (more < SOURCE_WINDOW) {
        more = SOURCE_WINDOW;
    }
    if (more >= source->memory_left) {
        more = source->memory_left;
        source->exhausted = true;
    }
    source->end += more;
    source->end_offset += more;
    source->memory_left -= more;
}

/* Moves what is at hand to the front of the buffer and sees to it that the buffer has
 * free space behind it. */
static nt_status
source_make_room(nt_source *source, nt_error *err)
{
    const size_t at_hand = (size_t)(source->end - source->next);
    if (source->capacity < SOURCE_WINDOW || at_hand > source->capacity / 2) {
        void *buffer = source->buffer;
        const size_t next =
            source->buffer == NULL ? 0 : (size_t)(source->next - source->buffer);
        const size_t need =
            source->capacity < SOURCE_WINDOW ? SOURCE_WINDOW : source->capacity * 2;
        NT_TRY(nt_grow(&source->alloc, &buffer, &source->capacity, need, 1, err));
        source->buffer = buffer;
        source->next = source->buffer + next;
    }
    if (at_hand != 0) {
        memmove(source->buffer, source->next, at_hand);
    }
    source->next = source->buffer;
    source->end = source->buffer + at_hand;
    return NT_OK;
}

static nt_status
source_read_some(nt_source *source, nt_error *err)
{
    const size_t at_hand = (size_t)(source->end - source->buffer);
    size_t count = 0;
    const int stopped = source->input.read(source->input.ctx, source->buffer + at_hand,
                                           source->capacity - at_hand, &count);
    if (stopped != 0) {
        const nt_status status =
            stopped == NT_LIMIT || stopped == NT_CANCELLED ? (nt_status)stopped : NT_IO;
        return nt_fail(err, status, source->end_offset, "reading the input failed");
    }
    NT_ASSERT(count <= source->capacity - at_hand);
    source->exhausted = count == 0;
    source->end += count;
    source->end_offset += count;
    return NT_OK;
}

nt_status
nt_source_fill(nt_source *source, size_t count, nt_error *err)
{
    while ((size_t)(source->end - source->next) < count && !source->exhausted) {
        if (source->progress != NULL &&
            source->progress->report(source->progress->ctx, nt_source_offset(source)) !=
                0) {
            return nt_fail(err, NT_CANCELLED, nt_source_offset(source), "cancelled");
        }
        if (source->input.read == NULL) {
            source_fill_memory(source, count);
        } else {
            NT_TRY(source_make_room(source, err));
            NT_TRY(source_read_some(source, err));
        }
    }
    return NT_OK;
}
