/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ph_tensor: where torch keeps what, in bytes from the beginning of each
 * object, and how that is found out.
 *
 *     PyObject ── cdata ──> TensorImpl ── storage ──> StorageImpl
 *                              │  sizes, numel,          data, size, device
 *                              │  dtype, device
 *                              └─ autograd ──> AutogradMeta: grad_fn, requires_grad
 */
#ifndef PH_TENSOR_LAYOUT_H
#define PH_TENSOR_LAYOUT_H

#include <string.h>

#include "tensor/ph_tensor.h"

/* torch keeps sizes and strides of up to this many dimensions inside of the tensor:
 * a count, then the sizes, then the strides, each with room for five; more of them lie
 * behind a pointer, the sizes first. */
#define PH_LAYOUT_INLINE 5

#define PH_DTYPES 256
#define PH_DTYPE_NAME_BYTES 32

typedef struct ph_tensor_layout {
    size_t cdata;          /* in the Python object */
    size_t use_count;      /* in the TensorImpl; 0: not known */
    size_t storage;        /*    " */
    size_t autograd;       /*    " */
    size_t sizes;          /*    " the count of dimensions */
    size_t storage_offset; /*    " */
    size_t numel;          /*    " */
    size_t dtype;          /*    " two bytes */
    size_t device;         /*    " type, index, whether there is one: a byte each */
    size_t data;           /* in the StorageImpl */
    size_t data_bytes;     /*    " */
    size_t data_device;    /*    " type and index: a byte each */
    size_t grad_fn;        /* in the AutogradMeta */
    size_t requires_grad;  /*    " a byte */
} ph_tensor_layout;

/* What ph_tensor_prepare found, and all that is kept of it. */
typedef struct ph_tensor_state {
    bool ready;
    PyTypeObject *type;          /* the base of all tensors; owned for good */
    PyTypeObject *function_type; /* of nodes that are written in Python; the same */
    traverseproc node_traverse;  /* of nodes that are written in C++ */
    ph_tensor_layout layout;
    char dtypes[PH_DTYPES][PH_DTYPE_NAME_BYTES];
    char private_device[PH_DTYPE_NAME_BYTES];
} ph_tensor_state;

extern ph_tensor_state ph_tensor_learnt;

/* ph_tensor_learn.c: the layout, from the lists of probes that Python made, or
 * NT_REFUSED with what was not found. */
nt_status
ph_tensor_learn(PyObject *sets, PyTypeObject *type, ph_tensor_layout *layout,
                nt_error *err) NT_CHECKED;

/* Reads with a layout that is not believed yet. */
bool
ph_tensor_read_with(const ph_tensor_layout *layout, PyObject *object, ph_tensor *out);

static inline uint64_t
ph_load_word(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t
ph_load_half(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint16_t
ph_load_short(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline const uint8_t *
ph_load_pointer(const uint8_t *at)
{
    return (const uint8_t *)(uintptr_t)ph_load_word(at);
}

#endif
