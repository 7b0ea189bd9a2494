/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include <string.h>

#include "leak/nt_steps.h"

PyDoc_STRVAR(step_stacks_doc, "step_stacks(timeline, /)\n--\n\n"
                              "A byte for each stack id: 1 where an event names it.");

static PyObject *
steps_stacks(PyObject *module, PyObject *arg)
{
    const nt_py_state *state = PyModule_GetState(module);
    if (!PyObject_TypeCheck(arg, (PyTypeObject *)state->timeline_type)) {
        PyErr_SetString(PyExc_TypeError, "step_stacks() needs a Timeline of the core");
        return NULL;
    }
    const nt_timeline *timeline = ((nt_py_timeline *)arg)->timeline;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    const size_t device = (size_t)nt_timeline_device(timeline);
    const size_t stacks = nt_stacks_count(nt_snapshot_stacks(snapshot));
    PyObject *marks = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)stacks);
    if (marks == NULL) {
        return NULL;
    }
    memset(PyBytes_AS_STRING(marks), 0, stacks);
    if (device < nt_snapshot_trace_count(snapshot)) {
        (void)nt_steps_mark_stacks(snapshot, device,
                                   (uint8_t *)PyBytes_AS_STRING(marks));
    }
    return marks;
}

/* A string of the snapshot, or None. */
static PyObject *
steps_text(const nt_snapshot *snapshot, uint32_t text)
{
    if (text == NT_NONE) {
        return Py_NewRef(Py_None);
    }
    size_t length;
    const char *bytes = nt_strings_get(nt_snapshot_strings(snapshot), text, &length);
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)length, "surrogatepass");
}

static PyObject *
steps_tuple(const nt_snapshot *snapshot, const nt_steps *found)
{
    const size_t edges = found->edges == NULL ? 0 : found->count + 1;
    PyObject *frame = found->frame == NT_NONE ? Py_NewRef(Py_None)
                                              : PyLong_FromUnsignedLong(found->frame);
    return Py_BuildValue("iy#NN", (int)found->how,
                         edges == 0 ? "" : (const char *)found->edges,
                         (Py_ssize_t)(edges * sizeof *found->edges),
                         steps_text(snapshot, found->text), frame);
}

PyDoc_STRVAR(find_steps_doc,
             "find_steps(timeline, roles, /)\n--\n\n"
             "(how, edges as native 32-bit numbers, text or None, frame id or None): "
             "nt_steps of\n"
             "the timeline's device. `roles` has a byte for each stack id.");

static PyObject *
steps_find(PyObject *module, PyObject *args)
{
    const nt_py_state *state = PyModule_GetState(module);
    PyObject *object;
    Py_buffer roles;
    if (!PyArg_ParseTuple(args, "O!y*", state->timeline_type, &object, &roles)) {
        return NULL;
    }
    const nt_timeline *timeline = ((nt_py_timeline *)object)->timeline;
    const nt_snapshot *snapshot = nt_timeline_snapshot(timeline);
    const size_t device = (size_t)nt_timeline_device(timeline);
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_steps found = {.alloc = alloc, .text = NT_NONE, .frame = NT_NONE};
    nt_status status = NT_OK;
    if ((size_t)roles.len != nt_stacks_count(nt_snapshot_stacks(snapshot))) {
        PyBuffer_Release(&roles);
        PyErr_SetString(PyExc_ValueError, "roles must have a byte for each stack");
        return NULL;
    }
    if (device < nt_snapshot_trace_count(snapshot)) {
        Py_BEGIN_ALLOW_THREADS status =
            nt_steps_find(&alloc, snapshot, device, roles.buf, &found, &err);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&roles);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    PyObject *result = steps_tuple(snapshot, &found);
    nt_steps_clear(&found);
    return result;
}

PyMethodDef nt_py_steps_methods[] = {
    {"step_stacks", steps_stacks, METH_O, step_stacks_doc},
    {"find_steps", steps_find, METH_VARARGS, find_steps_doc},
    {NULL, NULL, 0, NULL},
};
