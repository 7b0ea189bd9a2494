/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of nt_sampler: what is kept of a device, without threads. Times are Unix
 * time in microseconds, and given by the caller. */
#ifndef NT_SAMPLER_DEVICE_H
#define NT_SAMPLER_DEVICE_H

#include "monitor/nt_sampler.h"

/* Alerts that wait to be fetched. */
#define NT_SAMPLER_QUEUE 64

/* The window of growth is so many slots, each with its lowest allocated. */
#define NT_SAMPLER_SLOTS 8

/* Rows of equal weight: each but the last holds `span` units, which are readings or, of
 * phases, marks. When there is no room left, each two neighbours become one and the
 * span doubles: a history of any length keeps its extremes in bounded room. */
typedef struct nt_sampler_history {
    nt_sample_row *rows;
    size_t room, count;
    uint64_t span;
    bool is_phases;
} nt_sampler_history;

typedef struct nt_sampler_queue {
    nt_alert alerts[NT_SAMPLER_QUEUE];
    size_t first, count;
    uint64_t dropped; /* the oldest go first */
} nt_sampler_queue;

typedef struct nt_sampler_growth {
    uint64_t slot;                     /* number of the slot that is being filled */
    uint64_t floor;                    /* its lowest allocated so far */
    uint64_t floors[NT_SAMPLER_SLOTS]; /* of the slots before it, by number */
    size_t known;                      /* how many slots follow each other before it */
    bool has_begun;
} nt_sampler_growth;

typedef struct nt_sampler_device {
    nt_sampler_state now;
    nt_sampler_history ticks, phases;
    nt_sampler_growth growth;
    uint64_t since_us[NT_ALERT_RULES];  /* the limit is reached since; 0: it is not */
    uint64_t raised_us[NT_ALERT_KINDS]; /* the last alert; 0: none */
    uint64_t ask_at_us;                 /* not before, for it failed */
    uint64_t wait_us;                   /* how long the last failure made it wait */
    uint64_t memory_at_us;              /* when the device's own figures are due */
} nt_sampler_device;

/* A device without readings, and without rows in use. */
void
nt_sampler_device_init(nt_sampler_device *d, int32_t device);

/* One more reading, whose peaks are the highest since the reading before it. `mark` is
 * the last one; `used` is 0 where it is not known. */
void
nt_sampler_history_add(nt_sampler_history *h, const nt_reading *reading, uint64_t used,
                       uint64_t mark, uint64_t time_us);

/* The phase after mark `mark` begins. */
void
nt_sampler_history_begin(nt_sampler_history *h, uint64_t mark, uint64_t time_us);

/* (reserved - allocated) / reserved; 0 where nothing is reserved. */
double
nt_sampler_ratio(const nt_reading *reading);

/* A reading has come: state, growth and rules of the device follow it. */
void
nt_sampler_device_add(nt_sampler_device *d, const nt_sampler_options *options,
                      nt_sampler_queue *queue, const nt_reading *reading,
                      uint64_t time_us);

/* The device's own figures have come, when `reserved` was what the allocator had. */
void
nt_sampler_device_memory(nt_sampler_device *d, uint64_t reserved,
                         const nt_sampler_memory *memory);

/* The source failed; it is asked again later, and at last once a minute. */
void
nt_sampler_device_failed(nt_sampler_device *d, nt_sampler_queue *queue, int answer,
                         uint64_t time_us);

/* The oldest alert, or false. */
bool
nt_sampler_queue_take(nt_sampler_queue *queue, nt_alert *out);

#endif
