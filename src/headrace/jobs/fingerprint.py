"""Fingerprints of failures: equal for failures that differ in details only.

A fingerprint is made of the model, the cause, the class of the error and the first line of its
message, with URIs, paths, ids and numbers replaced.
"""

import hashlib
import re
from typing import Final

_DETAILS: Final = (
    (re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+", re.IGNORECASE), "<uri>"),
    (re.compile(r"(?<![\w.])(?:[\w.~-]*/){2,}[\w.~-]*"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?:0x)?(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(?:[.,_:]\d+)*"), "<n>"),
)
_PATTERN_CHARS_MAX: Final = 200


def fingerprint_of(model: str, cause: str, error: str, message: str) -> str:
    """Return 16 hexadecimal digits that are equal for equal failures of a model."""
    text = "\n".join((model, cause, error, message_pattern(message)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def message_pattern(message: str) -> str:
    """Return the first line of a message without its details."""
    pattern = message.strip().partition("\n")[0]
    for details, placeholder in _DETAILS:
        pattern = details.sub(placeholder, pattern)
    return pattern[:_PATTERN_CHARS_MAX]
