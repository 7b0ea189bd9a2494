/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: after any pushes, interned stacks and texts, and allocations and frees, a
 * ring, its tables and its origins say what went in, whatever found no room. The tables
 * are small ones, so that an input fills them. A line is found in any line table.
 *
 * An input is a list of commands: a byte that chooses, and its arguments.
 */
#include <string.h>

#include "base/nt_ring_tables.h"
#include "nt_fuzz.h"
#include "trace/nt_live.h"

#define ENTRIES 8u
#define STACKS 8
#define IDS 24
#define FRAMES 12
#define CODES 6
#define TEXTS 8
#define STORE 256
#define SLOTS 16
#define ORIGINS 12
#define MOST_DEPTH 4

/* Addresses that commands name. */
#define ADDRESSES 32

typedef struct commands {
    const uint8_t *data;
    size_t left;
} commands;

/* A ring whose memory is static, and what it should know. */
typedef struct world {
    nt_ring ring;
    nt_ring_tables tables;
    _Alignas(64) nt_ring_entry entries[ENTRIES];
    nt_ring_stack stacks[STACKS];
    uint32_t ids[IDS];
    nt_ring_frame_row frames[FRAMES];
    nt_ring_code_row codes[CODES];
    nt_ring_piece texts[TEXTS];
    uint8_t store[STORE];
    uint32_t stack_slots[SLOTS], frame_slots[2 * SLOTS], code_slots[SLOTS];
    uint32_t text_slots[SLOTS];
    nt_ring_origin origins[SLOTS];
    uint64_t made[ADDRESSES]; /* event + 1 of a block in use, 0: free */
    uint32_t under[ADDRESSES];
    nt_ring_frame pushed[STACKS][MOST_DEPTH]; /* by stack id */
    size_t depth[STACKS];
} world;

static world w;

static uint8_t
take(commands *c)
{
    if (c->left == 0) {
        return 0;
    }
    c->left--;
    return *c->data++;
}

static nt_ring_slots
slots(uint32_t *items, size_t count)
{
    memset(items, 0xff, count * sizeof *items);
    return (nt_ring_slots){items, count - 1};
}

static void
begin(void)
{
    memset(w.origins, 0, sizeof w.origins);
    memset(w.made, 0, sizeof w.made);
    w.tables = (nt_ring_tables){
        .stacks = w.stacks,
        .stack_slots = slots(w.stack_slots, SLOTS),
        .stack_most = STACKS,
        .ids = w.ids,
        .id_most = IDS,
        .frames = w.frames,
        .frame_slots = slots(w.frame_slots, 2 * SLOTS),
        .frame_most = FRAMES,
        .codes = w.codes,
        .code_slots = slots(w.code_slots, SLOTS),
        .code_most = CODES,
        .texts = w.texts,
        .text_slots = slots(w.text_slots, SLOTS),
        .text_most = TEXTS,
        .store = w.store,
        .store_most = STORE,
    };
    w.ring = (nt_ring){
        .entries = w.entries,
        .mask = ENTRIES - 1,
        .index = {w.stacks, w.stack_slots, SLOTS - 1},
        .origins = {.slots = w.origins, .mask = SLOTS - 1, .most = ORIGINS},
        .tables = &w.tables,
        .late = 1,
    };
    NT_FUZZ_CHECK(nt_ring_add_text(&w.ring, "", 0) == 0);
}

static nt_ring_entry
entry_of(uint64_t i)
{
    return (nt_ring_entry){.ticks = i,
                           .addr = ~i,
                           .size = i * 3,
                           .stream = i ^ 5,
                           .pool_first = i << 40,
                           .pool_second = i * 7,
                           .stack = (uint32_t)i,
                           .metadata = (uint32_t)~i,
                           .action = (uint8_t)i,
                           .flags = (uint8_t)(i >> 3)};
}

static void
push(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const nt_ring_entry entry = entry_of(nt_ring_head(&w.ring));
        nt_ring_push(&w.ring, &entry);
    }
}

/* What is read is whole, and is all that the ring still has. */
static void
read_back(size_t count)
{
    nt_ring_entry out[ENTRIES];
    const uint64_t head = nt_ring_head(&w.ring);
    const uint64_t from = head < count ? 0 : head - count;
    const uint64_t first = nt_ring_read(&w.ring, from, head, out);
    const uint64_t oldest = head < ENTRIES ? 0 : head - (ENTRIES - 1);
    NT_FUZZ_CHECK(first == (oldest > from ? oldest : from));
    for (uint64_t i = first; i < head; i++) {
        const nt_ring_entry entry = entry_of(i);
        NT_FUZZ_CHECK(memcmp(&entry, &out[i - from], sizeof entry) == 0);
    }
}

/* Code objects by number: each has its name's length, width and lines from it. */
static int
describe(uint64_t code, nt_ring_code *out)
{
    static const uint8_t bytes[64] = "forward backward step optimizer loss scale model";
    if (code % 11 == 10) {
        return -1;
    }
    *out = (nt_ring_code){
        .name = {bytes, (uint32_t)(code % 7), 1 + (uint32_t)(code % 2)},
        .filename = {bytes + code % 5, (uint32_t)(code % 9), 1},
        .lines = bytes,
        .line_bytes = (uint32_t)(code % 33),
        .first_line = (int32_t)code,
        .format = NT_RING_LINES_311,
    };
    return 0;
}

static void
check_stack(uint32_t stack)
{
    size_t count;
    const uint32_t *frames = nt_ring_stack_frames(&w.ring, stack, &count);
    NT_FUZZ_CHECK(count == w.depth[stack]);
    for (size_t i = 0; i < count; i++) {
        nt_ring_code found, described;
        const nt_ring_frame *truth = &w.pushed[stack][i];
        NT_FUZZ_CHECK(nt_ring_frame_lasti(&w.ring, frames[i], &found) == truth->lasti);
        NT_FUZZ_CHECK(describe(truth->code, &described) == 0);
        NT_FUZZ_CHECK(found.first_line == described.first_line);
        NT_FUZZ_CHECK(found.name.length == described.name.length &&
                      memcmp(found.name.data, described.name.data,
                             (size_t)found.name.length * found.name.width) == 0);
        NT_FUZZ_CHECK(found.filename.length == described.filename.length &&
                      memcmp(found.filename.data, described.filename.data,
                             found.filename.length) == 0);
        NT_FUZZ_CHECK(found.line_bytes == described.line_bytes &&
                      memcmp(found.lines, described.lines, found.line_bytes) == 0);
    }
}

static void
add_stack(commands *c)
{
    nt_ring_frame frames[MOST_DEPTH];
    const size_t count = take(c) % (MOST_DEPTH + 1u);
    uint64_t print[2];
    for (size_t i = 0; i < count; i++) {
        const uint8_t what = take(c);
        frames[i] = (nt_ring_frame){
            .code = what % 16u, .version = what / 16u % 2u, .lasti = what / 32u};
    }
    nt_ring_fingerprint(frames, count, print);
    const uint32_t known = nt_ring_find_stack(&w.ring, print);
    if (known != NT_RING_NONE) {
        NT_FUZZ_CHECK(known < w.tables.stack_count && w.depth[known] == count);
        return;
    }
    const uint32_t before = w.tables.stack_count;
    const uint32_t id = nt_ring_add_stack(&w.ring, frames, count, print, describe);
    NT_FUZZ_CHECK(id == before || id == NT_RING_NONE);
    if (id != NT_RING_NONE) {
        memcpy(w.pushed[id], frames, count * sizeof *frames);
        w.depth[id] = count;
        NT_FUZZ_CHECK(nt_ring_find_stack(&w.ring, print) == id);
    }
}

static void
add_text(commands *c)
{
    size_t length = take(c) % 64u;
    length = length < c->left ? length : c->left;
    const char *text = (const char *)c->data;
    const uint32_t id = nt_ring_add_text(&w.ring, text, length);
    c->data += length;
    c->left -= length;
    if (id != NT_RING_NONE) {
        size_t kept;
        const char *found = nt_ring_text_get(&w.ring, id, &kept);
        NT_FUZZ_CHECK(kept == length && memcmp(found, text, length) == 0);
        NT_FUZZ_CHECK(nt_ring_add_text(&w.ring, text, length) == id);
    }
}

static void
change_origin(commands *c)
{
    const uint8_t what = take(c);
    const uint32_t number = what % ADDRESSES;
    const uint64_t addr = (uint64_t)(number + 1) << 9;
    const uint64_t event = nt_ring_head(&w.ring);
    if (what >= 128) {
        nt_ring_origins_drop(&w.ring.origins, addr);
        w.made[number] = 0;
        return;
    }
    const uint64_t lost = w.ring.origins.lost;
    nt_ring_origins_set(&w.ring.origins, addr, event, what);
    if (w.ring.origins.lost == lost) {
        w.made[number] = event + 1;
        w.under[number] = what;
    } else {
        NT_FUZZ_CHECK(w.ring.origins.count == ORIGINS && w.made[number] == 0);
    }
}

static void
check_origins(void)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < ADDRESSES; i++) {
        const uint64_t addr = (uint64_t)(i + 1) << 9;
        const uint32_t found = nt_ring_origins_find(&w.ring.origins, addr, UINT64_MAX);
        count += w.made[i] != 0;
        NT_FUZZ_CHECK(found == (w.made[i] != 0 ? w.under[i] : UINT32_MAX));
        NT_FUZZ_CHECK(w.made[i] == 0 ||
                      nt_ring_origins_find(&w.ring.origins, addr, w.made[i] - 1) ==
                          UINT32_MAX);
    }
    NT_FUZZ_CHECK(w.ring.origins.count == count && w.ring.origins.changes % 2 == 0);
}

static void
find_line(commands *c)
{
    const nt_ring_code code = {
        .lines = c->data,
        .line_bytes = (uint32_t)c->left,
        .first_line = (int32_t)(c->left * 0x01010101u),
        .format = take(c) % 2 == 0 ? NT_RING_LINES_310 : NT_RING_LINES_311,
    };
    (void)nt_live_line(&code, take(c));
    (void)nt_live_line(&code, UINT32_MAX);
}

static void
run(commands *c)
{
    switch (take(c) % 8) {
    case 0:
    case 1: push(take(c) % 20u); break;
    case 2: read_back(take(c) % ENTRIES); break;
    case 3: add_stack(c); break;
    case 4: add_text(c); break;
    case 5:
    case 6: change_origin(c); break;
    default:
        if (take(c) % 4 == 0) {
            find_line(c);
        } else {
            nt_ring_restart(&w.ring, 0);
            memset(w.made, 0, sizeof w.made);
            NT_FUZZ_CHECK(nt_ring_start(&w.ring) == nt_ring_head(&w.ring));
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    commands c = {data, size};
    begin();
    while (c.left != 0) {
        run(&c);
    }
    read_back(ENTRIES - 1);
    check_origins();
    for (uint32_t stack = 0; stack < w.tables.stack_count; stack++) {
        check_stack(stack);
    }
    return 0;
}
