/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to ph_names: text that is cut between characters, one round over an object's
 * references, and the parts that the round is made of.
 */
#ifndef PH_NAMES_PARTS_H
#define PH_NAMES_PARTS_H

#include "names/ph_names.h"

/* ---- ph_names_text.c ---------------------------------------------------------------
 */

/* A terminated UTF-8 text in the caller's buffer of `size` bytes, at least 8. What does
 * not fit is left out, with an ellipsis in its place. */
typedef struct ph_text {
    char *bytes;
    size_t size;
    size_t length;
    bool cut;
} ph_text;

void
ph_text_begin(ph_text *text, char *bytes, size_t size);
void
ph_text_add(ph_text *text, const char *words);
void
ph_text_add_number(ph_text *text, long long number);

/* The characters of a str of any type, read from its memory; control characters are
 * spelt as escapes, quotes and backslashes too where it is `quoted`. */
void
ph_text_add_str(ph_text *text, PyObject *str, bool quoted);

/* The end of the str where all of it is too long. */
void
ph_text_add_path(ph_text *text, PyObject *str);

/* Whether the object is a str with exactly these characters, ASCII. */
bool
ph_text_is(PyObject *object, const char *words);

/* The value of a str key in a dict, found without hashing; NULL where there is none. */
PyObject *
ph_names_lookup(PyObject *dict, const char *key);

/* A type's name, with its module if `full` ("builtins." is left out). */
void
ph_text_add_type(ph_text *text, PyTypeObject *type, bool full);

/* What stands in the brackets of a dict's value: "'key'", "3", "<Key>". */
void
ph_text_add_key(ph_text *text, PyObject *key);

/* ---- one round ---------------------------------------------------------------------
 */

typedef struct ph_round {
    ph_names_visit visit;
    void *ctx;
    const PyObject *only; /* NULL: every reference; else only those to it */
    char name[PH_NAME_BYTES];
} ph_round;

/* Whether a reference needs to be spelt: there is one, and the caller wants it. */
#define PH_ROUND_WANTS(round, target)                                                  \
    ((target) != NULL && ((round)->only == NULL || (round)->only == (target)))

/* Each hands a reference on; returns what ended the round, or 0. A target that is NULL
 * is no reference. */
int
ph_round_emit(ph_round *round, PyObject *target, ph_edge_kind kind, const char *name);
int
ph_round_emit_str(ph_round *round, PyObject *target, ph_edge_kind kind, PyObject *name);
int
ph_round_emit_index(ph_round *round, PyObject *target, ph_edge_kind kind,
                    Py_ssize_t index);

/* Leaves the calling function when the round has ended. */
#define PH_ROUND_TRY(call)                                                             \
    do {                                                                               \
        const int ph_round_stop = (call);                                              \
        if (ph_round_stop != 0) {                                                      \
            return ph_round_stop;                                                      \
        }                                                                              \
    } while (0)

/* ph_names_builtin.c: types whose structs are public. *rest becomes the type of the
 * object from which on nothing more is to be looked for: its fields are done. */
int
ph_round_builtin(ph_round *round, PyObject *source, PyTypeObject **rest);

bool
ph_names_is_deque(PyObject *object);

/* ph_names_field.c: slots and members by their types' tables, up to `rest`. */
int
ph_round_members(ph_round *round, PyObject *source, const PyTypeObject *rest);

/* ph_names_learn.c: fields whose places were learnt. */
int
ph_round_learnt(ph_round *round, PyObject *source);

/* A field's kind by its name: "__self__", "func" and the like have kinds of their own.
 */
ph_edge_kind
ph_names_field_kind(const char *name);

/* What ph_names_prepare found: whether inline values and frames lie where they are
 * looked for, and a type that has no name in C. */
typedef struct ph_names_state {
    bool prepared;
    bool inline_known;
    bool frames_known;
    PyTypeObject *deque; /* owned for good */
} ph_names_state;

extern ph_names_state ph_names_checked;

/*
 * Learns that an object of this type holds `target` in a field of that name. Learnt
 * twice with different places, or at no single place, it is not believed.
 */
void
ph_names_learn(PyObject *probe, const char *name, PyObject *target);

#endif
