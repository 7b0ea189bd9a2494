# SPDX-License-Identifier: Apache-2.0
"""Where things lie, for tests in any folder."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
HELPERS = TESTS / "helpers"
