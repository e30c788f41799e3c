"""Objects that live in this process: for tests, and for trying things out."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import AlreadyExistsError, ChangedError, NotFoundError
from headrace.storage.contract import ObjectInfo, Writer
from headrace.storage.uri import object_location, prefix_location

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Held:
    data: bytes
    etag: str
    modified_s: float


class MemoryStore:
    """``memory://`` objects, whole in memory, gone with this object. Safe from any thread; nothing to retry."""

    def __init__(self) -> None:
        self._objects: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._writes = 0

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`."""
        held = self._held(uri, etag)
        for at in range(start, len(held.data), CHUNK_BYTES):
            if etag:
                self._held(uri, etag)
            yield held.data[at : at + CHUNK_BYTES]

    def get(self, uri: str) -> bytes:
        """See `Store.get`."""
        return self._held(uri).data

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`."""
        return self._held(uri, etag).data[start : start + length]

    def put(self, uri: str, data: bytes) -> None:
        """See `Store.put`."""
        object_location(uri)
        with self._lock:
            self._set(uri, data)

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """See `Store.put_if_absent`."""
        object_location(uri)
        with self._lock:
            held = self._objects.get(uri)
            if held is None:
                self._set(uri, data)
            elif held.data != data:
                raise AlreadyExistsError(uri, "other bytes stand there already")

    def writer(self, uri: str) -> Writer:
        """See `Store.writer`."""
        object_location(uri)
        return _MemoryWriter(self, uri)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        prefix_location(prefix)
        with self._lock:
            found = [(u, h) for u, h in self._objects.items() if u.startswith(prefix)]
        for uri, held in sorted(found, key=lambda pair: pair[0]):
            yield _info(uri, held)

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`."""
        return _info(uri, self._held(uri))

    def delete(self, uri: str) -> None:
        """See `Store.delete`."""
        object_location(uri)
        with self._lock:
            self._objects.pop(uri, None)

    def _held(self, uri: str, etag: str = "") -> _Held:
        object_location(uri)
        with self._lock:
            held = self._objects.get(uri)
        if held is None:
            raise NotFoundError(uri, "no such object")
        if etag and held.etag != etag:
            raise ChangedError(uri, f"is another object now (ETag {held.etag}, expected {etag})")
        return held

    def _set(self, uri: str, data: bytes) -> None:
        """Under the lock."""
        self._writes += 1
        self._objects[uri] = _Held(bytes(data), f'"{self._writes}"', time.time())


def _info(uri: str, held: _Held) -> ObjectInfo:
    return ObjectInfo(uri, len(held.data), held.etag, held.modified_s)


class _MemoryWriter(Writer):
    def __init__(self, store: MemoryStore, uri: str) -> None:
        self._store = store
        self._uri = uri
        self._parts: list[bytes] | None = []

    def write(self, data: bytes) -> None:
        if self._parts is None:
            raise ValueError(f"{self._uri}: the writer is closed")
        self._parts.append(bytes(data))

    def close(self) -> None:
        if self._parts is None:
            return
        data, self._parts = b"".join(self._parts), None
        self._store.put(self._uri, data)

    def abort(self) -> None:
        self._parts = None
