/* SPDX-License-Identifier: Apache-2.0 */
/* The program of the trace under other settings of the allocator. */
#include "nt_page.h"

#include <string.h>

#include "whatif/nt_replay.h"

/* The program, and what is looked up once for all settings. */
typedef struct what_if {
    nt_program *program;
    uint8_t *marks;
    int32_t *drops;
    size_t mark_count, drop_count;
    bool is_checked;
    nt_replay_fidelity check;
    nt_replay_figures recorded;
} what_if;

static what_if now;

/* What the page asks for. */
typedef struct what_if_request {
    const char *settings;
    uint32_t length;
    double capacity; /* bytes; 0: as recorded */
    bool is_share;   /* PyTorch itself keeps the process below it */
} what_if_request;

void
nt_page_clear_program(void)
{
    nt_release(&nt_page_memory, now.marks, now.mark_count);
    NT_RELEASE(&nt_page_memory, now.drops, now.drop_count);
    nt_program_free(now.program);
    now = (what_if){0};
}

/* Whether places are looked for where something may have left no trace. */
static bool
what_if_needs_silence(const nt_program *program)
{
    for (size_t i = 0; i < program->step_count; i++) {
        if (program->steps[i].kind == NT_PROGRAM_EMPTY_CACHE) {
            return true;
        }
    }
    return program->pool_count > 1;
}

static nt_status
what_if_find_silence(const nt_timeline *timeline)
{
    if (!what_if_needs_silence(now.program)) {
        return NT_OK;
    }
    now.mark_count = nt_timeline_event_count(timeline);
    now.drop_count = now.program->pool_count;
    now.marks = nt_allocate(&nt_page_memory, now.mark_count);
    now.drops = nt_allocate(&nt_page_memory, now.drop_count * sizeof *now.drops);
    if ((now.marks == NULL && now.mark_count != 0) || now.drops == NULL) {
        return nt_fail_nomem(&nt_page_err);
    }
    return nt_replay_find_silence(&nt_page_memory, now.program, NULL, now.marks,
                                  now.drops, &nt_page_err);
}

static nt_replay_options
what_if_defaults(void)
{
    nt_replay_options options = nt_replay_default(now.program);
    options.silence = (nt_replay_silence){.marks = now.marks, .drops = now.drops};
    return options;
}

/* Takes the program out of the file's trace, and sees how faithful the model is to it.
 * Figures: what it knows of the limit, then the fidelity, as core.js names them. */
NT_PAGE_EXPORT(program) int32_t page_program(void)
{
    nt_page *page = &nt_pages[NT_PAGE_FILE];
    if (!now.is_checked) {
        /* What an earlier try left that had no memory. */
        nt_page_clear_program();
        NT_TRY(nt_program_new(&nt_page_memory, page->timeline, &now.program,
                              &nt_page_err));
        NT_TRY(what_if_find_silence(page->timeline));
        const nt_replay_options options = what_if_defaults();
        NT_TRY(nt_replay_check(&nt_page_memory, now.program, &options, NULL, &now.check,
                               &now.recorded, &nt_page_err));
        now.is_checked = true;
    }
    const nt_program_bounds *bounds = &now.program->bounds;
    const nt_replay_fidelity *f = &now.check;
    const double figures[] = {
        (double)now.program->step_count,
        (double)bounds->low,
        bounds->high == NT_UNLIMITED ? -1 : (double)bounds->high,
        bounds->is_device,
        (double)f->mallocs,
        (double)f->mallocs_same,
        (double)f->device_events,
        (double)f->device_events_same,
        f->is_same,
        f->is_end_same,
        f->first_event,
        f->recorded.action,
        (double)f->recorded.address,
        (double)f->recorded.size,
        f->modelled.action,
        (double)f->modelled.address,
        (double)f->modelled.size,
        (double)now.program->pool_count,
    };
    memcpy(nt_page_figures, figures, sizeof figures);
    return NT_OK;
}

static void
what_if_tell(const nt_replay_figures *f)
{
    const double figures[] = {
        (double)f->peak[NT_METRIC_RESERVED],
        (double)f->final[NT_METRIC_RESERVED],
        (double)f->peak[NT_METRIC_ALLOCATED],
        (double)f->final[NT_METRIC_ALLOCATED],
        (double)f->segments,
        (double)f->device_allocs,
        (double)f->device_frees,
        (double)f->ooms,
        (double)f->retries,
        f->is_stopped ? f->stopped_event : -2,
        f->is_beyond ? f->beyond_event : -2,
        f->start_rebuilt,
    };
    memcpy(nt_page_figures, figures, sizeof figures);
}

static nt_status
what_if_options(const what_if_request *request, nt_replay_options *out)
{
    *out = what_if_defaults();
    NT_TRY(nt_settings_parse(request->settings, request->length, &out->settings,
                             &nt_page_err));
    if (!out->settings.native_backend) {
        return nt_fail(
            &nt_page_err, NT_ARGUMENT, 0,
            "the model is of PyTorch's native allocator; nobody records what "
            "other backends do");
    }
    if (request->capacity > 0 && request->is_share) {
        out->limit = (uint64_t)request->capacity;
    } else if (request->capacity > 0) {
        out->limit = 0;
        out->device_total = (uint64_t)request->capacity;
        out->device_other = 0;
    }
    return NT_OK;
}

/* Runs the program: the figures are those of nt_replay_figures. */
NT_PAGE_EXPORT(what_if)
int32_t
page_what_if(const char *settings, uint32_t length, double capacity, uint32_t is_share)
{
    const what_if_request request = {settings, length, capacity, is_share != 0};
    nt_replay_options options;
    NT_TRY(what_if_options(&request, &options));
    nt_replay_figures figures;
    NT_TRY(nt_replay_run(&nt_page_memory, now.program, &options, NULL, NULL, &figures,
                         &nt_page_err));
    what_if_tell(&figures);
    return NT_OK;
}

/* Figure 0: the most bytes reserved after one of the events 0 .. end - 1, where the
 * program goes on whatever comes of a request. */
NT_PAGE_EXPORT(what_if_most)
int32_t
page_what_if_most(const char *settings, uint32_t length, double capacity,
                  uint32_t is_share, uint32_t end)
{
    const what_if_request request = {settings, length, capacity, is_share != 0};
    nt_replay_options options;
    NT_TRY(what_if_options(&request, &options));
    options.goes_on = true;
    const size_t events = nt_timeline_event_count(now.program->timeline);
    nt_page_room *room = &nt_page_rooms[NT_ROOM_SERIES];
    NT_TRY(nt_page_reserve(room, events * sizeof(uint64_t) + 1));
    uint64_t *reserved = room->data;
    const nt_replay_series series = {.bytes[NT_METRIC_RESERVED] = reserved};
    nt_replay_figures figures;
    NT_TRY(nt_replay_run(&nt_page_memory, now.program, &options, NULL, &series,
                         &figures, &nt_page_err));
    uint64_t most = 0;
    for (size_t i = 0; i < end && i < events; i++) {
        most = reserved[i] > most ? reserved[i] : most;
    }
    nt_page_figures[0] = (double)most;
    return NT_OK;
}

/* The run as a snapshot with its timeline: page number NT_PAGE_WHAT_IF. */
NT_PAGE_EXPORT(what_if_trace)
int32_t
page_what_if_trace(const char *settings, uint32_t length, double capacity,
                   uint32_t is_share)
{
    const what_if_request request = {settings, length, capacity, is_share != 0};
    nt_page *page = &nt_pages[NT_PAGE_WHAT_IF];
    nt_page_clear(page);
    nt_replay_options options;
    NT_TRY(what_if_options(&request, &options));
    NT_TRY(nt_replay_trace(&nt_page_memory, now.program, &options, NULL, &page->whole,
                           &nt_page_err));
    page->snapshot = page->whole;
    return nt_timeline_new(&nt_page_memory, page->snapshot,
                           nt_timeline_device(nt_pages[NT_PAGE_FILE].timeline), NULL,
                           &page->timeline, &nt_page_err);
}
