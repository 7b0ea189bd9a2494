/* SPDX-License-Identifier: Apache-2.0 */
/* A set of numbers 0 .. size - 1 that finds the member before or after a number in a
 * few steps, however large it is: a bit a number, and above each 64 words a word that
 * says which of them are not empty. */
#ifndef NT_BITSET_H
#define NT_BITSET_H

#include "base/nt_base.h"

/* No such member. */
#define NT_NO_MEMBER SIZE_MAX

/* 64^11 exceeds any size. */
#define NT_BITSET_LEVELS 11

typedef struct nt_bitset {
    nt_alloc alloc;
    uint64_t *words; /* level after level, the numbers themselves first */
    size_t word_count;
    size_t size;
    size_t first[NT_BITSET_LEVELS]; /* word at which each level begins */
    unsigned levels;
} nt_bitset;

/* An empty set of numbers below `size`. On failure it is valid for clear only. */
nt_status
nt_bitset_init(nt_bitset *set, nt_alloc alloc, size_t size, nt_error *err) NT_CHECKED;
void
nt_bitset_clear(nt_bitset *set);

/* `number` is below the size. Adding a member again is fine, and so is removing a
 * number that is no member. */
void
nt_bitset_add(nt_bitset *set, size_t number);
void
nt_bitset_remove(nt_bitset *set, size_t number);

/* Makes exactly the numbers members whose bits are set in `bits`, number 0 being the
 * lowest bit of the first word; bits from the size on are ignored. */
void
nt_bitset_assign(nt_bitset *set, const uint64_t *bits);

/* Whether `number`, which is below the size, is a member. */
static inline bool
nt_bitset_has(const nt_bitset *set, size_t number)
{
    return (set->words[number / 64] >> number % 64 & 1) != 0;
}

/* The largest member that is at most `number`, or NT_NO_MEMBER. */
size_t
nt_bitset_last(const nt_bitset *set, size_t number);

/* The smallest member that is at least `number`, or NT_NO_MEMBER. */
size_t
nt_bitset_next(const nt_bitset *set, size_t number);

#endif
