# SPDX-License-Identifier: Apache-2.0
"""What the page says of files, frames and stacks is what neutracer's own modules say."""

from __future__ import annotations

import json

import pytest
from chromium import PROGRAM, Browser
from hostile_names import HOSTILE_NAMES
from places import TESTS

import neutracer
from neutracer.picture.view import bundle, page_rules
from neutracer.render.document import sentence
from neutracer.trace.roles import _says
from neutracer.trace.source import check_head
from neutracer.trace.stacks import as_installed, origin_of, place_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

DATA = TESTS / "data"
FILES = (
    "/opt/conda/lib/python3.11/site-packages/transformers/trainer.py",
    "C:\\Python312\\Lib\\contextlib.py",
    "/srv/jobs/train.py",
    "/srv/torch/optim/adam.py",
    "/x/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    "/x/site-packages/transformers/cache_utils.py",
    "/x/site-packages/accelerate/hooks.py",
    "/tmp/torchinductor_me/ab/cab.py",
    "<ipython-input-3-abc>",
    "<frozen runpy>",
    "<eval_with_key>.3",
    "/env/bin/torchrun",
    "/usr/lib/python311.zip/abc.py",
    "/a/b.whl/x.egg/pack/mod.py",
    "kernel.cu",
    "??",
    "",
    "a b/site-packages/single.py",
)
NAMES = ("backward", "step", "zero_grad", "_init_group", "__init__", "forward", "all_gather_copy")
NAMES += ("apply", "unpack_hook", "_call_impl", "to", "init_kv_cache", "foreach_reduce", "load")
NAMES += (
    "at::cuda::getCUDABlasLtWorkspace",
    "c10d::Reducer::x",
    "torch::autograd::Engine::thread_main",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    (folder / "empty.html").write_text("<title>rules</title>")
    with Browser(folder / "profile") as chromium:
        chromium.open(folder / "empty.html")
        for module in ("origins", "clean", "sort", "feed"):
            chromium.value(bundle(f"{module}.js", module))
        chromium.value(
            f"globalThis.rules = {page_rules()}; globalThis.made = origins.makeOrigins(rules)"
        )
        yield chromium


def recorded_frames():
    """Every file and function of the bundled recordings."""
    found = {(file, name) for file in FILES for name in NAMES}
    for path in sorted(DATA.glob("*.pickle.xz")):
        snap = neutracer.load(path)
        strings = snap.native.strings()
        found |= {(strings[file], strings[name]) for name, file, *_ in snap.native.frames()}
    return sorted(found)


def test_frames_say_the_same(browser):
    frames = recorded_frames()
    assert len(frames) > 400
    told = browser.value(
        f"({json.dumps(frames)}).map(([file, name]) => [made.says(file, name), "
        "made.originOf(file).owner, made.originOf(file).package])"
    )
    for (file, name), found in zip(frames, told, strict=True):
        origin = origin_of(file)
        assert found == [_says(file, name), origin.owner.value, origin.package], (file, name)


def test_installed_folders_are_known_alike(browser):
    files = ["/tmp/wheels/timm/mlp.py", "/tmp/wheels/transformers/cache_utils.py", "/tmp/train.py"]
    told = browser.value(
        'globalThis.told = origins.makeOrigins(rules, ["/tmp/wheels"]); '
        f"({json.dumps(files)}).map((file) => [told.says(file, 'forward'), "
        "told.originOf(file).owner, told.originOf(file).package])"
    )
    for file, found in zip(files, told, strict=True):
        name = as_installed(file, ["/tmp/wheels"])
        origin = origin_of(name)
        assert found == [_says(name, "forward"), origin.owner.value, origin.package]
    assert [owner for _, owner, _ in told] == ["library", "library", "own"]


def test_stacks_have_the_same_places(browser):
    compared = 0
    for path in sorted(DATA.glob("*.pickle.xz")):
        stacks = [row.stack for row in neutracer.load(path).timeline().allocations]
        stacks = list(dict.fromkeys(stacks))[:300]
        plain = [[(f.name, f.filename, f.line) for f in stack] for stack in stacks]
        told = browser.value(
            f"({json.dumps(plain)}).map((stack) => made.placeOf(stack.reverse().reduce("
            "(seen, [name, file, line]) => made.furtherIn(seen, { name, file, line }), "
            "made.nothing)))"
        )
        for stack, found in zip(stacks, told, strict=True):
            place = place_of(stack)
            file = f"{place.package} {place.filename}" if place.package else place.filename
            assert found == [place.function, file, place.line, place.caller]
            compared += 1
    assert compared > 100


def test_texts_are_made_harmless_alike(browser):
    texts = [
        *HOSTILE_NAMES.values(),
        "a\tb",
        "é\u0301\u0301\u0301\u0301\u0301\u0301",
        "\u00a0",
        "数",
    ]
    texts = [
        text
        for text in texts
        if len(text) < 200 and not any("\ud800" <= c <= "\udfff" for c in text)
    ]
    told = browser.value(f"({json.dumps(texts)}).map(clean.clean)")
    assert told == [sentence(text, 300) for text in texts]


def test_files_are_named_alike(browser):
    heads = [b"", b"PK\x03\x04abc", b"BZh9", b"\x7fELF\x02", b'{"traceEvents": []}', b"[1, 2]"]
    heads += [b"<html>", b"plain words\n", b"\xef\xbb\xbf{}", b"\x93NUMPY", b"SQLite format 3\0"]
    heads += [
        b"(dp0\n",
        b"\x80\x04\x95",
        b"\x1f\x8b\x08",
        b"PK\x03\x04" + b"\0" * 26 + b"m/data.pkl",
        b"train.pickle".ljust(257, b"\0") + b"ustar",
        b"# A program.\nimport torch\n",
        b'{"schema": "neutracer.report/1"}',
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
    ]
    for packed in (None, "gzip"):
        for head in heads:
            try:
                check_head(head, packed)
                wanted = None
            except neutracer.SnapshotError as error:
                wanted = str(error)
            given = f"new Uint8Array({json.dumps(list(head))}), rules.files, {json.dumps(packed)}"
            found = browser.value(
                f"(() => {{ try {{ feed.checkHead({given}); return null; }}"
                " catch (error) { return error.message; } })()"
            )
            assert found == wanted, (head, packed)


def test_rows_are_sorted_and_equal_ones_stay(browser):
    wrong = """(() => {
      let seed = 7;
      const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648);
      for (const count of [0, 1, 2, 1000]) for (const down of [true, false]) {
        const rows = Uint32Array.from({ length: count }, (_, i) => 5 * i);
        const some = () => [Infinity, -3.5, 0, next(), next() * 2 ** 30][next() % 5];
        const keys = Float64Array.from(rows, some);
        const places = [...rows.keys()].sort((a, b) => (keys[a] === keys[b] ? a - b
          : (down ? -1 : 1) * (keys[a] < keys[b] ? -1 : 1)));
        const found = sort.sortedBy(rows, keys, down);
        if (found.join() !== places.map((place) => rows[place]).join()) return [count, down];
      }
      return null; })()"""
    assert browser.value(wrong) is None
