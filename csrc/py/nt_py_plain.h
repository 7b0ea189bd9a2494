/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of objects as Python's plain data; each returns NULL with an exception.
 */
#ifndef NT_PY_PLAIN_H
#define NT_PY_PLAIN_H

#include "nt_py.h"

#include "describe/ph_describe.h"
#include "ph_join.h"

/* Learns what there is to learn of the heap; of torch only where it is imported. */
nt_status
nt_py_heap_learn(nt_error *err) NT_CHECKED;

/* "cuda:0" */
PyObject *
nt_py_plain_device(int16_t type, int16_t index);

/* (type, label, kind, file, line, count, tensor or None); the tensor is (shape, dtype,
 * device, storage bytes, storage, data pointer, requires_grad). */
PyObject *
nt_py_plain_node(const ph_node *node);

/* (source, target, name, kind, in cycle) */
PyObject *
nt_py_plain_edge(const ph_edge *edge);

#endif
