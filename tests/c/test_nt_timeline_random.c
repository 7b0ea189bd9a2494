/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs on a model of the allocator, replayed whole, from some event on, and
 * with events lost. */
#include "trace/nt_timeline.h"

#include <inttypes.h>
#include <stdlib.h>

#include "nt_model.h"
#include "nt_trace.h"

/* The events from number `first` on, without one in `lose_one_of` (0: all of them). */
static bool
random_replay(nt_trace *r, nt_model *m, size_t first, uint64_t lose_one_of)
{
    nt_trace_open(r, m->test, &m->alloc);
    if (m->max_split != UINT64_MAX) {
        nt_trace_settings(r, "max_split_size_mb:64");
    }
    for (size_t i = first; i < m->event_count; i++) {
        const nt_model_event *e = &m->events[i];
        r->stream = e->stream;
        if (lose_one_of == 0 || nt_model_below(m, lose_one_of) != 0) {
            nt_trace_event(r, e->action, e->addr, e->size);
        }
    }
    nt_trace_add_layout(r, &m->events[m->event_count - 1].layout);
    return nt_trace_replay(r);
}

/* Each series within `slack` below the truth; reserved and requested exact. */
static void
random_check_series(nt_trace *r, const nt_model *m, size_t first, uint64_t slack)
{
    nt_test *t = r->test;
    const size_t count = m->event_count - first;
    uint64_t *series = malloc(count * sizeof *series);
    NT_REQUIRE(NT_CHECK(series != NULL));
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        const bool loose = metric == NT_METRIC_ALLOCATED || metric == NT_METRIC_ACTIVE;
        const uint64_t most = loose ? slack : 0;
        nt_timeline_series(r->timeline, (nt_metric)metric, series);
        for (size_t i = 0; i < count; i++) {
            const uint64_t truth = m->events[first + i].bytes[metric];
            if (series[i] > truth || truth - series[i] > most) {
                NT_FAIL("metric %d after event %zu of the trace from %zu is %" PRIu64
                        ", not %" PRIu64,
                        metric, i, first, series[i], truth);
                break;
            }
        }
    }
    free(series);
}

/* Layouts, sizes and the start, where nothing is left open. */
static void
random_check_exact(nt_trace *r, const nt_model *m, size_t first)
{
    nt_test *t = r->test;
    for (size_t i = first; i < m->event_count; i++) {
        const nt_model_event *e = &m->events[i];
        if (e->layout.segments.count != 0) {
            nt_trace_check_layout(r, (int32_t)(i - first), &e->layout);
        }
        if (e->action == NT_ACTION_ALLOC) {
            NT_CHECK_UINT(nt_trace_block_size(r, (int32_t)(i - first)), e->block_size);
        }
    }
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        NT_CHECK_UINT(nt_trace_bytes(r, (nt_metric)metric, -1),
                      first == 0 ? 0 : m->events[first - 1].bytes[metric]);
    }
}

static void
random_check_peaks(nt_trace *r, const nt_model *m)
{
    nt_test *t = r->test;
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        nt_moment peak = {.event = -1, .bytes = 0};
        for (size_t i = 0; i < m->event_count; i++) {
            if (m->events[i].bytes[metric] > peak.bytes) {
                peak = (nt_moment){(int32_t)i, m->events[i].bytes[metric]};
            }
        }
        const nt_moment found = nt_timeline_peak(r->timeline, (nt_metric)metric);
        NT_CHECK_UINT(found.bytes, peak.bytes);
        NT_CHECK_INT(found.event, peak.event);
    }
}

static void
random_check_whole(nt_model *m)
{
    nt_test *t = m->test;
    nt_trace r;
    if (random_replay(&r, m, 0, 0)) {
        const nt_trace_facts *facts = nt_timeline_facts(r.timeline);
        NT_CHECK(facts->complete);
        NT_CHECK_UINT(facts->unmatched + facts->preexisting, 0);
        NT_CHECK_UINT(facts->slack_bound, 0);
        random_check_series(&r, m, 0, 0);
        random_check_exact(&r, m, 0);
        random_check_peaks(&r, m);
    }
    nt_trace_close(&r);
}

/* Whether the start was known to the byte. */
static bool
random_check_from(nt_model *m, size_t first)
{
    nt_test *t = m->test;
    nt_trace r;
    bool exact = false;
    if (random_replay(&r, m, first, 0)) {
        const nt_trace_facts *facts = nt_timeline_facts(r.timeline);
        exact = facts->slack_bound == 0;
        NT_CHECK_UINT(facts->unmatched, 0);
        NT_CHECK_UINT(facts->preexisting, m->events[first - 1].active);
        random_check_series(&r, m, first, facts->slack_bound);
        if (exact) {
            random_check_exact(&r, m, first);
        }
    }
    nt_trace_close(&r);
    return exact;
}

static void
random_check_damaged(nt_model *m, uint64_t lose_one_of)
{
    nt_test *t = m->test;
    nt_trace r;
    if (random_replay(&r, m, 0, lose_one_of)) {
        NT_CHECK(nt_timeline_facts(r.timeline)->unmatched > 0);
        nt_trace_check_end(&r);
        nt_trace_check(&r, (int32_t)nt_timeline_event_count(r.timeline) - 1);
    }
    nt_trace_close(&r);
}

static void
random_check_programs(nt_test *t, bool expandable, uint64_t max_split)
{
    size_t exact = 0, cuts = 0;
    for (uint64_t seed = 1; seed <= 6 && t->failures == 0; seed++) {
        nt_model m;
        if (nt_model_run(&m, t, seed, expandable, max_split)) {
            random_check_whole(&m);
            for (size_t first = 40; first < m.event_count; first += 97) {
                exact += random_check_from(&m, first);
                cuts++;
            }
            random_check_damaged(&m, 20);
        }
        nt_model_clear(&m);
        if (t->failures != 0) {
            NT_FAIL("that was seed %" PRIu64, seed);
        }
    }
    /* Whether a rest was split off from a block that is only seen to go, can often not
     * be known; in expandable segments it always can. */
    NT_CHECK(expandable ? exact == cuts : exact > 0);
}

NT_TEST(ordinary_segments_replay_as_modelled)
{
    random_check_programs(t, false, UINT64_MAX);
}

NT_TEST(expandable_segments_replay_as_modelled)
{
    random_check_programs(t, true, UINT64_MAX);
}

NT_TEST(oversize_blocks_replay_as_modelled)
{
    random_check_programs(t, false, 64 * MIB);
}

const nt_test_case nt_timeline_random_tests[] = {
    NT_CASE(ordinary_segments_replay_as_modelled),
    NT_CASE(expandable_segments_replay_as_modelled),
    NT_CASE(oversize_blocks_replay_as_modelled),
    NT_CASES_END,
};
