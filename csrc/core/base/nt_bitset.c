/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_bitset.h"

#include <string.h>

/* The place of the lowest and of the highest bit of a word that is not 0. */
static size_t
bitset_lowest(uint64_t word)
{
#if defined(__GNUC__)
    return (size_t)__builtin_ctzll(word);
#else
    size_t bit = 0;
    while ((word >> bit & 1) == 0) {
        bit++;
    }
    return bit;
#endif
}

static size_t
bitset_highest(uint64_t word)
{
#if defined(__GNUC__)
    return 63 - (size_t)__builtin_clzll(word);
#else
    size_t bit = 63;
    while ((word >> bit & 1) == 0) {
        bit--;
    }
    return bit;
#endif
}

nt_status
nt_bitset_init(nt_bitset *set, nt_alloc alloc, size_t size, nt_error *err)
{
    *set = (nt_bitset){.alloc = alloc, .size = size};
    /* The top level is one word; a set of size 0 has one word too. */
    size_t words = size, total = 0;
    do {
        words = words / 64 + (words % 64 != 0 || words == 0);
        set->first[set->levels++] = total;
        total += words;
    } while (words > 1);
    NT_TRY(NT_NEW(&alloc, set->words, total, err));
    set->word_count = total;
    memset(set->words, 0, total * sizeof(uint64_t));
    return NT_OK;
}

void
nt_bitset_clear(nt_bitset *set)
{
    NT_RELEASE(&set->alloc, set->words, set->word_count);
    *set = (nt_bitset){.alloc = set->alloc};
}

void
nt_bitset_add(nt_bitset *set, size_t number)
{
    NT_ASSERT(number < set->size);
    for (unsigned level = 0; level < set->levels; level++) {
        set->words[set->first[level] + number / 64] |= UINT64_C(1) << number % 64;
        number /= 64;
    }
}

void
nt_bitset_assign(nt_bitset *set, const uint64_t *bits)
{
    memset(set->words, 0, set->word_count * sizeof(uint64_t));
    size_t words = set->size / 64 + (set->size % 64 != 0);
    memcpy(set->words, bits, words * sizeof(uint64_t));
    if (set->size % 64 != 0) {
        set->words[words - 1] &= (UINT64_C(1) << set->size % 64) - 1;
    }
    for (unsigned level = 0; level + 1 < set->levels; level++) {
        const uint64_t *below = &set->words[set->first[level]];
        uint64_t *above = &set->words[set->first[level + 1]];
        for (size_t i = 0; i < words; i++) {
            above[i / 64] |= (uint64_t)(below[i] != 0) << i % 64;
        }
        words = words / 64 + (words % 64 != 0);
    }
}

void
nt_bitset_remove(nt_bitset *set, size_t number)
{
    NT_ASSERT(number < set->size);
    for (unsigned level = 0; level < set->levels; level++) {
        uint64_t *word = &set->words[set->first[level] + number / 64];
        *word &= ~(UINT64_C(1) << number % 64);
        if (*word != 0) {
            return;
        }
        number /= 64;
    }
}

/* Goes down to the member at the low or high end of what `number` of `level` stands
 * for. */
static size_t
bitset_descend(const nt_bitset *set, unsigned level, size_t number, bool highest)
{
    while (level-- > 0) {
        const uint64_t word = set->words[set->first[level] + number];
        number = number * 64 + (highest ? bitset_highest(word) : bitset_lowest(word));
    }
    return number;
}

size_t
nt_bitset_last(const nt_bitset *set, size_t number)
{
    for (unsigned level = 0; level < set->levels; level++) {
        const uint64_t upto = UINT64_MAX >> (63 - number % 64);
        const uint64_t word = set->words[set->first[level] + number / 64] & upto;
        if (word != 0) {
            const size_t found = number / 64 * 64 + bitset_highest(word);
            return bitset_descend(set, level, found, true);
        }
        if (number < 64) {
            break;
        }
        /* Above, the words before this one. */
        number = number / 64 - 1;
    }
    return NT_NO_MEMBER;
}

size_t
nt_bitset_next(const nt_bitset *set, size_t number)
{
    if (number >= set->size) {
        return NT_NO_MEMBER;
    }
    size_t words = (set->size + 63) / 64;
    for (unsigned level = 0; level < set->levels; level++) {
        const uint64_t from = UINT64_MAX << number % 64;
        const uint64_t word = set->words[set->first[level] + number / 64] & from;
        if (word != 0) {
            const size_t found = number / 64 * 64 + bitset_lowest(word);
            return bitset_descend(set, level, found, false);
        }
        /* Above, the words behind this one. */
        number = number / 64 + 1;
        if (number >= words) {
            break;
        }
        words = (words + 63) / 64;
    }
    return NT_NO_MEMBER;
}
