/* SPDX-License-Identifier: Apache-2.0 */
/* The whole picture in a byte a cell: the class of the largest block that it has seen.
 */
#include "analysis/nt_raster_state.h"

/* Four classes a doubling: 1 is a block of one byte. */
static uint8_t
paint_class(uint64_t size)
{
    /* 2^63 times the fourth root of two, its square and its third power. */
    static const uint64_t quarters[] = {10968499650544838656u, 13043817825332783104u,
                                        15511800964685064192u};
    unsigned power = 63;
    while (size >> 63 == 0) {
        size <<= 1;
        power--;
    }
    unsigned class = 4 * power + 1;
    for (size_t i = 0; i < sizeof quarters / sizeof *quarters; i++) {
        class += size >= quarters[i];
    }
    return (uint8_t)(class > UINT8_MAX ? UINT8_MAX : class);
}

/* Marks the cells that the block overlaps. */
static void
paint_item(const nt_raster *r, const nt_raster_item *item, const nt_raster_view *view,
           uint8_t *cells)
{
    nt_raster_rows rows;
    if (item->begin >= item->end || !nt_raster_rows_of(view, item, &rows)) {
        return;
    }
    const uint64_t from = r->positions[item->begin], to = r->positions[item->end];
    const uint64_t end = to > from ? to - 1 : from;
    const size_t left = (size_t)(from * view->width / view->x_end);
    const size_t right = (size_t)(end * view->width / view->x_end);
    const uint8_t class = paint_class(item->size);
    for (size_t at = rows.first; at <= rows.last; at++) {
        uint8_t *line = cells + at * view->width;
        for (size_t column = left; column <= right && column < view->width; column++) {
            line[column] = line[column] < class ? class : line[column];
        }
    }
}

nt_status
nt_raster_paint(const nt_raster *r, const uint32_t *skipped, size_t count,
                uint32_t width, uint32_t height, uint8_t *cells, nt_error *err)
{
    if (width == 0 || width > NT_RASTER_MOST_PIXELS || height == 0 ||
        height > NT_RASTER_MOST_PIXELS) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "a picture has 1 to %d pixels a side", NT_RASTER_MOST_PIXELS);
    }
    const nt_raster_view view = {
        .x_end = nt_raster_width(r),
        .y_end = r->height,
        .width = width,
        .height = height,
    };
    for (size_t i = 0; i < (size_t)width * height; i++) {
        cells[i] = 0;
    }
    size_t next = 0;
    for (size_t i = 0; i < r->block_count; i++) {
        const nt_raster_item *item = &r->items[i];
        while (next < count && skipped[next] < item->row) {
            next++;
        }
        if (next == count || skipped[next] != item->row) {
            paint_item(r, item, &view, cells);
        }
    }
    return NT_OK;
}
