/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "trace/nt_writer_parts.h"

/* The layouts are worked out here, so they have all of their keys. */
#define RANGES_KEYS                                                                    \
    (NT_HAS_BLOCK_ADDRESS | NT_HAS_BLOCK_REQUESTED | NT_HAS_SEGMENT_REQUESTED |        \
     NT_HAS_SEGMENT_POOL | NT_HAS_SEGMENT_EXPANDABLE | NT_HAS_BEFORE)

/* One range while it is written: the layouts in `part`, to be freed here. */
typedef struct range_layouts {
    nt_layout *layout, *before; /* or NULL */
} range_layouts;

static nt_status
ranges_make(const nt_writer_range *range, range_layouts *made, nt_writer_part *part,
            nt_error *err)
{
    const nt_timeline *t = range->timeline;
    const size_t count = nt_timeline_event_count(t);
    if (range->first > range->end || range->end > count || nt_timeline_device(t) < 0) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET,
                       "events %zu to %zu are not a range of the %zu events there are",
                       range->first, range->end, count);
    }
    NT_TRY(nt_timeline_layout(t, (int32_t)range->end - 1, &made->layout, err));
    NT_TRY(nt_timeline_layout(t, (int32_t)range->first - 1, &made->before, err));
    *part = (nt_writer_part){
        .layout = made->layout,
        .before = made->before,
        .device = (size_t)nt_timeline_device(t),
        .first = range->first,
        .end = range->end,
    };
    return NT_OK;
}

nt_status
nt_writer_save_ranges(const nt_alloc *alloc, const nt_writer_range *ranges,
                      size_t count, const nt_sink *sink, const nt_progress *progress,
                      nt_error *err)
{
    const nt_snapshot *snapshot = nt_timeline_snapshot(ranges[0].timeline);
    nt_writer_part *parts = nt_allocate(alloc, count * sizeof *parts);
    range_layouts *made = nt_allocate(alloc, count * sizeof *made);
    nt_status status = NT_OK;
    size_t begun = 0;
    if (parts == NULL || made == NULL) {
        status = nt_fail_nomem(err);
        goto done;
    }
    memset(made, 0, count * sizeof *made);
    for (; begun < count && status == NT_OK; begun++) {
        status = ranges_make(&ranges[begun], &made[begun], &parts[begun], err);
    }
    if (status == NT_OK) {
        status = nt_writer_save_parts(
            alloc, snapshot, nt_snapshot_keys(snapshot) | RANGES_KEYS,
            (nt_writer_parts){parts, count}, sink, progress, err);
    }
done:
    for (size_t i = 0; i < begun; i++) {
        nt_timeline_layout_free(ranges[i].timeline, made[i].layout);
        nt_timeline_layout_free(ranges[i].timeline, made[i].before);
    }
    nt_release(alloc, made, count * sizeof *made);
    nt_release(alloc, parts, count * sizeof *parts);
    return status;
}
