/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_sampler_state.h"

double
nt_sampler_ratio(const nt_reading *reading)
{
    const uint64_t reserved = reading->figure[NT_FIGURE_RESERVED];
    const uint64_t allocated = reading->figure[NT_FIGURE_ALLOCATED];
    return reserved <= allocated ? 0.0
                                 : (double)(reserved - allocated) / (double)reserved;
}

/* A figure that is 0 while it is not known is no extreme. */
static void
history_stretch(nt_sample_row *row, size_t figure, uint64_t low, uint64_t high)
{
    const bool is_first =
        figure == NT_FIGURE_DEVICE_USED ? row->high[figure] == 0 : row->readings == 0;
    if (figure == NT_FIGURE_DEVICE_USED && high == 0) {
        return;
    }
    row->low[figure] = is_first || low < row->low[figure] ? low : row->low[figure];
    row->high[figure] = high > row->high[figure] ? high : row->high[figure];
}

/* `b` follows `a`, which becomes both. Of a mark that stands for phases the first is
 * kept, of others the last. */
static void
history_join(nt_sample_row *a, const nt_sample_row *b, bool is_phases)
{
    a->marks += b->marks;
    if (!is_phases) {
        a->mark = b->mark;
    }
    if (b->readings == 0) {
        return;
    }
    for (size_t i = 0; i < NT_FIGURES_BOUNDED; i++) {
        history_stretch(a, i, b->low[i], b->high[i]);
    }
    for (size_t i = 0; i < NT_FIGURES; i++) {
        a->last[i] = b->last[i];
    }
    a->begin_us = a->begin_us == 0 ? b->begin_us : a->begin_us;
    a->end_us = b->end_us;
    a->readings += b->readings;
    a->ratio_sum += b->ratio_sum;
    a->ratio_high = b->ratio_high > a->ratio_high ? b->ratio_high : a->ratio_high;
}

/* A new last row; the room is even, so that no row is left without a neighbour. */
static nt_sample_row *
history_open(nt_sampler_history *h, uint64_t mark, uint64_t time_us)
{
    if (h->count == h->room) {
        for (size_t i = 0; i < h->room / 2; i++) {
            h->rows[i] = h->rows[2 * i];
            history_join(&h->rows[i], &h->rows[2 * i + 1], h->is_phases);
        }
        h->count = h->room / 2;
        h->span *= 2;
    }
    nt_sample_row *row = &h->rows[h->count++];
    *row = (nt_sample_row){.begin_us = time_us, .end_us = time_us, .mark = mark};
    return row;
}

void
nt_sampler_history_begin(nt_sampler_history *h, uint64_t mark, uint64_t time_us)
{
    nt_sample_row *row = h->count == 0 ? NULL : &h->rows[h->count - 1];
    if (row == NULL || row->marks >= h->span) {
        row = history_open(h, mark, time_us);
    }
    row->marks++;
}

void
nt_sampler_history_add(nt_sampler_history *h, const nt_reading *reading, uint64_t used,
                       uint64_t mark, uint64_t time_us)
{
    const double ratio = nt_sampler_ratio(reading);
    nt_sample_row one = {
        .begin_us = time_us,
        .end_us = time_us,
        .mark = mark,
        .readings = 1,
        .ratio_sum = ratio,
        .ratio_high = ratio,
    };
    for (size_t i = 0; i < NT_FIGURES; i++) {
        one.last[i] = i == NT_FIGURE_DEVICE_USED ? used : reading->figure[i];
    }
    for (size_t i = 0; i < NT_FIGURES_BOUNDED; i++) {
        one.low[i] = one.high[i] = one.last[i];
    }
    history_stretch(&one, NT_FIGURE_ALLOCATED, one.last[NT_FIGURE_ALLOCATED],
                    reading->peak_allocated);
    history_stretch(&one, NT_FIGURE_RESERVED, one.last[NT_FIGURE_RESERVED],
                    reading->peak_reserved);
    if (h->is_phases && h->count == 0) {
        nt_sampler_history_begin(h, mark, time_us);
    }
    nt_sample_row *row = h->count == 0 ? NULL : &h->rows[h->count - 1];
    if (row == NULL || (!h->is_phases && row->readings >= h->span)) {
        row = history_open(h, mark, time_us);
    }
    history_join(row, &one, h->is_phases);
}
