/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_names.h"

#include <stdio.h>
#include <string.h>

#include "base/nt_utf8.h"
#include "py_compat_objects.h"
#include "structmember.h"
#include "frameobject.h"
#include "ph_tensor.h"

/* A terminated UTF-8 text in the caller's buffer of `size` bytes, at least 8. What does
 * not fit is left out, with an ellipsis in its place. */
typedef struct ph_text {
    char *bytes;
    size_t size;
    size_t length;
    bool cut;
} ph_text;

typedef struct ph_round {
    ph_names_visit visit;
    void *ctx;
    const PyObject *only; /* NULL: every reference; else only those to it */
    char name[PH_NAME_BYTES];
} ph_round;

/* Whether a reference needs to be spelt: there is one, and the caller wants it. */
#define PH_ROUND_WANTS(round, target)                                                  \
    ((target) != NULL && ((round)->only == NULL || (round)->only == (target)))

/* Leaves the calling function when the round has ended. */
#define PH_ROUND_TRY(call)                                                             \
    do {                                                                               \
        const int ph_round_stop = (call);                                              \
        if (ph_round_stop != 0) {                                                      \
            return ph_round_stop;                                                      \
        }                                                                              \
    } while (0)

/* What ph_names_prepare found: whether inline values and frames lie where they are
 * looked for, and a type that has no name in C. */
typedef struct ph_names_state {
    bool prepared;
    bool inline_known;
    bool frames_known;
    PyTypeObject *deque; /* owned for good */
} ph_names_state;

/* ---- text ------------------------------------------------------------------------ */

static const char text_ellipsis[] = "\xE2\x80\xA6";

static void
ph_text_begin(ph_text *text, char *bytes, size_t size)
{
    *text = (ph_text){.bytes = bytes, .size = size};
    bytes[0] = '\0';
}

/* Takes characters off the end until the ellipsis fits. */
static void
text_cut(ph_text *text)
{
    const size_t most = text->size - sizeof text_ellipsis;
    while (text->length > most ||
           (text->length > 0 && (text->bytes[text->length] & 0xC0) == 0x80)) {
        text->length--;
    }
    memcpy(text->bytes + text->length, text_ellipsis, sizeof text_ellipsis);
    text->length += sizeof text_ellipsis - 1;
    text->cut = true;
}

/* One character, or one escape: all of it or nothing. */
static void
text_put(ph_text *text, const char *bytes, size_t count)
{
    if (text->cut) {
        return;
    }
    if (text->length + count >= text->size) {
        text->bytes[text->length] = '\0';
        text_cut(text);
        return;
    }
    memcpy(text->bytes + text->length, bytes, count);
    text->length += count;
    text->bytes[text->length] = '\0';
}

static void
ph_text_add(ph_text *text, const char *words)
{
    while (*words != '\0') {
        size_t count = 1;
        while ((words[count] & 0xC0) == 0x80) {
            count++;
        }
        text_put(text, words, count);
        words += count;
    }
}

static void
ph_text_add_number(ph_text *text, long long number)
{
    char digits[32];
    (void)snprintf(digits, sizeof digits, "%lld", number);
    ph_text_add(text, digits);
}

static void
text_add_char(ph_text *text, Py_UCS4 c, bool quoted)
{
    if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
        const char *form = c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\x%02x";
        char bytes[16];
        const int count = snprintf(bytes, sizeof bytes, form, (unsigned)c);
        text_put(text, bytes, (size_t)count);
    } else if (quoted && (c == '\'' || c == '\\')) {
        const char escape[2] = {'\\', (char)c};
        text_put(text, escape, 2);
    } else {
        /* A lone surrogate has no UTF-8. */
        const bool lone = c >= 0xD800 && c < 0xE000;
        uint8_t bytes[4];
        const size_t count = nt_utf8_put(bytes, lone ? 0xFFFD : c);
        text_put(text, (const char *)bytes, count);
    }
}

/* Whether a str's characters can be read; in 3.10 and 3.11 one may not have them yet.
 */
static bool
text_readable(PyObject *str)
{
#if PY_VERSION_HEX < 0x030C0000
    return PyUnicode_Check(str) && PyUnicode_IS_READY(str);
#else
    return PyUnicode_Check(str);
#endif
}

static void
text_add_from(ph_text *text, PyObject *str, Py_ssize_t first, bool quoted)
{
    const Py_ssize_t length = PyUnicode_GET_LENGTH(str);
    const int kind = (int)PyUnicode_KIND(str);
    const void *data = PyUnicode_DATA(str);
    for (Py_ssize_t at = first; at < length && !text->cut; at++) {
        text_add_char(text, PyUnicode_READ(kind, data, at), quoted);
    }
}

/* The characters of a str of any type, read from its memory; control characters are
 * spelt as escapes, quotes and backslashes too where it is `quoted`. */
static void
ph_text_add_str(ph_text *text, PyObject *str, bool quoted)
{
    if (str == NULL || !text_readable(str)) {
        ph_text_add(text, "?");
        return;
    }
    text_add_from(text, str, 0, quoted);
}

/* The end of the str where all of it is too long. */
static void
ph_text_add_path(ph_text *text, PyObject *str)
{
    if (str == NULL || !text_readable(str)) {
        return;
    }
    /* No character takes more than four bytes, an escape included. */
    const Py_ssize_t most = (Py_ssize_t)(text->size - text->length - 8) / 4;
    const Py_ssize_t length = PyUnicode_GET_LENGTH(str);
    const bool ascii = PyUnicode_IS_ASCII(str);
    const Py_ssize_t room = ascii ? most * 4 : most;
    if (length > room) {
        ph_text_add(text, text_ellipsis);
    }
    text_add_from(text, str, length > room ? length - room : 0, false);
}

/* Whether the object is a str with exactly these characters, ASCII. */
static bool
ph_text_is(PyObject *object, const char *words)
{
    if (object == NULL || !text_readable(object)) {
        return false;
    }
    const size_t length = strlen(words);
    return PyUnicode_IS_ASCII(object) &&
           (size_t)PyUnicode_GET_LENGTH(object) == length &&
           memcmp(PyUnicode_1BYTE_DATA(object), words, length) == 0;
}

/* The value of a str key in a dict, found without hashing; NULL where there is none. */
static PyObject *
ph_names_lookup(PyObject *dict, const char *key)
{
    PyObject *held, *value;
    Py_ssize_t at = 0;
    if (dict == NULL || !PyDict_Check(dict)) {
        return NULL;
    }
    while (PyDict_Next(dict, &at, &held, &value)) {
        if (ph_text_is(held, key)) {
            return value;
        }
    }
    return NULL;
}

/* A type's name, with its module if `full` ("builtins." is left out). */
static void
ph_text_add_type(ph_text *text, PyTypeObject *type, bool full)
{
    const char *name = type->tp_name == NULL ? "?" : type->tp_name;
    PyObject *qualname = NULL;
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        qualname = ((PyHeapTypeObject *)type)->ht_qualname;
    }
    if (qualname == NULL || !PyUnicode_Check(qualname)) {
        const char *dot = strrchr(name, '.');
        const bool bare = !full || strncmp(name, "builtins.", 9) == 0;
        ph_text_add(text, bare && dot != NULL ? dot + 1 : name);
        return;
    }
    PyObject *module =
        full ? ph_names_lookup(py_compat_type_dict(type), "__module__") : NULL;
    if (module != NULL && PyUnicode_Check(module) && !ph_text_is(module, "builtins")) {
        ph_text_add_str(text, module, false);
        ph_text_add(text, ".");
    }
    ph_text_add_str(text, full ? qualname : ((PyHeapTypeObject *)type)->ht_name, false);
}

/* An int of no subclass; false where it is too long to be spelt. */
static bool
text_add_int(ph_text *text, PyObject *number)
{
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow == 0) {
        ph_text_add_number(text, value);
    }
    return overflow == 0;
}

/* "weak Key" of a weak reference, whatever it is by now. */
static void
text_add_weak(ph_text *text, PyObject *reference)
{
    PyObject *object = ((PyWeakReference *)reference)->wr_object;
    if (object == NULL || object == Py_None || Py_REFCNT(object) <= 0) {
        ph_text_add(text, "dead weak reference");
        return;
    }
    ph_text_add(text, "weak ");
    ph_text_add_type(text, Py_TYPE(object), false);
}

/* What stands in the brackets of a dict's value: "'key'", "3", "<Key>". */
static void
ph_text_add_key(ph_text *text, PyObject *key)
{
    if (PyUnicode_Check(key)) {
        ph_text_add(text, "'");
        ph_text_add_str(text, key, true);
        ph_text_add(text, "'");
        return;
    }
    if (key == Py_None || PyBool_Check(key)) {
        ph_text_add(text, key == Py_None ? "None" : key == Py_True ? "True" : "False");
        return;
    }
    if (PyLong_CheckExact(key) && text_add_int(text, key)) {
        return;
    }
    ph_text_add(text, "<");
    if (PyWeakref_Check(key)) {
        text_add_weak(text, key);
    } else if (PyType_Check(key)) {
        ph_text_add(text, "class ");
        ph_text_add_type(text, (PyTypeObject *)key, false);
    } else {
        ph_text_add_type(text, Py_TYPE(key), false);
    }
    ph_text_add(text, ">");
}

static ph_names_state ph_names_checked;

/* Each hands a reference on; returns what ended the round, or 0. A target that is NULL
 * is no reference. */
static int
ph_round_emit(ph_round *round, PyObject *target, ph_edge_kind kind, const char *name)
{
    return PH_ROUND_WANTS(round, target) ? round->visit(round->ctx, target, kind, name)
                                         : 0;
}

static int
ph_round_emit_str(ph_round *round, PyObject *target, ph_edge_kind kind, PyObject *name)
{
    if (!PH_ROUND_WANTS(round, target)) {
        return 0;
    }
    ph_text text;
    ph_text_begin(&text, round->name, sizeof round->name);
    ph_text_add_str(&text, name, false);
    return round->visit(round->ctx, target, kind, round->name);
}

static int
ph_round_emit_index(ph_round *round, PyObject *target, ph_edge_kind kind,
                    Py_ssize_t index)
{
    if (!PH_ROUND_WANTS(round, target)) {
        return 0;
    }
    ph_text text;
    ph_text_begin(&text, round->name, sizeof round->name);
    ph_text_add_number(&text, index);
    return round->visit(round->ctx, target, kind, round->name);
}

/* ---- named fields ---------------------------------------------------------------- */

/* Named fields: the slots of Python classes and the members that C types publish. */

/* Fields that are told apart by where they lie, so that one with two names counts once;
 * beyond this many a second name may slip in. */
#define MOST_SEEN 64

typedef struct field_seen {
    Py_ssize_t offsets[MOST_SEEN];
    size_t count;
} field_seen;

static bool
field_is_new(field_seen *seen, Py_ssize_t offset)
{
    for (size_t at = 0; at < seen->count; at++) {
        if (seen->offsets[at] == offset) {
            return false;
        }
    }
    if (seen->count < MOST_SEEN) {
        seen->offsets[seen->count++] = offset;
    }
    return true;
}

/* A field's kind by its name: "__self__", "func" and the like have kinds of their own.
 */
static ph_edge_kind
ph_names_field_kind(const char *name)
{
    if (strcmp(name, "__self__") == 0) {
        return PH_EDGE_SELF;
    }
    if (strcmp(name, "func") == 0 || strcmp(name, "__func__") == 0 ||
        strcmp(name, "function") == 0) {
        return PH_EDGE_FUNCTION;
    }
    return PH_EDGE_FIELD;
}

/* Whether a type was made by a class statement with __slots__. */
static bool
field_has_slots(const PyTypeObject *type)
{
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 &&
           ((const PyHeapTypeObject *)type)->ht_slots != NULL;
}

/* Slots and members by their types' tables, up to `rest`. */
static int
ph_round_members(ph_round *round, PyObject *source, const PyTypeObject *rest)
{
    field_seen seen = {.count = 0};
    for (const PyTypeObject *type = Py_TYPE(source); type != NULL && type != rest;
         type = type->tp_base) {
        const bool slots = field_has_slots(type);
        const PyMemberDef *member = type->tp_members;
        for (; member != NULL && member->name != NULL; member++) {
            if ((member->type != T_OBJECT && member->type != T_OBJECT_EX) ||
                member->offset < (Py_ssize_t)sizeof(PyObject) ||
                member->offset == type->tp_dictoffset ||
                !field_is_new(&seen, member->offset)) {
                continue;
            }
            PyObject *target = *(PyObject **)((char *)source + member->offset);
            const ph_edge_kind kind =
                slots ? PH_EDGE_ATTRIBUTE : ph_names_field_kind(member->name);
            PH_ROUND_TRY(ph_round_emit(round, target, kind, member->name));
        }
    }
    return 0;
}

/* ---- built-in types -------------------------------------------------------------- */

/* References of the types whose structs are in Python's public headers. */

static int
builtin_dict(ph_round *round, PyObject *source)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(source, &at, &key, &value)) {
        if (PH_ROUND_WANTS(round, value)) {
            ph_text text;
            ph_text_begin(&text, round->name, sizeof round->name);
            ph_text_add_key(&text, key);
            PH_ROUND_TRY(round->visit(round->ctx, value, PH_EDGE_VALUE, round->name));
        }
        const char *word = PyWeakref_Check(key) ? "weak key" : "key";
        PH_ROUND_TRY(ph_round_emit(round, key, PH_EDGE_KEY, word));
    }
    return 0;
}

/* The field names of a named tuple's class, or NULL. */
static PyObject *
builtin_field_names(PyObject *source)
{
    PyTypeObject *type = Py_TYPE(source);
    if (type == &PyTuple_Type || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        return NULL;
    }
    PyObject *names = NULL;
    for (; names == NULL && type != NULL && type != &PyTuple_Type;
         type = type->tp_base) {
        names = ph_names_lookup(py_compat_type_dict(type), "_fields");
    }
    return names != NULL && PyTuple_CheckExact(names) &&
                   PyTuple_GET_SIZE(names) == PyTuple_GET_SIZE(source)
               ? names
               : NULL;
}

static int
builtin_tuple(ph_round *round, PyObject *source)
{
    PyObject *names = builtin_field_names(source);
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(source); at++) {
        PyObject *item = PyTuple_GET_ITEM(source, at);
        PyObject *name = names == NULL ? NULL : PyTuple_GET_ITEM(names, at);
        if (name != NULL && PyUnicode_Check(name)) {
            PH_ROUND_TRY(ph_round_emit_str(round, item, PH_EDGE_ATTRIBUTE, name));
        } else {
            PH_ROUND_TRY(ph_round_emit_index(round, item, PH_EDGE_ITEM, at));
        }
    }
    return 0;
}

static int
builtin_list(ph_round *round, PyObject *source)
{
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(source); at++) {
        PH_ROUND_TRY(
            ph_round_emit_index(round, PyList_GET_ITEM(source, at), PH_EDGE_ITEM, at));
    }
    return 0;
}

static int
builtin_set(ph_round *round, PyObject *source)
{
    const PySetObject *set = (const PySetObject *)source;
    for (Py_ssize_t at = 0; set->table != NULL && at <= set->mask; at++) {
        /* A place that was given up has the hash -1, which no object has. */
        PyObject *key = set->table[at].hash == -1 ? NULL : set->table[at].key;
        PH_ROUND_TRY(ph_round_emit(round, key, PH_EDGE_MEMBER, ""));
    }
    return 0;
}

static int
builtin_function(ph_round *round, PyObject *source)
{
    const PyFunctionObject *f = (const PyFunctionObject *)source;
    const ph_edge_kind field = PH_EDGE_FIELD;
    PH_ROUND_TRY(ph_round_emit(round, f->func_closure, PH_EDGE_CLOSURE, "__closure__"));
    PH_ROUND_TRY(
        ph_round_emit(round, f->func_defaults, PH_EDGE_DEFAULT, "__defaults__"));
    PH_ROUND_TRY(
        ph_round_emit(round, f->func_kwdefaults, PH_EDGE_DEFAULT, "__kwdefaults__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_globals, PH_EDGE_GLOBALS, "__globals__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_code, field, "__code__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_annotations, field, "__annotations__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_builtins, field, "__builtins__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_module, field, "__module__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_doc, field, "__doc__"));
    PH_ROUND_TRY(ph_round_emit(round, f->func_name, field, "__name__"));
#if PY_VERSION_HEX >= 0x030C0000
    PH_ROUND_TRY(ph_round_emit(round, f->func_typeparams, field, "__type_params__"));
#endif
    return ph_round_emit(round, f->func_qualname, field, "__qualname__");
}

static int
builtin_method(ph_round *round, PyObject *source)
{
    const PyMethodObject *method = (const PyMethodObject *)source;
    PH_ROUND_TRY(ph_round_emit(round, method->im_self, PH_EDGE_SELF, "__self__"));
    return ph_round_emit(round, method->im_func, PH_EDGE_FUNCTION, "__func__");
}

static int
builtin_c_function(ph_round *round, PyObject *source)
{
    const PyCFunctionObject *function = (const PyCFunctionObject *)source;
    PH_ROUND_TRY(ph_round_emit(round, function->m_self, PH_EDGE_SELF, "__self__"));
    return ph_round_emit(round, function->m_module, PH_EDGE_FIELD, "__module__");
}

static int
builtin_exception(ph_round *round, PyObject *source)
{
    const PyBaseExceptionObject *error = (const PyBaseExceptionObject *)source;
    const ph_edge_kind kind = PH_EDGE_EXCEPTION;
    PH_ROUND_TRY(ph_round_emit(round, error->traceback, kind, "__traceback__"));
    PH_ROUND_TRY(ph_round_emit(round, error->context, kind, "__context__"));
    PH_ROUND_TRY(ph_round_emit(round, error->cause, kind, "__cause__"));
#if PY_VERSION_HEX >= 0x030B0000
    PH_ROUND_TRY(ph_round_emit(round, error->notes, PH_EDGE_FIELD, "__notes__"));
#endif
    return ph_round_emit(round, error->args, PH_EDGE_FIELD, "args");
}

static int
builtin_traceback(ph_round *round, PyObject *source)
{
    const PyTracebackObject *traceback = (const PyTracebackObject *)source;
    PyObject *frame = (PyObject *)traceback->tb_frame;
    PyObject *next = (PyObject *)traceback->tb_next;
    PH_ROUND_TRY(ph_round_emit(round, frame, PH_EDGE_FRAME, "tb_frame"));
    return ph_round_emit(round, next, PH_EDGE_EXCEPTION, "tb_next");
}

static int
builtin_type(ph_round *round, PyObject *source)
{
    PyTypeObject *type = (PyTypeObject *)source;
    const ph_edge_kind kind = PH_EDGE_CLASS;
    PyObject *base = (PyObject *)type->tp_base;
    PH_ROUND_TRY(ph_round_emit(round, py_compat_type_dict(type), PH_EDGE_INSTANCE_DICT,
                               "__dict__"));
    PH_ROUND_TRY(ph_round_emit(round, base, kind, "__base__"));
#if PY_VERSION_HEX < 0x030C0000
    PH_ROUND_TRY(ph_round_emit(round, type->tp_bases, kind, "__bases__"));
    PH_ROUND_TRY(ph_round_emit(round, type->tp_mro, kind, "__mro__"));
#else
    /* From 3.12 on the built-in static types keep them with the interpreter. */
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PH_ROUND_TRY(ph_round_emit(round, type->tp_bases, kind, "__bases__"));
        PH_ROUND_TRY(ph_round_emit(round, type->tp_mro, kind, "__mro__"));
    }
#endif
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
        PH_ROUND_TRY(ph_round_emit(round, module, kind, "module"));
    }
    return 0;
}

static int
builtin_values(ph_round *round, const py_compat_frame *frame)
{
    for (Py_ssize_t at = 0; frame->values != NULL && at < frame->count; at++) {
        PyObject *value = py_compat_frame_value(frame, at, NULL);
        PyObject *name =
            at < frame->named ? py_compat_local_name(frame->code, at) : NULL;
        if (name != NULL) {
            PH_ROUND_TRY(ph_round_emit_str(round, value, PH_EDGE_LOCAL, name));
        } else {
            PH_ROUND_TRY(ph_round_emit(round, value, PH_EDGE_LOCAL, "(temporary)"));
        }
    }
    return 0;
}

static int
builtin_frame(ph_round *round, PyObject *source)
{
    py_compat_frame frame;
    if (!ph_names_checked.frames_known || !py_compat_frame_read(source, &frame)) {
        return 0;
    }
    PyObject *code = (PyObject *)frame.code;
    const ph_edge_kind field = PH_EDGE_FIELD;
    PH_ROUND_TRY(builtin_values(round, &frame));
    PH_ROUND_TRY(ph_round_emit(round, frame.back, PH_EDGE_FRAME, "f_back"));
    PH_ROUND_TRY(ph_round_emit(round, frame.frame, PH_EDGE_FRAME, "gi_frame"));
    PH_ROUND_TRY(ph_round_emit(round, frame.locals, field, "f_locals"));
    PH_ROUND_TRY(ph_round_emit(round, frame.globals, PH_EDGE_GLOBALS, "f_globals"));
    PH_ROUND_TRY(ph_round_emit(round, frame.builtins, field, "f_builtins"));
    PH_ROUND_TRY(ph_round_emit(round, frame.trace, field, "f_trace"));
    PH_ROUND_TRY(ph_round_emit(round, frame.function, PH_EDGE_FUNCTION, "f_func"));
    return ph_round_emit(round, code, field, "f_code");
}

static int
builtin_generator(ph_round *round, PyObject *source)
{
    const char *origin = PyCoro_CheckExact(source) ? "cr_origin" : "finalizer";
    const ph_edge_kind handled = PH_EDGE_EXCEPTION;
    py_compat_generator held;
    PH_ROUND_TRY(builtin_frame(round, source));
    py_compat_generator_read(source, &held);
    PH_ROUND_TRY(ph_round_emit(round, held.handled, handled, "handled exception"));
    PH_ROUND_TRY(
        ph_round_emit(round, held.handled_traceback, handled, "handled traceback"));
    PH_ROUND_TRY(ph_round_emit(round, held.origin, PH_EDGE_FIELD, origin));
    PH_ROUND_TRY(ph_round_emit(round, held.name, PH_EDGE_FIELD, "__name__"));
    return ph_round_emit(round, held.qualname, PH_EDGE_FIELD, "__qualname__");
}

typedef struct builtin_order {
    ph_round *round;
    Py_ssize_t at;
} builtin_order;

static int
builtin_count_visit(PyObject *Py_UNUSED(target), void *ctx)
{
    ++*(Py_ssize_t *)ctx;
    return 0;
}

static int
builtin_visit_item(PyObject *target, void *ctx)
{
    builtin_order *order = ctx;
    const Py_ssize_t at = order->at++;
    return at < 0 ? 0 : ph_round_emit_index(order->round, target, PH_EDGE_ITEM, at);
}

/* A deque's blocks are private; its own tp_traverse shows its items in their order, and
 * before them its type where the type is on the heap. */
static int
builtin_deque(ph_round *round, PyObject *source)
{
    const traverseproc traverse = ph_names_checked.deque->tp_traverse;
    Py_ssize_t shown = 0;
    (void)traverse(source, builtin_count_visit, &shown);
    builtin_order order = {.round = round, .at = Py_SIZE(source) - shown};
    return traverse(source, builtin_visit_item, &order);
}

/* By the layout, not by __mro__, which a metaclass may bend. */
static bool
ph_names_is_deque(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type != NULL && type != ph_names_checked.deque) {
        type = type->tp_base;
    }
    return type != NULL;
}

/* The types whose fields need nothing but what is written here. */
static int
builtin_closed(ph_round *round, PyObject *source, PyTypeObject **rest)
{
    if (PyFunction_Check(source)) {
        *rest = &PyFunction_Type;
        return builtin_function(round, source);
    }
    if (PyMethod_Check(source)) {
        *rest = &PyMethod_Type;
        return builtin_method(round, source);
    }
    if (PyCFunction_Check(source)) {
        *rest = &PyCFunction_Type;
        return builtin_c_function(round, source);
    }
    if (PyCell_Check(source)) {
        *rest = &PyCell_Type;
        return ph_round_emit(round, ((PyCellObject *)source)->ob_ref, PH_EDGE_CELL,
                             "cell_contents");
    }
    if (PyFrame_Check(source)) {
        *rest = &PyFrame_Type;
        return builtin_frame(round, source);
    }
    if (PyGen_CheckExact(source) || PyCoro_CheckExact(source) ||
        PyAsyncGen_CheckExact(source)) {
        *rest = Py_TYPE(source);
        return builtin_generator(round, source);
    }
    if (PyTraceBack_Check(source)) {
        *rest = &PyTraceBack_Type;
        return builtin_traceback(round, source);
    }
    if (PyType_Check(source)) {
        *rest = Py_TYPE(source);
        return builtin_type(round, source);
    }
    return 0;
}

/* A weak reference's callback; any subclass has it at the same place. */
static int
builtin_weak(ph_round *round, PyObject *source)
{
    PyObject *callback = ((PyWeakReference *)source)->wr_callback;
    return ph_round_emit(round, callback, PH_EDGE_CALLBACK, "callback");
}

/* Types whose structs are public. *rest becomes the type of the
 * object from which on nothing more is to be looked for: its fields are done. */
static int
ph_round_builtin(ph_round *round, PyObject *source, PyTypeObject **rest)
{
    if (PyDict_Check(source)) {
        return builtin_dict(round, source);
    }
    if (PyTuple_Check(source)) {
        return builtin_tuple(round, source);
    }
    if (PyList_Check(source)) {
        return builtin_list(round, source);
    }
    if (PyAnySet_Check(source)) {
        return builtin_set(round, source);
    }
    if (PyExceptionInstance_Check(source)) {
        *rest = (PyTypeObject *)PyExc_BaseException;
        return builtin_exception(round, source);
    }
    if (PyWeakref_Check(source)) {
        *rest = &_PyWeakref_RefType;
        return builtin_weak(round, source);
    }
    return ph_names_is_deque(source) ? builtin_deque(round, source)
                                     : builtin_closed(round, source, rest);
}

/* ---- learnt fields --------------------------------------------------------------- */

static int
learn_element(void *ctx, const char *name, PyObject *target)
{
    return strncmp(name, "cached ", 7) == 0
               ? ph_round_emit(ctx, target, PH_EDGE_FIELD, name)
               : 0;
}

/* What lru_cache keeps stands in elements that are no objects of their own to the
 * collector: it sees through them, and so does this. */
static int
learn_elements(ph_round *round, PyObject *cache)
{
    PyObject *key, *element;
    Py_ssize_t at = 0;
    while (PyDict_Next(cache, &at, &key, &element)) {
        PH_ROUND_TRY(ph_fields_each(element, Py_TYPE(element), learn_element, round));
    }
    return 0;
}

static int
learn_emit(void *ctx, const char *name, PyObject *target)
{
    ph_round *round = ctx;
    PH_ROUND_TRY(ph_round_emit(round, target, ph_names_field_kind(name), name));
    const bool is_cache =
        strcmp(name, "cache") == 0 && target != NULL && PyDict_CheckExact(target);
    return is_cache ? learn_elements(round, target) : 0;
}

/* Fields whose places were learnt. */
static int
ph_round_learnt(ph_round *round, PyObject *source)
{
    for (PyTypeObject *type = Py_TYPE(source); type != NULL; type = type->tp_base) {
        PH_ROUND_TRY(ph_fields_each(source, type, learn_emit, round));
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
            ph_fields_learn(PyTuple_GET_ITEM(row, 0), name, PyTuple_GET_ITEM(row, 2));
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

/* ---- the names of references ----------------------------------------------------- */

static const char *const edge_names[] = {
    [PH_EDGE_OTHER] = "other",
    [PH_EDGE_ATTRIBUTE] = "attribute",
    [PH_EDGE_INSTANCE_DICT] = "instance_dict",
    [PH_EDGE_VALUE] = "value",
    [PH_EDGE_KEY] = "key",
    [PH_EDGE_ITEM] = "item",
    [PH_EDGE_MEMBER] = "member",
    [PH_EDGE_CLOSURE] = "closure",
    [PH_EDGE_CELL] = "cell",
    [PH_EDGE_SELF] = "self",
    [PH_EDGE_FUNCTION] = "function",
    [PH_EDGE_DEFAULT] = "default",
    [PH_EDGE_GLOBALS] = "globals",
    [PH_EDGE_LOCAL] = "local",
    [PH_EDGE_FRAME] = "frame",
    [PH_EDGE_EXCEPTION] = "exception",
    [PH_EDGE_GLOBAL] = "global",
    [PH_EDGE_TYPE] = "type",
    [PH_EDGE_CLASS] = "class",
    [PH_EDGE_CALLBACK] = "callback",
    [PH_EDGE_FIELD] = "field",
};

static const char *const node_names[] = {
    [PH_NODE_OBJECT] = "object",       [PH_NODE_TENSOR] = "tensor",
    [PH_NODE_FUNCTION] = "function",   [PH_NODE_METHOD] = "method",
    [PH_NODE_CELL] = "cell",           [PH_NODE_FRAME] = "frame",
    [PH_NODE_TRACEBACK] = "traceback", [PH_NODE_EXCEPTION] = "exception",
    [PH_NODE_CONTAINER] = "container", [PH_NODE_TYPE] = "type",
    [PH_NODE_MODULE] = "module",       [PH_NODE_LEAF] = "leaf",
};

const char *
ph_edge_kind_name(ph_edge_kind kind)
{
    const size_t at = (size_t)kind;
    return at < sizeof edge_names / sizeof edge_names[0] ? edge_names[at] : "other";
}

const char *
ph_node_kind_name(ph_node_kind kind)
{
    const size_t at = (size_t)kind;
    return at < sizeof node_names / sizeof node_names[0] ? node_names[at] : "object";
}

static int
names_visit_inline(void *ctx, PyObject *name, PyObject *value)
{
    return ph_round_emit_str(ctx, value, PH_EDGE_ATTRIBUTE, name);
}

/* Where torch has a node of its graph made for a tensor, tp_traverse shows it. */
static int
names_visit_node(PyObject *target, void *ctx)
{
    return ph_tensor_check_node(target)
               ? ph_round_emit(ctx, target, PH_EDGE_FIELD, "grad_fn")
               : 0;
}

static int
names_tensor(ph_round *round, PyObject *source)
{
    const traverseproc traverse = Py_TYPE(source)->tp_traverse;
    return ph_tensor_check(source) && traverse != NULL
               ? traverse(source, names_visit_node, round)
               : 0;
}

static int
names_round(ph_round *round, PyObject *source)
{
    PyTypeObject *rest = NULL;
    PH_ROUND_TRY(ph_round_builtin(round, source, &rest));
    if (ph_names_checked.inline_known) {
        PH_ROUND_TRY(py_compat_each_inline(source, names_visit_inline, round));
    }
    if (!PyType_Check(source)) {
        PH_ROUND_TRY(ph_round_emit(round, py_compat_instance_dict(source),
                                   PH_EDGE_INSTANCE_DICT, "__dict__"));
    }
    PH_ROUND_TRY(ph_round_members(round, source, rest));
    PH_ROUND_TRY(ph_round_learnt(round, source));
    PH_ROUND_TRY(names_tensor(round, source));
    return ph_round_emit(round, (PyObject *)Py_TYPE(source), PH_EDGE_TYPE, "__class__");
}

int
ph_names_each(PyObject *source, ph_names_visit visit, void *ctx)
{
    ph_round round = {.visit = visit, .ctx = ctx};
    return names_round(&round, source);
}

typedef struct names_found {
    ph_edge_kind kind;
    char *name;
} names_found;

static int
names_keep(void *ctx, PyObject *Py_UNUSED(target), ph_edge_kind kind, const char *name)
{
    names_found *found = ctx;
    found->kind = kind;
    const size_t length = strlen(name);
    memcpy(found->name, name, length + 1);
    return 1;
}

bool
ph_names_find(PyObject *source, PyObject *target, ph_edge_kind *kind,
              char name[PH_NAME_BYTES])
{
    names_found found = {.kind = PH_EDGE_OTHER, .name = name};
    ph_round round = {.visit = names_keep, .ctx = &found, .only = target};
    name[0] = '\0';
    const bool named = names_round(&round, source) != 0;
    *kind = found.kind;
    return named;
}

/* ---- what is one step to a reader ------------------------------------------------ */

static char variable_name[PH_NAME_BYTES];

static const char *
names_variable(PyObject *code, Py_ssize_t first, Py_ssize_t index)
{
    ph_text text;
    ph_text_begin(&text, variable_name, sizeof variable_name);
    if (index >= 0 && first >= 0 && code != NULL) {
        PyObject *name = py_compat_local_name((PyCodeObject *)code, first + index);
        if (name != NULL) {
            ph_text_add_str(&text, name, false);
        }
    }
    return variable_name;
}

static PyObject *
names_code_of(PyObject *function)
{
    if (!PyFunction_Check(function)) {
        return NULL;
    }
    PyObject *code = PyFunction_GET_CODE(function);
    return code != NULL && PyCode_Check(code) ? code : NULL;
}

const char *
ph_names_cell(PyObject *function, Py_ssize_t index)
{
    PyObject *code = names_code_of(function);
    const Py_ssize_t first =
        code == NULL ? -1 : py_compat_first_free((PyCodeObject *)code);
    return names_variable(code, first, index);
}

/* The name of the argument whose default is at `index` of __defaults__. */
static const char *
names_default(PyObject *function, Py_ssize_t index)
{
    PyObject *code = names_code_of(function);
    PyObject *defaults = code == NULL ? NULL : PyFunction_GET_DEFAULTS(function);
    if (defaults == NULL || !PyTuple_Check(defaults) ||
        index >= PyTuple_GET_SIZE(defaults)) {
        return names_variable(NULL, -1, index);
    }
    /* The last arguments have the defaults. */
    const Py_ssize_t first =
        ((PyCodeObject *)code)->co_argcount - PyTuple_GET_SIZE(defaults);
    return names_variable(code, first, index);
}

static bool
names_dict_key(PyObject *dict, PyObject *target, char name[PH_NAME_BYTES])
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Check(dict) && PyDict_Next(dict, &at, &key, &value)) {
        if (value == target && PyUnicode_Check(key)) {
            ph_text text;
            ph_text_begin(&text, name, PH_NAME_BYTES);
            ph_text_add_str(&text, key, false);
            return true;
        }
    }
    return false;
}

static bool
names_tuple_variable(PyObject *owner, PyObject *tuple, PyObject *target,
                     const char *(*variable)(PyObject *, Py_ssize_t),
                     char name[PH_NAME_BYTES])
{
    const Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (PyTuple_GET_ITEM(tuple, at) == target) {
            const char *found = variable(owner, at);
            memcpy(name, found, strlen(found) + 1);
            return name[0] != '\0';
        }
    }
    return false;
}

bool
ph_names_through(PyObject *owner, PyObject *container, PyObject *target,
                 ph_edge_kind *kind, char name[PH_NAME_BYTES])
{
    ph_edge_kind held;
    char found[PH_NAME_BYTES];
    bool named = false;
    ph_edge_kind meant = PH_EDGE_OTHER;
    if (!ph_names_find(owner, container, &held, found)) {
        return false;
    }
    if (held == PH_EDGE_INSTANCE_DICT) {
        meant = PyModule_Check(owner) ? PH_EDGE_GLOBAL
                : PyType_Check(owner) ? PH_EDGE_CLASS
                                      : PH_EDGE_ATTRIBUTE;
        named = names_dict_key(container, target, found);
    } else if (held == PH_EDGE_GLOBALS) {
        meant = PH_EDGE_GLOBAL;
        named = names_dict_key(container, target, found);
    } else if (held == PH_EDGE_CLOSURE) {
        meant = PH_EDGE_CLOSURE;
        named = names_tuple_variable(owner, container, target, ph_names_cell, found);
    } else if (held == PH_EDGE_DEFAULT) {
        meant = PH_EDGE_DEFAULT;
        named = names_dict_key(container, target, found) ||
                names_tuple_variable(owner, container, target, names_default, found);
    }
    if (named) {
        *kind = meant;
        memcpy(name, found, strlen(found) + 1);
    }
    return named;
}

/* ---- what an object is ----------------------------------------------------------- */

/* Characters of a str that are shown as its label. */
#define STR_BYTES 48

typedef struct label_place {
    PyCodeObject *code;
    int line; /* 0: where the code begins */
} label_place;

static PyCodeObject *
label_code(PyObject *object)
{
    PyObject *code = NULL;
    if (object != NULL && PyFunction_Check(object)) {
        code = PyFunction_GET_CODE(object);
    } else if (object != NULL && PyCode_Check(object)) {
        code = object;
    }
    return code != NULL && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
}

/* The first function that a class's body defines. A decorated one has its decorator's
 * code under another name, and a generated one has no file; both names are interned. */
static PyCodeObject *
label_class_code(PyTypeObject *type)
{
    PyObject *dict = py_compat_type_dict(type);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (dict != NULL && PyDict_Next(dict, &at, &key, &value)) {
        PyCodeObject *code = PyFunction_Check(value) ? label_code(value) : NULL;
        if (code != NULL && code->co_name == key &&
            !ph_text_is(code->co_filename, "<string>")) {
            return code;
        }
    }
    return NULL;
}

/* Where a class is: from 3.13 on it says itself in which line. */
static label_place
label_class_place(PyTypeObject *type)
{
    label_place place = {.code = NULL};
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        place.code = label_class_code(type);
        PyObject *line = ph_names_lookup(py_compat_type_dict(type), "__firstlineno__");
        if (line != NULL && PyLong_CheckExact(line)) {
            int overflow = 0;
            const long first = PyLong_AsLongAndOverflow(line, &overflow);
            place.line = overflow == 0 && first > 0 && first < INT_MAX ? (int)first : 0;
        }
    }
    return place;
}

static void
label_add(ph_label *out, const char *words, PyObject *str)
{
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, words);
    if (str != NULL) {
        ph_text_add_str(&text, str, false);
    }
}

/* "Callback", "dict of 12": the type's short name, and a count unless below 0. */
static void
label_add_type(ph_label *out, const char *words, PyTypeObject *type, Py_ssize_t count)
{
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, words);
    ph_text_add_type(&text, type, false);
    if (count >= 0) {
        ph_text_add(&text, " of ");
        ph_text_add_number(&text, count);
    }
}

/* The name that a callable has in its own memory; NULL where it has none. */
static PyObject *
label_callable_name(PyObject *callable)
{
    return callable != NULL && PyFunction_Check(callable)
               ? ((PyFunctionObject *)callable)->func_name
               : NULL;
}

static void
label_method(PyObject *object, ph_label *out, label_place *place)
{
    PyObject *function = ((PyMethodObject *)object)->im_func;
    PyObject *name = label_callable_name(function);
    out->kind = PH_NODE_METHOD;
    if (name != NULL) {
        label_add(out, "method ", name);
    } else if (function != NULL) {
        label_add_type(out, "method ", Py_TYPE(function), -1);
    }
    place->code = label_code(function);
}

static void
label_c_function(PyObject *object, ph_label *out)
{
    const PyCFunctionObject *function = (const PyCFunctionObject *)object;
    const bool bound = function->m_self != NULL && !PyModule_Check(function->m_self);
    ph_text text;
    ph_text_begin(&text, out->text, sizeof out->text);
    ph_text_add(&text, bound ? "method " : "function ");
    ph_text_add(&text, function->m_ml == NULL || function->m_ml->ml_name == NULL
                           ? "?"
                           : function->m_ml->ml_name);
    out->kind = bound ? PH_NODE_METHOD : PH_NODE_FUNCTION;
}

static const char *
label_frame_words(PyObject *object)
{
    return PyFrame_Check(object)       ? "frame of "
           : PyGen_CheckExact(object)  ? "generator "
           : PyCoro_CheckExact(object) ? "coroutine "
                                       : "async generator ";
}

static void
label_frame(PyObject *object, ph_label *out, label_place *place)
{
    py_compat_frame frame;
    PyObject *name = NULL;
    out->kind = PH_NODE_FRAME;
    if (ph_names_checked.frames_known && py_compat_frame_read(object, &frame)) {
        place->code = frame.code;
        place->line = frame.line;
        name = frame.code->co_name;
    }
    if (!PyFrame_Check(object)) {
        py_compat_generator held;
        py_compat_generator_read(object, &held);
        name = held.name;
    }
    label_add(out, label_frame_words(object), name);
}

static void
label_traceback(PyObject *object, ph_label *out, label_place *place)
{
    const PyTracebackObject *traceback = (const PyTracebackObject *)object;
    py_compat_frame frame;
    out->kind = PH_NODE_TRACEBACK;
    label_add(out, "traceback", NULL);
    if (traceback->tb_frame == NULL || !ph_names_checked.frames_known ||
        !py_compat_frame_read((PyObject *)traceback->tb_frame, &frame)) {
        return;
    }
    place->code = frame.code;
    /* The line is worked out when somebody asks; below 1 nobody has. */
    place->line = traceback->tb_lineno > 0
                      ? traceback->tb_lineno
                      : PyCode_Addr2Line(frame.code, traceback->tb_lasti);
    label_add(out, "traceback in ", frame.code->co_name);
}

static void
label_module(PyObject *object, ph_label *out)
{
    PyObject *name = ph_names_lookup(py_compat_instance_dict(object), "__name__");
    out->kind = PH_NODE_MODULE;
    label_add(out, "module ", name != NULL && PyUnicode_Check(name) ? name : NULL);
}

/* What runs, or is called. */
static bool
label_code_object(PyObject *object, ph_label *out, label_place *place)
{
    if (PyFunction_Check(object)) {
        out->kind = PH_NODE_FUNCTION;
        label_add(out, "function ", label_callable_name(object));
        place->code = label_code(object);
    } else if (PyMethod_Check(object)) {
        label_method(object, out, place);
    } else if (PyCFunction_Check(object)) {
        label_c_function(object, out);
    } else if (PyFrame_Check(object) || PyGen_CheckExact(object) ||
               PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object)) {
        label_frame(object, out, place);
    } else if (PyTraceBack_Check(object)) {
        label_traceback(object, out, place);
    } else if (PyCode_Check(object)) {
        label_add(out, "code of ", ((PyCodeObject *)object)->co_name);
        place->code = (PyCodeObject *)object;
    } else {
        return false;
    }
    return true;
}

/* The number of entries of a container; -1 for what is none. */
static Py_ssize_t
label_count(PyObject *object)
{
    if (PyDict_Check(object)) {
        return PyDict_GET_SIZE(object);
    }
    if (PyAnySet_Check(object)) {
        return PySet_GET_SIZE(object);
    }
    if (PyList_Check(object) || PyTuple_Check(object) || ph_names_is_deque(object)) {
        return Py_SIZE(object);
    }
    return -1;
}

/* Numbers and texts; only exact ones are shown with their value. */
static bool
label_leaf(PyObject *object, ph_label *out)
{
    if (PyUnicode_CheckExact(object)) {
        char shown[STR_BYTES];
        ph_text text;
        ph_text_begin(&text, shown, sizeof shown);
        ph_text_add_str(&text, object, true);
        ph_text_begin(&text, out->text, sizeof out->text);
        ph_text_add(&text, "'");
        ph_text_add(&text, shown);
        ph_text_add(&text, "'");
    } else if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object)) {
        ph_text text;
        ph_text_begin(&text, out->text, sizeof out->text);
        ph_text_add_key(&text, object);
    } else if (PyBytes_CheckExact(object)) {
        label_add_type(out, "", Py_TYPE(object), Py_SIZE(object));
    } else if (PyFloat_CheckExact(object) || PyComplex_CheckExact(object)) {
        label_add_type(out, "", Py_TYPE(object), -1);
    } else {
        return false;
    }
    out->kind = PH_NODE_LEAF;
    return true;
}

static void
label_weak(PyObject *object, ph_label *out)
{
    PyObject *target = ((PyWeakReference *)object)->wr_object;
    if (target == NULL || target == Py_None || Py_REFCNT(target) <= 0) {
        label_add(out, "dead weak reference", NULL);
    } else {
        label_add_type(out, "weak reference to ", Py_TYPE(target), -1);
    }
}

static void
label_thing(PyObject *object, ph_label *out, label_place *place)
{
    const Py_ssize_t count = label_count(object);
    if (PyType_Check(object)) {
        out->kind = PH_NODE_TYPE;
        label_add_type(out, "class ", (PyTypeObject *)object, -1);
        *place = label_class_place((PyTypeObject *)object);
    } else if (PyModule_Check(object)) {
        label_module(object, out);
    } else if (PyCell_Check(object)) {
        out->kind = PH_NODE_CELL;
        label_add(out, "cell", NULL);
    } else if (PyWeakref_Check(object)) {
        label_weak(object, out);
    } else {
        label_add_type(out, "", Py_TYPE(object), count);
        out->kind = count >= 0                          ? PH_NODE_CONTAINER
                    : PyExceptionInstance_Check(object) ? PH_NODE_EXCEPTION
                    : ph_tensor_check(object)           ? PH_NODE_TENSOR
                                                        : PH_NODE_OBJECT;
        if (out->kind != PH_NODE_TENSOR) {
            *place = label_class_place(Py_TYPE(object));
        }
    }
}

void
ph_names_label(PyObject *object, ph_label *out)
{
    label_place place = {.code = NULL};
    ph_text text;
    *out = (ph_label){.kind = PH_NODE_OBJECT};
    ph_text_begin(&text, out->type, sizeof out->type);
    ph_text_add_type(&text, Py_TYPE(object), true);
    if (!label_leaf(object, out) && !label_code_object(object, out, &place)) {
        label_thing(object, out, &place);
    }
    out->is_strong = Py_TYPE(object)->tp_weaklistoffset == 0;
    if (place.code != NULL && place.code->co_filename != NULL) {
        ph_text_begin(&text, out->file, sizeof out->file);
        ph_text_add_path(&text, place.code->co_filename);
        const int line = place.line > 0 ? place.line : place.code->co_firstlineno;
        out->line = line > 0 ? line : 0;
    }
}
