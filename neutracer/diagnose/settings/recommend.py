# SPDX-License-Identifier: Apache-2.0
"""Which allocator settings would serve this program best, and what would they cost?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from neutracer.diagnose.question import first_findings
from neutracer.diagnose.settings.bound import Bound
from neutracer.diagnose.settings.fidelity import Fidelity
from neutracer.diagnose.settings.rank import Row, best_of, rank
from neutracer.diagnose.settings.replaying import Replayer
from neutracer.diagnose.settings.search import (
    Survey,
    candidates,
    confirmed_capacity,
    smallest_capacities,
    survey,
)
from neutracer.diagnose.settings.what_if_parts import (
    OUTCOME_HEADS,
    Outcome,
    doubt,
    named,
    named_recorded,
    outcome_cells,
    trust_blocks,
)
from neutracer.diagnose.settings.words import above, bound_sentence, cost, gain, near_least, stops
from neutracer.render.document import (
    Block,
    Copyable,
    Document,
    Figure,
    Note,
    Paragraph,
    Severity,
    Table,
)
from neutracer.render.report import Finding, Report
from neutracer.render.row import PlainRow
from neutracer.trace.snapshot import settings_words
from neutracer.units import format_bytes, format_count

__all__ = ["Choice", "RecommendReport", "best_settings"]

# How many choices are shown.
_SHOWN = 3

#: The smallest capacity of what needs least, in bytes, and its name.
Least = tuple[int, str]


@dataclass(frozen=True)
class Choice(PlainRow):
    """One setting that does better than the recorded one.

    Attributes:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF.
        environment: The whole line for a shell.
        outcome: What would have come of it.
        smallest_capacity_bytes: The least memory for PyTorch with which every request
            succeeds, those included that failed when recorded, on a device that has no more and
            under such a limit of PyTorch's, in other orders of addresses too; None where none
            was found. CUDA's context and other libraries need theirs besides.
        saved_bytes: Fewer bytes reserved at the peak than with the recorded settings.
        more_device_calls: More cudaMalloc, cudaFree, mappings and unmappings than with the
            recorded settings: what it costs; less than 0 where it saves some.
        above_bound: Its peak of reserved above the packing lower bound, as a share of that;
            above the bound with what had failed, up to there, where it succeeds. None
            where the program stops for lack of memory: the bound is of all of it, the peak
            of what came before.
    """

    settings: str
    environment: str
    outcome: Outcome
    smallest_capacity_bytes: int | None
    saved_bytes: int
    more_device_calls: int
    above_bound: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class RecommendReport(Report):
    """The best of a few dozen settings for one program.

    Attributes:
        device: The device.
        events: Events of its trace.
        objective: "fit", "reserved" or "speed".
        capacity_bytes: The most that the process may have, or None: as when recorded.
        tried: How many settings were tried.
        recorded: The outcome of the file's own settings.
        settings_recorded: Whether the file states them. If not, they are what its trace shows.
        recorded_capacity_bytes: The least memory that those would have needed.
        choices: The best, at most three; empty where nothing does better.
        bound: The least that any allocator needs.
        check: How faithfully the model replays the file's own settings.
        notes: What the trace can't tell.
    """

    schema = "neutracer.recommend/1"
    derived = ("fidelity",)

    device: int
    events: int
    objective: str
    capacity_bytes: int | None
    tried: int
    recorded: Outcome
    recorded_capacity_bytes: int | None
    choices: tuple[Choice, ...]
    bound: Bound
    check: Fidelity
    notes: tuple[str, ...]
    settings_recorded: bool = True

    @property
    def fidelity(self) -> float:
        """1.0 where the model reproduces every address and size of the recording."""
        return self.check.value

    @property
    def best(self) -> Choice | None:
        """The first choice, or None where nothing does better than what is set."""
        return self.choices[0] if self.choices else None

    def document(self) -> Document:
        """The report as a page."""
        facts: tuple[str, ...] = (
            f"cuda:{self.device}",
            format_count(self.events, "event"),
            f"objective {self.objective}",
            f"{format_count(self.tried, 'setting')} tried",
        )
        if self.capacity_bytes is not None:
            facts = (*facts, f"at most {format_bytes(self.capacity_bytes)}")
        outcomes = (self.recorded, *(choice.outcome for choice in self.choices))
        blocks: list[Block] = [*self.finding_blocks(), self._table(), self._needs()]
        best = None if self.best is None else self.best.outcome
        blocks.append(Paragraph(bound_sentence(self.bound, self.recorded, best)))
        blocks += trust_blocks(self.check, outcomes, self.notes)
        return Document("Recommended settings", facts, tuple(blocks))

    def _named_recorded(self) -> str:
        return named_recorded(self.recorded, is_stated=self.settings_recorded)

    def _table(self) -> Table:
        rows = [outcome_cells(self.recorded, self._named_recorded())]
        rows += [outcome_cells(choice.outcome, named(choice.outcome)) for choice in self.choices]
        return Table("", tuple(rows), OUTCOME_HEADS)

    def _needs(self) -> Table:
        shown = [(self.recorded_capacity_bytes, self._named_recorded())]
        shown += [(each.smallest_capacity_bytes, named(each.outcome)) for each in self.choices]
        rows = tuple(
            ("none found" if nbytes is None else Figure.bytes(nbytes), name)
            for nbytes, name in shown
        )
        return Table("Smallest memory in which every request succeeds", rows)


def best_settings(replayer: Replayer, objective: str) -> RecommendReport:
    """Search the allocator's settings for the ones that serve a program best.

    Some three dozen are replayed in parallel. One is recommended only where it does better
    than the recorded settings.

    Args:
        replayer: The program, on one device.
        objective: One of `OBJECTIVES`.
    """
    tried = candidates(replayer)
    return _report(replayer, objective, len(tried), survey(replayer, tried))


def _report(replayer: Replayer, objective: str, tried: int, found: Survey) -> RecommendReport:
    choices, least = _choices(replayer, objective, found)
    found = _confirmed(replayer, found)
    return RecommendReport(
        device=replayer.device,
        events=len(replayer.timeline),
        objective=objective,
        capacity_bytes=replayer.capacity,
        tried=tried,
        recorded=found.recorded,
        recorded_capacity_bytes=found.smallest,
        choices=choices,
        bound=found.bound,
        check=replayer.check,
        notes=replayer.notes(),
        settings_recorded=replayer.snap.settings_stated,
        findings=(
            *first_findings(replayer.snap, device=replayer.device),
            *_findings(objective, choices, least, found, replayer),
        ),
    )


def _confirmed(replayer: Replayer, found: Survey) -> Survey:
    """The survey with the smallest memory of the recorded settings that is sure to do."""
    if found.smallest is None:
        return found
    return replace(found, smallest=confirmed_capacity(replayer, None, found.smallest))


def _choices(
    replayer: Replayer, objective: str, found: Survey
) -> tuple[tuple[Choice, ...], Least | None]:
    """The best of what was tried, as far as it does better than the recorded settings; and
    the smallest capacity that is known of anything."""
    rows = rank(replayer, objective, found)
    best = best_of(replayer, objective, found, rows, _SHOWN)
    if objective != "fit":
        needs = smallest_capacities(replayer, [each for each, _ in best], found)
        best = [(outcome, needs[outcome.settings]) for outcome, _ in best]
    known = [*best, *rows, (found.recorded, found.smallest)]
    needs_of = [(nbytes, named(each)) for each, nbytes in known if nbytes is not None]
    least = min(needs_of, key=lambda pair: pair[0], default=None)

    def sure(row: Row) -> Row:
        outcome, nbytes = row
        if nbytes is None:
            return row
        return outcome, confirmed_capacity(replayer, outcome.settings, nbytes)

    rows = replayer.map(sure, best)
    return tuple(_choice(*row, found.recorded, found.bound) for row in rows), least


def _choice(outcome: Outcome, smallest: int | None, recorded: Outcome, bound: Bound) -> Choice:
    return Choice(
        outcome.settings,
        f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(outcome.settings)}",
        outcome,
        smallest,
        recorded.peak_reserved_bytes - outcome.peak_reserved_bytes,
        outcome.device_calls - recorded.device_calls,
        None if outcome.stopped_event is not None else above(outcome, bound),
    )


def _findings(
    objective: str,
    choices: tuple[Choice, ...],
    least: Least | None,
    found: Survey,
    replayer: Replayer,
) -> tuple[Finding, ...]:
    own, recorded = found.smallest, found.recorded
    if not choices:
        words = settings_words(recorded.settings, is_stated=replayer.snap.settings_stated)
        message = f"nothing that was tried does better than the program's own settings: {words}"
        verdict = _verdict(None, least, found, replayer)
        return (*verdict, Finding("no_recommendation", Severity.INFO, 0, message))
    best = choices[0]
    saved, message = gain(objective, (best.outcome, best.smallest_capacity_bytes), (recorded, own))
    near = near_least(objective, best.smallest_capacity_bytes, least)
    # Of parts of the program that end at different events they can't be compared.
    alike = best.outcome.stopped_event == recorded.stopped_event
    calls = cost(best.more_device_calls) if alike else ""
    evidence = (*near, *stops(best.outcome), *doubt(replayer.check))
    advice = (
        Note(Copyable(best.environment), detail=calls),
        Note("From torch 2.9 on the variable is also called PYTORCH_ALLOC_CONF."),
    )
    finding = Finding("recommendation", Severity.INFO, saved, message, evidence, advice)
    return (*_verdict(best, least, found, replayer), finding)


def _verdict(
    best: Choice | None, least: Least | None, found: Survey, replayer: Replayer
) -> tuple[Finding, ...]:
    """Whether the program fits in the given capacity."""
    if replayer.capacity is None:
        return ()
    room, own, recorded = format_bytes(replayer.capacity), found.smallest, found.recorded
    if recorded.fits:
        message = f"fits in {room} as it is"
        if own is not None:
            message += f": from {format_bytes(own)} on every request succeeds"
        if recorded.beyond_event is not None:
            message += "; what the program would have done beyond its trace is not known"
        return (Finding("fits", Severity.INFO, 0, message),)
    if best is not None and best.outcome.fits:
        message = f"does not fit in {room} as it is, but does with {named(best.outcome)}"
        if best.outcome.beyond_event is not None:
            message += "; what the program would have done beyond its trace is not known"
        return (Finding("fits_with_settings", Severity.SERIOUS, replayer.capacity, message),)
    message = f"does not fit in {room} under any setting that was tried"
    if least is not None:
        message += f"; {least[1]} needs {format_bytes(least[0])}"
    return (Finding("out_of_memory", Severity.SEVERE, replayer.capacity, message),)
