/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ring.h"

#include <string.h>

#include "base/nt_base.h"
#include "base/nt_ring_tables.h"

/* Below this many events a ring is not worth its tables. */
#define RING_LEAST_EVENTS 64

/* Slots of the table of origins, 2 MiB, and how many of them are used at most. Programs
 * have some hundred to some ten thousand blocks in use. */
#define RING_ORIGIN_SLOTS (UINT64_C(1) << 17)
#define RING_ORIGINS (RING_ORIGIN_SLOTS / 4 * 3)

/* 2^34 events are a TiB. */
#define RING_MOST_EVENTS (UINT64_C(1) << 34)

_Static_assert(sizeof(nt_ring_entry) == NT_RING_WORDS * sizeof(uint64_t),
               "an entry is eight words");

void *
nt_ring_plan_take(nt_ring_plan *plan, uint64_t count, uint64_t element)
{
    const uint64_t line = 64;
    const uint64_t first = (plan->used + line - 1) & ~(line - 1);
    /* No array has more than 2^35 elements of 64 bytes, so nothing wraps here. */
    plan->used = first + count * element;
    plan->failed |= plan->used > SIZE_MAX / 2;
    return plan->base == NULL ? NULL : plan->base + first;
}

/* The memory of a ring, its entries last: of these a system gives only what events have
 * come to. Returns the ring. */
static nt_ring *
ring_place(nt_ring_plan *plan, uint64_t capacity, int frames)
{
    nt_ring *ring = nt_ring_plan_take(plan, 1, sizeof(nt_ring));
    nt_ring_tables *tables = nt_ring_plan_take(plan, 1, sizeof(nt_ring_tables));
    nt_ring_origin *origins =
        frames ? nt_ring_plan_take(plan, RING_ORIGIN_SLOTS, sizeof(nt_ring_origin))
               : NULL;
    nt_ring_tables counted = {0};
    nt_ring_tables_place(tables == NULL ? &counted : tables, plan, frames);
    nt_ring_entry *entries = nt_ring_plan_take(plan, capacity, sizeof(nt_ring_entry));
    if (ring == NULL) {
        return NULL;
    }
    ring->entries = entries;
    ring->mask = capacity - 1;
    ring->tables = tables;
    ring->late = 1;
    if (frames) {
        ring->index = (nt_ring_index){tables->stacks, tables->stack_slots.items,
                                      tables->stack_slots.mask};
        ring->origins = (nt_ring_origins){
            .slots = origins, .mask = RING_ORIGIN_SLOTS - 1, .most = RING_ORIGINS};
    }
    return ring;
}

nt_ring *
nt_ring_new(const struct nt_alloc *alloc, uint64_t events, int frames)
{
    if (events > RING_MOST_EVENTS) {
        return NULL;
    }
    events += events / 4;
    uint64_t capacity = RING_LEAST_EVENTS;
    while (capacity <= events) {
        capacity <<= 1;
    }
    nt_ring_plan plan = {0};
    (void)ring_place(&plan, capacity, frames);
    /* A line more, since the allocator's blocks need not begin at one. */
    const uint64_t size = plan.used + 64;
    uint8_t *block = plan.failed ? NULL : nt_allocate(alloc, (size_t)size);
    if (block == NULL) {
        return NULL;
    }
    /* No entry is read before it was written. */
    memset(block, 0, (size_t)(size - capacity * sizeof(nt_ring_entry)));
    plan = (nt_ring_plan){.base = block + (64 - ((uintptr_t)block & 63))};
    nt_ring *ring = ring_place(&plan, capacity, frames);
    ring->block = block;
    ring->size = size;
    ring->resize = alloc->resize;
    ring->resize_ctx = alloc->ctx;
    (void)nt_ring_add_text(ring, "", 0);
    return ring;
}

void
nt_ring_free(nt_ring *ring)
{
    if (ring != NULL) {
        const nt_alloc alloc = {.resize = ring->resize, .ctx = ring->resize_ctx};
        nt_release(&alloc, ring->block, (size_t)ring->size);
    }
}

void
nt_ring_restart(nt_ring *ring, int late)
{
    nt_ring_origins_clear(&ring->origins);
    __atomic_store_n(&ring->late, (uint32_t)(late != 0), __ATOMIC_RELAXED);
    __atomic_store_n(&ring->start, nt_ring_head(ring), __ATOMIC_RELEASE);
}

uint64_t
nt_ring_start(const nt_ring *ring)
{
    return __atomic_load_n(&ring->start, __ATOMIC_ACQUIRE);
}

int
nt_ring_is_late(const nt_ring *ring)
{
    return (int)__atomic_load_n(&ring->late, __ATOMIC_RELAXED);
}

uint64_t
nt_ring_room(const nt_ring *ring)
{
    return ring->mask;
}

/* The oldest event that nobody is writing over, with `head` events pushed. */
static uint64_t
ring_oldest(const nt_ring *ring, uint64_t head)
{
    return head <= ring->mask ? 0 : head - ring->mask;
}

static void
ring_copy(const nt_ring_entry *slot, nt_ring_entry *out)
{
    const uint64_t *words = (const uint64_t *)(const void *)slot;
    out->ticks = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
    out->addr = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
    out->size = __atomic_load_n(&words[2], __ATOMIC_ACQUIRE);
    out->stream = __atomic_load_n(&words[3], __ATOMIC_ACQUIRE);
    out->pool_first = __atomic_load_n(&words[4], __ATOMIC_ACQUIRE);
    out->pool_second = __atomic_load_n(&words[5], __ATOMIC_ACQUIRE);
    const uint64_t ids = __atomic_load_n(&words[6], __ATOMIC_ACQUIRE);
    const uint64_t kind = __atomic_load_n(&words[7], __ATOMIC_ACQUIRE);
    out->stack = (uint32_t)ids;
    out->metadata = (uint32_t)(ids >> 32);
    out->action = (uint8_t)kind;
    out->flags = (uint8_t)(kind >> 8);
    out->unused16 = 0;
    out->unused32 = 0;
}

uint64_t
nt_ring_read(const nt_ring *ring, uint64_t from, uint64_t until, nt_ring_entry *out)
{
    const uint64_t before = ring_oldest(ring, nt_ring_head(ring));
    uint64_t first = before > from ? before : from;
    for (uint64_t i = first; i < until; i++) {
        ring_copy(&ring->entries[i & ring->mask], &out[i - from]);
    }
    const uint64_t after = ring_oldest(ring, nt_ring_head(ring));
    first = after > first ? after : first;
    return first < until ? first : until;
}
