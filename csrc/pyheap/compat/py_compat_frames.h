/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames that a thread is running, which are not objects of their own from 3.11 on.
 * They are read where they lie: no frame object is made for them. All is borrowed. GIL
 * held. For an interpreter that is not known there are none.
 */
#ifndef PY_COMPAT_FRAMES_H
#define PY_COMPAT_FRAMES_H

#include "compat/py_compat_objects.h"

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
