/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dominators after Lengauer and Tarjan, 1979, the version with path compression only.
 *
 * Nodes are looked at by their number in the order of a search in depth, from 1 on; 0
 * is the outside, which refers to every root. A number's semidominator is the smallest
 * number from which a path leads to it through larger numbers only. Numbers are worked
 * off from the largest down, and those that are done hang in a forest under their
 * parents in the search, in which a path is shortened whenever it is walked.
 *
 * Four fields a number serve all of it, because those that share one live one after
 * the other:
 *
 *     parent    parent in the search; once done, a forest ancestor
 *     best      once done: the number of least semidominator on the way to `parent`
 *     semi      during the search the next edge; until done, the first of the numbers
 *               whose semidominator this is; once done, the semidominator of `best`
 *     dominator until done, the smallest referrer known; then the next number of the
 *               same semidominator; in the end the dominator
 */
#include "heap/nt_graph.h"

#include <string.h>

#include "heap/nt_graph_queue.h"

/* On `dominator`: not this number but that one's dominator, to be looked up when that
 * is known. */
#define DOMINATORS_LATER (UINT32_C(1) << 31)

/* Entries of referrers are asked for so many edges ahead of their use. */
#define DOMINATORS_AHEAD 16

typedef struct dominators_entry {
    uint32_t parent;
    uint32_t best;
    uint32_t semi;
    uint32_t dominator;
} dominators_entry;

typedef struct dominators_state {
    const nt_graph *graph;
    uint32_t *number;          /* of each node, NT_NONE if not reached: the result array
                                  until the end */
    uint32_t *order;           /* order[i - 1] is the node of number i */
    dominators_entry *entries; /* by number */
    uint32_t reached;
    uint32_t
        *first; /* referrers of number i: from[first[i]] .. from[first[i + 1] - 1] */
    uint32_t *from;
    size_t from_count;
} dominators_state;

static uint32_t
dominators_open(dominators_state *s, uint32_t node, uint32_t parent)
{
    const nt_graph *graph = s->graph;
    const uint32_t begin = graph->first[node], end = graph->first[node + 1];
    for (uint32_t e = begin; e < end && e - begin < 8; e++) {
        NT_PREFETCH(&s->number[graph->targets[e]]);
        NT_PREFETCH(&graph->first[graph->targets[e]]);
    }
    s->order[s->reached++] = node;
    s->number[node] = s->reached;
    s->entries[s->reached] =
        (dominators_entry){.parent = parent, .semi = begin, .dominator = parent};
    return s->reached;
}

/* Numbers what `root` reaches and has no number yet. */
static void
dominators_search(dominators_state *s, uint32_t root)
{
    const nt_graph *graph = s->graph;
    uint32_t here = dominators_open(s, root, 0);
    while (here != 0) {
        const uint32_t end = graph->first[s->order[here - 1] + 1];
        uint32_t edge = s->entries[here].semi;
        while (edge < end && s->number[graph->targets[edge]] != NT_NONE) {
            edge++;
        }
        if (edge < end) {
            s->entries[here].semi = edge + 1;
            here = dominators_open(s, graph->targets[edge], here);
        } else {
            s->entries[here].semi = 0;
            here = s->entries[here].parent;
        }
    }
}

/* Asks for what the numbers below `i` lead to, one thing after the other on its way:
 * where the edges begin, the edges, the numbers of their targets, and the counters of
 * those. */
static void
dominators_look_ahead(const dominators_state *s, uint32_t i)
{
    const uint32_t *first = s->graph->first, *targets = s->graph->targets;
    if (i <= 24) {
        return;
    }
    NT_PREFETCH(&first[s->order[i - 24]]);
    NT_PREFETCH(&targets[first[s->order[i - 16]]]);
    const uint32_t far = s->order[i - 8], near = s->order[i - 4];
    for (uint32_t e = first[far]; e < first[far + 1] && e - first[far] < 8; e++) {
        NT_PREFETCH(&s->number[targets[e]]);
    }
    for (uint32_t e = first[near]; e < first[near + 1] && e - first[near] < 8; e++) {
        NT_PREFETCH(&s->first[s->number[targets[e]]]);
    }
}

/* Turns the edges between numbers round, as nt_graph_reverse does it. */
static nt_status
dominators_collect_referrers(dominators_state *s, nt_error *err)
{
    const nt_graph *graph = s->graph;
    size_t edges = 0;
    memset(s->first, 0, ((size_t)s->reached + 2) * sizeof *s->first);
    for (uint32_t i = s->reached; i > 0; i--) {
        const uint32_t node = s->order[i - 1];
        dominators_look_ahead(s, i);
        edges += graph->first[node + 1] - graph->first[node];
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            s->first[s->number[graph->targets[e]]]++;
        }
    }
    s->from = nt_allocate(&graph->alloc, edges * sizeof *s->from);
    if (s->from == NULL && edges > 0) {
        return nt_fail_nomem(err);
    }
    s->from_count = edges;
    for (uint32_t i = 1; i <= s->reached + 1; i++) {
        s->first[i] += s->first[i - 1];
    }
    for (uint32_t i = s->reached; i > 0; i--) {
        const uint32_t node = s->order[i - 1];
        dominators_look_ahead(s, i);
        for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
            s->from[--s->first[s->number[graph->targets[e]]]] = i;
        }
    }
    return NT_OK;
}

/*
 * The entry of `number`, which is done, after its way up was cut short: its parent is
 * then the first on the way that is not done (at most `limit`). On the way up each
 * step is turned to point back, so that the way down needs no stack.
 */
static const dominators_entry *
dominators_shorten(dominators_entry *entries, uint32_t number, uint32_t limit)
{
    uint32_t below = 0, at = number;
    while (entries[at].parent > limit) {
        const uint32_t up = entries[at].parent;
        entries[at].parent = below;
        below = at;
        at = up;
    }
    const uint32_t top = entries[at].parent;
    while (below != 0) {
        dominators_entry *entry = &entries[below];
        if (entries[at].semi < entry->semi) {
            entry->semi = entries[at].semi;
            entry->best = entries[at].best;
        }
        at = below;
        below = entry->parent;
        entry->parent = top;
    }
    return &entries[number];
}

/* The numbers whose semidominator is `number`: that is their dominator too, unless
 * something between has a lesser semidominator and so the same dominator as they. */
static void
dominators_settle(dominators_state *s, uint32_t number)
{
    uint32_t next = s->entries[number].semi;
    while (next != 0) {
        dominators_entry *entry = &s->entries[next];
        const dominators_entry *way = dominators_shorten(s->entries, next, number);
        next = entry->dominator;
        entry->dominator = way->semi < number ? way->best | DOMINATORS_LATER : number;
    }
}

static void
dominators_sweep(dominators_state *s)
{
    dominators_entry *entries = s->entries;
    for (uint32_t i = s->reached; i > 0; i--) {
        if (s->first[i] >= DOMINATORS_AHEAD) {
            NT_PREFETCH(&entries[s->from[s->first[i] - DOMINATORS_AHEAD]]);
        }
        dominators_settle(s, i);
        uint32_t semi = entries[i].dominator;
        for (uint32_t e = s->first[i]; e < s->first[i + 1]; e++) {
            const uint32_t from = s->from[e];
            const uint32_t least =
                from <= i ? from : dominators_shorten(entries, from, i)->semi;
            semi = least < semi ? least : semi;
        }
        entries[i].best = i;
        entries[i].semi = semi;
        entries[i].dominator = entries[semi].semi;
        entries[semi].semi = i;
    }
    dominators_settle(s, 0);
    for (uint32_t i = 1; i <= s->reached; i++) {
        const uint32_t known = entries[i].dominator;
        if ((known & DOMINATORS_LATER) != 0) {
            entries[i].dominator = entries[known & ~DOMINATORS_LATER].dominator;
        }
    }
}

nt_status
nt_graph_dominators(const nt_graph *graph, const uint32_t *roots, size_t root_count,
                    uint32_t *idom, uint32_t *order, uint32_t *reached, nt_error *err)
{
    if (graph->node_count == 0) {
        *reached = 0;
        return NT_OK;
    }
    const size_t entry_bytes =
        ((size_t)graph->node_count + 1) * sizeof(dominators_entry);
    size_t first_bytes = 0;
    nt_status status = NT_OK;
    dominators_state s = {.graph = graph, .number = idom, .order = order};
    s.entries = nt_allocate(&graph->alloc, entry_bytes);
    if (s.entries == NULL) {
        return nt_fail_nomem(err);
    }
    memset(idom, 0xff, graph->node_count * sizeof *idom);
    s.entries[0] = (dominators_entry){0};
    for (size_t i = 0; i < root_count; i++) {
        if (idom[roots[i]] == NT_NONE) {
            dominators_search(&s, roots[i]);
        }
        /* A root that another one reached before refers to the outside too. */
        s.entries[idom[roots[i]]].dominator = 0;
    }
    first_bytes = ((size_t)s.reached + 2) * sizeof *s.first;
    s.first = nt_allocate(&graph->alloc, first_bytes);
    if (s.first == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    NT_TRY_DONE(dominators_collect_referrers(&s, err));
    dominators_sweep(&s);
    for (uint32_t i = 1; i <= s.reached; i++) {
        const uint32_t dominator = s.entries[i].dominator;
        idom[order[i - 1]] = dominator == 0 ? NT_NONE : order[dominator - 1];
    }
    *reached = s.reached;
done:
    nt_release(&graph->alloc, s.entries, entry_bytes);
    nt_release(&graph->alloc, s.first, first_bytes);
    nt_release(&graph->alloc, s.from, s.from_count * sizeof *s.from);
    return status;
}

void
nt_graph_retained(uint32_t node_count, const uint32_t *idom, const uint32_t *order,
                  uint32_t reached, const uint64_t *bytes, uint64_t *retained)
{
    for (size_t n = 0; n < node_count; n++) {
        retained[n] = 0;
    }
    for (uint32_t i = 0; i < reached; i++) {
        retained[order[i]] = bytes[order[i]];
    }
    for (uint32_t i = reached; i-- > 0;) {
        if (idom[order[i]] != NT_NONE) {
            retained[idom[order[i]]] += retained[order[i]];
        }
    }
}
