/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs through the model: its invariants hold after every call, and the
 * block that serves a request is the one that a search of the whole layout finds. */
#include "whatif/nt_allocator.h"

#include <inttypes.h>

#include "nt_desk.h"
#include "nt_test.h"
#include "trace/nt_rounding.h"

enum { RANDOM_LIVE = 160, RANDOM_STEPS = 700, RANDOM_LANES = 4 };

typedef struct random_program {
    nt_desk desk;
    nt_settings settings;
    uint64_t seed;
    uint32_t lanes[RANDOM_LANES]; /* two of the default pool, two of a private one */
    uint32_t pool;
    uint32_t live[RANDOM_LIVE], later[RANDOM_LIVE];
    size_t live_count, later_count;
    bool is_capturing;
    uint64_t waits; /* of the model, at the last request */
} random_program;

static const char *const random_settings[] = {
    "",
    "roundup_power2_divisions:4",
    "max_split_size_mb:40",
    "max_split_size_mb:32,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.4",
    "garbage_collection_threshold:0.7,max_split_size_mb:64",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:32,roundup_power2_divisions:8",
    "expandable_segments:True,garbage_collection_threshold:0.3,max_split_size_mb:30",
    "large_segment_size_mb:12",
};

#define RANDOM_SETTINGS (sizeof random_settings / sizeof *random_settings)

static uint64_t
random_below(random_program *p, uint64_t limit)
{
    return nt_test_random(&p->seed) % limit;
}

static uint64_t
random_size(random_program *p)
{
    static const uint64_t limits[] = {700, MIB, 3 * MIB, 12 * MIB, 40 * MIB, 130 * MIB};
    const uint64_t size = 1 + random_below(p, limits[random_below(p, 6)]);
    /* Every second large one is whole MiB, so that equal sizes meet. */
    return size > MIB && random_below(p, 2) == 0 ? size / MIB * MIB : size;
}

/* The address of the best fit in what the layout shows, or 0. */
static uint64_t
random_best_fit(random_program *p, uint32_t pool, uint64_t stream, uint64_t rounded)
{
    nt_test *t = p->desk.test;
    nt_layout *layout = NULL;
    uint64_t size = UINT64_MAX, address = 0;
    NT_CHECK_OK(nt_allocator_layout(p->desk.model, &layout, NULL), NULL);
    NT_CHECK_UINT(nt_layout_check(layout), NT_NONE);
    for (size_t i = 0; i < layout->blocks.count; i++) {
        const uint32_t segment = layout->blocks.segment[i];
        const bool is_small = layout->segments.kind[segment] == NT_POOL_SMALL;
        if (layout->blocks.state[i] == NT_BLOCK_INACTIVE &&
            layout->segments.stream[segment] == stream &&
            layout->segments.pool_second[segment] == pool &&
            is_small == nt_is_small(rounded) && layout->blocks.size[i] >= rounded &&
            layout->blocks.size[i] < size) {
            size = layout->blocks.size[i];
            address = layout->blocks.address[i];
        }
    }
    nt_allocator_layout_free(p->desk.model, layout);
    return address != 0 && nt_may_use(&p->settings, size, rounded) ? address : 0;
}

static void
random_malloc(random_program *p)
{
    nt_test *t = p->desk.test;
    const uint64_t size = random_size(p);
    const size_t lane =
        random_below(p, 8) == 0 ? 2 + random_below(p, 2) : random_below(p, 2);
    if (p->live_count == RANDOM_LIVE) {
        return;
    }
    uint64_t expected = 0;
    if (!p->settings.expandable_segments) {
        expected =
            random_best_fit(p, lane < 2 ? NT_DEFAULT_POOL : p->pool, lane % 2 * 0x1000,
                            nt_round_size(&p->settings, size));
    }
    const size_t deeds = p->desk.deed_count;
    const uint32_t block = nt_desk_malloc_on(&p->desk, p->lanes[lane], size);
    if (expected != 0 && NT_CHECK(block != NT_NONE)) {
        NT_CHECK_UINT(nt_desk_address(&p->desk, block), expected);
        NT_CHECK_UINT(p->desk.deed_count, deeds);
    }
    if (block != NT_NONE) {
        NT_CHECK(nt_desk_size(&p->desk, block) >= size);
        p->live[p->live_count++] = block;
    } else {
        NT_CHECK_INT(p->desk.deeds[p->desk.deed_count - 1].action, NT_ACTION_OOM);
    }
    const nt_allocator_stats *stats = nt_desk_stats(&p->desk);
    if (stats->waits != p->waits) {
        /* What waited is free now. */
        p->later_count = 0;
        p->waits = stats->waits;
    }
    p->desk.deed_count = 0;
}

static void
random_free(random_program *p)
{
    if (p->live_count == 0) {
        return;
    }
    const size_t i = random_below(p, p->live_count);
    const uint32_t block = p->live[i];
    p->live[i] = p->live[--p->live_count];
    if (random_below(p, 6) == 0 && p->later_count < RANDOM_LIVE) {
        nt_desk_free_later(&p->desk, block);
        p->later[p->later_count++] = block;
    } else {
        nt_desk_free(&p->desk, block);
    }
}

static void
random_step(random_program *p)
{
    const uint64_t dice = random_below(p, 100);
    if (dice < 52) {
        random_malloc(p);
    } else if (dice < 90) {
        random_free(p);
    } else if (dice < 95 && p->later_count > 0) {
        const size_t i = random_below(p, p->later_count);
        nt_desk_complete(&p->desk, p->later[i]);
        p->later[i] = p->later[--p->later_count];
    } else if (dice < 97) {
        nt_desk_empty_cache(&p->desk);
        p->later_count = p->is_capturing ? p->later_count : 0;
        p->desk.deed_count = 0;
    } else if (dice == 97) {
        p->is_capturing = !p->is_capturing;
        nt_allocator_set_capturing(p->desk.model, p->is_capturing);
    } else if (dice == 98) {
        nt_allocator_release_pool(p->desk.model, p->pool, random_below(p, 2) == 0);
    }
}

/* Everything freed and given back: the device has it all again. */
static void
random_end(random_program *p)
{
    nt_test *t = p->desk.test;
    while (p->live_count > 0) {
        nt_desk_free(&p->desk, p->live[--p->live_count]);
    }
    while (p->later_count > 0) {
        nt_desk_complete(&p->desk, p->later[--p->later_count]);
    }
    nt_allocator_set_capturing(p->desk.model, false);
    nt_allocator_release_pool(p->desk.model, p->pool, true);
    nt_desk_empty_cache(&p->desk);
    NT_CHECK_UINT(nt_desk_reserved(&p->desk), 0);
    NT_CHECK_UINT(nt_desk_stats(&p->desk)->segments, 0);
    nt_desk_close(&p->desk);
}

static void
random_run(nt_test *t, uint64_t seed)
{
    random_program p = {.seed = seed};
    const char *text = random_settings[seed % RANDOM_SETTINGS];
    size_t length = 0;
    while (text[length] != 0) {
        length++;
    }
    nt_allocator_options options = {.device_total = 1024 * MIB};
    options.limit = random_below(&p, 3) == 0 ? 0 : (100 + random_below(&p, 500)) * MIB;
    options.device_other = random_below(&p, 2) * 300 * MIB;
    NT_CHECK_OK(nt_settings_parse(text, length, &p.settings, NULL), NULL);
    nt_desk_open_with(&p.desk, t, text, options);
    p.pool = nt_desk_pool(&p.desk, 0);
    p.lanes[0] = p.desk.lane;
    p.lanes[1] = nt_desk_lane(&p.desk, NT_DEFAULT_POOL, 0x1000);
    p.lanes[2] = nt_desk_lane(&p.desk, p.pool, 0);
    p.lanes[3] = nt_desk_lane(&p.desk, p.pool, 0x1000);
    for (int i = 0; i < RANDOM_STEPS && t->failures == 0; i++) {
        random_step(&p);
    }
    random_end(&p);
}

NT_TEST(random_programs_keep_every_invariant)
{
    for (uint64_t seed = 1; seed <= 6 * RANDOM_SETTINGS; seed++) {
        random_run(t, seed);
        if (t->failures > 0) {
            NT_FAIL("so it was with seed %" PRIu64, seed);
            return;
        }
    }
}

const nt_test_case nt_allocator_random_tests[] = {
    NT_CASE(random_programs_keep_every_invariant),
    NT_CASES_END,
};
