/* SPDX-License-Identifier: Apache-2.0 */
/* A program while it is made, shared by nt_program.c, nt_program_start.c (what was
 * there before), nt_program_calls.c (whose releases those are), nt_program_waits.c
 * (what completes when) and nt_program_limit.c (how much memory there was). */
#ifndef NT_PROGRAM_STATE_H
#define NT_PROGRAM_STATE_H

#include "whatif/nt_program.h"
#include "base/nt_map.h"
#include "base/nt_ordered.h"
#include "base/nt_sort.h"

/* Slots are below this: there are fewer than 2^31 events, and as many blocks. */
#define PROGRAM_LATER (UINT32_C(1) << 31)

/* The public struct first: the caller holds a pointer to it. */
typedef struct program {
    nt_program face;
    nt_alloc alloc;
    nt_program_step *steps;
    nt_program_lane *lanes;
    nt_pool_id *pools;
    nt_program_area *areas;
    nt_program_piece *pieces;
    nt_program_place *places;
    size_t step_capacity, lane_capacity, pool_capacity;
    size_t area_capacity, piece_capacity, place_capacity;
} program;

typedef struct program_maker {
    program *p;
    const nt_timeline *timeline;
    const nt_event_columns *events;
    size_t first, count;  /* rows of the device's events */
    const uint32_t *rows; /* allocation of each event */
    nt_error *err;
    nt_strings *lane_names, *pool_names; /* numbers of lanes and pools */
    uint32_t *slots; /* by allocation; NT_NONE while it has none, PROGRAM_LATER in
                      * it once it is freed and not complete */
    size_t slot_rows;
    uint32_t *idle_slots; /* a stack */
    size_t idle_count, idle_capacity;
    nt_ordered segments; /* (address, 0): segments there now, as rows of the lives */
    nt_sort_item *begins, *ends; /* event -> segment row */
    size_t life_count, next_begin, next_end;
    bool has_private_pools;
    uint8_t *is_users;       /* by stack: empty_cache is in it; may be NULL */
    const nt_setting *noted; /* calls that the recording noted */
    size_t noted_count, next_noted;
    bool noted_released; /* the next of them gave memory back, and is a step already */
    size_t stack_count;
    uint32_t last_lane; /* of the last request that went through; NT_NONE: none yet */
    uint32_t pending;   /* blocks that are freed and not complete */
    size_t wait_end;    /* behind the completions looked at last, and whether a */
    bool is_waiting;    /* request made them when it waited for all streams */
    size_t request;     /* that of all events of one call up to `request_end`, or */
    size_t request_end; /* m->count; of the call looked at last */
    uint32_t *late;     /* those: events */
    size_t late_count, late_capacity;
    bool has_refused;       /* PyTorch refused what the device had room for */
    uint64_t reserved;      /* bytes now */
    uint64_t reserved_then; /* before the releases of a request that then failed */
} program_maker;

/* The number of a stream in a pool. */
nt_status
nt_program_find_lane(program_maker *m, nt_pool_id pool, uint64_t stream,
                     uint32_t *out) NT_CHECKED;

/* A slot for a block that begins, which has the row `row`. */
nt_status
nt_program_take_slot(program_maker *m, uint32_t row, uint32_t *out) NT_CHECKED;

/* Fills areas and pieces, and gives slots to the blocks in them. */
nt_status
nt_program_find_start(program_maker *m) NT_CHECKED;

/* Finds out how large reservations can be. */
nt_status
nt_program_find_reservation(program_maker *m) NT_CHECKED;

/* The settings of the snapshot. */
const nt_settings *
nt_program_settings(const program_maker *m);

/* What m->reserved, to which a segment or mapped pages have just been added, says of
 * the limit. */
void
nt_program_note_growth(program_maker *m, bool is_map);

/* An attempt to get `segment` bytes above `reserved` failed, while the device had
 * `device_free` bytes (NT_UNLIMITED: unknown): what the process may have is less. */
void
nt_program_note_failure(program_maker *m, uint64_t reserved, uint64_t segment,
                        uint64_t device_free);

/* Releases of the allocator's own, events first .. end - 1, before the request that got
 * memory with event `end`: they answer a first attempt that failed, or collect garbage,
 * which never unmaps. */
void
nt_program_note_shortage(program_maker *m, size_t first, size_t end);

/* Which stacks have a frame called empty_cache. */
nt_status
nt_program_find_calls(program_maker *m) NT_CHECKED;

/* Whether a noted call comes before event `i`, behind all that was passed. */
bool
nt_program_has_noted(const program_maker *m, size_t i);

/* Passes the noted calls before event `i`, unless what that event does may be theirs.
 * *is_silent: one of them left no trace, and is still to become a step. */
void
nt_program_pass_noted(program_maker *m, size_t i, bool *is_silent);

/* Whether the run of releases, events first .. end - 1, is a call of empty_cache(). */
bool
nt_program_is_call(program_maker *m, size_t first, size_t end);

/* Whether the free that event `i` asks for is complete at once. One that waited for a
 * stream is completed by a later request, and has that one's stack. */
bool
nt_program_completes_next(const program_maker *m, size_t i);

/* Whether event `i` completes a free only while a request waits for all streams: the
 * step is then to come after that request, and the event is noted. */
nt_status
nt_program_defer(program_maker *m, size_t i, bool *deferred) NT_CHECKED;

/* Whether event `i` is of another call than the one whose completions are noted. */
bool
nt_program_ends_wait(const program_maker *m, size_t i);

/* Whether event `i` has a stack, and no empty_cache() in it: memory that goes back then
 * without need is that of a pool whose owner is gone. */
bool
nt_program_is_quiet(const program_maker *m, size_t i);

#endif
