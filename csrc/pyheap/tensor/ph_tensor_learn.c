/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding torch's layout: for each field the bytes of all probes are compared with
 * what torch says of them, from the object's beginning on, and the first place that
 * fits every probe is the field's. No more of an object is looked at than up to that
 * place, so that nothing outside of it is read unless torch has a field that is not
 * there at all; then the search ends within a window that is shorter than any of these
 * objects.
 */
#include <stdlib.h>

#include "tensor/ph_tensor_layout.h"

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

/* ---- facts from Python -------------------------------------------------------------
 */

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

/* ---- the search --------------------------------------------------------------------
 */

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

/* ---- the proof ---------------------------------------------------------------------
 */

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

nt_status
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
