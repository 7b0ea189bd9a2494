/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_timeline_live.h"

/* At first; at most half of the places are taken, so that few stand behind their own
 * bucket. */
#define LIVE_FIRST_BUCKETS ((size_t)16)

void
nt_timeline_live_clear(nt_timeline_live *live)
{
    nt_release(&live->alloc, live->memory,
               (live->bucket_count + 1) * sizeof(nt_live_bucket));
    *live = (nt_timeline_live){.alloc = live->alloc};
}

uint32_t
nt_timeline_live_seek(const nt_timeline_live *live, uint64_t address, size_t *number,
                      unsigned *place)
{
    if (live->count == 0) {
        return NT_NONE;
    }
    size_t at = nt_timeline_live_home(live, address);
    for (;; at = (at + 1) & (live->bucket_count - 1)) {
        const nt_live_bucket *bucket = &live->buckets[at];
        for (unsigned i = 0; i < NT_LIVE_PLACES; i++) {
            if (bucket->address[i] == address && bucket->row[i] != NT_NONE) {
                *number = at;
                *place = i;
                return bucket->row[i];
            }
        }
        if (bucket->beyond == 0) {
            return NT_NONE;
        }
    }
}

/* Puts a row under an address that is not in the table; there is a free place. */
static inline void
live_add(nt_timeline_live *live, uint64_t address, uint32_t row)
{
    nt_live_bucket *bucket = &live->buckets[nt_timeline_live_home(live, address)];
    nt_live_bucket *const end = live->buckets + live->bucket_count;
    unsigned place = nt_timeline_live_free(bucket);
    while (NT_UNLIKELY(place == NT_LIVE_PLACES)) {
        bucket->beyond++;
        bucket = bucket + 1 == end ? live->buckets : bucket + 1;
        place = nt_timeline_live_free(bucket);
    }
    bucket->address[place] = address;
    bucket->row[place] = row;
    live->count++;
}

static nt_status
live_allocate(nt_timeline_live *live, size_t bucket_count, nt_error *err)
{
    size_t bytes;
    /* One more, so that the first can be at the beginning of a line. */
    live->memory = nt_size_mul(bucket_count + 1, sizeof(nt_live_bucket), &bytes)
                       ? nt_allocate(&live->alloc, bytes)
                       : NULL;
    if (live->memory == NULL) {
        return nt_fail_nomem(err);
    }
    const size_t line = sizeof(nt_live_bucket);
    const size_t into = (size_t)(uintptr_t)live->memory % line;
    live->buckets =
        (nt_live_bucket *)(void *)((char *)live->memory + (line - into) % line);
    live->bucket_count = bucket_count;
    for (size_t at = 0; at < bucket_count; at++) {
        nt_live_bucket *bucket = &live->buckets[at];
        for (unsigned i = 0; i < NT_LIVE_PLACES; i++) {
            bucket->address[i] = NT_LIVE_NOWHERE;
            bucket->row[i] = NT_NONE;
        }
        bucket->beyond = 0;
    }
    return NT_OK;
}

static nt_status
live_enlarge(nt_timeline_live *live, nt_error *err)
{
    const size_t count = live->bucket_count * 2;
    nt_timeline_live larger = {.alloc = live->alloc};
    NT_TRY(live_allocate(&larger, count == 0 ? LIVE_FIRST_BUCKETS : count, err));
    for (size_t at = 0; at < live->bucket_count; at++) {
        const nt_live_bucket *bucket = &live->buckets[at];
        for (unsigned i = 0; i < NT_LIVE_PLACES; i++) {
            if (bucket->row[i] != NT_NONE) {
                live_add(&larger, bucket->address[i], bucket->row[i]);
            }
        }
    }
    nt_timeline_live_clear(live);
    *live = larger;
    return NT_OK;
}

nt_status
nt_timeline_live_set(nt_timeline_live *live, uint64_t address, uint32_t row,
                     uint32_t *old, nt_error *err)
{
    size_t number;
    unsigned place;
    *old = nt_timeline_live_locate(live, address, &number, &place);
    if (*old != NT_NONE) {
        live->buckets[number].row[place] = row;
        return NT_OK;
    }
    if (live->count >= live->bucket_count * (NT_LIVE_PLACES / 2)) {
        NT_TRY(live_enlarge(live, err));
    }
    live_add(live, address, row);
    return NT_OK;
}
