/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_categories.h"

#include "base/nt_map.h"
#include "base/nt_search.h"

typedef struct categories {
    nt_alloc alloc;
    const nt_passes *passes;
    const nt_timeline *timeline;
    const nt_allocation_columns *a;
    const uint8_t *role; /* by event */
    const nt_span *spans;
    size_t span_count;
    const int32_t *forward;
    size_t forward_count;
    size_t first;   /* the first row that the trace itself allocates */
    int32_t early;  /* the event before which lines of the program make what stays */
    bool is_cut;    /* whether the trace ends inside its only backward pass */
    uint8_t *rules; /* by row; the caller's */
    nt_map built;   /* requested size -> blocks that modules made and keep */
    nt_map known;   /* requested sizes of blocks kept to the end */
    nt_map passing; /* requested sizes that the forward pass of a cut one keeps */
    nt_map seen;    /* requested size -> survivors of all passes */
    nt_map sizes;   /* requested sizes of gradients */
    nt_map largest; /* of the pass that leaves the most bytes: size -> gradients */
    uint64_t bytes; /* what that pass leaves */
    nt_error *err;
} categories;

/* The nt_role of a row: that of the event that allocates it. Of one from before the
 * trace, that of its stack, which a block keeps when the ring has lost its event. */
static inline uint8_t
categories_role(const categories *c, size_t row)
{
    return row < c->first ? (uint8_t)nt_passes_stack_role(c->passes, c->a->stack[row])
                          : c->role[c->a->alloc_event[row]];
}

/* Sizes of workspaces that cuBLAS keeps. */
#define NT_WORKSPACES 3

/* Events that the scratch memory of one operation lives at most. */
#define CATEGORIES_BRIEF 64

/* Whether nothing that was made while a row lived outlives it. */
static bool
scratch_is_nested(const categories *c, size_t row)
{
    const nt_allocation_columns *a = c->a;
    const int32_t end = a->free_event[row];
    size_t after = row + 1;
    while (after < a->count && a->alloc_event[after] < end &&
           a->free_event[after] >= 0 && a->free_event[after] < end) {
        if (a->stack[after] != a->stack[row]) {
            return false;
        }
        after++;
    }
    return after == a->count || a->alloc_event[after] > end;
}

static const uint32_t *
scratch_stacks(const categories *c)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(c->timeline);
    size_t first, count;
    nt_snapshot_trace(snapshot, (size_t)nt_timeline_device(c->timeline), &first,
                      &count);
    return nt_snapshot_events(snapshot)->stack + first;
}

/* Whether all events from one to another come from one line of PyTorch's own files:
 * such a line calls one operation. */
static bool
scratch_is_one_call(const categories *c, const uint32_t *stack, int32_t begin,
                    int32_t end)
{
    if (!nt_timeline_facts(c->timeline)->frees_known ||
        !nt_passes_is_torch(c->passes, stack[begin])) {
        return false;
    }
    for (int32_t at = begin + 1; at <= end; at++) {
        if (stack[at] != stack[begin]) {
            return false;
        }
    }
    return true;
}

static void
categories_scratch(categories *c)
{
    if (c->first == c->a->count) {
        return;
    }
    const uint32_t *stack = scratch_stacks(c);
    for (size_t row = c->first; row < c->a->count; row++) {
        const int32_t begin = c->a->alloc_event[row], end = c->a->free_event[row];
        const uint8_t role = c->role[begin];
        const bool of_module = role == NT_ROLE_MODULE || role == NT_ROLE_CACHE;
        if (end <= begin || end - begin > CATEGORIES_BRIEF) {
            continue;
        }
        /* A line of the program's own calls more than one operation. */
        if (((of_module || role == NT_ROLE_BACKWARD) && scratch_is_nested(c, row)) ||
            ((of_module || role == NT_ROLE_USER) &&
             scratch_is_one_call(c, stack, begin, end))) {
            c->rules[row] = NT_RULE_SCRATCH;
        }
    }
}

/* Tensors that the program makes itself and that are as large as its gradients: masters
 * in fp32 and the averages of parameters are kept, the gradients of masters are made
 * after a backward pass and replaced by the next. */

/* What the rows of one stack amount to, in requested bytes. */
typedef struct copies_of_stack {
    uint64_t kept, kept_fits;     /* kept to the end; of these as large as gradients */
    uint64_t passed, passed_fits; /* made after a backward pass and freed again */
    uint32_t passes;              /* how many backward passes such came after */
    uint32_t last;                /* the last of these passes, plus 1 */
} copies_of_stack;

/* Whether some gradient has this size, or that of another precision. */
static bool
copies_fits(const categories *c, uint64_t asked)
{
    return nt_map_find(&c->largest, asked) != NT_NONE ||
           nt_map_find(&c->largest, asked / 2) != NT_NONE ||
           nt_map_find(&c->largest, asked * 2) != NT_NONE;
}

/* Whether `bytes` may be those of one set of copies of all gradients. */
static bool
copies_are_whole(const categories *c, uint64_t bytes, uint64_t fits, uint32_t sets)
{
    const uint64_t each = sets == 0 ? 0 : fits / sets;
    return fits >= bytes - bytes / 20 && each >= c->bytes / 2 - c->bytes / 20 &&
           each <= 2 * (c->bytes + c->bytes / 20);
}

/* What copying needs to know of the whole trace. */
typedef struct copies {
    categories *c;
    copies_of_stack *sums; /* by stack id */
    size_t stacks;
    /* By backward pass the event up to which gradients are made ready: the optimizer's
     * first after it; the pass's end where something else comes first. */
    int32_t *ready;
} copies;

static void
copies_find_ready(const copies *k)
{
    const categories *c = k->c;
    const int32_t events = (int32_t)nt_timeline_event_count(c->timeline);
    for (size_t i = 0; i < c->span_count; i++) {
        const int32_t end = c->spans[i].end;
        const int32_t stop = i + 1 < c->span_count ? c->spans[i + 1].begin : events;
        int32_t at = end;
        while (at < stop &&
               (c->role[at] == NT_ROLE_USER || c->role[at] == NT_ROLE_SCALER)) {
            at++;
        }
        const bool works = at < stop && (c->role[at] == NT_ROLE_OPTIMIZER ||
                                         c->role[at] == NT_ROLE_STATE);
        k->ready[i] = works ? at : end;
    }
}

/* How many passes end before `event`. */
static size_t
categories_ended(const categories *c, int32_t event)
{
    size_t low = 0, high = c->span_count;
    NT_BISECT(low, high, middle, c->spans[middle].end < event);
    return low;
}

/* The backward pass whose gradients are made ready at an event, plus 1; 0: none. */
static uint32_t
copies_after(const copies *k, int32_t made)
{
    const size_t ended = categories_ended(k->c, made + 1);
    return ended != 0 && made < k->ready[ended - 1] ? (uint32_t)ended : 0;
}

/* The event at which the first backward pass begins. Where the trace ends inside it,
 * that of its forward pass: what is kept to the end may be an activation as well. */
static int32_t
categories_early(const categories *c)
{
    if (c->span_count == 0) {
        return INT32_MAX;
    }
    const int32_t begin = c->spans[0].begin;
    const bool forward = c->is_cut && c->forward_count != 0 && c->forward[0] < begin;
    return forward ? c->forward[0] : begin;
}

/* Whether a line of the program that makes something at an event is early. */
static bool
copies_is_early(const categories *c, int32_t made)
{
    return made < c->early;
}

static bool
copies_is_candidate(const categories *c, size_t row)
{
    const uint8_t rule = c->rules[row];
    return categories_role(c, row) == NT_ROLE_USER && c->a->stack[row] != NT_NO_STACK &&
           (rule == NT_RULE_NONE || rule == NT_RULE_BEFORE_MODULE ||
            rule == NT_RULE_AFTER_MODULE);
}

static void
copies_add(const copies *k, size_t row)
{
    const nt_allocation_columns *a = k->c->a;
    copies_of_stack *sum = &k->sums[a->stack[row]];
    const uint64_t asked = a->requested_size[row];
    const uint64_t fits = copies_fits(k->c, asked) ? asked : 0;
    const uint32_t pass = copies_after(k, a->alloc_event[row]);
    if (copies_is_early(k->c, a->alloc_event[row])) {
        sum->kept += a->free_event[row] < 0 ? asked : 0;
        sum->kept_fits += a->free_event[row] < 0 ? fits : 0;
    } else if (pass != 0) {
        sum->passed += asked;
        sum->passed_fits += fits;
        sum->passes += pass != sum->last;
        sum->last = pass;
    }
}

/* The rule for a row of the program's own lines; its own where none of these holds. */
static uint8_t
copies_rule(const copies *k, size_t row)
{
    const categories *c = k->c;
    const copies_of_stack *sum = &k->sums[c->a->stack[row]];
    const int32_t made = c->a->alloc_event[row];
    if (!copies_fits(c, c->a->requested_size[row])) {
        return c->rules[row];
    }
    if (copies_is_early(c, made)) {
        const bool kept = c->a->free_event[row] < 0;
        return kept && copies_are_whole(c, sum->kept, sum->kept_fits, 1)
                   ? NT_RULE_PARAMETER_COPY
                   : c->rules[row];
    }
    return copies_after(k, made) != 0 &&
                   copies_are_whole(c, sum->passed, sum->passed_fits, sum->passes)
               ? NT_RULE_GRADIENT_COPY
               : c->rules[row];
}

static void
copies_decide(const copies *k)
{
    const categories *c = k->c;
    for (size_t i = 0; i < k->stacks; i++) {
        k->sums[i] = (copies_of_stack){0};
    }
    copies_find_ready(k);
    for (size_t row = c->first; row < c->a->count; row++) {
        if (copies_is_candidate(c, row)) {
            copies_add(k, row);
        }
    }
    for (size_t row = c->first; row < c->a->count; row++) {
        if (copies_is_candidate(c, row)) {
            c->rules[row] = copies_rule(k, row);
        }
    }
}

/* What `map` has under `key`; 0 for nothing. */
static uint32_t
categories_counted(const nt_map *map, uint64_t key)
{
    const uint32_t count = nt_map_find(map, key);
    return count == NT_NONE ? 0 : count;
}

static nt_status
categories_count(categories *c, nt_map *map, uint64_t key)
{
    return nt_map_set(map, key, categories_counted(map, key) + 1, c->err);
}

/* Whether a row is kept to the end, or replaced within an optimizer's step. */
static bool
copies_is_kept(const categories *c, size_t row)
{
    const int32_t freed = c->a->free_event[row];
    return freed == NT_EVENT_NEVER ||
           (freed >= 0 && c->role[freed] == NT_ROLE_OPTIMIZER &&
            nt_timeline_facts(c->timeline)->frees_known);
}

/* Parameters that a line of the program makes, in the __init__ of a module of its own
 * say: kept, and as large as gradients for which there is no parameter yet. */
static nt_status
copies_find_made(categories *c)
{
    nt_map found; /* requested size -> parameters */
    nt_map_init(&found, c->alloc);
    nt_status status = NT_OK;
    for (size_t row = 0; row < c->a->count; row++) {
        if (c->a->free_event[row] == NT_EVENT_NEVER &&
            (c->rules[row] == NT_RULE_MODULE_MADE ||
             c->rules[row] == NT_RULE_AS_GRADIENTS)) {
            NT_TRY_DONE(categories_count(c, &found, c->a->requested_size[row]));
        }
    }
    for (size_t row = c->first; row < c->a->count; row++) {
        const uint64_t asked = c->a->requested_size[row];
        if (copies_is_kept(c, row) && copies_is_candidate(c, row) &&
            copies_is_early(c, c->a->alloc_event[row]) &&
            categories_counted(&found, asked) <
                categories_counted(&c->largest, asked)) {
            c->rules[row] = NT_RULE_LINE_MADE;
            NT_TRY_DONE(categories_count(c, &found, asked));
        }
    }
done:
    nt_map_clear(&found);
    return status;
}

static nt_status
categories_copies(categories *c)
{
    if (c->bytes == 0) {
        return NT_OK;
    }
    NT_TRY(copies_find_made(c));
    copies k = {.c = c};
    k.stacks = nt_stacks_count(nt_snapshot_stacks(nt_timeline_snapshot(c->timeline)));
    k.sums = nt_allocate(&c->alloc, k.stacks * sizeof *k.sums);
    k.ready = nt_allocate(&c->alloc, c->span_count * sizeof *k.ready);
    nt_status status = NT_OK;
    if (k.sums == NULL || k.ready == NULL) {
        status = nt_fail_nomem(c->err);
    } else {
        copies_decide(&k);
    }
    NT_RELEASE(&c->alloc, k.sums, k.stacks);
    NT_RELEASE(&c->alloc, k.ready, c->span_count);
    return status;
}

/* The share of bytes that must have the same number of copies, as 1 / 20ths. */
#define CATEGORIES_AGREEING 19

/* Numbers of copies that are told apart. */
#define CATEGORIES_COPIES 8

/* The sizes that modules made and keep, and those of all that is kept. */
static nt_status
backward_known(categories *c)
{
    const nt_allocation_columns *a = c->a;
    for (size_t row = 0; row < a->count; row++) {
        if (a->free_event[row] != NT_EVENT_NEVER) {
            continue;
        }
        const bool early = copies_is_early(c, a->alloc_event[row]);
        const bool before = row < c->first || (c->is_cut && early);
        if (c->is_cut && !early && a->alloc_event[row] < c->spans[0].begin) {
            NT_TRY(categories_count(c, &c->passing, a->requested_size[row]));
        }
        const bool made = categories_role(c, row) == NT_ROLE_BUILD;
        if (made) {
            NT_TRY(categories_count(c, &c->built, a->requested_size[row]));
        }
        if (made || before) {
            NT_TRY(categories_count(c, &c->known, a->requested_size[row]));
        }
    }
    return NT_OK;
}

/* Which of these a request has; NT_WORKSPACES: none. */
static size_t
categories_workspace(uint64_t asked)
{
    /* Of Hopper and newer, of those before with all its formats, and without. */
    static const uint32_t sizes[NT_WORKSPACES] = {32u << 20, 8519680, 4194304 + 131072};
    size_t kind = 0;
    while (kind < NT_WORKSPACES && sizes[kind] != asked) {
        kind++;
    }
    return kind;
}

/* Drops workspaces from the survivors of one pass, rows first .. end - 1. What is as
 * large as a workspace and never freed may be one. The pass keeps as many of these as
 * modules have built tensors of that size, the last ones: a workspace is made by the
 * first operation that needs it. */
static void
backward_drop_workspaces(categories *c, size_t first, size_t end)
{
    const nt_allocation_columns *a = c->a;
    uint32_t left[NT_WORKSPACES] = {0};
    for (size_t row = first; row < end; row++) {
        const size_t kind = categories_workspace(a->requested_size[row]);
        if (kind < NT_WORKSPACES && c->rules[row] == NT_RULE_SURVIVES_BACKWARD &&
            a->free_event[row] < 0) {
            left[kind]++;
        }
    }
    for (size_t row = first; row < end; row++) {
        const uint64_t asked = a->requested_size[row];
        const size_t kind = categories_workspace(asked);
        if (kind < NT_WORKSPACES && c->rules[row] == NT_RULE_SURVIVES_BACKWARD &&
            a->free_event[row] < 0 &&
            left[kind] > categories_counted(&c->built, asked)) {
            c->rules[row] = NT_RULE_WORKSPACE;
            left[kind]--;
        }
    }
}

/* How many passes begin before `event`. */
static size_t
categories_begun(const categories *c, int32_t event)
{
    size_t low = 0, high = c->span_count;
    NT_BISECT(low, high, middle, c->spans[middle].begin < event);
    return low;
}

/* The number of the backward pass that an event is in; SIZE_MAX: in none. */
static size_t
categories_pass(const categories *c, int32_t event)
{
    const size_t at = categories_begun(c, event + 1);
    return at > 0 && event < c->spans[at - 1].end ? at - 1 : SIZE_MAX;
}

/* Marks what backward passes make: what outlives its pass as a gradient for now. */
static void
backward_survivors(categories *c)
{
    const nt_allocation_columns *a = c->a;
    size_t pass = SIZE_MAX, first = c->first;
    for (size_t row = c->first; row < a->count; row++) {
        if (categories_role(c, row) != NT_ROLE_BACKWARD) {
            continue;
        }
        const int32_t freed = a->free_event[row];
        const size_t at = categories_pass(c, a->alloc_event[row]);
        if (at == SIZE_MAX) {
            continue;
        }
        if (at != pass) {
            backward_drop_workspaces(c, first, row);
            pass = at;
            first = row;
        }
        if (freed >= 0 && freed <= c->spans[at].end) {
            c->rules[row] = c->rules[row] ? c->rules[row] : NT_RULE_INSIDE_BACKWARD;
        } else {
            c->rules[row] = NT_RULE_SURVIVES_BACKWARD;
        }
    }
    backward_drop_workspaces(c, first, a->count);
}

/* Whether what survives a pass is a gradient: zero_grad() frees it, or a parameter, or
 * what other passes leave, has its size. */
static bool
backward_is_gradient(const categories *c, size_t row)
{
    const uint64_t size = c->a->requested_size[row];
    const int32_t freed = c->a->free_event[row];
    return (freed >= 0 && c->role[freed] == NT_ROLE_ZERO_GRAD) ||
           (c->span_count == 1 && nt_map_find(&c->passing, size) == NT_NONE) ||
           nt_map_find(&c->known, size) != NT_NONE ||
           categories_counted(&c->seen, size) > 1;
}

/* Decides about the survivors of one pass, rows first .. end - 1. */
static nt_status
backward_pass(categories *c, size_t first, size_t end)
{
    nt_map kept;
    nt_map_init(&kept, c->alloc);
    uint64_t bytes = 0;
    nt_status status = NT_OK;
    for (size_t row = first; row < end; row++) {
        if (c->rules[row] != NT_RULE_SURVIVES_BACKWARD) {
            continue;
        }
        if (!backward_is_gradient(c, row)) {
            c->rules[row] = NT_RULE_NONE;
            continue;
        }
        const uint64_t size = c->a->requested_size[row];
        bytes += size;
        NT_TRY_DONE(categories_count(c, &kept, size));
        NT_TRY_DONE(categories_count(c, &c->sizes, size));
    }
    if (bytes > c->bytes) {
        const nt_map before = c->largest;
        c->largest = kept;
        c->bytes = bytes;
        kept = before;
    }
done:
    nt_map_clear(&kept);
    return status;
}

static nt_status
backward_gradients(categories *c)
{
    const nt_allocation_columns *a = c->a;
    size_t pass = SIZE_MAX, first = c->first;
    for (size_t row = c->first; row < a->count; row++) {
        if (c->rules[row] == NT_RULE_SURVIVES_BACKWARD) {
            NT_TRY(categories_count(c, &c->seen, a->requested_size[row]));
        }
    }
    for (size_t row = c->first; row < a->count; row++) {
        if (c->rules[row] != NT_RULE_SURVIVES_BACKWARD) {
            continue;
        }
        const size_t at = categories_pass(c, a->alloc_event[row]);
        if (at != pass) {
            NT_TRY(backward_pass(c, first, row));
            pass = at;
            first = row;
        }
    }
    return backward_pass(c, first, a->count);
}

/* How many blocks of `there` there are for each gradient, where most bytes agree; else
 * 0. Buffers as large as small parameters (running means) make a few more. */
static size_t
backward_copies(const categories *c, const nt_map *there)
{
    uint64_t agreeing[CATEGORIES_COPIES] = {0}, total = 0;
    for (size_t i = 0; i < c->largest.slots; i++) {
        const nt_map_entry *entry = &c->largest.entries[i];
        if (entry->value == NT_NONE) {
            continue;
        }
        const uint64_t bytes = entry->key * entry->value;
        const size_t copies = categories_counted(there, entry->key) / entry->value;
        agreeing[copies < CATEGORIES_COPIES ? copies : 0] += bytes;
        total += bytes;
    }
    size_t most = 0;
    for (size_t copies = 1; copies < CATEGORIES_COPIES; copies++) {
        most = agreeing[copies] > agreeing[most] ? copies : most;
    }
    return agreeing[most] / CATEGORIES_AGREEING >= total / 20 ? most : 0;
}

/* The rule for a block from before the trace that is kept, by its own stack. */
static uint8_t
backward_by_stack(const categories *c, size_t row)
{
    switch (categories_role(c, row)) {
    case NT_ROLE_BUILD: return NT_RULE_MODULE_MADE;
    case NT_ROLE_OPTIMIZER:
    case NT_ROLE_STATE: return NT_RULE_OPTIMIZER_KEPT;
    case NT_ROLE_BUCKET: return NT_RULE_BUCKET;
    case NT_ROLE_WORKSPACE: return NT_RULE_WORKSPACE;
    default: return NT_RULE_NONE;
    }
}

/* Whether a block from before the trace is kept, and made by a line of the program's or
 * nobody knows by what. */
static bool
backward_may_be_parameter(const categories *c, size_t row)
{
    const uint8_t role = categories_role(c, row);
    return c->a->free_event[row] == NT_EVENT_NEVER && c->rules[row] == NT_RULE_NONE &&
           (role == NT_ROLE_EMPTY || role == NT_ROLE_USER);
}

/* The rule for such a block, by its size; `copies` of them are there a gradient. */
static uint8_t
backward_of_size(const categories *c, const nt_map *there, size_t copies, size_t row)
{
    const uint64_t asked = c->a->requested_size[row];
    const uint32_t gradients = categories_counted(&c->largest, asked);
    if (copies == 1) {
        return categories_counted(&c->built, asked) < gradients ? NT_RULE_AS_GRADIENTS
                                                                : NT_RULE_NONE;
    }
    return gradients != 0 && categories_counted(there, asked) / gradients >= copies
               ? NT_RULE_ONE_OF_SEVERAL
               : NT_RULE_NONE;
}

/* What was there before the trace began: its stack tells, its end, or its size. With
 * two or three of which nobody knows more for each gradient, most are the optimizer's
 * state, and nothing in the file tells a parameter from a state of its size: in some
 * programs the parameters have the lowest addresses, in others the highest. */
static nt_status
backward_preexisting(categories *c)
{
    const nt_allocation_columns *a = c->a;
    nt_map there;
    nt_map_init(&there, c->alloc);
    nt_status status = NT_OK;
    for (size_t row = 0; row < c->first; row++) {
        const int32_t freed = a->free_event[row];
        if (freed >= 0 && c->role[freed] == NT_ROLE_ZERO_GRAD) {
            c->rules[row] = NT_RULE_ZEROED;
        } else if (freed >= 0 && c->role[freed] == NT_ROLE_BACKWARD) {
            c->rules[row] = NT_RULE_FREED_IN_BACKWARD;
        } else if (freed == NT_EVENT_NEVER) {
            c->rules[row] = backward_by_stack(c, row);
            if (backward_may_be_parameter(c, row)) {
                NT_TRY_DONE(categories_count(c, &there, a->requested_size[row]));
            }
        }
    }
    const size_t copies = backward_copies(c, &there);
    for (size_t row = 0; row < c->first && copies != 0; row++) {
        if (backward_may_be_parameter(c, row)) {
            c->rules[row] = backward_of_size(c, &there, copies, row);
        }
    }
done:
    nt_map_clear(&there);
    return status;
}

/* What backward passes make, and so the gradients' sizes. */
static nt_status
categories_backward(categories *c)
{
    NT_TRY(backward_known(c));
    backward_survivors(c);
    NT_TRY(backward_gradients(c));
    return backward_preexisting(c);
}

/* Whether what was made in a forward pass was freed before the backward pass after the
 * next one began, or the trace ended before that. */
static bool
categories_ends_soon(const categories *c, int32_t made, int32_t freed)
{
    const size_t after = categories_ended(c, made + 1) + 1;
    return after >= c->span_count || (freed >= 0 && freed <= c->spans[after].begin);
}

/* Whether it was kept to the end, or past the next backward pass. */
static bool
categories_outlives(const categories *c, int32_t made, int32_t freed)
{
    if (freed < 0) {
        return true;
    }
    const size_t after = categories_begun(c, made);
    return after < c->span_count && freed > c->spans[after].end;
}

/* The first event inside of a module from `event` on, as a place in c->forward. */
static size_t
categories_next_call(const categories *c, int32_t event)
{
    size_t low = 0, high = c->forward_count;
    NT_BISECT(low, high, middle, c->forward[middle] < event);
    return low;
}

static uint8_t
categories_of_line(const categories *c, int32_t made, int32_t freed)
{
    const size_t ended = categories_ended(c, made + 1);
    const int32_t opened = ended > 0 ? c->spans[ended - 1].end : 0;
    const size_t here = categories_next_call(c, made);
    if (here > 0 && c->forward[here - 1] >= opened) {
        /* A module was called since the last backward pass, and one will follow. */
        const bool coming = categories_begun(c, made) < c->span_count;
        return coming && categories_ends_soon(c, made, freed) ? NT_RULE_AFTER_MODULE
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
    return categories_ends_soon(c, made, freed) ? NT_RULE_BEFORE_MODULE : NT_RULE_NONE;
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
    if (freed < 0 && categories_workspace(c->a->requested_size[row]) < NT_WORKSPACES) {
        return NT_RULE_WORKSPACE;
    }
    return categories_ends_soon(c, made, freed) ? NT_RULE_MODULE_OUTPUT : NT_RULE_NONE;
}

static uint8_t
categories_of_row(const categories *c, size_t row)
{
    const int32_t made = c->a->alloc_event[row], freed = c->a->free_event[row];
    const bool kept = categories_outlives(c, made, freed);
    switch (categories_role(c, row)) {
    case NT_ROLE_MODULE: return categories_of_module(c, row, made, freed);
    case NT_ROLE_USER:
        /* Without a module's call nothing is known of the program's own lines, and what
         * an __init__ makes is its object's. */
        return c->forward_count && !nt_passes_is_init(c->passes, c->a->stack[row])
                   ? categories_of_line(c, made, freed)
                   : NT_RULE_NONE;
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

static bool
replaced_is_parameter(const categories *c, size_t row)
{
    const uint8_t rule = c->rules[row];
    const int32_t freed = c->a->free_event[row];
    return (rule == NT_RULE_MODULE_MADE || rule == NT_RULE_AS_GRADIENTS ||
            rule == NT_RULE_LINE_MADE || rule == NT_RULE_REPLACES) &&
           freed >= 0 && c->role[freed] == NT_ROLE_OPTIMIZER;
}

/* Parameters that an optimizer replaces (`p.data = ...`): the last of its size that the
 * step makes before it frees the one before. */
static void
categories_replaced(categories *c)
{
    const uint32_t *rows = nt_timeline_event_allocations(c->timeline);
    for (size_t row = 0; row < c->a->count; row++) {
        if (!replaced_is_parameter(c, row)) {
            continue;
        }
        const int32_t freed = c->a->free_event[row];
        for (int32_t at = freed - 1; at >= 0 && freed - at <= CATEGORIES_BRIEF; at--) {
            const uint32_t made = rows[at];
            if (made != NT_NONE && c->a->alloc_event[made] == at &&
                c->rules[made] == NT_RULE_OPTIMIZER_KEPT &&
                c->a->requested_size[made] == c->a->requested_size[row]) {
                c->rules[made] = NT_RULE_REPLACES;
                break;
            }
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
    nt_map *const maps[] = {&c->built, &c->known, &c->passing,
                            &c->seen,  &c->sizes, &c->largest};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        nt_map_init(maps[i], *alloc);
    }
    c->is_cut = c->span_count == 1 &&
                (size_t)c->spans[0].end >= nt_timeline_event_count(c->timeline);
    c->early = categories_early(c);
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
    categories_scratch(&c);
    nt_status status = categories_backward(&c);
    if (status == NT_OK) {
        categories_others(&c);
        status = categories_copies(&c);
        categories_replaced(&c);
    }
    nt_map *const maps[] = {&c.built, &c.known, &c.passing,
                            &c.seen,  &c.sizes, &c.largest};
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
