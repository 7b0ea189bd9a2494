/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of the allocator at a desk: requests and frees by hand, one call each, with
 * a list of what the model did on its own. Sizes in bytes.
 */
#ifndef NT_DESK_H
#define NT_DESK_H

#include "nt_test.h"
#include "whatif/nt_allocator.h"

#define MIB UINT64_C(1048576)

typedef struct nt_desk_deed {
    nt_action action;
    uint64_t address, size;
    uint32_t tag;
} nt_desk_deed;

enum { NT_DESK_DEEDS = 256, NT_DESK_FIXED = 32 };

typedef struct nt_desk {
    nt_test *test;
    nt_hostile hostile;
    nt_allocator *model;
    uint32_t lane; /* stream 0 of the default pool */
    nt_desk_deed deeds[NT_DESK_DEEDS];
    size_t deed_count;
    /* Addresses to hand out, before the ones behind all others. */
    uint64_t fixed[NT_DESK_FIXED];
    size_t fixed_count, fixed_next;
    uint64_t spare;
} nt_desk;

/* A model under these settings (PYTORCH_CUDA_ALLOC_CONF; "" for the defaults), with a
 * limit in bytes, or 0. */
void
nt_desk_open(nt_desk *desk, nt_test *t, const char *settings, uint64_t limit);
/* The same with all options; observer and places are the desk's. */
void
nt_desk_open_with(nt_desk *desk, nt_test *t, const char *settings,
                  nt_allocator_options options);
/* Checks all invariants a last time, and that nothing is left. */
void
nt_desk_close(nt_desk *desk);

/* A request on the desk's lane or another; NT_NONE if memory ran out. Every call below
 * checks the invariants. */
uint32_t
nt_desk_malloc(nt_desk *desk, uint64_t nbytes);
uint32_t
nt_desk_malloc_on(nt_desk *desk, uint32_t lane, uint64_t nbytes);
void
nt_desk_free(nt_desk *desk, uint32_t block);
void
nt_desk_free_later(nt_desk *desk, uint32_t block);
void
nt_desk_complete(nt_desk *desk, uint32_t block);
void
nt_desk_empty_cache(nt_desk *desk);
uint32_t
nt_desk_lane(nt_desk *desk, uint32_t pool, uint64_t stream);
uint32_t
nt_desk_pool(nt_desk *desk, unsigned flags);

uint64_t
nt_desk_address(const nt_desk *desk, uint32_t block);
uint64_t
nt_desk_size(const nt_desk *desk, uint32_t block);
uint64_t
nt_desk_reserved(const nt_desk *desk);
const nt_allocator_stats *
nt_desk_stats(const nt_desk *desk);

/* How many deeds of a kind were told, and the sum of their sizes. */
size_t
nt_desk_count(const nt_desk *desk, nt_action action);
uint64_t
nt_desk_sum(const nt_desk *desk, nt_action action);

#endif
