/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nt_ring.h"

#include <stdbool.h>
#include <string.h>

#include "base/nt_base.h"
#include "base/nt_ring_tables.h"

/* A training script shows some thousand functions and some ten thousand stacks; code
 * objects take some 500 bytes of the store. A ring with frames has 11 MiB of these
 * tables. */
#define TABLES_CODES 8192
#define TABLES_FRAMES 32768
#define TABLES_STACKS 65536
#define TABLES_IDS (TABLES_STACKS * 16)
#define TABLES_TEXTS 4096
#define TABLES_STORE (4u << 20)
#define TABLES_SMALL_STORE (64u << 10)

_Static_assert(TABLES_STACKS <= 1 << NT_RING_ORIGIN_STACK_BITS,
               "an origin has room for every stack's id");

/* Where arrays lie in one piece of memory: counted first, then handed out. */
typedef struct ring_plan {
    uint8_t *base; /* NULL while counting */
    uint64_t used;
    int failed; /* it would not fit into a size_t */
} ring_plan;

/* The place of `count` elements; NULL while counting. */
static void *
ring_plan_take(ring_plan *plan, uint64_t count, uint64_t element)
{
    const uint64_t line = 64;
    const uint64_t first = (plan->used + line - 1) & ~(line - 1);
    /* No array has more than 2^35 elements of 64 bytes, so nothing wraps here. */
    plan->used = first + count * element;
    plan->failed |= plan->used > SIZE_MAX / 2;
    return plan->base == NULL ? NULL : plan->base + first;
}

static void
tables_place_slots(nt_ring_slots *slots, ring_plan *plan, uint64_t most)
{
    uint64_t count = 2;
    while (count < 2 * most) {
        count <<= 1;
    }
    slots->items = ring_plan_take(plan, count, sizeof(uint32_t));
    slots->mask = count - 1;
    if (slots->items != NULL) {
        memset(slots->items, 0xff, (size_t)count * sizeof(uint32_t));
    }
}

/* Takes the arrays of `t`, and fills the slots once there is memory. */
static void
ring_tables_place(nt_ring_tables *t, ring_plan *plan, int frames)
{
    t->text_most = TABLES_TEXTS;
    t->store_most = frames ? TABLES_STORE : TABLES_SMALL_STORE;
    t->texts = ring_plan_take(plan, t->text_most, sizeof(nt_ring_piece));
    t->store = ring_plan_take(plan, t->store_most, 1);
    tables_place_slots(&t->text_slots, plan, t->text_most);
    if (!frames) {
        return;
    }
    t->stack_most = TABLES_STACKS;
    t->id_most = TABLES_IDS;
    t->frame_most = TABLES_FRAMES;
    t->code_most = TABLES_CODES;
    t->stacks = ring_plan_take(plan, t->stack_most, sizeof(nt_ring_stack));
    t->ids = ring_plan_take(plan, t->id_most, sizeof(uint32_t));
    t->frames = ring_plan_take(plan, t->frame_most, sizeof(nt_ring_frame_row));
    t->codes = ring_plan_take(plan, t->code_most, sizeof(nt_ring_code_row));
    tables_place_slots(&t->stack_slots, plan, t->stack_most);
    tables_place_slots(&t->frame_slots, plan, t->frame_most);
    tables_place_slots(&t->code_slots, plan, t->code_most);
}

/* A copy of the bytes in the store; false when it is full. */
static bool
tables_keep(nt_ring_tables *t, const void *bytes, uint64_t size, uint32_t *first)
{
    if (size > t->store_most - t->store_used) {
        return false;
    }
    if (size != 0) {
        memcpy(t->store + t->store_used, bytes, (size_t)size);
    }
    *first = t->store_used;
    t->store_used += (uint32_t)size;
    return true;
}

/* Eight bytes at a time, so that a file name costs a dozen steps. */
static uint64_t
tables_hash(const uint8_t *bytes, uint64_t size, uint64_t seed)
{
    uint64_t hash = seed ^ size;
    while (size >= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        hash = nt_ring_scramble(hash ^ word);
        bytes += sizeof word;
        size -= sizeof word;
    }
    uint64_t rest = 0;
    for (uint64_t i = 0; i < size; i++) {
        rest = rest << 8 | bytes[i];
    }
    return nt_ring_scramble(hash ^ rest);
}

/* The row of equal characters in `texts`, added when they are new; NT_RING_NONE when
 * there is no room. */
static uint32_t
tables_intern(nt_ring_tables *t, const nt_ring_text *text)
{
    const uint64_t size = (uint64_t)text->length * text->width;
    uint64_t slot = tables_hash(text->data, size, text->width) & t->text_slots.mask;
    for (; t->text_slots.items[slot] != NT_RING_NONE;
         slot = (slot + 1) & t->text_slots.mask) {
        const nt_ring_piece *piece = &t->texts[t->text_slots.items[slot]];
        if (piece->length == text->length && piece->width == text->width &&
            (size == 0 || memcmp(t->store + piece->first, text->data, size) == 0)) {
            return t->text_slots.items[slot];
        }
    }
    nt_ring_piece piece = {.length = text->length, .width = text->width};
    if (t->text_count == t->text_most ||
        !tables_keep(t, text->data, size, &piece.first)) {
        return NT_RING_NONE;
    }
    const uint32_t row = t->text_count;
    t->texts[row] = piece;
    t->text_slots.items[slot] = row;
    __atomic_store_n(&t->text_count, row + 1, __ATOMIC_RELEASE);
    return row;
}

/* Fills a row from what `describe` tells; false when it fails or there is no room. */
static bool
tables_describe(nt_ring_tables *t, nt_ring_code_row *row, nt_ring_describe describe)
{
    nt_ring_code code = {0};
    if (describe(row->code, &code) != 0) {
        return false;
    }
    const uint32_t filename = tables_intern(t, &code.filename);
    if (filename == NT_RING_NONE) {
        return false;
    }
    row->filename = t->texts[filename];
    row->first_line = code.first_line;
    row->format = (uint32_t)code.format;
    row->name = (nt_ring_piece){.length = code.name.length, .width = code.name.width};
    row->lines = (nt_ring_piece){.length = code.line_bytes, .width = 1};
    return tables_keep(t, code.name.data, (uint64_t)code.name.length * code.name.width,
                       &row->name.first) &&
           tables_keep(t, code.lines, code.line_bytes, &row->lines.first);
}

static uint32_t
tables_add_code(nt_ring_tables *t, const nt_ring_frame *frame,
                nt_ring_describe describe)
{
    uint64_t slot = nt_ring_scramble(frame->code ^ nt_ring_scramble(frame->version)) &
                    t->code_slots.mask;
    for (; t->code_slots.items[slot] != NT_RING_NONE;
         slot = (slot + 1) & t->code_slots.mask) {
        const nt_ring_code_row *row = &t->codes[t->code_slots.items[slot]];
        if (row->code == frame->code && row->version == frame->version) {
            return t->code_slots.items[slot];
        }
    }
    nt_ring_code_row row = {.code = frame->code, .version = frame->version};
    if (t->code_count == t->code_most || !tables_describe(t, &row, describe)) {
        return NT_RING_NONE;
    }
    const uint32_t id = t->code_count;
    t->codes[id] = row;
    t->code_slots.items[slot] = id;
    __atomic_store_n(&t->code_count, id + 1, __ATOMIC_RELEASE);
    return id;
}

static uint32_t
tables_add_frame(nt_ring_tables *t, const nt_ring_frame *frame,
                 nt_ring_describe describe)
{
    const uint32_t code = tables_add_code(t, frame, describe);
    if (code == NT_RING_NONE) {
        return NT_RING_NONE;
    }
    const uint64_t key = (uint64_t)code << 32 | frame->lasti;
    uint64_t slot = nt_ring_scramble(key) & t->frame_slots.mask;
    for (; t->frame_slots.items[slot] != NT_RING_NONE;
         slot = (slot + 1) & t->frame_slots.mask) {
        const nt_ring_frame_row *row = &t->frames[t->frame_slots.items[slot]];
        if (row->code == code && row->lasti == frame->lasti) {
            return t->frame_slots.items[slot];
        }
    }
    if (t->frame_count == t->frame_most) {
        return NT_RING_NONE;
    }
    const uint32_t id = t->frame_count;
    t->frames[id] = (nt_ring_frame_row){code, frame->lasti};
    t->frame_slots.items[slot] = id;
    __atomic_store_n(&t->frame_count, id + 1, __ATOMIC_RELEASE);
    return id;
}

static uint32_t
tables_lose_stack(nt_ring_tables *t)
{
    __atomic_store_n(&t->lost_stacks, t->lost_stacks + 1, __ATOMIC_RELAXED);
    return NT_RING_NONE;
}

uint32_t
nt_ring_add_stack(nt_ring *ring, const nt_ring_frame *frames, size_t count,
                  const uint64_t print[2], nt_ring_describe describe)
{
    nt_ring_tables *t = ring->tables;
    if (ring->index.slots == NULL || count > NT_RING_FRAMES ||
        t->stack_count == t->stack_most || count > t->id_most - t->id_count) {
        return tables_lose_stack(t);
    }
    const uint32_t first = t->id_count;
    for (size_t i = 0; i < count; i++) {
        t->ids[first + i] = tables_add_frame(t, &frames[i], describe);
        if (t->ids[first + i] == NT_RING_NONE) {
            return tables_lose_stack(t);
        }
    }
    uint64_t slot = print[0] & t->stack_slots.mask;
    while (t->stack_slots.items[slot] != NT_RING_NONE) {
        slot = (slot + 1) & t->stack_slots.mask;
    }
    const uint32_t id = t->stack_count;
    t->stacks[id] = (nt_ring_stack){print[0], print[1], first, (uint32_t)count};
    t->id_count += (uint32_t)count;
    t->stack_slots.items[slot] = id;
    __atomic_store_n(&t->stack_count, id + 1, __ATOMIC_RELEASE);
    return id;
}

uint32_t
nt_ring_add_text(nt_ring *ring, const char *text, size_t length)
{
    nt_ring_tables *t = ring->tables;
    uint32_t id = NT_RING_NONE;
    if (length <= t->store_most) {
        const nt_ring_text piece = {text, (uint32_t)length, 1};
        id = tables_intern(t, &piece);
    }
    if (id == NT_RING_NONE) {
        __atomic_store_n(&t->lost_texts, t->lost_texts + 1, __ATOMIC_RELAXED);
    }
    return id;
}

void
nt_ring_count(const nt_ring *ring, nt_ring_counts *out)
{
    const nt_ring_tables *t = ring->tables;
    *out = (nt_ring_counts){
        .stacks = __atomic_load_n(&t->stack_count, __ATOMIC_ACQUIRE),
        .frames = __atomic_load_n(&t->frame_count, __ATOMIC_ACQUIRE),
        .codes = __atomic_load_n(&t->code_count, __ATOMIC_ACQUIRE),
        .texts = __atomic_load_n(&t->text_count, __ATOMIC_ACQUIRE),
        .lost_stacks = __atomic_load_n(&t->lost_stacks, __ATOMIC_RELAXED),
        .lost_texts = __atomic_load_n(&t->lost_texts, __ATOMIC_RELAXED),
        .lost_origins = __atomic_load_n(&ring->origins.lost, __ATOMIC_RELAXED),
    };
}

const uint32_t *
nt_ring_stack_frames(const nt_ring *ring, uint32_t stack, size_t *count)
{
    const nt_ring_stack *row = &ring->tables->stacks[stack];
    *count = row->count;
    return ring->tables->ids + row->first;
}

static nt_ring_text
tables_text(const nt_ring_tables *t, const nt_ring_piece *piece)
{
    return (nt_ring_text){t->store + piece->first, piece->length, piece->width};
}

uint32_t
nt_ring_frame_lasti(const nt_ring *ring, uint32_t frame, nt_ring_code *out)
{
    const nt_ring_tables *t = ring->tables;
    const nt_ring_code_row *row = &t->codes[t->frames[frame].code];
    *out = (nt_ring_code){
        .name = tables_text(t, &row->name),
        .filename = tables_text(t, &row->filename),
        .lines = t->store + row->lines.first,
        .line_bytes = row->lines.length,
        .first_line = row->first_line,
        .format = (nt_ring_lines)row->format,
    };
    return t->frames[frame].lasti;
}

const char *
nt_ring_text_get(const nt_ring *ring, uint32_t text, size_t *length)
{
    const nt_ring_piece *piece = &ring->tables->texts[text];
    *length = piece->length;
    return (const char *)ring->tables->store + piece->first;
}

/* Below this many events a ring is not worth its tables. */
#define RING_LEAST_EVENTS 64

/* Slots of the table of origins, 2 MiB, and how many of them are used at most. Programs
 * have some hundred to some ten thousand blocks in use. */
#define RING_ORIGIN_SLOTS (UINT64_C(1) << 17)
#define RING_ORIGINS (RING_ORIGIN_SLOTS / 4 * 3)

/* 2^34 events are a TiB. */
#define RING_MOST_EVENTS (UINT64_C(1) << 34)

_Static_assert(sizeof(nt_ring_entry) == NT_RING_WORDS * sizeof(uint64_t),
               "an entry is eight words");

/* The memory of a ring, its entries last: of these a system gives only what events have
 * come to. Returns the ring. */
static nt_ring *
ring_place(ring_plan *plan, uint64_t capacity, int frames)
{
    nt_ring *ring = ring_plan_take(plan, 1, sizeof(nt_ring));
    nt_ring_tables *tables = ring_plan_take(plan, 1, sizeof(nt_ring_tables));
    nt_ring_origin *origins =
        frames ? ring_plan_take(plan, RING_ORIGIN_SLOTS, sizeof(nt_ring_origin)) : NULL;
    nt_ring_tables counted = {0};
    ring_tables_place(tables == NULL ? &counted : tables, plan, frames);
    nt_ring_entry *entries = ring_plan_take(plan, capacity, sizeof(nt_ring_entry));
    if (ring == NULL) {
        return NULL;
    }
    ring->entries = entries;
    ring->mask = capacity - 1;
    ring->tables = tables;
    ring->late = 1;
    if (frames) {
        ring->index = (nt_ring_index){tables->stacks, tables->stack_slots.items,
                                      tables->stack_slots.mask};
        ring->origins = (nt_ring_origins){
            .slots = origins, .mask = RING_ORIGIN_SLOTS - 1, .most = RING_ORIGINS};
    }
    return ring;
}

nt_ring *
nt_ring_new(const struct nt_alloc *alloc, uint64_t events, int frames)
{
    if (events > RING_MOST_EVENTS) {
        return NULL;
    }
    events += events / 4;
    uint64_t capacity = RING_LEAST_EVENTS;
    while (capacity <= events) {
        capacity <<= 1;
    }
    ring_plan plan = {0};
    (void)ring_place(&plan, capacity, frames);
    /* A line more, since the allocator's blocks need not begin at one. */
    const uint64_t size = plan.used + 64;
    uint8_t *block = plan.failed ? NULL : nt_allocate(alloc, (size_t)size);
    if (block == NULL) {
        return NULL;
    }
    /* No entry is read before it was written. */
    memset(block, 0, (size_t)(size - capacity * sizeof(nt_ring_entry)));
    plan = (ring_plan){.base = block + (64 - ((uintptr_t)block & 63))};
    nt_ring *ring = ring_place(&plan, capacity, frames);
    ring->block = block;
    ring->size = size;
    ring->resize = alloc->resize;
    ring->resize_ctx = alloc->ctx;
    (void)nt_ring_add_text(ring, "", 0);
    return ring;
}

void
nt_ring_free(nt_ring *ring)
{
    if (ring != NULL) {
        const nt_alloc alloc = {.resize = ring->resize, .ctx = ring->resize_ctx};
        nt_release(&alloc, ring->block, (size_t)ring->size);
    }
}

void
nt_ring_restart(nt_ring *ring, int late)
{
    nt_ring_origins_clear(&ring->origins);
    __atomic_store_n(&ring->late, (uint32_t)(late != 0), __ATOMIC_RELAXED);
    __atomic_store_n(&ring->start, nt_ring_head(ring), __ATOMIC_RELEASE);
}

uint64_t
nt_ring_start(const nt_ring *ring)
{
    return __atomic_load_n(&ring->start, __ATOMIC_ACQUIRE);
}

int
nt_ring_is_late(const nt_ring *ring)
{
    return (int)__atomic_load_n(&ring->late, __ATOMIC_RELAXED);
}

uint64_t
nt_ring_room(const nt_ring *ring)
{
    return ring->mask;
}

/* The oldest event that nobody is writing over, with `head` events pushed. */
static uint64_t
ring_oldest(const nt_ring *ring, uint64_t head)
{
    return head <= ring->mask ? 0 : head - ring->mask;
}

static void
ring_copy(const nt_ring_entry *slot, nt_ring_entry *out)
{
    const uint64_t *words = (const uint64_t *)(const void *)slot;
    out->ticks = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
    out->addr = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
    out->size = __atomic_load_n(&words[2], __ATOMIC_ACQUIRE);
    out->stream = __atomic_load_n(&words[3], __ATOMIC_ACQUIRE);
    out->pool_first = __atomic_load_n(&words[4], __ATOMIC_ACQUIRE);
    out->pool_second = __atomic_load_n(&words[5], __ATOMIC_ACQUIRE);
    const uint64_t ids = __atomic_load_n(&words[6], __ATOMIC_ACQUIRE);
    const uint64_t kind = __atomic_load_n(&words[7], __ATOMIC_ACQUIRE);
    out->stack = (uint32_t)ids;
    out->metadata = (uint32_t)(ids >> 32);
    out->action = (uint8_t)kind;
    out->flags = (uint8_t)(kind >> 8);
    out->unused16 = 0;
    out->unused32 = 0;
}

uint64_t
nt_ring_read(const nt_ring *ring, uint64_t from, uint64_t until, nt_ring_entry *out)
{
    const uint64_t before = ring_oldest(ring, nt_ring_head(ring));
    uint64_t first = before > from ? before : from;
    for (uint64_t i = first; i < until; i++) {
        ring_copy(&ring->entries[i & ring->mask], &out[i - from]);
    }
    const uint64_t after = ring_oldest(ring, nt_ring_head(ring));
    first = after > first ? after : first;
    return first < until ? first : until;
}
