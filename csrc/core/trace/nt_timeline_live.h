/* SPDX-License-Identifier: Apache-2.0 */
/* Which row an address belongs to now, while a trace is replayed. Blocks come and go by
 * the million, so the table is made for that: four addresses lie in one line of the
 * processor's cache, are compared at once, and leave no gap that others must close. */
#ifndef NT_TIMELINE_LIVE_H
#define NT_TIMELINE_LIVE_H

#include "base/nt_map.h"

#define NT_LIVE_PLACES 4

/* What stands for an address at a free place. */
#define NT_LIVE_NOWHERE UINT64_MAX

/* As large as a line of the cache. */
typedef struct nt_live_bucket {
    uint64_t address[NT_LIVE_PLACES];
    uint32_t row[NT_LIVE_PLACES]; /* NT_NONE: the place is free */
    uint32_t beyond;              /* how many belong here or before and stand behind */
    uint32_t unused[3];
} nt_live_bucket;

/* All-zero but for `alloc` is a valid, empty table. */
typedef struct nt_timeline_live {
    nt_alloc alloc;
    nt_live_bucket *buckets; /* in `memory`, at the beginning of a line */
    size_t bucket_count;     /* a power of two, or 0 */
    size_t count;
    void *memory;
} nt_timeline_live;

void
nt_timeline_live_clear(nt_timeline_live *live);

/* Puts `row` under `address`; *old is what was under it before, or NT_NONE. */
nt_status
nt_timeline_live_set(nt_timeline_live *live, uint64_t address, uint32_t row,
                     uint32_t *old, nt_error *err) NT_CHECKED;

/* The bucket where the search for `address` begins; there are some. The table's own
 * address takes part, for the reason given at nt_map_hash. */
static inline size_t
nt_timeline_live_home(const nt_timeline_live *live, uint64_t address)
{
    const uint64_t seed = (uint64_t)(uintptr_t)live->buckets;
    return (size_t)(nt_mix64(address ^ seed) >> 7) & (live->bucket_count - 1);
}

/* The first of four places of which bits are set, NT_LIVE_PLACES for none. No branch,
 * because nobody could foresee it. */
static inline unsigned
nt_timeline_live_first(bool a, bool b, bool c, bool d)
{
    static const uint8_t first[16] = {
        NT_LIVE_PLACES, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0};
    return first[(unsigned)a | (unsigned)b << 1 | (unsigned)c << 2 | (unsigned)d << 3];
}

/* The first place of the bucket that holds `address`, and the first free one. */
static inline unsigned
nt_timeline_live_match(const nt_live_bucket *bucket, uint64_t address)
{
    const uint64_t *at = bucket->address;
    return nt_timeline_live_first(at[0] == address, at[1] == address, at[2] == address,
                                  at[3] == address);
}

static inline unsigned
nt_timeline_live_free(const nt_live_bucket *bucket)
{
    const uint32_t *row = bucket->row;
    return nt_timeline_live_first(row[0] == NT_NONE, row[1] == NT_NONE,
                                  row[2] == NT_NONE, row[3] == NT_NONE);
}

/* What nt_timeline_live_locate does, place by place: NT_LIVE_NOWHERE is an address too.
 */
uint32_t
nt_timeline_live_seek(const nt_timeline_live *live, uint64_t address, size_t *number,
                      unsigned *place);

/* The row under `address` and its place, or NT_NONE. */
static inline uint32_t
nt_timeline_live_locate(const nt_timeline_live *live, uint64_t address, size_t *number,
                        unsigned *place)
{
    if (live->count == 0 || NT_UNLIKELY(address == NT_LIVE_NOWHERE)) {
        return nt_timeline_live_seek(live, address, number, place);
    }
    size_t at = nt_timeline_live_home(live, address);
    for (;; at = (at + 1) & (live->bucket_count - 1)) {
        const nt_live_bucket *bucket = &live->buckets[at];
        *number = at;
        *place = nt_timeline_live_match(bucket, address);
        if (NT_LIKELY(*place != NT_LIVE_PLACES)) {
            return bucket->row[*place];
        }
        if (NT_LIKELY(bucket->beyond == 0)) {
            return NT_NONE;
        }
    }
}

static inline uint32_t
nt_timeline_live_find(const nt_timeline_live *live, uint64_t address)
{
    size_t number;
    unsigned place;
    return nt_timeline_live_locate(live, address, &number, &place);
}

/* Takes `address` out; returns the row that was under it, or NT_NONE. */
static inline uint32_t
nt_timeline_live_remove(nt_timeline_live *live, uint64_t address)
{
    size_t number;
    unsigned place;
    const uint32_t row = nt_timeline_live_locate(live, address, &number, &place);
    if (row != NT_NONE) {
        live->buckets[number].row[place] = NT_NONE;
        live->buckets[number].address[place] = NT_LIVE_NOWHERE;
        live->count--;
        for (size_t at = nt_timeline_live_home(live, address); at != number;
             at = (at + 1) & (live->bucket_count - 1)) {
            live->buckets[at].beyond--;
        }
    }
    return row;
}

#endif
