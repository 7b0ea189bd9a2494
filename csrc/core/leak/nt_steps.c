/* SPDX-License-Identifier: Apache-2.0 */
#include "leak/nt_steps.h"

#include <string.h>

#include "base/nt_search.h"

/* Events count within the device's trace. */

/* Fewer steps than these are no evidence of a loop, and no steps at all. */
enum { NT_STEPS_LEAST_LOOP = 3, NT_STEPS_LEAST = 2 };

/* Events of one backward pass: first .. end - 1. */
typedef struct steps_pass {
    uint32_t first, end;
} steps_pass;

typedef struct steps_work {
    nt_alloc alloc;
    const nt_snapshot *snapshot;
    size_t count; /* events */
    const uint8_t *action;
    const uint32_t *stack;
    const uint64_t *size;
    const int64_t *time_us;        /* or NULL */
    const uint32_t *user_metadata; /* or NULL */
    uint8_t *role;                 /* of each event */
    steps_pass *passes;            /* backward, in order and apart */
    size_t pass_count, pass_capacity;
    uint32_t *edges; /* of the steps found so far, and at last where they end */
    size_t edge_count, edge_capacity;
    uint32_t text, frame;
} steps_work;

static inline bool
steps_allocates(const steps_work *w, size_t event)
{
    return w->action[event] == NT_ACTION_ALLOC;
}

/* Longer texts are compared by their beginning. */
enum { STEPS_TEXT = 256 };

/* The text with "#" for each run of digits. Returns its length; *counts: it had some.
 */
static size_t
steps_pattern(const char *text, size_t length, char *out, bool *counts)
{
    size_t n = 0;
    bool in_digits = false;
    *counts = false;
    for (size_t i = 0; i < length && n < STEPS_TEXT; i++) {
        const bool is_digit = text[i] >= '0' && text[i] <= '9';
        if (!is_digit || !in_digits) {
            out[n++] = is_digit ? '#' : text[i];
        }
        *counts |= is_digit;
        in_digits = is_digit;
    }
    return n;
}

/* A text where it comes up: an event, or a time. */
typedef struct steps_mark {
    int64_t at;
    uint32_t name;    /* string id */
    uint32_t pattern; /* id in the patterns */
} steps_mark;

typedef struct steps_marks {
    nt_strings *patterns;
    steps_mark *marks;
    size_t count, capacity;
} steps_marks;

static void
steps_marks_clear(steps_work *w, steps_marks *all)
{
    nt_strings_free(all->patterns);
    NT_RELEASE(&w->alloc, all->marks, all->capacity);
}

static nt_status
steps_marks_add(steps_work *w, steps_marks *all, int64_t at, uint32_t name,
                nt_error *err)
{
    char pattern[STEPS_TEXT];
    bool counts;
    size_t length;
    const char *text = nt_strings_get(nt_snapshot_strings(w->snapshot), name, &length);
    length = steps_pattern(text, length, pattern, &counts);
    NT_TRY(NT_GROW(&w->alloc, all->marks, all->capacity, all->count + 1, err));
    steps_mark mark = {.at = at, .name = name};
    NT_TRY(nt_strings_intern(all->patterns, pattern, length, &mark.pattern, err));
    all->marks[all->count++] = mark;
    return NT_OK;
}

static bool
steps_counts_up(const steps_marks *all, uint32_t pattern)
{
    size_t length;
    const char *text = nt_strings_get(all->patterns, pattern, &length);
    return memchr(text, '#', length) != NULL;
}

/* Whether a text marks what a module made: such come in every step, and name none. */
static bool
steps_is_module_mark(const char *text, size_t length)
{
    /* As neutracer's recorder writes it before a module's path. */
    static const char mark[] = "nn.Module: ";
    return length >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0;
}

/* Every event whose text is not that of the last one with any. */
static nt_status
steps_read_metadata(steps_work *w, steps_marks *all, nt_error *err)
{
    uint32_t last = NT_NONE;
    for (size_t event = 0; event < w->count; event++) {
        const uint32_t name = w->user_metadata[event];
        size_t length = 0;
        if (name == NT_NONE || name == last) {
            continue;
        }
        const char *text =
            nt_strings_get(nt_snapshot_strings(w->snapshot), name, &length);
        if (length > 0 && !steps_is_module_mark(text, length)) {
            NT_TRY(steps_marks_add(w, all, (int64_t)event, name, err));
            last = name;
        }
    }
    return NT_OK;
}

/* The commonest pattern, the first of those that are as common; *count: how common. */
static nt_status
steps_commonest(steps_work *w, const steps_marks *all, uint32_t *out, size_t *count,
                nt_error *err)
{
    const size_t patterns = nt_strings_count(all->patterns);
    uint32_t *counts;
    NT_TRY(NT_NEW(&w->alloc, counts, patterns, err));
    memset(counts, 0, patterns * sizeof *counts);
    for (size_t i = 0; i < all->count; i++) {
        counts[all->marks[i].pattern]++;
    }
    size_t best = 0;
    for (size_t k = 1; k < patterns; k++) {
        best = counts[k] > counts[best] ? k : best;
    }
    *count = counts[best];
    *out = (uint32_t)best;
    NT_RELEASE(&w->alloc, counts, patterns);
    return NT_OK;
}

/* Appends an edge, unless it is not above the one before. */
static nt_status
steps_add_edge(steps_work *w, size_t event, nt_error *err)
{
    if (w->edge_count > 0 && w->edges[w->edge_count - 1] >= event) {
        return NT_OK;
    }
    NT_TRY(NT_GROW(&w->alloc, w->edges, w->edge_capacity, w->edge_count + 1, err));
    w->edges[w->edge_count++] = (uint32_t)event;
    return NT_OK;
}

/* Edges where the commonest pattern that counts up is, or else the first text. */
static nt_status
steps_cut_metadata(steps_work *w, const steps_marks *all, nt_error *err)
{
    uint32_t pattern = 0;
    size_t count = 0;
    NT_TRY(steps_commonest(w, all, &pattern, &count, err));
    const bool counts_up = count >= 2 && steps_counts_up(all, pattern);
    for (size_t i = 0; i < all->count; i++) {
        const steps_mark *mark = &all->marks[i];
        const bool begins =
            counts_up ? mark->pattern == pattern : mark->name == all->marks[0].name;
        if (begins) {
            w->text = w->text == NT_NONE ? mark->name : w->text;
            NT_TRY(steps_add_edge(w, (size_t)mark->at, err));
        }
    }
    return w->edge_count < 2 ? NT_OK : steps_add_edge(w, w->count, err);
}

/* Steps that the program names. Each leaves edges, or none. */
static nt_status
steps_by_metadata(steps_work *w, nt_error *err)
{
    if (w->user_metadata == NULL) {
        return NT_OK;
    }
    steps_marks all = {.patterns = NULL};
    nt_status status = NT_OK;
    NT_TRY(nt_strings_new(&w->alloc, &all.patterns, err));
    status = steps_read_metadata(w, &all, err);
    if (status == NT_OK && all.count >= 2) {
        status = steps_cut_metadata(w, &all, err);
    }
    steps_marks_clear(w, &all);
    return status;
}

/* The beginnings of ranges with numbers in their names, but for the optimizer's. */
static nt_status
steps_read_ranges(steps_work *w, steps_marks *all, nt_error *err)
{
    static const char optimizer[] = "Optimizer.";
    const nt_annotation_columns *ranges = nt_snapshot_annotations(w->snapshot);
    for (size_t i = 0; i < ranges->count; i++) {
        size_t length = 0;
        if (ranges->stage[i] != NT_STAGE_START || ranges->name[i] == NT_NONE) {
            continue;
        }
        const char *name =
            nt_strings_get(nt_snapshot_strings(w->snapshot), ranges->name[i], &length);
        if (length >= sizeof optimizer - 1 &&
            memcmp(name, optimizer, sizeof optimizer - 1) == 0) {
            continue;
        }
        NT_TRY(steps_marks_add(w, all, ranges->time_us[i], ranges->name[i], err));
        if (!steps_counts_up(all, all->marks[all->count - 1].pattern)) {
            all->count--;
        }
    }
    return NT_OK;
}

/* The first event at or after a time, in a trace with times. */
static size_t
steps_at_time(const steps_work *w, int64_t time_us)
{
    size_t low = 0, high = w->count;
    NT_BISECT(low, high, middle, w->time_us[middle] < time_us);
    return low;
}

/* Edges where the ranges of one pattern begin; none unless each name is another. */
static nt_status
steps_cut_ranges(steps_work *w, const steps_marks *all, uint32_t pattern, nt_map *names,
                 nt_error *err)
{
    bool is_sorted = true;
    w->edge_count = 0;
    w->text = NT_NONE;
    for (size_t i = 0; i < all->count; i++) {
        const steps_mark *mark = &all->marks[i];
        if (mark->pattern != pattern) {
            continue;
        }
        uint32_t old;
        NT_TRY(nt_map_swap(names, mark->name, pattern, &old, err));
        const size_t at = steps_at_time(w, mark->at);
        is_sorted =
            is_sorted && (w->edge_count == 0 || w->edges[w->edge_count - 1] <= at);
        if (old != NT_NONE || !is_sorted) {
            w->edge_count = 0;
            return NT_OK;
        }
        if (at < w->count) {
            w->text = w->text == NT_NONE ? mark->name : w->text;
            NT_TRY(steps_add_edge(w, at, err));
        }
    }
    return w->edge_count == 0 ? NT_OK : steps_add_edge(w, w->count, err);
}

/* Whether w->edges are so many steps at least; else there are none any more. */
static bool
steps_has(steps_work *w, size_t least)
{
    if (w->edge_count <= least) {
        w->edge_count = 0;
        w->text = w->frame = NT_NONE;
        return false;
    }
    return true;
}

static nt_status
steps_by_annotations(steps_work *w, nt_error *err)
{
    if (w->time_us == NULL || w->time_us[0] == 0) {
        return NT_OK;
    }
    steps_marks all = {.patterns = NULL};
    nt_map names;
    nt_map_init(&names, w->alloc);
    nt_status status = NT_OK;
    NT_TRY(nt_strings_new(&w->alloc, &all.patterns, err));
    status = steps_read_ranges(w, &all, err);
    const size_t patterns = nt_strings_count(all.patterns);
    for (uint32_t pattern = 0; status == NT_OK && pattern < patterns; pattern++) {
        status = steps_cut_ranges(w, &all, pattern, &names, err);
        if (status == NT_OK && steps_has(w, NT_STEPS_LEAST)) {
            break;
        }
    }
    nt_map_clear(&names);
    steps_marks_clear(w, &all);
    return status;
}

static bool
steps_is_backward(uint8_t role)
{
    return role == NT_ROLE_BACKWARD || role == NT_ROLE_SEED;
}

static bool
steps_is_optimizer(uint8_t role)
{
    return role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE ||
           role == NT_ROLE_ZERO_GRAD || role == NT_ROLE_SCALER;
}

static bool
steps_allocate(const steps_work *w, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        if (steps_allocates(w, i)) {
            return true;
        }
    }
    return false;
}

/* Whether an optimizer or a module works in events first .. end - 1. */
static bool
steps_go_on(const steps_work *w, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        const uint8_t role = w->role[i];
        if (role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE ||
            role == NT_ROLE_ZERO_GRAD || role == NT_ROLE_MODULE) {
            return true;
        }
    }
    return false;
}

/* Another thread's lines and the scaler's may come between: runs with nothing but frees
 * between them are one pass, unless training went on there. */
static nt_status
steps_add_pass(steps_work *w, size_t first, size_t end, nt_error *err)
{
    if (w->pass_count > 0) {
        steps_pass *last = &w->passes[w->pass_count - 1];
        if (!steps_allocate(w, last->end, first) && !steps_go_on(w, last->end, first)) {
            last->end = (uint32_t)end;
            return NT_OK;
        }
    }
    NT_TRY(NT_GROW(&w->alloc, w->passes, w->pass_capacity, w->pass_count + 1, err));
    w->passes[w->pass_count++] = (steps_pass){(uint32_t)first, (uint32_t)end};
    return NT_OK;
}

/* w->passes, and the steps that end with them or the optimizer's. */
static nt_status
steps_find_passes(steps_work *w, nt_error *err)
{
    for (size_t i = 0; i < w->count; i++) {
        const size_t first = i;
        while (i < w->count && steps_is_backward(w->role[i])) {
            i++;
        }
        if (i > first) {
            NT_TRY(steps_add_pass(w, first, i, err));
        }
    }
    size_t kept = 0;
    for (size_t k = 0; k < w->pass_count; k++) {
        if (steps_allocate(w, w->passes[k].first, w->passes[k].end)) {
            w->passes[kept++] = w->passes[k];
        }
    }
    w->pass_count = kept;
    return NT_OK;
}

/* Where the first step begins: after the making of the model. */
static size_t
steps_first(const steps_work *w)
{
    for (size_t i = w->passes[0].first; i-- > 0;) {
        if (w->role[i] == NT_ROLE_BUILD) {
            return i + 1;
        }
    }
    return 0;
}

/* How many passes begin before an event; `known` is how many begin before an earlier.
 */
static size_t
steps_passes_before(const steps_work *w, size_t event, size_t known)
{
    while (known < w->pass_count && w->passes[known].first < event) {
        known++;
    }
    return known;
}

static bool
steps_has_forward(const steps_work *w, size_t event)
{
    for (size_t i = event; i < w->count; i++) {
        if (w->role[i] == NT_ROLE_MODULE && steps_allocates(w, i)) {
            return true;
        }
    }
    return false;
}

/* What steps_end_at knows of the steps so far. */
typedef struct steps_ends {
    size_t edge;   /* the last one */
    size_t passes; /* that begin before it */
} steps_ends;

static nt_status
steps_begin(steps_work *w, steps_ends *ends, nt_error *err)
{
    ends->edge = steps_first(w);
    ends->passes = steps_passes_before(w, ends->edge, 0);
    return steps_add_edge(w, ends->edge, err);
}

/* A step ends at the first allocation from `end` on that is not the optimizer's, if a
 * backward pass is in it. */
static nt_status
steps_end_at(steps_work *w, steps_ends *ends, size_t end, nt_error *err)
{
    size_t edge = end > ends->edge ? end : ends->edge;
    while (edge < w->count &&
           (!steps_allocates(w, edge) || steps_is_optimizer(w->role[edge]))) {
        edge++;
    }
    const size_t passes = steps_passes_before(w, edge, ends->passes);
    if (passes > ends->passes) {
        *ends = (steps_ends){edge, passes};
        return steps_add_edge(w, edge, err);
    }
    return NT_OK;
}

/* The last step has what is left, if no module is called any more. */
static void
steps_finish(steps_work *w)
{
    if (w->edge_count > 1 && !steps_has_forward(w, w->edges[w->edge_count - 1])) {
        w->edges[w->edge_count - 1] = (uint32_t)w->count;
    }
}

/* By PyTorch's own ranges, as long as their ends come one after the other. */
static nt_status
steps_by_ranges(steps_work *w, bool *found, nt_error *err)
{
    static const char step[] = "Optimizer.step#";
    const nt_annotation_columns *ranges = nt_snapshot_annotations(w->snapshot);
    steps_ends ends = {0, 0};
    *found = false;
    if (w->time_us == NULL || w->time_us[0] == 0) {
        return NT_OK;
    }
    for (size_t i = 0; i < ranges->count; i++) {
        size_t length = 0;
        if (ranges->stage[i] != NT_STAGE_END || ranges->name[i] == NT_NONE) {
            continue;
        }
        const char *name =
            nt_strings_get(nt_snapshot_strings(w->snapshot), ranges->name[i], &length);
        if (length < sizeof step - 1 || memcmp(name, step, sizeof step - 1) != 0) {
            continue;
        }
        if (!*found) {
            NT_TRY(steps_begin(w, &ends, err));
            *found = true;
        }
        const int64_t at = ranges->time_us[i];
        const size_t end = at == INT64_MAX ? w->count : steps_at_time(w, at + 1);
        NT_TRY(steps_end_at(w, &ends, end, err));
    }
    return NT_OK;
}

static nt_status
steps_by_optimizer(steps_work *w, nt_error *err)
{
    bool found = false;
    if (w->pass_count == 0) {
        return NT_OK;
    }
    NT_TRY(steps_by_ranges(w, &found, err));
    if (!found) {
        steps_ends ends = {0, 0};
        NT_TRY(steps_begin(w, &ends, err));
        for (size_t i = 0; i < w->count; i++) {
            const uint8_t role = w->role[i];
            const uint8_t next = i + 1 < w->count ? w->role[i + 1] : NT_ROLE_EMPTY;
            const bool works = role == NT_ROLE_OPTIMIZER || role == NT_ROLE_STATE;
            if (works && next != NT_ROLE_OPTIMIZER && next != NT_ROLE_STATE &&
                i + 1 >= ends.edge) {
                NT_TRY(steps_end_at(w, &ends, i + 1, err));
            }
        }
    }
    steps_finish(w);
    return NT_OK;
}

static nt_status
steps_by_backward(steps_work *w, nt_error *err)
{
    steps_ends ends;
    if (w->pass_count == 0) {
        return NT_OK;
    }
    NT_TRY(steps_begin(w, &ends, err));
    for (size_t k = 0; k < w->pass_count; k++) {
        NT_TRY(steps_end_at(w, &ends, w->passes[k].end, err));
    }
    steps_finish(w);
    return NT_OK;
}

/* A loop has so many rounds, or else one inside of it is looked for first. */
enum { STEPS_ROUNDS = 8 };

/* Frames that are looked through from the outermost on. */
enum { STEPS_DEEPEST = 64 };

/* A level of the calls: all stacks that begin with the stack `outer`, whose frames are
 * one fewer than `depth`. The function that `outer` calls most is looked at. */
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
        if (steps_allocates(w, i) && w->stack[i] != NT_NO_STACK) {
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
    if (!steps_allocates(w, event) || stack == NT_NO_STACK) {
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

/* Edges where a loop begins another round; the last round ends with the last allocation
 * of its function, and what is freed behind that. */
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
            NT_TRY(steps_add_edge(w, i, err));
        }
        before = line;
        end = i + 1;
    }
    while (end < w->count && !steps_allocates(w, end)) {
        end++;
    }
    return w->edge_count == 0 ? NT_OK : steps_add_edge(w, end, err);
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

/* Whether half of the steps at least allocate something of their own, outside of
 * modules: what does not is the layers of a module. */
static bool
steps_are_outside(const steps_work *w)
{
    size_t outside = 0;
    for (size_t k = 0; k + 1 < w->edge_count; k++) {
        size_t event = w->edges[k];
        while (event < w->edges[k + 1] &&
               !(steps_allocates(w, event) &&
                 (w->role[event] == NT_ROLE_USER || w->role[event] == NT_ROLE_EMPTY))) {
            event++;
        }
        outside += event < w->edges[k + 1];
    }
    return 2 * outside >= w->edge_count - 1;
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
                w->edge_count > NT_STEPS_LEAST_LOOP && steps_are_outside(w);
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

static nt_status
steps_by_loop(steps_work *w, nt_error *err)
{
    steps_tree tree;
    NT_TRY(steps_tree_init(w, &tree, err));
    const nt_status status = steps_find_loop(w, &tree, err);
    steps_tree_clear(w, &tree);
    return status;
}

/* Rounds that are a rhythm, the share of the trace that they are at least, and what
 * each allocates at least: what is allocated and freed again alone is no step. */
enum { STEPS_REPEATS = 8, STEPS_SHARE = 2, STEPS_ALLOCATIONS = 2 };

/* The end of a trace may be something else: it is left out in these shares. */
static const size_t STEPS_TAILS[] = {0, 32, 16, 8, 4};

/* What is alike in two rounds: action, size and stack. */
static uint32_t
steps_key(const steps_work *w, size_t event)
{
    const uint64_t what = (uint64_t)w->action[event] << 32 | w->stack[event];
    return (uint32_t)nt_mix64(nt_mix64(what) + w->size[event]);
}

/* The shortest period of the longest run of events that ends before `end` and has
 * enough rounds; 0: there is none. *length: of the run. `borders` has room for `end`:
 * by the prefix function of the events read backwards, as in Knuth, Morris and Pratt,
 * SIAM J. on Computing 6, 1977. */
static size_t
steps_period(const uint32_t *keys, size_t end, uint32_t *borders, size_t *length)
{
    size_t period = 0;
    *length = 0;
    borders[0] = 0;
    for (size_t i = 1; i < end; i++) {
        size_t border = borders[i - 1];
        while (border > 0 && keys[end - 1 - i] != keys[end - 1 - border]) {
            border = borders[border - 1];
        }
        border += keys[end - 1 - i] == keys[end - 1 - border];
        borders[i] = (uint32_t)border;
        const size_t shift = i + 1 - border;
        /* A longer run has no shorter period. */
        if (shift > end / STEPS_REPEATS) {
            break;
        }
        if (shift >= 2 && i + 1 >= STEPS_REPEATS * shift) {
            *length = i + 1;
            period = shift;
        }
    }
    return period;
}

/* Whether the `period` events before `end` are enough for a step. */
static bool
steps_is_step(const steps_work *w, size_t period, size_t end)
{
    size_t allocations = 0;
    for (size_t i = end - period; i < end; i++) {
        allocations += steps_allocates(w, i);
    }
    return allocations >= STEPS_ALLOCATIONS;
}

/* Edges each `period` events, in a run of `length` that ends before `end` and may go on
 * behind it. */
static nt_status
steps_cut_rhythm(steps_work *w, const uint32_t *keys, size_t period, size_t length,
                 size_t end, nt_error *err)
{
    const size_t begin = end - length;
    while (end < w->count && keys[end] == keys[end - period]) {
        end++;
    }
    for (size_t at = begin; at <= end; at += period) {
        NT_TRY(steps_add_edge(w, at, err));
    }
    return NT_OK;
}

static nt_status
steps_search_rhythm(steps_work *w, const uint32_t *keys, uint32_t *borders,
                    nt_error *err)
{
    for (size_t k = 0; k < sizeof STEPS_TAILS / sizeof *STEPS_TAILS; k++) {
        const size_t tail = STEPS_TAILS[k] == 0 ? 0 : w->count / STEPS_TAILS[k];
        const size_t end = w->count - tail;
        size_t length;
        const size_t period = steps_period(keys, end, borders, &length);
        if (period == 0 || length < w->count / STEPS_SHARE ||
            !steps_is_step(w, period, end)) {
            continue;
        }
        NT_TRY(steps_cut_rhythm(w, keys, period, length, end, err));
        if (!steps_are_outside(w)) {
            w->edge_count = 0;
        }
        return NT_OK;
    }
    return NT_OK;
}

/* The shortest run of events that the trace ends by repeating. */
static nt_status
steps_by_rhythm(steps_work *w, nt_error *err)
{
    const size_t size = w->count * sizeof(uint32_t);
    uint32_t *keys = nt_allocate(&w->alloc, size);
    uint32_t *borders = nt_allocate(&w->alloc, size);
    nt_status status = NT_OK;
    if (keys == NULL || borders == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    for (size_t i = 0; i < w->count; i++) {
        keys[i] = steps_key(w, i);
    }
    status = steps_search_rhythm(w, keys, borders, err);
done:
    nt_release(&w->alloc, keys, size);
    nt_release(&w->alloc, borders, size);
    return status;
}

size_t
nt_steps_mark_stacks(const nt_snapshot *snapshot, size_t device, uint8_t *marks)
{
    const uint32_t *stack = nt_snapshot_events(snapshot)->stack;
    size_t first, count, found = 0;
    nt_snapshot_trace(snapshot, device, &first, &count);
    for (size_t i = first; i < first + count; i++) {
        if (stack[i] != NT_NO_STACK && marks[stack[i]] == 0) {
            marks[stack[i]] = 1;
            found++;
        }
    }
    return found;
}

/* Each event's role. Autograd's threads have no Python frames: where the trace has a
 * backward pass, events without a stack are of it. */
static nt_status
steps_set_roles(steps_work *w, const uint8_t *roles, nt_error *err)
{
    bool trains = false;
    NT_TRY(nt_take(&w->alloc, (void **)&w->role, w->count, err));
    for (size_t i = 0; i < w->count; i++) {
        const uint8_t role =
            w->stack[i] == NT_NO_STACK ? NT_ROLE_EMPTY : roles[w->stack[i]];
        /* Whatever runs may be the first to need a workspace: it divides nothing. */
        w->role[i] = role == NT_ROLE_WORKSPACE && i > 0 ? w->role[i - 1] : role;
        trains |= role == NT_ROLE_SEED || role == NT_ROLE_BACKWARD ||
                  role == NT_ROLE_OPTIMIZER;
    }
    for (size_t i = 0; trains && i < w->count; i++) {
        w->role[i] = w->role[i] == NT_ROLE_EMPTY ? NT_ROLE_BACKWARD : w->role[i];
    }
    return NT_OK;
}

typedef nt_status (*steps_finder)(steps_work *w, nt_error *err);

/* Tries one kind of evidence after the other. A trace with a backward pass, but not
 * with steps of any, is of one step: what recurs in it are the layers. */
static nt_status
steps_search(steps_work *w, nt_steps_how *how, nt_error *err)
{
    static const steps_finder finders[NT_STEPS_HOW_COUNT] = {
        [NT_STEPS_METADATA] = steps_by_metadata,
        [NT_STEPS_ANNOTATIONS] = steps_by_annotations,
        [NT_STEPS_OPTIMIZER] = steps_by_optimizer,
        [NT_STEPS_BACKWARD] = steps_by_backward,
        [NT_STEPS_LOOP] = steps_by_loop,
        [NT_STEPS_RHYTHM] = steps_by_rhythm,
    };
    NT_TRY(steps_find_passes(w, err));
    *how = NT_STEPS_NONE;
    for (int one = NT_STEPS_METADATA; one < NT_STEPS_HOW_COUNT; one++) {
        if (one >= NT_STEPS_LOOP && w->pass_count != 0) {
            return NT_OK;
        }
        NT_TRY(finders[one](w, err));
        const bool is_loop = one >= NT_STEPS_LOOP;
        if (steps_has(w, is_loop ? NT_STEPS_LEAST_LOOP : NT_STEPS_LEAST)) {
            *how = (nt_steps_how)one;
            return NT_OK;
        }
    }
    return NT_OK;
}

static steps_work
steps_open(const nt_alloc *alloc, const nt_snapshot *snapshot, size_t device)
{
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    size_t first, count;
    nt_snapshot_trace(snapshot, device, &first, &count);
    steps_work w = {.alloc = *alloc, .snapshot = snapshot, .count = count};
    w.text = w.frame = NT_NONE;
    if (count != 0) {
        w.action = events->action + first;
        w.stack = events->stack + first;
        w.size = events->size + first;
        w.time_us = events->time_us == NULL ? NULL : events->time_us + first;
        w.user_metadata =
            events->user_metadata == NULL ? NULL : events->user_metadata + first;
    }
    return w;
}

nt_status
nt_steps_find(const nt_alloc *alloc, const nt_snapshot *snapshot, size_t device,
              const uint8_t *roles, nt_steps *out, nt_error *err)
{
    steps_work w = steps_open(alloc, snapshot, device);
    nt_steps found = {.alloc = *alloc, .text = NT_NONE, .frame = NT_NONE};
    nt_status status = NT_OK;
    if (w.count != 0) {
        status = steps_set_roles(&w, roles, err);
        if (status == NT_OK) {
            status = steps_search(&w, &found.how, err);
        }
    }
    if (status == NT_OK && found.how != NT_STEPS_NONE) {
        nt_shrink(alloc, (void **)&w.edges, &w.edge_capacity, w.edge_count,
                  sizeof *w.edges);
        found.count = w.edge_count - 1;
        found.edges = nt_allocate(alloc, w.edge_count * sizeof *w.edges);
        status = found.edges == NULL ? nt_fail_nomem(err) : NT_OK;
        for (size_t k = 0; status == NT_OK && k < w.edge_count; k++) {
            found.edges[k] = w.edges[k];
        }
        found.text = w.text;
        found.frame = w.frame;
    }
    nt_release(alloc, w.role, w.count);
    NT_RELEASE(alloc, w.passes, w.pass_capacity);
    NT_RELEASE(alloc, w.edges, w.edge_capacity);
    if (status == NT_OK) {
        *out = found;
    }
    return status;
}

void
nt_steps_clear(nt_steps *steps)
{
    if (steps->edges != NULL) {
        NT_RELEASE(&steps->alloc, steps->edges, steps->count + 1);
    }
    *steps = (nt_steps){.alloc = steps->alloc, .text = NT_NONE, .frame = NT_NONE};
}
