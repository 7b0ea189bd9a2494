/* SPDX-License-Identifier: Apache-2.0 */
/* Plain data as a pickle of protocol 4, as Python's own pickler writes it but for the
 * frames: dicts, lists, tuples, strings, integers, floats, booleans, None. What only
 * one container refers to is never looked for in the memo, which is where Python's
 * pickler spends its time on a trace of many small dicts. */
#include "nt_py.h"

#include "base/nt_map.h"

#include <string.h>

/* Deeper data is no snapshot; the C stack is used a level each. */
#define DUMP_MOST_DEPTH 64

/* Items that go into a container at once, as many as Python's pickler takes. */
#define DUMP_BATCH 1000

/* Grows to some ten megabytes for a hundred thousand events. */
#define DUMP_FIRST_BYTES ((size_t)1 << 20)

typedef struct dump_out {
    uint8_t *bytes; /* from PyMem_RawMalloc */
    size_t length;
    size_t room;
    nt_map memo;       /* address of an object -> its number */
    uint32_t memoized; /* MEMOIZE opcodes so far */
    int depth;
} dump_out;

/* Room for `count` more bytes; NULL with MemoryError. */
static uint8_t *
dump_take(dump_out *out, size_t count)
{
    if (out->room - out->length < count) {
        const size_t room = out->room + out->room / 2 + count;
        uint8_t *bytes = PyMem_RawRealloc(out->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        out->bytes = bytes;
        out->room = room;
    }
    out->length += count;
    return out->bytes + out->length - count;
}

static int
dump_bytes(dump_out *out, const void *bytes, size_t count)
{
    uint8_t *at = dump_take(out, count);
    if (at == NULL) {
        return -1;
    }
    memcpy(at, bytes, count);
    return 0;
}

static int
dump_opcode(dump_out *out, char opcode)
{
    return dump_bytes(out, &opcode, 1);
}

/* The opcode, and the low `count` bytes of `number`, the lowest first. */
static int
dump_number(dump_out *out, char opcode, uint64_t number, size_t count)
{
    uint8_t *at = dump_take(out, count + 1);
    if (at == NULL) {
        return -1;
    }
    *at++ = (uint8_t)opcode;
    for (size_t i = 0; i < count; i++) {
        at[i] = (uint8_t)(number >> 8 * i);
    }
    return 0;
}

/* 1 if the object was written before and is fetched; 0 if not; -1 with an exception. */
static int
dump_fetch(dump_out *out, PyObject *object)
{
    /* What nobody else refers to was not met before. */
    const uint32_t number = Py_REFCNT(object) > 1
                                ? nt_map_find(&out->memo, (uint64_t)(uintptr_t)object)
                                : NT_NONE;
    if (number == NT_NONE) {
        return 0;
    }
    const int status = number < 256 ? dump_number(out, 'h', number, 1)
                                    : dump_number(out, 'j', number, 4);
    return status < 0 ? -1 : 1;
}

/* Numbers the object that was written last. */
static int
dump_memoize(dump_out *out, PyObject *object)
{
    const uint32_t number = out->memoized++;
    if (Py_REFCNT(object) > 1) {
        nt_error err;
        if (nt_map_set(&out->memo, (uint64_t)(uintptr_t)object, number, &err) !=
            NT_OK) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return dump_opcode(out, '\x94');
}

static int
dump_integer(dump_out *out, PyObject *object)
{
    int overflow;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    uint64_t bits = (uint64_t)value;
    size_t count = 8;
    if (overflow > 0) {
        /* The sign bit is taken: a ninth byte says that there is no sign. */
        bits = PyLong_AsUnsignedLongLong(object);
        count = 9;
    }
    if (overflow < 0 || PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "an integer that no snapshot has");
        return -1;
    }
    if (overflow == 0 && value >= 0 && value < 1 << 16) {
        return value < 256 ? dump_number(out, 'K', bits, 1)
                           : dump_number(out, 'M', bits, 2);
    }
    if (overflow == 0 && value >= INT32_MIN && value <= INT32_MAX) {
        return dump_number(out, 'J', bits, 4);
    }
    while (count < 9 && count > 1) {
        /* Bytes that repeat the sign of those below them say nothing. */
        const long long top = value >> (8 * (count - 1) - 1);
        if (top != 0 && top != -1) {
            break;
        }
        count--;
    }
    uint8_t *at = dump_take(out, count + 2);
    if (at == NULL) {
        return -1;
    }
    at[0] = 0x8a;
    at[1] = (uint8_t)count;
    for (size_t i = 0; i < count; i++) {
        at[2 + i] = i < 8 ? (uint8_t)(bits >> 8 * i) : 0;
    }
    return 0;
}

static int
dump_float(dump_out *out, PyObject *object)
{
    const double real = PyFloat_AS_DOUBLE(object);
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint8_t *at = dump_take(out, 9);
    if (at == NULL) {
        return -1;
    }
    at[0] = 'G';
    for (size_t i = 0; i < 8; i++) {
        at[1 + i] = (uint8_t)(bits >> 8 * (7 - i));
    }
    return 0;
}

static int
dump_text(dump_out *out, PyObject *object)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == NULL) {
        return -1;
    }
    if (length > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text that no snapshot has");
        return -1;
    }
    const int status = length < 256 ? dump_number(out, '\x8c', (uint64_t)length, 1)
                                    : dump_number(out, 'X', (uint64_t)length, 4);
    if (status < 0 || dump_bytes(out, text, (size_t)length) < 0) {
        return -1;
    }
    return dump_memoize(out, object);
}

static int
dump_object(dump_out *out, PyObject *object);

static int
dump_list(dump_out *out, PyObject *list)
{
    if (dump_opcode(out, ']') < 0 || dump_memoize(out, list) < 0) {
        return -1;
    }
    const Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        const bool is_first = i % DUMP_BATCH == 0;
        const bool is_alone = count == 1;
        if ((is_first && !is_alone && dump_opcode(out, '(') < 0) ||
            dump_object(out, PyList_GET_ITEM(list, i)) < 0) {
            return -1;
        }
        const bool is_last = i + 1 == count || (i + 1) % DUMP_BATCH == 0;
        if (is_last && dump_opcode(out, is_alone ? 'a' : 'e') < 0) {
            return -1;
        }
    }
    return 0;
}

static int
dump_dict(dump_out *out, PyObject *dict)
{
    if (dump_opcode(out, '}') < 0 || dump_memoize(out, dict) < 0) {
        return -1;
    }
    const Py_ssize_t count = PyDict_Size(dict);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &position, &key, &value); i++) {
        const bool is_first = i % DUMP_BATCH == 0;
        const bool is_alone = count == 1;
        if ((is_first && !is_alone && dump_opcode(out, '(') < 0) ||
            dump_object(out, key) < 0 || dump_object(out, value) < 0) {
            return -1;
        }
        const bool is_last = i + 1 == count || (i + 1) % DUMP_BATCH == 0;
        if (is_last && dump_opcode(out, is_alone ? 's' : 'u') < 0) {
            return -1;
        }
    }
    return 0;
}

static int
dump_tuple(dump_out *out, PyObject *tuple)
{
    static const char ends[] = {')', '\x85', '\x86', '\x87'};
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count > 3 && dump_opcode(out, '(') < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (dump_object(out, PyTuple_GET_ITEM(tuple, i)) < 0) {
            return -1;
        }
    }
    if (dump_opcode(out, count > 3 ? 't' : ends[count]) < 0) {
        return -1;
    }
    return count == 0 ? 0 : dump_memoize(out, tuple);
}

static int
dump_container(dump_out *out, PyObject *object)
{
    if (++out->depth > DUMP_MOST_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "data nested deeper than any snapshot");
        return -1;
    }
    int status;
    if (PyDict_CheckExact(object)) {
        status = dump_dict(out, object);
    } else if (PyList_CheckExact(object)) {
        status = dump_list(out, object);
    } else {
        status = dump_tuple(out, object);
    }
    out->depth--;
    return status;
}

static int
dump_object(dump_out *out, PyObject *object)
{
    if (object == Py_None) {
        return dump_opcode(out, 'N');
    }
    if (PyBool_Check(object)) {
        return dump_opcode(out, object == Py_True ? '\x88' : '\x89');
    }
    if (PyLong_CheckExact(object)) {
        return dump_integer(out, object);
    }
    if (PyFloat_CheckExact(object)) {
        return dump_float(out, object);
    }
    const bool is_text = PyUnicode_CheckExact(object);
    if (!is_text && !PyDict_CheckExact(object) && !PyList_CheckExact(object) &&
        !PyTuple_CheckExact(object)) {
        PyErr_Format(PyExc_TypeError, "a %.100s is not plain data",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    const int fetched = dump_fetch(out, object);
    if (fetched != 0) {
        return fetched < 0 ? -1 : 0;
    }
    return is_text ? dump_text(out, object) : dump_container(out, object);
}

static PyObject *
dump_plain(PyObject *Py_UNUSED(module), PyObject *object)
{
    dump_out out = {.bytes = PyMem_RawMalloc(DUMP_FIRST_BYTES),
                    .room = DUMP_FIRST_BYTES};
    if (out.bytes == NULL) {
        return PyErr_NoMemory();
    }
    nt_map_init(&out.memo, nt_alloc_system());
    PyObject *pickle = NULL;
    if (dump_bytes(&out, "\x80\x04", 2) == 0 && dump_object(&out, object) == 0 &&
        dump_opcode(&out, '.') == 0) {
        pickle =
            PyBytes_FromStringAndSize((const char *)out.bytes, (Py_ssize_t)out.length);
    }
    nt_map_clear(&out.memo);
    PyMem_RawFree(out.bytes);
    return pickle;
}

PyDoc_STRVAR(dump_plain_doc,
             "dump_plain(data, /)\n--\n\n"
             "A pickle of protocol 4 of dicts, lists, tuples, strings, integers of 64\n"
             "bits, floats, booleans and None. TypeError or ValueError for anything\n"
             "else. No Python code runs meanwhile.");

PyMethodDef nt_py_dump_methods[] = {
    {"dump_plain", dump_plain, METH_O, dump_plain_doc},
    {NULL, NULL, 0, NULL},
};
