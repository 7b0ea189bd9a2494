/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_torch_frames.hpp"

#include <frameobject.h>

#if PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x03100000 ||                     \
    defined(Py_GIL_DISABLED)
#define FRAMES_KNOWN 0
#else
#define FRAMES_KNOWN 1
#endif

namespace neutracer
{

#if !FRAMES_KNOWN

const char *
frames_refused() noexcept
{
#if defined(Py_GIL_DISABLED)
    return "frames are not read in an interpreter without the GIL";
#else
    return "frames are read in CPython 3.10 to 3.15 only";
#endif
}

size_t
frames_walk(nt_ring_frame *, size_t) noexcept
{
    return 0;
}

int
frames_describe(uint64_t, nt_ring_code *) noexcept
{
    return -1;
}

const char *
frames_differ() noexcept
{
    return frames_refused();
}

#else

namespace
{

/* The chain of a thread: `first` and `next`; what stands between C and Python, and a
 * frame that is still being built, is passed over by `read`. */
#if PY_VERSION_HEX < 0x030B0000

typedef PyFrameObject frame_view;

inline const frame_view *
first(PyThreadState *thread) noexcept
{
    return thread->frame;
}

inline const frame_view *
next(const frame_view *frame) noexcept
{
    return frame->f_back;
}

inline bool
read(const frame_view *frame, PyCodeObject **code, int *lasti) noexcept
{
    *code = frame->f_code;
    *lasti = frame->f_lasti * 2; /* held in instructions of two bytes */
    return true;
}

#else

/* The head of CPython's _PyInterpreterFrame. */
#if PY_VERSION_HEX < 0x030C0000
struct frame_view {
    PyObject *function, *globals, *builtins, *locals;
    PyCodeObject *code;
    PyObject *object;
    frame_view *previous;
    const char *instruction;
    int stacktop;
    bool is_entry;
    char owner;
};
#elif PY_VERSION_HEX >= 0x030E0000
struct frame_view {
    uintptr_t tagged; /* a code object or None; the two lowest bits are flags */
    frame_view *previous;
    uintptr_t function;
    PyObject *globals, *builtins, *locals;
    PyObject *object;
    const char *instruction;
    void *stackpointer;
    uint16_t return_offset;
    char owner;
};
#else
struct frame_view {
    PyCodeObject *code; /* 3.13: a code object or None */
    frame_view *previous;
    PyObject *function, *globals, *builtins, *locals;
    PyObject *object;
    const char *instruction;
    int stacktop;
    uint16_t return_offset;
    char owner;
};
#endif

constexpr char OWNED_BY_GENERATOR = 1;
constexpr char OWNED_BY_C_STACK = 3; /* from 3.12; what is above it too */

inline PyCodeObject *
code_of(const frame_view *frame) noexcept
{
#if PY_VERSION_HEX >= 0x030E0000
    return reinterpret_cast<PyCodeObject *>(frame->tagged & ~uintptr_t{3});
#else
    return frame->code;
#endif
}

inline const frame_view *
first(PyThreadState *thread) noexcept
{
#if PY_VERSION_HEX >= 0x030D0000
    return reinterpret_cast<const frame_view *>(thread->current_frame);
#else
    return thread->cframe == nullptr
               ? nullptr
               : reinterpret_cast<const frame_view *>(thread->cframe->current_frame);
#endif
}

inline const frame_view *
next(const frame_view *frame) noexcept
{
    return frame->previous;
}

inline bool
read(const frame_view *frame, PyCodeObject **code, int *lasti) noexcept
{
    if (frame->owner >= OWNED_BY_C_STACK || Py_TYPE(code_of(frame)) != &PyCode_Type) {
        return false;
    }
    *code = code_of(frame);
    *lasti = static_cast<int>(frame->instruction - (*code)->co_code_adaptive);
    /* Before the first traceable instruction the frame is being built. */
    return frame->owner == OWNED_BY_GENERATOR ||
           *lasti >= (*code)->_co_firsttraceable * 2;
}

#endif

/* Differs between code objects that lie at one address one after the other. */
inline uint64_t
version_of(const PyCodeObject *code) noexcept
{
#if PY_VERSION_HEX >= 0x030C0000
    const uint64_t counted = code->co_version;
#else
    const uint64_t counted = 0;
#endif
    /* Python's own count is absent before 3.12, and stops where it would wrap. */
    return reinterpret_cast<uintptr_t>(code->co_name) ^
           reinterpret_cast<uintptr_t>(code->co_linetable) << 16 ^
           static_cast<uint64_t>(code->co_firstlineno) << 32 ^ counted << 40;
}

bool
text_of(PyObject *text, nt_ring_text *out) noexcept
{
    if (text == nullptr || !PyUnicode_Check(text)) {
        return false;
    }
#if PY_VERSION_HEX < 0x030C0000
    if (!PyUnicode_IS_READY(text)) {
        return false;
    }
#endif
    out->data = PyUnicode_DATA(text);
    out->length = static_cast<uint32_t>(PyUnicode_GET_LENGTH(text));
    out->width = static_cast<uint32_t>(PyUnicode_KIND(text));
    return true;
}

/* Whether a frame object of Python's is what the walk found. */
bool
same_frame(PyFrameObject *frame, const nt_ring_frame &found) noexcept
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    const bool same = reinterpret_cast<uintptr_t>(code) == found.code;
    Py_DECREF(code);
#if PY_VERSION_HEX >= 0x030B0000
    const int lasti = PyFrame_GetLasti(frame);
#else
    const int lasti = frame->f_lasti * 2;
#endif
    return same && (lasti < 0 ? 0 : lasti) == static_cast<int>(found.lasti);
}

} // namespace

const char *
frames_refused() noexcept
{
    return nullptr;
}

size_t
frames_walk(nt_ring_frame *out, size_t most) noexcept
{
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (thread == nullptr) {
        return 0;
    }
    size_t count = 0;
    for (const frame_view *frame = first(thread); frame != nullptr && count < most;
         frame = next(frame)) {
        PyCodeObject *code = nullptr;
        int lasti = 0;
        if (read(frame, &code, &lasti)) {
            out[count].code = reinterpret_cast<uintptr_t>(code);
            out[count].version = version_of(code);
            /* Below 0 before the first instruction. */
            out[count].lasti = lasti < 0 ? 0 : static_cast<uint32_t>(lasti);
            out[count].unused = 0;
            count++;
        }
    }
    return count;
}

int
frames_describe(uint64_t address, nt_ring_code *out) noexcept
{
    const auto *code = reinterpret_cast<const PyCodeObject *>(address);
    if (!text_of(code->co_name, &out->name) ||
        !text_of(code->co_filename, &out->filename)) {
        return -1;
    }
    out->first_line = code->co_firstlineno;
    out->lines = nullptr;
    out->line_bytes = 0;
    out->format = NT_RING_LINES_NONE;
    PyObject *table = code->co_linetable;
    if (table != nullptr && PyBytes_Check(table)) {
        out->lines = reinterpret_cast<const uint8_t *>(PyBytes_AS_STRING(table));
        out->line_bytes = static_cast<uint32_t>(PyBytes_GET_SIZE(table));
        out->format =
            PY_VERSION_HEX < 0x030B0000 ? NT_RING_LINES_310 : NT_RING_LINES_311;
    }
    return 0;
}

const char *
frames_differ() noexcept
{
    nt_ring_frame found[NT_RING_FRAMES];
    const size_t count = frames_walk(found, NT_RING_FRAMES);
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    const char *differs = nullptr;
    size_t compared = 0;
    while (frame != nullptr && compared < NT_RING_FRAMES && differs == nullptr) {
        if (compared == count || !same_frame(frame, found[compared])) {
            differs = "the frames found differ from those that Python names";
        }
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
        compared++;
    }
    Py_XDECREF(frame);
    if (differs == nullptr && compared != count) {
        differs = "more frames were found than Python names";
    }
    return differs;
}

#endif

} // namespace neutracer
