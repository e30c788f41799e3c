"""API keys: creation, digests, and lookup by the ``Authorization`` header of a request.

Each server decides which permissions a key has.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from headrace.core.errors import UnauthenticatedError

KEY_CHARS_MIN: Final = 16
KEY_PREFIX: Final = "hr_"
"""Prefix of every generated key, by which leaked keys can be recognised."""
_KEY_BYTES: Final = 24
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")

T = TypeVar("T")


def new_key() -> str:
    """Return a new random key: 192 random bits after `KEY_PREFIX`."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_key(key: str) -> bytes:
    """Return the SHA-256 digest of a key.

    Salts and slow hashes protect passwords that people choose; these keys are random.
    """
    # Surrogates come from headers that are not UTF-8. Such a key is unknown, not an error.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def format_digest(digest: bytes) -> str:
    """Return a digest as text for files: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{digest.hex()}"


def parse_digest(text: str) -> bytes | None:
    """Return the digest of a `format_digest` text in lower case, or None for any other text."""
    match = _DIGEST.fullmatch(text)
    return bytes.fromhex(match[1]) if match else None


class KeyRing(Generic[T]):
    """A read-only mapping from API keys to values, stored by digest. Safe from any thread."""

    def __init__(self, entries: Mapping[bytes, T]) -> None:
        self._entries = {digest: (digest, value) for digest, value in entries.items()}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, authorization: str | None) -> T:
        """Return the value of the key in ``Bearer KEY``.

        Raises:
            UnauthenticatedError: The header has no known key. The message never quotes the key.
        """
        if not authorization:
            raise UnauthenticatedError("the API key is missing: send it as Authorization: Bearer KEY")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthenticatedError("the Authorization header has no key: send Bearer KEY")
        digest = hash_key(key.strip())
        # Lookup by digest keeps the timing independent of the key. The second comparison is a
        # precaution.
        found = self._entries.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise UnauthenticatedError("unknown API key")
        return found[1]
