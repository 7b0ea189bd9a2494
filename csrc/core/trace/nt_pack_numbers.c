/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_pack_numbers.h"

#include <string.h>

void
nt_pack_put_bytes(nt_pack_out *out, const void *bytes, size_t count)
{
    if (out->status == NT_OK && count != 0 &&
        out->sink->write(out->sink->ctx, bytes, count) != 0) {
        out->status = nt_fail(out->err, NT_IO, NT_NO_OFFSET, "writing failed");
    }
}

/* What is written of each number. */
static void
numbers_fold(uint64_t *numbers, size_t count, nt_pack_how how)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count && how != NT_PACK_PLAIN; i++) {
        const uint64_t number = numbers[i];
        const uint64_t step = number - last;
        numbers[i] = how == NT_PACK_IDS ? (uint32_t)(number + 1) : nt_pack_fold(step);
        last = number;
    }
}

/* The numbers again. */
static void
numbers_unfold(uint64_t *numbers, size_t count, nt_pack_how how)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count && how != NT_PACK_PLAIN; i++) {
        last = how == NT_PACK_IDS ? (uint32_t)(numbers[i] - 1)
                                  : last + nt_pack_unfold(numbers[i]);
        numbers[i] = last;
    }
}

void
nt_pack_put(nt_pack_out *out, uint64_t *numbers, size_t count, nt_pack_how how,
            unsigned least)
{
    numbers_fold(numbers, count, how);
    uint64_t any = 0;
    for (size_t i = 0; i < count; i++) {
        any |= numbers[i];
    }
    uint8_t width = (uint8_t)least;
    while (width < 8 && any >> 8 * width != 0) {
        width++;
    }
    nt_pack_put_bytes(out, &width, 1);
    for (unsigned plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < count; i++) {
            out->bytes[i] = (uint8_t)(numbers[i] >> 8 * plane);
        }
        nt_pack_put_bytes(out, out->bytes, count);
    }
}

void
nt_pack_put_one(nt_pack_out *out, uint64_t number)
{
    nt_pack_put(out, &number, 1, NT_PACK_PLAIN, 0);
}

nt_status
nt_pack_odd(nt_pack_in *in)
{
    return nt_fail(in->err, NT_MALFORMED, nt_source_offset(in->source),
                   "the packed snapshot is damaged");
}

nt_status
nt_pack_need(nt_pack_in *in, size_t count)
{
    NT_TRY(nt_source_fill(in->source, count, in->err));
    const size_t at_hand = (size_t)(in->source->end - in->source->next);
    return at_hand < count ? nt_pack_odd(in) : NT_OK;
}

nt_status
nt_pack_get(nt_pack_in *in, uint64_t *numbers, size_t count, nt_pack_how how,
            unsigned least)
{
    NT_TRY(nt_pack_need(in, 1));
    const unsigned width = *in->source->next++;
    if (width > 8 || width < least) {
        return nt_pack_odd(in);
    }
    memset(numbers, 0, count * sizeof *numbers);
    for (unsigned plane = 0; plane < width; plane++) {
        NT_TRY(nt_pack_need(in, count));
        for (size_t i = 0; i < count; i++) {
            numbers[i] |= (uint64_t)in->source->next[i] << 8 * plane;
        }
        in->source->next += count;
    }
    numbers_unfold(numbers, count, how);
    return NT_OK;
}

nt_status
nt_pack_get_one(nt_pack_in *in, uint64_t *number)
{
    return nt_pack_get(in, number, 1, NT_PACK_PLAIN, 0);
}

void
nt_pack_put_table(nt_pack_out *out, const nt_pack_table *table)
{
    const size_t rows = table->count(out->snapshot);
    nt_pack_put_one(out, rows);
    for (size_t first = 0; first < rows && out->status == NT_OK;
         first += NT_PACK_ROWS) {
        const size_t count = nt_pack_rows(rows - first);
        for (size_t i = 0; i < count; i++) {
            uint64_t v[NT_PACK_COLUMNS];
            table->give(out->snapshot, first + i, v);
            for (size_t k = 0; k < table->columns; k++) {
                nt_pack_column(out->numbers, k)[i] = v[k];
            }
        }
        for (size_t k = 0; k < table->columns; k++) {
            nt_pack_put(out, nt_pack_column(out->numbers, k), count, table->how[k],
                        k == 0);
        }
    }
}

nt_status
nt_pack_get_table(nt_pack_in *in, const nt_pack_table *table)
{
    uint64_t rows;
    NT_TRY(nt_pack_get_one(in, &rows));
    for (uint64_t first = 0; first < rows; first += NT_PACK_ROWS) {
        const size_t count = nt_pack_rows(rows - first);
        for (size_t k = 0; k < table->columns; k++) {
            NT_TRY(nt_pack_get(in, nt_pack_column(in->numbers, k), count, table->how[k],
                               k == 0));
        }
        for (size_t i = 0; i < count; i++) {
            uint64_t v[NT_PACK_COLUMNS];
            for (size_t k = 0; k < table->columns; k++) {
                v[k] = nt_pack_column(in->numbers, k)[i];
            }
            NT_TRY(table->take(in, (size_t)first + i, v));
        }
    }
    return NT_OK;
}

bool
nt_pack_is_string(const nt_pack_in *in, uint64_t id)
{
    return id < nt_strings_count(nt_snapshot_strings(in->snapshot));
}

bool
nt_pack_is_stack(const nt_pack_in *in, uint64_t id)
{
    return id < nt_stacks_count(nt_snapshot_stacks(in->snapshot)) || id == NT_NO_STACK;
}
