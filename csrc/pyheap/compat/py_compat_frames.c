/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/py_compat_objects_internal.h"
#include "compat/py_compat_frames.h"

#include <string.h>

#if !PY_COMPAT_OBJECTS_KNOWN

nt_status
py_compat_check_frames(nt_error *err)
{
    (void)err;
    return NT_OK;
}

int
py_compat_each_frame(PyThreadState *thread, py_compat_frame_visit visit, void *ctx)
{
    (void)thread;
    (void)visit;
    (void)ctx;
    return 0;
}

int
py_compat_each_held(PyThreadState *thread, py_compat_thread_visit visit, void *ctx)
{
    (void)thread;
    (void)visit;
    (void)ctx;
    return 0;
}

#else

#if PY_VERSION_HEX < 0x030B0000

int
py_compat_each_frame(PyThreadState *thread, py_compat_frame_visit visit, void *ctx)
{
    PyFrameObject *frame = thread->frame;
    for (; frame != NULL; frame = frame->f_back) {
        py_compat_frame read;
        if (py_compat_frame_read((PyObject *)frame, &read)) {
            const int stop = visit(ctx, &read);
            if (stop != 0) {
                return stop;
            }
        }
    }
    return 0;
}

#else

static _PyInterpreterFrame *
frames_first(PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030D0000
    return thread->current_frame;
#else
    return thread->cframe == NULL ? NULL : thread->cframe->current_frame;
#endif
}

int
py_compat_each_frame(PyThreadState *thread, py_compat_frame_visit visit, void *ctx)
{
    _PyInterpreterFrame *frame = frames_first(thread);
    for (; frame != NULL; frame = frame->previous) {
        py_compat_frame read;
        /* Passed over: what is being built, and what stands between C and Python. */
        if (_PyFrame_IsIncomplete(frame) || !py_compat_frame_read_data(frame, &read)) {
            continue;
        }
        read.globals = frame->f_globals;
        read.builtins = frame->f_builtins;
        const int stop = visit(ctx, &read);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

#endif

static int
frames_each_handled(PyThreadState *thread, py_compat_thread_visit visit, void *ctx)
{
    const _PyErr_StackItem *item = thread->exc_info;
    for (; item != NULL; item = item->previous_item) {
        if (item->exc_value != NULL) {
            const int stop = visit(ctx, "exception being handled", item->exc_value);
            if (stop != 0) {
                return stop;
            }
        }
#if PY_VERSION_HEX < 0x030B0000
        if (item->exc_traceback != NULL) {
            const int stop = visit(ctx, "exception being handled", item->exc_traceback);
            if (stop != 0) {
                return stop;
            }
        }
#endif
    }
    return 0;
}

int
py_compat_each_held(PyThreadState *thread, py_compat_thread_visit visit, void *ctx)
{
    const struct {
        const char *name;
        PyObject *object;
    } held[] = {
        {"thread-local values", thread->dict},
        {"context", thread->context},
        {"trace function", thread->c_traceobj},
        {"profile function", thread->c_profileobj},
        {"asynchronous exception", thread->async_exc},
        {"hook of asynchronous generators", thread->async_gen_firstiter},
        {"hook of asynchronous generators", thread->async_gen_finalizer},
#if PY_VERSION_HEX >= 0x030C0000
        {"exception being raised", thread->current_exception},
#else
        {"exception being raised", thread->curexc_value},
        {"exception being raised", thread->curexc_traceback},
#endif
    };
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        if (held[i].object != NULL) {
            const int stop = visit(ctx, held[i].name, held[i].object);
            if (stop != 0) {
                return stop;
            }
        }
    }
    return frames_each_handled(thread, visit, ctx);
}

/* The frame object that has to come next, owned; NULL behind the last. */
typedef struct frames_expected {
    PyFrameObject *next;
    bool differ;
} frames_expected;

static int
frames_compare(void *ctx, const py_compat_frame *frame)
{
    frames_expected *expected = ctx;
    PyFrameObject *named = expected->next;
    if (named == NULL) {
        expected->differ = true;
        return 1;
    }
    PyCodeObject *code = PyFrame_GetCode(named);
    expected->differ =
        code != frame->code || PyFrame_GetLineNumber(named) != frame->line;
    expected->next = PyFrame_GetBack(named);
    Py_DECREF(code);
    Py_DECREF(named);
    return expected->differ;
}

nt_status
py_compat_check_frames(nt_error *err)
{
    static bool checked = false; /* guard: the GIL */
    if (checked) {
        return NT_OK;
    }
    PyThreadState *thread = PyThreadState_Get();
    frames_expected expected = {.next = PyThreadState_GetFrame(thread)};
    (void)py_compat_each_frame(thread, frames_compare, &expected);
    checked = expected.next == NULL && !expected.differ;
    Py_XDECREF(expected.next);
    const char *running = Py_GetVersion();
    return checked
               ? NT_OK
               : nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                         "the frames that run are not those that this Python (%.*s) "
                         "names: neutracer was built for %s",
                         (int)strcspn(running, " "), running, PY_VERSION);
}

#endif
