# SPDX-License-Identifier: Apache-2.0
"""PyTorch's out-of-memory messages in a log, and the verdicts that they allow on their own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from neutracer.oom.facts import SIZE_PATTERN, OomFacts, size_of
from neutracer.render.document import Copyable, Document, Figure, Note, Place, Severity, Table
from neutracer.render.report import Finding, PlacedRow, Report
from neutracer.trace.stacks import Frame, place_of
from neutracer.units import format_bytes, format_count

# Every wording since 1.13 has these words; a logger may break the line between them. The second
# is of a request that no device can meet, the third of one refused beforehand
# (`throw_on_cudamalloc_oom`), the fourth that of cudaMallocAsync, and the last CUDA's own, of calls
# that PyTorch makes of it.
_BEGINS = re.compile(
    rf"out of memory\W+Tried to allocate {SIZE_PATTERN}"
    r"|out of memory\W+Tried to allocate more than 1EB"
    rf"|out of memory\W+Allocation was preemptively rejected.+Requested size\W+{SIZE_PATTERN}"
    rf"|out of memory\W+Currently allocated\W+{SIZE_PATTERN}\W+Requested\W+{SIZE_PATTERN}"
    r"|(?:CUDA|HIP) error: out of memory",
    re.I,
)
_OOM = re.compile(r"(?:(?:CUDA|HIP) error: |on device \d+ .{0,40})?\bout of memory\b", re.I)

# Of PyTorch's own memory: first as 1.13 and 2.0 word it, then as later releases do.
_ALLOCATED = re.compile(
    rf"{SIZE_PATTERN} (?:already allocated|is allocated by PyTorch)|"
    rf"Currently allocated\W+{SIZE_PATTERN}"
)
_UNALLOCATED = re.compile(rf"{SIZE_PATTERN} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{SIZE_PATTERN} reserved in total by PyTorch")

# torchrun's prefix of a rank, srun's with --label, and mpirun's with --tag-output.
_RANK = re.compile(r"\[rank ?(\d+)\]:?|^\s*(\d+): |^\[\d+,(\d+)\]<std\w+>:?", re.I)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_TRACEBACK = "Traceback (most recent call last)"

# Lines of a log that are kept to find the traceback above a message, and those of a message that
# a logger wrapped.
_LINES_BEFORE = 400
_LINES_AFTER = 12
_MOST_LINE = 20_000


@dataclass(frozen=True)
class OomMessage(PlacedRow):
    """One of PyTorch's messages. Sizes in bytes; None is not in the message.

    Attributes:
        at: Its line in the log, from 1.
        rank: The rank that printed it, where the log has prefixes.
        kind: The verdict, as those of `explain`.
        verdict: The verdict in a sentence.
        function, filename, line, package, caller: The line that asked, as in `Place`.
        device: The device's number.
        request: What was asked of the device, in the message's words; "" if it has none.
        request_bytes: The same, with the two decimals of a message.
        total_bytes: All of the device.
        free_bytes: What it had left.
        limit_bytes: What the process was allowed.
        allocated_bytes: What PyTorch's tensors had.
        unallocated_bytes: What PyTorch had reserved beside that.
        script: The program of the traceback; "" if there is none.
    """

    at: int
    rank: int | None
    kind: str
    verdict: str
    function: str
    filename: str
    line: int
    package: str
    caller: str
    device: int | None
    request: str
    request_bytes: int
    total_bytes: int | None
    free_bytes: int | None
    limit_bytes: int | None
    allocated_bytes: int | None
    unallocated_bytes: int | None
    script: str


@dataclass(frozen=True, kw_only=True, repr=False)
class OomMessagesReport(Report):
    """The out-of-memory messages of a log, as `neutracer explain job.log` shows them.

    Attributes:
        file: The log.
        messages: The messages in the order of the log, equal ones of a rank once.
    """

    schema = "neutracer.oom_messages/1"

    file: str
    messages: tuple[OomMessage, ...]

    def document(self) -> Document:
        """The report as a document."""
        count = format_count(len(self.messages), "out-of-memory message")
        page = Document(self.file, (f"log with {count}",), self.finding_blocks())
        if len(self.messages) == 1:
            return page
        rows = tuple(
            (
                "" if one.rank is None else f"rank {one.rank}",
                f"line {format_count(one.at)}",
                Figure.bytes(one.request_bytes),
                one.kind.replace("_", " "),
                one.place,
            )
            for one in self.messages
        )
        return replace(page, blocks=(*page.blocks, Table("In the order of the log", rows)))


def messages_report(lines: Iterable[str], file: str) -> OomMessagesReport | None:
    """The report on the messages in the lines of a log; None where there are none.

    Args:
        file: Its name, for the title.
    """
    found: dict[tuple[int | None, str], OomMessage] = {}
    for at, text, before in _texts(lines):
        message = _message(at, text, before)
        found.setdefault((message.rank, text), message)
    if not found:
        return None
    messages = tuple(found.values())
    return OomMessagesReport(file=file, messages=messages, findings=(_finding(messages[0]),))


def _texts(lines: Iterable[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Line, text and the lines before it of each message; the text may go on in later lines."""
    before: deque[str] = deque(maxlen=_LINES_BEFORE)
    open_at, text, above = 0, "", [""]
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\n")[:_MOST_LINE]
        begins = _OOM.search(line)
        goes_on = open_at and number - open_at < _LINES_AFTER and _TRACEBACK not in line
        if open_at and (begins or not goes_on):
            if _BEGINS.search(text):
                yield open_at, text, above
            open_at = 0
        if begins:
            open_at, text, above = number, line[begins.start() :], [*before, line]
        elif open_at:
            text += " " + _RANK.sub("", line, count=1).strip("> ")
        before.append(line)
    if open_at and _BEGINS.search(text):
        yield open_at, text, above


def _message(at: int, text: str, lines: list[str]) -> OomMessage:
    facts, asked = OomFacts.from_message(text), _BEGINS.search(text)
    sizes = [word for word in asked.groups() if word] if asked else []
    allocated, unallocated = size_of(_ALLOCATED, text), size_of(_UNALLOCATED, text)
    reserved = size_of(_RESERVED, text)
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(reserved - allocated, 0)
    rank = _rank(lines[-1])
    frames = _frames(lines, rank)
    place = place_of(tuple(frames)) if frames else Place("(no traceback in the log)", "")
    kind, verdict = _verdict(facts, allocated, unallocated)
    return OomMessage(
        at=at,
        rank=rank,
        kind=kind,
        verdict=verdict,
        **asdict(place),
        device=facts.device,
        request=" ".join(sizes[-2:]),
        request_bytes=facts.segment_bytes or 0,
        total_bytes=facts.device_total_bytes,
        free_bytes=facts.device_free_bytes,
        limit_bytes=facts.limit_bytes,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        script=frames[-1].filename if frames else "",
    )


def _rank(line: str) -> int | None:
    match = _RANK.search(line)
    return int(next(group for group in match.groups() if group)) if match else None


def _frames(lines: list[str], rank: int | None) -> list[Frame]:
    """The frames of the traceback that ends in the last line, innermost first."""
    frames = []
    for line in reversed(lines):
        if _rank(line) != rank:
            continue
        match = _FRAME.search(line)
        if match:
            frames.append(Frame(match[1], int(match[2]), match[3].strip()))
        elif _TRACEBACK in line:
            break
    return frames


def _verdict(facts: OomFacts, allocated: int | None, unallocated: int | None) -> tuple[str, str]:
    """The kind and the sentence that the figures of a message allow."""
    asked, total = facts.segment_bytes or 0, facts.device_total_bytes
    free, limit = facts.device_free_bytes, facts.limit_bytes
    if "more than 1EB" in facts.message:
        return "unreasonable_request", "more than 1 EiB was requested, which no device has"
    if "preemptively rejected" in facts.message:
        text = f"{format_bytes(asked)} more would exceed the process's limit"
        return "process_cap", f"{text} (per_process_memory_fraction)"
    if not asked:
        text = "CUDA itself found no memory, for a call that is no tensor of PyTorch's"
        return "non_torch", text
    if total is not None and asked > total:
        text = f"{format_bytes(asked)} was requested of a device with {format_bytes(total)}"
        return "unreasonable_request", text
    if limit is not None and free is not None and free >= asked:
        text = f"the process is limited to {format_bytes(limit)}, though the device has room"
        return "process_cap", text
    if unallocated is not None and unallocated >= asked > 0:
        inside = f"{format_bytes(unallocated)} was reserved and unused"
        return "fragmentation", f"{inside}, but in no piece of {format_bytes(asked)}"
    own = facts.process_bytes or (allocated or 0) + (unallocated or 0)
    if total is not None and free is not None and own and total - free - own > own:
        text = f"other processes have {format_bytes(total - free - own)} of the device"
        return "non_torch", f"{text}, this one {format_bytes(own)}"
    if allocated is not None and total is not None:
        text = f"PyTorch's tensors take {format_bytes(allocated)} of {format_bytes(total)}"
        return "capacity", f"{text}, and {format_bytes(asked)} more did not fit"
    return "capacity", f"{format_bytes(asked)} did not fit"


_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

# What to try at once, by kind; what holds the memory only a recording shows.
_FIRST_AID = {
    "fragmentation": Note("try", detail=Copyable(_SETTING)),
    "process_cap": Note("raise torch.cuda.set_per_process_memory_fraction()"),
    "non_torch": Note("see who has the device", detail=Copyable("nvidia-smi")),
}


def _finding(message: OomMessage) -> Finding:
    rank = "" if message.rank is None else f"rank {message.rank}, "
    device = "" if message.device is None else f"cuda:{message.device}, "
    asked = f"{message.request} requested by" if message.request else "reported at"
    evidence = (Note(f"{rank}{device}{asked}", message.place),)
    script = message.script if message.script.endswith(".py") else "train.py"
    record = Note("record who holds the memory", detail=Copyable(f"neutracer run {script}"))
    first = _FIRST_AID.get(message.kind)
    return Finding(
        "out_of_memory",
        Severity.SEVERE,
        message.request_bytes,
        f"out of memory: {message.verdict}",
        evidence,
        (record,) if first is None else (first, record),
    )
