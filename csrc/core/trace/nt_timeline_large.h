/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the blocks of the large pool begin in ordinary segments, while a trace is
 * replayed: with that, a request's true block size follows. All blocks there are
 * larger than 1 MiB, so no two begin in the same MiB of the address space, and a look
 * at the two MiB after a request says whether its free block was split.
 */
#ifndef NT_TIMELINE_LARGE_H
#define NT_TIMELINE_LARGE_H

#include "trace/nt_timeline_state.h"

/* Addresses from first up to end. */
typedef struct nt_address_range {
    uint64_t first, end;
} nt_address_range;

/* This many MiB that follow each other are noted together: what is behind a request
 * is seldom further away. */
#define NT_LARGE_PAGE 16

/* Where in a MiB a block begins, which row it is, and where a segment ends; NT_NONE:
 * nowhere, and the row is 0 then. The block is there as long as its row is active. */
typedef struct nt_large_mib {
    uint32_t start, row, end, unused;
} nt_large_mib;

typedef struct nt_large_page {
    nt_large_mib mibs[NT_LARGE_PAGE];
} nt_large_page;

/* All-zero is valid for clear only. */
typedef struct nt_timeline_large {
    const nt_settings *settings;
    const nt_allocation_columns *rows; /* the timeline's */
    nt_map numbers;                    /* MiB / NT_LARGE_PAGE -> number in `pages` */
    nt_large_page *pages;
    size_t page_count, page_capacity;
    nt_alloc alloc;
    nt_address_range
        *expandable; /* ranges ever mapped, by address: not the matter here */
    size_t expandable_count, expandable_capacity;
} nt_timeline_large;

/* For the trace of `t`, whose segments stand: those from before it are there. */
nt_status
nt_timeline_large_init(nt_timeline_large *large, const nt_timeline *t,
                       nt_error *err) NT_CHECKED;
void
nt_timeline_large_clear(nt_timeline_large *large);

/* An ordinary segment comes or goes; one of the small pool is left alone. */
nt_status
nt_timeline_large_add_segment(nt_timeline_large *large, uint64_t address, uint64_t size,
                              nt_error *err) NT_CHECKED;
void
nt_timeline_large_remove_segment(nt_timeline_large *large, uint64_t address,
                                 uint64_t size);

/*
 * A request of *size bytes, rounded and above 1 MiB, is served at `address`: *size is
 * the size of its block then, which is `row`. An address in an expandable segment is
 * left alone.
 */
nt_status
nt_timeline_large_place(nt_timeline_large *large, uint64_t address, uint32_t row,
                        uint64_t *size, nt_error *err) NT_CHECKED;

/* A block whose size is known lies at `address`. */
nt_status
nt_timeline_large_add(nt_timeline_large *large, uint64_t address, uint32_t row,
                      nt_error *err) NT_CHECKED;

#endif
