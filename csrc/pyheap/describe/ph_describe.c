/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Components of the set, the cycle that keeps each object, the tensors that each cycle
 * keeps; then, for each that keeps wanted ones, its shape, and one description a shape.
 */
#include "describe/ph_describe.h"

#include <stdlib.h>
#include <string.h>

#include "base/nt_sort.h"
#include "describe/ph_describe_state.h"

/* In a component of at most so many objects the shortest way round is looked for from
 * each; in a larger one from a few, and then it may not be the shortest of all. */
#define TRY_EACH 32
#define TRY_SOME 4
/* And in one of more than this from one, since each look may go through all of it. */
#define TRY_LARGE 4096

PyObject *
ph_state_object(const ph_state *s, uint32_t node)
{
    return node < s->count ? ph_heap_object(s->heap, node) : s->extras[node - s->count];
}

uint32_t
ph_state_find(const ph_state *s, const PyObject *object)
{
    const uint32_t node = ph_heap_find(s->heap, object);
    if (node != NT_NONE && nt_bitset_has(s->set, node)) {
        return node;
    }
    return s->extra_count == 0 ? NT_NONE
                               : nt_map_find(&s->extra_index, (uintptr_t)object);
}

uint32_t
ph_state_owner(const ph_state *s, uint32_t node)
{
    return node < s->count ? s->owner[node] : s->extra_owner[node - s->count];
}

/* ---- which cycle keeps what ---------------------------------------------------- */

static nt_status
describe_allocate(ph_state *s, void **array, size_t count, size_t element)
{
    *array = nt_allocate(&s->alloc, (count + 1) * element);
    return *array == NULL ? NT_NOMEM : NT_OK;
}

/* The members of each component, one after the other. */
static nt_status
describe_members(ph_state *s)
{
    NT_TRY(describe_allocate(s, (void **)&s->member_first, s->components + 1,
                             sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->members, s->count, sizeof(uint32_t)));
    uint32_t sum = 0;
    for (uint32_t c = 0; c < s->components; c++) {
        s->member_first[c] = sum;
        sum += s->sizes[c];
    }
    s->member_first[s->components] = sum;
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        s->members[s->member_first[s->component[n]]++] = (uint32_t)n;
    }
    for (uint32_t c = s->components; c-- > 0;) {
        s->member_first[c + 1] = s->member_first[c];
    }
    s->member_first[0] = 0;
    return NT_OK;
}

static nt_status
describe_components(ph_state *s, nt_error *err)
{
    NT_TRY(describe_allocate(s, (void **)&s->component, s->count, sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->owner, s->count, sizeof(uint32_t)));
    NT_TRY(nt_graph_components(s->graph, s->set, s->component, &s->components, err));
    NT_TRY(describe_allocate(s, (void **)&s->sizes, s->components, sizeof(uint32_t)));
    NT_TRY(describe_allocate(s, (void **)&s->cyclic, s->components, sizeof(bool)));
    nt_graph_component_facts(s->graph, s->component, s->components, s->sizes,
                             s->cyclic);
    NT_TRY(nt_graph_owners(s->graph, s->component, s->components, s->owner, err));
    return describe_members(s);
}

static bool
describe_wanted(const ph_describe_options *options, const ph_tensor *tensor)
{
    switch (options->device_type) {
    case PH_ANY_DEVICE: return true;
    case PH_ACCELERATORS:
        return tensor->device_type != PH_DEVICE_CPU &&
               tensor->device_type != PH_DEVICE_META;
    default:
        return tensor->device_type == options->device_type &&
               (options->device_index < 0 ||
                tensor->device_index == options->device_index);
    }
}

/* Adds to the bytes of a device; the last entry takes what has no place. */
static void
describe_add_device(ph_device_bytes *devices, uint32_t *count, uint32_t most,
                    int16_t type, int16_t index, uint64_t bytes)
{
    uint32_t at = 0;
    while (at < *count && (devices[at].type != type || devices[at].index != index)) {
        at++;
    }
    if (at == *count && *count < most) {
        devices[(*count)++] = (ph_device_bytes){.type = type, .index = index};
    }
    devices[at < most ? at : most - 1].bytes += bytes;
}

/* Keeps the four largest tensors of a component, the largest first. */
static void
describe_rank(ph_component *kept, uint32_t node, uint64_t bytes)
{
    const uint32_t filled = kept->tensors < 4 ? kept->tensors : 4;
    uint32_t at = filled;
    while (at > 0 && kept->top_bytes[at - 1] < bytes) {
        at--;
    }
    if (at == 4) {
        return;
    }
    const uint32_t moved = (filled < 4 ? filled : 3) - at;
    memmove(&kept->top[at + 1], &kept->top[at], moved * sizeof kept->top[0]);
    memmove(&kept->top_bytes[at + 1], &kept->top_bytes[at],
            moved * sizeof kept->top_bytes[0]);
    kept->top[at] = node;
    kept->top_bytes[at] = bytes;
}

static nt_status
describe_kept(ph_state *s, uint32_t component, ph_component **out)
{
    uint32_t at = nt_map_find(&s->found, component);
    if (at == NT_NONE) {
        NT_TRY(nt_grow(&s->alloc, (void **)&s->kept, &s->kept_capacity,
                       s->kept_count + 1, sizeof *s->kept, NULL));
        NT_TRY(nt_map_set(&s->found, component, (uint32_t)s->kept_count, NULL));
        at = (uint32_t)s->kept_count++;
        s->kept[at] = (ph_component){.component = component, .cycle = NT_NONE};
    }
    *out = &s->kept[at];
    return NT_OK;
}

/* Counts a tensor to the cycle that keeps it, its storage once. */
static nt_status
describe_tensor(ph_state *s, uint32_t node)
{
    ph_tensor tensor;
    PyObject *object = ph_state_object(s, node);
    if (!ph_tensor_check(object) || !ph_tensor_read(object, &tensor) ||
        !describe_wanted(&s->options, &tensor)) {
        return NT_OK;
    }
    uint64_t bytes = tensor.storage_bytes;
    if (tensor.storage != 0) {
        uint32_t before;
        NT_TRY(nt_map_swap(&s->storages, tensor.storage, 1, &before, NULL));
        bytes = before == NT_NONE ? bytes : 0;
    }
    const uint32_t owner = ph_state_owner(s, node);
    if (owner == NT_NONE) {
        s->out->loose_bytes += bytes;
        return NT_OK;
    }
    ph_component *kept;
    NT_TRY(describe_kept(s, owner, &kept));
    describe_rank(kept, node, bytes);
    kept->tensors++;
    kept->bytes += bytes;
    describe_add_device(kept->devices, &kept->device_count, 4, tensor.device_type,
                        tensor.device_index, bytes);
    return NT_OK;
}

static nt_status
describe_tensors(ph_state *s)
{
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        NT_TRY(describe_tensor(s, (uint32_t)n));
    }
    for (uint32_t i = 0; i < s->extra_count; i++) {
        NT_TRY(describe_tensor(s, s->count + i));
    }
    return NT_OK;
}

/* ---- shapes ---------------------------------------------------------------------- */

/* A short way round a component. */
static nt_status
describe_way(ph_state *s, uint32_t component, uint32_t **way, uint32_t *length,
             nt_error *err)
{
    const uint32_t size = s->sizes[component];
    const uint32_t *members = s->members + s->member_first[component];
    const uint32_t tries = size <= TRY_EACH ? size : size <= TRY_LARGE ? TRY_SOME : 1;
    *way = NULL;
    *length = 0;
    for (uint32_t i = 0; i < tries && *length != 1; i++) {
        uint32_t *tried, tried_length;
        const uint32_t from = members[(uint64_t)i * size / tries];
        NT_TRY(
            nt_graph_cycle(s->graph, s->component, from, &tried, &tried_length, err));
        if (tried != NULL && (*way == NULL || tried_length < *length)) {
            nt_release(&s->graph->alloc, *way, *length * sizeof **way);
            *way = tried;
            *length = tried_length;
        } else {
            nt_release(&s->graph->alloc, tried, tried_length * sizeof *tried);
        }
        /* Nothing is shorter than two objects that refer to each other, unless one
         * refers to itself, and that one says so from where it stands. */
        if (*length == 2 && size == 2) {
            break;
        }
    }
    return NT_OK;
}

static void
describe_forget_way(ph_state *s)
{
    nt_release(&s->graph->alloc, s->way, s->way_length * sizeof *s->way);
    s->way = NULL;
    s->way_length = 0;
}

static nt_status
describe_steps_of(ph_state *s, uint32_t component, ph_step **steps, uint32_t *count,
                  uint32_t *length, nt_error *err)
{
    nt_arena_clear(&s->scratch);
    if (s->way == NULL || s->way_component != component) {
        describe_forget_way(s);
        s->way_component = component;
        NT_TRY(describe_way(s, component, &s->way, &s->way_length, err));
    }
    *length = s->way_length;
    *count = 0;
    return s->way == NULL
               ? NT_OK
               : ph_describe_steps(s, s->way, s->way_length, true, steps, count, err);
}

static nt_status
describe_new_cycle(ph_state *s, uint64_t signature, uint32_t *out)
{
    ph_cycles *cycles = s->out;
    NT_TRY(nt_grow(&s->alloc, (void **)&cycles->cycles, &s->cycle_capacity,
                   (size_t)cycles->count + 1, sizeof *cycles->cycles, NULL));
    cycles->cycles[cycles->count] = (ph_cycle){.signature = signature};
    *out = cycles->count++;
    return NT_OK;
}

/* Counts a component to the entry of its shape, which `shapes` finds. */
static nt_status
describe_count(ph_state *s, nt_map *shapes, ph_component *kept, uint64_t signature)
{
    kept->cycle = nt_map_find(shapes, signature);
    if (kept->cycle == NT_NONE) {
        NT_TRY(describe_new_cycle(s, signature, &kept->cycle));
        NT_TRY(nt_map_set(shapes, signature, kept->cycle, NULL));
    }
    ph_cycle *cycle = &s->out->cycles[kept->cycle];
    cycle->count++;
    cycle->tensors += kept->tensors;
    cycle->bytes += kept->bytes;
    for (uint32_t i = 0; i < kept->device_count; i++) {
        describe_add_device(cycle->devices, &cycle->device_count, PH_MOST_DEVICES,
                            kept->devices[i].type, kept->devices[i].index,
                            kept->devices[i].bytes);
    }
    s->out->components++;
    s->out->bytes += kept->bytes;
    return NT_OK;
}

static nt_status
describe_shapes(ph_state *s, nt_map *shapes, nt_error *err)
{
    for (size_t i = 0; i < s->kept_count; i++) {
        ph_component *kept = &s->kept[i];
        if (kept->bytes < s->options.min_bytes) {
            continue;
        }
        ph_step *steps;
        uint32_t count, length;
        NT_TRY(
            describe_steps_of(s, s->kept[i].component, &steps, &count, &length, err));
        if (count > 0) {
            NT_TRY(describe_count(s, shapes, kept,
                                  ph_describe_signature(s, steps, count)));
        }
    }
    return NT_OK;
}

/* ---- one description a shape ----------------------------------------------------- */

static int
describe_larger_first(const void *a, const void *b)
{
    const ph_cycle *one = a, *other = b;
    if (one->bytes != other->bytes) {
        return one->bytes > other->bytes ? -1 : 1;
    }
    return one->signature < other->signature ? -1 : one->signature > other->signature;
}

/* Orders the shapes and tells each component where its shape went. */
static nt_status
describe_order(ph_state *s, nt_map *shapes)
{
    ph_cycles *out = s->out;
    uint64_t *before =
        nt_allocate(&s->alloc, ((size_t)out->count + 1) * sizeof *before);
    if (before == NULL) {
        return NT_NOMEM;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        before[i] = out->cycles[i].signature;
    }
    qsort(out->cycles, out->count, sizeof *out->cycles, describe_larger_first);
    nt_status status = NT_OK;
    for (uint32_t i = 0; i < out->count && status == NT_OK; i++) {
        status = nt_map_set(shapes, out->cycles[i].signature, i, NULL);
    }
    for (size_t i = 0; i < s->kept_count; i++) {
        if (s->kept[i].cycle != NT_NONE) {
            s->kept[i].cycle = nt_map_find(shapes, before[s->kept[i].cycle]);
        }
    }
    nt_release(&s->alloc, before, ((size_t)out->count + 1) * sizeof *before);
    return status;
}

/* Notes an object of each component, and which component of a shape keeps most. */
static nt_status
describe_examples(ph_state *s, uint32_t *example)
{
    ph_cycles *out = s->out;
    for (uint32_t i = 0; i < out->count; i++) {
        out->cycles[i].objects = nt_arena_take(
            &out->arena, out->cycles[i].count * sizeof(uint64_t), sizeof(uint64_t));
        if (out->cycles[i].objects == NULL) {
            return NT_NOMEM;
        }
        out->cycles[i].count = 0;
        example[i] = NT_NONE;
    }
    for (size_t i = 0; i < s->kept_count; i++) {
        const uint32_t at = s->kept[i].cycle;
        if (at == NT_NONE) {
            continue;
        }
        ph_cycle *cycle = &out->cycles[at];
        const uint32_t first = s->members[s->member_first[s->kept[i].component]];
        cycle->objects[cycle->count++] = (uintptr_t)ph_state_object(s, first);
        if (example[at] == NT_NONE || s->kept[i].bytes > s->kept[example[at]].bytes) {
            example[at] = (uint32_t)i;
        }
    }
    return NT_OK;
}

static nt_status
describe_one(ph_state *s, ph_cycle *cycle, uint32_t at, nt_error *err)
{
    const ph_component *kept = &s->kept[at];
    const uint32_t component = kept->component;
    ph_step *steps;
    uint32_t count;
    NT_TRY(describe_steps_of(s, component, &steps, &count, &cycle->length, err));
    ph_describe_turn(s, steps, count);
    cycle->one_bytes = kept->bytes;
    cycle->one_tensors = kept->tensors;
    cycle->one_objects = s->sizes[component];
    return ph_describe_graph(s, component, kept, steps, count, cycle, err);
}

static nt_status
describe_cycles(ph_state *s, nt_error *err)
{
    ph_cycles *out = s->out;
    const size_t size = ((size_t)out->count + 1) * sizeof(uint32_t);
    uint32_t *example = nt_allocate(&s->alloc, size);
    if (example == NULL) {
        return nt_fail_nomem(err);
    }
    nt_status status = describe_examples(s, example);
    const uint32_t most = s->options.most < out->count ? s->options.most : out->count;
    const nt_map *known = s->options.known;
    for (uint32_t i = 0; i < most && status == NT_OK; i++) {
        if (known == NULL || nt_map_find(known, out->cycles[i].signature) == NT_NONE) {
            status = describe_one(s, &out->cycles[i], example[i], err);
        }
    }
    out->left_out = out->count - most;
    out->count = most;
    nt_release(&s->alloc, example, size);
    return status;
}

static uint32_t
describe_count_cyclic(const ph_state *s)
{
    uint32_t cyclic = 0;
    for (uint32_t c = 0; c < s->components; c++) {
        cyclic += s->cyclic[c];
    }
    return cyclic;
}

/* Whether there is any tensor to tell of: most collections end here. */
static bool
describe_any_tensor(const ph_state *s)
{
    for (size_t n = nt_bitset_next(s->set, 0); n != NT_NO_MEMBER;
         n = nt_bitset_next(s->set, n + 1)) {
        if (ph_tensor_check(ph_heap_object(s->heap, (uint32_t)n))) {
            return true;
        }
    }
    for (uint32_t i = 0; i < s->extra_count; i++) {
        if (ph_tensor_check(s->extras[i])) {
            return true;
        }
    }
    return false;
}

static nt_status
describe_all(ph_state *s, nt_map *shapes, bool *any, nt_error *err)
{
    if (s->options.dying) {
        NT_TRY(ph_describe_extras(s, err));
    }
    *any = describe_any_tensor(s);
    if (!*any) {
        return NT_OK;
    }
    NT_TRY(describe_components(s, err));
    if (s->extra_count > 0) {
        /* Once more, now that it is known which cycle keeps whom. */
        NT_TRY(ph_describe_extras(s, err));
    }
    NT_TRY(describe_tensors(s));
    s->out->others = describe_count_cyclic(s);
    if (s->kept_count == 0) {
        return NT_OK;
    }
    NT_TRY(describe_shapes(s, shapes, err));
    if (s->out->count == 0) {
        return NT_OK;
    }
    s->out->others -= s->out->components;
    NT_TRY(describe_order(s, shapes));
    return describe_cycles(s, err);
}

static void
describe_clear(ph_state *s)
{
    const nt_alloc *alloc = &s->alloc;
    const size_t nodes = ((size_t)s->count + 1) * sizeof(uint32_t);
    const size_t components = (size_t)s->components + 1;
    nt_release(alloc, s->component, nodes);
    nt_release(alloc, s->owner, nodes);
    nt_release(alloc, s->members, nodes);
    nt_release(alloc, s->sizes, components * sizeof(uint32_t));
    nt_release(alloc, s->cyclic, components * sizeof(bool));
    nt_release(alloc, s->member_first, (components + 1) * sizeof(uint32_t));
    nt_release(alloc, s->kept, s->kept_capacity * sizeof *s->kept);
    nt_release(alloc, s->extras, s->extra_capacity * sizeof *s->extras);
    nt_release(alloc, s->extra_owner, s->extra_capacity * sizeof *s->extra_owner);
    describe_forget_way(s);
    nt_map_clear(&s->found);
    nt_map_clear(&s->storages);
    nt_map_clear(&s->extra_index);
    nt_arena_clear(&s->scratch);
}

nt_status
ph_describe(const ph_heap *heap, const nt_bitset *set,
            const ph_describe_options *options, ph_cycles **out, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    ph_state s = {.heap = heap,
                  .graph = ph_heap_graph(heap),
                  .set = set,
                  .options = *options,
                  .alloc = alloc,
                  .count = ph_heap_count(heap)};
    nt_map shapes;
    *out = NULL;
    s.out = nt_allocate(&alloc, sizeof *s.out);
    if (s.out == NULL) {
        return nt_fail_nomem(err);
    }
    *s.out = (ph_cycles){.count = 0};
    nt_arena_init(&s.out->arena, alloc);
    nt_arena_init(&s.scratch, alloc);
    nt_map_init(&shapes, alloc);
    nt_map_init(&s.found, alloc);
    nt_map_init(&s.storages, alloc);
    nt_map_init(&s.extra_index, alloc);
    bool any = false;
    const nt_status status = describe_all(&s, &shapes, &any, err);
    s.out->capacity = s.cycle_capacity;
    describe_clear(&s);
    nt_map_clear(&shapes);
    if (status != NT_OK || !any) {
        ph_cycles_free(s.out);
        return status == NT_NOMEM ? nt_fail_nomem(err) : status;
    }
    *out = s.out;
    return NT_OK;
}

void
ph_cycles_free(ph_cycles *cycles)
{
    if (cycles != NULL) {
        const nt_alloc alloc = cycles->arena.alloc;
        nt_release(&alloc, cycles->cycles, cycles->capacity * sizeof *cycles->cycles);
        nt_arena_clear(&cycles->arena);
        nt_release(&alloc, cycles, sizeof *cycles);
    }
}
