/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes with the set: when its members are freed, so is every object that only
 * they, and what goes with them, refer to. References from there are counted until
 * they are all that an object has, as reference counting will do.
 */
#include "describe/ph_describe_state.h"

/* More is not followed: it would be a description of half the heap. */
#define MOST_EXTRAS (1u << 20)

/* References seen to an object outside of the set. */
typedef struct seen {
    PyObject *object;
    Py_ssize_t references;
    uint32_t owner; /* the smallest that refers to it */
    bool goes;
} seen;

typedef struct extra_round {
    ph_state *state;
    seen *seen;
    size_t count;
    size_t capacity;
    nt_map index;    /* address -> in seen */
    uint32_t *queue; /* those that go and were not followed yet */
    size_t queued;
    size_t queue_capacity;
    uint32_t owner; /* of the object that is being followed */
    nt_status status;
} extra_round;

/* A type is never freed with an instance; what the collector does not track is no
 * tensor and keeps none. */
static bool
extra_counts(const extra_round *round, PyObject *object)
{
    if (!PyObject_IS_GC(object) || PyType_Check(object) || PyModule_Check(object)) {
        return false;
    }
    const uint32_t node = ph_heap_find(round->state->heap, object);
    return node == NT_NONE || !nt_bitset_has(round->state->set, node);
}

static nt_status
extra_add(extra_round *round, PyObject *object, uint32_t *found)
{
    const nt_alloc *alloc = &round->state->alloc;
    if (round->count >= MOST_EXTRAS) {
        return NT_OK;
    }
    NT_TRY(nt_grow(alloc, (void **)&round->seen, &round->capacity, round->count + 1,
                   sizeof *round->seen, NULL));
    NT_TRY(nt_map_set(&round->index, (uintptr_t)object, (uint32_t)round->count, NULL));
    round->seen[round->count] = (seen){.object = object, .owner = NT_NONE};
    *found = (uint32_t)round->count++;
    return NT_OK;
}

static nt_status
extra_see(extra_round *round, PyObject *object)
{
    uint32_t at = nt_map_find(&round->index, (uintptr_t)object);
    if (at == NT_NONE) {
        NT_TRY(extra_add(round, object, &at));
        if (at == NT_NONE) {
            return NT_OK;
        }
    }
    seen *entry = &round->seen[at];
    entry->references++;
    entry->owner = round->owner < entry->owner ? round->owner : entry->owner;
    if (entry->goes || entry->references != Py_REFCNT(object)) {
        return NT_OK;
    }
    entry->goes = true;
    NT_TRY(nt_grow(&round->state->alloc, (void **)&round->queue, &round->queue_capacity,
                   round->queued + 1, sizeof *round->queue, NULL));
    round->queue[round->queued++] = at;
    return NT_OK;
}

static int
extra_visit(PyObject *object, void *arg)
{
    extra_round *round = arg;
    if (extra_counts(round, object)) {
        round->status = extra_see(round, object);
    }
    return round->status != NT_OK;
}

static nt_status
extra_follow(extra_round *round, PyObject *object, uint32_t owner)
{
    const traverseproc traverse = Py_TYPE(object)->tp_traverse;
    round->owner = owner;
    if (traverse != NULL) {
        (void)traverse(object, extra_visit, round);
    }
    return round->status;
}

static nt_status
extra_keep(ph_state *s, const seen *entry)
{
    NT_TRY(nt_map_set(&s->extra_index, (uintptr_t)entry->object,
                      s->count + s->extra_count, NULL));
    s->extras[s->extra_count] = entry->object;
    s->extra_owner[s->extra_count] = entry->owner;
    s->extra_count++;
    return NT_OK;
}

static void
extra_clear(ph_state *s)
{
    nt_release(&s->alloc, s->extras, s->extra_capacity * sizeof *s->extras);
    nt_release(&s->alloc, s->extra_owner, s->extra_capacity * sizeof *s->extra_owner);
    nt_map_clear(&s->extra_index);
    s->extras = NULL;
    s->extra_owner = NULL;
    s->extra_count = 0;
    s->extra_capacity = 0;
}

static nt_status
extra_collect(ph_state *s, const extra_round *round)
{
    size_t going = 0;
    for (size_t i = 0; i < round->count; i++) {
        going += round->seen[i].goes;
    }
    if (going == 0) {
        return NT_OK;
    }
    extra_clear(s);
    s->extra_capacity = going;
    s->extras = nt_allocate(&s->alloc, going * sizeof(PyObject *));
    s->extra_owner = nt_allocate(&s->alloc, going * sizeof(uint32_t));
    if (s->extras == NULL || s->extra_owner == NULL) {
        return NT_NOMEM;
    }
    for (size_t i = 0; i < round->count; i++) {
        if (round->seen[i].goes) {
            NT_TRY(extra_keep(s, &round->seen[i]));
        }
    }
    return NT_OK;
}

nt_status
ph_describe_extras(ph_state *s, nt_error *err)
{
    extra_round round = {.state = s};
    nt_map_init(&round.index, s->alloc);
    nt_status status = NT_OK;
    for (size_t node = nt_bitset_next(s->set, 0); node != NT_NO_MEMBER;
         node = nt_bitset_next(s->set, node + 1)) {
        NT_TRY_DONE(extra_follow(&round, ph_heap_object(s->heap, (uint32_t)node),
                                 s->owner == NULL ? 0 : s->owner[node]));
    }
    for (size_t done = 0; done < round.queued; done++) {
        const seen entry = round.seen[round.queue[done]];
        NT_TRY_DONE(extra_follow(&round, entry.object, entry.owner));
    }
    status = extra_collect(s, &round);
done:
    nt_release(&s->alloc, round.seen, round.capacity * sizeof *round.seen);
    nt_release(&s->alloc, round.queue, round.queue_capacity * sizeof *round.queue);
    nt_map_clear(&round.index);
    return status == NT_OK ? NT_OK : nt_fail_nomem(err);
}
