/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the program. Apart from the other questions: nt_steps.h names the roles
 * of stacks itself. */
#include "nt_page.h"

#include <string.h>

#include "leak/nt_steps.h"

/* Answer 0: 1 for each stack whose role is needed. */
NT_PAGE_EXPORT(step_stacks) int32_t page_step_stacks(void)
{
    const nt_snapshot *snapshot = nt_page_now->snapshot;
    const size_t count = nt_stacks_count(nt_snapshot_stacks(snapshot));
    nt_page_room *room = &nt_page_rooms[NT_ROOM_MARKS];
    NT_TRY(nt_page_reserve(room, count + 1));
    memset(room->data, 0, count);
    (void)nt_steps_mark_stacks(
        snapshot, (size_t)nt_timeline_device(nt_page_now->timeline), room->data);
    nt_page_answers[0] = (nt_page_column){room->data, (uint32_t)count, NT_PAGE_U8};
    return NT_OK;
}

/* Finds the steps, the column `steps`, from a role for each stack. Figures: how, text,
 * frame (-1: none). */
NT_PAGE_EXPORT(find_steps) int32_t page_find_steps(const uint8_t *roles)
{
    nt_page *page = nt_page_now;
    nt_steps found;
    NT_TRY(nt_steps_find(&nt_page_memory, page->snapshot,
                         (size_t)nt_timeline_device(page->timeline), roles, &found,
                         &nt_page_err));
    nt_release(&nt_page_memory, page->step_edges,
               page->step_edges == NULL ? 0
                                        : (page->step_count + 1) * sizeof(uint32_t));
    /* The edges are the page's own from here on: they were made by its allocator. */
    page->step_edges = found.edges;
    page->step_count = found.count;
    nt_page_figures[0] = found.how;
    nt_page_figures[1] = found.text == NT_NONE ? -1 : (double)found.text;
    nt_page_figures[2] = found.frame == NT_NONE ? -1 : (double)found.frame;
    return NT_OK;
}
