/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way through the objects in words. An instance's dict, a closure's tuple and its
 * cells are how Python holds an attribute or a variable; to a reader each is one step:
 *
 *     object --__dict__--> dict --'next'--> other        object --.next--> other
 *     function --__closure__--> tuple --0--> cell --cell_contents--> other
 *                                                        function --closure x--> other
 */
#include <string.h>

#include "describe/ph_describe_state.h"

/* Steps of a longer way that go into its signature. */
#define MOST_SIGNED 4096

/* Of a longer way only so many steps from its beginning and from its end are named:
 * the others are neither shown nor signed by name. */
#define MOST_NAMED 4096
#define NAMED_AT_AN_END 64

/* A copy of a text in the arena; NULL when memory runs out. */
static const char *
chain_copy(nt_arena *arena, const char *text)
{
    return (const char *)nt_arena_copy(arena, text, strlen(text) + 1);
}

/* A way while it is made: nodes with what the reference to the next one is called. */
typedef struct chain {
    ph_state *state;
    ph_step *steps;
    uint32_t count;
    bool closed;
} chain;

/* The object `by` steps after the one at `at`, or NULL behind the end of an open way.
 */
static PyObject *
chain_object(const chain *c, uint32_t at, uint32_t by)
{
    if (!c->closed && at + by >= c->count) {
        return NULL;
    }
    return ph_state_object(c->state, c->steps[(at + by) % c->count].node);
}

static nt_status
chain_set(chain *c, ph_step *step, ph_edge_kind kind, const char *name)
{
    step->kind = kind;
    step->name = chain_copy(&c->state->scratch, name);
    return step->name == NULL ? NT_NOMEM : NT_OK;
}

/* Whether the object at `at` is only how the one before it keeps the one after it. */
static bool
chain_inner(const chain *c, uint32_t at)
{
    ph_edge_kind kind;
    char name[PH_NAME_BYTES];
    const uint32_t before = at == 0 ? c->count - 1 : at - 1;
    PyObject *object = chain_object(c, at, 0);
    return PyCell_Check(object) ||
           ph_names_through(chain_object(c, before, 0), object, chain_object(c, at, 1),
                            &kind, name);
}

/* Names the reference from `at`, and says over how many raw steps it leads. */
static nt_status
chain_merge(chain *c, uint32_t at, ph_step *merged, uint32_t *taken)
{
    ph_edge_kind kind = PH_EDGE_OTHER;
    char name[PH_NAME_BYTES] = "";
    PyObject *object = chain_object(c, at, 0);
    PyObject *next = chain_object(c, at, 1);
    PyObject *third = chain_object(c, at, 2);
    *merged = c->steps[at];
    *taken = 1;
    if (next == NULL) {
        return chain_set(c, merged, kind, name);
    }
    if (third == NULL || !ph_names_through(object, next, third, &kind, name)) {
        (void)ph_names_find(object, next, &kind, name);
        return chain_set(c, merged, kind, name);
    }
    *taken = 2;
    if (PyCell_Check(third) && chain_object(c, at, 3) != NULL) {
        *taken = 3;
        kind = PH_EDGE_VARIABLE;
    }
    return chain_set(c, merged, kind, name);
}

/* Begins a closed way at an object that a reader knows. */
static void
chain_rotate(ph_step *steps, uint32_t count, uint32_t by)
{
    if (by == 0) {
        return;
    }
    /* Three reversals turn an array in place. */
    const uint32_t ends[3][2] = {{0, by}, {by, count}, {0, count}};
    for (int part = 0; part < 3; part++) {
        uint32_t low = ends[part][0], high = ends[part][1];
        while (low + 1 < high) {
            const ph_step kept = steps[low];
            steps[low++] = steps[--high];
            steps[high] = kept;
        }
    }
}

static void
chain_open(chain *c)
{
    for (uint32_t at = 0; at < c->count; at++) {
        if (!chain_inner(c, at)) {
            chain_rotate(c->steps, c->count, at);
            return;
        }
    }
}

nt_status
ph_describe_steps(ph_state *s, const uint32_t *nodes, uint32_t count, bool closed,
                  ph_step **steps, uint32_t *step_count, nt_error *err)
{
    ph_step *raw = nt_arena_take(&s->scratch, count * sizeof *raw, _Alignof(ph_step));
    ph_step *made = nt_arena_take(&s->scratch, count * sizeof *raw, _Alignof(ph_step));
    if (raw == NULL || made == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t at = 0; at < count; at++) {
        raw[at] = (ph_step){.node = nodes[at]};
    }
    chain c = {.state = s, .steps = raw, .count = count, .closed = closed};
    if (closed) {
        chain_open(&c);
    }
    uint32_t made_count = 0;
    for (uint32_t at = 0, taken; at < count; at += taken) {
        if (count > MOST_NAMED && at >= NAMED_AT_AN_END &&
            at < count - NAMED_AT_AN_END) {
            made[made_count++] = (ph_step){.node = raw[at].node, .name = ""};
            taken = 1;
        } else if (chain_merge(&c, at, &made[made_count++], &taken) != NT_OK) {
            return nt_fail_nomem(err);
        }
    }
    *steps = made;
    *step_count = made_count;
    return NT_OK;
}

static uint64_t
chain_hash(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    }
    return nt_mix64(hash);
}

/* A position or a key differs between objects of one shape; an attribute does not. */
static bool
chain_named_alike(ph_edge_kind kind)
{
    return kind != PH_EDGE_VALUE && kind != PH_EDGE_KEY && kind != PH_EDGE_ITEM;
}

static uint64_t
chain_step_hash(const ph_state *s, const ph_step *step)
{
    ph_label label;
    ph_names_label(ph_state_object(s, step->node), &label);
    uint64_t hash = chain_hash(UINT64_C(0xcbf29ce484222325), label.type);
    if (label.kind == PH_NODE_FUNCTION || label.kind == PH_NODE_METHOD ||
        label.kind == PH_NODE_FRAME) {
        hash = chain_hash(hash, label.text);
    }
    hash = nt_mix64(hash ^ (uint64_t)step->kind);
    return chain_named_alike(step->kind) ? chain_hash(hash, step->name) : hash;
}

uint64_t
ph_describe_signature(const ph_state *s, const ph_step *steps, uint32_t count)
{
    /* A sum over neighbours does not depend on where the round begins. */
    const uint32_t last = count < MOST_SIGNED ? count : MOST_SIGNED;
    const uint64_t first = chain_step_hash(s, &steps[0]);
    uint64_t hash = first, sum = nt_mix64(count);
    for (uint32_t at = 0; at < last; at++) {
        const uint64_t next =
            at + 1 == last ? first : chain_step_hash(s, &steps[at + 1]);
        sum += nt_mix64(hash * 3 + next);
        hash = next;
    }
    return sum;
}

#define MOST_RANK 5

/* The smaller, the better a reader knows it. */
static int
chain_rank(const ph_label *label)
{
    switch (label->kind) {
    case PH_NODE_OBJECT: return 0;
    case PH_NODE_TENSOR: return 1;
    case PH_NODE_EXCEPTION: return 2;
    case PH_NODE_FRAME: return 3;
    case PH_NODE_FUNCTION: return 4;
    default: return MOST_RANK;
    }
}

/* Where a step stands among those that a way may begin with: by rank, type, name. */
typedef struct chain_place {
    int rank;
    char type[PH_NAME_BYTES];
    const char *name;
} chain_place;

static bool
chain_before(const chain_place *one, const chain_place *other)
{
    if (one->rank != other->rank) {
        return one->rank < other->rank;
    }
    const int types = strcmp(one->type, other->type);
    return types != 0 ? types < 0 : strcmp(one->name, other->name) < 0;
}

void
ph_describe_turn(const ph_state *s, ph_step *steps, uint32_t count)
{
    uint32_t best = 0;
    chain_place best_place = {.rank = MOST_RANK + 1, .name = ""};
    for (uint32_t at = 0; at < count && at < MOST_SIGNED; at++) {
        ph_label label;
        ph_names_label(ph_state_object(s, steps[at].node), &label);
        chain_place place = {.rank = chain_rank(&label), .name = steps[at].name};
        memcpy(place.type, label.type, sizeof place.type);
        if (chain_before(&place, &best_place)) {
            best = at;
            best_place = place;
        }
    }
    chain_rotate(steps, count, best);
}
