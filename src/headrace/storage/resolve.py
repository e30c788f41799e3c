"""Map URIs to stores. The caller owns the `Stores`, also their objects in memory; no module holds one."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Self

from typing_extensions import override

from headrace.core.clock import Clock, RetryPolicy, SystemClock
from headrace.core.errors import AlreadyExistsError, ChangedError, NotFoundError
from headrace.storage.contract import NO_METADATA, ObjectInfo, Store, Writer
from headrace.storage.http import HttpStore
from headrace.storage.local import LocalStore
from headrace.storage.retry import Retrier
from headrace.storage.uri import CLOUD_SCHEMES, HTTP_SCHEMES, object_location, parse, prefix_location

RETRY_S = 120.0
TIMEOUT_S = 60.0


class Stores:
    """The stores of one owner, created on first use.

    They include the ``memory://`` objects. Safe from any thread.

    Args:
        environ: The source of endpoints and credentials; None: the environment of the process. The
            client library reads GOOGLE_* and AZURE_* variables from the process's environment.
        clock: The clock that retries wait on.
        retry_s: Seconds without progress after which a failing operation raises UnavailableError.
        timeout_s: Seconds without a byte after which an attempt fails.
        seed: The seed of the retry jitter; None: random.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
        timeout_s: float = TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        self.environ = environ
        self.retry_s = retry_s
        self.timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ
        self._closed = threading.Event()
        self._clock = clock or SystemClock()
        self._seed = seed
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    @cached_property
    def _retrier(self) -> Retrier:
        """The retrier of all stores on the network."""
        policy = RetryPolicy(retry_s=self.retry_s)
        return Retrier(self._clock, policy, seed=self._seed, wake=self._closed)

    def for_uri(self, uri: str) -> Store:
        """Return the store of a URI or plain path. URIs of one scheme share a store.

        Raises ConfigError for an invalid scheme or address. Credentials are searched on the first
        operation on a bucket.
        """
        scheme = parse(uri).scheme
        scheme = "http" if scheme in HTTP_SCHEMES else scheme
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                store = self._stores[scheme] = self._make(scheme)
            return store

    def close(self) -> None:
        """End all waiting for retries: operations that still fail raise UnavailableError at once.

        Closing twice does nothing.
        """
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, scheme: str) -> Store:
        if scheme in HTTP_SCHEMES:
            return HttpStore(self._retrier, timeout_s=self.timeout_s)
        if scheme not in CLOUD_SCHEMES:
            return MemoryStore() if scheme == "memory" else LocalStore()
        # The client library is slow to import, and local runs never need it.
        from headrace.storage.cloud import Bucket, CloudSettings  # noqa: PLC0415
        from headrace.storage.cloud_store import CloudStore  # noqa: PLC0415

        settings = CloudSettings(self._environ, self.timeout_s, self.retry_s)
        return CloudStore(scheme, lambda kind, name: Bucket(kind, name, settings), self._retrier)


CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _StoredObject:
    data: bytes
    etag: str
    modified_s: float
    metadata: Mapping[str, str]


class MemoryStore(Store):
    """The store of ``memory://`` objects, for tests and experiments.

    Its objects live as long as the instance. Safe from any thread.
    """

    def __init__(self) -> None:
        self._objects: dict[str, _StoredObject] = {}
        self._lock = threading.Lock()
        self._writes = 0

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        stored = self._lookup(uri, etag)
        for at in range(start, len(stored.data), CHUNK_BYTES):
            if etag:
                self._lookup(uri, etag)
            yield stored.data[at : at + CHUNK_BYTES]

    @override
    def get(self, uri: str) -> bytes:
        return self._lookup(uri).data

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        return self._lookup(uri, etag).data[start : start + length]

    @override
    def put(self, uri: str, data: bytes, metadata: Mapping[str, str] = NO_METADATA) -> None:
        object_location(uri)
        with self._lock:
            self._set(uri, data, metadata)

    @override
    def put_if_absent(self, uri: str, data: bytes) -> None:
        object_location(uri)
        with self._lock:
            stored = self._objects.get(uri)
            if stored is None:
                self._set(uri, data)
            elif stored.data != data:
                raise AlreadyExistsError(uri, "exists already with other bytes")

    @override
    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        object_location(uri)
        return _MemoryWriter(self, uri, metadata)

    @override
    def metadata(self, uri: str) -> Mapping[str, str]:
        return self._lookup(uri).metadata

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        prefix_location(prefix)
        with self._lock:
            found = [(u, o) for u, o in self._objects.items() if u.startswith(prefix)]
        for uri, stored in sorted(found, key=lambda pair: pair[0]):
            yield _info(uri, stored)

    @override
    def head(self, uri: str) -> ObjectInfo:
        return _info(uri, self._lookup(uri))

    @override
    def delete(self, uri: str) -> None:
        object_location(uri)
        with self._lock:
            self._objects.pop(uri, None)

    def _lookup(self, uri: str, etag: str = "") -> _StoredObject:
        object_location(uri)
        with self._lock:
            stored = self._objects.get(uri)
        if stored is None:
            raise NotFoundError(uri, "no such object")
        if etag and stored.etag != etag:
            raise ChangedError(uri, f"has changed (ETag {stored.etag}, expected {etag})")
        return stored

    def _set(self, uri: str, data: bytes, metadata: Mapping[str, str] = NO_METADATA) -> None:
        """Store the bytes under a new ETag. Call with the lock held."""
        self._writes += 1
        self._objects[uri] = _StoredObject(bytes(data), f'"{self._writes}"', time.time(), dict(metadata))


def _info(uri: str, stored: _StoredObject) -> ObjectInfo:
    return ObjectInfo(uri, len(stored.data), stored.etag, stored.modified_s)


class _MemoryWriter(Writer):
    def __init__(self, store: MemoryStore, uri: str, metadata: Mapping[str, str]) -> None:
        self._store = store
        self._uri = uri
        self._metadata = metadata
        self._parts: list[bytes] | None = []

    @override
    def write(self, data: bytes) -> None:
        if self._parts is None:
            raise ValueError(f"{self._uri}: the writer is closed")
        self._parts.append(bytes(data))

    @override
    def close(self) -> None:
        if self._parts is None:
            return
        data, self._parts = b"".join(self._parts), None
        self._store.put(self._uri, data, self._metadata)

    @override
    def abort(self) -> None:
        self._parts = None
