/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting by a 64-bit key, without memory of its own. */
#ifndef NT_SORT_H
#define NT_SORT_H

#include "base/nt_base.h"

typedef struct nt_sort_item {
    uint64_t key;
    uint32_t value;
} nt_sort_item;

/* Orders `count` items by key upwards, equal keys by value: n log n in any case. */
void
nt_sort(nt_sort_item *items, size_t count);

#endif
