/* SPDX-License-Identifier: Apache-2.0 */
/* Device allocations of a process by the library that asked for them. Records come in
 * any order, each with its time; they are held back until a caller knows that no older
 * one is on its way, and are then applied in the order of time.
 *
 * A release names no library: it is matched by its address. Where two allocations claim
 * one address, because a thread asked before the other had given back, a release ends
 * the older claim, so that the last state is right in either order. */
#ifndef NT_LEDGER_H
#define NT_LEDGER_H

#include "base/nt_base.h"

typedef struct nt_ledger nt_ledger;

/* The library of records that name no source. */
#define NT_LEDGER_UNNAMED 0

/* A file whose path contains `part` belongs to `library`; the first rule that fits
 * counts, and a file that none fits is called by its own name. */
typedef struct nt_ledger_rule {
    const char *part;
    const char *library;
} nt_ledger_rule;

typedef struct nt_ledger_record {
    uint64_t time; /* any clock: only the order counts */
    uint64_t address;
    uint64_t bytes;
    uint32_t device;
    uint32_t library; /* from nt_ledger_find_library */
    uint32_t kind;    /* the caller's: records of different kinds are summed apart */
    bool is_release;
} nt_ledger_record;

/* What a library holds of one kind on one device. */
typedef struct nt_ledger_use {
    uint32_t device;
    uint32_t library;
    uint32_t kind;
    uint64_t bytes;       /* live now */
    uint64_t peak_bytes;  /* the most at once since the beginning */
    uint64_t live;        /* allocations now */
    uint64_t allocations; /* since the beginning, seeds not counted */
} nt_ledger_use;

/* An allocation that is live. */
typedef struct nt_ledger_live {
    uint64_t address;
    uint64_t bytes;
    uint32_t device;
    uint32_t library;
    uint32_t kind;
} nt_ledger_live;

/* The rules' texts are copied. */
nt_status
nt_ledger_new(const nt_alloc *alloc, const nt_ledger_rule *rules, size_t rule_count,
              nt_ledger **out, nt_error *err) NT_CHECKED;

/* NULL is fine. */
void
nt_ledger_free(nt_ledger *ledger);

/* The library that the file at `path` (NULL: not known) belongs to. */
nt_status
nt_ledger_find_library(nt_ledger *ledger, const char *path, uint32_t *out,
                       nt_error *err) NT_CHECKED;

/* Takes a record, to be applied later. */
nt_status
nt_ledger_push(nt_ledger *ledger, const nt_ledger_record *record,
               nt_error *err) NT_CHECKED;

/* The number of records that wait. */
size_t
nt_ledger_waiting(const nt_ledger *ledger);

/* Applies the waiting records in the order of time, but for the `keep` newest of them.
 * On failure those not applied keep waiting. */
nt_status
nt_ledger_settle(nt_ledger *ledger, size_t keep, nt_error *err) NT_CHECKED;

/* Adds an allocation from before the first record; does nothing where a live one has
 * that address. An allocation that claims the address later takes its place: the two
 * are one, seen twice. */
nt_status
nt_ledger_seed(nt_ledger *ledger, const nt_ledger_live *seed, nt_error *err) NT_CHECKED;

/* Uses in the order of first sight; valid until the ledger changes. */
const nt_ledger_use *
nt_ledger_uses(const nt_ledger *ledger, size_t *count);

/* The name of a library, `*length` bytes without terminator; of an unnamed one, none.
 */
const char *
nt_ledger_name(const nt_ledger *ledger, uint32_t library, size_t *length);

/* The files seen so far, and the library of each. */
size_t
nt_ledger_source_count(const nt_ledger *ledger);

const char *
nt_ledger_source(const nt_ledger *ledger, size_t index, size_t *length,
                 uint32_t *library);

/* The live allocations, up to `capacity` of them; returns how many there are. */
size_t
nt_ledger_list(const nt_ledger *ledger, nt_ledger_live *out, size_t capacity);

/* Releases of addresses at which nothing was known to be live. */
uint64_t
nt_ledger_unmatched(const nt_ledger *ledger);

/* True if sums, claims and counts agree with one another. For tests. */
bool
nt_ledger_check(const nt_ledger *ledger);

#endif
