"""The encryption key of a job server: it encrypts webhook secrets and signs sessions.

A key file has 32 random bytes in base64, and may have more such lines: the first key encrypts, and
all keys decrypt, so that a key can be replaced. Empty lines and lines that begin with ``#`` are
ignored.

Texts are encrypted with AES-SIV (RFC 5297) under a key that HKDF-SHA256 derives. It is
deterministic: equal secrets of one webhook stay equal, so that jobs share the health of their
webhook. The URL of the webhook is authenticated, so that a secret from the database signs for no
other URL.
"""

import base64
import binascii
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.notify import ENCRYPTED_PREFIX

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as _error:
    raise MissingExtraError("jobs", "the encryption of webhook secrets") from _error

KEY_BYTES: Final = 32
_SIV_KEY_BYTES: Final = 64
_PURPOSE_OF_TEXTS: Final = "webhook secrets"
_OTHERS: Final = 0o077
_WORLD: Final = 0o007
_HOW: Final = "create one with: openssl rand -base64 32 > FILE; chmod 600 FILE"

_log = logging.getLogger("headrace.jobs")


class EncryptionKey:
    """One or several keys of `KEY_BYTES` each: the first encrypts, and all decrypt. Thread-safe."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)
        self._ciphers = tuple(AESSIV(_derive(key, _PURPOSE_OF_TEXTS, _SIV_KEY_BYTES)) for key in keys)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the keys of a file. Raise ConfigError, which quotes no key, for an invalid file."""
        try:
            text = path.read_text(encoding="ascii")
            status = path.stat()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot read the encryption key ({error}); {_HOW}") from error
        # A file of another owner may be open to the group of this process: a Secret in a pod is.
        if status.st_mode & (_OTHERS if status.st_uid == os.geteuid() else _WORLD):
            _log.warning("%s is readable by other users: chmod 600", path)
        lines = [line.strip() for line in text.splitlines()]
        keys = [_parse_key(line, path) for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ConfigError(f"{path}: the file has no encryption key; {_HOW}")
        return cls(keys)

    def encrypt(self, text: str, context: str) -> str:
        """Return the text encrypted with the first key; only the same `context` decrypts it."""
        sealed = self._ciphers[0].encrypt(text.encode(), [context.encode()])
        return ENCRYPTED_PREFIX + base64.b64encode(sealed).decode()

    def decrypt(self, text: str, context: str) -> str:
        """Return the plain text of `encrypt`, or the text itself if it is not encrypted.

        Raise ConfigError if no key decrypts it in this context.
        """
        if not text.startswith(ENCRYPTED_PREFIX):
            return text
        try:
            sealed = base64.b64decode(text.removeprefix(ENCRYPTED_PREFIX), validate=True)
        except binascii.Error as error:
            raise ConfigError("an encrypted text is damaged") from error
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, [context.encode()]).decode()
            except (InvalidTag, ValueError):
                continue
        raise ConfigError("no key of the encryption key file decrypts it: was the file replaced?")

    def derive(self, purpose: str) -> bytes:
        """Return a key of `KEY_BYTES` for another purpose, from the first key."""
        return _derive(self._keys[0], purpose, KEY_BYTES)


def create_key_file(path: Path) -> None:
    """Create a file with a new random key for its owner alone; do nothing if the file exists.

    If several processes create it at once, one wins, and no process sees an unfinished file. Raise
    ConfigError if the file cannot be written.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot create the encryption key: {error}") from error


def _derive(key: bytes, purpose: str, size_bytes: int) -> bytes:
    return HKDF(SHA256(), size_bytes, salt=None, info=f"headrace {purpose}".encode()).derive(key)


def _parse_key(line: str, path: Path) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: each line must be a key of {KEY_BYTES} bytes in base64; {_HOW}")
    return key
