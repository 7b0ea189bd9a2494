/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_torch_marks.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace neutracer
{

std::atomic<int> marks_wanted{0};

namespace
{

using node_type = torch::autograd::Node;

/* Changes of the text that are remembered of a thread: those of a hundred steps of a
 * model of a thousand modules. Nodes older than these are of no module. */
constexpr size_t MOST_CHANGES = 1 << 18;

/* Threads that have ended whose changes are remembered: graphs may outlive them. */
constexpr size_t MOST_ENDED = 64;

/* The number that PyTorch gives to a node that sums up gradients of a leaf. */
constexpr uint64_t LEAF = UINT64_MAX;

/* What is asked of PyTorch, in a library that is there at run time only: hooks are
 * compiled for releases of which there is nothing but c10. */
struct autograd_functions {
    decltype(&torch::autograd::get_current_node) node;
    decltype(&at::sequence_number::peek) next_number;
    decltype(&at::RecordFunction::currentThreadId) thread;
    int (*pass)(); /* -1 outside of one */
};

autograd_functions autograd = {};

template <typename Function>
void
look_up(void *library, const char *name, Function *out)
{
    *out =
        library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
    if (*out == nullptr) {
        throw std::runtime_error("torch's library does not tell what autograd runs");
    }
}

/* From which number of its nodes on a thread made them for which text. */
struct change {
    uint64_t from;
    mark_text text;
};

/* The changes of one thread, which alone adds to them. Others read. */
class thread_changes
{
  public:
    /* From `from` on it is `text`. Throws std::bad_alloc. */
    void
    add(uint64_t from, mark_text text)
    {
        const std::lock_guard<std::mutex> guard(lock);
        if (!all.empty() && all.back().from >= from) {
            /* No node was made since. */
            all.back().text = text;
            const size_t before = all.size() - 1;
            if (text == (before == 0 ? nullptr : all[before - 1].text)) {
                all.pop_back();
            }
        } else if (text != (all.empty() ? nullptr : all.back().text)) {
            if (all.size() == MOST_CHANGES) {
                all.erase(all.begin(), all.begin() + MOST_CHANGES / 2);
            }
            all.push_back({from, text});
        }
    }

    mark_text
    find(uint64_t number)
    {
        const std::lock_guard<std::mutex> guard(lock);
        const auto later = std::upper_bound(
            all.begin(), all.end(), number,
            [](uint64_t one, const change &other) { return one < other.from; });
        return later == all.begin() ? nullptr : std::prev(later)->text;
    }

  private:
    std::mutex lock;
    std::vector<change> all; /* by `from` */
};

/* A module that runs, in the backward pass of `node`, or in none: only compared. */
struct running_module {
    mark_text text;
    const node_type *node;
};

struct thread_marks {
    std::vector<running_module> running; /* the innermost last */
    std::shared_ptr<thread_changes> changes;
    /* Of the last node with a number, and the backward pass that it ran in. */
    mark_text last = nullptr;
    int last_pass = -1;
    /* The last change is of a node that a backward pass made. */
    bool is_of_pass = false;
    /* The thread that was asked for last. */
    uint64_t other_id = 0;
    std::shared_ptr<thread_changes> other;
};

/* All threads that have changes, by PyTorch's number of a thread. */
struct registry {
    std::mutex lock; /* guards what follows */
    std::unordered_map<uint64_t, std::shared_ptr<thread_changes>> threads;
    std::deque<uint64_t> ended;
    std::unordered_set<std::string> texts;
};

std::atomic<registry *> known{nullptr};

/* Never destroyed: events may still come while the process ends. */
registry &
all_threads()
{
    registry *found = known.load(std::memory_order_acquire);
    if (found == nullptr) {
        auto *made = new registry();
        if (known.compare_exchange_strong(found, made)) {
            return *made;
        }
        delete made;
    }
    return *found;
}

/* What the calling thread knows; nullptr before it is needed, and once the thread ends,
 * when other objects of it may still free memory. */
thread_local thread_marks *mine = nullptr;
thread_local bool is_over = false;

struct thread_end {
    bool is_used = false;

    ~thread_end()
    {
        is_over = true;
        if (is_used && mine != nullptr && mine->changes != nullptr) {
            try {
                registry &all = all_threads();
                const std::lock_guard<std::mutex> guard(all.lock);
                all.ended.push_back(autograd.thread());
                if (all.ended.size() > MOST_ENDED) {
                    all.threads.erase(all.ended.front());
                    all.ended.pop_front();
                }
            } catch (...) {
                /* They stay. */
            }
        }
        delete mine;
        mine = nullptr;
    }
};

thread_local thread_end at_end;

/* nullptr where there is no memory, or the thread ends. */
thread_marks *
here() noexcept
{
    if (mine == nullptr && !is_over) {
        mine = new (std::nothrow) thread_marks();
        at_end.is_used = true;
    }
    return mine;
}

/* The calling thread's changes. Throws std::bad_alloc. */
thread_changes &
own_changes(thread_marks &self)
{
    if (self.changes == nullptr) {
        auto made = std::make_shared<thread_changes>();
        registry &all = all_threads();
        const std::lock_guard<std::mutex> guard(all.lock);
        all.threads[autograd.thread()] = made;
        self.changes = made;
    }
    return *self.changes;
}

/* Those of the thread with this number, or nullptr. */
thread_changes *
changes_of(thread_marks &self, uint64_t id)
{
    if (self.other == nullptr || self.other_id != id) {
        registry &all = all_threads();
        const std::lock_guard<std::mutex> guard(all.lock);
        const auto found = all.threads.find(id);
        if (found == all.threads.end()) {
            return nullptr;
        }
        self.other = found->second;
        self.other_id = id;
    }
    return self.other.get();
}

/* For which text the node that runs was made. Gradients are summed up right behind a
 * node that gave one, by the engine or by a node of the leaf. Throws std::bad_alloc. */
mark_text
text_of_pass(thread_marks &self, const node_type *node)
{
    const int pass = autograd.pass();
    if (node == nullptr || node->sequence_nr() == LEAF) {
        return pass != -1 && pass == self.last_pass ? self.last : nullptr;
    }
    thread_changes *changes = changes_of(self, node->thread_id());
    self.last = changes == nullptr ? nullptr : changes->find(node->sequence_nr());
    self.last_pass = pass;
    return self.last;
}

/* What runs in the thread: a module, or else what the node was made for. */
mark_text
text_now(thread_marks &self, const node_type *node)
{
    const bool is_module = !self.running.empty();
    if (is_module && self.running.back().node == node) {
        return self.running.back().text;
    }
    const mark_text found = text_of_pass(self, node);
    return found == nullptr && is_module ? self.running.back().text : found;
}

/* What runs makes nodes of its own: the last one comes before what is allocated for it.
 * Throws std::bad_alloc. */
void
note_made(thread_marks &self, mark_text text)
{
    const uint64_t next = autograd.next_number();
    own_changes(self).add(next == 0 ? 0 : next - 1, text);
}

} // namespace

void
marks_prepare()
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    autograd_functions found;
    look_up(library, "_ZN5torch8autograd16get_current_nodeEv", &found.node);
    look_up(library, "_ZN2at15sequence_number4peekEv", &found.next_number);
    look_up(library, "_ZN2at14RecordFunction15currentThreadIdEv", &found.thread);
    look_up(library, "_ZN5torch8autograd25get_current_graph_task_idEv", &found.pass);
    autograd = found;
}

mark_text
marks_text(const char *utf8, size_t length)
{
    registry &all = all_threads();
    const std::lock_guard<std::mutex> guard(all.lock);
    /* A set's items stay where they are. */
    return &*all.texts.emplace(utf8, length).first;
}

void
marks_enter(mark_text text)
{
    thread_marks *self = here();
    if (self == nullptr) {
        throw std::bad_alloc();
    }
    const auto node = autograd.node();
    own_changes(*self).add(autograd.next_number(), text);
    self->running.push_back({text, node.get()});
}

void
marks_leave() noexcept
{
    thread_marks *self = here();
    if (self == nullptr || self->running.empty()) {
        return;
    }
    self->running.pop_back();
    /* Also where nothing is wanted any more: what is made from now on is of no module
     * that is over, whoever asks later. */
    try {
        const auto node = autograd.node();
        const mark_text outer = text_now(*self, node.get());
        own_changes(*self).add(autograd.next_number(), outer);
    } catch (...) {
        /* Nodes made now count for the module that is over. */
    }
}

bool
marks_inside() noexcept
{
    return mine != nullptr && !mine->running.empty();
}

mark_text
marks_now() noexcept
{
    if (marks_wanted.load(std::memory_order_relaxed) == 0) {
        return nullptr;
    }
    thread_marks *self = here();
    if (self == nullptr) {
        return nullptr;
    }
    try {
        const auto node = autograd.node();
        const mark_text found = text_now(*self, node.get());
        if ((node || self->is_of_pass) && c10::GradMode::is_enabled()) {
            note_made(*self, found);
            self->is_of_pass = static_cast<bool>(node);
        }
        return found;
    } catch (...) {
        return nullptr;
    }
}

void
marks_forget() noexcept
{
    marks_wanted.store(0);
    /* What other threads may have locked is left behind. */
    known.store(nullptr);
    mine = nullptr;
}

} // namespace neutracer
