/* SPDX-License-Identifier: Apache-2.0 */
/* Tables handed to other libraries through the Arrow C stream interface, without a
 * dependency and without copying numbers: one batch, whose buffers are the columns
 * themselves. The structs are those of the Arrow C data interface, which fixes their
 * layout. A consumer may take children out and release them in any order and on any
 * thread, so every piece holds the table on its own. */
#include "nt_py.h"

#include <stdatomic.h>
#include <string.h>

typedef struct arrow_schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct arrow_schema **children, *dictionary;
    void (*release)(struct arrow_schema *);
    void *private_data;
} arrow_schema;

typedef struct arrow_array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct arrow_array **children, *dictionary;
    void (*release)(struct arrow_array *);
    void *private_data;
} arrow_array;

typedef struct arrow_stream {
    int (*get_schema)(struct arrow_stream *, arrow_schema *);
    int (*get_next)(struct arrow_stream *, arrow_array *);
    const char *(*get_last_error)(struct arrow_stream *);
    void (*release)(struct arrow_stream *);
    void *private_data;
} arrow_stream;

#define ARROW_NULLABLE 2
#define ARROW_NO_MEMORY 12 /* the interface's errno for it */

typedef struct arrow_column {
    char *name;
    char format[2];     /* Arrow's letter */
    Py_buffer view;     /* of the numbers; obj NULL when not held */
    char *text;         /* the dictionary's strings, one behind the other */
    int32_t *text_ends; /* text_count + 1 offsets into them; NULL: no dictionary */
    int64_t text_count;
    uint8_t *valid; /* bitmap, NULL: no nulls */
    int64_t null_count;
    const void *data; /* first item, as Python has it */
    int16_t *wide;    /* what Arrow gets in its place; NULL: `data` itself */
} arrow_column;

typedef struct arrow_table {
    atomic_long references;
    int64_t count;
    bool done; /* the one batch was given out; only the stream looks at it */
    size_t column_count;
    arrow_column *columns;
} arrow_table;

static void
arrow_drop(arrow_table *table)
{
    if (atomic_fetch_sub(&table->references, 1) != 1) {
        return;
    }
    /* The buffers are Python's. */
    PyGILState_STATE gil = PyGILState_Ensure();
    for (size_t i = 0; i < table->column_count; i++) {
        arrow_column *c = &table->columns[i];
        PyMem_RawFree(c->name);
        PyMem_RawFree(c->text);
        PyMem_RawFree(c->text_ends);
        PyMem_RawFree(c->valid);
        PyMem_RawFree(c->wide);
        if (c->view.obj != NULL) {
            PyBuffer_Release(&c->view);
        }
    }
    PyGILState_Release(gil);
    PyMem_RawFree(table->columns);
    PyMem_RawFree(table);
}

static arrow_table *
arrow_hold(arrow_table *table)
{
    (void)atomic_fetch_add(&table->references, 1);
    return table;
}

/* Releases and frees one child of a schema or an array, which may be NULL. */
#define ARROW_FREE_CHILD(child)                                                        \
    do {                                                                               \
        if ((child) != NULL && (child)->release != NULL) {                             \
            (child)->release(child);                                                   \
        }                                                                              \
        PyMem_RawFree(child);                                                          \
    } while (0)

/* The same for all that `parent` has, and for the list of its children. */
#define ARROW_FREE_CHILDREN(parent)                                                    \
    do {                                                                               \
        for (int64_t i = 0; i < (parent)->n_children; i++) {                           \
            ARROW_FREE_CHILD((parent)->children[i]);                                   \
        }                                                                              \
        ARROW_FREE_CHILD((parent)->dictionary);                                        \
        PyMem_RawFree((parent)->children);                                             \
    } while (0)

static void
arrow_release_schema(arrow_schema *schema)
{
    ARROW_FREE_CHILDREN(schema);
    arrow_drop(schema->private_data);
    schema->release = NULL;
}

static void
arrow_make_schema(arrow_table *table, const char *format, const char *name,
                  arrow_schema *out)
{
    *out = (arrow_schema){
        .format = format,
        .name = name,
        .flags = ARROW_NULLABLE,
        .release = arrow_release_schema,
        .private_data = arrow_hold(table),
    };
}

static int
arrow_get_schema(arrow_stream *stream, arrow_schema *out)
{
    arrow_table *table = stream->private_data;
    arrow_make_schema(table, "+s", "", out);
    out->flags = 0;
    out->children = PyMem_RawCalloc(table->column_count + 1, sizeof *out->children);
    for (size_t i = 0; out->children != NULL && i < table->column_count; i++) {
        const arrow_column *c = &table->columns[i];
        arrow_schema *child = PyMem_RawCalloc(1, sizeof *child);
        out->children[i] = child;
        out->n_children++;
        if (child == NULL) {
            break;
        }
        arrow_make_schema(table, c->format, c->name, child);
        if (c->text_ends != NULL) {
            child->dictionary = PyMem_RawCalloc(1, sizeof *child);
            if (child->dictionary == NULL) {
                break;
            }
            arrow_make_schema(table, "u", "", child->dictionary);
        }
        if (i + 1 == table->column_count) {
            return 0;
        }
    }
    if (table->column_count == 0 && out->children != NULL) {
        return 0;
    }
    out->release(out);
    return ARROW_NO_MEMORY;
}

/* What an array owns besides its children: the table, and its list of buffers. */
typedef struct arrow_owned {
    arrow_table *table;
    const void *buffers[3];
} arrow_owned;

static void
arrow_release_array(arrow_array *array)
{
    arrow_owned *owned = array->private_data;
    ARROW_FREE_CHILDREN(array);
    arrow_drop(owned->table);
    PyMem_RawFree(owned);
    array->release = NULL;
}

static bool
arrow_make_array(arrow_table *table, int64_t length, int64_t buffers, arrow_array *out)
{
    arrow_owned *owned = PyMem_RawCalloc(1, sizeof *owned);
    if (owned == NULL) {
        return false;
    }
    owned->table = arrow_hold(table);
    *out = (arrow_array){
        .length = length,
        .n_buffers = buffers,
        .buffers = owned->buffers,
        .release = arrow_release_array,
        .private_data = owned,
    };
    return true;
}

static bool
arrow_make_child(arrow_table *table, const arrow_column *c, arrow_array *out)
{
    if (!arrow_make_array(table, table->count, 2, out)) {
        return false;
    }
    out->null_count = c->null_count;
    out->buffers[0] = c->valid;
    out->buffers[1] = c->wide != NULL ? (const void *)c->wide : c->data;
    if (c->text_ends == NULL) {
        return true;
    }
    out->dictionary = PyMem_RawCalloc(1, sizeof *out);
    if (out->dictionary == NULL ||
        !arrow_make_array(table, c->text_count, 3, out->dictionary)) {
        return false;
    }
    out->dictionary->buffers[1] = c->text_ends;
    out->dictionary->buffers[2] = c->text;
    return true;
}

static int
arrow_get_next(arrow_stream *stream, arrow_array *out)
{
    arrow_table *table = stream->private_data;
    memset(out, 0, sizeof *out);
    if (table->done) {
        return 0;
    }
    if (!arrow_make_array(table, table->count, 1, out)) {
        return ARROW_NO_MEMORY;
    }
    out->children = PyMem_RawCalloc(table->column_count + 1, sizeof *out->children);
    bool made = out->children != NULL;
    for (size_t i = 0; made && i < table->column_count; i++) {
        out->children[i] = PyMem_RawCalloc(1, sizeof *out);
        out->n_children++;
        made = out->children[i] != NULL &&
               arrow_make_child(table, &table->columns[i], out->children[i]);
    }
    if (!made) {
        out->release(out);
        return ARROW_NO_MEMORY;
    }
    table->done = true;
    return 0;
}

static const char *
arrow_get_last_error(arrow_stream *stream)
{
    (void)stream;
    return "out of memory";
}

static void
arrow_release_stream(arrow_stream *stream)
{
    arrow_drop(stream->private_data);
    stream->release = NULL;
}

/* Arrow's letter for struct's: signed and unsigned of 1, 4 and 8 bytes, and doubles. */
static char
arrow_letter(const char *format)
{
    switch (format == NULL ? 'B' : format[0]) {
    case 'B': return 'C';
    case 'i': return 'i';
    case 'I': return 'I';
    case 'q': return 'l';
    case 'Q': return 'L';
    case 'd': return 'g';
    default: return 0;
    }
}

/* Fills the dictionary from a sequence of str. */
static int
arrow_set_text(arrow_column *c, PyObject *strings)
{
    PyObject *list = PySequence_Fast(strings, "a dictionary is a sequence of str");
    if (list == NULL) {
        return -1;
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
    size_t length = 0;
    int failed = 0;
    c->text_count = count;
    c->text_ends = PyMem_RawCalloc((size_t)count + 1, sizeof *c->text_ends);
    for (Py_ssize_t i = 0; c->text_ends != NULL && !failed && i < count; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        /* Arrow's strings are UTF-8 proper: lone surrogates are spelt out. */
        PyObject *utf8 = PyUnicode_AsEncodedString(item, "utf-8", "backslashreplace");
        const size_t more = utf8 == NULL ? 0 : (size_t)PyBytes_GET_SIZE(utf8);
        char *grown = PyMem_RawRealloc(c->text, length + more + 1);
        failed = utf8 == NULL || grown == NULL || length + more > INT32_MAX;
        c->text = grown == NULL ? c->text : grown;
        if (!failed) {
            memcpy(c->text + length, PyBytes_AS_STRING(utf8), more);
            length += more;
            c->text_ends[i + 1] = (int32_t)length;
        }
        Py_XDECREF(utf8);
    }
    Py_DECREF(list);
    if (c->text_ends == NULL || failed) {
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    }
    return 0;
}

static uint64_t
arrow_item(const arrow_column *c, int64_t i)
{
    switch (c->view.itemsize) {
    case 1: return ((const uint8_t *)c->data)[i];
    case 4: return ((const uint32_t *)c->data)[i];
    default: return ((const uint64_t *)c->data)[i];
    }
}

/* The bitmap of the items that are not `null`. */
static int
arrow_set_valid(arrow_column *c, int64_t count, uint64_t null)
{
    for (int64_t i = 0; i < count; i++) {
        c->null_count += arrow_item(c, i) == null;
    }
    if (c->null_count == 0) {
        return 0;
    }
    c->valid = PyMem_RawCalloc((size_t)count / 8 + 1, 1);
    if (c->valid == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        c->valid[i / 8] |= (uint8_t)((arrow_item(c, i) != null) << i % 8);
    }
    return 0;
}

/* Codes of one byte as int16: a dictionary may be too long for int8. */
static int
arrow_set_wide(arrow_column *c, int64_t count)
{
    c->wide = PyMem_RawCalloc((size_t)count + 1, sizeof *c->wide);
    if (c->wide == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        c->wide[i] = ((const uint8_t *)c->data)[i];
    }
    return 0;
}

/* The dictionary, and the codes into it as signed integers, because not every consumer
 * takes unsigned ones there. Each code that is no null must have its string. */
static int
arrow_set_dictionary(arrow_column *c, PyObject *strings, int64_t count)
{
    if (c->view.itemsize > 4) {
        PyErr_SetString(PyExc_ValueError, "codes of strings have one or four bytes");
        return -1;
    }
    if (arrow_set_text(c, strings) < 0) {
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        const bool is_null = c->valid != NULL && !(c->valid[i / 8] >> i % 8 & 1);
        if (!is_null && arrow_item(c, i) >= (uint64_t)c->text_count) {
            PyErr_Format(PyExc_ValueError, "column '%s' has a code without a string",
                         c->name);
            return -1;
        }
    }
    c->format[0] = c->view.itemsize == 4 ? 'i' : 's';
    return c->view.itemsize == 4 ? 0 : arrow_set_wide(c, count);
}

/* One column from its tuple (name, buffer, first, dictionary, null). */
static int
arrow_set_column(arrow_column *c, PyObject *spec, int64_t count)
{
    const char *name;
    PyObject *buffer, *dictionary, *null;
    Py_ssize_t first;
    if (!PyTuple_Check(spec)) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(spec, "sOnOO", &name, &buffer, &first, &dictionary, &null) ||
        PyObject_GetBuffer(buffer, &c->view, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0) {
        return -1;
    }
    c->format[0] = arrow_letter(c->view.format);
    const Py_ssize_t items = c->view.len / c->view.itemsize;
    if (c->format[0] == 0 || first < 0 || first > items || count > items - first) {
        PyErr_SetString(PyExc_ValueError, "a column's format or length does not fit");
        return -1;
    }
    c->data = (const char *)c->view.buf + first * c->view.itemsize;
    c->name = PyMem_RawCalloc(strlen(name) + 1, 1);
    if (c->name == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(c->name, name, strlen(name));
    if (null != Py_None) {
        const unsigned long long code = PyLong_AsUnsignedLongLongMask(null);
        if (PyErr_Occurred() || arrow_set_valid(c, count, code) < 0) {
            return -1;
        }
    }
    return dictionary == Py_None ? 0 : arrow_set_dictionary(c, dictionary, count);
}

static void
arrow_destroy_capsule(PyObject *capsule)
{
    arrow_stream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (stream->release != NULL) {
        stream->release(stream);
    }
    PyMem_RawFree(stream);
}

static arrow_table *
arrow_make_table(PyObject *list, Py_ssize_t count)
{
    const size_t column_count = (size_t)PySequence_Fast_GET_SIZE(list);
    arrow_table *table = PyMem_RawCalloc(1, sizeof *table);
    arrow_column *columns = PyMem_RawCalloc(column_count + 1, sizeof *columns);
    if (table == NULL || columns == NULL) {
        PyMem_RawFree(table);
        PyMem_RawFree(columns);
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&table->references, 1);
    table->count = count;
    table->columns = columns;
    table->column_count = column_count;
    for (size_t i = 0; i < column_count; i++) {
        if (arrow_set_column(&columns[i], PySequence_Fast_GET_ITEM(list, (Py_ssize_t)i),
                             count) < 0) {
            arrow_drop(table);
            return NULL;
        }
    }
    return table;
}

PyObject *
nt_py_arrow_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *specs;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "On", &specs, &count)) {
        return NULL;
    }
    if (count < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of rows");
        return NULL;
    }
    PyObject *list = PySequence_Fast(specs, "columns is a sequence of tuples");
    if (list == NULL) {
        return NULL;
    }
    arrow_table *table = arrow_make_table(list, count);
    Py_DECREF(list);
    if (table == NULL) {
        return NULL;
    }
    arrow_stream *stream = PyMem_RawCalloc(1, sizeof *stream);
    if (stream == NULL) {
        arrow_drop(table);
        return PyErr_NoMemory();
    }
    *stream = (arrow_stream){
        .get_schema = arrow_get_schema,
        .get_next = arrow_get_next,
        .get_last_error = arrow_get_last_error,
        .release = arrow_release_stream,
        .private_data = table,
    };
    PyObject *capsule =
        PyCapsule_New(stream, "arrow_array_stream", arrow_destroy_capsule);
    if (capsule == NULL) {
        stream->release(stream);
        PyMem_RawFree(stream);
    }
    return capsule;
}
