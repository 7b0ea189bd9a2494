/* SPDX-License-Identifier: Apache-2.0 */
/* First and last uses of requests: which operators take the memory, dated by the number
 * of requests made before, as in neutracer/trace/uses.py. The backends tell of requests
 * and frees, PyTorch's RecordFunction of operators.
 *
 * Nothing here takes the GIL or calls an allocator's function, so that a tracker may
 * tell under an allocator's lock. */
#ifndef NT_TORCH_USES_HPP
#define NT_TORCH_USES_HPP

#include <atomic>
#include <cstdint>
#include <vector>

namespace neutracer
{

/* Whether uses are observed. */
extern std::atomic<bool> uses_on;

void
uses_note_request(int device, uint64_t address) noexcept;
void
uses_note_free(uint64_t address) noexcept;

/* A device's next request, in the order of its trace; 0 for one that failed. */
inline void
uses_request(int device, uint64_t address) noexcept
{
    if (__builtin_expect(uses_on.load(std::memory_order_relaxed), 0)) {
        uses_note_request(device, address);
    }
}

/* The program gives a block back. */
inline void
uses_free(uint64_t address) noexcept
{
    if (__builtin_expect(uses_on.load(std::memory_order_relaxed), 0)) {
        uses_note_free(address);
    }
}

/* Observes from now on, and forgets what was observed before. Throws std::exception. */
void
uses_begin();
/* Observes no more, and forgets. */
void
uses_end();
/* The block at an address is used now, or (`lost`) where nobody sees it from now on;
 * nothing for an address that no request gave. */
bool
uses_touch(uint64_t address, bool lost) noexcept;

/* A request of a device, as observed so far. */
struct observed_use {
    int32_t first, last; /* as in neutracer/trace/uses.py */
    uint64_t address;
};
/* The requests of a device, the first one first. Throws std::bad_alloc, also where
 * memory ran out before. */
std::vector<observed_use>
uses_now(int device);

/* Around and behind a fork: the child observes nothing. */
void
uses_lock() noexcept;
void
uses_unlock() noexcept;

} // namespace neutracer

#endif
