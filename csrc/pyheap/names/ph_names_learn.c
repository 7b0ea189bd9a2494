/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields of built-in types that publish neither a struct nor members: an object of the
 * type is made around known things, and the words of its memory are compared with
 * their addresses. What is found at one place only, and at the same one in a second
 * object, is where the field is.
 */
#include <string.h>

#include "names/ph_names_parts.h"
#include "compat/py_compat_objects.h"

#define MOST_FIELDS 128
#define FIELD_NAME_BYTES 32

typedef struct learn_field {
    PyTypeObject *type; /* owned for good, so that no other type gets its address */
    size_t offset;
    unsigned proofs;
    bool wrong;
    char name[FIELD_NAME_BYTES];
} learn_field;

static learn_field learn_fields[MOST_FIELDS];
static size_t learn_count;

/* The one place in an object's own memory where `target` stands; 0 where there is none
 * or more than one. */
static size_t
learn_offset(PyObject *probe, PyObject *target)
{
    size_t found = 0;
    const size_t size = (size_t)Py_TYPE(probe)->tp_basicsize;
    for (size_t at = sizeof(PyObject); at + sizeof(void *) <= size;
         at += sizeof(void *)) {
        if (*(PyObject **)((char *)probe + at) == target) {
            if (found != 0) {
                return 0;
            }
            found = at;
        }
    }
    return found;
}

static learn_field *
learn_entry(PyTypeObject *type, const char *name)
{
    for (size_t at = 0; at < learn_count; at++) {
        learn_field *field = &learn_fields[at];
        if (field->type == type && strcmp(field->name, name) == 0) {
            return field;
        }
    }
    if (learn_count == MOST_FIELDS || strlen(name) >= FIELD_NAME_BYTES) {
        return NULL;
    }
    learn_field *field = &learn_fields[learn_count++];
    *field = (learn_field){.type = type};
    Py_INCREF(type);
    memcpy(field->name, name, strlen(name) + 1);
    return field;
}

void
ph_names_learn(PyObject *probe, const char *name, PyObject *target)
{
    const size_t offset = learn_offset(probe, target);
    learn_field *field = learn_entry(Py_TYPE(probe), name);
    if (field == NULL) {
        return;
    }
    if (offset == 0 || (field->proofs > 0 && field->offset != offset)) {
        field->wrong = true;
    }
    field->offset = offset;
    field->proofs++;
}

static bool
learn_holds(const learn_field *field, const PyTypeObject *type)
{
    return field->type == type && !field->wrong && field->proofs >= 2;
}

static PyObject *
learn_value(const learn_field *field, PyObject *object)
{
    return *(PyObject **)((char *)object + field->offset);
}

/* What lru_cache keeps stands in elements that are no objects of their own to the
 * collector: it sees through them, and so does this. */
static int
learn_elements(ph_round *round, PyObject *cache)
{
    PyObject *key, *element;
    Py_ssize_t at = 0;
    while (PyDict_Next(cache, &at, &key, &element)) {
        for (size_t f = 0; f < learn_count; f++) {
            const learn_field *field = &learn_fields[f];
            if (learn_holds(field, Py_TYPE(element)) &&
                strncmp(field->name, "cached ", 7) == 0) {
                PH_ROUND_TRY(ph_round_emit(round, learn_value(field, element),
                                           PH_EDGE_FIELD, field->name));
            }
        }
    }
    return 0;
}

int
ph_round_learnt(ph_round *round, PyObject *source)
{
    for (PyTypeObject *type = Py_TYPE(source); type != NULL; type = type->tp_base) {
        for (size_t at = 0; at < learn_count; at++) {
            const learn_field *field = &learn_fields[at];
            if (!learn_holds(field, type)) {
                continue;
            }
            PyObject *target = learn_value(field, source);
            PH_ROUND_TRY(ph_round_emit(round, target, ph_names_field_kind(field->name),
                                       field->name));
            if (strcmp(field->name, "cache") == 0 && target != NULL &&
                PyDict_CheckExact(target)) {
                PH_ROUND_TRY(learn_elements(round, target));
            }
        }
    }
    return 0;
}

/* ---- the probes ------------------------------------------------------------------ */

typedef struct learn_check {
    PyObject *expected; /* dict name -> value */
    size_t seen;
    bool wrong;
} learn_check;

static int
learn_compare(void *ctx, PyObject *name, PyObject *value)
{
    learn_check *check = ctx;
    PyObject *expected = PyDict_GetItem(check->expected, name);
    check->seen += expected == value;
    check->wrong |= expected != value;
    return 0;
}

/* Whether exactly the expected attributes are found, inline or in the dict. */
static bool
learn_check_object(PyObject *object, PyObject *expected)
{
    learn_check check = {.expected = expected};
    (void)py_compat_each_inline(object, learn_compare, &check);
    PyObject *dict = py_compat_instance_dict(object);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (dict != NULL && !PyDict_Check(dict)) {
        return false;
    }
    const bool inline_seen = check.seen > 0;
    while (dict != NULL && !inline_seen && PyDict_Next(dict, &at, &key, &value)) {
        (void)learn_compare(&check, key, value);
    }
    return !check.wrong && check.seen == (size_t)PyDict_GET_SIZE(expected);
}

/* The same of a frame's or a generator's variables. */
static bool
learn_check_frame(PyObject *object, PyObject *expected)
{
    learn_check check = {.expected = expected};
    py_compat_frame frame;
    if (!py_compat_frame_read(object, &frame) || !PyCode_Check(frame.code)) {
        return false;
    }
    if (frame.values == NULL && frame.frame != NULL) {
        return learn_check_frame(frame.frame, expected);
    }
    for (Py_ssize_t at = 0; at < frame.named; at++) {
        PyObject *name = py_compat_local_name(frame.code, at);
        if (name == NULL || !PyUnicode_Check(name)) {
            return false;
        }
        PyObject *value = py_compat_frame_value(&frame, at, NULL);
        if (value != NULL) {
            (void)learn_compare(&check, name, value);
        }
    }
    return !check.wrong && check.seen == (size_t)PyDict_GET_SIZE(expected);
}

/* Calls a function of the probes' module for a list of tuples of `width`. */
static PyObject *
learn_list(PyObject *module, const char *function, Py_ssize_t width)
{
    PyObject *list = PyObject_CallMethod(module, function, NULL);
    bool fine = list != NULL && PyList_CheckExact(list);
    for (Py_ssize_t at = 0; fine && at < PyList_GET_SIZE(list); at++) {
        PyObject *row = PyList_GET_ITEM(list, at);
        fine = PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) == width;
    }
    if (!fine) {
        Py_CLEAR(list);
    }
    return list;
}

static bool
learn_check_all(PyObject *list, bool (*check)(PyObject *, PyObject *))
{
    bool fine = PyList_GET_SIZE(list) > 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(list); at++) {
        PyObject *row = PyList_GET_ITEM(list, at);
        PyObject *expected = PyTuple_GET_ITEM(row, 1);
        fine = fine && PyDict_CheckExact(expected) &&
               check(PyTuple_GET_ITEM(row, 0), expected);
    }
    return fine;
}

static void
learn_all(PyObject *fields)
{
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(fields); at++) {
        PyObject *row = PyList_GET_ITEM(fields, at);
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(row, 1));
        if (name == NULL) {
            PyErr_Clear();
        } else {
            ph_names_learn(PyTuple_GET_ITEM(row, 0), name, PyTuple_GET_ITEM(row, 2));
        }
    }
}

nt_status
ph_names_prepare(nt_error *err)
{
    if (ph_names_checked.prepared) {
        return NT_OK;
    }
    nt_status status = NT_OK;
    PyObject *objects = NULL, *frames = NULL, *fields = NULL, *deque = NULL;
    PyObject *module = PyImport_ImportModule("neutracer.heap.probes");
    if (module != NULL) {
        objects = learn_list(module, "objects", 2);
        frames = learn_list(module, "frames", 2);
        fields = learn_list(module, "fields", 3);
        deque = PyObject_GetAttrString(module, "deque");
    }
    if (objects == NULL || frames == NULL || fields == NULL || deque == NULL ||
        !PyType_Check(deque)) {
        PyErr_Clear();
        status = nt_fail(err, NT_REFUSED, NT_NO_OFFSET,
                         "objects to learn Python's layouts from could not be made");
        goto done;
    }
    ph_names_checked.inline_known = learn_check_all(objects, learn_check_object);
    ph_names_checked.frames_known = learn_check_all(frames, learn_check_frame);
    learn_all(fields);
    ph_names_checked.deque = (PyTypeObject *)deque;
    deque = NULL;
    ph_names_checked.prepared = true;
done:
    Py_XDECREF(deque);
    Py_XDECREF(fields);
    Py_XDECREF(frames);
    Py_XDECREF(objects);
    Py_XDECREF(module);
    return status;
}
