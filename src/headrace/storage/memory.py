"""An object store in the memory of this process, for tests and experiments."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.errors import AlreadyExistsError, ChangedError, NotFoundError
from headrace.storage.contract import ObjectInfo, Store, Writer
from headrace.storage.uri import object_location, prefix_location

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _StoredObject:
    data: bytes
    etag: str
    modified_s: float


class MemoryStore(Store):
    """The store of ``memory://`` objects.

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
    def put(self, uri: str, data: bytes) -> None:
        object_location(uri)
        with self._lock:
            self._set(uri, data)

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
    def writer(self, uri: str) -> Writer:
        object_location(uri)
        return _MemoryWriter(self, uri)

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

    def _set(self, uri: str, data: bytes) -> None:
        """Store the bytes under a new ETag. Call with the lock held."""
        self._writes += 1
        self._objects[uri] = _StoredObject(bytes(data), f'"{self._writes}"', time.time())


def _info(uri: str, stored: _StoredObject) -> ObjectInfo:
    return ObjectInfo(uri, len(stored.data), stored.etag, stored.modified_s)


class _MemoryWriter(Writer):
    def __init__(self, store: MemoryStore, uri: str) -> None:
        self._store = store
        self._uri = uri
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
        self._store.put(self._uri, data)

    @override
    def abort(self) -> None:
        self._parts = None
