/* SPDX-License-Identifier: Apache-2.0 */
/* The CPython binding: parse, call, convert. One file a type; what they share is
 * declared here. Types are made from specs into the module's state; none of them but
 * Around can be part of a reference cycle, because they only own one another downwards
 * (column -> layout -> timeline -> snapshot). */
#ifndef NT_PY_H
#define NT_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"
#include "trace/nt_live_api.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_timeline.h"

typedef struct nt_py_state {
    PyTypeObject *column_type;
    PyTypeObject *snapshot_type;
    PyTypeObject *timeline_type;
    PyTypeObject *layout_type;
    PyTypeObject *fragment_type;
    PyTypeObject *raster_type;
    PyTypeObject *pyramid_type;
    PyTypeObject *program_type;
    PyTypeObject *sampler_type;
    PyTypeObject *devices_type;
    PyTypeObject *attribution_type;
    PyTypeObject *marks_type;
    PyTypeObject *around_type;
} nt_py_state;

/* The state of the module that made `type`; NULL with an exception otherwise. */
nt_py_state *
nt_py_state_of(PyTypeObject *type);

/* Sets the exception that stands for a failed call and returns NULL: MemoryError,
 * LimitError, KeyboardInterrupt or whatever a callback raised, ValueError for
 * NT_ARGUMENT, OSError for NT_IO, else SnapshotError with reason and offset. */
PyObject *
nt_py_raise(nt_status status, const nt_error *err);

/* The same where NT_REFUSED says why `what` is not available: UnavailableError. */
PyObject *
nt_py_raise_unavailable(nt_status status, const nt_error *err, const char *what);

/* __reduce__ of every type: what is memory of this process is not pickled or copied,
 * under no protocol. */
PyObject *
nt_py_refuse_pickle(PyObject *self, PyObject *unused);

#define NT_PY_NO_PICKLE {"__reduce__", nt_py_refuse_pickle, METH_NOARGS, NULL}

/* nt_py_column.c: a read-only buffer on memory that `owner` keeps alive, or that is its
 * own. */

extern PyType_Spec nt_py_column_spec;

/* `format` is one of struct's B i I q Q. `data` may be NULL when count is 0. */
PyObject *
nt_py_column(nt_py_state *state, PyObject *owner, const void *data, Py_ssize_t count,
             char format);

/* The same on `count` items of the column's own, which the caller fills at *data before
 * anybody else has the column; NULL there where count is 0. Long ones are on huge
 * pages, which what Python allocates is not. */
PyObject *
nt_py_own_column(nt_py_state *state, Py_ssize_t count, char format, void **data);

/* One column of a table, for nt_py_columns. */
typedef struct nt_py_column_def {
    const char *name;
    size_t offset; /* of the pointer in the struct of columns */
    char format;
} nt_py_column_def;

/* Makes the defs of a table's list of columns; see nt_columns.h. */
#define NT_PY_COLUMN_DEF(table, type, name)                                            \
    {#name, offsetof(table, name),                                                     \
     _Generic((type)0,                                                                 \
         uint8_t: 'B',                                                                 \
         int32_t: 'i',                                                                 \
         uint32_t: 'I',                                                                \
         int64_t: 'q',                                                                 \
         uint64_t: 'Q')},

/* A dict name -> column of the columns that are there (not NULL, or no rows). */
PyObject *
nt_py_columns(nt_py_state *state, PyObject *owner, const void *columns, size_t count,
              const nt_py_column_def *defs, size_t def_count);

/* nt_py_module.c: interruption and progress without the GIL. */

typedef struct nt_py_progress {
    PyThreadState *thread; /* saved while the GIL is released */
    PyObject *callback;    /* borrowed; NULL or None: no calls */
    nt_progress progress;  /* to hand to the core */
    uint64_t last_ns;      /* when Python was last visited */
} nt_py_progress;

/* Gives up the GIL; progress reports take it for a moment, some 20 times a second. */
void
nt_py_begin(nt_py_progress *p, PyObject *callback);
void
nt_py_end(nt_py_progress *p);

/* nt_py_snapshot.c */

extern PyType_Spec nt_py_snapshot_spec;

typedef struct nt_py_snapshot {
    PyObject_HEAD nt_budget budget; /* what the snapshot's memory is drawn from */
    nt_snapshot *snapshot;
    PyObject *owner; /* the object of the snapshot that this one is the host's memory
                      * of; NULL: `snapshot` is the object's own */
} nt_py_snapshot;

/* A new object without a snapshot in it, its budget set to `limit` bytes. */
nt_py_snapshot *
nt_py_snapshot_new(nt_py_state *state, size_t limit);

/* A message of the core as str: it may have been cut inside of a character. */
PyObject *
nt_py_message(const char *text);

/* A list of tuples (kind, device, count, bytes): what can't be as a file says. */
PyObject *
nt_py_broken_notes(const nt_broken_note *notes, size_t count);

PyObject *
nt_py_settings_dict(const nt_settings *settings);

/* The settings that `text` stands for and 0; or -1 with SettingsError and the position.
 */
int
nt_py_parse_settings(PyObject *text, nt_settings *out);

/* nt_py_file.c */
PyObject *
nt_py_load(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *
nt_py_save(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *
nt_py_pack(PyObject *module, PyObject *args);

/* nt_py_timeline.c */

extern PyType_Spec nt_py_timeline_spec;

typedef struct nt_py_timeline {
    PyObject_HEAD nt_py_snapshot *snapshot; /* owned */
    nt_timeline *timeline;
    int32_t device;
} nt_py_timeline;

/* nt_py_layout.c */

extern PyType_Spec nt_py_layout_spec;

typedef struct nt_py_layout {
    PyObject_HEAD nt_py_timeline *timeline; /* owned: the layout is its */
    nt_layout *layout;
} nt_py_layout;

PyObject *
nt_py_layout_new(nt_py_state *state, nt_py_timeline *timeline, int32_t event);

/* A dict with the tables "segments" and "blocks" of a layout that `owner` owns. */
PyObject *
nt_py_layout_tables(nt_py_state *state, PyObject *owner, const nt_layout *layout);

extern PyType_Spec nt_py_fragment_spec;

PyObject *
nt_py_fragment_ratios(PyObject *module, PyObject *args);

/* nt_py_program.c: what a timeline asked of the allocator, run on the model. */
extern PyType_Spec nt_py_program_spec;

/* nt_py_monitor.c: the monitor's native thread. */
extern PyType_Spec nt_py_sampler_spec;

/* nt_py_raster.c */
extern PyType_Spec nt_py_raster_spec;
extern PyType_Spec nt_py_pyramid_spec;

/* nt_py_device.c, nt_py_cupti.c: who uses this machine's devices. */
extern PyType_Spec nt_py_devices_spec;
extern PyType_Spec nt_py_attribution_spec;

/* The devices of a Devices, which must outlive their use; NULL with a TypeError. */
const struct nt_device *
nt_py_device_of(PyObject *devices);

/* nt_py_modules.c: the hooks of modules. */
extern PyType_Spec nt_py_marks_spec;

/* nt_py_around.c: a function with something done around its calls. */
extern PyType_Spec nt_py_around_spec;

/* Drops the exception under way, if there is one, unless it is the program's: an
 * interruption, or what a handler of a signal raised in the middle of code of ours.
 * -1: it stays. For what is done inside of somebody's call. */
int
nt_py_drop_ours(void);

/* nt_py_live.c: what _core and the shim on PyTorch's allocators give each other. */

/* Adds the capsule `live_api` to the module. */
int
nt_py_live_add(PyObject *module);

/* What the shim offers to any thread; NULL until it is connected, then for ever. */
const nt_live_source *
nt_py_live_source(void);

/* nt_py_arrow.c */
PyObject *
nt_py_arrow_stream(PyObject *module, PyObject *args);

/* Functions that the module gets besides its own, a table a file. */
extern PyMethodDef nt_py_heap_methods[];
extern PyMethodDef nt_py_live_methods[];
extern PyMethodDef nt_py_dump_methods[];
extern PyMethodDef nt_py_signals_methods[];
extern PyMethodDef nt_py_trend_methods[];
extern PyMethodDef nt_py_pick_methods[]; /* nt_py_column.c */
extern PyMethodDef nt_py_steps_methods[];
extern PyMethodDef nt_py_categories_methods[];

#endif
