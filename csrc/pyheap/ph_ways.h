/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way through a join in plain data: what its nodes are, and by which names each
 * refers to the next. What is made refers to no object. GIL held; nothing is created.
 */
#ifndef PH_WAYS_H
#define PH_WAYS_H

#include "describe/ph_describe.h"
#include "ph_join.h"

/* Of a longer way the middle is one folded node. */
#define PH_WAY_NODES 128

typedef struct ph_way {
    ph_node *nodes; /* in order, in the arena that it was made in */
    uint32_t count;
    ph_edge *edges; /* from each node to the next; a closed way's last leads back */
    uint32_t edge_count;
    uint64_t *threads; /* of an added node the ident of its thread, else 0 */
} ph_way;

/* `nodes`: numbers of the join, each with an edge to the next. */
nt_status
ph_way_make(const ph_join *join, const uint32_t *nodes, uint32_t count, bool closed,
            nt_arena *arena, ph_way *way, nt_error *err) NT_CHECKED;

#endif
