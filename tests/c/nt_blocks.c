/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_blocks.h"

nt_blocks
nt_blocks_new(void)
{
    return (nt_blocks){.alloc = nt_alloc_system()};
}

void
nt_blocks_clear(nt_blocks *l)
{
    nt_layout_clear(&l->layout, &l->alloc, l->segment_capacity, l->block_capacity);
}

void
nt_blocks_segment(nt_test *t, nt_blocks *l, nt_segment segment)
{
    l->end = segment.address;
    NT_CHECK_OK(nt_layout_add_segment(&l->layout, &l->alloc, &l->segment_capacity,
                                      &segment, NULL),
                NULL);
}

void
nt_blocks_add(nt_test *t, nt_blocks *l, nt_block_state state, uint64_t size)
{
    const nt_block block = {
        .address = l->end,
        .size = size,
        .requested_size = size - 1,
        .state = (uint8_t)state,
    };
    NT_CHECK_OK(
        nt_layout_add_block(&l->layout, &l->alloc, &l->block_capacity, &block, NULL),
        NULL);
    l->end += size;
    l->layout.segments.total_size[l->layout.segments.count - 1] += size;
}

nt_fragment *
nt_blocks_fragment(nt_test *t, const nt_layout *layout, const nt_settings *settings,
                   int32_t device)
{
    const nt_settings usual = nt_settings_default();
    const nt_alloc alloc = nt_alloc_system();
    nt_fragment *fragment = NULL;
    nt_error err = {0};
    NT_CHECK_OK(nt_fragment_new(&alloc, layout, settings != NULL ? settings : &usual,
                                device, &fragment, &err),
                &err);
    return fragment;
}

uint64_t
nt_blocks_reclaimable(const nt_fragment *fragment)
{
    size_t count = 0;
    uint64_t total = 0;
    const nt_fragment_group *groups = nt_fragment_groups(fragment, &count);
    for (size_t i = 0; i < count; i++) {
        total += groups[i].reclaimable;
    }
    return total;
}
