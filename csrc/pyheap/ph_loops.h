/* SPDX-License-Identifier: Apache-2.0 */
/* Cycles that PyTorch's graph has a part in: found in a join, with what each keeps, as
 * plain data. GIL held; nothing is created, nobody's Python runs. */
#ifndef PH_LOOPS_H
#define PH_LOOPS_H

#include "ph_join.h"

/* A component of the join with a reference of PyTorch's graph inside. */
typedef struct ph_loop {
    ph_way way;       /* a shortest way round through such a reference */
    uint32_t objects; /* of the component */
    uint32_t tensors; /* that it keeps */
    uint64_t bytes;   /* of their storages, each once */
    bool hidden;      /* one such reference is hidden from the collector, so that it
                       * can never find the cycle dead */
    bool alive;       /* a module or a running frame leads to it */
    ph_device_bytes devices[PH_MOST_DEVICES];
    uint32_t device_count;
    ph_node *kept; /* its largest tensors */
    uint32_t kept_count;
} ph_loop;

typedef struct ph_loops {
    nt_arena arena; /* owns all of it */
    ph_loop *loops; /* most bytes first */
    uint32_t count;
    uint32_t left_out; /* components beyond the requested number */
    uint64_t left_out_bytes;
    uint32_t cut; /* nodes of the walk that cycles were not looked for in */
} ph_loops;

/* At most `most` components are described. On failure *out is NULL. */
nt_status
ph_loops_find(const ph_join *join, uint32_t most, ph_loops **out,
              nt_error *err) NT_CHECKED;
void
ph_loops_free(ph_loops *loops);

#endif
