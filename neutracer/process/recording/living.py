# SPDX-License-Identifier: Apache-2.0
"""What the tensors of this process are, asked from whoever holds them.

A recording that begins in the middle of a program has seen neither its parameters nor its
optimizer's states being made. In the process itself modules and optimizers say which tensors
are theirs. Nobody's Python runs for that: their attributes are read from their dicts, and the
tensors' facts from memory. No tensor is kept.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from neutracer._native import core
from neutracer.errors import NeutracerError
from neutracer.trace.beside import TensorBlocks
from neutracer.trace.snapshot import Snapshot

__all__ = ["ask_tensors", "living_tensors"]

_LOGGER = logging.getLogger("neutracer")


def ask_tensors(snap: Snapshot) -> Snapshot:
    """Note in a snapshot of this process, just taken, what its blocks are to the program."""
    try:
        tensors = living_tensors("cpu" if snap.is_cpu else "cuda")
        snap.beside = replace(snap.beside, tensors=tensors)
    except (NeutracerError, RuntimeError) as error:
        _LOGGER.info("the tensors of this process could not be asked: %s", error)
    return snap


def living_tensors(device_type: str) -> TensorBlocks:
    """By device, the addresses of blocks that are parameters, gradients or optimizer states.

    Modules' buffers count as parameters.

    Args:
        device_type: "cuda" or "cpu", whose device is 0.

    Raises:
        UnavailableError: Tensors can't be read in this interpreter.

    Example:
        >>> import torch
        >>> line = torch.nn.Linear(2, 2)
        >>> living_tensors("cpu")[0][line.weight.data_ptr()]
        'parameter'
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(getattr(torch, "optim", None), "Optimizer"):
        return {}
    core.tensor_prepare()
    found: dict[str, dict[int, Any]] = {"gradient": {}, "optimizer_state": {}, "parameter": {}}
    for category, tensor in _held(torch):
        found[category][id(tensor)] = tensor
    parameters = found["parameter"].values()
    found["gradient"] = {id(one): one for one in _gradients(torch, parameters)}
    told: dict[int, dict[int, str]] = {}
    # Where two are the same memory, the later one says more.
    for category, tensors in found.items():
        for tensor in tensors.values():
            facts = core.tensor_facts(tensor)
            if facts is not None and facts["device_type"] == device_type and facts["data_ptr"]:
                device = max(facts["device_index"], 0)
                told.setdefault(device, {})[facts["data_ptr"]] = category
    return told


def _held(torch: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that modules and optimizers hold, with what they are to them."""
    wanted = (torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter)
    kinds: dict[type, int] = {}
    for one in gc.get_objects():
        kind = kinds.get(type(one))
        if kind is None:
            bases = type.__dict__["__mro__"].__get__(type(one))
            kind = next((at for at, base in enumerate(wanted) if base in bases), -1)
            kinds[type(one)] = kind
        if kind == 0:
            for name in ("_parameters", "_buffers"):
                yield from (("parameter", each) for each in _tensors(_own(one).get(name)))
        elif kind == 1:
            yield from (("optimizer_state", each) for each in _states(_own(one)))
            for group in _listed(_own(one).get("param_groups")):
                if isinstance(group, dict):
                    yield from (("parameter", each) for each in _tensors(group.get("params")))
        elif kind == 2:
            yield from (("parameter", each) for each in _tensors([one]))


def _own(one: Any) -> dict[str, Any]:
    """The attributes that an object itself has."""
    try:
        own = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def _listed(some: Any) -> Iterable[Any]:
    """The members of a plain container, copied: another thread may change it."""
    if isinstance(some, dict):
        return list(dict.values(some))
    return list(some) if isinstance(some, (list, tuple)) else ()


def _tensors(some: Any) -> Iterator[Any]:
    """The tensors in a plain container; of a distributed one, the part that lies here."""
    for one in _listed(some):
        if one is not None:
            yield _own(one).get("_local_tensor", one)


def _states(optimizer: dict[str, Any]) -> Iterator[Any]:
    for state in _listed(optimizer.get("state")):
        for one in _listed(state):
            yield from _tensors(one if isinstance(one, (dict, list, tuple)) else [one])


def _gradients(torch: Any, parameters: Iterable[Any]) -> Iterator[Any]:
    """The gradients of parameters."""
    gradient = torch._C.TensorBase.grad
    for one in parameters:
        facts = core.tensor_facts(one)
        if facts is not None and not facts["has_grad_fn"]:
            yield from _tensors([gradient.__get__(one)])
