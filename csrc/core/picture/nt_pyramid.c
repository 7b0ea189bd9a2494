/* SPDX-License-Identifier: Apache-2.0 */
#include "picture/nt_pyramid.h"

/* 4^32 exceeds any count. */
enum { PYRAMID_LEVELS = 32 };

struct nt_pyramid {
    nt_alloc alloc;
    uint64_t *values;
    size_t count;
    size_t levels;
    nt_extremes *entries; /* of level 1, then of level 2, and so on */
    size_t entry_count;
    size_t
        first[PYRAMID_LEVELS + 1]; /* of level k at [k - 1]; behind the last, the end */
};

static void
pyramid_join(nt_extremes *into, nt_extremes other)
{
    into->least = other.least < into->least ? other.least : into->least;
    into->largest = other.largest > into->largest ? other.largest : into->largest;
}

/* Entry `at` of a level; level 0 is the series. */
static nt_extremes
pyramid_entry(const nt_pyramid *p, size_t level, size_t at)
{
    return level == 0 ? (nt_extremes){p->values[at], p->values[at]}
                      : p->entries[p->first[level - 1] + at];
}

static size_t
pyramid_size(const nt_pyramid *p, size_t level)
{
    return level == 0 ? p->count : p->first[level] - p->first[level - 1];
}

static void
pyramid_fill(nt_pyramid *p, size_t level)
{
    const size_t below = pyramid_size(p, level - 1);
    for (size_t at = 0; at < pyramid_size(p, level); at++) {
        const size_t first = at * NT_PYRAMID_FANOUT;
        nt_extremes sum = pyramid_entry(p, level - 1, first);
        for (size_t i = first + 1; i < below && i < first + NT_PYRAMID_FANOUT; i++) {
            pyramid_join(&sum, pyramid_entry(p, level - 1, i));
        }
        p->entries[p->first[level - 1] + at] = sum;
    }
}

/* Where each level begins, in `entries`. */
static void
pyramid_measure(nt_pyramid *p)
{
    size_t size = p->count;
    while (size > 1 || (p->levels == 0 && size == 1)) {
        size = size / NT_PYRAMID_FANOUT + (size % NT_PYRAMID_FANOUT != 0);
        p->first[p->levels++] = p->entry_count;
        p->entry_count += size;
    }
    p->first[p->levels] = p->entry_count;
}

nt_status
nt_pyramid_new(const nt_alloc *alloc, const uint64_t *values, size_t count,
               nt_pyramid **out, nt_error *err)
{
    nt_pyramid *p;
    NT_TRY(NT_NEW(alloc, p, 1, err));
    *p = (nt_pyramid){.alloc = *alloc, .count = count};
    pyramid_measure(p);
    p->values = nt_allocate(alloc, count * sizeof *values);
    p->entries = nt_allocate(alloc, p->entry_count * sizeof *p->entries);
    if (count != 0 && (p->values == NULL || p->entries == NULL)) {
        nt_pyramid_free(p);
        return nt_fail_nomem(err);
    }
    for (size_t i = 0; i < count; i++) {
        p->values[i] = values[i];
    }
    for (size_t level = 1; level <= p->levels; level++) {
        pyramid_fill(p, level);
    }
    *out = p;
    return NT_OK;
}

void
nt_pyramid_free(nt_pyramid *p)
{
    if (p == NULL) {
        return;
    }
    const nt_alloc alloc = p->alloc;
    NT_RELEASE(&alloc, p->values, p->count);
    NT_RELEASE(&alloc, p->entries, p->entry_count);
    nt_release(&alloc, p, sizeof *p);
}

size_t
nt_pyramid_count(const nt_pyramid *p)
{
    return p->count;
}

size_t
nt_pyramid_levels(const nt_pyramid *p)
{
    return p->levels;
}

const nt_extremes *
nt_pyramid_level(const nt_pyramid *p, size_t level, size_t *count)
{
    *count = pyramid_size(p, level);
    return p->entries + p->first[level - 1];
}

nt_extremes
nt_pyramid_range(const nt_pyramid *p, size_t first, size_t end)
{
    nt_extremes sum = {UINT64_MAX, 0};
    /* What does not fill an entry of the next level is taken from this one, at both
     * ends; what is left goes up a level. */
    for (size_t level = 0; first < end; level++) {
        while (first < end && (first % NT_PYRAMID_FANOUT != 0 || level == p->levels)) {
            pyramid_join(&sum, pyramid_entry(p, level, first++));
        }
        while (first < end && end % NT_PYRAMID_FANOUT != 0) {
            pyramid_join(&sum, pyramid_entry(p, level, --end));
        }
        first /= NT_PYRAMID_FANOUT;
        end /= NT_PYRAMID_FANOUT;
    }
    return sum;
}
