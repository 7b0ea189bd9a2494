/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: whatever file is dropped on the page, within whatever memory, each question
 * is answered or refused in words. What an answer points to can be read, codes are in
 * range, numbers are numbers; what the page saves is a snapshot, and all memory comes
 * back when the next file is read. The questions are asked as the page asks them: one
 * that needs another's answer only after it.
 */
#include <math.h>
#include <string.h>

#include "nt_fuzz.h"
#include "nt_fuzz_page.h"
#include "nt_page.h"
#include "trace/nt_pack.h"
#include "trace/nt_passes.h"

/* The file that is read, the choices that its bytes make, and what was saved. */
static const uint8_t *file_bytes;
static size_t file_size, file_at;
static uint64_t choice;
static double allowed;
static nt_fuzz_file saved;

/* A number below `bound`, which is at least 1. */
static uint64_t
choose(uint64_t bound)
{
    choice = nt_mix64(choice + 1);
    return (choice >> 11) % bound;
}

int32_t
page_read(void *buffer, uint32_t capacity)
{
    size_t count = file_size - file_at;
    count = count < capacity ? count : capacity;
    if (count > 1 && choose(2) == 0) {
        count = 1 + (size_t)choose(count);
    }
    memcpy(buffer, file_bytes + file_at, count);
    file_at += count;
    return (int32_t)count;
}

int32_t
page_write(const void *bytes, uint32_t count)
{
    return nt_fuzz_collect(&saved, bytes, count);
}

double
page_allowance(void)
{
    return allowed;
}

/* Whether a call was answered; the words of what was refused are there. */
static bool
is_fine(int32_t status)
{
    const nt_error *err = page_error();
    NT_FUZZ_CHECK(status == NT_OK || status == NT_NOMEM || status == NT_LIMIT ||
                  status == NT_ARGUMENT || status == NT_MALFORMED ||
                  status == NT_REFUSED);
    NT_FUZZ_CHECK(memchr(err->message, 0, sizeof err->message) != NULL);
    NT_FUZZ_CHECK(status == NT_OK || err->message[0] != 0);
    return status == NT_OK;
}

/* Reads each byte, so that AddressSanitizer sees it. */
static void
touch(const nt_page_column *column)
{
    static const size_t widths[] = {0, 1, 4, 4, 8, 8, 8};
    NT_FUZZ_CHECK(column->type >= NT_PAGE_U8 && column->type <= NT_PAGE_F64);
    const volatile uint8_t *bytes = column->data;
    for (size_t i = 0; i < column->count * widths[column->type]; i++) {
        (void)bytes[i];
    }
    if (column->type == NT_PAGE_F64) {
        const double *numbers = column->data;
        for (size_t i = 0; i < column->count; i++) {
            NT_FUZZ_CHECK(isfinite(numbers[i]));
        }
    }
}

static void
check_figures(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        NT_FUZZ_CHECK(isfinite(page_figures()[i]));
    }
}

static size_t
rows_of(const char *name)
{
    return page_column(name)->count;
}

static void
check_columns(void)
{
    /* clang-format off */
    static const char *const names[] = {
        "event.action", "event.addr", "event.size", "event.stream",
        "event.stack", "event.time_us", "event.device_free", "event.pool_first",
        "event.pool_second", "event.compile_context", "event.user_metadata",
        "alloc.address", "alloc.size", "alloc.requested_size", "alloc.stream",
        "alloc.alloc_event", "alloc.free_event", "alloc.completed_event",
        "alloc.stack", "segment.address", "segment.size", "segment.stream",
        "segment.pool_first", "segment.pool_second", "segment.kind",
        "segment.is_expandable", "segment.pool_known", "segment.alloc_event",
        "segment.free_event", "segment.stack", "layout.device",
        "layout.address", "layout.total_size", "layout.allocated_size",
        "layout.stream", "layout.pool_first", "layout.pool_second",
        "layout.kind", "layout.is_expandable", "layout.block_first",
        "layout.block_count", "block.address", "block.size",
        "block.requested_size", "block.state", "block.stack",
        "annotation.stage", "annotation.name", "annotation.device",
        "annotation.time_us", "stack.innermost", "stack.parent", "frame",
        "event.row", "axis.states", "axis.ranges", "rules", "roles", "passes", "steps",
        "no such column"};
    /* clang-format on */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        touch(page_column(names[i]));
    }
    const uint32_t *first = page_column("layout.block_first")->data;
    const uint32_t *count = page_column("layout.block_count")->data;
    const size_t blocks = rows_of("block.size");
    for (size_t i = 0; i < rows_of("layout.address"); i++) {
        NT_FUZZ_CHECK(first[i] <= blocks && count[i] <= blocks - first[i]);
    }
}

/* A text that is asked for has as many bytes as the first figure says. */
static void
check_text(const char *text)
{
    NT_FUZZ_CHECK(text != NULL);
    const nt_page_column bytes = {text, (uint32_t)page_figures()[0], NT_PAGE_U8};
    touch(&bytes);
}

static void
check_texts(void)
{
    (void)page_string(0);
    const uint32_t strings = (uint32_t)page_figures()[1];
    for (uint32_t i = 0; i < strings; i++) {
        check_text(page_string(i));
    }
    NT_FUZZ_CHECK(page_string(strings) == NULL && page_string(UINT32_MAX) == NULL);
    const uint8_t *codes = page_column("event.action")->data;
    for (size_t i = 0; i < rows_of("event.action"); i++) {
        check_text(page_action(codes[i]));
    }
    NT_FUZZ_CHECK(page_action(UINT32_MAX) == NULL);
    const char *settings = page_settings();
    if (settings != NULL) {
        check_text(settings);
    }
    const char *partial = page_partial();
    NT_FUZZ_CHECK(partial == NULL || strlen(partial) > 0);
}

/* What the page says of each frame: any bits. */
static bool
ask_categories(void)
{
    const uint32_t count = (uint32_t)rows_of("frame") / 4;
    uint16_t *said = page_allocate(count * 2 + 1);
    if (said == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        said[i] = (uint16_t)choose(1 << 16);
    }
    (void)page_role(said, count < 40 ? count : 40);
    const bool fine = is_fine(page_categories(said, count));
    page_give_back(said, count * 2 + 1);
    return fine;
}

static void
ask_steps(void)
{
    const uint32_t count = (uint32_t)rows_of("stack.innermost");
    if (!is_fine(page_step_stacks())) {
        return;
    }
    NT_FUZZ_CHECK(page_answer(0)->count == count);
    touch(page_answer(0));
    uint8_t *roles = page_allocate(count + 1);
    if (roles == NULL) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t said = (uint16_t)choose(1 << 16);
        roles[i] = (uint8_t)page_role(&said, 1);
    }
    if (is_fine(page_find_steps(roles))) {
        const uint32_t *edges = page_column("steps")->data;
        const size_t events = rows_of("event.action");
        for (size_t i = 0; i < rows_of("steps") && edges != NULL; i++) {
            NT_FUZZ_CHECK(edges[i] <= events && (i == 0 || edges[i - 1] <= edges[i]));
        }
    }
    page_give_back(roles, count + 1);
}

static void
ask_moment(int32_t event)
{
    page_rule_sums(event);
    touch(page_answer(0));
    if (is_fine(page_holders(event))) {
        touch(page_answer(0));
    }
    if (is_fine(page_layout(event))) {
        touch(page_answer(0));
        check_columns();
    }
}

/* What the strip knows of an event and of a stretch of events. */
static void
ask_strip(int32_t event, size_t states)
{
    page_bytes_after(event);
    check_figures(2);
    const uint32_t first = (uint32_t)choose(states);
    const uint32_t end = first + 1 + (uint32_t)choose(states - first);
    const uint32_t highest = page_highest((uint32_t)choose(2), first, end);
    NT_FUZZ_CHECK(highest >= first && highest < end);
}

static void
check_pixels(uint32_t width, uint32_t height, uint32_t bands)
{
    const nt_page_column *pixels = page_answer(0), *rows = page_answer(1);
    const size_t count = rows_of("alloc.size");
    NT_FUZZ_CHECK(pixels->count == width * height && rows->count == width * height);
    for (size_t i = 0; i < pixels->count; i++) {
        const uint32_t row = ((const uint32_t *)rows->data)[i];
        NT_FUZZ_CHECK(((const uint8_t *)pixels->data)[i] < 2 + bands);
        NT_FUZZ_CHECK(row == NT_NONE || row < count);
    }
}

/* Numbers of a view that may be anything, in proportion to the axis. */
static void
choose_range(double extent, double *first, double *end)
{
    *first = 0;
    *end = extent;
    if (choose(2) == 0) {
        *first = (double)choose((uint64_t)extent);
        *end = (double)choose((uint64_t)extent + 2);
    }
}

#define MOST_SIDE 40

static void
ask_pictures(uint32_t by_time, uint32_t raw, uint32_t bands)
{
    double x[2], y[2];
    if (!is_fine(page_axes(by_time, raw))) {
        return;
    }
    const double width = page_figures()[0], height = page_figures()[1];
    uint8_t *codes = page_codes();
    if (codes == NULL) {
        return;
    }
    for (size_t i = 0; i < rows_of("alloc.size"); i++) {
        codes[i] = (uint8_t)choose(bands);
    }
    (void)is_fine(page_bands(bands));
    choose_range(width, &x[0], &x[1]);
    choose_range(height, &y[0], &y[1]);
    const uint32_t columns = (uint32_t)choose(MOST_SIDE),
                   lines = (uint32_t)choose(MOST_SIDE);
    const uint32_t asked = choose(8) == 0 ? bands + 1 : bands;
    if (is_fine(page_strip(x[0], x[1], columns, asked))) {
        for (uint32_t i = 0; i < 4; i++) {
            touch(page_answer(i));
        }
    }
    if (is_fine(page_map(x[0], x[1], y[0], y[1], columns, lines))) {
        check_pixels(columns, lines, bands);
    }
    const int32_t events = (int32_t)rows_of("event.action");
    ask_strip((int32_t)choose((uint64_t)events + 1) - 1, (size_t)events + 1);
}

/* Settings as a user may type them: of the list, or some of the file's bytes. */
static uint32_t
choose_settings(const char **out)
{
    static const char *const texts[] = {
        "",
        "expandable_segments:True",
        "max_split_size_mb:21",
        "garbage_collection_threshold:0.5,roundup_power2_divisions:8",
        "backend:cudaMallocAsync",
        "expandable_segments:True,large_segment_size_mb:64"};
    const size_t number = (size_t)choose(sizeof texts / sizeof *texts + 1);
    if (number < sizeof texts / sizeof *texts) {
        *out = texts[number];
        return (uint32_t)strlen(texts[number]);
    }
    *out = (const char *)file_bytes;
    return (uint32_t)choose(file_size + 1);
}

static void
ask_what_if(void)
{
    if (!is_fine(page_program()) && !is_fine(page_program())) {
        return;
    }
    check_figures(18);
    for (int i = 0; i < 2; i++) {
        const char *settings;
        const uint32_t length = choose_settings(&settings);
        const double capacity = (double)(choose(3) * choose((uint64_t)1 << 36));
        const uint32_t is_share = (uint32_t)choose(2);
        if (is_fine(page_what_if(settings, length, capacity, is_share))) {
            check_figures(12);
        }
        if (is_fine(page_what_if_most(settings, length, capacity, is_share,
                                      (uint32_t)choose(UINT32_MAX)))) {
            check_figures(1);
        }
        if (is_fine(page_what_if_trace(settings, length, capacity, is_share))) {
            page_use(NT_PAGE_WHAT_IF);
            ask_pictures(0, 0, 2);
            check_columns();
            page_use(NT_PAGE_FILE);
        }
    }
}

static void
ask_device(int32_t device)
{
    if (!is_fine(page_replay(device))) {
        return;
    }
    page_facts();
    check_figures(20);
    if (!ask_categories()) {
        return;
    }
    check_columns();
    const uint64_t events = rows_of("event.action");
    ask_steps();
    ask_pictures(0, (uint32_t)choose(2), 1 + (uint32_t)choose(6));
    ask_moment((int32_t)choose(events + 1) - 1);
    ask_pictures(1, (uint32_t)choose(2), 1 + (uint32_t)choose(6));
    ask_what_if();
}

static void
check_saved(void)
{
    if (is_fine(page_save())) {
        nt_snapshot *again = nt_fuzz_load(saved.bytes, saved.size);
        NT_FUZZ_CHECK(again != NULL);
        nt_snapshot_free(again);
    }
    nt_fuzz_clear(&saved);
}

/* The file as a page of its own carries it: packed, and perhaps damaged. */
static bool
pack_file(nt_fuzz_file *packed)
{
    const nt_alloc alloc = nt_fuzz_alloc();
    nt_snapshot *s = nt_fuzz_load(file_bytes, file_size);
    if (s == NULL || nt_fuzz_rows(s) > NT_FUZZ_MOST_ROWS) {
        nt_snapshot_free(s);
        return false;
    }
    const nt_sink sink = {.write = nt_fuzz_collect, .ctx = packed};
    NT_FUZZ_CHECK(nt_pack_save(&alloc, s, &sink, NULL) == NT_OK);
    nt_snapshot_free(s);
    if (choose(4) != 0) {
        packed->bytes[choose(packed->size)] ^= (uint8_t)(1 + choose(255));
    }
    return true;
}

static void
ask_all(bool is_packed)
{
    file_at = 0;
    allowed = choose(4) == 0 ? (double)choose(1 << 20) : 0;
    page_use(NT_PAGE_FILE);
    const double limit = choose(3) == 0 ? (double)choose(1 << 18) : 1e9;
    /* The page says how long the file is; it may have changed since. */
    const double total = (double)(choose(3) == 0 ? choose(1 << 20) : file_size);
    if (is_fine(page_load(limit, total, is_packed)) &&
        nt_fuzz_rows(nt_pages[NT_PAGE_FILE].snapshot) <= NT_FUZZ_MOST_ROWS) {
        check_texts();
        const uint32_t traces = page_traces();
        for (uint32_t i = 0; i < 2; i++) {
            (void)page_trace_length(i + (uint32_t)choose(2));
            ask_device((int32_t)choose(traces < 3 ? traces + 1 : 4));
        }
        check_saved();
    }
    page_memory_used();
    check_figures(2);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nt_fuzz_file packed = {.size = 0};
    choice = size;
    for (size_t i = 0; i < size; i++) {
        choice = choice * 31 + data[i];
    }
    file_bytes = data;
    file_size = size;
    if (choose(4) == 0 && pack_file(&packed)) {
        file_bytes = packed.bytes;
        file_size = packed.size;
    }
    ask_all(packed.size != 0);
    /* The next file, which is empty. */
    file_size = 0;
    file_at = 0;
    NT_FUZZ_CHECK(!is_fine(page_load(1e9, 0, 0)));
    page_memory_used();
    NT_FUZZ_CHECK(page_figures()[0] == 0);
    nt_fuzz_clear(&packed);
    nt_fuzz_finish();
    return 0;
}
