/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of the CUDA caching allocator as columns: segments, blocks, trace events,
 * annotations and settings, with strings and stacks interned. Filled through the `add`
 * functions (by nt_reader from a file, or from a live process), then sealed; a sealed
 * snapshot never changes. */
#ifndef NT_SNAPSHOT_H
#define NT_SNAPSHOT_H

#include "base/nt_base.h"
#include "base/nt_columns.h"
#include "base/nt_map.h"
#include "trace/nt_events.h"
#include "trace/nt_layout.h"
#include "trace/nt_settings.h"
#include "trace/nt_stack.h"

typedef enum nt_stage { NT_STAGE_START, NT_STAGE_END, NT_STAGE_COUNT } nt_stage;

typedef struct nt_annotation {
    uint8_t stage; /* nt_stage */
    uint32_t name;
    int32_t device;
    int64_t time_us;
} nt_annotation;

#define NT_ANNOTATION_LIST(X, T)                                                       \
    X(T, uint8_t, stage)                                                               \
    X(T, uint32_t, name)                                                               \
    X(T, int32_t, device)                                                              \
    X(T, int64_t, time_us)

typedef struct nt_annotation_columns {
    size_t count;
    NT_ANNOTATION_LIST(NT_COLUMN_FIELD, )
} nt_annotation_columns;

/* The allocator_settings dict as a flat tree in the file's order. */
typedef enum nt_setting_kind {
    NT_SETTING_NONE,
    NT_SETTING_BOOL,
    NT_SETTING_INT,
    NT_SETTING_FLOAT,
    NT_SETTING_STRING,
    NT_SETTING_DICT,
    NT_SETTING_LIST,
} nt_setting_kind;

typedef struct nt_setting {
    uint32_t parent; /* row of the dict or list it is in, or NT_NONE at the top */
    uint32_t key;    /* string id; NT_NONE inside a list */
    nt_setting_kind kind;
    int64_t integer; /* bool and int */
    double real;
    uint32_t string; /* string id */
} nt_setting;

/* What a file says that no allocator can have written, where the rest can be used: a
 * note a kind and device. What a note is about has been left out or put right, so that
 * no figure rests on it. */
typedef enum nt_broken {
    NT_BROKEN_BLOCK_OUTSIDE, /* blocks outside their segment; left out */
    NT_BROKEN_BLOCK_ORDER,   /* segments whose blocks are not by address; sorted */
    NT_BROKEN_UNFILLED,      /* segments that their blocks do not fill; `bytes` of it */
    NT_BROKEN_REQUESTED,     /* blocks asked for more than they are; the size counts */
    NT_BROKEN_SEGMENT_OVERLAP, /* segments where another one is; left out, with blocks
                                */
    NT_BROKEN_SEGMENT_SHARED,  /* segments where another device has one; kept */
    NT_BROKEN_SUMS,            /* segments whose own sums are not their blocks' */
    NT_BROKEN_EXPANDABLE,      /* segments that the trace made as the other kind */
    NT_BROKEN_TIME,            /* events before the one before, or at no time; no event
                                * of the device keeps its time then */
    NT_BROKEN_TIME_MISSING,    /* events without a time; they have the one before's */
    /* What a trace says against itself or the segments (nt_timeline_broken). */
    NT_BROKEN_FREE,         /* frees of what is not allocated, or freed already */
    NT_BROKEN_ALLOC,        /* allocations where one still is, in part or whole */
    NT_BROKEN_UNRESERVED,   /* allocations where no segment is */
    NT_BROKEN_SEGMENT_FREE, /* segments given back with blocks in them */
    NT_BROKEN_SEGMENT,      /* segment events that fit nothing */
    NT_BROKEN_LIVE_SET,     /* blocks that the trace's end has and the segments lack, or
                             * the other way round */
    NT_BROKEN_KINDS,
} nt_broken;

typedef struct nt_broken_note {
    uint8_t kind; /* nt_broken */
    int32_t device;
    uint64_t count; /* blocks, segments or events */
    uint64_t bytes; /* how much memory they are; 0 of events */
    uint64_t first; /* address of the first one; of events the number in the trace */
} nt_broken_note;

typedef struct nt_snapshot nt_snapshot;

/* An empty snapshot to be filled. It keeps a copy of `alloc`. */
nt_status
nt_snapshot_new(const nt_alloc *alloc, nt_snapshot **out, nt_error *err) NT_CHECKED;
void
nt_snapshot_free(nt_snapshot *snapshot);

/* Filling. The ids inside the rows must come from nt_snapshot_strings() and
 * nt_snapshot_stacks(). A failed call leaves the snapshot as it was. ------ */

/* The trace of the next device begins: its number is how often this was called before.
 * Events added from here on are its events. */
nt_status
nt_snapshot_begin_trace(nt_snapshot *snapshot, nt_error *err) NT_CHECKED;
nt_status
nt_snapshot_add_event(nt_snapshot *snapshot, const nt_event *event,
                      nt_error *err) NT_CHECKED;
/* The table that `add_event` adds to, for who adds a million of them. */
nt_events *
nt_snapshot_event_table(nt_snapshot *snapshot);

/* Where events were added before it was known which trace they belong to:
 * `arrange_trace` begins the next device's trace, `arrange_events` gives it the events
 * added as number first .. first + count - 1, and `arrange` puts the columns in that
 * order and drops what was given to none. */
nt_status
nt_snapshot_arrange_trace(nt_snapshot *snapshot, nt_error *err) NT_CHECKED;
nt_status
nt_snapshot_arrange_events(nt_snapshot *snapshot, size_t first, size_t count,
                           nt_error *err) NT_CHECKED;
nt_status
nt_snapshot_arrange(nt_snapshot *snapshot, nt_error *err) NT_CHECKED;

nt_status
nt_snapshot_add_segment(nt_snapshot *snapshot, const nt_segment *segment,
                        nt_error *err) NT_CHECKED;
/* A block of the segment added last. */
nt_status
nt_snapshot_add_block(nt_snapshot *snapshot, const nt_block *block,
                      nt_error *err) NT_CHECKED;
/* Segments and blocks added from here on are those before the first event of the
 * traces, not those at their end: for a trace that was cut out of a longer one. */
void
nt_snapshot_begin_before(nt_snapshot *snapshot);
nt_status
nt_snapshot_add_annotation(nt_snapshot *snapshot, const nt_annotation *annotation,
                           nt_error *err) NT_CHECKED;
nt_status
nt_snapshot_add_setting(nt_snapshot *snapshot, const nt_setting *setting,
                        nt_error *err) NT_CHECKED;
/* The layout that the add functions fill, for who puts it right before it is sealed. */
nt_layout *
nt_snapshot_layout_table(nt_snapshot *snapshot);
/* The same of the layout before the traces; an empty one where nothing is known. */
nt_layout *
nt_snapshot_before_table(nt_snapshot *snapshot);
nt_status
nt_snapshot_add_broken(nt_snapshot *snapshot, const nt_broken_note *note,
                       nt_error *err) NT_CHECKED;
/* Forgets the notes that were added. */
void
nt_snapshot_drop_broken(nt_snapshot *snapshot);
/* A key at the file's top level that neutracer does not read. */
nt_status
nt_snapshot_add_ignored(nt_snapshot *snapshot, uint32_t name, nt_error *err) NT_CHECKED;
/* The code of the action called `name` (a string id), made when it is new. */
nt_status
nt_snapshot_intern_action(nt_snapshot *snapshot, uint32_t name, uint8_t *out,
                          nt_error *err) NT_CHECKED;
/* The pinned memory of the host (`host_segments`, `host_traces`): a snapshot of its
 * own, to be filled as device 0. It shares the strings and stacks of `snapshot`, has
 * the actions that are known by now, is sealed with it and lives as long. Its settings
 * say that its sizes are exact, and `pinned`. */
nt_status
nt_snapshot_begin_host(nt_snapshot *snapshot, nt_snapshot **out,
                       nt_error *err) NT_CHECKED;
void
nt_snapshot_set_keys(nt_snapshot *snapshot, uint32_t keys);
/* Says that only a part could be read, and why (cut to 255 bytes). */
void
nt_snapshot_set_partial(nt_snapshot *snapshot, const char *reason);

/* Notes after which events of a device's trace, rising, the program called
 * empty_cache(): all of its calls, and none is another device's. It goes into
 * allocator_settings under NT_SNAPSHOT_CALLS, where PyTorch writes nothing. Of each
 * device once, one after the other, when all other settings are there: in a sealed
 * snapshot too, as long as nothing else reads it. NT_ARGUMENT for anything else. */
#define NT_SNAPSHOT_CALLS "trace_empty_cache_calls"
nt_status
nt_snapshot_note_calls(nt_snapshot *snapshot, size_t device, const int32_t *events,
                       size_t count, nt_error *err) NT_CHECKED;

/* First and last uses of blocks, a string at the top of allocator_settings. It counts
 * requests of a trace from the beginning, so a part of a trace goes without. */
#define NT_SNAPSHOT_USES "trace_uses"

/* Notes numbers of a device under another key of allocator_settings, under the same
 * conditions. */
nt_status
nt_snapshot_note_numbers(nt_snapshot *snapshot, const char *key, size_t device,
                         const int64_t *numbers, size_t count,
                         nt_error *err) NT_CHECKED;

/* Adds one end of a range of the program: as nt_snapshot_add_annotation, under a name
 * of UTF-8, and in a sealed snapshot too, as long as nothing else reads it. */
nt_status
nt_snapshot_note_range(nt_snapshot *snapshot, const char *name, size_t length,
                       nt_annotation annotation, nt_error *err) NT_CHECKED;

/* Ends the filling: arrays are cut to size, optional columns without a key are dropped,
 * settings are parsed. NT_LIMIT when a device has 2^31 events or more. */
nt_status
nt_snapshot_seal(nt_snapshot *snapshot, nt_error *err) NT_CHECKED;

/* Reading. What is returned lives as long as the snapshot. ---------------- */

nt_strings *
nt_snapshot_strings(const nt_snapshot *snapshot);
nt_stacks *
nt_snapshot_stacks(const nt_snapshot *snapshot);
/* Which stacks have a frame of a function of this name: a number for each stack id, 1
 * or 0, made by `alloc`; the caller gives them back. NULL, and a count of 0, where
 * there is no such function. */
nt_status
nt_snapshot_mark_function(const nt_snapshot *snapshot, const char *name,
                          const nt_alloc *alloc, uint8_t **marks, size_t *count,
                          nt_error *err) NT_CHECKED;
const nt_event_columns *
nt_snapshot_events(const nt_snapshot *snapshot);
const nt_layout *
nt_snapshot_layout(const nt_snapshot *snapshot);
/* What was there before the first event of any trace, where the file says so (under
 * `segments_before`, which PyTorch does not write); else NULL, and it follows from the
 * traces and the end. */
const nt_layout *
nt_snapshot_before(const nt_snapshot *snapshot);
/* What nt_snapshot_begin_host made, or NULL. */
nt_snapshot *
nt_snapshot_host(const nt_snapshot *snapshot);
const nt_annotation_columns *
nt_snapshot_annotations(const nt_snapshot *snapshot);
const nt_setting *
nt_snapshot_setting_rows(const nt_snapshot *snapshot, size_t *count);
/* Whether the calls of empty_cache() on a device were noted: *rows has them, `count`
 * rows whose integers rise and are events of its trace. False as well where the file
 * says anything else there. */
bool
nt_snapshot_noted_calls(const nt_snapshot *snapshot, size_t device,
                        const nt_setting **rows, size_t *count);
const uint32_t *
nt_snapshot_ignored(const nt_snapshot *snapshot, size_t *count);
/* By kind, then by device; none of those that only the replay finds. */
const nt_broken_note *
nt_snapshot_broken(const nt_snapshot *snapshot, size_t *count);
uint32_t
nt_snapshot_keys(const nt_snapshot *snapshot);
/* NULL when the whole file was read. */
const char *
nt_snapshot_partial(const nt_snapshot *snapshot);

/* The settings in force when the snapshot was taken: from allocator_settings' own
 * fields, completed from its PYTORCH_CUDA_ALLOC_CONF text. Defaults where the file says
 * nothing; if it states no settings at all, expandable segments are on where it shows
 * some. */
const nt_settings *
nt_snapshot_settings(const nt_snapshot *snapshot);

/* Devices 0 .. count-1 have a trace (often an empty one): its events are the rows first
 * .. first + events - 1 of nt_snapshot_events(). */
size_t
nt_snapshot_trace_count(const nt_snapshot *snapshot);
void
nt_snapshot_trace(const nt_snapshot *snapshot, size_t device, size_t *first,
                  size_t *events);

/* The name of an action code; NULL-terminated for known codes only, so use `length`. */
const char *
nt_snapshot_action_name(const nt_snapshot *snapshot, uint8_t action, size_t *length);
/* Codes in use are below this. */
size_t
nt_snapshot_action_count(const nt_snapshot *snapshot);

#endif
