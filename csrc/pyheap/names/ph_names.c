/* SPDX-License-Identifier: Apache-2.0 */
#include "names/ph_names.h"

#include <string.h>

#include "names/ph_names_parts.h"
#include "tensor/ph_tensor.h"
#include "compat/py_compat_objects.h"

ph_names_state ph_names_checked;

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

int
ph_round_emit(ph_round *round, PyObject *target, ph_edge_kind kind, const char *name)
{
    return PH_ROUND_WANTS(round, target) ? round->visit(round->ctx, target, kind, name)
                                         : 0;
}

int
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

int
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
names_keep(void *ctx, PyObject *target, ph_edge_kind kind, const char *name)
{
    (void)target;
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
