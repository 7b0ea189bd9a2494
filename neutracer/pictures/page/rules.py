# SPDX-License-Identifier: Apache-2.0
"""What the page's program must know of neutracer, as plain data: whose files are whose, what
frames say, what files are taken for snapshots, the names of categories and steps.

The page opens files where there is no Python. What these rules say is said once, in the
modules that have them; `origins.js` and `feed.js` apply them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from neutracer.diagnose.settings.what_if_parts import CAUSES
from neutracer.trace.categories import CATEGORIES, RULES
from neutracer.trace.flaws import FLAW_RULES
from neutracer.trace.origins import ORIGIN_RULES
from neutracer.trace.places import PLACE_RULES, UNKNOWN_PLACE
from neutracer.trace.roles import FRAME_BITS, ROLE_RULES, Role
from neutracer.trace.source import FILE_RULES
from neutracer.trace.steps import STEP_WORDS
from neutracer.trace.unpack import UNPACK_RULES

__all__ = ["page_rules"]


@lru_cache(maxsize=1)
def page_rules() -> str:
    """The rules as JSON, in which no `<` stands.

    Example:
        >>> import json
        >>> json.loads(page_rules())["categories"][1]
        'input'
    """
    rules = {
        "origins": ORIGIN_RULES,
        "places": PLACE_RULES,
        "unknown_place": UNKNOWN_PLACE.function,
        "roles": ROLE_RULES,
        "role": {role.name: int(role) for role in Role},
        "bits": FRAME_BITS,
        "files": {**FILE_RULES, **UNPACK_RULES},
        "categories": CATEGORIES,
        "rules": list(RULES.items()),
        "steps": STEP_WORDS,
        "causes": CAUSES,
        "flaws": FLAW_RULES,
    }
    return json.dumps(rules, default=_plain, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, re.Pattern):
        flags = "i" if value.flags & re.IGNORECASE else ""
        # JavaScript wants these escaped where Unicode counts, and nothing else.
        pattern = re.sub(r"(?<!\\)\\([<>\"' -])", r"\1", value.pattern)
        return {"pattern": pattern, "flags": flags}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(type(value).__name__)
