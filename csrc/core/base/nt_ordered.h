/* SPDX-License-Identifier: Apache-2.0 */
/* Ordered sets: members have a key of two numbers, compared one after the other, and a
 * value. Keys stand in runs of bounded length under one list of runs, so that adding
 * and removing moves little memory however large the set is. */
#ifndef NT_ORDERED_H
#define NT_ORDERED_H

#include "base/nt_base.h"
#include "base/nt_map.h"

/* A member; what is not there has the value NT_NONE. */
typedef struct nt_ordered_entry {
    uint64_t first, second; /* the key */
    uint32_t value;
} nt_ordered_entry;

typedef struct nt_ordered_run nt_ordered_run;

/* All-zero is a valid, empty set. */
typedef struct nt_ordered {
    nt_ordered_run *runs;
    size_t run_count, run_capacity;
    size_t count;
} nt_ordered;

void
nt_ordered_clear(nt_ordered *set, const nt_alloc *alloc);

/* Adds a member whose key is not there yet; its value is not NT_NONE. */
nt_status
nt_ordered_add(nt_ordered *set, const nt_alloc *alloc, nt_ordered_entry entry,
               nt_error *err) NT_CHECKED;

/* Removes a key; its value, or NT_NONE where it was not there. */
uint32_t
nt_ordered_remove(nt_ordered *set, const nt_alloc *alloc, uint64_t first,
                  uint64_t second);

/* Makes the member under a key, which is there, another one, under a key that is not.
 */
nt_status
nt_ordered_move(nt_ordered *set, const nt_alloc *alloc, uint64_t first, uint64_t second,
                nt_ordered_entry entry, nt_error *err) NT_CHECKED;

/* The member with the smallest key that is not below this one. */
nt_ordered_entry
nt_ordered_from(const nt_ordered *set, uint64_t first, uint64_t second);

/* The member with the smallest key above this one. */
nt_ordered_entry
nt_ordered_after(const nt_ordered *set, uint64_t first, uint64_t second);

/* The member with the largest key below this one. */
nt_ordered_entry
nt_ordered_before(const nt_ordered *set, uint64_t first, uint64_t second);

/* Whether keys rise and no run is empty or too long. */
bool
nt_ordered_check(const nt_ordered *set);

#endif
