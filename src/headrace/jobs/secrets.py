"""Secrets of webhooks, and what is signed with them: Standard Webhooks, version 1 (HMAC-SHA256).

A secret is written ``whsec_`` and 24 to 64 random bytes in base64. Signed are the message's id, the attempt's time and the
body's very bytes, with dots between.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.core.errors import ConfigError, UnauthenticatedError

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
TOLERANCE_S: Final = 300
SIGNATURES_MAX: Final = 16
"""So many signatures of a message are looked at."""

_VERSION: Final = "v1"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")


def make_secret() -> str:
    """A new secret of `SECRET_BYTES` random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for. Raises ConfigError, which does not quote it."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"a webhook's secret is {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes in base64"
        )
    return key


def signatures(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header ``webhook-signature``: one signature a key, in their order, with spaces between."""
    return " ".join(f"{_VERSION},{_signature(key, message_id, str(timestamp_s), body)}" for key in keys)


def signed_headers(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a message."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signatures(keys, message_id, timestamp_s, body),
    }


def verify(
    keys: Iterable[bytes],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """The id of a message that one of `keys` has signed, at most `tolerance_s` from now; for receivers.

    A message that comes again within that time verifies again: whoever takes it keeps the ids. Raises
    UnauthenticatedError for a header that is missing or senseless, another time, and a signature that does not fit.
    """
    found = {name.lower(): value for name, value in headers.items()}
    message_id = found.get("webhook-id", "")
    timestamp = found.get("webhook-timestamp", "")
    claimed = found.get("webhook-signature", "").split(" ")[:SIGNATURES_MAX]
    if not message_id or not _TIMESTAMP.fullmatch(timestamp):
        raise UnauthenticatedError("webhook-id or webhook-timestamp is missing or senseless")
    if abs(now_s - int(timestamp)) > tolerance_s:
        raise UnauthenticatedError(
            f"the message was signed {now_s - int(timestamp):+.0f} s from now, and {tolerance_s:g} s are allowed: "
            "is it an old one, or does one of the clocks go wrong?"
        )
    wanted = [f"{_VERSION},{_signature(key, message_id, timestamp, body)}" for key in keys]
    # All are compared, and each in constant time, so that the answer's time tells nothing.
    fits = [
        hmac.compare_digest(ours.encode(), theirs.encode("utf-8", "replace"))
        for ours in wanted
        for theirs in claimed
    ]
    if not any(fits):
        raise UnauthenticatedError("no signature of the message fits")
    return message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
