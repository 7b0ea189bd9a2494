/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of objects as Python's plain data; each returns NULL with an exception.
 */
#ifndef NT_PY_PLAIN_H
#define NT_PY_PLAIN_H

#include "nt_py.h"

#include "ph_describe.h"
#include "ph_join.h"

/* Learns what there is to learn of the heap; of torch only where it is imported. */
nt_status
nt_py_heap_learn(nt_error *err) NT_CHECKED;

/* {"cuda:0": bytes} */
PyObject *
nt_py_plain_devices(const ph_device_bytes *devices, uint32_t count);

/* Of what `make` makes of each place of `from`. */
PyObject *
nt_py_plain_list(uint32_t count, PyObject *(*make)(const void *, uint32_t),
                 const void *from);

/* Each node is (type, label, kind, file, line, count, tensor or None); the tensor is
 * (shape, dtype, device, storage bytes, storage, data pointer, requires_grad). */
PyObject *
nt_py_plain_nodes(const ph_node *nodes, uint32_t count);

/* Each edge is (source, target, name, kind, in cycle). */
PyObject *
nt_py_plain_edges(const ph_edge *edges, uint32_t count);

#endif
