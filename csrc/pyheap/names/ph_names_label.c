/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "names/ph_names_parts.h"
#include "tensor/ph_tensor.h"
#include "compat/py_compat_objects.h"

#include "frameobject.h"

/* Characters of a str that are shown as its label. */
#define STR_BYTES 48

typedef struct label_place {
    PyCodeObject *code;
    int line; /* 0: where the code begins */
} label_place;

static PyCodeObject *
label_code(PyObject *object)
{
    PyObject *code = NULL;
    if (object != NULL && PyFunction_Check(object)) {
        code = PyFunction_GET_CODE(object);
    } else if (object != NULL && PyCode_Check(object)) {
        code = object;
    }
    return code != NULL && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
}

/*
 * The first function that a class's body defines. A decorated one has its decorator's
 * code under another name, and a generated one has no file; both names are interned.
 */
static PyCodeObject *
label_class_code(PyTypeObject *type)
{
    PyObject *dict = py_compat_type_dict(type);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (dict != NULL && PyDict_Next(dict, &at, &key, &value)) {
        PyCodeObject *code = PyFunction_Check(value) ? label_code(value) : NULL;
        if (code != NULL && code->co_name == key &&
            !ph_text_is(code->co_filename, "<string>")) {
            return code;
        }
    }
    return NULL;
}

/* Where a class is: from 3.13 on it says itself in which line. */
static label_place
label_class_place(PyTypeObject *type)
{
    label_place place = {.code = NULL};
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        place.code = label_class_code(type);
        PyObject *line = ph_names_lookup(py_compat_type_dict(type), "__firstlineno__");
        if (line != NULL && PyLong_CheckExact(line)) {
            int overflow = 0;
            const long first = PyLong_AsLongAndOverflow(line, &overflow);
            place.line = overflow == 0 && first > 0 && first < INT_MAX ? (int)first : 0;
        }
    }
    return place;
}

static void
label_add(ph_label *out, const char *words, PyObject *str)
{
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, words);
    if (str != NULL) {
        ph_text_add_str(&text, str, false);
    }
}

/* "Callback", "dict of 12": the type's short name, and a count unless below 0. */
static void
label_add_type(ph_label *out, const char *words, PyTypeObject *type, Py_ssize_t count)
{
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, words);
    ph_text_add_type(&text, type, false);
    if (count >= 0) {
        ph_text_add(&text, " of ");
        ph_text_add_number(&text, count);
    }
}

/* The name that a callable has in its own memory; NULL where it has none. */
static PyObject *
label_callable_name(PyObject *callable)
{
    return callable != NULL && PyFunction_Check(callable)
               ? ((PyFunctionObject *)callable)->func_name
               : NULL;
}

static void
label_method(PyObject *object, ph_label *out, label_place *place)
{
    PyObject *function = ((PyMethodObject *)object)->im_func;
    PyObject *name = label_callable_name(function);
    out->kind = PH_NODE_METHOD;
    if (name != NULL) {
        label_add(out, "method ", name);
    } else if (function != NULL) {
        label_add_type(out, "method ", Py_TYPE(function), -1);
    }
    place->code = label_code(function);
}

static void
label_c_function(PyObject *object, ph_label *out)
{
    const PyCFunctionObject *function = (const PyCFunctionObject *)object;
    const bool bound = function->m_self != NULL && !PyModule_Check(function->m_self);
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, bound ? "method " : "function ");
    ph_text_add(&text, function->m_ml == NULL || function->m_ml->ml_name == NULL
                           ? "?"
                           : function->m_ml->ml_name);
    out->kind = bound ? PH_NODE_METHOD : PH_NODE_FUNCTION;
}

static const char *
label_frame_words(PyObject *object)
{
    return PyFrame_Check(object)       ? "frame of "
           : PyGen_CheckExact(object)  ? "generator "
           : PyCoro_CheckExact(object) ? "coroutine "
                                       : "async generator ";
}

static void
label_frame(PyObject *object, ph_label *out, label_place *place)
{
    py_compat_frame frame;
    PyObject *name = NULL;
    out->kind = PH_NODE_FRAME;
    if (ph_names_checked.frames_known && py_compat_frame_read(object, &frame)) {
        place->code = frame.code;
        place->line = frame.line;
        name = frame.code->co_name;
    }
    if (!PyFrame_Check(object)) {
        py_compat_generator held;
        py_compat_generator_read(object, &held);
        name = held.name;
    }
    label_add(out, label_frame_words(object), name);
}

static void
label_traceback(PyObject *object, ph_label *out, label_place *place)
{
    const PyTracebackObject *traceback = (const PyTracebackObject *)object;
    py_compat_frame frame;
    out->kind = PH_NODE_TRACEBACK;
    label_add(out, "traceback", NULL);
    if (traceback->tb_frame == NULL || !ph_names_checked.frames_known ||
        !py_compat_frame_read((PyObject *)traceback->tb_frame, &frame)) {
        return;
    }
    place->code = frame.code;
    /* The line is worked out when somebody asks; below 1 nobody has. */
    place->line = traceback->tb_lineno > 0
                      ? traceback->tb_lineno
                      : PyCode_Addr2Line(frame.code, traceback->tb_lasti);
    label_add(out, "traceback in ", frame.code->co_name);
}

static void
label_module(PyObject *object, ph_label *out)
{
    PyObject *name = ph_names_lookup(py_compat_instance_dict(object), "__name__");
    out->kind = PH_NODE_MODULE;
    label_add(out, "module ", name != NULL && PyUnicode_Check(name) ? name : NULL);
}

/* What runs, or is called. */
static bool
label_code_object(PyObject *object, ph_label *out, label_place *place)
{
    if (PyFunction_Check(object)) {
        out->kind = PH_NODE_FUNCTION;
        label_add(out, "function ", label_callable_name(object));
        place->code = label_code(object);
    } else if (PyMethod_Check(object)) {
        label_method(object, out, place);
    } else if (PyCFunction_Check(object)) {
        label_c_function(object, out);
    } else if (PyFrame_Check(object) || PyGen_CheckExact(object) ||
               PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object)) {
        label_frame(object, out, place);
    } else if (PyTraceBack_Check(object)) {
        label_traceback(object, out, place);
    } else if (PyCode_Check(object)) {
        label_add(out, "code of ", ((PyCodeObject *)object)->co_name);
        place->code = (PyCodeObject *)object;
    } else {
        return false;
    }
    return true;
}

/* The number of entries of a container; -1 for what is none. */
static Py_ssize_t
label_count(PyObject *object)
{
    if (PyDict_Check(object)) {
        return PyDict_GET_SIZE(object);
    }
    if (PyAnySet_Check(object)) {
        return PySet_GET_SIZE(object);
    }
    if (PyList_Check(object) || PyTuple_Check(object) || ph_names_is_deque(object)) {
        return Py_SIZE(object);
    }
    return -1;
}

/* Numbers and texts; only exact ones are shown with their value. */
static bool
label_leaf(PyObject *object, ph_label *out)
{
    if (PyUnicode_CheckExact(object)) {
        char shown[STR_BYTES];
        ph_text text;
        ph_text_begin(&text, shown, sizeof shown);
        ph_text_add_str(&text, object, true);
        ph_text_begin(&text, out->text, sizeof out->text);
        ph_text_add(&text, "'");
        ph_text_add(&text, shown);
        ph_text_add(&text, "'");
    } else if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object)) {
        ph_text text;
        ph_text_begin(&text, out->text, sizeof out->text);
        ph_text_add_key(&text, object);
    } else if (PyBytes_CheckExact(object)) {
        label_add_type(out, "", Py_TYPE(object), Py_SIZE(object));
    } else if (PyFloat_CheckExact(object) || PyComplex_CheckExact(object)) {
        label_add_type(out, "", Py_TYPE(object), -1);
    } else {
        return false;
    }
    out->kind = PH_NODE_LEAF;
    return true;
}

static void
label_weak(PyObject *object, ph_label *out)
{
    PyObject *target = ((PyWeakReference *)object)->wr_object;
    if (target == NULL || target == Py_None || Py_REFCNT(target) <= 0) {
        label_add(out, "dead weak reference", NULL);
    } else {
        label_add_type(out, "weak reference to ", Py_TYPE(target), -1);
    }
}

static void
label_thing(PyObject *object, ph_label *out, label_place *place)
{
    const Py_ssize_t count = label_count(object);
    if (PyType_Check(object)) {
        out->kind = PH_NODE_TYPE;
        label_add_type(out, "class ", (PyTypeObject *)object, -1);
        *place = label_class_place((PyTypeObject *)object);
    } else if (PyModule_Check(object)) {
        label_module(object, out);
    } else if (PyCell_Check(object)) {
        out->kind = PH_NODE_CELL;
        label_add(out, "cell", NULL);
    } else if (PyWeakref_Check(object)) {
        label_weak(object, out);
    } else {
        label_add_type(out, "", Py_TYPE(object), count);
        out->kind = count >= 0                          ? PH_NODE_CONTAINER
                    : PyExceptionInstance_Check(object) ? PH_NODE_EXCEPTION
                    : ph_tensor_check(object)           ? PH_NODE_TENSOR
                                                        : PH_NODE_OBJECT;
        if (out->kind != PH_NODE_TENSOR) {
            *place = label_class_place(Py_TYPE(object));
        }
    }
}

void
ph_names_label(PyObject *object, ph_label *out)
{
    label_place place = {.code = NULL};
    ph_text text;
    *out = (ph_label){.kind = PH_NODE_OBJECT};
    ph_text_begin(&text, out->type, sizeof out->type);
    ph_text_add_type(&text, Py_TYPE(object), true);
    if (!label_leaf(object, out) && !label_code_object(object, out, &place)) {
        label_thing(object, out, &place);
    }
    out->is_strong = Py_TYPE(object)->tp_weaklistoffset == 0;
    if (place.code != NULL && place.code->co_filename != NULL) {
        ph_text_begin(&text, out->file, sizeof out->file);
        ph_text_add_path(&text, place.code->co_filename);
        const int line = place.line > 0 ? place.line : place.code->co_firstlineno;
        out->line = line > 0 ? line : 0;
    }
}
