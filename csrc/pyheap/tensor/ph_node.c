/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ph_node.h"

#include <string.h>

/*
 * Python's object for a node holds its address right behind the object's own head. A
 * list of hooks is three words, first, end and end of room, all 0 while it is empty;
 * each entry is the address of an object of C++ that begins with the address of its
 * class's table, and then the dict.
 */
#define NODE_AT (sizeof(PyObject))

/* Words of a node that are looked at: any node is larger, its lists lie before what its
 * kind adds, and the metadata of its inputs are behind them. */
#define NODE_WORDS 40

/* A longer list is not believed. */
#define MOST_HOOKS 1024

typedef struct node_list {
    size_t word;     /* where in the node */
    uintptr_t table; /* of the hooks' class */
} node_list;

typedef struct node_state {
    bool learnt;
    traverseproc traverse; /* of the types of such nodes */
    PyObject *probe;       /* by address only */
    uintptr_t before[NODE_WORDS];
    node_list lists[PH_NODE_LISTS];
} node_state;

/* guard: the GIL */
static node_state node_known;

static uintptr_t
node_load(uintptr_t at)
{
    uintptr_t word;
    memcpy(&word, (const void *)at, sizeof word);
    return word;
}

static uintptr_t
node_address(PyObject *node)
{
    return node_load((uintptr_t)node + NODE_AT);
}

static nt_status
node_refuse(nt_error *err)
{
    return nt_fail(
        err, NT_REFUSED, NT_NO_OFFSET,
        "this torch keeps the hooks of its graph in a place that is not known");
}

nt_status
ph_node_begin(PyObject *node, nt_error *err)
{
    const size_t size = (size_t)Py_TYPE(node)->tp_basicsize;
    node_known.learnt = false;
    node_known.probe = NULL;
    if (size < NODE_AT + sizeof(uintptr_t) || node_address(node) == 0 ||
        node_address(node) % sizeof(uintptr_t) != 0 ||
        Py_TYPE(node)->tp_traverse == NULL) {
        return node_refuse(err);
    }
    for (size_t i = 0; i < NODE_WORDS; i++) {
        node_known.before[i] = node_load(node_address(node) + i * sizeof(uintptr_t));
    }
    node_known.probe = node;
    return NT_OK;
}

/* Whether an empty list stood at this word and now has one entry. Only then its first
 * word is an address, and what it leads to one too. */
static bool
node_is_list(uintptr_t node, size_t word)
{
    uintptr_t now[3];
    memcpy(now, (const void *)(node + word * sizeof(uintptr_t)), sizeof now);
    return node_known.before[word] == 0 && node_known.before[word + 1] == 0 &&
           node_known.before[word + 2] == 0 && now[0] != 0 &&
           now[0] % sizeof(uintptr_t) == 0 && now[1] == now[0] + sizeof(uintptr_t) &&
           now[2] >= now[1];
}

static size_t
node_find_list(uintptr_t node, PyObject *dict, node_list *list)
{
    size_t found = 0;
    for (size_t word = 0; word + 2 < NODE_WORDS; word++) {
        if (node_is_list(node, word)) {
            const uintptr_t hook =
                node_load(node_load(node + word * sizeof(uintptr_t)));
            if (node_load(hook + sizeof(uintptr_t)) == (uintptr_t)dict) {
                *list = (node_list){.word = word, .table = node_load(hook)};
                found++;
            }
        }
    }
    return found;
}

nt_status
ph_node_learn(PyObject *node, PyObject *const dicts[PH_NODE_LISTS], nt_error *err)
{
    if (node != node_known.probe) {
        return node_refuse(err);
    }
    node_known.probe = NULL;
    for (int i = 0; i < PH_NODE_LISTS; i++) {
        if (node_find_list(node_address(node), dicts[i], &node_known.lists[i]) != 1) {
            return node_refuse(err);
        }
    }
    node_known.traverse = Py_TYPE(node)->tp_traverse;
    node_known.learnt = true;
    return NT_OK;
}

static int
node_each_in_list(uintptr_t node, int number, ph_node_visit visit, void *ctx)
{
    const node_list *list = &node_known.lists[number];
    const uintptr_t at = node + list->word * sizeof(uintptr_t);
    const uintptr_t first = node_load(at), end = node_load(at + sizeof(uintptr_t));
    if (first == 0 || end < first || end - first > MOST_HOOKS * sizeof(uintptr_t)) {
        return 0;
    }
    for (uintptr_t entry = first; entry < end; entry += sizeof(uintptr_t)) {
        const uintptr_t hook = node_load(entry);
        /* A hook of another class is one of C++. */
        if (hook == 0 || node_load(hook) != list->table) {
            continue;
        }
        PyObject *dict = (PyObject *)node_load(hook + sizeof(uintptr_t));
        const int stop = dict == NULL ? 0 : visit(ctx, number, dict);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}

int
ph_node_each_hooks(PyObject *node, ph_node_visit visit, void *ctx)
{
    if (!node_known.learnt || Py_TYPE(node)->tp_traverse != node_known.traverse ||
        node_address(node) == 0) {
        return 0;
    }
    for (int i = 0; i < PH_NODE_LISTS; i++) {
        const int stop = node_each_in_list(node_address(node), i, visit, ctx);
        if (stop != 0) {
            return stop;
        }
    }
    return 0;
}
