/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_map.h"

#include <string.h>

#define MAP_FIRST_SLOTS ((size_t)64)

void
nt_map_init(nt_map *map, nt_alloc alloc)
{
    *map = (nt_map){.alloc = alloc};
}

void
nt_map_clear(nt_map *map)
{
    NT_RELEASE(&map->alloc, map->entries, map->slots);
    nt_map_init(map, map->alloc);
}

static void
map_place(nt_map *map, uint64_t key, uint32_t value)
{
    const uint32_t hash = nt_map_hash(map, key);
    size_t slot = hash & (map->slots - 1);
    while (map->entries[slot].value != NT_NONE) {
        slot = (slot + 1) & (map->slots - 1);
    }
    map->entries[slot] = (nt_map_entry){.key = key, .value = value, .hash = hash};
}

static nt_status
map_enlarge(nt_map *map, nt_error *err)
{
    const size_t slots = map->slots == 0 ? MAP_FIRST_SLOTS : map->slots * 2;
    size_t bytes;
    if (!nt_size_mul(slots, sizeof(nt_map_entry), &bytes)) {
        return nt_fail_nomem(err);
    }
    nt_map_entry *entries;
    NT_TRY(nt_take(&map->alloc, (void **)&entries, bytes, err));
    for (size_t i = 0; i < slots; i++) {
        entries[i] = (nt_map_entry){.value = NT_NONE};
    }
    const nt_map old = *map;
    map->entries = entries;
    map->slots = slots;
    for (size_t i = 0; i < old.slots; i++) {
        if (old.entries[i].value != NT_NONE) {
            map_place(map, old.entries[i].key, old.entries[i].value);
        }
    }
    NT_RELEASE(&map->alloc, old.entries, old.slots);
    return NT_OK;
}

nt_status
nt_map_swap(nt_map *map, uint64_t key, uint32_t value, uint32_t *old, nt_error *err)
{
    NT_ASSERT(value != NT_NONE);
    /* At most half full: linear probing stays short. */
    if (map->count * 2 >= map->slots) {
        NT_TRY(map_enlarge(map, err));
    }
    const uint32_t hash = nt_map_hash(map, key);
    size_t slot = hash & (map->slots - 1);
    while (map->entries[slot].value != NT_NONE && map->entries[slot].key != key) {
        slot = (slot + 1) & (map->slots - 1);
    }
    *old = map->entries[slot].value;
    map->count += *old == NT_NONE;
    map->entries[slot] = (nt_map_entry){.key = key, .value = value, .hash = hash};
    return NT_OK;
}

nt_status
nt_map_set(nt_map *map, uint64_t key, uint32_t value, nt_error *err)
{
    uint32_t old;
    return nt_map_swap(map, key, value, &old, err);
}

uint32_t
nt_map_remove(nt_map *map, uint64_t key)
{
    if (map->count == 0) {
        return NT_NONE;
    }
    const size_t mask = map->slots - 1;
    size_t slot = nt_map_hash(map, key) & mask;
    while (map->entries[slot].value != NT_NONE && map->entries[slot].key != key) {
        slot = (slot + 1) & mask;
    }
    const uint32_t value = map->entries[slot].value;
    if (value == NT_NONE) {
        return NT_NONE;
    }
    /* Close the gap: move up every later entry of the run whose home is not behind the
     * gap, so that no search stops early. */
    size_t gap = slot;
    for (size_t next = (gap + 1) & mask; map->entries[next].value != NT_NONE;
         next = (next + 1) & mask) {
        const size_t home = map->entries[next].hash & mask;
        if (((next - home) & mask) >= ((next - gap) & mask)) {
            map->entries[gap] = map->entries[next];
            gap = next;
        }
    }
    map->entries[gap].value = NT_NONE;
    map->count--;
    return value;
}

typedef struct string_entry {
    const uint8_t *bytes;
    size_t length;
    uint64_t hash;
} string_entry;

struct nt_strings {
    nt_alloc alloc;
    nt_arena arena;        /* the bytes */
    string_entry *entries; /* by id */
    size_t count, capacity;
    uint32_t *slots; /* ids by hash, NT_NONE where empty */
    size_t slot_count;
};

nt_status
nt_strings_new(const nt_alloc *alloc, nt_strings **out, nt_error *err)
{
    nt_strings *strings;
    NT_TRY(NT_NEW(alloc, strings, 1, err));
    *strings = (nt_strings){.alloc = *alloc};
    nt_arena_init(&strings->arena, *alloc);
    *out = strings;
    return NT_OK;
}

void
nt_strings_free(nt_strings *strings)
{
    if (strings == NULL) {
        return;
    }
    const nt_alloc alloc = strings->alloc;
    nt_arena_clear(&strings->arena);
    NT_RELEASE(&alloc, strings->entries, strings->capacity);
    NT_RELEASE(&alloc, strings->slots, strings->slot_count);
    nt_release(&alloc, strings, sizeof *strings);
}

/* Seeded with the table's address, for the reason given at nt_map_hash. */
static uint64_t
strings_hash(const nt_strings *strings, const uint8_t *bytes, size_t length)
{
    uint64_t hash = nt_mix64((uint64_t)(uintptr_t)strings) ^ length;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = nt_mix64(hash ^ word);
        bytes += 8;
        length -= 8;
    }
    uint64_t tail = 0;
    if (length != 0) {
        memcpy(&tail, bytes, length);
    }
    return nt_mix64(nt_mix64(hash ^ tail));
}

/* The slot that holds these bytes, or the empty one where they belong. */
static size_t
strings_slot(const nt_strings *strings, const uint8_t *bytes, size_t length,
             uint64_t hash)
{
    size_t slot = (size_t)hash & (strings->slot_count - 1);
    for (;;) {
        const uint32_t id = strings->slots[slot];
        if (id == NT_NONE) {
            return slot;
        }
        const string_entry *entry = &strings->entries[id];
        if (entry->hash == hash && entry->length == length &&
            (length == 0 || memcmp(entry->bytes, bytes, length) == 0)) {
            return slot;
        }
        slot = (slot + 1) & (strings->slot_count - 1);
    }
}

static nt_status
strings_enlarge(nt_strings *strings, nt_error *err)
{
    const size_t slot_count =
        strings->slot_count == 0 ? MAP_FIRST_SLOTS : strings->slot_count * 2;
    size_t bytes;
    if (!nt_size_mul(slot_count, sizeof(uint32_t), &bytes)) {
        return nt_fail_nomem(err);
    }
    uint32_t *slots;
    NT_TRY(nt_take(&strings->alloc, (void **)&slots, bytes, err));
    memset(slots, 0xff, bytes);
    for (uint32_t id = 0; id < strings->count; id++) {
        size_t slot = (size_t)strings->entries[id].hash & (slot_count - 1);
        while (slots[slot] != NT_NONE) {
            slot = (slot + 1) & (slot_count - 1);
        }
        slots[slot] = id;
    }
    NT_RELEASE(&strings->alloc, strings->slots, strings->slot_count);
    strings->slots = slots;
    strings->slot_count = slot_count;
    return NT_OK;
}

nt_status
nt_strings_intern(nt_strings *strings, const void *bytes, size_t length, uint32_t *out,
                  nt_error *err)
{
    if (strings->count * 2 >= strings->slot_count) {
        NT_TRY(strings_enlarge(strings, err));
    }
    const uint64_t hash = strings_hash(strings, bytes, length);
    const size_t slot = strings_slot(strings, bytes, length, hash);
    if (strings->slots[slot] != NT_NONE) {
        *out = strings->slots[slot];
        return NT_OK;
    }
    if (strings->count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 distinct strings");
    }
    NT_TRY(NT_GROW(&strings->alloc, strings->entries, strings->capacity,
                   strings->count + 1, err));
    const uint8_t *copy = nt_arena_copy(&strings->arena, bytes, length);
    if (copy == NULL) {
        return nt_fail_nomem(err);
    }
    const uint32_t id = (uint32_t)strings->count++;
    strings->entries[id] = (string_entry){copy, length, hash};
    strings->slots[slot] = id;
    *out = id;
    return NT_OK;
}

uint32_t
nt_strings_find(const nt_strings *strings, const void *bytes, size_t length)
{
    if (strings->slot_count == 0) {
        return NT_NONE;
    }
    const uint64_t hash = strings_hash(strings, bytes, length);
    return strings->slots[strings_slot(strings, bytes, length, hash)];
}

const char *
nt_strings_get(const nt_strings *strings, uint32_t id, size_t *length)
{
    NT_ASSERT(id < strings->count);
    *length = strings->entries[id].length;
    return (const char *)strings->entries[id].bytes;
}

size_t
nt_strings_count(const nt_strings *strings)
{
    return strings->count;
}
