/* SPDX-License-Identifier: Apache-2.0 */
/* What a reference from one object to another is called, and what an object is, in
 * words for a reader. Read from the objects' memory through C functions that run
 * nobody's Python: no __eq__, __hash__, __repr__, __getattr__, and no new Python
 * object. GIL held. */
#ifndef PH_NAMES_H
#define PH_NAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/nt_base.h"

/* Longer names and labels are cut with an ellipsis, between characters. */
#define PH_NAME_BYTES 160

/* How a reference is held. The name's form is beside each. */
typedef enum ph_edge_kind {
    PH_EDGE_OTHER = 0,     /* "": a reference that only C code knows */
    PH_EDGE_ATTRIBUTE,     /* "view_callback": instance attribute, inline or by slot */
    PH_EDGE_INSTANCE_DICT, /* "__dict__": from an object to its materialised dict */
    PH_EDGE_VALUE,         /* "'key'", "3", "<Key>": value of a dict, by its key;
                            * "<weak Key>" in a weak-keyed map */
    PH_EDGE_KEY,           /* "key": key of a dict; "weak key": of a weak-keyed map */
    PH_EDGE_ITEM,          /* "3": position in a list, tuple or deque */
    PH_EDGE_MEMBER,        /* "": member of a set */
    PH_EDGE_CLOSURE,       /* "__closure__": from a function to its tuple of cells; "x":
                            * from a function to the cell of that variable */
    PH_EDGE_CELL,          /* "cell_contents" */
    PH_EDGE_SELF,          /* "__self__": of a bound or built-in method */
    PH_EDGE_FUNCTION,      /* "__func__", "func": what is called */
    PH_EDGE_DEFAULT,       /* "x": default of an argument; "__defaults__" and
                            * "__kwdefaults__" from a function to what keeps them */
    PH_EDGE_GLOBALS,       /* "__globals__" */
    PH_EDGE_LOCAL,     /* "x": local variable of a frame or of a suspended generator;
                        * "(temporary)": what it was in the middle of using */
    PH_EDGE_FRAME,     /* "tb_frame", "gi_frame", "f_back" */
    PH_EDGE_EXCEPTION, /* "__traceback__", "__context__", "__cause__", "tb_next" */
    PH_EDGE_GLOBAL,    /* "x": from a module to what its namespace holds */
    PH_EDGE_TYPE,      /* "__class__" */
    PH_EDGE_CLASS,     /* "x": class attribute; "__bases__", "__mro__", "__base__" */
    PH_EDGE_CALLBACK,  /* "callback": of a weak reference */
    PH_EDGE_FIELD,     /* "fget", "args", "keywords": named field of a built-in type */
} ph_edge_kind;

/* Called for one reference; `name` is valid during the call. Not 0 ends the round. */
typedef int (*ph_names_visit)(void *ctx, PyObject *target, ph_edge_kind kind,
                              const char *name);

/* Learns where built-in types keep their fields and checks on objects with known
 * contents that inline attributes and frames lie where they are looked for. Before it,
 * and where a check fails, those have no names; the rest does. NT_REFUSED, with the
 * reason, only where the probes themselves can't be made. Runs Python and makes
 * objects. Cheap when called again. */
nt_status
ph_names_prepare(nt_error *err) NT_CHECKED;

/* Calls `visit` for every reference of `source` that has a name, the same target as
 * often as it is held. A reference that tp_traverse shows and this does not is
 * PH_EDGE_OTHER to the reader; a running frame's variables are named though tp_traverse
 * hides them. Returns what ended the round, or 0. */
int
ph_names_each(PyObject *source, ph_names_visit visit, void *ctx);

/* The first name of the reference from `source` to `target`, a name proper rather than
 * "__class__". False, with PH_EDGE_OTHER and "", where it has none. Other references
 * are passed over without their names being spelt, so this is the one for large
 * containers. */
bool
ph_names_find(PyObject *source, PyObject *target, ph_edge_kind *kind,
              char name[PH_NAME_BYTES]);

/* The name of the reference from `owner` to `target` through `container`, where that is
 * only how Python keeps what a reader thinks of as the owner's own: through __dict__ an
 * attribute, a module's global, a class attribute; through __closure__ the cell with
 * its variable's name; through __defaults__ or __kwdefaults__ a default; through
 * __globals__ a global. False, with the outputs untouched, for any other container. */
bool
ph_names_through(PyObject *owner, PyObject *container, PyObject *target,
                 ph_edge_kind *kind, char name[PH_NAME_BYTES]);

/* The name of the variable in cell `index` of a function's closure; "" if unknown.
 * Valid until the next call. */
const char *
ph_names_cell(PyObject *function, Py_ssize_t index);

/* "attribute", "instance_dict" and so on. Static. */
const char *
ph_edge_kind_name(ph_edge_kind kind);

/* What kind of thing a node is, for its look and for advice. */
typedef enum ph_node_kind {
    PH_NODE_OBJECT = 0,
    PH_NODE_TENSOR,
    PH_NODE_FUNCTION,
    PH_NODE_METHOD,
    PH_NODE_CELL,
    PH_NODE_FRAME, /* frames, generators, coroutines */
    PH_NODE_TRACEBACK,
    PH_NODE_EXCEPTION,
    PH_NODE_CONTAINER, /* dict, list, tuple, set and their kin */
    PH_NODE_TYPE,
    PH_NODE_MODULE,
    PH_NODE_LEAF, /* str, int and what else refers to nothing */
} ph_node_kind;

typedef struct ph_label {
    ph_node_kind kind;
    char type[PH_NAME_BYTES];     /* "train.Callback"; without "builtins." */
    char text[PH_NAME_BYTES];     /* "Callback", "method view", "dict of 12", "frame of
                                     step" */
    char file[PH_NAME_BYTES * 2]; /* where it is defined or runs; "" if unknown; the
                                   * path's end where it is long */
    int line;                     /* from 1; 0 if unknown */
    bool is_strong;               /* Python makes no weak references to it */
} ph_label;

void
ph_names_label(PyObject *object, ph_label *out);

/* "object", "tensor" and so on. Static. */
const char *
ph_node_kind_name(ph_node_kind kind);

#endif
