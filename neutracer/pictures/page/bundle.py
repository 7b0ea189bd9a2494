# SPDX-License-Identifier: Apache-2.0
"""The page's ES modules in one script, which needs no server and no npm.

Each module becomes a function of its own, so that its names stay its own, and hands out
what it exports. The modules keep to three forms: `import { a, b } from "./x.js";`,
`export const`, and comments on lines of their own.

Example:
    >>> script = bundle("units.js")
    >>> "import " in script, "export " in script
    (False, False)
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

__all__ = ["bundle", "part"]

_FOLDER = Path(__file__).parent

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (const (\w+))", re.M)
_COMMENT = re.compile(r"^[ \t]*//.*\n", re.M)
_INDENT = re.compile(r"^[ \t]+", re.M)


@functools.lru_cache(maxsize=32)
def part(name: str) -> str:
    """A file of the page's source."""
    return (_FOLDER / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=4)
def bundle(entry: str, expose: str = "") -> str:
    """The script of an entry module and of what it imports.

    Args:
        entry: The module's file.
        expose: The name of a global that holds the entry's exports; none where empty.

    Raises:
        ValueError: Modules import each other in a circle, or a name that is not there.
    """
    order: list[str] = []
    _collect(entry, (), order)
    modules = "".join(_module(name) for name in order)
    shown = f"globalThis.{expose}={_variable(entry)};" if expose else ""
    return f'(()=>{{"use strict";\n{modules}{shown}}})();'


def _collect(name: str, above: tuple[str, ...], order: list[str]) -> None:
    if name in above:
        raise ValueError(f"a circle of imports: {' -> '.join((*above, name))}")
    if name in order:
        return
    for names, source in _IMPORT.findall(part(name)):
        _collect(source, (*above, name), order)
        missing = set(_words(names)) - {export for _, export in _EXPORT.findall(part(source))}
        if missing:
            raise ValueError(f"{name} imports {', '.join(sorted(missing))}, not in {source}")
    order.append(name)


def _words(names: str) -> list[str]:
    return [word.strip() for word in names.split(",") if word.strip()]


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"


def _module(name: str) -> str:
    text = _COMMENT.sub("", part(name))
    exports = ",".join(export for _, export in _EXPORT.findall(text))
    text = _IMPORT.sub(
        lambda found: f"const {{{','.join(_words(found[1]))}}}={_variable(found[2])};\n", text
    )
    text = _INDENT.sub("", _EXPORT.sub(r"\1", text))
    return f"const {_variable(name)}=(()=>{{{text}return {{{exports}}};}})();\n"
