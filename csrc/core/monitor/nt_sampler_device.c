/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/nt_sampler_device.h"

#include <math.h>

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

#define SAMPLER_SECOND_US UINT64_C(1000000)

/* After a failure the source is left alone so long, and each further time twice that.
 */
#define SAMPLER_FIRST_WAIT_US SAMPLER_SECOND_US
#define SAMPLER_LONGEST_WAIT_US (60 * SAMPLER_SECOND_US)

static uint64_t
alerts_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

bool
nt_sampler_queue_take(nt_sampler_queue *queue, nt_alert *out)
{
    if (queue->count == 0) {
        return false;
    }
    *out = queue->alerts[queue->first];
    queue->first = (queue->first + 1) % NT_SAMPLER_QUEUE;
    queue->count--;
    return true;
}

static void
alerts_push(nt_sampler_queue *queue, const nt_alert *alert)
{
    if (queue->count == NT_SAMPLER_QUEUE) {
        queue->first = (queue->first + 1) % NT_SAMPLER_QUEUE;
        queue->count--;
        queue->dropped++;
    }
    queue->alerts[(queue->first + queue->count) % NT_SAMPLER_QUEUE] = *alert;
    queue->count++;
}

static void
alerts_tell(nt_sampler_device *d, nt_sampler_queue *queue, nt_alert_kind kind,
            bool is_over, double value, double limit, uint64_t time_us)
{
    d->now.is_active[kind] = !is_over;
    if (!is_over) {
        d->now.raised[kind]++;
        d->raised_us[kind] = time_us;
    }
    const nt_alert alert = {
        .kind = kind,
        .device = d->now.device,
        .is_over = is_over,
        .time_us = time_us,
        .value = value,
        .limit = limit,
        .reading = d->now.reading,
        .device_used = d->now.device_used,
        .device_total = d->now.device_total,
        .device_cap = d->now.device_cap,
    };
    alerts_push(queue, &alert);
}

static void
alerts_apply(nt_sampler_device *d, const nt_sampler_options *options,
             nt_sampler_queue *queue, nt_alert_kind kind, double value,
             uint64_t time_us)
{
    const nt_alert_rule *rule = &options->rule[kind];
    if (d->now.is_active[kind]) {
        if (value < rule->clear) {
            d->since_us[kind] = 0;
            alerts_tell(d, queue, kind, true, value, rule->limit, time_us);
        }
        return;
    }
    /* A value that is not known is below every limit. */
    if (!(value >= rule->limit)) {
        d->since_us[kind] = 0;
        return;
    }
    d->since_us[kind] = d->since_us[kind] == 0 ? time_us : d->since_us[kind];
    const bool is_cool =
        d->raised_us[kind] == 0 || time_us - d->raised_us[kind] >= options->cooldown_us;
    if (is_cool && time_us - d->since_us[kind] >= rule->patience_us) {
        alerts_tell(d, queue, kind, false, value, rule->limit, time_us);
    }
}

/* ---- growth ---------------------------------------------------------------------- */

static uint64_t
growth_floor(const nt_sampler_growth *g, uint64_t first, size_t count)
{
    uint64_t floor = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        const uint64_t value = g->floors[(first + i) % NT_SAMPLER_SLOTS];
        floor = value < floor ? value : floor;
    }
    return floor;
}

/* The slot that was filled is whole: what it tells of growth, or NAN. */
static double
growth_close(nt_sampler_growth *g, uint64_t window_us)
{
    const size_t half = NT_SAMPLER_SLOTS / 2;
    g->floors[g->slot % NT_SAMPLER_SLOTS] = g->floor;
    g->known += g->known < NT_SAMPLER_SLOTS;
    if (g->known < NT_SAMPLER_SLOTS) {
        return (double)NAN;
    }
    const size_t oldest = (size_t)((g->slot + 1) % NT_SAMPLER_SLOTS);
    const uint64_t early = growth_floor(g, oldest, half);
    const uint64_t late = growth_floor(g, oldest + half, half);
    return ((double)late - (double)early) * 2 * (double)SAMPLER_SECOND_US /
           (double)window_us;
}

/* How fast the floor of allocated rises, into *out when a slot ends: the lowest of the
 * window's later half less the lowest of its earlier half. A saw-tooth that is no
 * longer than half of the window has no growth. */
static void
growth_add(nt_sampler_growth *g, uint64_t window_us, uint64_t allocated,
           uint64_t time_us, double *out)
{
    const uint64_t slot =
        time_us / alerts_larger(window_us / NT_SAMPLER_SLOTS, UINT64_C(1));
    if (g->has_begun && slot == g->slot) {
        g->floor = allocated < g->floor ? allocated : g->floor;
        return;
    }
    if (g->has_begun && slot == g->slot + 1) {
        *out = growth_close(g, window_us);
    } else {
        /* Nothing was read for a while: what was before does not count. */
        g->known = 0;
        *out = (double)NAN;
    }
    g->has_begun = true;
    g->slot = slot;
    g->floor = allocated;
}

/* ---- devices --------------------------------------------------------------------- */

void
nt_sampler_device_init(nt_sampler_device *d, int32_t device)
{
    const nt_sampler_history ticks = d->ticks, phases = d->phases;
    *d = (nt_sampler_device){
        .now = {.device = device, .growth = (double)NAN},
        .ticks = {.rows = ticks.rows, .room = ticks.room, .span = 1},
        .phases = {.rows = phases.rows,
                   .room = phases.room,
                   .span = 1,
                   .is_phases = true},
    };
}

static void
device_peaks(nt_sampler_state *now, uint64_t time_us)
{
    const nt_reading *r = &now->reading;
    const uint64_t allocated = r->figure[NT_FIGURE_ALLOCATED];
    uint64_t *peak = now->peak;
    if (allocated > peak[NT_FIGURE_ALLOCATED] || now->peak_us == 0) {
        now->peak_us = time_us;
    }
    /* The allocator's own peaks also know what was between two readings. */
    peak[NT_FIGURE_ALLOCATED] = alerts_larger(
        peak[NT_FIGURE_ALLOCATED], alerts_larger(allocated, r->peak_allocated));
    peak[NT_FIGURE_RESERVED] =
        alerts_larger(peak[NT_FIGURE_RESERVED],
                      alerts_larger(r->figure[NT_FIGURE_RESERVED], r->peak_reserved));
}

static double
device_used_share(const nt_sampler_state *now, uint64_t allocated)
{
    const double of_device =
        now->device_total == 0
            ? 0.0
            : (double)(now->non_torch + allocated) / (double)now->device_total;
    const double of_cap =
        now->device_cap == 0 ? 0.0 : (double)allocated / (double)now->device_cap;
    return of_cap > of_device ? of_cap : of_device;
}

void
nt_sampler_device_add(nt_sampler_device *d, const nt_sampler_options *options,
                      nt_sampler_queue *queue, const nt_reading *reading,
                      uint64_t time_us)
{
    nt_sampler_state *now = &d->now;
    const uint64_t allocated = reading->figure[NT_FIGURE_ALLOCATED];
    const uint64_t reserved = reading->figure[NT_FIGURE_RESERVED];
    now->reading = *reading;
    now->time_us = time_us;
    now->readings++;
    now->ratio = nt_sampler_ratio(reading);
    now->ratio_sum += now->ratio;
    now->ratio_high = now->ratio > now->ratio_high ? now->ratio : now->ratio_high;
    now->used_share = device_used_share(now, allocated);
    device_peaks(now, time_us);
    growth_add(&d->growth, options->growth_window_us, allocated, time_us, &now->growth);
    d->wait_us = 0;
    d->ask_at_us = 0;
    if (now->is_active[NT_ALERT_DEVICE_ERROR]) {
        alerts_tell(d, queue, NT_ALERT_DEVICE_ERROR, true, now->last_failure, 0.0,
                    time_us);
    }
    const bool is_much =
        reserved > allocated && reserved - allocated >= options->least_unused;
    alerts_apply(d, options, queue, NT_ALERT_THRESHOLD, now->used_share, time_us);
    alerts_apply(d, options, queue, NT_ALERT_GROWTH, now->growth, time_us);
    alerts_apply(d, options, queue, NT_ALERT_FRAGMENTATION, is_much ? now->ratio : 0.0,
                 time_us);
}

void
nt_sampler_device_memory(nt_sampler_device *d, uint64_t reserved,
                         const nt_sampler_memory *memory)
{
    nt_sampler_state *now = &d->now;
    const uint64_t used = memory->used;
    now->device_used = used;
    now->device_total = memory->total;
    now->device_cap = memory->cap;
    now->non_torch = used > reserved ? used - reserved : 0;
    now->peak[NT_FIGURE_DEVICE_USED] =
        alerts_larger(now->peak[NT_FIGURE_DEVICE_USED], used);
}

void
nt_sampler_device_failed(nt_sampler_device *d, nt_sampler_queue *queue, int answer,
                         uint64_t time_us)
{
    d->now.failures++;
    d->now.last_failure = answer;
    d->wait_us = d->wait_us == 0                            ? SAMPLER_FIRST_WAIT_US
                 : d->wait_us > SAMPLER_LONGEST_WAIT_US / 2 ? SAMPLER_LONGEST_WAIT_US
                                                            : 2 * d->wait_us;
    d->ask_at_us = time_us + d->wait_us;
    if (!d->now.is_active[NT_ALERT_DEVICE_ERROR]) {
        alerts_tell(d, queue, NT_ALERT_DEVICE_ERROR, false, answer, 0.0, time_us);
    }
}
