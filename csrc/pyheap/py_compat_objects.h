/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies inside of Python's objects, where public headers don't say: attributes
 * kept as inline values, managed dicts, the variables of frames and generators. The
 * places come from the headers of the Python that this is compiled for. Nothing here
 * makes an object, runs Python or keeps a reference; all results are borrowed. GIL
 * held. For an interpreter that is not known everything is empty.
 */
#ifndef PY_COMPAT_OBJECTS_H
#define PY_COMPAT_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* CPython 3.10 to 3.13 with the GIL. */
#if PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x030E0000 &&                     \
    !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION)
#define PY_COMPAT_OBJECTS_KNOWN 1
#else
#define PY_COMPAT_OBJECTS_KNOWN 0
#endif

/* Not 0 ends the round. `name` is a str. */
typedef int (*py_compat_visit)(void *ctx, PyObject *name, PyObject *value);

PyObject *
py_compat_type_dict(PyTypeObject *type);

/* The __dict__ that an object has by now, or NULL; none is made. */
PyObject *
py_compat_instance_dict(PyObject *object);

/* The attributes that an object keeps without a dict, by name. Returns what ended the
 * round, or 0. */
int
py_compat_each_inline(PyObject *object, py_compat_visit visit, void *ctx);

/* A frame, or what a generator, coroutine or asynchronous generator runs in. Fields
 * that it does not have are NULL. */
typedef struct py_compat_frame {
    PyCodeObject *code;
    int line;           /* where it stands; 0 or less: unknown */
    PyObject **values;  /* its variables, and behind them what it was computing */
    Py_ssize_t named;   /* variables; any of them may be NULL */
    Py_ssize_t count;   /* variables and what is behind them */
    PyObject *frame;    /* a generator's frame object, where there is one */
    PyObject *back;     /* the frame below it, where it holds that */
    PyObject *trace;    /* its trace function */
    PyObject *locals;   /* its namespace, in a module's or a class's body */
    PyObject *globals;  /* where the frame itself holds them */
    PyObject *builtins; /* the same */
    PyObject *function; /* the function that it runs */
} py_compat_frame;

/* False for a generator that is done, a frame that is not built, or no known Python. */
bool
py_compat_frame_read(PyObject *object, py_compat_frame *out);

/* The name of a variable by its place among a frame's values; NULL if unknown. */
PyObject *
py_compat_local_name(PyCodeObject *code, Py_ssize_t index);

/* The place of the first variable that comes from an outer function; -1 if unknown. */
Py_ssize_t
py_compat_first_free(PyCodeObject *code);

#endif
