/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of types that publish neither a struct nor members. An object of the type is
 * made around known things, and the words of its memory are compared with their
 * addresses: a field lies where its target is found at one place only, and at the same
 * one in a second object. GIL held. */
#ifndef PH_FIELDS_H
#define PH_FIELDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Learns that an object of this type holds `target` in a field of that name. Learnt
 * twice with different places, or at no single place, it is not believed. */
void
ph_fields_learn(PyObject *probe, const char *name, PyObject *target);

/* Not 0 ends the round; `target` may be NULL. */
typedef int (*ph_fields_visit)(void *ctx, const char *name, PyObject *target);

/* What an object holds in the fields that were learnt of `type`, its own or a base.
 * Returns what ended the round, or 0. */
int
ph_fields_each(PyObject *object, const PyTypeObject *type, ph_fields_visit visit,
               void *ctx);

#endif
