/* SPDX-License-Identifier: Apache-2.0 */
/* One device's trace replayed: what every allocation's true block size was, when it
 * lived, the four byte series after every event, their peaks, and the layout (which
 * block is where in which segment) after any event.
 *
 * The trace gives requested sizes; the true sizes follow from the allocator's rules
 * (nt_rounding): a request in the large pool of ordinary segments gets up to 1 MiB more
 * than its rounded size when the rest would be too small to keep. The state before the
 * first event is rebuilt from the end state by undoing the events. Event indices count
 * within the device's trace; -1 is "before". */
#ifndef NT_TIMELINE_H
#define NT_TIMELINE_H

#include "base/nt_base.h"
#include "base/nt_columns.h"
#include "trace/nt_snapshot.h"

/* Sums of bytes are modulo 2^64, which only sizes that no device has can reach. */
typedef enum nt_metric {
    NT_METRIC_ALLOCATED, /* active_allocated blocks: falls at free_requested */
    NT_METRIC_ACTIVE,    /* and those waiting for a stream: falls at free_completed */
    NT_METRIC_RESERVED,  /* segments, or mapped bytes of expandable ones */
    NT_METRIC_REQUESTED, /* of active blocks: falls at free_completed */
    NT_METRIC_COUNT,
} nt_metric;

/* Stands for an event that is not in the trace: an allocation or segment from before
 * it, one never freed in it, one freed before it began. */
#define NT_EVENT_BEFORE (-1)
#define NT_EVENT_NEVER (-1)
#define NT_EVENT_FREED_BEFORE (-2)

#define NT_ALLOCATION_LIST(X, T)                                                       \
    X(T, uint64_t, address)                                                            \
    X(T, uint64_t, size)           /* of the block, bytes */                           \
    X(T, uint64_t, requested_size) /* the block's where the file has none */           \
    X(T, uint64_t, stream)                                                             \
    X(T, int32_t, alloc_event)     /* or NT_EVENT_BEFORE */                            \
    X(T, int32_t, free_event)      /* of free_requested, _NEVER or _FREED_BEFORE */    \
    X(T, int32_t, completed_event) /* of free_completed, or _NEVER */                  \
    X(T, uint32_t, stack)          /* where it was allocated, or NT_NO_STACK */

/* One row an allocation, those from before the trace first. It is allocated after event
 * e if alloc_event <= e and free_event is NT_EVENT_NEVER or above e, and active if
 * alloc_event <= e and the same holds of completed_event. What only the end layout has,
 * or lacks, because events were lost or the snapshot took down the trace a moment
 * before the blocks, begins or ends with the trace's last event. */
typedef struct nt_allocation_columns {
    size_t count;
    NT_ALLOCATION_LIST(NT_COLUMN_FIELD, )
} nt_allocation_columns;

#define NT_SEGMENT_LIFE_LIST(X, T)                                                     \
    X(T, uint64_t, address)                                                            \
    X(T, uint64_t, size)                                                               \
    X(T, uint64_t, stream)                                                             \
    X(T, uint64_t, pool_first) /* private pool where it is known, else 0 */            \
    X(T, uint64_t, pool_second)                                                        \
    X(T, uint8_t, kind) /* nt_pool_kind */                                             \
    X(T, uint8_t, is_expandable)                                                       \
    X(T, uint8_t, pool_known)  /* 0: freed before the end, no pool ids */              \
    X(T, int32_t, alloc_event) /* or NT_EVENT_BEFORE */                                \
    X(T, int32_t, free_event)  /* or NT_EVENT_NEVER */                                 \
    X(T, uint32_t, stack)

/* One row a segment, or a range of an expandable one that was mapped at once; a range
 * that is unmapped in part ends, and its rest goes on as a row of its own. */
typedef struct nt_segment_life_columns {
    size_t count;
    NT_SEGMENT_LIFE_LIST(NT_COLUMN_FIELD, )
} nt_segment_life_columns;

typedef struct nt_moment {
    int32_t event; /* the first event after which the value stands; -1: before all */
    uint64_t bytes;
} nt_moment;

/* What replay found out about the trace as a whole. */
typedef struct nt_trace_facts {
    bool complete; /* the trace goes back to the device's first allocation */
    uint64_t start_bytes[NT_METRIC_COUNT]; /* before the first event */
    uint64_t slack_bound;  /* bytes by which start sizes may be too small; 0: exact */
    uint32_t preexisting;  /* allocations from before the trace */
    uint32_t unmatched;    /* events that fit nothing (a gap in the trace) */
    uint32_t oom_count;    /* oom events */
    uint32_t release_runs; /* runs of segment_free/unmap in the trace */
    uint32_t retries;      /* of those, the allocator's own before a new attempt, and
                            * OOMs that had nothing to release */
    bool frees_known;      /* false: frees have the stack of the allocation, as PyTorch
                            * gives them where it records only allocations' */
    bool retries_known;    /* false: some run may have been something else, for want of
                            * frames, or under settings that release otherwise */
} nt_trace_facts;

typedef struct nt_timeline nt_timeline;

/* Replays the trace of `device` (a trace number of the sealed `snapshot`, which must
 * outlive the timeline; a device with segments but no trace is fine). Time is linear in
 * events; memory about 60 bytes an allocation, 4 an event. */
nt_status
nt_timeline_new(const nt_alloc *alloc, const nt_snapshot *snapshot, int32_t device,
                const nt_progress *progress, nt_timeline **out,
                nt_error *err) NT_CHECKED;
void
nt_timeline_free(nt_timeline *timeline);

const nt_snapshot *
nt_timeline_snapshot(const nt_timeline *timeline);
/* The device that it was made for. */
int32_t
nt_timeline_device(const nt_timeline *timeline);
size_t
nt_timeline_event_count(const nt_timeline *timeline);
const nt_allocation_columns *
nt_timeline_allocations(const nt_timeline *timeline);
const nt_segment_life_columns *
nt_timeline_segments(const nt_timeline *timeline);
const nt_trace_facts *
nt_timeline_facts(const nt_timeline *timeline);
/* What the trace says that no allocator can have done: *count notes in `out`, by kind,
 * whose `first` is an event's number. None in a trace that begins late for that alone.
 * What lies where is looked through for the last 2^18 events, all else for all of them.
 * Memory a few bytes an allocation while it runs. */
#define NT_TRACE_BROKEN_KINDS (NT_BROKEN_KINDS - NT_BROKEN_FREE)
nt_status
nt_timeline_broken(const nt_timeline *timeline,
                   nt_broken_note out[NT_TRACE_BROKEN_KINDS], size_t *count,
                   nt_error *err) NT_CHECKED;
/* The largest value after any event, the start included. */
nt_moment
nt_timeline_peak(const nt_timeline *timeline, nt_metric metric);
/* The peak of allocated if blocks had been freed earlier, each of the size it has:
 * `ends` has for each allocation the event after which it is freed, below its own
 * free_event, or a negative number where nothing changes. Memory 8 bytes an event while
 * it runs. */
nt_status
nt_timeline_peak_if_freed(const nt_timeline *timeline, const int32_t *ends,
                          uint64_t *out, nt_error *err) NT_CHECKED;

/* Writes the value after each event into `out` (nt_timeline_event_count() of them). */
void
nt_timeline_series(const nt_timeline *timeline, nt_metric metric, uint64_t *out);

/* The row of nt_timeline_allocations() that each event concerns (alloc and free_*),
 * NT_NONE for others; nt_timeline_event_count() of them. */
const uint32_t *
nt_timeline_event_allocations(const nt_timeline *timeline);

/* The layout after `event` (-1: before the first). Every gap in a segment is one
 * inactive block. Segments by address; expandable ranges that touch and share stream
 * and pool are one segment. Inactive blocks have a requested_size of 0. The caller
 * frees it with nt_timeline_layout_free. */
nt_status
nt_timeline_layout(const nt_timeline *timeline, int32_t event, nt_layout **out,
                   nt_error *err) NT_CHECKED;
void
nt_timeline_layout_free(const nt_timeline *timeline, nt_layout *layout);

/* How holders are put together. */
typedef enum nt_holder_key {
    NT_BY_STACK,    /* key: stack id */
    NT_BY_LINE,     /* key: frame id of the innermost frame */
    NT_BY_FUNCTION, /* key: frame id of some frame with that name and file */
} nt_holder_key;

typedef struct nt_holder {
    uint32_t key;   /* NT_NONE: no stack was recorded */
    uint32_t count; /* live allocations */
    uint64_t bytes; /* sum of their block sizes */
    uint64_t requested_bytes;
} nt_holder;

/* Who holds the allocated bytes after `event`, largest first.
 * *out is an array of *count, freed with nt_timeline_holders_free. */
nt_status
nt_timeline_holders(const nt_timeline *timeline, int32_t event, nt_holder_key by,
                    nt_holder **out, size_t *count, nt_error *err) NT_CHECKED;
void
nt_timeline_holders_free(const nt_timeline *timeline, nt_holder *holders, size_t count);

/* Turnover by stack over the whole trace: every allocation counted once, with the peak
 * of what the stack held at one time. */
typedef struct nt_churn {
    uint32_t stack; /* NT_NO_STACK: none recorded */
    uint32_t count;
    uint64_t bytes;      /* summed over all allocations made in the trace */
    uint64_t peak_bytes; /* most bytes this stack held after any event */
    int32_t peak_event;
} nt_churn;

nt_status
nt_timeline_churn(const nt_timeline *timeline, nt_churn **out, size_t *count,
                  nt_error *err) NT_CHECKED;
void
nt_timeline_churn_free(const nt_timeline *timeline, nt_churn *churn, size_t count);

#endif
