/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread, read from its own chain without the GIL. The
 * thread is stopped in C, so that the chain stands still and keeps its code objects
 * alive; nothing is written and no reference is taken. Knows CPython 3.10 to 3.15 with
 * the GIL; elsewhere `frames_refused` says why not. */
#ifndef NT_TORCH_FRAMES_HPP
#define NT_TORCH_FRAMES_HPP

#include <Python.h>

#include "base/nt_ring.h"

namespace neutracer
{

/* Why frames can't be read in this interpreter, or nullptr where they can. */
const char *
frames_refused() noexcept;

/* The innermost `most` frames of the calling thread, innermost first; returns how many.
 * 0 in a thread that Python does not know. Only where `frames_refused` is nullptr. */
size_t
frames_walk(nt_ring_frame *out, size_t most) noexcept;

/* An nt_ring_describe: the code object must be alive. */
int
frames_describe(uint64_t code, nt_ring_code *out) noexcept;

/* Holds what `frames_walk` finds in the calling thread against what Python itself says
 * of the same frames; needs the GIL. Nullptr if they agree, and else what differs. */
const char *
frames_differ() noexcept;

} // namespace neutracer

#endif
