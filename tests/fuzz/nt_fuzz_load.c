/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "nt_fuzz.h"
#include "trace/nt_reader.h"
#include "trace/nt_source.h"

/* The reader may take this much for nothing, and this much more for every byte it
 * reads and every row it makes (a row of events has 69 bytes in 11 columns, which
 * are copied once when they are put in order, and grow by half). */
#define FREE_MEMORY ((size_t)256 * 1024)
#define MEMORY_PER_BYTE ((size_t)160)
#define MEMORY_PER_ROW ((size_t)512)

/* Rows that a file may make by sharing them, whatever its size. */
#define FREE_ROWS ((size_t)1 << 20)

size_t
nt_fuzz_rows(const nt_snapshot *snapshot)
{
    size_t settings;
    (void)nt_snapshot_setting_rows(snapshot, &settings);
    return nt_snapshot_events(snapshot)->count +
           nt_snapshot_layout(snapshot)->segments.count +
           nt_snapshot_layout(snapshot)->blocks.count +
           nt_snapshot_annotations(snapshot)->count +
           nt_snapshot_trace_count(snapshot) + settings;
}

static void
fuzz_check_error(const nt_error *err, nt_status status, size_t size)
{
    NT_FUZZ_CHECK(status == NT_MALFORMED || status == NT_REFUSED || status == NT_LIMIT);
    NT_FUZZ_CHECK(err->status == status);
    NT_FUZZ_CHECK(err->message[0] != '\0');
    NT_FUZZ_CHECK(memchr(err->message, '\0', sizeof err->message) != NULL);
    NT_FUZZ_CHECK(err->offset == NT_NO_OFFSET || err->offset <= size);
}

nt_snapshot *
nt_fuzz_load(const uint8_t *data, size_t size)
{
    /* A snapshot draws on its budget as long as it lives; of one input no more than
     * three are alive at a time. */
    static nt_budget budgets[4];
    static size_t turn;
    nt_budget *budget = &budgets[turn++ % 4];
    nt_budget_init(budget, nt_fuzz_alloc(), SIZE_MAX);
    const nt_alloc alloc = nt_budget_alloc(budget);
    nt_source source;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_snapshot *snapshot = NULL;
    nt_source_init_memory(&source, data, size, NULL);
    const nt_status status = nt_reader_load(&alloc, &source, &snapshot, &err);
    nt_source_clear(&source);
    size_t rows = FREE_ROWS + size;
    if (status == NT_OK) {
        NT_FUZZ_CHECK(snapshot != NULL);
        NT_FUZZ_CHECK(nt_fuzz_rows(snapshot) <= rows);
        rows = nt_fuzz_rows(snapshot);
    } else {
        fuzz_check_error(&err, status, size);
        NT_FUZZ_CHECK(snapshot == NULL);
        NT_FUZZ_CHECK(budget->used == 0);
    }
    NT_FUZZ_CHECK(budget->peak <=
                  FREE_MEMORY + MEMORY_PER_BYTE * size + MEMORY_PER_ROW * rows);
    return snapshot;
}
