# SPDX-License-Identifier: Apache-2.0
"""Sphinx directives that show what the program really does and says.

`{output} neutracer ...` runs a command in the folder of the bundled snapshots and shows what
it prints, `{python-output}` a few lines of Python. `{schemas}` shows the fields of every
report, and puts its JSON Schema beside the pages.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from notebook_pages import read_notebook
from report_schemas import file_of, report_classes, schema_of
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"

_SHOWN: dict[str, str] = {}


def printed(command: str) -> str:
    """What a command of neutracer's prints, run among the bundled snapshots."""
    words = shlex.split(command)
    if words[0] != "neutracer":
        raise ValueError(f"{command}: only neutracer's own commands are run")
    return _printed(["-m", *words], command)


def _printed(arguments: list[str], command: str) -> str:
    if command not in _SHOWN:
        environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
        environment |= {"PYTHONIOENCODING": "utf-8", "COLUMNS": "88", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=DATA,
            env=environment,
            capture_output=True,
            encoding="utf-8",
        )
        if done.returncode:
            raise ValueError(f"{command}: {done.stderr}")
        _SHOWN[command] = done.stdout
    return _SHOWN[command]


def _block(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text", classes=["printed"])


class Output(SphinxDirective):
    """A command and what it prints; `:lines: 5-12` shows a part, `:silent:` not the command."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "lines": directives.unchanged,
        "silent": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        command = self.arguments[0]
        lines = printed(command).rstrip().splitlines()
        if "lines" in self.options:
            first, _, last = self.options["lines"].partition("-")
            lines = lines[int(first) - 1 : int(last)]
        if "silent" not in self.options:
            lines = [f"$ {command}", "", *lines]
        return [_block("\n".join(lines))]


class PythonOutput(SphinxDirective):
    """What some lines of Python print, and not the lines."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        return [_block(_printed(["-c", code], code).rstrip())]


class Schemas(SphinxDirective):
    """A section for each report: its schema's name, its fields, the objects in it."""

    def run(self) -> list[nodes.Node]:
        return [self._section(report_class) for report_class in report_classes()]

    def _section(self, report_class: type) -> nodes.section:
        schema = schema_of(report_class)
        name = schema["title"]
        section = nodes.section(ids=[nodes.make_id(name)], names=[name])
        section += nodes.title("", "", nodes.literal(name, name))
        said = nodes.paragraph("", _plain(schema["description"]) + " ")
        target = f"../schemas/{file_of(name)}"
        said += nodes.reference("", "JSON Schema", refuri=target)
        said += nodes.Text(f", of {report_class.__name__}.")
        section += said
        section += _fields(schema["properties"])
        for title, definition in schema["$defs"].items():
            section += nodes.rubric("", title)
            section += nodes.paragraph("", _plain(definition["description"]))
            section += _fields(definition["properties"])
        return section


def _fields(properties: dict[str, Any]) -> nodes.table:
    rows = [(n, words_of(p), p.get("description", "")) for n, p in properties.items()]
    group = nodes.tgroup(cols=3)
    group += [nodes.colspec(colwidth=width) for width in (26, 24, 50)]
    head = nodes.row()
    head += [nodes.entry("", nodes.paragraph("", t)) for t in ("field", "type", "what it is")]
    group += nodes.thead("", head)
    body = nodes.tbody()
    for name, kind, said in rows:
        row = nodes.row()
        row += nodes.entry("", nodes.paragraph("", "", nodes.literal(name, name)))
        row += nodes.entry("", nodes.paragraph("", kind))
        row += nodes.entry("", nodes.paragraph("", _plain(said)))
        body += row
    group += body
    return nodes.table("", group, classes=["schema"])


def _plain(words: str) -> str:
    return words.replace("`", "")


def words_of(kind: dict[str, Any]) -> str:
    """A schema of one value in a few words: "list of Hole", "integer or null"."""
    if "const" in kind:
        return json.dumps(kind["const"])
    if "enum" in kind:
        return " | ".join(json.dumps(one) for one in kind["enum"])
    if "$ref" in kind:
        return kind["$ref"].rpartition("/")[2].removesuffix(".json")
    if "anyOf" in kind:
        return " or ".join(words_of(one) for one in kind["anyOf"])
    if "prefixItems" in kind:
        return "[" + ", ".join(words_of(one) for one in kind["prefixItems"]) + "]"
    if kind.get("items"):
        return "list of " + words_of(kind["items"])
    if kind.get("additionalProperties"):
        return "object of " + words_of(kind["additionalProperties"])
    return {"array": "list"}.get(kind.get("type", "any"), kind.get("type", "any"))


def write_schemas(app: Sphinx, error: Exception | None) -> None:
    """Puts the JSON Schemas beside the built pages."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "schemas"
    folder.mkdir(exist_ok=True)
    for report_class in report_classes():
        schema = schema_of(report_class)
        text = json.dumps(schema, indent=2) + "\n"
        (folder / file_of(schema["title"])).write_text(text, encoding="utf-8")


# Classes that a program makes itself; of others the signature is of no use to a reader.
_MADE = ("MemoryMonitor", "MetricsCollector", "OomFacts")


def hide_signature(app: Sphinx, what: str, name: str, *unused: Any) -> tuple[str, str] | None:
    """Leaves out how an object is made that only neutracer makes."""
    is_hidden = what == "class" and name.rpartition(".")[2] not in _MADE
    return ("", "") if is_hidden else None


def tell_of_live(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list) -> None:
    """`neutracer.live` is an object that is called: what its call says is what is wanted."""
    if name == "neutracer.live":
        called = inspect.getdoc(type(thing).__call__) or ""
        stop = inspect.getdoc(type(thing).stop) or ""
        lines[:] = f"{called}\n\n`live.stop()`: {stop}".splitlines()


class DarkTwins(SphinxTransform):
    """A picture for a light page shows its twin of the name with `_dark` on a dark one."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for picture in list(self.document.findall(nodes.image)):
            path = Path(picture["uri"])
            twin = path.with_stem(f"{path.stem}_dark")
            if "light" not in picture["classes"] or not (folder / twin).is_file():
                continue
            picture["classes"] = ["only-light"]
            dark = picture.copy()
            dark["uri"], dark["classes"] = str(twin), ["only-dark"]
            picture.parent.insert(picture.parent.index(picture) + 1, dark)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("output", Output)
    app.add_directive("python-output", PythonOutput)
    app.add_directive("schemas", Schemas)
    app.add_transform(DarkTwins)
    app.connect("source-read", read_notebook)
    app.connect("autodoc-process-signature", hide_signature)
    # Before napoleon, which makes the sections of it.
    app.connect("autodoc-process-docstring", tell_of_live, priority=400)
    app.connect("build-finished", write_schemas)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
