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

void
nt_columns_release(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t capacity)
{
    for (size_t i = 0; i < count; i++) {
        nt_release(alloc, nt_column_get(columns, specs[i]),
                   capacity * specs[i].element);
        nt_column_put(columns, specs[i], NULL);
    }
}

/* New arrays of `rows` elements for all columns, or none. */
static bool
columns_allocate(const nt_alloc *alloc, const nt_column_spec *specs, size_t count,
                 size_t rows, void *fresh[NT_MOST_COLUMNS])
{
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        fresh[i] = nt_size_mul(rows, specs[i].element, &bytes)
                       ? nt_allocate(alloc, bytes)
                       : NULL;
        if (fresh[i] == NULL) {
            while (i-- > 0) {
                nt_release(alloc, fresh[i], rows * specs[i].element);
            }
            return false;
        }
    }
    return true;
}

nt_status
nt_columns_reserve(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t rows, size_t *capacity, size_t need,
                   nt_error *err)
{
    if (need <= *capacity) {
        return NT_OK;
    }
    NT_ASSERT(count <= NT_MOST_COLUMNS);
    const size_t wanted = need + need / 2 + 8;
    void *fresh[NT_MOST_COLUMNS];
    if (!columns_allocate(alloc, specs, count, wanted, fresh)) {
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < count; i++) {
        void *old = nt_column_get(columns, specs[i]);
        if (rows != 0) {
            memcpy(fresh[i], old, rows * specs[i].element);
        }
        nt_release(alloc, old, *capacity * specs[i].element);
        nt_column_put(columns, specs[i], fresh[i]);
    }
    *capacity = wanted;
    return NT_OK;
}
