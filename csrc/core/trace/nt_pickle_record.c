/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dicts that are records. Opcode by opcode they arrive as ordinary dicts and are
 * turned into records when they are placed. A trace repeats one form a million
 * times, though: nt_pickle_fast.c and nt_pickle_template.c read that form.
 */
#include "trace/nt_pickle.h"
#include "trace/nt_pickle_machine.h"

nt_status
nt_pickle_emit_record(nt_pickle *p, uint32_t kind, const nt_value *fields,
                      uint32_t present, nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->record(p->visitor->ctx, kind, fields, present, &id, p->err));
    *out = nt_value_make(NT_VALUE_RECORD, (uint64_t)kind << 32 | id);
    return NT_OK;
}

uint32_t
nt_pickle_record_kind(const nt_pickle *p, uint32_t present)
{
    for (uint32_t kind = 0; kind < p->visitor->kind_count; kind++) {
        if ((present >> p->visitor->tags[kind] & 1) != 0) {
            return kind;
        }
    }
    return NT_NONE;
}

/* Whether one of the pairs from number `first` on has this word for a key. */
static bool
record_has_key(const nt_value_pair *pairs, size_t first, size_t count, uint32_t word)
{
    const nt_value wanted = nt_value_make(NT_VALUE_STRING, word);
    for (size_t i = first; i < count; i++) {
        if (pairs[i].first == wanted) {
            return true;
        }
    }
    return false;
}

/* Whether one of the pairs from number `first` on has a key that makes a record. */
static bool
record_has_tag(const nt_pickle *p, const nt_value_pair *pairs, size_t first,
               size_t count)
{
    for (size_t kind = 0; kind < p->visitor->kind_count; kind++) {
        if (record_has_key(pairs, first, count, p->visitor->tags[kind])) {
            return true;
        }
    }
    return false;
}

static nt_status
record_place_dict(nt_pickle *p, nt_value dict, nt_value *out)
{
    nt_value fields[NT_PICKLE_MOST_KEYS] = {NT_VALUE_ABSENT};
    uint32_t present = 0;
    size_t count;
    const nt_value_pair *pairs = nt_values_pairs(p->values, dict, &count);
    const size_t judged = nt_values_judged_count(p->values, dict);
    if (!record_has_tag(p, pairs, judged, count)) {
        if (record_has_key(pairs, judged, count, p->visitor->bound.key)) {
            nt_values_set_counted(p->values, dict);
        }
        nt_values_set_judged(p->values, dict);
        return NT_OK;
    }
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = nt_value_id(pairs[i].first);
        if (nt_value_tag_of(pairs[i].first) == NT_VALUE_STRING &&
            key < p->visitor->key_count) {
            fields[key] = nt_values_resolve(p->values, pairs[i].second);
            present |= (uint32_t)1 << key;
        }
    }
    NT_TRY(nt_pickle_emit_record(p, nt_pickle_record_kind(p, present), fields, present,
                                 out));
    nt_values_exchange(p->values, dict, *out);
    return NT_OK;
}

nt_status
nt_pickle_emit_sequence(nt_pickle *p, size_t count, nt_value *out)
{
    uint32_t id;
    NT_TRY(p->visitor->sequence(p->visitor->ctx, p->scratch, count, &id, p->err));
    *out = nt_value_make(NT_VALUE_SEQUENCE, id);
    return NT_OK;
}

nt_status
nt_pickle_reserve_scratch(nt_pickle *p, size_t count)
{
    return nt_grow(&p->alloc, (void **)&p->scratch, &p->scratch_capacity, count,
                   sizeof(uint32_t), p->err);
}

static nt_status
record_place_list(nt_pickle *p, nt_value list, nt_value *out)
{
    size_t runs, count = 0;
    const nt_value_pair *pairs = nt_values_pairs(p->values, list, &runs);
    for (size_t i = 0; i < runs; i++) {
        if (!nt_pickle_is_element(p, pairs[i].first)) {
            runs = 0;
        } else {
            count += (size_t)pairs[i].second;
        }
    }
    if (runs == 0) {
        nt_values_set_judged(p->values, list);
        return NT_OK;
    }
    NT_TRY(nt_pickle_reserve_scratch(p, count));
    size_t filled = 0;
    for (size_t i = 0; i < runs; i++) {
        for (uint64_t step = 0; step < pairs[i].second; step++) {
            p->scratch[filled++] = nt_value_id(pairs[i].first) + (uint32_t)step;
        }
    }
    NT_TRY(nt_pickle_emit_sequence(p, count, out));
    nt_values_exchange(p->values, list, *out);
    return NT_OK;
}

nt_status
nt_pickle_place(nt_pickle *p, nt_value value, nt_value *out)
{
    value = nt_values_resolve(p->values, value);
    *out = value;
    const nt_value_tag tag = nt_value_tag_of(value);
    if ((tag != NT_VALUE_DICT && tag != NT_VALUE_LIST) ||
        nt_values_is_judged(p->values, value)) {
        return NT_OK;
    }
    return tag == NT_VALUE_DICT ? record_place_dict(p, value, out)
                                : record_place_list(p, value, out);
}

nt_status
nt_pickle_check_bound(nt_pickle *p, nt_value list, size_t waiting, nt_value item)
{
    const nt_pickle_bound *bound = &p->visitor->bound;
    size_t count;
    list = nt_values_resolve(p->values, list);
    if (bound->most == 0 || nt_value_tag_of(item) != NT_VALUE_DICT ||
        nt_value_tag_of(list) != NT_VALUE_LIST) {
        return NT_OK;
    }
    (void)nt_values_pairs(p->values, list, &count);
    if (count + waiting <= bound->most || !nt_values_is_counted(p->values, item)) {
        return NT_OK;
    }
    return nt_fail(p->err, NT_LIMIT, p->opcode_offset, "more than %zu %s", bound->most,
                   bound->name);
}

/* Whether what comes next is another dict or the end of a list, a frame's head
 * aside: then the dict on top of the stack is whole. */
static nt_status
record_peek_item_end(nt_pickle *p, bool *ends)
{
    const size_t ahead = 10; /* FRAME, its length, and an opcode */
    if ((size_t)(p->source->end - p->source->next) < ahead) {
        NT_TRY(nt_source_fill(p->source, ahead, p->err));
        nt_pickle_set_limit(p);
    }
    const uint8_t *at = p->source->next;
    const size_t at_hand = (size_t)(p->source->end - at);
    const size_t skip = at_hand >= ahead && at[0] == OP_FRAME ? ahead - 1 : 0;
    *ends = at_hand > skip && (at[skip] == OP_EMPTY_DICT || at[skip] == OP_APPENDS);
    return NT_OK;
}

nt_status
nt_pickle_settle(nt_pickle *p)
{
    bool ends;
    NT_TRY(record_peek_item_end(p, &ends));
    nt_value *const top = &p->stack[p->stack_count - 1];
    if (!ends) {
        return NT_OK;
    }
    NT_TRY(nt_pickle_place(p, *top, top));
    /* All items of a list may stand behind one mark. */
    const size_t floor = nt_pickle_floor(p);
    return floor == 0 ? NT_OK
                      : nt_pickle_check_bound(p, p->stack[floor - 1],
                                              p->stack_count - floor, *top);
}
