# SPDX-License-Identifier: Apache-2.0
"""What is imported when: a name's module when the name is asked for, and no sooner."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from forked import Imported

import neutracer
from neutracer import reports
from neutracer.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    """What another Python prints, which has imported nothing of neutracer yet."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT / "tests", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_for_checkers(module: ModuleType) -> dict[str, str]:
    """The names that a type checker sees in a module, with the modules that define them."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(checked.test) == "_typing.TYPE_CHECKING"
    return {
        alias.name: str(node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("place", [neutracer, reports], ids=lambda place: place.__name__)
def test_checkers_see_what_programs_get(place: ModuleType) -> None:
    seen = imported_for_checkers(place)
    others = {"reports": "neutracer"} if place is neutracer else {}
    assert seen == {name: home for home, names in place._MODULES.items() for name in names} | others
    assert set(place.__all__) <= set(seen)
    # A folder that somebody imported is no public name.
    importlib.import_module("neutracer.render.text")
    shown = {name for name in dir(place) if not name.startswith("_")}
    assert shown == {*place.__all__, *others}
    for name, home in seen.items():
        assert getattr(place, name) is getattr(importlib.import_module(home), name)


def documented() -> list[tuple[str, str]]:
    """The public names with the module that the API's page gives each."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    places, module = [], ""
    for directive, name in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", page, re.M):
        if directive == "currentmodule":
            module = name
        else:
            places.append((module, name))
    return places


def test_each_documented_name_can_be_the_first_import() -> None:
    # Names of one home are the same import: one of them comes first, and the others are there.
    script = (
        "import importlib, os, sys\n"
        "def are_there(places):\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        return os.waitpid(child, 0)[1] == 0\n"
        "    try:\n"
        "        for module, name in places:\n"
        "            getattr(importlib.import_module(module), name)\n"
        "    except BaseException:\n"
        "        sys.excepthook(*sys.exc_info())\n"
        "        os._exit(1)\n"
        "    os._exit(0)\n"
        "groups = [[place.split(':') for place in words.split()] for words in sys.argv[1:]]\n"
        "print([places for places in groups if not are_there(places)])\n"
    )
    places = documented()
    homes = {name: home for home, names in neutracer._MODULES.items() for name in names}
    groups: dict[tuple[str, str], list[str]] = {}
    for module, name in places:
        home = homes[name] if module == "neutracer" else ""
        groups.setdefault((module, home), []).append(f"{module}:{name}")
    assert {name for _, name in places} == {*neutracer.__all__, *reports.__all__}
    assert run("-c", script, *map(" ".join, groups.values())) == "[]\n"


def test_names_are_there_at_the_end() -> None:
    script = (
        "import atexit, neutracer\n"
        "file = 'data/frag_default.pickle'\n"
        "def end():\n"
        "    neutracer.explain(file, request='1GiB'), neutracer.view(file)\n"
        "    print(neutracer.what_if(file).recorded.ooms)\n"
        "atexit.register(end)"
    )
    assert run("-c", script) == "1\n"


def test_work_goes_on_where_no_thread_begins_any_more() -> None:
    script = (
        "import atexit, threading\n"
        "from neutracer.whatif.replaying import side_by_side\n"
        "atexit.register(lambda: print(side_by_side(abs, [-1, 2], threading.Event(), id)))"
    )
    assert run("-c", script) == "[1, 2]\n"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="'neutracer' has no attribute 'leek_trend'"):
        neutracer.leek_trend  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="leek_trend"):
        exec("from neutracer import leek_trend")
    with pytest.raises(AttributeError, match=r"'neutracer.reports' has no attribute 'Verdikt'"):
        reports.Verdikt  # type: ignore[attr-defined]  # noqa: B018


def test_import_leaves_diagnoses_for_later() -> None:
    parts = "('neutracer.overview', 'neutracer.oom', 'neutracer.picture', 'neutracer.heap')"
    script = (
        f"import sys, neutracer; print([name for name in sys.modules if name.startswith({parts})])"
    )
    assert run("-c", script) == "[]\n"


def test_star_brings_every_name() -> None:
    script = "from neutracer import *; import neutracer; print(set(neutracer.__all__) - set(dir()))"
    assert run("-c", script) == "set()\n"


@pytest.mark.parametrize("command", ["--version", "report"])
def test_commands_import_no_other(command: str) -> None:
    script = (
        "import sys; from neutracer.cli.main import main\n"
        "try: main([sys.argv[1], '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('neutracer.cli.')))"
    )
    others = [f"neutracer.cli.{COMMANDS[command].module}"] if command in COMMANDS else []
    last = run("-c", script, command).splitlines()[-1]
    assert last == str(sorted(["neutracer.cli.main", "neutracer.cli.parts", *others]))


def test_report_loads_only_what_its_file_asks_for() -> None:
    file = str(ROOT / "tests/data/multi_stream.pickle.xz")
    parts = (
        "neutracer.monitor",
        "neutracer.hooks",
        "neutracer.oom.explain",
        "neutracer.whatif.replaying",
        "neutracer.render.html",
        "rich",
        "hashlib",
        "logging",
        "statistics",
    )
    script = (
        "import sys; from neutracer.cli.main import main\n"
        "main(['report', sys.argv[1]])\n"
        f"print([name for name in sys.modules if name.startswith({parts})])"
    )
    assert run("-c", script, file).splitlines()[-1] == "[]"


def test_watch_for_cycles_loads_no_drawing(with_torch: Imported) -> None:
    script = (
        "import sys, torch, neutracer\n"
        "neutracer.warn_tensor_cycles().remove()\n"
        "ours = [name for name in sys.modules if name.startswith('neutracer.')]\n"
        "print([name for name in ours if name.startswith('neutracer.heap.drawing')], len(ours))"
    )
    done = with_torch.run(script, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    drawing, count = done.stdout.rsplit(maxsplit=1)
    assert drawing == "[]"
    assert int(count) <= 30


def test_each_command_is_listed_and_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = " ".join(capsys.readouterr().out.split())
    for command in COMMANDS:
        assert f" {command} " in listed
        with pytest.raises(SystemExit):
            main([command, "--help"])
        page = capsys.readouterr().out
        assert page.startswith(f"usage: neutracer {command} ")
        assert len(page.splitlines()) > 5
