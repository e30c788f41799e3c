"""What an answer means for its request. Pure: the caller waits.

A `TransientFault` is an attempt that may do better later; everything else is decided by the status (`judge`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

BRIEF_ATTEMPTS_MAX = 3
"""How often something is tried that probably fails again, such as a row that broke the server's memory."""


class TransientFault(Exception):  # noqa: N818 - it never leaves the room; what leaves is an error
    """An attempt failed in a way that may pass. `retry_after_s` is when the server asked to be asked again."""

    def __init__(self, why: str, *, retry_after_s: float | None = None, alive: bool = False) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s
        self.alive = alive
        """Whether the endpoint answered sensibly, so that its circuit stays closed."""


class Verdict(Enum):
    """What an answer means for its request."""

    ANSWERED = auto()
    """It is the answer."""
    REFUSED = auto()
    """The request is wrong, perhaps only some of its rows."""
    REFUSED_WHOLE = auto()
    """No request like this can succeed: a wrong URL, model name or credentials."""
    RETRY = auto()
    """It may pass: ask again for as long as the budget lasts."""
    RETRY_BRIEFLY = auto()
    """It may pass, or these rows may be what breaks it: ask again a few times, then call it refused."""


_RETRIED = frozenset({408, 425, 429, 502, 503, 504})
_WHOLE = frozenset({401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 426, 431, 501, 505, 511})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer; header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def judge(answer: HttpAnswer) -> Verdict:
    """By status alone. 500 is a model that raised, so perhaps some of the rows; 507 is one out of memory."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.ANSWERED
    if status in _RETRIED:
        return Verdict.RETRY
    if status == 507:
        return Verdict.RETRY_BRIEFLY
    if status in _WHOLE or not 400 <= status <= 500:
        return Verdict.REFUSED_WHOLE
    return Verdict.REFUSED


def explain(answer: HttpAnswer, text: str) -> str:
    """What a refusal says, in words that tell what to do. `text` is the server's own."""
    said = f": {text}" if text else ""
    status = answer.status
    if status == 401:
        advice = " (it wants credentials: set HEADRACE_ENDPOINT_TOKEN, or correct it)"
    elif status == 403:
        advice = " (the credentials do not allow this)"
    elif status in (404, 410):
        advice = " (is the model's name right, and its version, and the URL?)"
    elif 300 <= status < 400:
        advice = f" (it redirects to {answer.headers.get('location', '?')}: give that URL)"
    else:
        advice = ""
    return f"HTTP {status}{said}{advice}"
