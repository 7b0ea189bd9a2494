# SPDX-License-Identifier: Apache-2.0
"""Calls of empty_cache() on a real device, noted by either recorder where they were made."""

import pytest

import neutracer
from neutracer.hooks.cache_calls import KEY

torch = pytest.importorskip("torch")

MIB = 1 << 20

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def take(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def program(kept):
    """Calls behind the second and third request, the free, and the request that fails; where each
    is among the requests, frees and failures."""
    kept += [take(3 * MIB), take(30 * MIB)]
    torch.cuda.empty_cache()
    kept.append(take(MIB))
    torch.accelerator.empty_cache()
    kept.pop(0)
    torch.cuda.memory.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        take(1 << 44)
    torch.cuda.empty_cache()
    kept.append(take(5 * MIB))
    torch.cuda.synchronize()
    return [2, 3, 4, 5]


def noted(snap, device):
    """The events behind which calls were made, and what all events are."""
    events = snap.timeline(device).events
    return snap.settings[KEY][str(device)], [str(action) for action in events["action"]]


def check(snap, numbers):
    device = torch.cuda.current_device()
    calls, actions = noted(snap, device)
    counted = [
        i for i, action in enumerate(actions) if action in ("alloc", "free_requested", "oom")
    ]
    expected = [counted[number - 1] for number in numbers]
    expected = [i + (actions[i] == "free_requested") for i in expected]
    assert calls == expected
    plan = neutracer.what_if(snap, "expandable_segments:True", device=device)
    assert plan.fidelity == 1.0
    assert "silent" not in plan["expandable_segments:True"].causes
    # Those of a request that finds no memory are none of the program's.
    facts = snap.timeline(device).program.facts()
    assert facts["calls_noted"]
    assert facts["calls"] == len(numbers)


@pytest.fixture(autouse=True)
def clean_device():
    torch.cuda.init()
    torch.cuda.empty_cache()
    function = torch._C._cuda_emptyCache
    yield
    neutracer.live.stop()
    assert torch._C._cuda_emptyCache is function


@pytest.mark.parametrize("context", ["alloc", "all"])
def test_recorder_of_pytorch_has_them_noted(context):
    with neutracer.record(context=context) as recording:
        numbers = program([])
    check(recording.snapshot(), numbers)


def test_hooks_have_them_noted():
    neutracer.live()
    numbers = program([])
    check(neutracer.live(), numbers)


def test_ring_that_lost_its_beginning_has_the_rest():
    with neutracer.record(max_entries=6) as recording:
        recording.quiet = True
        kept = []
        program(kept)
        snap = recording.snapshot()
    calls, actions = noted(snap, torch.cuda.current_device())
    assert calls
    assert actions[calls[-1]] == "oom"
