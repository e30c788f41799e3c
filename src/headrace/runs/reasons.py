"""Count failed records by reason, without the values of single records."""

import re
from collections import Counter
from typing import Final

from headrace.core.block import Failure

REASONS_MAX: Final = 100
"""The maximal number of separate reasons; further failures are counted together."""
OTHER_REASONS: Final = "other reasons"

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])(?! columns?\b| expected\b)"
)
_COLUMN: Final = re.compile(r'column \d+(?: \("[^"]*"\))?')
_REASON_CHARACTERS_MAX: Final = 200


def count_reason(counts: Counter[str], failure: Failure) -> None:
    """Count a failure by its reason, or as OTHER_REASONS once there are REASONS_MAX reasons."""
    reason = reason_of(failure)
    known = reason in counts or len(counts) < REASONS_MAX
    counts[reason if known else OTHER_REASONS] += 1


def reason_of(failure: Failure) -> str:
    """Return a failure's kind and message in general form.

    Its object and quoted values become "…". Numbers become N, except column numbers and counts.
    """
    why = failure.why.splitlines()[0] if failure.why else ""
    for name in filter(None, (failure.position.object, failure.position.member)):
        why = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", why)
    columns: list[str] = _COLUMN.findall(why)
    why = _NUMBER.sub("N", _QUOTED.sub('"…"', _COLUMN.sub("\0", why)))
    for column in columns:
        why = why.replace("\0", column, 1)
    return f"{failure.kind.value}: {why}"[:_REASON_CHARACTERS_MAX]
