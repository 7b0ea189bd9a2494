/* SPDX-License-Identifier: Apache-2.0 */
/* The monitor's own thread: reads the figures of devices at a steady pace through
 * function pointers, keeps a history of bounded size, and raises alerts. It runs no
 * Python, takes no memory after `new`, and nothing waits for it but `stop`. */
#ifndef NT_SAMPLER_H
#define NT_SAMPLER_H

#include "base/nt_base.h"

#define NT_SAMPLER_DEVICES 64
/* The number that means the memory of the CPU. */
#define NT_SAMPLER_CPU (-1)
/* The phase before the first mark. */
#define NT_NO_MARK UINT64_MAX

/* What a history keeps of each reading. Of the bounded ones also the extremes. */
typedef enum nt_figure {
    NT_FIGURE_ALLOCATED, /* bytes */
    NT_FIGURE_RESERVED,
    NT_FIGURE_DEVICE_USED, /* by everybody; 0 while it is not known */
    NT_FIGURES_BOUNDED,
    NT_FIGURE_ACTIVE = NT_FIGURES_BOUNDED,
    NT_FIGURE_INACTIVE_SPLIT,
    NT_FIGURE_REQUESTED,
    NT_FIGURE_RETRIES, /* counts since the allocator began */
    NT_FIGURE_OOMS,
    NT_FIGURES,
} nt_figure;

/* What an allocator says of one device. figure[NT_FIGURE_DEVICE_USED] is not read. */
typedef struct nt_reading {
    uint64_t figure[NT_FIGURES];
    uint64_t peak_allocated, peak_reserved; /* as the allocator counts them */
} nt_reading;

/* Answers of a source; any other is a failure, after which the source is asked less and
 * less often. */
#define NT_SOURCE_OK 0
#define NT_SOURCE_NOT_YET                                                              \
    1 /* the program does not use the device so far: no failure                        \
       */

/* What a device says of itself, and how much of it this process's allocator may have.
 */
typedef struct nt_sampler_memory {
    uint64_t used;  /* bytes in use by everybody; 0: not known */
    uint64_t total; /* all of its bytes */
    uint64_t cap;   /* bytes that the allocator may reserve; 0: as many as there are */
} nt_sampler_memory;

/* Where readings come from; called by the sampler's thread and by nt_sampler_mark. A
 * NULL function is never called: readings may come through nt_sampler_put instead. */
typedef struct nt_sampler_source {
    int (*stats)(void *ctx, int32_t device, nt_reading *out);
    void *stats_ctx;
    /* Fills what it knows; the rest is 0. */
    int (*memory)(void *ctx, int32_t device, nt_sampler_memory *out);
    void *memory_ctx;
} nt_sampler_source;

/* What an alert is about. */
typedef enum nt_alert_kind {
    NT_ALERT_THRESHOLD,     /* share that is not available, of 1.0: see used_share */
    NT_ALERT_GROWTH,        /* floor of allocated, bytes a second */
    NT_ALERT_FRAGMENTATION, /* share of reserved that is not allocated, of 1.0 */
    NT_ALERT_RULES,
    NT_ALERT_DEVICE_ERROR = NT_ALERT_RULES, /* value: what the source answered */
    NT_ALERT_KINDS,
} nt_alert_kind;

/* Raised once the value was `limit` or more for `patience_us`; over below `clear`. */
typedef struct nt_alert_rule {
    double limit; /* INFINITY: never */
    double clear; /* at most limit */
    uint64_t patience_us;
} nt_alert_rule;

typedef struct nt_sampler_options {
    uint64_t interval_us;        /* from one reading to the next, at least 100 */
    uint64_t memory_interval_us; /* of the source's `memory`, at least that */
    size_t rows;                 /* of the history of a device: even, 16 or more */
    size_t phase_rows;           /* the same for phases */
    nt_alert_rule rule[NT_ALERT_RULES];
    uint64_t cooldown_us;      /* between two alerts of a kind on a device */
    uint64_t growth_window_us; /* over which growth is looked at */
    uint64_t least_unused;     /* bytes below which no fragmentation is reported */
} nt_sampler_options;

/* Readings that follow one another, as one row. Without a reading figures are 0. */
typedef struct nt_sample_row {
    uint64_t begin_us, end_us; /* Unix time of the first reading and of the last one */
    uint64_t mark;             /* number of the mark before the last reading */
    uint64_t marks;            /* phases: how many are in this row */
    uint64_t readings;
    uint64_t last[NT_FIGURES];
    uint64_t low[NT_FIGURES_BOUNDED], high[NT_FIGURES_BOUNDED];
    double ratio_sum, ratio_high; /* (reserved - allocated) / reserved */
} nt_sample_row;

/* An alert that was raised, or is over. */
typedef struct nt_alert {
    nt_alert_kind kind;
    int32_t device;
    bool is_over;
    uint64_t time_us; /* Unix time */
    double value;
    double limit;
    nt_reading reading; /* at that moment */
    uint64_t device_used, device_total, device_cap;
} nt_alert;

/* What is known of a device now, and over the sampler's whole life. */
typedef struct nt_sampler_state {
    int32_t device;
    uint64_t time_us; /* of `reading`; 0: there is none yet */
    nt_reading reading;
    uint64_t device_used, device_total; /* 0 while not known */
    uint64_t device_cap;                /* 0: the allocator may have all */
    uint64_t non_torch;                 /* device_used less reserved, when last asked */
    uint64_t peak[NT_FIGURES_BOUNDED];  /* the largest that was seen or reported */
    uint64_t peak_us;                   /* when allocated was seen at its largest */
    /* Of the device what is in use but for the allocator's cache, or of the cap what is
     * allocated: whichever is more. */
    double used_share;
    double ratio, ratio_high, ratio_sum;
    double growth; /* bytes a second; NAN until it can be known */
    uint64_t readings, failures;
    int last_failure;
    bool is_active[NT_ALERT_KINDS];
    uint64_t raised[NT_ALERT_KINDS];
} nt_sampler_state;

/* What the sampling costs. */
typedef struct nt_sampler_cost {
    uint64_t ticks;
    uint64_t late;   /* ticks that were left out because the one before took too long */
    uint64_t cpu_ns; /* of the thread */
    uint64_t dropped; /* alerts that nobody fetched in time */
} nt_sampler_cost;

typedef struct nt_sampler nt_sampler;

/* For these devices, all of them different. NT_ARGUMENT: see nt_sampler_options. */
nt_status
nt_sampler_new(const nt_alloc *alloc, const nt_sampler_options *options,
               const nt_sampler_source *source, const int32_t *devices, size_t count,
               nt_sampler **out, nt_error *err) NT_CHECKED;

/* Stops it too. NULL is fine. */
void
nt_sampler_free(nt_sampler *s);

/* Starts the thread, which asks the source at once; works after a stop, too. NT_IO: the
 * system gives no thread. Does nothing where it runs already. */
nt_status
nt_sampler_start(nt_sampler *s, nt_error *err) NT_CHECKED;

/* Ends the thread and waits for it, at most for one call of the source; wakes every
 * nt_sampler_wait. */
void
nt_sampler_stop(nt_sampler *s);

/* For the child of a fork, instead of stop: the thread is gone there. Empties the
 * history. */
void
nt_sampler_forget(nt_sampler *s);

/* Asks the source about every device, in the calling thread. */
void
nt_sampler_ask(nt_sampler *s);

/* Readings from elsewhere, of the device at `index`. */
void
nt_sampler_put(nt_sampler *s, size_t index, const nt_reading *reading);
void
nt_sampler_put_memory(nt_sampler *s, size_t index, const nt_sampler_memory *memory);
/* The answer of a source that failed. */
void
nt_sampler_put_failure(nt_sampler *s, size_t index, int answer);

/* A phase begins: asks the source, so that a phase of any length has a reading at its
 * beginning and at its end. Returns the mark's number, from 0 on. */
uint64_t
nt_sampler_mark(nt_sampler *s);

/* The next alert, in their order; false after `timeout_us`, or once it was stopped and
 * there is none. UINT64_MAX waits for ever. */
bool
nt_sampler_wait(nt_sampler *s, uint64_t timeout_us, nt_alert *out);

nt_sampler_state
nt_sampler_now(nt_sampler *s, size_t index);
nt_sampler_cost
nt_sampler_spent(nt_sampler *s);

/* The first `room` rows of a device's history, or of its phases; how many it has. */
size_t
nt_sampler_rows(nt_sampler *s, size_t index, bool phases, nt_sample_row *out,
                size_t room);

#endif
