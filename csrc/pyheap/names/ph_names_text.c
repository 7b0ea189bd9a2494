/* SPDX-License-Identifier: Apache-2.0 */
#include "names/ph_names_parts.h"

#include "base/nt_utf8.h"
#include "compat/py_compat_objects.h"

#include <stdio.h>
#include <string.h>

static const char text_ellipsis[] = "\xE2\x80\xA6";

void
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

void
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

void
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

void
ph_text_add_str(ph_text *text, PyObject *str, bool quoted)
{
    if (str == NULL || !text_readable(str)) {
        ph_text_add(text, "?");
        return;
    }
    text_add_from(text, str, 0, quoted);
}

void
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

bool
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

PyObject *
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

void
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

void
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
