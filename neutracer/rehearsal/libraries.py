# SPDX-License-Identifier: Apache-2.0
"""Libraries that take another way where tensors are fake, since they think of a compiler or of a
subclass: in a rehearsal they take that of a real run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from neutracer.process.recording.imports import when_imported

__all__ = ["as_real"]

#: Functions that say whether a tensor is fake. By transformers' it makes masks for attention
#: which a real run leaves out, and with a mask repeats keys and values for every head.
_ASKED = (("transformers.utils.import_utils", "is_fake_tensor"),)

#: Lists of the types of tensors for which optimizers, and the clipping of gradients, use operators
#: on lists: by default on a card, with temporaries as large as all parameters together.
_TYPES = (
    ("torch.optim.optimizer", "_foreach_supported_types"),
    ("torch.utils._foreach_utils", "_foreach_supported_types"),
)


def _no(tensor: object) -> bool:
    return False


@contextmanager
def as_real() -> Iterator[None]:
    """Libraries, whenever they are imported, take fake tensors for real ones."""
    with ExitStack() as stack:

        def answer(module: str, name: str) -> None:
            found: Any = importlib.import_module(module)
            plain = getattr(found, name, None)
            if plain is not None:
                stack.callback(setattr, found, name, plain)
                setattr(found, name, _no)

        for name, types in _TYPES:
            # In place: others add types of their own to it, which stay.
            known = getattr(importlib.import_module(name), types)
            known.append(FakeTensor)
            stack.callback(known.remove, FakeTensor)
        for one in _ASKED:
            stack.callback(when_imported(one[0], partial(answer, *one)))
        yield
