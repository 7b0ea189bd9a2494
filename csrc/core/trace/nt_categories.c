/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_categories.h"

#include "trace/nt_categories_state.h"

nt_status
nt_categories_count(categories *c, nt_map *map, uint64_t key)
{
    return nt_map_set(map, key, nt_categories_counted(map, key) + 1, c->err);
}

uint32_t
nt_categories_counted(const nt_map *map, uint64_t key)
{
    const uint32_t count = nt_map_find(map, key);
    return count == NT_NONE ? 0 : count;
}

size_t
nt_categories_workspace(uint64_t asked)
{
    /* Of Hopper and newer, of those before with all its formats, and without. */
    static const uint32_t sizes[NT_WORKSPACES] = {32u << 20, 8519680, 4194304 + 131072};
    size_t kind = 0;
    while (kind < NT_WORKSPACES && sizes[kind] != asked) {
        kind++;
    }
    return kind;
}

size_t
nt_categories_ended(const categories *c, int32_t event)
{
    size_t low = 0, high = c->span_count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (c->spans[mid].end < event) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

size_t
nt_categories_begun(const categories *c, int32_t event)
{
    size_t low = 0, high = c->span_count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (c->spans[mid].begin < event) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

size_t
nt_categories_pass(const categories *c, int32_t event)
{
    const size_t at = nt_categories_begun(c, event + 1);
    return at > 0 && event < c->spans[at - 1].end ? at - 1 : SIZE_MAX;
}

bool
nt_categories_ends_soon(const categories *c, int32_t made, int32_t freed)
{
    const size_t after = nt_categories_ended(c, made + 1) + 1;
    return after >= c->span_count || (freed >= 0 && freed <= c->spans[after].begin);
}

bool
nt_categories_outlives(const categories *c, int32_t made, int32_t freed)
{
    if (freed < 0) {
        return true;
    }
    const size_t after = nt_categories_begun(c, made);
    return after < c->span_count && freed > c->spans[after].end;
}

/* The first event inside of a module from `event` on, as a place in c->forward. */
static size_t
categories_next_call(const categories *c, int32_t event)
{
    size_t low = 0, high = c->forward_count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (c->forward[mid] < event) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* The rule for an allocation of a line outside of modules. */
static uint8_t
categories_of_line(const categories *c, int32_t made, int32_t freed)
{
    const size_t ended = nt_categories_ended(c, made + 1);
    const int32_t opened = ended > 0 ? c->spans[ended - 1].end : 0;
    const size_t here = categories_next_call(c, made);
    if (here > 0 && c->forward[here - 1] >= opened) {
        /* A module was called since the last backward pass, and one will follow. */
        const bool coming = nt_categories_begun(c, made) < c->span_count;
        return coming && nt_categories_ends_soon(c, made, freed) ? NT_RULE_AFTER_MODULE
                                                                 : NT_RULE_NONE;
    }
    if (here == c->forward_count) {
        return NT_RULE_NONE;
    }
    const bool late = freed < 0 && c->span_count <= ended + 1;
    if (freed <= c->forward[here] && !late) {
        return NT_RULE_NONE;
    }
    if (c->span_count == 0 && freed < 0) {
        return NT_RULE_NONE;
    }
    return nt_categories_ends_soon(c, made, freed) ? NT_RULE_BEFORE_MODULE
                                                   : NT_RULE_NONE;
}

/* The rule for what a module's making left: kept, or there while one was called. */
static uint8_t
categories_of_build(const categories *c, int32_t made, int32_t freed)
{
    if (freed < 0) {
        return NT_RULE_MODULE_MADE;
    }
    const size_t call = categories_next_call(c, made);
    const bool used = call < c->forward_count && c->forward[call] < freed;
    const bool replaced = c->role[freed] == NT_ROLE_BUILD && freed - made > 1;
    return used || replaced ? NT_RULE_MODULE_MADE : NT_RULE_NONE;
}

static uint8_t
categories_of_module(const categories *c, size_t row, int32_t made, int32_t freed)
{
    if (freed < 0 &&
        nt_categories_workspace(c->a->requested_size[row]) < NT_WORKSPACES) {
        return NT_RULE_WORKSPACE;
    }
    return nt_categories_ends_soon(c, made, freed) ? NT_RULE_MODULE_OUTPUT
                                                   : NT_RULE_NONE;
}

/* The rule for a row outside of backward passes, by its role. */
static uint8_t
categories_of_row(const categories *c, size_t row)
{
    const int32_t made = c->a->alloc_event[row], freed = c->a->free_event[row];
    const bool kept = nt_categories_outlives(c, made, freed);
    switch (categories_role(c, row)) {
    case NT_ROLE_MODULE: return categories_of_module(c, row, made, freed);
    case NT_ROLE_USER:
        /* Without a module's call nothing is known of the program's own lines. */
        return c->forward_count ? categories_of_line(c, made, freed) : NT_RULE_NONE;
    case NT_ROLE_BUILD: return categories_of_build(c, made, freed);
    case NT_ROLE_OPTIMIZER:
    case NT_ROLE_STATE:
        return kept ? NT_RULE_OPTIMIZER_KEPT : NT_RULE_OPTIMIZER_SCRATCH;
    case NT_ROLE_SCALER: return kept ? NT_RULE_NONE : NT_RULE_SCALER_SCRATCH;
    case NT_ROLE_BUCKET: return kept ? NT_RULE_BUCKET : NT_RULE_SCRATCH;
    case NT_ROLE_GATHER: return NT_RULE_GATHERED;
    case NT_ROLE_REDUCE: return NT_RULE_REDUCED;
    case NT_ROLE_CACHE: return NT_RULE_KV_CACHE;
    case NT_ROLE_WORKSPACE: return NT_RULE_WORKSPACE;
    default: return NT_RULE_NONE;
    }
}

static void
categories_others(categories *c)
{
    for (size_t row = c->first; row < c->a->count; row++) {
        if (c->rules[row] == NT_RULE_NONE &&
            categories_role(c, row) != NT_ROLE_BACKWARD) {
            c->rules[row] = categories_of_row(c, row);
        }
    }
}

static void
categories_open(categories *c, const nt_alloc *alloc, const nt_passes *passes,
                uint8_t *rules, nt_error *err)
{
    *c = (categories){.alloc = *alloc, .passes = passes, .rules = rules, .err = err};
    c->timeline = nt_passes_timeline(passes);
    c->a = nt_timeline_allocations(c->timeline);
    c->role = nt_passes_roles(passes);
    c->spans = nt_passes_backward(passes, &c->span_count);
    c->forward = nt_passes_forward(passes, &c->forward_count);
    nt_map *const maps[] = {&c->built, &c->known, &c->seen, &c->sizes, &c->largest};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        nt_map_init(maps[i], *alloc);
    }
    while (c->first < c->a->count && c->a->alloc_event[c->first] < 0) {
        c->first++;
    }
    for (size_t row = 0; row < c->a->count; row++) {
        rules[row] = NT_RULE_NONE;
    }
}

nt_status
nt_categories_decide(const nt_alloc *alloc, const nt_passes *passes, uint8_t *rules,
                     nt_error *err)
{
    categories c;
    categories_open(&c, alloc, passes, rules, err);
    nt_categories_scratch(&c);
    nt_status status = nt_categories_backward(&c);
    if (status == NT_OK) {
        categories_others(&c);
        status = nt_categories_copies(&c);
    }
    nt_map *const maps[] = {&c.built, &c.known, &c.seen, &c.sizes, &c.largest};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        nt_map_clear(maps[i]);
    }
    return status;
}

void
nt_categories_sum(const nt_timeline *timeline, const uint8_t *codes, int32_t event,
                  nt_category_sum *sums, size_t count)
{
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    for (size_t i = 0; i < count; i++) {
        sums[i] = (nt_category_sum){0};
    }
    for (size_t row = 0; row < a->count; row++) {
        const int32_t freed = a->free_event[row];
        if (a->alloc_event[row] <= event &&
            (freed > event || freed == NT_EVENT_NEVER)) {
            nt_category_sum *sum = &sums[codes[row]];
            sum->bytes += a->size[row];
            sum->requested_bytes += a->requested_size[row];
            sum->count++;
        }
    }
}

void
nt_categories_series(const nt_timeline *timeline, const uint8_t *codes, size_t count,
                     uint64_t *out)
{
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    const size_t events = nt_timeline_event_count(timeline);
    for (size_t i = 0; i < count * events; i++) {
        out[i] = 0;
    }
    for (size_t row = 0; row < a->count && events != 0; row++) {
        const int32_t made = a->alloc_event[row], freed = a->free_event[row];
        if (freed == NT_EVENT_FREED_BEFORE || codes[row] >= count) {
            continue;
        }
        /* Changes first, which wrap where a group shrinks; their sums below don't. */
        out[codes[row] * events + (size_t)(made > 0 ? made : 0)] += a->size[row];
        if (freed >= 0) {
            out[codes[row] * events + (size_t)freed] -= a->size[row];
        }
    }
    for (size_t i = 0; i < count * events; i++) {
        out[i] += i % events != 0 ? out[i - 1] : 0;
    }
}

void
nt_categories_weigh(const nt_timeline *timeline, const uint8_t *codes, double *weights,
                    size_t count)
{
    const nt_allocation_columns *a = nt_timeline_allocations(timeline);
    const int32_t events = (int32_t)nt_timeline_event_count(timeline);
    for (size_t i = 0; i < count; i++) {
        weights[i] = 0;
    }
    for (size_t row = 0; row < a->count; row++) {
        const int32_t made = a->alloc_event[row] > 0 ? a->alloc_event[row] : 0;
        const int32_t freed = a->free_event[row];
        if (freed != NT_EVENT_FREED_BEFORE) {
            const int32_t lived = (freed >= 0 ? freed : events) - made;
            weights[codes[row]] += (double)a->size[row] * (double)lived;
        }
    }
}
