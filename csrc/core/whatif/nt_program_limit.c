/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory that the process got, and did not get, says of its limit. */
#include "whatif/nt_program_state.h"
#include "trace/nt_rounding.h"

void
nt_program_note_growth(program_maker *m, bool is_map)
{
    /* What is mapped was held against the limit before it was rounded up to pages. */
    const uint64_t page = is_map ? nt_page_size(nt_program_settings(m), false) : 0;
    nt_program_bounds *bounds = &m->p->face.bounds;
    if (m->reserved > page && m->reserved - page > bounds->low) {
        bounds->low = m->reserved - page;
    }
}

void
nt_program_note_failure(program_maker *m, uint64_t reserved, uint64_t segment,
                        uint64_t device_free)
{
    nt_program_bounds *bounds = &m->p->face.bounds;
    const bool is_device = device_free < segment;
    const uint64_t high = is_device ? reserved + device_free : reserved + segment - 1;
    if (high < bounds->high) {
        bounds->high = high;
    }
    if (device_free != NT_UNLIMITED) {
        /* Where the device had room even once, it is PyTorch that refuses. */
        m->has_refused |= !is_device;
        bounds->is_device = !m->has_refused;
    }
}

/* The segment that the allocator first asked for before it got memory with event `end`;
 * 0: not known. What is mapped does not tell: part of it was there. */
static uint64_t
program_attempt(const program_maker *m, size_t end)
{
    const uint8_t *action = m->events->action + m->first;
    const uint64_t *size = m->events->size + m->first;
    if (action[end] == NT_ACTION_SEGMENT_ALLOC) {
        return size[end];
    }
    while (end < m->count && action[end] == NT_ACTION_SEGMENT_MAP) {
        end++;
    }
    if (end == m->count || action[end] != NT_ACTION_ALLOC) {
        return 0;
    }
    const nt_settings *settings = nt_program_settings(m);
    return nt_segment_size(settings, nt_round_size(settings, size[end]));
}

void
nt_program_note_shortage(program_maker *m, size_t first, size_t end)
{
    const uint64_t *size = m->events->size + m->first;
    const double threshold = nt_program_settings(m)->garbage_collection_threshold;
    const uint64_t attempt = program_attempt(m, end);
    if (attempt == 0) {
        return;
    }
    if (threshold <= 0 ||
        m->events->action[m->first + first] == NT_ACTION_SEGMENT_UNMAP) {
        nt_program_note_failure(m, m->reserved, attempt, NT_UNLIMITED);
        return;
    }
    for (size_t i = first; i < end; i++) {
        if (size[i] <= NT_SMALL_BUFFER) {
            return;
        }
    }
    /* Garbage is collected only above the threshold. One that is met with any limit
     * says nothing; up to 2^63 a double can be made a whole number. */
    const double least = (double)m->reserved / threshold;
    if (least >= 0x1p63) {
        return;
    }
    uint64_t most = (uint64_t)least;
    while (most > 0 && (uint64_t)(threshold * (double)most) >= m->reserved) {
        most--;
    }
    nt_program_bounds *bounds = &m->p->face.bounds;
    /* Garbage is collected under a limit of PyTorch's only. */
    m->has_refused = true;
    bounds->is_device = false;
    if (most < bounds->high) {
        bounds->high = most;
    }
}
