/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about the trace and about one moment, and what a range of it looks like. */
#include "nt_page.h"

#include <string.h>

#include "trace/nt_categories.h"
#include "trace/nt_passes.h"

/* The figures of a timeline: peaks and their events by metric, then what replay found
 * out. `factsOf` in answers.js names them in this order. */
NT_PAGE_EXPORT(facts) void page_facts(void)
{
    const nt_timeline *t = nt_page_now->timeline;
    const nt_trace_facts *facts = nt_timeline_facts(t);
    double *out = nt_page_figures;
    *out++ = (double)nt_timeline_event_count(t);
    for (int metric = 0; metric < NT_METRIC_COUNT; metric++) {
        const nt_moment peak = nt_timeline_peak(t, (nt_metric)metric);
        *out++ = (double)peak.bytes;
        *out++ = peak.event;
        *out++ = (double)facts->start_bytes[metric];
    }
    *out++ = facts->complete;
    *out++ = (double)facts->slack_bound;
    *out++ = facts->preexisting;
    *out++ = facts->unmatched;
    *out++ = facts->oom_count;
    *out++ = facts->retries;
    *out++ = facts->frees_known;
}

static double *
page_note(double *out, const nt_broken_note *note)
{
    *out++ = note->kind;
    *out++ = note->device;
    *out++ = (double)note->count;
    *out++ = (double)note->bytes;
    return out;
}

/* Whether the file lists segments of the device that is replayed. */
static bool
page_lists_segments(const nt_page *page)
{
    const nt_segment_columns *segments = &nt_snapshot_layout(page->snapshot)->segments;
    for (size_t i = 0; i < segments->count; i++) {
        if (segments->device[i] == nt_timeline_device(page->timeline)) {
            return true;
        }
    }
    return false;
}

/* Answer 0: what the file and the trace say that can't be, four numbers each: kind,
 * device, count, bytes. Of a file that breaks off, only what does not come from that.
 * Figure 0: whether it lists segments of the device. */
NT_PAGE_EXPORT(flaws) int32_t page_flaws(void)
{
    const nt_page *page = nt_page_now;
    nt_broken_note traced[NT_TRACE_BROKEN_KINDS];
    size_t count = 0, traced_count = 0;
    const nt_broken_note *notes = nt_snapshot_broken(page->snapshot, &count);
    if (nt_snapshot_partial(page->snapshot) == NULL) {
        NT_TRY(nt_timeline_broken(page->timeline, traced, &traced_count, &nt_page_err));
    }
    nt_page_room *room = &nt_page_rooms[NT_ROOM_ROWS];
    NT_TRY(nt_page_reserve(room, (count + traced_count) * 4 * sizeof(double) + 1));
    double *out = room->data;
    for (size_t i = 0; i < count; i++) {
        out = page_note(out, &notes[i]);
    }
    for (size_t i = 0; i < traced_count; i++) {
        out = page_note(out, &traced[i]);
    }
    nt_page_answers[0] = (nt_page_column){
        room->data, (uint32_t)(4 * (count + traced_count)), NT_PAGE_F64};
    nt_page_figures[0] = page_lists_segments(page);
    return NT_OK;
}

/* The state with the most bytes allocated, or reserved, of states first .. end - 1. */
NT_PAGE_EXPORT(highest)
uint32_t
page_highest(uint32_t reserved, uint32_t first, uint32_t end)
{
    return (uint32_t)nt_strip_highest(nt_page_now->strip, reserved != 0, first, end);
}

/* Figures: bytes allocated and reserved after an event. */
NT_PAGE_EXPORT(bytes_after) void page_bytes_after(int32_t event)
{
    const size_t state = (size_t)(event + 1);
    nt_page_figures[0] = (double)nt_strip_bytes(nt_page_now->strip, false, state);
    nt_page_figures[1] = (double)nt_strip_bytes(nt_page_now->strip, true, state);
}

/* Rules that there may be: the core's, and what the page was told of blocks. */
enum { RULES_MOST = 64 };

/* Answer 0: bytes and allocations by nt_rule, one after the other, after an event. */
NT_PAGE_EXPORT(rule_sums) void page_rule_sums(int32_t event)
{
    static nt_category_sum sums[RULES_MOST];
    static double out[2 * RULES_MOST];
    nt_categories_sum(nt_page_now->timeline, nt_page_now->rules.data, event, sums,
                      RULES_MOST);
    for (int rule = 0; rule < RULES_MOST; rule++) {
        out[2 * rule] = (double)sums[rule].bytes;
        out[2 * rule + 1] = sums[rule].count;
    }
    nt_page_answers[0] = (nt_page_column){out, 2 * RULES_MOST, NT_PAGE_F64};
}

/* Answer 0: six numbers of 32 bits a holder, as nt_holder has them. */
NT_PAGE_EXPORT(holders) int32_t page_holders(int32_t event)
{
    nt_page *page = nt_page_now;
    nt_timeline_holders_free(page->timeline, page->holders, page->holder_count);
    page->holders = NULL;
    page->holder_count = 0;
    NT_TRY(nt_timeline_holders(page->timeline, event, NT_BY_STACK, &page->holders,
                               &page->holder_count, &nt_page_err));
    nt_page_answers[0] = (nt_page_column){
        page->holders, (uint32_t)(page->holder_count * 6), NT_PAGE_U32};
    return NT_OK;
}

/* Numbers of a group of segments, as the page reads them: fragmentPool in core.js. */
enum { GROUP_NUMBERS = 16 };

static void
ask_put_group(const nt_fragment_group *g, double *out)
{
    const double numbers[GROUP_NUMBERS] = {
        (double)g->pool.first,
        (double)g->pool.second,
        (double)g->stream,
        g->kind,
        g->has_expandable,
        g->segments,
        g->blocks,
        g->holes,
        (double)g->reserved,
        (double)g->allocated,
        (double)g->active,
        (double)g->requested,
        (double)g->pending,
        (double)g->reclaimable,
        (double)g->largest_hole,
        (double)g->largest_request,
    };
    memcpy(out, numbers, sizeof numbers);
}

/* The layout after an event, whose columns are layout.* and block.*; NULL is the
 * snapshot's own end. Answer 0 has GROUP_NUMBERS for each pool and stream. */
NT_PAGE_EXPORT(layout) int32_t page_layout(int32_t event)
{
    nt_page *page = nt_page_now;
    nt_fragment_free(page->fragment);
    page->fragment = NULL;
    nt_timeline_layout_free(page->timeline, page->layout);
    page->layout = NULL;
    NT_TRY(nt_timeline_layout(page->timeline, event, &page->layout, &nt_page_err));
    NT_TRY(nt_fragment_new(&nt_page_memory, page->layout,
                           nt_snapshot_settings(page->snapshot), -1, &page->fragment,
                           &nt_page_err));
    size_t count;
    const nt_fragment_group *groups = nt_fragment_groups(page->fragment, &count);
    nt_page_room *room = &nt_page_rooms[NT_ROOM_GROUPS];
    NT_TRY(nt_page_reserve(room, (count * GROUP_NUMBERS + 1) * sizeof(double)));
    for (size_t i = 0; i < count; i++) {
        ask_put_group(&groups[i], (double *)room->data + i * GROUP_NUMBERS);
    }
    nt_page_answers[0] =
        (nt_page_column){room->data, (uint32_t)(count * GROUP_NUMBERS), NT_PAGE_F64};
    return NT_OK;
}

static nt_status
ask_keep_passes(nt_page *page, const nt_passes *passes)
{
    size_t count;
    const size_t events = nt_timeline_event_count(page->timeline);
    const nt_span *spans = nt_passes_backward(passes, &count);
    NT_TRY(nt_page_reserve(&page->spans, count * sizeof *spans + 1));
    if (events != 0) {
        memcpy(page->roles.data, nt_passes_roles(passes), events);
    }
    if (count != 0) {
        memcpy(page->spans.data, spans, count * sizeof *spans);
    }
    page->span_count = count;
    return NT_OK;
}

/* What each allocation was for, what each event's stack was doing, and where backward
 * passes begin and end: the columns `rules`, `roles` and `passes`, from what each frame
 * says (16 bits a frame). */
NT_PAGE_EXPORT(categories)
int32_t
page_categories(const uint16_t *frames, uint32_t count)
{
    nt_page *page = nt_page_now;
    const size_t rows = nt_timeline_allocations(page->timeline)->count;
    const size_t events = nt_timeline_event_count(page->timeline);
    NT_TRY(nt_page_reserve(&page->rules, rows + 1));
    NT_TRY(nt_page_reserve(&page->roles, events + 1));
    nt_passes *passes = NULL;
    NT_TRY(nt_passes_new(&nt_page_memory, page->timeline, frames, count, &passes,
                         &nt_page_err));
    nt_status status = ask_keep_passes(page, passes);
    if (status == NT_OK) {
        status = nt_categories_decide(&nt_page_memory, passes, page->rules.data,
                                      &nt_page_err);
    }
    nt_passes_free(passes);
    return status;
}

/* The role of a stack, from what its frames say, innermost first. */
NT_PAGE_EXPORT(role) uint32_t page_role(const uint16_t *frames, uint32_t count)
{
    return (uint32_t)nt_role_of(frames, count);
}

/* Whether the file is the host's pinned memory by itself, as neutracer saves it. */
static bool
ask_is_pinned(const nt_setting *rows, size_t count)
{
    const uint32_t key = nt_strings_find(nt_snapshot_strings(nt_page_now->snapshot),
                                         "pinned", strlen("pinned"));
    bool found = false;
    for (size_t i = 0; key != NT_NONE && i < count; i++) {
        found |= rows[i].key == key && rows[i].parent == NT_NONE &&
                 rows[i].kind == NT_SETTING_BOOL && rows[i].integer != 0;
    }
    return found;
}

/* The settings in force, in PyTorch's syntax; NULL where there is no memory. Figures
 * are their length, whether the native backend runs, whether sizes are exact, whether
 * the file states any settings, and whether it is pinned memory. */
NT_PAGE_EXPORT(settings) const char *page_settings(void)
{
    const nt_settings *settings = nt_snapshot_settings(nt_page_now->snapshot);
    const size_t length = nt_settings_format(settings, NULL, 0);
    nt_page_figures[0] = (double)length;
    nt_page_figures[1] = settings->native_backend;
    nt_page_figures[2] = settings->exact_sizes;
    size_t stated;
    const nt_setting *rows = nt_snapshot_setting_rows(nt_page_now->snapshot, &stated);
    nt_page_figures[3] = stated != 0;
    nt_page_figures[4] = ask_is_pinned(rows, stated);
    nt_page_room *room = &nt_page_rooms[NT_ROOM_SETTINGS];
    if (nt_page_reserve(room, length + 1) != NT_OK) {
        return NULL;
    }
    (void)nt_settings_format(settings, room->data, length + 1);
    return room->data;
}

/* ---- pictures -------------------------------------------------------------------- */

/* The axes, the map of addresses, and the strip of the timeline above it. */

/* Codes of pixels of the map; what is above is BAND_FIRST + the band of the block. */
enum { PIXEL_NEVER, PIXEL_FREE, PIXEL_BAND_FIRST };

/* Makes the axes: their ends are the figures 0 and 1. */
NT_PAGE_EXPORT(axes) int32_t page_axes(uint32_t by_time, uint32_t raw_addresses)
{
    nt_page *page = nt_page_now;
    nt_raster_free(page->raster);
    page->raster = NULL;
    const nt_raster_options options = {.by_time = by_time != 0,
                                       .raw_addresses = raw_addresses != 0};
    /* The strip first: the raster takes the room that it gives back. */
    if (page->strip == NULL) {
        NT_TRY(
            nt_strip_new(&nt_page_memory, page->timeline, &page->strip, &nt_page_err));
    }
    NT_TRY(nt_raster_new(&nt_page_memory, page->timeline, &options, &page->raster,
                         &nt_page_err));
    nt_page_figures[0] = (double)nt_raster_width(page->raster);
    nt_page_figures[1] = (double)nt_raster_height(page->raster);
    return NT_OK;
}

/* Room for a band of each row, which the page fills before it calls `bands`; NULL where
 * there is no memory. */
NT_PAGE_EXPORT(codes) uint8_t *page_codes(void)
{
    const size_t rows = nt_timeline_allocations(nt_page_now->timeline)->count;
    if (nt_page_reserve(&nt_page_now->codes, rows + 1) != NT_OK) {
        return NULL;
    }
    return nt_page_now->codes.data;
}

NT_PAGE_EXPORT(bands) int32_t page_bands(uint32_t count)
{
    nt_page *page = nt_page_now;
    page->bands = 0;
    NT_TRY(nt_strip_set_bands(page->strip, page->codes.data, count, &nt_page_err));
    page->bands = count;
    return NT_OK;
}

/* Whether axes and bands are there: there was no memory for them otherwise. */
static nt_status
draw_is_ready(void)
{
    if (nt_page_now->raster == NULL || nt_page_now->bands == 0) {
        return nt_fail(&nt_page_err, NT_ARGUMENT, NT_NO_OFFSET,
                       "there are no axes and bands to draw with");
    }
    return NT_OK;
}

static nt_raster_view
draw_view(double x_first, double x_end, double y_first, double y_end, uint32_t width,
          uint32_t height)
{
    return (nt_raster_view){
        .x_first = (uint64_t)x_first,
        .x_end = (uint64_t)x_end,
        .y_first = (uint64_t)y_first,
        .y_end = (uint64_t)y_end,
        .width = width,
        .height = height,
    };
}

/* Of what a pixel has seen reserved, the share that was in blocks, as 0 to 255. */
static uint8_t
draw_fullness(double used, double reserved)
{
    const double share = reserved > 0 ? used / reserved : 1;
    return (uint8_t)(255 * (share < 1 ? share : 1) + 0.5);
}

/* Draws the map of a view: answer 0 has a code for each pixel, from the top row down;
 * answer 1 the row of the largest block that it has seen, and answer 2 how full it was,
 * both from the bottom row up. */
NT_PAGE_EXPORT(map)
int32_t
page_map(double x_first, double x_end, double y_first, double y_end, uint32_t width,
         uint32_t height)
{
    NT_TRY(draw_is_ready());
    const size_t pixels = (size_t)width * height;
    nt_page_room *row_room = &nt_page_rooms[NT_ROOM_ROWS];
    nt_page_room *standing_room = &nt_page_rooms[NT_ROOM_STANDING];
    nt_page_room *pixel_room = &nt_page_rooms[NT_ROOM_PIXELS];
    nt_page_room *share_room = &nt_page_rooms[NT_ROOM_SHARES];
    nt_page_room *full_room = &nt_page_rooms[NT_ROOM_FULL];
    NT_TRY(nt_page_reserve(row_room, pixels * sizeof(uint32_t)));
    NT_TRY(nt_page_reserve(standing_room, pixels));
    NT_TRY(nt_page_reserve(pixel_room, pixels));
    NT_TRY(nt_page_reserve(share_room, 2 * pixels * sizeof(double)));
    NT_TRY(nt_page_reserve(full_room, pixels));
    const nt_raster_view view =
        draw_view(x_first, x_end, y_first, y_end, width, height);
    double *used = share_room->data;
    const nt_raster_planes planes = {.standing = standing_room->data,
                                     .row = row_room->data,
                                     .used = used,
                                     .reserved = used + pixels};
    NT_TRY(nt_raster_draw(nt_page_now->raster, &view, &planes, &nt_page_err));
    const uint8_t *codes = nt_page_now->codes.data;
    uint8_t *out = pixel_room->data;
    for (uint32_t y = 0; y < height; y++) {
        const uint32_t *rows = planes.row + (size_t)(height - 1 - y) * width;
        const uint8_t *standing = planes.standing + (size_t)(height - 1 - y) * width;
        for (uint32_t x = 0; x < width; x++) {
            *out++ = rows[x] != NT_NONE ? (uint8_t)(PIXEL_BAND_FIRST + codes[rows[x]])
                     : standing[x] != 0 ? PIXEL_FREE
                                        : PIXEL_NEVER;
        }
    }
    uint8_t *full = full_room->data;
    for (size_t i = 0; i < pixels; i++) {
        full[i] = draw_fullness(used[i], planes.reserved[i]);
    }
    nt_page_answers[0] =
        (nt_page_column){pixel_room->data, (uint32_t)pixels, NT_PAGE_U8};
    nt_page_answers[1] =
        (nt_page_column){row_room->data, (uint32_t)pixels, NT_PAGE_U32};
    nt_page_answers[2] = (nt_page_column){full, (uint32_t)pixels, NT_PAGE_U8};
    return NT_OK;
}

/* Draws the strip: answers 0 to 3 are event, allocated, reserved and bands, of which
 * there are as many as were set. */
NT_PAGE_EXPORT(strip)
int32_t
page_strip(double first, double end, uint32_t width, uint32_t bands)
{
    NT_TRY(draw_is_ready());
    if (bands != nt_page_now->bands) {
        return nt_fail(&nt_page_err, NT_ARGUMENT, NT_NO_OFFSET,
                       "the strip has %u bands", (unsigned)nt_page_now->bands);
    }
    const size_t wide = width;
    nt_page_room *room = &nt_page_rooms[NT_ROOM_COLUMNS];
    NT_TRY(nt_page_reserve(
        room, wide * (sizeof(uint64_t) * (2 + bands) + sizeof(int32_t)) + 1));
    uint64_t *values = room->data;
    nt_strip_columns columns = {
        .allocated = values, .reserved = values + wide, .bands = values + 2 * wide};
    columns.event = (int32_t *)(columns.bands + wide * bands);
    size_t states;
    const nt_strip_view view = {
        .positions = nt_raster_states(nt_page_now->raster, &states),
        .first = (uint64_t)first,
        .end = (uint64_t)end,
        .width = width,
    };
    NT_TRY(nt_strip_draw(nt_page_now->strip, &view, &columns, &nt_page_err));
    nt_page_answers[0] = (nt_page_column){columns.event, width, NT_PAGE_I32};
    nt_page_answers[1] = (nt_page_column){columns.allocated, width, NT_PAGE_U64};
    nt_page_answers[2] = (nt_page_column){columns.reserved, width, NT_PAGE_U64};
    nt_page_answers[3] = (nt_page_column){columns.bands, width * bands, NT_PAGE_U64};
    return NT_OK;
}
