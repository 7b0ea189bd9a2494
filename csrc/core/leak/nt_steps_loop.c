/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "leak/nt_steps_parts.h"

/* A loop has so many rounds, or else one inside of it is looked for first. */
enum { STEPS_ROUNDS = 8 };

/* Frames that are looked through from the outermost on. */
enum { STEPS_DEEPEST = 64 };

/*
 * A level of the calls: all stacks that begin with the stack `outer`, whose frames are
 * one fewer than `depth`. The function that `outer` calls most is looked at.
 */
typedef struct steps_level {
    uint32_t outer, depth;
    uint32_t name, filename; /* of the function */
} steps_level;

typedef struct steps_tree {
    size_t stacks;
    const uint32_t *innermost, *parent;
    const nt_frame *frames;
    uint32_t *weight; /* allocations of each stack */
    uint32_t *depth;  /* frames of each stack */
    uint32_t *at;     /* its first frames, as many as the level has; NT_NONE: fewer */
    nt_map lines;     /* how often each line of the function was gone back to */
} steps_tree;

/* A loop: where it begins, and how often it was gone back to. */
typedef struct steps_found_loop {
    steps_level level;
    int64_t line;
    uint32_t rounds;
    uint32_t frame;
} steps_found_loop;

static void
steps_tree_clear(steps_work *w, steps_tree *tree)
{
    const size_t size = tree->stacks * sizeof *tree->depth;
    nt_release(&w->alloc, tree->weight, size);
    nt_release(&w->alloc, tree->depth, size);
    nt_release(&w->alloc, tree->at, size);
    nt_map_clear(&tree->lines);
}

static nt_status
steps_tree_init(steps_work *w, steps_tree *tree, nt_error *err)
{
    const nt_stacks *stacks = nt_snapshot_stacks(w->snapshot);
    *tree = (steps_tree){.stacks = nt_stacks_count(stacks)};
    nt_map_init(&tree->lines, w->alloc);
    tree->innermost = nt_stacks_innermost(stacks);
    tree->parent = nt_stacks_parent(stacks);
    tree->frames = nt_stacks_frames(stacks);
    const size_t size = tree->stacks * sizeof *tree->depth;
    tree->weight = nt_allocate(&w->alloc, size);
    tree->depth = nt_allocate(&w->alloc, size);
    tree->at = nt_allocate(&w->alloc, size);
    if (tree->weight == NULL || tree->depth == NULL || tree->at == NULL) {
        steps_tree_clear(w, tree);
        return nt_fail_nomem(err);
    }
    memset(tree->weight, 0, size);
    for (size_t i = 0; i < w->count; i++) {
        if (nt_steps_allocates(w, i) && w->stack[i] != NT_NO_STACK) {
            tree->weight[w->stack[i]]++;
        }
    }
    /* A stack comes after the one that it was called from. */
    tree->depth[0] = 0;
    for (size_t s = 1; s < tree->stacks; s++) {
        tree->depth[s] = tree->depth[tree->parent[s]] + 1;
    }
    return NT_OK;
}

/* The frame of a stack that the level's function has; NULL where it is not in it. */
static const nt_frame *
steps_frame(const steps_tree *tree, const steps_level *level, size_t stack)
{
    const uint32_t at = tree->at[stack];
    if (at == NT_NONE || tree->parent[at] != level->outer) {
        return NULL;
    }
    const nt_frame *frame = &tree->frames[tree->innermost[at]];
    return frame->name == level->name && frame->filename == level->filename ? frame
                                                                            : NULL;
}

/* The line of an allocation in the level's function, or 0 where `outer` makes it by
 * itself, before or after it calls. False: it is neither. */
static bool
steps_line(const steps_work *w, const steps_tree *tree, const steps_level *level,
           size_t event, int64_t *line)
{
    const uint32_t stack = w->stack[event];
    if (!nt_steps_allocates(w, event) || stack == NT_NO_STACK) {
        return false;
    }
    const bool is_own = stack == level->outer && stack != NT_EMPTY_STACK;
    const nt_frame *frame = is_own ? NULL : steps_frame(tree, level, stack);
    *line = frame == NULL ? 0 : frame->line;
    return is_own || frame != NULL;
}

/* Fills tree->at for a level, and chooses its function: the one with most allocations
 * if it has more than the others together. False: `outer` calls nothing. */
static bool
steps_open_level(steps_tree *tree, steps_level *level)
{
    const nt_frame *chosen = NULL;
    uint64_t votes = 0;
    for (size_t s = 0; s < tree->stacks; s++) {
        tree->at[s] = tree->depth[s] < level->depth    ? NT_NONE
                      : tree->depth[s] == level->depth ? (uint32_t)s
                                                       : tree->at[tree->parent[s]];
        const uint32_t at = tree->at[s];
        if (tree->weight[s] == 0 || at == NT_NONE || tree->parent[at] != level->outer) {
            continue;
        }
        const nt_frame *frame = &tree->frames[tree->innermost[at]];
        const bool is_same = chosen != NULL && frame->name == chosen->name &&
                             frame->filename == chosen->filename;
        if (is_same) {
            votes += tree->weight[s];
        } else if (votes < tree->weight[s]) {
            chosen = frame;
            votes = tree->weight[s] - votes;
        } else {
            votes -= tree->weight[s];
        }
    }
    if (chosen != NULL) {
        level->name = chosen->name;
        level->filename = chosen->filename;
    }
    return chosen != NULL;
}

/* The stack of the level's function that most allocations begin with. */
static uint32_t
steps_heaviest(steps_tree *tree, const steps_level *level)
{
    uint32_t chosen = NT_NONE;
    uint64_t votes = 0;
    for (size_t s = 0; s < tree->stacks; s++) {
        if (tree->weight[s] == 0 || steps_frame(tree, level, s) == NULL ||
            tree->depth[s] == level->depth) {
            continue;
        }
        if (tree->at[s] == chosen) {
            votes += tree->weight[s];
        } else if (votes < tree->weight[s]) {
            chosen = tree->at[s];
            votes = tree->weight[s] - votes;
        } else {
            votes -= tree->weight[s];
        }
    }
    return chosen;
}

/* Whether a level's function allocates from more than one line, `outer`'s included:
 * else it goes back to none. */
static bool
steps_has_lines(const steps_tree *tree, const steps_level *level)
{
    const nt_frame *first = NULL;
    if (level->outer != NT_EMPTY_STACK && tree->weight[level->outer] > 0) {
        return true;
    }
    for (size_t s = 0; s < tree->stacks; s++) {
        const nt_frame *frame =
            tree->weight[s] == 0 ? NULL : steps_frame(tree, level, s);
        if (frame != NULL && first != NULL && frame->line != first->line) {
            return true;
        }
        first = first == NULL ? frame : first;
    }
    return false;
}

/* Counts, for each line of the level's function, how often it was gone back to. To what
 * `outer` makes after a call of its line, and not before, no round goes back. */
static nt_status
steps_count_returns(const steps_work *w, steps_tree *tree, const steps_level *level,
                    nt_error *err)
{
    int64_t before = INT64_MIN, line;
    bool is_after = false;
    nt_map_clear(&tree->lines);
    nt_map_init(&tree->lines, w->alloc);
    if (!steps_has_lines(tree, level)) {
        return NT_OK;
    }
    for (size_t i = 0; i < w->count; i++) {
        if (!steps_line(w, tree, level, i, &line)) {
            continue;
        }
        is_after = is_after || (before == INT64_MIN && line != 0);
        if (line < before && !(line == 0 && is_after)) {
            const uint32_t known = nt_map_find(&tree->lines, (uint64_t)line);
            NT_TRY(nt_map_set(&tree->lines, (uint64_t)line,
                              known == NT_NONE ? 1 : known + 1, err));
        }
        before = line;
    }
    return NT_OK;
}

/* The level's loop: the first line with enough rounds, or else that with most. */
static steps_found_loop
steps_choose(const steps_tree *tree, const steps_level *level)
{
    steps_found_loop found = {.level = *level, .frame = NT_NONE};
    for (size_t k = 0; k < tree->lines.slots; k++) {
        const nt_map_entry *one = &tree->lines.entries[k];
        if (tree->lines.count == 0 || one->value == NT_NONE) {
            continue;
        }
        const int64_t line = (int64_t)one->key;
        const bool is_long = one->value + 1 >= STEPS_ROUNDS;
        const bool was_long = found.rounds + 1 >= STEPS_ROUNDS;
        const bool is_before = found.rounds == 0 || line < found.line;
        const bool is_better = is_long != was_long          ? is_long
                               : is_long                    ? is_before
                               : one->value != found.rounds ? one->value > found.rounds
                                                            : is_before;
        if (is_better) {
            found.line = line;
            found.rounds = one->value;
        }
    }
    return found;
}

/* Edges where a loop begins another round; the last round ends with the last
 * allocation of its function, and what is freed behind that. */
static nt_status
steps_cut_loop(steps_work *w, steps_tree *tree, const steps_found_loop *loop,
               nt_error *err)
{
    steps_level level = loop->level;
    int64_t before = INT64_MIN, line;
    size_t end = 0;
    w->edge_count = 0;
    (void)steps_open_level(tree, &level);
    for (size_t i = 0; i < w->count; i++) {
        if (!steps_line(w, tree, &level, i, &line)) {
            continue;
        }
        if (line == loop->line && (line < before || w->edge_count == 0)) {
            const uint32_t at = line == 0 ? level.outer : tree->at[w->stack[i]];
            w->frame = tree->innermost[at];
            NT_TRY(nt_steps_add_edge(w, i, err));
        }
        before = line;
        end = i + 1;
    }
    while (end < w->count && !nt_steps_allocates(w, end)) {
        end++;
    }
    return w->edge_count == 0 ? NT_OK : nt_steps_add_edge(w, end, err);
}

/* Whether a stack's innermost frame is the call of a module: from there on all is
 * inside of it. */
static bool
steps_is_module(const steps_work *w, const steps_tree *tree, uint32_t stack)
{
    static const char end[] = "torch/nn/modules/module.py";
    const nt_frame *frame = &tree->frames[tree->innermost[stack]];
    size_t length;
    const char *text =
        nt_strings_get(nt_snapshot_strings(w->snapshot), frame->filename, &length);
    return length >= sizeof end - 1 &&
           memcmp(text + length - (sizeof end - 1), end, sizeof end - 1) == 0;
}

/* Looks at one level after the other, from the outermost, for a loop with enough rounds
 * that does something of its own; else the first of those with fewer. */
static nt_status
steps_find_loop(steps_work *w, steps_tree *tree, nt_error *err)
{
    steps_found_loop shorter = {.rounds = 0};
    steps_level level = {.outer = NT_EMPTY_STACK, .depth = 1};
    while (level.depth <= STEPS_DEEPEST && steps_open_level(tree, &level)) {
        NT_TRY(steps_count_returns(w, tree, &level, err));
        const uint32_t inner = steps_heaviest(tree, &level);
        const steps_found_loop loop = steps_choose(tree, &level);
        if (loop.rounds + 1 >= NT_STEPS_LEAST_LOOP) {
            NT_TRY(steps_cut_loop(w, tree, &loop, err));
            const bool is_loop =
                w->edge_count > NT_STEPS_LEAST_LOOP && nt_steps_are_outside(w);
            if (is_loop && loop.rounds + 1 >= STEPS_ROUNDS) {
                return NT_OK;
            }
            shorter = is_loop && shorter.rounds == 0 ? loop : shorter;
        }
        if (inner == NT_NONE || steps_is_module(w, tree, inner)) {
            break;
        }
        level = (steps_level){.outer = inner, .depth = level.depth + 1};
    }
    w->edge_count = 0;
    return shorter.rounds == 0 ? NT_OK : steps_cut_loop(w, tree, &shorter, err);
}

nt_status
nt_steps_by_loop(steps_work *w, nt_error *err)
{
    steps_tree tree;
    NT_TRY(steps_tree_init(w, &tree, err));
    const nt_status status = steps_find_loop(w, &tree, err);
    steps_tree_clear(w, &tree);
    return status;
}
