/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small model of PyTorch's allocator on which random programs run: it writes their
 * trace, and knows at every event what is true. Written from the allocator's rules and
 * from nothing of the core's, so that the core can be held against it.
 */
#ifndef NT_MODEL_H
#define NT_MODEL_H

#include "nt_test.h"
#include "trace/nt_layout.h"
#include "trace/nt_timeline.h"

enum { NT_MODEL_AREAS = 48, NT_MODEL_BLOCKS = 96, NT_MODEL_EVENTS = 1600 };

typedef enum nt_model_state {
    NT_MODEL_FREE,
    NT_MODEL_ALLOCATED,
    NT_MODEL_PENDING,
    NT_MODEL_UNMAPPED,
} nt_model_state;

typedef struct nt_model_block {
    uint64_t addr, size, requested;
    nt_model_state state;
} nt_model_block;

/* An ordinary segment, or the reservation of an expandable one; blocks by address. */
typedef struct nt_model_area {
    uint64_t stream;
    bool small;
    nt_model_block blocks[NT_MODEL_BLOCKS];
    size_t count;
} nt_model_area;

typedef struct nt_model_event {
    nt_action action;
    uint64_t addr, size, stream;
    uint64_t bytes[NT_METRIC_COUNT]; /* after it */
    uint64_t block_size;             /* of an alloc */
    uint32_t active;                 /* blocks after it */
    nt_layout layout;                /* after it, for a sample of the events */
    size_t segment_capacity, block_capacity;
} nt_model_event;

typedef struct nt_model {
    nt_test *test;
    nt_alloc alloc;
    uint64_t seed;
    bool expandable;
    uint64_t max_split;
    nt_model_area *areas[NT_MODEL_AREAS]; /* by address */
    size_t area_count;
    nt_model_event *events;
    size_t event_count;
} nt_model;

/* Runs the program of this seed, under expandable_segments or a max_split_size_mb
 * (UINT64_MAX: none); the last event has a layout. True if it is there. */
bool
nt_model_run(nt_model *model, nt_test *t, uint64_t seed, bool expandable,
             uint64_t max_split);
void
nt_model_clear(nt_model *model);

/* A random number below `limit`. */
uint64_t
nt_model_below(nt_model *model, uint64_t limit);

#endif
