/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_columns.h"

#include <string.h>

#include "nt_test.h"

typedef struct pair_columns {
    uint64_t *wide;
    uint8_t *narrow;
} pair_columns;

static const nt_column_spec specs[] = {
    NT_COLUMN(pair_columns, wide),
    NT_COLUMN(pair_columns, narrow),
};

NT_TEST(columns_keep_rows_when_growing)
{
    nt_hostile hostile;
    nt_hostile_init(&hostile, t);
    pair_columns columns = {0};
    size_t capacity = 0;
    for (size_t row = 0; row < 100; row++) {
        NT_CHECK_OK(nt_columns_reserve(&hostile.alloc, &columns, specs, 2, row,
                                       &capacity, row + 1, NULL),
                    NULL);
        columns.wide[row] = row * row;
        columns.narrow[row] = (uint8_t)row;
    }
    for (size_t row = 0; row < 100; row++) {
        NT_CHECK_UINT(columns.wide[row], row * row);
        NT_CHECK_UINT(columns.narrow[row], row);
    }
    nt_columns_release(&hostile.alloc, &columns, specs, 2, capacity);
    NT_CHECK(columns.wide == NULL && columns.narrow == NULL);
    NT_CHECK_NO_LEAK(&hostile);
}

static nt_status
columns_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)ctx;
    pair_columns columns = {0};
    size_t capacity = 0;
    const nt_status status =
        nt_columns_reserve(alloc, &columns, specs, 2, 0, &capacity, 5, NULL);
    NT_CHECK(status == NT_OK || (columns.wide == NULL && columns.narrow == NULL));
    NT_CHECK(status == NT_OK || capacity == 0);
    nt_columns_release(alloc, &columns, specs, 2, capacity);
    return status;
}

NT_TEST(columns_survive_running_out_of_memory)
{
    nt_test_sweep(t, columns_body, NULL);
}

NT_TEST(columns_refuse_a_size_that_wraps)
{
    const nt_alloc alloc = nt_alloc_system();
    pair_columns columns = {0};
    size_t capacity = 0;
    NT_CHECK_STATUS(nt_columns_reserve(&alloc, &columns, specs, 2, 0, &capacity,
                                       SIZE_MAX / 4, NULL),
                    NT_NOMEM, NULL);
    NT_CHECK(columns.wide == NULL);
}

const nt_test_case nt_columns_tests[] = {
    NT_CASE(columns_keep_rows_when_growing),
    NT_CASE(columns_survive_running_out_of_memory),
    NT_CASE(columns_refuse_a_size_that_wraps),
    NT_CASES_END,
};
