/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_torch_uses.hpp"
#include "nt_torch.hpp"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

namespace neutracer
{

std::atomic<bool> uses_on{false};

namespace
{

constexpr int32_t NEVER = -1, UNKNOWN = -2;

/* A request, counted from 1 on its device. */
struct block {
    int32_t device, request;
};

struct request_uses {
    observed_use use;
    uint64_t maker; /* the outermost operator that it was requested in, or 0 */
    /* An operator took or gave it as a tensor, or it ended within one. Others belong to
     * libraries, which use them unseen. */
    bool is_known;
};

struct device_uses {
    std::vector<request_uses> requests;
    int32_t epoch = 0; /* how many there were when all that was alive was used last */

    int32_t
    count() const noexcept
    {
        return static_cast<int32_t>(requests.size());
    }
};

/* Blocks that are alive by their addresses: open addressing, at most half full. */
class block_table
{
  public:
    const block *
    find(uint64_t address) const noexcept
    {
        const slot &found = slots[place_of(address)];
        return found.address == 0 ? nullptr : &found.one;
    }

    /* Throws std::bad_alloc. */
    void
    set(uint64_t address, block one)
    {
        if (2 * (count + 1) > slots.size()) {
            std::vector<slot> before(2 * slots.size());
            before.swap(slots);
            for (const slot &each : before) {
                if (each.address != 0) {
                    slots[place_of(each.address)] = each;
                }
            }
        }
        slot &found = slots[place_of(address)];
        count += found.address == 0;
        found = {address, one};
    }

    void
    remove(uint64_t address) noexcept
    {
        size_t hole = place_of(address);
        if (slots[hole].address == 0) {
            return;
        }
        count--;
        slots[hole] = slot{};
        for (size_t at = next(hole); slots[at].address != 0; at = next(at)) {
            /* What the hole would hide moves into it. */
            const slot moved = std::exchange(slots[at], slot{});
            slots[place_of(moved.address)] = moved;
        }
    }

    template <typename Each>
    void
    for_each(Each each) const
    {
        for (const slot &one : slots) {
            if (one.address != 0) {
                each(one.one);
            }
        }
    }

  private:
    struct slot {
        uint64_t address = 0;
        block one = {};
    };

    size_t
    next(size_t at) const noexcept
    {
        return (at + 1) & (slots.size() - 1);
    }

    /* Where an address is, or would be. */
    size_t
    place_of(uint64_t address) const noexcept
    {
        /* Fibonacci hashing: addresses are multiples of 64 or more. */
        size_t at = (address * 0x9E3779B97F4A7C15u >> 32) & (slots.size() - 1);
        while (slots[at].address != 0 && slots[at].address != address) {
            at = next(at);
        }
        return at;
    }

    std::vector<slot> slots = std::vector<slot>(1 << 12); /* a power of two */
    size_t count = 0;
};

/* What an operator does with its arguments. */
struct operator_facts {
    std::string name;
    uint64_t looked_at = 0; /* a bit for each argument whose memory it leaves alone */
    /* Not a name that stands around operators, such as a node's of autograd. */
    bool is_operator = false;
    bool is_region = false; /* runs kernels that the dispatcher does not see */
    bool is_collective = false;
};

struct uses_state {
    std::mutex lock; /* guards what follows; taken after a backend's, never before */
    block_table alive;
    device_uses devices[MOST_DEVICES];
    /* By the place of the name, which another operator may have had before. */
    std::unordered_map<const char *, operator_facts> operators;
    uint64_t session = 0;
    uint64_t begun = 0;     /* outermost operators */
    bool is_broken = false; /* memory ran out */
    std::vector<at::CallbackHandle> callbacks;
};

/* Never destroyed: operators may still run while the process ends. */
uses_state &state = *new uses_state();

struct frame {
    const at::RecordFunction *function; /* only compared */
    size_t used;                        /* where its blocks begin */
    bool is_region;
};

/* The operators that run in a thread, the innermost last. */
struct thread_uses {
    uint64_t session = 0;
    std::vector<frame> frames;
    std::vector<block> used; /* of the frames */
    std::vector<block> made; /* requested since the outermost operator began */
    bool is_capturing = false;
};

thread_local thread_uses here;
/* The number of the outermost operator of the calling thread, or 0: allocators are
 * called when `here` is gone, too. */
thread_local uint64_t outermost = 0;

/* ---- blocks: all of it with the lock --------------------------------------------- */

request_uses &
request_of(block one) noexcept
{
    return state.devices[one.device].requests[static_cast<size_t>(one.request - 1)];
}

/* What makes a block, with all its parts, does not use it yet. */
void
use(block one, uint64_t maker) noexcept
{
    request_uses &found = request_of(one);
    const int32_t now = state.devices[one.device].count();
    if (found.use.first == NEVER && (maker == 0 || found.maker != maker)) {
        found.use.first = now;
    }
    found.use.last = now;
    found.is_known = true;
}

void
lose(block one) noexcept
{
    request_of(one).use.first = UNKNOWN;
}

/* Applies the last epoch to a block that was alive then. Which of several was the first
 * use is not known: none comes before the block is made. */
void
settle(block one) noexcept
{
    observed_use &found = request_of(one).use;
    const int32_t epoch = state.devices[one.device].epoch;
    if (one.request <= epoch) {
        found.first = found.first == UNKNOWN ? UNKNOWN : one.request;
        found.last = std::max(found.last, epoch);
    }
}

/* Everything that is alive is used now. */
void
begin_epoch() noexcept
{
    for (device_uses &device : state.devices) {
        device.epoch = device.count();
    }
}

const block *
find(uint64_t address) noexcept
{
    return address == 0 ? nullptr : state.alive.find(address);
}

/* ---- operators ------------------------------------------------------------------- */

/* They make a tensor like another one, or the same memory in another shape. */
constexpr const char *LOOKERS[] = {
    "empty_like",    "zeros_like",        "ones_like", "full_like",
    "rand_like",     "randn_like",        "new_empty", "randint_like",
    "new_zeros",     "new_empty_strided", "new_ones",  "new_full",
    "device",        "is_same_size",      "is_pinned", "_unsafe_view",
    "record_stream",
};

/* Compiled code that runs kernels of its own, by the beginning of its name. */
constexpr const char *REGIONS[] = {
    "## Call CompiledFxGraph",
    "Torch-Compiled Region",
    "CompiledFunctionBackward",
    "torch::autograd::CompiledAutograd",
};

bool
starts_with(const char *text, const char *begin) noexcept
{
    return std::strncmp(text, begin, std::strlen(begin)) == 0;
}

bool
is_region(const at::RecordFunction &function) noexcept
{
    if (function.scope() == at::RecordScope::TORCHSCRIPT_FUNCTION) {
        return true;
    }
    return std::any_of(
        std::begin(REGIONS), std::end(REGIONS),
        [&function](const char *name) { return starts_with(function.name(), name); });
}

/* The arguments that a schema hands on as views, or all of an operator that looks. */
uint64_t
looked_at(const c10::FunctionSchema &schema)
{
    const std::string &name = schema.name();
    const std::string base = name.substr(name.find("::") + 2);
    const auto is_it = [&base](const char *one) { return base == one; };
    if (starts_with(name.c_str(), "aten::") &&
        std::any_of(std::begin(LOOKERS), std::end(LOOKERS), is_it)) {
        return ~uint64_t{0};
    }
    uint64_t found = 0;
    for (size_t i = 0; i < std::min<size_t>(schema.arguments().size(), 64); i++) {
        const c10::AliasInfo *alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && !alias->isWrite()) {
            found |= uint64_t{1} << i;
        }
    }
    return found;
}

const operator_facts &
facts_of(const at::RecordFunction &function)
{
    operator_facts &found = state.operators[function.name()];
    if (found.name != function.name()) {
        found = operator_facts{};
        found.is_region = is_region(function);
        found.is_collective = starts_with(function.name(), "c10d::");
        const auto schema = function.operator_schema();
        found.is_operator = schema.has_value();
        found.looked_at = schema.has_value() ? looked_at(*schema) : 0;
        found.name = function.name();
    }
    return found;
}

/* Calls `each` with the address of each storage in a value. */
template <typename Each>
void
storages_of(const at::TensorImpl *tensor, Each each)
{
    if (tensor->is_sparse()) {
        const auto *sparse = static_cast<const at::SparseTensorImpl *>(tensor);
        storages_of(sparse->indices().unsafeGetTensorImpl(), each);
        storages_of(sparse->values().unsafeGetTensorImpl(), each);
    } else if (tensor->layout() == at::kSparseCsr ||
               tensor->layout() == at::kSparseCsc ||
               tensor->layout() == at::kSparseBsr ||
               tensor->layout() == at::kSparseBsc) {
        const auto *sparse = static_cast<const at::SparseCsrTensorImpl *>(tensor);
        storages_of(sparse->compressed_indices().unsafeGetTensorImpl(), each);
        storages_of(sparse->plain_indices().unsafeGetTensorImpl(), each);
        storages_of(sparse->values().unsafeGetTensorImpl(), each);
    } else if (tensor->unsafe_storage()) {
        /* What is copied when it is written stays as it is. */
        c10::StorageImpl *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
        each(reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get()));
    }
}

/* Whether all that is in a value could be looked at. */
template <typename Each>
bool
storages_in(const c10::IValue &value, Each each)
{
    bool is_seen = true;
    if (value.isTensor()) {
        storages_of(value.unsafeToTensorImpl(), each);
    } else if (value.isList()) {
        for (const c10::IValue &one : value.toListRef()) {
            is_seen &= storages_in(one, each);
        }
    } else if (value.isTuple()) {
        for (const c10::IValue &one : value.toTupleRef().elements()) {
            is_seen &= storages_in(one, each);
        }
    } else {
        is_seen = !(value.isObject() || value.isCapsule() || value.isGenericDict() ||
                    value.isPyObject());
    }
    return is_seen;
}

/* Uses what an operator is given, and notes it for its end. */
void
take_inputs(thread_uses &mine, const at::RecordFunction &function,
            const operator_facts &facts)
{
    /* On the CPU threads of a collective read later. */
    const bool is_lost = mine.is_capturing || (facts.is_collective && !NT_TORCH_CUDA);
    const auto take = [&mine, is_lost, maker = outermost](uint64_t address) {
        const block *found = find(address);
        if (found != nullptr) {
            use(*found, maker);
            mine.used.push_back(*found);
            if (is_lost) {
                lose(*found);
            }
        }
    };
    const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    bool is_seen = true;
    for (size_t i = 0; i < inputs.size(); i++) {
        if (i >= 64 || (facts.looked_at >> i & 1) == 0) {
            is_seen &= storages_in(inputs[i], take);
        }
    }
    if (!is_seen && !facts.is_collective) {
        /* An object of a library may hold tensors. */
        begin_epoch();
    }
}

void
enter(thread_uses &mine, const at::RecordFunction &function, bool is_region)
{
    if (mine.session != state.session) {
        mine = thread_uses{};
        mine.session = state.session;
    }
    if (mine.frames.empty()) {
        mine.made.clear();
        outermost = ++state.begun;
        mine.is_capturing = backend_captures();
    }
    mine.frames.push_back({&function, mine.used.size(), is_region});
    if (is_region) {
        begin_epoch();
    }
}

void
leave(thread_uses &mine) noexcept
{
    const frame ended = mine.frames.back();
    mine.frames.pop_back();
    /* Outputs and scratch memory were requested since: kernels run after that. */
    const uint64_t maker = outermost;
    for (size_t i = ended.used; i < mine.used.size(); i++) {
        use(mine.used[i], maker);
    }
    mine.used.resize(ended.used);
    if (ended.is_region) {
        begin_epoch();
    }
    if (!mine.frames.empty()) {
        return;
    }
    for (const block one : mine.made) {
        observed_use &found = request_of(one).use;
        if (found.first == NEVER) {
            found.last = state.devices[one.device].count();
        }
    }
    mine.made.clear();
    outermost = 0;
}

/* Runs `work` with the lock, if uses are observed. PyTorch's errors go first: memory
 * that runs out here is told at the end. */
template <typename Work>
void
observing(Work work) noexcept
{
    if (!uses_on.load(std::memory_order_relaxed)) {
        return;
    }
    uses_state &all = state;
    const std::lock_guard<std::mutex> guard(all.lock);
    try {
        if (uses_on.load() && !all.is_broken) {
            work();
        }
    } catch (...) {
        all.is_broken = true;
    }
}

std::unique_ptr<at::ObserverContext>
on_begin(const at::RecordFunction &function)
{
    observing([&function] {
        const operator_facts &facts = facts_of(function);
        if (facts.is_operator || facts.is_region) {
            thread_uses &mine = here;
            enter(mine, function, facts.is_region);
            take_inputs(mine, function, facts);
        }
    });
    return nullptr;
}

void
on_end(const at::RecordFunction &function, at::ObserverContext *)
{
    observing([&function] {
        thread_uses &mine = here;
        /* One that began before has no frame, nor has a name around operators. */
        if (mine.session != state.session || mine.frames.empty() ||
            mine.frames.back().function != &function) {
            return;
        }
        for (const c10::IValue &value : function.outputs()) {
            (void)storages_in(value, [](uint64_t address) {
                const block *found = find(address);
                if (found != nullptr) {
                    request_of(*found).is_known = true;
                }
            });
        }
        leave(mine);
    });
}

/* Ranges and nodes of autograd, of which compiled code is a region. */
std::unique_ptr<at::ObserverContext>
on_range_begin(const at::RecordFunction &function)
{
    if (is_region(function)) {
        observing([&function] { enter(here, function, true); });
    }
    return nullptr;
}

void
on_range_end(const at::RecordFunction &function, at::ObserverContext *context)
{
    if (is_region(function)) {
        on_end(function, context);
    }
}

void
forget(uses_state &all)
{
    all.alive = block_table{};
    for (device_uses &device : all.devices) {
        device = device_uses{};
    }
    all.session++;
    all.is_broken = false;
}

} // namespace

void
uses_note_request(int device, uint64_t address) noexcept
{
    observing([device, address] {
        if (device < 0 || device >= MOST_DEVICES) {
            return;
        }
        device_uses &mine = state.devices[device];
        const block one = {device, mine.count() + 1};
        const bool is_here = outermost != 0 && here.session == state.session;
        const uint64_t maker = is_here ? outermost : 0;
        mine.requests.push_back({{NEVER, one.request, address}, maker, false});
        if (address == 0) {
            return;
        }
        state.alive.set(address, one);
        if (is_here) {
            here.made.push_back(one);
            if (here.is_capturing) {
                lose(one);
            }
        }
    });
}

void
uses_note_free(uint64_t address) noexcept
{
    observing([address] {
        const block *found = find(address);
        if (found == nullptr) {
            return;
        }
        settle(*found);
        if (outermost != 0) {
            /* Scratch memory of an operator, or of compiled code. */
            use(*found, outermost);
        }
        state.alive.remove(address);
    });
}

bool
uses_touch(uint64_t address, bool lost) noexcept
{
    bool is_there = false;
    observing([address, lost, &is_there] {
        const block *found = find(address);
        is_there = found != nullptr;
        if (is_there) {
            lost ? lose(*found) : use(*found, 0);
        }
    });
    return is_there;
}

std::vector<observed_use>
uses_now(int device)
{
    uses_state &all = state;
    const std::lock_guard<std::mutex> guard(all.lock);
    if (all.is_broken) {
        throw std::bad_alloc();
    }
    all.alive.for_each(settle);
    std::vector<observed_use> found;
    for (const request_uses &one : all.devices[device].requests) {
        found.push_back(one.use);
        if (!one.is_known) {
            found.back().first = UNKNOWN;
        }
    }
    return found;
}

void
uses_begin()
{
    uses_end();
    backend_attach_marks();
    uses_state &all = state;
    const std::lock_guard<std::mutex> guard(all.lock);
    using at::RecordScope;
    uses_on.store(true);
    all.callbacks.push_back(at::addGlobalCallback(
        at::RecordFunctionCallback(on_begin, on_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({RecordScope::FUNCTION, RecordScope::TORCHSCRIPT_FUNCTION})));
    all.callbacks.push_back(at::addGlobalCallback(
        at::RecordFunctionCallback(on_range_begin, on_range_end)
            .scopes({RecordScope::USER_SCOPE, RecordScope::BACKWARD_FUNCTION})));
}

void
uses_end()
{
    uses_state &all = state;
    const std::lock_guard<std::mutex> guard(all.lock);
    uses_on.store(false);
    for (const at::CallbackHandle one : std::exchange(all.callbacks, {})) {
        at::removeCallback(one);
    }
    forget(all);
}

void
uses_lock() noexcept
{
    state.lock.lock();
}

void
uses_unlock() noexcept
{
    state.lock.unlock();
}

} // namespace neutracer
