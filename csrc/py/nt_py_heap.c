/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of the running interpreter, for Python: what the headers of csrc/pyheap
 * say, as plain data. */
#include "nt_py.h"

#include "ph_describe.h"
#include "ph_join.h"
#include "ph_names.h"
#include "ph_walk.h"
#include "ph_tensor.h"
#include "ph_gcwatch.h"
#include "py_compat.h"
#include "py_compat_objects.h"

/* The exception for a call of csrc/pyheap; NULL. */
static PyObject *
heap_raise(nt_status status, const nt_error *err)
{
    return nt_py_raise_unavailable(status, err,
                                   "a view of the garbage collector's objects");
}

/* Learns what there is to learn of the heap; of torch only where it is imported. */
static nt_status
heap_learn(nt_error *err)
{
    NT_TRY(ph_walk_prepare(err));
    NT_TRY(ph_names_prepare(err));
    NT_TRY(py_compat_check_frames(err));
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GetItemString(modules, "torch") != NULL) {
        NT_TRY(ph_tensor_prepare(err));
    }
    return NT_OK;
}

static PyObject *
heap_py_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = ph_walk_prepare(&err);
    if (status == NT_OK) {
        status = ph_names_prepare(&err);
    }
    return status == NT_OK ? Py_NewRef(Py_None) : heap_raise(status, &err);
}

PyDoc_STRVAR(prepare_doc,
             "heap_prepare()\n--\n\n"
             "Checks that the garbage collector's objects can be walked here.\n\n"
             "Raises neutracer.UnavailableError with the reason where they can't.");

/* ---- names of references, facts of tensors --------------------------------------- */

static PyObject *
names_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_names_prepare(&err);
    return status == NT_OK ? Py_NewRef(Py_None) : heap_raise(status, &err);
}

static PyObject *
names_tensor_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_tensor_prepare(&err);
    return status == NT_OK
               ? Py_NewRef(Py_None)
               : nt_py_raise_unavailable(status, &err,
                                         "a view of this torch's tensors in memory");
}

static PyObject *
names_shape(const ph_tensor *tensor)
{
    const uint32_t count =
        tensor->ndim < PH_TENSOR_DIMS ? tensor->ndim : PH_TENSOR_DIMS;
    PyObject *shape = PyTuple_New((Py_ssize_t)count);
    for (uint32_t at = 0; shape != NULL && at < count; at++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[at]);
        if (size == NULL) {
            Py_CLEAR(shape);
        } else {
            PyTuple_SET_ITEM(shape, (Py_ssize_t)at, size);
        }
    }
    return shape;
}

static PyObject *
names_tensor_facts(PyObject *Py_UNUSED(module), PyObject *object)
{
    ph_tensor t;
    if (!ph_tensor_check(object) || !ph_tensor_read(object, &t)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue(
        "{sK sK sK sK sN sk ss ss si sO sO sL sL sK}", "impl",
        (unsigned long long)t.impl, "storage", (unsigned long long)t.storage,
        "data_ptr", (unsigned long long)t.data_ptr, "storage_bytes",
        (unsigned long long)t.storage_bytes, "shape", names_shape(&t), "ndim",
        (unsigned long)t.ndim, "dtype", ph_tensor_dtype_name(t.dtype), "device_type",
        ph_tensor_device_name(t.device_type), "device_index", (int)t.device_index,
        "requires_grad", t.requires_grad ? Py_True : Py_False, "has_grad_fn",
        t.has_grad_fn ? Py_True : Py_False, "numel", (long long)t.numel,
        "storage_offset", (long long)t.storage_offset, "use_count",
        (unsigned long long)t.use_count);
}

/* One reference as (target, kind, name), the name as UTF-8. */
static int
names_append(void *ctx, PyObject *target, ph_edge_kind kind, const char *name)
{
    PyObject *row =
        Py_BuildValue("(OsN)", target, ph_edge_kind_name(kind), nt_py_message(name));
    const int failed = row == NULL ? -1 : PyList_Append(ctx, row);
    Py_XDECREF(row);
    return failed;
}

static PyObject *
names_references(PyObject *Py_UNUSED(module), PyObject *object)
{
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    /* No collection may run its finalizers on what is being looked at. */
    const int enabled = PyGC_Disable();
    if (ph_names_each(object, names_append, list) != 0) {
        Py_CLEAR(list);
    }
    if (enabled) {
        PyGC_Enable();
    }
    return list;
}

static PyObject *
names_reference(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *owner, *target, *container = NULL;
    ph_edge_kind kind;
    char name[PH_NAME_BYTES];
    if (!PyArg_ParseTuple(args, "OO|O", &owner, &target, &container)) {
        return NULL;
    }
    if (container == NULL ? !ph_names_find(owner, target, &kind, name)
                          : !ph_names_through(owner, container, target, &kind, name)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(sN)", ph_edge_kind_name(kind), nt_py_message(name));
}

static PyObject *
names_label(PyObject *Py_UNUSED(module), PyObject *object)
{
    ph_label label;
    ph_names_label(object, &label);
    return Py_BuildValue("(sNNNi)", ph_node_kind_name(label.kind),
                         nt_py_message(label.type), nt_py_message(label.text),
                         nt_py_message(label.file), label.line);
}

PyDoc_STRVAR(names_prepare_doc,
             "names_prepare()\n--\n\n"
             "Learns where Python keeps what. Cheap when called again.");
PyDoc_STRVAR(
    tensor_prepare_doc,
    "tensor_prepare()\n--\n\n"
    "Learns where the imported torch keeps what; raises with the reason where\n"
    "that can't be known. Cheap when called again.");
PyDoc_STRVAR(tensor_facts_doc,
             "tensor_facts(object, /)\n--\n\n"
             "A tensor's facts as they lie in memory, or None for anything else.");
PyDoc_STRVAR(references_doc,
             "references(object, /)\n--\n\n"
             "(target, kind, name) of every reference that has a name.");
PyDoc_STRVAR(reference_doc,
             "reference(owner, target, container=None, /)\n--\n\n"
             "(kind, name) of one reference, through a container where one is given;\n"
             "None where it has no name.");
PyDoc_STRVAR(label_doc, "label(object, /)\n--\n\n"
                        "(kind, type, text, file, line) of an object.");

/* ---- cycles, and the watch ------------------------------------------------------- */

/* Cycles that hold tensors: found on request, or watched for; handed on as plain data.
 */

/* ---- plain data for Python ------------------------------------------------------- */

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

/* Of what `make` makes of each place of `from`. */
static PyObject *
plain_list(uint32_t count, PyObject *(*make)(const void *, uint32_t), const void *from)
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

/* Each node is (type, label, kind, file, line, count, tensor or None); the tensor is
 * (shape, dtype, device, storage bytes, storage, data pointer, requires_grad). */
static PyObject *
plain_nodes(const ph_node *nodes, uint32_t count)
{
    return plain_list(count, cycles_node, nodes);
}

/* Each edge is (source, target, name, kind, in cycle). */
static PyObject *
plain_edges(const ph_edge *edges, uint32_t count)
{
    return plain_list(count, cycles_edge, edges);
}

/* {"cuda:0": bytes} */
static PyObject *
plain_devices(const ph_device_bytes *devices, uint32_t count)
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

/* (nodes, edges, place of the edge to break, references). */
static PyObject *
cycles_cut(const void *cuts, uint32_t at)
{
    const ph_cut *cut = (const ph_cut *)cuts + at;
    return Py_BuildValue("(NNII)", plain_nodes(cut->nodes, cut->node_count),
                         plain_edges(cut->edges, cut->edge_count), (unsigned)cut->edge,
                         (unsigned)cut->references);
}

/* None where they are not told. */
static PyObject *
cycles_nodes(const ph_cycle *cycle)
{
    if (cycle->node_count == 0) {
        Py_RETURN_NONE;
    }
    return plain_nodes(cycle->nodes, cycle->node_count);
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
        "{s:K,s:I,s:I,s:K,s:N,s:I,s:K,s:I,s:I,s:I,s:I,s:N,s:N,s:N,s:O}", "signature",
        (unsigned long long)cycle->signature, "count", (unsigned)cycle->count,
        "tensors", (unsigned)cycle->tensors, "bytes", (unsigned long long)cycle->bytes,
        "devices", plain_devices(cycle->devices, cycle->device_count), "survivors",
        survivors, "one_bytes", (unsigned long long)cycle->one_bytes, "one_tensors",
        (unsigned)cycle->one_tensors, "one_objects", (unsigned)cycle->one_objects,
        "length", (unsigned)cycle->length, "chain_length",
        (unsigned)cycle->chain_length, "nodes", cycles_nodes(cycle), "edges",
        plain_edges(cycle->edges, cycle->edge_count), "cuts",
        plain_list(cycle->cut_count, cycles_cut, cycle->cuts), "proved",
        cycle->is_proved ? Py_True : Py_False);
}

static PyObject *
cycles_storage(const void *storages, uint32_t at)
{
    return PyLong_FromUnsignedLongLong(((const uint64_t *)storages)[at]);
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
        "{s:N,s:N,s:I,s:I,s:I,s:K,s:K}", "cycles", list, "storages",
        plain_list((uint32_t)cycles->storage_count, cycles_storage, cycles->storages),
        "components", (unsigned)cycles->components, "others", (unsigned)cycles->others,
        "left_out", (unsigned)cycles->left_out, "bytes",
        (unsigned long long)cycles->bytes, "loose_bytes",
        (unsigned long long)cycles->loose_bytes);
}

static ph_describe_options
cycles_options(int type, int index, unsigned long long min_bytes, unsigned most)
{
    return (ph_describe_options){.device_type = (int16_t)type,
                                 .device_index = (int16_t)index,
                                 .min_bytes = min_bytes,
                                 .most = most};
}

/* ---- found on request ------------------------------------------------------------ */

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
        (void)heap_raise(status, &err);
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

/* ---- watched for ----------------------------------------------------------------- */

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
        return heap_raise(status, &err);
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

/* ---- a safe point ---------------------------------------------------------------- */

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

/* ---- tensors and nodes of PyTorch's graph ---------------------------------------- */

/* What Python needs to read PyTorch's graph: all tensors, and the hooks of its nodes.
 */

/* ---- all tensors ----------------------------------------------------------------- */

typedef struct autograd_tensors {
    PyObject **found; /* owned references */
    size_t count;
    size_t capacity;
    size_t nodes; /* objects of Python that are nodes of autograd's graph */
} autograd_tensors;

static nt_status
tensors_collect(autograd_tensors *tensors, const ph_gc_link *head, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    for (const ph_gc_link *at = ph_gc_next(head); at != head; at = ph_gc_next(at)) {
        PyObject *object = ph_gc_object(at);
        ph_tensor facts;
        tensors->nodes += ph_tensor_check_node(object);
        if (ph_tensor_check(object) && ph_tensor_read(object, &facts)) {
            NT_TRY(NT_GROW(&alloc, tensors->found, tensors->capacity,
                           tensors->count + 1, err));
            tensors->found[tensors->count++] = Py_NewRef(object);
        }
    }
    return NT_OK;
}

PyDoc_STRVAR(heap_tensors_doc,
             "heap_tensors()\n--\n\n"
             "A list of all tensors that are objects of Python, and how many nodes of\n"
             "autograd's graph are. Empty where torch is not imported.");

static PyObject *
autograd_py_heap_tensors(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = heap_learn(&err);
    ph_gc_lists lists;
    autograd_tensors tensors = {.found = NULL};
    if (status == NT_OK && ph_tensor_ready() && ph_gc_get_lists(&lists)) {
        for (int i = 0; i < PH_GC_GENERATIONS && status == NT_OK; i++) {
            status = tensors_collect(&tensors, lists.generations[i], &err);
        }
        if (status == NT_OK) {
            status = tensors_collect(&tensors, lists.frozen, &err);
        }
    }
    PyObject *list = status == NT_OK ? PyList_New((Py_ssize_t)tensors.count)
                                     : heap_raise(status, &err);
    for (size_t i = 0; i < tensors.count; i++) {
        if (list == NULL) {
            Py_DECREF(tensors.found[i]);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, tensors.found[i]);
        }
    }
    const nt_alloc alloc = nt_alloc_system();
    NT_RELEASE(&alloc, tensors.found, tensors.capacity);
    return list == NULL ? NULL : Py_BuildValue("(Nn)", list, (Py_ssize_t)tensors.nodes);
}

PyDoc_STRVAR(data_pointers_doc,
             "data_pointers(objects, /)\n--\n\n"
             "Where the memory of each tensor of a list begins; 0 for anything else.");

static PyObject *
autograd_py_data_pointers(PyObject *Py_UNUSED(module), PyObject *objects)
{
    if (!PyList_Check(objects)) {
        return PyErr_Format(PyExc_TypeError, "data_pointers() takes a list");
    }
    PyObject *list = PyList_New(PyList_GET_SIZE(objects));
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        ph_tensor tensor = {.data_ptr = 0};
        const bool known = ph_tensor_check(object) && ph_tensor_read(object, &tensor);
        PyObject *at = PyLong_FromUnsignedLongLong(known ? tensor.data_ptr : 0);
        if (at == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, at);
        }
    }
    return list;
}

/* ---- hooks of the graph's nodes -------------------------------------------------- */

PyDoc_STRVAR(node_begin_doc,
             "node_begin(node)\n--\n\n"
             "The first half of learning where a node keeps its hooks: it has none.");

static PyObject *
autograd_py_node_begin(PyObject *Py_UNUSED(module), PyObject *node)
{
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_node_begin(node, &err);
    if (status != NT_OK) {
        return heap_raise(status, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    node_learn_doc,
    "node_learn(node, before, after, tensor)\n--\n\n"
    "The second half: the same node, and the dicts of the hooks that it has got.");

static PyObject *
autograd_py_node_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *node, *dicts[PH_NODE_LISTS];
    if (!PyArg_ParseTuple(args, "OOOO:node_learn", &node, &dicts[0], &dicts[1],
                          &dicts[2])) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_status status = ph_node_learn(node, dicts, &err);
    if (status != NT_OK) {
        return heap_raise(status, &err);
    }
    Py_RETURN_NONE;
}

#define MOST_DICTS 64

typedef struct autograd_hooks {
    PyObject *found[MOST_DICTS]; /* owned references */
    int lists[MOST_DICTS];
    Py_ssize_t count;
} autograd_hooks;

static int
hooks_visit(void *ctx, int list, PyObject *dict)
{
    autograd_hooks *hooks = ctx;
    hooks->found[hooks->count] = Py_NewRef(dict);
    hooks->lists[hooks->count++] = list;
    return hooks->count == MOST_DICTS;
}

PyDoc_STRVAR(node_hooks_doc,
             "node_hooks(node)\n--\n\n"
             "Pairs of a list's number and a dict of hooks; at most 64.");

static PyObject *
autograd_py_node_hooks(PyObject *Py_UNUSED(module), PyObject *node)
{
    autograd_hooks hooks = {.count = 0};
    (void)ph_node_each_hooks(node, hooks_visit, &hooks);
    PyObject *pairs = PyTuple_New(hooks.count);
    for (Py_ssize_t i = 0; i < hooks.count; i++) {
        PyObject *pair = pairs == NULL
                             ? NULL
                             : Py_BuildValue("(iO)", hooks.lists[i], hooks.found[i]);
        Py_DECREF(hooks.found[i]);
        if (pair == NULL) {
            Py_CLEAR(pairs);
        } else {
            PyTuple_SET_ITEM(pairs, i, pair);
        }
    }
    return pairs;
}

/* ---- questions about the whole heap ---------------------------------------------- */

/* Questions about the whole heap that need more than the collector is shown: cycles
 * through PyTorch's graph, why something is alive, what holders keep. Each walks once,
 * makes plain data, lets go of the walk, and only then makes Python objects. */

/* ---- what Python tells of PyTorch's graph ---------------------------------------- */

/* References that only C++ knows, as Python read them. */
typedef struct roots_told {
    PyObject *objects; /* list of what takes part */
    Py_buffer kinds;   /* a byte an object; 1: a node of PyTorch's graph */
    Py_buffer links;   /* three 32-bit numbers each: source, target, name */
    PyObject *names;   /* tuple of str */
} roots_told;

static void
told_clear(roots_told *told)
{
    PyBuffer_Release(&told->kinds);
    PyBuffer_Release(&told->links);
}

static nt_status
told_refuse(nt_error *err)
{
    return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "links do not fit the objects");
}

static nt_status
told_link(const roots_told *told, ph_join *join, const uint32_t *nodes,
          const uint32_t *link, nt_error *err)
{
    const size_t objects = (size_t)PyList_GET_SIZE(told->objects);
    const size_t names = (size_t)PyTuple_GET_SIZE(told->names);
    if (link[0] >= objects || link[1] >= objects || link[2] >= names) {
        return told_refuse(err);
    }
    const uint32_t source = nodes[link[0]], target = nodes[link[1]];
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(told->names, link[2]));
    if (name == NULL) {
        PyErr_Clear();
        return told_refuse(err);
    }
    return source == NT_NONE || target == NT_NONE
               ? NT_OK
               : ph_join_link(join, source, target, PH_EDGE_AUTOGRAD, name, err);
}

/* Hides the list and joins what it tells. */
static nt_status
told_join(const roots_told *told, ph_join *join, nt_error *err)
{
    const size_t count = (size_t)PyList_GET_SIZE(told->objects);
    const size_t bytes = count * sizeof(uint32_t);
    const uint8_t *kinds = told->kinds.buf;
    const uint32_t *links = told->links.buf;
    if ((size_t)told->kinds.len != count || told->links.len % 12 != 0) {
        return told_refuse(err);
    }
    uint32_t *nodes;
    NT_TRY(nt_take(&join->alloc, (void **)&nodes, bytes, err));
    nt_status status = NT_OK;
    for (size_t i = 0; i < count; i++) {
        nodes[i] = ph_heap_find(join->heap, PyList_GET_ITEM(told->objects, i));
        if (nodes[i] != NT_NONE && kinds[i] == 1) {
            nt_bitset_add(&join->autograd, nodes[i]);
        }
    }
    ph_join_hide(join, told->objects);
    for (Py_ssize_t i = 0; i < told->links.len / 12 && status == NT_OK; i++) {
        status = told_link(told, join, nodes, links + i * 3, err);
    }
    nt_release(&join->alloc, nodes, bytes);
    return status == NT_OK ? ph_join_tensors(join, err) : status;
}

static PyObject *
roots_thread(const void *threads, uint32_t at)
{
    return PyLong_FromUnsignedLongLong(((const uint64_t *)threads)[at]);
}

static PyObject *
roots_way(const ph_way *way)
{
    return Py_BuildValue("{s:N,s:N,s:N}", "nodes", plain_nodes(way->nodes, way->count),
                         "edges", plain_edges(way->edges, way->edge_count), "threads",
                         plain_list(way->count, roots_thread, way->threads));
}

/* ---- cycles ---------------------------------------------------------------------- */

static PyObject *
roots_loop(const void *loops, uint32_t at)
{
    const ph_loop *loop = (const ph_loop *)loops + at;
    return Py_BuildValue(
        "{s:N,s:I,s:I,s:I,s:K,s:O,s:O,s:N,s:N}", "way", roots_way(&loop->way), "cut",
        (unsigned)ph_cut_choose(loop->way.nodes, loop->way.edges, loop->way.edge_count),
        "objects", (unsigned)loop->objects, "tensors", (unsigned)loop->tensors, "bytes",
        (unsigned long long)loop->bytes, "hidden", loop->hidden ? Py_True : Py_False,
        "alive", loop->alive ? Py_True : Py_False, "devices",
        plain_devices(loop->devices, loop->device_count), "kept",
        plain_nodes(loop->kept, loop->kept_count));
}

static nt_status
roots_find_loops(const roots_told *told, const char *own, uint32_t most,
                 ph_loops **loops, uint32_t *objects, nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    nt_status status;
    NT_TRY_DONE(ph_heap_new(PH_ALL, false, &heap, err));
    *objects = ph_heap_count(heap);
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    NT_TRY_DONE(told_join(told, &join, err));
    NT_TRY_DONE(ph_roots_add(&join, own, err));
    NT_TRY_DONE(ph_join_close(&join, err));
    status = ph_loops_find(&join, most, loops, err);
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

PyDoc_STRVAR(
    autograd_loops_doc,
    "autograd_loops(objects, kinds, links, names, own, most)\n--\n\n"
    "Cycles with a part in PyTorch's graph. `links` are triples (source, target,\n"
    "name) of positions in `objects` and `names`; frames of files that begin with\n"
    "`own` are passed over.");

static PyObject *
roots_py_autograd_loops(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    const char *own;
    unsigned most;
    if (!PyArg_ParseTuple(args, "O!y*y*O!sI:autograd_loops", &PyList_Type,
                          &told.objects, &told.kinds, &told.links, &PyTuple_Type,
                          &told.names, &own, &most)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    ph_loops *loops = NULL;
    uint32_t objects = 0;
    nt_status status = heap_learn(&err);
    if (status == NT_OK) {
        status = roots_find_loops(&told, own, most, &loops, &objects, &err);
    }
    told_clear(&told);
    if (status != NT_OK) {
        return heap_raise(status, &err);
    }
    PyObject *result =
        Py_BuildValue("{s:N,s:I,s:K,s:I,s:I}", "loops",
                      plain_list(loops->count, roots_loop, loops->loops), "left_out",
                      (unsigned)loops->left_out, "left_out_bytes",
                      (unsigned long long)loops->left_out_bytes, "cut",
                      (unsigned)loops->cut, "objects", (unsigned)objects);
    ph_loops_free(loops);
    return result;
}

/* ---- why something is alive ------------------------------------------------------ */

typedef struct roots_alive {
    nt_arena *arena;
    ph_way *ways;
    uint32_t count;
    ph_way target;   /* the object alone */
    bool walked;     /* the walk has the object */
    bool loose;      /* the ways begin at what something unknown holds */
    uint64_t python; /* references that are not accounted for */
    uint64_t native;
    uint32_t call;      /* of `python`, what the call itself may be */
    uint32_t referrers; /* references that the walk and the links show */
    uint32_t objects;
} roots_alive;

static nt_status
alive_describe(const ph_join *join, const nt_graph_path *paths, uint32_t count,
               roots_alive *alive, nt_error *err)
{
    alive->ways = nt_arena_take(alive->arena, count * sizeof(ph_way), _Alignof(ph_way));
    if (alive->ways == NULL) {
        return nt_fail_nomem(err);
    }
    for (uint32_t i = 0; i < count; i++) {
        NT_TRY(ph_way_make(join, paths[i].nodes, paths[i].length, false, alive->arena,
                           &alive->ways[i], err));
        alive->count++;
    }
    return NT_OK;
}

static nt_status
alive_paths(const ph_join *join, const nt_graph *reversed, uint32_t node,
            const nt_bitset *roots, uint32_t most, roots_alive *alive, nt_error *err)
{
    nt_graph_path *paths = NULL;
    uint32_t count = 0;
    NT_TRY(nt_graph_paths(reversed, node, roots, NULL, most, &paths, &count, err));
    const nt_status status =
        count == 0 ? NT_OK : alive_describe(join, paths, count, alive, err);
    nt_graph_paths_free(reversed, paths, count);
    return status;
}

/* Ways from what something unknown holds, where no module and no frame leads there. */
static nt_status
alive_loose(const ph_join *join, const nt_graph *reversed, uint32_t node, uint32_t most,
            roots_alive *alive, nt_error *err)
{
    nt_bitset outside = {.words = NULL};
    nt_status status;
    NT_TRY_DONE(ph_join_outside(join, &outside, err));
    for (uint32_t n = 0; n < join->walked; n++) {
        if (nt_bitset_has(&join->hidden, n)) {
            nt_bitset_remove(&outside, n);
        }
    }
    /* The object itself is told apart: its own count says more. */
    nt_bitset_remove(&outside, node);
    alive->loose = true;
    status = alive_paths(join, reversed, node, &outside, most, alive, err);
done:
    nt_bitset_clear(&outside);
    return status;
}

/* Where a way may begin: anywhere, and where it begins if it can. */
typedef struct alive_roots {
    nt_bitset all, own;
} alive_roots;

static nt_status
alive_ask(const ph_join *join, const nt_graph *reversed, const alive_roots *roots,
          uint32_t node, uint32_t most, roots_alive *alive, nt_error *err)
{
    NT_TRY(ph_way_make(join, &node, 1, false, alive->arena, &alive->target, err));
    NT_TRY(alive_paths(join, reversed, node, &roots->own, most, alive, err));
    if (alive->count == 0) {
        NT_TRY(alive_paths(join, reversed, node, &roots->all, most, alive, err));
    }
    ph_join_unexplained(join, node, &alive->python, &alive->native);
    alive->call = join->call_references;
    alive->referrers = reversed->first[node + 1] - reversed->first[node];
    return alive->count > 0 ? NT_OK
                            : alive_loose(join, reversed, node, most, alive, err);
}

/* Whether a file's name has one of some texts in it. */
static bool
alive_is_foreign(const char *file, PyObject *foreign)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(foreign); i++) {
        const char *part = PyUnicode_AsUTF8(PyTuple_GET_ITEM(foreign, i));
        if (part == NULL) {
            PyErr_Clear(); /* a lone surrogate: no file's name has it here */
        } else if (strstr(file, part) != NULL) {
            return true;
        }
    }
    return false;
}

static nt_status
alive_mark_roots(const ph_join *join, PyObject *foreign, alive_roots *roots,
                 nt_error *err)
{
    NT_TRY(ph_roots_mark(join, &roots->all, err));
    NT_TRY(ph_roots_mark(join, &roots->own, err));
    for (size_t i = 0; i < join->added_count; i++) {
        if (alive_is_foreign(join->added[i].file, foreign)) {
            nt_bitset_remove(&roots->own, join->walked + (uint32_t)i);
        }
    }
    return NT_OK;
}

/* One after the other: walk, graph and roots are the same for all of them. */
static nt_status
alive_ask_each(const ph_join *join, PyObject *targets, PyObject *foreign, uint32_t most,
               roots_alive *alive, nt_error *err)
{
    nt_graph reversed = {.first = NULL};
    alive_roots roots = {.all = {.words = NULL}, .own = {.words = NULL}};
    nt_status status;
    NT_TRY_DONE(alive_mark_roots(join, foreign, &roots, err));
    NT_TRY_DONE(nt_graph_reverse(&join->graph, &reversed, err));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(targets); i++) {
        const uint32_t node = ph_heap_find(join->heap, PyList_GET_ITEM(targets, i));
        alive[i].walked = node != NT_NONE;
        alive[i].objects = ph_heap_count(join->heap);
        if (alive[i].walked) {
            NT_TRY_DONE(alive_ask(join, &reversed, &roots, node, most, &alive[i], err));
        }
    }
    status = NT_OK;
done:
    nt_bitset_clear(&roots.all);
    nt_bitset_clear(&roots.own);
    if (reversed.first != NULL) {
        nt_graph_clear(&reversed);
    }
    return status;
}

static bool
alive_all_tracked(PyObject *targets)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(targets); i++) {
        if (!PyObject_GC_IsTracked(PyList_GET_ITEM(targets, i))) {
            return false;
        }
    }
    return true;
}

static nt_status
roots_ask_alive(PyObject *targets, const roots_told *told, const char *own,
                PyObject *foreign, uint32_t most, roots_alive *alive, nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    nt_status status;
    NT_TRY_DONE(ph_heap_new(PH_ALL, !alive_all_tracked(targets), &heap, err));
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    ph_join_hide(&join, targets);
    NT_TRY_DONE(told_join(told, &join, err));
    NT_TRY_DONE(ph_roots_add(&join, own, err));
    NT_TRY_DONE(ph_join_close(&join, err));
    status = alive_ask_each(&join, targets, foreign, most, alive, err);
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

static PyObject *
roots_alive_way(const void *ways, uint32_t at)
{
    return roots_way((const ph_way *)ways + at);
}

static PyObject *
roots_alive_plain(const void *found, uint32_t at)
{
    const roots_alive *alive = (const roots_alive *)found + at;
    return Py_BuildValue(
        "{s:N,s:N,s:O,s:O,s:K,s:K,s:I,s:I,s:I}", "ways",
        plain_list(alive->count, roots_alive_way, alive->ways), "target",
        plain_nodes(alive->target.nodes, alive->target.count), "walked",
        alive->walked ? Py_True : Py_False, "loose", alive->loose ? Py_True : Py_False,
        "python", (unsigned long long)alive->python, "native",
        (unsigned long long)alive->native, "call", (unsigned)alive->call, "referrers",
        (unsigned)alive->referrers, "objects", (unsigned)alive->objects);
}

PyDoc_STRVAR(alive_ways_doc,
             "alive_ways(targets, objects, kinds, links, names, own, most, foreign)\n"
             "--\n\n"
             "For each object of the list `targets` the shortest ways to it from\n"
             "modules, threads and frames, by one walk; the list is passed over as a\n"
             "holder. They begin in a frame of a file whose name has one of `foreign`\n"
             "in it only where none begins elsewhere.");

static PyObject *
roots_py_alive_ways(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    PyObject *targets, *foreign;
    const char *own;
    unsigned most;
    if (!PyArg_ParseTuple(args, "O!O!y*y*O!sIO!:alive_ways", &PyList_Type, &targets,
                          &PyList_Type, &told.objects, &told.kinds, &told.links,
                          &PyTuple_Type, &told.names, &own, &most, &PyTuple_Type,
                          &foreign)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    const nt_alloc alloc = nt_alloc_system();
    nt_arena arena;
    nt_arena_init(&arena, alloc);
    const size_t count = (size_t)PyList_GET_SIZE(targets);
    const size_t bytes = count * sizeof(roots_alive);
    roots_alive *alive = nt_allocate(&alloc, bytes);
    PyObject *result = NULL;
    nt_status status = NT_OK;
    if (alive == NULL && count > 0) {
        status = nt_fail_nomem(&err);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        alive[i] = (roots_alive){.arena = &arena};
    }
    NT_TRY_DONE(heap_learn(&err));
    status = roots_ask_alive(targets, &told, own, foreign, most, alive, &err);
done:
    told_clear(&told);
    if (status != NT_OK) {
        (void)heap_raise(status, &err);
    } else {
        result = plain_list((uint32_t)count, roots_alive_plain, alive);
    }
    nt_release(&alloc, alive, bytes);
    nt_arena_clear(&arena);
    return result;
}

/* ---- what holders keep ----------------------------------------------------------- */

typedef struct roots_holds {
    ph_hold *holds;
    size_t count;
    ph_held *held;
    uint32_t holders;
    uint64_t together;
} roots_holds;

/* `lists`: a list a holder, of container, value, container, value. */
static nt_status
holds_parse(PyObject *lists, roots_holds *holds, nt_error *err)
{
    const nt_alloc alloc = nt_alloc_system();
    size_t pairs = 0, at = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists); i++) {
        PyObject *list = PyList_GET_ITEM(lists, i);
        if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) % 2 != 0) {
            return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "holds are lists of pairs");
        }
        pairs += (size_t)PyList_GET_SIZE(list) / 2;
    }
    holds->count = pairs;
    holds->holders = (uint32_t)PyList_GET_SIZE(lists);
    holds->holds = nt_allocate(&alloc, pairs * sizeof *holds->holds);
    holds->held = nt_allocate(&alloc, holds->holders * sizeof *holds->held);
    if ((holds->holds == NULL && pairs > 0) ||
        (holds->held == NULL && holds->holders > 0)) {
        return nt_fail_nomem(err);
    }
    for (uint32_t i = 0; i < holds->holders; i++) {
        PyObject *list = PyList_GET_ITEM(lists, i);
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k += 2) {
            holds->holds[at++] = (ph_hold){.holder = i,
                                           .container = PyList_GET_ITEM(list, k),
                                           .value = PyList_GET_ITEM(list, k + 1)};
        }
    }
    return NT_OK;
}

static void
holds_clear(roots_holds *holds)
{
    const nt_alloc alloc = nt_alloc_system();
    NT_RELEASE(&alloc, holds->holds, holds->count);
    NT_RELEASE(&alloc, holds->held, holds->holders);
}

static nt_status
holds_measure(PyObject *lists, const roots_told *told, roots_holds *holds,
              nt_error *err)
{
    ph_heap *heap = NULL;
    ph_join join = {.heap = NULL};
    nt_status status;
    NT_TRY_DONE(holds_parse(lists, holds, err));
    NT_TRY_DONE(ph_heap_new(PH_ALL, false, &heap, err));
    NT_TRY_DONE(ph_join_init(&join, heap, err));
    ph_join_hide(&join, lists);
    for (uint32_t i = 0; i < holds->holders; i++) {
        ph_join_hide(&join, PyList_GET_ITEM(lists, i));
    }
    NT_TRY_DONE(told_join(told, &join, err));
    status = ph_held_measure(&join, holds->holds, holds->count, holds->held,
                             holds->holders, &holds->together, err);
done:
    ph_join_clear(&join);
    ph_heap_free(heap);
    return status;
}

static PyObject *
roots_held(const void *held, uint32_t at)
{
    const ph_held *one = (const ph_held *)held + at;
    return Py_BuildValue("(KKII)", (unsigned long long)one->bytes,
                         (unsigned long long)one->reachable, (unsigned)one->tensors,
                         (unsigned)one->holds);
}

PyDoc_STRVAR(
    held_bytes_doc,
    "held_bytes(holders, objects, kinds, links, names)\n--\n\n"
    "For each holder, a list of container, value, container, value: bytes of\n"
    "tensors that would go if it let go, bytes that it leads to, tensors that\n"
    "would go, references that were found; and what would go if all did.");

static PyObject *
roots_py_held_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    roots_told told;
    PyObject *lists;
    if (!PyArg_ParseTuple(args, "O!O!y*y*O!:held_bytes", &PyList_Type, &lists,
                          &PyList_Type, &told.objects, &told.kinds, &told.links,
                          &PyTuple_Type, &told.names)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    roots_holds holds = {.holds = NULL};
    nt_status status = heap_learn(&err);
    if (status == NT_OK) {
        status = holds_measure(lists, &told, &holds, &err);
    }
    told_clear(&told);
    PyObject *result = NULL;
    if (status != NT_OK) {
        (void)heap_raise(status, &err);
    } else {
        result =
            Py_BuildValue("(NK)", plain_list(holds.holders, roots_held, holds.held),
                          (unsigned long long)holds.together);
    }
    holds_clear(&holds);
    return result;
}

PyMethodDef nt_py_heap_methods[] = {
    {"heap_prepare", heap_py_prepare, METH_NOARGS, prepare_doc},
    {"names_prepare", names_prepare, METH_NOARGS, names_prepare_doc},
    {"tensor_prepare", names_tensor_prepare, METH_NOARGS, tensor_prepare_doc},
    {"tensor_facts", names_tensor_facts, METH_O, tensor_facts_doc},
    {"references", names_references, METH_O, references_doc},
    {"reference", names_reference, METH_VARARGS, reference_doc},
    {"label", names_label, METH_O, label_doc},
    {"heap_tensors", autograd_py_heap_tensors, METH_NOARGS, heap_tensors_doc},
    {"data_pointers", autograd_py_data_pointers, METH_O, data_pointers_doc},
    {"node_begin", autograd_py_node_begin, METH_O, node_begin_doc},
    {"node_learn", autograd_py_node_learn, METH_VARARGS, node_learn_doc},
    {"node_hooks", autograd_py_node_hooks, METH_O, node_hooks_doc},
    {"find_cycles", cycles_py_find_cycles, METH_VARARGS, find_cycles_doc},
    {"watch_cycles", cycles_py_watch_cycles, METH_VARARGS, watch_cycles_doc},
    {"unwatch_cycles", cycles_py_unwatch_cycles, METH_O, unwatch_cycles_doc},
    {"call_at_safe_point", cycles_py_call_at_safe_point, METH_O,
     call_at_safe_point_doc},
    {"watch_status", cycles_py_watch_status, METH_NOARGS, watch_status_doc},
    {"autograd_loops", roots_py_autograd_loops, METH_VARARGS, autograd_loops_doc},
    {"alive_ways", roots_py_alive_ways, METH_VARARGS, alive_ways_doc},
    {"held_bytes", roots_py_held_bytes, METH_VARARGS, held_bytes_doc},
    {NULL, NULL, 0, NULL},
};
