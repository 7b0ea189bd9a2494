/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a file, saving it, and choosing what further calls are about. */
#include "nt_page.h"

#include <string.h>

#include "trace/nt_pack.h"
#include "trace/nt_reader.h"
#include "trace/nt_source.h"
#include "trace/nt_writer.h"

/* The page's functions: bytes come and go through the module's memory. `read` gives how
 * many bytes it wrote, and 0 at the end; a negative number stops. */
NT_PAGE_IMPORT(read) int32_t page_read(void *buffer, uint32_t capacity);
NT_PAGE_IMPORT(write) int32_t page_write(const void *bytes, uint32_t count);
/* The memory that reading what came so far may take; 0: as much as there is. */
NT_PAGE_IMPORT(allowance) double page_allowance(void);

nt_page nt_pages[NT_PAGES];
nt_page *nt_page_now = &nt_pages[NT_PAGE_FILE];
nt_budget nt_page_budget;
nt_alloc nt_page_memory;
nt_error nt_page_err;
double nt_page_figures[NT_PAGE_FIGURES];
nt_page_column nt_page_answers[8];
nt_page_room nt_page_rooms[NT_ROOMS];

static size_t page_limit;

nt_status
nt_page_reserve(nt_page_room *room, size_t bytes)
{
    if (bytes <= room->capacity) {
        return NT_OK;
    }
    nt_release(&nt_page_memory, room->data, room->capacity);
    *room = (nt_page_room){0};
    room->data = nt_allocate(&nt_page_memory, bytes);
    if (room->data == NULL) {
        return nt_fail_nomem(&nt_page_err);
    }
    room->capacity = bytes;
    return NT_OK;
}

static void
page_release(nt_page_room *room)
{
    nt_release(&nt_page_memory, room->data, room->capacity);
    *room = (nt_page_room){0};
}

void
nt_page_clear_timeline(nt_page *page)
{
    nt_strip_free(page->strip);
    nt_raster_free(page->raster);
    nt_fragment_free(page->fragment);
    if (page->timeline != NULL) {
        nt_timeline_layout_free(page->timeline, page->layout);
        nt_timeline_holders_free(page->timeline, page->holders, page->holder_count);
    }
    nt_release(&nt_page_memory, page->step_edges,
               page->step_edges == NULL ? 0
                                        : (page->step_count + 1) * sizeof(uint32_t));
    page_release(&page->codes);
    page_release(&page->rules);
    page_release(&page->roles);
    page_release(&page->spans);
    nt_timeline_free(page->timeline);
    *page = (nt_page){.whole = page->whole, .snapshot = page->snapshot};
}

void
nt_page_clear(nt_page *page)
{
    nt_page_clear_timeline(page);
    nt_snapshot_free(page->whole);
    *page = (nt_page){0};
}

NT_PAGE_EXPORT(error) const nt_error *page_error(void)
{
    return &nt_page_err;
}

NT_PAGE_EXPORT(figures) const double *page_figures(void)
{
    return nt_page_figures;
}

/* Room for what the page hands over; it gives it back. */
NT_PAGE_EXPORT(allocate) void *page_allocate(uint32_t size)
{
    return nt_allocate(&nt_page_memory, size);
}

NT_PAGE_EXPORT(release) void page_give_back(void *data, uint32_t size)
{
    nt_release(&nt_page_memory, data, size);
}

/* Bytes that are in use, and the most that were. */
NT_PAGE_EXPORT(memory_used) void page_memory_used(void)
{
    nt_page_figures[0] = (double)nt_page_budget.used;
    nt_page_figures[1] = (double)nt_page_budget.peak;
}

/* 0: the file, 1: the outcome of other settings. */
NT_PAGE_EXPORT(use) void page_use(uint32_t which)
{
    nt_page_now = &nt_pages[which < NT_PAGES ? which : 0];
}

static int
load_read(void *ctx, void *buffer, size_t capacity, size_t *count)
{
    (void)ctx;
    const int32_t got = page_read(buffer, (uint32_t)capacity);
    *count = got < 0 ? 0 : (size_t)got;
    const double allowed = page_allowance();
    if (allowed > 0) {
        const size_t bytes =
            allowed < (double)page_limit ? (size_t)allowed : page_limit;
        nt_page_budget.limit =
            bytes > nt_page_budget.used ? bytes : nt_page_budget.used;
    }
    return got < 0;
}

/* Reads a snapshot of `total` bytes in at most `limit` bytes of memory; what was read
 * before is gone, and no room that an answer had is kept. `is_packed`: not a pickle,
 * but what nt_pack wrote. */
NT_PAGE_EXPORT(load) int32_t page_load(double limit, double total, uint32_t is_packed)
{
    nt_page_clear_program();
    nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
    nt_page_clear(&nt_pages[NT_PAGE_FILE]);
    for (size_t i = 0; i < NT_ROOMS; i++) {
        page_release(&nt_page_rooms[i]);
    }
    memset(nt_page_answers, 0, sizeof nt_page_answers);
    page_limit = (size_t)limit;
    nt_budget_init(&nt_page_budget, nt_alloc_system(), page_limit);
    nt_page_memory = nt_budget_alloc(&nt_page_budget);
    nt_page_err = (nt_error){.offset = NT_NO_OFFSET};
    nt_source source;
    nt_source_init_input(&source, nt_page_memory, (nt_input){.read = load_read}, NULL);
    source.total = (uint64_t)total;
    nt_status (*const load)(const nt_alloc *, nt_source *, nt_snapshot **, nt_error *) =
        is_packed ? nt_pack_load : nt_reader_load;
    nt_page *page = &nt_pages[NT_PAGE_FILE];
    const nt_status status = load(&nt_page_memory, &source, &page->whole, &nt_page_err);
    page->snapshot = page->whole;
    nt_source_clear(&source);
    /* Whether what was packed may not take more, or nothing may. */
    nt_page_figures[0] = nt_page_budget.limit < page_limit;
    nt_page_budget.limit = page_limit;
    return status;
}

static int
save_write(void *ctx, const void *bytes, size_t count)
{
    (void)ctx;
    return page_write(bytes, (uint32_t)count);
}

/* Hands the snapshot out as a pickle, piece by piece. */
NT_PAGE_EXPORT(save) int32_t page_save(void)
{
    const nt_sink sink = {.write = save_write};
    return nt_writer_save(&nt_page_memory, nt_page_now->whole, &sink, NULL,
                          &nt_page_err);
}

/* How many devices have a trace, and why only a part was read: a text, or NULL. */
NT_PAGE_EXPORT(traces) uint32_t page_traces(void)
{
    return (uint32_t)nt_snapshot_trace_count(nt_page_now->snapshot);
}

/* Events of a device's trace. */
NT_PAGE_EXPORT(trace_length) uint32_t page_trace_length(uint32_t device)
{
    size_t first = 0, events = 0;
    if (device < nt_snapshot_trace_count(nt_page_now->snapshot)) {
        nt_snapshot_trace(nt_page_now->snapshot, device, &first, &events);
    }
    return (uint32_t)events;
}

NT_PAGE_EXPORT(partial) const char *page_partial(void)
{
    return nt_snapshot_partial(nt_page_now->snapshot);
}

/* Further calls are about the pinned memory of the host, or about the devices again;
 * 0 where the file has none of it. What was asked of the other is gone. */
NT_PAGE_EXPORT(turn) uint32_t page_turn(uint32_t to_host)
{
    nt_page *page = &nt_pages[NT_PAGE_FILE];
    nt_snapshot *host = nt_snapshot_host(page->whole);
    nt_snapshot *wanted = to_host && host != NULL ? host : page->whole;
    if (wanted != page->snapshot) {
        nt_page_clear_program();
        nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
        nt_page_clear_timeline(page);
        page->snapshot = wanted;
    }
    return host != NULL;
}

/* Replays the trace of a device; further calls are about it. */
NT_PAGE_EXPORT(replay) int32_t page_replay(int32_t device)
{
    nt_page *page = nt_page_now;
    if (page == &nt_pages[NT_PAGE_FILE]) {
        nt_page_clear_program();
        nt_page_clear(&nt_pages[NT_PAGE_WHAT_IF]);
    }
    nt_page_clear_timeline(page);
    return nt_timeline_new(&nt_page_memory, page->snapshot, device, NULL,
                           &page->timeline, &nt_page_err);
}
