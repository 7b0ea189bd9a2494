/* SPDX-License-Identifier: Apache-2.0 */
/* Cycles that hold tensors: found on request, or watched for; handed on as plain data.
 */
#include "nt_py.h"

#include "nt_py_plain.h"
#include "ph_gcwatch.h"

/* ---- plain data for Python ----------------------------------------------------- */

static PyObject *
cycles_device(int16_t type, int16_t index)
{
    return index < 0
               ? PyUnicode_FromString(ph_tensor_device_name(type))
               : PyUnicode_FromFormat("%s:%d", ph_tensor_device_name(type), index);
}

static PyObject *
cycles_shape(const ph_tensor *tensor)
{
    const uint32_t listed =
        tensor->ndim < PH_TENSOR_DIMS ? tensor->ndim : PH_TENSOR_DIMS;
    PyObject *shape = PyTuple_New(listed);
    for (uint32_t i = 0; shape != NULL && i < listed; i++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[i]);
        if (size == NULL) {
            Py_CLEAR(shape);
        } else {
            PyTuple_SET_ITEM(shape, i, size);
        }
    }
    return shape;
}

static PyObject *
cycles_tensor(const ph_node *node)
{
    if (node->kind != PH_NODE_TENSOR) {
        Py_RETURN_NONE;
    }
    const ph_tensor *tensor = &node->tensor;
    return Py_BuildValue(
        "(NsNKKKO)", cycles_shape(tensor), ph_tensor_dtype_name(tensor->dtype),
        cycles_device(tensor->device_type, tensor->device_index),
        (unsigned long long)tensor->storage_bytes, (unsigned long long)tensor->storage,
        (unsigned long long)tensor->data_ptr,
        tensor->requires_grad ? Py_True : Py_False);
}

/* With the kinds that Python does not have. */
static const char *
cycles_node_kind(ph_node_kind kind)
{
    switch ((int)kind) {
    case (int)PH_NODE_FOLDED: return "folded";
    case (int)PH_NODE_AUTOGRAD: return "autograd";
    case (int)PH_NODE_ROOT: return "root";
    default: return ph_node_kind_name(kind);
    }
}

static const char *
cycles_edge_kind(ph_edge_kind kind)
{
    switch ((int)kind) {
    case (int)PH_EDGE_VARIABLE: return "closure_variable";
    case (int)PH_EDGE_AUTOGRAD: return "autograd";
    default: return ph_edge_kind_name(kind);
    }
}

static PyObject *
cycles_node(const void *nodes, uint32_t at)
{
    const ph_node *node = (const ph_node *)nodes + at;
    const char *kind = cycles_node_kind(node->kind);
    return Py_BuildValue("(NNsNiINO)", nt_py_message(node->type),
                         nt_py_message(node->label), kind, nt_py_message(node->file),
                         (int)node->line, (unsigned)node->count, cycles_tensor(node),
                         node->is_strong ? Py_True : Py_False);
}

static PyObject *
cycles_edge(const void *edges, uint32_t at)
{
    const ph_edge *edge = (const ph_edge *)edges + at;
    const char *kind = cycles_edge_kind(edge->kind);
    return Py_BuildValue("(IINsO)", (unsigned)edge->source, (unsigned)edge->target,
                         nt_py_message(edge->name), kind,
                         edge->in_cycle ? Py_True : Py_False);
}

PyObject *
nt_py_plain_list(uint32_t count, PyObject *(*make)(const void *, uint32_t),
                 const void *from)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = make(from, i);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, item);
        }
    }
    return list;
}

PyObject *
nt_py_plain_nodes(const ph_node *nodes, uint32_t count)
{
    return nt_py_plain_list(count, cycles_node, nodes);
}

PyObject *
nt_py_plain_edges(const ph_edge *edges, uint32_t count)
{
    return nt_py_plain_list(count, cycles_edge, edges);
}

PyObject *
nt_py_plain_devices(const ph_device_bytes *devices, uint32_t count)
{
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; dict != NULL && i < count; i++) {
        PyObject *name = cycles_device(devices[i].type, devices[i].index);
        PyObject *bytes = PyLong_FromUnsignedLongLong(devices[i].bytes);
        if (name == NULL || bytes == NULL || PyDict_SetItem(dict, name, bytes) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(name);
        Py_XDECREF(bytes);
    }
    return dict;
}

/* None where they are not told. */
static PyObject *
cycles_nodes(const ph_cycle *cycle)
{
    if (cycle->node_count == 0) {
        Py_RETURN_NONE;
    }
    return nt_py_plain_nodes(cycle->nodes, cycle->node_count);
}

/* `collection` is NULL where nothing was collected. */
static PyObject *
cycles_cycle(const ph_cycle *cycle, const ph_collection *collection)
{
    unsigned survivors = 0;
    for (uint32_t i = 0; collection != NULL && i < cycle->count; i++) {
        survivors += ph_collection_survived(collection, cycle->objects[i]);
    }
    return Py_BuildValue(
        "{s:K,s:I,s:I,s:K,s:N,s:I,s:K,s:I,s:I,s:I,s:I,s:N,s:N}", "signature",
        (unsigned long long)cycle->signature, "count", (unsigned)cycle->count,
        "tensors", (unsigned)cycle->tensors, "bytes", (unsigned long long)cycle->bytes,
        "devices", nt_py_plain_devices(cycle->devices, cycle->device_count),
        "survivors", survivors, "one_bytes", (unsigned long long)cycle->one_bytes,
        "one_tensors", (unsigned)cycle->one_tensors, "one_objects",
        (unsigned)cycle->one_objects, "length", (unsigned)cycle->length, "chain_length",
        (unsigned)cycle->chain_length, "nodes", cycles_nodes(cycle), "edges",
        nt_py_plain_edges(cycle->edges, cycle->edge_count));
}

/* None for no cycles at all. */
static PyObject *
cycles_dict(const ph_cycles *cycles, const ph_collection *collection)
{
    if (cycles == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *list = PyList_New(cycles->count);
    for (uint32_t i = 0; list != NULL && i < cycles->count; i++) {
        PyObject *cycle = cycles_cycle(&cycles->cycles[i], collection);
        if (cycle == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, cycle);
        }
    }
    return Py_BuildValue(
        "{s:N,s:I,s:I,s:I,s:K,s:K}", "cycles", list, "components",
        (unsigned)cycles->components, "others", (unsigned)cycles->others, "left_out",
        (unsigned)cycles->left_out, "bytes", (unsigned long long)cycles->bytes,
        "loose_bytes", (unsigned long long)cycles->loose_bytes);
}

static ph_describe_options
cycles_options(int type, int index, unsigned long long min_bytes, unsigned most)
{
    return (ph_describe_options){.device_type = (int16_t)type,
                                 .device_index = (int16_t)index,
                                 .min_bytes = min_bytes,
                                 .most = most};
}

/* ---- found on request ---------------------------------------------------------- */

typedef struct cycles_found {
    ph_cycles *garbage;
    ph_cycles *alive;
    uint32_t objects;
    uint32_t dead;
    uint32_t cut;
} cycles_found;

static nt_status
cycles_search(const ph_describe_options *options, bool alive, cycles_found *found,
              nt_error *err)
{
    ph_heap *heap = NULL;
    nt_bitset dead = {.words = NULL}, live = {.words = NULL};
    ph_describe_options dying = *options;
    dying.dying = true;
    nt_status status;
    NT_TRY_DONE(ph_heap_new(PH_FULL, false, &heap, err));
    found->objects = ph_heap_count(heap);
    NT_TRY_DONE(ph_heap_unreachable(heap, &dead, &found->dead, err));
    if (found->dead > 0) {
        NT_TRY_DONE(ph_describe(heap, &dead, &dying, &found->garbage, err));
    }
    if (alive) {
        NT_TRY_DONE(ph_describe_live(heap, &dead, &live, &found->cut, err));
        NT_TRY_DONE(ph_describe(heap, &live, options, &found->alive, err));
    }
done:
    nt_bitset_clear(&dead);
    nt_bitset_clear(&live);
    ph_heap_free(heap);
    return status;
}

static PyObject *
cycles_py_find_cycles(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, index, alive;
    unsigned long long min_bytes;
    unsigned most;
    if (!PyArg_ParseTuple(args, "iiKIp:find_cycles", &type, &index, &min_bytes, &most,
                          &alive)) {
        return NULL;
    }
    const ph_describe_options options = cycles_options(type, index, min_bytes, most);
    cycles_found found = {.garbage = NULL};
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = ph_walk_prepare(&err);
    if (status == NT_OK) {
        status = cycles_search(&options, alive != 0, &found, &err);
    }
    PyObject *result = NULL;
    if (status != NT_OK) {
        (void)nt_py_raise_heap(status, &err);
    } else {
        result = Py_BuildValue(
            "{s:N,s:N,s:I,s:I,s:I}", "garbage", cycles_dict(found.garbage, NULL),
            "alive", cycles_dict(found.alive, NULL), "objects", (unsigned)found.objects,
            "dead", (unsigned)found.dead, "cut", (unsigned)found.cut);
    }
    ph_cycles_free(found.garbage);
    ph_cycles_free(found.alive);
    return result;
}

/* ---- watched for --------------------------------------------------------------- */

typedef struct cycles_watch {
    ph_describe_options options;
    nt_map known;       /* signatures that are only counted */
    PyObject *receiver; /* owned */
} cycles_watch;

static nt_status
watch_describe(void *ctx, const ph_heap *heap, const nt_bitset *dead,
               uint32_t Py_UNUSED(count), void **plain, nt_error *err)
{
    const cycles_watch *watch = ctx;
    ph_cycles *cycles;
    NT_TRY(ph_describe(heap, dead, &watch->options, &cycles, err));
    if (cycles != NULL && cycles->components == 0 && cycles->loose_bytes == 0) {
        ph_cycles_free(cycles);
        cycles = NULL;
    }
    *plain = cycles;
    return NT_OK;
}

/* Takes down the signatures that the receiver returned. */
static int
watch_learn(cycles_watch *watch, PyObject *signatures)
{
    if (!PyTuple_Check(signatures)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signatures); i++) {
        const uint64_t signature =
            PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(signatures, i));
        if (PyErr_Occurred()) {
            return -1;
        }
        if (nt_map_set(&watch->known, signature, 1, NULL) != NT_OK) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static int
watch_deliver(void *ctx, void *plain, const ph_collection *collection)
{
    cycles_watch *watch = ctx;
    PyObject *found = cycles_dict(plain, collection);
    ph_cycles_free(plain);
    if (found == NULL) {
        return -1;
    }
    PyObject *done = PyObject_CallFunction(watch->receiver, "NI", found,
                                           (unsigned)collection->generation);
    const int learnt = done == NULL ? -1 : watch_learn(watch, done);
    Py_XDECREF(done);
    return learnt;
}

static void
watch_discard(void *Py_UNUSED(ctx), void *plain)
{
    ph_cycles_free(plain);
}

static void
watch_free(void *ctx)
{
    cycles_watch *watch = ctx;
    Py_CLEAR(watch->receiver);
    nt_map_clear(&watch->known);
    PyMem_RawFree(watch);
}

static const ph_gcwatch_hooks watch_hooks = {
    .describe = watch_describe,
    .deliver = watch_deliver,
    .discard = watch_discard,
    .free = watch_free,
};

static PyObject *
cycles_py_watch_cycles(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *receiver;
    int type, index;
    unsigned long long min_bytes;
    unsigned most;
    if (!PyArg_ParseTuple(args, "OiiKI:watch_cycles", &receiver, &type, &index,
                          &min_bytes, &most)) {
        return NULL;
    }
    cycles_watch *watch = PyMem_RawMalloc(sizeof *watch);
    if (watch == NULL) {
        return PyErr_NoMemory();
    }
    watch->options = cycles_options(type, index, min_bytes, most);
    watch->options.dying = true;
    nt_map_init(&watch->known, nt_alloc_system());
    watch->options.known = &watch->known;
    watch->receiver = Py_NewRef(receiver);
    uint64_t id;
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_gcwatch_add(&watch_hooks, watch, &id, &err);
    if (status != NT_OK) {
        watch_free(watch);
        return nt_py_raise_heap(status, &err);
    }
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *
cycles_py_unwatch_cycles(PyObject *Py_UNUSED(module), PyObject *id)
{
    const unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(ph_gcwatch_remove(number));
}

static PyObject *
cycles_py_watch_status(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    ph_gcwatch_status status;
    ph_gcwatch_get_status(&status);
    return Py_BuildValue("{s:I,s:O,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N}", "subscribers",
                         (unsigned)status.subscribers, "listed",
                         status.listed ? Py_True : Py_False, "collections",
                         (unsigned long long)status.collections, "walked",
                         (unsigned long long)status.walked, "predicted",
                         (unsigned long long)status.predicted, "described",
                         (unsigned long long)status.described, "survivors",
                         (unsigned long long)status.survivors, "refused",
                         (unsigned long long)status.refused, "spent_ns",
                         (unsigned long long)status.spent_ns, "longest_ns",
                         (unsigned long long)status.longest_ns, "refusal",
                         nt_py_message(status.refusal));
}

/* ---- a safe point -------------------------------------------------------------- */

/* Takes over a reference to what is called. */
static int
cycles_pending(void *callable)
{
    PyObject *done = PyObject_CallNoArgs(callable);
    if (done == NULL) {
        PyErr_WriteUnraisable(callable);
    }
    Py_XDECREF(done);
    Py_DECREF((PyObject *)callable);
    return 0;
}

static PyObject *
cycles_py_call_at_safe_point(PyObject *Py_UNUSED(module), PyObject *callable)
{
    const bool taken = Py_AddPendingCall(cycles_pending, Py_NewRef(callable)) == 0;
    if (!taken) {
        Py_DECREF(callable);
    }
    return PyBool_FromLong(taken);
}

PyDoc_STRVAR(call_at_safe_point_doc, "call_at_safe_point(callable, /)\n--\n\n"
                                     "Has the main thread call it between two "
                                     "bytecodes. False if the interpreter has no\n"
                                     "room for the request now.");
PyDoc_STRVAR(
    find_cycles_doc,
    "find_cycles(device_type, device_index, min_bytes, most, alive, /)\n--\n\n"
    "A dict: 'garbage' and 'alive' with the cycles that hold tensors (None where no\n"
    "tensor is there at all), and counts of objects.");
PyDoc_STRVAR(
    watch_cycles_doc,
    "watch_cycles(receiver, device_type, device_index, min_bytes, most, /)\n--\n\n"
    "Calls receiver(found, generation) after each collection that found tensors.\n"
    "Cycles of the signatures that it returns in a tuple are counted from then on, "
    "and\n"
    "no longer described: their 'nodes' are None. Returns the number for "
    "unwatch_cycles.");
PyDoc_STRVAR(unwatch_cycles_doc,
             "unwatch_cycles(number, /)\n--\n\nFalse if there is no such watch.");
PyDoc_STRVAR(watch_status_doc,
             "watch_status()\n--\n\nWhat the watches of this interpreter have done.");

PyMethodDef nt_py_cycles_methods[] = {
    {"find_cycles", cycles_py_find_cycles, METH_VARARGS, find_cycles_doc},
    {"watch_cycles", cycles_py_watch_cycles, METH_VARARGS, watch_cycles_doc},
    {"unwatch_cycles", cycles_py_unwatch_cycles, METH_O, unwatch_cycles_doc},
    {"call_at_safe_point", cycles_py_call_at_safe_point, METH_O,
     call_at_safe_point_doc},
    {"watch_status", cycles_py_watch_status, METH_NOARGS, watch_status_doc},
    {NULL, NULL, 0, NULL},
};
