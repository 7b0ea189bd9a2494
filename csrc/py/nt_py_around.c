/* SPDX-License-Identifier: Apache-2.0 */
/* A function with something done before and after each of its calls. It has no frame in
 * tracebacks and stacks, and looks like the function but for its type: whoever asks for
 * an attribute gets the function's. */
#include "nt_py.h"

typedef struct py_around {
    PyObject_HEAD PyObject *function;
    PyObject *before; /* called without arguments */
    PyObject *after;  /* called with what `before` gave, or None where that failed */
} py_around;

PyDoc_STRVAR(around_doc,
             "Around(function, before, after)\n--\n\n"
             "`function`, with after(before()) around each of its calls. What\n"
             "these raise is dropped, unless a handler of a signal raised it.");

static PyObject *
around_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "before", "after", NULL};
    PyObject *function, *before, *after;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:Around", names, &function,
                                     &before, &after)) {
        return NULL;
    }
    py_around *self = (py_around *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->function = Py_NewRef(function);
        self->before = Py_NewRef(before);
        self->after = Py_NewRef(after);
    }
    return (PyObject *)self;
}

static int
around_traverse(PyObject *object, visitproc visit, void *arg)
{
    py_around *self = (py_around *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->function);
    Py_VISIT(self->before);
    Py_VISIT(self->after);
    return 0;
}

static int
around_clear(PyObject *object)
{
    py_around *self = (py_around *)object;
    Py_CLEAR(self->function);
    Py_CLEAR(self->before);
    Py_CLEAR(self->after);
    return 0;
}

static void
around_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)around_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The frame in which what was raised was raised, new; NULL where no Python ran, or with
 * an exception. */
static PyObject *
around_innermost(PyObject *traceback)
{
    PyObject *at = Py_XNewRef(traceback);
    for (PyObject *next; at != NULL; at = next) {
        next = PyObject_GetAttrString(at, "tb_next");
        if (next == NULL || next == Py_None) {
            Py_XDECREF(next);
            break;
        }
        Py_DECREF(at);
    }
    PyObject *frame = at == NULL ? NULL : PyObject_GetAttrString(at, "tb_frame");
    Py_XDECREF(at);
    return frame;
}

/* Whether a frame's module is one of neutracer's. */
static bool
around_is_ours(PyObject *frame)
{
    PyObject *globals = PyObject_GetAttrString(frame, "f_globals");
    PyObject *name =
        globals == NULL ? NULL : PyMapping_GetItemString(globals, "__name__");
    const char *text =
        name == NULL || !PyUnicode_Check(name) ? NULL : PyUnicode_AsUTF8(name);
    const bool ours = text != NULL && strncmp(text, "neutracer.", 10) == 0;
    Py_XDECREF(globals);
    Py_XDECREF(name);
    return ours;
}

int
nt_py_drop_ours(void)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_Occurred()) {
        return 0;
    }
    const bool interrupts = !PyErr_ExceptionMatches(PyExc_Exception);
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *frame = interrupts ? NULL : around_innermost(traceback);
    const bool drop = !interrupts && (frame == NULL || around_is_ours(frame));
    PyErr_Clear();
    Py_XDECREF(frame);
    if (!drop) {
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return 0;
}

/* What a call gave, or None where it failed; NULL: it was interrupted. */
static PyObject *
around_settle(PyObject *given)
{
    if (given != NULL) {
        return given;
    }
    if (nt_py_drop_ours() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Calls `after`; the exception that is under way stays the one. -1: it was interrupted,
 * and nothing else was under way. */
static int
around_follow(py_around *self, PyObject *given)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = around_settle(PyObject_CallOneArg(self->after, given));
    Py_XDECREF(done);
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
        return 0;
    }
    return done == NULL ? -1 : 0;
}

static PyObject *
around_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    /* Nobody may have it when the call returns. */
    py_around *self = (py_around *)Py_NewRef(object);
    PyObject *result = NULL;
    PyObject *given = around_settle(PyObject_CallNoArgs(self->before));
    if (given != NULL) {
        result = PyObject_Call(self->function, args, kwargs);
        if (around_follow(self, given) < 0) {
            Py_CLEAR(result);
        }
        Py_DECREF(given);
    }
    Py_DECREF(self);
    return result;
}

static PyObject *
around_getattro(PyObject *object, PyObject *name)
{
    return PyObject_GetAttr(((py_around *)object)->function, name);
}

static PyObject *
around_repr(PyObject *object)
{
    return PyObject_Repr(((py_around *)object)->function);
}

static PyType_Slot around_slots[] = {
    {Py_tp_new, around_new},
    {Py_tp_dealloc, around_dealloc},
    {Py_tp_traverse, around_traverse},
    {Py_tp_clear, around_clear},
    {Py_tp_call, around_call},
    {Py_tp_getattro, around_getattro},
    {Py_tp_repr, around_repr},
    {Py_tp_doc, (void *)around_doc},
    {0, NULL},
};

PyType_Spec nt_py_around_spec = {
    .name = "neutracer._core.Around",
    .basicsize = sizeof(py_around),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = around_slots,
};
