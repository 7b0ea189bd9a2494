# SPDX-License-Identifier: Apache-2.0
"""Where things lie, for tests in any folder."""

from pathlib import Path

import neutracer

#: The checkout.
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
HELPERS = TESTS / "helpers"
#: What another process needs on its path to import the neutracer that is tested.
PACKAGE = Path(neutracer.__file__).parents[1]
