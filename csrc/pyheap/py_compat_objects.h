/* SPDX-License-Identifier: Apache-2.0 */
/* What is inside Python's objects, where public headers don't say: attributes kept as
 * inline values, managed dicts, the variables of frames and generators. The places come
 * from the headers of the Python that this is compiled for. Nothing here makes an
 * object, runs Python or keeps a reference; all results are borrowed. GIL held. For an
 * interpreter that is not known everything is empty. */
#ifndef PY_COMPAT_OBJECTS_H
#define PY_COMPAT_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "base/nt_base.h"

/* CPython 3.10 to 3.15 with the GIL. */
#if PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x03100000 &&                     \
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
    const void *values; /* its variables, and behind them what it was computing: for
                         * py_compat_frame_value; NULL where it has none of its own */
    Py_ssize_t named;   /* variables; any of them may be missing */
    Py_ssize_t count;   /* variables and what is behind them */
    bool whole;         /* nothing that it was computing is missing: so it is from 3.14
                         * on, and before where the frame is suspended or waits for a
                         * call from Python to Python, which took its arguments over */
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

/* What stands at a place below frame->count among its values; NULL: nothing. *held,
 * unless NULL: whether the frame holds a reference of its own to it. */
PyObject *
py_compat_frame_value(const py_compat_frame *frame, Py_ssize_t at, bool *held);

/* What a generator, coroutine or asynchronous generator holds besides its frame. */
typedef struct py_compat_generator {
    PyObject *name;
    PyObject *qualname;
    PyObject *handled;           /* the exception that it is handling */
    PyObject *handled_traceback; /* and its traceback, where that is kept apart */
    PyObject *origin;            /* where a coroutine was made, or a finalizer */
} py_compat_generator;

void
py_compat_generator_read(PyObject *object, py_compat_generator *out);

/* From 3.14 on a frame's operands may be borrowed from its variables. tp_traverse shows
 * them as if they were held, and only the collector can tell them apart: code that
 * counts references has to give these back. */
#define PY_COMPAT_BORROWS (PY_COMPAT_OBJECTS_KNOWN && PY_VERSION_HEX >= 0x030E0000)

typedef void (*py_compat_borrowed_visit)(void *ctx, PyObject *borrowed);

/* Whether objects whose type has this tp_traverse may borrow. */
static inline bool
py_compat_may_borrow(traverseproc traverse)
{
#if PY_COMPAT_BORROWS
    return traverse == PyGen_Type.tp_traverse || traverse == PyCoro_Type.tp_traverse ||
           traverse == PyAsyncGen_Type.tp_traverse ||
           traverse == PyFrame_Type.tp_traverse;
#else
    (void)traverse;
    return false;
#endif
}

/* What tp_traverse of such an object shows and the object does not hold, once for each
 * time. */
void
py_compat_each_borrowed(PyObject *object, py_compat_borrowed_visit visit, void *ctx);

/* Holds py_compat_each_borrowed against generators whose references were counted;
 * NT_REFUSED with the reason where they differ. Creates Python objects; never leaves an
 * exception set. Nearly free once it has succeeded. */
nt_status
py_compat_check_borrowed(nt_error *err) NT_CHECKED;

/* The name of a variable by its place among a frame's values; NULL if unknown. */
PyObject *
py_compat_local_name(PyCodeObject *code, Py_ssize_t index);

/* The place of the first variable that comes from an outer function; -1 if unknown. */
Py_ssize_t
py_compat_first_free(PyCodeObject *code);

/* ---- frames that run ------------------------------------------------------------- */

/* The frames that a thread is running, which are not objects of their own from 3.11 on.
 * They are read where they lie: no frame object is made for them. All is borrowed. For
 * an interpreter that is not known there are none. */

/* Not 0 ends the round. */
typedef int (*py_compat_frame_visit)(void *ctx, const py_compat_frame *frame);

/* The thread's frames, the innermost first. Returns what ended the round, or 0. */
int
py_compat_each_frame(PyThreadState *thread, py_compat_frame_visit visit, void *ctx);

/* Holds the calling thread's frames, as they are read here, against those that Python
 * names; NT_REFUSED where they differ. Makes frame objects for them. Nearly free once
 * it has succeeded. */
nt_status
py_compat_check_frames(nt_error *err) NT_CHECKED;

/* What the thread itself refers to, by a name for a reader. `name` is C text. */
typedef int (*py_compat_thread_visit)(void *ctx, const char *name, PyObject *object);

int
py_compat_each_held(PyThreadState *thread, py_compat_thread_visit visit, void *ctx);

#endif
