/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of random rows that a reader takes, for the C tests. */
#ifndef NT_RANDOM_H
#define NT_RANDOM_H

#include "nt_test.h"
#include "trace/nt_snapshot.h"

/* Every key that a row can lack and still be the same after a round trip. */
enum {
    NT_RANDOM_KEYS = NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL |
        NT_HAS_EVENT_USER_METADATA | NT_HAS_EVENT_INTERNAL | NT_HAS_EVENT_DEVICE_FREE |
        NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |
        NT_HAS_SEGMENT_ALLOCATED | NT_HAS_SEGMENT_ACTIVE | NT_HAS_SEGMENT_POOL |
        NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_SETTINGS | NT_HAS_ANNOTATIONS |
        NT_HAS_TRACES | NT_HAS_BEFORE,
    NT_RANDOM_OPTIONAL_KEYS = NT_HAS_EVENT_TIME | NT_HAS_EVENT_POOL |
        NT_HAS_EVENT_USER_METADATA | NT_HAS_EVENT_DEVICE_FREE | NT_HAS_EVENT_INTERNAL |
        NT_HAS_BEFORE,
};

/* A sealed snapshot with these keys, the same for the same seed. */
nt_snapshot *
nt_random_snapshot(nt_test *t, uint32_t keys, uint64_t *seed);

/* Adds a dict of every kind of value, a list of `items` numbers, and a dict in a dict.
 */
void
nt_random_settings(nt_test *t, nt_snapshot *snapshot, uint32_t items);

#endif
