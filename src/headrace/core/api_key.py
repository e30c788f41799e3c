"""API keys: made, kept as digests, and found again by what a request's ``Authorization`` says. Which rights a key has is its door's business."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from headrace.core.errors import UnauthenticatedError

KEY_CHARS_MIN: Final = 16
KEY_PREFIX: Final = "hr_"
"""What every key that is made here begins with, so that one that leaked is recognised."""
_KEY_BYTES: Final = 24
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")

Known = TypeVar("Known")


def new_key() -> str:
    """A key that nobody can guess: 192 random bits after `KEY_PREFIX`."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key's text. Neither salted nor slow: that is for words that people choose, and these are random."""
    # Surrogates come from headers that are not UTF-8: they make another key, not an error.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def digest_text(digest: bytes) -> str:
    """A digest as it is written in files: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{digest.hex()}"


def parse_digest(text: str) -> bytes | None:
    """What `digest_text` wrote, in lower case; None for any other text."""
    match = _DIGEST.fullmatch(text)
    return bytes.fromhex(match[1]) if match else None


class KeyRing(Generic[Known]):
    """What is known of each key, by the key's digest. Immutable, safe from any thread."""

    def __init__(self, known: Mapping[bytes, Known]) -> None:
        self._known = {digest: (digest, value) for digest, value in known.items()}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, authorization: str | None) -> Known:
        """What is known of the key in ``Bearer KEY``. UnauthenticatedError, which never quotes it, for all else."""
        if not authorization:
            raise UnauthenticatedError("an API key is needed: send it as Authorization: Bearer KEY")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthenticatedError("the authorization must be: Bearer KEY")
        digest = digest_of(key.strip())
        # Looked up by digest, so that timing tells nothing about the key; compared once more all the same.
        found = self._known.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise UnauthenticatedError("this API key is not known here")
        return found[1]
