/* SPDX-License-Identifier: Apache-2.0 */
#include "ph_fields.h"

#include <stdbool.h>
#include <string.h>

#define MOST_FIELDS 128
#define FIELD_NAME_BYTES 32

typedef struct learnt_field {
    PyTypeObject *type; /* owned for good, so that no other type gets its address */
    size_t offset;
    unsigned proofs;
    bool wrong;
    char name[FIELD_NAME_BYTES];
} learnt_field;

static learnt_field learnt_fields[MOST_FIELDS];
static size_t learnt_count;

/* The one place in an object's own memory where `target` stands; 0 where there is none
 * or more than one. */
static size_t
fields_offset(PyObject *probe, PyObject *target)
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

static learnt_field *
fields_entry(PyTypeObject *type, const char *name)
{
    for (size_t at = 0; at < learnt_count; at++) {
        learnt_field *field = &learnt_fields[at];
        if (field->type == type && strcmp(field->name, name) == 0) {
            return field;
        }
    }
    if (learnt_count == MOST_FIELDS || strlen(name) >= FIELD_NAME_BYTES) {
        return NULL;
    }
    learnt_field *field = &learnt_fields[learnt_count++];
    *field = (learnt_field){.type = type};
    Py_INCREF(type);
    memcpy(field->name, name, strlen(name) + 1);
    return field;
}

void
ph_fields_learn(PyObject *probe, const char *name, PyObject *target)
{
    const size_t offset = fields_offset(probe, target);
    learnt_field *field = fields_entry(Py_TYPE(probe), name);
    if (field == NULL) {
        return;
    }
    if (offset == 0 || (field->proofs > 0 && field->offset != offset)) {
        field->wrong = true;
    }
    field->offset = offset;
    field->proofs++;
}

int
ph_fields_each(PyObject *object, const PyTypeObject *type, ph_fields_visit visit,
               void *ctx)
{
    for (size_t at = 0; at < learnt_count; at++) {
        const learnt_field *field = &learnt_fields[at];
        if (field->type != type || field->wrong || field->proofs < 2) {
            continue;
        }
        PyObject *target = *(PyObject **)((char *)object + field->offset);
        const int stop = visit(ctx, field->name, target);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}
