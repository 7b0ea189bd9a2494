/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_stack.h"

#include <string.h>

/* A hash table of ids whose keys are in columns: a quarter of an `nt_map`. A file can
 * have a stack for every few bytes. */
typedef struct nt_slots {
    uint32_t *ids; /* NT_NONE where empty */
    size_t count;  /* a power of two, or 0 */
} nt_slots;

struct nt_stacks {
    nt_alloc alloc;
    nt_frame *frames; /* by frame id */
    size_t frame_count, frame_capacity;
    nt_fx_node *fx; /* of frames */
    size_t fx_count, fx_capacity;
    nt_map fx_numbers; /* a key made of the node -> its number */
    nt_slots frame_slots;
    uint32_t *innermost; /* by stack id */
    uint32_t *parent;    /* by stack id */
    size_t count, innermost_capacity, parent_capacity;
    nt_slots call_slots;
};

nt_status
nt_stacks_new(const nt_alloc *alloc, nt_stacks **out, nt_error *err)
{
    nt_stacks *stacks;
    NT_TRY(NT_NEW(alloc, stacks, 1, err));
    *stacks = (nt_stacks){.alloc = *alloc};
    nt_map_init(&stacks->fx_numbers, *alloc);
    nt_status status =
        NT_GROW(alloc, stacks->innermost, stacks->innermost_capacity, 1, err);
    if (status == NT_OK) {
        status = NT_GROW(alloc, stacks->parent, stacks->parent_capacity, 1, err);
    }
    if (status != NT_OK) {
        nt_stacks_free(stacks);
        return status;
    }
    stacks->innermost[NT_EMPTY_STACK] = NT_NONE;
    stacks->parent[NT_EMPTY_STACK] = NT_EMPTY_STACK;
    stacks->count = 1;
    *out = stacks;
    return NT_OK;
}

void
nt_stacks_free(nt_stacks *stacks)
{
    if (stacks == NULL) {
        return;
    }
    const nt_alloc alloc = stacks->alloc;
    nt_map_clear(&stacks->fx_numbers);
    NT_RELEASE(&alloc, stacks->fx, stacks->fx_capacity);
    NT_RELEASE(&alloc, stacks->frames, stacks->frame_capacity);
    NT_RELEASE(&alloc, stacks->frame_slots.ids, stacks->frame_slots.count);
    NT_RELEASE(&alloc, stacks->call_slots.ids, stacks->call_slots.count);
    NT_RELEASE(&alloc, stacks->innermost, stacks->innermost_capacity);
    NT_RELEASE(&alloc, stacks->parent, stacks->parent_capacity);
    nt_release(&alloc, stacks, sizeof *stacks);
}

static bool
stack_same_fx(nt_fx_node a, nt_fx_node b)
{
    return a.op == b.op && a.name == b.name && a.target == b.target &&
           a.trace == b.trace;
}

nt_status
nt_stacks_intern_fx(nt_stacks *stacks, nt_fx_node node, uint32_t *out, nt_error *err)
{
    const uint64_t seed = (uint64_t)(uintptr_t)stacks;
    uint64_t key = nt_mix64(((uint64_t)node.op << 32 | node.name) ^ seed);
    key = nt_mix64(key ^ ((uint64_t)node.target << 32 | node.trace));
    uint32_t known = nt_map_find(&stacks->fx_numbers, key);
    while (known != NT_NONE && !stack_same_fx(stacks->fx[known - 1], node)) {
        known = nt_map_find(&stacks->fx_numbers, ++key);
    }
    if (known == NT_NONE) {
        if (stacks->fx_count >= NT_NONE - 1) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 fx nodes");
        }
        NT_TRY(NT_GROW(&stacks->alloc, stacks->fx, stacks->fx_capacity,
                       stacks->fx_count + 1, err));
        known = (uint32_t)stacks->fx_count + 1;
        NT_TRY(nt_map_set(&stacks->fx_numbers, key, known, err));
        stacks->fx[stacks->fx_count++] = node;
    }
    *out = known;
    return NT_OK;
}

static uint64_t
stack_frame_hash(const nt_stacks *stacks, nt_frame frame)
{
    const uint64_t seed = (uint64_t)(uintptr_t)stacks;
    const uint64_t names = (uint64_t)frame.name << 32 | frame.filename;
    const uint64_t place = (uint64_t)frame.line ^ (uint64_t)frame.fx << 32;
    return nt_mix64(nt_mix64(names ^ seed) ^ place);
}

/* The slot that holds `frame`, or the empty one where it belongs. */
static uint32_t *
stack_frame_slot(const nt_stacks *stacks, nt_frame frame)
{
    const size_t mask = stacks->frame_slots.count - 1;
    size_t slot = (size_t)stack_frame_hash(stacks, frame) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint32_t *id = &stacks->frame_slots.ids[slot];
        if (*id == NT_NONE) {
            return id;
        }
        const nt_frame *known = &stacks->frames[*id];
        if (known->name == frame.name && known->filename == frame.filename &&
            known->line == frame.line && known->fx == frame.fx) {
            return id;
        }
    }
}

/* The same for the stack that `frame` makes on top of `parent`. */
static uint32_t *
stack_call_slot(const nt_stacks *stacks, uint32_t parent, uint32_t frame)
{
    const uint64_t seed = (uint64_t)(uintptr_t)stacks;
    const size_t mask = stacks->call_slots.count - 1;
    size_t slot = (size_t)nt_mix64(((uint64_t)parent << 32 | frame) ^ seed) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint32_t *id = &stacks->call_slots.ids[slot];
        if (*id == NT_NONE ||
            (stacks->parent[*id] == parent && stacks->innermost[*id] == frame)) {
            return id;
        }
    }
}

/* Empties a table for another id if it has `used` of them; *grew: they are to be put in
 * again. */
static nt_status
stack_reserve_slot(const nt_alloc *alloc, nt_slots *slots, size_t used, bool *grew,
                   nt_error *err)
{
    *grew = used >= slots->count - slots->count / 4;
    if (!*grew) {
        return NT_OK;
    }
    const size_t count = slots->count == 0 ? 64 : slots->count * 2;
    size_t bytes;
    if (!nt_size_mul(count, sizeof(uint32_t), &bytes)) {
        return nt_fail_nomem(err);
    }
    uint32_t *ids;
    NT_TRY(nt_take(alloc, (void **)&ids, bytes, err));
    memset(ids, 0xff, bytes);
    NT_RELEASE(alloc, slots->ids, slots->count);
    *slots = (nt_slots){ids, count};
    return NT_OK;
}

nt_status
nt_stacks_intern_frame(nt_stacks *stacks, nt_frame frame, uint32_t *out, nt_error *err)
{
    bool grew;
    NT_TRY(stack_reserve_slot(&stacks->alloc, &stacks->frame_slots, stacks->frame_count,
                              &grew, err));
    for (uint32_t id = 0; grew && id < stacks->frame_count; id++) {
        *stack_frame_slot(stacks, stacks->frames[id]) = id;
    }
    uint32_t *slot = stack_frame_slot(stacks, frame);
    if (*slot == NT_NONE) {
        if (stacks->frame_count >= NT_NONE) {
            return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 frames");
        }
        NT_TRY(NT_GROW(&stacks->alloc, stacks->frames, stacks->frame_capacity,
                       stacks->frame_count + 1, err));
        stacks->frames[stacks->frame_count] = frame;
        *slot = (uint32_t)stacks->frame_count++;
    }
    *out = *slot;
    return NT_OK;
}

nt_status
nt_stacks_intern_call(nt_stacks *stacks, uint32_t parent, uint32_t frame, uint32_t *out,
                      nt_error *err)
{
    bool grew;
    NT_TRY(stack_reserve_slot(&stacks->alloc, &stacks->call_slots, stacks->count, &grew,
                              err));
    for (uint32_t id = NT_EMPTY_STACK + 1; grew && id < stacks->count; id++) {
        *stack_call_slot(stacks, stacks->parent[id], stacks->innermost[id]) = id;
    }
    uint32_t *slot = stack_call_slot(stacks, parent, frame);
    if (*slot != NT_NONE) {
        *out = *slot;
        return NT_OK;
    }
    if (stacks->count >= NT_NONE) {
        return nt_fail(err, NT_LIMIT, NT_NO_OFFSET, "more than 2^32 stacks");
    }
    NT_TRY(NT_GROW(&stacks->alloc, stacks->innermost, stacks->innermost_capacity,
                   stacks->count + 1, err));
    NT_TRY(NT_GROW(&stacks->alloc, stacks->parent, stacks->parent_capacity,
                   stacks->count + 1, err));
    stacks->innermost[stacks->count] = frame;
    stacks->parent[stacks->count] = parent;
    *out = *slot = (uint32_t)stacks->count++;
    return NT_OK;
}

nt_status
nt_stacks_intern(nt_stacks *stacks, const uint32_t *frames, size_t count, uint32_t *out,
                 nt_error *err)
{
    uint32_t stack = NT_EMPTY_STACK;
    for (size_t i = count; i-- > 0;) {
        NT_TRY(nt_stacks_intern_call(stacks, stack, frames[i], &stack, err));
    }
    *out = stack;
    return NT_OK;
}

size_t
nt_stacks_count(const nt_stacks *stacks)
{
    return stacks->count;
}

size_t
nt_stacks_frame_count(const nt_stacks *stacks)
{
    return stacks->frame_count;
}

const uint32_t *
nt_stacks_innermost(const nt_stacks *stacks)
{
    return stacks->innermost;
}

const uint32_t *
nt_stacks_parent(const nt_stacks *stacks)
{
    return stacks->parent;
}

const nt_fx_node *
nt_stacks_fx(const nt_stacks *stacks, size_t *count)
{
    *count = stacks->fx_count;
    return stacks->fx;
}

const nt_frame *
nt_stacks_frames(const nt_stacks *stacks)
{
    return stacks->frames;
}

void
nt_stacks_mark(const nt_stacks *stacks, uint32_t name, uint8_t *marks)
{
    const nt_frame *frames = nt_stacks_frames(stacks);
    const uint32_t *innermost = nt_stacks_innermost(stacks);
    const uint32_t *parent = nt_stacks_parent(stacks);
    marks[NT_EMPTY_STACK] = 0;
    /* A stack comes into being behind the one that it was called from. */
    for (size_t i = NT_EMPTY_STACK + 1; i < nt_stacks_count(stacks); i++) {
        marks[i] = marks[parent[i]] || frames[innermost[i]].name == name;
    }
}
