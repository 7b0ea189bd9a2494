/* SPDX-License-Identifier: Apache-2.0 */
/* Names of references and facts of tensors, for Python: csrc/pyheap/ph_names.h and
 * ph_tensor.h say what they mean. */
#include "nt_py.h"

#include "ph_names.h"
#include "ph_tensor.h"

static PyObject *
names_prepare(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_names_prepare(&err);
    return status == NT_OK ? Py_NewRef(Py_None) : nt_py_raise_heap(status, &err);
}

static PyObject *
names_tensor_prepare(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_tensor_prepare(&err);
    return status == NT_OK
               ? Py_NewRef(Py_None)
               : nt_py_raise_unavailable(status, &err,
                                         "a view of this torch's tensors in memory");
}

static PyObject *
names_shape(const ph_tensor *tensor)
{
    const uint32_t count =
        tensor->ndim < PH_TENSOR_DIMS ? tensor->ndim : PH_TENSOR_DIMS;
    PyObject *shape = PyTuple_New((Py_ssize_t)count);
    for (uint32_t at = 0; shape != NULL && at < count; at++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[at]);
        if (size == NULL) {
            Py_CLEAR(shape);
        } else {
            PyTuple_SET_ITEM(shape, (Py_ssize_t)at, size);
        }
    }
    return shape;
}

static PyObject *
names_tensor_facts(PyObject *module, PyObject *object)
{
    (void)module;
    ph_tensor t;
    if (!ph_tensor_check(object) || !ph_tensor_read(object, &t)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue(
        "{sK sK sK sK sN sk ss ss si sO sO sL sL sK}", "impl",
        (unsigned long long)t.impl, "storage", (unsigned long long)t.storage,
        "data_ptr", (unsigned long long)t.data_ptr, "storage_bytes",
        (unsigned long long)t.storage_bytes, "shape", names_shape(&t), "ndim",
        (unsigned long)t.ndim, "dtype", ph_tensor_dtype_name(t.dtype), "device_type",
        ph_tensor_device_name(t.device_type), "device_index", (int)t.device_index,
        "requires_grad", t.requires_grad ? Py_True : Py_False, "has_grad_fn",
        t.has_grad_fn ? Py_True : Py_False, "numel", (long long)t.numel,
        "storage_offset", (long long)t.storage_offset, "use_count",
        (unsigned long long)t.use_count);
}

/* One reference as (target, kind, name), the name as UTF-8. */
static int
names_append(void *ctx, PyObject *target, ph_edge_kind kind, const char *name)
{
    PyObject *row =
        Py_BuildValue("(OsN)", target, ph_edge_kind_name(kind), nt_py_message(name));
    const int failed = row == NULL ? -1 : PyList_Append(ctx, row);
    Py_XDECREF(row);
    return failed;
}

static PyObject *
names_references(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    /* No collection may run its finalizers on what is being looked at. */
    const int enabled = PyGC_Disable();
    if (ph_names_each(object, names_append, list) != 0) {
        Py_CLEAR(list);
    }
    if (enabled) {
        PyGC_Enable();
    }
    return list;
}

static PyObject *
names_reference(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *owner, *target, *container = NULL;
    ph_edge_kind kind;
    char name[PH_NAME_BYTES];
    if (!PyArg_ParseTuple(args, "OO|O", &owner, &target, &container)) {
        return NULL;
    }
    if (container == NULL ? !ph_names_find(owner, target, &kind, name)
                          : !ph_names_through(owner, container, target, &kind, name)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(sN)", ph_edge_kind_name(kind), nt_py_message(name));
}

static PyObject *
names_label(PyObject *module, PyObject *object)
{
    (void)module;
    ph_label label;
    ph_names_label(object, &label);
    return Py_BuildValue("(sNNNi)", ph_node_kind_name(label.kind),
                         nt_py_message(label.type), nt_py_message(label.text),
                         nt_py_message(label.file), label.line);
}

PyDoc_STRVAR(names_prepare_doc,
             "names_prepare()\n--\n\n"
             "Learns where Python keeps what. Cheap when called again.");
PyDoc_STRVAR(
    tensor_prepare_doc,
    "tensor_prepare()\n--\n\n"
    "Learns where the imported torch keeps what; raises with the reason where\n"
    "that can't be known. Cheap when called again.");
PyDoc_STRVAR(tensor_facts_doc,
             "tensor_facts(object, /)\n--\n\n"
             "A tensor's facts as they lie in memory, or None for anything else.");
PyDoc_STRVAR(references_doc,
             "references(object, /)\n--\n\n"
             "(target, kind, name) of every reference that has a name.");
PyDoc_STRVAR(reference_doc,
             "reference(owner, target, container=None, /)\n--\n\n"
             "(kind, name) of one reference, through a container where one is given;\n"
             "None where it has no name.");
PyDoc_STRVAR(label_doc, "label(object, /)\n--\n\n"
                        "(kind, type, text, file, line) of an object.");

PyMethodDef nt_py_names_methods[] = {
    {"names_prepare", names_prepare, METH_NOARGS, names_prepare_doc},
    {"tensor_prepare", names_tensor_prepare, METH_NOARGS, tensor_prepare_doc},
    {"tensor_facts", names_tensor_facts, METH_O, tensor_facts_doc},
    {"references", names_references, METH_O, references_doc},
    {"reference", names_reference, METH_VARARGS, reference_doc},
    {"label", names_label, METH_O, label_doc},
    {NULL, NULL, 0, NULL},
};
