/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

PyObject *
nt_py_layout_new(nt_py_state *state, nt_py_timeline *timeline, int32_t event)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_layout *layout = NULL;
    nt_status status;
    Py_BEGIN_ALLOW_THREADS status =
        nt_timeline_layout(timeline->timeline, event, &layout, &err);
    Py_END_ALLOW_THREADS if (status != NT_OK)
    {
        return nt_py_raise(status, &err);
    }
    nt_py_layout *self = PyObject_New(nt_py_layout, state->layout_type);
    if (self == NULL) {
        nt_timeline_layout_free(timeline->timeline, layout);
        return NULL;
    }
    self->timeline = (nt_py_timeline *)Py_NewRef((PyObject *)timeline);
    self->layout = layout;
    return (PyObject *)self;
}

static void
layout_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    nt_py_layout *self = (nt_py_layout *)object;
    nt_timeline_layout_free(self->timeline->timeline, self->layout);
    Py_DECREF(self->timeline);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(tables_doc,
             "tables()\n--\n\n"
             "A dict of the tables segments and blocks: each a dict name -> Column.");

static PyObject *
layout_tables(PyObject *self, PyObject *unused)
{
    (void)unused;
    return nt_py_layout_tables(nt_py_state_of(Py_TYPE(self)), self,
                               ((nt_py_layout *)self)->layout);
}

static PyMethodDef layout_methods[] = {
    {"tables", layout_tables, METH_NOARGS, tables_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot layout_slots[] = {
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_methods, layout_methods},
    {0, NULL},
};

PyType_Spec nt_py_layout_spec = {
    .name = "neutracer._core.Layout",
    .basicsize = sizeof(nt_py_layout),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = layout_slots,
};
