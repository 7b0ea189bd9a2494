/* SPDX-License-Identifier: Apache-2.0 */
/* References of the types whose structs are in Python's public headers. */
#include "names/ph_names_parts.h"
#include "compat/py_compat_objects.h"

#include "frameobject.h"

static int
builtin_dict(ph_round *round, PyObject *source)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(source, &at, &key, &value)) {
        if (PH_ROUND_WANTS(round, value)) {
            ph_text text;
            ph_text_begin(&text, round->name, sizeof round->name);
            ph_text_add_key(&text, key);
            PH_ROUND_TRY(round->visit(round->ctx, value, PH_EDGE_VALUE, round->name));
        }
        const char *word = PyWeakref_Check(key) ? "weak key" : "key";
        PH_ROUND_TRY(ph_round_emit(round, key, PH_EDGE_KEY, word));
    }
    return 0;
}

/* The field names of a named tuple's class, or NULL. */
static PyObject *
builtin_field_names(PyObject *source)
{
    PyTypeObject *type = Py_TYPE(source);
    if (type == &PyTuple_Type || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        return NULL;
    }
    PyObject *names = NULL;
    for (; names == NULL && type != NULL && type != &PyTuple_Type;
         type = type->tp_base) {
        names = ph_names_lookup(py_compat_type_dict(type), "_fields");
    }
    return names != NULL && PyTuple_CheckExact(names) &&
                   PyTuple_GET_SIZE(names) == PyTuple_GET_SIZE(source)
               ? names
               : NULL;
}

static int
builtin_tuple(ph_round *round, PyObject *source)
{
    PyObject *names = builtin_field_names(source);
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(source); at++) {
        PyObject *item = PyTuple_GET_ITEM(source, at);
        PyObject *name = names == NULL ? NULL : PyTuple_GET_ITEM(names, at);
        if (name != NULL && PyUnicode_Check(name)) {
            PH_ROUND_TRY(ph_round_emit_str(round, item, PH_EDGE_ATTRIBUTE, name));
        } else {
            PH_ROUND_TRY(ph_round_emit_index(round, item, PH_EDGE_ITEM, at));
        }
    }
    return 0;
}

static int
builtin_list(ph_round *round, PyObject *source)
{
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(source); at++) {
        PH_ROUND_TRY(
            ph_round_emit_index(round, PyList_GET_ITEM(source, at), PH_EDGE_ITEM, at));
    }
    return 0;
}

static int
builtin_set(ph_round *round, PyObject *source)
{
    const PySetObject *set = (const PySetObject *)source;
    for (Py_ssize_t at = 0; set->table != NULL && at <= set->mask; at++) {
        /* A place that was given up has the hash -1, which no object has. */
        PyObject *key = set->table[at].hash == -1 ? NULL : set->table[at].key;
        PH_ROUND_TRY(ph_round_emit(round, key, PH_EDGE_MEMBER, ""));
    }
    return 0;
}

static int
builtin_function(ph_round *round, PyObject *source)
{
    const PyFunctionObject *f = (const PyFunctionObject *)source;
    const ph_edge_kind field = PH_EDGE_FIELD;
    PH_ROUND_TRY(ph_round_emit(round, f->func_closure, PH_EDGE_CLOSURE, "__closure__"));
    PH_ROUND_TRY(
        ph_round_emit(round, f->func_defaults, PH_EDGE_DEFAULT, "__defaults__"));
    PH_ROUND_TRY(
        ph_round_emit(round, f->func_kwdefaults, PH_EDGE_DEFAULT, "__kwdefaults__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_globals, PH_EDGE_GLOBALS, "__globals__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_code, field, "__code__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_annotations, field, "__annotations__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_builtins, field, "__builtins__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_module, field, "__module__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_doc, field, "__doc__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_name, field, "__name__"));
#if PY_VERSION_HEX >= 0x030C0000
    PH_ROUND_TRY(ph_round_emit(round, f->func_typeparams, field, "__type_params__"));
#endif
    return ph_round_emit(round, f->func_qualname, field, "__qualname__");
}

static int
builtin_method(ph_round *round, PyObject *source)
{
    const PyMethodObject *method = (const PyMethodObject *)source;
    PH_ROUND_TRY(ph_round_emit(round, method->im_self, PH_EDGE_SELF, "__self__"));
    return ph_round_emit(round, method->im_func, PH_EDGE_FUNCTION, "__func__");
}

static int
builtin_c_function(ph_round *round, PyObject *source)
{
    const PyCFunctionObject *function = (const PyCFunctionObject *)source;
    PH_ROUND_TRY(ph_round_emit(round, function->m_self, PH_EDGE_SELF, "__self__"));
    return ph_round_emit(round, function->m_module, PH_EDGE_FIELD, "__module__");
}

static int
builtin_exception(ph_round *round, PyObject *source)
{
    const PyBaseExceptionObject *error = (const PyBaseExceptionObject *)source;
    const ph_edge_kind kind = PH_EDGE_EXCEPTION;
    PH_ROUND_TRY(ph_round_emit(round, error->traceback, kind, "__traceback__"));
    PH_ROUND_TRY(ph_round_emit(round, error->context, kind, "__context__"));
    PH_ROUND_TRY(ph_round_emit(round, error->cause, kind, "__cause__"));
#if PY_VERSION_HEX >= 0x030B0000
    PH_ROUND_TRY(ph_round_emit(round, error->notes, PH_EDGE_FIELD, "__notes__"));
#endif
    return ph_round_emit(round, error->args, PH_EDGE_FIELD, "args");
}

static int
builtin_traceback(ph_round *round, PyObject *source)
{
    const PyTracebackObject *traceback = (const PyTracebackObject *)source;
    PyObject *frame = (PyObject *)traceback->tb_frame;
    PyObject *next = (PyObject *)traceback->tb_next;
    PH_ROUND_TRY(ph_round_emit(round, frame, PH_EDGE_FRAME, "tb_frame"));
    return ph_round_emit(round, next, PH_EDGE_EXCEPTION, "tb_next");
}

static int
builtin_type(ph_round *round, PyObject *source)
{
    PyTypeObject *type = (PyTypeObject *)source;
    const ph_edge_kind kind = PH_EDGE_CLASS;
    PyObject *base = (PyObject *)type->tp_base;
    PH_ROUND_TRY(ph_round_emit(round, py_compat_type_dict(type), PH_EDGE_INSTANCE_DICT,
                               "__dict__"));
    PH_ROUND_TRY(ph_round_emit(round, base, kind, "__base__"));
#if PY_VERSION_HEX < 0x030C0000
    PH_ROUND_TRY(ph_round_emit(round, type->tp_bases, kind, "__bases__"));
    PH_ROUND_TRY(ph_round_emit(round, type->tp_mro, kind, "__mro__"));
#else
    /* From 3.12 on the built-in static types keep them with the interpreter. */
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PH_ROUND_TRY(ph_round_emit(round, type->tp_bases, kind, "__bases__"));
        PH_ROUND_TRY(ph_round_emit(round, type->tp_mro, kind, "__mro__"));
    }
#endif
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
        PH_ROUND_TRY(ph_round_emit(round, module, kind, "module"));
    }
    return 0;
}

static int
builtin_values(ph_round *round, const py_compat_frame *frame)
{
    for (Py_ssize_t at = 0; frame->values != NULL && at < frame->count; at++) {
        PyObject *value = py_compat_frame_value(frame, at, NULL);
        PyObject *name =
            at < frame->named ? py_compat_local_name(frame->code, at) : NULL;
        if (name != NULL) {
            PH_ROUND_TRY(ph_round_emit_str(round, value, PH_EDGE_LOCAL, name));
        } else {
            PH_ROUND_TRY(ph_round_emit(round, value, PH_EDGE_LOCAL, "(temporary)"));
        }
    }
    return 0;
}

static int
builtin_frame(ph_round *round, PyObject *source)
{
    py_compat_frame frame;
    if (!ph_names_checked.frames_known || !py_compat_frame_read(source, &frame)) {
        return 0;
    }
    PyObject *code = (PyObject *)frame.code;
    const ph_edge_kind field = PH_EDGE_FIELD;
    PH_ROUND_TRY(builtin_values(round, &frame));
    PH_ROUND_TRY(ph_round_emit(round, frame.back, PH_EDGE_FRAME, "f_back"));
    PH_ROUND_TRY(ph_round_emit(round, frame.frame, PH_EDGE_FRAME, "gi_frame"));
    PH_ROUND_TRY(ph_round_emit(round, frame.locals, field, "f_locals"));
    PH_ROUND_TRY(ph_round_emit(round, frame.globals, PH_EDGE_GLOBALS, "f_globals"));
    PH_ROUND_TRY(ph_round_emit(round, frame.builtins, field, "f_builtins"));
    PH_ROUND_TRY(ph_round_emit(round, frame.trace, field, "f_trace"));
    PH_ROUND_TRY(ph_round_emit(round, frame.function, PH_EDGE_FUNCTION, "f_func"));
    return ph_round_emit(round, code, field, "f_code");
}

static int
builtin_generator(ph_round *round, PyObject *source)
{
    const char *origin = PyCoro_CheckExact(source) ? "cr_origin" : "finalizer";
    const ph_edge_kind handled = PH_EDGE_EXCEPTION;
    py_compat_generator held;
    PH_ROUND_TRY(builtin_frame(round, source));
    py_compat_generator_read(source, &held);
    PH_ROUND_TRY(ph_round_emit(round, held.handled, handled, "handled exception"));
    PH_ROUND_TRY(
        ph_round_emit(round, held.handled_traceback, handled, "handled traceback"));
    PH_ROUND_TRY(ph_round_emit(round, held.origin, PH_EDGE_FIELD, origin));
    PH_ROUND_TRY(ph_round_emit(round, held.name, PH_EDGE_FIELD, "__name__"));
    return ph_round_emit(round, held.qualname, PH_EDGE_FIELD, "__qualname__");
}

typedef struct builtin_order {
    ph_round *round;
    Py_ssize_t at;
} builtin_order;

static int
builtin_count_visit(PyObject *target, void *ctx)
{
    (void)target;
    ++*(Py_ssize_t *)ctx;
    return 0;
}

static int
builtin_visit_item(PyObject *target, void *ctx)
{
    builtin_order *order = ctx;
    const Py_ssize_t at = order->at++;
    return at < 0 ? 0 : ph_round_emit_index(order->round, target, PH_EDGE_ITEM, at);
}

/* A deque's blocks are private; its own tp_traverse shows its items in their order, and
 * before them its type where the type is on the heap. */
static int
builtin_deque(ph_round *round, PyObject *source)
{
    const traverseproc traverse = ph_names_checked.deque->tp_traverse;
    Py_ssize_t shown = 0;
    (void)traverse(source, builtin_count_visit, &shown);
    builtin_order order = {.round = round, .at = Py_SIZE(source) - shown};
    return traverse(source, builtin_visit_item, &order);
}

/* By the layout, not by __mro__, which a metaclass may bend. */
bool
ph_names_is_deque(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type != NULL && type != ph_names_checked.deque) {
        type = type->tp_base;
    }
    return type != NULL;
}

/* The types whose fields need nothing but what is written here. */
static int
builtin_closed(ph_round *round, PyObject *source, PyTypeObject **rest)
{
    if (PyFunction_Check(source)) {
        *rest = &PyFunction_Type;
        return builtin_function(round, source);
    }
    if (PyMethod_Check(source)) {
        *rest = &PyMethod_Type;
        return builtin_method(round, source);
    }
    if (PyCFunction_Check(source)) {
        *rest = &PyCFunction_Type;
        return builtin_c_function(round, source);
    }
    if (PyCell_Check(source)) {
        *rest = &PyCell_Type;
        return ph_round_emit(round, ((PyCellObject *)source)->ob_ref, PH_EDGE_CELL,
                             "cell_contents");
    }
    if (PyFrame_Check(source)) {
        *rest = &PyFrame_Type;
        return builtin_frame(round, source);
    }
    if (PyGen_CheckExact(source) || PyCoro_CheckExact(source) ||
        PyAsyncGen_CheckExact(source)) {
        *rest = Py_TYPE(source);
        return builtin_generator(round, source);
    }
    if (PyTraceBack_Check(source)) {
        *rest = &PyTraceBack_Type;
        return builtin_traceback(round, source);
    }
    if (PyType_Check(source)) {
        *rest = Py_TYPE(source);
        return builtin_type(round, source);
    }
    return 0;
}

/* A weak reference's callback; any subclass has it at the same place. */
static int
builtin_weak(ph_round *round, PyObject *source)
{
    PyObject *callback = ((PyWeakReference *)source)->wr_callback;
    return ph_round_emit(round, callback, PH_EDGE_CALLBACK, "callback");
}

int
ph_round_builtin(ph_round *round, PyObject *source, PyTypeObject **rest)
{
    if (PyDict_Check(source)) {
        return builtin_dict(round, source);
    }
    if (PyTuple_Check(source)) {
        return builtin_tuple(round, source);
    }
    if (PyList_Check(source)) {
        return builtin_list(round, source);
    }
    if (PyAnySet_Check(source)) {
        return builtin_set(round, source);
    }
    if (PyExceptionInstance_Check(source)) {
        *rest = (PyTypeObject *)PyExc_BaseException;
        return builtin_exception(round, source);
    }
    if (PyWeakref_Check(source)) {
        *rest = &_PyWeakref_RefType;
        return builtin_weak(round, source);
    }
    return ph_names_is_deque(source) ? builtin_deque(round, source)
                                     : builtin_closed(round, source, rest);
}
