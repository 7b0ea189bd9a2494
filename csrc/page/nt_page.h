/* SPDX-License-Identifier: Apache-2.0 */
/* The core as a module of WebAssembly, for the page: one snapshot, and beside it what
 * the allocator would have made of its program under other settings. Shared by the
 * files of this folder and by nobody else.
 *
 * A call that fails returns the status, and nt_page_err has the words. Answers are
 * columns, which the page reads out of the module's memory by their names, and numbers
 * in nt_page_figures. They stay until the next call of the same kind. The page runs one
 * call at a time. */
#ifndef NT_PAGE_H
#define NT_PAGE_H

#include "fragmentation/nt_fragment.h"
#include "whatif/nt_program.h"
#include "picture/nt_raster.h"
#include "picture/nt_strip.h"
#include "base/nt_base.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_timeline.h"

/* Elsewhere than in a browser the functions are those of a library. */
#ifdef __wasm__
#define NT_PAGE_EXPORT(name) __attribute__((export_name(#name), used))
#define NT_PAGE_IMPORT(name) __attribute__((import_module("page"), import_name(#name)))
#else
#define NT_PAGE_EXPORT(name)
#define NT_PAGE_IMPORT(name)
#endif

/* A column of an answer. */
typedef enum nt_page_type {
    NT_PAGE_U8 = 1,
    NT_PAGE_I32,
    NT_PAGE_U32,
    NT_PAGE_U64,
    NT_PAGE_I64,
    NT_PAGE_F64,
} nt_page_type;

typedef struct nt_page_column {
    const void *data;
    uint32_t count;
    uint32_t type; /* nt_page_type */
} nt_page_column;

/* Room that an answer keeps from call to call. */
typedef struct nt_page_room {
    void *data;
    size_t capacity; /* bytes */
} nt_page_room;

/* A snapshot with what was asked about one of its devices. */
typedef struct nt_page {
    nt_snapshot *whole; /* what was read; owned */
    nt_snapshot
        *snapshot; /* what calls are about: `whole`, or the host's memory in it */
    nt_timeline *timeline;
    nt_raster *raster;
    nt_strip *strip;
    nt_layout *layout;
    nt_fragment *fragment;
    nt_holder *holders;
    size_t holder_count;
    nt_page_room codes; /* a band for each row of the allocations */
    uint32_t bands;     /* how many the strip has; 0 before they are set */
    nt_page_room rules; /* an nt_rule for each */
    nt_page_room roles; /* an nt_role for each event */
    nt_page_room spans; /* of the backward passes, nt_span */
    size_t span_count;
    uint32_t *step_edges;
    size_t step_count;
} nt_page;

enum { NT_PAGE_FILE, NT_PAGE_WHAT_IF, NT_PAGES };

extern nt_page nt_pages[NT_PAGES];
/* The one that calls are about. */
extern nt_page *nt_page_now;

extern nt_budget nt_page_budget;
/* The allocator that draws on the budget. */
extern nt_alloc nt_page_memory;
extern nt_error nt_page_err;

#define NT_PAGE_FIGURES 64
extern double nt_page_figures[NT_PAGE_FIGURES];

/* The answer that several calls share: columns of pixels, or of rows. */
extern nt_page_column nt_page_answers[8];

/* The room of answers that do not belong to one page. */
typedef enum nt_page_answer_room {
    NT_ROOM_SERIES,
    NT_ROOM_GROUPS,
    NT_ROOM_SETTINGS,
    NT_ROOM_MARKS,
    NT_ROOM_ROWS,
    NT_ROOM_STANDING,
    NT_ROOM_PIXELS,
    NT_ROOM_SHARES,
    NT_ROOM_FULL,
    NT_ROOM_COLUMNS,
    NT_ROOMS,
} nt_page_answer_room;

extern nt_page_room nt_page_rooms[NT_ROOMS];

/* Room for `bytes`; what was in it is gone. */
nt_status
nt_page_reserve(nt_page_room *room, size_t bytes) NT_CHECKED;

/* Gives back what belongs to the timeline of `page`, or all of it. */
void
nt_page_clear_timeline(nt_page *page);
void
nt_page_clear(nt_page *page);

/* Gives back the program that other settings are tried on. */
void
nt_page_clear_program(void);

#endif
