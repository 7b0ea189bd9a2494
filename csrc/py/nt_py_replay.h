/* SPDX-License-Identifier: Apache-2.0 */
/* A Program of Python, shared by nt_py_program.c (the type, and what it knows of
 * itself) and nt_py_replay.c (its runs). */
#ifndef NT_PY_REPLAY_H
#define NT_PY_REPLAY_H

#include "nt_py.h"

#include "whatif/nt_replay.h"

typedef struct py_program {
    PyObject_HEAD nt_py_timeline *timeline; /* owned: the program reads it */
    PyObject *original; /* owned: of an edited one what it was made of, or NULL */
    nt_program *program;
    uint8_t *marks; /* owned: what find_silence found, or NULL; as are the drops */
    int32_t *drops;
    size_t places; /* how many there are in both */
} py_program;

static inline const nt_program *
nt_py_program_of(PyObject *self)
{
    return ((py_program *)self)->program;
}

/* None where nothing bounds the value. */
PyObject *
nt_py_replay_number(uint64_t value);

/* The methods that run a program, and what their docstrings say. */
PyObject *
nt_py_program_run(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_run_doc[];
PyObject *
nt_py_program_find_range(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_find_range_doc[];
PyObject *
nt_py_program_count_variants(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_count_variants_doc[];
PyObject *
nt_py_program_run_variant(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_run_variant_doc[];
PyObject *
nt_py_program_join_variants(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_join_variants_doc[];
PyObject *
nt_py_program_check(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_check_doc[];
PyObject *
nt_py_program_series(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_series_doc[];
PyObject *
nt_py_program_trace(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char nt_py_trace_doc[];

#endif
