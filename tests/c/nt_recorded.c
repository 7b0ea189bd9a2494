/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_recorded.h"

#include "nt_file.h"

bool
nt_recorded_open(nt_recorded *recorded, nt_test *t, const char *sample)
{
    const nt_alloc alloc = nt_alloc_system();
    size_t size = 0;
    *recorded = (nt_recorded){.snapshot = NULL};
    const uint8_t *bytes = nt_test_sample(t, sample, &size);
    if (bytes == NULL) {
        return false;
    }
    recorded->snapshot = nt_file_load(t, bytes, size);
    return recorded->snapshot != NULL &&
           NT_CHECK_OK(nt_timeline_new(&alloc, recorded->snapshot, 0, NULL,
                                       &recorded->timeline, NULL),
                       NULL) &&
           NT_CHECK_OK(
               nt_program_new(&alloc, recorded->timeline, &recorded->program, NULL),
               NULL);
}

void
nt_recorded_close(nt_recorded *recorded)
{
    nt_program_free(recorded->program);
    nt_timeline_free(recorded->timeline);
    nt_snapshot_free(recorded->snapshot);
}
