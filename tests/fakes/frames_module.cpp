/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of Python's frames from csrc/torch as a module of its own, without torch:
 * the interpreter's layout is all that it knows.
 */
#include "nt_torch_frames.hpp"

namespace
{

PyObject *
differ(PyObject *, PyObject *)
{
    const char *differs = neutracer::frames_differ();
    return differs == nullptr ? Py_NewRef(Py_None) : PyUnicode_FromString(differs);
}

PyObject *
refused(PyObject *, PyObject *)
{
    const char *why = neutracer::frames_refused();
    return why == nullptr ? Py_NewRef(Py_None) : PyUnicode_FromString(why);
}

/* The name, file and first line of the innermost frame's code, read without Python. */
PyObject *
innermost(PyObject *, PyObject *)
{
    nt_ring_frame frame;
    nt_ring_code code;
    if (neutracer::frames_walk(&frame, 1) != 1 ||
        neutracer::frames_describe(frame.code, &code) != 0) {
        Py_RETURN_NONE;
    }
    const auto text = [](const nt_ring_text &from) {
        return PyUnicode_FromKindAndData(static_cast<int>(from.width), from.data,
                                         static_cast<Py_ssize_t>(from.length));
    };
    return Py_BuildValue("NNi", text(code.name), text(code.filename),
                         static_cast<int>(code.first_line));
}

PyMethodDef methods[] = {
    {"differ", differ, METH_NOARGS, "None, or what frames_differ says."},
    {"refused", refused, METH_NOARGS, "None, or what frames_refused says."},
    {"innermost", innermost, METH_NOARGS, "What frames_describe says of the caller."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "frames_module",
    nullptr,
    0,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

} // namespace

PyMODINIT_FUNC
PyInit_frames_module()
{
    return PyModule_Create(&definition);
}
