# SPDX-License-Identifier: Apache-2.0
"""Stacked live bytes over time, and the plot of fragmentation."""

import base64
import io
import itertools
import pickle
import re
from pathlib import Path

import bundle
import pytest
from small_snapshots import one_program

import neutracer

pytest.importorskip("matplotlib", reason="needs matplotlib, the extra `plot`")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image", reason="needs Pillow, which matplotlib brings")

import matplotlib  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.texmanager import TexManager  # noqa: E402

from neutracer.cli.main import main  # noqa: E402
from neutracer.errors import UnavailableError  # noqa: E402
from neutracer.picture import extra  # noqa: E402
from neutracer.picture.curves import (  # noqa: E402
    stacked_bands,
    unused_shares,
)
from neutracer.picture.draw import (  # noqa: E402
    Request,
    Scene,
)
from neutracer.render.document import DARK, LIGHT  # noqa: E402
from neutracer.trace.roles import CATEGORIES  # noqa: E402
from neutracer.units import format_bytes  # noqa: E402

FRAG = str(Path(__file__).parents[1] / "data" / "frag_default.pickle")


def scene(name, **options):
    return Scene(bundle.snapshot(name), Request(**options), name)


@pytest.mark.parametrize("by", ["place", "line", "stack", "category"])
@pytest.mark.parametrize("name", ["frag_default", "train_resnet_healthy", "leak_list"])
def test_bands_add_up_to_allocated(name, by):
    shown = scene(name, x="event")
    states, bands = stacked_bands(shown, by, 5)
    assert sum(values for _, values, _ in bands).tolist() == shown.allocated[states].tolist()
    assert all((values >= 0).all() for _, values, _ in bands)
    assert shown.allocated[states].max() == max(shown.timeline.allocated)


def test_band_of_stack_is_its_holder():
    shown = scene("train_resnet_healthy", x="event")
    peak = shown.timeline.peak("allocated").event
    states, bands = stacked_bands(shown, "stack", 3)
    column = states.tolist().index(peak + 1)
    held = [int(values[column]) for _, values, _ in bands[:3]]
    assert held == [holder.bytes for holder in shown.timeline.holders(by="stack", limit=3)]


def test_timeline_plot_has_its_parts():
    figure = neutracer.plot_timeline(bundle.snapshot("frag_default"), title="a run")
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["reserved", "frag train.py:159", "frag train.py:155"]
    (line,) = axes.get_lines()
    assert max(line.get_ydata()) == 2028 << 20
    assert any("needed 1,579 MiB" in text.get_text() for text in axes.texts)
    assert figure.texts[0].get_text() == "a run"


def test_timeline_plot_takes_categories():
    snap = bundle.snapshot("train_resnet_healthy")
    figure = neutracer.plot_timeline(snap, by="category", x="event")
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names[0] == "reserved"
    assert {"activation", "parameter", "optimizer state"} <= set(names)
    with pytest.raises(ValueError, match="'line', 'stack' or 'category'"):
        neutracer.plot_timeline(snap, by="mood")


def test_categories_have_the_colours_of_the_page():
    snap = bundle.snapshot("train_resnet_healthy")
    for dark, palette in ((False, LIGHT), (True, DARK)):
        axes = neutracer.plot_timeline(snap, by="category", dark=dark).axes[0]
        shown = zip(*axes.get_legend_handles_labels(), strict=True)
        fills = {
            name: to_hex(one.get_facecolor()[0])
            for one, name in shown
            if hasattr(one, "get_facecolor")
        }
        for place, category in enumerate(CATEGORIES[1:]):
            name = category.replace("_", " ")
            assert fills.get(name, palette.hues[place]) == palette.hues[place]
        assert len(set(fills.values())) == len(fills) > 3


def named(text, file=""):
    """A snapshot in which every function has this name, and every file where it is given none."""
    plain = one_program()
    plain["device_traces"][0][-1] |= {"action": "oom", "device_free": 0}
    for event in plain["device_traces"][0]:
        event["frames"] = [{"name": text, "filename": file or text, "line": 3}]
    return neutracer.load(pickle.dumps(plain))


def plot_ranks_of(_, **options):
    return neutracer.plot_ranks(FRAG, **options)


PLOTS = (
    neutracer.mdtp,
    neutracer.plot_timeline,
    neutracer.plot_fragmentation,
    neutracer.plot_bill,
    plot_ranks_of,
)


@pytest.mark.parametrize("draw", PLOTS)
def test_names_never_reach_tex(draw, tmp_path, monkeypatch):
    def refused(*unused):
        raise AssertionError("TeX was asked")

    monkeypatch.setattr(TexManager, "make_tex", refused)
    monkeypatch.setattr(TexManager, "make_dvi", refused)
    snap = named(r"\input{/etc/passwd}\write18{id} $x$")
    with matplotlib.rc_context({"text.usetex": True}):
        figure = draw(snap, title=r"\write18{id} $\frac{$", output=tmp_path / "picture.pdf")
        figure.savefig(io.BytesIO(), format="svg")
        figure.canvas.draw()
        assert figure._repr_html_()
        with pytest.raises(ValueError, match="run as TeX"):
            figure.savefig(tmp_path / "picture.pgf")
        with pytest.raises(ValueError, match=r"ends in \.png"):
            draw(snap, output=tmp_path / "picture.pgf")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.pdf"]


def test_shares_are_those_of_report():
    shown = scene("frag_default")
    report = neutracer.fragmentation_report(bundle.snapshot("frag_default"))
    assert unused_shares(shown).tolist() == list(report.fragmentation_history)


def test_segments_show_blocks_and_holes():
    snap = bundle.snapshot("weight_streaming")
    event = len(snap.timeline()) - 1
    figure = neutracer.plot_fragmentation(snap, event=event)
    axes = figure.axes[1]
    assert axes.get_label() == "segments"
    (bars,) = axes.collections
    colours = [tuple((c[:3] * 255).round().astype(int)) for c in bars.get_facecolor()]
    layout = snap.timeline().at(event)
    assert colours.count((250, 227, 198)) == len(layout.segments)
    active = sum(1 for block in layout.blocks if block.state != "inactive")
    assert len(colours) == len(layout.segments) + active
    assert axes.get_xlim()[1] == max(layout.segments["total_size"])


def test_fragmentation_plot_marks_the_moment():
    figure = neutracer.plot_fragmentation(bundle.snapshot("frag_default"), x="event")
    share = figure.axes[0]
    steps = [line for line in share.get_lines() if line.get_linestyle() == ":"]
    tl = bundle.snapshot("frag_default").timeline()
    unused = [a - b for a, b in zip(tl.reserved, tl.active, strict=True)]
    (moment,) = {float(value) for value in steps[0].get_xdata()}
    assert unused[int(moment)] == pytest.approx(max(unused), rel=0.01)
    with pytest.raises(ValueError, match="not among"):
        neutracer.plot_fragmentation(bundle.snapshot("frag_default"), event=10**6)


@pytest.mark.parametrize("plot", [neutracer.plot_timeline, neutracer.plot_fragmentation])
def test_plots_are_written_by_name(tmp_path, plot):
    plot(bundle.snapshot("foreign_memory"), output=tmp_path / "plot.svg", dark=True)
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()[:2000]


def changed_times(*times):
    program = one_program()
    for entry, time in zip(program["device_traces"][0], times, strict=True):
        entry["time_us"] = time
    return neutracer.load(pickle.dumps(program))


def facts_of(figure):
    return figure.texts[1].get_text()


def test_moments_without_width_are_seen():
    # 10 MiB stand between two events of one microsecond: the first, and one in the middle.
    for times in ((1000, 1000, 1000, 1000, 1040), (1000, 1010, 1020, 1020, 1040)):
        figure = neutracer.plot_timeline(changed_times(*times))
        assert "peak allocated 10 MiB at event 2" in facts_of(figure)
        scene = Scene(changed_times(*times), Request(), "")
        assert scene.column_extremes(scene.allocated, 40)[1].max() == 10 << 20
    figure = neutracer.plot_timeline(changed_times(*[1000] * 5))
    assert figure.axes[0].get_xlabel() == "allocator event"
    assert "peak allocated 10 MiB at event 2" in facts_of(figure)


def test_short_times_are_in_microseconds():
    axes = neutracer.plot_timeline(pickle.dumps(one_program())).axes[0]
    axes.figure.canvas.draw()
    assert axes.get_xlabel() == "time, microseconds"
    assert [text.get_text() for text in axes.get_xticklabels()][:3] == ["0", "10", "20"]


@pytest.mark.parametrize(
    ("last", "unit", "ticks"),
    [
        (40_000, "milliseconds", ["0", "10", "20"]),
        (40_000_000, "seconds", ["0", "10", "20"]),
        (40 * 60_000_000, "minutes", ["0", "10", "20"]),
        (40 * 3_600_000_000, "hours", ["0", "10", "20"]),
    ],
)
def test_times_are_in_the_unit_that_fits(last, unit, ticks):
    shown = changed_times(1000, 1010, 1020, 1020, 1000 + last)
    axes = neutracer.plot_timeline(shown).axes[0]
    axes.figure.canvas.draw()
    assert axes.get_xlabel() == f"time, {unit}"
    assert [text.get_text() for text in axes.get_xticklabels()][:3] == ticks


def test_pictures_take_the_style_of_matplotlib():
    from matplotlib import style

    snap = bundle.snapshot("foreign_memory")
    drawn = {}
    for name in ("default", "dark_background"):
        with style.context(name):
            drawn[name] = [plot(snap) for plot in (neutracer.plot_timeline, neutracer.mdtp)]
            assert neutracer.mdtp(snap, dark=False).get_facecolor()[:3] == (1, 1, 1)
    assert {figure.get_facecolor()[:3] for figure in drawn["default"]} == {(1, 1, 1)}
    (dark,) = {figure.get_facecolor()[:3] for figure in drawn["dark_background"]}
    assert max(dark) < 0.2


def test_gibibytes_are_called_so():
    figure = neutracer.plot_timeline(bundle.snapshot("attention_math"))
    assert figure.axes[0].get_ylabel() == "GiB"
    assert "peak allocated 4.99 GiB" in facts_of(figure)


@pytest.mark.parametrize(
    ("name", "told"),
    [("frag_default", "severe"), ("train_resnet_healthy", ""), ("multi_stream", "")],
)
def test_severity_drawn_is_that_of_the_report(name, told):
    report = neutracer.fragmentation_report(bundle.snapshot(name))
    found = [one for one in report.findings if one.kind.startswith("fragmentation")]
    assert any(one.severity == "severe" for one in found) == (told == "severe")
    drawn = facts_of(neutracer.plot_fragmentation(bundle.snapshot(name)))
    words = [word for word in ("moderate", "serious", "severe") if f"· {word}" in drawn]
    assert words == ([told] if told else [])


@pytest.mark.parametrize("kind", ["mdtp", "timeline", "fragmentation", "bill", "ranks"])
def test_command_draws_each_kind(kind, tmp_path, capsys, monkeypatch, snapshot_path):
    file = str(snapshot_path("frag_default"))
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "--what", kind, file]) == 0
    light = Path(capsys.readouterr().out.strip())
    assert light.name == f"{Path(file).name}.{kind}.png"
    assert main(["plot", "--what", kind, file, "--dark", "-o", "dark.png"]) == 0
    pixels = [Image.open(path).convert("RGB").getpixel((1, 1)) for path in (light, "dark.png")]
    assert pixels == [(255, 255, 255), (18, 24, 30)]


def test_command_draws_one_file_unless_they_are_ranks(capsys, snapshot_path):
    file = str(snapshot_path("frag_default"))
    assert main(["plot", "--what", "timeline", file, file]) == 2
    assert "--what timeline takes one file" in capsys.readouterr().err
    assert main(["plot", "--what", "fragmentation", file, "-o", "x.docx"]) == 2
    assert ".png, .svg or .pdf" in capsys.readouterr().err


def test_snapshots_without_history_say_so():
    program = one_program()
    program["device_traces"] = [[]]
    figures = [plot(pickle.dumps(program)) for plot in (neutracer.plot_timeline, neutracer.mdtp)]
    for figure in figures:
        labels = [axes.get_xlabel() for axes in figure.axes]
        assert "no history: the moment of the snapshot" in labels
    assert "peak allocated 4 MiB at the start" in facts_of(figures[0])
    share = neutracer.plot_fragmentation(pickle.dumps(program)).axes[0]
    assert share.lines[-2].get_ydata().max() == pytest.approx(0.8)


def test_legends_end_within_the_figure():
    figure = neutracer.plot_timeline(bundle.snapshot("cpp_stacks"))
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    box = figure.axes[0].get_legend().get_window_extent(renderer)
    assert box.x1 <= figure.bbox.x1


def test_what_keeps_matplotlib_from_being_imported_is_told(monkeypatch):
    def fails(name):
        raise ImportError("a page of advice") from ImportError("libblas.so: no room\nfor it")

    monkeypatch.setattr(extra.importlib, "import_module", fails)
    with pytest.raises(UnavailableError) as raised:
        extra.require_matplotlib()
    assert raised.value.install.startswith("it is installed, and can't be imported: libblas.so")
    assert "\n" not in str(raised.value)


def test_matplotlib_that_is_not_there_is_to_be_installed(monkeypatch):
    def fails(name):
        raise ModuleNotFoundError("No module named 'matplotlib'")

    monkeypatch.setattr(extra.importlib, "import_module", fails)
    with pytest.raises(UnavailableError) as raised:
        extra.require_matplotlib()
    assert "pip install 'matplotlib>=3.7'" in raised.value.install


def test_notebook_shows_a_twin_in_a_dark_theme_until_the_figure_changes():
    figure = neutracer.plot_timeline(FRAG)
    page = figure._repr_html_()
    light, dark = re.findall(r'<img class="neutracer-(?:light|dark)"[^>]*base64,([^"]*)"', page)
    assert base64.b64decode(light) == figure._repr_png_()
    assert base64.b64decode(dark) == neutracer.plot_timeline(FRAG, dark=True)._repr_png_()
    figure.savefig(io.BytesIO())
    figure.canvas.draw()
    assert figure._repr_html_() == page
    # Nobody knows how a change would look in the other.
    figure.axes[0].set_title("mine")
    assert figure._repr_html_() is None


@pytest.mark.parametrize("dark", [True, False])
def test_scheme_that_was_asked_for_has_no_twin(dark):
    assert neutracer.plot_fragmentation(FRAG, dark=dark)._repr_html_() is None


def test_title_of_a_snapshot_is_its_file():
    figure = neutracer.plot_timeline(neutracer.load(FRAG))
    assert "frag_default" in [text.get_text() for text in figure.texts]
    assert ">frag_default.pickle<" in neutracer.load(FRAG)._repr_html_()
    assert neutracer.view(neutracer.load(FRAG)).title == "frag_default.pickle"


# ---- Bill ----


def bars_of(figure):
    """The waterfall's rows from the top down: name, figure, first byte and last."""
    (axes,) = figure.axes
    words = [one.get_text() for one in axes.texts]
    spans = {}
    for bar in axes.patches:
        x0, x1 = bar.get_x(), bar.get_x() + bar.get_width()
        row = round(bar.get_y() + bar.get_height() / 2)
        low, high = spans.get(row, (x0, x1))
        spans[row] = (min(low, x0), max(high, x1))
    pairs = zip(words[::2], words[1::2], strict=True)
    return [(*pair, *map(int, spans.get(row, (0, 0)))) for row, pair in enumerate(pairs)]


@pytest.mark.parametrize("name", ["adam_above_the_cap", "frag_default"])
def test_bill_falls_from_the_limit_to_what_is_missing(name):
    folder = bundle.DATA / ("oom" if name == "adam_above_the_cap" else "")
    why = neutracer.explain(folder / f"{name}.pickle.xz")
    bill = why.bill
    (_, _, first, limit), *bars = bars_of(neutracer.plot_bill(why))
    assert (first, limit) == (0, bill.limit_bytes)
    rest = [bar for bar in bars if bar[0] not in ("the request", "missing")]
    edges = [(bar[2], bar[3]) for bar in rest if bar[3]]
    assert edges[0][0] == 0
    assert edges[-1][1] == bill.limit_bytes
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    (request,) = [bar for bar in bars if bar[0] == "the request"]
    assert request[1] == format_bytes(bill.request_bytes)
    if bill.missing_bytes:
        assert bars[-1] == (
            "missing",
            format_bytes(bill.missing_bytes),
            bill.limit_bytes,
            bill.limit_bytes + bill.missing_bytes,
        )


def test_bill_of_no_failure_is_refused():
    with pytest.raises(ValueError, match="no request failed"):
        neutracer.plot_bill(bundle.snapshot("train_resnet_healthy"))


def test_places_in_a_bill_are_never_cut():
    snap = named("forward_of_a_function_with_a_name_that_is_far_too_long_for_it", "train.py")
    names = [name for name, *_ in bars_of(neutracer.plot_bill(snap))]
    assert any(re.match(r"forward_of_.*\S train\.py:3$", name) for name in names)
    assert max(map(len, names)) < 50
