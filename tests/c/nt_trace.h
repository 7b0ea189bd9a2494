/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces made by hand, one call an event, and replayed: for the tests of what asks a
 * timeline. Addresses and sizes in bytes; everything lies on device 0.
 */
#ifndef NT_TRACE_H
#define NT_TRACE_H

#include "nt_test.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_timeline.h"

#define MIB UINT64_C(1048576)

/* The first call that fails leaves its status here, and the later ones do nothing. */
typedef struct nt_trace {
    nt_test *test;
    nt_hostile hostile; /* what gives the memory, unless open was told otherwise */
    nt_alloc alloc;
    nt_snapshot *snapshot;
    nt_timeline *timeline;
    nt_status status;
    nt_error err;
    uint32_t keys;
    uint64_t stream; /* of what is added from now on */
    uint32_t stack;  /* the same; NT_NO_STACK at first */
    int64_t time_us; /* the same */
} nt_trace;

/* Begins the trace. `alloc` may be NULL: a hostile allocator of its own then. */
void
nt_trace_open(nt_trace *trace, nt_test *t, const nt_alloc *alloc);
/* Frees it all, and checks that nothing is left of the hostile allocator. */
void
nt_trace_close(nt_trace *trace);

/* The id of a stack of one frame, or of `outer` and a frame in it. */
uint32_t
nt_trace_stack(nt_trace *trace, const char *function, int64_t line, const char *outer);

/* PYTORCH_CUDA_ALLOC_CONF, as a snapshot tells it. */
void
nt_trace_settings(nt_trace *trace, const char *text);

void
nt_trace_event(nt_trace *trace, nt_action action, uint64_t addr, uint64_t size);
/* One from another stack than the others. */
void
nt_trace_event_at(nt_trace *trace, nt_action action, uint64_t addr, uint64_t size,
                  uint32_t stack);
/* free_requested and free_completed. */
void
nt_trace_free(nt_trace *trace, uint64_t addr, uint64_t size);

/* The end layout: a segment, then its blocks. */
void
nt_trace_segment(nt_trace *trace, uint64_t addr, uint64_t size, nt_pool_kind kind,
                 bool expandable);
void
nt_trace_block(nt_trace *trace, uint64_t addr, uint64_t size, uint64_t requested,
               nt_block_state state);
/* The whole of a layout, as the end layout. */
void
nt_trace_add_layout(nt_trace *trace, const nt_layout *end);

/* Seals and replays; true if a timeline is there. */
bool
nt_trace_replay(nt_trace *trace);

/* The bytes after `event`; -1: before the first. */
uint64_t
nt_trace_bytes(nt_trace *trace, nt_metric metric, int32_t event);

/* The size of the block that `event` allocates, or frees. */
uint64_t
nt_trace_block_size(nt_trace *trace, int32_t event);

/*
 * What must hold of any timeline: after `event` (-1: before the first) the layout
 * keeps the allocator's invariants, and its sums are those of the series.
 */
void
nt_trace_check(nt_trace *trace, int32_t event);

/* What the replay found out: blocks from before, events that fit nothing, and by how
 * much the start may be too small. */
void
nt_trace_check_facts(nt_trace *trace, uint32_t preexisting, uint32_t unmatched,
                     uint64_t slack);

/* The layout after `event` is `expected`. */
void
nt_trace_check_layout(nt_trace *trace, int32_t event, const nt_layout *expected);

/* The layout after the last event is the snapshot's. */
void
nt_trace_check_end(nt_trace *trace);

#endif
