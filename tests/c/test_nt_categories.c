/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_categories.h"

#include "nt_trace.h"

#define BASE UINT64_C(0x7f0000000000)
#define BLOCKS 64

/* What the frames of a trace say, by frame id; each is a stack of its own. */
enum { LOAD, CALL, LINE, STEP, ZERO, MASTER, BUCKET, CACHE, SPACE, SCALE, FRAMES };

static const uint16_t says[FRAMES] = {
    NT_ROLE_BUILD | NT_FRAME_TORCH,
    NT_ROLE_MODULE | NT_FRAME_TORCH,
    NT_ROLE_USER | NT_FRAME_OUTSIDE,
    NT_ROLE_OPTIMIZER | NT_FRAME_TORCH,
    NT_ROLE_ZERO_GRAD | NT_FRAME_TORCH,
    NT_ROLE_USER | NT_FRAME_OUTSIDE,
    NT_ROLE_BUCKET | NT_FRAME_TORCH,
    NT_ROLE_CACHE | NT_FRAME_OUTSIDE,
    NT_ROLE_WORKSPACE,
    NT_ROLE_SCALER | NT_FRAME_TORCH,
};

/* A trace in the making: blocks of 2 MiB or more, each where none was before. */
typedef struct made {
    nt_trace *r;
    uint32_t stacks[FRAMES];
    uint64_t next, size[BLOCKS];
    bool gone[BLOCKS];
    size_t count;
} made;

static void
made_begin(made *m, nt_trace *r)
{
    *m = (made){.r = r};
    for (int i = 0; i < FRAMES; i++) {
        const char name[] = {(char)('a' + i), 0};
        m->stacks[i] = nt_trace_stack(r, name, i + 1, NULL);
    }
    nt_trace_event(r, NT_ACTION_SEGMENT_ALLOC, BASE, 1024 * MIB);
}

/* Allocates; who: a frame, or FRAMES for no stack. Returns the row. */
static size_t
made_alloc(made *m, int who, uint64_t size)
{
    const uint32_t stack = who < FRAMES ? m->stacks[who] : NT_NO_STACK;
    nt_trace_event_at(m->r, NT_ACTION_ALLOC, BASE + m->next, size, stack);
    m->size[m->count] = size;
    m->next += size;
    return m->count++;
}

static void
made_free(made *m, int who, size_t row)
{
    uint64_t at = BASE;
    for (size_t i = 0; i < row; i++) {
        at += m->size[i];
    }
    const uint32_t stack = who < FRAMES ? m->stacks[who] : NT_NO_STACK;
    nt_trace_event_at(m->r, NT_ACTION_FREE_REQUESTED, at, m->size[row], stack);
    nt_trace_event_at(m->r, NT_ACTION_FREE_COMPLETED, at, m->size[row], stack);
    m->gone[row] = true;
}

static bool
made_end(made *m)
{
    uint64_t at = BASE;
    nt_trace_segment(m->r, BASE, 1024 * MIB, NT_POOL_LARGE, false);
    for (size_t i = 0; i < m->count; i++) {
        nt_trace_block(m->r, at, m->size[i], m->gone[i] ? 0 : m->size[i],
                       m->gone[i] ? NT_BLOCK_INACTIVE : NT_BLOCK_ACTIVE_ALLOCATED);
        at += m->size[i];
    }
    nt_trace_block(m->r, at, 1024 * MIB - m->next, 0, NT_BLOCK_INACTIVE);
    return nt_trace_replay(m->r);
}

/* The rows of a training program: what each was for is in the tests. */
enum {
    WEIGHT,
    OWN_WEIGHT,
    MASTERS,
    INPUT,
    OUTPUT,
    LOSS,
    DETAIL,
    GRADIENT,
    OWN_GRADIENT,
    COPY,
    STATE,
    PASSING,
    BUCKETS,
    KEYS,
    KEPT_SPACE,
    SCALED,
    KEPT_SCALE,
};

static bool
categories_trace(nt_trace *r)
{
    made m;
    made_begin(&m, r);
    (void)made_alloc(&m, LOAD, 8 * MIB);    /* WEIGHT */
    (void)made_alloc(&m, LINE, 8 * MIB);    /* OWN_WEIGHT */
    (void)made_alloc(&m, MASTER, 16 * MIB); /* MASTERS */
    (void)made_alloc(&m, LINE, 3 * MIB);    /* INPUT */
    (void)made_alloc(&m, CALL, 5 * MIB);    /* OUTPUT */
    (void)made_alloc(&m, LINE, 2 * MIB);    /* LOSS */
    (void)made_alloc(&m, FRAMES, 4 * MIB);  /* DETAIL */
    (void)made_alloc(&m, FRAMES, 8 * MIB);  /* GRADIENT */
    (void)made_alloc(&m, FRAMES, 8 * MIB);  /* OWN_GRADIENT */
    made_free(&m, FRAMES, DETAIL);
    made_free(&m, FRAMES, OUTPUT);
    (void)made_alloc(&m, MASTER, 16 * MIB); /* COPY */
    (void)made_alloc(&m, STEP, 16 * MIB);   /* STATE */
    (void)made_alloc(&m, STEP, 7 * MIB);    /* PASSING */
    made_free(&m, STEP, PASSING);
    made_free(&m, ZERO, GRADIENT);
    made_free(&m, LINE, COPY);
    made_free(&m, LINE, LOSS);
    made_free(&m, LINE, INPUT);
    (void)made_alloc(&m, BUCKET, 9 * MIB); /* BUCKETS */
    (void)made_alloc(&m, CACHE, 6 * MIB);  /* KEYS */
    (void)made_alloc(&m, SPACE, 8519680);  /* KEPT_SPACE */
    (void)made_alloc(&m, SCALE, 2 * MIB);  /* SCALED */
    made_free(&m, SCALE, SCALED);
    (void)made_alloc(&m, SCALE, 2 * MIB); /* KEPT_SCALE */
    return made_end(&m);
}

static nt_status
categories_decide(const nt_alloc *alloc, const nt_timeline *timeline, uint8_t *rules,
                  nt_error *err)
{
    nt_passes *passes = NULL;
    NT_TRY(nt_passes_new(alloc, timeline, says, FRAMES, &passes, err));
    const nt_status status = nt_categories_decide(alloc, passes, rules, err);
    nt_passes_free(passes);
    return status;
}

NT_TEST(a_training_step_has_its_categories)
{
    static const uint8_t expected[] = {
        NT_RULE_MODULE_MADE,
        NT_RULE_LINE_MADE,
        NT_RULE_PARAMETER_COPY,
        NT_RULE_BEFORE_MODULE,
        NT_RULE_MODULE_OUTPUT,
        NT_RULE_AFTER_MODULE,
        NT_RULE_INSIDE_BACKWARD,
        NT_RULE_SURVIVES_BACKWARD,
        NT_RULE_SURVIVES_BACKWARD,
        NT_RULE_GRADIENT_COPY,
        NT_RULE_OPTIMIZER_KEPT,
        NT_RULE_OPTIMIZER_SCRATCH,
        NT_RULE_BUCKET,
        NT_RULE_KV_CACHE,
        NT_RULE_WORKSPACE,
        NT_RULE_SCALER_SCRATCH,
        NT_RULE_NONE,
    };
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    uint8_t rules[BLOCKS];
    nt_error err = {0};
    if (categories_trace(&r) &&
        NT_CHECK_OK(categories_decide(&r.alloc, r.timeline, rules, &err), &err)) {
        NT_CHECK_UINT(nt_timeline_allocations(r.timeline)->count, sizeof expected);
        for (size_t row = 0; row < sizeof expected; row++) {
            NT_CHECK_UINT(rules[row], expected[row]);
        }
    }
    nt_trace_close(&r);
}

/* Rounds of training; the first leaves `odd` behind, and each a `twice` that a line
 * frees. */
static bool
categories_rounds(nt_trace *r, int rounds, size_t *odd, size_t *twice)
{
    made m;
    made_begin(&m, r);
    (void)made_alloc(&m, LOAD, 8 * MIB);
    for (int i = 0; i < rounds; i++) {
        const size_t output = made_alloc(&m, CALL, 5 * MIB);
        const size_t loss = made_alloc(&m, LINE, 2 * MIB);
        const size_t gradient = made_alloc(&m, FRAMES, 8 * MIB);
        *odd = i == 0 ? made_alloc(&m, FRAMES, 12 * MIB) : *odd;
        *twice = made_alloc(&m, FRAMES, 20 * MIB);
        made_free(&m, FRAMES, output);
        (void)made_alloc(&m, STEP, 16 * MIB);
        made_free(&m, ZERO, gradient);
        made_free(&m, LINE, *twice);
        made_free(&m, LINE, loss);
    }
    return made_end(&m);
}

NT_TEST(what_one_of_several_passes_leaves_is_no_gradient)
{
    for (int rounds = 1; rounds <= 3; rounds++) {
        nt_trace r;
        nt_trace_open(&r, t, NULL);
        uint8_t rules[BLOCKS];
        nt_error err = {0};
        size_t odd = 0, twice = 0;
        if (categories_rounds(&r, rounds, &odd, &twice) &&
            NT_CHECK_OK(categories_decide(&r.alloc, r.timeline, rules, &err), &err)) {
            /* A single pass has nothing to be compared with. */
            NT_CHECK_UINT(rules[odd],
                          rounds == 1 ? NT_RULE_SURVIVES_BACKWARD : NT_RULE_NONE);
            NT_CHECK_UINT(rules[twice], NT_RULE_SURVIVES_BACKWARD);
        }
        nt_trace_close(&r);
    }
}

NT_TEST(codes_add_up)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (categories_trace(&r)) {
        const nt_timeline *timeline = r.timeline;
        const size_t rows = nt_timeline_allocations(timeline)->count;
        const int32_t last = (int32_t)nt_timeline_event_count(timeline) - 1;
        uint8_t codes[BLOCKS];
        nt_category_sum sums[2];
        double weights[2];
        for (size_t row = 0; row < rows; row++) {
            codes[row] = row == STATE;
        }
        nt_categories_sum(timeline, codes, last, sums, 2);
        NT_CHECK_UINT(sums[1].bytes, 16 * MIB);
        NT_CHECK_UINT(sums[1].count, 1);
        NT_CHECK_UINT(sums[0].bytes + sums[1].bytes,
                      nt_trace_bytes(&r, NT_METRIC_ALLOCATED, last));
        nt_categories_sum(timeline, codes, -1, sums, 2);
        NT_CHECK_UINT(sums[0].count + sums[1].count, 0);
        uint64_t series[2 * 2 * BLOCKS];
        const size_t events = (size_t)last + 1;
        if (NT_CHECK(events <= 2 * BLOCKS)) {
            nt_categories_series(timeline, codes, 2, series);
            for (size_t event = 0; event < events; event++) {
                NT_CHECK_UINT(series[event] + series[events + event],
                              nt_trace_bytes(&r, NT_METRIC_ALLOCATED, (int32_t)event));
            }
            NT_CHECK_UINT(series[2 * events - 1], 16 * MIB);
        }
        nt_categories_weigh(timeline, codes, weights, 2);
        const int32_t born = nt_timeline_allocations(timeline)->alloc_event[STATE];
        NT_CHECK(weights[1] == (double)(16 * MIB) * (double)(last + 1 - born));
    }
    nt_trace_close(&r);
}

static nt_status
categories_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    uint8_t rules[BLOCKS];
    nt_error err = {0};
    return categories_decide(alloc, ctx, rules, &err);
}

NT_TEST(categories_survive_every_refused_allocation)
{
    nt_trace r;
    nt_trace_open(&r, t, NULL);
    if (categories_trace(&r)) {
        nt_test_sweep(t, categories_body, r.timeline);
    }
    nt_trace_close(&r);
}

const nt_test_case nt_categories_tests[] = {
    NT_CASE(a_training_step_has_its_categories),
    NT_CASE(what_one_of_several_passes_leaves_is_no_gradient),
    NT_CASE(codes_add_up),
    NT_CASE(categories_survive_every_refused_allocation),
    NT_CASES_END,
};
