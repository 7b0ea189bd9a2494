/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ordered.h"

#include <string.h>

/* Members in a run: few enough that moving half of them is cheap, many enough that the
 * list of runs stays short. */
#define ORDERED_RUN 64

/* Room in a set's first run at first: an allocator can have a great many pools of one
 * or two free blocks. */
#define ORDERED_FIRST 2

/* The key of the last member stands here too: searching reads one run only. */
struct nt_ordered_run {
    uint64_t first, second;
    nt_ordered_entry *entries;
    size_t count;
    size_t room; /* ORDERED_RUN; or ORDERED_FIRST in a set's only run */
};

#define ORDERED_NOBODY ((nt_ordered_entry){0, 0, NT_NONE})

static bool
ordered_below(uint64_t first, uint64_t second, uint64_t than_first,
              uint64_t than_second)
{
    /* Without a branch: which way a comparison goes can't be foretold. */
    return (first < than_first) | ((first == than_first) & (second < than_second));
}

/* The first run whose last key is not below this one; run_count if there is none. */
static size_t
ordered_find_run(const nt_ordered *set, uint64_t first, uint64_t second)
{
    const nt_ordered_run *runs = set->runs;
    size_t low = 0, left = set->run_count;
    while (left > 0) {
        const size_t half = left / 2;
        const nt_ordered_run *run = &runs[low + half];
        const bool is_below = ordered_below(run->first, run->second, first, second);
        low = is_below ? low + half + 1 : low;
        left = is_below ? left - half - 1 : half;
    }
    return low;
}

/* The first place in the run whose key is not below this one; its count if none is. */
static size_t
ordered_find_place(const nt_ordered_run *run, uint64_t first, uint64_t second)
{
    const nt_ordered_entry *entries = run->entries;
    size_t low = 0, left = run->count;
    while (left > 0) {
        const size_t half = left / 2;
        const nt_ordered_entry *entry = &entries[low + half];
        const bool is_below = ordered_below(entry->first, entry->second, first, second);
        low = is_below ? low + half + 1 : low;
        left = is_below ? left - half - 1 : half;
    }
    return low;
}

static void
ordered_note_last(nt_ordered_run *run)
{
    run->first = run->entries[run->count - 1].first;
    run->second = run->entries[run->count - 1].second;
}

void
nt_ordered_clear(nt_ordered *set, const nt_alloc *alloc)
{
    for (size_t i = 0; i < set->run_count; i++) {
        NT_RELEASE(alloc, set->runs[i].entries, set->runs[i].room);
    }
    NT_RELEASE(alloc, set->runs, set->run_capacity);
    *set = (nt_ordered){.count = 0};
}

/* Puts an empty run with `room` of its own at `at`. */
static nt_status
ordered_open_run(nt_ordered *set, const nt_alloc *alloc, size_t at, size_t room,
                 nt_error *err)
{
    NT_TRY(NT_GROW(alloc, set->runs, set->run_capacity, set->run_count + 1, err));
    nt_ordered_entry *entries;
    NT_TRY(NT_NEW(alloc, entries, room, err));
    memmove(set->runs + at + 1, set->runs + at,
            (set->run_count - at) * sizeof *set->runs);
    set->runs[at] = (nt_ordered_run){.entries = entries, .room = room};
    set->run_count++;
    return NT_OK;
}

static void
ordered_close_run(nt_ordered *set, const nt_alloc *alloc, size_t at)
{
    NT_RELEASE(alloc, set->runs[at].entries, set->runs[at].room);
    set->run_count--;
    memmove(set->runs + at, set->runs + at + 1,
            (set->run_count - at) * sizeof *set->runs);
}

/* Gives a short run that is full the room of the others. */
static nt_status
ordered_extend_run(nt_ordered_run *run, const nt_alloc *alloc, nt_error *err)
{
    nt_ordered_entry *entries;
    NT_TRY(NT_NEW(alloc, entries, ORDERED_RUN, err));
    memcpy(entries, run->entries, run->count * sizeof *entries);
    NT_RELEASE(alloc, run->entries, run->room);
    run->entries = entries;
    run->room = ORDERED_RUN;
    return NT_OK;
}

/* Moves the upper half of a full run into a new one behind it. */
static nt_status
ordered_split_run(nt_ordered *set, const nt_alloc *alloc, size_t at, nt_error *err)
{
    NT_TRY(ordered_open_run(set, alloc, at + 1, ORDERED_RUN, err));
    nt_ordered_run *low = &set->runs[at], *high = &set->runs[at + 1];
    const size_t kept = low->count / 2;
    high->count = low->count - kept;
    memcpy(high->entries, low->entries + kept, high->count * sizeof(nt_ordered_entry));
    low->count = kept;
    ordered_note_last(low);
    ordered_note_last(high);
    return NT_OK;
}

/* Joins run `at` with the one behind it where both are small, so that a set which
 * shrank does not keep a run for every few members. */
static void
ordered_join_runs(nt_ordered *set, const nt_alloc *alloc, size_t at)
{
    if (at + 1 >= set->run_count) {
        return;
    }
    nt_ordered_run *low = &set->runs[at], *high = &set->runs[at + 1];
    if (low->count + high->count > ORDERED_RUN / 2) {
        return;
    }
    memcpy(low->entries + low->count, high->entries,
           high->count * sizeof(nt_ordered_entry));
    low->count += high->count;
    ordered_note_last(low);
    ordered_close_run(set, alloc, at + 1);
}

nt_status
nt_ordered_add(nt_ordered *set, const nt_alloc *alloc, nt_ordered_entry entry,
               nt_error *err)
{
    size_t at = ordered_find_run(set, entry.first, entry.second);
    if (set->run_count == 0) {
        NT_TRY(ordered_open_run(set, alloc, 0, ORDERED_FIRST, err));
    } else if (at == set->run_count) {
        at--;
    }
    if (set->runs[at].count == ORDERED_RUN) {
        NT_TRY(ordered_split_run(set, alloc, at, err));
        const nt_ordered_run *low = &set->runs[at];
        at += ordered_below(low->first, low->second, entry.first, entry.second);
    }
    nt_ordered_run *run = &set->runs[at];
    if (run->count == run->room) {
        NT_TRY(ordered_extend_run(run, alloc, err));
    }
    const size_t place = ordered_find_place(run, entry.first, entry.second);
    nt_ordered_entry *entries = run->entries;
    memmove(entries + place + 1, entries + place,
            (run->count - place) * sizeof *entries);
    entries[place] = entry;
    run->count++;
    set->count++;
    ordered_note_last(run);
    return NT_OK;
}

uint32_t
nt_ordered_remove(nt_ordered *set, const nt_alloc *alloc, uint64_t first,
                  uint64_t second)
{
    const size_t at = ordered_find_run(set, first, second);
    if (at == set->run_count) {
        return NT_NONE;
    }
    nt_ordered_run *run = &set->runs[at];
    const size_t place = ordered_find_place(run, first, second);
    nt_ordered_entry *entries = run->entries;
    if (entries[place].first != first || entries[place].second != second) {
        return NT_NONE;
    }
    const uint32_t value = entries[place].value;
    run->count--;
    set->count--;
    memmove(entries + place, entries + place + 1,
            (run->count - place) * sizeof *entries);
    if (run->count == 0) {
        ordered_close_run(set, alloc, at);
        return value;
    }
    ordered_note_last(run);
    if (run->count < ORDERED_RUN / 4) {
        ordered_join_runs(set, alloc, at == 0 ? 0 : at - 1);
    }
    return value;
}

/* Whether a key belongs into run `at` as it is. */
static bool
ordered_is_of_run(const nt_ordered *set, size_t at, uint64_t first, uint64_t second)
{
    const nt_ordered_run *runs = set->runs;
    return (at == 0 ||
            ordered_below(runs[at - 1].first, runs[at - 1].second, first, second)) &&
           (at + 1 == set->run_count ||
            ordered_below(first, second, runs[at + 1].entries[0].first,
                          runs[at + 1].entries[0].second));
}

nt_status
nt_ordered_move(nt_ordered *set, const nt_alloc *alloc, uint64_t first, uint64_t second,
                nt_ordered_entry entry, nt_error *err)
{
    const size_t at = ordered_find_run(set, first, second);
    if (!ordered_is_of_run(set, at, entry.first, entry.second)) {
        (void)nt_ordered_remove(set, alloc, first, second);
        return nt_ordered_add(set, alloc, entry, err);
    }
    nt_ordered_run *run = &set->runs[at];
    nt_ordered_entry *entries = run->entries;
    size_t from = ordered_find_place(run, first, second);
    for (; from + 1 < run->count &&
           ordered_below(entries[from + 1].first, entries[from + 1].second, entry.first,
                         entry.second);
         from++) {
        entries[from] = entries[from + 1];
    }
    for (; from > 0 && ordered_below(entry.first, entry.second, entries[from - 1].first,
                                     entries[from - 1].second);
         from--) {
        entries[from] = entries[from - 1];
    }
    entries[from] = entry;
    ordered_note_last(run);
    return NT_OK;
}

nt_ordered_entry
nt_ordered_from(const nt_ordered *set, uint64_t first, uint64_t second)
{
    const size_t at = ordered_find_run(set, first, second);
    if (at == set->run_count) {
        return ORDERED_NOBODY;
    }
    const nt_ordered_run *run = &set->runs[at];
    return run->entries[ordered_find_place(run, first, second)];
}

nt_ordered_entry
nt_ordered_after(const nt_ordered *set, uint64_t first, uint64_t second)
{
    if (second != UINT64_MAX) {
        return nt_ordered_from(set, first, second + 1);
    }
    return first == UINT64_MAX ? ORDERED_NOBODY : nt_ordered_from(set, first + 1, 0);
}

nt_ordered_entry
nt_ordered_before(const nt_ordered *set, uint64_t first, uint64_t second)
{
    size_t at = ordered_find_run(set, first, second);
    if (at < set->run_count) {
        const nt_ordered_run *run = &set->runs[at];
        const size_t place = ordered_find_place(run, first, second);
        if (place > 0) {
            return run->entries[place - 1];
        }
    }
    if (at == 0) {
        return ORDERED_NOBODY;
    }
    const nt_ordered_run *run = &set->runs[at - 1];
    return run->entries[run->count - 1];
}

bool
nt_ordered_check(const nt_ordered *set)
{
    size_t count = 0;
    nt_ordered_entry last = ORDERED_NOBODY;
    for (size_t at = 0; at < set->run_count; at++) {
        const nt_ordered_run *run = &set->runs[at];
        if (run->count == 0 || run->count > ORDERED_RUN) {
            return false;
        }
        for (size_t i = 0; i < run->count; i++) {
            const nt_ordered_entry entry = run->entries[i];
            if (entry.value == NT_NONE ||
                (last.value != NT_NONE &&
                 !ordered_below(last.first, last.second, entry.first, entry.second))) {
                return false;
            }
            last = entry;
        }
        if (run->first != last.first || run->second != last.second) {
            return false;
        }
        count += run->count;
    }
    return count == set->count;
}
