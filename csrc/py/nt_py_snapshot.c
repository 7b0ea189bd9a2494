/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

static const nt_py_column_def event_defs[] = {
    NT_EVENT_LIST(NT_PY_COLUMN_DEF, nt_event_columns)};

static const nt_py_column_def segment_defs[] = {
    NT_SEGMENT_LIST(NT_PY_COLUMN_DEF, nt_segment_columns)};

static const nt_py_column_def block_defs[] = {
    NT_BLOCK_LIST(NT_PY_COLUMN_DEF, nt_block_columns)};

static const nt_py_column_def annotation_defs[] = {
    NT_ANNOTATION_LIST(NT_PY_COLUMN_DEF, nt_annotation_columns)};

/* Adds `value` (stolen) under `key`; clears the dict on failure. */
static void
snapshot_put(PyObject **dict, const char *key, PyObject *value)
{
    if (*dict != NULL &&
        (value == NULL || PyDict_SetItemString(*dict, key, value) < 0)) {
        Py_CLEAR(*dict);
    }
    Py_XDECREF(value);
}

PyObject *
nt_py_layout_tables(nt_py_state *state, PyObject *owner, const nt_layout *layout)
{
    PyObject *dict = PyDict_New();
    snapshot_put(&dict, "segments",
                 nt_py_columns(state, owner, &layout->segments, layout->segments.count,
                               segment_defs, NT_LENGTH(segment_defs)));
    snapshot_put(&dict, "blocks",
                 nt_py_columns(state, owner, &layout->blocks, layout->blocks.count,
                               block_defs, NT_LENGTH(block_defs)));
    return dict;
}

/* A str of UTF-8 in which surrogates are let through. */
static PyObject *
snapshot_text(const char *text, size_t length)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "surrogatepass");
}

nt_py_snapshot *
nt_py_snapshot_new(nt_py_state *state, size_t limit)
{
    nt_py_snapshot *self = PyObject_New(nt_py_snapshot, state->snapshot_type);
    if (self != NULL) {
        self->snapshot = NULL;
        self->owner = NULL;
        nt_budget_init(&self->budget, nt_alloc_system(), limit);
    }
    return self;
}

static void
snapshot_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    nt_py_snapshot *object = (nt_py_snapshot *)self;
    if (object->owner == NULL) {
        nt_snapshot_free(object->snapshot);
    }
    Py_XDECREF(object->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static const nt_snapshot *
snapshot_of(PyObject *self)
{
    return ((nt_py_snapshot *)self)->snapshot;
}

PyDoc_STRVAR(host_doc, "host()\n--\n\n"
                       "The pinned memory of the host as a Snapshot, or None.");

static PyObject *
snapshot_host(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_snapshot *host = nt_snapshot_host(snapshot_of(self));
    if (host == NULL) {
        return Py_NewRef(Py_None);
    }
    nt_py_snapshot *object = nt_py_snapshot_new(nt_py_state_of(Py_TYPE(self)), 0);
    if (object != NULL) {
        object->snapshot = host;
        object->owner = Py_NewRef(self);
    }
    return (PyObject *)object;
}

PyDoc_STRVAR(tables_doc,
             "tables()\n--\n\n"
             "A dict of the tables events, segments, blocks, annotations: each a\n"
             "dict name -> Column.");

static PyObject *
snapshot_tables(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_py_state *state = nt_py_state_of(Py_TYPE(self));
    const nt_snapshot *s = snapshot_of(self);
    PyObject *dict = nt_py_layout_tables(state, self, nt_snapshot_layout(s));
    snapshot_put(&dict, "events",
                 nt_py_columns(state, self, nt_snapshot_events(s),
                               nt_snapshot_events(s)->count, event_defs,
                               NT_LENGTH(event_defs)));
    snapshot_put(&dict, "annotations",
                 nt_py_columns(state, self, nt_snapshot_annotations(s),
                               nt_snapshot_annotations(s)->count, annotation_defs,
                               NT_LENGTH(annotation_defs)));
    return dict;
}

PyDoc_STRVAR(strings_doc, "strings()\n--\n\nThe interned strings, by id.");

static PyObject *
snapshot_strings(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_strings *strings = nt_snapshot_strings(snapshot_of(self));
    const size_t count = nt_strings_count(strings);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t id = 0; list != NULL && id < count; id++) {
        size_t length;
        const char *text = nt_strings_get(strings, (uint32_t)id, &length);
        PyObject *item = snapshot_text(text, length);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)id, item);
        }
    }
    return list;
}

PyDoc_STRVAR(frames_doc,
             "frames()\n--\n\n"
             "The frames by id: tuples (string id of the name, of the file, line,\n"
             "number of the node in fx() from 1, or 0).");

static PyObject *
snapshot_frames(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const nt_stacks *stacks = nt_snapshot_stacks(snapshot_of(self));
    const size_t count = nt_stacks_frame_count(stacks);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t id = 0; list != NULL && id < count; id++) {
        const nt_frame *frame = &nt_stacks_frames(stacks)[id];
        PyObject *item = Py_BuildValue("IILI", frame->name, frame->filename,
                                       (long long)frame->line, frame->fx);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)id, item);
        }
    }
    return list;
}

PyDoc_STRVAR(fx_doc, "fx()\n--\n\n"
                     "What torch.fx knows of frames: tuples of string ids, of the op,\n"
                     "name, target and original trace.");

static PyObject *
snapshot_fx(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_fx_node *nodes =
        nt_stacks_fx(nt_snapshot_stacks(snapshot_of(self)), &count);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("IIII", nodes[i].op, nodes[i].name,
                                       nodes[i].target, nodes[i].trace);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

PyDoc_STRVAR(stacks_doc,
             "stacks()\n--\n\n"
             "Two Columns by stack id: the innermost frame's id, and the id of\n"
             "the stack it was called from. Stack 0 is empty.");

static PyObject *
snapshot_stacks(PyObject *self, PyObject *Py_UNUSED(unused))
{
    nt_py_state *state = nt_py_state_of(Py_TYPE(self));
    const nt_stacks *stacks = nt_snapshot_stacks(snapshot_of(self));
    const Py_ssize_t count = (Py_ssize_t)nt_stacks_count(stacks);
    PyObject *innermost =
        nt_py_column(state, self, nt_stacks_innermost(stacks), count, 'I');
    PyObject *parent = nt_py_column(state, self, nt_stacks_parent(stacks), count, 'I');
    PyObject *pair =
        innermost == NULL || parent == NULL ? NULL : PyTuple_Pack(2, innermost, parent);
    Py_XDECREF(innermost);
    Py_XDECREF(parent);
    return pair;
}

PyDoc_STRVAR(actions_doc, "actions()\n--\n\nThe names of the trace actions, by code.");

static PyObject *
snapshot_actions(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const size_t count = nt_snapshot_action_count(snapshot_of(self));
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t code = 0; list != NULL && code < count; code++) {
        size_t length;
        const char *text =
            nt_snapshot_action_name(snapshot_of(self), (uint8_t)code, &length);
        PyObject *item = snapshot_text(text, length);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)code, item);
        }
    }
    return list;
}

PyDoc_STRVAR(traces_doc, "traces()\n--\n\n"
                         "By device: (row of its first event, number of its events).");

static PyObject *
snapshot_traces(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const size_t count = nt_snapshot_trace_count(snapshot_of(self));
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t device = 0; list != NULL && device < count; device++) {
        size_t first, events;
        nt_snapshot_trace(snapshot_of(self), device, &first, &events);
        PyObject *item = Py_BuildValue("nn", (Py_ssize_t)first, (Py_ssize_t)events);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)device, item);
        }
    }
    return list;
}

/* A scalar setting, or an empty dict or list that its children go into. */
static PyObject *
snapshot_setting_value(const nt_snapshot *s, const nt_setting *row)
{
    size_t length;
    const char *text;
    switch (row->kind) {
    case NT_SETTING_BOOL: return PyBool_FromLong(row->integer != 0);
    case NT_SETTING_INT: return PyLong_FromLongLong(row->integer);
    case NT_SETTING_FLOAT: return PyFloat_FromDouble(row->real);
    case NT_SETTING_STRING:
        text = nt_strings_get(nt_snapshot_strings(s), row->string, &length);
        return snapshot_text(text, length);
    case NT_SETTING_DICT: return PyDict_New();
    case NT_SETTING_LIST: return PyList_New(0);
    default: return Py_NewRef(Py_None);
    }
}

/* Puts row `i` into its parent, of which `made` holds the object. */
static int
snapshot_place_setting(const nt_snapshot *s, const nt_setting *row, PyObject *parent,
                       PyObject *value)
{
    if (PyList_Check(parent)) {
        return PyList_Append(parent, value);
    }
    size_t length;
    const char *text = nt_strings_get(nt_snapshot_strings(s), row->key, &length);
    PyObject *key = snapshot_text(text, length);
    const int failed = key == NULL ? -1 : PyDict_SetItem(parent, key, value);
    Py_XDECREF(key);
    return failed;
}

PyDoc_STRVAR(settings_doc, "settings()\n--\n\n"
                           "allocator_settings as the file has it: a dict.");

static PyObject *
snapshot_settings(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_snapshot *s = snapshot_of(self);
    const nt_setting *rows = nt_snapshot_setting_rows(s, &count);
    PyObject *top = PyDict_New();
    PyObject *made = PyList_New(0); /* the value of each row, for its children */
    for (size_t i = 0; top != NULL && made != NULL && i < count; i++) {
        PyObject *value = snapshot_setting_value(s, &rows[i]);
        PyObject *parent = rows[i].parent == NT_NONE
                               ? top
                               : PyList_GET_ITEM(made, (Py_ssize_t)rows[i].parent);
        if (value == NULL || PyList_Append(made, value) < 0 ||
            snapshot_place_setting(s, &rows[i], parent, value) < 0) {
            Py_CLEAR(top);
        }
        Py_XDECREF(value);
    }
    if (made == NULL) {
        Py_CLEAR(top);
    }
    Py_XDECREF(made);
    return top;
}

PyObject *
nt_py_settings_dict(const nt_settings *settings)
{
    PyObject *roundup = PyTuple_New(NT_ROUNDUP_INTERVALS);
    for (Py_ssize_t i = 0; roundup != NULL && i < NT_ROUNDUP_INTERVALS; i++) {
        PyObject *item = PyLong_FromUnsignedLong(settings->roundup_power2_divisions[i]);
        if (item == NULL) {
            Py_CLEAR(roundup);
        } else {
            PyTuple_SET_ITEM(roundup, i, item);
        }
    }
    char text[512];
    (void)nt_settings_format(settings, text, sizeof text);
    PyObject *dict = PyDict_New();
    snapshot_put(&dict, "roundup_power2_divisions", roundup);
    snapshot_put(&dict, "max_split_size",
                 settings->max_split_size == NT_UNLIMITED
                     ? Py_NewRef(Py_None)
                     : PyLong_FromUnsignedLongLong(settings->max_split_size));
    snapshot_put(&dict, "max_non_split_rounding",
                 PyLong_FromUnsignedLongLong(settings->max_non_split_rounding));
    snapshot_put(&dict, "large_segment_size",
                 PyLong_FromUnsignedLongLong(settings->large_segment_size));
    snapshot_put(&dict, "garbage_collection_threshold",
                 PyFloat_FromDouble(settings->garbage_collection_threshold));
    snapshot_put(&dict, "per_process_memory_fraction",
                 PyFloat_FromDouble(settings->per_process_memory_fraction));
    snapshot_put(&dict, "expandable_segments",
                 PyBool_FromLong(settings->expandable_segments));
    snapshot_put(&dict, "native_backend", PyBool_FromLong(settings->native_backend));
    snapshot_put(&dict, "text", PyUnicode_FromString(text));
    return dict;
}

PyDoc_STRVAR(in_force_doc,
             "settings_in_force()\n--\n\n"
             "The allocator's settings as the core understands them: a dict;\n"
             "sizes in bytes, max_split_size None where unlimited.");

static PyObject *
snapshot_in_force(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return nt_py_settings_dict(nt_snapshot_settings(snapshot_of(self)));
}

PyDoc_STRVAR(ignored_doc,
             "ignored()\n--\n\nString ids of top-level keys that are not read.");

static PyObject *
snapshot_ignored(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const uint32_t *ids = nt_snapshot_ignored(snapshot_of(self), &count);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *id = PyLong_FromUnsignedLong(ids[i]);
        if (id == NULL || PyList_Append(list, id) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(id);
    }
    return list;
}

PyObject *
nt_py_broken_notes(const nt_broken_note *notes, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("iiKK", (int)notes[i].kind, (int)notes[i].device,
                                       (unsigned long long)notes[i].count,
                                       (unsigned long long)notes[i].bytes);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

PyDoc_STRVAR(broken_doc,
             "broken()\n--\n\n"
             "What the file says that can't be, without its traces: a list\n"
             "of tuples (kind, device, count, bytes).");

static PyObject *
snapshot_broken(PyObject *self, PyObject *Py_UNUSED(unused))
{
    size_t count;
    const nt_broken_note *notes = nt_snapshot_broken(snapshot_of(self), &count);
    return nt_py_broken_notes(notes, count);
}

PyDoc_STRVAR(stats_doc,
             "pool_stats(device, /)\n--\n\n"
             "(small pool, large pool): each a tuple of the counts allocation,\n"
             "segment, active, inactive_split and the bytes allocated, reserved,\n"
             "active, inactive_split, requested.");

static PyObject *
snapshot_pool_stats(PyObject *self, PyObject *arg)
{
    const long device = PyLong_AsLong(arg);
    if (device == -1 && PyErr_Occurred()) {
        return NULL;
    }
    nt_pool_stats stats[NT_POOL_KIND_COUNT];
    nt_layout_stats(nt_snapshot_layout(snapshot_of(self)), (int32_t)device, stats);
    PyObject *pools[NT_POOL_KIND_COUNT];
    for (int kind = 0; kind < NT_POOL_KIND_COUNT; kind++) {
        const nt_pool_stats *p = &stats[kind];
        pools[kind] = Py_BuildValue(
            "KKKKKKKKK", (unsigned long long)p->allocation,
            (unsigned long long)p->segment, (unsigned long long)p->active,
            (unsigned long long)p->inactive_split,
            (unsigned long long)p->allocated_bytes,
            (unsigned long long)p->reserved_bytes, (unsigned long long)p->active_bytes,
            (unsigned long long)p->inactive_split_bytes,
            (unsigned long long)p->requested_bytes);
    }
    return Py_BuildValue("NN", pools[NT_POOL_SMALL], pools[NT_POOL_LARGE]);
}

static PyObject *
snapshot_get_keys(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(nt_snapshot_keys(snapshot_of(self)));
}

static PyObject *
snapshot_get_partial(PyObject *self, void *Py_UNUSED(unused))
{
    const char *reason = nt_snapshot_partial(snapshot_of(self));
    return reason == NULL ? Py_NewRef(Py_None) : nt_py_message(reason);
}

static PyObject *
snapshot_get_nbytes(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(((nt_py_snapshot *)self)->budget.used);
}

PyDoc_STRVAR(note_calls_doc,
             "note_calls(device, events, /)\n--\n\n"
             "Notes after which events of a device's trace (32 bits each, rising)\n"
             "the program called empty_cache(). For who has just made the snapshot,\n"
             "and before anybody else has it; of each device once.");

static PyObject *
snapshot_note_calls(PyObject *self, PyObject *args)
{
    Py_ssize_t device;
    Py_buffer events;
    if (!PyArg_ParseTuple(args, "ny*:note_calls", &device, &events)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status =
        nt_snapshot_note_calls(((nt_py_snapshot *)self)->snapshot, (size_t)device,
                               events.buf, (size_t)events.len / sizeof(int32_t), &err);
    PyBuffer_Release(&events);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(note_numbers_doc,
             "note_numbers(key, device, numbers, /)\n--\n\n"
             "Notes numbers (64 bits each) of a device under a key of the settings;\n"
             "conditions as for note_calls.");

static PyObject *
snapshot_note_numbers(PyObject *self, PyObject *args)
{
    const char *key;
    Py_ssize_t device;
    Py_buffer numbers;
    if (!PyArg_ParseTuple(args, "sny*:note_numbers", &key, &device, &numbers)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = nt_snapshot_note_numbers(
        ((nt_py_snapshot *)self)->snapshot, key, (size_t)device, numbers.buf,
        (size_t)numbers.len / sizeof(int64_t), &err);
    PyBuffer_Release(&numbers);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    note_text_doc,
    "note_text(key, text, /)\n--\n\n"
    "Notes a text under a new key at the top of the settings, after all other\n"
    "notes; conditions as for note_calls.");

static PyObject *
snapshot_note_text(PyObject *self, PyObject *args)
{
    const char *key, *text;
    Py_ssize_t key_length, length;
    if (!PyArg_ParseTuple(args, "s#s#:note_text", &key, &key_length, &text, &length)) {
        return NULL;
    }
    nt_snapshot *snapshot = ((nt_py_snapshot *)self)->snapshot;
    nt_strings *strings = nt_snapshot_strings(snapshot);
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_setting row = {.parent = NT_NONE, .kind = NT_SETTING_STRING};
    nt_status status =
        nt_strings_intern(strings, key, (size_t)key_length, &row.key, &err);
    if (status == NT_OK) {
        status = nt_strings_intern(strings, text, (size_t)length, &row.string, &err);
    }
    if (status == NT_OK) {
        status = nt_snapshot_add_setting(snapshot, &row, &err);
    }
    return status == NT_OK ? Py_NewRef(Py_None) : nt_py_raise(status, &err);
}

PyDoc_STRVAR(
    note_range_doc,
    "note_range(begins, name, device, time_us, /)\n--\n\n"
    "Adds the beginning or the end of a range of the program to the annotations.\n"
    "For who has just made the snapshot, and before anybody else has it.");

static PyObject *
snapshot_note_range(PyObject *self, PyObject *args)
{
    int begins, device;
    const char *name;
    Py_ssize_t length;
    long long time_us;
    if (!PyArg_ParseTuple(args, "ps#iL:note_range", &begins, &name, &length, &device,
                          &time_us)) {
        return NULL;
    }
    const nt_annotation annotation = {
        .stage = begins ? NT_STAGE_START : NT_STAGE_END,
        .device = device,
        .time_us = time_us,
    };
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = nt_snapshot_note_range(
        ((nt_py_snapshot *)self)->snapshot, name, (size_t)length, annotation, &err);
    if (status != NT_OK) {
        return nt_py_raise(status, &err);
    }
    Py_RETURN_NONE;
}

static PyMethodDef snapshot_methods[] = {
    {"host", snapshot_host, METH_NOARGS, host_doc},
    {"tables", snapshot_tables, METH_NOARGS, tables_doc},
    {"strings", snapshot_strings, METH_NOARGS, strings_doc},
    {"frames", snapshot_frames, METH_NOARGS, frames_doc},
    {"fx", snapshot_fx, METH_NOARGS, fx_doc},
    {"stacks", snapshot_stacks, METH_NOARGS, stacks_doc},
    {"actions", snapshot_actions, METH_NOARGS, actions_doc},
    {"traces", snapshot_traces, METH_NOARGS, traces_doc},
    {"settings", snapshot_settings, METH_NOARGS, settings_doc},
    {"settings_in_force", snapshot_in_force, METH_NOARGS, in_force_doc},
    {"note_calls", snapshot_note_calls, METH_VARARGS, note_calls_doc},
    {"note_numbers", snapshot_note_numbers, METH_VARARGS, note_numbers_doc},
    {"note_text", snapshot_note_text, METH_VARARGS, note_text_doc},
    {"note_range", snapshot_note_range, METH_VARARGS, note_range_doc},
    {"ignored", snapshot_ignored, METH_NOARGS, ignored_doc},
    {"broken", snapshot_broken, METH_NOARGS, broken_doc},
    {"pool_stats", snapshot_pool_stats, METH_O, stats_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef snapshot_getset[] = {
    {"keys", snapshot_get_keys, NULL, "Bits of the optional keys that the file had.",
     NULL},
    {"partial", snapshot_get_partial, NULL, "Why only a part was read, or None.", NULL},
    {"nbytes", snapshot_get_nbytes, NULL, "Memory that the columns take, in bytes.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot snapshot_slots[] = {
    {Py_tp_dealloc, snapshot_dealloc},
    {Py_tp_methods, snapshot_methods},
    {Py_tp_getset, snapshot_getset},
    {0, NULL},
};

PyType_Spec nt_py_snapshot_spec = {
    .name = "neutracer._core.Snapshot",
    .basicsize = sizeof(nt_py_snapshot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = snapshot_slots,
};
