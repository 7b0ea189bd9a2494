# SPDX-License-Identifier: Apache-2.0
"""PyTorch's debug server, as it is, with a page of ours."""

from __future__ import annotations

import importlib
import sys
import urllib.error
import urllib.request
from pathlib import Path
from socket import socket

import pytest
from forked import Imported
from rank_job import RankJob

import neutracer

for name in ("jinja2", "tabulate", "requests"):
    pytest.importorskip(name, reason=f"PyTorch's debug server needs {name}")
try:
    importlib.import_module("torch.distributed.debug._frontend")
except (ImportError, AttributeError):
    pytest.skip("this torch has no debug server", allow_module_level=True)

SERVED = """
from torch.distributed import debug

assert watch.no_debug_page == ""
debug.start_debug_server(
    port=PORT,
    start_method="spawn",
    handlers=[neutracer.debug_server_page()],
    dump_dir=os.environ["OUT"] + "/dumps",
    dump_interval=1.0,
    enabled_dumps={"neutracer"},
)
kept = torch.zeros(8 << 20) if rank == 1 else None
while True:
    step()
    time.sleep(0.05)
"""


def test_page_and_dump_show_all_ranks(with_torch: Imported, tmp_path: Path) -> None:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    program = SERVED.replace("PORT", str(port))

    with RankJob(with_torch, tmp_path, program, guarded=True) as job:

        def page() -> str | None:
            try:
                url = f"http://localhost:{port}/neutracer"
                with urllib.request.urlopen(url, timeout=20) as answer:
                    text: str = answer.read().decode()
            except (urllib.error.URLError, OSError):
                return None
            return text if "32." in text else None

        text = job.until(page)
        assert "Memory (neutracer)" in text
        assert "rank 1" in text
        assert "more at its peak than the other rank" in text

        def dumped() -> str | None:
            files = sorted((job.out / "dumps").glob("neutracer_*.txt"))
            return files[-1].read_text() if files else None

        assert "rank 1" in job.until(dumped)


def test_page_without_a_server_says_what_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neutracer.rank.debug_page", None)
    with pytest.raises(neutracer.UnavailableError, match=r"torch 2\.11"):
        neutracer.debug_server_page()
