"""Secrets and signatures of webhooks: Standard Webhooks, version 1 (HMAC-SHA256).

A secret is ``whsec_`` and 24 to 64 random bytes in base64. The signed content is the message id,
the attempt's time and the exact body, joined by dots.
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
"""The number of signatures of a message that are checked."""

_VERSION: Final = "v1"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")


def make_secret() -> str:
    """Return a new secret of `SECRET_BYTES` random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the bytes of a secret. Raise ConfigError, which does not quote the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"a webhook secret must be {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64"
        )
    return key


def signatures(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: one signature per key, separated by spaces."""
    return " ".join(f"{_VERSION},{_signature(key, message_id, str(timestamp_s), body)}" for key in keys)


def signed_headers(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a message."""
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
    """Return the id of a message that one of `keys` signed within `tolerance_s` of now.

    For receivers.

    A repeated message verifies again within that time; the receiver remembers the ids. Raise
    UnauthenticatedError for a missing or malformed header, another time, and a wrong signature.
    """
    found = {name.lower(): value for name, value in headers.items()}
    message_id = found.get("webhook-id", "")
    timestamp = found.get("webhook-timestamp", "")
    claimed = found.get("webhook-signature", "").split(" ")[:SIGNATURES_MAX]
    if not message_id or not _TIMESTAMP.fullmatch(timestamp):
        raise UnauthenticatedError("webhook-id or webhook-timestamp is missing or malformed")
    if abs(now_s - int(timestamp)) > tolerance_s:
        raise UnauthenticatedError(
            f"the message was signed {now_s - int(timestamp):+.0f} s ago, and {tolerance_s:g} s are allowed: "
            "it is old, or a clock is wrong"
        )
    expected_signatures = [f"{_VERSION},{_signature(key, message_id, timestamp, body)}" for key in keys]
    # All are compared, each in constant time, so that the response time reveals nothing.
    fits = [
        hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
        for expected in expected_signatures
        for signature in claimed
    ]
    if not any(fits):
        raise UnauthenticatedError("no signature of the message is valid")
    return message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
