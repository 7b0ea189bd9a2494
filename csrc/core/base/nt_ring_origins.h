/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks in use were allocated, by address: a ring overwrites the allocation of a
 * block that lives long, and this is what is still known of it then. One producer and
 * any number of readers, who look a block up at the same time and take no lock.
 *
 * C and C++, and includes nothing of the core: the shim on c10 keeps it up inside the
 * allocator. */
#ifndef NT_RING_ORIGINS_H
#define NT_RING_ORIGINS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of an origin that are the stack's id; those above are the event's number. */
#define NT_RING_ORIGIN_STACK_BITS 20

typedef struct nt_ring_origin {
    uint64_t addr; /* 0: the slot is free */
    uint64_t made; /* number of the event, and the stack */
} nt_ring_origin;

/* Open addressing; an entry stands between its home and the next free slot. */
typedef struct nt_ring_origins {
    nt_ring_origin *slots; /* NULL where there is no table */
    uint64_t mask;         /* slots - 1; there is always a free slot */
    uint64_t count, most;
    uint64_t changes; /* odd while the producer is at the slots */
    uint64_t lost;    /* blocks that found no room */
} nt_ring_origins;

static inline uint64_t
nt_ring_origin_home(const nt_ring_origins *origins, uint64_t addr)
{
    return (addr * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & origins->mask;
}

/* The slot of an address, or the free one where it would be. The producer's. */
static inline uint64_t
nt_ring_origin_slot(const nt_ring_origins *origins, uint64_t addr)
{
    uint64_t slot = nt_ring_origin_home(origins, addr);
    while (origins->slots[slot].addr != 0 && origins->slots[slot].addr != addr) {
        slot = (slot + 1) & origins->mask;
    }
    return slot;
}

/* A reader discards what it sees between two of these. Words are stored with release
 * and loaded with acquire: who sees one of them sees the odd number before. */
static inline void
nt_ring_origins_change(nt_ring_origins *origins)
{
    __atomic_store_n(&origins->changes, origins->changes + 1, __ATOMIC_RELEASE);
}

static inline void
nt_ring_origin_store(nt_ring_origin *slot, uint64_t addr, uint64_t made)
{
    __atomic_store_n(&slot->made, made, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->addr, addr, __ATOMIC_RELEASE);
}

/* The block at `addr` was allocated by event number `event`, under `stack`. The
 * producer's. */
static inline void
nt_ring_origins_set(nt_ring_origins *origins, uint64_t addr, uint64_t event,
                    uint32_t stack)
{
    if (origins->slots == NULL || addr == 0) {
        return;
    }
    const uint64_t slot = nt_ring_origin_slot(origins, addr);
    if (origins->slots[slot].addr == 0) {
        if (origins->count == origins->most) {
            __atomic_store_n(&origins->lost, origins->lost + 1, __ATOMIC_RELAXED);
            return;
        }
        origins->count++;
    }
    nt_ring_origins_change(origins);
    nt_ring_origin_store(&origins->slots[slot], addr,
                         event << NT_RING_ORIGIN_STACK_BITS | stack);
    nt_ring_origins_change(origins);
}

/* The block at `addr` is free again; one that is not there is fine. The producer's. */
static inline void
nt_ring_origins_drop(nt_ring_origins *origins, uint64_t addr)
{
    if (origins->slots == NULL || addr == 0) {
        return;
    }
    nt_ring_origin *const slots = origins->slots;
    uint64_t hole = nt_ring_origin_slot(origins, addr);
    if (slots[hole].addr == 0) {
        return;
    }
    origins->count--;
    nt_ring_origins_change(origins);
    for (uint64_t next = (hole + 1) & origins->mask; slots[next].addr != 0;
         next = (next + 1) & origins->mask) {
        /* Entries behind the hole move into it, unless their home is behind it too. */
        const uint64_t home = nt_ring_origin_home(origins, slots[next].addr);
        if (((next - home) & origins->mask) >= ((next - hole) & origins->mask)) {
            nt_ring_origin_store(&slots[hole], slots[next].addr, slots[next].made);
            hole = next;
        }
    }
    nt_ring_origin_store(&slots[hole], 0, 0);
    nt_ring_origins_change(origins);
}

/* Forgets everything. The producer's. */
void
nt_ring_origins_clear(nt_ring_origins *origins);

/* The stack under which the block at `addr` was allocated, by an event before number
 * `before`; UINT32_MAX where that is not known, or the producer is too quick to be
 * read. From any thread. */
uint32_t
nt_ring_origins_find(const nt_ring_origins *origins, uint64_t addr, uint64_t before);

#ifdef __cplusplus
}
#endif

#endif
