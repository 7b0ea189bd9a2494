/* SPDX-License-Identifier: Apache-2.0 */
/* The axes, the map of addresses, and the strip of the timeline above it. */
#include "nt_page.h"

#include <string.h>

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

/*
 * Draws the map of a view, from the top row down: answer 0 has a code for each pixel,
 * answer 1 the row of the largest block that it has seen, from the bottom row up.
 */
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
    NT_TRY(nt_page_reserve(row_room, pixels * sizeof(uint32_t)));
    NT_TRY(nt_page_reserve(standing_room, pixels));
    NT_TRY(nt_page_reserve(pixel_room, pixels));
    const nt_raster_view view =
        draw_view(x_first, x_end, y_first, y_end, width, height);
    const nt_raster_planes planes = {.standing = standing_room->data,
                                     .row = row_room->data};
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
    nt_page_answers[0] =
        (nt_page_column){pixel_room->data, (uint32_t)pixels, NT_PAGE_U8};
    nt_page_answers[1] =
        (nt_page_column){row_room->data, (uint32_t)pixels, NT_PAGE_U32};
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
