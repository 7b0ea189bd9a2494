/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether two snapshots say the same, whatever ids their strings and stacks have.
 * For the C tests and the fuzz targets.
 */
#ifndef NT_SAME_H
#define NT_SAME_H

#include "trace/nt_snapshot.h"

/*
 * The first thing in which `a` and `b` differ, in words that stay valid until the
 * next call; NULL if there is none. A column that one of them lacks counts as one of
 * default values. Ignored keys and the reason for being partial are not compared.
 */
const char *
nt_same_snapshot(const nt_snapshot *a, const nt_snapshot *b);

/* The same for two layouts whose stacks are those of the two snapshots. */
const char *
nt_same_layout(const nt_snapshot *a, const nt_layout *in_a, const nt_snapshot *b,
               const nt_layout *in_b);

#endif
