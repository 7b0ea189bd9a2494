# SPDX-License-Identifier: Apache-2.0
"""Digests in a job's TCPStore: each rank writes its own, anybody reads all of them.

Every call is one exchange with the store's server over a connection of its own, with a timeout.
Nothing waits for another rank, and no collective is called.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from datetime import timedelta
from typing import Any

from neutracer.errors import UnavailableError, pip_install
from neutracer.process.ranks.digest import RankDigest

__all__ = ["RankStore", "address_of", "opened_store", "read_digests"]

_INDEX = "neutracer/1/index"
_ALARM = "neutracer/1/alarm"

# An answer takes microseconds; a server that is gone is known after so many seconds.
_TIMEOUT_S = 3.0

# A thousand ranks are read in a second. Torch waits for ever for an answer to a read that was
# begun, as from a host that has lost its network.
_READ_S = 15.0

# What is asked for at once, so that no answer is larger than some megabytes.
_AT_ONCE = 256


def address_of(torch: Any, *, early: bool) -> tuple[str, int] | None:
    """Host and port of the TCPStore under this process's group, or of its launcher's agent.

    Args:
        torch: The module.
        early: Whether the agent's counts before there is a group.

    Returns:
        The address; None where there is no group yet.

    Raises:
        UnavailableError: The group's store is no TCPStore.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if distributed.is_initialized():
        store = torch.distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if not hasattr(store, "host") or not hasattr(store, "port"):
            kind = type(store).__name__
            raise UnavailableError(
                "a TCPStore under the process group",
                f"its store is a {kind}: initialise the group with env:// or tcp://",
            )
        return str(store.host), int(store.port)
    port = os.environ.get("MASTER_PORT", "")
    if early and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and port.isdecimal():
        return os.environ.get("MASTER_ADDR", "localhost"), int(port)
    return None


def opened_store(host: str, port: int) -> RankStore:
    """A connection of its own to a store.

    Raises:
        UnavailableError: torch is not installed, or nobody answers there.
    """
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise UnavailableError(
            "torch", f"the store of a job speaks torch's own protocol: '{pip_install('torch')}'"
        ) from None
    try:
        # Asked first, because torch tries for minutes, and tells all of it on standard error.
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
        store = TCPStore(
            host,
            port,
            is_master=False,
            timeout=timedelta(seconds=_TIMEOUT_S),
            wait_for_workers=False,
        )
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UnavailableError(
            f"the store {host}:{port}", f"nobody answers there: {said}"
        ) from None
    return RankStore(store)


def read_digests(host: str, port: int) -> list[RankDigest]:
    """What all ranks have told a store, over a connection of its own.

    Raises:
        UnavailableError: torch is not installed, nobody answers there, or not in time.
    """
    found: list[list[RankDigest]] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            found.append(opened_store(host, port).read())
        except BaseException as error:
            failed.append(error)

    # It can't be interrupted, and must not keep this process.
    reader = threading.Thread(target=read, name="neutracer-store", daemon=True)
    reader.start()
    reader.join(_READ_S)
    if found:
        return found[0]
    if failed and (isinstance(failed[0], UnavailableError) or not _is_lost(failed[0])):
        raise failed[0]
    said = str(failed[0]).partition("\n")[0] if failed else f"no answer in {_READ_S:.0f} s"
    raise UnavailableError(f"the store {host}:{port}", f"it has stopped answering: {said}")


def _is_lost(error: BaseException) -> bool:
    """Whether an error is of those that torch raises for a store that is gone."""
    return isinstance(error, (RuntimeError, OSError))


class RankStore:
    """The part of a TCPStore in which ranks keep their digests.

    What its server does not answer raises RuntimeError, as torch's store does.
    """

    def __init__(self, store: Any) -> None:
        """Made by `opened_store`; not by users."""
        self._store = store
        self._known: set[str] = set()

    def write(self, digest: RankDigest) -> int:
        """Put a rank's digest in place of its last one; returns its length in bytes."""
        name = f"{digest.attempt or 0}/{digest.rank or 0}"
        raw = digest.to_bytes()
        self._store.set(f"neutracer/1/{name}", raw)
        if name not in self._known:
            # In the index once it is there: who reads the index may ask for it.
            self._store.append(_INDEX, f"{name}\n")
            self._known.add(name)
        return len(raw)

    def read(self) -> list[RankDigest]:
        """All ranks' last digests, of those that died too; damaged ones are left out."""
        if not self._store.check([_INDEX]):
            return []
        names = sorted(set(self._store.get(_INDEX).decode("ascii", "replace").split()))
        keys = [f"neutracer/1/{name}" for name in names]
        found = []
        for first in range(0, len(keys), _AT_ONCE):
            for raw in self._store.multi_get(keys[first : first + _AT_ONCE]):
                try:
                    found.append(RankDigest.from_bytes(bytes(raw)))
                except ValueError:
                    continue
        return found

    def raise_alarm(self, rank: int | None, attempt: int | None, why: str) -> None:
        """Ask all ranks of an attempt for what they have now; they look twice a second."""
        plain = {"rank": rank, "attempt": attempt or 0, "why": why}
        self._store.set(f"{_ALARM}/{attempt or 0}", json.dumps(plain))

    def alarm(self, attempt: int | None) -> dict[str, Any] | None:
        """What another rank has asked for, or None."""
        key = f"{_ALARM}/{attempt or 0}"
        if not self._store.check([key]):
            return None
        try:
            plain = json.loads(self._store.get(key))
        except ValueError:
            return None
        return plain if isinstance(plain, dict) else None
