/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the blocks of the large pool begin in ordinary segments, while a trace is
 * replayed: with that, a request's true block size follows. All blocks there are
 * larger than 1 MiB, so no two begin in the same MiB of the address space, and a look
 * at the two MiB behind a request tells whether its free block was split.
 */
#ifndef NT_TIMELINE_LARGE_H
#define NT_TIMELINE_LARGE_H

#include "trace/nt_timeline_state.h"

/* Addresses from first up to end. */
typedef struct nt_address_range {
    uint64_t first, end;
} nt_address_range;

/* All-zero is valid for clear only. */
typedef struct nt_timeline_large {
    const nt_settings *settings;
    nt_map starts; /* MiB -> where in it a block begins */
    nt_map ends;   /* MiB -> where in it a segment ends */
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
 * its block's size then. An address in an expandable segment is left alone.
 */
nt_status
nt_timeline_large_place(nt_timeline_large *large, uint64_t address, uint64_t *size,
                        nt_error *err) NT_CHECKED;

/* A block whose size is known lies at `address`. */
nt_status
nt_timeline_large_add(nt_timeline_large *large, uint64_t address,
                      nt_error *err) NT_CHECKED;

/* The block at `address`, if it is one of these, is free. */
void
nt_timeline_large_remove(nt_timeline_large *large, uint64_t address);

#endif
