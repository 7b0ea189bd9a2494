/* SPDX-License-Identifier: Apache-2.0 */
/* `_torch.ModuleCalls`: the calls of modules, marked while they run. It does what
 * PyTorch's `Module.__call__` does, and raises nothing but what the module raises, or a
 * handler of a signal. */
#include "nt_torch.hpp"
#include "nt_torch_marks.hpp"

#include <exception>
#include <new>

namespace neutracer
{

namespace
{

constexpr const char *TEXT_CAPSULE = "neutracer._torch.text";

struct module_calls {
    PyObject_HEAD PyObject *texts; /* dict: id of a module -> capsule of its text */
    PyObject *enter_model;         /* called with a model that is not in texts */
    PyObject *compiled_call, *plain_call; /* names */
    bool is_wanted;
};

/* The text of a module; nullptr where it has none, or with an exception. */
mark_text
calls_text(module_calls *self, PyObject *module)
{
    PyObject *id = PyLong_FromVoidPtr(module);
    PyObject *found =
        id == nullptr ? nullptr : PyDict_GetItemWithError(self->texts, id);
    Py_XDECREF(id);
    return found == nullptr
               ? nullptr
               : static_cast<mark_text>(PyCapsule_GetPointer(found, TEXT_CAPSULE));
}

/* The same of one that may be a model of which nothing is known yet. */
mark_text
calls_learn(module_calls *self, PyObject *module)
{
    const mark_text text = calls_text(self, module);
    if (text != nullptr || PyErr_Occurred() != nullptr || marks_inside()) {
        return text;
    }
    PyObject *done = PyObject_CallOneArg(self->enter_model, module);
    Py_XDECREF(done);
    return done == nullptr ? nullptr : calls_text(self, module);
}

/* What `Module.__call__` does. */
PyObject *
calls_through(module_calls *self, PyObject *module, PyObject *args, PyObject *kwargs)
{
    PyObject *call = PyObject_GetAttr(module, self->compiled_call);
    if (call == Py_None) {
        Py_DECREF(call);
        call = PyObject_GetAttr(module, self->plain_call);
    }
    PyObject *result = call == nullptr ? nullptr : PyObject_Call(call, args, kwargs);
    Py_XDECREF(call);
    return result;
}

PyObject *
calls_run(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    auto *self = reinterpret_cast<module_calls *>(object);
    if (count != 3 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "run() takes a module, a tuple and a dict");
        return nullptr;
    }
    const bool is_wanted = self->is_wanted && marks_wanted.load() != 0;
    mark_text text = is_wanted ? calls_learn(self, args[0]) : nullptr;
    if (text == nullptr && PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    try {
        if (text != nullptr) {
            marks_enter(text);
        }
    } catch (const std::exception &) {
        /* It runs without a mark. */
        text = nullptr;
    }
    PyObject *result = calls_through(self, args[0], args[1], args[2]);
    if (text != nullptr) {
        marks_leave();
    }
    return result;
}

PyObject *
calls_begin(PyObject *object, PyObject *)
{
    auto *self = reinterpret_cast<module_calls *>(object);
    try {
        marks_prepare();
        backend_attach_marks();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    if (!self->is_wanted) {
        self->is_wanted = true;
        marks_wanted++;
    }
    Py_RETURN_NONE;
}

PyObject *
calls_end(PyObject *object, PyObject *)
{
    auto *self = reinterpret_cast<module_calls *>(object);
    if (self->is_wanted) {
        self->is_wanted = false;
        /* A fork's child begins with none. */
        int wanted = marks_wanted.load();
        while (wanted > 0 && !marks_wanted.compare_exchange_weak(wanted, wanted - 1)) {
        }
    }
    Py_RETURN_NONE;
}

PyObject *
calls_new(PyTypeObject *type, PyObject *args, PyObject *)
{
    PyObject *texts = nullptr, *enter_model = nullptr;
    if (PyArg_ParseTuple(args, "O!O", &PyDict_Type, &texts, &enter_model) == 0) {
        return nullptr;
    }
    auto *self = reinterpret_cast<module_calls *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    Py_INCREF(texts);
    self->texts = texts;
    Py_INCREF(enter_model);
    self->enter_model = enter_model;
    self->compiled_call = PyUnicode_InternFromString("_compiled_call_impl");
    self->plain_call = PyUnicode_InternFromString("_call_impl");
    if (self->compiled_call == nullptr || self->plain_call == nullptr) {
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

void
calls_dealloc(PyObject *object)
{
    auto *self = reinterpret_cast<module_calls *>(object);
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(calls_end(object, nullptr));
    Py_XDECREF(self->texts);
    Py_XDECREF(self->enter_model);
    Py_XDECREF(self->compiled_call);
    Py_XDECREF(self->plain_call);
    type->tp_free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(calls_doc, "ModuleCalls(texts, enter_model, /)\n--\n\n"
                        "Marks what modules allocate: `texts` has what "
                        "module_text() gave, by a module's id.");
PyDoc_STRVAR(run_doc, "run($self, module, args, kwargs, /)\n--\n\n"
                      "Calls a module, as Module.__call__ does.");
PyDoc_STRVAR(begin_doc, "begin($self, /)\n--\n\nMarks from now on.");
PyDoc_STRVAR(end_doc, "end($self, /)\n--\n\nMarks no more.");

PyMethodDef calls_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(calls_run)),
     METH_FASTCALL, run_doc},
    {"begin", calls_begin, METH_NOARGS, begin_doc},
    {"end", calls_end, METH_NOARGS, end_doc},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot calls_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(calls_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(calls_dealloc)},
    {Py_tp_methods, calls_methods},
    {Py_tp_doc, const_cast<char *>(calls_doc)},
    {0, nullptr},
};

PyType_Spec calls_spec = {
    "neutracer._torch.ModuleCalls",
    sizeof(module_calls),
    0,
    Py_TPFLAGS_DEFAULT,
    calls_slots,
};

} // namespace

PyObject *
module_text(PyObject *, PyObject *text)
{
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 == nullptr) {
        return nullptr;
    }
    try {
        const mark_text found = marks_text(utf8, static_cast<size_t>(length));
        return PyCapsule_New(const_cast<std::string *>(found), TEXT_CAPSULE, nullptr);
    } catch (const std::exception &) {
        return PyErr_NoMemory();
    }
}

PyObject *
module_calls_type() noexcept
{
    return PyType_FromSpec(&calls_spec);
}

} // namespace neutracer
