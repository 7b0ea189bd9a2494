/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_file.h"

#include <stdlib.h>
#include <string.h>

#include "nt_same.h"
#include "trace/nt_reader.h"
#include "trace/nt_source.h"
#include "trace/nt_writer.h"

int
nt_file_collect(void *ctx, const void *bytes, size_t count)
{
    nt_file *file = ctx;
    file->writes++;
    if (file->writes == file->fail_at) {
        return 1;
    }
    if (count > file->capacity - file->size) {
        file->capacity = 2 * (file->size + count);
        file->bytes = realloc(file->bytes, file->capacity);
        if (file->bytes == NULL) {
            abort();
        }
    }
    memcpy(file->bytes + file->size, bytes, count);
    file->size += count;
    return 0;
}

void
nt_file_clear(nt_file *file)
{
    free(file->bytes);
    *file = (nt_file){.size = 0};
}

nt_snapshot *
nt_file_begin(nt_test *t, uint32_t keys)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_snapshot *snapshot = NULL;
    (void)NT_CHECK_OK(nt_snapshot_new(&alloc, &snapshot, NULL), NULL);
    nt_snapshot_set_keys(snapshot, keys);
    return snapshot;
}

uint32_t
nt_file_intern(nt_test *t, nt_snapshot *snapshot, const char *text, size_t length)
{
    uint32_t id = NT_NONE;
    (void)NT_CHECK_OK(
        nt_strings_intern(nt_snapshot_strings(snapshot), text, length, &id, NULL),
        NULL);
    return id;
}

nt_status
nt_file_save(nt_file *file, const nt_snapshot *snapshot)
{
    const nt_alloc alloc = nt_alloc_system();
    const nt_sink sink = {.write = nt_file_collect, .ctx = file};
    return nt_writer_save(&alloc, snapshot, &sink, NULL, NULL);
}

size_t
nt_file_count(const nt_file *file, const void *needle, size_t size)
{
    size_t count = 0;
    for (size_t at = 0; at + size <= file->size; at++) {
        count += memcmp(file->bytes + at, needle, size) == 0;
    }
    return count;
}

nt_snapshot *
nt_file_load(nt_test *t, const uint8_t *bytes, size_t size)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_source source;
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_snapshot *snapshot = NULL;
    nt_source_init_memory(&source, bytes, size, NULL);
    (void)NT_CHECK_OK(nt_reader_load(&alloc, &source, &snapshot, &err), &err);
    nt_source_clear(&source);
    return snapshot;
}

void
nt_file_check_round_trip(nt_test *t, const nt_snapshot *snapshot)
{
    nt_file file = {.size = 0};
    (void)NT_CHECK_OK(nt_file_save(&file, snapshot), NULL);
    nt_snapshot *again = nt_file_load(t, file.bytes, file.size);
    if (again != NULL) {
        NT_CHECK_STR(nt_same_snapshot(snapshot, again), NULL);
    }
    nt_snapshot_free(again);
    nt_file_clear(&file);
}
