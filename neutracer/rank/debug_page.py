# SPDX-License-Identifier: Apache-2.0
"""The ranks' report as a page of torch.distributed's debug server."""

from __future__ import annotations

import time
from typing import Any

from torch.distributed.debug import _frontend

from neutracer.rank.digest import RankDigest
from neutracer.rank.report import RanksReport
from neutracer.rank.teller import HANDLER
from neutracer.rank.watch import report_of
from neutracer.render.html import render_html
from neutracer.render.text import render_text

_TEMPLATE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}Memory of all ranks{% endblock %}</h1>{% endblock %}
{% block content %}{{ report | safe }}{% endblock %}
"""


class RanksPage(_frontend.DebugHandler):  # type: ignore[misc]
    """The report on all ranks, as a page and as a periodic dump of the server."""

    def routes(self) -> list[Any]:
        """Where it is."""
        return [_frontend.Route("/neutracer", self._page)]

    def nav_links(self) -> list[Any]:
        """What the server's pages show of it."""
        return [_frontend.NavLink("/neutracer", "Memory (neutracer)")]

    def templates(self) -> dict[str, str]:
        """The page's own template."""
        return {"neutracer.html": _TEMPLATE}

    def dump(self) -> str | None:
        """The report as text, which the server writes at its interval."""
        return render_text(self._report().document()) + "\n"

    def dump_filename(self) -> str:
        """What such a file's name begins with."""
        return "neutracer"

    def _page(self, request: Any) -> bytes:
        report = self._report()
        shown = render_html(report.document(), report.picture())
        page: bytes = request.frontend.render_template("neutracer.html", report=shown)
        return page

    def _report(self) -> RanksReport:
        """Each rank asked now; one that does not answer is a row that says so."""
        _, answers = _frontend.fetch_all(HANDLER, timeout=self.fetch_timeout)
        digests = [_digest(rank, answer) for rank, answer in enumerate(answers)]
        return report_of(digests, time.time())


def _digest(rank: int, answer: Any) -> RankDigest:
    said = str(answer.text)[:200]
    if answer.status_code == 200:
        try:
            return RankDigest.from_bytes(answer.text.encode())
        except ValueError as error:
            said = str(error)
    trouble = f"it did not answer: {said}"
    return RankDigest(source="debug server", rank=rank, trouble=trouble, written_s=time.time())
