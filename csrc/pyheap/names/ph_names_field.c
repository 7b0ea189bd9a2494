/* SPDX-License-Identifier: Apache-2.0 */
/* Named fields: the slots of Python classes and the members that C types publish. */
#include <string.h>

#include "names/ph_names_parts.h"

#include "structmember.h"

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

ph_edge_kind
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

int
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
