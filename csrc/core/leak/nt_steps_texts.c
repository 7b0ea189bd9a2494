/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "leak/nt_steps_parts.h"

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
    nt_release(&w->alloc, all->marks, all->capacity * sizeof *all->marks);
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
    NT_TRY(nt_grow(&w->alloc, (void **)&all->marks, &all->capacity, all->count + 1,
                   sizeof *all->marks, err));
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
    uint32_t *counts = nt_allocate(&w->alloc, patterns * sizeof *counts);
    if (counts == NULL) {
        return nt_fail_nomem(err);
    }
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
    nt_release(&w->alloc, counts, patterns * sizeof *counts);
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
            NT_TRY(nt_steps_add_edge(w, (size_t)mark->at, err));
        }
    }
    return w->edge_count < 2 ? NT_OK : nt_steps_add_edge(w, w->count, err);
}

nt_status
nt_steps_by_metadata(steps_work *w, nt_error *err)
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
        const size_t at = nt_steps_at_time(w, mark->at);
        is_sorted =
            is_sorted && (w->edge_count == 0 || w->edges[w->edge_count - 1] <= at);
        if (old != NT_NONE || !is_sorted) {
            w->edge_count = 0;
            return NT_OK;
        }
        if (at < w->count) {
            w->text = w->text == NT_NONE ? mark->name : w->text;
            NT_TRY(nt_steps_add_edge(w, at, err));
        }
    }
    return w->edge_count == 0 ? NT_OK : nt_steps_add_edge(w, w->count, err);
}

nt_status
nt_steps_by_annotations(steps_work *w, nt_error *err)
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
        if (status == NT_OK && nt_steps_has(w, NT_STEPS_LEAST)) {
            break;
        }
    }
    nt_map_clear(&names);
    steps_marks_clear(w, &all);
    return status;
}
