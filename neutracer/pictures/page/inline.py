# SPDX-License-Identifier: Apache-2.0
"""The page of a snapshot inside a notebook."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from neutracer.render.escape import sentence
from neutracer.render.inline import MOST_INLINE
from neutracer.saving import atomic_file

__all__ = ["PageView"]

# A page in a frame can't look at the notebook around it, and takes for its media query the
# scheme of its frame. Notebooks and sites say theirs in attributes, as for reports (render/html);
# where nobody says one it is the browser's.
_FRAME = "iframe.neutracer-page"
_DARK = (
    "[data-jp-theme-light=false]",
    ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    "[data-theme=dark]",
)
_LIGHT = (
    "[data-jp-theme-light=true]",
    ".vscode-light",
    ".vscode-high-contrast-light",
    "[data-theme=light]",
)
_THEMES = (
    f"<style>{_FRAME}{{color-scheme:light dark}}"
    f"{','.join(f'{host} {_FRAME}' for host in _DARK)}{{color-scheme:dark}}"
    f"{','.join(f'{host} {_FRAME}' for host in _LIGHT)}{{color-scheme:light}}</style>"
)

# Pixels: the findings, and most of the picture under them.
_HEIGHT = 800


@dataclass(frozen=True)
class PageView:
    """A page that shows itself in a notebook; `view` without a path returns it.

    The page runs in a frame of its own that may only run the page's program: it can't reach
    the notebook or the network. A page of more than 1 MB goes into a file in the working
    directory, which is the notebook's folder, and the notebook links to it.

    Attributes:
        html: The page.
        title: Its title.
        origin: The file that was read, which `save` does not replace; "" for none.

    Example:
        >>> import neutracer
        >>> page = neutracer.view("tests/data/frag_default.pickle")
        >>> page
        <PageView of frag_default.pickle: 0.4 MB; .save("out.html") writes it>
    """

    html: str = field(repr=False)
    title: str
    origin: str = field(default="", repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page as a file; it appears whole or not at all.

        Raises:
            ValueError: It is the file that was read.
            OSError: It can't be written.
        """
        with atomic_file(path, self) as file:
            file.write(self._bytes)
        return Path(path)

    @property
    def _bytes(self) -> bytes:
        return self.html.encode("utf-8", "backslashreplace")

    @property
    def _size(self) -> str:
        return f"{len(self._bytes) / 1e6:,.1f} MB"

    def __repr__(self) -> str:
        return f'<PageView of {sentence(self.title)}: {self._size}; .save("out.html") writes it>'

    def _repr_html_(self) -> str:
        source = self._bytes.decode("utf-8").replace("&", "&amp;").replace('"', "&quot;")
        words = (
            f"{escape(sentence(self.title))}, {self._size} in this notebook; "
            f"neutracer.view(snapshot, &quot;out.html&quot;) writes it as a file."
        )
        shown = (
            f'{_THEMES}<iframe class="neutracer-page" sandbox="allow-scripts allow-downloads" '
            f'srcdoc="{source}" title="{escape(self.title)}" '
            f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
            f'<p style="font-size:12px;opacity:.7">{words}</p>'
        )
        return shown if len(shown.encode("utf-8")) <= MOST_INLINE else self._linked()

    def _linked(self) -> str:
        """A link to the page as a file beside the notebook, named after its contents."""
        stem = re.sub(r"[^\w.-]+", "_", self.title, flags=re.ASCII).strip("._")[:60] or "page"
        name = f"{stem}-{hashlib.sha256(self._bytes).hexdigest()[:8]}.html"
        size = f"The page has {self._size}, more than the 1 MB that a notebook is given"
        try:
            if not os.path.exists(name):
                self.save(name)
        except OSError as error:
            why = escape(sentence(error.strerror or str(error)))
            return (
                f"<p>{size}, and can't be written here ({why}): "
                "neutracer.view(snapshot, path) writes it elsewhere.</p>"
            )
        return f'<p>{size}. It is a file beside it: <a href="{name}" target="_blank">{name}</a></p>'
