/* SPDX-License-Identifier: Apache-2.0 */
/* Which module an allocation is made for. In a forward pass it is the module that runs
 * in the thread. In a backward pass it is the one that made the node of the graph that
 * runs: a node's number, which its thread counted, tells what ran when it was made.
 *
 * Nothing here takes the GIL or calls an allocator's function, so that a tracker may
 * ask under an allocator's lock. */
#ifndef NT_TORCH_MARKS_HPP
#define NT_TORCH_MARKS_HPP

#include <atomic>
#include <string>

namespace neutracer
{

/* What a module's allocations are marked with; lives as long as the process. */
using mark_text = const std::string *;

/* Recordings that mark; nothing is noted while it is 0. */
extern std::atomic<int> marks_wanted;

/* Before anything else here; throws std::runtime_error where this torch does not tell
 * what it has to. With the GIL. */
void
marks_prepare();

/* The one text of this kind. Throws std::bad_alloc. Any thread. */
mark_text
marks_text(const char *utf8, size_t length);

/* A module begins to run in the calling thread. Throws std::bad_alloc, and nothing has
 * begun then. */
void
marks_enter(mark_text text);
/* The innermost one is over. */
void
marks_leave() noexcept;
/* Whether one runs in the calling thread. */
bool
marks_inside() noexcept;

/* What an event of the calling thread is marked with; nullptr for nothing. */
mark_text
marks_now() noexcept;

/* In the child of a fork: nothing is wanted, and no lock is some other thread's. */
void
marks_forget() noexcept;

} // namespace neutracer

#endif
