"""What an answer means for its request. Pure: the caller waits.

A `TransientFault` is an attempt that may do better later; everything else is decided by the status (`judge`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.protocols.oip_json import decode_error_kind

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
_OF_A_SEQUENCE = frozenset({"sequence_gone", "sequence_lost"})
"""Errors, by their kind, that are about the sequences which rows belong to: headrace tells them so."""
_WHOLE = frozenset({401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 426, 431, 501, 505, 511})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer; header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def judge(answer: HttpAnswer) -> Verdict:
    """By status alone, but for sequences. 500 is a model that raised, so perhaps some of the rows; 507 is one out of memory."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.ANSWERED
    if status in _RETRIED:
        return Verdict.RETRY
    if status == 507:
        return Verdict.RETRY_BRIEFLY
    if is_of_a_sequence(answer):
        return Verdict.REFUSED
    if status in _WHOLE or not 400 <= status <= 500:
        return Verdict.REFUSED_WHOLE
    return Verdict.REFUSED


def is_of_a_sequence(answer: HttpAnswer) -> bool:
    """Whether a refusal says that a sequence has ended, or has lost its state: it has to be begun anew, whoever asks."""
    return answer.status in (409, 410) and decode_error_kind(answer.body) in _OF_A_SEQUENCE


def explain(answer: HttpAnswer, text: str) -> str:
    """What a refusal says, in words that tell what to do. `text` is the server's own."""
    said = f": {text}" if text else ""
    status = answer.status
    if status == 401:
        advice = " (it wants credentials: set HEADRACE_ENDPOINT_TOKEN, or correct it)"
    elif status == 403:
        advice = " (the credentials do not allow this)"
    elif status in (404, 410) and not is_of_a_sequence(answer):
        advice = " (is the model's name right, and its version, and the URL?)"
    elif 300 <= status < 400:
        advice = f" (it redirects to {answer.headers.get('location', '?')}: give that URL)"
    else:
        advice = ""
    return f"HTTP {status}{said}{advice}"
