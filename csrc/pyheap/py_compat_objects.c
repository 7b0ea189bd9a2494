/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that includes the interpreter's own headers. They say where things lie;
 * nothing is laid out here a second time. 3.10 has all of it in its public headers. */
#if !defined(Py_BUILD_CORE)
#define Py_BUILD_CORE 1 /* the internal headers refuse everybody else */
#endif
#include "py_compat_objects.h"

#include <string.h>

#if PY_COMPAT_OBJECTS_KNOWN && PY_VERSION_HEX >= 0x030B0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wpedantic"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_interpframe.h"
#include "internal/pycore_stackref.h"
#endif
#pragma GCC diagnostic pop
#endif

#include "frameobject.h"

PyObject *
py_compat_type_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    /* Borrowed from the type, which keeps it: the new reference is not needed. */
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);
    return dict;
#else
    return type->tp_dict;
#endif
}

/* The dict at tp_dictoffset, for types without a managed one. */
static PyObject *
objects_offset_dict(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_ssize_t offset = type->tp_dictoffset;
    if (offset < 0) {
#if PY_VERSION_HEX >= 0x030C0000
        if (PyLong_Check(object)) {
            return NULL; /* its size field holds more than a size */
        }
#endif
        const Py_ssize_t items = Py_SIZE(object);
        const size_t unit = (size_t)type->tp_itemsize;
        size_t size =
            (size_t)type->tp_basicsize + (size_t)(items < 0 ? -items : items) * unit;
        size = (size + sizeof(void *) - 1) & ~(sizeof(void *) - 1);
        offset += (Py_ssize_t)size;
    }
    return offset <= 0 ? NULL : *(PyObject **)((char *)object + offset);
}

#if !PY_COMPAT_OBJECTS_KNOWN || PY_VERSION_HEX < 0x030B0000

PyObject *
py_compat_instance_dict(PyObject *object)
{
    return PY_COMPAT_OBJECTS_KNOWN ? objects_offset_dict(object) : NULL;
}

int
py_compat_each_inline(PyObject *Py_UNUSED(object), py_compat_visit visit,
                      void *Py_UNUSED(ctx))
{
    (void)visit;
    return 0;
}

#else

/* An object's inline values and how many there is room for; NULL where it has none. */
static PyObject **
objects_inline_values(PyObject *object, Py_ssize_t *room)
{
    PyTypeObject *type = Py_TYPE(object);
#if PY_VERSION_HEX >= 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_INLINE_VALUES)) {
        return NULL;
    }
    PyDictValues *values = _PyObject_InlineValues(object);
    *room = values->capacity;
    return values->valid ? values->values : NULL;
#elif PY_VERSION_HEX >= 0x030C0000
    const PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
    (void)type;
    *room = SHARED_KEYS_MAX_SIZE;
    return _PyDictOrValues_IsValues(held) ? _PyDictOrValues_GetValues(held)->values
                                          : NULL;
#else
    PyDictValues *values = *_PyObject_ValuesPointer(object);
    (void)type;
    *room = SHARED_KEYS_MAX_SIZE;
    return values == NULL ? NULL : values->values;
#endif
}

PyObject *
py_compat_instance_dict(PyObject *object)
{
    if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
        return objects_offset_dict(object);
    }
#if PY_VERSION_HEX >= 0x030D0000
    return (PyObject *)_PyObject_GetManagedDict(object);
#elif PY_VERSION_HEX >= 0x030C0000
    const PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
    return _PyDictOrValues_IsValues(held) ? NULL : _PyDictOrValues_GetDict(held);
#else
    return *_PyObject_ManagedDictPointer(object);
#endif
}

int
py_compat_each_inline(PyObject *object, py_compat_visit visit, void *ctx)
{
    PyTypeObject *type = Py_TYPE(object);
    const unsigned long wanted = Py_TPFLAGS_MANAGED_DICT | Py_TPFLAGS_HEAPTYPE;
    if ((type->tp_flags & wanted) != wanted) {
        return 0;
    }
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    Py_ssize_t count = 0;
    PyObject **values = keys == NULL ? NULL : objects_inline_values(object, &count);
    if (values == NULL || !DK_IS_UNICODE(keys)) {
        return 0;
    }
    /* Names stand in the order in which the type first saw them. */
    const PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    count = keys->dk_nentries < count ? keys->dk_nentries : count;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (values[at] != NULL && entries[at].me_key != NULL) {
            const int stop = visit(ctx, entries[at].me_key, values[at]);
            if (stop != 0) {
                return stop;
            }
        }
    }
    return 0;
}

#endif

/* ---- frames ---------------------------------------------------------------------- */

#if !PY_COMPAT_OBJECTS_KNOWN

bool
py_compat_frame_read(PyObject *Py_UNUSED(object), py_compat_frame *out)
{
    (void)out;
    return false;
}

PyObject *
py_compat_frame_value(const py_compat_frame *frame, Py_ssize_t at, bool *held)
{
    (void)frame;
    (void)at;
    (void)held;
    return NULL;
}

void
py_compat_generator_read(PyObject *Py_UNUSED(object), py_compat_generator *out)
{
    *out = (py_compat_generator){.name = NULL};
}

PyObject *
py_compat_local_name(PyCodeObject *code, Py_ssize_t index)
{
    (void)code;
    (void)index;
    return NULL;
}

Py_ssize_t
py_compat_first_free(PyCodeObject *code)
{
    (void)code;
    return -1;
}

#else

#if PY_VERSION_HEX >= 0x030E0000

/* The object of a reference in a frame; NULL for none and for a bare number. */
static PyObject *
objects_of_ref(_PyStackRef ref)
{
    return PyStackRef_IsNullOrInt(ref) ? NULL : PyStackRef_AsPyObjectBorrow(ref);
}

PyObject *
py_compat_frame_value(const py_compat_frame *frame, Py_ssize_t at, bool *held)
{
    const _PyStackRef ref = ((const _PyStackRef *)frame->values)[at];
    if (held != NULL) {
        *held = PyStackRef_RefcountOnObject(ref);
    }
    return objects_of_ref(ref);
}

#else

PyObject *
py_compat_frame_value(const py_compat_frame *frame, Py_ssize_t at, bool *held)
{
    if (held != NULL) {
        *held = true;
    }
    return ((PyObject *const *)frame->values)[at];
}

#endif

void
py_compat_generator_read(PyObject *object, py_compat_generator *out)
{
    const PyGenObject *generator = (const PyGenObject *)object;
    *out = (py_compat_generator){
        .name = generator->gi_name,
        .qualname = generator->gi_qualname,
        .handled = generator->gi_exc_state.exc_value,
    };
#if PY_VERSION_HEX < 0x030B0000
    out->handled_traceback = generator->gi_exc_state.exc_traceback;
#else
    /* A plain generator has the field and leaves what was there. */
    out->origin = PyGen_CheckExact(object) ? NULL : generator->gi_origin_or_finalizer;
#endif
}

#if PY_VERSION_HEX < 0x030B0000

bool
py_compat_frame_read(PyObject *object, py_compat_frame *out)
{
    memset(out, 0, sizeof *out);
    PyFrameObject *frame = (PyFrameObject *)object;
    if (!PyFrame_Check(object)) {
        frame = ((PyGenObject *)object)->gi_frame;
        out->frame = (PyObject *)frame;
    }
    if (frame == NULL || frame->f_code == NULL) {
        return false;
    }
    out->code = frame->f_code;
    out->line = PyFrame_GetLineNumber(frame);
    if (!PyFrame_Check(object)) {
        return true; /* its variables belong to the frame, an object of its own */
    }
    out->back = (PyObject *)frame->f_back;
    out->trace = frame->f_trace;
    out->locals = frame->f_locals;
    out->globals = frame->f_globals;
    out->builtins = frame->f_builtins;
    out->values = frame->f_localsplus;
    if (frame->f_valuestack != NULL) {
        out->named = frame->f_valuestack - frame->f_localsplus;
    }
    /* A running frame's depth is not written down. */
    out->count = out->named + (frame->f_stackdepth > 0 ? frame->f_stackdepth : 0);
    return true;
}

PyObject *
py_compat_local_name(PyCodeObject *code, Py_ssize_t index)
{
    PyObject *const parts[] = {code->co_varnames, code->co_cellvars, code->co_freevars};
    for (size_t part = 0; part < sizeof parts / sizeof parts[0]; part++) {
        if (parts[part] == NULL || !PyTuple_Check(parts[part])) {
            return NULL;
        }
        if (index < PyTuple_GET_SIZE(parts[part])) {
            return PyTuple_GET_ITEM(parts[part], index);
        }
        index -= PyTuple_GET_SIZE(parts[part]);
    }
    return NULL;
}

Py_ssize_t
py_compat_first_free(PyCodeObject *code)
{
    if (code->co_varnames == NULL || code->co_cellvars == NULL) {
        return -1;
    }
    return PyTuple_GET_SIZE(code->co_varnames) + PyTuple_GET_SIZE(code->co_cellvars);
}

#else

static PyCodeObject *
objects_frame_code(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
#if PY_VERSION_HEX >= 0x030E0000
    PyObject *code = objects_of_ref(frame->f_executable);
#else
    PyObject *code = frame->f_executable;
#endif
    return code != NULL && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
#else
    return frame->f_code;
#endif
}

/* The frame's data: its own, its generator's or the running thread's. */
static _PyInterpreterFrame *
objects_frame_data(PyObject *object)
{
    if (PyFrame_Check(object)) {
        return ((PyFrameObject *)object)->f_frame;
    }
    PyGenObject *generator = (PyGenObject *)object;
    return generator->gi_frame_state >= FRAME_CLEARED
               ? NULL
               : (_PyInterpreterFrame *)&generator->gi_iframe;
}

/* How many values stand in a frame, variables included; below 0 where it runs and that
 * is not written down. A frame that was torn down has none. */
static Py_ssize_t
objects_frame_top(const _PyInterpreterFrame *frame, const PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030E0000
    const Py_ssize_t top =
        frame->stackpointer == NULL ? -1 : frame->stackpointer - frame->localsplus;
    return top > code->co_nlocalsplus + code->co_stacksize ? -1 : top;
#else
    (void)code;
    return frame->stacktop;
#endif
}

/* The same as py_compat_frame_read for the data of a running frame, which is not an
 * object. Also false for anything without code. */
static bool
objects_frame_read_data(_PyInterpreterFrame *frame, py_compat_frame *out)
{
    PyCodeObject *code = objects_frame_code(frame);
    if (code == NULL) {
        return false;
    }
    *out = (py_compat_frame){.code = code, .values = frame->localsplus};
    const int unit = (int)sizeof(_Py_CODEUNIT);
    out->line = PyCode_Addr2Line(code, _PyInterpreterFrame_LASTI(frame) * unit);
    out->locals = frame->f_locals;
#if PY_VERSION_HEX >= 0x030E0000
    out->function = objects_of_ref(frame->f_funcobj);
#elif PY_VERSION_HEX >= 0x030C0000
    out->function = frame->f_funcobj;
#else
    out->function = (PyObject *)frame->f_func;
#endif
    const Py_ssize_t top = objects_frame_top(frame, code);
    out->named = top >= 0 && top < code->co_nlocalsplus ? top : code->co_nlocalsplus;
    out->count = top > out->named ? top : out->named;
    out->whole = top >= 0;
    return true;
}

bool
py_compat_frame_read(PyObject *object, py_compat_frame *out)
{
    _PyInterpreterFrame *frame = objects_frame_data(object);
    if (frame == NULL || !objects_frame_read_data(frame, out)) {
        *out = (py_compat_frame){.code = NULL};
        return false;
    }
    if (PyFrame_Check(object)) {
        PyFrameObject *self = (PyFrameObject *)object;
        out->back = (PyObject *)self->f_back;
        out->trace = self->f_trace;
        out->line = self->f_lineno > 0 ? self->f_lineno : out->line;
    } else {
        out->frame = (PyObject *)frame->frame_obj;
    }
    return true;
}

PyObject *
py_compat_local_name(PyCodeObject *code, Py_ssize_t index)
{
    PyObject *names = code->co_localsplusnames;
    return names != NULL && PyTuple_Check(names) && index < PyTuple_GET_SIZE(names)
               ? PyTuple_GET_ITEM(names, index)
               : NULL;
}

Py_ssize_t
py_compat_first_free(PyCodeObject *code)
{
    return code->co_nlocalsplus - code->co_nfreevars;
}

#endif

#endif

/* ---- borrowed references --------------------------------------------------------- */

#if PY_COMPAT_BORROWS

static void
objects_visit_borrowed(_PyStackRef ref, py_compat_borrowed_visit visit, void *ctx)
{
    PyObject *object = objects_of_ref(ref);
    if (object != NULL && !PyStackRef_RefcountOnObject(ref)) {
        visit(ctx, object);
    }
}

void
py_compat_each_borrowed(PyObject *object, py_compat_borrowed_visit visit, void *ctx)
{
    _PyInterpreterFrame *frame = objects_frame_data(object);
    const PyCodeObject *code = frame == NULL ? NULL : objects_frame_code(frame);
    /* A frame object shows only what has become its own. */
    if (code == NULL ||
        (PyFrame_Check(object) && frame->owner != FRAME_OWNED_BY_FRAME_OBJECT)) {
        return;
    }
    const Py_ssize_t top = objects_frame_top(frame, code);
    objects_visit_borrowed(frame->f_funcobj, visit, ctx);
    for (Py_ssize_t at = 0; at < top; at++) {
        objects_visit_borrowed(frame->localsplus[at], visit, ctx);
    }
}

typedef struct objects_count {
    const PyObject *target;
    Py_ssize_t shown;
    Py_ssize_t borrowed;
} objects_count;

static int
objects_count_shown(PyObject *object, void *ctx)
{
    objects_count *count = ctx;
    count->shown += object == count->target;
    return 0;
}

static void
objects_count_borrowed(void *ctx, PyObject *object)
{
    objects_count *count = ctx;
    count->borrowed += object == count->target;
}

/* Whether a row of the probes, (generator, operand, references held), is as it says. */
static bool
objects_check_row(PyObject *row)
{
    PyObject *generator, *operand;
    Py_ssize_t held;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "OOn", &generator, &operand, &held) ||
        !py_compat_may_borrow(Py_TYPE(generator)->tp_traverse)) {
        return false;
    }
    objects_count count = {.target = operand};
    (void)Py_TYPE(generator)->tp_traverse(generator, objects_count_shown, &count);
    py_compat_each_borrowed(generator, objects_count_borrowed, &count);
    return count.shown - count.borrowed == held;
}

static bool
objects_check_rows(void)
{
    PyObject *module = PyImport_ImportModule("neutracer.heap.probes");
    PyObject *rows =
        module == NULL ? NULL : PyObject_CallMethod(module, "borrowers", NULL);
    bool fine = rows != NULL && PyList_CheckExact(rows) && PyList_GET_SIZE(rows) > 0;
    for (Py_ssize_t at = 0; fine && at < PyList_GET_SIZE(rows); at++) {
        fine = objects_check_row(PyList_GET_ITEM(rows, at));
    }
    Py_XDECREF(rows);
    Py_XDECREF(module);
    PyErr_Clear();
    return fine;
}

nt_status
py_compat_check_borrowed(nt_error *err)
{
    static bool checked = false; /* guard: the GIL */
    checked = checked || objects_check_rows();
    const char *running = Py_GetVersion();
    return checked ? NT_OK
                   : nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                             "the operands of generators are not found in this Python "
                             "(%.*s): neutracer was built for %s",
                             (int)strcspn(running, " "), running, PY_VERSION);
}

#else

void
py_compat_each_borrowed(PyObject *Py_UNUSED(object), py_compat_borrowed_visit visit,
                        void *Py_UNUSED(ctx))
{
    (void)visit;
}

nt_status
py_compat_check_borrowed(nt_error *err)
{
    (void)err;
    return NT_OK;
}

#endif

/* ---- frames that run ------------------------------------------------------------- */

#if !PY_COMPAT_OBJECTS_KNOWN

nt_status
py_compat_check_frames(nt_error *err)
{
    (void)err;
    return NT_OK;
}

int
py_compat_each_frame(PyThreadState *thread, py_compat_frame_visit visit,
                     void *Py_UNUSED(ctx))
{
    (void)thread;
    (void)visit;
    return 0;
}

int
py_compat_each_held(PyThreadState *thread, py_compat_thread_visit visit,
                    void *Py_UNUSED(ctx))
{
    (void)thread;
    (void)visit;
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
        if (_PyFrame_IsIncomplete(frame) || !objects_frame_read_data(frame, &read)) {
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
