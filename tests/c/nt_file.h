/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots made by hand, written to memory and read from there, for the C tests. */
#ifndef NT_FILE_H
#define NT_FILE_H

#include "nt_test.h"
#include "trace/nt_snapshot.h"

/* What was written. All-zero is an empty file that takes everything. */
typedef struct nt_file {
    uint8_t *bytes;
    size_t size, capacity;
    size_t writes;  /* calls so far */
    size_t fail_at; /* the call that fails; 0: none */
} nt_file;

/* The write function of an nt_sink whose ctx is the file. */
int
nt_file_collect(void *ctx, const void *bytes, size_t count);
void
nt_file_clear(nt_file *file);

/* An empty snapshot with these keys (nt_snapshot_keys), to be filled and sealed. */
nt_snapshot *
nt_file_begin(nt_test *t, uint32_t keys);

/* The id of these bytes among the snapshot's strings. */
uint32_t
nt_file_intern(nt_test *t, nt_snapshot *snapshot, const char *text, size_t length);

nt_status
nt_file_save(nt_file *file, const nt_snapshot *snapshot);

/* How often `needle` occurs in what was written. */
size_t
nt_file_count(const nt_file *file, const void *needle, size_t size);

/* The snapshot in `size` bytes; or fails the case and gives NULL. */
nt_snapshot *
nt_file_load(nt_test *t, const uint8_t *bytes, size_t size);

/* Saves `snapshot` and loads it again: nothing may have changed. */
void
nt_file_check_round_trip(nt_test *t, const nt_snapshot *snapshot);

#endif
