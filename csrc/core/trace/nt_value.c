/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_value.h"

#include <string.h>

typedef struct value_node {
    nt_value exchanged; /* what stands for it, NT_VALUE_ABSENT while it is itself */
    nt_value_pair *pairs;
    uint32_t count, capacity;
    uint32_t judged; /* pairs from the first on that were looked at */
    bool is_counted;
} value_node;

typedef struct value_big {
    uint64_t bits; /* low 64 bits, two's complement */
    bool fits;     /* in -2^63 .. 2^64 - 1 */
} value_big;

/* Snapshots write a pool id as a pair of small integers with every event: the pairs
 * seen last are kept, so that a million of them are one node. */
#define TUPLE_CACHE 64

struct nt_values {
    nt_alloc alloc;
    value_node *nodes;
    size_t node_count, node_capacity;
    value_big *bigs;
    size_t big_count, big_capacity;
    double *floats;
    size_t float_count, float_capacity;
    nt_value cached_tuples[TUPLE_CACHE];
};

nt_status
nt_values_new(const nt_alloc *alloc, nt_values **out, nt_error *err)
{
    nt_values *values;
    NT_TRY(NT_NEW(alloc, values, 1, err));
    *values = (nt_values){.alloc = *alloc};
    *out = values;
    return NT_OK;
}

static void
value_release_pairs(nt_values *values, value_node *node)
{
    NT_RELEASE(&values->alloc, node->pairs, node->capacity);
    node->pairs = NULL;
    node->count = 0;
    node->capacity = 0;
}

void
nt_values_free(nt_values *values)
{
    if (values == NULL) {
        return;
    }
    const nt_alloc alloc = values->alloc;
    for (size_t i = 0; i < values->node_count; i++) {
        value_release_pairs(values, &values->nodes[i]);
    }
    NT_RELEASE(&alloc, values->nodes, values->node_capacity);
    NT_RELEASE(&alloc, values->bigs, values->big_capacity);
    NT_RELEASE(&alloc, values->floats, values->float_capacity);
    nt_release(&alloc, values, sizeof *values);
}

nt_status
nt_values_integer(nt_values *values, uint64_t bits, bool negative, bool fits,
                  nt_value *out, nt_error *err)
{
    const uint64_t top = bits >> 59;
    if (fits && (negative ? top == 31 : top == 0)) {
        *out = nt_value_make(NT_VALUE_INT, bits);
        return NT_OK;
    }
    NT_TRY(NT_GROW(&values->alloc, values->bigs, values->big_capacity,
                   values->big_count + 1, err));
    values->bigs[values->big_count] = (value_big){.bits = bits, .fits = fits};
    *out = nt_value_make(NT_VALUE_BIG, values->big_count++);
    return NT_OK;
}

nt_status
nt_values_float(nt_values *values, double real, nt_value *out, nt_error *err)
{
    NT_TRY(NT_GROW(&values->alloc, values->floats, values->float_capacity,
                   values->float_count + 1, err));
    values->floats[values->float_count] = real;
    *out = nt_value_make(NT_VALUE_FLOAT, values->float_count++);
    return NT_OK;
}

nt_status
nt_values_container(nt_values *values, nt_value_tag tag, nt_value *out, nt_error *err)
{
    if (values->node_count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 containers");
    }
    NT_TRY(NT_GROW(&values->alloc, values->nodes, values->node_capacity,
                   values->node_count + 1, err));
    values->nodes[values->node_count] = (value_node){.exchanged = NT_VALUE_ABSENT};
    *out = nt_value_make(tag, values->node_count++);
    return NT_OK;
}

static nt_status
value_push_pair(nt_values *values, value_node *node, nt_value_pair pair, nt_error *err)
{
    if (node->count == node->capacity) {
        size_t capacity = node->capacity;
        void *pairs = node->pairs;
        if (node->count >= UINT32_MAX / 2) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "a container has 2^31 items");
        }
        NT_TRY(nt_grow(&values->alloc, &pairs, &capacity, node->count + (size_t)1,
                       sizeof(nt_value_pair), err));
        node->pairs = pairs;
        node->capacity = (uint32_t)capacity;
    }
    node->pairs[node->count++] = pair;
    return NT_OK;
}

static nt_status
value_make_tuple(nt_values *values, const nt_value *items, size_t count, nt_value *out,
                 nt_error *err)
{
    nt_value tuple = NT_VALUE_ABSENT;
    NT_TRY(nt_values_container(values, NT_VALUE_TUPLE, &tuple, err));
    value_node *node = &values->nodes[nt_value_id(tuple)];
    for (size_t i = 0; i < count; i++) {
        NT_TRY(value_push_pair(values, node, (nt_value_pair){items[i], 1}, err));
    }
    *out = tuple;
    return NT_OK;
}

nt_status
nt_values_tuple(nt_values *values, const nt_value *items, size_t count, nt_value *out,
                nt_error *err)
{
    if (count != 2 || nt_value_tag_of(items[0]) != NT_VALUE_INT ||
        nt_value_tag_of(items[1]) != NT_VALUE_INT) {
        return value_make_tuple(values, items, count, out, err);
    }
    nt_value *cached =
        &values->cached_tuples[nt_mix64(items[0] ^ items[1] << 32) % TUPLE_CACHE];
    if (*cached != NT_VALUE_ABSENT) {
        const nt_value_pair *pairs = values->nodes[nt_value_id(*cached)].pairs;
        if (pairs[0].first == items[0] && pairs[1].first == items[1]) {
            *out = *cached;
            return NT_OK;
        }
    }
    NT_TRY(value_make_tuple(values, items, count, out, err));
    *cached = *out;
    return NT_OK;
}

static value_node *
value_node_of(const nt_values *values, nt_value container)
{
    NT_ASSERT(nt_value_id(container) < values->node_count);
    return &values->nodes[nt_value_id(container)];
}

static nt_status
value_check_open(const value_node *node, nt_error *err)
{
    if (node->exchanged != NT_VALUE_ABSENT) {
        return nt_fail(err, NT_MALFORMED, NT_NO_OFFSET,
                       "a frame, event or stack is changed after it was put in place");
    }
    return NT_OK;
}

nt_status
nt_values_append(nt_values *values, nt_value list, nt_value item, uint64_t count,
                 nt_error *err)
{
    value_node *node = value_node_of(values, list);
    NT_TRY(value_check_open(node, err));
    if (node->count != 0 && nt_value_tag_of(item) == NT_VALUE_RECORD) {
        nt_value_pair *last = &node->pairs[node->count - 1];
        if (nt_value_tag_of(last->first) == NT_VALUE_RECORD &&
            item == last->first + (last->second << 4)) {
            last->second += count;
            return NT_OK;
        }
    }
    return value_push_pair(values, node, (nt_value_pair){item, count}, err);
}

nt_status
nt_values_set(nt_values *values, nt_value dict, nt_value key, nt_value item,
              nt_error *err)
{
    value_node *node = value_node_of(values, dict);
    NT_TRY(value_check_open(node, err));
    return value_push_pair(values, node, (nt_value_pair){key, item}, err);
}

nt_value
nt_values_resolve(const nt_values *values, nt_value value)
{
    const nt_value_tag tag = nt_value_tag_of(value);
    if (tag == NT_VALUE_DICT || tag == NT_VALUE_LIST) {
        const nt_value exchanged = value_node_of(values, value)->exchanged;
        return exchanged == NT_VALUE_ABSENT ? value : exchanged;
    }
    return value;
}

void
nt_values_exchange(nt_values *values, nt_value container, nt_value by)
{
    value_node *node = value_node_of(values, container);
    value_release_pairs(values, node);
    node->exchanged = by;
}

bool
nt_values_is_judged(const nt_values *values, nt_value container)
{
    const value_node *node = value_node_of(values, container);
    return node->judged == node->count;
}

size_t
nt_values_judged_count(const nt_values *values, nt_value container)
{
    return value_node_of(values, container)->judged;
}

void
nt_values_set_judged(nt_values *values, nt_value container)
{
    value_node *node = value_node_of(values, container);
    node->judged = node->count;
}

void
nt_values_set_counted(nt_values *values, nt_value container)
{
    value_node_of(values, container)->is_counted = true;
}

bool
nt_values_is_counted(const nt_values *values, nt_value container)
{
    return value_node_of(values, container)->is_counted;
}

const nt_value_pair *
nt_values_pairs(const nt_values *values, nt_value container, size_t *count)
{
    const value_node *node = value_node_of(values, container);
    *count = node->count;
    return node->pairs;
}

nt_value
nt_values_lookup(const nt_values *values, nt_value dict, uint32_t key)
{
    if (nt_value_tag_of(dict) != NT_VALUE_DICT) {
        return NT_VALUE_ABSENT;
    }
    const value_node *node = value_node_of(values, dict);
    const nt_value wanted = nt_value_make(NT_VALUE_STRING, key);
    for (size_t i = node->count; i-- > 0;) {
        if (node->pairs[i].first == wanted) {
            return nt_values_resolve(values, node->pairs[i].second);
        }
    }
    return NT_VALUE_ABSENT;
}

bool
nt_values_get_integer(const nt_values *values, nt_value value, uint64_t *bits)
{
    switch (nt_value_tag_of(value)) {
    case NT_VALUE_BOOL: *bits = nt_value_id(value); return true;
    case NT_VALUE_INT: *bits = nt_value_int(value); return true;
    case NT_VALUE_BIG: {
        const value_big *big = &values->bigs[nt_value_id(value)];
        *bits = big->bits;
        return big->fits;
    }
    default: return false;
    }
}

double
nt_values_get_float(const nt_values *values, nt_value value)
{
    NT_ASSERT(nt_value_tag_of(value) == NT_VALUE_FLOAT);
    return values->floats[nt_value_id(value)];
}
