# SPDX-License-Identifier: Apache-2.0
"""The ranks' report as a page of torch.distributed's debug server."""

from __future__ import annotations

import time
from typing import Any

from torch.distributed.debug import _frontend

from neutracer.rank.digest import RankDigest
from neutracer.rank.report import RanksReport
from neutracer.rank.watch import HANDLER, report_of
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
        return [_frontend.Route("/neutracer", self._page)]

    def nav_links(self) -> list[Any]:
        return [_frontend.NavLink("/neutracer", "Memory (neutracer)")]

    def templates(self) -> dict[str, str]:
        return {"neutracer.html": _TEMPLATE}

    def dump(self) -> str | None:
        """The report as text, which the server writes periodically."""
        return render_text(self._report().document()) + "\n"

    def dump_filename(self) -> str:
        """The prefix of the dump files' names."""
        return "neutracer"

    def _page(self, request: Any) -> bytes:
        report = self._report()
        shown = render_html(report.document(), report.picture())
        page: bytes = request.frontend.render_template("neutracer.html", report=shown)
        return page

    def _report(self) -> RanksReport:
        """Query each rank; one that does not answer becomes a row with the reason."""
        _, answers = _frontend.fetch_all(HANDLER, timeout=self.fetch_timeout)
        digests = [_digest(rank, answer) for rank, answer in enumerate(answers)]
        return report_of(digests, time.time())


def _digest(rank: int, answer: Any) -> RankDigest:
    reason = str(answer.text)[:200]
    if answer.status_code == 200:
        try:
            return RankDigest.from_bytes(answer.text.encode())
        except ValueError as error:
            reason = str(error)
    trouble = f"it did not answer: {reason}"
    return RankDigest(source="debug server", rank=rank, trouble=trouble, written_s=time.time())
