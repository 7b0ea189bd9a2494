/* SPDX-License-Identifier: Apache-2.0 */
#include "fragmentation/nt_fragment.h"

#include <string.h>

#include "base/nt_map.h"
#include "base/nt_sort.h"
#include "trace/nt_rounding.h"

/* A free block as the allocator looks for it. */
typedef struct fragment_place {
    uint64_t size;
    uint64_t stream;
    nt_pool_id pool;
    int32_t device;
    uint8_t kind;
} fragment_place;

struct nt_fragment {
    nt_alloc alloc;
    nt_settings settings;
    nt_hole *holes;
    size_t hole_count, hole_capacity;
    nt_fragment_group *groups;
    size_t group_count, group_capacity;
    nt_fragment_segment *segments;
    size_t segment_count, segment_capacity;
    fragment_place *places; /* of the holes, in the order they were found in */
    size_t place_count, place_capacity;
};

/* Two holes or groups of the same size stay in the order they were found in. */
static nt_status
fragment_rank(const nt_alloc *alloc, void *rows, size_t count, size_t element,
              nt_sort_item *order, nt_error *err)
{
    if (count == 0) {
        return NT_OK;
    }
    char *copy;
    NT_TRY(nt_take(alloc, (void **)&copy, count * element, err));
    memcpy(copy, rows, count * element);
    nt_sort(order, count);
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)rows + i * element, copy + order[i].value * element, element);
    }
    nt_release(alloc, copy, count * element);
    return NT_OK;
}

static uint64_t
fragment_group_hash(const nt_fragment *f, const nt_fragment_group *g)
{
    /* The object's own address takes part, so that no file can be made whose groups all
     * meet in one place. */
    uint64_t hash = nt_mix64((uint64_t)(uintptr_t)f ^ g->stream);
    hash = nt_mix64(hash ^ g->pool.first);
    hash = nt_mix64(hash ^ g->pool.second);
    return nt_mix64(hash ^ ((uint64_t)(uint32_t)g->device << 8 | g->kind));
}

static bool
fragment_group_is(const nt_fragment_group *a, const nt_fragment_group *b)
{
    return a->device == b->device && a->stream == b->stream && a->kind == b->kind &&
           a->pool.first == b->pool.first && a->pool.second == b->pool.second;
}

/* The group that a segment belongs to, made when it is the first of it. `known` maps
 * hashes to groups; of two with one hash the later one lies under the next number. */
static nt_status
fragment_group_of(nt_fragment *f, nt_map *known, const nt_segment_columns *s,
                  uint32_t row, uint32_t *out, nt_error *err)
{
    const nt_fragment_group group = {
        .device = s->device[row],
        .pool = {s->pool_first[row], s->pool_second[row]},
        .stream = s->stream[row],
        .kind = s->kind[row],
    };
    uint64_t key = fragment_group_hash(f, &group);
    for (;; key++) {
        const uint32_t found = nt_map_find(known, key);
        if (found == NT_NONE) {
            break;
        }
        if (fragment_group_is(&f->groups[found], &group)) {
            *out = found;
            return NT_OK;
        }
    }
    NT_TRY(NT_GROW(&f->alloc, f->groups, f->group_capacity, f->group_count + 1, err));
    NT_TRY(nt_map_set(known, key, (uint32_t)f->group_count, err));
    f->groups[f->group_count] = group;
    *out = (uint32_t)f->group_count++;
    return NT_OK;
}

/* The whole pages in a free range of an expandable segment, in bytes. They are counted
 * from where the segment begins, which is on a page's border itself. */
static uint64_t
fragment_whole_pages(uint64_t offset, uint64_t size, uint64_t page)
{
    const uint64_t head = (page - offset % page) % page;
    return size < head ? 0 : (size - head) / page * page;
}

/* What empty_cache() gives back of a segment. It first waits for the blocks that are
 * pending and frees them, so that they are one with the free blocks next to them. Then
 * an ordinary segment goes as a whole or not at all, an expandable one page by page. */
static uint64_t
fragment_reclaimable(const nt_fragment *f, const nt_layout *layout, uint32_t segment)
{
    const nt_segment_columns *s = &layout->segments;
    const nt_block_columns *b = &layout->blocks;
    if (s->pool_first[segment] != 0 || s->pool_second[segment] != 0) {
        return 0;
    }
    const uint64_t page = nt_page_size(&f->settings, s->kind[segment] == NT_POOL_SMALL);
    const uint32_t first = s->block_first[segment];
    const uint32_t end = first + s->block_count[segment];
    uint64_t total = 0;
    for (uint32_t block = first; block < end; block++) {
        const uint32_t run = block;
        uint64_t size = 0;
        while (block < end && b->state[block] != NT_BLOCK_ACTIVE_ALLOCATED) {
            size += b->size[block++];
        }
        if (s->is_expandable[segment]) {
            total +=
                fragment_whole_pages(b->address[run] - s->address[segment], size, page);
        } else if (run == first && block == end) {
            total = size;
        }
    }
    return total;
}

static nt_status
fragment_add_hole(nt_fragment *f, const nt_hole *hole, uint32_t group, nt_error *err)
{
    NT_TRY(NT_GROW(&f->alloc, f->holes, f->hole_capacity, f->hole_count + 1, err));
    NT_TRY(NT_GROW(&f->alloc, f->places, f->place_capacity, f->place_count + 1, err));
    const nt_fragment_group *g = &f->groups[group];
    f->places[f->place_count++] =
        (fragment_place){hole->size, g->stream, g->pool, g->device, g->kind};
    f->holes[f->hole_count++] = *hole;
    return NT_OK;
}

static void
fragment_raise(uint64_t *largest, uint64_t size)
{
    *largest = size > *largest ? size : *largest;
}

/* Whether `left` and `right`, two rows of one segment, are an active block and a hole
 * that touch. In files that a tool has cut, rows that follow each other need not. */
static bool
fragment_touches(const nt_block_columns *b, uint32_t left, uint32_t right,
                 uint32_t neighbour)
{
    return b->state[neighbour] != NT_BLOCK_INACTIVE &&
           b->address[left] + b->size[left] == b->address[right];
}

static nt_hole
fragment_hole(const nt_layout *layout, uint32_t segment, uint32_t block)
{
    const nt_block_columns *b = &layout->blocks;
    const uint32_t first = layout->segments.block_first[segment];
    const uint32_t last = first + layout->segments.block_count[segment] - 1;
    const bool before =
        block > first && fragment_touches(b, block - 1, block, block - 1);
    const bool after = block < last && fragment_touches(b, block, block + 1, block + 1);
    return (nt_hole){
        .block = block,
        .segment = segment,
        .address = b->address[block],
        .size = b->size[block],
        .before = before ? block - 1 : NT_NONE,
        .after = after ? block + 1 : NT_NONE,
    };
}

static nt_status
fragment_count_hole(nt_fragment *f, const nt_layout *layout, uint32_t block,
                    uint32_t group, nt_fragment_segment *piece, nt_error *err)
{
    nt_fragment_group *g = &f->groups[group];
    const nt_hole hole = fragment_hole(layout, piece->segment, block);
    piece->holes++;
    piece->free_bytes += hole.size;
    fragment_raise(&piece->largest_hole, hole.size);
    g->holes++;
    fragment_raise(&g->largest_hole, hole.size);
    fragment_raise(&g->largest_request, nt_largest_request(&f->settings, hole.size,
                                                           g->kind == NT_POOL_SMALL));
    return fragment_add_hole(f, &hole, group, err);
}

static void
fragment_count_active(nt_fragment *f, const nt_layout *layout, uint32_t block,
                      uint32_t group, nt_fragment_segment *piece)
{
    const nt_block_columns *b = &layout->blocks;
    nt_fragment_group *g = &f->groups[group];
    g->active += b->size[block];
    g->requested += b->requested_size[block];
    if (b->state[block] == NT_BLOCK_ACTIVE_ALLOCATED) {
        g->allocated += b->size[block];
    } else {
        g->pending += b->size[block];
    }
    if (piece->pinned_by == NT_NONE || b->size[block] < b->size[piece->pinned_by]) {
        piece->pinned_by = block;
    }
}

static nt_status
fragment_count_segment(nt_fragment *f, nt_map *known, const nt_layout *layout,
                       uint32_t segment, nt_error *err)
{
    const nt_segment_columns *s = &layout->segments;
    nt_fragment_segment piece = {
        .segment = segment,
        .reclaimable = fragment_reclaimable(f, layout, segment),
        .pinned_by = NT_NONE,
    };
    uint32_t group;
    NT_TRY(fragment_group_of(f, known, s, segment, &group, err));
    f->groups[group].segments++;
    f->groups[group].blocks += s->block_count[segment];
    f->groups[group].reserved += s->total_size[segment];
    f->groups[group].reclaimable += piece.reclaimable;
    f->groups[group].has_expandable |= s->is_expandable[segment] != 0;
    for (uint32_t i = 0; i < s->block_count[segment]; i++) {
        const uint32_t block = s->block_first[segment] + i;
        if (layout->blocks.state[block] == NT_BLOCK_INACTIVE) {
            NT_TRY(fragment_count_hole(f, layout, block, group, &piece, err));
        } else {
            fragment_count_active(f, layout, block, group, &piece);
        }
    }
    NT_TRY(NT_GROW(&f->alloc, f->segments, f->segment_capacity, f->segment_count + 1,
                   err));
    f->segments[f->segment_count++] = piece;
    return NT_OK;
}

static nt_status
fragment_rank_all(nt_fragment *f, nt_error *err)
{
    const size_t most = f->hole_count > f->group_count ? f->hole_count : f->group_count;
    if (most == 0) {
        return NT_OK;
    }
    nt_sort_item *order;
    NT_TRY(NT_NEW(&f->alloc, order, most, err));
    for (uint32_t i = 0; i < f->hole_count; i++) {
        order[i] = (nt_sort_item){UINT64_MAX - f->holes[i].size, i};
    }
    nt_status status =
        fragment_rank(&f->alloc, f->holes, f->hole_count, sizeof(nt_hole), order, err);
    for (uint32_t i = 0; i < f->group_count; i++) {
        order[i] = (nt_sort_item){UINT64_MAX - f->groups[i].reserved, i};
    }
    if (status == NT_OK) {
        status = fragment_rank(&f->alloc, f->groups, f->group_count,
                               sizeof(nt_fragment_group), order, err);
    }
    NT_RELEASE(&f->alloc, order, most);
    return status;
}

static nt_status
fragment_fill(nt_fragment *f, const nt_layout *layout, int32_t device, nt_error *err)
{
    nt_map known;
    nt_map_init(&known, f->alloc);
    nt_status status = NT_OK;
    for (uint32_t i = 0; i < layout->segments.count && status == NT_OK; i++) {
        if (device < 0 || layout->segments.device[i] == device) {
            status = fragment_count_segment(f, &known, layout, i, err);
        }
    }
    nt_map_clear(&known);
    return status == NT_OK ? fragment_rank_all(f, err) : status;
}

nt_status
nt_fragment_new(const nt_alloc *alloc, const nt_layout *layout,
                const nt_settings *settings, int32_t device, nt_fragment **out,
                nt_error *err)
{
    nt_fragment *f;
    NT_TRY(NT_NEW(alloc, f, 1, err));
    *f = (nt_fragment){.alloc = *alloc, .settings = *settings};
    const nt_status status = fragment_fill(f, layout, device, err);
    if (status != NT_OK) {
        nt_fragment_free(f);
        return status;
    }
    *out = f;
    return NT_OK;
}

void
nt_fragment_free(nt_fragment *f)
{
    if (f == NULL) {
        return;
    }
    const nt_alloc alloc = f->alloc;
    NT_RELEASE(&alloc, f->places, f->place_capacity);
    NT_RELEASE(&alloc, f->holes, f->hole_capacity);
    NT_RELEASE(&alloc, f->groups, f->group_capacity);
    NT_RELEASE(&alloc, f->segments, f->segment_capacity);
    nt_release(&alloc, f, sizeof *f);
}

const nt_hole *
nt_fragment_holes(const nt_fragment *f, size_t *count)
{
    *count = f->hole_count;
    return f->holes;
}

const nt_fragment_group *
nt_fragment_groups(const nt_fragment *f, size_t *count)
{
    *count = f->group_count;
    return f->groups;
}

const nt_fragment_segment *
nt_fragment_segments(const nt_fragment *f, size_t *count)
{
    *count = f->segment_count;
    return f->segments;
}

bool
nt_fragment_fits(const nt_fragment *f, int32_t device, nt_pool_id pool, uint64_t stream,
                 uint64_t nbytes)
{
    if (nbytes == 0 || nbytes > NT_LARGEST_REQUEST) {
        return nbytes == 0; /* which needs no block */
    }
    const uint64_t rounded = nt_round_size(&f->settings, nbytes);
    const uint8_t kind = nt_is_small(rounded) ? NT_POOL_SMALL : NT_POOL_LARGE;
    /* The allocator looks at the smallest block that is large enough, and only at that
     * one: if the oversize rules keep it back, nothing else is tried. */
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < f->place_count; i++) {
        const fragment_place *p = &f->places[i];
        if (p->device == device && p->stream == stream && p->kind == kind &&
            p->pool.first == pool.first && p->pool.second == pool.second &&
            p->size >= rounded && p->size < best) {
            best = p->size;
        }
    }
    return best != UINT64_MAX && nt_may_use(&f->settings, best, rounded);
}

bool
nt_fragment_serves(const nt_fragment *f, uint64_t size, uint64_t below, bool small,
                   uint64_t *least, uint64_t *most)
{
    *least = nt_smallest_request(&f->settings, size, below, small);
    *most = *least == 0 ? 0 : nt_largest_request(&f->settings, size, small);
    return *least != 0;
}

/* Whether event `i` is the first half of a call that the next event ends. */
static bool
fragment_is_half(const uint8_t *action, size_t count, size_t i)
{
    const bool grows =
        action[i] == NT_ACTION_SEGMENT_ALLOC || action[i] == NT_ACTION_SEGMENT_MAP;
    return grows && i + 1 < count &&
           (action[i + 1] == NT_ACTION_ALLOC || action[i + 1] == NT_ACTION_SEGMENT_MAP);
}

nt_ratio_summary
nt_fragment_ratios(const uint64_t *allocated, const uint64_t *reserved,
                   const uint8_t *action, size_t count, double *out)
{
    nt_ratio_summary summary = {.largest_event = -1};
    double sum = 0;
    for (size_t i = count; i-- > 0;) {
        if (fragment_is_half(action, count, i)) {
            out[i] = out[i + 1];
        } else {
            const bool has_free = reserved[i] > allocated[i];
            const double unused = has_free ? (double)(reserved[i] - allocated[i]) : 0;
            out[i] = has_free ? unused / (double)reserved[i] : 0;
            if (summary.largest_event < 0 || out[i] >= summary.largest) {
                summary.largest = out[i];
                summary.largest_event = (int64_t)i;
            }
        }
        sum += out[i];
    }
    summary.mean = count == 0 ? 0 : sum / (double)count;
    summary.last = count == 0 ? 0 : out[count - 1];
    return summary;
}
