/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_layout.h"

#include "nt_test.h"

typedef struct layout_made {
    nt_layout layout;
    size_t segment_capacity, block_capacity;
} layout_made;

/* A segment of 2,048 bytes with three blocks, sound in every respect. */
static nt_status
layout_fill(layout_made *made, const nt_alloc *alloc)
{
    static const nt_segment segment = {
        .device = 1,
        .address = 4096,
        .total_size = 2048,
        .allocated_size = 512,
        .active_size = 1536,
        .requested_size = 1100,
        .kind = NT_POOL_SMALL,
    };
    static const nt_block blocks[] = {
        {4096, 512, 100, NT_BLOCK_ACTIVE_ALLOCATED, NT_NO_STACK},
        {4608, 1024, 1000, NT_BLOCK_ACTIVE_PENDING_FREE, NT_NO_STACK},
        {5632, 512, 77, NT_BLOCK_INACTIVE, NT_NO_STACK},
    };
    NT_TRY(nt_layout_add_segment(&made->layout, alloc, &made->segment_capacity,
                                 &segment, NULL));
    for (size_t i = 0; i < 3; i++) {
        NT_TRY(nt_layout_add_block(&made->layout, alloc, &made->block_capacity,
                                   &blocks[i], NULL));
    }
    return NT_OK;
}

static void
layout_clear(layout_made *made, const nt_alloc *alloc)
{
    nt_layout_clear(&made->layout, alloc, made->segment_capacity, made->block_capacity);
}

NT_TEST(figures_follow_pytorch_rules)
{
    const nt_alloc alloc = nt_alloc_system();
    layout_made made = {0};
    nt_pool_stats stats[NT_POOL_KIND_COUNT];
    NT_CHECK_OK(layout_fill(&made, &alloc), NULL);
    nt_layout_stats(&made.layout, 1, stats);
    const nt_pool_stats *small = &stats[NT_POOL_SMALL];
    NT_CHECK_UINT(small->segment, 1);
    NT_CHECK_UINT(small->allocation, 1);
    NT_CHECK_UINT(small->active, 2);
    NT_CHECK_UINT(small->inactive_split, 1);
    NT_CHECK_UINT(small->allocated_bytes, 512);
    NT_CHECK_UINT(small->active_bytes, 1536);
    NT_CHECK_UINT(small->requested_bytes, 1100);
    NT_CHECK_UINT(small->inactive_split_bytes, 512);
    NT_CHECK_UINT(small->reserved_bytes, 2048);
    made.layout.segments.is_expandable[0] = 1;
    nt_layout_stats(&made.layout, 1, stats);
    NT_CHECK_UINT(small->segment, 0);
    NT_CHECK_UINT(small->inactive_split, 0);
    nt_layout_stats(&made.layout, 0, stats);
    NT_CHECK_UINT(small->reserved_bytes, 0);
    layout_clear(&made, &alloc);
}

NT_TEST(broken_layouts_are_found)
{
    const nt_alloc alloc = nt_alloc_system();
    layout_made made = {0};
    NT_CHECK_OK(layout_fill(&made, &alloc), NULL);
    NT_CHECK_UINT(nt_layout_check(&made.layout), NT_NONE);
    uint64_t *const fields[] = {
        &made.layout.segments.total_size[0],  &made.layout.segments.allocated_size[0],
        &made.layout.segments.active_size[0], &made.layout.segments.requested_size[0],
        &made.layout.blocks.address[1],       &made.layout.blocks.size[2],
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *fields[i] += 512;
        NT_CHECK_UINT(nt_layout_check(&made.layout), 0);
        *fields[i] -= 512;
    }
    layout_clear(&made, &alloc);
}

NT_TEST(block_without_segment_is_refused)
{
    const nt_alloc alloc = nt_alloc_system();
    layout_made made = {0};
    const nt_block block = {.size = 512};
    NT_CHECK_STATUS(
        nt_layout_add_block(&made.layout, &alloc, &made.block_capacity, &block, NULL),
        NT_ARGUMENT, NULL);
    layout_clear(&made, &alloc);
}

static nt_status
layout_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    (void)ctx;
    layout_made made = {0};
    nt_status status = NT_OK;
    for (size_t i = 0; status == NT_OK && i < 10; i++) {
        status = layout_fill(&made, alloc);
    }
    layout_clear(&made, alloc);
    return status;
}

NT_TEST(layouts_survive_running_out_of_memory)
{
    nt_test_sweep(t, layout_body, NULL);
}

const nt_test_case nt_layout_tests[] = {
    NT_CASE(figures_follow_pytorch_rules),
    NT_CASE(broken_layouts_are_found),
    NT_CASE(block_without_segment_is_refused),
    NT_CASE(layouts_survive_running_out_of_memory),
    NT_CASES_END,
};
