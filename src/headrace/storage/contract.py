"""The contracts of object stores: ten blocking operations, callable from any thread.

They block because the asynchronous API of the cloud client aborts the interpreter at exit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Protocol, Self, runtime_checkable

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TableFile:
    """The columns of a data file by its table, which may differ from those in the file.

    `schema` is the Arrow schema of the table, as base64 of its IPC message. `values` are the texts of the
    columns that are constant in the file, such as partitions; None is null. Columns that neither the file nor
    `values` has are null.
    """

    schema: str
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The metadata of an object. `uri` is complete: scheme, bucket and key.

    `size_bytes` is None if the server does not report a size, as some HTTP servers do not. `etag`
    is opaque and changes with the bytes; it is "" if the server sends none. `modified_s` is in
    seconds since the epoch. `table` is set for a data file of a table.
    """

    uri: str
    size_bytes: int | None
    etag: str = ""
    modified_s: float = 0.0
    table: TableFile | None = None


class Writer(Protocol):
    """An object being written. Readers see nothing of it until `close` returns, and then all of it.

    As a context manager, a normal exit closes the writer and an exception aborts it.
    """

    def write(self, data: bytes) -> None:
        """Append `data`. May upload in the background; holds a bounded number of bytes."""
        ...

    def close(self) -> None:
        """Publish the object, replacing an existing one. Raises the error of any earlier upload.

        Closing an already closed or aborted writer does nothing.
        """
        ...

    def abort(self) -> None:
        """Discard the object. Aborting an already closed or aborted writer does nothing."""
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
    """The objects of one scheme. URIs are complete; keys are not decoded.

    Every operation retries transient failures (connection loss, 5xx, throttling) with backoff for
    the store's `retry_s` seconds, then raises `UnavailableError`. `NotFoundError` and
    `AccessDeniedError` are raised at once.
    """

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """Yield the bytes of an object from `start` in chunks.

        An interrupted read resumes at its byte.

        With `etag`, raises `ChangedError` if the object has another ETag, also during the read.
        """
        ...

    def get(self, uri: str) -> bytes:
        """Return the bytes of a small object."""
        ...

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """Return bytes ``start .. start+length``; fewer only at the end of the object."""
        ...

    def put(self, uri: str, data: bytes) -> None:
        """Write an object atomically, replacing an existing one."""
        ...

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """Write an object atomically.

        Raises `AlreadyExistsError` if the object exists with other bytes.

        The same bytes count as success: they are an earlier write of this call whose response was
        lost.
        """
        ...

    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        """Return a writer for a large object.

        The object is written in parts where the store supports multipart uploads. `metadata` is
        stored with it; names are letters and digits, because Azure accepts no others, and values
        are printable ASCII. Local files keep it in extended attributes, where the file system has
        them.
        """
        ...

    def metadata(self, uri: str) -> Mapping[str, str]:
        """Return the metadata that an object was written with; none for an object of other programs.

        Raises NotFoundError if it does not exist.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose URI starts with the *string* `prefix`, sorted by URI.

        There may be none.
        """
        ...

    def head(self, uri: str) -> ObjectInfo:
        """Return the metadata of an object. Raises NotFoundError if it does not exist."""
        ...

    def delete(self, uri: str) -> None:
        """Delete an object. A missing object is no error."""
        ...


@runtime_checkable
class UrlSigner(Protocol):
    """A store that can sign URLs.

    A signed URL gives access to one object for a limited time without credentials.
    """

    def sign(self, method: Literal["GET", "PUT"], uri: str, expires_s: float) -> str:
        """Return an http(s) URL for one object and one method, valid for `expires_s` seconds.

        Raises AccessDeniedError if there are no credentials to sign with, ConfigError if `uri`
        names no object.
        """
        ...
