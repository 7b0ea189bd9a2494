# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer learn-kernels`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from neutracer.cli.parts import HelpPage, complain, written
from neutracer.errors import missing

__all__ = ["add_learn_kernels"]

_EXAMPLE = """example:
  neutracer learn-kernels -o my-card.json
  NEUTRACER_KERNELS=my-card.json neutracer rehearse --device "RTX 4090" train.py

exit code: 0; 2 where there is no CUDA device
"""


def add_learn_kernels(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "learn-kernels",
        help=summary,
        description=(
            "Measures the workspaces that cuDNN takes for usual convolutions on this machine's "
            "card, by small real calls that PyTorch's recorder watches, and writes a file of "
            "facts. Rehearsals of such a card take these in place of ranges. It takes up to 12 "
            "GiB of the card's memory; what is too large for it is left out."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="kernels.json",
        help="where the facts go (default: kernels.json)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="N",
        help="about the most that it takes (default: 300)",
    )
    parser.set_defaults(run=_learn)


def _learn(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        return complain(str(missing("torch")))
    import torch

    if not torch.cuda.is_available():
        return complain("there is no CUDA device whose kernels could be measured")
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        return complain(f"this needs torch 2.10 or later, and this is {torch.__version__}")
    from neutracer.rehearsal.learning import learn

    facts = learn(options.seconds, lambda line: print(line, file=sys.stderr, flush=True))
    if not written(options.output, facts.to_text()):
        return 2
    print(f"{options.output}: {len(facts.convolutions)} convolutions of {facts.card}")
    return 0
