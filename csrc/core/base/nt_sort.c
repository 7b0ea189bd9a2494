/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_sort.h"

static bool
sort_is_less(nt_sort_item a, nt_sort_item b)
{
    return a.key != b.key ? a.key < b.key : a.value < b.value;
}

/* Lets the item at `root` sink until the heap of `count` items holds again. */
static void
sort_sink(nt_sort_item *items, size_t root, size_t count)
{
    const nt_sort_item sinking = items[root];
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && sort_is_less(items[child], items[child + 1])) {
            child++;
        }
        if (!sort_is_less(sinking, items[child])) {
            break;
        }
        items[root] = items[child];
    }
    items[root] = sinking;
}

static bool
sort_is_sorted(const nt_sort_item *items, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (sort_is_less(items[i], items[i - 1])) {
            return false;
        }
    }
    return true;
}

/* Heap sort: in place, and no input makes it slow. What is in order already, as
 * addresses often are, is only looked at. */
void
nt_sort(nt_sort_item *items, size_t count)
{
    if (sort_is_sorted(items, count)) {
        return;
    }
    for (size_t i = count / 2; i-- > 0;) {
        sort_sink(items, i, count);
    }
    for (size_t end = count; end-- > 1;) {
        const nt_sort_item largest = items[0];
        items[0] = items[end];
        items[end] = largest;
        sort_sink(items, 0, end);
    }
}
