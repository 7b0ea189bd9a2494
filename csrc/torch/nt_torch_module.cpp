/* SPDX-License-Identifier: Apache-2.0 */
/* The module `_torch`: Python's calls to the backend. No C++ exception leaves it: each
 * becomes a RuntimeError with its reason. */
#include "nt_torch.hpp"
#include "nt_torch_marks.hpp"
#include "nt_torch_uses.hpp"

#include <cstring>
#include <exception>
#include <string>

#if !defined(NT_TORCH_BUILT_FOR) || !defined(NT_TORCH_BUILD_KEY)
#error "NT_TORCH_BUILT_FOR (torch's version) and NT_TORCH_BUILD_KEY must be defined"
#endif

using namespace neutracer;

namespace
{

constexpr const char *SOURCE_CAPSULE = "neutracer._torch.live_source";

nt_live_source live_source = {};

/* Runs `work` without the GIL; false, with RuntimeError set, if it threw. */
template <typename Work>
bool
without_gil(Work work)
{
    std::string reason;
    bool failed = false;
    PyThreadState *thread = PyEval_SaveThread();
    try {
        work();
    } catch (const std::exception &error) {
        failed = true;
        try {
            reason = error.what();
        } catch (...) {
            reason.clear();
        }
    } catch (...) {
        failed = true;
    }
    PyEval_RestoreThread(thread);
    if (failed) {
        /* c10's errors go on with a C++ stack after the first line. */
        const size_t end = reason.find('\n');
        reason.resize(end == std::string::npos ? reason.size() : end);
        PyErr_SetString(PyExc_RuntimeError, reason.empty()
                                                ? "PyTorch failed without a reason"
                                                : reason.c_str());
    }
    return !failed;
}

template <typename Work>
PyObject *
none_after(Work work)
{
    if (!without_gil(work)) {
        return nullptr;
    }
    Py_RETURN_NONE;
}

/* Adds `value` (a new reference, or NULL after a failure) to a dict. */
bool
put(PyObject *dict, const char *name, PyObject *value)
{
    const bool stored =
        value != nullptr && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return stored;
}

PyDoc_STRVAR(attach_doc, "attach($module, events, /)\n--\n\n"
                         "Attach the tracker, once, with rings of `events` events.");

PyObject *
module_attach(PyObject *, PyObject *argument)
{
    const unsigned long long events = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    return none_after([events] { backend_attach(events); });
}

PyDoc_STRVAR(start_doc,
             "start($module, frames, /)\n--\n\n"
             "Record from now on, with up to `frames` Python frames an event.");

/* The number of frames to keep, once it is known that they are read rightly here; -1
 * with an exception set where it can't be kept. */
long
frames_asked(PyObject *argument)
{
    const long frames = PyLong_AsLong(argument);
    if (frames == -1 && PyErr_Occurred() != nullptr) {
        return -1;
    }
    if (frames < 0 || frames > NT_RING_FRAMES) {
        PyErr_Format(PyExc_ValueError, "frames must be 0 to %d", NT_RING_FRAMES);
        return -1;
    }
    const char *differs = frames == 0 ? nullptr : frames_differ();
    if (differs != nullptr) {
        PyErr_SetString(PyExc_RuntimeError, differs);
        return -1;
    }
    return frames;
}

PyObject *
module_start(PyObject *, PyObject *argument)
{
    const long frames = frames_asked(argument);
    if (frames < 0) {
        return nullptr;
    }
    return none_after([frames] { backend_start(static_cast<unsigned>(frames)); });
}

PyDoc_STRVAR(stop_doc, "stop($module, /)\n--\n\n"
                       "Record nothing until `start`; the tracker stays attached.");

PyObject *
module_stop(PyObject *, PyObject *)
{
    return none_after([] { backend_stop(); });
}

PyDoc_STRVAR(keep_frames_doc, "keep_frames($module, frames, /)\n--\n\n"
                              "Keep another number of frames, without a gap.");

PyObject *
module_keep_frames(PyObject *, PyObject *argument)
{
    const long frames = frames_asked(argument);
    if (frames < 0) {
        return nullptr;
    }
    /* Only what records goes on recording. */
    uint32_t mode = mode_word.load();
    while (mode != 0 && !mode_word.compare_exchange_weak(
                            mode, mode_of(static_cast<unsigned>(frames)))) {
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(watch_doc, "watch_thread($module, /)\n--\n\n"
                        "Follow what the calling thread allocates on the CPU.");

PyObject *
module_watch_thread(PyObject *, PyObject *)
{
    return none_after([] { backend_watch_thread(); });
}

PyDoc_STRVAR(unwatch_doc,
             "unwatch_thread($module, /)\n--\n\n"
             "Leave the calling thread alone again; whether it was watched.");

PyObject *
module_unwatch_thread(PyObject *, PyObject *)
{
    bool watched = false;
    if (!without_gil([&watched] { watched = backend_unwatch_thread(); })) {
        return nullptr;
    }
    return PyBool_FromLong(watched ? 1 : 0);
}

PyObject *
ring_facts()
{
    ring_fact facts[MOST_DEVICES];
    const size_t count = rings_facts(facts);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != nullptr && i < count; i++) {
        PyObject *row = Py_BuildValue("iKK", facts[i].device,
                                      static_cast<unsigned long long>(facts[i].pushed),
                                      static_cast<unsigned long long>(facts[i].kept));
        if (row == nullptr || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

PyDoc_STRVAR(state_doc, "state($module, /)\n--\n\n"
                        "What is attached and what it does, as a dict.");

PyObject *
module_state(PyObject *, PyObject *)
{
    const uint32_t mode = mode_word.load();
    PyObject *dict = PyDict_New();
    if (dict == nullptr) {
        return nullptr;
    }
    bool stored = put(dict, "backend", PyUnicode_FromString(backend_name)) &&
                  put(dict, "attached", PyBool_FromLong(backend_attached())) &&
                  put(dict, "active", PyBool_FromLong(mode != 0)) &&
                  put(dict, "frames", PyLong_FromUnsignedLong(mode_frames(mode))) &&
                  put(dict, "rings", ring_facts());
    const char *name = nullptr;
    uint64_t value = 0;
    for (int i = 0; stored && backend_fact(i, &name, &value); i++) {
        stored = put(dict, name, PyLong_FromUnsignedLongLong(value));
    }
    if (!stored) {
        Py_CLEAR(dict);
    }
    return dict;
}

bool
put_stat(PyObject *dict, const std::string &name, const nt_live_stat &stat)
{
    return put(dict, (name + ".current").c_str(), PyLong_FromLongLong(stat.current)) &&
           put(dict, (name + ".peak").c_str(), PyLong_FromLongLong(stat.peak)) &&
           put(dict, (name + ".allocated").c_str(),
               PyLong_FromLongLong(stat.allocated)) &&
           put(dict, (name + ".freed").c_str(), PyLong_FromLongLong(stat.freed));
}

/* PyTorch's keys of memory_stats(). */
bool
put_stats(PyObject *dict, const nt_live_stats &stats)
{
    static const char *const METRICS[NT_LIVE_METRICS] = {
        "allocation",      "segment",        "active",       "inactive_split",
        "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
        "requested_bytes",
    };
    static const char *const POOLS[NT_LIVE_POOLS] = {"all", "small_pool", "large_pool"};
    for (int metric = 0; metric < NT_LIVE_METRICS; metric++) {
        for (int pool = 0; pool < NT_LIVE_POOLS; pool++) {
            const std::string name = std::string(METRICS[metric]) + "." + POOLS[pool];
            if (!put_stat(dict, name, stats.metric[metric][pool])) {
                return false;
            }
        }
    }
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"num_alloc_retries", stats.num_alloc_retries},
        {"num_ooms", stats.num_ooms},
        {"num_sync_all_streams", stats.num_sync_all_streams},
        {"num_device_alloc", stats.num_device_alloc},
        {"num_device_free", stats.num_device_free},
        {"max_split_size", stats.max_split_size},
    };
    for (const auto &count : counts) {
        if (!put(dict, count.name, PyLong_FromLongLong(count.value))) {
            return false;
        }
    }
    return put_stat(dict, "oversize_allocations", stats.oversize_allocations) &&
           put_stat(dict, "oversize_segments", stats.oversize_segments);
}

PyDoc_STRVAR(
    device_stats_doc,
    "device_stats($module, device, /)\n--\n\n"
    "The figures of torch.cuda.memory_stats(device), or None if they can't be\n"
    "had.");

PyObject *
module_device_stats(PyObject *, PyObject *argument)
{
    const long device = PyLong_AsLong(argument);
    if (device == -1 && PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    nt_live_stats stats;
    int failed = -1;
    const auto number = static_cast<int32_t>(device);
    Py_BEGIN_ALLOW_THREADS;
    failed = live_source.device_stats(nullptr, number, &stats);
    Py_END_ALLOW_THREADS;
    if (failed != 0) {
        Py_RETURN_NONE;
    }
    PyObject *dict = PyDict_New();
    try {
        if (dict != nullptr && !put_stats(dict, stats)) {
            Py_CLEAR(dict);
        }
    } catch (...) {
        Py_CLEAR(dict);
        PyErr_NoMemory();
    }
    return dict;
}

PyDoc_STRVAR(differs_doc, "differs($module, /)\n--\n\n"
                          "What of this torch's allocator is not as it must be, as a "
                          "sentence, or \"\".");

PyObject *
module_differs(PyObject *, PyObject *)
{
    std::string differs;
    if (!without_gil([&differs] { differs = backend_differs(); })) {
        return nullptr;
    }
    return PyUnicode_FromString(differs.c_str());
}

PyDoc_STRVAR(
    set_text_doc,
    "set_text($module, text, /)\n--\n\n"
    "What this thread's events are marked with, on a torch built for the CPU;\n"
    "500 bytes of it at most.");

PyObject *
module_set_text(PyObject *, PyObject *text)
{
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 == nullptr) {
        return nullptr;
    }
    text_set(utf8, static_cast<size_t>(length));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(module_text_doc, "module_text($module, text, /)\n--\n\n"
                              "What ModuleCalls marks a module's events with.");

PyDoc_STRVAR(
    get_text_doc,
    "get_text($module, /)\n--\n\n"
    "What this thread's events are marked with: the module that runs, or what\n"
    "set_text() was given.");

PyObject *
module_get_text(PyObject *, PyObject *)
{
    const mark_text module = marks_now();
    size_t length = module == nullptr ? 0 : module->size();
    const char *text = module == nullptr ? text_now(&length) : module->data();
    return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "replace");
}

PyDoc_STRVAR(uses_begin_doc, "uses_begin($module, /)\n--\n\n"
                             "Observe first and last uses from now on.");

PyObject *
module_uses_begin(PyObject *, PyObject *)
{
    return none_after([] { uses_begin(); });
}

PyDoc_STRVAR(uses_end_doc, "uses_end($module, /)\n--\n\nObserve and keep no uses.");

PyObject *
module_uses_end(PyObject *, PyObject *)
{
    return none_after([] { uses_end(); });
}

PyDoc_STRVAR(
    uses_touch_doc,
    "uses_touch($module, address, lost, /)\n--\n\n"
    "The block there is used now, or unseen from now on; whether there is one.");

PyObject *
module_uses_touch(PyObject *, PyObject *args)
{
    unsigned long long address;
    int lost;
    if (PyArg_ParseTuple(args, "Kp", &address, &lost) == 0) {
        return nullptr;
    }
    return PyBool_FromLong(uses_touch(address, lost != 0) ? 1 : 0);
}

PyDoc_STRVAR(uses_now_doc,
             "uses_now($module, device, /)\n--\n\n"
             "By request the first use, the last use (32 bits) and the address (64).");

PyObject *
module_uses_now(PyObject *, PyObject *argument)
{
    const long device = PyLong_AsLong(argument);
    if (device < 0 || device >= MOST_DEVICES) {
        return PyErr_Occurred() != nullptr ? nullptr : PyBytes_FromString("");
    }
    std::vector<observed_use> found;
    if (!without_gil(
            [&found, device] { found = uses_now(static_cast<int>(device)); })) {
        return nullptr;
    }
    static_assert(sizeof(observed_use) == 16, "what Python unpacks");
    return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(found.data()),
                                     static_cast<Py_ssize_t>(found.size() * 16));
}

PyMethodDef module_methods[] = {
    {"set_text", module_set_text, METH_O, set_text_doc},
    {"get_text", module_get_text, METH_NOARGS, get_text_doc},
    {"module_text", module_text, METH_O, module_text_doc},
    {"attach", module_attach, METH_O, attach_doc},
    {"start", module_start, METH_O, start_doc},
    {"keep_frames", module_keep_frames, METH_O, keep_frames_doc},
    {"stop", module_stop, METH_NOARGS, stop_doc},
    {"watch_thread", module_watch_thread, METH_NOARGS, watch_doc},
    {"unwatch_thread", module_unwatch_thread, METH_NOARGS, unwatch_doc},
    {"state", module_state, METH_NOARGS, state_doc},
    {"device_stats", module_device_stats, METH_O, device_stats_doc},
    {"differs", module_differs, METH_NOARGS, differs_doc},
    {"uses_begin", module_uses_begin, METH_NOARGS, uses_begin_doc},
    {"uses_end", module_uses_end, METH_NOARGS, uses_end_doc},
    {"uses_touch", module_uses_touch, METH_VARARGS, uses_touch_doc},
    {"uses_now", module_uses_now, METH_O, uses_now_doc},
    {nullptr, nullptr, 0, nullptr},
};

/* Nothing of c10 may be used with another torch than the one compiled against. */
bool
torch_fits()
{
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *version =
        torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "__version__");
    PyObject *text = version == nullptr ? nullptr : PyObject_Str(version);
    const char *running = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
    const bool fits = running != nullptr && strcmp(running, NT_TORCH_BUILT_FOR) == 0;
    if (running != nullptr && !fits) {
        PyErr_Format(PyExc_ImportError,
                     "the hooks were built for torch %s, and this is torch %s",
                     NT_TORCH_BUILT_FOR, running);
    }
    Py_XDECREF(text);
    Py_XDECREF(version);
    Py_XDECREF(torch);
    return fits;
}

bool
core_fits()
{
    core = static_cast<const nt_live_api *>(PyCapsule_Import(NT_LIVE_CAPSULE, 0));
    if (core == nullptr) {
        return false;
    }
    if (core->version != NT_LIVE_API_VERSION || core->size != sizeof(nt_live_api)) {
        PyErr_Format(PyExc_ImportError,
                     "the hooks were built for version %d of the core's interface, and "
                     "this core has version %d",
                     NT_LIVE_API_VERSION, static_cast<int>(core->version));
        return false;
    }
    return true;
}

int
module_exec(PyObject *module)
{
    if (!torch_fits() || !core_fits()) {
        return -1;
    }
    try {
        fork_begin();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_ImportError, error.what());
        return -1;
    }
    live_source.version = NT_LIVE_API_VERSION;
    live_source.size = sizeof(nt_live_source);
    live_source.ctx = nullptr;
    common_source(&live_source);
    backend_source(&live_source);
    PyObject *capsule = PyCapsule_New(&live_source, SOURCE_CAPSULE, nullptr);
    if (capsule == nullptr || PyModule_AddObject(module, "live_source", capsule) != 0) {
        Py_XDECREF(capsule);
        return -1;
    }
    PyObject *calls = module_calls_type();
    if (calls == nullptr || PyModule_AddObject(module, "ModuleCalls", calls) != 0) {
        Py_XDECREF(calls);
        return -1;
    }
    const char *refused = frames_refused();
    if (PyModule_AddStringConstant(module, "built_for", NT_TORCH_BUILT_FOR) != 0 ||
        PyModule_AddStringConstant(module, "build_key", NT_TORCH_BUILD_KEY) != 0 ||
        PyModule_AddStringConstant(module, "backend", backend_name) != 0 ||
        PyModule_AddStringConstant(module, "frames_refused",
                                   refused == nullptr ? "" : refused) != 0 ||
        PyModule_AddIntConstant(module, "MOST_FRAMES", NT_RING_FRAMES) != 0) {
        return -1;
    }
    return 0;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(module_exec)},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, nullptr},
};

PyDoc_STRVAR(module_doc, "PyTorch's allocators, followed through c10.");

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_torch", module_doc, 0,       module_methods,
    module_slots,          nullptr,  nullptr,    nullptr,
};

} // namespace

PyMODINIT_FUNC
PyInit__torch(void)
{
    return PyModuleDef_Init(&module_definition);
}
