/* SPDX-License-Identifier: Apache-2.0 */
/* What every allocator's snapshot keeps, checked once, on what a file says: sizes that
 * a device can have, blocks inside their segment and beside each other, sums, addresses
 * that belong to one segment, times that do not run backwards. The trace against the
 * blocks is nt_timeline's.
 *
 * A file of which nothing can be said is refused. Where the rest can be used, what
 * can't be is left out or put right, and noted (nt_broken): no figure rests on it. */
#ifndef NT_INVARIANTS_H
#define NT_INVARIANTS_H

#include "base/nt_base.h"
#include "trace/nt_snapshot.h"

/* No block, segment or request has more bytes than an address of today's devices can
 * tell apart. */
#define NT_MOST_BYTES ((uint64_t)1 << 48)

/* Sums of sizes are at most this: what adds them up never wraps, and a page that counts
 * in doubles has them exactly. */
#define NT_MOST_SUM ((uint64_t)1 << 53)

/* Microseconds since 1970 beyond this are no time. */
#define NT_MOST_TIME ((int64_t)1 << 53)

/* Clocks of different processors may disagree by so many microseconds. */
#define NT_CLOCK_SKEW 100

/* Checks a snapshot that is filled, arranged and has its keys, before it is sealed.
 * NT_MALFORMED, with the row in the message, for what no figure can rest on. Time is
 * linear in the events, and n log n in segments and blocks out of order. */
nt_status
nt_invariants_check(const nt_alloc *alloc, nt_snapshot *snapshot,
                    nt_error *err) NT_CHECKED;

#endif
