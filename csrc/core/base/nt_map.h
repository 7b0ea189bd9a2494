/* SPDX-License-Identifier: Apache-2.0 */
/* Hash tables by open addressing: `nt_map` from a 64-bit key to a 32-bit value, and
 * `nt_strings`, which gives equal byte strings one id. */
#ifndef NT_MAP_H
#define NT_MAP_H

#include "base/nt_arena.h"
#include "base/nt_base.h"

/* No entry, no id. */
#define NT_NONE UINT32_MAX

typedef struct nt_map_entry {
    uint64_t key;
    uint32_t value; /* NT_NONE marks an empty slot */
    uint32_t hash;  /* low bits of the key's hash: most tables are smaller than that */
} nt_map_entry;

/* All-zero but for `alloc` is a valid, empty map. */
typedef struct nt_map {
    nt_alloc alloc;
    nt_map_entry *entries; /* `slots` of them, a power of two, or NULL */
    size_t slots;
    size_t count;
} nt_map;

void
nt_map_init(nt_map *map, nt_alloc alloc);
void
nt_map_clear(nt_map *map);

/* Decides where `key` belongs. The table's own address takes part: it differs from run
 * to run, so nobody can make a file whose keys all meet in one slot. A table of more
 * than 2^32 slots begins its search in the first 2^32. */
static inline uint32_t
nt_map_hash(const nt_map *map, uint64_t key)
{
    const uint64_t seed = (uint64_t)(uintptr_t)map->entries;
    return (uint32_t)(nt_mix64(key ^ seed) >> 7);
}

/* The value under `key`, or NT_NONE. */
static inline uint32_t
nt_map_find(const nt_map *map, uint64_t key)
{
    if (map->count == 0) {
        return NT_NONE;
    }
    size_t slot = nt_map_hash(map, key) & (map->slots - 1);
    while (map->entries[slot].value != NT_NONE) {
        if (map->entries[slot].key == key) {
            return map->entries[slot].value;
        }
        slot = (slot + 1) & (map->slots - 1);
    }
    return NT_NONE;
}

/* Puts `value` (not NT_NONE) under `key`, replacing what was there. */
nt_status
nt_map_set(nt_map *map, uint64_t key, uint32_t value, nt_error *err) NT_CHECKED;

/* The same; *old is what was under `key` before, or NT_NONE. */
nt_status
nt_map_swap(nt_map *map, uint64_t key, uint32_t value, uint32_t *old,
            nt_error *err) NT_CHECKED;

/* Removes `key`; returns what was under it, or NT_NONE. */
uint32_t
nt_map_remove(nt_map *map, uint64_t key);

/* Interned strings: ids count up from 0 in the order of first sight. */
typedef struct nt_strings nt_strings;

nt_status
nt_strings_new(const nt_alloc *alloc, nt_strings **out, nt_error *err) NT_CHECKED;
void
nt_strings_free(nt_strings *strings);

/* The id of these bytes, which are copied at first sight. */
nt_status
nt_strings_intern(nt_strings *strings, const void *bytes, size_t length, uint32_t *out,
                  nt_error *err) NT_CHECKED;

/* The id of these bytes, or NT_NONE if they were never interned. */
uint32_t
nt_strings_find(const nt_strings *strings, const void *bytes, size_t length);

/* The bytes under `id` (no terminator) and their number; valid as long as the table is.
 */
const char *
nt_strings_get(const nt_strings *strings, uint32_t id, size_t *length);

size_t
nt_strings_count(const nt_strings *strings);

#endif
