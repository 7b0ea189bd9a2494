# SPDX-License-Identifier: Apache-2.0
"""SQL over the tables of a snapshot, in a process of its own that can't write and ends in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb

from neutracer.cli.parts import without_history_warning
from neutracer.render.document import clean, shorten_right
from neutracer.trace.snapshot import load
from neutracer.trace.table import Table

# How long a statement may run. DuckDB's interrupt() does not end one long call of a function; the
# kernel's alarm does.
_MOST_S = 10

# What is shown of a result.
_MOST_ROWS = 1_000
_MOST_CELL = 200


def query(path: str, statement: str, device: int | None = None) -> list[str]:
    """The result of a SELECT over the tables of a snapshot.

    Args:
        path: The snapshot.
        statement: One SELECT over `segments`, `blocks`, `events`, `annotations` and `allocations`.
        device: The device of `allocations`; None is the only one.

    Returns:
        Lines of columns between tabs: their names, the rows, and a last line if there are more.

    Raises:
        ValueError: It is no SELECT, would read a file, is wrong, or ran too long.

    Example:
        >>> query("tests/data/frag_default.pickle", "SELECT count(*) AS n FROM events")
        ['n', '2375']
    """
    # Its input, not its arguments, which other users may see; from the package's own folder, so
    # that no module of the folder at work is imported.
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        cwd=Path(__file__).parents[2],
        input=json.dumps([os.path.abspath(path), statement, device]),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode == -signal.SIGALRM:
        raise ValueError(f"the statement was ended: it ran longer than {_MOST_S} s")
    if done.returncode:
        lines = done.stderr.splitlines() or [f"the statement failed ({done.returncode})"]
        raise ValueError(lines[-1].partition("Error: ")[2] or lines[-1])
    found: list[str] = json.loads(done.stdout)
    return found


def _answer(path: str, statement: str, device: int | None) -> list[str]:
    with without_history_warning():
        snap = load(path)
    tables: dict[str, Callable[[], Table]] = {
        "segments": lambda: snap.segments,
        "blocks": lambda: snap.blocks,
        "events": lambda: snap.events,
        "annotations": lambda: snap.annotations,
        "allocations": lambda: snap.timeline(device).allocations,
    }
    try:
        return _rows(tables, statement)
    except duckdb.Error as error:
        # The first paragraph, without the kind of the error; below it is the statement.
        reason = " ".join(str(error).partition("\n\n")[0].split())
        raise ValueError(reason.partition("Error: ")[2] or reason) from None


def _rows(tables: dict[str, Callable[[], Table]], statement: str) -> list[str]:
    parsed = duckdb.extract_statements(statement)
    if len(parsed) != 1 or parsed[0].type != duckdb.StatementType.SELECT:
        raise ValueError("only one SELECT can be run: nothing here can be changed or written")
    with duckdb.connect(":memory:", config={"temp_directory": "", "memory_limit": "1GB"}) as shell:
        for name, table in tables.items():
            if name in statement.lower():
                shell.register(name, table())
        shell.execute("SET enable_external_access = false")
        shell.execute("SET lock_configuration = true")
        signal.alarm(_MOST_S)
        shell.execute(statement)
        names = [column[0] for column in shell.description or ()]
        rows = shell.fetchmany(_MOST_ROWS + 1)
        signal.alarm(0)
    lines = ["\t".join(map(_cell, row)) for row in [names, *rows[:_MOST_ROWS]]]
    more = f"… only the first {_MOST_ROWS:,} rows: use LIMIT, WHERE or GROUP BY"
    return [*lines, more] if len(rows) > _MOST_ROWS else lines


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return shorten_right(clean(text[: _MOST_CELL + 1]), _MOST_CELL)


if __name__ == "__main__":
    print(json.dumps(_answer(*json.load(sys.stdin))))
