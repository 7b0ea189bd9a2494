/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes of tensors would be freed with some objects: dominators of
 * a join, with a node for each holder. GIL held; nothing is created. */
#ifndef PH_HELD_H
#define PH_HELD_H

#include "ph_join.h"

/* One reference that a holder would drop: from an object to another. */
typedef struct ph_hold {
    uint32_t holder; /* 0 .. holder_count - 1 */
    PyObject *container;
    PyObject *value;
} ph_hold;

typedef struct ph_held {
    uint64_t bytes;     /* freed if only this holder let go */
    uint64_t reachable; /* of all tensors that it leads to */
    uint32_t tensors;   /* that would go */
    uint32_t holds;     /* references that were found */
} ph_held;

/* A join to which `holder_count` nodes are added last for the holders. Adds them,
 * closes the join, takes the holds out of it. `held` has an entry a holder; *together
 * is what would be freed if all let go. */
nt_status
ph_held_measure(ph_join *join, const ph_hold *holds, size_t hold_count, ph_held *held,
                uint32_t holder_count, uint64_t *together, nt_error *err) NT_CHECKED;

#endif
