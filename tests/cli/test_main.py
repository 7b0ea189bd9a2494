# SPDX-License-Identifier: Apache-2.0
"""The command line, as a user calls it."""

import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from bundle import DATA, expected

import neutracer
from neutracer.cli.main import main
from neutracer.cli.parts import within_memory

FRAG = str(DATA / "frag_default.pickle")
HEALTHY = str(DATA / "train_resnet_healthy.pickle.xz")
LATE = str(DATA / "train_resnet_late_zero_grad.pickle.xz")


def test_report_prints_one_page_of_text(capsys):
    assert main(["report", FRAG]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SEVERE   out of memory: the process is limited to 2,048 MiB")
    assert "\n\nfrag_default.pickle   PyTorch snapshot · 1 device · 2,375 events" in text
    assert "406.0 MiB  train.py:155" in text
    assert len(text.splitlines()) <= 42
    # A command is one word, with the path of the file.
    assert max(len(line) for line in text.splitlines() if FRAG not in line) <= 80
    assert "\x1b" not in text


def test_json_has_the_promised_shape(capsys):
    assert main(["report", "--json", FRAG]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "neutracer.report/1"
    assert report["file"] == "frag_default.pickle"
    device = report["devices"][0]
    stats = expected("frag_default")["stats"]
    assert device["device"] == 0
    assert device["memory_stats"] == {key: stats[key] for key in device["memory_stats"]}
    assert device["peak"]["allocated_bytes"] == stats["allocated_bytes.all.peak"]
    assert device["peak"]["holders"][0]["line"] == 155
    assert device["fragmentation"]["schema"] == "neutracer.fragmentation/1"
    assert [oom["asked_bytes"] for oom in device["oom"]] == [1_655_701_504]
    assert report["findings"][0]["kind"] == "out_of_memory"


def test_fail_on_decides_the_exit_code(capsys):
    assert main(["report", "--fail-on", "severe", FRAG]) == 1
    assert main(["report", "--fail-on", "moderate", HEALTHY]) == 0
    assert main(["report", "--fail-on", "info", HEALTHY]) == 1
    capsys.readouterr()


def test_unreadable_files_give_two_and_a_reason(capsys, tmp_path):
    empty = tmp_path / "empty.pickle"
    empty.write_bytes(b"")
    assert main(["report", str(empty)]) == 2
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path / "missing")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "is empty (0 bytes)" in errors[0]
    assert "is a directory" in errors[1]
    assert "No such file or directory" in errors[2]
    assert all(line.startswith("neutracer: ") for line in errors)


def test_other_files_are_still_reported(capsys, tmp_path):
    (tmp_path / "bad").write_text("hello")
    assert main(["report", str(tmp_path / "bad"), FRAG]) == 2
    captured = capsys.readouterr()
    assert "this is a text file" in captured.err
    assert "frag_default.pickle" in captured.out


def test_several_files_are_a_json_list(capsys):
    assert main(["report", "--json", FRAG, HEALTHY]) == 0
    several = json.loads(capsys.readouterr().out)
    assert several["schema"] == "neutracer.reports/1"
    assert [report["file"] for report in several["reports"]] == [
        "frag_default.pickle",
        "train_resnet_healthy.pickle.xz",
    ]


def test_standard_input_is_a_dash(monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO((DATA / "frag_default.pickle").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["report", "-"]) == 0
    assert "\n\nstandard input  " in capsys.readouterr().out


def test_memory_limit_is_kept(capsys):
    assert main(["report", "--max-memory", "64KiB", FRAG]) == 2
    assert "max_memory" in capsys.readouterr().err


@pytest.mark.parametrize("bound", ["10MB", "40MB"])
def test_picture_that_has_no_room_is_refused_in_words(bound, tmp_path):
    # With a thread a core, OpenBLAS ended such a process by the signal of Ctrl-C.
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "neutracer", "plot", "--max-memory", bound]
    made = subprocess.run(
        [*command, FRAG, "-o", tmp_path / "picture.png"], capture_output=True, text=True
    )
    assert made.returncode == 2
    # On a busy machine it says that it works before.
    said = made.stderr.replace("neutracer: working: this takes more than a few seconds\n", "")
    assert said.startswith("neutracer: this needs more memory than")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "is_told"),
    [("_agg.so: cannot map zero-fill pages", True), ("_agg.so: undefined symbol: png_read", False)],
)
def test_library_that_has_no_room_to_load_is_told_alike(words, is_told, capsys):
    def run(_):
        raise ImportError(words)

    options = SimpleNamespace(run=run, max_memory="10MB")
    if not is_told:
        with pytest.raises(ImportError, match="undefined symbol"):
            within_memory(options)
        return
    assert within_memory(options) == 2
    assert capsys.readouterr().err.startswith("neutracer: this needs more memory than")


def test_truncated_file_is_reported_as_partial(capsys, tmp_path):
    whole = (DATA / "frag_default.pickle").read_bytes()
    (tmp_path / "cut.pickle").write_bytes(whole[: len(whole) // 2])
    assert main(["report", str(tmp_path / "cut.pickle")]) == 0
    report = capsys.readouterr().out
    lines = report.splitlines()
    # Before any figure.
    assert lines[0].startswith("SEVERE   only a part of cut.pickle could be read")
    assert any("The file ends after" in line for line in lines[1:4])
    assert "read in part" in report
    assert main(["report", "--fail-on", "severe", str(tmp_path / "cut.pickle")]) == 1
    assert main(["diff", "--fail-on", "severe", FRAG, str(tmp_path / "cut.pickle")]) == 1
    capsys.readouterr()
    assert "history complete" not in report
    assert main(["explain", str(tmp_path / "cut.pickle")]) == 2
    assert "in what could be read of the file: the file ends after" in capsys.readouterr().err


def test_env_names_versions_and_what_is_missing(capsys):
    assert main(["setup", "env"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("neutracer ")
    assert "torch" in text
    assert main(["setup", "env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "neutracer.env/1"


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("report", "neutracer report snapshot.pickle"),
        ("setup", "neutracer setup env"),
        ("setup env", "neutracer setup env"),
        ("diff", "neutracer diff --fail-on serious"),
        ("explain", "neutracer explain old.pickle --capacity 24GiB"),
        ("what-if", "neutracer what-if snapshot.pickle --capacity 24GiB"),
    ],
)
def test_help_has_an_example(command, example, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert example in capsys.readouterr().out.partition("example:\n")[2]


def test_help_says_where_to_begin(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "neutracer run train.py" in text.partition("where to begin:")[2]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([FRAG], "is a file, not a command; did you mean 'neutracer report FILE'?"),
        ([__file__], "is a file, not a command; did you mean 'neutracer run FILE'?"),
        (["whatif", FRAG], "unknown command 'whatif'; did you mean 'what-if'?"),
        (["-m", "train.py"], "did you mean 'neutracer run FILE'?"),
        (["oom.pickle.xz"], "did you mean 'neutracer explain FILE'?"),
        ([str(DATA)], "did you mean 'neutracer ranks FILE'?"),
        (["xyz"], "unknown command 'xyz'; commands are run, attach, demo, rehearse, report, "),
        (["report", "--devce", "1", FRAG], "usage: neutracer report "),
        (["explain", FRAG, "--capacity", "24"], "--capacity 24 is 24 bytes; write it like '24GiB'"),
        (["what-if", FRAG, "--capacity", "24"], "--capacity 24 is 24 bytes"),
        (["what-if", FRAG, "--set", "expandable_segments=True"], "write KEY:VALUE"),
        (["plot", FRAG, "-o", "x.png", "--set", "a=1"], "neutracer: --set: unknown key"),
        (["what-if", FRAG, "--check", "--capacity", "24GiB"], "--check takes no --batch"),
        (["run", "python", "train.py"], "without 'python' before it"),
        (["view", FRAG, __file__], "view takes one file; diff, leak, plot and ranks take several"),
        (["setup", "env", FRAG], "unrecognized arguments: "),
        (["diff", "no/such/file", HEALTHY], "No such file"),
        (["diff", HEALTHY, "--device", "5", LATE], "no device 5"),
        (["explain", HEALTHY], "no request failed in this snapshot"),
        (["explain", "no/such/file"], "No such file"),
        (
            ["explain", FRAG, "--event", "3"],
            "is not an out-of-memory event; this file has one: 2374",
        ),
        (["explain", FRAG, "--capacity", "much"], "not a size"),
        (["explain", FRAG, "--fail-on", "badness"], "'badness' is not one of"),
        (["leak", "no.pickle", LATE], "no.pickle: No such file"),
        (["leak", LATE, "--step-us", "0"], "it must be a step's length in microseconds"),
        (["leak", LATE, "--steps", "a,b"], "'a,b' is not a list of event numbers"),
        (["leak", LATE, "--fail-on", "leek"], "'leek' is not one of leak, "),
        (["leak", LATE, "--capacity", "24"], "--capacity 24 is 24 bytes"),
        (["what-if", FRAG, "--set", "expandble_segments:True"], "unknown key"),
        (["what-if", FRAG, "--capacity", "much"], "not a size"),
        (["what-if", "no/such/file"], "No such file"),
        (["what-if", FRAG, "--device", "3"], "no device 3"),
        (
            ["what-if", FRAG, "--set", "per_process_memory_fraction:0.5"],
            "give its size with capacity= (or --capacity)",
        ),
        (["what-if", FRAG, "--check", "--set", ""], "not allowed with"),
    ],
)
def test_likely_slips_are_told(words, hint, capsys):
    try:
        code = main(words)
    except SystemExit as ending:
        code = ending.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert hint in captured.err


@pytest.mark.parametrize("name", ["run.py", "explain.py", "report.pickle"])
def test_file_named_like_a_command(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SystemExit):
        main([name])
    command = "run" if name.endswith(".py") else "report"
    assert f"did you mean 'neutracer {command} FILE'?" in capsys.readouterr().err


def test_without_a_word_it_helps(capsys):
    pages = []
    for words in ([], ["--help"]):
        with pytest.raises(SystemExit) as ending:
            main(words)
        assert ending.value.code == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    groups = ["record", "ask", "look", "set up"]
    assert [line.strip() for line in pages[0].splitlines() if line.strip() in groups] == groups


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_come_first(option, capsys):
    with pytest.raises(SystemExit) as ending:
        main([option, "xyz"])
    assert ending.value.code == 0
    assert "neutracer" in capsys.readouterr().out


def test_module_runs_and_tells_its_version():
    run = subprocess.run(
        [sys.executable, "-m", "neutracer", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"neutracer {neutracer.__version__}\n"


def test_closed_pipe_is_no_error():
    command = f"{sys.executable} -m neutracer report {FRAG} | true; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert run.returncode == 0
    assert run.stderr == ""


def test_import_loads_no_extra():
    extras = "('torch', 'rich', 'numpy')"
    code = f"import sys, neutracer; print([m for m in {extras} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert run.stdout == "[]\n"


def test_closed_standard_input_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for command in (["report"], ["explain"], ["leak"], ["what-if"]):
        assert main([*command, "-"]) == 2
        assert "standard input is closed" in capsys.readouterr().err


def test_interrupt_during_the_imports_leaves_no_traceback() -> None:
    scripts = (DATA.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    target = re.search('^neutracer = "(.*)"$', scripts, re.MULTILINE)
    assert target
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(name, *rest):\n"
        "        if name == 'neutracer.cli.parts':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from importlib.metadata import EntryPoint\n"
        f"sys.exit(EntryPoint('neutracer', {target[1]!r}, 'console_scripts').load()())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
