"""What an object store is: nine verbs, blocking, called from any thread.

Blocking on purpose: the cloud library's asynchronous API was measured to abort the interpreter at exit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a head tells of an object. `uri` is whole (scheme, bucket, key).

    `size_bytes` is None where the server does not say (some HTTP servers). `etag` is opaque; it changes when the
    bytes change, and is "" where the server gives none.
    """

    uri: str
    size_bytes: int | None
    etag: str = ""
    modified_s: float = 0.0


class Writer(Protocol):
    """An object being written. Readers see nothing of it until `close` returns, and then all of it.

    As a context manager: leaving normally closes, leaving by an exception aborts.
    """

    def write(self, data: bytes) -> None:
        """Append. May upload in the background; holds a bounded amount."""
        ...

    def close(self) -> None:
        """Publish, replacing what stands there. Raises what went wrong in any upload before."""
        ...

    def abort(self) -> None:
        """Forget all of it. Closing or aborting twice does nothing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class Store(Protocol):
    """One scheme's objects. URIs are whole; keys are taken as they stand.

    Every verb retries what may pass (connection loss, 5xx, throttling) with backoff within the store's
    `retry_s`, then raises `UnavailableError`; `NotFoundError` and `AccessDeniedError` are raised at once.
    """

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """The object's bytes from `start` in chunks; a read that breaks resumes at its byte.

        With `etag`, raises `ChangedError` when the object is another one (also when it changes in mid-read).
        """
        ...

    def get(self, uri: str) -> bytes:
        """A whole small object."""
        ...

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """Bytes ``start .. start+length``; exactly that many, or fewer only at the object's end."""
        ...

    def put(self, uri: str, data: bytes) -> None:
        """Write whole, atomically, replacing."""
        ...

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """Write whole, atomically; `AlreadyExistsError` when other bytes stand there.

        When the very same bytes stand there it succeeds: that is our own write, whose answer was lost.
        """
        ...

    def writer(self, uri: str) -> Writer:
        """Write a large object in parts (multipart where the store has it)."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose URI starts with the *string* `prefix`, sorted by URI; may be none."""
        ...

    def head(self, uri: str) -> ObjectInfo:
        """What is known of an object; NotFoundError when there is none."""
        ...

    def delete(self, uri: str) -> None:
        """Remove; no error when there is none."""
        ...


@runtime_checkable
class Signing(Protocol):
    """A store whose objects can be read or written for a while by whoever has an address, without credentials."""

    def sign(self, method: Literal["GET", "PUT"], uri: str, expires_s: float) -> str:
        """An http(s) address for one object and one method, good for `expires_s` seconds.

        Raises AccessDeniedError where there is nothing to sign with, ConfigError for what is no object's URI.
        """
        ...
