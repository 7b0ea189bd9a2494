/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps objects alive by itself: modules, and threads with the frames that they
 * run. Each frame and thread becomes a node of a join. GIL held; nothing is created.
 */
#ifndef PH_ROOTS_H
#define PH_ROOTS_H

#include "ph_join.h"

/*
 * Adds every thread and frame with what it holds. The innermost frames of this thread
 * whose file begins with `own` belong to the caller, and are left out. Before
 * ph_join_close.
 */
nt_status
ph_roots_add(ph_join *join, const char *own, nt_error *err) NT_CHECKED;

/* The added nodes, and the modules of sys.modules. `roots` is initialised here for all
 * nodes. After ph_join_close. */
nt_status
ph_roots_mark(const ph_join *join, nt_bitset *roots, nt_error *err) NT_CHECKED;

#endif
