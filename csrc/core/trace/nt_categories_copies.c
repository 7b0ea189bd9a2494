/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the program makes itself and that are as large as its gradients: masters
 * in fp32 and the averages of parameters are kept, the gradients of masters are made
 * after a backward pass and replaced by the next.
 */
#include "trace/nt_categories_state.h"

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

/* The backward pass whose gradients are made ready at an event, plus 1; 0: none. */
static uint32_t
copies_after(const copies *k, int32_t made)
{
    const size_t ended = nt_categories_ended(k->c, made + 1);
    return ended != 0 && made < k->ready[ended - 1] ? (uint32_t)ended : 0;
}

/* Whether no backward pass has begun at an event. */
static bool
copies_is_early(const categories *c, int32_t made)
{
    return c->span_count == 0 || made < c->spans[0].begin;
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

/*
 * Parameters that a line of the program makes, in the __init__ of a module of its own
 * say: kept to the end, and as large as gradients for which there is no parameter yet.
 */
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
            NT_TRY_DONE(nt_categories_count(c, &found, c->a->requested_size[row]));
        }
    }
    for (size_t row = c->first; row < c->a->count; row++) {
        const uint64_t asked = c->a->requested_size[row];
        if (c->a->free_event[row] == NT_EVENT_NEVER && copies_is_candidate(c, row) &&
            copies_is_early(c, c->a->alloc_event[row]) &&
            nt_categories_counted(&found, asked) <
                nt_categories_counted(&c->largest, asked)) {
            c->rules[row] = NT_RULE_LINE_MADE;
            NT_TRY_DONE(nt_categories_count(c, &found, asked));
        }
    }
done:
    nt_map_clear(&found);
    return status;
}

nt_status
nt_categories_copies(categories *c)
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
    nt_release(&c->alloc, k.sums, k.stacks * sizeof *k.sums);
    nt_release(&c->alloc, k.ready, c->span_count * sizeof *k.ready);
    return status;
}
