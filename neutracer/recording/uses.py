# SPDX-License-Identifier: Apache-2.0
"""First and last uses in a recording: the shim's observer, and what passes the dispatcher unseen.

Operators are observed by the shim. A pointer, an array or a storage that the program takes from a
tensor shows no use any more: its block is lost, with a reason for reports.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.hooks.shim import call, load
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.uses import KEY, NEVER, UNKNOWN, Uses, reasons_text

# ---- Unseen ------------------------------------------------------------------------------

#: Modules whose pointers are used within the call that asks, or compared only.
_AT_ONCE = ("triton.", "torch._inductor.", "torch.nn.modules.rnn", "torch.distributed.fsdp.")

#: Reasons in a file; the others are counted.
_MOST_REASONS = 20


class _Unseen:
    """Replaces functions that pass memory on, for as long as it is on."""

    def __init__(self, module: Any, torch: Any) -> None:
        self.reasons: Counter[str] = Counter()
        self._module, self._torch = module, torch
        # Owner, name, what it had there itself, and what it has now.
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def begin(self) -> None:
        tensor, utils = self._torch.Tensor, sys.modules.get("torch.utils.dlpack")
        for name in ("data_ptr", "untyped_storage", "numpy", "tolist", "__dlpack__"):
            self._replace(tensor, name)
        for owner in (self._torch, utils):
            if hasattr(owner, "to_dlpack"):
                self._replace(owner, "to_dlpack")

    def end(self) -> None:
        for owner, name, before, now in reversed(self._replaced):
            if vars(owner).get(name) is not now:
                continue  # Somebody has replaced it since, and calls it.
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._replaced.clear()

    def _replace(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def observed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self._passed_on(name, tensor)
            return original(tensor, *args, **kwargs)

        self._replaced.append((owner, name, vars(owner).get(name), observed))
        setattr(owner, name, observed)

    def _passed_on(self, name: str, tensor: Any) -> None:
        # The frame that asks, behind `observed`.
        frame = sys._getframe(2)
        asking = str(frame.f_globals.get("__name__", ""))
        if asking.startswith("neutracer."):
            return
        try:
            if name == "numpy" and tensor.device.type != "cpu":
                return  # Refused, or of a copy.
            with self._torch._C.DisableTorchFunctionSubclass():
                address = self._torch._C.TensorBase.untyped_storage(tensor).data_ptr()
        except Exception:
            return  # A tensor without memory, for which the original function speaks.
        lost = name != "tolist" and not asking.startswith(_AT_ONCE)
        if self._module.uses_touch(address, lost) and lost:
            self.reasons[f"{name}() at {_place(frame)}"] += 1


def _place(frame: Any) -> str:
    """The innermost line of the program's own."""
    own = frame
    while own is not None and str(own.f_globals.get("__name__", "")).startswith("torch."):
        own = own.f_back
    own = own or frame
    return f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno}"


#: What an extension that can use a tensor's memory has in its file.
_NEEDLES = (b"libtorch", b"libc10", b"dlpack_c_exchange_api")

# Bytes read at a time, and of them again with the next.
_PART, _OVERLAP = 1 << 24, 64


def _extensions(torch: Any) -> Iterator[str]:
    """Extension modules other than PyTorch's own whose functions may use tensors unseen."""
    own = [os.path.dirname(sys.modules[name].__file__ or "") for name in ("torch", "neutracer")]
    compiled = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if compiled is not None:
        own.append(compiled.cache_dir())  # Its kernels run in regions that the shim observes.
    folders = tuple(os.path.realpath(folder) + os.sep for folder in own)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith((".so", ".pyd")):
            continue
        if name == "neutracer._torch" or os.path.realpath(file).startswith(folders):
            continue
        if any(map(callable, vars(module).values())) and _names_torch(file):
            yield name


@lru_cache(maxsize=1024)
def _names_torch(path: str) -> bool:
    """Looked up once for each file: some have a hundred megabytes."""
    rest = b""
    try:
        with open(path, "rb") as file:
            while part := file.read(_PART):
                rest = rest[-_OVERLAP:] + part
                if any(needle in rest for needle in _NEEDLES):
                    return True
    except OSError:
        return True
    return False


# ---- Alignment ---------------------------------------------------------------------------

# The core's codes of actions that are requests.
_ALLOC, _OOM = 0, 8

#: Requests between a snapshot and the observer's answer.
_MOST_BETWEEN = 1_000


def _shift(trace: array[int], observed: array[int]) -> int | None:
    """How many requests of a trace come before the observed ones; None if they are others.

    The observer began after the trace, or before its first event that is kept, and ends with it
    or a few requests later.
    """
    least, end = len(trace) - len(observed), len(trace)
    if not trace:
        return least
    for shift in range(least, min(least + _MOST_BETWEEN, end)):
        begin = max(shift, 0)
        is_last = trace[-1] == observed[end - 1 - shift]
        if is_last and trace[begin:] == observed[begin - shift : end - shift]:
            return shift
    return None


def _aligned(trace: array[int], found: bytes) -> Uses | None:
    """The uses of a trace's requests, by what the shim found; None if it has seen others."""
    addresses, numbers = array("Q", found)[1::2], array("i", found)
    shift = _shift(trace, addresses)
    if shift is None:
        return None
    uses, last = Uses(), len(trace)
    before = array("i", [UNKNOWN]) * max(shift, 0)
    begin = max(-shift, 0)
    first, later = numbers[4 * begin :: 4], numbers[4 * begin + 1 :: 4]
    moved = array("i", (one + shift if one >= 0 else one for one in first))
    uses.first = (array("i", [NEVER]) + before + moved)[: last + 1]
    uses.last = (array("i", [0]) + before + array("i", (one + shift for one in later)))[: last + 1]
    return uses


def _requests(snap: Snapshot, device: int) -> array[int]:
    events = snap.timeline(device).events
    rows = zip(events.codes("action"), events.codes("addr"), strict=True)
    return array("Q", (0 if code == _OOM else at for code, at in rows if code in (_ALLOC, _OOM)))


# ---- Observing ---------------------------------------------------------------------------


class ObservedUses:
    """Observes the uses of this process's blocks from `begin` to `end`; one at a time."""

    _lock = threading.Lock()
    _now: ObservedUses | None = None

    def __init__(self, torch: Any) -> None:
        self._torch, self._process = torch, os.getpid()
        self._module = load()
        self._unseen = _Unseen(self._module, torch)

    def begin(self) -> ObservedUses:
        """Begin, and return the observer; fails beside another one in this process."""
        with ObservedUses._lock:
            now = ObservedUses._now
            if now is not None and now.is_mine():
                raise UnavailableError(
                    "a second recording of uses at a time", "end the other one first"
                )
            call(self._module.uses_begin)
            ObservedUses._now = self
            self._unseen.begin()
        return self

    def is_mine(self) -> bool:
        """False in a fork's child."""
        return self._process == os.getpid()

    def end(self) -> None:
        """End, once; a fork's child only puts back what was replaced."""
        with ObservedUses._lock:
            if ObservedUses._now is not self:
                return
            ObservedUses._now = None
            self._unseen.end()
            if self.is_mine():
                call(self._module.uses_end)

    def note(self, snap: Snapshot) -> None:
        """Write the uses so far into a snapshot that was just taken."""
        parts, reasons = [], list(self._reasons())
        extensions = sorted(_extensions(self._torch))
        reasons += [f"the extension module {name} may use any tensor" for name in extensions]
        # A snapshot of its own: the first timeline of `snap` is to see the uses.
        trace = Snapshot(snap._native)
        for device in snap.devices:
            uses = self._of(_requests(trace, device), device)
            if uses is None:
                reasons.append(f"the requests of device {device} are not those observed")
                continue
            if extensions:
                uses.first = array("i", [UNKNOWN]) * len(uses.first)
            parts.append(uses.text(device))
        parts.append(reasons_text(reasons))
        snap._native.note_text(KEY, " ".join(filter(None, parts)))

    def _of(self, trace: array[int], device: int) -> Uses | None:
        try:
            return _aligned(trace, self._module.uses_now(device))
        except RuntimeError:
            return None  # Memory ran out.

    def _reasons(self) -> Iterator[str]:
        found = self._unseen.reasons.most_common()
        yield from (text for text, _ in found[:_MOST_REASONS])
        if found[_MOST_REASONS:]:
            yield f"{len(found) - _MOST_REASONS} more"


class UsesOfSteps:
    """Observes a program from its start to the end of some steps.

    A step ends with the first optimizer's step(); the first one, which makes what later ones
    find, does not count.
    """

    def __init__(self, steps: int, observed: Callable[[], object]) -> None:
        """`observed` is called at the end of the last one of `steps`."""
        self._steps, self._observed = steps, observed
        self._uses: ObservedUses | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._hook: Any = None
        self._ended = 0

    def begin(self, torch: Any) -> None:
        """Begin; torch has its optimizers."""
        self._uses = ObservedUses(torch).begin()
        register = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
        self._hook = register(self._stepped)

    def _stepped(self, optimizer: Any, *_: object) -> None:
        """A hook of each optimizer's step, on the program's thread."""
        if self._uses is None or not self._uses.is_mine():
            return
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._ended += 1
        if self._ended > self._steps:
            try:
                self._observed()
            finally:
                self.end()

    def note(self, snap: Snapshot) -> None:
        """As `ObservedUses.note`; nothing after the last step."""
        if self._uses is not None:
            self._uses.note(snap)

    def end(self) -> None:
        """End, once."""
        uses, self._uses = self._uses, None
        if uses is not None:
            self._hook.remove()
            uses.end()
