/* SPDX-License-Identifier: Apache-2.0 */
/* Where torch keeps what, in bytes from the beginning of each object, and how that is
 * found out.
 *
 *     PyObject ── cdata ──> TensorImpl ── storage ──> StorageImpl
 *                              │  sizes, numel,          data, size, device
 *                              │  dtype, device
 *                              └─ autograd ──> AutogradMeta: grad_fn, requires_grad */
#include "ph_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* torch keeps sizes and strides of up to this many dimensions inside of the tensor: a
 * count, then the sizes, then the strides, each with room for five; more of them lie
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

/* ---- finding the layout ---------------------------------------------------------- */

/* Finding torch's layout: for each field the bytes of all probes are compared with what
 * torch says of them, from the object's beginning on, and the first place that fits
 * every probe is the field's. No more of an object is looked at than up to that place,
 * so that nothing outside of it is read unless torch has a field that is not there at
 * all; then the search ends within a window that is shorter than any of these
 * objects. */

#define MOST_DIMS 12
#define NOT_FOUND SIZE_MAX

/* How far behind its predecessor a field of a TensorImpl or a StorageImpl may lie; the
 * sizes themselves take 88 bytes, and an AutogradMeta has lists of hooks in it. */
#define WINDOW 64
#define WINDOW_AUTOGRAD 256

/* The columns of a probe's facts. */
enum {
    FACT_TENSOR,
    FACT_CDATA,
    FACT_STORAGE,
    FACT_DATA,
    FACT_BYTES,
    FACT_SIZES,
    FACT_STRIDES,
    FACT_OFFSET,
    FACT_NUMEL,
    FACT_DTYPE,
    FACT_DEVICE,
    FACT_FLAG, /* requires_grad of its own: 0 or 1; -1 unknown; -2 nothing of autograd
                */
    FACT_GRAD_FN,
    FACT_REQUIRES,
    FACT_USES, /* -1: unknown */
    FACT_COUNT,
};

typedef struct learn_probe {
    PyObject *tensor; /* borrowed from the list of facts */
    uint64_t facts[FACT_COUNT];
    int64_t sizes[MOST_DIMS];
    int64_t strides[MOST_DIMS];
    uint64_t ndim;
} learn_probe;

typedef struct learn_set {
    learn_probe *probes;
    size_t count;
} learn_set;

typedef struct learn_field {
    size_t fact;
    bool (*fits)(const learn_probe *probe, const uint8_t *at, size_t fact);
    size_t step;
} learn_field;

static int64_t
learn_signed(const learn_probe *probe, size_t fact)
{
    return (int64_t)probe->facts[fact];
}

static bool
fits_word(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return ph_load_word(at) == probe->facts[fact];
}

static bool
fits_half(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return ph_load_half(at) == probe->facts[fact];
}

static bool
fits_short(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return ph_load_short(at) == probe->facts[fact];
}

/* The type of a device, and no index. */
static bool
fits_device(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return at[0] == probe->facts[fact] && at[1] == 0xFF;
}

/* A device that may be missing, and is not. */
static bool
fits_device_there(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return fits_device(probe, at, fact) && at[2] == 1;
}

/* Nothing where nothing of autograd was asked for, something where it was. */
static bool
fits_autograd(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    const int64_t flag = learn_signed(probe, fact);
    return flag == -1 || (flag == -2) == (ph_load_word(at) == 0);
}

static bool
fits_presence(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return (ph_load_word(at) != 0) == (probe->facts[fact] != 0);
}

static bool
fits_flag(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    return learn_signed(probe, fact) < 0 || at[0] == probe->facts[fact];
}

/* The count, and where it is small enough the sizes and strides behind it. */
static bool
fits_sizes(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    (void)fact;
    if (ph_load_word(at) != probe->ndim) {
        return false;
    }
    if (probe->ndim > PH_LAYOUT_INLINE) {
        return true;
    }
    const size_t bytes = (size_t)probe->ndim * sizeof(int64_t);
    const uint8_t *sizes = at + sizeof(uint64_t);
    return memcmp(sizes, probe->sizes, bytes) == 0 &&
           memcmp(sizes + PH_LAYOUT_INLINE * sizeof(int64_t), probe->strides, bytes) ==
               0;
}

/* Where sizes are known to be: those of many dimensions lie behind a pointer. */
static bool
fits_sizes_far(const learn_probe *probe, const uint8_t *at, size_t fact)
{
    (void)fact;
    if (probe->ndim <= PH_LAYOUT_INLINE) {
        return true;
    }
    const size_t bytes = (size_t)probe->ndim * sizeof(int64_t);
    const uint8_t *sizes = ph_load_pointer(at + sizeof(uint64_t));
    return sizes != NULL && memcmp(sizes, probe->sizes, bytes) == 0 &&
           memcmp(sizes + bytes, probe->strides, bytes) == 0;
}

/* ---- facts from Python ----------------------------------------------------------- */

static bool
learn_numbers(PyObject *tuple, int64_t *out, uint64_t *count)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MOST_DIMS) {
        return false;
    }
    *count = (uint64_t)PyTuple_GET_SIZE(tuple);
    for (uint64_t at = 0; at < *count; at++) {
        out[at] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, (Py_ssize_t)at));
    }
    return !PyErr_Occurred();
}

static bool
learn_parse_probe(PyObject *row, const PyTypeObject *type, learn_probe *out)
{
    uint64_t strides = 0;
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != FACT_COUNT) {
        return false;
    }
    out->tensor = PyTuple_GET_ITEM(row, FACT_TENSOR);
    const PyTypeObject *base = Py_TYPE(out->tensor);
    while (base != NULL && base != type) {
        base = base->tp_base;
    }
    for (Py_ssize_t fact = FACT_CDATA; fact < FACT_COUNT; fact++) {
        if (fact != FACT_SIZES && fact != FACT_STRIDES) {
            PyObject *number = PyTuple_GET_ITEM(row, fact);
            out->facts[fact] =
                PyLong_Check(number) ? PyLong_AsUnsignedLongLongMask(number) : 0;
        }
    }
    return base != NULL && !PyErr_Occurred() && out->facts[FACT_CDATA] != 0 &&
           out->facts[FACT_STORAGE] != 0 &&
           learn_numbers(PyTuple_GET_ITEM(row, FACT_SIZES), out->sizes, &out->ndim) &&
           learn_numbers(PyTuple_GET_ITEM(row, FACT_STRIDES), out->strides, &strides) &&
           strides == out->ndim;
}

static nt_status
learn_parse_set(PyObject *rows, const PyTypeObject *type, learn_set *out, nt_error *err)
{
    const Py_ssize_t count = PyList_Check(rows) ? PyList_GET_SIZE(rows) : 0;
    if (count == 0) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET, "torch made no tensors to probe");
    }
    out->probes = calloc((size_t)count, sizeof *out->probes);
    if (out->probes == NULL) {
        return nt_fail_nomem(err);
    }
    out->count = (size_t)count;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (!learn_parse_probe(PyList_GET_ITEM(rows, at), type, &out->probes[at])) {
            PyErr_Clear();
            return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                           "torch gives facts of tensor %d that can't be read",
                           (int)at);
        }
    }
    return NT_OK;
}

/* ---- the search ------------------------------------------------------------------ */

/* Which of a probe's objects is looked at. */
typedef const uint8_t *(*learn_object)(const learn_probe *probe);

static const uint8_t *
object_python(const learn_probe *probe)
{
    return (const uint8_t *)probe->tensor;
}

static const uint8_t *
object_impl(const learn_probe *probe)
{
    return (const uint8_t *)(uintptr_t)probe->facts[FACT_CDATA];
}

static const uint8_t *
object_storage(const learn_probe *probe)
{
    return (const uint8_t *)(uintptr_t)probe->facts[FACT_STORAGE];
}

static bool
learn_fits_all(const learn_set *set, learn_object object, const learn_field *field,
               size_t at)
{
    for (size_t i = 0; i < set->count; i++) {
        const learn_probe *probe = &set->probes[i];
        if (!field->fits(probe, object(probe) + at, field->fact)) {
            return false;
        }
    }
    return true;
}

/* The first place from `from` on, and before `end`, that fits all probes of up to two
 * sets. */
static size_t
learn_find(const learn_set *sets, size_t set_count, learn_object object,
           learn_field field, size_t from, size_t end)
{
    for (size_t at = from; at < end; at += field.step) {
        bool fits = true;
        for (size_t set = 0; fits && set < set_count; set++) {
            fits = learn_fits_all(&sets[set], object, &field, at);
        }
        if (fits) {
            return at;
        }
    }
    return NOT_FOUND;
}

static nt_status
learn_missing(nt_error *err, const char *what)
{
    return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                   "this torch keeps %s where it is not looked for", what);
}

/* The object header of anything that C++ counts: its virtual table and the count. */
#define COUNTED_BEGIN 8

static nt_status
learn_impl_head(const learn_set *sets, size_t basic_size, ph_tensor_layout *out,
                nt_error *err)
{
    const learn_field cdata = {FACT_CDATA, fits_word, 8};
    const learn_field uses = {FACT_USES, fits_half, 4};
    const learn_field storage = {FACT_STORAGE, fits_word, 8};
    const learn_field autograd = {FACT_FLAG, fits_autograd, 8};
    const size_t begin = COUNTED_BEGIN;
    out->cdata =
        learn_find(sets, 2, object_python, cdata, sizeof(PyObject), basic_size);
    if (out->cdata == NOT_FOUND) {
        return learn_missing(err, "a tensor's C++ object");
    }
    if (learn_signed(&sets[0].probes[0], FACT_USES) >= 0) {
        out->use_count = learn_find(sets, 2, object_impl, uses, begin, begin + 16);
    }
    out->storage = learn_find(sets, 2, object_impl, storage, begin, begin + WINDOW);
    out->autograd = learn_find(sets, 2, object_impl, autograd, begin, begin + WINDOW);
    if (out->use_count == NOT_FOUND) {
        return learn_missing(err, "a tensor's reference count");
    }
    return out->storage == NOT_FOUND    ? learn_missing(err, "a tensor's storage")
           : out->autograd == NOT_FOUND ? learn_missing(err, "a tensor's autograd data")
                                        : NT_OK;
}

static nt_status
learn_impl_sizes(const learn_set *sets, ph_tensor_layout *out, nt_error *err)
{
    const learn_field sizes = {FACT_SIZES, fits_sizes, 8};
    const learn_field far = {FACT_SIZES, fits_sizes_far, 8};
    const size_t begin = out->autograd + sizeof(void *);
    out->sizes = learn_find(sets, 2, object_impl, sizes, begin, begin + WINDOW);
    if (out->sizes == NOT_FOUND || learn_find(sets, 2, object_impl, far, out->sizes,
                                              out->sizes + 1) == NOT_FOUND) {
        return learn_missing(err, "a tensor's sizes");
    }
    return NT_OK;
}

static nt_status
learn_impl_tail(const learn_set *sets, ph_tensor_layout *out, nt_error *err)
{
    const learn_field offset = {FACT_OFFSET, fits_word, 8};
    const learn_field numel = {FACT_NUMEL, fits_word, 8};
    const learn_field dtype = {FACT_DTYPE, fits_short, 2};
    const learn_field device = {FACT_DEVICE, fits_device_there, 1};
    size_t begin = out->sizes + (1 + 2 * PH_LAYOUT_INLINE) * sizeof(int64_t);
    out->storage_offset = learn_find(sets, 2, object_impl, offset, begin, begin + 32);
    out->numel = learn_find(sets, 2, object_impl, numel, begin, begin + 32);
    if (out->storage_offset == NOT_FOUND || out->numel == NOT_FOUND) {
        return learn_missing(err, "a tensor's number of elements");
    }
    begin = (out->numel > out->storage_offset ? out->numel : out->storage_offset) + 8;
    out->dtype = learn_find(sets, 2, object_impl, dtype, begin, begin + 32);
    out->device = learn_find(sets, 2, object_impl, device, begin, begin + 32);
    return out->dtype == NOT_FOUND    ? learn_missing(err, "a tensor's dtype")
           : out->device == NOT_FOUND ? learn_missing(err, "a tensor's device")
                                      : NT_OK;
}

static nt_status
learn_storage(const learn_set *sets, ph_tensor_layout *out, nt_error *err)
{
    const learn_field data = {FACT_DATA, fits_word, 8};
    const learn_field bytes = {FACT_BYTES, fits_word, 8};
    const learn_field device = {FACT_DEVICE, fits_device, 1};
    const size_t begin = COUNTED_BEGIN;
    out->data = learn_find(sets, 2, object_storage, data, begin, begin + 32);
    if (out->data == NOT_FOUND) {
        return learn_missing(err, "a storage's memory");
    }
    const size_t behind = out->data + sizeof(void *);
    out->data_bytes = learn_find(sets, 2, object_storage, bytes, behind, behind + 40);
    if (out->data_bytes == NOT_FOUND) {
        return learn_missing(err, "a storage's size");
    }
    out->data_device =
        learn_find(sets, 2, object_storage, device, behind, out->data_bytes);
    return out->data_device == NOT_FOUND ? learn_missing(err, "a storage's device")
                                         : NT_OK;
}

/* Where the AutogradMeta of a probe is; set once the place of its pointer is known. */
static size_t learn_autograd_at;

static const uint8_t *
object_autograd(const learn_probe *probe)
{
    return ph_load_pointer(object_impl(probe) + learn_autograd_at);
}

static nt_status
learn_autograd(const learn_set *graded, ph_tensor_layout *out, nt_error *err)
{
    const learn_field grad_fn = {FACT_GRAD_FN, fits_presence, 8};
    const learn_field flag = {FACT_FLAG, fits_flag, 1};
    learn_autograd_at = out->autograd;
    out->grad_fn = learn_find(graded, 1, object_autograd, grad_fn, 8, WINDOW);
    if (out->grad_fn == NOT_FOUND) {
        return learn_missing(err, "a tensor's grad_fn");
    }
    const size_t begin = out->grad_fn + sizeof(void *);
    out->requires_grad =
        learn_find(graded, 1, object_autograd, flag, begin, WINDOW_AUTOGRAD);
    return out->requires_grad == NOT_FOUND
               ? learn_missing(err, "whether a tensor requires a gradient")
               : NT_OK;
}

/* ---- the proof ------------------------------------------------------------------- */

/* What a probe's facts and what is read of it differ in; NULL where they agree. */
static const char *
learn_difference(const learn_probe *probe, const ph_tensor *read)
{
    const uint64_t *facts = probe->facts;
    const size_t dims = probe->ndim < PH_TENSOR_DIMS ? probe->ndim : PH_TENSOR_DIMS;
    const bool meta = facts[FACT_DEVICE] == PH_DEVICE_META;
    const uint64_t bytes = meta || facts[FACT_DATA] == 0 ? 0 : facts[FACT_BYTES];
    return read->impl != facts[FACT_CDATA]        ? "C++ object"
           : read->storage != facts[FACT_STORAGE] ? "storage"
           : read->data_ptr != facts[FACT_DATA]   ? "memory"
           : read->storage_bytes != bytes         ? "size in bytes"
           : read->ndim != probe->ndim            ? "number of dimensions"
           : memcmp(read->shape, probe->sizes, dims * sizeof(int64_t)) ? "sizes"
           : read->numel != learn_signed(probe, FACT_NUMEL) ? "number of elements"
           : read->storage_offset != learn_signed(probe, FACT_OFFSET) ? "offset"
           : read->dtype != facts[FACT_DTYPE]                         ? "dtype"
           : read->device_type != learn_signed(probe, FACT_DEVICE)    ? "device"
           : read->has_grad_fn != (facts[FACT_GRAD_FN] != 0)          ? "grad_fn"
           : read->requires_grad != (facts[FACT_REQUIRES] != 0)       ? "requires_grad"
           : read->use_count != 0 && read->use_count != facts[FACT_USES]
               ? "reference count"
               : NULL;
}

/* Reads with a layout that is not believed yet. */
static bool
ph_tensor_read_with(const ph_tensor_layout *layout, PyObject *object, ph_tensor *out);

static nt_status
learn_prove(const learn_set *set, const ph_tensor_layout *layout, nt_error *err)
{
    for (size_t at = 0; at < set->count; at++) {
        ph_tensor read;
        const learn_probe *probe = &set->probes[at];
        const char *what = ph_tensor_read_with(layout, probe->tensor, &read)
                               ? learn_difference(probe, &read)
                               : "C++ object";
        if (what != NULL) {
            return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                           "a tensor's %s read from memory is not what torch says",
                           what);
        }
    }
    return NT_OK;
}

/* The layout, from the lists of probes that Python made, or
 * NT_REFUSED with what was not found. */
static nt_status
ph_tensor_learn(PyObject *lists, PyTypeObject *type, ph_tensor_layout *layout,
                nt_error *err)
{
    nt_status status = NT_OK;
    learn_set sets[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    ph_tensor_layout found = {.use_count = 0};
    const bool three = PyList_Check(lists) && PyList_GET_SIZE(lists) == 3;
    if (!three || sizeof(void *) != sizeof(uint64_t)) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "torch's tensors are known on 64-bit machines only");
    }
    for (Py_ssize_t at = 0; at < 3; at++) {
        NT_TRY_DONE(learn_parse_set(PyList_GET_ITEM(lists, at), type, &sets[at], err));
    }
    NT_TRY_DONE(learn_impl_head(sets, (size_t)type->tp_basicsize, &found, err));
    NT_TRY_DONE(learn_impl_sizes(sets, &found, err));
    NT_TRY_DONE(learn_impl_tail(sets, &found, err));
    NT_TRY_DONE(learn_storage(sets, &found, err));
    NT_TRY_DONE(learn_autograd(&sets[1], &found, err));
    for (size_t at = 0; at < 3; at++) {
        NT_TRY_DONE(learn_prove(&sets[at], &found, err));
    }
    *layout = found;
done:
    for (size_t at = 0; at < 3; at++) {
        free(sets[at].probes);
    }
    return status;
}

/* ---- reading a tensor ------------------------------------------------------------ */

static ph_tensor_state ph_tensor_learnt;

/* c10::DeviceType, by number; the last one belongs to a plug-in. */
static const char *const device_names[] = {
    "cpu",  "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",
    "fpga", "maia", "xla",    "vulkan", "metal",  "xpu",   "mps",
    "meta", "hpu",  "ve",     "lazy",   "ipu",    "mtia",
};

#define DEVICE_COUNT (sizeof device_names / sizeof device_names[0])
#define DEVICE_PRIVATE 20

bool
ph_tensor_ready(void)
{
    return ph_tensor_learnt.ready;
}

/* Along the layout: what has `base` there has its fields at the same places. */
static bool
tensor_derives(const PyTypeObject *type, const PyTypeObject *base)
{
    while (type != NULL && type != base) {
        type = type->tp_base;
    }
    return type != NULL;
}

bool
ph_tensor_check(PyObject *object)
{
    const PyTypeObject *base = ph_tensor_learnt.type;
    return ph_tensor_learnt.ready &&
           Py_TYPE(object)->tp_basicsize >= base->tp_basicsize &&
           tensor_derives(Py_TYPE(object), base);
}

bool
ph_tensor_check_node(PyObject *object)
{
    const PyTypeObject *type = Py_TYPE(object);
    return ph_tensor_learnt.ready &&
           ((type->tp_traverse != NULL &&
             type->tp_traverse == ph_tensor_learnt.node_traverse) ||
            tensor_derives(type, ph_tensor_learnt.function_type));
}

static void
tensor_read_shape(const ph_tensor_layout *layout, const uint8_t *impl, ph_tensor *out)
{
    const uint8_t *at = impl + layout->sizes;
    const uint64_t count = ph_load_word(at);
    out->ndim = count < UINT32_MAX ? (uint32_t)count : 0;
    const uint8_t *sizes = at + sizeof(uint64_t);
    if (out->ndim > PH_LAYOUT_INLINE) {
        sizes = ph_load_pointer(sizes);
    }
    const uint32_t most = out->ndim < PH_TENSOR_DIMS ? out->ndim : PH_TENSOR_DIMS;
    if (sizes != NULL) {
        memcpy(out->shape, sizes, most * sizeof out->shape[0]);
    }
}

static void
tensor_read_storage(const ph_tensor_layout *layout, const uint8_t *storage,
                    ph_tensor *out)
{
    if (storage == NULL) {
        return;
    }
    out->storage = (uint64_t)(uintptr_t)storage;
    out->data_ptr = ph_load_word(storage + layout->data);
    out->device_type = (int8_t)storage[layout->data_device];
    out->device_index = (int8_t)storage[layout->data_device + 1];
    const uint64_t bytes = ph_load_word(storage + layout->data_bytes);
    /* A size that is a symbol has its highest bit set. */
    const bool known = bytes <= INT64_MAX && out->device_type != PH_DEVICE_META;
    out->storage_bytes = out->data_ptr != 0 && known ? bytes : 0;
}

static bool
ph_tensor_read_with(const ph_tensor_layout *layout, PyObject *object, ph_tensor *out)
{
    const uint8_t *impl = ph_load_pointer((const uint8_t *)object + layout->cdata);
    /* A tensor that was torn down has the one that stands for no tensor, and this has
     * no device. */
    if (impl == NULL || impl[layout->device + 2] != 1) {
        return false;
    }
    *out = (ph_tensor){.impl = (uint64_t)(uintptr_t)impl};
    tensor_read_shape(layout, impl, out);
    out->numel = (int64_t)ph_load_word(impl + layout->numel);
    out->storage_offset = (int64_t)ph_load_word(impl + layout->storage_offset);
    out->dtype = ph_load_short(impl + layout->dtype);
    out->device_type = (int8_t)impl[layout->device];
    out->device_index = (int8_t)impl[layout->device + 1];
    tensor_read_storage(layout, ph_load_pointer(impl + layout->storage), out);
    const uint8_t *autograd = ph_load_pointer(impl + layout->autograd);
    if (autograd != NULL) {
        out->has_grad_fn = ph_load_word(autograd + layout->grad_fn) != 0;
        out->requires_grad = out->has_grad_fn || autograd[layout->requires_grad] != 0;
    }
    /* The weak count, and a flag, share a word with it. */
    out->use_count =
        layout->use_count == 0 ? 0 : ph_load_half(impl + layout->use_count);
    return true;
}

bool
ph_tensor_read(PyObject *object, ph_tensor *out)
{
    return ph_tensor_read_with(&ph_tensor_learnt.layout, object, out);
}

const char *
ph_tensor_dtype_name(uint16_t dtype)
{
    static char unknown[PH_DTYPE_NAME_BYTES];
    if (dtype < PH_DTYPES && ph_tensor_learnt.dtypes[dtype][0] != '\0') {
        return ph_tensor_learnt.dtypes[dtype];
    }
    (void)snprintf(unknown, sizeof unknown, "dtype %u", (unsigned)dtype);
    return unknown;
}

const char *
ph_tensor_device_name(int16_t device_type)
{
    static char unknown[PH_DTYPE_NAME_BYTES];
    if (device_type >= 0 && (size_t)device_type < DEVICE_COUNT) {
        return device_names[device_type];
    }
    if (device_type == DEVICE_PRIVATE && ph_tensor_learnt.private_device[0] != '\0') {
        return ph_tensor_learnt.private_device;
    }
    (void)snprintf(unknown, sizeof unknown, "device %d", (int)device_type);
    return unknown;
}

/* ---- learning -------------------------------------------------------------------- */

/* A Python text into a name's room; false, with no exception set, where it is none. */
static bool
tensor_copy_name(PyObject *text, char name[PH_DTYPE_NAME_BYTES])
{
    const char *words = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    if (words == NULL) {
        PyErr_Clear();
        return false;
    }
    (void)snprintf(name, PH_DTYPE_NAME_BYTES, "%s", words);
    return true;
}

/* The number of a dtype: of a tensor that has it, or itself; PH_DTYPES for neither. */
static size_t
tensor_dtype_number(PyObject *example, const ph_tensor_state *state)
{
    ph_tensor tensor;
    if (PyLong_CheckExact(example)) {
        int overflow = 0;
        const long number = PyLong_AsLongAndOverflow(example, &overflow);
        return overflow != 0 || number < 0 ? PH_DTYPES : (size_t)number;
    }
    return tensor_derives(Py_TYPE(example), state->type) &&
                   ph_tensor_read_with(&state->layout, example, &tensor)
               ? tensor.dtype
               : PH_DTYPES;
}

static void
tensor_learn_dtypes(PyObject *rows, ph_tensor_state *state)
{
    const Py_ssize_t count = PyList_Check(rows) ? PyList_GET_SIZE(rows) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *row = PyList_GET_ITEM(rows, at);
        if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 2) {
            continue;
        }
        const size_t number = tensor_dtype_number(PyTuple_GET_ITEM(row, 0), state);
        if (number < PH_DTYPES) {
            (void)tensor_copy_name(PyTuple_GET_ITEM(row, 1), state->dtypes[number]);
        }
    }
}

/* Fields of the Python object belong to the base, whatever type the probe has. */
static void
tensor_learn_fields(PyObject *rows)
{
    const Py_ssize_t count = PyList_Check(rows) ? PyList_GET_SIZE(rows) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *row = PyList_GET_ITEM(rows, at);
        char name[PH_DTYPE_NAME_BYTES];
        if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) == 3 &&
            tensor_copy_name(PyTuple_GET_ITEM(row, 1), name)) {
            ph_fields_learn(PyTuple_GET_ITEM(row, 0), name, PyTuple_GET_ITEM(row, 2));
        }
    }
}

/* The message of the exception that is set, which is cleared. */
static nt_status
tensor_refuse_exception(nt_error *err)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    const char *words = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    const nt_status status = nt_fail(
        err, NT_REFUSED, NT_NO_OFFSET, "torch's tensors can't be probed: %.60s: %.120s",
        type == NULL ? "no exception" : ((PyTypeObject *)type)->tp_name,
        words == NULL ? "" : words);
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return status;
}

enum { ASK_TYPE, ASK_SETS, ASK_DTYPES, ASK_FIELDS, ASK_NODE, ASK_FUNCTION, ASK_DEVICE };
static const char *const ask_names[] = {
    "tensor_type", "layouts",       "dtypes",         "tensor_fields",
    "node",        "function_type", "private_device",
};

#define ASK_COUNT (sizeof ask_names / sizeof ask_names[0])

static nt_status
tensor_prepare_from(PyObject *const *answers, nt_error *err)
{
    ph_tensor_state state = {.ready = true};
    if (!PyType_Check(answers[ASK_TYPE]) || !PyType_Check(answers[ASK_FUNCTION])) {
        return nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                       "torch's tensor type is not a type");
    }
    state.type = (PyTypeObject *)answers[ASK_TYPE];
    state.function_type = (PyTypeObject *)answers[ASK_FUNCTION];
    state.node_traverse = Py_TYPE(answers[ASK_NODE])->tp_traverse;
    NT_TRY(ph_tensor_learn(answers[ASK_SETS], state.type, &state.layout, err));
    tensor_learn_dtypes(answers[ASK_DTYPES], &state);
    (void)tensor_copy_name(answers[ASK_DEVICE], state.private_device);
    tensor_learn_fields(answers[ASK_FIELDS]);
    Py_INCREF(state.type);
    Py_INCREF(state.function_type);
    ph_tensor_learnt = state;
    return NT_OK;
}

nt_status
ph_tensor_prepare(nt_error *err)
{
    if (ph_tensor_learnt.ready) {
        return NT_OK;
    }
    PyObject *answers[ASK_COUNT] = {NULL};
    PyObject *module = PyImport_ImportModule("neutracer.heap.probes");
    bool answered = module != NULL;
    for (size_t at = 0; answered && at < ASK_COUNT; at++) {
        answers[at] = PyObject_CallMethod(module, ask_names[at], NULL);
        answered = answers[at] != NULL;
    }
    const nt_status status =
        answered ? tensor_prepare_from(answers, err) : tensor_refuse_exception(err);
    for (size_t at = 0; at < ASK_COUNT; at++) {
        Py_XDECREF(answers[at]);
    }
    Py_XDECREF(module);
    return status;
}

/* ---- nodes of PyTorch's graph ---------------------------------------------------- */

/* Python's object for a node holds its address right behind the object's own head. A
 * list of hooks is three words, first, end and end of room, all 0 while it is empty;
 * each entry is the address of an object of C++ that begins with the address of its
 * class's table, and then the dict. */
#define NODE_AT (sizeof(PyObject))

/* Words of a node that are looked at: any node is larger, its lists lie before what its
 * kind adds, and the metadata of its inputs are behind them. */
#define NODE_WORDS 40

/* A longer list is not believed. */
#define MOST_HOOKS 1024

typedef struct node_list {
    size_t word;     /* where in the node */
    uintptr_t table; /* of the hooks' class */
} node_list;

typedef struct node_state {
    bool learnt;
    traverseproc traverse; /* of the types of such nodes */
    PyObject *probe;       /* by address only */
    uintptr_t before[NODE_WORDS];
    node_list lists[PH_NODE_LISTS];
} node_state;

/* guard: the GIL */
static node_state node_known;

static uintptr_t
node_load(uintptr_t at)
{
    uintptr_t word;
    memcpy(&word, (const void *)at, sizeof word);
    return word;
}

static uintptr_t
node_address(PyObject *node)
{
    return node_load((uintptr_t)node + NODE_AT);
}

static nt_status
node_refuse(nt_error *err)
{
    return nt_fail(
        err, NT_REFUSED, NT_NO_OFFSET,
        "this torch keeps the hooks of its graph in a place that is not known");
}

nt_status
ph_node_begin(PyObject *node, nt_error *err)
{
    const size_t size = (size_t)Py_TYPE(node)->tp_basicsize;
    node_known.learnt = false;
    node_known.probe = NULL;
    if (size < NODE_AT + sizeof(uintptr_t) || node_address(node) == 0 ||
        node_address(node) % sizeof(uintptr_t) != 0 ||
        Py_TYPE(node)->tp_traverse == NULL) {
        return node_refuse(err);
    }
    for (size_t i = 0; i < NODE_WORDS; i++) {
        node_known.before[i] = node_load(node_address(node) + i * sizeof(uintptr_t));
    }
    node_known.probe = node;
    return NT_OK;
}

/* Whether an empty list stood at this word and now has one entry. Only then its first
 * word is an address, and what it leads to one too. */
static bool
node_is_list(uintptr_t node, size_t word)
{
    uintptr_t now[3];
    memcpy(now, (const void *)(node + word * sizeof(uintptr_t)), sizeof now);
    return node_known.before[word] == 0 && node_known.before[word + 1] == 0 &&
           node_known.before[word + 2] == 0 && now[0] != 0 &&
           now[0] % sizeof(uintptr_t) == 0 && now[1] == now[0] + sizeof(uintptr_t) &&
           now[2] >= now[1];
}

static size_t
node_find_list(uintptr_t node, PyObject *dict, node_list *list)
{
    size_t found = 0;
    for (size_t word = 0; word + 2 < NODE_WORDS; word++) {
        if (node_is_list(node, word)) {
            const uintptr_t hook =
                node_load(node_load(node + word * sizeof(uintptr_t)));
            if (node_load(hook + sizeof(uintptr_t)) == (uintptr_t)dict) {
                *list = (node_list){.word = word, .table = node_load(hook)};
                found++;
            }
        }
    }
    return found;
}

nt_status
ph_node_learn(PyObject *node, PyObject *const dicts[PH_NODE_LISTS], nt_error *err)
{
    if (node != node_known.probe) {
        return node_refuse(err);
    }
    node_known.probe = NULL;
    for (int i = 0; i < PH_NODE_LISTS; i++) {
        if (node_find_list(node_address(node), dicts[i], &node_known.lists[i]) != 1) {
            return node_refuse(err);
        }
    }
    node_known.traverse = Py_TYPE(node)->tp_traverse;
    node_known.learnt = true;
    return NT_OK;
}

static int
node_each_in_list(uintptr_t node, int number, ph_node_visit visit, void *ctx)
{
    const node_list *list = &node_known.lists[number];
    const uintptr_t at = node + list->word * sizeof(uintptr_t);
    const uintptr_t first = node_load(at), end = node_load(at + sizeof(uintptr_t));
    if (first == 0 || end < first || end - first > MOST_HOOKS * sizeof(uintptr_t)) {
        return 0;
    }
    for (uintptr_t entry = first; entry < end; entry += sizeof(uintptr_t)) {
        const uintptr_t hook = node_load(entry);
        /* A hook of another class is one of C++. */
        if (hook == 0 || node_load(hook) != list->table) {
            continue;
        }
        PyObject *dict = (PyObject *)node_load(hook + sizeof(uintptr_t));
        const int stop = dict == NULL ? 0 : visit(ctx, number, dict);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

int
ph_node_each_hooks(PyObject *node, ph_node_visit visit, void *ctx)
{
    if (!node_known.learnt || Py_TYPE(node)->tp_traverse != node_known.traverse ||
        node_address(node) == 0) {
        return 0;
    }
    for (int i = 0; i < PH_NODE_LISTS; i++) {
        const int stop = node_each_in_list(node_address(node), i, visit, ctx);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

/* ---- fields of types that publish none ------------------------------------------- */

#define MOST_FIELDS 128
#define FIELD_NAME_BYTES 32

typedef struct learnt_field {
    PyTypeObject *type; /* owned for good, so that no other type gets its address */
    size_t offset;
    unsigned proofs;
    bool wrong;
    char name[FIELD_NAME_BYTES];
} learnt_field;

static learnt_field learnt_fields[MOST_FIELDS];
static size_t learnt_count;

/* The one place in an object's own memory where `target` stands; 0 where there is none
 * or more than one. */
static size_t
fields_offset(PyObject *probe, PyObject *target)
{
    size_t found = 0;
    const size_t size = (size_t)Py_TYPE(probe)->tp_basicsize;
    for (size_t at = sizeof(PyObject); at + sizeof(void *) <= size;
         at += sizeof(void *)) {
        if (*(PyObject **)((char *)probe + at) == target) {
            if (found != 0) {
                return 0;
            }
            found = at;
        }
    }
    return found;
}

static learnt_field *
fields_entry(PyTypeObject *type, const char *name)
{
    for (size_t at = 0; at < learnt_count; at++) {
        learnt_field *field = &learnt_fields[at];
        if (field->type == type && strcmp(field->name, name) == 0) {
            return field;
        }
    }
    if (learnt_count == MOST_FIELDS || strlen(name) >= FIELD_NAME_BYTES) {
        return NULL;
    }
    learnt_field *field = &learnt_fields[learnt_count++];
    *field = (learnt_field){.type = type};
    Py_INCREF(type);
    memcpy(field->name, name, strlen(name) + 1);
    return field;
}

void
ph_fields_learn(PyObject *probe, const char *name, PyObject *target)
{
    const size_t offset = fields_offset(probe, target);
    learnt_field *field = fields_entry(Py_TYPE(probe), name);
    if (field == NULL) {
        return;
    }
    if (offset == 0 || (field->proofs > 0 && field->offset != offset)) {
        field->wrong = true;
    }
    field->offset = offset;
    field->proofs++;
}

int
ph_fields_each(PyObject *object, const PyTypeObject *type, ph_fields_visit visit,
               void *ctx)
{
    for (size_t at = 0; at < learnt_count; at++) {
        const learnt_field *field = &learnt_fields[at];
        if (field->type != type || field->wrong || field->proofs < 2) {
            continue;
        }
        PyObject *target = *(PyObject **)((char *)object + field->offset);
        const int stop = visit(ctx, field->name, target);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}
