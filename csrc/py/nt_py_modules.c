/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks of modules: before a module's forward its text is set, after it that of the
 * module around it. What made a tensor that goes into a module or comes out of it sets
 * its text again in the backward pass, by a hook on that node.
 *
 * All of it runs inside of somebody's forward: it raises nothing but what a handler of
 * a signal has raised in it, and holds no tensor. */
#include "nt_py.h"

/* Of a thread that is in a model: the numbers of nodes that set a text, what was set
 * before, then a tuple (id, text) of each module that runs, the innermost last. */
enum { MARKS_SEEN, MARKS_BEFORE, MARKS_FIRST };

typedef struct py_marks {
    PyObject_HEAD PyObject *texts; /* dict: id of a module -> str */
    PyObject *hooks;               /* dict: str -> dict of the one hook that sets it */
    PyObject *writer;              /* list: [write], or [] when all is over */
    PyObject *read;                /* gives the thread's text */
    PyObject *enter_model;         /* called with a model that is not in texts */
    PyObject *hook_of; /* given the text before a model, what its output's nodes call */
    PyObject *carrier; /* a tensor by which nodes are given a dict of hooks */
    PyObject *grad_fn, *sequence, *set_hooks, *add_hooks, *add_hook; /* names */
} py_marks;

/* A new number for what lies at `object`, as id() gives it. */
static PyObject *
marks_id(PyObject *object)
{
    return PyLong_FromVoidPtr(object);
}

/* The texts of the calling thread, borrowed; NULL where it is in no model. */
static PyObject *
marks_running(py_marks *self)
{
    PyObject *all = PyThreadState_GetDict();
    return all == NULL ? NULL : PyDict_GetItemWithError(all, (PyObject *)self);
}

static PyObject *
marks_write(PyObject *writer, PyObject *text)
{
    if (PyList_GET_SIZE(writer) == 0) {
        Py_RETURN_NONE;
    }
    PyObject *write = Py_NewRef(PyList_GET_ITEM(writer, 0));
    PyObject *done = PyObject_CallOneArg(write, text);
    Py_DECREF(write);
    return done;
}

/* Nothing that fails here may reach the program: tensors that know no gradient. */
static PyObject *
marks_quietly(int status)
{
    if (status < 0 && nt_py_drop_ours() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* A gradient has reached a tensor: `self` is (writer, text). */
static PyObject *
marks_reach(PyObject *self, PyObject *Py_UNUSED(gradient))
{
    PyObject *done = marks_write(PyTuple_GET_ITEM(self, 0), PyTuple_GET_ITEM(self, 1));
    return marks_quietly(done == NULL ? -1 : (Py_DECREF(done), 0));
}

static PyMethodDef reach_def = {"reach", marks_reach, METH_O, NULL};

/* The dict of the one hook that sets `text`, borrowed. All tensors of a module share
 * it, as PyTorch lets them. */
static PyObject *
marks_hook(py_marks *self, PyObject *text)
{
    PyObject *found = PyDict_GetItemWithError(self->hooks, text);
    if (found != NULL || PyErr_Occurred()) {
        return found;
    }
    PyObject *bound = PyTuple_Pack(2, self->writer, text);
    PyObject *hook = bound == NULL ? NULL : PyCFunction_New(&reach_def, bound);
    PyObject *made = hook == NULL ? NULL : Py_BuildValue("{iO}", 0, hook);
    if (made != NULL && PyDict_SetItem(self->hooks, text, made) < 0) {
        Py_CLEAR(made);
    }
    Py_XDECREF(bound);
    Py_XDECREF(hook);
    Py_XDECREF(made); /* the dict has it */
    return made;
}

/* Lets a node of the graph set `text` before it runs. It takes the hooks of a tensor,
 * as those on its first output; that tensor need not be one of its own. */
static int
marks_node(py_marks *self, PyObject *node, PyObject *text)
{
    PyObject *hook = marks_hook(self, text);
    if (hook == NULL || PyObject_SetAttr(self->carrier, self->set_hooks, hook) < 0) {
        return -1;
    }
    PyObject *done = PyObject_CallMethodOneArg(node, self->add_hooks, self->carrier);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* What made a tensor, new; None where nothing did, or where it is no tensor. */
static PyObject *
marks_made(py_marks *self, PyObject *tensor)
{
    if (!PyObject_TypeCheck(tensor, Py_TYPE(self->carrier))) {
        Py_RETURN_NONE;
    }
    return PyObject_GetAttr(tensor, self->grad_fn);
}

/* Lets what made a tensor set `text`, unless it sets one already. */
static int
marks_tensor(py_marks *self, PyObject *tensor, PyObject *seen, PyObject *text)
{
    PyObject *node = marks_made(self, tensor);
    if (node == NULL || node == Py_None) {
        Py_XDECREF(node);
        return node == NULL ? -1 : 0;
    }
    PyObject *number = PyObject_CallMethodNoArgs(node, self->sequence);
    const int known = number == NULL ? -1 : PySet_Contains(seen, number);
    int status = known == 1 ? 0 : -1;
    if (known == 0) {
        status = marks_node(self, node, text) == 0 ? PySet_Add(seen, number) : -1;
    }
    Py_XDECREF(number);
    Py_DECREF(node);
    return status;
}

/* Lets what made a tensor call `hook` before it runs. */
static int
marks_output(py_marks *self, PyObject *tensor, PyObject *hook,
             PyObject *Py_UNUSED(unused))
{
    PyObject *node = marks_made(self, tensor);
    if (node == NULL || node == Py_None) {
        Py_XDECREF(node);
        return node == NULL ? -1 : 0;
    }
    PyObject *done = PyObject_CallMethodOneArg(node, self->add_hook, hook);
    Py_DECREF(node);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

typedef int (*marks_visit)(py_marks *, PyObject *, PyObject *, PyObject *);

/* Visits what is in a tuple, list or dict, one level deep, or the one thing that `some`
 * is, with two objects more. */
static int
marks_each(py_marks *self, PyObject *some, marks_visit visit, PyObject *first,
           PyObject *second)
{
    PyObject *key, *value;
    int status = 0;
    if (PyDict_Check(some)) {
        for (Py_ssize_t at = 0; status == 0 && PyDict_Next(some, &at, &key, &value);) {
            status = visit(self, value, first, second);
        }
        return status;
    }
    if (!PyTuple_Check(some) && !PyList_Check(some)) {
        return visit(self, some, first, second);
    }
    for (Py_ssize_t i = 0; status == 0 && i < PySequence_Fast_GET_SIZE(some); i++) {
        status = visit(self, PySequence_Fast_GET_ITEM(some, i), first, second);
    }
    return status;
}

/* The same where the program's own classes of tensors may fail: that is dropped. */
static int
marks_tensors(py_marks *self, PyObject *some, marks_visit visit, PyObject *first,
              PyObject *second)
{
    const int status = marks_each(self, some, visit, first, second);
    if (status < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 0;
    }
    return status;
}

/* The text of a module, borrowed; NULL where it has none, or with an exception. */
static PyObject *
marks_text(py_marks *self, PyObject *module)
{
    PyObject *id = marks_id(module);
    PyObject *text = id == NULL ? NULL : PyDict_GetItemWithError(self->texts, id);
    Py_XDECREF(id);
    return text;
}

/* A thread comes into a model: its texts, borrowed from what the thread keeps. */
static PyObject *
marks_begin(py_marks *self)
{
    PyObject *all = PyThreadState_GetDict(), *seen = PySet_New(NULL);
    PyObject *before = PyObject_CallNoArgs(self->read);
    PyObject *running =
        all == NULL || seen == NULL || before == NULL ? NULL : PyList_New(MARKS_FIRST);
    if (running != NULL) {
        PyList_SET_ITEM(running, MARKS_SEEN, Py_NewRef(seen));
        PyList_SET_ITEM(running, MARKS_BEFORE, Py_NewRef(before));
        if (PyDict_SetItem(all, (PyObject *)self, running) < 0) {
            Py_CLEAR(running);
        }
    }
    Py_XDECREF(seen);
    Py_XDECREF(before);
    Py_XDECREF(running);
    return running;
}

/* The text of the module that is `at` among those that run, or what was set before all
 * of them; borrowed. */
static PyObject *
marks_text_at(PyObject *running, Py_ssize_t at)
{
    PyObject *item = PyList_GET_ITEM(running, at);
    return at < MARKS_FIRST ? item : PyTuple_GET_ITEM(item, 1);
}

/* A module begins, in a thread that is in the model of `running` or in none. */
static int
marks_open(py_marks *self, PyObject *running, PyObject *entry, PyObject *args)
{
    int status = 0;
    if (running == NULL) {
        running = marks_begin(self);
    } else {
        PyObject *seen = PyList_GET_ITEM(running, MARKS_SEEN);
        const Py_ssize_t last = PyList_GET_SIZE(running) - 1;
        status =
            marks_tensors(self, args, marks_tensor, seen, marks_text_at(running, last));
    }
    if (running == NULL || PyList_Append(running, entry) < 0) {
        return -1;
    }
    PyObject *done = marks_write(self->writer, PyTuple_GET_ITEM(entry, 1));
    Py_XDECREF(done);
    return done == NULL ? -1 : status;
}

static int
marks_enter(py_marks *self, PyObject *module, PyObject *args)
{
    PyObject *running = marks_running(self), *text = marks_text(self, module);
    if (text == NULL && running == NULL && !PyErr_Occurred()) {
        PyObject *done = PyObject_CallOneArg(self->enter_model, module);
        Py_XDECREF(done);
        text = done == NULL ? NULL : marks_text(self, module);
    }
    if (text == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    /* While Python runs, another thread may give the module another text. */
    PyObject *entry = Py_BuildValue("NN", marks_id(module), Py_NewRef(text));
    const int status = entry == NULL ? -1 : marks_open(self, running, entry, args);
    Py_XDECREF(entry);
    return status;
}

/* A thread leaves a model: when a backward pass has come to it and ends, the text from
 * before the model is set again. */
static int
marks_end(py_marks *self, PyObject *running, PyObject *output)
{
    PyObject *before = Py_NewRef(PyList_GET_ITEM(running, MARKS_BEFORE));
    if (PyDict_DelItem(PyThreadState_GetDict(), (PyObject *)self) < 0) {
        PyErr_Clear();
    }
    PyObject *hook = PyObject_CallOneArg(self->hook_of, before);
    Py_DECREF(before);
    const int status =
        hook == NULL ? -1 : marks_tensors(self, output, marks_output, hook, NULL);
    Py_XDECREF(hook);
    return status;
}

/* Whether the innermost module that runs is this one. */
static bool
marks_is_inside(PyObject *running, PyObject *module)
{
    const Py_ssize_t last = PyList_GET_SIZE(running) - 1;
    return last >= MARKS_FIRST &&
           PyLong_AsVoidPtr(PyTuple_GET_ITEM(PyList_GET_ITEM(running, last), 0)) ==
               (void *)module;
}

/* The innermost module that runs is over. */
static int
marks_close(py_marks *self, PyObject *running, PyObject *output)
{
    const Py_ssize_t last = PyList_GET_SIZE(running) - 1;
    PyObject *text = Py_NewRef(marks_text_at(running, last));
    PyObject *outer =
        marks_text_at(running, last == MARKS_FIRST ? MARKS_BEFORE : last - 1);
    PyObject *done = marks_write(self->writer, outer);
    int status = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    if (status == 0) {
        status = marks_tensors(self, output, marks_tensor,
                               PyList_GET_ITEM(running, MARKS_SEEN), text);
    }
    Py_DECREF(text);
    return status;
}

static int
marks_leave(py_marks *self, PyObject *module, PyObject *output)
{
    PyObject *running = marks_running(self);
    if (running == NULL || !marks_is_inside(running, module)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    Py_INCREF(running);
    int status = marks_close(self, running, output);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const Py_ssize_t last = PyList_GET_SIZE(running) - 1;
    if (PyList_SetSlice(running, last, last + 1, NULL) < 0 ||
        (last == MARKS_FIRST && marks_end(self, running, output) < 0)) {
        status = -1;
    }
    if (type != NULL) {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(running);
    return status;
}

static PyObject *
py_marks_enter(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError,
                            "enter() takes a module and its arguments");
    }
    return marks_quietly(marks_enter((py_marks *)self, args[0], args[1]));
}

static PyObject *
py_marks_leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "leave() takes a module and its output");
    }
    return marks_quietly(marks_leave((py_marks *)self, args[0], args[1]));
}

static PyObject *
py_marks_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *texts, *writer, *read, *enter_model, *hook_of, *carrier;
    if (!PyArg_ParseTuple(args, "O!O!OOOO", &PyDict_Type, &texts, &PyList_Type, &writer,
                          &read, &enter_model, &hook_of, &carrier)) {
        return NULL;
    }
    py_marks *self = (py_marks *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->texts = Py_NewRef(texts);
    self->writer = Py_NewRef(writer);
    self->read = Py_NewRef(read);
    self->enter_model = Py_NewRef(enter_model);
    self->hook_of = Py_NewRef(hook_of);
    self->carrier = Py_NewRef(carrier);
    self->hooks = PyDict_New();
    self->grad_fn = PyUnicode_InternFromString("grad_fn");
    self->sequence = PyUnicode_InternFromString("_sequence_nr");
    self->set_hooks = PyUnicode_InternFromString("_backward_hooks");
    self->add_hooks = PyUnicode_InternFromString("_register_hook_dict");
    self->add_hook = PyUnicode_InternFromString("register_prehook");
    if (self->hooks == NULL || self->grad_fn == NULL || self->sequence == NULL ||
        self->set_hooks == NULL || self->add_hooks == NULL || self->add_hook == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void
py_marks_dealloc(PyObject *object)
{
    py_marks *self = (py_marks *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->texts);
    Py_XDECREF(self->hooks);
    Py_XDECREF(self->writer);
    Py_XDECREF(self->read);
    Py_XDECREF(self->enter_model);
    Py_XDECREF(self->hook_of);
    Py_XDECREF(self->carrier);
    Py_XDECREF(self->grad_fn);
    Py_XDECREF(self->sequence);
    Py_XDECREF(self->set_hooks);
    Py_XDECREF(self->add_hooks);
    Py_XDECREF(self->add_hook);
    type->tp_free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(
    marks_doc,
    "ModuleMarks(texts, writer, read, enter_model, hook_of, carrier, /)"
    "\n--\n\n"
    "Sets the text of the module that runs. `writer` is a list of the function "
    "that\nsets a text, or empty for none; `carrier` a plain tensor.");
PyDoc_STRVAR(enter_doc, "enter(module, args, /)\n--\n\nA module's forward begins.");
PyDoc_STRVAR(leave_doc, "leave(module, output, /)\n--\n\nA module's forward is over.");

static PyMethodDef marks_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))py_marks_enter, METH_FASTCALL, enter_doc},
    {"leave", (PyCFunction)(void (*)(void))py_marks_leave, METH_FASTCALL, leave_doc},
    NT_PY_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot marks_slots[] = {
    {Py_tp_new, py_marks_new},
    {Py_tp_dealloc, py_marks_dealloc},
    {Py_tp_methods, marks_methods},
    {Py_tp_doc, (void *)marks_doc},
    {0, NULL},
};

PyType_Spec nt_py_marks_spec = {
    .name = "neutracer._core.ModuleMarks",
    .basicsize = sizeof(py_marks),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = marks_slots,
};
