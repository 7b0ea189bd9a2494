/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tracker of a torch built for CUDA on an allocator that is made up, and what a
 * layout then tells of a block. Prints the cases that fail; exits with their number.
 */
#include "../../../csrc/torch/nt_torch_cuda.cpp"

#include <cstdio>

extern "C" {
#include "base/nt_base.h"
}

namespace neutracer
{

/* ---- what is common to the backends, as far as it is needed ---------------------- */

const nt_live_api *core;
std::atomic<uint32_t> mode_word{0};
std::atomic<int> marks_wanted{0};
std::atomic<bool> uses_on{false};

void
uses_note_request(int, uint64_t) noexcept
{
}

void
uses_note_free(uint64_t) noexcept
{
}

namespace
{

std::string module_running;

constexpr uint64_t BLOCK = 0x700000000;

struct layout_seen {
    const nt_ring *ring = nullptr;
    uint64_t head = 0;
} seen;

std::vector<nt_ring *> retired;
uint64_t function_running = 1;

cca::CUDAAllocator &
made_up()
{
    return *cca::get();
}

nt_ring *
ring_new(uint64_t events, int frames)
{
    const nt_alloc alloc = nt_alloc_system();
    return nt_ring_new(&alloc, events, frames);
}

int
set_mark(nt_live_builder *, int32_t, const nt_ring *ring, uint64_t head)
{
    seen = {ring, head};
    return 0;
}

const nt_live_api *
made_up_core()
{
    static nt_live_api table{};
    table.ring_new = ring_new;
    table.ring_free = nt_ring_free;
    table.ring_restart = nt_ring_restart;
    table.ring_add_stack = nt_ring_add_stack;
    table.ring_add_text = nt_ring_add_text;
    table.set_mark = set_mark;
    table.set_bool = [](nt_live_builder *, const char *, int) { return 0; };
    table.set_int = [](nt_live_builder *, const char *, int64_t) { return 0; };
    table.set_real = [](nt_live_builder *, const char *, double) { return 0; };
    table.set_text = [](nt_live_builder *, const char *, const char *, size_t) {
        return 0;
    };
    table.set_roundup = [](nt_live_builder *, const uint64_t *, size_t) { return 0; };
    return &table;
}

} // namespace

void
clock_begin()
{
}

void
clock_refresh() noexcept
{
}

void
rings_hold()
{
}

/* As if somebody held them until the end. */
void
rings_retire(nt_ring *ring) noexcept
{
    if (ring != nullptr) {
        retired.push_back(ring);
    }
}

void
oom_note(int64_t, uint64_t, uint64_t, uint64_t)
{
}

mark_text
marks_now() noexcept
{
    return module_running.empty() ? nullptr : &module_running;
}

size_t
frames_walk(nt_ring_frame *out, size_t) noexcept
{
    out[0] = {function_running, 1, 0, 0};
    return 1;
}

int
frames_describe(uint64_t, nt_ring_code *out) noexcept
{
    *out = {};
    out->name = {"f", 1, 1};
    out->filename = {"f.py", 4, 1};
    return 0;
}

/* ---- cases ----------------------------------------------------------------------- */

namespace
{

int failures = 0;

void
check(bool holds, const char *name)
{
    if (!holds) {
        std::printf("%s\n", name);
        failures++;
    }
}

/* A block given out while `function` runs. */
void
allocate(uint64_t function)
{
    function_running = function;
    made_up().tell(trace_entry::ALLOC, BLOCK);
}

void
release(uint64_t function)
{
    function_running = function;
    made_up().tell(trace_entry::FREE_REQUESTED, BLOCK);
    made_up().tell(trace_entry::FREE_COMPLETED, BLOCK);
}

/* So many events that the ring keeps none of those before. */
void
push_out()
{
    for (int i = 0; i < 1000; i++) {
        made_up().tell(trace_entry::SEGMENT_ALLOC, BLOCK + 4096);
    }
}

void
begin(unsigned frames)
{
    backend_attach(100);
    backend_start(frames);
}

/* The function that a layout now names for the block; 0 for none. */
uint64_t
function_of_block()
{
    seen = {};
    if (source_layout(nullptr, NT_LIVE_CUDA, nullptr) != 0 || seen.ring == nullptr) {
        return 0;
    }
    const nt_ring_origins *origins = &seen.ring->origins;
    const uint32_t stack = nt_ring_origins_find(origins, BLOCK, seen.head);
    if (stack == NT_RING_NONE) {
        return 0;
    }
    /* Functions are met in the order of their numbers, and stacks counted from 0. */
    return stack + 1;
}

void
long_lived_block_is_known()
{
    begin(8);
    allocate(1);
    push_out();
    check(function_of_block() == 1, "long_lived_block_is_known");
    release(1);
    check(function_of_block() == 0, "freed block is not known");
}

void
block_without_frames_has_no_stack()
{
    begin(8);
    allocate(1);
    mode_word.store(mode_of(0));
    release(1);
    allocate(1);
    push_out();
    check(function_of_block() == 0, "block_without_frames_has_no_stack");
    mode_word.store(mode_of(8));
    check(function_of_block() == 0, "nor when frames are kept again");
}

void
free_does_not_have_the_stack_of_an_earlier_one()
{
    begin(8);
    function_running = 1;
    made_up().tell(trace_entry::FREE_REQUESTED, BLOCK);
    mode_word.store(mode_of(0));
    made_up().tell(trace_entry::FREE_COMPLETED, BLOCK);
    allocate(1);
    made_up().tell(trace_entry::FREE_REQUESTED, BLOCK);
    mode_word.store(mode_of(8));
    function_running = 2;
    made_up().tell(trace_entry::FREE_COMPLETED, BLOCK);
    const nt_ring *ring = backend_ring(0);
    nt_ring_entry entry;
    const uint64_t head = nt_ring_head(ring);
    (void)nt_ring_read(ring, head - 1, head, &entry);
    check(entry.stack == 1, "free_does_not_have_the_stack_of_an_earlier_one");
}

void
silence_forgets_what_was_allocated()
{
    begin(8);
    allocate(1);
    backend_stop();
    release(1);
    allocate(2);
    check(function_of_block() == 0, "silence_forgets_what_was_allocated");
    check(nt_ring_start(seen.ring) == seen.head,
          "no event is told that the layout does not follow");
    backend_start(8);
    check(function_of_block() == 0, "nor is it known afterwards");
}

void
layout_reads_the_ring_it_was_taken_with()
{
    begin(8);
    push_out();
    const nt_ring *before = backend_ring(0);
    made_up().after_layout = [] {
        backend_attach(5000);
        backend_start(8);
        allocate(1);
    };
    check(function_of_block() == 0, "a new ring's block is not the layout's");
    made_up().after_layout = nullptr;
    check(seen.ring == before && backend_ring(0) != before &&
              seen.head <= nt_ring_head(seen.ring),
          "layout_reads_the_ring_it_was_taken_with");
}

/* The text that the ring has of the last event. */
std::string
last_text()
{
    const nt_ring *ring = backend_ring(0);
    const uint64_t head = nt_ring_head(ring);
    nt_ring_entry entry;
    (void)nt_ring_read(ring, head - 1, head, &entry);
    size_t length = 0;
    const char *text = nt_ring_text_get(ring, entry.metadata, &length);
    return std::string(text, length);
}

void
what_a_module_allocates_has_its_text()
{
    begin(0);
    module_running = "nn.Module: a module of a long name";
    allocate(1);
    check(last_text().empty(), "nothing is marked before it is asked for");
    marks_wanted++;
    allocate(1);
    check(last_text() == module_running, "what_a_module_allocates_has_its_text");
    release(1);
    check(last_text().empty(), "a free has no module");
    module_running.clear();
    allocate(1);
    check(last_text().empty(), "nor what is allocated outside of one");
    marks_wanted--;
}

/* An allocation as PyTorch makes it: told first, and counted then. */
void
allocate_bytes(size_t address, int64_t size)
{
    c10::CachingAllocator::Stat &bytes = made_up().stats.allocated_bytes[0];
    made_up().tell(trace_entry::ALLOC, address);
    bytes.current += size;
    bytes.allocated += size;
    bytes.peak = std::max(bytes.peak, bytes.current);
    made_up().stats.allocation[0].allocated++;
}

/* Its end: counted first, and told then. */
void
release_bytes(size_t address, int64_t size)
{
    made_up().stats.allocated_bytes[0].current -= size;
    made_up().stats.allocated_bytes[0].freed += size;
    made_up().stats.allocation[0].freed++;
    made_up().tell(trace_entry::FREE_REQUESTED, address);
    made_up().tell(trace_entry::FREE_COMPLETED, address);
}

/* The span that ends now; the next one is followed if asked. */
nt_live_span
span_end(bool follow)
{
    nt_live_span span{};
    check(source_device_span(nullptr, 0, follow, &span) == 0, "a device has spans");
    return span;
}

void
peaks_of_spans_are_exact_and_pytorchs_stay()
{
    allocate_bytes(BLOCK, 1000);
    release_bytes(BLOCK, 1000);
    (void)span_end(true);
    /* Freed at once: no event shows the level itself. */
    allocate_bytes(BLOCK, 300);
    release_bytes(BLOCK, 300);
    allocate_bytes(BLOCK, 10);
    allocate_bytes(BLOCK + 512, 20);
    nt_live_span span = span_end(true);
    check(span.peak_allocated_bytes == 300 && span.allocated_bytes == 30,
          "peaks_of_spans_are_exact_and_pytorchs_stay");
    check(span.allocations == 4 && span.frees == 2, "a span counts events");
    allocate_bytes(BLOCK + 1024, 5);
    check(span_end(false).peak_allocated_bytes == 35, "the last one, not told yet, counts");
    release_bytes(BLOCK + 1024, 5);
    check(made_up().stats.allocated_bytes[0].peak == 1000, "nothing is reset");
    check(span_end(true).peak_allocated_bytes == 30, "what was not followed is now's");
    release_bytes(BLOCK, 10);
    release_bytes(BLOCK + 512, 20);
    check(span_end(false).peak_allocated_bytes == 30, "a span begins with what there is");
}

} // namespace

} // namespace neutracer

int
main()
{
    using namespace neutracer;
    core = made_up_core();
    long_lived_block_is_known();
    block_without_frames_has_no_stack();
    free_does_not_have_the_stack_of_an_earlier_one();
    silence_forgets_what_was_allocated();
    layout_reads_the_ring_it_was_taken_with();
    what_a_module_allocates_has_its_text();
    peaks_of_spans_are_exact_and_pytorchs_stay();
    return failures;
}
