/* SPDX-License-Identifier: Apache-2.0 */
/* nt_fragment held against a plain model, and against what PyTorch really did. */
#include "fragmentation/nt_fragment.h"

#include "nt_blocks.h"
#include "nt_file.h"
#include "nt_test.h"
#include "trace/nt_rounding.h"
#include "trace/nt_timeline.h"

#define MIB UINT64_C(1048576)

/* Random segments of random blocks, as a file may have them: sizes in half MiB. */
static nt_blocks
fragment_random(nt_test *t, uint64_t *seed)
{
    nt_blocks l = nt_blocks_new();
    const uint64_t segments = 1 + nt_test_random(seed) % 20;
    for (uint64_t i = 0; i < segments; i++) {
        const uint64_t r = nt_test_random(seed);
        nt_blocks_segment(t, &l,
                          (nt_segment){
                              .device = r & 1,
                              .address = (i + 1) << 32,
                              .stream = r >> 1 & 1,
                              .pool = {0, (r >> 2 & 3) == 0},
                              .kind = r >> 4 & 1 ? NT_POOL_LARGE : NT_POOL_SMALL,
                              .is_expandable = r >> 5 & 1,
                          });
        const uint64_t blocks = (r >> 8) % 12;
        for (uint64_t k = 0; k < blocks; k++) {
            const uint64_t b = nt_test_random(seed);
            /* Rather long, and seldom active, so that whole pages come free. */
            nt_blocks_add(t, &l, b % 5 < 3 ? NT_BLOCK_INACTIVE : b % 5 - 2,
                          (1 + (b >> 8) % 80) * (MIB / 2));
        }
    }
    return l;
}

/* Whether no allocated block has a byte between two addresses. */
static bool
fragment_model_free(const nt_layout *layout, uint32_t segment, uint64_t from,
                    uint64_t to)
{
    for (uint32_t i = 0; i < layout->blocks.count; i++) {
        if (layout->blocks.segment[i] == segment &&
            layout->blocks.state[i] == NT_BLOCK_ACTIVE_ALLOCATED &&
            layout->blocks.address[i] < to &&
            layout->blocks.address[i] + layout->blocks.size[i] > from) {
            return false;
        }
    }
    return true;
}

/* What empty_cache() gives back, page by page. */
static uint64_t
fragment_model_reclaimable(const nt_layout *layout, const nt_settings *settings,
                           uint32_t segment)
{
    const nt_segment_columns *s = &layout->segments;
    const uint64_t size = s->total_size[segment], address = s->address[segment];
    const uint64_t page =
        s->is_expandable[segment]
            ? nt_page_size(settings, s->kind[segment] == NT_POOL_SMALL)
            : size;
    uint64_t total = 0;
    if (s->pool_second[segment] != 0 || size == 0) {
        return 0;
    }
    for (uint64_t at = 0; at + page <= size; at += page) {
        total += fragment_model_free(layout, segment, address + at, address + at + page)
                     ? page
                     : 0;
    }
    return total;
}

/* What `group` sums, gathered block by block. */
static void
fragment_check_group(nt_test *t, const nt_layout *layout, const nt_settings *settings,
                     const nt_fragment_group *group)
{
    const nt_segment_columns *s = &layout->segments;
    const nt_block_columns *b = &layout->blocks;
    uint64_t reserved = 0, reclaimable = 0, free_bytes = 0, active = 0, pending = 0;
    uint64_t requested = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->device[i] != group->device || s->stream[i] != group->stream ||
            s->kind[i] != group->kind || s->pool_second[i] != group->pool.second) {
            continue;
        }
        reserved += s->total_size[i];
        reclaimable += fragment_model_reclaimable(layout, settings, i);
        for (uint32_t k = 0; k < b->count; k++) {
            const uint64_t size = b->segment[k] == i ? b->size[k] : 0;
            const bool is_free = b->state[k] == NT_BLOCK_INACTIVE;
            free_bytes += is_free ? size : 0;
            active += is_free ? 0 : size;
            pending += b->state[k] == NT_BLOCK_ACTIVE_PENDING_FREE ? size : 0;
            requested += !is_free && size != 0 ? b->requested_size[k] : 0;
        }
    }
    NT_CHECK_UINT(group->reserved, reserved);
    NT_CHECK_UINT(group->reserved, group->active + free_bytes);
    NT_CHECK_UINT(group->active, active);
    NT_CHECK_UINT(group->pending, pending);
    NT_CHECK_UINT(group->allocated, active - pending);
    NT_CHECK_UINT(group->requested, requested);
    NT_CHECK_UINT(group->reclaimable, reclaimable);
}

/* A request of `nbytes` looks at the smallest block that is large enough. */
static bool
fragment_model_fits(const nt_layout *layout, const nt_settings *settings,
                    const nt_fragment_group *group, uint64_t nbytes)
{
    const nt_segment_columns *s = &layout->segments;
    const uint64_t rounded = nt_round_size(settings, nbytes);
    uint64_t best = 0;
    if (nt_is_small(rounded) != (group->kind == NT_POOL_SMALL)) {
        return false;
    }
    for (uint32_t i = 0; i < layout->blocks.count; i++) {
        const uint32_t in = layout->blocks.segment[i];
        const uint64_t size = layout->blocks.size[i];
        const bool same =
            s->device[in] == group->device && s->kind[in] == group->kind &&
            s->stream[in] == group->stream && s->pool_second[in] == group->pool.second;
        if (same && layout->blocks.state[i] == NT_BLOCK_INACTIVE && size >= rounded) {
            best = best == 0 || size < best ? size : best;
        }
    }
    return best != 0 && nt_may_use(settings, best, rounded);
}

static void
fragment_check_requests(nt_test *t, const nt_fragment *fragment,
                        const nt_layout *layout, const nt_settings *settings,
                        const nt_fragment_group *group, uint64_t *seed)
{
    const uint64_t most = group->largest_request;
    uint64_t requests[24] = {most, most + 1, MIB, MIB + 1};
    for (size_t i = 4; i < 24; i++) {
        requests[i] = 1 + nt_test_random(seed) % (60 * MIB);
    }
    for (size_t i = 0; i < 24; i++) {
        if (requests[i] == 0) {
            continue;
        }
        const bool fits = fragment_model_fits(layout, settings, group, requests[i]);
        NT_CHECK(!fits || requests[i] <= most);
        NT_CHECK(i != 0 || fits);
        /* Of a request for the other kind of pool another group decides. */
        if (nt_is_small(nt_round_size(settings, requests[i])) ==
            (group->kind == NT_POOL_SMALL)) {
            NT_CHECK(nt_fragment_fits(fragment, group->device, group->pool,
                                      group->stream, requests[i]) == fits);
        }
    }
}

static void
fragment_check_holes(nt_test *t, const nt_fragment *fragment, const nt_layout *layout)
{
    size_t count, inactive = 0;
    const nt_hole *holes = nt_fragment_holes(fragment, &count);
    for (size_t i = 0; i < layout->blocks.count; i++) {
        inactive += layout->blocks.state[i] == NT_BLOCK_INACTIVE;
    }
    NT_CHECK_UINT(count, inactive);
    for (size_t i = 0; i < count; i++) {
        const uint32_t block = holes[i].block;
        NT_CHECK(i == 0 || holes[i].size < holes[i - 1].size ||
                 (holes[i].size == holes[i - 1].size && block > holes[i - 1].block));
        NT_CHECK_UINT(layout->blocks.state[block], NT_BLOCK_INACTIVE);
        NT_CHECK_UINT(holes[i].size, layout->blocks.size[block]);
        NT_CHECK_UINT(holes[i].segment, layout->blocks.segment[block]);
    }
}

NT_TEST(random_layouts_follow_the_model)
{
    for (uint64_t run = 1; run <= 150; run++) {
        uint64_t seed = run;
        const size_t failures = t->failures;
        nt_settings settings = nt_settings_default();
        if (run % 2 == 0) {
            settings.max_split_size = (20 + nt_test_random(&seed) % 20) * MIB;
            settings.roundup_power2_divisions[nt_test_random(&seed) % 6] = 2;
        }
        nt_blocks l = fragment_random(t, &seed);
        nt_fragment *fragment = nt_blocks_fragment(t, &l.layout, &settings, -1);
        NT_REQUIRE(fragment != NULL);
        size_t count;
        const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
        for (size_t i = 0; i < count; i++) {
            NT_CHECK(i == 0 || groups[i].reserved <= groups[i - 1].reserved);
            fragment_check_group(t, &l.layout, &settings, &groups[i]);
            fragment_check_requests(t, fragment, &l.layout, &settings, &groups[i],
                                    &seed);
        }
        fragment_check_holes(t, fragment, &l.layout);
        const nt_fragment_segment *segments = nt_fragment_segments(fragment, &count);
        NT_CHECK_UINT(count, l.layout.segments.count);
        for (uint32_t i = 0; i < count; i++) {
            NT_CHECK_UINT(segments[i].reclaimable,
                          fragment_model_reclaimable(&l.layout, &settings, i));
        }
        nt_fragment_free(fragment);
        nt_blocks_clear(&l);
        if (t->failures != failures) {
            NT_FAIL("so it was with seed %llu", (unsigned long long)run);
            return;
        }
    }
}

/* The first event of the run of releases that Python's empty_cache() made. */
static size_t
fragment_find_release(const nt_snapshot *snapshot, size_t first, size_t end)
{
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    const nt_stacks *stacks = nt_snapshot_stacks(snapshot);
    const uint32_t name =
        nt_strings_find(nt_snapshot_strings(snapshot), "empty_cache", 11);
    for (size_t i = first; i < end; i++) {
        if (events->action[i] != NT_ACTION_SEGMENT_FREE &&
            events->action[i] != NT_ACTION_SEGMENT_UNMAP) {
            continue;
        }
        uint32_t stack = events->stack[i];
        while (stack != NT_NO_STACK && stack != NT_EMPTY_STACK) {
            const uint32_t frame = nt_stacks_innermost(stacks)[stack];
            if (nt_stacks_frames(stacks)[frame].name == name) {
                return i;
            }
            stack = nt_stacks_parent(stacks)[stack];
        }
    }
    return end;
}

/* Holds what is said to be reclaimable right before a recorded call of empty_cache()
 * against the bytes that the call released. */
static void
fragment_check_release(nt_test *t, const char *name)
{
    size_t size = 0, first, count;
    const uint8_t *bytes = nt_test_sample(t, name, &size);
    NT_REQUIRE(bytes != NULL);
    nt_snapshot *snapshot = nt_file_load(t, bytes, size);
    NT_REQUIRE(snapshot != NULL);
    const nt_alloc alloc = nt_alloc_system();
    const nt_event_columns *events = nt_snapshot_events(snapshot);
    nt_snapshot_trace(snapshot, 0, &first, &count);
    const size_t begin = fragment_find_release(snapshot, first, first + count);
    size_t end = begin, before = begin;
    uint64_t released = 0;
    while (end < first + count && (events->action[end] == NT_ACTION_SEGMENT_FREE ||
                                   events->action[end] == NT_ACTION_SEGMENT_UNMAP)) {
        released += events->size[end++];
    }
    /* It waited for what was pending first: those frees were completed by itself. */
    while (before > first + 1 &&
           events->action[before - 1] == NT_ACTION_FREE_COMPLETED &&
           events->addr[before - 1] != events->addr[before - 2]) {
        before--;
    }
    nt_timeline *timeline = NULL;
    nt_layout *layout = NULL;
    if (NT_CHECK(end > begin) && NT_CHECK(before > first) &&
        NT_CHECK_OK(nt_timeline_new(&alloc, snapshot, 0, NULL, &timeline, NULL),
                    NULL)) {
        const int32_t event = (int32_t)(before - first) - 1;
        if (NT_CHECK_OK(nt_timeline_layout(timeline, event, &layout, NULL), NULL)) {
            nt_fragment *fragment =
                nt_blocks_fragment(t, layout, nt_snapshot_settings(snapshot), 0);
            NT_CHECK_UINT(nt_blocks_reclaimable(fragment), released);
            nt_fragment_free(fragment);
            nt_timeline_layout_free(timeline, layout);
        }
    }
    nt_timeline_free(timeline);
    nt_snapshot_free(snapshot);
}

NT_TEST(real_call_releases_what_was_reclaimable)
{
    /* Ordinary segments, ones with a block that was pending, expandable ones, and a
     * private pool that stays. */
    static const char *const names[] = {
        "whatif/0/mixed_streams", "whatif/2/mixed_streams", "whatif/7/mixed_streams",
        "whatif/8/mixed_streams", "cuda_graph_pool"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t failures = t->failures;
        fragment_check_release(t, names[i]);
        if (t->failures != failures) {
            NT_FAIL("so it was in %s", names[i]);
        }
    }
}

const nt_test_case nt_fragment_model_tests[] = {
    NT_CASE(random_layouts_follow_the_model),
    NT_CASE(real_call_releases_what_was_reclaimable),
    NT_CASES_END,
};
