# SPDX-License-Identifier: Apache-2.0
"""The commands for coding agents: `neutracer skill`, `capabilities` and `mcp`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import neutracer
from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_max_memory,
    add_output,
    complain,
    complain_of,
    give,
    written,
)
from neutracer.cli.setup import EnvironmentReport, environment
from neutracer.errors import missing
from neutracer.render.document import Document, Table, clean
from neutracer.render.text import write
from neutracer.trace.source import end_progress

_PACKAGE = Path(neutracer.__file__).parent
_SKILL = _PACKAGE / "skill" / "SKILL.md"

# Below a project or a home, where agents look for skills: what most share, and Claude Code's own.
_FOLDERS = (".agents/skills", ".claude/skills")

# ---- Skill -------------------------------------------------------------------------------

_SKILL_EXAMPLE = """example:
  neutracer skill install                  # for the project in this folder
  neutracer skill install --to ~           # for all projects of this user
  neutracer skill install --to team/skills    # a folder of skills itself
  neutracer skill show
"""


def add_skill(commands: Any, summary: str) -> None:
    description = "Installs or shows the instructions by which a coding agent uses neutracer."
    parser = add_command(commands, "skill", summary, description, _SKILL_EXAMPLE)
    parts = parser.add_subparsers(dest="part", metavar="WHAT", required=True)
    description = (
        f"Writes neutracer/SKILL.md into {' and '.join(_FOLDERS)} of a project or a home, and "
        "prints the paths. A file that was changed is kept."
    )
    ending = f"{_SKILL_EXAMPLE}\nexit codes: 0, 2 if a file was changed or can't be written\n"
    install = add_command(parts, "install", "write the skill", description, ending, _install)
    install.add_argument(
        "--to",
        metavar="FOLDER",
        default=".",
        help='the project or home (default: this folder), or a folder named "skills"',
    )
    install.add_argument("--force", action="store_true", help="replace a changed file")
    description = "Prints the skill."
    add_command(parts, "show", "print the skill", description, _SKILL_EXAMPLE, _show)


def _show(options: argparse.Namespace) -> int:
    write(_SKILL.read_text(encoding="utf-8"), sys.stdout)
    return 0


def _install(options: argparse.Namespace) -> int:
    base = Path(options.to)
    if not base.is_dir():
        return complain(f"{options.to}: there is no such folder")
    is_skills = base.resolve().name == "skills"
    folders = [base] if is_skills else [base / folder for folder in _FOLDERS]
    files = [folder / "neutracer" / "SKILL.md" for folder in folders]
    text = _SKILL.read_text(encoding="utf-8")
    try:
        changed = [file for file in files if os.path.lexists(file) and file.read_text() != text]
        if changed and not options.force:
            return complain(f"{changed[0]} differs from this version's skill; --force replaces it")
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not written(str(file), text):
                return FAILED
            write(f"{clean(str(file))}\n", sys.stdout)
    except (OSError, ValueError) as error:
        return complain_of(options.to, error)
    return 0


# ---- Capabilities ------------------------------------------------------------------------

_CAPABILITIES_EXAMPLE = """example:
  neutracer capabilities
  neutracer capabilities --json
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class CapabilitiesReport(EnvironmentReport):
    """What this installation can do, as `neutracer capabilities` prints it.

    Attributes:
        commands: The commands, each with its line in `neutracer --help`.
        schemas: The names of what `--json` prints, each with its version.
        extras: Whether all is there that `pip install 'neutracer[NAME]'` adds; empty where
            neutracer runs from a folder that is not installed.
    """

    schema = "neutracer.capabilities/1"

    commands: dict[str, str]
    schemas: tuple[str, ...]
    extras: dict[str, bool]

    def document(self) -> Document:
        """The report as a document."""
        page = super().document()
        extras = tuple((name, "there" if it else "missing") for name, it in self.extras.items())
        tables = (Table("Commands", tuple(self.commands.items())), *page.blocks)
        schemas = Table("JSON schemas", tuple((name,) for name in self.schemas))
        return Document(page.title, page.facts, (*tables, Table("Extras", extras), schemas))


def capabilities() -> CapabilitiesReport:
    """Look at the installation without importing packages or touching CUDA.

    Example:
        >>> "neutracer.explain/1" in capabilities().schemas
        True
    """
    from neutracer.cli.main import COMMANDS

    found = environment(neutracer.__version__)
    return CapabilitiesReport(
        **{name: getattr(found, name) for name in ("neutracer", "python", "machine", "parts")},
        commands={name: command.summary for name, command in COMMANDS.items()},
        schemas=_schemas(),
        extras=_extras(),
    )


def _schemas() -> tuple[str, ...]:
    """The schemas of all reports, read from the modules: importing them takes seconds."""
    pattern = re.compile(r'^    schema = "(neutracer\.\w+/\d+)"$', re.M)
    texts = (file.read_text(encoding="utf-8") for file in _PACKAGE.rglob("*.py"))
    return tuple(sorted({name for text in texts for name in pattern.findall(text)}))


def _extras() -> dict[str, bool]:
    try:
        own = metadata.metadata("neutracer")
    except metadata.PackageNotFoundError:
        return {}
    needs = own.get_all("Requires-Dist") or []
    return {
        name: all(_is_installed(need) for need in needs if re.search(f"extra == .{name}.$", need))
        for name in own.get_all("Provides-Extra") or []
    }


def _is_installed(need: str) -> bool:
    """Whether there is a package by the name of a requirement, or this Python needs none."""
    name, later = re.split(r"[^\w.-]", need, maxsplit=1)
    older = re.search(r"python_version < .3\.(\d+)", later)
    if older and sys.version_info >= (3, int(older[1])):
        return True
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def add_capabilities(commands: Any, summary: str) -> None:
    description = (
        "Lists the commands, the schemas of their JSON, and what this build can do on this machine."
    )
    parser = add_command(
        commands, "capabilities", summary, description, _CAPABILITIES_EXAMPLE, _capabilities
    )
    add_output(parser)


def _capabilities(options: argparse.Namespace) -> int:
    return give([capabilities()], options)


# ---- MCP ---------------------------------------------------------------------------------

_MCP_EXAMPLE = """example:
  neutracer mcp reports                     # a client starts this, and asks over standard input
  neutracer mcp --allow-rehearse project    # also run its programs, on fake tensors

exit codes: 0, 2 if a root does not exist or the extra "mcp" is missing
"""


def add_mcp(commands: Any, summary: str) -> None:
    description = (
        "Serves the questions about snapshots as tools of the Model Context Protocol, on standard "
        "input and output. It reads only the given files and folders, and writes nothing."
    )
    parser = add_command(commands, "mcp", summary, description, _MCP_EXAMPLE, _mcp)
    parser.add_argument("roots", nargs="+", metavar="ROOT", help="a folder or file to read")
    parser.add_argument(
        "--allow-rehearse",
        action="store_true",
        help="add the tool that rehearses programs below the roots: it runs their code",
    )
    add_max_memory(parser)


def _mcp(options: argparse.Namespace) -> int:
    for root in options.roots:
        if not os.path.exists(root):
            return complain(f"{root}: there is no such file or folder")
    try:
        from neutracer.integrations.mcp import server
    except ImportError as error:
        return complain(str(missing((error.name or "mcp").partition(".")[0])))
    end_progress()
    server(options.roots, rehearse=options.allow_rehearse).run("stdio")
    return 0
