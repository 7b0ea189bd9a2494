/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_columns.h"

#include <string.h>

void *
nt_column_get(const void *columns, nt_column_spec spec)
{
    void *data;
    memcpy(&data, (const char *)columns + spec.offset, sizeof data);
    return data;
}

void
nt_column_put(void *columns, nt_column_spec spec, void *data)
{
    memcpy((char *)columns + spec.offset, &data, sizeof data);
}

/* Rows come in such numbers that every column begins at an address for any type. */
#define COLUMNS_ROWS ((size_t)16)

static size_t
columns_row_size(const nt_column_spec *specs, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += specs[i].element;
    }
    return bytes;
}

void
nt_columns_release(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t capacity)
{
    nt_release(alloc, nt_column_get(columns, specs[0]),
               capacity * columns_row_size(specs, count));
    for (size_t i = 0; i < count; i++) {
        nt_column_put(columns, specs[i], NULL);
    }
}

nt_status
nt_columns_reserve(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t rows, size_t *capacity, size_t need,
                   nt_error *err)
{
    if (need <= *capacity) {
        return NT_OK;
    }
    size_t wanted, bytes;
    if (!nt_size_add(need, (rows == 0 ? 0 : need / 2) + COLUMNS_ROWS, &wanted)) {
        return nt_fail_nomem(err);
    }
    wanted -= wanted % COLUMNS_ROWS;
    char *fresh = nt_size_mul(wanted, columns_row_size(specs, count), &bytes)
                      ? nt_allocate(alloc, bytes)
                      : NULL;
    if (fresh == NULL) {
        return nt_fail_nomem(err);
    }
    void *const old = nt_column_get(columns, specs[0]);
    for (size_t i = 0; i < count; i++) {
        if (rows != 0) {
            memcpy(fresh, nt_column_get(columns, specs[i]), rows * specs[i].element);
        }
        nt_column_put(columns, specs[i], fresh);
        fresh += wanted * specs[i].element;
    }
    nt_release(alloc, old, *capacity * columns_row_size(specs, count));
    *capacity = wanted;
    return NT_OK;
}
