/* SPDX-License-Identifier: Apache-2.0 */
/* What a tensor is, read from its memory: no getter, no __torch_function__, nobody's
 * Python runs, no Python object is made. Where the fields lie is learnt from torch
 * itself: probes with known facts are compared with the bytes of their TensorImpl and
 * StorageImpl, so that no header of torch is needed and a layout that is not understood
 * is refused. GIL held. */
#ifndef PH_TENSOR_H
#define PH_TENSOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"

/* More dimensions than this are counted and not listed. */
#define PH_TENSOR_DIMS 64

/* c10::DeviceType, the ones with names of their own here. */
#define PH_DEVICE_CPU 0
#define PH_DEVICE_META 14 /* no memory */

typedef struct ph_tensor {
    uint64_t impl;          /* address of the TensorImpl: the tensor's identity */
    uint64_t storage;       /* address of the StorageImpl, shared by views; 0: none */
    uint64_t data_ptr;      /* where the storage begins; 0: none */
    uint64_t storage_bytes; /* of the whole storage; 0 where it has no memory */
    int64_t shape[PH_TENSOR_DIMS];
    uint32_t ndim;
    uint16_t dtype;       /* an index for ph_tensor_dtype_name */
    int16_t device_type;  /* c10::DeviceType of the memory, or of the tensor if none */
    int16_t device_index; /* -1: none */
    bool requires_grad;   /* by its own data: a view that was made without gradients is
                           * not asked what its base says */
    bool has_grad_fn;
    int64_t numel;
    int64_t storage_offset; /* in items */
    uint64_t use_count;     /* strong C++ references to the TensorImpl; 0: unknown */
} ph_tensor;

/* Learns the layout from the torch that is imported (sys.modules["torch"]; importing it
 * is the caller's business) and checks it on other probes than those it was learnt
 * from. NT_REFUSED with the reason where it can't be learnt. Runs Python and makes a
 * few hundred small tensors on the CPU and on "meta", no context on any device. Cheap
 * when called again. */
nt_status
ph_tensor_prepare(nt_error *err) NT_CHECKED;

/* Whether ph_tensor_prepare has succeeded. */
bool
ph_tensor_ready(void);

/* Whether the object is a torch.Tensor of any kind, by its type's layout alone: no
 * __class__, no __instancecheck__. False before ph_tensor_prepare. */
bool
ph_tensor_check(PyObject *object);

/* Whether the object is a node of PyTorch's autograd graph. False before
 * ph_tensor_prepare. */
bool
ph_tensor_check_node(PyObject *object);

/* The facts of an object for which ph_tensor_check holds, as they lie in memory: a
 * FakeTensor is on "meta", a wrapper has what the wrapper itself has, sizes that are
 * symbols are not known. False where it has no TensorImpl (half built, or already torn
 * down). */
bool
ph_tensor_read(PyObject *object, ph_tensor *out);

/* "float32"; "dtype 47" where it has no name. Borrowed, until the next call. */
const char *
ph_tensor_dtype_name(uint16_t dtype);

/* "cuda", "cpu", "meta"; "device 40" where it has no name. Borrowed, until the next
 * call. */
const char *
ph_tensor_device_name(int16_t device_type);

/* ---- nodes of PyTorch's graph ---------------------------------------------------- */

/* The hooks of a node of PyTorch's graph that is written in C++: dicts of Python that
 * nothing shows. Where a node keeps its lists of hooks is learnt from a node whose
 * memory is compared before and after hooks were put there. */

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

/* ---- fields of types that publish none ------------------------------------------- */

/* Fields of types that publish neither a struct nor members. An object of the type is
 * made around known things, and the words of its memory are compared with their
 * addresses: a field lies where its target is found at one place only, and at the same
 * one in a second object. GIL held. */

/* Learns that an object of this type holds `target` in a field of that name. Learnt
 * twice with different places, or at no single place, it is not believed. */
void
ph_fields_learn(PyObject *probe, const char *name, PyObject *target);

/* Not 0 ends the round; `target` may be NULL. */
typedef int (*ph_fields_visit)(void *ctx, const char *name, PyObject *target);

/* What an object holds in the fields that were learnt of `type`, its own or a base.
 * Returns what ended the round, or 0. */
int
ph_fields_each(PyObject *object, const PyTypeObject *type, ph_fields_visit visit,
               void *ctx);

#endif
