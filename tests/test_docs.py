# SPDX-License-Identifier: Apache-2.0
"""The pages name all that is public, their links lead somewhere, and they build."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import neutracer
from neutracer.cli.main import main
from neutracer.cli.setup import environment
from neutracer.overview import overview
from neutracer.render.report import Report
from neutracer.units import format_bytes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "data"
PAGES = sorted(path for path in DOCS.glob("**/*.md"))
BUILT = ROOT / "build" / "docs"

# Kept small, because they lie in the repository.
MOST_PICTURE = 300_000

sys.path.insert(0, str(DOCS / "_ext"))
from notebook_pages import markdown_of  # noqa: E402
from report_schemas import file_of, report_classes, schema_of  # noqa: E402


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS))


def test_api_page_has_each_public_name() -> None:
    page = text_of(DOCS / "reference" / "api.md")
    parts = re.split(r"^\.\. currentmodule:: (\S+)$", page, flags=re.M)[1:]
    told: dict[str, list[str]] = {}
    for module, text in zip(parts[::2], parts[1::2], strict=True):
        told.setdefault(module, []).extend(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.M))
    assert {module: sorted(names) for module, names in told.items()} == {
        "neutracer": sorted(neutracer.__all__),
        "neutracer.reports": sorted(neutracer.reports.__all__),
    }


def test_commands_page_has_each_command() -> None:
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z-]+)(?: |$)", out.getvalue(), re.M)
    told = re.findall(r"^## (\S+)$", text_of(DOCS / "reference" / "commands.md"), re.M)
    assert sorted(told) == sorted(commands)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_pages_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```(?!\{image).*?^```", "", text_of(page), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    links += re.findall(r"^```\{image\} (.*)$", text, re.M)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_contents() -> None:
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", text_of(DOCS / "index.md"), re.M | re.S)
    told = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    pages = [name_of(page).removesuffix(".md") for page in PAGES if page.name != "index.md"]
    assert sorted(told) == sorted(pages)


def test_every_notebook_is_a_page_with_what_it_showed() -> None:
    books = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert [book.stem for book in books] == [
        page.stem for page in PAGES if page.parts[-2] == "notebooks"
    ]
    for path in books:
        page = DOCS / "notebooks" / f"{path.stem}.md"
        assert text_of(page) == f"% notebook: ../../notebooks/{path.name}\n"
        book = json.loads(text_of(path))
        made = markdown_of(book)
        for cell in book["cells"]:
            assert "".join(cell["source"]).rstrip() in made
            for output in cell.get("outputs", []):
                data = output.get("data", {"text/plain": output.get("text")})
                kinds = ("text/html", "image/png", "text/plain")
                shown = next("".join(data[kind]) for kind in kinds if kind in data)
                assert shown.replace("\n", "") in made.replace("\n", "")


def test_pictures_are_small_and_shown() -> None:
    shown = "".join(text_of(page) for page in (*PAGES, ROOT / "README.md"))
    for picture in sorted((DOCS / "pictures").iterdir()):
        assert picture.suffix == ".png"
        assert picture.stat().st_size < MOST_PICTURE
        # A page shows the dark twin of each of its pictures by itself.
        assert f"pictures/{picture.name.replace('_dark.', '.')}" in shown


def test_every_picture_has_its_maker() -> None:
    path = ROOT / "tools" / "pictures.py"
    calls = re.findall(r"^ +save(_figure)?\(\"(\w+)\"", text_of(path), re.M)
    made = {name for _, name in calls} | {f"{name}_dark" for figure, name in calls if figure}
    assert made == {picture.stem for picture in (DOCS / "pictures").iterdir()}


def code_blocks() -> Iterator[Any]:
    """The blocks of Python that look at a bundled recording, or need none."""
    for page in PAGES:
        blocks = re.findall(r"^```python\n(import neutracer\n.*?)^```", text_of(page), re.M | re.S)
        for number, block in enumerate(blocks, 1):
            if any(words in block for words in ("tests/data", "series = ", "phase(", "Printer")):
                yield pytest.param(block, id=f"{name_of(page)}-{number}")


@pytest.mark.parametrize("block", list(code_blocks()))
def test_code_on_pages_runs_as_written(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "mdtp(" in block or "plot_" in block:
        pytest.importorskip("matplotlib")
    for name in ("pandas", "polars"):
        if f"to_{name}" in block:
            pytest.importorskip(name)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()):
        exec(compile(block, "page", "exec"), {})


def test_leaking_page_tells_the_rate() -> None:
    trend = neutracer.leak_trend(DATA / "leak_list.pickle.xz")
    told = re.findall(r"([\d,.]+ [KM]iB) per step", text_of(DOCS / "howto" / "leaking.md"))
    assert told == [format_bytes(round(trend.bytes_per_step))]


def real_reports() -> dict[str, Report]:
    """One report of each schema that bundled recordings can give."""
    frag = neutracer.load(DATA / "frag_default.pickle")
    leak = neutracer.load(DATA / "leak_list.pickle.xz")
    setting = "expandable_segments:True"
    ring: list[Any] = [importlib.import_module("torch").zeros(1024)]
    ring.append(ring)
    reports = [
        environment(neutracer.__version__),
        overview(frag, title="frag_default.pickle"),
        neutracer.report(frag).tree(),
        neutracer.fragmentation_report(frag),
        neutracer.explain(frag),
        neutracer.leak_trend(leak),
        neutracer.diff(frag, leak),
        neutracer.what_if(frag, setting),
        neutracer.what_if(frag),
        neutracer.find_tensor_cycles("cpu"),
        neutracer.why_alive(frag),
        neutracer.notebook_holders(),
    ]
    return {report.schema: report for report in reports}


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    """Where plain data is not what a JSON Schema says; only the words that ours use."""
    if "$ref" in schema:
        name = schema["$ref"]
        if not name.startswith("#"):
            other = next(one for one in report_classes() if file_of(one.schema) == name)
            root = schema_of(other)
            return complaints(value, root, root, at)
        return complaints(value, root["$defs"][name.rpartition("/")[2]], root, at)
    if "anyOf" in schema:
        found = [complaints(value, one, root, at) for one in schema["anyOf"]]
        return min(found, key=len)
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return [] if value in allowed else [f"{at}: {value!r}"]
    kinds = {"object": dict, "array": list, "integer": int, "number": (int, float)}
    kinds |= {"string": str, "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    is_wrong = kind and not isinstance(value, kinds[kind])
    if is_wrong or (isinstance(value, bool) and kind not in ("boolean", None)):
        return [f"{at}: {value!r} is no {kind}"]
    if kind == "object":
        return object_complaints(value, schema, root, at)
    if kind == "array" and "prefixItems" in schema:
        parts = zip(value, schema["prefixItems"], strict=True)
        return [text for part, one in parts for text in complaints(part, one, root, at + "[]")]
    if kind == "array" and "items" in schema:
        return [text for part in value for text in complaints(part, schema["items"], root, at)]
    return []


def object_complaints(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    found = [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    known = schema.get("properties")
    for name, part in value.items():
        if known is not None and name not in known:
            found.append(f"{at}.{name} is not told")
        elif known is not None:
            found += complaints(part, known[name], root, f"{at}.{name}")
        elif "additionalProperties" in schema:
            found += complaints(part, schema["additionalProperties"], root, f"{at}.{name}")
    return found


def test_schemas_describe_real_reports() -> None:
    pytest.importorskip("torch", reason="two of the reports are of tensors")
    schemas = {one.schema: schema_of(one) for one in report_classes()}
    for name, report in real_reports().items():
        plain = report.to_dict()
        assert list(plain) == list(schemas[name]["properties"]), name
        assert complaints(plain, schemas[name], schemas[name], name) == []


def test_schemas_tell_each_field() -> None:
    for report_class in report_classes():
        properties = schema_of(report_class)["properties"]
        silent = [name for name, said in properties.items() if not said.get("description")]
        assert silent == ["schema"], report_class.__name__


class Links(HTMLParser):
    """The anchors of a page of HTML, and where its links go."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text_of(page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        self.links += [value for key in ("href", "src") if (value := given.get(key))]


@pytest.mark.slow
def test_pages_build_without_warnings() -> None:
    for needed in ("sphinx", "furo", "myst_parser"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: it is in the extra 'docs'")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run([*command, str(DOCS), str(BUILT)], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path: Links(path) for path in BUILT.glob("**/*.html")}
    assert len(pages) > len(PAGES)
    for path, page in pages.items():
        for link in page.links:
            assert not link.startswith("//"), f"{path}: {link}"
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path}: {link}"


@pytest.mark.slow
def test_built_pages_load_nothing_from_elsewhere() -> None:
    if not BUILT.exists():
        pytest.skip("the pages are not built: make docs")
    for page in BUILT.glob("**/*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]+)", text_of(page)
        )
        assert [link for link in loaded if urlsplit(link).netloc] == [], page
