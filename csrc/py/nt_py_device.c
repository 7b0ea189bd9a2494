/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "monitor/nt_device.h"

/* A size, or None where it is not known. */
static PyObject *
device_size(uint64_t bytes)
{
    return bytes == NT_DEVICE_UNKNOWN ? Py_NewRef(Py_None)
                                      : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *
device_info(const nt_device_info *info)
{
    return Py_BuildValue("(NNO)", nt_py_message(info->uuid), nt_py_message(info->name),
                         info->is_mig ? Py_True : Py_False);
}

static PyObject *
device_memory(const nt_device_memory *m)
{
    return Py_BuildValue("(NNNN)", device_size(m->total), device_size(m->free),
                         device_size(m->used), device_size(m->reserved));
}

/* Appends `item` (stolen; NULL with an exception is passed on); the list goes if that
 * fails. */
static bool
device_append(PyObject **list, PyObject *item)
{
    if (*list != NULL && (item == NULL || PyList_Append(*list, item) < 0)) {
        Py_CLEAR(*list);
    }
    Py_XDECREF(item);
    return *list != NULL;
}

/* ---- Devices --------------------------------------------------------------------- */

typedef struct py_devices {
    PyObject_HEAD nt_device *device;
    PyObject *driver; /* the name of the driver's library, which `device` points into */
} py_devices;

PyDoc_STRVAR(devices_doc,
             "Devices(nvml=None, driver=None)\n--\n\n"
             "The devices of this machine by NVML, and those that CUDA shows to this\n"
             "process by the driver, each loaded by this name.");

static nt_device *
device_of(PyObject *self)
{
    return ((py_devices *)self)->device;
}

static PyObject *
devices_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nvml", "driver", NULL};
    const char *nvml = NULL;
    PyObject *driver = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zO", names, &nvml, &driver)) {
        return NULL;
    }
    const char *driver_name = NULL;
    if (driver != Py_None) {
        driver_name = PyUnicode_AsUTF8(driver);
        if (driver_name == NULL) {
            return NULL;
        }
    }
    const nt_alloc alloc = nt_alloc_system();
    const nt_device_names libraries = {nvml, driver_name};
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_device *device = NULL;
    nt_status status;
    /* NVML takes some 20 ms to start. */
    Py_BEGIN_ALLOW_THREADS status = nt_device_open(&alloc, &libraries, &device, &err);
    Py_END_ALLOW_THREADS py_devices *self =
        status == NT_OK ? (py_devices *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        nt_device_close(device);
        return status == NT_OK ? NULL : nt_py_raise(status, &err);
    }
    self->device = device;
    self->driver = Py_NewRef(driver);
    return (PyObject *)self;
}

static void
devices_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_device_close(device_of(self));
    Py_XDECREF(((py_devices *)self)->driver);
    type->tp_free(self);
    Py_DECREF(type);
}

const nt_device *
nt_py_device_of(PyObject *devices)
{
    if (Py_TYPE(devices)->tp_dealloc != devices_dealloc) {
        PyErr_SetString(PyExc_TypeError, "expected a Devices");
        return NULL;
    }
    return device_of(devices);
}

PyDoc_STRVAR(devices_reason_doc, "Why there is no NVML; None where there is.");

static PyObject *
devices_reason(PyObject *self, void *Py_UNUSED(unused))
{
    const char *reason = nt_device_nvml_reason(device_of(self));
    return reason == NULL ? Py_NewRef(Py_None) : nt_py_message(reason);
}

PyDoc_STRVAR(devices_version_doc, "The driver's version; '' where it is not known.");

static PyObject *
devices_version(PyObject *self, void *Py_UNUSED(unused))
{
    return nt_py_message(nt_device_driver_version(device_of(self)));
}

PyDoc_STRVAR(devices_list_doc,
             "slots()\n--\n\n"
             "NVML's devices, by slot: (uuid, name, is cut into instances).");

static PyObject *
devices_slot_list(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < nt_device_count(device_of(self)); i++) {
        device_append(&list, device_info(nt_device_get(device_of(self), i)));
    }
    return list;
}

PyDoc_STRVAR(devices_find_doc, "find(uuid, /)\n--\n\n"
                               "The slot of the device with this full UUID, or None.");

static PyObject *
devices_find(PyObject *self, PyObject *uuid)
{
    const char *text = PyUnicode_AsUTF8(uuid);
    size_t slot;
    if (text == NULL) {
        return NULL;
    }
    return nt_device_find(device_of(self), text, &slot) ? PyLong_FromSize_t(slot)
                                                        : Py_NewRef(Py_None);
}

PyDoc_STRVAR(devices_memory_doc,
             "memory(slot, /)\n--\n\n"
             "(total, free, used, reserved by the driver or None) in bytes.");

static PyObject *
devices_memory(PyObject *self, PyObject *number)
{
    const size_t slot = PyLong_AsSize_t(number);
    if (slot == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_device_memory memory;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_device_read_memory(device_of(self), slot, &memory, &err);
    Py_END_ALLOW_THREADS return status == NT_OK ? device_memory(&memory)
                                                : nt_py_raise(status, &err);
}

PyDoc_STRVAR(devices_processes_doc,
             "processes(slot, /)\n--\n\n"
             "(pid as the host numbers it, bytes or None) of each process.");

static PyObject *
devices_processes(PyObject *self, PyObject *number)
{
    const size_t slot = PyLong_AsSize_t(number);
    if (slot == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_device_process rows[NT_DEVICE_MOST_PROCESSES];
    size_t count = 0;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status = nt_device_read_processes(
        device_of(self), slot, rows, NT_DEVICE_MOST_PROCESSES, &count, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise_unavailable(status, &err,
                                       "a list of the device's processes");
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        device_append(&list, Py_BuildValue("(kN)", (unsigned long)rows[i].pid,
                                           device_size(rows[i].used)));
    }
    return list;
}

PyDoc_STRVAR(devices_visible_doc,
             "visible()\n--\n\n"
             "The devices that CUDA shows to this process, as slots() has them.");

static PyObject *
devices_visible(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    size_t count;
    nt_status status = nt_device_count_visible(device_of(self), &count, &err);
    if (status != NT_OK) {
        return nt_py_raise_unavailable(status, &err, "the CUDA driver in this process");
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        nt_device_info info;
        status = nt_device_get_visible(device_of(self), i, &info, &err);
        if (status != NT_OK) {
            Py_DECREF(list);
            return nt_py_raise_unavailable(status, &err,
                                           "the CUDA driver in this process");
        }
        device_append(&list, device_info(&info));
    }
    return list;
}

PyDoc_STRVAR(devices_visible_memory_doc,
             "visible_memory(ordinal, /)\n--\n\n"
             "As memory(), by the CUDA driver; None where it can't tell.");

static PyObject *
devices_visible_memory(PyObject *self, PyObject *number)
{
    const size_t ordinal = PyLong_AsSize_t(number);
    if (ordinal == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_device_memory memory;
    const nt_status status =
        nt_device_read_visible(device_of(self), ordinal, &memory, &err);
    return status == NT_OK ? device_memory(&memory)
                           : nt_py_raise_unavailable(status, &err,
                                                     "the CUDA driver in this process");
}

PyDoc_STRVAR(devices_has_driver_doc,
             "has_driver()\n--\n\n"
             "Whether the CUDA driver can be loaded; nothing in it is called.");

static PyObject *
devices_has_driver(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(nt_device_has_driver(device_of(self)));
}

static PyMethodDef devices_methods[] = {
    {"slots", devices_slot_list, METH_NOARGS, devices_list_doc},
    {"find", devices_find, METH_O, devices_find_doc},
    {"memory", devices_memory, METH_O, devices_memory_doc},
    {"processes", devices_processes, METH_O, devices_processes_doc},
    {"has_driver", devices_has_driver, METH_NOARGS, devices_has_driver_doc},
    {"visible", devices_visible, METH_NOARGS, devices_visible_doc},
    {"visible_memory", devices_visible_memory, METH_O, devices_visible_memory_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef devices_fields[] = {
    {"reason", devices_reason, NULL, devices_reason_doc, NULL},
    {"version", devices_version, NULL, devices_version_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot devices_slots[] = {
    {Py_tp_new, devices_new},         {Py_tp_dealloc, devices_dealloc},
    {Py_tp_methods, devices_methods}, {Py_tp_getset, devices_fields},
    {Py_tp_doc, (void *)devices_doc}, {0, NULL},
};

PyType_Spec nt_py_devices_spec = {
    .name = "neutracer._core.Devices",
    .basicsize = sizeof(py_devices),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = devices_slots,
};
