/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ring_origins.h"

#include <stdbool.h>

/* A look takes some 100 ns, and the producer comes once a microsecond or less often. */
#define ORIGINS_TRIES 64

void
nt_ring_origins_clear(nt_ring_origins *origins)
{
    if (origins->count == 0) {
        return;
    }
    nt_ring_origins_change(origins);
    for (uint64_t i = 0; i <= origins->mask; i++) {
        nt_ring_origin_store(&origins->slots[i], 0, 0);
    }
    origins->count = 0;
    nt_ring_origins_change(origins);
}

/* What stands at `addr`, as it is or as a change leaves it for a moment. */
static bool
origins_look(const nt_ring_origins *origins, uint64_t addr, uint64_t *made)
{
    uint64_t slot = nt_ring_origin_home(origins, addr);
    for (uint64_t seen = 0; seen <= origins->mask; seen++) {
        const nt_ring_origin *at = &origins->slots[slot];
        const uint64_t found = __atomic_load_n(&at->addr, __ATOMIC_ACQUIRE);
        if (found == addr) {
            *made = __atomic_load_n(&at->made, __ATOMIC_ACQUIRE);
            return true;
        }
        if (found == 0) {
            return false;
        }
        slot = (slot + 1) & origins->mask;
    }
    return false;
}

uint32_t
nt_ring_origins_find(const nt_ring_origins *origins, uint64_t addr, uint64_t before)
{
    for (int i = 0; origins->slots != NULL && addr != 0 && i < ORIGINS_TRIES; i++) {
        const uint64_t begun = __atomic_load_n(&origins->changes, __ATOMIC_ACQUIRE);
        if (begun % 2 != 0) {
            continue;
        }
        uint64_t made = 0;
        const bool is_there = origins_look(origins, addr, &made);
        if (__atomic_load_n(&origins->changes, __ATOMIC_ACQUIRE) != begun) {
            continue;
        }
        const uint64_t stack = made & ((UINT64_C(1) << NT_RING_ORIGIN_STACK_BITS) - 1);
        return is_there && made >> NT_RING_ORIGIN_STACK_BITS < before ? (uint32_t)stack
                                                                      : UINT32_MAX;
    }
    return UINT32_MAX;
}
