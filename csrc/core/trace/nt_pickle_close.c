/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that ends early leaves containers open. Here they are closed from the
 * inside out: lists and the dicts that are values keep what was whole, and a
 * dict that was to become an item of a list (an event, block or segment that is
 * not all there) is left out.
 */
#include "trace/nt_pickle.h"
#include "trace/nt_pickle_machine.h"

static bool
pickle_is_container(nt_value value)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    return tag == NT_VALUE_RECORD || tag == NT_VALUE_LIST || tag == NT_VALUE_DICT ||
           tag == NT_VALUE_TUPLE || tag == NT_VALUE_SEQUENCE;
}

/* A dict that was only just begun: whatever it was to be, nothing is known. */
static bool
pickle_is_empty_dict(const nt_pickle *p, nt_value value)
{
    size_t count = 1;
    if (nt_value_tag_of(value) == NT_VALUE_DICT) {
        (void)nt_values_pairs(p->values, value, &count);
    }
    return count == 0;
}

/* A dict with strings behind it was waiting for those to be set in it. */
static bool
pickle_is_waiting(const nt_pickle *p, size_t at)
{
    return at + 1 < p->stack_count && nt_value_tag_of(p->stack[at]) == NT_VALUE_DICT &&
           nt_value_tag_of(p->stack[at + 1]) == NT_VALUE_STRING;
}

/* The open list at height `first` - 1 gets the whole items above it. */
static nt_status
pickle_close_list(nt_pickle *p, size_t first)
{
    size_t end = first;
    while (end < p->stack_count && pickle_is_container(p->stack[end]) &&
           !pickle_is_empty_dict(p, p->stack[end])) {
        end++;
    }
    if (end > first && pickle_is_waiting(p, end - 1)) {
        end--;
    }
    p->stack_count = end;
    return nt_pickle_append_from(p, first);
}

/* Whether the container at height `at` was to become an item of a list. */
static bool
pickle_is_list_item(const nt_pickle *p, size_t at)
{
    if (at == 0) {
        return false;
    }
    if (nt_value_tag_of(p->stack[at - 1]) == NT_VALUE_LIST) {
        return true; /* directly above its list, or the first behind its mark */
    }
    const size_t floor = nt_pickle_floor(p);
    return p->mark_count != 0 && floor > 0 && floor <= at &&
           nt_value_tag_of(p->stack[floor - 1]) == NT_VALUE_LIST;
}

/*
 * Without a mark between them, containers on top of a list are one inside the other:
 * from the top down to height `list` each goes into the list below it.
 */
static nt_status
pickle_fold(nt_pickle *p, size_t list, size_t end)
{
    for (size_t at = end; --at > list;) {
        nt_value item;
        if (nt_value_tag_of(p->stack[at - 1]) == NT_VALUE_LIST) {
            NT_TRY(nt_pickle_place(p, p->stack[at], &item));
            NT_TRY(nt_values_append(p->values, p->stack[at - 1], item, 1, p->err));
        }
    }
    return NT_OK;
}

/* The open dict at height `first` - 1 gets the whole pairs above it; a list
 * among the values takes the containers that follow it, which were meant for it. */
static nt_status
pickle_close_dict(nt_pickle *p, size_t first)
{
    size_t read = first, written = first;
    while (read + 1 < p->stack_count &&
           nt_value_tag_of(p->stack[read]) == NT_VALUE_STRING) {
        const nt_value key = p->stack[read], value = p->stack[read + 1];
        size_t end = read + 2;
        while (end < p->stack_count && nt_value_tag_of(value) == NT_VALUE_LIST &&
               pickle_is_container(p->stack[end])) {
            if (pickle_is_waiting(p, end)) {
                p->stack_count = end;
                break;
            }
            end++;
        }
        NT_TRY(pickle_fold(p, read + 1, end));
        read = end;
        p->stack[written++] = key;
        p->stack[written++] = value;
    }
    p->stack_count = written;
    return nt_pickle_set_from(p, first);
}

/* Closes what the last mark opened. */
static nt_status
pickle_close_mark(nt_pickle *p)
{
    const size_t first = p->marks[--p->mark_count];
    const nt_value_tag tag =
        first == 0 ? NT_VALUE_ABSENT : nt_value_tag_of(p->stack[first - 1]);
    if (tag == NT_VALUE_LIST) {
        return pickle_close_list(p, first);
    }
    if (tag == NT_VALUE_DICT && !pickle_is_list_item(p, first - 1)) {
        return pickle_close_dict(p, first);
    }
    p->stack_count = tag == NT_VALUE_DICT ? first - 1 : first;
    return NT_OK;
}

/* A dict on top may be waiting for more keys, so it is no whole item of a list. */
static void
pickle_drop_unfinished(nt_pickle *p)
{
    const size_t floor = nt_pickle_floor(p);
    if (p->stack_count > floor &&
        nt_value_tag_of(p->stack[p->stack_count - 1]) == NT_VALUE_DICT &&
        pickle_is_list_item(p, p->stack_count - 1)) {
        p->stack_count--;
    }
}

nt_status
nt_pickle_close(nt_pickle *p)
{
    pickle_drop_unfinished(p);
    while (p->mark_count != 0) {
        NT_TRY(pickle_close_mark(p));
    }
    if (p->stack_count > 1) {
        const nt_value_tag tag = nt_value_tag_of(p->stack[0]);
        if (tag == NT_VALUE_LIST) {
            NT_TRY(pickle_close_list(p, 1));
        } else if (tag == NT_VALUE_DICT) {
            NT_TRY(pickle_close_dict(p, 1));
        }
        p->stack_count = 1;
    }
    if (p->stack_count == 0) {
        return nt_pickle_malformed(p, "the file ends before anything could be read");
    }
    return NT_OK;
}
