/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_desk.h"

#include <string.h>

static nt_status
desk_take(void *ctx, const nt_allocator_need *need, uint64_t *address, nt_error *err)
{
    nt_desk *desk = ctx;
    (void)err;
    if (desk->fixed_next < desk->fixed_count) {
        *address = desk->fixed[desk->fixed_next++];
        return NT_OK;
    }
    *address = desk->spare;
    desk->spare += need->size;
    return NT_OK;
}

static void
desk_tell(void *ctx, nt_action action, uint32_t lane, uint64_t address, uint64_t size,
          uint32_t tag)
{
    nt_desk *desk = ctx;
    (void)lane;
    if (desk->deed_count < NT_DESK_DEEDS) {
        desk->deeds[desk->deed_count++] = (nt_desk_deed){action, address, size, tag};
    }
}

void
nt_desk_open_with(nt_desk *desk, nt_test *t, const char *settings,
                  nt_allocator_options options)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    memset(desk, 0, sizeof *desk);
    desk->test = t;
    desk->spare = UINT64_C(1) << 40;
    nt_hostile_init(&desk->hostile, t);
    (void)NT_CHECK_OK(
        nt_settings_parse(settings, strlen(settings), &options.settings, &err), &err);
    options.places.take = desk_take;
    options.places.ctx = desk;
    options.observer.tell = desk_tell;
    options.observer.ctx = desk;
    (void)NT_CHECK_OK(
        nt_allocator_new(&desk->hostile.alloc, &options, &desk->model, &err), &err);
    desk->lane = nt_desk_lane(desk, NT_DEFAULT_POOL, 0);
}

void
nt_desk_open(nt_desk *desk, nt_test *t, const char *settings, uint64_t limit)
{
    const nt_allocator_options options = {
        .device_total = 256 * 1024 * MIB,
        .limit = limit,
    };
    nt_desk_open_with(desk, t, settings, options);
}

static void
desk_check(nt_desk *desk)
{
    nt_test *t = desk->test;
    NT_CHECK_STR(nt_allocator_check(desk->model), NULL);
}

void
nt_desk_close(nt_desk *desk)
{
    nt_test *t = desk->test;
    desk_check(desk);
    nt_allocator_free(desk->model);
    NT_CHECK_NO_LEAK(&desk->hostile);
}

uint32_t
nt_desk_malloc_on(nt_desk *desk, uint32_t lane, uint64_t nbytes)
{
    nt_test *t = desk->test;
    uint32_t block = NT_NONE;
    (void)NT_CHECK_OK(nt_allocator_malloc(desk->model, lane, nbytes, 7, &block, NULL),
                      NULL);
    desk_check(desk);
    return block;
}

uint32_t
nt_desk_malloc(nt_desk *desk, uint64_t nbytes)
{
    return nt_desk_malloc_on(desk, desk->lane, nbytes);
}

void
nt_desk_free(nt_desk *desk, uint32_t block)
{
    nt_test *t = desk->test;
    (void)NT_CHECK_OK(nt_allocator_give(desk->model, block, NULL), NULL);
    desk_check(desk);
}

void
nt_desk_free_later(nt_desk *desk, uint32_t block)
{
    nt_allocator_give_later(desk->model, block);
    desk_check(desk);
}

void
nt_desk_complete(nt_desk *desk, uint32_t block)
{
    nt_test *t = desk->test;
    (void)NT_CHECK_OK(nt_allocator_complete(desk->model, block, NULL), NULL);
    desk_check(desk);
}

void
nt_desk_empty_cache(nt_desk *desk)
{
    nt_test *t = desk->test;
    (void)NT_CHECK_OK(nt_allocator_empty_cache(desk->model, NULL), NULL);
    desk_check(desk);
}

uint32_t
nt_desk_lane(nt_desk *desk, uint32_t pool, uint64_t stream)
{
    nt_test *t = desk->test;
    uint32_t lane = NT_NONE;
    (void)NT_CHECK_OK(nt_allocator_add_lane(desk->model, pool, stream, &lane, NULL),
                      NULL);
    return lane;
}

uint32_t
nt_desk_pool(nt_desk *desk, unsigned flags)
{
    nt_test *t = desk->test;
    uint32_t pool = NT_NONE;
    (void)NT_CHECK_OK(nt_allocator_add_pool(desk->model, flags, &pool, NULL), NULL);
    return pool;
}

uint64_t
nt_desk_address(const nt_desk *desk, uint32_t block)
{
    return nt_allocator_address(desk->model, block);
}

uint64_t
nt_desk_size(const nt_desk *desk, uint32_t block)
{
    return nt_allocator_size(desk->model, block);
}

uint64_t
nt_desk_reserved(const nt_desk *desk)
{
    return nt_desk_stats(desk)->bytes[NT_METRIC_RESERVED];
}

const nt_allocator_stats *
nt_desk_stats(const nt_desk *desk)
{
    return nt_allocator_get_stats(desk->model);
}

size_t
nt_desk_count(const nt_desk *desk, nt_action action)
{
    size_t count = 0;
    for (size_t i = 0; i < desk->deed_count; i++) {
        count += desk->deeds[i].action == action;
    }
    return count;
}

uint64_t
nt_desk_sum(const nt_desk *desk, nt_action action)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < desk->deed_count; i++) {
        sum += desk->deeds[i].action == action ? desk->deeds[i].size : 0;
    }
    return sum;
}
