/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks of a node of PyTorch's graph that is written in C++: dicts of Python that
 * nothing shows. Where a node keeps its lists of hooks is learnt from a node whose
 * memory is compared before and after hooks were put there. GIL held.
 */
#ifndef PH_NODE_H
#define PH_NODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"

/* The lists: hooks before the node runs, after it, and of the tensor that it made. */
#define PH_NODE_LISTS 3

/* Remembers a node's memory: the first half of learning. `node` has no hooks. */
nt_status
ph_node_begin(PyObject *node, nt_error *err) NT_CHECKED;

/* The second half: the same node with a hook in each list, and the dicts that these are
 * in. NT_REFUSED where a list was not found at just one place. */
nt_status
ph_node_learn(PyObject *node, PyObject *const dicts[PH_NODE_LISTS],
              nt_error *err) NT_CHECKED;

/* Not 0 ends the round. `list` is 0 to PH_NODE_LISTS - 1. */
typedef int (*ph_node_visit)(void *ctx, int list, PyObject *dict);

/* The dicts of a node's hooks, borrowed. There are none where the object is not such a
 * node, or nothing was learnt. Returns what ended the round, or 0. */
int
ph_node_each_hooks(PyObject *node, ph_node_visit visit, void *ctx);

#endif
