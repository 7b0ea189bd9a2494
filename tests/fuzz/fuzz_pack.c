/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: what the reader accepts can be packed, and what was packed comes back as
 * the same columns and is packed again as the same bytes. What is not packed by
 * nt_pack, or was and is damaged, is refused or is a snapshot that can be written.
 */
#include <string.h>

#include "nt_fuzz.h"
#include "nt_same.h"
#include "trace/nt_pack.h"

static void
save(const nt_snapshot *s, nt_fuzz_file *file)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    const nt_sink sink = {.write = nt_fuzz_collect, .ctx = file};
    NT_FUZZ_CHECK(nt_pack_save(&alloc, s, &sink, NULL) == NT_OK);
}

static nt_snapshot *
load(const uint8_t *data, size_t size)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_snapshot *s = NULL;
    nt_source source;
    nt_source_init_memory(&source, data, size, NULL);
    const nt_status status = nt_pack_load(&alloc, &source, &s, NULL);
    nt_source_clear(&source);
    NT_FUZZ_CHECK((s != NULL) == (status == NT_OK));
    return s;
}

static void
check_whole(const nt_snapshot *s)
{
    nt_fuzz_file first = {.size = 0}, second = {.size = 0};
    save(s, &first);
    nt_snapshot *again = load(first.bytes, first.size);
    NT_FUZZ_CHECK(again != NULL);
    const char *difference = nt_same_snapshot(s, again);
    if (difference != NULL) {
        nt_fuzz_fail(__FILE__, __LINE__, difference);
    }
    save(again, &second);
    NT_FUZZ_CHECK(first.size == second.size);
    NT_FUZZ_CHECK(memcmp(first.bytes, second.bytes, first.size) == 0);
    nt_snapshot_free(again);
    nt_fuzz_clear(&first);
    nt_fuzz_clear(&second);
}

/* The packed bytes of `s`, one of them changed as the input chooses. */
static void
check_damaged(const nt_snapshot *s, const uint8_t *data, size_t size)
{
    nt_fuzz_file file = {.size = 0}, pickle = {.size = 0};
    save(s, &file);
    const size_t at = (data[size / 2] * (size_t)256 + data[size - 1]) % file.size;
    file.bytes[at] ^= (uint8_t)(1 + data[0] % 255);
    nt_snapshot *some = load(file.bytes, file.size);
    if (some != NULL) {
        const nt_alloc alloc = nt_fuzz_alloc();
        const nt_sink sink = {.write = nt_fuzz_collect, .ctx = &pickle};
        NT_FUZZ_CHECK(nt_writer_save(&alloc, some, &sink, NULL, NULL) == NT_OK);
    }
    nt_snapshot_free(some);
    nt_fuzz_clear(&pickle);
    nt_fuzz_clear(&file);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nt_snapshot *s = nt_fuzz_load(data, size);
    if (s != NULL && size != 0 && nt_fuzz_rows(s) <= NT_FUZZ_MOST_ROWS) {
        check_whole(s);
        check_damaged(s, data, size);
    }
    nt_snapshot_free(s);
    nt_snapshot_free(load(data, size));
    nt_fuzz_finish();
    return 0;
}
