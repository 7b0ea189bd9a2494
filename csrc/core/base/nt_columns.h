/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of columns: a table is a struct with one array a column, described by a list
 * of specs, so that growing and freeing is written once. The columns of a table that
 * grows here are one after the other in one block of memory. */
#ifndef NT_COLUMNS_H
#define NT_COLUMNS_H

#include "base/nt_base.h"

#define NT_LENGTH(array) (sizeof(array) / sizeof *(array))

/* Where a column's pointer is in its struct, and the bytes of an element. */
typedef struct nt_column_spec {
    size_t offset;
    size_t element;
} nt_column_spec;

/* clang-format off */
#define NT_COLUMN(type, field) {offsetof(type, field), sizeof *((type *)0)->field}
/* clang-format on */

/* A table whose columns are needed in several places lists them once, in a macro
 * LIST(X, table) of an X(table, type, name) each; these make fields and specs of it. */
#define NT_COLUMN_FIELD(table, type, name) type *name;
#define NT_COLUMN_SPEC(table, type, name) NT_COLUMN(table, name),

/* The array of one column of the struct at `columns`, read and written. */
void *
nt_column_get(const void *columns, nt_column_spec spec);
void
nt_column_put(void *columns, nt_column_spec spec, void *data);

/* Room for `need` rows in all columns, of which `rows` are in use, or, on failure, in
 * none more than before: one *capacity stands for all of them. A table in use grows by
 * half at least; an empty one gets what is requested. */
nt_status
nt_columns_reserve(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t rows, size_t *capacity, size_t need,
                   nt_error *err) NT_CHECKED;

/* Frees all columns, each of `capacity` rows, and sets them NULL. */
void
nt_columns_release(const nt_alloc *alloc, void *columns, const nt_column_spec *specs,
                   size_t count, size_t capacity);

#endif
