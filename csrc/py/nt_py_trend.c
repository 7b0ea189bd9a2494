/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_py.h"

#include "leak/nt_trend.h"

/* Whether a buffer has whole 64-bit numbers; ValueError otherwise. */
static int
trend_check(const Py_buffer *buffer)
{
    if (buffer->len % 8 != 0 || (uintptr_t)buffer->buf % 8 != 0) {
        PyErr_SetString(PyExc_ValueError, "a series is of 64-bit numbers");
        return -1;
    }
    return 0;
}

static PyObject *
trend_jumps(const nt_trend *found)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < found->jump_count; i++) {
        PyObject *jump = Py_BuildValue("(nd)", (Py_ssize_t)found->jumps[i].step,
                                       found->jumps[i].bytes);
        if (jump == NULL || PyList_Append(list, jump) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(jump);
    }
    return list;
}

static PyObject *
trend_dict(const nt_trend *t)
{
    return Py_BuildValue(
        "{snsnsnsdsdsdsdsdsdsdsdsdsOsOsOsnsnsdsdsN}", "bin", (Py_ssize_t)t->bin,
        "warmup", (Py_ssize_t)t->warmup, "points", (Py_ssize_t)t->points, "level",
        t->level, "last", t->last, "slope", t->slope, "low", t->low, "high", t->high,
        "score", t->score, "deviate", t->deviate, "memory", t->memory, "noise",
        t->noise, "grows", t->grows ? Py_True : Py_False, "is_levelling",
        t->is_levelling ? Py_True : Py_False, "is_in_doubt",
        t->is_in_doubt ? Py_True : Py_False, "bursts", (Py_ssize_t)t->bursts, "teeth",
        (Py_ssize_t)t->teeth, "tooth", t->tooth, "tooth_slope", t->tooth_slope, "jumps",
        trend_jumps(t));
}

PyDoc_STRVAR(
    find_trend_doc,
    "find_trend(values, find_warmup=True, are_windows=False, /)\n--\n\n"
    "The trend of a series of bytes, one 64-bit number per step: nt_trend as a dict.");

static PyObject *
trend_find(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer values;
    int find_warmup = 1, are_windows = 0;
    if (!PyArg_ParseTuple(args, "y*|pp", &values, &find_warmup, &are_windows)) {
        return NULL;
    }
    const nt_alloc alloc = nt_alloc_system();
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_trend found = {0};
    nt_status status = NT_ARGUMENT;
    if (trend_check(&values) == 0) {
        Py_BEGIN_ALLOW_THREADS status =
            nt_trend_find(&alloc, values.buf, (size_t)values.len / 8, find_warmup != 0,
                          are_windows != 0, &found, &err);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    return status == NT_OK ? trend_dict(&found) : nt_py_raise(status, &err);
}

typedef nt_status
trend_by_step(const uint64_t *values, size_t count, const uint64_t *starts,
              size_t steps, uint64_t *found, nt_error *err);

/* One value a step, as bytes; `args` are the series and where its steps begin. */
static PyObject *
trend_by_steps(PyObject *args, trend_by_step *find)
{
    Py_buffer values, starts;
    if (!PyArg_ParseTuple(args, "y*y*", &values, &starts)) {
        return NULL;
    }
    nt_error err = {.offset = NT_NO_OFFSET};
    nt_status status = NT_ARGUMENT;
    PyObject *found = NULL;
    if (trend_check(&values) == 0 && trend_check(&starts) == 0) {
        found = PyBytes_FromStringAndSize(NULL, starts.len);
    }
    if (found != NULL) {
        status =
            find(values.buf, (size_t)values.len / 8, starts.buf, (size_t)starts.len / 8,
                 (uint64_t *)(void *)PyBytes_AS_STRING(found), &err);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&starts);
    if (status == NT_OK) {
        return found;
    }
    Py_XDECREF(found);
    return nt_py_raise(status, &err);
}

PyDoc_STRVAR(step_floors_doc,
             "step_floors(values, starts, /)\n--\n\n"
             "The least value of each step as 64-bit numbers; `starts` are the rising\n"
             "numbers of the values that steps begin at.");

static PyObject *
trend_floors(PyObject *Py_UNUSED(module), PyObject *args)
{
    return trend_by_steps(args, nt_trend_floors);
}

PyDoc_STRVAR(step_highs_doc,
             "step_highs(values, starts, /)\n--\n\n"
             "The largest value of each step, as `step_floors` has them.");

static PyObject *
trend_highs(PyObject *Py_UNUSED(module), PyObject *args)
{
    return trend_by_steps(args, nt_trend_highs);
}

PyMethodDef nt_py_trend_methods[] = {
    {"find_trend", trend_find, METH_VARARGS, find_trend_doc},
    {"step_floors", trend_floors, METH_VARARGS, step_floors_doc},
    {"step_highs", trend_highs, METH_VARARGS, step_highs_doc},
    {NULL, NULL, 0, NULL},
};
