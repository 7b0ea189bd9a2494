# SPDX-License-Identifier: Apache-2.0
"""The Memory Distribution Timeline Plot: its pixels, its axes, its words."""

import io
import itertools
import lzma
import math
import pickle
import subprocess
import sys
import warnings
from array import array
from bisect import bisect_right

import bundle
import pytest
from places import TESTS

import neutracer
from neutracer._native import core
from neutracer.cli.main import main

pytest.importorskip("matplotlib", reason="needs matplotlib, the extra `plot`")
np = pytest.importorskip("numpy")

from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.text import Annotation, Text  # noqa: E402

from neutracer.picture.draw import (  # noqa: E402  # noqa: E402
    Planes,
    Request,
    Scene,
    block_scale,
    classic_frames,
    pixel_colours,
)
from neutracer.render.document import LIGHT  # noqa: E402

MIB = 1 << 20
DATA = TESTS / "data"


def scene(name, **options):
    return Scene(bundle.snapshot(name), Request(**options), name)


def axes_of(figure, label):
    return [axes for axes in figure.axes if axes.get_label() == label]


def texts_of(figure):
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
    return found


def planes_of(raster, view):
    kinds = ("Q", "d", "d", "B")
    shape = (view[5], view[4])
    return [
        np.frombuffer(raw, k).reshape(shape)
        for raw, k in zip(raster.draw(view), kinds, strict=True)
    ]


@pytest.mark.parametrize("name", bundle.NAMES)
def test_columns_sum_to_the_series(name):
    tl = bundle.snapshot(name).timeline()
    first = max(0, len(tl) - 1500)
    count = len(tl) - first
    for until_freed, series in ((True, tl.allocated), (False, tl.active)):
        raster = core.Raster(tl.native, False, until_freed=until_freed)
        height = raster.extent()[1]
        _, used, reserved, _ = planes_of(raster, (first + 1, len(tl) + 1, 0, height, count, 40))
        columns = used.sum(axis=0) * (height / 40)
        assert np.allclose(columns, np.asarray(series[first:]), rtol=1e-9, atol=1)
        columns = reserved.sum(axis=0) * (height / 40)
        assert np.allclose(columns, np.asarray(tl.reserved[first:]), rtol=1e-9, atol=1)


@pytest.mark.parametrize("name", bundle.NAMES)
def test_series_are_those_of_timeline(name):
    tl = bundle.snapshot(name).timeline()
    raster = core.Raster(tl.native, False)
    for metric, series in ((0, tl.allocated), (1, tl.active), (2, tl.reserved)):
        assert np.frombuffer(raster.series(metric), "Q")[1:].tolist() == list(series)


def covered(first, end, low, high, count):
    """The pixels of a view that overlap a range, or hold its beginning where it has no width."""
    if first == end:
        if not low <= first < high:
            return slice(0, 0)
        end = first + 1 / count
    first, end = max(first, low) - low, min(end, high) - low
    if first >= end:
        return slice(0, 0)
    return slice(first * count // (high - low), math.ceil(end * count / (high - low)))


def check_pixels_by_time(tl, raster, view):
    """Each pixel of a view, held against the layouts of the states that it sees."""
    x_first, x_end, y_first, y_end, columns, rows = view
    starts = array("Q", raster.states())
    seen = np.zeros((rows, columns), np.uint8)
    largest = np.zeros((rows, columns), np.uint64)
    ranges = raster.ranges()

    def position(address):
        low, _, at = ranges[bisect_right([r[0] for r in ranges], address) - 1]
        return at + address - low

    for state in range(len(tl) + 1):
        across = covered(starts[state], starts[state + 1], x_first, x_end, columns)
        if across == slice(0, 0):
            continue
        for block in tl.at(state - 1).blocks:
            low = position(block.address)
            up = covered(low, low + block.size, y_first, y_end, rows)
            seen[up, across] |= 6 if block.state == "inactive" else 5
            if block.state != "inactive":
                shown = largest[up, across]
                np.maximum(shown, np.uint64(block.size), out=shown)
    drawn = planes_of(raster, view)
    assert (drawn[3] == seen).all()
    assert (drawn[0] == largest).all()


@pytest.mark.parametrize("part", [(0, 1, 0, 1), (0.31, 0.47, 0.2, 0.9), (0.9, 1, 0.5, 0.6)])
@pytest.mark.parametrize("name", ["weight_streaming", "metadata", "cuda_graph_pool"])
def test_pixels_by_time_match_layouts(name, part):
    tl = bundle.snapshot(name).timeline()
    raster = core.Raster(tl.native, True)
    width, height = raster.extent()
    x = (int(width * share) for share in part[:2])
    y = (int(height * share) for share in part[2:])
    check_pixels_by_time(tl, raster, (*x, *y, 23, 31))


def test_blocks_without_duration_are_seen():
    tl = bundle.snapshot("frag_default").timeline()
    raster = core.Raster(tl.native, True)
    starts = array("Q", raster.states())
    # A column a microsecond: states without width begin where a pixel does.
    low, high = starts[600], starts[700]
    assert len(set(starts[600:700])) < 100
    check_pixels_by_time(tl, raster, (low, high, 0, raster.extent()[1], high - low, 64))


def test_unreserved_addresses_are_left_out():
    shown = scene("frag_default")
    raw = scene("frag_default", raw_addresses=True)
    segments = shown.timeline.segments
    covered, end = 0, 0
    for address, size in sorted(zip(segments["address"], segments["size"], strict=True)):
        covered += max(0, address + size - max(address, end))
        end = max(end, address + size)
    assert shown.view[3] == covered
    assert raw.view[3] == end - min(segments["address"])
    assert raw.view[3] > covered
    for address, size, position in shown.ranges:
        assert shown.position(address + size // 2) == position + size // 2
        assert shown.address(position + size // 2) == address + size // 2


def test_oom_is_clear_of_the_key_beside_a_second_picture():
    snap = bundle.snapshot("frag_default")
    figure = neutracer.mdtp(snap, snap)
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    left = min(text.get_window_extent().x0 for text in texts if text.get_text().startswith("OOM"))
    (key,) = [text for text in texts if text.get_text() == "reserved, not allocated"]
    assert left > key.get_window_extent().x1


def test_oom_says_needed_and_free():
    figure = neutracer.mdtp(bundle.snapshot("frag_default"))
    label = [text for text in texts_of(figure) if text.startswith("OOM")]
    assert label == ["OOM  needed 1,579 MiB, device had 139 GiB free"]
    for name in ("strip", "map"):
        (axes,) = axes_of(figure, name)
        (column,) = [patch for patch in axes.patches if patch.get_label() == "OOM"]
        assert column.get_facecolor()[:3] == pytest.approx((179 / 255, 32 / 255, 42 / 255))


def test_title_has_peak_and_ratio():
    figure = neutracer.mdtp(bundle.snapshot("frag_default"), title="run $x_1")
    words = texts_of(figure)
    assert "run $x_1" in words
    expected = "peak allocated 591 MiB · peak reserved 2,028 MiB · 72 % of it unused then"
    assert f"{expected}, up to 80 % later" in words


def test_holes_are_named_with_pins():
    figure = neutracer.mdtp(bundle.snapshot("frag_default"))
    notes = "\n".join(texts_of(figure))
    assert "A  168 MiB free, when the most was unused: a whole cached segment" in notes
    assert "35.8 MiB free, when memory ran out: pinned by the 2.19 MiB block" in notes
    assert "frag train.py:155" in notes
    plain = neutracer.mdtp(bundle.snapshot("frag_default"), holes=False)
    assert "168 MiB free" not in "\n".join(texts_of(plain))


def test_markers_never_cover_blocks():
    inside = beside = 0
    for name in ("frag_default", "train_resnet_healthy", "attention_flash", "multi_stream"):
        figure = neutracer.mdtp(bundle.snapshot(name))
        figure.canvas.draw()
        (axes,) = axes_of(figure, "map")
        image, box = axes.images[0].get_array(), axes.bbox
        for mark in axes.texts:
            if isinstance(mark, Annotation):
                beside += 1
                assert mark.get_bbox_patch().get_window_extent().x0 > box.x1
                continue
            inside += 1
            x, y = axes.transData.transform(mark.get_position())
            column = int((x - box.x0) / box.width * image.shape[1])
            row = int((y - box.y0) / box.height * image.shape[0])
            under = image[row - 7 : row + 8, column - 7 : column + 8, :3]
            assert under.size > 0
            assert (under == (250, 227, 198)).all()
    assert inside >= 3
    assert beside >= 1


def test_both_runs_share_one_scale():
    before = bundle.snapshot("frag_default")
    after = bundle.snapshot("whatif/7/frag_default")
    figure = neutracer.mdtp(before, after, title=("default", "expandable"))
    strips, maps = axes_of(figure, "strip"), axes_of(figure, "map")
    assert strips[0].get_ylim() == strips[1].get_ylim()
    assert maps[0].get_ylim() == maps[1].get_ylim()
    high = [axes.images[0].get_extent()[3] for axes in maps]
    assert high[0] == maps[0].get_ylim()[1]
    assert high[1] == 692 * MIB or high[1] < high[0] / 2.5
    # A row of pixels is as many bytes in the one as in the other.
    rows = [axes.images[0].get_array().shape[0] for axes in maps]
    assert high[0] / rows[0] == pytest.approx(high[1] / rows[1], rel=0.01)
    assert len(axes_of(figure, "sizes")) == 1
    assert {"default", "expandable"} <= set(texts_of(figure))


def test_both_runs_have_one_time_axis_and_the_difference():
    names = ("attention_math", "attention_flash")
    runs = [bundle.snapshot(name) for name in names]
    figure = neutracer.mdtp(*runs)
    long, short = axes_of(figure, "map")
    assert long.get_xlim() == short.get_xlim() == tuple(long.images[0].get_extent()[:2])
    spans = [run.timeline().time_us for run in runs]
    shares = [(times[-1] - times[0]) / 1e6 for times in spans]
    assert short.images[0].get_extent()[1] == pytest.approx(shares[1], rel=0.01)
    assert shares[1] < shares[0] / 2
    # A column of pixels is as long in the one as in the other.
    wide = [axes.images[0].get_array().shape[1] for axes in (long, short)]
    assert wide[1] / wide[0] == pytest.approx(shares[1] / shares[0], rel=0.02)
    (end,) = [line for line in short.get_lines() if line.get_label() == "end"]
    assert end.get_xdata()[0] == short.images[0].get_extent()[1]
    assert not [line for line in long.get_lines() if line.get_label() == "end"]
    (strip,) = axes_of(figure, "strip")[1:]
    peaks = [max(run.timeline().reserved) for run in runs]
    (words,) = [text.get_text() for text in strip.texts]
    assert words == f"peak at the left; {(peaks[0] - peaks[1]) / 2**30:.2f} GiB less here"


def test_run_without_times_is_beside_another_by_events():
    source = pickle.loads(lzma.decompress((DATA / "frag_default.pickle.xz").read_bytes()))
    for event in itertools.chain.from_iterable(source["device_traces"]):
        del event["time_us"]
    figure = neutracer.mdtp(bundle.snapshot("frag_default"), pickle.dumps(source))
    assert [axes.get_xlim() for axes in axes_of(figure, "map")] == [(0, 2375)] * 2


def test_expandable_segments_look_packed():
    shares = {}
    for name in ("frag_default", "whatif/7/frag_default"):
        planes = scene(name).planes(300, 200)
        shares[name] = planes.used.sum() / planes.reserved.sum()
    assert shares["frag_default"] < 0.45
    assert shares["whatif/7/frag_default"] > 0.6


def test_attention_shows_large_blocks():
    math = scene("attention_math").planes(300, 200)
    flash = scene("attention_flash").planes(300, 200)
    assert math.largest.max() >= 16 * flash.largest.max()
    share = (math.largest >= 128 * MIB).mean()
    assert share > 0.02
    assert (flash.largest >= 128 * MIB).sum() == 0


def test_colour_bar_matches_the_pixels():
    figure = neutracer.mdtp(bundle.snapshot("cycle_nodes"), x="event", holes=False)
    (axes,) = axes_of(figure, "sizes")
    low, high = axes.get_ylim()
    colours = axes.collections[0].get_array()[:, 0]
    shown = scene("cycle_nodes", x="event").planes(300, 200)
    size = int(shown.largest.max())
    index = int(np.log(size / low) / np.log(high / low) * len(colours))
    (picture,) = axes_of(figure, "map")
    pixels = picture.images[0].get_array().reshape(-1, 4)
    wanted = (colours[min(index, len(colours) - 1)][:3] * 255).round()
    assert (abs(pixels[:, :3].astype(int) - wanted).max(axis=1) <= 3).any()


def test_thin_things_show_in_their_pixel():
    largest = np.array([[4096, 4096, 0, 0]], np.uint64)
    used = np.array([[1e-9, 1 - 1e-9, 0, 0]])
    reserved = np.array([[1.0, 1.0, 1.0, 0]])
    seen = np.array([[7, 7, 6, 0]], np.uint8)
    pixels = pixel_colours(Planes(largest, used, reserved, seen), block_scale(4096), LIGHT)
    thin_block, thin_hole, hole, nothing = pixels[0].astype(int)
    full = pixel_colours(
        Planes(largest, reserved, reserved, np.full((1, 4), 5, np.uint8)),
        block_scale(4096),
        LIGHT,
    )[0, 0].astype(int)
    assert hole[:3].tolist() == [250, 227, 198]
    assert abs(thin_block - hole)[:3].max() > 100
    assert 10 < abs(thin_hole - full)[:3].max() < abs(thin_block - full)[:3].max()
    assert nothing[3] == 0


def test_pixels_are_the_bluer_the_fuller_they_are():
    used = np.array([[0.02, 0.06, 0.5, 0.9]])
    seen = np.full((1, 4), 7, np.uint8)
    planes = Planes(np.full((1, 4), 4096, np.uint64), used, np.ones((1, 4)), seen)
    reds = pixel_colours(planes, block_scale(4096), LIGHT)[0, :, 0].astype(int)
    assert reds.tolist() == sorted(set(reds.tolist()), reverse=True)
    assert reds[1] - reds[2] > 30


def test_streams_have_a_colour_strip():
    figure = neutracer.mdtp(bundle.snapshot("multi_stream"))
    (strip,) = axes_of(figure, "streams and pools")
    colours = {tuple(colour) for colour in strip.collections[0].get_facecolor()}
    streams = set(bundle.snapshot("multi_stream").timeline().segments["stream"])
    assert len(colours) == len(streams) == 3
    assert "default stream" in texts_of(figure)
    numbered = [text for text in texts_of(figure) if text.startswith("stream ")]
    assert [text.split(" (")[0] for text in numbered] == ["stream 1", "stream 2"]
    raw = int(numbered[1].split("(")[1].rstrip(")"), 0)
    one = scene("multi_stream", stream=2)
    assert one.allocated.tolist() == scene("multi_stream", stream=raw).allocated.tolist()
    assert not axes_of(neutracer.mdtp(bundle.snapshot("frag_default")), "streams and pools")


def test_filter_draws_one_stream():
    tl = bundle.snapshot("multi_stream").timeline()
    streams = sorted(set(tl.segments["stream"]))
    parts = [scene("multi_stream", stream=stream) for stream in streams]
    whole = scene("multi_stream")
    assert sum(part.view[3] for part in parts) == whole.view[3]
    assert (sum(part.allocated for part in parts) == whole.allocated).all()
    assert (sum(part.reserved for part in parts) == whole.reserved).all()
    pools = {
        pair: scene("cuda_graph_pool", pool=pair)
        for pair in zip(
            *(
                bundle.snapshot("cuda_graph_pool").timeline().segments.codes(name)
                for name in ("pool_first", "pool_second")
            ),
            strict=True,
        )
    }
    assert len(pools) > 1
    whole = scene("cuda_graph_pool")
    assert (sum(part.allocated for part in pools.values()) == whole.allocated).all()


def test_ranges_cut_both_axes():
    shown = scene("frag_default", x="event", time_range=(100, 200))
    assert shown.view[:2] == (101, 201)
    assert shown.shown_states == (101, 201)
    address, size, position = shown.ranges[2]
    cut = scene("frag_default", address_range=(address, address + size))
    assert cut.view[2:] == (position, position + size)
    figure = neutracer.mdtp(bundle.snapshot("frag_default"), time_range=(0.06, 0.07))
    (axes,) = axes_of(figure, "map")
    assert axes.get_xlim() == pytest.approx((0.06, 0.07))
    with pytest.raises(ValueError, match="nothing in the trace"):
        neutracer.mdtp(bundle.snapshot("frag_default"), time_range=(5, 6))
    with pytest.raises(ValueError, match="ever reserved"):
        neutracer.mdtp(bundle.snapshot("frag_default"), address_range=(0, 1))


def test_block_is_found_by_the_name_of_pytorchs_viewer():
    timeline = bundle.snapshot("frag_default").timeline()
    name = f"b'{timeline.alive()[0].address:x}_0"
    (block,) = timeline.named(name)
    named = scene("frag_default", address_range=name)
    ends = (hex(block.address), f"{block.address + block.size:x}")
    assert named.view == scene("frag_default", address_range=ends).view
    whole = scene("frag_default").view
    assert named.view[3] - named.view[2] == block.size < whole[3]
    for wrong in ("b7_0", "train.py", ("0x1", "nothing")):
        with pytest.raises(ValueError, match=r"block b7_0|neither an address"):
            scene("frag_default", address_range=wrong)


def test_axis_is_seconds_or_events():
    figure = neutracer.mdtp(bundle.snapshot("frag_default"))
    (axes,) = axes_of(figure, "map")
    assert axes.get_xlabel() == "time, milliseconds"
    assert axes.get_xlim()[1] == pytest.approx(0.0704, rel=0.01)
    figure = neutracer.mdtp(bundle.snapshot("frag_default"), x="event")
    (axes,) = axes_of(figure, "map")
    assert axes.get_xlabel() == "allocator event"
    assert axes.get_xlim() == (0, 2375)
    borders = [c for c in axes.collections if isinstance(c, LineCollection)]
    assert len(borders[0].get_segments()) > 10


@pytest.mark.parametrize("style", ["default", "classic"])
def test_files_with_little_are_drawn(style):
    bare = {"segments": [], "device_traces": [[]]}
    segment = {
        "device": 0,
        "address": 0x7F0000000000,
        "total_size": 2 * MIB,
        "allocated_size": 512,
        "active_size": 512,
        "stream": 0,
        "segment_type": "small",
        "blocks": [
            {"size": 512, "state": "active_allocated"},
            {"size": 2 * MIB - 512, "state": "inactive"},
        ],
    }
    for content in (bare, [segment]):
        snap = neutracer.load(pickle.dumps(content))
        figure = neutracer.mdtp(snap, style=style)
        figure.canvas.draw()
    (axes,) = axes_of(neutracer.mdtp(snap), "map")
    assert axes.get_xlabel() == "no history: the moment of the snapshot"
    assert axes.get_ylim() == (0, 2 * MIB)
    neutracer.plot_timeline(snap).canvas.draw()
    neutracer.plot_fragmentation(snap).canvas.draw()


def test_wrong_choices_are_refused():
    snap = bundle.snapshot("foreign_memory")
    with pytest.raises(ValueError, match="'time' or 'event'"):
        neutracer.mdtp(snap, x="bytes")
    with pytest.raises(ValueError, match="'default' or 'classic'"):
        neutracer.mdtp(snap, style="modern")
    with pytest.raises(ValueError, match="2 titles for 1"):
        neutracer.mdtp(snap, title=("a", "b"))
    with pytest.raises(ValueError, match="no device 5"):
        neutracer.mdtp(snap, device=5)


def named(name, text):
    """A bundled snapshot whose functions all have another name."""
    source = pickle.loads(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes()))
    frames = [event["frames"] for trace in source["device_traces"] for event in trace]
    frames += [b["frames"] for s in source["segments"] for b in s["blocks"] if "frames" in b]
    for frame in itertools.chain.from_iterable(frames):
        frame["name"] = frame["filename"] = text
    return neutracer.load(pickle.dumps(source))


@pytest.mark.parametrize("text", ["训练模型 e\u0301\u200d", "обучение " + "🚀" * 300])
def test_names_that_no_font_has_are_escaped(text):
    snap = named("frag_default", text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in (
            neutracer.mdtp(snap, title=text),
            neutracer.mdtp(snap, style="classic", title=text),
            neutracer.plot_timeline(snap, title=text),
            neutracer.plot_fragmentation(snap, title=text),
        ):
            figure.savefig(io.BytesIO(), format="png")
            words = " ".join(t.get_text() for t in figure.findobj(Text))
            assert "🚀" not in words
            assert "训" not in words
            assert "обучение" in words or "обучение" not in text
        figure.savefig(io.BytesIO(), format="svg")
    assert "\\u8bad" in words or "训" not in text


def runs_of(layout):
    """The allocated blocks of a layout, those that touch merged."""
    runs = []
    for block in sorted(layout.blocks, key=lambda block: block.address):
        if block.state != "active_allocated":
            continue
        if runs and runs[-1][1] == block.address:
            runs[-1][1] += block.size
        else:
            runs.append([block.address, block.address + block.size])
    return runs


@pytest.mark.parametrize("name", ["frag_default", "multi_stream", "weight_streaming"])
def test_classic_merges_touching_blocks(name):
    shown = scene(name, x="event")
    for state, runs in classic_frames(shown)[::9]:
        assert runs.T.tolist() == runs_of(shown.timeline.at(state - 1)), state


def test_classic_leaves_other_streams_out():
    streams = sorted(set(scene("multi_stream").timeline.segments["stream"]))
    assert len(streams) > 1
    for stream in streams:
        shown = scene("multi_stream", x="event", stream=stream)
        for state, runs in classic_frames(shown)[::20]:
            layout = shown.timeline.at(state - 1)
            mine = {n for n, segment in enumerate(layout.segments) if segment.stream == stream}
            held = sum(
                block.size
                for block, owner in zip(layout.blocks, layout.blocks.codes("segment"), strict=True)
                if owner in mine and block.state == "active_allocated"
            )
            assert int((runs[1] - runs[0]).sum()) == held


def test_classic_oom_column_is_red():
    snap = bundle.snapshot("frag_default")
    figure = neutracer.mdtp(snap, style="classic")
    (axes,) = axes_of(figure, "classic")
    assert axes.get_ylim() == (0, 1)
    assert axes.get_xlabel() == "frame"
    pixels = axes.images[0].get_array()
    red = (abs(pixels[..., :3] - np.array((179, 32, 42)) / 255).max(axis=-1) < 0.01).all(axis=0)
    states = [state for state, _ in classic_frames(scene("frag_default", x="event"))]
    oom = scene("frag_default", x="event").ooms[0].state
    assert np.flatnonzero(red).tolist() == [states.index(oom)]
    assert "OOM" in texts_of(figure)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_command_writes_the_picture(tmp_path, capsys, snapshot_path, ending):
    out = tmp_path / f"memory.{ending}"
    file = str(snapshot_path("cuda_graph_pool"))
    assert main(["plot", file, "-o", str(out), "--x", "event"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert out.read_bytes().startswith(heads[ending])


def test_command_refuses_what_it_cannot(tmp_path, capsys, snapshot_path):
    file = str(snapshot_path("foreign_memory"))
    assert main(["plot", file, "-o", str(tmp_path / "memory.docx")]) == 2
    assert ".png, .svg or .pdf" in capsys.readouterr().err
    assert main(["plot", file, file, file, "-o", "x.png"]) == 2
    assert "two to compare" in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "none.pickle"), "-o", str(tmp_path / "x.png")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_missing_matplotlib_is_told():
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.figure'] = None\n"
        "import neutracer\n"
        "try:\n    neutracer.mdtp(b'')\n"
        "except neutracer.UnavailableError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'matplotlib>=3.7'" in done.stdout


def test_import_leaves_matplotlib_alone():
    code = "import sys, neutracer; print({'matplotlib', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_figure_shows_itself_as_png():
    figure = neutracer.mdtp(bundle.snapshot("foreign_memory"))
    picture = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 1 << 20


def test_pyramid_has_exact_extremes():
    tl = bundle.snapshot("frag_default").timeline()
    pyramid = core.Pyramid(tl.allocated)
    first, end = array("Q", [0, 17, 700]), array("Q", [2375, 18, 1999])
    least, largest = (array("Q", raw) for raw in pyramid.extremes(first, end))
    for number, (a, b) in enumerate(zip(first, end, strict=True)):
        assert least[number] == min(tl.allocated[a:b])
        assert largest[number] == max(tl.allocated[a:b])
    assert len(array("Q", pyramid.levels()[-1])) == 2
    with pytest.raises(ValueError, match="not in the series"):
        pyramid.extremes(array("Q", [0]), array("Q", [2376]))
    with pytest.raises(ValueError, match="64-bit"):
        core.Pyramid(b"abc")


def test_largest_blocks_leave_a_band():
    tl = bundle.snapshot("frag_default").timeline()
    raster = core.Raster(tl.native, False)
    view = (1, len(tl) + 1, 0, raster.extent()[1], len(tl), 1)
    rows, rest = (array(k, raw) for k, raw in zip("IQ", raster.top(view, 20), strict=True))
    sizes = tl.allocations["size"]
    assert [sizes[row] for row in rows] == sorted(sizes, reverse=True)[:20]
    completed = tl.allocations["completed_event"]
    begun = tl.allocations["alloc_event"]
    for event in (5, 1000, 2216, 2374):
        kept = sum(
            sizes[row]
            for row in rows
            if begun[row] <= event and (completed[row] == -1 or completed[row] > event)
        )
        assert rest[event] + kept == tl.active[event]


def test_raster_refuses_bad_views():
    raster = core.Raster(bundle.snapshot("foreign_memory").timeline().native, False)
    width, height = raster.extent()
    for view in ((0, width + 1, 0, height, 1, 1), (1, 1, 0, height, 1, 1), (0, 1, 0, 1, 0, 1)):
        with pytest.raises(ValueError):
            raster.draw(view)
    with pytest.raises(ValueError, match="8192"):
        raster.draw((0, width, 0, height, 1 << 20, 1 << 20))
    with pytest.raises(TypeError):
        raster.draw([0, 1, 0, 1, 1, 1])
    with pytest.raises(TypeError):
        core.Raster(bundle.snapshot("foreign_memory").timeline().native, False, pool=3)
    with pytest.raises(ValueError):
        raster.series(3)


def test_pair_that_reserved_alike_is_told_apart_by_what_it_allocated():
    runs = [bundle.snapshot(f"train_resnet_{name}") for name in ("healthy", "late_zero_grad")]
    reserved, allocated = (
        [run.timeline().peak(name).bytes for run in runs] for name in ("reserved", "allocated")
    )
    assert reserved[0] == reserved[1]
    (strip,) = axes_of(neutracer.mdtp(*runs), "strip")[1:]
    (words,) = [text.get_text() for text in strip.texts]
    more = (allocated[1] - allocated[0]) / 2**20
    assert words == f"peak allocated at the left; {more:.1f} MiB more here"
