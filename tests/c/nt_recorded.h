/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot with its timeline and its program, for the tests of replaying. */
#ifndef NT_RECORDED_H
#define NT_RECORDED_H

#include "nt_test.h"
#include "whatif/nt_program.h"

typedef struct nt_recorded {
    nt_snapshot *snapshot;
    nt_timeline *timeline;
    nt_program *program;
} nt_recorded;

/* From a bundled snapshot; true if it is there. */
bool
nt_recorded_open(nt_recorded *recorded, nt_test *t, const char *sample);
void
nt_recorded_close(nt_recorded *recorded);

#endif
