/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ph_tensor.h"

#include <stdio.h>

#include "names/ph_names_parts.h"
#include "tensor/ph_tensor_layout.h"

ph_tensor_state ph_tensor_learnt;

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

bool
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

/* ---- learning ----------------------------------------------------------------------
 */

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
            ph_names_learn(PyTuple_GET_ITEM(row, 0), name, PyTuple_GET_ITEM(row, 2));
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
    "tensor_type", "layouts",       "dtypes",         "fields",
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
    PyObject *module = PyImport_ImportModule("neutracer.heap.tensor_probes");
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
